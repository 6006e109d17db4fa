"""Folds: rows are dealt out to folds, and models are fitted to a sample of them.

The rows are read twice, in the same order: once for the sample, once for the columns.
A row's fold follows from its number among the rows of its logger, or from its cluster, so
that both passes agree and each fold has its share of each logger.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from sqlglot import exp

from poolwise.errors import Fault, LogError
from poolwise.log.policy import get_index
from poolwise.rows.guard import count_rows, duckdb_errors, read_batches
from poolwise.rows.learners import MIXTURE, Frequencies, LearnerRows
from poolwise.rows.roles import written_name
from poolwise.rows.rules import double, good, number
from poolwise.rows.rules import rows as select_rows
from poolwise.rows.score import make_scorer, to_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import duckdb
    from sqlglot.expressions import Expr as Expression

    from poolwise.errors import Finding
    from poolwise.rows.learners import Extra, Fitted
    from poolwise.rows.roles import Roles
    from poolwise.rows.rules import RoleColumns
    from poolwise.types import AnyArray, FloatArray, IntArray

LABEL, REWARD, UNIT = "poolwise_label", "poolwise_reward", "poolwise_unit"
NUMBER, FOLD = "poolwise_number", "poolwise_fold"
PERIOD, PERIOD_NUMBER = "poolwise_period", "poolwise_period_number"
OWN, CROSS = "poolwise_own", "poolwise_cross"  # propensities; a cross one has a number
MIXED = "poolwise_mixed"  # the mixture where it is logged
CONTEXT, PLAYED = "poolwise_context", "poolwise_played"  # hashes of context, and action in it
MOST_FOLDS = 2**62  # so many that each row, or cluster, has its own
BATCH_ROWS = 65_536  # of the pass that takes the sample


@dataclass(eq=False)
class Folds:
    """Gives rows their folds, batch by batch in order.

    Every `stride`-th row of a logger is sampled, and folds change at the same pace, so
    that the sample has its share of every fold.

    Attributes:
        folds: Number of folds.
        stride: Rows of a logger per sampled row.
        seen: Rows of each logger so far.
        periods: Periods of the log as text, in their order.

    Examples:
        >>> folds = Folds(5)
        >>> [folds.numbers(np.array(rows)).tolist() for rows in (["a", "a", "b"], ["a", "b"])]
        [[0, 1, 0], [2, 1]]
    """

    folds: int
    stride: int = 1
    seen: Counter[str] = field(default_factory=Counter)
    periods: tuple[str, ...] = ()

    def numbers(self, label: AnyArray) -> IntArray:
        """Return the number of each row among those of its logger."""
        numbers = np.empty(len(label), dtype=np.int64)
        names, codes = np.unique(label.astype(str), return_inverse=True)
        for code, name in enumerate(names.tolist()):
            rows = np.flatnonzero(codes == code)
            numbers[rows] = self.seen[name] + np.arange(len(rows))
            self.seen[name] += len(rows)
        return numbers

    def append(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Append each row's number among those of its logger, and its fold."""
        for rows in batches:
            number = self.numbers(rows.column(LABEL).to_numpy(zero_copy_only=False))
            clustered = UNIT in rows.schema.names
            unit = rows.column(UNIT).to_numpy() if clustered else number // self.stride
            fold = np.asarray(unit % self.folds, dtype=np.int64)
            numbered = rows.append_column(NUMBER, pa.array(number))
            numbered = numbered.append_column(FOLD, pa.array(fold))
            if self.periods:
                period = get_index(
                    self.periods, rows.column(PERIOD).to_numpy(zero_copy_only=False)
                )
                numbered = numbered.append_column(PERIOD_NUMBER, pa.array(period))
            yield numbered


def learn(connection: duckdb.DuckDBPyConnection, roles: Roles, extra: Extra) -> Fill:
    """Fit every learner to a sample of the rows."""
    if not extra.learners:
        return Fill((), roles, Folds(MOST_FOLDS))
    total = count_rows(connection)
    stride = -(-total // min(learner.rows for learner in extra.learners))
    folds = Folds(max(learner.folds for learner in extra.learners), max(1, stride))
    folds.periods = _periods(connection, roles)
    sample = _sample_learner(connection, roles, folds)
    if _is_estimated(roles):
        _refuse_missing(connection, roles)
        sample = replace(sample, frequencies=partial(_count_actions, connection, roles))
    fitted = tuple(learner.fit(sample, folds.seen) for learner in extra.learners)
    return Fill(fitted, roles, Folds(folds.folds, folds.stride, periods=folds.periods))


def _model_period(table: RoleColumns) -> Expression | None:
    """Return the period of a row; models of segments are those of all rows."""
    return table.period if table.period_kind == "period" else None


def _periods(connection: duckdb.DuckDBPyConnection, roles: Roles) -> tuple[str, ...]:
    """Return the periods of the log as text, in the order of their values."""
    period = _model_period(roles.table)
    if period is None:
        return ()
    value = period.sql(dialect="duckdb")
    query = f"SELECT CAST({value} AS VARCHAR) FROM log GROUP BY {value} ORDER BY {value}"
    with duckdb_errors(query):
        lines = connection.execute(query).fetchall()
    return tuple(text for (text,) in lines if text is not None)


def _sample_learner(
    connection: duckdb.DuckDBPyConnection, roles: Roles, folds: Folds
) -> LearnerRows:
    """Read every `stride`-th row of each logger that has a reward, and score it."""
    parts = []
    for rows in folds.append(_batches(connection, roles, BATCH_ROWS)):
        chosen = _floats(rows, NUMBER) % folds.stride == 0
        usable = np.asarray(rows.column(LABEL).is_valid())
        for name in _reward_columns(roles.table):
            usable &= np.isfinite(_floats(rows, name))
        parts.append(rows.filter(pa.array(chosen & usable)))
    sample = pa.Table.from_batches(parts).combine_chunks().to_batches() if parts else []
    if not sample:
        raise LogError([Fault("the log has no rows with a logger and a reward", "", 0)])
    return _learner_rows(make_scorer(roles)(sample[0]), roles)


def _is_estimated(roles: Roles) -> bool:
    """Test if the propensity is a column that a learner fills."""
    own = roles.table.propensity
    return own is not None and own.name == MIXTURE


def _hashes(roles: Roles) -> dict[str, Expression]:
    """Return the hashes of a row's context, and of its context and action."""
    context = [value.unalias() for value in roles.selected(roles.features)]
    action = [value.unalias() for value in roles.selected([roles.action])]
    return {
        CONTEXT: exp.Anonymous(this="hash", expressions=context),
        PLAYED: exp.Anonymous(this="hash", expressions=[*context, *action]),
    }


def _refuse_missing(connection: duckdb.DuckDBPyConnection, roles: Roles) -> None:
    """Raise LogError if an action is missing, unless bad rows are dropped."""
    action = [value.unalias() for value in roles.selected([roles.action])]
    query = exp.select(exp.Count(this=exp.Star())).from_("log").where(action[0].is_(exp.null()))
    (missing,) = connection.sql(query.sql(dialect="duckdb")).fetchall()[0]
    if missing and not roles.table.drop:
        example = {roles.action: None}
        advice = (
            "Correct the rows at their source, or drop them: pw.Log(..., on_fault='drop') "
            "(--on-fault drop)."
        )
        raise LogError([Fault("the action is missing", "", missing, example, advice)])


def _count_actions(connection: duckdb.DuckDBPyConnection, roles: Roles) -> Frequencies:
    """Count the good rows of each action in each context, as far as SQL knows them."""
    table = roles.table
    bare = replace(
        table,
        propensity=number(0.0 if table.scale.logs else 1.0),
        targets={k: e for k, e in table.targets.items() if e.name not in roles.scored},
        predicted_reward=None,
        predicted_values={},
    )
    hashes = [e.as_(name, quoted=True) for name, e in _hashes(roles).items()]
    (action,) = (value.unalias() for value in roles.selected([roles.action]))
    named = select_rows(bare).select(*hashes).where(action.copy().is_(exp.null()).not_())
    query = exp.select(CONTEXT, PLAYED, exp.Count(this=exp.Star()).as_("rows"))
    query = query.from_("rows").with_("rows", as_=named).where(good(bare))
    query = query.group_by(CONTEXT, PLAYED).order_by(PLAYED)
    columns = connection.sql(query.sql(dialect="duckdb")).to_arrow_table()
    numbers = [columns.column(k).to_numpy() for k in range(3)]
    return Frequencies(numbers[0], numbers[1], numbers[2].astype(np.int64))


def _batches(
    connection: duckdb.DuckDBPyConnection, roles: Roles, size: int
) -> Iterator[pa.RecordBatch]:
    """Read the log's columns, with label, reward, cluster and propensities in SQL."""
    table = roles.table
    values: dict[str, Expression] = {LABEL: exp.cast(table.logger.copy(), "varchar")}
    values |= {name: double(value) for name, value in _reward_columns(table).items()}
    if table.cluster is not None:
        unit = exp.cast(table.cluster.copy(), "varchar")
        values[UNIT] = exp.Anonymous(this="hash", expressions=[unit])
    values |= {PLAYED: _hashes(roles)[PLAYED]} if _is_estimated(roles) else {}
    if (period := _model_period(table)) is not None:
        values[PERIOD] = exp.cast(period.copy(), "varchar")
    in_sql = {n: e for n, e in _propensities(roles).items() if n != e.name}
    values |= {name: double(e) for name, e in in_sql.items()}
    wholes = {written_name(node): node for node in roles.distributions.values()}
    values |= {name: node for name, node in wholes.items() if name not in roles.read}
    columns = roles.selected(roles.read)
    columns += [e.as_(name, quoted=True) for name, e in values.items()]
    query = exp.select(*columns).from_("log").sql(dialect="duckdb")
    yield from read_batches(connection, query, size)


def _reward_columns(table: RoleColumns) -> dict[str, Expression]:
    """Return the reward and other measures, by column."""
    measures = enumerate(table.measures.values())
    return {REWARD: table.reward, **{f"{REWARD}_{k}": value for k, value in measures}}


@dataclass(frozen=True, eq=False)
class OrderedRows:
    """All rows of a log in a fixed order, which can be read several times.

    Attributes:
        connection: Connection with the view of the log.
        roles: Roles of its columns.
        fill: Appends the columns of models, such as an estimated mixture.
    """

    connection: duckdb.DuckDBPyConnection
    roles: Roles
    fill: Fill

    @property
    def distributions(self) -> dict[str, str]:
        """Names of the columns that hold the whole distribution of a logger, by label.

        The label of the row's own logger is empty.
        """
        return {k: written_name(node) for k, node in self.roles.distributions.items()}

    def read(self, size: int = BATCH_ROWS) -> Iterator[LearnerRows]:
        """Yield the rows in batches, with loggers in Python scored.

        The fold of a row is the hash of its cluster, or its number among the rows of its
        logger.  Columns of whole distributions are among those of a batch.
        """
        scorer = make_scorer(self.roles)
        for rows in self.fill.read(self.connection, size):
            filled = self.fill(scorer(rows))
            received = _learner_rows(filled, self.roles, self.distributions.values())
            unit = rows.column(UNIT if UNIT in rows.schema.names else NUMBER).to_numpy()
            yield replace(received, fold=np.asarray(unit % MOST_FOLDS, dtype=np.int64))

    def findings(self) -> tuple[Finding, ...]:
        """Return the findings about models; those about rows once they were read."""
        return tuple(note for fit in self.fill.fitted for note in fit.findings())


def _propensities(roles: Roles) -> dict[str, Expression]:
    """Return the propensities, by column; one that is scored in Python has its own column."""
    table = roles.table
    known = table.propensity is not None and not _is_estimated(roles)
    named = {OWN: table.propensity} if known and table.propensity is not None else {}
    named |= {f"{CROSS}_{k}": e for k, e in enumerate(table.propensities.values())}
    if table.mixture is not None and table.mixture.name != MIXTURE:
        named[MIXED] = table.mixture
    return {e.name if e.name in roles.scored else name: e for name, e in named.items()}


def _learner_rows(
    rows: pa.RecordBatch, roles: Roles, wholes: Iterable[str] = ()
) -> LearnerRows:
    """Return a batch as learners receive it, with columns of whole distributions if named."""
    table = roles.table
    names = [*_propensities(roles), *({MIXTURE} & set(rows.schema.names))]
    logs = [_floats(rows, name) for name in names]
    if not table.scale.logs:
        with np.errstate(divide="ignore", invalid="ignore"):  # bad rows are reported later
            logs = [np.log(values) for values in logs]
    mixture = logs.pop() if names and names[-1] in {MIXTURE, MIXED} else None
    own = np.full(rows.num_rows, np.nan)
    if _is_estimated(roles):
        own, mixture = own if mixture is None else mixture, None
    elif table.propensity is not None:
        own = logs.pop(0)
    return LearnerRows(
        batch=to_batch(rows, roles.action, list(dict.fromkeys([*roles.context, *wholes]))),
        features=roles.features,
        label=rows.column(LABEL).to_numpy(zero_copy_only=False),
        fold=rows.column(FOLD).to_numpy(),
        reward=_floats(rows, REWARD),
        propensity=own,
        propensities=dict(zip(table.propensities, logs, strict=True)),
        number=rows.column(NUMBER).to_numpy(),
        logs=table.scale.logs,
        period=_period_numbers(rows),
        mixture=mixture,
        densities=table.scale.densities,
        played=rows.column(PLAYED).to_numpy() if PLAYED in rows.schema.names else None,
        measures={
            text: _floats(rows, f"{REWARD}_{k}") for k, text in enumerate(table.measures)
        },
    )


def _period_numbers(rows: pa.RecordBatch) -> IntArray:
    """Return the number of each row's period; none where the log has no periods."""
    if PERIOD_NUMBER not in rows.schema.names:
        return np.empty(0, dtype=np.int64)
    return np.asarray(rows.column(PERIOD_NUMBER).to_numpy(), dtype=np.int64)


def _floats(rows: pa.RecordBatch, name: str) -> FloatArray:
    """Return a column of numbers; NULL becomes NaN."""
    return np.asarray(rows.column(name).to_numpy(zero_copy_only=False), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Fill:
    """Appends the columns of fitted learners to one batch.

    Attributes:
        fitted: The fitted learners.
        roles: Roles of the columns of a batch.
        folds: Gives the rows their folds again, from the first row on.
    """

    fitted: tuple[Fitted, ...]
    roles: Roles
    folds: Folds

    def read(
        self, connection: duckdb.DuckDBPyConnection, size: int
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows with their folds, in batches of so many rows."""
        folds = replace(self.folds, seen=Counter())
        return folds.append(_batches(connection, self.roles, size))

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Append the columns to a batch with folds."""
        received = _learner_rows(rows, self.roles)
        for learner in self.fitted:
            for name, values in learner(received).items():
                rows = rows.append_column(name, pa.array(values))
        return rows
