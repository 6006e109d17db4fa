"""Judge: compare every number of a result with the truth and with the slow reference.

A result is right if its numbers are finite, equal those of the reference to 1e-9 where the
reference can compute them, and are within five standard errors of the truth.  A target with
actions that no logger plays has no estimate of its value; its result must say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import poolwise as pw
from poolwise.report.sentence import single_log_error
from tests.support.reference import Reference
from tests.sweep.ask import ONLY, Asked, Wrong
from tests.sweep.features import RANKED, WHOLE
from tests.sweep.rankings import RankingWorld
from tests.sweep.world import CONTEXTS, ITEMS, PERIODIC, TARGETS, World

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

EXACT = 1e-9  # relative to the value or its standard error
SIGMAS = 5.0
FEW = 50  # rows of a logger below which its standard error is a guess
FEW_PAYING = {"rare": 800, "heavy": 2_000}  # the same, if few of the rows earn anything
OWN = ("naive", "weighted", "doubly-robust-naive", "doubly-robust-weighted")  # no mixture
SURE = 1 - 1e-9  # mass on actions that are played; less is missing
ALONE = ("weighted", "naive")  # they weigh each log by itself
PLANNED = 0.25  # part of a half-width by which a plan may miss it
TRIED_PLANS = {"plain", "by", "dropped", "mapping"}  # whose rows are drawn alike
PLAN_DRAWS = 5  # logs with the planned rows; a single one may have a few large amounts
LARGEST_PLAN = 40_000  # rows that are drawn to try a plan
WITHOUT_REFERENCE = {*PERIODIC, *RANKED}
OF_AUDIT = {"action-too-often", "action-too-seldom"}  # of probabilities that are right


@dataclass(frozen=True)
class Number:
    """A number of a result with its truth."""

    kind: str
    name: str
    value: float
    std_error: float
    truth: float

    @property
    def pull(self) -> float:
        """Distance from the truth in standard errors."""
        gap = self.value - self.truth
        if abs(gap) <= EXACT * max(1.0, abs(self.truth)):
            return 0.0
        return gap / self.std_error if self.std_error > 0 else math.copysign(math.inf, gap)


class FarFromTruth(Wrong):
    """Numbers that are more than five standard errors from their truth."""


def judge(asked: Asked, result: Mapping[str, Any]) -> list[Number]:
    """Return the numbers of a right result; raise `Wrong` for another."""
    _refuse_nan(result, "")
    codes = {w["code"] for w in result.get("warnings", ())}
    if codes & OF_AUDIT:
        raise Wrong(f"right probabilities are found wrong: {codes & OF_AUDIT}")
    verb = asked.combination["verb"]
    if verb == "check":
        return _check(asked, result)
    if verb == "watch":
        return _watch(asked, result)
    if verb == "plan":
        if not _alarmed(result):
            _plan(asked, result)
        result = result["evaluated"]
    if verb not in {"backtest", "learn", "compare"}:
        _check_reference(asked, result)
    found = collect_numbers(asked, result)
    if _chancy(asked):
        return []
    far = [n for n in found if abs(n.pull) > SIGMAS]
    if far:
        raise FarFromTruth("; ".join(_shown(n) for n in far[:6]))
    return found


def _chancy(asked: Asked) -> bool:
    """Test if the few rows with large weights may earn nothing, which no log shows.

    Standard errors are then too small now and then, and only the reference judges.
    """
    combination = asked.combination
    return combination["loggers"] == "greedy" and combination["rewards"] in FEW_PAYING


def collect_numbers(asked: Asked, result: Mapping[str, Any]) -> list[Number]:
    """Return the numbers of a result whose truth is known; `watch` and `check` have none."""
    verb = asked.combination["verb"]
    if verb == "backtest":
        return [*_backtested(asked, result)]
    if verb == "learn":
        return [*_learned(asked, result)]
    if verb == "compare":
        return [*_compared(asked, result, _warned(result))]
    return [*_evaluated(asked, result)]


def _shown(n: Number) -> str:
    return f"{n.kind} {n.name}: {n.value:.6g} ± {n.std_error:.2g}, truth {n.truth:.6g}"


def _refuse_nan(found: object, path: str) -> None:
    """Refuse NaN anywhere in a result."""
    if isinstance(found, float) and math.isnan(found):
        raise Wrong(f"NaN at {path}")
    if isinstance(found, dict):
        for name, part in found.items():
            _refuse_nan(part, f"{path}.{name}")
    elif isinstance(found, list | tuple):
        for k, part in enumerate(found):
            _refuse_nan(part, f"{path}[{k}]")


def _warned(result: Mapping[str, Any]) -> bool:
    """Test if a result warns of anything that could bias it."""
    found = (w for w in result["warnings"] if w["code"] != "propensities-estimated")
    return any(w["severity"] in {"warning", "alarm"} for w in found)


def _alarmed(result: Mapping[str, Any]) -> bool:
    return any(w["severity"] == "alarm" for w in result["warnings"])


# --- evaluations ------------------------------------------------------------------------


def _evaluated(asked: Asked, result: Mapping[str, Any]) -> Iterator[Number]:
    """Yield the numbers of an evaluation whose truth is known."""
    world = asked.world
    yield from _logged(asked, result)
    for entry in result["targets"]:
        name = entry["target"]
        if name not in TARGETS and name not in world.counts:
            continue
        for estimate in entry["estimates"]:
            _check_estimate(estimate)
            truth = _estimand(asked, result, name, estimate)
            if truth is not None:
                kind = f"value {estimate['estimator']}"
                yield Number(kind, name, estimate["value"], estimate["std_error"], truth)
        if "difference" in entry:
            best = entry["estimates"][0]["estimator"]
            yield from _difference(asked, entry["difference"], best)
        for logger in entry["loggers"]:
            yield from _single(asked, name, logger)
        yield from _courses(asked, name, entry.get("periods", ()))
    if "segments" in result:
        yield from _segments(asked, result["segments"])
    yield from _measured(asked, result)
    if result.get("backtest"):
        yield from _backtested(asked, result["backtest"])
    if result.get("comparison"):
        yield from _compared(asked, result["comparison"], _warned(result))


def _measured(asked: Asked, result: Mapping[str, Any]) -> Iterator[Number]:
    """Yield metrics whose truth follows from the reward's, and chances of a reward of 0."""
    values = {
        (t["target"], e["estimator"]): e for t in result["targets"] for e in t["estimates"]
    }
    for entry in result.get("metrics", ()):
        for found in entry["targets"]:
            name, estimator = found["target"], found["estimator"]
            if found.get("value") is None or not _covered(asked, name, estimator):
                continue
            same = values.get((name, estimator))
            if entry["metric"] == "again" and same and found["value"] != same["value"]:
                raise Wrong(f"the metric is {found['value']}, the reward {same['value']}")
            truth, kind = asked.world.value(name), f"metric {entry['metric']}"
            truth /= 2 + truth if entry["metric"] == "ratio" else 1
            yield Number(kind, name, found["value"], found["std_error"], truth)
            if entry["metric"] == "again" and "difference" in found:
                yield from _difference(asked, found["difference"], estimator)
    clicks = asked.combination["rewards"] == "clicks" and isinstance(asked.world, World)
    for entry in (result.get("distribution") or {}).get("thresholds", ()) if clicks else ():
        name = entry["target"]
        if _covered(asked, name, "naive") and not _warned(result):
            truth = 1 - asked.world.value(name)
            yield Number("threshold", name, entry["probability"], entry["std_error"], truth)


def _few(asked: Asked) -> int:
    return FEW_PAYING.get(asked.combination["rewards"], FEW)


def _logged(asked: Asked, result: Mapping[str, Any]) -> Iterator[Number]:
    """Yield the mean rewards of the loggers, and check the number of rows."""
    ranked = asked.combination["structure"] in RANKED
    for entry in result["loggers"]:
        label = entry["logger"]
        own = np.asarray(asked.columns["logger"]) == label
        rewards = np.asarray(asked.columns["reward"])[own]
        if ranked:
            requests = entry["rows"] / result["rows_per_request"]
            if requests != asked.world.counts[label]:
                raise Wrong(f"{requests} requests of {label}, not {asked.world.counts[label]}")
            continue
        if entry["rows"] != len(rewards):
            raise Wrong(f"{entry['rows']} rows of {label}, {len(rewards)} were written")
        if "mean_reward" in entry:
            mean = float(rewards.mean())
            if abs(entry["mean_reward"] - mean) > EXACT * max(1.0, abs(mean)):
                raise Wrong(f"mean reward of {label}: {entry['mean_reward']}, not {mean}")
            if asked.combination["structure"] not in {"live", "cluster"}:
                error = float(rewards.std(ddof=1)) / math.sqrt(len(rewards))
                if len(rewards) >= _few(asked):
                    yield Number("mean reward", label, mean, error, asked.world.value(label))


def _check_estimate(estimate: Mapping[str, Any]) -> None:
    value, lower, upper = (estimate[k] for k in ("value", "lower", "upper"))
    name = estimate["estimator"]
    if not lower <= upper:
        raise Wrong(f"interval of {name} ends before it begins: [{lower}, {upper}]")
    if lower == upper and estimate["std_error"] > 0:
        raise Wrong(f"interval of {name} has no width")
    if not all(map(math.isfinite, (value, estimate["std_error"]))):
        raise Wrong(f"{name} is {value} ± {estimate['std_error']}")
    shares = estimate.get("shares")
    if shares and abs(sum(shares.values()) - 1) > 1e-6:
        raise Wrong(f"shares of {name} sum to {sum(shares.values())}")


def _estimand(
    asked: Asked, result: Mapping[str, Any], name: str, estimate: Mapping[str, Any]
) -> float | None:
    """Return the expectation of an estimate; None where an alarm says that there is none."""
    world, estimator = asked.world, estimate["estimator"]
    truth = world.value(name)
    if _covered(asked, name, estimator):
        return truth
    if not _warned(result):
        raise Wrong(f"{estimator} of {name} misses actions, and nothing says so")
    if estimator in OWN:
        shares: Mapping[str, float] = estimate["shares"]
        return sum(s * world.supported(name, i) for i, s in shares.items())
    return None


def _backtested(asked: Asked, result: Mapping[str, Any]) -> Iterator[Number]:
    """Yield both sides of each prediction, and their distance."""
    for entry in result["loggers"]:
        label = entry["logger"]
        if min(asked.world.counts.values()) < _few(asked) or not math.isfinite(entry["lower"]):
            continue
        yield Number("backtest", f"distance of {label}", entry["z"], 1.0, 0.0)
        if entry["supported"] > SURE:  # otherwise the value is that of some rows
            truth = asked.world.value(label)
            for side in ("predicted", "earned"):
                error = entry[f"{side}_error"]
                yield Number(side, label, entry[side], error, truth)


def _single(asked: Asked, name: str, entry: Mapping[str, Any]) -> Iterator[Number]:
    """Yield the estimate from one log."""
    if "value" not in entry or asked.world.counts[entry["logger"]] < _few(asked):
        return
    if single_log_error(entry) == math.inf:
        return  # which reports say
    truth = asked.world.supported(name, entry["logger"])
    if asked.combination["structure"] == "live" and asked.world.mass(name) < SURE:
        return
    label = f"{name} from {entry['logger']}"
    yield Number("single log", label, entry["value"], entry["std_error"], truth)


def _courses(asked: Asked, name: str, periods: Sequence[Mapping[str, Any]]) -> Iterator[Number]:
    """Yield the value of each period; its rows are those of a day in the zone of the log."""
    if not periods:
        return
    found = [period["rows"] for period in periods]
    _, drawn = np.unique(asked.columns["day"], return_counts=True)
    if found != drawn.tolist():
        raise Wrong(f"periods have {found} rows, {drawn.tolist()} were drawn")
    if asked.world.mass(name) < SURE or asked.combination["target"] == "logger":
        return
    truth = asked.world.value(name)
    for period in periods:
        if period.get("value") is not None and period["rows"] >= _few(asked):
            label = f"{name} in {period['period']}"
            yield Number("course", label, period["value"], period["std_error"], truth)


def _difference(
    asked: Asked, found: Mapping[str, Any], estimator: str, device: str | None = None
) -> Iterator[Number]:
    """Yield a difference of two policies that the logs cover."""
    name, other = found["target"], found["other"]
    world = asked.world
    known = (*TARGETS, *world.counts)
    if name not in known or other not in known:
        return
    if not found["lower"] <= found["upper"]:
        raise Wrong(f"difference {name} less {other}: [{found['lower']}, {found['upper']}]")
    if not all(_covered(asked, i, estimator) for i in (name, other)):
        return
    truth = world.value(name, device) - world.value(other, device)
    label = f"{name} less {other}" + (f" on {device}" if device else "")
    yield Number("difference", label, found["difference"], found["std_error"], truth)


def _covered(asked: Asked, name: str, estimator: str) -> bool:
    """Test if the loggers play all actions of a policy: each of them, or all together."""
    combination = asked.combination
    uncrossed = combination["probabilities"] == "own" or combination["structure"] == "live"
    alone = uncrossed or estimator.startswith(OWN)
    loggers = asked.world.counts if alone else [None]
    return all(asked.world.mass(name, i) > SURE for i in loggers)


def _compared(asked: Asked, found: Mapping[str, Any], warned: bool) -> Iterator[Number]:  # noqa: FBT001 - a fact
    """Yield the values and differences of a comparison."""
    world = asked.world
    for entry in found["targets"]:
        name = entry["target"]
        if name not in TARGETS and name not in world.counts:
            continue
        if _covered(asked, name, found["estimator"]):
            kind = f"compared {found['estimator']}"
            yield Number(kind, name, entry["value"], entry["std_error"], world.value(name))
        elif not warned:
            raise Wrong(f"{name} has actions that a logger never plays, and nothing says so")
    for entry in (*found["pairs"], *found["differences"]):
        yield from _difference(asked, entry, found["estimator"])


def _segments(asked: Asked, found: Mapping[str, Any]) -> Iterator[Number]:
    world, estimator = asked.world, found["estimator"]
    for entry in found["results"]:
        name, part = entry["target"], entry["segment"]
        if not _covered(asked, name, estimator) or entry.get("value") is None:
            continue
        label = f"{name} in {part}"
        truth = _in_segment(asked, name, part)
        yield Number("segment", label, entry["value"], entry["std_error"], truth)
        if asked.combination["structure"] == "by" and "difference" in entry:
            gap = {**entry["difference"], "target": name}
            yield from _difference(asked, gap, estimator, part)
        other = entry.get("difference", {}).get("other")
        contrast = entry.get("contrast")
        if contrast and isinstance(world, World) and _covered(asked, other, estimator):
            rest = next(d for d in ("desk", "phone") if d != part)
            gaps = [world.value(name, d) - world.value(other, d) for d in (part, rest)]
            yield Number(
                "contrast",
                label,
                contrast["difference"],
                contrast["std_error"],
                gaps[0] - gaps[1],
            )


def _in_segment(asked: Asked, name: str, part: str) -> float:
    if isinstance(asked.world, RankingWorld) and asked.combination["structure"] == "position":
        return asked.world.value(name, position=int(part))
    return asked.world.value(name, part)


# --- other verbs ------------------------------------------------------------------------


def _check(asked: Asked, result: Mapping[str, Any]) -> list[Number]:
    if asked.combination["source"] == "saved":
        return []
    if asked.combination["structure"] in RANKED:
        size = result["rows_per_request"]
        requests = {i: rows / size for i, rows in result["rows"].items()}
        if requests != dict(asked.world.counts) or result["faults"]:
            raise Wrong(f"check says {result}, requests are {asked.world.counts}")
        return []
    written = sum(asked.world.counts.values()) + asked.bad
    if sum(result["rows"].values()) != written:
        raise Wrong(f"{written} rows, check says {result['rows']}")
    faults = sum(fault["rows"] for fault in result["faults"])
    combination = asked.combination
    if combination["structure"] == "live" and combination["source"] == "postgres":
        return []  # databases have no periods, so what is missing there is a fault
    if faults < asked.bad or (faults and not asked.bad):
        raise Wrong(f"{asked.bad} bad rows, check says {result['faults']}")
    return []


def _watch(asked: Asked, result: Mapping[str, Any]) -> list[Number]:
    if asked.world.mass("new") < SURE:
        if not result["warnings"]:
            raise Wrong("watch says nothing of actions that are never played")
        return []
    truth, lower, upper = asked.world.value("new"), result["lower"], result["upper"]
    if not lower <= truth <= upper:
        raise FarFromTruth(f"watch: [{lower}, {upper}], truth {truth}")
    return []


def _plan(asked: Asked, result: Mapping[str, Any]) -> None:
    """Compare a plan with the present interval, and try the planned rows."""
    total = sum(entry["rows"] for entry in result["loggers"])
    evaluated = result["evaluated"]["targets"][0]["estimates"]
    widths = {e["estimator"]: (e["upper"] - e["lower"]) / 2 for e in evaluated}
    codes = {warning["code"] for warning in result["warnings"]}
    for option in result["options"]:
        now, wanted = option["half_width_now"], option["half_width"]
        name, rows = option["estimator"], option["rows"]
        if name not in widths or math.isinf(rows) or math.isinf(option["upper"]):
            continue  # the plan says that it promises nothing
        if name in ALONE and "logger-unsupported" in codes:
            continue  # the interval adds what a missing part may earn, which no rows reduce
        if not math.isclose(now, widths[name], rel_tol=PLANNED):
            raise Wrong(f"plan: {name} has half-width {now} now, the evaluation {widths[name]}")
        if option["source"] == "(as now)" and rows > 0:
            expected = total * ((now / wanted) ** 2 - 1)
            if not math.isclose(rows, expected, rel_tol=PLANNED, abs_tol=30):
                raise Wrong(f"plan: {name} as now needs {rows} rows, {expected:.0f} expected")
        if option["source"] in asked.world.counts and 0 < rows < LARGEST_PLAN:
            _try_plan(asked, option)


def _try_plan(asked: Asked, option: Mapping[str, Any]) -> None:
    """Draw the log again with the planned rows, and compare the usual half-width."""
    world, name = asked.world, option["estimator"]
    if not isinstance(world, World) or asked.combination["structure"] not in TRIED_PLANS:
        return
    more = {
        **world.counts,
        option["source"]: world.counts[option["source"]] + int(option["rows"]),
    }
    own = asked.combination["probabilities"] in {"own", "mixture"}
    propensities = None if own else {i: f"p_{i}" for i in more}
    widths = []
    for seed in range(PLAN_DRAWS):
        drawn = replace(world, counts=more).draw(np.random.default_rng([seed, len(name)]))
        columns = {n: v for n, v in drawn.items() if not isinstance(v, list)}
        log = pw.Log(
            pa.table(columns),
            logger="logger",
            reward="reward",
            propensity="p" if own else None,
            propensities=propensities,
        )
        found = pw.evaluate(log, {"new": "p_new"}, name, which_logs=False)["new"]
        widths.append((found.intervals[name].upper - found.intervals[name].lower) / 2)
    width, promised = float(np.median(widths)), option["half_width"]
    total = sum(world.counts.values())
    rough = math.sqrt((total + option["upper"]) / (total + option["rows"]))
    if not promised / (1 + PLANNED) < width < promised * max(1 + PLANNED, 1.1 * rough):
        raise Wrong(
            f"plan: {name} with {option['rows']:.0f} rows of {option['source']} has {width}, "
            f"promised {promised}"
        )


def _learned(asked: Asked, result: Mapping[str, Any]) -> Iterator[Number]:
    """Yield the values of loggers and of the learned policy, and the gains."""
    if not isinstance(asked.world, World):
        return
    known = _learned_value(asked, result["policy"])
    covered = _policy_covered(asked, result["policy"])
    evaluation = result["evaluation"]
    for entry in evaluation["targets"]:
        name = entry["target"]
        for estimate in entry["estimates"]:
            _check_estimate(estimate)
            kind = f"learned {estimate['estimator']}"
            if estimate["estimator"] == "direct-method":  # as good as its model; a note says so
                continue
            if name == result["name"] and covered:
                yield Number(kind, name, estimate["value"], estimate["std_error"], known)
            elif name in asked.world.counts and _covered(asked, name, "naive"):
                truth = asked.world.value(name)
                yield Number(kind, name, estimate["value"], estimate["std_error"], truth)
    for gain in result["gains"]:
        if covered and _covered(asked, gain["logger"], "naive"):
            truth = known - asked.world.value(gain["logger"])
            yield Number("gain", gain["logger"], gain["value"], gain["std_error"], truth)


def _played(asked: Asked, policy: Any) -> Any:  # noqa: ANN401 - a learned policy, an array
    """Return the probabilities of a learned policy, shape (contexts, actions)."""
    world = asked.world
    assert isinstance(world, World)
    context = np.repeat(np.arange(CONTEXTS), len(ITEMS))
    columns = {
        "x1": np.cos(context),
        "x2": np.sin(2 * context),
        "x": context,
        "day": np.repeat("2026-03-01", len(context)),
        "allowed": np.array(
            [list(ITEMS[row]) for row in world.eligible[context]], dtype=object
        ),
        **{f"s_{name}": world.scores[context, k] for k, name in enumerate(ITEMS)},
        **world.sampled_means(np.zeros(len(context), dtype=np.int64), context),
        **_wholes(asked, world, context),
    }
    batch = pw.Batch(np.tile(ITEMS, CONTEXTS), columns)
    return np.asarray(policy.prob(batch)).reshape(CONTEXTS, len(ITEMS))


def _wholes(asked: Asked, world: World, context: Any) -> dict[str, Any]:  # noqa: ANN401 - an array
    """Return the columns of whole distributions, which a learned policy may read."""
    kind = asked.combination["probabilities"]
    if kind not in WHOLE:
        return {}
    found = {f"p_{i}": world.policies[i][0][context] for i in world.counts}
    if kind == "list":
        return dict(found)
    return {
        name: np.array([dict(zip(ITEMS, row, strict=True)) for row in prob.tolist()], object)
        for name, prob in found.items()
    }


def _learned_value(asked: Asked, policy: Any) -> float:  # noqa: ANN401 - a learned policy
    world = asked.world
    assert isinstance(world, World)
    return float(world.chances @ (_played(asked, policy) * world.means).sum(axis=1))


def _policy_covered(asked: Asked, policy: Any) -> bool:  # noqa: ANN401 - a learned policy
    world, played = asked.world, _played(asked, policy) > 0
    assert isinstance(world, World)
    return all(not (played & (world.policies[i].max(axis=0) == 0)).any() for i in world.counts)


# --- the reference ----------------------------------------------------------------------


def _check_reference(asked: Asked, result: Mapping[str, Any]) -> None:
    """Compare values, errors and shares with those of the slow reference.

    It sets no heavy clusters apart: such values have the truth alone.
    """
    combination = asked.combination
    if combination["structure"] in WITHOUT_REFERENCE:
        return
    if combination["probabilities"] == "estimated":
        return
    wanted = {
        (t["target"], e["estimator"]): e for t in result["targets"] for e in t["estimates"]
    }
    names = {"naive", "balanced", "weighted", "self-normalised", "calibrated"}
    if combination["probabilities"] == "mixture":
        names = {"naive", "balanced"}
    apart = any(w["code"] == "decisive-rows" for w in result.get("warnings", ()))
    if apart and combination["structure"] == "cluster":
        names -= {"calibrated"}
    asked_for = {e for _, e in wanted} & names
    if not asked_for:
        return
    if "segments" in result:
        _check_segments(asked, result)
    found = reference(asked, asked_for)
    for name in TARGETS:
        for estimator in asked_for:
            if (name, estimator) in wanted:
                exact = found[name].estimates[estimator]
                _check_equal(asked, f"{estimator} of {name}", wanted[name, estimator], exact)


def reference(asked: Asked, estimators: set[str], device: str | None = None) -> pw.Evaluation:
    """Return the evaluation of the slow reference, on all rows or on those of a device."""
    kind = asked.combination["probabilities"]
    names = [n for n in asked.columns if n.startswith("p_")]
    keep = np.ones(len(asked.columns["p"]), dtype=bool)
    if device is not None:
        keep = np.asarray(asked.columns["device"]) == device
    table = pa.table(
        {n: np.asarray(asked.columns[n])[keep] for n in ("logger", "reward", "p", *names)}
    )
    if kind == "unlogged":
        table = table.set_column(2, "p", pa.array(_frequencies(asked, keep)))
    there = set(table["logger"].to_pylist())
    crossed = {i: f"p_{i}" for i in asked.world.counts if i in there}
    # moments of an only logger are saved as those of its own propensities
    own = kind == "own" or (kind == "one" and asked.combination["source"] == "saved")
    log = pw.Log(
        table,
        logger="logger",
        reward="reward",
        propensity="p" if own else None,
        propensities=None if own else {"log": "p"} if kind in ONLY else crossed,
        densities=kind == "densities",
        reward_range=asked.log.reward_range,
    )
    chosen = [
        e
        for e in ("calibrated", "naive", "balanced", "weighted", "self-normalised")
        if e in estimators
    ]
    combination = asked.combination
    together = combination["structure"] == "cluster"
    together |= combination["source"] in {"saved", "postgres"}
    engine = Reference(apart=not together)
    targets = {n: f"p_{n}" for n in TARGETS}
    return pw.evaluate(log, targets, chosen, engine=engine, interval="student")


def _frequencies(asked: Asked, keep: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return how often each row's action was played in its context."""
    names = [*asked.log.context, "item"]
    columns = [np.asarray(asked.columns[n])[keep].astype(str) for n in names]
    _, played, rows = np.unique(columns, axis=1, return_inverse=True, return_counts=True)
    _, place, total = np.unique(columns[:-1], axis=1, return_inverse=True, return_counts=True)
    return np.asarray(rows[played.ravel()] / total[place.ravel()])


def _check_segments(asked: Asked, result: Mapping[str, Any]) -> None:
    found = result["segments"]
    if found["estimator"] not in {"calibrated", "balanced", "naive"}:
        return
    if asked.combination["probabilities"] == "mixture":
        return
    for device in ("desk", "phone"):
        exact = reference(asked, {found["estimator"]}, device)
        for entry in found["results"]:
            if entry["segment"] == device and entry["target"] in TARGETS:
                judged = exact[entry["target"]].estimates[found["estimator"]]
                label = f"{found['estimator']} of {entry['target']} in {device}"
                _check_equal(asked, label, {**entry, "shares": None}, judged)


def _check_equal(
    asked: Asked, label: str, found: Mapping[str, Any], exact: pw.Estimate
) -> None:
    scale = max(abs(exact.value), exact.std_error)
    scale *= 10 if "calibrated" in label else 1  # its columns may be nearly collinear
    if abs(found["value"] - exact.value) > EXACT * scale:
        raise Wrong(f"{label} is {found['value']}, the reference {exact.value}")
    if asked.combination["structure"] == "cluster":
        return
    if abs(found["std_error"] - exact.std_error) > 1e3 * EXACT * exact.std_error:
        raise Wrong(
            f"error of {label} is {found['std_error']}, the reference {exact.std_error}"
        )
    shares = found.get("shares")
    if shares and any(abs(shares[i] - s) > 1e-7 for i, s in exact.shares.items()):
        raise Wrong(f"shares of {label} are {shares}, the reference {dict(exact.shares)}")
