"""The answer in one sentence, computed from the numbers and hedged by the findings.

Everything here reads the nested dictionary that `Evaluation.to_dict` gives, so that a
sentence can say nothing that the tables do not hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from poolwise.text import count_text, interval_text, percent, places_for, short, with_error

Facts = Mapping[str, Any]  # a nested dictionary of results
RECOMMENDED = "calibrated"
CARRIED = 0.9  # logs carry an answer if they hold this share of it


def recommended(target: Facts) -> Facts | None:
    """The estimate to quote: calibrated, else the first; None if there is none.

    >>> recommended({"estimates": [{"estimator": "naive"}, {"estimator": "calibrated"}]})
    {'estimator': 'calibrated'}
    """
    estimates: Sequence[Facts] = target["estimates"]
    named = [e for e in estimates if e["estimator"] == RECOMMENDED]
    return next(iter([*named, *estimates]), None)


def leading(found: Facts) -> Facts:
    """The target whose recommended estimate is highest."""
    return max(found["targets"], key=_height)


def _height(target: Facts) -> float:
    best = recommended(target)
    return -math.inf if best is None or math.isnan(best["value"]) else best["value"]


def findings_of(found: Facts, target: str) -> list[Facts]:
    """Findings of one target and of the log, the gravest first."""
    if len(found["targets"]) == 1:
        return list(found["warnings"])
    mine = f"Target {target!r}: "
    others = tuple(f"Target {t['target']!r}: " for t in found["targets"])
    return [
        w
        for w in found["warnings"]
        if str(w["message"]).startswith(mine) or not str(w["message"]).startswith(others)
    ]


def carriers(target: Facts) -> list[str]:
    """The fewest logs that hold nine tenths of the weighting of least variance.

    >>> shares = {"a": 0.05, "b": 0.44, "c": 0.51}
    >>> carriers({"loggers": [{"logger": i, "best_share": s} for i, s in shares.items()]})
    ['c', 'b']
    """
    shares = {i["logger"]: i.get("best_share", math.nan) for i in target["loggers"]}
    if not all(map(math.isfinite, shares.values())):
        return []
    ordered = sorted(shares, key=lambda i: -shares[i])
    held = 0.0
    for place, logger in enumerate(ordered, 1):
        held += shares[logger]
        if held >= CARRIED:
            return ordered[:place]
    return []


FLIPPED = {"better": "worse", "worse": "better"}


def behind_best(comparison: Facts) -> list[Facts]:
    """Every other target less the one in front, in the order of the estimates."""
    first = comparison["targets"][0]["target"]
    return [
        {
            **pair,
            "target": pair["other"],
            "other": first,
            "difference": -pair["difference"],
            "lower": -pair["upper"],
            "upper": -pair["lower"],
            "verdict": FLIPPED.get(pair["verdict"], pair["verdict"]),
        }
        for pair in comparison["pairs"]
        if pair["target"] == first
    ]


def rivals(found: Facts) -> str:
    """Whether the one in front is really in front, where the targets were compared."""
    if "comparison" not in found:
        return ""
    verdicts = [d["verdict"] for d in behind_best(found["comparison"])]
    others, beaten = len(verdicts), verdicts.count("worse")
    if beaten == others:
        whom = "the other one" if others == 1 else f"all {others} others"
        return f"In pairs it was shown to be better than {whom}."
    shown = (
        f"it was shown to be better than {beaten} of {others} others, and " if beaten else ""
    )
    return f"In pairs {shown}these rows do not tell it from {others - beaten}."


def answer(found: Facts) -> str:
    """What the leading target would have earned, as surely as the findings allow."""
    target = leading(found)
    best = recommended(target)
    name = target["target"]
    if best is None:
        return (
            f"These logs give no estimate of what {name!r} would have earned: see the findings."
        )
    number = len(found["targets"])
    first = f"Of {number} targets, {name!r} has the highest estimate: it" if number > 1 else ""
    clauses = [
        f"{first or repr(name)} {_verb(found, name)} {_earned(best)}",
        _against(found, best),
        _carried(target),
    ]
    said = "; ".join(filter(None, [", ".join(filter(None, clauses[:2])), clauses[2]]))
    return f"{said}.{_hedge(found, name)}"


def _verb(found: Facts, name: str) -> str:
    graves = {w["severity"] for w in findings_of(found, name)}
    return "might have earned" if "alarm" in graves else "would have earned"


def _earned(best: Facts) -> str:
    value, error = best["value"], best["std_error"]
    return f"{with_error(value, error)} per row ({_bounds(best)})"


def _bounds(best: Facts) -> str:
    """How far the interval goes, in words where it has one side only."""
    lower, upper, error = best["lower"], best["upper"], best["std_error"]
    level, places = f"{100 * best['level']:g}%", places_for(error)
    if math.isinf(lower) and math.isinf(upper):
        return "no interval can be given"
    if math.isinf(upper):
        return f"at least {lower:.{places}f} at level {level}"
    if math.isinf(lower):
        return f"at most {upper:.{places}f} at level {level}"
    return f"{level} interval {interval_text(lower, upper, error)}"


def best_logger(found: Facts) -> Facts | None:
    """The logger with the highest mean reward in its own log."""
    known = [i for i in found["loggers"] if math.isfinite(i["mean_reward"])]
    return max(known, key=lambda i: i["mean_reward"], default=None)


def _against(found: Facts, best: Facts) -> str:
    """The estimate beside what the best logger earned in its own log."""
    logger = best_logger(found)
    bounded = math.isfinite(best["lower"]) or math.isfinite(best["upper"])
    if logger is None or not bounded:
        return ""
    earned, places = logger["mean_reward"], places_for(best["std_error"])
    whom = f"the {earned:.{places}f} that the best logger, {logger['logger']!r}, earned"
    if best["lower"] <= earned <= best["upper"]:
        return f"which these rows do not tell from {whom}"
    gap = best["value"] - earned
    if earned > 0 and gap > earned:
        return f"{short(best['value'] / earned)} times {whom}"
    size = percent(abs(gap) / earned) if earned > 0 else f"{abs(gap):.{places}f}"
    return f"{size} {'more' if gap > 0 else 'less'} than {whom}"


def _carried(target: Facts) -> str:
    total, logs = len(target["loggers"]), carriers(target)
    if not logs or total == 1:
        return ""
    verb = "carries" if len(logs) == 1 else "carry"
    return f"{len(logs)} of {total} logs {verb} that answer"


def _hedge(found: Facts, name: str) -> str:
    """What the gravest findings make of the sentence before."""
    severities = [w["severity"] for w in findings_of(found, name)]
    alarms, warnings = severities.count("alarm"), severities.count("warning")
    if alarms:
        return f" Do not rely on it: {counted(alarms, 'alarm')} below must be settled first."
    if warnings:
        return f" Take it with care: {counted(warnings, 'warning')} below may limit it."
    return ""


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "alarm"), counted(2, "alarm")
    ('1 alarm', '2 alarms')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def truth_text(target: Facts) -> str:
    """Whether the quoted interval has the true value, where somebody knows it."""
    best = recommended(target)
    if best is None or "truth" not in target:
        return ""
    truth = target["truth"]
    where = "within" if best["lower"] <= truth <= best["upper"] else "outside"
    places = places_for(best["std_error"])
    return f"The true value is known: {truth:.{places}f}, {where} the interval."


def lesson(found: Facts) -> str:
    """Two sentences on what an evaluation teaches about pooling, from its numbers."""
    target = found["targets"][0]
    by_name = {e["estimator"]: e for e in target["estimates"]}
    rows = {i["logger"]: i["rows"] for i in found["loggers"]}
    total, biggest = sum(rows.values()), max(rows, key=lambda i: rows[i])
    share = by_name["weighted"]["shares"][biggest]
    worth = (by_name["naive"]["std_error"] / by_name["calibrated"]["std_error"]) ** 2
    return (
        f"Logger {biggest!r} wrote {percent(rows[biggest] / total)} of the rows, "
        f"but it is so unlike {target['target']!r} that weighted gives it a share of "
        f"{percent(share)} only. Pooling naively lets its few large weights drown the rest: "
        f"calibrated is as sure from these {count_text(total)} rows as naive would be from "
        f"{count_text(worth * total)}."
    )
