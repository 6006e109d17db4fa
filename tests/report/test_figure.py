"""Charts by name, and the same charts drawn by matplotlib."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw
from poolwise.errors import MissingExtraError, UsageError
from poolwise.formats.labelled import TARGETS, digits_log
from tests.support import samples
from tests.support.messages import refused
from tests.support.periods import daily, daily_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

patches = pytest.importorskip("matplotlib.patches", reason="the extra `papers`")


def texts(figure: Figure) -> dict[str, tuple[float, float]]:
    """Place of each label."""
    (axes,) = figure.axes
    return {label.get_text(): label.get_position() for label in axes.texts}


def circles(figure: Figure) -> list[tuple[float, float]]:
    (axes,) = figure.axes
    return [p.get_center() for p in axes.patches if isinstance(p, patches.Circle)]


def test_dots_are_where_the_axis_says() -> None:
    evaluation = samples.demo()
    figure = pw.draw_figure(evaluation.chart("estimates"), width=5.0)
    places = texts(figure)
    ticks = {float(t): x for t, (x, _) in places.items() if t.replace(".", "").isdigit()}
    (low, left), (high, right) = min(ticks.items()), max(ticks.items())
    result = evaluation["candidate"].estimates
    middle = {name: y for name, (_, y) in places.items()}
    for name, estimate in result.items():
        label = next(text for text in middle if text.split(" ")[0] == name)
        (x,) = [x for x, y in circles(figure) if abs(y - middle[label]) < 1]
        value = low + (x - left) * (high - low) / (right - left)
        assert value == pytest.approx(estimate.value, abs=0.005 * (high - low))


@pytest.mark.parametrize("width", [3.25, 6.3])
def test_text_has_one_size_at_every_width(width: float) -> None:
    figure = pw.draw_figure(samples.demo().chart("logs"), width=width)
    (axes,) = figure.axes
    assert figure.get_figwidth() == width
    sizes = {round(float(label.get_fontsize()), 1) for label in axes.texts}
    assert sizes == {8.1}


def test_every_chart_is_drawn_with_all_its_words() -> None:
    course = pw.evaluate(daily_log(daily(days=3)), "t")
    by_name = {**samples.grave().charts(), "course": course.chart("course")}
    for name, chart in by_name.items():
        figure = pw.draw_figure(chart)
        assert len(texts(figure)) > 2, name
        figure.canvas.draw()


def test_a_dollar_is_a_letter() -> None:
    evaluation = pw.evaluate(digits_log(), {"$1 or $2": "p_candidate", "b": "p_large"})
    pw.draw_figure(evaluation.chart("targets")).canvas.draw()
    assert r"\$1 or \$2" in texts(pw.draw_figure(evaluation.chart("targets")))


def test_without_matplotlib_a_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with refused(MissingExtraError):
        pw.draw_figure(samples.demo().chart("logs"))


@pytest.mark.parametrize("width", [0, -1.0, float("nan"), float("inf")])
def test_a_width_is_positive(width: float) -> None:
    with refused(UsageError):
        pw.draw_figure(samples.demo().chart("logs"), width=width)


def test_a_chart_has_the_name_of_its_section_and_its_target() -> None:
    evaluation = pw.evaluate(digits_log(), {**TARGETS, "old": "p_medium"})
    by_name = evaluation.charts()
    for name, target, numbered in (
        ("weights", "old", "weights-02"),
        ("weights", "", "weights-01"),
        ("targets", "old", "targets"),
    ):
        assert evaluation.chart(name, target).to_dict() == by_name[numbered].to_dict()
    one = pw.backtest(digits_log())
    assert one.chart("backtest").to_dict() == one.charts()["backtest"].to_dict()


@pytest.mark.parametrize(
    ("name", "target"),
    [("segments", ""), ("course", "old"), ("weight", ""), ("weights", "odl")],
)
def test_a_chart_that_is_not_there_is_refused(name: str, target: str) -> None:
    evaluation = pw.evaluate(digits_log(), {**TARGETS, "old": "p_medium"})
    with refused(UsageError):
        evaluation.chart(name, target)


def test_segments_have_a_chart() -> None:
    rng = np.random.default_rng(2)
    rows: dict[str, Any] = daily(2_000, 2)
    rows["country"] = rng.choice(["de", "fr"], 2_000)
    log = pw.Log(pa.table(rows), logger="logger", reward="reward", propensities="p_{logger}")
    figure = pw.draw_figure(pw.evaluate(log, "t", by="country").chart("segments"))
    assert {"de", "fr"} <= set(texts(figure))
