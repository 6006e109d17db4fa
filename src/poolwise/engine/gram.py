"""Gram: moments of very many terms, by matrix products.

A query with one sum per pair of terms grows with the square of the targets.  Beyond
some ten targets it is faster to let DuckDB hand out the row columns in batches, and
to multiply matrices.  The moments are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.engine.sql import Request, factor_name, moments_query
from poolwise.errors import LogError, RefusedError
from poolwise.moments import FloatArray, Moments
from poolwise.terms import Needs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from sqlglot import exp

    from poolwise.engine.duckdb import DuckDBRows
    from poolwise.engine.rows import Table
    from poolwise.terms import Term

BATCH_ROWS = 16_384  # 200 terms of it take 25 MB


def gram_moments(rows: DuckDBRows, needs: Needs) -> dict[str, Moments]:
    """Moments of each logger, with the scatter of *all* pairs of terms.

    Each batch is centred by its own means, so that no digits are lost, and batches are
    merged.
    """
    from threadpoolctl import threadpool_limits

    terms, extremes = needs.terms, needs.extremes
    query = columns_query(Request(rows.table, Needs(means=terms), rows.counts, {}))
    reader: Any = rows.connection.sql(query.sql(dialect="duckdb")).to_arrow_reader(BATCH_ROWS)
    found: dict[str, Moments] = {}
    with threadpool_limits(1):  # DuckDB has the other cores
        for batch in reader:
            if _any_bad(batch):
                reader.close()  # the connection answers one query at a time
                raise LogError(rows.check())
            for logger, part in _batch_moments(batch, terms, rows.table).items():
                found[logger] = found[logger] + part if logger in found else part
    _refuse_overflow(found)
    return {i: _only(found[i], extremes) for i in rows.counts}


def columns_query(request: Request) -> exp.Select:
    """The steps of the query of moments, up to the row columns."""
    from sqlglot import exp

    query = exp.select("*").from_("ratios")
    for step in moments_query(request).ctes:
        if step.alias not in {"shared", "terms", "centres"}:
            query = query.with_(step.alias, as_=step.this, copy=False)
    return query


def _any_bad(batch: pa.RecordBatch) -> bool:
    import pyarrow.compute as pc

    return bool(pc.sum(batch.column("bad")).as_py())


def _batch_moments(
    batch: pa.RecordBatch, terms: Sequence[Term], table: Table
) -> dict[str, Moments]:
    labels = batch.column("logger").dictionary_encode()
    codes = labels.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    columns: dict[str, FloatArray] = {}
    values = np.ones((len(terms), batch.num_rows))
    for row, term in zip(values, terms, strict=True):
        for factor in term.factors:
            name = factor_name(factor, table)
            if name not in columns:
                columns[name] = batch.column(name).to_numpy()[order]
            np.multiply(row, columns[name], out=row)
    ends = np.bincount(codes, minlength=len(labels.dictionary)).cumsum()[:-1]
    parts = np.split(values, ends, axis=1)
    loggers = map(str, labels.dictionary.to_pylist())
    return {i: _moments(part, tuple(terms)) for i, part in zip(loggers, parts, strict=True)}


def _moments(values: FloatArray, terms: tuple[Term, ...]) -> Moments:
    """Moments of the rows of one logger; `values` has shape (terms, rows) and is lost."""
    means = values.mean(axis=1)
    lowest, largest = values.min(axis=1), values.max(axis=1)
    values -= means[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        scatter = values @ values.T
    return Moments(terms, values.shape[1], means, scatter, lowest, largest)


def _only(moments: Moments, extremes: Sequence[Term]) -> Moments:
    """The same, without the extremes that nobody asked for."""
    from dataclasses import replace

    asked = np.isin(np.arange(len(moments.terms)), [moments.terms.index(t) for t in extremes])
    return replace(
        moments,
        lowest=np.where(asked, moments.lowest, np.nan),
        largest=np.where(asked, moments.largest, np.nan),
    )


def _refuse_overflow(found: dict[str, Moments]) -> None:
    for logger, m in found.items():
        if not (np.isfinite(m.means).all() and np.isfinite(m.scatter).all()):
            raise RefusedError(
                "overflow",
                f"weights times rewards of logger {logger!r} are too large for doubles: some "
                "propensity is absurdly small, or some reward absurdly large. Check both.",
            )
