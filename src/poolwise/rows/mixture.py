"""Estimated mixture: a column in place of cross-propensities that were not logged.

Balanced weights need the probability of each action under the mixture of all loggers,
and often only the row's own propensity is known.  A classifier of the logger that wrote a
row, given context and action, supplies the rest: by Bayes' rule
P(i | x, y) = (n_i / n) pi_i / pi_avg, and pi_i is the row's own propensity.  Known
cross-propensities are used; only the unknown part is estimated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import ThreadpoolController

from poolwise.errors import Finding, optional_module
from poolwise.log.policy import index_of
from poolwise.rows.learners import (
    MIXTURE,
    Extra,
    Features,
    Learner,
    SklearnModel,
    fit_clone,
    fit_features,
    fit_folds,
    rows_by_fold,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from poolwise.log.log import Log
    from poolwise.log.policy import FloatArray, IntArray
    from poolwise.rows.learners import LearnerRows

ROWS_TO_CALIBRATE = 30  # of the smallest logger: fewer would calibrate on noise
LOWEST_LOG = -30.0  # of a probability as a feature: models reject infinity
FITTED_WORK, FEWEST_ROWS = 1_000_000, 20_000  # rows times loggers; more of either take minutes
STEPS, FEWEST_STEPS = 50, 10  # of boosting
MOST_TREES = 400  # of the default classifier: one for each logger and iteration
SAID = 0.9  # share of the rows from which on a sample is not worth a note
LEAST = 1e-6  # lower bound of the probability that the classifier gives to a logger
Posterior = Callable[["FloatArray"], "FloatArray"]


def mixture_extra(log: Log) -> Extra:
    """Return the column of a logged or an estimated mixture, if the log needs one."""
    if log.mixture is not None:
        return Extra(mixture=log.mixture)
    if log.estimate_mixture is False or log.crossed:
        return Extra()
    classifier = None if log.estimate_mixture is True else log.estimate_mixture
    learner = Learner("mixture", (MIXTURE,), partial(fit_mixture, classifier))
    return Extra(mixture=MIXTURE, learners=(learner,))


def learner_extra(log: Log) -> Extra:
    """Return the same for a learner, which reads actions and context in any case."""
    return replace(mixture_extra(log), learning=True)


def log_mixture(
    own: FloatArray,
    label: IntArray,
    posterior: FloatArray,
    share: FloatArray,
    crossed: Mapping[int, FloatArray],
) -> tuple[FloatArray, int]:
    r"""Return the log of the mixture at each row, and the number of clipped posteriors.

    A row of an unknown logger $u$ has $\pi_{avg} = A + \alpha_u p_u / P(u | x, y, U)$, with
    $A = \sum_k \alpha_k \pi_k$ over the known loggers and $U$ the unknown ones.  A row of a
    known logger has $\pi_{avg} = A / P(known | x, y)$.  The unknown loggers add at most
    $\sum_U \alpha_u$, for any classifier.

    Args:
        own: Logarithm of the row's own propensity, shape (n,).
        label: Index of the row's logger, shape (n,).
        posterior: Probability that each logger wrote the row, shape (n, J).
        share: Share of each logger in the rows, shape (J,).
        crossed: Log-probabilities under the known loggers, by index.
    """
    rows = np.arange(len(own))
    unknown = np.array([k not in crossed for k in range(len(share))])
    parts = [np.log(share[k]) + values for k, values in crossed.items()]
    covered = np.logaddexp.reduce([np.full(len(own), -np.inf), *parts], axis=0)
    of_unknown = posterior[:, unknown].sum(axis=1)
    of_own = posterior[rows, label] / np.maximum(of_unknown, LEAST)
    chance = np.where(unknown[label], of_own, 1 - of_unknown)
    log_chance = np.log(chance.clip(LEAST, 1.0))
    with_own = np.logaddexp(covered, np.log(share[label]) + own - log_chance)
    mixture = np.where(unknown[label], with_own, covered - log_chance)
    upper = np.logaddexp(covered, np.log(max(share[unknown].sum(), LEAST)))
    return np.minimum(mixture, upper), int((chance < LEAST).sum())


def fit_mixture(
    classifier: SklearnModel | None, sample: LearnerRows, counts: Mapping[str, int]
) -> FittedMixture:
    """Fit a classifier of loggers for each fold; None is the default classifier."""
    labels = tuple(sorted(counts))
    share = np.array([counts[label] for label in labels]) / sum(counts.values())
    features = fit_features(sample.batch, sample.features, numeric=sample.densities)
    matrix, code = _matrix(features, sample), index_of(labels, sample.label)
    taken = sample_of(sample.fold, max(FEWEST_ROWS, FITTED_WORK // len(labels)))
    matrix, code, fold = matrix[taken], code[taken], sample.fold[taken]
    models = fit_folds(
        fold,
        lambda rows: fit_posterior(classifier, matrix[rows], code[rows], len(labels)),
        threads=os.cpu_count() or 1,
    )
    part = (len(fold), sum(counts.values()))
    return FittedMixture(features, models, labels, share, part)


def sample_of(fold: IntArray, most: int) -> IntArray:
    """Return the rows of at most about `most`, an equal share of each fold.

    >>> sample_of(np.array([0, 1, 0, 1, 0, 1, 0, 1]), 4).tolist()
    [0, 1, 4, 5]
    """
    step = -(-len(fold) // most)
    rows = [np.flatnonzero(fold == k)[::step] for k in np.unique(fold)]
    return np.sort(np.concatenate(rows))


def one_thread() -> AbstractContextManager[object]:
    """Limit OpenMP in this thread: folds and batches have threads of their own.

    Threads of OpenMP wait in a loop, and on busy cores that takes many times the work.
    """
    limited: AbstractContextManager[object] = _openmp().limit(limits=1)
    return limited


@cache
def _openmp() -> ThreadpoolController:
    """Return OpenMP as scikit-learn uses it; to look for libraries takes time."""
    optional_module("sklearn.calibration", "scikit-learn", "sklearn")
    return ThreadpoolController().select(user_api="openmp")


def _matrix(features: Features, rows: LearnerRows) -> FloatArray:
    """Return context, action and known cross-propensities, the best features of all."""
    crossed = [values.clip(min=LOWEST_LOG) for values in rows.propensities.values()]
    return np.column_stack([features.matrix(rows.batch), *crossed])


def fit_posterior(
    classifier: SklearnModel | None, matrix: FloatArray, code: IntArray, size: int
) -> Posterior:
    """Fit a calibrated classifier of loggers; it returns probabilities, shape (n, size)."""
    present, counts = np.unique(code, return_counts=True)
    if len(present) < 2:
        share = np.bincount(code, minlength=size) / max(1, len(code))
        return lambda rows: np.broadcast_to(share, (len(rows), size))
    calibrated = calibrated_classifier(classifier, counts)
    with one_thread():
        model = fit_clone("classifier of loggers", calibrated, matrix, code)

    def posterior(rows: FloatArray) -> FloatArray:
        probs = np.zeros((len(rows), size))
        with one_thread():
            probs[:, model.classes_] = model.predict_proba(rows)
        return probs

    return posterior


def calibrated_classifier(classifier: SklearnModel | None, counts: IntArray) -> SklearnModel:
    """Return the classifier, calibrated if the rarest logger has enough rows.

    The default classifier of many loggers has fewer and larger steps, and one copy instead
    of three: prediction takes the time of all its trees.
    """
    sklearn = optional_module("sklearn.calibration", "scikit-learn", "sklearn")
    steps = min(STEPS, max(FEWEST_STEPS, MOST_TREES // len(counts)))
    if classifier is None:
        from sklearn.ensemble import HistGradientBoostingClassifier

        classifier = HistGradientBoostingClassifier(
            max_iter=steps,
            learning_rate=0.1 * STEPS / steps,
            max_leaf_nodes=15,
            early_stopping=False,
        )
    calibrated = sklearn.CalibratedClassifierCV
    if counts.min() < ROWS_TO_CALIBRATE or isinstance(classifier, calibrated):
        return classifier
    return calibrated(classifier, method="sigmoid", cv=3, ensemble=steps == STEPS)


@dataclass(frozen=True, eq=False)
class FittedMixture:
    """Classifiers by fold; a `rows.learners.Fitted`.

    Attributes:
        features: Turns rows into a matrix.
        models: Classifier for the rows of each fold, fitted to the others.
        labels: Loggers in the order of the classifier's columns.
        share: Share of each logger in the rows, shape (J,).
        part: Rows that the classifiers were fitted to, and all rows.
        clipped: Number of probabilities that were raised to `LEAST`, by batch.
    """

    features: Features
    models: Mapping[int, Posterior]
    labels: tuple[str, ...]
    share: FloatArray
    part: tuple[int, int]
    clipped: list[int] = field(default_factory=list)  # batches run in threads; append is atomic

    def __call__(self, rows: LearnerRows) -> dict[str, FloatArray]:
        matrix = _matrix(self.features, rows)
        posterior = np.tile(self.share, (len(rows), 1))  # for folds without a model
        for fold, chosen in rows_by_fold(rows.fold):
            if fold in self.models:
                posterior[chosen] = self.models[fold](matrix[chosen])
        crossed = {self.labels.index(k): values for k, values in rows.propensities.items()}
        label = index_of(self.labels, rows.label).clip(min=0)  # NULL is reported as a fault
        logs, clipped = log_mixture(rows.propensity, label, posterior, self.share, crossed)
        self.clipped.append(clipped)
        return {MIXTURE: logs if rows.logs else np.exp(logs)}

    def findings(self) -> tuple[Finding, ...]:
        fitted, total = self.part
        rows = sum(self.clipped)
        sampled = Finding(
            "mixture-sample",
            f"The mixture was estimated from a sample of {fitted:,} of {total:,} rows.",
            severity="note",
        )
        clipped = Finding(
            "mixture-clipped",
            f"In {rows:,} rows the classifier gave the logger that wrote the row a "
            f"probability below {LEAST:g}, which was raised to that.",
            "Give the classifier more rows, or log the loggers' probabilities.",
        )
        return (*(sampled,) * (fitted < SAID * total), *(clipped,) * (rows > 0))
