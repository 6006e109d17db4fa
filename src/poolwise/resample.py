"""Resampling by bucket: errors that hold when rows belong together.

Rows are split into buckets by a hash of their unit (a user, a session; by default
the row itself), and the moments of each bucket come from the same pass.  Leaving out
one bucket after the other, or drawing buckets anew, then costs no further reading.
The loggers' sizes are part of the design and stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import RefusedError
from poolwise.moments import FloatArray, Moments, MomentsByLogger, pooled

if TYPE_CHECKING:
    from poolwise.estimators.base import Estimate, Estimator

BUCKETS = 200  # the error of a jackknife's error is then about 1 in 20
ROUNDING = 1e-24  # of the squared value: a variance below it is the noise of sums
Buckets = Sequence[MomentsByLogger]


def together(buckets: Buckets) -> dict[str, Moments]:
    """Moments of each logger over all buckets."""
    loggers = dict.fromkeys(i for bucket in buckets for i in bucket)
    return {i: pooled(b[i] for b in buckets if i in b) for i in loggers}


def left_out(buckets: Buckets) -> list[dict[str, Moments]]:
    """Moments without each bucket in turn, at the size of the whole.

    A logger all of whose rows are in one bucket cannot be left out; it stays.
    """
    whole = together(buckets)
    columns = {i: _without_each([b.get(i) for b in buckets], m) for i, m in whole.items()}
    return [{i: columns[i][g] for i in whole} for g in range(len(buckets))]


def _without_each(parts: list[Moments | None], whole: Moments) -> list[Moments]:
    """Merge what stands before and what stands after each place."""
    before: list[Moments | None] = [None]
    for part in parts:
        before.append(_both(before[-1], part))
    after: list[Moments | None] = [None]
    for part in reversed(parts):
        after.append(_both(part, after[-1]))
    after.reverse()
    rest = [_both(before[g], after[g + 1]) for g in range(len(parts))]
    return [whole if m is None else m.recounted(whole.count) for m in rest]


def _both(left: Moments | None, right: Moments | None) -> Moments | None:
    if left is None or right is None:
        return left if right is None else right
    return left + right


def jackknife(estimator: Estimator, buckets: Buckets) -> Estimate:
    r"""The estimate, with the variance that leaving out buckets shows.

    $$V = \frac{G-1}{G} \sum_g (\hat U_{(-g)} - \bar U)^2, \qquad \nu = G - 1$$
    """
    found = estimator.estimate(together(buckets))
    size = len(buckets)
    if size < 2:
        raise RefusedError(
            "one-cluster",
            "all rows belong to one cluster: the spread between clusters cannot be known",
        )
    values = np.array([estimator.estimate(rest).value for rest in left_out(buckets)])
    variance = (size - 1) / size * float(np.sum((values - values.mean()) ** 2))
    if variance <= ROUNDING * found.value**2:  # equal rows: what is left is no spread
        variance = 0.0
    return replace(found, variance=variance, freedom=float(size - 1))


def bootstrap(
    estimator: Estimator, buckets: Buckets, rng: np.random.Generator, *, replicates: int = 400
) -> FloatArray:
    """Estimates from buckets drawn anew, with replacement, shape (replicates,)."""
    whole = together(buckets)
    size = len(buckets)
    drawn = rng.multinomial(size, np.full(size, 1 / size), size=replicates)
    values = []
    for times in drawn:
        sample = {i: _repeated([b.get(i) for b in buckets], times, m) for i, m in whole.items()}
        values.append(estimator.estimate(sample).value)
    return np.array(values)


def _repeated(parts: list[Moments | None], times: FloatArray, whole: Moments) -> Moments:
    """Moments of buckets drawn so many times each; the whole where none was drawn."""
    drawn = [
        replace(part, count=int(n) * part.count, scatter=int(n) * part.scatter)
        for part, n in zip(parts, times, strict=True)
        if part is not None and n
    ]
    return pooled(drawn).recounted(whole.count) if drawn else whole
