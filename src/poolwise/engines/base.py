"""Engine: what reads rows, wherever they are.

An engine opens a log together with its targets and answers three questions: how
many rows has each logger, which rules are broken, and what are the moments.  It
holds no statistics; the query it runs comes from `engines.sql`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from poolwise.errors import Fault
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.moments import Moments
    from poolwise.moments.terms import Needs


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

    @property
    def by_kernel(self) -> bool:
        """Whether rows go through the kernel: wide questions are cheap, histograms known."""
        ...

    @property
    def rereadable(self) -> bool:
        """Whether there are rows to read again, and not only what was made of them."""
        ...

    def check(self) -> tuple[Fault, ...]:
        """Count the rows that break each rule, by logger."""
        ...

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """Moments of each logger; raises LogError where rows break a rule."""
        ...

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[list[dict[str, Moments]]]:
        """Moments of each bucket and logger, for each of several needs, from one pass.

        Rows of a cluster share a bucket. Tails and histograms may be missing.
        """
        ...

    def without(self, logger: str) -> Rows:
        """The same rows without those of one logger, and without it in the mixture."""
        ...


class Engine(Protocol):
    """Anything that can open a log."""

    def open(
        self, log: Log, targets: Mapping[str, PolicyLike]
    ) -> AbstractContextManager[Rows]: ...
