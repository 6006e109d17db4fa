"""Moments of a few explicit rows, for results worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from poolwise.moments.terms import Needs
from tests.support.reference import exact_moments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.moments.moments import Moments
    from poolwise.moments.terms import Term

    Rows = Sequence[float] | Sequence[Fraction]


def group(columns: Mapping[Term, Rows], *, ddof: int = 1) -> Moments:
    """Every mean and every scatter of some terms; ddof 0 makes them exact expectations."""
    values = {term: np.array(list(map(float, rows))) for term, rows in columns.items()}
    return replace(exact_moments(values, Needs(groups=(tuple(columns),))), ddof=ddof)


def mean(rows: Rows) -> Fraction:
    return sum(map(Fraction, rows), Fraction(0)) / len(rows)


def scatter(left: Rows, right: Rows) -> Fraction:
    """Sum of products of two columns, each less its mean."""
    pairs = zip(map(Fraction, left), map(Fraction, right), strict=True)
    a, b = mean(left), mean(right)
    return sum(((x - a) * (y - b) for x, y in pairs), Fraction(0))


def var(rows: Rows) -> Fraction:
    return scatter(rows, rows) / (len(rows) - 1)
