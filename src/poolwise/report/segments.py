"""Segments in words, as a table and as a chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolwise.report.charts import forest_of
from poolwise.report.tables import UNKNOWN, VERDICTS, Grid
from poolwise.text import all_of, count_text, interval_text, listed, p_text, with_error

if TYPE_CHECKING:
    from poolwise.report.charts import Chart
    from poolwise.report.sentence import Facts

FEW = 5  # names that a sentence lists; more are counted
VERBS = {
    "better": "is shown to be better than",
    "worse": "is shown to be worse than",
    "undecided": "is not distinguishable from",
    "identical": "is the same policy as",
    "unreliable": "cannot be compared with",
}


def segments_sentence(segments: Facts) -> str:
    """Say in which segments targets differ from the baseline, and which segments differ."""
    results = segments["results"]
    sentences = []
    for target in dict.fromkeys(r["target"] for r in results):
        own = [r for r in results if r["target"] == target]
        clauses = []
        for verdict, verb in VERBS.items():
            names = [
                r["segment"]
                for r in own
                if "difference" in r and r["difference"]["verdict"] == verdict
            ]
            if names:
                clauses.append(f"{verb} {segments['baseline']!r} in {_named(names, len(own))}")
        if clauses:
            sentences.append(f"{target!r} {'; it '.join(clauses)}.")
        sentences += _differing(target, own)
    if not sentences:
        return "No segment has an estimate of a difference."
    return " ".join([f"By {segments['by']}:", *sentences])


def _differing(target: str, results: list[Facts]) -> list[str]:
    """Return which segments have another difference than the rest."""
    contrasts = [
        r for r in results if "contrast" in r and r["contrast"]["verdict"] != "unreliable"
    ]
    if not contrasts:
        return []
    parts = []
    for verdict, word in (("better", "above"), ("worse", "below")):
        names = [r["segment"] for r in contrasts if r["contrast"]["verdict"] == verdict]
        if names:
            parts.append(f"in {_named(names, 0)} it is {word} that of the other segments")
    if not parts:
        return ["No segment is shown to differ from the others in this difference."]
    return [f"The difference of {target!r} depends on the segment: {'; '.join(parts)}."]


def _named(names: list[str], total: int) -> str:
    """Return the names of segments, or their number.

    >>> _named(["de"], 3), _named(["de", "fr"], 2), _named(list("abcdef"), 9)
    ("'de'", 'both segments', '6 segments')
    """
    if len(names) == total > 1:
        return all_of(total, "segments")
    return f"{len(names)} segments" if len(names) > FEW else listed(list(map(repr, names)))


def segment_tables(segments: Facts) -> list[Grid]:
    """Return the estimate of each segment, then its difference from the baseline."""
    results, level = segments["results"], f"{100 * segments['level']:g}% interval"
    several = len({r["target"] for r in results}) > 1
    labels = [f"{r['segment']}: {r['target']}" if several else r["segment"] for r in results]
    interval = f"simultaneous\n{level}"
    values = [
        [label, count_text(r["rows"]), *_estimate(r, "value")]
        for label, r in zip(labels, results, strict=True)
    ]
    differences = [[label, *_difference(r)] for label, r in zip(labels, results, strict=True)]
    differs = "differs from others\n(adjusted p)"
    return [
        Grid(
            f"By {segments['by']} ({segments['estimator']})",
            ["segment", "rows", "estimate", interval],
            values,
        ),
        Grid(
            f"Difference from {segments['baseline']} by {segments['by']}",
            ["segment", "difference", interval, "verdict", differs],
            differences,
        ),
    ]


def _estimate(entry: Facts, name: str) -> list[str]:
    error = entry["std_error"]
    ends = interval_text(entry["lower"], entry["upper"], error)
    return [with_error(entry[name], error), ends]


def _difference(result: Facts) -> list[str]:
    if "difference" not in result:
        return [UNKNOWN] * 4
    pair = result["difference"]
    contrast = result.get("contrast")
    differs = UNKNOWN
    if contrast is not None and contrast["verdict"] != "unreliable":
        shown = contrast["verdict"] in {"better", "worse"}
        differs = f"{'yes' if shown else 'no'} ({p_text(contrast['adjusted'])})"
    return [*_estimate(pair, "difference"), VERDICTS[pair["verdict"]], differs]


def segments_chart(segments: Facts) -> Chart:
    """Draw the difference of each segment from the baseline; shown ones are coloured."""
    several = len({r["target"] for r in segments["results"]}) > 1
    entries = [
        (
            f"{r['segment']}: {r['target']}" if several else r["segment"],
            r["difference"],
            r["difference"]["verdict"] in {"better", "worse"},
        )
        for r in segments["results"]
        if "difference" in r
    ]
    return forest_of(entries, segments["estimator"])
