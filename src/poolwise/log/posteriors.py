r"""Posteriors: Thompson sampling as a policy with exact probabilities.

Thompson sampling draws a value of each action from its posterior and plays the action with the
highest value.  The probability of an action is an integral over one number,

$$\pi(y \mid x) = \int f_y(t) \prod_{z \ne y} F_z(t) \, dt$$

with the densities $f$ and the distribution functions $F$ of the posteriors.  Panels of
Gauss-Legendre nodes cover the values that may be the highest.  No panel is longer than the
scale of a posterior that changes there, whatever the scales of the others are.  The integrals
of the densities, and the sum of all probabilities, must be 1, so every result is checked.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from scipy.special import betainc, betaincc, betaln, expit, gammaln, ndtr

from poolwise.errors import PolicyError
from poolwise.log.densities import Beta, Gaussian
from poolwise.log.policy import Batch, distinct, pick

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from poolwise.log.densities import Number
    from poolwise.types import FloatArray, IntArray

    Mask: TypeAlias = NDArray[np.bool]

NODES = 16  # of a panel
MOST_DENSITIES = 1 << 17  # densities that are computed at once: 1 MB
PANELS = 50_000  # of a row; more are refused
ENDS = np.arange(-8.0, 9.0, 2.0)  # of panels, as signed roots of the deviance: a normal z
FIRST_PANEL = 0.25  # part of a posterior's first panel that the panel before it may hold
TOLERANCE = 1e-9  # of integrals that must be 1
SMALLEST, LARGEST = 1e-9, 1e9  # parameters of a Beta posterior
FAR = 100.0  # log-odds beyond which the distribution function is an exponential
FAR_EDGE = 30.0  # distance from which exponentials are taken of the negative distance
STEPS = 60  # of Newton's method, at most; about ten are taken
STIRLING = 20.0  # argument from which Stirling's series has all digits
SHOWN = 5  # rows that an error names


@dataclass(frozen=True)
class Thompson:
    """Thompson sampling: plays each action with the probability that its value is the highest.

    Values are independent draws from the actions' posteriors, all of them `Beta` or all of them
    `Gaussian`. The probabilities are exact to about 1e-10. A Gaussian posterior of scale 0 is a
    known value; actions that share the highest known value are played equally often.

    >>> policy = Thompson({"a": Beta(2, 1), "b": Beta("wins", "losses")})
    >>> batch = Batch(np.array(["a", "b"]), {"wins": np.array([1, 2]), "losses": np.ones(2)})
    >>> policy.prob(batch).round(6).tolist()
    [0.666667, 0.5]

    Attributes:
        posteriors: The posterior of each action's value, in `eligible` lists too: an action
            that is not eligible needs no parameters in the row.
    """

    posteriors: Mapping[Hashable, Beta | Gaussian]

    def __post_init__(self) -> None:
        given: object = self.posteriors  # annotations are not enforced
        parts = [*given.values()] if isinstance(given, Mapping) else []
        kinds = {type(part) for part in parts}
        if len(kinds) != 1 or not kinds <= {Beta, Gaussian}:
            reason = (
                "needs a mapping of actions to posteriors, all of them Beta or all of them "
                f"Gaussian, got {given!r}"
            )
            raise PolicyError("Thompson", reason)

    @cached_property
    def actions(self) -> tuple[Hashable, ...]:
        return distinct("Thompson", tuple(self.posteriors))

    def prob(self, batch: Batch) -> FloatArray:
        return pick(self.distribution(batch), batch.index_in(self.actions))

    def distribution(self, batch: Batch, among: Mask | None = None) -> FloatArray:
        """Return the probability of every action, only `among` eligible ones if given."""
        shape = len(batch), len(self.actions)
        among = np.ones(shape, dtype=bool) if among is None else among
        parts = [*self.posteriors.values()]
        beta = [part for part in parts if isinstance(part, Beta)]
        normal = [part for part in parts if isinstance(part, Gaussian)]
        first = self._numbers([*(p.a for p in beta), *(p.mean for p in normal)], batch)
        second = self._numbers([*(p.b for p in beta), *(p.scale for p in normal)], batch)
        self._check(first, second, among)
        # rows of one period often have the same posteriors
        known = np.where(among, first, 0.0), np.where(among, second, 0.0)
        rows, back = np.unique(np.hstack([*known, among]), axis=0, return_inverse=True)
        one, two, allowed = np.split(rows, 3, axis=1)
        kind = Betas if beta else Normals
        probs = np.zeros(one.shape)
        size = max(1, MOST_DENSITIES // (NODES * shape[1]))
        for start in range(0, len(rows), size):
            here = slice(start, start + size)
            probs[here] = kind(one[here], two[here]).best(allowed[here] > 0)
        probs = probs[back.reshape(-1)]
        failed = np.flatnonzero(np.isnan(probs).any(axis=1))
        if len(failed):
            reason = (
                "cannot compare posteriors whose scales differ so much; a value that is known "
                f"has scale 0, in {len(failed):,} row{'s' * (len(failed) > 1)}"
            )
            raise PolicyError("Thompson", reason, failed[:SHOWN].tolist())
        return probs

    def _numbers(self, values: list[Number], batch: Batch) -> FloatArray:
        """Return a parameter of every action, shape (rows, actions)."""
        columns = np.empty((len(batch), len(values)))
        for k, value in enumerate(values):
            found = batch[value] if isinstance(value, str) else value
            number = np.asarray(found(batch) if callable(found) else found, dtype=np.float64)
            if number.shape not in {(), (len(batch),)}:
                reason = (
                    f"needs one number per row for action {self.actions[k]!r}, got an array of "
                    f"shape {number.shape}"
                )
                raise PolicyError("Thompson", reason)
            columns[:, k] = number
        return columns

    def _check(self, first: FloatArray, second: FloatArray, among: Mask) -> None:
        """Raise PolicyError if a parameter is out of range."""
        if isinstance(next(iter(self.posteriors.values())), Beta):
            good = (np.minimum(first, second) >= SMALLEST) & (
                np.maximum(first, second) <= LARGEST
            )
            rule = f"parameters of Beta from {SMALLEST:g} to {LARGEST:g}"
        else:
            good = np.isfinite(first) & (second >= 0) & (second < math.inf)
            rule = "a finite mean, and a finite scale that is 0 or positive"
        rows, columns = np.nonzero(among & ~good)
        if len(rows):
            k, places = columns[0], np.unique(rows)
            got = f"{first[rows[0], k]:g} and {second[rows[0], k]:g}"
            reason = (
                f"needs {rule}, got {got} for action {self.actions[k]!r}, in {len(places):,} "
                f"row{'s' * (len(places) > 1)}"
            )
            raise PolicyError("Thompson", reason, places[:SHOWN].tolist())


class Posteriors(ABC):
    """Posteriors of some rows, shape (rows, actions), on an axis where they are log-concave.

    Attributes:
        centre: Mode of each posterior.
        ends: Ends of each posterior's panels, as distances from its centre.
        points: Whether a posterior is a single point, its centre.
    """

    centre: FloatArray
    ends: FloatArray
    points: Mask

    @abstractmethod
    def below(self, distance: FloatArray) -> FloatArray:
        """Return the distribution functions at distances from the centres."""

    @abstractmethod
    def density(self, distance: FloatArray, rows: IntArray) -> FloatArray:
        """Return densities of some rows at distances of shape (nodes, rows, actions)."""

    def longest(self, place: FloatArray) -> FloatArray | float:
        """Return the longest panel that may start at a place of the axis."""
        del place
        return math.inf

    def best(self, among: Mask) -> FloatArray:
        """Return the probability that each posterior has the highest value; NaN if unsure.

        Args:
            among: The posteriors that count.
        """
        centre, spread = self.centre, among & ~self.points
        known = np.where(among & self.points, centre, -math.inf)
        point = known.max(axis=1)
        low = np.where(spread, centre + self.ends[..., 0], -math.inf).max(axis=1)
        start = np.maximum(low, point)
        with np.errstate(invalid="ignore"):  # a row without any posterior is left out
            gap = start[:, None] - centre
        active = spread & (gap < self.ends[..., -1])
        mass = np.ones(centre.shape)
        mass[active] = self.below(np.where(active, gap, 0.0))[active]
        at_point = np.where(point >= low, mass.prod(axis=1), 0.0)
        ties = among & self.points & (centre == point[:, None])
        probs = ties * (at_point / np.maximum(ties.sum(axis=1), 1))[:, None]
        probs += _Walk(self, active, mass, start).run()
        total = probs.sum(axis=1)
        off = np.abs(total - 1) + np.abs(np.where(active, mass - 1, 0.0)).max(axis=1)
        probs[off >= TOLERANCE] = math.nan
        return np.asarray(probs / total[:, None])


class _Walk:
    """Integrals over panels, from the start of each row to the end of its last posterior."""

    def __init__(
        self,
        parts: Posteriors,
        active: Mask,
        mass: FloatArray,
        start: FloatArray,
    ) -> None:
        self.parts, self.active, self.mass = parts, active, mass
        self.place, self.rest = start.copy(), np.zeros(len(start))  # a sum of two numbers
        # the highest of many values has a narrower distribution than each of them
        self.finer = max(1.0, math.log10(active.shape[1]) - 1)

    def run(self) -> FloatArray:
        """Return the integral of each density times the other distribution functions.

        `mass` then holds the distribution functions at the end.
        """
        probs = np.zeros(self.mass.shape)
        rows = np.flatnonzero(self.active.any(axis=1))
        for _ in range(PANELS):
            gap, length = self._next(rows)
            left = np.isfinite(length)
            rows = rows[left]
            if not len(rows):
                break
            probs[rows] += self._panel(rows, gap[left], length[left])
        return probs

    def _next(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the distances from the centres and the length of the next panel, or inf."""
        place = self.place[rows]
        gap = (place[:, None] - self.parts.centre[rows]) + self.rest[rows, None]
        lengths = _lengths(gap, self.parts.ends[rows])
        length = np.where(self.active[rows], lengths, math.inf).min(axis=1)
        longest = self.parts.longest(place)
        return gap, np.where(
            length < math.inf, np.minimum(length, longest), length
        ) / self.finer

    def _panel(self, rows: IntArray, gap: FloatArray, length: FloatArray) -> FloatArray:
        """Integrate over a panel, and move to its end."""
        parts, active = self.parts, self.active[rows]
        place, rest = self.place[rows], self.rest[rows]
        nodes, weights, inner = RULE
        at = gap + length[:, None] * nodes[:, None, None]
        change = np.where(active, parts.density(at, rows), 0.0) * length[:, None]
        # not a matrix product: BLAS may round a row differently in another batch
        below = self.mass[rows] + np.einsum("ij,jra->ira", inner, change)
        others = below.prod(axis=2, keepdims=True) / below
        found: FloatArray = np.einsum("j,jra->ra", weights, change * others)
        self.mass[rows] += np.einsum("j,jra->ra", weights, change)
        total = place + (step := rest + length)
        self.rest[rows] = step - (total - place)
        self.place[rows] = total
        return found


def _lengths(gap: FloatArray, ends: FloatArray) -> FloatArray:
    """Return how long a panel may be that starts at a distance from each centre.

    It is as long as the panel of the posterior there, ends before the one after the next, and
    reaches no further than into the first panel of a posterior that starts later.
    """
    index = (gap[..., None] >= ends).sum(axis=-1)
    last = ends.shape[-1] - 1
    upper = np.take_along_axis(ends, index.clip(1, last)[..., None], -1)[..., 0]
    lower = np.take_along_axis(ends, (index.clip(1, last) - 1)[..., None], -1)[..., 0]
    after = np.take_along_axis(ends, (index + 1).clip(1, last)[..., None], -1)[..., 0]
    width = upper - lower
    inside = np.minimum(width, np.where(index < last, after - gap, math.inf))
    before = (lower - gap) + FIRST_PANEL * width
    return np.where(index == 0, before, np.where(index > last, math.inf, inside))


def _rule(count: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return nodes in (0, 1), their weights, and the weights of integrals up to each node."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    legendre = np.polynomial.legendre
    values = legendre.legvander(nodes, count - 1)
    halves = (2 * np.arange(count) + 1) / 2
    integrals = np.stack(
        [legendre.legval(nodes, legendre.legint(row, lbnd=-1)) for row in np.eye(count)]
    )
    inner = np.einsum("ki,k,jk,j->ij", integrals, halves, values, weights)
    return (nodes + 1) / 2, weights / 2, inner / 2


RULE = _rule(NODES)


class Normals(Posteriors):
    """Normal posteriors."""

    def __init__(self, mean: FloatArray, scale: FloatArray) -> None:
        self.centre, self.scale = mean, scale
        self.points = scale == 0
        self.ends = scale[..., None] * ENDS

    def below(self, distance: FloatArray) -> FloatArray:
        with np.errstate(invalid="ignore", divide="ignore"):  # points are left out
            return np.asarray(ndtr(distance / self.scale))

    def density(self, distance: FloatArray, rows: IntArray) -> FloatArray:
        scale = self.scale[rows]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore", under="ignore"):
            z = distance / scale
            return np.exp(-0.5 * z * z) / (scale * math.sqrt(2 * math.pi))


class Betas(Posteriors):
    """Beta posteriors, on the axis of log-odds."""

    def __init__(self, a: FloatArray, b: FloatArray) -> None:
        a, b = np.where(a > 0, a, 1.0), np.where(b > 0, b, 1.0)  # not eligible
        self.a, self.b = a, b
        self.centre = np.log(a) - np.log(b)
        self.points = np.zeros(a.shape, dtype=bool)
        # The distribution of 1 - X exchanges a and b: the smaller one loses no digits.
        self.sign = np.where(a > b, -1.0, 1.0)
        self.least, self.total = np.minimum(a, b), a + b
        self.most, self.odds = np.maximum(a, b), np.minimum(a, b) / (a + b)
        self.peak = np.sqrt(a * (b / (2 * math.pi * self.total))) * np.exp(
            _remainder(self.total) - _remainder(a) - _remainder(b)
        )
        self.ends = np.stack([self._end(z) for z in ENDS], axis=-1)

    def _drop(self, distance: FloatArray, rows: IntArray | None = None) -> FloatArray:
        """Return the logarithm of the density of some rows, less that at the centre."""
        parts = self.least, self.most, self.odds, self.total, self.sign
        least, most, odds, total, sign = (v if rows is None else v[rows] for v in parts)
        d = sign * distance
        near = least * d - total * np.log1p(odds * np.expm1(np.minimum(d, FAR_EDGE)))
        far = -most * d - total * np.log(odds + (1 - odds) * np.exp(-np.maximum(d, FAR_EDGE)))
        return np.asarray(np.where(d < FAR_EDGE, near, far))

    def _end(self, z: float) -> FloatArray:
        """Return the distance at which twice the drop is -z**2, on the side of z."""
        curvature = self.a * (self.b / self.total)
        found = np.full(self.a.shape, z) / np.sqrt(curvature)
        if z == 0:
            return found
        # Beyond the end of a concave function, tangents approach it from outside.
        slope = self.a if z < 0 else self.b
        chance = self.b if z < 0 else self.a
        outside = (z * z / 2 - self.total * np.log(chance / self.total)) / slope
        for _ in range(STEPS):
            steep = self.a - self.total * expit(self.centre + found)
            step = (self._drop(found) + z * z / 2) / steep
            moved = np.clip(found - step, -outside, outside)
            if np.allclose(moved, found, rtol=1e-3, atol=0.0):
                return moved
            found = moved
        return found

    def below(self, distance: FloatArray) -> FloatArray:
        a, b, t = self.a, self.b, self.centre + distance
        x, y = expit(t), expit(-t)
        inner = np.where(t < 0, betainc(a, b, x), betaincc(b, a, y))
        base = betaln(a, b)
        with np.errstate(over="ignore"):
            left = np.exp(np.minimum(a * t - np.log(a) - base, 0.0))
            right = -np.expm1(np.minimum(-b * t - np.log(b) - base, 0.0))
        return np.where(t < -FAR, left, np.where(t > FAR, right, inner))

    def density(self, distance: FloatArray, rows: IntArray) -> FloatArray:
        return np.asarray(self.peak[rows] * np.exp(self._drop(distance, rows)))

    def longest(self, place: FloatArray) -> FloatArray:
        # The densities have poles at distance pi from 0, above and below the axis.
        return np.asarray((np.abs(place) + math.pi) / 2)


def _remainder(x: FloatArray) -> FloatArray:
    """Return the logarithm of the gamma function, less Stirling's formula."""
    large = np.maximum(x, STIRLING)
    square = large * large
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / square) / square) / square) / large
    small = np.minimum(x, STIRLING)
    exact = gammaln(small) - (small - 0.5) * np.log(small) + small
    return np.where(x < STIRLING, exact - 0.5 * math.log(2 * math.pi), series)
