"""Claims of the paper and of this package, each with a verdict computed from the CSV files.

A claim is judged in each data set separately.  It holds if it holds in all of them; where it
holds only in part, the evidence names the cells that contradict it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

from poolwise.text import short
from reproduction.figures import CsvRow, TableName

if TYPE_CHECKING:
    from reproduction.toy import Printed

Holds: TypeAlias = Literal["holds", "holds in part", "does not hold"]
Judgement: TypeAlias = tuple[Holds, str]  # with the numbers behind it, in a sentence
Judge: TypeAlias = Callable[[Sequence[CsvRow]], Judgement]

SLACK = 1e-12  # rounding of a ratio that cannot exceed 1
GAMMA_SLACK = 1e-10
MOST_Z = 4.0
ENOUGH_ROWS = 300  # "a few hundred"
REACHED = 1.05  # within 5% of the optimum
VISIBLE_BIAS = 0.1  # of a standard error
TARGET_BOUND = 0.6
TOY, FULL_SIZE, CLICKS = 0, -1, -2  # used as the figure's number


def claims(
    tables: Mapping[TableName, Sequence[CsvRow]],
    toy: Sequence[Printed],
    full_size: Sequence[CsvRow] = (),
) -> list[CsvRow]:
    """Judge every claim that the given tables cover; return one row per claim and data set."""
    judged = _judged("The numbers of the toy example.", "the paper, Table 1", TOY, _toy(toy))
    for table, wanted in CLAIMS.items():
        places = by_place(tables.get(table, ()))
        for text, (author, figure, judge) in wanted.items():
            verdicts = {where: judge(rows) for where, rows in places.items()}
            judged += _judged(text, author, figure, verdicts)
    text = "The exact computation runs at LYRL's full size, and every bound holds there."
    verdicts = {where: all_bounds(rows) for where, rows in by_place(full_size).items()}
    return judged + _judged(text, "ours, synthetic documents", FULL_SIZE, verdicts)


def verdicts_of(text: str, by: str, judge: Judge, rows: Sequence[CsvRow]) -> list[CsvRow]:
    """Judge one claim in each place of a table."""
    return _judged(text, by, CLICKS, {where: judge(r) for where, r in by_place(rows).items()})


def by_place(rows: Sequence[CsvRow]) -> dict[str, list[CsvRow]]:
    """Group rows by data set and structure of the CRFs."""
    places: dict[str, list[CsvRow]] = {}
    for row in rows:
        extra = ", pairwise CRFs" if row.get("structure") == "pairwise" else ""
        places.setdefault(f"{row['data']}{extra}", []).append(row)
    return places


def _toy(numbers: Sequence[Printed]) -> dict[str, Judgement]:
    return {
        n.what: (
            "holds" if n.agrees else "does not hold",
            f"{n.paper} in the paper; exactly {n.exact} = {n.ours:.6f}. {n.note}".strip(),
        )
        for n in numbers
    }


def _judged(text: str, by: str, figure: int, verdicts: Mapping[str, Judgement]) -> list[CsvRow]:
    """Return the rows of a claim, one per data set, or number of the toy."""
    answers = {answer for answer, _ in verdicts.values()}
    return [
        {
            "claim": text,
            "by": by,
            "figure": figure,
            "verdict": answer if len(answers) == 1 else "holds in part",
            "where": where,
            "verdict_there": answer,
            "evidence": evidence,
        }
        for where, (answer, evidence) in verdicts.items()
    ]


def overall(results: Iterable[bool]) -> Holds:
    """Summarise results: the claim holds if all are true, in part if some are.

    >>> overall([True, True]), overall([True, False]), overall([False])
    ('holds', 'holds in part', 'does not hold')
    """
    values = list(results)
    if all(values):
        return "holds"
    return "holds in part" if any(values) else "does not hold"


def _at(row: CsvRow, field: str) -> str:
    return f"{short(row[field])} at fraction {row['fraction']}, r {row['r']:g}"


def _range(rows: Sequence[CsvRow], field: str) -> str:
    low, high = (pick(rows, key=lambda row: row[field]) for pick in (min, max))
    return f"from {_at(low, field)} to {_at(high, field)}"


def never_above(field: str, bound: float = 1.0) -> Judge:
    """Judge whether the ratio stays at or below a bound in every cell."""

    def judge(rows: Sequence[CsvRow]) -> Judgement:
        good = [row[field] <= bound + SLACK for row in rows]
        return overall(good), f"{sum(good)} of {len(good)} cells, {_range(rows, field)}."

    return judge


def monotone(field: str, along: str, sign: int) -> Judge:
    """Judge whether the ratio rises (sign 1) or falls (-1) from cell to cell."""

    def judge(rows: Sequence[CsvRow]) -> Judgement:
        steps = list(_steps(rows, along))
        wrong = [step for step in steps if sign * (step[1][field] - step[0][field]) < -SLACK]
        answer = overall(step not in wrong for step in steps)
        good = len(steps) - len(wrong)
        return answer, f"{good} of {len(steps)} steps{_except(wrong, along)}."

    return judge


def _steps(rows: Sequence[CsvRow], along: str) -> Iterator[tuple[CsvRow, CsvRow]]:
    """Yield neighbouring cells along `v` or `r`, the other one fixed."""
    fixed = "r" if along == "v" else "fraction"
    for value in dict.fromkeys(row[fixed] for row in rows):
        line = [row for row in rows if row[fixed] == value]
        yield from pairwise(sorted(line, key=lambda row: row[along]))


def _except(wrong: Sequence[tuple[CsvRow, CsvRow]], along: str) -> str:
    """Describe where the steps in the wrong direction are."""
    if not wrong:
        return ""
    fixed = "r" if along == "v" else "fraction"
    low = min(left[along] for left, _ in wrong)
    high = max(right[along] for _, right in wrong)
    others = sorted({left[fixed] for left, _ in wrong})
    named = f"{fixed} {others[0]:g}" + (f" to {others[-1]:g}" if len(others) > 1 else "")
    return f"; the others lie between {along} {short(low)} and {short(high)}, at {named}"


def dropping(rows: Sequence[CsvRow]) -> Judgement:
    """Judge whether dropping log 1 helps naive in some cells: exactly where v > 2 + r."""
    helps = [row for row in rows if row["drop_naive"] < 1]
    exact = all((r["v"] > 2 + r["r"]) == (r in helps) for r in rows)
    where = "; in exactly the cells where v > 2 + r" * exact
    return overall([0 < len(helps) < len(rows), exact]), (
        f"lowers the variance in {len(helps)} of {len(rows)} cells, "
        f"{_range(rows, 'drop_naive')}{where}."
    )


def dropping_balanced(rows: Sequence[CsvRow]) -> Judgement:
    """Judge whether log 2 alone beats balanced on both logs in some cells."""
    helps = [row for row in rows if row["drop_balanced"] < 1 - SLACK]
    return overall([bool(helps)]), (
        f"lowers the variance in {len(helps)} of {len(rows)} cells, "
        f"{_range(rows, 'drop_balanced')}."
    )


def equals_gamma(rows: Sequence[CsvRow]) -> Judgement:
    """Judge whether the ratio by enumeration equals the ratio by the formula."""
    gaps = [abs(r["weighted_naive"] / r["gamma"] - 1) for r in rows]
    evidence = f"largest relative difference {max(gaps):.1e}."
    return overall(gap < GAMMA_SLACK for gap in gaps), evidence


def equal_sizes(rows: Sequence[CsvRow]) -> Judgement:
    """Judge whether the ratio of each first logger is smallest for logs of equal size."""
    lowest = {}
    for fraction in dict.fromkeys(row["fraction"] for row in rows):
        line = [row for row in rows if row["fraction"] == fraction]
        lowest[fraction] = min(line, key=lambda row: row["weighted_naive"])["r"]
    good = [r == 1 for r in lowest.values()]
    return overall(good), f"smallest at r = 1 for {sum(good)} of {len(good)} first loggers."


def either_wins(rows: Sequence[CsvRow]) -> Judgement:
    """Judge whether weighted wins where v is largest, balanced where it is smallest."""
    wins = [row for row in rows if row["weighted_balanced"] < 1]
    far, near = (
        [row for row in rows if row["fraction"] == end["fraction"]]
        for end in (pick(rows, key=lambda row: row["v"]) for pick in (max, min))
    )
    ends = []
    for name, line in (("largest", far), ("smallest", near)):
        won, v = sum(row in wins for row in line), short(line[0]["v"])
        ends.append(f"in {won} of {len(line)} at the {name} v, {v}")
    return overall([all(r in wins for r in far), any(r not in wins for r in near)]), (
        f"weighted wins in {len(wins)} of {len(rows)} cells, {' and '.join(ends)}; "
        f"{_range(rows, 'weighted_balanced')}."
    )


def all_bounds(rows: Sequence[CsvRow]) -> Judgement:
    """Judge whether every bound on a ratio holds in every cell."""
    fields = ("balanced_naive", "weighted_naive", "cv_loggers_best", "cv_target_best")
    judged = {field: never_above(field)(rows) for field in fields}
    judged["gamma"] = equals_gamma(rows)
    evidence = "; ".join(f"{field}: {text.rstrip('.')}" for field, (_, text) in judged.items())
    return overall(answer == "holds" for answer, _ in judged.values()), f"{evidence}."


def _near_optimum(row: CsvRow) -> bool:
    return bool(row["fixed_ratio"] <= REACHED)


def _unbiased(row: CsvRow) -> bool:
    return bool(abs(row["bias_sd"]) <= VISIBLE_BIAS)


def reaches_optimum(rule: str) -> Judge:
    """Judge variance (within 5% of the optimum) and bias (below a tenth of an error)."""

    def judge(rows: Sequence[CsvRow]) -> Judgement:
        ruled = [row for row in rows if row["rule"] == rule]
        cells = [row for row in ruled if row["n"] == ENOUGH_ROWS]
        worst = max(cells, key=lambda row: row["fixed_ratio"])
        bias = max(cells, key=lambda row: abs(row["bias_sd"]))
        evidence = (
            f"at {ENOUGH_ROWS} rows per log within 5% of the optimal variance for "
            f"{sum(map(_near_optimum, cells))} of {len(cells)} first loggers (shares fixed), "
            f"at worst {worst['fixed_ratio']:.2f} times, fraction "
            f"{worst['fraction']}; biased by a tenth of a standard error or more for "
            f"{len(cells) - sum(map(_unbiased, cells))}, at worst "
            f"{bias['bias_sd']:+.2f} standard errors, fraction {bias['fraction']}; "
            f"{_rows_needed(ruled)}"
        )
        return overall(_near_optimum(row) and _unbiased(row) for row in cells), evidence

    return judge


def _rows_needed(rows: Sequence[CsvRow]) -> str:
    """Name the size from which on all first loggers are near the optimum and unbiased."""
    sizes = {int(row["n"]) for row in rows}
    late = {int(row["n"]) for row in rows if not (_near_optimum(row) and _unbiased(row))}
    enough = [size for size in sizes if size > max(late, default=0)]
    if not enough:
        return "not both for all at any size."
    return f"both for all from {min(enough):,} rows on."


def simulated(rows: Sequence[CsvRow]) -> Judgement:
    """Judge whether all simulated means and variances are within 4 standard errors."""
    scores = [
        (row[field], row, of)
        for row in rows
        for field, of in (("z_mean", "mean"), ("z_variance", "variance"))
        if row[field] == row[field]  # NaN without an exact value
    ]
    score, row, of = max(scores, key=lambda entry: abs(entry[0]))
    return overall(abs(z) <= MOST_Z for z, _, _ in scores), (
        f"{len(scores)} z-scores, the largest {score:+.2f}: the {of} of {row['estimator']} "
        f"at fraction {row['fraction']}, r {row['r']:g}; {row['replications']:,} replications."
    )


Entry: TypeAlias = tuple[str, int, Judge]  # source, figure and judge of a claim


def _paper(section: str, figure: int, judge: Judge) -> Entry:
    return f"the paper, section {section}", figure, judge


def _ours(figure: int, judge: Judge) -> Entry:
    return "ours", figure, judge


CLAIMS: Mapping[TableName, Mapping[str, Entry]] = {  # by table and text
    "panels": {
        "Dropping log 1 lowers the variance of naive for high v and small r.": _paper(
            "7.2", 1, dropping
        ),
        "Dropping becomes less beneficial as v decreases.": _paper(
            "7.2", 1, monotone("drop_naive", "v", -1)
        ),
        "Dropping becomes less beneficial as r increases.": _paper(
            "7.2", 1, monotone("drop_naive", "r", 1)
        ),
        "Even balanced can improve by dropping log 1 (seen in the toy).": _paper(
            "5", 1, dropping_balanced
        ),
        "Balanced is never worse than naive.": _paper("7.3", 2, never_above("balanced_naive")),
        "Balanced gains more on naive as v grows.": _paper(
            "7.3", 2, monotone("balanced_naive", "v", -1)
        ),
        "Balanced gains less on naive as r grows.": _paper(
            "7.3", 2, monotone("balanced_naive", "r", 1)
        ),
        "Weighted is never worse than naive.": _paper("7.4", 3, never_above("weighted_naive")),
        "Weighted gains on naive by exactly gamma.": _paper("6.1", 3, equals_gamma),
        "Weighted gains more on naive as v grows.": _paper(
            "7.4", 3, monotone("weighted_naive", "v", -1)
        ),
        "Weighted gains most on naive where the logs are of equal size.": _paper(
            "6.1", 3, equal_sizes
        ),
        "Weighted beats balanced for distant loggers, balanced wins for close ones.": _paper(
            "7.5", 4, either_wins
        ),
        "Control variates of the loggers are never worse than the best of the rest.": _ours(
            7, never_above("cv_loggers_best")
        ),
        "With the target's column as well they have at most 0.6 of that variance.": _ours(
            7, never_above("cv_target_best", TARGET_BOUND)
        ),
    },
    "weights": {
        "Weights estimated from each log's own rows are optimal in a few hundred rows.": _paper(
            "7.6", 5, reaches_optimum("own")
        ),
        "With divergences from the rows of all logs they do so, without visible bias.": _ours(
            5, reaches_optimum("pooled")
        ),
    },
    "simulation": {
        "Simulated estimators are all unbiased, with the variances of the formulas.": _paper(
            "7.1", 6, simulated
        ),
    },
}
