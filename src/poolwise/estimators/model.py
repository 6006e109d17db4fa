"""Estimators that use a reward model: the direct method and doubly robust ones.

The direct method averages the model's predictions.  A doubly robust estimate adds the
weighted residuals of the rows, which makes it unbiased for every model, and efficient if
the model is right.

Dudik, Langford & Li (ICML 2011); Kallus, Saito & Uehara (ICML 2021).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from poolwise.errors import Finding, UsageError
from poolwise.estimators.calibrated import is_uncovered, target_uncovered
from poolwise.estimators.divergences import FLOOR, Differences, refuse_unsupported
from poolwise.estimators.ips import with_divergences
from poolwise.estimators.shrink import Shrink, shrink_findings, shrink_means, shrunk_weight
from poolwise.moments.coverage import refuse_uncrossed
from poolwise.moments.estimate import (
    Estimate,
    Estimator,
    average_term,
    make_estimate,
)
from poolwise.moments.linear import Score
from poolwise.moments.terms import (
    BALANCED_WEIGHT,
    PREDICTED_VALUE,
    RESIDUAL,
    WEIGHT,
    Needs,
    Term,
    residual_moment,
)

if TYPE_CHECKING:
    from poolwise.moments.coverage import Coverage
    from poolwise.moments.pool import Pool

OWN_SCORE = (PREDICTED_VALUE, WEIGHT * RESIDUAL)
BALANCED_RESIDUAL = BALANCED_WEIGHT * RESIDUAL
BALANCED_SCORE = (PREDICTED_VALUE, BALANCED_RESIDUAL)


@dataclass(frozen=True)
class DirectMethod(Estimator):
    r"""The predicted reward of the target, averaged over all contexts.

    $$\hat U = \frac1n \sum_{rows} \sum_y \bar\pi(y|x) \hat q(x, y)$$

    It has little variance, but the bias of the model, which no interval includes: use it to
    inspect the model, not to decide. The estimate less that of `DoublyRobust` estimates the
    bias, as precisely as the weights allow.
    """

    @property
    def name(self) -> str:
        return "direct-method"

    @property
    def pools(self) -> bool:
        return False

    @property
    def rank(self) -> int:
        return -1

    def needs(self, coverage: Coverage) -> Needs:
        del coverage
        return Needs(groups=((PREDICTED_VALUE,),))

    def estimate(self, pool: Pool) -> Estimate:
        return replace(average_term(pool, PREDICTED_VALUE), findings=(MODEL_ONLY,))


@dataclass(frozen=True)
class DoublyRobust(Estimator):
    r"""A reward model, corrected by the weighted residuals of the rows.

    $$\hat U = \frac1n \sum_{rows} \Big( \sum_y \bar\pi(y|x) \hat q(x, y)
      + w (\delta - \hat q(x, y)) \Big)$$

    It is unbiased for every model that was not trained on the row that it predicts, if the
    loggers together can play all actions of the target, rewarded or not. "balanced" divides
    by the mixture and is efficient; "naive" divides by the row's own logger; "weighted"
    also combines the logs with the shares that minimise the variance.

    Attributes:
        weights: Weight of the residuals.
        shrink: Rule that shrinks balanced weights (SWITCH, DRos): less variance, more bias.
        starred: Whether to recommend it in place of calibrated; an evaluation sets it where a
            target plays actions that are in no row, whose rewards only a model predicts.

    Examples:
        >>> DoublyRobust().name, DoublyRobust(shrink=Shrink("switch", 1.5)).name
        ('doubly-robust', 'doubly-robust-switch-1.5')
    """

    weights: Literal["balanced", "naive", "weighted"] = "balanced"
    shrink: Shrink | None = None
    starred: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.weights not in {"balanced", "naive", "weighted"}:
            raise UsageError(
                f"weights must be 'balanced', 'naive' or 'weighted', got {self.weights!r}"
            )
        if self.weights != "balanced" and self.shrink is not None:
            raise UsageError("shrink requires weights='balanced'")

    @property
    def name(self) -> str:
        kind = "" if self.weights == "balanced" else f"-{self.weights}"
        return f"doubly-robust{kind}" + (f"-{self.shrink.suffix}" if self.shrink else "")

    @property
    def predicts(self) -> bool:
        return True

    @property
    def rank(self) -> int:
        return 2 if self.starred else 0

    @property
    def pools(self) -> bool:
        return self.weights != "naive"

    @property
    def _score(self) -> tuple[Term, Term]:
        return PREDICTED_VALUE, shrunk_weight(self.shrink) * RESIDUAL

    def needs(self, coverage: Coverage) -> Needs:
        own = Needs(groups=(OWN_SCORE,))
        if self.weights == "naive":
            return own
        known = coverage.crossed if self.weights == "weighted" else coverage.mixture
        if not known:
            refuse_uncrossed(self.name, coverage)
        if self.weights == "weighted":
            means = tuple(map(residual_moment, coverage.loggers))
            return own | Needs(means, (BALANCED_SCORE,))
        return Needs(shrink_means(self.shrink), (self._score, (BALANCED_WEIGHT,)))

    def estimate(self, pool: Pool) -> Estimate:
        if self.weights == "naive":
            return _average_score(pool, OWN_SCORE)
        if self.weights == "weighted":
            return _weigh_loggers(pool)
        findings = shrink_findings(pool, self.shrink)
        if is_uncovered(pool):
            mean = pool.together.mean(BALANCED_WEIGHT)
            finding = target_uncovered(
                mean, "and the estimate of their rewards comes from the reward model alone."
            )
            findings = (replace(finding, advice=LOG_FIRST), *findings)
        return replace(_average_score(pool, self._score), findings=findings)


def star_model(estimator: Estimator) -> Estimator:
    """Return doubly robust with balanced weights as the recommended one; others unchanged."""
    if isinstance(estimator, DoublyRobust) and estimator.weights == "balanced":
        return replace(estimator, starred=True)
    return estimator


def _average_score(pool: Pool, score: tuple[Term, Term]) -> Estimate:
    """Return the mean of a sum of two terms."""
    return make_estimate(Score(dict.fromkeys(score, 1.0)).over(pool), pool)


def _weigh_loggers(pool: Pool) -> Estimate:
    estimate = with_divergences(pool, score_divergences(pool), terms=OWN_SCORE)
    error = _average_score(pool, BALANCED_SCORE).variance
    return _differences(pool).with_errors(estimate, pool, error, OWN_SCORE)


def score_divergences(pool: Pool) -> dict[str, float]:
    r"""Return the variance of a doubly robust score of each logger, from the rows of all.

    $$D_i = E[v^2] + 2 E[v w e] + E_{avg}[w^2 e^2 \pi_{avg} / \pi_i] - \hat U^2$$

    with $v$ the predicted value and $e$ the residual; only the third summand depends on the
    logger.  Infinite if the logger never plays an action of the target; from rows, at least
    `FLOOR` times the second moment.
    """
    return _differences(pool).floored()


def _differences(pool: Pool) -> Differences:
    whole = pool.together
    value = whole.mean(PREDICTED_VALUE) + whole.mean(BALANCED_RESIDUAL)
    scatter = whole.select_scatter(BALANCED_SCORE)
    cross = scatter[0, 1] / whole.count
    cross += whole.mean(PREDICTED_VALUE) * whole.mean(BALANCED_RESIDUAL)
    common = float(whole.mean_square(PREDICTED_VALUE) + 2 * cross)
    square = whole.mean_square(BALANCED_RESIDUAL)
    second = refuse_unsupported(
        {i: whole.mean(residual_moment(i)) for i in pool.loggers}, square
    )
    scores = {i: s + common for i, s in second.items()}
    return Differences(scores, value, FLOOR if whole.ddof else 0.0)


MODEL_ONLY = Finding(
    "model-only",
    "The direct method averages the predictions of the reward model; its interval does not "
    "include the model's errors.",
    "Rely on doubly-robust or calibrated, which correct the model by the rows.",
)
LOG_FIRST = "Log such actions before relying on any estimate."


ESTIMATED_MIXTURE = Finding(
    "estimated-mixture",
    "The probability of each row under the mixture of the loggers was estimated by a "
    "classifier that predicts the logger of the row. The intervals of estimates marked "
    "'estimated' do not include the classifier's errors.",
    "Log the probability of every action under every logger.",
)
