"""Stream: weighted rewards row by row, for intervals that moments cannot give.

A betting interval is a product over rows, read several times.  Each reading is a
query of its own, in batches, so that memory does not grow with rows.  Bets are placed as
if rows came in by chance, and a log may be sorted by its rewards: so rows are read in an
order that has nothing to do with them, the same each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlglot import exp, parse_one

from poolwise.engine.rows import column
from poolwise.engine.sql import Request, columns_query, factor_name
from poolwise.terms import WEIGHT, Needs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from poolwise.engine.duckdb import DuckDBRows
    from poolwise.moments import FloatArray

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
