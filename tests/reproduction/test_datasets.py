from __future__ import annotations

import bz2
import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.sparse import csr_array

from poolwise.errors import SourceError, UsageError
from reproduction import datasets
from reproduction.datasets import (
    PUBLISHED,
    Labelled,
    Published,
    data_folder,
    fetch,
    fingerprint,
    load,
    read_libsvm,
)
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolwise.types import FloatArray

HERE = Path(os.environ.get("POOLWISE_DATA") or Path(__file__).parents[2] / "../shared/data")
with_data = pytest.mark.skipif(
    not (HERE / "scene.npz").is_file(),
    reason="the data sets are not here: set POOLWISE_DATA to their folder",
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address under which a server on this machine shows it."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def dense(rows: Labelled) -> FloatArray:
    assert isinstance(rows.contexts, np.ndarray)
    return rows.contexts


def libsvm_text(rows: Labelled) -> str:
    lines = []
    for x, y in zip(rows.contexts, rows.labels, strict=True):
        labels = ",".join(str(k) for k in np.flatnonzero(y))
        lines.append(" ".join([labels, *(f"{k + 1}:{v:.6f}" for k, v in enumerate(x) if v)]))
    return "\n".join(lines) + "\n"


def some_rows(seed: int) -> Labelled:
    rng = np.random.default_rng(seed)
    contexts = np.round(rng.normal(size=(12, 5)), 6)
    labels = (rng.random((12, 3)) < 0.4).astype(np.uint8)
    labels[3] = 0  # a row without labels starts with a space
    return Labelled(contexts, labels)


@pytest.mark.parametrize("ending", ["", ".bz2"])
def test_libsvm_text_is_read_plain_and_packed(tmp_path: Path, ending: str) -> None:
    rows, path = some_rows(1), tmp_path / f"rows.svm{ending}"
    text = libsvm_text(rows).encode()
    path.write_bytes(bz2.compress(text) if ending else text)
    found = read_libsvm(path, features=5, labels=3)
    assert (dense(found) == dense(rows)).all()
    assert (found.labels == rows.labels).all()


def test_rows_with_few_features_stay_sparse(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("0 7:1\n1 90:2.5\n")
    found = read_libsvm(tmp_path / "rows", features=100, labels=2)
    assert found.contexts.shape == (2, 100)
    assert not isinstance(found.contexts, np.ndarray)


@pytest.mark.parametrize("text", ["0 1:x\n", "7 1:1\n", "0 9:1\n"])
def test_text_that_does_not_fit_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows").write_text(text)
    with refused(SourceError):
        read_libsvm(tmp_path / "rows", features=5, labels=3)


def publish(folder: Path) -> dict[str, Published]:
    """A data set of our own on the server, with its checksums."""
    parts = some_rows(1), some_rows(2)
    for name, rows in zip(("a", "b"), parts, strict=True):
        (folder / f"{name}.bz2").write_bytes(bz2.compress(libsvm_text(rows).encode()))
    prints = fingerprint(parts[0]), fingerprint(parts[1])
    return {"own": Published(("a.bz2", "b.bz2"), features=5, labels=3, sha256=prints)}


def test_a_data_set_is_downloaded_once(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    published = publish(folder)
    found = fetch("own", tmp_path / "cache", base=address, published=published)
    assert (found.train.labels == some_rows(1).labels).all()
    assert (dense(found.test) == dense(some_rows(2))).all()
    assert found.fractions_of == 12
    for file in folder.iterdir():
        file.unlink()
    again = fetch("own", tmp_path / "cache", base=address, published=published)
    assert (dense(again.train) == dense(found.train)).all()


def test_a_file_with_another_content_is_refused(
    served: tuple[Path, str], tmp_path: Path
) -> None:
    folder, address = served
    published = publish(folder)
    rows = some_rows(2)
    rows.labels[0, 0] ^= 1
    (folder / "b.bz2").write_bytes(bz2.compress(libsvm_text(rows).encode()))
    with refused(SourceError):
        fetch("own", tmp_path, base=address, published=published)


def test_a_download_that_fails_leaves_nothing(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    published = publish(folder)
    (folder / "a.bz2").unlink()
    with refused(SourceError):
        fetch("own", tmp_path / "cache", base=address, published=published)
    assert [*(tmp_path / "cache").glob("*")] == []


@pytest.mark.slow
@with_data
@pytest.mark.parametrize("name", ["scene", "yeast"])
def test_the_checksums_are_those_of_the_archives(
    name: str, served: tuple[Path, str], tmp_path: Path
) -> None:
    folder, address = served
    data = load(name, HERE)
    for file, rows in zip(PUBLISHED[name].files, (data.train, data.test), strict=True):
        (folder / file).write_bytes(bz2.compress(libsvm_text(rows).encode(), 1))
    found = fetch(name, tmp_path / "cache", base=address)
    np.testing.assert_allclose(dense(found.train), dense(data.train), atol=1e-6)
    assert (found.test.labels == data.test.labels).all()


def test_a_fingerprint_does_not_hang_on_the_order_of_rows() -> None:
    rows = some_rows(1)
    assert fingerprint(rows) == fingerprint(rows.take(np.arange(11, -1, -1)))
    assert fingerprint(rows) != fingerprint(some_rows(2))


@with_data
@pytest.mark.parametrize(
    ("name", "train", "test", "labels"),
    [
        ("scene", (1211, 294), (1196, 294), 6),
        ("yeast", (1500, 103), (917, 103), 14),
        ("lyrl", (8102, 47_236), (19_593, 47_236), 4),
    ],
)
def test_the_papers_data_sets_have_their_sizes(
    name: str, train: tuple[int, int], test: tuple[int, int], labels: int
) -> None:
    data = load(name, HERE)
    assert (data.train.contexts.shape, data.test.contexts.shape) == (train, test)
    assert (
        data.train.labels.shape[1]
        == data.test.labels.shape[1]
        == len(data.label_names)
        == labels
    )
    assert ("subset" in data.note) == (name == "lyrl")


@with_data
@pytest.mark.parametrize(
    ("name", "train", "test", "classes"),
    [("optdigits", 3823, 1797, 10), ("pendigits", 7494, 3498, 10), ("satimage", 4435, 2000, 6)],
)
def test_multi_class_data_sets_have_their_splits(
    name: str, train: int, test: int, classes: int
) -> None:
    data = load(name, HERE)
    assert (len(data.train), len(data.test), len(data.label_names)) == (train, test, classes)


def test_the_folder_is_given_or_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLWISE_DATA", "/somewhere")
    assert data_folder() == Path("/somewhere")
    assert data_folder("elsewhere") == Path("elsewhere")
    monkeypatch.delenv("POOLWISE_DATA")
    assert data_folder() == Path("../shared/data")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with refused(UsageError):
        load("yeats")


def test_an_archive_without_its_arrays_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "scene.npz", X_train=np.zeros((1, 1)))
    with refused(SourceError):
        load("scene", tmp_path)
    (tmp_path / "yeast.npz").write_text("no archive")
    with refused(SourceError):
        load("yeast", tmp_path)


def test_an_archive_without_a_published_split_is_refused(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "multiclass_satimage.npz",
        X=np.zeros((2, 1)),
        y=np.zeros(2),
        class_names=np.array(["a"]),
        n_train=np.int64(-1),
    )
    with refused(SourceError):
        load("satimage", tmp_path)


def test_lyrl_comes_from_scikit_learn_with_its_four_roots(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import sklearn.datasets

    topics = np.array(["C11", "CCAT", "E11", "ECAT", "GCAT", "MCAT"])
    target = csr_array(np.array([[1, 1, 0, 0, 0, 1], [0, 0, 1, 1, 1, 0]]))
    asked = []

    def fake(*, data_home: str, subset: str) -> SimpleNamespace:
        asked.append((data_home, subset))
        return SimpleNamespace(data=csr_array((2, 9)), target=target, target_names=topics)

    monkeypatch.setattr(sklearn.datasets, "fetch_rcv1", fake)
    data = load("lyrl", tmp_path)
    assert data.train.labels.tolist() == [[1, 0, 0, 1], [0, 1, 1, 0]]
    assert asked == [(str(tmp_path), "train"), (str(tmp_path), "test")]
    assert (data.fractions_of, data.note) == (23_149, "")


def test_lyrl_that_cannot_be_downloaded_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import sklearn.datasets

    def broken(**_: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(sklearn.datasets, "fetch_rcv1", broken)
    with refused(SourceError):
        datasets.load("lyrl", tmp_path)
