"""Hostile names: the parsed query has exactly the requested tables and columns."""

from __future__ import annotations

import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from poolwise import Log, evaluate
from poolwise.engines.saved_files import standalone_query
from poolwise.log.policy import Column
from poolwise.moments.terms import BALANCED_REWARD, WEIGHT, Needs
from tests.support.hard.case import base, renamed
from tests.support.reference import Reference

ROLES = ("logger", "reward", "p", "p_a", "p_b", "t")
DIALECTS = ("duckdb", "postgres", "spark", "bigquery", "snowflake")
ATTACKS = (
    '"', "'", "`", '""', "''", "``", "\\", '\\"', "';--", '"; DROP TABLE log; --', "a.b", "a b",
    "select", "*", "1", "/*", "*/", "--", "${x}", "{{x}}", "%s", "?", ":x", "@x", "[x]", "$1",
    "x') OR ('1'='1", 'x") FROM other --', "x\ny", "x\ty", "é", "🦆", "\u202e", "NULL", "true",
)  # fmt: skip
names = st.one_of(
    st.sampled_from(ATTACKS),
    st.builds("".join, st.lists(st.sampled_from(ATTACKS), min_size=1, max_size=3)),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1),
)
six_names = st.lists(names, min_size=6, max_size=6, unique_by=str.lower)


def _read(query: str, dialect: str) -> tuple[set[str], set[str]]:
    """Return the tables that are not steps of the query, and the columns of the first step."""
    (tree,) = sqlglot.parse(query, read=dialect)
    assert isinstance(tree, exp.Select)
    steps = {step.alias for step in tree.find_all(exp.CTE)}
    tables = {t.sql() for t in tree.find_all(exp.Table) if t.name not in steps}
    (first,) = [step.this for step in tree.find_all(exp.CTE) if step.alias == "rows"]
    assert not list(first.find_all(exp.Subquery))
    return tables, {column.name for column in first.find_all(exp.Column)}


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=40)
@given(chosen=six_names, label=names)
def test_the_query_reads_what_was_asked_for_and_nothing_else(
    dialect: str, chosen: list[str], label: str
) -> None:
    if dialect == "bigquery":  # no column of it can have a dot: in backticks it is a path
        chosen = [name.replace(".", "\N{FULLWIDTH FULL STOP}") for name in chosen]
    columns = {role: Column(name) for role, name in zip(ROLES, chosen, strict=True)}
    quoted = {
        role: f'"{name.replace(chr(34), chr(34) * 2)}"'
        for role, name in zip(ROLES, chosen, strict=True)
    }
    log = Log(
        "log.parquet",  # not read
        reward=quoted["reward"],
        logger=quoted["logger"],
        propensity=columns["p"],
        propensities={label: columns["p_a"], f"{label}2": columns["p_b"]},
    )
    needs = Needs(groups=((BALANCED_REWARD, WEIGHT),)).bind(label)
    query = standalone_query(log, "log", {label: columns["t"]}, needs, dialect)
    tables, read = _read(query, dialect)
    assert tables == {"log"}
    assert read == set(chosen)
    (tree,) = sqlglot.parse(query, read=dialect)
    assert tree is not None
    texts = {literal.this for literal in tree.find_all(exp.Literal) if literal.is_string}
    assert label in texts


@settings(max_examples=40)
@given(chosen=six_names)
def test_duckdb_runs_it_with_the_same_answer(chosen: list[str]) -> None:
    names = dict(zip(ROLES, chosen, strict=True))
    log = Log(
        renamed(base(), names),
        reward=names["reward"],
        logger=names["logger"],
        propensity=names["p"],
        propensities={"a": names["p_a"], "b": names["p_b"]},
    )
    found = evaluate(log, {"new": names["t"]}, "naive", which_logs=False)
    assert found["new"].estimates["naive"].value == pytest.approx(NAIVE, rel=1e-12)


def _naive() -> float:
    log = Log(base(), reward="reward", logger="logger", propensity="p")
    found = evaluate(log, {"new": "t"}, "naive", engine=Reference())
    return found["new"].estimates["naive"].value


NAIVE = _naive()
