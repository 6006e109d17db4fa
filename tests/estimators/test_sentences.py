"""What estimators refuse and what they find, word for word: people act on these sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from poolwise.errors import Finding, PoolwiseError, RefusedError, UsageError
from poolwise.estimators.calibrated import Calibrated, SelfNormalised, bearable
from poolwise.estimators.crossfit import CrossFitted
from poolwise.estimators.ips import Balanced, Weighted, require_crossed, with_divergences
from poolwise.estimators.model import DoublyRobust
from poolwise.estimators.shrink import Shrink, shrink_findings
from poolwise.estimators.tuned import Tuned, tuned
from poolwise.moments.moments import merge
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
from tests.support.small import group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from poolwise.moments.moments import Moments


def said(call: Callable[[], object]) -> tuple[type[PoolwiseError], str]:
    with pytest.raises(PoolwiseError) as caught:
        call()
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Weighted("best"),  # type: ignore[arg-type]
            "divergence is one of 'auto', 'pooled', 'own', 'known', 'reward-free', not 'best'",
        ),
        (
            lambda: Weighted("known"),
            "divergence='known' goes with known={logger: divergence}",
        ),
        (
            lambda: Weighted("own", {"a": 1.0}),
            "divergence='known' goes with known={logger: divergence}",
        ),
        (
            lambda: Weighted("known", {"a": 0.0, "b": -1.0}),
            "divergences cannot be negative or NaN: {'a': 0.0, 'b': -1.0}",
        ),
        (
            lambda: Weighted("known", {"b": 0.0}).needs(("a", "b", "c"), crossed=True),
            "`known` has no divergence for 'a', 'c'",
        ),
        (
            lambda: Calibrated(columns=("loggers", "contexts")),  # type: ignore[arg-type]
            "columns are 'loggers', 'target' and 'dr', not ('loggers', 'contexts')",
        ),
        (
            lambda: Calibrated(columns=["target"]),  # type: ignore[arg-type]
            "columns are 'loggers', 'target' and 'dr', not ['target']",
        ),
        (
            lambda: CrossFitted(folds=1),
            "cross-fitting needs two folds at least, not 1",
        ),
        (
            lambda: DoublyRobust("own"),  # type: ignore[arg-type]
            "weights are 'balanced', 'naive' or 'weighted', not 'own'",
        ),
        (
            lambda: DoublyRobust("weighted", Shrink("clip", 2)),
            "shrink goes with weights='balanced'",
        ),
        (
            lambda: Shrink("cut", 2),  # type: ignore[arg-type]
            "a rule is one of clip, switch, optimistic, not 'cut'",
        ),
        (
            lambda: Shrink("clip", math.inf),
            "a bound of weights is positive and finite, not inf",
        ),
        (
            lambda: Tuned(()),
            "there is nothing to choose from: name one candidate at least",
        ),
    ],
)
def test_arguments_without_meaning_are_refused_in_these_words(
    call: Callable[[], object], message: str
) -> None:
    assert said(call) == (UsageError, message)


def test_arguments_at_the_edge_of_their_meaning_are_taken() -> None:
    assert Weighted("known", {"a": 0.0}).known == {"a": 0.0}
    assert CrossFitted(folds=2).folds == 2
    assert CrossFitted().folds == 5
    assert Shrink("clip", 5e-324).bound == 5e-324
    assert DoublyRobust("weighted").shrink is None
    assert [Weighted(d).divergence for d in ("auto", "pooled", "own", "reward-free")]


def crossed_message(name: str) -> str:
    return (
        f"{name} needs the probability of each row's action under every logger, not only "
        "under the one that wrote it. Give `propensities` (--propensities) for 'a', 'b': a "
        "column, an expression or a policy for each."
    )


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Balanced().needs(("a", "b"), crossed=False), "balanced"),
        (
            lambda: Balanced(Shrink("clip", 3)).needs(("a", "b"), crossed=False),
            "balanced-clip-3",
        ),
        (lambda: SelfNormalised().needs(("a", "b"), crossed=False), "self-normalised"),
        (lambda: DoublyRobust().needs(("a", "b"), crossed=False), "doubly-robust"),
        (
            lambda: Weighted("pooled").needs(("a", "b"), crossed=False),
            "weighted with pooled divergences",
        ),
        (
            lambda: Weighted("reward-free").needs(("a", "b"), crossed=False),
            "weighted with reward-free divergences",
        ),
        (lambda: require_crossed("it", ("a", "b"), crossed=False), "it"),
    ],
)
def test_an_estimator_says_that_it_needs_cross_propensities(
    call: Callable[[], object], name: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        call()
    assert caught.value.code == f"{name}-refused"
    assert str(caught.value) == crossed_message(name)


def test_cross_fitted_says_that_it_needs_cross_propensities() -> None:
    with pytest.raises(RefusedError) as caught:
        CrossFitted().needs(("a", "b"), crossed=False)
    assert caught.value.code == "cross-fitted-refused"
    assert str(caught.value) == "cross-fitted needs `propensities` under every logger"


def test_a_log_that_is_missing_in_a_fold_is_named_with_its_rows() -> None:
    rows = group({BALANCED_REWARD: [1.0] * 1500, BALANCED_WEIGHT: [1.0] * 1500})
    full, short = {"a": rows, "b": rows, "c": rows}, {"c": rows}
    with pytest.raises(RefusedError) as caught:
        CrossFitted(folds=2).estimate_folds([full, short])
    assert caught.value.code == "too-few-for-folds"
    found = "'a' (1,500 rows), 'b' (1,500 rows)"
    assert str(caught.value) == f"{found} has no rows in some of the 2 folds"


@pytest.mark.parametrize("weights", [[0.0, 0.0], [-1.0, 0.0]])
def test_weights_without_mass_cannot_be_normalised(weights: list[float]) -> None:
    moments = {"a": group({WEIGHTED_REWARD: [0.0, 0.0], WEIGHT: weights})}
    with pytest.raises(RefusedError) as caught:
        SelfNormalised("own").estimate(moments)
    assert caught.value.code == "no-weight"
    assert str(caught.value) == "self-normalised-own needs one row with a positive weight"


def test_weighted_names_the_loggers_that_it_leaves_out() -> None:
    moments = {i: group({WEIGHTED_REWARD: [1.0, 3.0]}) for i in "abc"}
    found = with_divergences(moments, {"a": math.inf, "b": 2.0, "c": math.inf})
    assert found.findings == (
        Finding(
            "logger-unsupported",
            "'a', 'c' gave probability 0 to actions that the target plays and that were "
            "rewarded: weighted leaves such logs out, and naive is biased by them.",
            "Rely on balanced, which needs only that the loggers together cover the target.",
        ),
    )
    assert found.shares == {"a": 0.0, "b": 1.0, "c": 0.0}
    assert with_divergences(moments, dict.fromkeys("abc", 2.0)).findings == ()


def test_weighted_refuses_where_no_logger_can_play_what_is_rewarded() -> None:
    moments = {i: group({WEIGHTED_REWARD: [1.0, 3.0]}) for i in "ab"}
    with pytest.raises(RefusedError) as caught:
        with_divergences(moments, dict.fromkeys("ab", math.inf))
    assert caught.value.code == "weighted-refused"
    assert str(caught.value) == (
        "weighted needs one logger at least that can play every rewarded action of the "
        "target, and each of these gives probability 0 to some. Use balanced."
    )


def test_own_divergences_name_the_logs_without_spread() -> None:
    flat, spread = [2.0] * 1200, [1.0, 3.0] * 600
    rows = {"a": flat, "b": spread, "c": flat}
    moments = {i: group({WEIGHTED_REWARD: values}) for i, values in rows.items()}
    found = Weighted("own").estimate(moments)
    assert found.findings == (
        Finding(
            "no-spread",
            "The weighted rewards do not vary within 'a' (1,200 rows), 'c' (1,200 rows); its "
            "own variance would give such a logger the whole estimate, so the shares of naive "
            "are used.",
            "Use balanced, or weighted with pooled divergences.",
        ),
    )
    assert found.shares == pytest.approx(dict.fromkeys("abc", 1 / 3))


def uncovered_log() -> dict[str, Moments]:
    """Balanced weights that average 3/4 without doubt."""
    rows = {
        BALANCED_WEIGHT: [0.75] * 40,
        BALANCED_REWARD: [0.75, 0.0] * 20,
        PREDICTED_VALUE: [0.5] * 40,
        BALANCED_WEIGHT * RESIDUAL: [0.25, -0.25] * 20,
        ratio("a"): [1.0] * 40,
    }
    return {"a": group(rows), "b": group(rows)}


def test_calibrated_says_that_the_target_is_not_covered() -> None:
    columns, findings = bearable(uncovered_log(), ("loggers", "target"))
    assert columns == ("loggers",)
    assert findings == (
        Finding(
            "target-uncovered",
            "The balanced weights average 0.750 instead of 1: the target plays actions that no "
            "logger plays, about 25.0% of the time, or probabilities are wrong (or, where they "
            "were estimated, rough). The columns that rest on the target's weights are left "
            "out.",
            "Log such actions before relying on any estimate, unless they are known to earn 0.",
            "alarm",
        ),
    )


def test_doubly_robust_says_that_the_model_must_guess() -> None:
    found = DoublyRobust().estimate(uncovered_log())
    assert found.findings == (
        Finding(
            "target-uncovered",
            "The balanced weights average 0.750 instead of 1: the target plays actions that no "
            "logger plays, about 25.0% of the time. What those earn comes from the reward "
            "model alone, which no row could correct.",
            "Log such actions before relying on any estimate.",
            "alarm",
        ),
    )


def test_calibrated_says_that_there_are_too_many_loggers() -> None:
    rows = group({BALANCED_WEIGHT: [1.0] * 40, BALANCED_REWARD: [1.0, 0.0] * 20})
    columns, findings = bearable({str(i): rows for i in range(65)}, ("loggers", "target"))
    assert columns == ("target",)
    assert findings == (
        Finding(
            "many-loggers",
            "There are 65 loggers, more than 64: their columns are left out of calibrated, "
            "which then knows only that the target's weights average 1.",
            "Give loggers that play nearly alike one label and one column of `propensities`.",
        ),
    )
    assert bearable({str(i): rows for i in range(64)}, ("loggers", "target")) == (
        ("loggers", "target"),
        (),
    )


def too_few(what: str) -> Finding:
    return Finding(
        "few-effective-rows",
        f"The weights are worth {what}.",
        "Collect more rows from loggers that are closer to the target.",
    )


def test_calibrated_says_which_columns_few_rows_cannot_bear() -> None:
    moments = {i: group({BALANCED_WEIGHT: [1.0] * 6}) for i in "ab"}
    assert bearable(moments, ("loggers", "target", "dr")) == (
        ("target",),
        (
            too_few(
                "12.0 rows only, so 'loggers' and 'dr' are left out of the columns",
            ),
        ),
    )
    assert bearable(moments, ("loggers",)) == (
        (),
        (too_few("12.0 rows only, so 'loggers' are left out of the columns"),),
    )
    tiny = {i: group({BALANCED_WEIGHT: [1.0] * 2}) for i in "ab"}
    assert bearable(tiny, ("target",)) == (
        (),
        (too_few("4.0 rows only, so no column is used"),),
    )


def test_held_back_weights_say_how_much_was_taken_away() -> None:
    clipped = Term((Factor("balanced_weight", rule="clip", bound=1.5),))
    one = group({BALANCED_WEIGHT: [1.0, 3.0], clipped: [1.0, 1.5]})
    found = shrink_findings({"a": merge(one, one)}, Shrink("clip", 1.5))
    assert found == (
        Finding(
            "shrunk-weights",
            "Holding weights back (clip at 1.5) takes 37.5% of them away. That biases the "
            "estimate, and its interval does not know it.",
            "Compare with the estimate without it.",
        ),
    )
    whole = group({BALANCED_WEIGHT: [1.0, 1.0], clipped: [1.0, 1.0]})
    assert shrink_findings({"a": whole}, Shrink("clip", 1.5)) == ()
    assert shrink_findings({"a": whole}, None) == ()


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
    found = DoublyRobust(shrink=Shrink("clip", 0.5)).estimate({"a": group(rows)})
    assert [f.code for f in found.findings] == ["target-uncovered", "shrunk-weights"]


def test_a_chosen_estimate_says_among_how_many_and_keeps_its_findings() -> None:
    clipped = Term((Factor("balanced_weight", rule="clip", bound=1.5),))
    rows: dict[Term, Sequence[float]] = {
        BALANCED_WEIGHT: [1.0, 3.0] * 8,
        BALANCED_REWARD: [1.0, 3.0] * 8,
        clipped: [1.0, 1.5] * 8,
        Term((Factor("balanced_weight", rule="clip", bound=1.5), Factor("reward"))): [2.0] * 16,
    }
    found = tuned(Balanced(), "clip", [1.5]).estimate({"a": group(rows)})
    assert found.value == 2.0
    assert found.findings == (
        Finding(
            "selected-estimator",
            "balanced-clip-1.5 was chosen among 2 candidates by these same rows; its interval "
            "knows neither of the choice nor of the bias that holding weights back brings.",
            "Decide by an estimate that was not chosen, such as calibrated.",
        ),
        *shrink_findings({"a": group(rows)}, Shrink("clip", 1.5)),
    )
