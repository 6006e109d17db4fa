"""The tables of a report, section by section, from the nested dictionary.

They are grids of text, like those of the terminal, and every number in them was written
by `format`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from poolwise.report.sentence import Found, behind_leader, carriers, recommended
from poolwise.report.tables import Grid
from poolwise.text import count_text, interval_text, p_text, percent, short, with_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIXTURE = "(mixture)"
UNKNOWN = "–"


def estimates(found: Found) -> Grid:
    """Every estimate of every target; the recommended one is starred."""
    several = len(found["targets"]) > 1
    known = any("truth" in t for t in found["targets"])
    header = ["target"] * several + ["estimator", "estimate", "interval"]
    rows = [
        [str(target["target"])] * several + _estimate(target, estimate, known=known)
        for target in found["targets"]
        for estimate in target["estimates"]
    ]
    return Grid("", header + ["has the truth"] * known, rows)


def _estimate(target: Found, estimate: Found, *, known: bool) -> list[str]:
    star = " ★" if estimate is recommended(target) else ""
    lower, upper, error = estimate["lower"], estimate["upper"], estimate["std_error"]
    row = [f"{estimate['estimator']}{star}", with_error(estimate["value"], error)]
    row.append(interval_text(lower, upper, error))
    if known and "truth" in target:
        row.append("yes" if lower <= target["truth"] <= upper else "no")
    return row + [UNKNOWN] * (known and "truth" not in target)


def logs(found: Found, target: Found) -> Grid:
    """What each log has, what it is worth, and what would be lost without it."""
    known = {i["logger"]: i for i in found["loggers"]}
    errors = {e["estimator"]: e["std_error"] for e in target["estimates"]}
    without = [e for e in errors if any(_left_out(i, e) for i in target["loggers"])]
    header = ["logger", "rows", "mean reward", "share", "divergence", "effective rows"]
    header += ["carries", *(f"{e} ± without it" for e in without)]
    carry = set(carriers(target))
    rows = []
    for entry in target["loggers"]:
        name = entry["logger"]
        row = [name, count_text(known[name]["rows"]), short(known[name]["mean_reward"])]
        row += [_percent(entry.get("best_share", math.nan)), _short(entry["divergence"])]
        row += [_count(entry["effective_rows"]), "yes" if name in carry else ""]
        rows.append([*row, *(_loss(entry, e, errors[e]) for e in without)])
    return Grid("", header, rows)


def _left_out(entry: Found, estimator: str) -> bool:
    return f"{estimator}_std_error_without" in entry


def _loss(entry: Found, estimator: str, error: float) -> str:
    """The standard error without a log, and how much larger that is.

    >>> _loss({"naive_std_error_without": 0.03}, "naive", 0.02)
    '0.03 (+50%)'
    """
    if not _left_out(entry, estimator):
        return UNKNOWN
    lost = entry[f"{estimator}_std_error_without"]
    if not (math.isfinite(lost) and error > 0 and math.isfinite(error)):
        return _short(lost)
    return f"{short(lost)} ({lost / error - 1:+.0%})"


def weights(target: Found) -> Grid:
    """How large the weights against each logger are, and what they hide."""
    header = ["logger", "effective rows", "mean weight", "largest weight"]
    header += ["largest, of the sum", "tail index", "unsupported"]
    covers = [(i["logger"], i) for i in target["loggers"]]
    covers += [(MIXTURE, target["mixture"])] if "mixture" in target else []
    return Grid("", header, [[label, *_weights(entry)] for label, entry in covers])


def _weights(entry: Found) -> list[str]:
    return [
        _count(entry["effective_rows"]),
        _short(entry["mean_weight"]),
        _short(entry["largest_weight"]),
        _percent(entry["largest_share"]),
        _tail(entry),
        _percent(entry["unsupported"]),
    ]


def _tail(entry: Found) -> str:
    """The tail index, starred where it is above what these rows can bear."""
    index = entry["tail_index"]
    if index is None:
        return "?"
    if entry["tail_discrete"]:
        return "none"
    return f"{index:.2f}{' (heavy)' if index > entry['tail_threshold'] else ''}"


def alone(target: Found) -> Grid:
    """What each log says by itself."""
    rows = [
        [i["logger"], with_error(i["value"], i["std_error"])]
        for i in target["loggers"]
        if "value" in i
    ]
    return Grid("", ["logger", "estimate alone"], rows)


def checks(target: Found) -> Grid:
    """The tests of agreement."""
    found: Sequence[Found] = target["checks"]
    rows = [[c["name"], _short(c["statistic"]), p_text(c["p_value"])] for c in found]
    return Grid("", ["what must hold", "statistic", "p-value"], rows)


def side_by_side(found: Found) -> Grid:
    """The recommended estimate of every target, the highest first."""
    quoted = [(t, recommended(t)) for t in found["targets"]]
    best = sorted(
        ((t, e) for t, e in quoted if e is not None), key=lambda pair: -pair[1]["value"]
    )
    header = ["target", "estimator", "estimate", "interval"]
    rows = [[str(t["target"]), *_estimate(t, e, known=False)] for t, e in best]
    return Grid("", header, rows)


WORDS = {
    "better": "better",
    "worse": "worse",
    "undecided": "not told apart",
    "identical": "the same on every row",
}


def ranking(comparison: Found) -> Grid:
    """Every target, the highest first, and what it is less the one in front."""
    header = ["target", "group", "estimate", "interval, all together"]
    header += ["less the first", "interval, all pairs together", "p, all together", "verdict"]
    behind = {d["target"]: d for d in behind_leader(comparison)}
    rows = [
        [r["target"], str(r["group"]), *_with_interval(r["value"], r), *_less(behind, r)]
        for r in comparison["targets"]
    ]
    return Grid("", header, rows)


def _less(behind: Mapping[str, Found], ranked: Found) -> list[str]:
    found = behind.get(ranked["target"])
    if found is None:  # the first one itself
        return [UNKNOWN] * 4
    numbers = _with_interval(found["difference"], found)
    return [*numbers, p_text(found["adjusted"]), WORDS[found["verdict"]]]


def _with_interval(value: float, found: Found) -> list[str]:
    error = found["std_error"]
    return [with_error(value, error), interval_text(found["lower"], found["upper"], error)]


def rows_by_logger(found: Found) -> Grid:
    """How many rows were used."""
    total = sum(i["rows"] for i in found["loggers"])
    rows = [[i["logger"], count_text(i["rows"])] for i in found["loggers"]]
    return Grid("", ["logger", "rows"], [*rows, ["(all)", count_text(total)]])


def _short(number: float) -> str:
    return UNKNOWN if math.isnan(number) else short(number)


def _count(number: float) -> str:
    return count_text(number) if math.isfinite(number) else UNKNOWN


def _percent(share: float) -> str:
    return percent(share) if math.isfinite(share) else UNKNOWN
