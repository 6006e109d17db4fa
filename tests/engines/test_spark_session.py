"""What Spark lacks is named at once: a master, a server, a Python, a version of poolwise."""

from __future__ import annotations

import pickle
import socket
import sys
from typing import TYPE_CHECKING

import pytest

import poolwise
from poolwise.engines import spark_session
from poolwise.engines.spark import Spark
from poolwise.engines.spark_session import SameVersion, first_line, spark_errors
from poolwise.errors import EngineError, SourceError, UsageError
from poolwise.log.log import Log
from tests.support.messages import refused

if TYPE_CHECKING:
    from poolwise.errors import PoolwiseError

pytest.importorskip("pyspark", reason="sessions need pyspark: poolwise[spark]")

LOG = Log("SELECT 1 AS reward", reward="reward", propensity="1")


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the session of another test."""
    monkeypatch.setattr(spark_session, "_running", lambda: None)


def opened(master: str) -> None:
    with Spark(master=master).open(LOG, {"target": "1"}):
        pass


def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def test_a_master_that_does_not_answer_is_named_at_once() -> None:
    with refused(EngineError):
        opened(f"spark://127.0.0.1:{closed_port()}")


def test_one_of_several_masters_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    places = f"spark://127.0.0.1:{closed_port()},127.0.0.1:{closed_port()}"
    with pytest.raises(EngineError, match=r"refused.*; .*refused"):
        opened(places)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = f"{places},127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UsageError, match="Java"):  # the next requirement
            opened(answering)


def test_an_address_of_no_known_kind_is_refused() -> None:
    for master in ("nonsense", "localhost:7077", "sc://"):
        with refused(UsageError):
            opened(master)


class FakeClient:
    host = "10.0.0.1"


class FakeSession:
    """A session of Spark Connect, by the module of its class."""

    __module__ = "pyspark.sql.connect.session"
    client = FakeClient()


def test_a_session_of_spark_connect_that_runs_is_not_mistaken_for_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = FakeSession()
    monkeypatch.setattr(spark_session, "_running", lambda: running)
    with spark_session.running_session("") as found:
        same: object = found
    assert same is running
    with refused(UsageError):  # perhaps of another port or user
        opened("sc://10.0.0.1:443/;token=secret")


def translated(text: str) -> PoolwiseError:
    """Return our error for Spark's."""
    from pyspark.errors import PySparkException

    with (
        pytest.raises((EngineError, SourceError)) as caught,
        spark_errors("a query"),
    ):
        raise PySparkException(text)
    return caught.value


def trace(cause: str) -> str:
    return f"An error occurred while calling o63.collect.\n: {cause}\n\tat org.apache.spark.x"


def test_the_cause_of_a_failed_worker_is_named() -> None:
    """Each text is Spark's own, shortened; tests/system/spark provokes them."""
    python = "{}.{}".format(*sys.version_info[:2])
    causes = {
        'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such '
        "file": "workers cannot run the Python './environment/bin/python'",
        "pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
        "different version: 3.9 than that in driver: 3.99, PySpark cannot": "workers run "
        f"Python 3.9, and this process has Python {python}",
        "ModuleNotFoundError: No module named 'numpy'": "Python without the module 'numpy'",
        "pyspark.errors.PySparkImportError: [PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be "
        "installed": "without the package PyArrow",
        "RuntimeError: poolwise of another version: 0.0.1": "workers have poolwise 0.0.1",
        "SparkException: \nError from python worker:\n  pyenv: python3.10: command not found\n"
        "  It exists elsewhere\nPYTHONPATH was:\n  /": "(pyenv: python3.10: command not found)",
        "SparkException: \nError from python worker:\n  Traceback (most recent call last):\n"
        "    File 'x'\n  SyntaxError: invalid\nPYTHONPATH was:\n  /": "(SyntaxError: invalid)",
    }
    for cause, named in causes.items():
        error = str(translated(trace(f"org.apache.spark.SparkException: Job aborted: {cause}")))
        assert named in error
        assert "PYSPARK_PYTHON" in error  # what to do


def test_the_cause_is_the_line_of_the_exception() -> None:
    plain = "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."
    assert first_line(RuntimeError(trace(plain))) == plain
    remote = 'status = UNAVAILABLE\n\tdetails = "failed to connect"\n'
    assert first_line(RuntimeError(remote)) == "failed to connect"


def test_what_spark_does_not_read_is_said_with_what_to_do() -> None:
    header = "SparkException: Encountered error.\nCaused by: CSV header does not conform to"
    assert "write them alike" in str(translated(header))
    assert "microseconds" in str(translated("Illegal Parquet type: INT64 (TIMESTAMP(NANOS,"))


def test_work_is_not_done_by_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = pickle.dumps((SameVersion(), "work"))
    assert pickle.loads(sent)[1] == "work"  # noqa: S301 - our own
    monkeypatch.setattr(spark_session, "__version__", "0.0.1")
    with pytest.raises(RuntimeError, match=r"another version: 0\.0\.1"):
        pickle.loads(sent)  # noqa: S301 - our own
    assert poolwise.__version__ != "0.0.1"
