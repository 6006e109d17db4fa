"""Stream: weighted rewards row by row, for intervals that moments cannot give.

A betting interval is a product over rows, read several times.  Each reading is a
query of its own, in batches, so that memory does not grow with rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.engine.sql import Request, columns_query, factor_name
from poolwise.terms import WEIGHT, Needs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from poolwise.engine.duckdb import DuckDBRows
    from poolwise.moments import FloatArray

BATCH_ROWS = 65_536


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
        text = columns_query(request).sql(dialect="duckdb")
        reader: Any = self.rows.connection.sql(text).to_arrow_reader(BATCH_ROWS)
        place = {logger: k for k, logger in enumerate(self.rows.counts)}
        name = factor_name(weight.factors[0], self.rows.table)
        for batch in reader:
            labels = batch.column("logger").dictionary_encode()
            codes = np.array([place[i] for i in labels.dictionary.to_pylist()], dtype=np.int64)
            reward = batch.column("reward").to_numpy()
            paid = self.sign * (reward - self.base)
            yield codes[labels.indices.to_numpy()], batch.column(name).to_numpy() * paid
