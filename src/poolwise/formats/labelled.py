"""Simulated logs from labelled data: supervised learning turned into a bandit.

A row draws a context of the data set and an action of the logger, and records the reward
of that action only.  All labels are known, and so is the true value of every policy, which
makes such logs the usual test bed (Agarwal et al., "Taming the Monster", 2014).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolwise.errors import UsageError
from poolwise.log.crf import LabelPolicy, label_vectors, to_masks, to_vectors
from poolwise.log.log import Log
from poolwise.log.policies import as_policy
from poolwise.log.policy import Batch, FloatArray, Policy, is_distribution

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from poolwise.log.policy import AnyArray, PolicyLike

Contexts: TypeAlias = "FloatArray | csr_array[Any] | Mapping[str, AnyArray]"
# from labels of rows and the actions played there to rewards
Reward: TypeAlias = Callable[[NDArray[Any], NDArray[Any]], FloatArray]

FEATURES = "features"  # column of a context that is one matrix
DRAWN_ROWS = 65_536  # at a time: the features of all rows may not fit in memory


def correct_labels(labels: NDArray[Any], actions: NDArray[Any]) -> FloatArray:
    """Count the labels that are assigned correctly, the paper's reward.

    >>> correct_labels(np.array([[1, 0, 1]]), np.array([4])).tolist()  # 4 is [0, 0, 1]
    [2.0]
    """
    bits = to_vectors(actions, labels.shape[1])
    return np.asarray((bits == labels).sum(axis=1), dtype=np.float64)


def correct_class(labels: NDArray[Any], actions: NDArray[Any]) -> FloatArray:
    """Return 1 if the action is the class of the row, else 0."""
    return np.asarray(labels == actions, dtype=np.float64)


def bandit_log(
    contexts: Contexts,
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
    context if it is not sparse.

    Args:
        contexts: A matrix of features, dense or sparse, or named columns.
        labels: One class per row, or a matrix of 0 and 1, one vector per row.
        loggers: Policies with a list of actions, such as a CRF or a classifier.
        counts: Rows that each logger writes.
        rng: Source of all randomness.
        targets: Policies whose probability of the logged action is recorded.
        reward: Reward of actions given labels; by default 1 for the right class, or the
            number of labels assigned correctly.
    """
    import pyarrow as pa

    truth = np.asarray(labels)
    _check(truth, _length(contexts), loggers, counts)
    acting = {str(name): as_policy(policy) for name, policy in loggers.items()}
    scored = {f"{name}_prob": as_policy(p) for name, p in (targets or {}).items()}
    scored |= {f"propensity_{k}": policy for k, policy in enumerate(acting.values())}
    play = _Play(contexts, truth, reward or _default_reward(truth))
    tables = [
        pa.table(play.rows(name, size, acting, scored, rng))
        for name in acting
        for size in _sizes(counts[name])
    ]
    return Log(
        pa.concat_tables(tables),
        logger="logger",
        action="action",
        reward="reward",
        propensity="propensity",
        propensities={name: f"propensity_{k}" for k, name in enumerate(acting)},
        context=tuple(_columns(contexts)) or ("row",),
    )


@dataclass(frozen=True, eq=False)
class _Play:
    """A labelled data set on which policies act."""

    contexts: Contexts
    labels: NDArray[Any]
    reward: Reward

    def rows(
        self,
        logger: str,
        size: int,
        acting: Mapping[str, Policy],
        scored: Mapping[str, Policy],
        rng: np.random.Generator,
    ) -> dict[str, object]:
        """Draw rows of one logger, as columns."""
        rows = rng.integers(len(self.labels), size=size)
        actions = draw(acting[logger], _batch(self.contexts, rows, rows), rng)
        batch = _batch(self.contexts, rows, actions)
        probs = {name: policy.prob(batch) for name, policy in scored.items()}
        return {
            "logger": [logger] * size,
            "row": rows,
            "action": actions,
            "reward": self.reward(self.labels[rows], actions),
            "propensity": probs[f"propensity_{list(acting).index(logger)}"],
            **probs,
            **{name: _listed(batch[name]) for name in _columns(self.contexts)},
        }


def draw(policy: Policy, batch: Batch, rng: np.random.Generator) -> NDArray[Any]:
    """Draw one action for each row; the logged actions of the batch are not read."""
    if isinstance(policy, LabelPolicy):
        return to_masks(policy.sample(batch, rng))
    if not is_distribution(policy):
        raise UsageError(f"a logger must have a list of its actions, got {policy!r}")
    below = policy.distribution(batch).cumsum(axis=1)
    uniform = rng.random(len(below)) * below[:, -1]  # the sum may miss 1 by rounding
    index = (below <= uniform[:, None]).sum(axis=1)
    actions: NDArray[Any] = np.asarray(policy.actions)[index]
    return actions


def true_value(
    contexts: Contexts,
    labels: ArrayLike,
    policy: PolicyLike,
    *,
    reward: Reward | None = None,
) -> float:
    """Return the exact mean reward of a policy over the rows of a labelled data set."""
    truth, target = np.asarray(labels), as_policy(policy)
    if not is_distribution(target):
        raise UsageError(f"the policy must have a list of its actions, got {target!r}")
    actions, pay = np.asarray(target.actions), reward or _default_reward(truth)
    total, step = 0.0, max(1, (1 << 20) // len(actions))
    for first in range(0, len(truth), step):
        rows = np.arange(first, min(first + step, len(truth)))
        prob = target.distribution(_batch(contexts, rows, rows))
        of_row, of_action = np.repeat(rows, len(actions)), np.tile(actions, len(rows))
        total += float(prob.ravel() @ pay(truth[of_row], of_action))
    return total / len(truth)


def _default_reward(labels: NDArray[Any]) -> Reward:
    return correct_labels if labels.ndim == 2 else correct_class


def _sizes(count: int) -> list[int]:
    return [min(DRAWN_ROWS, count - first) for first in range(0, count, DRAWN_ROWS)]


def _length(contexts: Contexts) -> int:
    if isinstance(contexts, Mapping):
        return len(next(iter(contexts.values()), ()))
    return int(contexts.shape[0])


def _batch(contexts: Contexts, rows: NDArray[np.int64], actions: NDArray[Any]) -> Batch:
    if isinstance(contexts, Mapping):
        return Batch(actions, {name: values[rows] for name, values in contexts.items()})
    # CRFs accept sparse matrices, which are not arrays
    return Batch(actions, {FEATURES: cast("FloatArray", contexts[rows])})


def _columns(contexts: Contexts) -> list[str]:
    """Return the context columns that a log can hold."""
    if isinstance(contexts, Mapping):
        return list(contexts)
    return [FEATURES] if isinstance(contexts, np.ndarray) else []


def _listed(values: AnyArray) -> object:
    """Return a matrix as a column of lists, and other values unchanged."""
    import pyarrow as pa

    if values.ndim == 1:
        return values
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _check(
    labels: NDArray[Any], rows: int, loggers: Mapping[str, object], counts: Mapping[str, int]
) -> None:
    problems = []
    if len(labels) != rows or not rows:
        problems.append(
            f"contexts and labels must have the same rows, got {rows} and {len(labels)}"
        )
    if labels.ndim == 2:
        label_vectors(labels.shape[1])
    if not loggers or set(counts) != set(loggers):
        problems.append("counts must name exactly the loggers")
    if any(int(count) != count or count < 1 for count in counts.values()):
        problems.append("counts must be whole numbers above 0")
    if problems:
        raise UsageError("\n".join(problems))
