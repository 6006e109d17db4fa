"""A catalogue of 50,000 items: what a new recommender would earn with items that no row has.

Two versions of a recommender logged requests. Each request has 40 candidates of eight
categories; the new version also plays four new items of the same categories, a tenth of the
time, and prefers good items within a category. Clicks depend on the category of an item and
the taste of the request; in a second log they also depend on the item. The true value is
known, because the script makes the log.

Run: python docs/examples/catalogue.py [folder, which keeps the files]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import poolwise as pw

ITEMS, NEW, CATEGORIES = 50_000, 5_000, 200
REQUESTS, SHOWN, PER_CATEGORY, NEW_SHOWN = 20_000, 8, 5, 4
NEW_SHARE = 0.1  # of what the new version plays


def write_log(folder: Path, effect: float = 0.0, seed: int = 1) -> float:
    """Write requests.parquet and categories.json, and return the value of the new version.

    Args:
        folder: Folder of the files.
        effect: Standard deviation of the effect of an item on its chance of a click.
        seed: Seed of everything.
    """
    rng = np.random.default_rng(seed)
    category = np.arange(ITEMS) % CATEGORIES
    members = np.arange(ITEMS - NEW).reshape(-1, CATEGORIES)  # old items of each category
    added = np.arange(ITEMS - NEW, ITEMS).reshape(-1, CATEGORIES)
    base, good = rng.uniform(0.05, 0.6, CATEGORIES), rng.normal(size=ITEMS)
    own = effect * good

    chosen = np.argsort(rng.random((REQUESTS, CATEGORIES)), axis=1)[:, :SHOWN]
    picked = rng.integers(0, len(members), (REQUESTS, SHOWN, PER_CATEGORY))
    old = members[picked, chosen[:, :, None]].reshape(REQUESTS, -1)
    fresh = added[rng.integers(0, len(added), (REQUESTS, NEW_SHOWN)), chosen[:, :NEW_SHOWN]]
    items = np.hstack([old, fresh])

    taste = rng.normal(size=(REQUESTS, CATEGORIES))
    liked = np.take_along_axis(taste, category[items], axis=1)
    chance = np.clip(base[category[items]] * np.exp(0.4 * liked - 0.1) + own[items], 0, 1)
    policies = {
        name: np.hstack(
            [_softmax(sharp * liked[:, : old.shape[1]], rng), np.zeros(fresh.shape)]
        )
        for name, sharp in (("v1", 0.2), ("v2", 0.6))
    }
    new = _softmax(liked[:, : old.shape[1]] + 0.5 * good[old], rng)
    share = np.full(fresh.shape, NEW_SHARE / NEW_SHOWN)
    policies["new"] = np.hstack([(1 - NEW_SHARE) * new, share])

    version = np.where(np.arange(REQUESTS) % 4 < 3, "v1", "v2")
    played = np.where((version == "v1")[:, None], policies["v1"], policies["v2"])
    place = (rng.random((REQUESTS, 1)) < played.cumsum(axis=1)).argmax(axis=1)
    rows = np.arange(REQUESTS)
    columns = {
        "request": rows,
        "version": version,
        "candidates": list(items),
        "item": items[rows, place],
        "clicked": (rng.random(REQUESTS) < chance[rows, place]).astype(np.int64),
        **{f"p_{name}": list(chances) for name, chances in policies.items()},
        # predictions of a click model, which knows the items but not the level of a category
        "predicted": own[items[rows, place]],
        "predicted_new": (policies["new"] * own[items]).sum(axis=1),
    }
    pq.write_table(pa.table(columns), folder / "requests.parquet")
    groups = {str(item): f"category {k}" for item, k in enumerate(category.tolist())}
    (folder / "categories.json").write_text(json.dumps(groups), encoding="utf-8")
    return float((policies["new"] * chance).sum(axis=1).mean())


def _softmax(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    odds = np.exp(scores + 0.5 * rng.normal(size=scores.shape))
    return odds / odds.sum(axis=1, keepdims=True)


def main(folder: Path) -> None:
    """Print the value of the new version, and what is estimated without and with groups."""
    for effect in (0.0, 0.05):
        truth = write_log(folder, effect)
        groups = json.loads((folder / "categories.json").read_text("utf-8"))
        print(f"\nEffect of an item {effect:g}: the new version earns {truth:.4f} per request")
        model = pw.GivenModel("predicted", "predicted_new")
        for name, group, given in (
            ("actions", None, None),
            ("groups", groups, None),
            ("groups and a model", groups, model),
        ):
            log = pw.Log(
                folder / "requests.parquet",
                reward="clicked",
                logger="version",
                action="item",
                eligible="candidates",
                propensities="p_{logger}",
                action_group=group,
            )
            found = pw.evaluate(log, {"new": "p_new"}, model=given)["new"]
            kind = "calibrated" if given is None else "doubly-robust"
            estimate, interval = found.estimates[kind], found.intervals[kind]
            limits = f"[{interval.lower:.4f}, {interval.upper:.4f}]"
            print(f"{name:<20}{kind:<15}{estimate.value:.4f} {limits}")
            for finding in found.findings:
                if finding.severity == "alarm":
                    print(f"    {finding.message}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as place:
            main(Path(place))
