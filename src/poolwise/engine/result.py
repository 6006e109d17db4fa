"""Result: what a warehouse answered to the printed query, from a file.

The answer has one line per logger and comes in whatever format the warehouse exports:
Parquet, CSV or JSON.  Values may be text; names may have changed their case.
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

from poolwise.engine.answer import decode
from poolwise.engine.standalone import MARK
from poolwise.errors import Fault, LogError, SourceError
from poolwise.log import file_format

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from poolwise.engine.answer import Group
    from poolwise.engine.sql import Request

ADVICE = (
    "Correct these rows where they are written, or print the query with on_fault='drop' "
    "(--on-fault drop). Which rules they break is told by `poolwise check`, or by an "
    "evaluation over a connection."
)


def read_result(path: Path, request: Request, mark: str) -> dict[str, Group]:
    """The groups of an answer, by logger; refuses the answer to another question."""
    lines = read_lines(path)
    marks = {str(line.get(MARK)) for line in lines}
    if not lines or "None" in marks:
        raise SourceError(f"{str(path)!r}", "it is not the result of `poolwise sql`")
    if marks != {mark}:
        raise SourceError(
            f"{str(path)!r}",
            "it answers another question than this one: evaluate with the same roles, targets, "
            "options and version of poolwise that printed the query",
        )
    try:
        if not all(int(line["rows"]) > 0 for line in lines):
            raise ValueError("a logger without rows")  # noqa: TRY301 - one error for all damage
        groups = [decode(request, line) for line in lines]
    except (KeyError, TypeError, ValueError) as reason:
        raise SourceError(f"{str(path)!r}", f"its columns are damaged ({reason})") from reason
    _refuse_bad(groups, request)
    if len({g.logger for g in groups}) < len(groups):
        raise SourceError(f"{str(path)!r}", "it has several lines for one logger")
    return {str(g.logger): g for g in groups}


def _refuse_bad(groups: list[Group], request: Request) -> None:
    faults = [
        Fault("the row breaks a rule", g.logger or "", g.bad, advice=ADVICE)
        for g in groups
        if g.bad
    ]
    present = {g.logger for g in groups}
    if not request.table.drop:
        faults += [
            Fault("the logger has no rows", label, 0)
            for label in request.table.labels
            if label not in present
        ]
    if faults:
        raise LogError(faults)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a small file, as mappings; names in lower case."""
    kind = file_format(str(path))
    try:
        lines = {"parquet": _parquet, "csv": _csv, "json": _json}[kind](path)
        return [{str(name).lower(): value for name, value in line.items()} for line in lines]
    except OSError as reason:
        raise SourceError(f"{str(path)!r}", reason.strerror or str(reason)) from reason
    except (ValueError, AttributeError, csv.Error) as reason:
        why = f"it is no {kind} file: {str(reason).splitlines()[0]}"
        raise SourceError(f"{str(path)!r}", why) from reason


def _parquet(path: Path) -> list[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found: list[Mapping[str, Any]] = pq.read_table(path).to_pylist()
    except pa.ArrowException as reason:
        raise ValueError(str(reason)) from reason
    return found


def _csv(path: Path) -> list[Mapping[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        separator = "\t" if path.suffix == ".tsv" else ","
        lines = csv.DictReader(file, delimiter=separator)
        return [
            {k: None if v in {"", "NULL", "\\N"} else v for k, v in line.items()}
            for line in lines
        ]


def _json(path: Path) -> list[Mapping[str, Any]]:
    text = path.read_text("utf-8-sig")
    if text.lstrip().startswith("["):
        found: list[Mapping[str, Any]] = json.loads(text)
        return found
    return [json.loads(line) for line in text.splitlines() if line.strip()]
