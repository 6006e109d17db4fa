"""Learners: models, the rows that they are fitted to, and the matrix of such rows.

A learner fills columns of the log: a reward model, an estimated mixture.  It is fitted fold by
fold, or period by period, and predicts rows that it has not seen.  Numbers are features as they
are; text and the action become one column per frequent label, so that a model can predict
actions that were not logged.  An action with a density is a number.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from poolwise.errors import ModelError, UsageError, optional_module
from poolwise.log.policy import get_index
from poolwise.progress import stage

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from poolwise.errors import Finding
    from poolwise.log.policy import Batch
    from poolwise.types import AnyArray, FloatArray, IntArray, LabelList

MIXTURE = "poolwise_mixture"  # column of the estimated mixture, or of estimated propensities
MODEL_FOLDS = 5
FITTED_ROWS = 200_000  # more rows rarely improve a model, but slow it down
MOST_FITS = 50  # models of periods
ONE_HOT_COLUMNS = 64  # at most, of a column of text or of the action
SklearnModel = Any  # a regressor or classifier with scikit-learn's methods
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Rows of each context, and of each action in it, over all rows with a reward.

    Attributes:
        context: Hash of the context of each line.
        played: Hash of its context and action, in ascending order.
        rows: Number of rows with this context and action.
    """

    context: AnyArray
    played: AnyArray
    rows: IntArray


@dataclass(frozen=True, eq=False)
class LearnerRows:
    """Rows as a learner receives them.

    Attributes:
        batch: Logged actions and all context columns.
        features: Context columns that a model may use: those without another role.
        label: Logger of each row, shape (n,).
        fold: Fold of each row, shape (n,); rows of one cluster share it.
        reward: Reward, shape (n,).
        propensity: Log-probability under the row's own logger, shape (n,).
        propensities: Log-probabilities under the loggers that have them.
        logs: True if the log holds logarithms, so that filled probabilities must be too.
        number: Number of each row among those of its logger, shape (n,).
        period: Number of each row's period, shape (n,); empty where the log has none.
        mixture: Log-probability under the mixture, where it is logged or was estimated.
        densities: True if actions are numbers with densities.
        played: Hash of context and action, where propensities are estimated.
        frequencies: Counts the rows of each of these hashes in the whole log; in a sample
            only.
        measures: Other measures of each row, by their text, each of shape (n,).
    """

    batch: Batch
    features: tuple[str, ...]
    label: AnyArray
    fold: IntArray
    reward: FloatArray
    propensity: FloatArray
    propensities: Mapping[str, FloatArray]
    number: IntArray
    logs: bool = False
    period: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    mixture: FloatArray | None = None
    densities: bool = False
    played: AnyArray | None = None
    frequencies: Callable[[], Frequencies] | None = None
    measures: Mapping[str, FloatArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def units(self) -> IntArray:
        """Periods of the rows, or their folds: a model must not have seen its own unit."""
        return self.period if len(self.period) else self.fold


class Fitted(Protocol):
    """A fitted learner: it fills columns, and reports findings about the fit."""

    def __call__(self, rows: LearnerRows) -> Mapping[str, FloatArray]: ...

    def findings(self) -> tuple[Finding, ...]: ...


@dataclass(frozen=True, eq=False)
class Learner:
    """A model that is fitted to a sample of the rows before they are averaged.

    Attributes:
        name: Name for messages.
        columns: Columns that it fills.
        fit: Fits to a sample; the second argument is the number of rows of each logger.
        folds: Number of folds; a row is predicted by a model fitted to the other folds.
        rows: Largest number of rows to fit to.
    """

    name: str
    columns: tuple[str, ...]
    fit: Callable[[LearnerRows, Mapping[str, int]], Fitted]
    folds: int = MODEL_FOLDS
    rows: int = FITTED_ROWS


@dataclass(frozen=True, eq=False)
class Extra:
    """Columns that a question adds to those of the log: of metrics, models or segments.

    Attributes:
        measures: Columns or SQL expressions that are used as the reward, besides the log's own.
        predicted_reward: Column or SQL expression of the predicted reward, if any.
        predicted_values: Column or expression of each target's predicted value.
        predictions: Both for each other measure, whose model is its own.
        mixture: Column of the estimated mixture, if it is estimated.
        segment: Column or SQL expression of the segments, if the question has them.
        learners: Models that fill such columns.
        learning: Actions and context are read in any case, to learn from them.
    """

    predicted_reward: str | None = None
    predicted_values: Mapping[str, str] = field(default_factory=dict)
    predictions: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    mixture: str | None = None
    segment: str | None = None
    measures: tuple[str, ...] = ()
    learners: tuple[Learner, ...] = ()
    learning: bool = False

    @property
    def readers(self) -> tuple[str, ...]:
        """Names of the models that read actions and context."""
        return tuple(m.name for m in self.learners) or ("learning",) * self.learning

    @property
    def filled(self) -> tuple[str, ...]:
        """Columns that the learners fill."""
        return tuple(name for learner in self.learners for name in learner.columns)


NO_EXTRA: Extra = Extra()


# Fits.


def fit_folds(
    fold: IntArray, fit: Callable[[IntArray], T], *, threads: int = 1
) -> dict[int, T]:
    """Return the model for each fold: the result of `fit` with the rows of all others."""
    names = np.unique(fold).tolist()
    with stage("fitting", len(names)) as advance, ThreadPoolExecutor(threads) as pool:
        models = {}
        for k, model in zip(
            names, pool.map(lambda k: fit(np.flatnonzero(fold != k)), names), strict=True
        ):
            models[k] = model
            advance(1)
    return models


def fit_earlier(
    period: IntArray, fit: Callable[[IntArray], T], most: int = MOST_FITS
) -> dict[int, T]:
    """Return the model for each period: the result of `fit` with rows of earlier periods.

    Of more than `most` periods, neighbours share the model of the first of them.
    """
    periods = range(int(period.max(initial=0)) + 1)
    step = -(-len(periods) // most)
    models = {k: fit(np.flatnonzero(period < k)) for k in periods[::step]}
    return {k: models[k - k % step] for k in periods}


def rows_by_fold(fold: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield each fold with its rows."""
    return ((k, np.flatnonzero(fold == k)) for k in np.unique(fold).tolist())


def fit_clone(kind: str, model: SklearnModel, matrix: FloatArray, y: AnyArray) -> SklearnModel:
    """Fit a fresh copy of a model."""
    fresh = optional_module("sklearn.base", "scikit-learn", "sklearn").clone(model)
    try:
        return fresh.fit(matrix, y)
    except Exception as error:
        raise ModelError(kind, f"could not be fitted: {error}") from error


# Features.


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
            return one_hot(get_index(self.labels[name], values), len(self.labels[name]))
        return values.reshape(len(values), -1).astype(np.float64)

    def index(self, actions: LabelList) -> IntArray:
        """Return the index of each action among those of the sample; -1 if it is missing."""
        return get_index(self.actions, actions)

    def code(self, actions: LabelList) -> AnyArray:
        """Return the index of each action, or the action itself if it is a number."""
        return _to_doubles(np.asarray(actions)) if self.numeric else self.index(actions)

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
        if kind in "OUSb" and batch[name].ndim == 1 and not _is_nested(batch[name]):
            labels[name] = _frequent(batch[name])
        elif kind not in "iuf":
            raise UsageError(
                f"a model needs columns of numbers or text, got {name!r}: name the columns of "
                f"`context` to use; the fields of a struct are columns such as '{name}.age'"
            )
    if batch.action.ndim != 1:
        raise UsageError("a model needs one label per action, got lists")
    actions = () if numeric else tuple(sorted(set(batch.action.tolist()), key=str))
    return Features(tuple(columns), labels, actions, interactions, numeric)


def _to_doubles(actions: AnyArray) -> FloatArray:
    if actions.dtype.kind not in "iuf":
        raise UsageError(f"a model of densities needs numeric actions, got {actions.dtype}")
    return actions.astype(np.float64)


def _is_nested(values: AnyArray) -> bool:
    """Test if a column has structs, or lists of several lengths, which are not labels."""
    return any(isinstance(value, dict | list | np.ndarray) for value in values.tolist())


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
