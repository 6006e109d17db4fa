"""Layout: the columns of batches of rows, and the cells by which rows are summed.

Policies that are retrained have rows in some periods only.  One query counts the rows of
each logger in each period; the counts give every period the mixture of the loggers that were
live in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlglot import exp

from poolwise.errors import Fault, LogError, UsageError
from poolwise.moments.pool import Cell, Stratum, list_periods
from poolwise.moments.tallies import hash_buckets
from poolwise.rows.rules import (
    EXCLUDED,
    UNKNOWN,
    Scale,
    column,
    count_where,
    good,
    role_text,
    rows,
    rules,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlglot.expressions import Expr as Expression

    from poolwise.rows.rules import PeriodKind, RoleColumns
    from poolwise.types import IntArray

NO_NAN = "Write the value, or NULL where there is none: rows with NULL can be dropped."
MOST_SEGMENTS = 100  # intervals that hold together become too wide to be of use
TIME = re.compile(r"DATE|TIMESTAMP")  # types of columns that order rows in time
MOST_PERIODS = 1_000  # more distinct values suggest a time stamp of single rows


class BadRowsError(Exception):
    """A row breaks a rule; a query of `rows.rules` then finds out which one."""


@dataclass(frozen=True)
class Layout:
    """Columns ``logger``, ``reward``, ``p_0``..., ``t_0``... and the rules of their rows.

    Attributes:
        loggers: Every logger, in the order in which their moments come.
        crossed: Loggers whose probability is known in every row, in the order of ``p_*``.
        shares: Share of each of `crossed` in the mixture.
        targets: Targets, in the order of ``t_*``.
        valued: Targets with a predicted value, in the order of ``v_*``.
        measures: Other columns that are used as the reward, in the order of ``m_*``.
        propensity: Whether there is a column ``propensity``.
        predicted: Whether there is a column ``predicted_reward``.
        mixture: Whether there is a column ``estimated_mixture``.
        scale: How probabilities are written.
        buckets: Into how many each logger's rows are split: by a column ``bucket`` or
            ``cluster``, or by a hash of the row's number; at most `MOST_BUCKETS`.
        clustered: Whether there is a column ``cluster``, or ``bucket`` in its place.
        excluded: Loggers whose rows are left out.
        drop: Leave bad rows out instead of raising an error.
        period: What a column ``period`` holds: periods, or segments, in which the mixture of a
            row is that of its own segment; None without such a column.
        cells: Cells whose rows are summed apart; empty where those of a logger are summed.
        period_shares: Share of each of `crossed` in the mixture of each period.
    """

    loggers: tuple[str, ...]
    crossed: tuple[str, ...]
    shares: tuple[float, ...]
    targets: tuple[str, ...]
    valued: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    propensity: bool = True
    predicted: bool = False
    mixture: bool = False
    scale: Scale = field(default_factory=Scale)
    buckets: int = 1
    clustered: bool = False
    excluded: tuple[str, ...] = ()
    drop: bool = False
    period: PeriodKind | None = None
    cells: tuple[Cell, ...] = ()
    period_shares: tuple[tuple[float, ...], ...] = ()

    @property
    def modelled(self) -> int:
        """Number of measures with predictions: all or none."""
        return len(self.measures) if self.predicted else 0

    @property
    def strata(self) -> tuple[Stratum, ...]:
        """Keys of the moments: the cells, or the loggers."""
        return self.cells or self.loggers

    @cached_property
    def codes(self) -> dict[str | None, int]:
        """Number of each logger, and `EXCLUDED` for those that are left out."""
        numbers: dict[str | None, int] = {label: k for k, label in enumerate(self.loggers)}
        return numbers | dict.fromkeys(self.excluded, EXCLUDED)

    @cached_property
    def period_codes(self) -> dict[str | None, int]:
        """Number of each period of the cells."""
        return {period: k for k, period in enumerate(list_periods(self.cells))}

    @cached_property
    def cell_numbers(self) -> IntArray:
        """Number of the cell of each period and logger; the last line is of no period."""
        numbers = np.full((len(self.period_codes) + 1, len(self.loggers)), UNKNOWN)
        for k, cell in enumerate(self.cells):
            numbers[self.period_codes[cell.period], self.codes[cell.logger]] = k
        return numbers

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The logger of each group of rows that is summed: bucket after bucket."""
        return tuple(c.logger for c in self.cells) * self.buckets or self.loggers * self.buckets

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the numeric columns, in a fixed order."""
        optional = {
            "propensity": self.propensity,
            "predicted_reward": self.predicted,
            "estimated_mixture": self.mixture,
        }
        return (
            "reward",
            *(f"p_{k}" for k in range(len(self.crossed))),
            *(f"t_{k}" for k in range(len(self.targets))),
            *(f"v_{k}" for k in range(len(self.valued) * (1 + self.modelled))),
            *(f"r_{k}" for k in range(self.modelled)),
            *(name for name, present in optional.items() if present),
            *(f"m_{k}" for k in range(len(self.measures))),
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all columns that a pass reads."""
        labels = {
            "cluster": self.clustered and (self.drop or self.buckets > 1),
            "period": bool(self.cells) or (self.period is not None and self.drop),
        }
        return ("logger", *self.columns, *(name for name, read in labels.items() if read))

    def deal(self, numbers: IntArray) -> IntArray:
        """Return the buckets of rows with these numbers."""
        return hash_buckets(numbers) % self.buckets

    @cached_property
    def limits(self) -> dict[str, tuple[float, float]]:
        """Least and largest number of each column, and of what follows from columns."""
        return {rule.value: rule.limits[:2] for rule in rules(self.columns, self.scale)}


def plan_layout(
    table: RoleColumns, counts: Mapping[str, int], cells: Mapping[Cell, int] | None = None
) -> Layout:
    """Return the layout of a table whose rows have been counted, perhaps by period."""
    cells = cells or {}
    parts = table.shares or counts
    total = sum(parts.values()) or 1  # none of them good
    return Layout(
        loggers=tuple(counts),
        crossed=tuple(table.propensities),
        shares=tuple(parts.get(label, 0) / total for label in table.propensities),
        targets=tuple(table.targets),
        valued=tuple(table.predicted_values),
        measures=tuple(table.measures),
        propensity=table.propensity is not None,
        predicted=table.predicted_reward is not None,
        mixture=table.mixture is not None,
        scale=table.scale,
        clustered=table.cluster is not None,
        drop=table.drop,
        period=None if table.period is None else table.period_kind,
        cells=tuple(cells),
        period_shares=period_shares(cells, tuple(table.propensities)),
    )


def _labels(
    table: RoleColumns, labels: Mapping[str, Expression], *more: Expression
) -> exp.Subquery:
    """Select labels as text; read nothing else, unless bad rows must be left out."""
    if table.drop:
        names = [column(name) for name in (*labels, *(value.alias for value in more))]
        query = exp.select(*names).from_("rows").with_("rows", as_=rows(table).select(*more))
        return query.where(good(table)).subquery("labels")
    casts = [exp.cast(v.copy(), "varchar").as_(n, quoted=True) for n, v in labels.items()]
    return exp.select(*casts, *more).from_(table.relation.copy()).subquery("labels")


def counts_query(table: RoleColumns) -> exp.Select:
    """Count rows of each logger."""
    query = exp.select(column("logger"), exp.Count(this=exp.Star()).as_("rows", quoted=True))
    labels = _labels(table, {"logger": table.logger})
    return query.from_(labels).group_by(column("logger"))


def cells_query(table: RoleColumns) -> exp.Select:
    """Count the rows of each logger in each period, with a value that sorts the periods."""
    if table.period is None:
        raise ValueError("the log has no periods")
    order = table.period.copy().as_("period_order", quoted=True)
    labels = _labels(table, {"period": table.period, "logger": table.logger}, order)
    first = exp.Min(this=column("period_order")).as_("period_order", quoted=True)
    count = exp.Count(this=exp.Star()).as_("rows", quoted=True)
    query = exp.select(column("period"), column("logger"), first, count)
    return query.from_(labels).group_by(column("period"), column("logger"))


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


def marks_query(table: RoleColumns, most: int) -> exp.Select:
    """Select the largest number of rows of a cluster, in each period, with hashes of clusters.

    Each line has one of the `most` smallest hashes of the period.
    """
    if table.cluster is None:
        raise ValueError("the log has no clusters")
    period = exp.Literal.string("") if table.period is None else table.period.copy()
    named = {"period": period, "cluster": table.cluster.copy()}
    labels = [
        exp.cast(value, "varchar").as_(name, quoted=True) for name, value in named.items()
    ]
    count = exp.Count(this=exp.Star()).as_("rows", quoted=True)
    mark = exp.MD5(this=column("cluster")).as_("mark", quoted=True)
    each = exp.select(column("period"), mark, count)
    each = each.from_(exp.select(*labels).from_(table.relation.copy()).subquery("labels"))
    each = each.group_by(column("period"), column("cluster"))
    own = {"partition_by": [column("period")]}
    order = exp.Order(expressions=[exp.Ordered(this=column("mark"))])
    numbers = {
        "rows": exp.Window(this=exp.Max(this=column("rows")), **own),
        "place": exp.Window(this=exp.RowNumber(), **own, order=order),
    }
    ranked = exp.select(column("period"), column("mark"))
    ranked = ranked.select(*(n.as_(name, quoted=True) for name, n in numbers.items()))
    ranked = ranked.from_(each.subquery("clusters"))
    query = exp.select(column("period"), column("mark"), column("rows"))
    return query.from_(ranked.subquery("ranked")).where(column("place") <= most)


def requests_query(table: RoleColumns) -> exp.Select:
    """Select the requests of each period, and the fewest and most rows that they have in it."""
    if table.request is None or table.period is None:
        raise ValueError("the log has no requests or no periods")
    period = exp.cast(table.period.copy(), "varchar").as_("period", quoted=True)
    count = exp.Count(this=exp.Star()).as_("rows", quoted=True)
    groups = table.request.copy(), exp.cast(table.period.copy(), "varchar")
    each = exp.select(period, count).from_(table.relation.copy()).group_by(*groups)
    numbers = {
        "requests": exp.Count(this=exp.Star()),
        "fewest": exp.Min(this=column("rows")),
        "most": exp.Max(this=column("rows")),
    }
    names = [number.as_(name, quoted=True) for name, number in numbers.items()]
    query = exp.select(column("period"), *names).from_(each.subquery("requests"))
    return query.group_by(column("period"))


def times_query(logger: Expression, time: str) -> exp.Select:
    """Select the first and the last time of each logger from the view of the log."""
    label = exp.cast(logger.copy(), "varchar").as_("logger", quoted=True)
    ends = {"first": exp.Min, "last": exp.Max}
    times = [end(this=column(time)).as_(n, quoted=True) for n, end in ends.items()]
    query = exp.select(label, *times).from_("log")
    return query.group_by(exp.cast(logger.copy(), "varchar"))


def list_cells(
    lines: Iterable[Mapping[str, Any]], loggers: Sequence[str], table: RoleColumns
) -> dict[Cell, int]:
    """Return the rows of each cell: periods in the order of their values, then loggers.

    Rows without a period or with an unknown logger have no cell; the pass reports them.
    NaN has no place in an order.
    """
    place = {label: k for k, label in enumerate(loggers)}
    usable = [line for line in lines if line["period"] is not None and line["logger"] in place]
    if lost := [line for line in usable if line["period_order"] != line["period_order"]]:
        text = f"the {table.period_kind} is NaN"
        counts = sorted((line["logger"], int(line["rows"])) for line in lost)
        raise LogError([Fault(text, logger, n, advice=NO_NAN) for logger, n in counts])
    usable.sort(key=lambda line: (line["period_order"], place[line["logger"]]))
    periods = {d: k for k, d in enumerate(dict.fromkeys(line["period"] for line in usable))}
    cells = {
        Cell(line["period"], line["logger"], periods[line["period"]]): int(line["rows"])
        for line in usable
    }
    if table.period_kind == "segment" and len(periods) > MOST_SEGMENTS:
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
    for period in list_periods(cells):
        counts = {cell.logger: n for cell, n in cells.items() if cell.period == period}
        total = sum(counts.values())
        shares.append(tuple(counts.get(label, 0) / total for label in crossed))
    return tuple(shares)
