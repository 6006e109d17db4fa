"""State machines: moments depend on the rows, not on splits, merges, files or order.

A pool of moments is changed at random; each entry has the list of its rows.  At any time
its moments are those that `tests.support.reference` computes exactly from them.
"""

from __future__ import annotations

import pickle
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from poolwise.engines.kernel import Kernel
from poolwise.engines.saved_files import read_moments, write_moments
from poolwise.engines.sums import Sums, to_moments
from poolwise.engines.workspace import Workspace
from poolwise.moments.moments import Moments, pool_moments
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    OVERLAP,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    Term,
    ratio,
    second_moment,
    unsupported_weight,
)
from poolwise.rows.layout import Layout
from tests.support.reference import assert_moments_agree, exact_moments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.types import FloatArray

Row = tuple[str, float, float, float, float]  # logger, reward, p_a, p_b, t

LAYOUT = Layout(
    loggers=("a", "b"),
    crossed=("a", "b"),
    shares=(0.25, 0.75),
    targets=("",),
    propensity=False,
)
NEEDS = Needs(
    means=(REWARD, second_moment("a"), unsupported_weight("b")),
    groups=((BALANCED_REWARD, BALANCED_WEIGHT, ratio("a")), (WEIGHTED_REWARD,), (OVERLAP,)),
    extremes=(REWARD, WEIGHT),
    tails=(WEIGHT,),
)
WORKSPACE = Workspace(NEEDS)
probabilities = st.floats(0.01, 1.0)
# not below 1e-6: squares of 1e-200 underflow, and the reference's tolerance is one double
rewards = st.floats(-100, 100).map(lambda reward: reward if abs(reward) > 1e-6 else 0.0)
row_values = st.tuples(
    st.sampled_from("ab"),
    st.one_of(rewards, st.just(1e6)),
    probabilities,
    probabilities,
    st.one_of(probabilities, st.just(0.0)),
)
MOST_ROWS = 40  # of one group: merging a group with itself would double it for ever
some_rows = st.lists(row_values, min_size=1, max_size=8)


def kernel_sums(rows: Sequence[Row]) -> Sums:
    """Return the engine's moments of one batch."""
    codes = np.array(["ab".index(row[0]) for row in rows], dtype=np.uint8)
    names = ("reward", "p_0", "p_1", "t_0")
    columns = {n: np.array([row[k + 1] for row in rows]) for k, n in enumerate(names)}
    return Kernel(LAYOUT, WORKSPACE).together([(codes, columns)])


def kernel_moments(rows: Sequence[Row]) -> dict[str, Moments]:
    return to_moments(kernel_sums(rows), WORKSPACE, LAYOUT.loggers)


def exact(rows: Sequence[Row]) -> dict[str, Moments]:
    """Return the reference moments: every sum is rounded once."""
    found = {}
    for label in LAYOUT.loggers:
        mine = [row for row in rows if row[0] == label]
        if mine:
            values = {term: _values(term, mine) for term in NEEDS.terms}
            found[label] = exact_moments(values, NEEDS)
    return found


def _values(term: Term, rows: Sequence[Row]) -> FloatArray:
    product = np.ones(len(rows))
    for factor in term.factors:
        product = product * np.array([_value(factor.name, factor.logger, r) for r in rows])
    return product


def _value(name: str, logger: str, row: Row) -> float:
    label, reward, p_a, p_b, target = row
    probs = {"a": p_a, "b": p_b}
    mixture = 0.25 * p_a + 0.75 * p_b
    return {
        "reward": reward,
        "weight": target / probs[label],
        "balanced_weight": target / mixture,
        "ratio": probs.get(logger, 0.0) / mixture,
        "inverse_ratio": mixture / probs.get(logger, 1.0),
        "unsupported": 0.0,
        "overlap": min(p_a, p_b) / probs[label],
    }[name]


def check(found: dict[str, Moments], rows: Sequence[Row]) -> None:
    judge = exact(rows)
    assert_moments_agree(found, judge)
    for label, moments in found.items():
        kept, every = moments.tails[WEIGHT], judge[label].tails[WEIGHT]
        np.testing.assert_allclose(kept, every, rtol=1e-12)  # fewer rows than a tail is long


@dataclass
class Held:
    """Moments in the pool, and their rows."""

    moments: dict[str, Moments]
    rows: list[Row]


class MomentsMachine(RuleBasedStateMachine):
    """A pool of moments that is split, merged, saved, loaded and re-ordered."""

    pool = Bundle("pool")

    def __init__(self) -> None:
        super().__init__()
        self.last: Held | None = None
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)

    def teardown(self) -> None:
        self._folder.cleanup()

    def _hold(self, moments: dict[str, Moments], rows: list[Row]) -> Held:
        self.last = Held(moments, rows)
        return self.last

    @initialize(target=pool, rows=some_rows)
    def begin(self, rows: list[Row]) -> Held:
        return self._hold(kernel_moments(rows), rows)

    @rule(target=pool, rows=some_rows)
    def read(self, rows: list[Row]) -> Held:
        return self._hold(kernel_moments(rows), rows)

    @rule(target=pool, left=consumes(pool), right=pool)
    def merge(self, left: Held, right: Held) -> Held:
        if len(left.rows) + len(right.rows) > MOST_ROWS:
            return left
        labels = [i for i in LAYOUT.loggers if i in left.moments or i in right.moments]
        parts = {i: [h.moments[i] for h in (left, right) if i in h.moments] for i in labels}
        return self._hold({i: pool_moments(parts[i]) for i in labels}, left.rows + right.rows)

    @rule(target=pool, held=pool, cut=st.integers(0, 99))
    def split(self, held: Held, cut: int) -> Held:
        """The rows in two batches, whose sums are added as the engine adds them."""
        place = 1 + cut % len(held.rows)
        first, second = held.rows[:place], held.rows[place:]
        sums = kernel_sums(first)
        if second:
            sums = sums.add(kernel_sums(second), WORKSPACE)
        return self._hold(to_moments(sums, WORKSPACE, LAYOUT.loggers), held.rows)

    @rule(target=pool, held=pool, seed=st.integers(0, 2**32 - 1))
    def reorder(self, held: Held, seed: int) -> Held:
        order = np.random.default_rng(seed).permutation(len(held.rows))
        rows = [held.rows[k] for k in order]
        return self._hold(kernel_moments(rows), rows)

    @rule(target=pool, held=consumes(pool))
    def save_and_load(self, held: Held) -> Held:
        path = self.folder / "moments.parquet"
        write_moments(path, held.moments, {})
        loaded, _ = read_moments(path)
        assert list(loaded) == list(held.moments)
        for label, before in held.moments.items():  # nothing is rounded in a file
            for name in ("means", "scatter", "lowest", "largest"):
                np.testing.assert_array_equal(
                    getattr(loaded[label], name), getattr(before, name)
                )
        return self._hold(loaded, held.rows)

    @rule(target=pool, held=consumes(pool))
    def send_to_a_worker(self, held: Held) -> Held:
        moments: dict[str, Moments] = pickle.loads(pickle.dumps(held.moments))  # noqa: S301
        return self._hold(moments, held.rows)

    @rule(target=pool, held=pool)
    def select_all(self, held: Held) -> Held:
        """Every term under its own name, requested in another order."""
        names = {t: t for t in reversed(NEEDS.terms)}
        back = {t: t for t in NEEDS.terms}
        moments = {i: m.select(names).select(back) for i, m in held.moments.items()}
        return self._hold(moments, held.rows)

    @invariant()
    def the_rows_decide(self) -> None:
        if self.last is not None:
            check(self.last.moments, self.last.rows)


MomentsMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
test_moments_are_those_of_their_rows = MomentsMachine.TestCase


def test_a_thousand_merges_in_a_row() -> None:
    """Merged tails are kept flat: a chain of merges once recursed through all of them."""
    rows = [("a", float(k), 0.5, 0.25, 0.25 + k / 4000) for k in range(1000)]
    parts = [kernel_moments([row])["a"] for row in rows]
    check({"a": pool_moments(parts)}, rows)


def test_rows_that_are_all_alike_have_no_scatter_in_any_split() -> None:
    """Rounding of the mean is not spread: 0.1 + 0.1 + 0.1 is not 0.3."""
    row = ("a", 0.1, 0.3, 0.7, 0.7)
    for size in (3, 10, 1000):
        whole = kernel_sums([row] * size)
        for count in (1, 7, 777):
            whole = whole.add(kernel_sums([row] * count), WORKSPACE)
        moments = to_moments(whole, WORKSPACE, LAYOUT.loggers)["a"]
        assert moments.var(WEIGHTED_REWARD) == 0
        assert moments.var(BALANCED_REWARD) == 0
        assert moments.mean(WEIGHT) == 0.7 / 0.3
