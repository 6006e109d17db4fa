"""Schemas: logs as teams have them, with names and types of their own and a known truth.

Each schema is a function that writes files into a folder and returns what a question about
them must find.  Decisions have two contexts and three actions, so that every value is a finite
sum; rewards are drawn.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    import poolwise as pw

ROWS = 4_000
WORTH = np.array([[0.1, 0.4, 0.6], [0.5, 0.3, 0.2]])  # mean reward of an action in a context
V1 = np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]])
V2 = np.array([[0.2, 0.3, 0.5], [0.5, 0.3, 0.2]])
NEW = np.array([[0.1, 0.2, 0.7], [0.6, 0.2, 0.2]])
POLICIES = {"v1": V1, "v2": V2}


@dataclass(frozen=True)
class Found:
    """What `poolwise init` must find in a log.

    Attributes:
        logs: Paths from the folder.
        keys: Keys of the question file, without the log and the targets.
        truth: True value of each target.
        missing: Words of the sentences about what is missing.
        more: Options that give it.
    """

    logs: Sequence[str]
    keys: Mapping[str, object]
    truth: Mapping[str, float]
    missing: Sequence[str] = ()
    more: Sequence[str] = ()
    command: str = "evaluate"
    targets: Mapping[str, object] = field(default_factory=dict)


SCHEMAS: dict[str, Callable[[Path], Found]] = {}


def schema(function: Callable[[Path], Found]) -> Callable[[Path], Found]:
    SCHEMAS[function.__name__] = function
    return function


@dataclass(frozen=True)
class Decisions:
    """Decisions of several policies, and the probabilities that all of them had."""

    logger: NDArray[np.str_]
    context: NDArray[np.int_]
    action: NDArray[np.int_]
    reward: NDArray[np.float64]

    def all(self, policy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probabilities of all actions, by row."""
        return policy[self.context]

    def one(self, policy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of the logged action, by row."""
        chosen: NDArray[np.float64] = policy[self.context, self.action]
        return chosen

    @property
    def own(self) -> NDArray[np.float64]:
        """The probability under the policy that wrote the row."""
        return np.where(self.logger == "v2", self.one(V2), self.one(V1))


def decide(
    seed: int, rows: int = ROWS, policies: Sequence[str] = ("v1", "v2"), *, mixed: bool = True
) -> Decisions:
    """Draw decisions; the loggers are live at the same time, or one after the other."""
    rng = np.random.default_rng(seed)
    places = np.arange(rows) * len(policies) // rows
    logger = np.array(policies)[rng.permutation(places) if mixed else places]
    context = rng.integers(0, 2, rows)
    probs = np.stack([POLICIES[name][x] for name, x in zip(logger, context, strict=True)])
    action = (probs.cumsum(axis=1) > rng.random((rows, 1))).argmax(axis=1)
    reward = (rng.random(rows) < WORTH[context, action]).astype(np.float64)
    return Decisions(logger, context, action, reward)


def value(policy: NDArray[np.float64], worth: NDArray[np.float64] = WORTH) -> float:
    """Return the value of a policy: the contexts are equally frequent."""
    return float((policy * worth).sum(axis=1).mean())


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(text, "utf-8")


def named(names: Sequence[str], probs: NDArray[np.float64]) -> dict[str, float]:
    return {name: round(float(p), 6) for name, p in zip(names, probs, strict=True)}


def moments(rows: int, start: str = "2026-03-01") -> list[np.datetime64]:
    """Return a time for each row, over twelve days."""
    seconds = np.arange(rows) * (12 * 86_400 // rows)
    return [np.datetime64(start, "s") + np.timedelta64(int(s), "s") for s in seconds]


@schema
def own_form(folder: Path) -> Found:
    """Return our own form: a column of probabilities for each logger and for the target."""
    d = decide(1)
    rows = {
        "policy": d.logger,
        "item": np.array(["a", "b", "c"])[d.action],
        "click": d.reward.astype(int),
        "device": np.array(["phone", "desk"])[d.context],
        "p_v1": d.one(V1),
        "p_v2": d.one(V2),
        "p_candidate": d.one(NEW),
    }
    pq.write_table(pa.table(rows), folder / "log.parquet")
    keys = {"reward": "click", "logger": "policy", "propensities": "p_{logger}"}
    keys |= {"action": "item"}
    return Found(["log.parquet"], keys, {"candidate": value(NEW)})


@schema
def router(folder: Path) -> Found:
    """Return the JSON lines of a router of language models, with nested fields."""
    d, models = decide(2, mixed=False), ["gpt-small", "gpt-large", "claude"]
    times = moments(ROWS)
    lines = [
        {
            "request_id": f"req-{k}",
            "timestamp": f"{times[k]}Z",
            "router_version": str(d.logger[k]),
            "model": models[d.action[k]],
            "metadata": {
                "task": ["code", "chat"][d.context[k]],
                "user_api_key_team": f"t{k % 50}",
            },
            "usage": {"prompt_tokens": 10 + k % 90, "cost": 0.001 * (1 + k % 3)},
            "routing": {
                "probs": named(models, POLICIES[str(d.logger[k])][d.context[k]]),
                "probs_next": named(models, NEW[d.context[k]]),
            },
            "feedback": {"solved": bool(d.reward[k])},
        }
        for k in range(ROWS)
    ]
    write_lines(folder / "router.jsonl", lines)
    keys = {
        "reward": "feedback.solved",
        "logger": "router_version",
        "propensity": "routing.probs",
        "action": "model",
        "period": "date_trunc('day', timestamp)",
    }
    return Found(["router.jsonl"], keys, {"next": value(NEW)})


@schema
def map_column(folder: Path) -> Found:
    """Return the rows of a warehouse whose distributions are maps."""
    d, offers = decide(3), ["none", "ten_percent", "free_shipping"]

    def maps(probs: NDArray[np.float64]) -> pa.Array:
        pairs = [list(zip(offers, map(float, p), strict=True)) for p in probs]
        return pa.array(pairs, pa.map_(pa.string(), pa.float64()))

    own = np.stack([POLICIES[n][x] for n, x in zip(d.logger, d.context, strict=True)])
    rows = {
        "event_id": np.arange(ROWS),
        "model_version": d.logger,
        "chosen_offer": np.array(offers)[d.action],
        "offer_probabilities": maps(own),
        "candidate_probabilities": maps(d.all(NEW)),
        "accepted": d.reward == 1,
        "customer_id": np.arange(ROWS) % 900,
    }
    pq.write_table(pa.table(rows), folder / "offers.parquet")
    keys = {
        "reward": "accepted",
        "logger": "model_version",
        "propensity": "offer_probabilities",
        "action": "chosen_offer",
        "cluster": "customer_id",
    }
    return Found(["offers.parquet"], keys, {"candidate": value(NEW)})


@schema
def listed(folder: Path) -> Found:
    """Return lists of probabilities beside the list of candidates."""
    d, articles = decide(4), np.array(["a17", "a4", "a99"])
    rows = {
        "ranker": d.logger,
        "article": articles[d.action],
        "candidates": [articles.tolist()] * ROWS,
        "scores_v1": [p.tolist() for p in d.all(V1)],
        "probs_v1": [p.tolist() for p in d.all(V1)],
        "probs_v2": [p.tolist() for p in d.all(V2)],
        "probs_challenger": [p.tolist() for p in d.all(NEW)],
        "read": d.reward.astype(int),
    }
    del rows["scores_v1"]
    pq.write_table(pa.table(rows), folder / "news.parquet")
    keys = {
        "reward": "read",
        "logger": "ranker",
        "propensities": "probs_{logger}",
        "action": "article",
        "eligible": "candidates",
    }
    return Found(["news.parquet"], keys, {"challenger": value(NEW)})


@schema
def ranked_candidates(folder: Path) -> Found:
    """Return lists called those of candidates, of which one is what the loggers played by."""
    d, items = decide(21), np.array(["i7", "i8", "i9"])
    own = [POLICIES[n][x].tolist() for n, x in zip(d.logger, d.context, strict=True)]
    rows = {
        "policy_name": d.logger,
        "shown_item": items[d.action],
        "candidate_items": [items.tolist()] * ROWS,
        "candidate_scores_logged": own,
        "candidate_scores_next": [p.tolist() for p in d.all(NEW)],
        "orders": d.reward.astype(int),
    }
    pq.write_table(pa.table(rows), folder / "candidates.parquet")
    keys = {
        "reward": "orders",
        "logger": "policy_name",
        "propensity": "candidate_scores_logged",
        "action": "shown_item",
        "eligible": "candidate_items",
    }
    return Found(["candidates.parquet"], keys, {"candidate_scores_next": value(NEW)})


@schema
def switch(folder: Path) -> Found:
    """Return a choice of yes or no, whose probabilities are fields called true and false."""
    rng = np.random.default_rng(22)
    plus = rng.integers(0, 2, ROWS)
    chance, new = np.array([0.3, 0.6])[plus], np.array([0.9, 0.2])[plus]
    shown = rng.random(ROWS) < chance
    rate = np.array([[0.2, 0.5], [0.4, 0.1]])

    def both(p: NDArray[np.float64]) -> list[dict[str, float]]:
        return [{"false": 1 - q, "true": q} for q in p.tolist()]

    rows = {
        "model": ["m1"] * ROWS,
        "discount_shown": shown,
        "probs": both(chance),
        "probs_new": both(new),
        "sale": (rng.random(ROWS) < rate[plus, shown.astype(int)]).astype(int),
    }
    pq.write_table(pa.table(rows), folder / "switch.parquet")
    keys = {
        "reward": "sale",
        "logger": "model",
        "propensity": "probs",
        "action": "discount_shown",
    }
    policy = np.array([[0.1, 0.9], [0.8, 0.2]])
    return Found(["switch.parquet"], keys, {"new": value(policy, rate)})


@schema
def across(folder: Path) -> Found:
    """Return a distribution whose entries have their own columns, in CSV."""
    d, names = decide(5, policies=["v1"]), ["small", "medium", "large"]
    probs = d.all(V1)
    with (folder / "wide.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["segment", "size", *[f"prob_{n}" for n in names], "revenue"])
        for k in range(ROWS):
            paid = 12.5 * d.reward[k]
            line = [d.context[k], names[d.action[k]], *probs[k], paid]
            writer.writerow(line)
    case = "CASE size WHEN 'large' THEN prob_large WHEN 'medium' THEN prob_medium "
    case += "WHEN 'small' THEN prob_small END"
    keys = {"reward": "revenue", "propensity": case, "action": "size"}
    always = {f"always {n}": 12.5 * float(WORTH[:, k].mean()) for k, n in enumerate(names)}
    return Found(["wide.csv"], keys, always)


@schema
def exported(folder: Path) -> Found:
    """Return a warehouse export: every value a quoted text, names in capitals."""
    d, times = decide(6, mixed=False), moments(ROWS)
    with (folder / "EXPORT.csv").open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        names = "EVENT_TS ACCOUNT_ID POLICY_VERSION OFFER_CODE PROPENSITY PROPENSITY_V1"
        writer.writerow(f"{names} PROPENSITY_V2 PROPENSITY_TARGET CONVERTED".split())
        for k in range(ROWS):
            p = [f"{q:.6f}" for q in (d.own[k], d.one(V1)[k], d.one(V2)[k], d.one(NEW)[k])]
            when = str(times[k]).replace("T", " ")
            label = str(d.logger[k]).upper()
            sold = "true" if d.reward[k] else "false"
            writer.writerow([when, f"A{k % 700}", label, f"O{d.action[k]}", *p, sold])
    keys = {
        "reward": "CONVERTED",
        "logger": "POLICY_VERSION",
        "propensity": "PROPENSITY",
        "propensities": "PROPENSITY_{logger}",
        "action": "OFFER_CODE",
        "cluster": "ACCOUNT_ID",
        "period": "date_trunc('day', EVENT_TS)",
    }
    return Found(["EXPORT.csv"], keys, {"TARGET": value(NEW)})


@schema
def texts(folder: Path) -> Found:
    """Return a Parquet file of texts only, with yes and no."""
    d = decide(7)
    rows = {
        "algo": d.logger,
        "banner": [f"banner {a}" for a in d.action],
        "pscore": [f"{p:.6f}" for p in d.own],
        "pscore_new": [f"{p:.6f}" for p in d.one(NEW)],
        "subscribed": np.where(d.reward == 1, "yes", "no"),
    }
    pq.write_table(pa.table(rows), folder / "texts.parquet")
    keys = {
        "reward": "CASE WHEN subscribed = 'yes' THEN 1 ELSE 0 END",
        "logger": "algo",
        "propensity": "pscore",
        "action": "banner",
    }
    return Found(["texts.parquet"], keys, {"new": value(NEW)})


@schema
def email_test(folder: Path) -> Found:
    """Return an e-mail test: one logger, and a fixed probability for each variant."""
    rng = np.random.default_rng(8)
    share, rate = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.25, 0.35])
    arm = rng.choice(3, size=ROWS, p=share)
    rows = {
        "recipient_email": [f"u{k}@example.org" for k in range(ROWS)],
        "subject_line_variant": np.array(["A", "B", "C"])[arm],
        "allocation": share[arm],
        "sent_at": moments(ROWS),
        "opened": (rng.random(ROWS) < rate[arm]).astype(int),
    }
    pq.write_table(pa.table(rows), folder / "email.parquet")
    keys = {"reward": "opened", "propensity": "allocation", "action": "subject_line_variant"}
    truth = {f"always {n}": float(rate[k]) for k, n in enumerate("ABC")}
    return Found(["email.parquet"], keys, truth)


@schema
def ab_test(folder: Path) -> Found:
    """Return an A/B test without any probability, which must be asked for."""
    rng = np.random.default_rng(9)
    treated = rng.random(ROWS) < 0.3
    rate = np.where(treated, 0.4, 0.3)
    rows = {
        "user_id": np.arange(ROWS),
        "variant": np.where(treated, "treatment", "control"),
        "converted": (rng.random(ROWS) < rate).astype(int),
    }
    pq.write_table(pa.table(rows), folder / "ab.parquet")
    given = ["--action", "variant", "--target", 'treatment={"treatment": 1.0}']
    given += ["--propensity", "CASE variant WHEN 'treatment' THEN 0.3 ELSE 0.7 END"]
    return Found(
        ["ab.parquet"],
        {"reward": "converted", "logger": "variant"},
        {"treatment": 0.4},
        missing=["propensity", "[targets]"],
        more=given,
    )


@schema
def without_chances(folder: Path) -> Found:
    """Return a CSV file without any probability, which must be estimated by name."""
    d = decide(23)
    with (folder / "banners.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["region", "banner", "bought"])
        for x, a, y in zip(d.context, d.action, d.reward, strict=True):
            writer.writerow(["ns"[x], ["red", "blue", "plain"][a], int(y)])
    always = {f"always {n}": float(WORTH[:, k].mean()) for k, n in ((0, "red"), (1, "blue"))}
    return Found(
        ["banners.csv"],
        {"reward": "bought", "action": "banner"},
        always | {"always plain": float(WORTH[:, 2].mean())},
        missing=["propensity"],
        more=["--propensities", "estimate", "--context", "region"],
    )


@schema
def prices(folder: Path) -> Found:
    """Return prices with their densities under two loggers and a target."""
    rng = np.random.default_rng(10)
    logger = np.where(rng.random(ROWS) < 0.5, "spring", "summer")
    mean = np.where(logger == "spring", 10.0, 12.0)
    price = rng.normal(mean, 2.0)

    def density(center: float, scale: float = 2.0) -> NDArray[np.float64]:
        pulls = (price - center) / scale
        heights: NDArray[np.float64] = np.exp(-0.5 * pulls**2) / scale / np.sqrt(2 * np.pi)
        return heights

    sold = rng.random(ROWS) < np.clip(1.2 - 0.06 * price, 0, 1)
    rows = {
        "pricing_policy": logger,
        "price": price,
        "density_spring": density(10),
        "density_summer": density(12),
        "density_autumn": density(11, 1.5),
        "bought": sold.astype(int),
    }
    pq.write_table(pa.table(rows), folder / "prices.parquet")
    keys = {
        "reward": "bought",
        "logger": "pricing_policy",
        "propensities": "density_{logger}",
        "densities": True,
        "action": "price",
    }
    return Found(["prices.parquet"], keys, {"autumn": 1.2 - 0.06 * 11})


@schema
def costs(folder: Path) -> Found:
    """Return logarithms of probabilities, and a cost in place of a reward."""
    d = decide(11)
    rows = {
        "strategy": d.logger,
        "treatment": d.action,
        "logp_v1": np.log(d.one(V1)),
        "logp_v2": np.log(d.one(V2)),
        "logp_proposed": np.log(d.one(NEW)),
        "total cost": 1 - d.reward,
    }
    pq.write_table(pa.table(rows), folder / "costs.parquet")
    keys = {
        "reward": '-"total cost"',
        "logger": "strategy",
        "propensities": "logp_{logger}",
        "log_probabilities": True,
        "action": "treatment",
    }
    return Found(["costs.parquet"], keys, {"proposed": value(NEW) - 1})


@schema
def amounts(folder: Path) -> Found:
    """Return amounts that are NULL where nothing was bought."""
    d = decide(12)
    amount = [float(20 + k % 7) if r else None for k, r in enumerate(d.reward)]
    rows = {
        "recommender": d.logger,
        "product": d.action,
        "prob": d.own,
        "prob_next": d.one(NEW),
        "order_value": amount,
        "visitor": np.arange(ROWS) % 1500,
    }
    pq.write_table(pa.table(rows), folder / "orders.parquet")
    keys = {
        "reward": "coalesce(order_value, 0)",
        "logger": "recommender",
        "propensity": "prob",
        "action": "product",
        "cluster": "visitor",
    }
    return Found(["orders.parquet"], keys, {"next": 23 * value(NEW)})


def ranked(seed: int, requests: int) -> tuple[dict[str, Any], float]:
    """Return lists of two positions with one of two items each, and the value of p_new.

    An item at the top earns 0.2 or 0.6, below it 0.1 or 0.3.
    """
    rng = np.random.default_rng(seed)
    worth = np.array([[0.2, 0.6], [0.1, 0.3]])
    chance = {"a": 0.5, "b": 0.3, "new": 0.8}  # of the better item, at each position
    logger = np.repeat(np.where(rng.random(requests) < 0.5, "a", "b"), 2)
    p = np.where(logger == "a", chance["a"], chance["b"])
    item = (rng.random(2 * requests) < p).astype(int)
    place = np.tile([0, 1], requests)
    reward = (rng.random(2 * requests) < worth[place, item]).astype(int)
    probs = {f"p_{n}": np.where(item, c, 1 - c) for n, c in chance.items()}
    rows = {
        "request": np.repeat(np.arange(requests), 2),
        "place": place + 1,
        "logger": logger,
        "item": item,
        "reward": reward,
        **probs,
    }
    better = chance["new"]
    return rows, float((worth @ [1 - better, better]).sum())


@schema
def rankings(folder: Path) -> Found:
    """Return impressions with a position, whose requests are lists."""
    rows, truth = ranked(13, 3_000)
    names = {"request": "impression_id", "place": "slot", "logger": "ranker", "item": "ad_id"}
    names["reward"] = "clicked"
    table = pa.table({names.get(k, k): v for k, v in rows.items()})
    pq.write_table(table, folder / "impressions.parquet")
    keys = {
        "reward": "clicked",
        "logger": "ranker",
        "propensities": "p_{logger}",
        "request": "impression_id",
        "position": "slot",
    }
    return Found(["impressions.parquet"], keys, {"new": truth})


@schema
def arrays(folder: Path) -> Found:
    """Return one row for each request, with arrays."""
    rows, truth = ranked(14, 3_000)
    lists = {k: np.asarray(v).reshape(-1, 2) for k, v in rows.items()}
    pq.write_table(
        pa.table(
            {
                "query_id": lists["request"][:, 0],
                "ranker": lists["logger"][:, 0],
                "docs": [x.tolist() for x in lists["item"]],
                "clicks": [x.tolist() for x in lists["reward"]],
                **{n: [x.tolist() for x in lists[n]] for n in ("p_a", "p_b", "p_new")},
            }
        ),
        folder / "queries.parquet",
    )
    keys = {
        "reward": "clicks",
        "logger": "ranker",
        "propensities": "p_{logger}",
        "request": "query_id",
    }
    return Found(["queries.parquet"], keys, {"new": truth})


@schema
def sessions(folder: Path) -> Found:
    """Return conversations of up to three turns, with a reward at their end."""
    rng = np.random.default_rng(15)
    asks = {"v1": [0.3, 0.3, 0.2], "v2": [0.6, 0.5, 0.1], "new": [0.8, 0.5, 0.0]}
    solves = [0.2, 0.4, 0.7]
    lines = []
    for session in range(3_000):
        policy = "v1" if session % 2 else "v2"
        turns: list[dict[str, Any]] = []
        solved = 0
        for turn in range(3):
            ask = bool(rng.random() < asks[policy][turn])
            turns.append(
                {
                    "conversation_id": f"c{session}",
                    "turn": turn + 1,
                    "agent_version": policy,
                    "act": "ask" if ask else "answer",
                    "resolved": 0,
                    **{f"prob_{n}": p[turn] if ask else 1 - p[turn] for n, p in asks.items()},
                }
            )
            solved = int(not ask and rng.random() < solves[turn])
            if not ask:
                break
        turns[-1]["resolved"] = solved
        lines += turns
    write_lines(folder / "chats.jsonl", lines)
    new = asks["new"]
    truth = (1 - new[0]) * solves[0] + new[0] * (
        (1 - new[1]) * solves[1] + new[1] * (1 - new[2]) * solves[2]
    )
    keys = {
        "reward": "resolved",
        "logger": "agent_version",
        "propensities": "prob_{logger}",
        "session": "conversation_id",
        "step": "turn",
        "reward_at": "end",
    }
    return Found(["chats.jsonl"], keys, {"new": truth})


@schema
def search_clicks(folder: Path) -> Found:
    """Return clicks on the lists of three deterministic rankers, and a fourth to evaluate.

    A position is examined with probability 1, 0.6 or 0.3, an item is liked with its own.
    """
    rng = np.random.default_rng(16)
    seen, liked = np.array([1.0, 0.6, 0.3]), np.array([0.2, 0.4, 0.6])
    orders = {"bm25": [0, 1, 2], "neural": [2, 0, 1], "fresh": [1, 2, 0], "new": [2, 1, 0]}
    lines = []
    for query in range(6_000):
        ranker = ["bm25", "neural", "fresh"][query % 3]
        for position, doc in enumerate(orders[ranker]):
            click = rng.random() < seen[position] * liked[doc]
            lines.append(
                {
                    "query_id": query,
                    "user": f"u{query % 2000}",
                    "rank": position + 1,
                    "doc": f"d{doc}",
                    "ranker": ranker,
                    "clicked": int(click),
                    **{f"rank_{n}": order.index(doc) + 1 for n, order in orders.items()},
                }
            )
    pq.write_table(pa.Table.from_pylist(lines), folder / "search.parquet")
    truth = float(sum(seen[k] * liked[doc] for k, doc in enumerate(orders["new"])))
    keys = {
        "clicks": {
            "ranks": "rank_{logger}",
            "logger": "ranker",
            "request": "query_id",
            "click": "clicked",
            "position": "rank",
            "cluster": "user",
        }
    }
    return Found(["search.parquet"], keys, {"new": truth}, command="clicks")


RATES = np.array([0.1, 0.2, 0.3])


@schema
def growthbook(folder: Path) -> Found:
    """Return exposures of a bandit whose weights change, with users who come back."""
    rng = np.random.default_rng(17)
    weights = {1: [1 / 3, 1 / 3, 1 / 3], 2: [0.25, 0.35, 0.4], 3: [0.2, 0.3, 0.5]}
    lines: list[dict[str, Any]] = []
    for version, own in weights.items():
        for k in range(1_500):
            arm = int(rng.choice(3, p=own))
            day = np.datetime64("2026-03-01", "s") + np.timedelta64(7 * version, "D")
            line = {
                "user_id": f"u{version}-{k}",
                "timestamp": day + np.timedelta64(300 * k, "s"),
                "experiment_id": "homepage-cta",
                "variation_id": str(arm),
                "leaf_id": 0,
                "bandit_version": version,
                "variation_weights": own,
                "revenue": float(rng.random() < RATES[arm]),
            }
            lines.append(line)
            if k % 5 == 0:  # the same variation again, under other weights
                later = day + np.timedelta64(60, "D")
                again = {
                    "timestamp": later,
                    "bandit_version": 3,
                    "variation_weights": weights[3],
                }
                lines.append(line | again)
    pq.write_table(pa.Table.from_pylist(lines), folder / "exposures.parquet")
    keys = {"format": "growthbook", "reward": "revenue"}
    truth = {f"always {k}": float(rate) for k, rate in enumerate(RATES)}
    return Found(["exposures.parquet"], keys, truth)


def shoes(rows: int = 3_000) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return bandit actions as Eppo's SDK logs them, and purchases that came later."""
    rng, names = np.random.default_rng(18), ["nike", "adidas", "puma"]
    events, purchases = [], []
    for k in range(rows):
        late = k >= rows // 2
        plus = int(rng.random() < 0.5)
        own = np.array([[0.2, 0.3, 0.5], [0.5, 0.3, 0.2]])[plus] if late else np.full(3, 1 / 3)
        arm = int(rng.choice(3, p=own))
        when = np.datetime64("2026-03-01", "s") + np.timedelta64(600 * k, "s")
        events.append(
            {
                "timestamp": f"{when}.000Z",
                "featureFlag": "shoe-bandit-flag",
                "bandit": "shoe-bandit",
                "subject": f"s{k}",
                "action": names[arm],
                "actionProbability": float(own[arm]),
                "optimalityGap": 0.05,
                "modelVersion": "v10" if late else "v9",
                "subjectNumericAttributes": {"age": 20 + k % 40},
                "subjectCategoricalAttributes": {"tier": ["base", "plus"][plus]},
                "actionNumericAttributes": {},
                "actionCategoricalAttributes": {},
            }
        )
        if rng.random() < RATES[arm]:
            bought = when + np.timedelta64(3_600, "s")
            purchases.append({"subject": f"s{k}", "at": f"{bought}Z", "amount": 1.0})
    return events, purchases


@schema
def eppo(folder: Path) -> Found:
    """Return bandit actions with the reward in another table, which must be asked for."""
    events, purchases = shoes()
    write_lines(folder / "bandit.jsonl", events)
    write_lines(folder / "purchases.jsonl", purchases)
    join = ["--join", "key=subject", "--join", "time=timestamp", "--join", "outcome_time=at"]
    given = ["--reward", "amount", "--outcomes", "purchases.jsonl", *join]
    given += ["--join", "window=1 day"]
    names = ["nike", "adidas", "puma"]
    return Found(
        ["bandit.jsonl"],
        {"format": "eppo"},
        {f"always {n}": float(RATES[k]) for k, n in enumerate(names)},
        missing=["reward"],
        more=given,
    )


@schema
def decisions(folder: Path) -> Found:
    """Return our own decision log, with outcomes in later lines."""
    d, actions = decide(19), ["a", "b", "c"]
    times = moments(ROWS)
    lines: list[dict[str, Any]] = []
    for k in range(ROWS):
        lines.append(
            {
                "schema": "poolwise-decisions-1",
                "id": k,
                "time": f"{times[k]}Z",
                "logger": str(d.logger[k]),
                "action": actions[d.action[k]],
                "propensity": named(actions, POLICIES[str(d.logger[k])][d.context[k]]),
                "targets": {"new": named(actions, NEW[d.context[k]])},
                "context": {"segment": ["x", "y"][d.context[k]]},
            }
        )
        if d.reward[k]:
            at = times[k] + np.timedelta64(60, "s")
            line = {"decision": k, "time": f"{at}Z", "reward": 1}
            lines.append({"schema": "poolwise-decisions-1", **line})
    write_lines(folder / "decisions.jsonl", lines)
    return Found(["decisions.jsonl"], {"format": "decisions"}, {"new": value(NEW)})


@schema
def dsjson(folder: Path) -> Found:
    """Return lines of a decision service."""
    d = decide(20)
    lines = []
    for k in range(ROWS):
        p = POLICIES[str(d.logger[k])][d.context[k]]
        first = int(d.action[k])
        order = [first, *[j for j in range(3) if j != first]]
        lines.append(
            {
                "_label_cost": -float(d.reward[k]),
                "_label_probability": float(p[first]),
                "_label_Action": first + 1,
                "_labelIndex": first,
                "Timestamp": "2026-03-01T00:00:00.0000000Z",
                "EventId": f"e{k}",
                "a": [j + 1 for j in order],
                "p": [float(p[j]) for j in order],
                "c": {"User": [{"segment": int(d.context[k])}], "_multi": [{}, {}, {}]},
                "VWState": {"m": str(d.logger[k])},
            }
        )
    write_lines(folder / "service.json", lines)
    uniform = value(np.full((2, 3), 1 / 3))
    return Found(["service.json"], {"format": "dsjson"}, {"uniform": uniform})


def table_of(log: pw.Log) -> pa.Table:
    """Return the rows of a log whose source is a table or a SELECT."""
    if isinstance(log.source, str):
        with duckdb.connect() as connection:
            return connection.sql(log.source).to_arrow_table()
    assert isinstance(log.source, pa.Table)
    return log.source
