"""Errors: pickled, copied, and raised through a process pool without a loss."""

from __future__ import annotations

import copy
import datetime as dt
import importlib
import multiprocessing
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FAULT = errors.Fault("the reward must be finite", "v1", 3, {"day": dt.date(2024, 1, 2)}, "Drop")
EXAMPLES = (
    errors.PoolwiseError("anything"),
    errors.UsageError("level must be below 1, got 2"),
    errors.ExpressionError("random()", "random()", "reward"),
    errors.SourceError("'a.csv'", "there is no such file"),
    errors.NotShownError("new > old", ["new is below old", "an alarm"]),
    errors.MissingColumnError({"clik": "reward"}, ["click", "p"]),
    errors.LogError([FAULT, errors.NO_ROWS]),
    errors.PolicyError("new", "returned NaN", [4, 7]),
    errors.ModelError("reward model", "could not be fitted"),
    errors.RefusedError("target-unlogged", "these logs say nothing about it"),
    errors.EngineError("DuckDB", "SELECT 1", ValueError("no")),
    errors.MissingExtraError("scikit-learn", "models"),
)


def pickled(error: BaseException) -> BaseException:
    restored: BaseException = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    return restored


def subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for part in kind.__subclasses__():
        yield from subclasses(part)


@pytest.mark.parametrize("again", [pickled, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_errors_are_pickled_and_copied_without_a_loss(
    error: BaseException, again: Callable[[BaseException], BaseException]
) -> None:
    error.add_note("while reading")
    same = again(error)
    assert type(same) is type(error)
    assert (str(same), same.args) == (str(error), error.args)
    assert vars(same) == vars(error)
    assert isinstance(same, ImportError) == isinstance(error, ImportError)
    assert getattr(same, "msg", None) == getattr(error, "msg", None)
    assert same is not error


def test_every_error_of_the_package_is_among_the_examples() -> None:
    for module in pkgutil.walk_packages(pw.__path__, "poolwise."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {k for k in subclasses(errors.PoolwiseError) if k.__module__.startswith("poolwise")}
    assert {type(error) for error in EXAMPLES} == ours


def evaluate_file(path: str) -> list[str]:
    log = pw.Log(path, reward="r", propensity="p")
    return [finding.code for finding in pw.evaluate(log, {"new": "p"}).findings]


def test_a_process_pool_returns_the_error_of_a_bad_row(tmp_path: Path) -> None:
    path = str(tmp_path / "log.parquet")
    pq.write_table(pa.table({"r": [1.0, float("nan")], "p": [0.5, 0.5]}), path)
    context = multiprocessing.get_context("spawn")  # threads do not survive a fork
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        error = pool.submit(evaluate_file, path).exception(timeout=60)
    assert isinstance(error, errors.LogError)
    assert [(fault.logger, fault.rows) for fault in error.faults] == [("log", 1)]
