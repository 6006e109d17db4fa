r"""Period-balanced: balanced within a period, weighted across periods.

Policies that are retrained on their own logs depend on earlier rewards.  A mixture over all
rows then depends on the future of a row, and every estimate that divides by it is biased.
Within a period the live policies are fixed, so the balanced estimate with the *period's*
mixture is unbiased given the past; periods are combined with shares that depend on rewards
only through later policies, which leaves a small bias.  Rewards are centred at the estimate of
earlier periods, which removes the part of the error that comes from the sum of the weights.

Agarwal, Basu, Schnabel & Joachims (KDD 2017) for both weightings; Hadad, Hirshberg, Zhan,
Wager & Athey (PNAS 2021) and Zhan, Hadad, Hirshberg & Athey (KDD 2021) for one logger.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from poolwise.errors import Finding, RefusedError, UsageError
from poolwise.estimators.divergences import refuse_unsupported
from poolwise.moments.estimate import Estimate, Estimator, make_estimate
from poolwise.moments.linear import Linear, shares
from poolwise.moments.pool import Cell, list_periods
from poolwise.moments.terms import (
    BALANCED_WEIGHT,
    PERIOD_RESIDUAL,
    PERIOD_REWARD,
    PERIOD_WEIGHT,
    PREDICTED_VALUE,
    Needs,
    Term,
    period_moment,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.moments.coverage import Coverage
    from poolwise.moments.pool import ByStratum, Pool, Stratum

Across = Literal["stable", "minimum"]


@dataclass(frozen=True)
class PeriodBalanced(Estimator):
    r"""Balanced IPS in each period, with shares of periods that contain no rewards.

    $$\hat U = \sum_d \frac{g_d}{\sum_e g_e} \frac1{n_d} \sum_{j \in d} \big(b_d + w_j
      (\delta_j - b_d)\big), \qquad w_j = \frac{\bar\pi(y_j|x_j)}{\pi_d(y_j|x_j)}, \qquad
      \pi_d = \sum_i \frac{n_{di}}{n_d} \pi_i, \qquad g_d = \frac{n_d}{\sqrt{v_d}}$$

    with $v_d = E_x \sum_y \bar\pi^2 / \pi_d$ from the rows of all periods, and $b_d$ the
    self-normalised mean reward of all earlier periods, 0 in the first. The estimate is
    valid if the policies of a period are fixed before the period begins; they may depend on
    earlier periods in any way. It is unbiased up to its shares: policies that learned from a
    period are in the shares of later periods, and so in the sum that divides its own.

    If the probabilities of a row are known only for the policies of its own period, $v_d$
    could only be estimated from the weights that it combines, so $g_d = n_d$.

    Attributes:
        across: "stable" is the above; "minimum" is $g_d = n_d / v_d$, better where concurrent
            control traffic keeps the $v_d$ comparable.
        centred: Whether rewards are centred at $b_d$. Given the past, the weights average
            to 1, so a $b_d$ from earlier periods does not change the expectation.

    Examples:
        >>> PeriodBalanced().name, PeriodBalanced("minimum").name
        ('period-balanced', 'period-balanced-minimum')
    """

    across: Across = "stable"
    centred: bool = True

    def __post_init__(self) -> None:
        if self.across not in get_args(Across):
            raise UsageError(f"across must be 'stable' or 'minimum', got {self.across!r}")

    @property
    def name(self) -> str:
        return "period-balanced" + self._suffix + ("" if self.centred else "-uncentred")

    @property
    def pools(self) -> bool:
        return False

    @property
    def by_cell(self) -> bool:
        return True

    @property
    def rank(self) -> int:
        return 2

    @property
    def formula(self) -> str:
        return "period"

    @property
    def _suffix(self) -> str:
        return "" if self.across == "stable" else f"-{self.across}"

    @property
    def _terms(self) -> tuple[Term, ...]:
        """Terms of a row whose sum has the target's value as expectation."""
        return (PERIOD_REWARD,)

    def needs(self, coverage: Coverage) -> Needs:
        periods = list_periods(coverage.cells)
        if not periods:
            raise RefusedError(
                f"{self.name}-refused",
                f"{self.name} requires the period in which each row was logged: give `period` "
                "(--period), a column such as the day.",
            )
        if not coverage.period_mixed:
            refuse_shared(self.name, coverage.cells)
        together = (*self._terms, *([PERIOD_WEIGHT] if self.centred else []))
        alone = Needs(groups=(together, (PERIOD_WEIGHT,)), extremes=(PERIOD_WEIGHT,))
        if coverage.crossed:
            return alone | Needs(tuple(map(period_moment, periods)), ((BALANCED_WEIGHT,),))
        return alone

    def estimate(self, pool: Pool) -> Estimate:
        """Return the estimate from the moments of cells."""
        second = second_moments(pool)
        outside = [period for period, v in second.items() if math.isinf(v)]
        if len(outside) == len(second):
            raise RefusedError(
                f"{self.name}-refused",
                f"{self.name} requires a period whose policies together can play every action "
                "of the target, and each period lacks some. Log such actions first.",
            )
        rows = {d: cells.rows for d, cells in pool.by_period.items()}
        power = 0.5 if self.across == "stable" else 1.0
        across = shares({d: rows[d] * second[d] ** -power for d in second})
        share = {
            c: across[_cell_period(c)] * m.count / rows[_cell_period(c)]
            for c, m in pool.items()
        }
        centres = earlier_means(pool, outside) if self.centred else {}
        findings = (_warn_unsupported_periods(outside, len(second)),) if outside else ()
        linear = self._combined(share, centres)
        return make_estimate(linear, pool, share, findings)

    def _combined(self, share: ByStratum[float], centres: Mapping[str, float]) -> Linear:
        """Return the combination of cells in these shares, centred by period."""
        parts, constant = {}, 0.0
        for cell, part in share.items():
            parts[cell] = dict.fromkeys(self._terms, part)
            if (centre := centres.get(_cell_period(cell))) and part:
                parts[cell][PERIOD_WEIGHT] = -centre * part
                constant += centre * part
        return Linear(parts, constant)


@dataclass(frozen=True)
class PeriodDoublyRobust(PeriodBalanced):
    r"""`PeriodBalanced`, with a reward model of earlier periods.

    $$\hat U = \sum_d \frac{g_d}{\sum_e g_e} \frac1{n_d} \sum_{j \in d} \Big( \sum_y
      \bar\pi(y|x_j) \hat q_{d-1}(x_j, y) + \frac{\bar\pi(y_j|x_j)}{\pi_d(y_j|x_j)}
      \big(\delta_j - \hat q_{d-1}(x_j, y_j)\big) \Big)$$

    The model of a period is fitted to the rows of earlier periods only; the model of the
    first period predicts 0. The model replaces the centre.
    """

    centred: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        return "period-dr" + self._suffix

    @property
    def predicts(self) -> bool:
        return True

    @property
    def rank(self) -> int:
        return 3

    @property
    def _terms(self) -> tuple[Term, ...]:
        return PREDICTED_VALUE, PERIOD_RESIDUAL


def refuse_shared(name: str, cells: Sequence[Stratum]) -> None:
    """Raise RefusedError if a period has several loggers, without cross-propensities."""
    live = Counter(_cell_period(cell) for cell in cells)
    shared = [period for period, loggers in live.items() if loggers > 1]
    if shared:
        raise RefusedError(
            f"{name}-refused",
            f"{name} requires the probability of each row's action under every logger of its "
            f"period, and period {shared[0]} has {live[shared[0]]} loggers. Give "
            "`propensities` (--propensities): a column, an expression or a policy for each "
            "logger.",
        )


def second_moments(pool: Pool) -> dict[str, float]:
    r"""Return $v_d = E_x \sum_y \bar\pi^2 / \pi_d$ of each period, from the rows of all.

    Infinite if the loggers of the period never play an action of the target; 1 where
    cross-propensities between periods are missing.
    """
    periods = tuple(pool.by_period)
    whole = pool.together
    if not all(whole.has(period_moment(d)) for d in periods):
        return dict.fromkeys(periods, 1.0)
    square = whole.mean_square(BALANCED_WEIGHT)
    return refuse_unsupported({d: whole.mean(period_moment(d)) for d in periods}, square)


def earlier_means(pool: Pool, outside: Sequence[str] = ()) -> dict[str, float]:
    """Return the self-normalised mean reward of the periods before each period.

    0 in the first period.  Periods `outside`, which cannot play the target, do not count.
    """
    means: dict[str, float] = {}
    above = below = 0.0
    for period, cells in pool.by_period.items():
        means[period] = above / below if below > 0 else 0.0
        if period not in outside:
            above += math.fsum(m.count * m.mean(PERIOD_REWARD) for m in cells.values())
            below += math.fsum(m.count * m.mean(PERIOD_WEIGHT) for m in cells.values())
    return means


def _cell_period(cell: Stratum) -> str:
    return cell.period if isinstance(cell, Cell) else ""


def _warn_unsupported_periods(periods: Sequence[str], total: int) -> Finding:
    return Finding(
        "period-unsupported",
        f"In {len(periods)} of {total} periods (the first is {periods[0]}) the loggers gave "
        "probability 0 to actions of the target; these periods are left out of "
        "period-balanced.",
        "Keep some traffic on a policy that plays every action.",
    )
