"""DuckDB's type inference never changes a number silently."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise import Log, evaluate
from poolwise.cli.commands import main
from poolwise.errors import (
    LogError,
    MissingColumnError,
    PoolwiseError,
    SourceError,
    UsageError,
)
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow  # all of them together take seconds
FIRST = 20_480  # rows from which DuckDB guesses by itself
LATE = FIRST + 10
EXACT = (LATE + 0.49) / (LATE + 1)  # rewards of 1, then one of 0.49; all weights are 1
ROLES: dict[str, Any] = {"logger": "logger", "reward": "reward", "propensity": "p"}


def naive(source: object, target: str = "p", **roles: Any) -> float:  # noqa: ANN401
    found = evaluate(Log(source, **(ROLES | roles)), target, "naive")
    return found["target"].estimates["naive"].value


def rows_of(source: object, **roles: Any) -> dict[str, int]:  # noqa: ANN401
    return dict(evaluate(Log(source, **(ROLES | roles)), "p", "naive").rows)


def late_csv(path: Path, last: str = "a,0.49,0.5\n", rows: int = LATE) -> Path:
    path.write_text("logger,reward,p\n" + "a,1,0.5\n" * rows + last, "utf-8")
    return path


def late_json(path: Path, last: object = 0.49) -> Path:
    lines = [{"logger": "a", "reward": 1, "p": 0.5}] * LATE
    lines.append({"logger": "a", "reward": last, "p": 0.5})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return path


FILES: dict[str, Callable[[Path], object]] = {
    "CSV": lambda folder: late_csv(folder / "log.csv"),
    "JSON lines": lambda folder: late_json(folder / "log.jsonl"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_late_fraction_is_not_rounded(kind: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"logger": "a", "reward": [1.0] * LATE + [0.49], "p": 0.5})
    found = naive(FILES[kind](tmp_path))
    assert found == pytest.approx(EXACT, rel=1e-12)
    assert found == naive(frame)


def test_a_late_fraction_in_one_of_several_files_is_not_rounded(tmp_path: Path) -> None:
    late_csv(tmp_path / "a.csv")
    late_csv(tmp_path / "b.csv", "", 10)
    (tmp_path / "c.csv").write_text("p,logger,reward\n0.5,a,1\n", "utf-8")
    expected = (LATE + 0.49 + 10) / (LATE + 11)
    assert naive([tmp_path / "a.csv", tmp_path / "b.csv"]) == pytest.approx(expected, rel=1e-12)
    assert naive(f"{tmp_path}/[ab].csv") == pytest.approx(expected, rel=1e-12)
    other = (LATE + 0.49 + 11) / (LATE + 12)  # its columns are in another order
    assert naive(f"{tmp_path}/*.csv") == pytest.approx(other, rel=1e-12)


def test_a_late_quotation_mark_is_no_part_of_a_label(tmp_path: Path) -> None:
    path = late_csv(tmp_path / "log.csv", '"a",1,0.5\n"b, c",1,0.5\n')
    assert rows_of(path) == {"a": LATE + 1, "b, c": 1}


def test_a_late_line_with_too_many_values_is_named(tmp_path: Path) -> None:
    path = late_csv(tmp_path / "log.csv", "a,1,0.5,7\n")
    with pytest.raises(PoolwiseError) as caught:  # in DuckDB's words
        naive(path)
    assert f"Line: {LATE + 2}" in str(caught.value)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_late_word_is_a_fault_of_its_row(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"log.{kind}"
    path = late_csv(path, "a,oops,0.5\n") if kind == "csv" else late_json(path, "oops")
    with refused(LogError):
        naive(path)
    assert naive(path, on_fault="drop") == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(("words", "status"), [((), 2), (("--on-fault", "drop"), 0)])
def test_a_late_word_decides_the_exit_status(
    words: tuple[str, ...], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = late_csv(tmp_path / "log.csv", "a,oops,0.5\n")
    named = ["--logger", "logger", "--reward", "reward", "--propensity", "p"]
    line = ["poolwise", "evaluate", str(path), *named, "--target", "new=p", *words]
    monkeypatch.setattr("sys.argv", line)
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0) == status


def test_the_size_of_the_sample_stays_the_choice_of_the_user(tmp_path: Path) -> None:
    told = {"sample_size": 100}
    assert naive(late_csv(tmp_path / "log.csv"), reader_options=told) != EXACT
    assert naive(late_json(tmp_path / "log.jsonl"), reader_options=told) != EXACT


def test_types_stay_the_choice_of_the_user(tmp_path: Path) -> None:
    told = {"types": {"reward": "DOUBLE", "logger": "DOUBLE"}}
    path = late_csv(tmp_path / "log.csv", "1.10,0.49,0.5\n", 0)
    assert rows_of(path, reader_options=told) == {"1.1": 1}
    everything = {"columns": {"logger": "DOUBLE", "reward": "DOUBLE", "p": "DOUBLE"}}
    assert rows_of(path, reader_options=everything) == {"1.1": 1}


CALLS = [
    "SELECT * FROM '{}'",
    "SELECT * FROM read_csv('{}')",
    "FROM read_csv_auto(['{}'])",
    "WITH x AS (SELECT * FROM read_csv('{}', delim = ',')) SELECT * FROM x",
]


@pytest.mark.parametrize("call", CALLS)
def test_a_select_looks_at_all_rows(call: str, tmp_path: Path) -> None:
    path = late_csv(tmp_path / "it's.csv")
    found = naive(call.format(str(path).replace("'", "''")))
    assert found == pytest.approx(EXACT, rel=1e-12)


@pytest.mark.parametrize(
    "call", ["FROM '{}'", "FROM read_json('{}')", "FROM read_ndjson('{}')"]
)
def test_a_select_of_json_looks_at_all_rows(call: str, tmp_path: Path) -> None:
    found = naive(call.format(late_json(tmp_path / "log.jsonl")))
    assert found == pytest.approx(EXACT, rel=1e-12)


def test_a_file_in_a_select_keeps_its_alias(tmp_path: Path) -> None:
    late_csv(tmp_path / "log.csv")
    for text in ("SELECT log.* FROM '{}'", "SELECT x.* FROM '{}' x WHERE x.p > 0"):
        found = naive(text.format(tmp_path / "log.csv"))
        assert found == pytest.approx(EXACT, rel=1e-12)
    renamed = "SELECT a AS logger, b AS reward, c AS p FROM '{}' AS x(a, b, c)"
    found = naive(renamed.format(tmp_path / "log.csv"))
    assert found == pytest.approx(EXACT, rel=1e-12)


@pytest.mark.parametrize(
    "more", ["sample_size = -1", "sample_size := -1", "types = {'reward': 'DOUBLE'}"]
)
def test_a_select_that_does_as_told_is_read(more: str, tmp_path: Path) -> None:
    path = late_csv(tmp_path / "log.csv")
    found = naive(f"SELECT * FROM read_csv('{path}', {more})")
    assert found == pytest.approx(EXACT, rel=1e-12)


def test_a_select_of_a_short_file_is_read(tmp_path: Path) -> None:
    path = late_csv(tmp_path / "log.csv", rows=9)
    assert naive(f"SELECT * FROM '{path}'") == pytest.approx(9.49 / 10, rel=1e-12)


MIDDLE = 5_003  # of 5,011 values, where DuckDB's own sample does not look
OBJECTS: dict[str, tuple[object, object]] = {
    "a Decimal among integers": (1, Decimal("0.49")),
    "a Decimal among Decimals": (Decimal(1), Decimal("0.49")),
    "a float among integers": (1, 0.49),
    "a float among Decimals": (Decimal(1), 0.49),
    "text among integers": (1, "0.49"),
    "a float of NumPy among integers": (1, np.float64(0.49)),
}


def objects(usual: object, odd: object) -> pd.DataFrame:
    values = [usual] * MIDDLE + [odd] + [usual] * 7
    return pd.DataFrame({"logger": "a", "reward": pd.Series(values, dtype=object), "p": 0.5})


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_of_pandas_are_not_rounded(kind: str) -> None:
    found = naive(objects(*OBJECTS[kind]))
    assert found == pytest.approx((MIDDLE + 7 + 0.49) / (MIDDLE + 8), rel=1e-12)


def test_a_word_among_objects_is_a_fault_of_its_row() -> None:
    with refused(LogError):
        naive(objects(1, "oops"))
    assert naive(objects(1, "oops"), on_fault="drop") == pytest.approx(1.0, rel=1e-12)


def test_truth_among_numbers_is_refused_or_right() -> None:
    with refused(PoolwiseError):
        naive(objects(1, odd=True))


LABELS = "logger,user,reward,p,q\n1.1,01,1,0.5,0.5\n1.10,1,0,0.5,0.5\n1.10,1,1,0.5,0.5\n"


def test_labels_that_look_like_numbers_are_not_merged(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(LABELS, "utf-8")
    (tmp_path / "more.csv").write_text("reward,p,q,user,logger\n1,0.5,0.5,1,2\n", "utf-8")
    apart = {"1.1": 1, "1.10": 2}
    assert rows_of(path) == apart
    assert rows_of(path, logger='"Logger"') == apart
    assert rows_of(path, reader_options={"sample_size": 100}) == apart
    assert rows_of([path, tmp_path / "more.csv"]) == apart | {"2": 1}
    assert rows_of(path, logger="user") == {"01": 1, "1": 2}
    crossed = {"1.1": "p", "1.10": "q"}
    assert rows_of(path, propensities=crossed, propensity=None) == apart


def test_units_that_look_like_numbers_are_not_merged(tmp_path: Path) -> None:
    units = [f"{unit}.{end}" for unit in range(4) for end in ("1", "10")]
    lines = [f"a,{unit},{int(unit[0]) % 2},0.5\n" for unit in units]
    (tmp_path / "log.csv").write_text("logger,user,reward,p\n" + "".join(lines), "utf-8")
    apart = pd.read_csv(tmp_path / "log.csv", dtype={"user": str})
    errors = [
        evaluate(Log(source, **ROLES, cluster="user"), "p", "naive")["target"]
        .estimates["naive"]
        .std_error
        for source in (tmp_path / "log.csv", apart, apart.astype({"user": float}))
    ]
    assert errors[0] == pytest.approx(errors[1], rel=1e-12)
    assert errors[0] < 0.9 * errors[2]  # 8 units, not 4


@pytest.mark.parametrize("labels", [(1, 2), ("1", "2")])
def test_integer_labels_of_csv_meet_their_propensities(
    labels: tuple[object, object], tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("logger,reward,p,q\n1,1,0.5,0.25\n2,0,0.5,0.25\n", "utf-8")
    known = dict(zip(labels, ("p", "q"), strict=True))
    assert rows_of(path, propensities=known, propensity=None) == {"1": 1, "2": 1}
    own = "case logger when 1 then 0.5 else 0.25 end"
    assert rows_of(path, propensity=own) == {"1": 1, "2": 1}


def test_a_partition_of_csv_may_still_be_the_logger(tmp_path: Path) -> None:
    for label in ("1.1", "1.10"):
        (tmp_path / f"logger={label}").mkdir()
        (tmp_path / f"logger={label}" / "x.csv").write_text("reward,p\n1,0.5\n", "utf-8")
    assert rows_of(f"{tmp_path}/*/*.csv") == {"1.1": 1, "1.10": 1}


TWICE = pa.table([["a"], [1.0], [0.0], [0.5]], names=["logger", "click", "click", "p"])
TWO_CASES = TWICE.rename_columns(["logger", "click", "Click", "p"])


def doubled_csv(folder: Path, names: str = "click,click") -> Path:
    path = folder / "log.csv"
    path.write_text(f"logger,{names},p\na,1,0,0.5\n", "utf-8")
    return path


def written(table: pa.Table, folder: Path) -> Path:
    pq.write_table(table, folder / "log.parquet")
    return folder / "log.parquet"


SAME: dict[str, Callable[[Path], object]] = {
    "Arrow": lambda _: TWICE,
    "pandas": lambda _: pd.DataFrame([["a", 1.0, 0.0, 0.5]], columns=TWICE.column_names),
    "CSV": doubled_csv,
    "Parquet": lambda folder: written(TWICE, folder),
}
ALIKE: dict[str, Callable[[Path], object]] = {
    "Arrow": lambda _: TWO_CASES,
    "pandas": lambda _: pd.DataFrame([["a", 1.0, 0.0, 0.5]], columns=TWO_CASES.column_names),
    "Polars": lambda _: pl.DataFrame(TWO_CASES.to_pydict()),
    "Polars, lazy": lambda _: pl.DataFrame(TWO_CASES.to_pydict()).lazy(),
    "CSV": lambda folder: doubled_csv(folder, "click,Click"),
    "Parquet": lambda folder: written(TWO_CASES, folder),
}


@pytest.mark.parametrize("role", ["click", "2 * CLICK"])
@pytest.mark.parametrize("kind", SAME)
def test_a_role_of_two_columns_is_refused(kind: str, role: str, tmp_path: Path) -> None:
    with refused(MissingColumnError):
        naive(SAME[kind](tmp_path), reward=role)


@pytest.mark.parametrize("kind", ALIKE)
def test_of_names_that_differ_in_case_the_second_is_refused(kind: str, tmp_path: Path) -> None:
    source = ALIKE[kind](tmp_path)
    with refused(UsageError):
        naive(source, reward="Click")
    assert naive(source, reward="click") == 1.0


@pytest.mark.parametrize("kind", SAME)
def test_a_target_of_two_columns_is_refused(kind: str, tmp_path: Path) -> None:
    with refused(PoolwiseError):
        naive(SAME[kind](tmp_path), "click / 2", reward="p")


@pytest.mark.parametrize("kind", SAME)
def test_two_columns_of_one_name_do_no_harm_unused(kind: str, tmp_path: Path) -> None:
    if kind == "Arrow" and duckdb.__version__ < "2":
        pytest.skip("DuckDB 1 reads no table of Arrow with two such columns, and says so")
    assert naive(SAME[kind](tmp_path), reward="p") == 0.5


def test_a_name_with_a_number_at_its_end_is_a_name(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("logger,reward,p,p_1,reward\na,1,0.5,0.25,7\n", "utf-8")
    assert naive(path, "p_1", reward="p") == 0.25
    with pytest.raises(MissingColumnError):
        naive(path, reward="reward_1")


def test_a_frame_may_lie_backwards() -> None:
    frame = pd.DataFrame({"logger": ["a", "b"], "reward": [1.0, 0.0], "p": [0.5, 0.25]})
    assert naive(frame[::-1], "0.25") == naive(frame, "0.25") == pytest.approx(0.25, rel=1e-12)


@pytest.mark.parametrize("source", [pd.Series([1.0]), {1.0}], ids=["series", "set"])
def test_what_is_no_frame_is_refused_in_words(source: object) -> None:
    with refused(UsageError):
        naive(source)


def test_a_generator_is_refused_in_words() -> None:
    with refused(UsageError):
        naive(row for row in [1])


def test_columns_of_strange_types_are_named() -> None:
    frame = pd.DataFrame({"logger": ["a"], "reward": [1.0], "p": [0.5]})
    frame["between"] = pd.array([pd.Interval(0, 1)])
    frame["month"] = pd.PeriodIndex(["2024-01"], freq="M")
    with refused(SourceError):
        naive(frame)
    assert naive(frame.drop(columns=["between", "month"])) == 1.0


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_the_way_out_of_a_wrong_encoding_is_told(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes("logger,reward,p\ngröße,1,0.5\nb,0,0.5\n".encode(encoding))
    with refused(SourceError) as caught:
        naive(path)
    assert "\n" not in str(caught.value)
    assert naive(path, reader_options={"encoding": encoding}) == 0.5
