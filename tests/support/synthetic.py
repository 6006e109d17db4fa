"""A small multi-label data set, for tests without the real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reproduction.datasets import Dataset, Labelled

if TYPE_CHECKING:
    from pathlib import Path

LABELS = 3


def small_data(test_rows: int = 60, train_rows: int = 400) -> Dataset:
    rng = np.random.default_rng(11)
    weights, biases = rng.normal(size=(5, LABELS)), rng.normal(size=LABELS)

    def rows(size: int) -> Labelled:
        contexts = rng.normal(size=(size, 5))
        odds = contexts @ weights + biases
        return Labelled(
            contexts, (rng.random(odds.shape) < 1 / (1 + np.exp(-odds))).astype(np.uint8)
        )

    train, test = rows(train_rows), rows(test_rows)
    return Dataset("small", train, test, tuple("abc"), train_rows)


def save_as(folder: Path, name: str) -> None:
    """The small data set in the place of a large one."""
    data = small_data()
    np.savez(
        folder / f"{name}.npz",
        X_train=np.asarray(data.train.contexts),
        Y_train=data.train.labels,
        X_test=np.asarray(data.test.contexts),
        Y_test=data.test.labels,
        label_names=np.array(data.label_names),
    )
