"""Refusals and findings of estimators: codes here, words in tests/messages.txt."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from poolwise.errors import RefusedError, UsageError
from poolwise.estimators.calibrated import Calibrated, SelfNormalised, supported_columns
from poolwise.estimators.ips import Balanced, Weighted, with_divergences
from poolwise.estimators.model import DoublyRobust
from poolwise.estimators.shrink import Shrink, shrink_findings
from poolwise.moments.coverage import Coverage, refuse_uncrossed
from poolwise.moments.pool import Pool
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    PREDICTED_VALUE,
    RESIDUAL,
    WEIGHT,
    WEIGHTED_REWARD,
    Factor,
    Term,
    ratio,
)
from tests.support.messages import check_findings, refused
from tests.support.small import group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@pytest.mark.parametrize(
    "call",
    [
        lambda: Weighted("best"),  # type: ignore[arg-type]
        lambda: Weighted("known"),
        lambda: Weighted("own", {"a": 1.0}),
        lambda: Weighted("known", {"a": 0.0, "b": -1.0}),
        lambda: Weighted("known", {"b": 0.0}).needs(Coverage.complete(("a", "b", "c"))),
        lambda: Calibrated(columns=("loggers", "contexts")),  # type: ignore[arg-type]
        lambda: Calibrated(columns=["target"]),  # type: ignore[arg-type]
        lambda: DoublyRobust("own"),  # type: ignore[arg-type]
        lambda: DoublyRobust("weighted", Shrink("clip", 2)),
        lambda: Shrink("cut", 2),  # type: ignore[arg-type]
        lambda: Shrink("clip", math.inf),
    ],
)
def test_arguments_without_meaning_are_refused(call: Callable[[], object]) -> None:
    with refused(UsageError):
        call()


def test_arguments_at_the_edge_of_their_meaning_are_taken() -> None:
    assert Weighted("known", {"a": 0.0}).known == {"a": 0.0}
    assert Shrink("clip", 5e-324).bound == 5e-324
    assert DoublyRobust("weighted").shrink is None
    assert [Weighted(d).divergence for d in ("auto", "pooled", "own", "reward-free")]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Balanced().needs(Coverage(("a", "b"))), "balanced"),
        (
            lambda: Balanced(Shrink("clip", 3)).needs(Coverage(("a", "b"))),
            "balanced-clip-3",
        ),
        (
            lambda: SelfNormalised("balanced").needs(Coverage(("a", "b"))),
            "self-normalised",
        ),
        (lambda: Calibrated().needs(Coverage(("a", "b"))), "calibrated"),
        (lambda: DoublyRobust().needs(Coverage(("a", "b"))), "doubly-robust"),
        (lambda: Weighted("pooled").needs(Coverage(("a", "b"))), "weighted"),
        (
            lambda: Weighted("reward-free").needs(Coverage(("a", "b"))),
            "weighted-reward-free",
        ),
        (lambda: refuse_uncrossed("it", Coverage(("a", "b"))), "it"),
    ],
)
def test_an_estimator_says_that_it_needs_cross_propensities(
    call: Callable[[], object], name: str
) -> None:
    with refused(RefusedError) as caught:
        call()
    assert caught.value.code == f"{name}-refused"


@pytest.mark.parametrize("weights", [[0.0, 0.0], [-1.0, 0.0]])
def test_weights_without_mass_cannot_be_normalised(weights: list[float]) -> None:
    moments = Pool({"a": group({WEIGHTED_REWARD: [0.0, 0.0], WEIGHT: weights})})
    with refused(RefusedError) as caught:
        SelfNormalised("own").estimate(moments)
    assert caught.value.code == "no-weight"


def test_weighted_names_the_loggers_that_it_leaves_out() -> None:
    moments = Pool({i: group({WEIGHTED_REWARD: [1.0, 3.0]}) for i in "abc"})
    found = with_divergences(moments, {"a": math.inf, "b": 2.0, "c": math.inf})
    check_findings(found.findings, "logger-unsupported")
    assert found.shares == {"a": 0.0, "b": 1.0, "c": 0.0}
    assert with_divergences(moments, dict.fromkeys("abc", 2.0)).findings == ()


def test_weighted_refuses_where_no_logger_can_play_what_is_rewarded() -> None:
    moments = Pool({i: group({WEIGHTED_REWARD: [1.0, 3.0]}) for i in "ab"})
    with refused(RefusedError) as caught:
        with_divergences(moments, dict.fromkeys("ab", math.inf))
    assert caught.value.code == "weighted-refused"


def test_own_divergences_name_the_logs_without_spread() -> None:
    flat, spread = [2.0] * 1200, [1.0, 3.0] * 600
    rows = {"a": flat, "b": spread, "c": flat}
    moments = Pool({i: group({WEIGHTED_REWARD: values}) for i, values in rows.items()})
    found = Weighted("own").estimate(moments)
    check_findings(found.findings, "no-spread")
    assert found.shares == pytest.approx(dict.fromkeys("abc", 1 / 3))


def uncovered_log() -> Pool:
    """Balanced weights that average 3/4 without doubt."""
    rows = {
        BALANCED_WEIGHT: [0.75] * 40,
        BALANCED_REWARD: [0.75, 0.0] * 20,
        PREDICTED_VALUE: [0.5] * 40,
        BALANCED_WEIGHT * RESIDUAL: [0.25, -0.25] * 20,
        ratio("a"): [1.0] * 40,
    }
    return Pool({"a": group(rows), "b": group(rows)})


def test_calibrated_says_that_the_target_is_not_covered() -> None:
    columns, findings = supported_columns(uncovered_log(), ("loggers", "target"))
    assert columns == ("loggers",)
    check_findings(findings, "target-uncovered")


def test_doubly_robust_says_that_the_model_must_guess() -> None:
    found = DoublyRobust().estimate(uncovered_log())
    check_findings(found.findings, "target-uncovered")


def test_calibrated_says_that_there_are_too_many_loggers() -> None:
    rows = group({BALANCED_WEIGHT: [1.0] * 40, BALANCED_REWARD: [1.0, 0.0] * 20})
    columns, findings = supported_columns(
        Pool({str(i): rows for i in range(65)}), ("loggers", "target")
    )
    assert columns == ("target",)
    check_findings(findings, "many-loggers")
    assert supported_columns(
        Pool({str(i): rows for i in range(64)}), ("loggers", "target")
    ) == (
        ("loggers", "target"),
        (),
    )


@pytest.mark.parametrize(
    ("rows", "columns", "kept"),
    [
        (6, ("loggers", "target", "dr"), ("target",)),
        (6, ("loggers",), ()),
        (2, ("target",), ()),
    ],
)
def test_calibrated_leaves_out_columns_that_need_more_rows(
    rows: int, columns: tuple[Any, ...], kept: tuple[str, ...]
) -> None:
    moments = Pool({i: group({BALANCED_WEIGHT: [1.0] * rows}) for i in "ab"})
    left, findings = supported_columns(moments, columns)
    assert left == kept
    check_findings(findings, "few-effective-rows")


def test_held_back_weights_say_how_much_was_taken_away() -> None:
    clipped = Term((Factor("balanced_weight", rule="clip", bound=1.5),))
    one = group({BALANCED_WEIGHT: [1.0, 3.0], clipped: [1.0, 1.5]})
    found = shrink_findings(Pool({"a": one + one}), Shrink("clip", 1.5))
    check_findings(found, "shrunk-weights")
    whole = group({BALANCED_WEIGHT: [1.0, 1.0], clipped: [1.0, 1.0]})
    assert shrink_findings(Pool({"a": whole}), Shrink("clip", 1.5)) == ()
    assert shrink_findings(Pool({"a": whole}), None) == ()


def test_doubly_robust_says_both_that_the_model_guesses_and_that_weights_are_held_back() -> (
    None
):
    clipped = Term((Factor("balanced_weight", rule="clip", bound=0.5),))
    rows: dict[Term, Sequence[float]] = {
        BALANCED_WEIGHT: [0.75] * 40,
        clipped: [0.5] * 40,
        PREDICTED_VALUE: [0.5] * 40,
        clipped * RESIDUAL: [0.25, -0.25] * 20,
    }
    found = DoublyRobust(shrink=Shrink("clip", 0.5)).estimate(Pool({"a": group(rows)}))
    assert [f.code for f in found.findings] == ["target-uncovered", "shrunk-weights"]
