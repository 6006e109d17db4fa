"""Actions: how often each logger plays each action, and the sums of its inverse propensities.

The audit of propensities (`diagnosis.audit`) reads these sums.  Databases and Spark compute
them by a query.  Plain files and frames are sampled: half a million rows show what all rows
show, and reading them takes a small part of a pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from poolwise.errors import UsageError
from poolwise.rows.labels import find_codes
from poolwise.rows.reader import RowGroup, in_order
from poolwise.rows.rules import (
    case,
    column,
    number,
    propensity,
    row_steps,
    rows_name,
    string,
)
from poolwise.rows.streams import plain_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlglot.expressions import Expr as Expression

    from poolwise.rows.distributions import FrequencySums
    from poolwise.rows.footers import Footers
    from poolwise.rows.frames import PlainFrame
    from poolwise.rows.reader import Files, Piece, Stream
    from poolwise.rows.rules import RoleColumns
    from poolwise.types import FloatArray, IntArray

FEWEST_AUDITED = 30  # rows of an action whose propensities are audited
MOST_ACTIONS = 5_000  # of all loggers together; the most frequent ones are kept
SMALLEST = 1e-60  # propensity that counts in place of a smaller one: 1 / p**4 stays finite
LEFT = 1e-12  # probability that a row leaves to other actions, at least
STEP_COUNT = 640_000  # rounded propensities are multiples of its inverse: decimals, k / 1,024
STEP_TOLERANCE = 0.03  # of such a multiple, in steps: it may be stored as float32
SAMPLED_ROWS = 1 << 19  # rows of plain files or of a frame that are read
UNNAMED = 1 << 16  # the same if rows do not name their actions
ACTION_SEED = 20170813  # of a sample in DuckDB
PIECE_ROWS = 1 << 16  # rows that are read in one place, at least


class ActionSums(NamedTuple):
    """Sums over the rows in which a logger played an action, with w = 1 / propensity.

    Attributes:
        logger: Label of the logger.
        action: The action, as text.
        rows: Rows with this action.
        inverse: Sum of w.
        squares: Sum of w**2.
        spreads: Sum of (w**2 - w)**2.
        on_grid: Rows whose propensity is a multiple of 1 / `STEP_COUNT`.
        eligible: Rows of the logger that list the action in `eligible`; None without lists.
        elsewhere: Least sum of 1/q - 1 over the rows that list the action and played another,
            where q is its probability there and unknown: the other actions of a list of L
            share 1 - p, so that 1/q averages at least (L - 1) / (1 - p).
    """

    logger: str
    action: str
    rows: int
    inverse: float
    squares: float
    spreads: float
    on_grid: int
    eligible: int | None = None
    elsewhere: float = 0.0


@dataclass(frozen=True)
class AuditSums:
    """Sums of the rows that the audit reads.

    Attributes:
        counts: Rows of each logger.
        actions: Sums of each logger and action with at least `FEWEST_AUDITED` rows.
        grids: Propensities of each logger in units of 1 / `STEP_COUNT`, if all are such
        multiples.
        named: Whether rows name their actions; if not, all rows of a logger count as one
            action, whose frequency says nothing.
        frequencies: Sums of the loggers whose whole distributions are known.
    """

    counts: Mapping[str, int]
    actions: tuple[ActionSums, ...]
    grids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    named: bool = True
    frequencies: tuple[FrequencySums, ...] = ()


# By query.


def rows_query(table: RoleColumns, total: int, most: int = SAMPLED_ROWS) -> exp.Select:
    """Select what the audit reads of rows in DuckDB; of many rows a sample, always the same."""
    action = string("") if table.action is None else table.action
    if total > most:
        sample = f"SELECT * FROM {table.relation.sql(dialect='duckdb')} USING SAMPLE "
        sample += f"{100 * most / total}% (system, {ACTION_SEED})"
        query: exp.Select = exp.maybe_parse(sample, dialect="duckdb")
        relation = query.subquery("sampled")
        table = replace(table, relation=relation)
    lists = [] if table.eligible is None else [table.eligible.copy()]
    more = [_cast_text(action, "action"), *(v.as_("eligible", quoted=True) for v in lists)]
    return _audited_rows(table, *more)


def _audited_rows(table: RoleColumns, *more: Expression) -> exp.Select:
    """Select the logger and the propensity of each usable row, and other columns."""
    steps = dict(row_steps(table))
    steps["rows"] = steps["rows"].select(*more)
    prob = propensity(table)
    prob = exp.func("exp", prob) if table.scale.logs else prob
    names = [column(value.alias) for value in more]
    query = exp.select(column("logger"), prob.as_("prob", quoted=True), *names)
    query = query.from_(rows_name(table))
    for name, step in steps.items():
        query = query.with_(name, as_=step)
    return query


def _cast_text(value: Expression, name: str) -> Expression:
    return exp.cast(value.copy(), "varchar").as_(name, quoted=True)


def _in_steps(prob: Expression) -> tuple[Expression, Expression]:
    """Return a propensity in steps of the grid, and the condition that it is a whole number."""
    steps = exp.Mul(this=prob, expression=number(STEP_COUNT))
    nearest = exp.func("round", steps.copy())
    gap = exp.func("abs", exp.paren(steps - nearest.copy()))
    return nearest, gap < number(STEP_TOLERANCE)


def sums_query(table: RoleColumns) -> exp.Select:
    """Sum powers of inverse propensities by logger and action; keep the most frequent ones."""
    if table.action is None:
        raise ValueError("the log names no action")
    source = _audited_rows(table, _cast_text(table.action, "action")).subquery("audited")
    least = exp.func("greatest", column("prob"), number(SMALLEST))
    inverse = exp.Div(this=number(1.0), expression=least)
    _, whole = _in_steps(column("prob"))
    each = exp.select(
        column("logger"),
        column("action"),
        inverse.as_("w", quoted=True),
        case(whole, exp.Literal.number(1), exp.Literal.number(0)).as_("g", quoted=True),
    ).from_(source)
    w = column("w")
    sums = {
        "rows": exp.Count(this=exp.Star()),
        "inverse": exp.Sum(this=w),
        "squares": exp.Sum(this=w * w),
        "spreads": exp.Sum(this=exp.paren(w * w - w) * exp.paren(w * w - w)),
        "on_grid": exp.Sum(this=column("g")),
    }
    labels = column("logger"), column("action")
    query = exp.select(*labels, *(v.as_(name, quoted=True) for name, v in sums.items()))
    query = query.from_(each.subquery("weighed")).group_by(*labels)
    query = query.having(exp.Count(this=exp.Star()) >= FEWEST_AUDITED)
    frequent = exp.Ordered(this=column("rows"), desc=True)
    query = query.order_by(frequent, *labels).limit(MOST_ACTIONS)
    return exp.select("*").from_(query.subquery("frequent"))


def eligible_query(table: RoleColumns) -> exp.Select:
    """Sum `eligible` and `elsewhere` of `ActionSums` by logger and listed action."""
    if table.eligible is None or table.action is None:
        raise ValueError("the log names no eligible actions")
    lists = table.eligible.copy().as_("eligible", quoted=True)
    source = _audited_rows(table, _cast_text(table.action, "played"), lists).subquery("audited")
    others = exp.paren(exp.ArraySize(this=column("eligible")) - number(1.0))
    left = exp.func("greatest", exp.paren(number(1.0) - column("prob")), number(LEFT))
    least = exp.Div(this=others, expression=left) - number(1.0)
    item = exp.Explode(this=column("eligible")).as_("action", quoted=True)
    each = exp.select(
        column("logger"), column("played"), least.as_("least", quoted=True), item
    ).from_(source)
    labels = exp.select(
        column("logger"),
        column("played"),
        column("least"),
        _cast_text(column("action"), "action"),
    ).from_(each.subquery("items"))
    another = case(column("played").neq(column("action")), column("least"), number(0.0))
    query = exp.select(
        column("logger"),
        column("action"),
        exp.Count(this=exp.Star()).as_("rows", quoted=True),
        exp.Sum(this=another).as_("elsewhere", quoted=True),
    )
    return query.from_(labels.subquery("labels")).group_by(column("logger"), column("action"))


def grid_query(table: RoleColumns, loggers: Iterable[str]) -> exp.Select:
    """Select the distinct propensities of some loggers, in steps of the grid."""
    source = _audited_rows(table).subquery("audited")
    nearest, whole = _in_steps(column("prob"))
    known = column("logger").isin(*map(string, loggers))
    query = exp.select(column("logger"), nearest.as_("step", quoted=True)).from_(source)
    return query.where(exp.and_(known, whole)).distinct()


def rounded_loggers(actions: Iterable[ActionSums]) -> list[str]:
    """Return the loggers all of whose audited propensities are multiples of 1 / `STEP_COUNT`.

    >>> sums = [ActionSums("v1", "a", 40, 80.0, 160.0, 160.0, on_grid=k) for k in (40, 39)]
    >>> rounded_loggers(sums[:1]), rounded_loggers(sums)
    (['v1'], [])
    """
    rounded: dict[str, bool] = {}
    for sums in actions:
        rounded[sums.logger] = rounded.get(sums.logger, True) and sums.on_grid == sums.rows
    return [logger for logger, every in rounded.items() if every]


# By sample.


def sample_sums(
    table: RoleColumns,
    source: Files | PlainFrame | None,
    counts: Mapping[str, int],
    footers: Footers,
    threads: int,
    most: int = SAMPLED_ROWS,
) -> AuditSums | None:
    """Return the sums of a sample of plain rows; None where a query must read them.

    Args:
        table: The expressions of the roles.
        source: Files or a frame that hold the rows as they are.
        counts: Rows of each logger.
        footers: Footers of the files.
        threads: Threads that read.
        most: Rows that are read, about.
    """
    labels = {"action": table.action, "eligible": table.eligible}
    labels = {name: value for name, value in labels.items() if value is not None}
    plain = {name: v.name for name, v in labels.items() if isinstance(v, exp.Column)}
    if source is None or table.drop or len(plain) < len(labels):
        return None
    if isinstance(source, tuple):
        tables = _file_tables(table, source, plain, footers, threads, most)
    else:
        tables = _frame_tables(table, source, plain, most)
    if not tables:
        return None
    codes: dict[str | None, int] = {label: k for k, label in enumerate(counts)}
    try:
        return _sum_tables(tables, table, codes)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # an action that is a list, say
        return None


def _propensity_columns(table: RoleColumns) -> list[str]:
    """Return the columns from which a row's own propensity follows."""
    crossed = [f"p_{k}" for k in range(len(table.propensities))]
    own = ["propensity"] if table.propensity is not None else []
    return ["logger", *(own or crossed)]


def spread(pieces: Sequence[Piece], most: int, least: int = PIECE_ROWS) -> list[Piece]:
    """Return the beginnings of pieces, spread evenly over all, of about `most` rows together.

    >>> groups = [RowGroup("a", k, 100) for k in range(10)]
    >>> [(part.group, part.head) for part in spread(groups, most=120, least=40)]
    [(0, 30), (3, 30), (6, 30), (9, 30)]
    >>> spread(groups, most=1_000) == groups
    True
    """
    if sum(piece.num_rows for piece in pieces) <= most:
        return list(pieces)
    step = max(1, len(pieces) * least // most)
    chosen = pieces[::step]
    return [_beginning(piece, max(1, most // len(chosen))) for piece in chosen]


def _beginning(piece: Piece, rows: int) -> Piece:
    if isinstance(piece, RowGroup):
        return replace(piece, head=min(rows, piece.num_rows))
    return piece.slice(0, rows)


def _file_tables(
    table: RoleColumns,
    files: Files,
    plain: Mapping[str, str],
    footers: Footers,
    threads: int,
    most: int,
) -> list[pa.Table] | None:
    """Read rows of files that have the columns; None if one lacks them."""
    stream = plain_stream(table, files, 1, footers, computing=True)
    kinds = {id(kind): kind for kind in (footers(path).kind for path, _ in files)}
    schemas = [kind.schema.to_arrow_schema().names for kind in kinds.values()]
    if stream is None or any(s.count(n) != 1 for s in schemas for n in plain.values()):
        return None
    stream = replace(stream, columns={**stream.columns, **plain})
    names = [*_propensity_columns(table), *plain]
    pieces = spread(list(stream.pieces), most)
    parts = in_order(lambda piece: _read_piece(stream, piece, names), pieces, threads)
    return [part for tables in parts for part in tables]


def _read_piece(stream: Stream, piece: Piece, names: Sequence[str]) -> list[pa.Table]:
    return list(stream.reader()([piece], names))


def _frame_tables(
    table: RoleColumns, frame: PlainFrame, plain: Mapping[str, str], most: int
) -> list[pa.Table] | None:
    """Take rows of a frame; None if DuckDB must read a column."""
    rows = frame.table.num_rows
    pieces = max(1, most // PIECE_ROWS) if rows > most else 1
    head, starts = min(rows, most) // pieces, [k * rows // pieces for k in range(pieces)]
    whole = pa.concat_tables([frame.table.slice(k, head) for k in starts])
    objects = {
        name: np.concatenate([values[k : k + head] for k in starts])
        for name, values in frame.objects.items()
    }
    stream = plain_stream(table, replace(frame, table=whole, objects=objects), computing=True)
    if stream is None:
        return None
    names, read, first = _propensity_columns(table), stream.reader(), 0
    tables = []
    for part in (part for piece in stream.pieces for part in read([piece], names)):
        for name, source in plain.items():
            if source in objects:
                values = pa.array(objects[source][first : first + part.num_rows].tolist())
            else:
                values = whole.column(source).slice(first, part.num_rows)
            part = part.append_column(name, values)  # noqa: PLW2901
        tables.append(part)
        first += part.num_rows
    return tables


def sum_batches(
    batches: Iterable[pa.RecordBatch], loggers: Iterable[str], *, lists: bool
) -> AuditSums:
    """Return the sums of the answer to `rows_query`, of rows that name their actions."""
    parts = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
    codes: dict[str | None, int] = {label: k for k, label in enumerate(loggers)}
    return array_sums(
        [str(label) for label in codes],
        np.concatenate([find_codes(part.column("logger"), codes) for part in parts]),
        np.concatenate([_doubles(part.column("prob")) for part in parts]),
        _column(parts, "action"),
        _column(parts, "eligible") if lists else None,
    )


def _sum_tables(
    tables: Sequence[pa.Table], table: RoleColumns, codes: Mapping[str | None, int]
) -> AuditSums:
    loggers = np.concatenate([find_codes(part.column("logger"), codes) for part in tables])
    prob = np.concatenate([_propensity(part, table, codes) for part in tables])
    prob = np.exp(prob) if table.scale.logs else prob
    named = table.action is not None
    one = pa.chunked_array([_as_arrow(np.zeros(len(prob), dtype=np.int64))])
    action = _column(tables, "action") if named else one
    lists = _column(tables, "eligible") if table.eligible is not None else None
    sums = array_sums([str(label) for label in codes], loggers, prob, action, lists)
    return replace(sums, named=named)


def _column(tables: Sequence[pa.Table], name: str) -> pa.ChunkedArray:
    chunks = [chunk for part in tables for chunk in part.column(name).chunks]
    if pa.types.is_dictionary(chunks[0].type):
        chunks = [chunk.dictionary_decode() for chunk in chunks]
    return pa.chunked_array(chunks)


def _propensity(
    part: pa.Table, table: RoleColumns, codes: Mapping[str | None, int]
) -> FloatArray:
    """Return the probability under each row's own logger."""
    if table.propensity is not None:
        return _doubles(part.column("propensity"))
    loggers = find_codes(part.column("logger"), codes)
    prob = np.full(len(loggers), np.nan)
    for k, label in enumerate(table.propensities):
        own = loggers == codes.get(label, len(codes))
        prob[own] = _doubles(part.column(f"p_{k}"))[own]
    return prob


def _doubles(values: pa.ChunkedArray) -> FloatArray:
    """Return numbers for NumPy; `to_numpy` would load pandas, if that is installed."""
    cast = [chunk.cast(pa.float64()) for chunk in values.chunks]
    # to fill NULL in would load pandas, too
    chunks = [chunk.fill_null(np.nan) if chunk.null_count else chunk for chunk in cast]
    return np.concatenate([np.from_dlpack(chunk) for chunk in chunks])


def _as_arrow(numbers: IntArray) -> pa.Array:
    """Return numbers as an Arrow array; `pa.array` would load pandas, if that is installed."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(numbers))]
    return pa.Array.from_buffers(pa.int64(), len(numbers), buffers)


def array_sums(
    labels: Sequence[str],
    loggers: IntArray,
    prob: FloatArray,
    action: pa.ChunkedArray,
    lists: pa.ChunkedArray | None = None,
) -> AuditSums:
    """Return the sums of rows in memory.

    Args:
        labels: The loggers.
        loggers: Number of each row's logger among them.
        prob: Propensity of each row.
        action: Action of each row.
        lists: Actions that each row could play.

    >>> wrote, prob = np.zeros(60, dtype=np.int64), np.full(60, 0.5)
    >>> sums = array_sums(["v1"], wrote, prob, pa.chunked_array([["a", "b", "a"] * 20]))
    >>> [(s.action, s.rows, s.inverse) for s in sums.actions]
    [('a', 40, 80.0)]
    """
    loggers = loggers.astype(np.int64)
    valid = (loggers >= 0) & (action.is_valid().to_numpy() if action.null_count else True)
    steps = np.rint(prob * STEP_COUNT)
    on_grid = np.abs(prob * STEP_COUNT - steps) < STEP_TOLERANCE
    used = slice(None) if valid.all() else np.flatnonzero(valid)
    encoded = (action if valid.all() else action.filter(pa.array(valid))).combine_chunks()
    encoded = encoded.dictionary_encode()
    names = encoded.dictionary
    wide = max(len(names), 1)
    cells = loggers[used] * wide + np.from_dlpack(encoded.indices)
    numbers = np.arange(len(labels) * wide) if len(labels) * wide <= SAMPLED_ROWS else None
    if numbers is None:  # memory must not grow with the number of labels
        numbers, cells = np.unique(cells, return_inverse=True)
    inverse = 1 / np.maximum(prob[used], SMALLEST)
    squares = inverse * inverse
    powers = (None, inverse, squares, (squares - inverse) ** 2, on_grid[used])
    sums = [np.bincount(cells, weights=p, minlength=len(numbers)) for p in powers]
    order = np.lexsort((numbers, -sums[0]))[:MOST_ACTIONS]
    chosen = order[sums[0][order] >= FEWEST_AUDITED]
    texts = names.take(_as_arrow(numbers[chosen] % wide)).cast(pa.string()).to_pylist()
    listed: Sequence[tuple[int | None, float]] = [(None, 0.0)] * len(chosen)
    if lists is not None:
        played = np.full(len(loggers), -1)
        played[used] = np.from_dlpack(encoded.indices)
        listed = _sum_listed(lists, names, loggers, played, prob, numbers[chosen])
    actions = tuple(
        ActionSums(labels[cell // wide], text, int(rows), w, w2, v, int(grid), *more)
        for cell, text, rows, w, w2, v, grid, more in zip(
            numbers[chosen].tolist(),
            texts,
            *(values[chosen].tolist() for values in sums),
            listed,
            strict=True,
        )
    )
    counts = np.bincount(loggers[loggers >= 0], minlength=len(labels)).tolist()
    grids = {
        logger: tuple(
            np.unique(steps[on_grid & (loggers == labels.index(logger))]).astype(int).tolist()
        )
        for logger in rounded_loggers(actions)
    }
    return AuditSums(dict(zip(labels, counts, strict=True)), actions, grids)


def _sum_listed(
    lists: pa.ChunkedArray,
    names: pa.Array,
    loggers: IntArray,
    played: IntArray,
    prob: FloatArray,
    cells: IntArray,
) -> list[tuple[int, float]]:
    """Return `eligible` and `elsewhere` of each cell, which is a logger and an action."""
    whole = lists.combine_chunks()
    try:
        items = pc.list_flatten(whole).cast(pa.string())
        names = names.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UsageError(
            "`eligible` must name a column of lists of actions, got values of type "
            f"{whole.type}"
        ) from None
    places = np.from_dlpack(pc.fill_null(pc.index_in(items, value_set=names), -1))
    rows = np.from_dlpack(pc.list_parent_indices(whole))
    sizes = np.bincount(rows, minlength=len(loggers))
    least = (sizes - 1) / np.maximum(1 - prob, LEFT) - 1
    used = (places >= 0) & (loggers[rows] >= 0)
    rows, places = rows[used], places[used]
    listed = loggers[rows] * max(len(names), 1) + places
    order = np.argsort(cells)
    found = np.searchsorted(cells[order], listed).clip(max=len(cells) - 1)
    hits = cells[order][found] == listed if len(cells) else np.zeros(len(found), dtype=bool)
    found, rows, places = found[hits], rows[hits], places[hits]
    another = np.where((played[rows] >= 0) & (places != played[rows]), least[rows], 0.0)
    counts, elsewhere = np.zeros(len(cells), dtype=np.int64), np.zeros(len(cells))
    counts[order] = np.bincount(found, minlength=len(cells))
    elsewhere[order] = np.bincount(found, weights=another, minlength=len(cells))
    return list(zip(counts.tolist(), elsewhere.tolist(), strict=True))
