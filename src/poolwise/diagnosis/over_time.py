r"""Value over time: the estimate of each period, the running estimate, and a test of drift.

Each period gives an estimate of its own, unbiased given the past.  The running estimate
after a period combines the periods so far, with the weights of the estimate of all periods;
after the last one it is that estimate, with its interval.
If the value does not change, the estimates from the earlier and from the later half of the
rows differ by their errors only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, chain
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import Finding
from poolwise.intervals.simultaneous import ALONE, DifferenceShape, skew_scores
from poolwise.intervals.student import Interval
from poolwise.moments.estimate import Estimate, make_estimate
from poolwise.moments.linear import Linear, Score
from poolwise.moments.shape import (
    Powers,
    Shape,
    cumulants,
    estimate_powers,
    measure_shape,
    shape_from,
)
from poolwise.moments.terms import PERIOD_WEIGHT
from poolwise.moments.units import NULL_SPREAD, centre_units, find_pull

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from poolwise.moments.pool import Pool, Stratum
    from poolwise.moments.terms import Term
    from poolwise.types import FloatArray

IntervalRule = Callable[[Estimate, Shape | None, Powers | None], Interval]
COLUMN = Score({PERIOD_WEIGHT: 1.0}, -1.0)  # its expectation is 0
SIGNIFICANT_P = 0.001  # a smaller p-value of no drift becomes a finding


@dataclass(frozen=True)
class PeriodValue:
    """The estimate of one period, and of all periods so far.

    Attributes:
        period: The period.
        rows: Its rows.
        share: Share of the period in the estimate.
        value: Estimate from the rows of the period.
        std_error: Standard error of `value`.
        lower: Lower end of the interval of `value`.
        upper: Upper end of it.
        running: Estimate from this period and all earlier ones.
        running_lower: Lower end of the interval of `running`.
        running_upper: Upper end of it.
    """

    period: str
    rows: int
    share: float
    value: float
    std_error: float
    lower: float
    upper: float
    running: float
    running_lower: float
    running_upper: float


@dataclass(frozen=True)
class OverTime:
    """The value of a target in each period.

    Attributes:
        estimator: Estimator of periods behind the values.
        values: Values in the order of the periods.
        drift: P-value of the same value in the earlier and the later half of the rows; NaN
            with fewer than two periods.
    """

    estimator: str
    values: tuple[PeriodValue, ...]
    drift: float

    def to_dict(self) -> dict[str, object]:
        """Return the values and the test as dictionaries."""
        return {
            "periods": [asdict(value) for value in self.values],
            "period_drift": {"estimator": self.estimator, "p_value": self.drift},
        }

    def findings(self) -> tuple[Finding, ...]:
        """Return the finding that the value changes, if the test is significant."""
        if not self.drift < SIGNIFICANT_P:
            return ()
        return (
            Finding(
                "period-drift",
                f"The value of the target differs between earlier and later periods (p = "
                f"{self.drift:.2g}): the estimate is an average over all {len(self.values)}, "
                "weighted by precision.",
                "Look at the values over time; for the present value, evaluate recent periods.",
            ),
        )


def over_time(
    name: str,
    whole: tuple[Estimate, Interval],
    pool: Pool,
    rule: IntervalRule,
) -> OverTime:
    """Return the value of each period behind an estimate of periods.

    Args:
        name: Name of the estimator.
        whole: Its estimate, whose combination has cells as keys, and the interval of it,
            which is also that of the last running estimate.
        pool: Moments of each cell.
        rule: Returns the interval of an estimate with a shape and powers, if it has any.
    """
    linear = whole[0].linear
    used = {d: c for d, c in pool.by_period.items() if _cut_linear(linear, c)[0] > 0}
    sums = _sums(linear, used.values(), pool)
    values = []
    for period, so_far in zip(used, accumulate(sums, _PeriodSums.__add__), strict=True):
        single, shape, powers = _estimate_alone(linear, used[period])
        alone = rule(single, shape, powers)
        running = so_far.estimate
        until = rule(running, so_far.shape, so_far.scaled_powers)
        values.append(
            PeriodValue(
                period=period,
                rows=used[period].rows,
                share=_cut_linear(linear, used[period])[0],
                value=single.value,
                std_error=single.std_error,
                lower=alone.lower,
                upper=alone.upper,
                running=running.value,
                running_lower=until.lower,
                running_upper=until.upper,
            )
        )
    lower, upper = whole[1].lower, whole[1].upper
    values[-1] = replace(values[-1], running_lower=lower, running_upper=upper)
    return OverTime(name, tuple(values), measure_drift(linear, pool))


def _cut_linear(linear: Linear, cells: Iterable[Stratum]) -> tuple[float, Linear]:
    """Return the share of some cells in an estimate, and what they add to it.

    The centre of a period is minus the coefficient of its weights, which average to 1.
    """
    parts = {c: linear.parts[c] for c in cells}
    share = math.fsum(_reward_coefficient(part) for part in parts.values())
    constant = -math.fsum(part.get(PERIOD_WEIGHT, 0.0) for part in parts.values())
    return share, Linear(parts, constant)


def _reward_coefficient(part: Mapping[Term, float]) -> float:
    """Return the coefficient of the rewards of a cell, the same for a model's terms."""
    return max((x for t, x in part.items() if t != PERIOD_WEIGHT), default=0.0)


def _estimate_alone(
    linear: Linear, cells: Pool
) -> tuple[Estimate, Shape | None, Powers | None]:
    """Return the estimate of one period, with its shape and its powers."""
    own = _scale_linear(linear, cells)
    strata = centre_units(own, cells)
    pull = find_pull((COLUMN,), cells, within=True)
    shape = None if strata is None else measure_shape(strata, pull)
    return _estimate_linear(own, cells), shape, estimate_powers(own, cells)


@dataclass(frozen=True, eq=False)
class _PeriodSums:
    """Sums over periods behind a running estimate, so that each period is read once.

    Attributes:
        numbers: Rows, share, value, variance, variance of cells with one row, the sum of
            squared variances of the others over their degrees of freedom, and the sum of
            the weights, shape (7,).
        units: Cumulants of the slices, the squares of their weights, and the products of
            weights and squares of the estimate, shape (5,); or what each bucket of
            clusters adds to the estimate and to the weights, shape (2, buckets).  None
            without either.
        powers: Powers of the rows in units of one row; None where the pass has none.
        scale: Number by which the estimate's units were divided.
        clustered: True if `units` are buckets.
    """

    numbers: FloatArray
    units: FloatArray | None
    powers: Powers | None
    scale: float
    clustered: bool

    def __add__(self, other: _PeriodSums) -> _PeriodSums:
        units = None
        if self.units is not None and other.units is not None:
            units = self.units + other.units
        return replace(
            self,
            numbers=self.numbers + other.numbers,
            units=units,
            powers=self.powers + other.powers if self.powers and other.powers else None,
        )

    @property
    def estimate(self) -> Estimate:
        """Estimate from these periods."""
        rows, share, value, variance, alone, below, _ = self.numbers.tolist()
        if self.clustered and self.units is not None:
            variance = float(_tally_units(*self.units)[0]) * self.scale**2
            freedom = self.units.shape[1] - 1.0
        else:
            below += alone**2 / max(1.0, rows - 1.0)
            freedom = variance**2 / below if below > 0 else math.inf
        return Estimate(value / share, variance / share**2, {}, freedom)

    @property
    def shape(self) -> Shape | None:
        """Shape of the estimate; the weights average to 1, as in `moments.units.find_pull`."""
        if self.units is None:
            return None
        *total, squares, products = _tally_units(*self.units) if self.clustered else self.units
        rows, weights = float(self.numbers[0]), float(self.numbers[-1])
        spread = math.sqrt(squares)
        rise = 0.0
        if spread > NULL_SPREAD * weights:
            rise = -(weights / rows - 1) * rows * float(products) / float(squares)
        return shape_from(np.array(total), rise)

    @property
    def scaled_powers(self) -> Powers | None:
        """Powers on the scale of the estimate's rows."""
        return self.powers and self.powers.scaled(self.powers.rows / self.numbers[1])


def _tally_units(units: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the cumulants of one stratum, the squares of its weights, and the products."""
    free = len(units) / max(1, len(units) - 1)
    products = free * float(np.sum(weights * units**2))
    return np.array([*cumulants(units), float(np.sum(weights**2)), products])


def _sums(
    linear: Linear,
    periods: Iterable[Pool],
    pool: Pool,
) -> Iterator[_PeriodSums]:
    """Yield the sums of each period."""
    variances = linear.variances(pool)
    error = math.sqrt(math.fsum(variances.values()))
    scale = error if 0 < error < math.inf else 1.0  # keeps cubes in range
    for cells in periods:
        share, part = _cut_linear(linear, cells)
        pairs = [(variances.get(c, 0.0), m.count) for c, m in cells.items()]
        rows, variance = sum(n for _, n in pairs), math.fsum(v for v, _ in pairs)
        alone = math.fsum(v for v, n in pairs if n == 1)
        below = math.fsum(v**2 / (n - 1) for v, n in pairs if n > 1)
        column = Linear({c: {PERIOD_WEIGHT: float(m.count)} for c, m in cells.items()})
        value, weight = part.value(cells), column.value(cells)
        numbers = np.array([rows, share, value, variance, alone, below, weight])
        powers = estimate_powers(part, cells)
        powers = powers and powers.scaled(1 / rows)
        both = [centre_units(x, cells) for x in (part * (1 / scale), column)]
        units = None
        if both[0] is not None and both[1] is not None:
            strata = list(zip(*both, strict=True))
            parts = [
                np.stack(pair) if pool.clustered else _tally_units(*pair) for pair in strata
            ]
            units = np.sum(parts, axis=0)
        yield _PeriodSums(numbers, units, powers, scale, pool.clustered)


def _estimate_linear(linear: Linear, pool: Pool) -> Estimate:
    """Return the estimate of a combination; clusters give the variance, if there are any."""
    estimate = make_estimate(linear, pool)
    if not pool.clustered:
        return estimate
    variance, freedom = linear.deviation_variance(pool)
    return replace(estimate, variance=variance, freedom=freedom)


def _scale_linear(linear: Linear, cells: Iterable[Stratum]) -> Linear:
    """Return the estimate from some cells alone."""
    share, part = _cut_linear(linear, cells)
    return part * (1 / share)


def measure_drift(linear: Linear, pool: Pool) -> float:
    """Return the p-value of the same value in the earlier and the later half of the rows.

    The two halves are combinations of the same estimates of periods as the whole.  The
    estimates of single periods are too skewed to be compared with each other: their errors
    are small where their values are low by chance.
    """
    halves = _halves(linear, pool)
    if halves is None:
        return math.nan
    difference = halves[1] - halves[0]
    estimate = _estimate_linear(difference, pool)
    if not 0 < estimate.variance < math.inf:
        return math.nan
    strata = centre_units(difference, pool)
    shape = measure_shape(strata) if strata is not None else Shape()
    ratio = estimate.value / estimate.std_error
    difference_shape = DifferenceShape(np.array([shape.skewness]), np.array([shape.noise]))
    score = skew_scores(np.array([ratio]), difference_shape, np.array([estimate.freedom]))
    return float(ALONE.p_values(score)[0])


def _halves(linear: Linear, pool: Pool) -> tuple[Linear, Linear] | None:
    """Return the estimate from the earlier and from the later half of the rows."""
    used = pool.keep(c for c, part in linear.parts.items() if any(part.values()))
    periods = list(used.by_period.values())
    if len(periods) < 2:
        return None
    ends = list(accumulate(cells.rows for cells in periods))
    cut = min(range(1, len(ends)), key=lambda k: abs(2 * ends[k - 1] - ends[-1]))
    halves = (chain.from_iterable(half) for half in (periods[:cut], periods[cut:]))
    earlier, later = (_scale_linear(linear, half) for half in halves)
    return earlier, later
