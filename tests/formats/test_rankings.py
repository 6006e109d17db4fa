"""Rankings: lists drawn position by position, against enumeration and plain NumPy.

The small problem has two contexts, three items and two positions without replacement.
Its probabilities are fourths, so that a log of 64 and 192 requests can hold every list
exactly as often as it is probable: its averages *are* expectations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from poolwise.errors import EngineError, LogError, MissingColumnError, UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.formats.rankings import RankingLog, ranking_log
from poolwise.log.log import Log
from poolwise.moments.buckets import BUCKETS
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from poolwise.formats.lists import Model

pytestmark = pytest.mark.slow  # all of them together take seconds
FloatArray = NDArray[np.float64]
List = tuple[int, int]
Steps = Callable[[str, int, List], tuple[Fraction, Fraction]]
Rewards = Callable[[int, List], tuple[int, ...]]
ALL = ("naive", "balanced", "weighted", "calibrated", "self-normalised")

LISTS: tuple[List, ...] = tuple(permutations(range(3), 2))
CONTEXTS = (Fraction(1, 4), Fraction(3, 4))
# Probability in fourths of each item on top, in each context; below the top the next item
# in the circle 0 -> 1 -> 2 -> 0 follows with so many fourths.
TOP = {
    "old": ((2, 1, 1), (1, 1, 2)),
    "new": ((1, 1, 2), (2, 1, 1)),
    "target": ((1, 2, 1), (1, 2, 1)),
}
NEXT = {"old": (1, 2), "new": (3, 1), "target": (3, 2)}
REQUESTS = {"old": 64, "new": 192}
SHARES = {"old": Fraction(1, 4), "new": Fraction(3, 4)}


def steps(policy: str, context: int, items: List) -> tuple[Fraction, Fraction]:
    """Probability of each item, given the one above."""
    top, below = items
    follows = NEXT[policy][context]
    fourths = follows if below == (top + 1) % 3 else 4 - follows
    return Fraction(TOP[policy][context][top], 4), Fraction(fourths, 4)


def listed(policy: str, context: int, items: List) -> Fraction:
    """Probability of the whole list."""
    top, below = steps(policy, context, items)
    return top * below


def marginals(policy: str, context: int, items: List) -> tuple[Fraction, Fraction]:
    """Return the marginal probability of each item at its position."""
    lists = [other for other in LISTS if other[1] == items[1]]
    below = sum((listed(policy, context, other) for other in lists), Fraction(0))
    return steps(policy, context, items)[0], below


def of_item(context: int, items: List) -> tuple[int, int]:
    """The reward of a position depends on its own item."""
    return (3, 0, 5)[items[0]] + context, (1, 4, 2)[items[1]] * (2 - context)


def of_items_above(context: int, items: List) -> tuple[int, int]:
    """The reward of the second position depends on the first item, too."""
    top, below = items
    return (3, 0, 5)[top] + context, (1, 4, 2)[below] * (1 + 2 * top)


def of_whole_list(context: int, items: List) -> tuple[int, int]:
    """The reward of the first position depends on the item below it."""
    top, below = items
    return (3, 0, 5)[top] * (1 + below), (1, 4, 2)[below] + context


def value(rewards: Rewards, *, short: bool = False) -> Fraction:
    """The true value of a request, by adding up all lists."""
    return sum(
        (
            share * listed("target", x, items) * sum(earned(rewards, x, items, short))
            for x, share in enumerate(CONTEXTS)
            for items in LISTS
        ),
        Fraction(0),
    )


def earned(rewards: Rewards, context: int, items: List, short: bool) -> tuple[int, ...]:  # noqa: FBT001
    found: tuple[int, ...] = rewards(context, items)
    return found[:1] if short and context == 0 else found


def exact_log(
    rewards: Rewards, probabilities: Steps = steps, *, short: bool = False
) -> pa.Table:
    """Every list exactly as often as its logger plays it; `short` cuts those of context 0."""
    rows = []
    for logger, count in REQUESTS.items():
        for x, share in enumerate(CONTEXTS):
            for items in LISTS:
                times = count * share * listed(logger, x, items)
                assert times.denominator == 1
                for copy in range(int(times)):
                    rows += [
                        {
                            "request": f"{logger}-{x}-{items}-{copy}",
                            "position": k + 1,
                            "policy": logger,
                            "click": reward,
                            **{
                                f"p_{name}": float(probabilities(name, x, items)[k])
                                for name in TOP
                            },
                        }
                        for k, reward in enumerate(earned(rewards, x, items, short))
                    ]
    return pa.Table.from_pylist(rows)


def read(
    source: object,
    model: Model = "cascade",
    **options: Any,  # noqa: ANN401 - roles of several types
) -> RankingLog:
    roles = {
        "request": "request",
        "position": "position",
        "logger": "policy",
        "reward": "click",
        "propensities": {"old": "p_old", "new": "p_new"},
    }
    return ranking_log(source, {"best": "p_target"}, model=model, **{**roles, **options})


def values(found: RankingLog) -> dict[str, float]:
    result = evaluate(found.log, found.targets, ALL)["best"]
    return {name: estimate.value for name, estimate in result.estimates.items()}


@pytest.mark.slow
@pytest.mark.parametrize("short", [False, True], ids=["equal", "unequal"])
@pytest.mark.parametrize(
    ("model", "rewards", "probabilities"),
    [
        ("cascade", of_item, steps),
        ("cascade", of_items_above, steps),
        ("independent", of_item, marginals),
        ("whole", of_item, steps),
        ("whole", of_items_above, steps),
    ],
)
def test_every_estimator_expects_the_value_of_a_request(
    model: Model,
    rewards: Rewards,
    probabilities: Steps,
    short: bool,  # noqa: FBT001
) -> None:
    found = values(read(exact_log(rewards, probabilities, short=short), model))
    expected = float(value(rewards, short=short))
    assert found == pytest.approx(dict.fromkeys(ALL, expected), rel=1e-12)


def test_a_whole_list_may_earn_in_any_way() -> None:
    found = values(read(exact_log(of_whole_list), "whole"))
    assert found == pytest.approx(dict.fromkeys(ALL, float(value(of_whole_list))), rel=1e-12)


def test_a_model_that_does_not_hold_is_biased_as_enumeration_says() -> None:
    found = values(read(exact_log(of_items_above, marginals), "independent"))
    expected = sum(
        (
            SHARES[i] * share * listed(i, x, items) * w * r
            for i in REQUESTS
            for x, share in enumerate(CONTEXTS)
            for items in LISTS
            for w, r in zip(marginal_weights(x, items), of_items_above(x, items), strict=True)
        ),
        Fraction(0),
    )
    assert found["balanced"] == pytest.approx(float(expected), rel=1e-12)
    assert expected - value(of_items_above) == Fraction(-1199, 21280)
    found = values(read(exact_log(of_whole_list), "cascade"))
    assert abs(found["balanced"] - float(value(of_whole_list))) > 0.1


def marginal_weights(context: int, items: List) -> list[Fraction]:
    mixed = [
        sum((SHARES[i] * marginals(i, context, items)[k] for i in REQUESTS), Fraction(0))
        for k in range(2)
    ]
    target = marginals("target", context, items)
    return [t / m for t, m in zip(target, mixed, strict=True)]


def test_the_mixture_is_of_products_and_not_a_product_of_mixtures() -> None:
    """A product of mixtures would expect 8.654 where the value is 561/64 = 8.766."""
    trap = Fraction(0)
    for i in REQUESTS:
        for x, share in enumerate(CONTEXTS):
            for items in LISTS:
                often = SHARES[i] * share * listed(i, x, items)
                target, rewards = steps("target", x, items), of_items_above(x, items)
                top, below = (
                    sum((SHARES[j] * steps(j, x, items)[k] for j in REQUESTS), Fraction(0))
                    for k in range(2)
                )
                trap += often * target[0] / top * rewards[0]
                trap += often * target[0] * target[1] / (top * below) * rewards[1]
    assert (trap, value(of_items_above)) == (Fraction(133271, 15400), Fraction(561, 64))
    found = values(read(exact_log(of_items_above)))
    assert found["balanced"] == pytest.approx(561 / 64, rel=1e-12)


def test_columns_of_the_loggers_have_mean_one_at_every_position() -> None:
    log, _ = read(exact_log(of_items_above, short=True))
    table: Any = log.source
    frame = table.to_pandas()
    products = {i: np.exp(frame[f"propensity_{k}"]) for k, i in enumerate(REQUESTS)}
    mixture = sum(float(SHARES[i]) * p for i, p in products.items())
    for place in (1, 2):
        there = frame["position"] == place
        assert there.sum() == 256
        for p in (*products.values(), np.exp(frame["target_0"])):
            assert (p / mixture)[there].mean() == pytest.approx(1, rel=1e-12)


class Drawn(NamedTuple):
    """A random log as a table, and as arrays of shape (requests, longest)."""

    table: pa.Table
    logger: NDArray[np.int64]
    reward: FloatArray
    steps: FloatArray  # (policies, requests, longest); the last policy is the target
    request: NDArray[np.int64]


LABELS = ("a", "b", "c")
LONGEST = 4


def drawn(requests: int = 3000, *, seed: int = 20) -> Drawn:
    """Lists of one to four items out of five, with rewards that look at all items above."""
    rng = np.random.default_rng(seed)
    logger = rng.choice(3, size=requests, p=[0.2, 0.5, 0.3])
    length = rng.integers(1, LONGEST + 1, size=requests)
    table = rng.dirichlet(np.full(5, 4.0), size=(4, LONGEST, 5))  # given the item above
    reward, probs = np.zeros((requests, LONGEST)), np.ones((4, requests, LONGEST))
    rows: list[dict[str, object]] = []
    for j in range(requests):
        above, luck = 0, 0.0
        for k in range(length[j]):
            item = int(rng.choice(5, p=table[logger[j], k, above]))
            luck += item
            probs[:, j, k] = table[:, k, above, item]
            reward[j, k] = rng.poisson(0.2 * luck)
            named = {f"p_{i}": probs[p, j, k] for p, i in enumerate((*LABELS, "target"))}
            rows.append(
                {
                    "request": j * 7,
                    "position": k,
                    "policy": LABELS[logger[j]],
                    "click": reward[j, k],
                    **named,
                }
            )
            above = item
    order = rng.permutation(len(rows))
    shuffled = pa.Table.from_pylist([rows[r] for r in order])
    return Drawn(shuffled, logger, reward, probs, np.arange(requests) * 7)


class Plain(NamedTuple):
    """Return the columns of an estimator in NumPy, one entry per request and position."""

    own: FloatArray
    balanced: FloatArray
    ratios: FloatArray  # (loggers, requests, positions)
    reward: FloatArray


def plain(log: Drawn, model: Model, share: FloatArray) -> Plain:
    probs: FloatArray = log.steps
    reward: FloatArray = log.reward * LONGEST
    if model != "independent":
        probs = np.cumprod(probs, axis=2).astype(np.float64)
    if model == "whole":
        probs, reward = probs[:, :, -1:], log.reward.sum(axis=1)[:, None]
    mixture = np.einsum("i,ijk->jk", share, probs[:3])
    own = probs[log.logger, np.arange(len(log.logger))]
    return Plain(probs[3] / own, probs[3] / mixture, probs[:3] / mixture, reward)


def plain_values(
    log: Drawn, model: Model, kept: NDArray[np.bool_] | None = None
) -> dict[str, float]:
    """The five estimators on some of the requests; the mixture is that of all of them."""
    count = np.bincount(log.logger)
    share = count / count.sum()
    rows = plain(log, model, share)
    kept = np.ones(len(log.logger), dtype=bool) if kept is None else kept
    of = [kept & (log.logger == i) for i in range(3)]
    own = [float((rows.own * rows.reward)[j].mean()) for j in of]

    def over(term: FloatArray) -> float:
        return float(sum(s * term[j].mean() for s, j in zip(share, of, strict=True)))

    found = over(rows.balanced * rows.reward)
    square = [over((rows.balanced * rows.reward) ** 2 / r) for r in rows.ratios]
    precision = share / np.maximum(np.array(square) - found**2, 1e-3 * np.array(square))
    terms = [rows.balanced * rows.reward, rows.balanced, *rows.ratios[:2]]
    means = np.array([over(t) for t in terms])
    scatter = np.array(
        [
            [over((s - a) * (t - b)) for t, b in zip(terms, means, strict=True)]
            for s, a in zip(terms, means, strict=True)
        ]
    )
    slopes = np.linalg.solve(scatter[1:, 1:], scatter[1:, 0])
    return {
        "naive": float(share @ own),
        "balanced": found,
        "weighted": float(precision @ own / precision.sum()),
        "calibrated": float(means[0] - slopes @ (means[1:] - 1)),
        "self-normalised": found / over(rows.balanced),
    }


def read_drawn(log: Drawn, model: Model) -> RankingLog:
    return read(log.table, model, propensities={i: f"p_{i}" for i in LABELS})


@pytest.fixture(scope="module")
def random_log() -> Drawn:
    return drawn()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cascade", "independent", "whole"])
def test_a_random_log_gives_what_numpy_gives(model: Model, random_log: Drawn) -> None:
    found = values(read_drawn(random_log, model))
    assert found == pytest.approx(plain_values(random_log, model), rel=1e-10)


@pytest.mark.slow
def test_errors_are_by_request(random_log: Drawn) -> None:
    """A jackknife over buckets of requests, redone request by request in NumPy."""
    log, targets = read_drawn(random_log, "cascade")
    result = evaluate(log, targets, ALL)["best"]
    ids = pa.table({"id": random_log.request})
    query = f"SELECT hash(id::VARCHAR) % {BUCKETS} AS bucket FROM ids"
    with duckdb.connect() as connection:
        connection.register("ids", ids)
        bucket = np.array([b for (b,) in connection.execute(query).fetchall()])
    left = [plain_values(random_log, "cascade", bucket != b) for b in np.unique(bucket)]
    for name in ALL:
        found = np.array([each[name] for each in left])
        variance = (len(left) - 1) / len(left) * np.sum((found - found.mean()) ** 2)
        assert result.estimates[name].variance == pytest.approx(variance, rel=1e-8), name


def test_rows_of_a_request_are_worth_one(random_log: Drawn) -> None:
    """The error of balanced is that of a mean over requests, not over rows."""
    count = np.bincount(random_log.logger)
    rows = plain(random_log, "cascade", count / count.sum())
    sums = (rows.balanced * rows.reward).mean(axis=1)
    of = [sums[random_log.logger == i] for i in range(3)]
    exact = math.sqrt(sum(len(s) * s.var(ddof=1) for s in of)) / len(sums)
    log, targets = read_drawn(random_log, "cascade")
    by_request = evaluate(log, targets, "balanced")["best"].estimates["balanced"].std_error
    by_row = evaluate(log, targets, "balanced", interval="student")
    assert by_request == pytest.approx(exact, rel=4 / math.sqrt(2 * BUCKETS))
    assert by_row["best"].estimates["balanced"].std_error < 0.8 * exact


@pytest.mark.slow
def test_one_position_is_an_ordinary_log() -> None:
    table = exact_log(of_item).filter(pa.compute.field("position") == 1)
    plain_log = Log(
        table,
        logger="policy",
        reward="click",
        propensities={"old": "p_old", "new": "p_new"},
    )
    expected = evaluate(plain_log, {"best": "p_target"}, ALL)["best"].estimates
    for model in ("cascade", "independent", "whole"):
        found = values(read(table, model))
        assert found == pytest.approx({n: e.value for n, e in expected.items()}, rel=1e-12)


def test_shares_are_by_requests_not_by_rows() -> None:
    """Four requests of one logger, one long one of the other: shares 4/5 and 1/5."""
    table = pa.table(
        {
            "request": [1, 2, 3, 4, 5, 5, 5],
            "position": [1, 1, 1, 1, 1, 2, 3],
            "policy": ["old"] * 4 + ["new"] * 3,
            "click": [1, 1, 1, 1, 1, 0, 1],
            "p_old": [0.5] * 7,
            "p_new": [0.25] * 7,
            "p_target": [0.5] * 7,
        }
    )
    log, targets = read(table)
    found = evaluate(log, targets, ["naive", "balanced"], interval="student")  # one request
    assert found.rows == {"old": 12, "new": 3}
    assert found.mean_reward == pytest.approx({"old": 1, "new": 2})
    # own weights 1 and 2, 4, 8; against 4/5 2^-k + 1/5 4^-k they are 10/9, 20/17, 40/33... / k
    mixtures = [0.8 * 0.5**k + 0.2 * 0.25**k for k in (1, 2, 3)]
    assert found["best"].estimates["naive"].value == pytest.approx((4 + 2 + 8) / 5)
    assert found["best"].estimates["balanced"].value == pytest.approx(
        (5 * 0.5 / mixtures[0] + 0.125 / mixtures[2]) / 5
    )


@pytest.mark.slow
def test_own_propensities_are_enough_for_naive() -> None:
    table = exact_log(of_items_above)
    own = np.where(
        np.array(table["policy"].to_pylist()) == "old", table["p_old"], table["p_new"]
    )
    table = table.append_column("p", pa.array(own))
    log, targets = read(table, propensity="p", propensities=None)
    found = evaluate(log, targets, "naive")["best"].estimates["naive"].value
    assert found == pytest.approx(float(value(of_items_above)), rel=1e-12)
    assert values(read(table, propensity="p")) == pytest.approx(values(read(table)))


def test_a_logger_may_be_unable_to_play_what_was_played() -> None:
    """Cross-propensities and targets of 0 stay 0 below; 2 / (1/2) and 4 / (1/2 * 1/4)."""
    table = pa.table(
        {
            "request": [1, 1, 2, 2],
            "position": [1, 2, 1, 2],
            "policy": ["old", "old", "new", "new"],
            "click": [1, 1, 1, 1],
            "p_old": [0.5, 0.5, 0.0, 1.0],
            "p_new": [0.0, 1.0, 0.5, 0.5],
            "p_target": [1.0, 1.0, 0.0, 1.0],
        }
    )
    log, targets = read(table)
    each = evaluate(log, targets, "balanced", interval="student")  # of one request
    found = each["best"].estimates["balanced"].value
    assert found == pytest.approx((1 / 0.25 + 1 / 0.125) / 2)


def test_long_lists_do_not_vanish() -> None:
    size = 400  # 0.001 ** 400 underflows
    table = pa.table(
        {
            "request": ["r"] * size + ["s"] * size,
            "position": [*range(size)] * 2,
            "policy": ["old"] * size + ["new"] * size,
            "click": [0.01] * (2 * size),
            "p_old": [0.001] * (2 * size),
            "p_new": [0.001] * (2 * size),
            "p_target": [0.001] * (2 * size),
        }
    )
    log, targets = read(table)
    each = evaluate(log, targets, "balanced", interval="student")  # of one request
    found = each["best"].estimates["balanced"].value
    assert found == pytest.approx(4.0, rel=1e-10)
    logs = [f"p_{name}" for name in TOP]
    for name in logs:
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.compute.ln(table[name]))
    log, targets = read(table, log_probabilities=True)
    each = evaluate(log, targets, "balanced", interval="student")
    again = each["best"].estimates["balanced"].value
    assert again == pytest.approx(found, rel=1e-12)


def _parquet(table: pa.Table, folder: Path) -> object:
    for k, logger in enumerate(REQUESTS):
        part = table.filter(pa.compute.field("policy") == logger)
        pq.write_table(part, folder / f"it's part {k}.parquet")
    return str(folder / "*.parquet")


def _csv(table: pa.Table, folder: Path) -> object:
    pa.csv.write_csv(table, folder / "log.csv")
    return folder / "log.csv"


def _select(table: pa.Table, folder: Path) -> object:
    pq.write_table(table, folder / "log.parquet")
    path = str(folder / "log.parquet")
    return f"WITH log AS (SELECT * FROM '{path}')\nSELECT * FROM log -- all AS they are\n;"


SOURCES: Mapping[str, Callable[[pa.Table, Path], object]] = {
    "files": _parquet,
    "csv": _csv,
    "select": _select,
    "pandas": lambda table, _: table.to_pandas(),
    "polars": lambda table, _: pl.from_arrow(table),
    "list": lambda table, _: [table.slice(0, 100), table.slice(100)],
}


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same(source: str, tmp_path: Path) -> None:
    table = exact_log(of_items_above, short=True)
    found = read(SOURCES[source](table, tmp_path))
    expected = float(value(of_items_above, short=True))
    assert values(found) == pytest.approx(dict.fromkeys(ALL, expected), rel=1e-12)
    lazy = source in {"files", "select"}
    assert isinstance(found.log.source, str) == lazy


def test_a_mapping_names_the_loggers() -> None:
    table = exact_log(of_items_above)
    parts = {
        i: table.filter(pa.compute.field("policy") == i).drop_columns("policy")
        for i in REQUESTS
    }
    expected = float(value(of_items_above))
    found = values(read(parts, logger=None))
    assert found == pytest.approx(dict.fromkeys(ALL, expected), rel=1e-12)


def test_options_of_the_reader_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    exact_log(of_item).to_pandas().to_csv(path, sep=";", index=False)
    found = read(path, reader_options={"delim": ";"})
    assert values(found)["naive"] == pytest.approx(float(value(of_item)), rel=1e-12)


def test_names_and_labels_of_any_spelling() -> None:
    names = {
        "request": 'the "request"',
        "position": "po'sition",
        "click": "select",
        "p_old": "a b",
    }
    table = exact_log(of_items_above)
    strange = [f'{logger}\'s "own"' for logger in table["policy"].to_pylist()]
    table = table.set_column(2, "policy", pa.array(strange))
    table = table.rename_columns([names.get(n, n) for n in table.column_names])
    log, targets = ranking_log(
        table,
        {"it's": "p_target"},
        request='the "request"',
        position="po'sition",
        logger="policy",
        reward="select",
        propensities={'old\'s "own"': "a b", 'new\'s "own"': "p_new"},
    )
    found = evaluate(log, targets, "balanced")["it's"].estimates["balanced"].value
    assert found == pytest.approx(float(value(of_items_above)), rel=1e-12)


def test_roles_may_be_expressions() -> None:
    table = exact_log(of_items_above)
    found = read(
        table,
        request="request || '!'",
        position="position - 1",
        reward="2 * click",
        cluster="left(request, 5)",
    )
    assert values(found)["balanced"] == pytest.approx(2 * float(value(of_items_above)))


def test_a_cluster_may_hold_many_requests() -> None:
    table = exact_log(of_items_above)
    users = [request[-2:] for request in table["request"].to_pylist()]
    table = table.append_column("user", pa.array(users))
    log, targets = read(table, cluster="user")
    assert log.cluster == "cluster"
    found = evaluate(log, targets, "balanced")["best"]
    one, _ = read(table)
    other = evaluate(one, targets, "balanced")["best"]
    assert found.estimates["balanced"].value == pytest.approx(other.estimates["balanced"].value)
    assert found.estimates["balanced"].freedom < other.estimates["balanced"].freedom


BROKEN = (
    {"request": [1, 1, None, None]},
    {"position": [1, 2, 1, 1]},
    {"position": [1, 2, 1, 3]},
    {"position": [1, 2, 2, 3]},
    {"position": [0, 1, 1, 2]},
    {"position": [5, 6, 5, 6]},
    {"position": [1, 2, 1, None]},
    {"position": [1, 1.5, 1, 2]},
    {"position": ["1", "two", "1", "2"]},
    {"policy": ["old", "new", "new", "new"]},
    {"request": [1, 1, 1, 1]},
    {"user": [1, 2, 3, 3]},
    {"user": [1, None, 3, 3]},
    {"click": [1, 0, None, 1]},
    {"p_old": [0.0, 0.5, 0.5, 0.5]},
    {"p_new": [0.5, 0.5, 0.5, 1.5]},
    {"p_target": [0.5, 0.5, None, 0.5]},
    {"policy": ["old", "old", "odd", "odd"]},
    {"policy": ["old", "old", None, None]},
)


@pytest.mark.slow
@pytest.mark.parametrize("changes", BROKEN)
def test_a_broken_log_is_refused_at_once(changes: Mapping[str, list[object]]) -> None:
    good: dict[str, list[object]] = {
        "request": [1, 1, 2, 2],
        "position": [1, 2, 1, 2],
        "policy": ["old", "old", "new", "new"],
        "click": [1, 0, 0, 1],
        "p_old": [0.5] * 4,
        "p_new": [0.5] * 4,
        "p_target": [0.5] * 4,
        "user": [1, 1, 2, 2],
    }
    assert read(pa.table(good), cluster="user")
    with refused(LogError) as caught:
        read(pd.DataFrame({**good, **changes}), cluster="user")
    assert sum(fault.rows for fault in caught.value.faults) > 0


def test_all_faults_are_told_together() -> None:
    table = exact_log(of_item).to_pandas()
    table.loc[0, "click"] = math.nan
    table = table.drop(index=[3])
    with pytest.raises(LogError) as caught:
        read(table)
    assert [fault.rows for fault in caught.value.faults] == [1]
    table = table.drop(index=[4])
    with pytest.raises(LogError) as caught:
        read(table)
    assert [fault.rows for fault in caught.value.faults] == [1, 1]


def test_an_empty_log_is_refused() -> None:
    with refused(LogError):
        read(exact_log(of_item).slice(0, 0))


def test_missing_columns_are_named() -> None:
    table = exact_log(of_item)
    with pytest.raises(MissingColumnError) as caught:
        read(table, request="requests", position="place")
    assert caught.value.missing == {"requests": "request", "place": "position"}
    with refused(MissingColumnError):
        read(table, reward="clicks")


def test_misuse_is_refused() -> None:
    table = exact_log(of_item)
    with refused(UsageError):
        read(table, "standard")  # type: ignore[arg-type]
    with refused(UsageError):
        read(table, propensities={"old": {"a": 0.5}, "new": "p_new"})
    with refused(UsageError):
        ranking_log(table, 0.5, request="request", position="position", reward="click")  # type: ignore[arg-type]
    with refused(UsageError):
        ranking_log(table, {}, request="request", position="position", reward="click")
    with pytest.raises(EngineError):
        read(table, request="request + position")


def test_the_log_goes_wherever_logs_go() -> None:
    log, targets = read(exact_log(of_items_above))
    assert targets == {"best": "target_0"}
    assert log.cluster == "cluster"
    assert read(exact_log(of_items_above), "whole").log.cluster is None
