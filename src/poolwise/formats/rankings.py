"""Rankings: a log with several positions per request becomes an ordinary log.

A policy that fills a list draws an item for each position, and every position may
earn a reward.  What a request is worth is the sum over its positions, and each
reward is weighted by the part of the list that it depends on.  That part, position
by position, is all that this module computes: the rows it returns go through the
same estimators as any others, with the rows of a request kept together.

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
    """What `evaluate`, `compare` and `plan` take: a log of positions, and its targets.

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
    product of mixtures would describe a logger that is drawn anew at each position; nobody
    logged that. Requests are checked here to be whole. Files and queries are read again by
    each evaluation: call this again when they have changed.

    Args:
        source: Rows, as for `Log`.
        targets: Probability of the logged item at its position under each new policy, by
            name: a column or a SQL expression. One alone is called "target".
        request: Column or SQL expression of the request; unique over all loggers.
        position: Position in the list: 1, 2, 3, ... or 0, 1, 2, ..., without a gap.
        reward: Reward of the position.
        logger: The policy that wrote the row, as for `Log`.
        propensity: Probability of the logged item at its position, under its own logger.
        propensities: The same under every logger, by label.
        model: What a reward may depend on: "cascade", the items up to its position;
            "independent", the item at its position alone; "whole", the whole list. All
            probabilities are given the items above in the first and the last model, and
            marginal ones of the position in the independent model.
        cluster: Unit whose requests belong together, such as a user; by default the request.
        trained_on: Policies that were trained on logs of others, as for `Log`.
        log_probabilities: All probabilities are given as natural logarithms.
        reader_options: Options for DuckDB's file reader.

    Raises:
        LogError: Rows break a rule, or requests are not whole: a position twice or missing,
            two loggers in one request, no request at all.

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
        frames = any(part.kind == "frame" for part in long.parts)
        found = _run(rows.connection, text) if frames else text
    alone = model == "whole" and cluster is None  # each request is one row
    return _as_log(found, long, named, None if alone else "cluster")


def _refuse_misuse(
    model: str,
    targets: Mapping[str, object],
    propensity: object,
    propensities: Mapping[Any, object] | None,
) -> None:
    if model not in get_args(Model):
        known = ", ".join(map(repr, get_args(Model)))
        raise UsageError(f"`model` is one of {known}, not {model!r}")
    if not targets:
        raise UsageError("there is no target: name one policy at least")
    given = [*targets.values(), propensity, *(propensities or {}).values()]
    strange = [value for value in given if not isinstance(value, str | None)]
    if strange or None in targets.values():
        raise UsageError(
            "probabilities of rankings are columns or SQL expressions, not "
            f"{type(strange[0]).__name__ if strange else None}: score policies in Python first"
        )


def _as_log(
    source: object, long: Log, targets: Mapping[str, str], cluster: str | None
) -> RankingLog:
    """The log whose rows `_query` describes."""
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
    """Which position of which request a row is."""

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
    """Look up the names that a `Log` has no role for; all that are missing at once."""
    from sqlglot import exp

    from poolwise.log.policies import as_policy
    from poolwise.log.policy import expression_of

    columns = _run(connection, "DESCRIBE log")["column_name"].to_pylist()
    known = {name.lower() for name in columns}
    roles = {"request": request, "position": position, "cluster": cluster}
    found: dict[str, Expression] = {}
    missing: dict[str, str] = {}
    for role, text in roles.items():
        expression = expression_of(as_policy(text, columns)) or exp.null()
        names = [c.name for c in expression.find_all(exp.Column)]
        missing.update((n, role) for n in names if n.lower() not in known and n not in missing)
        found[role] = expression
    if missing:
        raise MissingColumnError(missing, columns)
    return _Units(**found)


def _run(connection: duckdb.DuckDBPyConnection, text: str) -> Any:  # noqa: ANN401 - untyped
    """The answer to a query as an Arrow table."""
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
RULES = (
    "the request is null",
    "{requests} with a position that is null or not a whole number",
    "{requests} with rows of several loggers",
    "{requests} with a position more than once",
    "{requests} whose positions do not run from {start} without a gap",
    "{requests} with rows in several clusters",
)
ADVICE = (
    "Correct these rows where they are written, or leave their whole requests out, with a "
    "SELECT as the source: a list without one of its positions is another list."
)


def _shape(
    connection: duckdb.DuckDBPyConnection, table: RoleColumns, units: _Units, request: str
) -> tuple[_Shape, list[Fault]]:
    """Measure the lists, and count the requests that are not whole."""
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
        rule = RULES[line["rule"]].format(requests=count, start=line["start"])
        example = {} if line["example"] is None else {request: line["example"]}
        faults.append(Fault(rule, "", line["in_rows"], example, ADVICE))
    return shape, faults


def _text(connection: duckdb.DuckDBPyConnection, query: exp.Select) -> str:
    """The query as one that stands alone: DuckDB says what the view `log` reads."""
    asked = "SELECT sql FROM duckdb_views() WHERE view_name = 'log'"
    view = str(_run(connection, asked)["sql"][0])
    body = view.partition(" AS ")[2].rstrip(";\n ")
    return f"WITH log AS (\n{body}\n)\nFROM (\n{query.sql(dialect='duckdb', pretty=True)}\n)"


def _query(table: RoleColumns, units: _Units, shape: _Shape, model: Model) -> exp.Select:
    """Rows whose probabilities are those of what their reward depends on.

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
    """Every probability of a row, by the name it gets."""
    propensities = {f"propensity_{k}": p for k, p in enumerate(table.propensities.values())}
    if not propensities and table.propensity is not None:
        propensities = {"propensity": table.propensity}
    return {**propensities, **{f"target_{k}": t for k, t in enumerate(table.targets.values())}}


def _double(expression: Expression) -> Expression:
    from sqlglot import exp

    return exp.TryCast(this=expression.copy(), to=exp.DataType.build("double"))


def _steps(table: RoleColumns, units: _Units, shape: _Shape, scale: int) -> exp.Select:
    """Each position as it was logged: roles under fixed names, probabilities as logarithms."""
    from sqlglot import exp

    place = exp.cast(_double(units.position), "bigint") - exp.convert(shape.start - 1)
    select = exp.select(
        units.request.copy().as_("request", quoted=True),
        place.as_("position", quoted=True),
        exp.cast(table.logger.copy(), "varchar").as_("logger", quoted=True),
        units.cluster.copy().as_("cluster", quoted=True),
        (_double(table.reward) * number(scale)).as_("reward", quoted=True),
    )
    impossible = exp.cast(string("-inf"), "double")  # DuckDB refuses ln(0)
    for name, prob in _probabilities(table).items():
        value = _double(prob)
        if not table.log_probabilities:
            logarithm = exp.func("ln", value.copy())
            value = case(value > number(0.0), logarithm, impossible.copy())
        select = select.select(value.as_(name, quoted=True))
    return select.from_(table.relation.copy())


def _select(rows: exp.Select, *columns: str) -> exp.Select:
    """Columns in DuckDB's SQL, of names that are ours."""
    from sqlglot import exp

    return exp.select(*columns, dialect="duckdb").from_(rows.subquery("rows"))


def _chained(steps: exp.Select, names: Sequence[str]) -> exp.Select:
    """Probability of the list down to each position: logarithms summed from the top."""
    above = 'PARTITION BY "request" ORDER BY "position" ROWS UNBOUNDED PRECEDING'
    return _select(steps, *KEYS, *(f"sum({n}) OVER ({above}) AS {n}" for n in names))


def _padded(
    rows: exp.Select, names: Sequence[str], longest: int, *, repeat: bool
) -> exp.Select:
    """Lists of equal length: below its end a list earns nothing, whoever wrote it.

    As if there every policy played the same thing for sure: a chain of probabilities then
    stays as it is, and a probability by itself is 1.
    """
    sized = _select(rows, "*", 'count(*) OVER (PARTITION BY "request") AS size')
    times = f'CASE WHEN "position" = size THEN {longest + 1} - size ELSE 1 END'
    spread = _select(sized, "*", f"unnest(range({times})) AS below")
    kept = [*KEYS[2:4], '"position" + below AS "position"']
    kept.append('CASE WHEN below = 0 THEN "reward" ELSE 0e0 END AS "reward"')
    alone = [f"CASE WHEN below = 0 THEN {n} ELSE 0e0 END AS {n}" for n in names]
    return _select(spread, KEYS[0], *kept, *(names if repeat else alone))


def _summed(steps: exp.Select, names: Sequence[str]) -> exp.Select:
    """One row per request: the whole list, and all that it earned."""
    alike = [f"any_value({n}) AS {n}" for n in KEYS[2:4]]
    sums = [f"sum({n}) AS {n}" for n in (KEYS[4], *names)]
    return _select(steps, KEYS[0], *alike, *sums).group_by(KEYS[0])
