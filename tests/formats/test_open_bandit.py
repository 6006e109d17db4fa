"""Open Bandit: dictionaries of the Pipeline, and folders of the Dataset as published."""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from sklearn.tree import DecisionTreeClassifier

from poolwise import Weighted, evaluate
from poolwise.errors import LogError, MissingColumnError, RefusedError, SourceError, UsageError
from poolwise.formats.open_bandit import from_obd, from_obp, other_of_two, uniform_item
from tests.support.messages import refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from poolwise.log.log import Log

ACTIONS, ROWS = 3, (30, 50, 20)


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    powers: NDArray[np.float64] = np.exp(scores)
    total: NDArray[np.float64] = powers.sum(axis=1, keepdims=True)
    return powers / total


def several(loggers: int = 2, positions: int = 1) -> dict[str, Any]:
    """Return the output of OBP's generator of several loggers, and every logger's `pi_b`."""
    rng = np.random.default_rng(loggers)
    counts = ROWS[:loggers]
    stratum = np.repeat(np.arange(loggers), counts)
    rows = np.arange(len(stratum))
    context = rng.normal(size=(len(rows), 2))
    scores = context @ rng.normal(size=(2, ACTIONS))
    every = [softmax(slope * scores) for slope in (-1.0, 0.5, 2.0)[:loggers]]
    own = np.stack(every)[stratum, rows]
    action = np.array([rng.choice(ACTIONS, p=p) for p in own])
    average = np.average(np.stack(every), axis=0, weights=counts)
    return {
        "n_rounds": len(rows),
        "n_actions": ACTIONS,
        "n_strata": loggers,
        "context": context,
        "action_context": np.eye(ACTIONS),
        "action": action,
        "position": None if positions == 1 else rng.integers(0, positions, len(rows)),
        "reward": rng.binomial(1, 0.2 + 0.2 * action).astype(float),
        "stratum_idx": stratum,
        "pi_b": own[:, :, None],
        "pi_b_avg": average[:, :, None],
        "pscore": own[rows, action],
        "pscore_avg": average[rows, action],
        "every": {k: p[:, :, None] for k, p in enumerate(every)},
        "target": softmax(3 * scores)[:, :, None],
    }


def values(log: Log, *estimators: Any, target: str = "target_prob") -> dict[str, float]:  # noqa: ANN401
    found = evaluate(log, target, list(estimators))["target"]
    return {name: estimate.value for name, estimate in found.estimates.items()}


def picked(feedback: dict[str, Any]) -> NDArray[np.float64]:
    """Target's probability of the logged action: OBP's first step."""
    rows = np.arange(feedback["n_rounds"])
    target: NDArray[np.float64] = feedback["target"][rows, feedback["action"], 0]
    return target


def test_one_logger_gives_ips() -> None:
    feedback = several(1)
    for key in ("stratum_idx", "pscore_avg", "pi_b_avg", "every"):
        del feedback[key]
    log = from_obp(feedback, action_dist=feedback["target"])
    expected = (feedback["reward"] * picked(feedback) / feedback["pscore"]).mean()
    assert values(log, "naive") == {"naive": pytest.approx(expected, rel=1e-12)}
    assert evaluate(log, "target_prob", "naive").rows == {"log": 30}


@pytest.mark.parametrize("given", ["behavior", "pscore_avg", "pscore_star"])
def test_two_loggers_give_the_three_estimates_of_obp(given: str) -> None:
    feedback = several(2)
    behavior = feedback.pop("every") if given == "behavior" else None
    average = feedback.pop("pscore_avg")
    if given != "behavior":
        feedback[given] = average
    if given == "pscore_star":  # the older name, and the older name of stratum_idx
        feedback["strata"] = feedback.pop("stratum_idx").astype(float)
    log = from_obp(feedback, action_dist=feedback["target"], behavior=behavior)
    own = feedback["reward"] * picked(feedback) / feedback["pscore"]
    parts = own[:30], own[30:]
    mass = np.array([len(p) / p.var(ddof=1) for p in parts])
    assert values(log, "naive", "balanced", Weighted(divergence="own")) == {
        "naive": pytest.approx(own.mean(), rel=1e-12),
        "balanced": pytest.approx(
            (feedback["reward"] * picked(feedback) / average).mean(), rel=1e-12
        ),
        "weighted": pytest.approx(mass @ [p.mean() for p in parts] / mass.sum(), rel=1e-9),
    }


def test_the_other_of_two_loggers_follows_from_the_mixture() -> None:
    feedback = several(2)
    log = from_obp(feedback)
    assert isinstance(log.source, pa.Table)
    rows = np.arange(80)
    for k in (0, 1):
        exact = feedback["every"][k][rows, feedback["action"], 0]
        found = log.source[f"propensity_{k}"].to_numpy()
        np.testing.assert_allclose(found, exact, rtol=1e-12)
    labels = np.array(["0"] * 3 + ["1"])
    both = other_of_two(labels, np.array([0.5, 0.5, 0.5, 1.0]), np.array([0.5] * 3 + [0.25]))
    # 1/4 of the rows are of "1": (0.5 - 0.75 · 0.5) / 0.25, and (0.25 - 0.25 · 1) / 0.75
    assert both["1"].tolist() == [0.5, 0.5, 0.5, 1.0]
    assert both["0"].tolist() == [0.5, 0.5, 0.5, 0.0]


def test_three_loggers_need_their_probabilities_for_balanced() -> None:
    feedback = several(3)
    crossed = from_obp(feedback, action_dist=feedback["target"], behavior=feedback["every"])
    expected = (feedback["reward"] * picked(feedback) / feedback["pscore_avg"]).mean()
    assert values(crossed, "balanced") == {"balanced": pytest.approx(expected, rel=1e-12)}
    own = from_obp({**feedback, "pscore_avg": None}, action_dist=feedback["target"])
    with refused(RefusedError):
        values(own, "balanced")
    naive = (feedback["reward"] * picked(feedback) / feedback["pscore"]).mean()
    assert values(own, "naive") == {"naive": pytest.approx(naive, rel=1e-12)}


def test_three_loggers_are_balanced_by_a_given_mixture() -> None:
    feedback = several(3)
    log = from_obp(feedback, action_dist=feedback["target"])
    expected = (feedback["reward"] * picked(feedback) / feedback["pscore_avg"]).mean()
    assert values(log, "balanced") == {"balanced": pytest.approx(expected, rel=1e-12)}


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_a_mixture_that_is_no_probability_is_refused(value: float) -> None:
    feedback = several(3)
    feedback["pscore_avg"] = np.array(feedback["pscore_avg"])
    feedback["pscore_avg"][4] = value
    log = from_obp(feedback, action_dist=feedback["target"])
    with refused(LogError):
        values(log, "balanced")


def test_the_position_chooses_the_layer() -> None:
    feedback = several(1, positions=3)
    rows = np.arange(30)
    dense = softmax(np.random.default_rng(5).normal(size=(90, ACTIONS)))
    action_dist = dense.reshape(30, 3, ACTIONS).transpose(0, 2, 1)
    log = from_obp({**feedback, "stratum_idx": None}, action_dist=action_dist)
    assert isinstance(log.source, pa.Table)
    exact = action_dist[rows, feedback["action"], feedback["position"]]
    assert log.source["target_prob"].to_pylist() == exact.tolist()
    assert log.context == ("context", "position")


def test_targets_may_be_several_and_flat() -> None:
    feedback = several(2)
    flat = {"sharp": feedback["target"][:, :, 0], "logged": picked(feedback)}
    log = from_obp(feedback, action_dist=flat)
    assert values(log, "naive", target="sharp") == values(log, "naive", target="logged")


def test_lists_will_do_and_pi_b_replaces_pscore() -> None:
    feedback = several(1)
    lists = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in feedback.items()}
    exact = from_obp(feedback, action_dist=feedback["target"])
    same = from_obp({**lists, "pscore": None}, action_dist=lists["target"])
    assert values(same, "naive") == values(exact, "naive")


def test_the_context_serves_policies_in_python() -> None:
    feedback = several(2)
    log = from_obp(feedback, action_dist=feedback["target"])
    found = evaluate(log, {"target": lambda batch: (batch.context[:, 0] > 0) * 0.5}, "naive")
    weight = (feedback["context"][:, 0] > 0) * 0.5 / feedback["pscore"]
    expected = (feedback["reward"] * weight).mean()
    assert found["target"].estimates["naive"].value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {"action": None},
        {"n_actions": None, "reward": None},
        {"n_rounds": 7},
        {"reward": [1.0]},
        {"reward": ["x"] * 80},
        {"reward": [np.nan] * 80},
        {"n_actions": 2},
        {"action": [0.5] * 80},
        {"pscore": None, "pi_b": None},
        {"context": np.zeros(80)},
        {"pscore_avg": np.ones(80)},
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any]) -> None:
    with refused(UsageError):
        from_obp(several(2) | changes)


@pytest.mark.parametrize(
    "options",
    [
        {"action_dist": np.zeros((80, 4))},
        {"action_dist": np.full((80, 3), 0.5)},
        {"action_dist": np.full((80, 3, 2), 1 / 3)},
        {"action_dist": {"reward": np.full(80, 0.5)}},
        {"behavior": {0: np.full((80, 3), 1 / 3)}},
    ],
)
def test_arrays_that_do_not_fit_are_refused(options: dict[str, Any]) -> None:
    with refused(UsageError):
        from_obp(several(2), **options)
    with refused(UsageError):
        from_obp([])  # type: ignore[arg-type]


HERE = Path(os.environ.get("POOLWISE_DATA") or Path(__file__).parents[2] / "../shared/data")
SMALL = HERE / "obd_small.parquet"
with_data = pytest.mark.skipif(
    not SMALL.is_file(),
    reason="obd_small.parquet is not here: set POOLWISE_DATA to its folder",
)


def write(folder: Path, policy: str, campaign: str, rows: pa.Table) -> Path:
    """One file of the data set, with the nameless index that pandas puts in front."""
    path = folder / policy / campaign / f"{campaign}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    pcsv.write_csv(rows.add_column(0, "", pa.array(range(len(rows)))), path)
    return path


def small(propensity: list[float], click: list[int]) -> pa.Table:
    rows = len(click)
    return pa.table(
        {
            "timestamp": ["2019-11-24 00:00:00.000000+00:00"] * rows,
            "item_id": list(range(rows)),
            "position": [1] * rows,
            "click": click,
            "propensity_score": propensity,
            "user_feature_0": ["81ce12"] * rows,
            "user-item_affinity_0": [0.0] * rows,
        }
    )


def published(folder: Path) -> Path:
    """Write two policies of the campaign of 34 items, and the file of items."""
    write(folder, "random", "men", small([1 / 34, 1 / 34], [1, 0]))
    write(folder, "bts", "men", small([0.5, 0.25], [0, 1]))
    (folder / "random" / "men" / "item_context.csv").write_text("item_id\n0\n", "utf-8")
    return folder


def naive(log: Log, target: str) -> float:
    return evaluate(log, target, "naive")["target"].estimates["naive"].value


def test_loggers_are_called_as_their_folders(tmp_path: Path) -> None:
    log = from_obd(published(tmp_path))
    found = evaluate(log, uniform_item("men"), "naive")
    assert found.rows == {"bts": 2, "random": 2}
    # weights 1 and 1 of random, 2/34 and 4/34 of bts; clicks in the first and the last
    expected = (1 + Fraction(4, 34)) / 4
    assert found["target"].estimates["naive"].value == pytest.approx(float(expected), rel=1e-12)


def test_context_is_position_and_user(tmp_path: Path) -> None:
    assert from_obd(published(tmp_path)).context == ("position", "user_feature_0")
    chosen = ["user-item_affinity_0"]
    assert from_obd(tmp_path, context=chosen).context == tuple(chosen)


def test_one_file_is_one_logger(tmp_path: Path) -> None:
    published(tmp_path)
    log = from_obd(tmp_path / "random" / "men" / "men.csv")
    assert log.crossed  # alone, random is known everywhere
    assert evaluate(log, uniform_item("men"), "naive").rows == {"random": 2}
    assert from_obd(tmp_path, loggers=["bts"]).propensities is None


def test_random_is_known_in_every_row_and_the_other_is_not(tmp_path: Path) -> None:
    log = from_obd(published(tmp_path))
    assert log.propensities == {"bts": None, "random": "1.0 / 34"}
    assert not log.crossed


def test_the_campaign_is_asked_for_where_there_are_several(tmp_path: Path) -> None:
    write(published(tmp_path), "bts", "women", small([0.5], [1]))
    with refused(UsageError):
        from_obd(tmp_path)
    log = from_obd(tmp_path, campaign="women")
    assert naive(log, uniform_item("women")) == pytest.approx(2 / 46, rel=1e-12)
    with refused(UsageError):
        from_obd(tmp_path, campaign="all")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with refused(SourceError):
        from_obd(tmp_path / "nowhere")
    published(tmp_path)
    with refused(UsageError):
        from_obd(tmp_path, loggers=["randm"])
    with refused(UsageError):
        from_obd(tmp_path, loggers="bts")
    with refused(UsageError):
        uniform_item("kids")
    write(tmp_path, "bts", "men", small([0.5], [1]).drop_columns(["click"]))
    with refused(MissingColumnError):
        from_obd(tmp_path)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small version of the real data, as the files it was published in."""
    folder = tmp_path_factory.mktemp("obd")
    table = pq.read_table(SMALL)
    for policy in ("random", "bts"):
        chosen = pc.and_(pc.equal(table["logger"], policy), pc.equal(table["campaign"], "men"))
        write(folder, policy, "men", table.filter(chosen).drop_columns(["logger", "campaign"]))
    return folder


@with_data
def test_the_real_log_of_random_earns_what_was_counted(real: Path) -> None:
    """46 clicks in 10,000 rows, each of weight 1."""
    log = from_obd(real, loggers=["random"])
    assert naive(log, uniform_item("men")) == pytest.approx(46 / 10_000, rel=1e-9)


@with_data
def test_both_real_logs_agree_with_the_table_they_come_from(real: Path) -> None:
    table = pq.read_table(SMALL)
    rows = table.filter(pc.equal(table["campaign"], "men"))
    weight = 1 / 34 / rows["propensity_score"].to_numpy()
    expected = (rows["click"].to_numpy() * weight).mean()
    assert naive(from_obd(real), uniform_item("men")) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@with_data
def test_the_mixture_of_the_real_logs_can_be_estimated(real: Path) -> None:
    """Random's own log is the truth up to chance; the mixed estimate must agree with it."""
    log = replace(from_obd(real), context=("position",))
    mixed = replace(log, estimate_mixture=DecisionTreeClassifier(min_samples_leaf=200))
    (found,) = evaluate(mixed, uniform_item("men"), "balanced")["target"].estimates.values()
    own = from_obd(real, loggers=["random"])
    truth = evaluate(own, uniform_item("men"), "naive")["target"].estimates["naive"]
    spread = (found.variance + truth.variance) ** 0.5
    assert abs(found.value - truth.value) < 4 * spread  # 1 in 16,000 by chance
