"""Dependence: users that no cluster names are found, and contexts are not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw
from poolwise.diagnosis.dependence import variance_factor
from poolwise.rows.groups import PairSums

CODE = "rows-repeat-unit"


def log(column: object, reward: object, **roles: object) -> pw.Log:
    rng = np.random.default_rng(3)
    rows = len(np.asarray(reward))
    table = {"unit": column, "reward": reward, "policy": rng.choice(["a", "b"], rows)}
    table |= {"p": np.full(rows, 0.5)}
    usual = {"reward": "reward", "logger": "policy", "propensity": "p"}
    return pw.Log(pa.table(table), **(usual | roles))  # type: ignore[arg-type]


def codes(source: pw.Log) -> list[str]:
    return [finding.code for finding in pw.check(source).findings]


def test_the_sums_are_those_of_pairs() -> None:
    unit, reward = [0, 0, 0, 1], [1.0, 1.0, 0.0, 0.0]  # mean 1/2, gaps +-1/2
    source = log(pa.array(unit), reward, logger=None)
    engine = pw.DuckDB()
    with engine.open(source, {}) as rows:
        found = rows.pair_sums()
    # value 0: gaps 1/2, 1/2, -1/2: total 1/2, squares 3/4, fourths 3/16
    assert found["unit"] == PairSums(2, 4, 1.0, 1 / 4 - 3 / 4, 2 * (9 / 16 - 3 / 16))


def test_few_values_and_noise_are_no_units() -> None:
    assert variance_factor(PairSums(1_000, 4_000, 4_000.0, 2_000.0, 24_000.0)) == 1.5
    assert variance_factor(PairSums(99, 4_000, 4_000.0, 2_000.0, 24_000.0)) == 1.0
    assert variance_factor(PairSums(1_000, 4_000, 4_000.0, 700.0, 24_000.0)) == 1.0


@pytest.mark.parametrize("kind", ["text", "number"])
def test_users_that_earn_alike_are_found(kind: str) -> None:
    rng = np.random.default_rng(1)
    user = rng.integers(400, size=4_000)
    reward = (rng.random(4_000) < rng.uniform(0.1, 0.9, 400)[user]).astype(float)
    column = np.array([f"u{k}" for k in user]) if kind == "text" else user
    source = log(column, reward)
    assert CODE in codes(source)
    assert CODE not in codes(log(column, reward, cluster="unit"))


def test_users_that_do_not_and_contexts_are_silent() -> None:
    rng = np.random.default_rng(2)
    user, country = rng.integers(400, size=4_000), rng.integers(8, size=4_000)
    noise = rng.random(4_000)
    assert CODE not in codes(log(user, noise))
    assert CODE not in codes(log(country, noise + country))
