"""Agreement: exact in the limit of many rows, and p-values that hold their level."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from poolwise.diagnosis.agreement import Diagnosis, columns, diagnose, gamma
from poolwise.diagnosis.overlap import list_needs, mixed_overlap, own_overlap
from poolwise.engines.exact import TARGET_COLUMN, FiniteProblem
from poolwise.estimators.calibrated import Calibrated
from poolwise.estimators.ips import Weighted
from poolwise.moments.coverage import Coverage
from poolwise.moments.pool import Pool
from poolwise.moments.terms import Term, ratio
from tests.support.reference import exact_moments, frame_of
from tests.support.small import group
from tests.support.toys import GOLDEN, toy

if TYPE_CHECKING:
    from collections.abc import Callable


LARGE = {"1": 400, "2": 600}


def exact_view(problem: FiniteProblem) -> Pool:
    """Return the diagnostics in the limit of infinitely many rows."""
    return problem.moments(list_needs(Coverage.complete(tuple(problem.loggers))))


def diagnosed(view: Pool) -> Diagnosis:
    own = own_overlap(view, Coverage.complete(view.loggers))
    return diagnose(view, own, mixed_overlap(view), 0.95)


@pytest.mark.parametrize("name", ["T2", "T4"])
def test_in_endless_rows_every_mean_is_what_it_should_be(name: str) -> None:
    view = exact_view(toy(name))
    found = diagnosed(view)
    assert [c.value for c in found.columns.values()] == pytest.approx([1, 1], rel=1e-12)
    assert found.checks["mean-weight"].p_value == 1
    assert found.checks["columns"].p_value == 1
    assert found.checks["own-columns"].statistic >= 0
    assert found.checks["hausman"].statistic == 0


@pytest.mark.parametrize(("name", "expected"), [("T1", 0.06535138), ("T2", 0.58740551)])
def test_gamma_and_the_best_shares_are_exact(name: str, expected: float) -> None:
    problem = toy(name)
    view = exact_view(problem)
    found = diagnosed(view)
    assert found.gamma == pytest.approx(expected, abs=5e-9)
    assert found.gamma == pytest.approx(problem.gamma, rel=1e-12)
    counts = list(problem.counts.values())
    shares = [w * n for w, n in zip(GOLDEN[name]["lambda_opt"], counts, strict=True)]
    assert [a.best_share for a in found.alone.values()] == pytest.approx(shares, rel=1e-9)
    first = found.alone["1"]
    assert first.relative_rows == pytest.approx(counts[0] / counts[1], rel=1e-12)
    ratio = problem.divergence["1"] / problem.divergence["2"]
    assert first.relative_divergence == pytest.approx(ratio, rel=1e-12)


def test_gamma_is_unknown_without_support() -> None:
    view = exact_view(toy("T3"))
    assert gamma(Pool(view), {"1": math.inf, "2": 1.0}) == math.inf


@pytest.mark.parametrize("name", ["T2", "T4"])
def test_the_variance_of_a_hausman_difference_is_that_of_the_variances(name: str) -> None:
    # calibrated is the best of a family that weighted belongs to, so that their difference
    # is unrelated to it: Var(weighted - calibrated) = Var(weighted) - Var(calibrated)
    view = exact_view(toy(name))
    calibrated = Calibrated(guard=False).estimate(Pool(view))
    weighted = Weighted(divergence="reward-free").estimate(Pool(view))
    alone = calibrated.linear.variance(Pool(view))[0]
    exact = toy(name).exact(Calibrated())
    assert calibrated.value == pytest.approx(exact.value, rel=1e-12)
    assert alone == pytest.approx(exact.variance, rel=1e-9)
    difference = calibrated.linear.plain - weighted.linear.plain
    found = difference.variance(Pool(view))[0]
    assert found == pytest.approx(weighted.variance - alone, rel=1e-9)


@pytest.mark.slow
def test_p_values_of_good_logs_are_spread_evenly() -> None:
    names = ("mean-weight", "drift", "hausman")
    small = dict.fromkeys(names, 0)
    for seed in range(100):
        view = drawn_view(replace(toy("T2"), counts=LARGE), np.random.default_rng(seed))
        found = diagnosed(view).checks
        for name in names:
            small[name] += found[name].p_value < 0.1
    # 10 of 100 expected, standard error 3: at most 22 is four standard errors
    assert all(1 <= count <= 22 for count in small.values()), small


def drawn_view(problem: FiniteProblem, rng: np.random.Generator) -> Pool:
    """Moments of one drawn log, in plain NumPy."""
    table = frame_of(problem.draw(rng))
    rows = {name: table[name].to_numpy() for name in table.column_names}
    loggers = tuple(problem.loggers)
    total = len(rows["reward"])
    policies = {i: rows[f"propensity_{k}"] for k, i in enumerate(loggers)}
    mixture = sum(problem.counts[i] / total * p for i, p in policies.items())
    smallest = np.min(list(policies.values()), axis=0)
    known = {
        "reward": rows["reward"],
        "weight": rows[TARGET_COLUMN] / rows["propensity"],
        "balanced_weight": rows[TARGET_COLUMN] / mixture,
        "overlap": smallest / rows["propensity"],
    }
    by_logger: dict[str, Callable[[str], Any]] = {
        "ratio": lambda i: policies[i] / mixture,
        "inverse_ratio": lambda i: mixture / policies[i],
        "unsupported": lambda i: (policies[i] == 0).astype(float),
    }
    needs = list_needs(Coverage.complete(loggers))

    def values(term: Term) -> Any:  # noqa: ANN401 - an array of floats
        factors = [
            by_logger[f.name](f.logger) if f.name in by_logger else known[f.name]
            for f in term.factors
        ]
        return np.prod(factors, axis=0)

    every = {t: values(t) for t in needs.terms}
    found = {}
    for i in loggers:
        mine = rows["logger"] == i
        found[i] = exact_moments({t: v[mine] for t, v in every.items()}, needs)
    return Pool(found)


def test_each_logger_has_its_own_column_in_any_order() -> None:
    # the logger without a ratio comes first: n = 2, 2, 4 rows; a averages 2 and b 1/2
    a, b = ratio("a"), ratio("b")
    two = {a: [1.0, 3.0], b: [0.0, 1.0]}
    four = {a: [1.0, 3.0, 1.0, 3.0], b: [0.0, 1.0, 0.0, 1.0]}
    means, _ = columns(Pool({"c": group(four), "a": group(two), "b": group(two)}))
    values = {logger: mean.value for logger, mean in means.items()}
    # c / mixture = (1 - a / 4 - b / 4) / (1 / 2)
    assert values == pytest.approx({"c": 0.75, "a": 2.0, "b": 0.5})
