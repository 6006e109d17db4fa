r"""Dependence: a column whose rows depend on each other, in a log without `cluster`.

With $e$ the reward of a row less the mean of its logger, and $g$ the rows with one value of
the column, rewards that do not depend on the value have pairs of products with mean 0:

$$T = \sum_g \Big[\Big(\sum_g e\Big)^2 - \sum_g e^2\Big], \qquad
  \mathrm{Var}\,T = 2 \sum_g \Big[\Big(\sum_g e^2\Big)^2 - \sum_g e^4\Big]$$

and rows that are clusters raise the variance of a mean by the factor $1 + T / \sum e^2$.  A
column of few values, such as a country, is a property of contexts that rows draw anew; one of
many values that repeat names units that were drawn once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from poolwise.errors import Finding
from poolwise.text import join_names, short

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.rows.groups import PairSums

FEWEST_VALUES = 100  # of a column that may name units
ROWS_PER_VALUE = 100  # at most: a column of fewer values is a property of contexts
RAISED = 1.2  # factor of the variance that is worth a warning
CLEAR = 5.0  # standard errors of T; rewards with heavy tails have a few more than normal


def variance_factor(sums: PairSums) -> float:
    """Return the factor by which groups raise the variance of a mean; 1 if it is noise.

    >>> from poolwise.rows.groups import PairSums
    >>> variance_factor(PairSums(1_000, 4_000, 4_000.0, 2_000.0, 24_000.0))
    1.5
    """
    units = sums.values >= FEWEST_VALUES and sums.rows <= ROWS_PER_VALUE * sums.values
    if not units or sums.pairs <= CLEAR * math.sqrt(max(0.0, sums.spread)):
        return 1.0
    return 1 + sums.pairs / sums.squares


def dependence_findings(found: Mapping[str, PairSums]) -> tuple[Finding, ...]:
    """Return the finding that rows with the same value of a column earn alike.

    Args:
        found: Sums of each column.
    """
    factors = {name: variance_factor(sums) for name, sums in found.items()}
    raised = {name: f for name, f in factors.items() if f >= RAISED}
    if not raised:
        return ()
    name = max(raised, key=lambda name: raised[name])
    others = [repr(n) for n in raised if n != name]
    also = f" So do rows with the same {join_names(others, 'or')}." if others else ""
    return (
        Finding(
            "rows-repeat-unit",
            f"Rows with the same {name!r} earn alike: intervals that treat rows as independent "
            f"are too narrow, by a factor of about {short(math.sqrt(raised[name]))} for a mean "
            f"of rewards.{also}",
            f"If {name!r} names what was sampled, such as a user, give `cluster` (--cluster).",
        ),
    )
