"""Action groups: those of a column, and what targets play that no logger plays.

Where the distributions of a target and of all loggers are known, as columns or as policies
with a list of actions, the probability that the target plays what no logger plays is a sum
over rows, without any error.  Where only that of the target is known, what is in no row takes
the place of what no logger plays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from poolwise.errors import MissingColumnError, UsageError
from poolwise.log.action_groups import ENTRIES, ActionGroups, Unlogged
from poolwise.log.adapters import Table, as_policy
from poolwise.log.eligible import restrict_policy
from poolwise.log.log import PART_LOGGER, Log
from poolwise.log.policy import Distribution, Uniform, get_index, is_distribution
from poolwise.rows.score import to_batch

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Sequence

    import duckdb

    from poolwise.log.policy import PolicyLike
    from poolwise.rows.entries import Entry
    from poolwise.rows.roles import Roles
    from poolwise.types import AnyArray

SHOWN = 3  # actions with several groups that an error names
NAMED = 5  # unlogged actions that a finding names
READ_ROWS = 65_536
FIRST_LOOK = 100_000  # rows of a larger log that are looked at before all of them
MOST_DENSE = 1 << 31  # probabilities of policies in Python, of all rows together


def read_groups(
    connection: duckdb.DuckDBPyConnection, log: Log, columns: Collection[str]
) -> Log:
    """Return the log with the groups of its actions by action, if a column has them.

    Raises:
        UsageError: An action has several groups.
    """
    if not isinstance(log.action_group, str) or log.action is None:
        return log
    names = {"action": log.action, "action_group": log.action_group}
    spelled = {name.lower() for name in columns}
    missing = {
        name: role for role, name in names.items() if name.split(".")[0].lower() not in spelled
    }
    if missing:
        raise MissingColumnError(missing, [c for c in columns if c != PART_LOGGER])
    action, group = (_column(name, spelled).sql(dialect="duckdb") for name in names.values())
    found = connection.execute(
        f"SELECT {action}, min({group}), max({group}) FROM log "
        f"WHERE {action} IS NOT NULL AND {group} IS NOT NULL GROUP BY 1 ORDER BY 1"
    ).fetchall()
    several = [(a, low, high) for a, low, high in found if low != high]
    if several:
        listed = ", ".join(f"{a!r} ({low!r} and {high!r})" for a, low, high in several[:SHOWN])
        raise UsageError(
            f"`action_group` must give each action one group, and {len(several):,} of "
            f"{len(found):,} actions have several: {listed}"
        )
    return replace(log, action_group={a: group for a, group, _ in found} or {"": ""})


def _column(name: str, spelled: Collection[str]) -> exp.Expr:
    """Return a column, or the field of a struct, in quotes."""
    first, *fields = [name] if name.lower() in spelled else name.split(".")
    value: exp.Expr = exp.column(first, quoted=True)
    for part in fields:
        value = exp.Dot(this=exp.paren(value), expression=exp.to_identifier(part, quoted=True))
    return value


@dataclass(frozen=True, eq=False)
class Known:
    """A distribution that is known: a policy, or lists of keys and values per row.

    Attributes:
        policy: A policy with a list of actions.
        entry: The distribution in a column.
    """

    policy: Distribution | None = None
    entry: Entry | None = None

    @property
    def width(self) -> int:
        """Actions of a policy."""
        return 0 if self.policy is None else len(self.policy.actions)

    @property
    def constant(self) -> Mapping[Hashable, float] | None:
        """The probabilities of a policy that are the same in all rows."""
        if isinstance(self.policy, Uniform):
            return dict.fromkeys(self.policy.actions, 1 / len(self.policy.actions))
        table = isinstance(self.policy, Table) and self.policy.context is None
        return self.policy.probabilities if isinstance(self.policy, Table) and table else None


def find_unlogged(
    connection: duckdb.DuckDBPyConnection,
    roles: Roles,
    log: Log,
    targets: Mapping[str, PolicyLike],
) -> dict[str, Unlogged]:
    """Return what each target plays that no logger plays, where its distribution is known."""
    given = {name: (f"target {name!r}", target) for name, target in targets.items()}
    found = {name: _find_known(roles, log, *pair) for name, pair in given.items()}
    known = {name: part for name, part in found.items() if part is not None}
    if not known or log.action is None:
        return {}
    loggers = _find_loggers(roles, log)
    (total,) = connection.execute("SELECT count(*) FROM log").fetchall()[0]
    widest = sum(part.width for part in (*known.values(), *loggers))
    look = partial(_sum_unplayed, connection, roles, known, loggers)
    if not loggers or total * widest > MOST_DENSE:
        look = partial(_in_no_row, connection, roles, log.action, known)
    if total > FIRST_LOOK and not any(u.mass for u in look(FIRST_LOOK).values()):
        return {}
    return look(total)


def _find_known(roles: Roles, log: Log, role: str, given: PolicyLike | None) -> Known | None:
    """Return the distribution of a role; None where only a probability is known."""
    if role in roles.known:
        return Known(entry=roles.known[role])
    if role not in roles.scored or given is None:
        return None
    policy = restrict_policy(as_policy(given, roles.columns, role), log.eligible)
    numbered = isinstance(getattr(policy, "actions", None), range)
    return Known(policy) if is_distribution(policy) and not numbered else None


def _find_loggers(roles: Roles, log: Log) -> list[Known]:
    """Return the distributions of all loggers; none if one is not known."""
    given = {f"propensities[{i!r}]": policy for i, policy in log.by_label.items()}
    alone = not isinstance(log.source, Mapping) and log.logger is None
    if not given and alone:
        given = {"propensity": log.propensity}
    found = [_find_known(roles, log, role, policy) for role, policy in given.items()]
    known = [part for part in found if part is not None]
    return known if len(known) == len(found) else []


def _sum_unplayed(
    connection: duckdb.DuckDBPyConnection,
    roles: Roles,
    known: Mapping[str, Known],
    loggers: Sequence[Known],
    rows: int,
) -> dict[str, Unlogged]:
    """Return what each target plays in the first rows that no logger plays there."""
    codes = _Codes(roles.groups or ActionGroups({}))
    entries = [part.entry for part in (*known.values(), *loggers) if part.entry is not None]
    lists = {f"poolwise.{k}_{n}": e.lists[k] for n, e in enumerate(entries) for k in "kv"}
    place = {id(e): n for n, e in enumerate(entries)}
    policies = any(part.policy for part in (*known.values(), *loggers))
    read = [name for name in roles.read if policies and name not in roles.lists]
    fields = [*roles.selected(read), *(e.as_(n, quoted=True) for n, e in lists.items())]
    query = exp.select(*fields).from_("log").limit(rows).sql(dialect="duckdb")
    sums: dict[str, Counter[int]] = {name: Counter() for name in known}
    step = max(1, ENTRIES // max(1, *(part.width for part in (*known.values(), *loggers))))
    reader = connection.sql(query).to_arrow_reader(min(READ_ROWS, step))

    def read_entries(part: Known, lines: pa.RecordBatch) -> tuple[AnyArray, AnyArray, AnyArray]:
        if part.policy is not None:
            batch = to_batch(lines, roles.action, roles.context)
            matrix = part.policy.distribution(batch)
            row, place_ = np.nonzero(matrix)
            return row, codes.of_labels(part.policy.actions)[place_], matrix[row, place_]
        number = place[id(part.entry)]
        keys, values = (lines.column(f"poolwise.{k}_{number}") for k in "kv")
        size, given = _lengths(keys), _lengths(values)
        both = size == given  # no probabilities where a logger was not live
        keys, values = (part.filter(pa.array(both)) for part in (keys, values))
        row = np.repeat(np.flatnonzero(both), size[both])
        shares = np.nan_to_num(values.flatten().to_numpy(zero_copy_only=False))
        return row, codes.of_arrow(keys.flatten()), shares

    done = 0
    for lines in reader:
        parts = {name: read_entries(part, lines) for name, part in known.items()}
        played = [read_entries(part, lines) for part in loggers]
        wide = len(codes)
        pairs = np.concatenate([(row * wide + code)[p > 0] for row, code, p in played])
        for name, (row, code, p) in parts.items():
            new = (p > 0) & ~np.isin(row * wide + code, pairs, kind="sort")
            mass = np.bincount(code[new], p[new], wide)
            sums[name].update({k: mass[k] for k in np.flatnonzero(mass).tolist()})
        done += len(lines)
    groups = codes.groups
    return {
        name: _name_largest({groups[k]: s / done for k, s in part.items()}, certain=True)
        for name, part in sums.items()
    }


def _lengths(lists: pa.Array) -> AnyArray:
    """Return the number of values of each list; NULL has none."""
    return np.asarray(pc.fill_null(pc.list_value_length(lists), 0))


class _Codes:
    """Numbers of the groups of actions, in the order in which they are met."""

    def __init__(self, groups: ActionGroups) -> None:
        self._find = groups.find
        self._numbers: dict[Hashable, int] = {}
        self._kept: dict[int, AnyArray] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def groups(self) -> list[Hashable]:
        """Groups in the order of their numbers."""
        return list(self._numbers)

    def of_labels(self, actions: Sequence[Hashable]) -> AnyArray:
        """Return the number of each action of a policy."""
        if id(actions) not in self._kept:
            self._kept[id(actions)] = self._number(actions)
        return self._kept[id(actions)]

    def of_arrow(self, keys: pa.Array) -> AnyArray:
        """Return the number of each key."""
        encoded = keys.dictionary_encode()
        numbers = self._number(encoded.dictionary.to_pylist())
        return np.asarray(numbers[encoded.indices.to_numpy()])

    def _number(self, actions: Sequence[Hashable]) -> AnyArray:
        found = self._find(actions)
        numbers = [self._numbers.setdefault(group, len(self._numbers)) for group in found]
        return np.array(numbers, dtype=np.int64)


def _in_no_row(
    connection: duckdb.DuckDBPyConnection,
    roles: Roles,
    action: str,
    known: Mapping[str, Known],
    rows: int,
) -> dict[str, Unlogged]:
    """Return what each target plays in the first rows that is in no row of all."""
    text = _column(action, {name.lower() for name in roles.columns}).sql(dialect="duckdb")
    lines = connection.execute(f"SELECT DISTINCT {text} FROM log").fetchall()
    logged = [line[0] for line in lines if line[0] is not None]
    groups = roles.groups or ActionGroups({})
    seen = {*groups.find(logged)}
    found = {}
    for name, part in known.items():
        masses = _masses(connection, roles, part, logged, rows)
        sums: dict[Hashable, float] = {}
        for group, mass in zip(groups.find(masses), masses.values(), strict=True):
            if group not in seen and mass > 0:
                sums[group] = sums.get(group, 0.0) + mass
        found[name] = _name_largest(sums, certain=False)
    return found


def _masses(
    connection: duckdb.DuckDBPyConnection,
    roles: Roles,
    part: Known,
    logged: Sequence[Hashable],
    rows: int,
) -> Mapping[Hashable, float]:
    """Return the mean probability of actions, at least of those that are in no row."""
    if part.entry is not None:
        return _entry_masses(connection, part.entry, rows)
    constant, policy = part.constant, part.policy
    if constant is not None or policy is None:
        return constant or {}
    index = get_index(policy.actions, logged)
    places = np.setdiff1d(np.arange(len(policy.actions)), index[index >= 0])
    if not len(places):
        return {}
    read = [name for name in roles.read if name not in roles.lists]
    query = exp.select(*roles.selected(read)).from_("log").limit(rows).sql(dialect="duckdb")
    sums, done = np.zeros(len(places)), 0
    step = max(1, ENTRIES // len(policy.actions))
    for lines in connection.sql(query).to_arrow_reader(min(READ_ROWS, step)):
        batch = to_batch(lines, roles.action, roles.context)
        sums += policy.distribution(batch)[:, places].sum(axis=0)
        done += len(batch)
    actions = [policy.actions[k] for k in places.tolist()]
    return dict(zip(actions, (sums / max(1, done)).tolist(), strict=True))


def _entry_masses(
    connection: duckdb.DuckDBPyConnection, entry: Entry, rows: int
) -> dict[Hashable, float]:
    """Return the mean entry of each action in the first rows of a column of distributions."""
    keys, values = (entry.lists[k].sql(dialect="duckdb") for k in ("k", "v"))
    found: pa.Table = connection.sql(f"""
SELECT key, sum(mass) / {rows} AS mass
FROM (
    SELECT unnest(k) AS key, unnest(v) AS mass
    FROM (SELECT {keys} AS k, {values} AS v FROM log LIMIT {rows})
)
WHERE mass > 0 GROUP BY key""").to_arrow_table()
    return dict(zip(*(found[name].to_pylist() for name in ("key", "mass")), strict=True))


def _name_largest(sums: Mapping[Hashable, float], *, certain: bool) -> Unlogged:
    name = ActionGroups.name
    largest = sorted(sums.items(), key=lambda item: (-item[1], name(item[0])))[:NAMED]
    named = tuple((name(group), float(mass)) for group, mass in largest)
    return Unlogged(certain, float(sum(sums.values())), len(sums), named)
