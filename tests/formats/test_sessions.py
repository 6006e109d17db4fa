"""Sessions: several decisions with consequences, against an enumerated decision process.

Three steps, two states and two actions. What a user does next depends on the state and on the
action, and a session may end early. All probabilities are fourths or halves, so that a log
holds every session exactly as often as it is probable: its averages *are* expectations.
"""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.errors import LogError, MissingColumnError, UsageError
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from poolwise.formats.rankings import RankingLog

pytestmark = pytest.mark.slow  # all of them together take seconds
ALL = ("naive", "balanced", "weighted", "calibrated", "self-normalised")
STEPS = 3
# Fourths of action 1 in each state, which may depend on the step: a policy of a session.
PLAYS = {"old": (1, 2), "new": (3, 2), "target": (3, 1)}
SESSIONS = {"old": 512, "new": 1536}
# Halves with which the next state is 1, by state and action.
NEXT = {(0, 0): 1, (0, 1): 2, (1, 0): 0, (1, 1): 1}


class Step(NamedTuple):
    """A decision with its state, and the reward that followed."""

    state: int
    action: int
    reward: int


def play(policy: str, state: int, action: int) -> Fraction:
    one = Fraction(PLAYS[policy][state], 4)
    return one if action else 1 - one


def earned(step: int, state: int, action: int) -> int:
    return (2 * step + 1) * (1 + 2 * state) - (3 if action else 0) * (step == 0)


def leaves(step: int, state: int, action: int) -> bool:
    """After the wrong action in state 1, the user is gone."""
    return step == STEPS - 1 or (state == 1 and action == 1)


def paths(policy: str) -> Iterator[tuple[tuple[Step, ...], Fraction]]:
    """Yield every session with its probability."""
    open_: list[tuple[tuple[Step, ...], int, Fraction]] = [((), 0, Fraction(1))]
    while open_:
        before, state, chance = open_.pop()
        step = len(before)
        for action in (0, 1):
            here = chance * play(policy, state, action)
            after = (*before, Step(state, action, earned(step, state, action)))
            if leaves(step, state, action):
                yield after, here
                continue
            for following in (0, 1):
                halves = NEXT[state, action]
                likely = Fraction(halves if following else 2 - halves, 2)
                if likely:
                    open_.append((after, following, here * likely))


def value(policy: str = "target") -> Fraction:
    return sum((p * sum(s.reward for s in path) for path, p in paths(policy)), Fraction(0))


def sessions() -> list[tuple[str, str, tuple[Step, ...]]]:
    """Return the ID, the logger and the steps of every session of an exact log."""
    found = []
    for logger, count in SESSIONS.items():
        for number, (path, chance) in enumerate(paths(logger)):
            times = count * chance
            assert times.denominator == 1
            found += [(f"{logger}-{number}-{k}", logger, path) for k in range(int(times))]
    return found


def long_rows() -> list[dict[str, Any]]:
    return [
        {
            "session": name,
            "turn": k + 1,
            "policy": logger,
            "state": step.state,
            "action": step.action,
            "r": step.reward,
            **{f"p_{p}": float(play(p, step.state, step.action)) for p in PLAYS},
        }
        for name, logger, path in sessions()
        for k, step in enumerate(path)
    ]


def wide_rows() -> list[dict[str, Any]]:
    return [
        {
            "session": name,
            "policy": logger,
            "turn": [*range(1, len(path) + 1)],
            "r": [step.reward for step in path],
            "total": sum(step.reward for step in path),
            **{f"p_{p}": [float(play(p, s.state, s.action)) for s in path] for p in PLAYS},
        }
        for name, logger, path in sessions()
    ]


def read(source: object, **options: Any) -> RankingLog:  # noqa: ANN401 - roles of several types
    roles = {
        "targets": {"best": "p_target"},
        "session": "session",
        "step": "turn",
        "logger": "policy",
        "reward": "r",
        "propensities": {"old": "p_old", "new": "p_new"},
    }
    return pw.session_log(source, **{**roles, **options})


def values(found: RankingLog) -> dict[str, float]:
    result = pw.evaluate(found.log, found.targets, ALL)["best"]
    return {name: estimate.value for name, estimate in result.estimates.items()}


EXPECTED = pytest.approx(dict.fromkeys(ALL, float(value())), rel=1e-11)


def test_the_process_is_worth_what_backward_induction_says() -> None:
    """The same value from the last step back, without an enumeration of sessions."""

    def worth(step: int, state: int) -> Fraction:
        total = Fraction(0)
        for action in (0, 1):
            later = Fraction(0)
            if not leaves(step, state, action):
                one = Fraction(NEXT[state, action], 2)
                later = one * worth(step + 1, 1) + (1 - one) * worth(step + 1, 0)
            total += play("target", state, action) * (earned(step, state, action) + later)
        return total

    assert worth(0, 0) == value()
    lengths = {len(path) for path, _ in paths("old")}
    assert lengths == {2, 3}
    assert sum(p for _, p in paths("target")) == 1


def test_every_estimator_expects_the_value_of_a_session() -> None:
    assert values(read(pa.Table.from_pylist(long_rows()))) == EXPECTED


def test_a_reward_of_a_step_alone_misses_what_decisions_cause() -> None:
    """Weights of single decisions, as if each step was a row of its own, are biased."""
    table = pa.Table.from_pylist(long_rows())
    single = pw.Log(
        table, reward="r", logger="policy", propensities={"old": "p_old", "new": "p_new"}
    )
    per_row = pw.evaluate(single, {"best": "p_target"}, "naive")["best"].estimates["naive"]
    steps_of_target = sum((p * len(path) for path, p in paths("target")), Fraction(0))
    assert abs(per_row.value * float(steps_of_target) - float(value())) > 0.2


def with_reward_at_end(kind: str) -> pa.Table:
    rows = long_rows()
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["session"]] = totals.get(row["session"], 0) + row["r"]
    last = {row["session"]: row["turn"] for row in rows}
    for row in rows:
        ends = row["turn"] == last[row["session"]]
        early = {"null": None, "zero": 0, "same": totals[row["session"]]}[kind]
        row["r"] = totals[row["session"]] if ends else early
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize("kind", ["null", "zero", "same"])
def test_a_reward_at_the_end_counts_once(kind: str) -> None:
    assert values(read(with_reward_at_end(kind), reward_at="end")) == EXPECTED


def test_rows_may_be_sessions() -> None:
    table = pa.Table.from_pylist(wide_rows())
    assert values(read(table)) == EXPECTED
    assert values(read(table, step=None)) == EXPECTED
    assert values(read(table, reward="total")) == EXPECTED
    assert values(read(table, propensities="p_{logger}", step=None)) == EXPECTED
    assert values(read(table, step=None, reward="2 * total / 2")) == EXPECTED


def _parquet(rows: list[dict[str, Any]], folder: Path) -> object:
    pq.write_table(pa.Table.from_pylist(rows), folder / "log.parquet")
    return folder / "log.parquet"


def _select(rows: list[dict[str, Any]], folder: Path) -> object:
    return f"SELECT * FROM '{_parquet(rows, folder)}'"


def _json(rows: list[dict[str, Any]], folder: Path) -> object:
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder / "log.jsonl"


def _csv(rows: list[dict[str, Any]], folder: Path) -> object:
    pa.csv.write_csv(pa.Table.from_pylist(rows), folder / "log.csv")
    return folder / "log.csv"


def _mapping(rows: list[dict[str, Any]], folder: Path) -> object:
    del folder
    return {
        i: pa.Table.from_pylist([r for r in rows if r["policy"] == i]).drop_columns("policy")
        for i in SESSIONS
    }


SOURCES: Mapping[str, Callable[[list[dict[str, Any]], Path], object]] = {
    "files": _parquet,
    "select": _select,
    "json": _json,
    "csv": _csv,
    "mapping": _mapping,
    "dictionaries": lambda rows, _: rows,
    "pandas": lambda rows, _: pa.Table.from_pylist(rows).to_pandas(),
    "polars": lambda rows, _: pl.from_arrow(pa.Table.from_pylist(rows)),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same(source: str, tmp_path: Path) -> None:
    given = SOURCES[source](long_rows(), tmp_path)
    found = read(given, **({"logger": None} if source == "mapping" else {}))
    assert values(found) == EXPECTED
    assert isinstance(found.log.source, str) == (source in {"files", "select"})


def test_by_step_the_values_add_up() -> None:
    log, targets = read(pa.Table.from_pylist(long_rows()))
    found = pw.evaluate(log, targets, "balanced", by="turn").segments
    assert found is not None
    by_step = [result.estimate.value for result in found.results if result.estimate]
    exact = [
        sum((p * path[k].reward for path, p in paths("target") if k < len(path)), Fraction(0))
        for k in range(STEPS)
    ]
    assert by_step == pytest.approx([float(part) for part in exact], rel=1e-11)


def test_it_is_the_cascade_of_rankings() -> None:
    table = pa.Table.from_pylist(long_rows())
    other = pw.ranking_log(
        table,
        {"best": "p_target"},
        request="session",
        position="turn",
        reward="r",
        logger="policy",
        propensities={"old": "p_old", "new": "p_new"},
        model="cascade",
    )
    found = pw.evaluate(*read(table))["best"].estimates
    for name, estimate in pw.evaluate(*other)["best"].estimates.items():
        assert found[name].value == pytest.approx(estimate.value, rel=1e-12)
        assert found[name].std_error == pytest.approx(estimate.std_error, rel=1e-9)


def test_logarithms_own_propensities_and_clusters() -> None:
    rows = long_rows()
    for row in rows:
        row["user"] = row["session"][-2:]
        row["own"] = math.log(row[f"p_{row['policy']}"])
        row["t"] = math.log(row["p_target"])
    log, targets = read(
        pa.Table.from_pylist(rows),
        targets="t",
        propensity="own",
        propensities=None,
        log_probabilities=True,
        cluster="user",
    )
    naive = pw.evaluate(log, targets, "naive")["target"].estimates["naive"]
    assert naive.value == pytest.approx(float(value()), rel=1e-11)
    assert log.cluster == "cluster"


BROKEN: tuple[dict[str, Any], ...] = (
    {"session": None},
    {"turn": 7},
    {"turn": None},
    {"turn": 1},
    {"policy": "new"},
    {"r": None},
    {"p_old": 0.0},
    {"p_target": 1.5},
)


@pytest.mark.parametrize("changes", BROKEN, ids=str)
def test_broken_sessions_are_one_message(changes: dict[str, Any]) -> None:
    rows = [row for row in long_rows() if row["session"].endswith("-0")]
    rows[1] |= changes
    with refused(LogError) as caught:
        read(pa.Table.from_pylist(rows))
    assert sum(fault.rows for fault in caught.value.faults) > 0


def test_rewards_that_are_not_at_the_end_are_one_message() -> None:
    with refused(LogError):
        read(pa.Table.from_pylist(long_rows()), reward_at="end")
    rows = with_reward_at_end("null").to_pylist()
    first = rows[0]["session"]
    for row in rows:
        row["r"] = None if row["session"] == first else row["r"]
    with refused(LogError):
        read(pa.Table.from_pylist(rows), reward_at="end")


def test_misuse_is_one_message() -> None:
    table = pa.Table.from_pylist(long_rows())
    with refused(MissingColumnError):
        read(table, session="sesion", step="steps")
    with refused(UsageError):
        read(table, step=None)
    with refused(UsageError):
        read(table, reward_at="last")
    with refused(UsageError):
        read(table, targets={"best": pw.PlackettLuce("state")})
    with refused(UsageError):
        read(table, targets={"best": pw.Uniform(2)})
    with refused(UsageError):
        read(table, targets={})
