"""Lacking: one finding for what several estimators miss in the same log.

Without cross-propensities some estimators cannot be computed and others fall back on
naive.  Asked for by name, each says so itself; where nobody asked, one sentence does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from poolwise.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.result import TargetResult

CODE = "no-cross-propensities"
AS_NAIVE = {"calibrated-as-naive": "calibrated", "weighted-as-naive": "weighted"}


def one_cause(
    refused: Sequence[str], results: Mapping[str, TargetResult], loggers: Sequence[str]
) -> tuple[tuple[Finding, ...], dict[str, TargetResult]]:
    """One finding in the place of many, and results without those.

    Args:
        refused: Estimators that need cross-propensities; without any, nothing changes.
        results: What was found, by target.
        loggers: Whose probabilities would be needed.
    """
    if not refused:
        return (), dict(results)
    codes = {f.code for result in results.values() for f in result.findings}
    fallen = [name for code, name in AS_NAIVE.items() if code in codes]
    rest = {
        name: replace(r, findings=tuple(f for f in r.findings if f.code not in AS_NAIVE))
        for name, r in results.items()
    }
    return (_finding(refused, fallen, loggers),), rest


def _finding(refused: Sequence[str], fallen: Sequence[str], loggers: Sequence[str]) -> Finding:
    lost = f"there is no {_listed(refused, 'or')}"
    weak = f", and {_listed(fallen, 'and')} can do no better than naive" if fallen else ""
    return Finding(
        CODE,
        "The probability of each row's action is known under the logger that wrote it, but "
        f"not under the others: {lost}{weak}.",
        f"Give `propensities` (--propensities) for {', '.join(map(repr, loggers))}: a column, "
        "an expression or a policy for each.",
    )


def _listed(names: Sequence[str], last: str) -> str:
    """Names as a sentence has them.

    >>> _listed(["a"], "or"), _listed(["a", "b", "c"], "or")
    ('a', 'a, b or c')
    """
    return f" {last} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
