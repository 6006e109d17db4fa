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
from poolwise.estimators.calibrated import few_effective_rows, target_uncovered
from poolwise.moments.terms import BALANCED_REWARD, REWARD, WEIGHTED_REWARD
from poolwise.text import listed, p_text, percent, short

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from poolwise.diagnosis.agreement import Diagnosis
    from poolwise.diagnosis.overlap import Overlap
    from poolwise.diagnosis.statistics import TailIndex
    from poolwise.moments.coverage import Coverage
    from poolwise.moments.pool import Pool

ALARMING = 1e-4  # p-value of an alarm; wrong columns give far smaller ones
DRIFTED, NOTABLE = 1e-3, 1e-2  # p-values of a drift that is an alarm, or a note
HAUSMAN = 3.0  # standard errors between two estimates of one value
DOMINANT, ABOVE_MEAN = 0.05, 10  # share of the largest weight, and its ratio to the mean
ENDLESS = 1.0  # tail index from which the mean is infinite
RARE = 20  # effective rewarded rows below which Student's interval undercovers
FEW = 30  # effective sample size below which Student's interval is unreliable
UNEVEN = 100  # the same for uneven weights
CLAIMED = 45  # effective sample size from which the skew-score interval holds its level
NARROW = "the interval is probably too narrow"
UNSURE = "the interval may cover the value less often than its level says"
MEASURED = " docs/which-estimator.md has the coverage measured with so few."
FEW_CLUSTERS = 20  # below which the error of a jackknife is off by a sixth and more
WORSE = 1.1  # ratio of standard errors that is worth a note


def judge(
    loggers: Mapping[str, Overlap],
    mixture: Overlap | None,
    diagnosis: Diagnosis,
    rows: Mapping[str, int],
    *,
    skewed: bool = False,
    pooled: bool = True,
) -> list[Finding]:
    """Return the findings about one target.

    Args:
        loggers: Overlap of the target with each logger.
        mixture: Overlap with the mixture; None without cross-propensities.
        diagnosis: Tests of agreement between the logs.
        rows: Rows of each logger.
        skewed: The intervals are skew-score ones.
        pooled: The first estimator needs only the loggers together to cover the target.
    """
    crossed = mixture is not None
    findings = [*_agreement(diagnosis, crossed=crossed)]
    if mixture is None:
        findings += _unpooled(loggers, rows, skewed=skewed)
    else:
        findings += [
            *_probabilities(loggers, mixture, diagnosis, rows),
            *_pooled(mixture, sum(rows.values()), skewed=skewed),
        ]
    findings += _by_logger(loggers, rows, crossed=crossed, pooled=pooled)
    return [*findings, *_harmful(diagnosis)]


def _probabilities(
    loggers: Mapping[str, Overlap],
    mixture: Overlap,
    diagnosis: Diagnosis,
    rows: Mapping[str, int],
) -> Iterator[Finding]:
    """Yield alarms about means that should be 1."""
    if mixture.mean_weight_p < ALARMING and sum(rows.values()) >= ENOUGH:
        low = target_uncovered(mixture.mean_weight, "or probabilities are wrong.")
        yield low if mixture.mean_weight < 1 else _too_heavy(mixture)
    columns = diagnosis.columns
    off = {i: c.value for i, c in columns.items() if c.p_value * len(columns) < ALARMING}
    own = diagnosis.checks.get("own-columns")
    above = _mean_weights(loggers, rows, above=True)
    if off:
        yield _wrong(f"Logger over mixture averages {_numbers(off)} over all rows, not 1.")
    elif own is not None and own.p_value < ALARMING:
        yield _wrong(
            "A logger plays the actions in its own rows *less* often than the others do: "
            "columns may be swapped."
        )
    elif above:
        yield _wrong(f"Weights against one logger average more than 1: {_numbers(above)}.")


def _mean_weights(
    loggers: Mapping[str, Overlap], rows: Mapping[str, int], *, above: bool
) -> dict[str, float]:
    """Return the mean weights that are significantly above 1, or below."""
    level = ALARMING / len(loggers)
    return {
        i: o.mean_weight
        for i, o in loggers.items()
        if o.mean_weight_p < level and rows[i] >= ENOUGH and (o.mean_weight > 1) is above
    }


def _numbers(values: Mapping[str, float]) -> str:
    return ", ".join(f"{i!r} {short(value)}" for i, value in values.items())


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


def _pooled(mixture: Overlap, rows: int, *, skewed: bool) -> Iterator[Finding]:
    """Yield findings about the balanced weights, which the default estimator uses."""
    uneven = 2 * mixture.effective_rows < rows
    least = CLAIMED if skewed else UNEVEN if uneven else FEW
    if mixture.effective_rows < least:
        yield _too_few(mixture.effective_rows, skewed=skewed)
    if mixture.effective_rows >= FEW and mixture.largest_share > DOMINANT:
        yield Finding(
            "dominant-row",
            f"One row has {percent(mixture.largest_share)} of the sum of balanced weights.",
            "A few rows dominate the estimate: compare with clipped weights, or collect more.",
        )
    if mixture.tail is None:
        yield TAIL_UNKNOWN
    elif mixture.tail.heavy:
        alarming = mixture.tail.value >= ENDLESS or mixture.largest_share > DOMINANT
        yield _heavy(mixture.tail, "alarm" if alarming else "warning")


def _too_few(effective: float, weights: str = "", *, skewed: bool) -> Finding:
    finding = few_effective_rows(effective, UNSURE if skewed else NARROW, weights)
    return replace(finding, advice=finding.advice + MEASURED) if skewed else finding


def _unpooled(
    loggers: Mapping[str, Overlap], rows: Mapping[str, int], *, skewed: bool
) -> Iterator[Finding]:
    """Yield findings about own weights, which all estimators use without propensities."""
    above = _mean_weights(loggers, rows, above=True)
    if above:
        yield _wrong(f"Weights average more than 1: {_numbers(above)}.")
    least = CLAIMED if skewed else FEW
    few = {i: o.effective_rows for i, o in loggers.items() if o.effective_rows < least}
    if few:
        yield _too_few(sum(few.values()), f" against {_names(few)}", skewed=skewed)


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
    loggers: Mapping[str, Overlap], rows: Mapping[str, int], *, crossed: bool, pooled: bool
) -> Iterator[Finding]:
    """Yield findings about single loggers, notes if the first estimator pools the logs."""
    affected = "naive and weighted" if crossed else "every estimate"
    advice = "Rely on estimators that pool the loggers." if crossed else PROPENSITIES
    severity: Severity = "note" if crossed and pooled else "warning"
    low = _mean_weights(loggers, rows, above=False)
    if low:
        yield Finding(
            "thin-overlap",
            f"Weights against single loggers average less than 1: {_numbers(low)}. Such a log "
            f"covers too little of the target, which biases {affected} down by as much.",
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
    heavy = [i for i, o in loggers.items() if o.tail is not None and o.tail.heavy]
    top = [
        i
        for i, o in loggers.items()
        if o.largest_share > max(DOMINANT, ABOVE_MEAN / rows[i]) and rows[i] >= ENOUGH
    ]
    if heavy or top:
        yield Finding(
            "heavy-logger",
            f"A few rows dominate the weights against {_names(dict.fromkeys([*heavy, *top]))}: "
            f"{affected} may be far off.",
            advice,
            severity,
        )


PROPENSITIES = "Give `propensities` under every logger, so that the logs can be pooled."


def _agreement(diagnosis: Diagnosis, *, crossed: bool) -> Iterator[Finding]:
    """Yield findings about logs or estimators that disagree."""
    drift = diagnosis.checks.get("drift")
    if drift is not None and drift.p_value < NOTABLE:
        yield _drift(diagnosis, drift.p_value)
    target = diagnosis.checks.get("estimates")
    if not crossed and target is not None and target.p_value < DRIFTED:
        yield Finding(
            "loggers-disagree",
            "The loggers' own estimates of the target differ significantly "
            f"(Welch's p {p_text(target.p_value)}): drift between the logs, wrong "
            "propensities, or logs that missed their rare large weights.",
            "Check the estimates by logger before pooling them.",
        )
    gap = diagnosis.checks.get("hausman")
    if gap is not None and abs(gap.statistic) > HAUSMAN:
        yield Finding(
            "hausman",
            "Calibrated and reward-free weighted estimate the same value, but differ by "
            f"{abs(gap.statistic):.1f} standard errors: a logger was trained on these logs, "
            "probabilities are wrong, or the logs drifted.",
            "Give `trained_on` (--trained-on) if a logger was trained on one of these logs; "
            "otherwise check the probabilities.",
            "alarm",
        )


def _drift(diagnosis: Diagnosis, p_value: float) -> Finding:
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
        "alarm" if p_value < DRIFTED else "note",
    )


def _harmful(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yield a note about logs that raise the standard error of balanced."""
    errors = {i: errors["balanced"] for i, errors in diagnosis.without.items()}
    worse = [i for i, e in errors.items() if e * WORSE < diagnosis.with_all["balanced"]]
    if worse:
        yield Finding(
            "logger-hurts-balanced",
            f"The standard error of balanced would be lower without {_names(worse)}; "
            "calibrated gives such a log less weight by itself.",
            "Rely on calibrated, or leave the log out of balanced.",
            "note",
        )


def _names(loggers: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(map(repr, loggers))


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
            f"The probability under {_names(loggers)} is missing in periods in which the "
            "logger was not live"
        )
        rest = " Estimates of periods do without it, and weigh periods by their rows."
    finding = Finding(
        "no-cross-propensities",
        f"{cause}: {listed(refused)} cannot be computed. They would weigh each row against "
        "all loggers together, with less variance, and logs could cover a target together."
        f"{rest}",
        f"Give `propensities` (--propensities) for {_names(loggers)}: a column, an expression "
        "or a policy for each; or estimate the mixture from `context` with "
        "Log(estimate_mixture=True).",
        "note",
    )
    return (finding,)
