"""Terminal: output of the commands as tables, JSON or files, and the progress bar."""

from __future__ import annotations

import shlex
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from poolwise.errors import NotShownError, UsageError
from poolwise.log.problems import UTC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from poolwise.cli.options import ReportOptions
    from poolwise.evaluation.check import ScoredLog
    from poolwise.evaluation.output import Reported, Result
    from poolwise.log.log import Log


@contextmanager
def progress() -> Iterator[None]:
    """Show a progress bar with the remaining time, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    from poolwise.rows.output import shown

    with shown(Console(stderr=True)):
        yield


def console() -> Console:
    """Return a console: colour on a terminal, plain text of 80 columns in a pipe."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 80, soft_wrap=False)


def print_result(
    result: Result,
    *,
    as_json: bool,
    question: Mapping[str, object],
    verbose: bool = False,
    sentences: Sequence[str] = (),
) -> None:
    """Print a result as tables and sentences, or as JSON with the question."""
    if as_json:
        typer.echo(result.to_json(question=question))
        return
    from rich.text import Text

    from poolwise.report.tables import show

    terminal = console()
    for sentence in result.opening:
        terminal.print(Text(f"{sentence}\n"))
    show(result.grids() if verbose else result.brief(), result.warnings, terminal)
    for sentence in (*result.sentences, *sentences):
        terminal.print(Text(sentence))


def gate(require: Callable[[], None]) -> None:
    """Exit with status 1 if a requirement does not hold, with the reason on stderr."""
    try:
        require()
    except NotShownError as reason:
        typer.echo(f"poolwise: {reason}", err=True)
        raise typer.Exit(1) from None


def check_outputs(
    log: Log,
    *,
    html: Path | None = None,
    charts: Path | None = None,
    out: Path | None = None,
    inputs: Sequence[Path] = (),
) -> None:
    """Reject output paths that cannot be written or that are inputs, before reading rows."""
    from poolwise.rows.guard import files_of
    from poolwise.rows.output import HTML, JSON, refuse_folder, refuse_output

    for path, kind in ((out, JSON), (html, HTML)):
        if path is not None:
            refuse_output(path, kind, [*files_of(log), *inputs])
            refuse_new_folder(path)
    if charts is not None:
        refuse_folder(charts)


def refuse_new_folder(path: Path) -> None:
    """Reject a file in a folder that does not exist: its name may be a typing error."""
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {str(path.parent)!r}")


def save_report(result: Reported, report: ReportOptions, asked: Mapping[str, object]) -> None:
    """Write the report and the charts that the options name."""
    if report.html is not None:
        result.save(report.html, command=str(asked["command"]), question=asked)
    if report.charts is not None:
        from poolwise.report.page import save_charts

        save_charts(result.charts(), report.charts)


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
    words += [] if log.timezone == UTC else ["--timezone", log.timezone]
    words += ["--densities"] * log.densities
    return shlex.join(words + ["--log-probabilities"] * log.log_probabilities)
