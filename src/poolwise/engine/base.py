"""Engine: what reads rows, wherever they are.

An engine opens a log together with its targets and answers three questions: how
many rows has each logger, which rules are broken, and what are the moments.  It
holds no statistics; the query it runs comes from `engine.sql`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from poolwise.errors import Fault
    from poolwise.log import Log
    from poolwise.moments import Moments
    from poolwise.policy import PolicyLike
    from poolwise.terms import Needs


class Rows(Protocol):
    """The rows of one log with the probabilities of its policies."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Usable rows of each logger, in the order in which loggers are shown."""
        ...

    @property
    def found(self) -> Mapping[str, int]:
        """Rows of each logger as they are, unusable ones included."""
        ...

    def check(self) -> tuple[Fault, ...]:
        """Count the rows that break each rule, by logger."""
        ...

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """Moments of each logger; raises LogError where rows break a rule."""
        ...

    def bucketed(self, needs: Needs, buckets: int) -> list[dict[str, Moments]]:
        """Moments of each bucket and logger; rows of a cluster share a bucket."""
        ...


class Engine(Protocol):
    """Anything that can open a log."""

    def open(
        self, log: Log, targets: Mapping[str, PolicyLike]
    ) -> AbstractContextManager[Rows]: ...
