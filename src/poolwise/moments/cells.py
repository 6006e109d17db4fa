"""Cells: the rows of one logger in one period.

Policies that learn change from period to period, so their rows are summed by period and
logger.  A cell is the key of such moments; estimators of periods treat cells as strata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from poolwise.moments.moments import Moments, pooled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Cell(str):
    """Key of the moments of one logger in one period.

    Attributes:
        period: Text of the period.
        logger: Label of the logger.

    Examples:
        >>> cell = Cell("2024-05-01", "v3")
        >>> cell.period, cell.logger
        ('2024-05-01', 'v3')
    """

    __slots__ = ("logger", "period")
    period: str
    logger: str

    def __new__(cls, period: str, logger: str) -> Self:
        cell = super().__new__(cls, f"{logger} in {period}")
        cell.period, cell.logger = period, logger
        return cell

    def __reduce__(self) -> tuple[type[Cell], tuple[str, str]]:
        return Cell, (self.period, self.logger)


def periods_of(cells: Iterable[str]) -> tuple[str, ...]:
    """Return the periods of cells in their order, each once."""
    return tuple(dict.fromkeys(cell.period for cell in cells if isinstance(cell, Cell)))


def by_logger(moments: Mapping[str, Moments], loggers: Iterable[str]) -> dict[str, Moments]:
    """Return the moments of each logger over all periods, in the order of these loggers."""
    cells: dict[str, list[Moments]] = {logger: [] for logger in loggers}
    for cell, of_cell in moments.items():
        cells[cell.logger if isinstance(cell, Cell) else cell].append(of_cell)
    return {logger: pooled(parts) for logger, parts in cells.items() if parts}
