"""Adapters: tables, scores, models and mixtures as policies; `as_policy` chooses one.

Tables, scores and models give the probability of every action, so they are also
distributions.  A `Mixture` plays several policies.  `as_policy` turns a name, a number, a
mapping, a model or a function into a policy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from hashlib import sha256
from numbers import Real
from operator import add
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from poolwise.errors import ExpressionError, PolicyError, UsageError, did_you_mean
from poolwise.log.policy import (
    SUM_TOLERANCE,
    Batch,
    BatchFunction,
    Column,
    Expression,
    Function,
    Policy,
    PolicyLike,
    ProbabilityModel,
    Values,
    check_matrix,
    distinct,
    find_expression,
    get_index,
    is_distribution,
    label_array,
    log_prob,
    pick,
    search,
    sql_double,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sqlglot import exp

    from poolwise.types import AnyArray, FloatArray, IntArray, LabelList


def as_policy(  # noqa: PLR0911 - one for each kind
    value: PolicyLike, columns: Collection[str] = (), role: str = ""
) -> Policy:
    """Return the policy that a value describes.

    Text is a column if `columns` has it or if it is a bare name, else an SQL
    expression; a number is a constant, a mapping a `Table`, an array `Values`, a
    classifier a `Classifier`, a function a `Function`.  An error names the `role` that the
    policy plays.

    >>> as_policy("p_v1"), as_policy("p / 2"), as_policy("p / 2", columns=["p / 2"])
    (Column(name='p_v1'), Expression(sql='p / 2'), Column(name='p / 2'))
    """
    if isinstance(value, str):
        return _from_text(value, columns, role)
    if isinstance(value, Real) and not isinstance(value, bool) and 0 <= value <= 1:
        return Expression(sql_double(float(value)))
    if isinstance(value, Mapping):
        return Table(value)
    given: Any = value  # annotations are not enforced
    array = hasattr(given, "__array__") and getattr(given, "shape", None) != ()
    if isinstance(given, list | tuple) or array:
        return Values(given)
    if not isinstance(value, type):
        if hasattr(value, "prob"):
            return cast("Policy", value)
        if hasattr(value, "predict_proba"):
            return Classifier(cast("ProbabilityModel", value))
        if callable(value):
            return Function(value)
    raise UsageError(
        "a policy must be a column, an SQL expression, a probability, a mapping of actions to"
        " probabilities, an array with a value per row, a classifier, a function of a batch, or"
        f" a Policy; got {value!r}"
    )


def _from_text(text: str, columns: Collection[str], role: str) -> Policy:
    from sqlglot import exp

    if text in columns:
        return Column(text)
    try:
        expression = Expression(text)
    except ExpressionError as error:
        raise error.in_role(role, did_you_mean(text, columns)) from None
    tree = expression.expression()
    bare = isinstance(tree, exp.Column) and len(tree.parts) == 1
    return Column(tree.name) if bare else expression


def policy_text(value: PolicyLike) -> str:
    """Return the SQL of a policy, or the name of its class."""
    policy = as_policy(value)
    expression = find_expression(policy)
    if isinstance(policy, Values):
        return sha256(policy.array.astype("<f8").tobytes()).hexdigest()
    if expression is None:  # a policy in Python: its code cannot be hashed
        return f"{type(policy).__name__} in Python"
    return expression.sql(dialect="duckdb", normalize_functions=False)


@dataclass(frozen=True)
class Table:
    """Looks the probability up, by action or by context and action.

    Actions and contexts that the table does not list have probability 0.

    >>> table = Table({"new": {"a": 0.9, "b": 0.1}, "old": {"b": 1}}, context="user")
    >>> table.prob(Batch(np.array(["b", "a"]), {"user": np.array(["new", "old"])})).tolist()
    [0.1, 0.0]

    Attributes:
        probabilities: {action: p}, or with a context {context: {action: p}}.
        context: The column, or columns, that `probabilities` are keyed by.
    """

    probabilities: Mapping[Any, Any]  # of any types; checked below
    context: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not self._rows:
            raise PolicyError("Table", "is empty")
        for key, row in self._rows.items():
            self._check(key, row)

    def _check(self, key: tuple[Hashable, ...], row: object) -> None:
        where = f" in context {', '.join(map(repr, key))}" if key else ""
        if len(key) != len(self._columns):
            reason = f"needs one label for each of {self._columns} as a key, got {key}"
            raise PolicyError("Table", reason)
        if not isinstance(row, Mapping) or any(isinstance(p, Mapping) for p in row.values()):
            raise PolicyError("Table", "must be nested if it has a `context`, and only then")
        invalid = [
            f"{p!r} to action {action!r}"
            for action, p in row.items()
            if not (isinstance(p, Real) and 0 <= float(p) <= 1)
        ]
        if invalid:
            reason = f"gives {', '.join(invalid)}{where}; probabilities are in [0, 1]"
            raise PolicyError("Table", reason)
        total = math.fsum(row.values())
        if abs(total - 1) > SUM_TOLERANCE:
            raise PolicyError("Table", f"has probabilities that sum to {total:.9g}{where}")

    @property
    def _columns(self) -> tuple[str, ...]:
        return (self.context,) if isinstance(self.context, str) else tuple(self.context or ())

    @cached_property
    def _rows(self) -> dict[tuple[Hashable, ...], Any]:
        if self.context is None:
            return {(): self.probabilities}
        one = isinstance(self.context, str)
        rows = self.probabilities.items()
        return {(k,) if one or not isinstance(k, tuple) else k: row for k, row in rows}

    @cached_property
    def actions(self) -> tuple[Hashable, ...]:
        return tuple(dict.fromkeys(action for row in self._rows.values() for action in row))

    @cached_property
    def _matrix(self) -> FloatArray:
        rows = self._rows.values()
        return np.array([[row.get(a, 0.0) for a in self.actions] for row in rows])

    def to_rows(
        self,
    ) -> tuple[list[str], list[Hashable], list[tuple[list[Hashable], list[float]]]]:
        """Return the columns of the context, the actions, and each context with its line."""
        lines = zip(self._rows, self._matrix.tolist(), strict=True)
        rows = [([*key], line) for key, line in lines]
        return [*self._columns], [*self.actions], rows

    @cached_property
    def _axes(self) -> list[AnyArray]:
        """Distinct labels of each context column."""
        axes = zip(*self._rows, strict=True)
        return [label_array(tuple(dict.fromkeys(axis))) for axis in axes]

    @cached_property
    def _codes(self) -> IntArray:
        return self._code(len(self._rows), list(zip(*self._rows, strict=True)))

    def _code(self, count: int, contexts: Sequence[LabelList]) -> IntArray:
        """Return one number per combination of labels; -1 if a label is not listed."""
        code = np.zeros(count, np.int64)
        for axis, labels in zip(self._axes, contexts, strict=True):
            index = get_index(axis, labels)
            code = np.where((code < 0) | (index < 0), -1, code * len(axis) + index)
        return code

    def _line(self, batch: Batch) -> IntArray:
        """Return the line of the table for each row; -1 if its context is not listed."""
        return search(self._codes, self._code(len(batch), [batch[c] for c in self._columns]))

    def prob(self, batch: Batch) -> FloatArray:
        line, action = self._line(batch), batch.index_in(self.actions)
        return np.where((line >= 0) & (action >= 0), self._matrix[line, action], 0.0)

    def distribution(self, batch: Batch) -> FloatArray:
        line = self._line(batch)
        return np.where(line[:, None] >= 0, self._matrix[line], 0.0)


@dataclass(frozen=True)
class Softmax:
    r"""Prefers actions of high score: $\pi(y \mid x) \propto e^{s(x, y) / \tau}$.

    >>> batch = Batch(np.array(["a", "b"]), {"a": np.array([1e4, 0]), "b": np.array([1e4, 0])})
    >>> Softmax(["a", "b"], actions=["a", "b"]).prob(batch).tolist()
    [0.5, 0.5]

    Attributes:
        scores: One column per action, or a function that returns shape (n, actions).
        actions: Labels in the order of the scores.
        temperature: The tau above; the lower, the more often the best action is played.
    """

    scores: Sequence[str] | BatchFunction
    actions: Sequence[Hashable]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", distinct("Softmax", self.actions))
        if not self.temperature > 0:
            raise PolicyError("Softmax", f"needs a temperature above 0, got {self.temperature}")

    def _logs(self, batch: Batch, among: NDArray[np.bool] | None = None) -> FloatArray:
        scores = self.scores
        values = scores(batch) if callable(scores) else batch.select(scores).context
        matrix = check_matrix("Softmax", values, len(batch), len(self.actions))
        matrix = matrix if among is None else np.where(among, matrix, -math.inf)
        with np.errstate(invalid="ignore", over="ignore"):  # NaN is reported with its row
            logits: FloatArray = (matrix - matrix.max(axis=1, keepdims=True)) / self.temperature
            logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return logits

    def log_prob(self, batch: Batch) -> FloatArray:
        return pick(self._logs(batch), batch.index_in(self.actions), -math.inf)

    def prob(self, batch: Batch) -> FloatArray:
        return np.exp(self.log_prob(batch))

    def distribution(self, batch: Batch, among: NDArray[np.bool] | None = None) -> FloatArray:
        """Return the probability of every action, only `among` eligible ones if given."""
        return np.exp(self._logs(batch, among))


@dataclass(frozen=True)
class EpsilonGreedy:
    r"""Plays the best action, but with probability $\varepsilon$ any action at random.

    $$\pi(y \mid x) = \varepsilon / K + (1 - \varepsilon) 1\{y = \text{best}(x)\}$$

    >>> policy = EpsilonGreedy("top", actions=["a", "b"], epsilon=0.5)
    >>> policy.prob(Batch(np.array(["a", "b"]), {"top": np.array(["a", "a"])})).tolist()
    [0.75, 0.25]

    Attributes:
        best: A column, a function of the batch, or a model with `predict`.
        actions: All labels, the best included.
        epsilon: Fraction of the rows that explore.
    """

    best: object
    actions: Sequence[Hashable]
    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", distinct("EpsilonGreedy", self.actions))
        if not 0 <= self.epsilon <= 1:
            reason = f"needs an epsilon in [0, 1], got {self.epsilon}"
            raise PolicyError("EpsilonGreedy", reason)

    def _best(self, batch: Batch) -> IntArray:
        if isinstance(self.best, str):
            labels = batch[self.best]
        elif hasattr(self.best, "predict"):
            labels = np.asarray(self.best.predict(_features(self.best, batch, None)))
        else:
            labels = np.asarray(cast("BatchFunction", self.best)(batch))
        best = get_index(self.actions, labels)
        unknown = np.flatnonzero(best < 0)
        if len(unknown):
            reason = f"calls {labels[unknown[0]]!r} best, which is not among its actions"
            raise PolicyError("EpsilonGreedy", reason, unknown[:5].tolist())
        return best

    def prob(self, batch: Batch) -> FloatArray:
        action = batch.index_in(self.actions)
        return np.where(action >= 0, self._split(action == self._best(batch)), 0.0)

    def distribution(self, batch: Batch, among: NDArray[np.bool] | None = None) -> FloatArray:
        """Return the probability of every action, only `among` eligible ones if given."""
        best, rows = self._best(batch), np.arange(len(batch))
        if among is None:
            return self._split(best[:, None] == np.arange(len(self.actions)))
        barred = np.flatnonzero(~among[rows, best])
        if len(barred):
            reason = f"calls {self.actions[best[barred[0]]]!r} best, which is not eligible"
            raise PolicyError("EpsilonGreedy", reason, barred[:5].tolist())
        probs = among * (self.epsilon / among.sum(axis=1, keepdims=True))
        probs[rows, best] += 1 - self.epsilon
        return np.asarray(probs)

    def _split(self, is_best: NDArray[np.bool]) -> FloatArray:
        explore = self.epsilon / len(self.actions)
        return np.where(is_best, explore + (1 - self.epsilon), explore)


@dataclass(frozen=True)
class Classifier:
    """Draws the action from a fitted model's `predict_proba`.

    A label that is not one of the model's classes has probability 0.

    Attributes:
        model: Has `predict_proba` and `classes_`; scikit-learn's do.
        columns: Context columns that it was fitted to, in that order; by default
            its `feature_names_in_`, or else all.
    """

    model: ProbabilityModel
    columns: Sequence[str] | None = None

    @property
    def actions(self) -> Sequence[Hashable]:
        return tuple(np.asarray(self.model.classes_).tolist())

    def prob(self, batch: Batch) -> FloatArray:
        return pick(self.distribution(batch), batch.index_in(self.actions))

    def distribution(self, batch: Batch) -> FloatArray:
        features = _features(self.model, batch, self.columns)
        probabilities = self.model.predict_proba(features)
        return check_matrix("Classifier", probabilities, len(batch), len(self.actions))


def _features(model: object, batch: Batch, columns: Sequence[str] | None) -> object:
    """Return the features: a matrix, or a frame if the model has names of features."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        return batch.context if columns is None else batch.select(columns).context
    frame = batch.select(names if columns is None else columns).to_pandas()
    return frame.set_axis(names, axis=1)


@dataclass(frozen=True)
class Mixture:
    r"""Plays one of several policies, drawn anew for each row: $\sum_i s_i \pi_i(y \mid x)$.

    >>> from poolwise.log.policy import Uniform
    >>> Mixture([Uniform(2), Uniform(4)], [0.5, 0.5]).prob(Batch(np.array([1]), {})).tolist()
    [0.375]
    """

    policies: Sequence[Policy]
    shares: Sequence[float]

    def __post_init__(self) -> None:
        shares, parts = tuple(self.shares), tuple(as_policy(part) for part in self.policies)
        total = math.fsum(shares)
        sums_to_1 = abs(total - 1) <= SUM_TOLERANCE and min(shares) > 0
        if len(shares) != len(parts) or not sums_to_1:
            reason = f"needs {len(parts)} shares above 0 that sum to 1, got {shares}"
            raise PolicyError("Mixture", reason)
        object.__setattr__(self, "policies", parts)
        object.__setattr__(self, "shares", tuple(share / total for share in shares))

    @property
    def actions(self) -> Sequence[Hashable]:
        """Actions of every part; empty if they differ or a part has no list of actions."""
        lists = [part.actions for part in self.policies if is_distribution(part)]
        if len(lists) < len(self.policies):
            return ()
        first, indices = lists[0], list(range(len(lists[0])))
        same = all(np.sort(get_index(first, other)).tolist() == indices for other in lists)
        return first if same else ()

    def prob(self, batch: Batch) -> FloatArray:
        return self._sum([part.prob(batch) for part in self.policies])

    def log_prob(self, batch: Batch) -> FloatArray:
        logs = np.stack([log_prob(part, batch) for part in self.policies])
        mixed: FloatArray = np.logaddexp.reduce(np.log(self.shares)[:, None] + logs)
        return mixed

    def distribution(self, batch: Batch) -> FloatArray:
        actions = self.actions
        parts = [part for part in self.policies if actions and is_distribution(part)]
        if not parts:
            raise PolicyError("Mixture", "has parts that do not name the same actions")
        columns = [get_index(part.actions, actions) for part in parts]
        matrices = [part.distribution(batch) for part in parts]
        return self._sum([m[:, index] for m, index in zip(matrices, columns, strict=True)])

    def _sum(self, parts: Sequence[FloatArray]) -> FloatArray:
        # not a matrix product: BLAS may round a row differently in another batch
        doubles = (np.asarray(part, dtype=np.float64) for part in parts)
        return reduce(add, (s * part for s, part in zip(self.shares, doubles, strict=True)))

    def expression(self) -> exp.Expr | None:
        parts = [find_expression(part) for part in self.policies]
        shares = [Expression(sql_double(share)).expression() for share in self.shares]
        terms = [share * part for share, part in zip(shares, parts, strict=True) if part]
        return reduce(add, terms) if len(terms) == len(parts) else None
