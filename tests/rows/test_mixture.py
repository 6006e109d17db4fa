"""Estimated mixture: exact where the classifier is, close where it learns."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.tree import DecisionTreeClassifier
from threadpoolctl import ThreadpoolController

from poolwise import progress
from poolwise.errors import MissingExtraError, ModelError, RefusedError, UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.rows.learners import Features, fit_folds
from poolwise.rows.mixture import (
    LEAST_CHANCE,
    FittedMixture,
    calibrated_classifier,
    fit_posterior,
    log_mixture,
    sample_folds,
)
from tests.support.messages import check_findings, refused
from tests.support.toys import toy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from poolwise.engines.exact import FiniteProblem
    from poolwise.evaluation.results import TargetResult
    from poolwise.log.log import Log

POOLED = ("balanced", "calibrated", "self-normalised")


@dataclass
class Oracle(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with the true probabilities of T2."""

    problem: Any = None  # scikit-learn sets it by name

    def fit(self, matrix: NDArray[np.float64], code: NDArray[np.int64]) -> Oracle:
        del matrix
        self.classes_ = np.unique(code)
        return self

    def predict_proba(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        context, action = matrix[:, 0].astype(int), matrix[:, 1:4].argmax(axis=1)
        total = sum(self.problem.counts.values())
        parts = [
            self.problem.counts[i] / total * policy[context, action]
            for i, policy in self.problem.loggers.items()
        ]
        found: NDArray[np.float64] = np.column_stack(parts)
        posterior: NDArray[np.float64] = found / found.sum(axis=1, keepdims=True)
        return posterior


def small() -> FiniteProblem:
    """T2 with logs too small for a calibration to be fitted."""
    return replace(toy("T2"), counts={"1": 25, "2": 20})


def estimated(log: Log, classifier: Any, known: tuple[str, ...] = ()) -> TargetResult:  # noqa: ANN401
    columns = log.by_label
    partial = {i: c if i in known else None for i, c in columns.items()}
    changed = replace(log, propensities=partial, estimate_mixture=classifier)
    return evaluate(changed, "target_prob", POOLED, which_logs=False)["target"]


@given(st.integers(0, 7), st.integers(0, 2**32 - 1))
def test_the_true_classifier_gives_the_true_mixture(known_bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    policies = rng.dirichlet(np.ones(4), size=3)  # three loggers, four actions
    share = rng.dirichlet(np.ones(3))
    mixture = share @ policies
    action, label = rng.integers(4, size=12), rng.integers(3, size=12)
    posterior = (share[:, None] * policies / mixture).T[action]
    known = {k: np.log(policies[k, action]) for k in range(3) if known_bits >> k & 1}
    own = np.log(policies[label, action])
    found, cut = log_mixture(own, label, posterior, share, known)
    if posterior.min() > LEAST_CHANCE:
        np.testing.assert_allclose(found, np.log(mixture[action]), rtol=1e-8, atol=1e-8)
        assert cut == 0


def test_a_row_of_the_only_unknown_logger_needs_no_classifier() -> None:
    # 0.25 * 0.4 is known, 0.75 * 0.2 is the row's own part: 0.25 in all
    found, _ = log_mixture(
        own=np.log([0.2]),
        label=np.array([1]),
        posterior=np.array([[0.9, 0.1]]),  # wrong, and without effect
        share=np.array([0.25, 0.75]),
        crossed={0: np.log([0.4])},
    )
    assert np.exp(found) == pytest.approx([0.25])


def test_the_classifier_cannot_push_the_mixture_beyond_what_is_possible() -> None:
    # of a known logger's row only 0.75 of the rows are unknown: at most 0.1 + 0.75
    found, cut = log_mixture(
        own=np.log([0.4]),
        label=np.array([0]),
        posterior=np.array([[0.0, 1.0]]),
        share=np.array([0.25, 0.75]),
        crossed={0: np.log([0.4])},
    )
    assert np.exp(found) == pytest.approx([0.85])
    assert cut == 1


@pytest.mark.parametrize("known", [(), ("1",), ("2",)])
def test_with_the_true_classifier_balanced_is_balanced(known: tuple[str, ...]) -> None:
    problem = small()
    log = problem.draw(np.random.default_rng(3))
    truth = evaluate(log, "target_prob", POOLED, which_logs=False)["target"]
    found = estimated(log, Oracle(problem), known)
    for name in ("balanced", "self-normalised"):
        ours = found.estimates[f"{name}-estimated"]
        assert ours.value == pytest.approx(truth.estimates[name].value, rel=1e-10)
        assert ours.variance == pytest.approx(truth.estimates[name].variance, rel=1e-10)


def test_logarithms_give_the_same_estimates() -> None:
    problem = small()
    log = problem.draw(np.random.default_rng(3))
    plain = estimated(log, Oracle(problem), ("2",))
    logs = replace(
        log,
        propensity="ln(propensity)",
        propensities={"1": "ln(propensity_0)", "2": "ln(propensity_1)"},
        log_probabilities=True,
    )
    changed = replace(
        logs,
        propensities={"1": None, "2": "ln(propensity_1)"},
        estimate_mixture=Oracle(problem),
    )
    found = evaluate(changed, "ln(target_prob)", POOLED, which_logs=False)["target"]
    for name, estimate in plain.estimates.items():
        assert found.estimates[name].value == pytest.approx(estimate.value, rel=1e-10)


def test_estimates_are_marked_wherever_they_appear() -> None:
    log = replace(toy("T2").draw(np.random.default_rng(3)), propensities=None)
    opted = replace(log, estimate_mixture=DecisionTreeClassifier(random_state=0))
    found = evaluate(opted, "target_prob")
    names = list(found["target"].estimates)
    assert names == [
        "calibrated-estimated", "naive", "balanced-estimated", "self-normalised-estimated"
    ]  # fmt: skip
    assert "estimated-mixture" in {str(w["code"]) for w in found.warnings}
    assert '"calibrated-estimated"' in found.to_json()
    with refused(RefusedError):
        evaluate(log, "target_prob", ["balanced"])  # not enabled


def test_what_is_known_is_not_estimated() -> None:
    log = toy("T2").draw(np.random.default_rng(3))
    found = evaluate(replace(log, estimate_mixture=True), "target_prob", ["balanced"])
    assert list(found["target"].estimates) == ["balanced"]


def test_known_loggers_are_replayed_and_unknown_ones_are_not() -> None:
    from poolwise.errors import LogError

    problem = small()
    log = problem.draw(np.random.default_rng(3))
    wrong = {"1": None, "2": "propensity_1 / 2"}
    bad = replace(log, propensities=wrong, estimate_mixture=Oracle(problem))
    with refused(LogError):
        evaluate(bad, "target_prob", ["balanced"])


@pytest.mark.slow
@pytest.mark.parametrize("known", [(), ("2",)])
def test_a_learned_classifier_comes_close_to_the_true_mixture(known: tuple[str, ...]) -> None:
    problem = replace(toy("T2"), counts={"1": 800, "2": 1200})
    tree = DecisionTreeClassifier(min_samples_leaf=10, random_state=0)
    gaps = []
    for seed in range(4):
        log = problem.draw(np.random.default_rng(seed))
        truth = evaluate(log, "target_prob", ["balanced"], which_logs=False)["target"]
        true = truth.estimates["balanced"]
        found = estimated(log, tree, known).estimates
        gaps.append((found["balanced-estimated"].value - true.value) / true.std_error)
        for estimate in found.values():
            assert abs(estimate.value - 0.576) < 4.5 * estimate.std_error
    # E1: estimating moves the estimate by less than its own error, and does not bias it
    assert np.abs(gaps).max() < 1.5
    assert abs(np.mean(gaps)) < 0.75


def test_faults_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    log = toy("T2").draw(np.random.default_rng(3))
    with refused(UsageError):
        replace(log, estimate_mixture="yes")
    alone = replace(log, propensities=None)
    broken = DecisionTreeClassifier(max_depth=-1)
    with refused(ModelError):
        evaluate(replace(alone, estimate_mixture=broken), "target_prob")
    monkeypatch.setitem(__import__("sys").modules, "sklearn.calibration", None)
    with refused(MissingExtraError):
        fit_posterior(None, np.ones((4, 1)), np.array([0, 1, 0, 1]), 2)


def test_a_classifier_that_excludes_a_logger_is_counted() -> None:
    problem = toy("T2")
    log = replace(problem.draw(np.random.default_rng(3)), propensities=None)
    sure = DecisionTreeClassifier(max_depth=12, min_samples_leaf=1, random_state=0)
    source: Any = log.source  # an Arrow table
    few = replace(log, source=source.slice(0, 55), estimate_mixture=sure)
    found = evaluate(few, "target_prob")
    (finding,) = [f for f in found.findings if f.code == "mixture-clipped"]
    check_findings([finding], "mixture-clipped")
    assert all(np.isfinite(e.value) for e in found["target"].estimates.values())


class Threads(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # without types
    """A classifier that notes how many threads OpenMP may use."""

    seen: list[int] = []  # noqa: RUF012 - one list for all copies

    def fit(self, matrix: Any, y: Any) -> Threads:  # noqa: ANN401, ARG002
        self.classes_ = np.unique(y)
        self.note()
        return self

    def predict_proba(self, matrix: Any) -> Any:  # noqa: ANN401
        self.note()
        return np.full((len(matrix), len(self.classes_)), 1 / len(self.classes_))

    def note(self) -> None:
        openmp = ThreadpoolController().select(user_api="openmp").info()
        self.seen.extend(library["num_threads"] for library in openmp)


def test_a_classifier_has_one_thread_for_each_fold_and_batch() -> None:
    Threads.seen.clear()
    code = np.arange(200) % 2  # enough to calibrate
    posterior = fit_posterior(Threads(), np.ones((200, 1)), code, 2)
    posterior(np.ones((3, 1)))
    assert set(Threads.seen) == {1}


def test_many_loggers_have_a_sample_and_few_trees() -> None:
    rows, loggers = 50_000, 30
    fold = np.arange(rows) % 5
    assert sample_folds(fold, rows).tolist() == list(range(rows))
    chosen = sample_folds(fold, 20_000)
    assert len(chosen) <= 20_000
    assert np.ptp(np.bincount(fold[chosen])) <= 1
    few, many = (calibrated_classifier(None, np.full(k, 100)) for k in (8, loggers))
    assert (few.estimator.max_iter, few.estimator.learning_rate) == (50, 0.1)
    assert many.estimator.max_iter * loggers <= 400
    assert many.estimator.max_iter * many.estimator.learning_rate == pytest.approx(5)
    assert (few.ensemble, many.ensemble) == (True, False)


def test_a_sample_is_reported() -> None:
    fitted = FittedMixture(
        Features((), {}, ()), {}, ("a", "b"), np.array([0.5, 0.5]), (300, 1_000)
    )
    check_findings(fitted.findings(), "mixture-sample")
    assert fitted.findings()[0].severity == "note"
    assert replace(fitted, part=(1_000, 1_000)).findings() == ()


def test_fits_show_their_progress() -> None:
    steps: list[int] = []

    @contextmanager
    def viewer(what: str, total: int) -> Iterator[Callable[[int], None]]:
        assert (what, total) == ("fitting", 5)
        yield steps.append

    token = progress._viewer.set(viewer)  # noqa: SLF001 - the command line sets it
    try:
        models = fit_folds(np.arange(20) % 5, len, threads=2)
    finally:
        progress._viewer.reset(token)  # noqa: SLF001
    assert models == dict.fromkeys(range(5), 16)
    assert steps == [1] * 5
