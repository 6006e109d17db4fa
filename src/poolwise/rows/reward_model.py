"""Reward models: the predicted reward of every action, cross-fitted.

A model is fitted to a sample of the rows, fold by fold, and predicts the rows of the fold
that it was not fitted to, which makes doubly robust estimates unbiased for any model.  Where
the log has periods, the model of a period is fitted to earlier periods only, since policies
may depend on all of them; that of the first period predicts 0.  A target's predicted value is
the mean prediction over its actions (`rows.averages`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from poolwise.errors import Finding, ModelError, RefusedError, UsageError
from poolwise.log.adapters import as_policy
from poolwise.log.densities import can_draw
from poolwise.log.eligible import restricted
from poolwise.log.policy import AnyArray, Batch, Distribution, FloatArray, is_distribution
from poolwise.rows.averages import DRAWS, OverActions, OverDensities
from poolwise.rows.features import Features, fit_features
from poolwise.rows.learn import (
    FITTED_ROWS,
    FOLDS,
    Learner,
    SklearnModel,
    fit_clone,
    fit_earlier,
    fit_folds,
    rows_by_fold,
)
from poolwise.rows.roles import Extra

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from poolwise.log.policy import IntArray, Policy, PolicyLike
    from poolwise.rows.learn import LearnerRows

PREDICTED_REWARD, PREDICTED_VALUE = "poolwise_predicted_reward", "poolwise_predicted_value"
CELLS = 1 << 22  # numbers in one matrix of features: 32 MB
Predict = Callable[[FloatArray], FloatArray]
LACKING = (  # requirements, and policies that meet them: with probabilities, with densities
    (
        "the probability of every action",
        "a policy with a list of actions (a classifier, a Softmax, a Table)",
    ),
    (
        "the density of every action",
        "a Gaussian, a LogNormal, a Range, a Density with `ppf` or a `support`, or a Mixture",
    ),
)


@dataclass(frozen=True)
class GivenModel:
    """A reward model whose predictions are columns of the log.

    It must not have been fitted to the rows that it predicts.

    Attributes:
        predicted_reward: Column or SQL expression of the predicted reward of the logged
            action.
        predicted_value: Column or expression of each target's predicted value, by name: the
            mean prediction over the target's actions. One alone is for a single target.
    """

    predicted_reward: str
    predicted_value: Mapping[str, str] | str


@dataclass(frozen=True, eq=False)
class RewardModel:
    """A reward model to be fitted to the log, cross-fitted over folds.

    Attributes:
        model: Any scikit-learn regressor; or a classifier, if rewards are 0 or 1.
        folds: Number of folds; a row is predicted by a model fitted to the other folds.
        rows: Largest number of rows to fit to; more are sampled evenly.
        interactions: Add the product of every context column with every action, which
            linear models need.
        draws: Actions of each row that a target with a density is averaged over.
        seed: Seed of these draws.
    """

    model: SklearnModel
    folds: int = FOLDS
    rows: int = FITTED_ROWS
    interactions: bool = False
    draws: int = DRAWS
    seed: int = 0

    def __post_init__(self) -> None:
        if not (hasattr(self.model, "fit") and hasattr(self.model, "predict")):
            raise UsageError(
                "a reward model must be a scikit-learn regressor or classifier, got "
                f"{self.model!r}"
            )
        if self.folds < 2 or self.rows < 1 or self.draws < 1:
            raise UsageError(
                "a reward model needs at least 2 folds, 1 row and 1 draw, got "
                f"folds={self.folds}, rows={self.rows} and draws={self.draws}"
            )


Average = OverActions | OverDensities
ModelLike = RewardModel | GivenModel | SklearnModel


def model_extra(
    model: ModelLike,
    targets: Mapping[str, PolicyLike],
    eligible: str | None = None,
    *,
    densities: bool = False,
) -> Extra:
    """Return the columns of a reward model; reject targets without a list of actions.

    Targets with densities must be able to draw actions.
    """
    if isinstance(model, GivenModel):
        return _logged(model, targets)
    settings = model if isinstance(model, RewardModel) else RewardModel(model)
    policies = {name: restricted(as_policy(t), eligible) for name, t in targets.items()}
    columns = {name: f"{PREDICTED_VALUE}_{k}" for k, name in enumerate(targets)}
    serves = can_draw if densities else is_distribution
    lacking = [repr(name) for name, policy in policies.items() if not serves(policy)]
    if lacking:
        needed, kinds = LACKING[densities]
        raise RefusedError(
            "model-refused",
            f"a reward model needs {needed} under target {', '.join(lacking)}, not only of the "
            f"logged one. Pass {kinds}, or the predictions themselves: "
            "GivenModel(predicted_reward='q', predicted_value={'candidate': 'v'}).",
        )
    served = {columns[name]: policy for name, policy in policies.items()}
    learner = Learner(
        "reward model",
        (PREDICTED_REWARD, *served),
        partial(fit_reward, settings, served),
        settings.folds,
        settings.rows,
    )
    return Extra(PREDICTED_REWARD, columns, learners=(learner,))


def _logged(model: GivenModel, targets: Mapping[str, PolicyLike]) -> Extra:
    values = model.predicted_value
    if isinstance(values, str):
        if len(targets) > 1:
            raise UsageError("`predicted_value` must map each target to its column")
        values = dict.fromkeys(targets, values)
    lacking = [repr(name) for name in targets if name not in values]
    if lacking:
        raise RefusedError(
            "model-refused", f"`predicted_value` has no column for target {', '.join(lacking)}"
        )
    return Extra(model.predicted_reward, {name: values[name] for name in targets})


def fit_reward(
    settings: RewardModel,
    targets: Mapping[str, Policy],
    sample: LearnerRows,
    counts: Mapping[str, int],
) -> FittedReward:
    """Fit a model for each fold or period; `targets` are named by the column of their value."""
    interactions, reward, numeric = settings.interactions, sample.reward, sample.densities
    columns = sample.features
    features = fit_features(sample.batch, columns, interactions=interactions, numeric=numeric)
    average: Average = OverDensities(targets, settings.draws, settings.seed)
    if not numeric:
        average = over_actions(cast("Mapping[str, Distribution]", targets), features)
    matrix = features.matrix(sample.batch)
    by_period = bool(len(sample.period))
    models = (fit_earlier if by_period else fit_folds)(
        sample.units, lambda rows: fit_one(settings.model, matrix[rows], reward[rows])
    )
    total = sum(counts.values())
    default = _constant(reward[:0] if by_period else reward)
    return FittedReward(features, models, default, average, len(sample), total)


def over_actions(targets: Mapping[str, Distribution], features: Features) -> OverActions:
    """Return averages over lists of actions; reject a target without actions of the log."""
    for policy in targets.values():
        actions = list(policy.actions)
        if (features.index(actions) < 0).all():
            raise UsageError(
                "a reward model needs targets with actions of the log; a target plays "
                f"{_few(actions)}, and the log has {_few(features.actions)}"
            )
    return OverActions(targets, features)


def _few(labels: Sequence[Hashable]) -> str:
    return ", ".join(map(repr, labels[:3])) + (", ..." if len(labels) > 3 else "")


def fit_one(model: SklearnModel, matrix: FloatArray, reward: FloatArray) -> Predict:
    """Fit a copy of a model; predict a constant if all rewards are equal."""
    if not len(reward) or reward.min() == reward.max():
        return _constant(reward)
    classifier = hasattr(model, "predict_proba")
    if classifier and not np.isin(reward, (0.0, 1.0)).all():
        raise UsageError(
            f"a classifier needs rewards that are 0 or 1: pass a regressor in place of "
            f"{type(model).__name__}"
        )
    fitted = fit_clone("reward model", model, matrix, reward)
    if classifier:
        return lambda rows: np.asarray(fitted.predict_proba(rows)[:, 1], dtype=np.float64)
    return lambda rows: np.asarray(fitted.predict(rows), dtype=np.float64).reshape(len(rows))


def _constant(reward: FloatArray) -> Predict:
    value = float(reward.mean()) if len(reward) else 0.0
    return lambda rows: np.full(len(rows), value)


@dataclass(frozen=True, eq=False)
class FittedReward:
    """Models by fold; a `rows.learn.Fitted`.

    Attributes:
        features: Turns rows into a matrix.
        models: Model for the rows of each fold, fitted to the others; or for those of each
            period, fitted to earlier ones.
        default: Model for folds or periods that the sample does not have.
        average: Averages predictions over the actions of each target.
        sampled: Rows that the models were fitted to.
        total: All rows.
    """

    features: Features
    models: Mapping[int, Predict]
    default: Predict
    average: Average
    sampled: int
    total: int

    def __call__(self, rows: LearnerRows) -> dict[str, FloatArray]:
        names = (PREDICTED_REWARD, *self.average.targets)
        columns = {name: np.zeros(len(rows)) for name in names}
        for unit, chosen in rows_by_fold(rows.units):
            model = self.models.get(unit, self.default)
            batch, number = rows.batch.take(chosen), rows.number[chosen]
            for name, values in self._predict(model, batch, number).items():
                columns[name][chosen] = values
        return columns

    def _predict(self, model: Predict, batch: Batch, number: IntArray) -> dict[str, FloatArray]:
        """Predict the logged action, and the mean over each target's actions."""
        ask = partial(self._ask, model, self.features.context(batch))
        logged = ask(self.features.code(batch.action))
        return {PREDICTED_REWARD: logged, **self.average(ask, batch, number)}

    def _ask(self, model: Predict, context: FloatArray, action: AnyArray) -> FloatArray:
        """Predict the rewards of one action per row, in matrices of at most `CELLS` numbers."""
        width = context.shape[1] + len(self.features.actions)
        step = max(1, CELLS // max(1, width))
        parts = [
            model(self.features.join(context[k : k + step], action[k : k + step]))
            for k in range(0, len(context), step)
        ]
        predicted = np.concatenate([np.empty(0), *parts])
        if not np.isfinite(predicted).all():
            raise ModelError("reward model", "predicts NaN or infinity")
        return predicted

    def findings(self) -> tuple[Finding, ...]:
        if self.sampled * 2 > self.total:
            return ()
        return (
            Finding(
                "model-sampled",
                f"The reward model was fitted to {self.sampled:,} of {self.total:,} rows, "
                "sampled evenly from every logger.",
                "Pass RewardModel(..., rows=...) for more.",
                "note",
            ),
        )
