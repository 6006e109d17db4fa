"""Labelled data sets: the paper's three, three with one class per row, and a synthetic one.

A data set is read from a folder (`--data`, or the environment variable POOLWISE_DATA), as
NumPy archive or as LibSVM text, and downloaded into that folder if it is missing.  No data
set is part of the repository: their licences do not allow it explicitly.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from poolwise.errors import SourceError, UsageError, did_you_mean
from poolwise.files import ARCHIVE_ERRORS, read_arrays
from reproduction.crf import to_masks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray
    from scipy.sparse import csr_array

    from poolwise.types import FloatArray

FeatureMatrix: TypeAlias = "FloatArray | csr_array[Any]"  # sparse where the file is sparse

FOLDER = "POOLWISE_DATA"
DEFAULT_FOLDER = Path("../shared/data")
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multilabel/"
ROOTS = ("CCAT", "ECAT", "GCAT", "MCAT")  # the top of the topic tree of RCV1
RCV1_TRAIN = 23_149  # training documents of LYRL; fractions are of these
SUBSET_SEED = 2004  # the subset is sorted by source: shuffle before the split
FULL_SIZE = "lyrl-shaped"  # name of a synthetic data set
FULL_ROWS = 781_265  # its test rows
FULL_SEED = 781_265
FULL_FEATURES, FULL_LABELS = 20, 4
FULL_NOTE = f"{FULL_SIZE} is synthetic: it has the size of LYRL, to time the computation."


@dataclass(frozen=True, eq=False)
class Labelled:
    """Contexts and their labels.

    Attributes:
        contexts: Features, dense or sparse, shape (n, d).
        labels: Shape (n, q) of 0 and 1, or (n,) of classes.
    """

    contexts: FeatureMatrix
    labels: NDArray[Any]  # uint8 vectors, or classes of any integer type

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64] | slice) -> Labelled:
        """Return the rows with these indices."""
        return Labelled(self.contexts[rows], self.labels[rows])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows, as their publishers split them.

    Attributes:
        name: Short name.
        train: Rows to fit policies on.
        test: Rows whose contexts are the empirical distribution.
        label_names: Names of the labels or classes.
        fractions_of: Training rows of the full data set, which fractions refer to.
        note: Difference from the published data set, to print with results; or empty.
    """

    name: str
    train: Labelled
    test: Labelled
    label_names: tuple[str, ...]
    fractions_of: int
    note: str = ""


@dataclass(frozen=True)
class Published:
    """A multi-label data set on the LibSVM page.

    The page gives no checksums, so the content is checked: shapes, and a SHA-256 over the
    label vectors in sorted order, which does not depend on compression or row order.

    Attributes:
        files: Training and test file.
        features: Number of features.
        labels: Number of labels.
        sha256: `fingerprint` of the training and test labels.
    """

    files: tuple[str, str]
    features: int
    labels: int
    sha256: tuple[str, str]


PUBLISHED: Mapping[str, Published] = {
    "scene": Published(
        ("scene_train.bz2", "scene_test.bz2"),
        features=294,
        labels=6,
        sha256=(
            "da0e52be169ea2abb997c858d8329a23aad648e1a8e5fad1d233388d795d6019",
            "05c41f0f7a177d9b8b8a3b5329a1edf138603f40b660e36f696e6eb058af0d47",
        ),
    ),
    "yeast": Published(
        ("yeast_train.svm.bz2", "yeast_test.svm.bz2"),
        features=103,
        labels=14,
        sha256=(
            "29cb48f8f4ee96a77b66a1abead02ef50c7cc4d4d2c9bb44944daefafcd81427",
            "b02a9896fad3d3a4c19ba1e21f7a6056e0ff9cedbffaa8a36e9cea837ec80142",
        ),
    ),
}
MULTI_CLASS = ("optdigits", "pendigits", "satimage")
NAMES = (*PUBLISHED, "lyrl", *MULTI_CLASS)


def data_folder(folder: Path | str | None = None) -> Path:
    """Return the folder of the data sets: the argument, POOLWISE_DATA, or the default."""
    return Path(folder or os.environ.get(FOLDER) or DEFAULT_FOLDER)


def load(name: str, folder: Path | str | None = None) -> Dataset:
    """Return a data set by name, from the folder or else from its publisher."""
    where = data_folder(folder)
    if name in MULTI_CLASS:
        return read_multi_class(where / f"multiclass_{name}.npz")
    if name == "lyrl":
        subset = where / "rcv1_pt3_27k.npz"
        return read_rcv1_subset(subset) if subset.is_file() else fetch_lyrl(where)
    if name not in PUBLISHED:
        hint = did_you_mean(name, NAMES)
        raise UsageError(f"data sets are {', '.join(NAMES)}; got {name!r}{hint}")
    archive = where / f"{name}.npz"
    return read_multi_label(archive) if archive.is_file() else fetch(name, where)


def read_multi_label(path: Path | str) -> Dataset:
    """Read a NumPy archive with X_train, Y_train, X_test, Y_test and label_names."""
    with _archive(path, "X_train", "Y_train", "X_test", "Y_test", "label_names") as arrays:
        train, test = (
            Labelled(arrays[f"X_{part}"].astype(np.float64), arrays[f"Y_{part}"])
            for part in ("train", "test")
        )
        names = tuple(arrays["label_names"].tolist())
    return Dataset(Path(path).stem, train, test, names, len(train))


def read_multi_class(path: Path | str) -> Dataset:
    """Read a NumPy archive with X, y, class_names and n_train, the rows that come first."""
    with _archive(path, "X", "y", "class_names", "n_train") as arrays:
        rows = Labelled(arrays["X"].astype(np.float64), arrays["y"].astype(np.int64))
        split = int(arrays["n_train"])
        if split < 0:
            raise SourceError(str(path), "it has no published split: n_train is -1")
        train, test = rows.take(slice(None, split)), rows.take(slice(split, None))
        names = tuple(arrays["class_names"].tolist())
    return Dataset(Path(path).stem.removeprefix("multiclass_"), train, test, names, split)


def read_rcv1_subset(path: Path | str) -> Dataset:
    """Read a subset of the LYRL test set, 27,695 documents, and split it in two.

    Fractions refer to the 23,149 training documents of the full collection, so that
    policies are trained on as many documents as in the paper; the largest fraction is
    0.35, that is 8,102 documents, and all other documents are test rows.
    """
    from scipy.sparse import csr_array

    keys = ("data", "indices", "indptr", "shape", "Y_roots", "root_names")
    with _archive(path, *keys) as arrays:
        parts = (arrays["data"].astype(np.float64), arrays["indices"].astype(np.int32))
        matrix = csr_array((*parts, arrays["indptr"]), shape=tuple(arrays["shape"].tolist()))
        order = np.random.default_rng(SUBSET_SEED).permutation(matrix.shape[0])
        rows = Labelled(matrix, arrays["Y_roots"]).take(order)
    split = min(round(0.35 * RCV1_TRAIN), len(rows) // 2)
    train, test = rows.take(slice(None, split)), rows.take(slice(split, None))
    note = (
        f"LYRL is a subset here: {len(rows):,} documents of its test set, {split:,} of them "
        f"for training and {len(test):,} for testing, instead of {RCV1_TRAIN:,} and 781,265."
    )
    return Dataset("lyrl", train, test, tuple(arrays["root_names"].tolist()), RCV1_TRAIN, note)


@contextmanager
def _archive(path: Path | str, *keys: str) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield some arrays of an archive; raise SourceError if they cannot be read or used."""
    try:
        arrays = read_arrays(Path(path).read_bytes())
        missing = [key for key in keys if key not in arrays]
        if missing:
            raise SourceError(str(path), f"it has no {', '.join(missing)}")
        yield {key: arrays[key] for key in keys}
    except OSError as error:
        raise SourceError(str(path), error.strerror or str(error)) from error
    except ARCHIVE_ERRORS as error:
        raise SourceError(str(path), f"it is not the archive of a data set: {error}") from error


def read_libsvm(path: Path | str, features: int, labels: int) -> Labelled:
    """Read LibSVM's multi-label text, plain, .gz or .bz2: ``0,3 5:0.25 17:1``.

    Labels count from 0, features from 1; a row without labels starts with a space.
    """
    from sklearn.datasets import load_svmlight_file

    try:
        matrix, assigned = load_svmlight_file(
            str(path), n_features=features, zero_based=False, multilabel=True
        )
        bits = np.zeros((len(assigned), labels), dtype=np.uint8)
        for row, indices in enumerate(assigned):
            bits[row, np.asarray(indices, dtype=np.int64)] = 1
    except (OSError, ValueError, IndexError) as error:
        raise SourceError(
            str(path), f"it is not LibSVM text of {labels} labels: {error}"
        ) from error
    dense = matrix.toarray() if matrix.nnz > matrix.shape[0] * matrix.shape[1] / 10 else matrix
    return Labelled(dense, bits)


def fetch(
    name: str,
    folder: Path,
    *,
    base: str = LIBSVM,
    published: Mapping[str, Published] = PUBLISHED,
) -> Dataset:
    """Return a data set of the LibSVM page; download files that the folder lacks."""
    entry, parts = published[name], []
    for file, checksum in zip(entry.files, entry.sha256, strict=True):
        path = _retrieve(base + file, folder / file)
        rows = read_libsvm(path, entry.features, entry.labels)
        actual = fingerprint(rows)
        if actual != checksum:
            raise SourceError(
                str(path),
                f"the checksum of its labels must be {checksum}, got {actual}: the file is "
                "damaged or another version. Delete it to download it again.",
            )
        parts.append(rows)
    names = tuple(str(k) for k in range(entry.labels))
    train, test = parts
    return Dataset(name, train, test, names, len(train))


def fingerprint(rows: Labelled) -> str:
    """Return the SHA-256 of shape and labels, independent of the order of the rows.

    >>> fingerprint(Labelled(np.zeros((2, 3)), np.array([[0, 1], [1, 0]])))[:12]
    '77dba61b97de'
    """
    masks = np.sort(to_masks(rows.labels)).astype("<i8")
    shape = f"{rows.contexts.shape[0]}x{rows.contexts.shape[1]}x{rows.labels.shape[1]}:"
    return hashlib.sha256(shape.encode() + masks.tobytes()).hexdigest()


def _retrieve(url: str, path: Path) -> Path:
    if path.is_file():
        return path
    import pooch

    try:  # pooch writes a temporary file and renames it, so that no partial file remains
        pooch.retrieve(url, known_hash=None, fname=path.name, path=path.parent)
    except Exception as error:
        reason = f"it is not there, and {url} cannot be downloaded: {error}"
        raise SourceError(str(path), reason) from error
    return path


def fetch_lyrl(folder: Path) -> Dataset:
    """Return all of LYRL, through scikit-learn, which verifies checksums."""
    from sklearn.datasets import fetch_rcv1

    parts = []
    for subset in ("train", "test"):
        try:
            bunch = fetch_rcv1(data_home=str(folder), subset=subset)
        except Exception as error:
            reason = f"LYRL is not there and cannot be downloaded: {error}"
            raise SourceError(str(folder), reason) from error
        topics = list(bunch.target_names)
        roots = bunch.target[:, [topics.index(root) for root in ROOTS]].toarray()
        parts.append(Labelled(bunch.data, roots.astype(np.uint8)))
    train, test = parts
    return Dataset("lyrl", train, test, ROOTS, RCV1_TRAIN)


def lyrl_shaped(test_rows: int = FULL_ROWS, train_rows: int = RCV1_TRAIN) -> Dataset:
    """Return a synthetic data set with as many rows and labels as LYRL."""
    rng = np.random.default_rng(FULL_SEED)
    weights = rng.normal(size=(FULL_FEATURES, FULL_LABELS))
    biases = rng.normal(-1.0, 0.5, size=FULL_LABELS)
    parts = []
    for size in (train_rows, test_rows):
        contexts = rng.normal(size=(size, FULL_FEATURES))
        chance = 1 / (1 + np.exp(-(contexts @ weights + biases)))
        labels = rng.random(chance.shape) < chance
        parts.append(Labelled(contexts, labels.astype(np.uint8)))
    train, test = parts
    names = tuple(f"label {k}" for k in range(FULL_LABELS))
    return Dataset(FULL_SIZE, train, test, names, train_rows, FULL_NOTE)
