"""The command line: parse, call, print; no statistics.

Each command is one library call.  An error of our own family becomes its message on
stderr and exit status 2; anything else is a bug, and `poolwise.__main__` keeps its
traceback.  Heavy imports happen inside the commands, so that ``poolwise --help`` answers
at once.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from typer.main import get_command

from poolwise import __version__
from poolwise.cli.loading import build_log, build_targets, split
from poolwise.cli.options import (
    AsJson,
    CompareOptions,
    EngineOptions,
    EvaluateOptions,
    LearnOptions,
    Level,
    OnFaultOption,
    OptionalSources,
    PlanOptions,
    ReadOptions,
    ReportOptions,
    RewardRange,
    RoleOptions,
    SourceOptions,
    Sources,
    Timezone,
    Verbose,
    WatchOptions,
    grouped,
)
from poolwise.cli.question import ENDING, QuestionCommand, asked, command_text, relative
from poolwise.cli.terminal import (
    check_outputs,
    echo,
    echo_json,
    exit_status,
    gate,
    prepare_streams,
    print_result,
    progress,
    refuse_changed,
    refuse_new_folder,
    save_report,
    scored_command,
)
from poolwise.errors import LogError, UsageError
from poolwise.intervals.base import IntervalName
from poolwise.log.problems import UTC

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
        echo(f"poolwise {__version__}")
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
    wanted: EvaluateOptions,
    moments: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Read saved moments, or the result of the query that `poolwise sql` prints, "
            "instead of LOGS. Repeatable: several files are added up.",
        ),
    ] = None,
    source: SourceOptions,
    report: ReportOptions,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Estimate what new policies would have earned."""
    log = build_log(logs or [], roles, source, moments=bool(moments))
    from poolwise.evaluation.evaluate import evaluate as run

    check_outputs(log, **asdict(report), inputs=moments or ())
    targets = build_targets(roles, trust=source.trust)
    reader = source.start()
    if moments:
        from poolwise.engines import with_loggers
        from poolwise.evaluation.summarise import from_files

        reader = summary = from_files(moments, log, targets, interval=wanted.interval)
        log = with_loggers(log, summary)
        log = log if summary.crossed else summary.narrowed(log)
    options = asdict(wanted)
    estimators = options.pop("estimator") or None
    with progress():
        evaluation = run(log, targets, estimators, engine=reader, **options)
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
    wanted: CompareOptions,
    source: SourceOptions,
    report: ReportOptions,
    as_json: AsJson = False,
) -> None:
    """Compare several new policies, pair by pair, on the same rows."""
    log = build_log(logs, roles, source)
    check_outputs(log, **asdict(report))
    targets = build_targets(roles, trust=source.trust)
    options = asdict(wanted)
    require, margin = options.pop("require"), options.pop("margin")
    if require and wanted.baseline is None:
        raise UsageError("--require needs --baseline, the target or logger to compare with")
    from poolwise.evaluation.evaluate import compare as run

    with progress():
        comparison = run(log, targets, engine=source.start(), **options)
    question = asked(command, log, targets)
    save_report(comparison, report, question)
    print_result(comparison, as_json=as_json, question=question)
    if require:
        gate(partial(comparison.require, require, margin=margin))


@app.command(cls=QuestionCommand)
@grouped
def backtest(
    *,
    command: typer.Context,
    logs: Sources,
    roles: RoleOptions,
    level: Level = 0.95,
    source: SourceOptions,
    report: ReportOptions,
    as_json: AsJson = False,
) -> None:
    """Predict what each logger earned from the other logs, and compare."""
    log = build_log(logs, roles, source)
    check_outputs(log, **asdict(report))
    from poolwise.evaluation.backtest import backtest as run

    with progress():
        found = run(log, level=level, engine=source.start())
    question = asked(command, log, {})
    save_report(found, report, question)
    print_result(found, as_json=as_json, question=question)


@app.command(cls=QuestionCommand)
@grouped
def plan(
    *,
    command: typer.Context,
    logs: Sources,
    roles: RoleOptions,
    wanted: PlanOptions,
    source: SourceOptions,
    as_json: AsJson = False,
) -> None:
    """Compute how many more rows reach a required precision, or show a lift."""
    log = build_log(logs, roles, source)
    targets = build_targets(roles, trust=source.trust)
    if len(targets) > 1:
        raise UsageError(f"plan takes one --target, got {len(targets)}")
    from poolwise.evaluation.plan import plan as run

    reader = source.start()
    with progress():
        outlook = run(log, targets, engine=reader, **asdict(wanted))
    print_result(outlook, as_json=as_json, question=asked(command, log, targets))


@app.command()
@grouped
def learn(
    *,
    command: typer.Context,
    logs: Sources,
    roles: RoleOptions,
    wanted: LearnOptions,
    source: SourceOptions,
    as_json: AsJson = False,
) -> None:
    """Learn a new policy from the logs, and estimate what it will earn."""
    if roles.target:
        raise UsageError("learn takes no --target: evaluate its policy with --target new=FILE")
    log = build_log(logs, roles, source)
    options = asdict(wanted) | {"features": split(wanted.features)}
    out, html, require = (options.pop(name) for name in ("out", "html", "require"))
    if wanted.anchor == "none":
        options["anchor"] = None
    check_outputs(log, out=out, html=html)
    from poolwise.learning.learn import learn as run

    reader = source.start()
    with progress():
        learned = run(log, engine=reader, **options)
    for path in (out, html):
        if path is not None:
            learned.save(path, command=command_text(command))
    if as_json:
        echo_json(learned.to_json())
    else:
        echo(str(learned))
    if require:
        gate(partial(learned.require, require))


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
    log = build_log(logs, roles, SourceOptions(**asdict(read)))
    from poolwise.evaluation.check import check as run

    targets = build_targets(roles, trust=read.trust, optional=True)
    with progress():
        report = run(log, targets, engine=engine.start())
    if as_json:
        echo_json(report.to_json())
    elif not report.faults:
        echo(str(report))
    if report.faults:
        raise typer.Exit(2) if as_json else LogError(report.faults)


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
    log = build_log(logs, roles, SourceOptions(**asdict(read)))
    targets = build_targets(roles, trust=read.trust)
    from poolwise.evaluation.check import score_log

    with progress():
        scored = score_log(log, targets, out)
    echo(f"wrote {out}; evaluate it with:\n{scored_command(scored, out)}")


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
    timezone: Timezone = UTC,
    interval: Annotated[
        IntervalName,
        typer.Option(help="smoothed adds the sums of that interval; needs --reward-range."),
    ] = "auto",
    reward_range: RewardRange = None,
) -> None:
    """Print the query whose result is all that an evaluation needs."""
    source = SourceOptions(on_fault=on_fault, timezone=timezone, reward_range=reward_range)
    log = build_log((), roles, source, moments=True)
    from poolwise.evaluation.summarise import query_text

    query = query_text(log, table, build_targets(roles), dialect, interval)
    refuse_changed(query)
    echo(query)


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
    check_outputs(log, **asdict(report))
    evaluation = run(log, TARGETS, truth=digits_truth(), which_logs=True)
    question = asked(command, log, TARGETS)
    save_report(evaluation, report, question)
    lines = [lesson(evaluation.to_dict())]
    print_result(
        evaluation, as_json=as_json, question=question, verbose=verbose, sentences=lines
    )


@app.command()
def init(
    logs: Sources,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Question file to write.")] = Path(
        "question.toml"
    ),
) -> None:
    """Write a question file, with roles guessed from the columns of the logs."""
    if out.suffix.lower() != ENDING:
        raise UsageError(f"cannot write {out}: a question file must end in {ENDING}")
    if out.exists():
        raise UsageError(f"cannot write {out}: it exists; remove it, or pass --out FILE")
    from poolwise.cli.init import question_text
    from poolwise.rows.output import write_whole

    write_whole(out, question_text(logs, relative(logs, out.parent)).encode())
    echo(f"wrote {out}; read it, correct it, then run: poolwise check {out}")


@app.command(cls=QuestionCommand)
@grouped
def watch(
    *,
    command: typer.Context,
    logs: Sources,
    roles: RoleOptions,
    wanted: WatchOptions,
    source: SourceOptions,
    as_json: AsJson = False,
) -> None:
    """Add rows to a state; print bounds that hold however often one looks."""
    log = build_log(logs, roles, source)
    targets = build_targets(roles, trust=source.trust)
    options = asdict(wanted)
    state = options.pop("state")
    refuse_new_folder(state)
    from poolwise.evaluation.watch import watch as run

    with progress():
        watched = run(state, log, targets, engine=source.start(), **options)
    print_result(watched, as_json=as_json, question=asked(command, log, targets))
    if watched.claims:
        gate(watched.require)


def main() -> NoReturn:
    """Run the command line and exit; raise unexpected exceptions."""
    prepare_streams()
    sys.exit(exit_status(_run))


def _run() -> None:
    command = get_command(app)
    with command.make_context("poolwise", sys.argv[1:]) as context:
        command.invoke(context)
