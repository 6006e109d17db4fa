"""Files that are damaged, empty, unusual or changing: one clear error, or the result."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

import poolwise.engines.parallel as engine
from poolwise import evaluate
from poolwise.errors import PoolwiseError
from tests.support.hard.case import Case, base, write
from tests.support.hard.outcome import Run, check_answer, check_refused, expected, read_answer
from tests.support.messages import check_text

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN = Case(base())
WORDS = PLAIN.words()


def _parquet(folder: Path, **options: object) -> Path:
    path = folder / "log.parquet"
    pq.write_table(PLAIN.table, path, **options)
    return path


def _changed(path: Path, change: Callable[[bytearray], object]) -> str:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    return str(path)


def _cut(folder: Path, keep: float) -> str:
    def shorten(content: bytearray) -> None:
        del content[int(keep * len(content)) :]

    return _changed(_parquet(folder), shorten)


def _flipped(folder: Path) -> str:
    """Every byte of the data pages is another one; the footer is whole."""
    path = _parquet(folder, compression="zstd")
    start = pq.read_metadata(path).row_group(0).column(1).data_page_offset

    def flip(content: bytearray) -> None:
        for place in range(start + 8, start + 200):
            content[place] ^= 0xFF

    return _changed(path, flip)


def _footer(folder: Path) -> str:
    def flip(content: bytearray) -> None:
        for place in range(len(content) - 60, len(content) - 8):
            content[place] ^= 0x5A

    return _changed(_parquet(folder), flip)


def _content(folder: Path, name: str, content: bytes) -> str:
    path = folder / name
    path.write_bytes(content)
    return str(path)


def _folder(folder: Path) -> str:
    (folder / "nothing").mkdir()
    return str(folder / "nothing")


def _csv(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pc.write_csv(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


BROKEN: dict[str, Callable[[Path], str]] = {
    "an empty Parquet file": lambda folder: _content(folder, "log.parquet", b""),
    "an empty CSV file": lambda folder: _content(folder, "log.csv", b""),
    "an empty JSON file": lambda folder: _content(folder, "log.jsonl", b""),
    "half a Parquet file": lambda folder: _cut(folder, 0.5),
    "a Parquet file without its end": lambda folder: _cut(folder, 0.99),
    "a Parquet file of four bytes": lambda folder: _content(folder, "log.parquet", b"PAR1"),
    "Parquet with broken pages": _flipped,
    "Parquet with a broken footer": _footer,
    "text called Parquet": lambda folder: _content(folder, "log.parquet", b"a,b\n1,2\n" * 50),
    "Parquet called CSV": lambda folder: shutil.copy(_parquet(folder), str(folder / "log.csv")),
    "Parquet called JSON": lambda folder: shutil.copy(
        _parquet(folder), str(folder / "log.json")
    ),
    "JSON that ends in the middle": lambda folder: _content(
        folder, "log.json", b'[{"reward": 1, "p": 0.5, "t'
    ),
    "JSON of one number": lambda folder: _content(folder, "log.json", b"1"),
    "JSON of lists": lambda folder: _content(folder, "log.json", b"[[1, 2], [3]]"),
    "JSON with NaN": lambda folder: _content(
        folder, "log.jsonl", b'{"logger": "a", "reward": NaN, "p": 0.5, "t": 0.5}\n'
    ),
    "CSV that is not text": lambda folder: _content(
        folder, "log.csv", b"\xff\xfe\x00\x81" * 99
    ),
    "CSV of zero bytes": lambda folder: _content(folder, "log.csv", b"\0" * 4096),
    "gzip that is not gzip": lambda folder: _content(folder, "log.csv.gz", b"reward,p\n1,2\n"),
    "half a gzip": lambda folder: _content(
        folder, "log.csv.gz", gzip.compress(_csv(base(400)), mtime=0)[:3000]
    ),
    "a file that is not there": lambda folder: str(folder / "nobody.parquet"),
    "a glob that matches nothing": lambda folder: str(folder / "*.parquet"),
    "an empty folder": _folder,
    "a path of 5,000 characters": lambda folder: str(folder / ("x" * 5000 + ".parquet")),
    "an empty path": lambda _: "",
    "a path with a zero byte": lambda folder: str(folder / "a\0b.parquet"),
    "a device": lambda _: "/dev/null",
    "an ending nobody knows": lambda folder: _content(folder, "log.xlsx", b"PK"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_clear_error(run: Run, tmp_path: Path, name: str) -> None:
    path = BROKEN[name](tmp_path)
    found = run("evaluate", path, *WORDS, "--json")
    check_refused(found)
    first, *_ = found.err.splitlines()
    assert 20 < len(first) < 6000


def _bom(folder: Path) -> list[str]:
    return [_content(folder, "log.csv", b"\xef\xbb\xbf" + _csv(PLAIN.table))]


def _crlf(folder: Path) -> list[str]:
    return [_content(folder, "log.csv", _csv(PLAIN.table).replace(b"\n", b"\r\n"))]


def _semicolons(folder: Path) -> list[str]:
    return [_content(folder, "log.csv", _csv(PLAIN.table).replace(b",", b";"))]


def _zipped(folder: Path) -> list[str]:
    return [_content(folder, "log.csv.gz", gzip.compress(_csv(PLAIN.table), mtime=0))]


def _small_groups(folder: Path) -> list[str]:
    return [str(_parquet(folder, row_group_size=1))]


def _empty_beside(folder: Path) -> list[str]:
    """One file of all rows and one of none; and an empty row group between full ones."""
    schema = PLAIN.table.schema
    pq.write_table(PLAIN.table.slice(0, 0), folder / "none.parquet")
    with pq.ParquetWriter(folder / "log.parquet", schema) as writer:
        for part in (PLAIN.table.slice(0, 50), PLAIN.table.slice(0, 0), PLAIN.table.slice(50)):
            writer.write_table(part, row_group_size=20)
    return [str(folder / "none.parquet"), str(folder / "log.parquet")]


def _by_logger(folder: Path) -> list[str]:
    """A logger that is in one file only."""
    labels = PLAIN.table["logger"]
    for label in ("a", "b"):
        pq.write_table(
            PLAIN.table.filter(pa.array([x == label for x in labels.to_pylist()])),
            folder / f"{label}.parquet",
        )
    return [str(folder / "a.parquet"), str(folder / "b.parquet")]


def _mixed(folder: Path) -> list[str]:
    """One format after the other, columns in another order."""
    names = list(reversed(PLAIN.table.column_names))
    pq.write_table(PLAIN.table.slice(0, 40), folder / "log.parquet")
    rest = PLAIN.table.slice(40).select(names)
    return [str(folder / "log.parquet"), _content(folder, "rest.csv", _csv(rest))]


def _strange_path(folder: Path) -> list[str]:
    inner = folder / 'it\'s a "folder"; drop -- жé🦆 a=b #%'
    inner.mkdir()
    return [str(shutil.move(_parquet(folder), inner / "lög 'x'.parquet"))]


def _link(folder: Path) -> list[str]:
    link = folder / "link.parquet"
    link.symlink_to(_parquet(folder))
    return [str(link)]


def _widened(folder: Path) -> list[str]:
    """The same column as single and as double precision, in two files of one log."""
    wide = PLAIN.table.slice(0, 45)
    narrow = PLAIN.table.slice(45)
    place = narrow.column_names.index("logger")
    narrow = narrow.set_column(place, "logger", narrow["logger"].cast(pa.large_string()))
    pq.write_table(wide, folder / "1.parquet")
    pq.write_table(narrow, folder / "2.parquet")
    return [str(folder / "*.parquet")]


STRANGE: dict[str, Callable[[Path], list[str]]] = {
    "CSV with a mark of the byte order": _bom,
    "CSV as Windows writes it": _crlf,
    "CSV with semicolons": _semicolons,
    "CSV in gzip": _zipped,
    "row groups of one row": _small_groups,
    "files and row groups without rows": _empty_beside,
    "a logger in one file only": _by_logger,
    "Parquet and CSV together": _mixed,
    "a path full of quotes": _strange_path,
    "a symbolic link": _link,
    "two types of one column": _widened,
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_file_gives_the_same_answer(run: Run, tmp_path: Path, name: str) -> None:
    paths = STRANGE[name](tmp_path)
    found = run("evaluate", *paths, *WORDS, "--json")
    check_answer(read_answer(found), expected(PLAIN), 1e-9)


def test_a_logger_in_one_source_of_a_mapping_only(tmp_path: Path) -> None:
    first, second = _by_logger(tmp_path)
    case = Case(PLAIN.table, roles={"reward": "reward", "propensity": "p"})
    found = evaluate(case.log({"a": first, "b": second}), {"new": "t"})
    judge = expected(PLAIN)
    assert found.rows == judge.rows
    for name, estimate in judge["new"].estimates.items():
        assert found["new"].estimates[name].value == pytest.approx(estimate.value, rel=1e-9)


def _twice() -> pa.Table:
    return pa.concat_tables([PLAIN.table, PLAIN.table])


def _fewer() -> pa.Table:
    return PLAIN.table.slice(0, 30)


def _other_columns() -> pa.Table:
    return PLAIN.table.drop_columns(["t"])


REPLACED = {"twice": _twice, "fewer": _fewer, "other-columns": _other_columns}


@pytest.mark.parametrize("form", ["parquet", "csv"])
@pytest.mark.parametrize("kind", [*REPLACED, "gone", "torn"])
def test_a_file_that_is_replaced_while_it_is_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, kind: str
) -> None:
    """The file is replaced after its rows were counted."""
    path = Path(str(write(PLAIN.table, form, tmp_path)))
    plan_layout: Callable[..., object] = vars(engine)["plan_layout"]

    def late(*arguments: object) -> object:
        if kind == "gone":
            path.unlink(missing_ok=True)
        elif kind == "torn":
            os.truncate(path, path.stat().st_size // 3)
        else:
            other = tmp_path / "other"
            other.mkdir(exist_ok=True)
            Path(str(write(REPLACED[kind](), form, other))).replace(path)
        return plan_layout(*arguments)

    monkeypatch.setattr(engine, "plan_layout", late)
    found = run("evaluate", str(path), *WORDS, "--json")
    if form == "csv":  # read once, before it was replaced
        check_answer(read_answer(found), expected(PLAIN), 1e-9)
    else:
        check_refused(found)


def test_a_file_nobody_may_read(run: Run, tmp_path: Path) -> None:
    path = _parquet(tmp_path)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    check_refused(run("evaluate", str(path), *WORDS))


@pytest.mark.parametrize(
    "words",
    [
        ["--level", "nan"],
        ["--level", "0"],
        ["--level", "1"],
        ["--reward-range", "nan,1"],
        ["--reward-range", "-inf,inf"],
        ["--reward-range", "0,inf"],
        ["--cluster", "nobody"],
        ["--target", "=t"],
        ["--reward-range", "-1e308,1e308", "--interval", "betting"],
        ["--trained-on", "zzz=a"],
        ["--html", "/dev/null/x.html"],
    ],
)
def test_a_bad_option_is_one_clear_error(run: Run, tmp_path: Path, words: list[str]) -> None:
    path = str(_parquet(tmp_path))
    found = run("evaluate", path, *WORDS, *words, "--json", page=False)
    check_refused(found)
    check_text(found.err)


@pytest.mark.parametrize("command", ["compare", "plan", "check", "sql"])
def test_other_commands_refuse_as_clearly(run: Run, tmp_path: Path, command: str) -> None:
    more = {"plan": ["--half-width", "0.1"]}.get(command, [])
    found = run(command, _cut(tmp_path, 0.5), *WORDS, *more, page=False)
    if command == "sql":  # prints a query and reads nothing
        assert found.status in {0, 2}
        assert "Traceback" not in found.err
    else:
        check_refused(found)


def test_columns_of_one_name_are_told_apart_or_refused() -> None:
    table = pa.table(
        [PLAIN.table[n] for n in PLAIN.table.column_names] + [PLAIN.table["p"]],
        names=[*PLAIN.table.column_names, "t"],
    )
    try:
        found = evaluate(PLAIN.log(table), {"new": "t"})
    except PoolwiseError:
        return
    judge = expected(PLAIN)["new"].estimates["naive"].value
    assert found["new"].estimates["naive"].value == pytest.approx(judge, rel=1e-9)
