r"""Audit: does each logger play each action as often as its logged propensities say?

Weights divide by propensities, so wrong propensities make every estimate wrong, and no other
test needs so little: logger, action and propensity of each row.  For an action k of one logger

$$E\left[\frac{1\{a = k\}}{p}\right] = P(k \text{ can be played}) \le 1$$

with $p$ the propensity of the played action $a$: given a context in which k has a positive
probability, k is played with that probability and then contributes its inverse.  The rows
need not be independent of each other, only each action given what came before it.

Each mean is compared with 1 by its standard error under the hypothesis that the propensities
are right: given the context, the variance of a row is $1/p_k - 1$, whose mean over contexts
the rows with action k estimate by $\sum (1/p^2 - 1/p) / n$.  Inverse propensities are skewed
to the right: a mean above 1 by chance comes with a large standard error, so that false alarms
are rare; a mean below 1 may only have missed its rare large terms, which is why a mean below
1 counts only if that variance does not rest on a few rows, and why the rows in which k could be
played and was not add the least variance that their own propensities allow: where another
action has probability .999, k and the rest share .001.

Where the whole distribution of a logger is known, the number of rows with an action is
compared with the sum of its probabilities instead, and so are the rows whose action had a
probability in some band.  These are sums of draws of known probabilities p, whose deviation t
has Bennett's bound at any number of rows, with $V = \sum p (1 - p)$:

$$P(\text{deviation} \ge t) \le e^{-V h(t / V)}, \qquad h(u) = (1 + u) \ln(1 + u) - u$$

Bennett, Journal of the American Statistical Association (1962).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from poolwise.errors import Finding
from poolwise.rows.actions import STEP_COUNT
from poolwise.text import percent, quote_names, short

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from poolwise.errors import Severity
    from poolwise.log.log import Log
    from poolwise.rows.actions import ActionSums, AuditSums
    from poolwise.rows.distributions import FrequencySums

AUDIT_LEVEL = 1e-3  # of a false alarm in a log, all loggers and actions together
RESTING = 50  # effective number of rows in a variance, from which a mean below 1 counts
FEW_VALUES = 10  # distinct propensities below which a policy may be designed on a grid
COSTLY = 1e-3  # relative error of inverse propensities that is worth a note
HARMFUL = 1e-2  # the same that may exceed the error of an estimate: worth a warning
ROUNDING = 1e-9  # relative error of a sum of probabilities
SHOWN_ACTIONS = 3  # actions that a finding names


@dataclass(frozen=True)
class ActionTest:
    """Comparison of an action's frequency with its propensities.

    Attributes:
        logger: Label of the logger.
        action: The action.
        rows: Rows with this action.
        factor: Mean of 1{a = k} / p over the rows in which it could be played; 1 is right, 2
            means that the action is played twice as often as the propensities say.
        z: Standard errors between the factor and 1.
        resting: Effective number of rows in the variance, (sum v)^2 / sum v^2 of v = w^2 - w.
        listed: Whether `eligible` says in which rows it could be played.
    """

    logger: str
    action: str
    rows: int
    factor: float
    z: float
    resting: float
    listed: bool

    @property
    def p_value(self) -> float:
        """Probability of a factor at least as far from 1 on the same side."""
        return math.erfc(abs(self.z) / math.sqrt(2)) / 2


def compare_frequency(sums: ActionSums, count: int) -> ActionTest:
    r"""Compare the frequency of one action with its propensities.

    $$z = \frac{\sum w - n}{\sqrt{\max(\sum w^2 - \sum w,\; \sum w^2 - (\sum w)^2 / n)}}$$

    with $w = 1/p$ over the rows of the action and $n$ rows in which it could be played.
    Below 1 the variance is at least that of the rows in which it was not played (`elsewhere`).

    Args:
        sums: Sums over the rows with the action.
        count: Rows of the logger.

    Examples:
        >>> from poolwise.rows.actions import ActionSums
        >>> played = ActionSums("v1", "a", 700, 2100.0, 6300.0, 25200.0, 0)  # p = 1/3
        >>> test = compare_frequency(played, 1000)
        >>> test.factor, round(test.z, 2)
        (2.1, 16.97)
    """
    listed = sums.eligible is not None and sums.eligible >= sums.rows
    possible = sums.eligible if listed and sums.eligible is not None else count
    gap = sums.inverse - possible
    given_context = sums.squares - sums.inverse
    overall = sums.squares - sums.inverse**2 / possible
    variance = max(given_context, overall, sums.elsewhere if gap < 0 else 0.0)
    if variance <= 0:  # every propensity is 1, or rounding hides that some are not
        z = 0.0 if abs(gap) <= 1e-9 * possible else math.copysign(math.inf, gap)
    else:
        z = gap / math.sqrt(variance)
    return ActionTest(
        sums.logger,
        sums.action,
        sums.rows,
        sums.inverse / possible,
        z,
        given_context**2 / sums.spreads if sums.spreads > 0 else 0.0,
        listed,
    )


@dataclass(frozen=True)
class FrequencyTest:
    """Comparison of a frequency with the whole distributions of a logger.

    Attributes:
        sums: The frequency, and its mean and variance.
    """

    sums: FrequencySums

    @property
    def logger(self) -> str:
        """Label of the logger."""
        return self.sums.logger

    @property
    def action(self) -> str:
        """The action; empty for a band of probabilities."""
        return self.sums.action

    @property
    def rows(self) -> int:
        """Rows with this action."""
        return self.sums.played

    @property
    def factor(self) -> float:
        """Rows with this action, relative to the sum of its probabilities."""
        expected = self.sums.expected
        return self.rows / expected if expected > 0 else math.inf if self.rows else 1.0

    @property
    def p_value(self) -> float:
        """Bound on the probability of a frequency at least as far from its mean, either side.

        >>> from poolwise.rows.distributions import FrequencySums
        >>> FrequencyTest(FrequencySums("v1", "a", 60, 50.0, 25.0)).p_value  # of 100 coins
        0.338...
        """
        gap, variance = abs(self.rows - self.sums.expected), self.sums.variance
        if gap <= ROUNDING * max(1.0, self.sums.expected):
            return 1.0
        if variance <= 0:
            return 0.0
        ratio = gap / variance
        exponent = variance * ((1 + ratio) * math.log1p(ratio) - ratio)
        return min(1.0, 2 * math.exp(-exponent))


Test: TypeAlias = ActionTest | FrequencyTest


def find_wrong_actions(sums: AuditSums) -> list[Test]:
    """Return the actions whose frequency differs from the propensities, the farthest first."""
    if not sums.named:
        return []
    exact = [FrequencyTest(one) for one in sums.frequencies]
    others = [compare_frequency(one, sums.counts[one.logger]) for one in sums.actions]
    level = AUDIT_LEVEL / max(1, len(exact) + len(others))
    known = {test.logger for test in exact}
    off: list[Test] = [t for t in exact if t.p_value < level]
    off += [
        t
        for t in others
        if t.p_value < level and (t.z > 0 or (t.resting >= RESTING and t.logger not in known))
    ]
    return sorted(off, key=lambda t: (-_distance(t.factor), t.logger, t.action))


def _distance(factor: float) -> float:
    return abs(math.log(factor)) if factor > 0 else math.inf


def audit_findings(sums: AuditSums, *, clustered: bool = False) -> tuple[Finding, ...]:
    """Return the findings of the audit.

    Args:
        sums: Sums of the rows.
        clustered: Whether rows belong to clusters, which may repeat the action of one draw:
            standard errors are then too small for an alarm.
    """
    off = find_wrong_actions(sums)
    severity: Severity = "warning" if clustered else "alarm"
    above = [test for test in off if test.factor > 1]
    low = [test for test in off if test.factor < 1]
    below = [test for test in low if isinstance(test, FrequencyTest) or test.listed]
    explained = {test.logger for test in (*above, *below)}
    unknown = [t for t in low if t not in below and t.logger not in explained]
    return (
        *(_too_often(above, severity) if above else ()),
        *(_too_seldom(below, severity) if below else ()),
        *(_seldom(unknown) if unknown else ()),
        *_find_rounded(sums),
    )


WRONG = (
    "Check that the propensity is the probability of the *logged* action at the time of the "
    "draw: not 1 over the number of actions, not that of the best action, not that of another "
    "version of the policy."
)


def _too_often(tests: Sequence[Test], severity: Severity) -> Iterator[Finding]:
    yield Finding(
        "action-too-often",
        f"Actions are played more often than their propensities allow: {_list_tests(tests)}. "
        "The propensities are wrong, and so is every estimate.",
        WRONG,
        severity,
    )


def _too_seldom(tests: Sequence[Test], severity: Severity) -> Iterator[Finding]:
    yield Finding(
        "action-too-seldom",
        "Actions are played less often than their propensities say, in rows in which they "
        f"could be played: {_list_tests(tests)}. The propensities are wrong, or the lists of "
        "`eligible`.",
        f"{WRONG} Check that `eligible` lists only actions that could be played.",
        severity,
    )


def _seldom(tests: Sequence[Test]) -> Iterator[Finding]:
    yield Finding(
        "action-seldom",
        f"Actions are played less often than their propensities say: {_list_tests(tests)}. "
        "Either they could be played in only some of the rows, or the propensities are wrong.",
        "Name `eligible` (--eligible), the column with the actions that could be played in "
        "each row: the audit then distinguishes the two.",
        "note",
    )


def _list_tests(tests: Sequence[Test]) -> str:
    named = [
        f"logger {t.logger!r} plays {_what(t)} {short(t.factor)} times as often "
        f"({t.rows:,} rows)"
        for t in tests[:SHOWN_ACTIONS]
    ]
    left = len(tests) - len(named)
    return ", ".join([*named, *([f"and {left:,} more"] if left else [])])


def _what(test: Test) -> str:
    band = test.sums.band if isinstance(test, FrequencyTest) else None
    if band is None:
        return repr(test.action)
    return f"actions of probability {short(band[0])} to {short(band[1])}"


def _find_rounded(sums: AuditSums) -> Iterator[Finding]:
    """Yield a finding about loggers whose propensities are multiples of one number."""
    by_steps: dict[int, dict[str, float]] = {}
    for logger, values in sums.grids.items():
        steps = STEP_COUNT // math.gcd(STEP_COUNT, *values)
        if len(values) >= FEW_VALUES and (cost := rounding_cost(sums, logger, steps)) >= COSTLY:
            by_steps.setdefault(steps, {})[logger] = cost
    for steps, costs in by_steps.items():
        worst = max(costs.values())
        yield Finding(
            "propensities-rounded",
            f"All propensities of {quote_names(list(costs), 'loggers')} are multiples of "
            f"1/{steps:,}: they were rounded, or are shares of {steps:,} draws. Rounding alone "
            f"shifts the mean weight by up to {percent(worst)}; intervals do not allow for it.",
            "Log the propensities as they were computed, in full precision.",
            "warning" if worst >= HARMFUL else "note",
        )


def rounding_cost(sums: AuditSums, logger: str, steps: int) -> float:
    r"""Return the largest relative error of the mean inverse propensity due to rounding.

    A propensity is off by at most half a step $h = 1/steps$, and its inverse by $h/2p$ of
    itself: together $\frac h2 \sum p^{-2} / \sum p^{-1}$.

    Examples:
        >>> from poolwise.rows.actions import ActionSums, AuditSums
        >>> played = ActionSums("v1", "a", 100, 1000.0, 10000.0, 810000.0, 100)  # p = 0.1
        >>> round(rounding_cost(AuditSums({"v1": 1000}, (played,)), "v1", steps=100), 12)
        0.05
    """
    own = [one for one in sums.actions if one.logger == logger]
    return 0.5 / steps * sum(o.squares for o in own) / sum(o.inverse for o in own)


def explain_unaudited(log: Log) -> tuple[Finding, ...]:
    """Return the note why propensities of a log are not compared with frequencies, if so."""
    reason, advice = "", ""
    if log.densities:
        reason = "a density of a continuous action has no frequency to compare it with"
    elif log.requests is not None:
        reason = "the rows of a request share the draw of one list"
    elif log.action is None:
        reason = "the log does not name the column of the logged action"
        advice = "Name it as `action` (--action)."
    if not reason:
        return ()
    text = f"The propensities were not compared with the frequencies of actions: {reason}."
    return (Finding("no-audit", text, advice, "note"),)
