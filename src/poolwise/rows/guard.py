"""Sandbox: a query reads the files that it names, and nothing else of the machine.

There are two fences.  DuckDB's own parser says what a SELECT reads, so that there is no
second opinion to exploit: files named in the text pass, anything else is refused by name.
Then DuckDB is closed: it opens what was named and its folder for temporary files, sees no
variable of Python, and loads no extension.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb

from poolwise.errors import SourceError, UsageError

if TYPE_CHECKING:
    from sqlglot.expressions import Expr as Expression

    from poolwise.rows.rules import RoleColumns

# Table functions that read files, each with the extension that has it; none if built in.
READERS: Mapping[str, str] = {
    "parquet_scan": "",
    "read_parquet": "",
    "read_csv": "",
    "read_csv_auto": "",
    "read_json": "",
    "read_json_auto": "",
    "read_json_objects": "",
    "read_json_objects_auto": "",
    "read_ndjson": "",
    "read_ndjson_auto": "",
    "read_ndjson_objects": "",
    "read_avro": "avro",
    "read_xlsx": "excel",
    "delta_scan": "delta",
    "iceberg_scan": "iceberg",
}
FOLDERS = {"delta_scan", "iceberg_scan"}  # what they name is a folder with many files
HARMLESS = {  # table functions that make rows out of their arguments
    "generate_series",
    "generate_subscripts",
    "json_each",
    "json_tree",
    "range",
    "regexp_split_to_table",
    "repeat",
    "repeat_row",
    "unnest",
}
QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
NOT_IN_EXPRESSIONS = re.compile(
    r"getenv|getvariable|current_setting|which_secret|write_log|nextval|setval|query(_table)?"
    r"|json_execute_serialized_sql|sniff_csv|(read|parquet|duckdb|pragma)_\w+",
    re.IGNORECASE,
)
FILE = re.compile(
    r".\.(parquet|csv|tsv|json|jsonl|ndjson|avro|xlsx)(\.(gz|zst))?(\?.*)?$", re.IGNORECASE
)
PLACES = {  # how a path in a remote place begins, and the extension that reads it
    r"(https?|s3|s3a|s3n|gcs|gs|r2|hf)://": "httpfs",
    r"(az|azure|abfss)://": "azure",
}
ALLOWED = (
    "a SELECT reads files that it names, as in FROM 'log.parquet' or "
    "FROM read_csv(['a.csv', 'b.csv']), and changes nothing"
)


@dataclass
class Reads:
    """What a query reads.

    Attributes:
        files: Paths and globs, as written.
        folders: Folders that are tables, as written.
        extensions: DuckDB's extensions that reading them takes.
        refused: What the query does beyond reading files.
    """

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    extensions: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def reads_of(connection: duckdb.DuckDBPyConnection, select: str) -> Reads:
    """The files that a SELECT names; an error if it does anything but read files."""
    query = "SELECT json_serialize_sql(?, skip_null := true, skip_empty := true)"
    try:
        (text,) = connection.execute(query, [select]).fetchall()[0]
        tree = json.loads(text)
    except RecursionError:
        raise UsageError(
            "the SELECT is nested too deeply to see what it reads: write its rows to a file"
        ) from None
    if tree.get("error"):
        raise SourceError("the SELECT", str(tree.get("error_message")))
    found = Reads()
    for node, names in _nodes(tree):
        _read(node, names, found)
    if found.refused:
        listed = ", ".join(dict.fromkeys(found.refused))
        raise UsageError(f"{ALLOWED}; this one has: {listed}")
    return found


def _nodes(tree: object) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Every node of a query, with the names that WITH gives in its place."""
    waiting: list[tuple[object, frozenset[str]]] = [(tree, frozenset())]
    while waiting:
        node, names = waiting.pop()
        if isinstance(node, list):
            waiting += [(child, names) for child in node]
        elif isinstance(node, dict):
            given = node.get("cte_map", {}).get("map", [])
            names |= {str(entry["key"]).lower() for entry in given}
            yield node, names
            waiting += [(child, names) for child in node.values()]


def _read(node: Mapping[str, Any], names: frozenset[str], found: Reads) -> None:
    kind = node.get("type")
    if kind == "BASE_TABLE":
        _read_table(node, names, found)
    elif kind == "TABLE_FUNCTION":
        _read_function(node["function"], found)
    elif node.get("class") == "FUNCTION":
        name = str(node["function_name"])
        # the call itself stands within its TABLE_FUNCTION, where it was judged
        if NOT_IN_EXPRESSIONS.fullmatch(name) and name.lower() not in READERS:
            found.refused.append(f"{name}()")
    elif kind == "SHOW_REF":
        found.refused.append("SHOW, DESCRIBE or SUMMARIZE")
    elif isinstance(kind, str) and kind.endswith("_NODE") and kind not in QUERIES:
        found.refused.append(kind.partition("_")[0])


def _read_table(node: Mapping[str, Any], names: frozenset[str], found: Reads) -> None:
    parts = [node.get(f"{part}_name") for part in ("catalog", "schema", "table")]
    path = ".".join(str(part) for part in parts if part)  # FROM log.parquet is a file, too
    if path.lower() in names:
        return
    if not FILE.search(path):
        found.refused.append(f"the table {path!r}")
        return
    found.files.append(path)
    found.extensions += [n for n in ("avro", "excel") if READERS[_reader(path)] == n]


def _reader(path: str) -> str:
    ending = FILE.search(path)
    kind = ending.group(1).lower() if ending else ""
    return {"avro": "read_avro", "xlsx": "read_xlsx"}.get(kind, "read_csv")


def _read_function(call: Mapping[str, Any], found: Reads) -> None:
    name = str(call["function_name"]).lower()
    if name in HARMLESS:
        return
    if name not in READERS:
        found.refused.append(f"{name}()")
        return
    paths = _constants(next(iter(_arguments(call)), {}))
    if not paths:
        found.refused.append(f"{name}() of a path that is not written out")
        return
    (found.folders if name in FOLDERS else found.files).extend(paths)
    found.extensions += [READERS[name]] if READERS[name] else []


def _arguments(call: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Arguments of a call; since DuckDB 2 each stands in a wrapper."""
    given = [*call.get("arguments", []), *call.get("children", [])]
    return [argument.get("expression", argument) for argument in given]


def _constants(argument: Mapping[str, Any]) -> list[str]:
    """Text written out, alone or in a list; nothing if any of it is computed."""
    if argument.get("class") == "CONSTANT":
        value = argument.get("literal", {}).get("text", argument.get("value", {}).get("value"))
        return [value] if isinstance(value, str) else []
    listed = argument.get("function_name") == "list_value"
    if listed or argument.get("type") == "ARRAY_CONSTRUCTOR":
        paths = [_constants(item) for item in _arguments(argument)]
        return [path[0] for path in paths] if all(len(path) == 1 for path in paths) else []
    return []


def refuse_reaching(table: RoleColumns) -> None:
    """Refuse roles that reach beyond their row: to files, to settings, to other tables."""
    from sqlglot import exp

    for role, expression in _roles(table):
        names = [n for n in _functions(expression) if NOT_IN_EXPRESSIONS.fullmatch(n)]
        reaching = [f"{name}()" for name in dict.fromkeys(names)]
        reaching += ["a query"] if expression.find(exp.Query, exp.Table) else []
        if reaching:
            listed = ", ".join(reaching)
            raise UsageError(f"{role} is an expression of one row, and this one has {listed}")


def _roles(table: RoleColumns) -> Iterator[tuple[str, Expression]]:
    for role, value in vars(table).items():
        if isinstance(value, Mapping):
            yield from ((f"{role}[{name!r}]", part) for name, part in value.items())
        elif hasattr(value, "find_all") and role != "relation":
            yield role, value


def _functions(expression: Expression) -> Iterator[str]:
    from sqlglot import exp

    for call in expression.find_all(exp.Func):
        yield call.name if isinstance(call, exp.Anonymous) else call.sql_name()


def close_doors(connection: duckdb.DuckDBPyConnection, reads: Iterable[Reads]) -> None:
    """Let DuckDB open what was named, and its own temporary files, from now on."""
    named = list(reads)
    files = [path for read in named for path in read.files]
    folders = [_whole_table(path) for read in named for path in read.folders]
    wanted = [name for read in named for name in read.extensions]
    wanted += [name for path in [*files, *folders] for name in _place(path)]
    for name in dict.fromkeys(wanted):
        load_extension(connection, name, (files + folders)[0])
    paths = dict.fromkeys(p for path in files for p in _opened(connection, path))
    (own,) = connection.execute("SELECT current_setting('temp_directory')").fetchall()[0]
    directories = dict.fromkeys([*folders, *(d for path in files for d in _prefix(path)), own])
    connection.execute("SET allowed_paths = ?", [list(paths)])
    connection.execute("SET allowed_directories = ?", [list(directories)])
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute("SET autoload_known_extensions = false")
    connection.execute("SET enable_external_access = false")  # cannot be undone


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    """No setting changes any more."""
    connection.execute("SET lock_configuration = true")


def _place(path: str) -> list[str]:
    """The extension that a remote path takes; none for a local one."""
    return [name for begins, name in PLACES.items() if re.match(begins, path, re.IGNORECASE)]


def _whole_table(path: str) -> str:
    """The folder of a table; that of an Iceberg table may be named by a file in it."""
    return re.sub(r"(?<=[^/])/metadata/[^/]+\.metadata\.json$", "", path)


def _opened(connection: duckdb.DuckDBPyConnection, path: str) -> list[str]:
    """A path, and every file that it stands for; DuckDB follows links by itself."""
    if _place(path):
        return [path]
    query = "SELECT file FROM glob(?)"
    files = [str(line[0]) for line in connection.execute(query, [path]).fetchall()]
    return [path, *files]


def _prefix(path: str) -> list[str]:
    """What all files of a remote glob begin with: there is no listing them beforehand."""
    start = re.split(r"[*?\[]", path)[0]
    if start == path or not _place(path) or path.lower().startswith("http"):
        return []
    return [start.rpartition("/")[0] + "/"]


def load_extension(connection: duckdb.DuckDBPyConnection, name: str, source: str) -> None:
    """Load an extension of DuckDB, fetched if it must be and the settings let it."""
    try:
        try:
            connection.execute(f"LOAD {name}")
        except duckdb.Error:
            setting = "SELECT current_setting('autoinstall_known_extensions')"
            if not connection.execute(setting).fetchall()[0][0]:
                raise
            connection.execute(f"INSTALL {name}")
            connection.execute(f"LOAD {name}")
    except duckdb.Error as reason:
        needed = required_extension(str(reason)) or name  # one may take another
        raise SourceError(repr(source), missing_extension(needed)) from reason
    connection.execute("SELECT count(*) FROM duckdb_secrets()")  # reads the stored ones


def required_extension(text: str) -> str:
    """The extension that DuckDB says it lacks; empty if it says nothing of the kind."""
    found = re.search(r"required extension '(\w+)", text)
    return found.group(1) if found else ""


def missing_extension(name: str) -> str:
    """What to do about an extension that is not there."""
    return (
        f"it needs DuckDB's extension '{name}', which is not installed and could not be "
        f"fetched. Run INSTALL {name} once, in any DuckDB that has network"
    )
