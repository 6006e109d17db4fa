"""Guard: the connection opens the files of a log and is then closed.

A log of files and frames needs no other file, so DuckDB opens these and its folder for
temporary files.  A SELECT reads what its author may read: it must be one SELECT statement.
Either way no variable of Python is visible and the configuration is locked.
"""

from __future__ import annotations

import glob
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolwise.errors import EngineError, SourceError, UsageError
from poolwise.rows.repeats import REMOTE, refuse_repeated, whole_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import pyarrow as pa
    from duckdb import DuckDBPyConnection as Connection

    from poolwise.log.log import Log, Part

READERS = {"parquet": "read_parquet", "csv": "read_csv", "json": "read_json"}
PATH = re.compile(r"'([^']*[./][^']*)'")  # in a SELECT
GLOB = re.compile(r"[*?\[{~]")
SHOWN_FILES = 5  # missing files that an error names
PLACES = {  # how a path in a remote place begins, and the extension that reads it
    r"(https?|s3|s3a|s3n|gcs|gs|r2|hf)://": "httpfs",
    r"(az|azure|abfss)://": "azure",
}
WRONG_ENCODING = (
    "the file is not utf-8: name its encoding with --reader-option encoding=latin-1 (or "
    "utf-16), in Python pw.Log(..., reader_options={'encoding': 'latin-1'})"
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
# Optimizers that answer from a file's statistics, which leave NaN out (docs/decisions/0012),
# and that move a TRY_CAST into the reader of CSV, where it fails on a word.
MISLEADING = ("statistics_propagation", "type_pushdown")
TABLE_LOGS = {  # folder in which a table says which files are current, and what it holds
    "Delta": ("_delta_log", "*"),
    "Hudi": (".hoodie", "*"),
    "Iceberg": ("metadata", "[v0-9][0-9]*.metadata.json*"),
}
SCANS = {"Delta": "delta_scan", "Iceberg": "iceberg_scan"}  # functions of DuckDB


def configure(connection: Connection, timezone: str) -> None:
    """Set what the machine or its configuration would decide otherwise."""
    import duckdb

    present = connection.execute("SELECT name FROM duckdb_optimizers()").fetchall()
    off = ",".join(name for name in MISLEADING if (name,) in present)
    settings = {"disabled_optimizers": f"'{off}'", "python_enable_replacements": "false"}
    if connection.execute("SELECT current_setting('enable_progress_bar')").fetchall()[0][0]:
        settings["enable_progress_bar"] = "false"  # fails in notebooks without ipywidgets
    for name, value in settings.items():
        connection.execute(f"SET {name} = {value}")
    try:
        connection.execute("SET TimeZone = ?", [timezone])
    except duckdb.Error as reason:
        raise UsageError(f"DuckDB does not know the time zone {timezone!r}") from reason


def require_select(connection: Connection, text: str) -> None:
    """Refuse text that is not exactly one SELECT statement."""
    import duckdb

    try:
        statements = connection.extract_statements(text)
    except duckdb.Error as reason:
        raise SourceError("the SELECT", str(reason).splitlines()[0]) from reason
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError("a source in SQL must be one SELECT, and nothing else")


# Files.


def expand_path(path: str, kind: str) -> str:
    """Return a path; for a folder, the glob of all files of the format below it."""
    try:
        folder = Path(path).is_dir()
    except OSError as reason:  # no file can have this name
        raise SourceError(f"{path[:100]!r}...", str(reason.strerror)) from reason
    path = _as_written(path)
    return f"{path.rstrip('/')}/**/*.{kind}" if folder else path


def _as_written(path: str) -> str:
    """Return a pattern in which the names that exist as they are written match only themselves.

    A folder may be called br[1].
    """
    if not re.search(r"[*?\[]", path) or "://" in path:
        return path
    written = pattern = ""
    for part in re.split("(/)", path):
        written += part
        pattern += glob.escape(part) if os.path.lexists(written) else part
    return pattern


def list_patterns(log: Log, kinds: Collection[str] = tuple(READERS)) -> list[str]:
    """List the paths and globs that a log names outside of a SELECT."""
    return [expand_path(path, p.kind) for p in log.parts if p.kind in kinds for path in p.value]


def list_files(log: Log) -> list[str]:
    """List paths and globs of a log; of a SELECT, quoted texts with a dot or slash."""
    selects = [part.value for part in log.parts if part.kind == "select"]
    databases = [part.value[0] for part in log.parts if part.kind == "database"]
    return databases + list_patterns(log) + [t for text in selects for t in PATH.findall(text)]


def local_files(connection: Connection, log: Log) -> list[str]:
    """List the local files; an error where one is missing or would be read twice."""
    files = named_files(log, lambda: connection)
    found = {path for _, path in files}
    missing = [repr(_show_pattern(path)) for path in list_patterns(log) if path not in found]
    if missing:
        more = f" and {len(missing) - SHOWN_FILES} more" if len(missing) > SHOWN_FILES else ""
        listed = ", ".join(missing[:SHOWN_FILES]) + more
        raise SourceError(listed, "there is no such file or folder: check the path")
    parquet = set(list_patterns(log, ["parquet"]))
    refuse_tables(file for file, path in files if path in parquet and not REMOTE.match(path))
    refuse_repeated(log, files)
    return [file for file, path in files if not REMOTE.match(path)]


def refuse_tables(files: Iterable[str], *, spark: bool = False) -> None:
    """Refuse Parquet files of a table whose own log says which rows are current.

    Each folder above the files is looked at once.
    """
    seen: set[str] = set()
    for parent in dict.fromkeys(map(os.path.dirname, files)):
        folder = os.path.realpath(parent)
        while folder not in seen:
            seen.add(folder)
            kind = _table_kind(folder)
            if kind:
                how = f"Spark's session.read.format({kind.lower()!r}).load({folder!r})"
                if kind in SCANS and not spark:
                    how = "SELECT * FROM {}('{}')".format(
                        SCANS[kind], folder.replace("'", "''")
                    )
                raise SourceError(
                    repr(folder),
                    f"it is {'an' if kind == 'Iceberg' else 'a'} {kind} table, whose Parquet "
                    "files also hold rows that were deleted or replaced. Read the current rows "
                    f"with {how}",
                )
            folder = os.path.dirname(folder)  # noqa: PTH120 - of texts, since there may be many


def _table_kind(folder: str) -> str:
    """Return the format of the table in a folder; empty if there is none."""
    for kind, (log, content) in TABLE_LOGS.items():
        place = f"{folder}/{log}"
        if os.path.isdir(place) and any(Path(place).glob(content)):  # noqa: PTH112 - likewise
            return kind
    return ""


def _show_pattern(pattern: str) -> str:
    """Return a pattern without the brackets that `glob.escape` adds."""
    return re.sub(r"\[([*?[])\]", r"\1", pattern)


def named_files(
    log: Log, connect: Callable[[], Connection] | None = None
) -> list[tuple[str, str]]:
    """List the files of a log and its remote paths, each with the path that names it.

    Args:
        log: The log.
        connect: Returns a connection that lists the files of globs; None opens one.
    """
    files: list[tuple[str, str]] = []
    for part in log.parts:
        if part.kind == "select":
            files += [(path, path) for path in whole_file(part.value) if _is_file(path)]
        for path in part.value if part.kind in READERS else ():
            if REMOTE.match(path) or _is_file(path):
                files.append((path, path))
            else:
                pattern = expand_path(path, part.kind)
                files += [(file, pattern) for file in _glob(connect, [pattern])]
    return files


def _glob(connect: Callable[[], Connection] | None, patterns: list[str]) -> list[str]:
    if all(map(_is_file, patterns)):
        return patterns
    if connect is None:
        import duckdb

        connect = duckdb.connect
    lines = connect().execute("SELECT file FROM glob(?)", [patterns]).fetchall()
    return [str(line[0]) for line in lines]


def _is_file(path: str) -> bool:
    """Test if a path is that of a file, and not a glob."""
    return not GLOB.search(path) and os.path.isfile(path)  # noqa: PTH113 - thousands of files


def part_files(connection: Connection, part: Part) -> list[str]:
    """List the files of a part."""
    patterns = [expand_path(path, part.kind) for path in part.value]
    return _glob(lambda: connection, patterns)


def close_files(connection: Connection, patterns: Sequence[str], files: Sequence[str]) -> None:
    """Limit DuckDB to some paths, and to its own folder for temporary files.

    Args:
        connection: The connection to limit; this cannot be undone.
        patterns: Paths and globs, as the user wrote them.
        files: Local files that they match.
    """
    remote = [path for path in patterns if _extension(path)]
    for name, path in {_extension(path): path for path in reversed(remote)}.items():
        load_extension(connection, name, path)
    (own,) = connection.execute("SELECT current_setting('temp_directory')").fetchall()[0]
    # files of a remote glob cannot be listed yet: the folder above its first star
    globs = [p for p in remote if re.search(r"[*?\[]", p) and not p.lower().startswith("http")]
    folders = [re.split(r"[*?\[]", path)[0].rpartition("/")[0] + "/" for path in globs]
    connection.execute("SET allowed_paths = ?", [list(dict.fromkeys([*patterns, *files]))])
    connection.execute("SET allowed_directories = ?", [[*dict.fromkeys(folders), own]])
    connection.execute("SET enable_external_access = false")


def lock(connection: Connection) -> None:
    """Load no further extension and change no setting from now on."""
    connection.execute(
        "SET autoinstall_known_extensions = false; SET autoload_known_extensions = false; "
        "SET lock_configuration = true"
    )


def _extension(path: str) -> str:
    """Return the extension that reads a remote path; empty for a local one."""
    names = (name for begins, name in PLACES.items() if re.match(begins, path, re.IGNORECASE))
    return next(names, "")


def load_extension(connection: Connection, name: str, source: str) -> None:
    """Load an extension of DuckDB; fetch it if that is necessary and allowed."""
    import duckdb

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
        required = required_extension(str(reason)) or name  # one may require another
        raise SourceError(repr(source), missing_extension(required)) from reason
    # DuckDB reads stored secrets now, since it may not once files are closed
    connection.execute("SELECT count(*) FROM duckdb_secrets()")


# Messages.


def required_extension(text: str) -> str:
    """Return the extension that an error of DuckDB names; empty for other errors."""
    match = re.search(
        r"required extension '(\w+)|exists in the (\w+) extension"
        r"|requires the extension (\w+)",
        text,
    )
    return next(filter(None, match.groups())) if match else ""


def missing_extension(name: str) -> str:
    """Return the message about an extension that could not be loaded."""
    return (
        f"it needs DuckDB's extension '{name}', which is not installed and could not be "
        f"fetched. Run INSTALL {name} once, in any DuckDB that has network"
    )


@contextmanager
def duckdb_errors(query: str) -> Iterator[None]:
    """Translate errors of DuckDB, and of the reader of its answers, which are OSErrors."""
    import duckdb
    import pyarrow as pa

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as reason:
        raise EngineError("DuckDB", query, RuntimeError(first_line(reason))) from reason


def count_rows(connection: Connection) -> int:
    """Return the number of rows of a log."""
    query = "SELECT count(*) FROM log"
    with duckdb_errors(query):
        return int(connection.execute(query).fetchall()[0][0])


def read_batches(connection: Connection, query: str, size: int) -> Iterator[pa.RecordBatch]:
    """Run a query, the only one of its connection, and yield batches of so many rows."""
    with duckdb_errors(query):
        reader: Any = connection.sql(query).to_arrow_reader(size)
        try:
            yield from reader
        finally:
            reader.close()


def read_table(connection: Connection, query: str) -> pa.Table:
    """Run a query and return its whole answer."""
    with duckdb_errors(query):
        return connection.sql(query).to_arrow_table()


def first_line(reason: Exception) -> str:
    """Return an error of DuckDB in one line, without its picture of the query."""
    text = str(reason).split("\n\nLINE ", maxsplit=1)[0].strip()
    if required_extension(text):
        return missing_extension(required_extension(text))
    if "not utf-8 encoded" in text:
        return f"{WRONG_ENCODING} (DuckDB says: {' '.join(text.splitlines()[0].split())})"
    lines = text.split("\n\n", maxsplit=1)[0].splitlines()
    if "CSV Error" in lines[0]:  # the cause is in the lines after it
        return " ".join(lines)
    return _explain_error(text) or lines[0]


def _explain_error(text: str) -> str:
    """Return advice about a remote place or a table; empty for other errors."""
    status = re.match(r"(?s)(?:HTTP|IO) Error.*?(?:HTTP|status code:) (40[134])\b", text)
    if status is None:
        return next((meaning for said, meaning in TABLES.items() if said in text), "")
    address = re.search(r"(?:reading|on) '([^'?]+)|performing [A-Z]+ ([^\s?]+)", text)
    about = f" for {address.group(1) or address.group(2)}" if address else ""
    return f"the answer is HTTP {status.group(1)}{about}: {ANSWERS[status.group(1)]}"
