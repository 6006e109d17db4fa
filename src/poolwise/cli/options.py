"""Options of the command line: their types, their help, and how they are read.

`cli` lists the commands; what they have in common is here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from poolwise.errors import UsageError
from poolwise.log.log import Log

if TYPE_CHECKING:
    from poolwise.evaluation.score_log import ScoredLog
    from poolwise.log.policy import PolicyLike


class OnFault(StrEnum):
    """What to do with rows that break a rule."""

    RAISE = "raise"
    DROP = "drop"


class IntervalMethod(StrEnum):
    """How intervals are made."""

    AUTO = "auto"
    STUDENT = "student"
    JACKKNIFE = "jackknife"
    BOOTSTRAP = "bootstrap"
    BERNSTEIN = "bernstein"
    BETTING = "betting"
    LIKELIHOOD = "likelihood"


class Sides(StrEnum):
    """Which bounds an interval has."""

    TWO = "two"
    LOWER = "lower"
    UPPER = "upper"


class EngineName(StrEnum):
    """What reads the rows."""

    DUCKDB = "duckdb"
    SPARK = "spark"


class Experiment(StrEnum):
    """Parts of the paper that can be recomputed."""

    TOY = "toy"
    SCENE = "scene"
    YEAST = "yeast"
    LYRL = "lyrl"
    ALL = "all"


Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="LOGS...",
        help="Paths or globs (Parquet, CSV, JSON lines), or one SELECT that DuckDB can run.",
    ),
]
OptionalSources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LOGS...",
        help="Paths or globs (Parquet, CSV, JSON lines), or one SELECT that DuckDB can run. "
        "With --moments the name of the table, or nothing: it is not read.",
    ),
]
Reward = Annotated[str, typer.Option(help="Column or SQL expression of the reward.")]
Logger = Annotated[str | None, typer.Option(help="Column with the label of the logger.")]
Propensity = Annotated[
    str | None,
    typer.Option(help="Probability of the logged action under the logger that wrote the row."),
]
Propensities = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LOGGER=COLUMN",
        help="The same under every logger: v1=p_v1,v2=p_v2. May be given several times. A "
        "policy in Python is v1=module:attribute or v1=model.skops.",
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="NAME=COLUMN",
        help="Probability of the logged action under a new policy. May be given several "
        "times. A policy in Python is NAME=module:attribute or NAME=model.skops.",
    ),
]
Action = Annotated[
    str | None, typer.Option(help="Column of the logged action, for policies in Python.")
]
Context = Annotated[
    list[str] | None,
    typer.Option(
        "--context",
        metavar="COLUMN,COLUMN",
        help="Columns that policies in Python see; all others if none.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Load models that can run any code when they are opened (pickles)."
    ),
]
ReaderOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--reader-option",
        metavar="KEY=VALUE",
        help="For DuckDB's file reader, as delim=;. May be given several times.",
    ),
]
EngineOption = Annotated[EngineName, typer.Option(help="What reads the rows.")]
Dialect = Annotated[str, typer.Option(help="duckdb, spark, postgres, bigquery, snowflake, ...")]
Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark's master: spark://host:7077, local[4].")
]
OnFaultOption = Annotated[OnFault, typer.Option(help="Refuse bad rows, or leave them out.")]
LogScale = Annotated[
    bool,
    typer.Option("--log-probabilities", help="Probabilities are given as logarithms."),
]
RewardRange = Annotated[
    str | None,
    typer.Option(metavar="LOWER,UPPER", help="Smallest and largest possible reward."),
]
TrainedOn = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LOGGER=LOGGER",
        help="A logger that was trained on another's log: v2=v1. May be given several times.",
    ),
]
Estimators = Annotated[
    list[str] | None,
    typer.Option(
        "--estimator",
        metavar="NAME",
        help="calibrated, naive, balanced, weighted, self-normalised; several times.",
    ),
]
Baseline = Annotated[
    str | None, typer.Option(help="Target or logger that the others are compared with.")
]
Level = Annotated[float, typer.Option(help="Level of the intervals.")]
Cluster = Annotated[
    str | None, typer.Option(help="Column of the unit whose rows belong together.")
]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the report, one page, to this file.")
]
Charts = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Write the charts as SVG and PNG.")
]
WhichLogs = Annotated[
    bool | None,
    typer.Option(
        "--which-logs/--no-which-logs",
        help="Say how sure the answer would be without each log; small logs do so anyway.",
    ),
]
MomentsFiles = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Result of the query that `poolwise sql` printed, or moments that were saved, in "
        "the place of LOGS. Several are added up.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


EngineLike = Any  # as engine.choose has it; importing that would import DuckDB


def build_log(
    logs: Sequence[str],
    reward: str,
    logger: str | None,
    propensity: str | None,
    propensities: Sequence[str] | None,
    *,
    cluster: str | None = None,
    trained_on: Sequence[str] | None = None,
    on_fault: Literal["raise", "drop"] = "raise",
    log_probabilities: bool = False,
    reward_range: str | None = None,
    action: str | None = None,
    context: Sequence[str] | None = None,
    reader_options: Sequence[str] | None = None,
    trust: bool = False,
    moments: bool = False,
) -> Log:
    """A log from what the command line says; with `moments` its rows are out of reach."""
    if not logs and not moments:
        raise UsageError("name the logs: paths, globs, or one SELECT")
    from poolwise.cli.loading import named_policy

    known = pairs(propensities or [], "--propensities")
    return Log(
        None if moments else logs[0] if len(logs) == 1 else list(logs),
        table=(logs[0] if logs else "log") if moments else None,
        reward=reward,
        logger=logger,
        propensity=None if propensity is None else named_policy(propensity, trust=trust),
        propensities={k: named_policy(v, trust=trust) for k, v in known.items()} or None,
        action=action,
        context=[name for text in context or () for name in text.split(",")],
        reader_options=_reader_options(reader_options or []),
        cluster=cluster,
        trained_on=_lists(trained_on or []),
        on_fault=on_fault,
        log_probabilities=log_probabilities,
        reward_range=_range(reward_range),
    )


def read_targets(
    texts: Sequence[str] | None, *, trust: bool = False, none: bool = False
) -> dict[str, PolicyLike]:
    """Targets by name; one at least, unless `none` will do."""
    from poolwise.cli.loading import named_policy

    targets = pairs(texts or [], "--target")
    if not targets and not none:
        raise UsageError("name one target at least: --target candidate=p_candidate")
    return {name: named_policy(value, trust=trust) for name, value in targets.items()}


def chosen_engine(name: EngineName, master: str | None) -> EngineLike:
    """The engine that was named, with its master."""
    if master is not None and name != EngineName.SPARK:
        raise UsageError("--master goes with --engine spark")
    if name == EngineName.DUCKDB:
        return None
    from poolwise.engines.spark import Spark

    return Spark(master=master or "")


def from_moments(
    paths: Sequence[Path], log: Log, targets: Mapping[str, PolicyLike]
) -> tuple[Log, EngineLike]:
    """What a warehouse returned, or what was saved, in the place of rows."""
    from poolwise.evaluation.summarise import from_files

    summary = from_files(paths, log, targets)
    return log if summary.crossed else summary.narrowed(log), summary


def scored_command(scored: ScoredLog, path: Path) -> str:
    """The command that evaluates a scored log."""
    log, targets = scored
    words = ["poolwise", "evaluate", str(path), "--reward", log.reward]
    for flag, value in (("--logger", log.logger), ("--propensity", log.propensity)):
        words += [flag, str(value)] if value is not None else []
    for label, value in (log.propensities or {}).items():
        words += ["--propensities", f"{label}={value}"]
    for name, value in targets.items():
        words += ["--target", f"{name}={value}"]
    return shlex.join(words + ["--log-probabilities"] * log.log_probabilities)


def _reader_options(texts: Sequence[str]) -> dict[str, object]:
    """KEY=VALUE, with numbers and truth values as what they are."""
    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise UsageError(f"--reader-option takes KEY=VALUE, not {text!r}")
        truth = {"true": True, "false": False}.get(value.strip().lower())
        number = int(value) if re.fullmatch(r"-?\d{1,9}", value) else value
        found[name.strip()] = number if truth is None else truth
    return found


def _lists(texts: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in texts:
        for name, other in pairs([text], "--trained-on").items():
            found.setdefault(name, []).append(other)
    return found


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Read NAME=COLUMN[,NAME=COLUMN...]; a comma within parentheses separates nothing.

    >>> pairs(["v1=p1,v2=least(p2, 1)", "v3=p3"], "--target")
    {'v1': 'p1', 'v2': 'least(p2, 1)', 'v3': 'p3'}
    """
    found: dict[str, str] = {}
    for text in texts:
        for piece in _pieces(text):
            name, equals, value = (part.strip() for part in piece.partition("="))
            if not (name and equals and value):
                raise UsageError(
                    f"{option} takes NAME=COLUMN, and {piece!r} is not of that form"
                )
            if name in found:
                raise UsageError(f"{option} names {name!r} twice")
            found[name] = value
    return found


def _pieces(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    pieces: list[str] = []
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            pieces.append(text[start:place])
            start = place + 1
    return [*pieces, text[start:]]


def command_text(context: typer.Context) -> str:
    """The command line that asks the same again, without where its output goes."""
    words = ["poolwise", str(context.command.name)]
    for param in context.command.params:
        value = context.params.get(str(param.name))
        if param.name in {"html", "charts", "as_json", "out"} or value in (None, param.default):
            continue
        flag = [param.opts[-1]] if param.param_type_name == "option" else []
        if value is True:
            words += flag
        else:
            each = value if isinstance(value, list | tuple) else [value]
            words += [word for v in each for word in (*flag, str(v))]
    return shlex.join(words)


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        lower, upper = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--reward-range takes LOWER,UPPER, not {text!r}") from None
    return lower, upper
