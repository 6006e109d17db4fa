"""Precision of every engine: means to 1e-12 and scatters to 1e-9 of the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    REWARD,
    UNSUPPORTED,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    ratio,
    second_moment,
)
from tests.support.reference import Reference, assert_moments_agree, log_of, random_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.engines.base import Engine
    from poolwise.log.log import Log
    from poolwise.moments.pool import Pool

pytestmark = pytest.mark.slow  # all of them together take seconds
PILOT = 20_000  # rows that an engine may look at first


def all_needs(loggers: Sequence[str], targets: Sequence[str] = ("target",)) -> Needs:
    """Terms with a mean only, groups that overlap, and extremes, as an evaluation asks."""
    alone = Needs(
        means=(REWARD, *map(second_moment, loggers)),
        groups=((WEIGHT,), (WEIGHTED_REWARD,)),
        extremes=(WEIGHT, BALANCED_WEIGHT),
    )
    grouped = (BALANCED_REWARD, BALANCED_WEIGHT, *map(ratio, loggers), WEIGHTED_REWARD)
    needs = alone | Needs(groups=(grouped,))
    united = needs.bind(targets[0])
    for target in targets[1:]:
        united |= needs.bind(target)
    return united


def own_needs() -> Needs:
    return Needs((REWARD,), ((WEIGHT, WEIGHTED_REWARD),), (WEIGHT,)).bind("target")


def moments(engine: Engine, log: Log, needs: Needs) -> Pool:
    with engine.open(log, {"target": "t"}) as rows:
        return rows.moments(needs)


def assert_exact(engine: Engine, log: Log, needs: Needs) -> None:
    assert_moments_agree(moments(engine, log, needs), moments(Reference(), log, needs))


def test_a_hand_sized_log_has_the_moments_of_its_rows(engine: Engine) -> None:
    # mixture (2/3) p_a + (1/3) p_b = 1/3, 1/2, 1/3; weights t/p = 1, 1/4, 2
    table = pa.table(
        {
            "logger": ["a", "a", "b"],
            "reward": [3.0, 4.0, 5.0],
            "p": [0.25, 0.5, 0.25],
            "p_a": [0.25, 0.5, 0.375],
            "p_b": [0.5, 0.5, 0.25],
            "t": [0.25, 0.125, 0.5],
        }
    )
    found = moments(engine, log_of(table), all_needs(["a", "b"]))
    weighted, balanced = WEIGHTED_REWARD.bind("target"), BALANCED_REWARD.bind("target")
    assert list(found) == ["a", "b"]
    assert [m.count for m in found.values()] == [2, 1]
    assert found["a"].mean(REWARD) == pytest.approx(7 / 2, rel=1e-15)
    assert found["a"].mean(weighted) == pytest.approx((3 + 1) / 2, rel=1e-15)
    assert found["a"].var(weighted) == pytest.approx(2, rel=1e-15)
    # balanced rewards 3 * 3/4 = 9/4 and 4 * 1/4 = 1
    assert found["a"].mean(balanced) == pytest.approx(13 / 8, rel=1e-15)
    assert found["a"].var(balanced) == pytest.approx(25 / 32, rel=1e-15)
    assert found["a"].cov(weighted, balanced) == pytest.approx(5 / 4, rel=1e-15)
    # pi_a / mixture = 3/4 and 1; mixture / pi_b = 2/3 and 1
    assert found["a"].mean(ratio("a")) == pytest.approx(7 / 8, rel=1e-15)
    second = found["a"].mean(second_moment("b").bind("target"))
    assert second == pytest.approx((81 / 16 * 2 / 3 + 1) / 2, rel=1e-15)
    assert found["b"].mean(balanced) == pytest.approx(5 * 3 / 2, rel=1e-15)
    assert found["b"].max(WEIGHT.bind("target")) == pytest.approx(2, rel=1e-15)


@pytest.mark.parametrize("offset", [0.0, 1e8, -1e8])
def test_rewards_with_a_large_offset_keep_their_scatter(engine: Engine, offset: float) -> None:
    table = random_table(np.random.default_rng(1), {"a": 3_000, "b": 2_000}, offset=offset)
    assert_exact(engine, log_of(table), all_needs(["a", "b"]))
    assert_exact(engine, log_of(table, propensities=None), own_needs())


def test_a_constant_weight_leaves_the_scatter_of_offset_rewards(engine: Engine) -> None:
    """With target = propensity the weighted reward is the reward: no spread but its own."""
    table = random_table(np.random.default_rng(2), {"a": 4_000}, offset=1e8)
    table = table.set_column(table.column_names.index("t"), "t", table["p"])
    found = moments(engine, log_of(table, ["a"]), all_needs(["a"]))["a"]
    rewards = table["reward"].to_numpy()
    # two-pass in long double: independent of the judge
    exact = np.asarray(rewards, dtype=np.longdouble)
    scatter = float(((exact - exact.mean()) ** 2).sum())
    found_scatter = found.var(WEIGHTED_REWARD.bind("target")) * (found.count - 1)
    assert found_scatter == pytest.approx(scatter, rel=1e-9)


def test_weights_over_twelve_orders_of_magnitude_keep_their_digits(engine: Engine) -> None:
    table = random_table(np.random.default_rng(3), {"a": 4_000, "b": 3_000}, orders=12)
    weights = table["t"].to_numpy() / table["p"].to_numpy()
    assert weights.max() / weights.min() > 1e12
    assert_exact(engine, log_of(table), all_needs(["a", "b"]))


@pytest.mark.parametrize("offset", [1e8, 1e3])
def test_each_logger_is_centred_on_its_own(engine: Engine, offset: float) -> None:
    """One centre for all is far from every logger here, and only a second pass helps."""
    table = random_table(
        np.random.default_rng(4),
        {"a": 2_000, "b": 1_000, "c": 500},
        offset={"a": 0.0, "b": offset, "c": -3 * offset},
    )
    table = table.set_column(table.column_names.index("t"), "t", table["p"])
    assert_exact(engine, log_of(table, ["a", "b", "c"]), all_needs(["a", "b", "c"]))


def test_the_first_rows_of_a_sorted_file_may_be_unlike_the_rest(engine: Engine) -> None:
    rng = np.random.default_rng(5)
    first = random_table(rng, {"a": PILOT}, offset=0.0)
    rest = random_table(rng, {"a": 1_000}, offset=1e8)
    table = pa.concat_tables([first, rest])
    assert_exact(engine, log_of(table, ["a"]), all_needs(["a"]))


def test_a_file_sorted_by_logger_keeps_the_digits_of_the_last(engine: Engine) -> None:
    counts = {"a": PILOT, "b": 2_000}
    table = random_table(
        np.random.default_rng(6), counts, offset={"a": 0.0, "b": 1e8}, shuffle=False
    )
    table = table.set_column(table.column_names.index("t"), "t", table["p"])
    assert_exact(engine, log_of(table), all_needs(["a", "b"]))


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e8 + 0.1])
def test_rows_that_are_all_alike_have_no_scatter(engine: Engine, value: float) -> None:
    rows = 1_000
    table = pa.table(
        {
            "logger": ["a", "b"] * (rows // 2),
            "reward": [value] * rows,
            "p": [0.3] * rows,
            "p_a": [0.3] * rows,
            "p_b": [0.3] * rows,
            "t": [0.7] * rows,
        }
    )
    found = moments(engine, log_of(table), all_needs(["a", "b"]))
    weighted = WEIGHTED_REWARD.bind("target")
    for group in found.values():
        assert group.mean(weighted) == pytest.approx(value * 0.7 / 0.3, rel=1e-12)
        # the noise of a mean of equal doubles, squared
        assert 0 <= group.var(weighted) <= (1e-13 * group.mean(weighted)) ** 2


def test_one_row_is_a_log(engine: Engine) -> None:
    table = random_table(np.random.default_rng(7), {"a": 1})
    assert_exact(engine, log_of(table, ["a"]), all_needs(["a"]))


def test_one_row_beside_many_is_a_log(engine: Engine) -> None:
    table = random_table(np.random.default_rng(8), {"a": 1, "b": 500}, offset={"a": 9, "b": 0})
    assert_exact(engine, log_of(table), all_needs(["a", "b"]))


def test_one_logger_alone_is_its_own_mixture(engine: Engine) -> None:
    table = random_table(np.random.default_rng(9), {"a": 400})
    assert_exact(engine, log_of(table, ["a"]), all_needs(["a"]))
    found = moments(engine, log_of(table, ["a"]), all_needs(["a"]))["a"]
    weight, balanced = WEIGHT.bind("target"), BALANCED_WEIGHT.bind("target")
    assert found.mean(weight) == pytest.approx(found.mean(balanced), rel=1e-15)
    assert found.mean(ratio("a")) == pytest.approx(1, rel=1e-15)


def test_a_logger_that_cannot_play_an_action_has_an_unsupported_row(engine: Engine) -> None:
    table = random_table(np.random.default_rng(10), {"a": 50, "b": 50}, shuffle=False)
    p_b = np.where(np.arange(100) < 1, 0.0, table["p_b"].to_numpy())
    table = table.set_column(table.column_names.index("p_b"), "p_b", pa.array(p_b))
    assert_exact(engine, log_of(table), all_needs(["a", "b"]))
    found = moments(engine, log_of(table), all_needs(["a", "b"]))["a"]
    assert found.mean(second_moment("b").bind("target")) > UNSUPPORTED / 1e6
    assert found.mean(second_moment("a").bind("target")) < 1e3


def test_the_own_propensity_may_stand_in_the_cross_propensities(engine: Engine) -> None:
    table = random_table(np.random.default_rng(11), {"a": 300, "b": 200})
    needs = all_needs(["a", "b"])
    alone = moments(engine, log_of(table, propensity=None), needs)
    assert_moments_agree(alone, moments(Reference(), log_of(table), needs))


def test_several_targets_are_kept_apart(engine: Engine) -> None:
    table = random_table(np.random.default_rng(12), {"a": 300, "b": 200})
    table = table.append_column("t2", pa.array(np.random.default_rng(13).random(500)))
    needs, targets = all_needs(["a", "b"], ["first", "2nd"]), {"first": "t", "2nd": "t2"}
    with engine.open(log_of(table), targets) as rows:
        found = rows.moments(needs)
    with Reference().open(log_of(table), targets) as judge:
        assert_moments_agree(found, judge.moments(needs))


LOGGED = ("p", "p_a", "p_b", "t")


def in_logs(table: pa.Table, shift: float = 0.0) -> pa.Table:
    with np.errstate(divide="ignore"):
        for name in LOGGED:
            values = np.log(table[name].to_numpy()) + shift
            table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


def test_log_probabilities_give_the_moments_of_probabilities(engine: Engine) -> None:
    table = random_table(np.random.default_rng(14), {"a": 600, "b": 400})
    needs = all_needs(["a", "b"])
    plain = moments(Reference(), log_of(table), needs)
    logs = log_of(in_logs(table), log_probabilities=True)
    assert_moments_agree(moments(engine, logs, needs), plain)
    alone = log_of(in_logs(table), log_probabilities=True, propensities=None)
    own = moments(Reference(), log_of(table, propensities=None), own_needs())
    assert_moments_agree(moments(engine, alone, own_needs()), own)


def test_log_probabilities_that_would_underflow_keep_their_ratios(engine: Engine) -> None:
    """exp(-2000) is 0 in doubles; the weights are ratios of such numbers."""
    table = random_table(np.random.default_rng(15), {"a": 600, "b": 400})
    log = log_of(in_logs(table, shift=-2000.0), log_probabilities=True)
    needs = all_needs(["a", "b"])
    found, plain = moments(engine, log, needs), moments(Reference(), log_of(table), needs)
    for logger, judge in plain.items():
        # a logarithm near -2000 has 12 digits after the point: so have its exponentials
        np.testing.assert_allclose(found[logger].means, judge.means, rtol=1e-12)
        np.testing.assert_allclose(found[logger].scatter, judge.scatter, rtol=1e-9)
    assert_exact(engine, log, needs)


def test_a_log_probability_of_minus_infinity_is_a_probability_of_zero(engine: Engine) -> None:
    table = random_table(np.random.default_rng(16), {"a": 60, "b": 40})
    for name in ("p_b", "t"):  # of a row that logger a wrote
        values = np.array(table[name].to_numpy())
        values[table["logger"].to_pylist().index("a")] = 0.0
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    log = log_of(in_logs(table), log_probabilities=True)
    needs = all_needs(["a", "b"])
    assert_moments_agree(
        moments(engine, log, needs), moments(Reference(), log_of(table), needs)
    )


def test_rows_come_in_any_order(engine: Engine) -> None:
    table = random_table(np.random.default_rng(17), {"a": 3_000, "b": 2_000}, offset=1e4)
    needs = all_needs(["a", "b"])
    shuffled = table.take(np.random.default_rng(18).permutation(5_000))
    assert_moments_agree(
        moments(engine, log_of(shuffled), needs), moments(Reference(), log_of(table), needs)
    )
