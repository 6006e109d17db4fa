"""Workers run the Python that they are given, in a packed environment or not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import venv
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest

import poolwise
from poolwise.engines.duckdb import DuckDB
from poolwise.engines.spark import Spark
from poolwise.errors import EngineError
from poolwise.evaluation.evaluate import evaluate
from tests.support.messages import refused
from tests.support.reference import assert_same, log_of, random_table
from tests.system.spark.conftest import ROOT, Cluster, need_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from poolwise.evaluation.results import Evaluation

TARGETS = {"target": "t"}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return random_table(np.random.default_rng(1), {"a": 60, "b": 40})


@pytest.fixture(params=["files", "frames"])
def source(request: pytest.FixtureRequest, table: pa.Table, tmp_path: Path) -> pa.Table | str:
    """A log that tasks read by themselves, or that Spark hands to them."""
    if request.param == "frames":
        return table
    pq.write_table(table, tmp_path / "log.parquet")
    return str(tmp_path / "log.parquet")


def ask(source: pa.Table | str, table: pa.Table, session: SparkSession) -> Evaluation:
    return evaluate(replace(log_of(table), source=source), TARGETS, engine=session)


def test_a_python_that_workers_lack_is_named(
    session: SparkSession,
    table: pa.Table,
    source: pa.Table | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session.sparkContext, "pythonExec", "/nowhere/bin/python")
    with refused(EngineError):
        ask(source, table, session)


def test_a_module_that_workers_lack_is_named(
    session: SparkSession,
    table: pa.Table,
    source: pa.Table | str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    monkeypatch.setattr(session.sparkContext, "pythonExec", python)
    with pytest.raises(EngineError, match=r"without the (module|package)"):
        ask(source, table, session)


def other_python() -> str:
    """A Python of another minor version, where scripts/matrix.sh looks for them."""
    for minor in {*range(10, 20)} - {sys.version_info.minor}:
        homes = Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")
        for python in (f"python3.{minor}", *map(str, sorted(homes))):
            found = shutil.which(python)
            works = [str(found), "-c", "pass"]  # a shim of pyenv may not
            if found and not subprocess.run(works, capture_output=True, check=False).returncode:
                return found
    pytest.skip("there is no Python of another minor version")


def test_another_minor_version_of_python_is_named(
    session: SparkSession,
    table: pa.Table,
    source: pa.Table | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python = other_python()
    monkeypatch.setattr(session.sparkContext, "pythonExec", python)
    with pytest.raises(EngineError, match=r"run Python 3\.\d+, and this process has Python"):
        ask(source, table, session)


def test_another_version_of_poolwise_is_named(
    session: SparkSession,
    table: pa.Table,
    source: pa.Table | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here another version asks; workers have the one of the tests."""
    monkeypatch.setattr("poolwise.engines.spark_session.__version__", "0.0.1")
    with pytest.raises(EngineError, match=f"have poolwise {poolwise.__version__}, and"):
        ask(source, table, session)


def test_a_thread_uses_the_session_that_another_one_started(
    session: SparkSession, table: pa.Table
) -> None:
    found: list[Evaluation] = []
    log = log_of(table)

    def run() -> None:
        found.append(evaluate(log, TARGETS, engine=Spark(), interval="student"))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert_same(found[0], evaluate(log, TARGETS, engine=DuckDB(), interval="student"))
    assert session.range(3).count() == 3  # it is left running


# A packed environment.


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with poolwise and its kernel; its dependencies are those of the tests.

    A whole environment has half a gigabyte, which takes minutes to pack.
    """
    venv_pack = pytest.importorskip("venv_pack", reason="venv-pack packs environments")
    folder = tmp_path_factory.mktemp("packed")
    home = folder / "home"
    venv.create(home, with_pip=False)
    (site,) = home.glob("lib/python*/site-packages")
    own = Path(poolwise.__file__).parent
    shutil.copytree(own, site / "poolwise", ignore=shutil.ignore_patterns("__pycache__"))
    others = [path for path in sys.path if path.endswith("site-packages")]
    (site / "sitecustomize.py").write_text(f"import sys; sys.path += {others!r}", "utf-8")
    archive = folder / "environment.tar.gz"
    venv_pack.pack(prefix=str(home), output=str(archive), verbose=False)
    shutil.rmtree(home)
    return archive


@pytest.fixture(scope="module")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose machines have no poolwise."""
    need_spark()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    with ExitStack() as stack:
        found = Cluster(tmp_path_factory.mktemp("bare"), stack, environment)
        found.start(workers=1)
        yield found


def command(cluster: Cluster, path: Path, archive: str) -> subprocess.CompletedProcess[str]:
    """Run the command as the documentation says."""
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "700m",
        "spark.archives": archive,
    }
    submit = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    roles = ["--logger", "logger", "--reward", "reward", "--propensities", "a=p_a,b=p_b"]
    asked = ["evaluate", str(path), *roles, "--target", "target=t", "--json"]
    code = "from poolwise.cli.commands import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *asked, "--engine", "spark", "--master", cluster.master],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=path.parent,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
            ),
            "PYSPARK_PYTHON": "./environment/bin/python",
            "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell",
        },
    )


@pytest.mark.slow
def test_a_packed_environment_brings_poolwise_to_workers(
    bare_cluster: Cluster, packed: Path, table: pa.Table, tmp_path: Path
) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(table, path, row_group_size=20)
    done = command(bare_cluster, path, f"{packed}#environment")
    assert done.returncode == 0, done.stderr[-4_000:]
    (target,) = json.loads(done.stdout)["targets"]
    found = {line["estimator"]: line["value"] for line in target["estimates"]}
    expected = evaluate(replace(log_of(table, propensity=None), source=str(path)), TARGETS)
    values = {name: e.value for name, e in expected["target"].estimates.items()}
    assert found == pytest.approx(values, rel=1e-9)
