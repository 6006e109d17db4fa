"""Left out: why calibrated does without some of its columns.

Each sentence says what the rows cannot bear and what would help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolwise.errors import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping


def no_cover(mean: float) -> Finding:
    """The target plays what nobody logged, so that its weights do not average 1."""
    return Finding(
        "target-uncovered",
        f"The balanced weights average {mean:.3f} instead of 1: the target plays actions that "
        f"no logger plays, about {1 - mean:.1%} of the time, or probabilities are wrong (or, "
        "where they were estimated, rough). The columns that rest on the target's weights are "
        "left out.",
        "Log such actions before relying on any estimate, unless they are known to earn 0.",
        "alarm",
    )


def too_many(loggers: int, most: int) -> Finding:
    """There are more loggers than can have a column each."""
    return Finding(
        "many-loggers",
        f"There are {loggers} loggers, more than {most}: their columns are left out of "
        "calibrated, which then knows only that the target's weights average 1.",
        "Give loggers that play nearly alike one label and one column of `propensities`.",
    )


def too_few(effective: float, what: str) -> Finding:
    """The weights are too uneven for these columns."""
    return Finding(
        "few-effective-rows",
        f"The weights are worth {effective:.1f} rows only, so {what}.",
        "Collect more rows from loggers that are closer to the target.",
    )


def too_small(rows: Mapping[str, int], fewest: int) -> Finding:
    """Some loggers wrote too few rows for a column of their own."""
    found = ", ".join(f"{i!r} ({count:,})" for i, count in rows.items())
    return Finding(
        "few-rows-of-logger",
        f"Loggers with fewer than {fewest} rows have no column in calibrated: {found}. A slope "
        "would fit those rows alone and hide their error.",
        "Give loggers that play nearly alike one label and one column of `propensities`.",
        "note",
    )
