"""The answer in one sentence, computed from the numbers and qualified by the findings.

Every function reads the nested dictionary that `Evaluation.to_dict` returns, so a
sentence contains only numbers that the tables contain too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from poolwise.diagnosis.causes import group_findings
from poolwise.diagnosis.findings import UNCOVERED
from poolwise.text import (
    FEW_NAMES,
    all_text,
    count_noun,
    count_text,
    in_units,
    interval_text,
    percent,
    places_for,
    quote_names,
    short,
    unit_text,
    with_error,
)

Facts = Mapping[str, Any]  # the dictionary of a result, or one nested in it
ESTIMATED = "propensities-estimated"  # the alarm that withholds verdicts
CARRIED = 0.9  # logs carry an answer if their shares sum to this
ALIGNED = 100.0  # multiples below it have as many decimals as the other end of their interval
FEWEST_EFFECTIVE = 50  # effective rows behind the error of a single log


def single_log_error(entry: Facts) -> float:
    """Return the standard error of a single log's estimate, infinite with few effective rows.

    If the few rows with large weights earn nothing, the rewards do not show what is missing.

    >>> single_log_error({"std_error": 0.01, "effective_rows": 12.0})
    inf
    """
    enough = (entry["effective_rows"] or 0.0) >= FEWEST_EFFECTIVE
    return float(entry["std_error"]) if enough else math.inf


def find_recommended(target: Facts) -> Facts | None:
    """Return the estimate to quote; None if there is none."""
    return next((e for e in target["estimates"] if e["recommended"]), None)


def leading(evaluation: Facts) -> Facts:
    """Return the target whose recommended estimate is highest, other than the baseline.

    Where lower is better, it is the lowest.
    """
    sign = -1.0 if _prefers_lower(evaluation) else 1.0

    def height(target: Facts) -> float:
        best = find_recommended(target)
        return -math.inf if best is None or math.isnan(best["value"]) else sign * best["value"]

    baseline = evaluation["baseline"]["name"]
    others = [t for t in evaluation["targets"] if t["target"] != baseline]
    return max(others or evaluation["targets"], key=height)


def _prefers_lower(evaluation: Facts) -> bool:
    """Test if lower values are better, as of a metric such as latency."""
    return bool(evaluation.get("measured", {}).get("better") == "lower")


def _unit(evaluation: Facts) -> str:
    """Return what has a value: a row, a request, or what a ratio divides by."""
    per = evaluation.get("measured", {}).get("per")
    return str(per or unit_text(evaluation.get("rows_per_request")))


def select_findings(evaluation: Facts, target: str) -> list[Facts]:
    """Return the findings of one target and of the log, most serious first."""
    return [w for w in evaluation["warnings"] if w.get("target", target) == target]


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


def rivals(evaluation: Facts) -> str:
    """Say how many other targets are significantly worse than the best, if compared."""
    if "comparison" not in evaluation or evaluation["comparison"]["baseline"]:
        return ""
    pairs = evaluation["comparison"]["differences"]
    verdicts = [d["verdict"] for d in pairs]
    others, worse = len(verdicts), verdicts.count("worse")
    if worse == others:
        beaten = "the other one" if others == 1 else all_text(others, "others")
        return f"In paired comparisons it is significantly better than {beaten}."
    doubted = verdicts.count("unreliable")
    alike = others - worse - doubted
    estimated = any("odds_to_reverse" in d for d in pairs)
    why = "whose probabilities were estimated" if estimated else "because of alarms"
    clauses = [
        f"is significantly better than {worse} of {others} others" if worse else "",
        f"is not distinguishable from {alike}" if alike else "",
        f"is not compared with {doubted} {why}" if doubted else "",
    ]
    return f"In paired comparisons it {', and '.join(filter(None, clauses))}."


def answer(evaluation: Facts) -> str:
    """Say what the leading target would have earned, as firmly as the findings allow."""
    target = leading(evaluation)
    best = find_recommended(target)
    name = target["target"]
    if best is None:
        return (
            f"These logs give no estimate of what {name!r} would have earned: see the findings."
        )
    baseline = evaluation["baseline"]["name"]
    count = sum(t["target"] != baseline for t in evaluation["targets"])
    extreme = "lowest" if _prefers_lower(evaluation) else "highest"
    subject = f"Of {count} targets, {name!r} has the {extreme} estimate: it"
    severities = [g.severity for g in group_findings(select_findings(evaluation, name))]
    verb = "might have earned" if "alarm" in severities else "would have earned"
    value = with_error(best["value"], best["std_error"])
    value += f" per {_unit(evaluation)} ({_bounds(best)})"
    earned = f"{subject if count > 1 else repr(name)} {verb} {value}"
    clauses = [", ".join(filter(None, [earned, _against(evaluation, target, best)]))]
    logs, total = len(carriers(target)), len(target["loggers"])
    if logs and total > 1:
        contribute = "contributes" if logs == 1 else "contribute"
        few = f"{logs} of {total} logs {contribute} at least {CARRIED:.0%} of it"
        clauses.append(f"{all_text(total, 'logs')} contribute" if logs == total else few)
    difference = target.get("difference", {})
    return " ".join(
        filter(None, [f"{'; '.join(clauses)}.{_hedge(severities)}", odds(difference)])
    )


def odds(difference: Facts) -> str:
    """Say how strong an unseen cause must be to reverse a difference, if that is known.

    >>> odds({"target": "new", "other": "log", "difference": 0.2, "odds_to_reverse": 1.284})
    "An unseen cause that changes the odds of an action by a factor of 1.29 would be enough to \
reverse the difference of 'new' from 'log' (0.2)."
    """
    factor = difference.get("odds_to_reverse")
    if factor is None:
        return ""
    pair = f"the difference of {difference['target']!r} from {difference['other']!r}"
    pair += f" ({short(difference['difference'])})"
    if math.isinf(factor):
        return f"No unseen cause, however strong, would be enough to reverse {pair}."
    if factor <= 1:
        return f"The weakest unseen cause would be enough to reverse {pair}."
    enough = math.ceil(factor * 100) / 100
    return (
        f"An unseen cause that changes the odds of an action by a factor of {enough:.3g} would "
        f"be enough to reverse {pair}."
    )


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


def _against(evaluation: Facts, target: Facts, best: Facts) -> str:
    """Compare the target with the baseline, by the interval of their difference."""
    difference = target.get("difference")
    if difference is None or difference["verdict"] == "unreliable":
        return ""
    baseline, reason = evaluation["baseline"]["name"], evaluation["baseline"]["reason"]
    other = repr(baseline) if reason == "named" else f"{baseline!r}, the {reason}"
    if difference["verdict"] == "identical":
        return f"the same policy on every row as {other}"
    gap, error = difference["difference"], difference["std_error"]
    kind = "simultaneous " if len(evaluation["targets"]) > 1 else ""
    level = f"{kind}{100 * best['level']:g}% interval"
    ends = interval_text(difference["lower"], difference["upper"], error)
    shown = f"difference {with_error(gap, error)}, {level} {ends}"
    if difference["verdict"] == "undecided":
        return f"not distinguishable from {other} ({shown})"
    size, limits = _relate(difference, best["value"] - gap)
    return f"{size} {other} ({limits and f'{level} {limits}; '}{shown})"


def _relate(difference: Facts, earned: float) -> tuple[str, str]:
    """Write a difference as a multiple, a percentage or a number, and limits of the first two.

    >>> known = {"relative": 2.5, "relative_lower": 2.0, "relative_upper": 3.0}
    >>> _relate({"difference": 5.0, **known}, 2.0)
    ('3.5 times as much as', '3 to 4 times')
    >>> _relate({"difference": 5.0, **known, "relative_lower": 2.42}, 2.0)
    ('3.5 times as much as', '3.42 to 4.00 times')
    >>> known = {"relative": -0.25, "relative_lower": -0.4, "relative_upper": -0.1}
    >>> _relate({"difference": -0.5, **known}, 2.0)
    ('25.0% less than', '10.0% to 40.0%')
    >>> _relate({"difference": 2.0, "std_error": 0.1}, -1.0)
    ('2.00 more than', '')
    """
    gap = difference["difference"]
    more = "more" if gap > 0 else "less"
    relative = difference.get("relative")
    if relative is None or not earned > 0:
        return f"{abs(gap):.{places_for(difference['std_error'])}f} {more} than", ""
    ends = [difference["relative_lower"], difference["relative_upper"]]
    if relative > 1:
        texts = [short(1 + end) for end in ends]
        places = max(len(text.partition(".")[2]) for text in texts)
        low, high = (
            f"{1 + end:.{places}f}" if end < ALIGNED else text
            for text, end in zip(texts, ends, strict=True)
        )
        return f"{short(1 + relative)} times as much as", f"{low} to {high} times"
    low, high = sorted(end if gap > 0 else -end for end in ends)
    return f"{percent(abs(relative))} {more} than", f"{percent(low)} to {percent(high)}"


def _hedge(severities: Sequence[str]) -> str:
    """Qualify the answer by its most serious findings."""
    alarms, warnings = severities.count("alarm"), severities.count("warning")
    if alarms:
        return f" Do not rely on it: resolve the {count_noun(alarms, 'alarm')} below first."
    if warnings:
        return f" Use it with care: see the {count_noun(warnings, 'warning')} below."
    return ""


def truth_text(target: Facts) -> str:
    """Say whether the recommended interval covers the true value, if that is in the result."""
    best = find_recommended(target)
    if best is None or "truth" not in target:
        return ""
    truth = target["truth"]
    where = "within" if best["lower"] <= truth <= best["upper"] else "outside"
    places = places_for(best["std_error"])
    return f"The true value is known: {truth:.{places}f}, {where} the interval."


def rows_text(result: Facts) -> str:
    """Return how many rows, or requests, of how many loggers a result rests on."""
    per_request, sizes = result.get("rows_per_request"), [i["rows"] for i in result["loggers"]]
    total = count_text(in_units(sum(sizes), per_request))
    return f"{total} {unit_text(per_request)}s of {count_noun(len(sizes), 'logger')}"


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


def conclusion(comparison: Facts, doubted: Mapping[str, Sequence[str]]) -> str:
    """Conclude a comparison: which differences were shown, against the baseline or the best.

    Args:
        comparison: The dictionary of a comparison.
        doubted: Alarms that forbid a verdict, by target.
    """
    equal, baseline, sentences = repeats(comparison["pairs"]), comparison["baseline"], []
    if doubted:
        codes = ", ".join(dict.fromkeys(code for alarms in doubted.values() for code in alarms))
        whom = "it" if len(doubted) == 1 else "them"
        names = quote_names(list(doubted))
        every = {code for alarms in doubted.values() for code in alarms}
        why = f"The probabilities of {names} cannot be right ({codes})"
        if every == {ESTIMATED}:
            why = f"The propensities behind {names} were estimated ({codes})"
        elif every <= UNCOVERED:
            why = f"The logs say too little about {names} ({codes})"
        sentences = [f"{why}: no conclusion is drawn about {whom}."]
    if baseline:
        sentences.append(_against_baseline(comparison))
        equal = {one: rest for one, rest in equal.items() if baseline not in {one, *rest}}
    else:
        sentences.append(_leader(comparison, doubted, equal))
    known = [d for d in comparison["differences"] if d.get("odds_to_reverse") is not None]
    if known:
        sentences.append(odds(min(known, key=lambda d: d["odds_to_reverse"])))
    if len(equal) > FEW_NAMES:
        number = sum(map(len, equal.values()))
        sentences.append(f"{number} targets equal another one on every row.")
    else:
        sentences += [
            f"{quote_names(rest)} {'equals' if len(rest) == 1 else 'equal'} {one!r} on every "
            "row."
            for one, rest in equal.items()
        ]
    return " ".join(filter(None, sentences))


def repeats(pairs: Iterable[Facts]) -> dict[str, list[str]]:
    """Return the targets that equal an earlier one on every row, by that one."""
    equal: dict[str, list[str]] = {}
    seen: set[str] = set()
    for pair in pairs:  # of equal targets, the first is ranked first
        if pair["verdict"] == "identical" and pair["target"] not in seen:
            equal.setdefault(pair["target"], []).append(pair["other"])
            seen.add(pair["other"])
    return equal


AGAINST = {
    "better": "shown to be better",
    "worse": "shown to be worse",
    "undecided": "not distinguishable from it",
    "identical": "the same policy on every logged row",
    "unreliable": "not compared",
}


def _against_baseline(comparison: Facts) -> str:
    """Return the targets by their verdict against the baseline."""
    parts = []
    for verdict, words in AGAINST.items():
        names = [t["target"] for t in comparison["targets"] if t["verdict"] == verdict]
        if names:
            parts.append(f"{quote_names(names)} {'is' if len(names) == 1 else 'are'} {words}")
    return f"Against {comparison['baseline']!r}: {'; '.join(parts)}."


def _leader(
    comparison: Facts, doubted: Mapping[str, object], repeated: Mapping[str, Sequence[str]]
) -> str:
    """Return which targets the highest reliable estimate beats."""
    reliable = [t for t in comparison["targets"] if t["target"] not in doubted]
    if not reliable:
        return "No target can be called better than another."
    best, *others = reliable
    beaten, equal = best["better_than"], repeated.get(best["target"], [])
    rest = [t["target"] for t in others if t["target"] not in equal]
    unresolved = [name for name in rest if name not in beaten]
    extreme = "lowest" if _prefers_lower(comparison) else "highest"
    among = " of the others" if doubted else ""
    first = f"{best['target']!r} has the {extreme} estimate{among}"
    if not rest:
        return "" if doubted else "All of these targets are the same policy."
    if not unresolved:
        whom = "every target that differs from it" if equal else "every other target"
        return f"{first} and was shown to be better than {whom}."
    shown = f", and was shown to be better than {len(beaten)} of {len(rest)} others"
    alike = f"it is not distinguishable from {quote_names(unresolved)}"
    return f"{first}{shown if beaten else ''}; {alike}."
