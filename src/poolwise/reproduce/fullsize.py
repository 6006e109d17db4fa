"""A problem of LYRL's full size, made up: 781,265 test inputs, 16 outputs.

Where only a subset of LYRL is at hand, this shows that the exact computation runs at
the size of the paper.  The documents are synthetic: normal features, and four labels
from a logistic model.
"""

from __future__ import annotations

import numpy as np

from poolwise.datasets import RCV1_TRAIN, Dataset, Labelled

NAME = "lyrl-shaped"
TEST_ROWS = 781_265
FEATURES = 20
LABELS = 4
SEED = 781_265
NOTE = "LYRL-shaped is synthetic: it has the size of LYRL and shows that the computation runs."


def lyrl_shaped(test_rows: int = TEST_ROWS, train_rows: int = RCV1_TRAIN) -> Dataset:
    """A synthetic data set with as many rows and labels as LYRL."""
    rng = np.random.default_rng(SEED)
    weights = rng.normal(size=(FEATURES, LABELS))
    biases = rng.normal(-1.0, 0.5, size=LABELS)
    train, test = (_rows(size, weights, biases, rng) for size in (train_rows, test_rows))
    names = tuple(f"label {k}" for k in range(LABELS))
    return Dataset(NAME, train, test, names, train_rows, NOTE)


def _rows(
    size: int,
    weights: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    biases: np.ndarray[tuple[int], np.dtype[np.float64]],
    rng: np.random.Generator,
) -> Labelled:
    contexts = rng.normal(size=(size, len(weights)))
    chance = 1 / (1 + np.exp(-(contexts @ weights + biases)))
    return Labelled(contexts, (rng.random(chance.shape) < chance).astype(np.uint8))
