"""The query: built once, for every engine and every dialect.

Each step is a named common table expression, every identifier is quoted by
SQLGlot, and the order of columns never depends on a set, so that equal requests
give equal text:

    source -> rows (roles, cast) -> probs -> ratios -> terms -> one row per logger

Products are centred before they are summed: by centres that an earlier, small
query found, or, where one query must do everything, by averages computed in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING

from sqlglot import exp

from poolwise.moments.terms import OF_MODEL, UNSUPPORTED, Factor, Needs, Term
from poolwise.rows.rules import (
    RoleColumns,
    case,
    column,
    count_where,
    good,
    number,
    propensity,
    row_steps,
    rows_name,
    string,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlglot.expressions import Expr as Expression


Centres = Mapping[Term, float]


@dataclass(frozen=True, eq=False)
class Request:
    """One aggregate query: what is asked, and the numbers it may take as known.

    Attributes:
        table: The rows.
        needs: Means, scatters and extremes that are wanted.
        counts: Rows of each logger; None lets the query count them itself.
        common: Centre of each term, the same for all loggers.
        by_logger: Centre of each term, by logger. Without this and `common` the query
            finds centres itself.
        tail: How many of the largest values to return of terms that want them; only
            DuckDB can.
    """

    table: RoleColumns
    needs: Needs
    counts: Mapping[str, int] | None = None
    common: Centres | None = None
    by_logger: Mapping[str, Centres] | None = None
    tail: int = 0

    @property
    def shifted(self) -> list[Term]:
        """Terms that need a centre: those with a scatter."""
        return sorted({t for pair in self.needs.pairs for t in pair})

    @property
    def joined(self) -> bool:
        """Whether centres come from a table of their own, one line per logger."""
        return self.common is None and bool(self.shifted)


def moments_query(request: Request, *, limit: int | None = None) -> exp.Select:
    """One row per logger (and bucket): count, bad rows, means, scatters, extremes."""
    query = _aggregate(request)
    for name, step in _steps(request, limit):
        query = query.with_(name, as_=step)
    return query


def columns_query(request: Request) -> exp.Select:
    """The row columns themselves: the steps of the query of moments up to these."""
    query = exp.select("*").from_("ratios")
    for name, step in _steps(request, None):
        if name not in {"shared", "terms", "centres"}:
            query = query.with_(name, as_=step)
    return query


def _steps(request: Request, limit: int | None) -> list[tuple[str, exp.Select]]:
    table = request.table
    steps = row_steps(table)
    if limit is not None:
        steps[0] = ("rows", steps[0][1].limit(limit))
    if request.counts is None and table.propensities:
        steps.append(("totals", _totals(table)))
    steps += [
        ("probs", _probs(table)),
        ("ratios", _ratios(request)),
        ("shared", _shared(request)),
        ("terms", _terms(request)),
    ]
    if request.joined:
        found = _centres(request) if request.by_logger is None else _centre_values(request)
        steps.append(("centres", found))
    return steps


def _totals(table: RoleColumns) -> exp.Select:
    """Row counts in one line, for the mixture of a query that must stand alone."""
    counts = [
        count_where(column("logger").eq(string(label))).as_(f"n_{place}", quoted=True)
        for place, label in enumerate(table.propensities)
    ]
    return exp.select(*counts).from_(rows_name(table))


def _probs(table: RoleColumns) -> exp.Select:
    """Probabilities; logarithms are taken back relative to the row's largest.

    A factor common to all probabilities of a row leaves every weight unchanged, and
    keeps those of structured actions, however small, from vanishing.
    """
    names = [f"p_{i}" for i in range(len(table.propensities))]
    names += [f"t_{i}" for i in range(len(table.targets))]
    kept = [column("logger"), column("reward"), *map(column, table.predictions)]
    if table.bucket is not None:
        kept.append(column("bucket"))
    if table.mixture is not None:
        names.append("estimated_mixture")
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
    return exp.select(*kept, *probs, *extra).from_(rows_name(table))


def mixture(request: Request) -> Expression:
    """The loggers mixed in proportion to their rows."""
    total: Expression
    if request.table.mixture is not None:
        return column("estimated_mixture")
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
    if table.propensities or table.mixture is not None:
        probs.append(mixture(request).as_("mixture", quoted=True))
    inner = exp.select(*probs).from_("probs")
    if request.counts is None and table.propensities:
        inner = inner.join("totals", join_type="cross")
    return exp.select(*kept, *values).from_(inner.subquery("mixed"))


def _factor(factor: Factor, table: RoleColumns) -> Expression:
    mixed = column("mixture")
    if factor.name in {"weight", "balanced_weight"}:
        prob = column(f"t_{list(table.targets).index(factor.target)}")
        own = factor.name == "weight"
        return _held_back(prob / _not_zero(column("own") if own else mixed), factor)
    if factor.name in OF_MODEL:
        return _of_model(factor, table)
    if factor.name == "overlap":
        return _least([column(f"p_{k}") for k in range(len(table.propensities))]) / _not_zero(
            column("own")
        )
    prob = column(f"p_{list(table.propensities).index(factor.logger)}")
    if factor.name == "ratio":
        return prob / _not_zero(mixed)
    positive = prob > number(0.0)
    if factor.name == "unsupported":
        return case(positive, number(0.0), number(1.0))
    return case(positive, mixed / _not_zero(prob.copy()), number(UNSUPPORTED))


def _of_model(factor: Factor, table: RoleColumns) -> Expression:
    if factor.name == "predicted_value":
        return column(f"v_{list(table.predicted_values).index(factor.target)}")
    predicted = column("predicted_reward")
    return column("reward") - predicted if factor.name == "residual" else predicted


def _held_back(weight: Expression, factor: Factor) -> Expression:
    """The weight as the rule of a factor leaves it."""
    if not factor.rule:
        return weight
    weight, bound = exp.paren(weight), number(factor.bound)
    if factor.rule == "clip":
        return exp.func("least", weight, bound)
    if factor.rule == "switch":
        return case(weight <= bound, weight.copy(), number(0.0))
    square = exp.paren(weight.copy() * weight.copy() + bound.copy())
    return bound * weight / square


def _least(parts: list[exp.Column]) -> Expression:
    return exp.func("least", *parts) if len(parts) > 1 else parts[0]


def _not_zero(divisor: Expression) -> Expression:
    return exp.func("nullif", divisor, number(0.0))


def factor_name(factor: Factor, table: RoleColumns) -> str:
    """Short SQL name of a row column: labels may hold anything, so they stay out."""
    if factor.name in {"reward", "overlap", "predicted_reward", "residual"}:
        return factor.name
    if factor.target:
        rule = f"_{factor.rule}_{factor.bound!r}" if factor.rule else ""
        return f"{factor.name}_{list(table.targets).index(factor.target)}{rule}"
    return f"{factor.name}_{list(table.propensities).index(factor.logger)}"


def _stems(request: Request) -> dict[tuple[Factor, ...], str]:
    """Products that the terms of several loggers share, by the column that holds them."""
    stems = [_stem(term) for term in request.needs.terms]
    shared = [s for s in dict.fromkeys(stems) if len(s) > 1 and stems.count(s) > 1]
    return {stem: f"s_{place}" for place, stem in enumerate(shared)}


def _stem(term: Term) -> tuple[Factor, ...]:
    return tuple(f for f in term.factors if not f.logger)


def _product(request: Request, factors: Sequence[Factor]) -> Expression:
    columns = [column(factor_name(f, request.table)) for f in factors]
    return reduce(mul, columns)


def _shared(request: Request) -> exp.Select:
    """The row columns, with the products that several terms share computed once."""
    stems = [_product(request, s).as_(name, quoted=True) for s, name in _stems(request).items()]
    return exp.select(exp.Star(), *stems).from_("ratios")


def _terms(request: Request) -> exp.Select:
    kept = [column("logger"), column("bad")]
    if request.table.bucket is not None:
        kept.append(column("bucket"))
    constant, stems = request.common or {}, _stems(request)
    values = []
    for place, term in enumerate(request.needs.terms):
        stem = _stem(term)
        rest = [f for f in term.factors if f.logger]
        if stem in stems and rest:
            product: Expression = column(stems[stem]) * _product(request, rest)
        else:
            product = _product(request, term.factors)
        if constant.get(term):
            product = product - number(constant[term])
        values.append(product.as_(f"x_{place}", quoted=True))
    return exp.select(*kept, *values).from_("shared")


def places(request: Request) -> dict[Term, int]:
    """Number of each term in the names of the answer's columns."""
    return {term: place for place, term in enumerate(request.needs.terms)}


def _centres(request: Request) -> exp.Select:
    """Averages per logger, for a query that must find its own centres."""
    place = places(request)
    means = [
        exp.Avg(this=column(f"x_{place[t]}")).as_(f"c_{place[t]}", quoted=True)
        for t in request.shifted
    ]
    return exp.select(column("logger"), *means).from_("terms").group_by(column("logger"))


def _centre_values(request: Request) -> exp.Select:
    """Known centres as a small table, one line per logger."""
    place = places(request)
    lines = []
    for logger, centre in sorted((request.by_logger or {}).items()):
        names = [number(centre[t]).as_(f"c_{place[t]}", quoted=True) for t in request.shifted]
        lines.append(exp.select(string(logger).as_("logger", quoted=True), *names))
    union: exp.Query = lines[0]
    for line in lines[1:]:
        union = union.union(line, distinct=False)
    return exp.select("*").from_(union.subquery("lines"))


def _aggregate(request: Request) -> exp.Select:
    """The outer query: one line per logger, and per bucket where there are buckets."""
    keys = [column("logger", "terms")]
    if request.table.bucket is not None:
        keys.append(column("bucket", "terms"))
    query = exp.select(
        *(key.copy() for key in keys),
        exp.Count(this=exp.Star()).as_("rows", quoted=True),
        exp.Sum(this=column("bad", "terms")).as_("bad", quoted=True),
        *_aggregates(request),
    ).from_("terms")
    if request.joined:
        same = column("logger", "terms").eq(column("logger", "centres"))
        query = query.join("centres", on=same, join_type="left")
    return query.group_by(*keys).order_by(*(key.copy() for key in keys))


def _aggregates(request: Request) -> Iterator[Expression]:
    """Means, scatters, extremes, tails, and the centres that were subtracted."""
    place, needs = places(request), request.needs
    value = _values(request)
    for term in needs.terms:
        yield exp.Sum(this=value[term].copy()).as_(f"sum_{place[term]}", quoted=True)
    for left, right in needs.pairs:
        product = exp.Sum(this=value[left].copy() * value[right].copy())
        yield product.as_(f"scatter_{place[left]}_{place[right]}", quoted=True)
    for term in needs.extremes:
        yield exp.Min(this=value[term].copy()).as_(f"lowest_{place[term]}", quoted=True)
        yield exp.Max(this=value[term].copy()).as_(f"largest_{place[term]}", quoted=True)
    for term in needs.tails if request.tail else ():
        most = [value[term].copy(), exp.convert(request.tail)]
        yield exp.Anonymous(this="max", expressions=most).as_(
            f"tail_{place[term]}", quoted=True
        )
    for term in request.shifted if request.joined else ():
        centre = exp.Min(this=column(f"c_{place[term]}", "centres"))
        yield centre.as_(f"centre_{place[term]}", quoted=True)


def _values(request: Request) -> dict[Term, Expression]:
    """Each term, less its centre where that comes from a table of its own."""
    centred = set(request.shifted) if request.joined else set()
    found: dict[Term, Expression] = {}
    for term, place in places(request).items():
        raw = column(f"x_{place}", "terms")
        centre = column(f"c_{place}", "centres")
        found[term] = exp.paren(raw - centre) if term in centred else raw
    return found
