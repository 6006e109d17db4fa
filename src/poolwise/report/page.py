"""Page: the report as one HTML file that needs nothing but itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from poolwise.report import tables
from poolwise.report.charts import OF_TARGET, all_charts
from poolwise.report.marks import PALETTE
from poolwise.report.sentence import (
    Facts,
    answer,
    findings_of,
    leading,
    recommended,
    rivals,
    truth_text,
)
from poolwise.text import interval_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolwise.report.marks import Chart

FORMULAS = {
    "naive": "The mean, over all rows, of reward × weight. The weight of a row is the "
    "probability of its action under the target over that under the logger that wrote it.",
    "balanced": "The same with balanced weights: the target's probability over that of the "
    "mixture of all loggers, each in proportion to its rows.",
    "weighted": "The naive estimate of each log by itself, combined in the shares of least "
    "variance: in proportion to rows over divergence.",
    "self-normalised": "The balanced estimate over the mean of the balanced weights.",
    "calibrated": "The balanced estimate, corrected by regression on what is known without "
    "any rewards: the mean weight of the target and of each logger against the mixture is 1.",
    "doubly-robust": "The mean prediction of a reward model under the target, plus the "
    "balanced mean of what the model got wrong.",
    "doubly-robust-naive": "Doubly robust, with the weights of naive.",
    "doubly-robust-weighted": "Doubly robust, with the shares of weighted.",
    "direct-method": "The mean prediction of a reward model under the target, and nothing "
    "that would correct it.",
}
TERMS = (
    "± is one standard error.",
    "Divergence is the variance of one weighted reward: how little one row of a log tells.",
    "Share is the part of a log in the weighting of least variance.",
    "The fewest logs whose shares reach 90% are said to carry the answer.",
    "Effective rows are as many rows of equal weight as would be worth as much.",
    "The tail index says how heavy the tail of the weights is: from 0.5, without variance.",
    "It is 'none' where there are few distinct weights, '?' where it was not computed.",
    "Unsupported is how often the target plays what the logger never does.",
    "What the best logger earned is the mean reward of its own log, taken as exact.",
    "To compare with a logger in pairs, with its uncertainty: poolwise compare --baseline.",
    "Targets of the same group were not shown to differ.",
)
FINGERPRINT = (
    "A digest of the rows, rewards and weights of every logger and target, to eight digits: it "
    "is the same for the same rows, whatever engine read them and in whatever order."
)
ASSUMPTIONS = (
    "The probabilities of the loggers are those with which the actions were drawn.",
    "Every action that the target may play could have been logged by some logger.",
    "Contexts and rewards come from the same source in every log; see the tests of agreement.",
    "Rows, or clusters of rows where the log names them, do not influence each other.",
)


def formulas(estimators: Iterable[str]) -> list[tuple[str, str]]:
    """What each estimator computes, where it is one of ours.

    >>> formulas(["self-normalised", "mine"])
    [('self-normalised', 'The balanced estimate over the mean of the balanced weights.')]
    """
    return [(name, FORMULAS[name]) for name in dict.fromkeys(estimators) if name in FORMULAS]


def versions() -> list[str]:
    """What computed the numbers."""
    return [f"{name} {_version(name)}" for name in ("poolwise", "duckdb", "numpy")]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(version unknown)"


POLICY = (  # nothing may be loaded, from anywhere
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
LICENCE = (
    "Vega, Vega-Lite, Vega-Embed: BSD 3-Clause, "
    "University of Washington Interactive Data Lab and contributors"
)

FEW = 2  # findings of one kind that are shown at once


def page(found: Facts, *, command: str = "") -> str:
    """The whole report as HTML."""
    charts = all_charts(found)
    body = [
        _estimates(found),
        *_of_each_target(found),
        *([_targets(found)] if len(found["targets"]) > 1 else []),
        _findings(found["warnings"]),
        _method(found, command),
    ]
    specs = "".join(_spec(name, chart) for name, chart in charts.items())
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(_title(found))}</title>\n"
        f"<style>\n{_file('style.css')}</style>\n</head>\n<body>\n"
        f"{_answer(found)}<main>\n{''.join(body)}</main>\n"
        f"<footer>Made by {escape(versions()[0])}.</footer>\n"
        f"{specs}<script>/* {LICENCE} */\n{_vega()}</script>\n"
        f"<script>\n{_file('draw.js')}</script>\n</body>\n</html>\n"
    )


def _title(found: Facts) -> str:
    names = [str(t["target"]) for t in found["targets"]]
    what = names[0] if len(names) == 1 else f"{len(names)} targets"
    return f"{what}: off-policy evaluation"


def _answer(found: Facts) -> str:
    target = leading(found)
    grave = [str(w["severity"]) for w in findings_of(found, target["target"])]
    kind = next((k for k in ("alarm", "warning") if k in grave), "sound")
    rows = sum(i["rows"] for i in found["loggers"])
    loggers = len(found["loggers"])
    lead = f"From {rows:,} rows of {loggers} logger{'' if loggers == 1 else 's'}."
    known = truth_text(target)
    more = " ".join(filter(None, [lead, rivals(found), known]))
    return (
        f"<header>\n<h1>{escape(_title(found))}</h1>\n"
        f'<p class="answer {kind}">{escape(answer(found))}</p>\n'
        f'<p class="lead">{escape(more)}</p>\n</header>\n'
    )


def _estimates(found: Facts) -> str:
    known = any("truth" in t for t in found["targets"])
    keys = '<span class="key accent"></span> recommended (★) '
    keys += '<span class="key muted"></span> other estimators '
    keys += '<span class="key second"></span> true value' if known else ""
    level = recommended(leading(found))
    text = f"Lines are {100 * level['level']:g}% intervals. " if level is not None else ""
    if len(found["targets"]) > 1:
        names = dict.fromkeys(e["estimator"] for t in found["targets"] for e in t["estimates"])
        text += f"Of each target, from above: {escape(', '.join(names))}. "
    chart = _figure("estimates", "Estimates with their intervals", f"{text}{keys}")
    table = "".join(tables.estimates(found, t).html() for t in found["targets"])
    if len(found["targets"]) > 1:
        table = _folded("All numbers", table)
    return _section("Estimates", "What each estimator says of the same rows.", chart + table)


def _of_each_target(found: Facts) -> list[str]:
    """Three sections, in which each of several targets has a folder of its own."""
    parts = {
        "logs": ("Which logs help", "A large log of a very different policy may tell little."),
        "weights": ("Weights", "A few large weights make an estimate hang on a few rows."),
        "agreement": ("Do the logs agree?", "Each log alone should tell the same story."),
    }
    fill = {"logs": _logs, "weights": _weights, "agreement": _agreement}
    several = len(found["targets"]) > 1
    made = []
    for part in OF_TARGET:
        body = ""
        for number, target in enumerate(found["targets"], 1):
            chart = f"{part}-{number:02d}" if several else part
            inner = fill[part](found, target, chart)
            shown = target is leading(found)
            body += _folded(str(target["target"]), inner, shown=shown) if several else inner
        made.append(_section(*parts[part], body))
    return made


def _logs(found: Facts, target: Facts, chart: str) -> str:
    caption = (
        "Share of each log in all rows, and in the weighting of least variance. In the table, "
        "'without it' is the standard error that would be left if the log were thrown away."
    )
    figure = _figure(chart, f"Share of each log, {target['target']}", escape(caption))
    return figure + tables.logs(found, target).html()


def _weights(_: Facts, target: Facts, chart: str) -> str:
    counted = any(i["histogram"] for i in target["loggers"])
    caption = (
        "How many rows have weights of which size. The mean weight should be 1 (dashed); bars "
        "and dots far to the right are rows on which much depends."
        if counted
        else "The mean weight should be 1 (dashed); the largest says how much one row can do."
    )
    figure = _figure(chart, f"Weights by logger, {target['target']}", escape(caption))
    return figure + tables.weights(target).html()


def _agreement(_: Facts, target: Facts, chart: str) -> str:
    caption = (
        "Estimate of each log alone, two standard errors to each side, and of all together."
    )
    figure = _figure(chart, f"Estimate of each log, {target['target']}", escape(caption))
    body = figure + "".join(grid.html() for grid in tables.agreement(target))
    if "typical" in target:
        low, high = target["typical"]["lower"], target["typical"]["upper"]
        text = interval_text(low, high, (high - low) / 4)
        body += f"<p>If the logs are periods that differ, a typical one is worth {text}.</p>\n"
    return body


def _targets(found: Facts) -> str:
    title = "Targets side by side"
    if "comparison" in found:
        return _section(title, found["comparison"]["sentence"], _compared(found))
    text = (
        "The recommended estimate of each target, the highest first. Intervals hold for each "
        "target by itself; to say which is better, compare them in pairs on the same rows: "
        "poolwise compare, or poolwise.compare in Python."
    )
    figure = _figure("targets", title, "")
    return _section(title, text, figure + tables.side_by_side(found).html())


def _compared(found: Facts) -> str:
    """Estimates, and differences in pairs, whose intervals hold together."""
    comparison = found["comparison"]
    first = comparison["targets"][0]["target"]
    text = (
        "Estimates from the same rows share their luck, so a difference is surer than its two "
        "ends; and the best of many estimates is also the luckiest. All intervals of a picture "
        f"hold together, at {100 * comparison['level']:g}%; those of differences hold for all "
        "pairs of targets, so that one may pick the best afterwards."
    )
    words = f"Every other target less {first!r}, in pairs: left of the dashed line is worse."
    keys = ' <span class="key accent"></span> shown to differ'
    keys += ' <span class="key muted"></span> not told apart by these rows'
    told = tuple(str(w["message"]) for w in found["warnings"])  # perhaps of one target only
    alarms = [str(w["message"]) for w in comparison["warnings"] if w["severity"] == "alarm"]
    grave = [text for text in alarms if not any(known.endswith(text) for known in told)]
    return (
        f"<p>{escape(text)}</p>\n{_paragraphs(grave)}"
        + _figure("targets", "Targets, the highest first", "Estimates, the highest first.")
        + _figure("differences", f"Differences from {first}", f"{escape(words)}{keys}")
        + "".join(grid.html() for grid in tables.comparison_tables(comparison))
    )


def _findings(warnings: Sequence[Mapping[str, object]]) -> str:
    if not warnings:
        return _section("Findings", "Nothing was found that speaks against these numbers.", "")
    kinds: dict[tuple[str, str], list[str]] = {}
    for w in warnings:
        kinds.setdefault((str(w["severity"]), str(w["code"])), []).append(str(w["message"]))
    items = "".join(_finding(*kind, messages) for kind, messages in kinds.items())
    text = "What to know before relying on the numbers, the gravest first, and what to do."
    return _section("Findings", text, f'<ul class="findings">\n{items}</ul>\n')


def _finding(severity: str, code: str, messages: Sequence[str]) -> str:
    """One kind of finding; where it was made many times, most are folded away."""
    shown, more = messages[:FEW], messages[FEW:]
    folded = _folded(f"{len(more)} more of this kind", _paragraphs(more)) if more else ""
    return (
        f'<li class="{escape(severity)}"><b>{escape(severity)}</b> '
        f"<code>{escape(code)}</code>\n{_paragraphs(shown)}{folded}</li>\n"
    )


def _paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>\n" for text in texts)


def _method(found: Facts, command: str) -> str:
    names = [e["estimator"] for t in found["targets"] for e in t["estimates"]]
    terms = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>\n" for name, text in formulas(names)
    )
    again = (
        f"<h3>The command</h3>\n<pre><code>{escape(command)}</code></pre>\n" if command else ""
    )
    body = (
        f"<h3>Estimators</h3>\n<dl>\n{terms}</dl>\n"
        f"<h3>Words</h3>\n{_list(TERMS)}"
        f"<h3>Assumptions</h3>\n{_list(ASSUMPTIONS)}"
        f"<h3>Fingerprint of the data</h3>\n<p><code>{escape(found['fingerprint'])}</code></p>"
        f"\n<p>{escape(FINGERPRINT)}</p>\n"
        f"<h3>Versions</h3>\n<p>{escape(', '.join(versions()))}</p>\n{again}"
    )
    return _section("Method", "How these numbers were made.", body)


def _section(title: str, text: str, body: str) -> str:
    return (
        f"<section>\n<h2>{escape(title)}</h2>\n"
        f'<p class="lead">{escape(text)}</p>\n{body}</section>\n'
    )


def _folded(title: str, body: str, *, shown: bool = False) -> str:
    start = "<details open>" if shown else "<details>"
    return f"{start}\n<summary>{escape(title)}</summary>\n{body}</details>\n"


def _list(texts: Iterable[str]) -> str:
    return f"<ul>\n{''.join(f'<li>{escape(text)}</li>' for text in texts)}\n</ul>\n"


def _figure(chart: str, label: str, caption: str) -> str:
    """A place for a chart; the caption is markup, the label is not."""
    below = f'<figcaption class="caption">{caption}</figcaption>' if caption else ""
    return (
        f'<figure aria-label="{escape(label)}">\n'
        f'<div class="chart" data-spec="chart-{chart}"></div>\n{below}\n</figure>\n'
    )


def _spec(name: str, chart: Chart) -> str:
    """A chart as data within the page; no text in it can end the element it stands in."""
    clear: dict[str, Any] = {**chart.to_dict(validate=False), "background": "transparent"}
    clear["config"] = {**clear["config"], "font": "system-ui, sans-serif"}
    spec = json.dumps(_themed(clear), allow_nan=False)
    safe = spec.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="chart-{name}">{safe}</script>\n'


COLOURS = {value: f"var(--{name})" for name, value in PALETTE.items()}


def _themed(spec: object, key: str = "") -> object:
    """Colours as variables of the style sheet: light, dark and print each have theirs."""
    if isinstance(spec, Mapping):
        # data keep every text as it is: a label may look like a colour
        return {k: v if k in {"data", "datasets"} else _themed(v, k) for k, v in spec.items()}
    if isinstance(spec, list):
        return [_themed(value, key) for value in spec]
    if isinstance(spec, str) and (key in {"range", "value"} or key.lower().endswith("color")):
        return COLOURS.get(spec, spec)
    return spec


@cache
def _vega() -> str:
    """Vega and what it needs, as one script."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


@cache
def _file(name: str) -> str:
    return (files("poolwise.report") / name).read_text("utf-8")
