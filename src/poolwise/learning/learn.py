"""Learn: a policy from several logs, and its value on rows that it was not learned from.

The rows are split into parts; for each, a policy is learned from the other rows.  The learned
policy plays one of these, drawn anew for each row, so its value is the mean of theirs, which
the parts estimate without having been seen.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from poolwise.engines.duckdb import DuckDB
from poolwise.errors import Finding, LogError, UsageError
from poolwise.evaluation.check import check
from poolwise.intervals.student import check_level
from poolwise.learning.data import Reader
from poolwise.learning.recipe import BEST, FEWEST_ROWS, UNIFORM, Settings, run
from poolwise.learning.split import fold_of, held_out
from poolwise.learning.unseen import SEEN, Parts, Scoring, unseen_log
from poolwise.learning.verdict import result
from poolwise.log.policies import as_policy
from poolwise.log.policy import expression_of, is_distribution
from poolwise.rows.output import stage

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from poolwise.learning.data import LearningRows
    from poolwise.learning.learned import Learned
    from poolwise.learning.recipe import Outcome
    from poolwise.log.log import Log
    from poolwise.log.policy import Distribution, FloatArray, IntArray
    from poolwise.rows.learn import LearnerRows

FOLDS = 5
MOST_ROWS = 1_000_000
RARE = 20  # rows of an action below which it is called rare
GIVEN = "anchor"  # name of an anchor that is a policy and not a logger


@dataclass(frozen=True, eq=False)
class Task:
    """A request to learn, validated before any row is read.

    Attributes:
        log: The log, with the features among the columns that are read.
        features: Columns to learn from.
        actions: Actions to learn over; None for all that were logged.
        policies: Policies that give the probability of every action, by name.
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
    policies: Mapping[str, Distribution]
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
    epsilon: float = 0.0,
    level: float = 0.95,
    seed: int = 0,
    rows: int = MOST_ROWS,
    engine: DuckDB | None = None,
) -> Learned:
    """Learn a policy from all logs, and estimate its value on rows that it has not seen.

    Args:
        log: The rows, with an `action` and, best, `propensities` under every logger.
        features: Columns to learn from: numbers as they are, text one column per label. By
            default the log's `context`.
        actions: Actions to learn over; by default all that were logged.
        anchor: Policy to start at and to stay near to: "best" (the best logger), the label of
            a logger, a policy with a list of actions, or None for uniform.
        folds: Number of folds, 5 by default. The learned policy is a mixture of as many, each
            learned without one fold.
        holdout: Share of the rows to hold out, in place of folds: one policy to explain,
            from fewer rows and with wider intervals.
        strengths: Strengths of the penalty for leaving the anchor, of which the best is
            chosen.
        smoothing: Exponents of the propensity in the doubly robust correction, of which the
            best is chosen.
        epsilon: Share of the rows on which the policy explores, all actions alike.
        level: Level of the intervals, and of the one-sided bounds against each logger.
        seed: Seed of the folds and of the sample.
        rows: Learn from a sample of at most about so many rows; all unseen ones are evaluated.
        engine: Limits of threads and memory.
    """
    settings = Settings(
        anchor=_anchor_name(anchor),
        strengths=tuple(map(float, strengths)),
        smoothing=tuple(map(float, smoothing)),
        epsilon=epsilon,
        workers=os.cpu_count() or 1,
    )
    names = tuple(features) or tuple(log.context)
    whole = folds if folds is not None else FOLDS
    task = Task(
        log=_readable(log, names),
        features=names,
        actions=actions,
        policies=_policies(log, anchor),
        settings=settings,
        folds=1 if holdout is not None else whole,
        holdout=holdout or 0.0,
        level=level,
        seed=seed,
        rows=rows,
    )
    _validate(task, both=folds is not None and holdout is not None)
    return _learn(task, engine or DuckDB())


def _anchor_name(anchor: str | Distribution | None) -> str:
    if anchor is None:
        return UNIFORM
    return anchor if isinstance(anchor, str) else GIVEN


def _policies(log: Log, anchor: str | Distribution | None) -> dict[str, Distribution]:
    """Return the loggers, and the anchor, that give the probability of every action."""
    named = {str(k): as_policy(p) for k, p in (log.propensities or {}).items() if p is not None}
    if anchor is not None and not isinstance(anchor, str):
        if not is_distribution(anchor):
            raise UsageError(
                "anchor must be 'best', the label of a logger, None, or a policy with a list "
                f"of actions, got {anchor!r}"
            )
        named[GIVEN] = anchor
    return {name: policy for name, policy in named.items() if is_distribution(policy)}


def _readable(log: Log, features: tuple[str, ...]) -> Log:
    """Return the log with the features among its context."""
    given = [log.propensity, *(log.propensities or {}).values()]
    policies = [as_policy(p) for p in given if p is not None]
    all_columns = not log.context and any(expression_of(p) is None for p in policies)
    if all_columns:  # policies in Python see all columns
        return log
    return replace(log, context=tuple(dict.fromkeys([*log.context, *features])))


def _validate(task: Task, *, both: bool) -> None:
    """Reject settings that cannot be used."""
    log, settings = task.log, task.settings
    check_level(task.level)
    roles = {log.reward, log.logger, log.action} & set(task.features)
    problems = [
        (not task.features, "`features` must name the columns to learn from"),
        (log.action is None, "learning needs the column of the logged `action`"),
        (log.table is not None, "learning reads files, frames and SELECTs: export the table"),
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
        (not settings.pairs, "strengths and smoothing must not be empty"),
        (any(not s > 0 for s in settings.strengths), "strengths must be positive"),
        (any(not 0 <= c <= 1 for c in settings.smoothing), "smoothing must be in [0, 1]"),
        (task.level <= 1 / 2, f"level must be above 0.5, got {task.level:g}"),
        (task.rows < 1, f"rows must be positive, got {task.rows}"),
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
    with tempfile.TemporaryDirectory(prefix="poolwise-") as folder:
        with engine.learner_rows(task.log) as read:
            reader = _read(task, read(), report.rows)
            data = reader.rows(task.actions)
            outcomes = _outcomes(task, data.sorted())
            data = replace(data, columns={}, base={})  # frees memory
            part = _part(task, data)
            parts = Parts(reader.usable, reader.taken, part, data.reward, len(outcomes))
            scoring = Scoring(
                outcomes, data.loggers, _shares(reader, data, part), data.clustered
            )
            log = unseen_log(task.log, read(), parts, scoring, Path(folder) / "unseen.parquet")
        notes += _notes(data, outcomes, int(reader.counts.sum()))
        return result(log, outcomes, notes, data, task.level)


def _read(task: Task, batches: Iterator[LearnerRows], counts: Mapping[str, int]) -> Reader:
    """Read all rows, and take a sample of them into memory."""
    total = sum(counts.values())
    loggers = tuple(sorted(counts))
    share = min(1.0, task.rows / max(total, 1))
    clustered = task.log.cluster is not None
    reader = Reader(task.features, loggers, task.policies, share, task.seed, clustered)
    with stage("reading", total) as advance:
        for rows in batches:
            reader.add(rows)
            advance(len(rows))
    return reader


def _shares(reader: Reader, data: LearningRows, part: IntArray) -> FloatArray:
    """Return the share of each logger in the unseen rows; empty if the mixture is unknown."""
    seen = np.bincount(data.logger[part == SEEN], minlength=len(data.loggers))
    counts = reader.counts - seen
    return counts / counts.sum() if data.crossed else np.empty(0)


def _part(task: Task, data: LearningRows) -> IntArray:
    """Return the part of each row: a fold; or 0 if it is held out, else `SEEN`."""
    if task.holdout:
        held = held_out(data.hashes, data.groups, task.holdout)
        return np.where(held, 0, SEEN)
    return fold_of(data.hashes, data.groups, task.folds)


def _outcomes(task: Task, data: LearningRows) -> list[Outcome]:
    """Learn a policy for each part, from the rows of the others, which are sorted."""
    part, settings = _part(task, data), task.settings
    with stage("learning", task.folds * settings.fits) as advance:
        return [
            run(data, np.flatnonzero(part != k), settings, task.policies, advance)
            for k in range(task.folds)
        ]


def _notes(data: LearningRows, outcomes: Sequence[Outcome], total: int) -> list[Finding]:
    """Return the findings about learning."""
    notes = []
    if all(outcome.chosen.is_anchor for outcome in outcomes):
        notes.append(_nothing_learned(data, outcomes))
    rows = np.bincount(data.action[data.action >= 0], minlength=len(data.actions))
    rare = [
        repr(a) for a, count in zip(data.actions, rows.tolist(), strict=True) if count < RARE
    ]
    if rare:
        listed = ", ".join(rare[:5]) + (", ..." if len(rare) > 5 else "")
        message = f"{len(rare)} actions have fewer than {RARE} rows: {listed}."
        notes.append(Finding("rare-actions", message, "Log them more often.", "note"))
    if not data.crossed:
        message = (
            "Without the probability of each row under every logger, learning uses the own "
            "propensities, and the comparison with loggers is conservative."
        )
        advice = "Give `propensities` (--propensities) under every logger."
        notes.append(Finding("own-propensities", message, advice))
    if len(data) < total:
        message = f"The policy was learned from {len(data):,} of {total:,} rows."
        notes.append(Finding("rows-sampled", message, "Pass `rows` for more.", "note"))
    return notes


def _nothing_learned(data: LearningRows, outcomes: Sequence[Outcome]) -> Finding:
    reason = "no setting was better in validation"
    if np.ptp(data.reward) == 0:
        reason = f"all rewards are {data.reward[0]:g}"
    elif len(outcomes[0].candidates) <= 2:
        reason = f"fewer than {FEWEST_ROWS} rows are too few"
    names = ", ".join(dict.fromkeys(repr(outcome.policy.anchor) for outcome in outcomes))
    return Finding(
        "nothing-learned",
        f"The policy is its anchor, the policy of {names}: {reason}.",
        "Collect more rows, or name other features.",
    )
