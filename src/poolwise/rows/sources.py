"""Sources: files, queries and frames become one DuckDB view.

After this module there is a view named ``log`` whose columns are those of all parts together,
and a connection that reads nothing else.  CSV and JSON do not say what their columns are:
DuckDB guesses from the first rows and then rounds a late 0.49 to 0.  So it looks at all rows
(``sample_size = -1``), which takes as long as reading them: the part is copied to a Parquet
file, which every later pass reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from poolwise.errors import SourceError, UsageError
from poolwise.log.log import PART_LOGGER
from poolwise.rows.guard import (
    READERS,
    close_files,
    configure,
    expand_path,
    first_line,
    list_patterns,
    local_files,
    part_files,
    require_select,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from poolwise.log.log import Frame, Log, Part
    from poolwise.rows.reader import Files

TYPED = {"types", "dtypes", "column_types", "columns", "all_varchar", "auto_detect", "names"}
DECIDED = {"csv": {"sample_size"}, "json": {"sample_size", "columns"}}
GUESSING = re.compile(r"read_(csv|json|ndjson)(_auto)?", re.IGNORECASE)
GUESSED_FILE = re.compile(r".\.(csv|tsv|json|jsonl|ndjson)(\.(gz|zst))?(\?.*)?$", re.IGNORECASE)
SAMPLED = 1000  # objects of a pandas column that DuckDB looks at by itself
ASK_AGAIN = 0.05  # seconds; a request is lost if the statement has not begun
Connection = duckdb.DuckDBPyConnection
Node = dict[str, Any]  # of a parse tree


def create_view(connection: Connection, log: Log, folder: Path) -> dict[str, str]:
    """Create the view ``log`` over all parts and return the types of its columns.

    Args:
        connection: DuckDB; without a SELECT among the parts it is limited to their files.
        log: The log.
        folder: Where parts without types are copied to.
    """
    configure(connection, log.timezone)
    files = local_files(connection, log)
    _attach(connection, log)
    _register_frames(connection, log)
    if all(part.kind != "select" for part in log.parts):
        close_files(connection, list_patterns(log), files)
    try:
        rows = " UNION ALL BY NAME ".join(
            _select_part(connection, log, k, folder) for k in range(len(log.parts))
        )
        connection.execute(f"CREATE TEMP VIEW log AS {rows}")
        types = _types(connection, "log")
    except duckdb.Error as reason:
        paths = [path for p in log.parts if p.kind in READERS for path in p.value]
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        shown = f"{paths[0]!r}{more}" if paths else "the source"
        raise SourceError(shown, first_line(reason)) from reason
    new_names = _number_columns(connection, log, list(types))
    if new_names:
        listed = ", ".join(f"{identifier(k)} AS {identifier(v)}" for k, v in new_names.items())
        view = f"SELECT * RENAME ({listed}) FROM ({rows})"
        connection.execute(f"CREATE OR REPLACE TEMP VIEW log AS {view}")
    return {new_names.get(name, name): kind for name, kind in types.items()}


def _attach(connection: Connection, log: Log) -> None:
    """Attach the DuckDB files of a log, which are then read only."""
    for number, part in enumerate(log.parts):
        if part.kind == "database":
            path = literal(part.value[0])
            try:
                connection.execute(f"ATTACH {path} AS database_{number} (READ_ONLY)")
            except duckdb.Error as reason:
                raise SourceError(path, first_line(reason)) from reason


def _select_part(connection: Connection, log: Log, number: int, folder: Path) -> str:
    """Select all columns of a part, and the label that a mapping gives to its rows."""
    part = log.parts[number]
    framed = part.kind == "frame"
    relation = f"source_{number}" if framed else _relation(connection, log, number, folder)
    if not isinstance(log.source, Mapping):
        return f"SELECT * FROM {relation}"
    return f'SELECT *, {literal(str(part.logger))} AS "{PART_LOGGER}" FROM {relation}'


def _relation(connection: Connection, log: Log, number: int, folder: Path) -> str:
    """Return files or a SELECT as a relation; copied where types are guessed."""
    part, copy = log.parts[number], literal(str(folder / f"part_{number}"))

    def copied(relation: str) -> str:
        return copy_rows(connection, relation, copy)

    if part.kind == "database":
        return ".".join(map(identifier, [f"database_{number}", *part.value[1].split(".")]))
    if part.kind == "select":
        require_select(connection, part.value)
        select = _typed_select(connection, part.value)
        if select:
            return copied(f"({select})")
        return f"(\n{part.value}\n)"  # may end in a comment
    options = {"union_by_name": True, **log.reader_options}
    if part.kind == "parquet":
        return _call_reader(part.kind, part.value, options)
    options = _text_labels(connection, part, log, options)
    decided = DECIDED[part.kind] & {name.lower() for name in options}
    whole = options if decided else options | {"sample_size": -1}
    try:
        return copied(_call_reader(part.kind, part.value, whole))
    except duckdb.Error as reason:
        if "Error when sniffing" not in str(reason):
            raise
        # The error of a copy names the line.
        return copied(_call_reader(part.kind, part.value, options))


def _call_reader(kind: str, paths: Sequence[str], options: Mapping[str, object]) -> str:
    """Return the call of DuckDB's reader as SQL."""
    for name in options:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UsageError(f"{name!r} is not an option of DuckDB's readers")
    named = "".join(f", {name} = {literal(value)}" for name, value in options.items())
    return f"{READERS[kind]}({literal([expand_path(path, kind) for path in paths])}{named})"


def _types(connection: Connection, relation: str) -> dict[str, str]:
    """Return the type of each column of a relation."""
    lines = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return {str(line[0]): str(line[1]) for line in lines}


def literal(value: object) -> str:
    """Return a Python value as DuckDB text.

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


def identifier(name: str) -> str:
    """Return a name as DuckDB text."""
    return '"' + name.replace('"', '""') + '"'


def plain_files(connection: Connection, log: Log, copies: Path | None = None) -> Files | None:
    """List every Parquet file of a log with the label of its rows, if no column has it.

    None where the files alone do not define the rows: options of the reader, columns in the
    names of folders, or storage that is not a file system.

    Args:
        connection: DuckDB.
        log: The log.
        copies: Folder to which `create_view` copied parts without types.
    """
    files: list[tuple[str, str | None]] = []
    for k, part in enumerate(log.parts):
        if copies is not None and (copies / f"part_{k}").exists():
            files.append((str(copies / f"part_{k}"), part.logger))
            continue
        if part.kind != "parquet" or log.reader_options:
            return None
        names = part_files(connection, part)
        if any("=" in str(Path(n).parent) or not Path(n).is_file() for n in names):
            return None
        files += [(name, part.logger) for name in names]
    return tuple(files)


# Columns of one name.


def _number_columns(connection: Connection, log: Log, names: Sequence[str]) -> dict[str, str]:
    """Return new names for columns of one name; a role that uses that name finds no column.

    DuckDB calls the second of two columns 'click' 'click_1'.
    """
    if not any(re.fullmatch(r"(?s).+_\d+", name) for name in names):
        return {}
    headers = [header for part in log.parts for header in _headers(connection, part, log)]
    spelled = {name for header in headers for name in header}
    new_names: dict[str, str] = {}
    for name in sorted({n for header in headers for n in header if header.count(n) > 1}):
        renamed = re.compile(re.escape(name) + r"_\d+")
        same = [n for n in names if n == name or (renamed.fullmatch(n) and n not in spelled)]
        new_names |= {n: f"{name} ({k} of {len(same)})" for k, n in enumerate(same, start=1)}
    return new_names


def _headers(connection: Connection, part: Part, log: Log) -> Iterator[list[str]]:
    """Yield names of columns as files and frames spell them; none for JSON and for a SELECT."""
    if part.kind == "frame":
        frame: Frame = part.value
        lazy = frame.collect_schema() if hasattr(frame, "collect_schema") else None
        names = getattr(lazy or getattr(frame, "schema", None), "names", None)
        names = names() if callable(names) else names
        yield [str(name) for name in (frame.columns if names is None else names)]
    elif part.kind == "parquet":
        paths = literal(part_files(connection, part))
        query = f"SELECT file_name, name FROM parquet_schema({paths})"
        lines = connection.execute(query).fetchall()
        for _, of_file in groupby(lines, lambda line: line[0]):
            yield [str(name) for _, name in of_file][1:]
    elif part.kind == "csv":
        own = {"header", "union_by_name", *TYPED}
        options = {k: v for k, v in log.reader_options.items() if k.lower() not in own}
        options |= {"header": False, "all_varchar": True}
        for path in part_files(connection, part):
            call = _call_reader("csv", [path], options)
            try:
                lines = connection.execute(f"SELECT * FROM {call} LIMIT 1").fetchall()
            except duckdb.Error:  # an option requires a header
                continue
            yield [str(name) for line in lines for name in line]


# Frames.


def _register_frames(connection: Connection, log: Log) -> None:
    """Register frames as ``source_0``, ``source_1``...

    DuckDB guesses the types of a pandas frame's objects in every query anew, and rounds values
    that do not fit: it looks at all of them, unless a sample gives the same types.
    """
    frames = {f"source_{k}": p.value for k, p in enumerate(log.parts) if p.kind == "frame"}
    for name, frame in frames.items():
        _register(connection, name, frame)
    types = []
    for rows in (2**62, SAMPLED):
        connection.execute(f"SET pandas_analyze_sample = {rows}")
        types.append([_types(connection, name) for name in frames])
    if types[0] != types[1]:
        connection.execute(f"SET pandas_analyze_sample = {2**62}")


def _register(connection: Connection, name: str, frame: Frame) -> None:
    pandas = type(frame).__module__.startswith("pandas.") and hasattr(frame, "columns")
    try:
        try:
            connection.register(name, _without_views(frame))
        except (duckdb.Error, RuntimeError) as reason:
            if isinstance(reason, duckdb.NotImplementedException) or not pandas:
                raise
            connection.register(name, frame.copy())  # DuckDB reads no negative strides
    except duckdb.NotImplementedException as reason:  # a frame, with a type unknown to DuckDB
        unknown = _unknown_types(connection, frame) if pandas else ""
        raise SourceError("the frame", unknown or first_line(reason)) from reason
    except (duckdb.Error, RuntimeError, TypeError) as reason:
        raise UsageError(
            f"a value of type {type(frame).__name__} is not a source: give a path, a glob, a "
            "SELECT, a pyarrow, pandas or Polars frame, a list of these, or a mapping by logger"
        ) from reason


def _unknown_types(connection: Connection, frame: Frame) -> str:
    """Name the columns of a pandas frame whose type DuckDB does not know, tried one by one."""
    unknown = []
    for k, name in enumerate(frame.columns):
        try:
            connection.register("one_column", frame.iloc[:, [k]])
        except duckdb.NotImplementedException:
            unknown.append(f"{name!r} ({frame.dtypes.iloc[k]})")
    listed = ", ".join(unknown)
    advice = f"DuckDB does not know the type of {listed}: drop such columns, or convert them"
    return advice if unknown else ""


def _without_views(frame: object) -> object:
    """Return an Arrow table with plain text in place of string views.

    DuckDB has pyarrow filter the rows, and filters of pyarrow 18 to 24 crash on views.
    """
    import pyarrow as pa

    if not isinstance(frame, pa.Table):
        return frame
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    schema = pa.schema([f.with_type(plain.get(f.type, f.type)) for f in frame.schema])
    return frame if schema == frame.schema else frame.cast(schema)


# Guessed types.


def _text_labels(
    connection: Connection, part: Part, log: Log, options: dict[str, object]
) -> dict[str, object]:
    """Return options that read labels of CSV as text, so that 1.1 and 1.10 stay distinct."""
    if part.kind != "csv" or TYPED & {name.lower() for name in options}:
        return options
    labels = [name.strip('"').lower() for name in (log.logger, log.cluster) if name]
    try:
        columns = _types(connection, _call_reader(part.kind, part.value, options))
        types = {name: "VARCHAR" for name in columns if name.lower() in labels}
        typed = options | {"types": types}
        _types(connection, _call_reader(part.kind, part.value, typed))
    except duckdb.Error:  # the label is in the names of folders, or reading raises this again
        return options
    return typed if types else options


def _typed_select(connection: Connection, select: str) -> str | None:
    """Return a SELECT whose readers of CSV and JSON look at all rows; None if it has none.

    DuckDB's own parser finds the readers, also where a SELECT only names a file.
    """
    readers = []

    def typed(node: Node) -> Node:
        if node.get("type") == "BASE_TABLE":
            names = [node.get(f"{part}_name") for part in ("catalog", "schema", "table")]
            path = ".".join(str(name) for name in names if name)  # FROM log.csv is a file, too
            if GUESSED_FILE.search(path):
                readers.append(_reader(connection, path))
                alias = {"alias": Path(path).name.partition(".")[0]}  # as DuckDB names it
                parts = ("alias", "sample", "column_name_alias")
                return readers[-1] | alias | {k: node[k] for k in parts if node.get(k)}
        elif node.get("type") == "TABLE_FUNCTION" and _guesses(node["function"]):
            readers.append(_reader(connection, "x.csv"))
            _arguments(node).append(_arguments(readers[-1])[-1])
        return node

    tree = _parse_select(connection, select, typed)
    if not readers:
        return None
    query = "SELECT json_deserialize_sql(?::JSON)"
    return str(connection.execute(query, [json.dumps(tree)]).fetchall()[0][0])


def _parse_select(
    connection: Connection, select: str, change: Callable[[Node], Node] | None = None
) -> Node:
    """Return the parse tree of a SELECT, each node changed."""
    try:
        (text,) = connection.execute("SELECT json_serialize_sql(?)", [select]).fetchall()[0]
        tree: Node = json.loads(text, object_hook=change)
    except RecursionError:
        raise UsageError(
            "the SELECT is nested too deeply: write its rows to a file, and read that"
        ) from None
    if tree.get("error"):
        raise SourceError("the SELECT", str(tree.get("error_message")))
    return tree


def _reader(connection: Connection, path: str) -> Node:
    """Return the parse tree of the reader of all rows of a file."""
    ending = GUESSED_FILE.search(path)
    function = "read_json" if ending and "json" in ending.group(1).lower() else "read_csv"
    select = f"SELECT * FROM {function}({literal(path)}, sample_size = -1)"
    node: Node = _parse_select(connection, select)["statements"][0]["node"]["from_table"]
    return node


def _arguments(reader: Node) -> list[Any]:
    """Return the arguments of a reader in the parse trees of DuckDB 2 and 1."""
    call = reader["function"]
    arguments: list[Any] = call["arguments" if "arguments" in call else "children"]
    return arguments


def _guesses(call: Node) -> bool:
    options = "|".join({"sample_size", *TYPED})
    typed = re.search(f'"({options})"', json.dumps(call), re.IGNORECASE)
    return bool(GUESSING.fullmatch(str(call["function_name"]))) and typed is None


def copy_rows(connection: Connection, relation: str, file: str) -> str:
    """Write the rows of a relation to a Parquet file; return the relation that reads it.

    An exception of a signal handler that ends a COPY in the main thread can leave its other
    threads waiting for ever.  So another thread runs it, and DuckDB is asked to stop.

    Args:
        connection: DuckDB.
        relation: The rows.
        file: The path, as a literal of SQL.
    """
    statement = f"COPY (FROM {relation}) TO {file} (FORMAT parquet)"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(connection.execute, statement)
        try:
            running.result()
        except BaseException:
            while not running.done():
                connection.interrupt()
                wait([running], ASK_AGAIN)
            raise
    return f"read_parquet({file})"
