"""Open Bandit Dataset: a real log of which only own propensities are known.

Two policies chose fashion items on a shop's page: `random`, and `bts` (Thompson
sampling).  The target is the random policy, whose value is known up to chance: the mean
reward of its own log.  The weighted log of bts must agree with it, which tests
propensities, overlap and intervals together.

The data do not contain the probabilities of bts for the items that `random` showed, so
the mixture of the two must be estimated: a decision tree predicts the logger of a row from
item and position.

Run: python docs/examples/open_bandit.py
It reads obd_small.parquet from the folder that POOLWISE_DATA names: the small version of
the data (Saito et al., 2020) as one table with the columns campaign, logger, timestamp,
item_id, position, click and propensity_score.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sklearn.tree import DecisionTreeClassifier

import poolwise as pw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.evaluation.results import TargetResult

DATA = Path(os.environ.get("POOLWISE_DATA", "../shared/data"))
ITEMS = {"all": 80, "men": 34, "women": 46}


def main() -> None:
    """Print estimates for the random policy, by campaign and log."""
    path = DATA / "obd_small.parquet"
    if not path.is_file():
        sys.exit(f"{path} is not there; set POOLWISE_DATA to the folder that has it")
    table = pq.read_table(path)
    print("Clicks per thousand rows of the random policy, with standard errors")
    names = ("its own log", "log of bts", "both, naive", "both, default", "both, mixed")
    print(" " * 10 + "".join(f"{name:>15}" for name in names))
    for campaign, items in ITEMS.items():
        both = only(table, "campaign", campaign)
        logs = [only(both, "logger", "random"), only(both, "logger", "bts"), both]
        found = [naive(rows, pw.Uniform(items)).estimates["naive"] for rows in logs]
        found.append(by_default(both, pw.Uniform(items)))
        found.append(mixed(both, pw.Uniform(items)))
        print(f"{campaign:<10}" + "".join(f"{estimate!s:>15}" for estimate in found))

    print("\nEffective sample size of the log of bts:")
    for campaign, items in ITEMS.items():
        rows = only(only(table, "campaign", campaign), "logger", "bts")
        overlap = naive(rows, pw.Uniform(items)).loggers["bts"]
        print(
            f"  {campaign:<7}{overlap.effective_rows:>7.0f} effective rows of {len(rows):,}, "
            f"largest weight {overlap.largest_weight:,.1f}"
        )

    log = own_log(only(table, "campaign", "men"), action="item_id", context=["position"])
    print(f"\nLearned from the campaign for men:\n{pw.learn(log).sentence}")


def only(table: pa.Table, column: str, value: str) -> pa.Table:
    """Return the rows with this value."""
    return table.filter(pc.equal(table[column], value))


def naive(rows: pa.Table, target: pw.Policy) -> TargetResult:
    """Return the naive estimate, which needs own propensities only."""
    return pw.evaluate(own_log(rows), target, "naive")["target"]


def by_default(rows: pa.Table, target: pw.Policy) -> pw.Estimate:
    """Return the recommended estimate of a log with own propensities only."""
    result = pw.evaluate(own_log(rows), target)["target"]
    return result.estimates[result.recommended]


def own_log(rows: pa.Table, action: str | None = None, context: Sequence[str] = ()) -> pw.Log:
    """Return the log of rows with the propensity of their own logger."""
    return pw.Log(
        rows,
        logger="logger",
        action=action,
        context=context,
        reward="1000 * click",
        propensity="propensity_score",
    )


def mixed(rows: pa.Table, random: pw.Uniform) -> pw.Estimate:
    """Return the calibrated estimate, with the unknown part of the mixture estimated."""
    log = pw.Log(
        rows,
        logger="logger",
        action="item_id",
        reward="1000 * click",
        propensity="propensity_score",
        propensities={"random": random, "bts": None},
        context=["position"],
        estimate_mixture=DecisionTreeClassifier(min_samples_leaf=100, random_state=0),
    )
    (estimate,) = pw.evaluate(log, random, "calibrated")["target"].estimates.values()
    return estimate


if __name__ == "__main__":
    main()
