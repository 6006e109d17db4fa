"""Metrics: what a target is judged by besides the log's reward.

A metric is a column or SQL expression of the rows, or a ratio of two.  It has a direction, and
a role in a decision: primary, guardrail, or neither.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, get_args

from poolwise.errors import UsageError

if TYPE_CHECKING:
    from poolwise.log.log import Log

Better = Literal["higher", "lower"]
OWN = "reward"  # name of the metric that is the log's own reward
PER = re.compile(r"\s+per\s+", re.IGNORECASE)
NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
WORD = re.compile(
    rf",\s*(?P<name>primary|higher|lower|guard)(?:\s+(?P<margin>{NUMBER}\s*%?))?\s*$"
)
RELATIVE = re.compile(rf"\s*({NUMBER})\s*%\s*")


@dataclass(frozen=True)
class Guard:
    """Margin by which a guardrail may be worse than the baseline.

    Attributes:
        margin: Size of the margin, 0 or more.
        relative: True if it is a part of the baseline's value.

    Examples:
        >>> print(Guard(0.05, relative=True)), print(Guard(2.0))
        5%
        2
        (None, None)
    """

    margin: float
    relative: bool = False

    def __str__(self) -> str:
        return f"{100 * self.margin:g}%" if self.relative else f"{self.margin:g}"


@dataclass(frozen=True)
class Metric:
    """A column or SQL expression of the rows, or a ratio of two, and its role in a decision.

    Attributes:
        reward: Column or SQL expression whose mean under a target is the metric.
        per: Column or SQL expression whose mean divides it, as in revenue per click; None for
            a mean per row.
        better: "higher" or "lower".
        primary: True if a decision requires that the target is shown to be better.
        guard: Margin by which the target may be worse, if a decision requires that it is not
            worse by more: a number, or a text such as "5%" for a part of the baseline's value.
            None for no such requirement.

    Examples:
        >>> Metric("amount", per="click", better="higher").ratio
        True
    """

    reward: str
    per: str | None = None
    better: Better = "higher"
    primary: bool = False
    guard: float | str | None = None

    def __post_init__(self) -> None:
        for name, text in (("reward", self.reward), ("per", self.per)):
            if name == "per" and text is None:
                continue
            if not isinstance(text, str) or not text.strip():
                raise UsageError(
                    f"`{name}` of a metric must be a column or an SQL expression, got {text!r}"
                )
        if self.better not in get_args(Better):
            raise UsageError(f"`better` must be 'higher' or 'lower', got {self.better!r}")
        margin = self.margin
        if margin is not None and not 0 <= margin.margin < math.inf:
            raise UsageError(f"`guard` must be 0 or more, got {self.guard!r}")

    @property
    def ratio(self) -> bool:
        """True for a ratio of two means."""
        return self.per is not None

    @property
    def sign(self) -> float:
        """1 if higher is better, -1 if lower is."""
        return 1.0 if self.better == "higher" else -1.0

    @property
    def margin(self) -> Guard | None:
        """The margin of a guardrail; None for other metrics."""
        guard: object = self.guard
        if guard is None:
            return None
        if isinstance(guard, Real) and not isinstance(guard, bool):
            return Guard(float(guard))
        found = RELATIVE.fullmatch(guard) if isinstance(guard, str) else None
        if found is not None:
            return Guard(float(found[1]) / 100, relative=True)
        raise UsageError(
            "`guard` of a metric must be a number, or a percentage of the baseline such as "
            f"'5%', got {guard!r}"
        )

    def to_dict(self) -> dict[str, object]:
        """Return the metric under its public names."""
        margin = self.margin
        return {
            "reward": self.reward,
            "per": self.per,
            "better": self.better,
            "primary": self.primary,
            "guard": None if margin is None else vars(margin),
        }

    @property
    def role(self) -> str:
        """Role in a decision: "primary", "guardrail", both, or empty."""
        roles = ["primary"] * self.primary + ["guardrail"] * (self.guard is not None)
        return " and ".join(roles)

    @classmethod
    def parse(cls, text: str) -> Metric:
        """Return the metric that a text describes: a column, or two with "per" between them.

        Words after commas are "primary", "higher" or "lower", and "guard" with a margin.

        Examples:
            >>> Metric.parse("greatest(amount, 0) per click").per
            'click'
            >>> Metric.parse("ms, lower, guard 5%").guard
            '5%'
        """
        rest, words = text, dict[str, Any]()
        while (found := WORD.search(rest)) is not None:
            rest, name, margin = rest[: found.start()], found["name"], found["margin"]
            if (name == "guard") != (margin is not None):
                raise UsageError(
                    f"metric {text!r}: a margin, as in 'guard 5%', follows 'guard' and no other"
                )
            key = "better" if name in get_args(Better) else name
            if key in words:
                raise UsageError(f"metric {text!r} says {key!r} twice")
            words[key] = name if key == "better" else True if margin is None else margin
        if "%" not in words.get("guard", "%"):
            words["guard"] = float(words["guard"])
        reward, *per = PER.split(rest)
        if len(per) > 1:
            raise UsageError(f"metric {text!r} must have at most one 'per'")
        return cls(reward.strip(), per[0].strip() if per else None, **words)


MetricLike = Metric | str
MetricsLike = Mapping[str, MetricLike]


def name_metrics(metrics: MetricsLike | None, log: Log) -> dict[str, Metric]:
    """Return the metrics of a question by name: the log's own reward first, if none names it.

    Empty if there are no metrics.
    """
    if metrics is None:
        return {}
    given: object = metrics  # annotations are not enforced
    if not isinstance(given, Mapping):
        raise UsageError(
            f"metrics must be a mapping by name, as in {{'revenue': 'amount'}}, got {metrics!r}"
        )
    named = {str(name): _as_metric(value) for name, value in metrics.items()}
    if "" in named:
        raise UsageError("a metric needs a name")
    if not named:
        return {}
    own = [name for name, m in named.items() if m.reward == log.reward and not m.ratio]
    if OWN in named and OWN not in own:
        raise UsageError(
            f"the metric {OWN!r} is the log's own reward, {log.reward!r}: give other metrics "
            "other names"
        )
    if len(own) > 1:
        listed = " and ".join(map(repr, own))
        raise UsageError(f"metrics {listed} are the same column, {log.reward!r}: name one")
    return named if own else {OWN: Metric(log.reward), **named}


def _as_metric(value: MetricLike) -> Metric:
    if isinstance(value, Metric):
        return value
    text: object = value  # annotations are not enforced
    return Metric.parse(text) if isinstance(text, str) else Metric(value)


def list_measures(metrics: Mapping[str, Metric], log: Log) -> tuple[str, ...]:
    """Return the columns and expressions of metrics that are not the log's own reward."""
    texts = [text for m in metrics.values() for text in (m.reward, m.per) if text is not None]
    return tuple(dict.fromkeys(text for text in texts if text != log.reward))
