"""The command line: parse, call, print; no statistics.

Each command is one library call.  An error of our own family becomes its message on
stderr and exit status 2; anything else is a bug and keeps its traceback.  Heavy
imports happen inside the commands, so that ``poolwise --help`` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from poolwise import __version__
from poolwise.cli.init import init
from poolwise.cli.keys import QuestionCommand, asked, command_text
from poolwise.cli.learning import LearnOptions
from poolwise.cli.options import (
    AsJson,
    Baseline,
    By,
    EngineOptions,
    Experiment,
    IntervalMethod,
    Level,
    OneEstimator,
    OnFaultOption,
    OptionalSources,
    PlanOptions,
    ReadOptions,
    ReportOptions,
    RewardRange,
    RoleOptions,
    RowOptions,
    Sides,
    Sources,
    Verbose,
    build_log,
    grouped,
    scored_command,
)
from poolwise.cli.terminal import (
    check_outputs,
    console,
    gate,
    print_result,
    progress,
    save_report,
)
from poolwise.cli.watch import watch
from poolwise.errors import LogError, PoolwiseError, UsageError

if TYPE_CHECKING:
    pass

NO_OUTPUT = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # stdout cannot be written

app = typer.Typer(
    name="poolwise",
    help="Estimate what new policies would have earned, from the logs of other policies.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(flag: bool) -> None:
    if flag:
        typer.echo(f"poolwise {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself; `app` has the help."""


@app.command(cls=QuestionCommand)
@grouped
def evaluate(
    *,
    command: typer.Context,
    logs: OptionalSources = None,
    roles: RoleOptions,
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="calibrated, naive, balanced, weighted, self-normalised. Repeatable.",
        ),
    ] = None,
    baseline: Baseline = None,
    by: By = None,
    level: Level = 0.95,
    interval: Annotated[
        IntervalMethod, typer.Option(help="Method of the intervals; auto means skew.")
    ] = "auto",
    sides: Annotated[
        Sides, typer.Option(help="Two-sided interval, lower or upper bound.")
    ] = "two",
    rows: RowOptions,
    which_logs: Annotated[
        bool,
        typer.Option("--which-logs", help="Report standard errors with each log left out."),
    ] = False,
    moments: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Read saved moments, or the result of the query that `poolwise sql` prints, "
            "instead of LOGS. Repeatable: several files are added up.",
        ),
    ] = None,
    read: ReadOptions,
    engine: EngineOptions,
    report: ReportOptions,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Estimate what new policies would have earned."""
    log = build_log(logs or [], roles, rows, read, moments=bool(moments))
    from poolwise.evaluation.evaluate import evaluate as run

    check_outputs(report, log, moments or ())
    targets = roles.targets(trust=read.trust)
    reader = engine.start()
    if moments:
        from poolwise.engines import with_loggers
        from poolwise.evaluation.summarise import from_files

        printed: IntervalMethod = "smoothed" if interval == "smoothed" else "auto"
        reader = summary = from_files(moments, log, targets, interval=printed)
        log = with_loggers(log, summary)
        log = log if summary.crossed else summary.narrowed(log)
    with progress():
        evaluation = run(
            log,
            targets,
            estimator or None,
            level=level,
            interval=interval,
            sides=sides,
            which_logs=which_logs,
            engine=reader,
            baseline=baseline,
            by=by,
        )
    question = asked(command, log, targets)
    save_report(evaluation, report, question)
    print_result(evaluation, as_json=as_json, question=question, verbose=verbose)


@app.command(cls=QuestionCommand)
@grouped
def compare(
    *,
    command: typer.Context,
    logs: Sources,
    roles: RoleOptions,
    baseline: Baseline = None,
    require: Annotated[
        Literal["better", "not-worse"] | None,
        typer.Option(help="Exit with status 1 unless all targets are, against --baseline."),
    ] = None,
    margin: Annotated[
        float, typer.Option(help="Smallest difference that matters to --require.")
    ] = 0.0,
    estimator: OneEstimator = None,
    level: Level = 0.95,
    rows: RowOptions,
    read: ReadOptions,
    engine: EngineOptions,
    report: ReportOptions,
    as_json: AsJson = False,
) -> None:
    """Compare several new policies, pair by pair, on the same rows."""
    log = build_log(logs, roles, rows, read)
    check_outputs(report, log)
    targets = roles.targets(trust=read.trust)
    if require and baseline is None:
        raise UsageError("--require needs --baseline, the target or logger to compare with")
    from poolwise.evaluation.compare import compare as run

    chosen = partial(run, baseline=baseline, estimator=estimator, level=level)
    with progress():
        comparison = chosen(log, targets, engine=engine.start())
    question = asked(command, log, targets)
    save_report(comparison, report, question)
    print_result(comparison, as_json=as_json, question=question)
    if require:
        gate(partial(comparison.require, require, margin=margin))


@app.command(cls=QuestionCommand)
@grouped
def plan(
    *,
    command: typer.Context,
    logs: Sources,
    roles: RoleOptions,
    wanted: PlanOptions,
    level: Level = 0.95,
    rows: RowOptions,
    read: ReadOptions,
    engine: EngineOptions,
    as_json: AsJson = False,
) -> None:
    """Compute how many more rows reach a required precision, or show a lift."""
    log = build_log(logs, roles, rows, read)
    targets = roles.targets(trust=read.trust)
    if len(targets) > 1:
        raise UsageError(f"plan takes one --target, got {len(targets)}")
    from poolwise.evaluation.plan import plan as run

    reader = engine.start()
    with progress():
        outlook = run(log, targets, **asdict(wanted), level=level, engine=reader)
    print_result(outlook, as_json=as_json, question=asked(command, log, targets))


@app.command()
@grouped
def learn(
    *,
    command: typer.Context,
    logs: Sources,
    roles: RoleOptions,
    chosen: LearnOptions,
    level: Level = 0.95,
    rows: RowOptions,
    read: ReadOptions,
    engine: EngineOptions,
    as_json: AsJson = False,
) -> None:
    """Learn a new policy from the logs, and estimate what it will earn."""
    if roles.target:
        raise UsageError("learn takes no --target: evaluate its policy with --target new=FILE")
    log = build_log(logs, roles, rows, read)
    chosen.check_outputs(log)
    from poolwise.learning.learn import learn as run

    reader = engine.start()
    with progress():
        learned = run(log, level=level, engine=reader, **chosen.arguments())
    chosen.save(learned, command_text(command))
    typer.echo(learned.to_json() if as_json else str(learned))
    if chosen.require:
        gate(partial(learned.require, chosen.require))


@app.command(cls=QuestionCommand)
@grouped
def check(
    *,
    logs: Sources,
    roles: RoleOptions,
    read: ReadOptions,
    engine: EngineOptions,
    as_json: AsJson = False,
) -> None:
    """Count the rows that break a rule, and do nothing else."""
    log = build_log(logs, roles, read=read)
    from poolwise.evaluation.check import check as run

    targets = roles.targets(trust=read.trust, optional=True)
    with progress():
        report = run(log, targets, engine=engine.start())
    if report.faults and not as_json:
        raise LogError(report.faults)
    typer.echo(report.to_json() if as_json else str(report))
    if report.faults:
        raise typer.Exit(2)


@app.command()
@grouped
def score(
    *,
    logs: Sources,
    roles: RoleOptions,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Parquet file to write.")],
    read: ReadOptions,
) -> None:
    """Write the log with the probabilities of policies in Python, once, for later use."""
    log = build_log(logs, roles, read=read)
    targets = roles.targets(trust=read.trust)
    from poolwise.evaluation.check import score_log

    with progress():
        scored = score_log(log, targets, out)
    typer.echo(f"wrote {out}; evaluate it with:\n{scored_command(scored, out)}")


@app.command()
@grouped
def sql(
    *,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Table, view or SELECT.")],
    roles: RoleOptions,
    dialect: Annotated[
        str, typer.Option(help="duckdb, spark, postgres, bigquery, snowflake, ...")
    ] = "duckdb",
    on_fault: OnFaultOption = "raise",
    interval: Annotated[
        Literal["auto", "smoothed"],
        typer.Option(help="smoothed adds the sums of that interval; needs --reward-range."),
    ] = "auto",
    reward_range: RewardRange = None,
) -> None:
    """Print the query whose result is all that an evaluation needs."""
    rows = RowOptions(on_fault=on_fault, reward_range=reward_range)
    log = build_log((), roles, rows, moments=True)
    from poolwise.evaluation.check import query_text

    typer.echo(query_text(log, table, roles.targets(), dialect, interval))


@app.command()
@grouped
def demo(
    *,
    command: typer.Context,
    report: ReportOptions,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a new policy on the bundled log, whose true value is known."""
    from poolwise.evaluation.evaluate import evaluate as run
    from poolwise.formats.labelled import TARGETS, digits_log, digits_truth
    from poolwise.report.sentence import lesson

    log = digits_log()
    check_outputs(report, log)
    evaluation = run(log, TARGETS, truth=digits_truth(), which_logs=True)
    question = asked(command, log, TARGETS)
    save_report(evaluation, report, question)
    lines = [lesson(evaluation.to_dict())]
    print_result(
        evaluation, as_json=as_json, question=question, verbose=verbose, sentences=lines
    )


app.command()(init)
app.command(cls=QuestionCommand)(grouped(watch))


@app.command()
def reproduce(
    what: Annotated[Experiment, typer.Argument(help="Part of the paper.")] = "toy",
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data sets; by default $POOLWISE_DATA.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for tables and charts; by default 'reproduction'."),
    ] = None,
) -> None:
    """Recompute the numbers of Agarwal et al. (KDD 2017), claim by claim."""
    from poolwise.paper.run import run

    run(what, data, out, console=console())


def main() -> None:
    """Run the command line; print our own errors as messages, without a traceback."""
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
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - Python flushes it at exit
        sys.stderr.write(f"poolwise: cannot write the output: {error.strerror}\n")
        sys.exit(2)
