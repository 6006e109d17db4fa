"""The query is stable text, safe against any name, and right in every dialect."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from poolwise.engines.answer import decode
from poolwise.engines.saved_files import standalone_query
from poolwise.engines.sql import MomentsRequest
from poolwise.engines.warehouse import TITLES
from poolwise.errors import UsageError
from poolwise.evaluation.summarise import query_text
from poolwise.log.log import Log
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    others_play,
    others_weight,
    ratio,
    second_moment,
)
from poolwise.rows.roles import assign
from tests.support import queries
from tests.support.messages import refused
from tests.support.postgres import load, server
from tests.support.reference import Reference, assert_moments_agree, log_of, random_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.moments.moments import Moments

TARGETS = {"target": "t", "other": "t / 2"}
NEEDS = Needs(
    (REWARD, second_moment("a"), second_moment("b")),
    ((WEIGHT,), (WEIGHTED_REWARD, BALANCED_REWARD, BALANCED_WEIGHT, ratio("a"))),
    (WEIGHT,),
).bind("target")
OTHERS = Needs(
    groups=(
        (others_weight("a", 1.5), others_weight("a", 1.5) * REWARD, others_play("a", 1.5)),
        (others_weight("b", 2.5), others_weight("b", 2.5) * REWARD, others_play("b", 2.5)),
    )
)
SCRIPT = """
from poolwise import Log
from poolwise.evaluation.summarise import query_text
log = Log("x", logger="l", reward="r", propensity="p", propensities={"a": "pa", "b": "pb"})
print(query_text(log, "table_of_logs", {"one": "t1", "two": "t2", "three": "t3"}, "duckdb"))
"""


def log(**roles: Any) -> Log:  # noqa: ANN401 - any role of a log
    return log_of("log", **roles)


def run(text: str, source: pa.Table) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        connection.register("log", source)
        result = connection.execute(text)
        names = [d[0] for d in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def run_postgres(text: str, source: pa.Table) -> list[dict[str, Any]]:
    with server().connect() as connection:
        load(connection, source, "log")
        result = connection.execute(text)
        names = [d[0] for d in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


RUNS = {"duckdb": run, "postgres": run_postgres}


def by_text(
    source: pa.Table,
    chosen: Log,
    needs: Needs,
    targets: Mapping[str, str],
    dialect: str = "duckdb",
) -> dict[str, Moments]:
    """Run the text of the query and decode its result as an engine does."""
    text = standalone_query(chosen, "log", targets, needs, dialect)
    request = MomentsRequest(assign(chosen, targets, None, exp.to_table("log")).table, needs)
    groups = [decode(request, line) for line in RUNS[dialect](text, source)]
    assert not any(group.bad for group in groups)
    return {str(group.logger): group.moments for group in groups}


@pytest.mark.parametrize("dialect", TITLES)
def test_the_printed_query_is_the_reviewed_one(dialect: str) -> None:
    """Rewrite the files with `python -m tests.support.queries`, and read the difference."""
    reviewed = (queries.FOLDER / f"{dialect}.sql").read_text("utf-8")
    first, second = (
        [tree.sql(dialect) for tree in sqlglot.parse(text, dialect=dialect) if tree]
        for text in (reviewed, queries.printed(dialect))
    )
    assert first == second


@pytest.mark.parametrize("dialect", RUNS)
@pytest.mark.parametrize("needs", [NEEDS, queries.NEEDS, OTHERS], ids=["few", "all", "others"])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_printed_query_gives_the_moments_of_the_engine(
    offset: float, needs: Needs, dialect: str
) -> None:
    source = random_table(np.random.default_rng(30), {"a": 800, "b": 500}, offset=offset)
    found = by_text(source, log(), needs, {"target": "t"}, dialect)
    with Reference().open(log_of(source), {"target": "t"}) as rows:
        assert_moments_agree(found, rows.moments(needs))


def test_the_printed_query_serves_log_probabilities() -> None:
    source = random_table(np.random.default_rng(31), {"a": 80, "b": 50})
    logs = source
    for name in ("p", "p_a", "p_b", "t"):
        values = pa.array(np.log(source[name].to_numpy()))
        logs = logs.set_column(logs.column_names.index(name), name, values)
    found = by_text(logs, log(log_probabilities=True), NEEDS, {"target": "t"})
    with Reference().open(log_of(source), {"target": "t"}) as rows:
        assert_moments_agree(found, rows.moments(NEEDS))


def test_the_printed_query_serves_own_propensities_alone() -> None:
    source = random_table(np.random.default_rng(32), {"a": 80, "b": 50})
    needs = Needs((REWARD,), ((WEIGHTED_REWARD, WEIGHT),)).bind("target")
    found = by_text(source, log(propensities=None), needs, {"target": "t"})
    with Reference().open(log_of(source, propensities=None), {"target": "t"}) as rows:
        assert_moments_agree(found, rows.moments(needs))


def test_the_printed_query_counts_bad_rows_of_every_logger() -> None:
    rows = [
        {"logger": "a", "reward": 1.0, "p": 0.5, "p_a": 0.5, "p_b": 0.5, "t": 0.5},
        {"logger": "a", "reward": None, "p": 0.5, "p_a": 0.5, "p_b": 0.5, "t": 0.5},
        {"logger": None, "reward": 1.0, "p": 0.5, "p_a": 0.5, "p_b": 0.5, "t": 0.5},
        {"logger": "c", "reward": 1.0, "p": 0.5, "p_a": 0.5, "p_b": 0.5, "t": 0.5},
    ]
    text = query_text(log(), "log", {"target": "t"}, "duckdb")
    lines = run(text, pa.Table.from_pylist(rows))
    found = {line["logger"]: (line["rows"], line["bad"]) for line in lines}
    assert found == {"a": (2, 1), None: (1, 1), "c": (1, 1)}


@pytest.mark.slow
def test_the_query_is_the_same_text_in_every_process() -> None:
    """Sets are ordered by hashes, and hashes change with the process."""
    texts = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    assert texts.pop().startswith("WITH")


@pytest.mark.slow
@pytest.mark.parametrize("dialect", TITLES)
@pytest.mark.parametrize("logs", [False, True], ids=["probabilities", "logarithms"])
def test_every_dialect_can_read_its_own_query(dialect: str, *, logs: bool) -> None:
    text = query_text(log(log_probabilities=logs), "my_log", TARGETS, dialect)
    (tree,) = sqlglot.parse(text, dialect=dialect)
    assert isinstance(tree, exp.Select)
    ctes = {cte.alias for cte in tree.find_all(exp.CTE)}
    tables = {t.name for t in tree.find_all(exp.Table)} - ctes
    assert tables == {"my_log"}
    names = [selected.alias_or_name for selected in tree.selects]
    assert len(names) == len(set(names))
    assert names[:3] == ["logger", "rows", "bad"]


@pytest.mark.parametrize("dialect", ["postgres", "snowflake"])
def test_every_column_is_quoted(dialect: str) -> None:
    """A bare name is folded to lower case in one dialect and to upper case in the other."""
    text = query_text(log(), "my_log", TARGETS, dialect)
    (tree,) = sqlglot.parse(text, dialect=dialect)
    assert tree is not None
    names = [c.this for c in tree.find_all(exp.Column) if isinstance(c.this, exp.Identifier)]
    bare = {name.name for name in names if not name.quoted}
    assert bare <= {"t"}  # the user's own expression stays as written
    aliases = [alias.args["alias"] for alias in tree.find_all(exp.Alias)]
    assert [a.name for a in aliases if not a.quoted] == []


HOSTILE = (
    'x"; DROP TABLE log; --',
    "x'; DROP TABLE log; --",
    "`x`; DROP TABLE log",
    "select",
    "p) FROM secrets --",
    "größe",
)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", TITLES)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_names(name: str, dialect: str) -> None:
    from poolwise.log.policy import Column

    hostile = Log(
        "log",
        logger="logger",
        reward="reward",
        propensity=Column(name),
        propensities={name: Column("p_a"), "b": Column(f"{name} too")},
    )
    text = query_text(hostile, "log", {name: Column("t")}, dialect)
    (tree,) = sqlglot.parse(text, dialect=dialect)
    assert isinstance(tree, exp.Select)
    assert tree.find(exp.Drop, exp.Command) is None
    ctes = {cte.alias for cte in tree.find_all(exp.CTE)}
    assert {t.name for t in tree.find_all(exp.Table)} - ctes == {"log"}
    columns = {c.name for c in tree.find_all(exp.Column)}
    assert {name, f"{name} too"} <= columns
    assert name in {str(value.this) for value in tree.find_all(exp.Literal) if value.is_string}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_give_the_right_numbers(name: str) -> None:
    from poolwise.log.policy import Column

    source = random_table(np.random.default_rng(33), {"a": 60, "b": 40})
    with Reference().open(log_of(source), {"target": "t"}) as rows:
        expected = list(rows.moments(NEEDS).values())
    labels = [name if k == "a" else k for k in source["logger"].to_pylist()]
    renamed = source.set_column(0, "logger", pa.array(labels)).rename_columns(
        ["logger", "reward", name, "p_a", "p_b", "t"]
    )
    hostile = log(propensity=Column(name), propensities={name: "p_a", "b": "p_b"})
    needs = Needs(
        (REWARD, second_moment(name), second_moment("b")),
        ((WEIGHT,), (WEIGHTED_REWARD, BALANCED_REWARD, BALANCED_WEIGHT, ratio(name))),
        (WEIGHT,),
    ).bind("target")
    found = by_text(renamed, hostile, needs, {"target": "t"})
    assert set(found) == {name, "b"}
    for moments, judge in zip((found[name], found["b"]), expected, strict=True):
        assert sorted(moments.means) == pytest.approx(sorted(judge.means), rel=1e-12)


@pytest.mark.parametrize(
    "table", ["select 1; drop table x", "with x as (select 1) delete from x", "select from"]
)
def test_a_table_that_is_not_one_select_is_refused(table: str) -> None:
    with pytest.raises(UsageError):
        query_text(log(), table, TARGETS, "duckdb")


def test_a_name_of_a_table_is_quoted_whatever_it_holds() -> None:
    text = query_text(log(), "log; drop table x", TARGETS, "duckdb")
    assert len(sqlglot.parse(text, dialect="duckdb")) == 1
    assert '"log; drop table x"' in text


def test_a_qualified_table_and_a_select_may_be_read() -> None:
    qualified = query_text(log(), "warehouse.main.log", TARGETS, "snowflake")
    (tree,) = sqlglot.parse(qualified, dialect="snowflake")
    assert tree is not None
    found = [t for t in tree.find_all(exp.Table) if t.name == "log"]
    assert [(t.catalog, t.db) for t in found] == [("warehouse", "main")]
    selected = query_text(log(), "select * from log where day > 3", TARGETS, "duckdb")
    assert "day > 3" in selected


def test_policies_in_python_have_no_sql() -> None:
    with refused(UsageError):
        query_text(log(action="x"), "log", {"target": lambda batch: batch["x"]}, "duckdb")


def test_an_unknown_dialect_and_a_missing_target_are_refused() -> None:
    with refused(UsageError):
        query_text(log(), "log", TARGETS, "klingon")
    with refused(UsageError):
        query_text(log(), "log", {}, "duckdb")


def test_numbers_are_doubles_and_never_decimals() -> None:
    text = query_text(log(replay_tolerance=0.001), "log", TARGETS, "duckdb")
    (tree,) = sqlglot.parse(text, dialect="duckdb")
    assert tree is not None
    numbers = [n.name for n in tree.find_all(exp.Literal) if not n.is_string]
    assert [n for n in numbers if "." in n and "e" not in n.lower()] == []
