"""Rankings by scores, and requests as rows with lists, against enumeration.

Three items are drawn without replacement in proportion to whole numbers, two or three of them.
A log of 60 and 180 requests holds every list exactly as often as it is probable: its averages
*are* expectations.
"""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.errors import LogError, MissingColumnError, PolicyError, UsageError
from poolwise.log.plackett_luce import marginals
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from poolwise.formats.lists import Model
    from poolwise.formats.rankings import RankingLog

pytestmark = pytest.mark.slow  # all of them together take seconds
ITEMS = ("a", "b", "c")
WORTH = {"old": (3, 2, 1), "new": (1, 1, 1), "target": (1, 2, 3)}
REQUESTS = {"old": 60, "new": 180}
ALL = ("naive", "balanced", "weighted", "calibrated", "self-normalised")
MODELS: tuple[Model, ...] = ("cascade", "independent", "whole")


def steps(policy: str, items: tuple[str, ...]) -> list[Fraction]:
    """Probability of each item, given those above it."""
    worth = dict(zip(ITEMS, WORTH[policy], strict=True))
    found = []
    for item in items:
        found.append(Fraction(worth[item], sum(worth.values())))
        del worth[item]
    return found


def chance(policy: str, items: tuple[str, ...]) -> Fraction:
    return math.prod(steps(policy, items), start=Fraction(1))


def part(policy: str, items: tuple[str, ...], k: int, model: str) -> Fraction:
    """Probability of what the reward at position k depends on, by enumeration of all lists."""
    lists = permutations(ITEMS, len(items))
    same: Mapping[str, Callable[[tuple[str, ...]], bool]] = {
        "cascade": lambda other: other[: k + 1] == items[: k + 1],
        "independent": lambda other: other[k] == items[k],
        "whole": lambda other: other == items,
    }
    return sum((chance(policy, other) for other in lists if same[model](other)), Fraction(0))


def reward(items: tuple[str, ...], k: int, model: str) -> int:
    own = {"a": 3, "b": 1, "c": 5}[items[k]] * (k + 1)
    above = {"a": 0, "b": 2, "c": 1}[items[max(k - 1, 0)]] * k
    below = {"a": 4, "b": 0, "c": 1}[items[-1]]
    return own + (above if model != "independent" else 0) + (below if model == "whole" else 0)


def value(model: str, size: int = 2) -> Fraction:
    lists = [*permutations(ITEMS, size)]
    earned = {items: sum(reward(items, k, model) for k in range(size)) for items in lists}
    return sum((chance("target", items) * earned[items] for items in lists), Fraction(0))


def requests(model: str = "cascade", size: int = 2) -> list[dict[str, Any]]:
    """One row per request: every list exactly as often as its logger plays it."""
    rows: list[dict[str, Any]] = []
    for logger, count in REQUESTS.items():
        for items in permutations(ITEMS, size):
            times = count * chance(logger, items)
            assert times.denominator == 1
            for copy in range(int(times)):
                scores = {p: [math.log(w) for w in worth] for p, worth in WORTH.items()}
                rows.append(
                    {
                        "request": f"{logger}-{items}-{copy}",
                        "policy": logger,
                        "items": list(items),
                        "position": [k + 1 for k in range(size)],
                        "clicks": [reward(items, k, model) for k in range(size)],
                        "candidates": list(ITEMS),
                        "s_old": scores["old"],
                        "s_new": dict(zip(ITEMS, scores["new"], strict=True)),
                        "s_target": json.dumps(dict(zip(ITEMS, scores["target"], strict=True))),
                        **{
                            f"p_{p}": [float(part(p, items, k, model)) for k in range(size)]
                            if model == "independent"
                            else [float(x) for x in steps(p, items)]
                            for p in WORTH
                        },
                    }
                )
    return rows


def long_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per request and position."""
    entries = ("items", "position", "clicks", *(f"p_{p}" for p in WORTH))
    return [
        {name: v[k] if name in entries else v for name, v in row.items()}
        for row in rows
        for k in range(len(row["items"]))
    ]


BY_SCORES: dict[str, Any] = {
    "propensities": {"old": pw.PlackettLuce("s_old"), "new": pw.PlackettLuce("s_new")},
    "action": "items",
    "eligible": "candidates",
}


def read(source: object, model: Model = "cascade", **options: Any) -> RankingLog:  # noqa: ANN401
    roles = {
        "targets": {"best": pw.PlackettLuce("s_target")},
        "request": "request",
        "position": "position",
        "logger": "policy",
        "reward": "clicks",
        **BY_SCORES,
    }
    return pw.ranking_log(source, model=model, **{**roles, **options})


def table_of(log: pw.Log) -> pa.Table:
    """Return the rows of a log that is in memory."""
    assert isinstance(log.source, pa.Table)
    return log.source


def values(found: RankingLog) -> dict[str, float]:
    result = pw.evaluate(found.log, found.targets, ALL)["best"]
    return {name: estimate.value for name, estimate in result.estimates.items()}


# -- expectations --------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("shape", ["wide", "long"])
def test_scores_give_the_value_of_a_request(model: Model, size: int, shape: str) -> None:
    rows = requests(model, size)
    table = pa.Table.from_pylist(rows if shape == "wide" else long_rows(rows))
    expected = dict.fromkeys(ALL, float(value(model, size)))
    assert values(read(table, model)) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("model", MODELS)
def test_lists_of_probabilities_give_the_value_of_a_request(model: Model) -> None:
    table = pa.Table.from_pylist(requests(model))
    named: dict[str, Any] = {"targets": {"best": "p_target"}, "propensities": "p_{logger}"}
    named |= {"action": None, "eligible": None}
    expected = dict.fromkeys(ALL, float(value(model)))
    assert values(read(table, model, **named)) == pytest.approx(expected, rel=1e-12)
    assert values(read(table, model, **{**named, "position": None})) == pytest.approx(expected)


def test_scores_and_probabilities_may_be_mixed() -> None:
    table = pa.Table.from_pylist(requests())
    scores = dict(zip(ITEMS, (math.log(w) for w in WORTH["target"]), strict=True))
    found = read(
        table,
        targets={"best": "p_target", "same": pw.PlackettLuce(scores)},
        propensities={"old": "p_old", "new": pw.PlackettLuce("s_new")},
    )
    results = pw.evaluate(found.log, found.targets)
    for name in ("best", "same"):
        for estimate in results[name].estimates.values():
            assert estimate.value == pytest.approx(float(value("cascade")), rel=1e-11)


def test_logarithms_and_own_scores() -> None:
    table = pa.Table.from_pylist(requests())
    found = values(read(table, log_probabilities=True))
    assert found == pytest.approx(dict.fromkeys(ALL, float(value("cascade"))), rel=1e-11)
    rows = requests()
    for row in rows:
        known = dict(zip(ITEMS, row["s_old"], strict=True))
        row["own"] = json.dumps(known if row["policy"] == "old" else row["s_new"])
    log, targets = read(
        pa.Table.from_pylist(rows), propensities=None, propensity=pw.PlackettLuce("own")
    )
    naive = pw.evaluate(log, targets, "naive")["best"].estimates["naive"]
    assert naive.value == pytest.approx(float(value("cascade")), rel=1e-11)


def test_a_temperature_divides_scores() -> None:
    rows = requests()
    for row in rows:
        scores = json.loads(row["s_target"])
        row["s_target"] = json.dumps({k: 0.25 * v for k, v in scores.items()})
    target = {"best": pw.PlackettLuce("s_target", temperature=0.25)}
    found = values(read(pa.Table.from_pylist(rows), targets=target))
    assert found == pytest.approx(dict.fromkeys(ALL, float(value("cascade"))), rel=1e-11)


def test_only_eligible_items_are_candidates() -> None:
    """A request where one item is out of stock: the others share its probability."""
    rows = requests()
    table = pa.Table.from_pylist(
        [
            {**rows[0], "request": "x", "items": ["c"], "position": [1], "clicks": [1.0]}
            | {"candidates": ["c", "b"], "s_old": [0.0, math.log(3)]}
            | {f"p_{p}": [0.5] for p in WORTH}
        ]
    )
    log, _ = read(table, propensities={"old": pw.PlackettLuce("s_old")})
    row = table_of(log).to_pylist()[0]
    assert math.exp(row["propensity_0"]) == pytest.approx(1 / 4)
    assert math.exp(row["target_0"]) == pytest.approx(3 / 5)


def test_scores_that_differ_by_hundreds_lose_no_digits() -> None:
    scores = {"a": 800.0, "b": 0.0, "c": -1.0}
    rows = [
        {"request": 1, "position": k + 1, "items": item, "clicks": 1.0}
        for k, item in enumerate("abc")
    ]
    policy = pw.PlackettLuce(scores)
    for model in MODELS:
        log, _ = read(
            pa.Table.from_pylist(rows),
            model,
            targets={"best": policy},
            propensities=None,
            propensity=policy,
            logger=None,
            eligible=None,
            log_probabilities=True,
        )
        last = math.exp(table_of(log).to_pylist()[-1]["target_0"])
        assert last == pytest.approx(1 / (1 + math.exp(-1)), rel=1e-12)


@pytest.mark.parametrize("scale", [0.5, 4.0, 25.0])
@pytest.mark.parametrize("size", [2, 5, 6])
def test_marginals_are_those_of_enumeration(scale: float, size: int) -> None:
    scores = np.random.default_rng(size).normal(scale=scale, size=size)
    worth = np.exp(scores - scores.max())
    exact = np.zeros((size, size))
    for order in permutations(range(size)):
        left, listed = [*range(size)], 1.0
        for first in order:
            listed *= worth[first] / worth[left].sum()
            left.remove(first)
        exact[np.array(order), np.arange(size)] += listed
    item, place = map(np.ravel, np.indices((size, size)))
    padded = np.full((size * size, size + 3), -np.inf)
    padded[:, :size] = scores
    found = marginals(padded, item, place + 1).reshape(size, size)
    assert np.abs(found - exact).max() < 1e-12
    assert np.abs(found / exact - 1)[exact > 1e-9].max() < 1e-9


def test_marginals_of_many_candidates_sum_to_1() -> None:
    scores = np.random.default_rng(2).normal(scale=3, size=40)
    by_item = marginals(np.tile(scores, (40, 1)), np.arange(40), np.full(40, 7))
    assert by_item.sum() == pytest.approx(1, abs=1e-12)
    by_place = marginals(np.tile(scores, (40, 1)), np.full(40, 3), np.arange(1, 41))
    assert by_place.sum() == pytest.approx(1, abs=1e-12)


# -- sources -------------------------------------------------------------------------------


def _parquet(rows: list[dict[str, Any]], folder: Path) -> object:
    for logger in REQUESTS:
        part_of = [row for row in rows if row["policy"] == logger]
        pq.write_table(pa.Table.from_pylist(part_of), folder / f"it's {logger}.parquet")
    return str(folder / "*.parquet")


def _select(rows: list[dict[str, Any]], folder: Path) -> object:
    pq.write_table(pa.Table.from_pylist(rows), folder / "log.parquet")
    return f"SELECT * FROM '{folder}/log.parquet' -- all\n;"


def _json(rows: list[dict[str, Any]], folder: Path) -> object:
    path = folder / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def _csv(rows: list[dict[str, Any]], folder: Path) -> object:
    """CSV has no lists, so it has one row per position, and scores are JSON."""
    texts = [
        {
            **{k: v for k, v in row.items() if k != "candidates"},
            "s_new": json.dumps(row["s_new"]),
            "s_old": json.dumps(dict(zip(ITEMS, row["s_old"], strict=True))),
        }
        for row in long_rows(rows)
    ]
    pa.csv.write_csv(pa.Table.from_pylist(texts), folder / "log.csv")
    return folder / "log.csv"


def _mapping(rows: list[dict[str, Any]], folder: Path) -> object:
    parts = {}
    for logger in REQUESTS:
        table = pa.Table.from_pylist([row for row in rows if row["policy"] == logger])
        pq.write_table(table.drop_columns("policy"), folder / f"{logger}.parquet")
        parts[logger] = str(folder / f"{logger}.parquet")
    return parts


SOURCES: Mapping[str, Callable[[list[dict[str, Any]], Path], object]] = {
    "files": _parquet,
    "select": _select,
    "json": _json,
    "csv": _csv,
    "mapping": _mapping,
    "dictionaries": lambda rows, _: rows,
    "pandas": lambda rows, _: pa.Table.from_pylist(rows).to_pandas(),
    "polars": lambda rows, _: pl.from_arrow(pa.Table.from_pylist(rows)),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("model", ["cascade", "independent"])
def test_every_source_gives_the_same(source: str, model: Model, tmp_path: Path) -> None:
    given = SOURCES[source](requests(model), tmp_path)
    options: dict[str, Any] = {"csv": {"eligible": None}, "mapping": {"logger": None}}
    found = read(given, model, **options.get(source, {}))
    assert values(found) == pytest.approx(dict.fromkeys(ALL, float(value(model))), rel=1e-11)
    lazy = source in {"files", "select", "mapping"} and model == "cascade"
    assert isinstance(found.log.source, str) == lazy


def test_arrays_of_a_fixed_length_are_lists() -> None:
    table = pa.Table.from_pylist(requests())
    for name in ("clicks", "s_old", "p_old"):
        kind = pa.list_(table.schema.field(name).type.value_type, 3 if name == "s_old" else 2)
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[name].cast(kind))
    assert values(read(table))["balanced"] == pytest.approx(float(value("cascade")), rel=1e-11)


def test_a_reward_of_the_request_counts_once() -> None:
    rows = requests("whole")
    for row in rows:
        row["clicks"] = sum(row["clicks"])
    table = pa.Table.from_pylist(rows)
    expected = dict.fromkeys(ALL, float(value("whole")))
    assert values(read(table, "cascade")) == pytest.approx(expected, rel=1e-11)
    assert values(read(table, "whole")) == pytest.approx(expected, rel=1e-11)
    with refused(UsageError):
        read(table, "independent")


def test_other_columns_are_kept() -> None:
    rows = [{**row, "device": "phone"} for row in requests()]
    log, targets = read(pa.Table.from_pylist(rows))
    assert {"device", "candidates", "items"} <= set(table_of(log).column_names)
    assert not [n for n in table_of(log).column_names if n.startswith(("poolwise", "s_"))]
    found = pw.evaluate(log, targets, "balanced", by="position").segments
    assert found is not None
    total = sum(result.estimate.value for result in found.results if result.estimate)
    assert total == pytest.approx(float(value("cascade")), rel=1e-11)


# -- what is refused -----------------------------------------------------------------------

LISTS: tuple[dict[str, Any], ...] = (
    {"clicks": []},
    {"clicks": None},
    {"clicks": [1]},
    {"items": ["a", "b", "c"]},
    {"position": [1, 3]},
    {"position": [1, None]},
    {"items": ["a", None]},
    {"items": ["a", "a"]},
    {"items": ["a", "z"]},
    {"s_old": [0.0, 1.0]},
    {"s_old": [0.0, 1.0, None]},
    {"s_old": [0.0, 1.0, math.inf]},
    {"s_old": None},
    {"candidates": ["a", "b", "b"]},
    {"candidates": ["a", "c", "d"]},
    {"s_target": "none"},
    {"s_target": '{"a": "high"}'},
    {"s_target": "{}"},
)


@pytest.mark.parametrize("changes", LISTS, ids=str)
def test_broken_lists_are_one_message(changes: dict[str, Any]) -> None:
    rows = requests()
    rows[5] |= changes
    with refused(LogError) as caught:
        read(pa.Table.from_pylist(rows))
    assert sum(fault.rows for fault in caught.value.faults) > 0


def test_arguments_that_lack_something_are_one_message() -> None:
    table = pa.Table.from_pylist(requests())
    with refused(UsageError):
        read(table, action=None)
    with refused(UsageError):
        read(table, eligible=None)
    with refused(MissingColumnError):
        read(table, targets={"best": pw.PlackettLuce("s_targt")})
    with refused(MissingColumnError):
        read(table, action="item", eligible="stock", request="id")
    with refused(UsageError):
        read(pa.Table.from_pylist(long_rows(requests())), position=None)
    with refused(UsageError):
        read(table, targets={"best": pw.Uniform(3)})
    with refused(UsageError):
        pw.evaluate(pw.Log(table, reward="1", propensity="1"), pw.PlackettLuce("s_old"))  # type: ignore[arg-type]


@pytest.mark.parametrize("scores", [{}, {"a": math.nan}, {"a": "b"}, 3.0, ["s"]], ids=str)
def test_other_scores_are_refused(scores: Any) -> None:  # noqa: ANN401
    with refused(PolicyError):
        pw.PlackettLuce(scores)


def test_a_temperature_is_above_0() -> None:
    with refused(PolicyError):
        pw.PlackettLuce("s", temperature=0)
