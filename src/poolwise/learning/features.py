"""Features: columns of a log as the matrix that a policy reads.

Numbers stay as they are; text becomes one column per frequent label, with rare labels joined.
A missing label is a label of its own; a missing number is the mean, with one more column that
marks it.  All columns are standardised on the rows that a policy is learned from.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.errors import PolicyError, UsageError
from poolwise.log.policy import Batch, get_index
from poolwise.rows.learners import one_hot
from poolwise.types import AnyArray, FloatArray, IntArray

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

MOST_LABELS = 64  # of one column
LARGEST_INTEGER = 2**63  # above all integers of a column
FEWEST_ROWS = 10  # of a label that gets a column of its own


@dataclass(frozen=True, eq=False)
class TextColumn:
    """A column of text, as codes into a list of distinct labels.

    Attributes:
        codes: Index of each row's label, shape (n,).
        labels: Distinct labels; None is a missing one.
    """

    codes: IntArray
    labels: Sequence[Hashable]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: IntArray) -> TextColumn:
        return TextColumn(self.codes[rows], self.labels)


RawColumn = AnyArray | TextColumn  # numbers are float32 of shape (n, width)


def raw_column(name: str, values: AnyArray, index: dict[Hashable, int]) -> RawColumn:
    """Return a column as numbers or as codes; `index` collects the labels."""
    if values.dtype.kind in "iuf":
        numbers = values.reshape(len(values), math.prod(values.shape[1:])).astype(np.float32)
        numbers[~np.isfinite(numbers)] = np.nan
        return numbers
    if values.dtype.kind not in "OUSb" or values.ndim != 1:
        raise UsageError(
            f"a feature must be a column of numbers or text, got {name!r}: name the columns "
            "to learn from in `features`"
        )
    try:
        rows = [None if _is_gap(value) else value for value in values.tolist()]
        return TextColumn(code_labels(rows, index), list(index))
    except TypeError:
        raise UsageError(f"a feature must be numbers or text, got lists in {name!r}") from None


def _is_gap(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def code_labels(labels: Sequence[Hashable], index: dict[Hashable, int]) -> IntArray:
    """Return the index of each label; a new one gets the next."""
    numbers = (index.setdefault(label, len(index)) for label in labels)
    return np.fromiter(numbers, np.int64, len(labels))


@dataclass(frozen=True)
class Feature:
    """One column of the log and the columns that it becomes.

    Attributes:
        column: Name in the log.
        width: Numbers per row; 0 for a column of labels.
        missing: True if a further column marks missing numbers.
        labels: Labels with a column of their own; all others share one more.
    """

    column: str
    width: int = 1
    missing: bool = False
    labels: tuple[Hashable, ...] = ()

    @property
    def size(self) -> int:
        """Columns of the matrix."""
        return self.width + self.missing if self.width else len(self.labels) + 1

    def typed(self, batch: Batch) -> AnyArray:
        """Return the column of a batch; in a column of labels, numbers are labels."""
        values = batch[self.column]
        return values if self.width else values.astype(object)

    def block(self, values: RawColumn) -> FloatArray:
        """Return the columns of the matrix before they are standardised."""
        if isinstance(values, TextColumn):
            if self.width:
                raise PolicyError("learned", f"needs numbers in column {self.column!r}")
            index = get_index(self.labels, values.labels)
            index[index < 0] = len(self.labels)
            return one_hot(index[values.codes], self.size)
        if self.width != values.shape[1]:
            reason = f"needs {self.width} numbers per row in column {self.column!r}"
            raise PolicyError("learned", reason)
        gaps = np.isnan(values).any(axis=1, keepdims=True)
        return np.hstack([values, gaps]) if self.missing else values


@dataclass(frozen=True, eq=False)
class Encoding:
    """Turns rows into standardised features, the last of which is 1.

    Attributes:
        features: Columns of the log.
        chosen: Columns of the matrix that vary, as indices into all of them.
        mean: Mean of each chosen column.
        scale: Standard deviation of each chosen column.
    """

    features: tuple[Feature, ...]
    chosen: IntArray
    mean: FloatArray
    scale: FloatArray

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the log."""
        return tuple(feature.column for feature in self.features)

    @property
    def size(self) -> int:
        """Columns of the matrix, with the last, which is 1."""
        return len(self.chosen) + 1

    def matrix(
        self, columns: Mapping[str, RawColumn], rows: int, kind: type = np.float64
    ) -> FloatArray:
        """Return the features of all rows, shape (rows, size)."""
        filled: AnyArray = np.ones((rows, self.size), dtype=kind)
        last = 0
        offset = 0
        for feature in self.features:
            own = self.chosen[(self.chosen >= offset) & (self.chosen < offset + feature.size)]
            block = feature.block(columns[feature.column])[:, own - offset]
            place = slice(last, last + len(own))
            scaled = (block - self.mean[place]) / self.scale[place]
            filled[:, place] = np.nan_to_num(scaled, copy=False, nan=0.0)
            last, offset = last + len(own), offset + feature.size
        return filled

    def encode(self, batch: Batch) -> FloatArray:
        """Return the features of a batch."""
        columns = {f.column: raw_column(f.column, f.typed(batch), {}) for f in self.features}
        return self.matrix(columns, len(batch))

    def to_dict(self) -> dict[str, Any]:
        """Return the encoding as JSON data, with a fingerprint."""
        features = [
            {"column": f.column, "width": f.width, "missing": f.missing, "labels": [*f.labels]}
            for f in self.features
        ]
        numbers = {"chosen": self.chosen, "mean": self.mean, "scale": self.scale}
        data = {"features": features, **{name: v.tolist() for name, v in numbers.items()}}
        return {**data, "fingerprint": fingerprint(data)}


def fingerprint(data: Mapping[str, Any]) -> str:
    """Return a hash of the features: columns, labels, means and scales."""
    named = {name: data[name] for name in ("features", "chosen", "mean", "scale")}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]


def fit_encoding(columns: Mapping[str, RawColumn], rows: IntArray) -> Encoding:
    """Choose labels, means and scales from some rows; drop columns that do not vary."""
    features, means, scales = [], [], []
    for name, values in columns.items():
        part = values[rows]
        feature = _feature(name, part)
        block = feature.block(part)
        features.append(feature)
        means.append(np.nanmean(block, axis=0, dtype=np.float64))
        scales.append(np.nanstd(block, axis=0, dtype=np.float64))
    mean, scale = (np.concatenate([np.empty(0), *parts]) for parts in (means, scales))
    chosen = np.flatnonzero(scale > np.finfo(np.float32).eps * np.abs(mean))
    return Encoding(tuple(features), chosen, mean[chosen], scale[chosen])


def _feature(name: str, values: RawColumn) -> Feature:
    if isinstance(values, TextColumn):
        counts = Counter(values.codes.tolist())
        by_label = {values.labels[code]: rows for code, rows in counts.items()}
        frequent = [label for label, rows in by_label.items() if rows >= FEWEST_ROWS]
        ranked = sorted(frequent, key=lambda label: (-by_label[label], str(label)))
        return Feature(name, 0, labels=tuple(ranked[:MOST_LABELS]))
    gaps = np.isnan(values)
    if gaps.all(axis=0).any():
        raise UsageError(f"a feature must have values, and {name!r} is missing in all rows")
    return Feature(name, values.shape[1], missing=bool(gaps.any()))


def refuse_labels(what: str, labels: Sequence[object]) -> None:
    """Raise ValueError if a label of JSON data is neither text nor a number of 64 bits."""
    for label in labels:
        plain = label is None or isinstance(label, str | int | float)
        if not plain or (
            isinstance(label, int) and not -LARGEST_INTEGER <= label < LARGEST_INTEGER
        ):
            raise ValueError(f"{what} must be text or numbers of 64 bits")


def read_encoding(data: Mapping[str, Any]) -> Encoding:
    """Return the encoding of JSON data; a ValueError says what is wrong with it."""
    features = tuple(
        Feature(str(f["column"]), int(f["width"]), bool(f["missing"]), tuple(f["labels"]))
        for f in data["features"]
    )
    for feature in features:
        refuse_labels(f"labels of {feature.column!r}", feature.labels)
        if feature.width < 0:
            raise ValueError(f"the width of {feature.column!r} must not be negative")
    mean, scale = (np.array(data[name], dtype=np.float64) for name in ("mean", "scale"))
    chosen = np.array(data["chosen"], dtype=np.int64)
    total = sum(feature.size for feature in features)
    if not (chosen.shape == mean.shape == scale.shape and chosen.ndim == 1):
        raise ValueError("chosen, mean and scale must have one number per feature")
    if len(chosen) and not 0 <= chosen.min() <= chosen.max() < total:
        raise ValueError(f"chosen must be among the {total} columns of the features")
    if not (np.isfinite(mean).all() and np.isfinite(scale).all() and (scale > 0).all()):
        raise ValueError("mean and scale must be finite, and scale positive")
    if fingerprint(data) != data["fingerprint"]:
        raise ValueError("the features do not match their fingerprint")
    return Encoding(features, chosen, mean, scale)
