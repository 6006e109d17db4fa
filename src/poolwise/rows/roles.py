"""Roles: names of columns and policies become the expressions that a query reads.

All names are looked up here, so that all missing columns are reported together,
each with the nearest name that exists.  Policies that SQL cannot express become
columns that are scored in Python first.  A `Layout` names the columns of batches of rows.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np
from sqlglot import exp

from poolwise.errors import MissingColumnError, UsageError
from poolwise.log.densities import DISCRETE, is_discrete
from poolwise.log.eligible import restricted
from poolwise.log.log import ONLY_LOGGER, Log
from poolwise.log.policies import Mixture, as_policy
from poolwise.log.policy import Column, Policy, expression_of
from poolwise.log.policy import Expression as SqlText
from poolwise.moments.cells import Cell, periods_of
from poolwise.moments.tallies import slots_of
from poolwise.rows.periods import period_shares
from poolwise.rows.rules import RoleColumns, column, number, or_zero, string

if TYPE_CHECKING:
    from sqlglot.expressions import Expr as Expression

    from poolwise.log.policy import IntArray, PolicyLike
    from poolwise.rows.learn import Learner

PART_LOGGER = "poolwise_logger"  # column that says which part of a mapping a row is from
UNKNOWN, EXCLUDED = -1, -2  # codes of rows that belong to no logger or cell of a layout
LARGEST = sys.float_info.max
SMALLEST = float(np.nextafter(0.0, 1.0))  # positive double


@dataclass(frozen=True, eq=False)
class Extra:
    """Columns that are added to the log: a reward model, an estimated mixture.

    Attributes:
        predicted_reward: Column or SQL expression of the predicted reward, if any.
        predicted_values: Column or expression of each target's predicted value.
        mixture: Column of the estimated mixture, if it is estimated.
        learners: Models that fill such columns.
    """

    predicted_reward: str | None = None
    predicted_values: Mapping[str, str] = field(default_factory=dict)
    mixture: str | None = None
    learners: tuple[Learner, ...] = ()

    @property
    def filled(self) -> tuple[str, ...]:
        """Columns that the learners fill."""
        return tuple(name for learner in self.learners for name in learner.columns)


NOTHING: Extra = Extra()


@dataclass(frozen=True, eq=False)
class Roles:
    """A log whose names have been looked up.

    Attributes:
        table: Expressions of the query, once `scored` exist as columns.
        scored: Policies to score in Python, by the column that will hold the result.
        needed: Columns of the source that the query or the policies read.
        queried: Those among them that the query reads.
        action: Column of the logged action; empty where no policy needs it.
        context: Columns that the policies see.
        features: Those among them that a model may learn from: columns without a role.
        columns: All columns of the source.
    """

    table: RoleColumns
    scored: Mapping[str, Policy]
    needed: tuple[str, ...]
    queried: tuple[str, ...]
    action: str = ""
    context: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass
class _Lookup:
    """Collects missing and needed columns while names are resolved."""

    columns: Sequence[str] | None
    log: Log
    filled: Sequence[str]  # columns that learners append later
    missing: dict[str, str] = field(default_factory=dict)
    needed: dict[str, None] = field(default_factory=dict)
    scored: dict[str, Policy] = field(default_factory=dict)

    def require(self, name: str, role: str) -> str:
        """Return the column as the source spells it; DuckDB's names ignore case."""
        spelled = {c.lower(): c for c in self.columns or (name,)}
        found = name if name in (self.columns or ()) else spelled.get(name.lower())
        if found is None:
            self.missing.setdefault(name, role)
            return name
        twice = re.compile(re.escape(name) + r"_\d+")
        if found != name and any(map(twice.fullmatch, self.columns or ())):
            raise UsageError(
                f"{role}: columns {found!r} and {name!r} differ only in case, which DuckDB "
                "ignores: rename one"
            )
        self.needed[found] = None
        return found

    def optional(self, wanted: PolicyLike | None, role: str) -> Expression | None:
        return None if wanted is None else self.value(wanted, role)

    def value(self, wanted: PolicyLike, role: str) -> Expression:
        if isinstance(wanted, str) and wanted in self.filled:
            return column(wanted)
        policy = restricted(as_policy(wanted, self.columns or ()), self.log.eligible)
        if self.log.densities and is_discrete(policy):
            raise UsageError(f"{role}: {DISCRETE}")
        expression = expression_of(policy)
        if self.log.log_probabilities and not isinstance(wanted, str):
            expression = _logarithm(policy)
        if expression is None:
            name = role  # an error of the policy then says which one it is
            self.scored[name] = policy
            return column(name)
        expression = expression.copy()
        for node in list(expression.find_all(exp.Column)):
            spelled = self.require(node.name, role)
            if spelled != node.name:  # quoted names are case-sensitive in databases
                node.set("this", exp.to_identifier(spelled, quoted=True))
        return expression


def assign(
    log: Log,
    targets: Mapping[str, PolicyLike],
    columns: Sequence[str] | None,
    relation: Expression,
    extra: Extra = NOTHING,
) -> Roles:
    """Look up every name of a log; report all that are missing at once.

    Without `columns` no name is checked: the table cannot be read here.
    """
    if isinstance(log.propensities, str):
        raise UsageError(
            f"the pattern {log.propensities!r} requires the loggers of the rows, which a query "
            "without rows lacks: give `propensities` by label, as in {'v1': 'p_v1'}"
        )
    look = _Lookup(columns, log, extra.filled)
    logger, reward = _logger(log, look), look.value(log.reward, "reward")
    own = look.optional(log.propensity, "propensity")
    pairs = log.by_label.items() if log.mixed or extra.mixture else ()
    probs = {k: look.value(v, f"propensities[{k!r}]") for k, v in pairs if v is not None}
    probs |= {k: or_zero(probs[k], log.log_probabilities) for k in log.uncrossed(probs)}
    table = RoleColumns(
        relation=relation,
        logger=logger,
        reward=reward,
        propensity=own,
        propensities=probs,
        targets={k: look.value(v, f"target {k!r}") for k, v in targets.items()},
        labels=tuple(
            log.by_label or (map(str, log.source) if isinstance(log.source, Mapping) else ())
        ),
        log_probabilities=log.log_probabilities,
        densities=log.densities,
        cluster=look.optional(log.cluster, "cluster"),
        period=look.optional(log.period, "period"),
        tolerance=log.replay_tolerance,
        drop=log.on_fault == "drop",
        predicted_reward=look.optional(extra.predicted_reward, "predicted_reward"),
        predicted_values={
            k: look.value(v, f"predicted_value[{k!r}]")
            for k, v in extra.predicted_values.items()
        },
        mixture=look.optional(extra.mixture, "mixture"),
    )
    taken = tuple(look.needed)  # a model that saw the reward or the logger would cheat
    action, context = _context(log, look, extra)
    taken_too = {*(() if log.context else taken), log.eligible}
    features = tuple(c for c in context if c not in taken_too)
    if look.missing:
        raise MissingColumnError(look.missing, [c for c in columns or () if c != PART_LOGGER])
    needed, every = tuple(look.needed), tuple(columns or ())
    return Roles(table, look.scored, needed, taken, action, context, features, every)


def _logarithm(policy: Policy) -> Expression | None:
    """Return the logarithm of a policy; columns of the log are logarithms already."""
    if isinstance(policy, Column | SqlText):
        return expression_of(policy)
    if not isinstance(policy, Mixture):
        plain = expression_of(policy)
        return None if plain is None else exp.func("ln", plain)
    parts = [_logarithm(part) for part in policy.policies]
    known = [part for part in parts if part is not None]
    if len(known) == len(parts):
        mixed = [
            number(s) * exp.func("exp", p) for s, p in zip(policy.shares, known, strict=True)
        ]
        return exp.func("ln", reduce(add, mixed))
    if any(isinstance(part, Column | SqlText) for part in policy.policies):
        raise UsageError(
            "a mixture of log-probability columns with policies in Python cannot be scored: "
            "write the policies' probabilities as columns first"
        )
    return None


def _logger(log: Log, look: _Lookup) -> Expression:
    if isinstance(log.source, Mapping):
        look.needed[PART_LOGGER] = None
        return column(PART_LOGGER)
    if log.logger is None:
        labels = list(log.by_label or [ONLY_LOGGER])
        return string(labels[0])
    return look.value(log.logger, "logger")


def _context(log: Log, look: _Lookup, extra: Extra) -> tuple[str, tuple[str, ...]]:
    """Return action and context for policies in Python; by default all other columns."""
    action = "" if log.action is None else look.require(log.action, "action")
    named_columns = dict.fromkeys(log.context, "context")
    named_columns |= {} if log.eligible is None else {log.eligible: "eligible"}
    context = tuple(look.require(name, role) for name, role in named_columns.items())
    if not (look.scored or extra.learners):
        return "", ()
    if not action:
        named = {type(policy).__name__ for policy in look.scored.values()}
        listed = ", ".join(sorted(named | {learner.name for learner in extra.learners}))
        raise UsageError(
            f"name the column `action`: policies and models in Python ({listed}) need it"
        )
    if not log.context:
        context = tuple(c for c in look.columns or () if c not in {action, PART_LOGGER})
    return action, context


@dataclass(frozen=True)
class Layout:
    """Columns ``logger``, ``reward``, ``p_0``..., ``t_0``... and the rules of their rows.

    Attributes:
        loggers: Every logger, in the order in which their moments come.
        crossed: Loggers whose probability is known in every row, in the order of ``p_*``.
        shares: Share of each of `crossed` in the mixture.
        targets: Targets, in the order of ``t_*``.
        valued: Targets with a predicted value, in the order of ``v_*``.
        propensity: Whether there is a column ``propensity``.
        predicted: Whether there is a column ``predicted_reward``.
        mixture: Whether there is a column ``estimated_mixture``.
        logs: Whether probabilities are given as logarithms.
        top: Largest probability, density or logarithm.
        tolerance: How far ``propensity`` may be from the row's own ``p_*``.
        buckets: Into how many each logger's rows are split: by a column ``bucket`` or
            ``cluster``, or one by one.
        shuffled: Whether rows go to buckets by a hash of their number; there are at most
            `moments.tallies.SLOTS` of them.
        clustered: Whether there is a column ``cluster``, or ``bucket`` in its place.
        excluded: Loggers whose rows are left out.
        drop: Leave bad rows out instead of raising an error.
        periodic: Whether there is a column ``period``.
        cells: Cells whose rows are summed apart; empty where those of a logger are summed.
        period_shares: Share of each of `crossed` in the mixture of each period.
        segmented: Whether the mixture of a row is that of its own period.
    """

    loggers: tuple[str, ...]
    crossed: tuple[str, ...]
    shares: tuple[float, ...]
    targets: tuple[str, ...]
    valued: tuple[str, ...] = ()
    propensity: bool = True
    predicted: bool = False
    mixture: bool = False
    logs: bool = False
    top: float = 1.0
    tolerance: float = 1e-6
    buckets: int = 1
    shuffled: bool = False
    clustered: bool = False
    excluded: tuple[str, ...] = ()
    drop: bool = False
    periodic: bool = False
    cells: tuple[Cell, ...] = ()
    period_shares: tuple[tuple[float, ...], ...] = ()
    segmented: bool = False

    @property
    def strata(self) -> tuple[str, ...]:
        """Keys of the moments: the cells, or the loggers."""
        return self.cells or self.loggers

    @property
    def codes(self) -> dict[str | None, int]:
        """Number of each logger, and `EXCLUDED` for those that are left out."""
        numbers: dict[str | None, int] = {label: k for k, label in enumerate(self.loggers)}
        return numbers | dict.fromkeys(self.excluded, EXCLUDED)

    @cached_property
    def period_codes(self) -> dict[str | None, int]:
        """Number of each period of the cells."""
        return {period: k for k, period in enumerate(periods_of(self.cells))}

    @cached_property
    def cell_numbers(self) -> IntArray:
        """Number of the cell of each period and logger; the last line is of no period."""
        numbers = np.full((len(self.period_codes) + 1, len(self.loggers)), UNKNOWN)
        for k, cell in enumerate(self.cells):
            numbers[self.period_codes[cell.period], self.codes[cell.logger]] = k
        return numbers

    @property
    def groups(self) -> tuple[str, ...]:
        """The logger of each group of rows that is summed: bucket after bucket."""
        return tuple(c.logger for c in self.cells) * self.buckets or self.loggers * self.buckets

    @property
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
            *(f"v_{k}" for k in range(len(self.valued))),
            *(name for name, present in optional.items() if present),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns that a pass reads."""
        labels = {
            "cluster": self.clustered and (self.drop or self.buckets > 1),
            "period": bool(self.cells) or (self.periodic and self.drop),
        }
        return ("logger", *self.columns, *(name for name, read in labels.items() if read))

    def deal(self, numbers: IntArray) -> IntArray:
        """Return the buckets of rows with these numbers."""
        return (slots_of(numbers) if self.shuffled else numbers) % self.buckets

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """Least and largest value of each column: the rules of `rows.rules.good`."""
        low, positive = (-np.inf, -LARGEST) if self.logs else (0.0, SMALLEST)
        top = self.top
        limits = {}
        for name in self.columns:
            if name in {"propensity", "estimated_mixture"}:
                limits[name] = (positive, top)
            else:
                probability = name.startswith(("p_", "t_"))
                limits[name] = (low, top) if probability else (-LARGEST, LARGEST)
        return limits


def layout_of(
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
        propensity=table.propensity is not None,
        predicted=table.predicted_reward is not None,
        mixture=table.mixture is not None,
        logs=table.log_probabilities,
        top=table.top,
        tolerance=table.tolerance,
        clustered=table.cluster is not None,
        drop=table.drop,
        periodic=table.period is not None,
        cells=tuple(cells),
        period_shares=period_shares(cells, tuple(table.propensities)),
        segmented=table.segmented and bool(cells),
    )
