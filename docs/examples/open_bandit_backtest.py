"""Open Bandit Dataset: predict `random` from the log of `bts`, and `bts` from that of `random`.

Two policies chose fashion items on a shop's page: `random`, and `bts` (Thompson sampling).
Each of them earned clicks, and the other log predicts how many.

The probabilities of `random` are known in all rows.  Those of `bts` are known in its own rows
only; for a row of `random` they are those that `bts` logged for each item at the same
position nearest in time, divided by their sum.  So the prediction of `random` is exact, and
that of `bts` is an approximation, because `bts` learns every few minutes.

Run: python docs/examples/open_bandit_backtest.py
It reads obd_small.parquet from the folder that POOLWISE_DATA names; see open_bandit.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

import poolwise as pw

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATA = Path(os.environ.get("POOLWISE_DATA", "../shared/data"))
ITEMS = {"all": 80, "men": 34, "women": 46}


def main() -> None:
    """Print predicted and earned clicks of both loggers, by campaign."""
    path = DATA / "obd_small.parquet"
    if not path.is_file():
        sys.exit(f"{path} is not there; set POOLWISE_DATA to the folder that has it")
    frame = pd.read_parquet(path)
    print("Clicks per thousand rows: predicted from the other log, and earned")
    for campaign, items in ITEMS.items():
        rows = frame[frame["campaign"] == campaign].reset_index(drop=True)
        found = pw.backtest(crossed(rows, items))
        for p in found.loggers.values():
            predicted = f"{p.predicted:.2f} ± {p.predicted_error:.2f}"
            line = f"{campaign:<7}{p.logger:<8}{predicted:>14} {p.earned:>7.2f}   z {p.z:+.2f}"
            print(f"{line}   {100 * p.supported:.1f}% of its rows")
        print(f"       {found.sentence}")


def crossed(rows: pd.DataFrame, items: int) -> pw.Log:
    """Return the log of a campaign with the probabilities of both loggers in all rows."""
    own = rows["logger"] == "bts"
    bts = np.where(own, rows["propensity_score"], 0.0)
    for position in rows["position"].unique():
        here = rows["position"] == position
        asked = rows[here & ~own]
        bts[here & ~own] = nearest(rows[here & own], asked, items)
    table = rows.assign(bts=bts, random=1 / items)
    return pw.Log(
        table,
        logger="logger",
        reward="1000 * click",
        propensities={"random": "random", "bts": "bts"},
    )


def nearest(logged: pd.DataFrame, asked: pd.DataFrame, items: int) -> NDArray[np.float64]:
    """Return the probability of each asked item, as logged nearest in time."""
    times = asked["timestamp"].to_numpy()
    probs = np.zeros((len(asked), items))
    ordered = logged.sort_values("timestamp")
    for item in range(items):
        of_item = ordered[ordered["item_id"] == item]
        if of_item.empty:
            continue
        known = of_item["timestamp"].to_numpy()
        after = np.searchsorted(known, times).clip(1, max(1, len(known) - 1))
        before = after - 1
        after = after.clip(max=len(known) - 1)
        closer = np.where(times - known[before] <= known[after] - times, before, after)
        probs[:, item] = of_item["propensity_score"].to_numpy()[closer]
    probs /= probs.sum(axis=1, keepdims=True)
    chosen: NDArray[np.float64] = probs[np.arange(len(asked)), asked["item_id"].to_numpy()]
    return chosen


if __name__ == "__main__":
    main()
