"""Rules that keep the repository readable.

Imports point one way, the page on the architecture names what exists, no file names the
machine it was written on, and public names are listed explicitly.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "poolwise"

# A package imports only packages above it.  `data` holds no code.
PACKAGES = (
    "errors",
    "types",
    "text",
    "files",
    "progress",
    "log",
    "moments",
    "rows",
    "engines",
    "estimators",
    "intervals",
    "diagnosis",
    "report",
    "evaluation",
    "learning",
    "formats",
    "cli",
    "__main__",
)

# Written so that none of them matches itself.
FORBIDDEN = (
    re.compile(r"/(?:work|root)/"),
    re.compile(r"index[-_]url"),
    re.compile(r"\"?(?:resolved|registry)\"?\s*[:=]\s*\"https?:"),
)


def floor(module: str) -> int | None:
    """Return the index of a module's package in PACKAGES, or None."""
    package = module.split(".", maxsplit=1)[0]
    return PACKAGES.index(package) if package in PACKAGES else None


def read_modules(package: Path) -> dict[str, str]:
    """Source text of each module below a package, by its name within it."""
    return {_name(path, package): path.read_text("utf-8") for path in package.rglob("*.py")}


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts) or PACKAGE


def imported(
    module: str, modules: Mapping[str, str], *, package: bool, types: bool = True
) -> Iterator[str]:
    """Modules of ours that one module imports, wherever in its text, for types or not."""
    parents = module.split(".") if module != PACKAGE else []
    nodes = [*ast.walk(ast.parse(modules[module]))]
    for_types = {
        id(part)
        for node in nodes
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in node.body
    }
    for node in nodes:
        if id(node) in for_types and not types:
            continue
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
    """Modules outside the packages, and imports of a package from below."""
    inside = [module for module in modules if module != PACKAGE]
    rules = [f"{m} is in none of the packages" for m in inside if floor(m) is None]
    for module in inside:
        package = any(m.startswith(f"{module}.") for m in modules)
        for other in sorted(set(imported(module, modules, package=package)) - {PACKAGE}):
            here, there = floor(module), floor(other)
            if there is None:
                rules.append(f"{module} imports {other}, which is in none of the packages")
            elif here is not None and there > here:
                rules.append(f"{module} imports {other}, which is below it")
    return sorted(rules)


# Packages that no engine is known in, and what they may import of engines.
NEUTRAL = ("estimators", "intervals", "diagnosis", "report", "evaluation")
ENTRIES = {"engines", "engines.base"}


def named_engines(modules: Mapping[str, str]) -> list[str]:
    """Imports of a single engine by a package that must not know any."""
    return [
        f"{module} imports {other}"
        for module in sorted(modules)
        if module.partition(".")[0] in NEUTRAL
        for other in sorted({*imported(module, modules, package=module in NEUTRAL)} - ENTRIES)
        if other.partition(".")[0] == "engines"
    ]


def test_verbs_know_no_engine_by_name() -> None:
    assert named_engines(read_modules(ROOT / "src" / PACKAGE)) == []


@pytest.mark.parametrize(
    "text",
    [
        "from poolwise.engines.saved import Summary",
        "from poolwise.engines import base, saved",
        "if TYPE_CHECKING:\n    from poolwise.engines.saved import Summary",
        "def late():\n    import poolwise.engines.saved",
    ],
)
def test_an_engine_by_name_is_seen_in_every_spelling(text: str) -> None:
    modules = {"evaluation.watch": text, "engines": "", "engines.base": "", "engines.saved": ""}
    assert named_engines(modules) == ["evaluation.watch imports engines.saved"]
    assert named_engines({**modules, "evaluation.watch": "import poolwise.engines.base"}) == []


def test_imports_point_one_way() -> None:
    assert broken_rules(read_modules(ROOT / "src" / PACKAGE)) == []


def test_the_package_does_not_import_the_rest_of_the_repository() -> None:
    """The wheel holds the package alone, without the reproduction, tests and benchmarks."""
    others = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"tests"}
    assert "reproduction" in others
    pattern = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(sorted(others))})\b", re.MULTILINE)
    modules = read_modules(ROOT / "src" / PACKAGE)
    assert [name for name, text in modules.items() if pattern.search(text)] == []
    assert pattern.search("def late():\n    from reproduction.crf import UnaryCRF")


@pytest.mark.parametrize(
    "text",
    [
        "import poolwise.cli.options",
        "import numpy, poolwise.cli.options as face",
        "from poolwise.cli import options",
        "from poolwise.cli.options import pairs",
        "from ..cli import options",
        "from ..cli.options import pairs",
        "def late():\n    from poolwise.cli import options",
        "if TYPE_CHECKING:\n    from poolwise.cli.options import pairs",
    ],
)
def test_an_import_from_below_is_seen_in_every_spelling(text: str) -> None:
    modules = {"moments": "", "moments.terms": text, "cli": "", "cli.options": ""}
    assert broken_rules(modules) == ["moments.terms imports cli.options, which is below it"]


def test_a_module_outside_the_packages_is_named() -> None:
    assert broken_rules({"helpers": ""}) == ["helpers is in none of the packages"]
    assert broken_rules({"cli": "from poolwise.gone import x"}) == [
        "cli imports gone, which is in none of the packages"
    ]


# Code of the page on the architecture: a file, a name, or a name in a module.
CODE = re.compile(r"`([^`\n]+)`")
PLACED = re.compile(r"`(\w+)` (?:in|of) `(\w+\.\w+)`|\| `(\w+)` \| `([\w.]+)` \|")


def missing_names(page: str) -> list[str]:
    """Names and files in the code of a page that the repository does not have."""
    src = ROOT / "src" / PACKAGE
    known = defined_names(*src.rglob("*.py"), *(ROOT / "tests").rglob("conftest.py"))
    known |= {
        name
        for top in (ROOT, src, src.parent)
        for path in top.iterdir()
        for name in (path.name, path.stem)
    }
    missing = []
    for text in CODE.findall(page):
        name = text.partition("(")[0]
        words = [word for word in text.split() if "/" in word]
        if words:
            files = [f"{word}{end}" for word in words for end in ("", ".py")]
            exists = any((top / file).exists() for top in (ROOT, src) for file in files)
        else:
            dotted = re.fullmatch(r"\w+(\.\w+)*", name)
            local = name[0].isupper() and known.issuperset(name.split("."))
            exists = not dotted or name in known or local or is_there(name)
        missing += [] if exists else [text]
    pairs = [(a or c, b or d) for a, b, c, d in PLACED.findall(page)]
    return missing + [f"{m}.{n}" for n, m in pairs if not is_defined(n, m)]


def is_defined(name: str, module: str) -> bool:
    """Test if a module defines a name, perhaps as a method."""
    path = (ROOT / "src" / PACKAGE).joinpath(*module.split(".")).with_suffix(".py")
    return path.exists() and name in defined_names(path)


def defined_names(*files: Path) -> set[str]:
    """Names of functions, classes, variables, attributes and arguments."""
    names = set()
    for node in (
        node for path in files for node in ast.walk(ast.parse(path.read_text("utf-8")))
    ):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


def is_there(name: str) -> bool:
    """Test if a dotted name below the package is a module, or something in one."""
    parts = name.split(".")
    for cut in range(len(parts), -1, -1):
        module = ".".join([PACKAGE, *parts[:cut]])
        if find_module(module):
            found: object = importlib.import_module(module)
            for part in parts[cut:]:
                found = getattr(found, part, None)
            return found is not None
    return False


def find_module(name: str) -> bool:
    """Test if a module exists, without an error for what is below a module."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_the_page_on_the_architecture_names_what_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert len(CODE.findall(page)) > 150
    assert missing_names(page) == []


@pytest.mark.parametrize(
    ("page", "missing"),
    [
        ("`moments.pool` and `moments.pool.Pool.gone`", "moments.pool.Pool.gone"),
        ("`evaluation.gone` and `evaluation/`", "evaluation.gone"),
        ("`evaluation/read`, `evaluation/gone`", "evaluation/gone"),
        ("`python scripts/gone.py`", "python scripts/gone.py"),
        ("`RULES` in `rows.rules`, `KINDS` in `rows.rules`", "rows.rules.KINDS"),
        ("| `Pool` | `moments.pool` |\n| `Pool` | `moments.terms` |", "moments.terms.Pool"),
        ("`Estimator.needs(coverage)`, `_gone_for_good`", "_gone_for_good"),
    ],
)
def test_what_does_not_exist_is_named(page: str, missing: str) -> None:
    assert missing in missing_names(page)


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
