"""Computed: roles that are arithmetic of plain columns, which DuckDB computes batch by batch.

DuckDB reads a Parquet file more slowly than Arrow does, and hands over its rows in one
stream.  So threads read the columns as they do without expressions, and DuckDB only computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from poolwise.errors import EngineError
from poolwise.rows.guard import first_line, lock
from poolwise.rows.rules import double

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import duckdb
    import pyarrow as pa
    from sqlglot.expressions import Expr as Expression

OPERAND = "operand "  # begins the names of columns that only expressions read
ROW_FUNCTIONS = (  # of one row, the same in every batch
    *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.DataType, exp.Paren),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Abs, exp.Exp, exp.Ln, exp.Sqrt),
    *(exp.Pow, exp.Least, exp.Greatest, exp.Coalesce, exp.Cast, exp.TryCast, exp.Case, exp.If),
    *(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between, exp.Is),
    *(exp.And, exp.Or, exp.Not),
)


class Computed:
    """Roles that are computed from other columns.

    Args:
        roles: Expressions by role.
    """

    def __init__(self, roles: Mapping[str, Expression]) -> None:
        self.texts = {k: double(value).sql(dialect="duckdb") for k, value in roles.items()}
        self.columns = {k: _list_columns(value) for k, value in roles.items()}

    def operands(self, names: Iterable[str]) -> dict[str, str]:
        """Return the columns that some roles are computed from, under names of their own."""
        chosen = [name for name in names if name in self.columns]
        sources = dict.fromkeys(source for name in chosen for source in self.columns[name])
        return {f"{OPERAND}{source}": source for source in sources}


def computed_roles(roles: Mapping[str, Expression]) -> Computed | None:
    """Return roles that can be computed batch by batch; None if one cannot."""
    columns = [node for value in roles.values() for node in value.find_all(exp.Column)]
    qualified = any(node.table for node in columns)
    varied = all(map(_list_columns, roles.values()))  # DuckDB counts rows by their columns
    plain = is_arithmetic(roles.values()) and varied and not qualified
    return Computed(roles) if plain else None


def is_arithmetic(expressions: Iterable[Expression]) -> bool:
    """Test if expressions are arithmetic of one row, without times, which have a zone."""
    nodes = [node for expression in expressions for node in expression.walk()]
    times = exp.DataType.TEMPORAL_TYPES
    return all(
        type(node) in ROW_FUNCTIONS
        and not (isinstance(node, exp.DataType) and node.this in times)
        for node in nodes
    )


def _list_columns(expression: Expression) -> list[str]:
    return [column.name for column in expression.find_all(exp.Column)]


class Computer:
    """Computes roles; each thread has its own connection."""

    def __init__(self, computed: Computed) -> None:
        self.computed = computed
        self._connection: duckdb.DuckDBPyConnection | None = None

    def __call__(self, table: pa.Table, names: Collection[str]) -> pa.Table:
        """Replace the operands of a table by those of the roles `names` that are computed."""
        texts = {k: text for k, text in self.computed.texts.items() if k in names}
        operands = [n for n in table.column_names if n.startswith(OPERAND)]
        if not operands:
            return table
        columns = [name.removeprefix(OPERAND) for name in operands]
        rows = table.select(operands).rename_columns(columns)
        table = table.drop_columns(operands)
        answer = self._answer(rows, texts) if texts else table
        for name in texts:
            table = table.append_column(name, answer.column(name))
        return table

    def _answer(self, rows: pa.Table, texts: Mapping[str, str]) -> pa.Table:
        """Compute expressions of rows."""
        import duckdb

        listed = ", ".join(f'{text} AS "{name}"' for name, text in texts.items())
        query = f"SELECT {listed} FROM batch"
        try:
            connection = self._opened()
            connection.register("batch", rows)
            return connection.sql(query).to_arrow_table()
        except duckdb.Error as reason:
            raise EngineError("DuckDB", query, RuntimeError(first_line(reason))) from reason

    def _opened(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        if self._connection is None:
            self._connection = duckdb.connect(config={"threads": 1})
            self._connection.execute(
                "SET python_enable_replacements = false; SET enable_external_access = false"
            )
            lock(self._connection)
        return self._connection
