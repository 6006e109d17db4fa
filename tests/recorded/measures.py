"""Logs with several metrics, and verbs that judge: distributions, backtests, decisions, clicks.

Every function of `MEASURES` gives the values of several questions, by name.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv

import poolwise as pw
from tests.recorded.logs import ACTIONS
from tests.recorded.structures import TARGETS, columns, log_of, outcome, own, with_faults
from tests.recorded.verbs import Values, answers, kept, recorded

if TYPE_CHECKING:
    from collections.abc import Callable

    Asks = dict[str, Callable[[], Values]]

METRICS = {"gain": "gain", "cost": pw.Metric("cost", better="lower"), "yield": "gain per cost"}
GUARDED = {
    "reward": pw.Metric("reward", primary=True),
    "cost": pw.Metric("cost", better="lower", guard="5%"),
}
CLICKS = Path(__file__).parents[1] / "support" / "clicks_small.csv"
SHOWN = {"new": "rank_new", "again": "rank_b"}
RANKS: dict[str, Any] = {
    "request": "request",
    "position": "position",
    "click": "click",
    "logger": "ranker",
    "ranks": "rank_{logger}",
}


def costly(seed: int, **given: Any) -> Values:  # noqa: ANN401 - of `columns`
    """Columns of a log, with what its actions cost."""
    found = columns(seed, **given)
    places = [ACTIONS.index(item) for item in found["item"]]
    found["cost"] = [0.4 + 0.1 * place for place in places]
    return found


def measured(log: pw.Log, **options: Any) -> Values:  # noqa: ANN401 - of `evaluate`
    """Estimates and differences of every metric."""
    found = pw.evaluate(log, TARGETS, **options)
    own_reward = outcome(found)
    return own_reward | {"metrics": {name: outcome(e) for name, e in found.metrics.items()}}


def ranked(log: pw.Log, **options: Any) -> Values:  # noqa: ANN401 - of `compare`
    """Rankings and differences by every metric."""
    found = pw.compare(log, TARGETS, **options)
    by_metric = {name: found.metrics[name] for name in found.metrics} or {"": found}
    return {
        name: {k: v for k, v in recorded(c).items() if k not in {"evaluation", "headline"}}
        for name, c in by_metric.items()
    }


def metrics() -> Asks:
    """Several metrics and ratios of two, from the same pass."""
    found = costly(48)
    log, ask = log_of(found, reward_range=None), partial(measured, metrics=METRICS)
    dropped = log_of(with_faults(costly(48)), reward_range=None, on_fault="drop")
    return {
        "plain": partial(ask, log),
        "baseline": partial(ask, log, baseline="v"),
        "student": partial(ask, log, interval="student"),
        "clusters": partial(ask, log_of(found, reward_range=None, cluster="user")),
        "uncrossed": partial(ask, own(found, reward_range=None)),
        "period": partial(ask, log_of(found, reward_range=None, period="day")),
        "dropped": partial(ask, dropped),
        "by": partial(ask, log, by="device"),
        "compared": partial(ranked, log, metrics=METRICS),
        "compared with a logger": partial(ranked, log, metrics=METRICS, baseline="a"),
    }


def distribution() -> Asks:
    """How often the reward is at most a threshold, and its quantiles."""
    found = columns(49)
    log = log_of(found, reward="gain", reward_range=None)
    asked = {"thresholds": [0.2, 0.5], "quantiles": [0.25, 0.5, 0.9]}

    def spread(log: pw.Log, **options: Any) -> Values:  # noqa: ANN401 - of `evaluate`
        whole: Values = kept(pw.evaluate(log, TARGETS, **options).to_dict()["distribution"])
        return whole

    clustered = log_of(found, reward="gain", reward_range=None, cluster="user")
    return {
        "plain": partial(spread, log, **asked),
        "naive": partial(spread, log, estimators="naive", **asked),
        "clusters": partial(spread, clustered, **asked),
    }


def backtests() -> Asks:
    """What each logger earned, and what the others predict."""

    def predicted(log: pw.Log, **options: Any) -> Values:  # noqa: ANN401 - of `backtest`
        found: Values = kept(pw.backtest(log, **options).to_dict())
        return found

    found, shifted = columns(50), columns(50)
    late = shifted["logger"] == "c"
    shifted["reward"] = shifted["reward"] + 0.4 * late  # the other loggers do not predict it
    return {
        "plain": partial(predicted, log_of(found)),
        "level": partial(predicted, log_of(found), level=0.8),
        "clusters": partial(predicted, log_of(found, cluster="user")),
        "dropped": partial(predicted, log_of(with_faults(columns(50)), on_fault="drop")),
        "misfit": partial(predicted, log_of(shifted, reward_range=None)),
        "uncrossed": partial(predicted, own(found)),
        "period": partial(predicted, log_of(found, period="day")),
    }


def decisions() -> Asks:
    """Whether a candidate should replace the baseline."""

    def decided(log: pw.Log, **options: Any) -> Values:  # noqa: ANN401 - of `decide`
        found: Values = kept(pw.decide(log, TARGETS, **options).to_dict())
        return {k: v for k, v in found.items() if k not in {"evaluation", "headline"}}

    found = costly(51)
    log = log_of(found, reward_range=None)
    return {
        "plain": partial(decided, log),
        "guardrail": partial(decided, log, metrics=GUARDED),
        "baseline": partial(decided, log, metrics=GUARDED, baseline="b", level=0.9),
        "clusters": partial(decided, log_of(found, reward_range=None, cluster="user")),
    }


def clicks() -> Asks:
    """Clicks on ranked lists, whose positions are examined unequally."""
    table = pa.csv.read_csv(CLICKS)
    worth = {k: 1 / k for k in range(1, 6)}

    def asked(
        targets: dict[str, str],
        given: dict[str, Any],
        **options: Any,  # noqa: ANN401 - of `evaluate`
    ) -> Values:
        log, read = pw.click_log(table, targets, **RANKS, **given)
        found = pw.evaluate(log, read, **options)
        whole = found.to_dict()
        parts = {k: kept(whole[k]) for k in ("backtest", "position_bias") if whole.get(k)}
        named = {"baseline": found.baseline, "baseline_reason": found.baseline_reason}
        return outcome(found) | parts | named

    def compared() -> Values:
        log, read = pw.click_log(table, SHOWN, **RANKS)
        found = recorded(pw.compare(log, read))
        return {k: v for k, v in found.items() if k not in {"evaluation", "headline"}}

    def tested() -> Values:
        found: Values = kept(pw.backtest(pw.click_log(table, SHOWN, **RANKS).log).to_dict())
        return found

    return {
        "plain": partial(asked, SHOWN, {}),
        "baseline": partial(asked, SHOWN, {}, baseline="b"),
        "target as baseline": partial(asked, SHOWN, {}, baseline="again"),
        "no backtest": partial(asked, SHOWN, {}, backtest=False),
        "a given curve": partial(asked, SHOWN, {"bias": {k: 1 / k for k in range(1, 6)}}),
        "worth": partial(asked, SHOWN, {"worth": worth}),
        "worth and a baseline": partial(asked, SHOWN, {"worth": worth}, baseline="again"),
        "left out": partial(asked, SHOWN, {}, which_logs=True),
        "by": partial(asked, SHOWN, {}, by="request % 2"),
        "by position": partial(asked, SHOWN, {}, by="position"),
        "compare": compared,
        "backtest": tested,
    }


def _answered(make: Callable[[], Asks]) -> Values:
    return answers(make().items())


MEASURES: dict[str, Callable[[], Values]] = {
    name: partial(_answered, make)
    for name, make in {
        "metrics": metrics,
        "distribution": distribution,
        "backtest": backtests,
        "decide": decisions,
        "clicks": clicks,
    }.items()
}
