"""Ask: write the log of a combination to its source, and put the question to poolwise.

The result of every verb is a dictionary, as `to_dict` or ``--json`` returns it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

import poolwise as pw
from poolwise.cli.commands import main
from tests.sweep.features import RANKED, TYPED
from tests.sweep.rankings import RankingWorld, make_ranking_world
from tests.sweep.world import (
    ITEMS,
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
}
ESTIMATORS: dict[str, Any] = {
    "default": None,
    "clipped": pw.Balanced(pw.Shrink("clip", 1e3)),  # no weight is that large
    "doubly-robust": "doubly-robust",
}
WATCHED_LEVEL = 0.9999  # so that a bound that misses the truth is a mistake
ITEM_NAMES = tuple(map(str, ITEMS))
HALF_WIDTH = 0.7  # planned, as a part of the present one
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
        options: Arguments of `evaluate` in addition to the targets.
    """

    combination: Combination
    world: AnyWorld
    columns: Mapping[str, Any]
    log: pw.Log
    targets: Mapping[str, Any]
    engine: Any
    bad: int
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def crossed(self) -> bool:
        """True if the probability of every row under every logger is known."""
        known = {
            "columns",
            "both",
            "pattern",
            "policies",
            "logarithms",
            "densities",
            "eligible",
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
    if combination["probabilities"] == "policies":  # nobody logs what Python computes
        table = table.drop_columns([n for n in table.column_names if n.startswith("p_")])
    if combination["loggers"] == "integers" and combination["probabilities"] != "one":
        table = _put(table, "logger", pa.array([int(i) for i in columns["logger"]]))
    if combination["structure"] == "live":
        table = _only_live(world, columns, table)
    if combination["probabilities"] == "logarithms":
        table = _logarithms(table)
    if combination["structure"] != "dropped":
        return table, 0
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
    return both.take(pa.array(rng.permutation(len(both)))), len(bad)


def _only_live(world: AnyWorld, columns: Mapping[str, Any], table: pa.Table) -> pa.Table:
    """Return the table without probabilities of loggers on days when they are not live."""
    assert isinstance(world, World)
    days = np.array([int(d[-2:]) - 1 for d in columns["day"]])
    for label, live in world.live.items():
        name = f"p_{label}"
        if name in table.column_names:
            gone = ~np.isin(days, live)
            table = _put(table, name, pa.array(columns[name], mask=gone))
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


def _computes_target(combination: Combination) -> bool:
    """Test if the target is a policy in Python, and no column."""
    kind, verb = combination["probabilities"], combination["verb"]
    by_scores = (
        kind == "eligible" and combination["target"] == "supported" and verb not in TYPED
    )
    scored = verb == "score" and kind not in {"logarithms", "densities"}
    return (
        kind == "policies" or by_scores or (scored and combination["structure"] not in RANKED)
    )


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
    source, engine = _source(combination, world, written, folder)
    if combination["structure"] == "mapping":
        roles.pop("logger", None)
    if combination["structure"] in RANKED:
        structure = combination["structure"]
        model: Any = "independent" if structure == "position" else structure
        roles.pop("reward_range", None)
        log, targets = pw.ranking_log(
            source, targets, request="request", position="slot", model=model, **roles
        )
    elif isinstance(source, dict) and "table" in source:
        log = pw.Log(**source, **roles)
    else:
        log = pw.Log(source, **roles)
    return Asked(combination, world, columns, log, targets, engine, bad, folder)


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
    targets: dict[str, Any] = {"new": "p_new", "alt": "p_alt"}
    if combination["target"] == "mixture" and kind != "logarithms":
        targets["new"] = "0.5 * p_new + 0.5 * p_new"
    if kind == "one":
        roles.pop("logger")
    if kind == "policies":
        _with_policies(roles, targets, combination, world)
    elif _computes_target(combination):
        targets["new"] = _computed(combination, world)
        roles["action"] = "item"
        roles |= {"context": ["x", "day"]} if combination["verb"] == "score" else {}
    if combination["verb"] == "learn":
        roles["action"] = "item"
    roles |= {
        "cluster": {"cluster": "user"},
        "period": {"period": "day"},
        "live": {"period": "day"},
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
    integers = combination["loggers"] == "integers" and combination["probabilities"] != "one"
    crossed = {int(label) if integers else label: f"p_{label}" for label in labels}
    known: dict[str, dict[str, Any]] = {
        "columns": {"propensities": crossed},
        "own": {"propensity": "p"},
        "both": {"propensity": "p", "propensities": crossed},
        "pattern": {"propensities": "p_{logger}"},
        "mixture": {"propensity": "p", "mixture": "average"},
        "estimated": {"propensity": "p", "action": "item", "context": ["x"]},
        "policies": {},
        "one": {"propensity": "p"},
        "logarithms": {"propensities": crossed, "log_probabilities": True},
        "densities": {"propensities": crossed, "densities": True, "action": "item"},
        "eligible": {"propensities": crossed, "eligible": "allowed", "action": "item"},
    }
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
    made = {
        name: pw.Function(ByTable(table, ITEM_NAMES)) for name, table in world.policies.items()
    }
    labels = list(world.counts)
    if combination["loggers"] == "integers":
        roles["propensities"] = {int(label): made[label] for label in labels}
    else:
        roles["propensities"] = {label: made[label] for label in labels}
    roles |= {"action": "item", "context": ["x", "day"]}
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
        lines = (json.dumps(row, default=str, allow_nan=True) for row in table.to_pylist())
        Path(folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        return str(folder / f"{name}.jsonl"), None
    if kind == "postgres":
        from tests.support.postgres import load, server

        lists = [f.name for f in table.schema if pa.types.is_list(f.type)]
        connection = server().connect()
        load(connection, table.drop_columns(lists), "log_of_sweep")
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
    if len(table) % 3 == 0:
        return table
    return table.to_pandas() if len(table) % 3 == 1 else _polars(table)


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


# --- verbs ------------------------------------------------------------------------------


def answer(asked: Asked) -> dict[str, Any]:
    """Return the result of the combination's verb."""
    verb = asked.combination["verb"]
    if verb in {"question", "command"}:
        return _printed(asked)
    result: dict[str, Any] = getattr(_Verbs, verb)(asked)
    return result


def _engine(asked: Asked) -> Any:  # noqa: ANN401 - an engine, or None
    """Return the engine; saved moments are made first, and read from their file."""
    if asked.combination["source"] != "saved":
        return asked.engine
    path = asked.folder / "moments.parquet"
    pw.summarise(asked.log, asked.targets).save(path)
    return pw.Summary.load(path)


def _options(asked: Asked) -> dict[str, Any]:
    combination = asked.combination
    chosen = combination["estimator"]
    options: dict[str, Any] = {"interval": combination["interval"]}
    options["estimators"] = ESTIMATORS.get(chosen, chosen)
    if chosen == "doubly-robust":
        options["model"] = pw.GivenModel("q", {"new": "q_new", "alt": "q_alt"})
    if combination["structure"] == "by":
        options["by"] = "device"
    if combination["structure"] == "position":
        options["by"] = "position"
    return options


class _Verbs:
    """One function for each verb of Python."""

    @staticmethod
    def evaluate(asked: Asked) -> dict[str, Any]:
        options, engine = _options(asked), _engine(asked)
        if asked.combination["source"] != "saved":  # moments have no differences
            options["baseline"] = asked.baseline
        found = pw.evaluate(asked.log, asked.targets, engine=engine, **options)
        str(found), found.to_text()
        return found.to_dict()

    @staticmethod
    def compare(asked: Asked) -> dict[str, Any]:
        chosen = asked.combination["estimator"]
        name = ESTIMATORS.get(chosen, chosen)
        options = {} if name is None else {"estimator": name}
        found = pw.compare(
            asked.log, asked.targets, baseline=asked.baseline, engine=_engine(asked), **options
        )
        str(found)
        return found.to_dict()

    @staticmethod
    def plan(asked: Asked) -> dict[str, Any]:
        engine = _engine(asked)
        target = {"new": asked.targets["new"]}
        now = pw.evaluate(asked.log, target, engine=engine)
        widths = [i.upper - i.lower for i in now["new"].intervals.values()]
        wanted = HALF_WIDTH * min(w for w in widths if w > 0) / 2
        found = pw.plan(asked.log, target, half_width=wanted, engine=engine)
        str(found)
        return found.to_dict() | {"evaluated": now.to_dict()}

    @staticmethod
    def watch(asked: Asked) -> dict[str, Any]:
        found = pw.watch(
            asked.folder / "state.npz",
            asked.log,
            {"new": asked.targets["new"]},
            level=WATCHED_LEVEL,
            engine=_engine(asked),
        )
        return found.to_dict() | {"lower": found.interval.lower, "upper": found.interval.upper}

    @staticmethod
    def learn(asked: Asked) -> dict[str, Any]:
        found = pw.learn(
            asked.log,
            features=["x1", "x2"],
            folds=2,
            strengths=[0.1],
            smoothing=[1.0],
            engine=_engine(asked),
        )
        str(found)
        return found.to_dict() | {"policy": found.policy, "name": found.name}

    @staticmethod
    def check(asked: Asked) -> dict[str, Any]:
        found = pw.check(asked.log, asked.targets, engine=_engine(asked))
        return {"rows": dict(found.rows), "faults": [(f.logger, f.rows) for f in found.faults]}

    @staticmethod
    def score(asked: Asked) -> dict[str, Any]:
        scored = pw.score_log(
            asked.log, asked.targets, asked.folder / "scored.parquet", engine=_engine(asked)
        )
        options = _options(asked)
        found = pw.evaluate(*scored, **options)
        return found.to_dict()


def _printed(asked: Asked) -> dict[str, Any]:
    """Run the command line in this process, with options or a question file."""
    words = _words(asked)
    out, err, status = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["poolwise", *words, "--json"]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1 if end.code else 0
    if status == 2:
        if not err.getvalue().startswith(("poolwise: ", "Usage: ")) or out.getvalue():
            raise Wrong(
                f"status 2 with this output: {out.getvalue()[:200]} {err.getvalue()[:200]}"
            )
        raise pw.PoolwiseError(err.getvalue())
    if status or err.getvalue():
        raise Wrong(f"status {status}: {err.getvalue()[:300]}")
    found: dict[str, Any] = json.loads(out.getvalue(), parse_constant=_no_number)
    return found


def _no_number(text: str) -> float:
    raise Wrong(f"{text} is not JSON")


def _words(asked: Asked) -> list[str]:
    """Return the arguments of `poolwise evaluate`, or those of a question file."""
    log, combination = asked.log, asked.combination
    options: dict[str, Any] = {
        "reward": log.reward,
        "logger": log.logger,
        "propensity": log.propensity,
        "propensities": log.propensities,
        "target": dict(asked.targets),
        "cluster": log.cluster,
        "period": log.period,
        "trained_on": {k: v[0] for k, v in log.trained_on.items()},
        "on_fault": log.on_fault,
        "reward_range": log.reward_range,
        "action": log.action,
        "eligible": log.eligible,
        "log_probabilities": log.log_probabilities,
        "densities": log.densities,
        "baseline": asked.baseline,
        "interval": combination["interval"],
        "by": _options(asked).get("by"),
        "engine": "spark" if combination["source"] == "spark" else None,
    }
    if combination["estimator"] != "default":
        options["estimator"] = [combination["estimator"]]
    given = {name: value for name, value in options.items() if value not in (None, {}, False)}
    if combination["verb"] == "question":
        return ["evaluate", _question_file(asked, given)]
    words = ["evaluate", str(log.source)]
    for name, value in given.items():
        words += _option(name, value)
    return words


def _option(name: str, value: Any) -> list[str]:  # noqa: ANN401 - any value of an option
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return [flag]
    if isinstance(value, dict):
        return [w for k, v in value.items() for w in (flag, f"{k}={v}")]
    if isinstance(value, list):
        return [w for v in value for w in (flag, str(v))]
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return [flag, text]


def _question_file(asked: Asked, given: Mapping[str, Any]) -> str:
    lines = [f"log = {json.dumps(asked.log.source)}"]
    tables = []
    plurals = {"target": "targets", "estimator": "estimators"}
    for name, value in given.items():
        key = plurals.get(name, name)
        if isinstance(value, dict):
            pairs = [f"{json.dumps(str(k))} = {json.dumps(v)}" for k, v in value.items()]
            tables += [f"[{key}]", *pairs]
        else:
            shown = list(value) if isinstance(value, tuple) else value
            lines.append(f"{key} = {json.dumps(shown)}")
    path = asked.folder / "question.toml"
    path.write_text("\n".join([*lines, *tables]), encoding="utf-8")
    return str(path)
