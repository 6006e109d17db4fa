"""The query: built once, for every engine and every dialect.

Each step is a named common table expression, every identifier is quoted by
SQLGlot, and the order of columns never depends on a set, so that equal requests
give equal text:

    source -> rows (roles, cast) -> probs -> ratios -> terms -> one row per logger

Products are centred before they are summed: by `shifts` that an earlier, small
query found, or, where one query must do everything, by averages computed in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sqlglot import exp

from poolwise.engine.roles import assign
from poolwise.engine.rows import (
    Table,
    case,
    column,
    count_where,
    good,
    number,
    propensity,
    rows,
    string,
)
from poolwise.errors import UsageError
from poolwise.log import SELECT, Log
from poolwise.moments import Moments
from poolwise.terms import UNSUPPORTED, Factor, Needs, Term

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlglot.expressions import Expr as Expression

    from poolwise.policy import PolicyLike

Shifts = Mapping[Term, float]


@dataclass(frozen=True, eq=False)
class Request:
    """One aggregate query: what is asked, and the numbers it may take as known.

    Attributes:
        table: The rows.
        needs: Means, scatters and extremes that are wanted.
        counts: Rows of each logger; None lets the query count them itself.
        shifts: Centre of each term, by logger; None lets the query find one centre
            itself. The key "" serves every logger that has no centre of its own.
    """

    table: Table
    needs: Needs
    counts: Mapping[str, int] | None = None
    shifts: Mapping[str, Shifts] | None = None

    @property
    def shifted(self) -> list[Term]:
        """Terms that need a centre: those with a scatter."""
        return sorted({t for pair in self.needs.pairs for t in pair})


def moments_query(request: Request, *, limit: int | None = None) -> exp.Select:
    """One row per logger (and bucket): count, bad rows, means, scatters, extremes."""
    query = _aggregate(request)
    for name, step in _steps(request, limit):
        query = query.with_(name, as_=step)
    return query


def _steps(request: Request, limit: int | None) -> list[tuple[str, exp.Select]]:
    table = request.table
    base = rows(table) if limit is None else rows(table).limit(limit)
    steps = [("rows", base)]
    if table.drop:
        steps.append(("kept", exp.select("*").from_("rows").where(good(table))))
    if request.counts is None and table.propensities:
        steps.append(("totals", _totals(table)))
    steps += [
        ("probs", _probs(table)),
        ("ratios", _ratios(request)),
        ("terms", _terms(request)),
    ]
    if request.shifts is None:
        steps.append(("centres", _centres(request)))
    elif set(request.shifts) - {""}:
        steps.append(("centres", _centre_values(request)))
    return steps


def _rows_name(table: Table) -> str:
    return "kept" if table.drop else "rows"


def _totals(table: Table) -> exp.Select:
    """Row counts in one line, for the mixture of a query that must stand alone."""
    counts = [
        count_where(column("logger").eq(string(label))).as_(f"n_{place}", quoted=True)
        for place, label in enumerate(table.propensities)
    ]
    return exp.select(*counts).from_(_rows_name(table))


def _probs(table: Table) -> exp.Select:
    """Probabilities; logarithms are taken back relative to the row's largest.

    A factor common to all probabilities of a row leaves every weight unchanged, and
    keeps those of structured actions, however small, from vanishing.
    """
    names = [f"p_{i}" for i in range(len(table.propensities))]
    names += [f"t_{i}" for i in range(len(table.targets))]
    kept = [column("logger"), column("reward")]
    if table.bucket is not None:
        kept.append(column("bucket"))
    mine = propensity(table)
    if table.log_probabilities:
        tops = [mine.copy(), *(column(n) for n in names if n.startswith("p_"))]
        top = exp.func("greatest", *tops) if len(tops) > 1 else tops[0]
        probs: list[Expression] = [
            exp.func("exp", column(n) - top.copy()).as_(n, quoted=True) for n in names
        ]
        mine = exp.func("exp", exp.paren(mine - top.copy()))
    else:
        probs = [column(n) for n in names]
    bad = case(good(table), exp.Literal.number(0), exp.Literal.number(1))
    extra = [mine.as_("own", quoted=True), bad.as_("bad", quoted=True)]
    return exp.select(*kept, *probs, *extra).from_(_rows_name(table))


def mixture(request: Request) -> Expression:
    """The loggers mixed in proportion to their rows."""
    total: Expression
    if request.counts is not None:
        rows_in_all = sum(request.counts.values())
        parts = [
            number(request.counts.get(label, 0) / rows_in_all) * column(f"p_{place}")
            for place, label in enumerate(request.table.propensities)
        ]
        return exp.paren(_sum(parts))
    places = range(len(request.table.propensities))
    sizes = [exp.cast(column(f"n_{i}", "totals"), "double") for i in places]
    parts = [sizes[i] * column(f"p_{i}") for i in places]
    total = exp.func("nullif", _sum([s.copy() for s in sizes]), number(0.0))
    return exp.paren(exp.paren(_sum(parts)) / total)


def _sum(parts: Sequence[Expression]) -> Expression:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _ratios(request: Request) -> exp.Select:
    """Every row column that some term is a product of."""
    table = request.table
    kept = [column("logger"), column("bad"), column("reward")]
    if table.bucket is not None:
        kept.append(column("bucket"))
    factors = sorted({f for t in request.needs.terms for f in t.factors})
    values = [
        _factor(f, table).as_(factor_name(f, table), quoted=True)
        for f in factors
        if f.name != "reward"
    ]
    probs: list[Expression] = [exp.Star()]
    if table.propensities:
        probs.append(mixture(request).as_("mixture", quoted=True))
    inner = exp.select(*probs).from_("probs")
    if request.counts is None and table.propensities:
        inner = inner.join("totals", join_type="cross")
    return exp.select(*kept, *values).from_(inner.subquery("mixed"))


def _factor(factor: Factor, table: Table) -> Expression:
    mixed = column("mixture")
    if factor.name in {"weight", "balanced_weight"}:
        prob = column(f"t_{list(table.targets).index(factor.target)}")
        return prob / _not_zero(mixed if factor.name == "balanced_weight" else column("own"))
    prob = column(f"p_{list(table.propensities).index(factor.logger)}")
    if factor.name == "ratio":
        return prob / _not_zero(mixed)
    return case(prob > number(0.0), mixed / _not_zero(prob.copy()), number(UNSUPPORTED))


def _not_zero(divisor: Expression) -> Expression:
    return exp.func("nullif", divisor, number(0.0))


def factor_name(factor: Factor, table: Table) -> str:
    """Short SQL name of a row column: labels may hold anything, so they stay out."""
    if factor.name == "reward":
        return "reward"
    if factor.target:
        return f"{factor.name}_{list(table.targets).index(factor.target)}"
    return f"{factor.name}_{list(table.propensities).index(factor.logger)}"


def _terms(request: Request) -> exp.Select:
    kept = [column("logger"), column("bad")]
    if request.table.bucket is not None:
        kept.append(column("bucket"))
    constant = (request.shifts or {}).get("", {})
    values = []
    for place, term in enumerate(request.needs.terms):
        factors = [column(factor_name(f, request.table)) for f in term.factors]
        product: Expression = factors[0]
        for factor in factors[1:]:
            product = product * factor
        if constant.get(term):
            product = product - number(constant[term])
        values.append(product.as_(f"x_{place}", quoted=True))
    return exp.select(*kept, *values).from_("ratios")


def _places(request: Request) -> dict[Term, int]:
    return {term: place for place, term in enumerate(request.needs.terms)}


def _centres(request: Request) -> exp.Select:
    """Averages per logger, for a query that must find its own centres."""
    places = _places(request)
    means = [
        exp.Avg(this=column(f"x_{places[t]}")).as_(f"c_{places[t]}", quoted=True)
        for t in request.shifted
    ]
    return exp.select(column("logger"), *means).from_("terms").group_by(column("logger"))


def _centre_values(request: Request) -> exp.Select:
    """Known centres as a small table, one line per logger."""
    places = _places(request)
    lines = []
    for logger, centre in sorted((request.shifts or {}).items()):
        if logger:
            names = [
                number(centre[t]).as_(f"c_{places[t]}", quoted=True) for t in request.shifted
            ]
            lines.append(exp.select(string(logger).as_("logger", quoted=True), *names))
    union: exp.Query = lines[0]
    for line in lines[1:]:
        union = union.union(line, distinct=False)
    return exp.select("*").from_(union.subquery("lines"))


def _aggregate(request: Request) -> exp.Select:
    """The outer query; its column order is what `decode` expects."""
    places = _places(request)
    by_logger = request.shifts is None or bool(set(request.shifts) - {""})
    centred = set(request.shifted) if by_logger else set()

    def value(term: Term) -> Expression:
        raw = column(f"x_{places[term]}", "terms")
        if term not in centred:
            return raw
        return exp.paren(raw - column(f"c_{places[term]}", "centres"))

    keys = [column("logger", "terms")]
    if request.table.bucket is not None:
        keys.append(column("bucket", "terms"))
    query = exp.select(*(key.copy() for key in keys))
    query = query.select(exp.Count(this=exp.Star()).as_("rows", quoted=True))
    query = query.select(exp.Sum(this=column("bad", "terms")).as_("bad", quoted=True))
    for term in request.needs.terms:
        mean = exp.Avg(this=value(term)).as_(f"mean_{places[term]}", quoted=True)
        query = query.select(mean)
    for left, right in request.needs.pairs:
        product = exp.Sum(this=value(left) * value(right))
        name = f"scatter_{places[left]}_{places[right]}"
        query = query.select(product.as_(name, quoted=True))
    for term in request.needs.extremes:
        query = query.select(
            exp.Min(this=value(term)).as_(f"lowest_{places[term]}", quoted=True),
            exp.Max(this=value(term)).as_(f"largest_{places[term]}", quoted=True),
        )
    if by_logger and centred:
        for term in request.shifted:
            centre = exp.Min(this=column(f"c_{places[term]}", "centres"))
            query = query.select(centre.as_(f"centre_{places[term]}", quoted=True))
    query = query.from_("terms")
    if by_logger and centred:
        same = column("logger", "terms").eq(column("logger", "centres"))
        query = query.join("centres", on=same)
    return query.group_by(*keys).order_by(*(key.copy() for key in keys))


def standalone_query(
    log: Log, table: str, targets: Mapping[str, PolicyLike], needs: Needs, dialect: str
) -> str:
    """One query that counts, centres and aggregates by itself, in any dialect."""
    relation = _relation(table)
    roles = assign(log, targets, None, relation)
    if roles.scored:
        raise UsageError("policies in Python cannot be written as SQL: score them first")
    try:
        query = moments_query(Request(roles.table, needs))
        return query.sql(dialect=dialect, pretty=True)
    except ValueError as reason:
        raise UsageError(f"{reason}") from reason


def _relation(table: str) -> Expression:
    from sqlglot import parse_one
    from sqlglot.errors import ParseError

    try:
        if SELECT.match(table):
            parsed = parse_one(table, dialect="duckdb")
            return exp.Subquery(this=parsed, alias=exp.to_identifier("source"))
        return exp.to_table(table, dialect="duckdb")
    except (ParseError, AttributeError) as reason:
        raise UsageError(f"{table!r} is neither a table nor a SELECT") from reason


@dataclass(frozen=True)
class Group:
    """What one line of the answer says.

    Attributes:
        logger: Label; None where the rows have none.
        bucket: Number of the bucket; 0 where rows were not split.
        bad: Rows that break a rule.
        moments: Their moments.
    """

    logger: str | None
    bucket: int
    bad: int
    moments: Moments


def decode(request: Request, line: Mapping[str, float | str | None]) -> Group:
    """Turn one line of the answer into moments, taking the centres back out."""
    terms, places = request.needs.terms, _places(request)
    count = int(line["rows"] or 0)
    logger = line["logger"]
    centres = np.array([_centre(request, line, str(logger), t) for t in terms])
    offsets = np.array([_float(line[f"mean_{k}"]) for k in range(len(terms))])
    scatter = np.full((len(terms), len(terms)), np.nan)
    for left, right in request.needs.pairs:
        i, j = places[left], places[right]
        raw = _float(line[f"scatter_{i}_{j}"])
        scatter[i, j] = scatter[j, i] = raw - count * offsets[i] * offsets[j]
    diagonal = np.einsum("ii->i", scatter)
    np.maximum(diagonal, 0.0, out=diagonal)  # rounding may leave -1e-20; keeps nan
    lowest, largest = np.full(len(terms), np.nan), np.full(len(terms), np.nan)
    for term in request.needs.extremes:
        k = places[term]
        lowest[k] = _float(line[f"lowest_{k}"]) + centres[k]
        largest[k] = _float(line[f"largest_{k}"]) + centres[k]
    return Group(
        None if logger is None else str(logger),
        int(line.get("bucket") or 0),
        int(line["bad"] or 0),
        Moments(terms, count, centres + offsets, scatter, lowest, largest),
    )


def _float(value: float | str | None) -> float:
    return float("nan") if value is None else float(value)


def _centre(
    request: Request, line: Mapping[str, float | str | None], logger: str, term: Term
) -> float:
    place = request.needs.terms.index(term)
    if f"centre_{place}" in line:
        return _float(line[f"centre_{place}"])
    shifts = request.shifts or {}
    return shifts.get(logger, shifts.get("", {})).get(term, 0.0)


WELL_CENTRED = 100.0  # squared distance of centre and mean, in variances of a row


def off_centre(request: Request, group: Group) -> bool:
    """Whether some scatter lost digits because its centre was far from the mean.

    The loss is the ratio of the distance squared to the variance: at 100 some two of
    sixteen digits, and a sum of 1e8 rows loses another four.
    """
    moments, places = group.moments, _places(request)
    for term in request.shifted:
        k = places[term]
        centre = _centre(request, {}, str(group.logger), term)
        gap = moments.count * (moments.means[k] - centre) ** 2
        if gap > WELL_CENTRED * moments.scatter[k, k] and gap > 0:
            return True
    return False
