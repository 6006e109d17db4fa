"""Rules: the roles of a log under fixed names, and the rules that each row must keep.

`RULES` lists them once, by the role of a column.  One query counts the rows of each logger that
break each rule (`check_query`).  The query of the moments carries all rules as one condition
(`good`), so that a good log is read once and a bad one is never averaged.  A layout hands their
limits to the kernel and to the mask over batches (`rows.reader.good_rows`).
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from sqlglot import exp

from poolwise.rows.entries import EXCESS, REFERENCES, as_written, list_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sqlglot.expressions import Expr as Expression

LARGEST_DOUBLE, SMALLEST_DOUBLE = sys.float_info.max, 5e-324  # both positive
UNKNOWN, EXCLUDED = -1, -2  # codes of rows that belong to no logger or cell of a layout
PeriodKind = Literal["period", "segment"]
NUMBERED = re.compile(r"^([ptvmr])_\d+$")  # columns of a role that there may be several of
OWN, GAP = "own", "gap"  # probability under the row's own logger, and the logged one less it


@dataclass(frozen=True)
class Scale:
    """The way in which a log writes its probabilities.

    Attributes:
        logs: Probabilities are given as natural logarithms.
        densities: Probabilities are densities, which may be above 1.
        tolerance: How far a logged propensity may be from the cross-propensity of its logger.
    """

    logs: bool = False
    densities: bool = False
    tolerance: float = 1e-6

    @property
    def top(self) -> float:
        """Largest probability, density or logarithm."""
        return LARGEST_DOUBLE if self.densities else 0.0 if self.logs else 1.0

    @property
    def word(self) -> str:
        """The word for one of them in messages."""
        return f"{'log-' * self.logs}{'density' if self.densities else 'probability'}"


class RuleLimits(NamedTuple):
    """Least and largest value, both included, and how messages call a value outside of them.

    Attributes:
        low: Least value.
        top: Largest value.
        faults: Message of each way to break a rule, in the order in which they are reported;
            `_condition` tests for it.
    """

    low: float
    top: float
    faults: Mapping[str, str]


NULL, INFINITE = "is null or not a number", "is infinite or NaN"


def _label_limits(_: Scale) -> RuleLimits:
    return RuleLimits(-math.inf, math.inf, {"null": "is null", "unknown": "is unknown"})


def _finite_limits(_: Scale) -> RuleLimits:
    return RuleLimits(-LARGEST_DOUBLE, LARGEST_DOUBLE, {"null": NULL, "infinite": INFINITE})


def _probability(scale: Scale) -> RuleLimits:
    if scale.logs:  # -infinity is a probability of zero
        low, outside = -math.inf, INFINITE if scale.densities else "is above 0 or NaN"
    else:
        low = 0.0
        outside = "is negative, infinite or NaN" if scale.densities else "is outside [0, 1]"
    return RuleLimits(low, scale.top, {"null": NULL, "outside": outside})


def _positive_limits(scale: Scale) -> RuleLimits:
    """Return the limits of a divisor; each way to break them is a different mistake."""
    low, below = SMALLEST_DOUBLE, "is 0 or negative"
    if scale.logs:
        low, below = -LARGEST_DOUBLE, "is -infinity"
    faults = {"null": NULL, "infinite": INFINITE, "below": below}
    above = {} if scale.densities else {"above": f"is above {scale.top:g}"}
    return RuleLimits(low, scale.top, faults | above)


def _small(scale: Scale) -> RuleLimits:
    most = scale.tolerance
    text = f"is not that of its logger (they differ by more than {most:g})"
    return RuleLimits(-most, most, {"differs": text})


# What a message calls each role, and its limits, in the order in which faults are reported.
RULES: Mapping[str, tuple[str, Callable[[Scale], RuleLimits]]] = {
    "logger": ("the logger", _label_limits),
    "period": ("the {kind}", _label_limits),
    "cluster": ("the cluster", _label_limits),
    "reward": ("the reward", _finite_limits),
    "m": ("the metric {label!r}", _finite_limits),
    "propensity": ("the {log}propensity", _positive_limits),
    "p": ("the {scale} under logger {label!r}", _probability),
    "t": ("the {scale} of target {label!r}", _probability),
    GAP: ("the logged propensity", _small),
    "estimated_mixture": ("the {scale} under the mixture", _positive_limits),
    "v": ("the predicted value", _finite_limits),
    "predicted_reward": ("the predicted reward", _finite_limits),
    "r": ("the predicted reward of {label!r}", _finite_limits),
}
# Faults of the distribution that a probability is an entry of.
ENTRIES = {
    "lacking": "has no entry, and the other entries do not sum to 1",
    "spoilt": "is from numbers that are not a distribution: one is NULL, NaN or negative, "
    f"lists differ in length, or the sum is above {1 + EXCESS:g}",
}
REMEDIES = {
    "lacking": "If an action without an entry has probability 0, write coalesce({name}, 0) in "
    "place of the column. ",
    "spoilt": "Check that {name} holds probabilities, not scores. ",
}
LABELS = frozenset(role for role, (_, limits) in RULES.items() if limits is _label_limits)


@dataclass(frozen=True)
class Rule:
    """A rule that each row must keep: a value is known and within limits.

    Attributes:
        value: Column of `rows`, or `OWN` or `GAP`, which follow from columns.
        what: The value in a message, without the names that a log gives.
        limits: Its limits.
    """

    value: str
    what: str
    limits: RuleLimits


def rules(columns: Iterable[str], scale: Scale) -> list[Rule]:
    """List the rules for rows with these columns, in the order in which they are reported."""
    values = {name: NUMBERED.sub(r"\1", name) for name in columns}
    if "propensity" not in values:
        values[OWN] = "propensity"
    elif "p" in values.values():
        values[GAP] = GAP
    return [
        Rule(value, what, limits(scale))
        for role, (what, limits) in RULES.items()
        for value in values
        if values[value] == role
    ]


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
        live: Loggers whose probability is missing in periods in which they wrote no rows; it
            counts as 0 there.
        targets: Probability under each target.
        labels: Loggers that may occur; empty where any may.
        cluster: Unit whose rows belong together.
        request: Request that the row belongs to, if values are those of requests.
        period: Period in which the row was logged, if loggers change over time, or its segment.
        period_kind: Which of the two; the mixture of a segment is that of its own rows.
        bucket: Integer that splits each logger's rows into groups, if wanted.
        scale: How probabilities are written.
        drop: Leave bad rows out instead of counting them.
        measures: Other columns that are used as the reward, by their text.
        predicted_reward: Predicted reward of the logged action, if there is a reward model.
        predicted_values: Predicted value of each target.
        measure_values: The same for each of the measures, if there is a model of each.
        measure_rewards: Predicted reward of each of the measures, likewise.
        mixture: Probability under the mixture where it was estimated; None where it
            follows from `propensities`.
        action: Logged action, if its propensities are audited.
        eligible: List of the actions that the row could play, likewise.
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
    period_kind: PeriodKind = "period"
    bucket: Expression | None = None
    scale: Scale = field(default_factory=Scale)
    drop: bool = False
    measures: Mapping[str, Expression] = field(default_factory=dict)
    predicted_reward: Expression | None = None
    predicted_values: Mapping[str, Expression] = field(default_factory=dict)
    measure_values: tuple[Expression, ...] = ()
    measure_rewards: tuple[Expression, ...] = ()
    mixture: Expression | None = None
    action: Expression | None = None
    eligible: Expression | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    live: tuple[str, ...] = ()

    @property
    def predictions(self) -> dict[str, Expression]:
        """Expressions of the reward model, by their names in `rows`."""
        every = (*self.predicted_values.values(), *self.measure_values)
        values = {f"v_{k}": v for k, v in enumerate(every)}
        values |= {f"r_{k}": v for k, v in enumerate(self.measure_rewards)}
        if self.predicted_reward is not None:
            values["predicted_reward"] = self.predicted_reward
        return values

    @property
    def policies(self) -> dict[str, str]:
        """Loggers, targets and measures, by their columns in `rows`."""
        loggers = {f"p_{k}": label for k, label in enumerate(self.propensities)}
        measures = {f"{c}_{k}": text for c in "mr" for k, text in enumerate(self.measures)}
        return loggers | {f"t_{k}": name for k, name in enumerate(self.targets)} | measures

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
            **{f"m_{k}": value for k, value in enumerate(self.measures.values())},
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def roles(self) -> dict[str, Expression]:
        """Expressions of labels and numbers, by name."""
        labels = {"logger": self.logger, "cluster": self.cluster, "period": self.period}
        return self.numbers | {name: v for name, v in labels.items() if v is not None}


class Breach(NamedTuple):
    """A way to break a rule.

    Attributes:
        text: The fault of a row.
        broken: Condition that is true of the rows with this fault.
        shown: Columns of `rows` worth showing in an example.
        scaled: Number that may be on another scale, such as percentages.
        advice: Remedy of this fault alone.
    """

    text: str
    broken: Expression
    shown: tuple[str, ...]
    scaled: Expression | None = None
    advice: str = ""


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


def checked_rows(table: RoleColumns) -> exp.Select:
    """Select the rows, and what is wrong with the distributions of their probabilities."""
    ways = {
        f"{way}_{role}": case(_entry_fault(way, value), number(1.0), number(0.0))
        for role, value in table.numbers.items()
        if _has_entries(role, table)
        for way in ENTRIES
    }
    query = rows(table).select(*(value.as_(name, quoted=True) for name, value in ways.items()))
    if not ways or table.action is None:
        return query
    return query.select(exp.cast(table.action.copy(), "varchar").as_("action", quoted=True))


def _entry_fault(way: str, value: Expression) -> Expression:
    """Return the condition of a fault of the distributions in an expression."""
    found = [e.is_lacking if way == "lacking" else e.is_spoilt for e in list_entries(value)]
    return exp.or_(*(exp.func("coalesce", broken, exp.false()) for broken in found))


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


def measured_by(table: RoleColumns, measure: str) -> RoleColumns:
    """Let a measure and the reward change places, so that the same rows are good."""
    swapped = {**table.measures, measure: table.reward}
    return replace(table, reward=table.measures[measure], measures=swapped)


def zero_missing(table: RoleColumns, loggers: tuple[str, ...]) -> RoleColumns:
    """Let missing probabilities of loggers that are not live count as 0."""
    probs = table.propensities
    zeros = {k: or_zero(probs[k], table.scale.logs) for k in loggers}
    return replace(table, propensities={**probs, **zeros}, live=loggers)


def mix_own(table: RoleColumns, logger: str) -> RoleColumns:
    """Let the propensity of an only logger be the mixture."""
    if table.propensity is None:
        return table
    return replace(table, propensities={logger: table.propensity}, labels=(logger,))


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


def breaches(table: RoleColumns) -> list[Breach]:
    """List the ways to break the rules of a table, in the order in which they are reported."""
    listed = []
    for rule in rules(table.roles, table.scale):
        if rule.value.startswith("p_") and table.roles[rule.value] == table.propensity:
            continue  # that of an only logger is reported as its propensity
        what = rule.what.format(
            scale=table.scale.word,
            log="log-" * table.scale.logs,
            kind=table.period_kind,
            label=table.policies.get(rule.value),
        )
        shown = {OWN: ("propensity",), GAP: ("propensity", OWN)}.get(rule.value, (rule.value,))
        faults = rule.limits.faults
        if _has_entries(rule.value, table):
            faults, shown = {**ENTRIES, **faults}, (*shown, "action")
        for way, text in faults.items():
            if way == "unknown" and not (rule.value == "logger" and table.labels):
                continue
            scaled = _rule_value(rule, table) if way in {"below", "above", "outside"} else None
            broken = _condition(way, rule, table)
            advice = _entry_advice(way, table.roles.get(rule.value))
            listed.append(Breach(f"{what} {text}", broken, shown, scaled, advice))
    return listed


def _rule_value(rule: Rule, table: RoleColumns) -> Expression:
    if rule.value == GAP:
        return exp.paren(column("propensity") - own(table))
    return own(table) if rule.value == OWN else column(rule.value)


def _condition(way: str, rule: Rule, table: RoleColumns) -> Expression:
    """Return the condition of one way to break a rule."""
    broken = _own_condition(way, rule, table)
    if not _has_entries(rule.value, table):
        return broken
    lacking, spoilt = (column(f"{name}_{rule.value}") > number(0.0) for name in ENTRIES)
    if way == "spoilt":
        return spoilt
    absent = column(rule.value).is_(exp.null())
    short = exp.and_(exp.Not(this=exp.paren(spoilt.copy())), lacking, absent)
    if way == "lacking":
        return short
    return exp.and_(broken, *(exp.Not(this=exp.paren(other)) for other in (spoilt, short)))


def _entry_advice(way: str, value: Expression | None) -> str:
    """Return the remedy of a fault of a distribution; empty for other faults."""
    if value is None or way not in ENTRIES:
        return ""
    entry = next(list_entries(value))
    return REMEDIES[way].format(name=_show_expression(entry.column))


def _has_entries(name: str, table: RoleColumns) -> bool:
    """Test if a number is computed from entries of distributions."""
    return name in table.numbers and any(list_entries(table.numbers[name]))


def _own_condition(way: str, rule: Rule, table: RoleColumns) -> Expression:
    """Return the condition of a way that concerns the value of a row alone."""
    if way in ENTRIES:
        return exp.true()
    if way == "null":
        return _missing(rule.value, table)
    if way == "unknown":
        return exp.Not(this=column("logger").isin(*map(string, table.labels)))
    if way != "differs":
        return _exceed_limits(way, _rule_value(rule, table), rule.limits)
    mine, its_own = column("propensity"), own(table)
    # other rules report infinities and NaN; but -infinity is the logarithm of 0, which is valid
    known = its_own <= number(LARGEST_DOUBLE) if table.scale.logs else _is_finite(its_own)
    gap = exp.func("abs", _rule_value(rule, table))
    return exp.and_(gap > number(rule.limits.top), _is_finite(mine), known)


def _exceed_limits(way: str, value: Expression, limits: RuleLimits) -> Expression:
    """Return the condition of a number outside its limits, on one side or both."""
    low, top, faults = limits
    below = value <= number(0.0) if low == SMALLEST_DOUBLE else value < number(low)
    if way == "below":
        return below
    if way == "above":
        return exp.and_(value > number(top), value <= number(LARGEST_DOUBLE))
    if way == "infinite":
        infinite = exp.Not(this=exp.paren(_is_finite(value)))
        return exp.and_(infinite, exp.Not(this=below)) if "below" in faults else infinite
    # databases order NaN above all numbers, or not at all
    above = exp.Not(this=exp.paren(value <= number(top)))
    return above if low == -math.inf else exp.or_(below, above)


def _missing(name: str, table: RoleColumns) -> Expression:
    """Return the condition that a value is NULL."""
    if name == "cluster":
        return column("no_cluster") > number(0.0)
    if name != OWN:
        return column(name).is_(exp.null())
    # an unknown logger has none, and is reported as unknown
    known = column("logger").isin(*map(string, table.labels))
    return exp.and_(own(table).is_(exp.null()), known)


def _is_finite(value: Expression) -> Expression:
    return exp.func("abs", value.copy()) <= number(LARGEST_DOUBLE)


def good(table: RoleColumns) -> Expression:
    """Return a condition that holds for rows that keep every rule; numbers come first."""
    listed = rules(table.roles, table.scale)
    listed.sort(key=lambda rule: rule.value in LABELS)
    keep = [condition for rule in listed for condition in _keep_conditions(rule, table)]
    return exp.func("coalesce", exp.and_(*keep), exp.false())


def _keep_conditions(rule: Rule, table: RoleColumns) -> list[Expression]:
    """Return conditions that hold for rows that keep a rule; others are NULL or false."""
    if rule.value == "logger" and table.labels:
        # without an estimated mixture, an unknown logger has no cross-propensity
        implied = bool(table.propensities) and table.mixture is None
        return [] if implied else [column("logger").isin(*map(string, table.labels))]
    if rule.value in LABELS:
        return [exp.Not(this=_missing(rule.value, table))]
    (low, top, _), value = rule.limits, _rule_value(rule, table)
    if low == -top:
        return [exp.func("abs", value) <= number(top)]
    least = value > number(0.0) if low == SMALLEST_DOUBLE else value >= number(low)
    return [*([] if low == -math.inf else [least]), value.copy() <= number(top)]


def check_query(table: RoleColumns) -> exp.Select:
    """Return the query that counts the rows of each logger that break each rule."""
    select = exp.select(column("logger"), exp.Count(this=exp.Star()).as_("rows", quoted=True))
    for place, breach in enumerate(breaches(table)):
        select = select.select(count_where(breach.broken).as_(f"rule_{place}", quoted=True))
    query = select.from_("rows").group_by(column("logger"))
    return query.with_("rows", as_=checked_rows(table))


def example_query(table: RoleColumns, breach: Breach, logger: str | None) -> exp.Select:
    """Select one row of a logger that breaks a rule."""
    broken = exp.func("coalesce", breach.broken.copy(), exp.false())  # docs/decisions/0012
    query = exp.select("*").from_("rows").where(broken).limit(1)
    same = _missing("logger", table) if logger is None else column("logger").eq(string(logger))
    select = query.where(same)
    if table.propensities:
        select = select.select(own(table).as_(OWN, quoted=True))
    raw = [
        exp.cast(_raw(table.roles[role]), "varchar").as_(f"raw_{role}", quoted=True)
        for role in breach.shown
        if role in table.roles
    ]
    return select.with_("rows", as_=checked_rows(table).select(*raw))


def _raw(value: Expression) -> Expression:
    """Return the value of a role as the log has it: in place of an entry, the distribution."""
    written = as_written(value)
    return written if isinstance(written, REFERENCES) else value.copy()


def range_query(table: RoleColumns, value: Expression) -> exp.Select:
    """Select the smallest and the largest value of a number of `rows`."""
    least, most = (exp.func(f, value.copy()).as_(f, quoted=True) for f in ("min", "max"))
    return exp.select(least, most).from_("rows").with_("rows", as_=rows(table))


def role_text(table: RoleColumns, role: str) -> str:
    """Return the user's name of a column of `rows`."""
    if role == OWN:
        return "its logger's own"
    expression = table.action if role == "action" else table.roles.get(role)
    if expression is None:
        return role
    return _show_expression(as_written(expression))


def _show_expression(expression: Expression) -> str:
    """Return the text of an expression as the user writes it."""
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
