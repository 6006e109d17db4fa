"""Policies: the probability of the logged action, by one protocol.

A policy returns, for each row, the probability with which it would have played the logged
action.  Columns, expressions, tables, formulas and models are adapted to that protocol.
Policies with an `expression` are computed inside the query; the others are scored in
Python, batch by batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, cast

import numpy as np

from poolwise.errors import MissingColumnError, PolicyError, UsageError
from poolwise.types import AnyArray, FloatArray, IntArray, LabelList

if TYPE_CHECKING:
    import pandas as pd
    from sqlglot import exp

TURNED_ROWS = 1_024  # rows that are copied to a matrix at once, so that they stay in cache
SUM_TOLERANCE = 1e-6  # of a sum of probabilities that were rounded or stored as float32


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows as a policy sees them: the logged action and its context.

    Attributes:
        action: Labels as logged, shape (n,); (n, d) where an action is a list.
        columns: Context columns by name, each (n,), or (n, d) for lists.
    """

    action: AnyArray
    columns: Mapping[str, AnyArray]

    def __len__(self) -> int:
        return len(self.action)

    def __getitem__(self, name: str) -> AnyArray:
        if name not in self.columns:
            raise MissingColumnError({name: "context"}, tuple(self.columns))
        return self.columns[name]

    def select(self, names: Sequence[str]) -> Batch:
        """Return the same rows with these columns, in this order."""
        return Batch(self.action, {name: self[name] for name in names})

    def take(self, rows: IntArray) -> Batch:
        """Return some of the rows, by number."""
        return Batch(self.action[rows], {name: v[rows] for name, v in self.columns.items()})

    @cached_property
    def context(self) -> FloatArray:
        """All columns side by side, shape (n, D); each must hold numbers."""
        for name, values in self.columns.items():
            if values.dtype.kind not in "biuf":
                raise UsageError(f"column {name!r} must hold numbers: encode it or omit it")
        blocks = [values.reshape(len(self), -1) for values in self.columns.values()]
        matrix = np.empty((len(self), sum(block.shape[1] for block in blocks)))
        for first in range(0, len(self), TURNED_ROWS):
            rows = slice(first, first + TURNED_ROWS)
            parts = [matrix[rows, :0], *(block[rows] for block in blocks)]
            np.concatenate(parts, axis=1, out=matrix[rows], casting="unsafe")
        return matrix

    def index_in(self, actions: LabelList) -> IntArray:
        """Return the index of each logged action among these; -1 if it is missing.

        The result is cached, since several policies may have the same actions.
        """
        key = tuple(actions)
        if key not in self._indices:
            self._indices[key] = get_index(actions, self.action)
        return self._indices[key]

    @cached_property
    def _indices(self) -> dict[tuple[Hashable, ...], IntArray]:
        return {}

    def to_pandas(self) -> pd.DataFrame:
        """Return the columns as a data frame; each row of a list column is a list."""
        import pandas as pd

        columns = {k: v if v.ndim == 1 else list(v) for k, v in self.columns.items()}
        return pd.DataFrame(columns, index=range(len(self)))


class Policy(Protocol):
    """Gives the probability of each row's logged action, shape (n,)."""

    def prob(self, batch: Batch) -> FloatArray: ...


class Distribution(Policy, Protocol):
    """A policy that gives the probability of every action, shape (n, len(actions))."""

    @property
    def actions(self) -> Sequence[Hashable]: ...

    def distribution(self, batch: Batch) -> FloatArray: ...


class ProbabilityModel(Protocol):
    """A fitted classifier, in the manner of scikit-learn."""

    @property
    def classes_(self) -> Sequence[Hashable] | AnyArray: ...

    @property
    def predict_proba(self) -> Callable[..., AnyArray]: ...  # of a matrix or a frame


BatchFunction: TypeAlias = Callable[[Batch], AnyArray]
PolicyLike: TypeAlias = (
    Policy
    | ProbabilityModel
    | BatchFunction
    | Mapping[Any, Any]
    | LabelList  # of numbers, one per row
    | str
    | float
)


def log_prob(policy: Policy, batch: Batch) -> FloatArray:
    """Return log-probabilities of the logged actions, by `policy.log_prob` if it exists."""
    if hasattr(policy, "log_prob"):
        return cast("FloatArray", policy.log_prob(batch))
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0 = -inf is intended
        return np.log(policy.prob(batch))


def find_expression(policy: Policy) -> exp.Expr | None:
    """Return the policy in SQL, or None if it must be scored in Python."""
    expression: Callable[[], exp.Expr | None] = getattr(policy, "expression", lambda: None)
    return expression()


def is_distribution(policy: Policy) -> TypeGuard[Distribution]:
    """Return True if the policy gives the probability of every action."""
    return hasattr(policy, "distribution") and len(getattr(policy, "actions", ())) > 0


def get_index(actions: LabelList, logged: LabelList) -> IntArray:
    """Return the index of each logged label among the actions; -1 if it is missing.

    If one side has numbers, text on the other is parsed as numbers: a JSON file has "7"
    for the 7 of a log.

    >>> get_index(["a", "b"], ["b", "z", "a"]).tolist(), get_index(["7", "8"], [8, 9]).tolist()
    ([1, -1, 0], [1, -1])
    """
    listed, seen = label_array(actions), label_array(logged)
    if listed.dtype.kind in "biuf" and seen.dtype.kind in "biuf":
        return search(listed, seen)
    # On text a dictionary is as fast as Arrow's hash and four times as fast as np.unique.
    labels, rows = listed.tolist(), seen.tolist()
    distinct = dict.fromkeys(rows)
    numeric = any(_is_number(label) for label in (*labels, *distinct))
    index = {_parse_label(label, numeric=numeric): k for k, label in enumerate(labels)}
    by_label = {
        label: index.get(_parse_label(label, numeric=numeric), -1) for label in distinct
    }
    return np.fromiter(map(by_label.__getitem__, rows), np.int64, len(rows))


def label_array(values: LabelList) -> AnyArray:
    """Return labels as an array that preserves their types."""
    if not isinstance(values, np.ndarray):
        numbers = all(isinstance(value, Real | np.bool) for value in values)
        # object, since np.asarray(["a", 1]) would turn 1 into "1"
        values = np.asarray(values) if numbers else np.fromiter(values, object, len(values))
    if values.ndim != 1:
        raise UsageError(f"labels must be one per row, got an array of shape {values.shape}")
    return values


def _is_number(label: Hashable) -> bool:
    return isinstance(label, Real | np.bool) and not math.isnan(label)  # NaN is a missing label


def _parse_label(label: Hashable, *, numeric: bool) -> Hashable:
    text = label.decode() if isinstance(label, bytes) else label
    if numeric and isinstance(text, str):
        for number in (int, float):  # int first: as floats 2**53 and 2**53 + 1 are equal
            try:
                return number(text)
            except ValueError:
                continue
    return text


def search(listed: AnyArray, seen: AnyArray) -> IntArray:
    """Return the index of each number in the list; -1 if it is missing."""
    if not len(listed):
        return np.full(seen.shape, -1)
    whole = listed.dtype.kind in "biu" and seen.dtype.kind in "biu"
    listed, seen = (a.astype(np.int64 if whole else np.float64) for a in (listed, seen))
    order = np.argsort(listed)
    index = order[np.searchsorted(listed[order], seen).clip(max=len(listed) - 1)]
    return np.where(listed[index] == seen, index, -1)


def distinct(policy: str, actions: LabelList) -> tuple[Hashable, ...]:
    """Return actions as a tuple; raise if there are none or one occurs twice."""
    labels = () if isinstance(actions, str | bytes) else tuple(label_array(actions).tolist())
    if not labels or len(set(labels)) < len(labels):
        raise PolicyError(policy, f"needs a list of distinct actions, got {actions!r}")
    return labels


def pick(matrix: FloatArray, index: IntArray, missing: float = 0.0) -> FloatArray:
    """Return the entry of each row at its index; `missing` where the index is -1."""
    rows, wide = matrix.shape
    values: FloatArray = matrix.take(index + np.arange(0, rows * wide, wide), mode="clip")
    if index.min(initial=0) < 0:
        values[index < 0] = missing
    return values


def draw_index(probabilities: FloatArray, rng: np.random.Generator) -> IntArray:
    """Draw one index for each row of a matrix of probabilities."""
    below = probabilities.cumsum(axis=1)
    uniform = rng.random(len(below)) * below[:, -1]  # the sum may miss 1 by rounding
    index: IntArray = (below <= uniform[:, None]).sum(axis=1)
    return index


def check_matrix(policy: str, values: object, rows: int, actions: int) -> FloatArray:
    """Return values as a float64 matrix with one line per row and one column per action."""
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.shape != (rows, actions):
        reason = f"needs {rows} rows of {actions} actions, got an array of shape {matrix.shape}"
        raise PolicyError(policy, reason)
    return matrix


def sql_double(value: float) -> str:
    """Return a number in SQL; without an exponent DuckDB would read it as a decimal."""
    return repr(value) if "e" in repr(value) else f"{value!r}e0"


@dataclass(frozen=True)
class Column:
    """The probability is in a column of the log.

    >>> Column("p v1").expression().sql("duckdb")
    '"p v1"'
    """

    name: str

    def prob(self, batch: Batch) -> FloatArray:
        return np.asarray(batch[self.name], dtype=np.float64)

    def expression(self) -> exp.Expr:
        from sqlglot import exp

        return exp.column(self.name, quoted=True)


@dataclass(frozen=True)
class Expression:
    """The probability is a scalar SQL expression, in DuckDB's dialect.

    It may contain what `log.scalar` lists. Subqueries, aggregates, windows and other functions
    are rejected: they belong in the log's source.

    >>> Expression("if(best = item, 0.9, 0.1)").expression().sql("postgres")
    'CASE WHEN best = item THEN 0.9 ELSE 0.1 END'
    """

    sql: str

    def __post_init__(self) -> None:
        self.expression()

    def prob(self, batch: Batch) -> FloatArray:
        del batch
        raise PolicyError("Expression", f"is SQL and cannot be scored in Python: {self.sql}")

    def expression(self) -> exp.Expr:
        from poolwise.log.scalar import parse_scalar  # imports SQLGlot

        return parse_scalar(self.sql)


@dataclass(frozen=True, eq=False)
class Values:
    """The probability is in an array, with one value per row of a frame.

    Attributes:
        given: The array, list or Series.
    """

    given: Any

    def __post_init__(self) -> None:
        array = self.array
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            raise UsageError(
                "a policy in an array must be one number per row, got values of type "
                f"{type(self.given).__name__} and shape {array.shape}: add other values to the "
                "rows as a column, and give its name"
            )

    @property
    def array(self) -> AnyArray:
        """The values for NumPy."""
        try:
            return np.asarray(self.given)
        except ValueError:  # lists of several lengths
            return np.empty((0, 0))

    def prob(self, batch: Batch) -> FloatArray:
        del batch
        raise PolicyError(
            "Values",
            "has one value per row of a frame: give the rows as one frame, or the values as a "
            "column",
        )


@dataclass(frozen=True)
class Function:
    """The probability is the result of a function of the batch."""

    function: BatchFunction

    def prob(self, batch: Batch) -> FloatArray:
        return self.function(batch)


@dataclass(frozen=True, init=False)
class Uniform:
    """Plays every action with the same probability.

    With a number, each label has probability 1/number, and `actions` is a
    range; with the labels themselves, any other label has probability 0.

    >>> Uniform(["a", "b"]).prob(Batch(np.array(["a", "z"]), {})).tolist()
    [0.5, 0.0]
    """

    actions: Sequence[Hashable]

    def __init__(self, actions: int | LabelList) -> None:
        labels = range(actions) if isinstance(actions, int) else distinct("Uniform", actions)
        if not labels:
            raise PolicyError("Uniform", f"needs one action or more, got {actions}")
        object.__setattr__(self, "actions", labels)

    def prob(self, batch: Batch) -> FloatArray:
        if isinstance(self.actions, range):
            return np.full(len(batch), 1 / len(self.actions))
        return (batch.index_in(self.actions) >= 0) / len(self.actions)

    def distribution(self, batch: Batch) -> FloatArray:
        return np.full((len(batch), len(self.actions)), 1 / len(self.actions))

    def expression(self) -> exp.Expr | None:
        if not isinstance(self.actions, range):
            return None
        return Expression(sql_double(1 / len(self.actions))).expression()
