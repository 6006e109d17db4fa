"""The bundled log: handwritten digits as bandit feedback, with a known truth.

Three classifiers of different quality logged the digit that they predicted for an image;
the reward is 1 if it is right.  `scripts/make_bundled_log.py` writes the file.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from poolwise.log.log import Log

LOGGERS = ("small", "medium", "large")
TARGETS = {"candidate": "p_candidate"}


def digits_path() -> Path:
    """Return the path of the file."""
    return Path(str(files("poolwise") / "data" / "digits.parquet"))


def digits_log() -> Log:
    """Return the bundled log, with the probability of every row under every logger.

    >>> digits_log().crossed
    True
    """
    return Log(
        digits_path(),
        logger="policy",
        action="digit",
        reward="correct",
        propensity="p",
        propensities={name: f"p_{name}" for name in LOGGERS},
        context=("pixels",),
    )


def digits_truth() -> dict[str, float]:
    """Return the true value of each target, from the file's metadata.

    >>> 0 < digits_truth()["candidate"] < 1
    True
    """
    import pyarrow.parquet as pq

    metadata = pq.read_schema(digits_path()).metadata
    truth: dict[str, float] = json.loads(metadata[b"poolwise"])["truth"]
    return truth
