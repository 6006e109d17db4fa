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
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from poolwise.engines import with_loggers
from poolwise.errors import Fault, LogError, UsageError
from poolwise.formats.derived import is_lasting, query_text
from poolwise.formats.lists import ListShape, Model, Row, Words, own_names, positions_query
from poolwise.formats.prepare import PLACE, Asked, look_up, prepare
from poolwise.log.log import PART_LOGGER, Log, Source
from poolwise.log.plackett_luce import PlackettLuce
from poolwise.log.requests import Requests
from poolwise.rows.guard import read_table
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


ListPolicy: TypeAlias = "str | PlackettLuce"
REQUESTS = Words("request", "position", "list")
SESSIONS = Words("session", "step", "session")


def ranking_log(  # noqa: PLR0913 - roles are keyword-only, most with a default
    source: Source,
    targets: Mapping[str, ListPolicy] | ListPolicy,
    *,
    request: str,
    position: str | None = None,
    reward: str,
    logger: str | None = None,
    propensity: ListPolicy | None = None,
    propensities: Mapping[Any, ListPolicy | None] | str | None = None,
    model: Model = "cascade",
    action: str | None = None,
    eligible: str | None = None,
    cluster: str | None = None,
    trained_on: Mapping[str, Sequence[str]] | None = None,
    log_probabilities: bool = False,
    reader_options: Mapping[str, object] | None = None,
) -> RankingLog:
    """Read lists as a log of rankings: one row per request and position, or per request.

    The value of a target is the expected reward of a request, the sum over its positions.
    The mixture of the loggers consists of products over positions, in proportion to the
    loggers' requests. Each evaluation reads Parquet files and queries again (if they
    change, call `ranking_log` again); other sources stay in memory. The log keeps the other
    columns, for `by` of an evaluation.

    In a source with one row per request, the columns of rewards, items, positions and
    probabilities hold lists, with one entry for each position. A reward that is a number
    there counts at the last position.

    Args:
        source: Rows, as for `Log`; requests must be complete.
        targets: Probability of the logged item at its position under each new policy, by
            name: a column, a SQL expression, or a `PlackettLuce`. A single target gets the
            name "target".
        request: Column or SQL expression of the request; unique over all loggers.
        position: Position in the list: 1, 2, 3, ... or 0, 1, 2, ..., without a gap. If a row
            is a request, the default is the order of its lists.
        reward: Reward of the position.
        logger: The policy that wrote the row, as for `Log`.
        propensity: Probability of the logged item at its position, under its own logger.
        propensities: The same under every logger, by label, or a pattern, as for `Log`.
        model: Items that a reward may depend on: the items up to its position ("cascade"),
            only the item at its position ("independent"), or the "whole" list.
            "independent" needs marginal probabilities, the other two models need
            probabilities given the items above; `PlackettLuce` gives either.
        action: Column of the item; only `PlackettLuce` needs it.
        eligible: Column with the list of candidates, for `PlackettLuce`.
        cluster: Column that groups dependent requests, such as a user; by default the request.
        trained_on: Policies that were trained on logs of others, as for `Log`.
        log_probabilities: All probabilities are natural logarithms.
        reader_options: Options for DuckDB's file reader.

    Raises:
        LogError: Rows break a rule, or requests are not complete.
    """
    if model not in get_args(Model):
        models = ", ".join(map(repr, get_args(Model)))
        raise UsageError(f"model must be one of {models}, got {model!r}")
    columns = _Columns(targets, propensity, propensities, REQUESTS)
    long = columns.log(source, reward, logger, trained_on, log_probabilities, reader_options)
    asked = Asked(
        {"request": request, "position": position, "cluster": cluster},
        reward,
        action,
        eligible,
        columns.texts(long),
        columns.policies,
        at_end=False,
        model=model,
        logs=log_probabilities,
        words=REQUESTS,
    )
    return _read(long, columns.targets, asked)


def session_log(  # noqa: PLR0913 - as above
    source: Source,
    targets: Mapping[str, str] | str,
    *,
    session: str,
    step: str | None = None,
    reward: str,
    reward_at: Literal["step", "end"] = "step",
    logger: str | None = None,
    propensity: str | None = None,
    propensities: Mapping[Any, str | None] | str | None = None,
    cluster: str | None = None,
    trained_on: Mapping[str, Sequence[str]] | None = None,
    log_probabilities: bool = False,
    reader_options: Mapping[str, object] | None = None,
) -> RankingLog:
    """Read sessions, each with several decisions of one policy, as a log.

    The value of a target is the expected reward of a session, the sum over its steps. A
    decision may change what happens afterwards, so the reward of a step is weighted by the
    probabilities of all decisions up to it: a session is a list, and this is the model
    "cascade" of `ranking_log`, which reads the same sources.

    Args:
        source: Rows, as for `Log`, one for each session and step, or one for each session
            with lists; sessions must be complete.
        targets: Probability of the logged decision under each new policy, given what
            happened in the session before, by name: a column or a SQL expression. A single
            target gets the name "target".
        session: Column or SQL expression of the session; unique over all loggers.
        step: Step in the session: 1, 2, 3, ... or 0, 1, 2, ..., without a gap. If a row is a
            session, the default is the order of its lists.
        reward: Reward of the step, or of the session.
        reward_at: "step" if each step has a reward of its own; "end" if the last row of a
            session has the reward of the whole session. Earlier rows then have the same
            reward, 0 or NULL, and it counts once.
        logger: The policy that made the decision; the same for a whole session.
        propensity: Probability of the decision under its own logger.
        propensities: The same under every logger, by label, or a pattern, as for `Log`.
        cluster: Column that groups dependent sessions, such as a user; by default the session.
        trained_on: Policies that were trained on logs of others, as for `Log`.
        log_probabilities: All probabilities are natural logarithms.
        reader_options: Options for DuckDB's file reader.

    Raises:
        LogError: Rows break a rule, or sessions are not complete.
    """
    if reward_at not in {"step", "end"}:
        raise UsageError(f"reward_at must be 'step' or 'end', got {reward_at!r}")
    columns = _Columns(targets, propensity, propensities, SESSIONS)
    long = columns.log(source, reward, logger, trained_on, log_probabilities, reader_options)
    asked = Asked(
        {"request": session, "position": step, "cluster": cluster},
        reward,
        None,
        None,
        columns.texts(long),
        {},
        at_end=reward_at == "end",
        model="cascade",
        logs=log_probabilities,
        words=SESSIONS,
    )
    return _read(long, columns.targets, asked)


class _Columns:
    """Probabilities as columns and expressions; those of scores are columns that will exist.

    Attributes:
        targets: Column or expression of each target.
        own: The same of the logger of a row, if it is known.
        by_label: The same of every logger, or a pattern.
        policies: Policies that are given by scores, by the name of their column.
    """

    def __init__(
        self,
        targets: Mapping[str, ListPolicy] | ListPolicy,
        propensity: ListPolicy | None,
        propensities: Mapping[Any, ListPolicy | None] | str | None,
        words: Words,
    ) -> None:
        named = dict(targets) if isinstance(targets, Mapping) else {"target": targets}
        if not named:
            raise UsageError("targets must name at least one policy")
        by_label = dict(propensities) if isinstance(propensities, Mapping) else {}
        values: list[object] = [*named.values(), propensity, *by_label.values()]
        lists = words is REQUESTS
        kinds = (str, PlackettLuce) if lists else (str,)
        invalid = [v for v in values if not (v is None or isinstance(v, kinds))]
        if invalid or None in named.values():
            form = (
                "columns, SQL expressions or PlackettLuce"
                if lists
                else "columns or SQL expressions"
            )
            raise UsageError(
                f"probabilities of {words.whole}s must be {form}, got "
                f"{type(invalid[0]).__name__ if invalid else None}: score policies in Python "
                "first"
            )
        self.policies: dict[str, PlackettLuce] = {}
        self.targets = {str(k): str(self._named(v)) for k, v in named.items()}
        self.own = self._named(propensity)
        mapped = {k: self._named(v) for k, v in by_label.items()}
        self.by_label: Any = mapped if isinstance(propensities, Mapping) else propensities

    def _named(self, value: str | PlackettLuce | None) -> str | None:
        if not isinstance(value, PlackettLuce):
            return value
        name = f"poolwise_chance_{len(self.policies)}"
        self.policies[name] = value
        return name

    def log(
        self,
        source: Source,
        reward: str,
        logger: str | None,
        trained_on: Mapping[str, Sequence[str]] | None,
        log_probabilities: bool,  # noqa: FBT001
        reader_options: Mapping[str, object] | None,
    ) -> Log:
        """Return the log of positions, as it is declared."""
        log = Log(
            source,
            reward=reward,
            logger=logger,
            propensity=self.own,
            propensities=self.by_label,
            trained_on=trained_on or {},
            log_probabilities=log_probabilities,
            reader_options=reader_options or {},
        )
        return with_loggers(log)

    def texts(self, long: Log) -> dict[str, str]:
        """Return the probabilities that the source has, by role."""
        known: dict[str, object] = {f"target {k!r}": v for k, v in self.targets.items()}
        known |= {"propensity": long.propensity}
        known |= {f"propensities[{k!r}]": v for k, v in long.by_label.items()}
        return {
            role: text
            for role, text in known.items()
            if isinstance(text, str) and text not in self.policies
        }


def _read(long: Log, targets: Mapping[str, str], asked: Asked) -> RankingLog:
    """Return the log of lists that `long` declares, one row per position."""
    units = dict(asked.units)
    if any(part.kind != "csv" for part in long.parts) or asked.must_prepare:
        long, units["position"] = _prepared(long, asked)
    named = {role: unit for role, unit in units.items() if unit is not None}
    positions = {**named, "cluster": units["cluster"] or str(units["request"])}
    source, names, rows = _positions(long, targets, positions, asked)
    return _as_log(source, names, rows, long, targets, asked)


def _prepared(long: Log, asked: Asked) -> tuple[Log, str | None]:
    """Return the log with one row per position, and the position."""
    from poolwise.engines.duckdb import DuckDB

    bare = replace(long, reward="1", propensity="1", propensities=None, trained_on={})
    with DuckDB().open(replace(bare, log_probabilities=False), {}) as rows:
        lines = read_table(rows.connection, "DESCRIBE log").to_pylist()
        types = {line["column_name"]: line["column_type"] for line in lines}
        found = prepare(asked, types, lambda text: read_table(rows.connection, text))
        if found.query is None:
            return long, found.position
        text = query_text(rows.connection, found.query)
        lasting = is_lasting(long) and found.fill is None
        source = text if lasting else read_table(rows.connection, text)
        source = source if found.fill is None else found.fill(source)
    changed = replace(
        long,
        source=source,
        reward=found.reward,
        logger=PART_LOGGER if isinstance(long.source, Mapping) else long.logger,
        reader_options={},
    )
    return changed, found.position


def _positions(
    long: Log, targets: Mapping[str, str], units: Mapping[str, str], asked: Asked
) -> tuple[object, dict[str, str], int]:
    """Return the rows of a log of rankings: a query, or an Arrow table; reject bad requests.

    Also return the name of each of its own columns, and the rows of a request.
    """
    from poolwise.engines.duckdb import DuckDB

    with DuckDB().open(long, targets) as rows:
        row = _row(rows.connection, rows.table, units, asked.words)
        advice = RANKING_ADVICE.format_map(asked.words._asdict())
        faults = [replace(fault, advice=advice) for fault in rows.check()]
        shape, incomplete = _shape(rows.connection, row, units["request"], asked.words)
        if faults or incomplete:
            raise LogError([*faults, *incomplete])
        names = own_names(row, {**units, "logger": long.logger})
        query = positions_query(row, shape, names, asked.model)
        text = query_text(rows.connection, query)
        source = text if is_lasting(long) else read_table(rows.connection, text)
        return source, names, 1 if asked.model == "whole" else shape.longest


def _as_log(
    source: object,
    names: Mapping[str, str],
    rows: int,
    long: Log,
    targets: Mapping[str, str],
    asked: Asked,
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
        cluster=names["cluster"] if asked.units["cluster"] or rows > 1 else None,
        trained_on=long.trained_on,
        log_probabilities=True,
        requests=Requests(names["request"], rows),
    )
    return RankingLog(log, {str(n): names[f"target_{k}"] for k, n in enumerate(targets)})


def _row(
    connection: duckdb.DuckDBPyConnection,
    table: RoleColumns,
    units: Mapping[str, str],
    words: Words,
) -> Row:
    """Look up the names that are not roles of a `Log`; report all missing ones together."""
    columns = read_table(connection, "DESCRIBE log")["column_name"].to_pylist()
    roles = look_up(words.named(units), columns)
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
    left_out = {name.lower() for name in (PART_LOGGER, PLACE, *read)}
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
    "the {unit} is null",
    "{requests} with a {place} that is null or not a whole number",
    "{requests} with rows of several loggers",
    "{requests} with a {place} more than once",
    "{requests} whose {place}s do not run from {start} without a gap",
    "{requests} with rows in several clusters",
)
RANKING_ADVICE = (
    "Correct these rows at their source, or leave their whole {unit}s out, with a SELECT as "
    "the source: a {whole} without one of its {place}s is a different {whole}."
)


def _shape(
    connection: duckdb.DuckDBPyConnection, row: Row, request: str, words: Words
) -> tuple[ListShape, list[Fault]]:
    """Measure the lists, and count the requests that are not complete."""
    text = SHAPE.format_map(row._asdict())
    advice = RANKING_ADVICE.format_map(words._asdict())
    shape, faults = ListShape(1, 1, 1), []
    for line in read_table(connection, text).to_pylist():
        if line["rule"] is None:
            shape = ListShape(line["start"], line["shortest"], line["longest"])
            continue
        count = f"{line['requests']:,} {words.unit}{'' if line['requests'] == 1 else 's'}"
        rule = REQUEST_RULES[line["rule"]].format(
            requests=count, start=line["start"], **words._asdict()
        )
        example = {} if line["example"] is None else {request: line["example"]}
        faults.append(Fault(rule, "", line["in_rows"], example, advice))
    return shape, faults
