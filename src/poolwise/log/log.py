"""Log: a source of rows, the roles of its columns, and its rules.

This module reads nothing.  A `Log` names the source of the rows and the roles of its
columns; an engine reads the rows during an evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property
from html import escape
from itertools import groupby
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from poolwise.errors import UsageError
from poolwise.log.problems import UTC, role_problems, rule_problems

if TYPE_CHECKING:
    from poolwise.errors import Finding
    from poolwise.log.clicks import Clicks
    from poolwise.log.policy import PolicyLike
    from poolwise.log.requests import Requests

OnFault = Literal["raise", "drop"]
Confounders = Literal["unknown", "in-context"]
FileFormat = Literal["parquet", "csv", "json"]
# A frame is an object that DuckDB can register: pyarrow, pandas, Polars. They share no type.
Frame = Any
Source = str | Path | Frame | Sequence[str | Path | Frame] | Mapping[str, Any]

COMMENT = r"--[^\n]*\n|/\*.*?\*/"
SELECT = re.compile(
    rf"(\s|\(|{COMMENT})*(select|with|from|values)\b", re.IGNORECASE | re.DOTALL
)
DATABASE = re.compile(r"(.+\.(?:duckdb|ddb|db))::(.+)", re.IGNORECASE)  # file::table
LONGEST_TEXT = 120  # of an expression or a SELECT in a notebook
PATTERN = "{logger}"  # in a pattern of propensities, where the label goes
ESTIMATE = "estimate"  # in place of propensities that were not logged
PART_LOGGER = "poolwise_logger"  # column that says which part of a mapping a row is from
ONLY_LOGGER = "log"  # label of the only logger of a log without a logger column


@dataclass(frozen=True, eq=False)
class Part:
    """One part of a source: files, a query or a frame, perhaps of one logger.

    Attributes:
        value: Paths of files of one format, the path and the table of a DuckDB file, the
            text of a SELECT, or a frame.
        kind: Format of the files, or kind of the object.
        logger: Label of the logger that wrote all its rows, if the source is a mapping.
    """

    value: Any  # see Frame
    kind: FileFormat | Literal["select", "frame", "table", "database"]
    logger: str | None = None


@dataclass(frozen=True, eq=False)
class Log:
    """Rows that several policies logged, with the roles of their columns.

    A probability can be a column name, a SQL expression, an array with a value per row of a
    frame, or a `Policy`. A column of distributions (a map, a struct, a JSON object, or a list
    next to `eligible`) means the entry of the logged `action`.

    Attributes:
        source: A path, a glob or a list of them (Parquet, CSV, JSON lines), a SELECT,
            a table of a DuckDB file (``"logs.duckdb::table"``), a pyarrow, pandas or Polars
            frame, a list of dictionaries, a dictionary of columns, or a mapping of each
            logger to a source.
            Leave it out if `table` is given.
        reward: Column or SQL expression of the reward.
        logger: Column with the label of the policy that wrote the row. Optional if the
            source is a mapping, or if there is only one logger.
        propensity: Probability of the logged action under the logger that wrote the
            row. Optional if `propensities` has it.
        propensities: Probability of the logged action under *every* logger, by label.
            The value None marks a logger whose probabilities are unknown. A pattern such as
            ``"p_{logger}"`` names one column or expression for each logger of the rows.
            ``"estimate"`` is for logs without any propensity: all rows count as rows of one
            logger, whose propensity is the regression of the `action` on the `context`.
        action: Column of the logged action; policies in Python require it.
        action_group: Group of each action, for catalogues of many actions: a column, or a
            mapping of actions to groups. Every probability is then that of the group, and must
            come from a distribution: the entries of its actions are summed. An action without
            a group is a group of its own.
        context: Columns that policies in Python see; empty means all other columns.
        eligible: Column with the list of actions that could be played in the row. Policies
            with a list of actions play only these; poolwise does not change columns and
            functions.
        cluster: Column that groups dependent rows (a user, a session).
        period: Column or SQL expression of the period in which a row was logged (a day, a
            version's life), if policies may have been trained on earlier periods. Periods are
            ordered by value: dates, times and numbers by size, text by its characters.
        timezone: Time zone, such as "Europe/Berlin", that SQL expressions and casts use for
            times with a zone. The zone of the machine or of a session is never used.
        trained_on: Loggers (or targets) whose policy was trained on the logs of others,
            such as ``{"v2": ["v1"]}``: the weights of these logs depend on their rewards.
        estimate_mixture: Estimate the mixture if `propensities` are missing: True, or a
            scikit-learn classifier of the logger that wrote a row. Estimates that depend
            on it are marked. With ``propensities="estimate"``, the classifier of the action
            (True is a logistic regression); without one, the frequencies of the actions in
            each context.
        confounders: What is known of causes of both action and reward, if propensities are
            estimates: "in-context" says that all of them are in the `context`. Otherwise
            ("unknown", the default of ``propensities="estimate"``) no verdict is given.
        mixture: Column of the loggers' average propensity, weighted by their rows, for logs
            that have it instead of `propensities`.
        log_probabilities: All probabilities are given as natural logarithms.
        densities: All probabilities are densities of a continuous action (a price, a bid):
            any positive, finite number.
        reward_range: Smallest and largest possible reward, if known.
        requests: Requests that the rows belong to, if values are per request and not per
            row; `ranking_log` sets them.
        clicks: Position bias behind the probabilities of clicks; `click_log` sets it.
        notes: What a reader joined or left out; readers set it, and evaluations report it.
        replay_tolerance: Largest difference between a logged `propensity` and the
            probability in `propensities`.
        on_fault: Reject a log with bad rows ("raise"), or drop and count them ("drop").
        reader_options: Options for DuckDB's file reader, such as ``{"delim": ";"}``.
        table: Name of a table, or a SELECT, in the database behind `connection`; or in
            the catalogue of a Spark session, with ``engine="spark"``.
        connection: An open DB-API or ADBC connection to that database; it is not closed.

    Examples:
        >>> log = Log("logs/*.parquet", logger="policy", reward="click", propensity="p")
        >>> log.parts[0].kind
        'parquet'
    """

    source: Source = None
    _: KW_ONLY
    reward: str
    logger: str | None = None
    propensity: PolicyLike | None = None
    propensities: Mapping[Any, PolicyLike | None] | str | None = None
    action: str | None = None
    action_group: Mapping[Any, Any] | str | None = None
    context: Sequence[str] = ()
    eligible: str | None = None
    cluster: str | None = None
    period: str | None = None
    timezone: str = UTC
    trained_on: Mapping[str, Sequence[str]] = field(default_factory=dict)
    estimate_mixture: Any = False  # True, or any classifier
    mixture: str | None = None
    confounders: Confounders | None = None
    log_probabilities: bool = False
    densities: bool = False
    reward_range: tuple[float, float] | None = None
    requests: Requests | None = None
    clicks: Clicks | None = None
    notes: Sequence[Finding] = ()
    replay_tolerance: float = 1e-6
    on_fault: OnFault = "raise"
    reader_options: Mapping[str, object] = field(default_factory=dict)
    table: str | None = None
    connection: Any = None  # DB-API and ADBC share no type

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", _as_table(self.source))
        value: object = self.propensities  # annotations are not enforced
        pattern = isinstance(value, str) and (PATTERN in value or value == ESTIMATE)
        if not (pattern or value is None or isinstance(value, Mapping)):
            raise UsageError(
                "propensities must map loggers to probabilities, as in {'v1': 'p_v1'}, or be a "
                f"pattern such as 'p_{PATTERN}', or '{ESTIMATE}'; got {value!r}"
            )
        if self.estimated and self.confounders is None:
            object.__setattr__(self, "confounders", "unknown")
        problems = [*role_problems(self), *rule_problems(self)]
        if problems:
            raise UsageError("\n".join(problems))

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Parts of the source, in order."""
        if self.table is not None:
            return (Part(self.table, "table"),)
        return tuple(_split_source(self.source, None))

    @property
    def crossed(self) -> bool:
        """True if a probability under every logger is declared."""
        pattern = isinstance(self.propensities, str) and not self.estimated
        complete = all(p is not None for p in self.by_label.values())
        return pattern or (bool(self.by_label) and complete)

    @property
    def estimated(self) -> bool:
        """True if the propensities are to be estimated from actions and context."""
        return isinstance(self.propensities, str) and self.propensities == ESTIMATE

    @property
    def conclusive(self) -> bool:
        """True if differences may have a verdict.

        Propensities were logged; or all confounders are in the context, and the propensities
        are frequencies or those of a logistic regression.  Intervals of other classifiers were
        measured to cover far too seldom.
        """
        if self.confounders != "in-context":
            return self.confounders is None
        steps = getattr(self.estimate_mixture, "steps", [("", self.estimate_mixture)])
        kinds = {kind.__name__ for kind in type(steps[-1][1]).__mro__}
        return not self.estimated or not kinds.isdisjoint({"bool", "LogisticRegression"})

    @property
    def needs_classifier(self) -> bool:
        """True if a classifier of loggers estimates the mixture."""
        return self.estimate_mixture is not False and not (self.crossed or self.estimated)

    @property
    def by_label(self) -> Mapping[str, PolicyLike | None]:
        """Propensities by label; empty if there are none, or only a pattern of their names."""
        if self.propensities is None or isinstance(self.propensities, str):
            return {}
        return {str(label): value for label, value in self.propensities.items()}

    def described(self) -> dict[str, str]:
        """Return the time zone and all arguments without their defaults, as texts."""
        values = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]
        if isinstance(self.action_group, Mapping):
            text = f"{len(set(self.action_group.values())):,} groups"
            values = [(n, text if n == "action_group" else v, d) for n, v, d in values]
        return {
            role: text
            for name, value, default in values
            if (value is not default or name == "timezone") and name != "connection"
            for role, text in describe_role(name, value)
            if text
        }

    def _repr_html_(self) -> str:
        """Return an HTML table of the arguments, for notebooks; read no row."""
        lines = "".join(
            f"<tr><th>{escape(role)}</th><td>{escape(text)}</td></tr>"
            for role, text in self.described().items()
        )
        return f"<table>{lines}</table>"


def describe_role(role: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the text of an argument; of a mapping, one for each logger."""
    if isinstance(value, Mapping):
        for logger, part in value.items():
            yield from describe_role(f"{role} of {logger}", part)
    elif isinstance(value, list | tuple):
        yield role, ", ".join(text for part in value for _, text in describe_role(role, part))
    elif role.startswith("source") and not isinstance(value, str | Path):
        yield role, f"{type(value).__module__.partition('.')[0]} {type(value).__name__}"
    elif value is not None:
        yield role, as_line(value)


def as_line(value: object) -> str:
    """Return the text of a value, shortened."""
    text = str(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def _as_table(source: Any) -> Any:  # noqa: ANN401 - see Frame
    """Return Python rows or columns as an Arrow table, other sources unchanged.

    Columns hold numbers somewhere, which a mapping of loggers to sources does not.
    """
    rows = isinstance(source, list) and source and all(isinstance(s, Mapping) for s in source)
    if rows:
        names = dict.fromkeys(name for line in source for name in line)
        source = {name: [line.get(name) for line in source] for name in names}
    columns = isinstance(source, Mapping) and any(map(_has_numbers, source.values()))
    if not (rows or columns):
        return source
    import pyarrow as pa

    try:
        return pa.table({str(name): column for name, column in source.items()})
    except (pa.ArrowException, TypeError) as reason:
        raise UsageError(
            f"the columns of the source must have one type and one length each: {reason}"
        ) from reason


def _has_numbers(column: object) -> bool:
    values = column[:100] if isinstance(column, list | tuple) else ()
    return hasattr(column, "__array_interface__") or any(isinstance(v, Real) for v in values)


def _split_source(source: Any, logger: str | None) -> list[Part]:  # noqa: ANN401 - see Frame
    if isinstance(source, Mapping):
        if not source:
            raise UsageError("the source must not be an empty mapping: it names no logger")
        return [part for label, s in source.items() for part in _split_source(s, str(label))]
    if isinstance(source, str) and SELECT.match(source):
        return [Part(source.strip().rstrip(";"), "select", logger)]
    if isinstance(source, str) and not source.strip():
        raise UsageError("the source must not be an empty path")
    if isinstance(source, str) and (database := DATABASE.fullmatch(source)):
        return [Part(database.groups(), "database", logger)]
    if isinstance(source, str | Path):
        return [Part((str(source),), file_format(str(source)), logger)]
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        if not source:
            raise UsageError("the source must not be an empty list")
        return _join_parts([part for s in source for part in _split_source(s, logger)])
    return [Part(source, "frame", logger)]


def _join_parts(parts: list[Part]) -> list[Part]:
    """Join neighbouring files of one format, so that one scan reads them all."""
    joined: list[Part] = []
    for (kind, logger), neighbours in groupby(parts, lambda part: (part.kind, part.logger)):
        if kind in FORMATS:
            paths = tuple(path for part in neighbours for path in part.value)
            joined.append(Part(paths, kind, logger))
        else:
            joined += neighbours
    return joined


FORMATS: Mapping[FileFormat, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"),
    "csv": (".csv", ".tsv", ".txt"),
    "json": (".json", ".jsonl", ".ndjson"),
}


def file_format(path: str) -> FileFormat:
    """Return the format of a file or a glob, by its ending.

    >>> file_format("logs/day=1/*.parquet"), file_format("a.csv.gz"), file_format("b.jsonl")
    ('parquet', 'csv', 'json')
    """
    ending = re.search(r"(\.[a-z]+)(\.(gz|zst|bz2))?$", path.lower())
    if ending is None:  # a folder, or a glob that ends in a star
        return "parquet"
    for kind, endings in FORMATS.items():
        if ending[1] in endings:
            return kind
    listed = ", ".join(ending for endings in FORMATS.values() for ending in endings)
    raise UsageError(
        f"the ending of {path!r} must be one of {listed}.\n"
        "Name a table of a DuckDB file as logs.duckdb::table. For other formats pass a SELECT "
        "that DuckDB can run, or a frame."
    )
