"""A distribution per row plays the role of the probability of the logged action."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.engines.warehouse import Warehouse
from poolwise.errors import LogError, UsageError
from poolwise.evaluation.summarise import query_text
from poolwise.log.log import Log
from tests.support.messages import refused
from tests.support.postgres import load, server
from tests.support.reference import assert_same

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

ROWS = 400
KINDS = ("map", "struct", "json", "list")
NAMES = ("p_v1", "p_v2", "t")
ITEMS = ("ale", "bun", "cod's")
MAP = pa.map_(pa.string(), pa.float64())


def draw(seed: int = 5) -> tuple[dict[str, Any], dict[str, NDArray[np.float64]]]:
    """Return the columns of a log, and the distribution of each policy."""
    rng = np.random.default_rng(seed)
    every = {name: rng.dirichlet([2.0, 1.0, 1.5], ROWS) for name in NAMES}
    logger = np.where(rng.random(ROWS) < 0.5, "v1", "v2")
    own = np.where((logger == "v1")[:, None], every["p_v1"], every["p_v2"])
    action = (own.cumsum(axis=1) < rng.random((ROWS, 1))).sum(axis=1).clip(0, 2)
    columns = {
        "logger": logger,
        "click": (rng.random(ROWS) < 0.2 + 0.2 * action).astype(float),
        "item": np.array(ITEMS)[action],
        "number": action,
        "flag": action > 0,
        "land": rng.choice(["x", "y"], ROWS),
        "age": rng.normal(size=ROWS),
        "user": rng.integers(0, 90, ROWS),
        "day": np.sort(rng.integers(0, 3, ROWS)),
        "allowed": pa.array([ITEMS] * ROWS, pa.list_(pa.string())),
    }
    return columns, every


def column(kind: str, matrix: NDArray[np.float64], keys: tuple[Any, ...] = ITEMS) -> pa.Array:
    """Return distributions as a column of a kind."""
    rows = [dict(zip(keys, line, strict=True)) for line in matrix.tolist()]
    if kind == "map":
        return pa.array([list(row.items()) for row in rows], MAP)
    if kind == "json":
        return pa.array([json.dumps(row) for row in rows])
    return pa.array(matrix.tolist() if kind == "list" else rows)


def flat(*, logs: bool = False) -> pa.Table:
    """Return the log with a column for each probability of the logged action."""
    columns, every = draw()
    here = np.arange(ROWS), columns["number"]
    probs = {name: np.log(p[here]) if logs else p[here] for name, p in every.items()}
    return pa.table(columns | probs | {"average": 0.5 * (probs["p_v1"] + probs["p_v2"])})


def whole(kind: str, *, logs: bool = False) -> pa.Table:
    """Return the log with whole distributions in columns of the same names."""
    columns, every = draw()
    every["average"] = 0.5 * (every["p_v1"] + every["p_v2"])
    wide = {k: column(kind, np.log(p) if logs else p) for k, p in every.items()}
    return pa.table(columns | wide)


ROLES: dict[str, Any] = {
    "reward": "click",
    "logger": "logger",
    "action": "item",
    "eligible": "allowed",
    "propensities": {"v1": "p_v1", "v2": "p_v2"},
}
TARGETS = {"new": "t", "half": "0.5 * t + 0.5 * p_v1", "first": "p_v1"}


def ask(source: Any, **roles: Any) -> pw.Evaluation:  # noqa: ANN401 - any source and roles
    return pw.evaluate(Log(source, **(ROLES | roles)), TARGETS)


@cache
def ask_flat(**roles: str | None) -> pw.Evaluation:
    """What columns of the probabilities of the logged action give."""
    return ask(flat(), **roles)


SOURCES = [
    *((kind, source) for kind in KINDS for source in ("arrow", "pandas", "parquet", "select")),
    *((kind, "polars") for kind in KINDS if kind != "map"),  # of which Polars has none
    ("json", "csv"),
]


@pytest.mark.parametrize(("kind", "source"), SOURCES)
def test_results_are_those_of_flat_columns(kind: str, source: str, tmp_path: Path) -> None:
    table, path = whole(kind), tmp_path / "log.parquet"
    pq.write_table(table, path, row_group_size=150)
    if source == "csv":
        path = tmp_path / "log.csv"
        pc.write_csv(table.drop_columns(["allowed"]), path)
    frame: Any = table
    if source == "pandas":  # dictionaries are structs, or maps if their keys differ
        frame = pd.DataFrame(
            {k: list(v.to_pylist()) for k, v in zip(table.column_names, table, strict=True)}
        )
        for name in NAMES if kind == "map" else ():
            frame[name] = [dict(row) for row in frame[name]]
    elif source == "polars":
        frame = pl.from_arrow(table)
    elif source == "select":
        frame = f"SELECT * FROM '{path}' WHERE true"
    elif source in {"parquet", "csv"}:
        frame = str(path)
    roles = {"eligible": None} if source == "csv" else {}
    assert_same(ask(frame, **roles), ask_flat(**roles), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "roles",
    [
        {"cluster": "user"},
        {"period": "day"},
        {"on_fault": "drop"},
        {"propensities": "p_{logger}"},
        {"propensity": "p_v1", "propensities": None},
        {"propensity": "p_v1", "propensities": None, "mixture": "average"},
    ],
    ids=["cluster", "period", "drop", "pattern", "own", "mixture"],
)
def test_combinations(kind: str, roles: dict[str, Any]) -> None:
    assert_same(ask(whole(kind), **roles), ask_flat(**roles), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_logarithms(kind: str) -> None:
    found = ask(whole(kind, logs=True), log_probabilities=True)
    assert_same(found, ask(flat(logs=True), log_probabilities=True), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_policies_in_python_segments_and_backtests(kind: str, tmp_path: Path) -> None:
    target = {"new": "t", "table": {"ale": 0.5, "bun": 0.25, "cod's": 0.25}}
    logs = [Log(source, **ROLES, context=["age"]) for source in (whole(kind), flat())]
    found, expected = (pw.evaluate(log, target, by="land") for log in logs)
    assert_same(found, expected, rel=1e-12)
    assert found.to_dicts() == expected.to_dicts()
    scored = pw.score_log(logs[0], target, tmp_path / "scored.parquet")
    assert_same(pw.evaluate(*scored), pw.evaluate(logs[1], target), rel=1e-12)
    assert str(pw.backtest(logs[0])) == str(pw.backtest(logs[1]))


@pytest.mark.parametrize("kind", ["map", "json"])
@pytest.mark.parametrize("action", ["number", "flag"])
def test_keys_are_compared_as_text(kind: str, action: str) -> None:
    columns, every = draw()
    keys: tuple[Any, ...] = ("0", "1", "2")
    if action == "flag":
        keys = ("false", "true", "other")
        every = {k: np.c_[p[:, 0], 1 - p[:, 0], 0 * p[:, 0]] for k, p in every.items()}
    wide = pa.table(columns | {k: column(kind, p, keys) for k, p in every.items()})
    here = np.arange(ROWS), columns[action].astype(int)
    narrow = pa.table(columns | {k: p[here] for k, p in every.items()})
    assert_same(ask(wide, action=action), ask(narrow, action=action), rel=1e-12)


def test_numbers_as_keys_of_maps_and_in_lists() -> None:
    columns, every = draw()
    kind = pa.map_(pa.int32(), pa.float32())
    rows = {k: [list(enumerate(line)) for line in p.tolist()] for k, p in every.items()}
    wide = pa.table(columns | {k: pa.array(v, kind) for k, v in rows.items()})
    narrow = flat()
    for name in NAMES:
        place = narrow.column_names.index(name)
        narrow = narrow.set_column(place, name, narrow[name].cast(pa.float32()).cast("double"))
    assert_same(ask(wide, action="number"), ask(narrow, action="number"), rel=1e-12)
    lists = {k: column("list", p) for k, p in every.items()}
    lists["allowed"] = pa.array([[0, 1, 2]] * ROWS)
    assert_same(ask(pa.table(columns | lists), action="number"), ask_flat(), rel=1e-12)


def test_distributions_in_fields_of_structs() -> None:
    inner = whole("map")
    names = ["p_v1", "p_v2", "t", "item"]
    parts = [inner.column(name).combine_chunks() for name in names]
    outer = inner.append_column("e", pa.StructArray.from_arrays(parts, names))
    log = Log(outer, **(ROLES | {"propensities": "e.p_{logger}", "action": "e.item"}))
    found = pw.evaluate(
        log, {"new": "e.t", "half": "0.5 * e.t + 0.5 * e.p_v1", "first": "p_v1"}
    )
    assert_same(found, ask_flat(), rel=1e-12)


def learned(log: Log) -> pw.Learned:
    return pw.learn(log, features=["age"], folds=2, strengths=[0.1])


def test_learning_reads_the_entries() -> None:
    """The distributions give another policy than flat columns, and the same loggers."""
    narrow, expected, *others = (
        learned(Log(source, **ROLES)) for source in (flat(), whole("map"), whole("json"))
    )
    for found in others:
        assert found.estimate.value == pytest.approx(expected.estimate.value, rel=1e-9)
    for name in expected.evaluation.rows:
        values = [
            found.evaluation[name].estimates["balanced"].value for found in (narrow, expected)
        ]
        assert values[0] == pytest.approx(values[1], rel=1e-9)


# Missing entries and faults.


def three(distributions: pa.Array, **roles: Any) -> Log:  # noqa: ANN401 - any roles
    rows = {
        "logger": ["v1", "v1", "v2"],
        "click": [1.0, 0.0, 1.0],
        "item": ["a", "b", "a"],
        "probs": distributions,
        "q": [0.5, 0.5, 0.5],
        "allowed": [["a", "b"]] * 3,
    }
    own: dict[str, Any] = {
        "reward": "click",
        "logger": "logger",
        "propensity": "q",
        "action": "item",
    }
    return Log(pa.table(rows), **(own | roles))


def maps(*rows: dict[str, float | None] | None) -> pa.Array:
    return pa.array([None if row is None else list(row.items()) for row in rows], MAP)


COMPLETE = {
    "map": maps({"a": 0.5, "b": 0.5}, {"a": 1.0}, {"b": 0.4, "c": 0.59995}),
    "struct": pa.array([{"a": 0.5, "b": 0.5}, {"a": 1.0}, {"b": 0.4, "c": 0.59995}]),
    "json": pa.array(['{"a": 0.5, "b": 0.5}', ' {"a": 1}', '{"b": 0.4, "c": 0.59995}']),
    "text": pa.array(['{"a": 0.5, "b": 0.5}', "0", "0.0"]),
}


@pytest.mark.parametrize("kind", COMPLETE)
def test_a_missing_entry_is_0_if_the_others_sum_to_1(kind: str) -> None:
    found = pw.evaluate(three(COMPLETE[kind]), {"new": "probs"}, "naive")
    assert found["new"].estimates["naive"].value == pytest.approx((0.5 / 0.5 * 1 + 0 + 0) / 3)


FAULTY = {
    "missing": maps({"a": 0.5}, {"a": 0.6}, {"a": 0.2}),
    "missing-fields": pa.array([{"a": 0.5}, {"a": 0.6}, {"a": 0.2, "b": None}]),
    "empty": pa.array(["{}", '{"b": 0.5}', '{"a": 0.5}']),
    "null": maps({"a": 0.5, "b": None}, None, {"a": None, "b": 0.5}),
    "scores": maps({"a": 0.9, "b": 0.8}, {"a": 0.3, "b": 0.8}, {"a": -0.1, "b": 1.1}),
    "nan": pa.array([[0.5, float("nan")], [0.5], [0.5, 0.5]]),
    "json": pa.array(['{"a": 0.5, "a": 0.5}', "{oops", '{"a": "x"}']),
    "above": maps({"a": 1.05}, {"b": 1.0}, {"a": 1.0}),
}


@pytest.mark.parametrize("name", FAULTY)
def test_faults_of_distributions(name: str) -> None:
    log = three(FAULTY[name], **({"eligible": "allowed"} if name == "nan" else {}))
    with refused(LogError):
        pw.evaluate(log, {"new": "probs"})
    dropped = pw.check(log, {"new": "probs"})
    assert sum(fault.rows for fault in dropped.faults) == {
        "missing": 1, "missing-fields": 1, "empty": 1, "null": 3, "scores": 2, "nan": 2,
        "json": 3, "above": 1,
    }[name]  # fmt: skip


def test_coalesce_says_that_a_missing_entry_is_0() -> None:
    log = three(FAULTY["missing"])
    found = pw.evaluate(log, {"new": "coalesce(probs, 0)"}, "naive")
    assert found["new"].estimates["naive"].value == pytest.approx((1 + 0 + 0.4) / 3)
    with pytest.raises(LogError):  # but it hides no scores
        pw.evaluate(three(FAULTY["scores"]), {"new": "coalesce(probs, 0)"})


def test_good_rows_are_kept() -> None:
    log = three(FAULTY["missing"], on_fault="drop")
    found = pw.evaluate(log, {"new": "probs"}, "naive")
    assert found.rows == {"v1": 1, "v2": 1}
    assert found["new"].estimates["naive"].value == pytest.approx((1 + 0.4) / 2)


@pytest.mark.parametrize(
    "roles",
    [{"action": None}, {"densities": True}, {}],
    ids=["no-action", "densities", "no-list"],
)
def test_what_a_distribution_requires(roles: dict[str, Any]) -> None:
    with refused(UsageError):
        pw.evaluate(three(FAULTY["nan"], **roles), {"new": "probs"})


def test_json_without_an_action() -> None:
    with refused(LogError):
        pw.evaluate(three(COMPLETE["json"], action=None), {"new": "probs"})


def test_texts_of_labels_are_no_distributions() -> None:
    log = three(COMPLETE["json"])
    found = pw.evaluate(log, {"new": "CASE WHEN item = 'a' THEN q ELSE 0.5 END"}, "naive")
    assert found["new"].estimates["naive"].value == pytest.approx(2 / 3)


# Printed queries, saved moments and other engines.


CAST = ROLES | {"propensities": {"v1": "p_v1::JSON", "v2": "p_v2::JSON"}}


def printed(dialect: str, roles: dict[str, Any], target: str) -> str:
    return query_text(Log(table="log", **roles), "log", {"new": target}, dialect)


def test_a_cast_says_what_a_printed_query_reads() -> None:
    answers = []
    for source, roles, target in ((whole("json"), CAST, "t::JSON"), (flat(), ROLES, "t")):
        with duckdb.connect() as connection:
            connection.register("log", source)
            lines = connection.execute(printed("duckdb", roles, target)).fetchall()
            answers.append([line[:-1] for line in lines])  # the last is a hash of the question
    assert answers[0] == answers[1]
    assert len(answers[0]) == 2
    assert "FROM_JSON" in printed("spark", CAST, "t::JSON")
    with refused(UsageError):
        printed("bigquery", CAST, "t::JSON")


def test_saved_moments(tmp_path: Path) -> None:
    for name, source in (("flat", flat()), ("map", whole("map"))):
        pw.summarise(Log(source, **ROLES), TARGETS).save(tmp_path / f"{name}.parquet")
    found = [
        pw.evaluate(
            Log(flat(), **ROLES), TARGETS, engine=pw.Summary.load(tmp_path / f"{name}.parquet")
        )
        for name in ("flat", "map")
    ]
    assert_same(found[1], found[0], rel=1e-12)


@pytest.fixture
def postgres() -> Iterator[Any]:
    connection = server().connect()
    yield connection
    connection.close()


@pytest.mark.parametrize("kind", ["jsonb", "json", "text", "list"])
def test_postgres(kind: str, postgres: Any) -> None:  # noqa: ANN401 - a connection
    table = whole("list" if kind == "list" else "json")
    load(postgres, table, "log_of_entries")
    if kind in {"jsonb", "json"}:
        with postgres.cursor() as cursor:
            for name in (*NAMES, "average"):
                cursor.execute(
                    f"ALTER TABLE log_of_entries ALTER {name} TYPE {kind} USING {name}::{kind}"
                )
        postgres.commit()
    roles = dict(ROLES)
    log = Log(table="log_of_entries", connection=postgres, **roles)
    found = pw.evaluate(log, TARGETS)
    load(postgres, flat(), "flat_log")
    narrow = Log(table="flat_log", connection=postgres, **roles)
    assert_same(found, pw.evaluate(narrow, TARGETS), rel=1e-12)
    expected = learned(Log(table, **ROLES)).estimate.value
    assert learned(log).estimate.value == pytest.approx(expected, rel=1e-9)


def test_faults_in_postgres(postgres: Any) -> None:  # noqa: ANN401 - a connection
    rows = three(FAULTY["empty"])
    load(postgres, rows.source, "log_of_entries")
    with postgres.cursor() as cursor:
        cursor.execute("ALTER TABLE log_of_entries ALTER probs TYPE jsonb USING probs::jsonb")
    postgres.commit()
    log = replace(rows, source=None, table="log_of_entries", connection=postgres)
    with refused(LogError):
        pw.evaluate(log, {"new": "probs"})
    engine = Warehouse(dialect="redshift")
    with refused(UsageError):
        pw.evaluate(log, {"new": "probs::JSON"}, engine=engine)
