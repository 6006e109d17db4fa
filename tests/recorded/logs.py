"""The logs whose values are recorded: small, seeded, and each with one peculiarity.

Every function of `LOGS` makes one case anew.  Only the public face of the package is used,
so that its modules can move without a change here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import poolwise as pw

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

ACTIONS = ("w", "x", "y", "z")
SLOPES = {"a": -0.6, "b": 0.5, "c": 1.1, "d": 0.0}  # how a logger follows the scores
COUNTS = {"a": 700, "b": 500, "c": 300}


@dataclass(frozen=True, eq=False)
class Case:
    """A log, and the questions about it.

    Attributes:
        log: The log; its source is an Arrow table, or a mapping of such.
        targets: Targets by name.
        baseline: Baseline of a second comparison; the first has none.
        model: A reward model for the doubly robust estimators.
        asked: First words of the questions; empty means all.
    """

    log: pw.Log
    targets: Mapping[str, Any]
    baseline: str = "a"
    model: Any = None
    asked: tuple[str, ...] = ()


def softmax(scores: FloatArray) -> FloatArray:
    """Probabilities in proportion to the exponents of scores, row by row."""
    powers: FloatArray = np.exp(scores)
    total: FloatArray = powers.sum(axis=1, keepdims=True)
    return powers / total


def rows(
    seed: int,
    counts: Mapping[str, int],
    never: Mapping[str, int] | None = None,
    base: float = 0.2,
) -> dict[str, Any]:
    """Columns of a log of softmax loggers and three targets ``t``, ``u`` and ``v``.

    Args:
        seed: Source of all randomness.
        counts: Rows of each logger.
        never: Index of the action that a logger does not play.
        base: Chance of a reward of the poorest action.
    """
    rng = np.random.default_rng(seed)
    total = sum(counts.values())
    context = rng.normal(size=(total, 2))
    scores = context @ np.array([[0.9, -0.3, 0.4, -0.8], [0.1, 0.7, -0.6, 0.2]])
    every = {i: softmax(SLOPES[i] * scores) for i in counts}
    for label, action in (never or {}).items():
        every[label][:, action] = 0.0
        every[label] /= every[label].sum(axis=1, keepdims=True)
    labels = np.repeat(list(counts), list(counts.values()))
    own = np.stack([every[i][k] for k, i in enumerate(labels)])
    action = (own.cumsum(axis=1) < rng.random((total, 1))).sum(axis=1).clip(0, 3)
    here = np.arange(total)
    while (bad := own[here, action] == 0).any():  # an edge that rounding left over
        action[bad] -= 1
    mean = base * (1 + action) + 0.05 * np.tanh(context[:, 0])
    targets = {"t": softmax(1.5 * scores), "u": softmax(-scores), "v": softmax(0.3 * scores)}
    predicted = base * (1 + np.arange(4)) * np.ones((total, 1))
    shares = {i: n / total for i, n in counts.items()}
    return {
        "logger": labels,
        "reward": (rng.random(total) < mean).astype(float),
        "gain": mean + rng.normal(scale=0.3, size=total),
        "p": own[here, action],
        **{f"p_{i}": p[here, action] for i, p in every.items()},
        **{name: p[here, action] for name, p in targets.items()},
        "average": sum(shares[i] * every[i][here, action] for i in counts),
        "item": np.array(ACTIONS)[action],
        "best": np.array(ACTIONS)[scores.argmax(axis=1)],
        "user": rng.integers(0, max(2, total // 9), total),
        "x1": context[:, 0],
        "x2": context[:, 1],
        **{f"s_{name}": scores[:, k] for k, name in enumerate(ACTIONS)},
        "q": predicted[here, action],
        "q_t": (targets["t"] * predicted).sum(axis=1),
        "q_u": (targets["u"] * predicted).sum(axis=1),
    }


def roles(counts: Mapping[str, int], **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any role
    """The roles of the columns of `rows`, with cross-propensities."""
    crossed = {i: f"p_{i}" for i in counts}
    return {"logger": "logger", "reward": "reward", "propensities": crossed, **more}


def plain() -> Case:
    """Three loggers that cover two targets."""
    log = pw.Log(pa.table(rows(1, COUNTS)), **roles(COUNTS, reward_range=(0.0, 1.0)))
    return Case(log, {"t": "t", "v": "v"})


def real() -> Case:
    """Rewards that are real numbers of no known range, with the row's own propensity."""
    counts = {"a": 120, "b": 200, "c": 90, "d": 150}
    log = pw.Log(pa.table(rows(2, counts)), **roles(counts, reward="gain", propensity="p"))
    return Case(log, {"t": "t"}, "d")


def uncrossed() -> Case:
    """Only the row's own propensity is known."""
    own: dict[str, Any] = {"logger": "logger", "reward": "reward", "propensity": "p"}
    log = pw.Log(pa.table(rows(3, COUNTS)), **own, reward_range=(0.0, 1.0))
    return Case(log, {"t": "t", "u": "u"}, "t")


def single() -> Case:
    """One logger, and no column that names it."""
    log = pw.Log(
        pa.table(rows(4, {"b": 300})), reward="reward", propensity="p", reward_range=(0.0, 1.0)
    )
    return Case(log, {"t": "t", "v": "v"}, "v")


def clusters() -> Case:
    """Rows of users that belong together."""
    found = pw.Log(pa.table(rows(5, COUNTS)), **roles(COUNTS, cluster="user"))
    return Case(found, {"t": "t", "v": "v"})


def few_clusters() -> Case:
    """Rows that belong to eleven users."""
    counts = {"a": 60, "b": 40}
    found = pw.Log(pa.table(rows(6, counts)), **roles(counts, cluster="user"))
    return Case(found, {"t": "t"})


def bad_rows() -> pa.Table:
    """A log with rewards, propensities and labels that no log may have."""
    found = rows(7, COUNTS)
    found["reward"][[3, 800]] = np.nan
    found["p_a"][[5, 6, 7]] = 0.0
    found["p_b"][900] = 1.5
    found["t"][[11, 1_200]] = -0.25
    found["logger"][[20, 21]] = "e"
    return pa.table(found)


def dropped() -> Case:
    """Bad rows are left out."""
    return Case(
        pw.Log(bad_rows(), **roles(COUNTS, on_fault="drop")),
        {"t": "t", "v": "v"},
    )


def faulty() -> Case:
    """Bad rows are refused."""
    return Case(pw.Log(bad_rows(), **roles(COUNTS)), {"t": "t", "v": "v"})


def logarithms() -> Case:
    """Probabilities are natural logarithms, and some are those of 0."""
    found = rows(8, COUNTS, {"b": 2})
    names = ("p", "p_a", "p_b", "p_c", "t", "u", "v")
    with np.errstate(divide="ignore"):
        found |= {name: np.log(found[name]) for name in names}
    log = pw.Log(pa.table(found), **roles(COUNTS, log_probabilities=True))
    return Case(log, {"t": "t", "u": "u"})


def several() -> Case:
    """Five targets: one is repeated, one is a logger, one an SQL expression."""
    log = pw.Log(pa.table(rows(9, COUNTS)), **roles(COUNTS, reward_range=(0.0, 1.0)))
    mixed = "0.5 * t + 0.5 * v"
    targets = {"t": "t", "u": "u", "again": "t", "mixed": mixed, "old": "p_b"}
    return Case(log, targets, "old")


def unsupported() -> Case:
    """One logger never plays an action, and no logger plays another one."""
    counts = {"a": 400, "b": 300}
    found = rows(10, counts, {"a": 3, "b": 3})
    other = rows(11, {"c": 200}, {"c": 0})
    table = {k: np.concatenate([found[k], other[k]]) for k in found if k in other}
    every = {**counts, "c": 200}
    places = np.array([ACTIONS.index(item) for item in table["item"]])
    for label, action in {"a": 3, "b": 3, "c": 0}.items():
        scores = np.stack([table[f"s_{name}"] for name in ACTIONS], axis=1)
        probs = softmax(SLOPES[label] * scores)
        probs[:, action] = 0.0
        probs /= probs.sum(axis=1, keepdims=True)
        table[f"p_{label}"] = probs[np.arange(len(places)), places]
    return Case(pw.Log(pa.table(table), **roles(every)), {"t": "t", "v": "v"})


def uncovered() -> Case:
    """No logger plays one of the target's actions."""
    found = rows(12, COUNTS, {"a": 1, "b": 1, "c": 1})
    log = pw.Log(pa.table(found), **roles(COUNTS, reward_range=(0.0, 1.0)))
    return Case(log, {"t": "t"})


def wrong() -> Case:
    """The target's probabilities are too large to be true."""
    log = pw.Log(pa.table(rows(13, COUNTS)), **roles(COUNTS, reward_range=(0.0, 1.0)))
    return Case(log, {"t": "least(1.0, 1.3 * t)", "u": "least(1.0, 1.3 * u)"})


def shifted() -> Case:
    """The probabilities of one logger are those of another version."""
    found = rows(14, COUNTS)
    found["p_b"] = np.minimum(1.0, 1.3 * found["p_b"])
    log = pw.Log(pa.table(found), **roles(COUNTS, reward_range=(0.0, 1.0)))
    return Case(log, {"t": "t", "v": "v"})


def trained() -> Case:
    """A logger and a target were trained on logs of these."""
    on = {"b": ["a"], "t": ["a", "b"]}
    given = roles(COUNTS, trained_on=on, reward_range=(0.0, 1.0))
    return Case(pw.Log(pa.table(rows(15, COUNTS)), **given), {"t": "t", "v": "v"})


def mapping() -> Case:
    """A frame for each logger."""
    table = pa.table(rows(16, COUNTS)).drop_columns(["logger"])
    parts = {"a": table.slice(0, 700), "b": table.slice(700, 500), "c": table.slice(1_200)}
    given = roles(COUNTS, reward_range=(0.0, 1.0))
    return Case(pw.Log(parts, **{**given, "logger": None}), {"t": "t", "v": "v"})


def rare() -> Case:
    """One row in a hundred has a reward."""
    counts = {"a": 1_500, "b": 1_200, "c": 300}
    found = pa.table(rows(17, counts, base=0.003))
    log = pw.Log(found, **roles(counts, reward_range=(0.0, 1.0)))
    return Case(log, {"t": "t", "v": "v"})


def unrewarded() -> Case:
    """No row has a reward."""
    table = rows(18, {"a": 60, "b": 60})
    table["reward"][:] = 0.0
    given = roles({"a": 60, "b": 60}, reward_range=(0.0, 1.0))
    return Case(pw.Log(pa.table(table), **given), {"t": "t", "v": "v"})


def tiny() -> Case:
    """Thirty rows of four loggers, of which one wrote a single row."""
    counts = {"a": 16, "b": 10, "c": 3, "d": 1}
    given = roles(counts, reward_range=(0.0, 1.0))
    return Case(pw.Log(pa.table(rows(19, counts)), **given), {"t": "t", "v": "v"})


def given_mixture() -> Case:
    """Only the mixture of the loggers' probabilities is known."""
    own: dict[str, Any] = {
        "logger": "logger",
        "reward": "reward",
        "propensity": "p",
        "mixture": "average",
    }
    return Case(pw.Log(pa.table(rows(20, COUNTS)), **own), {"t": "t", "v": "v"}, "v")


def estimated_mixture() -> Case:
    """The probabilities of two loggers are unknown, and the mixture is learned."""
    from sklearn.naive_bayes import GaussianNB

    known = {"a": "p_a", "b": None, "c": None}
    given = roles(COUNTS, propensity="p", propensities=known, estimate_mixture=GaussianNB())
    source = pa.table(rows(21, COUNTS))
    log = pw.Log(source, **given, action="item", context=["x1", "x2"])
    return Case(log, {"t": "t"}, asked=("evaluate", "compare", "plan", "check", "summary"))


def follow(batch: pw.Batch) -> FloatArray:
    """Probability of a policy that likes the best action, by its column."""
    found: FloatArray = np.where(batch.action == batch["best"], 0.55, 0.15)
    return found


def policies() -> Case:
    """Loggers and targets are policies in Python."""
    scores = [f"s_{name}" for name in ACTIONS]
    loggers = {i: pw.Softmax(scores, ACTIONS, 1 / SLOPES[i]) for i in ("b", "c")}
    known = {"a": "p_a", **loggers}
    targets = {
        "softmax": pw.Softmax(scores, ACTIONS, 0.7),
        "greedy": pw.EpsilonGreedy("best", ACTIONS, 0.3),
        "table": pw.Table({"w": 0.1, "x": 0.2, "y": 0.3, "z": 0.4}),
        "mixed": pw.Mixture([pw.Uniform(ACTIONS), pw.Softmax(scores, ACTIONS)], [0.4, 0.6]),
    }
    given = roles(COUNTS, propensities=known, action="item", reward_range=(0.0, 1.0))
    source = pa.table(rows(22, COUNTS))
    log = pw.Log(source, **given, context=["x1", "x2", "best", *scores])
    asked = ("evaluate", "compare", "plan", "check", "summary", "scored")
    return Case(log, targets, "greedy", asked=asked)


def fitted() -> Case:
    """A reward model is fitted to the rows."""
    from sklearn.linear_model import Ridge

    counts = {"a": 200, "b": 150}
    scores = [f"s_{name}" for name in ACTIONS]
    given = roles(counts, action="item", context=["x1", "x2", *scores])
    log = pw.Log(pa.table(rows(25, counts)), **given)
    targets = {"softmax": pw.Softmax(scores, ACTIONS, 0.7)}
    model = pw.RewardModel(Ridge(), interactions=True)
    return Case(log, targets, model=model, asked=("evaluate", "estimator"))


def function() -> Case:
    """The target is a function of a batch."""
    counts = {"a": 200, "b": 150}
    source = pa.table(rows(23, counts))
    log = pw.Log(source, **roles(counts, action="item", context=["best"]))
    return Case(log, {"follow": pw.Function(follow)})


def modelled() -> Case:
    """The predictions of a reward model are columns."""
    model = pw.GivenModel("q", {"t": "q_t", "u": "q_u"})
    given = roles(COUNTS, reward_range=(0.0, 1.0))
    return Case(pw.Log(pa.table(rows(24, COUNTS)), **given), {"t": "t", "u": "u"}, model=model)


LOGS: dict[str, Callable[[], Case]] = {
    make.__name__: make
    for make in (
        plain,
        real,
        uncrossed,
        single,
        clusters,
        few_clusters,
        dropped,
        faulty,
        logarithms,
        several,
        unsupported,
        uncovered,
        wrong,
        shifted,
        trained,
        mapping,
        rare,
        unrewarded,
        tiny,
        given_mixture,
        estimated_mixture,
        policies,
        fitted,
        function,
        modelled,
    )
}
# also read by PostgreSQL
EVERYWHERE = ("plain", "uncrossed", "clusters", "dropped", "several")
