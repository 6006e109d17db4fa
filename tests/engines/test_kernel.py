"""The kernel: batches of rows give the moments of the judge, however they come."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.engines import compiled, parallel, program, workspace
from poolwise.engines.duckdb import DuckDB
from poolwise.engines.program import Program
from poolwise.errors import LogError, RefusedError
from poolwise.moments.histogram import BINS, bins, edges
from poolwise.moments.moments import LONGEST_TAIL
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    ratio,
    second_moment,
    unite,
    unsupported_weight,
)
from poolwise.rows import reader as feed
from poolwise.rows.reader import ParquetFeed
from tests.support.messages import refused
from tests.support.reference import Reference, assert_moments_agree, log_of, random_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from poolwise.moments.moments import Moments

COUNTS = {"a": 700, "b": 500, "c": 300}
LOGGERS = tuple(COUNTS)
NEEDS = Needs(
    means=(REWARD, *map(second_moment, LOGGERS), *map(unsupported_weight, LOGGERS)),
    groups=((BALANCED_REWARD, BALANCED_WEIGHT, ratio("a"), ratio("b")), (WEIGHTED_REWARD,)),
    extremes=(REWARD, WEIGHT),
    tails=(WEIGHT,),
    histograms=(WEIGHT, BALANCED_WEIGHT),
).bind("t")


@pytest.fixture(params=["numpy", "compiled"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test of this file goes through both kernels, however few rows it has."""
    name: str = request.param
    monkeypatch.setattr(parallel, "COMPILED_FROM", 0 if name == "compiled" else math.inf)
    return name


@pytest.fixture
def table() -> pa.Table:
    return random_table(np.random.default_rng(11), COUNTS)


def moments(source: Any, needs: Needs = NEEDS, threads: int = 0) -> dict[str, Moments]:  # noqa: ANN401
    log = log_of(source, LOGGERS)
    with DuckDB(threads=threads).open(log, {"t": "t"}) as rows:
        return rows.moments(needs)


def written(table: pa.Table, path: Path, group: int = 100) -> Path:
    pq.write_table(table, path, row_group_size=group)
    return path


def same(left: dict[str, Moments], right: dict[str, Moments]) -> bool:
    """Whether two answers have the same bits."""
    return all(
        (m.means == right[i].means).all()
        and np.array_equal(m.scatter, right[i].scatter, equal_nan=True)
        and all((m.tails[t] == right[i].tails[t]).all() for t in m.tails)
        for i, m in left.items()
    )


# One answer, by whichever way the rows come.


@pytest.mark.parametrize("rows", [64, 1_000, 16_384])
def test_files_tables_and_queries_give_the_moments_of_the_judge(
    table: pa.Table, tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "MOST_ROWS", rows)
    monkeypatch.setattr(program, "FEWEST_ROWS", 1)
    monkeypatch.setattr(compiled, "ROWS", rows)
    with Reference().open(log_of(table, LOGGERS), {"t": "t"}) as judge:
        expected = judge.moments(NEEDS)
    path = written(table, tmp_path / "log.parquet")
    for source in (table, path, f"SELECT * FROM '{path}'"):
        assert_moments_agree(moments(source), expected)


def test_plain_files_and_tables_do_not_pass_through_a_query(
    table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(table, tmp_path / "log.parquet")
    query = f"SELECT * FROM '{path}'"
    seen: list[str] = []

    def watched(name: str) -> Callable[[Any, Any], Any]:
        real = getattr(parallel.Pass, name)

        def read(self: Any, rows: Any) -> Any:  # noqa: ANN401 - whatever it stands for
            seen.append(name)
            return real(self, rows)

        return read

    for name in ("parquet", "arrow"):
        monkeypatch.setattr(parallel.Pass, name, watched(name))
    moments(path)
    moments(table)
    assert seen == ["parquet", "arrow"]
    moments(query)
    assert seen == ["parquet", "arrow", "arrow"]


def test_the_same_files_give_the_same_bits_with_any_number_of_threads(
    table: pa.Table, tmp_path: Path
) -> None:
    path = written(table, tmp_path / "log.parquet")
    first = moments(path, threads=1)
    assert all(same(first, moments(path, threads=n)) for n in (1, 2, 5))


@pytest.mark.parametrize("group", [70, 300, 700])
def test_many_row_groups_keep_the_digits_of_rewards_far_from_zero(
    tmp_path: Path, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "FEWEST_ROWS", 1)
    monkeypatch.setattr(workspace, "MOST_ROWS", 16)  # many chunks as well
    counts = {"a": 1_000, "b": 1_500, "c": 500}
    offsets = {"a": 0.0, "b": 1e8, "c": -3e8}
    far = random_table(np.random.default_rng(4), counts, offset=offsets)
    far = far.set_column(far.column_names.index("t"), "t", far["p"])  # own weights are 1
    needs = Needs(groups=((WEIGHTED_REWARD, BALANCED_REWARD),)).bind("t")
    with Reference().open(log_of(far, LOGGERS), {"t": "t"}) as judge:
        expected = judge.moments(needs)
    found = moments(written(far, tmp_path / "log.parquet", group=group), needs)
    for logger in LOGGERS:  # without `Sums.rest` errors reach 1e-9
        np.testing.assert_allclose(
            found[logger].scatter, expected[logger].scatter, rtol=1e-13, atol=0
        )


def test_large_row_groups_are_read_in_pieces(
    table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LARGE_GROUP", 4_000)
    path = written(table, tmp_path / "log.parquet", group=1_500)
    assert_moments_agree(moments(path), moments(table))


def test_a_folder_of_files_and_a_mapping_by_logger_are_read_as_they_are(
    table: pa.Table, tmp_path: Path
) -> None:
    labels = table["logger"].to_numpy(zero_copy_only=False)
    files = {}
    for name in LOGGERS:
        part = table.filter(pa.array(labels == name))
        files[name] = written(part.drop(["logger"]), tmp_path / f"{name}.parquet")
    with DuckDB().open(log_of(files, LOGGERS, logger=None), {"t": "t"}) as rows:
        assert rows.files is not None
        assert_moments_agree(rows.moments(NEEDS), moments(table))


@pytest.mark.parametrize("kind", [pa.float32(), pa.int64(), pa.large_string()])
def test_other_types_are_read_like_doubles(
    table: pa.Table, tmp_path: Path, kind: pa.DataType
) -> None:
    name = "logger" if kind == pa.large_string() else "reward"
    place = table.column_names.index(name)
    values = table[name] if name == "logger" else pa.array(np.round(table["reward"].to_numpy()))
    other = table.set_column(place, name, values.cast(kind))
    plain = table.set_column(place, name, values)
    assert_moments_agree(moments(written(other, tmp_path / "log.parquet")), moments(plain))


# What the kernel keeps of the rows.


def test_tails_are_the_largest_values_even_where_batches_are_short_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "MOST_ROWS", 512)
    monkeypatch.setattr(compiled, "ROWS", 512)
    many = random_table(np.random.default_rng(3), {"a": 9_000, "b": 6_000, "c": 100})
    found = moments(written(many, tmp_path / "log.parquet", group=1_024))
    labels = many["logger"].to_numpy(zero_copy_only=False)
    weights = many["t"].to_numpy() / many["p"].to_numpy()
    for name in LOGGERS:
        expected = np.sort(weights[labels == name])[::-1][:LONGEST_TAIL]
        np.testing.assert_array_equal(found[name].tails[WEIGHT.bind("t")], expected)


def test_histograms_count_every_row_once(table: pa.Table) -> None:
    found = moments(table)
    labels = table["logger"].to_numpy(zero_copy_only=False)
    weights = table["t"].to_numpy() / table["p"].to_numpy()
    for name in LOGGERS:
        counts = found[name].histograms[WEIGHT.bind("t")]
        expected, _ = np.histogram(weights[labels == name], [*edges(), np.inf])
        np.testing.assert_array_equal(counts, expected)
        assert counts.sum() == COUNTS[name]


def test_bins_hold_what_their_edges_say() -> None:
    rng = np.random.default_rng(1)
    values = 2.0 ** rng.uniform(-63, 63, 1_000)
    place = bins(values)
    assert (edges()[place] <= values).all()
    assert (values < edges()[place + 1]).all()
    assert bins(np.array([0.0, 1e-300, 1e300])).tolist() == [0, 1, BINS - 1]


def test_many_targets_are_packed_into_blocks_and_give_the_answer_of_one(
    table: pa.Table,
) -> None:
    names = [f"t{k}" for k in range(40)]
    rng = np.random.default_rng(2)
    for name in names:
        table = table.append_column(name, pa.array(rng.uniform(0, 1, table.num_rows)))
    each = [replace(NEEDS, tails=(), histograms=()) for _ in names]
    every = unite(
        Needs(n.means, ((BALANCED_REWARD, BALANCED_WEIGHT, ratio("a")),), (WEIGHT,)).bind(name)
        for n, name in zip(each, names, strict=True)
    )
    assert len(Program(every).blocks) > 1
    log, targets = log_of(table, LOGGERS), {name: name for name in names}
    with DuckDB().open(log, targets) as rows, Reference().open(log, targets) as judge:
        assert_moments_agree(rows.moments(every), judge.moments(every))


# What it refuses.


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("reward", None),
        ("reward", np.inf),
        ("p", 0.0),
        ("p_b", 1.5),
        ("t", -0.1),
        ("t", np.nan),
        ("logger", None),
        ("logger", "d"),
    ],
)
@pytest.mark.parametrize("kind", ["file", "table", "query"])
def test_one_bad_row_is_found_by_every_way(
    table: pa.Table, tmp_path: Path, column: str, value: object, kind: str
) -> None:
    values = [*table[column].to_pylist()[:-1], value]
    place = table.column_names.index(column)
    bad = table.set_column(place, column, pa.array(values, table.schema.field(column).type))
    path = written(bad, tmp_path / "log.parquet")
    sources: dict[str, Any] = {"file": path, "table": bad, "query": f"SELECT * FROM '{path}'"}
    with refused(LogError) as found:
        moments(sources[kind])
    assert found.value.faults[0].rows == 1


def test_a_propensity_that_is_not_its_loggers_own_is_found(table: pa.Table) -> None:
    own = table["p"].to_numpy().copy()
    own[7] *= 0.999
    place = table.column_names.index("p")
    with refused(LogError):
        moments(table.set_column(place, "p", pa.array(own)))


def test_weights_beyond_doubles_are_refused(table: pa.Table) -> None:
    rewards = np.full(table.num_rows, 1e200)
    huge = table.set_column(table.column_names.index("reward"), "reward", pa.array(rewards))
    with refused(RefusedError):
        moments(huge)


def test_a_file_that_grew_after_it_was_counted_is_refused(
    table: pa.Table, tmp_path: Path
) -> None:
    path = written(table, tmp_path / "log.parquet")
    with DuckDB().open(log_of(path, LOGGERS), {"t": "t"}) as rows:
        assert sum(rows.counts.values()) == table.num_rows
        written(pa.concat_tables([table, table]), path)
        with refused(LogError):
            rows.moments(NEEDS)


def test_a_feed_lists_row_groups_in_order(table: pa.Table, tmp_path: Path) -> None:
    path = str(written(table, tmp_path / "log.parquet", group=400))
    pieces = ParquetFeed(((path, None),), {}, "logger", LOGGERS).pieces
    assert [(p.group, p.rows) for p in pieces] == [(0, 400), (1, 400), (2, 400), (3, 300)]


def test_evaluate_is_the_same_by_every_way(table: pa.Table, tmp_path: Path) -> None:
    path = written(table, tmp_path / "log.parquet")
    answers = [
        pw.evaluate(log_of(source, LOGGERS), "t", which_logs=False)["target"].estimates
        for source in (table, path, f"SELECT * FROM '{path}'", table.to_pandas())
    ]
    for other in answers[1:]:
        for name, estimate in answers[0].items():
            assert other[name].value == pytest.approx(estimate.value, rel=1e-12)
            assert other[name].variance == pytest.approx(estimate.variance, rel=1e-9)
