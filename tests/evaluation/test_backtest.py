"""Each logger is predicted from the others: exactly in expectation, at its level by chance."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw
from benchmarks.backtest import SHAPES, measure
from poolwise.errors import UsageError
from tests.support.messages import check_findings, refused
from tests.support.reference import Reference, log_of, random_table

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# two contexts and three actions; the others never play the last action of c in the first
CONTEXTS = np.array([0.25, 0.75])
REWARDS = np.array([[3.0, -1.0, 0.5], [2.0, 4.0, -0.25]])
POLICIES = {
    "a": np.array([[0.5, 0.5, 0.0], [0.125, 0.5, 0.375]]),
    "b": np.array([[0.25, 0.75, 0.0], [0.625, 0.25, 0.125]]),
    "c": np.array([[0.375, 0.25, 0.375], [0.25, 0.125, 0.625]]),
}
ROWS = {"a": 3_200, "b": 6_400, "c": 9_600}
THREE: dict[str, Any] = {"propensities": {i: f"p_{i}" for i in "abc"}}
KEYS = {
    "logger", "rows", "supported", "effective_rows", "predicted", "predicted_error", "earned",
    "earned_error", "z", "p_value", "adjusted", "p_without", "lower", "upper", "fits",
}  # fmt: skip


def proportional_log(**roles: Any) -> pw.Log:  # noqa: ANN401 - any role
    """Each context and action in proportion to its probability."""
    rows = []
    for logger, policy in POLICIES.items():
        for x, y in np.ndindex(policy.shape):
            count = ROWS[logger] * CONTEXTS[x] * policy[x, y]
            assert count == int(count)
            row: dict[str, Any] = {"logger": logger, "reward": REWARDS[x, y]}
            row |= {f"p_{i}": p[x, y] for i, p in POLICIES.items()}
            rows += [row] * int(count)
    crossed = {i: f"p_{i}" for i in POLICIES}
    source = pa.Table.from_pylist(rows)
    return pw.Log(source, logger="logger", reward="reward", propensities=crossed, **roles)


def test_both_sides_have_the_expectation_of_the_supported_rewards() -> None:
    found = pw.backtest(proportional_log())
    joint = {i: CONTEXTS[:, None] * p for i, p in POLICIES.items()}
    for logger, prediction in found.loggers.items():
        others = sum(ROWS[i] * p for i, p in POLICIES.items() if i != logger)
        played = others > 0
        expected = float(np.sum(joint[logger] * REWARDS * played))
        assert prediction.predicted == pytest.approx(expected, rel=1e-9)
        assert prediction.earned == pytest.approx(expected, rel=1e-9)
        assert prediction.supported == pytest.approx(np.sum(joint[logger] * played), rel=1e-9)
        assert prediction.rows == ROWS[logger]
        assert abs(prediction.z) < 1e-6
    assert found["c"].supported == 1 - 0.25 * 0.375
    assert found["a"].supported == found["b"].supported == 1.0
    assert found.fits
    assert found.misfit == ""


def columns_of(table: pa.Table) -> dict[str, Any]:
    return {name: np.asarray(table[name]) for name in table.column_names}


def by_definition(table: pa.Table, logger: str, bound: float) -> dict[str, float]:
    """Predict one of two loggers by the formula of the module, row by row."""
    columns = columns_of(table)
    (other,) = {"a", "b"} - {logger}
    own, rest = columns["logger"] == logger, columns["logger"] == other
    ratio = columns[f"p_{logger}"] / columns[f"p_{other}"]
    reward = columns["reward"]
    weight, supported = np.where(ratio <= bound, ratio, 0.0)[rest], (ratio <= bound)[own]
    sides = [(weight * reward[rest], weight), (supported * reward[own], 1.0 * supported)]
    covariances = [np.cov(*side) / len(side[0]) for side in sides]
    slope = sum(c[0, 1] for c in covariances) / sum(c[1, 1] for c in covariances)
    effective = weight.sum() ** 2 / (weight**2).sum()
    inflation = effective / (effective - 1)
    gap = sides[0][1].mean() - sides[1][1].mean()
    residual = np.array([1.0, -slope])
    of_own = np.array([0.0, slope])  # the supported share is in the prediction as well
    errors = residual @ covariances[0] @ residual + of_own @ covariances[1] @ of_own
    return {
        "predicted": sides[0][0].mean() - slope * gap,
        "predicted_error": math.sqrt(inflation * errors),
        "earned": sides[1][0].mean(),
        "earned_error": math.sqrt(covariances[1][0, 0]),
        "supported": supported.mean(),
        "effective_rows": effective,
    }


def test_a_prediction_is_what_its_formula_says() -> None:
    table = random_table(np.random.default_rng(3), {"a": 300, "b": 200})
    found = pw.backtest(log_of(table))
    for logger, others in (("a", 200), ("b", 300)):
        expected = by_definition(table, logger, bound=others / 50)
        row = found[logger].to_dict()
        assert expected["supported"] < 1
        assert {k: row[k] for k in expected} == pytest.approx(expected, rel=1e-9)


def test_the_interval_contains_what_was_earned_if_and_only_if_the_logger_fits() -> None:
    for name in ("five", "rewards"):
        shape = replace(SHAPES[name], rows=(600,) * 5)
        for seed in range(3):
            found = pw.backtest(shape.log(seed), level=0.9)
            for p in found.loggers.values():
                assert p.interval.lower < p.predicted < p.interval.upper
                assert p.fits == (p.adjusted > 0.1) == (p.earned in p.interval)
                assert p.p_value <= p.adjusted
                assert (p.z > 0) == (p.predicted > p.earned)


def test_every_engine_and_scale_gives_the_same_predictions() -> None:
    table = random_table(np.random.default_rng(4), {"a": 300, "b": 200, "c": 250})
    first = pw.backtest(log_of(table, **THREE)).to_dicts()
    slow = pw.backtest(log_of(table, **THREE), engine=Reference()).to_dicts()
    logs = table
    for name in ("p", "p_a", "p_b", "p_c"):
        place = logs.column_names.index(name)
        logs = logs.set_column(place, name, pa.array(np.log(columns_of(table)[name])))
    scaled = pw.backtest(log_of(logs, log_probabilities=True, **THREE)).to_dicts()
    keys = ("predicted", "predicted_error", "earned", "earned_error", "supported")
    for rows in (slow, scaled):
        for left, right in zip(first, rows, strict=True):
            assert [right[k] for k in keys] == pytest.approx([left[k] for k in keys], rel=1e-9)


def test_densities_are_predicted_too() -> None:
    rng = np.random.default_rng(5)
    parts = []
    for logger, centre in (("a", 0.0), ("b", 0.5)):
        price = rng.normal(centre, 1.0, 1_000)
        density = [np.exp(-((price - m) ** 2) / 2) / math.sqrt(2 * math.pi) for m in (0.0, 0.5)]
        demand = (rng.random(1_000) < 1 / (1 + np.exp(price))) * 1.0
        columns = {"logger": [logger] * 1_000, "reward": demand}
        parts.append(pa.table(columns | {"p_a": density[0], "p_b": density[1]}))
    crossed = {"a": "p_a", "b": "p_b"}
    table = pa.concat_tables(parts)
    roles: dict[str, Any] = {"logger": "logger", "reward": "reward", "densities": True}
    found = pw.backtest(pw.Log(table, propensities=crossed, **roles))
    assert found.fits
    assert found["a"].predicted == pytest.approx(0.5, abs=0.1)


def test_users_with_rows_of_several_loggers_widen_the_errors() -> None:
    shape = replace(SHAPES["users"], rows=(500,) * 3)
    log = shape.log(0)
    doubled = pa.concat_tables([log.source, log.source])
    plain = pw.backtest(replace(log, cluster=None))
    copied = pw.backtest(replace(log, source=doubled, cluster="user"))
    for logger, p in plain.loggers.items():
        assert copied[logger].predicted == pytest.approx(p.predicted, rel=0.05)
        assert copied[logger].predicted_error > 0.9 * p.predicted_error  # not less by 0.71


@pytest.mark.slow
@pytest.mark.parametrize("name", ["five", "two", "small", "private"])
def test_clean_logs_fit_at_the_level(name: str) -> None:
    """Of 40 logs, 8 or more alarms have a probability of 0.1%; 3.5 errors of each spread."""
    tally = measure(SHAPES[name], 40)
    assert tally.alarms <= 7
    assert np.abs(tally.means).max() < 3.5 / math.sqrt(40)
    assert np.abs(tally.spreads - 1).max() < 3.5 / math.sqrt(2 * 39)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, shape in SHAPES.items() if shape.fault])
def test_a_spoilt_logger_is_named(name: str) -> None:
    assert sum(SHAPES[name].rows) == 20_000
    tally = measure(SHAPES[name], 5)
    assert tally.alarms == tally.named == tally.right == 5


def test_leaving_out_each_logger_names_the_one_that_does_not_fit() -> None:
    log = replace(SHAPES["rewards"], size=0.2, rows=(800,) * 4).log(1)
    found = pw.backtest(log)
    assert found.misfit == "v2"
    table: Any = log.source
    rest = {i: p for i, p in log.by_label.items() if i != "v2"}
    kept = table.filter(pa.array([i != "v2" for i in table["logger"].to_pylist()]))
    others = pw.backtest(replace(log, source=kept, propensities=rest))
    least = min(p.adjusted for p in others.loggers.values())
    assert found["v2"].p_without == pytest.approx(least, rel=1e-9)
    assert all((p.p_without or 0.0) < 0.001 for i, p in found.loggers.items() if i != "v2")
    check_findings(found.findings, "backtest-off", "copies-unknown")


def test_which_of_two_logs_is_wrong_is_unknown() -> None:
    shape = replace(SHAPES["rewards"], size=0.2, rows=(2_000, 2_000), spoilt=1)
    found = pw.backtest(shape.log(0))
    assert not found.fits
    assert found.misfit == ""
    check_findings(found.findings, "backtest-off", "copies-unknown")


def test_loggers_with_other_actions_are_not_compared() -> None:
    rows = {"logger": ["a"] * 20 + ["b"] * 20, "reward": [0.0, 1.0] * 20}
    probs = {"p_a": [1.0] * 20 + [0.0] * 20, "p_b": [0.0] * 20 + [1.0] * 20}
    log = pw.Log(
        pa.table(rows | probs),
        logger="logger",
        reward="reward",
        propensities={"a": "p_a", "b": "p_b"},
    )
    found = pw.backtest(log)
    for p in found.loggers.values():
        assert (p.supported, p.predicted, p.earned, p.z, p.adjusted) == (0, 0, 0, 0, 1)
        assert (p.interval.lower, p.interval.upper) == (-math.inf, math.inf)
        assert p.fits
        assert not p.compared
    assert "nothing to compare" in found.sentence
    assert json.loads(found.to_json())["loggers"][0]["upper"] is None
    assert [f.code for f in found.findings][:1] == ["backtest-unsupported"]
    check_findings(found.findings[:1], "backtest-unsupported")


def test_rewards_that_never_vary_and_loggers_of_one_row_are_no_alarm() -> None:
    table = random_table(np.random.default_rng(6), {"a": 50, "b": 1, "c": 40})
    found = pw.backtest(log_of(table, **THREE))
    flat = pw.backtest(log_of(table, **THREE | {"reward": "0.3"}))
    for result in (found, flat):
        for row in result.to_dicts():
            assert not any(isinstance(v, float) and math.isnan(v) for v in row.values())
            assert row["lower"] != row["upper"]
    assert flat.fits


def test_a_logger_that_was_trained_on_another_log_has_a_finding() -> None:
    log = replace(proportional_log(), trained_on={"b": ["a"]})
    found = pw.backtest(log)
    assert next(f.code for f in found.findings) == "target-trained-on-log"


TABLE = random_table(np.random.default_rng(7), {"a": 60, "b": 40})


@pytest.mark.parametrize(
    "log",
    [
        log_of(random_table(np.random.default_rng(7), {"a": 60}), propensities={"a": "p_a"}),
        log_of(TABLE, propensities=None),
        log_of(TABLE, propensities={"a": "p_a", "b": None}),
        log_of(TABLE, period="logger"),
    ],
    ids=["one logger", "own", "partly", "period"],
)
def test_a_log_without_others_or_their_probabilities_is_refused(log: pw.Log) -> None:
    with refused(UsageError):
        pw.backtest(log)
    with refused(UsageError):
        pw.evaluate(log, {"new": "t"}, backtest=True)


def test_saved_moments_are_refused() -> None:
    summary = pw.summarise(log_of(TABLE), {"new": "t"})
    with refused(UsageError):
        pw.backtest(log_of(TABLE), engine=summary)


def test_more_loggers_than_columns_are_refused() -> None:
    labels = [f"v{k}" for k in range(65)]
    table = pa.table({"logger": labels * 2, "reward": [0.0, 1.0] * 65, "p": [0.5] * 130})
    log = pw.Log(
        table, logger="logger", reward="reward", propensities=dict.fromkeys(labels, "p")
    )
    with refused(UsageError):
        pw.backtest(log)


def test_every_rendering_has_the_same_numbers(tmp_path: Path) -> None:
    found = pw.backtest(replace(SHAPES["rewards"], size=0.2, rows=(800,) * 4).log(1))
    whole = found.to_dict()
    assert set(whole) == {"sentence", "fits", "misfit", "level", "loggers", "warnings"}
    assert all(set(row) == KEYS for row in whole["loggers"])  # type: ignore[attr-defined]
    assert [set(row) for row in found.to_dicts()] == [KEYS | {"level"}] * 4
    parsed = json.loads(found.to_json())
    assert parsed == {"schema_version": 1, "result": "backtest", **whole}
    text = found.to_text()
    assert max(map(len, text.splitlines())) <= 80
    assert " ".join(text.split()).startswith(found.sentence)
    assert "v2" in found._repr_html_()
    path = tmp_path / "backtest.html"
    found.save(path)
    page = path.read_text("utf-8")
    assert found.sentence.replace("'", "&#39;") in page
    assert 'id="chart-backtest"' in page
    (chart,) = found.charts().values()
    drawn = json.dumps(chart.to_dict())
    assert all(f'"{i}"' in drawn for i in found.loggers)


def test_an_evaluation_has_the_same_backtest(tmp_path: Path) -> None:
    table = random_table(np.random.default_rng(8), {"a": 300, "b": 200, "c": 250})
    log = log_of(table, **THREE)
    alone, tested = pw.backtest(log), pw.evaluate(log, {"new": "t", "old": "p_a"})
    plain = pw.evaluate(log, {"new": "t", "old": "p_a"}, backtest=False)
    assert plain.backtest is None
    assert "backtest" not in plain.to_dict()
    assert tested.backtest is not None
    assert tested.backtest.to_dicts() == alone.to_dicts()
    left, right = (e.to_dicts() for e in (plain, tested))
    for row, other in zip(left, right, strict=True):
        for key in ("value", "std_error", "lower", "upper"):
            assert row[key] == pytest.approx(other[key], rel=1e-9)
    assert "Predicted from the other logs" in tested.to_text()
    assert "Predicted from the other logs" not in str(tested)
    tested.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<h2>Backtest</h2>" in page
    assert 'data-spec="chart-backtest"' in page
    plain.save(tmp_path / "plain.html")
    assert "<h2>Backtest</h2>" not in (tmp_path / "plain.html").read_text("utf-8")


def test_a_misfit_is_a_finding_of_the_evaluation() -> None:
    log = replace(SHAPES["rewards"], size=0.2, rows=(800,) * 4).log(1)
    evaluation = pw.evaluate(log, {"new": "p0"}, "calibrated", backtest=True)
    assert "backtest-off" in {w["code"] for w in evaluation.warnings}
