"""Open Bandit Dataset: a real log of which only own propensities are known.

Two policies chose fashion items on a shop's page: `random`, and `bts` (Thompson
sampling).  The question has a known answer: what does the random policy earn?  Its own
log says it, up to chance.  The log of bts must say the same when it is weighted, which
makes a test of everything: propensities, overlap, intervals.

The probabilities of bts for items that `random` showed are not in the data, so that the
mixture of the two must be estimated: a tree learns which of them wrote a row, from item
and position.

Run: python docs/examples/open_bandit.py
It reads obd_small.parquet from the folder that POOLWISE_DATA names: the small version of
the data (Saito et al., 2020) as one table with the columns campaign, logger, timestamp,
item_id, position, click and propensity_score.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sklearn.tree import DecisionTreeClassifier

import poolwise as pw
from poolwise.paper.datasets import data_folder

if TYPE_CHECKING:
    from poolwise.evaluation.results import TargetResult

ITEMS = {"all": 80, "men": 34, "women": 46}


def main() -> None:
    """Print, for each campaign, what the logs say about the random policy."""
    path = data_folder() / "obd_small.parquet"
    if not path.is_file():
        sys.exit(f"{path} is not there; set POOLWISE_DATA to the folder that has it")
    table = pq.read_table(path)
    print("Clicks per thousand rows of the random policy, with standard errors")
    print(
        f"{'':<10}{'its own log':>15}{'log of bts':>15}{'both, naive':>15}{'both, mixed':>15}"
    )
    for campaign, items in ITEMS.items():
        both = only(table, "campaign", campaign)
        logs = [only(both, "logger", "random"), only(both, "logger", "bts"), both]
        found = [naive(rows, pw.Uniform(items)).estimates["naive"] for rows in logs]
        found.append(mixed(both, pw.Uniform(items)))
        print(f"{campaign:<10}" + "".join(f"{estimate!s:>15}" for estimate in found))

    print("\nWhat the weights of the log of bts are worth:")
    for campaign, items in ITEMS.items():
        rows = only(only(table, "campaign", campaign), "logger", "bts")
        overlap = naive(rows, pw.Uniform(items)).loggers["bts"]
        print(
            f"  {campaign:<7}{overlap.effective_rows:>7.0f} effective rows of {len(rows):,}, "
            f"largest weight {overlap.largest_weight:,.1f}"
        )


def only(table: pa.Table, column: str, value: str) -> pa.Table:
    """Rows with this value."""
    return table.filter(pc.equal(table[column], value))


def naive(rows: pa.Table, target: pw.Policy) -> TargetResult:
    """The naive estimate, which asks for own propensities only."""
    log = pw.Log(rows, logger="logger", reward="1000 * click", propensity="propensity_score")
    return pw.evaluate(log, target, "naive")["target"]


def mixed(rows: pa.Table, random: pw.Uniform) -> pw.Estimate:
    """The calibrated estimate, against a mixture that is estimated where it is unknown."""
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
