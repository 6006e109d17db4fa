"""The compiled kernel gives the sums of the NumPy kernel, and is chosen where it pays."""

from __future__ import annotations

import importlib.util
import pickle
import sys
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from poolwise.engines import loops, workspace
from poolwise.engines.compiled import CompiledKernel
from poolwise.engines.kernel import Kernel
from poolwise.engines.opcodes import plan_of
from poolwise.engines.parallel import COMPILED_FROM, kernel_for
from poolwise.engines.program import Program
from poolwise.engines.sums import to_moments
from poolwise.errors import UsageError
from poolwise.moments.moments import LONGEST_TAIL
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    OVERLAP,
    OVERLAP_REWARD,
    PREDICTED_REWARD,
    PREDICTED_VALUE,
    RESIDUAL,
    REWARD,
    UNSUPPORTED,
    WEIGHT,
    WEIGHTED_REWARD,
    Factor,
    Needs,
    Term,
    ratio,
    residual_moment,
    second_moment,
    unite,
    unsupported_weight,
    weight_moment,
)
from poolwise.rows.reader import BadRowsError, Layout, cut, frame_of
from tests.support.messages import refused
from tests.support.reference import assert_moments_agree

if TYPE_CHECKING:
    from poolwise.log.policy import AnyArray
    from poolwise.moments.moments import FloatArray

ROWS = 700
LOGGERS = ("a", "b", "c")
TARGETS = ("t", "u")


def held(rule: str, bound: float) -> Term:
    """A balanced weight that a rule holds back."""
    return Term((Factor("balanced_weight", rule=rule, bound=bound),))


def needs(layout: Layout) -> Needs:
    """Everything that this layout can be asked for, for each target."""
    rules = [held("clip", 1.5), held("switch", 1.2), held("optimistic", 2.0)]
    crossed = layout.crossed
    means = [REWARD, WEIGHTED_REWARD, *rules, *map(unsupported_weight, crossed)]
    means += [*map(second_moment, crossed), *map(weight_moment, crossed)]
    group = [BALANCED_REWARD, BALANCED_WEIGHT, OVERLAP, *map(ratio, crossed)]
    if layout.predicted:
        means += [*map(residual_moment, crossed), RESIDUAL * BALANCED_WEIGHT]
        group += [PREDICTED_VALUE, PREDICTED_REWARD]
    wanted = Needs(
        means=tuple(means),
        groups=(tuple(group), (WEIGHTED_REWARD, WEIGHT), (OVERLAP_REWARD, REWARD)),
        extremes=(REWARD, WEIGHT),
        tails=(WEIGHT, BALANCED_WEIGHT),
        histograms=(WEIGHT, BALANCED_WEIGHT),
    )
    return unite(wanted.bind(target) for target in layout.targets)


def rows(
    layout: Layout, number: int = ROWS, seed: int = 1
) -> tuple[AnyArray, dict[str, FloatArray]]:
    """Rows of every logger; some are zero for another one, and for a target."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, len(layout.loggers), number).astype(np.uint8)
    columns = {name: rng.uniform(0.1, 0.9, number) for name in layout.columns}
    for place, label in enumerate(layout.crossed):
        others = codes != layout.loggers.index(label)
        columns[f"p_{place}"][others & (rng.random(number) < 0.2)] = 0.0
        if layout.propensity:
            mine = ~others
            columns["propensity"][mine] = columns[f"p_{place}"][mine]
    if len(layout.crossed) < len(layout.loggers):  # some row may have no mixture else
        columns["p_0"] = np.maximum(columns["p_0"], 0.05)
    columns["t_0"][rng.random(number) < 0.2] = 0.0
    columns["reward"] = rng.normal(3.0, 1.0, number)
    if layout.logs:
        for name in layout.columns:
            if name[:2] in {"p_", "t_"} or name in {"propensity", "estimated_mixture"}:
                with np.errstate(divide="ignore"):
                    columns[name] = np.log(columns[name]) - 800.0  # far below doubles
    return codes, columns


def layout(**more: object) -> Layout:
    plain = Layout(LOGGERS, LOGGERS, (0.5, 0.3, 0.2), TARGETS, tolerance=1e-6)
    return Layout(**(plain.__dict__ | more))


LAYOUTS = {
    "plain": layout(),
    "without propensity": layout(propensity=False),
    "a logger that is not crossed": layout(crossed=("a", "c"), shares=(0.6, 0.4)),
    "given mixture": layout(mixture=True),
    "reward model": layout(valued=TARGETS, predicted=True),
    "logarithms": layout(logs=True),
    "logarithms without propensity": layout(logs=True, propensity=False),
    "logarithms with a mixture": layout(logs=True, mixture=True),
}


@pytest.mark.parametrize("size", [1, 97, ROWS])
@pytest.mark.parametrize("name", LAYOUTS)
def test_both_kernels_give_the_same_moments(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "FEWEST_ROWS", 1)
    monkeypatch.setattr(workspace, "MOST_ROWS", 40)  # chunks, so that they are merged too
    given = LAYOUTS[name]
    assert_kernels_agree(given, list(cut(*rows(given), size)))


def assert_kernels_agree(
    given: Layout, batches: list[tuple[AnyArray, dict[str, FloatArray]]]
) -> None:
    program = Program(needs(given))
    expected, found = (
        to_moments(kernel(given, program).together(batches), program, given.loggers)
        for kernel in (Kernel, CompiledKernel)
    )
    assert_moments_agree(found, expected)
    for logger in given.loggers:
        for term in program.needs.histograms:
            np.testing.assert_array_equal(
                found[logger].histograms[term], expected[logger].histograms[term]
            )
        for term in program.needs.tails:
            np.testing.assert_allclose(
                found[logger].tails[term], expected[logger].tails[term], rtol=1e-13
            )
    assert max(expected["a"].means) > UNSUPPORTED / 1e3  # some logger is zero somewhere


MANY = 3 * workspace.ROWS + 7  # ordered in four turns


def test_more_rows_than_are_ordered_at_once_and_more_than_a_tail_holds() -> None:
    codes, columns = rows(LAYOUTS["plain"], MANY)
    assert min(np.bincount(codes)) > 3 * LONGEST_TAIL
    middle = len(codes) // 2
    halves = list(cut(codes, columns, middle + 1))
    assert middle > workspace.ENOUGH
    assert_kernels_agree(LAYOUTS["plain"], halves[:1])
    found, expected = (
        kernel(LAYOUTS["plain"], Program(needs(LAYOUTS["plain"]))).together(halves)
        for kernel in (CompiledKernel, Kernel)
    )
    np.testing.assert_array_equal(found.count, np.bincount(codes))
    for mine, theirs in zip(found.tails, expected.tails, strict=True):
        for group in range(len(LOGGERS)):
            top = np.sort(theirs[group])[-LONGEST_TAIL:]
            np.testing.assert_allclose(np.sort(mine[group])[-LONGEST_TAIL:], top, rtol=1e-13)


def test_columns_need_neither_be_doubles_nor_lie_together() -> None:
    given = LAYOUTS["plain"]
    codes, columns = rows(given)
    columns["reward"] = np.round(columns["reward"] * 8)
    plain = CompiledKernel(given, Program(needs(given))).together([(codes, columns)])
    odd: dict[str, AnyArray] = {name: np.repeat(v, 3)[::3] for name, v in columns.items()}
    odd["reward"] = columns["reward"].astype(np.int16)
    for values in odd.values():
        values.flags.writeable = False
    found = CompiledKernel(given, Program(needs(given))).together([(codes[::1], odd)])
    np.testing.assert_array_equal(found.means, plain.means)
    for mine, theirs in zip(found.blocks, plain.blocks, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_what_is_kept_on_disk_names_no_class_of_ours() -> None:
    given = LAYOUTS["plain"]
    CompiledKernel(given, Program(needs(given))).together([rows(given)])
    assert loops.add_batch.signatures
    for signature in loops.add_batch.signatures:  # or it could not be read once one moved
        assert b"poolwise" not in pickle.dumps(signature)


@pytest.mark.parametrize("kernel", [Kernel, CompiledKernel])
def test_a_logarithm_too_small_for_a_double_is_a_logger_that_does_not_play(
    kernel: type[Kernel | CompiledKernel],
) -> None:
    given = layout(logs=True, loggers=("a",), crossed=("a", "b"), shares=(1.0, 0.0))
    wanted = Needs(means=(unsupported_weight("b"), weight_moment("b"))).bind("t")
    program = Program(wanted)
    names = given.columns
    columns = {name: np.array([0.0 if name != "p_1" else -1000.0]) for name in names}
    codes = np.zeros(1, dtype=np.uint8)
    found = to_moments(kernel(given, program).together([(codes, columns)]), program, ("a",))
    values = [found["a"].mean(t) for t in wanted.means]
    assert values == [1.0, UNSUPPORTED]  # e ** -1000 is 0


def bad(name: str, value: float, number: int = ROWS) -> dict[str, FloatArray]:
    columns = rows(LAYOUTS["plain"], number)[1]
    columns[name][-3] = value
    return columns


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward", np.nan),
        ("reward", np.inf),
        ("p_1", -1e-300),
        ("p_1", 1.0000001),
        ("t_0", np.nan),
        ("t_1", 1.5),
        ("propensity", 0.0),
        ("propensity", 0.999),
    ],
)
@pytest.mark.parametrize("kernel", [Kernel, CompiledKernel])
def test_a_bad_row_is_refused(
    kernel: type[Kernel | CompiledKernel], name: str, value: float
) -> None:
    given = LAYOUTS["plain"]
    fine = kernel(given, Program(needs(given)))
    fine.together([rows(given)])
    with pytest.raises(BadRowsError):
        fine.together([(rows(given)[0], bad(name, value))])
    with pytest.raises(BadRowsError):
        fine.together(cut(rows(given, MANY)[0], bad(name, value, MANY), fine.rows))


@pytest.mark.parametrize("kernel", [Kernel, CompiledKernel])
def test_a_product_beyond_doubles_makes_no_mean_that_looks_right(
    kernel: type[Kernel | CompiledKernel],
) -> None:
    given = LAYOUTS["plain"]
    program = Program(Needs(groups=((BALANCED_REWARD,),)).bind("t"))
    codes, columns = rows(given)
    last = int(np.flatnonzero(codes == 0)[-1])
    columns["reward"][last] = 1.7e308
    columns["t_0"][last], columns["propensity"][last] = 0.9, 0.1
    for place in range(len(LOGGERS)):
        columns[f"p_{place}"][last] = 0.1
    found = to_moments(kernel(given, program).together([(codes, columns)]), program, LOGGERS)
    assert not np.isfinite(found["a"].means[0])
    assert np.isfinite(found["b"].means[0])


def test_only_wanted_pairs_are_multiplied() -> None:
    given = LAYOUTS["plain"]
    program = Program(needs(given))
    fours = plan_of(given, program).fours
    places = [program.scatter_places[block] for block in program.blocks]
    asked = sum(int(np.tril(program.asked[np.ix_(p, p)]).sum()) for p in places)
    assert fours[:, 1].sum() == asked
    assert asked < sum(len(p) * (len(p) + 1) // 2 for p in places)


# Which kernel runs.


def test_the_kernel_depends_on_the_rows_unless_one_is_asked_for() -> None:
    assert kernel_for(COMPILED_FROM - 1) is Kernel
    assert kernel_for(COMPILED_FROM) is CompiledKernel
    assert kernel_for(1, compiled=True) is CompiledKernel
    assert kernel_for(10**9, compiled=False) is Kernel


def test_without_numba_the_other_kernel_runs_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel_for(10**9) is Kernel


def test_a_numba_that_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "poolwise.engines.compiled", None)  # an import fails
    with pytest.warns(UserWarning, match="evaluations take longer without it"):
        assert kernel_for(10**9) is Kernel
    with refused(UsageError):
        kernel_for(1, compiled=True)


def test_a_table_in_memory_is_counted_with_its_labels() -> None:
    labels = pa.array(["b", None, "a", "b", "b", None])
    table = pa.table({"who": labels, "r": np.arange(6.0)})
    found = frame_of(table, {"reward": "r"}, "who", threads=2)
    assert found is not None
    assert found.counts == {"b": 3, "a": 1, None: 2}
    (part,) = found.parts
    assert [b.column("logger").to_pylist() for b in part] == [labels.to_pylist()]
