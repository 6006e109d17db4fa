"""Init: a question file that runs, with a reason for every key.

Formats that have a name of their own are recognised by their columns; the roles of other logs
are guessed.  The file lists open questions, and what the question lacks.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from poolwise.cli.draft import REWARDS, Draft, best_named
from poolwise.cli.guess import FEW, ONLY_BINARY, guess
from poolwise.log.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from poolwise.cli.facts import Column, Facts

ORDER = (  # of keys in the file
    *("format", "reward", "logger", "propensity", "propensities", "log_probabilities"),
    *("densities", "action", "eligible", "request", "position", "session", "step"),
    *("reward_at", "cluster", "period"),
)
HEADER = """\
# A question for poolwise, guessed from the names, types and values of the columns.
# Check every line, then run `poolwise {command}` with this file.
"""
SHOWN_TYPE = 60  # characters of the type of a column


class Guessed(NamedTuple):
    """The text of a question file, and what its reader must know.

    Attributes:
        text: The file.
        command: Command that answers it.
        missing: What the question cannot do without.
        open: What could not be decided.
    """

    text: str
    command: str
    missing: list[str]
    open: list[str]


def guess_question(logs: Sequence[str], sources: Sequence[str]) -> Guessed:
    """Return a question file about logs.

    Args:
        logs: Paths, globs, or one SELECT.
        sources: The same as the file names them.
    """
    types: Mapping[str, str] = {}
    rows = 0
    if is_open_bandit(logs):
        draft = _open_bandit(Path(logs[0]))
    else:
        with _facts(logs) as facts:
            draft = _known_format(facts) or guess(facts)
            types, rows = facts.types, facts.rows
    command = "clicks" if draft.clicks else "evaluate"
    text = "".join(_lines(draft, types, rows, sources, command))
    return Guessed(text, command, draft.missing, draft.open)


@contextmanager
def _facts(logs: Sequence[str]) -> Iterator[Facts]:
    """Measure the columns of the logs."""
    import duckdb

    from poolwise.cli.facts import read_facts
    from poolwise.files import temporary_folder
    from poolwise.rows.guard import lock
    from poolwise.rows.sources import create_view

    log = Log(list(logs), reward="1", propensity="1")
    with (
        temporary_folder() as folder,
        duckdb.connect(config={"temp_directory": str(folder)}) as connection,
    ):
        types = create_view(connection, log, folder)
        lock(connection)
        yield read_facts(connection, types)


def is_open_bandit(logs: Sequence[str]) -> bool:
    """Test if the logs are the folder of the Open Bandit Dataset."""
    folder = Path(logs[0])
    return len(logs) == 1 and folder.is_dir() and any(folder.glob("*/*/*.csv"))


def _open_bandit(folder: Path) -> Draft:
    """Return the question about a folder of the Open Bandit Dataset."""
    from poolwise.formats.open_bandit import ITEMS

    found = {path.stem for path in folder.glob("*/*/*.csv") if path.parent.name == path.stem}
    campaigns = sorted(found)
    draft = Draft()
    draft.put("format", "open-bandit", "a folder for each policy, and in it for each campaign")
    campaign = campaigns[0] if campaigns else ""
    if len(campaigns) > 1:
        draft.put("format_options", {"campaign": campaign}, f"one of {', '.join(campaigns)}")
    if campaign in ITEMS:
        why = f"every one of the {ITEMS[campaign]} items alike"
        draft.targets["uniform"] = (f"1.0 / {ITEMS[campaign]}", why)
    return draft


def _known_format(facts: Facts) -> Draft | None:
    """Return the question about a log in a format that has a name; None for other logs."""
    names = {name.lower().replace("_", ""): name for name in facts.types}
    schema = facts.columns.get("schema")
    if schema is not None and schema.values == ("poolwise-decisions-1",):
        return _decisions(facts)
    if {"labelcost", "a", "p"} <= names.keys():
        draft = Draft()
        draft.put("format", "dsjson", "lines have `_label_cost`, `a` and `p`")
        draft.targets["uniform"] = ("1.0 / action_count", "every action alike")
        return draft
    if {"experimentid", "variationid"} <= names.keys() and (
        {"variationweights", "banditversion"} & names.keys()
    ):
        return _growthbook(facts, names)
    if {"actionprobability", "modelversion", "action", "subject"} <= names.keys():
        return _eppo(facts, names)
    return None


def _decisions(facts: Facts) -> Draft:
    draft = Draft()
    draft.put("format", "decisions", "each line says that it follows poolwise-decisions-1")
    if "decision" in facts.types:
        draft.offered["format_options"] = (
            {"window": "7 days"},
            "to count only outcomes that come so soon after their decision",
        )
    if not any(name.startswith("targets") for name in facts.types):
        draft.missing.append("[targets]: the probability of the action under a new policy.")
    return draft


def _growthbook(facts: Facts, names: Mapping[str, str]) -> Draft:
    draft = Draft()
    draft.put("format", "growthbook", "exposures of an experiment with weights of variations")
    options: dict[str, object] = {}
    experiments = facts.labels(names["experimentid"])
    if len(experiments) > 1:
        options["experiment"] = _largest(facts, names["experimentid"])
        draft.open.append(f"The rows have {len(experiments)} experiments: choose one.")
    labels = facts.labels(names["variationid"])
    if not all(label.isdecimal() for label in labels):
        draft.missing.append(
            "`format_options.variations`: the variations in the order of their weights, of "
            f"{', '.join(labels)}."
        )
    if options:
        draft.put("format_options", options, "the experiment with the most rows")
    own = {"experimentid", "variationid", "leafid", "banditversion", "variationweights"}
    _choose_reward(facts, draft, [names[name] for name in own & names.keys()])
    _always(draft, labels)
    return draft


def _eppo(facts: Facts, names: Mapping[str, str]) -> Draft:
    draft = Draft()
    draft.put("format", "eppo", "bandit actions with `actionProbability` and `modelVersion`")
    bandits = [names[name] for name in ("bandit", "banditkey", "key") if name in names]
    if bandits and len(facts.labels(bandits[0])) > 1:
        chosen = {"bandit": _largest(facts, bandits[0])}
        draft.put("format_options", chosen, "the bandit with the most rows")
    own = {"actionprobability", "modelversion", "optimalitygap"}
    _choose_reward(facts, draft, [names[name] for name in own & names.keys()])
    _always(draft, facts.labels(names["action"]))
    return draft


def _largest(facts: Facts, name: str) -> str:
    """Return the value that most rows have."""
    sql = facts.columns[name].sql
    found = facts.connection.execute(
        f"SELECT ({sql})::VARCHAR AS v FROM log WHERE v IS NOT NULL GROUP BY v "
        "ORDER BY count(*) DESC, v LIMIT 1"
    ).fetchall()
    return str(found[0][0])


def _choose_reward(facts: Facts, draft: Draft, own: Sequence[str]) -> None:
    """Decide the reward of a format whose events have none of their own."""
    left = [c for c in facts.columns.values() if c.name not in own]
    numbers = [c for c in left if (c.is_number or c.binary) and "." not in c.name]
    found: Column | None = best_named(numbers, REWARDS)
    reason = "the name is that of a reward"
    binary = [c for c in numbers if c.binary]
    if found is None and len(binary) == 1:
        found, reason = binary[0], ONLY_BINARY
    if found is not None:
        draft.put("reward", found.name, reason)
        return
    draft.missing.append(
        "`reward`: no column has the name of a reward. If rewards are in another table, name "
        "it as `outcomes` and say in `join` how it belongs to these rows: "
        "docs/formats.md#outcomes-that-come-later"
    )


def _always(draft: Draft, labels: Sequence[str]) -> None:
    """Write a target for each action, or one that plays all alike."""
    if 1 < len(labels) <= FEW:
        for label in labels:
            draft.targets[f"always {label}"] = ({label: 1.0}, "this action only")
    elif len(labels) > FEW:
        even = dict.fromkeys(labels, 1 / len(labels))
        draft.targets["uniform"] = (even, "every action alike")


def _lines(
    draft: Draft,
    types: Mapping[str, str],
    rows: int,
    sources: Sequence[str],
    command: str,
) -> Iterator[str]:
    """Yield the parts of the file."""
    yield HEADER.format(command=command)
    if types:
        yield f"# {rows:,} rows with these columns:\n"
    for name, kind in types.items():
        shown = kind if len(kind) <= SHOWN_TYPE else f"{kind[: SHOWN_TYPE - 1]}…"
        yield f"#   {_toml(name)}: {_one_line(shown)}\n"
    for title, sentences in (("Missing", draft.missing), ("Not decided", draft.open)):
        if sentences:
            yield f"#\n# {title}:\n"
        for sentence in sentences:
            yield f"# - {_one_line(sentence)}\n"
    yield f"\nlog = {_toml(sources[0] if len(sources) == 1 else list(sources))}\n"
    if draft.clicks:
        yield "\n[clicks]\n"
        yield from _pairs(draft.clicks)
    else:
        yield from _keys(draft)
    yield "\n[targets]\n"
    yield from _pairs(draft.targets)
    yield '\n[options]\n# baseline = "v1"  # target or logger to compare with\n# level = 0.95\n'


def _keys(draft: Draft) -> Iterator[str]:
    """Yield the keys in their order, with those that are only offered or missing."""
    if "reward" not in draft.keys and "reward" in " ".join(draft.missing):
        yield '# reward = "..."  # missing\n'
    ordered = sorted(draft.keys, key=lambda k: ORDER.index(k) if k in ORDER else len(ORDER))
    yield from _pairs({key: draft.keys[key] for key in ordered})
    has = {"propensity", "propensities", "format"} & draft.keys.keys()
    if not has:
        yield '# propensity = "..."  # missing\n'
    for line in _pairs(draft.offered):
        yield f"# {line}"


def _pairs(values: Mapping[str, tuple[object, str]]) -> Iterator[str]:
    for key, (value, reason) in values.items():
        yield f"{_name(key)} = {_toml(value)}  # {_one_line(reason)}\n"


def _one_line(text: str) -> str:
    """Return a text as a comment may hold it."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _name(key: str) -> str:
    plain = re.fullmatch(r"[\w-]+", key, re.ASCII)
    return key if plain else _toml(key)


def _toml(value: object) -> str:
    """Return a value as TOML in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_name(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
