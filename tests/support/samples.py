"""Evaluations that the tests of the report share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from poolwise import Log, Metric, decide, evaluate
from poolwise.formats.labelled import TARGETS, digits_log, digits_path, digits_truth

if TYPE_CHECKING:
    from poolwise.evaluation.decide import Decision
    from poolwise.evaluation.results import Evaluation

SCRIPT = "<script>alert(1)</script>"
DROP = "'; drop table logs --"
LONG = "a very long name of a logger that goes on and on without an end, as some do"


@cache
def demo() -> Evaluation:
    """The bundled log."""
    return evaluate(digits_log(), TARGETS, truth=digits_truth(), which_logs=True)


@cache
def decision() -> Decision:
    """The bundled log: one candidate that may ship, one that must not, and a guardrail."""
    metrics = {
        "right": Metric("correct", primary=True),
        "sevens": Metric("(digit = 7)::INT", better="lower", guard="25%"),
    }
    targets = {**TARGETS, LONG: "p_medium"}
    return decide(digits_log(), targets, baseline="large", metrics=metrics)


@cache
def twenty() -> Evaluation:
    """Twenty targets on few rows: some better, some not significantly, two identical."""
    rows = pq.read_table(digits_path()).to_pylist()[::40]
    log = replace(digits_log(), source=pa.Table.from_pylist(rows), context=())
    targets = {
        f"t{k:02d}": f"CASE WHEN pixels[{k + 25}] > 4 THEN p_candidate ELSE p_large END"
        for k in range(19)
    }
    return evaluate(log, {**targets, "t19": targets["t00"]})


@cache
def grave() -> Evaluation:
    """Wrong probabilities, drift, and names with markup."""
    rng = np.random.default_rng(61)
    counts = {SCRIPT: 300, DROP: 300, LONG: 20}
    logger = np.repeat(list(counts), list(counts.values()))
    total = len(logger)
    own = 10 ** rng.uniform(-3, 0, total)
    columns = {
        f"p{k}": np.where(logger == name, own, 10 ** rng.uniform(-3, 0, total))
        for k, name in enumerate(counts)
    }
    reward = rng.normal(1, 1, total) + 2 * (logger == SCRIPT)
    target = np.where(rng.random(total) < 0.7, 0, rng.uniform(0.3, 1, total))
    table = pa.table({"logger": logger, "reward": reward, "p": own, "t": target, **columns})
    log = Log(
        table,
        reward="reward",
        logger="logger",
        propensity="p",
        propensities={name: f"p{k}" for k, name in enumerate(counts)},
    )
    return evaluate(log, {SCRIPT: "t"})
