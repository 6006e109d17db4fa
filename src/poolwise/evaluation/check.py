"""Check a log or score it, without estimating anything.

Calling a policy in Python is slower than reading a column, so a log that is evaluated often
is scored once: `score_log` writes the probabilities as columns of a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sqlglot import exp

from poolwise.diagnosis.audit import unaudited
from poolwise.engines import as_engine, with_loggers
from poolwise.errors import LogError, UsageError
from poolwise.evaluation.output import json_text, listed_findings
from poolwise.evaluation.read import audit_rows, copy_findings, open_rows
from poolwise.evaluation.request import Request, named_targets
from poolwise.log.log import PART_LOGGER
from poolwise.report.tables import Grid, as_html
from poolwise.rows.guard import files_of
from poolwise.rows.learners import NOTHING
from poolwise.rows.mixture import mixture_extra
from poolwise.rows.output import PARQUET, refuse_output, whole_file

if TYPE_CHECKING:
    from os import PathLike

    from poolwise.engines.base import EngineLike
    from poolwise.errors import Fault, Finding
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.rows.roles import Roles


@dataclass(frozen=True, repr=False)
class CheckReport:
    """Result of `check`.

    Attributes:
        faults: The rules that rows break, by logger.
        rows: Rows of each logger, bad ones included.
        findings: Findings about the rows as a whole: copies, and propensities that the
            frequencies of actions contradict.
    """

    faults: tuple[Fault, ...]
    rows: Mapping[str, int]
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> str:
        """Return the faults and the rows as JSON."""
        faults = [
            {**vars(f), "example": {k: str(v) for k, v in f.example.items()}}
            for f in self.faults
        ]
        warnings = listed_findings(self.findings)
        return json_text(
            "check", {"faults": faults, "rows": dict(self.rows), "warnings": warnings}
        )

    def grids(self) -> list[Grid]:
        """Return the broken rules, then the rows of each logger."""
        faults = [[f.logger, f"{f.rows:,}", f.rule] for f in self.faults]
        rows = [[logger, f"{count:,}"] for logger, count in self.rows.items()]
        broken = Grid("Faults", ["logger", "rows", "broken rule"], faults)
        return [*([broken] if faults else []), Grid("Rows", ["logger", "rows"], rows)]

    def _repr_html_(self) -> str:
        advice = list(dict.fromkeys(fault.advice for fault in self.faults if fault.advice))
        sentences = advice if self.faults else ["No faults."]
        return as_html(self.grids(), listed_findings(self.findings), sentences)

    def __str__(self) -> str:
        if self.faults:
            return str(LogError(self.faults))
        rows = ", ".join(f"{i!r} {n:,}" for i, n in self.rows.items())
        lines = [f"no faults in {sum(self.rows.values()):,} rows ({rows})"]
        lines += [f"{f.severity} ({f.code}): {f}" for f in self.findings]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)


def check(
    log: Log, targets: Mapping[str, PolicyLike] | None = None, *, engine: EngineLike = None
) -> CheckReport:
    """Count the rows that break each rule, by logger, without estimating anything.

    The DuckDB engine also counts exact copies of rows, unless the log has a `cluster`.
    """
    log = with_loggers(log, engine)
    named = named_targets(targets) if targets else {}
    extra = NOTHING if log.mixture is None else mixture_extra(log)  # an estimate has no faults
    with open_rows(Request(log, named, extra=extra), engine) as declared:
        rows = declared.complete()
        faults = rows.check()
        audit = () if faults else (*unaudited(log), *audit_rows(rows, log))
        return CheckReport(faults, rows.all_counts, (*copy_findings(rows, log), *audit))


class ScoredLog(NamedTuple):
    """A log whose policies are columns, and its targets: the arguments of `evaluate`."""

    log: Log
    targets: dict[str, PolicyLike]


def score_log(
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    path: str | PathLike[str],
    *,
    engine: EngineLike = None,
) -> ScoredLog:
    """Write a Parquet file with the log's columns and one column per Python policy.

    The column of a logger is named ``p_`` and its label, the column of a target ``t_`` and
    its name. An error leaves no file behind.

    Args:
        log: The rows; `propensities` may be policies.
        targets: New policies by name.
        path: The file to write, ending in ``.parquet``; an existing file is replaced unless
            the log reads it.
        engine: Limits of threads and memory, as ``DuckDB(threads=4)``.

    Returns:
        The log in that file and its targets, for ``evaluate(*score_log(...))``.
    """
    named, file, log = named_targets(targets), Path(path), with_loggers(log)
    scorer = as_engine(engine, log)
    refuse_output(file, PARQUET, files_of(log))
    with whole_file(file) as unfinished:
        roles, names = scorer.score(log, named, unfinished, _names)
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
        label: names.get(columns[label].name, policy) if label in columns else policy
        for label, policy in log.by_label.items()
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
