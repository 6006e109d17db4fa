"""Period-balanced: unbiased for policies that learn, by enumeration of all histories."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.dummy import DummyRegressor

from poolwise.engines.duckdb import DuckDB
from poolwise.errors import RefusedError, UsageError
from poolwise.estimators import BY_NAME, WITH_MODEL, by_default, recommend
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.estimators.period import (
    PeriodBalanced,
    PeriodDoublyRobust,
    earlier_means,
    second_moments,
)
from poolwise.evaluation.evaluate import compare, evaluate
from poolwise.evaluation.summarise import summarise
from poolwise.log.log import Log
from poolwise.moments.coverage import Coverage
from poolwise.moments.pool import Cell, Pool, list_periods
from poolwise.moments.terms import (
    BALANCED_WEIGHT,
    PERIOD_REWARD,
    PERIOD_WEIGHT,
    UNSUPPORTED,
    Needs,
    period_moment,
)
from poolwise.rows.learners import fit_earlier
from tests.support.histories import (
    LIVE,
    TARGET,
    centre_of,
    continued,
    histories,
    mixture,
    period_mean,
    policies,
    value,
)
from tests.support.messages import check_findings, refused
from tests.support.periods import daily, daily_log, daily_unplayed, period_mixture
from tests.support.small import group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.log.policy import Batch
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.types import FloatArray
    from tests.support.histories import History, Policy, Row

TARGETS = {"t": "t"}


def cells_of(log: Log, estimator: PeriodBalanced) -> Pool:
    """Return the moments of each cell that an estimator needs."""
    with DuckDB().open(log, TARGETS) as rows:
        needs = estimator.needs(Coverage.declared(log, rows.counts, rows.cells))
        bound = {term: term.bind("t") for term in needs.terms}
        sums = rows.by_period.moments(needs.bind("t"))
    return Pool({cell: m.select(bound) for cell, m in sums.items()})


def estimated(log: Log, estimator: Estimator) -> Estimate:
    (estimate,) = evaluate(log, TARGETS, [estimator])["t"].estimates.values()
    return estimate


# Enumeration.


def test_a_period_is_unbiased_given_every_past() -> None:
    pasts: list[History] = [(), *(first for first, _ in continued((), 0))]
    for past in pasts:
        period = 1 if past else 0
        known = policies(past)
        rows = list(continued(past, period))
        assert sum(chance for _, chance in rows) == 1
        assert sum(c * period_mean(r, known) for r, c in rows) == value()
        centre = centre_of(past, known)
        assert sum(c * period_mean(r, known, centre) for r, c in rows) == value()


def centred_mean(parts: Sequence[Sequence[Row]], known: dict[str, Policy]) -> Fraction:
    """Return the estimate of the second period, centred at that of the first."""
    return period_mean(parts[1], known, centre_of(parts[0], known))


def test_the_mean_of_periods_is_unbiased_and_balanced_is_not() -> None:
    plain, centred, pooled = Fraction(0), Fraction(0), Fraction(0)
    for rows, chance in histories():
        known = policies(rows)
        parts = [[r for r in rows if r.period == d] for d in (0, 1)]
        plain += chance * sum(period_mean(part, known) for part in parts) / 2
        means = period_mean(parts[0], known), centred_mean(parts, known)
        centred += chance * sum(means) / 2
        pooled += chance * period_mean(rows, known)
    assert plain == centred == value()
    assert pooled < value() * Fraction(99, 100)


def log_of(rows: History, *, crossed: bool) -> Log:
    known = policies(rows)
    columns = {
        "day": [r.period for r in rows],
        "logger": [r.logger for r in rows],
        "reward": [float(r.reward) for r in rows],
        "t": [float(TARGET[r.context][r.action]) for r in rows],
        **{f"p_{i}": [float(p[r.context][r.action]) for r in rows] for i, p in known.items()},
    }
    log = daily_log({k: np.array(v) for k, v in columns.items()})
    if crossed:
        return log
    live = [float(mixture(LIVE[r.period], known, r)) for r in rows]  # as one logger's
    labels = [f"all {r.period}" for r in rows]
    table = pa.table(columns | {"p": live, "logger": labels})
    return Log(table, logger="logger", reward="reward", propensity="p", period="day")


@pytest.mark.slow
def test_the_code_agrees_with_the_fractions() -> None:
    every = [rows for rows, _ in histories()]
    for rows in every[:: len(every) // 12]:
        known = policies(rows)
        parts = [[r for r in rows if r.period == d] for d in (0, 1)]
        means = [period_mean(parts[0], known), centred_mean(parts, known)]
        live = [[r.logger for r in part] for part in parts]
        second = [
            sum(
                TARGET[r.context][r.action] ** 2
                / mixture(live[d], known, r)
                / mixture([*live[0], *live[1]], known, r)
                for r in rows
            )
            / len(rows)
            for d in (0, 1)
        ]
        for across, power in (("stable", 0.5), ("minimum", 1.0)):
            estimator = PeriodBalanced(across)  # type: ignore[arg-type]
            estimate = estimator.estimate(cells_of(log_of(rows, crossed=True), estimator))
            mass = [float(v) ** -power for v in second]
            expected = sum(g * float(u) for g, u in zip(mass, means, strict=True)) / sum(mass)
            assert estimate.value == pytest.approx(expected, rel=1e-12)
        plain = PeriodBalanced()
        estimate = plain.estimate(cells_of(log_of(rows, crossed=False), plain))
        assert estimate.value == pytest.approx(float(sum(means) / 2), rel=1e-12)


# Laws.


def test_one_period_is_balanced() -> None:
    columns = daily()
    log = daily_log(columns | {"day": np.zeros(900, dtype=int)})
    result = evaluate(log, TARGETS, [PeriodBalanced(), Balanced()])["t"]
    one, other = result.estimates.values()
    assert one.value == pytest.approx(other.value, rel=1e-12)
    assert one.variance == pytest.approx(other.variance, rel=1e-12)
    assert one.freedom == pytest.approx(other.freedom, rel=1e-12)
    assert dict(one.shares) == pytest.approx(dict(other.shares))


def test_one_logger_a_period_is_weighted_without_rewards() -> None:
    log = daily_log(daily(control=0.0))
    free = estimated(log, Weighted(divergence="reward-free"))
    ours = estimated(log, PeriodBalanced("minimum", centred=False))
    assert ours.value == pytest.approx(free.value, rel=1e-12)
    assert dict(ours.shares) == pytest.approx(dict(free.shares))


@pytest.mark.parametrize("centred", [True, False])
def test_value_and_variance_are_those_of_the_definition(*, centred: bool) -> None:
    columns = daily()
    log = daily_log(columns)
    estimator = PeriodBalanced(centred=centred)
    moments = cells_of(log, estimator)
    second = second_moments(Pool(moments))
    weight, reward = columns["t"] / period_mixture(columns), columns["reward"]
    day, logger = columns["day"], columns["logger"]
    mass = np.array([np.sum(day == d) / np.sqrt(second[str(d)]) for d in range(3)])
    across = mass / mass.sum()
    expected, variance = 0.0, 0.0
    for d in range(3):
        rows, past = day == d, day < d
        centre = np.average(reward[past], weights=weight[past]) if d and centred else 0.0
        score = centre + weight * (reward - centre)
        expected += across[d] * score[rows].mean()
        for i in np.unique(logger[rows]):
            mine = rows & (logger == i)
            share = across[d] * mine.sum() / rows.sum()
            variance += share**2 * score[mine].var(ddof=1) / mine.sum()
    estimate = estimator.estimate(Pool(moments))
    assert estimate.value == pytest.approx(expected, rel=1e-12)
    assert estimate.variance == pytest.approx(variance, rel=1e-12)


def test_a_number_that_is_added_to_all_rewards_is_added_to_later_periods() -> None:
    columns = daily()
    raised = columns | {"reward": columns["reward"] + 100.0}
    centred, plain = (
        [estimated(daily_log(c), PeriodBalanced(centred=flag)) for c in (columns, raised)]
        for flag in (True, False)
    )
    assert centred[1].std_error < plain[1].std_error / 1.5  # the first period has no centre
    first = cells_of(daily_log(raised), PeriodBalanced())
    assert earlier_means(Pool(first))["2"] == pytest.approx(
        earlier_means(cells_of(daily_log(columns), PeriodBalanced()))["2"] + 100.0, rel=1e-12
    )


def test_the_order_of_cells_does_not_matter() -> None:
    estimator = PeriodBalanced()
    moments = cells_of(daily_log(daily()), estimator)
    turned = dict(reversed(list(moments.items())))
    ours, theirs = estimator.estimate(Pool(turned)), estimator.estimate(Pool(moments))
    assert ours.value == pytest.approx(theirs.value, rel=1e-12)


def test_moments_of_days_that_are_read_apart_merge() -> None:
    lone, estimator, days = daily(control=0.0), PeriodBalanced(), []
    for d in range(3):
        rows = {k: v[lone["day"] == d] for k, v in lone.items()}
        days.append(cells_of(daily_log(rows, propensities=None, propensity="p"), estimator))
    together = daily_log(lone, propensities=None, propensity="p")
    joined = estimator.estimate(Pool({cell: m for day in days for cell, m in day.items()}))
    assert joined.value == pytest.approx(estimated(together, estimator).value, rel=1e-12)


def test_a_period_with_one_row_takes_the_variance_of_all_rows() -> None:
    columns = daily(control=0.0)
    columns["day"][-1] = 9
    columns["logger"][-1] = "v9"
    columns["p_v9"] = columns["p_v2"]
    estimate = estimated(daily_log(columns), PeriodBalanced())
    assert 0 < estimate.shares["v9"] < 0.01
    assert np.isfinite(estimate.variance)


def test_a_period_that_cannot_play_the_target_is_left_out() -> None:
    log = daily_log(daily_unplayed())
    estimate = estimated(log, PeriodBalanced())
    assert estimate.shares["v2"] == 0
    assert [f.code for f in estimate.findings] == ["period-unsupported"]
    assert sum(estimate.shares.values()) == pytest.approx(1)


def test_estimates_of_periods_require_periods() -> None:
    log = daily_log(daily(), period=None)
    with refused(RefusedError) as error:
        evaluate(log, TARGETS, "period-balanced")
    assert error.value.code == "period-balanced-refused"


def test_several_loggers_of_a_period_require_cross_propensities() -> None:
    log = daily_log(daily(), propensities=None, propensity="p")
    with refused(RefusedError) as error:
        evaluate(log, TARGETS, PeriodBalanced())
    assert error.value.code == "period-balanced-refused"
    assert "period-balanced" not in evaluate(log, TARGETS)["t"].estimates


def test_across_has_two_values() -> None:
    with refused(UsageError):
        PeriodBalanced("least")  # type: ignore[arg-type]


def test_periods_of_moments_are_in_order() -> None:
    assert list_periods(cells_of(daily_log(daily()), PeriodBalanced())) == ("0", "1", "2")
    assert Cell("0", "v0") in cells_of(daily_log(daily()), PeriodBalanced())


# With a reward model.


class Shares:
    """A target that plays four actions with fixed probabilities."""

    actions = (0, 1, 2, 3)

    def __init__(self, probs: FloatArray) -> None:
        self.probs = probs

    def prob(self, batch: Batch) -> FloatArray:
        return self.probs.take(np.asarray(batch.action, dtype=int))

    def distribution(self, batch: Batch) -> FloatArray:
        return np.tile(self.probs, (len(batch), 1))


def test_the_model_of_a_period_is_fitted_to_earlier_periods_only() -> None:
    columns = daily(300, control=0.3, seed=2)
    probs = np.unique(columns["t"])
    columns["action"] = np.unique(columns["t"], return_inverse=True)[1]
    log = daily_log(columns, action="action", context=["t"])
    target, model = {"t": Shares(probs / probs.sum())}, DummyRegressor()
    result = evaluate(log, target, ["period-dr", "period-balanced"], model=model)["t"]
    day, reward = columns["day"], columns["reward"]
    predicted = np.array([reward[day < d].mean() if d else 0.0 for d in range(3)])[day]
    weight = (probs / probs.sum())[columns["action"]] / period_mixture(columns)
    score = predicted + weight * (reward - predicted)
    shares = result.estimates["period-balanced"].linear.parts
    across = np.zeros(3)
    for cell, part in shares.items():
        assert isinstance(cell, Cell)
        across[int(cell.period)] += part[PERIOD_REWARD]
    expected = sum(across[d] * score[day == d].mean() for d in range(3))
    assert result.estimates["period-dr"].value == pytest.approx(expected, rel=1e-12)


def test_neighbouring_periods_share_a_model_if_there_are_many() -> None:
    period = np.arange(7)
    models = fit_earlier(period, lambda rows: rows.tolist(), most=3)
    assert models == {k: list(range(k - k % 3)) for k in range(7)}


def test_a_model_without_periods_is_not_enough() -> None:
    log = daily_log(daily(), period=None)
    with refused(RefusedError) as error:
        evaluate(log, TARGETS, "period-dr")
    assert error.value.code == "period-dr-refused"


# With other declarations.


def test_training_that_is_declared_too_is_a_note() -> None:
    log = daily_log(daily(), trained_on={"v1": ["v0"]})
    result = evaluate(log, TARGETS)["t"]
    plain = evaluate(daily_log(daily()), TARGETS)["t"]
    severities = {f.code: f.severity for f in result.findings}
    assert severities["trained-on-own-log"] == "note"
    assert result.intervals["period-balanced"] == plain.intervals["period-balanced"]
    compared = compare(log, {"t": "t", "u": "p_v1"})
    assert "trained-on-own-log" not in {
        f.code for f in compared.findings if f.severity == "alarm"
    }


def test_students_interval_serves_periods() -> None:
    log = daily_log(daily())
    result = evaluate(log, TARGETS, "period-balanced", interval="student")["t"]
    estimate, ends = result.estimates["period-balanced"], result.intervals["period-balanced"]
    assert ends.lower < estimate.value < ends.upper
    width = (
        2
        * 1.96
        * evaluate(log, TARGETS, "period-balanced")["t"].estimates["period-balanced"].std_error
    )
    assert ends.upper - ends.lower == pytest.approx(width, rel=0.15)


def test_clusters_serve_periods() -> None:
    columns = daily() | {"user": np.arange(900) // 3}
    clustered = estimated(daily_log(columns, cluster="user"), PeriodBalanced())
    plain = estimated(daily_log(columns), PeriodBalanced())
    assert clustered.value == pytest.approx(plain.value, rel=1e-12)
    assert clustered.std_error == pytest.approx(plain.std_error, rel=0.25)


def test_engines_without_rows_refuse_periods() -> None:
    log = daily_log(daily())
    with refused(UsageError):
        evaluate(log, TARGETS, engine=summarise(log, TARGETS))


def test_the_interval_of_one_logger_in_one_period_is_that_of_naive() -> None:
    columns = daily(300, days=1, control=0.0)
    log = daily_log(columns, propensities=None, propensity="p")
    result = evaluate(log, TARGETS, [PeriodBalanced(), Naive()])["t"]
    ours, theirs = result.intervals.values()
    assert (ours.lower, ours.upper) == pytest.approx((theirs.lower, theirs.upper), rel=1e-12)


# ---------------------------------------- five rows in three cells, by hand

FIRST_A, FIRST_B, SECOND_B = Cell("1", "a", 0), Cell("1", "b", 0), Cell("2", "b", 1)
FIVE = {  # weights, and weights times rewards
    FIRST_A: ([1.0, 2.0], [2.0, 4.0]),
    FIRST_B: ([0.5], [1.0]),
    SECOND_B: ([1.0, 3.0], [6.0, 0.0]),
}


def five_rows(**second: float) -> Pool:
    """Moments of the cells; `second` has v of each period, the same in every row."""
    return Pool(
        {
            cell: group(
                {PERIOD_WEIGHT: weights, PERIOD_REWARD: products, BALANCED_WEIGHT: weights}
                | {period_moment(d[1:]): [v] * len(weights) for d, v in second.items()}
            )
            for cell, (weights, products) in FIVE.items()
        }
    )


@pytest.mark.parametrize(
    ("estimator", "second", "share", "value"),
    [
        # 3 and 2 rows: 3/2 to 2/1.  The second period is centred at 7/3.5 = 2, so that its
        # rows are 2 + 6 - 2 and 2 + 0 - 6
        (PeriodBalanced(), {"d1": 4.0, "d2": 1.0}, Fraction(3, 7), Fraction(11, 7)),
        (PeriodBalanced("minimum"), {"d1": 4.0, "d2": 1.0}, Fraction(3, 11), Fraction(15, 11)),
        (PeriodBalanced(), {}, Fraction(3, 5), Fraction(9, 5)),
        (PeriodBalanced(), {"d1": 4.0}, Fraction(3, 5), Fraction(9, 5)),
        (
            PeriodBalanced(centred=False),
            {"d1": 4.0, "d2": 1.0},
            Fraction(3, 7),
            Fraction(19, 7),
        ),
    ],
)
def test_periods_are_combined_by_their_second_moments(
    estimator: PeriodBalanced, second: dict[str, float], share: Fraction, value: Fraction
) -> None:
    estimate = estimator.estimate(five_rows(**second))
    assert estimate.value == pytest.approx(float(value), rel=1e-13)
    of_a = float(share) * 2 / 3
    assert estimate.shares == pytest.approx({"a": of_a, "b": 1 - of_a}, rel=1e-13)
    later = {PERIOD_REWARD: float(1 - share)}
    if estimator.centred:
        later[PERIOD_WEIGHT] = -2 * float(1 - share)
    assert estimate.linear.parts[SECOND_B] == pytest.approx(later, rel=1e-13)
    assert estimate.linear.parts[FIRST_A] == pytest.approx({PERIOD_REWARD: of_a}, rel=1e-13)
    assert estimate.findings == ()


def test_periods_that_cannot_play_the_target_have_no_share_and_no_part_in_the_centre() -> None:
    estimate = PeriodBalanced().estimate(five_rows(d1=UNSUPPORTED, d2=1.0))
    assert (estimate.value, estimate.shares) == (3.0, {"a": 0.0, "b": 1.0})
    check_findings(estimate.findings, "period-unsupported")
    for estimator in (PeriodBalanced(), PeriodBalanced("minimum")):
        with refused(RefusedError) as refusal:
            estimator.estimate(five_rows(d1=UNSUPPORTED, d2=UNSUPPORTED))
        assert refusal.value.code == f"{estimator.name}-refused"


def test_light_weights_give_a_centre_too() -> None:
    rows = {PERIOD_WEIGHT: [0.25, 0.5], PERIOD_REWARD: [0.5, 1.75]}
    means = earlier_means(Pool({FIRST_A: group(rows), SECOND_B: group(rows)}))
    assert means == {"1": 0.0, "2": 3.0}
    assert second_moments(five_rows()) == {"1": 1.0, "2": 1.0}


def test_the_needs_of_periods_are_those_of_their_terms() -> None:
    cells: tuple[Any, ...] = tuple(FIVE)
    moments = tuple(map(period_moment, ("1", "2")))
    weight, both = (PERIOD_WEIGHT,), (PERIOD_REWARD, PERIOD_WEIGHT)
    alone = Needs((), (both, weight), weight)
    crossed = PeriodBalanced().needs(Coverage.complete("ab", cells))
    assert crossed == Needs(moments, (both, weight, (BALANCED_WEIGHT,)), weight)
    live = Coverage(("a", "b"), cells, live=("b",))
    assert PeriodBalanced().needs(live) == alone
    assert PeriodBalanced().needs(Coverage(("a", "b"), (FIRST_A, SECOND_B))) == alone
    uncentred = PeriodBalanced(centred=False).needs(live)
    assert uncentred == Needs((), ((PERIOD_REWARD,), weight), weight)
    with refused(RefusedError) as refusal:
        PeriodBalanced().needs(Coverage(("a", "b"), cells))
    assert refusal.value.code == "period-balanced-refused"
    with refused(RefusedError) as refusal:
        PeriodBalanced().needs(Coverage(("a", "b")))
    assert refusal.value.code == "period-balanced-refused"


def test_estimators_of_periods_come_first_where_there_are_periods() -> None:
    for with_model, with_periods, name in (
        (False, True, "period-balanced"),
        (True, True, "period-dr"),
        (False, False, "calibrated"),
        (True, False, "calibrated"),
    ):
        usual = by_default(modelled=with_model, periods=with_periods)
        assert recommend({n: make() for n, make in usual.items()}) == name
    balanced = {"period-balanced": PeriodBalanced}
    robust = {"period-dr": PeriodDoublyRobust}
    assert by_default(modelled=False, periods=False) == BY_NAME
    assert by_default(modelled=True, periods=False) == WITH_MODEL
    plain, modelled = (by_default(modelled=m, periods=True) for m in (False, True))
    assert [*plain.items()] == [*balanced.items(), *BY_NAME.items()]
    assert [*modelled.items()] == [*(robust | balanced).items(), *WITH_MODEL.items()]
