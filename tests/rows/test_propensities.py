"""Estimated propensities: exact with frequencies, exact with a true classifier, or refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

import poolwise as pw
from poolwise.errors import LogError, RefusedError, UsageError
from poolwise.log.policy import Batch
from poolwise.rows.learners import fit_features
from poolwise.rows.mixture import LEAST_CHANCE, FittedActions, count_certain
from tests.support.messages import check_findings, refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

ITEMS = ("a", "b", "c")
SHARES = {("x", 0): 20, ("x", 1): 30, ("y", 0): 50}  # rows of each context, in tenths of 1,000
MIXTURE = {("x", 0): (5, 3, 2), ("x", 1): (1, 6, 3), ("y", 0): (4, 4, 2)}  # tenths
REWARD = {("x", 0): (2, 5, 8), ("x", 1): (0, 4, 6), ("y", 0): (9, 1, 3)}  # tenths
TARGET = {("x", 0): (0.1, 0.2, 0.7), ("x", 1): (0.5, 0.5, 0.0), ("y", 0): (0.3, 0.3, 0.4)}
ESTIMATORS = ("balanced", "calibrated", "self-normalised", "weighted", "naive")
ROLES: dict[str, Any] = {
    "reward": "reward",
    "action": "item",
    "context": ["page", "day"],
    "propensities": "estimate",
}


def enumerate_rows() -> pa.Table:
    """Return rows in which every frequency is the probability."""
    columns: dict[str, list[Any]] = {k: [] for k in ("page", "day", "item", "reward", "new")}
    for context, rows in SHARES.items():
        for k, item in enumerate(ITEMS):
            played = rows * MIXTURE[context][k]
            paid = played * REWARD[context][k] // 10
            assert paid * 10 == played * REWARD[context][k]
            lines = [*context, item, 0.0, TARGET[context][k]]
            for number in range(played):
                lines[3] = float(number < paid)
                for name, value in zip(columns, lines, strict=True):
                    columns[name].append(value)
    return pa.table(columns)


def truth() -> float:
    """Return the value of the target, a finite sum."""
    total = sum(SHARES.values())
    return sum(
        rows / total * sum(t * r / 10 for t, r in zip(TARGET[c], REWARD[c], strict=True))
        for c, rows in SHARES.items()
    )


def draw(rows: int, seed: int) -> pa.Table:
    """Return a random sample of the enumerated rows."""
    whole = enumerate_rows()
    return whole.take(np.random.default_rng([seed, 17]).integers(len(whole), size=rows))


def average_contexts(table: pa.Table) -> float:
    """Return the mean over contexts of the target's mean of the observed rewards."""
    frame = table.to_pandas()
    total = 0.0
    for context, rows in frame.groupby(["page", "day"], dropna=False):
        means = rows.groupby("item")["reward"].mean()
        target = TARGET[context] if context in TARGET else rows.groupby("item")["new"].first()
        chances = dict(zip(ITEMS, target, strict=True))
        total += len(rows) / len(frame) * sum(chances[i] * means[i] for i in means.index)
    return total


def test_frequencies_of_an_enumerated_log_give_the_true_value() -> None:
    found = pw.evaluate(pw.Log(enumerate_rows(), **ROLES), "new", ESTIMATORS)["target"]
    assert len(found.estimates) == len(ESTIMATORS)
    for estimate in found.estimates.values():
        assert estimate.value == pytest.approx(truth(), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_frequencies_give_the_mean_of_each_context_and_action(seed: int) -> None:
    table = draw(700, seed)
    found = pw.evaluate(pw.Log(table, **ROLES), "new", ESTIMATORS)["target"]
    for estimate in found.estimates.values():
        assert estimate.value == pytest.approx(average_contexts(table), abs=1e-9)


def test_a_missing_context_is_a_context_of_its_own() -> None:
    table = draw(700, 5)
    day = [None if k == 1 else k for k in table["day"].to_pylist()]
    table = table.set_column(1, "day", pa.array(day))
    found = pw.evaluate(pw.Log(table, **ROLES), "new", "balanced")["target"]
    log = pw.Log(table, **{**ROLES, "context": ["page", "coalesced"]})
    filled = table.append_column("coalesced", pa.array([-1 if k is None else k for k in day]))
    same = pw.evaluate(replace(log, source=filled), "new", "balanced")["target"]
    assert found.estimates["balanced"].value == same.estimates["balanced"].value


def test_logarithms_dropped_rows_and_segments_give_the_same_numbers() -> None:
    table = draw(700, 7)
    log = pw.Log(table, **ROLES)
    plain = pw.evaluate(log, "new", "balanced")["target"].estimates["balanced"].value
    logs = pw.evaluate(replace(log, log_probabilities=True), "ln(new)", "balanced")
    assert logs["target"].estimates["balanced"].value == pytest.approx(plain, rel=1e-12)
    bad = pa.table({**{n: table[n].slice(0, 9) for n in table.schema.names}})
    bad = bad.set_column(3, "reward", pa.array([float("nan")] * 9))
    broken = replace(log, source=pa.concat_tables([table, bad]))
    with refused(LogError):
        pw.evaluate(broken, "new", "balanced")
    dropped = pw.evaluate(replace(broken, on_fault="drop"), "new", "balanced")["target"]
    assert dropped.estimates["balanced"].value == pytest.approx(plain, rel=1e-12)
    by = pw.evaluate(log, "new", "balanced", by="page")
    assert by.segments is not None
    for part in by.segments.results:
        rows = table.filter(pa.array([p == part.segment for p in table["page"].to_pylist()]))
        assert part.estimate is not None
        assert part.estimate.value == pytest.approx(average_contexts(rows), abs=1e-9)


def test_a_row_without_an_action_is_a_fault() -> None:
    table = draw(60, 1)
    items = [None, *table["item"].to_pylist()[1:]]
    broken = table.set_column(2, "item", pa.array(items))
    for model in (False, LogisticRegression()):
        with refused(LogError):
            pw.evaluate(pw.Log(broken, estimate_mixture=model, **ROLES), "new")


CONTEXTS = tuple(SHARES)


@dataclass
class Oracle(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with the true probabilities of the actions, by number of the context."""

    def fit(self, matrix: NDArray[np.float64], code: NDArray[np.int64]) -> Oracle:
        del matrix
        self.classes_ = np.unique(code)
        return self

    def predict_proba(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        table = np.array([MIXTURE[context] for context in CONTEXTS]) / 10
        return np.asarray(table[matrix[:, 0].astype(int)])


def numbered(table: pa.Table) -> pa.Table:
    """Append the number of the context, and the true propensity of the mixture."""
    keys = list(zip(*(table[name].to_pylist() for name in ("page", "day")), strict=True))
    items = table["item"].to_pylist()
    known = [MIXTURE[k][ITEMS.index(i)] / 10 for k, i in zip(keys, items, strict=True)]
    table = table.append_column("code", pa.array([CONTEXTS.index(key) for key in keys]))
    return table.append_column("p", pa.array(known))


def classified(table: pa.Table, classifier: object, **own: Any) -> pw.Log:  # noqa: ANN401 - roles
    roles = ROLES | {"context": ["code"], "estimate_mixture": classifier} | own
    return pw.Log(numbered(table), **roles)


def test_with_the_true_classifier_the_log_is_that_of_the_known_mixture() -> None:
    table = draw(100, 3)  # too few rows of an action to calibrate
    log = classified(table, Oracle())
    known = replace(
        log, propensities=None, propensity="p", estimate_mixture=False, confounders=None
    )
    for found, same in zip(
        pw.evaluate(log, {"new": "new"}, ESTIMATORS).to_dicts(),
        pw.evaluate(known, {"new": "new"}, ESTIMATORS).to_dicts(),
        strict=True,
    ):
        assert found["estimator"] == same["estimator"]
        for name in ("value", "std_error", "lower", "upper"):
            assert found[name] == pytest.approx(same[name], rel=1e-12)


def test_classifiers_come_close_to_the_known_mixture() -> None:
    table = draw(4_000, 11)
    trees = classified(table, DecisionTreeClassifier(min_samples_leaf=50))
    linear = classified(table, True, context=["page", "day"])  # noqa: FBT003 - the default
    for log in (trees, linear):
        found = pw.evaluate(log, "new", "calibrated")["target"]
        estimate = found.estimates["calibrated"]
        assert abs(estimate.value - truth()) < 3 * estimate.std_error
        assert estimate.std_error < 0.02


@pytest.mark.parametrize("classifier", [False, LogisticRegression(C=1e3)])
def test_a_log_of_a_fixed_rule_is_refused(classifier: object) -> None:
    rng = np.random.default_rng(0)
    code = rng.integers(4, size=1_200)
    table = {"item": np.array(["a", "b"])[code % 2], "reward": rng.random(1_200)}
    table |= {"even": (code % 2).astype(str), "new": np.full(1_200, 0.5)}
    log = pw.Log(pa.table(table), **ROLES | {"context": ["even"]}, estimate_mixture=classifier)
    with refused(RefusedError) as caught:
        pw.evaluate(log, "new")
    assert caught.value.code == "propensities-refused"
    assert "1,200 of 1,200 rows" in str(caught.value)


def test_a_context_with_one_action_is_counted() -> None:
    table = draw(1_000, 2)
    rare: dict[str, list[Any]] = {"page": ["z"] * 5, "day": [0] * 5, "item": ["a"] * 5}
    rare |= {"reward": [1.0] * 5, "new": [0.3] * 5}
    log = pw.Log(pa.concat_tables([table, pa.table(rare)]), **ROLES)
    found = pw.evaluate(log, "new")
    check_findings(found.findings[:1], "context-certain")
    assert "5 of 1,005 rows" in found.findings[0].message
    many = {name: values * 3 for name, values in rare.items()}
    with refused(RefusedError):
        pw.evaluate(replace(log, source=pa.concat_tables([table, pa.table(many)])), "new")


def test_chance_is_not_a_rule() -> None:
    sure = np.array([[0.985, 0.015]] * 1_000)
    code = np.zeros(1_000, dtype=np.int64)
    assert count_certain(sure, code) == 1_000
    code[::70] = 1
    assert count_certain(sure, code) == 0
    assert count_certain(np.full((1_000, 2), 0.5), np.zeros(1_000, dtype=np.int64)) == 0


def test_a_context_of_fractions_needs_a_classifier() -> None:
    fractions = np.random.default_rng(2).random(400)
    table = draw(400, 1).append_column("x", pa.array(fractions))
    log = pw.Log(table, **ROLES | {"context": ["x"]})
    with refused(RefusedError):
        pw.evaluate(log, "new")
    pw.evaluate(replace(log, estimate_mixture=LogisticRegression()), "new")


def test_actions_that_a_context_never_saw_are_an_alarm() -> None:
    table = draw(1_000, 9)
    days, items = table["day"].to_pylist(), table["item"].to_pylist()
    kept = [d != 1 or i != "b" for d, i in zip(days, items, strict=True)]
    table = table.filter(pa.array(kept))
    found = pw.evaluate(pw.Log(table, **ROLES), "new")["target"]
    (alarm,) = (f for f in found.findings if f.code == "target-uncovered")
    missing = TARGET["x", 1][1] * (np.array(table["day"]) == 1).mean()
    assert f"{1 - missing:.3f}" in alarm.message


@dataclass
class Sure(Oracle):
    """A classifier that excludes an action."""

    def predict_proba(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.tile([0.5, 0.5 - 1e-9, 1e-9], (len(matrix), 1))


def test_a_probability_near_0_is_raised_and_reported() -> None:
    table = draw(100, 4)
    found = pw.evaluate(classified(table, Sure()), "new", "balanced")
    check_findings(
        found.findings[:3],
        "propensities-classified",
        "propensities-misfit",
        "propensities-clipped",
    )
    played = sum(item == "c" for item in table["item"].to_pylist())
    assert f"In {played} rows" in found.findings[2].message
    largest = found["target"].loggers["log"].largest_weight
    assert largest == pytest.approx(0.7 / LEAST_CHANCE)


@pytest.mark.parametrize(
    "own",
    [
        {"action": None},
        {"context": []},
        {"logger": "page"},
        {"propensity": "new", "period": "day"},
        {"eligible": "items", "densities": True},
        {"mixture": "new"},
        {"confounders": "none"},
    ],
)
def test_arguments_that_have_no_meaning(own: dict[str, Any]) -> None:
    with refused(UsageError):
        pw.Log(draw(9, 0), **ROLES | own)


def test_lists_are_refused() -> None:
    with refused(UsageError):
        pw.ranking_log(
            draw(9, 0),
            {"new": "new"},
            request="page",
            position="day",
            reward="reward",
            propensities="estimate",
        )


def test_an_action_that_no_other_fold_played_has_its_share() -> None:
    table = draw(60, 8)
    items = ["rare" if k == 30 else i for k, i in enumerate(table["item"].to_pylist())]
    rare = numbered(table).drop_columns(["item"]).append_column("item", pa.array(items))
    log = replace(classified(table, LogisticRegression()), source=rare)
    found = pw.evaluate(log, "new", "balanced")
    new = table["new"].to_pylist()
    assert found["target"].loggers["log"].largest_weight <= max(new) * 60 * 1.01


def test_a_sample_of_the_rows_is_reported() -> None:
    features = fit_features(Batch(np.array(["a", "b"]), {}), [])
    few = FittedActions(features, {}, np.array([0.5, 0.5]), (20_000, 90_000))
    check_findings(few.findings(), "propensities-classified", "propensities-sample")
    most = replace(few, part=(89_000, 90_000))
    check_findings(most.findings(), "propensities-classified")
