"""Tables: the same ones in the terminal, the notebook and the page."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from poolwise.report import charts
from poolwise.report.page import page
from poolwise.report.tables import (
    Grid,
    agreement,
    as_html,
    as_text,
    comparison_tables,
    evaluation_tables,
    plan_tables,
    show,
)
from tests.support import samples
from tests.support.samples import SCRIPT

MAKERS = {"demo": samples.demo, "twenty": samples.twenty, "grave": samples.grave}
ALARM = {"code": "x", "severity": "alarm", "message": "[bold]words"}


class Tables(HTMLParser):
    """Caption, header and rows of each table of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[tuple[str, list[list[str]]]] = []
        self._cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - the parser's signature
        if tag == "table":
            self.tables.append(("", []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in {"caption", "th", "td"}:
            self._cell = []

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        if self._cell is None or tag not in {"caption", "th", "td"}:
            return
        text = "".join(self._cell)
        if tag == "caption":
            self.tables[-1] = (text, [])
        else:
            self.tables[-1][1][-1].append(text)
        self._cell = None


def content(grid: Grid) -> tuple[str, list[list[str]]]:
    return grid.title, [list(grid.header), *map(list, grid.rows)]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MAKERS))
def test_page_and_notebook_have_the_tables_of_the_terminal(name: str) -> None:
    evaluation = MAKERS[name]()
    grids = [*map(content, evaluation.grids())]
    assert Tables(evaluation._repr_html_()).tables == [*map(content, evaluation.brief())]
    if evaluation.comparison is not None:
        grids += map(content, evaluation.comparison.grids())
    on_page = Tables(page(evaluation.to_dict()).split("<script")[0]).tables
    assert sorted(on_page) == sorted(grids)


def test_the_demo_in_tables() -> None:
    estimates, logs, weights, single, tests, tested = samples.demo().grids()
    assert estimates.title == "candidate: 10,500 rows of 3 loggers; its true value is 0.6795"
    assert estimates.header[-1] == "covers truth"
    assert estimates.rows[0] == ["calibrated ★", "0.6771 ± 0.0040", "[0.6690, 0.6849]", "yes"]
    assert [row[0] for row in estimates.rows if "★" in row[0]] == ["calibrated ★"]
    assert logs.rows[0][:5] == ["small", "6,000", "0.258", "5.4%", "12.7"]
    assert logs.rows[0][5:] == ["0.00541 (+36%)", "0.0109 (+19%)"]
    assert weights.rows[0] == ["small", "237", "1.05", "348", "5.5%", "0.78 heavy", "0%"]
    assert weights.rows[-1][:2] == ["(mixture)", "6,074"]
    assert single.header[1] == "single-log estimate"
    assert single.rows[0] == ["small", "0.679 ± 0.060"]
    assert tests.rows[0] == ["mean balanced weight is 1 (z)", "-0.775", "0.44"]
    assert tested.title == "Predicted from the other logs"
    assert tested.rows[0][:4] == ["small", "100%", "0.2645 ± 0.0043", "0.2578"]


def test_a_single_log_of_few_effective_rows_does_not_tell_its_error() -> None:
    facts = json.loads(samples.demo().to_json())
    (target,) = facts["targets"]
    logs = zip(target["loggers"], (49.9, 50.0), strict=False)
    few = {**target, "loggers": [{**log, "effective_rows": rows} for log, rows in logs]}
    single, _ = agreement(few)
    assert single.rows == [["small", "0.679 ± unknown"], ["medium", "0.681 ± 0.016"]]
    drawn = json.dumps(charts.agreement(few).to_dict())
    assert drawn.count("(unbounded)") == 1


def test_one_estimator_has_no_star() -> None:
    facts = json.loads(samples.demo().to_json())
    (target,) = facts["targets"]
    one = {**target, "estimates": target["estimates"][:1]}
    estimates = evaluation_tables({**facts, "targets": [one]})[0]
    assert estimates.header[0] == "estimator"
    assert estimates.rows[0][0] == "calibrated"


def compared(baseline: str | None) -> dict[str, Any]:
    """'x' is above 'y' by 0.5 ± 0.2."""
    numbers = {"value": 1.5, "std_error": 0.1, "lower": 1.25, "upper": 1.75, "group": 1}
    x, y = {**numbers, "target": "x"}, {**numbers, "value": 1.0, "target": "y"}
    gap: dict[str, Any] = {"target": "x", "difference": 0.5, "std_error": 0.2, "lower": 0.1}
    gap |= {"upper": 0.9, "p_value": 0.01, "adjusted": 0.02, "verdict": "better"}
    if baseline is None:
        gap |= {"target": "y", "difference": -0.5, "lower": -0.9, "upper": -0.1}
        gap["verdict"] = "worse"
    return {
        "estimator": "calibrated",
        "baseline": baseline,
        "level": 0.9,
        "targets": [
            {**x, "better_than": ["y"], "worse_than": []},
            {**y, "better_than": [], "worse_than": ["x"]},
        ],
        "differences": [gap],
        "loggers": [{"logger": "a", "rows": 1200}],
    }


def test_differences_from_a_baseline() -> None:
    ranking, differences = comparison_tables(compared("y"))
    assert ranking.title == "calibrated: 1,200 rows of 1 logger"
    assert ranking.header[2] == "simultaneous\n90% interval"
    assert ranking.rows[0] == ["x", "1.50 ± 0.10", "[1.25, 1.75]", "1", "1", "0"]
    assert differences.title == "Difference from y (paired)"
    assert differences.rows == [["x", "0.50 ± 0.20", "[0.10, 0.90]", "0.020", "better"]]


def test_differences_from_the_best() -> None:
    differences = comparison_tables(compared(None))[1]
    assert differences.title == "Difference from the best, x (paired)"
    assert differences.rows == [["y", "-0.50 ± 0.20", "[-0.90, -0.10]", "0.020", "worse"]]


def test_a_plan_in_tables() -> None:
    def option(estimator: str, source: str, rows: float, now: float) -> dict[str, Any]:
        numbers = {"rows": rows, "half_width_now": now, "split": {"a": 0.25, "b": 0.75}}
        numbers |= {"lower": 0.9 * rows, "upper": 1.1 * rows}
        return {"estimator": estimator, "source": source, **numbers}

    options = [
        option("balanced", "(as now)", math.inf, 0.2),
        option("balanced", "(best split)", 1200.0, 0.2),
        option("naive", "(as now)", math.inf, math.inf),
        option("naive", "(best split)", math.inf, math.inf),
        option("weighted", "(as now)", 0.0, 0.05),
        option("weighted", "(best split)", 0.0, 0.05),
    ]
    loggers = [{"logger": "a", "rows": 100}, {"logger": "b", "rows": 300}]
    facts = {"target": "new", "level": 0.95, "half_width": 0.1, "loggers": loggers}
    rows, split = plan_tables({**facts, "options": options})
    assert rows.title == "new: new rows for a 95% half-width of 0.1; the log has 400"
    assert rows.rows == [
        ["(as now)", "never", "unknown", "reached"],
        ["(best split)", "1,200 (1,080 to 1,320)", "unknown", "reached"],
        ["half-width now", "0.2", "∞", "0.05"],
    ]
    assert split.rows == [["a", "25.0%", "25.0%", "–", "–"], ["b", "75.0%", "75.0%", "–", "–"]]


def test_markup_is_escaped_in_a_notebook() -> None:
    grid = Grid(SCRIPT, [SCRIPT, "n"], [[SCRIPT, "1"]])
    text = as_html([grid], [{**ALARM, "code": SCRIPT, "message": SCRIPT}], [SCRIPT])
    assert SCRIPT not in text
    assert Tables(text).tables == [content(grid)]


def test_long_labels_fit_a_terminal() -> None:
    names = [f"logger {k} of a system that has been in production for long" for k in range(20)]
    rows = [[name, "1,000,000", "98.3%", "8.34e+09", "391", "1.3", "14.4"] for name in names]
    header = ["logger", "rows", "share", "divergence", "effective\nrows", "mean", "max"]
    text = as_text([Grid("", header, rows)], [ALARM])
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 3 * len(names) + 5
    assert all(f"logger {k} of a" in text for k in range(20))


def test_labels_that_differ_in_the_middle_stay_whole() -> None:
    alike = [[name, "1"] for name in ("x" * 40 + "1" + "y" * 40, "x" * 40 + "2" + "y" * 40)]
    assert "1yyy" in as_text([Grid("", ["logger", "rows"], alike)])


def test_only_the_label_of_a_finding_is_coloured() -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system="standard")
    show([], [ALARM], console)
    assert out.getvalue() == "\x1b[1;31malarm (x): \x1b[0m[bold]words\n"
