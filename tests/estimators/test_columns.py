"""Which known means calibrated uses, and what every estimator asks of the rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from poolwise.estimators.calibrated import (
    AS_NAIVE,
    BALANCED_PREDICTION,
    Calibrated,
    SelfNormalised,
    controls_of,
    logger_columns,
    supported_columns,
    uncovered,
)
from poolwise.estimators.crossfit import CrossFitted
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.estimators.model import BALANCED_RESIDUAL, OWN_SCORE, DirectMethod, DoublyRobust
from poolwise.estimators.shrink import Shrink, shrunk_weight, tuned
from poolwise.moments.linear import Score
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    PREDICTED_VALUE,
    RESIDUAL,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Factor,
    Needs,
    Term,
    ratio,
    residual_moment,
    second_moment,
    weight_moment,
)
from tests.support.messages import check_findings
from tests.support.small import group

if TYPE_CHECKING:
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.moments import Moments

LOGGERS = ("a", "b", "c")
CROWD = tuple(map(str, range(65)))
CLIP = Shrink("clip", 3)
CLIPPED = Term((Factor("balanced_weight", rule="clip", bound=3.0),))
OWN = Needs(groups=((WEIGHTED_REWARD,),))
BOTH = (BALANCED_REWARD, BALANCED_WEIGHT)
DIVERGENCES = Needs(
    tuple(map(second_moment, LOGGERS)), ((BALANCED_REWARD,), (WEIGHTED_REWARD,))
)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (Naive(), OWN),
        (Balanced(), Needs((), ((BALANCED_REWARD,),))),
        (Balanced(CLIP), Needs((BALANCED_WEIGHT, CLIPPED), ((REWARD * CLIPPED,),))),
        (Weighted(), DIVERGENCES),
        (Weighted("own"), DIVERGENCES),
        (Weighted("pooled"), DIVERGENCES),
        (Weighted("known", dict.fromkeys(LOGGERS, 1.0)), OWN),
        (
            Weighted("reward-free"),
            DIVERGENCES | Needs(tuple(map(weight_moment, LOGGERS)), ((BALANCED_WEIGHT,),)),
        ),
        (SelfNormalised(), Needs(groups=((BALANCED_REWARD, BALANCED_WEIGHT),))),
        (SelfNormalised("own"), Needs(groups=((WEIGHTED_REWARD, WEIGHT),))),
        (Calibrated(), Needs(groups=((*BOTH, ratio("a"), ratio("b")),))),
        (Calibrated(known=("c",)), Needs(groups=((*BOTH, ratio("c")),))),
        (
            Calibrated(columns=("target", "dr")),
            Needs(
                groups=((*BOTH, ratio("a"), ratio("b"), BALANCED_PREDICTION, PREDICTED_VALUE),)
            ),
        ),
        (CrossFitted(), Needs(groups=((*BOTH, ratio("a"), ratio("b")),))),
        (DirectMethod(), Needs(groups=((PREDICTED_VALUE,),))),
        (DoublyRobust("naive"), Needs(groups=(OWN_SCORE,))),
        (
            DoublyRobust("weighted"),
            Needs(groups=(OWN_SCORE,))
            | Needs(
                tuple(map(residual_moment, LOGGERS)), ((PREDICTED_VALUE, BALANCED_RESIDUAL),)
            ),
        ),
        (
            DoublyRobust(),
            Needs((), ((PREDICTED_VALUE, BALANCED_WEIGHT * RESIDUAL), (BALANCED_WEIGHT,))),
        ),
        (
            DoublyRobust(shrink=CLIP),
            Needs(
                (BALANCED_WEIGHT, CLIPPED),
                ((PREDICTED_VALUE, CLIPPED * RESIDUAL), (BALANCED_WEIGHT,)),
            ),
        ),
        (
            tuned(Balanced(), "clip", [3]),
            Needs((), ((BALANCED_REWARD,),))
            | Needs((BALANCED_WEIGHT, CLIPPED), ((REWARD * CLIPPED,),)),
        ),
    ],
    ids=repr,
)
def test_an_estimator_asks_for_these_terms(estimator: Estimator, expected: Needs) -> None:
    assert estimator.needs(LOGGERS, crossed=True) == expected


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (Naive(), OWN),
        (Weighted(), OWN),
        (Weighted("own"), OWN),
        (SelfNormalised("own"), Needs(groups=((WEIGHTED_REWARD, WEIGHT),))),
        (Calibrated(), OWN),
        (DirectMethod(), Needs(groups=((PREDICTED_VALUE,),))),
        (DoublyRobust("naive"), Needs(groups=(OWN_SCORE,))),
        (DoublyRobust("weighted"), Needs(groups=(OWN_SCORE,))),
    ],
    ids=repr,
)
def test_without_cross_propensities_it_asks_for_these(
    estimator: Estimator, expected: Needs
) -> None:
    assert estimator.needs(LOGGERS, crossed=False) == expected


def test_a_crowd_of_loggers_has_columns_only_where_nobody_guards() -> None:
    assert Calibrated().needs(CROWD, crossed=True) == Needs(groups=(BOTH,))
    free = Calibrated(guard=False).needs(CROWD, crossed=True)
    assert free == Needs(groups=((*BOTH, *map(ratio, CROWD[:-1])),))
    fewer = Calibrated().needs(CROWD[:64], crossed=True)
    assert fewer == Needs(groups=((*BOTH, *map(ratio, CROWD[:63])),))


def test_a_weight_is_held_back_only_where_that_was_asked_for() -> None:
    assert shrunk_weight(None) == BALANCED_WEIGHT
    assert shrunk_weight(CLIP) == CLIPPED
    assert type(shrunk_weight(CLIP).factors[0].bound) is float


def rows(count: int, *ratios: str) -> Moments:
    """Rows of weight 1."""
    terms = (BALANCED_WEIGHT, *map(ratio, ratios))
    return group({term: [1.0] * count for term in terms})


def test_the_last_logger_has_what_the_others_leave_of_the_mixture() -> None:
    moments = {"c": rows(5, "a", "b"), "a": rows(1, "a", "b"), "b": rows(2, "a", "b")}
    found = list(logger_columns(moments).values())
    assert found[:2] == [Score({ratio("a"): 1.0}, -1.0), Score({ratio("b"): 1.0}, -1.0)]
    (last,) = found[2:]
    assert last.parts == pytest.approx({ratio("a"): -1 / 5, ratio("b"): -2 / 5})
    assert last.constant == pytest.approx(8 / 5 - 1)


def test_where_every_logger_has_a_column_the_last_in_order_goes_without() -> None:
    found = list(logger_columns({"b": rows(3, "a", "b"), "a": rows(1, "a", "b")}).values())
    assert found[0] == Score({ratio("b"): 1.0}, -1.0)
    assert found[1].parts == pytest.approx({ratio("b"): -3.0})
    assert found[1].constant == pytest.approx(3.0)
    assert len(found) == 2


def test_columns_stand_for_these_known_means() -> None:
    moments = {"a": rows(1, "a"), "b": rows(3, "a")}
    target = Score({BALANCED_WEIGHT: 1.0}, -1.0)
    model = Score({BALANCED_PREDICTION: 1.0, PREDICTED_VALUE: -1.0}, 0.0)
    assert controls_of(moments, ("dr", "target")) == [model, target]
    assert controls_of(moments, ("loggers", "target")) == [
        *logger_columns(moments).values(),
        target,
    ]
    assert controls_of(moments, ("loggers",), known=("b",)) == [Score({ratio("b"): 1.0}, -1.0)]
    assert controls_of(moments, ("loggers", "target"), known=()) == [target]
    assert controls_of(moments, ()) == []


def test_effective_rows_are_the_squared_sum_over_the_sum_of_squares() -> None:
    three = group({BALANCED_WEIGHT: [1.0, 2.0, 3.0]})
    assert three.effective(BALANCED_WEIGHT) == pytest.approx(36 / 14)
    assert group({BALANCED_WEIGHT: [0.0, 0.0]}).effective(BALANCED_WEIGHT) == 0.0
    tiny = group({BALANCED_WEIGHT: [0.5, 0.5]})
    assert tiny.effective(BALANCED_WEIGHT) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.5, 1.0] * 6, True),  # (1 - 3/4) / error = √11, above 3.29
        ([0.5, 1.0] * 5, False),  # √9, below it
        ([1.5, 1.0] * 6, False),
        ([0.75] * 4, True),
        ([1 - 2e-6] * 4, True),
        ([1 - 5e-7] * 4, False),
        ([1 - 1e-6] * 4, False),
        ([1.0] * 4, False),
        ([0.0], False),  # one row has no variance
    ],
)
def test_a_mean_weight_far_below_one_is_no_accident(
    weights: list[float], *, expected: bool
) -> None:
    assert uncovered({"a": group({BALANCED_WEIGHT: weights})}) is expected


def test_the_mean_weight_is_that_of_all_rows() -> None:
    # 4 rows of 1 and 12 of 1/3: their mean is 1/2, that of the loggers 2/3
    moments = {
        "a": group({BALANCED_WEIGHT: [1.0] * 4}),
        "b": group({BALANCED_WEIGHT: [1 / 3] * 12}),
    }
    check_findings(supported_columns(moments, ("target",))[1], "target-uncovered")


BEARABLE: list[tuple[tuple[str, ...], int, tuple[str, ...]]] = [
    (("loggers", "target"), 30, ("loggers", "target")),
    (("loggers", "target"), 29, ("target",)),
    (("loggers", "target", "dr"), 40, ("loggers", "target", "dr")),
    (("loggers", "target", "dr"), 39, ("target",)),
    (("loggers",), 30, ("loggers",)),
    (("loggers",), 29, ()),
    (("target", "dr"), 20, ("target", "dr")),
    (("target", "dr"), 19, ("target",)),
    (("dr",), 20, ("dr",)),
    (("dr",), 19, ()),
    (("target",), 10, ("target",)),
    (("target",), 9, ()),
    ((), 3, ()),
]


@pytest.mark.parametrize(("columns", "count", "expected"), BEARABLE)
def test_each_column_needs_ten_effective_rows(
    columns: Any,  # noqa: ANN401 - a literal, as the table has it
    count: int,
    expected: tuple[str, ...],
) -> None:
    moments = {"a": rows(count // 2), "b": rows(count - count // 2)}
    found, findings = supported_columns(moments, columns)
    assert found == expected
    codes = [] if found == columns else ["few-effective-rows"]
    assert [f.code for f in findings] == codes


def test_exact_expectations_bear_every_column() -> None:
    moments = {"a": group({BALANCED_WEIGHT: [0.5]}, ddof=0)}
    assert supported_columns(moments, ("loggers", "target")) == (("loggers", "target"), ())


def test_the_columns_of_the_loggers_do_not_care_whether_the_target_is_covered() -> None:
    moments = {"a": group({BALANCED_WEIGHT: [0.75] * 40})}
    assert supported_columns(moments, ("loggers",)) == (("loggers",), ())
    found, (finding,) = supported_columns(moments, ("target", "dr"))
    assert found == ()
    assert finding.code == "target-uncovered"


def test_a_crowd_that_is_not_covered_has_both_findings() -> None:
    crowd = {i: group({BALANCED_WEIGHT: [0.75] * 40}) for i in CROWD}
    found, findings = supported_columns(crowd, ("loggers", "target"))
    assert found == ()
    assert [f.code for f in findings] == ["many-loggers", "target-uncovered"]
    assert supported_columns(crowd, ("loggers",))[0] == ()


def test_own_propensities_alone_make_calibrated_naive() -> None:
    moments = {
        "a": group({WEIGHTED_REWARD: [1.0, 3.0]}),
        "b": group({WEIGHTED_REWARD: [5.0] * 6}),
    }
    found = Calibrated().estimate(moments)
    plain = Naive().estimate(moments)
    assert (found.value, found.variance, found.shares) == (4.25, plain.variance, plain.shares)
    assert found.variance == pytest.approx(1 / 16)
    assert found.findings == (AS_NAIVE,)
    assert plain.findings == ()
    assert math.isfinite(found.freedom)
