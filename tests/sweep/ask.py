"""Ask: write the log of a combination to its source, and declare it as a user does."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

import poolwise as pw
from tests.sweep.features import RANKED, WHOLE
from tests.sweep.rankings import MODELS, RankingWorld, make_ranking_world
from tests.sweep.world import (
    ITEMS,
    ZONE,
    DensityWorld,
    World,
    make_density_world,
    make_world,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.sweep.features import Combination

RANGES: dict[str, tuple[float, float]] = {
    "clicks": (0.0, 1.0),
    "rare": (0.0, 1.0),
    "costs": (-40.0, 0.0),
    "amounts": (0.0, 90.0),
    "heavy": (0.0, 1e6),
}
ITEM_NAMES = tuple(map(str, ITEMS))
NESTED = ("reward", "p_alt")  # fields of a struct
PYTHON = {"policies", "sampled"}
ONLY = {"one", "unlogged"}  # of an only logger
AnyWorld = World | DensityWorld | RankingWorld


class Wrong(Exception):  # noqa: N818 - a finding of the sweep
    """A result that is not right."""


@dataclass(frozen=True)
class ByTable:
    """A policy in Python: looks the probability up in a table."""

    table: Any  # shape (days, contexts, actions)
    items: tuple[str, ...]

    def __call__(self, batch: pw.Batch) -> Any:  # noqa: ANN401 - an array
        day = [int(str(d)[-2:]) - 1 for d in batch["day"]]
        action = [self.items.index(str(a)) for a in batch.action]
        return self.table[day, np.asarray(batch["x"], dtype=int), action]


@dataclass(frozen=True, eq=False)
class Asked:
    """A question with its truth.

    Attributes:
        combination: The features.
        world: The truth.
        columns: Good rows, as they were drawn.
        log: The log, as a user declares it.
        targets: Targets, as a user declares them.
        engine: Engine, or None.
        bad: Number of bad rows, which are dropped.
        folder: Folder for files.
        source: Files, a SELECT or frames.
        roles: Roles of the columns, before lists become rows.
        declared: Targets, before lists become rows.
    """

    combination: Combination
    world: AnyWorld
    columns: Mapping[str, Any]
    log: pw.Log
    targets: Mapping[str, Any]
    engine: Any
    bad: int
    folder: Path
    source: Any
    roles: Mapping[str, Any]
    declared: Mapping[str, Any]

    @property
    def crossed(self) -> bool:
        """True if the probability of every row under every logger is known."""
        known = {
            "columns",
            "both",
            "pattern",
            "policies",
            "sampled",
            "logarithms",
            "densities",
            "eligible",
            *WHOLE,
        }
        return self.combination["probabilities"] in known

    @property
    def baseline(self) -> str:
        """A logger where its probabilities are known everywhere, otherwise a target."""
        live = self.combination["structure"] == "live"
        ranked = self.combination["structure"] in RANKED
        named = self.crossed and not live and not ranked
        return next(iter(self.world.counts)) if named else "alt"


def make_question(combination: Combination, seed: int, folder: Path, scale: int = 1) -> Asked:
    """Draw the log of a combination, write it, and declare it."""
    rng = np.random.default_rng(seed)
    ranked = combination["structure"] in RANKED
    dense = combination["probabilities"] == "densities"
    make = make_ranking_world if ranked else make_density_world if dense else make_world
    world: AnyWorld = make(rng, combination, scale)
    columns = world.draw(rng, users=int(combination["structure"] == "cluster"))
    if not ranked:
        order = rng.permutation(len(columns["p"]))
        columns = {
            name: [values[k] for k in order] if isinstance(values, list) else values[order]
            for name, values in columns.items()
        }
    written, bad = _spoiled(rng, combination, world, columns)
    return _declare(combination, world, columns, written, bad, folder)


def _spoiled(
    rng: np.random.Generator,
    combination: Combination,
    world: AnyWorld,
    columns: Mapping[str, Any],
) -> tuple[pa.Table, int]:
    """Return the table that is written: with bad rows, labels of their type, or logarithms."""
    table = pa.table(dict(columns))
    wide = [n for n in table.column_names if n.startswith("whole_")]
    table = table if combination["probabilities"] in WHOLE else table.drop_columns(wide)
    table = _typed(combination, world, table)
    if combination["structure"] != "dropped":
        return _distributions(combination, table), 0
    wrong = {"reward": np.nan}
    if combination["probabilities"] in {"own", "both", "mixture", "estimated", "one"}:
        wrong["p"] = 2.5
    if not _computes_target(combination):
        wrong["p_new"] = 0.25 if combination["probabilities"] == "logarithms" else -0.25
    bad = table.take(pa.array(rng.integers(len(table), size=3 * len(wrong))))
    for k, (name, value) in enumerate(wrong.items()):
        whole = bad[name].to_numpy(zero_copy_only=False).copy()
        whole[3 * k : 3 * k + 3] = value
        bad = _put(bad, name, pa.array(whole))
    both = pa.concat_tables([table, bad])
    both = both.take(pa.array(rng.permutation(len(both))))
    return _distributions(combination, both), len(bad)


def _distributions(combination: Combination, table: pa.Table) -> pa.Table:
    """Return the table with whole distributions in place of probabilities.

    Maps and JSON have no entry for an action of probability 0.
    """
    kind = combination["probabilities"]
    if kind not in WHOLE:
        return table
    items = table["item"].to_pylist()
    for name in [n for n in table.column_names if n.startswith("whole_")]:
        own = f"p_{name.removeprefix('whole_')}"
        values, rows = table[own].to_pylist(), table[name].to_pylist()
        cells = [
            None
            if value is None
            else dict(zip(ITEM_NAMES, row, strict=True))
            | ({} if kind == "groups" and value >= 0 else {item: value})
            for value, row, item in zip(values, rows, items, strict=True)
        ]
        table = _put(table, own, _nested(kind, cells)).drop_columns([name])
    return table


def _nested(kind: str, cells: list[dict[str, float] | None]) -> pa.Array:
    """Return distributions as a column of a kind."""
    if kind == "struct":
        return pa.array(cells)
    if kind == "list":
        return pa.array([None if c is None else [*c.values()] for c in cells])
    sparse = [None if c is None else {k: p for k, p in c.items() if p} for c in cells]
    if kind == "json":
        return pa.array([None if c is None else json.dumps(c) for c in sparse])
    pairs = [None if c is None else [*c.items()] for c in sparse]
    return pa.array(pairs, pa.map_(pa.string(), pa.float64()))


def _typed(combination: Combination, world: AnyWorld, table: pa.Table) -> pa.Table:
    """Return the rows in the columns and types of the combination."""
    if "at" in table.column_names:
        table = _put(table, "at", table["at"].cast(pa.timestamp("s", "UTC")))
    if combination["probabilities"] in PYTHON:  # nobody logs what Python computes
        table = table.drop_columns([n for n in table.column_names if n.startswith("p_")])
    if combination["loggers"] == "integers" and combination["probabilities"] not in ONLY:
        table = _put(table, "logger", pa.array([int(i) for i in table["logger"].to_pylist()]))
    if combination["structure"] == "live":
        table = _only_live(world, table)
    if combination["probabilities"] == "logarithms":
        table = _logarithms(table)
    if combination["structure"] == "struct":
        nested = [n for n in NESTED if n in table.column_names]
        fields = [table[n].combine_chunks() for n in nested]
        inner = pa.StructArray.from_arrays(fields, names=nested)
        table = table.drop_columns(nested).append_column("r", inner)
    return _arrays(table) if combination["structure"] == "arrays" else table


def _only_live(world: AnyWorld, table: pa.Table) -> pa.Table:
    """Return the table without probabilities of loggers on days when they are not live."""
    assert isinstance(world, World)
    days = np.array([int(d[-2:]) - 1 for d in table["day"].to_pylist()])
    for label, live in world.live.items():
        name = f"p_{label}"
        if name in table.column_names:
            gone = ~np.isin(days, live)
            table = _put(table, name, pa.array(table[name].to_numpy(), mask=gone))
    return table


def _logarithms(table: pa.Table) -> pa.Table:
    """Return the table with logarithms in place of probabilities."""
    for name in table.column_names:
        if name == "p" or name.startswith("p_"):
            absent = np.array([v is None for v in table[name].to_pylist()])
            with np.errstate(divide="ignore"):
                logs = np.log(table[name].to_numpy(zero_copy_only=False))
            table = _put(table, name, pa.array(logs, mask=absent))
    return table


def _arrays(table: pa.Table) -> pa.Table:
    """Return one row per request, with lists of what differs between its positions."""
    fixed = {"request", "logger", "x", "device"}
    rows: dict[object, dict[str, Any]] = {}
    for row in table.to_pylist():
        lists: dict[str, Any] = {name: [] for name in row if name not in fixed}
        wide = rows.setdefault(row["request"], row | lists)
        for name in lists:
            wide[name].append(row[name])
    return pa.Table.from_pylist(list(rows.values()))


def _computes_target(combination: Combination) -> bool:
    """Test if the target is a policy in Python, and no column."""
    kind, verb = combination["probabilities"], combination["verb"]
    by_scores = kind == "eligible" and combination["target"] == "supported"
    scored = verb == "score" and kind not in {"logarithms", "densities"}
    return kind in PYTHON or by_scores or (scored and combination["structure"] not in RANKED)


def _put(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def _declare(
    combination: Combination,
    world: AnyWorld,
    columns: Mapping[str, Any],
    written: pa.Table,
    bad: int,
    folder: Path,
) -> Asked:
    roles, targets = _roles(combination, world)
    joined = combination["structure"] == "joined"
    whole = written
    if joined:
        written = written.drop_columns(["reward"])
        written = written.append_column("decision", pa.array(range(len(written))))
    source, engine = _source(combination, world, written, folder)
    declared = dict(targets)
    if combination["structure"] == "mapping":
        roles.pop("logger", None)
    if combination["structure"] in RANKED:
        roles.pop("reward_range", None)
        log, targets = _lists(combination["structure"], source, targets, roles)
    elif isinstance(source, dict) and "table" in source:
        log = pw.Log(**source, **roles)
    else:
        log = pw.Log(source, **roles)
    if joined:
        log = pw.join_outcomes(log, _outcomes(whole), key="decision").log
    return Asked(
        combination, world, columns, log, targets, engine, bad, folder, source, roles, declared
    )


def _outcomes(rows: pa.Table) -> pa.Table:
    """Return the rewards as outcomes of two parts, in another order, with one of nobody."""
    rewards = rows["reward"].to_numpy().astype(float)
    count = len(rewards)
    keys = np.concatenate([np.arange(count), np.arange(count)[::-1], [count + 1]])
    parts = np.concatenate([rewards * 0.25, rewards[::-1] * 0.75, [1e6]])
    return pa.table({"decision": keys, "reward": parts})


def _lists(structure: str, source: Any, targets: Any, roles: dict[str, Any]) -> Any:  # noqa: ANN401 - arguments of two functions
    """Return the log and the targets of lists."""
    if structure == "session":
        roles.pop("action", None)  # sessions have none
        return pw.session_log(source, targets, session="request", step="slot", **roles)
    if structure == "scores":
        targets = {name: _scored(text) for name, text in targets.items()}
        roles["action"] = "item"
        if "propensity" in roles:
            roles["propensity"] = pw.PlackettLuce("s")
        if "propensities" in roles:
            known = roles["propensities"].items()
            roles["propensities"] = {label: _scored(text) for label, text in known}
    model: Any = MODELS.get(structure, structure)
    return pw.ranking_log(
        source, targets, request="request", position="slot", model=model, **roles
    )


def _scored(text: str) -> Any:  # noqa: ANN401 - a policy or its column
    """Return the policy of a column of probabilities; a formula stays as it is."""
    return pw.PlackettLuce(text.replace("p_", "s_")) if text.startswith("p_") else text


def _roles(combination: Combination, world: AnyWorld) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the roles of the columns, and the targets."""
    kind, structure, labels = (
        combination["probabilities"],
        combination["structure"],
        [*world.counts],
    )
    roles: dict[str, Any] = {"reward": "reward", "logger": "logger"} | _known(
        combination, labels
    )
    nested = "r." if structure == "struct" else ""
    targets: dict[str, Any] = {"new": "p_new", "alt": f"{nested}p_alt"}
    if combination["target"] == "mixture" and kind != "logarithms":
        targets["new"] = "0.5 * p_new + 0.5 * p_new"
    if kind in ONLY:
        roles.pop("logger")
    if kind in PYTHON:
        _with_policies(roles, targets, combination, world)
    elif _computes_target(combination):
        targets["new"] = _computed(combination, world)
        roles["action"] = "item"
        scored = combination["verb"] == "score"
        roles |= {"context": [*roles.get("context", ["x"]), "day"]} if scored else {}
    if combination["verb"] == "learn":
        roles["action"] = "item"
    roles |= {
        "cluster": {"cluster": "user"},
        "period": {"period": "day"},
        "live": {"period": "day"},
        "zone": {"period": "date_trunc('day', at)", "timezone": ZONE},
        "struct": {"reward": "r.reward"},
        "dropped": {"on_fault": "drop"},
    }.get(structure, {})
    if structure == "trained" and len(labels) > 1:
        roles["trained_on"] = {labels[1]: [labels[0]]}
    reward_range = RANGES[combination["rewards"]]
    if reward_range[1] == 1.0 or kind != "densities":
        roles["reward_range"] = reward_range
    return roles, targets


def _known(combination: Combination, labels: list[str]) -> dict[str, Any]:
    """Return the roles of what is known of the loggers."""
    integers = combination["loggers"] == "integers" and combination["probabilities"] not in ONLY
    crossed = {int(label) if integers else label: f"p_{label}" for label in labels}
    known: dict[str, dict[str, Any]] = {
        "columns": {"propensities": crossed},
        "own": {"propensity": "p"},
        "both": {"propensity": "p", "propensities": crossed},
        "pattern": {"propensities": "p_{logger}"},
        "mixture": {"propensity": "p", "mixture": "average"},
        "estimated": {"propensity": "p", "action": "item", "context": ["x"]},
        "unlogged": {
            "propensities": "estimate",
            "confounders": "in-context",  # an alarm would hide all others
            "action": "item",
            "context": ["x", "x1", "x2", "device"],
        },
        "policies": {},
        "sampled": {},
        "one": {"propensity": "p"},
        "logarithms": {"propensities": crossed, "log_probabilities": True},
        "densities": {"propensities": crossed, "densities": True, "action": "item"},
        "eligible": {"propensities": crossed, "eligible": "allowed", "action": "item"},
    }
    whole = {"propensities": crossed, "action": "item"}
    known |= dict.fromkeys(WHOLE, whole) | {"list": whole | {"eligible": "allowed"}}
    known["groups"] = whole | {"action_group": "shelf"}
    found = known[combination["probabilities"]]
    if combination["probabilities"] == "estimated":
        from sklearn.tree import DecisionTreeClassifier

        found["estimate_mixture"] = DecisionTreeClassifier(min_samples_leaf=20)
    return found


def _computed(combination: Combination, world: AnyWorld) -> Any:  # noqa: ANN401 - a policy
    """Return the target as a policy in Python."""
    assert isinstance(world, World)
    if combination["verb"] == "score":
        return pw.Function(ByTable(world.policies["new"], ITEM_NAMES))
    return pw.Softmax([f"s_{name}" for name in ITEM_NAMES], ITEM_NAMES, 1 / 1.4)


def _with_policies(
    roles: dict[str, Any], targets: dict[str, Any], combination: Combination, world: AnyWorld
) -> None:
    """Give loggers and targets as policies in Python."""
    assert isinstance(world, World)
    made: dict[str, Any] = {
        name: pw.Function(ByTable(table, ITEM_NAMES)) for name, table in world.policies.items()
    }
    made |= {
        name: pw.Thompson(
            {ITEM_NAMES[k]: pw.Gaussian(f"m_{name}_{k}", part.scale) for k in part.actions}
        )
        for name, part in world.posteriors.items()
    }
    labels = list(world.counts)
    if combination["loggers"] == "integers":
        roles["propensities"] = {int(label): made[label] for label in labels}
    else:
        roles["propensities"] = {label: made[label] for label in labels}
    roles |= {"action": "item"}
    roles |= {} if world.posteriors else {"context": ["x", "day"]}
    targets |= {name: made[name] for name in targets}
    if combination["target"] == "mixture":
        targets["new"] = pw.Mixture([made["new"], made["new"]], [0.5, 0.5])


def _source(
    combination: Combination, world: AnyWorld, table: pa.Table, folder: Path
) -> tuple[Any, Any]:
    """Write the table; return the source and the engine."""
    kind = combination["source"]
    if combination["structure"] != "mapping":
        return _write(kind, table, folder, "log")
    labels = [str(label) for label in table["logger"].to_pylist()]
    parts = {}
    engine = None
    for k, label in enumerate(world.counts):
        part = table.filter(pa.array([i == label for i in labels])).drop_columns(["logger"])
        parts[label], engine = _write(kind, part, folder, f"part{k}")
    return parts, engine


def _write(kind: str, table: pa.Table, folder: Path, name: str) -> tuple[Any, Any]:  # noqa: PLR0911 - one for each source
    path = str(folder / f"{name}.parquet")
    if kind == "frame":
        return _frame(table), None
    if kind == "csv":
        lists = [f.name for f in table.schema if pa.types.is_list(f.type)]
        pc.write_csv(table.drop_columns(lists), folder / f"{name}.csv")
        return str(folder / f"{name}.csv"), None
    if kind == "json":
        rows = table.to_pylist(maps_as_pydicts="strict")
        lines = (json.dumps(row, default=str, allow_nan=True) for row in rows)
        Path(folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        return str(folder / f"{name}.jsonl"), None
    if kind == "postgres":
        from tests.support.postgres import load, server

        connection = server().connect()
        load(connection, table, "log_of_sweep")
        return {"table": "log_of_sweep", "connection": connection}, None
    if kind == "files":
        third = len(table) // 3 + 1
        for k in range(3):
            pq.write_table(table.slice(k * third, third), folder / f"{name}-{k}.parquet")
        return str(folder / f"{name}-*.parquet"), None
    pq.write_table(table, path, row_group_size=400)
    if kind == "select":
        return f"SELECT * FROM '{path}'", None
    return path, pw.Spark(session=spark_session()) if kind == "spark" else None


def _frame(table: pa.Table) -> Any:  # noqa: ANN401 - a frame of one of three kinds
    maps = any(pa.types.is_map(field.type) for field in table.schema)
    if len(table) % 3 == 0 or (maps and len(table) % 3 == 2):  # Polars has no maps
        return table
    strict = {"maps_as_pydicts": "strict"}
    return table.to_pandas(**strict) if len(table) % 3 == 1 else _polars(table)


def _polars(table: pa.Table) -> Any:  # noqa: ANN401 - as above
    import polars as pl

    return pl.from_arrow(table)


def spark_session() -> Any:  # noqa: ANN401 - an optional package
    """Return a small local session of Spark, the same one each time."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session
