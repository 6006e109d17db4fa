"""Segments: the same question for each value of a column, with intervals that hold together.

Findings allow for the number of segments and targets, and belong to their segment: they change
nothing about the evaluation of all rows.  A segment without an estimate is shown with the
reason.

One pass sums the rows by segment and logger.  The mixture of a row is that of the loggers in
its own segment, so the estimate of a segment is the one that its rows alone would give.
Segments share no row: the largest of their S errors has the distribution of the largest of S
independent ones, and an interval at level $l^{1/S}$ for each covers all of them at level l.
Rows of one cluster may be in several segments; the intervals remain valid for dependent
errors (Šidák's inequality), and contrasts have the covariance that buckets of clusters show.
If the segments split requests, errors of contrasts add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from poolwise.engines.base import Rows
from poolwise.errors import Finding, RefusedError, UsageError
from poolwise.evaluation.differences import contrast_segments
from poolwise.evaluation.output import Result, Row, listed_findings, of_requests
from poolwise.evaluation.per_request import scale_to_requests
from poolwise.evaluation.read import keep_recommended
from poolwise.moments.pool import Pool, list_periods
from poolwise.moments.terms import NO_NEEDS, Needs
from poolwise.report.breakdown import segment_tables, segments_sentence
from poolwise.text import join_names

if TYPE_CHECKING:
    from poolwise.engines.base import Bucketed
    from poolwise.errors import Fault
    from poolwise.evaluation.differences import Difference, Requirement
    from poolwise.evaluation.read import OpenLog
    from poolwise.evaluation.results import Evaluation
    from poolwise.intervals.student import Interval
    from poolwise.log.clicks import Support
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.heavy import Contrast, Found
    from poolwise.moments.pool import Cell
    from poolwise.report.tables import Grid
    from poolwise.types import FloatArray

MOST_SLICES = 10_000  # sums over slices of each cell: 40 MB; without them Student's intervals
MOST_GROUPS, FEWEST_BUCKETS = 6_000, 20  # of clusters, over all cells
SEGMENT_SEED = 20170813  # the same rows give the same intervals
NAMED = 5  # segments that a finding lists
LONE_ROW = Finding(
    "segment-too-small",
    "An estimate requires at least 2 rows, and there is 1.",
    "Put small segments together in the expression of `by`.",
    "note",
)
Ask = Callable[["OpenLog"], "Evaluation"]


@dataclass(frozen=True)
class SegmentResult:
    """One target in one segment.

    Attributes:
        segment: Value of the column.
        target: Name of the target.
        rows: Usable rows of the segment.
        estimate: Recommended estimate of the target's value; None if the segment has none.
        interval: Interval that holds for all segments together; None likewise.
        difference: The target less the baseline; None where the baseline has no rows.
        contrast: This difference less its mean over the other segments whose difference is
            known; None where its own is not.
        rows_per_request: Rows of a request in the segment; None if values are those of rows.
        findings: Warnings and alarms about the target in this segment, most serious first;
            without an estimate, the reason is among them.
    """

    segment: str
    target: str
    rows: int
    estimate: Estimate | None = None
    interval: Interval | None = None
    difference: Difference | None = None
    contrast: Difference | None = None
    rows_per_request: int | None = None
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> Row:
        """Return the numbers under flat names."""
        row: Row = {"segment": self.segment, "target": self.target, "rows": self.rows}
        row |= dict.fromkeys(("value", "std_error", "lower", "upper"))
        if self.estimate is not None and self.interval is not None:
            row |= {"value": self.estimate.value, "std_error": self.estimate.std_error}
            row |= {"lower": self.interval.lower, "upper": self.interval.upper}
        row |= of_requests(self.rows_per_request)
        row["warnings"] = listed_findings(self.findings)
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
    labels = ("segment", "target")
    by: str
    baseline: str
    estimator: str
    level: float
    results: tuple[SegmentResult, ...]
    findings: tuple[Finding, ...] = ()

    def __getitem__(self, segment: str) -> dict[str, SegmentResult]:
        found = {r.target: r for r in self.results if r.segment == segment}
        if not found:
            raise KeyError(segment)
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """All segments, in the order of their values."""
        return tuple(dict.fromkeys(r.segment for r in self.results))

    @property
    def differing(self) -> tuple[SegmentResult, ...]:
        """Results whose difference from the baseline is not that of the other segments."""
        shown = {"better", "worse"}
        return tuple(r for r in self.results if r.contrast and r.contrast.verdict in shown)

    def lacks(self, verdict: Requirement, margin: float, names: Sequence[str]) -> list[str]:
        """Return why a requirement does not hold in segments; empty texts where it does."""
        reasons = []
        for result in self.results:
            if result.target not in names:
                continue
            place = f"in segment {result.segment!r} "
            lack = "there is no difference"
            if result.difference is not None:
                lack = result.difference.lack(verdict, margin)
            reasons.append(place + lack if lack else "")
            alarms = (f.code for f in result.findings if f.severity == "alarm")
            reasons += [f"{place}alarm {code}" for code in alarms]
        return reasons

    @property
    def sentence(self) -> str:
        """The conclusion in words."""
        return str(self.to_dict()["sentence"])

    @property
    def sentences(self) -> Sequence[str]:
        return (self.sentence, *(f"{f.severity} ({f.code}): {f}" for f in self.findings))

    def to_dicts(self) -> list[Row]:
        """Return one dictionary per segment and target, with unrounded numbers."""
        rows = []
        for result in self.results:
            row = result.to_dict()
            row["warnings"] = ", ".join(dict.fromkeys(f.code for f in result.findings))
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


def read_segments(rows: OpenLog, ask: Ask) -> dict[str, Segments]:
    """Ask the same question in each segment of a log that was opened with segments.

    Return the results of the log's own reward under an empty name, and those of each metric.
    """
    parts = Parts(rows.rows.by_period, rows.rows.cells)
    rows = keep_recommended(rows, strict=False)
    asked, usable = rows.request, rows.served
    if not usable.estimators:
        raise UsageError("`by` requires an estimator that the log can serve")
    large = [segment for segment, count in parts.sizes.items() if count > 1]
    level = asked.level ** (1 / max(len(large), 1))
    in_segment = replace(asked, level=level, tests=len(large) * len(asked.targets))
    evaluations, refused = {}, dict.fromkeys(parts.sizes, LONE_ROW)
    for segment in large:
        own = replace(rows, request=in_segment, rows=SegmentRows(parts, segment), served=usable)
        try:
            evaluations[segment] = ask(own)
        except RefusedError as reason:
            refused[segment] = Finding(reason.code, str(reason))
    collect = partial(_collect, rows, parts, refused, level)
    of_metrics = {
        name: collect({segment: e.metrics[name] for segment, e in evaluations.items()})
        for name in asked.metrics
    }
    return {"": collect(evaluations), **of_metrics}


def _collect(
    rows: OpenLog,
    parts: Parts,
    refused: Mapping[str, Finding],
    level: float,
    evaluations: Mapping[str, Evaluation],
) -> Segments:
    """Return the results of all segments.

    Args:
        rows: The open log.
        parts: Moments of all segments.
        refused: Reason why a segment has no evaluation.
        level: Level of the intervals in each segment.
        evaluations: The other segments.
    """
    asked = rows.request
    large = sum(count > 1 for count in parts.sizes.values())
    results = []
    for target in asked.names:
        own_results = [
            _segment_result(rows, segment, target, evaluations[segment], large)
            if segment in evaluations
            else _without_number(rows, segment, target, [refused[segment]])
            for segment in parts.sizes
        ]
        results += _contrast_targets(rows, parts, own_results, level)
    order = {segment: k for k, segment in enumerate(parts.sizes)}
    results.sort(key=lambda r: order[r.segment])
    return Segments(
        by=asked.by or "",
        baseline=next((e.baseline for e in evaluations.values()), ""),
        estimator=next(iter(rows.served.estimators), ""),
        level=asked.level,
        results=tuple(results),
        findings=tuple(_summary(results, len(asked.names))),
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
    _heavy: dict[Contrast, dict[str, Found]] = field(default_factory=dict)
    _measures: dict[str, Parts] = field(default_factory=dict)

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

    def units(self, sums: Mapping[str, FloatArray | None]) -> FloatArray | None:
        """Return what each bucket adds to the difference in each segment.

        None if that is not known of a segment, or if the rows of one do not vary.

        Args:
            sums: What each bucket that has rows of a segment adds.
        """
        known = [each for each in sums.values() if each is not None and each.any()]
        if not self._buckets or len(known) < len(sums):
            return None
        whole = next(iter(self._buckets.values()))[0][0]
        units = np.zeros((len(sums), len(whole.buckets)))
        for own, segment, each in zip(units, sums, known, strict=True):
            pool = whole.by_period[segment].by_logger
            own[[k for k, bucket in enumerate(pool.buckets) if bucket]] = each
        return units

    def measuring(self, measure: str) -> Parts:
        """Return the segments with another measure in place of the reward."""
        if measure not in self._measures:
            self._measures[measure] = Parts(self.rows.measuring(measure), self.cells)
        return self._measures[measure]

    def heaviest(
        self, segment: str, contrasts: Sequence[Contrast], centre: float
    ) -> dict[str, dict[Contrast, Found]] | None:
        """Return the heaviest rows of one segment; the same contrasts are read once."""
        new = [contrast for contrast in contrasts if contrast not in self._heavy]
        found = self.rows.heaviest(new, centre) if new else {}
        if found is None:
            return None
        self._heavy.update({c: {s: own[c] for s, own in found.items()} for c in new})
        return {segment: {c: self._heavy[c][segment] for c in contrasts}}


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

    def measuring(self, measure: str) -> SegmentRows:
        return replace(self, parts=self.parts.measuring(measure)) if measure else self

    def moments(self, needs: Needs) -> Pool:
        return self._own(self.parts.moments(needs))

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[Pool]:
        return self.bucketed_and_tallied(needs, buckets)[0]

    def bucketed_and_tallied(
        self, needs: Sequence[Needs], buckets: int, also: Needs = NO_NEEDS
    ) -> Bucketed:
        pools, whole = self.parts.bucketed(needs, buckets, also)
        return [self._own(pool) for pool in pools], self._own(whole)

    def heaviest(
        self, contrasts: Sequence[Contrast], centre: float
    ) -> dict[str, dict[Contrast, Found]] | None:
        return self.parts.heaviest(self.segment, contrasts, centre)

    def click_support(self) -> Mapping[str, Support]:
        return self.parts.rows.click_support_by_segment.get(self.segment, {})

    def action_sums(self) -> None:
        """Return None: the log is audited as a whole."""

    def _own(self, pool: Pool) -> Pool:
        """Return the moments of the segment, by logger, in buckets that have rows of it."""
        own = pool.by_period[self.segment].by_logger if pool else pool
        return Pool(own, [bucket for bucket in own.buckets if bucket], own.loggers)


def _segment_result(
    rows: OpenLog, segment: str, target: str, evaluation: Evaluation, segments: int
) -> SegmentResult:
    """Return the result of one target in one of so many segments."""
    result, difference = evaluation[target], evaluation.differences.get(target)
    name, findings = result.recommended, [f for f in result.findings if f.severity != "note"]
    empty = _without_number(rows, segment, target, findings)
    if not name:
        return empty
    level = rows.request.level
    if difference is not None:
        together = 1 - (1 - difference.adjusted) ** segments
        interval = replace(difference.interval, level=level)
        difference = replace(difference, adjusted=together, interval=interval)
    interval = replace(result.intervals[name], level=level)
    numbers = scale_to_requests(
        result.estimates[name], interval, difference, rows.find_part(segment)
    )
    estimate, interval, difference = numbers
    return replace(empty, estimate=estimate, interval=interval, difference=difference)


def _without_number(
    rows: OpenLog, segment: str, target: str, findings: Sequence[Finding]
) -> SegmentResult:
    """Return the result of a segment that has no estimate; findings give the reason."""
    count = sum(n for cell, n in rows.rows.cells.items() if cell.period == segment)
    size = rows.request_rows.get(segment)
    own = SegmentResult(segment, target, count, rows_per_request=size)
    return replace(own, findings=tuple(findings))


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


def _count_requests(result: SegmentResult) -> float:
    return result.rows / (result.rows_per_request or 1)


def _contrast_targets(
    rows: OpenLog, parts: Parts, results: list[SegmentResult], level: float
) -> list[SegmentResult]:
    """Return the results of one target with the contrasts of its differences."""
    targets = len(rows.request.names)
    errors = {r.segment: _error(r.difference, level, targets) for r in results}
    known = {r.segment: r for r in results if r.difference and errors[r.segment] > 0}
    usable = {s: r for s, r in known.items() if r.difference and not r.difference.doubted}
    same = [r for r in results if r.difference and r.difference.verdict == "identical"]
    if not usable or len(usable) + len(same) < 2:
        return results
    gaps = {segment: r.difference for segment, r in usable.items() if r.difference}
    units = parts.units({segment: gap.units for segment, gap in gaps.items()})
    clicks = rows.request.log.clicks is not None  # they share the error of the position bias
    contrasts = contrast_segments(
        gaps,
        np.array([errors[segment] for segment in usable]),
        np.array([_count_requests(r) for r in usable.values()]),
        targets,
        np.random.default_rng(SEGMENT_SEED),
        dependent=clicks or rows.splits_requests or (rows.request.clustered and units is None),
        units=units,
        unchanged=sum(map(_count_requests, same)),
    )
    sign = next(iter(gaps.values())).sign
    facing = {segment: contrast.facing(sign) for segment, contrast in contrasts.items()}
    return [replace(r, contrast=facing.get(r.segment)) for r in results]


def _summary(results: Sequence[SegmentResult], targets: int) -> Iterator[Finding]:
    """Yield the findings of all segments, one for each code and target."""
    by_kind: dict[tuple[str, str], tuple[Finding, list[str]]] = {}
    for result in results:
        target = result.target if targets > 1 else ""
        for finding in result.findings:
            kind = finding.code, target
            by_kind.setdefault(kind, (finding, []))[1].append(result.segment)
    for (_, target), (finding, names) in by_kind.items():
        where = _list_few(list(dict.fromkeys(names)))
        yield replace(finding, message=f"In {where}: {finding.message}", target=target)


def _list_few(segments: Sequence[str]) -> str:
    """Return the names of segments, or the first of them and their number.

    >>> _list_few(["de"]), _list_few(["de", "fr"])
    ("segment 'de'", "segments 'de' and 'fr'")
    """
    if len(segments) > NAMED:
        return f"{len(segments)} segments, {segments[0]!r} for example"
    return f"segment{'s' * (len(segments) > 1)} {join_names(list(map(repr, segments)))}"
