"""Sentences about an evaluation, for people who read no tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolwise.format import count_text, percent

if TYPE_CHECKING:
    from poolwise.report.sentence import Found


def lesson(found: Found) -> str:
    """Two sentences on what an evaluation teaches about pooling, from its numbers."""
    target = found["targets"][0]
    by_name = {e["estimator"]: e for e in target["estimates"]}
    rows = {i["logger"]: i["rows"] for i in found["loggers"]}
    total, biggest = sum(rows.values()), max(rows, key=lambda i: rows[i])
    share = by_name["weighted"]["shares"][biggest]
    worth = (by_name["naive"]["std_error"] / by_name["calibrated"]["std_error"]) ** 2
    return (
        f"Logger {biggest!r} wrote {percent(rows[biggest] / total)} of the rows, "
        f"but it is so unlike {target['target']!r} that weighted gives it a share of "
        f"{percent(share)} only. Pooling naively lets its few large weights drown the rest: "
        f"calibrated is as sure from these {count_text(total)} rows as naive would be from "
        f"{count_text(worth * total)}."
    )
