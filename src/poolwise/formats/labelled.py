"""Simulated logs from labelled data: supervised learning turned into a bandit.

A row draws a context of the data set and an action of the logger, and records the reward
of that action only.  All labels are known, and so is the true value of every policy, which
makes such logs the usual test bed (Agarwal et al., "Taming the Monster", 2014).

The bundled log is one of them: three classifiers of different quality logged the digit that
they predicted for an image, and the reward is 1 if it is right.
`scripts/make_bundled_log.py` writes the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolwise.engines.exact import drawn_log
from poolwise.errors import UsageError
from poolwise.log.adapters import as_policy
from poolwise.log.log import Log
from poolwise.log.policy import Batch, draw_index, is_distribution
from poolwise.types import FloatArray

if TYPE_CHECKING:
    from poolwise.log.policy import Distribution, Policy, PolicyLike
    from poolwise.types import AnyArray

LabelledContexts: TypeAlias = "FloatArray | Mapping[str, AnyArray]"
# from labels of rows and the actions played there to rewards
Reward: TypeAlias = Callable[[NDArray[Any], NDArray[Any]], FloatArray]

FEATURES = "features"  # column of a context that is one matrix
DRAWN_ROWS = 65_536  # at a time: the features of all rows may not fit in memory
DRAWN_CELLS = 1 << 24  # probabilities at a time: rows times actions


def correct_class(labels: NDArray[Any], actions: NDArray[Any]) -> FloatArray:
    """Return 1 if the action is the class of the row, else 0."""
    return np.asarray(labels == actions, dtype=np.float64)


def bandit_log(
    contexts: LabelledContexts,
    labels: ArrayLike,
    *,
    loggers: Mapping[str, PolicyLike],
    counts: Mapping[str, int],
    rng: np.random.Generator,
    targets: Mapping[str, PolicyLike] | None = None,
    reward: Reward | None = None,
) -> Log:
    """Simulate a log of several policies that act on a labelled data set.

    Every row of the log draws its own context, with replacement, and its own action.
    Columns: ``logger``, ``row`` (of the data set), ``action``, ``reward``, ``propensity``,
    one ``propensity_k`` for the k-th logger, one ``NAME_prob`` for each target, and the
    context.

    Args:
        contexts: A matrix of features, or named columns.
        labels: One class per row; or, with a `reward` that reads them, an array of any
            shape with one entry per row.
        loggers: Policies with a list of actions, such as a classifier.
        counts: Rows that each logger writes.
        rng: Source of all randomness.
        targets: Policies whose probability of the logged action is recorded.
        reward: Returns the rewards of actions, from the labels of their rows; by default
            1 for the right class and 0 for others.
    """
    import pyarrow as pa

    data = _Data(contexts, labels, reward)
    _check(data, loggers, counts)
    acting = {str(name): _distribution("a logger", p) for name, p in loggers.items()}
    named = (targets or {}).items()
    scored: dict[str, Policy] = {f"{name}_prob": as_policy(p) for name, p in named}
    scored |= {f"propensity_{k}": policy for k, policy in enumerate(acting.values())}
    tables = []
    for k, (name, policy) in enumerate(acting.items()):
        step = max(1, min(DRAWN_ROWS, DRAWN_CELLS // len(policy.actions)))
        for first in range(0, counts[name], step):
            size = min(step, counts[name] - first)
            columns = data.draw(policy, size, scored, f"propensity_{k}", rng)
            tables.append(pa.table({"logger": [name] * size, **columns}))
    return drawn_log(tables, acting, tuple(data.columns))


class _Data:
    """A labelled data set on which policies act."""

    def __init__(
        self, contexts: LabelledContexts, labels: ArrayLike, reward: Reward | None
    ) -> None:
        named = contexts if isinstance(contexts, Mapping) else {FEATURES: contexts}
        self.columns = {name: np.asarray(values) for name, values in named.items()}
        self.labels = np.asarray(labels)
        self.reward = reward or correct_class
        if not all(values.ndim for values in self.columns.values()):
            kind = type(contexts).__name__
            raise UsageError(f"contexts must be a matrix or named columns, got {kind}")
        if self.labels.ndim != 1 and not reward:
            shape = self.labels.shape
            raise UsageError(
                f"labels must be one class per row, got an array of shape {shape}; "
                "pass a `reward` that reads such labels"
            )

    @property
    def rows(self) -> int:
        """Rows of the contexts."""
        return int(next((values.shape[0] for values in self.columns.values()), 0))

    def batch(self, rows: NDArray[np.int64], actions: NDArray[Any]) -> Batch:
        """Return rows with the actions played there."""
        return Batch(actions, {name: values[rows] for name, values in self.columns.items()})

    def draw(
        self,
        policy: Distribution,
        size: int,
        scored: Mapping[str, Policy],
        own: str,
        rng: np.random.Generator,
    ) -> dict[str, Any]:
        """Draw rows of one logger, as columns; `own` is the logger's name in `scored`."""
        rows = rng.integers(len(self.labels), size=size)
        actions = draw(policy, self.batch(rows, rows), rng)
        batch = self.batch(rows, actions)
        probs = {name: policy.prob(batch) for name, policy in scored.items()}
        return {
            "row": rows,
            "action": actions,
            "reward": self.reward(self.labels[rows], actions),
            "propensity": probs[own],
            **probs,
            **{name: list_column(batch[name]) for name in self.columns},
        }


def _distribution(role: str, policy: PolicyLike) -> Distribution:
    acting = as_policy(policy)
    if not is_distribution(acting):
        raise UsageError(f"{role} must have a list of its actions, got {acting!r}")
    return acting


def draw(policy: Distribution, batch: Batch, rng: np.random.Generator) -> NDArray[Any]:
    """Draw one action for each row; the logged actions of the batch are not read."""
    index = draw_index(policy.distribution(batch), rng)
    actions: NDArray[Any] = np.asarray(policy.actions)[index]
    return actions


def true_value(
    contexts: LabelledContexts,
    labels: ArrayLike,
    policy: PolicyLike,
    *,
    reward: Reward | None = None,
) -> float:
    """Return the exact mean reward of a policy over the rows of a labelled data set."""
    data, target = _Data(contexts, labels, reward), _distribution("the policy", policy)
    actions = np.asarray(target.actions)
    total, step = 0.0, max(1, (1 << 20) // len(actions))
    for first in range(0, len(data.labels), step):
        rows = np.arange(first, min(first + step, len(data.labels)))
        prob = target.distribution(data.batch(rows, rows))
        of_row, of_action = np.repeat(rows, len(actions)), np.tile(actions, len(rows))
        total += float(prob.ravel() @ data.reward(data.labels[of_row], of_action))
    return total / len(data.labels)


def list_column(values: AnyArray) -> object:
    """Return a matrix as a column of lists, and other values unchanged."""
    import pyarrow as pa

    if values.ndim == 1:
        return values
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _check(data: _Data, loggers: Mapping[str, object], counts: Mapping[str, int]) -> None:
    problems = []
    rows, labels = data.rows, data.labels
    if len(labels) != rows or not rows:
        problems.append(
            f"contexts and labels must have the same rows, got {rows} and {len(labels)}"
        )
    if not loggers or set(counts) != set(loggers):
        problems.append("counts must name exactly the loggers")
    if any(int(count) != count or count < 1 for count in counts.values()):
        problems.append("counts must be whole numbers above 0")
    if problems:
        raise UsageError("\n".join(problems))


LOGGERS = ("small", "medium", "large")
TARGETS = {"candidate": "p_candidate"}


def digits_path() -> Path:
    """Return the path of the file."""
    return Path(str(files("poolwise") / "data" / "digits.parquet"))


def digits_log() -> Log:
    """Return the bundled log, with the probability of every row under every logger.

    >>> digits_log().crossed
    True
    """
    return Log(
        digits_path(),
        logger="policy",
        action="digit",
        reward="correct",
        propensity="p",
        propensities={name: f"p_{name}" for name in LOGGERS},
        context=("pixels",),
    )


def digits_truth() -> dict[str, float]:
    """Return the true value of each target, from the file's metadata.

    >>> 0 < digits_truth()["candidate"] < 1
    True
    """
    import pyarrow.parquet as pq

    metadata = pq.read_schema(digits_path()).metadata
    truth: dict[str, float] = json.loads(metadata[b"poolwise"])["truth"]
    return truth
