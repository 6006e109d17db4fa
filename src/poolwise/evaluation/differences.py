"""Differences: of two targets, of a target and a baseline, of segments.

One mechanism serves all of them.  A `Spread` has values and the errors that they share, a
`Family` says how intervals and p-values hold together, and `conclude` turns both into
differences: limits, p-values and verdicts.

The baseline of an evaluation is a logger, the incumbent.  Where every logger scores every row,
the incumbent's own policy is estimated from the same rows as the target, and the errors that
both share cancel.  Otherwise its value is the mean reward of its own rows; these rows are in
the estimate of the target too, and the covariance of the moments accounts for that.  The
differences of several targets hold together (Bonferroni), because a sentence reports the
highest of them.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, get_args

import numpy as np
from scipy.sparse import csr_array
from scipy.special import ndtr, ndtri

from poolwise.diagnosis.findings import UNCOVERED
from poolwise.diagnosis.provenance import on_own
from poolwise.errors import RefusedError, UsageError, did_you_mean
from poolwise.estimators import recommend
from poolwise.evaluation.decisive import INCUMBENT, TARGET
from poolwise.evaluation.relation import Relative, relate_apart
from poolwise.evaluation.spread import Candidates, ErrorSource, Spread, find_equals
from poolwise.intervals.simultaneous import ALONE
from poolwise.intervals.skew import reaching
from poolwise.intervals.student import Interval, tail_probability, within
from poolwise.moments.estimate import make_estimate
from poolwise.moments.linear import Linear, shares
from poolwise.moments.pool import Cell, find_logger
from poolwise.moments.shape import find_weight
from poolwise.moments.terms import (
    BALANCED_WEIGHT,
    NO_NEEDS,
    REWARD,
    WEIGHT,
    Factor,
    Needs,
    Term,
    ratio,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from poolwise.errors import Finding
    from poolwise.evaluation.output import Row
    from poolwise.evaluation.read import Answers, OpenLog
    from poolwise.evaluation.results import TargetResult
    from poolwise.intervals.simultaneous import MaxT
    from poolwise.intervals.skew import Reaching
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.pool import Pool, Stratum
    from poolwise.types import FloatArray

    Pair = tuple[str, str]  # a target, and what is subtracted from it
    Relate = Callable[[int, float], Relative | None]

Verdict = Literal["better", "worse", "undecided", "identical", "unreliable"]
Requirement = Literal["better", "not-worse"]
FLIPPED: Mapping[Verdict, Verdict] = {"better": "worse", "worse": "better"}
# alarms that forbid a verdict
DOUBTED = UNCOVERED | {"weights-off", "propensities-off", "propensities-estimated"}
REST = "(the other segments)"
OF_POLICY = frozenset({"reward", "ratio", "balanced_weight", "period_weight"})  # of loggers too
RATIOS = {"balanced_weight": "ratio", "period_weight": "period_ratio"}  # of a logger's policy


# --- one difference -----------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """One target less another.

    Attributes:
        target: The target.
        other: The target that is subtracted.
        value: Estimated difference, paired by row.
        std_error: Standard error of `value`.
        interval: Interval that holds for all reported differences together. In a comparison
            it includes 0 where the ranking contradicts `value`.
        p_value: P-value of no difference, for this pair alone.
        adjusted: P-value adjusted for all of them, by single-step max-T in a comparison and by
            Bonferroni in an evaluation: below 1 - level if and only if the interval excludes 0.
        verdict: "better" or "worse" where the interval excludes 0; "unreliable" where an alarm
            says that the probabilities of either target cannot be right, that they were
            estimated and may leave out a cause, or that the logs say too little.
        odds_to_reverse: Factor by which an unseen cause must change the odds of an action to
            reverse the difference, if propensities were estimated; infinite if no factor is
            enough.
        units: What each bucket of clusters adds to the error; None without clusters, and where
            the two sides were not estimated together.
        relative: The difference relative to the other value; None if that value is not
            significantly away from 0.
        sign: 1 if higher values are better, -1 if lower ones are, as of latency.
    """

    target: str
    other: str
    value: float
    std_error: float
    interval: Interval
    p_value: float
    adjusted: float
    verdict: Verdict
    odds_to_reverse: float | None = None
    units: FloatArray | None = field(default=None, repr=False, compare=False)
    relative: Relative | None = None
    sign: float = 1.0

    @property
    def doubted(self) -> bool:
        """True if an alarm forbids a verdict, other than that propensities were estimated."""
        return self.verdict == "unreliable" and self.odds_to_reverse is None

    def facing(self, sign: float) -> Difference:
        """Return the difference with the verdict of this direction."""
        if sign == self.sign:
            return self
        return replace(self, verdict=FLIPPED.get(self.verdict, self.verdict), sign=sign)

    def against(self, baseline: str) -> Difference:
        """Return the difference with the baseline as the target that is subtracted."""
        if self.other == baseline:
            return self
        return replace(
            self,
            target=self.other,
            other=self.target,
            value=-self.value,
            interval=Interval(-self.interval.upper, -self.interval.lower, self.interval.level),
            verdict=FLIPPED.get(self.verdict, self.verdict),
            relative=self.relative and self.relative.inverse,
        )

    def lack(self, required: Requirement, margin: float) -> str:
        """Return the reason why a requirement does not hold; empty if it does."""
        if self.verdict == "unreliable":
            return f"an alarm forbids a verdict on {self.target!r} less {self.other!r}"
        if self.verdict == "identical" and required == "not-worse":
            return ""
        bound = self.sign * (margin if required == "better" else -margin)
        higher = self.sign > 0
        limit = self.interval.lower if higher else self.interval.upper
        if self.sign * (limit - bound) > 0:
            return ""
        words = ("begins", "above") if higher else ("ends", "below")
        start = f"the interval of {self.target!r} less {self.other!r} {words[0]} at"
        return f"{start} {limit:.4g}, not {words[1]} {bound:g}"

    def to_dict(self) -> Row:
        """Return the difference under flat names."""
        ends = {"lower": self.interval.lower, "upper": self.interval.upper}
        row = {"target": self.target, "other": self.other, "difference": self.value}
        rest = {k: getattr(self, k) for k in ("p_value", "adjusted", "verdict")}
        if self.odds_to_reverse is not None:
            rest["odds_to_reverse"] = self.odds_to_reverse
        row |= {"std_error": self.std_error, **ends, **rest}
        known = self.relative
        row |= {} if known is None else {"relative": known.value}
        ends = {} if known is None else vars(known.interval)
        return row | {f"relative_{k}": ends[k] for k in ends if k != "level"}


def check_requirement(
    verdict: Requirement,
    margin: float,
    pairs: Sequence[Difference],
    target: str | None,
    baseline: str,
) -> None:
    """Reject a requirement that no difference can meet or fail."""
    if verdict not in get_args(Requirement) or not 0 <= margin < math.inf or not pairs:
        raise UsageError(
            "require takes 'better' or 'not-worse', a finite margin of 0 or more, and a "
            "comparison with a baseline and the target; got "
            f"{verdict!r}, {margin:g} and {target!r} against {baseline!r}"
        )


def tie(target: str, other: str, level: float) -> Difference:
    """Return the difference of targets that are equal on every row."""
    none = Interval(0.0, 0.0, level)
    same = Relative(0.0, none)
    return Difference(target, other, 0.0, 0.0, none, 1.0, 1.0, "identical", relative=same)


def find_doubts(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the codes of alarms that forbid a verdict about a target."""
    return tuple(sorted(DOUBTED & {f.code for f in findings if f.severity == "alarm"}))


def judge_difference(interval: Interval, *, doubted: bool) -> Verdict:
    """Return the verdict of a difference with this interval."""
    if doubted:
        return "unreliable"
    if 0.0 in interval:
        return "undecided"
    return "better" if interval.lower > 0 else "worse"


def relate_none(number: int, critical: float) -> None:
    """Return no relation of a pair, by its number, at a critical value."""
    del number, critical


# --- intervals and p-values that hold together ------------------------------------------


class Family(Protocol):
    """Differences whose intervals and p-values hold together."""

    def critical(self, level: float) -> float:
        """Return the normal critical value at which all intervals cover at a level."""

    def p_values(self, scores: FloatArray) -> FloatArray:
        """Return the p-value of each score, adjusted for the family."""


@dataclass(frozen=True)
class Bonferroni:
    """A family of differences that may depend on each other in any way.

    Attributes:
        number: Number of differences.
    """

    number: int

    def critical(self, level: float) -> float:
        return -float(ndtri((1 - level) / self.number / 2))

    def p_values(self, scores: FloatArray) -> FloatArray:
        return np.minimum(1.0, ALONE.p_values(scores) * self.number)


@dataclass(frozen=True)
class Families:
    """Several families of the same distribution, as if they were independent.

    Attributes:
        one: Distribution of the largest difference of a family.
        number: Number of families.
    """

    one: MaxT
    number: int

    def critical(self, level: float) -> float:
        return self.one.critical(level ** (1 / self.number))

    def p_values(self, scores: FloatArray) -> FloatArray:
        return np.asarray(1 - (1 - self.one.p_values(scores)) ** self.number)


def conclude(
    pairs: Sequence[Pair],
    spread: Spread,
    family: Family,
    level: float,
    *,
    reward_range: tuple[float, float] | None = None,
    doubted: Collection[Pair] = (),
    agree: FloatArray | bool = True,
    relate: Relate = relate_none,
) -> list[Difference]:
    """Return differences with intervals, p-values and verdicts that hold together.

    Args:
        pairs: Names of the two sides of each difference.
        spread: Values of the differences, and their errors.
        family: Says how the differences hold together.
        level: Level of the intervals.
        reward_range: Range of the rewards, which bounds every difference.
        doubted: Pairs with a side about which an alarm forbids a verdict.
        agree: False where other evidence contradicts the sign of a difference, so that
            nothing is shown.
        relate: Returns the relation of a pair, by its number, at a critical value.
    """
    critical = family.critical(level)
    lower, upper = spread.limits(critical)
    # without spread, only the range of the rewards bounds a difference
    lower = np.where(spread.errors > 0, lower, -math.inf)
    upper = np.where(spread.errors > 0, upper, math.inf)
    lower = np.where(agree, lower, np.minimum(lower, 0.0))
    upper = np.where(agree, upper, np.maximum(upper, 0.0))
    scores = np.where(agree, spread.scores(), 0.0)
    p_values = (ALONE.p_values(scores), family.p_values(scores))
    numbers = np.column_stack([spread.values, spread.errors, lower, upper, *p_values])
    differences = []
    for k, (pair, (value, error, low, high, p, adjusted)) in enumerate(
        zip(pairs, numbers.tolist(), strict=True)
    ):
        interval = within(Interval(low, high, level), reward_range)
        verdict = judge_difference(interval, doubted=pair in doubted)
        relative = relate(k, critical)
        if relative is not None and 0.0 in interval:
            relative = relative.with_zero
        found = Difference(*pair, value, error, interval, p, adjusted, verdict)
        differences.append(replace(found, relative=relative))
    return differences


def contrast_segments(
    differences: Mapping[str, Difference],
    errors: FloatArray,
    sizes: FloatArray,
    targets: int,
    rng: np.random.Generator,
    *,
    dependent: bool,
    units: FloatArray | None = None,
    unchanged: float = 0.0,
) -> dict[str, Difference]:
    r"""Return the difference in each segment less its mean over the other segments.

    $$c_s = d_s - \sum_{t \ne s} \frac{n_t}{n - n_s} d_t$$

    Segments of independent rows are independent, so the covariance of the contrasts follows
    from the errors of the differences.  Clusters may have rows in several segments: the
    correlation of the differences is then that of what each bucket of clusters adds to them.
    Several targets are allowed for as if they were independent.

    Args:
        differences: Difference of one target in each segment.
        errors: Error of each difference, which allows for skewness.
        sizes: Requests of each segment.
        targets: Number of targets.
        rng: Generator of the draws behind the critical value.
        dependent: Whether segments depend on each other in an unknown way, as parts of one
            request do; errors of the contrasts then add up.
        units: What each bucket of clusters adds to the error of each difference, shape
            (segments, buckets); None if rows are independent.
        unchanged: Requests of the segments in which the policies are the same: their
            difference is 0, and belongs to the mean over the others.
    """
    rest = sizes / (unchanged + sizes.sum() - sizes)[:, None]
    np.fill_diagonal(rest, 0.0)
    matrix = np.eye(len(sizes)) - rest
    values = matrix @ np.array([d.value for d in differences.values()])
    source = ErrorSource(csr_array(matrix), np.diag(errors**2), math.inf)
    if units is not None:
        scaled = units * (errors / np.sqrt((units**2).sum(axis=1)))[:, None]
        source = ErrorSource(csr_array(matrix), scaled @ scaled.T, units.shape[1] - 1.0)
    spread = Spread(values, [source], np.full(len(sizes), math.inf))
    if dependent:
        spread = Spread.of_errors(values, np.abs(matrix) @ errors)
    level = next(iter(differences.values())).interval.level
    pairs = [(d.target, REST) for d in differences.values()]
    contrasts = conclude(pairs, spread, Families(spread.together(rng), targets), level)
    return {
        segment: replace(c, verdict="unreliable") if d.verdict == "unreliable" else c
        for (segment, d), c in zip(differences.items(), contrasts, strict=True)
    }


# --- the incumbent -----------------------------------------------------------------------


class _Pairing(NamedTuple):
    """The incumbent's side, which the differences of all targets share.

    Attributes:
        own: The incumbent's own value.
        reach: Distances from it to its limits.
    """

    own: Estimate
    reach: Reaching


@dataclass(frozen=True)
class Incumbent:
    """The logger that targets are compared with.

    Attributes:
        name: Label of the logger.
        reason: Reason for the choice, "largest logger" for example; empty if it was named.
        estimator: Name of the estimator of the differences.
        joins: Whether the logger's own policy is estimated from the rows of all loggers.
        needs: Moments of the differences, for one target.
    """

    name: str
    reason: str
    estimator: str
    joins: bool = False
    needs: Needs = NO_NEEDS

    @property
    def joined(self) -> str:
        """The logger, if its own policy is estimated from the rows of all loggers."""
        return self.name if self.joins else ""

    def differences(
        self, answers: Answers, results: Mapping[str, TargetResult]
    ) -> dict[str, Difference]:
        """Return each target less the incumbent; targets without an estimate have none."""
        pairing = None
        differences = {}
        for target, result in results.items():
            estimate = result.estimates.get(self.estimator)
            if estimate is not None and estimate.linear.parts and self.needs.terms:
                with suppress(RefusedError):  # a finding of the target gives the reason
                    pairing = pairing or self._pairing(answers, target)
                    differences[target] = self._paired(pairing, answers, target, result)
            if result.estimates and target not in differences:
                own, error = self.bound_own(answers, target)
                differences[target] = self.subtract_apart(
                    answers, target, result, own, (error, error)
                )
        return differences

    def _pairing(self, answers: Answers, target: str) -> _Pairing:
        """Return the incumbent's own value, which the moments of any target contain."""
        own, pool = self.estimate_own(answers, target)
        alone = own
        if answers.request.clustered:
            variance, freedom = own.linear.deviation_variance(pool)
            alone = replace(own, variance=variance, freedom=freedom)
        if answers.request.log.clicks is not None:  # single rows do not have the curve's error
            own = alone
        return _Pairing(own, reaching(alone, pool, answers.limits(target)))

    def _paired(
        self,
        pairing: _Pairing,
        answers: Answers,
        target: str,
        result: TargetResult,
    ) -> Difference:
        """Return the difference with the covariance of both sides."""
        estimate = result.estimates[self.estimator]
        pool, limits = self._pool(answers, target), answers.limits(target)
        sides = {TARGET: estimate, INCUMBENT: pairing.own}
        reaches = {TARGET: reaching(estimate, pool, limits), INCUMBENT: pairing.reach}
        heavy = answers.heavy.against(target, self.name)
        usable = answers.served.estimators[self.estimator].sets_apart
        own = heavy if usable else None
        both = pool.select(self.name_terms())
        candidates = Candidates(sides, both, reaches, lambda _left, _right: own)
        return self.subtract(candidates, answers, target, result, limits.reward_range)

    def subtract(
        self,
        candidates: Candidates,
        answers: Answers,
        target: str,
        result: TargetResult,
        reward_range: tuple[float, float] | None,
    ) -> Difference:
        """Return the difference of two sides that were estimated from the same rows.

        It holds together with those of all other targets.
        """
        level, pair = answers.request.level, (TARGET, INCUMBENT)
        pool, family = self._pool(answers, target), Bonferroni(len(answers.request.names))
        first = find_equals(candidates.pool, pair, BALANCED_WEIGHT) if self.joins else {}
        if first.get(INCUMBENT) == TARGET or self._is_played(pool):
            return tie(target, self.name, level)
        spread, named = candidates.differences([pair]), (target, self.name)
        doubted = [named] if find_doubts(result.findings) else []
        (difference,) = conclude(
            [named],
            spread,
            family,
            level,
            reward_range=reward_range,
            doubted=doubted,
            relate=lambda _, critical: candidates.relate(*pair, critical, level),
        )
        return replace(difference, units=candidates.bucket_sums(pair))

    def _is_played(self, pool: Pool) -> bool:
        """Test if the target is the incumbent's own policy, by the incumbent's own rows."""
        own = pool.by_logger[self.name]
        ends = (own.min(WEIGHT), own.max(WEIGHT))
        return not self.joins and all(math.isclose(end, 1.0, rel_tol=1e-9) for end in ends)

    def _pool(self, answers: Answers, target: str) -> Pool:
        """Return the moments that the estimator of the differences reads."""
        return answers.pool(target, answers.served.estimators[self.estimator])

    def name_terms(self, measure: str = "") -> dict[Term, Term]:
        """Return the terms of both sides, each under its own name, of one measure."""
        own = [t.bind(measure=measure) for t in self.needs.scattered]
        terms = {t.bind(TARGET): t for t in own}
        if self.joins:
            terms |= {t.bind(INCUMBENT): _bind_logger(t, self.name) for t in own}
        return terms

    def estimate_own(self, answers: Answers, target: str) -> tuple[Estimate, Pool]:
        """Return the incumbent's own value, and the moments behind it.

        It is that of its policy, or its mean reward.
        """
        pool = self._pool(answers, target)
        if self.joins:
            estimator = answers.served.estimators[self.estimator]
            coverage = replace(answers.served.coverage, loggers=answers.loggers)
            own = estimator.needs(coverage)
            terms = {t: _bind_logger(t, self.name) for t in (*own.terms, BALANCED_WEIGHT)}
            pool = pool.select(terms)
            return estimator.estimate(pool), pool
        counts = {i: m.count for i, m in pool.items() if find_logger(i) == self.name}
        parts = {i: {REWARD: share} for i, share in shares(counts).items()}
        return make_estimate(Linear(parts), pool), pool

    def bound_own(self, answers: Answers, target: str) -> tuple[float, float]:
        """Return the incumbent's mean reward, and a bound on its standard error.

        The variance of rewards between m and M with mean r is at most (M - r) (r - m).
        """
        pool = answers.pool(target)
        own = pool[self.name]
        mean = own.mean(REWARD)
        bound = (own.max(REWARD) - mean) * (mean - own.min(REWARD))
        error = math.sqrt(max(0.0, bound) / (own.count - 1)) if own.count > 1 else math.inf
        if answers.request.clustered:
            error = max(error, _clustered_error(pool, self.name))
        return mean, error

    def subtract_apart(
        self,
        answers: Answers,
        target: str,
        result: TargetResult,
        own: float,
        errors: tuple[float, float],
    ) -> Difference:
        """Return the difference from the incumbent's own value, without a covariance.

        The errors of both sides add up, which holds however they depend on each other.

        Args:
            answers: Moments of the pass.
            target: Name of the target.
            result: Its result.
            own: The incumbent's own value.
            errors: Distances from it to its limits at a critical value of 1.
        """
        family = Bonferroni(len(answers.request.names))
        name = (
            self.estimator
            if self.estimator in result.estimates
            else next(iter(result.estimates))
        )
        estimate, interval = result.estimates[name], result.intervals[name]
        value, both = estimate.value - own, estimate.std_error + max(errors)
        normal = -float(ndtri(tail_probability(interval.level, answers.request.sides)))
        down, up = errors
        below = (estimate.value - interval.lower) / normal + up  # at a critical value of 1
        above = (interval.upper - estimate.value) / normal + down
        reach = below if value >= 0 else above
        p_value = 2 * float(ndtr(-abs(value) / reach)) if 0 < reach < math.inf else 1.0
        level = answers.request.level
        critical = family.critical(level)
        ends = Interval(value - critical * below, value + critical * above, level)
        ends = within(ends, answers.request.log.reward_range)
        verdict = judge_difference(ends, doubted=bool(find_doubts(result.findings)))
        adjusted = min(1.0, p_value * family.number)
        baseline = Interval(own - critical * down, own + critical * up, level)
        relative = None
        if 0.0 not in baseline:
            below, above = critical * (below - up), critical * (above - down)
            mine = Interval(estimate.value - below, estimate.value + above, level)
            relative = relate_apart(estimate.value, mine, own, baseline)
            relative = relative.with_zero if 0.0 in ends else relative
        names = (target, self.name)
        found = Difference(*names, value, both, ends, p_value, adjusted, verdict)
        return replace(found, relative=relative)


def _clustered_error(pool: Pool, logger: str) -> float:
    """Return the error of a logger's mean reward, from buckets of clusters."""
    present, counts, means = pool.bucket_means(logger, (REWARD,))
    if len(present) < 2:
        return math.inf
    total = counts.sum()
    sums = counts * (means[:, 0] - counts @ means[:, 0] / total)
    return math.sqrt(len(present) / (len(present) - 1) * float(sums @ sums)) / float(total)


def _bind_logger(term: Term, logger: str) -> Term:
    """Return the term with the logger's policy in place of the target's."""
    ratios = {weight: Factor(name, logger) for weight, name in RATIOS.items()}
    return Term(tuple(sorted(ratios.get(f.name, f) for f in term.factors)))


def find_incumbent(rows: OpenLog, baseline: str | None) -> Incumbent:
    """Return the logger to compare with: the named one, or the one with the most rows."""
    asked, counts = rows.request, rows.rows.counts
    if baseline is not None and baseline not in counts:
        names = [*asked.names, *counts]
        hint = did_you_mean(baseline, names)
        raise UsageError(f"baseline {baseline!r} is neither a target nor a logger{hint}")
    name = max(counts, key=lambda i: counts[i]) if baseline is None else baseline
    largest = sum(count == max(counts.values()) for count in counts.values())
    default = "largest logger" if largest == 1 else "first of the largest loggers"
    default = default if len(counts) > 1 else "only logger"
    usable = rows.served.estimators
    estimator = recommend(usable)
    incumbent = Incumbent(name, "" if baseline else default, estimator)
    trained = rows.coverage.crossed and on_own(asked.log.trained_on, tuple(counts))
    if not estimator or trained or rows.rows.saved:
        return incumbent
    return _with_needs(incumbent, rows, usable[estimator])


def _with_needs(incumbent: Incumbent, rows: OpenLog, estimator: Estimator) -> Incumbent:
    """Return the incumbent with the moments of its differences."""
    asked, wanted = rows.request, rows.find_needs(estimator)
    own, means = wanted.scattered, wanted.means
    factors = [factor for term in own for factor in term.factors]
    joins = (
        rows.coverage.crossed
        and all(f.name in OF_POLICY and not f.rule for f in factors)
        and incumbent.name in _at_first(rows.coverage.strata(by_cell=estimator.by_cell))
    )
    if joins:
        weights = (BALANCED_WEIGHT, ratio(incumbent.name))
        terms = {*own, *weights, *(_bind_logger(t, incumbent.name) for t in own)}
    else:
        terms = {*own, REWARD, *(w for t in own if (w := find_weight(t)) is not None)}
    group = tuple(sorted(terms))
    shaped = asked.interval.shaped and rows.rows.shaped
    crossed = tuple(_bind_logger(t, incumbent.name) for t in means) if joins else ()
    needs = Needs(crossed, (group,), slices=group if shaped else ())
    return replace(incumbent, joins=joins, needs=needs)


def _at_first(strata: Sequence[Stratum]) -> set[str]:
    """Return the loggers that were live in the first period: no row of the log trained them.

    All loggers, if the strata are not cells.
    """
    cells = [i for i in strata if isinstance(i, Cell)]
    if not cells:
        return set(map(find_logger, strata))
    return {cell.logger for cell in cells if cell.period == cells[0].period}
