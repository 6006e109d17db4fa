"""Results: an evaluation and its tables, frames, JSON, text and HTML.

A result gives its rows (`to_dicts`), its whole content (`to_dict`) and its tables (`grids`);
everything else follows from these.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from poolwise.diagnosis.overlap import Diagnosis
from poolwise.report.tables import Grid, as_html, as_text
from poolwise.text import count_text, interval_text, p_text, percent, short, with_error

if TYPE_CHECKING:
    from os import PathLike

    import altair as alt
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from poolwise.diagnosis.overlap import Overlap
    from poolwise.errors import Finding
    from poolwise.evaluation.ranking import Comparison
    from poolwise.intervals.student import Interval
    from poolwise.moments.estimate import Estimate

Row = dict[str, object]


class Presented:
    """A result that can be shown to people and given to programs."""

    @property
    def warnings(self) -> list[Row]:
        """All findings, the gravest first."""
        raise NotImplementedError

    @property
    def sentences(self) -> Sequence[str]:
        """What is said below the tables."""
        return ()

    def to_dicts(self) -> list[Row]:
        """Flat dictionaries, numbers as they are."""
        raise NotImplementedError

    def to_dict(self) -> Row:
        """Everything, nested; the names are part of the public face."""
        raise NotImplementedError

    def grids(self) -> list[Grid]:
        """All tables, in the order in which they are read."""
        raise NotImplementedError

    def to_json(self, *, indent: int | None = 2) -> str:
        """The nested dictionary as JSON; what is infinite or unknown becomes null."""
        return json.dumps(finite(self.to_dict()), indent=indent, ensure_ascii=False)

    def to_arrow(self) -> pa.Table:
        """The flat dictionaries as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_pylist(self.to_dicts())

    def to_pandas(self) -> pd.DataFrame:
        """The flat dictionaries as a pandas frame."""
        import pandas as pd

        return pd.DataFrame(self.to_dicts())

    def to_polars(self) -> pl.DataFrame:
        """The flat dictionaries as a Polars frame."""
        import polars as pl

        return pl.DataFrame(self.to_dicts())

    def __str__(self) -> str:
        return "\n\n".join([as_text(self.grids(), self.warnings), *self.sentences])

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.sentences)
        return as_html(self.grids(), self.warnings) + said


def finite(value: object) -> object:
    """Replace what JSON cannot say (infinities) by None, all the way down."""
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


MIXTURE = "(mixture)"  # label of the line of all loggers together


class Comparing(Protocol):
    """Something that can compare the targets of an evaluation."""

    def comparison(self) -> Comparison | None: ...


@dataclass(frozen=True)
class TargetResult:
    """What was found about one target.

    Attributes:
        estimates: Estimate of each estimator, in the order asked for.
        intervals: Interval of each estimator.
        loggers: How each logger's own weights cover the target.
        mixture: How the balanced weights do; absent without cross-propensities.
        findings: What to know before trusting the estimates, the gravest first.
        diagnosis: Whether the logs agree.
    """

    estimates: Mapping[str, Estimate]
    intervals: Mapping[str, Interval]
    loggers: Mapping[str, Overlap]
    mixture: Overlap | None
    findings: tuple[Finding, ...] = ()
    diagnosis: Diagnosis = field(default_factory=Diagnosis)


@dataclass(frozen=True)
class Evaluation(Presented):
    """Estimated values of one or more targets.

    Attributes:
        targets: What was found, by target.
        rows: Usable rows of each logger.
        mean_reward: Mean logged reward of each logger.
        level: Level of the intervals.
        findings: What concerns the log as a whole.
        truth: True values, where somebody knows them.
        fingerprint: The same for the same rows, whatever read them and in whatever order.
        pairs: What a comparison of the targets rests on; absent where there is one target,
            where they are too many, or where the engine would have to read more for it.
    """

    targets: Mapping[str, TargetResult]
    rows: Mapping[str, int]
    mean_reward: Mapping[str, float]
    level: float
    findings: tuple[Finding, ...] = ()
    truth: Mapping[str, float] = field(default_factory=dict)
    fingerprint: str = ""
    pairs: Comparing | None = field(default=None, repr=False, compare=False)

    @cached_property
    def comparison(self) -> Comparison | None:
        """The targets beside each other in pairs, from the same rows; None without them."""
        return None if self.pairs is None else self.pairs.comparison()

    def __getitem__(self, target: str) -> TargetResult:
        return self.targets[target]

    @property
    def warnings(self) -> list[Row]:
        """All findings, the gravest first; else of the log first, then of each target."""
        several = len(self.targets) > 1
        found = [("", f) for f in self.findings]
        for name, result in self.targets.items():
            where = f"Target {name!r}: " if several else ""
            found += [(where, f) for f in result.findings]
        found.sort(key=lambda pair: pair[1].rank)
        return [
            {"code": f.code, "severity": f.severity, "message": f"{where}{f}"}
            for where, f in found
        ]

    def to_dicts(self) -> list[Row]:
        """One dictionary per target and estimator, numbers as they are."""
        return [
            {"target": name, **self._estimate(result, estimator)}
            for name, result in self.targets.items()
            for estimator in result.estimates
        ]

    def _estimate(self, result: TargetResult, estimator: str) -> Row:
        estimate, interval = result.estimates[estimator], result.intervals[estimator]
        return {
            "estimator": estimator,
            "value": estimate.value,
            "std_error": estimate.std_error,
            "lower": interval.lower,
            "upper": interval.upper,
            "level": interval.level,
        }

    def to_dict(self) -> Row:
        """Everything, nested; the names are part of the public face."""
        found: Row = {
            "targets": [self._target(name) for name in self.targets],
            "loggers": [
                {"logger": i, "rows": n, "mean_reward": self.mean_reward[i]}
                for i, n in self.rows.items()
            ],
            "warnings": self.warnings,
            "fingerprint": self.fingerprint,
        }
        if self.comparison is not None:
            found["comparison"] = self.comparison.to_dict()
        return found

    def _target(self, name: str) -> Row:
        result = self.targets[name]
        estimates = [
            {**self._estimate(result, e), "shares": dict(estimate.shares)}
            for e, estimate in result.estimates.items()
        ]
        entry: Row = {"target": name, "estimates": estimates}
        if name in self.truth:
            entry["truth"] = self.truth[name]
        entry["loggers"] = [
            {"logger": i, **overlap.to_dict(), **result.diagnosis.of_logger(i)}
            for i, overlap in result.loggers.items()
        ]
        if result.mixture is not None:
            entry["mixture"] = result.mixture.to_dict()
        return entry | result.diagnosis.to_dict()

    def grids(self) -> list[Grid]:
        """All tables, in the order in which they are read."""
        return [grid for name in self.targets for grid in target_grids(self, name)]

    def charts(self) -> dict[str, alt.LayerChart]:
        """The charts of the report by name, as Altair objects that can be changed."""
        from poolwise.report.charts import all_charts

        return all_charts(self.to_dict())

    def save(self, path: str | PathLike[str], *, command: str = "") -> None:
        """Write the report: one HTML file that needs nothing but itself.

        Args:
            path: Where; what is there is replaced as a whole.
            command: What reproduces the numbers, to be shown with them.
        """
        from poolwise.report.files import write_whole
        from poolwise.report.page import page
        from poolwise.rows.output import HTML, refuse_output

        refuse_output(path, HTML)
        write_whole(Path(path), page(self.to_dict(), command=command).encode())


def estimates_grid(evaluation: Evaluation, name: str) -> Grid:
    """Estimates of one target, one line per estimator."""
    result = evaluation.targets[name]
    truth = evaluation.truth.get(name)
    header = ["estimator", "estimate", f"{100 * evaluation.level:g}% interval"]
    rows = []
    for estimator, estimate in result.estimates.items():
        interval = result.intervals[estimator]
        row = [
            estimator,
            with_error(estimate.value, estimate.std_error),
            interval_text(interval.lower, interval.upper, estimate.std_error),
        ]
        if truth is not None:
            row.append("yes" if truth in interval else "no")
        rows.append(row)
    if truth is not None:
        header.append("has the truth")
    total = count_text(sum(evaluation.rows.values()))
    loggers = len(evaluation.rows)
    known = f"; its true value is {truth:.4f}" if truth is not None else ""
    plural = "s" if loggers != 1 else ""
    return Grid(f"{name}: {total} rows of {loggers} logger{plural}{known}", header, rows)


def loggers_grid(evaluation: Evaluation, name: str) -> Grid:
    """How each log covers one target."""
    result = evaluation.targets[name]
    share = _shown_share(result)
    header = ["logger", "rows", "diver-\ngence", "effective\nrows", "mean\nweight"]
    header += ["largest\nweight"]
    sizes = {**evaluation.rows, MIXTURE: sum(evaluation.rows.values())}
    rows = []
    for label, overlap in _covers(result).items():
        row = [label, count_text(sizes[label]), short(overlap.divergence)]
        row += [count_text(overlap.effective_rows), short(overlap.mean_weight)]
        rows.append([*row, short(overlap.largest_weight)])
    if share is not None:
        header.insert(2, f"{share}\nshare")
        parts = result.estimates[share].shares
        for row in rows:
            row.insert(2, percent(parts[row[0]]) if row[0] in parts else "")
    return Grid("", header, rows)


def _covers(result: TargetResult) -> dict[str, Overlap]:
    """The weights against each logger, and those against all of them."""
    mixture = {} if result.mixture is None else {MIXTURE: result.mixture}
    return {**result.loggers, **mixture}


def evidence_grid(evaluation: Evaluation, name: str) -> Grid:
    """What each log says alone, what its weights hide, and what is lost without it."""
    result = evaluation.targets[name]
    alone, without = result.diagnosis.alone, result.diagnosis.without
    left_out = list(result.diagnosis.with_all)
    header = ["logger", "estimate\nalone", "tail\nindex", "unsup-\nported"]
    header += [f"{estimator} ±\nwithout it" for estimator in left_out]
    rows = []
    for label, overlap in _covers(result).items():
        own = alone.get(label)
        row = [label, "" if own is None else with_error(own.value, own.std_error)]
        row += [_tail(overlap), percent(overlap.unsupported)]
        errors = without.get(label, {})
        rows.append([*row, *(short(errors[e]) if e in errors else "" for e in left_out)])
    return Grid("", header, rows)


def _tail(overlap: Overlap) -> str:
    if overlap.tail is None:
        return "?"
    return "none" if overlap.tail.discrete else f"{overlap.tail.value:.2f}"


def checks_grid(evaluation: Evaluation, name: str) -> Grid:
    """Whether the logs agree with each other and with their probabilities."""
    checks = evaluation.targets[name].diagnosis.checks.values()
    rows = [[c.name, short(c.statistic), p_text(c.p_value)] for c in checks]
    return Grid("", ["agreement", "statistic", "p-value"], rows)


def target_grids(evaluation: Evaluation, name: str) -> list[Grid]:
    """The tables of one target, estimates first."""
    grids = [estimates_grid, loggers_grid, evidence_grid]
    if evaluation.targets[name].diagnosis.checks:
        grids.append(checks_grid)
    return [grid(evaluation, name) for grid in grids]


def _shown_share(result: TargetResult) -> str | None:
    """The estimator whose shares are worth showing: rows already say naive's."""
    return "weighted" if "weighted" in result.estimates else None
