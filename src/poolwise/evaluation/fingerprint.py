"""Fingerprint: whether two results rest on the same rows, told by sixteen letters.

It is made of what every engine knows anyway: rows, rewards and weights of each logger, in
sums and extremes.  Threads and the order of rows change the last digits of a sum, so all
numbers are cut to eight digits before they are digested.
"""

from __future__ import annotations

import math
from hashlib import sha256
from typing import TYPE_CHECKING

from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, WEIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.moments.moments import Moments, MomentsByLogger
    from poolwise.moments.terms import Term

STEPS = 2**26  # to each doubling: eight digits
# Numbers that people use (halves, tenths, whole ones) must not lie where a cut is made,
# or rounding would decide on which side: cuts are at odd places instead.
ODD, BETWEEN = math.pi / 3, 1 / math.pi


def fingerprint(views: Mapping[str, MomentsByLogger], *, crossed: bool) -> str:
    """A digest of the rows with the probabilities of their policies.

    Args:
        views: Moments of each logger, by target.
        crossed: Whether every logger's probability of every row is known, and so the mixture.
    """
    digest = sha256()
    terms = (REWARD, WEIGHT, BALANCED_WEIGHT) if crossed else (REWARD, WEIGHT)
    for target, view in sorted(views.items()):
        for logger, moments in sorted(view.items()):
            said = (target, logger, moments.count, *_numbers(moments, terms))
            digest.update(f"{said!r}\n".encode())
    return digest.hexdigest()[:16]


def _numbers(moments: Moments, terms: Sequence[Term]) -> list[tuple[int, int]]:
    return [number for term in terms for number in _of_term(moments, term)]


def _of_term(moments: Moments, term: Term) -> list[tuple[int, int]]:
    low, high, mean = moments.min(term), moments.max(term), moments.mean(term)
    # what cancels in a sum is known to the digits of its largest parts only
    scale = abs(mean) if low >= 0 else max(-low, abs(high))
    return [cut(low, abs(low)), cut(high, abs(high)), cut(mean, scale)]


def cut(value: float, scale: float) -> tuple[int, int]:
    """A number to eight digits of a scale: power of two and steps within it.

    >>> cut(0.3, 0.3) == cut(0.1 + 0.2, 0.1 + 0.2)
    True
    >>> cut(0.5, 0.5) == cut(0.5000001, 0.5000001)
    False
    """
    if scale == 0 or not math.isfinite(value / scale):
        return 0, 0
    power = math.floor(math.log2(scale * ODD))
    return power, math.floor(math.ldexp(value, -power) * STEPS + BETWEEN)
