"""Sources: files, queries and frames become one DuckDB view.

Only this module knows how DuckDB opens things; after it there is a view named
``log`` whose columns are those of all parts together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import duckdb

from poolwise.errors import SourceError, UsageError
from poolwise.log.policies import as_policy
from poolwise.log.policy import expression_of
from poolwise.rows.guard import (
    Reads,
    close_doors,
    missing_extension,
    reads_of,
    required_extension,
)
from poolwise.rows.guessed import (
    MADE_UP,
    Reading,
    described,
    header_names,
    made_up,
    refuse_guesses,
    refuse_repeats,
    settled_csv,
    settled_json,
)
from poolwise.rows.roles import PART_LOGGER

if TYPE_CHECKING:
    from poolwise.log.log import Frame, Log, Part
    from poolwise.rows.reader import Files

READERS = {"parquet": "read_parquet", "csv": "read_csv", "json": "read_json"}
SHOWN = 5  # missing files that are named


def create_view(connection: duckdb.DuckDBPyConnection, log: Log) -> list[str]:
    """Create the view ``log`` over all parts and return its columns.

    From then on the connection opens these parts and nothing else.
    """
    _tame(connection)
    _refuse_missing([path for p in log.parts if p.kind in READERS for path in p.value])
    frames = [
        _registered(connection, part.value, f"source_{place}") if part.kind == "frame" else ""
        for place, part in enumerate(log.parts)
    ]
    _settle_objects(connection, [name for name in frames if name])
    close_doors(connection, [_reads(connection, part) for part in log.parts])
    files = [p for p in log.parts if p.kind in READERS]
    refuse_repeats(connection, [expanded(path, p.kind) for p in files for path in p.value])
    selects = []
    for part, frame in zip(log.parts, frames, strict=True):
        select = f"SELECT * FROM {frame or _relation(connection, part, log)}"
        if isinstance(log.source, Mapping):
            label = literal(str(part.logger))
            select = select.replace("SELECT *", f'SELECT *, {label} AS "{PART_LOGGER}"', 1)
        selects.append(select)
    rows = " UNION ALL BY NAME ".join(selects)
    try:
        connection.execute(f"CREATE TEMP VIEW log AS {rows}")
        names = list(described(connection, "log"))
    except duckdb.Error as reason:
        raise SourceError(_shown(log), first_line(reason)) from reason
    renamed = _told_apart(connection, log, names)
    if renamed:
        listed = ", ".join(f"{identifier(k)} AS {identifier(v)}" for k, v in renamed.items())
        view = f"SELECT * RENAME ({listed}) FROM ({rows})"
        connection.execute(f"CREATE OR REPLACE TEMP VIEW log AS {view}")
    return [renamed.get(name, name) for name in names]


def _refuse_missing(paths: Sequence[str]) -> None:
    """Name the files that are not there: behind closed doors DuckDB says less of them."""
    named = [path for path in paths if not re.search(r"[*?\[]|^\w+://", path)]
    missing = [path for path in named if not _exists(path)]
    if missing:
        listed = ", ".join(map(repr, missing[:SHOWN]))
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise SourceError(f"{listed}{more}", "there is no such file or folder: check the path")


def _exists(path: str) -> bool:
    from pathlib import Path

    try:
        return Path(path).exists()
    except OSError:  # a name that no file can have
        return False


def _told_apart(
    connection: duckdb.DuckDBPyConnection, log: Log, names: Sequence[str]
) -> dict[str, str]:
    """New names for columns of one name, so that none is taken for the other.

    A role that uses such a name is refused; so is one that means the second of two columns
    whose names differ in case only, since DuckDB would take the first.
    """
    if not any(MADE_UP.fullmatch(name) for name in names):
        return {}
    given = [name for part in log.parts for name in _given_names(connection, part, log)]
    twice = made_up(names, given)
    for used in _used(log, names) if twice else ():
        alike = [own for own in twice.values() if own.lower() == used.lower()]
        if used in alike or (alike and used not in names):
            both = ", ".join(name for name in given if name.lower() == used.lower())
            raise SourceError(
                _shown(log),
                f"a role uses column {used!r}, and more than one has that name ({both}; "
                "capitals make no difference): rename all but one, or leave them out",
            )
    same = {own: [own, *(k for k, v in twice.items() if v == own)] for own in twice.values()}
    return {
        name: f"{own} ({place} of {len(columns)})"
        for own, columns in same.items()
        if own in names
        for place, name in enumerate(columns, start=1)
    }


def _given_names(connection: duckdb.DuckDBPyConnection, part: Part, log: Log) -> Sequence[str]:
    """Names of columns as the source has them; none where nobody can say."""
    if part.kind == "frame":
        frame: Frame = part.value
        lazy = frame.collect_schema() if hasattr(frame, "collect_schema") else None
        names = getattr(lazy or getattr(frame, "schema", None), "names", None)
        names = names() if callable(names) else names
        return [str(name) for name in (frame.columns if names is None else names)]
    paths = [expanded(path, part.kind) for path in part.value] if part.kind in READERS else []
    if part.kind == "parquet":
        query = f"SELECT name FROM parquet_schema({literal(paths)})"
        return [str(line[0]) for line in connection.execute(query).fetchall()]
    return header_names(_reading(connection, part, log)) if part.kind == "csv" else []


def _used(log: Log, names: Sequence[str]) -> Iterator[str]:
    """Columns that the roles of a log name."""
    from sqlglot import exp

    roles = [log.reward, log.logger, log.cluster, log.mixture, log.propensity]
    for role in [*roles, *(log.propensities or {}).values()]:
        expression = None if role is None else expression_of(as_policy(role, names))
        if expression is not None:
            yield from (found.name for found in expression.find_all(exp.Column))
    yield from [*log.context, *([log.action] if log.action else [])]


def plain_files(connection: duckdb.DuckDBPyConnection, log: Log) -> Files | None:
    """Every Parquet file of a log with the label of its rows, if no column has it.

    None where something else than the files decides what the rows are: options of the
    reader, columns in the names of folders, or storage that is not a file system.
    """
    from pathlib import Path

    if log.reader_options or any(part.kind != "parquet" for part in log.parts):
        return None
    found: list[tuple[str, str | None]] = []
    for part in log.parts:
        patterns = literal([expanded(path, part.kind) for path in part.value])
        lines = connection.execute(f"SELECT file FROM glob({patterns})").fetchall()
        found += [(str(line[0]), part.logger) for line in lines]
    names = [path for path, _ in found]
    if any("=" in str(Path(name).parent) or not Path(name).is_file() for name in names):
        return None
    return tuple(found)


# Steps that answer from a file's statistics, which leave NaN out (docs/decisions/0012), and
# that move a TRY_CAST into the reader of CSV, where it fails on a word.
MISLEADING = ("statistics_propagation", "type_pushdown")


def _tame(connection: duckdb.DuckDBPyConnection) -> None:
    """Switch off what misleads, as far as this DuckDB has it, and what prints."""
    known = connection.execute("SELECT name FROM duckdb_optimizers()").fetchall()
    off = ",".join(name for name in MISLEADING if (name,) in known)
    connection.execute(f"SET disabled_optimizers = {literal(off)}")
    connection.execute("SET enable_progress_bar = false")


def _shown(log: Log) -> str:
    files = [v for p in log.parts if p.kind in READERS for v in p.value]
    if not files:
        return "the source"
    return repr(files[0]) if len(files) == 1 else f"{files[0]!r} and {len(files) - 1} more"


def first_line(reason: Exception) -> str:
    """What DuckDB says, in one line and without its picture of the query."""
    text = str(reason).split("\n\nLINE ", maxsplit=1)[0].strip()
    closed = re.search(r'Cannot access file "(.*?)(/\*\*/\*\.\w+)?" - file system', text)
    if closed:
        return f"there is no file {closed.group(1)!r}, or it may not be read"
    missing = required_extension(text)
    if missing:
        return missing_extension(missing)
    if "not utf-8 encoded" in text:
        return f"{WRONG_ENCODING} (DuckDB says: {' '.join(text.splitlines()[0].split())})"
    explained = _explained(text)
    if explained:
        return explained
    lines = text.split("\n\n", maxsplit=1)[0].splitlines()
    if "CSV Error" in lines[0]:  # only the lines after it say what the error is
        return " ".join(lines)
    return lines[0]


WRONG_ENCODING = (
    "the file is not utf-8: say what it is with --reader-option encoding=latin-1 (or utf-16), "
    "in Python reader_options={'encoding': 'latin-1'}"
)
ANSWERS = {  # of an object store
    "401": "check the credentials",
    "403": "check the credentials, and what they may read",
    "404": "there is no such bucket or file",
}
TABLES = {  # what extensions say of a table, and what it means here
    "No files in log segment": "there is no Delta table: check the path",
    "no version-hint could be found": (
        "the folder does not say which version of the table is current: name its newest "
        "metadata file, as in iceberg_scan('table/metadata/00002-x.metadata.json')"
    ),
}


def _explained(text: str) -> str:
    """What to do about a remote place or a table; empty if it is about something else."""
    status = re.match(r"(?s)(?:HTTP|IO) Error.*?(?:HTTP|status code:) (40[134])\b", text)
    if status is None:
        return next((meaning for said, meaning in TABLES.items() if said in text), "")
    address = re.search(r"(?:reading|on) '([^'?]+)|performing [A-Z]+ ([^\s?]+)", text)
    about = f" for {address.group(1) or address.group(2)}" if address else ""
    return f"the answer is HTTP {status.group(1)}{about}: {ANSWERS[status.group(1)]}"


def _relation(connection: duckdb.DuckDBPyConnection, part: Part, log: Log) -> str:
    if part.kind == "select":
        refuse_guesses(connection, part.value)
        return f"(\n{part.value}\n)"  # it may end in a comment
    reading = _reading(connection, part, log)
    if part.kind == "csv":
        return settled_csv(reading, {name.lower() for name in _labels(log)})
    return settled_json(reading) if part.kind == "json" else reading.call


def _reading(connection: duckdb.DuckDBPyConnection, part: Part, log: Log) -> Reading:
    paths = [expanded(path, part.kind) for path in part.value]
    options = {"union_by_name": True, **log.reader_options}
    return Reading(connection, READERS[part.kind], paths, options, _written)


def _written(function: str, paths: str | Sequence[str], options: Mapping[str, object]) -> str:
    named = "".join(f", {_option(k)} = {literal(v)}" for k, v in options.items())
    return f"{function}({literal(paths)}{named})"


def _labels(log: Log) -> list[str]:
    """What names rows, whatever it looks like: 1.1 and 1.10 are not the same."""
    return [re.sub(r'^"([^"]+)"$', r"\1", name) for name in (log.logger, log.cluster) if name]


def _reads(connection: duckdb.DuckDBPyConnection, part: Part) -> Reads:
    if part.kind == "select":
        return reads_of(connection, _one_select(connection, part.value))
    paths = part.value if part.kind in READERS else ()
    return Reads(files=[expanded(path, part.kind) for path in paths])


def expanded(path: str, kind: str) -> str:
    """A folder stands for all files of the format below it."""
    from pathlib import Path

    try:
        folder = Path(path).is_dir()
    except OSError as reason:  # a name that no file can have
        raise SourceError(f"{path[:100]!r}...", str(reason.strerror)) from reason
    return f"{path.rstrip('/')}/**/*.{kind}" if folder else path


def _one_select(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error as reason:
        raise SourceError("the SELECT", first_line(reason)) from reason
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError("a source in SQL must be one SELECT, and nothing else")
    return text


def _registered(connection: duckdb.DuckDBPyConnection, frame: Frame, name: str) -> str:
    try:
        try:
            connection.register(name, _without_views(frame))
        except (duckdb.Error, RuntimeError) as reason:
            if isinstance(reason, duckdb.NotImplementedException) or not _is_pandas(frame):
                raise
            connection.register(name, frame.copy())  # its rows lay backwards in memory
    except duckdb.NotImplementedException as reason:  # a frame, with a type unknown to DuckDB
        raise SourceError("the frame", _strange(connection, frame, reason)) from reason
    except (duckdb.Error, RuntimeError, TypeError) as reason:
        raise UsageError(
            f"a value of type {type(frame).__name__} is not a source: give a path, a glob, a "
            "SELECT, a pyarrow, pandas or Polars frame, a list of these, or a mapping by logger"
        ) from reason
    return name


def _is_pandas(frame: Frame) -> bool:
    return type(frame).__module__.startswith("pandas.") and hasattr(frame, "columns")


def _strange(connection: duckdb.DuckDBPyConnection, frame: Frame, reason: duckdb.Error) -> str:
    """Which columns have a type that DuckDB does not know, found one by one."""
    strange = []
    for place, name in enumerate(frame.columns if _is_pandas(frame) else ()):
        try:
            connection.register("one_column", frame.iloc[:, [place]])
            connection.unregister("one_column")
        except duckdb.NotImplementedException:
            strange.append(f"{name!r} ({frame.dtypes.iloc[place]})")
    if not strange:
        return first_line(reason)
    listed = ", ".join(strange)
    return f"DuckDB does not know the type of {listed}: drop such columns, or convert them"


SAMPLED = 1000  # values of a column of objects that DuckDB looks at by itself


def _settle_objects(connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
    """Have DuckDB look at all objects of a pandas frame, unless some tell it the same.

    It guesses their type, for every query anew, and rounds those that do not fit.
    """

    def guesses(looked_at: int) -> list[dict[str, str]]:
        connection.execute(f"SET pandas_analyze_sample = {looked_at}")
        return [described(connection, name) for name in names]

    every = guesses(2**62)
    if guesses(SAMPLED) != every:
        connection.execute(f"SET pandas_analyze_sample = {2**62}")


def _without_views(frame: object) -> object:
    """The same table with its text in one piece: views of it crash pyarrow 18 to 24.

    DuckDB has pyarrow filter the rows, and its filters do not know views.
    """
    import pyarrow as pa

    if not isinstance(frame, pa.Table):
        return frame
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    fields = [f.with_type(plain.get(f.type, f.type)) for f in frame.schema]
    schema = pa.schema(fields)
    return frame if schema == frame.schema else frame.cast(schema)


def _option(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise UsageError(f"{name!r} is not an option of DuckDB's readers")
    return name


def identifier(name: str) -> str:
    """A name as DuckDB text."""
    return '"' + name.replace('"', '""') + '"'


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
