"""Answers: put the question to a verb, in Python or on the command line.

The result of every verb is a dictionary, as `to_dict` or ``--json`` returns it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import poolwise as pw

if TYPE_CHECKING:
    from tests.sweep.ask import Asked

ESTIMATORS: dict[str, Any] = {
    "default": None,
    "clipped": pw.Balanced(pw.Shrink("clip", 1e3)),  # no weight is that large
    "doubly-robust": "doubly-robust",
}
WATCHED_LEVEL = 0.9999  # so that a bound that misses the truth is a mistake
HALF_WIDTH = 0.7  # planned, as a part of the present one
SEGMENTS = {"by": "device", "position": "position"}
THRESHOLD = 0.5  # between the rewards 0 and 1
LEARNING: dict[str, Any] = {
    "features": ["x1", "x2"],
    "folds": 2,
    "strengths": [0.1],
    "smoothing": [1.0],
}


def answer(asked: Asked) -> dict[str, Any]:
    """Return the result of the combination's verb."""
    from tests.sweep.typed import printed

    if asked.combination["face"] != "python":
        return printed(asked)
    result: dict[str, Any] = getattr(_Verbs, asked.combination["verb"])(asked)
    return result


def given_model(asked: Asked) -> pw.GivenModel:
    """Return the columns of a reward model, those of policies that are compared among them."""
    return pw.GivenModel("q", {name: f"q_{name}" for name in (*asked.targets, asked.baseline)})


def evaluate_now(asked: Asked) -> pw.Evaluation:
    """Return an evaluation of the target that is planned."""
    return pw.evaluate(asked.log, {"new": asked.targets["new"]}, engine=_engine(asked))


def measures(asked: Asked) -> dict[str, Any]:
    """Return metrics or thresholds whose truth follows from that of the reward."""
    reward, chosen = asked.roles["reward"], asked.combination["measures"]
    if chosen == "none":
        return {}
    if chosen == "thresholds":
        return {"thresholds": [THRESHOLD]}
    texts = {"again": f"{reward} * 1", "ratio": f"{reward} per 2 + {reward}"}
    return {"metrics": {chosen: texts[chosen]}}


def planned_width(now: pw.Evaluation) -> float:
    """Return the half-width to plan for, in terms of the present ones."""
    widths = [i.upper - i.lower for i in now["new"].intervals.values()]
    return HALF_WIDTH * min(w for w in widths if w > 0) / 2


def _engine(asked: Asked) -> Any:  # noqa: ANN401 - an engine, or None
    """Return the engine; saved moments are made first, and read from their file."""
    if asked.combination["source"] != "saved":
        return asked.engine
    path = asked.folder / "moments.parquet"
    pw.summarise(asked.log, asked.targets).save(path)
    return pw.Summary.load(path)


def _options(asked: Asked) -> dict[str, Any]:
    combination = asked.combination
    chosen = combination["estimator"]
    options: dict[str, Any] = {"interval": combination["interval"], **measures(asked)}
    options["estimators"] = ESTIMATORS.get(chosen, chosen)
    if chosen == "doubly-robust":
        options["model"] = given_model(asked)
    if combination["structure"] in SEGMENTS:
        options["by"] = SEGMENTS[combination["structure"]]
    return options


class _Verbs:
    """One function for each verb of Python."""

    @staticmethod
    def evaluate(asked: Asked) -> dict[str, Any]:
        options, engine = _options(asked), _engine(asked)
        if asked.combination["source"] != "saved":  # moments have no differences
            options["baseline"] = asked.baseline
        found = pw.evaluate(asked.log, asked.targets, engine=engine, **options)
        str(found), found.to_text()
        return found.to_dict()

    @staticmethod
    def compare(asked: Asked) -> dict[str, Any]:
        chosen = asked.combination["estimator"]
        name = ESTIMATORS.get(chosen, chosen)
        options = measures(asked) | ({} if name is None else {"estimator": name})
        options |= {"model": given_model(asked)} if chosen == "doubly-robust" else {}
        found = pw.compare(
            asked.log, asked.targets, baseline=asked.baseline, engine=_engine(asked), **options
        )
        str(found)
        return found.to_dict()

    @staticmethod
    def plan(asked: Asked) -> dict[str, Any]:
        now, target = evaluate_now(asked), {"new": asked.targets["new"]}
        wanted = planned_width(now)
        found = pw.plan(asked.log, target, half_width=wanted, engine=_engine(asked))
        str(found)
        return found.to_dict() | {"evaluated": now.to_dict()}

    @staticmethod
    def watch(asked: Asked) -> dict[str, Any]:
        found = pw.watch(
            asked.folder / "state.npz",
            asked.log,
            {"new": asked.targets["new"]},
            level=WATCHED_LEVEL,
            engine=_engine(asked),
        )
        str(found)
        return found.to_dict()

    @staticmethod
    def learn(asked: Asked) -> dict[str, Any]:
        found = pw.learn(asked.log, **LEARNING, engine=_engine(asked))
        str(found)
        return found.to_dict() | {"policy": found.policy, "name": found.name}

    @staticmethod
    def check(asked: Asked) -> dict[str, Any]:
        found = pw.check(asked.log, asked.targets, engine=_engine(asked))
        str(found)
        return {
            "rows": dict(found.rows),
            "faults": [{"logger": f.logger, "rows": f.rows} for f in found.faults],
            "rows_per_request": found.rows_per_request,
            "warnings": [{"code": f.code, "severity": f.severity} for f in found.findings],
        }

    @staticmethod
    def backtest(asked: Asked) -> dict[str, Any]:
        found = pw.backtest(asked.log, engine=_engine(asked))
        str(found)
        return found.to_dict()

    @staticmethod
    def backtested(asked: Asked) -> dict[str, Any]:
        found = pw.evaluate(
            asked.log,
            asked.targets,
            engine=_engine(asked),
            baseline=asked.baseline,
            backtest=True,
            **_options(asked),
        )
        str(found)
        return found.to_dict()

    @staticmethod
    def score(asked: Asked) -> dict[str, Any]:
        scored = pw.score_log(
            asked.log, asked.targets, asked.folder / "scored.parquet", engine=_engine(asked)
        )
        options = _options(asked)
        found = pw.evaluate(*scored, **options)
        return found.to_dict()
