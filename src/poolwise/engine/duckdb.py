"""DuckDB: the embedded engine, and the default.

It counts each logger's rows first, since they fix the mixture; looks at a few
thousand rows for the centres of the terms; and then reads the log once.  A log
with bad rows is recognised in that same pass and never averaged.
"""

from __future__ import annotations

import math
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from poolwise.engine.answer import (
    Group,
    by_bucket,
    decode,
    merged_groups,
    off_centre,
    own_centres,
    refuse_overflow,
)
from poolwise.engine.base import NOTHING, Extra
from poolwise.engine.learned import Fill, learn, reading_query, with_folds
from poolwise.engine.roles import Roles, assign
from poolwise.engine.rows import (
    Table,
    check_query,
    counts_query,
    example_query,
    role_text,
    rules,
    without,
)
from poolwise.engine.sources import create_view, first_line, literal
from poolwise.engine.sql import Request, moments_query
from poolwise.errors import EngineError, Fault, LogError
from poolwise.moments import LONGEST_TAIL, Moments, pooled
from poolwise.terms import Needs, Term

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlglot import exp

    from poolwise.findings import Finding
    from poolwise.log import Log
    from poolwise.policy import PolicyLike

PILOT_ROWS = 20_000  # enough to centre a term within a small part of its spread
SCORING_ROWS = 65_536  # rows of one batch that goes to a policy in Python


@dataclass(frozen=True)
class DuckDB:
    """Evaluates files, frames and queries in this process.

    Attributes:
        threads: Threads to use; 0 means one for each core.
        memory_limit: Such as "2GB"; empty means DuckDB's own choice.
    """

    threads: int = 0
    memory_limit: str = ""

    @contextmanager
    def open(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NOTHING
    ) -> Iterator[DuckDBRows]:
        """Open a log with its targets; policies in Python are scored on the way.

        What `extra` asks for is learned from the rows first, and scored with them.
        """
        with (
            tempfile.TemporaryDirectory(prefix="poolwise-") as folder,
            duckdb.connect(config=self._config(folder)) as connection,
        ):
            columns = create_view(connection, log)
            roles = assign(log, targets, columns, _named("log"), extra)
            notes: tuple[Finding, ...] = ()
            path = Path(folder) / "scored.parquet"
            if extra.learners:
                _fix_order(connection, log, Path(folder) / "log.parquet")
                fill = learn(connection, roles, extra)
                roles = _score(connection, log, roles, path, fill)
                notes = tuple(note for fit in fill.fitted for note in fit.findings())
            elif roles.scored:
                roles = _score(connection, log, roles, path)
            yield DuckDBRows(connection, roles.table, notes)

    def _config(self, folder: str) -> dict[str, str | bool | int | float | list[str]]:
        config: dict[str, str | bool | int | float | list[str]] = {
            "temp_directory": folder,
            "preserve_insertion_order": False,
        }
        if self.threads:
            config["threads"] = self.threads
        if self.memory_limit:
            config["memory_limit"] = self.memory_limit
        return config


def _named(name: str) -> exp.Table:
    from sqlglot import exp

    return exp.to_table(name)


def _fix_order(connection: duckdb.DuckDBPyConnection, log: Log, path: Path) -> None:
    """Write what a query returns to a file: it may return other rows the second time."""
    if any(part.kind == "select" for part in log.parts):
        connection.execute(f"COPY (FROM log) TO {literal(str(path))} (FORMAT parquet)")
        source = f"read_parquet({literal(str(path))})"
        connection.execute(f"CREATE OR REPLACE TEMP VIEW log AS FROM {source}")


def _score(
    connection: duckdb.DuckDBPyConnection,
    log: Log,
    roles: Roles,
    path: Path,
    fill: Fill | None = None,
) -> Roles:
    """Write the needed columns with the policies' probabilities beside them."""
    import pyarrow.parquet as pq

    from poolwise.score import score

    names = list(dict.fromkeys([*roles.needed, *roles.context]))
    columns = ", ".join(f'"{n.replace(chr(34), chr(34) * 2)}"' for n in names)
    query = f"SELECT {columns} FROM log" if fill is None else reading_query(roles)
    reader: Any = connection.sql(query).to_arrow_reader(SCORING_ROWS)
    scored = score(
        reader if fill is None else with_folds(reader, fill.folds),
        roles.scored,
        action=roles.action,
        context=roles.context,
        log_probabilities=log.log_probabilities,
        then=fill,
    )
    kept = [*roles.needed, *roles.scored, *(fill.columns if fill else ())]
    writer = None
    try:
        for batch in scored:
            narrow = batch.select(kept)
            writer = writer or pq.ParquetWriter(path, narrow.schema, compression="zstd")
            writer.write_batch(narrow)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise LogError([Fault("the log has no rows", "", 0)])
    connection.execute(f"CREATE TEMP VIEW scored AS FROM read_parquet({literal(str(path))})")
    return replace(roles, table=replace(roles.table, relation=_named("scored")), scored={})


@dataclass(frozen=True, eq=False)
class DuckDBRows:
    """An open log; answers what `engine.base.Rows` promises."""

    connection: duckdb.DuckDBPyConnection
    table: Table
    notes: tuple[Finding, ...] = ()

    def _lines(self, query: exp.Select) -> list[dict[str, Any]]:
        text = query.sql(dialect="duckdb")
        try:
            result = self.connection.execute(text)
            names = [str(d[0]) for d in result.description or ()]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
        except duckdb.Error as reason:
            raise EngineError("DuckDB", text, RuntimeError(first_line(reason))) from reason

    def _count(self, table: Table) -> dict[str | None, int]:
        lines = sorted(self._lines(counts_query(table)), key=lambda line: str(line["logger"]))
        return {line["logger"]: int(line["rows"]) for line in lines}

    @property
    def found(self) -> dict[str, int]:
        counts = self._count(replace(self.table, drop=False))
        return {str(label): rows for label, rows in counts.items()}

    @cached_property
    def counts(self) -> dict[str, int]:
        found = self._count(self.table)
        labels = self.table.labels or sorted(label for label in found if label is not None)
        strange = set(found) - set(labels)
        empty = [label for label in labels if label not in found]
        if strange or (empty and not self.table.drop) or not found:
            raise LogError(self.check() or (Fault("the log has no usable rows", "", 0),))
        return {label: found[label] for label in labels if label in found}

    def check(self) -> tuple[Fault, ...]:
        """Count the rows that break each rule, by logger, with one example each."""
        lines = sorted(
            self._lines(check_query(self.table)), key=lambda line: str(line["logger"])
        )
        if not lines:
            return (Fault("the log has no rows", "", 0),)
        faults = [
            self._fault(place, line)
            for place in range(len(rules(self.table)))
            for line in lines
            if line[f"rule_{place}"]
        ]
        present = {line["logger"] for line in lines}
        faults += [
            Fault("the logger has no rows", label, 0)
            for label in self.table.labels
            if label not in present
        ]
        return tuple(faults)

    def _fault(self, place: int, line: Mapping[str, Any]) -> Fault:
        rule = rules(self.table)[place]
        logger = line["logger"]
        example = self._lines(example_query(self.table, rule, logger))[0]
        shown = {role_text(self.table, role): example.get(role) for role in rule.role}
        return Fault(rule.text, logger or "", int(line[f"rule_{place}"]), shown, ADVICE)

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """Moments of each logger, centred well enough to keep their digits."""
        return self._answer(self.table, needs)[0]

    def bucketed(self, needs: Needs, buckets: int) -> list[dict[str, Moments]]:
        """Moments of each bucket and logger; rows of a cluster share a bucket."""
        table = replace(self.table, bucket=_bucket(self.table, buckets))
        return self._answer(table, needs)

    def without(self, logger: str) -> DuckDBRows:
        """The same rows without those of one logger, and without it in the mixture."""
        return replace(self, table=without(self.table, logger))

    def _answer(self, table: Table, needs: Needs) -> list[dict[str, Moments]]:
        request = Request(table, needs, self.counts, self._pilot(needs), tail=LONGEST_TAIL)
        groups = self._ask(request)
        if any(g.bad for g in groups):
            raise LogError(self.check())
        refuse_overflow(request, groups)
        merged = merged_groups(groups)
        if any(off_centre(request, g) for g in merged):
            centres = own_centres(request, merged)
            request = replace(request, common=None, by_logger=centres)
            groups = self._ask(request)
        return [
            {i: by_logger[i] for i in self.counts if i in by_logger}
            for by_logger in by_bucket(groups)
        ]

    def _pilot(self, needs: Needs) -> dict[Term, float]:
        """A centre for each term, from the first rows."""
        terms = Needs(groups=needs.groups).terms
        usable = replace(self.table, drop=True)
        request = Request(usable, Needs(means=terms), self.counts, {})
        found = [g.moments for g in self._ask(request, PILOT_ROWS)]
        means = pooled(found).means.tolist() if found else []
        return {
            t: float(c) for t, c in zip(terms, means, strict=False) if math.isfinite(float(c))
        }

    def _ask(self, request: Request, limit: int | None = None) -> list[Group]:
        lines = self._lines(moments_query(request, limit=limit))
        return [decode(request, line) for line in lines]


def _bucket(table: Table, buckets: int) -> exp.Expr:
    """A number below `buckets`: the same for all rows of a cluster, else row by row."""
    from sqlglot import exp

    place: exp.Expr = exp.Window(this=exp.RowNumber())
    if table.cluster is not None:
        unit = exp.cast(table.cluster.copy(), "varchar")
        place = exp.Anonymous(this="hash", expressions=[unit])
    return exp.cast(exp.Mod(this=place, expression=exp.convert(buckets)), "int")


ADVICE = (
    "Correct these rows where they are written, or leave them out with on_fault='drop' "
    "(--on-fault drop)."
)
