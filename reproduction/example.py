"""Several labels at once: conditional random fields as policies.

A small version of the paper's experiments.  On the data set `scene`, a policy assigns
six labels to a picture, so there are 64 actions; the reward is the number of labels that
are right.  Two loggers were trained on a small and on a larger part of the training rows,
the target on more.  True values are finite sums over all actions.

Run: python -m reproduction.example
It reads scene.npz from the folder that POOLWISE_DATA names, or downloads the data.
"""

from __future__ import annotations

import numpy as np

import poolwise as pw
from poolwise.formats.labelled import bandit_log, true_value
from reproduction.crf import UnaryCRF, count_correct
from reproduction.datasets import load

SEED = 17
FRACTIONS = {"weak": 0.05, "good": 0.30, "target": 0.50}
ROWS = {"weak": 4000, "good": 1000}


def main() -> None:
    """Print the estimates and the true value, with and without the weak log."""
    rng = np.random.default_rng(SEED)
    data = load("scene")
    order = rng.permutation(len(data.train))
    policies = {}
    for name, fraction in FRACTIONS.items():
        rows = data.train.take(order[: round(fraction * data.fractions_of)])
        policies[name] = UnaryCRF.fit(rows.contexts, rows.labels)
    target = policies.pop("target")
    contexts, labels = np.asarray(data.test.contexts), data.test.labels
    truth = true_value(contexts, labels, target, reward=count_correct)
    print(f"True value of the target: {truth:.4f} of {labels.shape[1]} labels right")

    for kept in (ROWS, {"good": ROWS["good"]}):
        log = bandit_log(
            contexts,
            labels,
            loggers={name: policies[name] for name in kept},
            counts=kept,
            rng=np.random.default_rng(SEED),
            targets={"target": target},
            reward=count_correct,
        )
        found = pw.evaluate(log, {"target": "target_prob"}, which_logs=False)["target"]
        print(f"\n{' and '.join(kept)}, {sum(kept.values()):,} rows:")
        for name, estimate in found.estimates.items():
            covers = "covers" if truth in found.intervals[name] else "misses"
            print(f"  {name:<18}{estimate!s:<18} its interval {covers} the truth")


if __name__ == "__main__":
    main()
