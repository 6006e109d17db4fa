"""Rules: the roles of a log under fixed names, and the rules that each row must keep.

One query counts how many rows of each logger break each rule.  The query of the moments
carries the same rules as one condition, so that a good log is read once and a bad one is never
averaged; `rows.reader` applies them to batches.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sqlglot import exp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlglot.expressions import Expr as Expression

LARGEST_DOUBLE, SMALLEST_DOUBLE = sys.float_info.max, 5e-324  # both positive
UNKNOWN, EXCLUDED = -1, -2  # codes of rows that belong to no logger or cell of a layout


@dataclass(frozen=True, eq=False)
class RoleColumns:
    """The relation of the rows, and the expression of each role.

    Attributes:
        relation: A table, a view or a subquery.
        logger: Label of the logger, as text.
        reward: Reward.
        propensity: Probability under the row's own logger; None where the row of
            `propensities` that belongs to the logger says it.
        propensities: Probability under every logger; empty where it is not known.
        targets: Probability under each target.
        labels: Loggers that may occur; empty where any may.
        cluster: Unit whose rows belong together.
        request: Request that the row belongs to, if values are those of requests.
        period: Period in which the row was logged, if loggers change over time.
        segmented: The period is a segment: its mixture is that of its own rows.
        bucket: Integer that splits each logger's rows into groups, if wanted.
        log_probabilities: Probabilities are given as natural logarithms.
        densities: Probabilities are densities, which may be above 1.
        tolerance: How far `propensity` may be from `propensities`.
        drop: Leave bad rows out instead of counting them.
        predicted_reward: Predicted reward of the logged action, if there is a reward model.
        predicted_values: Predicted value of each target.
        mixture: Probability under the mixture where it was estimated; None where it
            follows from `propensities`.
        shares: Parts of the loggers in the mixture, of any sum; empty where their rows
            decide.
    """

    relation: Expression
    logger: Expression
    reward: Expression
    propensity: Expression | None
    propensities: Mapping[str, Expression]
    targets: Mapping[str, Expression]
    labels: tuple[str, ...] = ()
    cluster: Expression | None = None
    request: Expression | None = None
    period: Expression | None = None
    segmented: bool = False
    bucket: Expression | None = None
    log_probabilities: bool = False
    densities: bool = False
    tolerance: float = 1e-6
    drop: bool = False
    predicted_reward: Expression | None = None
    predicted_values: Mapping[str, Expression] = field(default_factory=dict)
    mixture: Expression | None = None
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def top(self) -> float:
        """Largest probability, density or logarithm."""
        return LARGEST_DOUBLE if self.densities else 0.0 if self.log_probabilities else 1.0

    @property
    def predictions(self) -> dict[str, Expression]:
        """Expressions of the reward model, by their names in `rows`."""
        values = {f"v_{k}": v for k, v in enumerate(self.predicted_values.values())}
        if self.predicted_reward is not None:
            values["predicted_reward"] = self.predicted_reward
        return values

    @property
    def numbers(self) -> dict[str, Expression]:
        """Expressions of numbers, by their names in `rows`."""
        values = {
            "reward": self.reward,
            **{f"p_{k}": value for k, value in enumerate(self.propensities.values())},
            **{f"t_{k}": value for k, value in enumerate(self.targets.values())},
            "propensity": self.propensity,
            **self.predictions,
            "estimated_mixture": self.mixture,
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def roles(self) -> dict[str, Expression]:
        """Expressions of labels and numbers, by name."""
        labels = {"logger": self.logger, "cluster": self.cluster, "period": self.period}
        return self.numbers | {name: v for name, v in labels.items() if v is not None}


@dataclass(frozen=True)
class Rule:
    """A rule that each row must keep.

    Attributes:
        text: The fault of a row that breaks it.
        broken: Condition that is true of the rows that break it.
        role: Columns of `rows` worth showing in an example.
        scaled: Number that may be on another scale, such as percentages.
    """

    text: str
    broken: Expression
    role: tuple[str, ...] = field(default=())
    scaled: Expression | None = None


def number(value: float) -> Expression:
    """Return a double, never a decimal: dialects read a bare 0.1 as DECIMAL."""
    text = repr(float(abs(value)))
    literal = exp.Literal.number(text if "e" in text else f"{text}e0")
    return exp.Neg(this=literal) if value < 0 else literal


def column(name: str, table: str | None = None) -> exp.Column:
    """Return a column, its name quoted."""
    return exp.column(name, table=table, quoted=True)


def double(expression: Expression) -> Expression:
    """Return an expression as a double; NULL where it is not a number."""
    return exp.TryCast(this=expression.copy(), to=exp.DataType.build("double"))


def or_zero(prob: Expression, logs: bool) -> Expression:  # noqa: FBT001 - one of two scales
    """Return a probability, or its logarithm, of 0 where there is none."""
    zero = exp.cast(string("-infinity"), "double") if logs else number(0.0)
    return exp.func("coalesce", double(prob), zero)


def case(when: Expression, then: Expression, otherwise: Expression) -> Expression:
    """Return one choice of two."""
    return exp.Case().when(when, then).else_(otherwise)


def rows(table: RoleColumns) -> exp.Select:
    """Select the roles under fixed names, as text and doubles."""
    columns = [exp.cast(table.logger.copy(), "varchar").as_("logger", quoted=True)]
    columns += [double(value).as_(name, quoted=True) for name, value in table.numbers.items()]
    if table.period is not None:
        columns.append(exp.cast(table.period.copy(), "varchar").as_("period", quoted=True))
    if table.cluster is not None:
        lacks = case(table.cluster.copy().is_(exp.null()), number(1.0), number(0.0))
        columns.append(lacks.as_("no_cluster", quoted=True))
    if table.bucket is not None:
        columns.append(table.bucket.copy().as_("bucket", quoted=True))
    return exp.select(*columns).from_(table.relation.copy())


def row_steps(table: RoleColumns) -> list[tuple[str, exp.Select]]:
    """Return the rows under fixed names; bad ones are left out where the table says so."""
    steps = [("rows", rows(table))]
    if table.drop:
        steps.append(("kept", exp.select("*").from_("rows").where(good(table))))
    return steps


def rows_name(table: RoleColumns) -> str:
    """Return the name of the last of these steps."""
    return "kept" if table.drop else "rows"


def without(table: RoleColumns, logger: str) -> RoleColumns:
    """Exclude one logger from the rows and from the mixture."""
    others = exp.cast(table.logger.copy(), "varchar").neq(string(logger))
    return replace(
        table,
        relation=exp.select("*").from_(table.relation.copy()).where(others).subquery("others"),
        propensities={k: v for k, v in table.propensities.items() if k != logger},
        labels=tuple(label for label in table.labels if label != logger),
    )


def own(table: RoleColumns) -> Expression:
    """Return the probability that the row's own logger gives, from `propensities`."""
    choice = exp.Case()
    for place, label in enumerate(table.propensities):
        choice = choice.when(column("logger").eq(string(label)), column(f"p_{place}"))
    if table.mixture is not None:  # loggers without cross-propensities
        choice = choice.else_(column("propensity"))
    return choice


def propensity(table: RoleColumns) -> Expression:
    """Return the probability under the logger that wrote the row."""
    return column("propensity") if table.propensity is not None else own(table)


def rules(table: RoleColumns) -> list[Rule]:
    """List the rules that a row must keep, in the order in which they are reported."""
    scale = "density" if table.densities else "probability"
    scale = f"log-{scale}" if table.log_probabilities else scale
    own_name = "the log-propensity" if table.log_probabilities else "the propensity"
    listed = [Rule("the logger is null", _missing("logger"), ("logger",))]
    if table.labels:
        unknown = exp.Not(this=column("logger").isin(*map(string, table.labels)))
        listed.append(Rule("the logger is unknown", unknown, ("logger",)))
    if table.period is not None:
        text = f"the {'segment' if table.segmented else 'period'} is null"
        listed.append(Rule(text, _missing("period"), ("period",)))
    if table.cluster is not None:
        lacks = column("no_cluster") > number(0.0)
        listed.append(Rule("the cluster is null", lacks, ("cluster",)))
    listed += _number_rules("reward", "reward")
    listed += _probability_rules(propensity(table), own_name, "propensity", table)
    for k, (label, crossed) in enumerate(table.propensities.items()):
        if crossed != table.propensity:  # that of an only logger is checked above
            listed += _range_rules(f"p_{k}", f"the {scale} under logger {label!r}", table)
    for k, label in enumerate(table.targets):
        listed += _range_rules(f"t_{k}", f"the {scale} of target {label!r}", table)
    if table.propensities and table.propensity is not None:
        listed.append(_replay_rule(table))
    if table.mixture is not None:
        mixture, what = column("estimated_mixture"), f"the {scale} under the mixture"
        listed += _probability_rules(mixture, what, "estimated_mixture", table)
    for name in table.predictions:
        kind = "reward" if name == "predicted_reward" else "value"
        listed += _number_rules(name, f"predicted {kind}")
    return listed


def _missing(name: str) -> Expression:
    return column(name).is_(exp.null())


def _not_below(value: Expression, top: float) -> Expression:
    """Test for more, or NaN: databases order NaN above all numbers, or not at all."""
    return exp.Not(this=exp.paren(value <= number(top)))


def _number_rules(name: str, what: str) -> list[Rule]:
    infinite = _not_below(exp.func("abs", column(name)), LARGEST_DOUBLE)
    return [
        Rule(f"the {what} is null or not a number", _missing(name), (name,)),
        Rule(f"the {what} is infinite or NaN", infinite, (name,)),
    ]


def _probability_rules(
    prob: Expression, what: str, role: str, table: RoleColumns
) -> list[Rule]:
    """Return rules for NULL, NaN, too small and too large: different mistakes."""
    high, low = table.top, -LARGEST_DOUBLE if table.log_probabilities else 0.0
    too_low = f"{what} is -infinity" if table.log_probabilities else f"{what} is 0 or negative"
    below = prob < number(low) if table.log_probabilities else prob <= number(low)
    nan = _not_below(exp.func("abs", prob.copy()), LARGEST_DOUBLE)
    over = exp.and_(prob.copy() > number(high), prob.copy() <= number(LARGEST_DOUBLE))
    is_nan = exp.and_(nan, exp.Not(this=prob.copy() < number(low)))
    null: Expression = prob.copy().is_(exp.null())
    if table.propensity is None:  # an unknown logger has none, and is reported as unknown
        null = exp.and_(null, column("logger").isin(*map(string, table.labels)))
    listed = [
        Rule(f"{what} is null or not a number", null, (role,)),
        Rule(f"{what} is infinite or NaN", is_nan, (role,)),
        Rule(too_low, below, (role,), prob),
        Rule(f"{what} is above {high:g}", over, (role,), prob),
    ]
    return listed[:3] if table.densities else listed


def _range_rules(name: str, what: str, table: RoleColumns) -> list[Rule]:
    outside = _not_below(column(name), table.top)
    if table.log_probabilities:  # -infinity is a probability of zero
        fault = "is infinite or NaN" if table.densities else "is above 0 or NaN"
    else:
        outside = exp.or_(column(name) < number(0.0), outside)
        fault = "is negative, infinite or NaN" if table.densities else "is outside [0, 1]"
    return [
        Rule(f"{what} is null or not a number", _missing(name), (name,)),
        Rule(f"{what} {fault}", outside, (name,), column(name)),
    ]


def _replay_rule(table: RoleColumns) -> Rule:
    mine, its_own = column("propensity"), own(table)
    # other rules report infinities and NaN; but -infinity is the logarithm of 0, which is valid
    bounded = its_own.copy() if table.log_probabilities else exp.func("abs", its_own.copy())
    known = [p <= number(LARGEST_DOUBLE) for p in (exp.func("abs", mine.copy()), bounded)]
    gap = exp.func("abs", exp.paren(mine - its_own))
    differs = exp.and_(gap > number(table.tolerance), *known)
    return Rule(
        f"the logged propensity is not that of its logger (they differ by more than "
        f"{table.tolerance:g})",
        differs,
        ("propensity", "own"),
    )


def good(table: RoleColumns) -> Expression:
    """Return a condition that holds for rows that keep every rule."""
    top, bottom = table.top, -LARGEST_DOUBLE if table.log_probabilities else 0.0
    mine = propensity(table)
    above = mine >= number(bottom) if table.log_probabilities else mine > number(bottom)
    keep: list[Expression] = [
        exp.func("abs", column("reward")) <= number(LARGEST_DOUBLE),
        above,
        mine.copy() <= number(top),
    ]
    for name in table.numbers:
        if name.startswith(("p_", "t_")):
            keep += [] if table.log_probabilities else [column(name) >= number(0.0)]
            keep.append(column(name) <= number(top))
    if table.propensities and table.propensity is not None:
        gap = exp.func("abs", exp.paren(column("propensity") - own(table)))
        keep.append(gap <= number(table.tolerance))
    keep += [exp.func("abs", column(n)) <= number(LARGEST_DOUBLE) for n in table.predictions]
    if table.mixture is not None:
        mixed = column("estimated_mixture")
        keep += [mixed > number(bottom), mixed.copy() <= number(top)]
    if table.labels and (not table.propensities or table.mixture is not None):
        keep.append(column("logger").isin(*map(string, table.labels)))
    if not table.labels:
        keep.append(exp.Not(this=column("logger").is_(exp.null())))
    if table.cluster is not None:
        keep.append(column("no_cluster") <= number(0.0))
    if table.period is not None:
        keep.append(exp.Not(this=_missing("period")))
    return exp.func("coalesce", exp.and_(*keep), exp.false())


def check_query(table: RoleColumns) -> exp.Select:
    """Return the query that counts the rows of each logger that break each rule."""
    select = exp.select(column("logger"), exp.Count(this=exp.Star()).as_("rows", quoted=True))
    for place, rule in enumerate(rules(table)):
        select = select.select(count_where(rule.broken).as_(f"rule_{place}", quoted=True))
    query = select.from_("rows").group_by(column("logger"))
    return query.with_("rows", as_=rows(table))


def example_query(table: RoleColumns, rule: Rule, logger: str | None) -> exp.Select:
    """Select one row of a logger that breaks a rule."""
    broken = exp.func("coalesce", rule.broken.copy(), exp.false())  # docs/decisions/0012
    query = exp.select("*").from_("rows").where(broken).limit(1)
    same = _missing("logger") if logger is None else column("logger").eq(string(logger))
    select = query.where(same)
    if table.propensities:
        select = select.select(own(table).as_("own", quoted=True))
    raw = [
        exp.cast(table.roles[role].copy(), "varchar").as_(f"raw_{role}", quoted=True)
        for role in rule.role
        if role in table.roles
    ]
    return select.with_("rows", as_=rows(table).select(*raw))


def range_query(table: RoleColumns, value: Expression) -> exp.Select:
    """Select the smallest and the largest value of a number of `rows`."""
    least, most = (exp.func(f, value.copy()).as_(f, quoted=True) for f in ("min", "max"))
    return exp.select(least, most).from_("rows").with_("rows", as_=rows(table))


def role_text(table: RoleColumns, role: str) -> str:
    """Return the user's name of a column of `rows`."""
    if role == "own":
        return "its logger's own"
    expression = table.roles.get(role)
    if expression is None:
        return role
    if isinstance(expression, exp.Dot):  # the field of a struct
        return ".".join(part.name for part in expression.find_all(exp.Identifier, bfs=False))
    plain = isinstance(expression, exp.Column)
    return expression.name if plain else expression.sql(dialect="duckdb")


def string(text: str) -> Expression:
    """Return text, quoted."""
    return exp.Literal.string(text)


def count_where(condition: Expression) -> Expression:
    """Count the rows for which a condition holds, in every dialect."""
    return exp.Count(this=exp.Case().when(condition, exp.Literal.number(1)))
