from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolwise.moments.moments import Moments, pooled
from poolwise.moments.terms import REWARD, WEIGHT, WEIGHTED_REWARD, Needs
from tests.support.reference import exact_moments

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
    assert_same(pooled([c, a, b]), pooled([a, b, c]))


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
