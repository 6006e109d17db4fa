"""Logged: the distribution of a logger, read from the column of the log that holds it.

`rows.entries` reads the entry of the logged action in the query.  Learning reads the whole
distribution, in Python: it starts from the scores of the logger itself, and a learned policy
finds them in the same column when it decides.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import PolicyError
from poolwise.log.policy import pick
from poolwise.rows.entries import EXCESS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from poolwise.log.policy import Batch
    from poolwise.types import FloatArray

SHOWN = 5  # rows that an error names
UNREADABLE = (AttributeError, TypeError, ValueError)  # what a value of another form raises


@dataclass(frozen=True)
class LoggedDistribution:
    """Plays by the distribution that a column holds: a map, a struct, JSON or a list.

    Actions without an entry have probability 0.  Keys are compared with actions as text.

    >>> from poolwise.log.policy import Batch
    >>> rows = Batch(np.array(["b"]), {"p": np.array(['{"a": 0.25, "b": 0.75}'])})
    >>> LoggedDistribution("p", ("b", "c", "a")).distribution(rows).tolist()
    [[0.75, 0.0, 0.25]]

    Attributes:
        column: The column.
        actions: The actions whose probabilities are returned.
        eligible: Column with the actions that a list has the probabilities of; None without.
        logs: Whether entries are logarithms.
    """

    column: str
    actions: Sequence[Hashable] = ()
    eligible: str | None = None
    logs: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that a row must have."""
        return (self.column,)

    def is_whole(self, batch: Batch) -> bool:
        """Test if the column holds distributions, and not numbers as text."""
        texts = [value for value in batch[self.column] if isinstance(value, str)]
        return all(text.lstrip().startswith("{") for text in texts)

    def prob(self, batch: Batch) -> FloatArray:
        return pick(self.distribution(batch), batch.index_in(self.actions))

    def distribution(self, batch: Batch) -> FloatArray:
        index: dict[str, int] = {}
        matrix = self.read(batch, index)
        columns = [index.get(as_key(action), -1) for action in self.actions]
        absent = np.zeros((len(batch), 1))
        return np.asarray(np.hstack([matrix, absent])[:, columns])

    def read(self, batch: Batch, index: dict[str, int]) -> FloatArray:
        """Return the entries of each row, shape (n, len(index)); `index` collects the keys."""
        values, lists = batch[self.column], [None] * len(batch)
        if self.eligible is not None:
            lists = list(batch[self.eligible])
        rows: list[int] = []
        columns: list[int] = []
        entries: list[float] = []
        broken = []
        for row, (value, keys) in enumerate(zip(values, lists, strict=True)):
            try:
                found = {
                    as_key(key): float(p) for key, p in _pairs(value, keys) if p is not None
                }
            except UNREADABLE:
                found = {}
            shares = [math.exp(p) if p <= 0 else math.nan for p in found.values()]
            shares = shares if self.logs else [*found.values()]
            if not (min(shares, default=-1) >= 0 and 0 < sum(shares) <= 1 + EXCESS):
                broken.append(row)
                continue
            rows += [row] * len(shares)
            columns += [index.setdefault(key, len(index)) for key in found]
            entries += shares
        if broken:
            reason = (
                f"needs a distribution in column {self.column!r}: numbers from 0 that sum to "
                f"1, by action; in {len(broken):,} row{'s' * (len(broken) > 1)} there is none"
            )
            raise PolicyError("learned", reason, broken[:SHOWN])
        matrix = np.zeros((len(batch), len(index)))
        matrix[rows, columns] = entries
        return matrix


def _pairs(value: object, keys: object) -> Iterable[tuple[Hashable, float | None]]:
    """Return keys and entries of a distribution in any of its forms."""
    if isinstance(value, str | bytes):
        value = json.loads(value)
    if isinstance(value, Mapping):
        return value.items()
    if keys is not None and not isinstance(value[0], tuple):  # type: ignore[index]
        return zip(keys, value, strict=True)  # type: ignore[call-overload,no-any-return]
    return value  # type: ignore[return-value]  # a map of Arrow: pairs


def as_key(action: object) -> str:
    """Return an action as the text of a key, as queries do.

    >>> as_key(7), as_key("a"), as_key(True)
    ('7', 'a', 'true')
    """
    return str(action).lower() if isinstance(action, bool | np.bool) else str(action)
