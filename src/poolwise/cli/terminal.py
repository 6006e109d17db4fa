"""Terminal: output of the commands as tables, JSON or files, errors and the progress bar.

A character that the terminal cannot show is written in ASCII; in JSON it is escaped, so that
the text means the same.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import json
import os
import shlex
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from poolwise.errors import NotShownError, PoolwiseError, UsageError
from poolwise.log.problems import UTC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from poolwise.cli.options import ReportOptions
    from poolwise.evaluation.check import ScoredLog
    from poolwise.evaluation.output import Reported, Result
    from poolwise.log.log import Log


NO_OUTPUT = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # stdout cannot be written
BROKEN_PIPE = 141  # 128 plus SIGPIPE, as the shell reports it of other programs
PLAIN_SIGNS = {
    "±": "+/-",
    "–": "-",
    "…": "...",
    "×": "x",
    "★": "*",
    "†": "+",
    "∞": "inf",
    "→": "->",
    "←": "<-",
}
REQUIRED_VERDICTS = ("better", "not-worse")
IN_ASCII = "poolwise.ascii"  # handler of characters that an encoding lacks


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace the characters of an error by signs of ASCII, or by escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    plain = "".join(PLAIN_SIGNS.get(char, char) for char in text)
    return plain.encode("ascii", "backslashreplace").decode("ascii"), error.end


def prepare_streams() -> None:
    """Let stdout and stderr take every character; a closed one takes them to nowhere."""
    codecs.register_error(IN_ASCII, _in_ascii)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _nowhere())
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=IN_ASCII)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - a device


def exit_status(run: Callable[[], None]) -> int:
    """Run a command, print an expected error as a message, and return the exit status."""
    try:
        status = _status(run)
        sys.stdout.flush()
    except OSError as error:
        broken = isinstance(error, BrokenPipeError)  # nobody reads on, as in `poolwise | head`
        if not broken and error.errno not in NO_OUTPUT:
            raise
        sys.stdout = _nowhere()  # Python flushes it at exit
        if not broken:
            _complain(f"poolwise: cannot write the output: {error.strerror}")
        return BROKEN_PIPE if broken else 2
    return status


def _status(run: Callable[[], None]) -> int:
    try:
        run()
    except typer.Exit as end:
        return end.exit_code
    except SystemExit as end:  # its status would be taken for ours
        raise RuntimeError("code that poolwise called, such as a policy, exited") from end
    except PoolwiseError as error:
        _complain(f"poolwise: {error}")
        return 2
    except Exception as error:
        show = getattr(error, "show", None)  # typer has no public name for mistakes of usage
        if show is None:
            raise
        show()
        return 2
    return 0


def _complain(text: str) -> None:
    """Write a line to stderr, unless it is closed."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def echo(text: str) -> None:
    """Print a text."""
    sys.stdout.write(f"{text}\n")


def echo_json(text: str) -> None:
    """Print JSON, in ASCII if the terminal lacks one of its characters."""
    echo(text if _fits(text) else json.dumps(json.loads(text), indent=2))


def refuse_changed(text: str) -> None:
    """Refuse to print a text that has to be exact in an encoding that lacks its characters."""
    if not _fits(text):
        raise UsageError(
            f"the output has characters that its encoding, {sys.stdout.encoding}, lacks: set "
            "PYTHONIOENCODING=utf-8"
        )


def _fits(text: str) -> bool:
    """Return True if the encoding of stdout has all characters of a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def progress() -> Iterator[None]:
    """Show a progress bar with the remaining time, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from poolwise.progress import show_progress

    with show_progress(console(stderr=True)):
        yield


def console(*, stderr: bool = False) -> Console:
    """Return a console: colour on a terminal, plain text of 80 columns in a pipe."""
    from rich.console import Console

    class Open(Console):
        def on_broken_pipe(self) -> NoReturn:
            """Raise the error that ended a write; rich would exit with status 1."""
            raise  # noqa: PLE0704 - the BrokenPipeError that rich caught

    width = None if stderr or sys.stdout.isatty() else 80
    return Open(highlight=False, width=width, soft_wrap=False, stderr=stderr)


def print_result(
    result: Result,
    *,
    as_json: bool,
    as_markdown: bool = False,
    question: Mapping[str, object],
    verbose: bool = False,
    sentences: Sequence[str] = (),
) -> None:
    """Print a result as tables and sentences, as Markdown, or as JSON with the question."""
    if as_json and as_markdown:
        raise UsageError("--json and --markdown are two forms of the same output: choose one")
    if as_markdown:
        echo(result.to_markdown())
        return
    if as_json:
        echo_json(result.to_json(question=question))
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
        _complain(f"poolwise: {reason}")
        raise typer.Exit(1) from None


def requirement(text: str) -> tuple[Any, str | None]:
    """Return the verdict and the target that VERDICT[:TARGET] names.

    >>> requirement("better:candidate"), requirement("not-worse")
    (('better', 'candidate'), ('not-worse', None))
    """
    verdict, _, target = text.partition(":")
    if verdict not in REQUIRED_VERDICTS:
        raise UsageError(
            f"--require must be one of {', '.join(REQUIRED_VERDICTS)}, got {text!r}"
        )
    return verdict, target or None


def check_outputs(
    log: Log,
    *,
    html: Path | None = None,
    charts: Path | None = None,
    out: Path | None = None,
    inputs: Sequence[Path] = (),
) -> None:
    """Reject output paths that cannot be written or that are inputs, before reading rows."""
    from poolwise.files import HTML, JSON, refuse_folder, refuse_output
    from poolwise.rows.guard import list_files

    for path, kind in ((out, JSON), (html, HTML)):
        if path is not None:
            refuse_output(path, kind, [*list_files(log), *inputs])
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
