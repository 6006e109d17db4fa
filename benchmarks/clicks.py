"""Click logs of several rankers: coverage of values and of the position bias, and the backtest.

Each log has deterministic rankers that sort the same items by different scores, and clicks
that depend on item and position.  The true value of the target, its clicks per request, comes
from many requests without clicks.  In other logs, clicks follow a model that position alone
does not explain: users read from the top and stop (cascade), or click more at the top whatever
the item is (trust).  The backtest should be silent in the first and see the cascade.

Run: python -m benchmarks.clicks [logs of each world, 1000] [names of worlds]
Prints a line for each world, and writes it to docs/figures/clicks.csv.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from poolwise.engines.clicks import change_buckets, predict
from poolwise.estimators.clicks import OfClicks
from poolwise.estimators.ips import Balanced, Naive
from poolwise.evaluation.clicks import judge_predictions
from poolwise.evaluation.position_bias import describe
from poolwise.intervals.skew import auto_interval
from poolwise.intervals.student import Limits
from poolwise.log.clicks import Curve, jackknife_variance
from poolwise.moments.buckets import BUCKETS, jackknife
from poolwise.moments.moments import Moments
from poolwise.moments.pool import Pool
from poolwise.moments.terms import BALANCED_REWARD, WEIGHTED_REWARD
from poolwise.rows.clusters import cluster_buckets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from poolwise.intervals.student import Interval
    from poolwise.log.clicks import Predicted
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.pool import Stratum
    from poolwise.moments.terms import Term

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

LOGS = 1_000
FIRST_SEED = 31_000_000  # of the table; worlds were chosen with seeds below
TRUTH_REQUESTS = 400_000
OUTPUT = Path(__file__).parent.parent / "docs" / "figures" / "clicks.csv"
SIGMAS = 1.96  # standard errors around 0 that 95% of differences stay within
MOODS = (1 / 3, 1.0)  # factors of the clicks of a user
Model = Literal["position", "cascade", "trust"]


@dataclass(frozen=True)
class World:
    """Requests, rankers and users.

    Attributes:
        requests: Requests of each ranker.
        positions: Positions of a list.
        items: Items that a ranker sorts; those below the last position are not shown.
        noise: Standard deviation of the scores of each ranker around the items' worth; the
            last number is that of the target.
        fall: Examination of position k is k to the power of minus this number.
        rate: Mean probability that an examined item is clicked.
        users: Requests of a user, who likes all items more or less; 1 for independent requests.
        shorter: Share of requests with half of the items and positions.
        model: How users click.
        known: Whether the true curve is given.
    """

    requests: tuple[int, ...] = (3_000, 1_500, 500)
    positions: int = 10
    items: int = 10
    noise: tuple[float, ...] = (1.5, 1.0, 0.6, 0.8)
    fall: float = 1.0
    rate: float = 0.25
    users: int = 1
    shorter: float = 0.0
    model: Model = "position"
    known: bool = False

    @property
    def examination(self) -> Floats:
        """Examination of each position."""
        return np.asarray(np.arange(1, self.positions + 1) ** -float(self.fall), np.float64)

    @property
    def names(self) -> list[str]:
        """Labels of the rankers."""
        return [f"r{k}" for k in range(len(self.requests))]

    def draw(self, number: int, rng: np.random.Generator) -> tuple[Floats, Integers, Integers]:
        """Return the attraction of items, their ranks under all policies, and list lengths.

        Shapes are (requests, items), (policies, requests, items) and (requests,).
        """
        worth = rng.normal(size=(number, self.items))
        attraction = np.clip(self.rate * np.exp(0.8 * worth - 0.32), 0.0, 1.0)
        length = np.where(
            rng.random(number) < self.shorter, self.positions // 2, self.positions
        )
        present = (
            np.arange(self.items)
            < np.where(length < self.positions, self.items // 2, self.items)[:, None]
        )
        ranks = []
        for noise in self.noise:
            score = worth + noise * rng.normal(size=worth.shape)
            order = np.argsort(np.argsort(np.where(present, -score, np.inf), axis=1), axis=1)
            rank = order + 1
            ranks.append(np.where(present & (rank <= length[:, None]), rank, 0))
        return attraction, np.array(ranks), length

    def chances(self, attraction: Floats, rank: Integers) -> Floats:
        """Return the probability of a click on each item, where lists have these ranks."""
        last = self.positions
        examined = np.append(0.0, self.examination)[rank]
        if self.model == "position":
            return np.asarray(attraction * examined)
        if self.model == "trust":  # a click at the top whatever the item is
            extra = np.append(0.0, 0.1 * self.examination**2)[rank]
            return np.asarray(np.minimum(attraction * examined + extra * (1 - attraction), 1))
        order = np.argsort(np.where(rank > 0, rank, last + 1), axis=1)
        sorted_ = np.take_along_axis(np.where(rank > 0, attraction, 0.0), order, axis=1)
        left = np.cumprod(1 - sorted_, axis=1)
        reached = np.concatenate([np.ones((len(left), 1)), left[:, :-1]], axis=1)
        chances = np.empty_like(attraction)
        np.put_along_axis(chances, order, sorted_ * reached, axis=1)
        return chances

    def truth(self) -> float:
        """Return the clicks per request of the target."""
        rng, total, done = np.random.default_rng(20170813), 0.0, 0
        while done < TRUTH_REQUESTS:
            attraction, ranks, _ = self.draw(20_000, rng)
            total += float(self.chances(attraction, ranks[-1]).sum())
            done += 20_000
        return total / done * (float(np.mean(MOODS)) if self.users > 1 else 1.0)

    def support(self) -> float:
        """Return the part of the target's examinations on items that some ranker shows."""
        _, ranks, _ = self.draw(20_000, np.random.default_rng(20170813))
        examined = np.append(0.0, self.examination)[ranks[-1]]
        return float(examined[ranks[:-1].max(axis=0) > 0].sum() / examined.sum())

    def table(self, seed: int) -> pa.Table:
        """Return the rows of one log."""
        rng = np.random.default_rng([seed, *self.requests])
        number = sum(self.requests)
        attraction, ranks, _ = self.draw(number, rng)
        user = rng.permutation(number) // self.users
        if self.users > 1:
            attraction *= rng.choice(MOODS, size=number)[user][:, None]
        ranker = np.repeat(np.arange(len(self.requests)), self.requests)
        own = ranks[ranker, np.arange(number)]
        if self.model == "cascade":
            clicked = self._cascade(attraction, own, rng)
        else:
            clicked = rng.random(own.shape) < self.chances(attraction, own)
        request, item = np.nonzero(own)
        columns = {
            "request": request,
            "user": user[request],
            "ranker": np.array(self.names)[ranker[request]],
            "position": own[request, item],
            "click": clicked[request, item].astype(np.int64),
        }
        for name, rank in zip([*self.names, "new"], ranks, strict=True):
            columns[f"rank_{name}"] = rank[request, item]
        return pa.table(columns)

    def _cascade(
        self, attraction: Floats, rank: Integers, rng: np.random.Generator
    ) -> NDArray[np.bool_]:
        """Draw clicks of users who read from the top and stop at the first click."""
        liked = (rng.random(rank.shape) < attraction) & (rank > 0)
        first = np.where(liked, rank, self.positions + 1).min(axis=1)
        return np.asarray(liked & (rank == first[:, None]))


WORLDS: Mapping[str, World] = {
    "3 rankers, 5,000 requests": World(),
    "2 similar rankers, 2,000 requests": World((1_400, 600), noise=(0.5, 0.6, 0.4)),
    "1,000 requests, 5 positions": World((500, 300, 200), positions=5, items=5),
    "rare clicks (2%)": World((6_000, 3_000, 1_000), rate=0.02),
    "5 rankers, steep curve": World((800,) * 5, noise=(1.5, 1.2, 1.0, 0.8, 0.6, 0.7), fall=1.5),
    "more items than positions, support 99%": World(items=12, noise=(0.5, 0.6, 0.7, 0.4)),
    "users with 5 requests": World(users=5),
    "lists of 5 and of 10": World(shorter=0.4),
    "curve given": World(known=True),
    "cascade, 10,000 requests": World((6_000, 3_000, 1_000), model="cascade"),
    "trust, 10,000 requests": World((6_000, 3_000, 1_000), model="trust"),
}


@dataclass(frozen=True)
class Outcome:
    """What one log gave.

    Attributes:
        values: Estimate of each estimator.
        covered: Whether its interval covers the truth.
        known: Whether the interval covers that takes the position bias as known.
        positions: Share of positions whose interval covers.
        loggers: Share of rankers whose value is their own mean clicks, within 1.96 errors.
        alarmed: Whether a prediction of the backtest fails.
        z: Each prediction's distance in standard errors.
    """

    values: Mapping[str, float]
    covered: Mapping[str, bool]
    known: bool
    positions: float
    loggers: float
    alarmed: bool
    z: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Drawn:
    """The sums of one log that its results rest on, from arrays: a query for each takes longer.

    `tests/repo/test_click_benchmarks.py` compares the results with those of the package.

    Attributes:
        world: Requests, rankers and users.
        ranks: Rank of each shown item under every policy, shape (policies, rows).
        click: Its click.
        ranker: The ranker that showed it.
        place: Its position.
        bucket: Bucket of its request.
        whole: Bucket of each request, and its ranker.
    """

    world: World
    ranks: Integers
    click: Floats
    ranker: Integers
    place: Integers
    bucket: Integers
    whole: tuple[Integers, Integers]

    @classmethod
    def of(cls, world: World, table: pa.Table) -> Drawn:
        """Read the rows of a log."""
        names = {name: k for k, name in enumerate(world.names)}
        ranks = np.array([table[f"rank_{n}"].to_numpy() for n in [*world.names, "new"]])
        ranker = np.array([names[i] for i in table["ranker"].to_pylist()])
        column = table["user" if world.users > 1 else "request"]
        bucket = cluster_buckets(column, BUCKETS).astype(np.int64)
        _, bucket = np.unique(bucket, return_inverse=True)
        place = table["position"].to_numpy()
        top = place == 1
        whole = bucket[top], ranker[top]
        click = table["click"].to_numpy().astype(np.float64)
        return cls(world, ranks, click, ranker, place, bucket, whole)

    @property
    def counts(self) -> Floats:
        """Requests of each bucket and ranker."""
        counts = np.zeros((int(self.bucket.max()) + 1, len(self.world.requests)))
        np.add.at(counts, self.whole, 1)
        return counts

    def curve(self) -> Curve:
        """Fit the position bias."""
        last, counts = self.world.positions, self.counts.sum(axis=0)
        sums = np.zeros((len(self.counts), last + 1, last + 1))
        rows = np.flatnonzero(self.click)
        own = self.ranks[:-1, rows]
        requests = ((own == self.place[rows]) * counts[:, None]).sum(axis=0)
        seen = np.zeros((len(rows), last + 1), dtype=bool)
        for rank in own:
            seen[np.arange(len(rows)), rank] = True
        seen[np.arange(len(rows)), self.place[rows]] = False
        at, other = np.nonzero(seen)
        np.add.at(sums, (self.bucket[rows][at], self.place[rows][at], other), 1 / requests[at])
        return Curve.fit(sums[:, 1:, 1:])

    def pool(
        self, curve: Curve, policy: int, *, own: bool = False, fixed: bool = False
    ) -> tuple[Pool, float]:
        """Return the weighted clicks of a policy, and the largest weight.

        Args:
            curve: Examination of each position.
            policy: Number of the policy; the last is the target.
            own: Whether weights are against the row's own ranker.
            fixed: Whether the curve is taken as known.
        """
        counts = self.counts
        requests, rows = counts.sum(axis=0), np.flatnonzero(self.click)
        examined = np.append(0.0, curve.examination)
        shares, ranks = requests / requests.sum(), self.ranks[:, rows]
        parts = shares[:, None] * examined[ranks[:-1]]
        below = examined[self.place[rows]] if own else parts.sum(axis=0)
        weight = examined[ranks[policy]] / below
        slopes = np.zeros((len(requests), self.world.positions + 1))
        np.add.at(slopes, (self.ranker[rows], ranks[policy]), weight)
        lost = (
            [(self.place[rows], weight)]
            if own
            else zip(ranks[:-1], weight * parts / below, strict=True)
        )
        for rank, part in lost:
            np.subtract.at(slopes, (self.ranker[rows], rank), part)
        sums = np.zeros_like(counts)
        np.add.at(sums, (self.bucket[rows], self.ranker[rows]), weight)
        names, term = self.world.names, WEIGHTED_REWARD if own else BALANCED_REWARD
        pool = _pool(names, counts, sums, term)
        if not fixed:
            shifts = curve.shifts - curve.shifts.mean(axis=0)
            by_ranker = zip(names, slopes[:, 1:] / requests[:, None] @ shifts.T, strict=True)
            changes: dict[Stratum, Floats] = dict(by_ranker)
            buckets = [dict(bucket) for bucket in pool.buckets]
            change_buckets(buckets, pool, names, changes, 0)
            pool = Pool(dict(pool), buckets, names)
        return pool, float(weight.max())

    def value(
        self, curve: Curve, policy: int, *, own: bool = False, fixed: bool = False
    ) -> tuple[Estimate, Interval]:
        """Return the estimate of a policy and its interval; arguments as for `pool`."""
        pool, largest = self.pool(curve, policy, own=own, fixed=fixed)
        estimate = jackknife(OfClicks(Naive() if own else Balanced()), pool)
        limits = Limits(rows=len(self.counts), reward_range=None, largest_weight=largest)
        return estimate, auto_interval(estimate, pool, 0.95, limits)[0]

    def own_distance(self, curve: Curve, ranker: int) -> float:
        """Return the value of a ranker less its own mean clicks, in standard errors."""
        pool, _ = self.pool(curve, ranker)
        counts = self.counts
        requests = counts.sum(axis=0)
        sums = np.array(
            [
                [b[i].count * b[i].means[0] if i in b else 0.0 for i in self.world.names]
                for b in pool.buckets
            ]
        )
        left = requests - counts
        mine = np.zeros(len(counts))
        own = self.ranker == ranker
        np.add.at(mine, self.bucket[own], self.click[own])
        gaps = (sums.sum(axis=0) - sums) / left @ requests / requests.sum()
        gaps -= (mine.sum() - mine) / left[:, ranker]
        error = float(np.sqrt(jackknife_variance(gaps)))
        value = sum(pool[i].means[0] * pool[i].count for i in pool) / requests.sum()
        return float((value - mine.sum() / requests[ranker]) / error)


def _pool(names: Sequence[str], counts: Floats, sums: Floats, term: Term) -> Pool:
    """Return the moments of one term, a row for each request."""

    def moments(number: float, total: float) -> Moments:
        ends = np.array([np.nan])
        return Moments(
            (term,), int(number), np.array([total / number]), np.zeros((1, 1)), ends, ends
        )

    buckets = [
        {i: moments(n, t) for i, n, t in zip(names, *each, strict=True) if n}
        for each in zip(counts, sums, strict=True)
    ]
    whole = {
        i: moments(n, t)
        for i, n, t in zip(names, counts.sum(axis=0), sums.sum(axis=0), strict=True)
    }
    return Pool(whole, buckets, names)


def predictions(drawn: Drawn, curve: Curve) -> dict[str, Predicted]:
    """Return both sides of the backtest of each ranker, as `ClickRows.click_predictions`."""
    counts, world, found = drawn.counts, drawn.world, {}
    requests, examined = counts.sum(axis=0), np.append(0.0, curve.examination)
    rows = np.flatnonzero(drawn.click)
    ranks, ranker, bucket = drawn.ranks[:-1, rows], drawn.ranker[rows], drawn.bucket[rows]
    for k, name in enumerate(world.names):
        others = np.arange(len(requests)) != k
        shares = requests[others] / requests[others].sum()
        parts = shares[:, None] * examined[ranks[others]]
        theirs = ranker != k
        below = np.where(theirs, parts.sum(axis=0), 1.0)
        weight = np.where(theirs, examined[ranks[k]] / below, 0.0)
        sums, earned = np.zeros_like(counts), np.zeros_like(counts)
        np.add.at(sums, (bucket, ranker), weight)
        shared = ~theirs & (ranks[others].max(axis=0) > 0)
        np.add.at(earned, (bucket[shared], ranker[shared]), 1.0)
        slope = np.zeros(world.positions + 1)
        np.add.at(slope, ranks[k], weight)
        for rank, part in zip(ranks[others], weight * parts / below, strict=True):
            np.subtract.at(slope, rank, part)
        changes = curve.shifts @ slope[1:] / requests[others].sum()
        found[name] = predict(k, counts, earned, sums, np.ones((4, len(requests))), changes)
    return found


def outcome(world: World, seed: int, truth: float) -> Outcome:
    """Evaluate one log."""
    drawn = Drawn.of(world, world.table(seed))
    curve = Curve.given(world.examination) if world.known else drawn.curve()
    if world.known:
        curve = replace(curve, shifts=np.zeros((len(drawn.counts), world.positions)))
    results = {
        "balanced": drawn.value(curve, -1),
        "naive": drawn.value(curve, -1, own=True),
    }
    fixed = drawn.value(curve, -1, fixed=True)[1]
    bias = describe(curve, dict(zip(world.names, world.requests, strict=True)), 0.95)
    covers = [
        p.lower <= e <= p.upper
        for p, e in zip(bias.positions, world.examination, strict=True)
        if p.log_error > 0
    ]
    rows = dict.fromkeys(world.names, 1)
    tested = [*judge_predictions(predictions(drawn, curve), rows, 0.95).values()]
    inside = [abs(drawn.own_distance(curve, k)) < SIGMAS for k in range(len(world.names))]
    return Outcome(
        {name: e.value for name, (e, _) in results.items()},
        {name: truth in interval for name, (_, interval) in results.items()},
        truth in fixed,
        float(np.mean(covers)) if covers else 1.0,
        float(np.mean(inside)),
        not all(p.fits for p in tested),
        tuple(p.z for p in tested),
    )


def line(name: str, world: World, logs: int, first: int = FIRST_SEED) -> dict[str, object]:
    """Return the numbers of one world."""
    truth = world.truth()
    found = [outcome(world, first + k, truth) for k in range(logs)]
    row: dict[str, object] = {"world": name, "logs": logs, "support": round(world.support(), 4)}
    for estimator in ("balanced", "naive"):
        values = np.array([o.values[estimator] for o in found])
        row[f"{estimator}_bias"] = round(float((values.mean() - truth) / values.std(ddof=1)), 2)
        row[f"{estimator}_covers"] = float(np.mean([o.covered[estimator] for o in found]))
    row["covers_if_known"] = float(np.mean([o.known for o in found]))
    row["positions_covered"] = round(float(np.mean([o.positions for o in found])), 4)
    row["own_clicks_covered"] = round(float(np.mean([o.loggers for o in found])), 4)
    row["backtest_fails"] = float(np.mean([o.alarmed for o in found]))
    z = np.array([o.z for o in found])
    row["z_means"] = " ".join(f"{m:+.2f}" for m in z.mean(axis=0))
    row["z_deviations"] = " ".join(f"{d:.2f}" for d in z.std(axis=0, ddof=1))
    row["relative_bias"] = round(
        float(np.mean([o.values["balanced"] for o in found]) / truth - 1), 4
    )
    return row


def main(arguments: Sequence[str]) -> None:
    """Print a line for each world."""
    logs = int(arguments[0]) if arguments else LOGS
    names = list(arguments[1:]) or list(WORLDS)
    rows = []
    for name in names:
        rows.append(line(name, WORLDS[name], logs))
        print(rows[-1], flush=True)
        keep(rows[-1:])


def keep(rows: Sequence[Mapping[str, object]]) -> None:
    """Replace the lines of these worlds in the table."""
    kept: dict[str, Mapping[str, object]] = {}
    if OUTPUT.exists():
        with OUTPUT.open(newline="", encoding="utf-8") as file:
            kept = {row["world"]: row for row in csv.DictReader(file)}
    kept |= {str(row["world"]): row for row in rows}
    with OUTPUT.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept[name] for name in WORLDS if name in kept)


if __name__ == "__main__":
    main(sys.argv[1:])
