"""The command line: parse, call, print; no statistics.

Each command is one library call.  An error of our own family becomes its message on
stderr and exit status 2; anything else is a bug and keeps its traceback.  Heavy
imports happen inside the commands, so that ``poolwise --help`` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from poolwise import __version__
from poolwise.cli.options import (
    Action,
    AsJson,
    Baseline,
    Charts,
    Cluster,
    Context,
    Dialect,
    EngineName,
    EngineOption,
    Estimators,
    Experiment,
    Html,
    IntervalMethod,
    Level,
    Logger,
    LogScale,
    Master,
    MomentsFiles,
    OnFault,
    OnFaultOption,
    OptionalSources,
    Propensities,
    Propensity,
    ReaderOptions,
    Reward,
    RewardRange,
    Sides,
    Sources,
    Targets,
    TrainedOn,
    Trust,
    WhichLogs,
    build_log,
    chosen_engine,
    command_text,
    from_moments,
    read_targets,
    scored_command,
)
from poolwise.cli.terminal import print_found, save_found, terminal, watched
from poolwise.errors import LogError, PoolwiseError, UsageError

NO_OUTPUT = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # of what takes stdout

app = typer.Typer(
    name="poolwise",
    help="What would the new policy have earned? Ask every log you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"poolwise {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself; `app` has the help."""


@app.command()
def evaluate(
    context: typer.Context,
    reward: Reward,
    logs: OptionalSources = None,
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
    which_logs: WhichLogs = None,
    moments: MomentsFiles = None,
    action: Action = None,
    columns: Context = None,
    trust: Trust = False,
    reader_option: ReaderOptions = None,
    engine: EngineOption = EngineName.DUCKDB,
    master: Master = None,
    html: Html = None,
    charts: Charts = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what new policies would have earned."""
    roles = (logs or [], reward, logger, propensity, propensities)
    log = build_log(
        *roles,
        cluster=cluster,
        trained_on=trained_on,
        on_fault=on_fault.value,
        log_probabilities=log_probabilities,
        reward_range=reward_range,
        action=action,
        context=columns,
        reader_options=reader_option,
        trust=trust,
        moments=bool(moments),
    )
    from poolwise.evaluation.evaluate import evaluate as run
    from poolwise.report.files import refuse_report

    refuse_report(html, charts, log, moments or ())
    targets = read_targets(target, trust=trust)
    reader = chosen_engine(engine, master)
    if moments:
        log, reader = from_moments(moments, log, targets)
    with watched():
        found = run(
            log,
            targets,
            estimator or None,
            level=level,
            interval=interval.value,
            sides=sides.value,
            which_logs=which_logs,
            engine=reader,
        )
    save_found(found, html, charts, command_text(context))
    print_found(found, as_json=as_json)


@app.command()
def compare(
    logs: Sources,
    reward: Reward,
    logger: Logger = None,
    propensity: Propensity = None,
    propensities: Propensities = None,
    target: Targets = None,
    baseline: Baseline = None,
    estimator: Annotated[str, typer.Option(help="Estimator of all targets.")] = "calibrated",
    level: Level = 0.95,
    cluster: Cluster = None,
    on_fault: OnFaultOption = OnFault.RAISE,
    log_probabilities: LogScale = False,
    action: Action = None,
    columns: Context = None,
    trust: Trust = False,
    reader_option: ReaderOptions = None,
    engine: EngineOption = EngineName.DUCKDB,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Compare several new policies, pair by pair, on the same rows."""
    roles = (logs, reward, logger, propensity, propensities)
    log = build_log(
        *roles,
        cluster=cluster,
        on_fault=on_fault.value,
        log_probabilities=log_probabilities,
        action=action,
        context=columns,
        reader_options=reader_option,
        trust=trust,
    )
    targets = read_targets(target, trust=trust)
    from poolwise.evaluation.compare import compare as run

    with watched():
        found = run(
            log,
            targets,
            baseline=baseline,
            estimator=estimator,
            level=level,
            engine=chosen_engine(engine, master),
        )
    print_found(found, as_json=as_json)


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
    action: Action = None,
    columns: Context = None,
    trust: Trust = False,
    reader_option: ReaderOptions = None,
    engine: EngineOption = EngineName.DUCKDB,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Say how many more rows, from which logger, reach a wanted precision."""
    roles = (logs, reward, logger, propensity, propensities)
    log = build_log(
        *roles,
        on_fault=on_fault.value,
        log_probabilities=log_probabilities,
        action=action,
        context=columns,
        reader_options=reader_option,
        trust=trust,
    )
    targets = read_targets(target, trust=trust)
    if len(targets) > 1:
        raise UsageError("plan for one target at a time")
    from poolwise.evaluation.plan import plan as run

    reader = chosen_engine(engine, master)
    with watched():
        found = run(log, targets, half_width=half_width, level=level, engine=reader)
    print_found(found, as_json=as_json)


@app.command()
def check(
    logs: Sources,
    reward: Reward,
    logger: Logger = None,
    propensity: Propensity = None,
    propensities: Propensities = None,
    target: Targets = None,
    log_probabilities: LogScale = False,
    action: Action = None,
    columns: Context = None,
    trust: Trust = False,
    reader_option: ReaderOptions = None,
    engine: EngineOption = EngineName.DUCKDB,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Count the rows that break a rule, and do nothing else."""
    roles = (logs, reward, logger, propensity, propensities)
    log = build_log(
        *roles,
        log_probabilities=log_probabilities,
        action=action,
        context=columns,
        reader_options=reader_option,
        trust=trust,
    )
    from poolwise.evaluation.check import check as run

    targets = read_targets(target, trust=trust, none=True)
    with watched():
        report = run(log, targets, engine=chosen_engine(engine, master))
    if report.faults and not as_json:
        raise LogError(report.faults)
    typer.echo(report.to_json() if as_json else str(report))
    if report.faults:
        raise typer.Exit(2)


@app.command()
def score(
    logs: Sources,
    reward: Reward,
    action: Annotated[str, typer.Option(help="Column of the logged action.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Parquet file to write.")],
    logger: Logger = None,
    propensity: Propensity = None,
    propensities: Propensities = None,
    target: Targets = None,
    columns: Context = None,
    log_probabilities: LogScale = False,
    trust: Trust = False,
    reader_option: ReaderOptions = None,
) -> None:
    """Write the log with the probabilities of policies in Python, once, for later use."""
    roles = (logs, reward, logger, propensity, propensities)
    log = build_log(
        *roles,
        log_probabilities=log_probabilities,
        action=action,
        context=columns,
        reader_options=reader_option,
        trust=trust,
    )
    targets = read_targets(target, trust=trust)
    from poolwise.evaluation.score_log import score_log

    with watched():
        scored = score_log(log, targets, out)
    typer.echo(f"wrote {out}; it evaluates with:\n{scored_command(scored, out)}")


@app.command()
def sql(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Table, view or SELECT.")],
    reward: Reward,
    logger: Logger = None,
    propensity: Propensity = None,
    propensities: Propensities = None,
    target: Targets = None,
    dialect: Dialect = "duckdb",
    on_fault: OnFaultOption = OnFault.RAISE,
    log_probabilities: LogScale = False,
) -> None:
    """Print the query whose result is all that an evaluation needs."""
    roles = ((), reward, logger, propensity, propensities)
    log = build_log(
        *roles,
        on_fault=on_fault.value,
        log_probabilities=log_probabilities,
        moments=True,
    )
    from poolwise.evaluation.check import query_text

    typer.echo(query_text(log, table, read_targets(target), dialect))


@app.command()
def demo(
    context: typer.Context, html: Html = None, charts: Charts = None, as_json: AsJson = False
) -> None:
    """Evaluate a new policy on the bundled log, whose truth is known."""
    from poolwise.evaluation.evaluate import evaluate as run
    from poolwise.formats.digits import TARGETS, digits_log, digits_truth
    from poolwise.report.files import refuse_report
    from poolwise.report.sentence import lesson

    log = digits_log()
    refuse_report(html, charts, log)
    evaluation = run(log, TARGETS, truth=digits_truth())
    save_found(evaluation, html, charts, command_text(context))
    print_found(evaluation, as_json=as_json, sentences=[lesson(evaluation.to_dict())])


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
    from poolwise.paper.run import run

    run(what.value, data, out, console=terminal())


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
    except OSError as error:
        if error.errno not in NO_OUTPUT:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - else Python tries again
        sys.stderr.write(f"poolwise: cannot write the output: {error.strerror}\n")
        sys.exit(2)
