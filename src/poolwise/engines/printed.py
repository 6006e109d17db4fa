"""Printed query: `poolwise sql` prints it, and its exported answer is read back.

The query counts, centres and aggregates by itself, in any dialect of SQLGlot.
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

from poolwise.engines.answer import decode
from poolwise.engines.saved import question
from poolwise.engines.sql import MomentsRequest, moments_query, written
from poolwise.engines.warehouse import check_dialect, relation_of
from poolwise.errors import Fault, LogError, SourceError, UsageError
from poolwise.log.log import file_format
from poolwise.rows.roles import assign
from poolwise.rows.rules import string

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from poolwise.engines.answer import Group
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.terms import Needs

MARK = "poolwise"  # column of the answer with the hash of the question
NULLS = {"", "NULL", "\\N"}  # NULL in exported CSV files
ADVICE = (
    "Correct the rows at their source, or print the query with on_fault='drop' "
    "(--on-fault drop). `poolwise check`, or an evaluation over a connection, lists the rules "
    "that they break."
)


def standalone_query(
    log: Log, table: str, targets: Mapping[str, PolicyLike], needs: Needs, dialect: str
) -> str:
    """Return the text of the query; its last column is a hash of the question."""
    dialect = check_dialect(dialect)
    request = standalone_request(log, table, targets, needs)
    mark = string(question(log, targets).mark(needs)).as_(MARK, quoted=True)
    return written(moments_query(request).select(mark), dialect, pretty=True)


def standalone_request(
    log: Log, table: str, targets: Mapping[str, PolicyLike], needs: Needs
) -> MomentsRequest:
    """Return the request of such a query; column names are not looked up."""
    roles = assign(log, targets, None, relation_of(table))
    if roles.scored:
        raise UsageError("policies in Python cannot be written as SQL: score them first")
    return MomentsRequest(roles.table, needs)


def read_result(path: Path, request: MomentsRequest, mark: str) -> dict[str, Group]:
    """Return the groups of an answer by logger; reject the answer to another question."""
    lines = read_lines(path)
    marks = {str(line.get(MARK)) for line in lines}
    if not lines or "None" in marks:
        raise SourceError(f"{str(path)!r}", "the file is not the result of `poolwise sql`")
    if marks != {mark}:
        raise SourceError(
            f"{str(path)!r}",
            "the file answers another question: roles, targets, options and version of "
            "poolwise must be those that printed the query",
        )
    try:
        if not all(int(line["rows"]) > 0 for line in lines):
            raise ValueError("a logger without rows")  # noqa: TRY301 - one error for all damage
        groups = [decode(request, line) for line in lines]
    except (KeyError, TypeError, ValueError) as reason:
        raise SourceError(f"{str(path)!r}", f"its columns are damaged ({reason})") from reason
    _refuse_bad(groups, request)
    if len({g.logger for g in groups}) < len(groups):
        raise SourceError(f"{str(path)!r}", "the file has several lines for one logger")
    return {str(g.logger): g for g in groups}


def _refuse_bad(groups: Sequence[Group], request: MomentsRequest) -> None:
    faults = [
        Fault("the row breaks a rule", g.logger or "", g.bad, advice=ADVICE)
        for g in groups
        if g.bad
    ]
    present = {g.logger for g in groups}
    if not request.table.drop:
        absent = [label for label in request.table.labels if label not in present]
        faults += [Fault("the logger has no rows", label, 0) for label in absent]
    if faults:
        raise LogError(faults)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a small file as mappings, with column names in lower case."""
    kind = file_format(str(path))
    try:
        lines = {"parquet": _parquet, "csv": _csv, "json": _json}[kind](path)
        return [{str(name).lower(): value for name, value in line.items()} for line in lines]
    except OSError as reason:
        raise SourceError(f"{str(path)!r}", reason.strerror or str(reason)) from reason
    except (ValueError, AttributeError, csv.Error) as reason:
        why = f"the file is not {kind}: {str(reason).splitlines()[0]}"
        raise SourceError(f"{str(path)!r}", why) from reason


def _parquet(path: Path) -> Sequence[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        lines: list[Mapping[str, Any]] = pq.read_table(path).to_pylist()
    except pa.ArrowException as reason:
        raise ValueError(str(reason)) from reason
    return lines


def _csv(path: Path) -> Sequence[Mapping[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        return [{k: None if v in NULLS else v for k, v in line.items()} for line in lines]


def _json(path: Path) -> Sequence[Mapping[str, Any]]:
    text = path.read_text("utf-8-sig")
    if text.lstrip().startswith("["):
        lines: list[Mapping[str, Any]] = json.loads(text)
        return lines
    return [json.loads(line) for line in text.splitlines() if line.strip()]
