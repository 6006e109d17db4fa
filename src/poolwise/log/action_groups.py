"""Action groups: probabilities of the group of an action, for catalogues of many actions.

A catalogue has more actions than a log has rows, and a target plays some that no logger
plays.  If rewards depend on the group of an action (a category, a genre, a price band) more
than on the action itself, the probability of the group may take the place of that of the
action: the weight of a row is then the target's probability of its group over that of the
loggers.  An action without a group is a group of its own.

Saito & Joachims (ICML 2022), marginalised weights; Saito, Ren & Joachims (ICML 2023), OffCEM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import PolicyError, UsageError
from poolwise.log.adapters import Mixture, Table
from poolwise.log.policy import Batch, Uniform, is_distribution

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from poolwise.log.policy import Distribution, Policy
    from poolwise.types import FloatArray, IntArray

ENTRIES = 1 << 22  # probabilities of one matrix: 32 MB
SHOWN_ROWS = 5  # rows that an error names
MISSING, EXCESS = 1e-4, 0.1  # that the sum of a distribution may lack, or have above 1


def label_text(label: object) -> str:
    """Return a label as a query writes it.

    >>> label_text(7.0), label_text(b"a"), label_text(True)
    ('7', 'a', 'true')
    """
    if isinstance(label, bytes):
        return label.decode()
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    return str(label).lower() if isinstance(label, bool | np.bool) else str(label)


@dataclass(frozen=True, eq=False)
class ActionGroups:
    """The group of each action, by text.

    >>> groups = ActionGroups({"tea": "drinks", "rum": "drinks"})
    >>> groups.find(["rum", "bread"]), groups.name(groups.find(["bread"])[0])
    (['drinks', ('bread',)], 'bread')

    Attributes:
        by_action: Group by action.
    """

    by_action: Mapping[str, str]

    @classmethod
    def read(cls, given: Mapping[Hashable, Hashable]) -> ActionGroups:
        """Return groups from labels of any type."""
        return cls({label_text(action): label_text(group) for action, group in given.items()})

    def find(self, actions: Iterable[object]) -> list[Hashable]:
        """Return the group of each action; an action without one in a tuple."""
        texts = map(label_text, actions)
        return [self.by_action.get(text, (text,)) for text in texts]

    @staticmethod
    def name(group: Hashable) -> str:
        """Return the name of a group, or of the action that is one."""
        return str(group[0]) if isinstance(group, tuple) else str(group)


def code_groups(groups: Sequence[Hashable], logged: Sequence[Hashable]) -> tuple[IntArray, ...]:
    """Return a number for each of some groups, and of each logged one; -1 for others."""
    codes: dict[Hashable, int] = {}
    for group in groups:
        codes.setdefault(group, len(codes))
    return (
        np.array([codes[group] for group in groups], dtype=np.int64),
        np.array([codes.get(group, -1) for group in logged], dtype=np.int64),
    )


def group_policy(policy: Policy, groups: ActionGroups, role: str) -> Policy:
    """Return a policy that gives the probability of the group of the logged action.

    Raises:
        UsageError: The policy does not give the probability of every action.
    """
    if isinstance(policy, Mixture):
        parts = [group_policy(part, groups, role) for part in policy.policies]
        return replace(policy, policies=parts)
    numbered = isinstance(policy, Uniform) and isinstance(policy.actions, range)
    if numbered or not is_distribution(policy):
        raise lacks_entries(role, f"a {type(policy).__name__} gives")
    return Grouped(policy, groups)


def lacks_entries(role: str, what: str) -> UsageError:
    """Return the error of a probability of the logged action alone."""
    return UsageError(
        f"{role}: with `action_group`, probabilities are summed within groups, and {what} the "
        "probability of the logged action only. Name a column of distributions, or a policy "
        "with a list of actions. If columns hold the probabilities of groups already, name the "
        "column of the group as `action`, and leave `action_group` out."
    )


@dataclass(frozen=True)
class Unlogged:
    """Part of a target that no logger plays, or that is in no row of the log.

    Attributes:
        certain: Whether no logger plays it in the row in question, by the distributions of
            all loggers; if these are not known, it is in no row.
        mass: Its mean probability.
        number: Number of such actions, or groups, with a positive probability.
        largest: The largest of them, with the mean probability of each.
    """

    certain: bool
    mass: float
    number: int
    largest: tuple[tuple[str, float], ...]


@dataclass(frozen=True, eq=False)
class Grouped:
    """Plays a policy; its probability is that of the group of the logged action.

    >>> policy = Table({"tea": 0.5, "rum": 0.25, "bread": 0.25})
    >>> groups = ActionGroups({"tea": "drinks", "rum": "drinks"})
    >>> Grouped(policy, groups).prob(Batch(np.array(["tea", "bread", "nut"]), {})).tolist()
    [0.75, 0.25, 0.0]

    Attributes:
        policy: A policy with a list of actions.
        groups: The group of each action.
    """

    policy: Distribution
    groups: ActionGroups

    def prob(self, batch: Batch) -> FloatArray:
        logged = self.groups.find(batch.action.tolist())
        if self._table is not None:
            labels = np.fromiter(logged, object, len(logged))
            return self._table.prob(Batch(labels, batch.columns))
        own, codes = self._codes(logged)
        step = max(1, ENTRIES // max(1, len(codes)))
        parts = [np.empty(0)]
        for first in range(0, len(batch), step):
            rows = np.arange(first, min(first + step, len(batch)))
            matrix = self.policy.distribution(batch.take(rows))
            parts.append(np.where(codes == own[rows, None], matrix, 0.0).sum(axis=1))
        return np.concatenate(parts)

    def _codes(self, logged: Sequence[Hashable]) -> tuple[IntArray, IntArray]:
        codes, own = code_groups(self.groups.find(self.policy.actions), logged)
        return own, codes

    @cached_property
    def _table(self) -> Table | None:
        """A table of groups, where the policy is a table of actions."""
        policy = self.policy
        if isinstance(policy, Uniform):
            share = 1 / len(policy.actions)
            return Table(self._sum_groups(dict.fromkeys(policy.actions, share)))
        if not isinstance(policy, Table):
            return None
        if policy.context is None:
            return Table(self._sum_groups(policy.probabilities))
        rows = {key: self._sum_groups(row) for key, row in policy.probabilities.items()}
        return Table(rows, policy.context)

    def _sum_groups(self, row: Mapping[Hashable, float]) -> dict[Hashable, float]:
        sums: dict[Hashable, float] = {}
        for group, share in zip(self.groups.find(row), row.values(), strict=True):
            sums[group] = sums[group] + float(share) if group in sums else float(share)
        return {group: min(total, 1.0) for group, total in sums.items()}


@dataclass(frozen=True)
class GroupEntries:
    """The probability of the group of the logged action, in a distribution per row.

    Attributes:
        keys: Column of the list of actions of the row.
        values: Column of the list of their probabilities.
        total: Column of the sum; infinite where one is not a probability.
        groups: The group of each action.
    """

    keys: str
    values: str
    total: str
    groups: ActionGroups

    def prob(self, batch: Batch) -> FloatArray:
        del batch
        raise PolicyError("the column", "is a distribution, which only the rows have")

    def sum_rows(self, rows: pa.RecordBatch, batch: Batch) -> FloatArray:
        """Return the sum over the group of the logged action of each row."""
        total = rows.column(self.total).to_numpy(zero_copy_only=False)
        sound = (total >= 1 - MISSING) & (total <= 1 + EXCESS)
        bad = np.flatnonzero(~sound)
        if len(bad):
            reason = (
                f"must be a distribution whose entries sum to 1, in each row: {len(bad):,} of "
                f"{len(rows):,} rows have another sum, or none"
            )
            raise PolicyError("the column", reason, bad[:SHOWN_ROWS].tolist())
        keys, values = rows.column(self.keys), rows.column(self.values)
        row = np.repeat(np.arange(len(rows)), keys.value_lengths().to_numpy())
        encoded = keys.flatten().dictionary_encode()
        own = self.groups.find(batch.action.tolist())
        labels = self.groups.find(encoded.dictionary.to_pylist())
        key, code = code_groups(labels, own)
        shares = values.flatten().to_numpy(zero_copy_only=False)  # NULL is no entry
        chosen = key[encoded.indices.to_numpy()] == code[row] if len(key) else row < 0
        sums = np.bincount(row, np.where(chosen, np.nan_to_num(shares), 0.0), len(rows))
        return np.minimum(sums, 1.0)
