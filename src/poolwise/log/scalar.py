"""Scalar: the SQL that an expression of one row may contain.

Expressions are in question files, which people share, and run in Spark and in databases with
the rights of the caller.  So an expression may contain what is listed here, and
nothing else: a function that is not listed could read a file, delete rows or end the program.
All listed functions compute the same value from the same row whenever they are called.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

import sqlglot
from sqlglot import exp

from poolwise.errors import ExpressionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlglot.expressions import Expr

VALUES = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.RawString, exp.Boolean, exp.Null, exp.Paren),
    *(exp.Tuple, exp.Interval, exp.Var, exp.DataType, exp.DataTypeParam, exp.ColumnDef),
)
OPERATORS = (
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe),
    *(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.And, exp.Or, exp.Not, exp.Is, exp.Between, exp.In, exp.Any),
    *(exp.Like, exp.ILike, exp.Glob, exp.Escape, exp.RegexpLike),
    *(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot),
    *(exp.BitwiseLeftShift, exp.BitwiseRightShift),
    *(exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Cast, exp.TryCast),
)
MATHEMATICS = (
    *(exp.Abs, exp.Sign, exp.Round, exp.Floor, exp.Ceil, exp.Trunc, exp.Least, exp.Greatest),
    *(exp.Exp, exp.Ln, exp.Log, exp.Pow, exp.Sqrt, exp.Cbrt, exp.IsNan, exp.IsInf),
    *(exp.Sin, exp.Cos, exp.Tan, exp.Cot, exp.Asin, exp.Acos, exp.Atan, exp.Atan2),
    *(exp.Sinh, exp.Cosh, exp.Tanh, exp.Pi, exp.Degrees, exp.Radians),
)
TEXTS = (
    *(exp.Lower, exp.Upper, exp.Length, exp.Left, exp.Right, exp.Substring, exp.Trim, exp.Pad),
    *(exp.Concat, exp.ConcatWs, exp.Replace, exp.Reverse, exp.Split, exp.SplitPart),
    *(exp.StartsWith, exp.EndsWith, exp.Contains, exp.StrPosition, exp.Translate),
    *(exp.RegexpExtract, exp.RegexpFullMatch, exp.RegexpReplace),
    *(exp.MD5, exp.SHA, exp.SHA2),
)
TIMES = (
    *(exp.Year, exp.Quarter, exp.Month, exp.Week, exp.WeekOfYear, exp.Day, exp.DayOfMonth),
    *(exp.DayOfWeek, exp.DayOfWeekIso, exp.DayOfYear, exp.Dayname, exp.Monthname, exp.LastDay),
    *(exp.Hour, exp.Minute, exp.Second, exp.Extract, exp.TimestampTrunc, exp.DateBin),
    *(exp.DateAdd, exp.DateDiff, exp.DateFromParts, exp.ToDays, exp.AtTimeZone),
    *(exp.StrToTime, exp.TimeToStr, exp.TimeToUnix, exp.UnixToTime),
)
PART_FUNCTIONS = (  # of lists, structs, maps and JSON
    *(exp.Bracket, exp.Slice, exp.Array, exp.ArrayContains, exp.ArrayContainsAll),
    *(exp.ArrayOverlaps, exp.ArrayPosition, exp.ArraySize, exp.ArrayMax, exp.ArrayMin),
    *(exp.ArrayFilter, exp.Transform, exp.Lambda),
    *(exp.Struct, exp.StructExtract, exp.PropertyEQ, exp.Map, exp.ToMap, exp.MapKeys),
    *(exp.JSONExtract, exp.JSONExtractScalar, exp.ParseJSON),
    *(exp.JSONPath, exp.JSONPathRoot, exp.JSONPathKey, exp.JSONPathSubscript),
)
ALLOWED_FUNCTIONS = frozenset(
    (*VALUES, *OPERATORS, *MATHEMATICS, *TEXTS, *TIMES, *PART_FUNCTIONS)
)
FUNCTION_NAMES = frozenset(  # functions of DuckDB that SQLGlot does not know
    (
        *("hash", "isfinite", "prefix", "suffix", "strlen"),
        *("date_part", "datepart", "date_sub", "datesub", "epoch_us", "epoch_ns"),
        *("isoyear", "weekday", "yearweek", "millisecond", "microsecond", "try_strptime"),
        *("to_years", "to_months", "to_weeks", "to_hours", "to_minutes", "to_seconds"),
        *("list_position", "list_indexof", "list_extract", "list_element", "array_extract"),
        *("list_has_all", "list_sum", "list_avg", "list_count", "list_product"),
        *("element_at", "map_extract", "map_extract_value", "map_contains", "map_values"),
        *("cardinality", "json_array_length", "json_value"),
    )
)

# Arguments that SQLGlot writes without quotes in some dialect, and the text that is safe there.
UNQUOTED: Mapping[type, tuple[str, re.Pattern[str]]] = {
    exp.Var: ("this", re.compile(r"\w+")),  # units of time; any text may be given as one
    exp.Extract: ("this", re.compile(r"\w+")),
    exp.SHA2: ("length", re.compile(r"\d*")),
    exp.UnixToTime: ("scale", re.compile(r"\d*")),
    exp.JSONPathKey: ("this", re.compile(r"[^\\]*")),
    exp.Bracket: ("expressions", re.compile(r"[^\]]*")),  # a name in T-SQL
}

# What gives other values outside DuckDB, as measured on Spark and PostgreSQL.
DIFFERENT = (exp.DateDiff, exp.TimeToStr, exp.RegexpReplace)
TRANSLATED_NODES = (
    exp.DayOfWeek,
    exp.DayOfWeekIso,
    exp.Dayname,
    exp.Monthname,
)  # by Spark's engine
DIFFERENT_NAMES = frozenset(("hash", "weekday", "date_part", "datepart", "yearweek"))
SAME_FIELDS = frozenset(("year", "quarter", "month", "day", "hour", "minute", "doy"))
SAME_IN_DATABASES = SAME_FIELDS | {"epoch"}


def refuse_different(
    roles: Mapping[str, Expr], dialect: str, engine: str, *, translated: bool = False
) -> None:
    """Refuse parts of expressions that have other values in a dialect than in DuckDB.

    Args:
        roles: Expression of each role.
        dialect: Dialect of the query.
        engine: Name of the engine, for the message.
        translated: The engine itself translates or refuses functions by their names.
    """
    for role, tree in roles.items() if dialect != "duckdb" else ():
        for node in tree.walk(prune=lambda node: "entry" in node.meta):
            if "entry" in node.meta:  # written in the dialect
                continue
            named = not translated and _is_named_differently(node, dialect)
            if named or _is_different(node):
                part = node.sql(dialect="duckdb")
                raise UsageError(
                    f"{role}: {part} has other values in {engine} than in DuckDB: compute that "
                    "column in the source, and name the column"
                )


def _is_different(node: Expr) -> bool:
    if isinstance(node, exp.Bracket):  # the first element is 1, or 0, or found by its key
        return not all(isinstance(part, exp.Literal) for part in node.expressions)
    return isinstance(node, DIFFERENT)


def _is_named_differently(node: Expr, dialect: str) -> bool:
    if isinstance(node, exp.Anonymous):
        field = node.expressions[0].name.lower() if node.expressions else ""
        return node.name.lower() in DIFFERENT_NAMES and field not in SAME_IN_DATABASES
    if isinstance(node, exp.Log):  # to the base 10, unless a base is given
        return not node.args.get("expression")
    if isinstance(node, exp.Extract):
        return node.name.lower() not in SAME_IN_DATABASES
    if isinstance(node, exp.Round):  # PostgreSQL rounds halves to even numbers
        return dialect == "postgres"
    return isinstance(node, TRANSLATED_NODES)


def parse_scalar(sql: str) -> Expr:
    """Parse an expression in DuckDB's dialect; reject what is not listed in this module.

    >>> parse_scalar("least(p, 1) /* at most */").sql("postgres")
    'LEAST(p, 1)'

    Raises:
        ExpressionError: The text is not one expression, or contains something else.
    """
    try:
        (tree,) = sqlglot.parse(sql, read="duckdb")
    except RecursionError:
        raise ExpressionError(sql, "brackets that are nested too deeply") from None
    except (sqlglot.errors.SqlglotError, ValueError, LookupError, TypeError, AttributeError):
        raise ExpressionError(sql) from None
    if not isinstance(tree, exp.Condition | exp.Query):
        raise ExpressionError(sql)
    for node in tree.walk():
        if not _is_allowed(node):
            raise ExpressionError(sql, _show_node(node, sql))
        node.pop_comments()  # SQLGlot would write them into the query
    for path in tree.find_all(exp.JSONPath):
        if not _keeps_path(path, sql):
            raise ExpressionError(sql, _show_node(path, sql))
    return cast("Expr", tree)


def _is_allowed(node: Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in FUNCTION_NAMES and not isinstance(node.parent, exp.Dot)
    if isinstance(node, exp.DataType):
        return node.this is not exp.DType.USERDEFINED  # a database may run code in its casts
    return type(node) in ALLOWED_FUNCTIONS and _is_safe_unquoted(node)


def _is_safe_unquoted(node: Expr) -> bool:
    """Test if the texts of a node cannot become SQL where SQLGlot writes no quotes."""
    for kind, (name, safe) in UNQUOTED.items():
        if isinstance(node, kind):
            given = node.args.get(name)
            parts = given if isinstance(given, list) else [given or ""]
            texts = (part if isinstance(part, str) else part.name for part in parts)
            return all(safe.fullmatch(text) for text in texts)
    return True


def _keeps_path(path: exp.JSONPath, sql: str) -> bool:
    """Test if a path in JSON is written as given: SQLGlot reads the key 'a.b' as '$.a.b'."""
    written, given = (text.replace('"', "") for text in (path.sql(dialect="duckdb"), sql))
    key = written.replace("$.", "") if len(path.expressions) == 2 else written
    return written in given or key in given


def _show_node(node: Expr, sql: str) -> str:
    """Return the name of a function as the caller writes it, or another part in SQL."""
    if isinstance(node, exp.Func):
        place = node.meta  # that of the name; SQLGlot keeps it for most functions
        known = "start" in place
        name = sql[place["start"] : place["end"] + 1] if known else node.sql_name().lower()
        return f"{name}()"
    try:
        return str(node.sql(dialect="duckdb"))
    except ValueError:  # SQLGlot parses some paths in JSON that it does not write
        return sql
