"""Archives that claim more than they hold are refused before memory is taken."""

from __future__ import annotations

import zipfile
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import pytest

import poolwise as pw
from poolwise.cli.loading import named_policy
from poolwise.errors import SourceError, UsageError
from poolwise.files import ARCHIVE_ERRORS, read_arrays, refuse_bomb
from reproduction.datasets import read_multi_class, read_multi_label, read_rcv1_subset
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def array(shape: tuple[int, ...], kind: str = "<f8") -> bytes:
    """An array of this shape by its header, and 80 bytes of numbers."""
    file = BytesIO()
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + bytes(80)


def archive(content: bytes, size: int | None = None) -> bytes:
    """An archive of one file, which claims to have some other size."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("header.npy", content)
        if size is not None:
            packed.filelist[0].file_size = size
    return file.getvalue()


BOMBS = {
    "a terabyte": archive(array((10,)), 1 << 40),
    "an array of a terabyte": archive(array((10**6, 10**5))),
    "an array beyond integers": archive(array((10**12, 10**12))),
    "objects": archive(array((10,), "|O")),
}


def test_an_honest_archive_is_read() -> None:
    file = BytesIO()
    np.savez_compressed(file, a=np.arange(9), b=np.array("text"))
    found = read_arrays(file.getvalue())
    assert found["a"].tolist() == list(range(9))
    assert str(found["b"]) == "text"


def test_an_archive_may_grow_a_little() -> None:
    file = BytesIO()
    np.savez_compressed(file, a=np.zeros(10_000))
    refuse_bomb(file.getvalue(), most=100_000)
    with pytest.raises(ValueError, match="would become 80,1"):
        refuse_bomb(file.getvalue(), most=70_000)


@pytest.mark.parametrize("name", BOMBS)
def test_an_archive_that_claims_too_much_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ARCHIVE_ERRORS):
        read_arrays(BOMBS[name])
    path = tmp_path / "x.npz"
    path.write_bytes(BOMBS[name])
    with refused(SourceError):
        pw.watch(path)
    for read in (read_multi_label, read_multi_class, read_rcv1_subset):
        with refused(SourceError):
            read(path)


def test_a_model_that_claims_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.skops"
    path.write_bytes(BOMBS["a terabyte"])
    with refused(UsageError):
        named_policy(str(path))


@pytest.mark.parametrize(
    ("read", "arrays"),
    [
        (read_multi_class, {"X": ["a"], "y": [1], "class_names": ["x"], "n_train": 1}),
        (read_multi_class, {"X": [[1.0]], "y": [1], "class_names": ["x"], "n_train": [1, 2]}),
    ],
)
def test_arrays_of_another_kind_are_one_message(
    read: Callable[[Path], object], arrays: dict[str, object], tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)  # type: ignore[arg-type]
    with refused(SourceError):
        read(tmp_path / "x.npz")


def test_a_flipped_bit_of_a_state_is_one_message_or_changes_nothing(tmp_path: Path) -> None:
    rows = {"day": ["1"] * 20, "r": [0.0, 1.0] * 10, "p": [0.5] * 20, "t": [0.4, 0.6] * 10}
    log = pw.Log(rows, reward="r", propensity="p", period="day", reward_range=(0.0, 1.0))
    path = tmp_path / "state.npz"
    pw.watch(path, log, {"new": "t"})
    before = pw.watch(path).to_json()
    whole = path.read_bytes()
    rng = np.random.default_rng(5)
    outcomes = set()
    for place in rng.choice(len(whole) * 8, 300, replace=False).tolist():
        content = bytearray(whole)
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        try:
            outcomes.add(pw.watch(path).to_json())
        except SourceError:
            outcomes.add("")
    assert outcomes <= {before, ""}
