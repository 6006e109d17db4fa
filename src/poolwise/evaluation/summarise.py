"""Summaries: from a log, from a warehouse's answer or from files to a `Summary`."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from poolwise.engines.answer import QueryRows
from poolwise.engines.choose import as_engine
from poolwise.engines.printed import read_result, relation_of, standalone_request
from poolwise.engines.saved import Summary, question, with_manifest
from poolwise.engines.saved_file import holds_moments, named_files, refuse_missing
from poolwise.errors import UsageError
from poolwise.evaluation.check import needs_of
from poolwise.evaluation.read import named_targets
from poolwise.moments.moments import refuse_infinite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.engines.base import Rows
    from poolwise.engines.choose import EngineLike
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.estimate import Estimator


def summarise(
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    *,
    counts: Mapping[str, float] | None = None,
    also: Sequence[Estimator] = (),
    engine: EngineLike = None,
) -> Summary:
    """Reduce a log to moments that can be saved, added and evaluated without its rows.

    Args:
        log: The rows and what their columns mean: all of them, or one part (a day, a shard).
        targets: As for `evaluate`.
        counts: Rows of each logger in *all* parts together, which fix the mixture. Left out,
            the rows of this log do, and only what needs no mixture can be added to others.
        also: Estimators to serve beyond the default ones.
        engine: What reads the rows, as for `evaluate`.
    """
    if log.estimate_mixture:
        raise UsageError("an estimated mixture is learned from all rows: it has no summary")
    named = named_targets(targets)
    with as_engine(engine, log).open(log, named) as rows:
        if counts is not None and log.crossed:
            manifest = _checked(counts, log)
            weighted = _fixed(rows, manifest)
        else:
            manifest = dict(rows.counts) if log.crossed else {}
            weighted = rows
        moments = weighted.moments(needs_of(log, named, also))
    return Summary(moments, question(log, named), manifest)


def _checked(counts: Mapping[str, float], log: Log) -> dict[str, float]:
    """The counts by logger, in the order of the log."""
    given = {str(label): count for label, count in counts.items()}
    known = [str(label) for label in log.propensities or ()]
    if set(given) != set(known):
        found, wanted = (", ".join(map(repr, sorted(names))) for names in (given, known))
        raise UsageError(f"`counts` are of {found}, but `propensities` of {wanted}")
    if not all(0 < count < float("inf") for count in given.values()):
        raise UsageError(f"`counts` must be above 0: {given}")
    return {label: given[label] for label in known}


def _fixed(rows: Rows, manifest: Mapping[str, float]) -> Rows:
    if not isinstance(rows, QueryRows):
        raise UsageError(
            "this engine counts the rows itself: leave `counts` out, or summarise with DuckDB "
            "or over a connection"
        )
    return replace(rows, table=with_manifest(rows.table, manifest, rows.found))


def from_result(
    path: str | Path,
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    *,
    also: Sequence[Estimator] = (),
) -> Summary:
    """Take what a warehouse answered to the printed query for the rows.

    Args:
        path: The answer, as Parquet, CSV or JSON.
        log: The log as it was given to `poolwise sql`; only its roles are read.
        targets: The targets that were given there.
        also: Estimators that the query was printed for beyond the default ones.
    """
    named = named_targets(targets)
    needs = needs_of(log, named, also)
    request = standalone_request(log, named, needs, relation_of(log.table or "log"))
    asked = question(log, named)
    refuse_missing(Path(path))
    groups = read_result(Path(path), request, asked.mark(needs))
    order = [label for label in request.table.labels if label in groups] or sorted(groups)
    moments = {label: groups[label].moments for label in order}
    refuse_infinite(moments)
    counts = {label: m.count for label, m in moments.items()}
    return Summary(moments, asked, counts if log.crossed else {})


def from_files(
    paths: Sequence[str | Path],
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
) -> Summary:
    """Read saved summaries and answers of warehouses, and add them up.

    Args:
        paths: One file at least, each written by `Summary.save` or returned by a warehouse;
            a glob stands for the files that fit it.
        log: The log; only its roles are read.
        targets: The targets that the files are about.
    """
    if not paths:
        raise UsageError("there is no file of moments: name one at least")
    return reduce(add, (_from_file(path, log, targets) for path in named_files(paths)))


def _from_file(path: Path, log: Log, targets: Mapping[str, PolicyLike] | PolicyLike) -> Summary:
    return Summary.load(path) if holds_moments(path) else from_result(path, log, targets)
