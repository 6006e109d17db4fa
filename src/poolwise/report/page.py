"""The page: the report as one HTML file that loads nothing, and the charts as pictures.

The text is in `page.html`; this module computes what the template fills in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from poolwise.errors import UsageError
from poolwise.report import charts, tables
from poolwise.report.backtest import backtest_chart, backtest_table
from poolwise.report.breakdown import (
    periods,
    periods_chart,
    plain_interval,
    segment_tables,
    segments_chart,
)
from poolwise.report.charts import PALETTE, picture
from poolwise.report.sentence import (
    Facts,
    answer,
    findings_of,
    leading,
    recommended,
    rivals,
    rows_text,
    truth_text,
)
from poolwise.report.tables import finding_text
from poolwise.report.weights_chart import has_panels, weights
from poolwise.rows.output import write_whole

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
        shown: Findings of one kind that are not folded away.
        opening: Title, answer, severity and first section ("estimates" or "comparison"), in
            place of those of the evaluation.
        first: Tables that come before all others.
    """
    best = recommended(leading(evaluation))
    names = [e["estimator"] for t in evaluation["targets"] for e in t["estimates"]]
    names = list(dict.fromkeys(names))
    template = tables.templates().get_template("page.html")
    return template.render(
        _header(evaluation) | dict(opening or {}),
        first=first,
        level="" if best is None else f"{100 * best['level']:g}%",
        truth_known=any("truth" in t for t in evaluation["targets"]),
        targets=_targets(evaluation),
        comparison=_comparison(evaluation),
        segments=_segments(evaluation),
        backtest=_backtest(evaluation["backtest"]) if "backtest" in evaluation else None,
        side_by_side=tables.comparison_tables(evaluation["comparison"])
        if "comparison" in evaluation
        else [tables.side_by_side(evaluation)],
        findings=_findings(evaluation["warnings"], shown),
        formulas=formulas(names),
        fingerprint=evaluation["fingerprint"],
        versions=_versions(),
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
        findings=_findings(backtest["warnings"], shown),
        versions=_versions(),
        command=command,
        question=question,
        specs={"backtest": _spec(backtest_chart(backtest))},
        vega=_vega(),
    )


def _header(evaluation: Facts) -> dict[str, str]:
    """Return the title and the answer, with the severity that colours it."""
    target = leading(evaluation)
    names = [str(t["target"]) for t in evaluation["targets"]]
    subject = names[0] if len(names) == 1 else f"{len(names)} targets"
    severities = {w["severity"] for w in findings_of(evaluation, target["target"])}
    origin = f"From {rows_text(evaluation)}."
    return {
        "title": f"{subject}: off-policy evaluation",
        "begins_with": "estimates",
        "answer": answer(evaluation),
        "severity": next((s for s in ("alarm", "warning") if s in severities), "sound"),
        "lead": " ".join(filter(None, [origin, rivals(evaluation), truth_text(target)])),
    }


def _targets(evaluation: Facts) -> list[dict[str, object]]:
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


def _segments(evaluation: Facts) -> dict[str, object] | None:
    """Return the sentence and the tables of the segments."""
    if "segments" not in evaluation:
        return None
    segments = evaluation["segments"]
    level = f"{100 * segments['level']:g}%"
    grids = segment_tables(segments)
    return {**segments, "level": level, "grids": grids}


def _backtest(backtest: Facts) -> dict[str, object]:
    """Return the sentence and the table of a backtest."""
    level = f"{100 * backtest['level']:g}%"
    return {"sentence": backtest["sentence"], "level": level, "grid": backtest_table(backtest)}


def _findings(warnings: Sequence[Facts], shown: int) -> list[dict[str, object]]:
    """Group findings of one kind; of many, most are folded away."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for w in warnings:
        kinds.setdefault((str(w["severity"]), str(w["code"])), []).append(finding_text(w))
    return [
        {"severity": s, "code": code, "shown": texts[:shown], "folded": texts[shown:]}
        for (s, code), texts in kinds.items()
    ]


def formulas(estimators: Iterable[str]) -> list[tuple[str, str]]:
    """Return the definition of each estimator of this package, skipping others.

    >>> [name for name, _ in formulas(["self-normalised", "mine"])]
    ['self-normalised']
    """
    return [(name, FORMULAS[name]) for name in estimators if name in FORMULAS]


def _versions() -> list[str]:
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
        raise UsageError(f"there is no chart {name!r}; charts are {', '.join(self)}")


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
    if "comparison" in evaluation:
        by_name["differences"] = charts.differences(evaluation)
    for number, target in enumerate(targets, 1):
        suffix = f"-{number:02d}" if len(targets) > 1 else ""
        by_name[f"logs{suffix}"] = charts.logs(evaluation, target)
        by_name[f"weights{suffix}"] = weights(target)
        by_name[f"agreement{suffix}"] = charts.agreement(target, per_request)
        if "periods" in target:
            by_name[f"periods{suffix}"] = periods_chart(target, per_request)
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
    return _themed(spec)


def _themed(spec: object, key: str = "") -> object:
    """Replace palette colours by variables: light, dark and print each define theirs."""
    if isinstance(spec, Mapping):
        # data stay unchanged: a label may look like a colour
        return {k: v if k in {"data", "datasets"} else _themed(v, k) for k, v in spec.items()}
    if isinstance(spec, list):
        return [_themed(value, key) for value in spec]
    if isinstance(spec, str) and (key in {"range", "value"} or key.lower().endswith("color")):
        return COLOURS.get(spec, spec)
    return spec


@cache
def _vega() -> str:
    """Return Vega and its dependencies as one script."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
