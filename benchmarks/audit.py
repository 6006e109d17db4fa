"""Audit: how often does it find wrong propensities, and how often does it blame right ones?

Right logs of seven kinds must stay without an alarm.  Wrong ones are logs of the same policies
with other numbers in place of the propensities.  The second table is of logs with whole
distributions.

Run: python -m benchmarks.audit [LOGS [FIRST SEED]]; writes the tables in docs/your-logs.md if
seeds begin at 0, and prints them otherwise.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from poolwise.diagnosis.audit import audit_findings
from poolwise.log.policy import draw_index
from poolwise.rows.actions import AuditSums, array_sums
from poolwise.rows.distributions import sum_frequencies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from poolwise.types import FloatArray, IntArray

PAGE = Path(__file__).parent.parent / "docs" / "your-logs.md"
START, END = "<!-- audit: begin -->", "<!-- audit: end -->"
WHOLE_START, WHOLE_END = "<!-- whole audit: begin -->", "<!-- whole audit: end -->"
SIZES, LOGS = (1_000, 5_000, 20_000), 100
ACTIONS, FEATURES, DRAWS = 10, 5, 100
MANY = 40  # actions of nearly deterministic policies with lists
Generator = np.random.Generator


class Policy(NamedTuple):
    """Probabilities of all actions in each row, and which of them could be played."""

    probabilities: FloatArray
    eligible: np.typing.NDArray[np.bool] | None = None


def softmax(scores: FloatArray, temperature: float = 1.0) -> FloatArray:
    """Return probabilities in proportion to exp(score / temperature)."""
    raised = np.exp((scores - scores.max(axis=1, keepdims=True)) / temperature)
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _scores(rows: int, rng: Generator, actions: int = ACTIONS) -> FloatArray:
    weights = rng.normal(size=(FEATURES, actions))
    return np.asarray(rng.normal(size=(rows, FEATURES)) @ weights / np.sqrt(FEATURES))


def _greedy(rows: int, rng: Generator) -> Policy:
    scores = _scores(rows, rng)
    best = scores == scores.max(axis=1, keepdims=True)
    return Policy(0.1 / ACTIONS + 0.9 * best)


def _listed(rows: int, rng: Generator) -> Policy:
    scores = _scores(rows, rng)
    eligible = rng.random(scores.shape) < rng.uniform(0.3, 1.0, ACTIONS)
    eligible[np.arange(rows), rng.integers(0, ACTIONS, rows)] = True
    return Policy(softmax(np.where(eligible, scores, -np.inf)), eligible)


def _rare(rows: int, rng: Generator) -> Policy:
    popularity = -1.2 * np.log(np.arange(1, 301))
    return Policy(softmax(0.3 * rng.normal(size=(rows, 1)) * popularity + popularity))


def _lists_greedy(rows: int, rng: Generator) -> Policy:
    best = rng.integers(0, MANY, rows)[:, None] == np.arange(MANY)
    return Policy(0.001 / MANY + 0.999 * best, np.ones((rows, MANY), dtype=bool))


KINDS: Mapping[str, Callable[[int, Generator], Policy]] = {
    "softmax": lambda rows, rng: Policy(softmax(_scores(rows, rng))),
    "epsilon-greedy": _greedy,
    "nearly deterministic": lambda rows, rng: Policy(softmax(_scores(rows, rng), 0.05)),
    "uniform": lambda rows, _: Policy(np.full((rows, ACTIONS), 1 / ACTIONS)),
    "eligible lists": _listed,
    "eligible lists, 0.1% exploration": _lists_greedy,
    "300 actions, most of them rare": _rare,
}


def _another(probabilities: FloatArray, rng: Generator) -> FloatArray:
    """Return another version: the same scores, some of them changed."""
    change = rng.normal(scale=0.3, size=probabilities.shape[1])
    return softmax(np.log(probabilities) + change)


def _shares(probabilities: FloatArray, rng: Generator) -> FloatArray:
    """Return shares of independent draws; a row whose action was not drawn has one."""
    return np.asarray(np.maximum(rng.binomial(DRAWS, probabilities), 1) / DRAWS)


# What is logged in place of the probabilities: of all actions, or only of the best one.
MISTAKES: Mapping[str, Callable[[FloatArray, Generator], FloatArray]] = {
    "1/K for a softmax": lambda p, _: np.full_like(p, 1 / p.shape[1]),
    "the best action's probability": lambda p, _: np.broadcast_to(
        p.max(axis=1, keepdims=True), p.shape
    ),
    "another version's probabilities": _another,
    "rows shifted by one": lambda p, _: np.roll(p, 1, axis=0),
    "rounded to two decimals": lambda p, _: np.maximum(np.round(p, 2), 0.01),
    f"shares of {DRAWS} draws": _shares,
}


SPOILT_DISTRIBUTIONS: Mapping[str, Callable[[FloatArray, Generator], FloatArray]] = {
    "1/K for a softmax": MISTAKES["1/K for a softmax"],
    "another version's distributions": _another,
    "rows shifted by one": MISTAKES["rows shifted by one"],
    "a temperature lower by a fifth": lambda p, _: softmax(np.log(p), 0.8),
    "a temperature higher by a fifth": lambda p, _: softmax(np.log(p), 1.2),
    f"shares of {DRAWS} draws": lambda p, rng: rng.multinomial(DRAWS, p) / DRAWS,
}


def audit_log(
    policy: Policy, rng: Generator, change: Callable[[FloatArray, Generator], FloatArray]
) -> Counter[str]:
    """Draw a log of a policy, and return its findings by code."""
    probabilities = policy.probabilities
    action: IntArray = draw_index(probabilities, rng)
    rows = np.arange(len(action))
    prob = change(probabilities, rng)[rows, action]
    lists = None
    if policy.eligible is not None:
        lists = pa.chunked_array([[np.flatnonzero(row) for row in policy.eligible]])
    sums = array_sums(
        ["log"], np.zeros(len(rows), np.int64), prob, pa.chunked_array([action]), lists
    )
    return Counter({finding.code: 1 for finding in audit_findings(sums)})


def audit_distributions(
    policy: Policy, rng: Generator, change: Callable[[FloatArray, Generator], FloatArray]
) -> Counter[str]:
    """Draw a log whose rows have whole distributions, and return its findings by code."""
    probabilities = policy.probabilities
    action: IntArray = draw_index(probabilities, rng)
    known = change(probabilities, rng)
    names = [str(k) for k in range(known.shape[1])]
    sums = sum_frequencies("log", names, known, action)
    audited = AuditSums({"log": len(action)}, (), frequencies=tuple(sums))
    return Counter({finding.code: 1 for finding in audit_findings(audited)})


def replicate(
    kind: str,
    mistake: str | None,
    rows: int,
    logs: int,
    first: int = 0,
    *,
    whole: bool = False,
) -> Counter[str]:
    """Return how many logs of a kind have each finding.

    Args:
        kind: Kind of policy.
        mistake: What is logged in place of the probabilities; None for right ones.
        rows: Rows of each log.
        logs: Number of logs.
        first: Seed of the first.
        whole: Whether rows have whole distributions.
    """
    mistakes, audited = (
        (SPOILT_DISTRIBUTIONS, audit_distributions) if whole else (MISTAKES, audit_log)
    )
    change = (lambda p, _: p) if mistake is None else mistakes[mistake]
    found: Counter[str] = Counter()
    for seed in range(first, first + logs):
        rng = np.random.default_rng([seed, rows])
        found += audited(KINDS[kind](rows, rng), rng, change)
    return found


CODES = {
    "action-too-often": "too often (alarm)",
    "action-too-seldom": "too seldom (alarm)",
    "action-seldom": "seldom (note)",
    "propensities-rounded": "rounded",
}


def table(logs: int, first: int = 0, *, whole: bool = False) -> str:
    """Return a table: percentages of logs with each finding, by number of rows."""
    codes = dict(list(CODES.items())[:2]) if whole else CODES
    lines = [
        f"| {'distributions' if whole else 'log'} | {' | '.join(codes.values())} |",
        f"|---|{'--:|' * len(codes)}",
    ]
    mistakes = SPOILT_DISTRIBUTIONS if whole else MISTAKES
    cases = [(kind, None) for kind in KINDS] + [("softmax", mistake) for mistake in mistakes]
    for kind, mistake in cases:
        found = [replicate(kind, mistake, n, logs, first, whole=whole) for n in SIZES]
        cells = [" / ".join(f"{100 * f[code] / logs:.0f}" for f in found) for code in codes]
        lines.append(
            f"| {f'right: {kind}' if mistake is None else mistake} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Write the tables into the page, or print them."""
    given = [int(text) for text in sys.argv[1:]]
    logs, first = (*given, *(LOGS, 0)[len(given) :])
    parts = [(START, END, False), (WHOLE_START, WHOLE_END, True)]
    for start, end, whole in parts:
        found = table(logs, first, whole=whole)
        print(found)
        if not first:
            before, rest = PAGE.read_text("utf-8").split(start)
            text = f"{before}{start}\n\n{found}\n\n{end}{rest.split(end)[1]}"
            PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
