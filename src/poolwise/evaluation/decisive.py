"""Decisive: which values and differences a few rows may decide, and these rows.

Moments of the pass say which weights may be decided by few rows; for these the rows are read
once more.  A log whose weights are even is read once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from poolwise.estimators.calibrated import is_uncovered
from poolwise.moments.heavy import FEW, Contrast, HeavyChoice, behind_variance, count_behind
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, Term, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.engines.base import Rows
    from poolwise.moments.heavy import Found, HeavyRows
    from poolwise.moments.moments import Moments
    from poolwise.moments.pool import Pool

TOGETHER = 20  # heavy rows that a cluster may have without being overlooked
TARGET, INCUMBENT = "target", "incumbent"  # names of the two sides in a difference


@dataclass(frozen=True, eq=False)
class Heavies:
    """Heavy rows of the targets and of their differences.

    Attributes:
        found: Heavy rows of each contrast that few rows decide.
        able: Whether the engine can read the rows once more.
    """

    found: Mapping[Contrast, HeavyRows] = field(default_factory=dict)
    able: bool = True

    def of_value(self, target: str) -> HeavyRows | None:
        """Return the rows that decide the value of a target, under the names of estimators."""
        weight = BALANCED_WEIGHT.bind(target)
        rows = self.found.get(Contrast(weight))
        return None if rows is None else rows.renamed({BALANCED_WEIGHT: weight})

    def of_pair(self, left: str, right: str) -> HeavyRows | None:
        """Return the rows that decide the difference of two targets."""
        one, two = BALANCED_WEIGHT.bind(left), BALANCED_WEIGHT.bind(right)
        opposite = self.found.get(Contrast(two, one))
        return self.found.get(Contrast(one, two)) if opposite is None else opposite.flipped

    def against(self, target: str, logger: str) -> HeavyRows | None:
        """Return the rows that decide the difference from a logger, by names of the sides."""
        sides = {
            BALANCED_WEIGHT.bind(TARGET): BALANCED_WEIGHT.bind(target),
            BALANCED_WEIGHT.bind(INCUMBENT): ratio(logger),
        }
        rows = self.found.get(Contrast(*sides.values()))
        return None if rows is None else rows.renamed(sides)


def find_heavy(
    rows: Rows,
    pools: Mapping[str, Pool],
    pairs: Pool,
    against: str,
    reward_range: tuple[float, float] | None,
    *,
    clustered: bool = False,
) -> Heavies:
    """Return the heavy rows of values and differences that few rows decide.

    Args:
        rows: The rows.
        pools: Moments of each target, by logger.
        pairs: Moments of all targets together; without terms if they are not compared.
        against: Logger whose policy is subtracted from each target; empty for none.
        reward_range: Smallest and largest possible reward, where it is known.
        clustered: Whether rows of a cluster depend on each other.
    """
    few = FEW * (TOGETHER if clustered else 1)
    missing = [name for name, pool in pools.items() if is_uncovered(pool)]
    contrasts = [
        *_contrast_values(pools, missing, few),
        *_contrast_pairs(pairs, [*pools], missing, few),
    ]
    if against:
        contrasts += _contrast_logger(pools, against, missing, few)
    if not contrasts:
        return Heavies()
    centre = next(iter(pools.values())).together.mean(REWARD)
    low = {BALANCED_WEIGHT.bind(name) for name in missing}
    choices = [HeavyChoice(c, centre, reward_range, not low.isdisjoint(c)) for c in contrasts]
    own: Mapping[Contrast, Found] | None
    if clustered:
        own = rows.heaviest_clusters(contrasts, centre)
    else:
        found = rows.heaviest(contrasts, centre)
        own = None if found is None else next(iter(found.values()))
    if own is None:
        return Heavies(able=False)
    chosen = {choice.contrast: own[choice.contrast].choose(choice) for choice in choices}
    return Heavies({contrast: rows for contrast, rows in chosen.items() if rows is not None})


def _contrast_values(
    pools: Mapping[str, Pool], missing: Sequence[str], few: float
) -> list[Contrast]:
    return [
        Contrast(BALANCED_WEIGHT.bind(name))
        for name, pool in pools.items()
        if name in missing or count_behind(pool.together).fewest < few
    ]


def _contrast_pairs(
    pool: Pool, names: Sequence[str], missing: Sequence[str], few: float
) -> list[Contrast]:
    if not any(m.terms for m in pool.values()):
        return []
    whole = pool.together
    weights = {name: BALANCED_WEIGHT.bind(name) for name in names}
    largest = {name: whole.max(weight) for name, weight in weights.items()}
    return [
        Contrast(weights[a], weights[b])
        for a, b in combinations(names, 2)
        if a in missing
        or b in missing
        or _may_be_few(whole, weights[a], weights[b], max(largest[a], largest[b]), few)
    ]


def _contrast_logger(
    pools: Mapping[str, Pool], logger: str, missing: Sequence[str], few: float
) -> list[Contrast]:
    contrasts = []
    for name, pool in pools.items():
        if logger not in pool.loggers:  # of a segment
            continue
        whole = pool.together
        largest = max(whole.max(BALANCED_WEIGHT), whole.count / pool[logger].count)
        if name in missing or _may_be_few(whole, BALANCED_WEIGHT, ratio(logger), largest, few):
            contrasts.append(Contrast(BALANCED_WEIGHT.bind(name), ratio(logger)))
    return contrasts


def _may_be_few(whole: Moments, weight: Term, less: Term, largest: float, few: float) -> bool:
    """Test if few rows may be behind the variance of a difference of weights.

    The fourth power of a difference is at most its square times the largest square.
    """
    scatter = whole.select_scatter([weight, less])
    mean = whole.mean(weight) - whole.mean(less)
    squares = scatter[0, 0] + scatter[1, 1] - 2 * scatter[0, 1] + whole.count * mean**2
    return 0 < behind_variance(float(squares), float(squares) * largest**2) < few
