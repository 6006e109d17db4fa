"""The five reference problems T1 to T5 and their exact numbers, from `golden.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from poolwise.engines.exact import FiniteProblem

GOLDEN: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("golden.json").read_text("utf-8")
)
TOYS = tuple(GOLDEN)
IN_GOLDEN = {"naive": "naive", "balanced": "balanced", "weighted": "weighted (known div.)"}


def toy(name: str) -> FiniteProblem:
    """One of the problems; its loggers are called "1", "2", ..."""
    golden = GOLDEN[name]
    values, probs = (np.array(golden[k]) for k in ("reward_values", "reward_probs"))
    mean = (values * probs).sum(axis=2)
    square = (values**2 * probs).sum(axis=2)
    labels = [str(k + 1) for k in range(len(golden["n"]))]
    return FiniteProblem(
        context_prob=np.array(golden["px"]),
        reward=mean,
        target=np.array(golden["target"]),
        loggers=dict(zip(labels, map(np.array, golden["pis"]), strict=True)),
        counts=dict(zip(labels, golden["n"], strict=True)),
        reward_variance=np.maximum(square - mean**2, 0),
    )
