"""Comparison: exact where the truth is a finite sum, seeded where it must be drawn."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from poolwise.engines.duckdb import DuckDB
from poolwise.engines.exact import FiniteProblem
from poolwise.errors import LogError, RefusedError, UsageError
from poolwise.estimators.calibrated import Calibrated, SelfNormalised
from poolwise.estimators.ips import Balanced, Naive
from poolwise.evaluation.evaluate import MOST_COMPARED_TARGETS, compare, evaluate
from poolwise.evaluation.spread import MANY, Candidates, ErrorSource, Spread, unite_targets
from poolwise.log.log import Log
from poolwise.moments.coverage import Coverage
from poolwise.moments.moments import Moments
from poolwise.moments.pool import Pool
from tests.support.messages import refused
from tests.support.periods import daily, daily_log
from tests.support.reference import Reference, assert_moments_agree, log_of, random_table
from tests.support.toys import toy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.evaluation.comparison import Comparison
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.terms import Factor, Needs
    from poolwise.types import FloatArray


T2 = toy("T2")
PAIR = {"t": T2.target, "2": T2.loggers["2"]}
CROSSED = Coverage.complete(["a", "b"])


def united_moments(
    problem: FiniteProblem, targets: Mapping[str, FloatArray], needs: Needs
) -> Pool:
    """Exact moments of the terms of several targets; rewards are 0 or 1."""
    rewards = np.stack([np.zeros_like(problem.reward), np.ones_like(problem.reward)])
    chances = np.stack([1 - problem.reward, problem.reward])

    def column(factor: Factor, own: FloatArray) -> FloatArray:
        if factor.name == "reward":
            return rewards
        if factor.name == "ratio":
            return problem.loggers[factor.logger] / problem.mixture + 0 * rewards
        below = own if factor.name == "weight" else problem.mixture
        return targets[factor.target] / below + 0 * rewards

    found = {}
    for logger, own in problem.loggers.items():
        joint = problem.context_prob[:, None] * own * chances
        rows = [np.prod([column(f, own) for f in t.factors], axis=0) for t in needs.terms]
        means = np.array([np.sum(joint * row) for row in rows])
        centred = [row - mean for row, mean in zip(rows, means, strict=True)]
        count = problem.counts[logger]
        scatter = count * np.array([[np.sum(joint * a * b) for b in centred] for a in centred])
        low, high = (np.array([f(row) for row in rows]) for f in (np.min, np.max))
        found[logger] = Moments(needs.terms, count, means, scatter, low, high, ddof=0)
    return Pool(found)


def exact_candidates(
    estimator: Estimator, targets: Mapping[str, FloatArray], problem: FiniteProblem = T2
) -> Candidates:
    needs = estimator.needs(Coverage.complete(tuple(problem.loggers)))
    names = tuple(targets)
    moments = united_moments(problem, targets, unite_targets(needs, names, CROSSED))
    return candidates_of(estimator, needs, Pool(moments), names)


def candidates_of(
    estimator: Estimator, needs: Needs, moments: Pool, names: tuple[str, ...]
) -> Candidates:
    terms = dict.fromkeys(t for group in needs.groups for t in group)
    views = {
        name: {i: m.select({t: t.bind(name) for t in terms}) for i, m in moments.items()}
        for name in names
    }
    return Candidates({n: estimator.estimate(Pool(view)) for n, view in views.items()}, moments)


def test_a_paired_difference_is_as_sure_as_the_catalogue_says() -> None:
    candidates = exact_candidates(Balanced(), PAIR)
    spread = candidates.differences([("t", "2")])
    assert spread.values[0] == pytest.approx(0.026, rel=1e-12)
    assert spread.errors[0] ** 2 == pytest.approx(0.00027861, abs=5e-9)
    singles = candidates.singles(list(PAIR))
    assert (singles.errors**2).sum() == pytest.approx(0.00804914, abs=5e-9)
    # the variance of a difference, from the covariance of its ends
    covariance = singles.covariance
    difference = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    assert difference == pytest.approx(spread.errors[0] ** 2, rel=1e-9)


@pytest.mark.parametrize(
    "estimator", [Naive(), Balanced(), SelfNormalised(), Calibrated()], ids=lambda e: e.name
)
def test_the_estimate_of_one_target_is_that_of_the_estimator(estimator: Estimator) -> None:
    candidates = exact_candidates(estimator, PAIR)
    spread = candidates.singles(["t"])
    exact = T2.exact(estimator)
    assert spread.values[0] == pytest.approx(exact.value, rel=1e-9)
    assert spread.errors[0] ** 2 == pytest.approx(exact.variance, rel=1e-9)
    paired = candidates.differences([("t", "2")])
    assert paired.values[0] == pytest.approx(0.026, rel=1e-9)


def random_problem(rng: np.random.Generator) -> tuple[FiniteProblem, dict[str, FloatArray]]:
    def policy() -> FloatArray:
        drawn: FloatArray = rng.dirichlet(np.ones(3), size=4) * 0.9 + 0.1 / 3
        return drawn

    reward = rng.random((4, 3))
    problem = FiniteProblem(
        context_prob=rng.dirichlet(np.ones(4)),
        reward=reward,
        target=policy(),
        loggers={"a": policy(), "b": policy(), "c": policy()},
        counts={"a": 30, "b": 50, "c": 20},
        reward_variance=reward * (1 - reward),
    )
    near: FloatArray = 0.9 * problem.target + 0.1 * policy()
    return problem, {"t": problem.target, "near": near}


def test_columns_of_both_targets_never_hurt_a_difference() -> None:
    rng = np.random.default_rng(8)
    for _ in range(30):
        problem, targets = random_problem(rng)
        calibrated = exact_candidates(Calibrated(), targets, problem)
        joint = calibrated.differences([("t", "near")])
        ends = calibrated.singles(["t", "near"])
        apart = np.array([1, -1]) @ ends.covariance @ np.array([1, -1])
        balanced = exact_candidates(Balanced(), targets, problem)
        plain = balanced.differences([("t", "near")])
        assert joint.values[0] == pytest.approx(ends.values[0] - ends.values[1], rel=1e-7)
        assert joint.errors[0] ** 2 <= apart * (1 + 1e-9)
        assert joint.errors[0] <= plain.errors[0] * (1 + 1e-9)


def test_a_difference_has_the_squared_weights_of_the_columns_of_both_targets() -> None:
    rng = np.random.default_rng(1)
    weights, reward = rng.choice([0.3, 1.0, 2.0], size=(2, 60)), rng.random(60)
    columns = {"l": ["a"] * 60, "r": reward, "p": [0.25] * 60}
    table = pa.table(columns | {"t": weights[0] / 4, "u": weights[1] / 4})
    log = Log(table, logger="l", reward="r", propensities={"a": "p"})
    estimator = Calibrated()
    needs = estimator.needs(Coverage.complete(("a",)))
    with DuckDB().open(log, {"t": "t", "u": "u"}) as rows:
        both = unite_targets(needs, ["t", "u"], CROSSED)
        slices = replace(both, slices=tuple(t.bind(n) for n in "tu" for t in needs.terms))
        moments = rows.moments(slices)
    spread = candidates_of(estimator, needs, moments, ("t", "u")).differences([("t", "u")])
    centred = weights - weights.mean(axis=1, keepdims=True)
    inverse = np.linalg.inv(centred @ centred.T)
    shares = 1 - 60 * (weights.mean(axis=1) - 1) @ inverse @ centred
    outcome = (weights[0] - weights[1]) * reward
    residual = outcome - outcome @ centred.T @ inverse @ (weights - 1)
    squares = (residual - residual.mean()) ** 2
    assert spread.values[0] == pytest.approx((shares * outcome).mean())
    assert spread.stretch[0] ** 2 == pytest.approx((shares**2 @ squares) / squares.sum())
    assert spread.stretch[0] > 1.01


# ---- from rows


def source(log: Log) -> pa.Table:
    return log.source


COUNTS = {"1": 400, "2": 600}
LOG = replace(T2, counts=COUNTS).draw(np.random.default_rng(20170813))
TABLE = source(LOG)
TARGETS = {"t": "target_prob", "even": "1.0 / 3"}


@pytest.mark.parametrize("estimator", ["calibrated", "balanced", "naive", "self-normalised"])
def test_estimates_are_those_of_evaluate(estimator: str) -> None:
    found = compare(LOG, TARGETS, estimator=estimator)
    expected = evaluate(LOG, TARGETS, [estimator])
    for name in TARGETS:
        alone = expected[name].estimates[estimator]
        assert found[name].estimate.value == pytest.approx(alone.value, rel=1e-9)
        assert found[name].estimate.variance == pytest.approx(alone.variance, rel=1e-9)
        interval = expected[name].intervals[estimator]
        assert found[name].interval.lower < interval.lower
        assert found[name].interval.upper > interval.upper


def test_one_difference_has_the_interval_of_student() -> None:
    """Rows by hand: balanced differences of 40 + 60 rows, one pair, so no multiplicity."""
    log = T2.draw(np.random.default_rng(4))
    table = source(log).to_pydict()
    mixture = 0.4 * np.array(table["propensity_0"]) + 0.6 * np.array(table["propensity_1"])
    gap = (np.array(table["target_prob"]) - 1 / 3) / mixture * np.array(table["reward"])
    parts = [gap[np.array(table["logger"]) == i] for i in ("1", "2")]
    pieces = [len(p) * p.var(ddof=1) / 100**2 for p in parts]
    freedom = sum(pieces) ** 2 / sum(
        v**2 / (len(p) - 1) for v, p in zip(pieces, parts, strict=True)
    )
    from scipy.stats import t as student

    evaluation = evaluate(log, TARGETS, "balanced", interval="student").comparison
    assert evaluation is not None
    found = evaluation.difference("t", "even")
    half = student.ppf(0.975, freedom) * math.sqrt(sum(pieces))
    assert found.value == pytest.approx(gap.mean(), rel=1e-9)
    assert found.std_error == pytest.approx(math.sqrt(sum(pieces)), rel=1e-9)
    assert found.interval.upper - found.value == pytest.approx(half, rel=1e-9)
    ratio = found.value / found.std_error
    assert found.p_value == pytest.approx(2 * student.sf(abs(ratio), freedom), rel=1e-6)
    assert found.adjusted == found.p_value


def test_a_logger_is_a_baseline_by_its_label() -> None:
    by_label = compare(LOG, {"t": "target_prob"}, baseline="2")
    by_column = compare(LOG, {"t": "target_prob", "two": "propensity_1"}, baseline="two")
    assert by_label.difference("t").value == pytest.approx(by_column.difference("t").value)
    assert [r.target for r in by_label.ranking] == ["t", "2"]
    # t is better by 0.026; these thousand rows show it with an error of some 0.004
    assert by_label.difference("t").verdict == "better"
    assert abs(by_label.difference("t").value - 0.026) < 4 * by_label.difference("t").std_error
    assert by_label["2"].worse_than == ("t",)
    assert (by_label["t"].group, by_label["2"].group) == (1, 2)
    assert by_label.sentence == "Against '2': 't' is shown to be better."


def test_identical_targets_differ_by_nothing() -> None:
    found = compare(LOG, {"t": "target_prob", "twin": "0.5 * target_prob * 2"}, baseline="t")
    twin = found.difference("twin")
    assert (twin.value, twin.std_error, twin.p_value) == (0.0, 0.0, 1.0)
    assert twin.verdict == "identical"
    assert "the same policy" in found.sentence
    assert found["t"].group == found["twin"].group == 1
    assert "nan" not in str(found).lower()


def test_weights_that_do_not_vary_are_not_the_same_for_that() -> None:
    mixture = "0.4 * propensity_0 + 0.6 * propensity_1"  # a balanced weight of 1 on each row
    targets = {"mix": mixture, "half": f"0.5 * ({mixture})"}
    ranged = compare(LOG, targets).difference("mix", "half")
    twice = replace(LOG, reward="2 * reward")
    plain = compare(twice, targets).difference("mix", "half")
    assert ranged.interval.lower < 0 < ranged.interval.upper  # what is missing may earn 1
    assert plain.interval.lower > 0  # without a range, what is missing earns 0
    assert {ranged.verdict, plain.verdict} == {"unreliable"}  # half of the target is missing


def test_without_rewards_nothing_is_claimed() -> None:
    table = TABLE.set_column(3, "reward", pa.array(np.zeros(1000)))
    for bounds in (None, (0.0, 1.0)):
        log = replace(LOG, source=table, reward_range=bounds)
        found = compare(log, TARGETS, baseline="2")
        assert {d.verdict for d in found.pairs} == {"undecided"}
        assert {d.p_value for d in found.pairs} == {1.0}
        assert all(d.interval.upper > d.interval.lower for d in found.pairs)
        assert all(r.interval.upper > r.interval.lower for r in found.ranking)
        assert "nan" not in f"{found}{found.to_json()}".lower()


def test_own_propensities_suffice_and_it_is_said() -> None:
    log = replace(LOG, propensities=None)
    found = compare(log, TARGETS)
    assert found.estimator == "self-normalised"
    alone = evaluate(log, TARGETS)["t"].estimates["self-normalised"]
    assert found["t"].estimate.value == pytest.approx(alone.value, rel=1e-12)
    assert "copies-unknown" in [w["code"] for w in found.warnings]
    with refused(UsageError):
        compare(log, TARGETS, baseline="2")


def test_a_log_of_one_row_and_a_target_that_nobody_logged() -> None:
    table = TABLE.take([0, *range(400, 1000)])
    assert compare(replace(LOG, source=table), TARGETS)["t"].estimate.variance < math.inf
    with refused(RefusedError):
        compare(LOG, {**TARGETS, "never": "0.0"})


@pytest.mark.parametrize(
    "arguments",
    [
        {"baseline": "evn"},
        {"estimator": "calibratd"},
        {"level": 95},
    ],
)
def test_mistakes_are_named(arguments: dict[str, str]) -> None:
    with refused(UsageError):
        compare(LOG, TARGETS, **arguments)  # type: ignore[arg-type]
    with refused(UsageError):
        compare(LOG, {"t": "target_prob"})


# ---- many targets


def many_targets(table: pa.Table, size: int) -> tuple[pa.Table, dict[str, str]]:
    rng = np.random.default_rng(5)
    for k in range(size):
        table = table.append_column(f"t_{k}", pa.array(rng.uniform(0.05, 1, len(table))))
    return table, {f"target {k}": f"t_{k}" for k in range(size)}


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_matrix_products_give_the_moments_of_the_judge(offset: float) -> None:
    counts = {"a": 60, "b": 40}
    table, targets = many_targets(
        random_table(np.random.default_rng(3), counts, offset=offset), 3
    )
    log = log_of(table)
    needs = unite_targets(
        Calibrated().needs(Coverage.complete(("a", "b"))), list(targets), CROSSED
    )
    with DuckDB().open(log, targets) as rows, Reference().open(log, targets) as judge:
        assert_moments_agree(rows.moments(needs), judge.moments(needs))


def test_matrix_products_refuse_bad_rows_or_drop_them() -> None:
    table, targets = many_targets(random_table(np.random.default_rng(3), {"a": 60, "b": 40}), 3)
    bad = table.set_column(1, "reward", pa.array([None, *table["reward"].to_pylist()[1:]]))
    needs = unite_targets(
        Calibrated().needs(Coverage.complete(("a", "b"))), list(targets), CROSSED
    )
    with DuckDB().open(log_of(bad), targets) as rows, refused(LogError):
        rows.moments(needs)
    with DuckDB().open(log_of(bad, on_fault="drop"), targets) as rows:
        assert sum(m.count for m in rows.moments(needs).values()) == 99


@pytest.mark.slow
def test_many_targets_give_the_answer_of_few() -> None:
    table, targets = many_targets(TABLE, 22)  # more than one block of terms
    log = replace(LOG, source=table)
    wide = compare(log, targets, baseline="target 0")
    pair = compare(log, {k: targets[k] for k in ("target 0", "target 1")}, baseline="target 0")
    for found in (wide, pair):
        assert found.difference("target 1").value == pytest.approx(
            pair.difference("target 1").value, rel=1e-9
        )
    assert wide.difference("target 1").std_error == pytest.approx(
        pair.difference("target 1").std_error, rel=1e-9
    )
    assert len(wide.pairs) == 22 * 21 / 2
    # simultaneous, so wider than that of one pair, below Bonferroni's 3.7 errors of 1.96
    both, alone = (f.difference("target 1") for f in (wide, pair))
    assert 1.5 < (both.interval.upper - both.value) / (alone.interval.upper - alone.value) < 1.9
    assert all(each.interval.upper - each.value > 3 * each.std_error for each in wide.pairs)


@pytest.mark.slow
def test_clusters_widen_a_difference() -> None:
    """Ten copies of every row are one row: the clustered error must not shrink by √10."""
    table = pa.concat_tables([TABLE] * 10)
    table = table.append_column("user", pa.array(np.tile(np.arange(1000), 10)))
    once = compare(LOG, TARGETS, baseline="even", estimator="balanced").difference("t")
    log = replace(LOG, source=table, cluster="user")
    many = compare(log, TARGETS, baseline="even", estimator="balanced").difference("t")
    rowwise = compare(
        replace(log, cluster=None), TARGETS, baseline="even", estimator="balanced"
    )
    assert rowwise.difference("t").std_error == pytest.approx(
        once.std_error / math.sqrt(10), rel=1e-2
    )
    # 200 buckets know an error to one in twenty; four of those
    assert many.std_error == pytest.approx(once.std_error, rel=0.2)


def balanced_candidates(log: Log, policies: FloatArray) -> Candidates:
    """Candidates from rows in memory: a test of coverage has no time for queries."""
    columns = {name: source(log)[name].to_numpy() for name in ("context", "action", "reward")}
    probs = [source(log)[f"propensity_{k}"].to_numpy() for k in range(2)]
    labels = source(log)["logger"].to_numpy(zero_copy_only=False)
    sizes = {i: int((labels == i).sum()) for i in ("1", "2")}
    mixture = (sizes["1"] * probs[0] + sizes["2"] * probs[1]) / len(labels)
    weights = policies[:, columns["context"], columns["action"]] / mixture
    names = tuple(f"t{k:02}" for k in range(len(policies)))
    needs = Balanced().needs(Coverage.complete(("1", "2")))
    terms = unite_targets(needs, names, CROSSED).terms
    values = {t: weights[names.index(t.factors[0].target)] for t in terms}
    rows = np.stack(
        [values[t] * (columns["reward"] if len(t.factors) == 2 else 1.0) for t in terms]
    )
    moments = {}
    for logger in sizes:
        mine = rows[:, labels == logger]
        means, low, high = mine.mean(axis=1), mine.min(axis=1), mine.max(axis=1)
        scatter = (mine - means[:, None]) @ (mine - means[:, None]).T
        moments[logger] = Moments(terms, mine.shape[1], means, scatter, low, high)
    return candidates_of(Balanced(), needs, Pool(moments), names)


@pytest.mark.slow
def test_intervals_cover_twenty_targets_together() -> None:
    """Intervals that hold one by one would hold simultaneously in some 72 of 100 logs."""
    rng = np.random.default_rng(12)
    problem = replace(T2, counts={"1": 200, "2": 300})
    policies = rng.dirichlet(np.ones(3), size=(20, 2))
    truth = np.einsum("x,kxy,xy->k", T2.context_prob, policies, T2.reward)
    together = alone = 0
    replications = 400
    for _ in range(replications):
        found = balanced_candidates(problem.draw(rng), policies)
        spread = found.singles(list(found.estimates))
        critical = spread.together(rng, directions=4_000).critical(0.95)
        for_all, for_each = spread.limits(critical), spread.limits(1.959964)
        together += bool(((for_all[0] <= truth) & (truth <= for_all[1])).all())
        alone += bool(((for_each[0] <= truth) & (truth <= for_each[1])).all())
    error = math.sqrt(0.95 * 0.05 / replications)  # 0.011
    assert abs(together / replications - 0.945) < 3 * error
    assert alone / replications < 0.82  # 0.72, and four standard errors of 0.023


# ---- what is shown


def shown(comparison: Comparison) -> dict[str, object]:
    found: dict[str, object] = json.loads(comparison.to_json())
    return found


def test_differences_are_those_from_the_baseline_or_the_best() -> None:
    found = compare(LOG, TARGETS, baseline="2")
    against = found.to_dict()["differences"]
    assert against == [d.to_dict() for d in found.differences]
    best, *others = (ranked.target for ranked in found.ranking)
    behind: Any = compare(LOG, {**TARGETS, "2": "propensity_1"}).to_dict()["differences"]
    assert [(d["target"], d["other"]) for d in behind] == [(name, best) for name in others]
    for row, name in zip(behind, others, strict=True):
        pair = found.difference(best, name)
        assert row["difference"] == pytest.approx(-pair.value)
        assert row["lower"] == pytest.approx(-pair.interval.upper)
        assert (row["verdict"] == "worse") == (pair.verdict == "better")


def test_all_renderings_start_from_the_same_numbers() -> None:
    found = compare(LOG, TARGETS, baseline="2")
    rows = found.to_dicts()
    assert [row["rank"] for row in rows] == [1, 2, 3]
    assert found.to_arrow().to_pylist() == rows
    assert found.to_pandas().to_dict("records") == rows
    assert found.to_polars().to_dicts() == rows
    assert shown(found)["baseline"] == "2"
    assert shown(compare(LOG, TARGETS))["baseline"] is None
    text = str(found)
    for name in ("t", "even", "2"):
        assert name in text
        assert name in found._repr_html_()
    assert found.sentence in text
    assert max(map(len, as_lines(text))) <= 80


def as_lines(text: str) -> list[str]:
    """Lines of the tables; sentences are as long as they are."""
    return [line for line in text.splitlines() if not line.startswith("Against")]


def test_loggers_trained_on_these_logs_are_an_alarm() -> None:
    found = compare(replace(LOG, trained_on={"2": ["1"]}), TARGETS)
    assert ("trained-on-own-log", "alarm") in {(f.code, f.severity) for f in found.findings}


THREE = {"new": "t", "old": "p_a", "mixed": "0.5 * t + 0.5 * p_b"}


def clustered(**roles: Any) -> Log:  # noqa: ANN401 - any role of a log
    table = random_table(np.random.default_rng(91), {"a": 300, "b": 200})
    users = pa.array(np.arange(500) // 3 % 90)
    return log_of(table.append_column("user", users), **roles)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("roles", "options"),
    [
        ({}, {}),
        ({"propensities": None}, {}),
        ({"cluster": "user"}, {}),
        ({}, {"interval": "student"}),
        ({"reward_range": (-100.0, 100.0)}, {"interval": "smoothed"}),
    ],
    ids=["rows", "own", "clusters", "student", "guaranteed"],
)
def test_an_evaluation_compares_its_targets_as_compare_does(
    roles: dict[str, Any], options: dict[str, Any]
) -> None:
    log = clustered(**roles)
    beside = evaluate(log, THREE, **options).comparison
    alone = compare(log, THREE)
    assert beside is not None
    assert [r.target for r in beside.ranking] == [r.target for r in alone.ranking]
    for mine, theirs in zip(beside.pairs, alone.pairs, strict=True):
        assert (mine.target, mine.other, mine.verdict) == (
            theirs.target,
            theirs.other,
            theirs.verdict,
        )
        assert mine.value == pytest.approx(theirs.value, rel=1e-9)
        assert mine.std_error == pytest.approx(theirs.std_error, rel=1e-9)
        if "interval" not in options:  # the pass of another interval has no slices
            assert mine.interval.lower == pytest.approx(theirs.interval.lower, rel=1e-9)


def test_clusters_that_were_asked_to_be_rows_are_compared_as_rows() -> None:
    as_rows = evaluate(clustered(cluster="user"), THREE, interval="student").comparison
    rows = evaluate(clustered(), THREE, interval="student").comparison
    assert as_rows is not None
    assert rows is not None
    assert as_rows.pairs == rows.pairs
    assert as_rows.pairs[0].std_error > 0


def test_what_an_evaluation_does_not_compare() -> None:
    log = clustered()
    assert (
        evaluate(log, {"a": "t", "b": "p_a"}, engine=Reference()).comparison is None
    )  # not for free
    many = {f"t{k}": "t" for k in range(MOST_COMPARED_TARGETS + 1)}
    assert evaluate(log, many, "balanced").comparison is None
    assert evaluate(clustered(propensities=None), {"t": "t"}).comparison is None


def test_a_comparison_owns_its_evaluation_which_has_none() -> None:
    alone = compare(clustered(), THREE, baseline="a")
    beside = evaluate(clustered(), THREE).comparison
    assert beside is not None
    for found in (alone, beside):
        assert found.evaluation.comparison is None
        assert found.evaluation.baseline == found.baseline
        assert found.facts()["comparison"] == found.to_dict()


@pytest.mark.parametrize("roles", [{}, {"cluster": "user"}])
def test_a_contrast_is_the_comparison_of_two_targets(roles: dict[str, Any]) -> None:
    """Errors that are larger by a factor move both limits by it."""
    log, (one, two, *_) = clustered(**roles), THREE
    evaluation = evaluate(log, THREE)
    assert evaluation.pairs is not None
    found = evaluation.pairs.contrast(evaluation, one, two)
    alone = compare(log, {one: THREE[one], two: THREE[two]}, baseline=two).difference(one)
    assert found.verdict == alone.verdict
    for name in ("value", "std_error", "p_value", "adjusted"):
        assert getattr(found, name) == pytest.approx(getattr(alone, name), rel=1e-9)
    assert found.interval.lower == pytest.approx(alone.interval.lower, rel=1e-9)
    wider = evaluation.pairs.contrast(evaluation, one, two, widening=1.25)
    assert wider.value == found.value
    assert wider.std_error == pytest.approx(1.25 * found.std_error, rel=1e-12)
    for end in ("lower", "upper"):
        distance = getattr(found.interval, end) - found.value
        assert getattr(wider.interval, end) - wider.value == pytest.approx(1.25 * distance)


def test_a_comparison_beside_an_evaluation_holds_no_rows() -> None:
    found = evaluate(clustered(cluster="user"), THREE)
    size = len(pickle.dumps(found))
    again = pickle.loads(pickle.dumps(found))  # noqa: S301 - made here
    assert again.comparison == found.comparison
    assert size < 2_000_000


# ---------------------------------------- clusters


T_AND_U = {"t": "t", "u": "u"}


def halves() -> Log:
    """Deterministic loggers: weights differ between the loggers and nowhere else."""
    rng = np.random.default_rng(3)
    rewards = np.concatenate([rng.normal(1, 0.1, 50), rng.normal(3, 0.1, 50)])
    first = np.repeat([1.0, 0.0], 50)
    table = pa.table(
        {
            "l": np.repeat(["left", "right"], 50),
            "r": rewards,
            "p_left": first,
            "p_right": 1 - first,
            "t": np.where(first > 0, 0.4, 0.6),
            "u": np.where(first > 0, 0.6, 0.4),
        }
    )
    policies = {"left": "p_left", "right": "p_right"}
    return Log(table, logger="l", reward="r", propensities=policies)


@pytest.mark.parametrize("estimator", ["naive", "balanced", "self-normalised", "calibrated"])
def test_targets_that_differ_between_loggers_only_are_two(estimator: str) -> None:
    log = halves()
    found = compare(log, T_AND_U, estimator=estimator, baseline="u").pairs[0]
    assert found.verdict == "better"
    # 0.4 x 1 + 0.6 x 3 against 0.6 x 1 + 0.4 x 3
    half = estimator == "naive"  # each row has weights of its own logger only
    assert found.value == pytest.approx(0.2 if half else 0.4, abs=0.02)


def by_cluster(sizes: list[int], seed: int = 3) -> pa.Table:
    """Both targets have value 0.5; each cluster has its own reward of each action."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[float]] = {"c": [], "r": [], "t": [], "u": []}
    for number, size in enumerate(sizes):
        paid, action = rng.normal(0.5, 0.3, 2), rng.integers(0, 2, size)
        columns["c"] += [number] * size
        columns["r"] += (paid[action] + rng.normal(0, 0.1, size)).tolist()
        columns["t"] += np.where(action, 0.9, 0.1).tolist()
        columns["u"] += np.where(action, 0.1, 0.9).tolist()
    return pa.table({**columns, "l": ["a"] * sum(sizes)})


def clustered_log(table: pa.Table, cluster: str | None = "c") -> Log:
    return Log(table, logger="l", reward="r", propensities={"a": "0.5"}, cluster=cluster)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["naive", "balanced"])
@pytest.mark.parametrize("sizes", [[2000] + [20] * 9, [30] * 12, [100, 50, 5, 5, 5]])
def test_errors_of_clusters_are_those_of_the_evaluation(
    sizes: list[int], estimator: str
) -> None:
    log = clustered_log(by_cluster(sizes))
    found = evaluate(log, T_AND_U, estimator)
    ranked = {r.target: r.estimate for r in compare(log, T_AND_U, estimator=estimator).ranking}
    for name in T_AND_U:
        expected = found[name].estimates[estimator].std_error
        assert ranked[name].std_error == pytest.approx(expected, rel=1e-9)


def test_one_large_cluster_shows_nothing() -> None:
    """The sandwich formula gave p = 2e-6 here."""
    found = compare(clustered_log(by_cluster([2000] + [20] * 9)), T_AND_U).pairs[0]
    assert found.verdict == "undecided"
    assert found.p_value > 0.05


def test_one_cluster_leaves_nothing_to_compare() -> None:
    log = clustered_log(by_cluster([300]))
    assert evaluate(log, T_AND_U).comparison is None
    with refused(RefusedError):
        compare(log, T_AND_U)


def test_one_row_leaves_nothing_to_compare() -> None:
    log = clustered_log(by_cluster([1]), None)
    assert evaluate(log, T_AND_U).comparison is None
    with refused(RefusedError):
        compare(log, T_AND_U)


# ---------------------------------------- repeated targets


ESTIMATORS = ("calibrated", "balanced", "self-normalised", "naive")
FEW_TARGETS, MANY_TARGETS = 10, 30  # 45 and 435 pairs
REPEATS = {
    "by the same words": "{a} * p_c + {b} * p_v",
    "in another order": "{b} * p_v + {a} * p_c",
    "with another rounding": "({a} * p_c + {b} * p_v) * 3 / 3",
}


def two_loggers(seed: int = 3, size: int = 4000, effect: float = 0.5) -> Log:
    """Rows of two loggers in six contexts, with four actions."""
    rng = np.random.default_rng(seed)
    policies = 0.9 * rng.dirichlet(np.ones(4), size=(2, 6)) + 0.1 / 4
    context, logger = rng.integers(6, size=size), rng.integers(2, size=size)
    chances = policies[logger, context].cumsum(axis=1)
    action = np.minimum(3, (rng.random(size)[:, None] > chances).sum(axis=1))
    first, second = policies[:, context, action]
    reward = rng.random(size) < 0.2 + effect * (first > second)  # so "c" is better
    table = {
        "logger": pa.array(np.array(["c", "v"])[logger]),
        "reward": reward.astype(float),
        "p_c": first,
        "p_v": second,
        "user": np.arange(size) // 4,
    }
    return Log(
        pa.table(table),
        logger="logger",
        reward="reward",
        propensities={"c": "p_c", "v": "p_v"},
    )


TWO_LOGGERS = two_loggers()


def mixtures(size: int) -> dict[str, str]:
    """Targets between the two loggers, one step apart."""
    return {f"t{i}": f"{i / size} * p_c + {1 - i / size} * p_v" for i in range(size)}


def repeated(size: int, place: int, words: str) -> dict[str, str]:
    """The same with one of them again, under the name "again"."""
    return {**mixtures(size), "again": words.format(a=place / size, b=1 - place / size)}


def silently(targets: dict[str, str], **options: str) -> Comparison:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return compare(TWO_LOGGERS, targets, **options)  # type: ignore[arg-type]


@cache
def alone_and_repeated(size: int, words: str, estimator: str) -> tuple[Comparison, Comparison]:
    """Compare targets without and with one of them again."""
    alone = silently(mixtures(size), estimator=estimator)
    return alone, silently(repeated(size, 5, REPEATS[words]), estimator=estimator)


# Words decide what a repeat is in each row; the number of pairs, how they are covered together.
TOGETHER = [
    *((FEW_TARGETS, words, estimator) for words in REPEATS for estimator in ESTIMATORS),
    *((MANY_TARGETS, "with another rounding", estimator) for estimator in ESTIMATORS),
]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "words", "estimator"), TOGETHER)
def test_a_repeated_target_changes_nothing_for_the_others(
    size: int, words: str, estimator: str
) -> None:
    assert math.comb(FEW_TARGETS, 2) <= MANY < math.comb(MANY_TARGETS, 2)
    alone, found = alone_and_repeated(size, words, estimator)
    for pair in alone.pairs:
        again = found.difference(pair.target, pair.other)
        assert again.value == pytest.approx(pair.value, rel=1e-9)
        assert again.std_error == pytest.approx(pair.std_error, rel=1e-9)
        assert again.p_value == pytest.approx(pair.p_value, rel=1e-6)
        assert again.adjusted == pytest.approx(pair.adjusted, rel=1e-6)
        # the family is the same, so is the number of errors that covers it
        width = pair.interval.upper - pair.interval.lower
        assert again.interval.upper == pytest.approx(pair.interval.upper, abs=1e-6 * width)
        assert again.interval.lower == pytest.approx(pair.interval.lower, abs=1e-6 * width)
        assert again.verdict == pair.verdict
    for ranked in alone.ranking:
        same = found[ranked.target]
        assert same.group == ranked.group
        assert same.interval.upper == pytest.approx(ranked.interval.upper, rel=1e-9)
        assert same.interval.lower == pytest.approx(ranked.interval.lower, rel=1e-9)
    assert "nan" not in found.to_json().lower()


@pytest.mark.slow
@pytest.mark.parametrize(("size", "words", "estimator"), TOGETHER)
def test_a_repeated_target_stands_where_the_first_one_does(
    size: int, words: str, estimator: str
) -> None:
    _, found = alone_and_repeated(size, words, estimator)
    tie = found.difference("t5", "again")
    assert (tie.value, tie.std_error, tie.p_value, tie.adjusted) == (0.0, 0.0, 1.0, 1.0)
    assert (tie.interval.lower, tie.interval.upper, tie.verdict) == (0.0, 0.0, "identical")
    first, again = found["t5"], found["again"]
    assert (again.group, again.better_than, again.worse_than) == (
        first.group,
        first.better_than,
        first.worse_than,
    )
    names = [ranked.target for ranked in found.ranking]
    assert names.index("again") == names.index("t5") + 1
    assert "'again' equals 't5' on every row." in found.sentence
    assert "different from 'again'" not in found.sentence


@pytest.mark.slow
def test_differences_of_one_line_are_as_sure_as_one_of_them() -> None:
    """All calibrated differences are multiples of one: its normal quantile covers them."""
    for size in (FEW_TARGETS, MANY_TARGETS):
        found = silently(repeated(size, 5, REPEATS["in another order"]))
        ratios = {d.value / d.std_error for d in found.pairs if d.std_error > 0}
        # except for the cost of the slopes, which depends on the effective sample size
        assert max(ratios) == pytest.approx(min(ratios), rel=1e-3)
        for pair in found.pairs:
            if pair.verdict != "identical":
                half = (pair.interval.upper - pair.value) / pair.std_error
                # 20,000 draws know the quantile at 0.95 to 0.013; four of those
                assert half == pytest.approx(1.96, abs=0.055)


@pytest.mark.slow
def test_repeats_of_the_best_and_of_the_baseline_are_told() -> None:
    targets = mixtures(FEW_TARGETS)
    order = [ranked.target for ranked in silently(targets).ranking]
    best, *_, last = order
    found = silently({**targets, "twin": targets[best]})
    assert found.sentence == (
        f"{best!r} has the highest estimate and was shown to be better than every target that "
        f"differs from it. 'twin' equals {best!r} on every row."
    )
    against = silently({**targets, "twin": targets[last], "two": targets["t5"]}, baseline=last)
    assert against.sentence == (
        f"Against {last!r}: 10 targets are shown to be better; 'twin' is the same policy on "
        "every logged row. 'two' equals 't5' on every row."
    )
    assert against.difference("two").interval == against.difference("t5").interval


def test_targets_that_are_all_one_have_nothing_between_them() -> None:
    found = silently({"a": "p_c", "b": "p_c * 3 / 3", "c": "p_c"})
    assert {d.verdict for d in found.pairs} == {"identical"}
    assert found.repeats == {"a": ["b", "c"]}
    assert found.sentence == (
        "All of these targets are the same policy. 'b' and 'c' equal 'a' on every row."
    )


def test_many_repeats_are_counted() -> None:
    targets = mixtures(FEW_TARGETS)
    twins = {f"{name} again": words for name, words in targets.items()}
    found = silently({**targets, **twins})
    assert found.sentence.endswith(" 10 targets equal another one on every row.")
    alone = silently(targets)
    assert [r.group for r in found.ranking] == [r.group for r in alone.ranking for _ in "ab"]


@pytest.mark.slow
def test_clustered_rows_do_not_mind_a_repeat() -> None:
    log = Log(
        TWO_LOGGERS.source,
        logger="logger",
        reward="reward",
        propensities={"c": "p_c", "v": "p_v"},
        cluster="user",
    )
    alone = compare(log, mixtures(5))
    found = compare(log, repeated(5, 2, REPEATS["in another order"]))
    for pair in alone.pairs:
        again = found.difference(pair.target, pair.other)
        assert again.interval.upper == pytest.approx(pair.interval.upper, rel=1e-6)
        assert again.verdict == pair.verdict


@pytest.mark.parametrize("size", [3, MANY + 1])
def test_what_rounding_leaves_is_no_error(size: int) -> None:
    """Two equal terms, and one of their own: the covariance is off by a few units."""
    covariance = np.array([[1.0, 1.0, 0.0], [1.0, 1.0 + 4e-16, 0.0], [0.0, 0.0, 1.0]])
    rows = np.array([[1.0, -1.0, 0.0], *[[0.0, 0.0, 1.0 + k] for k in range(size)]])
    values, free = np.array([1e-17, *np.ones(size)]), np.full(size + 1, math.inf)
    source = ErrorSource(csr_array(rows), covariance, math.inf)
    spread = Spread(values, [source], free)
    assert spread.errors.tolist() == [0.0, *(1.0 + k for k in range(size))]
    assert spread.scores()[0] == 0.0
    # multiples of one term: the normal quantile, to four errors of 20,000 draws
    critical = spread.together(np.random.default_rng(1)).critical(0.95)
    assert critical == pytest.approx(1.96, abs=0.055)
    lower, upper = spread.limits(critical)
    assert lower[0] == upper[0] == spread.values[0]


# ---------------------------------------- one simultaneous method


def assert_consistent(comparison: Comparison) -> None:
    """Intervals, adjusted p-values, verdicts and groups draw the same conclusions."""
    for pair in (*comparison.pairs, *comparison.differences):
        decided = pair.verdict in {"better", "worse"}
        assert decided == (pair.adjusted < 1 - comparison.level) == (0 not in pair.interval)
        assert not decided or (pair.verdict == "better") == (pair.interval.lower > 0)
        assert 0 <= pair.p_value <= pair.adjusted <= 1
    for pair in comparison.pairs:
        above, below = comparison[pair.target], comparison[pair.other]
        assert pair.verdict != "worse"  # the target is ranked above the other
        assert (pair.verdict == "better") == (pair.other in above.better_than)
        assert (pair.verdict == "better") == (pair.target in below.worse_than)
        assert pair.verdict != "better" or above.group < below.group
    for difference in comparison.differences:
        target, other = difference.target, difference.other
        pair = next(p for p in comparison.pairs if {p.target, p.other} == {target, other})
        assert (difference.adjusted, difference.std_error) == (pair.adjusted, pair.std_error)
        assert difference.value == (pair.value if pair.target == target else -pair.value)


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([60, 400, 2000]),
    effect=st.sampled_from([0.0, 0.05, 0.5]),
    level=st.floats(0.5, 0.999),
    estimator=st.sampled_from(ESTIMATORS),
    targets=st.lists(
        st.sampled_from(["p_c", "p_v", "0.25", "0.9 * p_c + 0.025", "0.5 * p_c + 0.5 * p_v"]),
        min_size=1,
        max_size=5,
    ),
)
@settings(max_examples=25)
@pytest.mark.slow
def test_limits_p_values_verdicts_and_groups_never_contradict_each_other(
    seed: int, size: int, effect: float, level: float, estimator: str, targets: list[str]
) -> None:
    log, named = two_loggers(seed, size, effect), {f"t{k}": t for k, t in enumerate(targets)}
    found = compare(log, named, baseline="v", estimator=estimator, level=level)
    assert_consistent(found)
    close = next((p for p in found.pairs if 0.01 < p.adjusted < 0.5), None)
    if close is not None:  # a level on either side of a p-value decides it
        for factor, verdict in ((1 - 1e-6, "undecided"), (1 + 1e-6, "better")):
            at = 1 - close.adjusted * factor
            again = compare(log, named, baseline="v", estimator=estimator, level=at)
            assert_consistent(again)
            assert again.difference(close.target, close.other).verdict in {
                verdict,
                "unreliable",
            }


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 6, MANY + 1]),
    st.floats(0.5, 0.999),
    st.sampled_from([3.0, 30.0, math.inf]),
)
@settings(max_examples=25)
def test_a_limit_is_0_where_its_score_is_the_critical_value(
    seed: int, size: int, level: float, free: float
) -> None:
    rng = np.random.default_rng(seed)
    rows, roots = rng.normal(size=(size, 5)), rng.normal(size=(5, 5))
    source = ErrorSource(csr_array(rows), roots @ roots.T, free)
    values = 10 * rng.normal(size=size)
    spread = Spread(values, [source], np.full(size, math.inf))
    together = spread.together(np.random.default_rng(1), 500)
    critical, adjusted = together.critical(level), together.p_values(spread.scores())
    lower, upper = spread.limits(critical)
    assert ((adjusted < 1 - level) == ((lower > 0) | (upper < 0))).all()
    assert together.p_values(np.array([critical]))[0] == pytest.approx(1 - level, rel=1e-9)
    assert (np.diff(adjusted[np.argsort(spread.scores())]) <= 0).all()
    for score, value in zip(spread.scores()[:10], values, strict=False):
        low, high = (ends[values == value][0] for ends in spread.limits(score))
        assert min(abs(low), abs(high)) < 1e-9 * abs(value)


def test_equal_rewards_show_no_difference_by_rounding() -> None:
    """Rewards of 1 give all targets the value 1: their differences are rounding."""
    table = TWO_LOGGERS.source
    assert isinstance(table, pa.Table)
    ones = table.set_column(1, "reward", pa.array(np.ones(len(table))))
    log = Log(ones, logger="logger", reward="reward", propensities={"c": "p_c", "v": "p_v"})
    for estimator in ("calibrated", "self-normalised"):
        found = compare(log, mixtures(FEW_TARGETS), estimator=estimator)
        assert {d.verdict for d in found.pairs} == {"undecided"}
        assert {d.p_value for d in found.pairs} == {1.0}


def test_targets_are_compared_by_periods_if_the_log_has_them() -> None:
    log = daily_log(daily(2_000))
    comparison = compare(log, {"t": "t", "control": "p_control"})
    assert comparison.estimator == "period-balanced"
    evaluation = evaluate(log, {"t": "t", "control": "p_control"}, "period-balanced")
    values = {
        name: r.estimates["period-balanced"].value for name, r in evaluation.targets.items()
    }
    difference = comparison.difference(*(r.target for r in comparison.ranking))
    gap = values[difference.target] - values[difference.other]
    assert difference.value == pytest.approx(gap, rel=1e-9)
    assert comparison.evaluation is not None
    apart = evaluation.differences["t"]
    assert apart.other == "control"
    assert apart.value == pytest.approx(values["t"] - values["control"], rel=1e-9)


@pytest.mark.parametrize(
    "reward", ["abs(reward)", "CASE WHEN reward > 2.5 THEN 5 * reward ELSE 0 END"]
)
@pytest.mark.parametrize("roles", [{}, {"cluster": "user"}])
def test_costs_are_rewards_in_a_mirror(reward: str, roles: dict[str, Any]) -> None:
    table = random_table(np.random.default_rng(5), {"a": 600, "b": 300})
    table = table.append_column("user", pa.array(np.arange(900) // 3))
    seen = []
    for sign in ("", "-"):
        log = log_of(table, reward=f"{sign}({reward})", **roles)
        evaluation = evaluate(log, {"t": "t", "a": "p_a"}, baseline="b")
        pair = compare(log, {"t": "t", "a": "p_a"}).pairs[0].against("a")
        found = [*evaluation.differences.values(), pair]
        seen.append([(d.value, d.interval.lower, d.interval.upper, d.p_value) for d in found])
    for (value, lower, upper, p), cost in zip(*seen, strict=True):
        assert cost == pytest.approx((-value, -upper, -lower, p), rel=1e-9)
