"""Periods of an evaluation: one pass by period and logger serves all estimators.

Estimators of periods read the moments of cells; all others read the same moments, merged
over the periods of each logger.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from poolwise.diagnosis.over_time import over_time
from poolwise.diagnosis.provenance import pools, succession
from poolwise.engines.duckdb import DuckDBRows
from poolwise.engines.parallel import KernelRows
from poolwise.errors import Finding, UsageError
from poolwise.estimators.period import PeriodBalanced
from poolwise.intervals.skew import shaped_interval
from poolwise.moments.buckets import Split
from poolwise.moments.cells import Cell, by_logger
from poolwise.moments.linear import Linear, shares
from poolwise.moments.terms import REWARD
from poolwise.report.sentence import preferred

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.diagnosis.over_time import OverTime
    from poolwise.engines.base import Rows
    from poolwise.evaluation.read import Answers
    from poolwise.intervals.student import Interval, Limits
    from poolwise.log.log import Log
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.moments import MomentsByLogger
    from poolwise.moments.shape import Powers, Shape
    from poolwise.moments.terms import Needs


def is_periodic(estimator: Estimator) -> bool:
    """Test if an estimator reads the moments of cells."""
    return isinstance(estimator, PeriodBalanced)


def needs_of(estimator: Estimator, strata: Sequence[str], log: Log) -> Needs:
    """Return the moments that an estimator needs of a log, by cell or by logger."""
    if isinstance(estimator, PeriodBalanced):
        return estimator.needs(strata, crossed=log.crossed, mixed=log.mixed)
    return estimator.needs(strata, crossed=log.crossed)


def by_period(rows: Rows, log: Log) -> Rows:
    """Return the rows summed by period and logger, if the log has periods."""
    if log.period is None:
        return rows
    if not isinstance(rows, KernelRows):
        raise UsageError(
            "`period` requires an engine that reads rows, DuckDB or Spark: leave out `engine` "
            "and `connection`, or leave out `period`"
        )
    return rows.by_period


def strata_of(rows: Rows, log: Log) -> tuple[str, ...]:
    """Return the cells of a log with periods, the loggers of others."""
    cells = getattr(by_period(rows, log), "apart", None)
    return tuple(rows.counts if cells is None else cells)


def merged(answers: Answers) -> Answers:
    """Return answers by logger, which keep those by cell as `apart`."""
    loggers = answers.loggers
    return replace(
        answers,
        splits={
            name: Split([by_logger(bucket, loggers) for bucket in split.buckets])
            for name, split in answers.splits.items()
        },
        whole=by_logger(answers.whole, loggers),
        means=[by_logger(bucket, loggers) for bucket in answers.means],
        apart=answers,
    )


def suited(answers: Answers, estimator: Estimator) -> Answers:
    """Return the answers that an estimator reads: by cell or by logger."""
    return answers.apart if answers.apart and is_periodic(estimator) else answers


def superseded(answers: Answers) -> set[str]:
    """Return the codes of findings that a log with periods does not need.

    The difference between calibrated and an estimate that allows for trained loggers is
    what periods are declared for.
    """
    return set() if answers.apart is None else {"hausman"}


def at_first(strata: Sequence[str]) -> set[str]:
    """Return the loggers that were live in the first period: no row of the log trained them.

    All loggers, if the strata are not cells.
    """
    cells = [i for i in strata if isinstance(i, Cell)]
    if not cells:
        return set(strata)
    return {cell.logger for cell in cells if cell.period == cells[0].period}


def own_mean(logger: str, moments: MomentsByLogger) -> Linear:
    """Return the mean reward of the rows of one logger, over all its cells."""
    counts = {i: m.count for i, m in moments.items() if getattr(i, "logger", i) == logger}
    return Linear({i: {REWARD: share} for i, share in shares(counts).items()})


def fixed_beforehand(answers: Answers) -> tuple[Finding, ...]:
    """Return the note that estimators which pool loggers do not allow for policies that learn.

    Weights against the row's own logger do, with shares that do not depend on rewards.
    """
    usable, crossed = answers.served.estimators, answers.request.log.crossed
    pooling = [
        name
        for name, estimator in usable.items()
        if not is_periodic(estimator) and pools(estimator, answers.loggers)
    ]
    if answers.apart is None or not crossed or not pooling:
        return ()
    return (
        Finding(
            "fixed-beforehand",
            f"{', '.join(pooling)}: valid only if all policies were fixed before the first "
            "row. Estimates of periods also hold for policies that learn from earlier periods.",
            "Rely on period-balanced, or on period-dr where there is a reward model.",
            "note",
        ),
    )


def course_of(
    answers: Answers,
    target: str,
    estimates: Mapping[str, Estimate],
    intervals: Mapping[str, Interval],
    limits: Limits,
) -> OverTime | None:
    """Return the value in each period, by the recommended estimator of periods.

    Running estimates have Student's interval if the evaluation has it, else the default one.
    """
    asked, usable = answers.request, answers.served.estimators
    name = preferred([n for n in estimates if n in usable and is_periodic(usable[n])])
    if not name or answers.apart is None:
        return None
    split = answers.apart.splits[target]

    def rule(estimate: Estimate, shape: Shape | None, powers: Powers | None) -> Interval:
        of_shape = shape if asked.method == "skew" else None
        ends = shaped_interval(estimate, of_shape, powers, asked.level, limits, asked.sides)
        return ends[0]

    buckets = split.buckets if asked.clustered else []
    return over_time(name, (estimates[name], intervals[name]), split.whole, buckets, rule)


def undeclared(log: Log, rows: Rows, moments: MomentsByLogger) -> tuple[Finding, ...]:
    """Return the finding that loggers follow each other, if the log declares nothing.

    It matters only where estimates pool the loggers, which requires cross-propensities.
    """
    declared = log.period is not None or bool(log.trained_on)
    if declared or not log.crossed or len(moments) < 2 or not isinstance(rows, KernelRows):
        return ()
    times = rows.times() if isinstance(rows, DuckDBRows) else {}
    return succession(moments, times)
