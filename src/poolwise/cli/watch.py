"""`poolwise watch`: add today's rows to a state, and exit with 1 until a claim holds."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads it
from typing import Annotated

import typer

from poolwise.cli.keys import asked
from poolwise.cli.options import (
    AsJson,
    EngineOptions,
    Level,
    ReadOptions,
    RoleOptions,
    RowOptions,
    Sources,
    build_log,
)
from poolwise.cli.terminal import gate, print_result, progress, refuse_new_folder


def watch(  # noqa: PLR0913 - one for each option, or group of them
    *,
    command: typer.Context,
    logs: Sources,
    roles: RoleOptions,
    state: Annotated[
        Path,
        typer.Option(metavar="FILE", help="State to add the rows to; .npz, begun if missing."),
    ],
    above: Annotated[
        float | None,
        typer.Option(help="Exit with status 1 unless the value is above this number."),
    ] = None,
    better_than: Annotated[
        str | None,
        typer.Option(help="Exit with status 1 unless better than this logger or target."),
    ] = None,
    planned: Annotated[
        int | None, typer.Option(metavar="ROWS", help="Rows that will be added in all.")
    ] = None,
    level: Level = 0.95,
    rows: RowOptions,
    read: ReadOptions,
    engine: EngineOptions,
    as_json: AsJson = False,
) -> None:
    """Add rows to a state; print bounds that hold however often one looks."""
    log = build_log(logs, roles, rows, read)
    targets = roles.targets(trust=read.trust)
    refuse_new_folder(state)
    from poolwise.evaluation.watch import watch as run

    with progress():
        watched = run(
            state,
            log,
            targets,
            above=above,
            better_than=better_than,
            level=level,
            planned=planned,
            engine=engine.start(),
        )
    print_result(watched, as_json=as_json, question=asked(command, log, targets))
    if watched.claims:
        gate(watched.require)
