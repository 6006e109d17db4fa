"""Spark Connect: a server of its own, and clients that have no Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from poolwise.engines.duckdb import DuckDB
from poolwise.engines.spark import Spark
from poolwise.engines.spark_session import CONNECT_MODE
from poolwise.errors import EngineError, PolicyError, UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.learning.learn import learn
from tests.support.learning import segments, segments_log
from tests.support.reference import assert_same, log_of, random_table
from tests.system.spark.conftest import ROOT, Cluster, free_port, need_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from poolwise.evaluation.results import Evaluation
    from poolwise.log.log import Log
    from poolwise.log.policy import Batch

TARGETS = {"target": "t", "half": "t / 2"}
PYTHONPATH = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_spark()
    for module in ("grpc", "grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(module, reason=f"Spark Connect needs {module}: pyspark[connect]")
    with ExitStack() as stack:
        paths = {"PYTHONPATH": PYTHONPATH, "PYSPARK_PYTHON": sys.executable}
        found = Cluster(tmp_path_factory.mktemp("connect"), stack, {**os.environ, **paths})
        found.start_connect()
        yield f"sc://127.0.0.1:{found.port}"


def in_a_process(function: str, address: str, folder: Path) -> None:
    """Run a function of this module alone: a process has classic sessions or remote ones.

    It has no Java, as the machine of a client of Spark Connect may have none.
    """
    environment = {k: v for k, v in os.environ.items() if k not in {"JAVA_HOME", "PATH"}}
    environment |= {"PYTHONPATH": PYTHONPATH, "PATH": "/nowhere"}
    code = f"from {__name__} import {function} as run; run({address!r}, {str(folder)!r})"
    code += "; print('done')"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240, env=environment
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-4_000:]


def test_a_session_of_spark_connect_gives_the_numbers_of_duckdb(
    address: str, tmp_path: Path
) -> None:
    in_a_process("use_a_session", address, tmp_path)


def test_a_session_of_spark_connect_is_started_and_stopped(
    address: str, tmp_path: Path
) -> None:
    in_a_process("start_sessions", address, tmp_path)


def test_the_command_connects_to_a_server(address: str, tmp_path: Path) -> None:
    pq.write_table(logged(), tmp_path / "log.parquet")
    roles = ["--logger", "logger", "--reward", "reward", "--propensities", "a=p_a,b=p_b"]
    asked = [str(tmp_path / "log.parquet"), *roles, "--target", "target=t", "--json"]
    engine = ["--engine", "spark", "--master", address]
    code = "from poolwise.cli.commands import main; main()"
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    here, there = (
        subprocess.run(
            [sys.executable, "-c", code, "evaluate", *asked, *chosen, "--interval", "student"],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env=environment,
        )
        for chosen in ((), engine)
    )
    assert json.loads(there.stdout)["targets"] == json.loads(here.stdout)["targets"]


# What runs in processes of its own.


def logged() -> pa.Table:
    table = random_table(np.random.default_rng(1), {"a": 300, "b": 200})
    return table.append_column("item", [np.random.default_rng(2).integers(0, 2, 500)])


def asked(log: Log, engine: Any) -> Evaluation:  # noqa: ANN401 - a session, a name or an engine
    # slices follow the order of the rows, which Spark changes
    return evaluate(log, TARGETS, engine=engine, interval="student")


def use_a_session(address: str, folder: str) -> None:
    from pyspark.sql import SparkSession

    session: SparkSession = SparkSession.builder.remote(address).getOrCreate()
    table = logged()
    log = log_of(table, action="item")
    expected = asked(log, DuckDB())
    for source in _sources(session, table, Path(folder)):
        logger = None if isinstance(source, dict) else "logger"
        assert_same(asked(replace(log, source=source, logger=logger), session), expected)
    assert_same(asked(log, "spark"), expected)  # the session that runs
    assert_same(asked(replace(log, source=session.createDataFrame(table)), None), expected)
    _score_policies(session, log)
    few: dict[str, Any] = {"strengths": [1.0], "smoothing": [0.8], "folds": 2}
    rows = segments(300)
    learned = learn(segments_log(session.createDataFrame(rows)), **few)
    assert learned.estimate.value == pytest.approx(
        learn(segments_log(rows), **few).estimate.value, abs=1e-12
    )
    with pytest.raises(UsageError, match="a Spark session is running"):
        asked(log, Spark(master=address))
    _use_in_a_thread(log)
    assert session.range(3).count() == 3  # it is left running


def _sources(session: SparkSession, table: pa.Table, folder: Path) -> list[Any]:
    pq.write_table(table, folder / "log.parquet", row_group_size=100)
    csv.write_csv(table, folder / "log.csv")
    session.createDataFrame(table).createOrReplaceTempView("logs")
    parts = {k: table.filter(pc.equal(table["logger"], k)).drop(["logger"]) for k in "ab"}
    files = [str(folder / "log.parquet"), str(folder / "log.csv")]
    return [table, *files, "SELECT * FROM logs", parts]


def _score_policies(session: SparkSession, log: Log) -> None:
    def by_item(batch: Batch) -> Any:  # noqa: ANN401 - an array
        return np.where(batch.action == 1, 0.75, 0.25)

    targets: Any = {"target": by_item}
    expected = evaluate(log, targets, engine=DuckDB(), interval="student")
    found = evaluate(log, targets, engine=session, interval="student")
    assert_same(found, expected)
    too_large: Any = {"target": lambda batch: np.full(len(batch), 1.5)}
    with pytest.raises(PolicyError):
        evaluate(log, too_large, engine=session)


def _use_in_a_thread(log: Log) -> None:
    """A thread has no active session of its own: it uses the one that runs."""
    found: list[Evaluation] = []
    thread = threading.Thread(target=lambda: found.append(asked(log, "spark")))
    thread.start()
    thread.join()
    assert found


def start_sessions(address: str, folder: str) -> None:
    from pyspark.sql import SparkSession

    log = log_of(logged())
    assert_same(asked(log, Spark(master=address)), asked(log, DuckDB()))
    assert CONNECT_MODE not in os.environ  # so that classic sessions can start
    with pytest.raises(EngineError, match="Spark Connect server at") as caught:
        asked(log, Spark(master=f"sc://127.0.0.1:{free_port()}/;token=secret"))
    assert "secret" not in str(caught.value)
    assert "refused" in str(caught.value)
    assert CONNECT_MODE not in os.environ
    os.environ["SPARK_REMOTE"] = address
    assert_same(asked(log, "spark"), asked(log, DuckDB()))
    del os.environ["SPARK_REMOTE"]
    with pytest.raises(UsageError, match="Java"):
        asked(log, Spark(master="local[1]"))
    assert SparkSession.getActiveSession() is None
    assert Path(folder).is_dir()
