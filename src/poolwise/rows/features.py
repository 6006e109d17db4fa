"""Features: context and action as the matrix that a model is fitted to.

Numbers stay as they are, text becomes one column per common label, and so does the
action, which lets a model be asked about actions that were not played.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import UsageError
from poolwise.log.policy import index_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from poolwise.log.policy import AnyArray, Batch, FloatArray, IntArray

MOST_LABELS = 64  # columns that text, or the action, may take up


@dataclass(frozen=True, eq=False)
class Features:
    """How rows become a matrix; fitted to a sample, so that later batches look alike.

    Attributes:
        columns: Context columns in use.
        labels: The common labels of each column of text.
        actions: Actions that the sample has; others are like none of them.
        interactions: Let every context column speak for each action on its own.
    """

    columns: tuple[str, ...]
    labels: Mapping[str, tuple[Hashable, ...]]
    actions: tuple[Hashable, ...]
    interactions: bool = False

    def context(self, batch: Batch) -> FloatArray:
        """The context alone, shape (n, D)."""
        blocks = [self._block(name, batch[name]) for name in self.columns]
        return np.hstack([np.empty((len(batch), 0)), *blocks])

    def _block(self, name: str, values: AnyArray) -> FloatArray:
        if name in self.labels:
            return one_hot(index_of(self.labels[name], values), len(self.labels[name]))
        return values.reshape(len(values), -1).astype(np.float64)

    def place(self, actions: Sequence[Hashable] | AnyArray) -> IntArray:
        """Place of each action among those of the sample; -1 for an unknown one."""
        return index_of(self.actions, actions)

    def join(self, context: FloatArray, place: IntArray) -> FloatArray:
        """The context with one action for each row beside it."""
        size = len(self.actions)
        if size > MOST_LABELS:  # a number for each: trees can use it, linear models cannot
            return np.column_stack([context, place])
        played = one_hot(place, size)
        if not self.interactions:
            return np.hstack([context, played])
        crossed = context[:, :, None] * played[:, None, :]
        return np.hstack([context, played, crossed.reshape(len(context), -1)])


def fit_features(
    batch: Batch, columns: Sequence[str], *, interactions: bool = False
) -> Features:
    """Learn labels and actions from a sample of rows.

    >>> from poolwise.log.policy import Batch
    >>> rows = Batch(np.array(["a", "b"]), {"age": np.array([30, 40])})
    >>> features = fit_features(rows, ["age"])
    >>> features.join(features.context(rows), features.place(rows.action)).tolist()
    [[30.0, 1.0, 0.0], [40.0, 0.0, 1.0]]
    """
    labels = {}
    for name in columns:
        kind = batch[name].dtype.kind
        if kind in "OUSb" and batch[name].ndim == 1:
            labels[name] = _common(batch[name])
        elif kind not in "iuf":
            raise UsageError(
                f"column {name!r} holds neither numbers nor text, so no model can be fitted to "
                "it: name the columns of `context` that may be used"
            )
    if batch.action.ndim != 1:
        raise UsageError("a model needs one label per action, not a list")
    actions = tuple(sorted(set(batch.action.tolist()), key=str))
    return Features(tuple(columns), labels, actions, interactions)


def _common(values: AnyArray) -> tuple[Hashable, ...]:
    counted = Counter(values.tolist())
    ranked = sorted(counted, key=lambda label: (-counted[label], str(label)))
    return tuple(ranked[:MOST_LABELS])


def one_hot(place: IntArray, size: int) -> FloatArray:
    """One column per place, 1 where it is taken; a row of zeros for -1.

    >>> one_hot(np.array([1, -1]), 2).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    found = np.zeros((len(place), size))
    rows = np.flatnonzero(place >= 0)
    found[rows, place[rows]] = 1.0
    return found


def other_folds(fold: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Each fold with the rows that are not in it."""
    for k in np.unique(fold).tolist():
        yield k, np.flatnonzero(fold != k)
