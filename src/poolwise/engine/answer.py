"""Answers: lines of the query's result become moments.

The centres that were subtracted come back out here, and a line whose centre was too
far from its mean to keep the digits is recognised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.engine.sql import Request, places
from poolwise.errors import RefusedError
from poolwise.moments import Moments, pooled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolwise.terms import Term

Line = Mapping[str, Any]  # what a database returns


@dataclass(frozen=True)
class Group:
    """What one line of the answer says.

    Attributes:
        logger: Label; None where the rows have none.
        bucket: Number of the bucket; 0 where rows were not split.
        bad: Rows that break a rule.
        moments: Their moments.
    """

    logger: str | None
    bucket: int
    bad: int
    moments: Moments


def decode(request: Request, line: Line) -> Group:
    """Turn one line of the answer into moments, taking the centres back out."""
    terms, place = request.needs.terms, places(request)
    count = int(line["rows"] or 0)
    logger = line["logger"]
    centres = np.array([_centre(request, line, t) for t in terms])
    sums = np.array([_float(line[f"sum_{k}"]) for k in range(len(terms))])
    offsets = sums / count
    size = len(request.needs.scattered)
    scatter = np.full((size, size), np.nan)
    with np.errstate(all="ignore"):  # a log with infinite rewards is refused afterwards
        for left, right in request.needs.pairs:
            i, j = place[left], place[right]
            raw = _float(line[f"scatter_{i}_{j}"])
            scatter[i, j] = scatter[j, i] = raw - count * offsets[i] * offsets[j]
    diagonal = np.einsum("ii->i", scatter)
    np.maximum(diagonal, 0.0, out=diagonal)  # rounding may leave -1e-20; keeps nan
    lowest, largest = np.full(len(terms), np.nan), np.full(len(terms), np.nan)
    for term in request.needs.extremes:
        k = place[term]
        lowest[k] = _float(line[f"lowest_{k}"]) + centres[k]
        largest[k] = _float(line[f"largest_{k}"]) + centres[k]
    tails = {
        t: np.sort(np.array(line[f"tail_{place[t]}"], dtype=np.float64))[::-1]
        + centres[place[t]]
        for t in request.needs.tails
        if f"tail_{place[t]}" in line
    }
    return Group(
        None if logger is None else str(logger),
        int(line.get("bucket") or 0),
        int(line["bad"] or 0),
        Moments(terms, count, centres + offsets, scatter, lowest, largest, tails=tails),
    )


def _float(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _centre(request: Request, line: Line, term: Term) -> float:
    """What was subtracted from a term before it was averaged."""
    column = f"centre_{places(request)[term]}"
    if column in line:
        return _float(line[column])
    return (request.common or {}).get(term, 0.0)


WELL_CENTRED = 100.0  # squared distance of centre and mean, in variances of a row


def off_centre(request: Request, group: Group) -> bool:
    """Whether some scatter lost digits because its centre was far from the mean.

    The loss is the ratio of the distance squared to the variance: at 100 some two of
    sixteen digits, and a sum of 1e8 rows loses another four.
    """
    moments, place = group.moments, places(request)
    for term in request.shifted:
        k = place[term]
        centre = _centre(request, {}, term)
        gap = moments.count * (moments.means[k] - centre) ** 2
        if gap > WELL_CENTRED * moments.scatter[k, k] and gap > 0:
            return True
    return False


def own_centres(request: Request, groups: Iterable[Group]) -> dict[str, dict[Term, float]]:
    """The means that a pass found, as centres for the next."""
    return {str(g.logger): {t: g.moments.mean(t) for t in request.shifted} for g in groups}


def refuse_overflow(request: Request, groups: Iterable[Group]) -> None:
    """Refuse sums that left the range of doubles: they would end as NaN."""
    place = places(request)
    for group in groups:
        m = group.moments
        pairs = [(place[i], place[j]) for i, j in request.needs.pairs]
        with np.errstate(over="ignore"):  # equal rows: no scatter, yet a square out of range
            squares = [m.means[i] * m.means[j] for i, j in pairs]
        if not np.isfinite([*m.means, *squares, *(m.scatter[i, j] for i, j in pairs)]).all():
            raise _overflow(group.logger)


def refuse_infinite(found: Mapping[str, Moments]) -> None:
    """Refuse moments that left the range of doubles; a scatter nobody asked for is nan."""
    for logger, m in found.items():
        if not m.bounded:
            raise _overflow(logger)


def _overflow(logger: str | None) -> RefusedError:
    return RefusedError(
        "overflow",
        f"weights times rewards of logger {logger!r} are too large for doubles: some "
        "propensity is absurdly small, or some reward absurdly large. Check both columns, and "
        "rescale the rewards if they are right.",
    )


def by_bucket(groups: Iterable[Group]) -> list[dict[str, Moments]]:
    """Moments of each logger, bucket by bucket, in the order of the buckets."""
    found: dict[int, dict[str, Moments]] = {}
    for group in groups:
        found.setdefault(group.bucket, {})[str(group.logger)] = group.moments
    return [found[bucket] for bucket in sorted(found)]


def merged_groups(groups: Iterable[Group]) -> list[Group]:
    """One group per logger: all its buckets together."""
    found: dict[str | None, list[Group]] = {}
    for group in groups:
        found.setdefault(group.logger, []).append(group)
    return [
        Group(logger, 0, sum(g.bad for g in parts), pooled(g.moments for g in parts))
        for logger, parts in found.items()
    ]
