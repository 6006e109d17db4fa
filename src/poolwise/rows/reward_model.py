"""Reward models: the predicted reward of every action, cross-fitted.

A model is fitted to a sample of the rows, fold by fold, and predicts the rows of the fold
that it was not fitted to, which makes doubly robust estimates unbiased for any model.  Where
the log has periods, the model of a period is fitted to earlier periods only, since policies
may depend on all of them; that of the first period predicts 0.

A target's predicted value is the mean prediction over its actions.  A list of actions is
summed, each with its probability.  A density is drawn from: one action from each of a few equal
parts of its probability, at places that differ from row to row.  The mean is then unbiased for
any model, and for the draws of the rows together nearly exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast

import numpy as np

from poolwise.errors import Finding, ModelError, PolicyError, RefusedError, UsageError
from poolwise.log.adapters import as_policy
from poolwise.log.densities import can_draw, draw_actions
from poolwise.log.eligible import restrict_policy
from poolwise.log.policy import Batch, Distribution, is_distribution
from poolwise.rows.learners import (
    FITTED_ROWS,
    MODEL_FOLDS,
    Extra,
    Features,
    Learner,
    SklearnModel,
    fit_clone,
    fit_earlier,
    fit_features,
    fit_folds,
    rows_by_fold,
)
from poolwise.rows.score import checked_distribution
from poolwise.types import AnyArray, FloatArray

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from poolwise.log.policy import Policy, PolicyLike
    from poolwise.rows.learners import LearnerRows
    from poolwise.types import IntArray

PREDICTED_REWARD, PREDICTED_VALUE = "poolwise_predicted_reward", "poolwise_predicted_value"
DENSITY_DRAWS = 32  # actions of each row and target with a density
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples are spread evenly between whole numbers
INTEGRAL_TOLERANCE = 0.01  # of the integral of a density
CELLS = 1 << 22  # numbers in one matrix of features: 32 MB
Predict = Callable[[FloatArray], FloatArray]
RewardsOf = Callable[[AnyArray], FloatArray]  # predicted rewards of one action per row, by code
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
            mean prediction over the target's actions. Without a name, for a single target.
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
        draws: Number of actions per row to average over, for a target with a density.
        seed: Seed of these draws.
    """

    model: SklearnModel
    folds: int = MODEL_FOLDS
    rows: int = FITTED_ROWS
    interactions: bool = False
    draws: int = DENSITY_DRAWS
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


ModelLike = RewardModel | GivenModel | SklearnModel


def model_extra(
    model: ModelLike,
    targets: Mapping[str, PolicyLike],
    eligible: str | None = None,
    *,
    densities: bool = False,
    measures: Sequence[str] = (),
) -> Extra:
    """Return the columns of a reward model; reject targets without a list of actions.

    Targets with densities must be able to draw actions. Each of the measures has a model of
    its own.
    """
    if isinstance(model, GivenModel):
        if measures:
            raise UsageError(
                "a GivenModel predicts one reward, and `metrics` have several: pass a "
                "regressor, which is fitted to each of them, or leave `model` out"
            )
        return _read_columns(model, targets)
    settings = model if isinstance(model, RewardModel) else RewardModel(model)
    policies = {
        name: restrict_policy(as_policy(target, role=f"target {name!r}"), eligible)
        for name, target in targets.items()
    }
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
    learners, columns = [], {}
    for place, measure in enumerate(("", *measures)):
        logged = f"{PREDICTED_REWARD}_{place}" if place else PREDICTED_REWARD
        begin = f"{PREDICTED_VALUE}_{place}_" if place else f"{PREDICTED_VALUE}_"
        values = {name: f"{begin}{k}" for k, name in enumerate(targets)}
        served = {values[name]: policy for name, policy in policies.items()}
        fit = partial(fit_reward, settings, served, measure=measure, logged=logged)
        learner = Learner("reward model", (logged, *served), fit, settings.folds, settings.rows)
        learners.append(learner)
        columns[measure] = (logged, values)
    own = columns.pop("")
    return Extra(*own, predictions=columns, learners=tuple(learners))


def _read_columns(model: GivenModel, targets: Mapping[str, PolicyLike]) -> Extra:
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
    measure: str = "",
    logged: str = PREDICTED_REWARD,
) -> FittedReward:
    """Fit a model for each fold or period.

    Args:
        settings: The model.
        targets: Policies, by the column of their value.
        sample: Rows to fit to.
        counts: Number of rows of each logger.
        measure: Measure that is used as the reward; empty for the log's own.
        logged: Column of the predicted reward of the logged action.
    """
    interactions, numeric = settings.interactions, sample.densities
    reward = sample.measures[measure] if measure else sample.reward
    columns = sample.features
    features = fit_features(sample.batch, columns, interactions=interactions, numeric=numeric)
    average: Average = OverDensities(targets, settings.draws, settings.seed)
    if not numeric:
        average = OverActions(cast("Mapping[str, Distribution]", targets), features)
    matrix = features.matrix(sample.batch)
    by_period = bool(len(sample.period))
    models = (fit_earlier if by_period else fit_folds)(
        sample.units, lambda rows: fit_one(settings.model, matrix[rows], reward[rows])
    )
    total = sum(counts.values())
    default = _constant(reward[:0] if by_period else reward)
    return FittedReward(features, models, default, average, len(sample), total, logged)


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
    """Models by fold; a `rows.learners.Fitted`.

    Attributes:
        features: Turns rows into a matrix.
        models: Model for the rows of each fold, fitted to the others; or for those of each
            period, fitted to earlier ones.
        default: Model for folds or periods that the sample does not have.
        average: Averages predictions over the actions of each target.
        sampled: Rows that the models were fitted to.
        total: All rows.
        logged: Column of the predicted reward of the logged action.
    """

    features: Features
    models: Mapping[int, Predict]
    default: Predict
    average: Average
    sampled: int
    total: int
    logged: str = PREDICTED_REWARD

    def __call__(self, rows: LearnerRows) -> dict[str, FloatArray]:
        names = (self.logged, *self.average.targets)
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
        return {self.logged: logged, **self.average(ask, batch, number)}

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


# Averages.


@dataclass(frozen=True, eq=False)
class OverActions:
    """Averages over lists of actions, of which the log must have one at least.

    Attributes:
        targets: Policies by the column of their predicted value.
        features: Numbers the actions.
    """

    targets: Mapping[str, Distribution]
    features: Features

    def __post_init__(self) -> None:
        for policy in self.targets.values():
            actions = list(policy.actions)
            if (self.features.index(actions) < 0).all():
                raise UsageError(
                    "a reward model needs targets with actions of the log; a target plays "
                    f"{_few(actions)}, and the log has {_few(self.features.actions)}"
                )

    def __call__(self, ask: RewardsOf, batch: Batch, number: IntArray) -> dict[str, FloatArray]:
        """Return the mean prediction of each row under each target."""
        del number
        probs = {
            name: checked_distribution(
                name, policy.distribution(batch), (len(batch), len(policy.actions))
            )
            for name, policy in self.targets.items()
        }
        values = {name: np.zeros(len(batch)) for name in self.targets}
        indices = self.features.index(list(self._columns))
        for columns, index in zip(self._columns.values(), indices, strict=True):
            predicted = ask(np.full(len(batch), index))
            for name, column in columns.items():
                values[name] += probs[name][:, column] * predicted
        return values

    @cached_property
    def _columns(self) -> dict[Hashable, dict[str, int]]:
        """Column of each action in the distributions of the targets."""
        columns: dict[Hashable, dict[str, int]] = {}
        for name, policy in self.targets.items():
            for column, action in enumerate(policy.actions):
                columns.setdefault(action, {})[name] = column
        return columns


@dataclass(frozen=True, eq=False)
class OverDensities:
    """Averages over draws from densities.

    Attributes:
        targets: Policies by the column of their predicted value.
        draws: Actions drawn for each row and target.
        seed: Seed of the draws.
    """

    targets: Mapping[str, Policy]
    draws: int = DENSITY_DRAWS
    seed: int = 0

    def __call__(self, ask: RewardsOf, batch: Batch, number: IntArray) -> dict[str, FloatArray]:
        """Return the mean prediction of each row under each target."""
        return {
            name: self._mean(policy, ask, batch, number)
            for name, policy in self.targets.items()
        }

    def _mean(
        self, policy: Policy, ask: RewardsOf, batch: Batch, number: IntArray
    ) -> FloatArray:
        value, mass = np.zeros(len(batch)), np.zeros(len(batch))
        for level in levels(number, self.draws, self.seed):
            action, weight = draw_actions(policy, batch, level)
            value += weight * ask(action)
            mass += weight
        _refuse_mass(policy, mass / self.draws)
        return value / self.draws


def levels(number: IntArray, draws: int, seed: int = 0) -> Iterator[FloatArray]:
    """Yield levels of each row, one in each of `draws` equal parts of 0 to 1.

    They follow from the number of the row and the seed, so that batches do not matter.  Lower
    and upper parts mirror each other: draws from a symmetric density have its exact mean.

    >>> sorted(round(float(level[0]), 2) for level in levels(np.array([7]), 4))
    [0.24, 0.49, 0.51, 0.76]
    """
    shift = (np.random.default_rng(seed).random() + number * GOLDEN) % 1.0
    for k in range(draws):
        yield (k + (shift if 2 * k < draws else 1 - shift)) / draws


def _refuse_mass(policy: Policy, mass: FloatArray) -> None:
    """Reject a density whose integral over its support is not 1."""
    total, noise = mass.mean(), mass.std() / math.sqrt(len(mass))
    if abs(total - 1) > INTEGRAL_TOLERANCE + 4 * noise:
        reason = f"needs a density with integral 1 over its support, got {total:.3g}"
        raise PolicyError(type(policy).__name__, reason)


Average = OverActions | OverDensities
