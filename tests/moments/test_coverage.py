"""Coverage: what a log declares about its probabilities, and what its rows add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from poolwise.log.log import Log
from poolwise.moments.coverage import Coverage
from poolwise.moments.pool import Cell

if TYPE_CHECKING:
    from poolwise.moments.coverage import Origin

CELLS = (Cell("mon", "a", 0), Cell("tue", "a", 1), Cell("tue", "b", 1))
ALL = {"a": "p_a", "b": "p_b"}


def declared(live: tuple[str, ...] = (), **roles: Any) -> Coverage:  # noqa: ANN401 - of a log
    log = Log("log.parquet", reward="r", logger="who", propensity="p", **roles)
    return Coverage.declared(log, iter(["a", "b"]), iter(CELLS), live)


@pytest.mark.parametrize(
    ("roles", "live", "known", "mixture"),
    [
        ({}, (), (), ""),
        ({"propensities": ALL}, (), ("a", "b"), "propensities"),
        ({"propensities": ALL}, ("b",), ("a",), ""),
        ({"propensities": {"a": "p_a", "b": None}}, (), ("a",), ""),
        ({"mixture": "m"}, (), (), "column"),
        ({"estimate_mixture": True, "context": ["x"], "action": "y"}, (), (), "estimate"),
    ],
    ids=["own", "crossed", "live", "partly", "column", "estimated"],
)
def test_the_roles_of_a_log_say_what_is_known(
    roles: dict[str, Any], live: tuple[str, ...], known: tuple[str, ...], mixture: Origin
) -> None:
    found = declared(live, **roles)
    assert found == Coverage(("a", "b"), CELLS, known, live, mixture)
    assert found.missing == tuple(i for i in ("a", "b") if i not in known)
    assert found.crossed == (mixture == "propensities")
    assert found.period_mixed == (found.crossed or bool(live))


def test_one_logger_without_others_is_its_own_mixture() -> None:
    own = Coverage(("a",), known=("a",), mixture="own")
    assert own.crossed
    assert own.missing == ()


def test_complete_rows_have_a_probability_under_every_logger() -> None:
    found = Coverage.complete(iter(["a", "b"]), iter(CELLS))
    assert found == Coverage(("a", "b"), CELLS, ("a", "b"), (), "propensities")
    assert found == declared(propensities=ALL)
    assert Coverage.complete(["a"]).cells == ()


def test_strata_are_cells_or_loggers() -> None:
    found = Coverage.complete(["a", "b"], CELLS)
    assert found.strata(by_cell=True) == CELLS
    assert found.strata(by_cell=False) == ("a", "b")


def test_a_logger_that_is_left_out_is_nowhere() -> None:
    found = Coverage.complete(["a", "b"], CELLS).without("a")
    assert found == Coverage(("b",), CELLS[2:], ("b",), (), "propensities")
