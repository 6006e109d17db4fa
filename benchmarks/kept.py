"""Results of benchmarks: measurements in a CSV, and parts of pages between two markers.

A script writes each part of a page and a test compares them, so numbers in the
documentation are never typed by hand.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from poolwise.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SPEED = DOCS / "figures" / "speed.csv"


class Key(NamedTuple):
    """Kind of a measurement, and the size of its log."""

    what: str
    rows: int
    targets: int = 1
    loggers: int = 5


class Measurement(NamedTuple):
    """Wall time and peak memory; of a file, only its size."""

    seconds: float
    megabytes: float


def read_speed(path: Path = SPEED) -> dict[Key, Measurement]:
    """Read the stored measurements."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {
            Key(line["what"], int(line["rows"]), int(line["targets"]), int(line["loggers"])): (
                Measurement(float(line["seconds"]), float(line["megabytes"]))
            )
            for line in csv.DictReader(file)
        }


def add_speed(found: Mapping[Key, Measurement], path: Path = SPEED) -> dict[Key, Measurement]:
    """Add measurements to the CSV; a new one replaces an old one of the same key."""
    kept = dict(sorted({**read_speed(path), **found}.items(), key=_place))
    names = (*Key._fields, *Measurement._fields)
    lines = [(*key, f"{m.seconds:.4g}", f"{m.megabytes:.4g}") for key, m in kept.items()]
    write_csv(path, names, lines)
    return read_speed(path)


def _place(item: tuple[Key, Measurement]) -> tuple[int, int, int, str]:
    key = item[0]
    return key.rows, key.targets, key.loggers, key.what


def write_csv(path: Path, names: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    """Write a header and lines, atomically."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(lines)
    write_whole(path, text.getvalue().encode())


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]], words: int = 1) -> str:
    """Return a table whose first columns are words and the others numbers, aligned right.

    >>> print(markdown(["what", "s"], [["decode", "1.0"]]))
    | what | s |
    |---|---:|
    | decode | 1.0 |
    """
    ruler = "|" + "---|" * words + "---:|" * (len(header) - words)
    rows = [f"| {' | '.join(cells)} |" for cells in (header, *lines)]
    return "\n".join([rows[0], ruler, *rows[1:]])


def part(page: str, marker: str) -> str:
    """Return the text between the two markers of a page."""
    _, _, rest = page.partition(f"<!-- {marker} -->\n")
    return rest.partition(f"\n<!-- /{marker} -->")[0]


def with_part(page: str, marker: str, text: str) -> str:
    r"""Return the page with new text between the markers, which are appended if absent.

    >>> with_part("a page\n", "x", "one").splitlines()
    ['a page', '', '<!-- x -->', 'one', '<!-- /x -->']
    >>> with_part(with_part("a page\n", "x", "one"), "x", "two").splitlines()[3]
    'two'
    """
    start, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    if start not in page:
        page = f"{page.rstrip()}\n\n{start}\n{end}\n"
    before, _, rest = page.partition(start)
    return f"{before}{start}\n{text}\n{end}{rest.partition(end)[2]}"


def write_part(path: Path, marker: str, text: str) -> None:
    """Replace the generated part of a page."""
    write_whole(path, with_part(path.read_text("utf-8"), marker, text).encode())
