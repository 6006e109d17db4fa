"""Evidence: what speaks for and against an answer, in small numbers.

How well the weights cover the target, what each log says by itself, and whether all of
them agree.  `diagnostics` computes these numbers, `alarms` judges them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.diagnosis.deviations import Deviation
    from poolwise.intervals import Interval
    from poolwise.statistics.tails import TailIndex

Row = dict[str, object]


@dataclass(frozen=True)
class Bin:
    """Rows whose weights are alike.

    Attributes:
        lower: Smallest weight that belongs here.
        upper: Smallest weight that no longer does; 0 for the weights that are 0.
        rows: How many rows have such a weight.
    """

    lower: float
    upper: float
    rows: int


@dataclass(frozen=True)
class Overlap:
    """How one set of weights covers the target.

    Attributes:
        divergence: Variance of one weighted reward; infinite without support.
        effective_rows: Rows of equal weight that would be worth as much.
        mean_weight: Should be 1; below it, part of the target was not logged.
        largest_weight: Largest single weight.
        mean_weight_z: Distance of the mean weight from 1, in standard errors.
        mean_weight_p: Chance of a larger distance if nothing is wrong.
        largest_share: Part of the sum of all weights that the largest one makes up.
        unsupported: How often the target plays what was never logged.
        tail: How heavy the tail of the weights is; absent where the engine cannot tell.
        histogram: Rows by size of their weight, without empty bins; none where the engine
            does not count them.
    """

    divergence: float
    effective_rows: float
    mean_weight: float
    largest_weight: float
    mean_weight_z: float
    mean_weight_p: float
    largest_share: float
    unsupported: float
    tail: TailIndex | None
    histogram: tuple[Bin, ...] = ()

    def to_dict(self) -> Row:
        """All numbers under flat names."""
        shown = {k: v for k, v in vars(self).items() if k not in {"tail", "histogram"}}
        shown["histogram"] = [vars(b) for b in self.histogram]
        if self.tail is None:
            return {**shown, "tail_index": None}
        tail = self.tail
        shown |= {"tail_index": tail.value, "tail_threshold": tail.threshold}
        return {**shown, "tail_discrete": tail.discrete}


@dataclass(frozen=True)
class Alone:
    """What one logger's rows say by themselves, and how its log compares with others.

    Attributes:
        value: Its own IPS estimate of the target.
        std_error: Standard error of that.
        relative_rows: r, its rows over those of the last logger.
        relative_divergence: v, its divergence over that of the last logger; infinite
            where either cannot play what the target plays.
        best_share: Its share in the weighting of least variance.
    """

    value: float
    std_error: float
    relative_rows: float
    relative_divergence: float
    best_share: float


@dataclass(frozen=True)
class Check:
    """A test of something that must hold if all is well.

    Attributes:
        name: What is compared.
        statistic: What is tested: a distance in standard errors, Q or F.
        p_value: Chance of a larger one if all is well.
    """

    name: str
    statistic: float
    p_value: float


@dataclass(frozen=True)
class Diagnosis:
    """Whether the logs agree with each other and with the probabilities given for them.

    Attributes:
        alone: What each logger's rows say by themselves.
        gamma: Variance of weighted over that of naive; infinite where it is unknown.
        columns: Mean of each logger's probability over the mixture's; should be 1.
        checks: Tests of agreement, by name.
        typical: Interval of the value of a typical period, if loggers are periods that
            differ (random effects); absent where loggers cannot be compared.
        with_all: Standard error of the estimators that pool, with all loggers.
        without: The same without each logger; empty where it was not asked for.
    """

    alone: Mapping[str, Alone] = field(default_factory=dict)
    gamma: float = math.inf
    columns: Mapping[str, Deviation] = field(default_factory=dict)
    checks: Mapping[str, Check] = field(default_factory=dict)
    typical: Interval | None = None
    with_all: Mapping[str, float] = field(default_factory=dict)
    without: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def of_logger(self, logger: str) -> Row:
        """What concerns one logger, under flat names."""
        found: Row = dict(vars(self.alone[logger])) if logger in self.alone else {}
        if logger in self.columns:
            found |= {f"column_{k}": v for k, v in vars(self.columns[logger]).items()}
        for estimator, std_error in self.without.get(logger, {}).items():
            found[f"{estimator}_std_error_without"] = std_error
        return found

    def to_dict(self) -> Row:
        """What concerns all loggers together."""
        found: Row = {"gamma": self.gamma}
        found["checks"] = [{"check": k, **vars(c)} for k, c in self.checks.items()]
        if self.typical is not None:
            found["typical"] = vars(self.typical)
        return found
