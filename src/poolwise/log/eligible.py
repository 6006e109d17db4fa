"""Eligible actions: policies that play only what a row's list allows.

A column of the log holds the list of actions that could be played in the row.  A policy with a
list of actions is restricted to it: its probabilities of the eligible actions are divided by
their sum.  `Softmax`, `EpsilonGreedy` and `Thompson` are computed among the eligible actions:
only these are explored, and only these can have the highest value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import PolicyError, UsageError
from poolwise.log.adapters import EpsilonGreedy, Mixture, Softmax
from poolwise.log.policy import Batch, Distribution, get_index, is_distribution, pick
from poolwise.log.posteriors import Thompson

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from poolwise.log.policy import Policy
    from poolwise.types import AnyArray, FloatArray, IntArray

SHOWN_ROWS = 5  # rows that an error names


def restrict_policy(policy: Policy, column: str | None) -> Policy:
    """Return the policy among the eligible actions of a column, if it has a list of actions.

    Columns, SQL expressions and functions are unchanged: their probabilities are final.  So
    are policies that were learned with such a column: they read the lists themselves.
    """
    if column is None or getattr(policy, "eligible", None) is not None:
        return policy
    if isinstance(policy, Mixture):
        parts = [restrict_policy(part, column) for part in policy.policies]
        return replace(policy, policies=parts)
    return Eligible(policy, column) if is_distribution(policy) else policy


@dataclass(frozen=True)
class Eligible:
    """Plays a policy among the eligible actions of each row.

    >>> from poolwise.log.policy import Uniform
    >>> lists = np.array([["a", "b"], ["a"]], dtype=object)
    >>> batch = Batch(np.array(["b", "a"]), {"actions": lists})
    >>> Eligible(Uniform(["a", "b", "c"]), "actions").prob(batch).tolist()
    [0.5, 1.0]

    Attributes:
        policy: A policy with a list of actions.
        column: Column with the list of eligible actions.
    """

    policy: Distribution
    column: str

    @property
    def actions(self) -> Sequence[Hashable]:
        return self.policy.actions

    def prob(self, batch: Batch) -> FloatArray:
        return pick(self.distribution(batch), batch.index_in(self.actions))

    def distribution(self, batch: Batch) -> FloatArray:
        among = self._among(batch)
        others = {name: v for name, v in batch.columns.items() if name != self.column}
        inner = Batch(batch.action, others)
        if isinstance(self.policy, EpsilonGreedy | Softmax | Thompson):
            return self.policy.distribution(inner, among)
        probs = np.where(among, self.policy.distribution(inner), 0.0)
        total = probs.sum(axis=1)
        self._refuse(total <= 0, "gives no probability to the eligible actions")
        return np.asarray(probs / total[:, None])

    def _among(self, batch: Batch) -> NDArray[np.bool]:
        """Return which actions of the policy are eligible, shape (n, actions)."""
        rows, labels = flat(batch[self.column])
        if batch.action.ndim == 1:  # otherwise no action was played yet
            known = list(dict.fromkeys(labels))
            item, logged = get_index(known, labels), batch.index_in(known)
            present = np.zeros(len(batch), dtype=bool)
            present[rows[item == logged[rows]]] = True
            self._refuse(~present, f"needs the logged action in the list of {self.column!r}")
        among = _mark_actions(
            len(batch), rows, get_index(self.actions, labels), len(self.actions)
        )
        self._refuse(among.sum(axis=1) == 0, f"has no action in the list of {self.column!r}")
        return among

    def _refuse(self, broken: NDArray[np.bool], reason: str) -> None:
        rows = np.flatnonzero(broken)
        if len(rows):
            name = type(self.policy).__name__
            where = f"in {len(rows):,} row{'s' * (len(rows) > 1)}"
            raise PolicyError(name, f"{reason}, {where}", rows[:SHOWN_ROWS].tolist())


def mark_listed(lists: AnyArray, actions: Sequence[Hashable]) -> NDArray[np.bool]:
    """Return which actions are in the list of each row, shape (n, actions).

    >>> mark_listed(np.array([["b", "z"], None], dtype=object), ["a", "b"]).tolist()
    [[False, True], [False, False]]
    """
    rows, labels = flat(lists)
    return _mark_actions(len(lists), rows, get_index(actions, labels), len(actions))


def _mark_actions(rows: int, row: IntArray, index: IntArray, actions: int) -> NDArray[np.bool]:
    marked = np.zeros((rows, actions), dtype=bool)
    marked[row[index >= 0], index[index >= 0]] = True
    return marked


def flat(lists: AnyArray) -> tuple[IntArray, list[Hashable]]:
    """Return the row and the label of every item of lists; an empty one or NULL has none.

    >>> rows, labels = flat(np.array([["a", "b"], None, ["a"]], dtype=object))
    >>> rows.tolist(), labels
    ([0, 0, 2], ['a', 'b', 'a'])
    """
    parts = [[] if part is None else part for part in lists.tolist()]
    others = [part for part in parts if not isinstance(part, list | tuple | np.ndarray)]
    if others:
        raise UsageError(
            f"`eligible` must name a column of lists of actions, got {others[0]!r} in "
            f"{len(others):,} row{'s' * (len(others) > 1)}"
        )
    rows = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return rows, [label for part in parts for label in part]
