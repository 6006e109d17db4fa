"""Watch: add rows to a state, and say which claims may be made now.

The bounds of a watch hold at all block ends together, so they may be looked at after each
block, and a claim may be made at the first block end that shows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from poolwise.diagnosis.provenance import text_order
from poolwise.engines import with_loggers
from poolwise.errors import Finding, NotShownError, UsageError, did_you_mean
from poolwise.evaluation.output import Result
from poolwise.evaluation.per_request import refuse_clicks, refuse_estimates, refuse_lists
from poolwise.evaluation.read import run
from poolwise.evaluation.request import named_targets, request
from poolwise.evaluation.state import (
    INDEPENDENT,
    STATE,
    Block,
    State,
    refuse_other,
    stamp,
    with_bounds,
)
from poolwise.evaluation.target import make_results
from poolwise.files import lock_file, refuse_output
from poolwise.intervals.guarantees import list_payoffs
from poolwise.intervals.student import Interval
from poolwise.log.adapters import policy_text
from poolwise.report.tables import Grid
from poolwise.rows.guard import list_files
from poolwise.text import join_names, short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from poolwise.engines.base import EngineLike
    from poolwise.evaluation.output import Row
    from poolwise.evaluation.read import OpenLog
    from poolwise.evaluation.request import Request
    from poolwise.evaluation.state import Asked
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.blocks import Payoff, Settled

SHOWN_BLOCKS = 12  # periods in a table


@dataclass(frozen=True)
class Claim:
    """A claim and whether it may be made now.

    Attributes:
        text: The claim.
        holds: True if the bounds show it.
        reason: The bound that decides.
    """

    text: str
    holds: bool
    reason: str


@dataclass(frozen=True, eq=False)
class Watched(Result):
    """Bounds that hold at every block end, and the claims that they show.

    Attributes:
        target: Name of the target.
        other: Policy that the target is compared with, or empty.
        level: Probability that all bounds hold, at all block ends simultaneously.
        blocks: All blocks, with the bounds at their ends.
        claims: Claims, each with the answer.
        findings: Findings about the rows that were added last, and about the order of blocks.
    """

    kind: ClassVar[str] = "watch"
    target: str
    other: str
    level: float
    blocks: tuple[Block, ...]
    claims: tuple[Claim, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def interval(self) -> Interval:
        """Bounds of the target's value, from all block ends so far."""
        lower, upper = self.blocks[-1].value or (-math.inf, math.inf)
        return Interval(lower, upper, self.level)

    @property
    def difference(self) -> Interval | None:
        """Bounds of the difference to the other policy, if there is one."""
        bounds = self.blocks[-1].difference
        return None if bounds is None else Interval(*bounds, self.level)

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return sum(block.count for block in self.blocks)

    def require(self) -> None:
        """Raise NotShownError unless every claim holds; alarms fail every claim."""
        reasons = [claim.reason for claim in self.claims if not claim.holds]
        reasons += [f"alarm {f.code}" for f in self.findings if f.severity == "alarm"]
        if reasons:
            raise NotShownError(
                join_names([c.text for c in self.claims]) or "no alarm", reasons
            )

    @property
    def sentence(self) -> str:
        """The conclusion in words."""
        lower, upper = self.interval.lower, self.interval.upper
        text = (
            f"After {self.rows:,} rows in {len(self.blocks)} block"
            f"{'s' * (len(self.blocks) > 1)}, the value of {self.target!r} is between "
            f"{short(lower)} and {short(upper)} ({self.level:.0%}, at all block ends together)."
        )
        difference = self.difference
        if difference is not None:
            text += (
                f" Its difference to {self.other!r} is between {short(difference.lower)} and "
                f"{short(difference.upper)}."
            )
        for claim in self.claims:
            text += f" May be claimed now, {claim.text}: {'yes' if claim.holds else 'no'}."
        return text

    @property
    def sentences(self) -> Sequence[str]:
        return (self.sentence,)

    def to_dicts(self) -> list[Row]:
        """Return one dictionary per block."""
        lines: list[Row] = []
        for block in self.blocks:
            line: Row = {"block": block.name, "rows": block.count}
            line["lower"], line["upper"] = block.value or (None, None)
            if block.difference is not None:
                line["difference_lower"], line["difference_upper"] = block.difference
            lines.append(line)
        return lines

    def to_dict(self) -> Row:
        """Return the whole result, nested; the names are public."""
        return {
            "target": self.target,
            "other": self.other or None,
            "level": self.level,
            "rows": self.rows,
            "lower": self.interval.lower,
            "upper": self.interval.upper,
            "blocks": self.to_dicts(),
            "claims": [vars(claim) for claim in self.claims],
            "sentence": self.sentence,
            "warnings": self.warnings,
        }

    def grids(self) -> list[Grid]:
        """Return one table with the bounds at the last block ends."""
        lines = self.to_dicts()
        names = ["block", "rows", "lower", "upper"]
        names += ["difference_lower", "difference_upper"] * (self.difference is not None)
        rows = [[_cell(line[name]) for name in names] for line in lines[-SHOWN_BLOCKS:]]
        left = len(lines) - len(rows)
        title = "Bounds at block ends" + (f", after {left} earlier ones" if left else "")
        return [Grid(title, [name.replace("_", "\n") for name in names], rows)]


def _cell(value: object) -> str:
    return short(value) if isinstance(value, float) else str(value)


def watch(
    state: str | PathLike[str],
    log: Log | None = None,
    target: Mapping[str, PolicyLike] | PolicyLike | None = None,
    *,
    above: float | None = None,
    better_than: str | None = None,
    level: float = 0.95,
    planned: int | None = None,
    engine: EngineLike = None,
) -> Watched:
    """Add rows to a state; return bounds that hold however often one looks.

    Args:
        state: File of the state, ending in ``.npz``. `watch` creates it with the first
            rows, and replaces the whole file when it adds rows.
        log: Rows to add, with `reward_range`. Each of its periods is a block; without a
            `period`, all rows are one block. Policies may have learned from earlier blocks.
            All rows of a `cluster` must be in one block.
            Without a log, `watch` returns the bounds of the state.
        target: Probability of the logged action under the new policy, or a mapping of its
            name to it. The mapping has two names if `better_than` is one of them.
        above: Claim that the value is above this number.
        better_than: Logger, or other target; the claim is that the target's value is above
            its value. It is part of the question, so it must be the same whenever rows are
            added. A logger need not be live yet: nothing is bet before it writes rows.
        level: Probability that all bounds of the value hold, at all block ends
            simultaneously; the same for all bounds of the difference.
        planned: Total number of rows that will be added, if known, to size the bets. By
            default, bets are sized for several numbers.
        engine: As for `evaluate`.
    """
    path = Path(state)
    if log is None:
        return _conclude_watch(State.load(path), above, ())
    refuse_output(path, STATE, list_files(log))
    targets = {} if target is None else named_targets(target)
    log = with_loggers(log, engine)
    refuse_clicks(log, "watch")
    refuse_estimates(log, "watch")
    _refuse_question(log, targets, better_than, planned)
    asked = request(log, targets, "naive", level=level, interval="betting")
    after, found = _add_rows(path, asked, _question(asked, better_than, planned), engine)
    return _conclude_watch(after, above, (*log.notes, *found))


def _refuse_question(
    log: Log, targets: Mapping[str, PolicyLike], better_than: str | None, planned: int | None
) -> None:
    """Refuse what cannot be watched."""
    if len(targets.keys() - {better_than}) != 1:
        raise UsageError(
            "watch takes one target, or two of which `better_than` names one; got "
            f"{', '.join(map(repr, targets)) or 'none'}"
        )
    if log.reward_range is None:
        raise UsageError(
            "watch requires the smallest and largest possible reward: give "
            "reward_range=(lower, upper) (--reward-range lower,upper)"
        )
    if log.trained_on:
        raise UsageError(
            "watch allows for policies that learned from earlier periods: give `period` in "
            "place of `trained_on`"
        )
    refuse_lists(log, "watch")
    if planned is not None and planned < 1:
        raise UsageError(f"planned must be a number of rows, got {planned}")
    if better_than is not None and better_than not in targets and not log.by_label:
        hint = did_you_mean(better_than, targets)
        raise UsageError(
            "better_than must name a logger of `propensities` or the other target, got "
            f"{better_than!r}{hint}"
        )


def _question(asked: Request, better_than: str | None, planned: int | None) -> Asked:
    """Return what has to stay the same for all rows of a state, as plain values."""
    log = asked.log
    (name,) = asked.targets.keys() - {better_than}
    return {
        "target": name,
        "better_than": better_than or "",
        "level": asked.level,
        "reward_range": list(map(float, log.reward_range or ())),
        "planned": planned,
        "reward": log.reward,
        "logger": log.logger or "",
        "period": log.period or "",
        "cluster": log.cluster or "",
        "timezone": log.timezone,
        "balanced_weights": log.crossed,
        "log_probabilities": log.log_probabilities,
        "densities": log.densities,
        "on_fault": log.on_fault,
        "targets": {other: policy_text(policy) for other, policy in asked.targets.items()},
    }


def _add_rows(
    path: Path, asked: Request, question: Asked, engine: EngineLike
) -> tuple[State, tuple[Finding, ...]]:
    """Add the rows of a request to the state in a file; return it, and findings of the rows."""
    begun = stamp(path)
    before = State.load(path) if begun else State(question)
    refuse_other(before.question, question)
    verb = partial(_read_state, question=question, number=len(before.blocks))
    more, findings = run(asked, engine, verb)
    after = with_bounds(before + more)
    with lock_file(path):
        if stamp(path) != begun:
            raise UsageError(
                f"{str(path)!r} changed while rows were read: add these rows again"
            )
        after.save(path)
    return after, findings


def _payoffs(asked: Asked, targets: Sequence[str]) -> list[Payoff]:
    """Return gains and losses of the target, and those that a comparison needs."""
    lower, upper = asked["reward_range"]
    own, other = list_payoffs(asked["target"], (lower, upper)), asked["better_than"]
    if not other:
        return [*own]
    if other in targets:
        return [*own, *list_payoffs(other, (lower, upper))]
    return [*own, *(replace(payoff, against=other) for payoff in own)]


def _read_state(
    rows: OpenLog, question: Asked, number: int
) -> tuple[State, tuple[Finding, ...]]:
    """Return the rows as a state of their own, and their findings."""
    findings = make_results(rows.read()).targets[question["target"]].findings
    return _state(rows, question, number), findings


def _state(rows: OpenLog, asked: Asked, number: int) -> State:
    """Return the rows as a state of their own."""
    payoffs = _payoffs(asked, rows.request.names)
    settled = rows.rows.settle(payoffs, pooled=rows.coverage.period_mixed, watched=True)
    blocks = _blocks(settled, tuple(rows.rows.counts), number)
    return State(asked, blocks, settled.sums.histograms, settled.shifts)


def _blocks(settled: Settled, loggers: Sequence[str], number: int) -> tuple[Block, ...]:
    names = settled.names or (str(number + 1),)
    clusters = settled.clusters if settled.names else {names[0]: settled.clusters.get("")}
    return tuple(
        Block(
            name,
            {i: int(n) for i, n in zip(loggers, counts, strict=True) if n},
            f"{mark:x}",
            clusters.get(name) or INDEPENDENT,
        )
        for name, counts, mark in zip(
            names, settled.sums.counts, settled.sums.marks.tolist(), strict=True
        )
    )


def _conclude_watch(
    state: State, above: float | None, findings: tuple[Finding, ...]
) -> Watched:
    asked, last = state.question, state.blocks[-1]
    claims = []
    if above is not None and last.value is not None:
        lower = last.value[0]
        reason = f"the lower bound is {short(lower)}"
        claims.append(Claim(f"above {above:g}", lower > above, reason))
    if last.difference is not None:
        lower = last.difference[0]
        reason = f"the lower bound of the difference is {short(lower)}"
        claims.append(Claim(f"better than {asked['better_than']!r}", lower > 0, reason))
    findings = (*findings, *text_order([block.name for block in state.blocks]))
    if len(state.shifts) > 2 and not np.isfinite(state.shifts[2][-1]):
        findings = (*findings, _not_live(asked["better_than"], state))
    return Watched(
        asked["target"],
        asked["better_than"],
        asked["level"],
        state.blocks,
        tuple(claims),
        findings,
    )


def _not_live(logger: str, state: State) -> Finding:
    loggers = dict.fromkeys(i for block in state.blocks for i in block.rows)
    if logger in loggers:
        return Finding(
            "baseline-not-live",
            f"Logger {logger!r} wrote no rows of {state.blocks[-1].name!r}, so nothing was bet "
            "on the difference.",
            "Keep it live on a small share of the traffic while it is the baseline.",
            "note",
        )
    return Finding(
        "baseline-not-live",
        f"Logger {logger!r} wrote no rows yet, so nothing was bet on the difference. "
        f"Loggers so far are {join_names(list(map(repr, loggers)))}.",
        "Bets begin with the first rows of this logger. If its name is misspelt, begin a new "
        "state with all rows.",
    )
