"""Supply chain: dependencies, builds, pickles, and reports without rows."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from packaging.requirements import Requirement

import poolwise
from poolwise import Log, evaluate
from poolwise.report.page import save_charts

if TYPE_CHECKING:
    from types import ModuleType

    from poolwise.evaluation.results import Evaluation

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def licences() -> ModuleType:
    spec = importlib.util.spec_from_file_location("licences", ROOT / "scripts/licences.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_everything_that_poolwise_needs_is_permissive(licences: ModuleType) -> None:
    names = list(licences.needed("poolwise", []))
    assert {"duckdb", "numpy", "pyarrow", "sqlglot", "markupsafe"} <= set(
        names
    )  # the last by altair
    assert "pytest" not in names
    found = {name: licences.licence(name) for name in names}
    assert {k: v for k, v in found.items() if not licences.allowed(v)} == {}


@pytest.mark.parametrize(
    ("expression", "free"),
    [
        ("MIT", True),
        ("Apache-2.0 OR BSD-2-Clause", True),
        ("GPL-3.0-only OR MIT", True),
        ("BSD-3-Clause AND MIT AND Zlib", True),
        ("BSD-3-Clause AND GPL-3.0-only", False),
        ("(MIT OR Apache-2.0) AND AGPL-3.0-only", False),
        ("GPL-3.0-only", False),
        ("LGPL-2.1-or-later", False),
        ("Proprietary", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_a_licence_is_free_if_one_may_choose_it(
    licences: ModuleType, expression: str, *, free: bool
) -> None:
    assert licences.allowed(expression) is free


def test_an_unknown_licence_fails_the_check(
    licences: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert licences.main([]) == 0
    known = licences.licence
    monkeypatch.setattr(
        licences, "licence", lambda name: "Shareware" if name == "rich" else known(name)
    )
    assert licences.main([]) == 1
    assert capsys.readouterr().err == "licences: not known to be permissive: rich\n"


def test_every_dependency_has_a_lower_bound() -> None:
    """The lowest versions that scripts/matrix.sh installs must be declared."""
    extras = PROJECT["optional-dependencies"]
    listed = [*PROJECT["dependencies"], *(text for texts in extras.values() for text in texts)]
    wishes = [Requirement(text) for text in listed]
    unbounded = [
        str(wish)
        for wish in wishes
        if wish.name != "poolwise" and not any(s.operator == ">=" for s in wish.specifier)
    ]
    assert unbounded == []


@pytest.mark.parametrize("name", [p.name for p in sorted((ROOT / "scripts").glob("*.sh"))])
def test_the_scripts_are_bash(name: str) -> None:
    subprocess.run(["bash", "-n", ROOT / "scripts" / name], check=True)


def copy_of_the_tree(place: Path) -> Path:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not in a git checkout")
    command = [
        git,
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listing.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    return place


def built(tree: Path, **more: str) -> dict[str, Path]:
    """The wheel and the source archive of a tree, by their endings."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "315532800", **more}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tree / "dist")]
    subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)
    return {path.suffix: path for path in (tree / "dist").iterdir()}


def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    one = copy_of_the_tree(tmp_path / "one")
    two = shutil.copytree(one, tmp_path / "two")
    for path in two.rglob("*"):  # other times, other rights
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (1_000_000_000, 1_000_000_000))
    first, second = built(one), built(two)
    assert sorted(first) == [".gz", ".whl"]
    for ending, path in first.items():
        digests = [hashlib.sha256(p.read_bytes()).hexdigest() for p in (path, second[ending])]
        assert digests[0] == digests[1], path.name
    names = zipfile.ZipFile(first[".whl"]).namelist()
    assert "poolwise/py.typed" in names
    assert all(name.startswith(("poolwise/", "poolwise-")) for name in names)
    compiled = [name for name in names if name.endswith((".dll", ".dylib", ".so"))]
    assert [name.rpartition(".")[0] for name in compiled] == ["poolwise/engines/native/kernel"]
    assert not [name for name in names if name.endswith((".pkl", ".joblib", ".pyc"))]
    wheel = zipfile.ZipFile(first[".whl"])
    assert [name for name in names if name.endswith("licenses/src/poolwise/data/NOTICE.md")]
    told = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert f"Version: {poolwise.__version__}\n" in told
    assert "Project-URL: " not in told  # a release has them, from POOLWISE_REPOSITORY
    place = "https://forge.test/team/poolwise"
    released = built(shutil.copytree(one, tmp_path / "three"), POOLWISE_REPOSITORY=place)[
        ".whl"
    ]
    folder = "-".join(released.name.split("-")[:2])
    told = zipfile.ZipFile(released).read(f"{folder}.dist-info/METADATA").decode()
    assert f"Project-URL: Report a security hole, {place}/security/advisories/new" in told


LOADERS = {"load", "loads", "Unpickler", "read_pickle"}


def dangerous(tree: ast.AST) -> list[str]:
    """Calls that can run what is in a file or in a text."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        owner, _, last = name.rpartition(".")
        wide = any(
            k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords
        )
        pickled = owner in {"pickle", "joblib", "dill", "cloudpickle"} and last in LOADERS
        if wide or pickled or last == "read_pickle" or name in {"eval", "exec", "os.system"}:
            found.append(name)
    return found


def test_pickles_are_loaded_in_two_places_only() -> None:
    source = ROOT / "src" / "poolwise"
    found = {
        str(path.relative_to(source)): sorted(dangerous(ast.parse(path.read_text("utf-8"))))
        for path in sorted(source.rglob("*.py"))
    }
    assert {name: calls for name, calls in found.items() if calls} == {
        "cli/loading.py": ["joblib.load", "pickle.loads"],  # with --trust only
        "engines/spark.py": ["pickle.loads"],  # sums from tasks of the caller's own cluster
    }


def test_dangerous_calls_are_seen() -> None:
    text = "import numpy\nnumpy.load(p, allow_pickle=True)\npd.read_pickle(p)\neval('1')"
    assert dangerous(ast.parse(text)) == ["numpy.load", "pd.read_pickle", "eval"]


MARK = "Zyzzyva"
NUMBER = 0.7351984621308  # a reward that one row has
WRONG = 1.8461937205517  # a propensity that one row has, and no row may have


def marked_log(**roles: Any) -> Log:  # noqa: ANN401 - any role of a log
    """A log whose every text, and one reward, can be recognised wherever it turns up."""
    rng = np.random.default_rng(50)
    rows = 400
    reward = rng.random(rows).round(2)
    reward[7] = NUMBER
    own = np.full(rows, 1 / 3)  # of three actions: a finding of the audit would name one
    if roles.get("on_fault") == "drop":
        own[11] = WRONG
    table = pa.table(
        {
            "logger": np.where(np.arange(rows) < 200, "v1", "v2"),
            "reward": reward,
            "action": [f"{MARK}-action-{k % 3}" for k in range(rows)],
            "context": [f"{MARK}-context-{k}" for k in range(rows)],
            "session": [f"{MARK}-session-{k // 2}" for k in range(rows)],
            "p": own,
            "p1": own,
            "p2": own,
            "t": rng.uniform(0.2, 0.8, rows),
        }
    )
    named: dict[str, Any] = {
        "logger": "logger",
        "reward": "reward",
        "propensities": {"v1": "p1", "v2": "p2"},
        "propensity": "p",
        "action": "action",
        "context": ["context"],
        "cluster": "session",
    }
    return Log(table, **(named | roles))


def everything_written(found: Evaluation, folder: Path) -> str:
    """All that an evaluation writes, as one text."""
    found.save(folder / "report.html", command="poolwise evaluate")
    save_charts(found.charts(), folder / "charts")
    written = [p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()]
    texts = [content.decode("utf-8", errors="replace") for content in written]
    return "\n".join([*texts, found.to_json(), str(found), found._repr_html_()])


def half(batch: Any) -> Any:  # noqa: ANN401 - as a user writes it
    assert batch.action[0].startswith(MARK)  # the rows did go through
    return np.full(len(batch), 0.5)


def test_a_report_carries_no_row(tmp_path: Path) -> None:
    found = evaluate(marked_log(), {"column": "t", "python": half})
    text = everything_written(found, tmp_path)
    assert len(text) > 10_000
    assert MARK not in text
    assert repr(NUMBER)[:8] not in text


def test_a_report_of_dropped_rows_carries_none_of_them(tmp_path: Path) -> None:
    found = evaluate(marked_log(on_fault="drop"), {"column": "t"})
    text = everything_written(found, tmp_path)
    assert "dropped-rows" in text
    assert repr(WRONG)[:8] not in text
