"""Per request: questions about logs whose values are those of requests with several rows.

Rewards of such a log are multiplied by the rows of a request.  A segment with all rows of its
requests has the value of a request as it is.  A segment with some rows of every request, such
as a position, has the part of it that these rows earn: the parts of all segments add up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from poolwise.errors import UsageError
from poolwise.log.clicks import lacks_probabilities

if TYPE_CHECKING:
    from poolwise.engines.base import Rows
    from poolwise.evaluation.differences import Difference
    from poolwise.intervals.student import Interval
    from poolwise.log.log import Log
    from poolwise.log.requests import Requests
    from poolwise.moments.estimate import Estimate


def refuse_lists(log: Log, what: str) -> None:
    """Raise UsageError if a request has several rows, which this question cannot allow for."""
    if log.requests is not None and log.requests.rows > 1:
        raise UsageError(
            f"{what} requires one row for each request, and this log has {log.requests.rows}: "
            "read it with ranking_log(..., model='whole')"
        )


def refuse_clicks(log: Log, what: str) -> None:
    """Raise UsageError if a log is one of clicks, which this question cannot answer."""
    if log.clicks is not None:
        raise lacks_probabilities(what)


def refuse_estimates(log: Log, what: str) -> None:
    """Raise UsageError if the propensities of a log are estimates, which nothing guarantees."""
    if log.confounders is not None:
        raise UsageError(
            f"{what} requires propensities that were logged, and those of this log are "
            "estimates: call `evaluate` with the default interval"
        )


def rows_by_segment(rows: Rows, requests: Requests, by: str) -> dict[str, int]:
    """Return the rows of a request in each segment; refuse to split requests unlike each other.

    Args:
        rows: The rows, with the segments in the role of the period.
        requests: The requests of the log.
        by: Column or expression of the segments.
    """
    lines = rows.requests_in_periods()
    unknown = sum(line["requests"] for line in lines if line["period"] is None)
    if unknown:
        raise UsageError(
            f"`by` must have a value in each request, and {by!r} is missing in {unknown:,} of "
            "them, or has several values there: name a column of the request"
        )
    parts = {str(line["period"]): int(line["most"]) for line in lines}
    equal = all(line["fewest"] == line["most"] for line in lines)
    whole = set(parts.values()) == {requests.rows}
    if not equal or not (whole or sum(parts.values()) == requests.rows):
        raise UsageError(
            "`by` must have one value in each request, or the same values in every request, as "
            f"the position has, and {by!r} has neither: name a column of the request"
        )
    return parts


def refuse_split(rows: Rows, requests: Requests) -> None:
    """Raise UsageError if rows of a request are in several periods."""
    lines = rows.requests_in_periods()
    split = sum(line["requests"] for line in lines if line["fewest"] < requests.rows)
    if split:
        raise UsageError(
            "rows of a request must be in one period, and some requests have rows in several: "
            "name a period of the request, such as the day on which it was made"
        )


def scale_to_requests(
    estimate: Estimate, interval: Interval, difference: Difference | None, factor: float
) -> tuple[Estimate, Interval, Difference | None]:
    """Return numbers of a segment with all rewards multiplied by a positive factor."""
    if difference is not None:
        difference = replace(
            difference,
            value=factor * difference.value,
            std_error=factor * difference.std_error,
            interval=_scale_interval(difference.interval, factor),
        )
    estimate = replace(
        estimate,
        value=factor * estimate.value,
        variance=factor**2 * estimate.variance,
        linear=estimate.linear * factor,
        decisive=None,
    )
    return estimate, _scale_interval(interval, factor), difference


def _scale_interval(interval: Interval, factor: float) -> Interval:
    return replace(interval, lower=factor * interval.lower, upper=factor * interval.upper)
