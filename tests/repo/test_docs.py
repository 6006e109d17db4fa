"""The documentation: every block of code runs, every command works, the site builds.

Blocks of Python are doctests, which pytest collects by itself; a test here checks that
every block is one.  Commands run in a folder with small logs of the columns they name, and in
this process where they need no shell.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise
import poolwise as pw
from poolwise.cli.commands import main
from poolwise.evaluation.summarise import query_text
from poolwise.formats.clicks import search_log
from poolwise.formats.labelled import TARGETS, digits_log, digits_truth
from reproduction import toy
from reproduction.datasets import data_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
EXAMPLES = {  # arguments of Python: file of the data that the example reads
    "docs/examples/digits.py": "",
    "docs/examples/catalogue.py": "",
    "-m reproduction.example": "scene.npz",
    "docs/examples/open_bandit.py": "obd_small.parquet",
    "docs/examples/open_bandit_backtest.py": "obd_small.parquet",
}
SHELL = {"|", "||", "&&", ">"}  # commands with these run in a process of their own
LONGEST = 280  # seconds; an example takes a tenth of it on an idle machine


class Command(NamedTuple):
    """A command of the documentation, and the page that shows it."""

    page: str
    text: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fences(page: Path) -> list[tuple[str, str]]:
    """Language and text of every block between fences."""
    return FENCE.findall(page.read_text("utf-8"))


def commands() -> Iterator[Command]:
    for page in PAGES:
        shell = [text for language, text in fences(page) if language == "sh"]
        if page.name == "README.md":
            shell += INDENTED.findall(FENCE.sub("", page.read_text("utf-8")))
        for block in shell:
            for line in re.sub(r"\\\n\s*", "", block).splitlines():
                text = line.split(" # ")[0].strip()
                if text.startswith(("poolwise ", "python -m reproduction ")):
                    yield Command(name_of(page), text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_python_is_a_doctest(page: Path) -> None:
    for language, text in fences(page):
        # tests/repo/test_recipes.py runs files of Python (py) and YAML
        assert language in {"pycon", "python", "py", "sh", "text", "toml", "yaml"}, language
        if language in {"pycon", "python"}:
            assert text.startswith(">>> "), text
            assert text.endswith("\n\n"), f"a blank line must end the output:\n{text}"


def test_the_picture_of_the_packages_is_current() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_architecture.py"))
    picture = (DOCS / "images" / "architecture.svg").read_text("utf-8")
    assert picture == script["drawn"](), "run: python scripts/make_architecture.py"


def round_numbers(svg: str) -> str:
    """Write numbers with one decimal: threads and libraries decide the last digits."""
    return re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]) + 0.0:.1f}", svg)


@pytest.mark.slow
def test_pictures_are_those_of_the_program() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_pictures.py"))
    evaluation = pw.evaluate(digits_log(), TARGETS, truth=digits_truth())
    stale = "run: python scripts/make_pictures.py"
    made = script["draw_pictures"](evaluation)
    page = (DOCS / "gallery.md").read_text("utf-8")
    for name, text in made.items():
        stored = (script["IMAGES"] / name).read_text("utf-8")
        assert round_numbers(stored) == round_numbers(text), f"{name}: {stale}"
    drawn = re.findall(r"\(images/(gallery/[\w-]+\.svg)\)", page)
    assert sorted([*drawn, "demo.svg"]) == sorted(made)
    assert script["MARK"] + script["digest"](evaluation) in script["REPORT"].read_bytes(), stale


def test_what_programs_read_is_current() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_llms.py"))
    made = {
        DOCS / "llms.txt": script["index_text"](),
        ROOT / "skills" / "poolwise" / "SKILL.md": script["skill_text"](),
    }
    for path, text in made.items():
        assert path.read_text("utf-8") == text, "run: python scripts/make_llms.py"
    for link in re.findall(r"\]\(([^)#]+)\)", made[DOCS / "llms.txt"]):
        assert (DOCS / link).is_file(), link


def test_the_architecture_names_modules_that_exist() -> None:
    text = (DOCS / "architecture.md").read_text("utf-8")
    source = ROOT / "src" / "poolwise"
    packages = "|".join(path.name for path in source.iterdir() if path.is_dir())
    names = re.findall(rf"`((?:{packages})[./]\w+)", text)
    missing = [n for n in names if not (source / f"{n.replace('.', '/')}.py").exists()]
    assert len(names) > 20
    assert missing == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_a_page_names_files_that_exist(page: Path) -> None:
    names = re.findall(
        r"`([a-z]+/[\w./-]+\.(?:py|md|sh|csv|json|txt))`", page.read_text("utf-8")
    )
    folders = (ROOT, ROOT / "src" / "poolwise")
    top = {path.name for folder in folders for path in folder.iterdir() if path.is_dir()}
    ours = [name for name in names if name.partition("/")[0] in top]
    assert [n for n in ours if not any((folder / n).exists() for folder in folders)] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that commands of the documentation name."""
    place = tmp_path_factory.mktemp("docs")
    (place / "logs").mkdir()
    (place / "raw").mkdir()
    rng = np.random.default_rng(6)
    policies = {"v1": [0.5, 0.3, 0.2], "v2": [0.2, 0.3, 0.5], "candidate": [0.1, 0.2, 0.7]}
    for logger, rows in (("v1", 400), ("v2", 200)):
        item = rng.choice(3, size=rows, p=policies[logger])
        probabilities = {f"p_{name}": np.array(p)[item] for name, p in policies.items()}
        table = pa.table(
            {
                "policy": [logger] * rows,
                "item": item,
                "click": rng.binomial(1, np.array([0.1, 0.2, 0.4])[item]),
                "p": probabilities[f"p_{logger}"],
                "user_id": rng.integers(60, size=rows),
                "age": rng.integers(18, 80, size=rows),
                "hour": rng.integers(24, size=rows),
                "day": np.arange(rows) % 5,
                **probabilities,
            }
        )
        pq.write_table(table, place / "logs" / f"{logger}.parquet")
        bare = table.drop(["p", *probabilities])
        pq.write_table(bare, place / "raw" / f"{logger}.parquet")
    (place / "our").mkdir()
    lines = ["from poolwise import Table"]
    lines += [f"{name} = Table({dict(enumerate(p))})" for name, p in policies.items()]
    (place / "our" / "policies.py").write_text("\n".join(lines))
    ((_, question),) = [f for f in fences(DOCS / "question.md") if f[0] == "toml"]
    (place / "question.toml").write_text(question)
    (place / "search.parquet").write_bytes(Path(search_log()).read_bytes())
    write_catalogue = runpy.run_path(str(DOCS / "examples" / "catalogue.py"))["write_log"]
    write_catalogue.__globals__["REQUESTS"] = 2_000  # of its 20,000: enough for a command
    write_catalogue(place)
    _write_result(place)
    _write_sales(place / "sales.csv", rng)
    return place


def _write_sales(path: Path, rng: np.random.Generator) -> None:
    """Write a log without propensities."""
    names = {
        "device": ["laptop", "phone"],
        "hour": ["day", "night"],
        "offer": ["standard", "discount"],
        "sold": ["0", "1"],
    }
    rows = [",".join(rng.choice(values) for values in names.values()) for _ in range(200)]
    path.write_text("\n".join([",".join(names), *rows]), encoding="utf-8")


def _write_result(place: Path) -> None:
    """Write the result of the query that the documentation prints."""
    log = pw.Log(
        table="my_table",
        logger="policy",
        reward="click",
        propensities={"v1": "p_v1", "v2": "p_v2"},
    )
    query = query_text(log, "my_table", {"candidate": "p_candidate"}, "duckdb")
    with duckdb.connect() as warehouse:
        warehouse.execute(f"CREATE VIEW my_table AS FROM '{place}/logs/*.parquet'")
        warehouse.execute(f"COPY ({query}) TO '{place}/result.parquet'")


def test_the_documentation_has_commands_of_every_kind() -> None:
    verbs = {command.text.split()[1] for command in commands()}
    assert verbs >= {"evaluate", "check", "sql", "demo", "-m"}


@pytest.mark.parametrize(
    "command", sorted(set(commands())), ids=lambda c: f"{c.page}: {c.text}"
)
def test_a_command_works(
    command: Command,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    program, *words = split_words(command.text)
    if program == "poolwise" and not SHELL & {*words}:
        monkeypatch.setattr(sys, "argv", [program, *words])
        monkeypatch.setattr(sys, "path", [*sys.path])  # which gets the folder
        with pytest.raises(SystemExit) as ended:
            main()
        done = capsys.readouterr()
        assert not ended.value.code, done.err
        assert done.out
        return
    scripts = Path(sys.executable).parent
    path = f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"
    modules = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # `reproduction`
    ran = subprocess.run(
        ["bash", "-c", command.text],
        env={**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(modules)},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    written = command.text.partition(" > ")[2]
    assert (folder / written).read_text("utf-8") if written else ran.stdout


def split_words(text: str) -> list[str]:
    """Split a command as a shell does; paths are matched in this folder."""
    split: list[str] = []
    for word in shlex.split(text):
        paths = sorted(map(str, Path().glob(word))) if "*" in word else []
        split += paths or [word]
    return split


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str) -> None:
    data = EXAMPLES[name]
    if data and not (data_folder() / data).is_file():
        pytest.skip(f"{data} is not in the folder that POOLWISE_DATA names")
    done = subprocess.run(
        [sys.executable, *name.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert any(word in done.stdout for word in ("calibrated", "naive", "predicted"))


def test_every_example_is_tested_and_described() -> None:
    page = (DOCS / "examples.md").read_text("utf-8")
    scripts = [*(DOCS / "examples").glob("*.py")]
    assert {path.relative_to(ROOT).as_posix() for path in scripts} <= set(EXAMPLES)
    assert all(f"`{name}`" in page or f"`python {name}`" in page for name in EXAMPLES)


def test_every_public_name_is_in_the_reference() -> None:
    listed = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
    names = {place.rpartition(".")[2] for place in listed}
    assert set(poolwise.__all__) <= names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_use_public_names_in_one_way(page: Path) -> None:
    imports = re.findall(
        r"^>>> from poolwise\S* import (.+)$", page.read_text("utf-8"), re.MULTILINE
    )
    names = {name.strip() for line in imports for name in line.split(",")}
    assert names & set(poolwise.__all__) == set()  # pw.compare, not compare


def test_every_page_is_in_the_navigation() -> None:
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = re.findall(r"^ +- .*: (\S+\.md)$", settings, re.MULTILINE)
    left_out = re.findall(r"\(([\w/-]+\.md)\)", (DOCS / "index.md").read_text("utf-8"))
    contributors = {"architecture.md", "mutation.md", "decisions/index.md"}
    assert contributors <= set(left_out)
    decisions = {path.name for path in (DOCS / "decisions").glob("0*.md")}
    index = (DOCS / "decisions" / "index.md").read_text("utf-8")
    assert sorted(re.findall(r"\((\d{4}-.*\.md)\)", index)) == sorted(decisions)
    pages = {str(p.relative_to(DOCS)) for p in PAGES[1:]} - contributors
    assert sorted(listed) == sorted(pages - {f"decisions/{name}" for name in decisions})


def test_the_table_of_the_toy_is_what_the_command_prints() -> None:
    page = (DOCS / "paper.md").read_text("utf-8").replace("*", "")
    for number in toy.numbers():
        cells = f"| {number.paper} | {number.ours:.4f} | {number.exact} |"
        assert cells in page, number.what


def test_the_site_builds_without_a_warning_and_asks_no_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the group `docs` is not installed")
    pytest.importorskip("latex2mathml", reason="the group `docs` is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text("utf-8")
        assert not re.findall(r"<(?:script|img|iframe)[^>]*\bsrc=\"https?:", text), page
        assert not re.findall(r"<link[^>]*\bhref=\"https?:", text), page
        assert "arithmatex" not in text, page
        assert "$$" not in text, page
    assert "<math" in (tmp_path / "formulas.html").read_text("utf-8")
