"""SQL: the aggregate query, for databases in which poolwise cannot run Python.

Each step is a named common table expression, SQLGlot quotes every identifier, and the
order of columns never depends on a set, so equal requests give equal text:

    source -> rows (roles, cast) -> probs -> ratios -> shared -> terms -> one line per logger

Terms are centred before their products are summed: by centres from an earlier, small query,
or by averages that the query computes itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add, mul
from typing import TYPE_CHECKING

from sqlglot import exp

from poolwise.moments.terms import AT_MOST, REWARD
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlglot.expressions import Expr as Expression

    from poolwise.moments.terms import Factor, Needs, Term


@dataclass(frozen=True, eq=False)
class MomentsRequest:
    """One aggregate query.

    Attributes:
        table: The rows.
        needs: Means, scatters and extremes to return.
        counts: Rows of each logger; None makes the query count them.
        centres: Centre of each term, the same for all loggers; None makes the query compute
            one per logger.
    """

    table: RoleColumns
    needs: Needs
    counts: Mapping[str, int] | None = None
    centres: Mapping[Term, float] | None = None

    @cached_property
    def index(self) -> dict[Term, int]:
        """Number of each term in the names of the answer's columns."""
        return {term: k for k, term in enumerate(self.needs.terms)}

    @property
    def self_centred(self) -> bool:
        """True if the query computes centres, in a step of its own."""
        return self.centres is None and bool(self.needs.scattered)


def moments_query(request: MomentsRequest, limit: int | None = None) -> exp.Select:
    """Return one line per logger (and bucket): count, bad rows, means, scatters, extremes.

    With `limit`, of the first rows only.
    """
    table, steps = request.table, row_steps(request.table)
    if limit is not None:
        steps[0] = ("rows", steps[0][1].limit(limit))
    if request.counts is None and table.propensities:
        steps.append(("totals", _totals(table)))
    steps += [
        ("probs", _probs(table)),
        ("ratios", _ratios(request)),
        ("shared", _compute_shared(request)),
        ("terms", _select_terms(request)),
    ]
    if request.self_centred:
        steps.append(("centres", _select_centres(request)))
    query = _aggregate(request)
    for name, step in steps:
        query = query.with_(name, as_=step)
    return query


def factor_steps(request: MomentsRequest) -> Callable[[exp.Select], exp.Select]:
    """Return what adds the steps to a query of `ratios`, the factors of each row."""
    steps = [
        *row_steps(request.table),
        ("probs", _probs(request.table)),
        ("ratios", _ratios(request)),
    ]

    def add_steps(query: exp.Select) -> exp.Select:
        for name, step in steps:
            query = query.with_(name, as_=step.copy())
        return query

    return add_steps


def _totals(table: RoleColumns) -> exp.Select:
    """Row counts in one line, for a query that computes the mixture's shares."""
    counts = [
        count_where(column("logger").eq(string(label))).as_(f"n_{k}", quoted=True)
        for k, label in enumerate(table.propensities)
    ]
    return exp.select(*counts).from_(rows_name(table))


def _probs(table: RoleColumns) -> exp.Select:
    """Probabilities of each row; logarithms are exponentiated relative to the largest.

    A factor common to all probabilities of a row leaves every weight unchanged, and keeps
    tiny probabilities of structured actions from underflowing.
    """
    names = [f"p_{i}" for i in range(len(table.propensities))]
    names += [f"t_{i}" for i in range(len(table.targets))]
    if table.mixture is not None:
        names.append("estimated_mixture")
    own = propensity(table)
    if table.scale.logs:
        tops = [own.copy(), *(column(n) for n in names if n.startswith("p_"))]
        top = _choose_extreme("greatest", tops)
        probs: list[Expression] = [
            exp.func("exp", column(n) - top.copy()).as_(n, quoted=True) for n in names
        ]
        own = exp.func("exp", exp.paren(own - top.copy()))
    else:
        probs = [column(n) for n in names]
    bad = case(good(table), exp.Literal.number(0), exp.Literal.number(1))
    extra = [own.as_("own", quoted=True), bad.as_("bad", quoted=True)]
    carried = _carry_columns(table, "reward", *table.predictions)
    return exp.select(*carried, *probs, *extra).from_(rows_name(table))


def _carry_columns(table: RoleColumns, *names: str) -> list[exp.Column]:
    """The logger, these columns and the bucket, as a step passes them on."""
    bucket = () if table.bucket is None else ("bucket",)
    return [column(name) for name in ("logger", *names, *bucket)]


def _mixture(request: MomentsRequest, without: str | None = None) -> Expression:
    """The loggers, perhaps without one of them, mixed in proportion to their rows."""
    if request.table.mixture is not None:
        return column("estimated_mixture")
    labels = {k: i for k, i in enumerate(request.table.propensities) if i != without}
    counts = request.table.shares or request.counts
    if counts is not None:
        total = sum(rows for label, rows in counts.items() if label != without)
        shares = {k: number(counts.get(label, 0) / total) for k, label in labels.items()}
        parts = [share * column(f"p_{k}") for k, share in shares.items()]
        return exp.paren(reduce(add, parts))
    sizes = {k: exp.cast(column(f"n_{k}", "totals"), "double") for k in labels}
    parts = [size.copy() * column(f"p_{k}") for k, size in sizes.items()]
    return exp.paren(exp.paren(reduce(add, parts)) / _not_zero(reduce(add, sizes.values())))


def _ratios(request: MomentsRequest) -> exp.Select:
    """The factors that the terms are products of."""
    table = request.table
    factors = sorted({f for t in request.needs.terms for f in t.factors})
    values = [
        _factor(f, table).as_(factor_name(f, table), quoted=True)
        for f in factors
        if f != REWARD.factors[0]
    ]
    probs: list[Expression] = [exp.Star()]
    if table.propensities or table.mixture is not None:
        probs.append(_mixture(request).as_("mixture", quoted=True))
    labels = list(table.propensities)
    parted = {f.logger for f in factors if "others" in f.definition.quantities}
    probs += [
        _mixture(request, label).as_(f"others_{labels.index(label)}", quoted=True)
        for label in sorted(parted, key=labels.index)
    ]
    inner = exp.select(*probs).from_("probs")
    if request.counts is None and table.propensities:
        inner = inner.join("totals", join_type="cross")
    carried = _carry_columns(table, "bad", "reward")
    return exp.select(*carried, *values).from_(inner.subquery("mixed"))


def _factor(factor: Factor, table: RoleColumns) -> Expression:
    """Write the definition of a factor."""
    made = factor.definition
    above = _quantity(made.above, factor, table) if made.above else number(0.0)
    if made.minus:
        return above - _quantity(made.minus, factor, table)
    if factor.rule == AT_MOST:
        return case(above <= number(factor.bound), number(1.0), number(0.0))
    if not made.below:
        return above
    below = _quantity(made.below, factor, table)
    if made.at_zero:
        known = above / _not_zero(below.copy()) if made.above else above
        return case(below > number(0.0), known, number(made.at_zero))
    quotient: Expression = above / _not_zero(below)
    if made.below == "others":  # which may be 0
        quotient = exp.func("coalesce", quotient, number(0.0))
    return (_smooth_weight if made.logarithmic else _shrunk)(quotient, factor)


def _quantity(name: str, factor: Factor, table: RoleColumns) -> Expression:
    """The column of a quantity, or its expression."""
    if name.startswith("period"):
        raise ValueError("queries do not compute mixtures of periods")
    if name == "least":
        return _choose_extreme(
            "least", [column(f"p_{k}") for k in range(len(table.propensities))]
        )
    if name == "target":
        name = f"t_{list(table.targets).index(factor.target)}"
    elif name == "predicted_value":
        name = f"v_{list(table.predicted_values).index(factor.target)}"
    elif name == "logger":
        name = f"p_{list(table.propensities).index(factor.logger)}"
    elif name == "others":
        name = f"others_{list(table.propensities).index(factor.logger)}"
    return column(name)


def _shrunk(weight: Expression, factor: Factor) -> Expression:
    """Apply the factor's rule (clip, switch, within, optimistic) to its weight."""
    if not factor.rule:
        return weight
    weight, bound = exp.paren(weight), number(factor.bound)
    if factor.rule == "clip":
        return exp.func("least", weight, bound)
    if factor.rule == "switch":
        return case(weight <= bound, weight.copy(), number(0.0))
    if factor.rule == "within":
        inside = exp.and_(weight > number(0.0), weight.copy() <= bound)
        return case(inside, number(1.0), number(0.0))
    square = exp.paren(weight.copy() * weight.copy() + bound.copy())
    return bound * weight / square


def _smooth_weight(weight: Expression, factor: Factor) -> Expression:
    """The logarithm of 1 plus the weighted gain over the factor's bound."""
    ends = column("reward"), number(factor.zero)
    distance = ends[0] - ends[1] if factor.rule == "gain" else ends[1] - ends[0]
    gain = exp.func("greatest", exp.paren(distance), number(0.0))
    return exp.func("ln", number(1.0) + exp.paren(weight) * gain / number(factor.bound))


def _choose_extreme(function: str, values: Sequence[Expression]) -> Expression:
    """The least or the greatest of several values, or the only one."""
    return exp.func(function, *values) if len(values) > 1 else values[0]


def _not_zero(divisor: Expression) -> Expression:
    return exp.func("nullif", divisor, number(0.0))


def factor_name(factor: Factor, table: RoleColumns) -> str:
    """Name a factor's column by numbers: labels may hold any character."""
    made = factor.definition
    rule = f"_{factor.rule}_{factor.bound!r}" if factor.rule else ""
    if made.scope == "row":
        return f"{factor.name}{rule}"
    if made.scope == "target":
        rule += f"_{factor.zero!r}" if made.logarithmic else ""
        return f"{factor.name}_{list(table.targets).index(factor.target)}{rule}"
    return f"{factor.name}_{list(table.propensities).index(factor.logger)}{rule}"


def _stems(request: MomentsRequest) -> dict[tuple[Factor, ...], str]:
    """Products that several terms have in common, with the names of their columns."""
    uses = Counter(_stem(term) for term in request.needs.terms)
    shared = [stem for stem, terms in uses.items() if len(stem) > 1 and terms > 1]
    return {stem: f"s_{k}" for k, stem in enumerate(shared)}


def _stem(term: Term) -> tuple[Factor, ...]:
    """Factors of a term that are the same for all loggers."""
    return tuple(f for f in term.factors if not f.logger)


def _multiply_factors(request: MomentsRequest, factors: Sequence[Factor]) -> Expression:
    return reduce(mul, [column(factor_name(f, request.table)) for f in factors])


def _compute_shared(request: MomentsRequest) -> exp.Select:
    """The factors, and products that several terms have in common, computed once."""
    stems = [
        _multiply_factors(request, s).as_(name, quoted=True)
        for s, name in _stems(request).items()
    ]
    return exp.select(exp.Star(), *stems).from_("ratios")


def _select_terms(request: MomentsRequest) -> exp.Select:
    """Value of each term in each row, less its centre where that is known."""
    centres, stems = request.centres or {}, _stems(request)
    values = []
    for term, k in request.index.items():
        stem = _stem(term)
        rest = [f for f in term.factors if f.logger]
        if stem in stems and rest:
            product: Expression = column(stems[stem]) * _multiply_factors(request, rest)
        else:
            product = _multiply_factors(request, term.factors)
        if centres.get(term):
            product = product - number(centres[term])
        values.append(product.as_(f"x_{k}", quoted=True))
    return exp.select(*_carry_columns(request.table, "bad"), *values).from_("shared")


def _select_centres(request: MomentsRequest) -> exp.Select:
    """Average of each term that has a scatter, by logger."""
    means = [
        exp.Avg(this=column(f"x_{k}")).as_(f"c_{k}", quoted=True)
        for k in range(len(request.needs.scattered))  # they come first
    ]
    return exp.select(column("logger"), *means).from_("terms").group_by(column("logger"))


def _aggregate(request: MomentsRequest) -> exp.Select:
    """The outer query: one line per logger, or per logger and bucket."""
    keys = [column("logger", "terms")]
    if request.table.bucket is not None:
        keys.append(column("bucket", "terms"))
    query = exp.select(
        *(key.copy() for key in keys),
        exp.Count(this=exp.Star()).as_("rows", quoted=True),
        exp.Sum(this=column("bad", "terms")).as_("bad", quoted=True),
        *(value.as_(name, quoted=True) for name, value in _name_aggregates(request)),
    ).from_("terms")
    if request.self_centred:
        same = column("logger", "terms").eq(column("logger", "centres"))
        query = query.join("centres", on=same, join_type="left")
    return query.group_by(*keys).order_by(*(key.copy() for key in keys))


def _name_aggregates(request: MomentsRequest) -> Iterator[tuple[str, Expression]]:
    """Sums, scatters, extremes and computed centres, by their names in the answer."""
    index, needs = request.index, request.needs
    values = {term: _centre_term(request, term) for term in index}
    for term, k in index.items():
        yield f"sum_{k}", exp.Sum(this=values[term].copy())
    for left, right in needs.pairs:
        product = values[left].copy() * values[right].copy()
        yield f"scatter_{index[left]}_{index[right]}", exp.Sum(this=product)
    for term in needs.extremes:
        yield f"lowest_{index[term]}", exp.Min(this=values[term].copy())
        yield f"largest_{index[term]}", exp.Max(this=values[term].copy())
    if request.self_centred:
        for k in range(len(needs.scattered)):
            yield f"centre_{k}", exp.Min(this=column(f"c_{k}", "centres"))


def _centre_term(request: MomentsRequest, term: Term) -> Expression:
    """A term's column, less the centre that the query computed for it."""
    k = request.index[term]
    value = column(f"x_{k}", "terms")
    if not request.self_centred or k >= len(request.needs.scattered):
        return value
    return exp.paren(value - column(f"c_{k}", "centres"))


UNCHANGED = {"duckdb", "spark", "spark2"}  # SQLGlot's text needs no change
FENCED = {"probs", "ratios", "shared", "terms"}  # steps whose columns are read many times
TINY = -150.0  # exp of it is 7e-66: practically zero, and its fourth power is still a double


def write_sql(query: exp.Select, dialect: str, *, pretty: bool = False) -> str:
    """Return the text of a query in a dialect, with what SQLGlot lacks for it."""
    if dialect not in UNCHANGED:
        query = query.copy()
        _quote_steps(query)
        if dialect in {"postgres", "redshift"}:
            _fence(query)
            _guard_underflow(query)
    return query.sql(dialect=dialect, pretty=pretty)


def _quote_steps(query: exp.Select) -> None:
    """Quote the names of the steps: ROWS is reserved in some databases.

    The user's table, which the first step reads, stays as written.
    """
    steps = {cte.alias: cte for cte in query.ctes}
    for cte in steps.values():
        cte.args["alias"].this.set("quoted", True)  # noqa: FBT003 - SQLGlot's signature
    users = {id(node) for node in steps["rows"].walk()} if "rows" in steps else set()
    for table in query.find_all(exp.Table):
        if table.name in steps and not table.db and id(table) not in users:
            table.this.set("quoted", True)  # noqa: FBT003 - likewise


def _fence(query: exp.Select) -> None:
    """Append OFFSET 0 to steps, so that PostgreSQL does not inline them.

    PostgreSQL has no common subexpressions: it would compute a mixture once per term.
    """
    for cte in query.ctes:
        if cte.alias in FENCED and isinstance(cte.this, exp.Select):
            cte.set("this", cte.this.offset(0))


def _guard_underflow(query: exp.Select) -> None:
    """Return 0 for exponentials whose underflow would raise an error."""
    for power in list(query.find_all(exp.Exp)):
        exponent = exp.paren(power.this.copy())
        power.replace(case(exponent < number(TINY), number(0.0), power.copy()))
