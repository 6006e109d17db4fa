"""Options of the command line: declared once, in groups that the commands share.

A group is a dataclass whose fields are options.  A command takes a group as one parameter;
`grouped` gives typer the flat signature, with one parameter per option.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from poolwise.errors import UsageError
from poolwise.log.log import PATTERN, Log, OnFault

if TYPE_CHECKING:
    from poolwise.evaluation.check import ScoredLog
    from poolwise.log.policy import PolicyLike

EngineLike = Any  # as `poolwise.engines` defines it; importing that would import DuckDB
IntervalMethod = Literal[
    "auto",
    "skew",
    "student",
    "jackknife",
    "bootstrap",
    "bernstein",
    "betting",
    "likelihood",
    "smoothed",
]
Sides = Literal["two", "lower", "upper"]
EngineName = Literal["duckdb", "spark"]
Experiment = Literal["toy", "scene", "yeast", "lyrl", "learning", "all"]

FILES = "Paths or globs (Parquet, CSV, JSON lines), file.duckdb::table, or one SELECT."
Sources = Annotated[list[str], typer.Argument(metavar="LOGS...", help=FILES)]
OptionalSources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LOGS...", help=f"{FILES} Optional with --moments: the name of the table."
    ),
]
OnFaultOption = Annotated[OnFault, typer.Option(help="Reject bad rows, or drop them.")]
RewardRange = Annotated[
    str | None,
    typer.Option(metavar="LOWER,UPPER", help="Smallest and largest possible reward."),
]
OneEstimator = Annotated[
    str | None,
    typer.Option(help="Estimator of all targets: by default calibrated, or that of periods."),
]
Level = Annotated[float, typer.Option(help="Confidence level of the intervals.")]
Baseline = Annotated[
    str | None, typer.Option(help="Logger or target that the others are compared with.")
]
By = Annotated[str | None, typer.Option(help="Column of segments: the question for each.")]
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

    def targets(self, *, trust: bool = False, optional: bool = False) -> dict[str, PolicyLike]:
        """Return the targets by name; raise if there are none, unless they are optional."""
        from poolwise.cli.loading import named_policy

        targets = pairs(self.target or [], "--target")
        if not targets and not optional:
            raise UsageError(
                "at least one --target is required, e.g. --target candidate=p_candidate; in a "
                'question file, candidate = "p_candidate" below [targets]'
            )
        loggers = self.loggers(trust=trust) if targets else {}
        loggers = {} if isinstance(loggers, str) else loggers
        return {
            name: named_policy(value, trust=trust, loggers=loggers)
            for name, value in targets.items()
        }

    def loggers(self, *, trust: bool = False) -> dict[str, PolicyLike] | str:
        """Return the policies of the loggers by label, or a pattern of their columns."""
        from poolwise.cli.loading import named_policy

        texts = self.propensities or []
        if len(texts) == 1 and PATTERN in texts[0]:
            return texts[0]
        values = pairs(texts, "--propensities")
        return {name: named_policy(value, trust=trust) for name, value in values.items()}


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
        typer.Option(metavar="URL", help="Spark's master: spark://host:7077, local[4]."),
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
class PlanOptions:
    """Options that say what a plan must reach."""

    half_width: Annotated[
        float | None, typer.Option(help="Required half-width of the interval.")
    ] = None
    lift: Annotated[
        float | None, typer.Option(help="Difference from --baseline that the rows must show.")
    ] = None
    power: Annotated[float, typer.Option(help="Probability of showing --lift.")] = 0.8
    baseline: Baseline = None


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options that name the files of the report."""

    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report, one HTML page.")
    ] = None
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
            _options(groups[name])
            if name in groups
            else [parameter.replace(annotation=hints[name])]
        )
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _options(group: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for parameter in inspect.signature(group).parameters.values():
        yield parameter.replace(annotation=hints[parameter.name])


def build_log(
    logs: Sequence[str],
    roles: RoleOptions,
    rows: RowOptions | None = None,
    read: ReadOptions | None = None,
    *,
    moments: bool = False,
) -> Log:
    """Return the log that the options describe; with `moments` it is a table without rows."""
    if not logs and not moments:
        raise UsageError("LOGS are required: paths, globs, or one SELECT")
    from poolwise.cli.loading import named_policy

    rows, read = rows or RowOptions(), read or ReadOptions()
    own = roles.propensity
    return Log(
        None if moments else logs[0] if len(logs) == 1 else list(logs),
        table=(logs[0] if logs else "log") if moments else None,
        reward=roles.reward,
        logger=roles.logger,
        propensity=None if own is None else named_policy(own, trust=read.trust),
        propensities=roles.loggers(trust=read.trust) or None,
        action=read.action,
        eligible=read.eligible,
        context=[name for text in read.context or () for name in text.split(",")],
        reader_options=_reader_options(read.reader_option or []),
        cluster=rows.cluster,
        period=rows.period,
        trained_on=_lists(rows.trained_on or []),
        on_fault=rows.on_fault,
        log_probabilities=roles.log_probabilities,
        densities=roles.densities,
        reward_range=_range(rows.reward_range),
    )


def scored_command(scored: ScoredLog, path: Path) -> str:
    """Return the command that evaluates a scored log."""
    log, targets = scored
    words = ["poolwise", "evaluate", str(path), "--reward", log.reward]
    for flag, value in (("--logger", log.logger), ("--propensity", log.propensity)):
        words += [flag, str(value)] if value is not None else []
    for label, value in log.by_label.items():
        words += ["--propensities", f"{label}={value}"]
    for name, value in targets.items():
        words += ["--target", f"{name}={value}"]
    words += ["--densities"] * log.densities
    return shlex.join(words + ["--log-probabilities"] * log.log_probabilities)


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse NAME=COLUMN[,NAME=COLUMN...]; commas inside parentheses do not separate.

    >>> pairs(["v1=p1,v2=least(p2, 1)", "v3=p3"], "--target")
    {'v1': 'p1', 'v2': 'least(p2, 1)', 'v3': 'p3'}
    """
    values: dict[str, str] = {}
    for piece in (piece for text in texts for piece in _pieces(text)):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not (name and equals and value):
            raise UsageError(f"{option} must be NAME=COLUMN, got {piece!r}")
        if name in values:
            raise UsageError(f"{option} names {name!r} twice")
        values[name] = value
    return values


def _pieces(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    pieces: list[str] = []
    depth, start = 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            pieces.append(text[start:index])
            start = index + 1
    return [*pieces, text[start:]]


def _reader_options(texts: Sequence[str]) -> dict[str, object]:
    """Parse KEY=VALUE; integers, true and false become Python values."""
    options: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise UsageError(f"--reader-option must be KEY=VALUE, got {text!r}")
        truth = {"true": True, "false": False}.get(value.strip().lower())
        number = int(value) if re.fullmatch(r"-?\d{1,9}", value) else value
        options[name.strip()] = number if truth is None else truth
    return options


def _lists(texts: Sequence[str]) -> dict[str, list[str]]:
    others: dict[str, list[str]] = {}
    for text in texts:
        for name, other in pairs([text], "--trained-on").items():
            others.setdefault(name, []).append(other)
    return others


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        lower, upper = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--reward-range must be LOWER,UPPER, got {text!r}") from None
    return lower, upper
