"""Init: a question file whose roles are guessed from the columns of the logs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolwise.log.log import PATTERN, Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NAMES = {
    "reward": "reward click clicked conversion converted revenue outcome feedback",
    "logger": "logger policy policy_id policy_name logging_policy variant model version",
    "propensity": "propensity propensity_score pscore p prob probability action_prob",
    "action": "action action_id arm item item_id decision choice",
    "cluster": "user user_id session session_id visitor visitor_id customer customer_id",
}
NUMERIC = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)?INT|INTEGER|FLOAT|DOUBLE|DECIMAL|BOOLEAN)")
TARGET = re.compile(r"(?:p_|prob_)?((?:target|candidate|new)\w*)", re.IGNORECASE)


@dataclass(frozen=True)
class Guess:
    """Roles of columns, by their names.

    Attributes:
        roles: Column of each role.
        pattern: Pattern of the columns with the propensity under each logger, or empty.
        targets: Column of each target.
    """

    roles: Mapping[str, str]
    pattern: str
    targets: Mapping[str, str]


def question_text(logs: Sequence[str], sources: Sequence[str]) -> str:
    """Return a question file with a comment for every key.

    Args:
        logs: Paths, globs, or one SELECT.
        sources: The same as the file names them.
    """
    types, labels = _columns(logs)
    roles = guess(types, labels)

    def line(key: str, comment: str, value: str | None, example: str) -> str:
        text = f"# {key} = {json.dumps(example)}" if value is None else _pair(key, value)
        return f"{text}  # {comment}"

    columns = "".join(f"#   {json.dumps(name)}: {kind}\n" for name, kind in types.items())
    source = sources[0] if len(sources) == 1 else list(sources)
    by_role = roles.roles.get
    cluster = by_role("cluster", "user_id")
    targets = roles.targets or {"# candidate": "p_candidate"}
    return "\n".join(
        [
            "# A question for poolwise. The roles are guesses: check every line.",
            f"# The columns of the log:\n{columns}",
            f"log = {json.dumps(source, ensure_ascii=False)}",
            line("reward", "number to maximise", by_role("reward"), "reward"),
            line("logger", "label of the policy that chose", by_role("logger"), "policy"),
            line("propensity", "its probability of the action", by_role("propensity"), "p"),
            line("propensities", "under every logger", roles.pattern or None, "p_" + PATTERN),
            line("action", "only for policies in Python", by_role("action"), "action"),
            line("cluster", "rows of one value depend on each other", None, cluster),
            line("period", "if policies learn from earlier periods", None, "day"),
            "\n[targets]  # probability of the logged action under each new policy",
            *(_pair(name, column) for name, column in targets.items()),
            "\n[options]",
            line("baseline", "target or logger to compare with", None, "v1"),
            "# level = 0.95",
            "# half_width = 0.01  # for `poolwise plan`",
            "",
        ]
    )


def _pair(key: str, value: str) -> str:
    name = key if re.fullmatch(r"(# )?[\w-]+", key, re.ASCII) else json.dumps(key)
    return f"{name} = {json.dumps(value, ensure_ascii=False)}"


def _columns(logs: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the type of each column, and the labels of the loggers."""
    import duckdb

    from poolwise.engines.base import MOST_LOGGERS
    from poolwise.rows.guard import lock
    from poolwise.rows.output import temporary_folder
    from poolwise.rows.sources import create_view, identifier

    log = Log(list(logs), reward="1", propensity="1")
    with (
        temporary_folder() as folder,
        duckdb.connect(config={"temp_directory": str(folder)}) as connection,
    ):
        create_view(connection, log, folder)
        lock(connection)
        lines = connection.execute("DESCRIBE SELECT * FROM log").fetchall()
        types = {str(line[0]): str(line[1]) for line in lines}
        logger = _named("logger", types)
        if logger is None:
            return types, []
        column = identifier(logger)
        query = f"SELECT DISTINCT {column}::VARCHAR AS label FROM log ORDER BY label LIMIT {MOST_LOGGERS}"  # noqa: E501, S608
        labels = [label for (label,) in connection.execute(query).fetchall() if label]
    return types, labels


def _named(role: str, columns: Iterable[str]) -> str | None:
    """Return the column whose name is usual for a role, the most usual first."""
    by_lower = {column.lower(): column for column in columns}
    return next((by_lower[name] for name in NAMES[role].split() if name in by_lower), None)


def guess(types: Mapping[str, str], labels: Sequence[str]) -> Guess:
    """Guess the roles of columns.

    >>> types = {"policy": "VARCHAR", "click": "INTEGER"} | dict.fromkeys(
    ...     ["p_v1", "p_v2", "p_next"], "DOUBLE")
    >>> guess(types, ["v1", "v2"])  # doctest: +NORMALIZE_WHITESPACE
    Guess(roles={'reward': 'click', 'logger': 'policy'}, pattern='p_{logger}',
        targets={'next': 'p_next'})
    """
    roles = {role: column for role in NAMES if (column := _named(role, types)) is not None}
    numbers = [c for c, kind in types.items() if NUMERIC.match(kind)]
    pattern = _pattern(numbers, labels)
    crossed = {pattern.replace(PATTERN, label) for label in labels}
    free = [c for c in numbers if c not in crossed and c not in roles.values()]
    form = TARGET
    if pattern:
        before, after = map(re.escape, pattern.split(PATTERN))
        form = re.compile(f"{before}(.+){after}")
    targets = {match[1]: column for column in free if (match := form.fullmatch(column))}
    return Guess(roles, pattern, targets)


def _pattern(columns: Sequence[str], labels: Sequence[str]) -> str:
    """Return the pattern by which every label names a column, or no text."""
    for column in columns:
        for label in labels:
            before, inside, after = column.partition(label)
            if inside and all(f"{before}{i}{after}" in columns for i in labels):
                return f"{before}{PATTERN}{after}"
    return ""
