from __future__ import annotations

import re
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from poolwise.errors import UsageError
from reproduction import run as module
from reproduction.claims import claims
from reproduction.figures import FIGURES, read_csv
from reproduction.run import Effort, Job, claims_table, run
from reproduction.toy import numbers
from tests.support.messages import refused
from tests.support.synthetic import save_as

if TYPE_CHECKING:
    from pathlib import Path

    from reproduction.figures import CsvRow

pytestmark = pytest.mark.slow
LITTLE = Effort(
    fractions=(0.05, 0.2),
    replications=30,
    sizes=(20, 300),
    weight_replications=30,
    full_rows=500,
)


def quiet() -> Console:
    return Console(file=StringIO(), width=80)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reproduction of the small data set in the place of Scene."""
    folder = tmp_path_factory.mktemp("data")
    save_as(folder, "scene")
    out = tmp_path_factory.mktemp("out")
    run("scene", folder, out, console=quiet(), effort=LITTLE)
    return out


def test_every_figure_has_its_numbers_and_its_charts(written: Path) -> None:
    assert [figure.number for figure in FIGURES] == [1, 2, 3, 4, 5, 6, 7]
    for figure in FIGURES:
        stem = written / figure.stem
        assert list(read_csv(stem.with_suffix(".csv"))[0]) == list(figure.columns)
        assert stem.with_suffix(".svg").read_text().startswith("<svg")
        assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_the_page_has_every_figure_and_verdict(written: Path) -> None:
    text = (written / "reproduction.md").read_text()
    assert re.findall(r"\((figure\d_\w+\.svg)\)", text) == [f"{f.stem}.svg" for f in FIGURES]
    assert all((written / f"{figure.stem}.svg").is_file() for figure in FIGURES)
    assert "24295041/5784325" in text
    verdicts = read_csv(written / "claims.csv")
    assert claims_table(verdicts) in text
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert [line[2] for line in lines] == [row["verdict_there"] for row in verdicts]


def test_verdicts_come_from_the_csv_files(written: Path) -> None:
    tables = {name: read_csv(written / f"{name}.csv") for name in module.SOURCES}
    verdicts = claims(tables, numbers())
    assert verdicts == read_csv(written / "claims.csv")
    found = {row["claim"]: row["verdict"] for row in verdicts}
    assert found["Balanced is never worse than naive."] == "holds"
    tables["panels"][3]["balanced_naive"] = 1.25
    changed = claims(tables, numbers())
    worse = [row for row in changed if row["claim"] == "Balanced is never worse than naive."]
    assert {row["verdict"] for row in worse} == {"holds in part"}
    assert "15 of 16 cells" in worse[0]["evidence"]
    assert "1.25 at fraction 0.05, r 1" in worse[0]["evidence"]


def test_a_large_z_score_is_no_match() -> None:
    row: CsvRow = {"data": "scene", "fraction": 0.02, "r": 1.0, "estimator": "naive"}
    row |= {"replications": 500, "z_mean": 0.3, "z_variance": 4.5}
    *toy, found = claims({"simulation": [row]}, numbers())
    assert {row["figure"] for row in toy} == {0}
    assert found["verdict"] == "holds in part"
    assert "+4.50: the variance of naive at fraction 0.02, r 1" in found["evidence"]


def test_an_interrupted_run_continues_and_gives_the_same(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_as(tmp_path, "scene")
    out = tmp_path / "out"
    budget = iter(range(7))

    def interrupted(job: Job, folder: Path) -> list[CsvRow]:
        if next(budget, None) is None:
            raise KeyboardInterrupt
        return rows(job, folder)

    rows = Job.rows
    with monkeypatch.context() as patch:
        patch.setattr(Job, "rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run("scene", tmp_path, out, console=(console := quiet()), effort=LITTLE)
    assert "same command again" in console.file.getvalue()  # type: ignore[attr-defined]
    assert len([*(out / "cells").rglob("*.json")]) == 7
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]
    run("scene", tmp_path, out, console=quiet(), effort=LITTLE)
    for name in ("panels.csv", "weights.csv", "simulation.csv", "claims.csv"):
        assert (out / name).read_text() == (written / name).read_text()


def test_finished_jobs_are_not_computed_again(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_as(tmp_path, "scene")
    monkeypatch.setattr(module, "build_problem", None)  # any work would fail
    run("scene", tmp_path, written, console=quiet(), effort=LITTLE)


def test_a_subset_says_so_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from reproduction.datasets import load

    save_as(tmp_path, "yeast")
    note = "This is a subset."
    monkeypatch.setattr(
        "reproduction.run.load", lambda *_: replace(load("yeast", tmp_path), note=note)
    )
    run("lyrl", tmp_path, tmp_path / "out", console=(console := quiet()), effort=LITTLE)
    assert note in console.file.getvalue()  # type: ignore[attr-defined]
    assert note in (tmp_path / "out" / "reproduction.md").read_text()
    assert "LYRL (subset)" in (tmp_path / "out" / "figure1_dropping.svg").read_text()
    for name in module.SOURCES:
        rows = read_csv(tmp_path / "out" / f"{name}.csv")
        assert {row["data"] for row in rows} == {"lyrl-subset"}
    assert len(read_csv(tmp_path / "out" / "full_size_panels.csv")) == 16


def test_the_toy_needs_no_data(tmp_path: Path) -> None:
    run("toy", None, tmp_path, console=(console := quiet()))
    assert "24295041/5784325" in console.file.getvalue()  # type: ignore[attr-defined]
    assert [path.name for path in tmp_path.iterdir()] == ["toy.csv"]


def test_an_unknown_experiment_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with refused(UsageError):
        run("scenes", None, tmp_path, console=quiet())
