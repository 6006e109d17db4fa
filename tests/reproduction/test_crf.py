from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

import poolwise as pw
from poolwise.errors import PolicyError, UsageError
from poolwise.log.policy import Batch
from reproduction.crf import PairwiseCRF, UnaryCRF, label_vectors, to_masks, to_vectors
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from poolwise.types import FloatArray
    from reproduction.crf import LabelPolicy


def some_data(rows: int = 60, features: int = 4, labels: int = 3) -> tuple[FloatArray, Any]:
    rng = np.random.default_rng(3)
    contexts = rng.normal(size=(rows, features))
    odds = contexts @ rng.normal(size=(features, labels)) + rng.normal(size=labels)
    return contexts, (rng.random(odds.shape) < 1 / (1 + np.exp(-odds))).astype(np.uint8)


def a_pairwise_crf() -> PairwiseCRF:
    rng = np.random.default_rng(4)
    couplings = np.triu(rng.normal(size=(3, 3)), 1)
    return PairwiseCRF(rng.normal(size=(3, 4)), rng.normal(size=3), couplings + couplings.T)


def test_a_mask_has_label_0_as_its_lowest_bit() -> None:
    assert to_masks([[1, 0, 1], [0, 1, 1]]).tolist() == [5, 6]
    assert label_vectors(3)[6].tolist() == [False, True, True]


@pytest.mark.parametrize(
    "actions",
    [np.array([5, 6]), np.array([5.0, 6.0]), np.array(["101", "011"]), [[1, 0, 1], [0, 1, 1]]],
)
def test_masks_text_and_lists_say_the_same(actions: ArrayLike) -> None:
    assert to_vectors(np.asarray(actions), 3).tolist() == [
        [True, False, True],
        [False, True, True],
    ]


@pytest.mark.parametrize(
    "actions",
    [[0, 8], [0, -1], [0, 0.5], ["000", "01"], ["000", "0120"], [[0, 0, 0], [0, 2, 0]]],
)
def test_what_is_no_label_vector_is_refused_with_its_row(actions: ArrayLike) -> None:
    with refused(PolicyError) as caught:
        to_vectors(np.asarray(actions), 3)
    assert caught.value.rows == (1,)


def test_a_unary_crf_is_the_product_of_logistic_models() -> None:
    contexts, labels = some_data()
    crf = UnaryCRF.fit(contexts, labels)
    logistic = [LogisticRegression(C=1, tol=1e-8).fit(contexts, y) for y in labels.T]
    ones = np.stack([m.predict_proba(contexts)[:, 1] for m in logistic], axis=1)
    expected = np.where(labels == 1, ones, 1 - ones).prod(axis=1)
    np.testing.assert_allclose(np.exp(crf.log_prob(contexts, labels)), expected, rtol=1e-10)


def test_a_penalty_of_10_is_the_c_of_a_tenth() -> None:
    contexts, labels = some_data()
    crf = UnaryCRF.fit(contexts, labels, penalty=10)
    model = LogisticRegression(C=0.1, tol=1e-8).fit(contexts, labels[:, 0])
    np.testing.assert_allclose(crf.weights[0], model.coef_[0], rtol=1e-10)


def test_a_pairwise_crf_is_what_enumeration_says() -> None:
    crf, contexts = a_pairwise_crf(), some_data(rows=5)[0]
    for x, row in zip(contexts, crf.distribution(contexts), strict=True):
        scores = crf.weights @ x + crf.biases
        mass = {}
        for y in itertools.product((0, 1), repeat=3):
            pairs = sum(crf.couplings[k, m] * y[k] * y[m] for k in range(3) for m in range(k))
            mass[int(to_masks([y])[0])] = math.exp(
                sum(s * b for s, b in zip(scores, y, strict=True)) + pairs
            )
        total = sum(mass.values())
        assert row.tolist() == pytest.approx([mass[k] / total for k in range(8)], rel=1e-12)


def test_without_couplings_a_pairwise_crf_is_unary() -> None:
    contexts, labels = some_data()
    unary = UnaryCRF.fit(contexts, labels)
    pairwise = PairwiseCRF(unary.weights, unary.biases, np.zeros((3, 3)))
    for ask in ("distribution", "scores"):
        np.testing.assert_allclose(
            getattr(pairwise, ask)(contexts), getattr(unary, ask)(contexts), rtol=1e-12
        )
    np.testing.assert_allclose(
        pairwise.log_prob(contexts, labels), unary.log_prob(contexts, labels), rtol=1e-10
    )


def test_a_fitted_pairwise_crf_has_no_slope_left() -> None:
    contexts, labels = some_data(rows=40)
    crf = PairwiseCRF.fit(contexts, labels, penalty=0.7)

    def loss(parts: FloatArray) -> float:
        weights, biases, pairs = np.split(parts, [12, 15])
        couplings = np.zeros((3, 3))
        couplings[np.triu_indices(3, 1)] = pairs
        other = PairwiseCRF(weights.reshape(3, 4), biases, couplings + couplings.T)
        size = (weights**2).sum() + (pairs**2).sum()
        return float(0.35 * size - other.log_prob(contexts, labels).sum())

    found = np.concatenate(
        [crf.weights.ravel(), crf.biases, crf.couplings[np.triu_indices(3, 1)]]
    )
    steps = 1e-5 * np.eye(len(found))
    slopes = [(loss(found + step) - loss(found - step)) / 2e-5 for step in steps]
    assert np.abs(slopes).max() < 1e-4  # the losses are about 50: central differences of 1e-10


@pytest.mark.parametrize("fit", [UnaryCRF.fit, PairwiseCRF.fit])
def test_labels_that_do_not_vary_get_laplace_odds(fit: Callable[..., LabelPolicy]) -> None:
    contexts, labels = some_data(rows=18)
    labels[:, 1], labels[:, 2] = 0, 1
    crf = fit(contexts, labels)
    prob = crf.distribution(contexts) @ label_vectors(3)
    assert prob[:, 1].tolist() == pytest.approx([1 / 20] * 18)
    assert prob[:, 2].tolist() == pytest.approx([19 / 20] * 18)


@pytest.mark.parametrize("fit", [UnaryCRF.fit, PairwiseCRF.fit])
def test_sparse_contexts_give_the_same_policy(fit: Callable[..., LabelPolicy]) -> None:
    contexts, labels = some_data()
    contexts[np.abs(contexts) < 0.5] = 0
    dense, sparse = fit(contexts, labels), fit(csr_array(contexts), labels)
    np.testing.assert_allclose(sparse.weights, dense.weights, atol=1e-5)
    np.testing.assert_allclose(
        dense.distribution(csr_array(contexts)), dense.distribution(contexts), rtol=1e-12
    )


@given(st.lists(st.floats(-800, 800), min_size=3, max_size=3))
def test_probabilities_sum_to_one_however_sure_a_policy_is(biases: list[float]) -> None:
    zero = np.zeros((3, 1))
    for crf in (
        UnaryCRF(zero, np.array(biases)),
        PairwiseCRF(zero, np.array(biases), a_pairwise_crf().couplings),
    ):
        assert crf.distribution(np.zeros((2, 1))).sum(axis=1).tolist() == pytest.approx([1, 1])
        logs = crf.log_prob(np.zeros((8, 1)), np.arange(8))
        assert np.isfinite(logs).all()


@pytest.mark.parametrize(
    "crf", [UnaryCRF.fit(*some_data()), a_pairwise_crf()], ids=["unary", "pairwise"]
)
def test_samples_follow_the_distribution(crf: LabelPolicy) -> None:
    context, size = some_data()[0][:1], 40_000
    drawn = crf.sample(np.repeat(context, size, axis=0), np.random.default_rng(5))
    seen = np.bincount(to_masks(drawn), minlength=8)
    prob = crf.distribution(context)[0]
    z = (seen - size * prob) / np.sqrt(size * prob * (1 - prob))
    assert np.abs(z).max() < 4


@pytest.mark.parametrize(
    ("contexts", "labels"),
    [
        (np.zeros((2, 1)), np.zeros((3, 1))),
        (np.zeros((2, 1)), np.full((2, 1), 2)),
        (np.zeros((2, 1)), np.zeros(2)),
        (np.zeros((2, 1)), np.zeros((2, 17))),
    ],
)
def test_data_that_no_crf_fits_are_refused(contexts: FloatArray, labels: FloatArray) -> None:
    for kind in (UnaryCRF, PairwiseCRF):
        with refused(UsageError):
            kind.fit(contexts, labels)


def test_a_matrix_alone_has_no_logged_actions() -> None:
    with refused(UsageError):
        a_pairwise_crf().log_prob(np.zeros((1, 4)))


@pytest.mark.parametrize("text", [False, True], ids=["masks", "text"])
def test_a_crf_is_a_policy_in_evaluate_like_any_other(*, text: bool) -> None:
    contexts, labels = some_data(rows=200)
    logger, target = UnaryCRF.fit(contexts, labels), a_pairwise_crf()
    drawn = logger.sample(contexts, np.random.default_rng(6))
    masks = to_masks(drawn)
    shown = ["".join("01"[bit] for bit in bits) for bits in drawn.tolist()]
    rows = {"action": shown if text else masks.tolist(), "x": contexts.tolist()}
    rows |= {"reward": (drawn == labels).sum(axis=1).tolist()}
    batch = Batch(masks, {"x": contexts})
    expected = np.mean(target.prob(batch) / logger.prob(batch) * np.array(rows["reward"]))
    import pyarrow as pa

    log = pw.Log(
        pa.table(rows), reward="reward", action="action", propensity=logger, context=["x"]
    )
    found = pw.evaluate(log, {"new": target}, "naive")
    assert found["new"].estimates["naive"].value == pytest.approx(expected, rel=1e-12)
