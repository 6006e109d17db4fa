"""The difference from the incumbent: exact values, and logs in which nothing differs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtri

import poolwise as pw
from poolwise.errors import UsageError
from poolwise.formats.labelled import TARGETS, digits_log
from tests.support.messages import refused
from tests.support.periods import daily, daily_log

if TYPE_CHECKING:
    from poolwise.evaluation.differences import Difference

SEEDS = 200
NUMBERS = (2, 5, 10, 30)  # of loggers
TARGET = np.array([0.4, 0.3, 0.2, 0.1])


def same_loggers(number: int, seed: int, rows: int = 1200) -> pw.Log:
    """Loggers that play four actions alike; the reward depends on nothing."""
    rng = np.random.default_rng([seed, number])
    action = rng.integers(0, 4, rows)
    columns = {
        "logger": [f"v{k}" for k in rng.integers(0, number, rows)],
        "reward": rng.binomial(1, 0.3, rows),
        "p": np.full(rows, 0.25),
        "t": TARGET[action],
    }
    return pw.Log(pa.table(columns), reward="reward", logger="logger", propensity="p")


def few_rows() -> pw.Log:
    """Logger "a" wrote the rewards 1, 3, 5 and "b" 2, 4; the target has weights 1 and 2."""
    table = pa.table(
        {
            "logger": list("aaabb"),
            "reward": [1.0, 3.0, 5.0, 2.0, 4.0],
            "p": [0.5] * 5,
            "t": [0.5, 1.0, 0.5, 0.5, 1.0],
        }
    )
    return pw.Log(table, reward="reward", logger="logger", propensity="p")


def test_the_difference_from_the_mean_reward_by_hand() -> None:
    """Weighted rewards are 1, 6, 5 and 2, 8, so naive is 22 / 5; the rewards of "a" average 3.

    Rows of "a" add w r / 5 - r / 3, variance 3 * S; its three values are -2/15, 1/5, -2/3,
    those of "b" are 2/5, 8/5.
    """
    evaluation = pw.evaluate(few_rows(), {"new": "t"}, "naive", interval="student")
    difference = evaluation.differences["new"]
    own = np.array([-2 / 15, 1 / 5, -2 / 3])
    variance = 3 * own.var(ddof=1) + 2 * np.array([2 / 5, 8 / 5]).var(ddof=1)
    assert (evaluation.baseline, evaluation.baseline_reason) == ("a", "largest logger")
    assert difference.value == pytest.approx(22 / 5 - 3, rel=1e-12)
    assert difference.std_error == pytest.approx(variance**0.5, rel=1e-12)
    assert difference.verdict == "undecided"


def test_a_baseline_that_is_not_the_only_largest_logger_is_called_the_first() -> None:
    rows = pa.table(few_rows().source).slice(1)
    evaluation = pw.evaluate(replace(few_rows(), source=rows), {"new": "t"}, "naive")
    reason = "first of the largest loggers"
    assert (evaluation.baseline, evaluation.baseline_reason) == ("a", reason)


def test_the_logger_joins_the_targets_where_all_propensities_are_known() -> None:
    """The difference is that of `compare`, which reads the logger as another target."""
    evaluation = pw.evaluate(digits_log(), TARGETS, baseline="large")
    compared = pw.compare(digits_log(), TARGETS, baseline="large").difference("candidate")
    mine = evaluation.differences["candidate"]
    assert evaluation.baseline_reason == ""
    assert mine.value == pytest.approx(compared.value, rel=1e-9)
    assert mine.std_error == pytest.approx(compared.std_error, rel=1e-9)
    assert mine.interval.lower == pytest.approx(compared.interval.lower, rel=1e-4)
    assert mine.verdict == "better"


def test_the_policy_of_the_logger_is_not_another_policy() -> None:
    evaluation = pw.evaluate(digits_log(), {"new": "p_large"}, baseline="large")
    assert evaluation.differences["new"].verdict == "identical"
    assert evaluation.differences["new"].value == 0


def test_a_target_as_the_baseline() -> None:
    targets = {**TARGETS, "old": "p_large"}
    evaluation = pw.evaluate(digits_log(), targets, baseline="old")
    alone = pw.compare(digits_log(), targets, baseline="old")
    assert list(evaluation.differences) == ["candidate"]
    assert evaluation.differences["candidate"] == alone.difference("candidate")


def test_saved_moments_have_no_covariance_and_the_errors_add_up() -> None:
    """A reward of 0 or 1 with mean m has variance m (1 - m)."""
    log = digits_log()
    summary = pw.summarise(log, TARGETS)
    evaluation = pw.evaluate(log, TARGETS, engine=summary, baseline="large")
    estimate = evaluation["candidate"].estimates["calibrated"]
    mean = evaluation.mean_reward["large"]
    error = (mean * (1 - mean) / (evaluation.rows["large"] - 1)) ** 0.5
    difference = evaluation.differences["candidate"]
    assert difference.value == pytest.approx(estimate.value - mean, rel=1e-12)
    assert difference.std_error == pytest.approx(estimate.std_error + error, rel=1e-9)


def apart(level: float, sides: Literal["two", "lower", "upper"] = "two") -> Difference:
    """A difference from the mean reward: saved moments have no covariance with it."""
    log = replace(digits_log(), reward="correct + 0.12 * (policy = 'large')::INT")
    summary = pw.summarise(log, TARGETS)
    options: Any = {"level": level, "sides": sides, "baseline": "large"}
    return pw.evaluate(log, TARGETS, engine=summary, **options).differences["candidate"]


def test_the_interval_apart_ends_at_zero_at_the_level_of_its_p_value() -> None:
    p_value = apart(0.9).p_value
    assert 0.001 < p_value < 0.9
    assert 0.0 in apart(1 - 0.999 * p_value).interval
    assert 0.0 not in apart(1 - 1.001 * p_value).interval


def test_one_sided_intervals_leave_the_difference_apart_as_it_is() -> None:
    """Each has 1% beyond its limits, so a critical value of 1 reaches as far."""
    two, lower = apart(0.98), apart(0.99, "lower")
    critical = [-ndtri(tail) for tail in (0.01, 0.005)]
    reach = [d.value - d.interval.lower for d in (two, lower)]
    assert reach[1] / critical[1] == pytest.approx(reach[0] / critical[0], rel=1e-9)
    assert lower.interval.upper == np.inf


def test_clusters_and_trained_loggers_are_compared_too() -> None:
    log = replace(digits_log(), cluster="digit", context=())
    assert pw.evaluate(log, TARGETS).differences["candidate"].verdict == "better"
    trained = replace(digits_log(), trained_on={"large": ["small"]})
    apart = pw.evaluate(trained, TARGETS, baseline="large").differences["candidate"]
    paired = pw.evaluate(digits_log(), TARGETS, baseline="large").differences["candidate"]
    assert apart.std_error > paired.std_error


def test_buckets_in_which_loggers_have_another_order() -> None:
    """The first cluster has rows of the last logger only."""
    rng = np.random.default_rng(12)
    probs = rng.uniform(0.2, 0.8, (90, 3))
    logger = np.tile([2, 1, 0], 30)
    table = pa.table(
        {
            "logger": np.array(["a", "b", "c"])[logger],
            "reward": rng.binomial(1, 0.5, 90),
            "user": np.arange(90),
            "t": rng.uniform(0.2, 0.8, 90),
            **{f"p_{k}": probs[:, i] for i, k in enumerate("abc")},
        }
    )
    columns = {k: f"p_{k}" for k in "abc"}
    log = pw.Log(table, logger="logger", reward="reward", propensities=columns)
    plain = pw.evaluate(log, {"t": "t"}).differences["t"]
    clustered = pw.evaluate(replace(log, cluster="user"), {"t": "t"}).differences["t"]
    assert clustered.value == pytest.approx(plain.value, rel=1e-12)


def test_an_unknown_baseline() -> None:
    with refused(UsageError):
        pw.evaluate(digits_log(), TARGETS, baseline="larg")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "crossed"])
def test_logs_in_which_nothing_differs_claim_little(kind: str) -> None:
    claims = 0
    for seed in range(SEEDS):
        number = NUMBERS[seed % len(NUMBERS)]
        log = same_loggers(number, seed)
        if kind == "crossed":
            log = replace(log, propensities={f"v{k}": "p" for k in range(number)})
        found = pw.evaluate(log, {"new": "t"}, backtest=False)
        difference = found.differences["new"]
        claims += difference.verdict in {"better", "worse"}
    assert claims <= 0.07 * SEEDS


def test_rows_for_a_lift() -> None:
    """Normal quantiles 1.959964 and 0.841621 add up to 2.801585."""
    evaluation = pw.evaluate(digits_log(), TARGETS, baseline="large")
    error = evaluation.differences["candidate"].std_error
    rows = evaluation.rows_to_detect("candidate", lift=2.801585 * error)
    assert rows == pytest.approx(10_500, rel=1e-5)
    assert evaluation.rows_to_detect("candidate", lift=-error, power=0.5) == pytest.approx(
        10_500 * 1.959964**2, rel=1e-5
    )
    with refused(UsageError):
        evaluation.rows_to_detect("candidate", lift=0)


def test_the_policy_of_the_first_period_joins_the_comparison_of_periods() -> None:
    log = daily_log(daily(2_000))
    difference = pw.evaluate(log, {"t": "t"}, baseline="control").differences["t"]
    both = pw.evaluate(log, {"t": "t", "c": "p_control"}, "period-balanced")
    target, control = (both[name].estimates["period-balanced"] for name in ("t", "c"))
    assert difference.value == pytest.approx(target.value - control.value, rel=1e-9)
    assert both.comparison is not None
    (paired,) = both.comparison.pairs
    assert difference.std_error == pytest.approx(paired.std_error, rel=1e-9)


def test_a_later_policy_is_compared_by_its_mean_reward() -> None:
    columns = daily(2_000)
    difference = pw.evaluate(daily_log(columns), {"t": "t"}, baseline="v2").differences["t"]
    estimate = pw.evaluate(daily_log(columns), {"t": "t"}, "period-balanced")["t"].estimates
    mean = columns["reward"][columns["logger"] == "v2"].mean()
    gap = estimate["period-balanced"].value - mean
    assert difference.value == pytest.approx(gap, rel=1e-9)


def test_the_mean_reward_of_clusters_has_the_error_of_clusters() -> None:
    """Nine copies of each row, in one cluster, say no more about the incumbent than one."""
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {n: rng.uniform(0.3, 0.9, 400) for n in ("p_a", "p_b", "t")}
    columns |= {"reward": rng.binomial(1, 0.5, 400), "user": np.arange(400)}
    columns |= {"logger": np.repeat(["a", "b"], [250, 150])}
    once = pa.table(columns)

    def error(table: pa.Table, cluster: str | None) -> float:
        names = {"a": "p_a", "b": "p_b"}
        trained: Any = {"b": ["a"]}  # the incumbent is compared by its mean reward
        roles: Any = {"logger": "logger", "propensities": names, "trained_on": trained}
        log = pw.Log(table, reward="reward", cluster=cluster, **roles)
        return pw.evaluate(log, "t").differences["target"].std_error

    often = error(pa.concat_tables([once] * 9), "user")
    assert often == pytest.approx(error(once, None), rel=0.1)


def one_heavy_row(seed: int, rows: int = 3000, **columns: Any) -> pw.Log:  # noqa: ANN401 - roles
    """A uniform logger of ten actions, and one that gave a tiny probability to one row."""
    rng = np.random.default_rng(seed)
    p = np.full(2 * rows, 0.1)
    p[rows:] = rng.choice([0.05, 0.1, 0.3], rows)
    p[-1] = 1e-6
    reward = rng.random(2 * rows) < 0.02
    reward[-1] = False
    names = np.repeat(["random", "learned"], rows)
    table = pa.table(
        {"l": names, "r": reward.astype(float), "p": p, "t": np.full(2 * rows, 0.1)}
    )
    return pw.Log(table, reward="r", logger="l", propensity="p", **columns)


@pytest.mark.parametrize("level", [0.8, 0.95, 0.999])
def test_a_difference_does_not_contradict_the_value_beside_it(level: float) -> None:
    """The baseline is known to 0.01: the difference is as uncertain as the value."""
    how: Any = {"level": level, "baseline": "learned"}
    evaluation = pw.evaluate(one_heavy_row(1), {"t": "t"}, "naive", **how)
    result, difference = evaluation["t"], evaluation.differences["t"]
    (name, *_) = result.estimates
    estimate, interval = result.estimates[name], result.intervals[name]
    assert interval.upper > 1  # the heavy row may have been rewarded
    for ends in (interval.upper - estimate.value, estimate.value - interval.lower):
        assert ends > 0
    above = interval.upper - estimate.value
    assert difference.interval.upper - difference.value > 0.99 * above
    assert difference.interval.upper - difference.value < 1.01 * above


def test_a_range_of_rewards_cuts_values_and_differences() -> None:
    log = one_heavy_row(1, reward_range=(0, 1))
    evaluation = pw.evaluate(log, {"t": "t"}, "naive")
    (interval,) = evaluation["t"].intervals.values()
    assert (interval.upper, evaluation.differences["t"].interval.upper) == (1.0, 1.0)


def test_a_value_without_spread_has_an_unbounded_difference() -> None:
    """No rewarded row has an action of the target: its value is unknown, and so is the rest."""
    rows = np.arange(400)
    columns = {"r": (rows % 4 == 0) * 1.0, "p": np.full(400, 0.5), "l": ["a"] * 400}
    columns["t"] = np.where(rows % 4 == 0, 0.0, 2 / 3)
    log = pw.Log(pa.table(columns), reward="r", logger="l", propensity="p")
    evaluation = pw.evaluate(log, {"t": "t"}, "naive")
    assert evaluation["t"].intervals["naive"].upper == np.inf
    difference = evaluation.differences["t"]
    assert (difference.interval.lower, difference.interval.upper) == (-np.inf, np.inf)
    assert difference.verdict == "undecided"
    assert difference.p_value == pytest.approx(1)
    bounded = pw.evaluate(replace(log, reward_range=(0, 1)), {"t": "t"}, "naive")
    value, gap = bounded["t"].intervals["naive"], bounded.differences["t"].interval
    assert gap.upper - gap.lower > 0.5 * (value.upper - value.lower)
    assert -1 <= gap.lower < gap.upper <= 1


@pytest.mark.parametrize("seed", range(4))
def test_differences_of_targets_do_not_contradict_their_values(seed: int) -> None:
    """A difference is as uncertain as its two sides differ in their uncertainty."""
    log = one_heavy_row(seed)
    targets = {"t": "t", "same": "p", "half": "(t + p) / 2"}
    found = pw.compare(log, targets, estimator="naive")
    singles = pw.evaluate(log, targets, "naive", level=0.99)
    for pair in found.pairs:
        ends = [singles[name].intervals["naive"] for name in (pair.target, pair.other)]
        values = [singles[name].estimates["naive"].value for name in (pair.target, pair.other)]
        one, other = ((e.upper - v, v - e.lower) for e, v in zip(ends, values, strict=True))
        above = pair.interval.upper - pair.value
        assert above > 0.5 * abs(one[0] - other[0])  # at the lower level of the pairs
