"""Files for users and releases: changelog, citation, workflows."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pytest

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


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


def test_the_workflows_run_the_checks_of_the_repository() -> None:
    folder = ROOT / ".github" / "workflows"
    flows = {
        path.stem: yaml.safe_load(path.read_text("utf-8")) for path in folder.glob("*.yml")
    }
    steps = {
        name: [s.get("run", "") for job in flow["jobs"].values() for s in job["steps"]]
        for name, flow in flows.items()
    }
    assert ".ci/run" in steps["tests"]
    assert "make docs" in steps["docs"]
    assert {".ci/run", "make dist", "make wheels"} <= set(steps["release"])
    systems = flows["tests"]["jobs"]["systems"]["strategy"]["matrix"]["os"]
    assert [name.partition("-")[0] for name in systems] == ["ubuntu", "macos", "windows"]
    assert flows["release"]["jobs"]["publish"]["permissions"] == {"id-token": "write"}


def test_the_readme_lists_every_extra() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    for extra in PROJECT["optional-dependencies"]:
        assert f"`poolwise[{extra}]`" in text
    assert text.index("pip install poolwise") < text.index("make demo")
