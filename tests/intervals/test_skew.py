"""The skew-score interval: reference limits from rows, however the rows are split."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import poolwise as pw
from benchmarks.draws import cells_of, deal, draw, powers_of
from benchmarks.families import FAMILIES, draw_problem
from poolwise.engines.duckdb import DuckDB
from poolwise.estimators.calibrated import Calibrated, SelfNormalised
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.intervals.skew import (
    auto_interval,
    interval_needs,
    known_columns,
    measure_reach,
    root,
    shaped_interval,
    without_rewards,
)
from poolwise.intervals.student import BOUNDED, Limits, student, student_interval
from poolwise.moments import units
from poolwise.moments.coverage import Coverage
from poolwise.moments.estimate import Estimate, student_quantile
from poolwise.moments.linear import Fit, Linear, Score
from poolwise.moments.moments import pool_moments
from poolwise.moments.pool import Pool
from poolwise.moments.shape import (
    Powers,
    Shape,
    cube,
    cumulants,
    estimate_powers,
    measure_shape,
)
from poolwise.moments.tallies import add_slices, slice_rows
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    PERIOD_RESIDUAL,
    PERIOD_REWARD,
    PERIOD_WEIGHT,
    PREDICTED_VALUE,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    ratio,
    unite,
)
from poolwise.moments.units import centre_units, find_pull

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.intervals.student import Sides
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.moments import Moments

GOLDEN = json.loads((Path(__file__).parents[1] / "support/golden_intervals.json").read_text())
LEVELS = (90, 95, 99)


def golden_log(name: str, folder: Path | None = None, rows: int = 0) -> pw.Log:
    """A log of the reference file; in Parquet files of so many rows if a folder is given."""
    rows_of = GOLDEN["logs"][name]["rows"]
    values = np.array([row[1:] for row in rows_of], dtype=np.float64)
    labels = sorted({row[0] for row in rows_of})
    weight, reward, ratios = values[:, 0], values[:, 1], values[:, 2:]
    scale = 1 / max(weight.max(), ratios.max())  # any mixture will do: ratios are all
    columns: dict[str, Any] = {"logger": [str(row[0]) for row in rows_of], "reward": reward}
    columns |= {f"p_{i}": ratios[:, k] * scale for k, i in enumerate(labels)}
    table = pa.table(columns | {"target": weight * scale})
    source: Any = table
    if folder is not None:
        for start in range(0, len(table), rows):
            pq.write_table(table[start : start + rows], folder / f"{start:04}.parquet")
        source = str(folder / "*.parquet")
    propensities = {str(i): f"p_{i}" for i in labels}
    return pw.Log(source, logger="logger", reward="reward", propensities=propensities)


@pytest.mark.parametrize("unit", [2.0**-240, 2.0**60, 2.0**240])
@pytest.mark.parametrize("name", GOLDEN["logs"])
def test_limits_have_the_unit_of_the_rewards(name: str, unit: float) -> None:
    log = golden_log(name)
    table = log.source
    assert isinstance(table, pa.Table)
    rewards = table["reward"].to_numpy()
    scaled = replace(log, source=table.set_column(1, "reward", pa.array(rewards * unit)))
    plain, larger = (pw.evaluate(each, "target")["target"].intervals for each in (log, scaled))
    for of, interval in larger.items():
        expected = (plain[of].lower, plain[of].upper)
        ends = (interval.lower / unit, interval.upper / unit)
        assert ends == pytest.approx(expected, rel=1e-9), of


def moments_of(log: pw.Log, estimator: Estimator) -> Pool:
    """Moments of a log that an estimator and its interval need, from all its batches."""
    loggers = tuple(log.by_label)
    with DuckDB().open(log, {"t": "target"}) as opened:
        needs = estimator.needs(Coverage.complete(loggers))
        needs |= interval_needs(needs, loggers)
        moments = opened.moments(needs.bind("t"))
    return moments.select({t: t.bind("t") for t in needs.terms})


def published(log: pw.Log, estimator: Estimator, level: float) -> list[float]:
    """Limits of the rule of the reference file, whose weights 1 + pull are not squared."""
    moments = moments_of(log, estimator)
    estimate = estimator.estimate(moments)
    columns, within = known_columns(estimate.linear, moments)
    pull = find_pull(columns, moments, within=within)
    shape = measure_shape(centre_units(estimate.linear, moments) or (), pull)
    powers = estimate_powers(estimate.linear, moments)
    interval, _ = shaped_interval(estimate, shape, powers, level, FREE)
    return [interval.lower, interval.upper]


def corrected(name: str, level: int) -> list[float]:
    """Limits of calibrated, by hand: the reference ones, with squared weights of the rows."""
    values = np.array(GOLDEN["logs"][name]["rows"], dtype=np.float64)
    label, weight, reward = values[:, 0], values[:, 1], values[:, 2]
    weighted, columns = weight * reward, values[:, [1, *range(3, values.shape[1])]] - 1
    centred = columns - columns.mean(axis=0)
    inverse = np.linalg.pinv(centred, rcond=1e-6)
    weights = 1 - len(values) * columns.mean(axis=0) @ inverse
    residual = weighted - columns @ (inverse @ weighted)
    squares = np.zeros(len(values))
    for rows in (label == i for i in np.unique(label)):
        squares[rows] = (residual[rows] - residual[rows].mean()) ** 2 * sum(rows)
        squares[rows] /= sum(rows) - 1
    expected = GOLDEN["logs"][name]["expected"]["calibrated"]
    assert (weights * weighted).mean() == pytest.approx(expected["value"], abs=1e-10)
    rise = max(1.0, (weights**2 * squares).sum() / squares.sum())
    more = math.sqrt(rise / max(1.0, expected["Vcal"] / expected["V"]))
    return [
        expected["value"] + more * (end - expected["value"])
        for end in expected[f"limits{level}"]
    ]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", GOLDEN["logs"])
def test_limits_of_the_reference_logs(name: str, level: int) -> None:
    log = golden_log(name)
    intervals = pw.evaluate(log, "target", level=level / 100)["target"].intervals
    ends = {of: [interval.lower, interval.upper] for of, interval in intervals.items()}
    limits = {
        of: each[f"limits{level}"] for of, each in GOLDEN["logs"][name]["expected"].items()
    }
    assert ends["balanced"] == pytest.approx(limits["balanced"], abs=1e-9, rel=0)
    rule = published(log, Calibrated(), level / 100)
    assert rule == pytest.approx(limits["calibrated"], abs=1e-9, rel=0)
    assert ends["calibrated"] == pytest.approx(corrected(name, level), abs=1e-9, rel=0)


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("name", list(GOLDEN["logs"])[1:3])
def test_limits_do_not_depend_on_the_batches(name: str, rows: int, tmp_path: Path) -> None:
    log = golden_log(name, tmp_path, rows)
    intervals = pw.evaluate(log, "target")["target"].intervals
    ends = {of: [interval.lower, interval.upper] for of, interval in intervals.items()}
    limits = {of: each["limits95"] for of, each in GOLDEN["logs"][name]["expected"].items()}
    assert ends["balanced"] == pytest.approx(limits["balanced"], abs=1e-9, rel=0)
    rule = published(log, Calibrated(), 0.95)
    assert rule == pytest.approx(limits["calibrated"], abs=1e-9, rel=0)
    assert ends["calibrated"] == pytest.approx(corrected(name, 95), abs=1e-9, rel=0)


def test_weights_of_rows_that_the_slopes_imply() -> None:
    """By hand: the weights 1 + pull are 15/17 (thrice), 35/34 and 45/34."""
    weight, reward = np.array([0.5, 0.5, 0.5, 1.0, 2.0]), [0.0, 1.0, 2.0, 3.0, 1.0]
    columns = {"l": ["a"] * 5, "r": reward, "p": [0.25] * 5, "target": weight / 4}
    log = pw.Log(pa.table(columns), logger="l", reward="r", propensities={"a": "p"})
    estimator = Calibrated(guard=False)
    moments = moments_of(log, estimator)
    estimate = estimator.estimate(moments)
    assert estimate.value == pytest.approx(24 / 17)
    known, within = known_columns(estimate.linear, moments)
    units = centre_units(estimate.linear, moments) or ()
    pull = find_pull(known, moments, within=within)
    assert 34 * (1 + pull) == pytest.approx([30, 30, 30, 35, 45])
    assert measure_shape(units, pull).rise == pytest.approx(7347 / 7225)
    squared = find_pull(known, moments, within=within, fitted=True)
    assert measure_shape(units, squared).rise == pytest.approx(25686 / 24565)
    twice = Pool(moments, (moments, moments))
    assert np.array_equal(
        find_pull(known, twice, within=within, fitted=True),
        find_pull(known, twice, within=within),
    )


def test_a_column_without_a_slope_raises_no_variance() -> None:
    """Weights near 1.5 have a mean that is missed, but vary too little to be regressed on."""
    rng = np.random.default_rng(2)
    weight = 1.5 + 1e-8 * rng.normal(size=60)
    columns = {"l": ["a"] * 60, "r": rng.random(60), "p": [0.25] * 60, "target": weight / 4}
    log = pw.Log(pa.table(columns), logger="l", reward="r", propensities={"a": "p"})
    moments = moments_of(log, Calibrated())
    linear = Calibrated().estimate(moments).linear
    known, within = known_columns(linear, moments)
    assert not np.any(find_pull(known, moments, within=within, fitted=True))
    assert np.abs(find_pull(known, moments, within=within)).max() > 1e6


def test_squared_weights_of_slices_count_their_rows() -> None:
    """Slices of 509 have about 13 rows here: a square of their sum counts as one row's."""
    moments, _ = drawn("B mixed", 6, 20_000)
    columns, within = known_columns(Calibrated().estimate(moments).linear, moments)
    plain, squared = (
        np.asarray(find_pull(columns, moments, within=within, fitted=fitted))
        for fitted in (False, True)
    )
    rows = np.concatenate([slice_rows(m.count, 509) for m in moments.values()])
    assert rows.sum() == sum(m.count for m in moments.values())
    assert rows.min() > 1
    assert squared == pytest.approx(2 * plain + plain**2 / rows, rel=1e-12)


@given(
    rows=st.integers(0, 40), slices=st.integers(1, 13), cut=st.floats(0, 1), seed=st.integers(0)
)
def test_slices_continue_where_the_last_batch_ended(
    rows: int, slices: int, cut: float, seed: int
) -> None:
    values = np.random.default_rng(seed % 2**32).normal(size=(2, rows))
    direct = np.array([values[:, k::slices].sum(axis=1) for k in range(slices)]).T
    first = int(cut * rows)
    parts = [values[:, :first], values[:, first:]]
    dealt = [np.zeros((2, slices)) for _ in parts]
    for part, out in zip(parts, dealt, strict=True):
        deal(part, out)
    add_slices(dealt[0], dealt[1], first)
    assert dealt[0] == pytest.approx(direct, abs=1e-12)
    assert slice_rows(rows, slices).sum() == rows


def test_powers_of_a_term() -> None:
    values = np.array([[0.0, -2.0, 3.0]])
    assert powers_of(values).tolist() == [[2.0, 5.0, 13.0, 35.0, 97.0, 3.0]]


def test_cumulants_of_units_are_those_of_their_sum() -> None:
    """Enumeration: a sum of n draws from {0, 1} with odds p has known cumulants."""
    size, odds = 6, 0.3
    outcomes = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    prob = np.prod(np.where(outcomes, odds, 1 - odds), axis=1)
    units = (outcomes - outcomes.mean(axis=1, keepdims=True)) / 1.0
    variance, third, _ = prob @ cumulants(units).T
    assert variance == pytest.approx(size * odds * (1 - odds))
    assert third == pytest.approx(size * odds * (1 - odds) * (1 - 2 * odds))


def test_noise_of_two_values() -> None:
    """Units of -1 and 1 have m2 = m4 = 1: n (1 - (n - 3) / (n - 1)) = 2n / (n - 1)."""
    units = np.array([-1.0, 1.0] * 5)
    assert cumulants(units) == pytest.approx([100 / 9, 0.0, 20 / 9])


def drawn(
    name: str = "B mixed", seed: int = 6, rows: int = 300, log: int = 0
) -> tuple[Pool, float]:
    """Moments of one simulated log with slices and powers, and the true value."""
    problem = draw_problem(FAMILIES[name], rows, np.random.default_rng(seed))
    needs = unite(e.needs(Coverage.complete(tuple(problem.loggers))) for e in ALL)
    writers = cells_of(problem, needs | interval_needs(needs))
    return Pool(draw(writers, np.random.default_rng(log))), problem.value


ALL: tuple[Estimator, ...] = (
    Calibrated(),
    Balanced(),
    SelfNormalised(),
    Naive(),
    Weighted(),
)
FREE = Limits(rows=300)


@pytest.mark.parametrize("estimator", ALL, ids=lambda e: e.name)
def test_one_sided_limits_are_those_of_a_wider_interval(estimator: Estimator) -> None:
    moments, _ = drawn()
    estimate = estimator.estimate(moments)
    both, _ = auto_interval(estimate, moments, 0.9, FREE)
    lower, _ = auto_interval(estimate, moments, 0.95, FREE, "lower")
    upper, _ = auto_interval(estimate, moments, 0.95, FREE, "upper")
    assert (lower.lower, upper.upper) == pytest.approx((both.lower, both.upper))
    assert (lower.upper, upper.lower) == (math.inf, -math.inf)


@pytest.mark.parametrize("estimator", ALL, ids=lambda e: e.name)
def test_reversed_rewards_mirror_the_limits(estimator: Estimator) -> None:
    problem = draw_problem(FAMILIES["B mixed"], 300, np.random.default_rng(6))
    mirrored = replace(problem, reward=-problem.reward)
    needs = unite(e.needs(Coverage.complete(tuple(problem.loggers))) for e in ALL)
    needs |= interval_needs(needs)
    ends = []
    for one in (problem, mirrored):
        # two rewards of each cell: the same uniform draws give mirrored rewards
        flat = replace(one, reward_variance=np.zeros_like(one.reward))
        moments = Pool(draw(cells_of(flat, needs), np.random.default_rng(1)))
        interval, _ = auto_interval(estimator.estimate(moments), moments, 0.95, FREE)
        ends.append((interval.lower, interval.upper))
    assert ends[1] == pytest.approx((-ends[0][1], -ends[0][0]), rel=1e-9)


def test_estimates_of_one_target_share_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    moments, _ = drawn()
    estimates = [estimator.estimate(moments) for estimator in ALL]
    read: list[object] = []
    known = units._known_columns  # noqa: SLF001 - what is shared

    def counted(columns: Sequence[Score], pool: Pool, *, within: bool) -> units.KnownColumns:
        read.append(columns)
        return known(columns, pool, within=within)

    monkeypatch.setattr(units, "_known_columns", counted)
    shared = Pool(moments)
    found = [auto_interval(estimate, shared, 0.95, FREE) for estimate in estimates]
    assert 0 < len(read) < len(estimates)
    assert found == [auto_interval(e, Pool(moments), 0.95, FREE) for e in estimates]


def test_the_skew_is_on_the_side_of_the_heavy_rows() -> None:
    moments, _ = drawn()
    estimate = Balanced().estimate(moments)
    interval, _ = auto_interval(estimate, moments, 0.95, FREE)
    assert interval.upper - estimate.value > 1.3 * (estimate.value - interval.lower)


def test_without_slices_the_interval_is_students() -> None:
    moments, _ = drawn()
    bare = Pool({i: replace(m, slices={}, powers={}) for i, m in moments.items()})
    estimate = Balanced().estimate(bare)
    assert auto_interval(estimate, bare, 0.95, FREE)[0] == student(estimate, 0.95)


def test_large_logs_have_students_interval() -> None:
    moments, _ = drawn("F floor", 1, 100_000)
    for estimator in ALL[:2]:
        estimate = estimator.estimate(moments)
        interval, _ = auto_interval(estimate, moments, 0.95, FREE)
        known = student(estimate, 0.95)
        width = known.upper - known.lower
        ends = [interval.lower - known.lower, interval.upper - known.upper]
        assert ends == pytest.approx([0, 0], abs=0.01 * width)


def test_slices_of_many_rows_give_the_shape_of_the_rows() -> None:
    """Skewness from 509 slices agrees with that of rows, as far as its noise allows."""
    moments, _ = drawn("B mixed", 6, 20_000)
    estimate = Balanced().estimate(moments)
    rows = sum(m.count for m in moments.values())
    shares = {i: m.count / rows for i, m in moments.items()}
    assert set(estimate.linear.parts) == set(shares)
    units = centre_units(estimate.linear, moments)
    assert units is not None
    assert [len(u) for u in units] == [509] * len(moments)
    shape = measure_shape(units)
    powers = pool_moments(moments.values()).powers[BALANCED_REWARD]
    mean = estimate.value
    third = powers[3] - 3 * mean * powers[2] + 3 * mean**2 * powers[1] - rows * mean**3
    direct = third / rows**3 / estimate.variance**1.5  # z >= 0: |z| = z
    noise = math.sqrt(15) / (509 * len(moments))
    assert shape.skewness == pytest.approx(direct, abs=4 * noise)


def test_limits_stay_in_the_range_of_the_rewards() -> None:
    moments, _ = drawn(rows=60)
    limits = replace(FREE, reward_range=(0.2, 0.6))
    estimate = Balanced().estimate(moments)
    interval, _ = auto_interval(estimate, moments, 0.999, limits)
    assert (interval.lower, interval.upper) == (0.2, 0.6)
    lower, _ = auto_interval(estimate, moments, 0.999, limits, "lower")
    assert lower.upper == math.inf


@pytest.mark.parametrize(("cluster", "independent"), [(None, 100), ("u", 47)])
def test_a_log_without_rewards_has_an_upper_limit(
    cluster: str | None, independent: int
) -> None:
    r"""$z_0^2 (W_3 / W_2) r_{max} / N$, with weights 0.5, 2; 50 clusters share 47 buckets."""
    weight = np.array([0.5, 2.0] * 50)
    columns = {"t": weight / 4, "p": np.full(100, 0.25), "r": np.zeros(100), "l": ["a"] * 100}
    log = pw.Log(
        pa.table(columns | {"u": np.arange(100) // 2}),
        logger="l",
        reward="r",
        propensities={"a": "p"},
        reward_range=(0.0, 3.0),
        cluster=cluster,
    )
    result = pw.evaluate(log, "t")["target"]
    expected = 1.959963984540054**2 * (8.125 / 4.25) * 3.0 / independent
    interval = result.intervals["balanced"]
    assert (interval.lower, interval.upper) == pytest.approx((0.0, expected))
    assert "bounded-interval" in {f.code for f in result.findings}


def test_a_root_and_none() -> None:
    assert root(lambda x: x**3 - 20, 1.0) == pytest.approx(20 ** (1 / 3), abs=1e-12)
    assert root(lambda _: -1.0, 1.0) == math.inf


def test_a_root_takes_few_steps() -> None:
    values = []

    def function(x: float) -> float:
        values.append(x)
        return x - 1 + x**2 / 100

    exact = 50 * (math.sqrt(1.04) - 1)
    assert root(function, 1.3) == pytest.approx(exact, abs=1e-12)
    assert len(values) <= 8


@given(st.integers(2, 40), st.integers(2, 40), st.integers(2, 40))
def test_constant_weights_raise_no_variance(first: int, second: int, third: int) -> None:
    """Shares such as 3 / 8 leave a rounding error in columns that are 0 in each row."""
    rows = first + second + third
    reward = np.random.default_rng(rows).normal(size=rows)
    labels = ["a"] * first + ["b"] * second + ["c"] * third
    columns = {"logger": labels, "reward": reward, "one": [0.3] * rows, "t": [0.3] * rows}
    propensities = dict.fromkeys("abc", "one")
    log = pw.Log(pa.table(columns), logger="logger", reward="reward", propensities=propensities)
    with DuckDB().open(log, {"t": "t"}) as opened:
        needs = Balanced().needs(Coverage.complete("abc"))
        needs |= interval_needs(needs, "abc")
        moments = opened.moments(needs.bind("t"))
    view = Pool(
        {i: m.select({t: t.bind("t") for t in needs.terms}) for i, m in moments.items()}
    )
    columns_of, within = known_columns(Balanced().estimate(view).linear, view)
    assert not np.any(find_pull(columns_of, view, within=within))


def test_adapted_shares_keep_both_limits_at_least_as_far_as_students() -> None:
    """Weighted lowers the share of a logger whose rows show large rewards, and so itself."""
    moments, _ = drawn()
    estimate = Weighted().estimate(moments)
    assert estimate.linear.adapted
    interval, _ = auto_interval(estimate, moments, 0.95, FREE)
    fixed = replace(estimate, linear=replace(estimate.linear, adapted=False))
    shorter, _ = auto_interval(fixed, moments, 0.95, FREE)
    assert interval.lower < student(estimate, 0.95).lower < shorter.lower
    assert interval.upper == shorter.upper > student(estimate, 0.95).upper


def with_tails(moments: Pool, factor: float) -> Pool:
    """The same moments, but with rewards whose fourth powers are larger by a factor."""
    more = np.array([1, 1, 1, 1, factor, 1])

    def grow(_: object, m: Moments) -> Moments:
        powers = {t: p * (more if t == REWARD else 1) for t, p in m.powers.items()}
        return replace(m, powers=powers)

    return moments.change(grow)


@pytest.mark.parametrize("tails", [1.0, 100.0])
def test_a_ratio_is_in_its_interval_if_the_difference_covers_zero(tails: float) -> None:
    """Fieller: at each limit u the interval of "reward - u weight" ends at 0."""
    moments = with_tails(drawn()[0], tails)
    estimate = SelfNormalised().estimate(moments)
    interval, _ = auto_interval(estimate, moments, 0.95, FREE)
    columns, within = known_columns(estimate.linear, moments)
    pull = find_pull(columns, moments, within=within)
    powers = estimate_powers(Score({BALANCED_REWARD: 1.0}).over(moments), moments)
    more = estimate.variance / estimate.linear.plain.variance(moments)[0]
    assert interval.lower < estimate.value < interval.upper
    for limit in (interval.lower, interval.upper):
        linear = Score({BALANCED_REWARD: 1.0, BALANCED_WEIGHT: -limit}).over(moments)
        shape = measure_shape(centre_units(linear, moments) or (), pull)
        variance = more * linear.variance(moments)[0]
        reach = measure_reach(replace(estimate, variance=variance), shape, powers, 0.025)
        value = linear.value(moments)
        end = value - reach.below if value > 0 else value + reach.above
        assert end == pytest.approx(0.0, abs=1e-10 * abs(value))
    assert interval.level == 0.95


def test_a_ratio_without_limits_has_those_of_its_linearisation() -> None:
    """With a large variance the mean weight may be 0, so that no ratio is excluded."""
    moments, _ = drawn(rows=60)
    plain = SelfNormalised().estimate(moments)
    for factor, same in ((1.0, False), (1e4, True)):
        estimate = replace(plain, variance=plain.variance * factor)
        linear = replace(estimate, linear=replace(estimate.linear, ratio=None))
        ends = [auto_interval(e, moments, 0.9, FREE)[0] for e in (estimate, linear)]
        assert (ends[0] == ends[1]) is same


@pytest.mark.parametrize("sides", ["two", "upper"])
@pytest.mark.parametrize("estimator", [Calibrated(), Naive(), Balanced()], ids=lambda e: e.name)
def test_the_interval_has_the_shape_of_the_slices(estimator: Estimator, sides: Sides) -> None:
    moments, _ = drawn()
    estimate = estimator.estimate(moments)
    linear = estimate.linear
    columns, within = known_columns(linear, moments)
    pull = find_pull(columns, moments, within=within, fitted=linear.fit is not None)
    shape = measure_shape(centre_units(linear, moments) or (), pull)
    powers = estimate_powers(linear, moments)
    expected = shaped_interval(estimate, shape, powers, 0.9, FREE, sides)
    assert auto_interval(estimate, moments, 0.9, FREE, sides) == expected
    bare = Pool({i: replace(m, slices={}) for i, m in moments.items()})
    assert auto_interval(estimate, bare, 0.9, FREE, sides)[0] == student(estimate, 0.9, sides)


# ---------------------------------------- worked out by hand

ALPHA = 0.05
NORMAL = student_quantile(0.95, math.inf)


def estimate_of(variance: float, *, adapted: bool = False, freedom: float = 30.0) -> Estimate:
    linear = Linear({}, inflation=1.25, adapted=adapted)
    return Estimate(2.0, variance, {}, freedom=freedom, linear=linear)


def powers_like(kurtosis: float, largest: float = 6.0) -> Powers:
    """Powers of 10 rows, of which 4 have rewards."""
    reward = np.array([4.0, 4.0, 8.0, 16.0, 16 * kurtosis, 9.0])
    weight = np.array([10.0, 6.0, 12.0, 30.0])
    return Powers(10, reward, weight, np.array([4.0, 3.0, 4.0, 8.0, 16.0, largest]))


def far(skew: float, student: float) -> float:
    """The root of d² = t² (1 + z skew d / t)."""
    half = NORMAL * skew / 2
    return student * (half + math.sqrt(1 + half**2))


def hall(skew: float, student: float) -> float:
    return 3 / skew * (math.cbrt(1 + skew * (student - skew / 6)) - 1)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_reach_of_a_shape(sign: int) -> None:
    shape = Shape(sign * 0.8, 0.9, 4.0)
    student = student_quantile(0.95, 2 / (0.9 - 0.64))  # freedom by the kurtosis
    reach = measure_reach(estimate_of(0.45), shape, None, ALPHA)
    error = math.sqrt(0.45 * 4)
    near, wide = error * hall(0.8, student), error * far(0.8, student)
    expected = (near, wide) if sign > 0 else (wide, near)
    assert (reach.below, reach.above) == pytest.approx(expected, rel=1e-12)
    # an estimate whose shares fell with the rewards is not lower than Student's
    reach = measure_reach(estimate_of(0.45, adapted=True), shape, None, ALPHA)
    both = (error * student, wide) if sign > 0 else (wide, error * student)
    assert (reach.below, reach.above) == pytest.approx(both, rel=1e-12)


@pytest.mark.parametrize(
    ("kurtosis", "heavy"), [(10.0, 0.5), (4.0, 0.0), (7.5, 0.25), (15.0, 1.0), (90.0, 1.0)]
)
def test_heavy_rewards_count_one_more_row_like_the_largest(
    kurtosis: float, heavy: float
) -> None:
    # a variance of 0.36 without the inflation: the largest row of 3 / 10 is half an error
    powers = powers_like(kurtosis, 3.0)
    reach = measure_reach(estimate_of(0.45), Shape(0.8, 0.9, 1.0), powers, ALPHA)
    student = student_quantile(0.95, 2 / (0.9 - (1 - heavy / 2) * 0.64))
    wider = 1 + heavy / 4
    skew = (0.8 + heavy / 8) / wider**1.5
    # two ghosts with rewards of 1, 2, 4 on average, and weights of 0.6, 1.2, 3
    rise = [(3 + 1.2) / 3, (4 + 4.8) / 4, (8 + 24.0) / 8]
    spread, tilt = rise[1] / rise[0], rise[2] / rise[1]
    rare = math.sqrt(spread) * far(skew * tilt / math.sqrt(spread), student)
    assert rare > far(skew, student)
    expected = math.sqrt(0.45 * wider) * rare
    assert reach.above == pytest.approx(expected, rel=1e-12)
    assert reach.below == pytest.approx(math.sqrt(0.45) * hall(0.8, student), rel=1e-12)


def test_ghosts_never_shorten_the_interval() -> None:
    few = replace(powers_like(4.0), weight=np.array([10.0, 6.0, 1e-3, 1e-6]))
    none = replace(powers_like(4.0), reward=np.zeros(6))
    vast = replace(powers_like(4.0), reward=np.array([4.0, 4.0, *[math.inf] * 3, 9.0]))
    alone = measure_reach(estimate_of(0.45), Shape(0.8, 0.9), None, ALPHA)
    wide = measure_reach(estimate_of(0.45), Shape(0.8, 0.9), powers_like(4.0), ALPHA)
    # a large row counts only where rewards are heavy
    assert (
        measure_reach(estimate_of(0.45), Shape(0.8, 0.9), powers_like(4.0, 1e200), ALPHA)
        == wide
    )
    for powers in (few, none, vast):
        with np.errstate(all="raise"):
            reach = measure_reach(estimate_of(0.45), Shape(0.8, 0.9), powers, ALPHA)
        assert (reach.below, reach.above) == pytest.approx((alone.below, alone.above))


@pytest.mark.parametrize(("sides", "tail"), [("two", 0.05), ("upper", 0.1), ("lower", 0.1)])
def test_without_rewards_the_limit_has_the_weights(sides: Sides, tail: float) -> None:
    powers = replace(powers_like(4.0), reward=np.zeros(6))
    normal = student_quantile(1 - tail, math.inf)
    upper = normal**2 * (30 / 12) * 3.0 / 40
    interval = without_rewards(powers, Limits(40, (0.0, 3.0)), 0.9, sides)
    expected = (-math.inf if sides == "upper" else 0.0, math.inf if sides == "lower" else upper)
    assert (interval.lower, interval.upper) == pytest.approx(expected, rel=1e-12)
    assert interval.level == 0.9
    for rows, weights, limits, end in (
        (1, powers.weight, (0.0, 3.0), 3.0),  # no larger than the largest reward
        (40, np.zeros(4), (0.0, 3.0), 3.0),
        (40, np.array([1.0, 1.0, 0.5, 0.25]), (0.0, 1.0), normal**2 * 0.5 / 40),
        (40, powers.weight, None, math.inf),
    ):
        known = without_rewards(
            replace(powers, weight=weights), Limits(rows, limits), 0.9, "two"
        )
        if sides == "two":
            assert (known.lower, known.upper) == pytest.approx((0.0, end), rel=1e-12)


def test_rows_that_do_not_vary_have_the_interval_of_their_limits() -> None:
    empty = replace(powers_like(4.0), reward=np.zeros(6))
    limits, estimate = Limits(40, (0.0, 3.0)), estimate_of(0.0)
    found = shaped_interval(estimate, None, empty, 0.9, limits)
    assert found == (without_rewards(empty, limits, 0.9, "two"), (BOUNDED,))
    upper = shaped_interval(estimate, None, empty, 0.9, limits, "upper")
    assert upper == (without_rewards(empty, limits, 0.9, "upper"), (BOUNDED,))
    plain = student_interval(estimate, 0.9, limits)
    for powers in (None, powers_like(4.0), replace(empty, own=False)):
        assert shaped_interval(estimate, None, powers, 0.9, limits) == plain
    lower = shaped_interval(estimate, None, None, 0.9, limits, "lower")
    assert lower == student_interval(estimate, 0.9, limits, "lower")
    for other in (Limits(40, (-1.0, 3.0)), Limits(40)):
        expected = student_interval(estimate, 0.9, other)
        assert shaped_interval(estimate, None, empty, 0.9, other) == expected
    few = replace(estimate, variance=math.inf)
    assert shaped_interval(few, Shape(), None, 0.9, limits) == student_interval(
        few, 0.9, limits
    )


@pytest.mark.parametrize("sides", ["two", "lower", "upper"])
def test_an_interval_has_the_reach_of_its_shape(sides: Sides) -> None:
    estimate, shape, powers = estimate_of(0.45), Shape(0.8, 0.9, 1.5), powers_like(10.0)
    assert shaped_interval(estimate, None, powers, 0.9, FREE, sides) == (
        student(estimate, 0.9, sides),
        (),
    )
    reach = measure_reach(estimate, shape, powers, 0.05 if sides == "two" else 0.1)
    interval, findings = shaped_interval(estimate, shape, powers, 0.9, FREE, sides)
    lower, upper = 2.0 - reach.below, 2.0 + reach.above
    ends = (-math.inf if sides == "upper" else lower, math.inf if sides == "lower" else upper)
    assert (interval.lower, interval.upper, interval.level, findings) == (*ends, 0.9, ())
    within = replace(FREE, reward_range=(1.5, 2.5))
    cut, _ = shaped_interval(estimate, shape, powers, 0.9, within, sides)
    ends = (-math.inf if sides == "upper" else 1.5, math.inf if sides == "lower" else 2.5)
    assert (cut.lower, cut.upper) == ends


def test_needs_of_intervals() -> None:
    balanced = Needs(groups=((BALANCED_REWARD, BALANCED_WEIGHT),))
    needs = interval_needs(balanced, ("a", "b", "c"))
    assert set(needs.slices) == {BALANCED_REWARD, BALANCED_WEIGHT, ratio("a"), ratio("b")}
    assert (needs.means, needs.groups) == ((cube(BALANCED_WEIGHT),), ((BALANCED_WEIGHT,),))
    assert needs.powers == (REWARD, BALANCED_REWARD)
    assert set(interval_needs(balanced).slices) == {BALANCED_REWARD, BALANCED_WEIGHT}
    crowd = tuple(map(str, range(1000)))  # too many for a column each
    assert set(interval_needs(balanced, crowd).slices) == {BALANCED_REWARD, BALANCED_WEIGHT}
    own = Needs(groups=((WEIGHTED_REWARD,),))
    alone, crossed = interval_needs(own), interval_needs(own, ("a", "b"))
    assert set(alone.slices) == set(crossed.slices) == {WEIGHTED_REWARD, WEIGHT}
    assert (alone.means, alone.groups) == ((cube(WEIGHT),), ((WEIGHT,),))
    assert alone.powers == (REWARD, WEIGHTED_REWARD)
    assert (crossed.means, crossed.groups) == ((cube(BALANCED_WEIGHT),), ((BALANCED_WEIGHT,),))
    assert crossed.powers == (REWARD, BALANCED_REWARD)
    assert interval_needs(Needs(groups=((REWARD,),))) == Needs(slices=(REWARD,))


def test_columns_of_which_the_mean_is_known() -> None:
    column = Score({BALANCED_WEIGHT: 1.0}, -1.0)
    for within in (True, False):
        fit = Fit(Score({REWARD: 1.0}), (column,), within=within)
        assert known_columns(Linear({}, fit=fit), Pool({})) == ((column,), within)
    for term, weight in (
        (WEIGHTED_REWARD, WEIGHT),
        (PERIOD_REWARD, PERIOD_WEIGHT),
        (PERIOD_RESIDUAL, PERIOD_WEIGHT),
    ):
        linear = Linear({"a": {PREDICTED_VALUE: 1.0}, "b": {term: 1.0}})
        assert known_columns(linear, Pool({})) == ((Score({weight: 1.0}, -1.0),), True)
    assert known_columns(Linear({"a": {REWARD: 1.0}}), Pool({})) == ((), True)


def test_a_root_is_searched_within_fifty_starts() -> None:
    assert root(lambda x: x - 30, 1.0) == pytest.approx(30, rel=1e-12)
    assert root(lambda x: x - 60, 2.0) == pytest.approx(60, rel=1e-12)
    assert root(lambda x: x - 33, 1.0) == root(lambda x: x - 32, 1.0) == math.inf
    assert root(lambda x: x - 25, 0.5) == math.inf


@pytest.mark.parametrize("power", [2, 5, 9])
@pytest.mark.parametrize("bent", [False, True])
def test_an_end_that_stays_counts_half(power: int, *, bent: bool) -> None:
    values = []

    def function(x: float) -> float:
        values.append(x)
        return 0.5 - (1 - x) ** power if bent else x**power - 0.5

    exact = 0.5 ** (1 / power)
    assert root(function, 1.0) == pytest.approx(1 - exact if bent else exact, abs=1e-12)
    assert len(values) <= 20
    assert values[:2] == [0.0, 1.0]


@pytest.mark.parametrize(("missing", "crossed"), [(0, True), (1, True), (2, False)])
def test_columns_of_loggers_need_their_slices(missing: int, *, crossed: bool) -> None:
    moments, _ = drawn()
    ratios = [ratio(i) for i in moments]
    kept = dict.fromkeys(ratios[: len(ratios) - missing], np.zeros(1))
    view = Pool(
        {
            i: replace(m, slices={t: s for t, s in m.slices.items() if t not in ratios} | kept)
            for i, m in moments.items()
        }
    )
    columns, within = known_columns(Balanced().estimate(view).linear, view)
    wanted = Calibrated(("loggers", "target") if crossed else ("target",), guard=False)
    expected, of_logger, _ = wanted.controls(view)
    assert (columns, within) == (tuple(expected), of_logger)
    assert (len(columns) > 1) is crossed
