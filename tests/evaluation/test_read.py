"""Logs that are read in another form: clean ones in one pass, others without their bad rows.

Probabilities that are missing where their policy was not live change no value.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import write_csv
from sklearn.dummy import DummyRegressor

from poolwise.engines import with_loggers
from poolwise.engines.duckdb import DuckDB
from poolwise.engines.parallel import Pass
from poolwise.errors import LogError, RefusedError, UsageError
from poolwise.evaluation import read
from poolwise.evaluation.check import check
from poolwise.evaluation.evaluate import compare, evaluate
from poolwise.evaluation.plan import plan
from poolwise.evaluation.watch import watch
from poolwise.log.log import Log
from tests.support.messages import check_findings, refused
from tests.support.periods import daily, period_mixture, with_holes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from poolwise.log.policy import Batch
    from poolwise.types import FloatArray

TARGETS = {"t": "t", "u": "p_b"}
ROLES: dict[str, Any] = {
    "reward": "reward",
    "logger": "logger",
    "propensities": {"a": "p_a", "b": "p_b"},
}


def columns(rows: int = 400) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    probs = {name: rng.uniform(0.2, 0.8, rows) for name in ("p_a", "p_b", "t")}
    logger = np.where(rng.random(rows) < 0.4, "a", "b")
    return {"logger": logger, "reward": rng.random(rows), "user": np.arange(rows) // 3, **probs}


def dirty(rows: int) -> dict[str, Any]:
    """Return columns with bad rows, among them all of the logger ``a`` if `rows` is 0."""
    table = columns()
    bad = table["logger"] == "a" if rows == 0 else np.arange(400) >= 400 - rows
    table["reward"][bad] = np.nan
    return table


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Passes that were made: True for each that left bad rows out."""
    passes: list[bool] = []
    sums = Pass.sum_layouts

    def noted(one: Pass, *args: Any) -> Any:  # noqa: ANN401 - as `sum_layouts`
        passes.append(one.layout.drop)
        return sums(one, *args)

    monkeypatch.setattr(Pass, "sum_layouts", noted)
    return passes


def test_a_clean_log_is_read_once(passes: list[bool], tmp_path: Path) -> None:
    pq.write_table(pa.table(columns()), tmp_path / "log.parquet")
    log = Log(str(tmp_path / "log.parquet"), **ROLES, on_fault="drop")
    dropping = evaluate(log, TARGETS)
    assert passes == [False]
    raising = evaluate(Log(pa.table(columns()), **ROLES), TARGETS)
    assert dropping.to_dict() == raising.to_dict()


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("roles", [{}, {"cluster": "user"}], ids=["rows", "clusters"])
def test_a_dirty_log_is_read_without_its_bad_rows(
    rows: int, roles: dict[str, Any], passes: list[bool]
) -> None:
    table = pa.table(dirty(rows))
    result = evaluate(Log(table, **ROLES, **roles, on_fault="drop"), TARGETS)
    assert passes[-1]
    assert "dropped-rows" in [f.code for f in result.findings]
    good = table.filter(np.isfinite(table["reward"].to_numpy()))
    labels = {"b": "p_b"} if rows == 0 else ROLES["propensities"]
    alone = evaluate(Log(good, **(ROLES | roles | {"propensities": labels})), TARGETS)
    assert result.rows == alone.rows
    for name, estimate in alone["t"].estimates.items():
        same = result["t"].estimates[name]
        assert same.value == pytest.approx(estimate.value, rel=1e-12)
        if not roles:  # buckets of clusters are the same, but not those of rows
            assert same.variance == pytest.approx(estimate.variance, rel=1e-12)


@pytest.mark.parametrize(
    "verb",
    [partial(compare, targets=TARGETS), partial(plan, target="t", half_width=0.1)],
    ids=["compare", "plan"],
)
def test_other_verbs_do_likewise(verb: Callable[..., Any], passes: list[bool]) -> None:
    clean, bad = (
        verb(Log(pa.table(table), **ROLES, on_fault="drop")).to_dict()
        for table in (columns(), dirty(40))
    )
    assert not passes[0]
    assert passes[-1]
    assert clean == verb(Log(pa.table(columns()), **ROLES)).to_dict()
    assert clean != bad


@pytest.mark.parametrize("baseline", [None, "a", "u"], ids=["none", "logger", "target"])
def test_a_clustered_comparison_opens_its_log_and_sums_its_rows_once(
    baseline: str | None, passes: list[bool], opens: list[Log]
) -> None:
    table = pa.table(columns())
    log = Log(table, **ROLES, cluster="user", on_fault="drop")
    compare(log, {"t": "t", "u": "0.5 * p_a + 0.5 * p_b"}, baseline=baseline)
    assert passes == [False]
    assert len(opens) == 1


def test_a_policy_in_python_is_scored_once() -> None:
    batches: list[int] = []

    class Half:
        """Plays the logged action half of the time."""

        def prob(self, batch: Batch) -> FloatArray:
            batches.append(len(batch))
            return np.full(len(batch), 0.5)

    log = Log(pa.table(columns()), **ROLES, action="user", on_fault="drop")
    evaluate(log, {"t": Half()})
    assert sum(batches) == len(columns()["t"])


@pytest.mark.parametrize(
    ("verb", "number"),
    [
        (partial(evaluate, targets=TARGETS), 1),
        (partial(compare, targets=TARGETS), 1),
        (partial(evaluate, targets=TARGETS, baseline="u", by="country"), 2),  # segments, too
    ],
    ids=["evaluate", "compare", "segments"],
)
@pytest.mark.parametrize("roles", [{"cluster": "user"}, {"cluster": "user // 2"}])
def test_clusters_are_read_once(
    verb: Callable[..., Any], number: int, roles: dict[str, Any], passes: list[bool]
) -> None:
    table = columns() | {"country": np.where(np.arange(400) % 2, "x", "y")}
    verb(Log(pa.table(table), **ROLES, **roles))
    assert len(passes) == number


LIVE = {"t": "t"}


def live(log: Log) -> tuple[str, ...]:
    """Return the loggers whose probabilities are missing where they are not live."""
    with DuckDB().open(with_loggers(log), {}) as rows:
        return rows.complete().live


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[Log]:
    """Logs that were opened."""
    opens: list[Log] = []
    original = DuckDB.open

    def noted(engine: DuckDB, log: Log, *args: Any) -> Any:  # noqa: ANN401 - as `open`
        opens.append(log)
        return original(engine, log, *args)

    monkeypatch.setattr(DuckDB, "open", noted)
    return opens


@pytest.mark.slow
@pytest.mark.parametrize("names", ["p_{logger}", None], ids=["pattern", "labels"])
@pytest.mark.parametrize("on_fault", ["raise", "drop"])
@pytest.mark.parametrize("kind", ["frame", "csv"])
def test_a_live_log_is_opened_at_most_twice(
    kind: str, on_fault: str, names: str | None, opens: list[Log], tmp_path: Path
) -> None:
    table = with_holes(daily(200))
    path = tmp_path / "log.csv"
    write_csv(table, path)
    labels = {n[2:]: n for n in table.schema.names if n.startswith("p_")}
    source = table if kind == "frame" else path
    log = log_of(source, propensities=names or labels, on_fault=on_fault)
    for verb in (evaluate, check):
        opens.clear()
        verb(log, LIVE)
        assert len(opens) == (2 if names else 1)


@pytest.mark.parametrize(("names", "number"), [("p_{logger}", 2), (None, 1)])
def test_a_complete_log_is_opened_once_and_for_a_pattern(
    names: str | None, number: int, opens: list[Log]
) -> None:
    table = daily(200)
    labels = {n[2:]: n for n in table if n.startswith("p_")}
    evaluate(log_of(pa.table(table), propensities=names or labels), LIVE)
    assert len(opens) == number


def log_of(table: object, **roles: Any) -> Log:  # noqa: ANN401 - of `Log`
    names = {"logger": "logger", "reward": "reward", "propensities": "p_{logger}"}
    return Log(table, **(names | {"period": "day", "reward_range": (0.0, 1.0)} | roles))


@pytest.mark.slow
def test_values_of_periods_are_those_of_a_complete_log() -> None:
    columns = daily()
    part, whole = (
        evaluate(log_of(table), LIVE) for table in (with_holes(columns), pa.table(columns))
    )
    values, others = (e["t"].over_time.values for e in (part, whole))  # type: ignore[union-attr]
    assert [v.value for v in values] == pytest.approx([v.value for v in others], rel=1e-12)
    errors = [v.std_error for v in others]
    assert [v.std_error for v in values] == pytest.approx(errors, rel=1e-12)
    rows = np.bincount(columns["day"])
    assert [v.share for v in values] == pytest.approx(rows / 900, rel=1e-12)
    estimate = part["t"].estimates["period-balanced"]
    expected = np.average([v.value for v in others], weights=rows)
    assert estimate.value == pytest.approx(expected, rel=1e-12)
    assert "balanced" not in part["t"].estimates
    check_findings(part.findings, "copies-unknown", "no-cross-propensities")


@pytest.mark.slow
def test_a_model_of_earlier_periods_does_without_them_too() -> None:
    columns = daily(300, seed=2)
    probs = np.unique(columns["t"])
    columns["action"] = np.unique(columns["t"], return_inverse=True)[1]
    log = log_of(with_holes(columns), action="action", context=["t"])
    result = evaluate(
        log, {"t": Fixed(probs / probs.sum())}, "period-dr", model=DummyRegressor()
    )
    day, reward = columns["day"], columns["reward"]
    predicted = np.array([reward[day < d].mean() if d else 0.0 for d in range(3)])[day]
    weight = (probs / probs.sum())[columns["action"]] / period_mixture(columns)
    expected = np.mean(predicted + weight * (reward - predicted))
    assert result["t"].estimates["period-dr"].value == pytest.approx(expected, rel=1e-12)


class Fixed:
    """A target that plays four actions with fixed probabilities."""

    actions = (0, 1, 2, 3)

    def __init__(self, probs: FloatArray) -> None:
        self.probs = probs

    def prob(self, batch: Any) -> FloatArray:  # noqa: ANN401 - a batch
        return self.probs.take(np.asarray(batch.action, dtype=int))

    def distribution(self, batch: Any) -> FloatArray:  # noqa: ANN401 - a batch
        return np.tile(self.probs, (len(batch), 1))


@pytest.mark.slow
def test_bets_are_those_of_a_complete_log() -> None:
    columns = daily()
    part, whole = (
        evaluate(log_of(table), LIVE, "naive", interval="betting")["t"].intervals["naive"]
        for table in (with_holes(columns), pa.table(columns))
    )
    assert part == whole


@pytest.mark.slow
@pytest.mark.parametrize("other", ["control", "v0"])
def test_a_watch_is_that_of_a_complete_log(other: str, tmp_path: Path) -> None:
    columns = daily()
    part, whole = (
        watch(tmp_path / f"{k}.npz", log_of(table), LIVE, better_than=other)
        for k, table in enumerate((with_holes(columns), pa.table(columns)))
    )
    assert part.to_dicts() == whole.to_dicts()
    assert part.difference == whole.difference


@pytest.mark.slow
def test_a_probability_that_is_missing_where_it_is_needed_stays_a_fault() -> None:
    log = log_of(with_holes(daily(), [(1, "control")]))
    assert live(log) == ()
    with pytest.raises(LogError):
        evaluate(log, LIVE)
    assert check(log, LIVE).faults
    assert live(log_of(pa.table(daily()))) == ()
    assert live(log_of(with_holes(daily()), period=None)) == ()


@pytest.mark.slow
def test_no_row_is_dropped_for_it() -> None:
    log = log_of(with_holes(daily()))
    dropped = evaluate(log_of(with_holes(daily()), on_fault="drop"), LIVE)
    assert sum(dropped.rows.values()) == 900
    assert dropped["t"].estimates == evaluate(log, LIVE)["t"].estimates
    assert not check(log, LIVE).faults


@pytest.mark.slow
def test_logarithms_are_missing_likewise() -> None:
    columns = daily()
    logs = {k: np.log(v) if k[0] in "pt" else v for k, v in columns.items()}
    names = {"propensities": "p_{logger}", "log_probabilities": True}
    ours, theirs = (
        evaluate(log_of(with_holes(c), **roles), LIVE)["t"].estimates["period-balanced"]
        for c, roles in ((logs, names), (columns, {}))
    )
    assert ours.value == pytest.approx(theirs.value, rel=1e-12)


@pytest.mark.slow
def test_other_verbs_say_what_they_cannot_do() -> None:
    log = log_of(with_holes(daily()))
    with refused(RefusedError) as error:
        evaluate(log, LIVE, "balanced")
    assert error.value.code == "balanced-refused"
    assert compare(log, LIVE, baseline="control").differences
    with refused(UsageError):
        compare(log, LIVE, baseline="v0")
    assert "period-balanced" in {
        r["estimator"] for r in plan(log, LIVE, half_width=0.1).to_dicts()
    }
    assert live(log) == ("v0", "v1", "v2")


def test_a_bucket_of_clusters_may_lack_a_logger() -> None:
    """Rows that are their own clusters have the values of rows, whatever the loggers' order."""
    rng = np.random.default_rng(0)
    label = np.where(np.arange(300) < 20, "b", "a")
    columns: dict[str, Any] = {n: rng.uniform(0.3, 0.9, 300) for n in ("p_a", "p_b", "t")}
    columns |= {"reward": rng.random(300), "day": rng.integers(0, 2, 300)}
    table = pa.table({**columns, "logger": label, "user": np.arange(300)})
    for order in (("a", "b"), ("b", "a")):
        names = {i: f"p_{i}" for i in order}
        roles: Any = {"reward": "reward", "logger": "logger", "propensities": names}
        rows = evaluate(Log(table, **roles, period="day"), "t")["target"].estimates
        units = evaluate(Log(table, **roles, period="day", cluster="user"), "t")
        for name, estimate in units["target"].estimates.items():
            assert estimate.value == pytest.approx(rows[name].value, rel=1e-9)


def test_loggers_are_left_out_of_rows_that_duckdb_reads(tmp_path: Path) -> None:
    """A stream of a query was used up by counting rows of loggers that it had left out."""
    table = pa.table(columns())
    lines = "".join(json.dumps(line) + "\n" for line in table.to_pylist())
    (tmp_path / "log.jsonl").write_text(lines, "utf-8")

    def errors(source: object, on_fault: Any) -> list[float]:  # noqa: ANN401 - a literal
        log = Log(source, **ROLES, cluster="user % 60", on_fault=on_fault)
        diagnosis = evaluate(log, TARGETS, "balanced", which_logs=True)["t"].diagnosis
        return [e for each in diagnosis.without.values() for e in each.values()]

    expected = errors(table, "raise")
    assert len(expected) > 1
    assert errors(str(tmp_path / "log.jsonl"), "drop") == pytest.approx(expected, rel=1e-12)


def test_columns_of_a_mixture_need_rows() -> None:
    """Of the engines without a kernel, none reads them."""
    import duckdb

    with duckdb.connect() as connection:
        connection.sql("CREATE TABLE logs AS SELECT 1 AS reward, 0.5 AS p, 0.5 AS t")
        log = Log(
            table="logs", connection=connection, reward="reward", propensity="p", mixture="p"
        )
        with refused(UsageError):
            evaluate(log, {"t": "t"})


def test_a_mistyped_baseline_asks_the_question_once(
    opens: list[Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    plain = read.open_supported

    def noted(*args: Any) -> Any:  # noqa: ANN401 - as `open_supported`
        asked.append(args)
        return plain(*args)

    monkeypatch.setattr(read, "open_supported", noted)
    log = Log(pa.table(columns()), **ROLES, on_fault="drop")
    with refused(UsageError):
        evaluate(log, TARGETS, baseline="aa")
    assert len(opens) == len(asked) == 1
