"""Public names that no log of `logs` needs: exact problems, readers, rankings, label policies.

Every function of `OTHERS` gives the values of one of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

import poolwise as pw
from tests.recorded.logs import COUNTS, plain, roles, rows, softmax
from tests.recorded.measures import MEASURES
from tests.recorded.structures import STRUCTURES
from tests.recorded.verbs import Values, answer, brief, codes, interval

if TYPE_CHECKING:
    from collections.abc import Callable

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def problem() -> pw.FiniteProblem:
    """Two contexts, three actions and two loggers."""
    return pw.FiniteProblem(
        context_prob=np.array([0.4, 0.6]),
        reward=np.array([[8.0, 3, 1], [2, 5, 6]]),
        target=np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]),
        loggers={
            "one": np.array([[0.2, 0.3, 0.5], [0.5, 0.3, 0.2]]),
            "two": np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]]),
        },
        counts={"one": 200, "two": 300},
        reward_variance=np.array([[0.5, 0.1, 0.2], [0.3, 0.4, 0.0]]),
        predicted_reward=np.array([[7.0, 3, 2], [2, 4, 6]]),
    )


def exact() -> Values:
    """Exact means and variances of estimators, and an evaluation of drawn rows."""
    whole = problem()
    asked = (pw.Naive(), pw.Balanced(), pw.Weighted(), pw.SelfNormalised(), pw.Calibrated())
    found = {e.name: whole.exact(e) for e in (*asked, pw.DoublyRobust(), pw.DirectMethod())}
    drawn = whole.draw(np.random.default_rng(1))
    return {
        "value": whole.value,
        "gamma": whole.gamma,
        "divergence": whole.divergence,
        "exact": {name: [e.value, e.variance, dict(e.shares)] for name, e in found.items()},
        "drawn": brief(pw.evaluate(drawn, "target_prob")),
    }


def simulated() -> Values:
    """A log of policies that act on labelled rows, one of them a classifier."""
    from sklearn.naive_bayes import GaussianNB

    rng = np.random.default_rng(2)
    features = rng.normal(size=(80, 2))
    labels = (features[:, 0] > 0).astype(int) + (features[:, 1] > 0.5)
    uniform = pw.Uniform((0, 1, 2))
    learned = pw.Classifier(GaussianNB().fit(features, labels))
    mixed = pw.Mixture([uniform, learned], [0.5, 0.5])
    log = pw.bandit_log(
        features,
        labels,
        loggers={"uniform": uniform, "mixed": mixed},
        counts={"uniform": 150, "mixed": 200},
        rng=rng,
        targets={"learned": learned},
    )
    return brief(pw.evaluate(log, {"learned": "learned_prob"}))


def rankings() -> Values:
    """Lists of up to three positions in each model of rewards."""
    rng = np.random.default_rng(3)
    length = rng.integers(1, 4, 120)
    request = np.repeat(np.arange(120), length)
    total = len(request)
    chance = {name: rng.uniform(0.2, 0.9, total) for name in ("p_a", "p_b", "t")}
    table = pa.table(
        {
            "request": request,
            "position": np.concatenate([np.arange(1, n + 1) for n in length]),
            "logger": np.where(request < 70, "a", "b"),
            "click": (rng.random(total) < 0.4).astype(float),
            **chance,
        }
    )
    models: tuple[Any, ...] = ("cascade", "independent", "whole")
    return {model: answer(partial(_ranked, table, model)) for model in models}


def _ranked(table: pa.Table, model: Any) -> Values:  # noqa: ANN401 - one of three words
    found = pw.ranking_log(
        table,
        "t",
        request="request",
        position="position",
        reward="click",
        logger="logger",
        propensities={"a": "p_a", "b": "p_b"},
        model=model,
    )
    return brief(pw.evaluate(*found))


def sessions() -> Values:
    """Sessions as rows with lists, with rewards at each step and at the end."""
    rng = np.random.default_rng(8)
    rows = []
    for session in range(90):
        steps = int(rng.integers(1, 4))
        chance = {name: rng.uniform(0.2, 0.9, steps).tolist() for name in ("p_a", "p_b", "t")}
        rewards = (rng.random(steps) < 0.4).astype(float).tolist()
        logger = "a" if session < 50 else "b"
        rows.append(
            {"id": session, "logger": logger, "r": rewards, "end": sum(rewards), **chance}
        )
    given: dict[str, Any] = {"session": "id", "logger": "logger", "propensities": "p_{logger}"}
    return {
        reward: brief(pw.evaluate(*pw.session_log(rows, "t", reward=reward, **given)))
        for reward in ("r", "end")
    }


def scores() -> Values:
    """Lists that are drawn by their scores, in each model of rewards."""
    rng = np.random.default_rng(9)
    rows = []
    for request in range(90):
        worth = {name: rng.normal(size=4).round(3).tolist() for name in ("s_a", "s_b", "s_t")}
        items = rng.permutation(4)[: rng.integers(1, 4)].tolist()
        clicks = (rng.random(len(items)) < 0.4).astype(float).tolist()
        logger = "a" if request < 50 else "b"
        row = {
            "id": request,
            "logger": logger,
            "items": items,
            "r": clicks,
            "all": [0, 1, 2, 3],
        }
        rows.append(row | worth)
    given: dict[str, Any] = {"request": "id", "logger": "logger", "reward": "r"}
    given |= {"action": "items", "eligible": "all"}
    given["propensities"] = {i: pw.PlackettLuce(f"s_{i}") for i in "ab"}
    models: tuple[Any, ...] = ("cascade", "independent", "whole")
    target = pw.PlackettLuce("s_t", temperature=2)
    return {
        model: brief(pw.evaluate(*pw.ranking_log(rows, target, model=model, **given)))
        for model in models
    }


def sampled() -> Values:
    """Probabilities of Thompson sampling."""
    rng = np.random.default_rng(10)
    columns = {name: rng.gamma(2.0, 3.0, 20).round(3) for name in "abcd"}
    batch = pw.Batch(np.arange(20) % 3, columns)
    beta = pw.Thompson({0: pw.Beta("a", "b"), 1: pw.Beta("c", "d"), 2: pw.Beta(2, 0.3)})
    kinds = [pw.Gaussian("a", "b"), pw.Gaussian("c", 0), pw.Gaussian(4, "d")]
    normal = pw.Thompson(dict(enumerate(kinds)))
    return {"beta": beta.prob(batch).tolist(), "normal": normal.prob(batch).tolist()}


def obp() -> Values:
    """A dictionary of Open Bandit Pipeline, with and without its loggers."""
    rng = np.random.default_rng(6)
    stratum = np.repeat([0, 1, 2], (30, 50, 20))
    scores = rng.normal(size=(100, 3))
    every = [softmax(slope * scores) for slope in (-1.0, 0.5, 2.0)]
    here = np.arange(100)
    own = np.stack(every)[stratum, here]
    action = np.array([rng.choice(3, p=p) for p in own])
    average = np.average(np.stack(every), axis=0, weights=(30, 50, 20))
    feedback = {
        "n_rounds": 100,
        "n_actions": 3,
        "context": scores,
        "action": action,
        "position": None,
        "reward": rng.binomial(1, 0.2 + 0.2 * action).astype(float),
        "stratum_idx": stratum,
        "pscore": own[here, action],
        "pscore_avg": average[here, action],
    }
    target = softmax(scores)
    known = pw.from_obp(feedback, action_dist=target, behavior=dict(enumerate(every)))
    mixed = pw.from_obp(feedback, action_dist=target)
    return {
        name: brief(pw.evaluate(log, "target_prob"))
        for name, log in {"crossed": known, "mixed": mixed}.items()
    }


def obd() -> Values:
    """A small Open Bandit Dataset."""
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as folder:
        for policy in ("random", "bts"):
            chance = np.full(40, 1 / 34) if policy == "random" else rng.uniform(0.02, 0.4, 40)
            table = pa.table(
                {
                    "": np.arange(40),
                    "timestamp": ["2019-11-24 00:00:00.000000+00:00"] * 40,
                    "item_id": rng.integers(0, 34, 40),
                    "position": rng.integers(1, 4, 40),
                    "click": rng.integers(0, 2, 40),
                    "propensity_score": chance,
                    "user_feature_0": ["81ce12"] * 40,
                }
            )
            path = Path(folder) / policy / "men" / "men.csv"
            path.parent.mkdir(parents=True)
            pcsv.write_csv(table, path)
        return brief(pw.evaluate(pw.from_obd(folder), "1.0 / 34"))


def dsjson() -> Values:
    """Lines of a decision service, of two models."""
    rng = np.random.default_rng(8)
    lines = [_line(k, int(rng.integers(1, 3)), float(rng.integers(0, 2))) for k in range(60)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decisions.json"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
        log = pw.from_dsjson(path, context=["User.age"])
        return brief(pw.evaluate(log, {"first": {1: 0.9, 2: 0.1}}))


def _line(place: int, action: int, cost: float) -> dict[str, Any]:
    probability = {1: 0.8, 2: 0.2} if place % 3 else {1: 0.4, 2: 0.6}
    return {
        "_label_cost": -cost,
        "_label_probability": probability[action],
        "_label_Action": action,
        "_labelIndex": action - 1,
        "Timestamp": "2021-02-04T16:31:29.2460000Z",
        "EventId": f"e{place}",
        "a": [action, 3 - action],
        "c": {"User": [{"age": 30 + place % 5}], "_multi": [{}, {}]},
        "p": [probability[action], probability[3 - action]],
        "VWState": {"m": "m1" if place % 3 else "m2"},
    }


def printed_query() -> Values:
    """An evaluation of DuckDB's result of the printed query."""
    scripts = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["scripts"]
    module, name = scripts["poolwise"].split(":")
    named = [f"{i}=p_{i}" for i in COUNTS]
    case = plain()
    command = [
        *(sys.executable, "-c", f"from {module} import {name}; {name}()", "sql", "recorded"),
        *("--dialect", "duckdb", "--logger", "logger", "--reward", "reward"),
        *("--propensities", ",".join(named), "--target", "t=t"),
    ]
    query = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    there = pw.Log(table="recorded", **roles(COUNTS))
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        connection.register("recorded", case.log.source)
        path = f"{folder}/result.parquet"
        connection.execute(f"COPY ({query.strip().rstrip(';')}) TO '{path}'")
        summary = pw.from_result(path, there, {"t": "t"})
    return brief(pw.evaluate(there, {"t": "t"}, engine=summary))


def text_files() -> Values:
    """The plain log from CSV files, one of each logger, and from a SELECT."""
    table = pa.table(rows(1, COUNTS))
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/log.csv"
        pcsv.write_csv(table, path)
        given = roles(COUNTS, reward_range=(0.0, 1.0))
        select = f"SELECT * FROM '{path}' WHERE x1 > 0"
        return {
            name: brief(pw.evaluate(pw.Log(source, **given), {"t": "t"}, which_logs=False))
            for name, source in {"file": path, "select": select}.items()
        }


def policy_words() -> Values:
    """Targets that are written as columns, expressions and logarithms of no one."""
    log = plain().log
    targets = {"column": pw.Column("t"), "sql": pw.Expression("least(t, 0.5)")}
    found = pw.evaluate(log, targets, "naive", which_logs=False, truth={"column": 0.5})
    return interval(found) | {"truth": dict(found.truth), "codes": codes(found.warnings)}


OTHERS: dict[str, Callable[[], Values]] = (
    STRUCTURES
    | MEASURES
    | {
        make.__name__: make
        for make in (
            exact,
            simulated,
            rankings,
            sessions,
            scores,
            sampled,
            obp,
            obd,
            dsjson,
            printed_query,
            text_files,
            policy_words,
        )
    }
)
