"""Decision-service JSON: the logs of Vowpal Wabbit and Azure Personalizer.

Each line is one decision: its context, the probabilities of all actions, the action that
was drawn, and its cost once that is known.  One SELECT of DuckDB turns lines of some
kilobytes into rows of a few numbers.  The probabilities are those of the model that wrote
the line; the file has no probabilities of other models.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, cast

from poolwise.errors import Fault, LogError, SourceError, UsageError
from poolwise.files import PARQUET, refuse_output, telling, whole_file
from poolwise.log.log import Log, OnFault
from poolwise.rows.sources import identifier, literal

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

Paths: TypeAlias = str | Path | Sequence[str | Path]
LoggerFrom = Literal["model", "file"] | None

UNIFORM = "1.0 / action_count"  # target: every action with the same probability
FIRST_ACTION = "if(action = 1, 1.0, 0.0)"  # target: always the first of the offered actions
GREEDY = "if(action = list_position(probabilities, list_max(probabilities)), 1.0, 0.0)"

ENDINGS = ("*.json", "*.dsjson", "*.json.gz", "*.dsjson.gz")  # files of a folder
BATCH_ROWS = 20_000
DSJSON_ADVICE = (
    "Correct these lines at their source, or leave them out: pw.from_dsjson(..., "
    "on_fault='drop'). Estimates are biased if lines are missing because of their cost or "
    "action."
)

# Probabilities are float32, written with seven digits, perhaps thousands of them.
TOLERANCE = 1e-4  # of the sum of `p`, and of `_label_probability`, relative
FIELDS = {  # values of a line, by their path
    "a": "$.a",
    "p": "$.p",
    "label_index": "$._labelIndex",
    "label_action": "$._label_Action",
    "label_chance": "$._label_probability",
    "pdrop": "$.pdrop",
    "outcomes": "$._outcomes",
    "skip_learn": "$._skipLearn",
    "reward_value": "$.RewardValue",
    "observations": "$.Observations",
    "model": "$.VWState.m",
    "event_id": "$.EventId",
    "time": "$.Timestamp",
    "context": "$.c",
}
NEVER_SHOWN = "decision that was never shown (_skipLearn)"
OBSERVATION = "observation without its decision"
SKIPPED = (NEVER_SHOWN, OBSERVATION)  # reasons that are not faults
REASONS = {  # to leave a line out, with the condition in SQL; the first that holds counts
    "the line is not JSON": "line IS NULL",
    "the line is not a JSON object": "json_type(line) <> 'OBJECT'",
    NEVER_SHOWN: "skip_learn = 'true'",
    "the line has several slots (`_outcomes`): it is not one decision": "outcomes IS NOT NULL",
    OBSERVATION: "NOT labelled AND coalesce(reward_value, observations) IS NOT NULL",
    "the line has no label (`{cost}` and `_labelIndex`)": "NOT labelled",
    "`pdrop` is not in [0, 1)": "coalesce(drop_chance < 0 OR drop_chance >= 1, true)",
    "`a` and `p` are not lists of one length": "numbers IS NULL OR chances IS NULL "
    "OR len(numbers) <> len(chances)",
    "a value of `a` is not a finite number": "list_contains_null(numbers)",
    "a value of `p` is not a finite number": "list_contains_null(chances)",
    "`a` does not hold every action once": "coalesce(list_min(numbers) NOT IN (0, 1) "
    "OR list_max(numbers) - list_min(numbers) <> len(numbers) - 1 "
    "OR len(list_distinct(numbers)) <> len(numbers) "
    "OR numbers <> list_transform(numbers, lambda n: trunc(n)), true)",
    f"`p` is negative or does not sum to 1 (within {TOLERANCE:g})": "list_min(chances) < 0 "
    f"OR abs(list_sum(chances) - 1) > {TOLERANCE}",
    "the number of the logged action is not a finite number": "logged IS NULL",
    "`_labelIndex` and `_label_Action` name different actions": "label_index IS NOT NULL "
    "AND label_action IS NOT NULL AND double(label_action) IS DISTINCT FROM logged",
    "the logged action is not a whole number": "logged <> trunc(logged)",
    "the logged action is not among `a`": "logged < 1 OR logged > len(numbers)",
    "the logged action has probability 0 in `p`": "chance <= 0",
    "`_label_probability` is not the probability of the action in `p`": "label_chance IS NOT "
    "NULL AND NOT coalesce(near(double(label_chance), chance) "
    "OR near(double(label_chance), chance * (1 - drop_chance)), false)",
    "`{cost}` is not a finite number": "double(cost) IS NULL",
}
COLUMNS = {  # of a row
    "logger": "logger",
    "action": "TRY_CAST(logged AS INTEGER)",
    "reward": "0.0 - double(cost)",  # not -0.0
    "propensity": "chance",
    "event_id": "event_id->>'$'",
    "probabilities": "probabilities",
    "action_count": "len(probabilities)::INTEGER",
    "time": "TRY_CAST(regexp_extract(time->>'$', '^[0-9].*') AS TIMESTAMP)",
    "pdrop": "drop_chance",
}
MACROS = f"""
    CREATE TEMP MACRO double(x) AS CASE WHEN json_type(x) IN ('DOUBLE', 'BIGINT', 'UBIGINT')
        AND isfinite(TRY_CAST(x AS DOUBLE)) THEN TRY_CAST(x AS DOUBLE) END;
    CREATE TEMP MACRO doubles(x) AS CASE WHEN json_type(x) = 'ARRAY'
        THEN list_transform(json_extract(x, '$[*]'), lambda v: double(v)) END;
    CREATE TEMP MACRO list_contains_null(x) AS len(list_filter(x, lambda v: v IS NULL)) > 0;
    CREATE TEMP MACRO not_null(x) AS list_filter(x, lambda v: v IS NOT NULL)[1];
    CREATE TEMP MACRO near(x, y) AS abs(x - y) <= {TOLERANCE} * greatest(abs(x), abs(y));
"""


class DecisionLog(NamedTuple):
    """A log of decisions, with the lines that were left out.

    Attributes:
        log: The decisions; its source is an Arrow table, or the Parquet file of `save`.
        skipped: Lines that are not decisions, counted by their kind.
        faults: Broken lines.
    """

    log: Log
    skipped: Mapping[str, int]
    faults: tuple[Fault, ...]


def from_dsjson(
    paths: Paths,
    *,
    logger: LoggerFrom = "model",
    context: Sequence[str] = (),
    cost: str = "_label_cost",
    save: str | Path | None = None,
    on_fault: OnFault = "raise",
) -> Log:
    """Read decision-service lines of Vowpal Wabbit or Azure Personalizer into a log.

    The log has the columns logger, action (counted from 1), reward (minus the cost),
    propensity, event_id, probabilities (of every action, in the order of their numbers),
    action_count, time and pdrop. Only own propensities are known: naive works directly, but
    balanced needs `estimate_mixture`, which needs the `context` that the models saw.

    If `pdrop` differs between the lines of a logger, each line counts as often as the
    decisions that it represents. This is valid if thinning depended on neither the action
    nor its reward.

    Args:
        paths: A file, a folder or a list of them; `.gz` files are decompressed.
        logger: Label of the loggers: the "model" id, the "file", or None for one logger.
        context: Values to keep as columns of text, by their path below `c`: "User.age".
            Lists and objects become JSON text.
        cost: Field of the cost; `_original_label_cost` is the cost before any default.
        save: Parquet file to write the rows to; without it they stay in memory.
        on_fault: Reject files with broken lines ("raise"), or leave these out ("drop").

    Raises:
        LogError: Lines are broken; all faults together, with an example of each.
    """
    return read_dsjson(
        paths, logger=logger, context=context, cost=cost, save=save, on_fault=on_fault
    ).log


def read_dsjson(
    paths: Paths,
    *,
    logger: LoggerFrom = "model",
    context: Sequence[str] = (),
    cost: str = "_label_cost",
    save: str | Path | None = None,
    on_fault: OnFault = "raise",
) -> DecisionLog:
    """Read as `from_dsjson` does, and also count the lines that were left out."""
    import duckdb

    _check_options(logger, context, on_fault)
    files = list_files(paths)
    if save is not None:
        refuse_output(save, PARQUET, files)
    with duckdb.connect() as connection:
        _load(connection, files, _select(logger, context, cost))
        skipped, faults = _count_rows(connection, on_fault)
        reward = _reward(connection)
        source = _rows(connection, context, None if save is None else Path(save))
    log = Log(
        source,
        logger="logger",
        action="action",
        reward=reward,
        propensity="propensity",
        context=tuple(context) or ("action_count",),  # not event ids and times
        on_fault=on_fault,
    )
    return DecisionLog(log, skipped, faults)


def _check_options(logger: object, context: object, on_fault: object) -> None:
    if logger not in {"model", "file", None}:
        raise UsageError(f"logger must be 'model', 'file' or None, got {logger!r}")
    if isinstance(context, str):
        raise UsageError(f"context must be a list of paths, got {context!r}")
    taken = sorted({*COLUMNS} & {*cast("Sequence[str]", context)})
    if taken:
        raise UsageError(f"context must not have the name of another column: {taken[0]!r}")
    if on_fault not in {"raise", "drop"}:
        raise UsageError(f"on_fault must be 'raise' or 'drop', got {on_fault!r}")


def list_files(paths: Paths, endings: Sequence[str] = ENDINGS) -> list[Path]:
    """Return the files, in order; a folder means all files below it with these endings."""
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    if not listed:
        raise UsageError("paths must name at least one file, got an empty list")
    files: list[Path] = []
    for path in map(Path, listed):
        matches = _matches(path, endings)
        if not matches:
            raise SourceError(str(path), f"there is no file ({', '.join(endings)})")
        files += matches
    return files


def _matches(path: Path, endings: Sequence[str]) -> list[Path]:
    if path.is_dir():
        return sorted({p for ending in endings for p in path.rglob(ending)})
    if glob.has_magic(str(path)) and not path.exists():
        return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    return [path] if path.exists() else []


def _select(logger: LoggerFrom, context: Sequence[str], cost: str) -> str:
    """Return the SELECT from `lines` to rows, with the reason to leave a line out."""
    fields = {**FIELDS, "cost": f"$.{identifier(cost)}"}
    values = ", ".join(f"v[{index}] AS {name}" for index, name in enumerate(fields, 1))
    label = {"model": "coalesce(nullif(model->>'$', ''), 'no model')", "file": "file_stem"}
    reasons = "".join(
        f" WHEN {rule} THEN {literal(why.format(cost=cost))}" for why, rule in REASONS.items()
    )
    columns = {**COLUMNS, **{name: _at("context", name) for name in context}}
    listed = ", ".join(f"{value} AS {identifier(name)}" for name, value in columns.items())
    return f"""
        WITH split AS (SELECT line, parse_filename(filename) AS file,
                parse_filename(filename, true) AS file_stem,
                json_extract(line, {literal([*fields.values()])}) AS v FROM lines),
            raw AS (SELECT line, file, file_stem, {values} FROM split),
            parsed AS (SELECT * REPLACE (nullif(label_index, 'null') AS label_index,
                    nullif(label_action, 'null') AS label_action),
                cost IS NOT NULL AND coalesce(label_index, label_action) IS NOT NULL
                    AS labelled FROM raw),
            typed AS (SELECT *,
                {label.get(logger or "", "'log'")} AS logger,
                double(coalesce(pdrop, '0')) AS drop_chance,
                doubles(a) AS numbers, doubles(p) AS chances,
                if(label_index IS NULL, double(label_action), double(label_index) + 1)
                    AS logged FROM parsed),
            sorted AS (SELECT *, list_transform(list_sort(list_zip(numbers, chances)),
                lambda pair: pair[2]) AS probabilities FROM typed),
            decisions AS (SELECT *,
                probabilities[TRY_CAST(logged AS INTEGER)] AS chance FROM sorted)
        SELECT CASE{reasons} END AS reason, file, {listed} FROM decisions"""


def _at(value: str, path: str) -> str:
    """Return the SQL of the text below a JSON value; a list means its first entry."""
    for key in path.split("."):
        steps = [f"${first}.{identifier(key)}" for first in ("", "[0]", "[0][0]")]
        value = f"not_null(json_extract({value}, {literal(steps)}))"
    return f"({value})->>'$'"


def _load(connection: duckdb.DuckDBPyConnection, files: Sequence[Path], select: str) -> None:
    """Read all files into the table `decisions`."""
    import duckdb

    names = literal([glob.escape(str(path)) for path in files])
    lines = f"""
        SELECT json AS line, filename FROM read_json_objects({names},
            format = 'newline_delimited', ignore_errors = true, filename = true)"""
    connection.execute(MACROS)
    try:
        connection.execute(f"CREATE TEMP VIEW lines AS {lines}")
        connection.execute(f"CREATE TEMP TABLE decisions AS {select}")
    except duckdb.Error as error:
        raise SourceError(", ".join(map(str, files)), str(error)) from error


def _count_rows(
    connection: duckdb.DuckDBPyConnection, on_fault: OnFault
) -> tuple[dict[str, int], tuple[Fault, ...]]:
    """Count skipped lines and faults; raise unless faults may be dropped."""
    counts = connection.execute("""
        SELECT reason, count(*), first(file ORDER BY rowid), first(event_id ORDER BY rowid)
        FROM decisions GROUP BY reason ORDER BY min(rowid)
    """).fetchall()
    skipped = {reason: count for reason, count, *_ in counts if reason in SKIPPED}
    faults = tuple(
        Fault(
            reason,
            "",
            count,
            {"file": file} | ({"event": event} if event else {}),
            DSJSON_ADVICE,
        )
        for reason, count, file, event in counts
        if reason not in {None, *SKIPPED}
    )
    if faults and on_fault == "raise":
        raise LogError(faults)
    if all(reason is not None for reason, *_ in counts):
        other = "".join(f"; {count:,} × {what}" for what, count in skipped.items())
        raise LogError([*faults, Fault(f"there is no decision in these files{other}", "", 0)])
    return skipped, faults


def _reward(connection: duckdb.DuckDBPyConnection) -> str:
    """Return the reward, weighted where the lines of a logger were thinned unevenly."""
    loggers = connection.execute("""
        SELECT logger, avg(1 / (1 - pdrop)), min(pdrop) < max(pdrop)
        FROM decisions WHERE reason IS NULL GROUP BY logger ORDER BY min(rowid)
    """).fetchall()
    if not any(uneven for *_, uneven in loggers):
        return "reward"
    cases = " ".join(f"WHEN {literal(label)} THEN {mean!r}" for label, mean, _ in loggers)
    return f"reward / (1.0 - pdrop) / CASE logger {cases} END"


def _rows(
    connection: duckdb.DuckDBPyConnection, context: Sequence[str], save: Path | None
) -> pa.Table | Path:
    """Return the rows as an Arrow table, or write them to a Parquet file."""
    names = ", ".join(map(identifier, (*COLUMNS, *context)))
    result = connection.sql(f"SELECT {names} FROM decisions WHERE reason IS NULL")
    if save is None:
        return result.to_arrow_table()
    import pyarrow.parquet as pq

    batches = result.to_arrow_reader(BATCH_ROWS)
    with (
        whole_file(save) as partial,
        telling(save),
        pq.ParquetWriter(partial, batches.schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
    return save
