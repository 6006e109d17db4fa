"""Periods: rows by period and logger, in the order of the periods.

Policies that are retrained have rows in some periods only.  One query counts the rows of
each logger in each period; the counts give every period the mixture of the loggers that were
live in it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from poolwise.errors import UsageError
from poolwise.moments.cells import Cell, periods_of
from poolwise.rows.rules import column, count_where, good, role_text, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlglot.expressions import Expr as Expression

    from poolwise.rows.rules import RoleColumns

MOST_SEGMENTS = 100  # intervals that hold together become too wide to be of use
TIME = re.compile(r"DATE|TIMESTAMP")  # types of columns that order rows in time
MOST_PERIODS = 1_000  # more distinct values suggest a time stamp of single rows


def cells_query(table: RoleColumns) -> exp.Select:
    """Count the rows of each logger in each period, with a value that sorts the periods."""
    if table.period is None:
        raise ValueError("the log has no periods")
    order = table.period.copy().as_("period_order", quoted=True)
    if table.drop:
        names = [column(name) for name in ("period", "logger", "period_order")]
        labels = exp.select(*names).from_("rows").with_("rows", as_=rows(table).select(order))
        labels = labels.where(good(table))
    else:
        texts = {"period": table.period, "logger": table.logger}
        casts = [exp.cast(v.copy(), "varchar").as_(n, quoted=True) for n, v in texts.items()]
        labels = exp.select(*casts, order).from_(table.relation.copy())
    first = exp.Min(this=column("period_order")).as_("period_order", quoted=True)
    count = exp.Count(this=exp.Star()).as_("rows", quoted=True)
    query = exp.select(column("period"), column("logger"), first, count)
    return query.from_(labels.subquery("labels")).group_by(column("period"), column("logger"))


def missing_query(table: RoleColumns) -> exp.Select:
    """Count the rows of each logger in each period, and those without each probability."""
    every = exp.Count(this=exp.Star()).as_("rows", quoted=True)
    lacking = [
        count_where(column(f"p_{k}").is_(exp.null())).as_(f"p_{k}", quoted=True)
        for k in range(len(table.propensities))
    ]
    labels = column("period"), column("logger")
    query = exp.select(*labels, every, *lacking).from_("rows").group_by(*labels)
    return query.with_("rows", as_=rows(table))


def clusters_query(table: RoleColumns) -> exp.Select:
    """Select the largest number of rows of a cluster, and of its periods."""
    if table.cluster is None:
        raise ValueError("the log has no clusters")
    period = exp.Literal.number(1) if table.period is None else table.period.copy()
    counts = {
        "rows": exp.Count(this=exp.Star()),
        "periods": exp.Count(this=exp.Distinct(expressions=[period])),
    }
    each = exp.select(*(count.as_(n, quoted=True) for n, count in counts.items()))
    each = each.from_(table.relation.copy()).group_by(table.cluster.copy())
    most = [exp.Max(this=column(name)).as_(name, quoted=True) for name in counts]
    return exp.select(*most).from_(each.subquery("clusters"))


def times_query(logger: Expression, time: str) -> exp.Select:
    """Select the first and the last time of each logger from the view of the log."""
    label = exp.cast(logger.copy(), "varchar").as_("logger", quoted=True)
    ends = {"first": exp.Min, "last": exp.Max}
    times = [end(this=column(time)).as_(n, quoted=True) for n, end in ends.items()]
    query = exp.select(label, *times).from_("log")
    return query.group_by(exp.cast(logger.copy(), "varchar"))


def cells_of(
    lines: Iterable[Mapping[str, Any]], loggers: Sequence[str], table: RoleColumns
) -> dict[Cell, int]:
    """Return the rows of each cell: periods in the order of their values, then loggers.

    Rows without a period or with an unknown logger have no cell; the pass reports them.
    """
    place = {label: k for k, label in enumerate(loggers)}
    usable = [line for line in lines if line["period"] is not None and line["logger"] in place]
    usable.sort(key=lambda line: (line["period_order"], place[line["logger"]]))
    periods = {d: k for k, d in enumerate(dict.fromkeys(line["period"] for line in usable))}
    cells = {
        Cell(line["period"], line["logger"], periods[line["period"]]): int(line["rows"])
        for line in usable
    }
    if table.segmented and len(periods) > MOST_SEGMENTS:
        raise UsageError(
            f"`by` must have at most {MOST_SEGMENTS} segments, got {len(periods):,} values of "
            f"{role_text(table, 'period')!r}: name a coarser column or expression"
        )
    if len(periods) > MOST_PERIODS:
        raise UsageError(
            f"the period {role_text(table, 'period')!r} must have at most {MOST_PERIODS:,} "
            f"values, got {len(periods):,}: name a coarser period, such as "
            "date_trunc('day', time)"
        )
    return cells


def period_shares(
    cells: Mapping[Cell, int], crossed: Sequence[str]
) -> tuple[tuple[float, ...], ...]:
    """Return each logger's share of the rows of each period, shape (periods, crossed)."""
    shares = []
    for period in periods_of(cells):
        counts = {cell.logger: n for cell, n in cells.items() if cell.period == period}
        total = sum(counts.values())
        shares.append(tuple(counts.get(label, 0) / total for label in crossed))
    return tuple(shares)
