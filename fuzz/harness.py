"""Shared code of the fuzz targets: start, seeds, and the definition of a finding.

A `PoolwiseError` is a valid outcome.  Any other exception, or output that is not JSON, is a
finding: atheris writes the input to the current folder and stops.  Keep it as a test.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from poolwise.evaluation.results import Evaluation

SECONDS = "600"
SEEDS = 40  # seeds: long ones, since short ones soon reduce to the simplest case
OPTIONS = (
    "-len_control=0",
    "-max_len=4096",
    "-rss_limit_mb=4096",
    "-timeout=60",
    "-print_final_stats=1",
)


def run(one_input: Callable[[bytes], None]) -> None:
    """Fuzz for ten minutes, or for the seconds in the first argument."""
    import atheris

    seconds, *rest = sys.argv[1:] or [SECONDS]
    warnings.simplefilter("error")  # a warning would reach the user
    with tempfile.TemporaryDirectory() as corpus:
        for place in range(SEEDS):
            (Path(corpus) / str(place)).write_bytes(random.Random(place).randbytes(1_000))  # noqa: S311 - seeds
        atheris.Setup(
            [sys.argv[0], *OPTIONS, f"-max_total_time={seconds}", *rest, corpus], one_input
        )
        atheris.Fuzz()


def instrument(*modules: str) -> None:
    """Instrument these modules for branch coverage; call before they are imported."""
    import atheris

    with atheris.instrument_imports(include=list(modules)):
        for module in modules:
            __import__(module)


def small_log() -> pa.Table:
    """Return twenty rows of two loggers, a seed of the inputs."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(0)
    probs = rng.uniform(0.2, 0.9, (20, 3))
    labels = np.array(["a", "b"])[np.arange(20) % 2]
    own = np.where(labels == "a", probs[:, 0], probs[:, 1])
    columns = {f"p_{label}": probs[:, k] for k, label in enumerate("ab")}
    rewards = {"logger": labels, "reward": rng.normal(1, 1, 20), "p": own}
    return pa.table({**rewards, **columns, "t": probs[:, 2]})


def check_answer(found: Evaluation) -> None:
    """Check that the result is JSON without NaN."""
    json.loads(found.to_json(), parse_constant=refuse)


def refuse(text: str) -> NoReturn:
    """Reject NaN and Infinity, which standard JSON does not have."""
    raise AssertionError(f"{text} in an answer")
