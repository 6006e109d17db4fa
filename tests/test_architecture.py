"""The rules that keep the repository readable, held by tests.

Imports point one way, modules stay short, no file names the machine it was
written on, and the public names are decided rather than accumulated.
"""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "poolwise"
MOST_LINES = 400

# A module may import what stands above it.  A package stands below its members:
# it re-exports them, and they do not know it.
ORDER = (
    "errors",
    "outputs",
    "findings",
    "format",
    "tables",
    "presented",
    "terms",
    "policy",
    "policies",
    "log",
    "score",
    "moments",
    "progress",
    "targets",
    "fingerprint",
    "statistics.tails",
    "statistics.slope",
    "statistics.histogram",
    "engine.base",
    "engine.rows",
    "engine.sandbox",
    "engine.guessed",
    "engine.repeats",
    "engine.roles",
    "engine.sql",
    "engine.answer",
    "engine.dialects",
    "engine.question",
    "engine.standalone",
    "engine.session",
    "engine.manifest",
    "engine.saved",
    "engine.result",
    "engine.query",
    "engine.layout",
    "engine.program",
    "engine.sums",
    "engine.kernel",
    "engine.plan",
    "engine.workspace",
    "engine.loops",
    "engine.compiled",
    "engine.feed",
    "engine.parallel",
    "engine.sources",
    "engine.learned",
    "engine.scored",
    "engine.duckdb",
    "engine.split",
    "engine.spark*",
    "engine.warehouse",
    "engine.choose",
    "engine.sample",
    "engine.stream",
    "engine",
    "estimators.base",
    "estimators.shrink",
    "estimators.ips",
    "estimators.left_out",
    "estimators.control",
    "estimators.crossfit",
    "estimators.model",
    "estimators.tuned",
    "estimators",
    "intervals",
    "statistics.bounds",
    "guarantees",
    "statistics.agreement",
    "statistics.multiplicity",
    "statistics",
    "resample",
    "decision.contrasts",
    "decision.design",
    "exact",
    "crf",
    "simulate",
    "bundled",
    "datasets",
    "formats.*",
    "formats",
    "rankings",
    "scoring",
    "learned.features",
    "learned.mixture",
    "learned.reward_model",
    "learned.extras",
    "learned",
    "diagnosis.deviations",
    "diagnosis.evidence",
    "decision.ranking",
    "report.*",
    "report",
    "moments_file",
    "summary",
    "result",
    "decision.outlook",
    "diagnosis.checks",
    "diagnosis.diagnostics",
    "diagnosis.alarms",
    "diagnosis.trained",
    "diagnosis.which_logs",
    "diagnosis.lacking",
    "diagnosis",
    "decision.comparison",
    "decision.beside",
    "reading",
    "declared",
    "pipeline",
    "border",
    "summaries",
    "glance",
    "decision.planning",
    "decision",
    "reproduce.*",
    "reproduce",
    PACKAGE,  # __init__.py, the public names
    "named",
    "options",
    "terminal",
    "cli",
    "__main__",
)

# Written so that none of them matches itself.
FORBIDDEN = (
    re.compile(r"/(?:work|root)/"),
    re.compile(r"index[-_]url"),
    re.compile(r"\"?(?:resolved|registry)\"?\s*[:=]\s*\"https?:"),
)


def place(module: str) -> int | None:
    """Line of ORDER that a module stands on; None if it stands nowhere."""
    lines = (k for k, line in enumerate(ORDER) if fnmatchcase(module, line))
    return next(lines, None)


def read_modules(package: Path) -> dict[str, str]:
    """Source text of each module below a package, by its name within it."""
    return {_name(path, package): path.read_text("utf-8") for path in package.rglob("*.py")}


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts) or PACKAGE


def imported(module: str, modules: Mapping[str, str], *, package: bool) -> Iterator[str]:
    """Modules of ours that one module imports, wherever in its text."""
    parents = module.split(".") if module != PACKAGE else []
    for node in ast.walk(ast.parse(modules[module])):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = node.level - package  # a package is its own first parent
            inside = [PACKAGE, *parents[: len(parents) - up]] if node.level else []
            base = inside + (node.module.split(".") if node.module else [])
            names = [[*base, alias.name] for alias in node.names]
            names = [n if ".".join(n[1:]) in modules else base for n in names]
        else:
            continue
        yield from (".".join(n[1:]) or PACKAGE for n in names if n[0] == PACKAGE)


def broken_rules(modules: Mapping[str, str]) -> list[str]:
    """Modules without a place in ORDER, and imports that do not point up it."""
    rules = [f"{m} is not in ORDER: give it a place" for m in modules if place(m) is None]
    for module in modules:
        package = module == PACKAGE or any(m.startswith(f"{module}.") for m in modules)
        for other in sorted(set(imported(module, modules, package=package))):
            here, there = place(module), place(other)
            if there is None:
                rules.append(f"{module} imports {other}, which is not in ORDER")
            elif here is not None and there > here:
                rules.append(f"{module} imports {other}, which stands below it in ORDER")
    return sorted(rules)


def test_imports_point_one_way() -> None:
    assert broken_rules(read_modules(ROOT / "src" / PACKAGE)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import poolwise.cli.commands",
        "import numpy, poolwise.cli.commands as face",
        "from poolwise import cli",
        "from poolwise.cli.commands import main",
        "from . import cli",
        "from .cli import main",
        "def late():\n    from poolwise import cli",
        "if TYPE_CHECKING:\n    from poolwise.cli.commands import main",
    ],
)
def test_an_import_from_below_is_seen_in_every_spelling(text: str) -> None:
    modules = {"moments": text, "cli": "from poolwise.moments.moments import Moments"}
    assert broken_rules(modules) == ["moments imports cli, which stands below it in ORDER"]


@pytest.mark.parametrize("text", ["from .. import cli", "from ..cli import main"])
def test_an_import_from_below_is_seen_from_within_a_package(text: str) -> None:
    modules = {"engine": "from .sql import query", "engine.sql": text, "cli": ""}
    assert broken_rules(modules) == ["engine.sql imports cli, which stands below it in ORDER"]


def test_a_module_without_a_place_is_named() -> None:
    assert broken_rules({"helpers": ""}) == ["helpers is not in ORDER: give it a place"]
    assert broken_rules({"cli": "from poolwise.gone import x"}) == [
        "cli imports gone, which is not in ORDER"
    ]


def test_modules_stay_short() -> None:
    modules = read_modules(ROOT / "src" / PACKAGE)
    lines = {module: len(text.splitlines()) for module, text in modules.items()}
    assert {module: count for module, count in lines.items() if count > MOST_LINES} == {}


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in tracked_files()
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if any(pattern.search(line) for pattern in FORBIDDEN)
    ]
    assert found == []


def tracked_files() -> list[Path]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not in a git checkout")
    listing = subprocess.run(
        [git, "-C", ROOT, "ls-files", "-z"], check=True, capture_output=True, text=True
    ).stdout
    paths = [ROOT / name for name in listing.split("\0") if name]
    return [path for path in paths if path.is_file()]


def text_of(path: Path) -> str:
    """Text of a file; nothing of a file that is not text."""
    raw = path.read_bytes()
    return "" if b"\0" in raw else raw.decode("utf-8", errors="replace")


def test_public_names_are_decided_not_accumulated() -> None:
    package = importlib.import_module(PACKAGE)
    names = list(getattr(package, "__all__", []))
    if not names:
        pytest.skip("no public names yet")
    assert names == sorted(set(names))
    assert [name for name in names if not hasattr(package, name)] == []
