"""Evaluate and compare: the values of targets, and the differences between them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from poolwise.diagnosis.provenance import on_own
from poolwise.engines import with_loggers
from poolwise.errors import RefusedError, UsageError, did_you_mean
from poolwise.estimators import recommend
from poolwise.evaluation.backtest import backtest_needs, compute_backtest, is_quick
from poolwise.evaluation.clicks import click_backtest
from poolwise.evaluation.differences import find_incumbent
from poolwise.evaluation.distribution import Wanted, choose_steps, find_distribution, want
from poolwise.evaluation.metrics import add_metrics, compare_metrics
from poolwise.evaluation.per_request import refuse_clicks
from poolwise.evaluation.position_bias import describe
from poolwise.evaluation.read import keep_recommended, run, select_target
from poolwise.evaluation.request import add_segments, named_targets, request
from poolwise.evaluation.segments import read_segments
from poolwise.evaluation.sensitivity import read_sensitivity
from poolwise.evaluation.target import LEFT_OUT, find_errors, make_pairs, make_results
from poolwise.intervals.guarantees import by_betting
from poolwise.moments.buckets import BUCKETS
from poolwise.moments.terms import NO_NEEDS, WEIGHT, Needs, unite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from poolwise.engines.base import EngineLike
    from poolwise.evaluation.backtest import Backtest
    from poolwise.evaluation.comparison import Comparison, Pairs
    from poolwise.evaluation.differences import Incumbent
    from poolwise.evaluation.read import Answers, OpenLog
    from poolwise.evaluation.request import Request
    from poolwise.evaluation.results import Evaluation
    from poolwise.evaluation.sensitivity import Sensitivity
    from poolwise.evaluation.target import Errors
    from poolwise.intervals.base import IntervalName
    from poolwise.intervals.student import Interval, Sides
    from poolwise.log.clicks import Clicks
    from poolwise.log.log import Log
    from poolwise.log.metrics import MetricsLike
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.coverage import Coverage
    from poolwise.moments.estimate import Estimator
    from poolwise.rows.reward_model import ModelLike

NOTHING = Wanted()
MOST_COMPARED_TARGETS = 30  # targets that an evaluation compares by itself: 435 pairs


def evaluate(  # noqa: PLR0913 - options are keyword-only, each with a default
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    estimators: Sequence[str | Estimator] | str | Estimator | None = None,
    *,
    level: float = 0.95,
    interval: IntervalName = "auto",
    sides: Sides = "two",
    engine: EngineLike = None,
    truth: Mapping[str, float] | None = None,
    which_logs: bool = False,
    model: ModelLike | None = None,
    baseline: str | None = None,
    by: str | None = None,
    backtest: bool | None = None,
    metrics: MetricsLike | None = None,
    thresholds: Sequence[float] | None = None,
    quantiles: Sequence[float] | None = None,
) -> Evaluation:
    """Estimate the value of each target with each estimator, in one pass over the log.

    Args:
        log: The rows and what their columns mean.
        targets: Probability of the logged action under each new policy, by name: a column,
            a SQL expression or a `Policy`. A single policy gets the name "target".
        estimators: Names or objects. By default calibrated and the estimators that it is
            compared with; a finding names those that the log does not support. If you name
            an estimator that the log does not support, it is an error.
        level: Level of the intervals.
        interval: "auto" is "skew", which allows for few effective rows, rare and heavy
            rewards, and clusters if the log names a `cluster`. "student" is symmetric
            (stratified, Satterthwaite). "betting" and "smoothed" bound the value itself, the
            same for every estimator; they need the log's `reward_range`.
        sides: "two", or "lower" or "upper" for a one-sided bound.
        engine: "duckdb" (the default, in this process), "spark", a SparkSession, or an
            object such as ``DuckDB(threads=4)``.
        truth: True values of the targets, where they are known.
        which_logs: Also report standard errors with each logger left out, which reads the
            log once more for each logger.
        model: A reward model for the doubly robust estimators and for calibrated: a
            scikit-learn regressor or classifier, a `RewardModel`, or a `GivenModel`.
        baseline: Label of a logger, or name of a target, that the headline compares with. By
            default the logger with the most rows.
        by: Column or SQL expression of segments, such as a country: one answer for each
            segment, with simultaneous intervals, in one more pass over the rows.
        backtest: Also predict what each logger earned from the other logs, in the same pass;
            if a prediction fails, the log is read once more for each logger. By default for
            logs of up to a million rows and 20 loggers, where it takes little time.
        metrics: Other metrics by name, from the same pass: a column, a SQL expression or a
            `Metric`. The log's own reward is the metric "reward".
        thresholds: Also report how often the target's reward is at most each of these numbers.
        quantiles: Also report these quantiles of the target's reward, such as ``[0.1, 0.5]``.
            Without `thresholds`, a sample of the rows says which values the reward has.
    """
    log = with_loggers(log, engine)
    if which_logs:
        refuse_clicks(log, "which_logs")
    asked = request(
        log,
        targets,
        estimators,
        level=level,
        interval=interval,
        sides=sides,
        model=model,
        metrics=metrics,
    )
    wanted = want(asked, thresholds, quantiles)
    verb = partial(
        _evaluate_open,
        baseline=baseline,
        which_logs=which_logs,
        backtest=backtest,
        wanted=wanted,
    )
    return replace(run(add_segments(asked, by), engine, verb), truth=truth or {})


def compare(
    log: Log,
    targets: Mapping[str, PolicyLike],
    *,
    baseline: str | None = None,
    estimator: str | Estimator | None = None,
    level: float = 0.95,
    engine: EngineLike = None,
    model: ModelLike | None = None,
    metrics: MetricsLike | None = None,
) -> Comparison:
    """Rank targets, and report which differences between them are significant.

    The intervals of the estimates hold simultaneously for all targets. The intervals of the
    differences hold simultaneously for all pairs, including pairs with the baseline. Every
    finding of `evaluate` appears here as well; a target whose probabilities cannot be right,
    or about which the logs say too little, is neither better nor worse than another.

    Args:
        log: The rows and what their columns mean.
        targets: Probability of the logged action under each new policy, by name.
        baseline: Name of a target, or label of a logger, whose policy then joins the
            targets. Without one, targets are compared with each other only.
        estimator: Name of an estimator, or an estimator; by default the recommended one:
            calibrated, an estimator of periods if the log has a `period`, or
            self-normalised if the log has own propensities only.
        level: Simultaneous level of the intervals of all targets, and of all pairs.
        engine: As for `evaluate`.
        model: A reward model, as for `evaluate`.
        metrics: Other metrics by name, as for `evaluate`.
    """
    log, own = with_loggers(log, engine), named_targets(targets)
    named = _with_baseline(log, own, baseline)
    if len(named) < 2:
        raise UsageError("compare needs at least two targets, or a target and a baseline")
    asked = request(log, named, estimator, level=level, model=model, metrics=metrics)
    joined = "" if baseline is None or baseline in own else baseline
    answers, sensitivity = run(asked, engine, partial(_compare_in_pass, joined=joined))
    return compare_metrics(answers, baseline or "", sensitivity)


def read_pairs(
    asked: Request, engine: EngineLike = None, joined: str = ""
) -> tuple[Pairs, Evaluation]:
    """Make the pass of a comparison; `joined` is a logger among the targets, or empty."""
    answers, sensitivity = run(asked, engine, partial(_compare_in_pass, joined=joined))
    return replace(make_pairs(answers), sensitivity=sensitivity), make_results(answers)


def _compare_in_pass(rows: OpenLog, joined: str) -> tuple[Answers, Sensitivity | None]:
    """Make the pass of a comparison; `joined` is a logger among the targets, or empty."""
    if joined in rows.coverage.live:
        raise _uncovered(joined)
    rows = keep_recommended(rows, strict=True)
    name = next(iter(rows.served.estimators), "")
    if not name:
        raise UsageError("this log supports no default estimator: name one")
    return rows.read(name), read_sensitivity(rows)


def _evaluate_open(
    rows: OpenLog,
    *,
    baseline: str | None,
    which_logs: bool,
    backtest: bool | None,
    wanted: Wanted,
) -> Evaluation:
    """Make the pass over all rows and over segments, and estimate."""
    asked, among = rows.request, _choose_target(rows, baseline)
    incumbent = find_incumbent(rows, None if among else baseline)
    answer = partial(_evaluate_pass, incumbent=incumbent, among=among)
    compared = _choose_compared(rows, always=bool(among))
    bets = partial(_bet_on_targets, rows) if asked.interval.by_block else dict
    leave_out = which_logs and rows.coverage.crossed
    without = partial(_without_each, rows) if leave_out else _leave_none_out
    backtest = is_quick(rows) if backtest is None else backtest
    tested = backtest_needs(rows) if backtest else NO_NEEDS
    evaluation = answer(rows, compared, bets, without, tested, wanted)
    evaluation = _with_sensitivity(evaluation, rows)
    if asked.log.clicks is not None:
        evaluation = _with_clicks(evaluation, rows, asked.log.clicks, backtest=backtest)
    if asked.by is None:
        return evaluation
    ask = partial(answer, compared=compared if among else "")
    segments = read_segments(rows, ask)
    metrics = {k: replace(e, segments=segments[k]) for k, e in evaluation.metrics.items()}
    return replace(evaluation, segments=segments[""], metrics=metrics)


def _choose_target(rows: OpenLog, baseline: str | None) -> str:
    """Return the target that is the baseline; empty if the baseline is a logger."""
    asked, clicks = rows.request, rows.request.log.clicks
    if baseline is None and clicks is not None and clicks.values:
        baseline = find_incumbent(rows, None).name  # rankers are among the targets
    return baseline if baseline in asked.names else ""


def _leave_none_out(measure: str) -> dict[str, dict[str, Errors]]:
    """Return no standard errors, of no logger that is left out."""
    del measure
    return {}


def _evaluate_pass(
    rows: OpenLog,
    compared: str,
    bets: Callable[[], Mapping[str, Interval]] = dict,
    without: Callable[[str], Mapping[str, Mapping[str, Errors]]] = _leave_none_out,
    tested: Needs = NO_NEEDS,
    wanted: Wanted = NOTHING,
    *,
    incumbent: Incumbent,
    among: str,
) -> Evaluation:
    """Make the pass over rows and estimate; `among` is the target that is the baseline.

    Loggers are backtested if `tested` has the needs of that.  Bets are placed and loggers left
    out after the pass, which rejects rows that break a rule.
    """
    against = "" if among else incumbent.joined
    needs = NO_NEEDS if among else incumbent.needs
    steps = choose_steps(rows, wanted)
    answers = rows.read(compared, needs, tested, against=against, steps=steps.thresholds)
    conclude = partial(_conclude, incumbent=incumbent, among=among)
    evaluation = conclude(answers, bets(), without(""))
    if tested.terms:
        with suppress(RefusedError):  # findings of the targets give the reason
            evaluation = _with_backtest(evaluation, compute_backtest(rows, answers))
    if wanted:
        found = find_distribution(answers, steps, wanted)
        evaluation = replace(evaluation, distribution=found)
    if not rows.request.metrics:
        return evaluation
    others = {m: conclude(own, {}, without(m)) for m, own in answers.measures.items()}
    return add_metrics(evaluation, others, answers, incumbent, among)


def _conclude(
    answers: Answers,
    bets: Mapping[str, Interval],
    without: Mapping[str, Mapping[str, Errors]],
    *,
    incumbent: Incumbent,
    among: str,
) -> Evaluation:
    """Estimate all targets from the moments of a pass, and their differences."""
    evaluation = replace(
        make_results(answers, bets, without),
        pairs=make_pairs(answers) if answers.compared else None,
        baseline=among or incumbent.name,
        baseline_reason="" if among else incumbent.reason,
    )
    if among:
        return evaluation.against(among)
    if incumbent.name not in answers.loggers:  # of a segment
        return evaluation
    return replace(evaluation, differences=incumbent.differences(answers, evaluation.targets))


def _with_sensitivity(evaluation: Evaluation, rows: OpenLog) -> Evaluation:
    """Return the evaluation with the odds that reverse its differences, if they are asked."""
    found = read_sensitivity(rows)
    if found is None:
        return evaluation
    differences = {name: found.mark(d) for name, d in evaluation.differences.items()}
    pairs = evaluation.pairs and replace(evaluation.pairs, sensitivity=found)
    return replace(evaluation, differences=differences, pairs=pairs)


def _with_clicks(
    evaluation: Evaluation, rows: OpenLog, clicks: Clicks, *, backtest: bool
) -> Evaluation:
    """Return the evaluation with the position bias of a click log, and with its backtest."""
    requests = rows.request.log.requests.rows if rows.request.log.requests else 1
    counts = {i: n // requests for i, n in rows.rows.counts.items()}
    if backtest:
        evaluation = _with_backtest(evaluation, click_backtest(rows))
    return replace(evaluation, position_bias=describe(clicks.curve, counts, rows.request.level))


def _with_backtest(evaluation: Evaluation, found: Backtest) -> Evaluation:
    grave = (f for f in found.findings if f.severity != "note")
    return replace(evaluation, backtest=found, findings=(*evaluation.findings, *grave))


def _choose_compared(rows: OpenLog, *, always: bool) -> str:
    """Return the estimator that targets are compared in, if they are compared.

    Unless `always`, they are not if there are more than `MOST_COMPARED_TARGETS`, or if a
    database would have
    to sum each pair of terms by name.
    """
    targets = len(rows.request.targets)
    if targets < 2 or not (
        always or (targets <= MOST_COMPARED_TARGETS and rows.rows.by_kernel)
    ):
        return ""
    return recommend(rows.served.estimators)


def _bet_on_targets(rows: OpenLog) -> dict[str, Interval]:
    """Return the betting interval of each target, from histograms of the rows."""
    asked = rows.request
    learned = on_own(asked.log.trained_on, tuple(rows.rows.counts))
    trained = bool(learned) and asked.log.period is None
    return by_betting(
        rows.rows,
        asked.names,
        asked.log,
        asked.level,
        asked.sides,
        pooled=rows.coverage.period_mixed,
        trained=trained,
    )


def _without_each(rows: OpenLog, measure: str) -> dict[str, dict[str, Errors]]:
    """Return standard errors by target and left-out logger, of one measure.

    Leaving a logger out changes the mixture and so every weight: the rows are read once more
    for each logger.
    """
    targets, loggers = rows.request.names, tuple(rows.rows.counts)
    by_target: dict[str, dict[str, Errors]] = {name: {} for name in targets}
    for logger in loggers if len(loggers) > 1 else ():
        needs = _needs_without(rows.coverage.without(logger))
        bound = [needs.bind(name) for name in targets]
        every = rows.rows.measuring(measure) if measure else rows.rows
        rest = every.without(logger)
        if rows.request.clustered:
            pools = rest.bucketed(bound, BUCKETS)
        else:
            pools = [rest.moments(unite(bound))] * len(targets)
        for name, pool in zip(targets, pools, strict=True):
            by_target[name][logger] = find_errors(select_target(pool, needs, name))
    return by_target


def _needs_without(coverage: Coverage) -> Needs:
    """Return the moments that the errors of the other loggers need."""
    kinds = [e.needs(coverage) for e in LEFT_OUT.values()]
    return unite([*kinds, Needs(extremes=(WEIGHT,))])


def _with_baseline(
    log: Log, named: dict[str, PolicyLike], baseline: str | None
) -> dict[str, PolicyLike]:
    """Return the targets, and the baseline's own policy where it is a logger."""
    if baseline is None or baseline in named:
        return named
    policy = log.by_label.get(baseline)
    if policy is not None and log.crossed:
        return {**named, baseline: policy}
    if baseline in log.by_label or not log.crossed:
        raise _uncovered(baseline)
    hint = did_you_mean(baseline, [*named, *log.by_label])
    raise UsageError(f"baseline {baseline!r} is neither a target nor a logger{hint}")


def _uncovered(baseline: str) -> UsageError:
    return UsageError(
        f"baseline {baseline!r} is not a target; to use a logger as baseline, give "
        "`propensities` (--propensities) for every logger"
    )
