"""Sentences about an evaluation, for people who read no tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolwise.format import count_text, percent

if TYPE_CHECKING:
    from poolwise.result import Evaluation


def lesson(evaluation: Evaluation) -> str:
    """Two sentences on what an evaluation teaches about pooling, from its numbers."""
    (name, result), *_ = evaluation.targets.items()
    naive, best = result.estimates["naive"], result.estimates["calibrated"]
    total = sum(evaluation.rows.values())
    biggest = max(evaluation.rows, key=lambda i: evaluation.rows[i])
    share = result.estimates["weighted"].shares[biggest]
    worth = (naive.std_error / best.std_error) ** 2
    return (
        f"Logger {biggest!r} wrote {percent(evaluation.rows[biggest] / total)} of the rows, "
        f"but it is so unlike {name!r} that weighted gives it a share of {percent(share)} "
        "only. Pooling naively lets its few large weights drown the rest: calibrated is as "
        f"sure from these {count_text(total)} rows as naive would be from "
        f"{count_text(worth * total)}."
    )
