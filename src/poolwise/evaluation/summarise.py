"""Summarise: a log, a warehouse's answer or saved files become a `Summary`.

`query_text` prints the query that a warehouse answers.
"""

from __future__ import annotations

import glob
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from poolwise.engines import with_loggers
from poolwise.engines.files import (
    holds_moments,
    question,
    read_answer,
    refuse_missing,
    standalone_query,
)
from poolwise.engines.saved import Summary
from poolwise.errors import SourceError, UsageError
from poolwise.estimators import BY_NAME
from poolwise.evaluation.read import open_rows
from poolwise.evaluation.request import Request, named_targets, served
from poolwise.intervals.base import find_kind, lack_blocks, pair_needs
from poolwise.intervals.skew import interval_needs
from poolwise.moments.coverage import Coverage
from poolwise.moments.terms import unite

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from poolwise.engines.base import EngineLike
    from poolwise.intervals.base import IntervalName
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.terms import Needs


def summarise(
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    *,
    counts: Mapping[str, float] | None = None,
    also: Sequence[Estimator] = (),
    interval: IntervalName = "auto",
    engine: EngineLike = None,
) -> Summary:
    """Reduce a log to moments that can be saved, added and evaluated without its rows.

    Args:
        log: The rows and their roles: the whole log, or one part (a day, a shard).
        targets: As for `evaluate`.
        counts: Rows of each logger in *all* parts together, which fix the mixture. By
            default, the rows of this log fix the mixture, and only terms without the
            mixture can be added to other parts.
        also: Estimators besides the default ones.
        interval: "smoothed" adds the sums of that interval for the log's `reward_range`;
            the sums of the other intervals are always saved.
        engine: The engine that reads the rows, as for `evaluate`.
    """
    if log.estimate_mixture:
        raise UsageError("a log with an estimated mixture, which all rows fix, has no summary")
    log = with_loggers(log, engine)
    named = named_targets(targets)
    with open_rows(Request(log, named), engine) as rows:
        if counts is not None and log.crossed:
            manifest = _checked(counts, log)
            weighted = rows.with_shares(manifest)
        else:
            manifest = dict(rows.counts) if log.crossed else {}
            weighted = rows
        pool = weighted.moments(
            needs_of(log, named, also, shaped=rows.shaped, interval=interval)
        )
    moments = {logger: pool[logger] for logger in pool.loggers}
    return Summary(moments, question(log, named), manifest)


def _checked(counts: Mapping[str, float], log: Log) -> dict[str, float]:
    """Return the counts in the order of the log's loggers."""
    by_label = {str(label): count for label, count in counts.items()}
    loggers = list(log.by_label)
    if set(by_label) != set(loggers):
        got, expected = (", ".join(map(repr, sorted(names))) for names in (by_label, loggers))
        raise UsageError(
            f"`counts` must name the loggers of `propensities`, {expected}; got {got}"
        )
    if not all(0 < count < float("inf") for count in by_label.values()):
        raise UsageError(f"`counts` must be above 0 and finite, got {by_label}")
    return {label: by_label[label] for label in loggers}


def query_text(
    log: Log,
    table: str,
    targets: Mapping[str, PolicyLike],
    dialect: str,
    interval: IntervalName = "auto",
) -> str:
    """Return the query whose result an evaluation of a table can use instead of the rows.

    The sums of interval="smoothed" are among it if requested.
    """
    if not targets:
        raise UsageError(
            "at least one --target is required, e.g. --target candidate=p_candidate"
        )
    needs = needs_of(log, targets, interval=interval)
    return standalone_query(log, table, targets, needs, dialect)


def needs_of(
    log: Log,
    targets: Iterable[str],
    also: Sequence[Estimator] = (),
    *,
    shaped: bool = False,
    interval: IntervalName = "auto",
) -> Needs:
    """Return what evaluations with the default and some other estimators need.

    Slices and powers of skewed intervals are among it if `shaped`, the sums of
    interval="smoothed" if that is the interval.
    """
    kind = find_kind(interval)
    if kind.by_block:
        raise lack_blocks(kind)
    own = Coverage(tuple(log.by_label))
    coverage = Coverage.complete(log.by_label) if log.crossed else own
    estimators = (*(make() for make in BY_NAME.values()), *also)
    request = Request(log, {}, estimators, strict=False)
    needs = served(request, coverage, shaped=shaped).needs
    for known in (coverage, own):
        needs |= pair_needs(known) | kind.needs(log, known)
    if shaped:  # a sum of parts may keep only what does not depend on the mixture
        needs |= interval_needs(BY_NAME["naive"]().needs(own))
    return unite(needs.bind(name) for name in targets)


def from_result(
    path: str | Path,
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    *,
    also: Sequence[Estimator] = (),
    interval: IntervalName = "auto",
) -> Summary:
    """Read the exported result of the query that `poolwise sql` printed.

    Unlike the file of `Summary.save`, the result has no checksum: poolwise detects a
    damaged number only if no rows could have produced it.

    Args:
        path: The result, as Parquet, CSV or JSON.
        log: The log as passed to `poolwise sql`; only its roles are read.
        targets: The targets passed to `poolwise sql`.
        also: Estimators besides the default ones that the query was printed for.
        interval: Interval that the query was printed for.
    """
    named = named_targets(targets)
    needs = needs_of(log, named, also, interval=interval)
    moments = read_answer(Path(path), log, named, needs)
    counts = {label: m.count for label, m in moments.items()}
    return Summary(moments, question(log, named), counts if log.crossed else {})


def from_files(
    paths: Sequence[str | Path],
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    *,
    interval: IntervalName = "auto",
) -> Summary:
    """Read saved summaries and answers of warehouses, and add them up.

    Args:
        paths: At least one file, each written by `Summary.save` or exported by a warehouse;
            a glob matches several.
        log: The log; only its roles are read.
        targets: The targets that the files were made for.
        interval: Interval that queries were printed for.
    """
    if not paths:
        raise UsageError("at least one file of moments is required")
    parts = (
        Summary.load(path)
        if holds_moments(path)
        else from_result(path, log, targets, interval=interval)
        for path in named_files(paths)
    )
    return reduce(add, parts)


def named_files(paths: Sequence[str | Path]) -> list[Path]:
    """Expand paths and globs in order; reject missing and repeated files."""
    files = [file for path in paths for file in _expanded(Path(path))]
    real = [file.resolve() for file in files]
    for k, file in enumerate(files):
        if real[k] in real[:k]:
            raise UsageError(f"{str(file)!r} is listed twice: its rows would count twice")
    return files


def _expanded(path: Path) -> list[Path]:
    if not glob.has_magic(str(path)) or path.exists():
        refuse_missing(path)
        return [path]
    files = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    if not files:
        raise SourceError(f"{str(path)!r}", "no file matches this pattern")
    return files
