"""The command line: parse, call, print; no statistics.

Each command is one library call.  An error of our own family becomes its message on
stderr and exit status 2; anything else is a bug and keeps its traceback.  Heavy
imports happen inside the commands, so that ``poolwise --help`` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poolwise.errors import LogError, PoolwiseError, UsageError
from poolwise.options import (
    AsJson,
    Charts,
    Cluster,
    Estimators,
    Experiment,
    Html,
    IntervalMethod,
    Level,
    Logger,
    LogScale,
    OnFault,
    OnFaultOption,
    Propensities,
    Propensity,
    Reward,
    RewardRange,
    Sides,
    Sources,
    Targets,
    TrainedOn,
    build_log,
    command_text,
    pairs,
    read_targets,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from poolwise.presented import Presented
    from poolwise.result import Evaluation

app = typer.Typer(
    name="poolwise",
    help="What would the new policy have earned? Ask every log you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def evaluate(
    context: typer.Context,
    logs: Sources,
    reward: Reward,
    logger: Logger = None,
    propensity: Propensity = None,
    propensities: Propensities = None,
    target: Targets = None,
    estimator: Estimators = None,
    level: Level = 0.95,
    interval: Annotated[
        IntervalMethod, typer.Option(help="How intervals are made.")
    ] = IntervalMethod.AUTO,
    sides: Annotated[Sides, typer.Option(help="Which bounds.")] = Sides.TWO,
    cluster: Cluster = None,
    trained_on: TrainedOn = None,
    on_fault: OnFaultOption = OnFault.RAISE,
    log_probabilities: LogScale = False,
    reward_range: RewardRange = None,
    html: Html = None,
    charts: Charts = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what new policies would have earned."""
    log = build_log(
        logs,
        reward,
        logger,
        propensity,
        propensities,
        cluster=cluster,
        trained_on=trained_on,
        on_fault=on_fault.value,
        log_probabilities=log_probabilities,
        reward_range=reward_range,
    )
    targets = read_targets(target)
    from poolwise.pipeline import evaluate as run

    found = run(
        log, targets, estimator or None, level=level, interval=interval.value, sides=sides.value
    )
    _save(found, html, charts, command_text(context))
    _print(found, as_json=as_json)


@app.command()
def compare(
    logs: Sources,
    reward: Reward,
    logger: Logger = None,
    propensity: Propensity = None,
    propensities: Propensities = None,
    target: Targets = None,
    baseline: Annotated[
        str | None, typer.Option(help="Target or logger that the others are compared with.")
    ] = None,
    estimator: Annotated[str, typer.Option(help="Estimator of all targets.")] = "calibrated",
    level: Level = 0.95,
    cluster: Cluster = None,
    on_fault: OnFaultOption = OnFault.RAISE,
    log_probabilities: LogScale = False,
    as_json: AsJson = False,
) -> None:
    """Compare several new policies, pair by pair, on the same rows."""
    log = build_log(
        logs,
        reward,
        logger,
        propensity,
        propensities,
        cluster=cluster,
        on_fault=on_fault.value,
        log_probabilities=log_probabilities,
    )
    targets = read_targets(target)
    from poolwise.decision.comparison import compare as run

    found = run(log, targets, baseline=baseline, estimator=estimator, level=level)
    _print(found, as_json=as_json)


@app.command()
def plan(
    logs: Sources,
    reward: Reward,
    half_width: Annotated[float, typer.Option(help="Wanted half-width of the interval.")],
    logger: Logger = None,
    propensity: Propensity = None,
    propensities: Propensities = None,
    target: Targets = None,
    level: Level = 0.95,
    on_fault: OnFaultOption = OnFault.RAISE,
    log_probabilities: LogScale = False,
    as_json: AsJson = False,
) -> None:
    """Say how many more rows, from which logger, reach a wanted precision."""
    log = build_log(
        logs,
        reward,
        logger,
        propensity,
        propensities,
        on_fault=on_fault.value,
        log_probabilities=log_probabilities,
    )
    targets = read_targets(target)
    if len(targets) > 1:
        raise UsageError("plan for one target at a time")
    from poolwise.decision.planning import plan as run

    found = run(log, targets, half_width=half_width, level=level)
    _print(found, as_json=as_json)


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
    log = build_log(
        logs, reward, logger, propensity, propensities, log_probabilities=log_probabilities
    )
    from poolwise.border import check as run

    report = run(log, pairs(target or [], "--target"))
    if report.faults and not as_json:
        raise LogError(report.faults)
    typer.echo(report.to_json() if as_json else str(report))
    if report.faults:
        raise typer.Exit(2)


@app.command()
def sql(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Table, view or SELECT.")],
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
    log = build_log(
        [table],
        reward,
        logger,
        propensity,
        propensities,
        log_probabilities=log_probabilities,
    )
    from poolwise.border import query_text

    typer.echo(query_text(log, table, read_targets(target), dialect))


@app.command()
def demo(
    context: typer.Context, html: Html = None, charts: Charts = None, as_json: AsJson = False
) -> None:
    """Evaluate a new policy on the bundled log, whose truth is known."""
    from poolwise.bundled import TARGETS, digits_log, digits_truth
    from poolwise.pipeline import evaluate as run
    from poolwise.report.text import lesson

    evaluation = run(digits_log(), TARGETS, truth=digits_truth())
    _save(evaluation, html, charts, command_text(context))
    _print(evaluation, as_json=as_json, sentences=[lesson(evaluation.to_dict())])


@app.command()
def reproduce(
    what: Annotated[
        Experiment, typer.Argument(help="Which part of the paper.")
    ] = Experiment.TOY,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data sets; $POOLWISE_DATA otherwise.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for tables and charts; 'reproduction' if not said."),
    ] = None,
) -> None:
    """Recompute the numbers of Agarwal et al. (KDD 2017), claim by claim."""
    from poolwise.reproduce.run import run

    run(what.value, data, out, console=_console())


def _print(found: Presented, *, as_json: bool, sentences: Sequence[str] = ()) -> None:
    if as_json:
        typer.echo(found.to_json())
        return
    from rich.text import Text

    from poolwise.tables import show

    console = _console()
    show(found.grids(), found.warnings, console)
    for sentence in (*found.sentences, *sentences):
        console.print(Text(sentence))


def _save(found: Evaluation, html: Path | None, charts: Path | None, command: str) -> None:
    if html is not None:
        found.save(html, command=command)
    if charts is not None:
        from poolwise.report.files import save_charts

        save_charts(found.charts(), charts)


def _console() -> Console:
    """Colour on a terminal, plain text in a pipe, 80 columns where width is unknown."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 80, soft_wrap=False)


def main() -> None:
    """Run the command line; our own errors become a message, not a traceback."""
    try:
        app(standalone_mode=True)
    except PoolwiseError as error:
        sys.stderr.write(f"poolwise: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("poolwise: stopped\n")
        sys.exit(130)
