"""A slow, exact reference of click logs: sums over rows, without each bucket in turn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]


def spread(values: FloatArray) -> float:
    """Return the jackknife error of values without each bucket."""
    size = len(values)
    return float(np.sqrt((size - 1) / size * ((values - values.mean()) ** 2).sum()))


@dataclass(frozen=True, eq=False)
class Reference:
    """Shown items with a bucket for each request.

    Attributes:
        rows: Columns request, ranker, position, click, bucket and `rank_` of each policy.
        rankers: Labels of the rankers.
        theta: Examination of each position; None to fit it.
        worth: What a click at each position counts; None for 1 each.
    """

    rows: pd.DataFrame
    rankers: Sequence[str]
    theta: Sequence[float] | None = None
    worth: Sequence[float] | None = None

    @cached_property
    def requests(self) -> dict[str, int]:
        return {i: self.rows[self.rows.ranker == i].request.nunique() for i in self.rankers}

    @cached_property
    def buckets(self) -> list[int]:
        return sorted(self.rows.bucket.unique())

    @property
    def last(self) -> int:
        return int(self.rows.position.max())

    def _sums(self) -> FloatArray:
        sums = np.zeros((len(self.buckets), self.last, self.last))
        for row in self.rows[self.rows.click == 1].to_dict("records"):
            ranks = {i: row[f"rank_{i}"] for i in self.rankers}
            shown = sum(self.requests[i] for i, r in ranks.items() if r == row["position"])
            for other in {*ranks.values()} - {0, row["position"]}:
                b = self.buckets.index(row["bucket"])
                sums[b, row["position"] - 1, other - 1] += 1 / shown
        return sums

    @cached_property
    def fit(self) -> tuple[FloatArray, FloatArray]:
        """Logarithms of the curve, and without each bucket."""
        if self.theta is not None:
            logs = np.log(np.array(self.theta))
            return logs, np.tile(logs, (len(self.buckets), 1))
        sums = self._sums()
        whole, rest = sums.sum(axis=0), sums.sum(axis=0) - sums
        design, values, without, weights = [], [], [], []
        for k in range(self.last):
            for j in range(k + 1, self.last):
                if min(rest[:, k, j].min(), rest[:, j, k].min()) > 1e-9:
                    left = np.log(rest[:, k, j]) - np.log(rest[:, j, k])
                    design.append(np.eye(self.last)[k] - np.eye(self.last)[j])
                    values.append(np.log(whole[k, j]) - np.log(whole[j, k]))
                    without.append(left)
                    weights.append(1 / spread(left))
        scale = np.array(weights)[:, None]
        matrix = np.linalg.pinv(np.array(design)[:, 1:] * scale) * scale.T
        logs = np.append(0.0, matrix @ np.array(values))
        each = matrix @ np.array(without)
        return logs, np.column_stack([np.zeros(len(self.buckets)), each.T])

    def sums(self, logs: FloatArray, target: str) -> FloatArray:
        """Return balanced clicks of each bucket and ranker, with this curve."""
        theta, total = np.append(0.0, np.exp(logs)), sum(self.requests.values())
        worth = np.append(0.0, np.ones(self.last) if self.worth is None else self.worth)
        sums = np.zeros((len(self.buckets), len(self.rankers)))
        for row in self.rows[self.rows.click == 1].to_dict("records"):
            below = sum(n / total * theta[row[f"rank_{i}"]] for i, n in self.requests.items())
            b, i = self.buckets.index(row["bucket"]), self.rankers.index(row["ranker"])
            rank = row[f"rank_{target}"]
            sums[b, i] += worth[rank] * theta[rank] / below
        return sums

    def estimate(self, target: str) -> tuple[float, float, FloatArray]:
        """Return the value, its error, and the values without each bucket."""
        logs, without = self.fit
        sums, total = self.sums(logs, target), sum(self.requests.values())
        counts = np.array(
            [
                [
                    self.rows[
                        (self.rows.bucket == b) & (self.rows.ranker == i)
                    ].request.nunique()
                    for i in self.rankers
                ]
                for b in self.buckets
            ]
        )
        requests = counts.sum(axis=0)
        left = (sums.sum(axis=0) - sums) / (requests - counts) @ requests / total
        step, slopes = 1e-6, np.zeros(self.last)
        for k in range(self.last):  # central differences
            ends = [
                self.sums(logs + sign * step * np.eye(self.last)[k], target).sum()
                for sign in (1, -1)
            ]
            slopes[k] = (ends[0] - ends[1]) / (2 * step) / total
        left = left + (without - logs) @ slopes
        return float(sums.sum() / total), spread(left), left


def as_lists(rows: pd.DataFrame, policies: Sequence[str]) -> pd.DataFrame:
    """Return one row per request: the items that each policy shows, and the clicks.

    Items are numbered by their place in the list; those that were not logged are negative.
    """
    import pandas as pd

    lists = []
    for _, of_request in rows.sort_values("position").groupby("request"):
        line = {k: v for k, v in of_request.iloc[0].items() if not str(k).startswith("rank_")}
        line["click"] = of_request.click.tolist()
        for policy in policies:
            ranks = of_request[f"rank_{policy}"].tolist()
            items = {rank: item for item, rank in enumerate(ranks) if rank}
            line[f"rank_{policy}"] = [items.get(k, -k) for k in range(1, len(ranks) + 1)]
        lists.append(line)
    return pd.DataFrame(lists).drop(columns=["position", "item"], errors="ignore")


def distinct_buckets(names: Sequence[object], buckets: int = 200) -> Mapping[object, str]:
    """Return a text for each name, in buckets of their own."""
    import duckdb

    for salt in range(10_000):
        texts = {name: f"{salt}-{name}" for name in names}
        listed = ", ".join(f"('{text}')" for text in texts.values())
        query = f"SELECT count(DISTINCT hash(v) % {buckets}) FROM (VALUES {listed}) t(v)"
        (line,) = duckdb.execute(query).fetchall()
        if line[0] == len(texts):
            return texts
    raise AssertionError("too many names")
