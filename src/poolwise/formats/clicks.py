r"""Clicks: a log of ranked lists from deterministic rankers becomes an ordinary log.

Such rankers have no probabilities, but they show the same items at different positions, and
that is an experiment: it shows how often each position is examined, and the examination of
the position at which a ranker shows an item takes the place of its probability.  The same
estimators read the rows of shown items, with the request as the cluster.

Agarwal, Zaitsev, Wang, Li, Najork & Joachims (WSDM 2019); Oosterhuis & de Rijke (WSDM 2021).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.errors import UsageError
from poolwise.evaluation.position_bias import PositionBias, describe
from poolwise.formats.shown import ClickLog, Units, open_shown
from poolwise.log.clicks import Curve, places

if TYPE_CHECKING:
    from poolwise.log.log import Source
    from poolwise.types import FloatArray


def search_log() -> str:
    """Return the path of the bundled search log, which `scripts/make_search_log.py` writes."""
    return str(files("poolwise") / "data" / "search.parquet")


def search_truth() -> dict[str, float]:
    """Return the true clicks per request of the rankers of the bundled log."""
    import pyarrow.parquet as pq

    about = pq.read_schema(search_log()).metadata[b"poolwise"]
    truth: dict[str, float] = json.loads(about)["truth"]
    return truth


def position_bias(  # noqa: PLR0913 - roles are keyword-only, most with a default
    source: Source,
    *,
    request: str,
    click: str,
    ranks: Mapping[str, str] | str,
    position: str | None = None,
    logger: str | None = None,
    cluster: str | None = None,
    level: float = 0.95,
    reader_options: Mapping[str, object] | None = None,
) -> PositionBias:
    r"""Estimate how often each position is examined, from the differences of rankers.

    An item that one ranker shows at position k and another at l is clicked in proportion to
    the examination of both. The curve is relative to the first position, and needs neither
    probabilities nor relevance; the arguments are those of `click_log`.

    Args:
        source: Rows, as for `Log`; requests must be complete.
        request: Column or SQL expression of the request; unique over all rankers.
        click: 1 if the shown item was clicked, 0 if not; or a list of these, for each item.
        ranks: Rank of the row's item under every ranker, by label, or a pattern such as
            ``"rank_{logger}"``; 0 or NULL where a ranker would not show it. Or the list of
            items that each ranker would show, if a row is a request.
        position: Position of the item: 1, 2, 3, ...; left out if a row is a request.
        logger: The ranker that made the list, as for `Log`.
        cluster: Column that groups dependent requests, such as a user; by default the request.
        level: Level of the intervals.
        reader_options: Options for DuckDB's file reader.

    Raises:
        LogError: Rows break a rule, or requests are not complete.
        UsageError: No chain of items connects a position to the first.
    """
    units = Units(request, position, click, cluster)
    with open_shown(source, logger, ranks, {}, units, reader_options) as shown:
        return describe(shown.fit(), shown.requests, level)


def click_log(  # noqa: PLR0913 - roles are keyword-only, most with a default
    source: Source,
    targets: Mapping[str, str] | str,
    *,
    request: str,
    click: str,
    ranks: Mapping[str, str] | str,
    position: str | None = None,
    logger: str | None = None,
    bias: Mapping[int, float] | None = None,
    worth: Mapping[int, float] | None = None,
    cluster: str | None = None,
    reader_options: Mapping[str, object] | None = None,
) -> ClickLog:
    """Read clicks on the ranked lists of several rankers as a log.

    The value of a target is its clicks per request. The rankers may be deterministic: the
    position bias is estimated from the items that they show at different positions, and every
    error contains that of the position bias. Each evaluation reads Parquet files and queries
    again (if they change, call `click_log` again); other sources stay in memory. The log
    keeps the other columns, for `by` of an evaluation.

    Args:
        source: Rows, as for `Log`; requests must be complete.
        targets: Rank of the row's item under each new ranker, by name: a column or a SQL
            expression, 0 or NULL where it would not show the item. A single target gets the
            name "target". If a row is a request, the list of items.
        request: Column or SQL expression of the request; unique over all rankers.
        click: 1 if the shown item was clicked, 0 if not; or a list of these, for each item.
        ranks: The same as `targets` for every ranker of the rows, by label, or a pattern such
            as ``"rank_{logger}"``.
        position: Position of the item: 1, 2, 3, ...; left out if a row is a request.
        logger: The ranker that made the list, as for `Log`.
        bias: Examination of each position, ``{1: 1.0, 2: 0.6, ...}``, if it is known: it is
            then taken as it is, without error.
        worth: What a click at each position counts, ``{1: 1.0, 2: 0.63, ...}``; by default 1.
            The rankers themselves are then among the targets.
        cluster: Column that groups dependent requests, such as a user; by default the request.
        reader_options: Options for DuckDB's file reader.

    Raises:
        LogError: Rows break a rule, or requests are not complete.
        UsageError: No chain of items connects a position to the first.
    """
    units = Units(request, position, click, cluster)
    wanted = _named(targets)
    with open_shown(source, logger, ranks, wanted, units, reader_options) as shown:
        curve = shown.fit() if bias is None else Curve.given(_numbers(bias, "bias", shown.last))
        counts = () if worth is None else tuple(_numbers(worth, "worth", shown.last, zero=True))
        return shown.as_log(curve, counts, estimated=bias is None)


def _named(targets: Mapping[str, str] | str) -> dict[str, str]:
    """Return the targets by name; raise if an argument has a wrong type."""
    wanted: dict[str, Any] = (  # annotations are not enforced
        dict(targets) if isinstance(targets, Mapping) else {"target": targets}
    )
    if not wanted:
        raise UsageError("targets must name at least one ranker")
    invalid = [value for value in wanted.values() if not isinstance(value, str)]
    if invalid:
        raise UsageError(
            "targets must be columns or SQL expressions of the rank of the row's item, got "
            f"{type(invalid[0]).__name__}"
        )
    return {str(name): value for name, value in wanted.items()}


def _numbers(
    given: Mapping[int, float], role: str, last: int, *, zero: bool = False
) -> FloatArray:
    """Return one number for each position; raise if one is missing or out of range."""
    if not isinstance(given, Mapping):
        raise UsageError(f"{role} must map positions to numbers, as in {{1: 1.0, 2: 0.6}}")
    missing = [k for k in range(1, last + 1) if k not in given]
    if missing:
        raise UsageError(f"{role} must have a number for {places(missing)}")
    numbers = [_number(given[k], role, k) for k in range(1, last + 1)]
    low = [k for k, n in enumerate(numbers, 1) if not (0 < n < math.inf or (zero and n == 0))]
    if low or not any(numbers):
        least = "0 or more" if zero else "positive"
        at = places(low or [1])
        raise UsageError(
            f"{role} must be {least} and finite, got {numbers[(low or [1])[0] - 1]:g} at {at}"
        )
    return np.array(numbers)


def _number(given: Any, role: str, position: int) -> float:  # noqa: ANN401 - not enforced
    """Return a number, raise if it is none."""
    try:
        return float(given)
    except (TypeError, ValueError):
        raise UsageError(
            f"{role} must be a number, got {given!r} at position {position}"
        ) from None
