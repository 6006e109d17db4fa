"""Sessions of Spark: start one or use the one that runs, and translate Spark's errors.

A session is classic, in this process, or a client of a Spark Connect server.  Both send our
functions to workers, whose Python must have this version of poolwise.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from poolwise import __version__
from poolwise.errors import (
    EngineError,
    MissingExtraError,
    PolicyError,
    PoolwiseError,
    SourceError,
    UsageError,
    optional_module,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

MASTER = re.compile(r"local(\[.*\])?|yarn|(spark|k8s|sc)://.+")
CONNECT = "sc://"  # of a Spark Connect server
CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"  # PySpark sets it, and never unsets it
ANSWER_SECONDS = 10.0  # that a master may take to accept a connection
CONNECT_TRIES = 3  # of a Spark Connect server's first answer; Spark tries for ten minutes
POLICY_FAILED = "poolwise policy failed: "  # prefix of a worker's message
OTHER_VERSION = "poolwise of another version: "  # likewise
SESSION_ADVICE = {  # by a part of Spark's message
    "CSV header does not conform": "Spark reads CSV by position, and these files do not have "
    "the same columns in the same order: write them alike, or to Parquet.",
    "TIMESTAMP(NANOS": "Write times in microseconds, or start the session with "
    "spark.sql.legacy.parquet.nanosAsLong=true.",
}
THIS = f"this process has Python {{}}.{{}} and poolwise {__version__}".format(*sys.version_info)
LACKS = {  # what workers lack, by what Spark says
    r'Cannot run program "([^"]*)"': "cannot run the Python {!r}",
    r"\[PYTHON_VERSION_MISMATCH\].*?: (\d+\.\d+) ": "run Python {}, and {}",
    r"No module named '([\w.]+)'": "run a Python without the module {!r}",
    r"\[PACKAGE_NOT_INSTALLED\] (\w+)": "run a Python without the package {}",
    re.escape(OTHER_VERSION) + r"(\S+)": "have poolwise {}, and {}",
    r"Error from python worker:\s(.*?)\sPYTHONPATH was": "cannot start their Python ({})",
}
ENVIRONMENT = (
    "Workers need the same minor version of Python, the same version of poolwise and the "
    "modules of your policies: install them there, or ship a packed environment with "
    "`spark.archives`, and name its Python in PYSPARK_PYTHON before the session starts. Where "
    "neither is possible, `poolwise sql --dialect spark` prints a query that needs no Python"
)


@contextmanager
def running_session(master: str) -> Iterator[SparkSession]:
    """Use the session that is running, or start one and stop it at the end."""
    if master and not MASTER.fullmatch(master):
        raise UsageError(
            "master must be local, local[4], spark://host:7077, yarn, k8s://..., or "
            f"sc://host:15002 of a Spark Connect server, got {master!r}"
        )
    running = _running()
    if running is None:
        connected = CONNECT_MODE in os.environ
        try:
            session = _start_session(master)
            try:
                yield session
            finally:
                session.stop()
        finally:
            if not connected:
                os.environ.pop(CONNECT_MODE, None)
        return
    remote = is_remote(running)
    where = CONNECT + running.client.host if remote else running.sparkContext.master
    if master and (remote or master != where):
        raise UsageError(
            f"a Spark session is running at {where!r}: leave the master out to use it, or stop "
            f"it before starting one at {_hide_parameters(master)!r}"
        )
    yield running


def is_remote(session: SparkSession) -> bool:
    """Return True for a session of Spark Connect, which has DataFrames but no RDDs."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def _running() -> SparkSession | None:
    """Return the session of this thread, or the one that another thread started."""
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as reason:
        raise MissingExtraError("pyspark", "spark") from reason
    with suppress(PySparkRuntimeError):  # there is none
        running: SparkSession = SparkSession.active()
        return running
    return None


def _start_session(master: str) -> SparkSession:
    """Start a session, of Spark Connect if the master or SPARK_REMOTE says so."""
    address = master or os.environ.get("SPARK_REMOTE", "")
    remote = address.startswith(CONNECT)
    if address.startswith("spark://"):
        _refuse_silent(address)
    if not (remote or os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise UsageError(
            "Spark needs Java, which was not found: install Java 17 or newer, or set JAVA_HOME"
        )
    chosen = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = chosen or sys.executable  # workers run this Python
    try:
        return _connect_session(address) if remote else _classic(master)
    except error_classes() as reason:
        where = f" at {_hide_parameters(address)!r}" if address else ""
        raise UsageError(f"Spark does not start{where}: {first_line(reason)}") from reason
    finally:
        if chosen is None:
            del os.environ["PYSPARK_PYTHON"]


def _classic(master: str) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("poolwise").config("spark.ui.enabled", "false")
    chosen = builder.master(master) if master else builder
    # an interrupt waits for the start: it would leave a JVM that nothing ends
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(chosen.getOrCreate).result()


def _connect_session(address: str) -> SparkSession:
    """Open a session at a Spark Connect server, and have it answer once."""
    from pyspark.sql import SparkSession

    for module in ("grpc", "grpc_status"):  # without them PySpark may end the process
        optional_module(module, "the client of Spark Connect", "spark")
    session: SparkSession = SparkSession.builder.remote(address).getOrCreate()
    from pyspark.sql.connect.client.retries import DefaultPolicy

    client: Any = session.client
    patient = client.get_retry_policies()
    client.set_retry_policies([DefaultPolicy(max_retries=CONNECT_TRIES)])
    try:
        with warnings.catch_warnings():  # what PySpark warns of, we raise
            warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")
            _ = session.version
    except error_classes() as reason:
        session.stop()
        raise _no_answer(address, first_line(reason)) from reason
    client.set_retry_policies(patient)
    return session


def _refuse_silent(master: str) -> None:
    """Refuse masters of which none accepts a connection: Spark would try for a minute."""
    reasons = []
    for place in master.removeprefix("spark://").split(","):
        url = urlsplit(f"spark://{place}")
        try:
            address = (url.hostname or "", url.port or 7077)
            socket.create_connection(address, ANSWER_SECONDS).close()
        except (OSError, ValueError) as reason:
            reasons.append(str(reason))
        else:
            return
    raise _no_answer(master, "; ".join(reasons))


def _no_answer(address: str, reason: str) -> EngineError:
    what = "Spark Connect server" if address.startswith(CONNECT) else "master"
    text = (
        f"the {what} at {_hide_parameters(address)!r} does not answer ({reason.rstrip('.')}): "
    )
    return EngineError("Spark", "", RuntimeError(text + "start it, or correct the address"))


def _hide_parameters(address: str) -> str:
    """Return an address without its parameters, among which may be a token.

    >>> _hide_parameters("sc://host:443/;token=secret")
    'sc://host:443'
    """
    return address.partition("/;")[0]


# Errors.


def error_classes() -> tuple[type[Exception], ...]:
    """The exceptions of Spark, of its bridge to Java and of their connection."""
    from pyspark.errors import PySparkException

    bridge = sys.modules.get("py4j.protocol")  # a client of Spark Connect has none
    return (PySparkException, OSError, *([] if bridge is None else [bridge.Py4JError]))


@contextmanager
def spark_errors(text: str, source: str = "") -> Iterator[None]:
    """Raise Spark's errors as ours, with one line in place of two languages' traces.

    Args:
        text: The query, or the work of tasks.
        source: The source that is opened, if any.
    """
    try:
        yield
    except error_classes() as reason:
        line, whole = first_line(reason), str(reason)
        advice = next((a for sign, a in SESSION_ADVICE.items() if sign in whole), "")
        if source or advice:
            raise SourceError(source or "the files", f"{line} {advice}".strip()) from reason
        raise _from_worker(whole) or EngineError("Spark", text, RuntimeError(line)) from reason


def _from_worker(text: str) -> PoolwiseError | None:
    """Return the error of a worker before or while it ran our code."""
    if failure := re.search(re.escape(POLICY_FAILED) + r"(\{.*\})", text):
        return PolicyError(**json.loads(failure.group(1)))
    for pattern, cause in LACKS.items():
        if found := re.search(pattern, text, re.DOTALL):
            lines = found.group(1).strip().splitlines()
            named = lines[-1 if lines[0].startswith("Traceback") else 0].strip()
            message = f"its workers {cause.format(named, THIS)}. {ENVIRONMENT}"
            return EngineError("Spark", "", RuntimeError(message))
    return None


def first_line(reason: Exception) -> str:
    r"""The line of Spark's message that names the cause.

    >>> first_line(RuntimeError("Job aborted:\n  Lost task 0\nValueError: no\n\tat org.x"))
    'ValueError: no'
    >>> first_line(RuntimeError("[TABLE_NOT_FOUND] no table.\n'Project [*]"))
    '[TABLE_NOT_FOUND] no table.'
    >>> first_line(RuntimeError("An error occurred.\n: java.lang.IllegalStateException: no"))
    'java.lang.IllegalStateException: no'
    """
    if details := re.search(r'^\s*details = "(.*)"$', str(reason), re.MULTILINE):
        return details.group(1)  # of Spark Connect
    lines = [line.strip().removeprefix(": ") for line in str(reason).splitlines()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    python = [line for line in raised if not re.match(r"(java|org|scala|py4j)\.", line)]
    return (python or raised or [*filter(None, lines)] or [type(reason).__name__])[0]


class SameVersion:
    """First argument of work for workers: fails where another version of poolwise loads it."""

    def __reduce__(self) -> tuple[Callable[[str], SameVersion], tuple[str]]:
        return _same_version, (__version__,)


def _same_version(version: str) -> SameVersion:
    if version != __version__:
        raise RuntimeError(OTHER_VERSION + __version__)
    return SameVersion()
