"""Single rows: weighted rewards for betting, and a sample of rows for planning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlglot import exp, parse_one

from poolwise.engines.sql import Request, columns_query, factor_name
from poolwise.moments.terms import WEIGHT, Needs
from poolwise.rows.rules import case, column, string

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray
    from sqlglot.expressions import Expr as Expression

    from poolwise.engines.duckdb import DuckDBRows
    from poolwise.moments.moments import FloatArray
    from poolwise.moments.terms import Term

BATCH_ROWS = 65_536
SHUFFLED = parse_one("HASH(ROW_NUMBER() OVER ())", dialect="duckdb")


@dataclass(frozen=True, eq=False)
class WeightedRewards:
    """Batches of logger numbers and weighted rewards; can be read again and again.

    Attributes:
        rows: The open log.
        target: Name of the target.
        base: What is subtracted from each reward.
        sign: 1, or -1 to turn rewards round: rows are w sign (r - base).
    """

    rows: DuckDBRows
    target: str
    base: float = 0.0
    sign: float = 1.0

    def __iter__(self) -> Iterator[tuple[NDArray[np.int64], FloatArray]]:
        weight = WEIGHT.bind(self.target)
        request = Request(self.rows.table, Needs(means=(weight,)), self.rows.counts, {})
        place = {logger: k for k, logger in enumerate(self.rows.counts)}
        name = factor_name(weight.factors[0], self.rows.table)
        columns = [column("logger"), column("reward"), column(name)]
        inner = columns_query(request).subquery("found")
        query = exp.select(*columns).from_(inner).order_by(SHUFFLED)
        text = query.sql(dialect="duckdb")
        reader: Any = self.rows.connection.sql(text).to_arrow_reader(BATCH_ROWS)
        for batch in reader:
            labels = batch.column("logger").dictionary_encode()
            codes = np.array([place[i] for i in labels.dictionary.to_pylist()], dtype=np.int64)
            reward = batch.column("reward").to_numpy()
            paid = self.sign * (reward - self.base)
            yield codes[labels.indices.to_numpy()], batch.column(name).to_numpy() * paid


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
