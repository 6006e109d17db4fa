"""Tables of results: one set for the terminal, the notebook and the page.

Every table is built from the nested dictionary that `to_dict` of a result returns, and
holds text only; the functions of `text` write the numbers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from io import StringIO
from textwrap import fill
from typing import TYPE_CHECKING, Literal

from poolwise.diagnosis.causes import SHOWN, group_findings, rest_text
from poolwise.errors import name_target
from poolwise.report.sentence import Facts, find_recommended, rows_text, single_log_error
from poolwise.text import (
    count_text,
    in_units,
    interval_text,
    p_text,
    percent,
    short,
    signed_percent,
    unit_text,
    with_error,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import jinja2
    from rich.console import Console, RenderableType

WIDTH = 80
LABEL = 41  # letters of a row label that a terminal shows
STYLES = {"alarm": "bold red", "warning": "yellow", "note": "cyan"}
MIXTURE_LABEL = "(mixture)"  # label of the row of all loggers together
BEST_SPLIT = "(best split)"  # source of the best split in the dictionary of a plan
UNKNOWN = "–"
VERDICTS = {
    "better": "better",
    "worse": "worse",
    "undecided": "not significant",
    "unreliable": "unreliable",
    "identical": "same policy",
    "": UNKNOWN,
}


@dataclass(frozen=True)
class Grid:
    """A table of text: title, header and rows; a header may hold line breaks."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def rich(self) -> RenderableType:
        """Return the table as a rich renderable."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            box=box.SIMPLE_HEAD,
            title=Text(self.title, style="bold") if self.title else None,
            title_justify="left",
            pad_edge=False,
        )
        for index, name in enumerate(self.header):
            side: Literal["left", "right"] = "left" if index == 0 else "right"
            table.add_column(Text(name), justify=side, overflow="fold")
        for label, row in zip(_short_labels([r[0] for r in self.rows]), self.rows, strict=True):
            table.add_row(Text(label), *map(Text, row[1:]))
        return table


@cache
def templates() -> jinja2.Environment:
    """Return the templates of this package; they escape every text."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("poolwise.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return environment


def _short_labels(labels: Sequence[str]) -> list[str]:
    """Cut the middle out of long labels, unless two labels would become equal.

    >>> _short_labels(["the policy of the first week of January, retrained", "b"])
    ['the policy of the fi…f January, retrained', 'b']
    """
    half = LABEL // 2
    cut = [s if len(s) <= LABEL else f"{s[:half]}…{s[-half:]}" for s in labels]
    return cut if len(set(cut)) == len(set(labels)) else list(labels)


def finding_text(warning: Facts) -> str:
    """Return the text of a finding, which names the target that it concerns."""
    about = (str(warning.get(kind, "")) for kind in ("target", "metric"))
    return name_target(str(warning["message"]), *about)


def show(grids: Sequence[Grid], warnings: Sequence[Facts], console: Console) -> None:
    """Print tables, then findings."""
    from rich.text import Text

    for grid in grids:
        console.print(grid.rich())
    groups = group_findings(warnings)
    for group in groups[:SHOWN]:
        label = (f"{group.severity} ({group.code}): ", STYLES[group.severity])
        console.print(Text.assemble(label, f"{group.text} {group.also}".strip()))
    if rest := rest_text(groups):
        console.print(Text(rest))


def as_text(
    grids: Sequence[Grid],
    warnings: Sequence[Facts] = (),
    sentences: Sequence[str] = (),
    opening: Sequence[str] = (),
) -> str:
    """Return sentences, tables and findings as plain text, 80 columns wide."""
    from rich.console import Console

    out = StringIO()
    console = Console(
        file=out, width=WIDTH, color_system=None, highlight=False, force_jupyter=False
    )
    show(grids, warnings, console)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    wrapped = [fill(sentence, WIDTH, break_long_words=False) for sentence in opening]
    return "\n\n".join([*wrapped, "\n".join(lines).strip("\n"), *sentences])


def as_html(
    grids: Sequence[Grid],
    warnings: Sequence[Facts] = (),
    sentences: Sequence[str] = (),
    opening: Sequence[str] = (),
    picture: str = "",
) -> str:
    """Return sentences, a picture, tables and findings as HTML for a notebook."""
    template = templates().get_template("notebook.html")
    groups = group_findings(warnings)
    return template.render(
        opening=opening,
        picture=picture,
        grids=grids,
        findings=groups[:SHOWN],
        rest=rest_text(groups),
        sentences=sentences,
    )


def as_markdown(
    grids: Sequence[Grid],
    warnings: Sequence[Facts] = (),
    sentences: Sequence[str] = (),
    opening: Sequence[str] = (),
) -> str:
    """Return sentences, tables and findings as Markdown, for pull requests and summaries."""
    parts = [f"**{_in_markdown(sentence)}**" for sentence in opening]
    for grid in grids:
        parts += [f"### {_in_markdown(grid.title)}"] if grid.title else []
        lines = [grid.header, ["---", *["--:"] * (len(grid.header) - 1)], *grid.rows]
        parts.append("\n".join(f"| {' | '.join(map(_in_markdown, line))} |" for line in lines))
    groups = group_findings(warnings)
    shown = [
        f"- **{g.severity}** `{g.code}`: {_in_markdown(f'{g.text} {g.also}'.strip())}"
        for g in groups[:SHOWN]
    ]
    parts += ["\n".join(shown)] if shown else []
    parts += [text for text in (rest_text(groups), *map(_in_markdown, sentences)) if text]
    return "\n\n".join(parts) + "\n"


def _in_markdown(text: str) -> str:
    r"""Write a text so that it shows as it is in Markdown, on one line.

    >>> print(_in_markdown("a|b*\n<i>c_d"))
    a\|b\* &lt;i>c\_d
    """
    escaped = text.replace("\n", " ").replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_|\[\]])", r"\\\1", escaped) if text != "--:" else text


def evaluation_tables(evaluation: Facts) -> list[Grid]:
    """Return the tables of each target of an evaluation, in reading order."""
    return [
        grid
        for t in evaluation["targets"]
        for grid in (estimates(evaluation, t), *_overlap_tables(evaluation, t))
    ]


def _overlap_tables(evaluation: Facts, target: Facts) -> list[Grid]:
    """Return the tables of the logs and of the weights, which a click log lacks."""
    if not target["loggers"]:
        return []
    return [logs(evaluation, target), weights(target), *agreement(target)]


def main_table(evaluation: Facts) -> Grid:
    """Return the estimates of the only target, or the recommended one of each."""
    targets = evaluation["targets"]
    return side_by_side(evaluation) if targets[1:] else estimates(evaluation, targets[0])


def estimates_table(entries: Sequence[Facts]) -> Grid:
    """Return estimates with their intervals."""
    rows = [[str(e["estimator"]), *with_interval(e["value"], e)] for e in entries]
    return Grid("", ["estimator", "estimate", _interval_header(entries)], rows)


def estimates(evaluation: Facts, target: Facts) -> Grid:
    """Return the estimates of one target; a star marks the recommended one."""
    plain = estimates_table(target["estimates"])
    header, rows = list(plain.header), [list(row) for row in plain.rows]
    if len(rows) > 1:
        header[0] = "estimator (★ recommended)"
        best = target["estimates"].index(find_recommended(target))
        rows[best][0] += " ★"
    title = f"{target['target']}: {rows_text(evaluation)}"
    if "periods" in target and any(e["assumes_fixed"] for e in target["estimates"]):
        title += "; † for policies fixed beforehand"
        for row, e in zip(rows, target["estimates"], strict=True):
            row[0] += " †" if e["assumes_fixed"] else ""
    if any("support" in e for e in target["estimates"]):
        header.append("support")
        for row, e in zip(rows, target["estimates"], strict=True):
            row.append(percent(min(1.0, e["support"])))
    if "truth" in target:
        header.append("covers truth")
        title += f"; its true value is {target['truth']:.4f}"
        for row, e in zip(rows, target["estimates"], strict=True):
            row.append("yes" if e["lower"] <= target["truth"] <= e["upper"] else "no")
    return Grid(title, header, rows)


def logs(evaluation: Facts, target: Facts) -> Grid:
    """Return rows, share and divergence of each log, and errors with the log left out."""
    by_logger = {i["logger"]: i for i in evaluation["loggers"]}
    per_request = evaluation.get("rows_per_request")
    errors = {e["estimator"]: e["std_error"] for e in target["estimates"]}
    left_out = [e for e in errors if any(_error_key(e) in i for i in target["loggers"])]
    header = ["logger", f"{unit_text(per_request)}s", "mean\nreward", "share", "divergence"]
    header += [f"{estimator} ±\nwithout it" for estimator in left_out]
    rows = []
    for entry in target["loggers"]:
        log = by_logger[entry["logger"]]
        rows_of = count_text(in_units(log["rows"], per_request))
        row = [entry["logger"], rows_of, _short(log["mean_reward"])]
        row += [_percent(entry.get("best_share", math.nan)), _short(entry["divergence"])]
        rows.append([*row, *(_loss_text(entry, e, errors[e]) for e in left_out)])
    return Grid("Logs", header, rows)


def _error_key(estimator: str) -> str:
    return f"{estimator}_std_error_without"


def _loss_text(entry: Facts, estimator: str, error: float) -> str:
    """Write the standard error without a log, and its relative increase.

    >>> _loss_text({"naive_std_error_without": 0.03}, "naive", 0.02)
    '0.03 (+50%)'
    """
    without = entry.get(_error_key(estimator), math.nan)
    if not (math.isfinite(without) and 0 < error < math.inf):
        return _short(without)
    return f"{short(without)} ({without / error - 1:+.0%})"


def weights(target: Facts) -> Grid:
    """Return size, tail and support of the weights against each logger and their mixture."""
    header = ["logger", "effective\nrows", "mean\nweight", "largest\nweight"]
    header += ["largest\nshare", "tail\nindex", "unsupported"]
    rows = [
        [
            label,
            _effective(entry),
            _short(entry["mean_weight"]),
            _short(entry["largest_weight"]),
            _percent(entry["largest_share"]),
            _tail_text(entry),
            _percent(entry["unsupported"]),
        ]
        for label, entry in covers(target)
    ]
    return Grid("Weights", header, rows)


def _effective(entry: Facts) -> str:
    """Write the effective rows, and how many rows decide the estimate if these are few.

    >>> _effective({"effective_rows": 406.2, "decisive_rows": 4})
    '406 (4 decisive)'
    """
    text = _count(entry["effective_rows"])
    decisive = entry.get("decisive_rows")
    return text if decisive is None else f"{text} ({decisive} decisive)"


def covers(target: Facts) -> list[tuple[str, Facts]]:
    """Return the overlap of each logger and of their mixture, with its label."""
    entries = [(str(i["logger"]), i) for i in target["loggers"]]
    return entries + ([(MIXTURE_LABEL, target["mixture"])] if "mixture" in target else [])


def _tail_text(entry: Facts) -> str:
    """Write the tail index, marked where it exceeds the threshold for these rows."""
    index = entry["tail_index"]
    if index is None:
        return "?"
    if entry["tail_discrete"]:
        return "none"
    return f"{index:.2f}{' heavy' if index > entry['tail_threshold'] else ''}"


def agreement(target: Facts) -> list[Grid]:
    """Estimate of each log by itself, and the tests of agreement."""
    single = [
        [i["logger"], with_error(i["value"], single_log_error(i))]
        for i in target["loggers"]
        if "value" in i
    ]
    tests = [
        [c["name"], _short(c["statistic"]), p_text(c["p_value"])] for c in target["checks"]
    ]
    of_logs = Grid("Single logs", ["logger", "single-log estimate"], single)
    of_tests = Grid("Tests of agreement", ["test", "statistic", "p-value"], tests)
    return [grid for grid in (of_logs, of_tests) if grid.rows]


def side_by_side(evaluation: Facts) -> Grid:
    """Return the recommended estimate of every target, the highest first."""
    best = [(t, e) for t in evaluation["targets"] if (e := find_recommended(t)) is not None]
    best.sort(key=lambda pair: -pair[1]["value"])
    header = ["target", "estimator", "estimate", _interval_header([e for _, e in best])]
    rows = [
        [str(t["target"]), str(e["estimator"]), *with_interval(e["value"], e)] for t, e in best
    ]
    return Grid("Recommended estimates", header, rows)


def metrics_table(evaluation: Facts) -> Grid:
    """Return one row for each metric and target, with the difference from the baseline."""
    metrics, baseline = evaluation["metrics"], evaluation["baseline"]
    baseline = baseline["name"] if isinstance(baseline, dict) else baseline
    entries = [t for m in metrics for t in m["targets"]]
    several = len({t["target"] for t in entries if t["target"] != baseline}) > 1
    known = [t for t in entries if t["estimator"]]
    header = ["metric", *["target"] * several, "estimate", _interval_header(known)]
    other = baseline or "the best"
    header += [f"relative to\n{other}", "simultaneous\ninterval" if several else "interval"]
    rows = []
    for metric in metrics:
        for entry in metric["targets"]:
            if entry["target"] == baseline:
                continue
            row = [metric_label(metric), *[entry["target"]] * several]
            estimate = [UNKNOWN, UNKNOWN]
            if entry["estimator"]:
                estimate = with_interval(entry["value"], entry)
            rows.append([*row, *estimate, *relative_text(entry.get("difference"))])
    return Grid(f"Metrics: {rows_text(evaluation)}", header, rows)


def distribution_tables(distribution: Facts) -> list[Grid]:
    """Return the quantiles of each target, or the probabilities where there are none."""
    level = f"{100 * distribution['level']:g}% interval"
    several = len({row["target"] for row in distribution["thresholds"]}) > 1
    header = ["target"] * several
    if distribution["quantiles"]:
        rows = [
            [
                *[q["target"]] * several,
                percent(q["share"]),
                _short(q["value"]),
                f"[{_short(q['lower'])}, {_short(q['upper'])}]",
            ]
            for q in distribution["quantiles"]
        ]
        names = [*header, "quantile", "reward", f"simultaneous\n{level}"]
        return [Grid("Quantiles of the reward", names, rows)]
    rows = [
        [
            *[p["target"]] * several,
            _short(p["threshold"]),
            with_error(p["probability"], p["std_error"]),
            interval_text(p["lower"], p["upper"], p["std_error"]),
        ]
        for p in distribution["thresholds"]
    ]
    names = [*header, "reward\nat most", "probability", f"simultaneous\n{level}"]
    return [Grid("Distribution of the reward", names, rows)]


def metric_label(metric: Facts) -> str:
    """Write the name of a metric, with an arrow if lower is better.

    >>> metric_label({"metric": "latency", "better": "lower"})
    'latency ↓'
    """
    return f"{metric['metric']} ↓" if metric["better"] == "lower" else str(metric["metric"])


def relative_text(difference: Facts | None) -> list[str]:
    """Write a relative difference and its interval, or the difference where it has none.

    >>> relative_text({"relative": 0.164, "relative_lower": 0.1, "relative_upper": 0.23})
    ['+16.4%', '+10.0% to +23.0%']
    """
    if difference is None:
        return [UNKNOWN, UNKNOWN]
    if difference.get("relative") is None:
        return with_interval(difference["difference"], difference)
    value, lower, upper = (
        signed_percent(difference[f"relative{end}"]) for end in ("", "_lower", "_upper")
    )
    return [value, f"{lower} to {upper}"]


def comparison_tables(comparison: Facts) -> list[Grid]:
    """Return the ranking, then paired differences from the baseline or the best target."""
    return [ranking(comparison), differences(comparison)]


def ranking(comparison: Facts) -> Grid:
    """Return the targets in the order of their estimates."""
    header = ["target", "estimate", simultaneous(comparison)]
    header += ["group", "better\nthan", "worse\nthan"]
    rows = []
    for entry in comparison["targets"]:
        row = [entry["target"], *with_interval(entry["value"], entry), str(entry["group"])]
        rows.append([*row, *(str(len(entry[k])) for k in ("better_than", "worse_than"))])
    return Grid(f"{comparison['estimator']}: {rows_text(comparison)}", header, rows)


def differences(comparison: Facts) -> Grid:
    """Return the difference of each target from the baseline or, without one, the best."""
    header = ["target", "difference", simultaneous(comparison), "adjusted\np", "verdict"]
    rows = [
        [
            pair["target"],
            *with_interval(pair["difference"], pair),
            p_text(pair["adjusted"]),
            VERDICTS[pair["verdict"]],
        ]
        for pair in comparison["differences"]
    ]
    other = comparison["baseline"] or f"the best, {comparison['targets'][0]['target']}"
    return Grid(f"Difference from {other} (paired)", header, rows)


def simultaneous(result: Facts) -> str:
    """Return the header of simultaneous intervals."""
    return f"simultaneous\n{100 * result['level']:g}% interval"


def plan_tables(plan: Facts) -> list[Grid]:
    """Return the rows that each source needs, then the best split of new rows."""
    sources: dict[str, list[Facts]] = {}  # options of each source, one for each estimator
    for option in plan["options"]:
        sources.setdefault(option["source"], []).append(option)
    best = sources[BEST_SPLIT]
    names = [option["estimator"] for option in best]
    sizes = {i["logger"]: i["rows"] for i in plan["loggers"]}
    total, per_request = sum(sizes.values()), plan.get("rows_per_request")
    units = f"{unit_text(per_request)}s"
    title = (
        f"{plan['target']}: new {units} for a {100 * plan['level']:g}% half-width of "
        f"{short(plan['half_width'])}; the log has {count_text(in_units(total, per_request))}"
    )
    needed = [
        [
            source,
            *(
                needed_rows(*(o[key] for key in NEEDED), per_request=per_request)
                for o in options
            ),
        ]
        for source, options in sources.items()
    ]
    now = ["half-width now", *(short(option["half_width_now"]) for option in best)]
    split = [
        [logger, percent(rows / total), *(_share_text(option, logger) for option in best)]
        for logger, rows in sizes.items()
    ]
    return [
        Grid(title, [f"new {units} from", *names], [*needed, now]),
        Grid(f"Best split of the new {units}", ["logger", "share now", *names], split),
    ]


NEEDED = ("rows", "half_width_now", "lower", "upper")  # arguments of `needed_rows`


def needed_rows(
    rows: float,
    half_width_now: float,
    lower: float,
    upper: float,
    *,
    per_request: int | None = None,
) -> str:
    """Write a number of new rows or requests; unknown if the present rows show no spread.

    >>> needed_rows(1200.0, 0.1, 1100.0, 1300.0), needed_rows(1200.0, 0.1, 900.0, math.inf)
    ('1,200 (1,100 to 1,300)', '1,200 (at least 900)')
    >>> needed_rows(0.0, 0.1, 0.0, 0.0), needed_rows(math.inf, 0.1, math.inf, math.inf)
    ('reached', 'never')
    """
    if math.isinf(rows):
        return "never" if math.isfinite(half_width_now) else "unknown"
    if not rows:
        return "reached"
    needed, least, most = (
        count_text(in_units(number, per_request)) for number in (rows, lower, upper)
    )
    if math.isfinite(upper):
        return f"{needed} ({least} to {most})"
    return f"{needed} (at least {least})" if lower else needed


def _share_text(option: Facts, logger: str) -> str:
    if not 0 < option["rows"] < math.inf:
        return UNKNOWN
    return percent(round(option["split"].get(logger, 0.0), 3))


def _interval_header(estimates: Sequence[Facts]) -> str:
    return f"{100 * estimates[0]['level']:g}% interval" if estimates else "interval"


def with_interval(value: float, entry: Facts) -> list[str]:
    """Return an estimate and its interval as text."""
    error = entry["std_error"]
    return [with_error(value, error), interval_text(entry["lower"], entry["upper"], error)]


def _short(number: float) -> str:
    return UNKNOWN if math.isnan(number) else short(number)


def _count(number: float) -> str:
    return count_text(number) if math.isfinite(number) else UNKNOWN


def _percent(share: float) -> str:
    return percent(share) if math.isfinite(share) else UNKNOWN
