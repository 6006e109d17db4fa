r"""Doubled rows: more exact copies than chance produces.

Rows of a discrete log repeat by chance.  If the number of rows with each content is Poisson
with any means $\lambda$, the expected numbers $f_k$ of contents that occur k times satisfy
$f_2^2 \le \tfrac{3}{2} f_1 f_3$ (Cauchy and Schwarz on $\sum \lambda^k e^{-\lambda}$).  A file
that was loaded twice has pairs without the triples that chance would add.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from poolwise.errors import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

ERRORS = 4  # standard errors by which pairs must exceed their bound
FEWEST = 20  # pairs


def most_pairs(singles: int, triples: int) -> float:
    """Return the largest expected number of pairs that these counts allow.

    Both counts are raised by `ERRORS` of their standard errors.

    >>> round(most_pairs(800, 0))
    149
    """
    raised = [count + ERRORS * math.sqrt(count) + ERRORS**2 for count in (singles, triples)]
    return math.sqrt(1.5 * raised[0] * raised[1])


def doubled_rows(contents: Mapping[int, int]) -> tuple[Finding, ...]:
    """Return a finding if more rows occur twice than chance explains.

    Args:
        contents: Number of distinct rows that occur 1, 2, 3, ... times.
    """
    singles, pairs, triples = (contents.get(k, 0) for k in (1, 2, 3))
    bound = most_pairs(singles, triples)
    if pairs < FEWEST or pairs - ERRORS * math.sqrt(pairs) <= bound:
        return ()
    total = sum(k * count for k, count in contents.items())
    return (
        Finding(
            "doubled-rows",
            f"{pairs:,} rows occur twice in a log of {total:,}, and chance explains at most "
            f"{math.floor(bound):,}: a file or a partition may have been loaded twice, which "
            "makes intervals too narrow.",
            "Load every row once. If copies are intended, name a `cluster` that they share.",
        ),
    )
