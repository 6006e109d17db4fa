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
from poolwise.log.action_groups import (
    ActionGroups,
    GroupEntries,
    group_policy,
    lacks_entries,
)
from poolwise.log.adapters import Mixture, as_policy
from poolwise.log.densities import DISCRETE, is_discrete
from poolwise.log.eligible import restrict_policy
from poolwise.log.log import ONLY_LOGGER, PART_LOGGER, Log, as_line
from poolwise.log.policy import Column, Policy, Values, find_expression
from poolwise.log.policy import Expression as SqlText
from poolwise.rows.entries import (
    KINDS,
    MARK,
    Entry,
    entry_expression,
    field_type,
    is_distribution_type,
    parsed_type,
    refuse_unusable,
    replace_distributions,
    whole_distribution,
)
from poolwise.rows.learners import MIXTURE, NO_EXTRA
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
        fields: Fields of structs that the policies read, by their names with dots, and lists
            of distributions.
        lists: Those of distributions whose entries are summed within groups.
        groups: The group of each action, if the log has `action_group`.
        known: The distributions that columns hold, by the role that one of them fills alone.
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
    lists: tuple[str, ...] = ()
    groups: ActionGroups | None = None
    known: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def read(self) -> list[str]:
        """Columns of the source that the query, the policies or models read."""
        return list(dict.fromkeys([*self.needed, *self.context]))

    @property
    def distributions(self) -> dict[str, Expression]:
        """Columns that hold the whole distribution of a logger, by label.

        The label of the propensity of the row's own logger is empty.
        """
        own = self.table.propensity
        given = {**({} if own is None else {"": own}), **self.table.propensities}
        found = {label: whole_distribution(value) for label, value in given.items()}
        return {label: node for label, node in found.items() if node is not None}

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
    types: Mapping[str, str] = field(default_factory=dict)  # of columns, in the dialect
    dialect: str = "duckdb"
    missing: dict[str, str] = field(default_factory=dict)
    needed: dict[str, None] = field(default_factory=dict)
    scored: dict[str, Policy] = field(default_factory=dict)
    fields: dict[str, Expression] = field(default_factory=dict)
    lists: dict[str, Expression] = field(default_factory=dict)  # of distributions
    hidden: dict[str, None] = field(default_factory=dict)  # columns that only `lists` read
    groups: ActionGroups | None = None
    entries: dict[str, Entry] = field(default_factory=dict)  # of whole roles

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

    def probability(self, wanted: PolicyLike, role: str) -> Expression:
        """Return the probability of the logged action; a distribution means its entry."""
        if self.groups is not None:
            return self._group_probability(wanted, role, self.groups)
        value = self.value(wanted, role)
        found = replace_distributions(value, lambda node: self._entry(node, role))
        if MARK in found.meta:
            self.entries[role] = found.meta[MARK]
        return found

    def _group_probability(
        self, wanted: PolicyLike, role: str, groups: ActionGroups
    ) -> Expression:
        """Return the probability of the group of the logged action."""
        needed = dict(self.needed)
        value = self.value(wanted, role)
        if role in self.scored:
            self.scored[role] = group_policy(self.scored[role], groups, role)
            return value
        # each of its columns must hold a distribution, whose lists are read in its place
        found = replace_distributions(value, lambda node: self._group_entry(node, role, groups))
        plain = {node.name for node in found.find_all(exp.Column)} - {*self.scored}
        if plain or isinstance(found, exp.Literal) or not found.find(exp.Column):
            raise lacks_entries(role, f"{as_line(wanted)!r} has")
        self.hidden |= {name: None for name in self.needed if name not in needed}
        self.needed = needed
        return found

    def _group_entry(
        self, node: Expression, role: str, groups: ActionGroups
    ) -> Expression | None:
        """Return the column of the sum over the group in a distribution; None for numbers."""
        marked = self._entry(node, role)
        if marked is None:
            return None
        entry: Entry = marked.meta[MARK]
        if node.parent is None:
            self.entries[role] = entry
        number, prefix = len(self.lists), "poolwise.list_"  # no name of a plain column
        texts = {**entry.lists, "total": exp.Case().when(entry.known.copy(), entry.total)}
        names = {key: f"{prefix}{number + k}" for k, key in enumerate(texts)}
        self.lists |= {names[key]: value.copy() for key, value in texts.items()}
        name = role if node.parent is None else f"{role} ({written_name(node)})"
        self.scored[name] = GroupEntries(names["k"], names["v"], names["total"], groups)
        return column(name)

    def optional_probability(self, wanted: PolicyLike | None, role: str) -> Expression | None:
        return None if wanted is None else self.probability(wanted, role)

    def _entry(self, node: Expression, role: str) -> Expression | None:
        """Return the entry of the logged action in a column or a cast; None for numbers."""
        kind, log = self._type(node), self.log
        if kind is None:
            return None
        lacks = {
            "densities": log.densities,
            "requests": log.requests is not None,
            "action": log.action is None,
            "eligible": KINDS[kind.this] == "list" and log.eligible is None,
        }
        if is_distribution_type(kind):
            refuse_unusable(kind, role, written_name(node), lacks)
        elif any(lacks.values()):  # the text of a number
            return None
        action, eligible = self._label_columns(log.action), self._label_columns(log.eligible)
        if action is None:
            raise ValueError("a distribution without an action")
        cast = isinstance(node, exp.Cast) and KINDS[kind.this] == "json"
        value = node.this if cast else node  # which the entry itself casts
        return entry_expression(
            value, kind, action, eligible, self.dialect, logs=log.log_probabilities
        )

    def _type(self, node: Expression) -> exp.DataType | None:
        """Return the type of a column, a field or a cast that may hold a distribution."""
        if isinstance(node, exp.Cast):
            return node.to if is_distribution_type(node.to) else None
        names = [part.name for part in node.find_all(exp.Identifier, bfs=False)]
        if not names or names[0] not in self.types:
            return None
        return field_type(parsed_type(self.types[names[0]], self.dialect), names[1:])

    def _label_columns(self, name: str | None) -> Expression | None:
        """Return a label as a query reads it, with its columns among those that are needed."""
        value = None if name is None else self.label(name, "action")
        if value is not None:
            self.needed |= {part.name: None for part in value.find_all(exp.Column)}
        return value

    def value(self, wanted: PolicyLike, role: str) -> Expression:
        if isinstance(wanted, str) and wanted in self.filled:
            return column(wanted)
        policy = restrict_policy(as_policy(wanted, self.columns or (), role), self.log.eligible)
        if isinstance(policy, Values):
            raise UsageError(
                f"{role}: values of type {type(policy.given).__name__} must be among the rows: "
                "add them as a column, and give its name"
            )
        if self.log.densities and is_discrete(policy):
            raise UsageError(f"{role}: {DISCRETE}")
        expression = find_expression(policy)
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
        if struct is None or not fields or not self._has_field(struct, fields):
            return None
        value: Expression = exp.paren(column(struct))
        for part in fields:
            value = exp.Dot(this=value, expression=exp.to_identifier(part, quoted=True))
        return value

    def _has_field(self, struct: str, names: Sequence[str]) -> bool:
        """Test if a column may have a field: the type of a struct says so, others do not."""
        kind = parsed_type(self.types.get(struct, ""), self.dialect)
        for name in names:
            if kind is None or KINDS.get(kind.this) != "struct":
                return True
            fields = {field.name.lower(): field.args.get("kind") for field in kind.expressions}
            if name.lower() not in fields:
                return False
            kind = fields[name.lower()]
        return True

    @property
    def available(self) -> list[str]:
        """Columns of the source; below a struct that a missing name begins with, its fields."""
        begun = {name.partition(".")[0].lower() for name in self.missing if "." in name}
        names: list[str] = []
        for name in self.columns or ():
            kind = parsed_type(self.types.get(name, ""), self.dialect)
            fields = kind.expressions if kind is not None and name.lower() in begun else ()
            names += [f"{name}.{field.name}" for field in fields] or [name]
        return [name for name in names if name != PART_LOGGER]


def assign(
    log: Log,
    targets: Mapping[str, PolicyLike],
    columns: Sequence[str] | Mapping[str, str] | None,
    relation: Expression,
    extra: Extra = NO_EXTRA,
    dialect: str = "duckdb",
) -> Roles:
    """Look up every name of a log; report all that are missing at once.

    Without `columns` no name is checked: the table cannot be read here.  With the types of
    the columns, a distribution means the entry of the logged action, in a dialect.
    """
    if isinstance(log.propensities, str) and not log.estimated:
        raise UsageError(
            f"the pattern {log.propensities!r} requires the loggers of the rows, which a query "
            "without rows lacks: give `propensities` by label, as in {'v1': 'p_v1'}"
        )
    types = columns if isinstance(columns, Mapping) else {}
    columns = None if columns is None else tuple(columns)
    look = _Lookup(columns, log, extra.filled, types, dialect)
    if isinstance(log.action_group, Mapping):
        look.groups = ActionGroups.read(log.action_group)
    table = _resolve_columns(log, targets, relation, extra, look)
    taken = (*look.needed, *look.hidden)  # a model that saw reward or logger would cheat
    if extra.segment is not None:  # a model may see it
        table = replace(table, period=look.value(extra.segment, "by"), period_kind="segment")
    queried = tuple(look.needed)
    action, context = _context(log, look, extra)
    taken_too = {*(() if log.context else taken), log.eligible}
    features = tuple(c for c in context if c not in taken_too)
    if look.missing:
        raise MissingColumnError(look.missing, look.available)
    needed, all_columns = (*look.needed, *look.lists), tuple(columns or ())
    places = (table, look.scored, needed, queried, action, context, features, all_columns)
    fields = {**look.fields, **look.lists}
    return Roles(*places, fields, tuple(look.lists), look.groups, look.entries)


def _resolve_columns(
    log: Log,
    targets: Mapping[str, PolicyLike],
    relation: Expression,
    extra: Extra,
    look: _Lookup,
) -> RoleColumns:
    """Return the expression of each role."""
    logger, reward = _logger(log, look), look.value(log.reward, "reward")
    filled = MIXTURE if log.estimated and MIXTURE in look.filled else None
    own = look.optional_probability(log.propensity or filled, "propensity")
    pairs = log.by_label.items() if log.crossed or extra.mixture else ()
    probs = {k: look.probability(v, f"propensities[{k!r}]") for k, v in pairs if v is not None}
    return RoleColumns(
        relation=relation,
        logger=logger,
        reward=reward,
        propensity=own,
        propensities=probs,
        targets={k: look.probability(v, f"target {k!r}") for k, v in targets.items()},
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
        measure_values=tuple(
            look.value(values[k], f"predicted_value[{k!r}]")
            for _, values in extra.predictions.values()
            for k in extra.predicted_values
        ),
        measure_rewards=tuple(
            look.value(logged, "predicted_reward") for logged, _ in extra.predictions.values()
        ),
        mixture=look.optional_probability(extra.mixture, "mixture"),
        measures={text: look.value(text, f"metric {text!r}") for text in extra.measures},
        action=look.label(log.action, "action") if is_audited(log) else None,
        eligible=look.label(log.eligible, "eligible") if is_audited(log) else None,
    )


def written_name(node: Expression) -> str:
    """Return the name of a column or of a field of a struct, as a log writes it."""
    if isinstance(node, exp.Cast):
        return str(node.sql(dialect="duckdb"))
    return ".".join(part.name for part in node.find_all(exp.Identifier, bfs=False))


def is_audited(log: Log) -> bool:
    """Test if the propensities of a log can be compared with frequencies of its actions.

    A density has no frequency, the rows of a request share one draw, and the propensities
    of groups are not those of actions.
    """
    grouped = log.action_group is not None
    return log.action is not None and not (log.densities or log.requests or grouped)


def _logarithm(policy: Policy) -> Expression | None:
    """Return the logarithm of a policy; columns of the log are logarithms already."""
    if isinstance(policy, Column | SqlText):
        return find_expression(policy)
    if not isinstance(policy, Mixture):
        plain = find_expression(policy)
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
        others = {action, PART_LOGGER, *look.hidden}
        context = tuple(c for c in look.columns or () if c not in others)
    return action, context
