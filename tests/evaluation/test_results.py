"""Every rendering starts from the same dictionaries, so none can disagree."""

from __future__ import annotations

import html
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier

from poolwise import Log, compare, evaluate
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import RefusedError
from poolwise.evaluation.output import cut
from tests.support.messages import check_findings, refused
from tests.support.reference import PAPER, Reference, log_of, random_table

if TYPE_CHECKING:
    from poolwise.evaluation.results import Evaluation


ESTIMATE = {"estimator", "value", "std_error", "lower", "upper", "level"}


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    table = random_table(np.random.default_rng(70), {"a": 60, "b": 40})
    return evaluate(
        log_of(table), {"new": "t", "old": "p_a"}, PAPER, level=0.9, truth={"new": 1.0}
    )


@pytest.fixture(scope="module")
def hostile() -> Evaluation:
    """Names that look like markup, and numbers that JSON does not have."""
    rows = {"logger": ["<b>&[red]x"], "reward": [1.0], "p": [0.5], "t": [0.5]}
    log = Log(pa.table(rows), logger="logger", reward="reward", propensity="p")
    return evaluate(log, {"<script>[bold]": "t"})


def test_the_nested_dictionary_has_the_promised_names(evaluation: Evaluation) -> None:
    found = evaluation.to_dict()
    assert set(found) == {
        "headline", "baseline", "targets", "loggers", "reward",
        "warnings", "fingerprint", "comparison",
        "backtest",
    }  # fmt: skip
    targets = found["targets"]
    assert isinstance(targets, list)
    assert [t["target"] for t in targets] == ["new", "old"]
    for target in targets:
        assert [e["estimator"] for e in target["estimates"]] == list(PAPER)
        for estimate in target["estimates"]:
            assert set(estimate) == ESTIMATE | {"shares", "recommended", "assumes_fixed"}
            assert set(estimate["shares"]) == {"a", "b"}
            assert estimate["level"] == 0.9
            assert estimate["lower"] < estimate["value"] < estimate["upper"]
    loggers = found["loggers"]
    assert isinstance(loggers, list)
    assert [(row["logger"], row["rows"]) for row in loggers] == [("a", 60), ("b", 40)]


def test_the_truth_stands_beside_the_target_that_has_one(evaluation: Evaluation) -> None:
    new, old = json.loads(evaluation.to_json())["targets"]
    assert new["truth"] == 1.0
    assert "truth" not in old


def test_json_says_the_same_as_the_dictionary(evaluation: Evaluation) -> None:
    versioned = {"schema_version": 1, "result": "evaluation", **evaluation.to_dict()}
    assert json.loads(evaluation.to_json()) == versioned
    assert json.loads(evaluation.to_json(indent=None)) == versioned


def test_what_is_infinite_is_null_in_json(hostile: Evaluation) -> None:
    def fail(constant: str) -> None:
        raise AssertionError(constant)

    text = json.loads(hostile.to_json(), parse_constant=fail)
    (target,) = text["targets"]
    (naive,) = [e for e in target["estimates"] if e["estimator"] == "naive"]
    assert naive["value"] == 1.0
    assert naive["std_error"] is None
    assert naive["upper"] is None
    (flat,) = [row for row in hostile.to_dicts() if row["estimator"] == "naive"]
    assert flat["std_error"] == math.inf


def test_every_frame_has_the_flat_dictionaries(evaluation: Evaluation) -> None:
    flat = evaluation.to_dicts()
    assert len(flat) == 6
    assert set(flat[0]) == ESTIMATE | {"target"}
    assert evaluation.to_arrow().to_pylist() == flat
    assert evaluation.to_pandas().to_dict("records") == flat
    assert evaluation.to_polars().to_dicts() == flat


def test_the_flat_dictionaries_are_those_of_the_estimates(evaluation: Evaluation) -> None:
    for row in evaluation.to_dicts():
        result = evaluation[str(row["target"])]
        estimate = result.estimates[str(row["estimator"])]
        interval = result.intervals[str(row["estimator"])]
        assert row["value"] == estimate.value
        assert row["std_error"] == math.sqrt(estimate.variance)
        assert (row["lower"], row["upper"]) == (interval.lower, interval.upper)


def test_the_table_shows_what_people_ask_for(evaluation: Evaluation) -> None:
    text = evaluation.to_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for word in ("naive", "balanced", "weighted", "90%", "divergence", "effective", "share"):
        assert word in text
    for name in ("new", "old", "100 rows of 2 loggers", "true value is 1.0000"):
        assert name in text
    for estimate in evaluation["new"].estimates.values():
        assert str(estimate) in text
    logs = [grid.rows for grid in evaluation.grids() if grid.title == "Logs"]
    assert [[row[:2] for row in rows] for rows in logs] == [[["a", "60"], ["b", "40"]]] * 2


def test_the_table_says_whether_the_interval_has_the_truth(evaluation: Evaluation) -> None:
    lines = [
        line for line in evaluation.to_text().splitlines() if line.strip().startswith("naive")
    ]
    inside = 1.0 in evaluation["new"].intervals["naive"]
    assert lines[0].split()[-1] == ("yes" if inside else "no")


def test_markup_in_names_is_shown_and_not_obeyed(hostile: Evaluation) -> None:
    text, page = str(hostile), hostile._repr_html_()
    assert "<script>[bold]" in text
    assert "<b>&[red]x" in text
    assert "<script>" not in page
    assert "&lt;script&gt;[bold]" in page
    assert "&lt;b&gt;&amp;[red]x" in page
    assert "<b>&" not in page


def test_the_page_of_a_notebook_has_the_numbers_of_the_table(evaluation: Evaluation) -> None:
    page = evaluation._repr_html_()
    assert page.count("<table") == page.count("</table>") == 1
    assert evaluation.headline in html.unescape(page)
    for result in evaluation.targets.values():
        assert str(result.estimates[result.recommended]) in page


def test_warnings_name_their_target_where_there_are_several(hostile: Evaluation) -> None:
    assert {"code", "message"} <= set(hostile.warnings[0])
    assert [w["code"] for w in hostile.warnings] == ["few-effective-rows", "no-spread"]
    table = random_table(np.random.default_rng(71), {"a": 1})
    both = evaluate(log_of(table, ["a"]), {"one": "t", "two": "p"})
    assert {w.get("target") for w in both.warnings} >= {"one", "two"}
    assert not any("Target" in str(w["message"]) for w in both.warnings)
    shown = both.to_text(), both._repr_html_()
    assert all("): Targets 'one', 'two': " in html.unescape(s) for s in shown)
    assert not any("target" in w for w in hostile.warnings)  # one target needs no name


def test_one_target_alone_is_called_target() -> None:
    table = random_table(np.random.default_rng(72), {"a": 5, "b": 5})
    assert list(evaluate(log_of(table), "t").targets) == ["target"]
    with pytest.raises(KeyError):
        _ = evaluate(log_of(table), "t")["other"]


def test_one_cause_makes_one_finding() -> None:
    log = log_of(
        random_table(np.random.default_rng(73), {"a": 400, "b": 400}), propensities=None
    )
    found = evaluate(log, {"one": "p", "two": "0.5 * p"})
    told = [str(w["code"]) for w in found.warnings]
    assert told.count("no-cross-propensities") == 1
    assert not [code for code in told if code.endswith("-refused")]
    (cause,) = [f for f in found.findings if f.code == "no-cross-propensities"]
    check_findings([cause], "no-cross-propensities")


def test_the_comparison_is_that_of_compare(evaluation: Evaluation) -> None:
    table = random_table(np.random.default_rng(70), {"a": 60, "b": 40})
    same = compare(log_of(table), {"new": "t", "old": "p_a"}, estimator="balanced", level=0.9)
    assert evaluation.comparison is not None
    assert evaluation.to_dict()["comparison"] == same.to_dict()
    text = json.loads(evaluation.to_json())["comparison"]
    assert [t["target"] for t in text["targets"]] == [r.target for r in same.ranking]


def test_one_target_has_nothing_to_be_compared_with() -> None:
    table = random_table(np.random.default_rng(72), {"a": 5, "b": 5})
    found = evaluate(log_of(table), "t")
    assert found.comparison is None
    assert "comparison" not in found.to_dict()


# ---------------------------------------- fingerprint


TABLE = random_table(np.random.default_rng(80), {"a": 3_000, "b": 2_000})
TARGETS = {"new": "t", "old": "p_a"}


def fingerprint_of(table: pa.Table, **options: Any) -> str:  # noqa: ANN401 - of evaluate
    found = evaluate(log_of(table), TARGETS, **options)
    assert len(found.fingerprint) == 16
    return found.fingerprint


@pytest.mark.slow
def test_neither_order_nor_engine_nor_threads_nor_estimators_change_it() -> None:
    expected = fingerprint_of(TABLE)
    shuffled = TABLE.take(np.random.default_rng(81).permutation(len(TABLE)))
    others: list[tuple[pa.Table, dict[str, Any]]] = [
        (shuffled, {}),
        (TABLE, {"engine": Reference()}),
        (TABLE, {"engine": DuckDB(threads=1)}),
        (TABLE, {"estimators": "naive"}),
        (TABLE, {"interval": "student", "level": 0.9}),
    ]
    for table, options in others:
        assert fingerprint_of(table, **options) == expected


def test_the_order_of_targets_and_loggers_does_not_change_it() -> None:
    log: Log = log_of(TABLE, ["b", "a"])
    swapped = dict(reversed(TARGETS.items()))
    assert evaluate(log, swapped).fingerprint == fingerprint_of(TABLE)


@pytest.mark.parametrize("column", ["reward", "t", "p_a"])
def test_one_changed_number_changes_it(column: str) -> None:
    values = TABLE[column].to_numpy().copy()
    values[7] *= 0.99
    place = TABLE.column_names.index(column)
    changed = TABLE.set_column(place, column, pa.array(values))
    if column == "p_a":  # also the probability under the logger that wrote the row
        own = np.where(TABLE["logger"].to_numpy() == "a", values, TABLE["p"].to_numpy())
        changed = changed.set_column(TABLE.column_names.index("p"), "p", pa.array(own))
    assert fingerprint_of(changed) != fingerprint_of(TABLE)


def test_a_missing_row_or_another_name_changes_it() -> None:
    found = {
        fingerprint_of(TABLE),
        fingerprint_of(TABLE.slice(1)),
        evaluate(log_of(TABLE), {"new": "t", "older": "p_a"}).fingerprint,
    }
    assert len(found) == 3


def test_own_propensities_have_one_too() -> None:
    own = log_of(TABLE, propensities=None)
    assert evaluate(own, TARGETS).fingerprint != fingerprint_of(TABLE)
    table = TABLE.append_column("action", pa.array(np.arange(len(TABLE)) % 3))
    tree = DecisionTreeClassifier(max_depth=3)
    estimated = log_of(table, propensities=None, estimate_mixture=tree, action="action")
    assert evaluate(estimated, TARGETS).fingerprint == evaluate(own, TARGETS).fingerprint


@given(st.integers(1, 10_000), st.integers(0, 20), st.sampled_from([1, -1]))
def test_a_number_that_people_use_is_far_from_every_cut(
    top: int, power: int, sign: int
) -> None:
    for value in (sign * top / 2**power, sign * float(top)):
        for moved in (1 - 1e-13, 1 + 1e-13):
            assert cut(value, abs(value)) == cut(value * moved, abs(value) * moved)


@given(st.floats(1e-300, 1e300))
def test_eight_digits_count(value: float) -> None:
    assert cut(value, value) != cut(value * (1 + 1e-7), value * (1 + 1e-7))


def test_what_has_no_scale_is_nothing() -> None:
    assert cut(0.0, 0.0) == (0, 0)
    assert cut(math.inf, 1.0) == (0, 0)


@pytest.mark.parametrize("logger", ["logger", None])
def test_the_own_propensity_of_an_only_logger_is_the_mixture(logger: str | None) -> None:
    table = random_table(np.random.default_rng(5), {"a": 300})
    log = Log(table, reward="reward", logger=logger, propensity="p")
    label = "a" if logger else "log"
    crossed = replace(log, propensities={label: "p"})
    own = evaluate(log, {"new": "t"})
    assert own.to_dicts() == evaluate(crossed, {"new": "t"}).to_dicts()
    assert [f.code for f in own.findings] == []
    calibrated, naive = (own["new"].estimates[name] for name in ("calibrated", "naive"))
    assert calibrated.std_error < naive.std_error


def test_only_missing_propensities_are_named() -> None:
    table = random_table(np.random.default_rng(5), {"a": 30, "b": 30, "c": 30})
    known = {"a": "p_a", "b": None, "c": None}
    log = Log(table, reward="reward", logger="logger", propensity="p", propensities=known)
    check_findings(evaluate(log, {"new": "t"}).findings, "no-cross-propensities")
    with refused(RefusedError):
        evaluate(log, {"new": "t"}, "balanced")
