"""A real Spark cluster on this machine: a master and two workers, started for the tests.

The workers' Python first imports a small module that can slow down reading and records the
process of each read, so that a test can end a worker in the middle of a run.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from poolwise.engines.spark import Spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

PATIENCE = 60.0  # seconds that a loaded machine may take to start a Java process
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # these processes do not live long
ROOT = Path(__file__).parents[3]
SLOW = """\
import os, time, uuid
from pathlib import Path

folder = Path(os.environ["POOLWISE_TEST_FOLDER"])

def slowed(together):
    def slow(kernel, batches):
        if (folder / "slow").exists():
            (folder / "read" / f"{os.getppid()}-{uuid.uuid4()}").touch()
            time.sleep(0.25)
        return together(kernel, batches)
    return slow

from poolwise.engines.kernel import Kernel
Kernel.together = slowed(Kernel.together)
"""


def wait_until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            pytest.fail(f"waited {PATIENCE:g} s for {what}")
        time.sleep(0.05)


def says(told: Path, text: str) -> bool:
    return text in told.read_text("utf-8")


@dataclass
class Cluster:
    """A master and its workers, each a process that this object started."""

    folder: Path
    stack: ExitStack
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    port: int = 0
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self, workers: int = 2) -> None:
        (self.folder / "read").mkdir()
        (self.folder / "sitecustomize.py").write_text(SLOW, "utf-8")
        self.port = free_port()
        told = self._run("master.Master", "--port", str(self.port), "--webui-port", "0")[1]
        wait_until(partial(says, told, "I have been elected leader"), "the master")
        self.start_workers(workers)

    def start_workers(self, number: int = 1) -> None:
        size = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
        started = [self._run("worker.Worker", *size, self.master) for _ in range(number)]
        for process, told in started:
            wait_until(partial(says, told, "Successfully registered"), "a worker")
            self.workers.append(process)

    @property
    def reads(self) -> list[str]:
        """Recorded reads, each with its process."""
        return sorted(path.name for path in (self.folder / "read").iterdir())

    @contextmanager
    def slowly(self) -> Iterator[None]:
        """Slow down the workers' reads and record them."""
        for path in (self.folder / "read").iterdir():
            path.unlink()
        (self.folder / "slow").touch()
        try:
            yield
        finally:
            (self.folder / "slow").unlink()

    def kill_worker(self) -> None:
        """Kill a worker and its executor, as a lost machine does."""
        worker = self.workers.pop(0)
        lost = [
            psutil.Process(worker.pid),
            *psutil.Process(worker.pid).children(recursive=True),
        ]
        for process in lost:
            process.kill()
        worker.wait()

    def start_connect(self) -> None:
        """Start a server of Spark Connect, which has one worker of its own."""
        self.port = free_port()
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.extraJavaOptions": QUICK,
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.ui.enabled": "false",
        }
        chosen = [part for item in settings.items() for part in ("--conf", "=".join(item))]
        chosen += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        submit = ("--master", "local[1]", *chosen, "spark-internal")
        _, told = self._started("SparkSubmit", *submit, memory="700m")
        wait_until(partial(says, told, "Spark Connect server started"), "Spark Connect")

    def _run(self, name: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        return self._started(name, "--host", "127.0.0.1", *arguments)

    def _started(
        self, name: str, *arguments: str, memory: str = "256m"
    ) -> tuple[subprocess.Popen[bytes], Path]:
        import pyspark

        home = Path(pyspark.__file__).parent
        told = self.folder / f"{name}-{len(self.workers)}-{time.monotonic_ns()}.txt"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        extra = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(self.folder),
            "SPARK_WORKER_DIR": str(self.folder),
            "SPARK_DAEMON_MEMORY": memory,
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
        }
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=self.folder,
            env={**self.environment, **extra},
            stdout=self.stack.enter_context(told.open("wb")),
            stderr=subprocess.STDOUT,
        )
        self.stack.callback(end, process)
        return process, told


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that we started, and those that it started."""
    if process.poll() is not None:
        return
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:
        if child.is_running():
            child.kill()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def need_spark() -> None:
    """Skip a test that starts Spark where Spark cannot start."""
    pytest.importorskip("pyspark", reason="Spark's tests need pyspark: poolwise[spark]")
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        pytest.skip("Spark's tests need Java 17 or newer")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_spark()
    with ExitStack() as stack:
        found = Cluster(tmp_path_factory.mktemp("spark"), stack)
        found.start()
        yield found


@pytest.fixture(scope="session")
def session(cluster: Cluster) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.extraJavaOptions": QUICK,
        "spark.executor.memory": "700m",
        "spark.executorEnv.POOLWISE_TEST_FOLDER": str(cluster.folder),
        "spark.executorEnv.PYTHONPATH": f"{cluster.folder}:{ROOT / 'src'}:{ROOT}",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(cluster.folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(cluster.master).appName("tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        for name, value in settings.items():
            builder = builder.config(name, value)
        started = builder.getOrCreate()
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()


@pytest.fixture
def spark(session: SparkSession) -> Spark:
    return Spark(session)
