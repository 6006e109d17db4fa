"""Policies: how probable the logged action is, and where that number comes from.

A policy answers one question per row: with which probability would it have
played the action that was played?  The answer may be a column, an expression, a
table, a formula or a model; the adapters here make all of them one protocol.
What can be said in SQL has an `expression` and is computed inside the query;
the rest is scored in Python, batch by batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from poolwise.errors import MissingColumnError, PolicyError, UsageError

if TYPE_CHECKING:
    import pandas as pd
    from sqlglot import exp

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
AnyArray: TypeAlias = NDArray[Any]  # labels and columns have the type that the log has
Labels: TypeAlias = Sequence[Hashable] | AnyArray

TURNED_ROWS = 1_024  # rows that are turned into lines of a matrix at once: they stay in cache
SUM_TOLERANCE = 1e-6  # probabilities typed by hand or kept in float32 sum to 1 this well


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows as a policy sees them: the logged action and the context around it.

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
        """The same rows with these columns, in this order."""
        return Batch(self.action, {name: self[name] for name in names})

    @cached_property
    def context(self) -> FloatArray:
        """All columns side by side, shape (n, D); each must hold numbers."""
        for name, values in self.columns.items():
            if values.dtype.kind not in "biuf":
                raise UsageError(f"column {name!r} holds no numbers: encode it or leave it out")
        blocks = [values.reshape(len(self), -1) for values in self.columns.values()]
        matrix = np.empty((len(self), sum(block.shape[1] for block in blocks)))
        for first in range(0, len(self), TURNED_ROWS):
            rows = slice(first, first + TURNED_ROWS)
            parts = [matrix[rows, :0], *(block[rows] for block in blocks)]
            np.concatenate(parts, axis=1, out=matrix[rows], casting="unsafe")
        return matrix

    def places(self, actions: Labels) -> IntArray:
        """Place of each logged action among these; -1 where it is not among them.

        Policies over the same actions ask for the same, so that it is looked up once.
        """
        key = tuple(actions)
        if key not in self._places:
            self._places[key] = index_of(actions, self.action)
        return self._places[key]

    @cached_property
    def _places(self) -> dict[tuple[Hashable, ...], IntArray]:
        return {}

    def to_pandas(self) -> pd.DataFrame:
        """The columns as a data frame; each row of a list column is a list."""
        import pandas as pd

        columns = {k: v if v.ndim == 1 else list(v) for k, v in self.columns.items()}
        return pd.DataFrame(columns, index=range(len(self)))


class Policy(Protocol):
    """Anything that gives the probability of each row's logged action, shape (n,)."""

    def prob(self, batch: Batch) -> FloatArray: ...


class Distribution(Policy, Protocol):
    """A policy that gives the probability of every action, shape (n, len(actions))."""

    @property
    def actions(self) -> Sequence[Hashable]: ...

    def distribution(self, batch: Batch) -> FloatArray: ...


class SqlPolicy(Policy, Protocol):
    """A policy that a query can compute; None says that this one must be scored."""

    def expression(self) -> exp.Expr | None: ...


class ProbabilityModel(Protocol):
    """A fitted classifier, in the manner of scikit-learn."""

    @property
    def classes_(self) -> Sequence[Hashable] | AnyArray: ...

    @property
    def predict_proba(self) -> Callable[..., AnyArray]: ...  # of a matrix or a frame


Choice: TypeAlias = Callable[[Batch], AnyArray]
PolicyLike: TypeAlias = Policy | ProbabilityModel | Choice | Mapping[Any, Any] | str | float


def log_prob(policy: Policy, batch: Batch) -> FloatArray:
    """Log-probability of the logged actions, by the policy's own `log_prob` if it has one."""
    if hasattr(policy, "log_prob"):
        return cast("FloatArray", policy.log_prob(batch))
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0 = -inf is no accident
        return np.log(policy.prob(batch))


def expression_of(policy: Policy) -> exp.Expr | None:
    """The policy in SQL, or None if it must be scored in Python."""
    return cast("SqlPolicy", policy).expression() if hasattr(policy, "expression") else None


def is_distribution(policy: Policy) -> TypeGuard[Distribution]:
    """Whether the policy gives the probability of every action."""
    return hasattr(policy, "distribution") and len(getattr(policy, "actions", ())) > 0


def index_of(actions: Labels, logged: Labels) -> IntArray:
    """Place of each logged label among the actions; -1 for a label that is not there.

    Where one side has numbers, text on the other is read as numbers: a JSON file
    says "7" for the 7 of a log.

    >>> index_of(["a", "b"], ["b", "z", "a"]).tolist(), index_of(["7", "8"], [8, 9]).tolist()
    ([1, -1, 0], [1, -1])
    """
    known, seen = label_array(actions), label_array(logged)
    if known.dtype.kind in "biuf" and seen.dtype.kind in "biuf":
        return search(known, seen)
    # On text a dictionary is as fast as Arrow's hash and four times as fast as np.unique.
    labels, rows = known.tolist(), seen.tolist()
    distinct = dict.fromkeys(rows)
    numeric = any(_is_number(label) for label in (*labels, *distinct))
    place = {_read(label, numeric=numeric): k for k, label in enumerate(labels)}
    found = {label: place.get(_read(label, numeric=numeric), -1) for label in distinct}
    return np.fromiter(map(found.__getitem__, rows), np.int64, len(rows))


def label_array(values: Labels) -> AnyArray:
    """Labels as an array that keeps their types apart."""
    if not isinstance(values, np.ndarray):
        numbers = all(isinstance(value, Real | np.bool) for value in values)
        # object, since np.asarray(["a", 1]) would turn 1 into "1"
        values = np.asarray(values) if numbers else np.fromiter(values, object, len(values))
    if values.ndim != 1:
        raise UsageError(f"expected one label per row, found an array of shape {values.shape}")
    return values


def _is_number(label: Hashable) -> bool:
    return isinstance(label, Real | np.bool) and not math.isnan(label)  # nan is a null


def _read(label: Hashable, *, numeric: bool) -> Hashable:
    text = label.decode() if isinstance(label, bytes) else label
    if numeric and isinstance(text, str):
        for number in (int, float):  # int first: as floats 2**53 and 2**53 + 1 are equal
            try:
                return number(text)
            except ValueError:
                continue
    return text


def search(known: AnyArray, seen: AnyArray) -> IntArray:
    """Place of each number among the known ones; -1 for a number that is not there."""
    if not len(known):
        return np.full(seen.shape, -1)
    whole = known.dtype.kind in "biu" and seen.dtype.kind in "biu"
    known, seen = (a.astype(np.int64 if whole else np.float64) for a in (known, seen))
    order = np.argsort(known)
    place = order[np.searchsorted(known[order], seen).clip(max=len(known) - 1)]
    return np.where(known[place] == seen, place, -1)


def distinct(policy: str, actions: Labels) -> tuple[Hashable, ...]:
    """Actions as a tuple; there must be one or more, each once."""
    labels = () if isinstance(actions, str | bytes) else tuple(label_array(actions).tolist())
    if not labels or len(set(labels)) < len(labels):
        raise PolicyError(policy, f"needs a list of distinct actions, not {actions!r}")
    return labels


def pick(matrix: FloatArray, place: IntArray, missing: float = 0.0) -> FloatArray:
    """Entry of each row at its place; `missing` where the place is -1."""
    rows, wide = matrix.shape
    values: FloatArray = matrix.take(place + np.arange(0, rows * wide, wide), mode="clip")
    if place.min(initial=0) < 0:
        values[place < 0] = missing
    return values


def shaped(policy: str, values: object, rows: int, actions: int) -> FloatArray:
    """Values as a matrix of float64 with one line per row and one column per action."""
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.shape != (rows, actions):
        reason = f"found an array of shape {matrix.shape} for {rows} rows and {actions} actions"
        raise PolicyError(policy, reason)
    return matrix


def sql_double(value: float) -> str:
    """A number in SQL; without an exponent DuckDB would read it as a decimal."""
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

    Subqueries, aggregates and windows are refused: they belong in the log's source.

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
        import sqlglot
        from sqlglot import exp

        beyond = (exp.Query, exp.AggFunc, exp.Window, exp.Placeholder, exp.Parameter, exp.UDTF)
        try:
            (tree,) = sqlglot.parse(self.sql, read="duckdb")
        except (sqlglot.errors.SqlglotError, ValueError):
            tree = None
        if not isinstance(tree, exp.Condition) or tree.find(*beyond):
            raise UsageError(f"this is not one scalar SQL expression: {self.sql}")
        return cast("exp.Expr", tree)


@dataclass(frozen=True)
class Function:
    """The probability is what a function of the batch returns."""

    function: Choice

    def prob(self, batch: Batch) -> FloatArray:
        return self.function(batch)


@dataclass(frozen=True, init=False)
class Uniform:
    """Plays every action alike.

    Given a number, each label has probability 1/number, and `actions` is a
    range; given the labels themselves, any other has probability 0.

    >>> Uniform(["a", "b"]).prob(Batch(np.array(["a", "z"]), {})).tolist()
    [0.5, 0.0]
    """

    actions: Sequence[Hashable]

    def __init__(self, actions: int | Labels) -> None:
        labels = range(actions) if isinstance(actions, int) else distinct("Uniform", actions)
        if not labels:
            raise PolicyError("Uniform", f"needs one action or more, not {actions}")
        object.__setattr__(self, "actions", labels)

    def prob(self, batch: Batch) -> FloatArray:
        if isinstance(self.actions, range):
            return np.full(len(batch), 1 / len(self.actions))
        return (batch.places(self.actions) >= 0) / len(self.actions)

    def distribution(self, batch: Batch) -> FloatArray:
        return np.full((len(batch), len(self.actions)), 1 / len(self.actions))

    def expression(self) -> exp.Expr | None:
        if not isinstance(self.actions, range):
            return None
        return Expression(sql_double(1 / len(self.actions))).expression()
