"""Entry of the program: signals first, then the command line and its imports.

Ctrl-C and the signals that ask a program to end raise KeyboardInterrupt, at any time from here
on: whatever has to be cleaned up is cleaned up, and the exit status is 128 plus the signal's
number.  A signal that comes while a module is imported waits for that, since modules in C may
swallow the exception.  An unexpected exception is a bug: it keeps its traceback, and exits
with its own status, since 1 means that a requirement was not shown.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

BUG = 70  # EX_SOFTWARE of sysexits.h
AGAIN = 0.01  # seconds until a signal that has to wait comes again
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP


def main() -> None:
    """Run the command line, and exit."""
    received: list[int] = []
    status: int | str | None = 0

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if not _importing(frame):
            raise KeyboardInterrupt
        again = threading.Timer(AGAIN, _thread.interrupt_main, [number])
        again.daemon = True
        again.start()

    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    numbers = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    try:
        for number in numbers:
            signal.signal(number, stop)
        from poolwise.cli.commands import main as run

        run()
    except SystemExit as end:
        status = end.code
        if status and received:  # a library turned the interrupt into an error of its own
            status = _exit_stopped(received)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it decides the status
        caught = received or isinstance(error, KeyboardInterrupt)
        status = _exit_stopped(received) if caught else _bug(error)
    finally:
        for number in numbers:  # nothing is left to clean up
            signal.signal(number, signal.SIG_DFL)
    sys.exit(status)


def _importing(frame: FrameType | None) -> bool:
    """Return True if a module is being imported, here or in a caller."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _exit_stopped(received: list[int]) -> int:
    _say("poolwise: stopped\n")
    return 128 + (received or [signal.SIGINT])[0]


def _bug(error: BaseException) -> int:
    import traceback

    _say("".join(traceback.format_exception(error)))
    return BUG


def _say(text: str) -> None:
    """Write to stderr, unless it is closed."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


if __name__ == "__main__":
    main()
