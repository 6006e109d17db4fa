"""Watching: the same bounds in one go or day by day, and one message for each mistake."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw
from poolwise.errors import LogError, NotShownError, SourceError, UsageError
from poolwise.evaluation.state import HORIZONS, State, with_bounds
from poolwise.intervals.betting import Bets
from poolwise.moments.blocks import Blocks
from tests.support.messages import check_findings, refused

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # all of them together take seconds
POLICIES = {
    "v1": np.array([0.6, 0.3, 0.1]),
    "v2": np.array([0.3, 0.4, 0.3]),
    "new": np.array([0.1, 0.3, 0.6]),
}
CLICK = np.array([0.1, 0.2, 0.4])
VALUE, OLD = float(POLICIES["new"] @ CLICK), float(POLICIES["v2"] @ CLICK)
TARGET = {"new": "p_new"}


def day(number: int, rows: int = 300, loggers: tuple[str, ...] = ("v1", "v2")) -> pa.Table:
    """The rows of one day."""
    rng = np.random.default_rng([7, number])
    parts = []
    for logger in loggers:
        action = rng.choice(3, rows, p=POLICIES[logger])
        parts.append(
            pa.table(
                {
                    "day": [f"2024-05-{number:02d}"] * rows,
                    "policy": [logger] * rows,
                    "click": (rng.random(rows) < CLICK[action]).astype(np.float64),
                    **{f"p_{name}": p[action] for name, p in POLICIES.items()},
                }
            )
        )
    return pa.concat_tables(parts)


def log(*days: pa.Table, **roles: Any) -> pw.Log:  # noqa: ANN401 - roles of a log
    fixed = {"reward": "click", "logger": "policy", "propensities": "p_{logger}"}
    return pw.Log(
        pa.concat_tables(days),
        **{**fixed, "period": "day", "reward_range": (0.0, 1.0), **roles},
    )


def bounds(watched: pw.Watched) -> list[float]:
    names = ("lower", "upper", "difference_lower", "difference_upper")
    return [float(line[n]) for line in watched.to_dicts() for n in names if n in line]  # type: ignore[arg-type]


def test_bounds_are_those_of_the_rows(tmp_path: Path) -> None:
    days = [day(k) for k in (1, 2, 3)]
    watched = pw.watch(tmp_path / "s.npz", log(*days), TARGET)
    values = []
    for table in days:  # both loggers write half of the rows
        mixture = (np.array(table["p_v1"]) + np.array(table["p_v2"])) / 2
        values.append(np.array(table["p_new"]) / mixture * np.array(table["click"]))
    for k in (1, 2, 3):
        rows = Blocks.of(np.repeat(np.arange(k), 600), np.concatenate(values[:k]))
        horizons = tuple(600 * h for h in HORIZONS)
        expected = Bets(rows, 0.025, k, horizons=horizons).lower()
        assert watched.to_dicts()[k - 1]["lower"] == pytest.approx(expected, abs=1e-11)
    assert watched.interval.lower < VALUE < watched.interval.upper
    assert watched.rows == 1800


def test_day_by_day_is_the_same_as_in_one_go(tmp_path: Path) -> None:
    days = [day(k, rows) for k, rows in ((1, 100), (2, 400), (4, 50), (10, 300))]
    whole = pw.watch(tmp_path / "whole.npz", log(*days), TARGET, better_than="v2")
    *_, part = (
        pw.watch(tmp_path / "part.npz", log(table), TARGET, better_than="v2") for table in days
    )
    assert bounds(part) == pytest.approx(bounds(whole), abs=1e-10)
    assert [b.mark for b in part.blocks] == [b.mark for b in whole.blocks]
    looked = pw.watch(tmp_path / "part.npz", above=0.01)
    assert bounds(looked) == bounds(part)
    assert [c.holds for c in looked.claims] == [True, part.claims[0].holds]


def test_bounds_only_narrow(tmp_path: Path) -> None:
    watched = pw.watch(
        tmp_path / "s.npz", log(*(day(k, 100) for k in range(1, 13))), TARGET, better_than="v1"
    )
    ends = np.array(bounds(watched)).reshape(-1, 4)
    assert (np.diff(ends[:, [0, 2]], axis=0) >= 0).all()
    assert (np.diff(ends[:, [1, 3]], axis=0) <= 0).all()
    assert ends[-1, 2] > 0  # new is better than v1
    assert watched.difference is not None
    gap = VALUE - float(POLICIES["v1"] @ CLICK)
    assert gap in watched.difference


def test_states_of_later_blocks_are_added(tmp_path: Path) -> None:
    first, second = (tmp_path / f"{k}.npz" for k in (1, 2))
    whole = pw.watch(tmp_path / "s.npz", log(*(day(k) for k in (1, 2, 3, 4))), TARGET)
    pw.watch(first, log(day(1), day(2)), TARGET)
    pw.watch(second, log(day(3), day(4)), TARGET)
    both = with_bounds(State.load(first) + State.load(second))
    ends = [end for block in both.blocks for end in block.value or ()]
    # bets are sized by the rows of the first block, so those of the first state apply
    assert ends == pytest.approx(bounds(whole), abs=1e-10)
    with refused(UsageError):
        State.load(second) + State.load(first)


def test_claims_follow_the_bounds(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    watched = pw.watch(path, log(day(1, 2000)), TARGET, above=0.1, better_than="v2")
    assert [c.holds for c in watched.claims] == [True, True]
    watched.require()
    lower = watched.interval.lower
    assert [c.holds for c in pw.watch(path, above=lower).claims] == [False, True]
    with refused(NotShownError):
        pw.watch(path, above=0.9).require()
    content = json.loads(watched.to_json())
    assert content["claims"][0]["holds"] is True
    assert content["blocks"][0]["rows"] == 4000
    assert "May be claimed now, better than 'v2': yes." in str(watched)


def test_another_target_is_compared_by_two_bounds(tmp_path: Path) -> None:
    both = {"new": "p_new", "old": "p_v2"}
    watched = pw.watch(tmp_path / "s.npz", log(day(1, 3000)), both, better_than="old")
    assert watched.difference is not None
    assert watched.difference.lower < VALUE - OLD < watched.difference.upper
    new, old = (
        pw.watch(tmp_path / f"{name}.npz", log(day(1, 3000)), policy, level=0.975).interval
        for name, policy in both.items()
    )  # each at half the error
    ends = [watched.difference.lower, watched.difference.upper]
    assert ends == pytest.approx([new.lower - old.upper, new.upper - old.lower], abs=1e-10)
    direct = pw.watch(tmp_path / "t.npz", log(day(1, 3000)), TARGET, better_than="v2")
    assert direct.difference is not None
    narrow = direct.difference.upper - direct.difference.lower
    assert narrow < 0.8 * (watched.difference.upper - watched.difference.lower)


def test_without_periods_each_call_is_a_block(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    pw.watch(path, log(day(1), period=None), TARGET)
    watched = pw.watch(path, log(day(2), period=None), TARGET)
    whole = pw.watch(tmp_path / "t.npz", log(day(1), day(2)), TARGET)
    assert bounds(watched) == pytest.approx(bounds(whole), abs=1e-10)
    assert [block.name for block in watched.blocks] == ["1", "2"]
    with refused(UsageError):  # the same rows, in another order
        pw.watch(path, log(day(1).take(pa.array(np.arange(599, -1, -1))), period=None), TARGET)


def test_loggers_may_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    pw.watch(path, log(day(1, loggers=("v1", "v2"))), TARGET, better_than="v1")
    one = log(
        day(2, loggers=("v2",)), propensities={"v1": "p_v1", "v2": "p_v2"}, on_fault="drop"
    )
    with refused(UsageError):  # on_fault is part of the question
        pw.watch(path, one, TARGET, better_than="v1")
    watched = pw.watch(path, log(day(2), day(3)), TARGET, better_than="v1")
    assert [dict(b.rows) for b in watched.blocks] == [{"v1": 300, "v2": 300}] * 3


def test_a_baseline_that_is_not_live_is_named(tmp_path: Path) -> None:
    days = [day(1), day(2, loggers=("v2",))]
    watched = pw.watch(tmp_path / "s.npz", log(*days), TARGET, better_than="v1")
    check_findings(
        [f for f in watched.findings if f.code == "baseline-not-live"], "baseline-not-live"
    )
    first, second = (block.difference for block in watched.blocks)
    assert first == pytest.approx(second, abs=1e-12)  # nothing was bet on the second day


def test_a_baseline_may_go_live_later(tmp_path: Path) -> None:
    path, later = tmp_path / "s.npz", tmp_path / "t.npz"
    watched = pw.watch(path, log(day(1, loggers=("v1",))), TARGET, better_than="v2")
    assert watched.difference is not None
    assert (watched.difference.lower, watched.difference.upper) == (-1.0, 1.0)
    assert [c.holds for c in watched.claims] == [False]
    found = [f for f in watched.findings if f.code == "baseline-not-live"]
    check_findings(found, "baseline-not-live")
    whole = [day(1, loggers=("v1",)), *(day(k, 1000) for k in (2, 3))]
    for table in whole[1:]:
        watched = pw.watch(path, log(table), TARGET, better_than="v2")
    assert "baseline-not-live" not in {f.code for f in watched.findings}
    assert watched.difference is not None
    assert 0 < watched.difference.lower < VALUE - OLD < watched.difference.upper
    at_once = pw.watch(later, log(*whole), TARGET, better_than="v2")
    assert bounds(at_once) == pytest.approx(bounds(watched), abs=1e-10)


def test_a_first_day_with_little_overlap_does_not_spoil_later_ones(tmp_path: Path) -> None:
    """On the first day, the action that the target plays is logged once in 500 rows."""
    rng = np.random.default_rng(5)
    policy = np.array([0.9, 0.098, 0.002])
    action = rng.choice(3, 2000, p=policy)
    columns = {f"p_{name}": p[action] for name, p in POLICIES.items()} | {
        "p_v1": policy[action]
    }
    first: dict[str, Any] = {"day": ["2024-05-01"] * 2000, "policy": ["v1"] * 2000}
    first |= {"click": (rng.random(2000) < CLICK[action]).astype(np.float64)}
    far = pa.table({**first, **columns})
    days = [day(k, 1000) for k in range(2, 6)]
    after = pw.watch(tmp_path / "s.npz", log(far, *days), TARGET)
    fresh = pw.watch(tmp_path / "t.npz", log(*days), TARGET)
    widths = [w.interval.upper - w.interval.lower for w in (after, fresh)]
    assert widths[0] < 1.4 * widths[1]
    assert VALUE in after.interval


def clustered(number: int, copies: int, first: int, rows: int = 300) -> pa.Table:
    """The rows of a day as visits of users, each with so many copies of one row."""
    table = day(number, rows)
    users = pa.array(np.repeat(first + np.arange(len(table)), copies))
    return table.take(pa.array(np.repeat(np.arange(len(table)), copies))).append_column(
        "user", users
    )


def test_copies_of_rows_as_clusters_change_no_bound(tmp_path: Path) -> None:
    """Each cluster is one bet, whose rows are copies: on each day of another number."""
    days = [(1, 3), (2, 5), (4, 1)]
    options: dict[str, Any] = {"better_than": "v2"}
    plain = pw.watch(tmp_path / "s.npz", log(*(day(k) for k, _ in days)), TARGET, **options)
    tables = [clustered(k, copies, 1000 * k) for k, copies in days]
    whole = pw.watch(tmp_path / "t.npz", log(*tables, cluster="user"), TARGET, **options)
    assert bounds(whole) == pytest.approx(bounds(plain), abs=1e-9)
    for roles in ({}, {"period": None}, {"on_fault": "drop"}):
        path = tmp_path / f"{len(str(roles))}.npz"
        logs = [log(table, cluster="user", **roles) for table in tables]
        *_, last = (pw.watch(path, each, TARGET, **options) for each in logs)
        assert bounds(last) == pytest.approx(bounds(plain), abs=1e-9)
        assert [b.clusters.rows for b in last.blocks] == [3, 5, 1]


@pytest.mark.parametrize("period", ["day", None])
def test_clusters_in_several_blocks_are_refused(tmp_path: Path, period: str | None) -> None:
    path = tmp_path / "s.npz"
    few = 3000  # users, of which a tenth returns on the second day
    roles: dict[str, Any] = {"cluster": "user", "period": period}
    pw.watch(path, log(clustered(1, 2, 0, few), **roles), TARGET)
    content = path.read_bytes()
    assert len(State.load(path).blocks[0].clusters.marks) == 256
    with refused(UsageError):
        pw.watch(path, log(clustered(2, 2, 2 * few - few // 5, few), **roles), TARGET)
    assert path.read_bytes() == content
    pw.watch(path, log(clustered(2, 2, 2 * few, few), **roles), TARGET)
    if period:
        both = log(clustered(4, 2, 0), clustered(5, 2, 0), **roles)
        with refused(UsageError):
            pw.watch(tmp_path / "t.npz", both, TARGET)


def test_planned_rows_size_the_bets(tmp_path: Path) -> None:
    days = [day(k) for k in range(1, 9)]
    free = pw.watch(tmp_path / "s.npz", log(*days), TARGET)
    sized = pw.watch(tmp_path / "t.npz", log(*days), TARGET, planned=4800)
    width = [w.interval.upper - w.interval.lower for w in (free, sized)]
    assert width[1] < width[0]


def test_rewards_of_any_range(tmp_path: Path) -> None:
    table = day(1)
    moved = table.set_column(2, "click", pa.array(4 * np.array(table["click"]) - 3))
    plain = pw.watch(tmp_path / "s.npz", log(table), TARGET, better_than="v2")
    other = pw.watch(
        tmp_path / "t.npz", log(moved, reward_range=(-3.0, 1.0)), TARGET, better_than="v2"
    )
    scaled = [4 * plain.interval.lower - 3, 4 * plain.interval.upper - 3]
    assert [other.interval.lower, other.interval.upper] == pytest.approx(scaled, abs=1e-9)
    assert other.difference is not None
    assert plain.difference is not None
    assert other.difference.lower == pytest.approx(4 * plain.difference.lower, abs=1e-9)


# Mistakes


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    path = tmp_path / "begun.npz"
    pw.watch(path, log(day(3)), TARGET, better_than="v2")
    return path


@pytest.mark.parametrize(
    ("roles", "options"),
    [
        ({}, {"level": 0.9}),
        ({"reward_range": (0.0, 2.0)}, {}),
        ({"reward": "click / 2"}, {}),
        ({"period": None}, {}),
        ({}, {"better_than": "v1"}),
        ({}, {"planned": 100}),
        ({}, {"target": {"new": "p_v1"}}),
    ],
)
def test_another_question_is_refused(
    begun: Path, roles: dict[str, Any], options: dict[str, Any]
) -> None:
    content = begun.read_bytes()
    with refused(UsageError):
        pw.watch(
            begun, log(day(4), **roles), **{"target": TARGET, "better_than": "v2", **options}
        )
    assert begun.read_bytes() == content


@pytest.mark.parametrize("days", [(3,), (2,), (1, 4)])
def test_periods_are_added_once_and_in_order(begun: Path, days: tuple[int, ...]) -> None:
    content = begun.read_bytes()
    with refused(UsageError):
        pw.watch(begun, log(*map(day, days)), TARGET, better_than="v2")
    assert begun.read_bytes() == content


def test_periods_that_sort_as_text_are_found(tmp_path: Path) -> None:
    names = ["v1", "v10", "v2"]
    days = [day(k) for k in (1, 2, 3)]
    days = [
        d.set_column(0, "day", pa.array([n] * len(d))) for n, d in zip(names, days, strict=True)
    ]
    watched = pw.watch(tmp_path / "one.npz", log(*days), TARGET)
    check_findings(watched.findings, "periods-as-text")
    for each in days:
        watched = pw.watch(tmp_path / "each.npz", log(each), TARGET)
    assert [f.code for f in watched.findings] == ["periods-as-text"]
    assert [w["code"] for w in pw.watch(tmp_path / "each.npz").warnings] == ["periods-as-text"]


def test_the_same_rows_under_another_date_are_refused(begun: Path) -> None:
    table = day(3)
    later = table.set_column(0, "day", pa.array(["2024-05-04"] * len(table)))
    with refused(UsageError):
        pw.watch(begun, log(later), TARGET, better_than="v2")


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "format"])
def test_a_damaged_state_is_refused(tmp_path: Path, damage: str, monkeypatch: Any) -> None:  # noqa: ANN401 - a fixture
    monkeypatch.chdir(tmp_path)
    path = "state.npz"
    pw.watch(path, log(day(3)), TARGET)
    content = (tmp_path / path).read_bytes()
    if damage == "format":
        state = State.load(path)
        monkeypatch.setattr("poolwise.evaluation.state.VERSION", 3)
        state.save(path)
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
    else:
        damaged = {"cut": content[: len(content) // 2], "empty": b"", "text": b"hello"}
        (tmp_path / path).write_bytes(damaged[damage])
    with refused(SourceError):
        pw.watch(path, log(day(4)), TARGET)


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    pw.watch(path, log(day(3)), TARGET)
    content, whole = path.read_bytes(), State.load(path)
    noticed = 0
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        try:
            state = State.load(path)
        except SourceError:
            noticed += 1
        else:  # a date in the archive, such as nothing reads
            assert (state.question, state.blocks) == (whole.question, whole.blocks)
            for ours, theirs in zip(state.histograms, whole.histograms, strict=True):
                np.testing.assert_array_equal(ours.sums, theirs.sums)
    assert noticed > len(content) / 7 / 2


@pytest.mark.parametrize("name", ["sums_0", "keys_1", "shifts_0", "header"])
def test_every_array_is_covered_by_the_checksum(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s.npz"
    pw.watch(path, log(day(3)), TARGET)
    with np.load(path) as file:
        arrays = dict(file.items())
    if name == "header":
        arrays[name] = np.array(str(arrays[name]).replace("0.95", "0.50"))
    else:
        arrays[name] = arrays[name] + 1
    np.savez(path, **arrays)
    with pytest.raises(SourceError):
        State.load(path)


def test_what_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    for roles in (
        {"reward_range": None},
        {"trained_on": {"v2": ["v1"]}},
    ):
        with refused(UsageError):
            pw.watch(path, log(day(1), **roles), TARGET)
    for options in (
        {"target": {"a": "p_v1", "b": "p_v2"}},
        {"target": None},
        {"planned": 0},
        {"level": 95},
    ):
        with refused(UsageError):
            pw.watch(path, log(day(1)), **{"target": TARGET, **options})  # type: ignore[arg-type]
    with refused(UsageError):
        pw.watch("state.parquet", log(day(1)), TARGET)
    with refused(SourceError):
        pw.watch("missing.npz")
    assert not path.exists()


def test_bad_rows_leave_the_state_as_it_is(begun: Path) -> None:
    content = begun.read_bytes()
    table = day(4)
    bad = table.set_column(2, "click", pa.array([math.nan] * len(table)))
    with pytest.raises(LogError):
        pw.watch(begun, log(bad), TARGET, better_than="v2")
    beyond = table.set_column(2, "click", pa.array([7.0] * len(table)))
    with refused(UsageError):
        pw.watch(begun, log(beyond), TARGET, better_than="v2")
    assert begun.read_bytes() == content


def test_a_state_that_changes_meanwhile_is_not_replaced(begun: Path, monkeypatch: Any) -> None:  # noqa: ANN401 - a fixture
    stamps = iter(["a", "b"])
    monkeypatch.setattr("poolwise.evaluation.watch.stamp", lambda _: next(stamps))
    content = begun.read_bytes()
    with pytest.raises(UsageError):
        pw.watch(begun, log(day(4)), TARGET, better_than="v2")
    assert begun.read_bytes() == content


def test_own_weights_are_bet_on_too(tmp_path: Path) -> None:
    table = day(1, 1000)
    own = [
        float(row[f"p_{row['policy']}"]) for row in table.to_pylist()
    ]  # of the logger that wrote the row
    uncrossed = log(table.append_column("p", pa.array(own)), propensities=None, propensity="p")
    watched = pw.watch(tmp_path / "s.npz", uncrossed, TARGET)
    assert watched.interval.lower < VALUE < watched.interval.upper
    with refused(UsageError):
        pw.watch(tmp_path / "t.npz", uncrossed, TARGET, better_than="v2")
    same = replace(uncrossed, source=pa.table(uncrossed.source))
    assert bounds(pw.watch(tmp_path / "u.npz", same, TARGET)) == bounds(watched)
