"""Rivals: other ways to compute the estimates, each a plain function from a file to numbers.

They do less than `evaluate`: no checks of the rows, no tables of overlap, no findings.  The
first gives the same five estimates, the second only the paper's three, the third only one;
the last restates the formulas of Open Bandit Pipeline, bootstrap included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.data import loggers_of, targets_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

ROUNDS = 100  # of the bootstrap, OBP's default
TAIL = 0.025  # on each side of a 95% interval


class Guess(NamedTuple):
    """A value and its standard error."""

    value: float
    std_error: float


class Bounds(NamedTuple):
    """A value and its interval."""

    value: float
    lower: float
    upper: float


def numpy_pandas(path: Path) -> dict[str, dict[str, Guess]]:
    """Return naive, balanced and weighted, with standard errors, for each target."""
    import pandas as pd

    frame = pd.read_parquet(path)
    stratum, counts, mixture = _strata(frame, loggers_of(path))
    own_rows = [stratum == k for k in range(len(counts))]
    reward, propensity = frame["reward"].to_numpy(), frame["p"].to_numpy()
    found = {}
    for target in targets_of(path):
        prob = frame[target].to_numpy()
        naive = _by_logger(reward * prob / propensity, own_rows)
        balanced = _by_logger(reward * prob / mixture, own_rows)
        found[target] = {
            "naive": _combined(*naive, counts, counts),
            "balanced": _combined(*balanced, counts, counts),
            "weighted": _combined(*naive, counts, counts / naive[1]),
        }
    return found


def numpy_five(path: Path) -> dict[str, dict[str, Guess]]:
    """Return the five estimates of `evaluate`, with standard errors, for each target."""
    import pandas as pd

    frame = pd.read_parquet(path)
    columns = loggers_of(path)
    stratum, counts, mixture = _strata(frame, columns)
    own_rows = [stratum == k for k in range(len(counts))]
    reward, propensity = frame["reward"].to_numpy(), frame["p"].to_numpy()
    probs = [frame[column].to_numpy() for column in columns.values()]
    found = {}
    for target in targets_of(path):
        prob = frame[target].to_numpy()
        weight = prob / mixture
        value = reward * weight
        own = _by_logger(reward * prob / propensity, own_rows)
        mean = value.mean()
        divergence = np.array([(value**2 * mixture / p).mean() - mean**2 for p in probs])
        normal = mean / weight.mean()
        controls = np.column_stack([*(p / mixture - 1 for p in probs[:-1]), weight - 1])
        centred = controls - controls.mean(axis=0)
        slopes = np.linalg.lstsq(centred, value - mean)[0]
        left = value - controls @ slopes
        found[target] = {
            "naive": _combined(*own, counts, counts),
            "balanced": _combined(*_by_logger(value, own_rows), counts, counts),
            "weighted": _combined(*own, counts, counts / divergence),
            "self-normalised": _combined(
                *_by_logger(normal + (value - normal * weight) / weight.mean(), own_rows),
                counts,
                counts,
            ),
            "calibrated": _combined(*_by_logger(left, own_rows), counts, counts),
        }
    return found


def _by_logger(
    rows: FloatArray, own_rows: Sequence[NDArray[np.bool]]
) -> tuple[FloatArray, FloatArray]:
    parts = [rows[own] for own in own_rows]
    return np.array([p.mean() for p in parts]), np.array([p.var(ddof=1) for p in parts])


def _combined(
    means: FloatArray, variances: FloatArray, counts: FloatArray, mass: FloatArray
) -> Guess:
    share = mass / mass.sum()
    return Guess(float(share @ means), float(np.sqrt((share**2 * variances / counts).sum())))


def duckdb_balanced(path: Path) -> dict[str, Guess]:
    """Return the balanced estimate of each target, by one query."""
    import duckdb

    columns, targets = loggers_of(path), targets_of(path)
    with duckdb.connect() as connection:
        line = connection.execute(_balanced_query(path, columns, targets)).fetchall()[0]
    return {t: Guess(line[2 * k], line[2 * k + 1]) for k, t in enumerate(targets)}


def _balanced_query(path: Path, columns: dict[str, str], targets: Sequence[str]) -> str:
    log = f"read_parquet('{path}')"
    shares = ", ".join(
        f"avg((logger = '{name}')::double) as share_{column}"
        for name, column in columns.items()
    )
    mixture = " + ".join(f"share_{column} * {column}" for column in columns.values())
    rows = ", ".join(f"reward * {t} / mixture as z_{t}" for t in targets)
    by_logger = ", ".join(f"avg(z_{t}) as m_{t}, var_samp(z_{t}) as v_{t}" for t in targets)
    answer = ", ".join(
        f"sum(n * m_{t}) / sum(n), sqrt(sum(n * v_{t})) / sum(n)" for t in targets
    )
    return f"""
        with shares as (select {shares} from {log}),
        mixed as (select *, {mixture} as mixture from {log}, shares),
        weighted as (select logger, {rows} from mixed),
        parts as (select count(*) as n, {by_logger} from weighted group by logger)
        select {answer} from parts"""  # noqa: S608 - names of our own columns


def obp_bootstrap(path: Path) -> dict[str, dict[str, Bounds]]:
    """Compute Open Bandit Pipeline's three formulas, with 100 bootstrap rounds each."""
    import pandas as pd

    return obp_in_memory(path, pd.read_parquet(path))


def obp_in_memory(path: Path, frame: pd.DataFrame) -> dict[str, dict[str, Bounds]]:
    """Compute the same on rows in memory."""
    stratum, counts, mixture = _strata(frame, loggers_of(path))
    reward, pscore = frame["reward"].to_numpy(), frame["p"].to_numpy()
    found = {}
    for target in targets_of(path):
        prob = frame[target].to_numpy()
        naive = reward * prob / pscore
        divergence = np.array([np.var(naive[stratum == k]) for k in range(len(counts))])
        scale = counts.sum() / (divergence * (counts / divergence).sum())
        rows = {
            "naive": naive,
            "balanced": reward * prob / mixture,
            "weighted": naive * scale[stratum],
        }
        found[target] = {name: bootstrapped(values) for name, values in rows.items()}
    return found


def _strata(
    frame: pd.DataFrame, columns: dict[str, str]
) -> tuple[NDArray[np.int64], FloatArray, FloatArray]:
    """Return the number of each row's logger, the rows of each logger, and the mixture."""
    import pandas as pd

    stratum = pd.Categorical(frame["logger"], categories=list(columns)).codes.astype(np.int64)
    counts = np.bincount(stratum).astype(np.float64)
    mixture = frame[list(columns.values())].to_numpy() @ (counts / counts.sum())
    return stratum, counts, mixture


def bootstrapped(values: FloatArray, rounds: int = ROUNDS, seed: int = 12345) -> Bounds:
    """Return the mean, and percentiles of the means of rows drawn with replacement.

    Rows are drawn across loggers and by NumPy's legacy generator, as in that package.
    """
    random = np.random.RandomState(seed)
    means = [random.choice(values, size=len(values)).mean() for _ in range(rounds)]
    lower, upper = np.quantile(means, [TAIL, 1 - TAIL])
    return Bounds(float(values.mean()), float(lower), float(upper))
