"""Evaluations that the tests of the report share."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from poolwise import Log, evaluate
from poolwise.bundled import TARGETS, digits_log, digits_truth
from tests.reference import log_of, random_table

if TYPE_CHECKING:
    from poolwise.result import Evaluation

SCRIPT = "<script>alert(1)</script>"
DROP = "'; drop table logs --"
LONG = "a very long name of a logger that goes on and on without an end, as some do"


@cache
def demo() -> Evaluation:
    """The bundled log."""
    return evaluate(digits_log(), TARGETS, truth=digits_truth())


@cache
def twenty() -> Evaluation:
    """Twenty targets on two logs."""
    table = random_table(np.random.default_rng(60), {"a": 600, "b": 400})
    return evaluate(log_of(table), {f"t{k:02d}": f"t * {0.5 + k / 40}" for k in range(20)})


@cache
def grave() -> Evaluation:
    """Wrong probabilities, drift, and names that would like to be more than names."""
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
