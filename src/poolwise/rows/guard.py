"""Guard: the connection opens the sources of a log and is then closed.

A log of files and frames needs no other file, so DuckDB opens these and its folder for
temporary files.  A SELECT reads what its author may read: it must be one SELECT statement.
Either way no variable of Python is visible, the configuration is locked, and an expression
that plays a role reads its row and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import duckdb
from sqlglot import exp

from poolwise.errors import SourceError, UsageError

if TYPE_CHECKING:
    from sqlglot.expressions import Expr as Expression

    from poolwise.rows.rules import RoleColumns

PLACES = {  # how a path in a remote place begins, and the extension that reads it
    r"(https?|s3|s3a|s3n|gcs|gs|r2|hf)://": "httpfs",
    r"(az|azure|abfss)://": "azure",
}
NOT_IN_EXPRESSIONS = re.compile(
    r"getenv|getvariable|current_setting|which_secret|write_log|nextval|setval|query(_table)?"
    r"|json_execute_serialized_sql|sniff_csv|(read|parquet|duckdb|pragma)_\w+",
    re.IGNORECASE,
)


def require_select(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """Refuse text that is not exactly one SELECT statement."""
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error as reason:
        raise SourceError("the SELECT", str(reason).splitlines()[0]) from reason
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError("a source in SQL must be one SELECT, and nothing else")


def refuse_reaching(table: RoleColumns) -> None:
    """Refuse roles that read more than their row: files, settings, other tables."""
    for role, expression in _roles(table):
        names = [n for n in _functions(expression) if NOT_IN_EXPRESSIONS.fullmatch(n)]
        reaching = [f"{name}()" for name in dict.fromkeys(names)]
        reaching += ["a query"] if expression.find(exp.Query, exp.Table) else []
        if reaching:
            listed = ", ".join(reaching)
            raise UsageError(f"{role} must be an expression of one row, but contains {listed}")


def _roles(table: RoleColumns) -> Iterator[tuple[str, Expression]]:
    for role, value in vars(table).items():
        if isinstance(value, Mapping):
            yield from ((f"{role}[{name!r}]", part) for name, part in value.items())
        elif hasattr(value, "find_all") and role != "relation":
            yield role, value


def _functions(expression: Expression) -> Iterator[str]:
    for call in expression.find_all(exp.Func):
        yield call.name if isinstance(call, exp.Anonymous) else call.sql_name()


def close_files(
    connection: duckdb.DuckDBPyConnection, patterns: Sequence[str], files: Sequence[str]
) -> None:
    """Limit DuckDB to some paths, and to its own folder for temporary files.

    Args:
        connection: The connection to limit; this cannot be undone.
        patterns: Paths and globs, as the user wrote them.
        files: Local files that they match.
    """
    first_path = {name: path for path in reversed(patterns) for name in _extensions(path)}
    for name, path in first_path.items():
        load_extension(connection, name, path)
    (own,) = connection.execute("SELECT current_setting('temp_directory')").fetchall()[0]
    folders = dict.fromkeys([*(d for path in patterns for d in _prefix(path)), own])
    connection.execute("SET allowed_paths = ?", [list(dict.fromkeys([*patterns, *files]))])
    connection.execute("SET allowed_directories = ?", [list(folders)])
    connection.execute("SET enable_external_access = false")


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    """Load no further extension and change no setting from now on."""
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute("SET autoload_known_extensions = false")
    connection.execute("SET lock_configuration = true")


def _extensions(path: str) -> list[str]:
    """The extension that reads a remote path; none for a local one."""
    return [name for begins, name in PLACES.items() if re.match(begins, path, re.IGNORECASE)]


def _prefix(path: str) -> list[str]:
    """The folder above the first star of a remote glob, whose files cannot be listed yet."""
    start = re.split(r"[*?\[]", path)[0]
    if start == path or not _extensions(path) or path.lower().startswith("http"):
        return []
    return [start.rpartition("/")[0] + "/"]


def load_extension(connection: duckdb.DuckDBPyConnection, name: str, source: str) -> None:
    """Load an extension of DuckDB; fetch it if that is necessary and allowed."""
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


def required_extension(text: str) -> str:
    """The extension that an error of DuckDB asks for; empty for other errors."""
    match = re.search(
        r"required extension '(\w+)|exists in the (\w+) extension"
        r"|requires the extension (\w+)",
        text,
    )
    return next(filter(None, match.groups())) if match else ""


def missing_extension(name: str) -> str:
    """Message about an extension that could not be loaded."""
    return (
        f"it needs DuckDB's extension '{name}', which is not installed and could not be "
        f"fetched. Run INSTALL {name} once, in any DuckDB that has network"
    )
