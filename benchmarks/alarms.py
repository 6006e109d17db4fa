"""Alarms: how often does a clean log raise one, and how often does a spoilt log raise its own?

Clean logs of several kinds are evaluated and checked as a user would do it; each log has
policies and rewards of its own.  Spoilt logs have 20,000 rows and one defect each, for which
some codes are the right answer.  Kinds of logs whose warnings are true are declared as such,
and are reported apart.

Thresholds were chosen on logs of other seeds: the streams 0 and 1 are for
choosing, 2 is for the table.

Run: python -m benchmarks.alarms [clean logs of each kind, 20] [spoilt logs, 100] [stream, 2]
Writes docs/figures/alarms.csv and the tables of docs/findings.md if the stream is 2; what the
file has is not computed again.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

import poolwise as pw
from benchmarks.kept import DOCS, markdown, write_csv, write_part
from poolwise.errors import LogError, PoolwiseError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from poolwise.errors import Finding
    from poolwise.types import FloatArray, IntArray

CLEAN, SPOILT, FEWER = 20, 100, 40  # logs of each kind; fewer of defects that do not show
REPORTED = 2  # stream of seeds of the table; lower ones are for choosing
ROWS = 20_000  # of a spoilt log
SIZES = (2_000, 5_000, 20_000, 50_000)  # of logs with another version's probabilities
ACTIONS, FEATURES = 10, 5
WORKERS = 2
PAGE, MARKER, RESULTS = DOCS / "findings.md", "alarms", DOCS / "figures" / "alarms.csv"
PARTS = ("clean", "declared", "spoilt", "hidden", "rows")
COUNTS = ("alarm", "warning", "true alarm", "true warning", "own")
ROWS_PER_USER, USERS = 10, 0.2  # and the standard deviation of a user's clicks
BETTER = 0.1  # share of rows that earn something more after a drift
Generator = np.random.Generator


@dataclass(frozen=True)
class Case:
    """One log, and the targets that are asked about.

    Attributes:
        columns: Columns of the log.
        roles: Arguments of `Log` besides the source.
        targets: Column of each target.
    """

    columns: Mapping[str, Any]
    roles: Mapping[str, Any]
    targets: Mapping[str, str]

    @property
    def log(self) -> pw.Log:
        """The log."""
        return pw.Log(pa.table(dict(self.columns)), **self.roles)

    def change(self, **columns: object) -> Case:
        """Return the log with other columns."""
        return replace(self, columns={**self.columns, **columns})


@dataclass(frozen=True)
class Kind:
    """One kind of clean logs.

    Attributes:
        rows: Rows of each logger.
        reward: What a row earns.
        rate: Mean probability that a row earns anything.
        targets: Number of targets.
        contexts: Number of discrete contexts; 0 for continuous features.
        apart: Standard deviation between the scores of a policy and the common ones.
        exploring: Share of rows that nearly deterministic policies draw at random; 0 for
            softmax policies.
        new: Whether targets play actions that no logger plays but by chance.
        own: Whether only each row's own propensity is known.
        positions: Positions of a list; 1 for a log of single rows.
        times: Whether loggers follow each other, in a column of times.
        listed: Whether the log lists the actions that each row could play.
        true: Codes that are true of such logs.
    """

    rows: tuple[int, ...] = (4_000, 4_000, 4_000)
    reward: str = "click"
    rate: float = 0.3
    targets: int = 2
    contexts: int = 0
    apart: float = 0.5
    exploring: float = 0.0
    new: bool = False
    own: bool = False
    positions: int = 1
    times: bool = False
    listed: bool = False
    true: tuple[str, ...] = ()

    def draw(self, rng: Generator) -> Case:
        """Draw a log with policies of its own."""
        return draw_lists(self, rng) if self.positions > 1 else Draw(self, rng).case


class Draw:
    """One log as it is drawn: features, scores, probabilities, actions, rewards."""

    def __init__(self, kind: Kind, rng: Generator) -> None:
        self.kind, self.rng = kind, rng
        self.names = [f"v{k + 1}" for k in range(len(kind.rows))]
        self.logger = rng.permutation(np.repeat(np.arange(len(kind.rows)), kind.rows))
        rows = len(self.logger)
        actions = 5 if kind.contexts else ACTIONS
        self.x = rng.normal(size=(rows, FEATURES))
        if kind.contexts:
            self.context = rng.integers(kind.contexts, size=rows)
            self.x = rng.normal(size=(kind.contexts, FEATURES))[self.context]
        common = rng.normal(size=(FEATURES, actions)) / np.sqrt(FEATURES)
        self.common = self.x @ common
        policies = [self.policy() for _ in self.names]
        self.policies: FloatArray = np.array(policies)
        self.played = self.policies[self.logger, np.arange(rows)]
        cut = rng.random(rows)[:, None]
        self.action: IntArray = (self.played.cumsum(axis=1) < cut).sum(axis=1)
        self.action = self.action.clip(max=actions - 1)
        quality = 0.5 * (self.x @ rng.normal(size=(FEATURES, actions)))
        chance = 2 * kind.rate / (1 + np.exp(-quality))
        self.chance = chance[np.arange(rows), self.action].clip(max=1.0)
        self.reward = self.rewards(self.chance)
        self.targets = {f"t{k}": self.target() for k in range(kind.targets)}

    def policy(self) -> FloatArray:
        """Return the probabilities of a new policy."""
        change = self.rng.normal(size=(FEATURES, self.common.shape[1])) / np.sqrt(FEATURES)
        return self.probabilities(self.common + self.kind.apart * (self.x @ change))

    def probabilities(self, scores: FloatArray) -> FloatArray:
        """Return the probabilities of a policy with these scores."""
        if self.kind.exploring:
            best = scores == scores.max(axis=1, keepdims=True)
            return np.asarray(
                self.kind.exploring / scores.shape[1] + (1 - self.kind.exploring) * best
            )
        return softmax(scores)

    def target(self) -> FloatArray:
        """Return the probabilities of a target; of nearly deterministic ones, a mosaic."""
        if not self.kind.exploring or self.kind.new:
            return self.policy()
        side = self.x @ self.rng.normal(size=(FEATURES, len(self.names)))
        chosen: FloatArray = self.policies[side.argmax(axis=1), np.arange(len(side))]
        return chosen

    def rewards(self, chance: FloatArray) -> FloatArray:
        """Draw what rows earn."""
        paid = (self.rng.random(len(chance)) < chance).astype(np.float64)
        if self.kind.reward == "revenue":
            return paid * np.exp(1.5 * self.rng.normal(size=len(paid)))
        if self.kind.reward == "cost":
            return -(0.5 + chance) * np.exp(self.rng.normal(size=len(paid)))
        return paid

    @property
    def crossed(self) -> FloatArray:
        """Probability of each row's action under each logger, shape (loggers, rows)."""
        return np.asarray(self.policies[:, np.arange(len(self.action)), self.action])

    @property
    def own(self) -> FloatArray:
        """Probability of each row's action under its own logger."""
        return np.asarray(self.crossed[self.logger, np.arange(len(self.action))])

    @property
    def case(self) -> Case:
        """The log as it is."""
        rows = np.arange(len(self.action))
        columns: dict[str, Any] = {
            "logger": np.array(self.names)[self.logger],
            "action": np.array([f"a{k}" for k in range(self.common.shape[1])])[self.action],
            "reward": self.reward,
        }
        if self.kind.contexts:
            columns["context"] = self.context
        else:
            columns |= {f"x{k}": self.x[:, k] for k in range(FEATURES)}
        roles: dict[str, Any] = {"reward": "reward", "logger": "logger", "action": "action"}
        if self.kind.times:
            columns["time"] = times(np.argsort(np.argsort(self.logger, kind="stable")))
        if self.kind.listed:
            every = [f"a{k}" for k in range(self.common.shape[1])]
            columns["eligible"], roles["eligible"] = [every] * len(rows), "eligible"
        if self.kind.own:
            columns["p"], roles["propensity"] = self.own, "p"
        else:
            columns |= {f"p_{i}": p for i, p in zip(self.names, self.crossed, strict=True)}
            roles["propensities"] = "p_{logger}"
        columns |= {name: p[rows, self.action] for name, p in self.targets.items()}
        return Case(columns, roles, {name: name for name in self.targets})


def times(minutes: IntArray) -> Any:  # noqa: ANN401 - an array of times
    """Return the times so many minutes after a first one."""
    return (1_700_000_000 + 60 * minutes).astype("datetime64[s]")


def softmax(scores: FloatArray) -> FloatArray:
    """Return probabilities in proportion to exp(score)."""
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def draw_lists(kind: Kind, rng: Generator) -> Case:
    """Draw lists of items without repetition, with a row for each position."""
    names = [f"v{k + 1}" for k in range(len(kind.rows))]
    logger = rng.permutation(np.repeat(np.arange(len(kind.rows)), kind.rows))
    lists, items = len(logger), ACTIONS
    x = rng.normal(size=(lists, FEATURES))
    common = rng.normal(size=(FEATURES, items))
    changes = rng.normal(size=(len(names) + kind.targets, FEATURES, items))
    worth = np.exp(x @ (common + kind.apart * changes) / np.sqrt(FEATURES))
    chance = 2 * kind.rate / (1 + np.exp(-x @ rng.normal(size=(FEATURES, items))))
    each, left = np.arange(lists), np.ones((lists, items))
    columns: dict[str, list[Any]] = {}
    for position in range(kind.positions):
        steps = worth * left / (worth * left).sum(axis=2, keepdims=True)
        drawn = steps[logger, each].cumsum(axis=1)
        item = (drawn < rng.random(lists)[:, None]).sum(axis=1).clip(max=items - 1)
        part = {
            "request": each,
            "position": np.full(lists, position + 1),
            "logger": np.array(names)[logger],
            "item": item,
            "reward": (rng.random(lists) < chance[each, item]).astype(np.float64),
            **{f"p_{i}": steps[k, each, item] for k, i in enumerate(names)},
            **{f"t{k}": steps[len(names) + k, each, item] for k in range(kind.targets)},
        }
        left[each, item] = 0.0
        for name, values in part.items():
            columns.setdefault(name, []).append(values)
    roles = {
        "request": "request",
        "position": "position",
        "reward": "reward",
        "logger": "logger",
        "propensities": "p_{logger}",
    }
    targets = {f"t{k}": f"t{k}" for k in range(kind.targets)}
    return Case({name: np.concatenate(v) for name, v in columns.items()}, roles, targets)


TINY = Kind(targets=10, contexts=6, apart=0.4)
KINDS: Mapping[str, Kind] = {
    "softmax policies, clicks": Kind(),
    "rare clicks (1%)": Kind((10_000,) * 3, rate=0.01),
    "revenue (10% paid, lognormal)": Kind(reward="revenue", rate=0.1),
    "costs below 0 (lognormal)": Kind(reward="cost"),
    "nearly deterministic, exploring": Kind((5_000,) * 3, exploring=0.1),
    "60 rows a logger, ten targets": replace(TINY, rows=(60,) * 3),
    "150 rows a logger, ten targets": replace(TINY, rows=(150,) * 3),
    "400 rows a logger, ten targets": replace(TINY, rows=(400,) * 3),
    "1,000 rows a logger, ten targets": replace(TINY, rows=(1_000,) * 3),
    "150 rows a logger, continuous": Kind((150,) * 3, targets=10),
    "1,000 rows a logger, continuous": Kind((1_000,) * 3, targets=10),
    "lists of three items": Kind((1_500,) * 2, positions=3, apart=0.25),
    "two loggers, 20,000 and 300 rows": Kind((20_000, 300)),
    "own propensities only": Kind(own=True),
    "own propensities, with lists": Kind(own=True, listed=True),
    "own propensities only, revenue": Kind(own=True, reward="revenue", rate=0.1),
    "20 loggers of 400 rows": Kind((400,) * 20),
}
TRUE = ("few-effective-rows", "decisive-rows", "dominant-row", "heavy-weights")
DECLARED: Mapping[str, Kind] = {
    "loggers in succession, fixed policies": Kind(times=True, true=("loggers-in-succession",)),
    "nearly deterministic, new decisions": Kind(
        (2_000,) * 3, exploring=0.1, new=True, true=TRUE
    ),
    "policies far apart": Kind((1_000,) * 3, apart=2.0, true=(*TRUE, "thin-overlap")),
    "own propensities, far apart": Kind(
        (1_000,) * 3, apart=2.0, own=True, true=(*TRUE, "thin-overlap", "heavy-logger")
    ),
}


# --- defects -----------------------------------------------------------------------------

SPOILT_KIND = Kind((6_667, 6_667, 6_666), targets=1)
WRONG = ("action-too-often", "action-too-seldom", "propensities-off", "weights-off")


def _with_propensities(draw: Draw, logged: FloatArray) -> Case:
    """Return the log in which the second logger has other probabilities."""
    rows = np.arange(len(draw.action))
    column = "p_v2"
    if draw.kind.own:
        own = np.where(draw.logger == 1, logged[rows, draw.action], draw.own)
        return draw.case.change(p=own)
    return draw.case.change(**{column: logged[rows, draw.action]})


def _uniform(draw: Draw) -> Case:
    return _with_propensities(draw, np.full_like(draw.common, 1 / draw.common.shape[1]))


def _version(draw: Draw) -> Case:
    change = draw.rng.normal(scale=0.3, size=draw.common.shape[1])
    return _with_propensities(draw, softmax(np.log(draw.policies[1]) + change))


def _greedy(draw: Draw) -> Case:
    logged = draw.policies[1].copy()
    own, best = draw.logger == 1, logged.max(axis=1)
    logged[own, draw.action[own]] = best[own]
    return _with_propensities(draw, logged)


def _tempered(draw: Draw, sharpness: float) -> Case:
    return _with_propensities(draw, softmax(np.log(draw.policies[1]) * sharpness))


def _scaled(draw: Draw) -> Case:
    return _with_propensities(draw, 0.8 * draw.policies[1])


def _twice(draw: Draw) -> Case:
    case, own = draw.case, draw.logger == 1
    columns = {n: np.concatenate([v, v[own]]) for n, v in case.columns.items()}
    return replace(case, columns=columns)


def _drift(draw: Draw) -> Case:
    better = draw.rng.random(len(draw.reward)) < BETTER
    more = np.maximum(draw.reward, better)
    return draw.case.change(reward=np.where(draw.logger == 1, more, draw.reward))


def _unsupported(draw: Draw) -> Case:
    """Half of the target's probability is on an action that was never logged."""
    case = draw.case
    return case.change(t0=case.columns["t0"] / 2)


def _mislabelled(draw: Draw) -> Case:
    label = np.where(draw.logger < 2, 1 - draw.logger, draw.logger)
    return draw.case.change(logger=np.array(draw.names)[label])


def _percent(draw: Draw) -> Case:
    case = draw.case
    return case.change(t0=100 * case.columns["t0"])


def _retrained(draw: Draw) -> Case:
    """Each policy but the first was trained on the rows of those before it."""
    kind, rng = draw.kind, draw.rng
    contexts, actions = kind.contexts, draw.common.shape[1]
    share = 1 / actions
    worth = rng.uniform(0.2, 0.4, (contexts, actions))
    tables, columns = [np.full((contexts, actions), share)], []
    clicks, shown = np.ones((contexts, actions)), np.full((contexts, actions), 3.0)
    for rows in kind.rows:
        context = rng.integers(contexts, size=rows)
        drawn = tables[-1][context].cumsum(axis=1) < rng.random(rows)[:, None]
        action = drawn.sum(axis=1).clip(max=actions - 1)
        reward = (rng.random(rows) < worth[context, action]).astype(np.float64)
        np.add.at(clicks, (context, action), reward)
        np.add.at(shown, (context, action), 1.0)
        columns.append((context, action, reward))
        tables.append(softmax(8 * clicks / shown))
    context, action, reward = (np.concatenate(c) for c in zip(*columns, strict=True))
    logger = np.repeat(np.arange(len(kind.rows)), kind.rows)
    return draw.case.change(
        context=context,
        action=np.array([f"a{k}" for k in range(actions)])[action],
        reward=reward,
        logger=np.array(draw.names)[logger],
        t0=np.full(len(context), share),
        time=times(np.arange(len(context))),
        **{f"p_{i}": t[context, action] for i, t in zip(draw.names, tables, strict=False)},
    )


def _rounded(draw: Draw) -> Case:
    case = draw.case
    names = [n for n in case.columns if n == "p" or n.startswith("p_")]
    return case.change(**{n: np.maximum(np.round(case.columns[n], 2), 0.01) for n in names})


def _users(draw: Draw) -> Case:
    """Ten rows of a user, whose clicks have a common part; the log names no cluster."""
    rows, rng = len(draw.reward), draw.rng
    user = rng.integers(rows // ROWS_PER_USER, size=rows)
    more = rng.normal(scale=USERS, size=rows // ROWS_PER_USER)[user]
    reward = (rng.random(rows) < (draw.chance + more).clip(0.0, 1.0)).astype(np.float64)
    return draw.case.change(user=user, reward=reward)


@dataclass(frozen=True)
class Defect:
    """A defect of logs.

    Attributes:
        spoil: Returns a log with the defect.
        codes: Findings that name it; a refusal counts as well.
        kind: Kind of the log.
        lost: Columns that the log lacks.
        visible: Whether the log shows the defect; if not, the reason is in the name.
    """

    spoil: Callable[[Draw], Case]
    codes: Sequence[str]
    kind: Kind = SPOILT_KIND
    lost: Sequence[str] = ()
    visible: bool = True


OWN = replace(SPOILT_KIND, own=True)
LISTED = replace(SPOILT_KIND, listed=True)
DISCRETE = replace(SPOILT_KIND, contexts=6)
LEARNING = Kind((5_000,) * 4, targets=1, contexts=50)
DEFECTS: Mapping[str, Defect] = {
    "1/K logged for a softmax": Defect(_uniform, WRONG),
    "another version's probabilities": Defect(_version, WRONG),
    "the best action's probability for the played one's": Defect(_greedy, WRONG),
    "probabilities of a lower temperature (1 / 1.5)": Defect(
        partial(_tempered, sharpness=1.5), WRONG
    ),
    "probabilities of a higher temperature (1.5), with lists": Defect(
        partial(_tempered, sharpness=1 / 1.5), WRONG, LISTED
    ),
    "probabilities times 0.8": Defect(_scaled, WRONG),
    "1/K logged, own propensities only": Defect(_uniform, WRONG, OWN),
    "another version's, own propensities only": Defect(_version, WRONG, OWN),
    "a lower temperature's, own propensities only": Defect(
        partial(_tempered, sharpness=1.5), WRONG, OWN
    ),
    "a higher temperature's, own propensities and lists": Defect(
        partial(_tempered, sharpness=1 / 1.5), WRONG, replace(LISTED, own=True)
    ),
    "a higher temperature's, own propensities, no lists": Defect(
        partial(_tempered, sharpness=1 / 1.5), WRONG, OWN, visible=False
    ),
    "times 0.8, own propensities only": Defect(_scaled, WRONG, OWN),
    "a log loaded twice": Defect(_twice, ("doubled-rows", "equal-files")),
    "a log of few distinct rows loaded twice": Defect(
        _twice, ("doubled-rows", "copies-unknown"), DISCRETE, visible=False
    ),
    "drift: a logger earns 7 points more": Defect(_drift, ("drift",)),
    "half of the target never logged": Defect(_unsupported, ("target-uncovered",)),
    "half of the target never logged, own propensities": Defect(
        _unsupported, ("target-uncovered",), OWN
    ),
    "labels of two loggers swapped": Defect(_mislabelled, WRONG),
    "labels swapped, own propensities only": Defect(_mislabelled, WRONG, OWN, visible=False),
    "a target in percent": Defect(_percent, ("refused",)),
    "policies retrained on the log": Defect(_retrained, ("loggers-in-succession",), LEARNING),
    "propensities rounded to two decimals": Defect(_rounded, ("propensities-rounded",)),
    "rounded, own propensities, no actions": Defect(
        _rounded, ("propensities-rounded",), OWN, ("action",)
    ),
    "ten rows a user, no cluster": Defect(_users, ("rows-repeat-unit",)),
    "policies retrained, no column of times": Defect(
        _retrained, ("loggers-in-succession", "hausman"), LEARNING, ("time",), visible=False
    ),
}


VERSIONS = ("another version's probabilities", "another version's, own propensities only")


# --- what is found -----------------------------------------------------------------------


class Found(NamedTuple):
    """Findings of one log: the gravest severity of each code."""

    codes: dict[str, str]

    def grave(self, severity: str, besides: Sequence[str] = ()) -> list[str]:
        """Return the codes with this severity."""
        return [c for c, s in self.codes.items() if s == severity and c not in besides]


def examine(case: Case, own: Sequence[str] = ()) -> Found:
    """Evaluate a log and return its findings, with those of `check` unless one is in `own`."""
    try:
        if "request" in case.roles:
            log, targets = pw.ranking_log(
                pa.table(dict(case.columns)), dict(case.targets), **case.roles
            )
        else:
            log, targets = case.log, dict(case.targets)
        found = pw.evaluate(log, targets)
        findings = [*found.findings, *(f for r in found.targets.values() for f in r.findings)]
        if not {f.code for f in findings if f.severity != "note"} & set(own):
            findings += pw.check(log, targets).findings
    except (LogError, PoolwiseError) as error:
        return Found({"refused": "alarm", type(error).__name__: "alarm"})
    return Found(gravest(findings))


def gravest(findings: Sequence[Finding]) -> dict[str, str]:
    """Return the gravest severity of each code."""
    return {f.code: f.severity for f in sorted(findings, key=lambda f: -f.rank)}


def clean_log(stream: int, name: str, seed: int) -> Found:
    """Return the findings of a clean log."""
    kind = {**KINDS, **DECLARED}[name]
    rng = np.random.default_rng([stream, seed, [*KINDS, *DECLARED].index(name)])
    return examine(kind.draw(rng))


def spoilt_log(stream: int, name: str, seed: int, rows: int = ROWS) -> Found:
    """Return the findings of a log with a defect."""
    defect = DEFECTS[name]
    rng = np.random.default_rng([stream, seed, rows, list(DEFECTS).index(name)])
    counts = tuple(round(n * rows / ROWS) for n in defect.kind.rows)
    case = defect.spoil(Draw(replace(defect.kind, rows=counts), rng))
    columns = {n: v for n, v in case.columns.items() if n not in defect.lost}
    roles = {n: v for n, v in case.roles.items() if v not in defect.lost}
    return examine(replace(case, columns=columns, roles=roles), defect.codes)


@dataclass
class Tally:
    """Findings of the logs of one kind.

    Attributes:
        part: "clean", "declared", "spoilt", "hidden" (not visible in the log) or "rows".
        name: Kind of log, or defect.
        besides: Codes that are true of such logs.
        own: Codes that name the defect.
    """

    part: str
    name: str
    besides: Sequence[str] = ()
    own: Sequence[str] = ()
    logs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)

    def add(self, found: Found) -> None:
        """Count one log."""
        self.logs += 1
        for severity in ("alarm", "warning"):
            self.counts[severity] += bool(found.grave(severity, self.besides))
            self.counts[f"true {severity}"] += bool(
                set(found.grave(severity)) & set(self.besides)
            )
        self.counts["own"] += any(found.codes.get(c) in {"alarm", "warning"} for c in self.own)
        self.codes.update(code for code, s in found.codes.items() if s != "note")

    def percent(self, count: str) -> str:
        """Return a count as a percentage of the logs."""
        return f"{100 * self.counts[count] / self.logs:.3g}"

    @property
    def shown(self) -> str:
        """Codes with the number of logs that have them."""
        names = [c for c, _ in sorted(self.codes.items(), key=lambda item: (-item[1], item[0]))]
        return ", ".join(f"`{c}` {self.codes[c]}" for c in names if not c.endswith("Error"))

    @property
    def line(self) -> Sequence[object]:
        """The line of the CSV file."""
        codes = self.shown.replace("`", "")
        return (self.part, self.name, self.logs, *(self.counts[n] for n in COUNTS), codes)

    def read(self, line: Mapping[str, str]) -> None:
        """Take the numbers of a line."""
        self.logs = int(line["logs"])
        self.counts.update({name: int(line[name]) for name in COUNTS})
        pairs = [pair.split() for pair in line["codes"].split(", ") if pair]
        self.codes.update({code: int(count) for code, count in pairs})


Job = tuple[Tally, "Callable[[int], Found]", int]


def list_jobs(clean: int, spoilt: int, stream: int) -> list[Job]:
    """Return an empty tally for each kind of log, how to examine a log, and how many."""
    jobs: list[Job] = []
    for part, kinds in (("clean", KINDS), ("declared", DECLARED)):
        for name, kind in kinds.items():
            tally = Tally(part, name, kind.true)
            jobs.append((tally, partial(clean_log, stream, name), clean))
    fewer = min(FEWER, spoilt)
    for name, defect in sorted(DEFECTS.items(), key=lambda item: not item[1].visible):
        tally = Tally("spoilt" if defect.visible else "hidden", name, own=defect.codes)
        logs = spoilt if defect.visible else fewer
        jobs.append((tally, partial(spoilt_log, stream, name), logs))
    for name in VERSIONS:
        for rows in SIZES:
            tally = Tally("rows", f"{name}, {rows:,} rows", own=DEFECTS[name].codes)
            jobs.append((tally, partial(spoilt_log, stream, name, rows=rows), fewer))
    return jobs


def read_tallies(path: Path = RESULTS) -> list[Tally]:
    """Return what the CSV file has."""
    with path.open(encoding="utf-8", newline="") as file:
        known = {(line["part"], line["name"]): line for line in csv.DictReader(file)}
    tallies = [tally for tally, _, _ in list_jobs(0, 0, REPORTED)]
    kept = [tally for tally in tallies if (tally.part, tally.name) in known]
    for tally in kept:
        tally.read(known[tally.part, tally.name])
    return kept


def run(jobs: Sequence[Job], path: Path | None) -> None:
    """Examine the logs that the CSV file lacks, and add them to it."""
    kept = read_tallies(path) if path is not None and path.exists() else []
    known = {(tally.part, tally.name): tally for tally in kept}
    with ProcessPoolExecutor(WORKERS) as pool:
        for tally, examined, logs in jobs:
            found = known.get((tally.part, tally.name))
            if found is not None and found.logs == logs:
                continue
            for each in pool.map(examined, range(logs)):
                tally.add(each)
            print(tally.part, tally.name, tally.logs, dict(tally.counts), tally.shown)
            sys.stdout.flush()
            known[tally.part, tally.name] = tally
            if path is not None:
                lines = [other.line for other in known.values()]
                write_csv(path, ("part", "name", "logs", *COUNTS, "codes"), lines)


def tables(tallies: Sequence[Tally]) -> str:
    """Return the tables of the page."""
    parts = {part: [t for t in tallies if t.part == part] for part in PARTS}
    clean = parts["clean"]
    logs = sum(t.logs for t in clean)
    sums = [sum(t.counts[s] for t in clean) for s in ("alarm", "warning")]
    alarms, warnings = (f"{100 * count / logs:.2g}%" for count in sums)
    text = [
        f"Of {logs:,} clean logs, {alarms} raise an alarm and {warnings} a warning.",
        markdown(
            ["clean log", "logs", "alarm, %", "warning, %", "codes, by logs"],
            [
                [
                    t.name,
                    f"{t.logs}",
                    t.percent("alarm"),
                    t.percent("warning"),
                    t.shown or "none",
                ]
                for t in clean
            ],
        ),
        "In these logs the named warnings are true; the columns count others:",
        markdown(
            ["log", "logs", "alarm, %", "warning, %", "true ones, %", "codes, by logs"],
            [
                [
                    t.name,
                    f"{t.logs}",
                    t.percent("alarm"),
                    t.percent("warning"),
                    _true(t),
                    t.shown,
                ]
                for t in parts["declared"]
            ],
        ),
        f"Logs of {ROWS:,} rows with one defect, and how many raise a finding that names it:",
        markdown(
            ["defect", "logs", "found, %", "by one of", "all alarms and warnings, by logs"],
            [
                [t.name, f"{t.logs}", t.percent("own"), _codes(t), t.shown or "none"]
                for t in parts["spoilt"]
            ],
        ),
        "Defects that a log does not show:",
        markdown(
            ["defect", "logs", "found, %", "all alarms and warnings, by logs"],
            [
                [t.name, f"{t.logs}", t.percent("own"), t.shown or "none"]
                for t in parts["hidden"]
            ],
        ),
        "Another version's probabilities of one logger of three, by rows of the log:",
        markdown(
            ["log", "logs", "found, %"],
            [[t.name, f"{t.logs}", t.percent("own")] for t in parts["rows"]],
        ),
    ]
    return "\n\n".join(text)


def _true(tally: Tally) -> str:
    return f"{tally.percent('true alarm')} / {tally.percent('true warning')}"


def _codes(tally: Tally) -> str:
    return ", ".join(f"`{code}`" for code in tally.own)


def main() -> None:
    """Print what was found, and write the tables."""
    given = [int(text) for text in sys.argv[1:]]
    clean, spoilt, stream = (*given, *(CLEAN, SPOILT, REPORTED)[len(given) :])
    run(list_jobs(clean, spoilt, stream), RESULTS if stream == REPORTED else None)
    if stream == REPORTED:
        write_part(PAGE, MARKER, tables(read_tallies()))


if __name__ == "__main__":
    main()
