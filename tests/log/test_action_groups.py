"""Action groups: exact expectations, from logs whose rows occur as often as expected."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw
from poolwise.engines import write_query
from poolwise.errors import PoolwiseError, UsageError
from poolwise.estimators import recommend
from poolwise.estimators.calibrated import Calibrated
from poolwise.estimators.model import DoublyRobust, star_model
from poolwise.log.action_groups import ActionGroups, Grouped
from poolwise.log.policy import Batch
from poolwise.moments.terms import Needs
from tests.support.messages import check_findings, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ACTIONS = ("tea", "rum", "bread", "cake")
GROUPS = {"tea": "drinks", "rum": "drinks", "bread": "food", "cake": "food"}
Policies = dict[str, tuple[tuple[Fraction, ...], tuple[Fraction, ...]]]


def tenths(*numbers: int) -> tuple[Fraction, ...]:
    return tuple(Fraction(n, 10) for n in numbers)


POLICIES: Policies = {  # in each of two contexts
    "v1": (tenths(4, 1, 4, 1), tenths(1, 2, 3, 4)),
    "v2": (tenths(1, 5, 3, 1), tenths(2, 2, 5, 1)),
    "new": (tenths(0, 3, 1, 6), tenths(6, 1, 1, 2)),
}
ROWS = {"v1": 40, "v2": 120}
BY_GROUP = (
    (Fraction(1, 4), Fraction(1, 4), Fraction(3, 4), Fraction(3, 4)),
    (Fraction(1), Fraction(1), Fraction(1, 2), Fraction(1, 2)),
)
BY_ACTION = (
    (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(0)),
    (Fraction(1), Fraction(1, 8), Fraction(1, 2), Fraction(3)),
)
MODEL = (
    (Fraction(0), Fraction(1, 4), Fraction(1), Fraction(1, 4)),
    (Fraction(2), Fraction(9, 8), Fraction(0), Fraction(5, 2)),
)  # right within groups


def expected_log(rewards: tuple[tuple[Fraction, ...], ...]) -> pa.Table:
    """Return rows that occur as often as expected, half of them in each context."""
    lines: list[dict[str, Any]] = []
    for logger, total in ROWS.items():
        for x in (0, 1):
            for k, action in enumerate(ACTIONS):
                count = total * POLICIES[logger][x][k] / 2
                assert count.denominator == 1
                line: dict[str, Any] = {
                    "logger": logger,
                    "x": x,
                    "item": action,
                    "kind": GROUPS[action],
                }
                line |= {"reward": float(rewards[x][k]), "q": float(MODEL[x][k])}
                pairs = zip(POLICIES["new"][x], MODEL[x], strict=True)
                line["v"] = float(sum(p * q for p, q in pairs))
                for name, policy in POLICIES.items():
                    chances = [float(p) for p in policy[x]]
                    line[f"map_{name}"] = list(zip(ACTIONS, chances, strict=True))
                    line[f"json_{name}"] = json.dumps(dict(zip(ACTIONS, chances, strict=True)))
                    line[f"struct_{name}"] = dict(zip(ACTIONS, chances, strict=True))
                    line[f"list_{name}"] = chances
                lines += [{**line, "listed": list(ACTIONS)}] * int(count)
    maps = pa.map_(pa.string(), pa.float64())
    columns = {name: [line[name] for line in lines] for name in lines[0]}
    return pa.table(
        {n: pa.array(v, maps) if n.startswith("map_") else v for n, v in columns.items()}
    )


def group_sums(chances: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """Return the probability of the group of each action."""
    return tuple(
        sum(
            (p for b, p in zip(ACTIONS, chances, strict=True) if GROUPS[a] == GROUPS[b]),
            Fraction(0),
        )
        for a in ACTIONS
    )


def mixture(x: int) -> tuple[Fraction, ...]:
    total = sum(ROWS.values())
    parts = [[Fraction(n, total) * p for p in POLICIES[i][x]] for i, n in ROWS.items()]
    return tuple(sum(each, Fraction(0)) for each in zip(*parts, strict=True))


def truth(rewards: tuple[tuple[Fraction, ...], ...]) -> Fraction:
    total = Fraction(0)
    for x in (0, 1):
        for p, r in zip(POLICIES["new"][x], rewards[x], strict=True):
            total += p * r / 2
    return total


def bias(residuals: tuple[tuple[Fraction, ...], ...]) -> Fraction:
    """Return the bias by the formula of the guide."""
    found = Fraction(0)
    for x in (0, 1):
        target, below = POLICIES["new"][x], mixture(x)
        together = group_sums(target)
        parts = zip(together, below, group_sums(below), target, residuals[x], strict=True)
        for mass, p, p_group, own, residual in parts:
            found += mass * (p / p_group - (own / mass if mass else 0)) * residual / 2
    return found


def log(table: pa.Table, kind: str = "map", **roles: Any) -> pw.Log:  # noqa: ANN401 - of a log
    roles = {"action_group": GROUPS, "context": ["x"], **roles}
    return pw.Log(
        table,
        reward="reward",
        logger="logger",
        propensities=f"{kind}_{{logger}}",
        action="item",
        eligible="listed" if kind == "list" else None,
        **roles,
    )


def policy(name: str) -> pw.Table:
    tables = [dict(zip(ACTIONS, map(float, p), strict=True)) for p in POLICIES[name]]
    return pw.Table(dict(enumerate(tables)), context="x")


def balanced(of: pw.Log, target: Any) -> float:  # noqa: ANN401 - a policy
    return pw.evaluate(of, {"new": target}, "balanced")["new"].estimates["balanced"].value


@pytest.mark.parametrize("kind", ["map", "json", "struct", "list"])
@pytest.mark.parametrize("groups", ["kind", GROUPS])
def test_the_value_is_exact_where_rewards_depend_on_the_group(
    kind: str, groups: Mapping[str, str] | str
) -> None:
    of = log(expected_log(BY_GROUP), kind, action_group=groups)
    wanted = float(truth(BY_GROUP))
    assert balanced(of, f"{kind}_new") == pytest.approx(wanted, rel=1e-13)
    assert balanced(of, policy("new")) == pytest.approx(wanted, rel=1e-13)


def test_the_bias_is_the_stated_one_otherwise() -> None:
    of = log(expected_log(BY_ACTION))
    assert bias(BY_GROUP) == 0
    wanted = truth(BY_ACTION) + bias(BY_ACTION)
    assert abs(bias(BY_ACTION)) > Fraction(1, 10)
    assert balanced(of, "map_new") == pytest.approx(float(wanted), rel=1e-13)
    assert balanced(of, "1.0 * map_new") == pytest.approx(float(wanted), rel=1e-13)


def test_a_model_that_is_right_within_groups_removes_the_bias() -> None:
    """It is wrong by a number in each context and group."""
    rest = tuple(
        tuple(r - q for r, q in zip(*pair, strict=True))
        for pair in zip(BY_ACTION, MODEL, strict=True)
    )
    assert bias(rest) == 0
    assert any(any(line) for line in rest)
    model = pw.GivenModel(predicted_reward="q", predicted_value="v")
    found = pw.evaluate(log(expected_log(BY_ACTION)), {"new": "map_new"}, model=model)
    value = found["new"].estimates["doubly-robust"].value
    assert value == pytest.approx(float(truth(BY_ACTION)), rel=1e-13)


def test_a_model_of_ours_predicts_actions_not_groups() -> None:
    sklearn = pytest.importorskip("sklearn.linear_model")
    model = pw.RewardModel(sklearn.LinearRegression(), interactions=True)
    table = expected_log(BY_ACTION)
    found = pw.evaluate(log(table), {"new": policy("new")}, "doubly-robust", model=model)
    assert found["new"].estimates["doubly-robust"].value == pytest.approx(
        float(truth(BY_ACTION)), rel=1e-9
    )


def test_groups_of_one_action_give_the_same_numbers() -> None:
    table = expected_log(BY_ACTION)
    targets = {"column": "map_new", "table": policy("new"), "uniform": pw.Uniform(ACTIONS)}
    plain = pw.evaluate(log(table, action_group=None), targets)
    for groups in ({a: a for a in ACTIONS}, {"water": "drinks"}):
        found = pw.evaluate(log(table, action_group=groups), targets)
        for name in targets:
            assert found[name].estimates == plain[name].estimates
            assert found[name].intervals == plain[name].intervals


def test_wide_distributions_are_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poolwise.log.action_groups.ENTRIES", 9)
    soft = pw.Softmax(["s_tea", "s_rum", "s_bread", "s_cake"], ACTIONS)
    rng = np.random.default_rng(5)
    scores = {f"s_{a}": rng.normal(size=11) for a in ACTIONS}
    batch = Batch(rng.choice([*ACTIONS, "nut"], 11), scores)
    index = {a: k for k, a in enumerate(ACTIONS)}
    matrix = soft.distribution(batch)
    wanted = [
        sum(matrix[row, index[b]] for b in ACTIONS if GROUPS.get(a) == GROUPS[b])
        for row, a in enumerate(batch.action)
    ]
    found = Grouped(soft, ActionGroups(GROUPS)).prob(batch)
    assert found.tolist() == pytest.approx(wanted, rel=1e-14)
    assert found[list(batch.action).index("nut")] == 0


# --- what no row has --------------------------------------------------------------------------


def with_new_items(share: float) -> dict[str, float]:
    """Return a policy that plays two new items, one of them in a known group."""
    return {"tea": 1 - share, "mate": share * 0.75, "soap": share * 0.25}


@pytest.mark.parametrize("kind", ["table", "map", "softmax"])
def test_the_mass_on_actions_of_no_row_is_exact(kind: str) -> None:
    table = expected_log(BY_ACTION)
    chances = with_new_items(0.1)
    target: Any = chances
    if kind == "map":
        maps = [list(chances.items())] * table.num_rows
        kinds = pa.map_(pa.string(), pa.float64())
        table, target = table.append_column("t", pa.array(maps, kinds)), "t"
    if kind == "softmax":
        names = [*chances]
        scores = np.log([*chances.values()])
        target = pw.Softmax(lambda batch: np.tile(scores, (len(batch), 1)), names)
    found = pw.evaluate(log(table, action_group=None), {"new": target}, "balanced")["new"]
    check_findings(
        [f for f in found.findings if f.code == "actions-unlogged"], "actions-unlogged"
    )
    grouped = pw.evaluate(
        log(table, action_group={**GROUPS, "mate": "drinks"}), {"new": target}, "balanced"
    )["new"]
    check_findings(
        [f for f in grouped.findings if f.code == "actions-unlogged"], "actions-unlogged"
    )


@pytest.mark.parametrize("kind", ["table", "map", "softmax"])
@pytest.mark.parametrize("look", [1, 1_000])
def test_without_distributions_of_loggers_actions_of_no_row_are_counted(
    kind: str, look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows are looked at first; they have the same distributions here."""
    monkeypatch.setattr("poolwise.rows.action_groups.FIRST_LOOK", look)
    table = expected_log(BY_ACTION)
    chances = with_new_items(0.1)
    target: Any = chances
    if kind == "map":
        maps = [list(chances.items())] * table.num_rows
        table = table.append_column("t", pa.array(maps, pa.map_(pa.string(), pa.float64())))
        target = "t"
    if kind == "softmax":
        scores = np.log([*chances.values()])
        target = pw.Softmax(lambda batch: np.tile(scores, (len(batch), 1)), [*chances])
    table = table.append_column("p", pa.array(np.full(table.num_rows, 0.25)))
    plain = pw.Log(table, reward="reward", propensity="p", action="item", context=["x"])
    found = pw.evaluate(plain, {"new": target}, "naive")["new"].findings
    (finding,) = (f for f in found if f.code == "actions-unlogged")
    assert finding.severity == "warning"
    assert "are in no row 10.0% of the time: 'mate' (7.5%), 'soap' (2.5%)." in finding.message


def test_the_star_moves_to_the_estimator_that_predicts() -> None:
    table = expected_log(BY_ACTION)
    sklearn = pytest.importorskip("sklearn.linear_model")
    model = pw.RewardModel(sklearn.Ridge())
    of = log(table, action_group=None)
    targets = {"new": with_new_items(0.1)}
    assert pw.evaluate(of, targets)["new"].recommended == "calibrated"
    modelled = pw.evaluate(of, targets, model=model)
    assert modelled["new"].recommended == "doubly-robust"
    ranked = pw.compare(of, {**targets, "old": policy("v1")}, baseline="old", model=model)
    assert ranked.estimator == "doubly-robust"
    none = {"new": with_new_items(0.0)}
    assert pw.evaluate(of, none, model=model)["new"].recommended == "calibrated"
    groups = log(table, action_group={**GROUPS, "mate": "drinks", "soap": "food"})
    assert pw.evaluate(groups, targets, model=model)["new"].recommended == "calibrated"


def test_only_doubly_robust_can_be_starred() -> None:
    own = {"calibrated": Calibrated(), "doubly-robust": DoublyRobust()}
    assert recommend(own) == "calibrated"
    assert recommend({name: star_model(e) for name, e in own.items()}) == "doubly-robust"
    assert star_model(DoublyRobust("naive")).rank == 0


# --- what is refused --------------------------------------------------------------------------

REFUSED: dict[str, Callable[[pa.Table], object]] = {
    "a column of numbers": lambda t: pw.evaluate(log(t), "reward"),
    "numbers among distributions": lambda t: pw.evaluate(log(t), "0.5 * map_new + 0.5 * q"),
    "a number": lambda t: pw.evaluate(log(t), "0.25"),
    "a number of actions": lambda t: pw.evaluate(log(t), pw.Uniform(4)),
    "a function": lambda t: pw.evaluate(log(t), lambda batch: np.ones(len(batch))),
    "propensities that are numbers": lambda t: pw.evaluate(
        pw.Log(t, reward="reward", propensity="q", action="item", action_group=GROUPS),
        "map_new",
    ),
    "several groups": lambda t: pw.evaluate(log(t, action_group="x"), "map_new"),
    "no column": lambda t: pw.evaluate(log(t, action_group="sort"), "map_new"),
    "no mapping": lambda t: log(t, action_group=3),
    "an empty mapping": lambda t: log(t, action_group={}),
    "logarithms": lambda t: log(t, log_probabilities=True),
    "an estimated mixture": lambda t: log(t, estimate_mixture=True),
    "learn": lambda t: pw.learn(log(t)),
    "spark": lambda t: pw.evaluate(log(t), "map_new", engine="spark"),
    "a query": lambda _: write_query(log("x.csv"), "t", {}, Needs(), "duckdb"),
    "a distribution that lacks entries": lambda t: pw.evaluate(
        log(t.append_column("t", pa.array([json.dumps({"tea": 0.9})] * t.num_rows))), "t"
    ),
    "no distribution": lambda t: pw.evaluate(
        log(t.append_column("t", pa.array([None] * t.num_rows, pa.map_("string", "double")))),
        "t",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_summed_is_refused(case: str) -> None:
    with refused(PoolwiseError):
        REFUSED[case](expected_log(BY_GROUP))


def test_an_action_is_required() -> None:
    with refused(UsageError):
        pw.Log("x.csv", reward="r", propensity="p", action_group=GROUPS)
