"""Units: slices of the rows of each logger, or buckets of clusters.

An estimate is a sum over units.  Those of columns whose expectation is known correct its
variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.moments.linear import NULL_COLUMN
from poolwise.moments.tallies import slice_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.moments.linear import Linear, Score
    from poolwise.moments.moments import Moments
    from poolwise.moments.pool import Pool, Stratum
    from poolwise.moments.terms import Term
    from poolwise.types import FloatArray

NULL_SPREAD = 1e-13  # of a column, relative to its mean: smaller ones are rounding
NULL_CORRELATION = 1e-10  # of a correlation matrix: smaller ones are rounding


@dataclass(frozen=True, eq=False)
class KnownColumns:
    """Columns whose expectation is 0, in the units of moments.

    Attributes:
        strata: What each unit adds to the columns, shape (columns, units), by stratum.
        gram: Products of the columns over all units, shape (columns, columns).
        sizes: Sum of the absolute parts of each mean: a spread far below it is rounding.
        means: Mean of each column.
    """

    strata: list[FloatArray]
    gram: FloatArray
    sizes: FloatArray
    means: FloatArray


def find_pull(
    columns: Sequence[Score],
    pool: Pool,
    *,
    within: bool,
    fitted: bool = False,
) -> FloatArray | float:
    """Return the factors that correct a variance by columns whose expectation is 0.

    The slopes of the squares on the columns times the columns' means would be 0 in
    expectation; where rows with large squares are missing, they are below 0.  A mean that was
    regressed on the columns gives each row the weight 1 + pull, so that its variance has the
    squares of these weights; a jackknife refits the slopes and has them.

    Args:
        columns: The columns.
        pool: Moments of the rows.
        within: Whether columns are centred by logger instead of over all rows.
        fitted: Whether the estimate was regressed on the columns.
    """
    key = within, tuple((*c.parts.items(), c.constant) for c in columns)
    found = pool.recall(key, lambda: _known_columns(columns, pool, within=within))
    if not len(found.means):
        return 0.0
    spread, known = np.sqrt(np.diag(found.gram)), found.means
    unfit = fitted * math.sqrt(NULL_COLUMN / pool.rows)
    varies = np.flatnonzero(spread > np.maximum(NULL_SPREAD * found.sizes, unfit * abs(known)))
    spread, known = spread[varies], known[varies] / spread[varies]
    gram = found.gram[np.ix_(varies, varies)]
    values, vectors = np.linalg.eigh(gram / np.outer(spread, spread))
    large = values > NULL_CORRELATION * max(1, len(values))
    rotated = vectors[:, large]
    slopes = rotated @ ((rotated.T @ known) / values[large]) / spread
    pull = np.concatenate([-slopes @ units[varies] for units in found.strata])
    if not fitted or pool.clustered:
        return pull
    rows = [slice_rows(m.count, _slice_count(m)) for m in pool.values()]
    return pull * (2 + pull / np.concatenate(rows))


def _known_columns(columns: Sequence[Score], pool: Pool, *, within: bool) -> KnownColumns:
    means = [m for c in columns if _has_units(m := c.over(pool), pool)]
    strata = _units(means, pool, pooled=not within) if means else []
    return KnownColumns(
        strata,
        gram=sum((units @ units.T for units in strata), np.zeros((len(means), len(means)))),
        sizes=np.array([_measure_size(mean, pool) for mean in means]),
        means=np.array([mean.value(pool) for mean in means]),
    )


def _measure_size(linear: Linear, pool: Pool) -> float:
    """Return the sum of the absolute parts of a mean."""
    parts = linear.parts.items()
    return sum(abs(c * pool[i].mean(t)) for i, part in parts for t, c in part.items())


def centre_units(linear: Linear, pool: Pool) -> list[FloatArray] | None:
    """Return what each unit adds to a combination, centred by logger, for each stratum.

    None without slices of its terms.  The strata are the loggers, or all buckets together.
    """
    if not _has_units(linear, pool):
        return None
    return [units[0] for units in _units([linear], pool)]


def _has_units(linear: Linear, pool: Pool) -> bool:
    """Test if there are buckets, or slices of every term of a combination."""
    if pool.clustered:
        return True
    used = {i: [t for t, c in parts.items() if c] for i, parts in linear.parts.items()}
    return all(
        m.slices and all(t in m.slices for t in used.get(i, ())) for i, m in pool.items()
    )


def _units(linears: Sequence[Linear], pool: Pool, *, pooled: bool = False) -> list[FloatArray]:
    """Return what each unit adds to combinations, shape (combinations, units), by stratum.

    Sums are centred by logger, or by the mean over all rows if `pooled`.
    """
    parts = {i: _coefficients([linear.parts.get(i, {}) for linear in linears]) for i in pool}
    means = {i: c @ pool[i].select_means(terms) for i, (terms, c) in parts.items()}
    overall = sum(means.values(), np.zeros(len(linears)))
    strata = []
    for i, (terms, coefficients) in parts.items():
        if pool.clustered:
            counts, sums = centred_buckets(terms, i, pool)
            units, shift = coefficients @ sums, np.zeros(len(linears))
        else:
            counts, sums = slice_sums(terms, pool[i])
            units, shift = coefficients @ sums / pool[i].count, -means[i] / pool[i].count
        if pooled:
            shift += means[i] / pool[i].count - overall / pool.rows
        units += np.outer(shift, counts)
        strata.append(units)
    return [sum(strata[1:], strata[0])] if pool.clustered else strata


def _coefficients(parts: Sequence[Mapping[Term, float]]) -> tuple[list[Term], FloatArray]:
    """Return the terms of combinations, and the coefficients, shape (combinations, terms)."""
    used = [(k, t, c) for k, of_one in enumerate(parts) for t, c in of_one.items() if c]
    column = {t: k for k, t in enumerate(dict.fromkeys(t for _, t, _ in used))}
    matrix = np.zeros((len(parts), len(column)))
    for k, term, coefficient in used:
        matrix[k, column[term]] = coefficient
    return list(column), matrix


def centred_buckets(
    terms: Sequence[Term], stratum: Stratum, pool: Pool
) -> tuple[FloatArray, FloatArray]:
    """Return a stratum's rows in each bucket, and what they add to the mean of each term."""
    size, whole = len(pool.buckets), pool[stratum]
    counts, sums = np.zeros(size), np.zeros((len(terms), size))
    present, rows, means = pool.bucket_means(stratum, terms)
    counts[present] = rows
    sums[:, present] = rows / whole.count * (means - whole.select_means(terms)).T
    return counts, sums


def _slice_count(moments: Moments) -> int:
    return len(next(iter(moments.slices.values())))


def slice_sums(terms: Sequence[Term], moments: Moments) -> tuple[FloatArray, FloatArray]:
    """Return the rows of each slice, and its sum of each term, shape (terms, slices)."""
    rows = slice_rows(moments.count, _slice_count(moments))
    sums = np.array([moments.slices[t][: len(rows)] for t in terms])
    return rows, sums.reshape(len(terms), len(rows))


def centred_slices(terms: Sequence[Term], moments: Moments) -> FloatArray:
    """Return what each slice adds to the mean of each term, centred, shape (terms, slices)."""
    rows, sums = slice_sums(terms, moments)
    return (sums - np.outer(moments.select_means(terms), rows)) / moments.count
