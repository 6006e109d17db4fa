"""Repeated targets: who equals another target changes nothing for the rest."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from scipy.sparse import csr_array

from poolwise.evaluation.compare import compare
from poolwise.evaluation.contrasts import MANY, Source, Spread
from poolwise.log.log import Log

if TYPE_CHECKING:
    from poolwise.evaluation.ranking import Comparison

ESTIMATORS = ("calibrated", "balanced", "self-normalised", "naive")
FEW_TARGETS, MANY_TARGETS = 10, 30  # 45 and 435 pairs
REPEATS = {
    "by the same words": "{a} * p_c + {b} * p_v",
    "in another order": "{b} * p_v + {a} * p_c",
    "with another rounding": "({a} * p_c + {b} * p_v) * 3 / 3",
}


def two_loggers() -> Log:
    """Rows of two loggers in six contexts, with four actions."""
    rng = np.random.default_rng(3)
    policies = 0.9 * rng.dirichlet(np.ones(4), size=(2, 6)) + 0.1 / 4
    context, logger = rng.integers(6, size=4000), rng.integers(2, size=4000)
    chances = policies[logger, context].cumsum(axis=1)
    action = np.minimum(3, (rng.random(4000)[:, None] > chances).sum(axis=1))
    first, second = policies[:, context, action]
    reward = rng.random(4000) < 0.2 + 0.5 * (first > second)  # so "c" is better
    table = {
        "logger": pa.array(np.array(["c", "v"])[logger]),
        "reward": reward.astype(float),
        "p_c": first,
        "p_v": second,
        "user": np.arange(4000) // 4,
    }
    return Log(
        pa.table(table),
        logger="logger",
        reward="reward",
        propensities={"c": "p_c", "v": "p_v"},
    )


LOG = two_loggers()


def mixtures(size: int) -> dict[str, str]:
    """Targets between the two loggers, one step apart."""
    return {f"t{i}": f"{i / size} * p_c + {1 - i / size} * p_v" for i in range(size)}


def repeated(size: int, place: int, words: str) -> dict[str, str]:
    """The same with one of them again, under the name "again"."""
    return {**mixtures(size), "again": words.format(a=place / size, b=1 - place / size)}


def silently(targets: dict[str, str], **options: str) -> Comparison:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return compare(LOG, targets, **options)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("words", REPEATS.values(), ids=REPEATS)
@pytest.mark.parametrize("size", [FEW_TARGETS, MANY_TARGETS])
def test_a_repeated_target_changes_nothing_for_the_others(
    size: int, words: str, estimator: str
) -> None:
    assert math.comb(FEW_TARGETS, 2) <= MANY < math.comb(MANY_TARGETS, 2)
    alone = silently(mixtures(size), estimator=estimator)
    found = silently(repeated(size, 5, words), estimator=estimator)
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
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("words", REPEATS.values(), ids=REPEATS)
@pytest.mark.parametrize("size", [FEW_TARGETS, MANY_TARGETS])
def test_a_repeated_target_stands_where_the_first_one_does(
    size: int, words: str, estimator: str
) -> None:
    found = silently(repeated(size, 5, words), estimator=estimator)
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
        # but for what slopes cost, which hangs on how even the weights are
        assert max(ratios) == pytest.approx(min(ratios), rel=1e-3)
        for pair in found.pairs:
            if pair.verdict != "identical":
                half = (pair.interval.upper - pair.value) / pair.std_error
                # 20,000 draws know the quantile at 0.95 to 0.013; four of those
                assert half == pytest.approx(1.96, abs=0.055)


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


def test_clustered_rows_do_not_mind_a_repeat() -> None:
    log = Log(
        LOG.source,
        logger="logger",
        reward="reward",
        propensities={"c": "p_c", "v": "p_v"},
        cluster="user",
    )
    alone = compare(log, mixtures(FEW_TARGETS))
    found = compare(log, repeated(FEW_TARGETS, 5, REPEATS["in another order"]))
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
    source = Source(csr_array(rows), covariance, math.inf)
    spread = Spread(values, [source], np.ones(size + 1), free)
    assert spread.errors.tolist() == [0.0, *(1.0 + k for k in range(size))]
    assert spread.p_values()[0] == 1.0
    # multiples of one term: the normal quantile, to four errors of 20,000 draws
    critical = spread.critical(0.95, np.random.default_rng(1))
    assert critical == pytest.approx(1.96, abs=0.055)
    assert spread.half_widths(critical)[0] == 0.0


def test_equal_rewards_show_no_difference_by_rounding() -> None:
    """Rewards of 1 make all targets worth 1: what is left between them is rounding."""
    table = LOG.source
    assert isinstance(table, pa.Table)
    ones = table.set_column(1, "reward", pa.array(np.ones(len(table))))
    log = Log(ones, logger="logger", reward="reward", propensities={"c": "p_c", "v": "p_v"})
    for estimator in ("calibrated", "self-normalised"):
        found = compare(log, mixtures(FEW_TARGETS), estimator=estimator)
        assert {d.verdict for d in found.pairs} == {"undecided"}
        assert {d.p_value for d in found.pairs} == {1.0}
