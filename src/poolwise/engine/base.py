"""Engine: what reads rows, wherever they are.

An engine opens a log together with its targets and answers three questions: how
many rows has each logger, which rules are broken, and what are the moments.  It
holds no statistics; the query it runs comes from `engine.sql`.

What must be learned from the rows before they can be averaged (a reward model, an
estimated mixture) comes in as `Learner`s: fitted to a sample of the rows, they then
fill columns batch by batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from poolwise.errors import Fault
    from poolwise.findings import Finding
    from poolwise.log import Log
    from poolwise.moments import FloatArray, Moments
    from poolwise.policy import AnyArray, Batch, IntArray, PolicyLike
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


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows as a learner sees them.

    Attributes:
        batch: Logged actions and all context columns.
        features: Context columns that a model may use: those that play no other role.
        label: Logger of each row, shape (n,).
        fold: Fold of each row, shape (n,); rows of one cluster share it.
        reward: Reward, shape (n,).
        propensity: Log-probability under the row's own logger, shape (n,).
        known: Log-probability under each logger whose probabilities are known.
        logs: Whether the log holds logarithms, and a filled probability must be one.
    """

    batch: Batch
    features: tuple[str, ...]
    label: AnyArray
    fold: IntArray
    reward: FloatArray
    propensity: FloatArray
    known: Mapping[str, FloatArray]
    logs: bool = False

    def __len__(self) -> int:
        return len(self.batch)


class Fitted(Protocol):
    """What a learner became: it fills columns, and can say what happened on the way."""

    def __call__(self, piece: Piece) -> Mapping[str, FloatArray]: ...

    def findings(self) -> tuple[Finding, ...]: ...


class Learner(Protocol):
    """Something to fit to a sample of the rows before they are averaged."""

    @property
    def folds(self) -> int: ...

    @property
    def rows(self) -> int:
        """Rows that it wants to be fitted to at most."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns it fills."""
        ...

    def fit(self, sample: Piece, counts: Mapping[str, int]) -> Fitted:
        """Fit to a sample of rows; `counts` are all rows of each logger."""
        ...


@dataclass(frozen=True, eq=False)
class Extra:
    """What the rows get beyond the log: a reward model, an estimated mixture.

    Attributes:
        predicted_reward: Column or SQL expression of the predicted reward, if any.
        predicted_values: Column or expression of each target's predicted value.
        mixture: Column of the estimated mixture, if it is estimated.
        learners: What fills such columns.
    """

    predicted_reward: str = ""
    predicted_values: Mapping[str, str] = field(default_factory=dict)
    mixture: str = ""
    learners: tuple[Learner, ...] = ()

    @property
    def filled(self) -> tuple[str, ...]:
        """Columns that the learners fill."""
        return tuple(name for learner in self.learners for name in learner.columns)


NOTHING = Extra()
