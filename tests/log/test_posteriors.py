"""Thompson sampling: closed forms, exact fractions and laws of the probability to be best."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr
from sklearn.linear_model import LogisticRegression

import poolwise as pw
from poolwise.errors import PolicyError
from poolwise.log.eligible import Eligible
from poolwise.log.policy import Batch
from tests.support.messages import refused

FloatArray = NDArray[np.float64]
Polynomial = list[Fraction]


def best(kind: type[pw.Beta | pw.Gaussian], first: Any, second: Any) -> FloatArray:  # noqa: ANN401
    """Return the probabilities of rows of parameters, shape (rows, actions)."""
    first, second = np.atleast_2d(first), np.atleast_2d(second)
    count = first.shape[1]
    policy = pw.Thompson({k: kind(f"a{k}", f"b{k}") for k in range(count)})
    columns = {f"a{k}": first[:, k] for k in range(count)}
    columns |= {f"b{k}": second[:, k] for k in range(count)}
    return policy.distribution(Batch(np.zeros(len(first)), columns))


# -- exact answers -------------------------------------------------------------------------


def test_two_normal_posteriors_have_the_distribution_of_their_difference() -> None:
    rng = np.random.default_rng(1)
    scale = np.exp(rng.normal(scale=7, size=(500, 2)))  # ratios up to 1e12 and more
    mean = 2 * rng.normal(size=(500, 2)) * np.hypot(*scale.T)[:, None]
    mean[:50] += 1e4 * scale[:50].max(axis=1, keepdims=True)
    expected = ndtr((mean[:, 0] - mean[:, 1]) / np.hypot(*scale.T))
    assert np.abs(best(pw.Gaussian, mean, scale)[:, 0] - expected).max() < 1e-11


def product(first: Polynomial, second: Polynomial) -> Polynomial:
    found = [Fraction(0)] * (len(first) + len(second) - 1)
    for i, u in enumerate(first):
        for j, v in enumerate(second):
            found[i + j] += u * v
    return found


def integral(terms: Polynomial) -> Polynomial:
    return [Fraction(0), *(c / (i + 1) for i, c in enumerate(terms))]


def density(a: int, b: int) -> Polynomial:
    """Return the density of a Beta distribution with whole parameters."""
    factor = Fraction(math.factorial(a + b - 1), math.factorial(a - 1) * math.factorial(b - 1))
    signs = [factor * math.comb(b - 1, i) * (-1) ** i for i in range(b)]
    return [Fraction(0)] * (a - 1) + signs


def exact_best(pairs: list[tuple[int, int]]) -> list[Fraction]:
    densities = [density(*pair) for pair in pairs]
    found = []
    for k, own in enumerate(densities):
        terms = own
        for j, other in enumerate(densities):
            terms = product(terms, integral(other)) if j != k else terms
        found.append(sum(integral(terms), Fraction(0)))
    assert sum(found) == 1
    return found


@pytest.mark.parametrize(
    "pairs",
    [
        [(1, 1), (1, 1)],
        [(2, 1), (1, 1)],
        [(30, 7), (4, 1)],
        [(40, 1), (1, 40)],
        [(3, 5), (5, 3), (1, 1)],
        [(1, 9), (2, 2), (12, 12), (6, 1)],
        [(8, 8), (7, 7), (1, 1), (2, 9), (3, 1)],
    ],
)
def test_beta_posteriors_with_whole_parameters_are_fractions(
    pairs: list[tuple[int, int]],
) -> None:
    a, b = np.array(pairs, dtype=float).T
    expected = [float(part) for part in exact_best(pairs)]
    assert best(pw.Beta, a, b)[0] == pytest.approx(expected, abs=1e-12)


def test_two_beta_posteriors_are_the_known_finite_sum() -> None:
    """P(Y > X) = sum over i < a of B(c + i, b + d) / ((b + i) B(1 + i, b) B(c, d))."""
    a, b, c, d = 30, 7, 11, 4  # X has parameters c, d and Y has a, b

    def beta(x: int, y: int) -> Fraction:
        shape = math.factorial(x - 1) * math.factorial(y - 1)
        return Fraction(shape, math.factorial(x + y - 1))

    wins = sum(beta(c + i, b + d) / ((b + i) * beta(1 + i, b) * beta(c, d)) for i in range(a))
    assert best(pw.Beta, [c, a], [d, b])[0, 1] == pytest.approx(float(wins), abs=1e-12)


@pytest.mark.parametrize("size", [2, 5, 40])
@pytest.mark.parametrize("reach", [0.1, 3.0, 20.0])
def test_powers_of_uniform_values_win_in_proportion(size: int, reach: float) -> None:
    """F(x) = x**a: the highest of them is the k-th with probability a_k / sum of all a."""
    rng = np.random.default_rng(size)
    a = np.exp(rng.uniform(-reach, reach, size=(20, size)))
    found = best(pw.Beta, a, np.ones_like(a))
    assert np.abs(found - a / a.sum(axis=1, keepdims=True)).max() < 1e-9


@pytest.mark.parametrize("shape", [1e-9, 1e-4, 0.03, 0.5, 1.0, 20.0, 1e5, 1e9])
@pytest.mark.parametrize("size", [2, 3, 50, 2000])
def test_equal_posteriors_are_played_equally(shape: float, size: int) -> None:
    expected = pytest.approx(np.full((1, size), 1 / size), rel=1e-9)
    full = np.full(size, shape)
    assert best(pw.Beta, full, full) == expected
    assert best(pw.Beta, full, np.ones(size)) == expected
    assert best(pw.Gaussian, full, full) == expected


def test_a_known_value_is_compared_with_the_others() -> None:
    mean, scale = np.array([0.3, -0.2, 0.9]), np.array([0.0, 0.5, 2.0])
    found = best(pw.Gaussian, mean, scale)[0]
    assert found[0] == pytest.approx(ndtr(0.5 / 0.5) * ndtr(-0.6 / 2.0), abs=1e-12)
    tiny = best(pw.Gaussian, mean, np.array([1e-13, 0.5, 2.0]))[0]
    assert found == pytest.approx(tiny, abs=1e-12)


def test_known_values_that_tie_for_the_highest_are_played_equally() -> None:
    zero = np.zeros(4)
    assert best(pw.Gaussian, [1.0, 3.0, 3.0, 2.0], zero).tolist() == [[0, 0.5, 0.5, 0]]
    assert best(pw.Gaussian, [5.0], [0.0]).tolist() == [[1.0]]
    mixed = best(pw.Gaussian, [0.0, 0.0, -1.0, 0.0], [0.0, 0.0, 0.0, 1.0])[0]
    assert mixed == pytest.approx([0.25, 0.25, 0.0, 0.5], abs=1e-12)


def test_values_that_cannot_win_have_no_probability() -> None:
    found = best(pw.Gaussian, [0.0, 1.0, -90.0], [0.1, 0.1, 0.1])[0]
    assert found[2] == 0
    assert found[0] == pytest.approx(ndtr(-1 / math.hypot(0.1, 0.1)), rel=1e-6)
    assert best(pw.Gaussian, [0.0, 9.0], [0.1, 0.0]).tolist() == [[0.0, 1.0]]


def test_draws_are_as_often_the_highest() -> None:
    """A check of the formula itself: draws of many values, within five standard errors."""
    rng = np.random.default_rng(5)
    a, b = np.array([3.0, 0.4, 60.0, 7.5]), np.array([2.0, 0.3, 45.0, 9.0])
    mean, scale = np.array([0.0, 0.4, -1.0, 0.2]), np.array([1.0, 0.2, 3.0, 0.0])
    draws = 200_000
    for kind, first, second, drawn in (
        (pw.Beta, a, b, rng.beta(a, b, (draws, 4))),
        (pw.Gaussian, mean, scale, rng.normal(mean, scale, (draws, 4))),
    ):
        found = best(kind, first, second)[0]
        often = np.bincount(drawn.argmax(axis=1), minlength=4) / draws
        assert (np.abs(often - found) < 5 * np.sqrt(found * (1 - found) / draws)).all()


# -- laws ----------------------------------------------------------------------------------

logs = st.floats(-20, 20).map(math.exp)


@given(st.lists(st.tuples(logs, logs), min_size=1, max_size=6), st.randoms())
def test_beta_probabilities_sum_to_1_in_any_order(
    pairs: list[tuple[float, float]],
    random: Any,  # noqa: ANN401
) -> None:
    a, b = np.array(pairs).T
    order = random.sample(range(len(pairs)), len(pairs))
    found = best(pw.Beta, a, b)[0]
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert found.min() >= 0
    assert best(pw.Beta, a[order], b[order])[0] == pytest.approx(found[order], abs=1e-9)


@given(
    st.lists(
        st.tuples(
            st.floats(-50, 50), st.one_of(st.just(0.0), st.floats(-10, 10).map(math.exp))
        ),
        min_size=1,
        max_size=6,
    ),
    st.randoms(),
    st.floats(-100, 100),
    st.floats(-5, 5).map(math.exp),
)
def test_normal_probabilities_ignore_order_origin_and_unit(
    pairs: list[tuple[float, float]],
    random: Any,  # noqa: ANN401
    origin: float,
    unit: float,
) -> None:
    mean, scale = np.round(np.array(pairs).T, 6)
    order = random.sample(range(len(pairs)), len(pairs))
    found = best(pw.Gaussian, mean, scale)[0]
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert found.min() >= 0
    permuted = best(pw.Gaussian, mean[order], scale[order])[0]
    assert permuted == pytest.approx(found[order], abs=1e-9)
    if (np.diff(np.sort(mean)) > 1e-3).all():  # no tie that rounding could break
        moved = best(pw.Gaussian, origin + unit * mean, unit * scale)[0]
        assert moved == pytest.approx(found, abs=1e-8)


def test_a_higher_mean_is_played_more_often() -> None:
    means = np.linspace(-3, 3, 41)
    rows = np.column_stack([means, np.zeros(41), np.full(41, 0.5)])
    found = best(pw.Gaussian, rows, np.tile([0.3, 1.0, 0.7], (41, 1)))
    assert all(before < after for before, after in pairwise(found[:, 0]))
    assert all(before > after for before, after in pairwise(found[:, 2]))


def test_rows_do_not_depend_on_their_batch() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.gamma(2.0, 30.0, (2, 700, 12))
    found = best(pw.Beta, a, b)
    for rows in ([0], [699, 3, 3], [*range(100, 333)]):
        assert np.abs(best(pw.Beta, a[rows], b[rows]) - found[rows]).max() < 1e-14


# -- the policy ----------------------------------------------------------------------------


def test_parameters_are_numbers_columns_or_functions() -> None:
    policy = pw.Thompson(
        {
            "a": pw.Gaussian(0.5, "spread"),
            "b": pw.Gaussian(lambda batch: batch["x"] / 2, 1),
        }
    )
    columns = {"spread": np.array([1.0, 2.0]), "x": np.array([1.0, 3.0])}
    batch = Batch(np.array(["b", "z"]), columns)
    assert policy.actions == ("a", "b")
    assert policy.prob(batch) == pytest.approx([0.5, 0.0], abs=1e-12)
    assert policy.distribution(batch)[1, 0] == pytest.approx(ndtr(-1 / math.sqrt(5)))
    none = Batch(np.array([], dtype=str), {name: v[:0] for name, v in columns.items()})
    assert policy.prob(none).shape == (0,)


def test_only_eligible_actions_can_be_best() -> None:
    lists = np.empty(3, dtype=object)
    lists[:] = [["a", "b"], ["c", "b"], ["a", "b", "c"]]
    missing = np.array([1.0, np.nan, 1.0])  # of an action that is not eligible there
    batch = Batch(np.array(["b", "b", "b"]), {"list": lists, "wins": missing})
    policy = pw.Thompson({"a": pw.Beta("wins", 1), "b": pw.Beta(2, 1), "c": pw.Beta(3, 1)})
    found = Eligible(policy, "list").distribution(batch)
    expected = [[1 / 3, 2 / 3, 0], [0, 2 / 5, 3 / 5], [1 / 6, 2 / 6, 3 / 6]]
    assert found == pytest.approx(np.array(expected), abs=1e-12)


def log_rows(count: int = 3000) -> pa.Table:
    rng = np.random.default_rng(9)
    period = rng.integers(3, size=count)
    wins = 2 + 5 * period
    chance = best(pw.Beta, np.column_stack([wins, np.full(count, 4)]), np.tile(4, (count, 2)))
    plays_a = rng.random(count) < np.where(rng.random(count) < 0.5, chance[:, 0], 0.5)
    reward = rng.random(count) < np.where(plays_a, 0.3, 0.6)
    gap = ndtr((wins / 10 - 1.0) / math.hypot(0.4, 0.3))
    return pa.table(
        {
            "arm": np.where(plays_a, "a", "b"),
            "r": reward.astype(float),
            "policy": np.where(rng.random(count) < 0.5, "ts", "coin"),
            "wins": wins,
            "level": wins / 10,
            "x": rng.normal(size=count),
            "p_ts": np.where(plays_a, chance[:, 0], chance[:, 1]),
            "p_new": np.where(plays_a, gap, 1 - gap),
        }
    )


def test_it_is_a_logger_and_a_target_of_an_evaluation() -> None:
    rows = log_rows()
    roles: Any = {"reward": "r", "logger": "policy", "action": "arm"}
    logger = pw.Thompson({"a": pw.Beta("wins", 4), "b": pw.Beta(4, 4)})
    target = pw.Thompson({"a": pw.Gaussian("level", 0.4), "b": pw.Gaussian(1.0, 0.3)})
    coin = pw.Uniform(["a", "b"])
    played = pw.Log(rows, propensities={"ts": logger, "coin": coin}, **roles)
    listed = pw.Log(rows, propensities={"ts": "p_ts", "coin": 0.5}, **roles)
    found = pw.evaluate(played, {"new": target})["new"].estimates
    expected = pw.evaluate(listed, {"new": "p_new"})["new"].estimates
    for name, estimate in expected.items():
        assert found[name].value == pytest.approx(estimate.value, rel=1e-9)
        assert found[name].std_error == pytest.approx(estimate.std_error, rel=1e-7)
    mixed = pw.Mixture([target, coin], [0.9, 0.1])
    model = LogisticRegression()
    explored = pw.evaluate(played, {"new": mixed}, model=model)["new"]
    assert "doubly-robust" in explored.estimates


def test_a_beta_policy_draws_from_its_density() -> None:
    y = np.array([0.0, 0.2, 0.9, 1.0, -0.5, 1.5])
    policy = pw.Beta(2.5, "b")
    batch = Batch(y, {"b": np.full(6, 1.5)})
    assert policy.prob(batch) == pytest.approx(stats.beta(2.5, 1.5).pdf(y), rel=1e-12)
    level = np.array([0.01, 0.3, 0.5, 0.7, 0.99, 0.5])
    actions, weight = policy.draw(batch, level)
    assert actions == pytest.approx(stats.beta(2.5, 1.5).ppf(level))
    assert weight == 1


# -- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "posteriors",
    [
        {},
        {"a": pw.Beta(1, 1), "b": pw.Gaussian(0, 1)},
        {"a": 0.5},
        [pw.Beta(1, 1)],
    ],
    ids=["none", "two-kinds", "number", "list"],
)
def test_other_posteriors_are_refused(posteriors: Any) -> None:  # noqa: ANN401
    with refused(PolicyError):
        pw.Thompson(posteriors)


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (pw.Beta, 0.0, 1.0),
        (pw.Beta, 1.0, 1e10),
        (pw.Beta, np.nan, 1.0),
        (pw.Gaussian, np.inf, 1.0),
        (pw.Gaussian, 0.0, -1.0),
        (pw.Gaussian, 0.0, np.nan),
        (pw.Gaussian, 3.0, 1e-200),
    ],
)
def test_parameters_out_of_range_are_one_message(
    kind: Any,  # noqa: ANN401
    first: float,
    second: float,
) -> None:
    rows = Batch(
        np.array(["a"] * 4),
        {"one": np.array([2.0, 2.0, first, first]), "two": np.array([2.0, 2, second, second])},
    )
    policy = pw.Thompson(
        {"a": kind("one", "two"), "b": kind(0.5, 0.6), "c": kind("one", "two")}
    )
    with refused(PolicyError) as caught:
        policy.prob(rows)
    assert caught.value.rows == (2, 3)


def test_a_parameter_is_one_number_per_row() -> None:
    policy = pw.Thompson({"a": pw.Beta("x", 1), "b": pw.Beta(1, 1)})
    with refused(PolicyError):
        policy.prob(Batch(np.array(["a"]), {"x": np.ones((1, 2))}))


def test_a_beta_policy_needs_positive_parameters() -> None:
    with refused(PolicyError):
        pw.Beta(0, 1).prob(Batch(np.array([0.5]), {}))
