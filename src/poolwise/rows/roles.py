"""Roles: names of columns and policies become the expressions that a query reads.

All names are looked up here, so that all missing columns are reported together,
each with the nearest name that exists.  Policies that SQL cannot express become
columns that are scored in Python first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, TypedDict

from sqlglot import exp

from poolwise.errors import MissingColumnError, UsageError
from poolwise.log.log import ONLY_LOGGER, Log
from poolwise.log.policies import Mixture, as_policy
from poolwise.log.policy import Column, Policy, expression_of
from poolwise.log.policy import Expression as SqlText
from poolwise.rows.learn import NOTHING, Extra
from poolwise.rows.rules import RoleColumns, column, number, string

if TYPE_CHECKING:
    from sqlglot.expressions import Expr as Expression

    from poolwise.log.policy import PolicyLike

PART_LOGGER = "poolwise_logger"  # column that says which part of a mapping a row is from


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
    missing: dict[str, str] = field(default_factory=dict)
    needed: dict[str, None] = field(default_factory=dict)
    scored: dict[str, Policy] = field(default_factory=dict)
    logs: bool = False

    def require(self, name: str, role: str) -> str:
        """The column as the source spells it; DuckDB's names ignore case."""
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

    def value(self, wanted: PolicyLike, role: str) -> Expression:
        policy = as_policy(wanted, self.columns or ())
        expression = expression_of(policy)
        if self.logs and not isinstance(wanted, str):
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
    look = _Lookup(columns, logs=log.log_probabilities)
    known = {str(label): value for label, value in (log.propensities or {}).items()}
    usable = log.crossed or extra.mixture
    crossed = {k: v for k, v in known.items() if v is not None} if usable else {}
    table = RoleColumns(
        relation=relation,
        logger=_logger(log, look),
        reward=look.value(log.reward, "reward"),
        propensity=None if log.propensity is None else look.value(log.propensity, "propensity"),
        propensities={k: look.value(v, f"propensities[{k!r}]") for k, v in crossed.items()},
        targets={k: look.value(v, f"target {k!r}") for k, v in targets.items()},
        labels=tuple(known) or _mapped_labels(log),
        log_probabilities=log.log_probabilities,
        cluster=None if log.cluster is None else look.value(log.cluster, "cluster"),
        tolerance=log.replay_tolerance,
        drop=log.on_fault == "drop",
        **_beyond(extra, look),
    )
    taken = tuple(look.needed)  # a model that saw the reward or the logger would cheat
    action, context = _context(log, look, extra)
    features = tuple(c for c in context if log.context or c not in taken)
    if look.missing:
        raise MissingColumnError(look.missing, [c for c in columns or () if c != PART_LOGGER])
    every = tuple(columns or ())
    needed = tuple(look.needed)
    return Roles(table, look.scored, needed, taken, action, context, features, every)


class _Beyond(TypedDict):
    predicted_reward: Expression | None
    predicted_values: Mapping[str, Expression]
    mixture: Expression | None


def _beyond(extra: Extra, look: _Lookup) -> _Beyond:
    """Columns of a model or an estimated mixture; learners fill theirs later."""

    def found(text: str, role: str) -> Expression:
        return column(text) if text in extra.filled else look.value(text, role)

    predicted, values = extra.predicted_reward, extra.predicted_values.items()
    return {
        "predicted_reward": found(predicted, "predicted_reward") if predicted else None,
        "predicted_values": {k: found(v, f"predicted_value[{k!r}]") for k, v in values},
        "mixture": found(extra.mixture, "mixture") if extra.mixture else None,
    }


def _logarithm(policy: Policy) -> Expression | None:
    """The logarithm of a policy; columns of the log are logarithms already."""
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
        labels = list(log.propensities or {ONLY_LOGGER: None})
        return string(str(labels[0]))
    return look.value(log.logger, "logger")


def _mapped_labels(log: Log) -> tuple[str, ...]:
    return tuple(map(str, log.source)) if isinstance(log.source, Mapping) else ()


def _context(log: Log, look: _Lookup, extra: Extra) -> tuple[str, tuple[str, ...]]:
    """Action and context for policies in Python; by default all other columns."""
    action = "" if log.action is None else look.require(log.action, "action")
    context = tuple(look.require(name, "context") for name in log.context)
    if not (look.scored or extra.learners):
        return "", ()
    if not action:
        named = {type(policy).__name__ for policy in look.scored.values()}
        listed = ", ".join(sorted(named | {learner.name for learner in extra.learners}))
        raise UsageError(
            f"name the column `action`: policies and models in Python ({listed}) need it"
        )
    if not context:
        context = tuple(c for c in look.columns or () if c not in {action, PART_LOGGER})
    return action, context
