"""Score a log once: write the probabilities of its Python policies as columns of a file.

Calling a policy in Python is slower than reading a column, so a log that is evaluated often
is scored once.
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
    """A log whose policies are columns, and its targets: the arguments of `evaluate`."""

    log: Log
    targets: dict[str, PolicyLike]


def score_log(
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    path: str | PathLike[str],
    *,
    engine: DuckDB | None = None,
) -> ScoredLog:
    """Write a Parquet file with the log's columns and one column per Python policy.

    Columns of loggers are named ``p_`` and the label, those of targets ``t_`` and the name.
    An error leaves no file behind.

    Args:
        log: The rows; `propensities` may be policies.
        targets: New policies by name.
        path: The file to write, ending in ``.parquet``; an existing file is replaced unless
            the log reads it.
        engine: Limits of threads and memory.

    Returns:
        The log in that file and its targets, for ``evaluate(*score_log(...))``.
    """
    named, file = named_targets(targets), Path(path)
    refuse_output(file, PARQUET, files_of(log))
    with whole_file(file) as unfinished:
        roles, names = (engine or DuckDB()).score(log, named, unfinished, _names)
    return ScoredLog(_scored(log, roles, names, file), _targets(named, roles, names))


def _names(roles: Roles) -> dict[str, str]:
    """Names of the scored columns in the file."""
    if not roles.scored:
        raise UsageError("no policy needs scoring: all of them are columns or SQL already")
    table = roles.table
    names = {
        str(value.name): f"{kind}_{label}"
        for kind, policies in (("p", table.propensities), ("t", table.targets))
        for label, value in policies.items()
        if value.name in roles.scored
    }
    if isinstance(table.propensity, exp.Column) and table.propensity.name in roles.scored:
        names[table.propensity.name] = "propensity"
    columns = {name.lower() for name in roles.columns}
    taken = [name for name in names.values() if name.lower() in columns]
    if taken:
        listed = ", ".join(map(repr, taken))
        raise UsageError(f"the log already has a column {listed}: rename the policy")
    return names


def _scored(log: Log, roles: Roles, names: Mapping[str, str], path: Path) -> Log:
    """The log in the file, with columns in place of scored policies."""
    columns = roles.table.propensities
    propensities = {
        label: names.get(columns[str(label)].name, policy) if str(label) in columns else policy
        for label, policy in (log.propensities or {}).items()
    }
    own = roles.table.propensity
    scored = isinstance(own, exp.Column) and own.name in names
    return replace(
        log,
        source=path,
        logger=PART_LOGGER if isinstance(log.source, Mapping) else log.logger,
        propensity="propensity" if scored else log.propensity,
        propensities=propensities or None,
        reader_options={},
    )


def _targets(
    named: Mapping[str, PolicyLike], roles: Roles, names: Mapping[str, str]
) -> dict[str, PolicyLike]:
    columns = roles.table.targets
    return {name: names.get(columns[name].name, policy) for name, policy in named.items()}
