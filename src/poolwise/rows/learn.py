"""Learn: columns of models, which are fitted to a sample of the rows first.

The rows are read twice, in the same order: once for the sample, once for the columns.
A row's fold follows from its number among the rows of its logger, or from its cluster, so
that both passes agree and each fold has its share of each logger.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from sqlglot import exp

from poolwise.errors import Fault, LogError
from poolwise.rows.score import Scorer, to_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import duckdb
    from sqlglot.expressions import Expr as Expression

    from poolwise.errors import Finding
    from poolwise.log.policy import AnyArray, Batch, FloatArray, IntArray
    from poolwise.rows.roles import Roles

LABEL, REWARD, UNIT = "poolwise_label", "poolwise_reward", "poolwise_unit"
PLACE, FOLD = "poolwise_place", "poolwise_fold"
OWN, KNOWN = "poolwise_own", "poolwise_known"
BATCH_ROWS = 65_536  # rows of one batch of the reading that takes the sample


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows as a learner receives them.

    Attributes:
        batch: Logged actions and all context columns.
        features: Context columns that a model may use: those that play no other role.
        label: Logger of each row, shape (n,).
        fold: Fold of each row, shape (n,); rows of one cluster share it.
        reward: Reward, shape (n,).
        propensity: Log-probability under the row's own logger, shape (n,).
        known: Log-probability under each logger whose probabilities are known.
        logs: Whether the log holds logarithms, and a filled probability must be one.
    """

    batch: Batch
    features: tuple[str, ...]
    label: AnyArray
    fold: IntArray
    reward: FloatArray
    propensity: FloatArray
    known: Mapping[str, FloatArray]
    logs: bool = False

    def __len__(self) -> int:
        return len(self.batch)


class Fitted(Protocol):
    """A fitted learner: it fills columns, and reports findings about the fit."""

    def __call__(self, piece: Piece) -> Mapping[str, FloatArray]: ...

    def findings(self) -> tuple[Finding, ...]: ...


class Learner(Protocol):
    """A model that is fitted to a sample of the rows before they are averaged."""

    @property
    def folds(self) -> int: ...

    @property
    def rows(self) -> int:
        """Largest number of rows to be fitted to."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns it fills."""
        ...

    def fit(self, sample: Piece, counts: Mapping[str, int]) -> Fitted:
        """Fit to a sample of rows; `counts` are all rows of each logger."""
        ...


@dataclass(frozen=True, eq=False)
class Extra:
    """Columns that are added to the log: a reward model, an estimated mixture.

    Attributes:
        predicted_reward: Column or SQL expression of the predicted reward, if any.
        predicted_values: Column or expression of each target's predicted value.
        mixture: Column of the estimated mixture, if it is estimated.
        learners: Models that fill such columns.
    """

    predicted_reward: str = ""
    predicted_values: Mapping[str, str] = field(default_factory=dict)
    mixture: str = ""
    learners: tuple[Learner, ...] = ()

    @property
    def filled(self) -> tuple[str, ...]:
        """Columns that the learners fill."""
        return tuple(name for learner in self.learners for name in learner.columns)


NOTHING = Extra()


@dataclass(eq=False)
class Folds:
    """Gives rows their folds, batch by batch in order.

    Every `stride`-th row of a logger is sampled, and folds change at the same pace, so
    that the sample has its share of every fold.

    Attributes:
        folds: Number of folds.
        stride: One of so many rows is sampled.
        seen: Rows of each logger so far.

    Examples:
        >>> folds = Folds(5)
        >>> [folds.places(np.array(rows)).tolist() for rows in (["a", "a", "b"], ["a", "b"])]
        [[0, 1, 0], [2, 1]]
    """

    folds: int
    stride: int = 1
    seen: Counter[str] = field(default_factory=Counter)

    def places(self, label: AnyArray) -> IntArray:
        """Number of each row among those of its logger."""
        place = np.empty(len(label), dtype=np.int64)
        names, codes = np.unique(label.astype(str), return_inverse=True)
        for code, name in enumerate(names.tolist()):
            mine = codes == code
            place[mine] = self.seen[name] + np.arange(mine.sum())
            self.seen[name] += int(mine.sum())
        return place


def learn(connection: duckdb.DuckDBPyConnection, roles: Roles, extra: Extra) -> Fill:
    """Fit every learner to a sample of the rows."""
    connection.execute("SET preserve_insertion_order = true")
    total = int(connection.execute("SELECT count(*) FROM log").fetchall()[0][0])
    stride = -(-total // min(learner.rows for learner in extra.learners))
    folds = Folds(max(learner.folds for learner in extra.learners), max(1, stride))
    sample = _sample(connection, roles, folds)
    fitted = tuple(learner.fit(sample, folds.seen) for learner in extra.learners)
    return Fill(fitted, roles, Folds(folds.folds, folds.stride), extra.filled)


def _sample(connection: duckdb.DuckDBPyConnection, roles: Roles, folds: Folds) -> Piece:
    """Every `stride`-th row of each logger, scored, without rows that lack a reward."""
    parts = []
    for rows in with_folds(_batches(connection, roles, BATCH_ROWS), folds):
        chosen = to_floats(rows, PLACE) % folds.stride == 0
        usable = np.isfinite(to_floats(rows, REWARD)) & (rows.column(LABEL).is_valid())
        parts.append(rows.filter(pa.array(chosen & np.asarray(usable))))
    sample = pa.Table.from_batches(parts).combine_chunks().to_batches() if parts else []
    if not sample:
        raise LogError([Fault("the log has no rows with a logger and a reward", "", 0)])
    table = roles.table
    scorer = Scorer(
        roles.scored, roles.action, roles.context, log_probabilities=table.log_probabilities
    )
    return to_piece(scorer(sample[0]), roles)


def _batches(
    connection: duckdb.DuckDBPyConnection, roles: Roles, size: int
) -> Iterator[pa.RecordBatch]:
    reader: Any = connection.sql(_query(roles)).to_arrow_reader(size)
    yield from reader


def _query(roles: Roles) -> str:
    """The log's columns, with label, reward, cluster and probabilities for the learners."""
    table = roles.table
    names = dict.fromkeys([*roles.needed, roles.action, *roles.context])
    numbers = {REWARD: table.reward, **_probabilities(roles)}
    labels: dict[str, Expression] = {LABEL: exp.cast(table.logger.copy(), "varchar")}
    if table.cluster is not None:
        unit = exp.cast(table.cluster.copy(), "varchar")
        labels[UNIT] = exp.Anonymous(this="hash", expressions=[unit])
    values = {
        n: exp.TryCast(this=e.copy(), to=exp.DataType.build("double"))
        for n, e in numbers.items()
    }
    columns: list[Expression] = [exp.column(n, quoted=True) for n in names]
    columns += [e.as_(n, quoted=True) for n, e in {**labels, **values}.items()]
    return exp.select(*columns).from_("log").sql(dialect="duckdb")


def _probabilities(roles: Roles) -> dict[str, Expression]:
    """Probabilities of the loggers in SQL; the others are scored in Python."""
    table = roles.table
    probs = {} if table.propensity is None else {OWN: table.propensity}
    probs |= {f"{KNOWN}_{k}": e for k, e in enumerate(table.propensities.values())}
    return {name: e for name, e in probs.items() if e.name not in roles.scored}


def with_folds(batches: Iterable[pa.RecordBatch], folds: Folds) -> Iterator[pa.RecordBatch]:
    """Append each row's number among those of its logger, and its fold."""
    for rows in batches:
        place = folds.places(rows.column(LABEL).to_numpy(zero_copy_only=False))
        unit = place // folds.stride
        if UNIT in rows.schema.names:
            unit = rows.column(UNIT).to_numpy()
        fold = np.asarray(unit % folds.folds, dtype=np.int64)
        yield rows.append_column(PLACE, pa.array(place)).append_column(FOLD, pa.array(fold))


def to_piece(rows: pa.RecordBatch, roles: Roles) -> Piece:
    """Arrow columns as a learner sees them."""
    table = roles.table
    own = table.propensity.name if table.propensity is not None else ""
    known = {
        label: _logs(rows, [f"{KNOWN}_{k}", e.name], roles)
        for k, (label, e) in enumerate(table.propensities.items())
    }
    return Piece(
        batch=to_batch(rows, roles.action, roles.context),
        features=roles.features,
        label=rows.column(LABEL).to_numpy(zero_copy_only=False),
        fold=rows.column(FOLD).to_numpy(),
        reward=to_floats(rows, REWARD),
        propensity=_logs(rows, [OWN, own], roles),
        known=known,
        logs=table.log_probabilities,
    )


def _logs(rows: pa.RecordBatch, names: list[str], roles: Roles) -> FloatArray:
    """Log-probabilities: of a column that SQL computed, or of one that was scored."""
    present = [name for name in names if name in rows.schema.names]
    if not present:
        return np.full(rows.num_rows, np.nan)
    values = to_floats(rows, present[0])
    if roles.table.log_probabilities:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):  # bad rows are reported later
        return np.log(values)


def to_floats(rows: pa.RecordBatch, name: str) -> FloatArray:
    """A column of numbers; nulls become NaN."""
    column = rows.column(name).to_numpy(zero_copy_only=False)
    return np.asarray(column, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Fill:
    """Appends the columns of fitted learners to one batch.

    Attributes:
        fitted: The fitted learners.
        roles: Roles of the columns of a batch.
        folds: Gives the rows their folds again, from the first row on.
        columns: Names of the columns that are appended.
    """

    fitted: tuple[Fitted, ...]
    roles: Roles
    folds: Folds
    columns: tuple[str, ...]

    def read(
        self, connection: duckdb.DuckDBPyConnection, size: int
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows with their folds, in batches of so many rows."""
        return with_folds(_batches(connection, self.roles, size), self.folds)

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Append the columns to a batch with folds."""
        piece = to_piece(rows, self.roles)
        for fit in self.fitted:
            for name, values in fit(piece).items():
                rows = rows.append_column(name, pa.array(values))
        return rows
