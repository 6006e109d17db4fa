"""Spark tables: rows that Spark reads, and the queries that it runs over them.

Tables of a catalogue, DataFrames, files of any format and SELECTs become one temporary view,
and the query that every database gets runs there as Spark SQL.  A query that is too wide
for Spark's code generation is split.  Policies in Python are scored on the workers, batch
by batch over Arrow, and what they say is kept beside the rows.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from sqlglot import exp

from poolwise.engines.answer import CHANGED, PILOT_ROWS, QueryRows
from poolwise.engines.kernel import Kernel
from poolwise.engines.program import Program
from poolwise.engines.split import joined, split
from poolwise.engines.sums import to_moments
from poolwise.errors import EngineError, LogError, PolicyError, UsageError
from poolwise.moments.moments import pooled
from poolwise.moments.terms import Needs
from poolwise.rows.reader import BadRowsError, arrow_rows, layout_of
from poolwise.rows.rules import row_steps, rows_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession
    from sqlglot.expressions import Expr as Expression

    from poolwise.engines.answer import Group
    from poolwise.engines.sql import Request
    from poolwise.moments.terms import Term

WIDEST = 80  # aggregates of one query; at 90 Spark 4 no longer compiles the stage as a whole
POLICY_FAILED = "poolwise policy failed: "  # what a worker says before the details


def spark_text(query: exp.Select) -> str:
    """A query as Spark 4 reads it: what is no number is null, and so is what is over zero.

    >>> spark_text(exp.select("a / b AS c").from_("log"))
    'SELECT TRY_DIVIDE(a, b) AS c FROM log'
    """
    text: str = query.transform(_lenient).sql(dialect="spark")
    return text


def _lenient(node: Expression) -> Expression:
    if isinstance(node, exp.TryCast):
        node.set("safe", True)  # noqa: FBT003 - how SQLGlot tells TRY_CAST from CAST
    if isinstance(node, exp.Div) and not isinstance(node.expression, exp.Nullif):
        return exp.Anonymous(this="TRY_DIVIDE", expressions=[node.this, node.expression])
    return node


@contextmanager
def spark_errors(text: str) -> Iterator[None]:
    """What Spark says, in one line, instead of two languages' traces."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as reason:
        raise _from_worker(str(reason)) or EngineError(
            "Spark", text, RuntimeError(first_line(reason))
        ) from reason


def _from_worker(text: str) -> PolicyError | UsageError | None:
    """What went wrong on a worker before or while it ran our code."""
    if "No module named 'poolwise'" in text:
        return UsageError(
            "Spark's workers have no poolwise: install it for the Python that they run, and "
            "name that Python in PYSPARK_PYTHON before the session starts"
        )
    found = re.search(re.escape(POLICY_FAILED) + r"(\{.*\})", text)
    if found is None:
        return None
    told = json.loads(found.group(1))
    return PolicyError(told["policy"], told["reason"], told["rows"])


def first_line(reason: Exception) -> str:
    r"""The line of Spark's answer that says what happened.

    >>> first_line(RuntimeError("Job aborted:\n  Lost task 0\nValueError: no\n\tat org.x"))
    'ValueError: no'
    >>> first_line(RuntimeError("[TABLE_NOT_FOUND] no table.\n'Project [*]"))
    '[TABLE_NOT_FOUND] no table.'
    """
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    python = [line for line in raised if not re.match(r"(java|org|scala|py4j)\.", line)]
    return (python or raised or lines or [type(reason).__name__])[0]


@dataclass(frozen=True, eq=False)
class SparkRows(QueryRows):
    """An open log; answers what `engines.base.Rows` promises.

    Attributes:
        session: Where the view of the log is.
        known: Rows of each logger, where they follow from a count made before.
    """

    session: SparkSession
    known: Mapping[str, int] | None = None

    def _lines(self, query: exp.Select) -> list[dict[str, Any]]:
        query.set("order", None)  # a few lines, put in order here
        text = spark_text(query)
        with spark_errors(text):
            return [row.asDict() for row in self.session.sql(text).collect()]

    @cached_property
    def counts(self) -> dict[str, int]:
        return super().counts if self.known is None else dict(self.known)

    def _bucket(self, buckets: int) -> Expression:
        place: Expression = exp.Anonymous(this="monotonically_increasing_id")
        if self.table.cluster is not None:
            unit = exp.cast(self.table.cluster.copy(), "varchar")
            place = exp.Anonymous(this="xxhash64", expressions=[unit])
        return exp.cast(
            exp.Anonymous(this="pmod", expressions=[place, exp.convert(buckets)]), "int"
        )

    def without(self, logger: str) -> Self:
        """The same rows without those of one logger, and without it in the mixture."""
        rest = {label: count for label, count in self.counts.items() if label != logger}
        # rows that only this logger made unusable come back
        return replace(super().without(logger), known=None if self.table.drop else rest)

    def _pilot(self, needs: Needs) -> dict[Term, float]:
        """A centre for each term, from rows that Spark can return at once."""
        terms = Needs(groups=needs.groups).terms
        usable = replace(self.table, drop=True)
        query = exp.select("*").from_(rows_name(usable)).limit(PILOT_ROWS)
        for name, step in row_steps(usable):
            query = query.with_(name, as_=step)
        text = spark_text(query)
        with spark_errors(text):
            found = self.session.sql(text).toArrow()
        if not found.num_rows:
            return {}
        layout, program = layout_of(usable, self.counts), Program(Needs(means=terms))
        batches = (
            rows
            for batch in found.to_batches()
            for rows in arrow_rows(batch, layout.loggers, program.batch_rows)
        )
        try:
            sums = Kernel(layout, program).together(batches)
        except BadRowsError:  # rows that came after the count; the pass itself tells
            return {}
        means = pooled(to_moments(sums, program, layout.loggers).values()).means.tolist()
        return {t: c for t, c in zip(terms, means, strict=True) if math.isfinite(c)}

    def _ask(self, request: Request, limit: int | None = None) -> list[Group]:
        """Run the query of the moments, in several parts where it is wide."""
        bucket = request.table.bucket
        by_row = bucket is not None and self.table.cluster is None
        # rows are numbered anew by each query: only one can tell their buckets
        parts = [request.needs] if by_row else split(request.needs, WIDEST)
        ask = super()._ask
        answers = [ask(replace(request, needs=part), limit) for part in parts]
        if len(answers) == 1:
            return answers[0]
        found = [{(g.logger, g.bucket): g for g in groups} for groups in answers]
        seen = [{key: (g.moments.count, g.bad) for key, g in one.items()} for one in found]
        if any(other != seen[0] for other in seen):
            raise LogError([CHANGED])
        return [joined(request.needs, [one[key] for one in found]) for key in found[0]]
