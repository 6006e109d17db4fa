"""Draw docs/images/architecture.svg: the packages, and one evaluation's walk through them.

Run: python scripts/make_architecture.py

The names of the modules are read from src/poolwise, so the picture cannot name one that
does not exist; tests/repo/test_docs.py compares the file with what this script draws.
"""

from __future__ import annotations

from html import escape
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "poolwise"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"

# In the order of imports: a package imports only packages above it.
PACKAGES = {
    "log": "a Log and its policies; reads nothing",
    "moments": "terms, moments, linear combinations, shapes; pure NumPy",
    "rows": "sources and policies become scored rows",
    "engines": "rows become moments",
    "estimators": "moments become an estimate",
    "intervals": "an estimate becomes an interval",
    "diagnosis": "moments become findings",
    "report": "dictionaries become tables, charts, a page",
    "evaluation": "the verbs, and their results",
    "learning": "logs become a new policy",
    "formats": "other logs become a Log",
    "cli": "parse, call, print",
}
# One `poolwise evaluate`, package by package; docs/architecture.md explains each step.
WALK = (
    "cli",
    "log",
    "evaluation",
    "rows",
    "engines",
    "moments",
    "estimators",
    "intervals",
    "diagnosis",
    "evaluation",
    "report",
)

WIDTH, LEFT, BOX, LINE, GAP = 940, 10, 560, 16, 8
FIRST, STEP, RADIUS = 600, 31, 10  # centre of the first circle, distance, size
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2933 }
.name { font-weight: 700; font-size: 15px }
.modules { font-family: ui-monospace, monospace; font-size: 11.5px; fill: #52606d }
.number { fill: #fff; font-size: 12px; font-weight: 700; text-anchor: middle }
rect { fill: #f5f7fa; stroke: #9aa5b1 }
.paper { fill: #fff; stroke: none }
line { stroke: #e4e7eb }
circle { fill: #0b69a3 }
path { fill: none; stroke: #0b69a3; stroke-width: 1.5; marker-end: url(#head) }
marker path { fill: #0b69a3; stroke: none; marker-end: none }
"""


def modules(package: str) -> list[str]:
    """Return the names of a package's modules."""
    files = sorted((SOURCE / package).glob("*.py"))
    return [path.stem for path in files if path.stem != "__init__"]


def drawn() -> str:
    """Return the picture as SVG."""
    shapes, middle, top = [], {}, 34
    for package in (name for name in PACKAGES if modules(name)):
        listed = wrap(" · ".join(modules(package)), 76)
        height = 26 + LINE * len(listed)
        middle[package] = top + height / 2
        shapes += [*box(package, listed, top, height), line(middle[package])]
        top += height + GAP
    shapes += walk(middle)
    return page(shapes, top + 4)


def box(package: str, listed: list[str], top: float, height: float) -> list[str]:
    """Draw one package: name, purpose and modules."""
    name = f'<tspan class="name">{package}</tspan>  {escape(PACKAGES[package])}'
    return [
        f'<rect x="{LEFT}" y="{top}" width="{BOX}" height="{height}" rx="6"/>',
        text(LEFT + 12, top + 19, name),
        *(
            text(LEFT + 12, top + 20 + LINE * place, escape(part), "modules")
            for place, part in enumerate(listed, start=1)
        ),
    ]


def line(middle: float) -> str:
    """Draw the line on which the steps of one package lie."""
    return f'<line x1="{LEFT + BOX}" x2="{WIDTH - 10}" y1="{middle:g}" y2="{middle:g}"/>'


def walk(middle: dict[str, float]) -> list[str]:
    """Draw one numbered circle for each step, and arrows between them."""
    places = [(FIRST + STEP * place, middle[name]) for place, name in enumerate(WALK)]
    arrows = [
        f'<path d="M{x:g} {y:g} L{right:g} {end(y, lower):g}"/>'
        for (x, y), (right, lower) in pairwise(places)
    ]
    circles = [
        f'<circle cx="{x:g}" cy="{y:g}" r="{RADIUS}"/>' + text(x, y + 4, str(number), "number")
        for number, (x, y) in enumerate(places, start=1)
    ]
    return [*arrows, *circles]


def end(start: float, stop: float) -> float:
    """Return where an arrow ends: at the edge of the next circle."""
    return stop - (RADIUS + 4 if stop > start else -RADIUS - 4)


def text(x: float, y: float, content: str, kind: str = "") -> str:
    """Draw one line of text."""
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{style}>{content}</text>'


def page(shapes: list[str], height: float) -> str:
    """Return shapes on white paper, with a heading."""
    head = (
        '<marker id="head" viewBox="0 0 10 10" refX="7" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 1L9 5L0 9z"/></marker>'
    )
    size = f'viewBox="0 0 {WIDTH} {height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>',
            "<title>Packages of poolwise, and the walk of one evaluation</title>",
            f"<style>{STYLE}</style>",
            f"<defs>{head}</defs>",
            f'<rect class="paper" width="{WIDTH}" height="{height:g}"/>',
            text(LEFT, 20, "A package imports only packages above it"),
            text(FIRST - RADIUS, 20, "One evaluation, step by step"),
            *shapes,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(drawn(), "utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")
