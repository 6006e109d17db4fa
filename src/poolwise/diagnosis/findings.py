"""Alarms: what the diagnostics mean, in sentences.

An alarm says that an answer must not be relied upon, a warning that it is weaker than
it looks, a note explains.  What only concerns one logger's own weights is a note: the
default estimator does not rest on them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from poolwise.diagnosis.agreement import ENOUGH
from poolwise.errors import Finding, Severity
from poolwise.moments.moments import pooled
from poolwise.moments.terms import BALANCED_REWARD, REWARD, WEIGHTED_REWARD
from poolwise.text import p_text, percent, short

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from poolwise.diagnosis.overlap import Diagnosis, Overlap
    from poolwise.moments.moments import MomentsByLogger

ALARMING = 1e-4  # p-value that no good log has: a wrong column is far beyond it
DRIFTED, NOTABLE = 1e-3, 1e-2  # p-values of a drift that forbids pooling, or is worth a note
HAUSMAN = 3.0  # standard errors between two estimates of one value
DOMINANT, ABOVE_MEAN = 0.05, 10  # share of the largest weight, and how many mean ones it is
ENDLESS = 1.0  # tail index from which not even the mean settles
RARE = 20  # rewarded rows below which Student's interval covers too little
FEW = 30  # effective rows below which no normal interval can be trusted
UNEVEN = 100  # the same where weights are uneven: coverage falls (benchmarks/coverage.py)
WORSE = 1.1  # ratio of standard errors that is worth a note


def judge(
    loggers: Mapping[str, Overlap],
    mixture: Overlap | None,
    diagnosis: Diagnosis,
    rows: Mapping[str, int],
) -> list[Finding]:
    """Everything that is worth saying about one target."""
    crossed = mixture is not None
    found = [*_agreement(diagnosis, crossed=crossed)]
    if mixture is None:
        found += _unpooled(loggers, rows)
    else:
        found += [
            *_probabilities(loggers, mixture, diagnosis, rows),
            *_pooled(mixture, sum(rows.values())),
        ]
    found += _by_logger(loggers, rows, crossed=crossed)
    if diagnosis.without:
        found += _helpful(diagnosis)
    return found


def _probabilities(
    loggers: Mapping[str, Overlap],
    mixture: Overlap,
    diagnosis: Diagnosis,
    rows: Mapping[str, int],
) -> Iterator[Finding]:
    """Means that are known, and are not met."""
    if mixture.mean_weight_p < ALARMING and sum(rows.values()) >= ENOUGH:
        yield _uncovered(mixture) if mixture.mean_weight < 1 else _too_heavy(mixture)
    columns = diagnosis.columns
    off = [i for i, c in columns.items() if c.p_value * len(columns) < ALARMING]
    if off:
        means = ", ".join(f"{i!r} {short(columns[i].value)}" for i in off)
        yield _wrong(
            f"Logger over mixture should average 1 over all rows, and averages {means}."
        )
        return
    own = diagnosis.checks.get("own-columns")
    if own is not None and own.p_value < ALARMING:
        yield _wrong(
            "A logger plays the actions in its own rows *less* than the others do: columns "
            "may be swapped."
        )
        return
    above = [i for i in _beyond(loggers, rows) if loggers[i].mean_weight > 1]
    if above:
        means = ", ".join(f"{i!r} {short(loggers[i].mean_weight)}" for i in above)
        yield _wrong(f"Weights against one logger should average 1, and average more: {means}.")


def _beyond(loggers: Mapping[str, Overlap], rows: Mapping[str, int]) -> list[str]:
    """Loggers whose own mean weight is clearly not 1."""
    level = ALARMING / len(loggers)
    return [i for i, o in loggers.items() if o.mean_weight_p < level and rows[i] >= ENOUGH]


def _uncovered(mixture: Overlap) -> Finding:
    return Finding(
        "target-uncovered",
        f"The balanced weights average {mixture.mean_weight:.3f} instead of 1: the target "
        f"plays actions that no logger plays, {percent(1 - mixture.mean_weight)} of the time, "
        "or some probability is wrong.",
        "Log such actions before relying on any estimate, unless they are known to earn 0.",
        "alarm",
    )


def _too_heavy(mixture: Overlap) -> Finding:
    return Finding(
        "weights-off",
        f"The balanced weights average {mixture.mean_weight:.3f} instead of 1 "
        f"(z = {short(mixture.mean_weight_z)}), which no choice of actions can explain.",
        "Check that the target's and the loggers' columns hold the probability of the *logged* "
        "action, as a fraction.",
        "alarm",
    )


def _wrong(what: str) -> Finding:
    return Finding(
        "propensities-off",
        f"{what} Some probability is not that of the logger it is given for.",
        "Check that each column of `propensities` holds the probability of the *logged* action "
        "under the logger that it names, as a fraction.",
        "alarm",
    )


def _pooled(mixture: Overlap, rows: int) -> Iterator[Finding]:
    """What the balanced weights, which the default rests on, can bear."""
    uneven = 2 * mixture.effective_rows < rows
    if mixture.effective_rows < (UNEVEN if uneven else FEW):
        yield _few(mixture.effective_rows)
    if mixture.effective_rows >= FEW and mixture.largest_share > DOMINANT:
        yield _dominant(
            f"One row carries {percent(mixture.largest_share)} of all balanced weight.",
            "warning",
        )
    if mixture.tail is None:
        yield TAIL_UNKNOWN
    elif mixture.tail.heavy:
        worst = mixture.tail.value >= ENDLESS or mixture.largest_share > DOMINANT
        yield _heavy("The balanced weights", mixture, "alarm" if worst else "warning")


def _unpooled(loggers: Mapping[str, Overlap], rows: Mapping[str, int]) -> Iterator[Finding]:
    """Where only own propensities are known, own weights are what everything rests on."""
    off = _beyond(loggers, rows)
    above = [i for i in off if loggers[i].mean_weight > 1]
    if above:
        means = ", ".join(f"{i!r} {short(loggers[i].mean_weight)}" for i in above)
        yield _wrong(f"Weights should average 1, and average more: {means}.")
    few = {i: o for i, o in loggers.items() if o.effective_rows < FEW}
    if few:
        yield _few(sum(o.effective_rows for o in few.values()), few)


def _few(effective: float, loggers: Sequence[str] | Mapping[str, object] = ()) -> Finding:
    whose = f" against {_names(loggers)}" if loggers else ""
    return Finding(
        "few-effective-rows",
        f"The weights{whose} are worth {effective:.1f} rows only; an interval from so few is "
        "optimistic.",
        "Collect more rows from loggers that are closer to the target.",
    )


def _dominant(what: str, severity: Severity) -> Finding:
    return Finding(
        "dominant-row",
        what,
        "The estimate hangs on single rows: compare with clipped weights, or collect more.",
        severity,
    )


def _heavy(what: str, overlap: Overlap, severity: Severity) -> Finding:
    tail = overlap.tail
    numbers = f" (tail index {tail.value:.2f}, above {tail.threshold:.2f})" if tail else ""
    return Finding(
        "heavy-weights",
        f"{what} have a tail so heavy{numbers} that the largest were probably not yet seen: "
        "estimates tend to be too low and intervals too short.",
        "Clip or shrink the weights, or log some traffic with a policy close to the target.",
        severity,
    )


TAIL_UNKNOWN = Finding(
    "tail-unknown",
    "This engine does not return the largest weights, so the tail index is unknown.",
    "Evaluate a sample of the rows with the default engine to see it.",
    "note",
)


def _by_logger(
    loggers: Mapping[str, Overlap], rows: Mapping[str, int], *, crossed: bool
) -> Iterator[Finding]:
    """What concerns single loggers; pooling mends it where the others cover the target."""
    beside = "naive and weighted" if crossed else "every estimate"
    low = [i for i in _beyond(loggers, rows) if loggers[i].mean_weight < 1]
    if low:
        means = ", ".join(f"{i!r} {short(loggers[i].mean_weight)}" for i in low)
        yield Finding(
            "thin-overlap",
            f"Weights against single loggers average less than 1: {means}. Such a log has "
            f"seen too little of what the target plays, and {beside} will be low by as much.",
            "Rely on estimators that pool the loggers." if crossed else PROPENSITIES,
            "note" if crossed else "warning",
        )
    missing = {i: o.unsupported for i, o in loggers.items() if o.unsupported > 0}
    if missing:
        parts = ", ".join(f"{i!r} {percent(m)}" for i, m in missing.items())
        yield Finding(
            "logger-unsupported",
            f"The target plays what a logger never plays this often: {parts}. Naive counts "
            "such actions as unrewarded in these logs.",
            "Rely on estimators that need only the loggers together to cover the target.",
            "note",
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
            "Single rows dominate the weights against "
            f"{_names(dict.fromkeys([*heavy, *top]))}: {beside} may be far off.",
            "Rely on estimators that pool the loggers." if crossed else PROPENSITIES,
            "note" if crossed else "warning",
        )


PROPENSITIES = "Give `propensities` under every logger, so that the logs can be pooled."


def _agreement(diagnosis: Diagnosis, *, crossed: bool) -> Iterator[Finding]:
    """Whether the logs tell of one world."""
    drift = diagnosis.checks.get("drift")
    if drift is not None and drift.p_value < NOTABLE:
        yield _drift(diagnosis, drift.p_value)
    target = diagnosis.checks.get("estimates")
    if not crossed and target is not None and target.p_value < DRIFTED:
        yield Finding(
            "loggers-disagree",
            "The loggers' own estimates of the target differ by more than their errors "
            f"(Welch's p {p_text(target.p_value)}): drift between the logs, wrong "
            "propensities, or logs that missed their rare large weights.",
            "Look at the estimates by logger before pooling them.",
        )
    gap = diagnosis.checks.get("hausman")
    if gap is not None and abs(gap.statistic) > HAUSMAN:
        yield Finding(
            "hausman",
            "Calibrated and reward-free weighted estimate the same value, but lie "
            f"{abs(gap.statistic):.1f} standard errors apart: a logger was trained on these "
            "logs, some probability is wrong, or the logs drifted.",
            "Say so in `trained_on` (--trained-on) if a logger was trained on a log of these; "
            "else check the probabilities.",
            "alarm",
        )


def _drift(diagnosis: Diagnosis, p_value: float) -> Finding:
    parts = ", ".join(f"{i!r} {a.value:.3g}" for i, a in diagnosis.alone.items())
    typical, period = diagnosis.typical, ""
    if typical is not None:
        bounds = f"[{typical.lower:.3g}, {typical.upper:.3g}]"
        period = f" The mean over periods like these lies in {bounds}."
    return Finding(
        "drift",
        "What all loggers play earned unlike rewards in their logs "
        f"(p {p_text(p_value)}): contexts or rewards changed between them. A pooled estimate "
        f"is then of their mixture. Estimates by logger: {parts}.{period}",
        "Report the logs separately, or as periods.",
        "alarm" if p_value < DRIFTED else "note",
    )


def _helpful(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Logs that the balanced estimator would do better without."""
    whole = diagnosis.with_all["balanced"]
    without = {i: errors["balanced"] for i, errors in diagnosis.without.items()}
    worse = [i for i, error in without.items() if error * WORSE < whole]
    if worse:
        yield Finding(
            "logger-hurts-balanced",
            f"Balanced would be surer without {_names(worse)}; calibrated weighs such a log "
            "down by itself.",
            "Rely on calibrated, or leave the log out of balanced.",
            "note",
        )


def _names(loggers: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(map(repr, loggers))


def few_rewarded(view: MomentsByLogger, *, crossed: bool) -> list[Finding]:
    """Whether the estimate hangs on a handful of rows that were rewarded.

    Weights say nothing of that: with three rewards in a million rows an interval by
    Student's quantile covers 85% at 95%, however even the weights are.
    """
    term = BALANCED_REWARD if crossed else WEIGHTED_REWARD
    together = pooled(view.values())
    one_sign = together.min(REWARD) >= 0 or together.max(REWARD) <= 0
    square = together.mean_square(term) if one_sign and together.has(term) else 0.0
    if not 0 < square < math.inf:
        return []
    effective = together.count * together.mean(term) ** 2 / square
    if effective >= RARE or 2 * effective > together.count:
        return []
    return [
        Finding(
            "few-rewarded-rows",
            f"The weighted rewards are worth {effective:.1f} rows only, few were rewarded: "
            "an interval from so few is optimistic.",
            "Collect more rows, or use interval='likelihood' or 'betting' with `reward_range`.",
        )
    ]


CODE = "no-cross-propensities"
AS_NAIVE = {"calibrated-as-naive": "calibrated", "weighted-as-naive": "weighted"}


def no_cross_propensities(
    refused: Sequence[str], fallen: Sequence[str], loggers: Sequence[str]
) -> tuple[Finding, ...]:
    """Return one finding for all estimators that lack cross-propensities.

    Args:
        refused: Estimators that cannot run without them.
        fallen: Estimators that fall back on naive without them.
        loggers: Loggers whose probabilities are missing.
    """
    return (_finding(refused, fallen, loggers),) if refused else ()


def _finding(refused: Sequence[str], fallen: Sequence[str], loggers: Sequence[str]) -> Finding:
    lost = f"there is no {_listed(refused, 'or')}"
    weak = f", and {_listed(fallen, 'and')} can do no better than naive" if fallen else ""
    return Finding(
        CODE,
        "The probability of each row's action is known under the logger that wrote it, but "
        f"not under the others: {lost}{weak}.",
        f"Give `propensities` (--propensities) for {', '.join(map(repr, loggers))}: a column, "
        "an expression or a policy for each.",
    )


def _listed(names: Sequence[str], last: str) -> str:
    """Names as a sentence has them.

    >>> _listed(["a"], "or"), _listed(["a", "b", "c"], "or")
    ('a', 'a, b or c')
    """
    return f" {last} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
