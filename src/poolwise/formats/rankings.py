"""Rankings: a log with several positions per request becomes an ordinary log.

A policy that fills a list draws an item for each position, and every position may
earn a reward.  The value of a request is the sum over its positions, and each reward
is weighted by the probability of the part of the list that it depends on.  This module
computes these probabilities; the same estimators read its rows, with the request as
the cluster.

Li et al. (KDD 2018), independent; McInerney et al. (KDD 2020), cascade.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from poolwise.errors import EngineError, Fault, LogError, MissingColumnError, UsageError
from poolwise.log.log import Log, Source
from poolwise.rows.rules import RoleColumns, double

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb
    from sqlglot.expressions import Expr as Expression

Model = Literal["cascade", "independent", "whole"]


class RankingLog(NamedTuple):
    """A log of positions and its targets, as `evaluate`, `compare` and `plan` take them.

    Attributes:
        log: One row per request and position (per request, if the model is "whole").
        targets: The column of `log` that holds each target's probability.
    """

    log: Log
    targets: dict[str, str]


def ranking_log(  # noqa: PLR0913 - roles are keyword-only, most with a default
    source: Source,
    targets: Mapping[str, str] | str,
    *,
    request: str,
    position: str,
    reward: str,
    logger: str | None = None,
    propensity: str | None = None,
    propensities: Mapping[Any, str | None] | None = None,
    model: Model = "cascade",
    cluster: str | None = None,
    trained_on: Mapping[str, Sequence[str]] | None = None,
    log_probabilities: bool = False,
    reader_options: Mapping[str, object] | None = None,
) -> RankingLog:
    """Read a table with one row per request and position as a log of rankings.

    The value of a target is that of a request: the sum over its positions.  A mixture of
    loggers has products over positions, with shares of requests.  Each evaluation reads Parquet
    files and queries again (call this again when they have changed); others stay in memory.

    Args:
        source: Rows, as for `Log`; requests must be complete.
        targets: Probability of the logged item at its position under each new policy, by
            name: a column or a SQL expression. A single one gets the name "target".
        request: Column or SQL expression of the request; unique over all loggers.
        position: Position in the list: 1, 2, 3, ... or 0, 1, 2, ..., without a gap.
        reward: Reward of the position.
        logger: The policy that wrote the row, as for `Log`.
        propensity: Probability of the logged item at its position, under its own logger.
        propensities: The same under every logger, by label.
        model: Items that a reward may depend on: those up to its position ("cascade"), only
            the one at its position ("independent", which needs marginal probabilities), or
            the "whole" list. The other two models need probabilities given the items above.
        cluster: Column that groups dependent requests, such as a user; by default the request.
        trained_on: Policies that were trained on logs of others, as for `Log`.
        log_probabilities: All probabilities are natural logarithms.
        reader_options: Options for DuckDB's file reader.

    Raises:
        LogError: Rows break a rule, or requests are not complete.
    """
    named = _named(targets, model, [propensity, *(propensities or {}).values()])
    long = Log(
        source,
        reward=reward,
        logger=logger,
        propensity=propensity,
        propensities=propensities,
        trained_on=trained_on or {},
        log_probabilities=log_probabilities,
        reader_options=reader_options or {},
    )
    units = {"request": request, "position": position, "cluster": cluster or request}
    return _as_log(_positions(long, named, units, model), long, named, model, cluster)


def _named(
    given: Mapping[str, str] | str, model: str, propensities: Sequence[object]
) -> dict[str, str]:
    """Return targets by name; raise if an argument has a wrong type or value."""
    targets = dict(given) if isinstance(given, Mapping) else {"target": given}
    if model not in get_args(Model):
        models = ", ".join(map(repr, get_args(Model)))
        raise UsageError(f"model must be one of {models}, got {model!r}")
    if not targets:
        raise UsageError("targets must name at least one policy")
    values = [*targets.values(), *propensities]
    invalid = [value for value in values if not isinstance(value, str | None)]
    if invalid or None in targets.values():
        raise UsageError(
            "probabilities of rankings must be columns or SQL expressions, got "
            f"{type(invalid[0]).__name__ if invalid else None}: score policies in Python first"
        )
    return targets


def _positions(
    long: Log, targets: Mapping[str, str], units: Mapping[str, str], model: Model
) -> object:
    """Return the rows of a log of rankings: a query, or an Arrow table; reject bad requests."""
    from poolwise.engines.duckdb import DuckDB

    with DuckDB().open(long, targets) as rows:
        row = _row(rows.connection, rows.table, units)
        faults = [replace(fault, advice=ADVICE) for fault in rows.check()]
        shape, incomplete = _shape(rows.connection, row, units["request"])
        if faults or incomplete:
            raise LogError([*faults, *incomplete])
        text = _text(rows.connection, _query(row, shape, model))
        lasting = all(part.kind in {"parquet", "select"} for part in long.parts)
        return text if lasting else _run(rows.connection, text)


def _as_log(
    source: object, long: Log, targets: Mapping[str, str], model: Model, cluster: str | None
) -> RankingLog:
    """Return the log whose rows `_query` describes."""
    labels = list(long.by_label) if long.crossed else []
    log = Log(
        source,
        logger="logger",
        reward="reward",
        propensity=None if labels else "propensity",
        propensities={label: f"propensity_{k}" for k, label in enumerate(labels)} or None,
        # without clusters, a request of the model "whole" is one independent row
        cluster=None if model == "whole" and cluster is None else "cluster",
        trained_on=long.trained_on,
        log_probabilities=True,
    )
    return RankingLog(log, {str(name): f"target_{k}" for k, name in enumerate(targets)})


class _Row(NamedTuple):
    """DuckDB's SQL of the roles of a row, with probabilities as logarithms."""

    request: str
    position: str
    cluster: str
    logger: str
    reward: str
    logs: dict[str, str]


class _ListShape(NamedTuple):
    """First position of every list (0 or 1), and the shortest and longest list."""

    start: int
    shortest: int
    longest: int


def _row(
    connection: duckdb.DuckDBPyConnection, table: RoleColumns, units: Mapping[str, str]
) -> _Row:
    """Look up the names that are not roles of a `Log`; report all missing ones together."""
    from sqlglot import exp

    from poolwise.log.adapters import as_policy
    from poolwise.log.policy import expression_of

    columns = _run(connection, "DESCRIBE log")["column_name"].to_pylist()
    available = {name.lower() for name in columns}
    roles = {role: expression_of(as_policy(u, columns, role)) for role, u in units.items()}
    missing: dict[str, str] = {}
    for role, expression in roles.items():
        for column in expression.find_all(exp.Column) if expression else ():
            if column.name.lower() not in available:
                missing.setdefault(column.name, role)
    if missing:
        raise MissingColumnError(missing, columns)
    request, position, cluster = (_sql(expression) for expression in roles.values())
    logger = f"CAST({_sql(table.logger)} AS VARCHAR)"
    return _Row(request, position, cluster, logger, _sql(double(table.reward)), _logs(table))


def _sql(expression: Expression | None) -> str:
    return "NULL" if expression is None else expression.sql(dialect="duckdb")


def _logs(table: RoleColumns) -> dict[str, str]:
    """Return the logarithm of every probability of a row, by its name in the query."""
    propensities = {f"propensity_{k}": p for k, p in enumerate(table.propensities.values())}
    if not propensities and table.propensity is not None:
        propensities = {"propensity": table.propensity}
    probs = propensities | {f"target_{k}": t for k, t in enumerate(table.targets.values())}
    texts = {name: _sql(double(prob)) for name, prob in probs.items()}
    if table.log_probabilities:
        return texts
    # DuckDB rejects ln(0)
    log = "CASE WHEN {0} > 0e0 THEN ln({0}) ELSE CAST('-inf' AS DOUBLE) END"
    return {name: log.format(text) for name, text in texts.items()}


def _run(connection: duckdb.DuckDBPyConnection, text: str) -> Any:  # noqa: ANN401 - untyped
    """Run a query and return an Arrow table."""
    import duckdb

    from poolwise.rows.guard import first_line

    try:
        return connection.sql(text).to_arrow_table()
    except duckdb.Error as reason:
        raise EngineError("DuckDB", text, RuntimeError(first_line(reason))) from reason


# Each request counts once, for the first rule that it breaks.
SHAPE = """
WITH positions AS (
    SELECT
        CAST({request} AS VARCHAR) AS request, TRY_CAST({position} AS DOUBLE) AS slot,
        {logger} AS logger, CAST({cluster} AS VARCHAR) AS unit
    FROM log
), requests AS (
    SELECT
        request, count(*) AS size, count(DISTINCT slot) AS slots,
        min(slot) AS first_slot, max(slot) AS last_slot,
        count_if(coalesce(slot <> floor(slot) OR NOT isfinite(slot), true)) AS odd,
        min(logger) IS DISTINCT FROM max(logger) AS shared,
        min(unit) IS DISTINCT FROM max(unit) OR count(unit) NOT IN (0, count(*)) AS split
    FROM positions GROUP BY request
), started AS (
    SELECT *, CASE WHEN min(first_slot) OVER () = 0 THEN 0 ELSE 1 END AS start FROM requests
), judged AS (
    SELECT *, CASE
        WHEN request IS NULL THEN 0
        WHEN odd > 0 THEN 1
        WHEN shared THEN 2
        WHEN slots < size THEN 3
        WHEN first_slot <> start OR last_slot <> start + size - 1 THEN 4
        WHEN split THEN 5
    END AS rule FROM started
)
SELECT rule, count(*) AS requests, sum(size)::BIGINT AS in_rows, min(request) AS example,
    min(start) AS start, min(size) AS shortest, max(size) AS longest
FROM judged GROUP BY rule ORDER BY rule
"""
REQUEST_RULES = (
    "the request is null",
    "{requests} with a position that is null or not a whole number",
    "{requests} with rows of several loggers",
    "{requests} with a position more than once",
    "{requests} whose positions do not run from {start} without a gap",
    "{requests} with rows in several clusters",
)
ADVICE = (
    "Correct these rows at their source, or leave their whole requests out, with a SELECT as "
    "the source: a list without one of its positions is a different list."
)


def _shape(
    connection: duckdb.DuckDBPyConnection, row: _Row, request: str
) -> tuple[_ListShape, list[Fault]]:
    """Measure the lists, and count the requests that are not complete."""
    text = SHAPE.format_map(row._asdict())
    shape, faults = _ListShape(1, 1, 1), []
    for line in _run(connection, text).to_pylist():
        if line["rule"] is None:
            shape = _ListShape(line["start"], line["shortest"], line["longest"])
            continue
        count = f"{line['requests']:,} request{'' if line['requests'] == 1 else 's'}"
        rule = REQUEST_RULES[line["rule"]].format(requests=count, start=line["start"])
        example = {} if line["example"] is None else {request: line["example"]}
        faults.append(Fault(rule, "", line["in_rows"], example, ADVICE))
    return shape, faults


def _text(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """Return the query with the definition of the view `log`, so that it runs anywhere."""
    definition = "SELECT sql FROM duckdb_views() WHERE view_name = 'log'"
    view = str(_run(connection, definition)["sql"][0])
    body = view.partition(" AS ")[2].rstrip(";\n ")
    return f"WITH log AS (\n{body}\n)\nFROM (\n{query}\n)"


def _query(row: _Row, shape: _ListShape, model: Model) -> str:
    """Select rows with the probabilities of the items that their reward depends on.

    Rewards are multiplied by the length of a list, so that a mean over rows is the value of
    a request.
    """
    names = tuple(row.logs)
    if model == "whole":
        return _summed(_steps(row, shape.start, 1), names)
    query = _steps(row, shape.start, shape.longest)
    if model == "cascade":
        query = _chained(query, names)
    if shape.shortest < shape.longest:
        query = _padded(query, names, shape.longest, repeat=model == "cascade")
    return query


def _steps(row: _Row, start: int, scale: int) -> str:
    """Select logged positions, with roles under fixed names."""
    logs = "".join(f", {log} AS {name}" for name, log in row.logs.items())
    return f"""
SELECT {row.request} AS request, {row.logger} AS logger, {row.cluster} AS cluster,
    CAST(TRY_CAST({row.position} AS DOUBLE) AS BIGINT) - ({start - 1}) AS "position",
    {row.reward} * {scale}e0 AS reward{logs}
FROM log"""


def _chained(rows: str, names: Sequence[str]) -> str:
    """Sum logarithms from the top: the probability of the list down to each position."""
    above = 'PARTITION BY request ORDER BY "position" ROWS UNBOUNDED PRECEDING'
    sums = "".join(f", sum({n}) OVER ({above}) AS {n}" for n in names)
    return f'SELECT request, logger, cluster, "position", reward{sums} FROM ({rows})'


def _padded(rows: str, names: Sequence[str], longest: int, *, repeat: bool) -> str:
    """Extend all lists to the same length, with positions that earn nothing.

    Every policy plays the same item there with probability 1: a chain of probabilities does
    not change, and a single probability is 1.
    """
    first = "CASE WHEN below = 0 THEN {0} ELSE 0e0 END AS {0}"
    logs = "".join(f", {n if repeat else first.format(n)}" for n in names)
    return f"""
SELECT request, logger, cluster, "position" + below AS "position",
    {first.format("reward")}{logs}
FROM (
    SELECT *, unnest(range(
        CASE WHEN "position" = size THEN {longest + 1} - size ELSE 1 END
    )) AS below
    FROM (SELECT *, count(*) OVER (PARTITION BY request) AS size FROM ({rows}))
)"""


def _summed(rows: str, names: Sequence[str]) -> str:
    """Group rows by request: the whole list, and the sum of its rewards."""
    sums = ", ".join(f"sum({n}) AS {n}" for n in ("reward", *names))
    return f"""
SELECT request, any_value(logger) AS logger, any_value(cluster) AS cluster, {sums}
FROM ({rows}) GROUP BY request"""
