"""Sample: some thousands of rows, taken evenly, for what moments cannot say.

How the variance changes with the mixture of the loggers is a different function of
every row, so it needs rows; a bounded number of them is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolwise.engine.rows import case, column, string
from poolwise.engine.sql import Request, columns_query, factor_name
from poolwise.terms import Needs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlglot import exp
    from sqlglot.expressions import Expr as Expression

    from poolwise.engine.duckdb import DuckDBRows
    from poolwise.moments import FloatArray
    from poolwise.terms import Term


def sample_terms(
    rows: DuckDBRows, terms: tuple[Term, ...], most: int
) -> tuple[FloatArray, FloatArray]:
    """Values of terms in at most about `most` rows, and the share of each row.

    Every logger keeps its share of the log, however few of its rows were taken, and a
    small log is taken whole.  The same log gives the same rows.

    Returns:
        Values, shape (terms, rows), and shares, shape (rows,), which sum to 1.
    """
    query = columns_query(Request(rows.table, Needs(means=terms), rows.counts, {}))
    steps = {i: -(-n * len(rows.counts) // most) for i, n in rows.counts.items()}
    found = rows.connection.sql(_every(query, steps).sql(dialect="duckdb")).to_arrow_table()
    columns = {name: found.column(name).to_numpy() for name in found.column_names}
    values = np.ones((len(terms), found.num_rows))
    for place, term in enumerate(terms):
        for factor in term.factors:
            values[place] *= columns[factor_name(factor, rows.table)]
    total = sum(rows.counts.values())
    shares = np.zeros(found.num_rows)
    for logger, count in rows.counts.items():
        mine = columns["logger"] == logger
        shares[mine] = count / total / max(1, int(mine.sum()))
    return values, shares / shares.sum()


def _every(query: exp.Select, steps: Mapping[str, int]) -> exp.Select:
    """Rows whose number hashes to a multiple of their logger's step."""
    from sqlglot import exp

    place = exp.Window(this=exp.RowNumber()).as_("place", quoted=True)
    numbered = query.select(place).subquery("numbered")
    step: Expression = exp.Literal.number(1)
    for logger, size in steps.items():
        same = column("logger").eq(string(logger))
        step = case(same, exp.convert(size), step)
    hashed = exp.Anonymous(this="hash", expressions=[column("place")])
    chosen = exp.Mod(this=hashed, expression=exp.paren(step)).eq(exp.Literal.number(0))
    return exp.select("*").from_(numbered).where(chosen)
