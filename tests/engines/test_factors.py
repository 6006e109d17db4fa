"""Every factor of `FACTORS`: the kernel's mean over rows is the expectation by enumeration."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from poolwise import FiniteProblem
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import UsageError
from poolwise.estimators.period import PeriodBalanced
from poolwise.log.log import Log
from poolwise.moments.terms import FACTORS, Factor, Needs, Term
from poolwise.rows.learners import Extra
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = np.array([[2.5, -0.5, 1.0], [1.0, 3.0, 0.25]])
PROBLEM = FiniteProblem(
    context_prob=np.array([0.25, 0.75]),
    reward=np.array([[3.0, -1.0, 0.5], [2.0, 4.0, -0.25]]),
    target=np.array([[0.7, 0.2, 0.1], [0.15, 0.25, 0.6]]),
    loggers={
        "a": np.array([[0.5, 0.25, 0.25], [0.125, 0.5, 0.375]]),
        "b": np.array([[0.25, 0.75, 0.0], [0.625, 0.25, 0.125]]),
        "c": np.array([[0.375, 0.25, 0.375], [0.25, 0.0, 0.75]]),
    },
    counts={"a": 96, "b": 160, "c": 64},
    predicted_reward=MODEL,
    periods={"d1": {"a": 64, "b": 96}, "d2": {"a": 32, "b": 64, "c": 64}},
)


def factors() -> Iterator[Factor]:
    """Each factor with each of its rules, for each logger or period that it can name."""
    named = {"logger": PROBLEM.loggers, "period": PROBLEM.periods}
    for name, made in FACTORS.items():
        rules = made.rules if made.logarithmic else ("", *made.rules)
        for logger, rule in product(named.get(made.scope, ("",)), rules):
            bound, zero = (1.5 if rule else 0.0), (1.0 if made.logarithmic else 0.0)
            yield Factor(name, logger, "", rule, bound, zero).bind("t")


def small(**more: Any) -> FiniteProblem:  # noqa: ANN401 - of `FiniteProblem`
    """One context, two actions and one logger."""
    reward, even = np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]])
    return FiniteProblem(np.ones(1), reward, even, {"a": even}, {"a": 4}, **more)


def proportional_log() -> Log:
    """Each context and action in proportion to its probability, in each stratum."""
    columns: dict[str, list[object]] = {}
    for logger, period, count in PROBLEM.strata.values():
        for x, y in np.ndindex(PROBLEM.target.shape):
            rows = count * PROBLEM.context_prob[x] * PROBLEM.loggers[logger][x, y]
            assert rows == int(rows)
            value = PROBLEM.target[x] @ MODEL[x]
            row = {
                "logger": logger,
                "period": period,
                "reward": PROBLEM.reward[x, y],
                "t": PROBLEM.target[x, y],
                "q": MODEL[x, y],
                "v": value,
                **{f"p_{i}": policy[x, y] for i, policy in PROBLEM.loggers.items()},
            }
            for name, one in row.items():
                columns.setdefault(name, []).extend([one] * int(rows))
    return Log(
        pa.table(columns),
        logger="logger",
        reward="reward",
        propensities={i: f"p_{i}" for i in PROBLEM.loggers},
        period="period",
    )


def test_each_name_is_among_the_factors() -> None:
    assert {factor.name for factor in factors()} == set(FACTORS)


@pytest.mark.parametrize("factor", [*factors()], ids=lambda f: f"{f.name}-{f.logger}{f.rule}")
def test_the_kernel_and_the_enumeration_agree(factor: Factor) -> None:
    needs = Needs(means=(Term((factor,)),))
    extra = Extra(predicted_reward="q", predicted_values={"t": "v"})
    extra = extra if factor.definition.modelled else Extra()
    with DuckDB().open(proportional_log(), {"t": "t"}, extra) as rows:
        found = rows.by_period.moments(needs)
    expected = PROBLEM.moments(needs)
    assert list(found) == list(expected)
    for cell, moments in expected.items():
        assert found[cell].count == moments.count
        np.testing.assert_allclose(found[cell].means, moments.means, rtol=1e-12, atol=1e-12)


def test_an_estimator_of_periods_has_the_value_of_the_target() -> None:
    found = PROBLEM.exact(PeriodBalanced())
    assert found.value == pytest.approx(PROBLEM.value, rel=1e-12)
    assert found.findings == ()
    assert PROBLEM.draw(np.random.default_rng(0)).period == "period"


def test_factors_of_periods_require_periods() -> None:
    with refused(UsageError):
        small().moments(Needs(means=(Term((Factor("period_weight"),)),)))


def test_logarithms_of_gains_require_rewards_without_variance() -> None:
    noisy = small(reward_variance=0.25)
    gain = Factor("log_gain", rule="gain", bound=1.0)
    with refused(UsageError):
        noisy.moments(Needs(means=(Term((gain,)),)))


@pytest.mark.parametrize("rows", [{"a": 3}, {"a": 5, "b": -1}, {}])
def test_periods_must_add_up_to_the_counts(rows: dict[str, int]) -> None:
    with refused(UsageError):
        small(periods={"d": rows})
