"""Logs of policies over label vectors, drawn by `bandit_log`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw
from poolwise.formats.labelled import bandit_log, true_value
from reproduction.crf import PairwiseCRF, UnaryCRF, count_correct

ROWS = 300


def multi_label() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    contexts = rng.normal(size=(ROWS, 3))
    return contexts, (contexts[:, :2] + rng.normal(size=(ROWS, 2)) > 0).astype(np.uint8)


def table(log: pw.Log) -> dict[str, Any]:
    source = log.source
    assert isinstance(source, pa.Table)
    return {name: np.array(source[name].to_pylist()) for name in source.column_names}


def test_rewards_of_label_vectors_count_what_is_right() -> None:
    labels = np.array([[1, 0, 1], [1, 1, 1]])
    assert count_correct(labels, np.array([5, 0])).tolist() == [3, 0]


def test_a_multi_label_log_has_all_cross_propensities() -> None:
    contexts, labels = multi_label()
    loggers = {
        "a": UnaryCRF.fit(contexts[:30], labels[:30]),
        "b": PairwiseCRF.fit(contexts[:90], labels[:90]),
    }
    target = UnaryCRF.fit(contexts, labels)
    log = bandit_log(
        contexts,
        labels,
        loggers=loggers,
        counts={"a": 40, "b": 25},
        rng=np.random.default_rng(3),
        targets={"target": target},
        reward=count_correct,
    )
    rows = table(log)
    assert (rows["logger"] == np.repeat(["a", "b"], [40, 25])).all()
    own = np.where(rows["logger"] == "a", rows["propensity_0"], rows["propensity_1"])
    assert (own == rows["propensity"]).all()
    for k, policy in enumerate(loggers.values()):
        logs = policy.log_prob(contexts[rows["row"]], rows["action"])
        np.testing.assert_allclose(rows[f"propensity_{k}"], np.exp(logs), rtol=1e-12)
    assert (rows["features"] == contexts[rows["row"]]).all()
    assert (
        rows["reward"].tolist() == count_correct(labels[rows["row"]], rows["action"]).tolist()
    )
    by_column = pw.evaluate(log, "target_prob")["target"].estimates
    by_policy = pw.evaluate(log, target)["target"].estimates
    for name, estimate in by_column.items():
        assert by_policy[name].value == pytest.approx(estimate.value, rel=1e-12)


def test_the_true_value_of_a_crf_is_the_mean_of_its_marginals() -> None:
    contexts, labels = multi_label()
    crf = UnaryCRF.fit(contexts, labels)
    chance = 1 / (1 + np.exp(-crf.scores(contexts)))
    expected = np.where(labels == 1, chance, 1 - chance).sum(axis=1).mean()
    value = true_value(contexts, labels, crf, reward=count_correct)
    assert value == pytest.approx(expected, rel=1e-12)
