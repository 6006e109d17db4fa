"""The kernel: every split into batches gives the moments of the reference."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.engines import compiled
from poolwise.engines.compiled import TYPES
from poolwise.engines.duckdb import DuckDB, DuckDBRows
from poolwise.engines.kernel import Kernel
from poolwise.engines.program import tiles
from poolwise.engines.sums import to_moments
from poolwise.engines.workspace import Workspace, wanted_pairs
from poolwise.errors import LogError, PoolwiseError, RefusedError
from poolwise.moments.moments import LONGEST_TAIL
from poolwise.moments.tallies import BINS, edges
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    OVERLAP,
    OVERLAP_REWARD,
    PREDICTED_REWARD,
    PREDICTED_VALUE,
    RESIDUAL,
    REWARD,
    UNSUPPORTED,
    WEIGHT,
    WEIGHTED_REWARD,
    Factor,
    Needs,
    Term,
    ratio,
    residual_moment,
    second_moment,
    unite,
    unsupported_weight,
    weight_moment,
)
from poolwise.rows import reader
from poolwise.rows.layout import BadRowsError, Layout
from poolwise.rows.reader import cut
from poolwise.rows.rules import Scale
from poolwise.rows.streams import file_stream
from tests.support.messages import refused
from tests.support.reference import (
    Reference,
    assert_moments_agree,
    exact_moments,
    log_of,
    random_table,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from poolwise.moments.moments import Moments
    from poolwise.moments.pool import ByStratum, Pool
    from poolwise.types import AnyArray, FloatArray

COUNTS = {"a": 700, "b": 500, "c": 300}
LOGGERS = tuple(COUNTS)
NEEDS = Needs(
    means=(REWARD, *map(second_moment, LOGGERS), *map(unsupported_weight, LOGGERS)),
    groups=((BALANCED_REWARD, BALANCED_WEIGHT, ratio("a"), ratio("b")), (WEIGHTED_REWARD,)),
    extremes=(REWARD, WEIGHT),
    tails=(WEIGHT,),
    histograms=(WEIGHT, BALANCED_WEIGHT),
).bind("t")


@pytest.fixture
def table() -> pa.Table:
    return random_table(np.random.default_rng(11), COUNTS)


def moments(
    source: Any,  # noqa: ANN401
    needs: Needs = NEEDS,
    threads: int = 0,
    batch_rows: int = 131_072,
) -> Pool:
    log = log_of(source, LOGGERS)
    with DuckDB(threads, batch_rows=batch_rows).open(log, {"t": "t"}) as rows:
        return rows.moments(needs)


def written(table: pa.Table, path: Path, group: int = 100) -> Path:
    pq.write_table(table, path, row_group_size=group)
    return path


def same(left: ByStratum[Moments], right: ByStratum[Moments]) -> bool:
    """Test if two results have the same bits."""
    return all(
        (m.means == right[i].means).all()
        and np.array_equal(m.scatter, right[i].scatter, equal_nan=True)
        and all((m.tails[t] == right[i].tails[t]).all() for t in m.tails)
        for i, m in left.items()
    )


# The same result for every source of the rows.


@pytest.mark.parametrize("rows", [1, 64, 1_000, 131_072])
def test_files_tables_and_queries_give_the_moments_of_the_judge(
    table: pa.Table, tmp_path: Path, rows: int
) -> None:
    with Reference().open(log_of(table, LOGGERS), {"t": "t"}) as judge:
        expected = judge.moments(NEEDS)
    path = written(table, tmp_path / "log.parquet")
    for source in (table, path, f"SELECT * FROM '{path}'"):
        assert_moments_agree(moments(source, batch_rows=rows), expected)


LABELS: dict[str, pa.DataType] = {
    "text": pa.string(),
    "large text": pa.large_string(),
    "codes": pa.dictionary(pa.int8(), pa.string()),
}


@pytest.mark.parametrize("labels", LABELS)
def test_plain_files_and_tables_do_not_pass_through_a_query(
    table: pa.Table, tmp_path: Path, labels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = moments(table)
    typed = table.set_column(0, "logger", table["logger"].cast(LABELS[labels]))
    path = written(typed, tmp_path / "log.parquet")
    monkeypatch.setattr(DuckDBRows, "_batches", lambda *_: 1 / 0)
    for source in (typed, path):
        assert_moments_agree(moments(source), plain)
    assert_moments_agree(moments(f"SELECT * FROM '{path}'"), plain)
    with pytest.raises(ZeroDivisionError):
        moments(f"SELECT * FROM '{path}' WHERE reward IS NOT NULL")


@pytest.mark.parametrize("reward", [pa.float32(), pa.int16(), pa.bool_()])
def test_integer_labels_and_narrow_rewards_are_plain(
    table: pa.Table, tmp_path: Path, reward: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DuckDBRows, "_batches", lambda *_: 1 / 0)
    codes = pa.array([LOGGERS.index(label) for label in table["logger"].to_pylist()])
    rewards = pa.array(table["reward"].to_numpy() > 1.0)
    plain = table.set_column(1, "reward", rewards.cast(pa.uint8()).cast(pa.float64()))
    narrow = table.set_column(1, "reward", rewards.cast(pa.uint8()).cast(reward))
    narrow = narrow.set_column(0, "logger", codes)
    path = written(narrow, tmp_path / "log.parquet")
    propensities = {k: f"p_{label}" for k, label in enumerate(LOGGERS)}
    names = {label: str(k) for k, label in enumerate(LOGGERS)}
    needs = Needs(groups=((BALANCED_REWARD, BALANCED_WEIGHT),)).bind("t")
    expected = {names[str(i)]: m for i, m in moments(plain, needs).items()}
    for source in (narrow, path):
        with DuckDB().open(log_of(source, propensities=propensities), {"t": "t"}) as rows:
            assert_moments_agree(rows.moments(needs), expected)


@pytest.mark.parametrize("source", ["file", "table", "query"])
def test_dropped_rows_leave_the_same_rows_by_every_way(
    table: pa.Table, tmp_path: Path, source: str
) -> None:
    bad = {"reward": None, "p": 0.0, "t": 2.0, "p_b": float("nan"), "logger": "d"}
    spoiled = table
    for row, (name, value) in enumerate(bad.items()):
        values = spoiled[name].to_pylist()
        values[100 * row] = value
        place = spoiled.column_names.index(name)
        spoiled = spoiled.set_column(place, name, pa.array(values))
    good = [k for k in range(table.num_rows) if k not in {0, 100, 200, 300, 400}]
    path = written(spoiled, tmp_path / "log.parquet")
    sources: dict[str, Any] = {"file": path, "table": spoiled, "query": f"FROM '{path}'"}
    log = log_of(sources[source], LOGGERS, on_fault="drop")
    with DuckDB().open(log, {"t": "t"}) as rows:
        assert sum(rows.all_counts.values()) == table.num_rows
        assert_moments_agree(rows.moments(NEEDS), moments(table.take(good)))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.int32(), pa.dictionary(pa.int16(), pa.string())]
)
def test_buckets_are_the_same_by_every_way(
    table: pa.Table, tmp_path: Path, kind: pa.DataType
) -> None:
    users = pa.array([str(k % 41) for k in range(table.num_rows)])
    typed = users.dictionary_encode() if pa.types.is_dictionary(kind) else users.cast(kind)
    path = written(table.append_column("user", typed), tmp_path / "log.parquet")
    plain = table.append_column("user", typed)
    needs = [Needs(means=(BALANCED_REWARD,)).bind("t")]
    answers = []
    for source in (path, plain, f"FROM '{path}'"):
        log = log_of(source, LOGGERS, cluster="user")
        with DuckDB().open(log, {"t": "t"}) as rows:
            for open_rows in (rows, rows.without("b")):
                (pool,) = open_rows.bucketed(needs, 7)
                answers.append(
                    [{i: (m.count, m.means[0]) for i, m in b.items()} for b in pool.buckets]
                )
    assert len(answers[0]) == 7
    assert all(
        bucket.keys() == same.keys()
        and all(bucket[i] == pytest.approx(same[i], rel=1e-12) for i in bucket)
        for k, answer in enumerate(answers)
        for bucket, same in zip(answer, answers[k % 2], strict=True)
    )


def test_the_same_files_give_the_same_bits_with_any_number_of_threads(
    table: pa.Table, tmp_path: Path
) -> None:
    path = written(table, tmp_path / "log.parquet")
    first = moments(path, threads=1)
    assert all(same(first, moments(path, threads=n)) for n in (1, 2, 5))


@pytest.mark.parametrize("group", [70, 300, 700])
def test_many_row_groups_keep_the_digits_of_rewards_far_from_zero(
    tmp_path: Path, group: int
) -> None:
    counts = {"a": 1_000, "b": 1_500, "c": 500}
    offsets = {"a": 0.0, "b": 1e8, "c": -3e8}
    far = random_table(np.random.default_rng(4), counts, offset=offsets)
    far = far.set_column(far.column_names.index("t"), "t", far["p"])  # own weights are 1
    needs = Needs(groups=((WEIGHTED_REWARD, BALANCED_REWARD),)).bind("t")
    with Reference().open(log_of(far, LOGGERS), {"t": "t"}) as judge:
        expected = judge.moments(needs)
    found = moments(written(far, tmp_path / "log.parquet", group=group), needs, batch_rows=48)
    for logger in LOGGERS:  # without `Sums.rest` errors reach 1e-9
        np.testing.assert_allclose(
            found[logger].scatter, expected[logger].scatter, rtol=1e-13, atol=0
        )


def test_large_row_groups_are_read_in_pieces(
    table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LARGE_GROUP", 4_000)
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
        assert rows.source is not None
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


# Moments, extremes, tails and histograms.


def test_tails_are_the_largest_values_even_where_batches_are_short_of_them(
    tmp_path: Path,
) -> None:
    many = random_table(np.random.default_rng(3), {"a": 9_000, "b": 6_000, "c": 100})
    found = moments(written(many, tmp_path / "log.parquet", group=1_024), batch_rows=512)
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
        rows = found[name].histograms[WEIGHT.bind("t")]
        expected, _ = np.histogram(weights[labels == name], [*edges(), np.inf])
        np.testing.assert_array_equal(rows, expected)
        assert rows.sum() == COUNTS[name]


def test_bins_hold_what_their_edges_say() -> None:
    rng = np.random.default_rng(1)
    values = np.concatenate([2.0 ** rng.uniform(-70, 70, 1_000), edges(), [5e-324, 1e300]])
    of = layout(
        loggers=("a",), crossed=(), shares=(), targets=("t",), scale=Scale(densities=True)
    )
    ones = np.ones(len(values) + 1)
    columns = {"reward": ones, "t_0": np.append(values, 1e300), "propensity": ones.copy()}
    columns["propensity"][-1] = 1e-300  # a weight beyond doubles
    workspace = Workspace(Needs(histograms=(WEIGHT,)).bind("t"))
    sums = Kernel(of, workspace).together([(np.zeros(len(ones), dtype=np.int8), columns)])
    expected = np.searchsorted(edges(), np.append(values, np.inf), side="right") - 1
    expected[(expected == 0) & (columns["t_0"] > 0)] = 1
    counts = np.bincount(np.minimum(expected, BINS - 1), minlength=BINS)
    np.testing.assert_array_equal(sums.histograms[0, 0], counts)


def test_many_targets_give_the_answer_of_one(
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
    log, targets = log_of(table, LOGGERS), {name: name for name in names}
    with DuckDB().open(log, targets) as rows, Reference().open(log, targets) as judge:
        assert_moments_agree(rows.moments(every), judge.moments(every))


# Refused rows.


@pytest.mark.slow
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
    stream = file_stream([(path, None)], {})
    assert stream is not None
    assert [(p.group, p.num_rows) for p in stream.pieces] == [
        (0, 400),
        (1, 400),
        (2, 400),
        (3, 300),
    ]


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


# Each kind of column, compared row by row.

TARGETS = ("t", "u")
LOGS = Scale(logs=True)


def layout(**more: object) -> Layout:
    plain = Layout(LOGGERS, LOGGERS, (0.5, 0.3, 0.2), TARGETS)
    return Layout(**(plain.__dict__ | more))


LAYOUTS = {
    "plain": layout(),
    "without propensity": layout(propensity=False),
    "a logger that is not crossed": layout(crossed=("a", "c"), shares=(0.6, 0.4)),
    "given mixture": layout(mixture=True),
    "reward model": layout(valued=TARGETS, predicted=True),
    "logarithms": layout(scale=LOGS),
    "logarithms without propensity": layout(scale=LOGS, propensity=False),
    "logarithms with a mixture": layout(scale=LOGS, mixture=True),
}


def held(rule: str, bound: float) -> Term:
    """A balanced weight with a rule."""
    return Term((Factor("balanced_weight", rule=rule, bound=bound),))


def needs_of(of: Layout) -> Needs:
    """All terms that a layout has columns for, for each target."""
    rules = [held("clip", 1.5), held("switch", 1.2), held("optimistic", 2.0)]
    crossed = of.crossed
    means = [REWARD, WEIGHTED_REWARD, *rules, *map(unsupported_weight, crossed)]
    means += [*map(second_moment, crossed), *map(weight_moment, crossed)]
    group = [BALANCED_REWARD, BALANCED_WEIGHT, OVERLAP, *map(ratio, crossed)]
    if of.predicted:
        means += [*map(residual_moment, crossed), RESIDUAL * BALANCED_WEIGHT]
        group += [PREDICTED_VALUE, PREDICTED_REWARD]
    needs = Needs(
        means=tuple(means),
        groups=(tuple(group), (WEIGHTED_REWARD, WEIGHT), (OVERLAP_REWARD, REWARD)),
        extremes=(REWARD, WEIGHT),
        tails=(WEIGHT, BALANCED_WEIGHT),
        slices=(BALANCED_REWARD, BALANCED_WEIGHT),
        powers=(REWARD, BALANCED_REWARD),
    )
    return unite(needs.bind(target) for target in of.targets)


def rows_of(of: Layout, number: int = 700) -> tuple[AnyArray, dict[str, FloatArray]]:
    """Rows of all loggers; some have probability 0 under another one, or under a target."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, len(of.loggers), number).astype(np.uint8)
    columns = {name: rng.uniform(0.1, 0.9, number) for name in of.columns}
    for place, label in enumerate(of.crossed):
        mine = codes == of.loggers.index(label)
        columns[f"p_{place}"][~mine & (rng.random(number) < 0.2)] = 0.0
        if of.propensity:
            columns["propensity"][mine] = columns[f"p_{place}"][mine]
    if len(of.crossed) < len(of.loggers):  # otherwise a row may have no mixture
        columns["p_0"] = np.maximum(columns["p_0"], 0.05)
    columns["t_0"][rng.random(number) < 0.2] = 0.0
    columns["reward"] = rng.normal(3.0, 1.0, number)
    return codes, columns


def in_logs(columns: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """The same columns with logarithms for probabilities, below the range of doubles."""
    with np.errstate(divide="ignore"):
        return {
            name: np.log(values) - 800.0
            if name[:2] in {"p_", "t_"} or name in {"propensity", "estimated_mixture"}
            else values
            for name, values in columns.items()
        }


def values_of(
    term: Term, of: Layout, codes: AnyArray, columns: dict[str, FloatArray]
) -> FloatArray:
    """A term in each row, by its definition in `moments.terms`."""
    product = np.ones(len(codes))
    for factor in term.factors:
        product = product * factor_values(factor, of, codes, columns)
    return product


def factor_values(
    factor: Factor, of: Layout, codes: AnyArray, columns: dict[str, FloatArray]
) -> FloatArray:
    probs = {label: columns[f"p_{k}"] for k, label in enumerate(of.crossed)}
    own = np.array([probs.get(of.loggers[g], codes)[i] for i, g in enumerate(codes)])
    own = columns.get("propensity", own)
    mixture = np.array(of.shares) @ np.array(list(probs.values()))
    mixture = columns.get("estimated_mixture", mixture)
    name, prob = factor.name, probs.get(factor.logger, mixture)
    target = columns.get(f"t_{of.targets.index(factor.target or 't')}", mixture)
    zero = prob == 0
    values = {
        **columns,
        "residual": columns["reward"] - columns.get("predicted_reward", 0.0),
        "predicted_value": columns.get(f"v_{of.targets.index(factor.target or 't')}"),
        "weight": target / own,
        "balanced_weight": shrunk(factor, target / mixture),
        "overlap": np.array(list(probs.values())).min(axis=0) / own,
        "ratio": prob / mixture,
        "unsupported": zero.astype(np.float64),
        "inverse_ratio": np.where(zero, UNSUPPORTED, mixture / np.where(zero, 1.0, prob)),
    }
    return np.asarray(values[name], dtype=np.float64)


def shrunk(factor: Factor, weight: FloatArray) -> FloatArray:
    bound = factor.bound
    rules = {
        "": weight,
        "clip": np.minimum(weight, bound),
        "switch": np.where(weight > bound, 0.0, weight),
        "optimistic": bound * weight / (weight * weight + (bound or 1.0)),
    }
    return rules[factor.rule]


def kernel_moments(
    of: Layout, needs: Needs, codes: AnyArray, columns: Mapping[str, AnyArray], size: int = 97
) -> dict[str, Moments]:
    workspace = Workspace(needs)
    sums = Kernel(of, workspace).together(cut(codes, columns, size))
    return to_moments(sums, workspace, of.loggers)


@pytest.mark.parametrize("size", [1, 97, 700])
@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_has_the_moments_of_its_rows(name: str, size: int) -> None:
    of = LAYOUTS[name]
    needs, (codes, columns) = needs_of(of), rows_of(of)
    values = {term: values_of(term, of, codes, columns) for term in needs.terms}
    expected = {
        label: exact_moments({t: v[codes == g] for t, v in values.items()}, needs)
        for g, label in enumerate(of.loggers)
    }
    assert max(expected["a"].means) > UNSUPPORTED / 1e3  # a logger is zero in a row
    given = in_logs(columns) if of.scale.logs else columns
    found = kernel_moments(of, needs, codes, given, size)
    for label, moments in found.items():
        judge = expected[label]
        # a logarithm near -800 has 13 digits after the point
        rtol = 1e-11 if of.scale.logs else 1e-12
        np.testing.assert_allclose(moments.means, judge.means, rtol=rtol)
        spread = np.sqrt(np.diag(judge.scatter))
        error = np.abs(moments.scatter - judge.scatter) / np.outer(spread, spread)
        assert np.nanmax(error) < rtol
        np.testing.assert_array_equal(np.isnan(moments.scatter), np.isnan(judge.scatter))
        np.testing.assert_allclose(moments.lowest, judge.lowest, rtol=rtol)
        np.testing.assert_allclose(moments.largest, judge.largest, rtol=rtol)
        mine = np.flatnonzero(codes == of.loggers.index(label)).tolist()
        assert moments.span == (mine[0], mine[-1])
        for kind in ("tails", "slices", "powers"):
            for term, values_of_term in getattr(judge, kind).items():
                result = getattr(moments, kind)[term]
                np.testing.assert_allclose(result, values_of_term, rtol=rtol)


def test_columns_need_neither_be_doubles_nor_contiguous() -> None:
    of = LAYOUTS["plain"]
    codes, columns = rows_of(of)
    columns["reward"] = np.round(columns["reward"] * 8)
    odd: dict[str, AnyArray] = {name: np.repeat(v, 3)[::3] for name, v in columns.items()}
    odd["reward"] = columns["reward"].astype(np.int16)
    for values in odd.values():
        values.flags.writeable = False
    plain = kernel_moments(of, needs_of(of), codes, columns)
    assert same(plain, kernel_moments(of, needs_of(of), codes, odd))


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_each_type_of_column_is_read(kind: np.dtype[Any]) -> None:
    of = LAYOUTS["plain"]
    codes, columns = rows_of(of)
    columns["reward"] = np.round(columns["reward"] * 8) % 50
    narrow: dict[str, AnyArray] = columns | {"reward": columns["reward"].astype(kind)}
    plain = kernel_moments(of, needs_of(of), codes, columns)
    assert same(plain, kernel_moments(of, needs_of(of), codes, narrow))


@pytest.mark.parametrize("buckets", [7, 400])
def test_groups_have_the_sums_of_their_rows(buckets: int) -> None:
    of = layout(buckets=buckets)
    workspace, (codes, columns) = Workspace(needs_of(of)), rows_of(of)
    groups = np.random.default_rng(2).integers(0, buckets, len(codes)) * len(LOGGERS) + codes
    sums = Kernel(of, workspace).together([(groups, columns)])
    one = Kernel(layout(), workspace)
    for group in {*groups.tolist()}:
        rows = groups == group
        mine = one.together([(codes[rows], {name: v[rows] for name, v in columns.items()})])
        for name in ("count", "means", "products", "plain", "largest", "powers"):
            ours, theirs = getattr(sums, name), getattr(mine, name)
            np.testing.assert_array_equal(ours[group], theirs[group % len(LOGGERS)], name)


def test_each_kind_of_processor_gives_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    of = LAYOUTS["plain"]
    codes, columns = rows_of(of, 3_000)
    found = kernel_moments(of, needs_of(of), codes, columns)
    monkeypatch.setattr(compiled, "ENTRY", "poolwise_add_anywhere")
    for label, moments in kernel_moments(of, needs_of(of), codes, columns).items():
        np.testing.assert_allclose(moments.means, found[label].means, rtol=1e-13)
        spread = np.sqrt(np.diag(found[label].scatter))
        gap = np.abs(moments.scatter - found[label].scatter) / np.outer(spread, spread)
        assert np.nanmax(gap) < 1e-13


def test_a_kernel_of_another_source_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(compiled.FOLDER, tmp_path / "native")
    monkeypatch.setattr(compiled, "FOLDER", folder)
    compiled.library.__wrapped__()
    (folder / "kernel.c").write_text("int other;")
    with pytest.raises(PoolwiseError, match="compiled from another"):
        compiled.library.__wrapped__()
    monkeypatch.setattr(compiled, "FOLDER", tmp_path)
    with pytest.raises(PoolwiseError, match="cannot be loaded"):
        compiled.library.__wrapped__()


@pytest.mark.parametrize("seed", range(5))
def test_tiles_cover_each_product_once(seed: int) -> None:
    wanted = np.argwhere(np.random.default_rng(seed).random((23, 17)) < (0.1, 0.9)[seed % 2])
    products = [(a, 30 + b, place) for place, (a, b) in enumerate(wanted.tolist())]
    covered = {}
    for tile in tiles(products):
        pairs = [{int(a), int(b)} for a in tile["left"] for b in tile["right"]]
        for pair, place in zip(pairs, tile["place"].tolist(), strict=True):
            if place >= 0:
                assert place not in covered
                covered[place] = pair
    assert covered == {place: {a, b} for a, b, place in products}


@pytest.mark.parametrize("rows", [(9_000, 0, 0), (0, 0, 9_000), (0, 20, 0), (9_000, 3, 9_000)])
def test_a_batch_may_lack_a_logger(rows: tuple[int, ...]) -> None:
    of = LAYOUTS["without propensity"]
    _, columns = rows_of(of, sum(rows))
    columns |= {f"p_{k}": np.full(sum(rows), 0.1 + 0.2 * k) for k in range(len(LOGGERS))}
    codes = np.repeat(np.arange(len(rows)), rows)
    found = kernel_moments(of, needs_of(of), codes, columns, sum(rows))
    assert {i: m.count for i, m in found.items()} == {
        i: n for i, n in zip(LOGGERS, rows, strict=True) if n
    }
    for g, label in enumerate(LOGGERS):
        if rows[g]:
            expected = columns["reward"][codes == g].mean()
            assert found[label].mean(REWARD) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_wanted_pair_is_multiplied_once(name: str) -> None:
    workspace = Workspace(needs_of(LAYOUTS[name]))
    place = {term: k for k, term in enumerate(workspace.singles)}
    wanted = wanted_pairs(place, workspace.needs)
    covered = np.zeros(wanted.shape, dtype=int)
    np.add.at(covered, tuple(workspace.pairs), 1)
    np.testing.assert_array_equal(covered, np.tril(wanted))


def test_a_logarithm_too_small_for_a_double_is_a_logger_that_does_not_play() -> None:
    of = layout(scale=LOGS, loggers=("a",), crossed=("a", "b"), shares=(1.0, 0.0))
    needs = Needs(means=(unsupported_weight("b"), weight_moment("b"))).bind("t")
    columns = {name: np.array([0.0 if name != "p_1" else -1000.0]) for name in of.columns}
    found = kernel_moments(of, needs, np.zeros(1, dtype=np.uint8), columns)["a"]
    assert [found.mean(t) for t in needs.means] == [1.0, UNSUPPORTED]  # e ** -1000 is 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward", np.nan),
        ("reward", np.inf),
        ("p_1", -1e-300),
        ("p_1", 1.0000001),
        ("t_0", np.nan),
        ("t_1", 1.5),
        ("propensity", 0.0),
        ("propensity", 0.999),
    ],
)
def test_a_bad_row_is_refused(name: str, value: float) -> None:
    of = LAYOUTS["plain"]
    codes, columns = rows_of(of)
    kernel = Kernel(of, Workspace(needs_of(of)))
    kernel.together([(codes, columns)])
    columns[name][-3] = value
    with pytest.raises(BadRowsError):
        kernel.together(cut(codes, columns, 97))


@pytest.mark.parametrize("code", [-1, len(LOGGERS)])
def test_a_row_without_a_group_is_refused(code: int) -> None:
    of = LAYOUTS["plain"]
    codes, columns = rows_of(of)
    codes = codes.astype(np.int64)
    codes[5] = code
    with pytest.raises(BadRowsError):
        Kernel(of, Workspace(needs_of(of))).together([(codes, columns)])


def test_a_product_beyond_doubles_makes_no_mean_that_looks_right() -> None:
    of = LAYOUTS["plain"]
    codes, columns = rows_of(of)
    last = int(np.flatnonzero(codes == 0)[-1])
    columns["reward"][last], columns["t_0"][last] = 1.7e308, 0.9
    for name in ("propensity", "p_0", "p_1", "p_2"):
        columns[name][last] = 0.1
    needs = Needs(groups=((BALANCED_REWARD,),)).bind("t")
    found = kernel_moments(of, needs, codes, columns, 700)
    assert not np.isfinite(found["a"].means[0])
    assert np.isfinite(found["b"].means[0])
