from __future__ import annotations

import numpy as np
import pytest

from poolwise.learning.data import (
    assign_folds,
    held_out,
    label_bits,
    number_bits,
    row_hashes,
)


def hashes_of(x: np.ndarray, seed: int = 0) -> np.ndarray:
    return row_hashes([number_bits(x)], len(x), seed)


def test_folds_follow_the_content_of_rows_not_their_order() -> None:
    rng = np.random.default_rng(0)
    x, group = rng.normal(size=1_000), rng.integers(0, 2, 1_000)
    order = rng.permutation(1_000)
    fold = assign_folds(hashes_of(x), group, 5)
    assert assign_folds(hashes_of(x[order]), group[order], 5).tolist() == fold[order].tolist()
    assert assign_folds(hashes_of(x, seed=1), group, 5).tolist() != fold.tolist()


def test_every_fold_has_its_share_of_every_group_even_of_equal_rows() -> None:
    group = np.repeat([0, 1], [700, 300])
    fold = assign_folds(hashes_of(np.zeros(1_000)), group, 5)
    for k in (0, 1):
        assert np.ptp(np.bincount(fold[group == k], minlength=5)) <= 1


def test_clusters_stay_whole() -> None:
    cluster = np.random.default_rng(0).integers(0, 50, 1_000).astype(np.uint64)
    fold = assign_folds(cluster, np.zeros(1_000, int), 5)
    assert all(len(set(fold[cluster == c])) == 1 for c in range(50))


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_a_holdout_has_its_share(share: float) -> None:
    held = held_out(hashes_of(np.arange(1_000.0)), np.zeros(1_000, int), share)
    assert held.sum() == round(1_000 * share)


def test_zeros_and_gaps_have_one_hash_each() -> None:
    x = np.array([0.0, -0.0, np.nan, -np.nan])
    assert len(set(number_bits(x).tolist())) == 2


def test_labels_are_hashed_by_their_text() -> None:
    forward = label_bits(np.array([0, 1]), ["a", "b"])
    assert label_bits(np.array([1, 0]), ["b", "a"]).tolist() == forward.tolist()
