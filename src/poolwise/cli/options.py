"""Options of the command line: declared once, in groups that the commands share.

A group is a dataclass whose fields are options.  A command takes a group as one parameter;
`group_options` gives typer the flat signature, with one parameter per option.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from poolwise.errors import UsageError
from poolwise.intervals.base import DEFAULT, IntervalName
from poolwise.intervals.student import Sides
from poolwise.log.log import Confounders, OnFault
from poolwise.log.problems import UTC

EngineLike = Any  # as `poolwise.engines` defines it; importing that would import DuckDB
EngineName = Literal["duckdb", "spark"]
FormatName = Literal["decisions", "growthbook", "eppo", "dsjson", "open-bandit"]
Ranking = Literal["cascade", "independent", "whole"]
RewardAt = Literal["step", "end"]

FILES = "Paths or globs (Parquet, CSV, JSON lines), file.duckdb::table, or one SELECT."
Sources = Annotated[list[str], typer.Argument(metavar="LOGS...", help=FILES)]
OptionalSources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LOGS...", help=f"{FILES} Optional with --moments: the name of the table."
    ),
]
Timezone = Annotated[
    str,
    typer.Option(metavar="ZONE", help="Time zone of days and hours, such as Europe/Berlin."),
]
OnFaultOption = Annotated[OnFault, typer.Option(help="Reject bad rows, or drop them.")]
RewardRange = Annotated[
    str | None,
    typer.Option(metavar="LOWER,UPPER", help="Smallest and largest possible reward."),
]
Level = Annotated[float, typer.Option(help="Confidence level of the intervals.")]
Baseline = Annotated[
    str | None, typer.Option(help="Logger or target that the others are compared with.")
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Reward model: ridge, logistic, hist-gradient-boosting, module:attribute or "
        "model.skops.",
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=REWARD",
        help="Another metric: revenue=amount, a ratio 'rpc=amount per click', or with its role "
        "'latency=ms, lower, guard 5%'. Repeatable.",
    ),
]
Margin = Annotated[float, typer.Option(help="Smallest difference that matters to --require.")]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the report, one HTML page.")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print all tables.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
AsMarkdown = Annotated[
    bool,
    typer.Option(
        "--markdown", help="Print Markdown, for a pull request or the summary of a job."
    ),
]


@dataclass(frozen=True, kw_only=True)
class RoleOptions:
    """Options that name the columns of a log and the target policies."""

    reward: Annotated[
        str | None,
        typer.Option(
            help="Column or SQL expression of the reward; some formats have their own."
        ),
    ] = None
    logger: Annotated[str | None, typer.Option(help="Column with the label of the logger.")] = (
        None
    )
    propensity: Annotated[
        str | None,
        typer.Option(
            help="Probability of the logged action under the logger that wrote the row."
        ),
    ] = None
    propensities: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOGGER=COLUMN",
            help="Probability of the logged action under every logger: v1=p_v1,v2=p_v2, or a "
            "pattern of all columns: 'p_{logger}'. Repeatable. A policy in Python is "
            "v1=module:attribute or v1=model.skops. Without any: estimate.",
        ),
    ] = None
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN",
            help="Probability of the logged action under a new policy. Repeatable. A policy in "
            "Python is NAME=module:attribute or NAME=model.skops; a table of actions is "
            'NAME={"a": 0.9, "b": 0.1} or NAME=table.json.',
        ),
    ] = None
    log_probabilities: Annotated[
        bool, typer.Option("--log-probabilities", help="Probabilities are logarithms.")
    ] = False
    densities: Annotated[
        bool,
        typer.Option("--densities", help="Probabilities are densities of a continuous action."),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ClickOptions:
    """Options that name the columns of a log of clicks on ranked lists."""

    request: Annotated[str, typer.Option(help="Column of the request.")]
    click: Annotated[str, typer.Option(help="1 if the shown item was clicked, or 0.")]
    ranks: Annotated[
        list[str],
        typer.Option(
            metavar="RANKER=COLUMN",
            help="Rank of the row's item under every ranker, 0 where it would not show the "
            "item: a=rank_a,b=rank_b, or a pattern: 'rank_{logger}'. Repeatable. The lists of "
            "items, if a row is a request.",
        ),
    ]
    position: Annotated[
        str | None,
        typer.Option(help="Position of the item, from 1; left out if a row is a request."),
    ] = None
    bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POSITION=NUMBER", help="Examination of each position, if it is known."
        ),
    ] = None
    worth: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POSITION=NUMBER",
            help="Number that a click counts, by position; 1 each.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RankerOptions:
    """Options of `clicks` that other commands have, too."""

    logger: Annotated[str | None, typer.Option(help="Column with the label of the ranker.")] = (
        None
    )
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN",
            help="Rank of the row's item under a new ranker. Repeatable. Without one, only the "
            "position bias is printed.",
        ),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(help="Column that groups dependent requests, such as a user id."),
    ] = None
    reader_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Option of DuckDB's file reader, such as delim=;. Repeatable.",
        ),
    ] = None
    baseline: Baseline = None
    by: Annotated[
        str | None, typer.Option(help="Column of segments: the question for each.")
    ] = None
    level: Level = 0.95


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Options about how the rows were drawn and which of them are valid."""

    cluster: Annotated[
        str | None, typer.Option(help="Column that groups dependent rows, such as a user id.")
    ] = None
    period: Annotated[
        str | None,
        typer.Option(
            help="Column of the period, such as a day, if policies learn from earlier ones."
        ),
    ] = None
    trained_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOGGER=LOGGER",
            help="A logger that was trained on another's log: v2=v1. Repeatable.",
        ),
    ] = None
    on_fault: OnFaultOption = "raise"
    reward_range: RewardRange = None


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """Options of rows that are positions of a list, or steps of a session."""

    request: Annotated[
        str | None, typer.Option(help="Column of the request, if its rows are a list.")
    ] = None
    position: Annotated[
        str | None,
        typer.Option(help="Position in the list; left out if a row is a request."),
    ] = None
    ranking: Annotated[
        Ranking | None,
        typer.Option(help="Items that a reward depends on: the items up to its position, ..."),
    ] = None
    session: Annotated[
        str | None, typer.Option(help="Column of the session, if its rows are decisions.")
    ] = None
    step: Annotated[
        str | None, typer.Option(help="Step in the session; left out if a row is a session.")
    ] = None
    reward_at: Annotated[
        RewardAt | None,
        typer.Option(help="Each step has a reward, or the last row has that of the session."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """Options of logs in another format, and of outcomes in another source."""

    format: Annotated[
        FormatName | None,
        typer.Option(help="Format of LOGS, which has the roles of its columns."),
    ] = None
    format_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Argument of the function that reads the format, such as experiment=cta. "
            "Repeatable.",
        ),
    ] = None
    outcomes: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Rows of outcomes, whose column --reward then is."),
    ] = None
    join: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Argument of join_outcomes, such as key=id or window=7 days. Repeatable.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options about policies in Python and about the file reader."""

    action: Annotated[
        str | None,
        typer.Option(help="Column of the logged action; policies in Python require it."),
    ] = None
    action_group: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN|FILE",
            help="Group of each action: a column, or a JSON file of actions and groups. "
            "Probabilities of distributions are summed within groups.",
        ),
    ] = None
    eligible: Annotated[
        str | None, typer.Option(help="Column with the list of actions that a row allows.")
    ] = None
    context: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN,COLUMN",
            help="Columns that policies in Python see; by default all without another role.",
        ),
    ] = None
    mixture: Annotated[
        str | None,
        typer.Option(help="Column of the loggers' average propensity, weighted by rows."),
    ] = None
    estimate_mixture: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Estimate the mixture where propensities are missing: default, a model by "
            "name, module:attribute or model.skops.",
        ),
    ] = None
    confounders: Annotated[
        Confounders | None,
        typer.Option(
            help="If propensities are estimates: whether every cause of both action and reward "
            "is in the context."
        ),
    ] = None
    replay_tolerance: Annotated[
        float,
        typer.Option(help="Largest difference of --propensity from --propensities."),
    ] = 1e-6
    timezone: Timezone = UTC
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Load models that can run any code when opened (pickles)."
        ),
    ] = False
    reader_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Option of DuckDB's file reader, such as delim=;. Repeatable.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options that choose the engine."""

    engine: Annotated[EngineName, typer.Option(help="Engine that reads the rows.")] = "duckdb"
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Spark's master: spark://host:7077, local[4], sc://host:15002 (Connect).",
        ),
    ] = None

    def start(self) -> EngineLike:
        """Return the chosen engine; None is the default one."""
        if self.master is not None and self.engine != "spark":
            raise UsageError("--master requires --engine spark")
        if self.engine == "duckdb":
            return None
        from poolwise.engines.spark import Spark

        return Spark(master=self.master or "")


@dataclass(frozen=True, kw_only=True)
class SourceOptions(EngineOptions, ReadOptions, FormatOptions, ListOptions, RowOptions):
    """All options about the rows, in this order: rows, lists, format, reader, engine."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options of `evaluate`."""

    estimator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="calibrated, naive, balanced, weighted, self-normalised; with shrunk weights "
            "balanced-clip-10. Repeatable.",
        ),
    ] = None
    metric: Metrics = None
    model: Model = None
    baseline: Baseline = None
    require: Annotated[
        str | None,
        typer.Option(
            metavar="VERDICT[:TARGET]",
            help="Exit with status 1 unless all targets, or one, are better or not-worse, "
            "with --by in every segment.",
        ),
    ] = None
    margin: Margin = 0.0
    by: Annotated[
        str | None, typer.Option(help="Column of segments: the question for each.")
    ] = None
    level: Level = 0.95
    interval: Annotated[
        IntervalName, typer.Option(help=f"Kind of interval; auto means {DEFAULT.name}.")
    ] = "auto"
    sides: Annotated[Sides, typer.Option(help="Two-sided interval, lower or upper bound.")] = (
        "two"
    )
    which_logs: Annotated[
        bool,
        typer.Option("--which-logs", help="Report standard errors with each log left out."),
    ] = False
    backtest: Annotated[
        bool | None,
        typer.Option(
            help="Predict what each logger earned from the other logs; by default in logs of "
            "up to a million rows."
        ),
    ] = None
    thresholds: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER,NUMBER", help="Report how often the reward is at most these."
        ),
    ] = None
    quantiles: Annotated[
        list[str] | None,
        typer.Option(metavar="NUMBER,NUMBER", help="Report these quantiles: 0.1,0.5,0.9."),
    ] = None
    truth: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET=NUMBER", help="True value, if it is known. Repeatable."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `compare`."""

    metric: Metrics = None
    baseline: Baseline = None
    require: Annotated[
        str | None,
        typer.Option(
            metavar="VERDICT[:TARGET]",
            help="Exit with status 1 unless all targets, or one, are better or not-worse, "
            "against --baseline.",
        ),
    ] = None
    margin: Margin = 0.0
    estimator: Annotated[
        str | None,
        typer.Option(
            help="Estimator of all targets: by default calibrated, or that of periods."
        ),
    ] = None
    model: Model = None
    level: Level = 0.95


@dataclass(frozen=True, kw_only=True)
class DecideOptions:
    """Options of `decide`."""

    baseline: Baseline = None
    metric: Metrics = None
    estimator: Annotated[
        str | None,
        typer.Option(
            help="Estimator of all candidates: by default calibrated, or that of periods."
        ),
    ] = None
    model: Model = None
    level: Level = 0.95


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of `plan`: what it must reach."""

    half_width: Annotated[
        float | None, typer.Option(help="Required half-width of the interval.")
    ] = None
    lift: Annotated[
        float | None, typer.Option(help="Difference from --baseline that the rows must show.")
    ] = None
    power: Annotated[float, typer.Option(help="Probability of showing --lift.")] = 0.8
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Estimators to plan for; by default all. Repeatable."
        ),
    ] = None
    baseline: Baseline = None
    level: Level = 0.95


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """Options of `watch`: its state and its claims."""

    state: Annotated[
        Path,
        typer.Option(metavar="FILE", help="State to add the rows to; .npz, begun if missing."),
    ]
    above: Annotated[
        float | None,
        typer.Option(help="Exit with status 1 unless the value is above this number."),
    ] = None
    better_than: Annotated[
        str | None,
        typer.Option(help="Exit with status 1 unless better than this logger or target."),
    ] = None
    planned: Annotated[
        int | None, typer.Option(metavar="ROWS", help="Rows that will be added in all.")
    ] = None
    level: Level = 0.95


@dataclass(frozen=True, kw_only=True)
class LearnOptions:
    """Options of `learn`, and the files that it writes."""

    features: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN,COLUMN", help="Columns to learn from; by default --context."
        ),
    ] = None
    actions: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ACTION,ACTION",
            help="Actions to learn over; by default all that were logged.",
        ),
    ] = None
    anchor: Annotated[
        str, typer.Option(help="Logger to start at: its label, best, or none for uniform.")
    ] = "best"
    folds: Annotated[
        int | None, typer.Option(help="Folds, 5 by default: a mixture of as many policies.")
    ] = None
    holdout: Annotated[
        float | None, typer.Option(help="Share of rows to hold out, in place of folds.")
    ] = None
    strengths: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER,NUMBER", help="Penalties for leaving the anchor to choose from."
        ),
    ] = None
    smoothing: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER,NUMBER", help="Exponents of the correction to choose from."
        ),
    ] = None
    trees: Annotated[bool, typer.Option("--trees", help="Try gradient-boosted trees too.")] = (
        False
    )
    epsilon: Annotated[
        float, typer.Option(help="Share of rows on which the policy explores.")
    ] = 0.0
    seed: Annotated[int, typer.Option(help="Seed of the folds and of the sample.")] = 0
    rows: Annotated[int, typer.Option(help="Learn from a sample of about so many rows.")] = (
        1_000_000
    )
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the policy, as JSON.")
    ] = None
    html: Html = None
    require: Annotated[
        Literal["better"] | None,
        typer.Option(help="Exit with status 1 unless the policy is better than every logger."),
    ] = None
    level: Level = 0.95


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options that name the files of the report."""

    html: Html = None
    charts: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the charts as SVG and PNG.")
    ] = None


def group_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is a group of options by one parameter per option."""
    hints = get_type_hints(command, include_extras=True)
    groups = {n: h for n, h in hints.items() if isinstance(h, type) and is_dataclass(h)}

    @wraps(command)
    def call(**values: object) -> None:
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in fields(group)})
        command(**values)

    parameters = [
        flat
        for name, parameter in inspect.signature(command).parameters.items()
        for flat in (
            list_options(groups[name])
            if name in groups
            else [parameter.replace(annotation=hints[name])]
        )
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def list_options(group: type) -> Iterator[inspect.Parameter]:
    """Yield the options of a group as parameters, in order."""
    hints = get_type_hints(group, include_extras=True)
    for parameter in inspect.signature(group).parameters.values():
        yield parameter.replace(annotation=hints[parameter.name])
