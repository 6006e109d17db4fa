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

from poolwise.diagnosis.audit import explain_unaudited
from poolwise.engines import as_engine, with_loggers
from poolwise.errors import LogError, UsageError
from poolwise.evaluation.output import json_text, listed_findings, of_requests
from poolwise.evaluation.per_request import refuse_clicks
from poolwise.evaluation.read import audit_rows, copy_findings, open_rows, unit_findings
from poolwise.evaluation.request import Request, named_targets
from poolwise.files import PARQUET, refuse_output, whole_file
from poolwise.log.log import PART_LOGGER
from poolwise.report.tables import Grid, as_html
from poolwise.rows.guard import list_files
from poolwise.rows.learners import NO_EXTRA
from poolwise.rows.mixture import mixture_extra
from poolwise.rows.values import listed
from poolwise.text import count_text, in_units, unit_text

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
        findings: Findings about the rows as a whole: copies, propensities that the
            frequencies of actions contradict, and rows that depend on each other.
        rows_per_request: Rows of a request, shorter ones filled up; None without requests.
    """

    faults: tuple[Fault, ...]
    rows: Mapping[str, int]
    findings: tuple[Finding, ...] = ()
    rows_per_request: int | None = None

    def to_json(self) -> str:
        """Return the faults and the rows as JSON."""
        faults = [
            {**vars(f), "example": {k: str(v) for k, v in f.example.items()}}
            for f in self.faults
        ]
        warnings = listed_findings(self.findings)
        return json_text(
            "check",
            {
                "faults": faults,
                "rows": dict(self.rows),
                "warnings": warnings,
                **of_requests(self.rows_per_request),
            },
        )

    def grids(self) -> list[Grid]:
        """Return the broken rules, then the rows of each logger."""
        faults = [[f.logger, f"{f.rows:,}", f.rule] for f in self.faults]
        rows = [[logger, count_text(count)] for logger, count in self.counts.items()]
        broken = Grid("Faults", ["logger", "rows", "broken rule"], faults)
        units = f"{unit_text(self.rows_per_request)}s"
        whole = Grid(units.capitalize(), ["logger", units], rows)
        return [*([broken] if faults else []), whole]

    @property
    def counts(self) -> dict[str, float]:
        """Requests of each logger, or rows in a log without requests."""
        return {i: in_units(n, self.rows_per_request) for i, n in self.rows.items()}

    def _repr_html_(self) -> str:
        advice = list(dict.fromkeys(fault.advice for fault in self.faults if fault.advice))
        sentences = advice if self.faults else ["No faults."]
        return as_html(self.grids(), listed_findings(self.findings), sentences)

    def __str__(self) -> str:
        if self.faults:
            return str(LogError(self.faults))
        counts = ", ".join(f"{i!r} {count_text(n)}" for i, n in self.counts.items())
        units = f"{unit_text(self.rows_per_request)}s"
        lines = [f"no faults in {count_text(sum(self.counts.values()))} {units} ({counts})"]
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
    # an estimate of the mixture has no faults; estimated propensities have, where none can be
    columns = log.mixture is not None or log.estimated
    extra = mixture_extra(log) if columns else NO_EXTRA
    with open_rows(Request(log, named, extra=extra), engine) as declared:
        rows = declared.complete()
        faults = rows.check()
        audit = () if faults else (*explain_unaudited(log), *audit_rows(rows, log))
        units = () if faults else unit_findings(rows, log)
        findings = (*log.notes, *copy_findings(rows, log), *audit, *units)
        size = None if log.requests is None else log.requests.rows
        return CheckReport(faults, rows.all_counts, findings, size)


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
    refuse_clicks(log, "score_log")
    scorer = as_engine(engine, log)
    refuse_output(file, PARQUET, list_files(log))
    with whole_file(file) as unfinished:
        roles, names = scorer.score(log, named, unfinished, _name_columns)
    return ScoredLog(
        _point_to_file(log, roles, names, file), _write_targets(named, roles, names)
    )


def _name_columns(roles: Roles) -> dict[str, str]:
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


def _point_to_file(log: Log, roles: Roles, names: Mapping[str, str], path: Path) -> Log:
    """The log in the file, with columns in place of scored policies."""
    columns = roles.table.propensities
    propensities = {
        label: policy
        if policy is None or label not in columns
        else _written(policy, columns[label], names)
        for label, policy in log.by_label.items()
    }
    own, given = roles.table.propensity, log.propensity
    scored = isinstance(own, exp.Column) and own.name in names
    if own is not None and given is not None and not scored:
        given = _written(given, own, names)
    return replace(
        log,
        source=path,
        logger=PART_LOGGER if isinstance(log.source, Mapping) else log.logger,
        propensity="propensity" if scored else given,
        propensities=log.propensities if log.estimated else propensities or None,
        reader_options={},
    )


def _write_targets(
    named: Mapping[str, PolicyLike], roles: Roles, names: Mapping[str, str]
) -> dict[str, PolicyLike]:
    columns = roles.table.targets
    return {name: _written(policy, columns[name], names) for name, policy in named.items()}


def _written(policy: PolicyLike, column: exp.Expr, names: Mapping[str, str]) -> PolicyLike:
    """The policy, or the name of the column in the file that holds its probabilities."""
    name = str(column.name)
    return names.get(name, name if listed(policy) else policy)
