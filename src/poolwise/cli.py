"""The command line: parse, call, print; no statistics.

Each command is one library call.  An error of our own family becomes its message on
stderr and exit status 2; anything else is a bug and keeps its traceback.  Heavy
imports happen inside the commands, so that ``poolwise --help`` answers at once.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from poolwise.errors import PoolwiseError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from poolwise.log import Log

app = typer.Typer(
    name="poolwise",
    help="What would the new policy have earned? Ask every log you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class OnFault(StrEnum):
    """What to do with rows that break a rule."""

    RAISE = "raise"
    DROP = "drop"


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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.command()
def evaluate(
    logs: Sources,
    reward: Reward,
    logger: Logger = None,
    propensity: Propensity = None,
    propensities: Propensities = None,
    target: Targets = None,
    estimator: Annotated[
        list[str] | None, typer.Option(help="naive, balanced, weighted; several times.")
    ] = None,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    cluster: Annotated[
        str | None, typer.Option(help="Column of the unit whose rows belong together.")
    ] = None,
    on_fault: OnFaultOption = OnFault.RAISE,
    log_probabilities: LogScale = False,
    reward_range: RewardRange = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what new policies would have earned."""
    log = _log(
        logs, reward, logger, propensity, propensities, on_fault, log_probabilities,
        reward_range=reward_range, cluster=cluster,
    )  # fmt: skip
    targets = _pairs(target or [], "--target")
    if not targets:
        raise UsageError("name one target at least: --target candidate=p_candidate")
    from poolwise.pipeline import evaluate as run

    evaluation = run(log, targets, estimator or None, level=level)
    if as_json:
        typer.echo(evaluation.to_json())
    else:
        from poolwise.tables import show

        show(evaluation.grids(), evaluation.warnings, _console())


@app.command()
def check(
    logs: Sources,
    reward: Reward,
    logger: Logger = None,
    propensity: Propensity = None,
    propensities: Propensities = None,
    target: Targets = None,
    log_probabilities: LogScale = False,
    as_json: AsJson = False,
) -> None:
    """Count the rows that break a rule, and do nothing else."""
    log = _log(logs, reward, logger, propensity, propensities, OnFault.RAISE, log_probabilities)
    from poolwise.pipeline import check as run

    report = run(log, _pairs(target or [], "--target"))
    typer.echo(report.to_json() if as_json else str(report))
    if report.faults:
        raise typer.Exit(2)


@app.command()
def sql(
    logs: Annotated[str, typer.Argument(metavar="TABLE", help="Table, view or SELECT.")],
    reward: Reward,
    logger: Logger = None,
    propensity: Propensity = None,
    propensities: Propensities = None,
    target: Targets = None,
    dialect: Annotated[
        str, typer.Option(help="duckdb, spark, postgres, bigquery, snowflake, ...")
    ] = "duckdb",
    log_probabilities: LogScale = False,
) -> None:
    """Print the query whose result is all that an evaluation needs."""
    log = _log(
        [logs], reward, logger, propensity, propensities, OnFault.RAISE, log_probabilities
    )
    from poolwise.pipeline import query_text

    typer.echo(query_text(log, logs, _pairs(target or [], "--target"), dialect))


@app.command()
def demo(as_json: AsJson = False) -> None:
    """Evaluate a new policy on the bundled log, whose truth is known."""
    from poolwise.bundled import TARGETS, digits_log, digits_truth
    from poolwise.pipeline import evaluate as run
    from poolwise.report.text import lesson
    from poolwise.tables import show

    evaluation = run(digits_log(), TARGETS, truth=digits_truth())
    if as_json:
        typer.echo(evaluation.to_json())
        return
    console = _console()
    show(evaluation.grids(), evaluation.warnings, console)
    console.print(lesson(evaluation))


def _console() -> Console:
    """Colour on a terminal, plain text in a pipe, 80 columns where width is unknown."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 80, soft_wrap=False)


def _log(
    logs: Sequence[str],
    reward: str,
    logger: str | None,
    propensity: str | None,
    propensities: Sequence[str] | None,
    on_fault: OnFault,
    log_probabilities: bool,
    *,
    reward_range: str | None = None,
    cluster: str | None = None,
) -> Log:
    from poolwise.log import Log

    return Log(
        logs[0] if len(logs) == 1 else list(logs),
        reward=reward,
        logger=logger,
        propensity=propensity,
        propensities=_pairs(propensities or [], "--propensities") or None,
        on_fault=on_fault.value,
        log_probabilities=log_probabilities,
        reward_range=_range(reward_range),
        cluster=cluster,
    )


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Read NAME=COLUMN[,NAME=COLUMN...]; a comma within parentheses separates nothing."""
    found: dict[str, str] = {}
    for text in texts:
        for piece in split_pairs(text):
            name, equals, value = piece.partition("=")
            if not (name.strip() and equals and value.strip()):
                raise UsageError(
                    f"{option} takes NAME=COLUMN, and {piece!r} is not of that form"
                )
            if name.strip() in found:
                raise UsageError(f"{option} names {name.strip()!r} twice")
            found[name.strip()] = value.strip()
    return found


def split_pairs(text: str) -> list[str]:
    """Split at commas that begin another NAME=...

    >>> split_pairs("v1=p1,v2=least(p2, 1),v3=p3")
    ['v1=p1', 'v2=least(p2, 1)', 'v3=p3']
    """
    pieces: list[str] = []
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            pieces.append(text[start:place])
            start = place + 1
    return [*pieces, text[start:]]


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        lower, upper = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--reward-range takes LOWER,UPPER, not {text!r}") from None
    return lower, upper


def main() -> None:
    """Run the command line; our own errors become a message, not a traceback."""
    try:
        app(standalone_mode=True)
    except PoolwiseError as error:
        sys.stderr.write(f"poolwise: {error}\n")
        sys.exit(2)
