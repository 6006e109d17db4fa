"""Heavy clusters: the few clusters that may decide an answer, by two queries in DuckDB.

The first query sums the sizes of each contrast by cluster.  The second reads the rows of the
clusters that are set apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from sqlglot import exp

from poolwise.engines.sql import MomentsRequest, factor_name, factor_steps
from poolwise.moments.buckets import BUCKETS
from poolwise.moments.heavy import FoundClusters, Heaviest, HeavyClusters
from poolwise.moments.terms import REWARD, Needs
from poolwise.rows.rules import column, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from poolwise.moments.heavy import Contrast, Fetched
    from poolwise.moments.terms import Term
    from poolwise.rows.rules import RoleColumns
    from poolwise.types import AnyArray, FloatArray, IntArray

    Read = Callable[[exp.Select], "pa.Table | None"]

MOST_CLUSTERS = 1 << 22  # whose sums are kept in memory


def find_clusters(
    read: Read,
    table: RoleColumns,
    counts: Mapping[str, int],
    contrasts: Sequence[Contrast],
    columns: Sequence[Term],
    centre: float,
) -> dict[Contrast, FoundClusters] | None:
    """Return the heaviest clusters of contrasts; None if there are too many clusters.

    Args:
        read: Returns the answer to a query; None without rows.
        table: The rows, with a `cluster`.
        counts: Rows of each logger.
        contrasts: Weights by which clusters are heavy.
        columns: Terms whose values are kept besides reward and weights.
        centre: Centre of the rewards in sums.
    """
    if table.cluster is None:
        return None
    unit = exp.func("hash", exp.cast(table.cluster.copy(), "varchar"))
    table = replace(table, bucket=unit)
    kept = tuple(dict.fromkeys((REWARD, *(t for c in contrasts for t in c.terms), *columns)))
    source = factor_steps(MomentsRequest(table, Needs(means=kept), counts))
    sums = read(_sum_query(source, table, contrasts))
    if sums is None or sums.num_rows > MOST_CLUSTERS:
        return None
    units = _integers(sums, "unit")
    occupied = np.unique(units % np.uint64(BUCKETS))

    def fetch(places: IntArray) -> Fetched:
        query = _rows_query(source, table, kept, units[places].tolist())
        rows = read(query) if len(places) else None
        if rows is None:
            nothing = np.empty(0, dtype=np.int64)
            clusters = HeavyClusters(nothing, nothing, len(occupied))
            return [], {term: np.empty(0) for term in kept}, clusters
        own = _integers(rows, "unit")
        bucket = np.searchsorted(occupied, own % np.uint64(BUCKETS))
        values = {term: _doubles(rows, f"v_{k}") for k, term in enumerate(kept)}
        _, cluster = np.unique(own, return_inverse=True)
        clusters = HeavyClusters(cluster, bucket, len(occupied))
        return rows.column("logger").to_pylist(), values, clusters

    binary = bool(sums["zero"][0].as_py() and sums["one"][0].as_py())
    binary = binary and not any(sums["others"].to_pylist())
    return {
        contrast: FoundClusters(
            _heaviest(_doubles(sums, f"s_{k}"), _doubles(sums, f"r_{k}"), centre),
            tuple(counts),
            kept,
            binary,
            fetch,
        )
        for k, contrast in enumerate(contrasts)
    }


def _heaviest(sizes: FloatArray, weighted: FloatArray, centre: float) -> Heaviest:
    """Return the heaviest clusters, from sums of sizes and of sizes times rewards."""
    means = np.full(len(sizes), centre)
    np.divide(weighted, sizes, out=means, where=sizes > 0)
    places = np.arange(len(sizes))
    return Heaviest.of(places, means[None], sizes, centre)


def _sum_query(
    source: Callable[[exp.Select], exp.Select],
    table: RoleColumns,
    contrasts: Sequence[Contrast],
) -> exp.Select:
    """Sum the sizes of contrasts, and sizes times rewards, by cluster."""
    reward, names = column("reward"), [column("bucket").as_("unit", quoted=True)]
    values = []
    for k, contrast in enumerate(contrasts):
        weight, *less = (_value(term, table) for term in contrast.terms)
        size = exp.func("abs", exp.paren(weight - less[0]) if less else weight)
        values.append(exp.func("sum", size).as_(f"s_{k}", quoted=True))
        weighted = exp.func("sum", size.copy() * reward.copy())
        values.append(weighted.as_(f"r_{k}", quoted=True))
    for name, condition in _kinds(reward).items():
        values.append(exp.func("bool_or", condition).as_(name, quoted=True))
    each = exp.select(*names, *values).from_("ratios").group_by(column("bucket"))
    every = {n: exp.func("bool_or", column(n)) for n in _kinds(reward)}
    over = [exp.Window(this=v).as_(n, quoted=True) for n, v in every.items()]
    sums = [column(f"{c}_{k}") for k in range(len(contrasts)) for c in "sr"]
    query = exp.select(column("unit"), *sums, *over).from_(each.subquery("clusters"))
    ordered: exp.Select = source(query.order_by(column("unit")).limit(MOST_CLUSTERS + 1))
    return ordered


def _kinds(reward: exp.Expr) -> dict[str, exp.Expr]:
    """Conditions of a reward of 0, of 1, and of any other."""
    zero, one = reward.copy().eq(number(0.0)), reward.copy().eq(number(1.0))
    others = exp.Not(this=exp.paren(exp.or_(zero.copy(), one.copy())))
    return {"zero": zero, "one": one, "others": others}


def _rows_query(
    source: Callable[[exp.Select], exp.Select],
    table: RoleColumns,
    terms: Iterable[Term],
    units: Sequence[int],
) -> exp.Select:
    """Select the values of the rows of clusters."""
    values = [_value(t, table).as_(f"v_{k}", quoted=True) for k, t in enumerate(terms)]
    unit = column("bucket")
    listed = [exp.Literal.number(str(value)) for value in units]
    query = exp.select(column("logger"), unit.as_("unit", quoted=True), *values).from_("ratios")
    order = (value.this.copy() for value in values)  # so that sums repeat exactly
    query = query.where(unit.copy().isin(*listed))
    return source(query.order_by(unit.copy(), column("logger"), *order))


def _value(term: Term, table: RoleColumns) -> exp.Expr:
    (factor,) = term.factors
    return column("reward") if term == REWARD else column(factor_name(factor, table))


def _doubles(rows: pa.Table, name: str) -> FloatArray:
    return np.asarray(rows.column(name).cast("double").to_numpy())


def _integers(rows: pa.Table, name: str) -> AnyArray:
    return np.asarray(rows.column(name).to_numpy()).astype(np.uint64)
