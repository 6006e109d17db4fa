"""Layout: the columns of a batch of rows, and what is known of them beforehand.

It says in plain names what `engine.rows.Table` says in SQL, so that batches of rows can
be turned into moments where there is no database: in a thread, or on a worker of a
cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.engine.rows import Table


@dataclass(frozen=True)
class Layout:
    """Columns ``logger``, ``reward``, ``p_0``..., ``t_0``... and what else there is.

    Attributes:
        loggers: Every logger, in the order in which their moments come.
        crossed: Loggers whose probability is known in every row, in the order of ``p_*``.
        shares: Share of each of `crossed` in the mixture.
        targets: Targets, in the order of ``t_*``.
        valued: Targets with a predicted value, in the order of ``v_*``.
        propensity: Whether there is a column ``propensity``.
        predicted: Whether there is a column ``predicted_reward``.
        mixture: Whether there is a column ``estimated_mixture``.
        logs: Whether probabilities are given as logarithms.
        tolerance: How far ``propensity`` may be from the row's own ``p_*``.
        buckets: Into how many each logger's rows are split, by a column ``bucket``.
    """

    loggers: tuple[str, ...]
    crossed: tuple[str, ...]
    shares: tuple[float, ...]
    targets: tuple[str, ...]
    valued: tuple[str, ...] = ()
    propensity: bool = True
    predicted: bool = False
    mixture: bool = False
    logs: bool = False
    tolerance: float = 1e-6
    buckets: int = 1

    @property
    def groups(self) -> tuple[str, ...]:
        """The logger of each group of rows that is summed: bucket after bucket."""
        return self.loggers * self.buckets

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numeric columns, in a fixed order."""
        asked = {
            "propensity": self.propensity,
            "predicted_reward": self.predicted,
            "estimated_mixture": self.mixture,
        }
        return (
            "reward",
            *(f"p_{k}" for k in range(len(self.crossed))),
            *(f"t_{k}" for k in range(len(self.targets))),
            *(f"v_{k}" for k in range(len(self.valued))),
            *(name for name, there in asked.items() if there),
        )


def layout_of(table: Table, counts: Mapping[str, int]) -> Layout:
    """The layout of a table whose rows have been counted."""
    total = sum(counts.values())
    return Layout(
        loggers=tuple(counts),
        crossed=tuple(table.propensities),
        shares=tuple(counts.get(label, 0) / total for label in table.propensities),
        targets=tuple(table.targets),
        valued=tuple(table.predicted_values),
        propensity=table.propensity is not None,
        predicted=table.predicted_reward is not None,
        mixture=table.mixture is not None,
        logs=table.log_probabilities,
        tolerance=table.tolerance,
    )
