"""Options of the command line: their types, their help, and how they are read.

`cli` lists the commands; what they have in common is here.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from poolwise.errors import UsageError
from poolwise.log import Log


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
        help="The same under every logger: v1=p_v1,v2=p_v2. May be given several times.",
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="NAME=COLUMN",
        help="Probability of the logged action under a new policy. May be given several times.",
    ),
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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


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
) -> Log:
    """A log from what the command line says."""
    return Log(
        logs[0] if len(logs) == 1 else list(logs),
        reward=reward,
        logger=logger,
        propensity=propensity,
        propensities=pairs(propensities or [], "--propensities") or None,
        cluster=cluster,
        trained_on=_lists(trained_on or []),
        on_fault=on_fault,
        log_probabilities=log_probabilities,
        reward_range=_range(reward_range),
    )


def read_targets(texts: Sequence[str] | None) -> dict[str, str]:
    """Targets by name; one at least."""
    targets = pairs(texts or [], "--target")
    if not targets:
        raise UsageError("name one target at least: --target candidate=p_candidate")
    return targets


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
        if param.name in {"html", "charts", "as_json"} or value in (None, param.default):
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
