"""Decisions: one line of decision-service JSON becomes one row, or a named fault.

A line of Vowpal Wabbit or Azure Personalizer holds a context, the probabilities of all
actions, the action that was drawn, and its cost once that is known.  Here it is checked;
`poolwise.formats.vw` reads the files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

Line: TypeAlias = Mapping[str, Any]  # one line of JSON: any value may stand under any key

SUM_TOLERANCE = 1e-4  # probabilities are float32, written with seven digits, perhaps thousands
LABEL_TOLERANCE = 1e-4  # relative, for the same reason
NO_MODEL = "no model"  # label of lines that name no model


class Row(NamedTuple):
    """One decision, as a row of the table."""

    logger: str
    action: int
    reward: float
    propensity: float
    event_id: str | None
    probabilities: list[float]
    action_count: int
    time: datetime | None
    pdrop: float


class BrokenError(Exception):
    """A line that breaks a rule; the message is the rule."""


class SkippedError(Exception):
    """A line that is no decision; the message says what it is."""


def parsed(text: bytes) -> Line:
    """One line of a file as a JSON object."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenError("the line is not JSON") from error
    if not isinstance(line, dict):
        raise BrokenError("the line is not a JSON object")
    return line


def decision(line: Line, cost: str = "_label_cost", logger: str | None = None) -> Row:
    """The decision in one line, or an error that names the rule it breaks.

    Args:
        line: The line, parsed.
        cost: Field of the cost.
        logger: Label of the logger; None for the id of the model.

    >>> line = {"_label_cost": -1, "_label_probability": 0.8, "_labelIndex": 1,
    ...         "a": [2, 1], "p": [0.8, 0.2], "VWState": {"m": "m7"}}
    >>> row = decision(line)
    >>> row.logger, row.action, row.reward, row.propensity, row.probabilities
    ('m7', 2, 1.0, 0.8, [0.2, 0.8])
    """
    _refuse_other_lines(line, cost)
    pdrop = _number(line.get("pdrop", 0.0), "`pdrop`")
    if not 0 <= pdrop < 1:
        raise BrokenError("`pdrop` is not in [0, 1)")
    probabilities = _by_action(line)
    action = _action(line)
    if not 1 <= action <= len(probabilities):
        raise BrokenError("the logged action is not among `a`")
    propensity = probabilities[action - 1]
    _check_label(line, propensity, pdrop)
    state, event = line.get("VWState"), line.get("EventId")
    model = state.get("m") if isinstance(state, dict) else None
    return Row(
        logger=logger or str(model or NO_MODEL),
        action=action,
        reward=0.0 - _number(line[cost], f"`{cost}`"),  # not -0.0
        propensity=propensity,
        event_id=None if event is None else str(event),
        probabilities=probabilities,
        action_count=len(probabilities),
        time=_time(line.get("Timestamp")),
        pdrop=pdrop,
    )


def _refuse_other_lines(line: Line, cost: str) -> None:
    if line.get("_skipLearn") is True:
        raise SkippedError("decision that was never shown (_skipLearn)")
    labelled = cost in line and ("_labelIndex" in line or "_label_Action" in line)
    if "_outcomes" in line:
        raise BrokenError("the line has several slots (`_outcomes`): it is not one decision")
    if not labelled and ("RewardValue" in line or "Observations" in line):
        raise SkippedError("observation without its decision")
    if not labelled:
        raise BrokenError(f"the line has no label (`{cost}` and `_labelIndex`)")


def _number(value: object, what: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
    ):
        raise BrokenError(f"{what} is not a finite number")
    return float(value)


def _by_action(line: Line) -> list[float]:
    """Probabilities in the order of the actions' numbers; `p` has the order of `a`.

    The numbers of `a` count from 1; a few writers count from 0.
    """
    order, given = line.get("a"), line.get("p")
    if not isinstance(order, list) or not isinstance(given, list) or len(order) != len(given):
        raise BrokenError("`a` and `p` are not lists of one length")
    numbers = [_number(value, "a value of `a`") for value in order]
    probabilities = [_number(value, "a value of `p`") for value in given]
    first = 0 if 0 in numbers else 1
    if not order or sorted(numbers) != list(range(first, first + len(order))):
        raise BrokenError("`a` does not hold every action once")
    if min(probabilities) < 0 or not math.isclose(
        math.fsum(probabilities), 1, abs_tol=SUM_TOLERANCE
    ):
        raise BrokenError(f"`p` is negative or does not sum to 1 (within {SUM_TOLERANCE:g})")
    return [p for _, p in sorted(zip(numbers, probabilities, strict=True))]


def _action(line: Line) -> int:
    """Number of the logged action, from 1."""
    index, action = line.get("_labelIndex"), line.get("_label_Action")
    found = action if index is None else _number(index, "`_labelIndex`") + 1
    number = _number(found, "`_label_Action`")
    if action is not None and action != number:
        raise BrokenError("`_labelIndex` and `_label_Action` name different actions")
    if number != int(number):
        raise BrokenError("the logged action is not a whole number")
    return int(number)


def _check_label(line: Line, propensity: float, pdrop: float) -> None:
    """The label's probability is that of `p`, or that times the chance to be kept."""
    if propensity <= 0:
        raise BrokenError("the logged action has probability 0 in `p`")
    if "_label_probability" not in line:
        return
    label = _number(line["_label_probability"], "`_label_probability`")
    fits = (propensity, propensity * (1 - pdrop))
    if not any(math.isclose(label, p, rel_tol=LABEL_TOLERANCE) for p in fits):
        raise BrokenError("`_label_probability` is not the probability of the action in `p`")


def _time(text: object) -> datetime | None:
    """Time of a line, without its zone, which is UTC; None where there is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found.replace(tzinfo=None)


def value_at(context: object, path: str) -> str | None:
    """A value below `c` as text; of a list, which VW calls a namespace, the first entry."""
    found = context
    for key in path.split("."):
        while isinstance(found, list):
            found = found[0] if found else None
        found = found.get(key) if isinstance(found, dict) else None
    if found is None or isinstance(found, str):
        return found
    return json.dumps(found, sort_keys=True)
