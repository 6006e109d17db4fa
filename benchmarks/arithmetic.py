"""The arithmetic of very large logs, from measurements on one machine.

Time and bytes grow with the number of rows and memory does not, so the cost of ten billion
rows is a multiplication.  Prices and sizes of machines are assumptions, listed below.

Run: python -m benchmarks.arithmetic; writes a part of docs/scale.md
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.kept import DOCS, markdown, read_speed, write_part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.kept import Key, Measurement

PAGE = DOCS / "scale.md"
MARKER = "arithmetic"
CORES = 2  # of the machine that was measured
SIZES = (10**10, 10**12)
PRICE_PER_CORE_HOUR = 0.05  # dollars: a rented core with its share of memory
PRICE_PER_GB_READ = 0.0  # dollars: object stores charge nothing within a region
PRICE_PER_GB_SCANNED = 0.005  # dollars: a warehouse that bills by bytes, 5 per terabyte
CORES_PER_MACHINE = 32
HOURS = 1  # within which the result is needed

TITLE = "## The arithmetic for 1e10 and 1e12 rows"
TEXT = (
    TITLE
    + """

Time grows with the number of rows, memory does not, so the cost of a large log is a
multiplication. Measured on two cores, with five loggers, on the largest log of each kind
(bytes are those of the file).

{measured}

Multiplied, at {core_hour:.2f} dollars per core-hour and {read:g} per GB read from storage
in the same region; the last column is the price of a warehouse that bills {scanned:g}
dollars per TB scanned instead. Machines have {cores} cores, and the result is needed within
{hours}, for which storage must deliver the GB/s:

{multiplied}

These are products, not measurements. They assume that the log is split into many files, so that
machines can share it evenly, that storage keeps up, and that a core of a large machine is as
fast as one of the measured machine. Each machine sends one line of sums per logger, so the cost
of merging is negligible."""
)


class PerRow(NamedTuple):
    """Cost of one row, measured on the largest log of its kind."""

    rows: int
    targets: int
    bytes: float
    core_seconds: float
    megabytes: float


class Bill(NamedTuple):
    """Cost of a number of rows."""

    rows: int
    terabytes: float
    core_hours: float
    machines: int
    gigabytes_per_second: float
    dollars: float
    scanned_dollars: float


def per_row(kept: Mapping[Key, Measurement]) -> list[PerRow]:
    """Return the cost of a row by number of targets, from the largest log of five loggers."""
    largest: dict[int, Key] = {}
    for key, found in kept.items():
        if key.what == "evaluate" and key.loggers == 5 and math.isfinite(found.seconds):
            before = largest.get(key.targets)
            if before is None or key.rows > before.rows:
                largest[key.targets] = key
    return [
        PerRow(
            key.rows,
            targets,
            kept[key._replace(what="file")].megabytes * 1e6 / key.rows,
            CORES * kept[key].seconds / key.rows,
            kept[key].megabytes,
        )
        for targets, key in sorted(largest.items())
    ]


def bill(cost: PerRow, rows: int) -> Bill:
    """Return the cost of `rows` rows, each as expensive as measured.

    >>> bill(PerRow(10**8, 1, bytes=80, core_seconds=3.6e-7, megabytes=500), 10**10)[:4]
    (10000000000, 0.8, 1.0, 1)
    """
    terabytes = cost.bytes * rows / 1e12
    core_hours = cost.core_seconds * rows / 3600
    paid = core_hours * PRICE_PER_CORE_HOUR + 1e3 * terabytes * PRICE_PER_GB_READ
    return Bill(
        rows,
        terabytes,
        core_hours,
        math.ceil(core_hours / (HOURS * CORES_PER_MACHINE)),
        1e3 * terabytes / (HOURS * 3600),
        paid,
        1e3 * terabytes * PRICE_PER_GB_SCANNED,
    )


def text(kept: Mapping[Key, Measurement]) -> str:
    """Return the generated part of the page."""
    costs = per_row(kept)
    if not costs:
        return f"{TITLE}\n\nNot measured yet: `make bench`."
    return TEXT.format(
        measured=_measured(costs),
        core_hour=PRICE_PER_CORE_HOUR,
        read=PRICE_PER_GB_READ,
        scanned=1e3 * PRICE_PER_GB_SCANNED,
        cores=CORES_PER_MACHINE,
        hours="an hour" if HOURS == 1 else f"{HOURS} hours",
        multiplied=_multiplied(costs),
    )


def _measured(costs: list[PerRow]) -> str:
    header = ["targets", "rows measured", "bytes per row", "core-seconds per 1e6 rows", "MB"]
    lines = [
        [
            str(cost.targets),
            f"{cost.rows:,}",
            f"{cost.bytes:.0f}",
            f"{1e6 * cost.core_seconds:.2g}",
            f"{cost.megabytes:.0f}",
        ]
        for cost in costs
    ]
    return markdown(header, lines, words=0)


def _multiplied(costs: list[PerRow]) -> str:
    header = ["rows", "targets", "TB read", "core-hours", "machines", "GB/s", "dollars", "scan"]
    lines = []
    for rows in SIZES:
        for cost in costs:
            due = bill(cost, rows)
            numbers = (due.gigabytes_per_second, due.dollars, due.scanned_dollars)
            shown = [_two_digits(number) for number in numbers]
            read = [_two_digits(due.terabytes), _two_digits(due.core_hours)]
            lines.append([f"1e{len(str(rows)) - 1}", str(cost.targets), *read])
            lines[-1] += [f"{due.machines:,}", *shown]
    return markdown(header, lines, words=0)


def _two_digits(number: float) -> str:
    """Format a number with two significant digits.

    >>> _two_digits(0.01234), _two_digits(7.62), _two_digits(1234.5)
    ('0.012', '7.6', '1,200')
    """
    if number <= 0:
        return "0"
    places = 1 - math.floor(math.log10(number))
    return f"{round(number, places):,.{max(0, places)}f}"


def write_arithmetic(kept: Mapping[Key, Measurement]) -> None:
    """Rewrite the arithmetic of the documentation's page."""
    write_part(PAGE, MARKER, text(kept))


if __name__ == "__main__":
    write_arithmetic(read_speed())
