"""Card: a policy against the baseline, as text and as the marks of a bar."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from poolwise.text import interval_text, percent, places_for, signed_percent, with_error

if TYPE_CHECKING:
    from poolwise.report.sentence import Facts

SPACE = 0.12  # of the width of a bar, beyond its outermost marks
STATES = {"better": "yes", "worse": "no"}  # colour of a card by the verdict of a difference


def change_text(line: Facts) -> str:
    """Write the change from the baseline with its interval, relative if that has a meaning.

    Args:
        line: The change as `difference`, `std_error`, `lower` and `upper`, its relative form,
            and the `baseline_value`.
    """
    if line["lower"] == line["upper"] == 0:
        return "the same on every row"
    more = "more" if line["difference"] > 0 else "less"
    if line.get("relative") is not None and line["baseline_value"] > 0:
        low, high = (signed_percent(line[f"relative_{end}"]) for end in ("lower", "upper"))
        return f"{percent(abs(line['relative']))} {more} ({low} to {high})"
    ends = interval_text(line["lower"], line["upper"], line["std_error"])
    return f"{with_error(abs(line['difference']), line['std_error'])} {more} ({ends})"


def value_texts(line: Facts) -> tuple[str, str]:
    """Write the value of a policy and of the baseline, to the digits of their difference."""
    places = places_for(line["std_error"])
    return f"{line['value']:.{places}f}", f"{line['baseline_value']:.{places}f}"


def bar(line: Facts, *, worse: float = -1.0) -> dict[str, float | None] | None:
    """Return the marks of a bar in percent of its width; None if nothing can be drawn.

    Args:
        line: The change as `difference`, `lower` and `upper`, and the `margin` of a guardrail.
        worse: -1 if less is worse, 1 if more is.

    Examples:
        >>> marks = bar({"lower": -1.0, "upper": 3.0, "difference": 1.0, "margin": 2.0})
        >>> [round(marks[name]) for name in ("margin", "left", "zero", "point")]
        [10, 26, 42, 58]
    """
    ends = [line["lower"], line["upper"]]
    if not all(map(math.isfinite, ends)):
        return None
    margin = None if line.get("margin") is None else worse * line["margin"]
    marks = [0.0, line["difference"], *ends, *([] if margin is None else [margin])]
    low, high = float(min(marks)), float(max(marks))
    if low == high:
        return None
    space = SPACE * (high - low)

    def place(mark: float) -> float:
        return round(100 * (mark - low + space) / (high - low + 2 * space), 2)

    left, right = place(ends[0]), place(ends[1])
    return {
        "left": left,
        "width": round(right - left, 2),
        "point": place(line["difference"]),
        "zero": place(0.0),
        "margin": None if margin is None else place(margin),
    }
