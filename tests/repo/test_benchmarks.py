"""Benchmarks: rivals give the numbers of `evaluate`, and limits report correctly."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from benchmarks import (
    alarms,
    arithmetic,
    bets,
    coverage,
    data,
    decisive,
    learners,
    limits,
    periods,
    policies,
    rivals,
    run,
    shapes,
    spark_speed,
    speed,
    speed_chart,
)
from benchmarks.kept import DOCS, Key, Measurement, add_speed, part, read_speed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from poolwise.evaluation.results import Evaluation

ROWS, TARGETS, LOGGERS = 2_000, 2, 3


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Files go to a folder of the test."""
    place = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "FOLDER", place)
        patch.setattr(policies, "FOLDER", place)
        yield place


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    del folder
    return data.log_file(ROWS, targets=TARGETS, loggers=LOGGERS)


@pytest.fixture(scope="module")
def ours(path: Path) -> Evaluation:
    log = pw.Log(
        path,
        logger="logger",
        reward="reward",
        propensity="p",
        propensities=data.loggers_of(path),
    )
    targets = {name: name for name in data.targets_of(path)}
    return pw.evaluate(log, targets, ["naive", "balanced", pw.Weighted(divergence="own")])


@pytest.fixture(scope="module")
def all_five(path: Path) -> Evaluation:
    log = pw.Log(
        path,
        logger="logger",
        reward="reward",
        propensity="p",
        propensities=data.loggers_of(path),
    )
    return pw.evaluate(log, {name: name for name in data.targets_of(path)}, which_logs=False)


# -- rivals --------------------------------------------------------------------------------


def test_a_log_has_the_rows_loggers_and_targets_asked_for(path: Path) -> None:
    assert pq.read_metadata(path).num_rows == ROWS
    assert data.loggers_of(path) == {"v0": "p_0", "v1": "p_1", "v2": "p_2"}
    assert data.targets_of(path) == ["t_0", "t_1"]


def test_a_file_is_made_once(path: Path) -> None:
    before = path.stat().st_mtime_ns
    assert data.log_file(ROWS, targets=TARGETS, loggers=LOGGERS) == path
    assert path.stat().st_mtime_ns == before


def test_numpy_gives_our_numbers(path: Path, ours: Evaluation) -> None:
    found = rivals.numpy_pandas(path)
    assert list(found) == ["t_0", "t_1"]
    for target, guesses in found.items():
        estimates = ours[target].estimates
        for name, guess in guesses.items():
            assert guess.value == pytest.approx(estimates[name].value, rel=1e-9)
        for name in ("naive", "balanced"):  # our weighted also counts its shares' error
            assert guesses[name].std_error == pytest.approx(estimates[name].std_error, rel=1e-9)


def test_numpy_gives_all_five_of_our_numbers(path: Path, all_five: Evaluation) -> None:
    found = rivals.numpy_five(path)
    for target, guesses in found.items():
        estimates = all_five[target].estimates
        assert set(guesses) == set(estimates)
        for name, guess in guesses.items():
            assert guess.value == pytest.approx(estimates[name].value, rel=1e-9), name
        for name in ("naive", "balanced", "self-normalised"):
            assert guesses[name].std_error == pytest.approx(estimates[name].std_error, rel=1e-9)
        # ours also counts what the slopes cost
        assert guesses["calibrated"].std_error == pytest.approx(
            estimates["calibrated"].std_error, rel=0.01
        )


def test_duckdb_gives_our_numbers(path: Path, ours: Evaluation) -> None:
    found = rivals.duckdb_balanced(path)
    assert list(found) == ["t_0", "t_1"]
    for target, guess in found.items():
        balanced = ours[target].estimates["balanced"]
        assert guess.value == pytest.approx(balanced.value, rel=1e-9)
        assert guess.std_error == pytest.approx(balanced.std_error, rel=1e-9)


def test_the_bootstrap_surrounds_our_numbers(path: Path, ours: Evaluation) -> None:
    found = rivals.obp_bootstrap(path)
    assert list(found) == ["t_0", "t_1"]
    for target, bounds in found.items():
        for name in ("naive", "balanced"):
            expected = ours[target].estimates[name].value
            assert bounds[name].value == pytest.approx(expected, rel=1e-9)
        assert all(bound.lower < bound.value < bound.upper for bound in bounds.values())


def test_its_weighted_divides_variances_by_n(path: Path) -> None:
    frame = pq.read_table(path).to_pandas()
    for target, bounds in rivals.obp_bootstrap(path).items():
        rows = (frame["reward"] * frame[target] / frame["p"]).groupby(frame["logger"])
        precision = rows.count() / rows.var(ddof=0)
        expected = (precision * rows.mean()).sum() / precision.sum()
        assert bounds["weighted"].value == pytest.approx(expected, rel=1e-12)


def test_the_bootstrap_of_equal_rows_has_no_width() -> None:
    assert rivals.bootstrapped(np.full(50, 2.5)) == (2.5, 2.5, 2.5)


def test_the_bootstrap_is_as_wide_as_theory_says() -> None:
    values = np.repeat([0.0, 1.0], 500)
    found = rivals.bootstrapped(values, rounds=2_000)
    width = 2 * 1.96 * np.sqrt(0.25 / 1000)
    # a quantile of 2,000 means has a standard error of 3% of the width at most
    assert found.upper - found.lower == pytest.approx(width, rel=0.12)


# -- policies ------------------------------------------------------------------------------


def test_models_scored_by_us_are_the_models(folder: Path) -> None:
    del folder
    path = policies.policy_file(ROWS)
    table = pq.read_table(path)
    x = np.column_stack([table[name].to_numpy() for name in policies.NAMES])
    action = table["action"].to_numpy()
    prob = {
        name: model.predict_proba(x)[np.arange(ROWS), model.classes_.searchsorted(action)]
        for name, model in policies.models().items()
    }
    logger = np.array(table["logger"].to_pylist())
    names = [name for name in prob if name != "target"]
    mixture = sum(np.mean(logger == name) * prob[name] for name in names)
    expected = np.mean(table["reward"].to_numpy() * prob["target"] / mixture)
    target = {"target": policies.models()["target"]}
    found = pw.evaluate(policies.policy_log(path), target, "balanced")["target"]
    assert found.estimates["balanced"].value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("what", speed.WORK)
def test_every_kind_of_work_runs(what: str, path: Path) -> None:
    file = policies.policy_file(ROWS) if what in run.MODELS else path
    file = learners.learning_file(ROWS) if what == run.LEARN.what else file
    speed.WORK[what](file)()


def test_a_measurement_is_of_a_process_of_its_own(path: Path) -> None:
    held = np.ones(64 << 20, dtype=np.int64)  # 512 MB here are not the child's
    found = speed.measured("decode", path, path)
    assert held.any()
    assert found.seconds > 0
    assert 20 < found.megabytes < 500


def test_work_without_end_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "LONGEST", 0.01)
    given_up = speed.measured("decode", path, path)
    assert given_up == (np.inf, np.inf)
    assert "given up" in speed_chart.table({Key("decode", ROWS): given_up})
    found = {Key("evaluate", 10**6, 100): given_up}
    assert not limits.report(found)[1]
    assert arithmetic.per_row(found) == []


# -- the grid and the limits ---------------------------------------------------------------


def test_rivals_are_left_out_where_they_need_too_much() -> None:
    assert run.fits(Key("obp", 10**6))
    assert not run.fits(Key("obp", 10**6, 100))  # minutes
    assert not run.fits(Key("numpy", 10**8))  # tens of gigabytes
    assert run.fits(Key("evaluate", 10**8))


def test_the_grid_holds_what_the_limits_need() -> None:
    assert set(limits.needed(run.MOST)) <= set(run.grid(run.MOST))
    assert set(limits.needed(run.LARGE)) <= set(run.grid(run.LARGE))
    assert all(key.rows <= run.MOST for key in run.grid(run.MOST))


def test_the_grid_covers_rows_targets_and_loggers() -> None:
    keys = run.grid(run.LARGE)
    assert {key.rows for key in keys} == {10**5, 10**6, 10**7, 10**8}
    assert {key.targets for key in keys} == {1, 10, 100}
    assert {2, 5, 20} <= {key.loggers for key in keys}


@pytest.mark.parametrize(("seconds", "verdict"), [(10.0, "ok"), (10.01, "FAIL")])
def test_a_limit_is_kept_up_to_its_bound(seconds: float, verdict: str) -> None:
    found = {Key("evaluate", 10**6, 100): Measurement(seconds, 300.0)}
    lines, well = limits.report(found)
    (line,) = [line for line in lines if "not measured" not in line]
    assert line.split()[1] == verdict
    assert well == (verdict == "ok")


@pytest.mark.parametrize(("ours", "holds"), [(2.0, True), (2.1, False)])
def test_a_rival_must_be_slower_by_a_factor(ours: float, *, holds: bool) -> None:
    limit = next(limit for limit in limits.LIMITS if limit.at_least)
    slow, quick = limit.keys
    found = {slow: Measurement(10.0, 1.0), quick: Measurement(ours, 1.0)}
    assert limit.value(found) == 10.0 / ours
    assert limit.holds(found) == holds


def test_what_was_not_measured_does_not_fail() -> None:
    lines, well = limits.report({})
    assert well
    assert len(lines) == len(limits.LIMITS)


# -- what is kept --------------------------------------------------------------------------


def test_measurements_are_appended_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "speed.csv"
    first, second = Key("decode", 10**6), Key("decode", 10**5)
    add_speed({first: Measurement(1.0, 100.0)}, file)
    kept = add_speed({first: Measurement(2.0, 50.0), second: Measurement(0.5, 10.0)}, file)
    assert kept == {second: (0.5, 10.0), first: (2.0, 50.0)}
    assert list(kept) == [second, first]  # in the order of the sizes
    assert file.read_text("utf-8").startswith("what,rows,targets,loggers,seconds,megabytes\n")


def test_the_arithmetic_is_a_multiplication() -> None:
    kept = {
        Key("evaluate", 10**7): Measurement(1.0, 400.0),
        Key("evaluate", 10**8): Measurement(9.0, 450.0),
        Key("file", 10**8): Measurement(0.0, 7600.0),
    }
    (cost,) = arithmetic.per_row(kept)
    assert cost == (10**8, 1, 76.0, 1.8e-7, 450.0)  # two cores for 9 s, of the largest
    due = arithmetic.bill(cost, 10**12)
    assert due.terabytes == pytest.approx(76)
    assert due.core_hours == pytest.approx(50)
    assert due.machines == 2  # of 32 cores, for an hour
    assert due.dollars == pytest.approx(50 * arithmetic.PRICE_PER_CORE_HOUR)
    assert due.scanned_dollars == pytest.approx(76_000 * arithmetic.PRICE_PER_GB_SCANNED)


def test_the_pages_are_what_the_scripts_give() -> None:
    page, kept = speed_chart.PAGE.read_text("utf-8"), read_speed()
    assert part(page, speed_chart.MARKER) == speed_chart.text(kept)
    assert part(page, arithmetic.MARKER) == arithmetic.text(kept)
    of_shapes = shapes.table(shapes.read_shapes())
    assert part(page, shapes.MARKER) == f"{shapes.BEFORE}\n\n{of_shapes}"
    found = alarms.tables(alarms.read_tallies())
    assert part(alarms.PAGE.read_text("utf-8"), alarms.MARKER) == found
    of_spark = spark_speed.table_of(spark_speed.read_lines())
    assert part(page, spark_speed.MARKER) == f"{spark_speed.BEFORE}\n\n{of_spark}"


def test_a_rival_left_out_is_a_dash() -> None:
    kept = {
        Key("decode", 10**6, 100): Measurement(0.5, 200.0),
        Key("evaluate", 10**6, 100): Measurement(12.34, 1300.0),
    }
    line = speed_chart.table(kept).splitlines()[-1]
    assert line == "| 1,000,000 | 100 | 5 | 0.50 (200) | 12.3 (1,300) | - | - | - | - | - |"


def test_the_chart_has_a_panel_for_each_size_and_quantity() -> None:
    kept = {
        Key("decode", 10**5): Measurement(0.1, 90.0),
        Key("decode", 10**6): Measurement(0.5, 100.0),
        Key("decode", 10**6, 10): Measurement(0.9, 200.0),
        Key("predict", 10**6, 1, 3): Measurement(0.3, 400.0),
    }
    chart = speed_chart.spec(kept)
    panels = [panel for row in chart["vconcat"] for panel in row["hconcat"]]
    shown = [len(chart["datasets"][panel["data"]["name"]]) for panel in panels]
    assert shown == [2, 2, 1] * 2  # by rows, by targets, by loggers


@pytest.mark.parametrize("control", [0.0, periods.CONTROL])
def test_a_log_of_periods_in_memory_is_what_an_evaluation_reads(control: float) -> None:
    setting = periods.Setting("thompson", control, 3, 40)
    periods.checked(setting, 0)
    lines = list(periods.measured(setting, 0, 2))
    assert {(line["target"], line["estimator"]) for line in lines} == {
        (target, name) for target in periods.TARGETS for name in periods.ESTIMATORS
    }


def test_the_table_of_periods_sums_up_its_parts() -> None:
    def line(name: str, first: int, logs: int, **numbers: float) -> periods.Line:
        keys = {"algorithm": "greedy", "control": 0.0, "periods": 10, "rows": 50}
        labels = {"target": "best", "estimator": name, "first": first, "logs": logs}
        return {k: str(v) for k, v in (keys | labels | numbers).items()}

    lines = [
        line("period-balanced", 0, 100, error=0.0, squared_error=1.0, coverage=0.9),
        line("period-balanced", 1, 300, error=0.4, squared_error=3.0, coverage=1.0),
        line("weighted-reward-free", 0, 100, squared_error=4.0),
        line("weighted-reward-free", 1, 300, squared_error=12.0),
        line("weighted-reward-free", 2, 300, squared_error=99.0),  # not of the same logs
    ]
    (summary,) = periods.summaries(lines, "period-balanced").values()
    assert summary.logs == 400
    assert summary.coverage == pytest.approx(0.975)
    assert summary.relative == pytest.approx(0.5)
    assert summary.bias == pytest.approx(0.3 / (2.5 - 0.09) ** 0.5)
    last = periods.table(lines).splitlines()[-1]
    assert last.startswith("| period-balanced | 10 | 50 | 400 | 0.975 to 0.975 | 0.50 to 0.50")


@pytest.mark.slow
def test_a_log_of_periods_is_evaluated_with_a_model() -> None:
    setting = periods.Setting("greedy", 0.2, 3, 60)
    lines = list(periods.measured(setting, 0, 2, modelled=True))
    assert {line["estimator"] for line in lines} == {periods.WITH_MODEL}
    assert all(float(line["squared_error"]) < 0.1 for line in lines)


@pytest.mark.slow
def test_bets_are_measured_by_the_code_of_the_package() -> None:
    line = bets.fixed("B mixed", 300, 2)
    assert 0.5 < float(str(line["width"])) < 0.9
    assert float(str(line["coverage"])) >= 0.9
    learned = bets.adaptive("greedy", 0.2, 20)
    assert float(str(learned["coverage"])) >= 0.8
    assert float(str(learned["difference"])) >= 0.8
    assert float(str(bets.difference(1)["width"])) < 0.6
    early = bets.early(2.0, 3)
    assert float(str(early["width"])) < 1.6 * float(str(early["fresh"]))
    assert bets.tables([line, learned, early, bets.difference(1)]).count("|---") == 3


# Coverage of nominal 95% intervals that the documentation claims, by the kind of problem.
CLAIMED = {
    "hard": (0.93, 1.0),
    "easy": (0.94, 0.965),
    "1,000 rows": (0.94, 0.965),
    **dict.fromkeys(("3 rewarded", "10 rewarded", "30 rewarded"), (0.95, 1.0)),
    "lognormal": (0.94, 1.0),
    **dict.fromkeys(("40 users", "100 users", "1000 users"), (0.93, 1.0)),
    "paired": (0.93, 0.97),
    **dict.fromkeys(("5 targets", "20 targets"), (0.94, 0.975)),
}


def test_recorded_coverage_is_that_claimed() -> None:
    with (coverage.FIGURES / "coverage.csv").open(encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["estimator"] != "naive"]
    assert CLAIMED.keys() <= {line["group"] for line in lines}
    for line in lines:
        least, most = CLAIMED.get(line["group"], (0.0, 1.0))
        assert least <= float(line["skew"]) <= most, line
        assert line["group"] != "1,000 rows" or float(line["width"]) <= 1.03, line
        assert int(line["logs"]) >= coverage.LOGS or line["group"] == "20 targets", line


def test_the_table_of_decisive_rows_is_what_was_measured() -> None:
    page = (DOCS / "which-estimator.md").read_text("utf-8")
    assert part(page, "decisive") == decisive.table()
    assert {*decisive.read_lines()} >= {kind.name for kind in decisive.KINDS}
    assert all(int(line["logs"]) >= 1_000 for line in decisive.read_lines().values())


def test_every_claim_about_findings_holds() -> None:
    tallies = alarms.read_tallies()
    clean = [tally for tally in tallies if tally.part == "clean"]
    logs = sum(tally.logs for tally in clean)
    assert logs >= 300
    assert sum(tally.counts["alarm"] for tally in clean) <= 0.01 * logs
    assert sum(tally.counts["warning"] for tally in clean) <= 0.05 * logs
    found = {t.name: t.counts["own"] / t.logs for t in tallies if t.part == "spoilt"}
    weak = {name for name, share in found.items() if share < 0.95}
    assert weak <= set(alarms.VERSIONS)  # whose power by rows the page shows
    assert min(found.values()) > 0.85


@pytest.mark.parametrize("name", ["a target in percent", "1/K logged for a softmax"])
def test_a_spoilt_log_raises_its_own_finding(name: str) -> None:
    found = alarms.spoilt_log(0, name, 0, rows=6_000)
    assert set(found.codes) & set(alarms.DEFECTS[name].codes)
