"""Groups: do rows with the same value of a column earn alike?

Rows of one user depend on each other.  A column that names users, though the log declares no
`cluster`, shows it: its values repeat, and the rewards of rows with the same value, less the
mean of their logger, have a positive mean product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlglot import exp

from poolwise.rows.rules import column, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlglot.expressions import Expr as Expression

    from poolwise.rows.rules import RoleColumns

MOST_COMPARED = 20  # that are compared
COMPARED = 1 << 18  # rows that are compared, about; rows with one value stay together
WHOLE_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
COMPARED_KINDS = frozenset(
    [*WHOLE_NUMBERS, *(f"U{kind}" for kind in WHOLE_NUMBERS), "VARCHAR", "UUID"]
)


class PairSums(NamedTuple):
    """Sums over the groups of rows with one value, of rewards less the mean of their logger.

    Attributes:
        values: Number of values.
        rows: Number of rows.
        squares: Sum of the squared rewards.
        pairs: Sum of the products of all ordered pairs of rows with the same value.
        spread: Variance of `pairs` if rewards do not depend on the values.
    """

    values: int
    rows: int
    squares: float
    pairs: float
    spread: float


def candidates(columns: Iterable[Mapping[str, str]], table: RoleColumns) -> list[str]:
    """Return the columns of whole numbers or text that play no role."""
    roles = [*table.roles.values(), table.logger, table.action, table.eligible, table.request]
    used = {
        name.name.lower()
        for value in roles
        if value is not None
        for name in value.find_all(exp.Column)
    }
    found = [
        line["column_name"]
        for line in columns
        if line["column_type"] in COMPARED_KINDS and line["column_name"].lower() not in used
    ]
    return found[:MOST_COMPARED]


def pairs_query(table: RoleColumns, name: str, rows: int) -> exp.Select:
    """Sum the products of rewards in rows with the same value, from the view of the log."""
    value, part = column(name), 1 + rows // COMPARED
    each = exp.select(
        exp.cast(table.logger.copy(), "varchar").as_("logger", quoted=True),
        exp.cast(table.reward.copy(), "double").as_("reward", quoted=True),
        value.copy().as_("value", quoted=True),
    ).from_("log")
    each = each.where(value.copy().is_(exp.null()).not_())
    if part > 1:
        each = each.where(exp.EQ(this=_modulo(value, part), expression=number(0)))
    mean = exp.Window(this=exp.Avg(this=column("reward")), partition_by=[column("logger")])
    gap = exp.paren(column("reward") - mean)
    centred = exp.select("value", gap.as_("gap", quoted=True)).from_(each.subquery("each"))
    square = column("gap") * column("gap")
    sums = {
        "rows": exp.Count(this=exp.Star()),
        "total": exp.Sum(this=column("gap")),
        "squares": exp.Sum(this=square),
        "fourths": exp.Sum(this=square * square),
    }
    groups = exp.select(*(v.as_(n, quoted=True) for n, v in sums.items()))
    groups = groups.from_(centred.subquery("centred")).group_by(column("value"))
    total, squares = column("total"), column("squares")
    answer = {
        "values": exp.Count(this=exp.Star()),
        "rows": exp.Sum(this=column("rows")),
        "squares": exp.Sum(this=squares),
        "pairs": exp.Sum(this=total * total - squares),
        "spread": exp.Sum(this=exp.paren(squares * squares - column("fourths")) * number(2)),
    }
    query = exp.select(*(v.as_(n, quoted=True) for n, v in answer.items()))
    return query.from_(groups.subquery("groups"))


def _modulo(value: Expression, part: int) -> Expression:
    return exp.Mod(this=exp.func("hash", value.copy()), expression=number(part))


def read_pairs(line: Mapping[str, object]) -> PairSums:
    """Return the sums of the answer to `pairs_query`; zeros for a log without rows."""
    values = [line[name] or 0 for name in PairSums._fields]
    return PairSums(*(int(str(v)) for v in values[:2]), *(float(str(v)) for v in values[2:]))
