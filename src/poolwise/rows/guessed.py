"""Guessed types: CSV and JSON are read once, with the types that all rows have.

These formats do not say what their columns are.  DuckDB guesses from the first rows and then
rounds a late 0.49 to 0.  So it looks at all rows (``sample_size = -1``), which takes as long
as reading them: the part is copied to a Parquet file, and every later pass reads that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from poolwise.errors import SourceError, UsageError
from poolwise.rows.guard import require_select

if TYPE_CHECKING:
    from poolwise.log.log import Log, Part

READERS = {"parquet": "read_parquet", "csv": "read_csv", "json": "read_json"}
TYPED = {"types", "dtypes", "column_types", "columns", "all_varchar", "auto_detect", "names"}
DECIDED = {"csv": {"sample_size"}, "json": {"sample_size", "columns"}}
GUESSING = re.compile(r"read_(csv|json|ndjson)(_auto)?", re.IGNORECASE)
GUESSED_FILE = re.compile(r".\.(csv|tsv|json|jsonl|ndjson)(\.(gz|zst))?(\?.*)?$", re.IGNORECASE)
Connection = duckdb.DuckDBPyConnection


def relation_of(connection: Connection, part: Part, log: Log, copy: Path) -> str:
    """Files or a SELECT as a relation of SQL; `copy` is written where types are guessed."""
    if part.kind == "select":
        require_select(connection, part.value)
        select = typed_select(connection, part.value)
        # the text may end in a comment
        return _copied(connection, f"({select})", copy) if select else f"(\n{part.value}\n)"
    options = {"union_by_name": True, **log.reader_options}
    if part.kind == "parquet":
        return reader_call(part.kind, part.value, options)
    options = _text_labels(connection, part, log, options)
    call = reader_call(part.kind, part.value, options)
    if DECIDED[part.kind] & {name.lower() for name in options}:
        return _copied(connection, call, copy)
    try:
        whole = reader_call(part.kind, part.value, options | {"sample_size": -1})
        return _copied(connection, whole, copy)
    except duckdb.Error as reason:
        if "Error when sniffing" not in str(reason):
            raise
        return _copied(connection, call, copy)  # whose error names the line


def reader_call(kind: str, paths: Sequence[str], options: Mapping[str, object]) -> str:
    """The call of DuckDB's reader as SQL."""
    for name in options:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UsageError(f"{name!r} is not an option of DuckDB's readers")
    named = "".join(f", {name} = {literal(value)}" for name, value in options.items())
    return f"{READERS[kind]}({literal([expanded(path, kind) for path in paths])}{named})"


def expanded(path: str, kind: str) -> str:
    """A path; for a folder, the glob of all files of the format below it."""
    try:
        folder = Path(path).is_dir()
    except OSError as reason:  # no file can have this name
        raise SourceError(f"{path[:100]!r}...", str(reason.strerror)) from reason
    return f"{path.rstrip('/')}/**/*.{kind}" if folder else path


def _copied(connection: Connection, relation: str, copy: Path) -> str:
    connection.execute(f"COPY (FROM {relation}) TO {literal(str(copy))} (FORMAT parquet)")
    return f"read_parquet({literal(str(copy))})"


def _text_labels(
    connection: Connection, part: Part, log: Log, options: dict[str, object]
) -> dict[str, object]:
    """Options that read labels of CSV as text, so that 1.1 and 1.10 stay distinct."""
    if part.kind != "csv" or TYPED & {name.lower() for name in options}:
        return options
    labels = [name.strip('"').lower() for name in (log.logger, log.cluster) if name]
    try:
        columns = described(connection, reader_call(part.kind, part.value, options))
        types = {name: "VARCHAR" for name in columns if name.lower() in labels}
        typed = options | {"types": types}
        described(connection, reader_call(part.kind, part.value, typed))
    except duckdb.Error:  # the label is in the names of folders, or reading raises this again
        return options
    return typed if types else options


def described(connection: Connection, relation: str) -> dict[str, str]:
    """Type of each column of a relation."""
    lines = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return {str(line[0]): str(line[1]) for line in lines}


def typed_select(connection: Connection, select: str) -> str | None:
    """A SELECT whose readers of CSV and JSON look at all rows; None if it has no such reader.

    DuckDB's own parser finds the readers, also where a SELECT only names a file.
    """
    tree = _parsed(connection, select)
    sample_size = _arguments(_reader(connection, "read_csv", "x")["function"])[-1]
    readers = 0
    nodes: list[Any] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            if node.get("type") == "BASE_TABLE":
                readers += _replace_file(connection, node)
            elif node.get("type") == "TABLE_FUNCTION" and _guesses(node["function"]):
                _arguments(node["function"]).append(sample_size)
                readers += 1
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
    if not readers:
        return None
    query = "SELECT json_deserialize_sql(?::JSON)"
    return str(connection.execute(query, [json.dumps(tree)]).fetchall()[0][0])


def _parsed(connection: Connection, select: str) -> dict[str, Any]:
    """The parse tree of a SELECT."""
    try:
        (text,) = connection.execute("SELECT json_serialize_sql(?)", [select]).fetchall()[0]
        tree: dict[str, Any] = json.loads(text)
    except RecursionError:
        raise UsageError(
            "the SELECT is nested too deeply: write its rows to a file, and read that"
        ) from None
    if tree.get("error"):
        raise SourceError("the SELECT", str(tree.get("error_message")))
    return tree


def _reader(connection: Connection, function: str, path: str) -> dict[str, Any]:
    """The parse tree of a reader of all rows."""
    select = f"SELECT * FROM {function}({literal(path)}, sample_size = -1)"
    node: dict[str, Any] = _parsed(connection, select)["statements"][0]["node"]["from_table"]
    return node


def _arguments(call: dict[str, Any]) -> list[Any]:
    """Arguments of a call in the parse trees of DuckDB 2 and 1."""
    arguments: list[Any] = call["arguments" if "arguments" in call else "children"]
    return arguments


def _guesses(call: dict[str, Any]) -> bool:
    options = "|".join({"sample_size", *TYPED})
    typed = re.search(f'"({options})"', json.dumps(call), re.IGNORECASE)
    return bool(GUESSING.fullmatch(str(call["function_name"]))) and typed is None


def _replace_file(connection: Connection, node: dict[str, Any]) -> bool:
    """Turn the name of a CSV or JSON file into a call of its reader, in place."""
    names = [node.get(f"{part}_name") for part in ("catalog", "schema", "table")]
    path = ".".join(str(name) for name in names if name)  # FROM log.csv is a file, too
    ending = GUESSED_FILE.search(path)
    if ending is None:
        return False
    function = "read_json" if "json" in ending.group(1).lower() else "read_csv"
    kept = {k: node[k] for k in ("alias", "sample", "column_name_alias") if node.get(k)}
    alias = {"alias": Path(path).name.partition(".")[0]}  # as DuckDB names it
    node.clear()
    node.update(_reader(connection, function, path) | alias | kept)
    return True


def literal(value: object) -> str:
    """A Python value as DuckDB text.

    >>> literal(["it's", 1, True])
    "['it''s', 1, true]"
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(literal(v) for v in value) + "]"
    escaped = str(value).replace("'", "''")
    return f"'{escaped}'"
