"""Distributions: how often each logger plays each action, where whole distributions are known.

A distribution per row, a policy in Python with a list of actions, or an expression that names
the action says with which probability a logger plays *every* action in a row.  Given the
row, playing an action is then a draw of known probability, so that the frequency of an action
has a known mean and a known variance, whatever the context.  The audit of propensities
(`diagnosis.audit`) compares them; here are the sums, of a sample of the rows.

The probability of an action is what the log's expression gives with this action in place of
the logged one.  A logger is left out unless these probabilities sum to 1 in every row of the
sample: its expression is then not a distribution, or most actions were never logged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from sqlglot import exp

from poolwise.log.policy import get_index, is_distribution
from poolwise.rows.rules import double, string
from poolwise.rows.score import checked_distribution, to_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from sqlglot.expressions import Expr as Expression

    from poolwise.log.policy import Distribution
    from poolwise.rows.roles import Roles
    from poolwise.types import FloatArray, IntArray

MOST_ENTRIES = 1 << 19  # probabilities that a query returns
MOST_SCORED = 1 << 18  # probabilities that policies in Python return
MOST_COMPARED = 256  # actions; logs with more are audited by their propensities alone
TOLERANCE = 5e-3  # of the sum of a distribution, whose probabilities may be rounded
BANDS = 10  # parts of equal probability
SORTED = 1 << 16  # probabilities that the ends of bands are taken from
SEED = 20170813  # of the sample
TEXTS = ("VARCHAR", "ENUM")  # types of actions that are compared with a text as it is
NESTED = ("[", "STRUCT", "MAP", "JSON")  # types of actions that no text is compared with
LABEL = "logger of the row"  # a name that no column has


class FrequencySums(NamedTuple):
    """Rows in which a logger played an action, or one of some probability, and their mean.

    Attributes:
        logger: Label of the logger.
        action: The action, as text; empty for a band of probabilities.
        played: Rows in which it was played.
        expected: Sum of its probabilities over all rows of the logger.
        variance: Sum of p (1 - p) over them.
        band: Least and largest probability of a band; None for an action.
    """

    logger: str
    action: str
    played: int
    expected: float
    variance: float
    band: tuple[float, float] | None = None


def sum_frequencies(
    logger: str, actions: Sequence[str], probabilities: FloatArray, played: IntArray
) -> list[FrequencySums]:
    """Return the sums of each action, and of each tenth of the probability of one logger.

    Args:
        logger: Label of the logger.
        actions: Actions, as text.
        probabilities: Probability of each action in each row, shape (rows, actions).
        played: Number of the action of each row among the actions; -1 for another one.

    Returns:
        Nothing if rows have no distribution over these actions.

    >>> probs = np.array([[0.25, 0.75]] * 4)
    >>> sums = sum_frequencies("v1", ["a", "b"], probs, np.array([0, 1, 1, 1]))
    >>> [(s.action, s.played, s.expected, s.variance) for s in sums if s.action]
    [('a', 1, 1.0, 0.75), ('b', 3, 3.0, 0.75)]
    """
    total = probabilities.sum(axis=1)
    usual = (np.abs(total - 1) <= TOLERANCE).all() and (probabilities >= 0).all()  # not NaN
    if not len(played) or not usual or played.min() < 0:
        return []
    probs = probabilities / total[:, None]
    counts = np.bincount(played, minlength=len(actions))
    expected, variance = probs.sum(axis=0), (probs * (1 - probs)).sum(axis=0)
    sums = [
        FrequencySums(logger, action, int(n), float(e), float(v))
        for action, n, e, v in zip(actions, counts, expected, variance, strict=True)
    ]
    return [*sums, *_sum_bands(logger, probs, played)]


def _sum_bands(logger: str, probs: FloatArray, played: IntArray) -> Iterator[FrequencySums]:
    """Yield the sums of bands of the probability, in which equal parts of it lie.

    The ends of bands depend on the distributions, and not on what was played.
    """
    rows, wide = probs.shape
    some = np.sort(probs.ravel()[:: max(1, probs.size // SORTED)])
    below = some.cumsum()
    parts = np.arange(1, BANDS) / BANDS * below[-1]
    ends = np.unique(some[np.searchsorted(below, parts).clip(max=len(some) - 1)])
    band = np.searchsorted(ends, probs.ravel(), side="right")
    number = len(ends) + 1
    cells = np.repeat(np.arange(rows) * number, wide) + band
    shares = np.bincount(cells, weights=probs.ravel(), minlength=rows * number)
    shares = shares.reshape(rows, number).clip(0.0, 1.0)
    counts = np.bincount(band[np.arange(rows) * wide + played], minlength=number)
    for k, (least, largest) in enumerate(
        zip([0.0, *ends.tolist()], [*ends.tolist(), 1.0], strict=True)
    ):
        share = shares[:, k]
        variance = float((share * (1 - share)).sum())
        yield FrequencySums(
            logger, "", int(counts[k]), float(share.sum()), variance, (least, largest)
        )


Read = Callable[[exp.Select], "pa.Table | None"]  # the answer to a query; None without rows


def read_frequencies(
    read: Read, roles: Roles, loggers: Mapping[str, int]
) -> tuple[FrequencySums, ...]:
    """Return the sums of the loggers of a log whose distributions are known.

    Args:
        read: Returns the answer to a query of the view `log`.
        roles: Roles of the log; `has_distributions` is true of them.
        loggers: Rows of each logger.
    """
    queries, policies = _list_sources(roles, loggers)
    rows = sum(loggers.values())
    sums: list[FrequencySums] = []
    found = _read_actions(read, roles, rows) if queries else None
    if found is not None:
        actions, kind = found
        sample = _sample(rows, MOST_ENTRIES // len(actions))
        answer = read(_actions_query(sample, roles, queries, actions, kind))
        if answer is not None:
            logs = roles.table.scale.logs
            sums += _query_sums(answer, queries, actions, logs=logs)
    if policies:
        widest = max(len(policy.actions) for policy in policies.values())
        columns = [_as_text(roles.table.logger).as_(LABEL, quoted=True)]
        columns += roles.selected(roles.read)
        answer = read(_query(_sample(rows, max(1, MOST_SCORED // widest)), *columns))
        sums += [] if answer is None else _policy_sums(answer, roles, policies)
    return tuple(sums)


def has_distributions(roles: Roles) -> bool:
    """Test if whole distributions may be known: no row is read."""
    if roles.table.action is None or roles.table.drop:
        return False
    return any(map(bool, _list_sources(roles, roles.table.propensities)))


def _list_sources(
    roles: Roles, loggers: Mapping[str, object]
) -> tuple[dict[str, Expression], dict[str, Distribution]]:
    """Return the expressions that name the action, and the policies in Python, by logger.

    The log's own `propensity` is every logger's, under an empty name.
    """
    table = roles.table
    own = {} if table.propensity is None else {"": ("propensity", table.propensity)}
    crossed = {
        label: (f"propensities[{label!r}]", value)
        for label, value in table.propensities.items()
        if label in loggers
    }
    queries, policies = {}, {}
    for label, (role, value) in (own or crossed).items():
        policy = roles.scored.get(role)
        if policy is None and any(_names_action(node, roles) for node in value.walk()):
            queries[label] = value
        elif policy is not None and is_distribution(policy):
            policies[label] = policy
    return queries, policies


def _names_action(node: Expression, roles: Roles) -> bool:
    """Test if a part of an expression is the column of the action."""
    action = roles.table.action
    if isinstance(action, exp.Column) and isinstance(node, exp.Column):
        return not node.table and node.name.lower() == action.name.lower()
    return action is not None and node == action


def _sample(rows: int, most: int) -> str:
    """Return the text of a query of some rows, always the same ones."""
    if rows <= most:
        return "SELECT * FROM log"
    return f"SELECT * FROM log USING SAMPLE {100 * most / rows}% (system, {SEED})"


def _query(sample: str, *columns: Expression) -> exp.Select:
    relation: exp.Select = exp.maybe_parse(sample, dialect="duckdb")
    return exp.select(*columns).from_(relation.subquery("log"))


def _read_actions(read: Read, roles: Roles, rows: int) -> tuple[list[str], str] | None:
    """Return the actions as text, and their type; None if there are too many of them."""
    action = roles.table.action
    if action is None:
        return None
    text, kind = _as_text(action), exp.func("any_value", exp.func("typeof", action.copy()))
    query = _query(_sample(rows, MOST_ENTRIES), text.as_("action"), kind.as_("kind"))
    answer = read(query.group_by(text.copy()).limit(MOST_COMPARED + 1))
    lines = [] if answer is None else answer.to_pylist()
    actions, kinds = [line["action"] for line in lines], {str(line["kind"]) for line in lines}
    nested = any(name in kind for kind in kinds for name in NESTED)
    if not 0 < len(actions) <= MOST_COMPARED or None in actions or nested or len(kinds) > 1:
        return None
    return sorted(actions), next(iter(kinds))


def _as_text(value: Expression) -> Expression:
    return exp.cast(value.copy(), "varchar")


def _actions_query(
    sample: str,
    roles: Roles,
    sources: Mapping[str, Expression],
    actions: Sequence[str],
    kind: str,
) -> exp.Select:
    """Select expressions with each action in turn in place of the logged one."""
    table = roles.table
    logger, plain = _as_text(table.logger), kind.startswith(TEXTS)

    def value(action: str) -> Expression:
        literal: Expression = string(action)
        if not plain:
            literal = exp.cast(literal, exp.DataType.build(kind, dialect="duckdb"))
        choice = exp.Case()
        for label, source in sources.items():
            played = source.copy().transform(
                lambda node: exp.paren(literal.copy()) if _names_action(node, roles) else node
            )
            if not label:
                return double(played)
            choice = choice.when(logger.copy().eq(string(label)), double(played))
        return choice

    played = logger if table.action is None else _as_text(table.action)
    names = [logger.as_(LABEL, quoted=True), played.as_("action", quoted=True)]
    values = (value(a).as_(f"p_{k}", quoted=True) for k, a in enumerate(actions))
    return _query(sample, *names, *values)


def _query_sums(
    rows: pa.Table, sources: Mapping[str, object], actions: Sequence[str], *, logs: bool
) -> Iterator[FrequencySums]:
    """Yield the sums of the answer to `_actions_query`."""
    probs = np.column_stack([_doubles(rows.column(f"p_{k}")) for k in range(len(actions))])
    probs = np.exp(probs) if logs else probs
    played = get_index(actions, rows.column("action").to_pylist())
    for label, own in _split(rows):
        if "" in sources or label in sources:
            yield from sum_frequencies(label, actions, probs[own], played[own])


def _policy_sums(
    rows: pa.Table, roles: Roles, policies: Mapping[str, Distribution]
) -> Iterator[FrequencySums]:
    """Yield the sums of policies in Python."""
    for label, own in _split(rows):
        policy = policies.get("", policies.get(label))
        if policy is None:
            continue
        (part,) = rows.filter(pa.array(own)).combine_chunks().to_batches()
        batch = to_batch(part, roles.action, roles.context)
        actions = list(policy.actions)
        shape = len(batch), len(actions)
        probs = checked_distribution(label, policy.distribution(batch), shape)
        played = batch.index_in(actions)
        yield from sum_frequencies(label, [str(a) for a in actions], probs, played)


def _split(rows: pa.Table) -> Iterator[tuple[str, NDArray[np.bool]]]:
    """Yield each logger, and which of the rows are its own."""
    wrote = np.array(rows.column(LABEL).to_pylist(), dtype=object)
    for label in dict.fromkeys(wrote.tolist()):
        if label is not None:
            yield label, wrote == label


def _doubles(values: pa.ChunkedArray) -> FloatArray:
    return np.asarray(values.cast(pa.float64()).fill_null(np.nan).to_numpy())
