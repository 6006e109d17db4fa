"""Reward models: what every action would have earned, as far as rows can tell.

A model is fitted to a sample of the rows, fold by fold, and then asked about each row
by the one that did not see it.  That makes doubly robust estimates unbiased whatever
the model is.  The target's full distribution over actions is asked batch by batch and
never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.errors import Finding, MissingExtraError, ModelError, RefusedError, UsageError
from poolwise.log.policies import as_policy
from poolwise.log.policy import Batch, Distribution, FloatArray, IntArray, is_distribution
from poolwise.rows.features import Features, fit_features, other_folds
from poolwise.rows.learn import Extra
from poolwise.rows.score import checked_distribution

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from poolwise.log.policy import PolicyLike
    from poolwise.rows.learn import Piece

PREDICTED_REWARD, PREDICTED_VALUE = "poolwise_predicted_reward", "poolwise_predicted_value"
FOLDS = 5
FITTED_ROWS = 200_000  # more rows rarely make a better model, but always a slower one
CELLS = 1 << 22  # numbers in one matrix of features: 32 MB
Predict = Callable[[FloatArray], FloatArray]
SklearnModel = Any  # a regressor or classifier in the manner of scikit-learn


@dataclass(frozen=True)
class GivenModel:
    """A reward model whose predictions are columns of the log already.

    It must not have seen the rows that it predicts.

    Attributes:
        predicted_reward: Column or SQL expression: what the logged action was expected
            to earn.
        predicted_value: The same of each target, by name: the mean prediction over the
            target's actions. One alone serves the only target.
    """

    predicted_reward: str
    predicted_value: Mapping[str, str] | str


@dataclass(frozen=True, eq=False)
class RewardModel:
    """A reward model to be fitted to the log, cross-fitted over folds.

    Attributes:
        model: Any scikit-learn regressor; or a classifier, where rewards are 0 or 1.
        folds: Every row is predicted by a model that saw the other folds only.
        rows: Rows to fit to at most; more are sampled evenly.
        interactions: Let every context column speak for each action on its own, which
            linear models need.
    """

    model: SklearnModel
    folds: int = FOLDS
    rows: int = FITTED_ROWS
    interactions: bool = False

    def __post_init__(self) -> None:
        if not (hasattr(self.model, "fit") and hasattr(self.model, "predict")):
            raise UsageError(
                f"{self.model!r} is no reward model: give a regressor or a classifier of "
                "scikit-learn"
            )
        if self.folds < 2 or self.rows < 1:
            raise UsageError("a reward model needs two folds at least, and rows to fit to")


ModelLike = RewardModel | GivenModel | SklearnModel


def model_extra(model: ModelLike, targets: Mapping[str, PolicyLike]) -> Extra:
    """What a reward model adds to the rows; refuses targets that it cannot serve."""
    if isinstance(model, GivenModel):
        return _given(model, targets)
    wanted = model if isinstance(model, RewardModel) else RewardModel(model)
    policies = {name: as_policy(target) for name, target in targets.items()}
    known = {name: p for name, p in policies.items() if is_distribution(p)}
    unknown = [repr(name) for name in targets if name not in known]
    if unknown:
        raise RefusedError(
            "model-refused",
            f"a reward model needs the probability of every action under target "
            f"{', '.join(unknown)}, not only of the logged one. Give a policy that knows its "
            "actions (a classifier, a Softmax, a Table), or the predictions themselves: "
            "GivenModel(predicted_reward='q', predicted_value={'candidate': 'v'}).",
        )
    names = {name: f"{PREDICTED_VALUE}_{k}" for k, name in enumerate(targets)}
    learner = RewardLearner(wanted, {names[name]: policy for name, policy in known.items()})
    return Extra(PREDICTED_REWARD, names, learners=(learner,))


def _given(model: GivenModel, targets: Mapping[str, PolicyLike]) -> Extra:
    values = model.predicted_value
    if isinstance(values, str):
        if len(targets) > 1:
            raise UsageError("`predicted_value` needs one column for each target, by name")
        values = dict.fromkeys(targets, values)
    missing = [repr(name) for name in targets if name not in values]
    if missing:
        raise RefusedError(
            "model-refused", f"`predicted_value` has no column for target {', '.join(missing)}"
        )
    return Extra(model.predicted_reward, {name: values[name] for name in targets})


@dataclass(frozen=True, eq=False)
class RewardLearner:
    """Fits a reward model; an `rows.learn.Learner`.

    Attributes:
        settings: What to fit, and how.
        targets: Policies that know all their actions, by the column of their value.
    """

    settings: RewardModel
    targets: Mapping[str, Distribution]

    @property
    def folds(self) -> int:
        return self.settings.folds

    @property
    def rows(self) -> int:
        return self.settings.rows

    @property
    def columns(self) -> tuple[str, ...]:
        return (PREDICTED_REWARD, *self.targets)

    def fit(self, sample: Piece, counts: Mapping[str, int]) -> FittedReward:
        features = fit_features(
            sample.batch, sample.features, interactions=self.settings.interactions
        )
        _check_actions(self.targets, features)
        matrix = features.join(
            features.context(sample.batch), features.place(sample.batch.action)
        )
        models = {
            fold: fit_one(self.settings.model, matrix[rows], sample.reward[rows])
            for fold, rows in other_folds(sample.fold)
        }
        whole = _constant(sample.reward)
        return FittedReward(features, models, whole, self.targets, len(sample), dict(counts))


def _check_actions(targets: Mapping[str, Distribution], features: Features) -> None:
    for policy in targets.values():
        actions = list(policy.actions)
        if (features.place(actions) < 0).all():
            raise UsageError(
                f"a target plays {_few(actions)}, but the log has {_few(features.actions)}: a "
                "reward model needs the labels to agree"
            )


def _few(labels: Sequence[Hashable]) -> str:
    return ", ".join(map(repr, labels[:3])) + (", ..." if len(labels) > 3 else "")


def fit_one(model: SklearnModel, matrix: FloatArray, reward: FloatArray) -> Predict:
    """Fit a fresh copy of a model; rewards that are all equal need none."""
    clone = sklearn_clone()
    if not len(reward) or reward.min() == reward.max():
        return _constant(reward)
    if hasattr(model, "predict_proba") and not np.isin(reward, (0.0, 1.0)).all():
        raise UsageError(
            f"{type(model).__name__} is a classifier, but not all rewards are 0 or 1: give a "
            "regressor"
        )
    fresh = clone(model)
    try:
        fresh.fit(matrix, reward)
    except Exception as error:
        raise ModelError("reward model", f"could not be fitted: {error}") from error
    if hasattr(model, "predict_proba"):
        return lambda rows: np.asarray(fresh.predict_proba(rows)[:, 1], dtype=np.float64)
    return lambda rows: np.asarray(fresh.predict(rows), dtype=np.float64).reshape(len(rows))


def sklearn_clone() -> Callable[[SklearnModel], SklearnModel]:
    """Copies an unfitted model; from scikit-learn, which is an extra."""
    try:
        from sklearn.base import clone
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "sklearn") from error
    copy: Callable[[SklearnModel], SklearnModel] = clone
    return copy


def _constant(reward: FloatArray) -> Predict:
    value = float(reward.mean()) if len(reward) else 0.0
    return lambda rows: np.full(len(rows), value)


@dataclass(frozen=True, eq=False)
class FittedReward:
    """Models by fold; an `rows.learn.Fitted`.

    Attributes:
        features: How rows become a matrix.
        models: The model for the rows of each fold, fitted to the others.
        whole: What to say of a fold that the sample does not have.
        targets: Policies by the column of their predicted value.
        sampled: Rows that the models were fitted to.
        counts: All rows of each logger.
    """

    features: Features
    models: Mapping[int, Predict]
    whole: Predict
    targets: Mapping[str, Distribution]
    sampled: int
    counts: Mapping[str, int]
    union: list[Hashable] = field(init=False)

    def __post_init__(self) -> None:
        actions = dict.fromkeys(a for p in self.targets.values() for a in p.actions)
        object.__setattr__(self, "union", list(actions))

    def __call__(self, piece: Piece) -> dict[str, FloatArray]:
        found = {name: np.zeros(len(piece)) for name in (PREDICTED_REWARD, *self.targets)}
        for fold in np.unique(piece.fold).tolist():
            rows = np.flatnonzero(piece.fold == fold)
            for name, values in self._predict(_take(piece.batch, rows), fold).items():
                found[name][rows] = values
        return found

    def _predict(self, batch: Batch, fold: int) -> dict[str, FloatArray]:
        model = self.models.get(fold, self.whole)
        context = self.features.context(batch)
        logged = self._ask(model, context, self.features.place(batch.action))
        return {PREDICTED_REWARD: logged, **self._values(model, batch, context)}

    def _values(
        self, model: Predict, batch: Batch, context: FloatArray
    ) -> dict[str, FloatArray]:
        """Predicted value of each target: all actions, one after the other."""
        probs = {
            name: checked_distribution(
                name, policy.distribution(batch), (len(batch), len(policy.actions))
            )
            for name, policy in self.targets.items()
        }
        column = {
            name: {action: k for k, action in enumerate(policy.actions)}
            for name, policy in self.targets.items()
        }
        found = {name: np.zeros(len(batch)) for name in self.targets}
        for action, place in zip(self.union, self.features.place(self.union), strict=True):
            predicted = self._ask(model, context, np.full(len(batch), place))
            for name in self.targets:
                if action in column[name]:
                    found[name] += probs[name][:, column[name][action]] * predicted
        return found

    def _ask(self, model: Predict, context: FloatArray, place: IntArray) -> FloatArray:
        """Predictions, some rows at a time: the matrix of features may be wide."""
        width = context.shape[1] + len(self.features.actions)
        step = max(1, CELLS // max(1, width))
        parts = [
            model(self.features.join(context[k : k + step], place[k : k + step]))
            for k in range(0, len(context), step)
        ]
        predicted = np.concatenate([np.empty(0), *parts])
        if not np.isfinite(predicted).all():
            raise ModelError("reward model", "predicts NaN or infinity")
        return predicted

    def findings(self) -> tuple[Finding, ...]:
        total = sum(self.counts.values())
        if self.sampled * 2 > total:
            return ()
        return (
            Finding(
                "model-sampled",
                f"The reward model was fitted to {self.sampled:,} of {total:,} rows, taken "
                "evenly from every logger.",
                "Give RewardModel(..., rows=...) for more.",
                "note",
            ),
        )


def _take(batch: Batch, rows: IntArray) -> Batch:
    return Batch(batch.action[rows], {name: v[rows] for name, v in batch.columns.items()})
