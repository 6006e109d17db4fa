"""Decision-service JSON: the logs of Vowpal Wabbit and Azure Personalizer.

Each line is one decision: its context, the probabilities of all actions, the action that
was drawn, and its cost once that is known.  A line of some kilobytes becomes a row of a few
numbers, so that files are read once, line by line, in bounded memory.  The probabilities are
those of the model that wrote the line; what other models would have done is not in the file.
"""

from __future__ import annotations

import glob
import gzip
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, TypeAlias, cast

from poolwise.errors import Fault, LogError, SourceError, UsageError
from poolwise.formats.dsjson_line import (
    BrokenError,
    Row,
    SkippedError,
    decision,
    parsed,
    value_at,
)
from poolwise.log.log import Log, OnFault
from poolwise.rows.output import PARQUET, refuse_output, telling, whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

Paths: TypeAlias = str | Path | Sequence[str | Path]
LoggerFrom = Literal["model", "file"] | None

UNIFORM = "1.0 / action_count"  # target: every action alike
FIRST = "if(action = 1, 1.0, 0.0)"  # target: the first of the actions on offer, always
GREEDY = "if(action = list_position(probabilities, list_max(probabilities)), 1.0, 0.0)"

ENDINGS = ("*.json", "*.dsjson", "*.json.gz", "*.dsjson.gz")  # files of a folder
BATCH_ROWS = 20_000
SHOWN_LINES = 3  # places that a fault names
ADVICE = (
    "Correct these lines where they are written, or leave them out with on_fault='drop'. "
    "Lines that are missing because of their cost or action cannot be made up for."
)


@dataclass(frozen=True, eq=False)
class Decisions:
    """What decision files held.

    Attributes:
        source: The rows: an Arrow table, or the Parquet file they were saved to.
        rows: Number of decisions.
        skipped: Lines that are no decisions, by what they are.
        faults: Lines that were left out because they are broken.
        log: The rows as a log.
    """

    source: pa.Table | Path
    rows: int
    skipped: Mapping[str, int]
    faults: tuple[Fault, ...]
    log: Log


def from_dsjson(
    paths: Paths,
    *,
    logger: LoggerFrom = "model",
    context: Sequence[str] = (),
    cost: str = "_label_cost",
    save: str | Path | None = None,
    on_fault: OnFault = "raise",
) -> Log:
    """Read decision-service lines of Vowpal Wabbit or Azure Personalizer into a log.

    The log has the columns logger, action (counted from 1), reward (minus the cost),
    propensity, event_id, probabilities (of every action, in the order of their numbers),
    action_count, time and pdrop.  Only own propensities are known: naive works as it is,
    balanced needs `estimate_mixture`, and that needs the `context` the models saw.

    Where `pdrop` says that lines were thinned out unevenly, the reward of each line counts
    for the decisions it stands for.  That holds where thinning looked at neither the action
    nor its reward.

    Args:
        paths: A file, a folder or a list of them; `.gz` is read as it is.
        logger: What tells loggers apart: the "model" id, the "file", or None for one logger.
        context: Values to keep as columns of text, by their path below `c`: "User.age".
        cost: Field of the cost; `_original_label_cost` is what it was before any default.
        save: Parquet file to write the rows to; without it they stay in memory.
        on_fault: Refuse files with broken lines ("raise"), or leave these out ("drop").

    Raises:
        LogError: Lines are broken; all faults together, with the places of some.
    """
    return read_dsjson(
        paths, logger=logger, context=context, cost=cost, save=save, on_fault=on_fault
    ).log


def read_dsjson(
    paths: Paths,
    *,
    logger: LoggerFrom = "model",
    context: Sequence[str] = (),
    cost: str = "_label_cost",
    save: str | Path | None = None,
    on_fault: OnFault = "raise",
) -> Decisions:
    """As `from_dsjson`, with a record of the lines that were left out."""
    _check_options(logger, context, on_fault)
    files = _files(paths)
    if save is not None:
        refuse_output(save, PARQUET, files)
    reading = _Reading(logger, tuple(context), cost)
    lines = reading.batches(files)
    schema = _schema(context)
    if save is None:
        source, done = _in_memory(lines, schema), reading.done(on_fault)
    else:
        source = Path(save)
        done = _saved(lines, schema, source, reading, on_fault)
    log = Log(
        source,
        logger="logger",
        action="action",
        reward=reading.reward(),
        propensity="propensity",
        context=tuple(context) or ("action_count",),  # not event ids and times
        on_fault=on_fault,
    )
    return Decisions(source, reading.rows, dict(reading.skipped), done, log)


def _check_options(logger: object, context: object, on_fault: object) -> None:
    if logger not in {"model", "file", None}:
        raise UsageError(f"`logger` is 'model', 'file' or None, not {logger!r}")
    if isinstance(context, str):
        raise UsageError("`context` is a list of paths, not one path")
    taken = sorted({*Row._fields} & {*cast("Sequence[str]", context)})
    if taken:
        raise UsageError(f"context {taken[0]!r} has the name of a column that is there already")
    if on_fault not in {"raise", "drop"}:
        raise UsageError(f"`on_fault` is 'raise' or 'drop', not {on_fault!r}")


def _files(paths: Paths) -> list[Path]:
    """The files, in order; a folder stands for those below it."""
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    files: list[Path] = []
    for path in map(Path, listed):
        found = _found(path)
        if not found:
            raise SourceError(str(path), f"there is no file ({', '.join(ENDINGS)})")
        files += found
    if not files:
        raise UsageError("the list of files is empty: there is nothing to read")
    return files


def _found(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted({p for ending in ENDINGS for p in path.rglob(ending)})
    if glob.has_magic(str(path)) and not path.exists():
        return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    return [path]


@dataclass
class _Thinning:
    """How the lines of one logger were thinned out."""

    rows: int = 0
    decisions: float = 0.0  # that the lines stand for
    lowest: float = math.inf
    highest: float = -math.inf

    def add(self, pdrop: float) -> None:
        self.rows += 1
        self.decisions += 1 / (1 - pdrop)
        self.lowest, self.highest = min(self.lowest, pdrop), max(self.highest, pdrop)


@dataclass
class _Reading:
    """Counts what is read while files become rows."""

    logger: LoggerFrom
    context: tuple[str, ...]
    cost: str
    skipped: dict[str, int] = field(default_factory=dict)
    broken: dict[str, list[str]] = field(default_factory=dict)
    broken_rows: dict[str, int] = field(default_factory=dict)
    thinning: dict[str, _Thinning] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.thinning.values())

    def batches(self, files: Sequence[Path]) -> Iterator[list[tuple[object, ...]]]:
        batch: list[tuple[object, ...]] = []
        for path in files:
            for row in self._file(path):
                batch.append(row)
                if len(batch) == BATCH_ROWS:
                    yield batch
                    batch = []
        yield batch

    def _file(self, path: Path) -> Iterator[tuple[object, ...]]:
        try:
            with _opened(path) as lines:
                for number, text in enumerate(lines, start=1):
                    row = self._line(text, path) if text.strip() else None
                    if isinstance(row, str):
                        self.broken_rows[row] = self.broken_rows.get(row, 0) + 1
                        places = self.broken.setdefault(row, [])
                        if len(places) < SHOWN_LINES:
                            places.append(f"{path.name}:{number}")
                    elif row is not None:
                        yield row
        except (OSError, EOFError) as error:  # EOFError: a .gz that ends too soon
            raise SourceError(str(path), str(error)) from error

    def _line(self, text: bytes, path: Path) -> tuple[object, ...] | str | None:
        """The row of a line; the rule it breaks; or None if it is no decision."""
        try:
            line = parsed(text)
            row = decision(line, self.cost, path.stem if self.logger == "file" else None)
        except SkippedError as reason:
            self.skipped[str(reason)] = self.skipped.get(str(reason), 0) + 1
            return None
        except BrokenError as rule:
            return str(rule)
        if self.logger is None:
            row = row._replace(logger="log")
        self.thinning.setdefault(row.logger, _Thinning()).add(row.pdrop)
        return (*row, *(value_at(line.get("c"), name) for name in self.context))

    def done(self, on_fault: OnFault) -> tuple[Fault, ...]:
        """All faults, once everything is read; an error unless they may be dropped."""
        faults = tuple(
            Fault(rule, "", self.broken_rows[rule], {"lines": ", ".join(places)}, ADVICE)
            for rule, places in self.broken.items()
        )
        if faults and on_fault == "raise":
            raise LogError(faults)
        if not self.rows:
            other = "".join(f"; {count:,} × {what}" for what, count in self.skipped.items())
            raise LogError(
                [*faults, Fault(f"there is no decision in these files{other}", "", 0)]
            )
        return faults

    def reward(self) -> str:
        """The reward, as an expression where lines stand for unequal numbers of decisions."""
        if all(one.lowest == one.highest for one in self.thinning.values()):
            return "reward"
        cases = " ".join(
            f"WHEN {_quoted(label)} THEN {one.decisions / one.rows!r}"
            for label, one in self.thinning.items()
        )
        return f"reward / (1.0 - pdrop) / CASE logger {cases} END"


def _quoted(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path) if path.suffix == ".gz" else path.open("rb"))


def _schema(context: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    types = {
        "logger": pa.string(),
        "action": pa.int32(),
        "reward": pa.float64(),
        "propensity": pa.float64(),
        "event_id": pa.string(),
        "probabilities": pa.list_(pa.float64()),
        "action_count": pa.int32(),
        "time": pa.timestamp("us"),
        "pdrop": pa.float64(),
    }
    return pa.schema({**types, **dict.fromkeys(context, pa.string())})


def _record(batch: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = zip(*batch, strict=True) if batch else [()] * len(schema)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def _in_memory(batches: Iterator[list[tuple[object, ...]]], schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches([_record(batch, schema) for batch in batches], schema)


def _saved(
    batches: Iterator[list[tuple[object, ...]]],
    schema: pa.Schema,
    path: Path,
    reading: _Reading,
    on_fault: OnFault,
) -> tuple[Fault, ...]:
    """Write beside the file and move it there once all is known to be well."""
    import pyarrow.parquet as pq

    with whole_file(path) as beside:
        with telling(path), pq.ParquetWriter(beside, schema) as writer:
            for batch in batches:
                writer.write_batch(_record(batch, schema))
        return reading.done(on_fault)
