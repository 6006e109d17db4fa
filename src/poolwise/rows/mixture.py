"""Estimated mixture: a column in place of cross-propensities that were not logged.

Balanced weights need the probability of each action under the mixture of all loggers,
and often only the row's own propensity is known.  A classifier of the logger that wrote a
row, given context and action, supplies the rest: by Bayes' rule
P(i | x, y) = (n_i / n) pi_i / pi_avg, and pi_i is the row's own propensity.  Known
cross-propensities are used; only the unknown part is estimated.

Without any propensity, the mixture is the regression of the action on the context over all
rows (Li, Munos & Szepesvari, AISTATS 2015): the frequencies of actions in each context, or a
classifier of actions.  All rows are then those of one logger, and the mixture is its
propensity.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import ThreadpoolController

from poolwise.errors import Finding, RefusedError, optional_module
from poolwise.log.policy import get_index
from poolwise.rows.learners import (
    MIXTURE,
    Extra,
    Features,
    Frequencies,
    Learner,
    SklearnModel,
    fit_clone,
    fit_features,
    fit_folds,
    rows_by_fold,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from poolwise.log.log import Log
    from poolwise.rows.learners import LearnerRows
    from poolwise.types import FloatArray, IntArray

ROWS_TO_CALIBRATE = 30  # of the smallest logger: fewer would calibrate on noise
LOWEST_LOG = -30.0  # of a probability as a feature: models reject infinity
# Rows times loggers, and rows; more of either take minutes.
FITTED_WORK, FEWEST_SAMPLED = 1_000_000, 20_000
STEPS, FEWEST_STEPS = 50, 10  # of boosting
MOST_TREES = 400  # of the default classifier: one for each logger and iteration
SAID = 0.9  # share of the rows from which on a sample is not worth a note
ROUNDED = 1e-9  # difference of mean logarithms that is none
LEAST_CHANCE = 1e-6  # lower bound of the probability that the classifier gives to a logger
MOST_CERTAIN = 0.01  # share of rows whose action follows from the context
SURE, MOST_SURPRISES = 0.98, 1e-3  # predicted chance; share of rows that contradict it
FEWEST_SURE = 300  # rows that show that an action follows from the context
MOST_COMPARED = 50_000  # rows in which boosted trees predict actions as well
WORSE = 3.0  # standard errors by which their mean logarithm may be the larger one
MISFIT = "propensities-misfit"  # code of the finding that forbids a verdict
Posterior = Callable[["FloatArray"], "FloatArray"]


def mixture_extra(log: Log) -> Extra:
    """Return the column of a logged or an estimated mixture, if the log needs one.

    Estimated propensities are the propensity of an only logger, the mixture.
    """
    if log.mixture is not None:
        return Extra(mixture=log.mixture)
    if log.estimated:
        return Extra(learners=(propensity_learner(log.estimate_mixture),))
    if not log.needs_classifier:
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
    of_own = posterior[rows, label] / np.maximum(of_unknown, LEAST_CHANCE)
    chance = np.where(unknown[label], of_own, 1 - of_unknown)
    log_chance = np.log(chance.clip(LEAST_CHANCE, 1.0))
    with_own = np.logaddexp(covered, np.log(share[label]) + own - log_chance)
    mixture = np.where(unknown[label], with_own, covered - log_chance)
    upper = np.logaddexp(covered, np.log(max(share[unknown].sum(), LEAST_CHANCE)))
    return np.minimum(mixture, upper), int((chance < LEAST_CHANCE).sum())


def fit_mixture(
    classifier: SklearnModel | None, sample: LearnerRows, counts: Mapping[str, int]
) -> FittedMixture:
    """Fit a classifier of loggers for each fold; None is the default classifier."""
    labels = tuple(sorted(counts))
    share = np.array([counts[label] for label in labels]) / sum(counts.values())
    features = fit_features(sample.batch, sample.features, numeric=sample.densities)
    matrix, code = _stack_features(features, sample), get_index(labels, sample.label)
    taken = sample_folds(sample.fold, max(FEWEST_SAMPLED, FITTED_WORK // len(labels)))
    matrix, code, fold = matrix[taken], code[taken], sample.fold[taken]
    models = fit_folds(
        fold,
        lambda rows: fit_posterior(classifier, matrix[rows], code[rows], len(labels)),
        threads=os.cpu_count() or 1,
    )
    part = (len(fold), sum(counts.values()))
    return FittedMixture(features, models, labels, share, part)


def sample_folds(fold: IntArray, most: int) -> IntArray:
    """Return the rows of at most about `most`, an equal share of each fold.

    >>> sample_folds(np.array([0, 1, 0, 1, 0, 1, 0, 1]), 4).tolist()
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


def _stack_features(features: Features, rows: LearnerRows) -> FloatArray:
    """Return context, action and known cross-propensities, the best features of all."""
    crossed = [values.clip(min=LOWEST_LOG) for values in rows.propensities.values()]
    return np.column_stack([features.matrix(rows.batch), *crossed])


def fit_posterior(
    classifier: SklearnModel | None,
    matrix: FloatArray,
    code: IntArray,
    size: int,
    kind: str = "loggers",
) -> Posterior:
    """Fit a calibrated classifier of loggers; it returns probabilities, shape (n, size)."""
    present, counts = np.unique(code, return_counts=True)
    if len(present) < 2:
        share = np.bincount(code, minlength=size) / max(1, len(code))
        return lambda rows: np.broadcast_to(share, (len(rows), size))
    calibrated = calibrated_classifier(classifier, counts)
    with one_thread():
        model = fit_clone(f"classifier of {kind}", calibrated, matrix, code)

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
        clipped: Number of probabilities that were raised to `LEAST_CHANCE`, by batch.
    """

    features: Features
    models: Mapping[int, Posterior]
    labels: tuple[str, ...]
    share: FloatArray
    part: tuple[int, int]
    clipped: list[int] = field(default_factory=list)  # batches run in threads; append is atomic

    def __call__(self, rows: LearnerRows) -> dict[str, FloatArray]:
        matrix = _stack_features(self.features, rows)
        posterior = np.tile(self.share, (len(rows), 1))  # for folds without a model
        for fold, chosen in rows_by_fold(rows.fold):
            if fold in self.models:
                posterior[chosen] = self.models[fold](matrix[chosen])
        crossed = {self.labels.index(k): values for k, values in rows.propensities.items()}
        label = get_index(self.labels, rows.label).clip(min=0)  # NULL is reported as a fault
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
            f"probability below {LEAST_CHANCE:g}, which was raised to that.",
            "Give the classifier more rows, or log the loggers' probabilities.",
        )
        return (*(sampled,) * (fitted < SAID * total), *(clipped,) * (rows > 0))


# Without any propensity: the action, given the context.


def propensity_learner(classifier: SklearnModel | bool) -> Learner:  # noqa: FBT001 - as given
    """Return the learner of the propensities of a log that has none.

    Args:
        classifier: Classifier of actions, True for the default, or False for the frequencies.
    """
    if classifier is False:
        return Learner("propensities", (MIXTURE,), fit_frequencies)
    chosen = None if classifier is True else classifier
    return Learner("propensities", (MIXTURE,), partial(fit_actions, chosen))


def fit_frequencies(sample: LearnerRows, counts: Mapping[str, int]) -> FittedFrequencies:
    """Divide the rows of each action in a context by the rows of the context.

    All rows count, without folds: an estimate then equals the mean over contexts of the
    target's mean of the observed rewards.
    """
    del counts
    if sample.frequencies is None:
        raise ValueError("frequencies are those of a whole log")
    table = sample.frequencies()
    _, place, actions = np.unique(table.context, return_inverse=True, return_counts=True)
    total = np.bincount(place, table.rows)
    certain = int(total[actions == 1].sum())
    refuse_certain(certain, int(total.sum()), sample.features)
    return FittedFrequencies(table, table.rows / total[place], certain)


def refuse_certain(certain: int, total: int, columns: Sequence[str]) -> None:
    """Raise RefusedError if the action follows from the context in too many rows."""
    if certain <= MOST_CERTAIN * total:
        return
    named = ", ".join(map(repr, columns))
    raise RefusedError(
        "propensities-refused",
        f"propensities='estimate' requires rows in which another action was possible, and in "
        f"{certain:,} of {total:,} rows the context ({named}) has one action only. If a column "
        "has many values, put them into bins, or give a classifier of the action as "
        "`estimate_mixture` (--estimate-mixture logistic). If the loggers played by a fixed "
        "rule, these rows do not say what other actions earn: play some actions at random, and "
        "log their probabilities.",
    )


@dataclass(frozen=True, eq=False)
class FittedFrequencies:
    """Frequencies of actions in each context; a `rows.learners.Fitted`.

    Attributes:
        table: Rows of each context and action.
        chance: Probability of each action in its context.
        certain: Rows of contexts with a single action.
    """

    table: Frequencies
    chance: FloatArray
    certain: int

    def __call__(self, rows: LearnerRows) -> dict[str, FloatArray]:
        played = np.asarray(rows.played)
        place = np.searchsorted(self.table.played, played).clip(max=len(self.chance) - 1)
        found = self.table.played[place] == played
        chance = np.where(found, self.chance[place], 1.0)  # of bad rows, reported as such
        return {MIXTURE: np.log(chance) if rows.logs else chance}

    def findings(self) -> tuple[Finding, ...]:
        finding = Finding(
            "context-certain",
            f"{self.certain:,} of {int(self.table.rows.sum()):,} rows have a context in which "
            "one action was played only: what another action would earn there is unknown.",
            "Leave out `context` columns with many values, or put their values into bins.",
        )
        return (finding,) * (self.certain > 0)


def fit_actions(
    classifier: SklearnModel | None, sample: LearnerRows, counts: Mapping[str, int]
) -> FittedActions:
    """Fit a classifier of actions for each fold; None is a logistic regression."""
    classifier = linear_classifier() if classifier is None else classifier
    features = fit_features(sample.batch, sample.features)
    code = features.index(sample.batch.action)
    size = len(features.actions)
    taken = sample_folds(sample.fold, max(FEWEST_SAMPLED, FITTED_WORK // size))
    taken = taken[code[taken] >= 0]
    matrix, code, fold = features.context(sample.batch)[taken], code[taken], sample.fold[taken]
    share = np.bincount(code, minlength=size) / len(code)

    def fit(chosen: SklearnModel | None, some: IntArray) -> FittedActions:
        models = fit_folds(
            fold[some],
            lambda rows: fit_posterior(
                chosen, matrix[some][rows], code[some][rows], size, "actions"
            ),
            threads=os.cpu_count() or 1,
        )
        return FittedActions(features, models, share, (len(fold), sum(counts.values())))

    fitted = fit(classifier, np.arange(len(fold)))
    chances = fitted.chances(matrix, fold)
    refuse_certain(count_certain(chances, code), len(code), sample.features)
    some = sample_folds(fold, MOST_COMPARED)
    trees = fit(None, some).chances(matrix[some], fold[some])
    return replace(fitted, misfit=predict_worse(chances[some], trees, code[some]))


def predict_worse(chances: FloatArray, others: FloatArray, code: IntArray) -> bool:
    """Test if the mean logarithm of the played action's chance is significantly lower.

    >>> code = np.arange(100) % 2
    >>> right, coin = np.eye(2)[code] * 0.6 + 0.2, np.full((100, 2), 0.5)
    >>> predict_worse(coin, right, code), predict_worse(right, coin, code)
    (True, False)
    """
    rows = np.arange(len(code))
    gains = np.log(
        others[rows, code].clip(LEAST_CHANCE) / chances[rows, code].clip(LEAST_CHANCE)
    )
    return bool(gains.mean() > WORSE * gains.std() / np.sqrt(len(gains)) + ROUNDED)


def linear_classifier() -> SklearnModel:
    """Return the default classifier of actions: of those measured, the most honest one."""
    optional_module("sklearn.pipeline", "scikit-learn", "sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))


def count_certain(chances: FloatArray, code: IntArray) -> int:
    """Return the rows whose action follows from their context, by predictions.

    Of the rows with the surest predictions, these are the most that nearly all have the
    predicted action; fewer than `FEWEST_SURE` may be chance.

    >>> count_certain(np.array([[0.99, 0.01]] * 4), np.array([0, 0, 0, 1]))
    3
    >>> count_certain(np.array([[0.99, 0.01]] * 4), np.array([0, 0, 0, 0]))
    4
    """
    sure = np.flatnonzero(chances.max(axis=1) >= SURE)
    sure = sure[np.argsort(-chances[sure].max(axis=1), kind="stable")]
    surprises = np.cumsum(chances[sure].argmax(axis=1) != code[sure])
    few = np.flatnonzero(surprises <= MOST_SURPRISES * np.arange(1, len(sure) + 1))
    certain = int(few.max(initial=-1)) + 1
    return certain if certain >= min(FEWEST_SURE, (len(code) + 1) // 2) else 0


@dataclass(frozen=True, eq=False)
class FittedActions:
    """Classifiers of actions by fold; a `rows.learners.Fitted`.

    Attributes:
        features: Turns context into a matrix.
        models: Classifier for the rows of each fold, fitted to the others.
        share: Share of each action in the rows.
        part: Rows that the classifiers were fitted to, and all rows.
        misfit: Boosted trees predict actions better.
        clipped: Number of probabilities that were raised to `LEAST_CHANCE`, by batch.
    """

    features: Features
    models: Mapping[int, Posterior]
    share: FloatArray
    part: tuple[int, int]
    misfit: bool = False
    clipped: list[int] = field(default_factory=list)

    def chances(self, matrix: FloatArray, folds: IntArray) -> FloatArray:
        """Return the probability of every action, by a model that has not seen the row.

        An action that no other fold played has its share of the rows.
        """
        chances = np.tile(self.share, (len(matrix), 1))
        for fold, chosen in rows_by_fold(folds):
            if fold in self.models:
                found = self.models[fold](matrix[chosen])
                found = np.where(found.max(axis=0) > 0, found, self.share)
                chances[chosen] = found / found.sum(axis=1, keepdims=True)
        return chances

    def __call__(self, rows: LearnerRows) -> dict[str, FloatArray]:
        code = self.features.index(rows.batch.action)
        chances = self.chances(self.features.context(rows.batch), rows.fold)
        chance = chances[np.arange(len(code)), code]
        self.clipped.append(int((chance[code >= 0] < LEAST_CHANCE).sum() + (code < 0).sum()))
        chance = np.where(code < 0, LEAST_CHANCE, chance.clip(min=LEAST_CHANCE))
        missing = np.array([label is None for label in rows.batch.action.tolist()], dtype=bool)
        chance[missing] = np.nan
        return {MIXTURE: np.log(chance) if rows.logs else chance}

    def findings(self) -> tuple[Finding, ...]:
        fitted, total = self.part
        rows = sum(self.clipped)
        classified = Finding(
            "propensities-classified",
            "The propensities are predictions of a classifier, whose errors are in no "
            "interval: with boosted trees, 95% intervals covered as few as 50% of the values "
            "(docs/without-propensities.md).",
            "Prefer a logistic regression, or put the context into bins and take frequencies.",
        )
        misfit = Finding(
            MISFIT,
            "The classifier misses how the context decided the action: boosted trees predict "
            "the actions of rows that they have not seen better. The propensities are wrong "
            "somewhere, by an error that is in no interval.",
            "Put the context into bins and take frequencies, or give the classifier what it "
            "lacks: bins, squares and products of the context.",
            severity="alarm",
        )
        sampled = Finding(
            "propensities-sample",
            f"The propensities were estimated from a sample of {fitted:,} of {total:,} rows.",
            severity="note",
        )
        clipped = Finding(
            "propensities-clipped",
            f"In {rows:,} rows the classifier gave the logged action a probability below "
            f"{LEAST_CHANCE:g}, which was raised to that.",
            "Give the classifier more rows, or leave out rare actions.",
        )
        return (
            classified,
            *(misfit,) * self.misfit,
            *(clipped,) * (rows > 0),
            *(sampled,) * (fitted < SAID * total),
        )
