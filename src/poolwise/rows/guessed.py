"""Guessed: what DuckDB makes up about a file, made sure before a number rests on it.

CSV and JSON do not say what their columns are, so DuckDB guesses from the first rows and
then rounds a later 0.49 to 0 without a word.  Here all rows are looked at, once, and what
was found is written into the call that reads the file, so that no query guesses again.  A
column whose name is taken gets a name that DuckDB made up; those are found here, too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from poolwise.errors import SourceError, UsageError
from poolwise.rows.guard import FILE, reads_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence


ALL_ROWS = {"sample_size": -1}
TYPES = {"types", "dtypes", "column_types"}  # DuckDB's names for one option
DECIDED = {"columns", "all_varchar", "auto_detect", "names"}  # with these little is guessed
WIDER = {frozenset({"BIGINT", "DOUBLE"}): "DOUBLE"}  # a type that holds the values of both
NOTHING_FOUND = "(empty)"  # how DuckDB writes that there is no such character
GUESSING = re.compile(r"read_(csv|json|ndjson)(_auto)?", re.IGNORECASE)
MADE_UP = re.compile(r"(.+)_\d+", re.DOTALL)


@dataclass(frozen=True)
class Reading:
    """Files of one format, and how they are read.

    Attributes:
        connection: What reads them.
        function: DuckDB's reader.
        paths: Paths and globs.
        options: Options of the reader.
        written: A call as SQL: the function, a path or a list of them, and options.
    """

    connection: duckdb.DuckDBPyConnection
    function: str
    paths: Sequence[str]
    options: Mapping[str, object]
    written: Callable[[str, str | Sequence[str], Mapping[str, object]], str]

    @property
    def call(self) -> str:
        return self.written(self.function, self.paths, self.options)

    def named(self, names: Collection[str]) -> bool:
        """Whether the options have one of these names, which ignore case."""
        return any(name.lower() in names for name in self.options)

    def with_options(self, more: Mapping[str, object]) -> Reading:
        return replace(self, options={**self.options, **more})

    def columns(self) -> dict[str, str]:
        """Type of each column; nothing where the files cannot be read so."""
        try:
            return described(self.connection, self.call)
        except duckdb.Error:
            return {}


def described(connection: duckdb.DuckDBPyConnection, relation: str) -> dict[str, str]:
    """Type of each column of a relation."""
    lines = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return {str(line[0]): str(line[1]) for line in lines}


def settled_csv(reading: Reading, labels: Collection[str]) -> str:
    """The call that reads CSV with the types that all rows have, and labels as text.

    What the user's options say stays as it is.
    """
    if reading.named({"sample_size"}):
        return _labelled(reading, labels).call
    if not reading.named(DECIDED):
        try:
            pinned = _pinned(reading, labels)
        except duckdb.Error as reason:
            if "Error when sniffing" in str(reason):  # reading then says which line it is
                return reading.call
            pinned = None
        if pinned is not None:
            return pinned.call
    return _labelled(reading.with_options(ALL_ROWS), labels).call


def _labelled(reading: Reading, labels: Collection[str]) -> Reading:
    """The same with labels as text, where the file has them."""
    if reading.named(TYPES | DECIDED):
        return reading
    types = {name: "VARCHAR" for name in reading.columns() if name.lower() in labels}
    texts = reading.with_options({"types": types})
    return texts if types and texts.columns() else reading


def _pinned(reading: Reading, labels: Collection[str]) -> Reading | None:
    """The same with all that can be guessed written out; None where files differ too much."""
    sniffed = [_sniffed(reading, path) for path in _files(reading)]
    columns = _common([found.pop("columns") for found in sniffed])
    if not columns or any(found != sniffed[0] for found in sniffed):
        return None
    if not reading.named(TYPES):
        columns |= {name: "VARCHAR" for name in columns if name.lower() in labels}
    kept = {k: v for k, v in reading.options.items() if k.lower() not in TYPES}
    pinned = replace(reading, options={**kept, **sniffed[0], "columns": columns})
    return pinned if columns.items() <= pinned.columns().items() else None


def _files(reading: Reading) -> Iterator[str]:
    for path in reading.paths:
        if not re.search(r"[*?\[]", path):
            yield path
            continue
        query = "SELECT file FROM glob(?)"
        yield from (
            str(line[0]) for line in reading.connection.execute(query, [path]).fetchall()
        )


def _sniffed(reading: Reading, path: str) -> dict[str, Any]:
    """What DuckDB finds in all rows of one file, as options of the reader."""
    call = reading.written("sniff_csv", path, {**reading.options, **ALL_ROWS})
    result = reading.connection.execute(f"SELECT * FROM {call}")
    names = [str(column[0]) for column in result.description or ()]
    found = dict(zip(names, result.fetchall()[0], strict=True))
    marks = {"delim": "Delimiter", "quote": "Quote", "escape": "Escape", "comment": "Comment"}
    formats = {"dateformat": "DateFormat", "timestampformat": "TimestampFormat"}
    return {
        "auto_detect": False,
        **{k: "" if found[v] == NOTHING_FOUND else found[v] for k, v in marks.items()},
        **{k: found[v] for k, v in formats.items() if found[v]},
        "skip": found["SkipRows"],
        "header": found["HasHeader"],
        "columns": {column["name"]: column["type"] for column in found["Columns"]},
    }


def _common(tables: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Columns that hold those of every file; nothing where these are not the same."""
    common = dict(tables[0]) if tables else {}
    for table in tables[1:]:
        if list(table) != list(common):
            return {}
        for name, kind in table.items():
            both = frozenset({kind, common[name]})
            wider = kind if len(both) == 1 else WIDER.get(both)
            if wider is None:
                return {}
            common[name] = wider
    return common


def settled_json(reading: Reading) -> str:
    """The call that reads JSON with the types that all rows have."""
    if reading.named({"sample_size", "columns"}):
        return reading.call
    whole = reading.with_options(ALL_ROWS)
    columns = whole.columns()
    told = set(reading.options) - {"union_by_name"} or any("=" in p for p in reading.paths)
    # a key that DuckDB renamed, a line that is no object, a format of dates: guess again
    odd = any(MADE_UP.fullmatch(name) or name == "json" for name in columns)
    dated = any(re.search("DATE|TIME", kind) for kind in columns.values())
    pinned = reading.with_options({"columns": columns})
    if not columns or told or odd or dated or pinned.columns() != columns:
        return whole.call
    return pinned.call


def refuse_guesses(connection: duckdb.DuckDBPyConnection, select: str) -> None:
    """Refuse a SELECT that reads a file whose first rows mislead about its types."""
    for call in _guessing_calls(connection, _parsed(connection, select)):
        plain, whole = _both_ways(connection, call)
        try:
            first, every = (described(connection, f"({text})") for text in (plain, whole))
        except duckdb.Error:  # reading it will say so, with more words
            continue
        wrong = [name for name in first if first[name] != every.get(name)]
        if wrong:
            path, name = reads_of(connection, plain).files[0], wrong[0]
            reader, quoted = str(call["function_name"]), path.replace("'", "''")
            raise SourceError(
                "the SELECT",
                f"column {name!r} of {path!r} is {first[name]} by its first rows and "
                f"{every.get(name, 'absent')} by all of them: DuckDB would round later values "
                f"or stop at them. Write {reader}('{quoted}', sample_size = -1)",
            )


def _parsed(connection: duckdb.DuckDBPyConnection, select: str) -> dict[str, Any]:
    """A query as DuckDB's parser sees it, complete enough to be written out again."""
    (text,) = connection.execute("SELECT json_serialize_sql(?)", [select]).fetchall()[0]
    tree: dict[str, Any] = json.loads(text)
    return tree


def _guessing_calls(connection: duckdb.DuckDBPyConnection, tree: object) -> Iterator[Any]:
    """Calls of readers that guess types and were not told any; a bare file name is one."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            waiting += node.values()
            if node.get("type") == "BASE_TABLE":
                yield from _call_of_file(connection, node)
            elif node.get("type") == "TABLE_FUNCTION" and _guesses(node["function"]):
                yield node["function"]


def _guesses(call: Mapping[str, Any]) -> bool:
    told = "|".join({*ALL_ROWS, *TYPES, *DECIDED})
    named = re.search(f'"({told})"', json.dumps(call), re.IGNORECASE)
    return bool(GUESSING.fullmatch(str(call["function_name"]))) and named is None


def _call_of_file(
    connection: duckdb.DuckDBPyConnection, node: Mapping[str, Any]
) -> Iterator[Any]:
    names = [node.get(f"{part}_name") for part in ("catalog", "schema", "table")]
    path = ".".join(str(name) for name in names if name)
    ending = FILE.search(path)
    reader = re.search("csv|tsv|json", ending.group(1).lower()) if ending else None
    if reader:
        function = "read_json" if reader.group() == "json" else "read_csv"
        quoted = path.replace("'", "''")
        tree = _parsed(connection, f"SELECT * FROM {function}('{quoted}')")
        yield tree["statements"][0]["node"]["from_table"]["function"]


def _both_ways(
    connection: duckdb.DuckDBPyConnection, call: Mapping[str, Any]
) -> tuple[str, str]:
    """A SELECT of a reader's call as it is, and one that looks at all rows first."""
    tree = _parsed(connection, "SELECT * FROM read_csv('x', sample_size = -1)")
    table = tree["statements"][0]["node"]["from_table"]
    key = "arguments" if "arguments" in table["function"] else "children"  # DuckDB 2 and 1
    more = {**call, key: [*call[key], table["function"][key][-1]]}
    texts = []
    for function in (call, more):
        table["function"] = function
        query = "SELECT json_deserialize_sql(?::JSON)"
        texts.append(str(connection.execute(query, [json.dumps(tree)]).fetchall()[0][0]))
    return texts[0], texts[1]


def header_names(reading: Reading) -> list[str]:
    """The first line of each CSV file, before DuckDB renames what is in it."""
    own = {"header", "union_by_name", *TYPES, *DECIDED}
    kept = {k: v for k, v in reading.options.items() if k.lower() not in own}
    found: list[str] = []
    for path in _files(reading):
        call = reading.written(
            reading.function, path, {**kept, "header": False, "all_varchar": True}
        )
        try:
            lines = reading.connection.execute(f"SELECT * FROM {call} LIMIT 1").fetchall()
        except duckdb.Error:  # options that need a header
            continue
        found += [str(name) for line in lines for name in line]
    return found


def made_up(names: Sequence[str], given: Collection[str]) -> dict[str, str]:
    """Names of columns that DuckDB made up, each with the name that was already taken.

    >>> made_up(["click", "Click_1", "p", "p_1"], ["click", "Click", "p", "p_1"])
    {'Click_1': 'Click'}
    """
    taken = {name.lower() for name in names}
    found = {name: MADE_UP.fullmatch(name) for name in names if name not in given}
    wanted = {name: match.group(1) for name, match in found.items() if match}
    return {k: v for k, v in wanted.items() if v in given and v.lower() in taken}


def refuse_repeats(connection: duckdb.DuckDBPyConnection, patterns: Sequence[str]) -> None:
    """Refuse local files that more than one path or glob stands for."""
    local = [p for p in patterns if not re.match(r"\w+://", p)]
    if len(local) < 2:
        return
    seen: dict[Path, str] = {}
    for pattern in local:
        lines = connection.execute("SELECT file FROM glob(?)", [pattern]).fetchall()
        for (name,) in lines:
            file = Path(str(name)).resolve()
            if file in seen:
                raise UsageError(
                    f"{str(name)!r} would be read twice, by {seen[file]!r} and {pattern!r}: "
                    "its rows would count twice. Name each file once."
                )
            seen[file] = pattern
