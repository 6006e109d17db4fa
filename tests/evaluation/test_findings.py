"""Every finding, from the smallest log that raises it; its words are in tests/messages.txt."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeClassifier

import poolwise
from poolwise import Log, RewardModel, Table, evaluate, summarise
from poolwise.engines.exact import TARGET_COLUMN
from poolwise.estimators.ips import Balanced, Weighted
from poolwise.estimators.shrink import Shrink
from tests.support.messages import check_findings
from tests.support.periods import daily, daily_changed, daily_log, daily_unplayed
from tests.support.postgres import DuckDBConnection
from tests.support.toys import toy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from poolwise.errors import Finding

LOGGERS = {"a": "p_a", "b": "p_b"}
NEW = {"new": "t"}


@cache
def rows(size: int = 400, seed: int = 0) -> dict[str, Any]:
    """Two actions, two loggers with the same number of rows, a target between them."""
    rng = np.random.default_rng(seed)
    logger = np.repeat(["a", "b"], size // 2)
    chance = {"a": 0.3, "b": 0.6}  # of action 1
    action = (rng.random(size) < np.where(logger == "a", 0.3, 0.6)).astype(int)
    prob = {i: np.where(action == 1, p, 1 - p) for i, p in chance.items()}
    return {
        "logger": logger,
        "action": action,
        "x": rng.random(size),
        "reward": (rng.random(size) < 0.3 + 0.4 * action).astype(float),
        "p": np.where(logger == "a", prob["a"], prob["b"]),
        "p_a": prob["a"],
        "p_b": prob["b"],
        "t": np.where(action == 1, 0.5, 0.5),
        "user": np.arange(size),
    }


def log(changes: Mapping[str, Any] | None = None, size: int = 400, **roles: Any) -> Log:  # noqa: ANN401
    """The log of these rows, with columns and roles changed."""
    usual = {"reward": "reward", "logger": "logger", "propensity": "p", "propensities": LOGGERS}
    return Log(pa.table(rows(size) | dict(changes or {})), **(usual | roles))


def heavy() -> Log:
    """Weights with a tail index of 0.9 against both loggers."""
    weights = (1 - np.random.default_rng(8).random(2_000)) ** -0.9
    prob = 0.1 / weights
    flat = np.full(2_000, 0.1 * prob.mean())
    return log({"p": prob, "p_a": prob, "p_b": prob, "t": flat}, 2_000)


def deciding(number: int, reward: float = 1.0) -> Log:
    """A target that moves a tenth of the decisions to what loggers play in so few rows."""
    rare = np.arange(4_000) % (4_000 // number) == 0
    prob, target = np.where(rare, number / 4_000, 0.9), np.where(rare, 0.1, 0.81)
    changes = {"p": prob, "p_a": prob, "p_b": prob, "t": target}
    return log(changes | {"reward": reward * rows(4_000)["reward"]}, 4_000)


def with_rewards(change: Callable[[Any, Any], Any], **roles: Any) -> Log:  # noqa: ANN401
    table = rows(4_000)
    return log({"reward": change(table["reward"], table["logger"])}, 4_000, **roles)


def own_only(source: Log) -> Log:
    return replace(source, propensities=None)


def unlike(target: Any, size: int = 4_000) -> Log:  # noqa: ANN401 - of the action
    return log({"t": target(rows(size)["action"])}, size)


def one_sided(size: int = 4_000) -> Log:
    """Logger a never plays action 1, which the target does."""
    table = rows(size)
    action = np.where(table["logger"] == "a", 0, table["action"])
    prob = {"p_a": 1.0 - action, "p_b": np.where(action == 1, 0.6, 0.4)}
    own = np.where(table["logger"] == "a", prob["p_a"], prob["p_b"])
    return log({"action": action, "p": own, **prob}, size)


def hurting() -> Log:
    """Logger c, with few rows, gives small probabilities to what the target plays."""
    rare = np.where(np.arange(2_000) % 2 == 0, 0.001, 0.5)
    probs = {"p_a": np.full(2_000, 0.5), "p_b": rare}
    own = np.where(rows(2_000)["logger"] == "a", probs["p_a"], probs["p_b"])
    return log({"p": own, **probs}, 2_000)


def few_of_one() -> Log:
    """Logger b wrote 5 of 200 rows."""
    source: Any = log().source
    return replace(log(), source=source.slice(5, 200))


def modelled(estimators: list[str], sample: int = 1_000) -> list[Finding]:
    source = log(action="action", context=["x"])
    model = RewardModel(LinearRegression(), rows=sample)
    return found(source, {"new": Table({0: 0.5, 1: 0.5})}, estimators, model=model)


def estimated(classifier: object, size: int) -> list[Finding]:
    draws = replace(toy("T2").draw(np.random.default_rng(3)), propensities=None)
    source: Any = draws.source
    opted = replace(draws, source=source.slice(0, size), estimate_mixture=classifier)
    return found(opted, {"new": TARGET_COLUMN})


def unlike_mixtures() -> list[Finding]:
    """Findings of moments that were added up over parts with different mixtures."""
    source: Any = log().source
    parts = [source.slice(0, 300), source.slice(150)]
    first, second = (summarise(replace(log(), source=part), NEW) for part in parts)
    both = first + second
    return found(both.narrowed(log()), NEW, ["naive"], engine=both, which_logs=False)


def found(
    source: Any,  # noqa: ANN401 - a log or a summary
    targets: Mapping[str, Any] = NEW,
    estimators: Any = None,  # noqa: ANN401
    **options: Any,  # noqa: ANN401
) -> list[Finding]:
    """All findings of an evaluation, those of the targets first."""
    result = evaluate(source, targets, estimators, **options)
    own = [f for target in result.targets for f in result[target].findings]
    return [*own, *result.findings]


def many_loggers() -> list[Finding]:
    names = [str(k) for k in range(65)]
    table = pa.table(
        {
            "logger": np.repeat(names, 8),
            "reward": np.tile([0.0, 1.0], 260),
            "p": np.full(520, 0.5),
        }
    )
    source = Log(
        table,
        reward="reward",
        logger="logger",
        propensity="p",
        propensities=dict.fromkeys(names, "p"),
    )
    return found(source, {"new": "0.5"}, which_logs=False)


def users() -> list[Finding]:
    """Four rows of a user each, with the same reward."""
    user = np.arange(2_000) // 4
    source = log({"user": user, "reward": (user % 2).astype(float)}, 2_000, context=["user"])
    return found(source)


def seasons() -> list[Finding]:
    """Two loggers of different weeks with no action in common."""
    day = np.repeat(np.arange(2), 300)
    first = 1.0 * (day == 0)
    table = {
        "policy": np.array(["v1", "v2"])[day],
        "date": np.datetime64("2024-01-01") + day,
        "reward": np.tile([0.0, 1.0, 1.0], 200),
        "p_v1": first,
        "p_v2": 1 - first,
    }
    source = Log(pa.table(table), reward="reward", logger="policy", propensities="p_{logger}")
    return found(source, {"half": "0.5"}, ["balanced"])


def dated() -> Log:
    """A log of a new policy each day, which says when rows were logged."""
    columns = daily()
    columns["date"] = np.datetime64("2024-01-01") + columns.pop("day")
    return daily_log(columns, period=None)


CASES: dict[str, Callable[[], list[Finding]]] = {
    "tail-unknown": lambda: found(log(), engine=DuckDBConnection()),
    "target-uncovered": lambda: found(unlike(lambda action: np.full(len(action), 0.3))),
    "weights-off": lambda: found(unlike(lambda action: np.full(len(action), 0.8))),
    "propensities-off": lambda: found(
        replace(log(None, 2_000), propensity=None, propensities={"a": "p_b", "b": "p_a"})
    ),
    "few-effective-rows": lambda: found(log(None, 20)),
    "dominant-row": lambda: found(heavy(), NEW, ["balanced"]),
    "heavy-weights": lambda: found(heavy(), NEW, ["balanced"]),
    "decisive-rows": lambda: found(deciding(4)),
    "heavy-logger": lambda: found(own_only(heavy())),
    "drift": lambda: found(with_rewards(lambda r, i: r + (i == "b"))),
    "loggers-disagree": lambda: found(own_only(with_rewards(lambda r, i: r + (i == "b")))),
    "hausman": lambda: found(unlike(lambda action: np.where(action == 1, 0.8, 0.4))),
    "few-rewarded-rows": lambda: found(
        with_rewards(lambda r, _: (np.arange(len(r)) % 1_000 == 0).astype(float))
    ),
    "thin-overlap": lambda: found(
        own_only(unlike(lambda action: np.where(action == 1, 0.2, 0.2))), NEW, ["naive"]
    ),
    "logger-unsupported": lambda: found(one_sided()),
    "logger-hurts-balanced": lambda: found(hurting(), which_logs=True),
    "no-cross-propensities": lambda: found(own_only(log())),
    "trained-on-own-log": lambda: found(log(trained_on={"b": ["a"]})),
    "fixed-beforehand": lambda: found(daily_log(daily()), {"t": "t"}),
    "loggers-in-succession": lambda: found(dated(), {"t": "t"}),
    "drift-untested": seasons,
    "rows-repeat-unit": users,
    "period-drift": lambda: found(daily_log(daily_changed()), {"t": "t"}),
    "period-unsupported": lambda: found(daily_log(daily_unplayed()), {"t": "t"}),
    "target-trained-on-log": lambda: found(log(trained_on={"new": ["a"]})),
    "biased": lambda: list(toy("T3").exact(Weighted("own")).findings),
    "mixture-left-out": unlike_mixtures,
    "own-divergence": lambda: found(own_only(log()), NEW, [Weighted("own")]),
    "no-spread": lambda: found(log({"reward": np.zeros(400)})),
    "many-loggers": many_loggers,
    "few-rows-of-logger": lambda: found(few_of_one()),
    "model-only": lambda: modelled(["direct-method"]),
    "model-sampled": lambda: modelled(["doubly-robust"], 100),
    "shrunk-weights": lambda: found(log(), NEW, [Balanced(Shrink("clip", 1.01))]),
    "dropped-rows": lambda: found(
        log({"reward": [None, *rows()["reward"][1:]]}, on_fault="drop")
    ),
    "few-clusters": lambda: found(log({"user": np.arange(400) % 12}, cluster="user")),
    "clusters-ignored": lambda: found(log(cluster="user"), interval="student"),
    "bounded-interval": lambda: found(log({"reward": np.zeros(400)}, reward_range=(0, 1))),
    "copies-unknown": lambda: found(log()),
    "estimated-mixture": lambda: estimated(LogisticRegression(), 100),
    "mixture-clipped": lambda: estimated(DecisionTreeClassifier(random_state=0), 55),
}


@pytest.mark.parametrize("code", CASES)
def test_findings_are_worded_as_reviewed(code: str) -> None:
    findings = {f.code: f for f in CASES[code]()}
    assert code in findings
    check_findings([findings[code]], code)


@pytest.mark.parametrize(
    ("number", "reward", "severity"),
    [
        (2, 1.0, "warning"),  # rewards of 0 and 1 have a range
        (10, 1.0, "note"),
        (2, 2.0, "alarm"),
        (4, 2.0, "warning"),
        (10, 2.0, "note"),
    ],
)
def test_severity_of_decisive_rows(number: int, reward: float, severity: str) -> None:
    findings = found(deciding(number, reward))
    (finding,) = (f for f in findings if f.code == "decisive-rows")
    assert finding.severity == severity
    assert not {"few-effective-rows", "dominant-row", "heavy-weights"} & {
        f.code for f in findings
    }
    check_findings([finding], "decisive-rows")


def test_every_code_of_a_finding_has_a_case() -> None:
    """Here, or in the tests of another verb; the words of all are in one file."""
    texts = (Path(__file__).parents[1] / "messages.txt").read_text("utf-8")
    missing = [
        code for code in codes() if code not in CASES and f"finding {code} (" not in texts
    ]
    assert not missing


def codes() -> Iterator[str]:
    """Codes of the findings that evaluations construct; `tests/learning` has the others."""
    for path in Path(poolwise.__file__).parent.rglob("*.py"):
        if path.parent.name == "learning":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Name("Finding"), args=[ast.Constant(str(code)), *_]):
                    yield code
