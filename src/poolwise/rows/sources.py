"""Sources: files, queries and frames become one DuckDB view.

After this module there is a view named ``log`` whose columns are those of all parts together,
and a connection that reads nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from poolwise.errors import SourceError, UsageError
from poolwise.rows.guard import close_files, missing_extension, required_extension
from poolwise.rows.guessed import (
    READERS,
    TYPED,
    Connection,
    described,
    expanded,
    literal,
    reader_call,
    relation_of,
)
from poolwise.rows.roles import PART_LOGGER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolwise.log.log import Frame, Log, Part
    from poolwise.rows.stream import Files

PATH = re.compile(r"'([^']*[./][^']*)'")  # in a SELECT
SHOWN = 5  # missing files that an error names
# Optimizers that answer from a file's statistics, which leave NaN out (docs/decisions/0012),
# and that move a TRY_CAST into the reader of CSV, where it fails on a word.
MISLEADING = ("statistics_propagation", "type_pushdown")


def create_view(connection: Connection, log: Log, folder: Path) -> list[str]:
    """Create the view ``log`` over all parts and return its columns.

    Args:
        connection: DuckDB; without a SELECT among the parts it is limited to their files.
        log: The log.
        folder: Where parts without types are copied to.
    """
    _configure(connection)
    files = _existing_files(connection, log)
    frames = [
        _registered(connection, part.value, f"source_{k}") if part.kind == "frame" else ""
        for k, part in enumerate(log.parts)
    ]
    _settle_objects(connection, [name for name in frames if name])
    if all(part.kind != "select" for part in log.parts):
        close_files(connection, patterns_of(log), files)
    try:
        rows = " UNION ALL BY NAME ".join(
            _select(
                frame or relation_of(connection, part, log, folder / f"part_{k}"), part, log
            )
            for k, (part, frame) in enumerate(zip(log.parts, frames, strict=True))
        )
        connection.execute(f"CREATE TEMP VIEW log AS {rows}")
        names = list(described(connection, "log"))
    except duckdb.Error as reason:
        raise SourceError(_shown(log), first_line(reason)) from reason
    new_names = _numbered(connection, log, names)
    if new_names:
        listed = ", ".join(f"{identifier(k)} AS {identifier(v)}" for k, v in new_names.items())
        view = f"SELECT * RENAME ({listed}) FROM ({rows})"
        connection.execute(f"CREATE OR REPLACE TEMP VIEW log AS {view}")
    return [new_names.get(name, name) for name in names]


def _select(relation: str, part: Part, log: Log) -> str:
    """All columns of a part, and the label that a mapping gives to its rows."""
    if not isinstance(log.source, Mapping):
        return f"SELECT * FROM {relation}"
    return f'SELECT *, {literal(str(part.logger))} AS "{PART_LOGGER}" FROM {relation}'


def _configure(connection: Connection) -> None:
    """Disable misleading optimizers, the progress bar and access to Python's variables."""
    present = connection.execute("SELECT name FROM duckdb_optimizers()").fetchall()
    off = ",".join(name for name in MISLEADING if (name,) in present)
    connection.execute(f"SET disabled_optimizers = {literal(off)}")
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET python_enable_replacements = false")


# Paths.


def patterns_of(log: Log) -> list[str]:
    """Paths and globs that a log names outside of a SELECT."""
    return [expanded(path, p.kind) for p in log.parts if p.kind in READERS for path in p.value]


def files_of(log: Log) -> list[str]:
    """Paths and globs that a log may read; of a SELECT, quoted texts with a dot or slash."""
    selects = [part.value for part in log.parts if part.kind == "select"]
    return patterns_of(log) + [t for text in selects for t in PATH.findall(text)]


def _existing_files(connection: Connection, log: Log) -> list[str]:
    """The local files of a log; an error where one is missing or would be read twice."""
    local = [p for p in patterns_of(log) if not re.match(r"\w+://", p)]
    missing = [p for p in local if not re.search(r"[*?\[]", p) and not _exists(p)]
    if missing:
        listed = ", ".join(map(repr, missing[:SHOWN]))
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise SourceError(f"{listed}{more}", "there is no such file or folder: check the path")
    pattern_of: dict[Path, str] = {}
    names = [(name, pattern) for pattern in local for name in _glob(connection, pattern)]
    for name, pattern in names:
        file = Path(name).resolve()
        if file in pattern_of:
            raise UsageError(
                f"{name!r} would be read twice, by {pattern_of[file]!r} and {pattern!r}: "
                "its rows would count twice. Name each file once."
            )
        pattern_of[file] = pattern
    return [name for name, _ in names]


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # no file can have this name
        return False


def _glob(connection: Connection, pattern: str) -> list[str]:
    lines = connection.execute("SELECT file FROM glob(?)", [pattern]).fetchall()
    return [str(line[0]) for line in lines]


def plain_files(connection: Connection, log: Log, copies: Path | None = None) -> Files | None:
    """Every Parquet file of a log with the label of its rows, if no column has it.

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
        names = [n for p in part.value for n in _glob(connection, expanded(p, "parquet"))]
        if any("=" in str(Path(n).parent) or not Path(n).is_file() for n in names):
            return None
        files += [(name, part.logger) for name in names]
    return tuple(files)


# Names.


def _numbered(connection: Connection, log: Log, names: Sequence[str]) -> dict[str, str]:
    """New names for columns of one name; a role that uses that name finds no column.

    DuckDB calls the second of two columns 'click' 'click_1'.
    """
    if not any(re.fullmatch(r"(?s).+_\d+", name) for name in names):
        return {}
    headers = [header for part in log.parts for header in _headers(connection, part, log)]
    given = {name for header in headers for name in header}
    new_names: dict[str, str] = {}
    for name in sorted({n for header in headers for n in header if header.count(n) > 1}):
        renamed = re.compile(re.escape(name) + r"_\d+")
        same = [n for n in names if n == name or (renamed.fullmatch(n) and n not in given)]
        new_names |= {n: f"{name} ({k} of {len(same)})" for k, n in enumerate(same, start=1)}
    return new_names


def _headers(connection: Connection, part: Part, log: Log) -> Iterator[list[str]]:
    """Names of columns as files and frames spell them; none for JSON and for a SELECT."""
    if part.kind == "frame":
        frame: Frame = part.value
        lazy = frame.collect_schema() if hasattr(frame, "collect_schema") else None
        names = getattr(lazy or getattr(frame, "schema", None), "names", None)
        names = names() if callable(names) else names
        yield [str(name) for name in (frame.columns if names is None else names)]
    elif part.kind == "parquet":
        for path in [f for p in part.value for f in _glob(connection, expanded(p, "parquet"))]:
            query = f"SELECT name FROM parquet_schema({literal(path)})"
            yield [str(line[0]) for line in connection.execute(query).fetchall()[1:]]
    elif part.kind == "csv":
        own = {"header", "union_by_name", *TYPED}
        options = {k: v for k, v in log.reader_options.items() if k.lower() not in own}
        options |= {"header": False, "all_varchar": True}
        for path in [f for p in part.value for f in _glob(connection, expanded(p, "csv"))]:
            call = reader_call("csv", [path], options)
            try:
                lines = connection.execute(f"SELECT * FROM {call} LIMIT 1").fetchall()
            except duckdb.Error:  # an option requires a header
                continue
            yield [str(name) for line in lines for name in line]


def identifier(name: str) -> str:
    """A name as DuckDB text."""
    return '"' + name.replace('"', '""') + '"'


# Frames.


def _registered(connection: Connection, frame: Frame, name: str) -> str:
    try:
        try:
            connection.register(name, _without_views(frame))
        except (duckdb.Error, RuntimeError) as reason:
            if isinstance(reason, duckdb.NotImplementedException) or not _is_pandas(frame):
                raise
            connection.register(name, frame.copy())  # DuckDB reads no negative strides
    except duckdb.NotImplementedException as reason:  # a frame, with a type unknown to DuckDB
        raise SourceError("the frame", _unknown_types(connection, frame, reason)) from reason
    except (duckdb.Error, RuntimeError, TypeError) as reason:
        raise UsageError(
            f"a value of type {type(frame).__name__} is not a source: give a path, a glob, a "
            "SELECT, a pyarrow, pandas or Polars frame, a list of these, or a mapping by logger"
        ) from reason
    return name


def _is_pandas(frame: Frame) -> bool:
    return type(frame).__module__.startswith("pandas.") and hasattr(frame, "columns")


def _unknown_types(connection: Connection, frame: Frame, reason: duckdb.Error) -> str:
    """The columns whose type DuckDB does not know, tried one by one."""
    unknown = []
    for k, name in enumerate(frame.columns if _is_pandas(frame) else ()):
        try:
            connection.register("one_column", frame.iloc[:, [k]])
            connection.unregister("one_column")
        except duckdb.NotImplementedException:
            unknown.append(f"{name!r} ({frame.dtypes.iloc[k]})")
    if not unknown:
        return first_line(reason)
    listed = ", ".join(unknown)
    return f"DuckDB does not know the type of {listed}: drop such columns, or convert them"


SAMPLED = 1000  # objects of a pandas column that DuckDB looks at by itself


def _settle_objects(connection: Connection, names: Sequence[str]) -> None:
    """Have DuckDB look at all objects of a pandas frame, unless a sample gives their types.

    It guesses the type in every query anew, and rounds values that do not fit.
    """

    def types(rows: int) -> list[dict[str, str]]:
        connection.execute(f"SET pandas_analyze_sample = {rows}")
        return [described(connection, name) for name in names]

    of_all = types(2**62)
    if types(SAMPLED) != of_all:
        connection.execute(f"SET pandas_analyze_sample = {2**62}")


def _without_views(frame: object) -> object:
    """An Arrow table with plain text in place of string views.

    DuckDB has pyarrow filter the rows, and filters of pyarrow 18 to 24 crash on views.
    """
    import pyarrow as pa

    if not isinstance(frame, pa.Table):
        return frame
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    schema = pa.schema([f.with_type(plain.get(f.type, f.type)) for f in frame.schema])
    return frame if schema == frame.schema else frame.cast(schema)


# Messages.

WRONG_ENCODING = (
    "the file is not utf-8: name its encoding with --reader-option encoding=latin-1 (or "
    "utf-16), in Python reader_options={'encoding': 'latin-1'}"
)
ANSWERS = {  # of an object store
    "401": "check the credentials",
    "403": "check the credentials, and what they may read",
    "404": "there is no such bucket or file",
}
TABLES = {  # errors of extensions, and their meaning here
    "No files in log segment": "there is no Delta table: check the path",
    "no version-hint could be found": (
        "the folder does not say which version of the table is current: name its newest "
        "metadata file, as in iceberg_scan('table/metadata/00002-x.metadata.json')"
    ),
}


def _shown(log: Log) -> str:
    files = [v for p in log.parts if p.kind in READERS for v in p.value]
    if not files:
        return "the source"
    return repr(files[0]) if len(files) == 1 else f"{files[0]!r} and {len(files) - 1} more"


def first_line(reason: Exception) -> str:
    """An error of DuckDB in one line, without its picture of the query."""
    text = str(reason).split("\n\nLINE ", maxsplit=1)[0].strip()
    closed = re.search(r'Cannot access file "(.*?)(/\*\*/\*\.\w+)?" - file system', text)
    if closed:
        return f"there is no file {closed.group(1)!r}, or it may not be read"
    if required_extension(text):
        return missing_extension(required_extension(text))
    if "not utf-8 encoded" in text:
        return f"{WRONG_ENCODING} (DuckDB says: {' '.join(text.splitlines()[0].split())})"
    lines = text.split("\n\n", maxsplit=1)[0].splitlines()
    if "CSV Error" in lines[0]:  # the cause is in the lines after it
        return " ".join(lines)
    return _explained(text) or lines[0]


def _explained(text: str) -> str:
    """Advice about a remote place or a table; empty for other errors."""
    status = re.match(r"(?s)(?:HTTP|IO) Error.*?(?:HTTP|status code:) (40[134])\b", text)
    if status is None:
        return next((meaning for said, meaning in TABLES.items() if said in text), "")
    address = re.search(r"(?:reading|on) '([^'?]+)|performing [A-Z]+ ([^\s?]+)", text)
    about = f" for {address.group(1) or address.group(2)}" if address else ""
    return f"the answer is HTTP {status.group(1)}{about}: {ANSWERS[status.group(1)]}"
