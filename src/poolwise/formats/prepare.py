"""Prepare: lists in one row become one row per position, and scores become probabilities.

`ranking_log` and `session_log` read one row per position, with probabilities.  A query rewrites
a source with one row per request, and turns scores into probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolwise.errors import Fault, LogError, MissingColumnError, UsageError
from poolwise.formats.lists import quoted
from poolwise.log.log import PART_LOGGER
from poolwise.log.plackett_luce import marginals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlglot.expressions import Expr as Expression

    from poolwise.formats.lists import Model, Words
    from poolwise.log.plackett_luce import PlackettLuce

    Run = Callable[[str], Any]  # runs a query and returns an Arrow table

PLACE, REWARD = "poolwise_place", "poolwise_reward"  # columns of a prepared source
LAST = "poolwise_last"  # column of a query: whether a row is the last one of its request
ROW_NUMBER = (
    "row_number() OVER (PARTITION BY {request} ORDER BY {position}{order}) AS poolwise_number"
)
LISTS = {  # rules of a row with lists, and when it breaks one
    "a list that is null or empty": "{lists_are_missing}",
    "lists of different lengths": "{lengths_differ}",
}
SCORES = {  # rules of scores, and when a row breaks one
    "the item is null": "poolwise_item IS NULL",
    "an item twice in a list": "list_contains(poolwise_above, poolwise_item)",
    "scores that are missing or do not belong to items": "{any_missing}",
    "a score that is not a finite number": "{any_infinite}",
    "a candidate twice": "{any_twice}",
}
ADVICE = "Correct these rows at their source, or leave them out, with a SELECT as the source."
TOLD = 1e-9  # difference of rewards that are the same
PLACES = 65_536  # rows whose probabilities are computed at once


@dataclass(frozen=True)
class Asked:
    """Arguments of a log of lists, as its user wrote them.

    Attributes:
        units: Request, position and cluster.
        reward: Reward of a position, or of a request.
        action: Item; None if no policy is given by its scores.
        eligible: Column with the list of candidates.
        probabilities: Columns or expressions of probabilities, by role.
        policies: Policies that are given by their scores, by the column of their probabilities.
        at_end: Whether the reward of a request is in its last row, perhaps also in others.
        model: Items that a reward may depend on.
        logs: Whether probabilities are logarithms.
        words: What requests and positions are called.
    """

    units: Mapping[str, str | None]
    reward: str
    action: str | None
    eligible: str | None
    probabilities: Mapping[str, str]
    policies: Mapping[str, PlackettLuce]
    at_end: bool
    model: Model
    logs: bool
    words: Words

    @property
    def must_prepare(self) -> bool:
        """True if rows of the source lack probabilities, positions or the reward of a step."""
        return self.at_end or bool(self.policies) or self.units["position"] is None


class Prepared(NamedTuple):
    """A query with one row per position and probabilities, and what changed.

    Attributes:
        query: Selects from the view ``log``; None if the source is fine as it is.
        reward: The reward of a row.
        position: The position of a row.
        fill: Computes the columns that a query cannot compute; None if there are none.
    """

    query: str | None
    reward: str
    position: str
    fill: Callable[[pa.Table], pa.Table] | None = None


def look_up(units: Mapping[str, str | None], columns: Sequence[str]) -> dict[str, Expression]:
    """Return the expression of each role; report all missing names together."""
    from sqlglot import exp

    from poolwise.log.adapters import as_policy
    from poolwise.log.policy import find_expression

    available = {name.lower() for name in columns}
    missing: dict[str, str] = {}
    found = {}
    for role, unit in units.items():
        expression = None if unit is None else find_expression(as_policy(unit, columns, role))
        for column in expression.find_all(exp.Column) if expression else ():
            if column.parts[0].name.lower() not in available:
                missing.setdefault(column.name, role)
        if expression is not None:
            found[role] = expression
    if missing:
        raise MissingColumnError(missing, [c for c in columns if c != PART_LOGGER])
    return found


def prepare(asked: Asked, types: Mapping[str, str], run: Run) -> Prepared:
    """Return the query that turns a source into positions with probabilities.

    Args:
        asked: Arguments of the log.
        types: Type of each column of the source.
        run: Runs a query on the source.
    """
    named = {**asked.words.named(asked.units), "reward": asked.reward, "action": asked.action}
    named |= {"eligible": asked.eligible}
    sql = {role: v.sql(dialect="duckdb") for role, v in look_up(named, [*types]).items()}
    lists, request = _lists(asked, types), sql[asked.words.unit]
    if asked.units["position"] is None and not lists:
        raise UsageError(
            f"`{asked.words.place}` is required if each row is one {asked.words.place}; it may "
            f"be left out if each row is a {asked.words.unit}, with a list of rewards"
        )
    position, place = asked.units["position"] or PLACE, sql.get(asked.words.place, PLACE)
    query, reward, one = None, asked.reward, False
    refuse = _Refusal(run, request, asked.units["request"] or "")
    if lists:
        refuse(LISTS, _list_rules(lists, types), "log")
        query = _positions(lists, types, numbered=asked.units["position"] is None)
        one = not _columns_in(asked.reward, types, "reward") & set(lists)
    if asked.at_end or one:
        if asked.model == "independent":
            raise UsageError(
                f"a reward of the whole {asked.words.unit} depends on all items: it requires "
                "model='cascade' or 'whole'"
            )
        query = _with_last(query, request, place)
        refuse(*_reward_rule(sql["reward"], request, asked.words), f"({query})")
        query, reward = _at_end(query, sql["reward"], asked.reward, types)
    if not asked.policies:
        return Prepared(query, reward, position)
    scored = _Scores(asked, types, request, place)
    query = scored.candidates(query or "SELECT * FROM log")
    refuse(SCORES, scored.rules(), f"({query})")
    if asked.model == "independent":
        return Prepared(scored.inputs(query), reward, position, scored.fill)
    return Prepared(scored.probabilities(query), reward, position)


def _columns_in(text: str | None, types: Mapping[str, str], role: str) -> set[str]:
    """Return the columns of the source that an expression reads."""
    from sqlglot import exp

    from poolwise.log.adapters import as_policy
    from poolwise.log.policy import find_expression

    expression = None if text is None else find_expression(as_policy(text, types, role))
    if expression is None:
        return set()
    names = {column.parts[0].name.lower() for column in expression.find_all(exp.Column)}
    return {name for name in types if name.lower() in names}


def _lists(asked: Asked, types: Mapping[str, str]) -> list[str]:
    """Return the columns of the positions' roles that hold lists."""
    texts = {"reward": asked.reward, "position": asked.units["position"]}
    texts |= {"action": asked.action} | dict(asked.probabilities)
    read = set().union(*(_columns_in(text, types, role) for role, text in texts.items()))
    return [name for name in types if name in read and types[name].endswith("]")]


def _list(name: str, types: Mapping[str, str]) -> str:
    """Return a column as a list; an array has a fixed length in its type."""
    inner = types[name].rpartition("[")[0]
    return f"CAST({quoted(name)} AS {inner}[])"


def _positions(lists: Sequence[str], types: Mapping[str, str], *, numbered: bool) -> str:
    """Select one row for each entry of the lists."""
    others = ", ".join(map(quoted, lists))
    entries = [f"unnest({_list(name, types)}) AS {quoted(name)}" for name in lists]
    if numbered:
        entries.append(f"unnest(range(1, len({_list(lists[0], types)}) + 1)) AS {PLACE}")
    kept = "*" if len(lists) == len(types) else f"* EXCLUDE ({others})"
    kept = "" if len(lists) == len(types) else f"{kept}, "
    return f"SELECT {kept}{', '.join(entries)} FROM log"


def _list_rules(lists: Sequence[str], types: Mapping[str, str]) -> dict[str, str]:
    lengths = [f"len({_list(name, types)})" for name in lists]
    missing = " OR ".join(f"coalesce({n}, 0) = 0" for n in lengths)
    differ = " OR ".join(f"{lengths[0]} <> {n}" for n in lengths[1:])
    return {"lists_are_missing": missing, "lengths_differ": differ or "false"}


class _Refusal(NamedTuple):
    """Raises LogError if rows break a rule; each row counts for the first that it breaks."""

    run: Run
    request: str
    name: str

    def __call__(self, rules: Mapping[str, str], filled: Mapping[str, str], rows: str) -> None:
        tests = [test.format_map(filled) for test in rules.values()]
        cases = " ".join(f"WHEN {test} THEN {k}" for k, test in enumerate(tests))
        lines = self.run(
            "SELECT rule, count(*) AS in_rows, min(request) AS example FROM ("
            f"SELECT CAST({self.request} AS VARCHAR) AS request, CASE {cases} END AS rule "
            f"FROM {rows}) WHERE rule IS NOT NULL GROUP BY rule ORDER BY rule"
        ).to_pylist()
        texts = [*rules]
        faults = [
            Fault(texts[line["rule"]], "", line["in_rows"], self._example(line), ADVICE)
            for line in lines
        ]
        if faults:
            raise LogError(faults)

    def _example(self, line: Mapping[str, object]) -> dict[str, object]:
        return {} if line["example"] is None else {self.name: line["example"]}


def _with_last(query: str | None, request: str, position: str) -> str:
    source = "log" if query is None else f"({query})"
    number = ROW_NUMBER.format(request=request, position=position, order=" DESC")
    return (
        f"SELECT * EXCLUDE (poolwise_number), poolwise_number = 1 AS {LAST} "
        f"FROM (SELECT *, {number} FROM {source})"
    )


def _reward_rule(
    reward: str, request: str, words: Words
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the rule that a request has no other reward before its end."""
    rule = f"a reward before the end of its {words.unit} that differs from the last one"
    last = f"max(CASE WHEN {LAST} THEN ({reward}) END) OVER (PARTITION BY {request})"
    differs = f"coalesce(abs(({reward}) - {last}) > {TOLD}, true)"
    return {rule: "{early}"}, {"early": f"NOT {LAST} AND ({reward}) <> 0 AND {differs}"}


def _at_end(query: str, reward: str, name: str, types: Mapping[str, str]) -> tuple[str, str]:
    """Select the reward of the last row, and 0 in the others; return the reward's column."""
    value = f"CASE WHEN {LAST} THEN ({reward}) ELSE 0 END"
    if name in types:
        column = quoted(name)
        query = f"SELECT * EXCLUDE ({LAST}) REPLACE ({value} AS {column}) FROM ({query})"
        return query, name
    return f"SELECT * EXCLUDE ({LAST}), {value} AS {REWARD} FROM ({query})", REWARD


class _Scores:
    """Queries that turn scores into probabilities."""

    def __init__(
        self, asked: Asked, types: Mapping[str, str], request: str, position: str
    ) -> None:
        self.asked, self.types = asked, types
        self.request, self.position = request, position
        self.names, self.policies = [*asked.policies], [*asked.policies.values()]
        if asked.action is None:
            raise UsageError("PlackettLuce requires `action`, the column of the item")
        scores = [p.scores for p in self.policies if isinstance(p.scores, str)]
        spelled = {name.lower() for name in types}
        missing = {name: "scores" for name in scores if name.lower() not in spelled}
        if missing:
            raise MissingColumnError(missing, [*types])
        self.scores = list(dict.fromkeys(scores))

    def candidates(self, query: str) -> str:
        """Select the item, those above it, and the candidates of each policy."""
        above = (
            f"OVER (PARTITION BY {self.request} ORDER BY {self.position} "
            "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        )
        item = f"CAST({quoted(str(self.asked.action))} AS VARCHAR)"
        pairs = "".join(
            f", {self._pairs(policy)} AS poolwise_pairs_{k}"
            for k, policy in enumerate(self.policies)
        )
        number = ROW_NUMBER.format(request=self.request, position=self.position, order="")
        return (
            f"SELECT *, {item} AS poolwise_item, coalesce(list({item}) {above}, []) AS "
            f"poolwise_above, {number}{pairs} FROM ({query})"
        )

    def _pairs(self, policy: PlackettLuce) -> str:
        """Return candidates with their scores, as a list of pairs."""
        scores, eligible = policy.scores, self.asked.eligible
        among = "" if eligible is None else f"CAST({quoted(eligible)} AS VARCHAR[])"
        if isinstance(scores, Mapping):
            keys = "[" + ", ".join(_text(str(key)) for key in scores) + "]"
            values = "[" + ", ".join(f"{float(v)!r}::DOUBLE" for v in scores.values()) + "]"
            return _among(f"list_zip({keys}, {values})", among)
        kind = self._type(scores)
        column = quoted(scores)
        if kind.endswith("]"):
            if eligible is None:
                raise UsageError(
                    f"a list of scores requires `eligible`, the column with the list of the "
                    f"items that {scores!r} belongs to"
                )
            lists = f"TRY_CAST({column} AS DOUBLE[])"
            return f"CASE WHEN len({lists}) = len({among}) THEN list_zip({among}, {lists}) END"
        if kind.startswith("MAP("):
            found = f"TRY_CAST({column} AS MAP(VARCHAR, DOUBLE))"
        elif kind.startswith("STRUCT("):  # has a field for each item of any row
            found = f"TRY_CAST(to_json({column}) AS MAP(VARCHAR, DOUBLE))"
        else:
            text = f"CAST({column} AS VARCHAR)"
            found = f"TRY_CAST(TRY_CAST({text} AS JSON) AS MAP(VARCHAR, DOUBLE))"
        pairs = f"list_zip(map_keys({found}), map_values({found}))"
        if kind.startswith("STRUCT("):
            pairs = f"list_filter({pairs}, lambda poolwise_e: poolwise_e[2] IS NOT NULL)"
        return _among(f"CASE WHEN {found} IS NOT NULL THEN {pairs} END", among)

    def _type(self, name: str) -> str:
        spelled = {column.lower(): kind for column, kind in self.types.items()}
        return spelled[name.lower()]

    def rules(self) -> dict[str, str]:
        pairs = [f"poolwise_pairs_{k}" for k in range(len(self.names))]
        bad = "lambda poolwise_e: poolwise_e[2] IS NULL OR NOT isfinite(poolwise_e[2])"
        keys = "lambda poolwise_e: poolwise_e[1]"
        return {
            "any_missing": " OR ".join(f"coalesce(len({p}), 0) = 0" for p in pairs),
            "any_infinite": " OR ".join(f"len(list_filter({p}, {bad})) > 0" for p in pairs),
            "any_twice": " OR ".join(
                f"len(list_distinct(list_transform({p}, {keys}))) < len({p})" for p in pairs
            ),
        }

    def probabilities(self, query: str) -> str:
        """Select the probability of each item, given those above it."""
        left, best = [], []
        for k in range(len(self.names)):
            test = "lambda poolwise_e: NOT list_contains(poolwise_above, poolwise_e[1])"
            left.append(f"list_filter(poolwise_pairs_{k}, {test}) AS poolwise_left_{k}")
            score = "lambda poolwise_e: poolwise_e[2]"
            own = f"list_filter(poolwise_left_{k}, lambda poolwise_e: poolwise_e[1] = "
            best += [
                f"list_max(list_transform(poolwise_left_{k}, {score})) AS poolwise_best_{k}",
                f"{own}poolwise_item)[1][2] AS poolwise_own_{k}",
            ]
        chances = [self._chance(k, policy) for k, policy in enumerate(self.policies)]
        query = f"SELECT *, {', '.join(left)} FROM ({query})"
        query = f"SELECT *, {', '.join(best)} FROM ({query})"
        helpers = [f"poolwise_{n}_{k}" for k in range(len(self.names)) for n in HELPERS]
        return f"SELECT {self._kept(helpers)}, {', '.join(chances)} FROM ({query})"

    def _chance(self, k: int, policy: PlackettLuce) -> str:
        tau, best = f"{float(policy.temperature)!r}::DOUBLE", f"poolwise_best_{k}"
        power = f"lambda poolwise_e: exp((poolwise_e[2] - {best}) / {tau})"
        total = f"list_sum(list_transform(poolwise_left_{k}, {power}))"
        log = f"coalesce((poolwise_own_{k} - {best}) / {tau} - ln({total}), '-inf'::DOUBLE)"
        return f"{log if self.asked.logs else f'exp({log})'} AS {self.names[k]}"

    def _kept(self, helpers: Iterable[str]) -> str:
        names = [*OWN, *helpers, *map(quoted, self.scores)]
        return f"* EXCLUDE ({', '.join(names)})"

    def inputs(self, query: str) -> str:
        """Select what the probability of an item at its position depends on."""
        helpers = [f"poolwise_pairs_{k}" for k in range(len(self.names))]
        parts = ["poolwise_item AS poolwise_0", "poolwise_number AS poolwise_1"]
        for k in range(len(self.names)):
            for j, kind in enumerate(("keys", "values"), start=1):
                entry = f"lambda poolwise_e: poolwise_e[{j}]"
                parts.append(f"list_transform(poolwise_pairs_{k}, {entry}) AS {kind}_{k}")
        return f"SELECT {self._kept(helpers)}, {', '.join(parts)} FROM ({query})"

    def fill(self, table: pa.Table) -> pa.Table:
        """Append the probability of each item at its position, whatever is above."""
        own = ["poolwise_0", "poolwise_1"]
        for k, (name, policy) in enumerate(self.asked.policies.items()):
            columns = [*own, f"keys_{k}", f"values_{k}"]
            batches = table.select(columns).combine_chunks().to_batches(PLACES)
            parts = [_marginal(batch, policy.temperature) for batch in batches]
            found = np.concatenate(parts) if parts else np.empty(0)
            if self.asked.logs:
                with np.errstate(divide="ignore"):
                    found = np.log(found)
            table = table.append_column(name, pa.array(found))
        inputs = [f"{n}_{k}" for n in ("keys", "values") for k in range(len(self.names))]
        return table.drop_columns([*own, *inputs])


OWN = ("poolwise_item", "poolwise_above", "poolwise_number")  # of the query of candidates
HELPERS = ("pairs", "left", "best", "own")  # of each policy


def _among(pairs: str, among: str) -> str:
    if not among:
        return pairs
    return f"list_filter({pairs}, lambda poolwise_e: list_contains({among}, poolwise_e[1]))"


def _text(value: str) -> str:
    escaped = value.replace("'", "''")
    return f"'{escaped}'"


def _marginal(batch: pa.RecordBatch, temperature: float) -> np.ndarray[Any, Any]:
    """Return the probability of each row's item at its place."""
    item, place, keys, values = batch.columns
    lengths = pc.list_value_length(keys).to_numpy(zero_copy_only=False).astype(np.int64)
    rows = np.repeat(np.arange(len(batch)), lengths)
    index = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    scores = np.full((len(batch), int(lengths.max(initial=1))), -np.inf)
    scores[rows, index] = values.flatten().to_numpy() / temperature
    same = pc.equal(keys.flatten(), item.take(pa.array(rows)))
    chosen = np.full(len(batch), -1)
    here = same.to_numpy(zero_copy_only=False).astype(bool)
    chosen[rows[here]] = index[here]
    return marginals(scores, chosen, place.to_numpy().astype(np.int64))
