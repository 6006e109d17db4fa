"""Heavy: a pass over the rows that keeps the heaviest of several contrasts of weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.engines.blocks import Folding
from poolwise.engines.kernel import Kernel
from poolwise.engines.workspace import Workspace
from poolwise.moments.heavy import Found, Heaviest
from poolwise.moments.terms import REWARD, Needs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from poolwise.moments.heavy import Contrast
    from poolwise.moments.terms import Term
    from poolwise.rows.reader import RowArrays
    from poolwise.types import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class HeaviestOf:
    """The heaviest rows of several contrasts.

    Attributes:
        parts: Heaviest rows of each part of the log and contrast; None without rows.
        centre: Centre of the rewards in sums.
        rewards: Whether rewards of 0, of 1, and others occur.
    """

    parts: tuple[Heaviest, ...] | None
    centre: float
    rewards: tuple[bool, bool, bool] = (False, False, False)

    def __add__(self, other: HeaviestOf) -> HeaviestOf:
        if self.parts is None or other.parts is None:
            return other if self.parts is None else self
        pairs = zip(self.parts, other.parts, strict=True)
        parts = tuple(mine.add(more, self.centre) for mine, more in pairs)
        zero, one, others = (a or b for a, b in zip(self.rewards, other.rewards, strict=True))
        return HeaviestOf(parts, self.centre, (zero, one, others))

    @property
    def binary(self) -> bool:
        """True if every reward is 0 or 1, and both occur."""
        return self.rewards == (True, True, False)


@dataclass(frozen=True, eq=False)
class HeavyKernel(Folding[HeaviestOf]):
    """Keeps the heaviest rows of batches.

    Attributes:
        contrasts: Weights by which rows are heavy.
        columns: Terms whose values are kept besides reward and weights.
        centre: Centre of the rewards in sums.
        part: Number of the part of the log, such as a segment, that each stratum is in.
    """

    contrasts: tuple[Contrast, ...]
    columns: tuple[Term, ...]
    centre: float
    part: IntArray

    @property
    def parts(self) -> int:
        """Number of parts of the log."""
        return int(self.part.max(initial=0)) + 1

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """All single terms that a batch computes."""
        weights = (term for contrast in self.contrasts for term in contrast.terms)
        return tuple(dict.fromkeys((REWARD, *weights, *self.columns)))

    def kept(self, contrast: Contrast) -> tuple[Term, ...]:
        """Return the terms whose values are kept for a contrast, the reward first."""
        return tuple(dict.fromkeys((REWARD, *contrast.terms, *self.columns)))

    def together(self, batches: Iterable[RowArrays]) -> HeaviestOf:
        """Return the heaviest rows of all batches."""
        needs = Needs(means=self.terms, extremes=self.terms)
        kernel = Kernel(self.layout, Workspace(needs, self.rows))
        total = HeaviestOf(None, self.centre)
        for groups, columns in batches:
            ends, values = kernel.values(groups, columns, self.terms)
            strata = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
            total = total + self._select_heavy(strata, values)
        return total

    def _select_heavy(self, strata: IntArray, values: FloatArray) -> HeaviestOf:
        """Return the heaviest rows of a batch."""
        place = {term: k for k, term in enumerate(self.terms)}
        zero, one = values[0] == 0.0, values[0] == 1.0
        rewards = (bool(zero.any()), bool(one.any()), not bool((zero | one).all()))
        own = self.part[strata]
        every = range(self.parts)
        split = [strata] if self.parts == 1 else [strata[own == k] for k in every]
        of_parts = [values] if self.parts == 1 else [values[:, own == k] for k in every]
        parts = [
            self._heaviest(contrast, *of_part, place)
            for of_part in zip(split, of_parts, strict=True)
            for contrast in self.contrasts
        ]
        return HeaviestOf(tuple(parts), self.centre, rewards)

    def _heaviest(
        self,
        contrast: Contrast,
        strata: IntArray,
        values: FloatArray,
        place: Mapping[Term, int],
    ) -> Heaviest:
        """Return the heaviest rows of one contrast in one part of a batch."""
        sizes = np.abs(contrast.of(values[[place[t] for t in contrast.terms]]))
        own = values[[place[t] for t in self.kept(contrast)]]
        return Heaviest.of(strata, own, sizes, self.centre)

    def found(self, total: HeaviestOf, loggers: Sequence[str]) -> list[dict[Contrast, Found]]:
        """Return what was found of each contrast, for each part of the log.

        Args:
            total: Heaviest rows of all batches.
            loggers: Logger of each stratum.
        """
        rows = iter(total.parts or ())
        return [
            {c: Found(next(rows), loggers, self.kept(c), total.binary) for c in self.contrasts}
            for _ in range(self.parts)
        ]
