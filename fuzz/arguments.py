"""Fuzz the command line: any words as options of any command."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

import harness

harness.instrument(
    "poolwise.cli.commands",
    "poolwise.cli.loading",
    "poolwise.cli.options",
    "poolwise.log.log",
    "poolwise.log.adapters",
    "poolwise.log.policy",
    "poolwise.rows.roles",
    "poolwise.rows.rules",
    "poolwise.rows.guard",
    "poolwise.rows.sources",
)

import atheris
import pyarrow.parquet as pq

from poolwise.cli.commands import main

FOLDER = Path(tempfile.mkdtemp(prefix="poolwise-fuzz-"))
COMMANDS = ("evaluate", "compare", "plan", "check", "sql")
OPTIONS = (
    "--reward",
    "--logger",
    "--propensity",
    "--propensities",
    "--target",
    "--estimator",
    "--level",
    "--interval",
    "--sides",
    "--cluster",
    "--trained-on",
    "--on-fault",
    "--reward-range",
    "--half-width",
    "--baseline",
    "--dialect",
    "--log-probabilities",
    "--json",
)
WORDS = (
    "reward",
    "logger",
    "p",
    "a=p_a,b=p_b",
    "a=p_a",
    "new=t",
    "old=p_a",
    "p_a",
    "t",
    "0.9",
    "1e9",
    "nan",
    "-1",
    "0,1",
    "drop",
    "naive",
    "calibrated",
    "student",
    "betting",
    "smoothed",
    "lower",
    "spark",
    "new=least(t, 1)",
    "new=t+",
    "new=(select 1)",
    "new='x",
    "new=t;--",
    "a=b",
    "=",
    "",
    "log",
    'new="t"',
    "new=case when p>0.5 then t else 0 end",
    "new=t::varchar",
    "new=1e400",
    "new=NULL",
)


def _write_log() -> str:
    table = harness.small_log()
    path = str(FOLDER / "log.parquet")
    pq.write_table(table, path)
    return path


PATH = _write_log()
USUAL = (
    "--reward",
    "reward",
    "--logger",
    "logger",
    "--propensity",
    "p",
    "--propensities",
    "a=p_a,b=p_b",
    "--target",
    "new=t",
)


def _word(data: atheris.FuzzedDataProvider) -> str:
    kind = data.ConsumeIntInRange(0, 5)
    if kind == 0:
        return OPTIONS[data.ConsumeIntInRange(0, len(OPTIONS) - 1)]
    if kind < 4:
        return WORDS[data.ConsumeIntInRange(0, len(WORDS) - 1)]
    text = data.ConsumeUnicodeNoSurrogates(data.ConsumeIntInRange(1, 30)).replace("\0", "")
    return text if kind == 4 else f"new={text}"


def _arguments(data: atheris.FuzzedDataProvider) -> list[str]:
    command = COMMANDS[data.ConsumeIntInRange(0, len(COMMANDS) - 1)]
    source = PATH
    if data.ConsumeIntInRange(0, 7) == 0:
        source = data.ConsumeUnicodeNoSurrogates(40).replace("\0", "")
    words = [command, source]
    usual = list(USUAL)
    if data.ConsumeBool():  # one of the usual arguments is replaced
        usual[data.ConsumeIntInRange(0, len(usual) - 1)] = _word(data)
    words += usual
    for _ in range(data.ConsumeIntInRange(0, 4)):
        words += [OPTIONS[data.ConsumeIntInRange(0, len(OPTIONS) - 1)], _word(data)]
    return words


def one_input(content: bytes) -> None:
    """Run the program once."""
    words = _arguments(atheris.FuzzedDataProvider(content))
    sys.argv = ["poolwise", *words]
    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    if status not in {0, 2}:
        raise AssertionError(f"status {status} of {words}: {err.getvalue()}")
    if status == 2 and not (err.getvalue() or "check" in words):
        raise AssertionError(f"no message for {words}")
    if status == 0 and "--json" in words and words[0] in {"evaluate", "compare", "plan"}:
        json.loads(out.getvalue(), parse_constant=harness.refuse)


if __name__ == "__main__":
    harness.run(one_input)
