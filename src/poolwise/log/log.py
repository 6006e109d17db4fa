"""Log: a source of rows, the roles of its columns, and its rules.

Nothing is read here.  A `Log` says where the rows are and what their columns
mean; an engine reads them, once, when an evaluation asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from poolwise.errors import UsageError

if TYPE_CHECKING:
    from poolwise.log.policy import PolicyLike

OnFault = Literal["raise", "drop"]
# A frame is whatever DuckDB can register: pyarrow, pandas, Polars. They share no type.
Frame = Any
Source = str | Path | Frame | Sequence[str | Path | Frame] | Mapping[str, Any]

COMMENT = r"--[^\n]*\n|/\*.*?\*/"
SELECT = re.compile(
    rf"(\s|\(|{COMMENT})*(select|with|from|values)\b", re.IGNORECASE | re.DOTALL
)
LARGEST_REWARD = 1e100  # that a range may have: its square, times weights, is a double
ONLY_LOGGER = "log"  # label of the one logger of a log without a logger column


@dataclass(frozen=True, eq=False)
class Part:
    """One piece of a source: files, a query or a frame, perhaps of one logger.

    Attributes:
        value: Paths of files of one format, the text of a SELECT, or a frame.
        kind: What `value` is.
        logger: Label of the logger that wrote all its rows, if the source says so.
    """

    value: Any  # see Frame
    kind: Literal["parquet", "csv", "json", "select", "frame", "table"]
    logger: str | None = None


@dataclass(frozen=True, eq=False)
class Log:
    """Rows that several policies logged, and what their columns mean.

    Wherever a probability is asked for, a column name, a SQL expression or a
    `Policy` will do.

    Attributes:
        source: A path, a glob or a list of them (Parquet, CSV, JSON lines), a SELECT,
            a pyarrow, pandas or Polars frame, or a mapping of each logger to a source.
            Left out where `table` is given.
        reward: Column or SQL expression of the reward.
        logger: Column with the label of the policy that wrote the row. Not needed
            where the source is a mapping, or where there is one logger only.
        propensity: Probability of the logged action under the logger that wrote the
            row. Not needed where `propensities` has it.
        propensities: Probability of the logged action under *every* logger, by label.
            The value None says that a logger exists whose probabilities are unknown.
        action: Column of the logged action; policies in Python need it.
        context: Columns that policies in Python see; empty means all other columns.
        cluster: Column of the unit whose rows belong together (a user, a session).
        trained_on: Loggers (or targets) whose policy was trained on the logs of others, as
            ``{"v2": ["v1"]}``: such rows have shaped the policy that now weighs them.
        estimate_mixture: Where `propensities` are missing, estimate what they would have told:
            True, or a scikit-learn classifier of which logger wrote a row. Estimates that
            rest on it are marked.
        mixture: Where `propensities` are missing but their average, weighted by the rows of
            each logger, was kept: its column.
        log_probabilities: All probabilities are given as natural logarithms.
        reward_range: Smallest and largest possible reward, where they are known.
        replay_tolerance: How far a logged propensity may be from the logger's own.
        on_fault: Refuse a log with bad rows ("raise"), or leave them out and say how
            many ("drop").
        reader_options: Options for DuckDB's file reader, such as ``{"delim": ";"}``.
        table: Name of a table, or a SELECT, in the database behind `connection`; or in
            the catalogue of a Spark session, with ``engine="spark"``.
        connection: An open DB-API or ADBC connection to that database. It stays yours.

    Examples:
        >>> log = Log("logs/*.parquet", logger="policy", reward="click", propensity="p")
        >>> log.parts[0].kind
        'parquet'
    """

    source: Source = None
    reward: str = field(kw_only=True)
    logger: str | None = field(default=None, kw_only=True)
    propensity: PolicyLike | None = field(default=None, kw_only=True)
    propensities: Mapping[Any, PolicyLike | None] | None = field(default=None, kw_only=True)
    action: str | None = field(default=None, kw_only=True)
    context: Sequence[str] = field(default=(), kw_only=True)
    cluster: str | None = field(default=None, kw_only=True)
    trained_on: Mapping[str, Sequence[str]] = field(default_factory=dict, kw_only=True)
    estimate_mixture: Any = field(default=False, kw_only=True)  # True, or any classifier
    mixture: str | None = field(default=None, kw_only=True)
    log_probabilities: bool = field(default=False, kw_only=True)
    reward_range: tuple[float, float] | None = field(default=None, kw_only=True)
    replay_tolerance: float = field(default=1e-6, kw_only=True)
    on_fault: OnFault = field(default="raise", kw_only=True)
    reader_options: Mapping[str, object] = field(default_factory=dict, kw_only=True)
    table: str | None = field(default=None, kw_only=True)
    connection: Any = field(default=None, kw_only=True)  # DB-API and ADBC share no type

    def __post_init__(self) -> None:
        given: object = self.propensities  # whatever the annotation says
        if given is not None and not isinstance(given, Mapping):
            raise UsageError("`propensities` maps a logger to its probability: {'v1': 'p_v1'}")
        problems = [*_source_problems(self), *_role_problems(self), *_rule_problems(self)]
        if problems:
            raise UsageError("\n".join(problems))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The pieces of the source, in order."""
        if self.table is not None:
            return (Part(self.table, "table"),)
        return tuple(_parts(self.source, None))

    @property
    def crossed(self) -> bool:
        """Whether every logger's probability of every row is known."""
        known = self.propensities or {}
        return bool(known) and all(value is not None for value in known.values())

    def _repr_html_(self) -> str:
        """What a notebook shows: columns and roles, rows of each logger, first faults."""
        # A log is only a description; what can read it stands below it and imports it.
        # So it is looked up by name, once somebody looks.
        shown: str = import_module("poolwise.evaluation.glance").glance(self)
        return shown


def _source_problems(log: Log) -> list[str]:
    if log.source is None and log.table is None:
        return ["say where the rows are: a `source`, or a `table` behind a `connection`"]
    if log.source is not None and log.table is not None:
        return ["the rows are in a `source` or in a `table`, not in both"]
    if log.connection is not None and log.table is None:
        return ["`connection` goes with `table`: the name of a table, or a SELECT"]
    return []


def _role_problems(log: Log) -> list[str]:
    problems = []
    if log.propensity is None and not log.crossed:
        problems.append(
            "give `propensity` (of the logged action under the logger that wrote the row), "
            "or `propensities` for every logger"
        )
    labelled = log.logger is not None or isinstance(log.source, Mapping)
    if not labelled and len(log.propensities or {}) > 1:
        problems.append("`propensities` names several loggers: say which column is `logger`")
    if isinstance(log.source, Mapping) and log.logger is not None:
        problems.append("the source is a mapping of loggers: leave `logger` out")
    if isinstance(log.context, str):
        problems.append("`context` is a list of columns, not one name")
    given: object = log.trained_on  # whatever the annotation says
    lists = given.values() if isinstance(given, Mapping) else ("",)
    if any(isinstance(names, str) or not isinstance(names, Sequence) for names in lists):
        problems.append("`trained_on` maps a logger to a list of loggers: {'v2': ['v1']}")
    return problems


def _rule_problems(log: Log) -> list[str]:
    problems = []
    wanted = log.estimate_mixture
    if not isinstance(wanted, bool) and not hasattr(wanted, "predict_proba"):
        problems.append(f"`estimate_mixture` is True or a classifier, not {wanted!r}")
    if log.mixture is not None and (log.crossed or wanted is not False):
        problems.append(
            "`mixture` stands for what is not known otherwise: leave it out where "
            "`propensities` are known for every logger, or where it is to be estimated"
        )
    if log.on_fault not in {"raise", "drop"}:
        problems.append(f"`on_fault` is 'raise' or 'drop', not {log.on_fault!r}")
    if not log.replay_tolerance >= 0:
        problems.append(f"`replay_tolerance` cannot be {log.replay_tolerance}")
    if log.reward_range is not None and not _is_range(*log.reward_range):
        problems.append(
            f"`reward_range` {log.reward_range} is not (lower, upper), two finite numbers that "
            "rewards can reach"
        )
    return problems


def _is_range(lower: float, upper: float) -> bool:
    return -LARGEST_REWARD <= lower < upper <= LARGEST_REWARD


def _parts(source: Any, logger: str | None) -> list[Part]:  # noqa: ANN401 - see Frame
    if isinstance(source, Mapping):
        if not source:
            raise UsageError("the source is an empty mapping: it names no logger")
        return [part for label, s in source.items() for part in _parts(s, str(label))]
    if isinstance(source, str) and SELECT.match(source):
        return [Part(source.strip().rstrip(";"), "select", logger)]
    if isinstance(source, str) and not source.strip():
        raise UsageError("the source is an empty path: there is nothing to read")
    if isinstance(source, str | Path):
        return [Part((str(source),), file_format(str(source)), logger)]
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        if not source:
            raise UsageError("the source is an empty list: there is nothing to read")
        return _joined([part for s in source for part in _parts(s, logger)])
    return [Part(source, "frame", logger)]


def _joined(parts: list[Part]) -> list[Part]:
    """Neighbouring files of one format become one part: one scan reads them all."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.kind == part.kind and part.kind in {"parquet", "csv", "json"}:
            joined[-1] = Part((*last.value, *part.value), part.kind, part.logger)
        else:
            joined.append(part)
    return joined


FORMATS: Mapping[str, Literal["parquet", "csv", "json"]] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}


def file_format(path: str) -> Literal["parquet", "csv", "json"]:
    """Format of a file or a glob, by its ending.

    >>> file_format("logs/day=1/*.parquet"), file_format("a.csv.gz"), file_format("b.jsonl")
    ('parquet', 'csv', 'json')
    """
    name = re.sub(r"\.(gz|zst|bz2)$", "", path.lower())
    ending = re.search(r"\.[a-z]+$", name)
    if ending is None:  # a folder, or a glob that ends in a star
        return "parquet"
    if ending.group() not in FORMATS:
        known = ", ".join(FORMATS)
        raise UsageError(
            f"cannot tell the format of {path!r} by its ending; known endings: {known}.\n"
            "For other formats pass a SELECT that DuckDB can run, or a frame."
        )
    return FORMATS[ending.group()]
