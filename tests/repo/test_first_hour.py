"""The first hour: whoever follows the README with any of seven kinds of logs finds the truth.

Each test writes the log of a problem whose truth is known, and runs the line that the README
shows for it.
"""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.formats.clicks import search_log, search_truth

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolwise.types import FloatArray

README = Path(__file__).parents[2] / "README.md"
ITEMS = ("a", "b")
DEVICES = ("phone", "laptop")
SHOWS_B = {"v1": (0.2, 0.5), "v2": (0.6, 0.7), "new": (0.9, 0.1)}  # on each device
CLICKS = ((0.10, 0.30), (0.25, 0.15))  # of each item, on each device
TRUTH = sum(
    p * CLICKS[k][1] + (1 - p) * CLICKS[k][0] for k, p in enumerate(SHOWS_B["new"])
) / len(DEVICES)


def make_policy(name: str) -> Callable[[pw.Batch], FloatArray]:
    """The code of a policy: the probability of the item that was shown."""

    def probability(batch: pw.Batch) -> FloatArray:
        b = np.where(batch["device"] == DEVICES[0], *SHOWS_B[name])
        return np.where(batch.action == "b", b, 1 - b)

    return probability


def write_rows(path: Path, *, bare: bool = False) -> None:
    """Write two versions of a policy, with everything that a log may hold."""
    rng = np.random.default_rng(4)
    device = rng.integers(2, size=8_000)
    version = np.repeat(["v1", "v2"], 4_000)
    shows = {name: np.array(p)[device] for name, p in SHOWS_B.items()}
    own = np.where(version == "v1", shows["v1"], shows["v2"])
    b = rng.random(8_000) < own
    columns: dict[str, Any] = {
        "policy": version,
        "device": np.array(DEVICES)[device],
        "item": np.array(ITEMS)[b.astype(int)],
        "click": (rng.random(8_000) < np.array(CLICKS)[device, b.astype(int)]).astype(int),
    }
    if not bare:
        columns["p"] = np.where(b, own, 1 - own)
        columns |= {f"p_{name}": np.where(b, p, 1 - p) for name, p in shows.items()}
        for name, p in (("probs", own), ("probs_new", shows["new"])):
            columns[name] = [{"a": 1 - q, "b": q} for q in p.tolist()]
    pq.write_table(pa.table(columns), path)


def write_lists(path: Path) -> float:
    """Write lists of two of three items, and return the clicks per request of a new policy."""
    worth = {"v1": (3, 2, 1), "v2": (1, 1, 1), "new": (1, 2, 5)}
    attractive, lists = (0.2, 0.3, 0.6), list(permutations(range(3), 2))

    def steps(name: str, first: int, second: int) -> tuple[float, float]:
        left = sum(worth[name])
        return worth[name][first] / left, worth[name][second] / (left - worth[name][first])

    rng, rows = np.random.default_rng(8), []
    for request in range(4_000):
        version = "v1" if request < 2_500 else "v2"
        shown = lists[rng.choice(6, p=[np.prod(steps(version, *items)) for items in lists])]
        each = {f"p_{name}": steps(name, *shown) for name in worth}
        for k, item in enumerate(shown):
            row = {"request": request, "position": k + 1, "policy": version}
            row["click"] = int(rng.random() < attractive[item])
            rows.append(row | {name: p[k] for name, p in each.items()})
    pq.write_table(pa.Table.from_pylist(rows), path)
    return float(
        sum(np.prod(steps("new", *x)) * (attractive[x[0]] + attractive[x[1]]) for x in lists)
    )


def write_clicks(path: Path) -> float:
    """Write the bundled log of clicks, with the name of the README for the new ranker."""
    table = pq.read_table(search_log())
    names = ["rank_new" if n == "rank_candidate" else n for n in table.column_names]
    pq.write_table(table.rename_columns(names), path)
    return search_truth()["candidate"]


def read_lines() -> dict[str, tuple[str, str]]:
    """The line and the new policy of each kind of log in the README."""
    part = (
        README.read_text("utf-8").partition("## Start from your log")[2].partition("\n## ")[0]
    )
    lines = re.findall(r"^\| (.*?) \| `(log.*)` \| (?:`(.*)` )?\|$", part, re.MULTILINE)
    return {re.sub(r"\]\([^)]*\)|\[", "", kind): (line, new) for kind, line, new in lines}


KINDS = {
    "the probability of their own action": "rows",
    "its probability under every policy": "rows",
    "a distribution (map, struct, JSON)": "rows",
    "contexts, and you have the code of old policies": "bare",
    "lists with probabilities": "lists",
    "clicks on lists of deterministic rankers": "clicks",
    "no probability at all": "bare",
}


def test_the_readme_has_a_line_for_each_kind_of_log() -> None:
    assert list(read_lines()) == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_line_of_the_readme_finds_the_truth(kind: str, tmp_path: Path) -> None:
    files, truth = tmp_path / "log.parquet", TRUTH
    if KINDS[kind] == "lists":
        truth = write_lists(files)
    elif KINDS[kind] == "clicks":
        truth = write_clicks(files)
    else:
        write_rows(files, bare=KINDS[kind] == "bare")
    line, new = read_lines()[kind]
    names: dict[str, Any] = {"pw": pw, "files": files, "new": make_policy("new")}
    names |= {"old": make_policy("v1"), "newer": make_policy("v2")}
    exec(line, names)  # noqa: S102 - a line of our README
    targets = names.get("targets") or {"new": eval(new, names)}  # noqa: S307 - likewise
    evaluation = pw.evaluate(names["log"], targets)
    result = evaluation["new"]
    estimate, interval = (
        result.estimates[result.recommended],
        result.intervals[result.recommended],
    )
    assert truth in interval
    assert interval.upper - interval.lower < 0.25 * truth
    assert abs(estimate.value - truth) < 2.5 * estimate.std_error
    alarms = {w["code"] for w in evaluation.warnings if w["severity"] == "alarm"}
    expected = {"propensities-estimated"} if kind == "no probability at all" else set()
    assert alarms == expected
