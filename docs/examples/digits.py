"""Digits: error and coverage of each estimator, where the true value is known.

Three classifiers of scikit-learn's digits act on images that they have not seen, and
log their actions.  A fourth one is the target.  All labels are known, so its true
value is known as well; twenty simulated logs give the error of each estimator and the
coverage of its intervals.

Run: python docs/examples/digits.py
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import poolwise as pw
from poolwise.formats.labelled import bandit_log, true_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEED = 5
LOGS = 20
EXPLORE = 0.1  # part of the rows in which a policy picks a digit at random
ROWS = {"small": 2000, "medium": 1000, "large": 500}
TRAINED_ON = {"small": 40, "medium": 120, "large": 360, "target": 700}


def main() -> None:
    """Print error and coverage of every estimator."""
    rng = np.random.default_rng(SEED)
    pixels, digits = load_digits(return_X_y=True)
    pixels /= 16  # from 0 to 1
    order = rng.permutation(len(digits))
    train, test = order[:900], order[900:]
    policies = {
        name: explorer(pixels[train[:size]], digits[train[:size]])
        for name, size in TRAINED_ON.items()
    }
    target = policies.pop("target")
    truth = true_value(pixels[test], digits[test], target)
    print(f"True value of the target: {truth:.4f}\n")

    errors: dict[str, list[float]] = defaultdict(list)
    hits: dict[str, list[bool]] = defaultdict(list)
    for _ in range(LOGS):
        log = bandit_log(
            pixels[test],
            digits[test],
            loggers=policies,
            counts=ROWS,
            rng=rng,
            targets={"target": target},
        )
        found = pw.evaluate(log, {"target": "target_prob"}, which_logs=False)["target"]
        for name, estimate in found.estimates.items():
            errors[name].append(estimate.value - truth)
            hits[name].append(truth in found.intervals[name])

    print(f"{LOGS} logs of {sum(ROWS.values()):,} rows:")
    print(f"{'estimator':<18}{'root mean squared error':>24}{'intervals that cover it':>26}")
    for name, missed in errors.items():
        error = np.sqrt(np.mean(np.square(missed)))
        print(f"{name:<18}{error:>24.4f}{sum(hits[name]):>23} of {LOGS}")


def explorer(pixels: NDArray[np.float64], digits: NDArray[np.int64]) -> pw.Mixture:
    """Return a classifier that sometimes picks a digit at random."""
    model = LogisticRegression(max_iter=2000).fit(pixels, digits)
    return pw.Mixture([pw.Classifier(model), pw.Uniform(range(10))], [1 - EXPLORE, EXPLORE])


if __name__ == "__main__":
    main()
