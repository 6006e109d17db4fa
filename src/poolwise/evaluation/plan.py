"""Plan: how many new rows, and from which loggers, reach a half-width or show a lift."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from poolwise.diagnosis.provenance import on_own
from poolwise.engines import with_loggers
from poolwise.errors import UsageError, did_you_mean
from poolwise.estimators.calibrated import many
from poolwise.estimators.decisive import REACHED, Decisive
from poolwise.evaluation.comparison import without_training
from poolwise.evaluation.design import RowSample
from poolwise.evaluation.differences import find_incumbent
from poolwise.evaluation.outlook import AS_NOW, BEST, Outlook, rough
from poolwise.evaluation.output import Result, Row, of_requests
from poolwise.evaluation.per_request import refuse_clicks
from poolwise.evaluation.read import open_supported, run
from poolwise.evaluation.request import named_targets, request
from poolwise.evaluation.results import check_lift
from poolwise.evaluation.target import make_results
from poolwise.intervals.student import student
from poolwise.moments.terms import BALANCED_REWARD, BALANCED_WEIGHT, NO_NEEDS, ratio
from poolwise.report.tables import Grid, needed_rows, plan_tables
from poolwise.text import count_text, in_units, join_names, percent, short, unit_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.engines.base import EngineLike, Rows
    from poolwise.errors import Finding
    from poolwise.evaluation.outlook import Option
    from poolwise.evaluation.read import OpenLog
    from poolwise.evaluation.request import Request
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.coverage import Coverage
    from poolwise.moments.estimate import Estimate

LISTED_LOGGERS = 5  # loggers that a sentence lists
PLANNED = ("calibrated", "balanced", "weighted", "naive")
OF_PERIODS, OF_OWN = "period-balanced", "self-normalised"
ALWAYS = "New rows are like the old ones, and all policies stay as they are."
OF_RANGES = "Ranges are as wide as the present variances are uncertain."
OF_LIFTS = "The number of rows that shows a lift has no range: it is as rough as a variance."
SAMPLE_ROWS = 50_000  # rows of the sample, which represents the log
FEWEST_ROWS = 5_000  # of them with many loggers
SAMPLE_WORK = SAMPLE_ROWS * 40**2  # rows times pairs of loggers: under a minute


def plan(  # noqa: PLR0913 - options are keyword-only, each with a default
    log: Log,
    target: Mapping[str, PolicyLike] | PolicyLike,
    *,
    half_width: float | None = None,
    lift: float | None = None,
    power: float = 0.8,
    baseline: str | None = None,
    estimators: Sequence[str] | None = None,
    level: float = 0.95,
    engine: EngineLike = None,
) -> Plan:
    """Return how many rows reach a half-width of the interval, or show a lift.

    For a half-width, the plan has a number for each estimator and each source of new rows:
    the loggers mixed as now, one logger alone, or the best split over the loggers. For a
    lift, it has the number of rows, of loggers mixed as now, with which the interval of the
    difference from the baseline excludes 0.

    Args:
        log: The rows and what their columns mean.
        target: Probability of the logged action under the new policy, or a mapping of one
            name to it.
        half_width: Wanted distance from the estimate to either end of its interval.
        lift: True difference from the baseline that the rows must show.
        power: Probability of showing it.
        baseline: Label of the logger to compare with; by default the logger with the most
            rows.
        estimators: Names among calibrated, balanced, weighted and naive, and
            period-balanced if the log has a `period`; by default all that the log supports.
            For a log with own propensities only they are self-normalised, the default, and
            naive.
        level: Level of the interval.
        engine: As for `evaluate`.
    """
    _refuse_goal(half_width, lift, power)
    named = named_targets(target)
    if len(named) != 1:
        raise UsageError(f"plan takes one target, got {len(named)}: call it for each")
    log = with_loggers(log, engine)
    refuse_clicks(log, "plan")
    if log.needs_classifier:
        raise UsageError(
            "plan does not estimate mixtures: give `propensities` under every logger"
        )
    asked = request(log, named, _choose_estimators(estimators, log), level=level)
    wanted = None if lift is None else (lift, power)
    verb = partial(_plan_pass, half_width=half_width, wanted=wanted, baseline=baseline)
    return run(replace(asked, strict=estimators is not None), engine, verb)


def _refuse_goal(half_width: float | None, lift: float | None, power: float) -> None:
    """Refuse a goal that no number of rows can reach."""
    if half_width is None and lift is None:
        raise UsageError("plan needs a half_width (--half-width), a lift (--lift) or both")
    if half_width is not None and not 0 < half_width < math.inf:
        raise UsageError(f"half_width must be positive and finite, got {half_width:g}")
    if lift is not None:
        check_lift(lift, power)


def _plan_pass(
    rows: OpenLog,
    half_width: float | None,
    wanted: tuple[float, float] | None,
    baseline: str | None,
) -> Plan:
    """Make the pass, and plan for a half-width, or for a lift with its power."""
    rows = open_supported(_plannable(rows.request, rows.coverage), rows.rows)
    asked, log = rows.request, rows.request.log
    (name,) = asked.names
    incumbent = find_incumbent(rows, baseline)
    answers = rows.read(also=incumbent.needs if wanted else NO_NEEDS)
    formulas = {estimator.formula for estimator in rows.served.estimators.values()}
    sample = None
    if rows.coverage.crossed and half_width:
        try:
            sample = _sample_rows(rows.rows, name)
        except UsageError:  # weighted and naive can do without
            if formulas & {"calibrated", "balanced"}:
                raise
    evaluation = without_training(
        make_results(answers), on_own(log.trained_on, answers.loggers)
    )
    result, pool = evaluation[name], answers.pool(name)
    usable = {e: s for e, s in rows.served.estimators.items() if e in result.estimates}
    pools = {e: answers.pool(name, s) for e, s in usable.items()}
    width, per_request = half_width or math.nan, evaluation.rows_per_request
    outlook = Outlook(
        pool,
        usable,
        pools,
        sample,
        width,
        asked.level,
        coverage=rows.coverage,
        together=per_request or 1,
    )
    estimates = {e: outlook.present(e, result.estimates[e]) for e in usable}
    options = []
    with threadpool_limits(limits=1):  # thousands of small products: threads only wait
        for estimator, estimate in estimates.items() if half_width is not None else ():
            options += outlook.options(estimator, estimate)
    detection = None
    if wanted and result.estimates:
        differences = incumbent.differences(answers, evaluation.targets)
        compared = replace(evaluation, differences=differences)
        needed = compared.rows_to_detect(name, wanted[0], power=wanted[1])
        detection = Detection(*wanted, incumbent.name, incumbent.reason, needed)
    return Plan(
        target=name,
        half_width=width,
        level=asked.level,
        rows=evaluation.rows,
        estimates=estimates,
        options=tuple(options),
        assumptions=(
            ALWAYS,
            *([OF_RANGES] if options else ()),
            *([OF_LIFTS] if detection else ()),
            *_assumptions(log, outlook, len(pool)),
        ),
        findings=(*evaluation.findings, *result.findings, *rough(options)),
        detection=detection,
        rows_per_request=per_request,
    )


def _choose_estimators(estimators: Sequence[str] | None, log: Log) -> Sequence[str]:
    allowed = (*PLANNED, OF_OWN) if log.period is None else (OF_PERIODS, *PLANNED, OF_OWN)
    if estimators is None:
        return allowed
    if isinstance(estimators, str):
        estimators = [estimators]
    unknown = [e for e in estimators if e not in allowed]
    if unknown or not estimators:
        got = f"{unknown[0]!r}{did_you_mean(unknown[0], allowed)}" if unknown else "none"
        raise UsageError(f"plan takes the estimators {', '.join(allowed)}; got {got}")
    return list(dict.fromkeys(estimators))


def _plannable(asked: Request, coverage: Coverage) -> Request:
    """Return a plan of the estimators that the log supports and `plan` can predict."""
    mixed = OF_OWN if coverage.mixture else ""
    if asked.strict:
        if mixed in {e.name for e in asked.estimators}:
            raise UsageError(
                f"plan takes {OF_OWN} for logs with own propensities only: for others, take "
                "calibrated"
            )
        return asked
    if coverage.crossed:
        usable = [e for e in asked.estimators if e.name != mixed]
    else:
        others = "naive" if mixed else OF_OWN
        usable = [e for e in asked.estimators if e.by_cell or e.name == others]
    return replace(asked, estimators=tuple(usable))


def _sample_rows(rows: Rows, name: str) -> RowSample:
    terms = (
        BALANCED_REWARD.bind(name),
        BALANCED_WEIGHT.bind(name),
        *(ratio(i) for i in rows.counts),
    )
    most = max(FEWEST_ROWS, SAMPLE_WORK // len(rows.counts) ** 2)
    values, shares = rows.sample(terms, min(SAMPLE_ROWS, most))
    return RowSample(shares, values[0], values[1], values[2:].T)


def _assumptions(log: Log, outlook: Outlook, loggers: int) -> tuple[str, ...]:
    sentences = []
    if outlook.sample is not None:
        total, taken = outlook.pool.rows, len(outlook.sample.shares)
        part = "all" if taken == total else f"{taken:,} of {total:,}"
        sentences.append(f"Calibrated and balanced are predicted from {part} rows.")
        if many(outlook.pool):
            sentences.append(
                "The best split of calibrated and balanced minimises a second moment."
            )
        elif loggers > 1:
            sentences.append(
                "The best split of calibrated minimises its variance, that of balanced its "
                "second moment."
            )
    if log.cluster is not None:
        sentences.append("New clusters have as many rows as the old ones.")
    return tuple(sentences)


@dataclass(frozen=True)
class Detection:
    """Rows that show a lift over the baseline.

    Attributes:
        lift: True difference from the baseline.
        power: Probability of showing it.
        baseline: Label of the logger to compare with.
        reason: Reason for it, "largest logger" for example; empty if it was named.
        rows: Rows in all, of loggers mixed as now.
    """

    lift: float
    power: float
    baseline: str
    reason: str
    rows: float

    def sentence(self, now: int, per_request: int | None = None) -> str:
        """Return the number of rows or requests in words, if the log has so many rows `now`."""
        units, now = f"{unit_text(per_request)}s", round(in_units(now, per_request))
        which = f"{self.baseline!r}{f', the {self.reason},' if self.reason else ''}"
        wanted = f"A lift of {short(self.lift)} over {which} is shown with probability"
        if not self.rows > 0 or math.isinf(self.rows):
            unknown = f"an unknown number of {units}: these show no spread."
            return f"{wanted} {self.power:g} by {unknown}"
        needed = math.ceil(in_units(self.rows, per_request))
        start = f"{wanted} {self.power:g} by {count_text(needed)} {units} in all, "
        more = needed - now
        if more <= 0:
            return f"{start}and the log has {count_text(now)} already."
        return (
            f"{start}{count_text(more)} more than now, if the loggers stay mixed as they are."
        )


@dataclass(frozen=True, repr=False)
class Plan(Result):
    """Numbers of rows that reach a half-width, or show a lift.

    Attributes:
        target: Name of the target.
        half_width: Wanted half-width; NaN without one.
        level: Level of the interval.
        rows: Rows of each logger now.
        estimates: Estimate of each estimator now.
        options: Options of each estimator; empty without a half-width.
        assumptions: Assumptions of the plan, as sentences.
        findings: Findings of the log and of the target.
        detection: Rows that show a lift; None without one.
        rows_per_request: Rows per request of a ranking log; None if values are per row.
    """

    kind = "plan"
    labels = ("source", "estimator")
    target: str
    half_width: float
    level: float
    rows: Mapping[str, int]
    estimates: Mapping[str, Estimate]
    options: tuple[Option, ...]
    assumptions: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    detection: Detection | None = None
    rows_per_request: int | None = None

    def option(self, estimator: str, source: str = BEST) -> Option:
        """Return one option; by default the best split."""
        return {(o.estimator, o.source): o for o in self.options}[estimator, source]

    def half_width_now(self, estimator: str) -> float:
        """Return the present half-width; infinite if the rows have no variance."""
        estimate = self.estimates[estimator]
        if not 0 < estimate.variance < math.inf:
            return math.inf
        return student(estimate, self.level).upper - estimate.value

    @property
    def sentence(self) -> str:
        """The recommendation in words."""
        total = sum(self.rows.values())
        detected = ""
        if self.detection is not None:
            detected = self.detection.sentence(total, self.rows_per_request)
        reached = "" if math.isnan(self.half_width) else self._reached()
        return " ".join(filter(None, [reached, detected, self._decided()]))

    def _decided(self) -> str:
        """Return how many rows bring the decisive ones to ten, in words."""
        found = next((e.decisive for e in self.estimates.values() if e.decisive), None)
        if not isinstance(found, Decisive) or not found.lacks_rows:
            return ""
        per_request = self.rows_per_request
        rows, units = sum(self.rows.values()), f"{unit_text(per_request)}s"
        if not found.rows:
            return f"No decisive row was logged yet: how many {units} bring one is unknown."
        more = float(f"{in_units(found.more_rows(rows), per_request):.2g}")
        return (
            f"Decisive in this log: {found.units}. About {count_text(more)} more {units}, of "
            f"loggers mixed as now, bring them to {REACHED}."
        )

    def _reached(self) -> str:
        """Return how the half-width is reached, in words."""
        wanted = f"a half-width of {short(self.half_width)}"
        per_request, units = self.rows_per_request, f"{unit_text(self.rows_per_request)}s"
        if not self.estimates:
            return f"No estimator can be planned for {self.target!r}."
        # estimators are in order of preference: take the first that can reach it
        first = next((e for e in self.estimates if self.option(e).rows < math.inf), "")
        if not first:
            reasons = {e: self.option(e).reason for e in self.estimates}
            why = "; ".join(f"{e}: {reason}" for e, reason in reasons.items())
            return f"No number of {units} is known to reach {wanted} ({why})."
        best, mixed = self.option(first), self.option(first, AS_NOW)
        now = self.half_width_now(first)
        if not best.rows:
            return f"{first.capitalize()} has already reached {wanted}: it is {short(now)} now."
        parts = sorted(best.split.items(), key=lambda part: -part[1])
        origin = join_names([f"{percent(round(share, 3))} from {i!r}" for i, share in parts])
        origin = "in the best split" if len(parts) > LISTED_LOGGERS else origin
        return (
            f"{first.capitalize()} needs {_word_need(best, now, per_request)} more {units} for "
            f"{wanted}, if they come {origin}; with the loggers mixed as they are now, "
            f"{_word_need(mixed, now, per_request)}."
        )

    def to_dicts(self) -> list[Row]:
        """Return one dictionary per estimator and source of rows."""
        return [
            {
                "estimator": o.estimator,
                "source": o.source,
                "rows": o.rows,
                "lower": o.lower,
                "upper": o.upper,
                "behind": o.behind,
                "half_width_now": self.half_width_now(o.estimator),
                "half_width": self.half_width,
                "level": self.level,
                "reason": o.reason,
            }
            for o in self.options
        ]

    def to_dict(self) -> Row:
        """Return the whole result, nested; the names are public."""
        options = [
            {**row, "split": dict(o.split)}
            for row, o in zip(self.to_dicts(), self.options, strict=True)
        ]
        return {
            "target": self.target,
            "half_width": self.half_width,
            "level": self.level,
            "detection": None if self.detection is None else vars(self.detection),
            "options": options,
            "loggers": [{"logger": i, "rows": n} for i, n in self.rows.items()],
            "assumptions": list(self.assumptions),
            "sentence": self.sentence,
            "warnings": self.warnings,
            **of_requests(self.rows_per_request),
        }

    @property
    def sentences(self) -> Sequence[str]:
        return (self.sentence, *self.assumptions)

    def grids(self) -> list[Grid]:
        """Return all tables, in reading order."""
        return plan_tables(self.to_dict()) if self.options else []


def _word_need(option: Option, now: float, per_request: int | None) -> str:
    return needed_rows(option.rows, now, option.lower, option.upper, per_request=per_request)
