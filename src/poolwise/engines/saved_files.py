"""Files of moments: those that `Summary.save` writes, and exported answers of a database.

A saved file has one line per logger, with arrays as lists of doubles; its metadata holds, as
JSON, the terms that the lists refer to and a checksum of everything.  An exported answer is
that of the query which `poolwise sql` prints: the database that writes it adds no checksum, so
a damaged number in it can go unnoticed.  Reading never executes anything from a file, and
rejects an inconsistent file with one message.
"""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from poolwise.engines.answer import decode
from poolwise.engines.base import lacking
from poolwise.engines.sql import MomentsRequest, moments_query, write_sql
from poolwise.engines.warehouse import check_dialect, parse_relation
from poolwise.errors import Fault, LogError, SourceError, UsageError
from poolwise.files import (
    PARQUET,
    real_place,
    refuse_missing,
    refuse_output,
    telling,
    whole_file,
)
from poolwise.log.action_groups import ActionGroups
from poolwise.log.adapters import policy_text
from poolwise.log.log import ONLY_LOGGER, file_format
from poolwise.log.problems import UTC
from poolwise.log.scalar import refuse_different
from poolwise.moments.moments import Moments, refuse_infinite
from poolwise.moments.tallies import BINS, POWERS
from poolwise.moments.terms import FACTORS, Factor, Term
from poolwise.rows.computed import is_arithmetic
from poolwise.rows.entries import NoEntriesError
from poolwise.rows.roles import assign
from poolwise.rows.rules import string

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from poolwise.engines.answer import AnswerLine
    from poolwise.engines.base import Line
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.terms import Needs
    from poolwise.rows.rules import RoleColumns
    from poolwise.types import FloatArray

FORMAT = 3  # version of saved files
ANSWER_FORMAT = 1  # version of the printed query and of its answer
HASH_LENGTH = 16
KEY = b"poolwise"
DAMAGED_FILE = "the file is damaged: summarise the log again, or restore a copy"
UNREADABLE = (pa.ArrowException, OSError, ValueError, MemoryError)  # not Parquet, or damaged
CONTENT_ERRORS = (
    LookupError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
ARRAYS = ("means", "scatter", "lowest", "largest")
TALLIES: Mapping[str, type] = {
    "tails": np.float64,
    "histograms": np.int64,
    "slices": np.float64,
    "powers": np.float64,
}
SCHEMA = pa.schema(
    [("logger", pa.string()), ("rows", pa.int64())]
    + [(name, pa.list_(pa.float64())) for name in ARRAYS]
    + [(name, pa.list_(pa.list_(pa.from_numpy_dtype(t)))) for name, t in TALLIES.items()]
)
Header = dict[str, Any]  # the JSON in the metadata
HASH_COLUMN = "poolwise"  # column of the answer with the hash of the question
NULLS = {"", "NULL", "\\N"}  # NULL in exported CSV files
CORRECT_ADVICE = (
    "Correct the rows at their source, or print the query for pw.Log(..., on_fault='drop') "
    "(--on-fault drop). `poolwise check`, or an evaluation over a connection, lists the rules "
    "that they break."
)


@dataclass(frozen=True)
class QuestionHashes:
    """Hashes of the roles and targets that moments were computed for.

    Attributes:
        roles: Hash of the logger, the reward and the rules.
        targets: Hash of each target.
        mixture: Hash of the propensities; empty where they are not known for every logger.
    """

    roles: str
    targets: Mapping[str, str]
    mixture: str = ""

    def mark(self, needs: Needs) -> str:
        """Hash of the question and the needs, to mark the answer of the printed query."""
        parts = [sorted(map(_factors, part)) for part in (needs.means, needs.extremes)]
        groups = sorted(sorted(map(_factors, group)) for group in needs.groups)
        return f"{ANSWER_FORMAT}:{_hash([*asdict(self).values(), *parts, groups])}"


def question(log: Log, targets: Mapping[str, PolicyLike]) -> QuestionHashes:
    """Hash the roles of a log and its targets, but not its source.

    >>> from poolwise.log.log import Log
    >>> day = [Log(f"{k}.parquet", reward="r", propensity="p") for k in (1, 2)]
    >>> question(day[0], {"new": "t"}) == question(day[1], {"new": "t"})
    True
    >>> question(day[0], {"new": "t"}) == question(day[1], {"new": "u"})
    False
    """
    logger = ONLY_LOGGER if log.logger is None else policy_text(log.logger)
    rules = [log.log_probabilities, log.on_fault, *["densities"] * log.densities]
    rules += [] if log.timezone == UTC else [log.timezone]
    groups = log.action_group
    rules += [] if groups is None else [groups if isinstance(groups, str) else _pairs(groups)]
    crossed = {k: policy_text(v) for k, v in log.by_label.items() if v is not None}
    own = None if log.propensity is None else policy_text(log.propensity)
    return QuestionHashes(
        _hash([logger, policy_text(log.reward), rules]),
        {str(name): _hash(policy_text(policy)) for name, policy in targets.items()},
        _hash([crossed, own]) if log.crossed else "",
    )


def _pairs(groups: Mapping[object, object]) -> str:
    """Return the text of the groups of actions."""
    return repr(sorted(ActionGroups.read(groups).by_action.items()))


def _factors(term: Term) -> list[list[str]]:
    return [
        [f.name, f.logger, f.target, f.rule, repr(f.bound), *([repr(f.zero)] if f.zero else ())]
        for f in term.factors
    ]


def _hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def write_moments(
    path: Path, moments: Mapping[str, Moments], header: Mapping[str, Any]
) -> None:
    """Write the moments of each logger, with `header` in the file's metadata."""
    _refuse_path(path)
    first = next(iter(moments.values()))
    tallied = {kind: sorted(getattr(first, kind)) for kind in TALLIES}
    meta = {
        **header,
        "format": FORMAT,
        "terms": [[asdict(f) for f in term.factors] for term in first.terms],
        "scattered": len(first.scatter),
        **{kind: [first.terms.index(t) for t in terms] for kind, terms in tallied.items()},
        "ddof": first.ddof,
    }
    lines = [
        {
            "logger": logger,
            "rows": m.count,
            **{name: getattr(m, name).ravel().tolist() for name in ARRAYS},
            **{
                kind: [getattr(m, kind)[t].tolist() for t in terms]
                for kind, terms in tallied.items()
            },
        }
        for logger, m in moments.items()
    ]
    table = pa.Table.from_pylist(lines, schema=SCHEMA)
    meta["checksum"] = checksum(meta, table.to_pylist())
    table = table.replace_schema_metadata({KEY: json.dumps(meta, sort_keys=True).encode()})
    with whole_file(path) as unfinished, telling(path):
        pq.write_table(table, unfinished, compression="zstd")


def checksum(meta: Header, lines: Sequence[Line]) -> str:
    """Hash all that a file says: the metadata, without the checksum, and the lines.

    >>> one, other = ({"format": k, "checksum": "any"} for k in (1, 2))
    >>> checksum(one, []) == checksum({"format": 1}, []) != checksum(other, [])
    True
    """
    content = [{k: v for k, v in meta.items() if k != "checksum"}, lines]
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _refuse_path(path: Path) -> None:
    """Reject another file extension, and an existing file without moments."""
    if path.suffix:
        refuse_output(path, PARQUET)
    there = real_place(path)
    if there.exists() and there.stat().st_size > 0 and not holds_moments(there):
        raise UsageError(
            f"cannot write {path}: the existing file was not written by `Summary.save`; choose "
            "another name"
        )


def _unreadable(path: Path, why: str) -> SourceError:
    return SourceError(f"{str(path)!r}", why)


def _why(reason: BaseException) -> str:
    return str(reason).partition("\n")[0] or DAMAGED_FILE


def holds_moments(path: Path) -> bool:
    """Return True if the metadata of a file is that of `write_moments`."""
    try:
        return KEY in (pq.read_schema(path).metadata or {})
    except UNREADABLE:
        return False


def read_moments(path: Path) -> tuple[dict[str, Moments], Header]:
    """Read the moments of each logger and the header; reject an inconsistent file."""
    refuse_missing(path)
    try:
        table = pq.read_table(path)
    except UNREADABLE as reason:
        raise _unreadable(path, _why(reason)) from reason
    text = (table.schema.metadata or {}).get(KEY)
    if text is None:
        raise _unreadable(path, "the file was not written by `Summary.save`")
    try:
        meta = json.loads(text)
        version = meta["format"]
        moments = _decode_table(table, meta) if version == FORMAT else {}
    except CONTENT_ERRORS as reason:
        raise _unreadable(path, DAMAGED_FILE) from reason
    if version != FORMAT:
        raise _unreadable(
            path,
            f"the file must have format {FORMAT}, got {version!r}: summarise the log again and "
            "save it with this version of poolwise, or read it with the one that wrote it",
        )
    return moments, meta


def _decode_table(table: pa.Table, meta: Header) -> dict[str, Moments]:
    _require(table.schema.equals(SCHEMA) and table.num_rows > 0)
    lines = table.to_pylist()
    _require(meta["checksum"] == checksum(meta, lines))
    terms = tuple(Term(tuple(Factor(**f) for f in factors)) for factors in meta["terms"])
    _require(all(f.name in FACTORS for t in terms for f in t.factors))
    _require(
        all(isinstance(x, float) for t in terms for f in t.factors for x in (f.bound, f.zero))
    )
    _require(len(set(terms)) == len(terms) > 0)
    moments = {line["logger"]: _moments(line, terms, meta) for line in lines}
    _require(len(moments) == len(lines) and None not in moments)
    return moments


def _moments(line: Mapping[str, Any], terms: tuple[Term, ...], meta: Header) -> Moments:
    size, count = int(meta["scattered"]), int(line["rows"])
    _require(0 <= size <= len(terms) and count > 0 and meta["ddof"] in {0, 1})
    tallies: dict[str, Any] = {
        kind: {
            terms[k]: np.array(values, dtype=dtype)
            for k, values in zip(meta[kind], line[kind], strict=True)
        }
        for kind, dtype in TALLIES.items()
    }
    moments = Moments(
        terms,
        count,
        _array(line["means"], len(terms)),
        _array(line["scatter"], size * size).reshape(size, size),
        _array(line["lowest"], len(terms)),
        _array(line["largest"], len(terms)),
        meta["ddof"],
        **tallies,
    )
    _require(_consistent(moments))
    return moments


def _consistent(m: Moments) -> bool:
    """Return True if the numbers could be moments of some rows."""
    extremes = np.array([m.lowest, m.largest])
    tails, histograms = m.tails.values(), m.histograms.values()
    conditions = [
        m.bounded,
        np.array_equal(m.scatter, m.scatter.T, equal_nan=True),
        not (np.diag(m.scatter) < 0).any(),
        not (m.lowest > m.largest).any() and not np.isinf(extremes).any(),
        np.array_equal(*np.isnan(extremes)),
        all(0 < len(tail) <= m.count and np.isfinite(tail).all() for tail in tails),
        all((tail[1:] <= tail[:-1]).all() for tail in tails),
        all(rows.shape == (BINS,) and (rows >= 0).all() for rows in histograms),
        all(rows.sum() <= m.count for rows in histograms),
        len({sums.shape for sums in m.slices.values()}) <= 1,
        all(sums.ndim == 1 and np.isfinite(sums).all() for sums in m.slices.values()),
        all(sums.shape == (POWERS,) and (sums >= 0).all() for sums in m.powers.values()),
    ]
    return all(conditions)


def _array(values: list[float | None], size: int) -> FloatArray:
    array = np.array(values, dtype=np.float64)  # NULL becomes NaN
    _require(array.shape == (size,))
    return array


def _require(holds: bool, problem: str = DAMAGED_FILE) -> None:  # noqa: FBT001 - a condition
    if not holds:
        raise ValueError(problem)


def standalone_query(
    log: Log, table: str, targets: Mapping[str, PolicyLike], needs: Needs, dialect: str
) -> str:
    """Return the text of the query; its last column is a hash of the question.

    A comment names the time zone where expressions may depend on it.
    """
    dialect = check_dialect(dialect)
    if log.action_group is not None:
        raise lacking("groups")
    request = standalone_request(log, table, targets, needs, dialect)
    refuse_different(request.table.roles, dialect, dialect)
    mark = string(question(log, targets).mark(needs)).as_(HASH_COLUMN, quoted=True)
    text = write_sql(moments_query(request).select(mark), dialect, pretty=True)
    if log.timezone == UTC and is_arithmetic(request.table.roles.values()):
        return text
    return f"-- For a session with the time zone {log.timezone}.\n{text}"


def standalone_request(
    log: Log,
    table: str,
    targets: Mapping[str, PolicyLike],
    needs: Needs,
    dialect: str = "duckdb",
) -> MomentsRequest:
    """Return the request of such a query; column names are not looked up."""
    try:
        roles = assign(log, targets, None, parse_relation(table), dialect=dialect)
    except NoEntriesError:
        raise lacking("distributions") from None
    if roles.scored:
        raise UsageError("policies in Python cannot be written as SQL: score them first")
    return MomentsRequest(roles.table, needs)


def read_answer(
    path: Path, log: Log, targets: Mapping[str, PolicyLike], needs: Needs
) -> dict[str, Moments]:
    """Return the moments of an exported answer by logger; reject that to another question."""
    refuse_missing(path)
    lines = _read_exported(path)
    marks = {str(line.get(HASH_COLUMN)) for line in lines}
    if not lines or "None" in marks:
        raise _unreadable(path, "the file is not the result of `poolwise sql`")
    if marks != {question(log, targets).mark(needs)}:
        raise _unreadable(
            path,
            "the file answers another question: roles, targets, options and version of "
            "poolwise must be those that printed the query",
        )
    request = standalone_request(log, log.table or "log", targets, needs)
    try:
        _require(all(int(line["rows"]) > 0 for line in lines), "a logger without rows")
        groups = {group.logger: group for group in (decode(request, line) for line in lines)}
    except CONTENT_ERRORS as reason:
        raise _unreadable(path, f"its columns are damaged ({reason})") from reason
    _refuse_bad(groups, request.table)
    if len(groups) < len(lines):
        raise _unreadable(path, "the file has several lines for one logger")
    moments = {str(label): group.moments for label, group in groups.items()}
    refuse_infinite(moments)
    order = [label for label in request.table.labels if label in moments] or sorted(moments)
    return {label: moments[label] for label in order}


def _refuse_bad(groups: Mapping[str | None, AnswerLine], table: RoleColumns) -> None:
    faults = [
        Fault("the row breaks a rule", label or "", group.bad, advice=CORRECT_ADVICE)
        for label, group in groups.items()
        if group.bad
    ]
    absent = [] if table.drop else [label for label in table.labels if label not in groups]
    faults += [Fault("the logger has no rows", label, 0) for label in absent]
    if faults:
        raise LogError(faults)


def _read_exported(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a small file as mappings, with column names in lower case."""
    kind = file_format(str(path))
    try:
        lines = _parse_lines(path, kind)
        return [{str(name).lower(): value for name, value in line.items()} for line in lines]
    except OSError as reason:
        raise _unreadable(path, reason.strerror or _why(reason)) from reason
    except (*UNREADABLE, AttributeError, RecursionError, csv.Error) as reason:
        why = f"the file is not {kind}: {_why(reason)}"
        raise _unreadable(path, why) from reason


def _parse_lines(path: Path, kind: str) -> Sequence[Line]:
    """Read Parquet, with the checksums of its pages if it has some, CSV or JSON."""
    if kind == "parquet":
        return [*pq.read_table(path, page_checksum_verification=True).to_pylist()]
    if kind == "csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            return [{k: None if v in NULLS else v for k, v in line.items()} for line in lines]
    text = path.read_text("utf-8-sig")
    if text.lstrip().startswith("["):
        return [*json.loads(text)]
    return [json.loads(line) for line in text.splitlines() if line.strip()]
