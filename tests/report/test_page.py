"""The page: one file, escaped, the same bytes each time; and its charts."""

from __future__ import annotations

import html
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

from poolwise import compare, evaluate
from poolwise.cli.commands import app
from poolwise.errors import UsageError
from poolwise.formats.labelled import digits_log, digits_path
from poolwise.report.page import all_charts, page, save_charts
from poolwise.report.sentence import answer
from tests.support import samples
from tests.support.messages import refused
from tests.support.reference import log_of, random_table
from tests.support.samples import DROP, SCRIPT

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.log.log import Log

pytestmark = pytest.mark.slow  # all of them together take seconds
LARGEST = 3_000_000  # bytes
ORDER = [
    "Findings",
    "Estimates",
    "Backtest",
    "Which logs help",
    "Weights",
    "Do the logs agree?",
    "Targets side by side",
    "Notes",
    "Method",
]
MAKERS = {"demo": samples.demo, "twenty": samples.twenty, "grave": samples.grave}


class Seen(HTMLParser):
    """Elements, their attributes, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - the parser's signature
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data


@cache
def text_of(name: str) -> str:
    return page(MAKERS[name]().to_dict())


@pytest.fixture(params=list(MAKERS))
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.mark.slow
def test_one_small_file_that_loads_nothing(name: str) -> None:
    text = text_of(name)
    assert len(text.encode()) < LARGEST
    seen = Seen(text)
    loading = {"src", "href", "srcset", "data", "action", "poster"}
    found = [a for _, a in seen.elements if loading & set(a)]
    assert [a for a in found if not str(a.get("href", "")).startswith("#finding-")] == []
    assert {tag for tag, _ in seen.elements} & {
        "link",
        "img",
        "iframe",
        "object",
        "base",
    } == set()
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    assert not re.search(r"@import|url\(|https?:", style[1])
    policies = [a["content"] for t, a in seen.elements if t == "meta" and "http-equiv" in a]
    assert [str(p).startswith("default-src 'none'") for p in policies] == [True]


@pytest.mark.slow
def test_the_same_numbers_give_the_same_bytes(name: str) -> None:
    assert page(MAKERS[name]().to_dict()) == text_of(name)


@pytest.mark.slow
def test_another_process_gives_the_same_bytes(tmp_path: Path) -> None:
    there = tmp_path / "there.html"
    program = (
        "import sys; from poolwise import evaluate; from poolwise.formats.labelled import *\n"
        "evaluate(digits_log(), TARGETS, truth=digits_truth(), which_logs=True)"
        ".save(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", program, there], check=True)
    samples.demo().save(tmp_path / "here.html")
    assert (tmp_path / "here.html").read_bytes() == there.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here.html", "there.html"]


@pytest.mark.slow
def test_the_answer_comes_first_and_the_sections_in_order(name: str) -> None:
    found, text = MAKERS[name]().to_dict(), text_of(name)
    titles = [html.unescape(t) for t in re.findall(r"<h2>(.*?)</h2>", text.split("<script")[0])]
    severities = {w["severity"] for w in found["warnings"]}  # type: ignore[attr-defined]
    absent = {
        "Targets side by side": name != "twenty",
        "Findings": severities <= {"note"},
        "Notes": "note" not in severities,
    }
    assert titles == [t for t in ORDER if not absent.get(t)]
    assert answer(found) in html.unescape(text.split("<h2>")[0])


@pytest.mark.slow
def test_every_chart_has_its_place_and_its_specification(name: str) -> None:
    seen = Seen(text_of(name))
    places = [a["data-spec"] for t, a in seen.elements if a.get("class") == "chart" and t]
    specs = [a["id"] for t, a in seen.elements if a.get("type") == "application/json" and t]
    assert sorted(map(str, places)) == sorted(map(str, specs))
    assert len(specs) == len(set(specs)) == {"twenty": 4 + 3 * 20}.get(name, 5)


def test_names_are_text_and_nothing_else() -> None:
    text = page(samples.grave().to_dict(), command=f"poolwise evaluate --target {SCRIPT}=t")
    assert SCRIPT not in text
    seen = Seen(text)
    for name in (SCRIPT, DROP):
        assert name in seen.text
    assert [a for t, a in seen.elements if t == "script" and "type" not in a] == [{}, {}]
    specs = [s for s in seen.scripts if s.startswith("{")]
    assert [s for s in specs if "<" in s or ">" in s] == []
    charts = list(map(json.loads, specs))
    assert len(charts) == 5
    assert any(SCRIPT in labels(chart) for chart in charts)


def labels(value: Any) -> set[str]:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return set().union(*map(labels, value.values()))
    if isinstance(value, list):
        return set().union(*map(labels, value))
    return {value} if isinstance(value, str) else set()


def test_a_label_that_looks_like_a_colour_stays_itself() -> None:
    found = json.loads(json.dumps(samples.demo().to_dict()))
    for entry in (found["loggers"][0], found["targets"][0]["loggers"][0]):
        entry["logger"] = "#1b6ca8"
    seen = Seen(page(found))
    logs = next(json.loads(s) for s in seen.scripts if '"of the rows"' in s)
    assert "#1b6ca8" in labels(logs)
    assert "var(--accent)" in labels(logs)


def test_findings_say_what_to_do_and_the_gravest_first() -> None:
    seen = Seen(text_of("grave"))
    kinds = [str(a["class"]) for t, a in seen.elements if t == "li" and "class" in a]
    assert kinds == sorted(kinds, key=["alarm", "warning", "note"].index)
    for warning in samples.grave().warnings:
        assert str(warning["message"]) in seen.text


DEGENERATE: dict[str, tuple[dict[str, int], dict[str, Any], str]] = {
    "one row each": ({"a": 1, "b": 1}, {}, "t"),
    "own propensities only": ({"a": 30, "b": 30}, {"propensities": None}, "t"),
    "the same reward": ({"a": 30, "b": 30}, {"reward": "1.0"}, "t"),
    "no reward": ({"a": 30, "b": 30}, {"reward": "0.0"}, "t"),
    "the target is the logger": ({"a": 30, "b": 30}, {}, "p"),
    "one log says nothing": ({"a": 30, "b": 30}, {}, "CASE logger WHEN 'a' THEN 0 ELSE t END"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", list(DEGENERATE))
def test_a_poor_log_has_a_page_too(case: str) -> None:
    counts, roles, target = DEGENERATE[case]
    log: Log = log_of(random_table(np.random.default_rng(62), counts), **roles)
    evaluation = evaluate(log, {"new": target, "same": target, "other": "p"})
    text = Seen(page(evaluation.to_dict())).text
    assert not re.search(r"\bnan\b|None", text)
    for chart in evaluation.charts().values():
        json.dumps(chart.to_dict(), allow_nan=False)


def drawn(chart: Any, key: str) -> list[dict[str, Any]]:  # noqa: ANN401 - altair's own
    """The values of a chart that have a field, without words at its edge."""
    every: list[list[dict[str, Any]]] = list(chart.to_dict()["datasets"].values())
    return next(v for v in every if v and key in v[0] and "edge" not in v[0])


def test_an_interval_that_the_axis_cuts_is_marked() -> None:
    chart = samples.demo().charts()["estimates"].to_dict()
    words = [p for data in chart["datasets"].values() for p in data if "edge" in p]
    assert [(p["estimator"], p["text"]) for p in words] == [("naive", "0.832 →")]


def test_estimators_of_several_targets_have_names_within_the_chart() -> None:
    near = {"one": "p_candidate", "two": "0.99 * p_candidate + 0.01 * p_large"}
    chart = evaluate(digits_log(), near).charts()["estimates"]
    (*_, names) = chart.to_dict()["layer"]
    bars = drawn(chart, "low")
    low, high = chart.to_dict()["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert {p["label"] for p in bars if p["end"] < p["high"]} == set()
    assert all(low < p["end"] < low + 0.86 * (high - low) for p in bars)
    assert [p["label"] for p in bars if "→" in p["label"]] == ["→ naive"] * 2
    assert names["encoding"]["text"]["field"] == "label"


def test_every_row_is_in_a_bar_or_in_words() -> None:
    target = samples.grave()[SCRIPT]
    bars = drawn(samples.grave().charts()["weights"], "left")
    names = drawn(samples.grave().charts()["weights"], "note")
    for label, overlap in {**target.loggers, "(mixture)": target.mixture}.items():
        assert overlap is not None
        zeros = sum(b.rows for b in overlap.histogram if b.upper == 0)
        total = sum(b.rows for b in overlap.histogram)
        told = [float(b["share"].split("%")[0]) for b in bars if b["row"] == label]
        assert sum(told) == pytest.approx(100 * (1 - zeros / total), abs=0.05 * len(told))
        assert {n["note"] for n in names if n["row"] == label} == {f"{zeros / total:.1%} are 0"}
        right = max(b["right"] for b in bars if b["row"] == label)
        assert right / 2 <= overlap.largest_weight < right


def test_weights_that_nobody_counted_are_shown_by_their_mean_and_the_largest() -> None:
    found = json.loads(json.dumps(samples.demo().to_dict()))
    for entry in (*found["targets"][0]["loggers"], found["targets"][0]["mixture"]):
        entry["histogram"] = []
    chart = all_charts(found)["weights"]
    assert [v["size"] for v in drawn(chart, "size")][:2] == ["1.05", "348"]
    assert "the largest weight bounds the influence of one row" in Seen(page(found)).text


@pytest.mark.slow
def test_the_comparison_in_the_page_is_that_of_the_evaluation() -> None:
    evaluation = samples.twenty()
    comparison = evaluation.comparison
    assert comparison is not None
    seen = Seen(text_of("twenty")).text
    assert comparison.sentence in seen
    first, *others = comparison.ranking
    lines = drawn(evaluation.charts()["differences"], "low")
    assert [line["row"] for line in lines] == [r.target for r in others]
    for line in lines:
        pair = comparison.difference(first.target, line["row"])
        assert line["x"] == -pair.value
        assert (line["low"], line["high"]) == (-pair.interval.upper, -pair.interval.lower)
        assert (line["kind"] == "recommended") == (pair.verdict == "better")
        assert line["estimate"] in seen
    assert {line["kind"] for line in lines} <= {"recommended", "other"}


@pytest.mark.slow
def test_without_a_comparison_the_page_says_how_to_get_one() -> None:
    found = {k: v for k, v in samples.twenty().to_dict().items() if k != "comparison"}
    assert "poolwise compare" in Seen(page(found)).text
    assert "differences" not in all_charts(found)


def test_an_alarm_of_the_comparison_alone_is_told_beside_it() -> None:
    log = replace(digits_log(), trained_on={"large": ["small"]})
    found = evaluate(log, {"new": "p_candidate", "old": "p_medium"}, "calibrated").to_dict()
    comparison: Any = found["comparison"]
    alarm = comparison["warnings"][0]
    assert alarm["code"] == "trained-on-own-log"
    assert alarm["message"] in Seen(page(found)).text


def test_the_method_names_the_fingerprint(name: str) -> None:
    assert MAKERS[name]().fingerprint in Seen(text_of(name)).text


@pytest.mark.slow
def test_charts_are_objects_that_can_be_changed() -> None:
    charts = samples.demo().charts()
    assert list(charts) == ["estimates", "backtest", "logs", "weights", "agreement"]
    assert charts["logs"].properties(title="mine").to_dict()["title"] == "mine"
    assert list(samples.twenty().charts())[:6] == [
        "estimates",
        "targets",
        "backtest",
        "differences",
        "logs-01",
        "weights-01",
    ]


def test_charts_are_saved_as_pictures(tmp_path: Path) -> None:
    chart = samples.grave().charts()["estimates"]
    svg, png = save_charts({"estimates": chart}, tmp_path / "new")
    assert svg.read_text("utf-8").startswith("<svg")
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_place_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with refused(UsageError):
        samples.demo().save(tmp_path / "file" / "report.html")
    with refused(UsageError):
        samples.demo().save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_the_command_line_writes_the_report_and_how_to_repeat_it(tmp_path: Path) -> None:
    report, charts = tmp_path / "report.html", tmp_path / "charts"
    log = str(digits_path())
    roles = ["--reward", "correct", "--logger", "policy", "--propensity", "p"]
    command = ["evaluate", log, *roles, "--target", "new=p_candidate", "--level", "0.9"]
    output = ["--html", str(report), "--charts", str(charts)]
    run = CliRunner().invoke(app, [*command, *output])
    assert run.exit_code == 0, run.output
    text = Seen(report.read_text("utf-8")).text
    (line,) = [line for line in text.splitlines() if line.startswith("poolwise evaluate")]
    assert sorted(shlex.split(line)) == sorted(["poolwise", *command])  # in any order
    assert len(list(charts.iterdir())) == 8


def test_a_comparison_has_a_report_that_begins_with_it(tmp_path: Path) -> None:
    report, charts = tmp_path / "report.html", tmp_path / "charts"
    targets = ["--target", "new=p_candidate", "--target", "old=p_medium"]
    roles = ["--reward", "correct", "--logger", "policy"]
    roles += ["--propensities", "small=p_small,medium=p_medium,large=p_large"]
    command = ["compare", str(digits_path()), *roles, *targets, "--baseline", "large"]
    run = CliRunner().invoke(app, [*command, "--html", str(report), "--charts", str(charts)])
    assert run.exit_code == 0, run.output
    comparison = compare(
        digits_log(), {"new": "p_candidate", "old": "p_medium"}, baseline="large"
    )
    text = report.read_text("utf-8")
    titles = re.findall(r"<h2>(.*?)</h2>", text.split("<script")[0])
    assert titles[:2] == ["Targets side by side", "Estimates"]
    assert comparison.sentence in html.unescape(text.split("<h2>")[0])
    assert html.unescape(Seen(text).text).count(comparison.sentence) == 1
    assert run.output.startswith(" ".join(comparison.sentence.split()[:5]))
    assert "difference of every other target from 'large'" in Seen(text).text
    assert shlex.join(["poolwise", "compare"]) in Seen(text).text
    assert len(list(charts.glob("*.svg"))) == 3 + 3 * 3
    lines = drawn(comparison.charts()["differences"], "low")
    assert {line["row"]: line["x"] for line in lines} == {
        name: comparison.difference(name).value for name in ("new", "old")
    }


def test_a_comparison_into_a_folder_that_does_not_exist_reads_no_row(tmp_path: Path) -> None:
    command = ["compare", "no.parquet", "--reward", "r", "--target", "a=p", "--target", "b=q"]
    run = CliRunner().invoke(app, [*command, "--html", str(tmp_path / "no" / "report.html")])
    assert isinstance(run.exception, UsageError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["r.txt", "r.pdf", "r.json", "r"])
def test_a_saved_report_is_called_html(tmp_path: Path, name: str) -> None:
    with refused(UsageError):
        samples.demo().save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def thirty() -> Any:  # noqa: ANN401 - the dictionary of an evaluation
    rng = np.random.default_rng(3)
    counts = {f"v{k:02d}": 20 for k in range(30)}
    log = log_of(random_table(rng, counts), propensities="p_{logger}")
    return evaluate(log, {"new": "t"}).to_dict()


def test_thirty_loggers_make_low_lines_and_folded_tables(thirty: Any) -> None:  # noqa: ANN401
    charts = {name: chart.to_dict() for name, chart in all_charts(thirty).items()}
    assert charts["logs"]["height"] == 30 * 16
    assert charts["weights"]["height"] == 31 * 16
    seen = Seen(page(thirty)).text
    assert "Logs: 30 lines" in seen
    assert "Weights: 31 lines" in seen
    assert "the largest weight bounds the influence of one row" in seen
    assert "lines" not in Seen(text_of("demo")).text.split("Lines are")[0]


def test_an_axis_of_shares_fits_the_data(thirty: Any) -> None:  # noqa: ANN401
    shares = [v["x"] for v in drawn(all_charts(thirty)["logs"], "share")]
    text = json.dumps(all_charts(thirty)["logs"].to_dict())
    assert max(shares) < 0.5
    assert json.dumps([0, 1.1 * max(shares)]) in text


def test_estimators_have_names_and_the_recommended_one_a_star() -> None:
    one = drawn(samples.demo().charts()["estimates"], "low")
    assert [p["row"] for p in one][:2] == ["calibrated ★", "naive"]
    several = samples.twenty().charts()["estimates"].to_dict()
    labels = {p["label"] for rows in several["datasets"].values() for p in rows if "label" in p}
    assert {"calibrated ★", "naive", "weighted"} <= labels
    assert "label" in json.dumps([layer["encoding"].get("text") for layer in several["layer"]])
