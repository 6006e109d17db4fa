"""Scoring once: a log with the probabilities of its policies written beside its columns.

A policy in Python costs more to ask than a column to read.  What is asked often is
scored once, into a file, and evaluated from there as often as anybody likes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sqlglot import exp

from poolwise.engines.duckdb import DuckDB
from poolwise.errors import UsageError
from poolwise.evaluation.read import named_targets
from poolwise.rows.output import PARQUET, refuse_output, whole_file
from poolwise.rows.roles import PART_LOGGER
from poolwise.rows.sources import files_of

if TYPE_CHECKING:
    from os import PathLike

    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.rows.roles import Roles


class ScoredLog(NamedTuple):
    """A log whose policies are columns, and its targets: what `evaluate` takes."""

    log: Log
    targets: dict[str, PolicyLike]


def score_log(
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    path: str | PathLike[str],
    *,
    engine: DuckDB | None = None,
) -> ScoredLog:
    """Write a log with one column for each policy that must be asked in Python.

    The file is Parquet and holds every column of the log; the columns of loggers are called
    ``p_`` and their label, those of targets ``t_`` and their name.  It is whole or absent.

    Args:
        log: The rows, with policies among `propensities`, or not.
        targets: New policies by name.
        path: Where to write, ending in ``.parquet``; what is there is replaced as a whole,
            unless the log is read from it.
        engine: How many threads and how much memory, if not all.

    Returns:
        The log in that file and its targets, for ``evaluate(*score_log(...))``.
    """
    named, place = named_targets(targets), Path(path)
    refuse_output(place, PARQUET, files_of(log))
    with whole_file(place) as beside:
        roles, names = (engine or DuckDB()).score(log, named, beside, _names)
    return ScoredLog(_scored(log, roles, names, place), _targets(named, roles, names))


def _names(roles: Roles) -> dict[str, str]:
    """What each scored column is called in the file."""
    if not roles.scored:
        raise UsageError("there is nothing to score: every policy is a column or SQL already")
    table = roles.table
    found = {
        str(value.name): f"{kind}_{label}"
        for kind, of in (("p", table.propensities), ("t", table.targets))
        for label, value in of.items()
        if value.name in roles.scored
    }
    if isinstance(table.propensity, exp.Column) and table.propensity.name in roles.scored:
        found[table.propensity.name] = "propensity"
    taken = [
        name for name in found.values() if name.lower() in {c.lower() for c in roles.columns}
    ]
    if taken:
        listed = ", ".join(map(repr, taken))
        raise UsageError(f"the log already has a column {listed}: rename the policy")
    return found


def _scored(log: Log, roles: Roles, names: Mapping[str, str], path: Path) -> Log:
    """The log in the file: policies that were scored are columns now."""
    found = roles.table.propensities
    known = {
        label: names.get(found[str(label)].name, policy) if str(label) in found else policy
        for label, policy in (log.propensities or {}).items()
    }
    own = roles.table.propensity
    scored = isinstance(own, exp.Column) and own.name in names
    return replace(
        log,
        source=path,
        logger=PART_LOGGER if isinstance(log.source, Mapping) else log.logger,
        propensity="propensity" if scored else log.propensity,
        propensities=known or None,
        reader_options={},
    )


def _targets(
    named: Mapping[str, PolicyLike], roles: Roles, names: Mapping[str, str]
) -> dict[str, PolicyLike]:
    found = roles.table.targets
    return {name: names.get(found[name].name, policy) for name, policy in named.items()}
