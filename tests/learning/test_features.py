from __future__ import annotations

import numpy as np
import pytest

from poolwise.errors import PolicyError, UsageError
from poolwise.learning.features import (
    Encoding,
    TextColumn,
    fingerprint,
    fit_encoding,
    raw_column,
    read_encoding,
)
from poolwise.log.policy import Batch
from tests.support.messages import refused

ALL = np.arange(40)


def encoding_of(**columns: np.ndarray) -> Encoding:
    return fit_encoding({n: raw_column(n, v, {}) for n, v in columns.items()}, ALL)


def test_numbers_are_standardised_and_followed_by_1() -> None:
    x = np.tile([1.0, 3.0], 20)
    matrix = encoding_of(x=x).encode(Batch(np.empty((2, 0)), {"x": np.array([1, 5])}))
    assert matrix.tolist() == [[-1.0, 1.0], [3.0, 1.0]]


def test_rare_labels_are_joined_and_a_missing_one_is_a_label() -> None:
    labels = np.array(["a"] * 20 + [None] * 10 + ["b"] * 6 + ["c"] * 4, dtype=object)
    encoding = encoding_of(s=labels)
    assert encoding.features[0].labels == ("a", None)
    batch = Batch(np.empty((4, 0)), {"s": np.array(["a", None, "c", "new"], dtype=object)})
    matrix = encoding.encode(batch)
    scaled = [(1 - m) / s for m, s in zip(encoding.mean, encoding.scale, strict=True)]
    assert matrix.argmax(axis=1)[:3].tolist() != [0, 0, 0]
    np.testing.assert_allclose(matrix[[0, 1, 2], [0, 1, 2]], scaled)
    np.testing.assert_array_equal(matrix[2], matrix[3])


def test_a_missing_number_is_the_mean_and_is_marked() -> None:
    x = np.array([np.nan] * 10 + [0.0] * 15 + [2.0] * 15)
    encoding = encoding_of(x=x)
    matrix = encoding.encode(Batch(np.empty((2, 0)), {"x": np.array([np.nan, 1.0])}))
    assert matrix[0, 0] == matrix[1, 0] == 0
    assert matrix[0, 1] == pytest.approx(0.75 / np.sqrt(0.25 * 0.75))


def test_constant_columns_are_dropped_and_lists_are_many_numbers() -> None:
    x = np.column_stack([np.full(40, 7.0), np.arange(40.0), np.arange(40.0) % 2])
    assert encoding_of(x=x).chosen.tolist() == [1, 2]


def test_text_for_numbers_is_refused_and_numbers_for_text_are_parsed() -> None:
    numbers, words = encoding_of(x=np.arange(40.0)), encoding_of(s=np.array(["7", "8"] * 20))
    with refused(PolicyError):
        numbers.encode(Batch(np.empty((1, 0)), {"x": np.array(["a"], dtype=object)}))
    text, number = [
        words.encode(Batch(np.empty((1, 0)), {"s": values}))
        for values in (np.array(["7"]), np.array([7], dtype=object))
    ]
    np.testing.assert_array_equal(text, number)


def test_lists_of_another_length_are_refused() -> None:
    with refused(PolicyError):
        encoding_of(x=np.arange(80.0).reshape(40, 2)).encode(
            Batch(np.empty((1, 0)), {"x": np.array([[1.0, 2.0, 3.0]])})
        )


@pytest.mark.parametrize(
    "values",
    [
        np.full(40, np.nan),
        np.array(["2020-01-01"] * 40, dtype="datetime64[D]"),
        np.array([[1], [1, 2]] * 20, dtype=object),
    ],
    ids=["missing", "dates", "lists"],
)
def test_columns_that_are_no_features_are_refused(values: np.ndarray) -> None:
    with refused(UsageError):
        encoding_of(x=values)


def test_codes_continue_over_batches() -> None:
    index: dict[object, int] = {}
    first = raw_column("s", np.array(["a", "b"]), index)
    second = raw_column("s", np.array(["b", "c"]), index)
    assert isinstance(first, TextColumn)
    assert isinstance(second, TextColumn)
    assert (first.codes.tolist(), second.codes.tolist()) == ([0, 1], [1, 2])


def test_an_encoding_survives_json_and_a_change_is_noticed() -> None:
    data = encoding_of(x=np.arange(40.0), s=np.array(["u", "v"] * 20)).to_dict()
    assert read_encoding(data).to_dict() == data
    changed = {**data, "mean": [m + 1 for m in data["mean"]]}
    with pytest.raises(ValueError, match="fingerprint"):
        read_encoding(changed)
    for name, values in (("scale", [0.0] * 3), ("mean", [np.nan] * 3), ("chosen", [0, 1, 99])):
        wrong = {**data, name: values}
        with pytest.raises(ValueError, match=name):
            read_encoding({**wrong, "fingerprint": fingerprint(wrong)})
