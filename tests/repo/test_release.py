"""Files for users and releases: changelog, citation, workflows."""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import poolwise

yaml = pytest.importorskip("yaml", reason="the group `docs` is not installed")
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_the_changelog_lists_every_entry_by_kind(tmp_path: Path) -> None:
    written = runpy.run_path(str(ROOT / "scripts" / "changelog.py"))["written"]
    for name, text in {
        "0001.added": "One\nline.",
        "0002.fixed": "Two.",
        "0003.added": "Three.",
    }.items():
        (tmp_path / f"{name}.md").write_text(text)
    lines = written(tmp_path).splitlines()
    assert lines[lines.index("### Added") + 2 :][:2] == ["- Three.", "- One line."]
    assert lines[lines.index("### Fixed") + 2] == "- Two."
    entries = {p.name.split(".")[1] for p in (ROOT / "changelog.d").glob("*.md")}
    assert entries <= {"added", "changed", "fixed", "removed"}


def test_the_version_has_one_place() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert "version" not in citation
    assert "version" not in PROJECT
    assert citation["license"] == PROJECT["license"]
    assert metadata.version("poolwise") == poolwise.__version__


@pytest.mark.parametrize(
    ("tag", "status"), [(f"v{poolwise.__version__}", 0), (poolwise.__version__, 1), ("v99", 1)]
)
def test_a_tag_is_the_version(
    tag: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(ROOT / "scripts" / "version.py"))["main"]
    assert main([tag]) == status
    read = capsys.readouterr()
    assert read.out == f"{poolwise.__version__}\n"
    assert bool(read.err) is bool(status)


def test_the_workflows_run_the_checks_of_the_repository() -> None:
    folder = ROOT / ".github" / "workflows"
    flows = {
        path.stem: yaml.safe_load(path.read_text("utf-8")) for path in folder.glob("*.yml")
    }
    steps = {
        name: [s.get("run", "") for job in flow["jobs"].values() for s in job.get("steps", [])]
        for name, flow in flows.items()
    }
    assert ".ci/run" in steps["tests"]
    assert "make docs" in steps["docs"]
    assert {"make dist", "make wheels"} <= set(steps["release"])
    assert {"make audit", "make fuzz", "make sweep"} <= set(steps["weekly"])
    assert flows["release"]["jobs"]["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert flows["release"]["jobs"]["publish"]["needs"] == ["tests", "try"]
    systems = flows["tests"]["jobs"]["systems"]["strategy"]["matrix"]["os"]
    assert {name.partition("-")[0] for name in systems} == {"ubuntu", "macos", "windows"}
    assert flows["release"]["jobs"]["publish"]["permissions"] == {"id-token": "write"}


def test_actions_are_pinned_to_commits() -> None:
    used = [
        line.split("uses:")[1].strip()
        for path in (ROOT / ".github").rglob("*.yml")
        for line in path.read_text("utf-8").splitlines()
        if "uses:" in line and "./.github" not in line
    ]
    pinned = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    assert len(used) >= len(["checkout", "setup-python", "upload", "publish"])
    assert [text for text in used if not pinned.fullmatch(text)] == []


def test_hashes_pin_what_the_constraints_name() -> None:
    constraints = (ROOT / "constraints.txt").read_text("utf-8").lower().splitlines()
    versions = dict(line.split("==") for line in constraints if "==" in line)
    text = (ROOT / "hashes.txt").read_text("utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))
    needs = {Requirement(wish).name for wish in PROJECT["dependencies"]}
    assert needs <= set(pins)
    assert {name: pin for name, pin in pins.items() if versions.get(name, pin) != pin} == {}
    assert len(pins) == len(re.findall(r"==.*\\\n +--hash=sha256:", text))
    assert "://" not in text


def test_the_readme_lists_every_extra() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    for extra in PROJECT["optional-dependencies"]:
        assert f"`poolwise[{extra}]`" in text


def test_the_readme_installs_from_a_clone_until_a_release() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert "not on a package index yet" in text
    assert text.index("make demo") < text.index("pip install poolwise")
