"""Decisive rows: golden answers, laws, engines, and what the report says."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from scipy.special import ndtri

from poolwise import Log, compare, evaluate, plan, summarise
from poolwise.diagnosis.findings import decisive_rows
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import RefusedError
from poolwise.estimators.decisive import Decisive, HeavyPart, set_apart
from poolwise.evaluation.evaluate import read_pairs
from poolwise.evaluation.request import request
from poolwise.moments.heavy import (
    Contrast,
    Heaviest,
    HeavyChoice,
    HeavyRows,
    count_behind,
    heavy_share,
)
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, Needs, ratio
from poolwise.rows.clusters import cluster_buckets
from tests.support.messages import check_findings, refused
from tests.support.postgres import DuckDBConnection

if TYPE_CHECKING:
    from poolwise.evaluation.results import Evaluation

SUPPORT = Path(__file__).parents[1] / "support"
GOLDEN = json.loads((SUPPORT / "golden_decisive.json").read_text("utf-8"))
LOGGERS = {"a": "p_a", "b": "p_b"}
WEIGHT = BALANCED_WEIGHT.bind("t")


def log(table: pa.Table | None = None, reward: str = "clicks", **roles: Any) -> Log:  # noqa: ANN401
    """The golden log, or another one with its columns."""
    source = pq.read_table(SUPPORT / "decisive.parquet") if table is None else table
    usual = {"logger": "policy", "reward": reward, "propensities": LOGGERS}
    return Log(source, **{**usual, **roles})


def heavy_of(source: Log, contrast: Contrast) -> tuple[Any, HeavyRows | None]:
    """Moments of a log, and the heavy rows of a contrast."""
    weights = (WEIGHT, ratio("b"), ratio("a"))
    group = (*weights, REWARD * WEIGHT, REWARD * ratio("b"))
    with DuckDB().open(source, {"t": "p_t"}) as rows:
        pool = rows.moments(Needs(groups=(group,), tails=(WEIGHT,), extremes=(WEIGHT,)))
        found = rows.heaviest([contrast], 0.5)[""]
    return pool, found[contrast].choose(HeavyChoice(contrast, 0.5, source.reward_range))


@pytest.mark.parametrize("reward", GOLDEN)
@pytest.mark.parametrize("name", ["target", "difference_from_b"])
def test_golden_answers_without_columns(reward: str, name: str) -> None:
    contrast = Contrast(WEIGHT, None if name == "target" else ratio("b"))
    pool, heavy = heavy_of(log(reward=reward), contrast)
    assert heavy is not None
    decisive = set_apart(pool, heavy, columns=False).decisive
    (part,), (below, above) = decisive.heavy, decisive.distances(0.025)
    found = {
        "fourth": decisive.behind,
        "heavy": decisive.number,
        "mass": part.mass,
        "mean": part.mean,
        "rows": part.rows,
        "value": decisive.value,
        "light_variance": decisive.light_variance,
        "lower": decisive.value - below,
        "upper": decisive.value + above,
    }
    golden = {**GOLDEN[reward][name]}
    assert part.limits(0.025) == pytest.approx(golden.pop("mean_limits"), rel=1e-9)
    assert found == pytest.approx(golden, rel=1e-9, abs=1e-9)


def test_columns_of_the_loggers_lower_the_variance_of_the_light_part() -> None:
    pool, heavy = heavy_of(log(), Contrast(WEIGHT))
    assert heavy is not None
    plain, fitted = (set_apart(pool, heavy, columns=c).decisive for c in (False, True))
    assert fitted.light_variance < plain.light_variance
    assert fitted.heavy == plain.heavy  # the columns explain light rows only


def ends(result: Evaluation, target: str = "t") -> list[float]:
    """Value and limits of the default, and of its difference from the baseline."""
    found, name = result[target], result[target].recommended
    estimate, interval = found.estimates[name], found.intervals[name]
    numbers = [estimate.value, estimate.std_error, interval.lower, interval.upper]
    pair = result.differences[target]
    return [*numbers, pair.value, pair.std_error, pair.interval.lower, pair.interval.upper]


def asked(source: Log, **options: Any) -> list[float]:  # noqa: ANN401
    return ends(evaluate(source, {"t": "p_t"}, baseline="b", **options))


def test_the_default_sets_heavy_rows_apart() -> None:
    result = evaluate(log(), {"t": "p_t"}, baseline="b")
    value, _, lower, upper, *difference = ends(result)
    assert result["t"].recommended == "calibrated"
    assert value == pytest.approx(GOLDEN["clicks"]["target"]["value"], abs=0.003)
    assert upper == pytest.approx(GOLDEN["clicks"]["target"]["upper"], abs=0.003)
    assert lower < value < upper
    golden = GOLDEN["clicks"]["difference_from_b"]
    assert difference[0] == pytest.approx(golden["value"], abs=0.003)
    assert difference[3] == pytest.approx(golden["upper"], abs=0.01)
    own = [f for f in result["t"].findings if f.code == "decisive-rows"]
    check_findings(own, "decisive-rows")


def test_a_difference_is_the_same_in_every_verb() -> None:
    pair = compare(log(), {"t": "p_t"}, baseline="b").difference("t")
    own = evaluate(log(), {"t": "p_t", "b": "p_b"}, baseline="b").differences["t"]
    other = evaluate(log(), {"t": "p_t"}, baseline="b").differences["t"]
    for difference in (own, other):
        assert difference.value == pytest.approx(pair.value, rel=1e-9)
        assert vars(difference.interval) == pytest.approx(vars(pair.interval), rel=1e-9)
        assert difference.p_value == pytest.approx(pair.p_value, rel=1e-6, abs=1e-12)
    turned = compare(log(), {"b": "p_b", "t": "p_t"}, baseline="t").difference("b")
    assert turned.interval.lower == pytest.approx(-pair.interval.upper, rel=1e-9)


def test_intervals_and_p_values_agree() -> None:
    amounts = log(reward="amounts")
    pair = compare(amounts, {"t": "p_t"}, baseline="b").difference("t")
    assert 0.05 < pair.p_value < 0.5
    level = 1 - pair.p_value
    at_zero = compare(amounts, {"t": "p_t"}, baseline="b", level=level).difference("t")
    assert at_zero.interval.lower == pytest.approx(0.0, abs=1e-6)


def test_a_constant_shifts_value_and_limits() -> None:
    table = pq.read_table(SUPPORT / "decisive.parquet")
    shifted = np.asarray(table["clicks"]) + 3.0
    more = table.set_column(4, "clicks", pa.array(shifted))
    plain, moved = asked(log()), asked(log(more, reward_range=(3.0, 4.0)))
    shift = [3.0, 0.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]
    assert moved == pytest.approx([a + b for a, b in zip(plain, shift, strict=True)], rel=1e-9)


@pytest.mark.parametrize("scale", [-1.0, 1e-6, 250.0])
def test_limits_scale_with_the_rewards(scale: float) -> None:
    table = pq.read_table(SUPPORT / "decisive.parquet")
    for reward in ("clicks", "amounts"):
        place = table.schema.get_field_index(reward)
        scaled = pa.array(np.asarray(table[reward]) * scale)
        bounds = sorted([0.0, scale]) if reward == "clicks" else None
        plain = asked(log(reward=reward))
        reward_range = None if bounds is None else (bounds[0], bounds[1])
        source = log(table.set_column(place, reward, scaled), reward, reward_range=reward_range)
        expected = np.array(plain) * scale
        if scale < 0:
            expected = np.abs(scale) * np.array([-1, 1, -1, -1, -1, 1, -1, -1]) * plain
            expected[[2, 3, 6, 7]] = expected[[3, 2, 7, 6]]
        assert asked(source) == pytest.approx(expected.tolist(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("engine", [None, DuckDB(threads=1, batch_rows=4_096)])
@pytest.mark.parametrize("form", ["files", "csv", "shuffled"])
def test_engines_and_orders_agree(form: str, engine: DuckDB | None, tmp_path: Path) -> None:
    table = pq.read_table(SUPPORT / "decisive.parquet")
    expected = asked(log())
    source: Any = table.take(np.random.default_rng(1).permutation(len(table)))
    if form == "files":
        source = tmp_path / "log.parquet"
        pq.write_table(table, source, row_group_size=700)
    if form == "csv":
        source = tmp_path / "log.csv"
        table.to_pandas().to_csv(source, index=False)
    assert asked(replace(log(), source=source), engine=engine) == pytest.approx(expected)


def test_bad_rows_are_dropped_in_both_passes() -> None:
    table = pq.read_table(SUPPORT / "decisive.parquet")
    bad = table.slice(0, 5).set_column(4, "clicks", pa.array([None] * 5, pa.float64()))
    mixed = pa.concat_tables([bad, table])
    assert asked(log(mixed, on_fault="drop")) == pytest.approx(asked(log()))


def rows_with(weights: list[float], rewards: list[float]) -> Log:
    """A log of one logger whose rows have these weights."""
    target = np.array(weights) / max(weights)
    table = {"policy": ["a"] * len(weights), "clicks": rewards}
    table |= {"p_a": np.full(len(weights), 1 / max(weights)).tolist(), "p_t": target.tolist()}
    return log(pa.table(table), propensities={"a": "p_a"})


def heavy_in(source: Log) -> HeavyRows | None:
    with DuckDB().open(source, {"t": "p_t"}) as rows:
        contrast = Contrast(WEIGHT)
        found = rows.heaviest([contrast], 0.0)[""]
        return found[contrast].choose(HeavyChoice(contrast, 0.0, None))


@pytest.mark.parametrize(("equal", "apart"), [(49, 49), (50, None)])
def test_fifty_rows_behind_the_variance_are_enough(equal: int, apart: int | None) -> None:
    """Equal weights, others 0: N4 is the number of the former."""
    heavy = heavy_in(
        rows_with([4.0] * equal + [0.0] * 200, [0.0, 1.0] * 124 + [0.0] * (equal - 48))
    )
    assert (None if heavy is None else len(heavy)) == apart


@pytest.mark.parametrize(("light", "apart"), [(99, None), (100, 3)])
def test_a_hundred_light_rows_are_left_or_nothing_is_set_apart(
    light: int, apart: int | None
) -> None:
    heavy = heavy_in(rows_with([50.0] * 3 + [1.0] * light, [0.0, 1.0, 1.0] + [1.0] * light))
    assert (None if heavy is None else len(heavy)) == apart


def test_rows_of_equal_weight_are_set_apart_together() -> None:
    """One of the four rows of weight 20 would be too few, whatever their rewards and order."""
    weights = [60.0] + [20.0] * 4 + [1.0] * 300
    for rewards in ([0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]):
        heavy = heavy_in(rows_with(weights, rewards + [0.0, 1.0] * 150))
        assert heavy is not None
        assert sorted(heavy.values[WEIGHT]) == pytest.approx([20.0] * 4 + [60.0])


def test_the_heaviest_rows_are_the_same_in_any_batches() -> None:
    rng = np.random.default_rng(2)
    sizes, rewards = rng.pareto(0.8, 5_000), rng.random(5_000)
    strata, values = rng.integers(3, size=5_000), np.array([rewards, sizes])
    whole = Heaviest.of(strata, values, sizes, 0.5)
    parts = None
    for rows in np.array_split(np.arange(5_000), 7):
        part = Heaviest.of(strata[rows], values[:, rows], sizes[rows], 0.5)
        parts = part if parts is None else parts.add(part, 0.5)
    assert parts is not None
    assert parts.count == whole.count == 4_000
    assert sorted(parts.sizes) == sorted(whole.sizes)
    assert parts.sums == pytest.approx(whole.sums, rel=1e-12)
    assert parts.largest == whole.largest == np.sort(sizes)[-1_001]


@pytest.mark.parametrize("reward_range", [None, (0.0, 1.0), (-2.0, 5.0)])
@pytest.mark.parametrize("rows", [1.0, 2.0, 2.5, 40.0])
@pytest.mark.parametrize("mean", [0.0, 0.3, 1.0])
def test_limits_surround_the_mean(
    mean: float, rows: float, reward_range: tuple[float, float] | None
) -> None:
    part = HeavyPart(0.2, mean, rows, 0.25, reward_range)
    low, high = part.limits(0.025)
    assert low <= mean <= high
    if reward_range is None:
        assert math.isinf(low) == (rows <= 1.5)
    else:
        assert reward_range[0] <= low < high <= reward_range[1]
    wider, wide = part.limits(0.001)
    assert wider <= low
    assert high <= wide


def test_one_row_without_a_range_cannot_tell() -> None:
    weights = [200.0] + [0.9] * 2_000
    source = rows_with(weights, [3.0] + [0.0, 2.0] * 1_000)
    found = evaluate(source, {"t": "p_t"})["t"]
    interval = found.intervals["calibrated"]
    assert (interval.lower, interval.upper) == (-math.inf, math.inf)
    assert found.estimates["calibrated"].std_error == math.inf
    (finding,) = (f for f in found.findings if f.code == "decisive-rows")
    assert finding.severity == "alarm"
    bounded = evaluate(replace(source, reward_range=(0.0, 4.0)), {"t": "p_t"})["t"]
    assert bounded.intervals["calibrated"].upper < 1.5
    assert bounded.estimates["calibrated"].value == pytest.approx(1.2, abs=0.05)


def test_no_heavy_row_was_seen() -> None:
    """A tenth of the target is missing from the rows: its rewards may be anything."""
    source = rows_with([0.9] * 2_000 + [1.0] * 10, [0.0, 1.0] * 1_005)
    found = evaluate(source, {"t": "p_t"})["t"]
    interval = found.intervals["calibrated"]
    assert interval.lower == pytest.approx(0.45, abs=0.03)
    assert interval.upper == pytest.approx(0.55, abs=0.03)
    (finding,) = (f for f in found.findings if f.code == "decisive-rows")
    check_findings([finding], "decisive-rows")
    assert "target-uncovered" in {f.code for f in found.findings}


def test_targets_with_heavy_rows_of_their_own_have_a_mean_each() -> None:
    """Two targets move different decisions to what the logger plays in 3 and 4 rows."""
    size, rare = 6_000, 0.0005
    prob, new, alt = np.full(size, 0.9), np.full(size, 0.81), np.full(size, 0.81)
    prob[:7] = rare
    new[:3], alt[3:7] = 0.1, 0.1
    new[3:7], alt[:3] = rare, rare
    rewards = np.array([1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0] + [0.0, 1.0] * (size // 2))[:size]
    table = {"policy": ["a"] * size, "p_a": prob, "clicks": rewards, "new": new, "alt": alt}
    source = log(pa.table(table), propensities={"a": "p_a"})
    pair = compare(source, {"new": "new", "alt": "alt"}).difference("new", "alt")
    # masses are 1 - mean of light weights: 0.1 and 0.1; mean rewards of heavy rows 2/3, 1/4
    assert pair.value == pytest.approx(0.1 * (2 / 3 - 1 / 4), abs=0.002)
    assert pair.interval.lower < 0 < pair.interval.upper
    assert pair.verdict == "undecided"


def test_even_weights_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    size = 20_000
    prob = rng.uniform(0.2, 0.6, (size, 2))
    table = pa.table(
        {
            "policy": np.where(np.arange(size) % 2 == 0, "a", "b"),
            "p_a": prob[:, 0],
            "p_b": prob[:, 1],
            "p_t": prob.mean(axis=1) * rng.uniform(0.5, 1.5, size),
            "clicks": (rng.random(size) < 0.4).astype(float),
        }
    )
    calls: list[object] = []
    monkeypatch.setattr("poolwise.engines.parallel.HeavyKernel", calls.append)
    evaluate(log(table), {"t": "p_t"}, baseline="b")
    assert not calls


@pytest.mark.parametrize("rows", [1_500, 6_000])
def test_rows_behind_a_variance_lie_between_their_limits(rows: int) -> None:
    rng = np.random.default_rng(rows)
    weights = 1 + rng.pareto(2.5, rows)
    with DuckDB().open(
        rows_with(weights.tolist(), [0.0, 1.0] * (rows // 2)), {"t": "p_t"}
    ) as r:
        tails = r.moments(Needs(groups=((WEIGHT,),), tails=(WEIGHT,), extremes=(WEIGHT,)))
        fourth = WEIGHT * WEIGHT * WEIGHT * WEIGHT
        exact = r.moments(Needs(means=(fourth,), groups=((WEIGHT,),)))
        largest = r.moments(Needs(groups=((WEIGHT,),), extremes=(WEIGHT,)))
    expected = (weights**2).sum() ** 2 / (weights**4).sum()
    for pool in (tails, exact, largest):
        found = count_behind(pool.together, WEIGHT)
        assert found.fewest * (1 - 1e-9) <= expected <= found.most * (1 + 1e-9)
    assert count_behind(exact.together, WEIGHT).most == pytest.approx(expected)


def test_the_weights_of_the_report_show_decisive_rows() -> None:
    result = evaluate(log(), {"t": "p_t"})
    found: Any = result.to_dict()
    mixture = found["targets"][0]["mixture"]
    assert mixture["decisive_rows"] == 2
    assert mixture["decisive_share"] == pytest.approx(GOLDEN["clicks"]["target"]["mass"])
    grid = next(grid for grid in result.grids() if grid.title == "Weights")
    assert [row[1] for row in grid.rows][-1].endswith("(2 decisive)")
    other: Any = evaluate(log(), {"b": "p_b"}).to_dict()
    assert "decisive_rows" not in other["targets"][0]["mixture"]


def test_engines_without_rows_say_that_few_rows_decide() -> None:
    for engine in (DuckDBConnection(), summarise(log(), {"t": "p_t"})):
        found = evaluate(log(), {"t": "p_t"}, engine=engine)["t"]
        (finding,) = (f for f in found.findings if f.code == "decisive-rows")
        check_findings([finding], "decisive-rows")
        assert found.estimates["calibrated"].decisive is None
        even = evaluate(log(), {"t": "p_b"}, engine=DuckDBConnection())["t"]
        assert "decisive-rows" not in {f.code for f in even.findings}


def test_logs_with_own_propensities_say_that_few_rows_decide() -> None:
    own = log(propensities=None, propensity="CASE policy WHEN 'a' THEN p_a ELSE p_b END")
    found = evaluate(own, {"t": "p_t"})["t"]
    (finding,) = (f for f in found.findings if f.code == "decisive-rows")
    check_findings([finding], "decisive-rows")
    even = evaluate(own, {"t": own.propensity})["t"]
    assert "decisive-rows" not in {f.code for f in even.findings}


def test_intervals_that_were_replaced_do_not_claim_to_allow_for_few_rows() -> None:
    found = evaluate(log(trained_on={"b": ["a"]}), {"t": "p_t"})["t"]
    assert found.estimates["calibrated"].decisive is not None
    assert "decisive-rows" not in {f.code for f in found.findings}


def test_estimators_that_do_not_set_rows_apart_say_that_few_rows_decide() -> None:
    table = pq.read_table(SUPPORT / "decisive.parquet")
    days = pa.array(np.arange(len(table)) % 2)
    found = evaluate(log(table.append_column("day", days), period="day"), {"t": "p_t"})["t"]
    assert found.estimates["calibrated"].decisive is not None
    assert found.estimates[found.recommended].decisive is None
    (finding,) = (f for f in found.findings if f.code == "decisive-rows")
    check_findings([finding], "decisive-rows")


def test_segments_have_heavy_rows_of_their_own() -> None:
    table = pq.read_table(SUPPORT / "decisive.parquet")
    rng = np.random.default_rng(5)
    where = pa.array(np.where(rng.random(len(table)) < 0.6, "x", "y"))
    source = log(table.append_column("where", where))
    segments = evaluate(source, {"t": "p_t"}, by="where").segments
    assert segments is not None
    level = 0.95**0.5
    for name in ("x", "y"):
        rows = table.filter(pc.equal(where, name))
        alone = evaluate(log(rows), {"t": "p_t"}, baseline=segments.baseline, level=level)
        own = segments[name]["t"]
        expected = ends(alone)
        assert own.difference is not None
        assert own.estimate is not None
        assert own.interval is not None
        numbers = [own.estimate.value, own.estimate.std_error]
        numbers += [own.interval.lower, own.interval.upper, own.difference.value]
        assert numbers == pytest.approx(expected[:5], rel=1e-9)
        pair = own.difference.interval
        assert [pair.lower, pair.upper] == pytest.approx(expected[6:], rel=1e-9)


@pytest.mark.parametrize(("heavy", "size"), [(2, 40.0), (1, 20.0), (5, 200.0)])
def test_the_share_of_heavy_rows_in_squared_weights(heavy: int, size: float) -> None:
    """The heaviest rows are left out until 100 are behind the variance of the others."""
    weights = np.concatenate([np.full(heavy, size), np.linspace(0.5, 1.5, 3_000 - heavy)])
    source = rows_with(weights.tolist(), [0.0, 1.0] * 1_500)
    needs = Needs(groups=((WEIGHT,),), tails=(WEIGHT,), extremes=(WEIGHT,))
    with DuckDB().open(source, {"t": "p_t"}) as opened:
        moments = opened.moments(needs).together
        bare = opened.moments(replace(needs, tails=())).together
    squares = weights**2
    assert (squares[heavy:].sum() ** 2 / (squares[heavy:] ** 2).sum()) >= 100
    with_one = squares[heavy - 1 :]
    assert with_one.sum() ** 2 / (with_one**2).sum() < 100
    wanted = squares[:heavy].sum() / squares.sum()
    assert heavy_share(moments, WEIGHT) == pytest.approx(wanted, rel=1e-9)
    assert heavy_share(bare, WEIGHT) == 1.0  # unknown without a tail


def test_heavy_rows_rule_an_interval_by_their_part_in_it() -> None:
    heavy = HeavyPart(0.2, 0.5, 4.0, 0.25, (0.0, 1.0))
    below, above = heavy.distances(0.025)
    assert below == pytest.approx(above)
    light = below**2 / float(ndtri(0.025)) ** 2
    assert Decisive(0.5, (heavy,), light, 4, 10.0).ruling == pytest.approx(0.5)
    assert Decisive(0.5, (heavy,), 3 * light, 4, 10.0).ruling == pytest.approx(0.25)
    unknown = replace(heavy, rows=1.0, reward_range=None)
    assert Decisive(0.5, (unknown,), light, 1, 10.0).ruling == 1.0


def test_a_few_rows_with_little_of_an_interval_are_a_note() -> None:
    heavy = HeavyPart(0.02, 0.5, 4.0, 0.25, (0.0, 1.0))
    for variance, severity in ((1e-6, "warning"), (1e-2, "note")):
        finding = decisive_rows("t", Decisive(0.5, (heavy,), variance, 4, 10.0), 1_000)
        assert finding.severity == severity
    blind = replace(heavy, rows=1.0, reward_range=None)
    alarm = decisive_rows("t", Decisive(0.5, (blind,), 1e-2, 1, 10.0), 1_000)
    assert alarm.severity == "alarm"


def test_a_plan_says_how_many_rows_bring_the_decisive_ones_to_ten() -> None:
    table = pq.read_table(SUPPORT / "decisive.parquet")
    found = plan(log(), {"t": "p_t"}, half_width=0.05)
    decisive = found.estimates["calibrated"].decisive
    assert isinstance(decisive, Decisive)
    more = len(table) * (10 / decisive.rows - 1)  # each row stands for as many new ones
    assert decisive.more_rows(len(table)) == pytest.approx(more)
    assert found.sentence.endswith(
        f"Decisive in this log: 2 rows. About {float(f'{more:.2g}'):,.0f} more rows, of "
        "loggers mixed as now, bring them to 10."
    )
    assert "decisive" not in plan(log(), {"b": "p_b"}, half_width=0.05).sentence
    (finding,) = (f for f in found.findings if f.code == "decisive-rows")
    assert f"{float(f'{more:.2g}'):,.0f} more rows" in finding.advice


def test_a_plan_does_not_guess_without_a_decisive_row() -> None:
    nothing = Decisive(0.5, (HeavyPart(0.2, 0.5, 0.0, 0.25, (0.0, 1.0)),), 1e-6, 0, 10.0)
    assert nothing.lacks_rows
    assert nothing.more_rows(1_000) == math.inf
    enough = replace(nothing, heavy=(HeavyPart(0.2, 0.5, 10.0, 0.25, (0.0, 1.0)),))
    assert not enough.lacks_rows
    assert enough.more_rows(1_000) == 0.0


def test_gains_widen_the_limits_of_heavy_rows() -> None:
    """The allowance of a learned policy applies to the light part and to the heavy one."""
    asked = request(log(), {"t": "p_t", "b": "p_b"}, None, level=0.9)
    pairs, evaluation = read_pairs(asked)
    usual, wide = (pairs.contrast(evaluation, "t", "b", widening=k) for k in (1.0, 1.5))
    below, above = usual.value - usual.interval.lower, usual.interval.upper - usual.value
    assert above > 3 * below  # as limits of heavy rows are
    for side in ("lower", "upper"):
        near, far = (getattr(d.interval, side) - d.value for d in (usual, wide))
        assert far == pytest.approx(1.5 * near)


def differing(weights: list[float], others: list[float]) -> HeavyRows | None:
    """Heavy rows of the difference of two targets, whose weights these are."""
    largest = max(*weights, *others)
    table = {
        "policy": ["a"] * len(weights),
        "clicks": [float(k % 2) for k in range(len(weights))],
        "p_a": [1 / largest] * len(weights),
        "p_t": [w / largest for w in weights],
        "p_u": [w / largest for w in others],
    }
    other = BALANCED_WEIGHT.bind("u")
    with DuckDB().open(
        log(pa.table(table), propensities={"a": "p_a"}), {"t": "p_t", "u": "p_u"}
    ) as rows:
        contrast = Contrast(WEIGHT, other)
        found = rows.heaviest([contrast], 0.5)[""]
        return found[contrast].choose(HeavyChoice(contrast, 0.5, None))


def test_some_rows_that_differ_remain_among_the_light_ones() -> None:
    """A difference whose rows are all set apart has a mass of 0, and would look certain."""
    equal = [1.0] * 300
    assert differing(equal, [0.0] * 40 + [1.0] * 260) is None
    heavy = differing([20.0, *equal], [0.0] * 41 + [1.0] * 260)  # one of them stands out
    assert heavy is not None
    assert len(heavy) == 1


def clustered(table: pa.Table, cluster: Any) -> Log:  # noqa: ANN401 - an array
    return log(table.append_column("user", pa.array(cluster)), cluster="user")


def test_clusters_of_one_row_are_rows() -> None:
    """Values are equal; the light part has the variance between buckets of clusters."""
    table = pq.read_table(SUPPORT / "decisive.parquet")
    source = clustered(table, np.arange(len(table)))
    found, rows = (evaluate(one, {"t": "p_t"}, baseline="b") for one in (source, log(table)))
    mine, theirs = (e["t"].estimates["calibrated"].decisive for e in (found, rows))
    assert isinstance(mine, Decisive)
    assert isinstance(theirs, Decisive)
    assert (mine.number, mine.clustered, theirs.clustered) == (theirs.number, True, False)
    assert mine.value == pytest.approx(theirs.value, rel=1e-9)
    assert mine.behind == pytest.approx(theirs.behind, rel=1e-9)
    for one, other in zip(mine.heavy, theirs.heavy, strict=True):
        assert one.mass == pytest.approx(other.mass, rel=1e-9)
        assert one.limits(0.025) == pytest.approx(other.limits(0.025), rel=1e-9)
    assert mine.light_variance == pytest.approx(theirs.light_variance, rel=0.3)
    pair, single = (e.differences["t"] for e in (found, rows))
    assert pair.value == pytest.approx(single.value, rel=1e-9)
    assert pair.interval.upper == pytest.approx(single.interval.upper, rel=0.05)
    (finding,) = (f for f in found["t"].findings if f.code == "decisive-rows")
    assert "2 clusters of this log" in finding.message


def test_rows_of_a_heavy_cluster_are_set_apart_together() -> None:
    """Each row four times, in clusters of four, against a plain loop over the clusters."""
    once = pq.read_table(SUPPORT / "decisive.parquet")
    rng = np.random.default_rng(2)
    clicks = rng.integers(0, 2, 4 * len(once)).astype(float)
    table = pa.concat_tables([once] * 4)
    place = table.schema.get_field_index("clicks")
    table = table.set_column(place, "clicks", pa.array(clicks))
    user = np.tile(np.arange(len(once)), 4)
    source = clustered(table, user)
    found = evaluate(source, {"t": "p_t"})["t"].estimates["calibrated"].decisive
    assert isinstance(found, Decisive)
    share = np.array([pc.sum(pc.equal(table["policy"], i)).as_py() for i in "ab"]) / len(table)
    known = np.array([table["p_a"].to_numpy(), table["p_b"].to_numpy()])
    weight = table["p_t"].to_numpy() / (share @ known)
    sizes = np.bincount(user, weights=weight)
    assert found.behind == pytest.approx((sizes**2).sum() ** 2 / (sizes**4).sum())
    heavy = np.isin(user, np.argsort(-sizes)[: found.number])
    (part,) = found.heavy
    assert part.mass == pytest.approx(1 - weight[~heavy].sum() / len(weight))
    mean = weight[heavy] @ clicks[heavy] / weight[heavy].sum()
    assert part.mean == pytest.approx(mean)
    own = sizes[np.unique(user[heavy])]
    assert part.rows == pytest.approx(own.sum() ** 2 / (own**2).sum())


def test_the_light_part_has_the_variance_between_buckets() -> None:
    """Without columns, against sums over the buckets of a hash of the cluster."""
    table = pq.read_table(SUPPORT / "decisive.parquet")
    user = np.random.default_rng(6).integers(len(table) // 3, size=len(table))
    source, contrast = clustered(table, user), Contrast(WEIGHT)
    weights = (WEIGHT, ratio("b"), ratio("a"))
    needs = Needs(groups=((*weights, REWARD * WEIGHT),))
    with DuckDB().open(source, {"t": "p_t"}) as rows:
        (pool,) = rows.bucketed([needs], 200)
        found = rows.heaviest_clusters([contrast], 0.5)
        assert found is not None
        heavy = found[contrast].choose(HeavyChoice(contrast, 0.5, None))
    bucket = cluster_buckets(pa.chunked_array([user]), 200)
    assert heavy is not None
    decisive = set_apart(pool, heavy, columns=False).decisive
    share = {i: m.count / len(table) for i, m in pool.items()}
    known = np.array([table["p_a"].to_numpy(), table["p_b"].to_numpy()])
    own = table["p_t"].to_numpy() / (np.array([share["a"], share["b"]]) @ known)
    sizes = np.bincount(user, weights=own)
    light = ~np.isin(user, np.argsort(-sizes)[: decisive.number])
    (part,) = decisive.heavy
    y = np.where(light, own * (table["clicks"].to_numpy() - part.mean), 0.0)
    logger = np.array(table["policy"].to_pylist())
    for i in share:
        y[logger == i] -= y[logger == i].mean()
    sums = np.bincount(np.unique(bucket, return_inverse=True)[1], weights=y) / len(table)
    expected = len(sums) * np.var(sums, ddof=1)
    assert decisive.light_variance == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("engine", [DuckDB(), DuckDBConnection()], ids=["rows", "query"])
def test_a_propensity_near_0_is_refused(engine: Any) -> None:  # noqa: ANN401
    """The fourth power of its weight, 1e400, is more than a double can hold."""
    prob = np.full(400, 0.5)
    prob[0] = 1e-100
    columns = {"p_a": prob, "clicks": np.arange(400) % 2, "policy": ["a"] * 400}
    table = pa.table(columns | {"p_t": np.full(400, 0.5)})
    with refused(RefusedError):
        evaluate(log(table, propensities={"a": "p_a"}), {"t": "p_t"}, engine=engine)
