"""Options of the command line: declared once, in groups that the commands share.

A group is a dataclass whose fields are options.  A command takes a group as one parameter;
`grouped` gives typer the flat signature, with one parameter per option.
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
from poolwise.log.log import OnFault
from poolwise.log.problems import UTC

EngineLike = Any  # as `poolwise.engines` defines it; importing that would import DuckDB
EngineName = Literal["duckdb", "spark"]

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
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the report, one HTML page.")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print all tables.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@dataclass(frozen=True, kw_only=True)
class RoleOptions:
    """Options that name the columns of a log and the target policies."""

    reward: Annotated[str, typer.Option(help="Column or SQL expression of the reward.")]
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
            "v1=module:attribute or v1=model.skops.",
        ),
    ] = None
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN",
            help="Probability of the logged action under a new policy. Repeatable. A policy in "
            "Python is NAME=module:attribute or NAME=model.skops.",
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
class ReadOptions:
    """Options about policies in Python and about the file reader."""

    action: Annotated[
        str | None,
        typer.Option(help="Column of the logged action; policies in Python require it."),
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
class SourceOptions(EngineOptions, ReadOptions, RowOptions):
    """All options about the rows, in this order: rows, reader, engine."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options of `evaluate`."""

    estimator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="calibrated, naive, balanced, weighted, self-normalised. Repeatable.",
        ),
    ] = None
    baseline: Baseline = None
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
        bool,
        typer.Option("--backtest", help="Predict what each logger earned from the other logs."),
    ] = False


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `compare`."""

    baseline: Baseline = None
    require: Annotated[
        Literal["better", "not-worse"] | None,
        typer.Option(help="Exit with status 1 unless all targets are, against --baseline."),
    ] = None
    margin: Annotated[
        float, typer.Option(help="Smallest difference that matters to --require.")
    ] = 0.0
    estimator: Annotated[
        str | None,
        typer.Option(
            help="Estimator of all targets: by default calibrated, or that of periods."
        ),
    ] = None
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
    anchor: Annotated[
        str, typer.Option(help="Logger to start at: its label, best, or none for uniform.")
    ] = "best"
    folds: Annotated[
        int | None, typer.Option(help="Folds, 5 by default: a mixture of as many policies.")
    ] = None
    holdout: Annotated[
        float | None, typer.Option(help="Share of rows to hold out, in place of folds.")
    ] = None
    trees: Annotated[
        bool, typer.Option("--trees", help="Add gradient-boosted trees to the anchor's scores.")
    ] = False
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


def grouped(command: Callable[..., None]) -> Callable[..., None]:
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
            options_of(groups[name])
            if name in groups
            else [parameter.replace(annotation=hints[name])]
        )
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def options_of(group: type) -> Iterator[inspect.Parameter]:
    """Yield the options of a group as parameters, in order."""
    hints = get_type_hints(group, include_extras=True)
    for parameter in inspect.signature(group).parameters.values():
        yield parameter.replace(annotation=hints[parameter.name])
