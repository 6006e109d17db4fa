"""The command line: `python -m reproduction`."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from reproduction.__main__ import main
from reproduction.figures import read_csv
from reproduction.run import OUT, Effort, run
from tests.support.synthetic import save_as

ROOT = Path(__file__).parents[2]


def refuse(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a refusal."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_the_toy_is_the_default_and_writes_nothing() -> None:
    before = set(ROOT.iterdir())
    command = [sys.executable, "-m", "reproduction"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "24295041/5784325" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert set(ROOT.iterdir()) == before


def test_options_choose_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def record(*given: object, console: Console) -> None:
        asked.append(given)
        assert console.width

    monkeypatch.setattr("reproduction.__main__.run", record)
    main(["scene", "--data", str(tmp_path), "--out", "here"])
    main(["all"])
    assert asked == [("scene", tmp_path, Path("here")), ("all", None, None)]


def test_results_are_not_written_among_the_code() -> None:
    """The default folder of the results is ignored by git."""
    assert f"/{OUT.parts[0]}/" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("what", ["scenes", "figure8"])
def test_an_unknown_part_is_refused(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = refuse(what, capsys=capsys)
    assert found.startswith("reproduction: experiments are toy, scene, ")
    assert repr(what) in found


def test_a_missing_data_set_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scene.npz").write_text("no archive")
    found = refuse("scene", "--data", str(tmp_path), "--out", str(tmp_path), capsys=capsys)
    assert str(tmp_path / "scene.npz") in found


@pytest.mark.parametrize(("package", "what"), [("pooch", "scene"), ("sklearn", "lyrl")])
def test_a_missing_package_is_named_with_its_group(
    package: str,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in (package, f"{package}.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    found = refuse(what, "--data", str(tmp_path), "--out", str(tmp_path), capsys=capsys)
    expected = f"reproduction: {package} is not installed; run: pip install --group reproduce\n"
    assert found == expected
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    assert {"pooch", "scikit-learn"} <= set(groups["reproduce"])


def test_one_figure_is_drawn_from_its_own_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("scene", "yeast"):
        save_as(tmp_path, name)
    monkeypatch.setattr("reproduction.run.DATA", ("scene", "yeast"))
    console = Console(file=StringIO())
    little = Effort(fractions=(0.2,), structures=("unary",))
    run("figure2", tmp_path, tmp_path / "out", console=console, effort=little)
    written = {path.name for path in (tmp_path / "out").iterdir()}
    stem = "figure2_balanced"
    assert written == {
        "cells",
        "panels.csv",
        *(f"{stem}.{end}" for end in ("csv", "svg", "png")),
    }
    assert {row["data"] for row in read_csv(tmp_path / "out" / f"{stem}.csv")} == {
        "scene",
        "yeast",
    }
