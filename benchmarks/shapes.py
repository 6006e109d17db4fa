"""Speed in the shapes that logs have: labels, types, files, frames, clusters, dropped rows.

Run: python -m benchmarks.shapes [--rows ROWS] [--only NAME ...]

Each shape holds the same rows.  A child process decodes its files in two threads and
evaluates it, in turn, and keeps the best time of each.  With the default number of rows the
results are written to docs/figures/shapes.csv and to docs/scale.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import data
from benchmarks.kept import DOCS, ROOT, markdown, write_csv, write_part
from benchmarks.speed import WARM, peak_megabytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import poolwise as pw

ROWS = 10**7
KEPT, MARKER = DOCS / "figures" / "shapes.csv", "shapes"
REPEATS = 5
OF_USER, FILES = 10, 2_000  # rows of one user, on average; small files
MAPPED = 10  # actions of a map
STARTS = 10  # new processes for each time of a start
FIELDS = ("shape", "rows", "decode", "evaluate", "megabytes", "limit")


@dataclass(frozen=True)
class Shape:
    """One form of the benchmark's log.

    Attributes:
        name: Name on the command line and of the files.
        text: Name in the table.
        limit: Largest multiple of decoding; None where there is no limit.
        change: Changes one table of rows.
        roles: Arguments of `Log` that differ.
        target: Column or SQL expression.
        source: Turns the files into a source.
        files: Number of files: 1, one for each logger (0), or many.
        size: Targets and loggers.
        part: Share of the rows that the shape has.
    """

    name: str
    text: str
    limit: float | None = None
    change: Callable[[pa.Table], pa.Table] = lambda table: table
    roles: Mapping[str, Any] = field(default_factory=dict)
    target: str = "t_0"
    source: Callable[[list[Path]], Any] = lambda paths: [str(path) for path in paths]
    files: int = 1
    size: tuple[int, int] = (1, 5)
    part: float = 1.0


def _with(table: pa.Table, **columns: pa.ChunkedArray) -> pa.Table:
    for name, values in columns.items():
        table = table.set_column(table.schema.names.index(name), name, values)
    return table


def _integers(table: pa.Table) -> pa.Table:
    labels = pc.utf8_slice_codeunits(table["logger"], 1)
    return _with(table, logger=pc.cast(labels, pa.int64()))


def _float32(table: pa.Table) -> pa.Table:
    names = [name for name in table.schema.names if name not in {"logger", "reward"}]
    narrow = {name: pc.cast(table[name], pa.float32(), safe=False) for name in names}
    return _with(table, **narrow)


def _whole_rewards(table: pa.Table) -> pa.Table:
    return _with(table, reward=pc.cast(pc.round(table["reward"]), pa.int32()))


def users_of(users: int) -> Callable[[pa.Table], pa.Table]:
    """Return a function that appends a column of users; 0 means a tenth of the rows."""

    def change(table: pa.Table) -> pa.Table:
        rng = np.random.default_rng(table.num_rows)
        most = users or max(1, table.num_rows // OF_USER)
        return table.append_column("user", pa.array(rng.integers(0, most, table.num_rows)))

    return change


def _maps(table: pa.Table) -> pa.Table:
    """Return a table whose target is the distribution of ten actions, one of them logged."""
    own = table["t_0"].to_numpy()
    logged = np.arange(len(own)) % MAPPED
    names = pa.array([f"action_{k}" for k in range(MAPPED)])
    values = np.repeat((1 - own) / (MAPPED - 1), MAPPED)
    values[np.arange(len(own)) * MAPPED + logged] = own
    keys = pa.DictionaryArray.from_arrays(np.tile(np.arange(MAPPED), len(own)), names)
    starts = pa.array(np.arange(0, len(values) + 1, MAPPED), pa.int32())
    maps = pa.MapArray.from_arrays(starts, keys.dictionary_decode(), pa.array(values))
    table = _with(table, t_0=pa.chunked_array([maps]))
    return table.append_column("item", names.take(pa.array(logged)))


def _pandas(paths: list[Path]) -> object:
    return pq.read_table(paths[0]).to_pandas()


def _polars(paths: list[Path]) -> object:
    import polars as pl

    return pl.read_parquet(paths[0])


def _select(paths: list[Path]) -> str:
    return f"SELECT * FROM '{paths[0]}'"  # noqa: S608 - our own path


def _where(paths: list[Path]) -> str:
    return f"{_select(paths)} WHERE reward IS NOT NULL"


def _by_logger(paths: list[Path]) -> dict[str, str]:
    return {path.stem.rpartition("_")[2]: str(path) for path in paths}


INTEGERS = {"propensities": {str(k): f"p_{k}" for k in range(5)}}
CLUSTERS = {"cluster": "user"}
SHAPES = (
    Shape("string", "string labels, doubles", 1.3),
    Shape("integer", "integer labels", 1.4, _integers, INTEGERS),
    Shape(
        "dictionary",
        "dictionary-encoded labels",
        1.4,
        lambda t: _with(t, logger=t["logger"].dictionary_encode()),
    ),
    Shape(
        "boolean", "boolean reward", 1.4, lambda t: _with(t, reward=pc.greater(t["reward"], 1))
    ),
    Shape("float32", "float32 probabilities", 1.4, _float32),
    Shape("whole", "integer reward", 1.4, _whole_rewards),
    Shape(
        "loggers",
        "one file per logger",
        1.4,
        roles={"logger": None},
        source=_by_logger,
        files=0,
    ),
    Shape("files", f"{FILES:,} small files", 1.6, files=FILES),
    Shape("expression", "SQL expression as target", 1.6, target="1.0 * t_0"),
    Shape("select", "a SELECT of a file", 1.8, source=_select),
    Shape("where", "a SELECT with a condition", 1.8, source=_where),
    Shape("cluster", "`cluster=` (200 buckets by user)", 2.2, users_of(0), CLUSTERS),
    Shape("drop", '`on_fault="drop"`', 1.8, roles={"on_fault": "drop"}),
    Shape("pandas", "pandas frame", 0.6, source=_pandas),
    Shape("polars", "Polars frame", 0.6, source=_polars),
    Shape(
        "map",
        "a map of 10 actions as target",
        2.0,
        _maps,
        {"action": "item"},
        part=0.2,  # more than a million rows, which have no backtest by default
    ),
    Shape("30-loggers", "30 loggers", size=(1, 30), part=0.1),
    Shape("200-loggers", "200 loggers", size=(1, 200), part=0.1),
    Shape("100-targets", "100 targets", size=(100, 5), part=0.1),
    Shape("million", "a cluster for each row", None, users_of(2**40), CLUSTERS, part=0.1),
)
BY_NAME = {shape.name: shape for shape in SHAPES}


def files_of(shape: Shape, rows: int) -> list[Path]:
    """Return the files of a shape; write them on first use."""
    targets, loggers = shape.size
    base = data.log_file(int(rows * shape.part), targets=targets, loggers=loggers)
    folder = data.FOLDER / f"shapes_{rows}" / shape.name
    if shape.files == 0:
        labels = [f"v{k}" for k in range(loggers)]
        return [data.written(folder / f"of_{v}.parquet", _only(base, v)) for v in labels]
    if shape.files > 1:
        return _small_files(base, folder, shape.files)
    if shape.change is Shape.change:
        return [base]
    return [data.written(folder / "log.parquet", map(shape.change, _tables(base)))]


def _tables(path: Path) -> Iterable[pa.Table]:
    for batch in pq.ParquetFile(path).iter_batches(data.CHUNK):
        yield pa.Table.from_batches([batch])


def _only(path: Path, label: str) -> Iterable[pa.Table]:
    for table in _tables(path):
        yield table.filter(pc.equal(table["logger"], label)).drop_columns(["logger"])


def _small_files(base: Path, folder: Path, files: int) -> list[Path]:
    total = pq.read_metadata(base).num_rows
    rows = -(-total // files)
    paths = [folder / f"{number:05}.parquet" for number in range(-(-total // rows))]
    if not all(path.exists() for path in paths):  # to read the base takes a gigabyte
        batches = pq.ParquetFile(base).iter_batches(rows)
        for path, batch in zip(paths, batches, strict=True):
            data.written(path, [pa.Table.from_batches([batch])])
    return paths


def log_of(shape: Shape, paths: list[Path]) -> pw.Log:
    """Return the log of a shape."""
    import poolwise as pw

    loggers = {f"v{k}": f"p_{k}" for k in range(shape.size[1])}
    roles: dict[str, Any] = {"logger": "logger", "propensities": loggers, **shape.roles}
    return pw.Log(shape.source(paths), reward="reward", propensity="p", **roles)


def evaluate(shape: Shape, log: pw.Log) -> pw.Evaluation:
    """Evaluate the targets of a shape with all defaults."""
    import poolwise as pw

    many = {f"t_{k}": f"t_{k}" for k in range(shape.size[0])}
    return pw.evaluate(log, many if len(many) > 1 else {"t_0": shape.target})


def decode(paths: Sequence[Path]) -> None:
    """Read every column with pyarrow, row groups in two threads."""

    def read(first: int) -> None:
        for number, path in enumerate(paths):
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                if (number + group) % 2 == first:
                    file.read_row_group(group, use_threads=False)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, range(2)))


def measure_here(shape: Shape, rows: int) -> dict[str, float]:
    """Measure decoding and evaluating in turn, in this process, after a warm start."""
    evaluate(shape, log_of(shape, files_of(shape, WARM)))
    paths = files_of(shape, rows)
    log = log_of(shape, paths)
    times: dict[str, list[float]] = {"decode": [], "evaluate": []}
    for _ in range(REPEATS):
        start = time.perf_counter()
        decode(paths)
        middle = time.perf_counter()
        evaluate(shape, log)
        times["decode"].append(middle - start)
        times["evaluate"].append(time.perf_counter() - middle)
    best = {name: min(each) for name, each in times.items()}
    return best | {"megabytes": peak_megabytes("evaluate")}


def measured(shape: Shape, rows: int) -> dict[str, float]:
    """Measure a shape in its own process."""
    for size in (WARM, rows):
        files_of(shape, size)
    words = [
        sys.executable,
        "-m",
        "benchmarks.shapes",
        "--here",
        shape.name,
        "--rows",
        str(rows),
    ]
    done = subprocess.run(words, check=True, cwd=ROOT, stdout=subprocess.PIPE)  # noqa: S603
    numbers: dict[str, float] = json.loads(done.stdout)
    return numbers


# From the first call.

IMPORT = "import time; a = time.perf_counter(); import poolwise; print(time.perf_counter() - a)"
FIRST = """
import sys, time
from benchmarks import shapes
shape = shapes.BY_NAME["string"]
log = shapes.log_of(shape, [sys.argv[1]])
times = []
for _ in range(5):
    start = time.perf_counter()
    shapes.evaluate(shape, log)
    times.append(time.perf_counter() - start)
print(times[0] - min(times[1:]))
"""


def starts() -> dict[str, tuple[float, float]]:
    """Return seconds and limit of a new process: import, first evaluation, command."""
    path = data.log_file(WARM)
    listed = ",".join(f"v{k}=p_{k}" for k in range(5))
    program = Path(sys.executable).with_name("poolwise")
    roles = ["--logger", "logger", "--reward", "reward", "--propensity", "p"]
    words = [program, "evaluate", path, *roles, "--propensities", listed, "--target", "t_0=t_0"]
    times = {
        "`import poolwise`": ([_printed(IMPORT) for _ in range(STARTS)], 0.1),
        "first `evaluate` of 10,000 rows, less a warm one": (
            [_printed(FIRST, str(path)) for _ in range(STARTS)],
            0.6,
        ),
        "`poolwise evaluate`, from shell to prompt": (
            [_seconds(list(map(str, words))) for _ in range(STARTS)],
            0.9,
        ),
    }
    return {text: (min(each), limit) for text, (each, limit) in times.items()}


def _printed(program: str, *words: str) -> float:
    call = [sys.executable, "-c", program, *words]
    done = subprocess.run(  # noqa: S603 - our own
        call, check=True, cwd=ROOT, env=_installed(), stdout=subprocess.PIPE
    )
    return float(done.stdout)


def _seconds(words: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(words, check=True, env=_installed(), stdout=subprocess.DEVNULL)  # noqa: S603 - our own
    return time.perf_counter() - start


def _installed() -> dict[str, str]:
    """Return an environment in which Python keeps compiled modules, as an install does."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


# The table.

BEFORE = """\
### In every shape

Seconds of `evaluate` (5 loggers and 1 target, all defaults, warm) and of decoding the same
files in two threads, both in one process and in turn, the best of five; megabytes are the
peak of that process. Shapes without a limit have a tenth of the rows, the map a fifth.
`python -m benchmarks.shapes` measures them all."""


def table(lines: Iterable[Mapping[str, Any]]) -> str:
    """Return the measured shapes as Markdown."""
    cells = []
    for line in lines:
        decoding, evaluating = float(line["decode"] or 0), float(line["evaluate"])
        ratio = f"{evaluating / decoding:.2f}" if decoding else "-"
        memory = f"{float(line['megabytes']):,.0f}" if line["megabytes"] else "-"
        seconds = f"{decoding:.2f}" if decoding else "-"
        limit = str(line["limit"]) or "-"
        cells.append([line["shape"], seconds, f"{evaluating:.2f}", ratio, limit, memory])
    return markdown(["shape", "decoding", "`evaluate`", "multiple", "limit", "MB"], cells)


def read_shapes(path: Path = KEPT) -> list[dict[str, str]]:
    """Read the stored measurements."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def measure(names: Sequence[str], rows: int) -> tuple[list[tuple[object, ...]], bool]:
    """Measure shapes, and starts if all shapes are named; return lines, and True if well."""
    lines: list[tuple[object, ...]] = []
    well = True
    for shape in (BY_NAME[name] for name in names):
        numbers = measured(shape, rows)
        ratio = numbers["evaluate"] / numbers["decode"]
        well &= shape.limit is None or ratio <= shape.limit
        each = [f"{numbers[name]:.4g}" for name in ("decode", "evaluate", "megabytes")]
        lines.append((shape.text, int(rows * shape.part), *each, shape.limit or ""))
        print(f"{ratio:8.2f}  {shape.limit or '-':>4}  {shape.text}", flush=True)
    for text, (seconds, limit) in starts().items() if len(lines) == len(SHAPES) else ():
        well &= seconds <= limit
        lines.append((text, WARM, "", f"{seconds:.4g}", "", f"{limit} s"))
        print(f"{seconds:6.2f} s  {limit:>4}  {text}", flush=True)
    return lines, well


def measure_all() -> bool:
    """Measure every shape, write the table, and return True if each limit holds."""
    lines, well = measure(list(BY_NAME), ROWS)
    write_csv(KEPT, FIELDS, lines)
    write_part(DOCS / "scale.md", MARKER, f"{BEFORE}\n\n{table(read_shapes())}")
    return well


def main() -> int:
    """Measure; the exit status is 1 if a limit does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=float, default=ROWS)
    parser.add_argument("--only", nargs="*", default=list(BY_NAME), choices=list(BY_NAME))
    parser.add_argument("--here", choices=list(BY_NAME), help=argparse.SUPPRESS)
    options = parser.parse_args()
    rows = int(options.rows)
    if options.here:
        print(json.dumps(measure_here(BY_NAME[options.here], rows)))
        return 0
    if rows == ROWS and len(options.only) == len(SHAPES):
        return 0 if measure_all() else 1
    return 0 if measure(options.only, rows)[1] else 1


if __name__ == "__main__":
    sys.exit(main())
