"""Blocks of rows: the same from any pieces, stratified, with the mixture of each block."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise.engines.blocks import blocks_for, bucket_layout, cut_blocks
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import LogError, UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.intervals.guarantees import list_payoffs
from poolwise.log.log import Log
from poolwise.moments.blocks import Payoff, Settled
from poolwise.moments.pool import Cell
from poolwise.rows.layout import Layout
from tests.intervals.test_betting import plain_capital
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.intervals.student import Interval, Sides

pytestmark = pytest.mark.slow  # all of them together take seconds
LOGGERS = ("a", "b", "c")
MASK = 2**64 - 1


def columns(rows: int = 900, seed: int = 3) -> dict[str, Any]:
    """A log of three loggers with unequal numbers of rows, shuffled."""
    rng = np.random.default_rng(seed)
    logger = rng.choice(3, size=rows, p=[0.6, 0.35, 0.05])
    probs = rng.dirichlet(np.ones(3), size=rows)  # of the logged action, by policy
    return {
        "logger": [LOGGERS[i] for i in logger],
        "reward": (rng.random(rows) < 0.4).astype(np.float64),
        **{f"p_{LOGGERS[k]}": probs[:, k] * 0.9 + 0.05 for k in range(3)},
        "t": probs.mean(axis=1) * rng.uniform(0.2, 1.8, rows),
    }


def log_of(table: object, **options: Any) -> Log:  # noqa: ANN401 - options of a log
    known = {i: f"p_{i}" for i in LOGGERS}
    roles = {"reward": "reward", "logger": "logger", "reward_range": (0.0, 1.0)}
    return Log(table, **{**roles, "propensities": known, **options})


def settled(log: Log, *, pooled: bool = True, engine: DuckDB | None = None) -> Settled:
    with (engine or DuckDB()).open(log, {"new": "t"}) as rows:
        return rows.settle(list_payoffs("new", (0.0, 1.0)), pooled=pooled)


def betting(log: Log, engine: DuckDB | None = None, sides: Sides = "two") -> Interval:
    result = evaluate(
        log, {"new": "t"}, "naive", interval="betting", engine=engine, sides=sides
    )
    return result["new"].intervals["naive"]


def hash_bucket(number: int) -> int:
    """The hash of a row's number, in exact integers."""
    mixed = number * 0x9E3779B97F4A7C15 & MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK
    return (mixed ^ mixed >> 31) % 4096


def blocks_by_hand(loggers: list[str], number: int = 0) -> list[int]:
    """The block of each row: its logger's rows in the order of buckets, cut evenly."""
    number = number or blocks_for(len(loggers))
    buckets = [hash_bucket(k) for k in range(1, len(loggers) + 1)]
    block = []
    for bucket, logger in zip(buckets, loggers, strict=True):
        own = [s for s, i in zip(buckets, loggers, strict=True) if i == logger]
        block.append(sum(s < bucket for s in own) * number // len(own))
    return block


def test_blocks_grow_in_number_and_in_size() -> None:
    sizes = [n / blocks_for(n) for n in (30, 100, 300, 1_000, 2_000, 20_000, 10**6)]
    numbers = [blocks_for(n) for n in (1, 30, 300, 2_000, 20_000, 10**9)]
    assert numbers == [2, 2, 10, 40, 100, 100]
    assert sizes == sorted(sizes)


def test_blocks_have_about_the_same_share_of_each_logger() -> None:
    buckets = np.zeros((4096, 2), dtype=np.int64)
    buckets[np.random.default_rng(1).permutation(4096)[:200], 0] = 1
    buckets[:30, 1] = 1
    cut = cut_blocks(buckets)
    assert len(cut.counts) == blocks_for(230) == 8
    assert cut.counts[:, 0].tolist() == [25] * 8
    assert sorted(cut.counts[:, 1].tolist()) == [3, 3, 4, 4, 4, 4, 4, 4]


def test_random_blocks_lie_within_periods() -> None:
    table = columns(300)
    days = np.arange(300) // 100
    log = log_of({**table, "day": days}, period="day")
    with DuckDB().open(log, {"new": "t"}) as rows:
        counts = rows.settle(list_payoffs("new", (0.0, 1.0)), pooled=True).sums.counts
        watched = rows.settle(list_payoffs("new", (0.0, 1.0)), pooled=True, watched=True)
    # ten blocks for 300 rows: three for each of three periods
    assert counts.shape == (9, 3)
    code = np.array([LOGGERS.index(i) for i in table["logger"]])
    by_day = np.array([np.bincount(code[days == d], minlength=3) for d in range(3)])
    np.testing.assert_array_equal(counts.reshape(3, 3, 3).sum(axis=1), by_day)
    assert np.ptp(counts.reshape(3, 3, 3), axis=1).max() <= 1
    np.testing.assert_array_equal(watched.sums.counts, by_day)
    assert watched.names == ("0", "1", "2")


@pytest.mark.parametrize("days", [1, 2])
def test_the_interval_is_that_of_the_rows_by_hand(days: int) -> None:
    table = columns(300)
    names = [f"{i} {k * days // 300}" for k, i in enumerate(table["logger"])]
    block = np.array(blocks_by_hand(names, 10 // days))
    block += np.arange(300) * days // 300 * (10 // days)
    code = np.array([LOGGERS.index(i) for i in table["logger"]])
    number = int(block.max()) + 1
    shares = np.array(
        [[np.mean(code[block == k] == i) for i in range(3)] for k in range(number)]
    )
    probs = np.column_stack([table[f"p_{i}"] for i in LOGGERS])
    weight = table["t"] / (shares[block] * probs).sum(axis=1)

    def best_capital(value: np.typing.NDArray[np.float64], point: float) -> float:
        rows = [value[block == k].tolist() for k in range(number)]
        return max(plain_capital(rows, [[0] * len(z) for z in rows], 0.025, point))

    table["day"] = np.arange(300) * days // 300
    interval = betting(log_of(table, period="day" if days > 1 else None))
    ends = (
        (weight * table["reward"], interval.lower),
        (
            weight * (1 - table["reward"]),
            1 - interval.upper,
        ),
    )
    assert 0.2 < interval.lower < interval.upper < 0.6
    for value, end in ends:
        assert best_capital(value, end) >= np.log(40)
        assert best_capital(value, end + 1e-5) < np.log(40)


def test_without_cross_propensities_weights_and_bets_are_those_of_each_logger() -> None:
    table = columns(300)
    code = np.array([LOGGERS.index(i) for i in table["logger"]])
    table["own"] = np.column_stack([table[f"p_{i}"] for i in LOGGERS])[np.arange(300), code]
    block = np.array(blocks_by_hand(table["logger"]))
    value = table["t"] / table["own"] * table["reward"]
    rows = [value[block == k].tolist() for k in range(10)]
    own = [code[block == k].tolist() for k in range(10)]
    end = betting(log_of(table, propensities=None, propensity="own"), sides="lower").lower
    assert max(plain_capital(rows, own, 0.05, end)) >= np.log(20)
    assert max(plain_capital(rows, own, 0.05, end + 1e-5)) < np.log(20)
    # trained on a log of the others: own weights too, and only the last block end counts
    trained = betting(log_of(table, trained_on={"b": ["a"]}), sides="lower").lower
    assert plain_capital(rows, own, 0.05, trained)[-1] >= np.log(20)
    assert plain_capital(rows, own, 0.05, trained + 1e-5)[-1] < np.log(20)


@pytest.mark.parametrize("chunk", [1, 7, 250])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_split_into_batches_does_not_matter(chunk: int, threads: int) -> None:
    table = pa.table(columns())
    whole = betting(log_of(table))
    parts = [table.slice(k, chunk) for k in range(0, table.num_rows, chunk)]
    split = betting(log_of(pa.concat_tables(parts)), DuckDB(threads=threads))
    assert (split.lower, split.upper) == pytest.approx((whole.lower, whole.upper), abs=1e-10)


def test_files_and_queries_give_the_same_blocks(tmp_path: Path) -> None:
    table = pa.table(columns())
    whole = betting(log_of(table))
    path = tmp_path / "log.parquet"
    pq.write_table(table, path, row_group_size=100)
    for source in (str(path), f"SELECT * FROM '{path}'", [str(path)]):
        same = betting(log_of(source))
        assert (same.lower, same.upper) == pytest.approx((whole.lower, whole.upper), abs=1e-10)


def test_logarithms_and_dropped_rows_do_not_matter() -> None:
    table = columns()
    plain = betting(log_of(table))
    logs = {n: np.log(c) if n[:2] in {"p_", "t"} else c for n, c in table.items()}
    same = betting(log_of(logs, log_probabilities=True))
    assert (same.lower, same.upper) == pytest.approx((plain.lower, plain.upper), abs=1e-10)
    table["t"] = np.append(table["t"], np.nan)
    worse = {n: c if n == "t" else [*c, c[0]] for n, c in table.items()}
    dropped = betting(log_of(worse, on_fault="drop"))
    assert (dropped.lower, dropped.upper) == pytest.approx(
        (plain.lower, plain.upper), abs=1e-10
    )


def test_a_difference_is_shifted_by_one_over_the_share() -> None:
    table = columns(200)
    payoff = Payoff("new", 0.0, 1.0, 1.0, against="a")
    with DuckDB().open(log_of(table), {"new": "t"}) as rows:
        result = rows.settle([payoff, list_payoffs("new", (0.0, 1.0))[0]], pooled=True)
    shares = result.sums.counts[:, 0] / result.sums.counts.sum(axis=1)
    np.testing.assert_allclose(result.shifts[0], 1 / shares)
    number = len(shares)
    count, first, _ = result.sums.histograms[0].moments(number)
    np.testing.assert_array_equal(count, result.sums.counts.sum(axis=1))
    block = np.array(blocks_by_hand(table["logger"]))
    code = np.array([LOGGERS.index(i) for i in table["logger"]])
    mixed = [[np.mean(code[block == k] == i) for i in range(3)] for k in range(number)]
    probs = np.column_stack([table[f"p_{i}"] for i in LOGGERS])
    weight = (table["t"] - table["p_a"]) / (np.array(mixed)[block] * probs).sum(axis=1)
    gains = np.bincount(block, weight * table["reward"], minlength=number)
    np.testing.assert_allclose(first - count / shares, gains, atol=1e-10)


def test_a_block_without_the_logger_has_no_bet_against_it() -> None:
    table = columns(120)
    table["logger"] = ["c" if k == 5 else "a" for k in range(120)]
    log = log_of(table, propensities={"a": "p_a", "c": "p_c"})
    payoff = Payoff("new", 0.0, 1.0, 1.0, against="c")
    with DuckDB().open(log, {"new": "t"}) as rows:
        result = rows.settle([payoff], pooled=True)
    (shifts,) = result.shifts
    assert np.isfinite(shifts).sum() == 1
    count = result.sums.histograms[0].moments(len(shifts))[0]
    assert ((count > 0) == np.isfinite(shifts)).all()


def test_counts_are_those_of_the_log() -> None:
    log = log_of(columns())
    counts = settled(log).sums.counts
    with DuckDB().open(log, {"new": "t"}) as rows:
        assert counts.sum(axis=0).tolist() == list(rows.counts.values())
    assert settled(replace(log, logger="logger"), pooled=False).strata == 3


def test_many_loggers_have_fewer_buckets() -> None:
    few, many = (
        bucket_layout(Layout(tuple(map(str, range(n))), (), (), ("new",))).buckets
        for n in (3, 1_000)
    )
    assert (few, many) == (4096, 512)
    layout = bucket_layout(Layout(tuple(map(str, range(1_000))), (), (), ("new",)))
    buckets = layout.deal(np.arange(10_000))
    assert (buckets.min(), buckets.max()) == (0, 511)


@pytest.mark.parametrize("wrong", [np.nan, 1.5])
def test_rows_that_break_a_rule_are_reported_before_a_bet(wrong: float) -> None:
    table = columns(60)
    table["p_a"] = np.where(np.arange(60) == 7, wrong, table["p_a"])
    with pytest.raises(LogError):
        betting(log_of(table))


# Clusters.


def in_days(table: dict[str, Any], days: int = 90) -> dict[str, Any]:
    """The same columns with a day of each row, few enough for one block each."""
    rows = len(table["logger"])
    return {**table, "day": np.arange(rows) * days // rows, "user": np.arange(rows)}


def test_copies_of_a_row_in_one_cluster_count_once() -> None:
    table = pa.table(in_days(columns()))
    thrice = table.take(pa.array(np.repeat(np.arange(900), 3)))
    alone = betting(log_of(table, period="day"))
    for rows in (table, thrice):
        interval = betting(log_of(rows, period="day", cluster="user"))
        ends = alone.lower, alone.upper
        assert (interval.lower, interval.upper) == pytest.approx(ends, rel=1e-10)
    ignored = betting(log_of(thrice, period="day"))
    assert ignored.lower != pytest.approx(alone.lower, rel=0.01)


def test_random_blocks_hold_whole_clusters() -> None:
    table = {**columns(), "user": np.arange(900) // 4}
    log = log_of(table, cluster="user")
    with DuckDB().open(log, {"new": "t"}) as rows:
        result = rows.settle(list_payoffs("new", (0.0, 1.0)), pooled=True)
    assert result.cluster_rows == 4
    assert result.sums.counts.sum() == 900
    rng = np.random.default_rng(1)
    buckets = rng.integers(0, 5, (64, 4))
    cells = [Cell(d, i, k) for k, d in enumerate("12") for i in "ab"]
    cut = cut_blocks(buckets, cells, ["a", "b"], clustered=True)
    by_bucket = cut.block.reshape(64, 4)
    assert (by_bucket[:, 0] == by_bucket[:, 1]).all()
    assert (by_bucket[:, 2] == by_bucket[:, 3]).all()
    assert set(by_bucket[:, 0]).isdisjoint(by_bucket[:, 2])
    assert cut.counts.sum() == buckets.sum()


def test_clusters_that_span_periods_are_refused() -> None:
    table = in_days(columns(), 3) | {"user": np.arange(900) % 450}
    with refused(UsageError):
        betting(log_of(table, period="day", cluster="user"))
    with refused(UsageError):
        betting(log_of(table, trained_on={"b": ["a"]}, cluster="user"))
