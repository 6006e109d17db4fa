"""Self-normalised estimates by log, for logs with the propensity of their own logger only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw
from benchmarks.own import KINDS, measure
from poolwise.errors import RefusedError
from poolwise.estimators.calibrated import SelfNormalised, normalise_by_log
from poolwise.moments.pool import Pool
from poolwise.moments.terms import REWARD, WEIGHT, WEIGHTED_REWARD
from tests.support.messages import check_findings, refused
from tests.support.small import group, mean, var

if TYPE_CHECKING:
    from poolwise.moments.moments import Moments

HALF, ONE = Fraction(1, 2), Fraction(1)
Rows = tuple[Sequence[Fraction], Sequence[int]]
ROWS: dict[str, Rows] = {
    "a": ([2 * ONE, HALF, HALF, ONE, ONE, ONE], [1, 0, 2, 1, 3, 0]),
    "b": ([3 * ONE, HALF, HALF, HALF], [0, 1, 1, 2]),
}


def log_moments(weights: Sequence[Fraction | float], rewards: Sequence[float]) -> Moments:
    """Moments of the rows of one log."""
    both = [float(w) * r for w, r in zip(weights, rewards, strict=True)]
    return group(
        {WEIGHTED_REWARD: both, WEIGHT: list(map(float, weights)), REWARD: list(rewards)}
    )


def pool_of(**logs: Moments) -> Pool:
    return Pool(logs)


MOMENTS = pool_of(**{i: log_moments(*rows) for i, rows in ROWS.items()})


def effective(weights: Sequence[Fraction]) -> Fraction:
    return sum(weights, Fraction(0)) ** 2 / sum((w**2 for w in weights), Fraction(0))


def test_value_shares_and_variance_are_those_worked_out_by_hand() -> None:
    found = SelfNormalised().estimate(MOMENTS)
    rows = {i: effective(w) for i, (w, _) in ROWS.items()}
    total = sum(rows.values(), Fraction(0))
    value = variance = Fraction(0)
    for i, (weights, rewards) in ROWS.items():
        products = [w * r for w, r in zip(weights, rewards, strict=True)]
        ratio, share = mean(products) / mean(weights), rows[i] / total
        residuals = [w * (r - ratio) for w, r in zip(weights, rewards, strict=True)]
        value += share * ratio
        variance += (share / mean(weights)) ** 2 * var(residuals) / len(weights)
    assert found.value == pytest.approx(float(value), rel=1e-13)
    assert found.shares == pytest.approx({i: float(e / total) for i, e in rows.items()})
    lost = total / (total - 2)  # each log's mean is fitted
    assert found.variance == pytest.approx(float(variance * lost), rel=1e-12)
    assert SelfNormalised().value(MOMENTS) == found.value
    assert found.findings == ()


def test_a_constant_is_added_and_rewards_do_not_change_the_shares() -> None:
    more_of = {i: log_moments(w, [r + 7 for r in rewards]) for i, (w, rewards) in ROWS.items()}
    shifted = pool_of(**more_of)
    plain, more = normalise_by_log(MOMENTS), normalise_by_log(shifted)
    assert more.value == pytest.approx(plain.value + 7, rel=1e-13)
    assert more.variance == pytest.approx(plain.variance, rel=1e-10)
    assert more.shares == plain.shares
    squared = {i: log_moments(w, [r**2 for r in rewards]) for i, (w, rewards) in ROWS.items()}
    assert normalise_by_log(pool_of(**squared)).shares == plain.shares


def test_a_log_with_few_effective_rows_among_many_is_left_out() -> None:
    many = log_moments([1.0] * 99 + [1.5], [0.0, 1.0] * 50)
    few = log_moments([30.0, *[0.01] * 30], [1.0, *[0.0] * 30])  # about one
    found = normalise_by_log(pool_of(many=many, few=few))
    assert found.shares == {"many": 1.0, "few": 0.0}
    assert found.value == pytest.approx(normalise_by_log(pool_of(many=many)).value)
    assert normalise_by_log(pool_of(few=few, other=few)).shares == {"few": 0.5, "other": 0.5}


def test_as_many_logs_as_effective_rows_show_no_variance() -> None:
    single = log_moments([2.0, 0.0], [1.0, 0.0])
    assert math.isinf(normalise_by_log(pool_of(a=single, b=single)).variance)


def test_logs_without_a_weight_are_refused() -> None:
    nothing = log_moments([0.0, 0.0], [1.0, 0.0])
    with refused(RefusedError):
        normalise_by_log(pool_of(a=nothing))


def covering(rows: int, missing: float, rng: np.random.Generator) -> pa.Table:
    """Rows of two loggers over three actions; the target plays a fourth this often."""
    loggers = {"a": [0.5, 0.3, 0.2], "b": [0.2, 0.3, 0.5]}
    label = np.where(rng.random(rows) < 0.5, "a", "b")
    action = np.array([rng.choice(3, p=loggers[i]) for i in label])
    own = np.array([loggers[i][k] for i, k in zip(label, action, strict=True)])
    target = (1 - missing) * np.array([0.2, 0.3, 0.5])[action]
    reward = np.where(rng.random(rows) < np.array([0.2, 0.5, 0.7])[action], 1.0, 0.0)
    return pa.table({"logger": label, "p": own, "target": target, "reward": reward})


def own_log(table: pa.Table) -> pw.Log:
    return pw.Log(table, logger="logger", reward="reward", propensity="p")


def test_the_default_of_such_a_log_is_recommended_and_never_called_calibrated() -> None:
    found = pw.evaluate(own_log(covering(4000, 0.0, np.random.default_rng(1))), "target")
    result = found["target"]
    assert list(result.estimates) == ["naive", "self-normalised"]
    assert result.recommended == "self-normalised"
    truth = 0.2 * 0.2 + 0.3 * 0.5 + 0.5 * 0.7
    estimate = result.estimates["self-normalised"]
    assert abs(estimate.value - truth) < 4 * estimate.std_error
    assert not any(f.severity == "alarm" for f in result.findings)


def test_a_target_that_no_log_covers_is_an_alarm_with_the_possible_values() -> None:
    found = pw.evaluate(own_log(covering(4000, 0.5, np.random.default_rng(1))), "target")
    alarms = [f for f in found["target"].findings if f.severity == "alarm"]
    check_findings(alarms, "target-uncovered")


def test_a_log_that_does_not_cover_the_target_is_left_out() -> None:
    table = covering(4000, 0.0, np.random.default_rng(1))
    lacking = pa.table({"logger": ["c"] * 3000, "p": [0.5] * 3000, "target": [0.2, 0.3] * 1500})
    lacking = lacking.append_column("reward", pa.array([0.0, 1.0, 0.0, 0.0] * 750))
    both = pw.evaluate(own_log(pa.concat_tables([table, lacking])), "target")["target"]
    alone = pw.evaluate(own_log(table), "target")["target"]
    estimate = both.estimates["self-normalised"]
    assert estimate.shares["c"] == 0
    assert estimate.value == pytest.approx(alone.estimates["self-normalised"].value)
    check_findings(estimate.findings, "thin-overlap")


def test_the_difference_from_the_logger_that_is_the_target_is_none() -> None:
    table = covering(2000, 0.0, np.random.default_rng(2))
    same = with_own_target(table, "b")
    found = pw.evaluate(own_log(same), "target", baseline="b")
    assert found.differences["target"].verdict == "identical"


def with_own_target(table: pa.Table, label: str) -> pa.Table:
    """Let the target have the own propensity in the rows of one logger."""
    own = np.array(table["logger"].to_pylist()) == label
    target = np.where(own, table["p"].to_numpy(), table["target"].to_numpy())
    return table.set_column(table.schema.get_field_index("target"), "target", pa.array(target))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KINDS[1], KINDS[4], KINDS[8]], ids=lambda k: k.name)
def test_the_default_is_never_much_worse_than_the_best_single_log(kind: object) -> None:
    line = measure((kind, 60))  # type: ignore[arg-type]
    assert float(str(line["default_error"])) < 1.15
    assert float(str(line["default_covers"])) > 0.95 - 4 * math.sqrt(0.05 * 0.95 / 60)
    assert float(str(line["naive_error"])) > float(str(line["default_error"]))
