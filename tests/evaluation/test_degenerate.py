"""Degenerate logs: a finite result or a named error, never NaN, and the right warning."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw
from poolwise.errors import LogError, MissingColumnError, RefusedError, UsageError
from poolwise.evaluation.evaluate import evaluate
from tests.support.messages import refused
from tests.support.reference import frame_of, log_of, numbers, random_table
from tests.support.toys import toy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.engines.base import Engine
    from poolwise.evaluation.results import Evaluation
    from poolwise.log.log import Log

TARGET = {"target": "t"}


def table(rewards: Sequence[float], labels: str, **probs: Sequence[float]) -> pa.Table:
    """A log with one letter per row for its logger."""
    own = [probs[f"p_{label}"][row] for row, label in enumerate(labels)]
    return pa.table({"logger": list(labels), "reward": rewards, "p": own, **probs})


def answered(log: Log, engine: Engine | None = None, **options: Any) -> Evaluation:  # noqa: ANN401 - of evaluate
    """An evaluation that holds no NaN, in numbers, text or JSON."""
    found = evaluate(log, TARGET, engine=engine, **options)
    assert not any(math.isnan(n) for n in numbers(found))
    estimates = [e for result in found.targets.values() for e in result.estimates.values()]
    assert estimates
    assert all(math.isfinite(e.value) and e.variance >= 0 for e in estimates)
    text = f"{found}{found._repr_html_()}"
    assert re.search(r"\bnan\b", text, re.IGNORECASE) is None
    json.loads(found.to_json(), parse_constant=_refuse)
    for result in found.targets.values():
        for interval in result.intervals.values():
            assert interval.lower < interval.upper  # never zero width for lack of data
    return found


def _refuse(constant: str) -> None:
    raise AssertionError(constant)


def codes(found: Evaluation) -> set[str]:
    return {str(w["code"]) for w in found.warnings}


# ------------------------------------------------------------------ a log with no reward


def test_a_log_without_any_reward_is_worth_nothing_for_all_we_know(engine: Engine) -> None:
    source = random_table(np.random.default_rng(1), {"a": 40, "b": 60})
    silent = source.set_column(1, "reward", pa.array(np.zeros(100)))
    found = answered(log_of(silent), engine)
    assert {e.value for e in found["target"].estimates.values()} == {0.0}
    assert "no-spread" in codes(found)
    assert math.isinf(found["target"].intervals["calibrated"].upper)
    bounded = answered(log_of(silent, reward_range=(0.0, 1.0)), engine)
    assert "bounded-interval" in codes(bounded)
    assert 0 < bounded["target"].intervals["calibrated"].upper <= 1


def test_a_log_without_a_reward_column_names_it(engine: Engine) -> None:
    source = random_table(np.random.default_rng(1), {"a": 4, "b": 6}).drop_columns("reward")
    with pytest.raises(MissingColumnError) as caught:
        evaluate(log_of(source), TARGET, engine=engine)
    assert caught.value.missing == {"reward": "reward"}


def test_rewards_that_are_null_are_faults(engine: Engine) -> None:
    source = random_table(np.random.default_rng(1), {"a": 4, "b": 6})
    empty = source.set_column(1, "reward", pa.array([None] * 10, pa.float64()))
    with refused(LogError):
        evaluate(log_of(empty), TARGET, engine=engine)


# ------------------------------------------------------------------ few rows


def test_one_row_says_nothing_about_its_error(engine: Engine) -> None:
    log = log_of(table([2.0], "a", p_a=[0.5], t=[0.25]), ["a"])
    found = answered(log, engine)
    assert {e.value for e in found["target"].estimates.values()} <= {1.0, 2.0}
    assert codes(found) >= {"no-spread", "few-effective-rows"}


def test_one_row_of_each_of_two_loggers(engine: Engine) -> None:
    log = log_of(table([1.0, 3.0], "ab", p_a=[0.5, 0.2], p_b=[0.1, 0.4], t=[0.3, 0.3]))
    found = answered(log, engine)
    assert "few-effective-rows" in codes(found)


def test_one_logger_of_one_row_beside_a_large_one(engine: Engine) -> None:
    source = random_table(np.random.default_rng(2), {"a": 1, "b": 80})
    found = answered(log_of(source), engine)
    assert found["target"].loggers["a"].mean_weight_p == 1  # one row shows nothing


@pytest.mark.slow
def test_thirty_loggers_of_five_rows_each(engine: Engine) -> None:
    labels = [f"l{k:02}" for k in range(30)]
    rng = np.random.default_rng(3)
    source = _many(rng, labels, 5)
    found = answered(log_of(source, labels), engine)
    assert "few-effective-rows" in codes(found)  # too few for thirty columns
    alarms = {w["code"] for w in found.warnings if w["severity"] == "alarm"}
    assert alarms == set()
    assert len(found["target"].diagnosis.columns) == 30


def _many(rng: np.random.Generator, labels: Sequence[str], rows: int) -> pa.Table:
    """Loggers over four actions, each its own mixture of uniform and one favourite."""
    total = rows * len(labels)
    policies = rng.dirichlet(np.full(4, 4.0), size=len(labels))
    target = np.array([0.4, 0.3, 0.2, 0.1])
    owner = np.repeat(np.arange(len(labels)), rows)
    action = np.array([rng.choice(4, p=policies[k]) for k in owner])
    reward = (rng.random(total) < np.array([0.5, 0.4, 0.3, 0.2])[action]).astype(float)
    columns = {f"p_{label}": policies[k][action] for k, label in enumerate(labels)}
    names = np.array(labels)[owner]
    own = policies[owner, action]
    return pa.table(
        {"logger": names, "reward": reward, "p": own, **columns, "t": target[action]}
    )


# ------------------------------------------------------------------ loggers


def test_two_identical_loggers_are_one(engine: Engine) -> None:
    rng = np.random.default_rng(4)
    source = random_table(rng, {"a": 90, "b": 110})
    alike = source.set_column(4, "p_b", source["p_a"]).set_column(2, "p", source["p_a"])
    found = answered(log_of(alike), engine)["target"]
    whole = alike.set_column(0, "logger", pa.array(["a"] * 200))
    alone = answered(log_of(whole, ["a"]), engine)["target"]
    for name in ("naive", "balanced", "calibrated", "self-normalised"):
        assert found.estimates[name].value == pytest.approx(
            alone.estimates[name].value, rel=1e-9
        )
    columns = found.diagnosis.columns.values()
    assert all(c.value == pytest.approx(1, rel=1e-12) and c.p_value == 1 for c in columns)


def test_a_logger_without_support_is_named(engine: Engine) -> None:
    log = toy("T3").draw(np.random.default_rng(5))
    found = evaluate(log, {"target": "target_prob"}, engine=engine)
    assert not any(math.isnan(n) for n in numbers(found))
    assert codes(found) >= {"logger-unsupported", "weighted-refused"}
    balanced = found["target"].estimates["balanced"]
    assert abs(balanced.value - 2.2) < 4 * balanced.std_error  # 1 in 16,000 by chance
    unsupported = [o.unsupported for o in found["target"].loggers.values()]
    assert min(unsupported) > 0
    assert found["target"].diagnosis.gamma == math.inf
    assert json.loads(found.to_json())["targets"][0]["gamma"] is None


def test_a_target_that_nobody_logged_is_refused(engine: Engine) -> None:
    source = random_table(np.random.default_rng(6), {"a": 20, "b": 30})
    never = source.set_column(5, "t", pa.array(np.zeros(50)))
    with refused(RefusedError) as caught:
        evaluate(log_of(never), TARGET, engine=engine)
    assert caught.value.code == "target-unlogged"


def test_a_target_that_is_partly_logged_raises_an_alarm(engine: Engine) -> None:
    log = toy("T5").draw(np.random.default_rng(7))
    found = evaluate(log, {"target": "target_prob"}, engine=engine)
    alarms = {w["code"] for w in found.warnings if w["severity"] == "alarm"}
    assert alarms == {"target-uncovered"}
    mixture = found["target"].mixture
    assert mixture is not None
    assert mixture.unsupported == pytest.approx(0.2, abs=0.15)  # of T5, whose mean w is 0.8


# ------------------------------------------------------------------ rewards


@pytest.mark.slow
@pytest.mark.parametrize("interval", ["auto", "student"])
def test_constant_rewards_are_their_own_value(interval: str, engine: Engine) -> None:
    flat = replace(
        toy("T2"),
        reward=np.full((2, 3), 3.0),
        reward_variance=np.zeros((2, 3)),
        counts={"1": 400, "2": 600},
    )
    log = flat.draw(np.random.default_rng(8))
    renamed = frame_of(log).rename_columns({"target_prob": "t"})
    found = answered(replace(log, source=renamed), engine, interval=interval)
    result = found["target"]
    for name in ("calibrated", "self-normalised"):
        assert result.estimates[name].value == pytest.approx(3, rel=1e-9)
        assert math.isinf(result.intervals[name].upper)
    assert "no-spread" in codes(found)
    drift = result.diagnosis.checks.get("drift")  # rewards do not vary, weights do
    assert drift is None or drift.p_value > 0.05


def test_own_propensities_only_are_judged_by_logger(engine: Engine) -> None:
    source = random_table(np.random.default_rng(9), {"a": 5, "b": 6})
    found = answered(log_of(source, propensities=None), engine)
    assert codes(found) >= {"no-cross-propensities", "few-effective-rows"}
    assert found["target"].mixture is None


@pytest.mark.slow
def test_tiny_logs_in_buckets(engine: Engine) -> None:
    source = random_table(np.random.default_rng(10), {"a": 3, "b": 4})
    users = pa.array(["u1", "u2", "u3", "u1", "u2", "u3", "u4"])
    log = log_of(source.append_column("user", users), cluster="user")
    found = evaluate(log, TARGET, engine=engine)
    assert not any(math.isnan(n) for n in numbers(found))


@pytest.mark.slow
@pytest.mark.parametrize("reward", [6e-121, 1e-140, 1e120])
def test_rewards_of_any_size_do_not_overflow_a_check(reward: float, engine: Engine) -> None:
    log = toy("T2").draw(np.random.default_rng(11))
    flat = replace(log, reward=f"(1 + reward) * {reward!r}")
    found = evaluate(flat, {"target": "target_prob"}, engine=engine)["target"].diagnosis
    plain = evaluate(replace(log, reward="1 + reward"), {"target": "target_prob"})
    for name, check in plain["target"].diagnosis.checks.items():
        # of two loggers' columns the same distance is shown, on either side
        statistic = abs(found.checks[name].statistic)
        assert statistic == pytest.approx(abs(check.statistic), rel=1e-6)


@pytest.mark.parametrize("verb", [pw.evaluate, pw.compare, pw.check])
def test_rows_that_are_not_wrapped_in_a_log_are_named(verb: Any) -> None:  # noqa: ANN401 - a verb
    for rows in (pa.table({"r": [1.0]}), "logs/*.parquet"):
        with refused(UsageError):
            verb(rows, {"new": "p"})
