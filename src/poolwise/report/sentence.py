"""The answer in one sentence, computed from the numbers and qualified by the findings.

Every function reads the nested dictionary that `Evaluation.to_dict` returns, so a
sentence contains only numbers that the tables contain too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from poolwise.text import count_text, interval_text, percent, places_for, short, with_error

Facts = Mapping[str, Any]  # the dictionary of a result, or one nested in it
RECOMMENDED = "calibrated"
CARRIED = 0.9  # logs carry an answer if their shares sum to this


def recommended(target: Facts) -> Facts | None:
    """Return the estimate to quote: calibrated, else the first; None if there is none.

    >>> recommended({"estimates": [{"estimator": "naive"}, {"estimator": "calibrated"}]})
    {'estimator': 'calibrated'}
    """
    estimates: Sequence[Facts] = target["estimates"]
    named = [e for e in estimates if e["estimator"] == RECOMMENDED]
    return next(iter([*named, *estimates]), None)


def leading(evaluation: Facts) -> Facts:
    """Return the target whose recommended estimate is highest."""
    return max(evaluation["targets"], key=_height)


def _height(target: Facts) -> float:
    best = recommended(target)
    return -math.inf if best is None or math.isnan(best["value"]) else best["value"]


def findings_of(evaluation: Facts, target: str) -> list[Facts]:
    """Return the findings of one target and of the log, most serious first."""
    if len(evaluation["targets"]) == 1:
        return list(evaluation["warnings"])
    prefix = f"Target {target!r}: "
    prefixes = tuple(f"Target {t['target']!r}: " for t in evaluation["targets"])
    return [
        w
        for w in evaluation["warnings"]
        if str(w["message"]).startswith(prefix) or not str(w["message"]).startswith(prefixes)
    ]


def carriers(target: Facts) -> list[str]:
    """Return the fewest logs whose shares sum to nine tenths, the largest share first.

    >>> shares = {"a": 0.05, "b": 0.44, "c": 0.51}
    >>> carriers({"loggers": [{"logger": i, "best_share": s} for i, s in shares.items()]})
    ['c', 'b']
    """
    shares = {i["logger"]: i.get("best_share", math.nan) for i in target["loggers"]}
    if not all(map(math.isfinite, shares.values())):
        return []
    ordered = sorted(shares, key=lambda i: -shares[i])
    carried = 0.0
    for count, logger in enumerate(ordered, 1):
        carried += shares[logger]
        if carried >= CARRIED:
            return ordered[:count]
    return []


FLIPPED = {"better": "worse", "worse": "better"}


def behind_best(comparison: Facts) -> list[Facts]:
    """Return the difference of every other target from the best, in order of estimates."""
    best = comparison["targets"][0]["target"]
    return [
        {
            **pair,
            "target": pair["other"],
            "other": best,
            "difference": -pair["difference"],
            "lower": -pair["upper"],
            "upper": -pair["lower"],
            "verdict": FLIPPED.get(pair["verdict"], pair["verdict"]),
        }
        for pair in comparison["pairs"]
        if pair["target"] == best
    ]


def rivals(evaluation: Facts) -> str:
    """Say how many other targets are significantly worse than the best, if compared."""
    if "comparison" not in evaluation:
        return ""
    verdicts = [d["verdict"] for d in behind_best(evaluation["comparison"])]
    others, worse = len(verdicts), verdicts.count("worse")
    if worse == others:
        beaten = "the other one" if others == 1 else f"all {others} others"
        return f"In paired comparisons it is significantly better than {beaten}."
    doubted = verdicts.count("unreliable")
    alike = others - worse - doubted
    clauses = [
        f"is significantly better than {worse} of {others} others" if worse else "",
        f"is not significantly different from {alike}" if alike else "",
        f"is not compared with {doubted} whose probabilities cannot be right"
        if doubted
        else "",
    ]
    return f"In paired comparisons it {', and '.join(filter(None, clauses))}."


def answer(evaluation: Facts) -> str:
    """Say what the leading target would have earned, as firmly as the findings allow."""
    target = leading(evaluation)
    best = recommended(target)
    name = target["target"]
    if best is None:
        return (
            f"These logs give no estimate of what {name!r} would have earned: see the findings."
        )
    count = len(evaluation["targets"])
    subject = f"Of {count} targets, {name!r} has the highest estimate: it"
    earned = f"{subject if count > 1 else repr(name)} {_verb(evaluation, name)} {_earned(best)}"
    clauses = [", ".join(filter(None, [earned, _against(evaluation, best)])), _carried(target)]
    return f"{'; '.join(filter(None, clauses))}.{_hedge(evaluation, name)}"


def _verb(evaluation: Facts, name: str) -> str:
    severities = {w["severity"] for w in findings_of(evaluation, name)}
    return "might have earned" if "alarm" in severities else "would have earned"


def _earned(best: Facts) -> str:
    value, error = best["value"], best["std_error"]
    return f"{with_error(value, error)} per row ({_bounds(best)})"


def _bounds(best: Facts) -> str:
    """Write the interval, in words where it has one side only."""
    lower, upper, error = best["lower"], best["upper"], best["std_error"]
    level, places = f"{100 * best['level']:g}%", places_for(error)
    if math.isinf(lower) and math.isinf(upper):
        return "no interval can be given"
    if math.isinf(upper):
        return f"at least {lower:.{places}f} at level {level}"
    if math.isinf(lower):
        return f"at most {upper:.{places}f} at level {level}"
    return f"{level} interval {interval_text(lower, upper, error)}"


def best_logger(evaluation: Facts) -> Facts | None:
    """Return the logger with the highest mean reward in its own log."""
    finite = [i for i in evaluation["loggers"] if math.isfinite(i["mean_reward"])]
    return max(finite, key=lambda i: i["mean_reward"], default=None)


def _against(evaluation: Facts, best: Facts) -> str:
    """Compare the estimate with the mean reward of the best logger's own log."""
    logger = best_logger(evaluation)
    bounded = math.isfinite(best["lower"]) or math.isfinite(best["upper"])
    if logger is None or not bounded:
        return ""
    earned, places = logger["mean_reward"], places_for(best["std_error"])
    other = f"the {earned:.{places}f} earned by the best logger, {logger['logger']!r}"
    if best["lower"] <= earned <= best["upper"]:
        return f"not significantly different from {other}"
    gap = best["value"] - earned
    if earned > 0 and gap > earned:
        return f"{short(best['value'] / earned)} times {other}"
    size = percent(abs(gap) / earned) if earned > 0 else f"{abs(gap):.{places}f}"
    return f"{size} {'more' if gap > 0 else 'less'} than {other}"


def _carried(target: Facts) -> str:
    total, logs = len(target["loggers"]), carriers(target)
    if not logs or total == 1:
        return ""
    return f"{len(logs)} of {total} logs {'carries' if len(logs) == 1 else 'carry'} that answer"


def _hedge(evaluation: Facts, name: str) -> str:
    """Qualify the answer by its most serious findings."""
    severities = [w["severity"] for w in findings_of(evaluation, name)]
    alarms, warnings = severities.count("alarm"), severities.count("warning")
    if alarms:
        return f" Do not rely on it: resolve the {counted(alarms, 'alarm')} below first."
    if warnings:
        return f" Use it with care: see the {counted(warnings, 'warning')} below."
    return ""


def counted(number: int, noun: str) -> str:
    """Write a number of things.

    >>> counted(1, "alarm"), counted(2, "alarm")
    ('1 alarm', '2 alarms')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def truth_text(target: Facts) -> str:
    """Say whether the recommended interval covers the true value, if that is in the result."""
    best = recommended(target)
    if best is None or "truth" not in target:
        return ""
    truth = target["truth"]
    where = "within" if best["lower"] <= truth <= best["upper"] else "outside"
    places = places_for(best["std_error"])
    return f"The true value is known: {truth:.{places}f}, {where} the interval."


def lesson(evaluation: Facts) -> str:
    """Explain in two sentences, from the numbers of the demo, why pooling needs weights."""
    target = evaluation["targets"][0]
    by_name = {e["estimator"]: e for e in target["estimates"]}
    rows = {i["logger"]: i["rows"] for i in evaluation["loggers"]}
    total, largest = sum(rows.values()), max(rows, key=lambda i: rows[i])
    share = by_name["weighted"]["shares"][largest]
    gain = (by_name["naive"]["std_error"] / by_name["calibrated"]["std_error"]) ** 2
    return (
        f"Logger {largest!r} wrote {percent(rows[largest] / total)} of the rows, "
        f"but it differs so much from {target['target']!r} that weighted gives it a share of "
        f"only {percent(share)}. In the naive estimate its few large weights dominate: "
        f"calibrated is as precise from these {count_text(total)} rows as naive would be from "
        f"{count_text(gain * total)}."
    )
