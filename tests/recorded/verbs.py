"""Questions about a log, and the conversion of results to numbers that can be stored.

A result keeps its numbers, names and codes.  Sentences are left out, because their wording
may change; so are histograms, because they are long.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import poolwise as pw

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from tests.recorded.logs import Case

    Question = tuple[str, Callable[[], Any]]  # its name, and what asks it

Values = dict[str, Any]  # numbers, strings and None, nested
METHODS = ("student", "betting")
COMPARED = ("calibrated", "balanced", "naive", "self-normalised")
WORDS = {"histogram", "message", "name", "reason", "sentence", "assumptions", "source"}
WORDS |= {"recommended", "assumes_fixed"}
KEYS = ("target", "estimator", "logger", "check")  # the name of an entry in a list
HALF_WIDTH = 0.02


def estimators(*, modelled: bool) -> dict[str, Any]:
    """Return estimators that run one by one, by the name of their values."""
    clip, switch, fade = (pw.Shrink(rule, 1.5) for rule in ("clip", "switch", "optimistic"))
    found = {
        "weighted": "weighted",
        "weighted own": pw.Weighted(divergence="own"),
        "weighted reward-free": pw.Weighted(divergence="reward-free"),
        "self-normalised": "self-normalised",
        "self-normalised own": pw.SelfNormalised(weights="own"),
        "calibrated loggers": pw.Calibrated(columns=("loggers",)),
        "calibrated unguarded": pw.Calibrated(guard=False),
        "balanced": pw.Balanced(),
        "balanced clip": pw.Balanced(clip),
        "balanced switch": pw.Balanced(switch),
        "balanced optimistic": pw.Balanced(fade),
    }
    if not modelled:
        return {**found, "no model": pw.DoublyRobust()}
    return found | {
        "doubly robust": pw.DoublyRobust(),
        "doubly robust naive": pw.DoublyRobust(weights="naive"),
        "doubly robust weighted": pw.DoublyRobust(weights="weighted"),
        "doubly robust switch": pw.DoublyRobust(shrink=switch),
        "direct method": pw.DirectMethod(),
        "calibrated model": pw.Calibrated(columns=("loggers", "target", "dr")),
    }


# --- answers ----------------------------------------------------------------------------


def recorded(found: pw.Evaluation | pw.Comparison | pw.Plan) -> Values:
    """Return the recorded part of a result."""
    values: Values = kept(found.to_dict())
    return values


def kept(found: Any) -> Any:  # noqa: ANN401 - anything that a dictionary of results holds
    """The part of a result that is recorded; entries of lists go by their names."""
    if isinstance(found, dict):
        return {k: _entry(k, v) for k, v in found.items() if k not in WORDS}
    if isinstance(found, list | tuple) and found and isinstance(found[0], dict):
        names = _names(list(found))
        return {name: kept(entry) for name, entry in zip(names, found, strict=True)}
    return list(found) if isinstance(found, tuple) else found


def _entry(key: str, value: Any) -> Any:  # noqa: ANN401 - as above
    return codes(value) if key == "warnings" else kept(value)


def _names(entries: list[dict[str, Any]]) -> list[str]:
    """A name for each entry: its first key, what it is compared with, or its place."""
    key = next((k for k in KEYS if k in entries[0]), "")
    pairs = [(str(entry.get(key, "")), entry) for entry in entries]
    names = [f"{name} less {e['other']}" if "other" in e else name for name, e in pairs]
    if len(set(names)) == len(names):
        return names
    return [f"{name} {names[:k].count(name)}" for k, name in enumerate(names)]


def codes(warnings: list[dict[str, Any]]) -> list[list[str]]:
    """Code and severity of each finding, sorted."""
    return sorted([str(w["code"]), str(w["severity"])] for w in warnings)


def brief(found: pw.Evaluation) -> Values:
    """Value, error, interval and shares of each target and estimator, and the findings."""
    rows: Values = {}
    for name, result in found.targets.items():
        rows[name] = {
            estimator: {
                "numbers": [e.value, e.std_error, *_ends(result.intervals[estimator])],
                "shares": dict(e.shares),
            }
            for estimator, e in result.estimates.items()
        }
    return {"targets": rows, "warnings": codes(found.warnings)}


def _ends(interval: Any) -> tuple[float, float]:  # noqa: ANN401 - a type that is not public
    return interval.lower, interval.upper


def interval(found: pw.Evaluation) -> Values:
    """Error and interval of each target and estimator, and the findings."""
    rows = {
        name: {
            estimator: [e.std_error, *_ends(result.intervals[estimator])]
            for estimator, e in result.estimates.items()
        }
        for name, result in found.targets.items()
    }
    return {"targets": rows, "warnings": codes(found.warnings)}


def differences(found: pw.Comparison) -> Values:
    """Differences of a comparison, without the estimates that they are between."""
    pairs = (*found.differences, *found.pairs)
    rows = {
        f"{d.target} less {d.other}": [
            *(d.value, d.std_error, *_ends(d.interval), d.p_value, d.adjusted),
            d.verdict,
        ]
        for d in pairs
    }
    return {"differences": rows, "warnings": codes(found.warnings)}


def answer(ask: Callable[[], Any]) -> Any:  # noqa: ANN401 - what `ask` gives
    """Return the result of a question, or the class and the code of its error."""
    try:
        return ask()
    except pw.PoolwiseError as error:
        found = {"refused": type(error).__name__, "code": getattr(error, "code", None)}
        faults = getattr(error, "faults", None)
        return found if faults is None else {**found, "faults": counted(faults)}


def counted(faults: Any) -> list[list[Any]]:  # noqa: ANN401 - a type that is not public
    """Logger and rows of each fault, sorted."""
    return sorted([fault.logger, fault.rows] for fault in faults)


# --- questions --------------------------------------------------------------------------


@dataclass(frozen=True)
class Questions:
    """The questions about one case on one engine, by the name of the result."""

    case: Case
    engine: Any = None

    def all(self) -> Iterator[Question]:
        """All questions."""
        yield from self.main()
        for method in METHODS:
            yield f"interval {method}", partial(self.bounded, method, "two")
        for method in ("auto", "betting"):
            yield f"lower {method}", partial(self.bounded, method, "lower")
        yield "upper", partial(self.bounded, "auto", "upper", 0.8)
        for name, estimator in estimators(modelled=self.case.model is not None).items():
            yield f"estimator {name}", partial(self.estimate, estimator)
        for name in COMPARED:
            yield f"pairs {name}", partial(self.pairs, name, None)
            yield f"baseline {name}", partial(self.pairs, name, self.case.baseline)
        yield "plan", self.plan
        yield "summary of parts", self.parts
        yield "scored", self.scored

    def main(self) -> Iterator[Question]:
        """Questions that also run with small batches."""
        yield from self.few()
        yield "check", self.check
        yield "summary", self.summary

    def few(self) -> Iterator[Question]:
        """Questions that also run on engines that take seconds for each."""
        yield "evaluate", self.evaluate
        yield "compare", self.compare

    def evaluate(self) -> Values:
        case = self.case
        found = pw.evaluate(case.log, case.targets, model=case.model, engine=self.engine)
        return recorded(found)

    @property
    def first(self) -> dict[str, Any]:
        """The first target, where further targets would add nothing new."""
        name = next(iter(self.case.targets))
        return {name: self.case.targets[name]}

    def bounded(self, method: Any, sides: Any, level: float = 0.95) -> Values:  # noqa: ANN401 - words
        options: dict[str, Any] = {
            "interval": method,
            "sides": sides,
            "level": level,
            "engine": self.engine,
        }
        return interval(pw.evaluate(self.case.log, self.first, which_logs=False, **options))

    def estimate(self, estimator: Any) -> Values:  # noqa: ANN401 - a name, or an estimator
        options: dict[str, Any] = {"engine": self.engine, "model": self.case.model}
        return brief(
            pw.evaluate(self.case.log, self.first, estimator, which_logs=False, **options)
        )

    def compare(self) -> Values:
        return recorded(self._compared("calibrated", self.case.baseline))

    def pairs(self, estimator: str, baseline: str | None) -> Values:
        return differences(self._compared(estimator, baseline))

    def _compared(self, estimator: str, baseline: str | None) -> pw.Comparison:
        options: dict[str, Any] = {
            "estimator": estimator,
            "baseline": baseline,
            "engine": self.engine,
        }
        return pw.compare(self.case.log, self.case.targets, **options)

    def plan(self) -> Values:
        options: dict[str, Any] = {"half_width": HALF_WIDTH, "engine": self.engine}
        return recorded(pw.plan(self.case.log, self.first, **options))

    def check(self) -> Values:
        found = pw.check(self.case.log, self.case.targets, engine=self.engine)
        return {"rows": dict(found.rows), "faults": counted(found.faults)}

    def summary(self) -> Values:
        """An evaluation of a summary that was saved and loaded."""
        case = self.case
        found = pw.summarise(case.log, case.targets, engine=self.engine)
        with tempfile.TemporaryDirectory() as folder:
            found.save(f"{folder}/summary.parquet")
            loaded = pw.Summary.load(f"{folder}/summary.parquet")
        return brief(pw.evaluate(case.log, case.targets, engine=loaded))

    def parts(self) -> Values:
        """An evaluation of two summaries, each of every second row."""
        case = self.case
        counts = pw.check(case.log, engine=self.engine).rows if case.log.crossed else None
        one, other = (
            pw.summarise(part, case.targets, counts=counts, engine=self.engine)
            for part in halves(case.log)
        )
        return brief(pw.evaluate(case.log, case.targets, engine=one + other))

    def scored(self) -> Values:
        """An evaluation of the file that the policies were scored into."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "scored.parquet"
            found = pw.score_log(self.case.log, self.case.targets, path, engine=self.engine)
            return brief(pw.evaluate(*found, engine=self.engine))


def halves(log: pw.Log) -> list[pw.Log]:
    """The even rows and the odd rows of a log."""
    return [replace(log, source=_every_second(log.source, k)) for k in (0, 1)]


def _every_second(source: Any, start: int) -> Any:  # noqa: ANN401 - a table, or a mapping
    if isinstance(source, dict):
        return {label: _every_second(part, start) for label, part in source.items()}
    return source.take(pa.array(range(start, len(source), 2)))


def answers(questions: Iterable[Question], only: Collection[str] = ()) -> Values:
    """The answer to each question by its name, or to those with certain first words."""
    return {name: answer(ask) for name, ask in questions if not only or name.split()[0] in only}
