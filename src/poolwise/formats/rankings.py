"""Rankings: a log with several positions per request becomes an ordinary log.

A policy that fills a list draws an item for each position, and every position may
earn a reward.  The value of a request is the sum over its positions, and each reward
is weighted by the probability of the part of the list that it depends on.  This module
computes these probabilities; the same estimators read its rows, with the request as
the cluster.

Li et al. (KDD 2018), independent; McInerney et al. (KDD 2020), cascade; METHODS E5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from poolwise.errors import EngineError, Fault, LogError, MissingColumnError, UsageError
from poolwise.log.log import Log, Source
from poolwise.rows.rules import RoleColumns, case, number, string

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb
    from sqlglot import exp
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
    r"""Read a table with one row per request and position as a log of rankings.

    The value of a target is then that of a *request*, $E \sum_k \delta_k$, and every estimator
    weights the reward of position $k$ by

    $$w_k = \frac{\bar\pi(y_{1:k}|x)}{\sum_i \frac{n_i}{n} \pi_i(y_{1:k}|x)},
      \qquad \pi_i(y_{1:k}|x) = \prod_{l \le k} \pi_i(y_l|x, y_{<l})$$

    in the cascade model: the mixture of products, with $n_i$ *requests* of logger $i$. A
    product of mixtures would describe a logger that is drawn at each position, which is a
    different policy. Requests must be complete. Parquet files and queries are read again by
    each evaluation: call this function again when they have changed. Other sources are read
    into memory.

    Args:
        source: Rows, as for `Log`.
        targets: Probability of the logged item at its position under each new policy, by
            name: a column or a SQL expression. A single one gets the name "target".
        request: Column or SQL expression of the request; unique over all loggers.
        position: Position in the list: 1, 2, 3, ... or 0, 1, 2, ..., without a gap.
        reward: Reward of the position.
        logger: The policy that wrote the row, as for `Log`.
        propensity: Probability of the logged item at its position, under its own logger.
        propensities: The same under every logger, by label.
        model: Items that a reward may depend on: "cascade", the items up to its position;
            "independent", only the item at its position; "whole", the whole list.
            Probabilities are conditional on the items above in the first and the last
            model, and marginal in the independent model.
        cluster: Column that groups dependent requests, such as a user; by default the request.
        trained_on: Policies that were trained on logs of others, as for `Log`.
        log_probabilities: All probabilities are natural logarithms.
        reader_options: Options for DuckDB's file reader.

    Raises:
        LogError: Rows break a rule, or requests are not complete: a position twice or
            missing, two loggers in one request, no request at all.

    Examples:
        >>> import pyarrow as pa
        >>> import poolwise as pw
        >>> table = pa.table(
        ...     {
        ...         "request": [1, 1, 2, 2],
        ...         "position": [1, 2, 1, 2],
        ...         "click": [1, 0, 0, 1],
        ...         "p": [0.5, 0.5, 0.5, 1.0],  # of the item, given the one above
        ...         "p_new": [0.25, 0.5, 0.75, 1.0],
        ...     }
        ... )
        >>> log, new = ranking_log(
        ...     table, "p_new", request="request", position="position", reward="click",
        ...     propensity="p",
        ... )
        >>> pw.evaluate(log, new, "naive")["target"].estimates["naive"].value  # (1/2 + 3/2) / 2
        1.0
    """
    from poolwise.engines.duckdb import DuckDB

    named = dict(targets) if isinstance(targets, Mapping) else {"target": targets}
    _refuse_misuse(model, named, propensity, propensities)
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
    with DuckDB().open(long, named) as rows:
        units = _units(rows.connection, request, position, cluster or request)
        faults = [replace(fault, advice=ADVICE) for fault in rows.check()]
        shape, torn = _shape(rows.connection, rows.table, units, request)
        if faults or torn:
            raise LogError([*faults, *torn])
        text = _text(rows.connection, _query(rows.table, units, shape, model))
        lasting = all(part.kind in {"parquet", "select"} for part in long.parts)
        positions = text if lasting else _run(rows.connection, text)
    single = model == "whole" and cluster is None  # each request is one row
    return _as_log(positions, long, named, None if single else "cluster")


def _refuse_misuse(
    model: str,
    targets: Mapping[str, object],
    propensity: object,
    propensities: Mapping[Any, object] | None,
) -> None:
    if model not in get_args(Model):
        models = ", ".join(map(repr, get_args(Model)))
        raise UsageError(f"model must be one of {models}, got {model!r}")
    if not targets:
        raise UsageError("targets must name at least one policy")
    values = [*targets.values(), propensity, *(propensities or {}).values()]
    invalid = [value for value in values if not isinstance(value, str | None)]
    if invalid or None in targets.values():
        raise UsageError(
            "probabilities of rankings must be columns or SQL expressions, got "
            f"{type(invalid[0]).__name__ if invalid else None}: score policies in Python first"
        )


def _as_log(
    source: object, long: Log, targets: Mapping[str, str], cluster: str | None
) -> RankingLog:
    """Return the log whose rows `_query` describes."""
    labels = [str(label) for label in long.propensities or ()] if long.crossed else []
    log = Log(
        source,
        logger="logger",
        reward="reward",
        propensity=None if labels else "propensity",
        propensities={label: f"propensity_{k}" for k, label in enumerate(labels)} or None,
        cluster=cluster,
        trained_on=long.trained_on,
        log_probabilities=True,
    )
    return RankingLog(log, {str(name): f"target_{k}" for k, name in enumerate(targets)})


class _Units(NamedTuple):
    """SQL of the request, the position and the cluster of a row."""

    request: Expression
    position: Expression
    cluster: Expression


class _Shape(NamedTuple):
    """First position of every list (0 or 1), and the shortest and longest list."""

    start: int
    shortest: int
    longest: int


def _units(
    connection: duckdb.DuckDBPyConnection, request: str, position: str, cluster: str
) -> _Units:
    """Look up the names that are not roles of a `Log`; report all missing ones together."""
    from sqlglot import exp

    from poolwise.log.policies import as_policy
    from poolwise.log.policy import expression_of

    columns = _run(connection, "DESCRIBE log")["column_name"].to_pylist()
    available = {name.lower() for name in columns}
    roles = {"request": request, "position": position, "cluster": cluster}
    expressions: dict[str, Expression] = {}
    missing: dict[str, str] = {}
    for role, text in roles.items():
        expression = expression_of(as_policy(text, columns)) or exp.null()
        names = [c.name for c in expression.find_all(exp.Column)]
        missing.update(
            (n, role) for n in names if n.lower() not in available and n not in missing
        )
        expressions[role] = expression
    if missing:
        raise MissingColumnError(missing, columns)
    return _Units(**expressions)


def _run(connection: duckdb.DuckDBPyConnection, text: str) -> Any:  # noqa: ANN401 - untyped
    """Run a query and return an Arrow table."""
    import duckdb

    from poolwise.rows.sources import first_line

    try:
        return connection.sql(text).to_arrow_table()
    except duckdb.Error as reason:
        raise EngineError("DuckDB", text, RuntimeError(first_line(reason))) from reason


# Each request counts once, for the first rule that it breaks.
SHAPE = """
WITH places AS (
    PLACES
), requests AS (
    SELECT
        request, count(*) AS size, count(DISTINCT place) AS places,
        min(place) AS first_place, max(place) AS last_place,
        count_if(coalesce(place <> floor(place) OR NOT isfinite(place), true)) AS odd,
        min(logger) IS DISTINCT FROM max(logger) AS shared,
        min(unit) IS DISTINCT FROM max(unit) OR count(unit) NOT IN (0, count(*)) AS torn
    FROM places GROUP BY request
), started AS (
    SELECT *, CASE WHEN min(first_place) OVER () = 0 THEN 0 ELSE 1 END AS start FROM requests
), judged AS (
    SELECT *, CASE
        WHEN request IS NULL THEN 0
        WHEN odd > 0 THEN 1
        WHEN shared THEN 2
        WHEN places < size THEN 3
        WHEN first_place <> start OR last_place <> start + size - 1 THEN 4
        WHEN torn THEN 5
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
    connection: duckdb.DuckDBPyConnection, table: RoleColumns, units: _Units, request: str
) -> tuple[_Shape, list[Fault]]:
    """Measure the lists, and count the requests that are not complete."""
    from sqlglot import exp

    places = exp.select(
        exp.cast(units.request.copy(), "varchar").as_("request", quoted=True),
        _double(units.position).as_("place", quoted=True),
        exp.cast(table.logger.copy(), "varchar").as_("logger", quoted=True),
        exp.cast(units.cluster.copy(), "varchar").as_("unit", quoted=True),
    ).from_(table.relation.copy())
    text = SHAPE.replace("PLACES", places.sql(dialect="duckdb"), 1)
    shape, faults = _Shape(1, 1, 1), []
    for line in _run(connection, text).to_pylist():
        if line["rule"] is None:
            shape = _Shape(line["start"], line["shortest"], line["longest"])
            continue
        count = f"{line['requests']:,} request{'' if line['requests'] == 1 else 's'}"
        rule = REQUEST_RULES[line["rule"]].format(requests=count, start=line["start"])
        example = {} if line["example"] is None else {request: line["example"]}
        faults.append(Fault(rule, "", line["in_rows"], example, ADVICE))
    return shape, faults


def _text(connection: duckdb.DuckDBPyConnection, query: exp.Select) -> str:
    """Return the query with the definition of the view `log`, so that it runs anywhere."""
    definition = "SELECT sql FROM duckdb_views() WHERE view_name = 'log'"
    view = str(_run(connection, definition)["sql"][0])
    body = view.partition(" AS ")[2].rstrip(";\n ")
    return f"WITH log AS (\n{body}\n)\nFROM (\n{query.sql(dialect='duckdb', pretty=True)}\n)"


def _query(table: RoleColumns, units: _Units, shape: _Shape, model: Model) -> exp.Select:
    """Return rows with the probabilities of the items that their reward depends on.

    Rewards are multiplied by the length of a list, so that a mean over rows is the value of
    a request.
    """
    names = tuple(_probabilities(table))
    if model == "whole":
        return _summed(_steps(table, units, shape, 1), names)
    query = _steps(table, units, shape, shape.longest)
    if model == "cascade":
        query = _chained(query, names)
    if shape.shortest < shape.longest:
        query = _padded(query, names, shape.longest, repeat=model == "cascade")
    return query


KEYS = ('"request"', '"position"', '"logger"', '"cluster"', '"reward"')


def _probabilities(table: RoleColumns) -> dict[str, Expression]:
    """Return every probability of a row, by its name in the query."""
    propensities = {f"propensity_{k}": p for k, p in enumerate(table.propensities.values())}
    if not propensities and table.propensity is not None:
        propensities = {"propensity": table.propensity}
    return {**propensities, **{f"target_{k}": t for k, t in enumerate(table.targets.values())}}


def _double(expression: Expression) -> Expression:
    from sqlglot import exp

    return exp.TryCast(this=expression.copy(), to=exp.DataType.build("double"))


def _steps(table: RoleColumns, units: _Units, shape: _Shape, scale: int) -> exp.Select:
    """Select logged positions: roles under fixed names, probabilities as logarithms."""
    from sqlglot import exp

    position = exp.cast(_double(units.position), "bigint") - exp.convert(shape.start - 1)
    select = exp.select(
        units.request.copy().as_("request", quoted=True),
        position.as_("position", quoted=True),
        exp.cast(table.logger.copy(), "varchar").as_("logger", quoted=True),
        units.cluster.copy().as_("cluster", quoted=True),
        (_double(table.reward) * number(scale)).as_("reward", quoted=True),
    )
    impossible = exp.cast(string("-inf"), "double")  # DuckDB rejects ln(0)
    for name, prob in _probabilities(table).items():
        value = _double(prob)
        if not table.log_probabilities:
            logarithm = exp.func("ln", value.copy())
            value = case(value > number(0.0), logarithm, impossible.copy())
        select = select.select(value.as_(name, quoted=True))
    return select.from_(table.relation.copy())


def _select(rows: exp.Select, *columns: str) -> exp.Select:
    """Select columns, written in DuckDB's SQL, from rows with fixed names."""
    from sqlglot import exp

    return exp.select(*columns, dialect="duckdb").from_(rows.subquery("rows"))


def _chained(steps: exp.Select, names: Sequence[str]) -> exp.Select:
    """Sum logarithms from the top: the probability of the list down to each position."""
    above = 'PARTITION BY "request" ORDER BY "position" ROWS UNBOUNDED PRECEDING'
    return _select(steps, *KEYS, *(f"sum({n}) OVER ({above}) AS {n}" for n in names))


def _padded(
    rows: exp.Select, names: Sequence[str], longest: int, *, repeat: bool
) -> exp.Select:
    """Extend all lists to the same length, with positions that earn nothing.

    Every policy plays the same item there with probability 1: a chain of probabilities does
    not change, and a single probability is 1.
    """
    sized = _select(rows, "*", 'count(*) OVER (PARTITION BY "request") AS size')
    times = f'CASE WHEN "position" = size THEN {longest + 1} - size ELSE 1 END'
    spread = _select(sized, "*", f"unnest(range({times})) AS below")
    columns = [*KEYS[2:4], '"position" + below AS "position"']
    columns.append('CASE WHEN below = 0 THEN "reward" ELSE 0e0 END AS "reward"')
    single = [f"CASE WHEN below = 0 THEN {n} ELSE 0e0 END AS {n}" for n in names]
    return _select(spread, KEYS[0], *columns, *(names if repeat else single))


def _summed(steps: exp.Select, names: Sequence[str]) -> exp.Select:
    """Group rows by request: the whole list, and the sum of its rewards."""
    constant = [f"any_value({n}) AS {n}" for n in KEYS[2:4]]
    sums = [f"sum({n}) AS {n}" for n in (KEYS[4], *names)]
    return _select(steps, KEYS[0], *constant, *sums).group_by(KEYS[0])
