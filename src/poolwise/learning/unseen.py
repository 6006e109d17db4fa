"""Unseen: every row under a policy that was not learned from it, as a log of its own.

A second pass over the rows scores each by the policy of its part, with the reward model of
that part.  The result is a small log whose policies are columns, for `evaluate`, `compare`
and `plan`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from poolwise.errors import Finding, UsageError
from poolwise.estimators import BY_NAME, WITH_MODEL
from poolwise.estimators.model import MODEL_ONLY
from poolwise.evaluation.evaluate import evaluate
from poolwise.learning.data import probabilities
from poolwise.log.policy import Batch, get_index, pick
from poolwise.progress import stage
from poolwise.rows.append import keep_batches
from poolwise.rows.reward_model import GivenModel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from poolwise.evaluation.results import Evaluation, TargetResult
    from poolwise.learning.data import Collector, LearningRows
    from poolwise.learning.recipe import Outcome
    from poolwise.log.log import Log
    from poolwise.rows.learners import LearnerRows
    from poolwise.types import FloatArray, IntArray

SEEN = -1  # part of a row that the only policy was learned from
LEARNED, ANCHOR = "learned", "anchor"
MODELLED = WITH_MODEL.keys() - BY_NAME.keys()  # estimators that average predicted values
UNCORRECTED = frozenset({"direct-method"})  # its interval leaves out the model's errors
UNMODELLED = Finding(
    "loggers-unmodelled",
    "Loggers have no doubly robust estimates: these need the probability of every action "
    "under a policy, and the rows have that of the logged action.",
    "Rely on calibrated.",
    "note",
)


@dataclass(frozen=True, eq=False)
class UnseenLog:
    """Rows that the learned policy has not seen.

    Attributes:
        log: The rows, with policies as columns.
        targets: Column of the learned policy, of the greedy anchor, and of each logger.
        model: Predictions of the reward model.
    """

    log: Log
    targets: Mapping[str, str]
    model: GivenModel

    @property
    def name(self) -> str:
        """Name of the learned policy."""
        return next(iter(self.targets))

    @property
    def loggers(self) -> tuple[str, ...]:
        """Loggers whose policies are targets."""
        _, _, *loggers = self.targets
        return tuple(loggers)

    def evaluate(self, level: float) -> Evaluation:
        """Evaluate all policies, loggers without their predicted values, which are unknown."""
        found = evaluate(self.log, self.targets, level=level, model=self.model)
        targets = {
            name: _without(result, MODELLED if name in self.loggers else UNCORRECTED)
            for name, result in found.targets.items()
        }
        findings = (*found.findings, UNMODELLED) if self.loggers else found.findings
        return replace(found, targets=targets, findings=findings)


def _without(result: TargetResult, names: Collection[str]) -> TargetResult:
    """Return the result without some estimators, the direct method among them."""
    return replace(
        result,
        estimates={n: e for n, e in result.estimates.items() if n not in names},
        intervals={n: i for n, i in result.intervals.items() if n not in names},
        findings=tuple(f for f in result.findings if f != MODEL_ONLY),
    )


@dataclass(frozen=True, eq=False)
class Scoring:
    """Scores rows by the outcome of their part.

    Attributes:
        outcomes: Outcome of each part.
        collector: Rows that were read, batch by batch.
        data: Rows in memory.
        part: Part of each row in memory, or `SEEN`.
    """

    outcomes: Sequence[Outcome]
    collector: Collector
    data: LearningRows
    part: IntArray

    def batches(self, batches: Iterable[LearnerRows]) -> Iterator[pa.RecordBatch]:
        """Read all rows again, in the same order, and yield their columns."""
        first, collector = 0, self.collector
        with stage("scoring", sum(map(len, collector.usable))) as advance:
            for rows, usable, taken in zip(
                batches, collector.usable, collector.taken, strict=True
            ):
                part = np.where(usable, np.arange(len(usable)) % len(self.outcomes), SEEN)
                chosen = np.flatnonzero(taken)
                here = slice(first, first + len(chosen))
                if not np.array_equal(rows.reward[chosen], self.data.reward[here]):
                    raise UsageError(
                        "the rows came in another order the second time: sort the SELECT, or "
                        "write its result to a file"
                    )
                part[chosen] = self.part[here]
                first += len(chosen)
                yield self.columns(rows, part)
                advance(len(rows))

    def columns(self, rows: LearnerRows, part: IntArray) -> pa.RecordBatch:
        """Return the columns of all rows that have a part."""
        chosen = np.flatnonzero(part != SEEN)
        own, cross = probabilities(rows, self.data.loggers)
        values = {
            name: np.zeros(len(rows))  # rows that were learned from stay 0
            for name in (LEARNED, ANCHOR, "predicted", f"value_{LEARNED}", f"value_{ANCHOR}")
        }
        for k, outcome in enumerate(self.outcomes):
            here = np.flatnonzero(part == k)
            for name, scores in _scores(outcome, rows.batch.take(here)).items():
                values[name][here] = scores
        if self.data.crossed:
            values |= self._logger_values(cross, values)
        probs = {"propensity": own, **{f"p_{k}": p for k, p in enumerate(cross.T)}}
        probs |= {name: values.pop(name) for name in (LEARNED, ANCHOR)}
        if rows.mixture is not None:
            probs["mixture"] = np.exp(rows.mixture)
        if rows.logs:
            with np.errstate(divide="ignore"):
                probs = {name: np.log(p) for name, p in probs.items()}
        listed = {"reward": rows.reward, **probs, **values}
        arrays = {name: pa.array(column[chosen]) for name, column in listed.items()}
        arrays["logger"] = pa.array(rows.label[chosen].astype(str), pa.string())
        if self.data.clustered:
            arrays["cluster"] = pa.array(rows.fold[chosen])
        return pa.record_batch(arrays)

    def _logger_values(
        self, cross: FloatArray, values: Mapping[str, FloatArray]
    ) -> dict[str, FloatArray]:
        """Return columns in place of the loggers' predicted values, which are unknown.

        They differ from the weighted prediction at the logged action by the learned policy's
        column of the reward model, so that calibrated uses that column for loggers too.  Its
        mean is 0 over the rows of all loggers, but not over those of one: no estimator that
        averages predicted values may read these.
        """
        mixture = cross @ self._shares
        weighted = values[LEARNED] / mixture * values["predicted"]
        column = weighted - values[f"value_{LEARNED}"]
        ratios = cross / mixture[:, None]
        return {
            f"value_{k}": ratio * values["predicted"] - column
            for k, ratio in enumerate(ratios.T)
        }

    @cached_property
    def _shares(self) -> FloatArray:
        """Share of each logger in the unseen rows."""
        data = self.data
        seen = np.bincount(data.logger[self.part == SEEN], minlength=len(data.loggers))
        counts = self.collector.counts - seen
        shares: FloatArray = counts / counts.sum()
        return shares


def _scores(outcome: Outcome, batch: Batch) -> dict[str, FloatArray]:
    """Return probabilities of the logged actions, and predictions."""
    policy = outcome.policy
    features = policy.encoding.encode(batch)
    base = policy.fixed(batch)
    action = get_index(policy.actions, batch.action)
    rewards = outcome.rewards.predict(features)
    scores = {"predicted": pick(rewards, action, outcome.rewards.centre)}
    for name, played in ((LEARNED, policy), (ANCHOR, outcome.anchor)):
        prob = played.play(features, base)
        scores[name] = pick(prob, action)
        scores[f"value_{name}"] = np.einsum("ij,ij->i", prob, rewards)
    return scores


def unseen_log(
    log: Log, batches: Iterable[LearnerRows], scoring: Scoring, path: Path
) -> UnseenLog:
    """Read all rows again, score them, and keep them in memory or in a file."""
    loggers, crossed = scoring.data.loggers, scoring.data.crossed
    scored = scoring.batches(batches)
    first = next(scored)
    frame = keep_batches(chain([first], scored), path, first.schema.names)
    own = log.propensity is not None or not crossed
    columns = {label: f"p_{k}" for k, label in enumerate(loggers)} if crossed else {}
    narrow = replace(
        log,
        source=path if frame is None else frame,
        table=None,
        connection=None,
        reward="reward",
        logger="logger",
        propensity="propensity" if own else None,
        propensities=columns or None,
        action=None,
        context=(),
        eligible=None,
        cluster="cluster" if scoring.data.clustered else None,
        estimate_mixture=False,
        confounders=log.confounders if log.conclusive else "unknown",
        mixture="mixture" if "mixture" in first.schema.names else None,
        reader_options={},
    )
    learned, anchor = free_names(scoring)
    targets = {learned: LEARNED, anchor: ANCHOR, **columns}
    values = {learned: f"value_{LEARNED}", anchor: f"value_{ANCHOR}"}
    values |= {label: f"value_{k}" for k, label in enumerate(columns)}
    return UnseenLog(narrow, targets, GivenModel("predicted", values))


def free_names(scoring: Scoring) -> tuple[str, str]:
    """Return names of the learned policy and of the greedy anchor that no logger has."""
    anchors = dict.fromkeys(outcome.policy.anchor for outcome in scoring.outcomes)
    learned, anchor = LEARNED, f"greedy {' or '.join(anchors)}"
    while learned in scoring.data.loggers:
        learned += "*"
    while anchor in scoring.data.loggers:
        anchor += "*"
    return learned, anchor
