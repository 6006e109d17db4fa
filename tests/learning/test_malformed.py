"""Policy files of another form: one message when they are read, or probabilities."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import poolwise as pw
from poolwise.errors import PolicyError, UsageError
from poolwise.learning.features import fingerprint
from poolwise.learning.policy import LearnedMixture
from tests.learning.test_policy import ROWS, linear
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VALUES: tuple[Any, ...] = (
    *(None, -1, 0, 2, 0.5, 1e308, 1e400, float("nan"), 10**30, 10**400, -(2**63), True),
    *(
        "",
        "x",
        "9" * 50,
        [],
        {},
        [[]],
        [None],
        [10**400],
        [[1, 2], [3]],
        {"a": 1},
        ["a", ["b"]],
    ),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "policy.json"
    both = [linear(epsilon=0.1), linear(greedy=False, epsilon=0.1)]
    LearnedMixture(both, [0.25, 0.75]).save(file)
    return file


def places(data: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - JSON
    """Yield the way to every value in JSON data."""
    if before:
        yield before
    keys = (
        data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    )
    for key in keys:
        yield from places(data[key], (*before, key))


def changed(data: Any, place: tuple[Any, ...], value: object) -> Any:  # noqa: ANN401 - JSON
    copy = deepcopy(data)
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return copy


def test_a_file_with_one_other_value_is_refused_or_gives_probabilities(path: Path) -> None:
    good, rng = json.loads(path.read_text()), random.Random(3)  # noqa: S311 - a test
    ways = list(places(good))
    outcomes: set[object] = set()
    for _ in range(400):
        data = changed(good, rng.choice(ways), rng.choice(VALUES))
        with suppress(KeyError, TypeError):
            for part in data["parts"] if rng.random() < 0.7 else ():
                part["encoding"]["fingerprint"] = fingerprint(part["encoding"])
        path.write_text(json.dumps(data))
        try:
            prob = pw.load_policy(path).distribution(ROWS)
        except pw.PoolwiseError as error:
            outcomes.add(type(error))
        else:
            outcomes.add(None)
            np.testing.assert_allclose(prob.sum(axis=1), 1)
    assert {None, UsageError} <= outcomes


DEEP = ["[" * 100_000, '{"kind":' * 100_000, '{"kind": ' + "9" * 5000 + "}"]


@pytest.mark.parametrize("text", DEEP, ids=["lists", "tables", "digits"])
def test_a_file_that_is_too_deep_or_too_long_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(UsageError):
        pw.load_policy(path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("epsilon",), 10**400),
        (("actions",), [["a"], ["b"]]),
        (("actions",), ["a", 10**30]),
        (("parts", 0, "encoding", "features", 0, "width"), float("inf")),
        (("parts", 0, "encoding", "features", 0, "width"), -3),
        (("parts", 0, "encoding", "features", 1, "labels"), [{"a": 1}]),
        (("parts", 0, "encoding", "chosen"), [10**30]),
    ],
    ids=lambda given: None if isinstance(given, tuple) else f"{given!r:.20}",
)
def test_a_value_that_no_policy_has_is_named(
    path: Path, place: tuple[Any, ...], value: object
) -> None:
    path.write_text(json.dumps(changed(json.loads(path.read_text()), place, value)))
    with refused(UsageError):
        pw.load_policy(path)


def test_scores_beyond_doubles_are_refused(path: Path) -> None:
    data = json.loads(path.read_text())
    for part in data["parts"]:
        part["coefficients"] = [[1e308, -1e308] for _ in part["coefficients"]]
    path.write_text(json.dumps(data))
    with refused(PolicyError):
        pw.load_policy(path).distribution(ROWS)
