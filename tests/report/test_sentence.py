"""The answer in one sentence: exact words for numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from poolwise.report.sentence import (
    answer,
    carriers,
    leading,
    lesson,
    rivals,
    select_findings,
    truth_text,
)
from tests.support.samples import demo

INF = math.inf


def estimate(value: float, error: float = 0.1, name: str = "calibrated") -> dict[str, Any]:
    lower, upper = value - 2 * error, value + 2 * error
    return {
        "estimator": name,
        "value": value,
        "std_error": error,
        "lower": lower,
        "upper": upper,
        "level": 0.95,
        "shares": {},
    }


def result(*estimates: dict[str, Any], name: str = "new", **more: object) -> dict[str, Any]:
    shares = {"a": 0.06, "b": 0.94}
    loggers = [{"logger": i, "best_share": s} for i, s in shares.items()]
    names = [e["estimator"] for e in estimates]
    best = names.index("calibrated") if "calibrated" in names else 0
    marked = [{**e, "recommended": k == best} for k, e in enumerate(estimates)]
    return {"target": name, "estimates": marked, "loggers": loggers, **more}


def evaluation(*targets: dict[str, Any], severities: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "baseline": {"name": "b", "reason": "largest logger"},
        "targets": list(targets),
        "loggers": [
            {"logger": "a", "rows": 10, "mean_reward": 0.5},
            {"logger": "b", "rows": 30, "mean_reward": 2.0},
        ],
        "warnings": [
            {"code": f"x{k}", "severity": s, "message": "m"} for k, s in enumerate(severities)
        ],
    }


def apart(
    gap: float, lower: float, upper: float, verdict: str, base: float = 2.0
) -> dict[str, Any]:
    """A difference from the baseline, also relative to it unless it is 0."""
    ends = {"lower": lower, "upper": upper}
    known = {"": gap, "_lower": lower, "_upper": upper} if base else {}
    relative = {f"relative{end}": value / base for end, value in known.items()}
    return {"difference": gap, "std_error": 0.1, **ends, "verdict": verdict, **relative}


LOWER = apart(-0.5, -0.7, -0.3, "worse")


def test_the_answer_of_the_demo() -> None:
    facts = demo().to_dict()
    assert facts["headline"] == answer(facts) == demo().headline
    assert answer(facts) == (
        "'candidate' would have earned 0.6771 ± 0.0040 per row "
        "(95% interval [0.6690, 0.6849]), 2.56 times as much as 'small', the largest logger "
        "(95% interval 2.52 to 2.60 times; difference 0.4124 ± 0.0031, 95% interval "
        "[0.4062, 0.4187]); "
        "2 of 3 logs contribute at least 90% of it."
    )
    assert truth_text(leading(facts)) == "The true value is known: 0.6795, within the interval."


def test_less_than_the_baseline() -> None:
    assert answer(evaluation(result(estimate(1.5), difference=LOWER))) == (
        "'new' would have earned 1.50 ± 0.10 per row (95% interval [1.30, 1.70]), "
        "25.0% less than 'b', the largest logger (95% interval 15.0% to 35.0%; difference "
        "-0.50 ± 0.10, 95% interval [-0.70, -0.30]); 1 of 2 logs contributes at least 90% of "
        "it."
    )


@pytest.mark.parametrize(
    ("value", "difference", "words"),
    [
        (7.0, apart(5.0, 4.8, 5.2, "better"), "3.5 times as much as 'b', the largest"),
        (1.0, apart(2.0, 1.8, 2.2, "better", -1.0), "2.00 more than 'b', the largest logger"),
        (2.0, apart(2.0, 1.8, 2.2, "better", 0.0), "2.00 more than 'b', the largest logger"),
        (1.9, apart(-0.1, -0.3, 0.1, "undecided"), "not distinguishable from 'b', the largest"),
        (1.9, apart(0.0, 0.0, 0.0, "identical"), "the same policy on every row as 'b', the"),
    ],
)
def test_differences_in_words(value: float, difference: dict[str, Any], words: str) -> None:
    assert words in answer(evaluation(result(estimate(value), difference=difference)))


def test_a_named_baseline_has_no_reason_and_several_targets_hold_together() -> None:
    targets = [result(estimate(1.5), name=name, difference=LOWER) for name in ("x", "y")]
    facts = evaluation(*targets) | {"baseline": {"name": "b", "reason": "named"}}
    words = "less than 'b' (simultaneous 95% interval 15.0% to 35.0%; difference"
    assert words in answer(facts)


def test_unreliable_probabilities_are_not_compared() -> None:
    facts = evaluation(result(estimate(1.5), difference=apart(-1.0, -1.2, -0.8, "unreliable")))
    assert "'b'" not in answer(facts)


def test_all_logs_contribute() -> None:
    facts = evaluation(result(estimate(1.5)))
    for log in facts["targets"][0]["loggers"]:
        log["best_share"] = 0.5
    assert answer(facts).endswith("; both logs contribute.")


@pytest.mark.parametrize(
    ("severities", "verb", "end"),
    [
        (("note",), "would have earned", "of it."),
        (("warning", "note"), "would", "Use it with care: see the 1 warning below."),
        (
            ("alarm", "alarm", "warning"),
            "might",
            "Do not rely on it: resolve the 2 alarms below first.",
        ),
    ],
)
def test_findings_hedge_the_answer(severities: tuple[str, ...], verb: str, end: str) -> None:
    sentence = answer(evaluation(result(estimate(1.5)), severities=severities))
    assert verb in sentence
    assert sentence.endswith(end)


@pytest.mark.parametrize(
    ("lower", "upper", "words"),
    [
        (1.3, INF, "(at least 1.30 at level 95%)"),
        (-INF, 1.7, "(at most 1.70 at level 95%)"),
        (-INF, INF, "(no interval can be given)"),
    ],
)
def test_one_side_is_told_in_words(lower: float, upper: float, words: str) -> None:
    one = estimate(1.5) | {"lower": lower, "upper": upper}
    assert f"1.50 ± 0.10 per row {words}" in answer(evaluation(result(one)))


def test_an_unknown_error_leaves_nothing_to_compare() -> None:
    one = estimate(1.5) | {"std_error": INF, "lower": -INF, "upper": INF}
    assert answer(evaluation(result(one))) == (
        "'new' would have earned 1.5 ± unknown per row (no interval can be given); "
        "1 of 2 logs contributes at least 90% of it."
    )


def test_of_several_targets_the_highest_is_told_and_only_its_findings_count() -> None:
    facts = evaluation(result(estimate(1.0), name="low"), result(estimate(1.5), name="high"))
    facts["warnings"] = [
        {"code": "x", "severity": "alarm", "message": "bad", "target": "low"},
        {"code": "y", "severity": "warning", "message": "All logs: odd"},
    ]
    sentence = answer(facts)
    assert sentence.startswith(
        "Of 2 targets, 'high' has the highest estimate: it would have earned"
    )
    assert sentence.endswith("Use it with care: see the 1 warning below.")
    assert [w["code"] for w in select_findings(facts, "low")] == ["x", "y"]


def compared(*verdicts: str) -> dict[str, Any]:
    """A comparison in which 'x' leads and was better, worse, ... than each other target."""
    flipped = {"better": "worse", "worse": "better"}
    behind = [{"target": str(k), "verdict": flipped.get(v, v)} for k, v in enumerate(verdicts)]
    return {
        "comparison": {"baseline": None, "targets": [{"target": "x"}], "differences": behind}
    }


PAIRED = "In paired comparisons it is"
SOME = f"{PAIRED} significantly better than 2 of 3 others, and is not distinguishable from 1."


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        (("better",), f"{PAIRED} significantly better than the other one."),
        (
            ("better", "better"),
            f"{PAIRED} significantly better than both others.",
        ),
        (
            ("undecided", "identical"),
            f"{PAIRED} not distinguishable from 2.",
        ),
        (("better", "undecided", "better"), SOME),
        (
            ("unreliable",),
            f"{PAIRED} not compared with 1 because of alarms.",
        ),
    ],
)
def test_whether_the_one_in_front_is_in_front(verdicts: tuple[str, ...], words: str) -> None:
    assert rivals(compared(*verdicts)) == words
    assert rivals(evaluation(result(estimate(1.0)))) == ""


def test_without_an_estimate_there_is_no_answer() -> None:
    assert answer(evaluation(result())) == (
        "These logs give no estimate of what 'new' would have earned: see the findings."
    )


def test_the_first_estimate_speaks_where_calibrated_is_missing() -> None:
    sentence = answer(
        evaluation(result(estimate(1.5, name="naive"), estimate(1.0, name="weighted")))
    )
    assert "earned 1.50" in sentence


def test_shares_that_nobody_knows_carry_nothing() -> None:
    assert carriers({"loggers": [{"logger": "a", "best_share": math.nan}]}) == []
    assert carriers({"loggers": [{"logger": "a"}]}) == []


def test_a_truth_outside_is_told() -> None:
    target = result(estimate(1.5), truth=9.0)
    assert truth_text(target) == "The true value is known: 9.00, outside the interval."
    assert truth_text(result(estimate(1.5))) == ""


def test_the_lesson_of_the_demo() -> None:
    assert lesson(demo().to_dict()).startswith("Logger 'small' wrote 57.1% of the rows, but ")
