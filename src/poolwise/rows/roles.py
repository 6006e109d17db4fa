"""Roles: names of columns and policies become the expressions that a query reads.

All names are looked up here, so that all missing columns are reported together,
each with the nearest name that exists.  Policies that SQL cannot express become
columns that are scored in Python first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from sqlglot import exp

from poolwise.errors import MissingColumnError, UsageError
from poolwise.log.adapters import Mixture, as_policy
from poolwise.log.densities import DISCRETE, is_discrete
from poolwise.log.eligible import restricted
from poolwise.log.log import ONLY_LOGGER, PART_LOGGER, Log
from poolwise.log.policy import Column, Policy, expression_of
from poolwise.log.policy import Expression as SqlText
from poolwise.rows.learners import NOTHING
from poolwise.rows.rules import RoleColumns, Scale, column, number, string

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlglot.expressions import Expr as Expression

    from poolwise.log.policy import PolicyLike
    from poolwise.rows.learners import Extra


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
        fields: Fields of structs that the policies read, by their names with dots.
    """

    table: RoleColumns
    scored: Mapping[str, Policy]
    needed: tuple[str, ...]
    queried: tuple[str, ...]
    action: str = ""
    context: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    fields: Mapping[str, Expression] = field(default_factory=dict)

    @property
    def read(self) -> list[str]:
        """Columns of the source that the query, the policies or models read."""
        return list(dict.fromkeys([*self.needed, *self.context]))

    def selected(self, names: Iterable[str]) -> list[Expression]:
        """Return columns of the source, and fields of structs under their names with dots."""
        return [
            self.fields[name].as_(name, quoted=True) if name in self.fields else column(name)
            for name in names
        ]


@dataclass
class _Lookup:
    """Collects missing and needed columns while names are resolved."""

    columns: Sequence[str] | None
    log: Log
    filled: Sequence[str]  # columns that learners append later
    missing: dict[str, str] = field(default_factory=dict)
    needed: dict[str, None] = field(default_factory=dict)
    scored: dict[str, Policy] = field(default_factory=dict)
    fields: dict[str, Expression] = field(default_factory=dict)

    def require(self, name: str, role: str) -> str:
        """Return the column as the source spells it; DuckDB's names ignore case."""
        found = self._spelled(name)
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

    def _spelled(self, name: str) -> str | None:
        """Return the column that a name means; None if there is none."""
        spelled = {c.lower(): c for c in self.columns or (name,)}
        return name if name in (self.columns or ()) else spelled.get(name.lower())

    def optional(self, wanted: PolicyLike | None, role: str) -> Expression | None:
        return None if wanted is None else self.value(wanted, role)

    def value(self, wanted: PolicyLike, role: str) -> Expression:
        if isinstance(wanted, str) and wanted in self.filled:
            return column(wanted)
        policy = restricted(as_policy(wanted, self.columns or (), role), self.log.eligible)
        if self.log.densities and is_discrete(policy):
            raise UsageError(f"{role}: {DISCRETE}")
        expression = expression_of(policy)
        if self.log.log_probabilities and not isinstance(wanted, str):
            expression = _logarithm(policy)
        listed = isinstance(policy, Column | SqlText | Mixture)
        if self.log.requests is not None and (expression is None or not listed):
            raise UsageError(
                f"{role}: a policy of a log with requests must be a column, which holds the "
                "probability of a list: score policies in Python first, and give their columns "
                "to ranking_log"
            )
        if expression is None:
            name = role  # an error of the policy then says which one it is
            self.scored[name] = policy
            return column(name)
        return expression.copy().transform(self._found, role)

    def _found(self, node: Expression, role: str) -> Expression:
        """Return a column as the source spells it, or the field of a struct."""
        if not isinstance(node, exp.Column):
            return node
        name = ".".join(part.name for part in node.parts)
        if node.table and self.columns is not None:
            fields = self._fields(name)
            if fields is not None:
                self.needed |= {column.name: None for column in fields.find_all(exp.Column)}
                return fields
            if self._spelled(node.name) is None:
                self.missing.setdefault(name, role)
                return node
        spelled = self.require(node.name, role)
        if spelled != node.name:  # quoted names are case-sensitive in databases
            node.set("this", exp.to_identifier(spelled, quoted=True))
        return node

    def named(self, name: str, role: str) -> str:
        """Return the name by which policies read a column or the field of a struct."""
        fields = None if self._spelled(name) else self._fields(name)
        if fields is None:
            return self.require(name, role)
        self.fields[name] = fields
        self.needed[name] = None
        return name

    def label(self, name: str | None, role: str) -> Expression | None:
        """Return a column or the field of a struct, as a query reads it."""
        if name is None:
            return None
        spelled = self.named(name, role)
        return self.fields[spelled] if spelled in self.fields else column(spelled)

    def _fields(self, name: str) -> Expression | None:
        """Return a column whose name has dots, or a field of a struct; None without either."""
        if name in (self.columns or ()):
            return column(name)
        first, *fields = name.split(".")
        struct = self._spelled(first)
        if struct is None or not fields:
            return None
        value: Expression = exp.paren(column(struct))
        for part in fields:
            value = exp.Dot(this=value, expression=exp.to_identifier(part, quoted=True))
        return value


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
    table = _table(log, targets, relation, extra, look)
    taken = tuple(look.needed)  # a model that saw the reward or the logger would cheat
    if extra.segment is not None:  # a model may see it
        table = replace(table, period=look.value(extra.segment, "by"), period_kind="segment")
    queried = tuple(look.needed)
    action, context = _context(log, look, extra)
    taken_too = {*(() if log.context else taken), log.eligible}
    features = tuple(c for c in context if c not in taken_too)
    if look.missing:
        raise MissingColumnError(look.missing, [c for c in columns or () if c != PART_LOGGER])
    needed, all_columns = tuple(look.needed), tuple(columns or ())
    return Roles(
        table, look.scored, needed, queried, action, context, features, all_columns, look.fields
    )


def _table(
    log: Log,
    targets: Mapping[str, PolicyLike],
    relation: Expression,
    extra: Extra,
    look: _Lookup,
) -> RoleColumns:
    """Return the expression of each role."""
    logger, reward = _logger(log, look), look.value(log.reward, "reward")
    own = look.optional(log.propensity, "propensity")
    pairs = log.by_label.items() if log.crossed or extra.mixture else ()
    probs = {k: look.value(v, f"propensities[{k!r}]") for k, v in pairs if v is not None}
    return RoleColumns(
        relation=relation,
        logger=logger,
        reward=reward,
        propensity=own,
        propensities=probs,
        targets={k: look.value(v, f"target {k!r}") for k, v in targets.items()},
        labels=tuple(
            log.by_label or (map(str, log.source) if isinstance(log.source, Mapping) else ())
        ),
        scale=Scale(log.log_probabilities, log.densities, log.replay_tolerance),
        cluster=look.optional(log.cluster, "cluster"),
        request=None
        if log.requests is None
        else column(look.require(log.requests.column, "requests")),
        period=look.optional(log.period, "period"),
        drop=log.on_fault == "drop",
        predicted_reward=look.optional(extra.predicted_reward, "predicted_reward"),
        predicted_values={
            k: look.value(v, f"predicted_value[{k!r}]")
            for k, v in extra.predicted_values.items()
        },
        mixture=look.optional(extra.mixture, "mixture"),
        action=look.label(log.action, "action") if is_audited(log) else None,
        eligible=look.label(log.eligible, "eligible") if is_audited(log) else None,
    )


def is_audited(log: Log) -> bool:
    """Test if the propensities of a log can be compared with frequencies of its actions.

    A density has no frequency, and the rows of a request share one draw.
    """
    return log.action is not None and not log.densities and log.requests is None


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
    action = "" if log.action is None else look.named(log.action, "action")
    named_columns = dict.fromkeys(log.context, "context")
    named_columns |= {} if log.eligible is None else {log.eligible: "eligible"}
    context = tuple(look.named(name, role) for name, role in named_columns.items())
    if not (look.scored or extra.readers):
        return "", ()
    if not action:
        named = {type(policy).__name__ for policy in look.scored.values()}
        listed = ", ".join(sorted({*named, *extra.readers}))
        raise UsageError(
            f"name the column `action`: policies and models in Python ({listed}) need it"
        )
    if not log.context:
        context = tuple(c for c in look.columns or () if c not in {action, PART_LOGGER})
    return action, context
