"""Output: a result as dictionaries, frames, JSON, text, HTML and a report; its fingerprint.

A result gives its rows (`to_dicts`), its whole content (`to_dict`) and its tables (`grids`);
everything else follows from these.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from poolwise.errors import UsageError
from poolwise.log.problems import UTC
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, WEIGHT
from poolwise.report.tables import Grid, as_html, as_markdown, as_text

if TYPE_CHECKING:
    from collections.abc import Collection
    from os import PathLike

    import altair as alt
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from poolwise.errors import Finding
    from poolwise.moments.coverage import Coverage
    from poolwise.moments.moments import Moments
    from poolwise.moments.pool import Pool
    from poolwise.moments.terms import Term

Row = dict[str, object]
PLAIN = re.compile(r"[^\w\-. ]", re.ASCII)  # what MLflow refuses in names, and a slash
SCHEMA_VERSION = 1  # of docs/schema/poolwise-1.json, which describes the JSON of every result
FINGERPRINT_STEPS = 2**26  # of a fingerprint to each doubling: eight digits
# Round numbers (halves, tenths, integers) must not lie where a cut is made, or rounding
# would decide on which side they fall: cuts are at odd offsets.
ODD, BETWEEN = math.pi / 3, 1 / math.pi


class Result:
    """A result with its findings, as dictionaries, frames, JSON, text and HTML."""

    kind: ClassVar[str]  # in the schema of the JSON
    labels: ClassVar[tuple[str, ...]] = ()  # of `to_dicts`: what names a row
    findings: tuple[Finding, ...]

    @property
    def warnings(self) -> list[Row]:
        """All findings, most serious first."""
        return listed_findings(self.findings)

    @property
    def opening(self) -> Sequence[str]:
        """Sentences above the tables."""
        return ()

    @property
    def sentences(self) -> Sequence[str]:
        """Sentences below the tables."""
        return ()

    def to_dicts(self) -> list[Row]:
        """Return flat dictionaries with unrounded numbers."""
        raise NotImplementedError

    def to_dict(self) -> Row:
        """Return the whole result, nested; the names are public."""
        raise NotImplementedError

    def grids(self) -> list[Grid]:
        """Return all tables, in reading order."""
        raise NotImplementedError

    def brief(self) -> list[Grid]:
        """Return the tables that a terminal and a notebook show."""
        return self.grids()

    def to_json(
        self, *, indent: int | None = 2, question: Mapping[str, object] | None = None
    ) -> str:
        """Return the nested dictionary as JSON, perhaps with the question; no infinities."""
        whole = self.to_dict() | ({"question": question} if question else {})
        return json_text(self.kind, whole, indent=indent)

    def to_markdown(self) -> str:
        """Return sentences, tables and findings as Markdown."""
        return as_markdown(self.brief(), self.warnings, self.sentences, self.opening)

    def to_metrics(self) -> dict[str, float]:
        """Return the finite numbers by names that experiment trackers accept.

        A name consists of the labels of the row and the name of the number, as in
        "candidate/calibrated/value"; characters other than letters, digits, spaces and
        ``_-.`` become ``_``.

        Raises:
            UsageError: Two labels become the same name.
        """
        found: dict[str, float] = {}
        for row in self.to_dicts():
            parts = [PLAIN.sub("_", str(row[name])) for name in self.labels if name in row]
            for name, value in row.items():
                if not isinstance(value, int | float) or isinstance(value, bool):
                    continue
                if name in self.labels:
                    continue
                key = "/".join([*parts, name])
                if key in found:
                    raise UsageError(
                        f"two results would have the metric {key!r}: rename a target or metric"
                    )
                if math.isfinite(value):
                    found[key] = float(value)
        return found

    def to_arrow(self) -> pa.Table:
        """Return the flat dictionaries as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_pylist(self.to_dicts())

    def to_pandas(self) -> pd.DataFrame:
        """Return the flat dictionaries as a pandas frame."""
        import pandas as pd

        return pd.DataFrame(self.to_dicts())

    def to_polars(self) -> pl.DataFrame:
        """Return the flat dictionaries as a Polars frame."""
        import polars as pl

        return pl.DataFrame(self.to_dicts())

    def to_text(self) -> str:
        """Return all tables, findings and sentences as plain text."""
        return as_text(self.grids(), self.warnings, self.sentences, self.opening)

    def __str__(self) -> str:
        return as_text(self.brief(), self.warnings, self.sentences, self.opening)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return as_html(self.brief(), self.warnings, self.sentences, self.opening)


class Reported(Result):
    """A result that has charts and a report."""

    def facts(self) -> Row:
        """Return the dictionary that the charts and the report read."""
        return self.to_dict()

    def page_opening(self) -> Mapping[str, str]:
        """Return title, answer and severity of the report, where they differ from `facts`."""
        return {}

    def charts(self) -> dict[str, alt.LayerChart]:
        """Return the charts of the report by name, as Altair objects."""
        from poolwise.report.page import all_charts

        return all_charts(self.facts())

    def chart(self, name: str, target: str = "") -> alt.LayerChart:
        """Return one chart of the report, as an Altair object.

        Args:
            name: "estimates", "logs", "weights" or "agreement"; and where there are several
                targets, periods, segments, logs to compare or clicks: "targets",
                "differences", "course", "segments", "backtest" or "position-bias".
            target: Name of the target in a chart of one target; the first by default.
        """
        from poolwise.report.page import pick_chart

        facts: Mapping[str, Any] = self.facts()
        targets = [str(entry["target"]) for entry in facts.get("targets", ())]
        return pick_chart(self.charts(), name, targets, target)

    def _repr_html_(self) -> str:
        from poolwise.report.charts import draw_inline

        by_name = self.charts()
        first = next(name for name in ("targets", *by_name) if name in by_name)
        return as_html(
            self.brief(),
            self.warnings,
            self.sentences,
            self.opening,
            draw_inline(by_name[first]),
        )

    def save(
        self,
        path: str | PathLike[str],
        *,
        command: str = "",
        question: Mapping[str, object] | None = None,
    ) -> None:
        """Write the report as one self-contained HTML file.

        Args:
            path: The file; an existing one is replaced as a whole.
            command: Command that reproduces the numbers, shown in the report.
            question: Date, log and targets for an audit, from `Question.record`.
        """
        from poolwise.files import HTML, refuse_output, write_whole

        refuse_output(path, HTML)
        write_whole(Path(path), self.page_text(command, question).encode())

    def page_text(self, command: str = "", question: Mapping[str, object] | None = None) -> str:
        """Return the report as HTML; the arguments are those of `save`."""
        from poolwise.report.page import page

        opening = self.page_opening()
        return page(self.facts(), command=command, question=question, opening=opening)


def json_text(kind: str, whole: Row, *, indent: int | None = 2) -> str:
    """Return a result as JSON, with the version of its schema and its kind."""
    versioned = {"schema_version": SCHEMA_VERSION, "result": kind, **whole}
    return json.dumps(finite(versioned), indent=indent, ensure_ascii=False)


def finite(value: object) -> object:
    """Replace infinities and NaN, which JSON lacks, by None at every depth."""
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def of_requests(rows: int | None) -> Row:
    """Return the rows of a request under their public name, if values are those of requests."""
    return {} if rows is None else {"rows_per_request": rows}


def listed_findings(findings: Sequence[Finding]) -> list[Row]:
    """Return findings as dictionaries, most serious first.

    A finding of one target among several has its name.
    """
    rows: list[Row] = []
    for finding in sorted(findings, key=lambda f: f.rank):
        row: Row = {"code": finding.code, "severity": finding.severity}
        row |= {"target": finding.target} if finding.target else {}
        row |= {"metric": finding.metric} if finding.metric else {}
        rows.append(row | {"message": finding.text})
    return rows


def share_findings(
    metrics: Mapping[str, Sequence[Finding]], ratios: Collection[str]
) -> list[Finding]:
    """Return the findings of several metrics: once what they share, else with their metric.

    A ratio has the findings of both its measures, which metrics of these have already.

    Args:
        metrics: Findings of each metric.
        ratios: Names of the metrics that are ratios.
    """
    plain = [set(own) for name, own in metrics.items() if name not in ratios]
    shared: set[Finding] = set.intersection(*plain) if plain else set()
    measured: set[Finding] = set().union(*plain)
    findings = [f for f in next(iter(metrics.values())) if f in shared]
    findings = list(dict.fromkeys(findings))
    for name, own in metrics.items():
        known = measured if name in ratios else shared
        findings += [replace(f, metric=name) for f in own if f not in known]
    return findings


def fingerprint(pools: Mapping[str, Pool], coverage: Coverage, *, timezone: str = UTC) -> str:
    """Return a hash of the rows with the probabilities of their policies.

    Two results with the same hash rest on the same rows, read in the same time zone.  It
    digests counts, rewards and weights of each logger, cut to eight digits: threads and the
    order of rows change the last digits of a sum.

    Args:
        pools: Moments of each logger, by target.
        coverage: Which probabilities are known.
        timezone: Time zone of the log.
    """
    digest = sha256(b"" if timezone == UTC else f"{timezone}\n".encode())
    terms = (REWARD, WEIGHT, BALANCED_WEIGHT) if coverage.crossed else (REWARD, WEIGHT)
    for target, pool in sorted(pools.items()):
        for logger in sorted(pool.loggers):
            moments = pool[logger]
            numbers = [number for term in terms for number in _list_numbers(moments, term)]
            line = (target, logger, moments.count, *numbers)
            digest.update(f"{line!r}\n".encode())
    return digest.hexdigest()[:16]


def _list_numbers(moments: Moments, term: Term) -> list[tuple[int, int]]:
    low, high, mean = moments.min(term), moments.max(term), moments.mean(term)
    # a sum with cancellation is known to the digits of its largest summands
    scale = abs(mean) if low >= 0 else max(-low, abs(high))
    return [cut(low, abs(low)), cut(high, abs(high)), cut(mean, scale)]


def cut(value: float, scale: float) -> tuple[int, int]:
    """Return a number to eight digits of a scale: power of two and steps within it.

    >>> cut(0.3, 0.3) == cut(0.1 + 0.2, 0.1 + 0.2)
    True
    >>> cut(0.5, 0.5) == cut(0.5000001, 0.5000001)
    False
    """
    if scale == 0 or not math.isfinite(value / scale):
        return 0, 0
    power = math.floor(math.log2(scale * ODD))
    return power, math.floor(math.ldexp(value, -power) * FINGERPRINT_STEPS + BETWEEN)
