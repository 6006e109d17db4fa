"""Numbers and names as text: digits follow the standard error.

A number is shown to the last digit that its error supports.  Tables, reports and sentences
use these functions, so that they agree.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FEW_NAMES = 5  # that a sentence lists; more are counted


def places_for(std_error: float) -> int:
    """Return the decimal places that two digits of a standard error need."""
    if not (std_error > 0 and math.isfinite(std_error)):
        return 6
    digits = 1 - math.floor(math.log10(std_error))
    rounded = float(f"{std_error:.1e}")  # 0.0996 rounds to 0.10: one decimal fewer
    return max(0, min(digits, 1 - math.floor(math.log10(rounded))))


def with_error(value: float, std_error: float) -> str:
    """Write an estimate to the last digit its standard error supports.

    >>> with_error(8.19342, 0.0648)
    '8.193 ± 0.065'
    >>> with_error(0.0031415, 0.00027)
    '0.00314 ± 0.00027'
    >>> with_error(8.2, 0.0)
    '8.2 ± 0'
    >>> with_error(0.5, math.inf)
    '0.5 ± unknown'
    """
    if std_error == math.inf:
        return f"{value:.3g} ± unknown"
    if not std_error > 0:
        return f"{value:g} ± {std_error:g}"
    places = places_for(std_error)
    return f"{value:.{places}f} ± {std_error:.{places}f}"


def interval_text(lower: float, upper: float, std_error: float) -> str:
    """Write an interval with the digits of its standard error.

    >>> interval_text(8.0641, 8.3227, 0.0648)
    '[8.064, 8.323]'
    >>> interval_text(-math.inf, math.inf, math.inf)
    '(unbounded)'
    """
    if math.isinf(lower) and math.isinf(upper):
        return "(unbounded)"
    places = places_for(std_error)
    return f"[{lower:.{places}f}, {upper:.{places}f}]"


def count_text(count: float) -> str:
    """Write a number of rows.

    >>> count_text(1234567), count_text(12.34), count_text(0.5)
    ('1,234,567', '12', '0.5')
    """
    return f"{count:,.0f}" if count >= 10 or count == int(count) else f"{count:.2g}"


def short(number: float) -> str:
    """Write a number that has no standard error, to three digits.

    >>> short(0.0012345), short(1234.5), short(math.inf), short(2.0)
    ('0.00123', '1,230', '∞', '2')
    """
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    rounded = float(f"{number:.3g}")
    if 1_000 <= abs(rounded) < 10_000_000:
        return f"{rounded:,.0f}"
    return f"{rounded:.3g}"


def percent(share: float) -> str:
    """Write a share.

    >>> percent(0.98338), percent(0.0004), percent(0.0), percent(1.0)
    ('98.3%', '0.04%', '0%', '100%')
    """
    if share in {0.0, 1.0}:
        return f"{share:.0%}"
    return f"{share:.1%}" if 1_000 * abs(share) >= 1 else f"{100 * share:.1g}%"


def signed_percent(change: float) -> str:
    """Write a relative difference.

    >>> signed_percent(0.164), signed_percent(-0.0005), signed_percent(0.0)
    ('+16.4%', '-0.05%', '0%')
    >>> signed_percent(math.inf)
    '∞'
    """
    if math.isinf(change):
        return short(change)
    return f"{'+' if change > 0 else ''}{percent(change)}"


def p_text(p_value: float) -> str:
    """Write a p-value.

    >>> p_text(0.0312), p_text(0.5), p_text(0.00002)
    ('0.031', '0.50', '< 0.001')
    """
    if p_value < 0.001:  # noqa: PLR2004 - conventional
        return "< 0.001"
    return f"{p_value:.2f}" if p_value >= 0.1 else f"{p_value:.3f}"  # noqa: PLR2004


def join_names(names: Sequence[str], last: str = "and") -> str:
    """Join names for a sentence.

    >>> join_names(["a"]), join_names(["a", "b", "c"], "or")
    ('a', 'a, b or c')
    """
    return f" {last} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def quote_names(names: Sequence[str], nouns: str = "targets") -> str:
    """Join names in quotes for a sentence, or count them if there are many.

    >>> quote_names(["a"]), quote_names(["a", "b", "c"]), quote_names("abcdefg")
    ("'a'", "'a', 'b' and 'c'", '7 targets')
    """
    return (
        f"{len(names)} {nouns}" if len(names) > FEW_NAMES else join_names([*map(repr, names)])
    )


def list_numbers(values: Mapping[Any, float]) -> str:
    """Write a number for each name.

    >>> list_numbers({"a": 0.512, "b": 1.0})
    "'a' 0.512, 'b' 1"
    """
    return ", ".join(f"{str(name)!r} {short(value)}" for name, value in values.items())


def count_noun(number: int, noun: str) -> str:
    """Write a number of things.

    >>> count_noun(1, "alarm"), count_noun(2, "alarm")
    ('1 alarm', '2 alarms')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def all_text(number: int, nouns: str) -> str:
    """Write all of several things.

    >>> all_text(2, "logs"), all_text(3, "logs")
    ('both logs', 'all 3 logs')
    """
    return f"both {nouns}" if number == 2 else f"all {number} {nouns}"


def unit_text(rows_per_request: int | None) -> str:
    """Return what has a value: a row, or a request if it consists of so many rows.

    >>> unit_text(None), unit_text(3)
    ('row', 'request')
    """
    return "row" if rows_per_request is None else "request"


def in_units(rows: float, rows_per_request: int | None) -> float:
    """Return a number of rows as one of requests, if these consist of so many rows.

    >>> in_units(12, None), in_units(12, 3)
    (12, 4.0)
    """
    return rows if rows_per_request is None else rows / rows_per_request
