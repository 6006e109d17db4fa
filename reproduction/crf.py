"""Conditional random fields: policies that assign several labels at once.

An action is a vector of q labels, each 0 or 1, and a policy is a distribution
over all 2^q of them given the context.  The paper trains such policies on
fractions of a labelled data set.  Log-probabilities are explicit, so that every
expectation over actions is a finite sum.

In a log an action is one number, the bit mask of its vector: label k is bit k,
so that 5 = 1 + 4 assigns labels 0 and 2.  Text such as "101" (label 0 first) and
lists such as [1, 0, 1] are accepted too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolwise.errors import PolicyError, UsageError
from poolwise.log.policy import Batch, draw_index

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scipy.sparse import csr_array

    from poolwise.types import AnyArray, FloatArray

MOST_LABELS = 16  # 65,536 vectors: sums over more of them would be slow
CELLS = 1 << 21  # numbers in memory at once, where all vectors of a context are enumerated
TOLERANCE = 1e-8  # of the gradient; probabilities then repeat to about ten digits

BitArray: TypeAlias = NDArray[np.bool]
Contexts: TypeAlias = "FloatArray | csr_array[Any] | Batch"


def label_vectors(labels: int) -> BitArray:
    """Return every action as a vector, in the order of its bit mask, shape (2^q, q).

    >>> label_vectors(2).astype(int).tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    if not 1 <= labels <= MOST_LABELS:
        raise UsageError(f"a CRF must have 1 to {MOST_LABELS} labels, got {labels}")
    masks = np.arange(2**labels)
    return (masks[:, None] >> np.arange(labels)) & 1 > 0


def to_masks(labels: ArrayLike) -> NDArray[np.int64]:
    """Return label vectors as bit masks.

    >>> to_masks([[1, 0, 1], [0, 1, 0]]).tolist()
    [5, 2]
    """
    bits = np.asarray(labels, dtype=np.int64)
    masks: NDArray[np.int64] = bits @ (1 << np.arange(bits.shape[1]))
    return masks


def to_vectors(actions: AnyArray, labels: int) -> BitArray:
    """Return logged actions as label vectors: from bit masks, text of 0 and 1, or lists.

    >>> to_vectors(np.array(["101", "010"]), 3).astype(int).tolist()
    [[1, 0, 1], [0, 1, 0]]
    """
    if actions.ndim == 2:
        return _whole(actions, actions.shape[1] == labels and np.isin(actions, (0, 1)))
    if actions.dtype.kind in "OUST":
        text = np.array([str(action) for action in actions.tolist()], dtype=np.str_)
        letters = np.array([list(t.rjust(labels, "?")[:labels]) for t in text.tolist()])
        letters = letters.reshape(len(text), labels)
        fits = (np.char.str_len(text) == labels)[:, None] & np.isin(letters, ("0", "1"))
        return _whole(letters == "1", fits)
    inside = (actions >= 0) & (actions < 2**labels) & (actions == np.floor(actions))
    masks = np.where(inside, actions, 0).astype(np.int64)
    return _whole((masks[:, None] >> np.arange(labels)) & 1, inside[:, None])


def count_correct(labels: AnyArray, actions: AnyArray) -> FloatArray:
    """Count the labels that each action assigns correctly: the reward in the paper.

    >>> count_correct(np.array([[1, 0, 1]]), np.array([4])).tolist()  # 4 is [0, 0, 1]
    [2.0]
    """
    bits = to_vectors(actions, labels.shape[1])
    return np.asarray((bits == labels).sum(axis=1), dtype=np.float64)


def _whole(bits: AnyArray, fits: ArrayLike) -> BitArray:
    bad = np.flatnonzero(~np.broadcast_to(fits, bits.shape).all(axis=1))
    if len(bad):
        reason = "needs actions that are label vectors: bit masks, or text of 0 and 1"
        raise PolicyError("CRF", reason, bad[:5].tolist())
    return bits.astype(np.bool)


@dataclass(frozen=True, eq=False)
class LabelPolicy(ABC):
    """Base of all CRFs: linear scores per label, and the methods of a policy.

    Contexts are a matrix, dense or sparse, or a `Batch`, its columns side by side.

    Attributes:
        weights: Shape (q, d).
        biases: Shape (q,).
    """

    weights: FloatArray
    biases: FloatArray

    @property
    def labels(self) -> int:
        """Number of labels, q."""
        return len(self.biases)

    @property
    def actions(self) -> Sequence[int]:
        """All bit masks."""
        return range(2**self.labels)

    def scores(self, contexts: Contexts) -> FloatArray:
        """Return the log-odds of each label without couplings, shape (n, q)."""
        return np.asarray(_matrix(contexts) @ self.weights.T + self.biases)

    def log_prob(self, contexts: Contexts, labels: ArrayLike | None = None) -> FloatArray:
        """Return the log-probability of one label vector per context (default: the logged)."""
        if isinstance(contexts, Batch) and labels is None:
            labels = contexts.action
        if labels is None:
            raise UsageError("labels are required, unless a batch has its logged actions")
        bits, scores = to_vectors(np.asarray(labels), self.labels), self.scores(contexts)
        return np.asarray(self.energy_at(scores, bits) + self.log_none_at(scores))

    def prob(self, batch: Batch) -> FloatArray:
        """Return the probability of the logged actions."""
        return np.exp(self.log_prob(batch))

    def distribution(self, contexts: Contexts) -> FloatArray:
        """Return the probability of every vector, in mask order, shape (n, 2^q)."""
        return np.exp(self.log_distribution_at(self.scores(contexts)))

    def sample(self, contexts: Contexts, rng: np.random.Generator) -> BitArray:
        """Draw one label vector for each context, shape (n, q)."""
        return self.sample_at(self.scores(contexts), rng)

    def energy_at(self, scores: FloatArray, labels: BitArray) -> FloatArray:
        """Return the log of a vector's probability over that of no label."""
        return np.asarray(np.einsum("nq,nq->n", labels.astype(np.float64), scores))

    @abstractmethod
    def log_none_at(self, scores: FloatArray) -> FloatArray:
        """Return the log-probability of assigning no label, shape (n,)."""

    @abstractmethod
    def log_distribution_at(self, scores: FloatArray) -> FloatArray:
        """Return the logarithm of `distribution`, from scores."""

    @abstractmethod
    def sample_at(self, scores: FloatArray, rng: np.random.Generator) -> BitArray:
        """Draw as `sample` does, from scores."""


def _matrix(contexts: Contexts) -> FloatArray:
    if not isinstance(contexts, Batch):
        return cast("FloatArray", contexts)
    blocks = [*contexts.columns.values()]
    if len(blocks) == 1 and not isinstance(blocks[0], np.ndarray):
        return cast("FloatArray", blocks[0])  # a sparse matrix stays sparse
    return contexts.context


@dataclass(frozen=True, eq=False)
class UnaryCRF(LabelPolicy):
    r"""Labels that are independent given the context: one logistic model for each.

    $$\log \pi(y \mid x) = \sum_k y_k s_k - \log(1 + e^{s_k}),
      \qquad s_k = w_k^\top x + b_k$$

    The paper does not state the structure of its CRFs; this is the simplest, and the
    default here.

    Attributes:
        weights: Shape (q, d).
        biases: Shape (q,).

    Examples:
        >>> crf = UnaryCRF(np.array([[1.0], [0.0]]), np.array([0.0, 0.0]))
        >>> crf.distribution(np.array([[0.0]])).tolist()
        [[0.25, 0.25, 0.25, 0.25]]
    """

    @classmethod
    def fit(cls, contexts: Contexts, labels: ArrayLike, *, penalty: float = 1.0) -> UnaryCRF:
        r"""Maximise the likelihood less $\frac{penalty}{2} \lVert w \rVert^2$.

        Biases are not penalised; the penalty is the inverse of scikit-learn's C.  A
        label that is constant in these rows has no finite bias: it gets no weights and
        the log-odds of Laplace's rule, (count + 1) / (n - count + 1).
        """
        matrix, bits = _training(contexts, labels)
        weights = np.zeros((bits.shape[1], matrix.shape[1]))
        biases = _laplace(bits)
        for label in np.flatnonzero(bits.any(axis=0) != bits.all(axis=0)):
            weights[label], biases[label] = _logistic(matrix, bits[:, label], penalty)
        return cls(weights, biases)

    def log_none_at(self, scores: FloatArray) -> FloatArray:
        return np.asarray(-np.logaddexp(0.0, scores).sum(axis=1))

    def log_distribution_at(self, scores: FloatArray) -> FloatArray:
        return _subset_sums(scores, self.log_none_at(scores))

    def sample_at(self, scores: FloatArray, rng: np.random.Generator) -> BitArray:
        with np.errstate(over="ignore"):  # 1 / inf = 0 is right
            return rng.random(scores.shape) < 1 / (1 + np.exp(-scores))


@dataclass(frozen=True, eq=False)
class PairwiseCRF(LabelPolicy):
    r"""Labels with a coupling for each pair of them.

    $$\log \pi(y \mid x) = \sum_k y_k s_k + \sum_{k < l} J_{kl} y_k y_l - \log Z(x)$$

    with $Z$ summed over all $2^q$ vectors, so $q \le 16$.  The couplings $J$ do not
    depend on the context; where they are zero this is a `UnaryCRF`.

    Attributes:
        weights: Shape (q, d).
        biases: Shape (q,).
        couplings: Symmetric, with zeros on the diagonal, shape (q, q).
    """

    couplings: FloatArray

    @classmethod
    def fit(cls, contexts: Contexts, labels: ArrayLike, *, penalty: float = 1.0) -> PairwiseCRF:
        """Maximise the exact conditional likelihood, by L-BFGS.

        Weights and couplings are penalised as in `UnaryCRF.fit`, biases are not; a
        constant label is treated as there, and has no couplings.
        """
        matrix, bits = _training(contexts, labels)
        count, free = bits.shape[1], np.flatnonzero(bits.any(axis=0) != bits.all(axis=0))
        weights, biases = np.zeros((count, matrix.shape[1])), _laplace(bits)
        couplings = np.zeros((count, count))
        if len(free):
            fitted = _fit_pairwise(matrix, bits[:, free], penalty)
            weights[free], biases[free], couplings[np.ix_(free, free)] = fitted
        return cls(weights, biases, couplings)

    @cached_property
    def _company(self) -> FloatArray:
        """Sum of the couplings of each vector, shape (2^q,)."""
        bits = label_vectors(self.labels).astype(np.float64)
        return np.asarray(((bits @ self.couplings) * bits).sum(axis=1) / 2)

    def energy_at(self, scores: FloatArray, labels: BitArray) -> FloatArray:
        bits = labels.astype(np.float64)
        together = np.einsum("nq,nq->n", bits @ self.couplings, bits) / 2
        return np.asarray(super().energy_at(scores, labels) + together)

    def log_none_at(self, scores: FloatArray) -> FloatArray:
        logs = np.empty(len(scores))
        for rows in _slices(len(scores), len(self._company)):
            logs[rows] = -_log_sum(_subset_sums(scores[rows]) + self._company)
        return logs

    def log_distribution_at(self, scores: FloatArray) -> FloatArray:
        energy = _subset_sums(scores)
        energy += self._company
        energy -= _log_sum(energy)[:, None]
        return energy

    def sample_at(self, scores: FloatArray, rng: np.random.Generator) -> BitArray:
        bits = label_vectors(self.labels)
        drawn = np.empty(scores.shape, dtype=np.bool)
        for rows in _slices(len(scores), len(bits)):
            drawn[rows] = bits[draw_index(np.exp(self.log_distribution_at(scores[rows])), rng)]
        return drawn


def _subset_sums(scores: FloatArray, start: FloatArray | float = 0.0) -> FloatArray:
    """Sum the scores of each vector's labels, shape (n, 2^q), by doubling."""
    rows, labels = scores.shape
    sums = np.empty((rows, 2**labels))
    sums[:, 0] = start
    for label in range(labels):
        half = 2**label
        np.add(sums[:, :half], scores[:, label, None], out=sums[:, half : 2 * half])
    return sums


def _log_sum(energy: FloatArray) -> FloatArray:
    largest = energy.max(axis=1)
    return np.asarray(largest + np.log(np.exp(energy - largest[:, None]).sum(axis=1)))


def _slices(rows: int, width: int) -> Iterator[slice]:
    step = max(1, CELLS // width)
    return (slice(first, first + step) for first in range(0, rows, step))


def _training(contexts: Contexts, labels: ArrayLike) -> tuple[FloatArray, BitArray]:
    matrix, bits = _matrix(contexts), np.asarray(labels)
    if bits.ndim != 2 or not np.isin(bits, (0, 1)).all():
        raise UsageError("labels must be a matrix of 0 and 1, one row per context")
    if len(bits) != matrix.shape[0] or not len(bits):
        raise UsageError(f"contexts have {matrix.shape[0]} rows, but labels have {len(bits)}")
    label_vectors(bits.shape[1])
    return matrix, bits.astype(np.bool)


def _laplace(bits: BitArray) -> FloatArray:
    present = bits.sum(axis=0)
    return np.asarray(np.log((present + 1) / (len(bits) - present + 1)))


def _logistic(matrix: FloatArray, bit: BitArray, penalty: float) -> tuple[FloatArray, float]:
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    model = LogisticRegression(C=1 / penalty, tol=TOLERANCE, max_iter=100_000)
    with threadpool_limits(limits=1):  # small products are slower with several threads
        model.fit(matrix, bit)
    return model.coef_[0], float(model.intercept_[0])


def _fit_pairwise(
    matrix: FloatArray, bits: BitArray, penalty: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    from scipy.optimize import minimize

    loss = _PairwiseLoss(matrix, bits.astype(np.float64), penalty)
    pairs = len(loss.pairs[0])
    start = np.concatenate([np.zeros(loss.weights), _laplace(bits), np.zeros(pairs)])
    options = {"maxiter": 10_000, "maxfun": 20_000, "ftol": 1e-13, "gtol": 1e-6}
    # the stubs have only the options that all methods share
    result = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)  # type: ignore[call-overload]
    if np.abs(result.jac).max() > 1e-3 * len(bits):
        raise PolicyError("PairwiseCRF", f"could not be fitted: {result.message}")
    weights, biases, coupling = loss.split(result.x)
    couplings = np.zeros((len(biases), len(biases)))
    couplings[loss.pairs] = coupling
    return weights, biases, couplings + couplings.T


class _PairwiseLoss:
    """Penalised negative log-likelihood and its gradient, of all parameters in a line."""

    def __init__(self, matrix: FloatArray, observed: FloatArray, penalty: float) -> None:
        labels = observed.shape[1]
        self.matrix, self.observed, self.penalty = matrix, observed, penalty
        self.weights = labels * int(matrix.shape[1])  # their number
        self.pairs = left, right = np.triu_indices(labels, 1)
        self._vectors = label_vectors(labels).astype(np.float64)
        self._joint = self._vectors[:, left] * self._vectors[:, right]
        self._seen = (observed[:, left] * observed[:, right]).sum(axis=0)

    def split(self, flat: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return weights, biases and couplings."""
        labels = self.observed.shape[1]
        weights = flat[: self.weights].reshape(labels, -1)
        biases, coupling = np.split(flat[self.weights :], [labels])
        return weights, biases, coupling

    def __call__(self, flat: FloatArray) -> tuple[float, FloatArray]:
        weights, biases, coupling = self.split(flat)
        scores = np.asarray(self.matrix @ weights.T + biases)
        log_z, expected, mass = _expectations(scores, self._joint @ coupling, self._vectors)
        fit = log_z - (self.observed * scores).sum() - self._seen @ coupling
        size = (weights**2).sum() + (coupling**2).sum()
        gap = expected - self.observed
        slope = np.asarray((self.matrix.T @ gap).T) + self.penalty * weights
        by_pair = mass @ self._joint - self._seen + self.penalty * coupling
        gradient = np.concatenate([slope.ravel(), gap.sum(axis=0), by_pair])
        return float(fit + self.penalty / 2 * size), gradient


def _expectations(
    scores: FloatArray, company: FloatArray, vectors: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Return the sum of log Z, each row's mean label vector, and each vector's total mass."""
    log_z, expected, mass = 0.0, np.empty(scores.shape), np.zeros(len(vectors))
    for rows in _slices(len(scores), len(vectors)):
        energy = _subset_sums(scores[rows])
        energy += company
        largest = energy.max(axis=1, keepdims=True)
        prob = np.exp(np.subtract(energy, largest, out=energy), out=energy)
        total = prob.sum(axis=1, keepdims=True)
        prob /= total
        log_z += float(np.log(total).sum() + largest.sum())
        expected[rows] = prob @ vectors
        mass += prob.sum(axis=0)
    return log_z, expected, mass
