"""Learn: a policy from several logs, and its value on rows that it was not learned from.

The rows are split into parts; for each, a policy is learned from the other rows.  The learned
policy plays one of these, drawn anew for each row, so its value is the mean of theirs, which
the parts estimate without having been seen.  It is better if the one-sided lower bound of its
gain over each logger is above 0.  All must be, so none needs a correction for the number of
loggers (an intersection-union test).
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from poolwise.engines import local_log, with_loggers
from poolwise.errors import Finding, LogError, RefusedError, UsageError
from poolwise.evaluation.check import check
from poolwise.evaluation.evaluate import evaluate, read_pairs
from poolwise.evaluation.outlook import AS_NOW
from poolwise.evaluation.per_request import refuse_clicks
from poolwise.evaluation.plan import plan
from poolwise.evaluation.request import request
from poolwise.files import temporary_folder
from poolwise.intervals.student import check_level
from poolwise.learning.data import Collector, assign_folds, held_out
from poolwise.learning.fit import ROUNDS, library
from poolwise.learning.gains import (
    Choice,
    Gain,
    Learned,
    allowance,
    contrast_means,
    find_gain,
    not_better,
    notes_on,
    widen_errors,
)
from poolwise.learning.logged import LoggedDistribution
from poolwise.learning.policy import LearnedMixture
from poolwise.learning.recipe import BEST, UNIFORM, Settings, learn_part
from poolwise.learning.unseen import SEEN, Scoring, unseen_log
from poolwise.log.adapters import as_policy
from poolwise.log.eligible import restrict_policy
from poolwise.log.policy import find_expression, is_distribution
from poolwise.progress import stage

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from poolwise.engines.base import EngineLike
    from poolwise.engines.duckdb import DuckDB
    from poolwise.evaluation.comparison import Comparison, Pairs
    from poolwise.evaluation.differences import Difference
    from poolwise.evaluation.results import Evaluation
    from poolwise.learning.data import LearningRows
    from poolwise.learning.policy import LinearPolicy
    from poolwise.learning.recipe import Outcome
    from poolwise.learning.unseen import UnseenLog
    from poolwise.log.log import Log
    from poolwise.log.policy import Distribution
    from poolwise.rows.learners import LearnerRows
    from poolwise.types import IntArray

FOLDS = 5
MOST_ROWS = 1_000_000
GIVEN = "anchor"  # name of an anchor that is a policy and not a logger
POOLS_PERIODS = (
    "learn pools the rows of all periods, and `period` says that policies learned from earlier "
    "ones: leave out `period`, and evaluate the policy on later periods"
)
NO_LISTS = (
    "learn takes rows with one action each, and rows of this log are lists or parts of them: "
    "pass a log of single decisions"
)


@dataclass(frozen=True, eq=False)
class Task:
    """A request to learn, validated before any row is read.

    Attributes:
        log: The log, with the features among the columns that are read.
        features: Columns to learn from.
        actions: Actions to learn over; None for all that were logged.
        settings: Settings of the recipe.
        folds: Number of folds; 1 with a holdout.
        holdout: Share of the rows that are held out; 0 with folds.
        level: Level of intervals and bounds.
        seed: Seed of splits and of the sample.
        rows: Largest number of rows to learn from.
    """

    log: Log
    features: tuple[str, ...]
    actions: Sequence[Hashable] | None
    settings: Settings
    folds: int
    holdout: float
    level: float
    seed: int
    rows: int


def learn(  # noqa: PLR0913 - options are keyword-only, each with a default
    log: Log,
    *,
    features: Sequence[str] = (),
    actions: Sequence[Hashable] | None = None,
    anchor: str | Distribution | None = BEST,
    folds: int | None = None,
    holdout: float | None = None,
    strengths: Sequence[float] = Settings.strengths,
    smoothing: Sequence[float] = Settings.smoothing,
    trees: bool = False,
    epsilon: float = 0.0,
    level: float = 0.95,
    seed: int = 0,
    rows: int = MOST_ROWS,
    engine: EngineLike = None,
) -> Learned:
    """Learn a policy from all logs, and estimate its value on rows that it has not seen.

    Args:
        log: The rows, with an `action` and preferably `propensities` under every logger.
        features: Columns to learn from. Numbers stay as they are; text becomes one column
            per label. By default the log's `context`.
        actions: Actions to learn over; by default all that were logged.
        anchor: Policy to start from and to stay near: "best" (the best logger), the label
            of a logger, a policy with a list of actions, or None for uniform.
        folds: Number of folds, 5 by default. The learned policy is a mixture of that many
            policies, each learned without one fold.
        holdout: Fraction of the rows to hold out, in place of folds. The result is a single
            policy, from fewer rows and with wider intervals.
        strengths: Strengths of the penalty for leaving the anchor; `learn` chooses the
            best.
        smoothing: Exponents of the propensity in the doubly robust correction; `learn`
            chooses the best.
        trees: Try gradient-boosted trees too, which add to the anchor's scores. Needs
            `poolwise[trees]`.
        epsilon: Fraction of the rows on which the policy plays any action, with equal
            probability.
        level: Level of the intervals, and of the one-sided bounds against each logger.
        seed: Seed of the folds and of the sample.
        rows: Learn from a sample of about this many rows at most; the evaluation uses all
            unseen rows.
        engine: Engine that has the rows, by default the log's engine. If they are on Spark
            or in a warehouse, `learn` first copies the necessary columns to local files.
    """
    log = with_loggers(log, engine)
    refuse_clicks(log, "learn")
    if log.action_group is not None:
        raise UsageError(
            "learn requires the probabilities of actions: leave `action_group` out, or name "
            "the column of the group as `action`"
        )
    strong, smooth = tuple(map(float, strengths)), tuple(map(float, smoothing))
    workers = os.cpu_count() or 1
    rounds = ROUNDS if trees else ()
    name = UNIFORM if anchor is None else anchor if isinstance(anchor, str) else GIVEN
    policies = list_policies(log, anchor)
    settings = Settings(name, strong, smooth, epsilon, workers, rounds, log.eligible, policies)
    names = tuple(features) or tuple(log.context)
    if log.estimated and (unseen := sorted({*names} - {*log.context})):
        raise UsageError(
            f"`features` reads {', '.join(map(repr, unseen))}: list it in `context`, because "
            "estimated propensities are right for a policy only if they depend on all it sees"
        )
    parts = 1 if holdout is not None else FOLDS if folds is None else folds
    source, share = readable(log, names), holdout or 0.0
    task = Task(source, names, actions, settings, parts, share, level, seed, rows)
    validate(task, both=folds is not None and holdout is not None)
    with local_log(source, engine) as (local, reader):
        return _learn(replace(task, log=local), reader)


def list_policies(log: Log, anchor: str | Distribution | None) -> dict[str, Distribution]:
    """Return the loggers, and the anchor, that give the probability of every action."""
    named = {
        k: restrict_policy(as_policy(p, role=f"propensities[{k!r}]"), log.eligible)
        for k, p in log.by_label.items()
        if p is not None
    }
    if anchor is not None and not isinstance(anchor, str):
        if not is_distribution(anchor):
            raise UsageError(
                "anchor must be 'best', the label of a logger, None, or a policy with a list "
                f"of actions, got {anchor!r}"
            )
        named[GIVEN] = cast("Distribution", restrict_policy(anchor, log.eligible))
    return {name: policy for name, policy in named.items() if is_distribution(policy)}


def readable(log: Log, features: tuple[str, ...]) -> Log:
    """Return the log with the features, and the lists of actions, among its context."""
    given = [log.propensity, *log.by_label.values()]
    policies = [as_policy(p, role="propensity") for p in given if p is not None]
    all_columns = not log.context and any(find_expression(p) is None for p in policies)
    if all_columns:  # policies in Python see all columns
        return log
    lists = () if log.eligible is None else (log.eligible,)
    return replace(log, context=tuple(dict.fromkeys([*log.context, *features, *lists])))


def validate(task: Task, *, both: bool) -> None:
    """Reject settings that cannot be used."""
    log, settings = task.log, task.settings
    if settings.rounds:
        library()  # or one message that says how to install it
    check_level(task.level)
    roles = {log.reward, log.logger, log.action} & set(task.features)
    problems = [
        (log.requests is not None, NO_LISTS),
        (not task.features, "`features` must name the columns to learn from"),
        (log.action is None, "learning needs the column of the logged `action`"),
        (
            bool(roles),
            f"features must not be the reward, logger or action: {sorted(map(str, roles))}",
        ),
        (both, "give either `folds` or `holdout`, not both"),
        (task.folds < 2 and not task.holdout, f"folds must be 2 or more, got {task.folds}"),
        (not 0 <= task.holdout < 1, f"holdout must be in (0, 1), got {task.holdout:g}"),
        (
            not 0 <= settings.epsilon <= 1,
            f"epsilon must be in [0, 1], got {settings.epsilon:g}",
        ),
        (
            not (settings.strengths and settings.smoothing),
            "strengths and smoothing must not be empty",
        ),
        (any(not s > 0 for s in settings.strengths), "strengths must be positive"),
        (any(not 0 <= c <= 1 for c in settings.smoothing), "smoothing must be in [0, 1]"),
        (task.level <= 1 / 2, f"level must be above 0.5, got {task.level:g}"),
        (task.rows < 1, f"rows must be positive, got {task.rows}"),
        (task.log.period is not None, POOLS_PERIODS),
    ]
    for wrong, message in problems:
        if wrong:
            raise UsageError(message)


def _learn(task: Task, engine: DuckDB) -> Learned:
    report = check(task.log, engine=engine)
    if report.faults and task.log.on_fault == "raise":
        raise LogError(report.faults)
    notes = [
        Finding("dropped-rows", f"Dropped: {replace(f, example={})}.") for f in report.faults
    ]
    with temporary_folder() as folder:
        with engine.learner_rows(task.log) as source:
            task = with_columns(task, source.distributions, report.rows)
            collector = _read(task, source.read(), report.rows)
            data = collector.rows(task.actions)
            task = _with_policies(task, collector, data.actions)
            outcomes = _outcomes(task, data.sorted())
            data = replace(data, columns={}, base={}, among=None)  # frees memory
            scoring = Scoring(outcomes, collector, data, _part(task, data))
            path = folder / "unseen.parquet"
            log = unseen_log(task.log, source.read(), scoring, path)
            notes += source.findings()
        notes += notes_on(data, outcomes, int(collector.counts.sum()))
        return _result(log, outcomes, notes, data, task.level)


def with_columns(task: Task, columns: Mapping[str, str], counts: Mapping[str, int]) -> Task:
    """Add the loggers whose distribution a column holds to those that give it in Python.

    Args:
        task: The task.
        columns: Columns of whole distributions, by logger; that of the row's own logger has
            the label "", and is that of a logger if there is only one.
        counts: Rows of each logger.
    """
    log, settings = task.log, task.settings
    alone = next(iter(counts)) if len(counts) == 1 else ""
    named = {label or alone: column for label, column in columns.items()}
    logged = {
        label: LoggedDistribution(column, (), log.eligible, log.log_probabilities)
        for label, column in named.items()
        if label in counts
    }
    policies = {**logged, **settings.policies}
    return replace(task, settings=replace(settings, policies=policies))


def _with_policies(task: Task, collector: Collector, actions: Sequence[Hashable]) -> Task:
    """Return the task with the policies that gave the probability of each of the actions."""
    policies = {
        name: replace(policy, actions=actions)
        if isinstance(policy, LoggedDistribution)
        else policy
        for name, policy in collector.policies.items()
    }
    return replace(task, settings=replace(task.settings, policies=policies))


def _read(task: Task, batches: Iterator[LearnerRows], counts: Mapping[str, int]) -> Collector:
    """Read all rows, and take a sample of them into memory."""
    total = sum(counts.values())
    loggers = tuple(sorted(counts))
    share = min(1.0, task.rows / max(total, 1))
    policies, clustered = dict(task.settings.policies), task.log.cluster is not None
    collector = Collector(
        task.features, loggers, policies, share, task.seed, clustered, task.log.eligible
    )
    with stage("reading", total) as advance:
        for rows in batches:
            collector.add(rows)
            advance(len(rows))
    return collector


def _part(task: Task, data: LearningRows) -> IntArray:
    """Return the part of each row: a fold; or 0 if it is held out, else `SEEN`."""
    if task.holdout:
        held = held_out(data.hashes, data.groups, task.holdout)
        return np.where(held, 0, SEEN)
    return assign_folds(data.hashes, data.groups, task.folds)


def _outcomes(task: Task, data: LearningRows) -> list[Outcome]:
    """Learn a policy for each part, from the rows of the others, which are sorted."""
    part, settings = _part(task, data), task.settings
    with stage("learning", task.folds * settings.fits) as advance:
        return [
            learn_part(data, np.flatnonzero(part != k), settings, advance)
            for k in range(task.folds)
        ]


def _result(
    unseen: UnseenLog,
    outcomes: Sequence[Outcome],
    notes: Sequence[Finding],
    data: LearningRows,
    level: float,
) -> Learned:
    """Evaluate the learned policy, the greedy anchor and every logger, and compare them."""
    name, parts = unseen.name, len(outcomes)
    evaluation = widen_errors(unseen.evaluate(level), name, allowance(parts))
    paired = _pairs(unseen, level)
    gains = _gains(unseen, paired, evaluation, data, parts, notes)
    anchor = outcomes[0].policy.anchor
    baseline = anchor if anchor in unseen.targets else name
    shown = all(gain.shown for gain in gains)
    findings = [*notes, *evaluation.findings, *evaluation[name].findings]
    learned = Learned(
        policy=_policy(outcomes),
        evaluation=evaluation,
        comparison=_rank_policies(paired, baseline),
        gains=tuple(gains),
        name=name,
        choices=tuple(
            Choice(k, o.policy.anchor, o.chosen) for k, o in enumerate(outcomes, start=1)
        ),
        candidates=tuple(outcome.candidates for outcome in outcomes),
        more_rows=None if shown else _more_rows(unseen, gains, level),
        findings=tuple(findings),
    )
    if learned.better:
        return learned
    return replace(learned, findings=(not_better(learned), *findings))


def _policy(outcomes: Sequence[Outcome]) -> LearnedMixture | LinearPolicy:
    policies = [outcome.policy for outcome in outcomes]
    if len(policies) == 1:
        return policies[0]
    return LearnedMixture(policies, [1 / len(policies)] * len(policies))


def _pairs(unseen: UnseenLog, level: float) -> tuple[Pairs, Evaluation] | None:
    """Return what policies are compared from; None without cross-propensities or spread."""
    if not unseen.log.crossed:
        return None
    asked = request(unseen.log, dict(unseen.targets), None, level=level, model=unseen.model)
    with suppress(RefusedError):
        return read_pairs(asked)
    return None


def _rank_policies(paired: tuple[Pairs, Evaluation] | None, baseline: str) -> Comparison | None:
    """Return the comparison of all policies; None if the rows show no spread."""
    if paired is not None:
        pairs, evaluation = paired
        with suppress(RefusedError):
            return pairs.rank(evaluation, baseline)
    return None


def _gains(
    unseen: UnseenLog,
    paired: tuple[Pairs, Evaluation] | None,
    evaluation: Evaluation,
    data: LearningRows,
    parts: int,
    notes: Sequence[Finding],
) -> list[Gain]:
    """Return the gain over each logger, with its one-sided bound, paired by row if possible.

    Without every logger's probability of a row, it is over the logger's mean reward.
    """
    name, level = unseen.name, evaluation.level
    sided = 2 * level - 1  # the lower end is a one-sided bound
    differences: dict[str, Difference | None] = dict.fromkeys(data.loggers)
    if not unseen.log.crossed:  # the estimates have the allowance already
        estimate = next(iter(evaluation[name].estimates.values()))
        differences |= {d.other: d for d in contrast_means(estimate, data, name, sided)}
    elif paired is not None:
        pairs, compared = paired
        compared = replace(compared, level=sided)
        for logger in data.loggers:
            with suppress(RefusedError):
                differences[logger] = pairs.contrast(
                    compared, name, logger, widening=allowance(parts)
                )
    findings = [*notes, *evaluation[name].findings]
    alarmed = any(finding.severity == "alarm" for finding in findings)
    return [find_gain(d, i, level, alarmed=alarmed) for i, d in differences.items()]


def _more_rows(unseen: UnseenLog, gains: Sequence[Gain], level: float) -> float | None:
    """Return the new rows that would show gains of the estimated size; None if unknown.

    The interval must shrink by the ratio of the gain to the distance from its bound, and
    `plan` knows how many rows that takes.
    """
    weak = [gain for gain in gains if not gain.shown]
    if not all(-math.inf < gain.lower <= 0 < gain.value for gain in weak):
        return None
    ratios = [gain.value / (gain.value - gain.lower) for gain in weak]
    name, column = next(iter(unseen.targets.items()))
    pooled = unseen.log.crossed or unseen.log.mixture is not None
    estimator = "calibrated" if pooled else "naive"
    now = evaluate(unseen.log, {name: column}, estimator, level=level)
    interval = now[name].intervals[estimator]
    half_width = min(ratios) * (interval.upper - interval.lower) / 2
    try:
        outlook = plan(
            unseen.log,
            {name: column},
            half_width=half_width,
            estimators=[estimator],
            level=level,
        )
    except RefusedError:
        return None
    rows = outlook.option(estimator, AS_NOW).rows
    return rows if np.isfinite(rows) else None
