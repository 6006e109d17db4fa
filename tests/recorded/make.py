"""Record values of everything public, to be compared after a change of the code.

From the root of the repository::

    PYTHONPATH=src python -m tests.recorded.make [NAME ...]

The names are duckdb, postgres and others; without one it is all.
Values of an engine that is not installed, or not named, stay as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.recorded.engines import RECORDED, pairs, values_of
from tests.recorded.others import OTHERS
from tests.recorded.verbs import Values, answer

PLACE = Path(__file__).with_name("values.json")
OTHER = "others"  # what is recorded without an engine


def load() -> dict[str, Values]:
    """Read the recorded values, by log and engine."""
    found: dict[str, Values] = json.loads(PLACE.read_text("utf-8")) if PLACE.exists() else {}
    return found


def save(values: dict[str, Values]) -> None:
    """Write the file: one line for each question, so that a change shows where it is."""
    cases = []
    for name, answers in sorted(values.items()):
        lines = [f"  {json.dumps(k)}: {compact(v)}" for k, v in answers.items()]
        cases.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    PLACE.write_text("{\n" + ",\n".join(cases) + "\n}\n", "utf-8")


def compact(value: object) -> str:
    """JSON without spaces; numbers keep all their digits."""
    return json.dumps(value, separators=(",", ":"))


def key(name: str, engine: str) -> str:
    """Return the name of the values of a log and an engine."""
    return f"{name}/{RECORDED[engine]}"


def record(engines: list[str]) -> None:
    """Run all questions on all engines, and record the results."""
    values = load()
    if OTHER in engines:
        values |= {f"{OTHER}/{name}": {"": answer(ask)} for name, ask in OTHERS.items()}
        save(values)
    for name, engine in pairs():
        if engine not in engines:
            continue
        try:
            values[key(name, engine)] = values_of(name, engine)
        except pytest.skip.Exception as reason:
            sys.stderr.write(f"{name} on {engine} is left as it is: {reason}\n")
        save(values)


if __name__ == "__main__":
    distinct = [*dict.fromkeys(RECORDED.values()), OTHER]
    record(sys.argv[1:] or distinct)
