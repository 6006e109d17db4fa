"""Entries: the probability of the logged action, where a column holds a whole distribution.

The type of a column says so: a MAP, a struct, a JSON object or a list next to `eligible`.
Where the text of a probability names such a column, it means the entry of the row's
action, also within arithmetic.  Without types (a printed query) a cast says the same:
``probs::JSON``.  Keys are compared with actions as text.

An action without an entry has probability 0 if the entries sum to 1, and none otherwise.
Numbers that are not a distribution give NaN; `rows.rules` reports both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from poolwise.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sqlglot.expressions import Expr as Expression

MISSING = 1e-4  # what entries may lack of 1 where the action has none: its largest probability
EXCESS = 0.1  # that rounded probabilities may sum to above 1
KINDS: Mapping[exp.DType, str] = {
    exp.DType.MAP: "map",
    exp.DType.STRUCT: "struct",
    exp.DType.JSON: "json",
    exp.DType.JSONB: "json",
    exp.DType.ARRAY: "list",
    exp.DType.LIST: "list",
    exp.DType.TEXT: "json",
    exp.DType.VARCHAR: "json",
}
TEXTS = {exp.DType.TEXT, exp.DType.VARCHAR}  # of a number, or of a JSON object
TYPED = re.compile(
    r"\b(map|struct|jsonb?|varchar|text|string|array|list)\b|\[\d*\]$", re.IGNORECASE
)
MARK = "entry"  # in the `meta` of the expression of an entry
NUMERIC = (  # whose operands are numbers, so that a distribution among them means its entry
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Paren, exp.Abs, exp.Exp, exp.Ln),
    *(exp.Sqrt, exp.Pow, exp.Least, exp.Greatest, exp.Coalesce, exp.Nullif, exp.Case, exp.If),
)
REFERENCES = (exp.Column, exp.Dot, exp.Cast)  # to a column, a field or a cast of them
CHOICES: Mapping[type[exp.Expr], tuple[str, ...]] = {  # without the conditions
    exp.If: ("true", "false"),
    exp.Case: ("ifs", "default"),
}
DIALECTS = {"duckdb": "duckdb", "spark": "spark", "databricks": "spark", "postgres": "postgres"}

# Templates: d is the distribution, a the action, allowed the list of `eligible`, x an entry,
# k and v the lists of keys and of values.
INFINITE = "CAST('infinity' AS DOUBLE PRECISION)"
NUMBER = r"'^\s*[-+]?((\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[iI]nf(inity)?|[nN]a[nN])\s*$'"
TEXT = (  # {0} as a number
    "CASE WHEN CAST({0} AS TEXT) ~ "
    + NUMBER
    + " THEN CAST(CAST({0} AS TEXT) AS DOUBLE PRECISION) END"
)
KEYS: Mapping[str, Mapping[str, str]] = {
    "duckdb": {"map": "CAST(MAP_KEYS(d) AS TEXT[])", "list": "CAST(allowed AS TEXT[])"},
    "spark": {
        "map": "CAST(MAP_KEYS(d) AS ARRAY<STRING>)",
        "list": "CAST(allowed AS ARRAY<STRING>)",
    },
}
VALUES: Mapping[str, Mapping[str, str]] = {
    "duckdb": {
        "map": "TRY_CAST(MAP_VALUES(d) AS DOUBLE[])",
        "list": "TRY_CAST(d AS DOUBLE[])",
    },
    "spark": {
        "map": "TRY_CAST(MAP_VALUES(d) AS ARRAY<DOUBLE>)",
        "list": "TRY_CAST(d AS ARRAY<DOUBLE>)",
    },
}
OBJECT = {  # of JSON
    "duckdb": "TRY_CAST(TRY_CAST(d AS JSON) AS MAP(TEXT, DOUBLE))",
    "spark": "FROM_JSON(d, 'map<string,double>')",
    "postgres": (
        r"CASE WHEN CAST(d AS TEXT) ~ '^\s*\{' THEN CAST(CAST(d AS TEXT) AS JSONB) END"
    ),
}
FOUND = {
    "duckdb": "LIST_EXTRACT(v, LIST_POSITION(k, CAST(a AS TEXT)))",
    "spark": "GET(v, AS_INT(ARRAY_POSITION(k, CAST(a AS STRING))) - 1)",
    "object": TEXT.format("d ->> CAST(a AS TEXT)"),
    "array": (
        "(CAST(d AS DOUBLE PRECISION[]))"
        "[ARRAY_POSITION(CAST(allowed AS TEXT[]), CAST(a AS TEXT))]"
    ),
}
TOTAL = {
    "duckdb": (
        "CASE WHEN LEN(v) = LEN(k) THEN "
        "COALESCE(LIST_SUM(LIST_TRANSFORM(v, LAMBDA x : {part})), 0e0) ELSE {infinite} END"
    ),
    "spark": (
        "CASE WHEN SIZE(v) = SIZE(k) THEN "
        "AGGREGATE(v, 0e0, (total, x) -> total + {part}) ELSE {infinite} END"
    ),
    "object": (
        "(SELECT COALESCE(SUM({part}), 0e0) FROM (SELECT {share} AS x "
        "FROM JSONB_EACH_TEXT(d) AS entry(name, share)) AS entries)"
    ),
    "array": (
        "CASE WHEN CARDINALITY(d) = CARDINALITY(allowed) THEN "
        "(SELECT COALESCE(SUM({part}), 0e0) "
        "FROM UNNEST(CAST(d AS DOUBLE PRECISION[])) AS entries(x)) ELSE {infinite} END"
    ),
}


class NoEntriesError(Exception):
    """A dialect for which no access to an entry is written, or a type that it lacks."""


@dataclass(frozen=True, eq=False)
class Entry:
    """The entry of the logged action in a distribution.

    Attributes:
        column: The distribution, as the log names it.
        known: The condition that there is one.
        found: The entry as a double; NULL where the action has none.
        total: Sum of the entries; infinite where one is not a probability.
        lists: The lists of keys (`k`) and of values (`v`), in dialects with lists.
    """

    column: Expression
    known: Expression
    found: Expression
    total: Expression
    lists: Mapping[str, Expression] = field(default_factory=dict)

    def __deepcopy__(self, memo: object) -> Entry:
        """Return the entry itself, which nothing changes."""
        return self

    @property
    def is_spoilt(self) -> Expression:
        """The condition that the numbers are not a distribution."""
        usual = exp.func("coalesce", _at_most(self.total), exp.false())
        return exp.and_(self.known.copy(), exp.Not(this=usual))

    @property
    def is_lacking(self) -> Expression:
        """The condition that the action has no entry, and that the entries do not sum to 1."""
        lacking = exp.paren(self.found.copy().is_(exp.null()))
        short = exp.Not(this=_at_least(self.total))
        return exp.and_(self.known.copy(), lacking, _at_most(self.total), short)

    def value(self, zero: Expression) -> Expression:
        """Return the probability; NULL where there is none, NaN from no distribution."""
        absent = exp.Case().when(_at_least(self.total), zero)
        usual = exp.func("coalesce", self.found.copy(), absent)
        nan = exp.cast(exp.Literal.string("NaN"), "double")
        choice = exp.Case().when(exp.and_(self.known.copy(), _at_most(self.total)), usual)
        return choice.when(self.known.copy(), nan)


def _write_number(value: float) -> Expression:
    return exp.Literal.number(f"{value!r}e0")


def _at_most(total: Expression) -> Expression:
    return exp.paren(exp.paren(total.copy()) <= _write_number(1 + EXCESS))


def _at_least(total: Expression) -> Expression:
    return exp.paren(exp.paren(total.copy()) >= _write_number(1 - MISSING))


def list_entries(expression: Expression) -> Iterator[Entry]:
    """Yield the entries in the expression of a role."""
    for node in expression.find_all(exp.Paren):
        if MARK in node.meta:
            yield node.meta[MARK]


def whole_distribution(expression: Expression) -> Expression | None:
    """Return the column, or field, that an expression is the entry of; None for others.

    Where entries that lack are 0 by the expression itself, it still means the whole.
    """
    if isinstance(expression, exp.Coalesce) and expression.expressions:
        (other, *more) = expression.expressions
        if not more and isinstance(other, exp.Literal) and float(other.this) == 0:
            expression = expression.this
    found = expression.meta[MARK].column if MARK in expression.meta else None
    return found if isinstance(found, exp.Column | exp.Dot) else None


def as_written(expression: Expression) -> Expression:
    """Return an expression with the names of distributions in place of their entries."""
    tree = exp.paren(expression.copy())
    for node in list(tree.find_all(exp.Paren)):
        if MARK in node.meta:
            node.replace(node.meta[MARK].column.copy())
    written: Expression = tree.this
    return written


def is_distribution_type(kind: exp.DataType) -> bool:
    """Test if a type is that of a distribution, and not that of a number in a text."""
    return kind.this in KINDS and kind.this not in TEXTS


@lru_cache(maxsize=4_096)
def parsed_type(text: str, dialect: str) -> exp.DataType | None:
    """Return the type of a column that may hold a distribution; None for other types.

    >>> parsed_type("MAP(VARCHAR, DOUBLE)", "duckdb").this.name, parsed_type("DOUBLE", "duckdb")
    ('MAP', None)
    """
    if not TYPED.search(text):
        return None
    try:
        kind = exp.DataType.build(text, dialect=dialect)
    except SqlglotError:  # a type of the dialect that SQLGlot does not know
        return None
    return kind if kind.this in KINDS else None


def field_type(kind: exp.DataType | None, names: list[str]) -> exp.DataType | None:
    """Return the type of a field of a struct; None if it holds no distribution."""
    for name in names:
        fields = (
            kind.expressions if kind is not None and KINDS.get(kind.this) == "struct" else ()
        )
        found = [field for field in fields if field.name.lower() == name.lower()]
        kind = found[0].args.get("kind") if found else None
    return kind if kind is not None and kind.this in KINDS else None


def replace_distributions(
    node: Expression, entry: Callable[[Expression], Expression | None]
) -> Expression:
    """Replace columns by entries, at the top and among the operands of arithmetic.

    Args:
        node: The expression of a probability.
        entry: Returns the entry of a column, of a field or of a cast; None for numbers.
    """
    if isinstance(node, REFERENCES):
        return entry(node) or node
    if isinstance(node, NUMERIC):
        for key in CHOICES.get(type(node), tuple(node.args)):
            value = node.args.get(key)
            if isinstance(value, list):
                node.set(key, [replace_distributions(part, entry) for part in value])
            elif isinstance(value, exp.Expression):
                node.set(key, replace_distributions(value, entry))
    return node


def entry_expression(
    column: Expression,
    kind: exp.DataType,
    action: Expression,
    eligible: Expression | None,
    dialect: str,
    *,
    logs: bool,
) -> Expression:
    """Return the probability of the logged action in a distribution.

    Args:
        column: The distribution.
        kind: Its type.
        action: The logged action.
        eligible: The actions that a list has the probabilities of.
        dialect: Dialect of the query.
        logs: Whether entries are logarithms.

    Raises:
        NoEntriesError: The dialect has no such types.
    """
    name, family = KINDS[kind.this], DIALECTS.get(dialect, "")
    parts: dict[str, Expression] = {"d": column, "a": action}
    if eligible is not None:
        parts["allowed"] = eligible
    if family == "postgres":
        entry = _in_postgres(name, parts, logs=logs)
    elif family:
        entry = _in_lists(name, kind, parts, family, logs=logs)
    else:
        raise NoEntriesError
    infinite = exp.cast(exp.Literal.string("-infinity"), "double")
    value = entry.value(infinite if logs else exp.Literal.number("0e0"))
    if name == "json":  # of a number, or of an object
        value = exp.func("coalesce", _read_text(column, family), value)
    marked = exp.Paren(this=value)
    marked.meta[MARK] = entry
    return marked


def _parsed(
    text: str, family: str, parts: Mapping[str, Expression] | None = None
) -> Expression:
    """Parse a template, and replace its short names by expressions."""
    tree = exp.paren(parse_one(text, dialect=family))
    for node in list(tree.find_all(exp.Column)):
        if parts and not node.table and node.name in parts:
            node.replace(exp.paren(parts[node.name].copy()))
    return tree


def _read_text(column: Expression, family: str) -> Expression:
    """Return a text as a double; NULL where it is not a number."""
    if family != "postgres":
        return exp.TryCast(this=column.copy(), to=exp.DataType.build("double"))
    return _parsed(TEXT.format("d"), family, {"d": column})


def _write_total(form: str, name: str, *, logs: bool) -> str:
    """Return the sum of entries; infinite where one is not a probability."""
    zero = "WHEN x IS NULL THEN 0e0 " if name == "struct" else ""  # which has every field
    part = "WHEN x <= 1e0 THEN EXP(x)" if logs else "WHEN x >= 0e0 THEN x"
    part = f"CASE {zero}{part} ELSE {INFINITE} END"
    return TOTAL[form].format(part=part, infinite=INFINITE, share=TEXT.format("entry.share"))


def _is_known(*values: Expression) -> Expression:
    known = [exp.Not(this=exp.paren(value.copy().is_(exp.null()))) for value in values]
    return exp.paren(exp.and_(*known))


def _in_postgres(name: str, parts: Mapping[str, Expression], *, logs: bool) -> Entry:
    """Return the entry of JSON or of arrays."""
    if name not in {"json", "list"}:
        raise NoEntriesError
    column, form = parts["d"], "array" if name == "list" else "object"
    if name == "json":
        parts = {**parts, "d": _parsed(OBJECT["postgres"], "postgres", parts)}
    known = [parts["d"], *([parts["allowed"]] if name == "list" else [])]
    found, total = FOUND[form], _write_total(form, name, logs=logs)
    return Entry(
        column,
        _is_known(*known),
        _parsed(found, "postgres", parts),
        _parsed(total, "postgres", parts),
    )


def _in_lists(
    name: str, kind: exp.DataType, parts: Mapping[str, Expression], family: str, *, logs: bool
) -> Entry:
    """Return the entry by lists of keys and of values."""
    column = parts["d"]
    if name == "struct":
        lists = _struct_lists(column, kind)
        known = [column]
    else:
        if name == "json":
            parts = {**parts, "d": _parsed(OBJECT[family], family, parts)}
        form = "list" if name == "list" else "map"
        texts = {"k": KEYS[family][form], "v": VALUES[family][form]}
        lists = {key: _parsed(text, family, parts) for key, text in texts.items()}
        known = [*lists.values()]
    total = _parsed(_write_total(family, name, logs=logs), family, lists)
    found = _parsed(FOUND[family], family, {**parts, **lists})
    for node in list(found.find_all(exp.Anonymous)):
        if node.name == "AS_INT":  # by which Spark numbers lists
            node.set("this", "INT")
    return Entry(column, _is_known(*known), found, total, lists)


def _struct_lists(column: Expression, kind: exp.DataType) -> dict[str, Expression]:
    """Return the names of the fields of a struct, and their values."""
    names = [str(field.name) for field in kind.expressions]
    fields = [
        exp.Dot(this=exp.paren(column.copy()), expression=exp.to_identifier(n, quoted=True))
        for n in names
    ]
    double = exp.DataType.build("double")
    values: list[Any] = [exp.TryCast(this=field, to=double.copy()) for field in fields]
    keys = [exp.Literal.string(name) for name in names]
    return {"k": exp.Array(expressions=keys), "v": exp.Array(expressions=values)}


def refuse_unusable(
    kind: exp.DataType, role: str, name: str, reasons: Mapping[str, bool]
) -> None:
    """Refuse a distribution whose entry cannot be chosen.

    Args:
        kind: Its type.
        role: Role that it plays.
        name: Its name in the log.
        reasons: Whether the log lacks an `action`, `eligible` lists, and so on.
    """
    shown = f"{role}: {name!r} holds a distribution ({kind.sql(dialect='duckdb')})"
    if reasons["densities"]:
        raise UsageError(
            f"{shown}, and `densities` are those of a number: name the column of the density "
            "of the logged action"
        )
    if reasons["requests"]:
        raise UsageError(
            f"{shown}: a log with requests requires a column with the probability of a list"
        )
    if reasons["action"]:
        raise UsageError(
            f"{shown}: name the column of the logged `action` (--action), whose entry is the "
            "probability"
        )
    if reasons["eligible"]:
        raise UsageError(
            f"{shown}: a list of probabilities requires `eligible` (--eligible), the column of "
            "the list of their actions"
        )
