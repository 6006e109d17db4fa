"""Causes: findings that say the same, shown together.

One fault raises several findings: wrong propensities contradict the frequencies of actions,
the means of weights and the estimates of the logs.  A result keeps all of them; a text shows
the first of each cause and names the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poolwise.errors import GRAVEST_FIRST, name_target
from poolwise.text import count_noun

Facts = Mapping[str, Any]  # a finding in the dictionary of a result
SHOWN = 5  # causes that a text shows
LISTED = 3  # targets or codes that a line names

# In the order of what they would change: everything, the value, its interval, nothing.  The
# first code of a cause says most about it.
CAUSES: Mapping[str, tuple[str, ...]] = {
    "probabilities": (
        "action-too-often",
        "action-too-seldom",
        "propensities-off",
        "weights-off",
        "hausman",
        "action-seldom",
        "propensities-rounded",
    ),
    "support": (
        "actions-unlogged",
        "target-uncovered",
        "thin-overlap",
        "logger-unsupported",
        "period-unsupported",
        "biased",
        "context-certain",
    ),
    "training": (
        "trained-on-own-log",
        "target-trained-on-log",
        "loggers-in-succession",
        "fixed-beforehand",
    ),
    "time": ("drift", "backtest-off", "loggers-disagree", "period-drift", "drift-untested"),
    "copies": ("equal-files", "doubled-rows", "copies-unknown"),
    "rows": ("dropped-rows",),
    "dependence": ("rows-repeat-unit", "clusters-ignored", "few-clusters"),
    "few rows": (
        "decisive-rows",
        "few-effective-rows",
        "dominant-row",
        "heavy-weights",
        "few-rewarded-rows",
        "heavy-logger",
        "tail-unknown",
    ),
    "confounders": ("propensities-estimated",),
    "classifier": (
        "propensities-misfit",
        "propensities-classified",
        "propensities-clipped",
        "propensities-sample",
    ),
    "mixture": (
        "estimated-mixture",
        "mixture-clipped",
        "mixture-left-out",
        "no-cross-propensities",
    ),
}
RANKS = {
    code: (place, k) for place, c in enumerate(CAUSES.values()) for k, code in enumerate(c)
}
NAMES = {code: cause for cause, codes in CAUSES.items() for code in codes}


@dataclass(frozen=True)
class Cause:
    """Findings of one cause.

    Attributes:
        severity: Severity of the gravest.
        code: Its code.
        text: Its text, with the targets that it concerns.
        others: Texts of the other findings.
        also: A sentence that names the others; empty without any.
    """

    severity: str
    code: str
    text: str
    others: tuple[str, ...] = ()
    also: str = ""


def group_findings(findings: Sequence[Facts]) -> list[Cause]:
    """Group findings by cause, the gravest first, then those that would change most."""
    causes: dict[str, list[Facts]] = {}
    for finding in findings:
        causes.setdefault(find_cause(finding), []).append(finding)
    ordered = [sorted(group, key=_rank) for group in causes.values()]
    return [_group(group) for group in sorted(ordered, key=lambda group: _rank(group[0]))]


def find_cause(finding: Facts) -> str:
    """Return the cause of a finding; its code if no other code has it."""
    return NAMES.get(str(finding["code"]), str(finding["code"]))


def _rank(finding: Facts) -> tuple[int, tuple[int, int]]:
    place = RANKS.get(str(finding["code"]), (len(CAUSES), 0))
    return GRAVEST_FIRST.index(finding["severity"]), place


def _group(findings: Sequence[Facts]) -> Cause:
    targets: dict[tuple[str, str, str, str], list[str]] = {}
    for finding in findings:
        key = str(finding["severity"]), str(finding["code"]), str(finding["message"])
        names = targets.setdefault((*key, str(finding.get("metric", ""))), [])
        names += [str(finding["target"])] if finding.get("target") else []
    texts = [
        _name_subjects(message, names, metric)
        for (*_, message, metric), names in targets.items()
    ]
    (severity, code, *_), *rest = targets
    codes = list(dict.fromkeys(other for _, other, *_ in rest))
    also = f"Of the same cause: {_listed(codes)}." if codes else ""
    return Cause(severity, code, texts[0], tuple(texts[1:]), also)


def _name_subjects(message: str, targets: Sequence[str], metric: str) -> str:
    """Begin a message with the metric and the targets that it concerns."""
    if len(targets) < 2:
        return name_target(message, next(iter(targets), ""), metric)
    several = f"argets {_listed([repr(name) for name in targets])}: {message}"
    return f"Metric {metric!r}, t{several}" if metric else f"T{several}"


def _listed(names: Sequence[str]) -> str:
    """Name a few, and count the rest.

    >>> _listed(["a", "b"]), _listed(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    left = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {left} more" if left > 0 else "")


def rest_text(groups: Sequence[Cause], shown: int = SHOWN) -> str:
    """Count the findings that are not shown, by severity; no text if all are."""
    left = groups[shown:]
    if not left:
        return ""
    counts = {s: sum(g.severity == s for g in left) for s in GRAVEST_FIRST}
    parts = [count_noun(n, s) for s, n in counts.items() if n]
    codes = _listed([g.code for g in left])
    return f"{' and '.join(parts)} more ({codes}): see `warnings`, or --json."
