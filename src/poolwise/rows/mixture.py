"""Estimated mixture: cross-propensities that nobody logged.

Balanced weights need the probability of each action under the mixture of all loggers,
and often only the row's own propensity is known.  A classifier of *which logger wrote
this row*, given context and action, supplies the rest: by Bayes' rule
P(i | x, y) = (n_i / n) pi_i / pi_avg, and pi_i is the row's own propensity.  Loggers
whose probabilities are known stay known; only the unknown part is estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.errors import Finding, MissingExtraError, ModelError
from poolwise.log.policy import index_of
from poolwise.rows.features import Features, fit_features, other_folds
from poolwise.rows.learn import Extra

if TYPE_CHECKING:
    from poolwise.log.log import Log
    from poolwise.log.policy import FloatArray, IntArray
    from poolwise.rows.learn import Piece

MIXTURE = "poolwise_mixture"
FOLDS = 5
FITTED_ROWS = 200_000
ROWS_TO_CALIBRATE = 30  # of the rarest logger: fewer would calibrate on noise
LOWEST_LOG = -30.0  # of a probability, as a feature: models refuse infinity
LEAST = 1e-6  # probability of a logger below which the classifier is not believed
Classifier = Any  # in the manner of scikit-learn
Posterior = Callable[["FloatArray"], "FloatArray"]


def mixture_extra(log: Log) -> Extra:
    """What a mixture adds that is given or estimated; nothing where it is known."""
    if log.mixture is not None:
        return Extra(mixture=log.mixture)
    if log.estimate_mixture is False or log.crossed:
        return Extra()
    chosen = None if log.estimate_mixture is True else log.estimate_mixture
    return Extra(mixture=MIXTURE, learners=(MixtureLearner(known_loggers(log), chosen),))


def known_loggers(log: Log) -> tuple[str, ...]:
    """Loggers whose probability of every row is known."""
    return tuple(str(k) for k, v in (log.propensities or {}).items() if v is not None)


def log_mixture(
    own: FloatArray,
    label: IntArray,
    posterior: FloatArray,
    share: FloatArray,
    known: Mapping[int, FloatArray],
) -> tuple[FloatArray, int]:
    r"""Logarithm of the mixture at each row, and how often the classifier was cut.

    A row of an unknown logger $u$ has $\pi_{avg} = A + \alpha_u p_u / P(u | x, y, U)$, with
    $A = \sum_k \alpha_k \pi_k$ over the known loggers and $U$ the unknown ones.  A row of a
    known logger has $\pi_{avg} = A / P(known | x, y)$.  What is not known adds at most
    $\sum_U \alpha_u$, whatever the classifier says.

    Args:
        own: Logarithm of the row's own propensity, shape (n,).
        label: Logger of each row, shape (n,).
        posterior: Probability that each logger wrote the row, shape (n, J).
        share: Part of each logger in the rows, shape (J,).
        known: Log-probabilities under the known loggers, by number.
    """
    rows = np.arange(len(own))
    unknown = np.array([k not in known for k in range(len(share))])
    parts = [np.log(share[k]) + values for k, values in known.items()]
    covered = np.logaddexp.reduce([np.full(len(own), -np.inf), *parts], axis=0)
    of_unknown = posterior[:, unknown].sum(axis=1)
    mine = unknown[label]
    chance = np.where(
        mine, posterior[rows, label] / np.maximum(of_unknown, LEAST), 1 - of_unknown
    )
    cut = int((chance < LEAST).sum())
    chance = chance.clip(LEAST, 1.0)
    rest = np.log(share[label]) + own - np.log(chance)
    found = np.where(mine, np.logaddexp(covered, rest), covered - np.log(chance))
    most = np.logaddexp(covered, np.log(max(share[unknown].sum(), LEAST)))
    return np.minimum(found, most), cut


@dataclass(frozen=True, eq=False)
class MixtureLearner:
    """Fits a classifier of loggers; an `rows.learn.Learner`.

    Attributes:
        known: Loggers whose probabilities are known.
        classifier: In the manner of scikit-learn; None for the default.
        folds: Every row is classified by a model that saw the other folds only.
        rows: Rows to fit to at most.
    """

    known: tuple[str, ...]
    classifier: Classifier | None = None
    folds: int = FOLDS
    rows: int = FITTED_ROWS

    @property
    def columns(self) -> tuple[str, ...]:
        return (MIXTURE,)

    def fit(self, sample: Piece, counts: Mapping[str, int]) -> FittedMixture:
        labels = tuple(sorted(counts))
        features = fit_features(sample.batch, sample.features)
        matrix = _matrix(features, sample)
        code = index_of(labels, sample.label)
        models = {
            fold: fit_posterior(self.classifier, matrix[rows], code[rows], len(labels))
            for fold, rows in other_folds(sample.fold)
        }
        share = np.array([counts[i] for i in labels]) / sum(counts.values())
        return FittedMixture(features, models, labels, share)


def _matrix(features: Features, piece: Piece) -> FloatArray:
    """Context, action, and what is known of the loggers, which tells the most."""
    joined = features.join(features.context(piece.batch), features.place(piece.batch.action))
    known = [values.clip(min=LOWEST_LOG) for values in piece.known.values()]
    return np.column_stack([joined, *known])


def fit_posterior(
    classifier: Classifier | None, matrix: FloatArray, code: IntArray, size: int
) -> Posterior:
    """A calibrated classifier of loggers: probabilities, shape (n, size)."""
    present, counts = np.unique(code, return_counts=True)
    share = np.bincount(code, minlength=size) / max(1, len(code))
    if len(present) < 2:
        return lambda rows: np.broadcast_to(share, (len(rows), size))
    model = _calibrated(classifier, int(counts.min()))
    try:
        model.fit(matrix, code)
    except Exception as error:
        raise ModelError("classifier of loggers", f"could not be fitted: {error}") from error

    def posterior(rows: FloatArray) -> FloatArray:
        found = np.zeros((len(rows), size))
        found[:, model.classes_] = model.predict_proba(rows)
        return found

    return posterior


def _calibrated(classifier: Classifier | None, rarest: int) -> Classifier:
    """The classifier with its probabilities corrected, where rows suffice for that."""
    try:
        from sklearn.base import clone
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "sklearn") from error
    if classifier is None:
        classifier = HistGradientBoostingClassifier(
            max_iter=50, max_leaf_nodes=15, early_stopping=False
        )
    if rarest < ROWS_TO_CALIBRATE or isinstance(classifier, CalibratedClassifierCV):
        return clone(classifier)
    return CalibratedClassifierCV(clone(classifier), method="sigmoid", cv=3)


@dataclass(frozen=True, eq=False)
class FittedMixture:
    """Classifiers by fold; an `rows.learn.Fitted`.

    Attributes:
        features: How rows become a matrix.
        models: The classifier for the rows of each fold, fitted to the others.
        labels: Loggers in the order of the classifier's columns.
        share: Part of each logger in the rows, shape (J,).
        cut: How often a probability had to be cut, batch by batch.
    """

    features: Features
    models: Mapping[int, Posterior]
    labels: tuple[str, ...]
    share: FloatArray
    cut: list[int] = field(default_factory=list)  # append is atomic: batches run in threads

    def __call__(self, piece: Piece) -> dict[str, FloatArray]:
        matrix = _matrix(self.features, piece)
        posterior = np.tile(self.share, (len(piece), 1))
        for fold, model in self.models.items():
            rows = np.flatnonzero(piece.fold == fold)
            if len(rows):
                posterior[rows] = model(matrix[rows])
        known = {self.labels.index(label): values for label, values in piece.known.items()}
        label = index_of(self.labels, piece.label).clip(min=0)  # null: reported as a fault
        found, cut = log_mixture(piece.propensity, label, posterior, self.share, known)
        self.cut.append(cut)
        return {MIXTURE: found if piece.logs else np.exp(found)}

    def findings(self) -> tuple[Finding, ...]:
        return (_cut(sum(self.cut)),) if sum(self.cut) else ()


def _cut(rows: int) -> Finding:
    return Finding(
        "mixture-clipped",
        f"In {rows:,} rows the classifier all but excluded the logger that wrote the row; its "
        f"probability was raised to {LEAST:g}.",
        "Give the classifier more rows, or log the loggers' probabilities.",
    )
