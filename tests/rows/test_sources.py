"""All sources give the same numbers."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from typer.testing import CliRunner

from poolwise import Batch, Log, Uniform, check, evaluate, learn, score_log
from poolwise.cli.commands import app
from poolwise.errors import (
    EngineError,
    LogError,
    MissingColumnError,
    PoolwiseError,
    SourceError,
    UsageError,
)
from tests.support.messages import refused
from tests.support.reference import Reference, assert_same, log_of, numbers, random_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from poolwise.evaluation.results import Evaluation

TABLE: pa.Table = random_table(np.random.default_rng(20), {"a": 30, "b": 20})
TARGETS = {"target": "t"}


@pytest.fixture(scope="module")
def expected() -> Evaluation:
    return evaluate(log_of(TABLE), TARGETS, engine=Reference())


def write_csv(path: Path, table: pa.Table, delimiter: str = ",") -> Path:
    pcsv.write_csv(table, path, pcsv.WriteOptions(delimiter=delimiter))
    return path


def write_gzip(path: Path, table: pa.Table) -> Path:
    with gzip.open(path, "wb") as out:
        pcsv.write_csv(table, out)
    return path


def write_jsonl(path: Path, table: pa.Table) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()), "utf-8")
    return path


def write_parquet(path: Path, table: pa.Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def two_files(folder: Path) -> list[Path]:
    return [
        write_parquet(folder / "one.parquet", TABLE.slice(0, 20)),
        write_parquet(folder / "two.parquet", TABLE.slice(20)),
    ]


def in_folder(folder: Path) -> Path:
    write_parquet(folder / "logs" / "day=1" / "x.parquet", TABLE.slice(0, 20))
    write_parquet(folder / "logs" / "day=2" / "y.parquet", TABLE.slice(20))
    return folder / "logs"


def mixed_list(folder: Path) -> list[object]:
    return [
        str(write_csv(folder / "one.csv", TABLE.slice(0, 10))),
        write_parquet(folder / "two.parquet", TABLE.slice(10, 10)),
        TABLE.slice(20).to_pandas(),
    ]


def quoted_name(folder: Path) -> str:
    return str(write_parquet(folder / "it's a log.parquet", TABLE))


SOURCES: dict[str, Callable[[Path], object]] = {
    "path": lambda folder: write_parquet(folder / "log.parquet", TABLE),
    "text of a path": lambda folder: str(write_parquet(folder / "log.parquet", TABLE)),
    "path with a quote": quoted_name,
    "glob": lambda folder: (two_files(folder), f"{folder}/*.parquet")[1],
    "list": two_files,
    "folder": in_folder,
    "mixed list": mixed_list,
    "csv": lambda folder: write_csv(folder / "log.csv", TABLE),
    "csv.gz": lambda folder: write_gzip(folder / "log.csv.gz", TABLE),
    "tsv": lambda folder: write_csv(folder / "log.tsv", TABLE, "\t"),
    "jsonl": lambda folder: write_jsonl(folder / "log.jsonl", TABLE),
    "ndjson": lambda folder: write_jsonl(folder / "log.ndjson", TABLE),
    "select": lambda folder: (
        f"SELECT * FROM read_parquet('{write_parquet(folder / 'x.parquet', TABLE)}')"
    ),
    "select with a semicolon": lambda folder: (
        f"select * from '{write_parquet(folder / 'x.parquet', TABLE)}';\n"
    ),
    "select with a comment at its end": lambda folder: (
        f"select * from '{write_parquet(folder / 'x.parquet', TABLE)}' -- all of it"
    ),
    "select with a comment before it": lambda folder: (
        f"-- all of it\nselect * from '{write_parquet(folder / 'x.parquet', TABLE)}'"
    ),
    "with": lambda folder: (
        f"with x as (from '{write_parquet(folder / 'x.parquet', TABLE)}') select * from x"
    ),
    "from": lambda folder: f"FROM '{write_parquet(folder / 'x.parquet', TABLE)}'",
    "pyarrow": lambda _: TABLE,
    "pandas": lambda _: TABLE.to_pandas(),
    "polars": lambda _: pl.DataFrame(TABLE.to_pydict()),
    "list of frames": lambda _: [TABLE.slice(0, 7), TABLE.slice(7).to_pandas()],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_gives_the_same_numbers(
    kind: str, tmp_path: Path, expected: Evaluation
) -> None:
    found = evaluate(log_of(SOURCES[kind](tmp_path)), TARGETS)
    assert_same(found, expected)


def test_every_logger_may_have_its_own_source(tmp_path: Path, expected: Evaluation) -> None:
    frame = TABLE.to_pandas()
    parts = {k: frame[frame["logger"] == k].drop(columns="logger") for k in ("a", "b")}
    pq.write_table(pa.Table.from_pandas(parts["b"]), tmp_path / "b.parquet")
    source = {"a": parts["a"], "b": [str(tmp_path / "*.parquet")]}
    assert_same(evaluate(log_of(source, logger=None), TARGETS), expected)


def test_the_labels_of_a_mapping_may_be_integers() -> None:
    frame = TABLE.to_pandas()
    source = {k: frame[frame["logger"] == v] for k, v in ((7, "a"), (8, "b"))}
    log = Log(source, reward="reward", propensity="p", propensities={7: "p_a", 8: "p_b"})
    assert evaluate(log, TARGETS).rows == {"7": 30, "8": 20}


def test_an_empty_part_of_a_mapping_is_a_logger_without_rows() -> None:
    source = {"a": TABLE, "b": TABLE.slice(0, 0)}
    with refused(LogError):
        evaluate(Log(source, reward="reward", propensity="p"), TARGETS)


def relabelled(labels: dict[str, Any]) -> pa.Table:
    values = [labels[k] for k in TABLE["logger"].to_pylist()]
    return TABLE.set_column(0, "logger", pa.array(values))


def test_labels_may_be_integers(expected: Evaluation) -> None:
    log = log_of(relabelled({"a": 1, "b": 2}), propensities={1: "p_a", 2: "p_b"})
    found = evaluate(log, TARGETS)
    assert found.rows == {"1": 30, "2": 20}
    assert numbers(found) == pytest.approx(numbers(expected), rel=1e-9)


def test_labels_beyond_the_digits_of_doubles_are_told_apart_or_refused(tmp_path: Path) -> None:
    """In CSV files labels are text; elsewhere DuckDB reads such numbers as doubles."""
    lines = [{"who": 2**63 + k % 2, "p": 0.5, "t": 0.4, "click": k % 3 % 2} for k in range(40)]
    pd.DataFrame(lines).to_csv(tmp_path / "log.csv", index=False)
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    roles: Any = {"logger": "who", "reward": "click", "propensity": "p"}
    exact = evaluate(Log(str(tmp_path / "log.csv"), **roles), "t")
    assert exact.rows == {str(2**63): 20, str(2**63 + 1): 20}
    for source in (str(tmp_path / "log.jsonl"), f"SELECT * FROM '{tmp_path}/log.csv'"):
        with refused(UsageError):
            evaluate(Log(source, **roles), "t")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("it's", 'say "no"'),
        ("größe", "模型"),
        ("select", "null"),
        ("'; drop table log; --", "\\"),
        ("a b", " a b "),
        ("", "b"),
        ("None", "nan"),
        ("{x}", "%s"),
    ],
)
def test_labels_may_be_any_text(first: str, second: str, expected: Evaluation) -> None:
    log = log_of(
        relabelled({"a": first, "b": second}), propensities={first: "p_a", second: "p_b"}
    )
    found = evaluate(log, TARGETS)
    assert found.rows == {first: 30, second: 20}
    assert numbers(found) == pytest.approx(numbers(expected), rel=1e-9)
    alone = evaluate(log_of(log.source, propensities=None), TARGETS, "naive")
    naive = expected["target"].estimates["naive"].value
    assert alone["target"].estimates["naive"].value == pytest.approx(naive, rel=1e-9)


def test_an_empty_label_is_centred_like_any_other() -> None:
    """The second pass, which loggers far from each other need, knows every label."""
    table = random_table(
        np.random.default_rng(21), {"": 50, "b": 50}, offset={"": 1e8, "b": 0.0}
    )
    log = log_of(table, ["", "b"])
    assert_same(evaluate(log, TARGETS), evaluate(log, TARGETS, engine=Reference()))


COLUMNS = [
    {"reward": "select", "p": "from", "p_a": "where", "p_b": "group", "t": "order"},
    {"reward": "the reward", "p": 'a "quoted" name', "p_a": "it's", "p_b": "p;b", "t": "t--"},
    {"logger": "reward", "reward": "logger", "p": "p_0", "p_a": "p_1", "p_b": "t_0", "t": "p"},
    {"reward": "größe", "p": "a.b", "p_a": "rows", "p_b": "mixture", "t": "bad"},
    {"reward": "reward*2", "p": "1", "p_a": "x_0", "p_b": "own", "t": "count(*)"},
]


@pytest.mark.parametrize("names", COLUMNS, ids=lambda names: str(list(names.values())))
def test_columns_may_have_any_name(names: dict[str, str], expected: Evaluation) -> None:
    table = TABLE.rename_columns([names.get(c, c) for c in TABLE.column_names])
    log = log_of(
        table,
        logger=names.get("logger", "logger"),
        reward=names["reward"],
        propensity=names["p"],
        propensities={"a": names["p_a"], "b": names["p_b"]},
    )
    assert_same(evaluate(log, {"target": names["t"]}), expected)


@pytest.mark.parametrize("name", ["it's", "größe", "x'); drop table log; --", "select"])
def test_targets_may_have_any_name(name: str, expected: Evaluation) -> None:
    found = evaluate(log_of(TABLE), {name: "t"})
    assert list(found.targets) == [name]
    assert numbers(found) == pytest.approx(numbers(expected), rel=1e-9)


def test_a_target_without_a_name_is_refused() -> None:
    with refused(UsageError):
        evaluate(log_of(TABLE), {"": "t"})


def test_a_role_may_be_an_expression(expected: Evaluation) -> None:
    log = log_of(
        TABLE,
        logger="lower(upper(logger))",
        reward="reward * 2 - reward",
        propensity="case logger when 'a' then p_a else p_b end",
        propensities={"a": "least(p_a, 1)", "b": "p_b + 0"},
    )
    assert_same(evaluate(log, {"target": "t / 2 + t / 2"}), expected)


def test_narrow_types_are_widened_before_they_are_added() -> None:
    rows = 4_096
    table = pa.table(
        {
            "reward": pa.array(np.full(rows, 0.1, dtype=np.float32)),
            "p": pa.array(np.full(rows, 0.5, dtype=np.float32)),
            "t": pa.array(np.full(rows, 0.5, dtype=np.float32)),
        }
    )
    found = evaluate(Log(table, reward="reward", propensity="p"), "t", "naive")
    estimate = found["target"].estimates["naive"].value
    assert estimate == pytest.approx(float(np.float32(0.1)), rel=1e-12)


def test_rewards_may_be_true_and_false() -> None:
    table = pa.table({"reward": [True, False, True, True], "p": [0.5] * 4})
    found = evaluate(Log(table, reward="reward", propensity="p"), "p", "naive")
    assert found["target"].estimates["naive"].value == pytest.approx(3 / 4, rel=1e-12)


def test_options_reach_the_reader_of_files(tmp_path: Path, expected: Evaluation) -> None:
    path = tmp_path / "log.csv"
    text = "# made by hand\nlogger;reward;p;p_a;p_b;t"
    rows = [";".join(map(str, row.values())) for row in TABLE.to_pylist()]
    path.write_text("\n".join([text, *rows]), "utf-8")
    log = log_of(str(path), reader_options={"delim": ";", "skip": 1, "header": True})
    assert_same(evaluate(log, TARGETS), expected)
    with refused(UsageError):
        evaluate(log_of(str(path), reader_options={"x) --": 1}), TARGETS)


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    for name in ("no.parquet", "no.csv", "no.jsonl", "none/*.parquet"):
        with refused(SourceError):
            evaluate(log_of(str(tmp_path / name)), TARGETS)


def test_a_file_that_is_not_what_its_name_says_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.parquet"
    path.write_text("not parquet", "utf-8")
    with refused(SourceError):
        evaluate(log_of(path), TARGETS)


@pytest.mark.parametrize("name", ["log.xlsx", "log.parquet.bak", "log.feather"])
def test_an_unknown_ending_is_refused_with_the_known_ones(name: str) -> None:
    with refused(UsageError):
        evaluate(log_of(name), TARGETS)


@pytest.mark.parametrize(
    "text",
    [
        "delete from log",
        "select 1; select 2",
        "select 1; drop table log",
        "with x as (select 1) delete from x",
        "select 1); drop table log; --",
        "select nothing from nowhere",
        "select from where",
    ],
)
def test_what_is_not_one_select_is_refused(text: str) -> None:
    with pytest.raises(PoolwiseError):
        evaluate(log_of(text), TARGETS)


@pytest.mark.parametrize("text", ["select 1; select 2", "with x as (select 1) delete from x"])
def test_the_refusal_says_what_is_allowed(text: str) -> None:
    with refused(UsageError):
        evaluate(log_of(text), TARGETS)


def test_a_select_cannot_change_files(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    with pytest.raises(PoolwiseError):
        evaluate(log_of(f"with x as (select 1) copy x to '{out}'"), TARGETS)
    assert not out.exists()


@pytest.mark.parametrize("source", [42, object(), b"bytes", None])
def test_what_is_not_a_source_is_refused(source: object) -> None:
    with pytest.raises(UsageError):
        evaluate(log_of(source), TARGETS)


def test_an_empty_list_and_an_empty_mapping_are_refused() -> None:
    with refused(UsageError):
        evaluate(log_of([]), TARGETS)
    with refused(UsageError):
        evaluate(log_of({}, logger=None), TARGETS)


def test_a_frame_is_not_changed() -> None:
    frame = TABLE.to_pandas()
    before = frame.copy()
    evaluate(log_of(frame), TARGETS)
    pd.testing.assert_frame_equal(frame, before)


class Chain:
    """A policy as a user writes one: action 1 by a logistic rule of two columns."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def prob(self, batch: Batch) -> NDArray[np.float64]:
        score = self.slope * (batch["x"] - batch["z"])
        one = 1 / (1 + np.exp(-score))
        return np.where(batch.action == 1, one, 1 - one)

    def log_prob(self, batch: Batch) -> NDArray[np.float64]:
        return np.log(self.prob(batch))


def scored_table(policies: dict[str, Chain]) -> pa.Table:
    """A log that two such policies wrote, with every probability as a column."""
    rng = np.random.default_rng(22)
    rows = 300
    columns = {"x": rng.normal(size=rows), "z": rng.normal(size=rows)}
    logger = np.where(np.arange(rows) < 100, "a", "b")
    action = rng.integers(0, 2, rows)
    batch = Batch(action, columns)
    probs = {f"p_{k}": policy.prob(batch) for k, policy in policies.items()}
    own = np.where(logger == "a", probs["p_a"], probs["p_b"])
    reward = rng.random(rows) + action
    return pa.table(
        {"logger": logger, "action": action, "reward": reward, "p": own, **columns, **probs}
    )


def python_log(table: pa.Table, policies: dict[str, Any], **roles: Any) -> Log:  # noqa: ANN401
    named: dict[str, Any] = {
        "logger": "logger",
        "reward": "reward",
        "action": "action",
        "propensity": "p",
        "propensities": {k: policies[k] for k in ("a", "b")},
        "context": ["x", "z"],
    }
    return Log(table, **(named | roles))


def test_policies_in_python_give_the_numbers_of_columns() -> None:
    policies = {"a": Chain(0.5), "b": Chain(-0.25), "t": Chain(1.0)}
    table = scored_table(policies)
    names = {k: f"p_{k}" for k in policies}
    plain = evaluate(python_log(table, names), {"target": "p_t"}, engine=Reference())
    objects = evaluate(python_log(table, policies), {"target": policies["t"]})
    functions = {k: policy.prob for k, policy in policies.items()}
    called = evaluate(python_log(table, functions), {"target": policies["t"].prob})
    assert_same(objects, plain)
    assert_same(called, plain)
    everything = evaluate(python_log(table, policies, context=()), {"target": policies["t"]})
    assert_same(everything, plain)


def test_one_policy_in_python_may_stand_beside_columns() -> None:
    policies = {"a": Chain(0.5), "b": Chain(-0.25), "t": Chain(1.0)}
    table = scored_table(policies)
    names = {k: f"p_{k}" for k in policies}
    plain = evaluate(python_log(table, names), {"target": "p_t"}, engine=Reference())
    mixed = python_log(table, {"a": "p_a", "b": policies["b"]}, propensity=None)
    assert_same(evaluate(mixed, {"target": "p_t"}), plain)


def test_names_of_columns_may_differ_in_case_from_the_source() -> None:
    policies = {"a": Chain(0.5), "b": Chain(-0.25), "t": Chain(1.0)}
    table = scored_table(policies)
    names = {k: f"p_{k}" for k in policies}
    plain = evaluate(python_log(table, names), {"target": "p_t"}, engine=Reference())
    upper = python_log(table, names, reward="REWARD", logger="Logger", propensity="P")
    assert_same(evaluate(upper, {"target": "P_T"}), plain)
    assert_same(evaluate(upper, {"target": policies["t"]}), plain)


def test_a_classifier_is_a_policy() -> None:
    policies = {"a": Chain(0.5), "b": Chain(-0.25), "t": Chain(1.0)}
    table = scored_table(policies)
    contexts = np.column_stack([table["x"].to_numpy(), table["z"].to_numpy()])
    model = LogisticRegression().fit(contexts, table["action"].to_numpy())
    matrix = model.predict_proba(contexts)
    probs = matrix[np.arange(len(table)), table["action"].to_numpy()]
    named = table.append_column("p_model", pa.array(probs))
    names = {k: f"p_{k}" for k in policies}
    plain = evaluate(python_log(named, names), {"target": "p_model"}, engine=Reference())
    assert_same(evaluate(python_log(table, names), {"target": model}), plain)


def test_policies_in_python_serve_log_probabilities() -> None:
    policies = {"a": Chain(0.5), "b": Chain(-0.25), "t": Chain(1.0)}
    table = scored_table(policies)
    names = {k: f"p_{k}" for k in policies}
    plain = evaluate(python_log(table, names), {"target": "p_t"}, engine=Reference())
    logged = table.set_column(
        table.column_names.index("p"), "p", pa.array(np.log(table["p"].to_numpy()))
    )
    log = python_log(logged, policies, log_probabilities=True)
    assert_same(evaluate(log, {"target": policies["t"]}), plain)


def test_policies_in_python_need_the_action() -> None:
    policies = {"a": Chain(0.5), "b": Chain(-0.25), "t": Chain(1.0)}
    log = python_log(scored_table(policies), policies, action=None)
    with refused(UsageError):
        evaluate(log, {"target": policies["t"]})


def test_a_wrong_policy_in_python_fails_the_replay_check() -> None:
    policies = {"a": Chain(0.5), "b": Chain(-0.25), "t": Chain(1.0)}
    wrong = policies | {"b": Chain(-0.26)}
    with refused(LogError):
        evaluate(python_log(scored_table(policies), wrong), {"target": policies["t"]})


def test_an_empty_log_with_policies_in_python_is_a_named_error() -> None:
    policies = {"a": Chain(0.5), "b": Chain(-0.25), "t": Chain(1.0)}
    empty = scored_table(policies).slice(0, 0)
    with refused(LogError):
        evaluate(python_log(empty, policies), {"target": policies["t"]})


@pytest.mark.parametrize("name", ["nope.parquet", "nope.csv", "folder/nope.json"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    log = Log(tmp_path / name, reward="r", propensity="p")
    with refused(SourceError) as found:
        evaluate(log, "t")
    assert name in str(found.value)


def test_a_file_that_a_select_names_and_nobody_has_is_named(tmp_path: Path) -> None:
    log = Log(f"SELECT * FROM '{tmp_path}/nope.parquet'", reward="r", propensity="p")
    with refused(SourceError):
        evaluate(log, "t")


def test_a_table_of_a_duckdb_file_is_a_source(tmp_path: Path) -> None:
    path = tmp_path / "logs.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute("CREATE SCHEMA s; CREATE TABLE s.log AS SELECT * FROM range(3) t(r)")
        database.execute(
            "CREATE TABLE log AS SELECT 0.5 AS p, r::DOUBLE AS r FROM range(4) t(r)"
        )
    log = Log(f"{path}::log", reward="r", propensity="p")
    assert evaluate(log, "p")["target"].estimates["naive"].value == 1.5
    outcome = CliRunner().invoke(
        app, ["check", f"{path}::log", "--reward", "r", "--propensity", "p", "--json"]
    )
    assert json.loads(outcome.stdout)["rows"] == {"log": 4}
    assert check(Log(f"{path}::s.log", reward="r", propensity="0.5")).rows == {"log": 3}
    for source in (f"{path}::absent", f"{tmp_path}/absent.duckdb::log"):
        with refused(SourceError):
            check(Log(source, reward="r", propensity="p"))
    with duckdb.connect(str(path)) as database:  # it was not changed, nor is it locked
        assert database.execute("SELECT count(*) FROM log").fetchall() == [(4,)]


@pytest.mark.parametrize(
    "source",
    [
        [{"r": 1, "p": 0.5}, {"r": 2, "p": 0.5, "more": "x"}],
        {"r": [1, 2], "p": [0.5, 0.5], "label": ["x", "y"]},
        {"r": np.array([1.0, 2.0]), "p": np.array([0.5, 0.5])},
    ],
)
def test_rows_and_columns_in_python_are_sources(source: object) -> None:
    log = Log(source, reward="r", propensity="p")
    assert evaluate(log, "p")["target"].estimates["naive"].value == 1.5


def test_columns_in_python_of_unequal_lengths_are_refused() -> None:
    with refused(UsageError):
        Log({"r": [1, 2], "p": [0.5]}, reward="r", propensity="p")
    assert isinstance(Log({"v1": ["a.csv", "b.csv"]}, reward="r", propensity="p").source, dict)


def test_percentages_in_texts_are_named() -> None:
    log = Log({"r": [1, 2], "p": ["50%", "25,5 %"]}, reward="r", propensity="p")
    with refused(LogError):
        evaluate(log, "p")
    number = "replace(replace(p, '%', ''), ',', '.')::DOUBLE / 100"
    assert evaluate(replace(log, propensity=number), "0.5")["target"].estimates[
        "naive"
    ].value == pytest.approx((1 + 2 * 0.5 / 0.255) / 2, rel=1e-12)


@pytest.mark.parametrize("name", ["br[1]", "s*r", "what?", "[!a]"])
@pytest.mark.parametrize("path", ["", "/x.parquet", "/*.parquet", "/x.csv", "/*/y.parquet"])
def test_a_folder_whose_name_looks_like_a_pattern_is_read(
    name: str, path: str, tmp_path: Path, expected: Evaluation
) -> None:
    for folder in (name, "b1", "star"):  # the others must not be read
        (tmp_path / folder / "z").mkdir(parents=True)
        write_csv(tmp_path / folder / "x.csv", TABLE)
        place = tmp_path / folder / ("z/y.parquet" if path == "/*/y.parquet" else "x.parquet")
        write_parquet(place, TABLE)
    source = f"{tmp_path}/{name}{path}"
    assert_same(evaluate(log_of(source), TARGETS), expected, rel=1e-9)
    assert_same(evaluate(log_of([source]), TARGETS), expected, rel=1e-9)


def test_such_a_folder_without_files_is_named_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "br[1]").mkdir()
    with refused(SourceError):
        evaluate(log_of(tmp_path / "br[1]"), TARGETS)


FAILING = {  # a value that fails late, a field that is not there, a condition that fails
    "value": "SELECT * REPLACE (CASE WHEN x > 0.9999 THEN error('no') ELSE x END AS x) FROM T",
    "field": "SELECT * REPLACE ({'a': x} AS x) FROM T",
    "condition": "SELECT * FROM T WHERE x < 0.5 OR error('no')",
}
READING: dict[str, Callable[[Log, Path], object]] = {
    "policy": lambda log, _: evaluate(log, {"new": Uniform([0, 1])}),
    "model": lambda log, _: evaluate(log, {"new": Uniform([0, 1])}, model=LinearRegression()),
    "mixture": lambda log, _: evaluate(
        replace(log, propensities=None, propensity="q", estimate_mixture=True), {"new": "q"}
    ),
    "check": lambda log, _: check(log, {"new": Uniform([0, 1])}),
    "score": lambda log, folder: score_log(log, {"new": Uniform([0, 1])}, folder / "s.parquet"),
    "learn": lambda log, _: learn(log, features=log.context, folds=2),
}


@pytest.mark.parametrize("failing", FAILING)
@pytest.mark.parametrize("reading", READING)
def test_a_select_that_fails_late_is_one_message(
    failing: str, reading: str, tmp_path: Path
) -> None:
    """Policies, models and mixtures read the rows before the engine does."""
    rng = np.random.default_rng(2)
    columns = {"l": rng.choice(["a", "b"], 5_000), "r": rng.random(5_000), "q": [0.5] * 5_000}
    table = pa.table(
        columns | {"x": np.linspace(0, 1, 5_000), "i": rng.integers(2, size=5_000)}
    )
    pq.write_table(table, tmp_path / "log.parquet")
    context = "x.b" if failing == "field" else "x"
    log = Log(
        FAILING[failing].replace("FROM T", f"FROM '{tmp_path / 'log.parquet'}'"),
        reward="r",
        logger="l",
        action="i",
        context=[context],
        propensities={"a": "q", "b": "q"},
    )
    kind = MissingColumnError if failing == "field" else EngineError
    with pytest.raises(kind, match=r"DuckDB refused the query: .*Error|no column 'x.b'"):
        READING[reading](log, tmp_path)
