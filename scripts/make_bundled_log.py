"""Make the bundled log: scikit-learn's digits turned into bandit feedback.

As in the paper's experiments: classifiers trained on small, medium and
large fractions of one half of the digits become stochastic loggers; images of the
other half are drawn at random, each logger picks a digit for each, and the reward is
1 if the digit is right.  The target is trained on more.  All labels are
known, so the true value of the target is known too; it is in the metadata of the file.

Run: .venv/bin/python scripts/make_bundled_log.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

OUT = Path(__file__).parent.parent / "src" / "poolwise" / "data" / "digits.parquet"
SEED = 20170813  # the first day of KDD 2017
FRACTIONS = {"small": 0.03, "medium": 0.10, "large": 0.30}
ROWS = {"small": 6000, "medium": 3000, "large": 1500}
TARGET_FRACTION = 0.60
TEMPERATURE = 1.5  # flattens the classifiers: a logger that never explores logs little
FLOOR = 0.02  # of every logger's traffic goes to digits picked at random

Array = NDArray[np.float64]


def main() -> None:
    """Write the file and print a summary."""
    rng = np.random.default_rng(SEED)
    pixels, digits = load_digits(return_X_y=True)
    order = rng.permutation(len(digits))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    loggers = {
        name: policy(pixels, digits, train[: int(fraction * len(train))], test)
        for name, fraction in FRACTIONS.items()
    }
    target = policy(pixels, digits, train[: int(TARGET_FRACTION * len(train))], test)
    parts = [
        rows_of(name, loggers, target, pixels[test], digits[test], rng) for name in loggers
    ]
    table = pa.concat_tables(parts)
    table = table.take(pa.array(rng.permutation(len(table))))
    truth = float(target[np.arange(len(test)), digits[test]].mean())
    about = {
        "truth": {"candidate": truth},
        "source": "scikit-learn load_digits (UCI optical recognition of handwritten digits)",
        "made_by": "scripts/make_bundled_log.py",
    }
    table = table.replace_schema_metadata({"poolwise": json.dumps(about)})
    OUT.parent.mkdir(exist_ok=True)
    pq.write_table(table, OUT, compression="zstd", compression_level=19)
    print(f"{OUT.name}: {len(table):,} rows, {OUT.stat().st_size:,} bytes, truth {truth:.6f}")


def policy(
    pixels: Array, digits: NDArray[np.int64], rows: NDArray[np.int64], test: NDArray[np.int64]
) -> Array:
    """Return the distribution over the ten digits for every test image, shape (images, 10)."""
    model = LogisticRegression(max_iter=5000).fit(pixels[rows] / 16, digits[rows])
    scores = np.full((len(test), 10), -1e3)
    scores[:, model.classes_] = model.predict_log_proba(pixels[test] / 16) / TEMPERATURE
    prob = np.exp(scores - scores.max(axis=1, keepdims=True))
    prob /= prob.sum(axis=1, keepdims=True)
    return (1 - FLOOR) * prob + FLOOR / 10


def rows_of(
    name: str,
    loggers: dict[str, Array],
    target: Array,
    pixels: Array,
    digits: NDArray[np.int64],
    rng: np.random.Generator,
) -> pa.Table:
    """Draw the rows of one logger."""
    images = rng.integers(len(digits), size=ROWS[name])
    cumulative = loggers[name][images].cumsum(axis=1)
    action = (rng.random((len(images), 1)) * cumulative[:, -1:] > cumulative).sum(axis=1)
    return pa.table(
        {
            "policy": [name] * len(images),
            "digit": pa.array(action, pa.int8()),
            "correct": pa.array(action == digits[images], pa.int8()),
            "p": loggers[name][images, action],
            **{f"p_{other}": prob[images, action] for other, prob in loggers.items()},
            "p_candidate": target[images, action],
            "pixels": pa.FixedSizeListArray.from_arrays(
                pa.array(pixels[images].astype(np.int8).ravel()), 64
            ),
        }
    )


if __name__ == "__main__":
    main()
