"""The command line: parse, call, print; no statistics.

Each command is one library call.  An error of our own family becomes its message on
stderr and exit status 2; anything else is a bug, and `poolwise.__main__` keeps its
traceback.  Heavy imports happen inside the commands, so that ``poolwise --help`` answers
at once.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer.main import get_command

from poolwise import __version__
from poolwise.cli.loading import (
    MODELS,
    build_clicks,
    build_log,
    build_question,
    build_targets,
    by_position,
    flag,
    list_metrics,
    named_model,
    number_list,
    numbers,
    pairs,
    split,
)
from poolwise.cli.options import (
    AsJson,
    AsMarkdown,
    ClickOptions,
    CompareOptions,
    DecideOptions,
    EvaluateOptions,
    LearnOptions,
    Level,
    OnFaultOption,
    OptionalSources,
    PlanOptions,
    RankerOptions,
    ReadOptions,
    ReportOptions,
    RewardRange,
    RoleOptions,
    SourceOptions,
    Sources,
    Timezone,
    Verbose,
    WatchOptions,
    group_options,
)
from poolwise.cli.question import (
    ENDING,
    META,
    QuestionCommand,
    command_text,
    record_question,
    relative,
)
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
    requirement,
    save_report,
    scored_command,
)
from poolwise.errors import LogError, UsageError
from poolwise.intervals.base import IntervalName
from poolwise.log.problems import UTC

if TYPE_CHECKING:
    from poolwise.evaluation.output import Reported

COMPLETE = "_POOLWISE_COMPLETE"  # a shell sets it to get completions
EXAMPLES = """\b
Examples:
  poolwise demo                            evaluate a new policy on the bundled log
  poolwise init logs/*.parquet > question.toml
                                           guess what the columns mean
  poolwise check question.toml             count the rows that break a rule
  poolwise evaluate question.toml --html report.html
  poolwise evaluate logs/*.parquet --logger policy --reward click \\
      --propensities 'p_{logger}' --target new=p_new

Exit statuses: 0 done; 1 a requirement was not shown, or `decide` says don't; 2 a
mistake or a refusal, with one message on stderr; 3 `decide` can't tell.
"""

app = typer.Typer(
    name="poolwise",
    help="Estimate what new policies would have earned, from the logs of other policies.",
    epilog=EXAMPLES,
    no_args_is_help=True,
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
@group_options
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
    as_markdown: AsMarkdown = False,
) -> None:
    """Estimate what new policies would have earned."""
    if moments:
        log = build_log(logs or [], roles, source, moments=True)
        targets = build_targets(roles, trust=source.trust)
    else:
        log, targets = build_question(logs or [], roles, source)
    from poolwise.evaluation.evaluate import evaluate as run

    check_outputs(log, **asdict(report), inputs=moments or ())
    reader = source.start()
    if moments:
        from poolwise.engines import with_loggers
        from poolwise.evaluation.summarise import from_files

        reader = summary = from_files(moments, log, targets, interval=wanted.interval)
        log = with_loggers(log, summary)
        log = log if summary.crossed else summary.narrowed(log)
    options = asdict(wanted)
    estimators = options.pop("estimator") or None
    options["metrics"] = list_metrics(options.pop("metric") or (), "--metric")
    for name in ("thresholds", "quantiles"):
        options[name] = number_list(options[name] or (), flag(name))
    options["truth"] = numbers(wanted.truth, "--truth")
    options["model"] = named_model(wanted.model, MODELS, trust=source.trust)
    require, margin = options.pop("require"), options.pop("margin")
    with progress():
        evaluation = run(log, targets, estimators, engine=reader, **options)
    question = record_question(command, log, targets)
    save_report(evaluation, report, question)
    print_result(
        evaluation, as_json=as_json, as_markdown=as_markdown, question=question, verbose=verbose
    )
    if require:
        gate(partial(evaluation.require, *requirement(require), margin=margin))


@app.command(cls=QuestionCommand)
@group_options
def compare(
    *,
    command: typer.Context,
    logs: Sources,
    roles: RoleOptions,
    wanted: CompareOptions,
    source: SourceOptions,
    report: ReportOptions,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Compare several new policies, pair by pair, on the same rows."""
    log, targets = build_question(logs, roles, source)
    check_outputs(log, **asdict(report))
    options = asdict(wanted)
    options["metrics"] = list_metrics(options.pop("metric") or (), "--metric")
    options["model"] = named_model(wanted.model, MODELS, trust=source.trust)
    require, margin = options.pop("require"), options.pop("margin")
    if require and wanted.baseline is None:
        raise UsageError("--require needs --baseline, the target or logger to compare with")
    from poolwise.evaluation.evaluate import compare as run

    with progress():
        comparison = run(log, targets, engine=source.start(), **options)
    question = record_question(command, log, targets)
    save_report(comparison, report, question)
    print_result(comparison, as_json=as_json, as_markdown=as_markdown, question=question)
    if require:
        gate(partial(comparison.require, *requirement(require), margin=margin))


@app.command(cls=QuestionCommand)
@group_options
def decide(
    *,
    command: typer.Context,
    logs: Sources,
    roles: RoleOptions,
    wanted: DecideOptions,
    source: SourceOptions,
    report: ReportOptions,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Decide: ship a candidate (status 0), don't (1), or can't tell (3)."""
    log, targets = build_question(logs, roles, source)
    check_outputs(log, **asdict(report))
    options = asdict(wanted)
    options["metrics"] = list_metrics(options.pop("metric") or (), "--metric")
    options["model"] = named_model(wanted.model, MODELS, trust=source.trust)
    from poolwise.evaluation.decide import decide as run

    with progress():
        decision = run(log, targets, engine=source.start(), **options)
    question = record_question(command, log, targets)
    save_report(decision, report, question)
    print_result(decision, as_json=as_json, as_markdown=as_markdown, question=question)
    if decision.exit_status:
        raise typer.Exit(decision.exit_status)


@app.command(cls=QuestionCommand)
@group_options
def backtest(
    *,
    command: typer.Context,
    logs: Sources,
    roles: RoleOptions,
    level: Level = 0.95,
    source: SourceOptions,
    report: ReportOptions,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Predict what each logger earned from the other logs, and compare."""
    log, _ = build_question(logs, roles, source, optional=True)
    check_outputs(log, **asdict(report))
    from poolwise.evaluation.backtest import backtest as run

    with progress():
        found = run(log, level=level, engine=source.start())
    question = record_question(command, log, {})
    save_report(found, report, question)
    print_result(found, as_json=as_json, as_markdown=as_markdown, question=question)


@app.command(cls=QuestionCommand)
@group_options
def clicks(
    *,
    command: typer.Context,
    logs: Sources,
    roles: ClickOptions,
    rankers: RankerOptions,
    report: ReportOptions,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Estimate position bias, and the clicks of new rankers, from the lists of several."""
    from poolwise.evaluation.evaluate import evaluate as run
    from poolwise.formats.clicks import click_log, position_bias
    from poolwise.log.log import Log, describe_role

    source, given = build_clicks(logs, roles, rankers)
    bias, worth = by_position(roles.bias, "--bias"), by_position(roles.worth, "--worth")
    asked = {"source": source, **given, "bias": bias, "worth": worth}
    log = Log(source, reward=roles.click, propensity="1")
    targets = pairs(rankers.target or [], "--target")
    options = {name: getattr(rankers, name) for name in ("baseline", "by")}
    unused = [k for k, v in {"bias": bias, "worth": worth, **options}.items() if v]
    if unused and not targets:
        raise UsageError(
            f"--{unused[0]} has no meaning without --target: only the position bias is printed"
        )
    check_outputs(log, **asdict(report))
    result: Reported
    with progress():
        if targets:
            log, columns = click_log(source, targets, bias=bias, worth=worth, **given)
            result = run(log, columns, level=rankers.level, **options)
        else:
            result = position_bias(source, level=rankers.level, **given)
    question = record_question(command, log, targets)
    question["log"] = {k: t for name, v in asked.items() for k, t in describe_role(name, v)}
    save_report(result, report, question)
    print_result(result, as_json=as_json, question=question, verbose=verbose)


@app.command(cls=QuestionCommand)
@group_options
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
    log, targets = build_question(logs, roles, source)
    if len(targets) > 1:
        names = ", ".join(f"--target {name}" for name in targets)
        raise UsageError(f"plan takes one target, got {len(targets)}: choose one of {names}")
    from poolwise.evaluation.plan import plan as run

    options = asdict(wanted)
    estimators = options.pop("estimator") or None
    reader = source.start()
    with progress():
        outlook = run(log, targets, estimators=estimators, engine=reader, **options)
    print_result(outlook, as_json=as_json, question=record_question(command, log, targets))


@app.command(cls=QuestionCommand)
@group_options
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
    if roles.target and META not in command.meta:
        raise UsageError("learn takes no --target: evaluate its policy with --target new=FILE")
    if source.request is not None or source.session is not None:
        raise UsageError("learn requires one decision per row: it takes no lists and sessions")
    log = build_log(logs, roles, source)
    options = asdict(wanted) | {"features": split(wanted.features)}
    options["actions"] = split(wanted.actions) or None
    for name in ("strengths", "smoothing"):
        given = options.pop(name)
        options |= {name: number_list(given, flag(name))} if given else {}
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
@group_options
def check(
    *,
    logs: Sources,
    roles: RoleOptions,
    source: SourceOptions,
    as_json: AsJson = False,
) -> None:
    """Count the rows that break a rule, and do nothing else."""
    log, targets = build_question(logs, roles, source, optional=True)
    from poolwise.evaluation.check import check as run

    with progress():
        report = run(log, targets, engine=source.start())
    if as_json:
        echo_json(report.to_json())
    elif not report.faults:
        echo(str(report))
    if report.faults:
        raise typer.Exit(2) if as_json else LogError(report.faults)


@app.command()
@group_options
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
@group_options
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
@group_options
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
    question = record_question(command, log, TARGETS)
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
    from poolwise.cli.init import guess_question
    from poolwise.files import write_whole

    guessed = guess_question(logs, relative(logs, out.parent))
    write_whole(out, guessed.text.encode())
    for title, sentences in (("missing", guessed.missing), ("not decided", guessed.open)):
        for sentence in sentences:
            echo(f"{title}: {sentence}")
    echo(f"wrote {out}; read it, correct it, then run: poolwise {guessed.command} {out}")


@app.command(cls=QuestionCommand)
@group_options
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
    log, targets = build_question(logs, roles, source)
    options = asdict(wanted)
    state = options.pop("state")
    refuse_new_folder(state)
    from poolwise.evaluation.watch import watch as run

    with progress():
        watched = run(state, log, targets, engine=source.start(), **options)
    print_result(watched, as_json=as_json, question=record_question(command, log, targets))
    if watched.claims:
        gate(watched.require)


def main() -> NoReturn:
    """Run the command line and exit; raise unexpected exceptions."""
    prepare_streams()
    if COMPLETE in os.environ or {"--install-completion", "--show-completion"} & {
        *sys.argv[1:2]
    }:
        try:
            get_command(app)(prog_name="poolwise")  # a shell asks: typer answers, and exits
        except SystemExit as end:
            sys.exit(2 if end.code else 0)  # an unknown shell is a mistake
    sys.exit(exit_status(_run))


def _run() -> None:
    command = get_command(app)
    with command.make_context("poolwise", sys.argv[1:]) as context:
        command.invoke(context)
