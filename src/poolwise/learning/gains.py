"""Gains: a learned policy with its value, and its gains over loggers, on rows it has not seen.

Errors allow for how the policy was learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import stats

from poolwise.errors import Finding, NotShownError
from poolwise.evaluation.differences import conclude
from poolwise.evaluation.output import Result, Row
from poolwise.evaluation.spread import Spread
from poolwise.intervals.simultaneous import ALONE
from poolwise.learning.recipe import FEWEST_ROWS
from poolwise.report.sentence import odds
from poolwise.report.tables import Grid, as_html
from poolwise.text import count_text, interval_text, short, with_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from poolwise.evaluation.comparison import Comparison
    from poolwise.evaluation.differences import Difference
    from poolwise.evaluation.results import Evaluation
    from poolwise.learning.data import Hashes, LearningRows
    from poolwise.learning.policy import LearnedMixture, LinearPolicy
    from poolwise.learning.recipe import Candidate, Outcome
    from poolwise.moments.estimate import Estimate
    from poolwise.types import FloatArray

RARE_ROWS = 20  # rows of an action below which it is called rare


@dataclass(frozen=True)
class Gain:
    """The learned policy less one logger, on rows that it was not learned from.

    Attributes:
        logger: Label of the logger.
        value: Estimated difference.
        std_error: Its standard error.
        lower: One-sided lower bound of the difference.
        shown: True if the bound is above 0, and no alarm forbids a conclusion.
    """

    logger: str
    value: float
    std_error: float
    lower: float
    shown: bool


@dataclass(frozen=True)
class Choice:
    """The setting that one part chose.

    Attributes:
        part: Number of the part: a fold, or 1 with a holdout.
        anchor: Label of the logger that learning started at.
        chosen: The best candidate.
    """

    part: int
    anchor: str
    chosen: Candidate


@dataclass(frozen=True, repr=False)
class Learned(Result):
    """A learned policy, and its value on rows that it was not learned from.

    Attributes:
        policy: The policy; you can evaluate, compare and save it, and it can decide.
        evaluation: Values of the learned policy, of the greedy anchor and of every logger.
        comparison: The same policies in pairs; None without cross-propensities.
        gains: The learned policy minus each logger, with one-sided bounds.
        name: Name of the learned policy in the evaluation.
        choices: Setting that each part chose.
        candidates: All settings that were tried, with their values on validation rows.
        more_rows: New rows, of loggers mixed as now, that would show a gain; None if the
            policy is already shown to be better, or if no number is known.
        findings: Findings about learning, the log and every target.
    """

    kind = "learned"
    labels = ("logger",)
    policy: LinearPolicy | LearnedMixture
    evaluation: Evaluation
    comparison: Comparison | None
    gains: tuple[Gain, ...]
    name: str
    choices: tuple[Choice, ...]
    candidates: tuple[tuple[Candidate, ...], ...]
    more_rows: float | None
    findings: tuple[Finding, ...] = ()

    @property
    def better(self) -> bool:
        """True if the policy was shown to be better than every logger."""
        return bool(self.gains) and all(gain.shown for gain in self.gains)

    def require(self, verdict: Literal["better"]) -> None:
        """Raise NotShownError unless the policy was shown to be better than every logger."""
        if not self.better:
            weak = [f"the gain over {g.logger!r} is not" for g in self.gains if not g.shown]
            raise NotShownError(f"{verdict} than every logger", weak or ["no gain is known"])

    @property
    def estimate(self) -> Estimate:
        """The recommended estimate of the learned policy's value."""
        result = self.evaluation[self.name]
        return result.estimates[result.recommended]

    @property
    def level(self) -> float:
        return self.evaluation.level

    @property
    def sentence(self) -> str:
        """The conclusion in words."""
        return " ".join(filter(None, _sentences(self)))

    @property
    def sentences(self) -> Sequence[str]:
        return (self.sentence,)

    def to_dicts(self) -> list[Row]:
        """Return one dictionary per logger: the gain of the learned policy over it."""
        return [{**vars(gain)} for gain in self.gains]

    def to_dict(self) -> Row:
        """Return the whole result, nested; the names are public."""
        return {
            "better": self.better,
            "sentence": self.sentence,
            "value": self.estimate.value,
            "std_error": self.estimate.std_error,
            "gains": self.to_dicts(),
            "more_rows": self.more_rows,
            "choices": [
                {"part": c.part, "anchor": c.anchor, **_candidate(c.chosen)}
                for c in self.choices
            ],
            "candidates": [[_candidate(c) for c in part] for part in self.candidates],
            "evaluation": self.evaluation.to_dict(),
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "warnings": self.warnings,
        }

    def grids(self) -> list[Grid]:
        """Return all tables, in reading order."""
        return [_values(self), _gains(self), _choices(self)]

    def __str__(self) -> str:
        return f"{self.sentence}\n\n{super().__str__().removesuffix(self.sentence).rstrip()}"

    def _repr_html_(self) -> str:
        return as_html((), (), (self.sentence,)) + as_html(self.grids(), self.warnings)

    def save(self, path: str | PathLike[str], *, command: str = "") -> None:
        """Write the policy (.json), or the report as one HTML file (.html).

        Args:
            path: The file; an existing one is replaced as a whole.
            command: Command that reproduces the numbers, shown in the report.
        """
        if Path(path).suffix.lower() == ".json":
            self.policy.save(path)
            return
        from poolwise.files import HTML, refuse_output, write_whole
        from poolwise.report.page import page

        refuse_output(path, HTML)
        facts = self.evaluation.to_dict() | {"warnings": self.warnings}
        severity = "sound" if self.better else "warning"
        opening = {"title": "Learned policy", "answer": self.sentence, "severity": severity}
        first = [_gains(self), _choices(self)]
        text = page(facts, command=command, opening=opening, first=first)
        write_whole(Path(path), text.encode())


def _sentences(learned: Learned) -> list[str]:
    estimate, level = learned.estimate, _level(learned)
    earns = f"it earns {with_error(estimate.value, estimate.std_error)} on rows that it was not"
    if learned.better:
        least = min(learned.gains, key=lambda gain: gain.lower)
        more = f"at least {short(least.lower)} more than {least.logger!r}"
        verdict = f"The learned policy is better than every logger: {earns} learned from"
        return [f"{verdict}, and with {level} confidence {more}.", _odds(learned, least)]
    if not learned.gains:
        return [f"The learned policy was compared with no logger: {earns} learned from."]
    least = min(learned.gains, key=lambda gain: (gain.shown, gain.lower))
    verdict = "The learned policy is not shown to be better than every logger: its gain over"
    gain = f"{least.logger!r} is {with_error(least.value, least.std_error)}"
    bound = f"with a {level} lower bound of {short(least.lower)}"
    rest = _word_rows(learned.more_rows)
    if learned.more_rows is None and least.lower > 0:
        rest = "An alarm forbids that conclusion."
    return [f"{verdict} {gain}, {bound}; {earns} learned from.", rest, _odds(learned, least)]


def _odds(learned: Learned, gain: Gain) -> str:
    """Say how strong an unseen cause must be to reverse a gain, if that is known."""
    pairs = () if learned.comparison is None else learned.comparison.pairs
    names = {learned.name, gain.logger}
    return " ".join(odds(p.to_dict()) for p in pairs if {p.target, p.other} == names)


def _level(learned: Learned) -> str:
    return f"{100 * learned.level:g}%"


def _word_rows(more_rows: float | None) -> str:
    if more_rows is None:
        return "No number of rows is known to show a gain: the estimate itself is not above it."
    return (
        f"About {count_text(float(f'{more_rows:.2g}'))} more rows from the same loggers would "
        "show a gain of this size."
    )


def _values(learned: Learned) -> Grid:
    """Recommended estimate of every policy."""
    rows = []
    for name, result in learned.evaluation.targets.items():
        estimator = result.recommended
        estimate, interval = result.estimates[estimator], result.intervals[estimator]
        error = estimate.std_error
        text = interval_text(interval.lower, interval.upper, error)
        rows.append([name, with_error(estimate.value, error), text])
    header = ["policy", "value", f"{_level(learned)} interval"]
    return Grid("Values on rows that were not learned from", header, rows)


def _gains(learned: Learned) -> Grid:
    rows = [
        [
            gain.logger,
            with_error(gain.value, gain.std_error),
            short(gain.lower),
            "yes" if gain.shown else "no",
        ]
        for gain in learned.gains
    ]
    header = ["logger", "gain", f"{_level(learned)} lower bound", "shown"]
    return Grid("Gain of the learned policy over each logger", header, rows)


def _choices(learned: Learned) -> Grid:
    rows = [
        [
            str(choice.part),
            choice.anchor,
            choice.chosen.method,
            _setting(choice.chosen),
            "greedy" if choice.chosen.greedy else "soft",
            with_error(choice.chosen.value, choice.chosen.std_error),
        ]
        for choice in learned.choices
    ]
    header = ["part", "anchor", "method", "setting", "plays", "value in validation"]
    return Grid("Chosen settings", header, rows)


def _setting(chosen: Candidate) -> str:
    """Return the numbers that a method chose."""
    smoothing = f"smoothing {short(chosen.smoothing)}"
    if chosen.method == "linear":
        return f"strength {short(chosen.strength)}, {smoothing}"
    return f"{chosen.rounds} rounds, {smoothing}" if chosen.rounds else "-"


def _candidate(candidate: Candidate) -> Row:
    return {**vars(candidate), "score": candidate.score}


def allowance(parts: int) -> float:
    """Return the factor of errors where the policies of parts were learned from common rows.

    Their errors are correlated, and were measured to be 5% to 20% larger than the errors of
    independent rows; with K parts they count as sqrt(K / (K - 1)) times as large.
    """
    return math.sqrt(parts / (parts - 1)) if parts > 1 else 1.0


def widen_errors(evaluation: Evaluation, name: str, factor: float) -> Evaluation:
    """Return the evaluation with larger errors of the learned policy."""
    learned = evaluation[name]
    estimates = {
        e: replace(estimate, variance=factor**2 * estimate.variance)
        for e, estimate in learned.estimates.items()
    }
    intervals = {
        e: replace(
            interval,
            lower=estimates[e].value - factor * (estimates[e].value - interval.lower),
            upper=estimates[e].value + factor * (interval.upper - estimates[e].value),
        )
        for e, interval in learned.intervals.items()
    }
    wider = replace(learned, estimates=estimates, intervals=intervals)
    return replace(evaluation, targets={**evaluation.targets, name: wider})


def find_gain(
    difference: Difference | None, logger: str, level: float, *, alarmed: bool
) -> Gain:
    """Return the gain over a logger, with a bound that skew does not raise.

    The bound is at most the normal one, and an alarm forbids a conclusion.

    Args:
        difference: The learned policy less the logger, in an interval whose lower end is a
            one-sided bound; None if it is unknown.
        logger: Label of the logger.
        level: Level of the bound.
        alarmed: Whether an alarm forbids a conclusion.
    """
    if difference is None:
        return Gain(logger, 0.0, math.inf, -math.inf, shown=False)
    value, error = difference.value, difference.std_error
    lower = min(difference.interval.lower, value - float(stats.norm.ppf(level)) * error)
    shown = difference.verdict == "better" and lower > 0 and not alarmed
    return Gain(logger, value, error, lower, shown)


def contrast_means(
    estimate: Estimate, data: LearningRows, name: str, level: float
) -> list[Difference]:
    """Return the learned policy less the mean reward of each logger, if that has an error.

    Other propensities of the loggers are unknown.  The errors of both sides add up, which holds
    however the two depend on each other.
    """
    pairs, values, errors = [], [], []
    for k, logger in enumerate(data.loggers):
        here = data.logger == k
        error = estimate.std_error + _mean_error(data.reward[here], data.hashes[here])
        if math.isfinite(error):
            pairs.append((name, logger))
            values.append(estimate.value - float(data.reward[here].mean()))
            errors.append(error)
    spread = Spread.of_errors(np.array(values), np.array(errors))
    return conclude(pairs, spread, ALONE, level)


def _mean_error(values: FloatArray, hashes: Hashes) -> float:
    """Return the standard error of a mean; values with equal hashes are of one cluster."""
    _, cluster = np.unique(hashes, return_inverse=True)
    count = int(cluster.max(initial=-1)) + 1
    if count < 2:
        return math.inf  # of no row, or of one cluster
    sums = np.bincount(cluster, values - values.mean())
    return math.sqrt(count / (count - 1) * float(sums @ sums)) / len(values)


def notes_on(data: LearningRows, outcomes: Sequence[Outcome], total: int) -> list[Finding]:
    """Return the findings about how a policy was learned, from all or some of the rows."""
    notes = []
    if all(outcome.chosen.is_anchor for outcome in outcomes):
        notes.append(_nothing_learned(data, outcomes))
    rows = np.bincount(data.action[data.action >= 0], minlength=len(data.actions))
    rare = [
        repr(a)
        for a, count in zip(data.actions, rows.tolist(), strict=True)
        if count < RARE_ROWS
    ]
    if rare:
        listed = ", ".join(rare[:5]) + (", ..." if len(rare) > 5 else "")
        message = f"Actions with fewer than {RARE_ROWS} rows ({len(rare)}): {listed}."
        notes.append(Finding("rare-actions", message, "Log them more often.", "note"))
    if not data.crossed:
        notes.append(_not_crossed(mixed=data.mixture is not None))
    if len(data) < total:
        message = f"The policy was learned from {len(data):,} of {total:,} rows."
        notes.append(Finding("rows-sampled", message, "Pass `rows` for more.", "note"))
    return notes


def _not_crossed(*, mixed: bool) -> Finding:
    """Return the finding about a log without the probability of each row under every logger."""
    advice = "Give `propensities` (--propensities) under every logger."
    without = "Without the probability of each row under every logger,"
    if mixed:
        message = (
            f"{without} loggers are compared by their mean rewards and not row by row, which "
            "is conservative."
        )
        return Finding("unpaired-loggers", message, advice, "note")
    message = (
        f"{without} learning uses the own propensities, and the comparison with loggers is "
        "conservative."
    )
    advice = f"{advice[:-1]}, or estimate their mixture with Log(estimate_mixture=True)."
    return Finding("own-propensities", message, advice)


def _nothing_learned(data: LearningRows, outcomes: Sequence[Outcome]) -> Finding:
    reason = "no setting was better in validation"
    if np.ptp(data.reward) == 0:
        reason = f"all rewards are {data.reward[0]:g}"
    elif len(outcomes[0].candidates) <= 2:
        reason = f"fewer than {FEWEST_ROWS} rows are too few"
    names = ", ".join(dict.fromkeys(repr(outcome.policy.anchor) for outcome in outcomes))
    best = all(outcome.chosen.greedy for outcome in outcomes)
    what = "plays the best action of its anchor" if best else "is its anchor"
    return Finding(
        "nothing-learned",
        f"The policy {what}, the policy of {names}: {reason}.",
        "Collect more rows, or name other features.",
    )


def not_better(learned: Learned) -> Finding:
    """Return the finding about loggers over which no gain was shown."""
    names = ", ".join(repr(gain.logger) for gain in learned.gains if not gain.shown)
    message = f"The learned policy was not shown to be better than {names}."
    return Finding("not-better", message, "Do not deploy it on this evidence.")
