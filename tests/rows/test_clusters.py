"""Buckets of clusters: the same ones, looked up or hashed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from poolwise.rows.clusters import NumberedBuckets, cluster_buckets


def expected(numbers: list[int], buckets: int) -> list[int]:
    texts = pa.table({"x": [str(number) for number in numbers]})  # noqa: F841 - in the query
    query = f"SELECT hash(x) % {buckets} FROM texts"
    return [line[0] for line in duckdb.execute(query).fetchall()]


@pytest.mark.parametrize("buckets", [2, 200, 4_096])
def test_ranges_that_grow_jump_and_return(buckets: int) -> None:
    kept = NumberedBuckets(buckets, widest=5_000)
    rng = np.random.default_rng(0)
    ranges = [(0, 1_000), (500, 1_500), (-300, 900), (10**12, 10**12 + 50), (-300, 6_000)]
    for low, top in [*ranges, (0, 9)] * 2:
        numbers = rng.integers(low, top, 400)
        assert kept(numbers).tolist() == expected(numbers.tolist(), buckets)


def test_a_range_is_hashed_until_it_repays() -> None:
    kept = NumberedBuckets(200)
    numbers = np.arange(0, 1_000, 10)
    hashed = [kept(numbers).dtype == np.uint64 for _ in range(7)]
    assert hashed == [True] * 4 + [False] * 3  # half of 991 numbers are 496 rows


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int32(), pa.uint64(), pa.string()])
def test_every_type_has_the_buckets_of_its_text(kind: pa.DataType) -> None:
    numbers = [0, 7, 127, 7, 100]
    chunks = pa.chunked_array([numbers[:2], [], numbers[2:]], pa.int64()).cast(kind)
    for _ in range(3):
        assert cluster_buckets(chunks, 200).tolist() == expected(numbers, 200)
    assert len(cluster_buckets(chunks[:0], 200)) == 0


def test_threads_share_the_buckets() -> None:
    kept = NumberedBuckets(200)
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, 300 * k, 2_000) for k in range(1, 40)]
    with ThreadPoolExecutor(4) as pool:
        for numbers, buckets in zip(batches, pool.map(kept, batches), strict=True):
            assert buckets.tolist() == expected(numbers.tolist(), 200)
