"""Lists: the query that turns the positions of lists into rows of an ordinary log.

Each row has the probability of the part of its list that its reward depends on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Text = TypeVar("Text", str, "str | None")
Model = Literal["cascade", "independent", "whole"]


class Words(NamedTuple):
    """Names that users of a log have for a request, a position and a whole list."""

    unit: str
    place: str
    whole: str

    def named(self, units: Mapping[str, Text]) -> dict[str, Text]:
        """Return request, position and cluster by the names of the user's arguments."""
        own = {"request": self.unit, "position": self.place}
        return {own.get(role, role): text for role, text in units.items()}


class Row(NamedTuple):
    """DuckDB's SQL of the roles of a row, with probabilities as logarithms; other columns."""

    request: str
    position: str
    cluster: str
    logger: str
    reward: str
    logs: dict[str, str]
    kept: tuple[str, ...]


class ListShape(NamedTuple):
    """First position of every list (0 or 1), and the shortest and longest list."""

    start: int
    shortest: int
    longest: int


def own_names(row: Row, units: Mapping[str, str | None]) -> dict[str, str]:
    """Return the name of each column of a role, which no other column has.

    A column that has the role in the source may have it, too.
    """
    names = {}
    for role in ("request", "logger", "cluster", "position", "reward", *row.logs):
        taken = {name.lower() for name in row.kept if units.get(role) != name}
        names[role] = role
        while names[role].lower() in taken:
            names[role] += "_"
    return names


def positions_query(row: Row, shape: ListShape, own: Mapping[str, str], model: Model) -> str:
    """Select rows with the probabilities of the items that their reward depends on.

    Rewards are multiplied by the length of a list, so that a mean over rows is the value of
    a request.
    """
    whole = model == "whole"
    names, kept = tuple(row.logs), tuple(f"kept_{k}" for k in range(len(row.kept)))
    query = _steps(row, shape.start, 1 if whole else shape.longest)
    if whole:
        query = _sum_rows(query, names, kept)
    if model == "cascade":
        query = _chain_rows(query, names, kept)
    if not whole and shape.shortest < shape.longest:
        query = _pad_rows(query, names, kept, shape.longest, repeat=model == "cascade")
    return _named_columns(query, row, shape, own, whole=whole)


def _steps(row: Row, start: int, scale: int) -> str:
    """Select logged positions, with roles and other columns under fixed names."""
    logs = "".join(f", {log} AS {name}" for name, log in row.logs.items())
    kept = "".join(f", {quoted(name)} AS kept_{k}" for k, name in enumerate(row.kept))
    return f"""
SELECT {row.request} AS request, {row.logger} AS logger, {row.cluster} AS cluster,
    CAST(TRY_CAST({row.position} AS DOUBLE) AS BIGINT) - ({start - 1}) AS "position",
    {row.reward} * {scale}e0 AS reward{logs}{kept}
FROM log"""


def _chain_rows(rows: str, names: Sequence[str], kept: Sequence[str]) -> str:
    """Sum logarithms from the top: the probability of the list down to each position."""
    above = 'PARTITION BY request ORDER BY "position" ROWS UNBOUNDED PRECEDING'
    sums = "".join(f", sum({n}) OVER ({above}) AS {n}" for n in names)
    others = "".join(f", {name}" for name in kept)
    return f'SELECT request, logger, cluster, "position", reward{sums}{others} FROM ({rows})'


def _pad_rows(
    rows: str, names: Sequence[str], kept: Sequence[str], longest: int, *, repeat: bool
) -> str:
    """Extend all lists to the same length, with positions that earn nothing.

    Every policy plays the same item there with probability 1: a chain of probabilities does
    not change, and a single probability is 1.  Other columns repeat the last position.
    """
    first = "CASE WHEN below = 0 THEN {0} ELSE 0e0 END AS {0}"
    logs = "".join(f", {n if repeat else first.format(n)}" for n in names)
    others = "".join(f", {name}" for name in kept)
    return f"""
SELECT request, logger, cluster, "position" + below AS "position",
    {first.format("reward")}{logs}{others}
FROM (
    SELECT *, unnest(range(
        CASE WHEN "position" = size THEN {longest + 1} - size ELSE 1 END
    )) AS below
    FROM (SELECT *, count(*) OVER (PARTITION BY request) AS size FROM ({rows}))
)"""


def _sum_rows(rows: str, names: Sequence[str], kept: Sequence[str]) -> str:
    """Group rows by request: the whole list, and the sum of its rewards.

    Other columns that vary within a request are NULL there.
    """
    sums = ", ".join(f"sum({n}) AS {n}" for n in ("reward", *names))
    constant = "min({0}) = max({0}) AND count({0}) = count(*)"
    same = f"CASE WHEN {constant} THEN any_value({{0}}) END AS {{0}}"
    others = "".join(f", {same.format(name)}" for name in kept)
    return f"""
SELECT request, any_value(logger) AS logger, any_value(cluster) AS cluster, {sums}{others}
FROM ({rows}) GROUP BY request"""


def _named_columns(
    query: str, row: Row, shape: ListShape, own: Mapping[str, str], *, whole: bool
) -> str:
    """Select the columns of roles under their own names, and other columns under theirs.

    Positions count from 0 or 1 as those of the source do, also under the name that they have
    there.
    """
    place = f'"position" + ({shape.start - 1})'
    roles = {role: place if role == "position" else role for role in own}
    if whole:
        del roles["position"]
    selected = {own[role]: text for role, text in roles.items()}
    taken = {name.lower() for name in selected}
    for k, name in enumerate(row.kept):
        if name.lower() not in taken:
            at_position = row.position.lower() == quoted(name).lower() and not whole
            selected[name] = place if at_position else f"kept_{k}"
    columns = ", ".join(f"{text} AS {quoted(name)}" for name, text in selected.items())
    return f"SELECT {columns} FROM ({query})"


def quoted(name: str) -> str:
    """Return the name of a column as DuckDB's SQL."""
    from sqlglot import exp

    return exp.column(name, quoted=True).sql(dialect="duckdb")
