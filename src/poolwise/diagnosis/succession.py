"""Succession: loggers that follow each other in time, in a log that declares nothing.

Policies that are retrained on their own logs bias every estimate that pools loggers, and a
log shows no more of it than that one policy begins where another ends.  With a column of
times, the ranges of times are compared; without one, the ranges of row numbers, but only of
three or more labels that look like versions (v1, v2, ...), since rows may be sorted by logger.

A test of ranges sees neither training on rows outside of the log nor a policy that learned
while others stayed live.  Without times it takes versions that ran side by side, but were
exported one after the other, for successive ones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from poolwise.errors import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.moments.moments import MomentsByLogger

    Ranges = Mapping[str, tuple[Any, Any]]  # numbers of rows, dates or times

FEWEST_VERSIONS = 3  # without times: the rows of two may be sorted by logger
FEWEST_ROWS = 5  # of a logger: two with so few rows in random order are apart in 1 of 126 logs
VERSION = re.compile(r"(.*?\D)(\d+(?:[._-]\d+)*)")  # a bare number is a label like any other
FEW = 5  # names that a finding lists


def succession(moments: MomentsByLogger, times: Ranges) -> tuple[Finding, ...]:
    """Return the finding that loggers follow each other, if they do.

    Args:
        moments: Moments of each logger, with the range of its rows.
        times: First and last time of each logger; empty without a column of times.
    """
    large = [i for i, m in moments.items() if m.count >= FEWEST_ROWS]
    if times:
        labels = [i for i in large if i in times]
        chain = chained({i: times[i] for i in labels})
    else:
        labels = versions(large)
        rows = {i: span for i in labels if (span := moments[i].span) is not None}
        chain = chained(rows)
        if chain != labels or len(chain) < FEWEST_VERSIONS:  # overlap, or in another order
            return ()
    if len(chain) < 2 or 2 * len(chain) < len(labels):
        return ()
    return (_following(chain, "times" if times else "rows"),)


def chained(ranges: Ranges) -> list[str]:
    """Return the most loggers whose ranges do not overlap, in their order.

    >>> chained({"control": (0, 9), "v1": (0, 3), "v2": (4, 6), "v3": (7, 9)})
    ['v1', 'v2', 'v3']
    """
    chain: list[str] = []
    for label, (first, _) in sorted(ranges.items(), key=lambda item: item[1][::-1]):
        if not chain or first > ranges[chain[-1]][1]:
            chain.append(label)
    return chain


def versions(labels: Sequence[str]) -> list[str]:
    """Return the labels that look like versions of one policy, in the order of their numbers.

    >>> versions(["v10", "v9", "control", "v1.2"])
    ['v1.2', 'v9', 'v10']
    """
    groups: dict[str, dict[str, tuple[int, ...]]] = {}
    for label in labels:
        if match := VERSION.fullmatch(label):
            numbers = tuple(map(int, re.split(r"[._-]", match[2])))
            groups.setdefault(match[1], {})[label] = numbers
    largest = max(groups.values(), key=len, default={})
    return sorted(largest, key=lambda label: largest[label])


def _following(chain: Sequence[str], what: str) -> Finding:
    shown = ", ".join(map(repr, chain[:FEW])) + (", ..." if len(chain) > FEW else "")
    return Finding(
        "loggers-in-succession",
        f"{len(chain)} loggers follow each other in the {what} of the log ({shown}). Estimates "
        "that pool loggers are biased, mostly down, if a policy was trained on earlier rows of "
        "this log, and their intervals are too narrow.",
        "If these policies were trained on earlier rows of this log, give `period` (--period), "
        "the column of the day or version.",
        "note",
    )
