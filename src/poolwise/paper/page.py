"""One page that sets each claim of the paper beside what was found.

Self-contained: charts are drawn into it and nothing is loaded from elsewhere.  Every
verdict comes from `claims`, every number from the CSV files.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from poolwise.paper.claims import FULL_SIZE, TOY, Claim, Tables, by_place
from poolwise.paper.figures import DATA_TITLES, FIGURES, Figure
from poolwise.text import short

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from poolwise.paper.checks import Verdict
    from poolwise.paper.panels import Row

CLASSES: Mapping[Verdict, str] = {
    "holds": "yes",
    "holds in part": "part",
    "does not hold": "no",
}
CELL_FIELDS = {
    1: ("drop_naive", "drop_balanced"),
    2: ("balanced_naive",),
    3: ("weighted_naive",),
    4: ("weighted_balanced",),
    7: ("cv_loggers_best", "cv_target_best"),
}
FIELD_TITLES = {
    "drop_naive": "naive on log 2 alone / naive on both",
    "drop_balanced": "log 2 alone / balanced on both",
    "balanced_naive": "balanced / naive",
    "weighted_naive": "weighted / naive",
    "weighted_balanced": "weighted / balanced",
    "cv_loggers_best": "control variates (loggers) / best of the others",
    "cv_target_best": "control variates (loggers + target) / best of the others",
}
INTRODUCTION = """
<h1>Effective Evaluation Using Logged Bandit Feedback from Multiple Loggers, reproduced</h1>
<p>Each claim of Agarwal, Basu, Schnabel and Joachims (KDD 2017) beside what was found.
Variances are exact, by enumeration over inputs and outputs; r is the size of log 1 over that
of log 2, v the divergence of logger 1 over that of logger 2.</p>
"""
STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff;
       max-width: 66rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
table { border-collapse: collapse; margin: .6rem 0 1.2rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .2rem .55rem; text-align: right; border-bottom: 1px solid #e4e4e4;
         vertical-align: top; }
th:first-child, td:first-child, td.text { text-align: left; }
.yes, .part, .no { font-weight: 600; white-space: nowrap; }
.yes { color: #1a6b33; } .part { color: #8a5a00; } .no { color: #a3231f; }
td.below { background: #e3f1e6; } td.above { background: #fbe6d8; }
.note { border-left: 4px solid #c98a00; padding: .4rem .8rem; background: #fdf6e6; }
.scroll { overflow-x: auto; } svg { max-width: 100%; height: auto; }
details { margin: .4rem 0; } summary { cursor: pointer; color: #0b5394; }
"""


def page(
    claims: Sequence[Claim], tables: Tables, charts: Mapping[int, str], notes: Sequence[str]
) -> str:
    """The whole page, as HTML."""
    parts = [
        INTRODUCTION,
        *(f'<p class="note">{escape(note)}</p>' for note in notes),
        "<h2>Claims</h2>",
        _summary(claims),
        *_sections(claims, tables, charts),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>The paper, reproduced</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _badge(verdict: Verdict) -> str:
    return f'<span class="{CLASSES[verdict]}">{verdict}</span>'


def _summary(claims: Sequence[Claim]) -> str:
    lines = "".join(
        f'<tr><td>{escape(c.text)}</td><td class="text">{escape(c.source)}</td>'
        f'<td class="text">{_badge(c.verdict)}</td></tr>'
        for c in claims
    )
    return f"<table><tr><th>claim</th><th>by</th><th>verdict</th></tr>{lines}</table>"


def _sections(
    claims: Sequence[Claim], tables: Tables, charts: Mapping[int, str]
) -> Iterator[str]:
    yield from _section("The toy example", claims, TOY)
    for figure in FIGURES:
        if figure.number not in charts:
            continue
        yield f"<h2>Figure {figure.number}. {escape(figure.title)}</h2>"
        yield f'<div class="scroll">{charts[figure.number]}</div>'
        yield f"<p>{escape(figure.caption)}</p>"
        yield from (_claim(claim) for claim in claims if claim.figure == figure.number)
        yield _details(figure, tables[figure.source])
    yield from _section("Full size", claims, FULL_SIZE)


def _section(title: str, claims: Sequence[Claim], number: int) -> Iterator[str]:
    shown = [claim for claim in claims if claim.figure == number]
    if shown:
        yield f"<h2>{title}</h2>{''.join(map(_claim, shown))}"


def _claim(claim: Claim) -> str:
    lines = "".join(
        f"<tr><td>{escape(_place(check.where))}</td>"
        f'<td class="text">{_badge(check.verdict)}</td>'
        f'<td class="text">{escape(check.found)}</td></tr>'
        for check in claim.checks
    )
    head = f"<caption>{escape(claim.text)} {_badge(claim.verdict)}</caption>"
    return f"<table>{head}{lines}</table>"


def _place(where: str) -> str:
    name, comma, rest = where.partition(",")
    return f"{DATA_TITLES.get(name, name)}{comma}{rest}"


def _details(figure: Figure, rows: Sequence[Row]) -> str:
    """The cells behind a chart, folded away."""
    fields = CELL_FIELDS.get(figure.number)
    if fields is None:
        return ""
    grids = "".join(
        _cells(cells, field, f"{_place(where)}: {FIELD_TITLES[field]}")
        for field in fields
        for where, cells in by_place(rows).items()
    )
    return f"<details><summary>Cell by cell</summary>{grids}</details>"


def _cells(rows: Sequence[Row], field: str, title: str) -> str:
    ratios = list(dict.fromkeys(row["r"] for row in rows))
    lines = []
    for fraction in dict.fromkeys(row["fraction"] for row in rows):
        line = {row["r"]: row for row in rows if row["fraction"] == fraction}
        v = short(float(next(iter(line.values()))["v"]))
        cells = "".join(_cell(float(line[r][field])) for r in ratios if r in line)
        lines.append(f"<tr><td>{fraction}</td><td>{v}</td>{cells}</tr>")
    head = "".join(f"<th>r = {r:g}</th>" for r in ratios)
    return (
        f"<table><caption>{escape(title)}</caption>"
        f"<tr><th>trained on</th><th>v</th>{head}</tr>{''.join(lines)}</table>"
    )


def _cell(value: float) -> str:
    side = "below" if value < 1 else "above"
    return f'<td class="{side}">{value:.3f}</td>'
