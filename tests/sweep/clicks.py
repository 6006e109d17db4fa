"""Click logs in the sweep: questions about known worlds, right to nine digits or refused.

A combination takes one value of each feature below.  Values and errors equal those of the slow
reference, and are within five standard errors of the truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import poolwise as pw
from benchmarks.clicks import World
from poolwise.errors import PoolwiseError
from tests.support.clicks import Reference, as_lists, distinct_buckets
from tests.sweep.features import TYPED
from tests.sweep.typed import option_words, print_json, question_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pandas as pd

Choice = dict[str, str]
FEATURES: Mapping[str, tuple[str, ...]] = {
    "source": ("parquet", "frame", "csv", "select", "mapping", "lists"),
    "rankers": ("two", "three", "small"),
    "lists": ("alike", "unequal"),
    "curve": ("fitted", "given"),
    "metric": ("clicks", "discounted"),
    "names": ("plain", "taken"),
    "estimator": ("balanced", "default", "naive", "calibrated", "clipped"),
    "verb": (
        "evaluate",
        "compare",
        "backtest",
        "by",
        "check",
        *TYPED,
        "plan",
        "learn",
        "watch",
        "score",
        "student",
        "betting",
        "summarise",
    ),
}
REFUSED = {"calibrated", "clipped", "plan", "learn", "student", "summarise", "watch", "score"}
REFUSED |= {"betting"}
UNESTIMATED = {"backtest", "check", *TYPED}  # verbs that take no estimator
BUCKETS, SIGMAS = 25, 5.0
WORLDS = {
    "two": World((500, 300), positions=5, items=5, noise=(1.2, 0.6, 0.4), rate=0.4, fall=0.5),
    "three": World((400, 300, 200), positions=5, items=6, rate=0.4, fall=0.5),
    "small": World((600, 300, 30), positions=5, items=5, rate=0.4, fall=0.5),
}


@dataclass(frozen=True)
class Found:
    """What a combination gave: "right", "refused" or "wrong", and why."""

    choice: Choice
    kind: str
    reason: str = ""


def propose(seed: int) -> Choice:
    """Return a combination; verbs take turns, the first value of a feature is more frequent."""
    rng = np.random.default_rng(seed)
    drawn = {
        name: values[0] if rng.random() < 0.3 else str(rng.choice(values))
        for name, values in FEATURES.items()
    }
    return drawn | {"verb": FEATURES["verb"][seed % len(FEATURES["verb"])]}


def run(choice: Choice, seed: int, folder: Path) -> Found:
    """Ask, and compare the answer with the reference and with the truth."""
    try:
        wrong = _compared(choice, seed, folder)
    except PoolwiseError as reason:
        return Found(choice, "refused", f"{type(reason).__name__}: {reason}")
    return Found(choice, "wrong" if wrong else "right", wrong)


def must_refuse(choice: Choice) -> bool:
    """Test if a combination has a value that needs probabilities."""
    verb, estimator = choice["verb"], choice["estimator"]
    return verb in REFUSED or (estimator in REFUSED and verb not in UNESTIMATED)


def _compared(choice: Choice, seed: int, folder: Path) -> str:
    world = WORLDS[choice["rankers"]]
    if choice["lists"] == "unequal":
        world = World(**{**vars(world), "shorter": 0.3})
    texts = distinct_buckets(range(BUCKETS))
    rows: pd.DataFrame = world.table(seed).to_pandas()
    rows = rows.assign(bucket=[texts[r % BUCKETS] for r in rows.request], half=rows.request % 2)
    curve = world.examination.tolist() if choice["curve"] == "given" else None
    worth = None if choice["metric"] == "clicks" else [1 / np.log2(k + 1) for k in range(1, 6)]
    reference = Reference(rows, world.names, curve, worth)
    bias = None if curve is None else dict(enumerate(curve, 1))
    weights = None if worth is None else dict(enumerate(worth, 1))
    source, targets = _source(choice, rows, folder)
    if choice["verb"] in TYPED:
        estimate = _printed(choice, targets, bias, weights, folder)
        return _judged(world, reference, estimate)
    log, targets = pw.click_log(source, targets, bias=bias, worth=weights, **_roles(choice))
    result = _answer(choice, log, targets, folder)
    if choice["verb"] == "check":
        requests = rows.groupby("ranker")["request"].nunique().to_dict()
        wrong = result.faults or result.counts != requests
        return f"check says {result}" if wrong else ""
    if choice["verb"] == "backtest":
        z = [p.z for p in result.loggers.values()]
        return "" if all(map(math.isfinite, z)) and max(map(abs, z)) < SIGMAS else f"z is {z}"
    if choice["estimator"] == "naive":
        return "" if math.isfinite(_estimate(choice, result).value) else "no value"
    if choice["verb"] == "by":
        value, error, _ = reference.estimate("new")
        halves = result.segments.results
        values = [r.estimate.value for r in halves]
        if abs(np.mean(values) - value) > SIGMAS * error:
            return f"segments {values} around {value}"
    return _judged(world, reference, _estimate(choice, result))


def _judged(world: World, reference: Reference, estimate: Any) -> str:  # noqa: ANN401 - a value and its error
    """Compare an estimate with the reference and with the truth."""
    value, error, _ = reference.estimate("new")
    if abs(estimate.value - value) > 1e-9 * max(1.0, value):
        return f"value {estimate.value!r} is not {value!r}"
    if abs(estimate.std_error - error) > 1e-6 * error:
        return f"error {estimate.std_error!r} is not {error!r}"
    pull = (value - world.truth()) / error if reference.worth is None else 0.0  # of clicks
    return "" if abs(pull) < SIGMAS else f"{pull:.1f} standard errors from the truth"


def _source(choice: Choice, rows: pd.DataFrame, folder: Path) -> tuple[Any, dict[str, str]]:
    if choice["source"] == "lists":
        policies = [c.removeprefix("rank_") for c in rows.columns if c.startswith("rank_")]
        rows = as_lists(rows, policies)
    if choice["names"] == "taken":
        rows = rows.rename(columns={"request": "reward", "click": "target_0"})
    path = folder / "rows.parquet"
    rows.to_parquet(path)
    rows.to_csv(folder / "rows.csv", index=False)
    by_ranker = {str(i): part.drop(columns="ranker") for i, part in rows.groupby("ranker")}
    sources: dict[str, Any] = {
        "parquet": str(path),
        "frame": rows,
        "csv": str(folder / "rows.csv"),
        "select": f"SELECT * FROM '{path}'",
        "mapping": by_ranker,
        "lists": str(path),
    }
    return sources[choice["source"]], {"new": "rank_new"}


def _roles(choice: Choice) -> dict[str, Any]:
    taken = choice["names"] == "taken"
    return {
        "request": "reward" if taken else "request",
        "click": "target_0" if taken else "click",
        "position": None if choice["source"] == "lists" else "position",
        "logger": None if choice["source"] == "mapping" else "ranker",
        "ranks": "rank_{logger}",
        "cluster": "bucket",
    }


def _printed(
    choice: Choice,
    targets: dict[str, str],
    bias: dict[int, float] | None,
    worth: dict[int, float] | None,
    folder: Path,
) -> Any:  # noqa: ANN401 - a value and its error
    """Return the estimate that the command prints; sources of Python are files there."""
    ending = "csv" if choice["source"] == "csv" else "parquet"
    path = str(folder / f"rows.{ending}")
    source = f"SELECT * FROM '{path}'" if choice["source"] == "select" else path
    options: dict[str, Any] = {**_roles(choice), "target": targets, "logger": "ranker"}
    for name, curve in (("bias", bias), ("worth", worth)):
        options |= {name: {str(k): e for k, e in curve.items()}} if curve else {}
    if choice["verb"] == "question":
        words = ["clicks", question_file(folder, source, options)]
    else:
        words = ["clicks", source, *option_words(options)]
    # with `worth` the rankers are among the targets, before the new one
    (of_new,) = (t for t in print_json(words)["targets"] if t["target"] == "new")
    estimates = {e["estimator"]: e for e in of_new["estimates"]}
    return SimpleNamespace(**estimates["balanced"])


def _answer(choice: Choice, log: pw.Log, targets: dict[str, str], folder: Path) -> Any:  # noqa: ANN401 - of a verb
    named: Any = choice["estimator"]
    named = pw.Balanced(pw.Shrink("clip", 2.0)) if named == "clipped" else named
    named = None if named == "default" else named
    verb, least = choice["verb"], next(iter(log.by_label))
    ranged = replace(log, reward_range=(0, 5))
    verbs: dict[str, Callable[[], object]] = {
        "compare": lambda: pw.compare(log, targets, baseline=least, estimator=named),
        "backtest": lambda: pw.backtest(log),
        "plan": lambda: pw.plan(log, targets, half_width=0.01),
        "learn": lambda: pw.learn(log),
        "summarise": lambda: pw.summarise(log, targets),
        "check": lambda: pw.check(log, targets),
        "score": lambda: pw.score_log(log, targets, folder / "scored.parquet"),
        "watch": lambda: pw.watch(folder / "state.npz", ranged, targets),
        "betting": lambda: pw.evaluate(ranged, targets, named, interval="betting"),
        "by": lambda: pw.evaluate(log, targets, named, by="half"),
        "student": lambda: pw.evaluate(log, targets, named, interval="student"),
        "evaluate": lambda: pw.evaluate(log, targets, named),
    }
    return verbs[verb]()


def _estimate(choice: Choice, result: Any) -> Any:  # noqa: ANN401 - of a verb
    if choice["verb"] == "compare":
        return next(t for t in result.ranking if t.target == "new").estimate
    name = "naive" if choice["estimator"] == "naive" else "balanced"
    return result["new"].estimates[name]
