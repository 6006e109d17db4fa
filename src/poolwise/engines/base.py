"""Base: engines open logs, and open logs answer questions about their rows.

`evaluation` knows `Engine` and `Rows`, and no engine by name.  An engine holds no statistics.
`QueryRows` counts and checks rows by queries, for every engine that has rows.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

from poolwise.errors import NO_ROWS, EngineError, Fault, LogError, UsageError, nearest
from poolwise.moments.pool import Pool
from poolwise.moments.terms import NO_NEEDS, Needs
from poolwise.rows.actions import (
    ActionSums,
    AuditSums,
    eligible_query,
    grid_query,
    rounded_loggers,
    sums_query,
)
from poolwise.rows.layout import counts_query
from poolwise.rows.learners import NO_EXTRA
from poolwise.rows.rules import (
    RoleColumns,
    breaches,
    check_query,
    example_query,
    mix_own,
    range_query,
    role_text,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow as pa
    from sqlglot import exp

    from poolwise.engines.duckdb import DuckDB
    from poolwise.errors import Finding
    from poolwise.log.action_groups import Unlogged
    from poolwise.log.clicks import Predicted, Support
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.blocks import Payoff, Settled
    from poolwise.moments.heavy import Contrast, Found
    from poolwise.moments.pool import Cell
    from poolwise.moments.terms import Term
    from poolwise.rows.groups import PairSums
    from poolwise.rows.learners import Extra
    from poolwise.rows.roles import Roles
    from poolwise.types import FloatArray

    Bucketed = tuple[list[Pool], Pool]  # by bucket, for each of several needs; of all rows

# An engine, its name, or a SparkSession, whose type is not ours to import.
EngineLike = Any
Answer = TypeVar("Answer")
Line = Mapping[str, Any]  # one line of a database's answer
MOST_LOGGERS = 2_000  # more distinct labels suggest an ID or timestamp column
CHANGED = Fault(
    "the log changed while it was read: its rows are no longer those that were counted",
    "",
    0,
    advice="Evaluate rows that no longer change, such as those before today.",
)
LONGEST_EXAMPLE = 60  # characters of a value that is not numeric
FAULT_ADVICE = (
    "Correct the rows at their source, or drop them: pw.Log(..., on_fault='drop') "
    "(--on-fault drop)."
)
AT_SOURCE = "Correct the rows at their source: too many break this rule to drop them."
NOT_NAMED = (
    "Name every logger of the rows in `propensities` (--propensities), None for one without a "
    "column, or drop the rows of others: pw.Log(..., on_fault='drop') (--on-fault drop)."
)
ROUNDED_LABEL = re.compile(r"-?\d(\.\d+)?e\+\d+")  # of a number beyond the digits of a double
ROUNDED_PROBABILITY = 1.01  # a probability below this was rounded
MOST_DROPPED = 0.05  # share of a logger's rows that may be dropped without another look
LOGARITHMS = "Are they logarithms? Pass log_probabilities=True to pw.Log (--log-probabilities)."
PERCENTAGES = "Are they percentages? Divide them by 100. "
DENSITIES = (
    "Are they densities of a continuous action, such as a price? Pass densities=True to "
    "pw.Log (--densities)."
)
FORMS = {  # of texts that are not numbers
    r"[+-]?\d+,\d+": "For a CSV file with decimal commas, pass reader_options="
    "{'decimal_separator': ','} to pw.Log (--reader-option decimal_separator=,).",
    r'(?s)\s*\{\s*".*': "A JSON object gives the entry of the logged action: name its column "
    "as `action` (--action), and write valid JSON.",
    r"[+-]?\d+([.,]\d+)?\s*%": "Percentages must be numbers: in place of the column, write "
    "replace(replace(column, '%', ''), ',', '.')::DOUBLE / 100.",
}


KERNEL = "the DuckDB or the Spark engine"
WITH_ROWS = "DuckDB, Spark or a warehouse"
# What an engine may lack: the feature of the user, the engines that have it, and the remedy.
CAPABILITIES: Mapping[str, tuple[str, str, str]] = {
    "period": (
        "`period`",
        KERNEL,
        "leave out `engine` and `connection`, or leave out `period`",
    ),
    "segment": ("`by`", KERNEL, "leave out `engine` and `connection`, or leave out `by`"),
    "metrics": (
        "`metrics`",
        KERNEL,
        "leave out `engine` and `connection`, or evaluate one reward at a time",
    ),
    "columns": (
        "a column of a `mixture` or of predicted rewards",
        KERNEL,
        "read the rows with one of them, or leave these columns out",
    ),
    "distributions": (
        "a probability in a column of distributions",
        "DuckDB, Spark or PostgreSQL (JSON and arrays)",
        "select the entry of the logged action as a column of the table",
    ),
    "learners": (
        "learning a reward model or an estimated mixture",
        "the DuckDB engine",
        "leave `engine` out, or write the predictions as columns of the log first",
    ),
    "blocks": (
        "reading rows in blocks (interval='betting', watch)",
        KERNEL,
        "leave out `engine` and `connection`, or use interval='smoothed'",
    ),
    "sample": (
        "planning calibrated or balanced",
        "the DuckDB engine, which reads single rows",
        "ask for weighted and naive, or plan on a sample of the log",
    ),
    "buckets": (
        "the error between clusters",
        WITH_ROWS,
        "evaluate the log itself, or use interval='student' without `cluster`",
    ),
    "without": ("leaving out a logger (which_logs)", WITH_ROWS, "evaluate the log itself"),
    "check": ("checking rows", WITH_ROWS, "check the log itself"),
    "shares": ("`counts`", WITH_ROWS, "leave `counts` out, or summarise the log itself"),
    "score": (
        "score_log",
        "the DuckDB engine",
        "leave out `engine` and `connection`, and give the rows as files, a frame or a SELECT",
    ),
    "learn": ("learning a policy", WITH_ROWS, "learn from the log itself"),
    "clicks": ("a click log", "the DuckDB engine", "leave out `engine`"),
    "groups": (
        "`action_group`",
        "the DuckDB engine",
        "leave out `engine` and `connection`, or write the probabilities of groups as columns",
    ),
}


def lacking(capability: str) -> UsageError:
    """Return the error of an engine without a capability.

    >>> print(lacking("check"))
    checking rows requires DuckDB, Spark or a warehouse: check the log itself
    """
    feature, engines, remedy = CAPABILITIES[capability]
    return UsageError(f"{feature} requires {engines}: {remedy}")


class Rows:
    """The rows of one log with the probabilities of its policies.

    An engine overrides what it can do.  Every other method raises `lacking`, or returns
    "nothing known" where callers can do without.
    """

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Usable rows of each logger, in the order in which loggers are shown."""
        raise NotImplementedError

    @property
    def all_counts(self) -> Mapping[str, int]:
        """Rows of each logger, unusable ones included."""
        return self.counts

    @cached_property
    def cells(self) -> Mapping[Cell, int]:
        """Usable rows of each logger in each period, in the order of the periods."""
        raise lacking("period")

    @property
    def by_period(self) -> Rows:
        """The same rows, summed by period and logger."""
        raise lacking("period")

    @property
    def by_kernel(self) -> bool:
        """True if rows go through the kernel, which is fast for many terms."""
        return False

    @property
    def saved(self) -> bool:
        """True if only saved moments are left, without rows."""
        return False

    @property
    def shaped(self) -> bool:
        """True if the moments have slices and powers, for skewed intervals."""
        return False

    @property
    def notes(self) -> tuple[Finding, ...]:
        """Findings about models that were fitted to the rows, and about their origin."""
        return ()

    @property
    def live(self) -> tuple[str, ...]:
        """Loggers whose probability is missing where they are not live, and counts as 0."""
        return ()

    def complete(self) -> Rows:
        """Return the rows with probabilities of 0 where a policy was not live and has none.

        A policy that was live on some days often has a probability only in the rows of these
        days.  The mixture of a period needs no other.
        """
        return self

    def mix_own(self) -> Rows | None:
        """Return rows of an only logger with its propensity as the mixture; None if unable."""
        return None

    def attempt(self, ask: Callable[[Rows], Answer]) -> Answer:
        """Ask a question of the rows, in the way that takes the fewest passes."""
        return ask(self)

    def check(self) -> tuple[Fault, ...]:
        """Count the rows that break each rule, by logger."""
        raise lacking("check")

    def moments(self, needs: Needs) -> Pool:
        """Return the moments of each logger; raise LogError if rows break a rule."""
        raise NotImplementedError

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[Pool]:
        """Return moments of each bucket and logger, for each of several needs.

        Rows of a cluster share a bucket. Tails and histograms may be missing.
        """
        raise lacking("buckets")

    def action_sums(self) -> AuditSums | None:
        """Return sums of inverse propensities by logger and action; None if not audited."""
        return None

    def unlogged(self) -> Mapping[str, Unlogged]:
        """Return what each target plays that is in no row; empty where that is not known."""
        return {}

    def bucketed_and_tallied(
        self, needs: Sequence[Needs], buckets: int, also: Needs = NO_NEEDS
    ) -> Bucketed:
        """Return moments of each bucket and logger, and other moments of each logger.

        The kernel takes one pass for both.

        Args:
            needs: Moments of each bucket, and tails and histograms of each logger.
            buckets: Number of buckets.
            also: Other moments of each logger.
        """
        whole = self.moments(also) if also.terms else Pool({})
        return self.bucketed(needs, buckets), whole

    def settle(
        self, payoffs: Sequence[Payoff], *, pooled: bool, watched: bool = False
    ) -> Settled:
        """Return the histograms of payoffs, by block.

        Blocks are random, and lie within the periods of the log.

        Args:
            payoffs: Values of each row.
            pooled: Whether rows are weighed against the mixture of their block, which requires
                all cross-propensities; otherwise against their own logger.
            watched: Whether other blocks will follow: a period, or all rows without periods,
                is one block then, and its rows are hashed.
        """
        raise lacking("blocks")

    def heaviest(
        self, contrasts: Sequence[Contrast], centre: float
    ) -> Mapping[str, Mapping[Contrast, Found]] | None:
        """Return the heaviest rows of contrasts in each period; None if unable.

        Rows that are not summed by period are in one, without a name.

        Args:
            contrasts: Weights by which rows are heavy.
            centre: Centre of the rewards in sums.
        """
        del contrasts, centre
        return None

    def heaviest_clusters(
        self, contrasts: Sequence[Contrast], centre: float
    ) -> Mapping[Contrast, Found] | None:
        """Return the heaviest clusters of contrasts; None if unable.

        Args:
            contrasts: Weights by which clusters are heavy.
            centre: Centre of the rewards in sums.
        """
        del contrasts, centre
        return None

    def sample(self, terms: tuple[Term, ...], most: int) -> tuple[FloatArray, FloatArray]:
        """Return values of terms in at most about `most` rows, and the share of each row.

        Each logger keeps its share of the log, however few of its rows are taken, and a
        small log is taken whole. The same log gives the same rows.

        Returns:
            Values, shape (terms, rows), and shares, shape (rows,), which sum to 1.
        """
        raise lacking("sample")

    def without(self, logger: str) -> Rows:
        """Exclude one logger from the rows and from the mixture."""
        raise lacking("without")

    def measuring(self, measure: str) -> Rows:
        """Return the rows with another measure in place of the reward."""
        raise lacking("metrics")

    def with_shares(self, shares: Mapping[str, float]) -> Rows:
        """Weight the rows against a mixture of the loggers in these shares, or row counts."""
        raise lacking("shares")

    def requests_in_periods(self) -> list[dict[str, Any]]:
        """Return the requests of each period or segment: their number, fewest and most rows."""
        raise lacking("period")

    @property
    def click_support_by_segment(self) -> Mapping[str, Mapping[str, Support]]:
        """Part of each target's examinations on shown items, by segment; of click logs only."""
        return {}

    def click_predictions(self) -> Mapping[str, Predicted]:
        """Return the clicks of each ranker, predicted from the others; of click logs only."""
        return {}

    def click_support(self) -> Mapping[str, Support]:
        """Return the same for all rows."""
        return {}

    def times(self) -> dict[str, tuple[object, object]]:
        """Return the first and last time of each logger; empty if they are not known."""
        return {}

    def pair_sums(self, among: Collection[str] | None = None) -> dict[str, PairSums]:
        """Return how alike rows with one value earn, by column; empty if it is not known.

        Args:
            among: Columns to compare; by default all of whole numbers or text.
        """
        del among
        return {}

    def local_files(self, log: Log) -> list[str]:
        """List the files of the log that the engine reads; none if it reads no files."""
        return []

    def copies(self, part: int = 1) -> Mapping[int, int] | None:
        """Return the number of distinct rows that occur 1, 2, 3, ... times, by all columns.

        Only every `part`-th content is counted. None if the engine does not compare rows.
        """
        return None

    def sampled_copies(self) -> Mapping[int, int] | None:
        """Return the same numbers for a sample that the first pass took; None without one."""
        return None


class Engine:
    """Opens logs."""

    @property
    def saved(self) -> bool:
        """True if only saved moments are left, without rows."""
        return False

    def open(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NO_EXTRA
    ) -> AbstractContextManager[Rows]:
        """Open a log with its targets and the columns that the question adds."""
        raise NotImplementedError

    def score(
        self,
        log: Log,
        targets: Mapping[str, PolicyLike],
        path: Path,
        name: Callable[[Roles], Mapping[str, str]],
    ) -> tuple[Roles, Mapping[str, str]]:
        """Write all columns and those of the policies, under the names that `name` returns."""
        raise lacking("score")

    @property
    def local(self) -> DuckDB | None:
        """The engine itself if it reads rows in this process, for learning; else None."""
        return None

    def learner_batches(self, log: Log) -> Iterator[pa.RecordBatch]:
        """Yield the columns that a learner reads, in batches."""
        raise lacking("learn")


def refuse_extra(extra: Extra, *, columns: bool = False) -> None:
    """Raise UsageError for columns that an engine cannot add to the rows.

    Args:
        extra: Columns that a question adds.
        columns: Whether the engine can add columns that need no model.
    """
    if extra.learners:
        raise lacking("learners")
    if extra.segment and not columns:
        raise lacking("segment")
    if extra.measures and not columns:
        raise lacking("metrics")
    if (extra.mixture or extra.predicted_reward) and not columns:
        raise lacking("columns")


@dataclass(frozen=True, eq=False)
class QueryRows(Rows, ABC):
    """An open log; counts and checks its rows by queries.

    Attributes:
        table: The expressions of the roles.
        excluded: Loggers that are left out.
        counted: Rows of each logger, where an earlier count gives them.
    """

    table: RoleColumns
    excluded: tuple[str, ...] = field(default=(), kw_only=True)
    counted: Mapping[str, int] | None = field(default=None, kw_only=True)

    @abstractmethod
    def _lines(self, query: exp.Select) -> list[dict[str, Any]]:
        """Run a query and return each line of the answer as a mapping by column."""

    def _count(self, table: RoleColumns) -> dict[str | None, int]:
        lines = sorted(self._lines(counts_query(table)), key=lambda line: str(line["logger"]))
        return {line["logger"]: int(line["rows"]) for line in lines}

    @property
    def all_counts(self) -> dict[str, int]:
        counts = self._count(replace(self.table, drop=False))
        return {str(label): rows for label, rows in counts.items()}

    @cached_property
    def counts(self) -> dict[str, int]:
        if self.counted is not None:
            return dict(self.counted)
        counts = self._count(self.table)
        labels = self.table.labels or sorted(label for label in counts if label is not None)
        if len(labels) > MOST_LOGGERS:
            raise UsageError(
                f"the logger column {role_text(self.table, 'logger')!r} must have at most "
                f"{MOST_LOGGERS:,} labels, got {len(labels):,} in {sum(counts.values()):,} "
                "rows: name the column of the policy that chose the action"
            )
        rounded = [label for label in labels if ROUNDED_LABEL.fullmatch(label)]
        if rounded:
            raise UsageError(
                f"labels of loggers must be exact, got {rounded[0]}, a rounded number: "
                "write labels of so many digits as text at their source, or read them as text "
                "in a SELECT, as in SELECT * FROM read_csv('log.csv', types={'logger': "
                "'VARCHAR'})"
            )
        absent = [label for label in labels if label not in counts]
        if set(counts) - set(labels) or (absent and not self.table.drop) or not counts:
            raise LogError(self.check() or (Fault("the log has no usable rows", "", 0),))
        return {label: counts[label] for label in labels if label in counts}

    def check(self) -> tuple[Fault, ...]:
        """Count the rows that break each rule, by logger, with one example each."""
        lines = sorted(
            self._lines(check_query(self.table)), key=lambda line: str(line["logger"])
        )
        if not lines:
            return (NO_ROWS,)
        faults = [
            self._fault(k, line)
            for k in range(len(breaches(self.table)))
            for line in lines
            if line[f"rule_{k}"]
        ]
        present = {line["logger"] for line in lines}
        unknown = sorted(str(label) for label in present - set(self.table.labels))
        faults += [
            Fault("the logger has no rows", label, 0, advice=_similar(label, unknown))
            for label in self.table.labels
            if label not in present
        ]
        return tuple(faults)

    def _fault(self, number: int, line: Line) -> Fault:
        breach = breaches(self.table)[number]
        logger = line["logger"]
        example = self._lines(example_query(self.table, breach, logger))[0]
        values = {role_text(self.table, role): _example(example, role) for role in breach.shown}
        advice = breach.advice and f"{breach.advice}{FAULT_ADVICE}"
        forms = (a for form, a in FORMS.items() if _any_match(form, values))
        advice = advice or next(forms, "")
        broken = int(line[f"rule_{number}"])
        many = broken > max(1, MOST_DROPPED * int(line["rows"]))
        if not advice and many and breach.scaled is not None:
            advice = self._scale(breach.scaled)
        elif breach.shown == ("logger",) and logger is not None:
            advice = NOT_NAMED
        return Fault(breach.text, logger or "", broken, values, advice or FAULT_ADVICE)

    def _scale(self, value: exp.Expr) -> str:
        """Ask about the scale of probabilities, by what the numbers look like."""
        (line,) = self._lines(range_query(self.table, value))
        least, most = line["min"], line["max"]
        if self.table.scale.logs or self.table.scale.densities:
            return AT_SOURCE
        if least < 0 and most <= 0:
            return LOGARITHMS
        if least < 0 or not ROUNDED_PROBABILITY < most < math.inf:
            return AT_SOURCE
        return PERCENTAGES + DENSITIES if most <= 100 else DENSITIES

    def action_sums(self) -> AuditSums | None:
        """Return sums of inverse propensities by logger and action; None if not audited."""
        table = self.table
        if table.action is None:
            return None
        lists = {} if table.eligible is None else self._listed_sums()
        missing = (None if table.eligible is None else 0, 0.0)
        actions = tuple(
            ActionSums(
                str(line["logger"]),
                str(line["action"]),
                int(line["rows"]),
                float(line["inverse"]),
                float(line["squares"]),
                float(line["spreads"]),
                int(line["on_grid"]),
                *lists.get((line["logger"], line["action"]), missing),
            )
            for line in self._lines(sums_query(table))
            if line["action"] is not None and line["logger"] in self.counts
        )
        grids: dict[str, set[int]] = {logger: set() for logger in rounded_loggers(actions)}
        for line in self._lines(grid_query(table, grids)) if grids else ():
            grids[line["logger"]].add(int(line["step"]))
        steps = {logger: tuple(sorted(values)) for logger, values in grids.items()}
        actions = tuple(sorted(actions, key=lambda s: (-s.rows, s.logger, s.action)))
        return AuditSums(self.counts, actions, steps)

    def _listed_sums(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Return `eligible` and `elsewhere` of `ActionSums`, by logger and action."""
        try:
            lines = self._lines(eligible_query(self.table))
        except EngineError as reason:
            raise UsageError(
                f"`eligible` must name a column of lists of actions: {reason}"
            ) from reason
        return {
            (line["logger"], line["action"]): (int(line["rows"]), float(line["elsewhere"]))
            for line in lines
        }

    def without(self, logger: str) -> Self:
        """Exclude one logger from the rows and from the mixture."""
        rest = {label: rows for label, rows in self.counts.items() if label != logger}
        return replace(
            self,
            table=without(self.table, logger),
            excluded=(*self.excluded, logger),
            # with `drop`, rows that are bad because of this logger become usable
            counted=None if self.table.drop else rest,
        )

    @property
    def live(self) -> tuple[str, ...]:
        return self.table.live

    def mix_own(self) -> Self:
        (logger,) = self.counts
        return replace(self, table=mix_own(self.table, logger), counted=self.counts)

    def with_shares(self, shares: Mapping[str, float]) -> Self:
        """Weight the rows against a mixture of the loggers in these shares, or row counts."""
        present = tuple(label for label in self.table.labels if label in self.all_counts)
        return replace(self, table=replace(self.table, shares=shares, labels=present))


def _similar(label: str, unknown: Sequence[str]) -> str:
    """Suggest a label of the rows that may be a misspelling of this one."""
    close = nearest(label, unknown)
    return f"Did you mean {close!r} where `propensities` say {label!r}?" if close else ""


def _any_match(form: str, values: Line) -> bool:
    return any(re.fullmatch(form, str(value)) for value in values.values())


def _example(line: Line, role: str) -> object:
    """Return the numeric value, or the raw text if it is not numeric, or a distribution."""
    value, text = line.get(role), line.get(f"raw_{role}")
    if text is None or (value is not None and not text.startswith(("{", "["))):
        return value
    return text if len(text) <= LONGEST_EXAMPLE else f"{text[:LONGEST_EXAMPLE]}..."
