"""The reference: a log's faults and moments in plain Python, summed exactly.

Every engine must agree with it.  It is slow, keeps all rows in memory and uses
no SQL, so it cannot share a mistake with an engine.  It reads Arrow
tables whose roles are named columns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from poolwise.engines.base import Engine, Rows, refuse_extra
from poolwise.errors import Fault, LogError
from poolwise.log.log import Log
from poolwise.moments.heavy import Contrast, Found, Heaviest
from poolwise.moments.moments import Moments
from poolwise.moments.pool import ByStratum, Pool
from poolwise.moments.terms import REWARD, UNSUPPORTED, Factor, Needs, Term, ratio
from poolwise.rows.learners import NO_EXTRA

if TYPE_CHECKING:
    from poolwise.evaluation.results import Evaluation
    from poolwise.log.policy import PolicyLike
    from poolwise.rows.learners import Extra

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Row = Mapping[str, Any]  # a row of an Arrow table: its values have the type of the column

PAPER = ("naive", "balanced", "weighted")
MEAN_ERROR = 1e-12  # what an engine may lose of a mean, relative to it
SCATTER_ERROR = 1e-9  # and of a scatter


@dataclass(frozen=True)
class Reference(Engine):
    """An engine that adds with `math.fsum`.

    Attributes:
        apart: Whether rows are read again, to set heavy ones apart.
    """

    apart: bool = True

    @contextmanager
    def open(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NO_EXTRA
    ) -> Iterator[ReferenceRows]:
        refuse_extra(extra)
        columns = {name: str(column) for name, column in targets.items()}
        yield ReferenceRows(log, columns, self.apart)


@dataclass(frozen=True, eq=False)
class ReferenceRows(Rows):
    """An open log."""

    log: Log
    targets: Mapping[str, str]
    apart: bool = True

    @cached_property
    def _rows(self) -> list[Row]:
        rows: list[Row] = frame_of(self.log).to_pylist()
        return rows

    @cached_property
    def _good(self) -> list[Row]:
        return [row for row in self._rows if not broken_rules(row, self.log, self.targets)]

    @property
    def all_counts(self) -> dict[str, int]:
        counts = Counter(str(row[str(self.log.logger)]) for row in self._rows)
        return dict(sorted(counts.items()))

    @property
    def shaped(self) -> bool:
        return True

    @cached_property
    def counts(self) -> dict[str, int]:
        counts = Counter(str(row[str(self.log.logger)]) for row in self._good)
        labels = list(self.log.by_label or sorted(counts))
        return {label: counts[label] for label in labels if counts[label]}

    def check(self) -> tuple[Fault, ...]:
        logger = str(self.log.logger)
        found = Counter(
            (rule, "" if row[logger] is None else str(row[logger]))
            for row in self._rows
            for rule in broken_rules(row, self.log, self.targets)
        )
        return tuple(Fault(rule, label, rows) for (rule, label), rows in found.items())

    def moments(self, needs: Needs) -> Pool:
        if self.log.on_fault == "raise" and self.check():
            raise LogError(self.check())
        return Pool({label: self._compute_moments(label, needs) for label in self.counts})

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[Pool]:
        """Rows of a cluster share a bucket; engines may choose different ones."""
        found: dict[int, list[Row]] = {}
        for place, row in enumerate(self._good):
            unit = (
                place
                if self.log.cluster is None
                else crc32(str(row[self.log.cluster]).encode())
            )
            found.setdefault(unit % buckets, []).append(row)
        parts = [rows for _, rows in sorted(found.items())]
        return [
            Pool(None, [self._in_bucket(rows, asked) for rows in parts], self.counts)
            for asked in needs
        ]

    def heaviest(
        self, contrasts: Sequence[Contrast], centre: float
    ) -> dict[str, dict[Contrast, Found]] | None:
        """Return all rows as the heaviest ones."""
        del centre
        if not self.apart:
            return None
        labels = list(self.counts)
        rows = [row for label in labels for row in self._of(label, self._good)]
        strata = np.repeat(np.arange(len(labels)), [self.counts[label] for label in labels])
        columns = tuple(map(ratio, self.log.by_label)) if self.log.propensities else ()
        binary = {float(row[self.log.reward]) for row in rows} == {0.0, 1.0}
        found = {}
        for contrast in contrasts:
            terms = tuple(dict.fromkeys((REWARD, *contrast.terms, *columns)))
            values = np.array([self._values(term, rows) for term in terms])
            weights = [self._values(term, rows) for term in contrast.terms]
            sizes = abs(weights[0] - (weights[1] if contrast.less else 0.0))
            every = Heaviest(strata, values, sizes, 0, np.zeros(5), 0.0)
            found[contrast] = Found(every, labels, terms, binary)
        return {"": found}

    def action_sums(self) -> None:
        """Return None: tests/rows/test_actions.py has the reference of the audit."""

    def _in_bucket(self, rows: Sequence[Row], needs: Needs) -> dict[str, Moments]:
        return {
            k: self._compute_moments(k, needs, rows) for k in self.counts if self._of(k, rows)
        }

    def of_rows(self, places: IntArray, needs: Needs) -> dict[str, Moments]:
        """Moments of some rows, with the mixture of all of them."""
        among = [self._rows[k] for k in places.tolist()]
        return {
            k: self._compute_moments(k, needs, among) for k in self.counts if self._of(k, among)
        }

    def without(self, logger: str) -> ReferenceRows:
        kept = [str(row[str(self.log.logger)]) != logger for row in self._rows]
        known = self.log.by_label
        others = {k: v for k, v in known.items() if k != logger} or None
        source = frame_of(self.log).filter(pa.array(kept))
        return ReferenceRows(
            replace(self.log, source=source, propensities=others), self.targets
        )

    def _of(self, logger: str, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if str(row[str(self.log.logger)]) == logger]

    def _compute_moments(
        self, logger: str, needs: Needs, among: Sequence[Row] | None = None
    ) -> Moments:
        rows = self._of(logger, self._good if among is None else among)
        values = {term: self._values(term, rows) for term in needs.terms}
        return exact_moments(values, needs)

    def _values(self, term: Term, rows: Sequence[Row]) -> FloatArray:
        product = np.ones(len(rows))
        for factor in term.factors:
            product = product * self._column(factor, rows)
        return product

    def _column(self, factor: Factor, rows: Sequence[Row]) -> FloatArray:  # noqa: PLR0911 - a table
        if factor.name == "reward":
            return _read(rows, self.log.reward)
        if factor.name == "weight":
            return self._ratio(self._target(factor, rows), self._own(rows))
        if factor.name == "balanced_weight":
            return _shrunk(self._ratio(self._target(factor, rows), self._mixture(rows)), factor)
        if factor.name == "overlap":
            smallest = np.min([self._policy(k, rows) for k in self.counts], axis=0)
            return self._ratio(smallest, self._own(rows))
        policy = self._policy(factor.logger, rows)
        if factor.name == "ratio":
            return self._ratio(policy, self._mixture(rows))
        nowhere = -math.inf if self.log.log_probabilities else 0.0
        if factor.name == "others_weight":
            others = self._mixture(rows, without=factor.logger)
            ratio = self._ratio(policy, np.where(others > nowhere, others, 1.0))
            return _shrunk(np.where(others > nowhere, ratio, 0.0), factor)
        if factor.name == "unsupported":
            return np.where(policy > nowhere, 0.0, 1.0)
        safe = np.where(policy > nowhere, policy, 1.0)
        inverse = self._ratio(self._mixture(rows), safe)
        return np.where(policy > nowhere, inverse, UNSUPPORTED)

    def _target(self, factor: Factor, rows: Sequence[Row]) -> FloatArray:
        return _read(rows, self.targets[factor.target])

    def _policy(self, logger: str, rows: Sequence[Row]) -> FloatArray:
        return _read(rows, str(self.log.by_label[logger]))

    def _own(self, rows: Sequence[Row]) -> FloatArray:
        if self.log.propensity is not None:
            return _read(rows, str(self.log.propensity))
        own = {label: str(name) for label, name in self.log.by_label.items()}
        return np.array([row[own[str(row[str(self.log.logger)])]] for row in rows])

    def _mixture(self, rows: Sequence[Row], without: str | None = None) -> FloatArray:
        counts = {label: count for label, count in self.counts.items() if label != without}
        total = sum(counts.values())
        shares = {label: count / total for label, count in counts.items()}
        if not self.log.log_probabilities:
            parts = [shares[label] * self._policy(label, rows) for label in shares]
            return np.array([math.fsum(row) for row in zip(*parts, strict=True)])
        logs = [math.log(shares[label]) + self._policy(label, rows) for label in shares]
        tops = np.max(logs, axis=0)
        sums = [math.fsum(np.exp(row)) for row in (np.array(logs) - tops).T]
        return np.array(tops + np.log(sums))

    def _ratio(self, above: FloatArray, below: FloatArray) -> FloatArray:
        return np.exp(above - below) if self.log.log_probabilities else above / below


def frame_of(log: Log) -> Any:  # noqa: ANN401 - Arrow has no types
    """The Arrow table that a log of the tests reads."""
    return log.source


def _read(rows: Sequence[Row], name: str) -> FloatArray:
    return np.array([row[name] for row in rows], dtype=np.float64)


def exact_moments(values: Mapping[Term, FloatArray], needs: Needs) -> Moments:
    """Moments of the values that terms take, each sum rounded once."""
    terms = needs.terms
    count = len(next(iter(values.values())))
    means = np.array([math.fsum(values[t]) / count for t in terms])
    # what the rounded mean leaves over is taken out again below
    centred = {t: values[t] - mean for t, mean in zip(terms, means, strict=True)}
    left_over = {t: math.fsum(centred[t]) for t in terms}
    scatter = np.full((len(needs.scattered), len(needs.scattered)), np.nan)
    for left, right in needs.pairs:
        i, j = terms.index(left), terms.index(right)
        total = math.fsum(centred[left] * centred[right])
        scatter[i, j] = scatter[j, i] = total - left_over[left] * left_over[right] / count
    extremes = [t in needs.extremes for t in terms]
    lowest = np.where(extremes, [values[t].min() for t in terms], np.nan)
    largest = np.where(extremes, [values[t].max() for t in terms], np.nan)
    tails = {t: np.sort(values[t])[::-1] for t in needs.tails}
    slices = {
        t: np.array([math.fsum(values[t][k::509]) for k in range(509)]) for t in needs.slices
    }
    powers = {t: _powers(values[t]) for t in needs.powers}
    tallies: dict[str, Any] = {"tails": tails, "slices": slices, "powers": powers}
    return Moments(terms, count, means, scatter, lowest, largest, **tallies)


def _powers(values: FloatArray) -> FloatArray:
    sizes = [abs(float(v)) for v in values]
    sums = [math.fsum(math.prod([v] * power) for v in sizes) for power in (1, 2, 3, 4)]
    return np.array([sum(v > 0 for v in sizes), *sums, max(sizes)])


def _shrunk(weight: FloatArray, factor: Factor) -> FloatArray:
    if factor.rule == "clip":
        return np.minimum(weight, factor.bound)
    if factor.rule == "switch":
        return np.where(weight <= factor.bound, weight, 0.0)
    if factor.rule == "within":
        return np.where((weight > 0) & (weight <= factor.bound), 1.0, 0.0)
    if factor.rule == "optimistic":
        return factor.bound * weight / (weight**2 + factor.bound)
    return weight


def broken_rules(row: Row, log: Log, targets: Mapping[str, str]) -> list[str]:
    """The rules that one row breaks, in words."""
    label = row[str(log.logger)]
    known = {k: str(v) for k, v in log.by_label.items()}
    found = []
    if label is None:
        found.append("the logger is null")
    elif known and str(label) not in known:
        found.append("the logger is unknown")
    found += _reward_rules(row[log.reward])
    own = row[known[str(label)]] if str(label) in known else None
    mine = own if log.propensity is None else row[str(log.propensity)]
    if log.propensity is not None or str(label) in known:
        found += _propensity_rules(mine, logs=log.log_probabilities)
    for k, column in known.items():
        found += _range_rules(row[column], f"under logger {k!r}", logs=log.log_probabilities)
    for name, column in targets.items():
        found += _range_rules(row[column], f"of target {name!r}", logs=log.log_probabilities)
    if log.propensity is not None and own is not None and mine is not None:
        never = log.log_probabilities and own == -math.inf  # a probability of zero
        gap = abs(mine - own)
        if math.isfinite(mine) and (math.isfinite(own) or never) and gap > log.replay_tolerance:
            found.append(
                "the logged propensity is not that of its logger (they differ by more than "
                f"{log.replay_tolerance:g})"
            )
    return found


def _reward_rules(reward: float | None) -> list[str]:
    if reward is None:
        return ["the reward is null or not a number"]
    return [] if math.isfinite(reward) else ["the reward is infinite or NaN"]


def _propensity_rules(prob: float | None, *, logs: bool) -> list[str]:
    what = "the log-propensity" if logs else "the propensity"
    highest = 0.0 if logs else 1.0
    if prob is None:
        return [f"{what} is null or not a number"]
    if prob == -math.inf or (prob <= 0 and not logs):
        return [f"{what} is {'-infinity' if logs else '0 or negative'}"]
    if not math.isfinite(prob):
        return [f"{what} is infinite or NaN"]
    return [f"{what} is above {highest:g}"] if prob > highest else []


def _range_rules(prob: float | None, what: str, *, logs: bool) -> list[str]:
    scale = "log-probability" if logs else "probability"
    if prob is None:
        return [f"the {scale} {what} is null or not a number"]
    if logs:
        return [] if prob <= 0 else [f"the {scale} {what} is above 0 or NaN"]
    return [] if 0 <= prob <= 1 else [f"the {scale} {what} is outside [0, 1]"]


def random_table(
    rng: np.random.Generator,
    counts: Mapping[str, int],
    *,
    offset: Mapping[str, float] | float = 0.0,
    orders: float = 1.0,
    shuffle: bool = True,
) -> pa.Table:
    """A log with columns logger, reward, p, p_<logger> for each, and t.

    Args:
        rng: Source of randomness.
        counts: Rows of each logger.
        offset: Added to the rewards, which otherwise have mean 1 and variance 1.
        orders: Orders of magnitude that propensities span.
        shuffle: Mix the rows of the loggers.
    """
    total = sum(counts.values())
    labels = np.repeat(list(counts), list(counts.values()))
    columns = {f"p_{k}": 10 ** rng.uniform(-orders, 0, total) for k in counts}
    own = np.select([labels == k for k in counts], [columns[f"p_{k}"] for k in counts])
    offsets = offset if isinstance(offset, Mapping) else dict.fromkeys(counts, offset)
    rewards = rng.normal(1, 1, total) + np.array([offsets[str(k)] for k in labels])
    target = rng.uniform(0.05, 1, total)
    table = pa.table({"logger": labels, "reward": rewards, "p": own, **columns, "t": target})
    return table.take(rng.permutation(total)) if shuffle else table


def log_of(table: pa.Table | str, loggers: Sequence[str] = ("a", "b"), **roles: Any) -> Log:  # noqa: ANN401 - any role of a log
    """A log with the columns that `random_table` gives."""
    named: dict[str, Any] = {
        "logger": "logger",
        "reward": "reward",
        "propensity": "p",
        "propensities": {k: f"p_{k}" for k in loggers},
    }
    return Log(table, **(named | roles))


def assert_moments_agree(found: ByStratum[Moments], expected: ByStratum[Moments]) -> None:
    """Counts alike, means to 1e-12, scatters to 1e-9 of the variances they join."""
    assert list(found) == list(expected)
    for logger, judge in expected.items():
        moments = found[logger]
        assert moments.terms == judge.terms
        assert moments.count == judge.count
        np.testing.assert_allclose(moments.means, judge.means, rtol=MEAN_ERROR, atol=0)
        scale = np.sqrt(np.outer(np.diag(judge.scatter), np.diag(judge.scatter)))
        asked = ~np.isnan(judge.scatter)
        np.testing.assert_array_equal(~np.isnan(moments.scatter), asked)
        # rows that are all alike: what is left is the rounding of the rows themselves
        means = judge.means[: len(judge.scatter)]
        floor = 1e-24 * judge.count * np.outer(means, means)
        gap = np.abs(moments.scatter - judge.scatter)[asked]
        assert (gap <= (SCATTER_ERROR * scale + np.abs(floor))[asked]).all()
        width = np.abs(judge.largest) * MEAN_ERROR
        assert not (np.abs(moments.largest - judge.largest) > width).any()
        assert not (np.abs(moments.lowest - judge.lowest) > width).any()


def numbers(evaluation: Evaluation) -> list[float]:
    """The numbers of the estimates, the logs and their weights, in order."""
    found = [*map(float, evaluation.rows.values()), *evaluation.mean_reward.values()]
    for result in evaluation.targets.values():
        for name, estimate in result.estimates.items():
            interval = result.intervals[name]
            found += [estimate.value, estimate.std_error, interval.lower, interval.upper]
            found += estimate.shares.values()
        overlaps = [*result.loggers.values(), *([result.mixture] if result.mixture else [])]
        for overlap in overlaps:
            found += [overlap.divergence, overlap.effective_rows]
            found += [overlap.mean_weight, overlap.largest_weight]
    return found


def assert_same(found: Evaluation, expected: Evaluation, rel: float = 1e-9) -> None:
    """The same loggers, and all numbers of the foundation alike."""
    assert list(found.rows) == list(expected.rows)
    assert numbers(found) == pytest.approx(numbers(expected), rel=rel)
