r"""Value over time: the estimate of each period, the running estimate, and a test of drift.

Each period gives an estimate of its own, unbiased given the past.  The running estimate
after a period combines the periods so far, with the weights of the estimate of all periods.
If the value does not change, the estimates from the earlier and from the later half of the
rows differ by their errors only.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import Finding
from poolwise.intervals.simultaneous import ALONE
from poolwise.intervals.skew import auto_interval, skew_scores
from poolwise.intervals.student import student
from poolwise.moments.cells import Cell, periods_of
from poolwise.moments.estimate import Estimate, estimated
from poolwise.moments.linear import Linear, added_freedom
from poolwise.moments.shape import Shape, shape_of, units_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.intervals.student import Limits
    from poolwise.moments.moments import Moments, MomentsByLogger
    from poolwise.moments.terms import Term

SIGNIFICANT = 0.001  # a smaller p-value of no drift becomes a finding


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
        if not self.drift < SIGNIFICANT:
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
    name: str, estimate: Estimate, moments: MomentsByLogger, level: float, limits: Limits
) -> OverTime:
    """Return the value of each period behind an estimate of periods.

    Args:
        name: Name of the estimator.
        estimate: Its estimate; cells are the keys of its combination.
        moments: Moments of each cell.
        level: Level of the intervals.
        limits: Bounds on the rows, for periods without spread.
    """
    parts = {d: _part(d, estimate.linear, moments) for d in periods_of(moments)}
    used = {d: part for d, part in parts.items() if part is not None}
    shares = {d: share for d, (share, _, _) in used.items()}
    singles = [single for _, single, _ in used.values()]
    running = _running(list(shares.values()), singles)
    values = []
    for (d, (share, single, cells)), so_far in zip(used.items(), running, strict=True):
        interval, _ = auto_interval(single, cells, (), level, limits)
        until = student(so_far, level)
        values.append(
            PeriodValue(
                period=d,
                rows=sum(m.count for m in cells.values()),
                share=share,
                value=single.value,
                std_error=single.std_error,
                lower=interval.lower,
                upper=interval.upper,
                running=so_far.value,
                running_lower=until.lower,
                running_upper=until.upper,
            )
        )
    return OverTime(name, tuple(values), drift_of(estimate.linear, moments))


def _part(
    period: str, linear: Linear, moments: MomentsByLogger
) -> tuple[float, Estimate, MomentsByLogger] | None:
    """Return share, estimate and cells of one period; None if it has no share."""
    cells: dict[str, Moments] = {
        c: m for c, m in moments.items() if isinstance(c, Cell) and c.period == period
    }
    coefficients = {c: linear.parts[c] for c in cells}
    share = math.fsum(max(parts.values(), default=0.0) for parts in coefficients.values())
    if not share > 0:
        return None
    own = Linear({c: {t: x / share for t, x in p.items()} for c, p in coefficients.items()})
    return share, estimated(own, cells), cells


def _running(shares: Sequence[float], singles: Sequence[Estimate]) -> list[Estimate]:
    """Return the combination of the first period, of the first two, and so on."""
    totals = list(accumulate(shares))
    estimates = []
    for k, total in enumerate(totals, 1):
        weights = [share / total for share in shares[:k]]
        pairs = list(zip(weights, singles[:k], strict=True))
        variances = [(w**2 * single.variance, single.freedom) for w, single in pairs]
        value = sum(w * single.value for w, single in pairs)
        variance = sum(v for v, _ in variances)
        estimates.append(Estimate(value, variance, {}, added_freedom(variances)))
    return estimates


def drift_of(linear: Linear, moments: MomentsByLogger) -> float:
    """Return the p-value of the same value in the earlier and the later half of the rows.

    The two halves are combinations of the same estimates of periods as the whole.  The
    estimates of single periods are too skewed to be compared with each other: their errors
    are small where their values are low by chance.
    """
    halves = _halves(linear, moments)
    if halves is None:
        return math.nan
    earlier, later = halves
    difference = later - earlier
    variance, freedom = difference.variance(moments)
    if not 0 < variance < math.inf:
        return math.nan
    strata = units_of(difference, moments, ())
    shape = shape_of(strata) if strata is not None else Shape()
    ratio = difference.value(moments) / math.sqrt(variance)
    numbers = (ratio, shape.skewness, shape.noise, freedom)
    score = skew_scores(*(np.array([number]) for number in numbers))
    return float(ALONE.p_values(score)[0])


def _halves(linear: Linear, moments: MomentsByLogger) -> tuple[Linear, Linear] | None:
    """Return the estimate from the earlier and from the later half of the rows."""
    parts: dict[str, dict[str, Mapping[Term, float]]] = {}
    rows: dict[str, int] = {}
    for cell, coefficients in linear.parts.items():
        if isinstance(cell, Cell) and any(coefficients.values()):
            parts.setdefault(cell.period, {})[cell] = coefficients
            rows[cell.period] = rows.get(cell.period, 0) + moments[cell].count
    if len(parts) < 2:
        return None
    total, ends = sum(rows.values()), list(accumulate(rows.values()))
    cut = min(range(1, len(ends)), key=lambda k: abs(2 * ends[k - 1] - total))
    periods = list(parts)
    early, late = (
        {c: p for d in half for c, p in parts[d].items()}
        for half in (periods[:cut], periods[cut:])
    )
    return _scaled(early), _scaled(late)


def _scaled(parts: Mapping[str, Mapping[Term, float]]) -> Linear:
    """Return the combination with shares that sum to 1."""
    total = sum(max(p.values()) for p in parts.values())
    return Linear({c: {t: x / total for t, x in p.items()} for c, p in parts.items()})
