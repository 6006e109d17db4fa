r"""Provenance: findings about the origin of the rows and of the policies that logged them.

**Loaded twice.** Rows of a discrete log repeat by chance.  If the number of rows with each
content is Poisson with any means $\lambda$, the expected numbers $f_k$ of contents that occur k
times satisfy $f_2^2 \le \tfrac{3}{2} f_1 f_3$ (Cauchy and Schwarz on
$\sum \lambda^k e^{-\lambda}$).  A file that was loaded twice has pairs without the triples that
chance would add.  Where nearly all rows repeat, a copy of all of them would show no such
pairs: then only equal files show copies.

**Trained on the log.** A policy trained on a log gives more probability to actions that had
high rewards there by chance.  In the denominator of the mixture this lowers the weights of
these rows, so every estimator that pools denominators is biased down and its interval
undercovers.  Estimates from own propensities, with shares that do not depend on rewards,
remain valid.

**In succession.** A log that declares no training shows no more of it than that one policy
begins where another ends: the ranges of times of the loggers are compared, where the log has a
column of times.  The order of rows says nothing, since rows may be sorted by logger.  A test of
ranges sees neither training on rows outside of the log nor a policy that learned while others
stayed live.

**Sorted as text.** Periods of text come in the order of their characters: Fri before Mon, v10
before v2.  Centres and models of a period would then come from later ones.  Names that differ
only in numbers, months or weekdays have an order of their own, which is compared with it.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolwise.errors import Finding, UsageError, did_you_mean
from poolwise.estimators.ips import Weighted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from poolwise.moments.pool import Pool

    Ranges = Mapping[str, tuple[Any, Any]]  # dates or times

ERRORS = 4  # standard errors by which pairs must exceed their bound
FEWEST_PAIRS = 20
FEWEST_HIDDEN = 100  # rows of a log whose copies are worth a note
HONEST = Weighted(divergence="reward-free")
FEWEST = 5  # rows of a logger: two with so few in random order are apart in 1 of 126 logs
SHOWN_NAMES = 5  # names that a finding lists
SHOWN_PERIODS = 12
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
CALENDAR = (  # words that begin with one of these
    r"jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sep(t(ember)?)?"
    r"|oct(ober)?|nov(ember)?|dec(ember)?|(mon|fri|sun)(day)?|tue(s(day)?)?|wed(s|nesday)?"
    r"|thu(rs?(day)?)?|sat(urday)?"
)
NAME_PARTS = re.compile(
    rf"(?<=:\d\d)\.\d+|\d+|(?<![^\W\d_])({CALENDAR})(?![^\W\d_])", re.IGNORECASE
)
NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", re.IGNORECASE)
PART_RANKS = {"month": 0, "weekday": 2}  # of parts of a name; numbers are in between
Conflicts = dict[str, list[str]]


def most_pairs(singles: int, triples: int) -> float:
    """Return the largest expected number of pairs that these counts allow.

    Both counts are raised by `ERRORS` of their standard errors.

    >>> round(most_pairs(800, 0))
    149
    """
    raised = [count + ERRORS * math.sqrt(count) + ERRORS**2 for count in (singles, triples)]
    return math.sqrt(1.5 * raised[0] * raised[1])


def doubled_rows(contents: Mapping[int, int]) -> tuple[Finding, ...]:
    """Return a finding if more rows occur twice than chance explains.

    Args:
        contents: Number of distinct rows that occur 1, 2, 3, ... times.
    """
    singles, pairs, triples = (contents.get(k, 0) for k in (1, 2, 3))
    bound = most_pairs(singles, triples)
    if pairs < FEWEST_PAIRS or pairs - ERRORS * math.sqrt(pairs) <= bound:
        return ()
    total = sum(k * count for k, count in contents.items())
    return (
        Finding(
            "doubled-rows",
            f"{pairs:,} rows occur twice in a log of {total:,}, and chance explains at most "
            f"{math.floor(bound):,}: a file or a partition may have been loaded twice, which "
            "makes intervals too narrow.",
            "Load every row once. If copies are intended, name a `cluster` that they share.",
        ),
    )


def hidden_copies(contents: Mapping[int, int], advice: str = "") -> tuple[Finding, ...]:
    """Return a note if chance explains a second copy of all rows as well.

    Args:
        contents: Number of distinct rows that occur 1, 2, 3, ... times; empty if all occur
            too often to be counted.
        advice: Remedy.
    """
    rows = sum(k * count for k, count in contents.items())
    found = doubled_rows({2 * k: count for k, count in contents.items()})
    if found or (contents and (rows < FEWEST_HIDDEN or 2 * contents.get(1, 0) > rows)):
        return ()
    return (
        Finding(
            "copies-unknown",
            "The same rows occur so often that nothing distinguishes copies from "
            "coincidences: rows that were loaded twice would make intervals too narrow without "
            "a finding.",
            advice,
            "note",
        ),
    )


def equal_files_found(groups: Sequence[Sequence[str]]) -> tuple[Finding, ...]:
    """Return an alarm if files have the same content.

    Args:
        groups: Paths of files with the same content.
    """
    if not groups:
        return ()
    folder = os.path.commonpath([Path(path).absolute().parent for g in groups for path in g])
    shown = [
        [os.path.relpath(path, folder) for path in group] for group in groups[:SHOWN_NAMES]
    ]
    listed = "; ".join(" and ".join(map(repr, group[:SHOWN_NAMES])) for group in shown)
    listed += ", ..." if len(groups) > SHOWN_NAMES else ""
    copies = sum(len(group) - 1 for group in groups)
    repeat = "1 file repeats" if copies == 1 else f"{copies:,} files repeat"
    return (
        Finding(
            "equal-files",
            f"{repeat} the content of another ({listed}): their rows count twice, which makes "
            "intervals too narrow.",
            "Name files with the same rows once. If copies are intended, name a `cluster` that "
            "they share.",
            "alarm",
        ),
    )


def conflicts(trained_on: Mapping[str, Sequence[str]], loggers: Iterable[str]) -> Conflicts:
    """Return the policies that were trained on logs of these loggers, with the logs.

    >>> conflicts({"v2": ["v1", "v0"], "v3": ["v0"]}, ["v1", "v2", "v3"])
    {'v2': ['v1']}
    """
    present = set(map(str, loggers))
    logs_here = {
        str(name): [str(i) for i in logs if str(i) in present]
        for name, logs in trained_on.items()
    }
    return {name: logs for name, logs in logs_here.items() if logs}


def on_own(trained_on: Mapping[str, Sequence[str]], loggers: Sequence[str]) -> Conflicts:
    """Return the loggers among these that were trained on one of their logs."""
    trained = conflicts(trained_on, loggers)
    return {i: logs for i, logs in trained.items() if i in loggers}


def check_names(trained_on: Mapping[str, Sequence[str]], policies: Iterable[str]) -> None:
    """Reject names that are neither a logger nor a target."""
    names = list(policies)
    for name in map(str, trained_on):
        if name not in names:
            hint = did_you_mean(name, names)
            raise UsageError(f"`trained_on` must name loggers or targets, got {name!r}{hint}")


def on_own_log(trained: Conflicts, *, replaced: Sequence[str] | None = None) -> Finding:
    """Return the finding that loggers were trained on logs of this set.

    Args:
        trained: Logs that each logger was trained on.
        replaced: Estimators whose intervals were replaced; None if the intervals do not
            allow for the bias.
    """
    pairs = "; ".join(f"{i!r} on {', '.join(map(repr, logs))}" for i, logs in trained.items())
    if replaced is None:
        effect = "The intervals do not allow for this bias."
        advice = "Evaluate each target by itself, or leave those logs out."
    elif replaced:
        effect = f"The intervals of {', '.join(replaced)} are those of {HONEST.name}."
        advice = "Use the interval as the answer; for a narrower one, leave those logs out."
    else:
        effect = "No single logger covers the target, so every interval is affected."
        advice = "Leave those logs out."
    return Finding(
        "trained-on-own-log",
        f"Loggers were trained on logs in this set ({pairs}). This biases estimates that pool "
        f"the loggers' probabilities, mostly down. {effect}",
        advice,
        "alarm",
    )


def target_on_log(target: str, logs: Sequence[str]) -> Finding:
    """Return the finding that the target was trained on these rows."""
    return Finding(
        "target-trained-on-log",
        f"{target!r} was trained on rows of {', '.join(map(repr, logs))} and overfits their "
        "rewards, so the estimates are too high.",
        "Evaluate it on rows that were not used for training.",
        "alarm",
    )


def in_succession(pool: Pool, times: Ranges) -> tuple[str, ...]:
    """Return the loggers that follow each other in time; none if most of them do not.

    Args:
        pool: Moments of each logger.
        times: First and last time of each logger; empty without a column of times.
    """
    labels = [i for i in pool.loggers if pool[i].count >= FEWEST and i in times]
    chain = chain_ranges({i: times[i] for i in labels})
    return () if len(chain) < 2 or 2 * len(chain) < len(labels) else tuple(chain)


def agreeing(chain: Sequence[str], *, compared: bool) -> Finding:
    """Return the note that loggers follow each other, and that it shows nowhere.

    Args:
        chain: Loggers that follow each other.
        compared: Whether calibrated was compared with estimates from own propensities.
    """
    text = (
        f"{_follow(chain)} Estimates that pool loggers are biased if a policy was trained on "
        "earlier rows of this log"
    )
    if compared:
        text += "; here they agree with estimates from own propensities, which are not"
    return Finding(SUCCESSION, f"{text}.", TRAINED, "note")


def apart(chain: Sequence[str], name: str, honest: str, reason: str) -> Finding:
    """Return the warning that it matters whether loggers learned from each other.

    Args:
        chain: Loggers that follow each other.
        name: Estimator that pools them.
        honest: Estimate that holds for policies that learned.
        reason: What differs between the two.
    """
    return Finding(
        SUCCESSION,
        f"{_follow(chain)} {reason} If a policy was trained on earlier rows of this log, "
        f"{name} is biased and its interval too narrow; {HONEST.name} is not, unless the "
        f"target was trained on them too: {honest}.",
        TRAINED,
    )


SUCCESSION = "loggers-in-succession"
TRAINED = (
    "If policies were trained on earlier rows of this log, give `period` (--period), the "
    "column of the day or version."
)


def _follow(chain: Sequence[str]) -> str:
    names = ", ".join(map(repr, chain[:SHOWN_NAMES])) + (
        ", ..." if len(chain) > SHOWN_NAMES else ""
    )
    return f"{len(chain)} loggers follow each other in the times of the log ({names})."


def untested_drift(chain: Sequence[str]) -> Finding:
    """Return the finding that logs of different times cannot be compared."""
    return Finding(
        "drift-untested",
        f"{_follow(chain)} They share too few actions to test whether rewards changed between "
        "them: a change would bias estimates that pool them, without another finding.",
        "Give `period` (--period), the column of the day or version: weights are then taken "
        "against the loggers of the period, and the estimate of each period is shown.",
    )


def text_order(periods: Sequence[str]) -> tuple[Finding, ...]:
    """Return a finding if periods are in the order of their characters, against their meaning.

    >>> [f.code for f in text_order(["v1", "v10", "v2"])], text_order(["v01", "v02", "v10"])
    (['periods-as-text'], ())
    """
    numbers = _all_numbers(periods)
    groups: dict[str, list[str]] = {}
    for name in periods:
        groups.setdefault("" if numbers else _skeleton(name), []).append(name)
    meant = [sorted(names, key=_meaning(names)) for names in groups.values()]
    if list(periods) != sorted(periods) or meant == list(groups.values()):
        return ()
    wrong = next(m for m, used in zip(meant, groups.values(), strict=True) if m != used)
    return (
        Finding(
            "periods-as-text",
            "The periods are text, and text is ordered by its characters: "
            f"{_list_periods(periods)}. Their names suggest another order, such as "
            f"{_list_periods(wrong)}. Estimates, models and bets of a period rest on the "
            "periods before it.",
            "Give `period` as a date, a time or a number, or as text whose characters sort as "
            "meant, such as 2024-01-09 or v09.",
        ),
    )


def _list_periods(names: Sequence[str]) -> str:
    first = ", ".join(map(repr, names[:SHOWN_PERIODS]))
    return first + (", ..." if len(names) > SHOWN_PERIODS else "")


def _all_numbers(names: Sequence[str]) -> bool:
    return all(map(NUMBER.fullmatch, names))


def _skeleton(name: str) -> str:
    """Return a name without its numbers, months and weekdays.

    >>> _skeleton("Q1 2024"), _skeleton("5 March 2024"), _skeleton("Monday")
    ('Q0 0', '0 month 0', 'weekday')
    """
    return NAME_PARTS.sub(lambda part: _parse_part(part[0])[0], name)


def _parse_part(text: str) -> tuple[str, float]:
    """Return the kind of a part of a name, and its place in the order of its kind."""
    word = text.lower()[:3]
    for kind, words in (("month", MONTHS), ("weekday", WEEKDAYS)):
        if word in words:
            return kind, float(words.index(word))
    return ("." if text.startswith(".") else "0"), float(text)


def _meaning(names: Sequence[str]) -> Callable[[str], tuple[float, ...]]:
    """Return the key by which names of one skeleton are meant to be sorted.

    A year comes first, then a month; weekdays come last. Of dates such as 31/12/2024 the
    second number is the month if a first one is above 12.
    """
    if _all_numbers(names):
        return lambda name: (float(name),)
    parts = {
        name: [_parse_part(part[0]) for part in NAME_PARTS.finditer(name)] for name in names
    }
    columns = list(zip(*([value for _, value in each] for each in parts.values()), strict=True))
    kinds = [kind for kind, _ in parts[names[0]]]
    years = [k for k, c in enumerate(columns) if kinds[k] == "0" and all(map(_is_year, c))]
    order = sorted(range(len(kinds)), key=lambda k: (PART_RANKS.get(kinds[k], 1), k))
    if len(years) == 1:
        order.remove(years[0])
        order.insert(0, years[0])
        if kinds == ["0"] * 3 and years == [2] and max(columns[0]) > len(MONTHS):
            order = [2, 1, 0]
    return lambda name: tuple(parts[name][k][1] for k in order)


def _is_year(value: float) -> bool:
    return 1900 <= value < 2100


def chain_ranges(ranges: Ranges) -> list[str]:
    """Return the most loggers whose ranges do not overlap, in their order.

    >>> chain_ranges({"control": (0, 9), "v1": (0, 3), "v2": (4, 6), "v3": (7, 9)})
    ['v1', 'v2', 'v3']
    """
    chain: list[str] = []
    for label, (first, _) in sorted(ranges.items(), key=lambda item: item[1][::-1]):
        if not chain or first > ranges[chain[-1]][1]:
            chain.append(label)
    return chain
