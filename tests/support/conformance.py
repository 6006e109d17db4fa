"""Calls of every method of `Rows`: an engine has it, or says which engines do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from poolwise.engines.base import CAPABILITIES, Rows, lacking
from poolwise.errors import UsageError
from poolwise.log.log import Log
from poolwise.log.requests import Requests
from poolwise.moments.blocks import Payoff
from poolwise.moments.heavy import Contrast
from poolwise.moments.terms import BALANCED_WEIGHT, WEIGHTED_REWARD, Needs

if TYPE_CHECKING:
    from collections.abc import Callable

NEEDS = Needs(groups=((WEIGHTED_REWARD.bind("t"),),))
TERMS = (WEIGHTED_REWARD.bind("t"),)
CALLS: dict[str, Callable[[Rows, Log], object]] = {
    "counts": lambda rows, _: rows.counts,
    "all_counts": lambda rows, _: rows.all_counts,
    "cells": lambda rows, _: rows.cells,
    "by_period": lambda rows, _: rows.by_period.moments(NEEDS),
    "by_kernel": lambda rows, _: rows.by_kernel,
    "saved": lambda rows, _: rows.saved,
    "shaped": lambda rows, _: rows.shaped,
    "notes": lambda rows, _: rows.notes,
    "live": lambda rows, _: rows.live,
    "complete": lambda rows, _: rows.complete().counts,
    "mix_own": lambda rows, _: rows.without("a").mix_own(),
    "attempt": lambda rows, _: rows.attempt(lambda view: view.counts),
    "check": lambda rows, _: rows.check(),
    "moments": lambda rows, _: rows.moments(NEEDS),
    "bucketed": lambda rows, _: rows.bucketed([NEEDS], 5),
    "bucketed_and_tallied": lambda rows, _: rows.bucketed_and_tallied([NEEDS], 5, NEEDS),
    "action_sums": lambda rows, _: rows.action_sums(),
    "unlogged": lambda rows, _: rows.unlogged(),
    "settle": lambda rows, _: rows.settle([Payoff("t", 0.0, 1.0, 1.0)], pooled=True),
    "heaviest": lambda rows, _: rows.heaviest([Contrast(BALANCED_WEIGHT.bind("t"))], 0.5),
    "heaviest_clusters": lambda rows, _: rows.heaviest_clusters(
        [Contrast(BALANCED_WEIGHT.bind("t"))], 0.5
    ),
    "sample": lambda rows, _: rows.sample(TERMS, 10),
    "without": lambda rows, _: rows.without("a").moments(NEEDS),
    "measuring": lambda rows, _: rows.measuring(""),
    "with_shares": lambda rows, _: rows.with_shares({"a": 1.0, "b": 2.0}).moments(NEEDS),
    "requests_in_periods": lambda rows, _: rows.requests_in_periods(),
    "times": lambda rows, _: rows.times(),
    "pair_sums": lambda rows, _: rows.pair_sums(),
    "local_files": lambda rows, log: rows.local_files(log),
    "click_support": lambda rows, _: rows.click_support(),
    "click_support_by_segment": lambda rows, _: rows.click_support_by_segment,
    "click_predictions": lambda rows, _: rows.click_predictions(),
    "copies": lambda rows, _: rows.copies(),
    "sampled_copies": lambda rows, _: rows.sampled_copies(),
}
PERIODS = {"cells", "by_period", "requests_in_periods"}
BLOCKS = PERIODS | {"settle", "sample", "measuring"}
NO_ROWS = BLOCKS | {
    "bucketed",
    "bucketed_and_tallied",
    "without",
    "check",
    "with_shares",
    "mix_own",
}


def table_of_rows(rows: int = 60) -> pa.Table:
    """Return rows of two loggers and two days, each a request of its own."""
    rng = np.random.default_rng(3)
    columns: dict[str, Any] = {n: rng.uniform(0.2, 0.8, rows) for n in ("p_a", "p_b", "t")}
    columns |= {"logger": np.where(np.arange(rows) % 3, "b", "a"), "id": np.arange(rows)}
    return pa.table(columns | {"reward": rng.random(rows), "day": np.arange(rows) % 2})


def log_of_rows(source: object = None, **roles: Any) -> Log:  # noqa: ANN401 - of `Log`
    """Return the log of these rows, with a period and requests."""
    names = {"a": "p_a", "b": "p_b"}
    return Log(
        table_of_rows() if source is None else source,
        **({"reward": "reward", "logger": "logger", "propensities": names} | roles),
    )


def with_periods(source: object = None) -> Log:
    return log_of_rows(source, period="day", requests=Requests("id"))


def find_lacking(rows: Rows, log: Log) -> set[str]:
    """Call every method; return those that the engine lacks, by the one form of message."""
    messages = {str(lacking(name)) for name in CAPABILITIES}
    found = set()
    for name, call in CALLS.items():
        try:
            call(rows, log)
        except UsageError as error:
            found.add(name if str(error) in messages else f"{name}: {error}")
    return found
