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
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from poolwise.engines import with_loggers
from poolwise.errors import EngineError, Fault, LogError, MissingColumnError, UsageError
from poolwise.formats.lists import ListShape, Model, Row, own_names, positions_query
from poolwise.log.log import PART_LOGGER, Log, Source
from poolwise.log.requests import Requests
from poolwise.rows.rules import RoleColumns, double

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb
    from sqlglot.expressions import Expr as Expression


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
    propensities: Mapping[Any, str | None] | str | None = None,
    model: Model = "cascade",
    cluster: str | None = None,
    trained_on: Mapping[str, Sequence[str]] | None = None,
    log_probabilities: bool = False,
    reader_options: Mapping[str, object] | None = None,
) -> RankingLog:
    """Read a table with one row per request and position as a log of rankings.

    The value of a target is the expected reward of a request, the sum over its positions.
    The mixture of the loggers consists of products over positions, in proportion to the
    loggers' requests. Each evaluation reads Parquet files and queries again (if they
    change, call `ranking_log` again); other sources stay in memory. The log keeps the other
    columns, for `by` of an evaluation.

    Args:
        source: Rows, as for `Log`; requests must be complete.
        targets: Probability of the logged item at its position under each new policy, by
            name: a column or a SQL expression. A single target gets the name "target".
        request: Column or SQL expression of the request; unique over all loggers.
        position: Position in the list: 1, 2, 3, ... or 0, 1, 2, ..., without a gap.
        reward: Reward of the position.
        logger: The policy that wrote the row, as for `Log`.
        propensity: Probability of the logged item at its position, under its own logger.
        propensities: The same under every logger, by label, or a pattern, as for `Log`.
        model: Items that a reward may depend on: the items up to its position ("cascade"),
            only the item at its position ("independent"), or the "whole" list.
            "independent" needs marginal probabilities, the other two models need
            probabilities given the items above.
        cluster: Column that groups dependent requests, such as a user; by default the request.
        trained_on: Policies that were trained on logs of others, as for `Log`.
        log_probabilities: All probabilities are natural logarithms.
        reader_options: Options for DuckDB's file reader.

    Raises:
        LogError: Rows break a rule, or requests are not complete.
    """
    by_label = propensities.values() if isinstance(propensities, Mapping) else ()
    named = _named(targets, model, [propensity, *by_label])
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
    long = with_loggers(long)
    return _as_log(*_positions(long, named, units, model), long, named, clustered=bool(cluster))


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
) -> tuple[object, dict[str, str], int]:
    """Return the rows of a log of rankings: a query, or an Arrow table; reject bad requests.

    Also return the name of each of its own columns, and the rows of a request.
    """
    from poolwise.engines.duckdb import DuckDB

    with DuckDB().open(long, targets) as rows:
        row = _row(rows.connection, rows.table, units)
        faults = [replace(fault, advice=ADVICE) for fault in rows.check()]
        shape, incomplete = _shape(rows.connection, row, units["request"])
        if faults or incomplete:
            raise LogError([*faults, *incomplete])
        names = own_names(row, {**units, "logger": long.logger})
        query = positions_query(row, shape, names, model)
        text = _text(rows.connection, query)
        lasting = all(part.kind in {"parquet", "select"} for part in long.parts)
        source = text if lasting else _run(rows.connection, text)
        return source, names, 1 if model == "whole" else shape.longest


def _as_log(
    source: object,
    names: Mapping[str, str],
    rows: int,
    long: Log,
    targets: Mapping[str, str],
    *,
    clustered: bool,
) -> RankingLog:
    """Return the log whose rows `_query` describes."""
    labels = list(long.by_label) if long.crossed else []
    log = Log(
        source,
        logger=names["logger"],
        reward=names["reward"],
        propensity=None if labels else names["propensity"],
        propensities={i: names[f"propensity_{k}"] for k, i in enumerate(labels)} or None,
        # without clusters, a request that is one row is independent of the others
        cluster=names["cluster"] if clustered or rows > 1 else None,
        trained_on=long.trained_on,
        log_probabilities=True,
        requests=Requests(names["request"], rows),
    )
    return RankingLog(log, {str(n): names[f"target_{k}"] for k, n in enumerate(targets)})


def _row(
    connection: duckdb.DuckDBPyConnection, table: RoleColumns, units: Mapping[str, str]
) -> Row:
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
    reward = _sql(double(table.reward))
    kept = _kept(columns, table)
    return Row(request, position, cluster, logger, reward, _logs(table), kept)


def _kept(columns: Sequence[str], table: RoleColumns) -> tuple[str, ...]:
    """Return the columns that are neither a probability nor read by the reward."""
    from sqlglot import exp

    probabilities = [table.propensity, *table.propensities.values(), *table.targets.values()]
    read = [node.name for node in table.reward.find_all(exp.Column)]
    read += [prob.name for prob in probabilities if isinstance(prob, exp.Column)]
    left_out = {name.lower() for name in (PART_LOGGER, *read)}
    return tuple(name for name in columns if name.lower() not in left_out)


def _sql(expression: Expression | None) -> str:
    return "NULL" if expression is None else expression.sql(dialect="duckdb")


def _logs(table: RoleColumns) -> dict[str, str]:
    """Return the logarithm of every probability of a row, by its name in the query."""
    propensities = {f"propensity_{k}": p for k, p in enumerate(table.propensities.values())}
    if not propensities and table.propensity is not None:
        propensities = {"propensity": table.propensity}
    probs = propensities | {f"target_{k}": t for k, t in enumerate(table.targets.values())}
    texts = {name: _sql(double(prob)) for name, prob in probs.items()}
    if table.scale.logs:
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
    connection: duckdb.DuckDBPyConnection, row: Row, request: str
) -> tuple[ListShape, list[Fault]]:
    """Measure the lists, and count the requests that are not complete."""
    text = SHAPE.format_map(row._asdict())
    shape, faults = ListShape(1, 1, 1), []
    for line in _run(connection, text).to_pylist():
        if line["rule"] is None:
            shape = ListShape(line["start"], line["shortest"], line["longest"])
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
