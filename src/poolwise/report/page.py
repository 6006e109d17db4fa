"""The page: the report as one HTML file that loads nothing, and the charts as pictures.

The text is in `page.html`; this module computes what the template fills in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from poolwise.diagnosis.causes import find_cause, group_findings
from poolwise.errors import UsageError, did_you_mean
from poolwise.files import write_whole
from poolwise.report import charts, tables
from poolwise.report.breakdown import (
    backtest_chart,
    backtest_table,
    periods,
    periods_chart,
    plain_interval,
    segment_tables,
    segments_chart,
)
from poolwise.report.card import STATES, bar, change_text, value_texts
from poolwise.report.charts import PALETTE, picture
from poolwise.report.clicks import pair_table, position_chart, position_table
from poolwise.report.sentence import (
    Facts,
    answer,
    find_recommended,
    leading,
    rivals,
    rows_text,
    select_findings,
    truth_text,
)
from poolwise.report.tables import finding_text
from poolwise.report.weights_chart import has_panels, weights

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.report.charts import Chart

FORMULAS = {
    "naive": "The mean, over all rows, of reward × weight. The weight of a row is the "
    "probability of its action under the target over that under the logger that wrote it.",
    "balanced": "The same with balanced weights: the target's probability over that of the "
    "mixture of all loggers, each in proportion to its rows.",
    "weighted": "The naive estimate of each log by itself, combined in the shares of least "
    "variance: in proportion to rows over divergence.",
    "self-normalised": "The mean weighted reward over the mean weight; log by log if only own "
    "propensities are known.",
    "calibrated": "The balanced estimate, corrected by regression on means that are known "
    "without rewards: the mean weight of the target and of each logger against the mixture "
    "is 1.",
    "doubly-robust": "The mean prediction of a reward model under the target, plus the "
    "balanced mean of the model's residuals.",
    "doubly-robust-naive": "Doubly robust, with the weights of naive.",
    "doubly-robust-weighted": "Doubly robust, with the shares of weighted.",
    "period-balanced": "In each period the mean of reward × weight, with the target's "
    "probability over that of the mixture of the loggers that were live in the period, and "
    "rewards centred at the estimate of earlier periods; periods in shares that do not "
    "depend on rewards.",
    "period-dr": "In each period the mean prediction of a reward model of earlier periods, "
    "plus the weighted mean of its residuals; weights and shares as for period-balanced.",
    "direct-method": "The mean prediction of a reward model under the target, without any "
    "correction.",
}
FORMULAS_OF_CLICKS = {
    "naive": "The mean, over all requests, of the clicks, each times the examination of the "
    "position at which the target shows the item over that of the position at which it was "
    "shown.",
    "balanced": "The same with the mean examination under all rankers, each in proportion to "
    "its requests, in place of that of the position at which the item was shown.",
    "weighted": "The naive estimate of each ranker's requests by itself, combined in the "
    "shares of least variance.",
}
PARTS = {  # causes of findings that concern a section
    "estimates": ("probabilities", "support", "training", "rows", "copies", "mixture"),
    "logs": ("support", "copies"),
    "weights": ("few rows", "probabilities"),
    "agreement": ("time", "probabilities"),
    "course": ("training",),
}
CONDITIONS = {  # of charts that not every evaluation has
    "segments": "`by` (--by)",
    "course": "a log with `period` (--period)",
    "backtest": "several loggers that the other logs can predict",
    "targets": "several targets",
    "differences": "several targets with a comparison",
    "position-bias": "a log of clicks",
}
COLOURS = {value: f"var(--{name})" for name, value in PALETTE.items()}


def page(
    evaluation: Facts,
    *,
    command: str = "",
    question: Mapping[str, object] | None = None,
    shown: int = 2,
    opening: Mapping[str, str] | None = None,
    first: Sequence[tables.Grid] = (),
) -> str:
    """Return the whole report as HTML.

    Args:
        evaluation: The dictionary of an evaluation.
        command: The command that reproduces the numbers.
        question: Date, log and targets for an audit, and the text of a question file.
        shown: Findings of one cause that are not folded away.
        opening: Title, answer, severity and first section ("estimates" or "comparison"), in
            place of those of the evaluation.
        first: Tables that come before all others.
    """
    best = find_recommended(leading(evaluation))
    names = [e["estimator"] for t in evaluation["targets"] for e in t["estimates"]]
    names = list(dict.fromkeys(names))
    template = tables.templates().get_template("page.html")
    found = show_findings(evaluation["warnings"], shown)
    return template.render(
        {"card": _card(evaluation), **_page_header(evaluation)} | dict(opening or {}),
        reward=evaluation.get("reward", ""),
        grave=[f for f in found if f["severity"] != "note"],
        notes=[f for f in found if f["severity"] == "note"],
        pointers=_pointers(found),
        first=first,
        level="" if best is None else f"{100 * best['level']:g}%",
        truth_known=any("truth" in t for t in evaluation["targets"]),
        targets=_target_tables(evaluation),
        comparison=_comparison(evaluation),
        segments=_segments(evaluation, shown),
        backtest=_backtest(evaluation["backtest"]) if "backtest" in evaluation else None,
        bias=_bias(evaluation["position_bias"]) if "position_bias" in evaluation else None,
        side_by_side=tables.comparison_tables(evaluation["comparison"])
        if "comparison" in evaluation
        else [tables.side_by_side(evaluation)],
        findings=found,
        formulas=formulas(names, clicks="position_bias" in evaluation),
        fingerprint=evaluation["fingerprint"],
        versions=list_versions(),
        command=command,
        question=question,
        specs={name: _spec(chart) for name, chart in all_charts(evaluation).items()},
        vega=_vega(),
    )


def backtest_page(
    backtest: Facts,
    *,
    command: str = "",
    question: Mapping[str, object] | None = None,
    shown: int = 2,
) -> str:
    """Return the report of a backtest as HTML; the arguments are those of `page`."""
    severities = {w["severity"] for w in backtest["warnings"]}
    template = tables.templates().get_template("backtest.html")
    return template.render(
        title=f"{len(backtest['loggers'])} loggers: backtest",
        severity=next((s for s in ("alarm", "warning") if s in severities), "sound"),
        backtest=_backtest(backtest),
        findings=show_findings(backtest["warnings"], shown),
        versions=list_versions(),
        command=command,
        question=question,
        specs={"backtest": _spec(backtest_chart(backtest))},
        vega=_vega(),
    )


def position_page(
    bias: Facts, *, command: str = "", question: Mapping[str, object] | None = None
) -> str:
    """Return the report of a position bias as HTML; the arguments are those of `page`."""
    template = tables.templates().get_template("clicks.html")
    return template.render(
        title=f"{len(bias['loggers'])} rankers: position bias",
        bias=_bias(bias),
        versions=list_versions(),
        command=command,
        question=question,
        specs={"position-bias": _spec(position_chart(bias))},
        vega=_vega(),
    )


def _bias(bias: Facts) -> dict[str, object]:
    """Return the sentence and the tables of a position bias."""
    grids = [position_table(bias), *([pair_table(bias)] if bias["pairs"] else [])]
    return {"sentence": bias["sentence"], "level": f"{100 * bias['level']:g}%", "grids": grids}


def _page_header(evaluation: Facts) -> dict[str, str]:
    """Return the title and the answer, with the severity that colours it."""
    target = leading(evaluation)
    names = [str(t["target"]) for t in evaluation["targets"]]
    subject = names[0] if len(names) == 1 else f"{len(names)} targets"
    severities = {w["severity"] for w in select_findings(evaluation, target["target"])}
    origin = f"From {rows_text(evaluation)}."
    return {
        "title": f"{subject}: off-policy evaluation",
        "begins_with": "estimates",
        "answer": answer(evaluation),
        "severity": next((s for s in ("alarm", "warning") if s in severities), "sound"),
        "lead": " ".join(filter(None, [origin, rivals(evaluation), truth_text(target)])),
    }


def _card(evaluation: Facts) -> dict[str, object] | None:
    """Return the leading target against the baseline; None without a difference."""
    target = leading(evaluation)
    best, gap = find_recommended(target), target.get("difference")
    if best is None or gap is None or gap["verdict"] == "unreliable":
        return None
    line = {**gap, "value": best["value"], "baseline_value": best["value"] - gap["difference"]}
    value, other = value_texts(line)
    alarmed = any(
        w["severity"] == "alarm" for w in select_findings(evaluation, target["target"])
    )
    verdict = tables.VERDICTS[gap["verdict"]]
    return {
        "name": target["target"],
        "baseline": evaluation["baseline"]["name"],
        "verdict": "not shown" if alarmed else verdict,
        "state": "open" if alarmed else STATES.get(gap["verdict"], "open"),
        "value": value,
        "other": other,
        "change": change_text(line),
        "bar": bar(line),
    }


def _pointers(findings: Sequence[Facts]) -> dict[str, list[Facts]]:
    """Return the warnings and alarms that concern each section of the report."""
    found: dict[str, list[Facts]] = {part: [] for part in PARTS}
    for finding in findings:
        cause = find_cause(finding)
        for part, causes in PARTS.items():
            if cause in causes and finding["severity"] != "note":
                found[part].append(finding)
    return found


def _target_tables(evaluation: Facts) -> list[dict[str, object]]:
    """Return the tables of each target, and the suffix of the names of its charts."""
    leader = leading(evaluation)
    return [
        {
            "name": str(target["target"]),
            "suffix": f"-{number:02d}",
            "leading": target is leader,
            "estimates": tables.estimates(evaluation, target),
            "logs": tables.logs(evaluation, target),
            "left_out": any(name.endswith("_without") for i in target["loggers"] for name in i),
            "weights": tables.weights(target),
            "agreement": tables.agreement(target),
            "periods": periods(target, evaluation.get("rows_per_request")),
            "has_histogram": has_panels(target),
            "typical": _typical(target),
        }
        for number, target in enumerate(evaluation["targets"], 1)
    ]


def _typical(target: Facts) -> str:
    ends = target.get("typical")
    return plain_interval(ends["lower"], ends["upper"]) if ends else ""


def _comparison(evaluation: Facts) -> dict[str, object] | None:
    """Return the texts of the comparison, with alarms that no finding repeats."""
    if "comparison" not in evaluation:
        return None
    comparison = evaluation["comparison"]
    told = {(w["message"], w.get("target")) for w in evaluation["warnings"]}
    told |= {(message, None) for message, _ in told}  # one that all targets have appears once
    alarms = [
        finding_text(w)
        for w in comparison["warnings"]
        if w["severity"] == "alarm" and (w["message"], w.get("target")) not in told
    ]
    return {
        "sentence": comparison["sentence"],
        "level": f"{100 * comparison['level']:g}%",
        "other": repr(comparison["baseline"] or comparison["targets"][0]["target"]),
        "alarms": alarms,
    }


def _segments(evaluation: Facts, shown: int) -> dict[str, object] | None:
    """Return the sentence, the tables and the findings of the segments."""
    if "segments" not in evaluation:
        return None
    segments = evaluation["segments"]
    level = f"{100 * segments['level']:g}%"
    grids = segment_tables(segments)
    findings = show_findings(segments["warnings"], shown)
    return {**segments, "level": level, "grids": grids, "findings": findings}


def _backtest(backtest: Facts) -> dict[str, object]:
    """Return the sentence and the table of a backtest."""
    level = f"{100 * backtest['level']:g}%"
    return {"sentence": backtest["sentence"], "level": level, "grid": backtest_table(backtest)}


def show_findings(warnings: Sequence[Facts], shown: int) -> list[dict[str, object]]:
    """Group findings by cause; of many, most are folded away."""
    groups = [(g, (g.text, *g.others)) for g in group_findings(warnings)]
    return [
        {
            "severity": g.severity,
            "code": g.code,
            "shown": texts[:shown],
            "folded": texts[shown:],
        }
        for g, texts in groups
    ]


def formulas(estimators: Iterable[str], *, clicks: bool = False) -> list[tuple[str, str]]:
    """Return the definition of each estimator of this package, skipping others.

    Args:
        estimators: Names of estimators.
        clicks: Whether the log has clicks of rankers in place of probabilities.

    >>> [name for name, _ in formulas(["self-normalised", "mine"])]
    ['self-normalised']
    """
    texts = FORMULAS_OF_CLICKS if clicks else FORMULAS
    return [(name, texts[name]) for name in estimators if name in texts]


def list_versions() -> list[str]:
    """Return the names and versions of poolwise and of what it computes with."""
    return [f"{name} {_version(name)}" for name in ("poolwise", "duckdb", "numpy")]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(version unknown)"


class Charts(dict[str, "Chart"]):
    """Charts by name; those of the first target have a name with and without its number.

    >>> Charts({"logs": 1})["logs-01"], Charts({"logs-01": 1, "logs-02": 2})["logs"]
    (1, 1)
    """

    def __missing__(self, name: str) -> Chart:
        for other in (f"{name}-01", name.removesuffix("-01")):
            if other in self:
                return self[other]
        needs = f": it requires {CONDITIONS[name]}" if name in CONDITIONS else ""
        raise UsageError(f"there is no chart {name!r}{needs}; charts are {', '.join(self)}")


def pick_chart(
    by_name: Mapping[str, Chart], name: str, targets: Sequence[str], target: str
) -> Chart:
    """Return the chart of a name; of one of several targets, if the target is named."""
    if target and target not in targets:
        raise UsageError(f"there is no target {target!r}{did_you_mean(target, targets)}")
    numbered = f"{name}-{targets.index(target) + 1:02d}" if target else name
    if target and f"{name}-01" in by_name:
        return by_name[numbered]
    return Charts(by_name)[name]


def all_charts(evaluation: Facts) -> Charts:
    """Return every chart by name; with several targets, names of target charts are numbered."""
    by_name = Charts(estimates=charts.estimates(evaluation))
    targets: Sequence[Facts] = evaluation["targets"]
    per_request = evaluation.get("rows_per_request")
    if len(targets) > 1:
        by_name["targets"] = charts.side_by_side(evaluation)
    if "segments" in evaluation:
        by_name["segments"] = segments_chart(evaluation["segments"])
    if "backtest" in evaluation:
        by_name["backtest"] = backtest_chart(evaluation["backtest"])
    if "position_bias" in evaluation:
        by_name["position-bias"] = position_chart(evaluation["position_bias"])
    if "comparison" in evaluation:
        by_name["differences"] = charts.differences(evaluation)
    for number, target in enumerate(targets, 1):
        suffix = f"-{number:02d}" if len(targets) > 1 else ""
        if not target["loggers"]:
            continue
        by_name[f"logs{suffix}"] = charts.logs(evaluation, target)
        by_name[f"weights{suffix}"] = weights(target)
        by_name[f"agreement{suffix}"] = charts.agreement(target, per_request)
        if "periods" in target:
            by_name[f"course{suffix}"] = periods_chart(target, per_request)
    return by_name


def save_charts(by_name: Mapping[str, Chart], folder: Path) -> list[Path]:
    """Write each chart as SVG and PNG, and return the paths."""
    import vl_convert

    written = []
    for name, chart in by_name.items():
        spec = picture(chart)
        svg, png = (folder / f"{name}.{kind}" for kind in ("svg", "png"))
        write_whole(svg, vl_convert.vegalite_to_svg(spec).encode())
        write_whole(png, vl_convert.vegalite_to_png(spec, scale=2))
        written += [svg, png]
    return written


def _spec(chart: Chart) -> object:
    """Return a chart as JSON data whose colours are variables of the style sheet."""
    spec: dict[str, Any] = {**chart.to_dict(validate=False), "background": "transparent"}
    spec["config"] = {**spec["config"], "font": "system-ui, sans-serif"}
    return _apply_theme(spec)


def _apply_theme(spec: object, key: str = "") -> object:
    """Replace palette colours by variables: light, dark and print each define theirs."""
    if isinstance(spec, Mapping):
        # data stay unchanged: a label may look like a colour
        return {
            k: v if k in {"data", "datasets"} else _apply_theme(v, k) for k, v in spec.items()
        }
    if isinstance(spec, list):
        return [_apply_theme(value, key) for value in spec]
    if isinstance(spec, str) and (key in {"range", "value"} or key.lower().endswith("color")):
        return COLOURS.get(spec, spec)
    return spec


@cache
def _vega() -> str:
    """Return Vega and its dependencies as one script."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
