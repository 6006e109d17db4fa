"""Cells: the rows of one logger in one period.

Policies that learn change from period to period, so their rows are summed by period and
logger.  A cell is the key of such moments; estimators of periods treat cells as strata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from poolwise.moments.moments import Moments


class Cell(str):
    """Key of the moments of one logger in one period.

    Its text is for messages only: two cells are the same if period and logger are.

    Attributes:
        period: Text of the period.
        logger: Label of the logger.
        number: Position of the period in the order of the log.

    Examples:
        >>> cell = Cell("2024-05-01", "v3")
        >>> cell.period, cell.logger
        ('2024-05-01', 'v3')
        >>> Cell("2 in 1", "v3") == Cell("1", "v3 in 2")
        False
    """

    __slots__ = ("logger", "number", "period")
    period: str
    logger: str
    number: int

    def __new__(cls, period: str, logger: str, number: int = 0) -> Self:
        cell = super().__new__(cls, f"{logger} in {period}")
        cell.period, cell.logger, cell.number = period, logger, number
        return cell

    def __reduce__(self) -> tuple[type[Cell], tuple[str, str, int]]:
        return Cell, (self.period, self.logger, self.number)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cell):
            return False
        return (self.period, self.logger) == (other.period, other.logger)

    def __ne__(self, other: object) -> bool:  # that of `str` compares texts
        return not self == other

    def __hash__(self) -> int:
        return hash((self.period, self.logger))


def periods_of(cells: Iterable[str]) -> tuple[str, ...]:
    """Return the periods of cells in the order of the log, each once."""
    ordered = sorted((c for c in cells if isinstance(c, Cell)), key=lambda c: c.number)
    return tuple(dict.fromkeys(cell.period for cell in ordered))


def by_period(moments: Mapping[str, Moments]) -> dict[str, dict[str, Moments]]:
    """Return the moments of the cells of each period, in the order of the log."""
    periods: dict[str, dict[str, Moments]] = {period: {} for period in periods_of(moments)}
    for cell, of_cell in moments.items():
        periods[cell.period if isinstance(cell, Cell) else ""][cell] = of_cell
    return periods
