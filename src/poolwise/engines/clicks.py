r"""Click rows: moments of a click log, whose buckets contain the error of the position bias.

The examination of positions takes the place of probabilities, and it was estimated from the
same requests.  Without bucket $b$ the mean weighted click of a stratum changes by its own rows
and by the change of the curve:

$$\hat U_{-b}(\hat\theta) + G' (\hat\beta_{-b} - \hat\beta),
  \qquad G_k = \partial \hat U / \partial \log \theta_k$$

The second part is added to the means of the buckets.  Everything that reads buckets, such as
errors, skewness, differences and segments, then contains it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sqlglot.expressions import Column

from poolwise.engines.base import CHANGED
from poolwise.engines.duckdb import DuckDBRows
from poolwise.errors import LogError, UsageError
from poolwise.log.clicks import Clicks, Predicted, Support
from poolwise.moments.pool import Cell, Pool, find_logger
from poolwise.moments.terms import NO_NEEDS
from poolwise.rows.guard import read_table
from poolwise.rows.sources import identifier, literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlglot.expressions import Expr as Expression

    from poolwise.engines.base import Bucketed
    from poolwise.moments.moments import Moments
    from poolwise.moments.pool import Stratum
    from poolwise.moments.terms import Needs, Term
    from poolwise.types import FloatArray

WORTH = (
    "where clicks count by `worth`, a baseline must be among the targets: give all targets "
    "that click_log returned"
)
WHOLE = "whole"  # in place of a segment


class Weighing(NamedTuple):
    """A target or a ranker whose weighted clicks a term averages.

    Attributes:
        column: Column of its examination of the row's item.
        own: True for weights against the row's own ranker, false for balanced ones.
    """

    column: str
    own: bool


@dataclass(frozen=True, eq=False)
class ClickRows(DuckDBRows):
    """An open click log; its buckets contain the error of the position bias.

    Attributes:
        clicks: The position bias.
        slopes: Derivatives of the means by policy and stratum, as far as they are known.
    """

    clicks: Clicks = field(kw_only=True)
    slopes: dict[tuple[Weighing, Stratum], FloatArray] = field(
        default_factory=dict, kw_only=True
    )

    def bucketed_and_tallied(
        self, needs: Sequence[Needs], buckets: int, also: Needs = NO_NEEDS
    ) -> Bucketed:
        """Moments of each bucket and logger, with the error of the position bias."""
        joined = self.clicks.divisor(buckets)
        pools, whole = super().bucketed_and_tallied(needs, joined, also)
        terms = {t for part in needs for t in part.terms}
        policies = {t: p for t in terms if (p := self._policy(t)) is not None}
        self._learn(set(policies.values()), pools[0])
        numbers, shifts = self.clicks.shifts(joined)
        if any(pool and len(pool.buckets) != len(numbers) for pool in pools):
            raise LogError([CHANGED])
        shifts = shifts - shifts.mean(axis=0)  # only differences between buckets count
        return [self._shifted(pool, policies, shifts) for pool in pools], whole

    def action_sums(self) -> None:
        """Return None: an audit compares frequencies of actions, which examinations are not."""

    # --- the change of buckets ------------------------------------------------------------

    def _policy(self, term: Term) -> Weighing | None:
        """Return the policy of the weighted clicks that a term averages; None for others."""
        factors = {f.name: f for f in term.factors}
        if self.clicks.values and "reward" in factors and "ratio" in factors:
            raise UsageError(WORTH)
        if len(term.factors) != 2 or "reward" not in factors:
            return None
        (name,) = factors.keys() - {"reward"}
        if name in {"weight", "balanced_weight"}:
            column = self._column(self.table.targets[factors[name].target])
            if self.clicks.values and column in self.mixed:
                raise UsageError(WORTH)
            return Weighing(column, own=name == "weight")
        if name == "ratio":
            column = self._column(self.table.propensities[factors[name].logger])
            return Weighing(column, own=False)
        return None

    def _column(self, expression: Expression) -> str:
        name = expression.name if isinstance(expression, Column) else ""
        if name not in self.clicks.ranks:
            raise UsageError(
                "targets of a click log must be those that click_log was given, got "
                f"{expression.sql(dialect='duckdb')}: give the ranks of the target to click_log"
            )
        return name

    def _shifted(
        self, pool: Pool, policies: Mapping[Term, Weighing], shifts: FloatArray
    ) -> Pool:
        """Return a pool whose buckets contain the change of the curve without each of them."""
        if not pool or not shifts.any():
            return pool
        terms = pool[next(iter(pool))].terms
        places = [(k, policies[t]) for k, t in enumerate(terms) if t in policies]
        buckets = [dict(bucket) for bucket in pool.buckets]
        for k, policy in places:
            changes = {i: shifts @ self.slopes[policy, i] for i in pool}
            for name in dict.fromkeys(map(_segment, pool)):
                strata = [i for i in pool if _segment(i) == name]
                change_buckets(buckets, pool, strata, changes, k)
        return Pool(dict(pool), buckets, pool.loggers)

    def _learn(self, policies: Iterable[Weighing], pool: Pool) -> None:
        """Compute the derivatives of means that are not known yet, in one query."""
        wanted = sorted({p for p in policies if (p, next(iter(pool))) not in self.slopes})
        if wanted and self.clicks.sums is not None:
            self.slopes.update(self._derivatives(wanted, pool))

    def _derivatives(
        self, policies: Sequence[Weighing], pool: Pool
    ) -> dict[tuple[Weighing, Stratum], FloatArray]:
        r"""Return the derivatives of means of weighted clicks by the curve's logarithms.

        A balanced weight $w = \theta_{new} / \bar\theta$ has the derivative
        $w ([new = k] - \sum_i \frac{n_i}{n} \theta_k [rank_i = k] / \bar\theta)$, one against
        the row's own ranker $w ([new = k] - [position = k])$.
        """
        size = len(self.clicks.curve.logs)
        strata = {(_segment(i), find_logger(i)): i for i in pool}
        slopes = {(p, i): np.zeros(size) for p in policies for i in pool}
        ranks = self.clicks.ranks
        mixed = self.mixed
        sets = list(dict.fromkeys([ranks[p.column] for p in policies]))
        sets = list(dict.fromkeys([*sets, *(ranks[c] for c in mixed), self.clicks.position]))
        for line in self._grouped(policies, mixed, sets):
            stratum = strata[line["segment"], line["logger"]]
            by = sets[int(line["by"])]
            rank = line[f"by_{line['by']}"]
            if not rank:
                continue
            for q, policy in enumerate(policies):
                slope = slopes[policy, stratum]
                if by == ranks[policy.column]:
                    slope[rank - 1] += line[f"sum_{q}"]
                if policy.own and by == self.clicks.position:
                    slope[rank - 1] -= line[f"sum_{q}"]
                for k, column in enumerate(() if policy.own else mixed):
                    if by == ranks[column]:
                        slope[rank - 1] -= line[f"sum_{q}_{k}"]
        return {(p, i): slope / pool[i].count for (p, i), slope in slopes.items()}

    def _grouped(
        self, policies: Sequence[Weighing], mixed: Sequence[str], sets: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return sums of weighted clicks by stratum and by each rank, in one pass."""
        sums = []
        for q, policy in enumerate(policies):
            sums.append(f"sum(reward * weight_{q}) AS sum_{q}")
            others = () if policy.own else range(len(mixed))
            sums += [f"sum(reward * weight_{q} * part_{k}) AS sum_{q}_{k}" for k in others]
        weights = [
            f"({identifier(p.column)} / {'own' if p.own else 'mixture'}) AS weight_{q}"
            for q, p in enumerate(policies)
        ]
        parts = [
            f"share_{k} * {identifier(c)} / mixture AS part_{k}" for k, c in enumerate(mixed)
        ]
        by = [f"{identifier(column)} AS by_{k}" for k, column in enumerate(sets)]
        which = " ".join(f"WHEN grouping(by_{k}) = 0 THEN {k}" for k in range(len(sets)))
        groups = ", ".join(f"(segment, logger, by_{k})" for k in range(len(sets)))
        columns = ", ".join(f"by_{k}" for k in range(len(sets)))
        return self.ask(f"""
SELECT segment, logger, CASE {which} END AS by, {columns}, {", ".join(sums)}
FROM (
    SELECT segment, logger, reward, {", ".join([*weights, *parts, *by])}
    FROM ({self.weighed(mixed)}) WHERE reward <> 0
)
GROUP BY GROUPING SETS ({groups})""")

    # --- support and backtest -------------------------------------------------------------

    @property
    def mixed(self) -> list[str]:
        """Columns of the rankers' examinations, in the order of their counts."""
        return [self._column(self.table.propensities[i]) for i in self.counts]

    def click_support(self) -> Mapping[str, Support]:
        return self.click_support_by_segment[WHOLE]

    @cached_property
    def click_support_by_segment(self) -> dict[str, dict[str, Support]]:
        """Support of each target, by segment.

        A target is taken to show as many items as the logged list.
        """
        targets = {name: self._column(text) for name, text in self.table.targets.items()}
        mixed, ranks, curve = self.mixed, self.clicks.ranks, self.clicks.curve.examination
        values = np.array(self.clicks.values or np.ones(len(curve)))
        scale = max((curve * values).max(), curve.max())
        shown = " + ".join(
            f"CASE WHEN {identifier(ranks[c])} > 0 THEN share_{k} ELSE 0e0 END"
            for k, c in enumerate(mixed)
        )
        sums = [
            f"sum({identifier(c)} / shown) AS shown_{q}" for q, c in enumerate(targets.values())
        ]
        sums += [f"sum({identifier(c)}) AS own_{q}" for q, c in enumerate(targets.values())]
        place = identifier(self.clicks.position)
        lines = self.ask(f"""
SELECT segment, logger, sum({lookup(place, curve * values / scale)}) AS examined,
    {", ".join(sums)}
FROM (SELECT *, {shown} AS shown FROM ({self.weighed(mixed)}))
WHERE {place} IS NOT NULL
GROUP BY segment, logger ORDER BY segment, logger""")
        by_segment: dict[str, dict[str, Support]] = {}
        for segment in dict.fromkeys(line["segment"] for line in lines):
            own = [line for line in lines if line["segment"] == segment]
            examined = sum(line["examined"] for line in own)
            by_segment[segment] = {
                name: Support(
                    sum(line[f"shown_{q}"] for line in own) / examined,
                    {line["logger"]: line[f"own_{q}"] / line["examined"] for line in own},
                )
                for q, name in enumerate(targets)
            }
        return by_segment

    def click_predictions(self) -> dict[str, Predicted]:
        r"""Return the clicks of each ranker, predicted from the requests of the others.

        Both sides are on items that some other ranker shows.  The prediction of ranker i is
        the mean, over the requests of the others, of
        $\theta_{rank_i} / \sum_{j \ne i} \frac{n_j}{n - n_i} \theta_{rank_j}$ over clicks.
        """
        loggers = list(self.counts)
        numbers, shifts = self.clicks.shifts(self.clicks.buckets)
        lines = self._predicted_by_bucket()
        places = {int(b): k for k, b in enumerate(numbers)}
        size = (len(numbers), len(loggers))
        rows, earned = np.zeros(size), np.zeros(size)
        predicted = np.zeros((*size, len(loggers)))
        totals = {i: np.zeros((4, len(loggers))) for i in loggers}
        for line in lines:
            b, j = places[int(line["bucket"])], loggers.index(line["logger"])
            rows[b, j], earned[b, j] = line["rows"], line["earned"]
            predicted[b, j] = [line[f"predicted_{k}"] or 0.0 for k in range(len(loggers))]
            for k, i in enumerate(loggers):
                parts = [line[f"weight_{k}"] or 0.0, line[f"square_{k}"] or 0.0]
                parts += [float(line[c]) if k == j else 0.0 for c in ("shown", "supported")]
                totals[i][:, j] += parts
        slopes = self._prediction_slopes()
        return {
            i: predict(k, rows, earned, predicted[:, :, k], totals[i], shifts @ slopes[k])
            for k, i in enumerate(loggers)
        }

    def _others(self, source: str) -> str:
        """Select rows with the prediction weight of each ranker, NULL in its own rows."""
        total = sum(self.counts.values())
        fields = []
        for k, (i, count) in enumerate(self.counts.items()):
            rest = [
                f"{n / (total - count)!r} * {identifier(c)}"
                for j, (n, c) in enumerate(zip(self.counts.values(), self.mixed, strict=True))
                if j != k
            ]
            own = identifier(self.mixed[k])
            weight = f"{own} / ({' + '.join(rest)})"
            fields.append(f"CASE WHEN logger <> {literal(i)} THEN {weight} END AS weight_{k}")
        return f"SELECT *, {', '.join(fields)} FROM ({source})"

    def _predicted_by_bucket(self) -> list[dict[str, Any]]:
        """Return clicks, predicted clicks and weights by bucket and ranker."""
        ranks = [identifier(self.clicks.ranks[c]) for c in self.mixed]
        others = " ".join(
            f"WHEN {literal(i)} THEN greatest({', '.join(r for r in ranks if r != own)}, 0) > 0"
            for i, own in zip(self.counts, ranks, strict=True)
        )
        place = identifier(self.clicks.position)
        supported = f"({place} IS NOT NULL AND CASE logger {others} END)"
        bucket = f"hash(CAST(unit AS VARCHAR)) % {self.clicks.buckets} AS bucket, logger"
        rows = self.ask(f"""
SELECT {bucket}, count(*) AS rows, count({place}) AS shown,
    count_if({supported}) AS supported,
    sum(CASE WHEN {supported} THEN reward ELSE 0e0 END) AS earned
FROM ({self.weighed(self.mixed)}) GROUP BY ALL ORDER BY ALL""")
        fields = []
        for k in range(len(ranks)):
            fields += [
                f"sum(reward * weight_{k}) AS predicted_{k}",
                f"sum(weight_{k}) AS weight_{k}",
                f"sum(weight_{k} ** 2) AS square_{k}",
            ]
        clicks = self.ask(f"""
SELECT {bucket}, {", ".join(fields)}
FROM ({self._others(self.weighed(self.mixed))}) WHERE reward <> 0 GROUP BY ALL""")
        weights = {(line["bucket"], line["logger"]): line for line in clicks}
        nothing = {name.rpartition(" ")[2]: 0.0 for name in fields}
        return [line | weights.get((line["bucket"], line["logger"]), nothing) for line in rows]

    def _prediction_slopes(self) -> FloatArray:
        """Return the derivatives of predictions by the curve's logarithms, by ranker."""
        total, counts = sum(self.counts.values()), list(self.counts.values())
        slopes = np.zeros((len(counts), self.clicks.curve.size))
        if self.clicks.sums is None:
            return slopes
        ranks = [self.clicks.ranks[c] for c in self.mixed]
        sums, parts = [], []
        for k, count in enumerate(counts):
            sums.append(f"sum(reward * weight_{k}) AS sum_{k}")
            own = identifier(self.mixed[k])
            for j, (n, column) in enumerate(zip(counts, self.mixed, strict=True)):
                if j == k:
                    continue
                # the other's part of the mixture is the weight times this ratio
                part = f"weight_{k} * {n / (total - count)!r} * {identifier(column)} / {own}"
                parts.append(f"CASE WHEN {own} > 0 THEN {part} END AS part_{k}_{j}")
                sums.append(f"sum(reward * weight_{k} * part_{k}_{j}) AS sum_{k}_{j}")
        by = [f"{identifier(column)} AS by_{j}" for j, column in enumerate(ranks)]
        which = " ".join(f"WHEN grouping(by_{j}) = 0 THEN {j}" for j in range(len(ranks)))
        groups = ", ".join(f"(by_{j})" for j in range(len(ranks)))
        columns = ", ".join(f"by_{j}" for j in range(len(ranks)))
        lines = self.ask(f"""
SELECT CASE {which} END AS by, {columns}, {", ".join(sums)}
FROM (
    SELECT *, {", ".join([*parts, *by])} FROM (
        {self._others(self.weighed(self.mixed))}
    ) WHERE reward <> 0
)
GROUP BY GROUPING SETS ({groups})""")
        for line in lines:
            j = int(line["by"])
            rank = line[f"by_{j}"]
            if rank:
                slopes[j, rank - 1] += line[f"sum_{j}"] or 0.0
                for k in range(len(counts)):
                    if k != j:
                        slopes[k, rank - 1] -= line[f"sum_{k}_{j}"] or 0.0
        return np.asarray(slopes / (total - np.array(counts))[:, None])

    # --- the rows, by SQL -----------------------------------------------------------------

    def weighed(self, mixed: Sequence[str]) -> str:
        """Select rows with their segment, ranker, reward and mixture, and all columns.

        Args:
            mixed: Columns of the rankers' examinations, in the order of their counts.
        """
        table, apart = self.table, self.apart
        segment = literal(WHOLE)
        if apart is not None and table.period is not None:
            segment = f"CAST({_write_sql(table.period)} AS VARCHAR)"
        labels = " ".join(
            f"WHEN {literal(i)} THEN {identifier(c)}"
            for i, c in zip(self.counts, mixed, strict=True)
        )
        columns = dict.fromkeys([*self.clicks.ranks, *self.clicks.ranks.values()])
        listed = ", ".join(map(identifier, [*columns, self.clicks.position]))
        total = sum(self.counts.values())
        shares = ", ".join(
            f"{n / total!r} AS share_{k}" for k, n in enumerate(self.counts.values())
        )
        source = f"""
SELECT {segment} AS segment, CAST({_write_sql(table.logger)} AS VARCHAR) AS logger,
    CAST({_write_sql(table.reward)} AS DOUBLE) AS reward,
    {_write_sql(table.cluster)} AS unit, {listed}
FROM {_write_sql(table.relation)}"""
        if apart is not None and table.period is not None:
            counted = ", ".join(
                f"count_if(logger = {literal(i)}) / count(*) AS share_{k}"
                for k, i in enumerate(self.counts)
            )
            joined = f"""
SELECT * FROM ({source}) JOIN (
    SELECT segment, {counted} FROM ({source}) GROUP BY segment
) USING (segment)"""
        else:
            joined = f"SELECT *, {shares} FROM ({source})"
        mixture = " + ".join(f"share_{k} * {identifier(c)}" for k, c in enumerate(mixed))
        return (
            f"SELECT *, CASE logger {labels} END AS own, {mixture} AS mixture FROM ({joined})"
        )

    def ask(self, text: str) -> list[dict[str, Any]]:
        """Run a query on the view of the log, and return its lines."""
        lines: list[dict[str, Any]] = read_table(self.connection, text).to_pylist()
        return lines


def predict(
    place: int,
    rows: FloatArray,
    earned: FloatArray,
    predicted: FloatArray,
    totals: FloatArray,
    changes: FloatArray,
) -> Predicted:
    """Return both sides of one ranker, and their values without each bucket.

    Args:
        place: Place of the ranker.
        rows: Rows of each bucket and ranker.
        earned: Its clicks on items of others, by bucket and ranker.
        predicted: Weighted clicks of the others, likewise.
        totals: Weights and squared weights, shown and supported items, by ranker.
        changes: Change of the prediction by that of the curve, by bucket.
    """
    counts = rows.sum(axis=0)
    share = counts / (counts.sum() - counts[place])
    share[place] = 0.0
    left = np.where(rows < counts, counts - rows, math.inf)  # all rows in a bucket stay
    own = predicted.sum(axis=0)
    without = np.where(np.isinf(left), own / counts, (own - predicted) / left) @ share
    total = earned[:, place].sum()
    rest = np.where(
        np.isinf(left[:, place]),
        total / counts[place],
        (total - earned[:, place]) / left[:, place],
    )
    weight, square, shown, supported = totals.sum(axis=1)
    return Predicted(
        predicted=float(own / counts @ share),
        earned=float(total / counts[place]),
        without=np.column_stack([without + changes, rest]),
        rows=rows.sum(axis=1),
        supported=supported / shown if shown else 0.0,
        effective=weight**2 / square if square else 0.0,
    )


def _segment(stratum: Stratum) -> str:
    return stratum.period if isinstance(stratum, Cell) else WHOLE


def change_buckets(
    buckets: list[dict[Stratum, Moments]],
    pool: Pool,
    strata: Sequence[Stratum],
    changes: Mapping[Stratum, FloatArray],
    place: int,
) -> None:
    """Change the means of one term in buckets, so that leaving a bucket out has the changes.

    A stratum without rows in a bucket cannot change with it; the others take its part, so
    that the mean over all rows changes as it should.  The mean of a stratum without a bucket
    is that of its other buckets, so their changes add up to the one that is wanted.
    """
    rows = {i: pool[i].count for i in strata}
    wanted: dict[Stratum, dict[int, float]] = {i: {} for i in strata}
    for b, bucket in enumerate(buckets):
        present = [i for i in strata if i in bucket and bucket[i].count < rows[i]]
        absent = sum(rows[i] * changes[i][b] for i in strata if i not in present)
        for i in present:
            taken = absent / sum(rows[j] for j in present)
            wanted[i][b] = (rows[i] - bucket[i].count) * (changes[i][b] + taken)
    for i, of_bucket in wanted.items():
        total = sum(of_bucket.values()) / max(1, len(of_bucket) - 1)
        for b, change in of_bucket.items():
            moments = buckets[b][i]
            means = moments.means.copy()
            means[place] += (total - change) / moments.count
            buckets[b][i] = replace(moments, means=means)


def lookup(rank: str, numbers: FloatArray) -> str:
    """Return SQL of the number of a rank, 0 for rank 0."""
    listed = ", ".join(f"{number!r}" for number in numbers.tolist())
    return f"coalesce(([{listed}]::DOUBLE[])[{rank}], 0e0)"


def _write_sql(expression: Expression | None) -> str:
    return "NULL" if expression is None else expression.sql(dialect="duckdb")
