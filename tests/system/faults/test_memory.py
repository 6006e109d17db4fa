"""512 MB for DuckDB and twenty targets: evaluation finishes for every source of the log.

The full size is 1e7 rows, some 2 GB of Parquet; with POOLWISE_LARGE=1 the test makes them.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.support.child import Child, write_log

if TYPE_CHECKING:
    from pathlib import Path

LARGE = os.environ.get("POOLWISE_LARGE") == "1"
ROWS = 10_000_000 if LARGE else 200_000
TARGETS = 20
MOST_MEMORY = 2_000  # MB of the whole process: DuckDB's, the kernels' workspaces, Python

EVALUATION = """
import json, resource, sys
import poolwise as pw
from poolwise.engines.duckdb import DuckDB

log = pw.Log(
    sys.argv[1], reward="reward", logger="logger", propensity="p",
    propensities={"a": "p_a", "b": "p_b"}, cluster=sys.argv[2] or None,
)
targets = {"new": "t", **{f"new {k}": f"t_{k}" for k in range(1, int(sys.argv[3]))}}
try:
    found = pw.evaluate(
        log, targets, ["naive", "balanced"], engine=DuckDB(memory_limit="512MB"),
        which_logs=False,
    )
except pw.PoolwiseError as error:
    print(json.dumps({"error": str(error)}))
    sys.exit()
values = {name: found[name].estimates["balanced"].value for name in targets}
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
print(json.dumps({"rows": sum(found.rows.values()), "values": values, "memory": memory}))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("log") / "log.parquet"
    write_log(file, ROWS, TARGETS)
    return file


@pytest.mark.timeout(900 if LARGE else 120)
@pytest.mark.parametrize("way", ["file", "select"])
def test_half_a_gigabyte_is_enough(path: Path, tmp_path: Path, way: str) -> None:
    child = Child(tmp_path)
    source = str(path) if way == "file" else f"SELECT * FROM '{path}' WHERE reward >= 0"
    running = child.start(EVALUATION, [source, "", str(TARGETS)])
    ended = child.end(running, timeout=900)
    assert (ended.status, ended.err, ended.left) == (0, "", ())
    found = json.loads(ended.out)
    assert found["rows"] == ROWS
    assert len(found["values"]) == TARGETS
    # rewards average 1 whatever is played; a weight averages E[t] E[2 / (p_a + p_b)], nearly 1
    assert all(0.95 < value < 1.15 for value in found["values"].values())
    assert found["memory"] < MOST_MEMORY


@pytest.mark.timeout(900 if LARGE else 120)
def test_clusters_finish_or_say_why_not(path: Path, tmp_path: Path) -> None:
    """Buckets are aggregated by DuckDB itself: it spills, or one error says that it cannot."""
    child = Child(tmp_path)
    running = child.start(EVALUATION, [str(path), "action", "4"])
    ended = child.end(running, timeout=900)
    assert (ended.status, ended.err, ended.left) == (0, "", ())
    found = json.loads(ended.out)
    if "error" in found:
        assert "memory" in found["error"].lower()
    else:
        assert found["rows"] == ROWS
