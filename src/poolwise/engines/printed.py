"""Standalone: the one query for people who may not move their data.

It counts, centres and aggregates by itself, in any dialect that SQLGlot speaks.
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from poolwise.engines.answer import decode
from poolwise.engines.dialects import check_dialect, written
from poolwise.engines.saved import question
from poolwise.engines.sql import Request, moments_query
from poolwise.errors import Fault, LogError, SourceError, UsageError
from poolwise.log.log import SELECT, Log, file_format
from poolwise.rows.roles import assign
from poolwise.rows.rules import string

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sqlglot.expressions import Expr as Expression

    from poolwise.engines.answer import Group
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.terms import Needs

MARK = "poolwise"  # column of the answer that says which question it answers
WRITES = (exp.DML, exp.DDL, exp.Drop, exp.Command, exp.Into, exp.Alter)


def standalone_query(
    log: Log, table: str, targets: Mapping[str, PolicyLike], needs: Needs, dialect: str
) -> str:
    """One query that counts, centres and aggregates by itself, in any dialect.

    Its last column says which question it answers, so that no answer is taken for another.
    """
    dialect = check_dialect(dialect)
    request = standalone_request(log, targets, needs, relation_of(table))
    mark = string(question(log, targets).mark(needs)).as_(MARK, quoted=True)
    return written(moments_query(request).select(mark), dialect, pretty=True)


def standalone_request(
    log: Log, targets: Mapping[str, PolicyLike], needs: Needs, relation: Expression
) -> Request:
    """What such a query asks: every name is taken on trust."""
    roles = assign(log, targets, None, relation)
    if roles.scored:
        raise UsageError("policies in Python cannot be written as SQL: score them first")
    return Request(roles.table, needs)


def relation_of(table: str, dialect: str = "duckdb") -> Expression:
    """What FROM reads: the name of a table, or one SELECT that only reads."""
    from sqlglot import parse
    from sqlglot.errors import SqlglotError

    try:
        if not SELECT.match(table):
            return exp.to_table(table, dialect=dialect)
        statements = parse(table, dialect=dialect)
    except (SqlglotError, AttributeError) as reason:
        raise UsageError(f"{table!r} is neither a table nor a SELECT") from reason
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise UsageError("a source in SQL must be one SELECT, and nothing else")
    if statements[0].find(*WRITES) is not None:
        raise UsageError("a source in SQL must only read: this one also writes")
    return exp.Subquery(this=statements[0], alias=exp.to_identifier("source"))


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
