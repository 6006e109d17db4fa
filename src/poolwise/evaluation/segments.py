"""Segments: the same question for each value of a column, with intervals that hold together.

One pass sums the rows by segment and logger.  The mixture of a row is that of the loggers in
its own segment, so the estimate of a segment is the one that its rows alone would give.
Segments share no row: the largest of their S errors has the distribution of the largest of S
independent ones, and an interval at level $l^{1/S}$ for each covers all of them at level l.
Rows of one cluster may be in several segments; the intervals remain valid for dependent
errors (Šidák's inequality).  If the segments split requests, errors of contrasts add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from poolwise.engines.base import Rows
from poolwise.errors import Finding, RefusedError, UsageError
from poolwise.evaluation.differences import contrast_segments
from poolwise.evaluation.output import Result, Row, of_requests
from poolwise.evaluation.per_request import scaled
from poolwise.evaluation.read import keep_recommended
from poolwise.moments.pool import Pool, list_periods
from poolwise.moments.terms import Needs
from poolwise.report.breakdown import segment_tables, segments_sentence
from poolwise.text import listed

if TYPE_CHECKING:
    from poolwise.engines.base import Bucketed
    from poolwise.errors import Fault
    from poolwise.evaluation.differences import Difference
    from poolwise.evaluation.read import OpenLog
    from poolwise.evaluation.results import Evaluation
    from poolwise.intervals.student import Interval
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.pool import Cell
    from poolwise.report.tables import Grid

MOST_SLICES = 10_000  # sums over slices of each cell: 40 MB; without them Student's intervals
MOST_GROUPS, FEWEST_BUCKETS = 6_000, 20  # of clusters, over all cells
SEED = 20170813  # the same rows give the same intervals
NAMED = 5  # segments that a finding lists
NOTHING = Needs()
Ask = Callable[["OpenLog"], "Evaluation"]


@dataclass(frozen=True)
class SegmentResult:
    """One target in one segment.

    Attributes:
        segment: Value of the column.
        target: Name of the target.
        rows: Usable rows of the segment.
        estimate: Recommended estimate of the target's value.
        interval: Interval that holds for all segments together.
        difference: The target less the baseline; None where the baseline has no rows.
        contrast: This difference less its mean over the other segments; None without it.
        rows_per_request: Rows of a request in the segment; None if values are those of rows.
    """

    segment: str
    target: str
    rows: int
    estimate: Estimate
    interval: Interval
    difference: Difference | None = None
    contrast: Difference | None = None
    rows_per_request: int | None = None

    def to_dict(self) -> Row:
        """Return the numbers under flat names."""
        row: Row = {"segment": self.segment, "target": self.target, "rows": self.rows}
        row |= {"value": self.estimate.value, "std_error": self.estimate.std_error}
        row |= {"lower": self.interval.lower, "upper": self.interval.upper}
        row |= of_requests(self.rows_per_request)
        for name, pair in (("difference", self.difference), ("contrast", self.contrast)):
            if pair is not None:
                row[name] = {k: v for k, v in pair.to_dict().items() if k != "target"}
        return row


@dataclass(frozen=True, repr=False)
class Segments(Result):
    """Results of each segment, with intervals that hold together.

    Attributes:
        by: Column or expression of the segments.
        baseline: Policy that targets are compared with.
        estimator: Name of the estimator.
        level: Simultaneous level of the intervals.
        results: One per segment and target, in the order of the segments.
        findings: Findings of segments, of each kind together.
    """

    kind = "segments"
    by: str
    baseline: str
    estimator: str
    level: float
    results: tuple[SegmentResult, ...]
    findings: tuple[Finding, ...] = ()

    def __getitem__(self, segment: str) -> dict[str, SegmentResult]:
        return {r.target: r for r in self.results if r.segment == segment}

    @property
    def names(self) -> tuple[str, ...]:
        """Segments with an estimate, in the order of their values."""
        return tuple(dict.fromkeys(r.segment for r in self.results))

    @property
    def differing(self) -> tuple[SegmentResult, ...]:
        """Results whose difference from the baseline is not that of the other segments."""
        shown = {"better", "worse"}
        return tuple(r for r in self.results if r.contrast and r.contrast.verdict in shown)

    @property
    def sentence(self) -> str:
        """The conclusion in words."""
        return str(self.to_dict()["sentence"])

    @property
    def sentences(self) -> Sequence[str]:
        return (self.sentence,)

    def to_dicts(self) -> list[Row]:
        """Return one dictionary per segment and target, with unrounded numbers."""
        rows = []
        for result in self.results:
            row = result.to_dict()
            for name in ("difference", "contrast"):
                pair: Any = row.pop(name, {})
                own = {k: v for k, v in pair.items() if k != "other"}
                row |= {name if k == "difference" else f"{name}_{k}": own[k] for k in own}
            rows.append(row)
        return rows

    def to_dict(self) -> Row:
        """Return the whole result, nested; the names are public."""
        row: Row = {"by": self.by, "baseline": self.baseline, "estimator": self.estimator}
        row |= {"level": self.level, "results": [r.to_dict() for r in self.results]}
        return {**row, "sentence": segments_sentence(row), "warnings": self.warnings}

    def grids(self) -> list[Grid]:
        """Return all tables, in reading order."""
        return segment_tables(self.to_dict())


def segments_of(rows: OpenLog, ask: Ask) -> Segments:
    """Ask the same question in each segment of a log that was opened with segments."""
    parts = Parts(rows.rows.by_period, rows.rows.cells)
    small = [segment for segment, count in parts.sizes.items() if count < 2]
    if small:
        raise UsageError(
            f"a segment needs at least 2 rows, got 1 in {_named(small)}: put small segments "
            "together in the expression of `by`"
        )
    rows = keep_recommended(rows, strict=False)
    asked, usable = rows.request, rows.served
    if not usable.estimators:
        raise UsageError("`by` requires an estimator that the log can serve")
    level = asked.level ** (1 / len(parts.sizes))
    in_segment = replace(asked, level=level)
    evaluations, refused = {}, {}
    for segment in parts.sizes:
        own = replace(rows, request=in_segment, rows=SegmentRows(parts, segment), served=usable)
        try:
            evaluations[segment] = ask(own)
        except RefusedError as reason:
            refused[segment] = Finding(reason.code, str(reason))
    results = []
    for target in asked.names:
        own_results = _results(rows, evaluations, target, parts.sizes)
        split = rows.splits_requests
        results += _contrasted(own_results, level, len(asked.names), split=split)
    order = {segment: k for k, segment in enumerate(parts.sizes)}
    baseline = next((e.baseline for e in evaluations.values()), "")
    return Segments(
        by=asked.by or "",
        baseline=baseline,
        estimator=next(iter(usable.estimators), ""),
        level=asked.level,
        results=tuple(sorted(results, key=lambda r: order[r.segment])),
        findings=_findings(evaluations, refused),
    )


@dataclass(frozen=True, eq=False)
class Parts:
    """Moments of all segments, which one pass gives.

    Attributes:
        rows: The rows, summed by segment and logger.
        cells: Rows of each segment and logger.
    """

    rows: Rows
    cells: Mapping[Cell, int]
    _moments: dict[Needs, Pool] = field(default_factory=dict)
    _buckets: dict[tuple[Needs, ...], Bucketed] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Rows of each segment."""
        sizes = Counter[str]()
        for cell, count in self.cells.items():
            sizes[cell.period] += count
        return {segment: sizes[segment] for segment in list_periods(self.cells)}

    def moments(self, needs: Needs) -> Pool:
        """Return the moments of each cell; the same needs are read once."""
        if needs not in self._moments:
            fits = len(self.cells) * len(needs.slices) <= MOST_SLICES
            slices = needs.slices if fits else ()
            lean = replace(needs, tails=(), histograms=(), slices=slices)
            self._moments[needs] = self.rows.moments(lean)
        return self._moments[needs]

    def bucketed(self, needs: Sequence[Needs], buckets: int, also: Needs) -> Bucketed:
        """Return moments of each cell by bucket, and others; the same needs are read once."""
        asked = (*needs, also)
        if asked not in self._buckets:
            fewer = max(FEWEST_BUCKETS, min(buckets, MOST_GROUPS // len(self.cells)))
            lean = [replace(part, tails=(), histograms=()) for part in needs]
            self._buckets[asked] = self.rows.bucketed_and_tallied(lean, fewer, also)
        return self._buckets[asked]


@dataclass(frozen=True, eq=False)
class SegmentRows(Rows):
    """The rows of one segment."""

    parts: Parts
    segment: str

    @property
    def by_kernel(self) -> bool:
        return True

    @property
    def shaped(self) -> bool:
        return self.parts.rows.shaped

    @cached_property
    def counts(self) -> dict[str, int]:
        cells = self.parts.cells
        return {cell.logger: n for cell, n in cells.items() if cell.period == self.segment}

    def check(self) -> tuple[Fault, ...]:
        """Return no fault: those of all rows are counted together."""
        return ()

    def moments(self, needs: Needs) -> Pool:
        return self._own(self.parts.moments(needs))

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[Pool]:
        return self.bucketed_and_tallied(needs, buckets)[0]

    def bucketed_and_tallied(
        self, needs: Sequence[Needs], buckets: int, also: Needs = NOTHING
    ) -> Bucketed:
        pools, whole = self.parts.bucketed(needs, buckets, also)
        return [self._own(pool) for pool in pools], self._own(whole)

    def action_sums(self) -> None:
        """Return None: the log is audited as a whole."""

    def _own(self, pool: Pool) -> Pool:
        """Return the moments of the segment, by logger, in buckets that have rows of it."""
        own = pool.by_period[self.segment].by_logger if pool else pool
        return Pool(own, [bucket for bucket in own.buckets if bucket], own.loggers)


def _results(
    rows: OpenLog, evaluations: Mapping[str, Evaluation], target: str, sizes: Mapping[str, int]
) -> list[SegmentResult]:
    """Return the results of one target in the segments that have an estimate."""
    level, results = rows.request.level, []
    for segment, evaluation in evaluations.items():
        result, difference = evaluation[target], evaluation.differences.get(target)
        name = result.recommended
        if not name:
            continue
        if difference is not None:
            together = 1 - (1 - difference.adjusted) ** len(sizes)
            interval = replace(difference.interval, level=level)
            difference = replace(difference, adjusted=together, interval=interval)
        interval = replace(result.intervals[name], level=level)
        numbers = scaled(result.estimates[name], interval, difference, rows.part_of(segment))
        own = SegmentResult(segment, target, sizes[segment], *numbers)
        results.append(replace(own, rows_per_request=rows.request_rows.get(segment)))
    return results


def _error(difference: Difference | None, level: float, targets: int) -> float:
    """Return the error that an interval implies, which allows for skewness; 0 without one.

    The intervals of all targets hold together at this level (Bonferroni).
    """
    if difference is None or difference.verdict == "identical":
        return 0.0
    multiple = -float(ndtri((1 - level) / targets / 2))
    width = difference.interval.upper - difference.interval.lower
    error = max(difference.std_error, width / (2 * multiple))
    return error if np.isfinite(error) else 0.0


def _contrasted(
    results: list[SegmentResult], level: float, targets: int, *, split: bool
) -> list[SegmentResult]:
    """Return the results of one target with the contrasts of its differences."""
    errors = {r.segment: _error(r.difference, level, targets) for r in results}
    usable = {r.segment: r for r in results if r.difference and errors[r.segment] > 0}
    if len(usable) < 2:
        return results
    contrasts = contrast_segments(
        {segment: r.difference for segment, r in usable.items() if r.difference},
        np.array([errors[segment] for segment in usable]),
        np.array([r.rows / (r.rows_per_request or 1) for r in usable.values()]),
        targets,
        np.random.default_rng(SEED),
        dependent=split,
    )
    return [replace(r, contrast=contrasts.get(r.segment)) for r in results]


def _findings(
    evaluations: Mapping[str, Evaluation], refused: Mapping[str, Finding]
) -> tuple[Finding, ...]:
    """Return the warnings and alarms of segments, one for each code and target."""
    by_kind: dict[tuple[str, str], tuple[Finding, list[str]]] = {}
    found = [(s, f) for s, e in evaluations.items() for f in e.target_findings]
    for segment, finding in (*found, *refused.items()):
        if finding.severity != "note":
            kind = finding.code, finding.target
            by_kind.setdefault(kind, (finding, []))[1].append(segment)
    return tuple(
        replace(finding, message=f"In {_named(list(dict.fromkeys(names)))}: {finding.message}")
        for finding, names in by_kind.values()
    )


def _named(segments: Sequence[str]) -> str:
    """Return the names of segments, or the first of them and their number.

    >>> _named(["de"]), _named(["de", "fr"])
    ("segment 'de'", "segments 'de' and 'fr'")
    """
    if len(segments) > NAMED:
        return f"{len(segments)} segments, {segments[0]!r} for example"
    return f"segment{'s' * (len(segments) > 1)} {listed(list(map(repr, segments)))}"
