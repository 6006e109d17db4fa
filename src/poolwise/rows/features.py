"""Features: rows as the matrix of a model.

Numbers stay unchanged; text and the action become one column per frequent label, so that a
model can predict actions that were not logged.  An action with a density is a number.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import UsageError
from poolwise.log.policy import index_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from poolwise.log.policy import AnyArray, Batch, FloatArray, IntArray, LabelList

ONE_HOT_COLUMNS = 64  # at most, of a column of text or of the action


@dataclass(frozen=True, eq=False)
class Features:
    """Turns rows into a matrix; fitted to a sample, so that all batches get the same columns.

    Attributes:
        columns: Context columns in use.
        labels: The frequent labels of each column of text.
        actions: Actions of the sample; all others get zeros.
        interactions: Add the product of every context column with every action.
        numeric: The action is a number, one column of the matrix; `actions` is empty.
    """

    columns: tuple[str, ...]
    labels: Mapping[str, tuple[Hashable, ...]]
    actions: tuple[Hashable, ...]
    interactions: bool = False
    numeric: bool = False

    def context(self, batch: Batch) -> FloatArray:
        """Return the context alone, shape (n, D)."""
        blocks = [self._block(name, batch[name]) for name in self.columns]
        return np.hstack([np.empty((len(batch), 0)), *blocks])

    def _block(self, name: str, values: AnyArray) -> FloatArray:
        if name in self.labels:
            return one_hot(index_of(self.labels[name], values), len(self.labels[name]))
        return values.reshape(len(values), -1).astype(np.float64)

    def index(self, actions: LabelList) -> IntArray:
        """Return the index of each action among those of the sample; -1 if it is missing."""
        return index_of(self.actions, actions)

    def code(self, actions: LabelList) -> AnyArray:
        """Return the index of each action, or the action itself if it is a number."""
        return _numbers(np.asarray(actions)) if self.numeric else self.index(actions)

    def join(self, context: FloatArray, action: AnyArray) -> FloatArray:
        """Append the columns of one action per row, by its code, to the context."""
        size = len(self.actions)
        if size > ONE_HOT_COLUMNS:  # trees can split the index; linear models cannot use it
            return np.column_stack([context, action])
        played = action[:, None] if self.numeric else one_hot(action, size)
        if not self.interactions:
            return np.hstack([context, played])
        crossed = context[:, :, None] * played[:, None, :]
        return np.hstack([context, played, crossed.reshape(len(context), -1)])

    def matrix(self, batch: Batch) -> FloatArray:
        """Return context and logged action, one line per row."""
        return self.join(self.context(batch), self.code(batch.action))


def fit_features(
    batch: Batch, columns: Sequence[str], *, interactions: bool = False, numeric: bool = False
) -> Features:
    """Collect labels and actions from a sample of rows.

    >>> from poolwise.log.policy import Batch
    >>> rows = Batch(np.array(["a", "b"]), {"age": np.array([30, 40])})
    >>> fit_features(rows, ["age"]).matrix(rows).tolist()
    [[30.0, 1.0, 0.0], [40.0, 0.0, 1.0]]
    """
    labels = {}
    for name in columns:
        kind = batch[name].dtype.kind
        if kind in "OUSb" and batch[name].ndim == 1 and not _has_lists(batch[name]):
            labels[name] = _frequent(batch[name])
        elif kind not in "iuf":
            raise UsageError(
                f"a model needs columns of numbers or text, got {name!r}: name the columns of "
                "`context` to use"
            )
    if batch.action.ndim != 1:
        raise UsageError("a model needs one label per action, got lists")
    actions = () if numeric else tuple(sorted(set(batch.action.tolist()), key=str))
    return Features(tuple(columns), labels, actions, interactions, numeric)


def _numbers(actions: AnyArray) -> FloatArray:
    if actions.dtype.kind not in "iuf":
        raise UsageError(f"a model of densities needs numeric actions, got {actions.dtype}")
    return actions.astype(np.float64)


def _has_lists(values: AnyArray) -> bool:
    """Test if a column has lists of several lengths, which are not labels."""
    return any(isinstance(value, list | np.ndarray) for value in values.tolist())


def _frequent(values: AnyArray) -> tuple[Hashable, ...]:
    rows = Counter(values.tolist())
    ranked = sorted(rows, key=lambda label: (-rows[label], str(label)))
    return tuple(ranked[:ONE_HOT_COLUMNS])


def one_hot(index: IntArray, size: int) -> FloatArray:
    """Return a matrix with a 1 at the index of each row; a row of zeros for -1.

    >>> one_hot(np.array([1, -1]), 2).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    matrix = np.zeros((len(index), size))
    rows = np.flatnonzero(index >= 0)
    matrix[rows, index[rows]] = 1.0
    return matrix
