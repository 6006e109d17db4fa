from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolwise.moments.moments import (
    LONGEST_TAIL,
    Moments,
    Selections,
    Terms,
    pool_moments,
    stack_means,
)
from poolwise.moments.terms import (
    BALANCED_WEIGHT,
    OVERLAP,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
)
from tests.support.reference import exact_moments

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolwise.moments.terms import Term


TERMS = (REWARD, WEIGHT)
ASKED = Needs(groups=(TERMS,), extremes=TERMS)

Rows = Sequence[tuple[float, float]]
reals = st.floats(-1e3, 1e3)
samples = st.lists(st.tuples(reals, reals), min_size=1, max_size=8)


def moments_of(rows: Rows, needs: Needs = ASKED) -> Moments:
    table = np.asarray(rows, dtype=np.float64)
    return exact_moments(dict(zip(TERMS, table.T, strict=True)), needs)


def empty() -> Moments:
    zeros, nothing = np.zeros(2), np.full(2, np.nan)
    return Moments(ASKED.terms, 0, zeros, np.zeros((2, 2)), nothing, nothing)


def assert_same(found: Moments, expected: Moments) -> None:
    assert found.terms == expected.terms
    assert found.count == expected.count
    # 24 rows within 1e3: means below 1e3 and scatter below 1e8, in doubles
    np.testing.assert_allclose(found.means, expected.means, rtol=0, atol=1e-11)
    np.testing.assert_allclose(found.scatter, expected.scatter, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(found.lowest, expected.lowest)
    np.testing.assert_array_equal(found.largest, expected.largest)


@given(samples, samples)
def test_merging_groups_equals_pooling_rows(left: Rows, right: Rows) -> None:
    assert_same(moments_of(left) + moments_of(right), moments_of([*left, *right]))


@given(samples, samples, samples)
def test_the_order_of_merging_does_not_matter(first: Rows, second: Rows, third: Rows) -> None:
    a, b, c = moments_of(first), moments_of(second), moments_of(third)
    assert_same((a + b) + c, a + (b + c))
    assert_same(a + b, b + a)
    assert_same(pool_moments([c, a, b]), pool_moments([a, b, c]))


@given(samples)
def test_an_empty_group_changes_nothing(rows: Rows) -> None:
    found = moments_of(rows)
    assert_same(found + empty(), found)
    assert_same(empty() + found, found)
    assert (empty() + empty()).count == 0


def test_two_groups_of_unequal_size_merge_to_the_exact_scatter() -> None:
    # rewards 0, 3 and 6; weights 1, 2 and 6: means 3 and 3, centred -3 0 3 and -2 -1 3
    found = moments_of([(0, 1)]) + moments_of([(3, 2), (6, 6)])
    assert found.mean(REWARD) == pytest.approx(3, rel=1e-15)
    assert found.mean(WEIGHT) == pytest.approx(3, rel=1e-15)
    assert found.var(REWARD) == pytest.approx(18 / 2, rel=1e-15)
    assert found.var(WEIGHT) == pytest.approx(14 / 2, rel=1e-15)
    assert found.cov(REWARD, WEIGHT) == pytest.approx(15 / 2, rel=1e-15)
    assert found.mean_square(WEIGHT) == pytest.approx(float(Fraction(41, 3)), rel=1e-15)
    assert (found.min(WEIGHT), found.max(WEIGHT)) == (1, 6)


def test_exact_moments_are_divided_by_the_count_and_rows_by_one_less() -> None:
    rows = moments_of([(0, 1), (2, 3)])
    exact = Moments(rows.terms, 2, rows.means, rows.scatter, rows.lowest, rows.largest, ddof=0)
    assert rows.var(REWARD) == 2
    assert exact.var(REWARD) == 1
    assert (exact + exact).ddof == 0


def test_one_row_has_an_infinite_variance_not_an_unknown_one() -> None:
    assert moments_of([(1, 2)]).var(REWARD) == math.inf


def test_what_nobody_asked_for_cannot_be_read() -> None:
    found = moments_of([(0, 1), (2, 3)], Needs(means=(REWARD,), groups=((WEIGHT,),)))
    assert found.mean(REWARD) == 1
    assert found.var(WEIGHT) == 2
    for read in (found.var, found.mean_square, found.max, found.min):
        with pytest.raises(KeyError):
            read(REWARD)
    with pytest.raises(KeyError):
        found.cov(REWARD, WEIGHT)
    with pytest.raises(KeyError):
        found.mean(WEIGHTED_REWARD)
    assert found.has(REWARD)
    assert not found.has(WEIGHTED_REWARD)


def test_what_nobody_asked_for_stays_unread_after_merging() -> None:
    found = moments_of([(0, 1), (2, 3)], Needs(means=(REWARD,), groups=((WEIGHT,),)))
    with pytest.raises(KeyError):
        (found + found).cov(REWARD, WEIGHT)


def test_selecting_renames_and_reorders() -> None:
    found = moments_of([(0, 1), (3, 2), (6, 6)])
    chosen = found.select({WEIGHTED_REWARD: WEIGHT, REWARD: REWARD})
    assert chosen.terms == (WEIGHTED_REWARD, REWARD)
    assert chosen.count == 3
    assert chosen.mean(WEIGHTED_REWARD) == found.mean(WEIGHT)
    assert chosen.var(WEIGHTED_REWARD) == found.var(WEIGHT)
    assert chosen.cov(REWARD, WEIGHTED_REWARD) == found.cov(REWARD, WEIGHT)
    assert chosen.max(WEIGHTED_REWARD) == found.max(WEIGHT)
    assert chosen.min(REWARD) == found.min(REWARD)
    one = found.select({WEIGHT: WEIGHT})
    assert not one.has(REWARD)


def test_moments_of_different_terms_do_not_merge() -> None:
    found = moments_of([(0, 1), (2, 3)])
    with pytest.raises(ValueError, match="different terms"):
        _ = found + found.select({WEIGHT: WEIGHT})


@given(st.permutations([WEIGHT, REWARD, WEIGHTED_REWARD]))
def test_needs_do_not_depend_on_the_order_of_asking(order: list[object]) -> None:
    terms = [t for t in (REWARD, WEIGHT, WEIGHTED_REWARD) if t in order]
    shuffled = sorted(terms, key=order.index)
    straight, other = Needs(groups=(tuple(terms),)), Needs(groups=(tuple(shuffled),))
    assert other.terms == straight.terms
    assert other.pairs == straight.pairs
    assert len(straight.pairs) == 6  # three variances, three covariances


def test_needs_are_united_without_repetition() -> None:
    first = Needs(means=(REWARD,), groups=((WEIGHT,),))
    second = Needs(groups=((WEIGHT,), (WEIGHT, REWARD)), extremes=(WEIGHT,))
    both = first | second
    assert both.terms == tuple(sorted((REWARD, WEIGHT)))
    assert len(both.pairs) == 3
    assert both.extremes == (WEIGHT,)


def test_only_what_belongs_to_a_target_is_bound_to_it() -> None:
    one, other = WEIGHTED_REWARD.bind("one"), WEIGHTED_REWARD.bind("other")
    assert one != other
    assert REWARD.bind("one") == REWARD
    assert Needs(means=(REWARD, WEIGHT)).bind("one").terms == tuple(
        sorted((REWARD, WEIGHT.bind("one")))
    )


# ---------------------------------------- every field, merged, selected or recounted


PAIR = (REWARD, WEIGHT, OVERLAP)  # the last one has no scatter
LEFT = Moments(
    terms=PAIR,
    count=1,
    means=np.array([1.0, 2.0, 4.0]),
    scatter=np.zeros((2, 2)),
    lowest=np.array([1.0, 2.0, 4.0]),
    largest=np.array([1.0, 2.0, 4.0]),
    tails={WEIGHT: np.array([2.0])},
    histograms={REWARD: np.array([1, 0])},
    slices={OVERLAP: np.array([4.0, 0.0, 0.0])},
    powers={REWARD: np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0])},
    span=(7, 7),
)
RIGHT = Moments(  # rewards 4 and 6, weights 0 and 4, overlaps 5 and 9
    terms=PAIR,
    count=2,
    means=np.array([5.0, 2.0, 7.0]),
    scatter=np.array([[2.0, 4.0], [4.0, 8.0]]),
    lowest=np.array([4.0, 0.0, 5.0]),
    largest=np.array([6.0, 4.0, 9.0]),
    tails={WEIGHT: np.array([4.0, 0.0])},
    histograms={REWARD: np.array([0, 2])},
    slices={OVERLAP: np.array([5.0, 9.0, 0.0])},
    powers={REWARD: np.array([2.0, 10.0, 52.0, 280.0, 1552.0, 6.0])},
    span=(3, 5),
)


def assert_fields(found: Moments, expected: Moments) -> None:
    for field in fields(Moments):
        mine, other = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(other, Mapping):
            assert list(mine) == list(other), field.name
            for term in other:
                assert mine[term].tolist() == other[term].tolist(), field.name
        elif isinstance(other, np.ndarray):
            np.testing.assert_allclose(mine, other, rtol=1e-14, err_msg=field.name)
        else:
            assert mine == other, field.name


def test_merging_gives_every_field_of_all_rows() -> None:
    # rewards 1 4 6: mean 11/3, scatter 38/3; weights 2 0 4: mean 2, scatter 8; products 4
    expected = Moments(
        terms=PAIR,
        count=3,
        means=np.array([11 / 3, 2.0, 6.0]),
        scatter=np.array([[38 / 3, 4.0], [4.0, 8.0]]),
        lowest=np.array([1.0, 0.0, 4.0]),
        largest=np.array([6.0, 4.0, 9.0]),
        ddof=1,
        tails={WEIGHT: np.array([4.0, 2.0, 0.0])},
        histograms={REWARD: np.array([1, 2])},
        slices={OVERLAP: np.array([4.0, 5.0, 9.0])},
        powers={REWARD: np.array([3.0, 11.0, 53.0, 281.0, 1553.0, 6.0])},
        span=(3, 7),
    )
    assert_fields(LEFT + RIGHT, expected)
    # slices continue where the rows of the first group ended
    later = {OVERLAP: np.array([5.0, 9.0, 4.0])}
    assert_fields(RIGHT + LEFT, replace(expected, slices=later))
    assert_fields(pool_moments([LEFT, RIGHT]), expected)
    exact = replace(LEFT, ddof=0) + replace(RIGHT, ddof=0)
    assert_fields(exact, replace(expected, ddof=0))


def test_an_empty_group_hands_back_the_other_untouched() -> None:
    empty = replace(LEFT, count=0)
    assert empty + RIGHT is RIGHT
    assert RIGHT + empty is RIGHT


def test_moments_of_other_terms_are_refused_in_these_words() -> None:
    other = replace(RIGHT, terms=(REWARD, WEIGHT, BALANCED_WEIGHT))
    with pytest.raises(ValueError, match=r"^cannot merge moments of different terms$"):
        _ = LEFT + other


def test_a_gap_too_wide_to_square_is_infinite_and_no_warning() -> None:
    far = replace(RIGHT, means=np.array([1e200, 2.0, 7.0]))
    found = LEFT + far
    assert found.scatter.tolist() == [[math.inf, 4.0], [4.0, 8.0]]
    assert found.means.tolist() == pytest.approx([2e200 / 3, 2.0, 6.0])


def test_selecting_keeps_every_field_under_the_new_name_and_scatters_first() -> None:
    found = replace(RIGHT, ddof=0).select({OVERLAP: OVERLAP, REWARD: WEIGHT, WEIGHT: REWARD})
    expected = Moments(
        terms=(REWARD, WEIGHT, OVERLAP),
        count=2,
        means=np.array([2.0, 5.0, 7.0]),
        scatter=np.array([[8.0, 4.0], [4.0, 2.0]]),
        lowest=np.array([0.0, 4.0, 5.0]),
        largest=np.array([4.0, 6.0, 9.0]),
        ddof=0,
        tails={REWARD: np.array([4.0, 0.0])},
        histograms={WEIGHT: np.array([0, 2])},
        slices={OVERLAP: np.array([5.0, 9.0, 0.0])},
        powers={WEIGHT: np.array([2.0, 10.0, 52.0, 280.0, 1552.0, 6.0])},
        span=(3, 5),
    )
    assert_fields(found, expected)
    without = RIGHT.select({OVERLAP: OVERLAP})
    assert (dict(without.tails), dict(without.histograms)) == ({}, {})
    assert without.scatter.shape == (0, 0)


def test_another_number_of_rows_scales_the_scatter_alone() -> None:
    expected = replace(RIGHT, count=6, scatter=np.array([[6.0, 12.0], [12.0, 24.0]]))
    assert_fields(RIGHT.recounted(6), expected)


def test_covariances_are_scatters_over_rows_less_ddof() -> None:
    three = RIGHT.recounted(3)  # scatters 3, 6 and 12
    assert three.cov(REWARD, WEIGHT) == 3.0
    assert three.covariance([WEIGHT, REWARD]).tolist() == [[6.0, 3.0], [3.0, 1.5]]
    assert replace(three, ddof=0).cov(REWARD, WEIGHT) == 2.0
    assert replace(three, ddof=0).covariance([WEIGHT]).tolist() == [[4.0]]
    assert replace(LEFT, ddof=0).cov(REWARD, WEIGHT) == 0.0
    assert LEFT.cov(REWARD, WEIGHT) == math.inf
    assert RIGHT.mean_square(WEIGHT) == 8.0  # of 0 and 16
    assert RIGHT.mean_square(REWARD) == 26.0  # of 16 and 36


def test_the_scatter_of_nothing_is_empty() -> None:
    assert RIGHT.select({REWARD: REWARD}).select_scatter([]).shape == (0, 0)


def test_what_was_not_asked_for_is_named_in_the_error() -> None:
    hidden = replace(RIGHT, scatter=np.array([[2.0, math.nan], [math.nan, 8.0]]))
    unknown = replace(RIGHT, lowest=np.full(3, np.nan), largest=np.full(3, np.nan))
    cases: list[tuple[Callable[[], object], object]] = [
        (lambda: RIGHT.select_scatter([REWARD, OVERLAP]), (REWARD, OVERLAP)),
        (lambda: hidden.select_scatter([WEIGHT, REWARD]), (WEIGHT, REWARD)),
        (lambda: unknown.min(WEIGHT), WEIGHT),
        (lambda: unknown.max(REWARD), REWARD),
    ]
    for call, named in cases:
        with pytest.raises(KeyError) as caught:
            call()
        assert caught.value.args == (named,)
    assert hidden.var(WEIGHT) == 8.0
    assert (RIGHT.min(WEIGHT), RIGHT.max(REWARD)) == (0.0, 6.0)
    assert type(RIGHT.min(WEIGHT)) is float


def with_tail(count: int, tail: Sequence[float]) -> Moments:
    return replace(RIGHT, count=count, tails={WEIGHT: np.array(tail)})


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (with_tail(2, [5, 4]), with_tail(2, [3, 1]), [5, 4, 3, 1]),
        (with_tail(3, [5, 3]), with_tail(3, [4, 3, 1]), [5, 4, 3, 3]),
        (with_tail(3, [5, 3]), with_tail(3, [4, 2]), [5, 4, 3]),
        (with_tail(4, [9, 5, 3]), with_tail(3, [4, 3.5, 1]), [9, 5, 4, 3.5, 3]),
    ],
    ids=["both are whole", "one was cut off", "both were cut off", "a longer one was"],
)
def test_tails_merge_as_far_down_as_both_are_known(
    left: Moments, right: Moments, expected: list[float]
) -> None:
    assert (left + right).tails[WEIGHT].tolist() == expected
    assert (right + left).tails[WEIGHT].tolist() == expected


def test_a_merged_tail_is_cut_at_its_longest_and_computed_once() -> None:
    half = with_tail(1500, list(range(1500, 0, -1)))
    tails = (half + half).tails
    assert len(tails[WEIGHT]) == LONGEST_TAIL
    assert tails[WEIGHT][:3].tolist() == [1500, 1500, 1499]
    assert tails[WEIGHT] is tails[WEIGHT]
    assert (list(tails), len(tails)) == ([WEIGHT], 1)


def test_three_groups_keep_one_flat_list_of_tails() -> None:
    found = with_tail(3, [9, 8]) + with_tail(2, [7, 1]) + with_tail(1, [8.5])
    assert found.tails[WEIGHT].tolist() == [9, 8.5, 8]
    twice = (found + found).tails
    parts: tuple[tuple[dict[Term, np.ndarray], int], ...] = twice.parts  # type: ignore[attr-defined]
    assert [rows for _, rows in parts] == [3, 2, 1, 3, 2, 1]
    assert twice[WEIGHT].tolist() == [9, 9, 8.5, 8.5, 8, 8]


def test_a_tally_that_one_group_lacks_is_not_merged() -> None:
    bare = replace(RIGHT, histograms={}, powers={}, slices={}, span=None)
    for both in (LEFT + bare, bare + LEFT):
        assert (dict(both.histograms), dict(both.powers), dict(both.slices)) == ({}, {}, {})
        assert both.span is None
    fewer = replace(RIGHT, slices={OVERLAP: np.array([14.0])})
    assert dict((LEFT + fewer).slices) == {}


def test_groups_without_rows_merge_to_the_first() -> None:
    first, second = replace(LEFT, count=0), replace(RIGHT, count=0)
    assert pool_moments([first, second]) is first


def test_groups_with_other_orders_of_terms_are_selected_by_name() -> None:
    other = LEFT.select({WEIGHT: WEIGHT, REWARD: REWARD, OVERLAP: OVERLAP})
    assert other.terms == (WEIGHT, REWARD, OVERLAP)
    select = Selections({BALANCED_WEIGHT: WEIGHT})
    means = [select(m).mean(BALANCED_WEIGHT) for m in (LEFT, other, RIGHT)]
    assert means == [2.0, 2.0, 2.0]
    assert LEFT.select({}).means.tolist() == []


def test_means_of_groups_are_a_table() -> None:
    assert stack_means([LEFT, RIGHT], [OVERLAP, REWARD]).tolist() == [[4.0, 1.0], [7.0, 5.0]]
    assert stack_means([], PAIR).shape == (0, 3)


def test_terms_are_sent_without_their_cached_hash() -> None:
    terms = Terms(PAIR)
    hash(terms)
    copy = pickle.loads(pickle.dumps(terms))  # noqa: S301 - our own bytes
    assert copy == PAIR
    assert copy.places == {REWARD: 0, WEIGHT: 1, OVERLAP: 2}
    assert vars(copy).keys() == {"places"}
