"""Logs with more structure: periods, segments, lists, densities; and what watches and learns.

Every function of `STRUCTURES` gives the values of several questions, by name.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.naive_bayes import GaussianNB

import poolwise as pw
from tests.recorded.logs import ACTIONS, COUNTS, SLOPES, roles, rows
from tests.recorded.verbs import Values, answers, brief, counted, kept, recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Asks = dict[str, Callable[[], Values]]

DAYS = {"a": (0, 1, 2, 3), "b": (0, 1), "c": (2, 3)}  # on which a logger is live
RANGE = (0.0, 1.0)
TARGETS = {"t": "t", "v": "v"}
PARTS = ("estimates", "difference")  # of a target: the rest is recorded for plain logs
MODEL = pw.GivenModel("q", {"t": "q_t", "u": "q_u"})
SCORES = [f"s_{name}" for name in ACTIONS]


# --- answers ----------------------------------------------------------------------------


def outcome(found: pw.Evaluation) -> Values:
    """Estimates, differences, segments and codes of an evaluation."""
    whole = recorded(found)
    targets = {
        name: {part: values[part] for part in PARTS if part in values}
        for name, values in whole["targets"].items()
    }
    others: Values = {k: whole[k] for k in ("segments", "warnings") if k in whole}
    return others | {"targets": targets}


def evaluated(log: pw.Log, targets: Any = None, **options: Any) -> Values:  # noqa: ANN401 - of `evaluate`
    return outcome(pw.evaluate(log, targets or TARGETS, **options))


def compared(log: pw.Log, targets: Any = None, **options: Any) -> Values:  # noqa: ANN401 - of `compare`
    found = recorded(pw.compare(log, targets or TARGETS, **options))
    return {k: v for k, v in found.items() if k not in {"evaluation", "headline"}}


def planned(log: pw.Log, target: Any = "t", **options: Any) -> Values:  # noqa: ANN401 - of `plan`
    found = recorded(pw.plan(log, target, **options))
    return {k: v for k, v in found.items() if k != "headline"}


def checked(log: pw.Log, targets: Any = None) -> Values:  # noqa: ANN401 - of `check`
    found = pw.check(log, targets or TARGETS)
    return {"rows": dict(found.rows), "faults": counted(found.faults)}


def summarised(log: pw.Log, targets: Any = None, **options: Any) -> Values:  # noqa: ANN401 - of `evaluate`
    """An evaluation of a summary that was saved and loaded."""
    named = targets or TARGETS
    with tempfile.TemporaryDirectory() as folder:
        pw.summarise(log, named).save(f"{folder}/summary.parquet")
        loaded = pw.Summary.load(f"{folder}/summary.parquet")
    return outcome(pw.evaluate(log, named, engine=loaded, **options))


def scored(log: pw.Log, targets: Any) -> Values:  # noqa: ANN401 - of `score_log`
    """An evaluation of the file that the policies were scored into."""
    with tempfile.TemporaryDirectory() as folder:
        found = pw.score_log(log, targets, Path(folder) / "scored.parquet")
        return brief(pw.evaluate(*found))


def watched(found: pw.Watched) -> Values:
    """Bounds at every block end, claims and codes of a watch."""
    values: Values = kept(found.to_dict())
    return {**values, "claims": [claim.holds for claim in found.claims]}


# --- logs -------------------------------------------------------------------------------


def columns(seed: int, counts: Mapping[str, int] = COUNTS, **given: Any) -> Values:  # noqa: ANN401 - of `rows`
    """Columns of a log, with a day on which its logger is live, a device and a country."""
    found = rows(seed, counts, **given)
    rng = np.random.default_rng([seed, 1])
    labels = found["logger"]
    found["day"] = np.array([rng.choice(DAYS.get(label, (0, 1))) for label in labels])
    found["device"] = np.where(found["x2"] > 0.3, "phone", "desk")
    found["country"] = np.array(["at", "be", "ch"])[rng.integers(0, 3, len(labels))]
    return found


def log_of(found: Values, counts: Mapping[str, int] = COUNTS, **more: Any) -> pw.Log:  # noqa: ANN401 - any role
    return pw.Log(pa.table(found), **roles(counts, **{"reward_range": RANGE, **more}))


def with_holes(found: Values) -> Values:
    """The columns, with NULL as the probability of a policy on days when it is not live."""
    masks = {f"p_{i}": ~np.isin(found["day"], days) for i, days in DAYS.items()}
    holes = {name: pa.array(found[name], mask=mask) for name, mask in masks.items()}
    return {**found, **holes}


def with_faults(found: Values) -> Values:
    """The columns, with rewards, probabilities and labels that no log may have."""
    found["reward"][[3, 800]] = np.nan
    found["p_a"][[5, 6, 7]] = 0.0
    found["t"][[11, 1_200]] = -0.25
    found["logger"][[20, 21]] = "e"
    return found


def own(found: Values, **more: Any) -> pw.Log:  # noqa: ANN401 - any role
    """A log of which only the row's own propensity is known."""
    given: dict[str, Any] = {"logger": "logger", "reward": "reward", "propensity": "p"}
    return pw.Log(pa.table(found), **{**given, "reward_range": RANGE, **more})


def logarithmic(found: Values) -> Values:
    """The columns, with natural logarithms in place of probabilities."""
    names = ("p", "p_a", "p_b", "p_c", "t", "u", "v")
    return {**found, **{name: np.log(found[name]) for name in names}}


# --- periods ----------------------------------------------------------------------------


def of_periods(log: pw.Log) -> Asks:
    """Questions about a log with periods."""
    modelled = {"model": MODEL, "targets": {"t": "t", "u": "u"}}
    asks: Asks = {
        "evaluate": partial(evaluated, log),
        "which logs": partial(evaluated, log, which_logs=True),
        "baseline": partial(evaluated, log, baseline="c"),
        "target as baseline": partial(evaluated, log, baseline="v"),
        "by": partial(evaluated, log, by="device"),
        "in batches": partial(evaluated, log, engine=pw.DuckDB(batch_rows=100)),
        "model": partial(evaluated, log, **modelled),
        "only period-dr": partial(evaluated, log, estimators="period-dr", **modelled),
        "compare model": partial(compared, log, **modelled),
        "upper": partial(evaluated, log, sides="upper", level=0.8),
        "compare": partial(compared, log),
        "compare with a logger": partial(compared, log, baseline="a"),
        "compare naive": partial(compared, log, estimator="naive"),
        "half-width": partial(planned, log, half_width=0.03),
        "lift": partial(planned, log, lift=0.05, baseline="a"),
        "check": partial(checked, log),
        "summary": partial(summarised, log),
    }
    for name in ("period-balanced", "calibrated", "balanced", "naive"):
        asks[f"only {name}"] = partial(evaluated, log, estimators=name)
    for method in ("student", "betting", "smoothed"):
        asks[f"interval {method}"] = partial(evaluated, log, interval=method)
    return asks


def period() -> Asks:
    """Policies may have learned from earlier days, and all are known on all days."""
    return of_periods(log_of(columns(30), period="day"))


def live() -> Asks:
    """The probability of a policy is NULL on days when it is not live."""
    return of_periods(log_of(with_holes(columns(31)), period="day"))


def other_periods() -> Asks:
    """Logs with periods, each with one more peculiarity."""
    found = columns(32)
    holes = with_holes(columns(32))
    faulty = with_holes(with_faults(columns(32)))
    logs = {
        "clusters": log_of(found, period="day", cluster="user"),
        "live clusters": log_of(holes, period="day", cluster="user"),
        "live pattern": log_of(holes, period="day", propensities="p_{logger}"),
        "live without period": log_of(holes),
        "live dropped": log_of(faulty, period="day", on_fault="drop"),
        "live faulty": log_of(faulty, period="day"),
        "live logarithms": log_of(
            with_holes(logarithmic(found)), period="day", log_probabilities=True
        ),
        "uncrossed": own(found, period="day"),
        "mixture": own(found, period="day", mixture="average"),
        "estimated mixture": own(
            found, period="day", estimate_mixture=GaussianNB(), action="item"
        ),
        "trained": log_of(found, period="day", trained_on={"b": ["a"], "t": ["a"]}),
        "expression": log_of(found, period="day // 2"),
        "rewards of no range": log_of(found, period="day", reward="gain", reward_range=None),
        "one logger": pw.Log(
            pa.table(columns(33, {"a": 300})), reward="reward", propensity="p", period="day"
        ),
    }
    asks: Asks = {}
    for name, log in logs.items():
        asks |= {
            f"{name}: evaluate": partial(evaluated, log),
            f"{name}: compare": partial(compared, log, baseline="v"),
            f"{name}: lift": partial(planned, log, lift=0.05),
            f"{name}: check": partial(checked, log),
        }
    return asks


# --- segments ---------------------------------------------------------------------------


def segments() -> Asks:
    """The same question for each value of a column, of logs that differ."""
    found = columns(34)
    log = log_of(found)
    modelled = {"model": MODEL, "targets": {"t": "t", "u": "u"}}
    one = pa.table(columns(35, {"b": 300}))
    asks: Asks = {
        "plain": partial(evaluated, log, by="device"),
        "country": partial(evaluated, log, by="country", baseline="b"),
        "expression": partial(evaluated, log, by="x1 > 0.5"),
        "target as baseline": partial(evaluated, log, by="device", baseline="v"),
        "naive": partial(evaluated, log, by="device", estimators="naive"),
        "balanced": partial(evaluated, log, by="country", estimators="balanced"),
        "student": partial(evaluated, log, by="country", interval="student"),
        "lower": partial(evaluated, log, by="country", sides="lower", level=0.9),
        "model": partial(evaluated, log, by="device", **modelled),
        "in batches": partial(evaluated, log, by="country", engine=pw.DuckDB(batch_rows=100)),
        "clusters": partial(evaluated, log_of(found, cluster="user"), by="country"),
        "within clusters": partial(evaluated, log_of(found, cluster="country"), by="country"),
        "uncrossed": partial(evaluated, own(found), by="device"),
        "mixture": partial(evaluated, own(found, mixture="average"), by="device"),
        "faulty": partial(evaluated, log_of(with_faults(columns(34))), by="device"),
        "dropped": partial(
            evaluated, log_of(with_faults(columns(34)), on_fault="drop"), by="device"
        ),
        "logarithms": partial(
            evaluated, log_of(logarithmic(found), log_probabilities=True), by="device"
        ),
        "one logger": partial(
            evaluated, pw.Log(one, reward="reward", propensity="p"), by="device"
        ),
        "one segment": partial(evaluated, log, by="x1 < 99"),
        "by reward": partial(evaluated, log, by="reward >= 0"),
        "no column": partial(evaluated, log, by="nowhere"),
    }
    return asks


# --- other verbs ------------------------------------------------------------------------


def smoothed() -> Asks:
    """Intervals that hold for every number of rows, from moments alone."""
    found = columns(36)
    log = log_of(found)
    ask = partial(evaluated, interval="smoothed")
    return {
        "plain": partial(ask, log),
        "lower": partial(ask, log, sides="lower"),
        "upper": partial(ask, log, sides="upper", level=0.8),
        "by": partial(ask, log, by="device"),
        "uncrossed": partial(ask, own(found)),
        "clusters": partial(ask, log_of(found, cluster="user")),
        "trained": partial(ask, log_of(found, trained_on={"t": ["a"]})),
        "dropped": partial(ask, log_of(with_faults(columns(36)), on_fault="drop")),
        "mixture": partial(ask, own(found, mixture="average")),
        "wide range": partial(ask, log_of(found, reward_range=(-1.0, 3.0))),
        "no range": partial(ask, log_of(found, reward_range=None)),
        "summary": partial(summarised, log, interval="smoothed"),
    }


def lift() -> Asks:
    """Rows that show a difference from a baseline."""
    found = columns(37)
    log = log_of(found)
    one = pa.table(columns(38, {"b": 300}))
    logs = {
        "uncrossed": own(found),
        "clusters": log_of(found, cluster="user"),
        "trained": log_of(found, trained_on={"b": ["a"]}),
        "dropped": log_of(with_faults(columns(37)), on_fault="drop"),
        "mixture": own(found, mixture="average"),
        "estimated mixture": own(found, estimate_mixture=GaussianNB(), action="item"),
        "one logger": pw.Log(one, reward="reward", propensity="p"),
        "real": log_of(found, reward="gain", reward_range=None),
    }
    return {
        "plain": partial(planned, log, lift=0.05),
        "baseline": partial(planned, log, lift=0.02, baseline="b", power=0.9),
        "falling": partial(planned, log, {"u": "u"}, lift=-0.05, level=0.8),
        "both goals": partial(planned, log, lift=0.05, half_width=0.02),
        "naive": partial(planned, log, lift=0.05, estimators=["naive"]),
        "no goal": partial(planned, log),
        **{name: partial(planned, other, lift=0.05) for name, other in logs.items()},
    }


def watches() -> Asks:
    """Rows are added to a state, in several ways."""
    found = columns(39)
    later = columns(40)
    later["day"] += 4
    days = log_of(found, period="day")
    more = log_of(later, period="day")
    holes = log_of(with_holes(columns(39)), period="day")
    faulty = with_faults(columns(39))
    return {
        "whole": partial(watching, [log_of(found)], {"t": "t"}),
        "days": partial(watching, [days, more], {"t": "t"}, above=0.3),
        "a logger": partial(watching, [days, more], {"t": "t"}, better_than="a"),
        "a target": partial(watching, [days, more], TARGETS, better_than="v"),
        "planned": partial(watching, [days], {"t": "t"}, planned=5_000, level=0.9),
        "uncrossed": partial(watching, [own(found), own(later)], {"t": "t"}),
        "live": partial(watching, [holes], {"t": "t"}, better_than="a"),
        "live, other": partial(watching, [holes], {"t": "t"}, better_than="b"),
        "dropped": partial(watching, [log_of(faulty, on_fault="drop")], {"t": "t"}),
        "faulty": partial(watching, [log_of(faulty)], {"t": "t"}),
        "in batches": partial(watching, [days], {"t": "t"}, engine=pw.DuckDB(batch_rows=100)),
        "twice": partial(watching, [days, days], {"t": "t"}),
    }


def watching(logs: list[pw.Log], target: Mapping[str, Any], **options: Any) -> Values:  # noqa: ANN401 - of `watch`
    """The state after each log was added."""
    with tempfile.TemporaryDirectory() as folder:
        state = f"{folder}/state.npz"
        results = [pw.watch(state, log, target, **options) for log in logs]
        seen = pw.watch(state, above=options.get("above"))
    return {"added": [watched(found) for found in results], "looked at": watched(seen)}


def eligible() -> Asks:
    """Policies play only what a row's list allows."""
    found = columns(41)
    rng = np.random.default_rng(42)
    places = rng.random((len(found["item"]), len(ACTIONS))) < 0.7
    names = np.array(ACTIONS)
    places |= found["item"][:, None] == names
    lists = [list(names[row]) for row in places]
    found["allowed"] = lists
    found["best"] = np.array([allowed[0] for allowed in lists])
    loggers: dict[str, Any] = {
        "a": pw.Uniform(ACTIONS),
        **{i: pw.Softmax(SCORES, ACTIONS, 1 / SLOPES[i]) for i in ("b", "c")},
    }
    targets: dict[str, Any] = {
        "softmax": pw.Softmax(SCORES, ACTIONS, 0.7),
        "greedy": pw.EpsilonGreedy("best", ACTIONS, 0.3),
        "uniform": pw.Uniform(ACTIONS),
        "mixed": pw.Mixture([pw.Uniform(ACTIONS), pw.Softmax(SCORES, ACTIONS)], [0.4, 0.6]),
        "column": "t",
    }
    context = ["x1", "x2", "best", *SCORES, "allowed"]
    given: dict[str, Any] = {"action": "item", "eligible": "allowed", "context": context}
    log = log_of(found, propensities=loggers, **given)
    days = log_of(found, propensities=loggers, period="day", **given)
    missing = {**found, "allowed": [list("wx")] * len(lists)}
    return {
        "evaluate": partial(evaluated, log, targets),
        "by": partial(evaluated, log, targets, by="device"),
        "period": partial(evaluated, days, targets),
        "columns": partial(evaluated, log_of(found, **given), targets),
        "compare": partial(compared, log, targets, baseline="greedy"),
        "lift": partial(planned, log, {"softmax": targets["softmax"]}, lift=0.05),
        "check": partial(checked, log, targets),
        "scored": partial(scored, log, targets),
        "missing": partial(evaluated, log_of(missing, propensities=loggers, **given), targets),
    }


def densities() -> Asks:
    """Actions are numbers, and policies have densities."""
    rng = np.random.default_rng(43)
    found = columns(43)
    labels = found["logger"]
    centres = {i: 2.0 + SLOPES[i] * np.tanh(found["x1"]) for i in COUNTS}
    price = np.select([labels == i for i in COUNTS], list(centres.values()))
    price = np.abs(price + 0.8 * rng.normal(size=len(labels))) + 0.05
    found |= {f"m_{i}": centre for i, centre in centres.items()}
    found |= {f"p_{i}": _normal(price, centre, 0.8) for i, centre in centres.items()}
    found |= {"price": price, "reward": (rng.random(len(price)) < price / 6).astype(float)}
    found |= {"t": _normal(price, 2.2, 0.7), "v": _normal(price, 1.6, 0.9)}
    given: dict[str, Any] = {"densities": True, "action": "price"}
    log = log_of(found, **given)
    loggers = {i: pw.Gaussian(f"m_{i}", 0.8) for i in COUNTS}
    scored_log = log_of(found, **given, propensities=loggers)
    targets = {
        "gaussian": pw.Gaussian(2.2, 0.7),
        "column": pw.Gaussian("m_b", 0.6),
        "lognormal": pw.LogNormal(2.0, 0.4),
        "range": pw.Range(1.0, 3.0),
        "mixed": pw.Mixture([pw.Gaussian(2.0, 0.6), pw.Range(0.5, 3.5)], [0.5, 0.5]),
    }
    return {
        "columns": partial(evaluated, log),
        "by": partial(evaluated, log, by="device"),
        "period": partial(evaluated, log_of(found, **given, period="day")),
        "clusters": partial(evaluated, log_of(found, **given, cluster="user")),
        "compare": partial(compared, log, baseline="a"),
        "lift": partial(planned, log, lift=0.05),
        "half-width": partial(planned, log, half_width=0.03),
        "policies": partial(evaluated, scored_log, targets),
        "compare policies": partial(compared, scored_log, targets, baseline="column"),
        "check": partial(checked, scored_log, targets),
        "scored": partial(scored, scored_log, targets),
        "not declared": partial(evaluated, log_of(found, action="price")),
    }


def _normal(
    x: NDArray[np.float64],
    centre: NDArray[np.float64] | float,
    spread: float,
) -> NDArray[np.float64]:
    density: NDArray[np.float64] = np.exp(-0.5 * ((x - centre) / spread) ** 2)
    density /= spread * np.sqrt(2 * np.pi)
    return density


def mixtures() -> Asks:
    """The mixture of the loggers' probabilities is a column, or is estimated."""
    found = columns(44)
    found["average_log"] = np.log(found["average"])
    given = own(found, mixture="average")
    estimated = own(found, estimate_mixture=GaussianNB(), action="item", context=["x1", "x2"])
    some = {"a": "p_a", "b": "p_b", "c": None}
    asks: Asks = {
        "logarithms": partial(
            evaluated,
            own(
                {**found, **{k: np.log(found[k]) for k in ("p", "t", "v")}},
                mixture="average_log",
                log_probabilities=True,
            ),
        ),
        "not all crossed": partial(evaluated, own(found, propensities=some)),
        "not all crossed, estimated": partial(
            evaluated,
            own(
                found,
                propensities=some,
                estimate_mixture=GaussianNB(),
                action="item",
                context=["x1"],
            ),
        ),
    }
    for name, log in {"given": given, "estimated": estimated}.items():
        asks |= {
            f"{name}: evaluate": partial(evaluated, log),
            f"{name}: which logs": partial(evaluated, log, which_logs=True),
            f"{name}: by": partial(evaluated, log, by="device"),
            f"{name}: baseline": partial(evaluated, log, baseline="b"),
            f"{name}: compare": partial(compared, log, baseline="v"),
            f"{name}: clusters": partial(evaluated, replace(log, cluster="user")),
            f"{name}: half-width": partial(planned, log, half_width=0.03),
            f"{name}: check": partial(checked, log),
            f"{name}: summary": partial(summarised, log),
            f"{name}: dropped": partial(
                evaluated,
                replace(log, source=pa.table(with_faults(columns(44))), on_fault="drop"),
            ),
        }
    return asks


# --- rankings ---------------------------------------------------------------------------


def lists() -> dict[str, Any]:
    """Columns of lists of one to three positions of two loggers."""
    rng = np.random.default_rng(45)
    size = 240
    length = rng.integers(1, 4, size)
    request = np.repeat(np.arange(size), length)
    total = len(request)
    return {
        "request": request,
        "position": np.concatenate([np.arange(1, n + 1) for n in length]),
        "logger": np.where(request < 140, "a", "b"),
        "user": request // 3,
        "device": np.where(rng.random(size) < 0.5, "desk", "phone")[request],
        "click": (rng.random(total) < 0.4).astype(float),
        "average": rng.uniform(0.4, 0.8, total),
        **{name: rng.uniform(0.4, 0.8, total) for name in ("p_a", "p_b", "t", "v")},
    }


def rankings() -> Asks:
    """Lists in each model of rewards, whole and by segment."""
    found = lists()
    asks: Asks = {}
    for model in ("cascade", "independent", "whole"):
        ask = partial(ranked, found, model=model)
        asks |= {
            f"{model}: evaluate": ask,
            f"{model}: by device": partial(ask, by="device"),
            f"{model}: by position": partial(ask, by="position"),
            f"{model}: which logs": partial(ask, which_logs=True),
            f"{model}: users": partial(ask, roles={"cluster": "user"}, by="device"),
            f"{model}: compare": partial(ask, verb=compared, baseline="a"),
            f"{model}: check": partial(ask, verb=checked),
        }
    ask = partial(ranked, found, model="cascade")
    asks |= {  # what does not depend on the model of the rewards
        "cascade: baseline": partial(ask, baseline="b", by="device"),
        "cascade: target as baseline": partial(ask, baseline="v"),
        "cascade: trained": partial(ask, roles={"trained_on": {"t": ["a"]}}),
        "cascade: naive": partial(ask, estimators="naive", interval="student"),
        "cascade: lift": partial(ask, verb=planned, only=True, lift=0.1),
        "cascade: half-width": partial(ask, verb=planned, only=True, half_width=0.1),
    }
    logs = {name: np.log(found[name]) for name in ("p_a", "p_b", "t", "v")}
    uncrossed = {"propensities": None, "propensity": "p_a"}
    return {
        **asks,
        "logarithms": partial(
            ranked, {**found, **logs}, model="cascade", roles={"log_probabilities": True}
        ),
        "uncrossed": partial(ranked, found, model="cascade", roles=uncrossed, by="device"),
        "incomplete": partial(
            ranked, {**found, "position": found["position"] + 5}, model="cascade"
        ),
    }


def ranked(
    found: Mapping[str, Any],
    *,
    model: Any,  # noqa: ANN401 - one of three words
    roles: Mapping[str, Any] | None = None,
    verb: Callable[..., Values] = evaluated,
    only: bool = False,
    **options: Any,  # noqa: ANN401 - of the verb
) -> Values:
    given: dict[str, Any] = {"propensities": {"a": "p_a", "b": "p_b"}, **(roles or {})}
    log, targets = pw.ranking_log(
        pa.table(dict(found)),
        {"t": "t"} if only else TARGETS,
        request="request",
        position="position",
        reward="click",
        logger="logger",
        model=model,
        **given,
    )
    return verb(log, targets, **options)


# --- files of questions -----------------------------------------------------------------

QUESTION = """
log = "log.parquet"
logger = "logger"
reward = "reward"
reward_range = [0.0, 1.0]
level = 0.9
baseline = "b"

[propensities]
a = "p_a"
b = "p_b"
c = "p_c"

[targets]
t = "t"
v = "v"
"""


def questions() -> Asks:
    """Questions that are written in files."""
    asks: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("evaluate", "", {}),
        ("compare", "", {}),
        ("check", "", {}),
        ("evaluate", 'by = "device"\n', {}),
        ("evaluate", 'cluster = "user"\ninterval = "student"\n', {}),
        ("evaluate", 'period = "day"\n', {"baseline": "a"}),
        ("evaluate", 'on_fault = "drop"\n', {"level": 0.8}),
        ("plan", "half_width = 0.03\n", {}),
        ("evaluate", 'rewrad = "reward"\n', {}),
    )
    return {f"{verb} {more.strip()}": partial(asked, verb, more, o) for verb, more, o in asks}


def asked(verb: str, more: str, options: dict[str, Any]) -> Values:
    """The answer to a file, with more keys at its beginning."""
    text = more + QUESTION
    if verb == "plan":
        text = text.replace('v = "v"\n', "")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        pq.write_table(pa.table(columns(46)), place / "log.parquet")
        (place / "question.toml").write_text(text, "utf-8")
        found = getattr(pw.Question.read(place / "question.toml"), verb)(**options)
    if verb == "evaluate":
        return outcome(found)
    if verb == "check":
        return {"rows": dict(found.rows), "faults": counted(found.faults)}
    return {k: v for k, v in recorded(found).items() if k not in {"evaluation", "headline"}}


# --- learning ---------------------------------------------------------------------------


def learned(log: pw.Log, **options: Any) -> Values:  # noqa: ANN401 - of `learn`
    """Gains, choices and values of a learned policy."""
    given: dict[str, Any] = {"folds": 2, "strengths": (0.1,), "smoothing": (0.5,), **options}
    found = pw.learn(log, **given)
    whole = kept(found.to_dict())
    parts = ("better", "value", "std_error", "gains", "choices", "warnings")
    comparison = found.comparison
    return {
        **{part: whole[part] for part in parts},
        "evaluation": outcome(found.evaluation),
        "differences": None if comparison is None else whole["comparison"]["differences"],
    }


def learning() -> Asks:
    """Policies that are learned from a log."""
    found = columns(47, base=0.15)
    given: dict[str, Any] = {"action": "item", "context": ["x1", "x2"]}
    log = log_of(found, **given)
    faulty = log_of(with_faults(columns(47, base=0.15)), **given, on_fault="drop")
    allowed = [sorted({item, "w", "z"}) for item in found["item"]]
    listed = log_of({**found, "allowed": allowed}, **given, eligible="allowed")
    return {
        "folds": partial(learned, log),
        "holdout": partial(learned, log, folds=None, holdout=0.4),
        "a logger": partial(
            learned, log, anchor="b", level=0.9, epsilon=0.1, features=["x1", "device"]
        ),
        "settings": partial(learned, log, strengths=(0.05, 0.5), smoothing=(0.0, 1.0)),
        "clusters": partial(learned, replace(log, cluster="user"), anchor=None, seed=1),
        "uncrossed": partial(learned, own(found, **given)),
        "mixture": partial(learned, own(found, **given, mixture="average")),
        "dropped": partial(learned, faulty),
        "eligible": partial(learned, listed),
        "trained": partial(learned, replace(log, trained_on={"b": ["a"]})),
        "period": partial(learned, replace(log, period="day")),
    }


def _answered(make: Callable[[], Asks]) -> Values:
    return answers(make().items())


STRUCTURES: dict[str, Callable[[], Values]] = {
    name: partial(_answered, make)
    for name, make in {
        "period": period,
        "live": live,
        "other periods": other_periods,
        "segments": segments,
        "smoothed": smoothed,
        "lift": lift,
        "watch": watches,
        "eligible": eligible,
        "densities": densities,
        "mixtures": mixtures,
        "lists": rankings,
        "question files": questions,
        "learn": learning,
    }.items()
}
