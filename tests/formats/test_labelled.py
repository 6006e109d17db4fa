"""Simulated logs of labelled data, and the bundled log of digits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

import poolwise as pw
from poolwise import evaluate
from poolwise.errors import UsageError
from poolwise.evaluation.check import check
from poolwise.formats import labelled
from poolwise.formats.labelled import (
    LOGGERS,
    TARGETS,
    bandit_log,
    digits_log,
    digits_path,
    digits_truth,
    true_value,
)
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Mapping

ROWS = 300


def multi_class() -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    contexts = rng.normal(size=(ROWS, 2))
    return contexts, np.digitize(contexts[:, 0], [-0.5, 0.5])


def table(log: pw.Log) -> dict[str, Any]:
    source = log.source
    assert isinstance(source, pa.Table)
    return {name: np.array(source[name].to_pylist()) for name in source.column_names}


def test_a_multi_class_log_estimates_the_true_value() -> None:
    contexts, classes = multi_class()
    model = LogisticRegression().fit(contexts, classes)
    target = pw.EpsilonGreedy(model, actions=[0, 1, 2], epsilon=0.2)
    log = bandit_log(
        contexts,
        classes,
        loggers={"uniform": pw.Uniform([0, 1, 2]), "model": pw.Classifier(model)},
        counts={"uniform": 3000, "model": 5000},
        rng=np.random.default_rng(4),
    )
    truth = true_value(contexts, classes, target)
    hits = np.mean(model.predict(contexts) == classes)
    assert truth == pytest.approx(0.8 * hits + 0.2 / 3, rel=1e-12)
    for name, found in pw.evaluate(log, target)["target"].estimates.items():
        assert abs(found.value - truth) < 4 * found.std_error, name


def test_every_draw_has_randomness_of_its_own() -> None:
    contexts, classes = multi_class()
    uniform = pw.Uniform([0, 1, 2, 3])
    log = bandit_log(
        contexts,
        classes,
        loggers={"a": uniform, "b": uniform},
        counts={"a": 20_000, "b": 20_000},
        rng=np.random.default_rng(6),
    )
    rows = table(log)
    first, second = np.split(rows["row"], 2), np.split(rows["action"], 2)
    for left, right in (first, second, (first[0], second[0])):
        assert abs(np.corrcoef(left, right)[0, 1]) < 4 / np.sqrt(20_000)


def test_the_same_generator_gives_the_same_log() -> None:
    contexts, classes = multi_class()
    model = pw.Classifier(LogisticRegression().fit(contexts, classes))
    once, again = (
        table(
            bandit_log(
                contexts,
                classes,
                loggers={"a": model},
                counts={"a": 30},
                rng=np.random.default_rng(7),
            )
        )
        for _ in range(2)
    )
    assert all((once[name] == again[name]).all() for name in once)


def test_named_columns_and_a_reward_of_your_own() -> None:
    contexts, classes = multi_class()
    columns = {"x": contexts[:, 0], "y": contexts[:, 1]}
    model = LogisticRegression().fit(contexts, classes)
    log = bandit_log(
        columns,
        classes,
        loggers={"m": pw.Classifier(model)},
        counts={"m": 10},
        rng=np.random.default_rng(8),
        reward=lambda labels, actions: -np.abs(labels - actions).astype(float),
    )
    rows = table(log)
    assert set(rows["reward"]) <= {0.0, -1.0, -2.0}
    assert log.context == ("x", "y")


@pytest.mark.parametrize(
    ("counts", "labels"),
    [
        ({"b": 1}, ROWS),
        ({"a": 0}, ROWS),
        ({"a": 1.5}, ROWS),
        ({"a": 1}, ROWS - 1),
    ],
)
def test_what_does_not_fit_together_is_refused(counts: Mapping[str, int], labels: int) -> None:
    contexts, classes = multi_class()
    with refused(UsageError):
        bandit_log(
            contexts,
            classes[:labels],
            loggers={"a": pw.Uniform([0, 1, 2])},
            counts=counts,
            rng=np.random.default_rng(9),
        )


def test_a_policy_without_actions_cannot_act() -> None:
    contexts, classes = multi_class()
    with refused(UsageError):
        bandit_log(
            contexts,
            classes,
            loggers={"a": lambda batch: np.ones(len(batch))},
            counts={"a": 1},
            rng=np.random.default_rng(9),
        )
    with refused(UsageError):
        true_value(contexts, classes, lambda batch: np.ones(len(batch)))


def test_labels_that_are_no_classes_need_a_reward() -> None:
    contexts, classes = multi_class()
    labels = np.stack([classes, classes], axis=1)
    given: dict[str, Any] = {
        "loggers": {"a": pw.Uniform([0, 1, 2])},
        "counts": {"a": 40},
        "rng": np.random.default_rng(10),
    }
    with refused(UsageError):
        bandit_log(contexts, labels, **given)
    with refused(UsageError):
        true_value(contexts, labels, pw.Uniform([0, 1, 2]))

    def first(rows: Any, actions: Any) -> Any:  # noqa: ANN401 - arrays
        return (rows[:, 0] == actions).astype(float)

    rows = table(bandit_log(contexts, labels, **given, reward=first))
    assert (rows["reward"] == (classes[rows["row"]] == rows["action"])).all()
    assert true_value(contexts, labels, pw.Uniform([0, 1, 2]), reward=first) == pytest.approx(
        1 / 3, rel=1e-12
    )


def test_sparse_contexts_are_refused() -> None:
    contexts, classes = multi_class()
    with refused(UsageError):
        true_value(csr_array(contexts), classes, pw.Uniform([0, 1, 2]))  # type: ignore[arg-type]


def test_rows_of_many_actions_are_drawn_in_several_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most so many probabilities are in memory at once."""
    contexts, classes = multi_class()
    sizes = []

    def counted(policy: Any, batch: Any, rng: Any) -> Any:  # noqa: ANN401 - as `draw` takes
        sizes.append(len(batch))
        return drawn(policy, batch, rng)

    drawn = labelled.draw
    monkeypatch.setattr(labelled, "draw", counted)
    monkeypatch.setattr(labelled, "DRAWN_CELLS", 40)
    log = bandit_log(
        contexts,
        classes,
        loggers={"a": pw.Uniform(range(10)), "b": pw.Uniform(range(100))},
        counts={"a": 10, "b": 2},
        rng=np.random.default_rng(11),
    )
    assert sizes == [4, 4, 2, 1, 1]
    assert len(table(log)["row"]) == 12


MOST_BYTES = 1_500_000


def test_the_file_is_small_and_inside_the_package() -> None:
    path = digits_path()
    assert path.is_file()
    assert path.stat().st_size < MOST_BYTES
    assert "poolwise" in path.parts


def test_the_truth_is_in_the_metadata() -> None:
    metadata = pq.read_schema(digits_path()).metadata
    truth = json.loads(metadata[b"poolwise"])["truth"]
    assert digits_truth() == truth
    assert set(truth) == set(TARGETS)
    assert all(0 < value < 1 for value in truth.values())


def test_three_loggers_of_unequal_size_have_all_cross_propensities() -> None:
    log = digits_log()
    assert log.crossed
    assert set(log.propensities or {}) == set(LOGGERS)
    table = pq.read_table(digits_path())
    counts = {k: table["policy"].to_pylist().count(k) for k in LOGGERS}
    assert sum(counts.values()) == len(table)
    assert len(set(counts.values())) == len(LOGGERS)
    for name in ("p", *(f"p_{k}" for k in LOGGERS), *TARGETS.values()):
        values = table[name].to_numpy()
        assert ((values > 0) & (values <= 1)).all()


def test_the_context_is_the_picture() -> None:
    table = pq.read_table(digits_path())
    pixels = np.array(table["pixels"].to_pylist())
    assert pixels.shape == (len(table), 64)
    assert (pixels.min(), pixels.max()) == (0, 16)
    assert set(table["digit"].to_pylist()) <= set(range(10))
    assert set(map(float, table["correct"].to_pylist())) == {0.0, 1.0}


def test_the_log_has_no_faults() -> None:
    report = check(digits_log(), TARGETS)
    assert report.faults == ()
    assert set(report.rows) == set(LOGGERS)


def test_the_logged_propensity_is_that_of_its_logger() -> None:
    table = pq.read_table(digits_path()).to_pandas()
    own = [row[f"p_{row['policy']}"] for _, row in table.iterrows()]
    assert np.abs(table["p"] - own).max() <= 1e-6


def test_every_default_estimate_is_within_four_errors_of_the_truth() -> None:
    evaluation = evaluate(digits_log(), TARGETS, truth=digits_truth())
    for target, truth in digits_truth().items():
        estimates = evaluation[target].estimates
        assert {"naive", "balanced", "weighted"} <= set(estimates)
        for estimate in estimates.values():
            assert 0 < estimate.std_error < 1
            assert abs(estimate.value - truth) < 4 * estimate.std_error


def test_pooling_wisely_is_worth_it_on_this_log() -> None:
    estimates = evaluate(digits_log(), TARGETS)["candidate"].estimates
    assert estimates["balanced"].std_error < estimates["naive"].std_error
    assert estimates["weighted"].std_error < estimates["naive"].std_error


def test_the_mean_weights_are_near_one() -> None:
    """Each within 5 of its standard errors, from the effective rows."""
    result = evaluate(digits_log(), TARGETS, "balanced")["candidate"]
    rows = check(digits_log()).rows
    for logger, overlap in result.loggers.items():
        count = rows[logger]
        square = count * overlap.mean_weight**2 / overlap.effective_rows
        error = ((square - overlap.mean_weight**2) / count) ** 0.5
        assert abs(overlap.mean_weight - 1) < 5 * error
    assert result.mixture is not None
    assert result.mixture.mean_weight == pytest.approx(1, abs=0.1)
