"""Requests: several rows that earn a reward together, such as the positions of a ranking.

The value of a policy is then that of a request.  Each request has the same number of rows, and
rewards are multiplied by it, so that a mean over rows is the value of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Requests:
    """The requests that the rows of a log belong to; `ranking_log` sets them.

    Attributes:
        column: Column of the request.
        rows: Rows of each request.
    """

    column: str
    rows: int = 1

    def __str__(self) -> str:
        return f"{self.column}, {self.rows} row{'s' * (self.rows > 1)} each"

    def problems(self, *, clustered: bool, drops: bool) -> Iterator[str]:
        """Yield what a log with these requests must not do.

        Args:
            clustered: Whether the log names a `cluster`.
            drops: Whether it drops bad rows.
        """
        if self.rows > 1 and not clustered:
            yield (
                "`cluster` is required if a request has several rows, which depend on each "
                "other: name the request, or a group of requests such as a user"
            )
        if self.rows > 1 and drops:
            yield (
                "`on_fault` must be 'raise' if a request has several rows: without one of its "
                "positions, a list is another list"
            )
