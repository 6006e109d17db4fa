"""Findings: the diagnostics in sentences.

An alarm marks an answer as unreliable, a warning as weaker than it looks; a note explains.
Findings about one logger's own weights are notes, because the default estimator does not
use these weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from poolwise.diagnosis.statistics import ENOUGH
from poolwise.errors import Finding, Severity
from poolwise.estimators.calibrated import SMALL_PART, few_effective_rows, target_uncovered
from poolwise.estimators.decisive import REACHED, RULED
from poolwise.moments.heavy import FEW as FEW_BEHIND
from poolwise.moments.heavy import count_behind, heavy_share
from poolwise.moments.terms import BALANCED_REWARD, REWARD, WEIGHT, WEIGHTED_REWARD
from poolwise.text import count_text, join_names, list_numbers, p_text, percent, short

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from poolwise.diagnosis.agreement import Diagnosis
    from poolwise.diagnosis.overlap import Overlap
    from poolwise.diagnosis.statistics import TailIndex
    from poolwise.log.action_groups import Unlogged
    from poolwise.moments.coverage import Coverage
    from poolwise.moments.estimate import SetsLimits
    from poolwise.moments.pool import Pool

ALARMING = 1e-4  # p-value of an alarm; wrong columns give far smaller ones
DISAGREEING, NOTABLE = 1e-3, 1e-2  # p-values of a disagreement: a warning, or a note
UNCOVERED_P = 2e-4  # p-value of a mean weight that makes an alarm of an estimator
UNCOVERED = frozenset(
    {"target-uncovered", "actions-unlogged", "decisive-rows"}
)  # the logs say too little about the target
LOW_WEIGHTS = frozenset({"target-uncovered", "thin-overlap"})  # what they report then
DOMINANT, ABOVE_MEAN = 0.05, 10  # share of the largest weight, and its ratio to the mean
RULING = 0.1  # share of the largest weight that makes a heavy tail an alarm
ENDLESS = 1.0  # tail index from which the mean is infinite
RARE = 20  # effective rewarded rows below which Student's interval undercovers
FEW_EFFECTIVE = 30  # effective sample size below which Student's interval is unreliable
UNEVEN = 100  # the same for uneven weights
CLAIMED = 45  # effective sample size from which the skew-score interval holds its level
NARROW = "the interval is probably too narrow"
UNSURE = "the interval may cover the value less often than its level says"
MEASURED = " docs/which-estimator.md has the coverage measured with so few."
FEW_CLUSTERS = 20  # below which the error of a jackknife is off by a sixth and more
WORSE = 1.1  # ratio of standard errors that is worth a note
DECIDED = 3  # effective decisive rows below which it is an alarm
SOME, LEAST = 0.1, 150  # share and rows of a log that few of its rows may decide
LITTLE_UNLOGGED, SLIGHT_UNLOGGED, GRAVE_UNLOGGED = 0.001, 0.01, 0.05  # note, warning, alarm
SAME_AS_DECISIVE = frozenset({"few-effective-rows", "dominant-row", "heavy-weights"})


def judge(
    loggers: Mapping[str, Overlap],
    mixture: Overlap | None,
    diagnosis: Diagnosis,
    rows: Mapping[str, int],
    *,
    skewed: bool = False,
    pooled: bool = True,
    tests: int = 1,
) -> list[Finding]:
    """Return the findings about one target.

    Args:
        loggers: Overlap of the target with each logger.
        mixture: Overlap with the mixture; None without cross-propensities.
        diagnosis: Tests of agreement between the logs.
        rows: Rows of each logger.
        skewed: The intervals are skew-score ones.
        pooled: The first estimator needs only the loggers together to cover the target.
        tests: Number of answers, such as segments, whose findings appear together; the level
            of each test is divided by it.
    """
    crossed = mixture is not None
    low = _mean_weights(loggers, rows, tests, above=False)
    above = _mean_weights(loggers, rows, tests, above=True)
    findings = [*_judge_agreement(diagnosis, tests, crossed=crossed)]
    if mixture is None:
        findings += _judge_unpooled(loggers, above, skewed=skewed)
    else:
        findings += [
            *_probabilities(mixture, diagnosis, rows, above, tests),
            *_judge_pooled(mixture, sum(rows.values()), skewed=skewed),
        ]
    findings += _by_logger(loggers, rows, low, crossed=crossed, pooled=pooled)
    return [*findings, *_harmful(diagnosis)]


def unlogged_actions(found: Unlogged, *, grouped: bool, modelled: bool) -> list[Finding]:
    """Return the finding that a target plays actions, or groups, that no logger plays.

    Args:
        found: Their probability.
        grouped: Whether probabilities are those of groups.
        modelled: Whether the recommended estimator predicts their rewards.
    """
    if found.mass < LITTLE_UNLOGGED:
        return []
    what = "groups" if grouped else "actions"
    named = ", ".join(f"{name!r} ({percent(mass)})" for name, mass in found.largest)
    more = found.number - len(found.largest)
    rest = f", and {more:,} more" if more else ""
    groups = "" if grouped else ", or, if rewards depend on its group, the `action_group`"
    advice = (
        "The recommended estimate takes their rewards from the model alone."
        if modelled
        else f"Log such {what}, or give a reward model (`model`){groups}."
    )
    where = "no logger plays" if found.certain else "are in no row"
    severity: Severity = "warning"
    if found.certain and found.mass >= GRAVE_UNLOGGED:
        severity = "alarm"
    if modelled or found.mass < SLIGHT_UNLOGGED:
        severity = "warning" if found.mass >= SLIGHT_UNLOGGED else "note"
    return [
        Finding(
            "actions-unlogged",
            f"The target plays {what} that {where} {percent(found.mass)} of the time: "
            f"{named}{rest}.",
            advice,
            severity,
        )
    ]


def keep_significant(
    findings: Sequence[Finding],
    loggers: Mapping[str, Overlap],
    mixture: Overlap | None,
    tests: int,
) -> list[Finding]:
    """Return the findings of estimators that remain if there are so many answers.

    An estimator tests the mean weights of its own rows without knowing of other answers.
    """
    overlaps = [*loggers.values()] if mixture is None else [mixture]
    level = UNCOVERED_P / len(overlaps) / tests
    if tests == 1 or any(o.mean_weight < 1 and o.mean_weight_p < level for o in overlaps):
        return [*findings]
    return [f for f in findings if f.code not in LOW_WEIGHTS]


def _probabilities(
    mixture: Overlap,
    diagnosis: Diagnosis,
    rows: Mapping[str, int],
    above: Mapping[str, float],
    tests: int,
) -> Iterator[Finding]:
    """Yield alarms about means that should be 1; `above` has loggers with larger weights."""
    level = ALARMING / tests
    if mixture.mean_weight_p < level and sum(rows.values()) >= ENOUGH:
        low = target_uncovered(mixture.mean_weight, "or probabilities are wrong.")
        yield low if mixture.mean_weight < 1 else _too_heavy(mixture)
    columns = diagnosis.columns
    off = {i: c.value for i, c in columns.items() if c.p_value * len(columns) < level}
    own = diagnosis.checks.get("own-columns")
    if off:
        yield _wrong(f"Logger over mixture averages {list_numbers(off)} over all rows, not 1.")
    elif own is not None and own.p_value < level:
        yield _wrong(
            "A logger plays the actions in its own rows *less* often than the others do: "
            "columns may be swapped."
        )
    elif above:
        yield _wrong(f"Weights against one logger average more than 1: {list_numbers(above)}.")


def _mean_weights(
    loggers: Mapping[str, Overlap], rows: Mapping[str, int], tests: int, *, above: bool
) -> dict[str, float]:
    """Return the mean weights that are significantly above 1, or below."""
    level = ALARMING / len(loggers) / tests
    return {
        i: o.mean_weight
        for i, o in loggers.items()
        if o.mean_weight_p < level and rows[i] >= ENOUGH and (o.mean_weight > 1) is above
    }


def _too_heavy(mixture: Overlap) -> Finding:
    return Finding(
        "weights-off",
        f"The balanced weights average {mixture.mean_weight:.3f} instead of 1 "
        f"(z = {short(mixture.mean_weight_z)}), so probabilities are wrong.",
        "Check that the target's and the loggers' columns hold the probability of the *logged* "
        "action, as a fraction.",
        "alarm",
    )


def _wrong(symptom: str) -> Finding:
    return Finding(
        "propensities-off",
        f"{symptom} At least one column of probabilities does not belong to its logger.",
        "Check that each column of `propensities` holds the probability of the *logged* action "
        "under the logger that it names, as a fraction.",
        "alarm",
    )


def _judge_pooled(mixture: Overlap, rows: int, *, skewed: bool) -> Iterator[Finding]:
    """Yield findings about the balanced weights, which the default estimator uses."""
    uneven = 2 * mixture.effective_rows < rows
    least = CLAIMED if skewed else UNEVEN if uneven else FEW_EFFECTIVE
    if mixture.effective_rows < least:
        yield _too_few(mixture.effective_rows, skewed=skewed)
    if mixture.effective_rows >= FEW_EFFECTIVE and mixture.largest_share > DOMINANT:
        yield Finding(
            "dominant-row",
            f"One row has {percent(mixture.largest_share)} of the sum of balanced weights.",
            "A few rows dominate the estimate: compare with clipped weights, or collect more.",
        )
    if mixture.tail is None:
        yield TAIL_UNKNOWN
    elif mixture.tail.heavy:
        alarming = mixture.tail.value >= ENDLESS or mixture.largest_share > RULING
        yield _heavy(mixture.tail, "alarm" if alarming else "warning")


def _too_few(effective: float, weights: str = "", *, skewed: bool) -> Finding:
    finding = few_effective_rows(effective, UNSURE if skewed else NARROW, weights)
    return replace(finding, advice=finding.advice + MEASURED) if skewed else finding


def _judge_unpooled(
    loggers: Mapping[str, Overlap], above: Mapping[str, float], *, skewed: bool
) -> Iterator[Finding]:
    """Yield findings about own weights, which all estimators use without propensities."""
    if above:
        yield _wrong(f"Weights average more than 1: {list_numbers(above)}.")
    least = CLAIMED if skewed else FEW_EFFECTIVE
    few = {i: o.effective_rows for i, o in loggers.items() if o.effective_rows < least}
    if few:
        found = _too_few(sum(few.values()), f" against {_list_loggers(few)}", skewed=skewed)
        every = sum(o.effective_rows for o in loggers.values())
        small = sum(few.values()) < SMALL_PART * every
        yield replace(found, severity="note") if small else found


def _heavy(tail: TailIndex, severity: Severity) -> Finding:
    return Finding(
        "heavy-weights",
        f"The balanced weights have a heavy tail (tail index {tail.value:.2f}, above "
        f"{tail.threshold:.2f}), so the largest weights were probably not observed: estimates "
        "tend to be too low and intervals too narrow.",
        "Clip or shrink the weights, or log some traffic with a policy close to the target.",
        severity,
    )


TAIL_UNKNOWN = Finding(
    "tail-unknown",
    "This engine does not return the largest weights, so the tail index is unknown.",
    "Evaluate a sample of the rows with the default engine to compute it.",
    "note",
)


def _by_logger(
    loggers: Mapping[str, Overlap],
    rows: Mapping[str, int],
    low: Mapping[str, float],
    *,
    crossed: bool,
    pooled: bool,
) -> Iterator[Finding]:
    """Yield findings about single loggers, notes if the first estimator pools the logs."""
    affected = "naive and weighted" if crossed else "every estimate"
    advice = "Rely on estimators that pool the loggers." if crossed else PROPENSITIES
    severity: Severity = "note" if crossed and pooled else "warning"
    if low:
        yield Finding(
            "thin-overlap",
            f"Weights against single loggers average less than 1: {list_numbers(low)}. Such a "
            f"log covers too little of the target, which biases {affected} down by as much.",
            advice,
            severity,
        )
    missing = {i: o.unsupported for i, o in loggers.items() if o.unsupported > 0}
    if missing:
        parts = ", ".join(f"{i!r} {percent(m)}" for i, m in missing.items())
        yield Finding(
            "logger-unsupported",
            f"The target plays actions that a logger never plays this often: {parts}. Naive "
            "counts such actions as unrewarded in these logs.",
            "Rely on estimators that only require the loggers together to cover the target.",
            severity,
        )
    if crossed and pooled:  # the tables show it, and the first estimator has no such weights
        return
    heavy = [i for i, o in loggers.items() if o.tail is not None and o.tail.heavy]
    top = [
        i
        for i, o in loggers.items()
        if o.largest_share > max(DOMINANT, ABOVE_MEAN / rows[i]) and rows[i] >= ENOUGH
    ]
    if heavy or top:
        yield _heavy_logger(loggers, dict.fromkeys([*heavy, *top]), crossed=crossed)


def _heavy_logger(
    loggers: Mapping[str, Overlap], heavy: Mapping[str, object], *, crossed: bool
) -> Finding:
    """Return the finding that a few rows dominate the weights against some loggers.

    Without cross-propensities, the default averages logs by their effective rows, and such a
    log has few.
    """
    text = f"A few rows dominate the weights against {_list_loggers(heavy)}: "
    if crossed:
        text += "naive and weighted may be far off."
        return Finding("heavy-logger", text, "Rely on estimators that pool the loggers.")
    effective = {i: o.effective_rows for i, o in loggers.items()}
    part = sum(effective[i] for i in heavy) / sum(effective.values())
    text += (
        "naive may be far off; self-normalised averages the logs by their effective rows, of "
        f"which these have {percent(part)}."
    )
    severity: Severity = "note" if part < SMALL_PART else "warning"
    return Finding("heavy-logger", text, PROPENSITIES, severity)


PROPENSITIES = "Give `propensities` under every logger, so that the logs can be pooled."


def _judge_agreement(diagnosis: Diagnosis, tests: int, *, crossed: bool) -> Iterator[Finding]:
    """Yield findings about logs or estimators that disagree."""
    drift = diagnosis.checks.get("drift")
    if drift is not None and drift.p_value < NOTABLE / tests:
        yield _drift(diagnosis, drift.p_value, tests)
    target = diagnosis.checks.get("estimates")
    if not crossed and target is not None and target.p_value < DISAGREEING / tests:
        yield Finding(
            "loggers-disagree",
            "The loggers' own estimates of the target differ significantly "
            f"(Welch's p {p_text(target.p_value)}): drift between the logs, wrong "
            "propensities, or logs that missed their rare large weights.",
            "Check the estimates by logger before pooling them.",
        )
    gap = diagnosis.checks.get("hausman")
    if gap is not None and gap.p_value < DISAGREEING / tests:
        yield Finding(
            "hausman",
            "Calibrated and reward-free weighted estimate the same value, but differ by "
            f"{abs(gap.statistic):.1f} standard errors: a logger was trained on these logs, "
            "probabilities are wrong, or the logs drifted.",
            "Give `trained_on` (--trained-on) if a logger was trained on one of these logs; "
            "otherwise check the probabilities.",
            _disagreement(gap.p_value * tests),
        )


def _disagreement(p_value: float) -> Severity:
    """Return how grave it is that numbers differ which should be equal."""
    return "alarm" if p_value < ALARMING else "warning" if p_value < DISAGREEING else "note"


def _drift(diagnosis: Diagnosis, p_value: float, tests: int) -> Finding:
    parts = ", ".join(f"{i!r} {a.value:.3g}" for i, a in diagnosis.alone.items())
    typical, period = diagnosis.typical, ""
    if typical is not None:
        bounds = f"[{typical.lower:.3g}, {typical.upper:.3g}]"
        period = f" If the logs are periods, the mean over such periods lies in {bounds}."
    return Finding(
        "drift",
        "Actions that all loggers play earned significantly different rewards in different "
        f"logs (p {p_text(p_value)}): contexts or rewards changed between the logs. A pooled "
        f"estimate is then an average over them. Estimates by logger: {parts}.{period}",
        "Report the logs separately, or as periods.",
        _disagreement(p_value * tests),
    )


def _harmful(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yield a note about logs that raise the standard error of balanced."""
    errors = {i: errors["balanced"] for i, errors in diagnosis.without.items()}
    worse = [i for i, e in errors.items() if e * WORSE < diagnosis.with_all["balanced"]]
    if worse:
        yield Finding(
            "logger-hurts-balanced",
            f"The standard error of balanced would be lower without {_list_loggers(worse)}; "
            "calibrated gives such a log less weight by itself.",
            "Rely on calibrated, or leave the log out of balanced.",
            "note",
        )


def _list_loggers(loggers: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(map(repr, loggers))


def decisive_rows(target: str, found: SetsLimits, rows: int) -> Finding:
    """Return the finding about rows that decide a value."""
    share = percent(max(found.mass, 0.0))
    message = f"{share} of {target}'s decisions rest on {found.units} of this log"
    enough = not found.lacks_rows
    if not found.ranged and found.rows < DECIDED and not enough:
        severity: Severity = "alarm"
        rest = "so few that the log hardly shows what they earn."
    else:
        severity = "note" if enough else "warning"
        rest = "and the interval allows for what so few can show."
        if not found.number:
            rest = "and the interval allows for any reward in their range."
    advice = "Log more rows of such actions for a narrower interval."
    if found.rows and not enough:
        advice = (
            f"About {count_text(float(f'{found.more_rows(rows):.2g}'))} more rows like these "
            f"would make them {REACHED}; fewer if a logger plays such actions more often."
        )
    if not found.ranged and not enough:
        advice += " If rewards are bounded, give `reward_range` (--reward-range)."
    return Finding("decisive-rows", f"{message}, {rest}", advice, severity)


def not_set_apart(
    pool: Pool, target: str, *, clustered: bool, estimator: str = ""
) -> list[Finding]:
    """Return the finding about rows that decide a value, where they are not set apart.

    Args:
        pool: Moments of each logger.
        target: Name of the target.
        clustered: Whether rows of a cluster depend on each other.
        estimator: The recommended estimator, if others could set the rows apart.
    """
    whole = pool.together
    behind = count_behind(whole).most
    if not behind < FEW_BEHIND or heavy_share(whole) < RULED:
        return []
    reason = (
        "clusters of segments, of periods or in this engine"
        if clustered
        else "rows that this engine does not return"
    )
    advice = "together, with the default engine" if clustered else "with the default engine"
    advice = f"Evaluate the rows {advice}"
    if estimator:
        reason, advice = f"rows in {estimator}", "Compare it with calibrated, if that may pool"
    return [_judge_heavy(behind, f"{target}'s value", reason, advice)]


def decided_by_few(pool: Pool, shares: Mapping[str, float]) -> list[Finding]:
    """Return the finding about logs in which few rows decide the variance of own weights.

    Where only own propensities are known, rows are not set apart.

    Args:
        pool: Moments of each logger.
        shares: Share of each logger in the estimate.
    """
    used = [i for i in pool.loggers if shares.get(i, 0.0) > SOME and pool[i].count >= LEAST]
    behind = {i: count_behind(pool[i], WEIGHT).most for i in used}
    few = {i: rows for i, rows in behind.items() if rows < FEW_BEHIND}
    few = {i: rows for i, rows in few.items() if heavy_share(pool[i], WEIGHT) >= RULED}
    if not few:
        return []
    what = f"the weights against {_list_loggers([*map(str, few)])}"
    reason = "rows without their probability under every logger"
    advice = "Give `propensities` (--propensities) under every logger"
    return [_judge_heavy(min(few.values()), what, reason, advice)]


def _judge_heavy(behind: float, what: str, reason: str, advice: str) -> Finding:
    number = max(1, round(behind))
    few = "1 row decides" if number == 1 else f"About {number} rows decide"
    return Finding(
        "decisive-rows",
        f"{few} the variance of {what}, and poolwise does not set apart {reason}: {UNSURE}.",
        f"{advice}: the heaviest rows are then set apart.",
        "alarm" if behind < REACHED else "warning",
    )


def few_rewarded(pool: Pool, coverage: Coverage, *, skewed: bool = False) -> list[Finding]:
    """Return a finding if the effective number of rewarded rows is small.

    It is independent of the weights: with three rewards in a million rows, Student's 95%
    interval covers 85%, even if all weights are equal.  The skew-score interval guards
    against it where the pass returns powers, so the finding is then a note.
    """
    term = BALANCED_REWARD if coverage.crossed else WEIGHTED_REWARD
    whole = pool.together
    one_sign = whole.min(REWARD) >= 0 or whole.max(REWARD) <= 0
    effective = whole.effective(term) if one_sign and whole.has(term) else 0.0
    if not 0 < effective < RARE or 2 * effective > whole.count:
        return []
    severity: Severity = "warning"
    consequence = NARROW
    advice = "Collect more rows, or use interval='betting' with `reward_range`."
    if skewed and all(term in m.powers for m in pool.values()):
        severity, consequence = "note", "the interval is wide, but holds its level"
        advice = "Collect more rows for a narrower one."
    few = f"Effective rewarded rows: {effective:.1f}. With so few, {consequence}."
    return [Finding("few-rewarded-rows", few, advice, severity)]


def cluster_findings(number: int, *, ignored: bool) -> Iterator[Finding]:
    """Yield findings about rows that belong to so many clusters.

    Args:
        number: Number of clusters, or of their buckets.
        ignored: Whether the intervals treat rows as independent.
    """
    if ignored:
        yield Finding(
            "clusters-ignored",
            "These intervals treat rows as independent, though the log names a `cluster`.",
            "Use interval='auto' (--interval auto), which leaves out clusters in turn.",
        )
    elif number < FEW_CLUSTERS:
        yield Finding(
            "few-clusters",
            f"The rows belong to only {number} clusters, so the standard error is itself "
            "uncertain.",
            "Collect rows of more clusters, or name a finer unit.",
        )


def no_cross_propensities(
    refused: Sequence[str], loggers: Sequence[str], *, live: bool = False
) -> tuple[Finding, ...]:
    """Return one finding for all estimators that lack cross-propensities.

    Args:
        refused: Estimators that require them.
        loggers: Loggers whose probabilities are missing.
        live: Whether they are missing only in periods in which their logger is not live.
    """
    if not refused:
        return ()
    cause, rest = "The probability of each row's action is given under its own logger only", ""
    if live:
        cause = (
            f"The probability under {_list_loggers(loggers)} is missing in periods in which "
            "the logger was not live"
        )
        rest = " Estimates of periods do without it, and weigh periods by their rows."
    finding = Finding(
        "no-cross-propensities",
        f"{cause}: {join_names(refused)} cannot be computed. They would weigh each row against "
        "all loggers together, with less variance, and logs could cover a target together."
        f"{rest}",
        f"Give `propensities` (--propensities) for {_list_loggers(loggers)}: a column, an "
        "expression or a policy for each; or estimate the mixture from `context` with "
        "Log(estimate_mixture=True).",
        "note",
    )
    return (finding,)


def propensities_estimated(confounders: str, *, conclusive: bool) -> Finding:
    """Return the finding about a log whose propensities are estimates.

    Args:
        confounders: What the log says of causes of both action and reward.
        conclusive: Whether differences may have a verdict.
    """
    code = "propensities-estimated"
    if confounders == "in-context" and not conclusive:
        return Finding(
            code,
            "The propensities are predictions of a classifier other than logistic regression, "
            "or of one that misses how the context decided the action. Intervals with such "
            "propensities were measured to cover far too seldom: no target is called better or "
            "worse.",
            "Use a logistic regression (--estimate-mixture logistic) of all that decided the "
            "action, or put the context into bins and leave `estimate_mixture` out.",
            "alarm",
        )
    if confounders == "in-context":
        return Finding(
            code,
            "The propensities are estimates. All numbers assume what `confounders` says, that "
            "no cause of both action and reward is missing in the context, and that the "
            "regression of the action on the context is right.",
            "Log the probability of each action.",
        )
    return Finding(
        code,
        "The propensities are estimates. A cause of both action and reward that is not in the "
        "context would bias every estimate, and no interval allows for it: no target is called "
        "better or worse.",
        "If all such causes are in the context, say confounders='in-context' (--confounders "
        "in-context); otherwise log the probability of each action.",
        "alarm",
    )
