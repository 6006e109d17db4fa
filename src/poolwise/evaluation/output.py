"""Output: a result as dictionaries, frames, JSON, text, HTML and a report; its fingerprint.

A result gives its rows (`to_dicts`), its whole content (`to_dict`) and its tables (`grids`);
everything else follows from these.  `Difference`, of two policies, is a part of most results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from poolwise.intervals.student import Interval
from poolwise.log.problems import UTC
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, WEIGHT
from poolwise.report.tables import Grid, as_html, as_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike

    import altair as alt
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from poolwise.errors import Finding
    from poolwise.moments.moments import Moments, MomentsByLogger
    from poolwise.moments.terms import Term

Row = dict[str, object]
Verdict = Literal["better", "worse", "undecided", "identical", "unreliable"]
Requirement = Literal["better", "not-worse"]
FLIPPED: Mapping[Verdict, Verdict] = {"better": "worse", "worse": "better"}
DOUBTED = frozenset({"weights-off", "propensities-off"})  # probabilities cannot be right
SCHEMA_VERSION = 1  # of docs/schema/poolwise-1.json, which describes the JSON of every result
STEPS = 2**26  # of a fingerprint to each doubling: eight digits
# Round numbers (halves, tenths, integers) must not lie where a cut is made, or rounding
# would decide on which side they fall: cuts are at odd offsets.
ODD, BETWEEN = math.pi / 3, 1 / math.pi


class Result:
    """A result with its findings, as dictionaries, frames, JSON, text and HTML."""

    kind: ClassVar[str]  # in the schema of the JSON
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
        from poolwise.report.page import page
        from poolwise.rows.output import HTML, refuse_output, write_whole

        refuse_output(path, HTML)
        opening = self.page_opening()
        text = page(self.facts(), command=command, question=question, opening=opening)
        write_whole(Path(path), text.encode())


@dataclass(frozen=True)
class Difference:
    """One target less another.

    Attributes:
        target: The target.
        other: The target that is subtracted.
        value: Estimated difference, paired by row.
        std_error: Standard error of `value`.
        interval: Interval that holds for all reported differences together. In a comparison
            it includes 0 where the ranking contradicts `value`.
        p_value: P-value of no difference, for this pair alone.
        adjusted: P-value adjusted for all of them, by single-step max-T in a comparison and by
            Bonferroni in an evaluation: below 1 - level if and only if the interval excludes 0.
        verdict: "better" or "worse" where the interval excludes 0; "unreliable" where an alarm
            says that the probabilities of either target cannot be right.
    """

    target: str
    other: str
    value: float
    std_error: float
    interval: Interval
    p_value: float
    adjusted: float
    verdict: Verdict

    def against(self, baseline: str) -> Difference:
        """Return the difference with the baseline as the target that is subtracted."""
        if self.other == baseline:
            return self
        return replace(
            self,
            target=self.other,
            other=self.target,
            value=-self.value,
            interval=Interval(-self.interval.upper, -self.interval.lower, self.interval.level),
            verdict=FLIPPED.get(self.verdict, self.verdict),
        )

    def lack(self, required: Requirement, margin: float) -> str:
        """Return the reason why a requirement does not hold; empty if it does."""
        if self.verdict == "unreliable":
            return f"the probabilities of {self.target!r} or {self.other!r} cannot be right"
        if self.verdict == "identical" and required == "not-worse":
            return ""
        bound = margin if required == "better" else -margin
        if self.interval.lower > bound:
            return ""
        start = f"the interval of {self.target!r} less {self.other!r} begins at"
        return f"{start} {self.interval.lower:.4g}, not above {bound:g}"

    def to_dict(self) -> Row:
        """Return the difference under flat names."""
        ends = {"lower": self.interval.lower, "upper": self.interval.upper}
        row = {"target": self.target, "other": self.other, "difference": self.value}
        rest = {k: getattr(self, k) for k in ("p_value", "adjusted", "verdict")}
        return {**row, "std_error": self.std_error, **ends, **rest}


def identical(target: str, other: str, level: float) -> Difference:
    """Return the difference of targets that are equal on every row."""
    nothing = Interval(0.0, 0.0, level)
    return Difference(target, other, 0.0, 0.0, nothing, 1.0, 1.0, "identical")


def doubts(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the codes of alarms that say that probabilities cannot be right."""
    return tuple(sorted(DOUBTED & {finding.code for finding in findings}))


def verdict_of(interval: Interval, *, doubted: bool) -> Verdict:
    """Return the verdict of a difference with this interval."""
    if doubted:
        return "unreliable"
    if 0.0 in interval:
        return "undecided"
    return "better" if interval.lower > 0 else "worse"


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
    """Return findings as dictionaries, most serious first."""
    return [
        {"code": finding.code, "severity": finding.severity, "message": str(finding)}
        for finding in sorted(findings, key=lambda f: f.rank)
    ]


def fingerprint(
    views: Mapping[str, MomentsByLogger], *, crossed: bool, timezone: str = UTC
) -> str:
    """Return a hash of the rows with the probabilities of their policies.

    Two results with the same hash rest on the same rows, read in the same time zone.  It
    digests counts, rewards and weights of each logger, cut to eight digits: threads and the
    order of rows change the last digits of a sum.

    Args:
        views: Moments of each logger, by target.
        crossed: Whether the mixture is known.
        timezone: Time zone of the log.
    """
    digest = sha256(b"" if timezone == UTC else f"{timezone}\n".encode())
    terms = (REWARD, WEIGHT, BALANCED_WEIGHT) if crossed else (REWARD, WEIGHT)
    for target, view in sorted(views.items()):
        for logger, moments in sorted(view.items()):
            numbers = [number for term in terms for number in _numbers(moments, term)]
            line = (target, logger, moments.count, *numbers)
            digest.update(f"{line!r}\n".encode())
    return digest.hexdigest()[:16]


def _numbers(moments: Moments, term: Term) -> list[tuple[int, int]]:
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
    return power, math.floor(math.ldexp(value, -power) * STEPS + BETWEEN)
