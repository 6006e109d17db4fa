r"""Heavy rows: the few rows that decide a value or a difference, set apart from the others.

The rows behind the mean of weights u are $(\sum u)^2 / \sum u^2$; the rows behind its variance
are

$$N_4 = \frac{(\sum u^2)^2}{\sum u^4}$$

and may be far fewer.  Where they are fewer than 50, a second pass over the rows keeps the
heaviest of them.  Which ones are heavy depends on their weights only, never on their rewards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from poolwise.errors import RefusedError
from poolwise.moments.linear import by_count
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from poolwise.moments.moments import Moments
    from poolwise.moments.pool import Pool
    from poolwise.types import FloatArray, IntArray

FEW, ENOUGH = 50, 100  # rows behind a variance: heavy ones go if fewer, until as many are left
CLEARLY = 2  # factor on the rows behind a variance, where `ENOUGH` of them cannot be left
LARGEST = 1e70  # weight whose fourth power, over many rows, is within the range of doubles
MOST_HEAVY = 1_000  # rows that are set apart
TIED = 1e-9  # relative: weights that differ by less are equal
FOURTH = BALANCED_WEIGHT * BALANCED_WEIGHT * BALANCED_WEIGHT * BALANCED_WEIGHT


class Contrast(NamedTuple):
    """Weights whose heaviest rows may decide an answer.

    Attributes:
        weight: Weight of a target.
        less: Weight that is subtracted, of another target or a logger; None for a value.
    """

    weight: Term
    less: Term | None = None

    @property
    def terms(self) -> tuple[Term, ...]:
        """The weights, the target's first."""
        return (self.weight,) if self.less is None else (self.weight, self.less)

    def of(self, weights: FloatArray) -> FloatArray:
        """Return the contrast of rows from their weights, shape (terms, rows)."""
        return np.asarray(weights[0] if self.less is None else weights[0] - weights[1])


@dataclass(frozen=True, eq=False)
class Heaviest:
    """The heaviest rows of a contrast so far, and sums over the others.

    Attributes:
        strata: Number of the logger of each row, shape (rows,).
        values: Reward, weights of the contrast and ratios, shape (3 or more, rows).
        sizes: Absolute contrast of each row, shape (rows,).
        count: Number of the other rows.
        sums: Over the others: sizes to the powers 1, 2 and 4; sizes times the reward, and
            times its square, where rewards are less a centre.
        largest: Largest size of the others.
    """

    strata: IntArray
    values: FloatArray
    sizes: FloatArray
    count: int
    sums: FloatArray
    largest: float

    @classmethod
    def of(
        cls, strata: IntArray, values: FloatArray, sizes: FloatArray, centre: float
    ) -> Heaviest:
        """Return the heaviest of some rows."""
        if len(sizes) <= MOST_HEAVY:
            return cls(strata, values, sizes, 0, np.zeros(5), 0.0)
        order = np.argpartition(-sizes, MOST_HEAVY)
        kept, rest = order[:MOST_HEAVY], order[MOST_HEAVY:]
        others = added_sizes(sizes[rest], values[0, rest], centre)
        parts = (strata[kept], values[:, kept], sizes[kept])
        return cls(*parts, len(rest), others, float(sizes[rest].max()))

    def add(self, more: Heaviest, centre: float) -> Heaviest:
        """Return the heaviest rows of both groups."""
        both = Heaviest.of(
            np.concatenate([self.strata, more.strata]),
            np.concatenate([self.values, more.values], axis=1),
            np.concatenate([self.sizes, more.sizes]),
            centre,
        )
        return replace(
            both,
            count=self.count + more.count + both.count,
            sums=self.sums + more.sums + both.sums,
            largest=max(self.largest, more.largest, both.largest),
        )


def added_sizes(sizes: FloatArray, rewards: FloatArray, centre: float) -> FloatArray:
    """Return the sums of `Heaviest` over some rows."""
    gaps, squares = rewards - centre, sizes**2
    weighted = sizes * gaps
    return np.array(
        [sizes.sum(), squares.sum(), squares @ squares, weighted.sum(), weighted @ gaps]
    )


class HeavyClusters(NamedTuple):
    """Clusters of heavy rows, which are set apart as a whole.

    Attributes:
        cluster: Number of each row's cluster, shape (rows,).
        bucket: Number of each row's bucket, shape (rows,).
        buckets: Number of buckets.
    """

    cluster: IntArray
    bucket: IntArray
    buckets: int


@dataclass(frozen=True, eq=False)
class HeavyRows:
    """Rows that are set apart, and what their choice and the light rows say.

    Attributes:
        contrast: Weights by which they are heavy.
        behind: Rows behind the variance of the contrast, $N_4$.
        loggers: Logger of each row, shape (rows,).
        values: Values of single terms in each row, shape (rows,).
        light_mean: Mean reward of the light rows, each weighed by its size.
        light_variance: Variance of their rewards, likewise.
        reward_range: Smallest and largest possible reward; None if it is not known.
        clusters: Clusters of the rows; None if rows are independent.
    """

    contrast: Contrast
    behind: float
    loggers: Sequence[str]
    values: Mapping[Term, FloatArray]
    light_mean: float
    light_variance: float
    reward_range: tuple[float, float] | None
    clusters: HeavyClusters | None = None

    def __len__(self) -> int:
        return len(self.loggers)

    @property
    def units(self) -> int:
        """Number of independent units: of clusters, or of rows."""
        return len(self) if self.clusters is None else len(np.unique(self.clusters.cluster))

    def by_unit(self, values: FloatArray) -> FloatArray:
        """Return sums of values of rows over each cluster, or the values themselves."""
        if self.clusters is None:
            return values
        _, place = np.unique(self.clusters.cluster, return_inverse=True)
        sums: FloatArray = np.bincount(place, weights=values).astype(np.float64)
        return sums

    @property
    def rewards(self) -> FloatArray:
        return self.values[REWARD]

    def product(self, term: Term) -> FloatArray:
        """Return the values of a product of single terms."""
        values = np.ones(len(self))
        for factor in term.factors:
            values = values * self.values[Term((factor,))]
        return values

    @property
    def flipped(self) -> HeavyRows:
        """The same rows for the opposite difference."""
        weight, less = self.contrast
        if less is None:
            raise ValueError("a value has no opposite")
        return replace(self, contrast=Contrast(less, weight))

    def renamed(self, names: Mapping[Term, Term]) -> HeavyRows:
        """Return the rows with the terms of a mapping's values under its keys."""
        to = {old: new for new, old in names.items()}
        weight, less = self.contrast
        return replace(
            self,
            contrast=Contrast(to[weight], None if less is None else to[less]),
            values={**self.values, **{new: self.values[old] for new, old in names.items()}},
        )


def behind_variance(squares: float, fourths: float) -> float:
    """Return the rows behind a variance, from sums of squares and of fourth powers.

    >>> behind_variance(4.0, 4.0), behind_variance(0.0, 0.0)
    (4.0, inf)
    """
    return squares / fourths * squares if fourths > 0 else np.inf


class HeavyChoice(NamedTuple):
    """Purpose of a choice of heavy rows.

    Attributes:
        contrast: Weights by which rows are heavy.
        centre: Centre of the rewards in sums.
        reward_range: Smallest and largest possible reward; None if it is not known.
        missing: Whether the weights show that heavy rows were not logged.
    """

    contrast: Contrast
    centre: float
    reward_range: tuple[float, float] | None
    missing: bool = False


@dataclass(frozen=True, eq=False)
class Found:
    """The heaviest rows of a contrast in a log, or in one of its segments.

    Attributes:
        rows: The rows.
        loggers: Loggers by number.
        terms: Terms whose values the rows have.
        binary: Whether every reward of the log is 0 or 1, and both occur.
    """

    rows: Heaviest
    loggers: Sequence[str]
    terms: Sequence[Term]
    binary: bool

    def choose(self, choice: HeavyChoice) -> HeavyRows | None:
        """Return the rows to set apart; None if there is no need, or if too few would remain.

        The heaviest rows come first, and as few as leave `ENOUGH` rows behind the variance of
        the others.  Rows of equal size are set apart together or not at all.  If the weights
        show that heavy rows are missing, and none was seen, there are no rows, but a range for
        their rewards.
        """
        found, reward_range = self.rows, choice.reward_range
        if reward_range is None and self.binary:
            reward_range = (0.0, 1.0)
        order = np.lexsort((*found.values, found.strata, -found.sizes))
        sizes = found.sizes[order]
        with np.errstate(over="ignore"):
            squares, fourths = (
                np.append(np.cumsum(powers[::-1])[::-1], 0.0) + rest
                for powers, rest in zip((sizes**2, sizes**4), found.sums[1:3], strict=True)
            )
        behind = np.full(len(squares), np.inf)  # if the k heaviest are set apart
        np.divide(squares**2, fourths, out=behind, where=fourths > 0)
        number = _choose_number(
            found, sizes, behind, difference=choice.contrast.less is not None
        )
        if number is None and choice.missing and reward_range is not None:
            number = 0
        if number is None:
            return None
        kept, rest = order[:number], order[number:]
        one, _, _, mean, square = found.sums + added_sizes(
            sizes[number:], found.values[0, rest], choice.centre
        )
        mean, square = (mean / one, square / one) if one > 0 else (0.0, 0.0)
        loggers, values, clusters = self.read(kept)
        return HeavyRows(
            choice.contrast,
            float(behind[0]),
            loggers,
            values,
            float(choice.centre + mean),
            float(max(0.0, square - mean**2)),
            reward_range,
            clusters,
        )

    def read(
        self, kept: IntArray
    ) -> tuple[Sequence[str], Mapping[Term, FloatArray], HeavyClusters | None]:
        """Return loggers and values of heavy rows, by their place among the heaviest."""
        found = self.rows
        loggers = [self.loggers[k] for k in found.strata[kept]]
        return loggers, dict(zip(self.terms, found.values[:, kept], strict=True)), None


Fetched = tuple["Sequence[str]", "Mapping[Term, FloatArray]", HeavyClusters]


@dataclass(frozen=True, eq=False)
class FoundClusters(Found):
    """The heaviest clusters of a contrast: the size of one is the sum over its rows.

    The reward of a cluster is the mean over its rows, weighed by their sizes; the stratum is
    its place among all clusters.

    Attributes:
        fetch: Returns the rows of clusters, by these places.
    """

    fetch: Callable[[IntArray], Fetched]

    def read(self, kept: IntArray) -> Fetched:
        """Return loggers, values and clusters of the rows of heavy clusters."""
        return self.fetch(self.rows.strata[kept])


def _choose_number(
    found: Heaviest, sizes: FloatArray, behind: FloatArray, *, difference: bool
) -> int | None:
    """Return how many of the heaviest rows are set apart; None if they are not.

    Of a difference, whose weights average 0, rows must remain whose weight is not 0: without
    any, the mass of the heavy ones would be 0, and certain.
    """
    if not behind[0] < FEW:
        return None
    left = np.arange(len(sizes), -1, -1) + found.count
    ends = _ends(sizes, found.largest if found.count else 0.0)
    usable = ends[left[ends] >= ENOUGH]
    usable = usable[np.isfinite(behind[usable])] if difference else usable
    wanted = usable[behind[usable] >= ENOUGH]
    if len(wanted):
        return int(wanted[0])
    if not len(usable) or found.count or not difference:
        return int(usable[-1]) if len(usable) and found.count else None
    best = usable[np.argmax(behind[usable])]
    return int(best) if behind[best] >= CLEARLY * behind[0] else None


def _ends(sizes: FloatArray, largest: float) -> IntArray:
    """Return the numbers of heaviest rows after which the next one is smaller.

    Args:
        sizes: Sizes in descending order.
        largest: Size of the next row.

    >>> _ends(np.array([3.0, 2.0, 2.0, 1.0]), 0.5).tolist()
    [1, 3, 4]
    """
    smaller = np.append(sizes[1:], largest) < sizes * (1 - TIED)
    return np.flatnonzero(smaller) + 1


class Behind(NamedTuple):
    """Limits of the number of rows behind a variance.

    Attributes:
        fewest: The least possible number.
        most: The largest possible number.
    """

    fewest: float
    most: float


def count_behind(moments: Moments, weight: Term = BALANCED_WEIGHT) -> Behind:
    """Return limits of the number of rows behind the variance of a weight.

    From its fourth power if the pass has it; else from its tail, below which every weight
    is at most the least one of the tail; else from the largest weight.

    Raise RefusedError if a weight is too large for its fourth power.
    """
    squares = moments.count * moments.mean_square(weight)
    fourth = weight * weight * weight * weight
    if moments.has(fourth):
        fourths = moments.count * moments.mean(fourth)
        _refuse_above(fourths**0.25)
        exact = behind_variance(squares, fourths)
        return Behind(exact, exact)
    tail = moments.tails.get(weight, np.empty(0))
    largest = float(tail[0]) if len(tail) else moments.max(weight)
    _refuse_above(largest)
    if not len(tail):
        ends = (squares * largest**2, largest**4)
    else:
        inside = float(tail**2 @ tail**2)
        least = 0.0 if len(tail) == moments.count else float(tail[-1])
        ends = (inside + max(0.0, squares - float(tail @ tail)) * least**2, inside)
    fewest, most = (behind_variance(squares, fourths) for fourths in ends)
    return Behind(fewest, most)


def heavy_share(moments: Moments, weight: Term = BALANCED_WEIGHT) -> float:
    """Return the share in a sum of squared weights of the rows that would be set apart.

    These are the heaviest ones, as few as leave `ENOUGH` rows behind the variance of the
    others.  Without a tail they are unknown, and the share is 1.
    """
    tail = moments.tails.get(weight)
    if tail is None or not len(tail):
        return 1.0
    squares = moments.count * moments.mean_square(weight)
    heaviest = np.sort(tail)[::-1] ** 2
    least = 0.0 if len(tail) == moments.count else float(heaviest[-1])
    before = np.concatenate([[0.0], np.cumsum(heaviest)])
    rest = np.maximum(squares - before, 0.0)
    inside = np.cumsum(heaviest[::-1] ** 2)[::-1]
    fourths = np.append(inside, 0.0) + max(0.0, squares - float(heaviest.sum())) * least
    behind = np.full(len(rest), np.inf)
    np.divide(rest**2, fourths, out=behind, where=fourths > 0)
    enough = np.flatnonzero(behind >= ENOUGH)
    return float(before[enough[0]] / squares) if len(enough) and squares > 0 else 1.0


def _refuse_above(weight: float) -> None:
    if not weight <= LARGEST:
        raise RefusedError(
            "overflow",
            f"a weight is above {LARGEST:.0e}, so that no other row would count: check for "
            "tiny propensities, or leave such rows out",
        )


def lighten(pool: Pool, heavy: HeavyRows, terms: Sequence[Term]) -> Pool:
    """Return the moments of terms with weights and weighted rewards of 0 in heavy rows.

    Ratios of the loggers keep their values in heavy rows.
    """
    values = np.array([heavy.product(term) for term in terms])
    weights = {f for term in heavy.contrast.terms for f in term.factors}
    zeroed = np.array([not weights.isdisjoint(t.factors) for t in terms])
    either = zeroed[:, None] | zeroed
    loggers = np.array(heavy.loggers, dtype=object)
    names = {term: term for term in terms}

    def light(moments: Moments, rows: FloatArray) -> Moments:
        means, scatter = moments.select_means(terms), moments.select_scatter(terms)
        sums = np.where(zeroed, rows.sum(axis=1), 0.0)
        crossed = np.outer(means, sums)
        scatter = scatter - either * (rows @ rows.T) + crossed + crossed.T
        scatter -= np.outer(sums, sums) / moments.count
        diagonal = np.arange(len(terms))
        scatter[diagonal, diagonal] = np.maximum(scatter[diagonal, diagonal], 0.0)
        selected = moments.select(names)
        order = [terms.index(term) for term in selected.terms]
        means = (means - sums / moments.count)[order]
        return replace(
            selected, means=means, scatter=scatter[np.ix_(order, order)], slices={}, powers={}
        )

    whole = pool.whole.select(names)
    return whole.change(lambda i, m: light(m, values[:, loggers == i]))


def mean_over(pool: Pool, term: Term) -> float:
    """Return the mean of a term over all rows."""
    share = by_count(pool)
    return sum(share[i] * m.mean(term) for i, m in pool.items())
