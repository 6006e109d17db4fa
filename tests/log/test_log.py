from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw
from poolwise import Log
from poolwise.errors import (
    Fault,
    Finding,
    LogError,
    MissingColumnError,
    PoolwiseError,
    UsageError,
    nearest,
)
from poolwise.evaluation.summarise import query_text
from poolwise.log.log import file_format
from poolwise.log.policy import Uniform
from tests.support.messages import refused
from tests.support.reference import log_of, random_table

TABLE: pa.Table = random_table(np.random.default_rng(80), {"a": 60, "b": 40})
ROLES: dict[str, Any] = {"logger": "policy", "reward": "click", "propensity": "p"}


def kinds(source: object) -> list[str]:
    return [part.kind for part in Log(source, **ROLES).parts]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.parquet", "parquet"),
        ("A.PARQUET", "parquet"),
        ("s3://bucket/logs/*.parquet", "parquet"),
        ("logs/day=1/*", "parquet"),
        ("logs", "parquet"),
        ("a.pq", "parquet"),
        ("a.csv", "csv"),
        ("a.csv.gz", "csv"),
        ("a.tsv", "csv"),
        ("a.jsonl", "json"),
        ("a.ndjson.zst", "json"),
        ("v1.2/a.json", "json"),
    ],
)
def test_the_ending_tells_the_format(path: str, expected: str) -> None:
    assert file_format(path) == expected
    assert kinds(path) == kinds(Path(path)) == [expected]


def test_an_unknown_ending_is_refused() -> None:
    with refused(UsageError):
        file_format("a.xlsx")


@pytest.mark.parametrize(
    "text",
    [
        "select * from x",
        "SELECT\n*\nFROM x",
        "  (select 1)",
        "with a as (select 1) select * from a",
        "from x",
        "values (1, 2)",
        "-- all\nselect 1",
        "/* all */ select 1",
        "select*from x",
    ],
)
def test_a_select_is_recognised(text: str) -> None:
    assert kinds(text) == ["select"]


@pytest.mark.parametrize("path", ["selected.parquet", "from_2024/x.csv", "within.parquet"])
def test_a_path_is_not_taken_for_a_select(path: str) -> None:
    assert "select" not in kinds(path)


def test_neighbouring_files_of_one_format_are_read_together() -> None:
    frame = pa.table({"x": [1]})
    parts = Log(["a.csv", "b.csv", "c.parquet", frame, "d.parquet"], **ROLES).parts
    assert [part.kind for part in parts] == ["csv", "parquet", "frame", "parquet"]
    assert parts[0].value == ("a.csv", "b.csv")


def test_files_of_two_loggers_are_never_read_together() -> None:
    roles = ROLES | {"logger": None}
    parts = Log({"a": ["1.csv", "2.csv"], "b": "3.csv", 4: "5.csv"}, **roles).parts
    found = [(part.logger, part.value) for part in parts]
    assert found == [("a", ("1.csv", "2.csv")), ("b", ("3.csv",)), ("4", ("5.csv",))]


def test_nothing_is_read_before_it_is_needed() -> None:
    assert kinds("does/not/exist.parquet") == ["parquet"]


@pytest.mark.parametrize(
    "change",
    [
        {"propensity": None},
        {"propensity": None, "propensities": {"a": "p_a", "b": None}},
        {"logger": None, "propensities": {"a": "p_a", "b": "p_b"}},
        {"on_fault": "ignore"},
        {"replay_tolerance": -1.0},
        {"replay_tolerance": float("nan")},
        {"reward_range": (1.0, 0.0)},
        {"reward_range": (1.0, 1.0)},
        {"context": "x"},
    ],
)
def test_roles_that_do_not_fit_together_are_refused(change: dict[str, Any]) -> None:
    with refused(UsageError):
        Log("a.parquet", **(ROLES | change))


def test_a_mapping_already_says_who_the_logger_is() -> None:
    with refused(UsageError):
        Log({"a": "a.parquet"}, **ROLES)


def test_all_problems_of_a_log_are_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        Log("a.parquet", reward="r", on_fault="no", reward_range=(2.0, 1.0))  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) == 3


def test_a_log_is_crossed_if_every_logger_scores_every_row() -> None:
    assert not Log("a.parquet", **ROLES).crossed
    assert not Log("a.parquet", **ROLES, propensities={}).crossed
    assert not Log("a.parquet", **ROLES, propensities={"a": "p_a", "b": None}).crossed
    assert Log("a.parquet", **ROLES, propensities={"a": "p_a", "b": "p_b"}).crossed


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("propensty", "propensity"),
        ("Reward", "reward"),
        ("rewards", "reward"),
        ("zzz", None),
    ],
)
def test_the_nearest_name_is_offered_if_one_is_near(name: str, expected: str | None) -> None:
    assert nearest(name, ["reward", "propensity", "logger"]) == expected


def test_errors_carry_their_data_and_belong_to_one_family() -> None:
    faults = [
        Fault("the reward is null", "a", 1_200, {"reward": None}, "Correct it."),
        Fault("the reward is null", "b", 1, {}, "Correct it."),
        Fault("the log has no rows", "", 0),
    ]
    error = LogError(faults)
    assert error.faults == tuple(faults)
    assert str(error).splitlines() == [
        "the log cannot be used as it is:",
        "- logger 'a': 1,200 rows: the reward is null (for example reward=None)",
        "- logger 'b': 1 row: the reward is null",
        "- the log has no rows",
        "Correct it.",  # said once
    ]
    missing = MissingColumnError({"rewrd": "reward"}, ["reward", "p"])
    assert missing.missing == {"rewrd": "reward"}
    assert missing.available == ("reward", "p")
    assert all(isinstance(e, PoolwiseError) for e in (error, missing))


def test_a_finding_reads_as_what_was_seen_and_what_to_do() -> None:
    assert str(Finding("code", "It rains.", "Take a coat.")) == "It rains. Take a coat."
    assert str(Finding("code", "It rains.")) == "It rains."


def test_a_notebook_shows_sources_and_roles_without_reading(tmp_path: Path) -> None:
    missing = tmp_path / "no.parquet"
    log = Log(
        {"a": missing, "b<": pa.table({"r": [1.0]})},
        reward="r * 2",
        propensity=Uniform(2),
        propensities={"a": None, "b<": "p_b"},
        context=["age", "country"],
    )
    cells = re.findall("<th>(.*?)</th><td>(.*?)</td>", log._repr_html_())
    assert cells == [
        ("source of a", str(missing)),
        ("source of b&lt;", "pyarrow Table"),
        ("reward", "r * 2"),
        ("propensity", "Uniform(actions=range(0, 2))"),
        ("propensities of b&lt;", "p_b"),
        ("context", "age, country"),
        ("timezone", "UTC"),
    ]


def test_a_notebook_shows_the_table_of_a_database_and_cuts_long_texts() -> None:
    page = Log(table="events", connection=object(), reward="r" * 999, propensity="p")
    assert "<th>table</th><td>events</td>" in page._repr_html_()
    assert "rrr…</td>" in page._repr_html_()
    assert len(page._repr_html_()) < 400


def test_a_pattern_is_applied_to_the_loggers_of_the_rows() -> None:
    log = replace(log_of(TABLE), propensities="p_{logger}")
    named = log_of(TABLE, propensities={"a": "p_a", "b": "p_b"})
    assert log.crossed
    assert log.by_label == {}
    for verb in (pw.evaluate, pw.compare):
        targets = {"new": "t", "old": "p_a"}
        assert verb(log, targets).to_dicts() == verb(named, targets).to_dicts()
    assert pw.evaluate(log, {"n": "t"}, engine=pw.summarise(log, {"n": "t"})).rows == {
        "a": 60,
        "b": 40,
    }
    assert (
        pw.plan(log, "t", half_width=0.1).to_dict()
        == pw.plan(named, "t", half_width=0.1).to_dict()
    )


def test_a_pattern_that_matches_no_column_is_one_message() -> None:
    with refused(MissingColumnError):
        pw.evaluate(replace(log_of(TABLE), propensities="q_{logger}"), "t")
    with refused(UsageError):
        log_of(TABLE, propensities="p_logger")
    with refused(UsageError):
        query_text(
            replace(log_of(TABLE), propensities="p_{logger}"), "log", {"n": "t"}, "duckdb"
        )
