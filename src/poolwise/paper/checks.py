"""Checks: whether a claim holds in the rows of one data set, and what was found.

Each check reads rows of the CSV files and returns a verdict with a sentence; nothing
in either is typed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

from poolwise.paper.panels import Row
from poolwise.text import short

Verdict: TypeAlias = Literal["holds", "holds in part", "does not hold"]
Checker: TypeAlias = Callable[[Sequence[Row]], tuple[Verdict, str]]

SLACK = 1e-12  # rounding of a ratio that cannot exceed 1
GAMMA_SLACK = 1e-10
MOST_Z = 4.0
ENOUGH_ROWS = 300  # "a few hundred"
REACHED = 1.05  # within 5% of the optimum
VISIBLE_BIAS = 0.1  # of a standard error


def overall(good: Iterable[bool]) -> Verdict:
    """Holds if everything does, does not if nothing does.

    >>> overall([True, True]), overall([True, False]), overall([False])
    ('holds', 'holds in part', 'does not hold')
    """
    found = list(good)
    if all(found):
        return "holds"
    return "holds in part" if any(found) else "does not hold"


def _at(row: Row, field: str) -> str:
    return f"{short(float(row[field]))} at fraction {row['fraction']}, r {row['r']:g}"


def _number(row: Row, field: str) -> float:
    return float(row[field])


def _range(rows: Sequence[Row], field: str) -> str:
    low, high = (pick(rows, key=lambda row: _number(row, field)) for pick in (min, max))
    return f"from {_at(low, field)} to {_at(high, field)}"


def never_above(field: str, bound: float = 1.0) -> Checker:
    """The ratio is nowhere above a bound."""

    def check(rows: Sequence[Row]) -> tuple[Verdict, str]:
        good = [_number(row, field) <= bound + SLACK for row in rows]
        return overall(good), f"{sum(good)} of {len(good)} cells, {_range(rows, field)}."

    return check


def _steps(
    rows: Sequence[Row], field: str, along: str, sign: int
) -> tuple[int, list[tuple[Row, Row]]]:
    """How many neighbouring cells along `v` or `r`, and which go the wrong way."""
    fixed = "r" if along == "v" else "fraction"
    total, wrong = 0, []
    for value in dict.fromkeys(row[fixed] for row in rows):
        line = sorted((r for r in rows if r[fixed] == value), key=lambda r: _number(r, along))
        for left, right in pairwise(line):
            total += 1
            if sign * (_number(right, field) - _number(left, field)) < -SLACK:
                wrong.append((left, right))
    return total, wrong


def monotone(field: str, along: str, sign: int) -> Checker:
    """The ratio rises (sign 1) or falls (-1) from cell to cell."""

    def check(rows: Sequence[Row]) -> tuple[Verdict, str]:
        total, wrong = _steps(rows, field, along, sign)
        verdict = overall([*(True for _ in range(total - len(wrong))), *(False for _ in wrong)])
        return verdict, f"{total - len(wrong)} of {total} steps{_except(wrong, along)}."

    return check


def _except(wrong: Sequence[tuple[Row, Row]], along: str) -> str:
    """Where the steps that go the wrong way lie."""
    if not wrong:
        return ""
    fixed = "r" if along == "v" else "fraction"
    low = min(_number(left, along) for left, _ in wrong)
    high = max(_number(right, along) for _, right in wrong)
    others = sorted({_number(left, fixed) for left, _ in wrong})
    named = f"{fixed} {others[0]:g}" + (f" to {others[-1]:g}" if len(others) > 1 else "")
    return f"; the others lie between {along} {short(low)} and {short(high)}, at {named}"


def dropping(rows: Sequence[Row]) -> tuple[Verdict, str]:
    """Helps for large v and small r, hurts for small v and large r; exactly if v > 2 + r."""
    helps = [row for row in rows if _number(row, "drop_naive") < 1]
    exact = all((_number(r, "v") > 2 + _number(r, "r")) == (r in helps) for r in rows)
    both = 0 < len(helps) < len(rows)
    found = f"lowers the variance in {len(helps)} of {len(rows)} cells, "
    found += f"{_range(rows, 'drop_naive')}; in exactly the cells where v > 2 + r" * exact
    return overall([both, exact]), f"{found}."


def dropping_balanced(rows: Sequence[Row]) -> tuple[Verdict, str]:
    """There are cells where log 2 alone beats balanced on both logs."""
    helps = [row for row in rows if _number(row, "drop_balanced") < 1 - SLACK]
    found = f"lowers the variance in {len(helps)} of {len(rows)} cells, "
    return overall([bool(helps)]), f"{found}{_range(rows, 'drop_balanced')}."


def equals_gamma(rows: Sequence[Row]) -> tuple[Verdict, str]:
    """The ratio by enumeration is the one that the formula gives."""
    gaps = [abs(_number(r, "weighted_naive") / _number(r, "gamma") - 1) for r in rows]
    return overall(
        g < GAMMA_SLACK for g in gaps
    ), f"largest relative difference {max(gaps):.1e}."


def equal_sizes(rows: Sequence[Row]) -> tuple[Verdict, str]:
    """For each first logger, the smallest ratio is where both logs have the same size."""
    lowest = {}
    for fraction in dict.fromkeys(row["fraction"] for row in rows):
        line = [row for row in rows if row["fraction"] == fraction]
        lowest[fraction] = min(line, key=lambda row: _number(row, "weighted_naive"))["r"]
    good = [r == 1 for r in lowest.values()]
    return overall(good), f"smallest at r = 1 for {sum(good)} of {len(good)} first loggers."


def either_wins(rows: Sequence[Row]) -> tuple[Verdict, str]:
    """Weighted wins where v is largest, balanced where it is smallest."""
    wins = [row for row in rows if _number(row, "weighted_balanced") < 1]
    far, near = (
        [row for row in rows if row["fraction"] == end["fraction"]]
        for end in (pick(rows, key=lambda row: _number(row, "v")) for pick in (max, min))
    )
    ends = []
    for name, line in (("largest", far), ("smallest", near)):
        won, v = sum(row in wins for row in line), short(_number(line[0], "v"))
        ends.append(f"in {won} of {len(line)} at the {name} v, {v}")
    verdict = overall([all(r in wins for r in far), any(r not in wins for r in near)])
    found = f"weighted wins in {len(wins)} of {len(rows)} cells, {' and '.join(ends)}; "
    return verdict, f"{found}{_range(rows, 'weighted_balanced')}."


def all_bounds(rows: Sequence[Row]) -> tuple[Verdict, str]:
    """Every bound on a ratio holds in every cell."""
    fields = ("balanced_naive", "weighted_naive", "cv_loggers_best", "cv_target_best")
    checks = {field: never_above(field)(rows) for field in fields}
    checks["gamma"] = equals_gamma(rows)
    found = "; ".join(f"{field}: {text.rstrip('.')}" for field, (_, text) in checks.items())
    return overall(verdict == "holds" for verdict, _ in checks.values()), f"{found}."


def reaches_optimum(rule: str) -> Checker:
    """Variance within 5% of the optimum, and bias below a tenth of the standard error."""

    def check(rows: Sequence[Row]) -> tuple[Verdict, str]:
        there = [r for r in rows if r["rule"] == rule and r["n"] == ENOUGH_ROWS]
        late = [r for r in there if _number(r, "fixed_ratio") > REACHED]
        biased = [r for r in there if abs(_number(r, "bias_sd")) > VISIBLE_BIAS]
        worst = max(there, key=lambda r: _number(r, "fixed_ratio"))
        bias = max(there, key=lambda r: abs(_number(r, "bias_sd")))
        found = f"at {ENOUGH_ROWS} rows per log within 5% of the optimal variance for "
        found += (
            f"{len(there) - len(late)} of {len(there)} first loggers (shares fixed), at worst "
        )
        found += f"{_number(worst, 'fixed_ratio'):.2f} times, fraction {worst['fraction']}; "
        found += f"biased by a tenth of a standard error or more for {len(biased)}, at worst "
        found += (
            f"{_number(bias, 'bias_sd'):+.2f} standard errors, fraction {bias['fraction']}; "
        )
        found += _rows_needed([r for r in rows if r["rule"] == rule])
        return overall(r not in late and r not in biased for r in there), found

    return check


def _rows_needed(rows: Sequence[Row]) -> str:
    """The size from which on all first loggers are within 5% and without visible bias."""
    sizes = sorted({int(row["n"]) for row in rows})
    good = {
        n: all(
            _number(r, "fixed_ratio") <= REACHED and abs(_number(r, "bias_sd")) <= VISIBLE_BIAS
            for r in rows
            if r["n"] == n
        )
        for n in sizes
    }
    enough = [n for n in sizes if all(good[m] for m in sizes if m >= n)]
    return (
        f"both for all from {enough[0]:,} rows on."
        if enough
        else "not both for all at any size."
    )


def simulated(rows: Sequence[Row]) -> tuple[Verdict, str]:
    """No simulated mean or variance is more than 4 standard errors off."""
    scores = list(_z_scores(rows))
    score, row, of = max(scores, key=lambda found: abs(found[0]))
    found = f"{len(scores)} z-scores, the largest {score:+.2f}: the {of} of {row['estimator']} "
    found += (
        f"at fraction {row['fraction']}, r {row['r']:g}; {row['replications']:,} replications."
    )
    return overall(abs(z) <= MOST_Z for z, _, _ in scores), found


def _z_scores(rows: Sequence[Row]) -> Iterator[tuple[float, Row, str]]:
    for row in rows:
        for field, of in (("z_mean", "mean"), ("z_variance", "variance")):
            if _number(row, field) == _number(row, field):  # nan where nothing exact is known
                yield _number(row, field), row, of
