"""Summarise: a log, a warehouse's answer or saved files become a `Summary`.

`query_text` prints the query that a warehouse answers.
"""

from __future__ import annotations

import glob
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from poolwise.engines import (
    make_summary,
    read_exported,
    read_saved,
    with_loggers,
    write_query,
)
from poolwise.errors import SourceError, UsageError
from poolwise.estimators import BY_NAME
from poolwise.evaluation.per_request import refuse_clicks, refuse_estimates
from poolwise.evaluation.read import cover, open_rows
from poolwise.evaluation.request import Request, named_targets, select_estimators
from poolwise.files import refuse_missing
from poolwise.intervals.base import find_kind, lack_blocks, pair_needs
from poolwise.intervals.skew import interval_needs
from poolwise.moments.coverage import Coverage
from poolwise.moments.terms import unite

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from poolwise.engines import Summary
    from poolwise.engines.base import EngineLike, Rows
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
    if log.needs_classifier:
        raise UsageError("a log with an estimated mixture, which all rows fix, has no summary")
    log = with_loggers(log, engine)
    refuse_clicks(log, "summarise")
    refuse_estimates(log, "summarise")
    named = named_targets(targets)
    with open_rows(Request(log, named), engine) as rows:
        weighted: Rows = rows
        manifest: Mapping[str, float] = {}
        needs = list_needs(log, named, also, shaped=rows.shaped, interval=interval)
        if counts is not None and log.crossed:
            manifest = _check_counts(counts, log)
            weighted = rows.with_shares(manifest)
        elif log.crossed:
            manifest = dict(rows.counts)
        elif log.period is None:
            weighted, coverage = cover(log, rows)
            if coverage.mixture == "own":  # an only logger: its propensity is the mixture
                manifest, shaped = dict(rows.counts), rows.shaped
                needs |= list_needs(
                    log, named, also, coverage, shaped=shaped, interval=interval
                )
        pool = weighted.moments(needs)
    moments = {logger: pool[logger] for logger in pool.loggers}
    return make_summary(moments, log, named, manifest)


def _check_counts(counts: Mapping[str, float], log: Log) -> dict[str, float]:
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
    needs = list_needs(log, targets, interval=interval)
    return write_query(log, table, targets, needs, dialect)


def list_needs(
    log: Log,
    targets: Iterable[str],
    also: Sequence[Estimator] = (),
    coverage: Coverage | None = None,
    *,
    shaped: bool = False,
    interval: IntervalName = "auto",
) -> Needs:
    """Return what evaluations with the default and some other estimators need.

    Slices and powers of skewed intervals are among it if `shaped`, the sums of
    interval="smoothed" if that is the interval.  The coverage is by default that of the roles.
    """
    kind = find_kind(interval)
    if kind.by_block:
        raise lack_blocks(kind)
    coverage = _declare_coverage(log) if coverage is None else coverage
    own = Coverage(coverage.loggers)
    estimators = (*(make() for make in BY_NAME.values()), *also)
    request = Request(log, {}, estimators, strict=False)
    needs = select_estimators(request, coverage, shaped=shaped).needs
    for known in (coverage, own):
        needs |= pair_needs(known) | kind.needs(log, known)
    if shaped:  # a sum of parts may keep only what does not depend on the mixture
        needs |= interval_needs(BY_NAME["naive"]().needs(own))
    return unite(needs.bind(name) for name in targets)


def _declare_coverage(log: Log) -> Coverage:
    """Return what the roles of a log say about its probabilities."""
    own = Coverage(tuple(log.by_label))
    return Coverage.complete(log.by_label) if log.crossed else own


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
    needs = list_needs(log, named, also, interval=interval)
    return read_exported(Path(path), log, named, needs)


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
    read_result = partial(from_result, log=log, targets=targets, interval=interval)
    return reduce(add, (read_saved(path, read_result) for path in named_files(paths)))


def named_files(paths: Sequence[str | Path]) -> list[Path]:
    """Expand paths and globs in order; reject missing and repeated files."""
    files = [file for path in paths for file in _expand_path(Path(path))]
    real = [file.resolve() for file in files]
    for k, file in enumerate(files):
        if real[k] in real[:k]:
            raise UsageError(f"{str(file)!r} is listed twice: its rows would count twice")
    return files


def _expand_path(path: Path) -> list[Path]:
    if not glob.has_magic(str(path)) or path.exists():
        refuse_missing(path)
        return [path]
    files = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    if not files:
        raise SourceError(f"{str(path)!r}", "no file matches this pattern")
    return files
