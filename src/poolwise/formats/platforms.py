"""Platforms: exposures of GrowthBook's experiments, and events of Eppo's bandits.

Both write the version of the bandit and the probabilities that it drew with, so each version
is a logger.  A version was trained on rewards of earlier versions, so it is a period as well,
in the order in which versions appear.  The fields have their names of the SDK (`banditVersion`)
or of a warehouse (`bandit_version`).  Rewards are in another table: `join_outcomes` adds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isclose, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from poolwise.errors import (
    Fault,
    Finding,
    LogError,
    MissingColumnError,
    UsageError,
    did_you_mean,
)
from poolwise.formats.derived import open_source
from poolwise.formats.lists import quoted
from poolwise.log.log import Log, Source
from poolwise.log.policy import SUM_TOLERANCE
from poolwise.log.problems import UTC
from poolwise.rows.sources import literal

if TYPE_CHECKING:
    from poolwise.formats.derived import OpenSource

UNITS = ("userid", "hashvalue", "anonymousid", "deviceid", "subject")  # the first that exists
BANDITS = ("bandit", "banditkey", "key")
TIMES = ("timestamp", "time", "receivedat")
NO_VERSION = "no version"  # label of rows that were drawn before a version had been trained
SHOWN = 10  # names in a message
PROBABILITIES, PERIOD = "probabilities", "period"  # columns that a reader adds
ADVICE = "Correct these rows at their source, or leave them out, with a SELECT as the source."


def from_growthbook(  # noqa: PLR0913 - all but one are keyword-only, most with a default
    source: Source,
    *,
    reward: str,
    experiment: str | None = None,
    variations: Sequence[str] = (),
    weights: Sequence[float] = (),
    unit: str | None = None,
    context: Sequence[str] = (),
    timezone: str = UTC,
    reader_options: Mapping[str, object] | None = None,
) -> Log:
    """Read exposures of a GrowthBook experiment or bandit into a log.

    The rows are what the tracking callback writes: `experiment_id`, `variation_id`, and for a
    bandit `variation_weights` and `bandit_version` (or `variationWeights` and so on). Each
    bandit version is a logger and, in the order of the versions, a period. The action is the
    variation. The column `probabilities` has the weights by variation, so the log has whole
    distributions.

    A user keeps a variation while weights change, so only the first exposure of a user was
    drawn with the weights of its row. Later ones are left out, and the log notes their number.

    Args:
        source: Exposures, as for `Log`.
        reward: Column or SQL expression of the reward, in the exposures or in the outcomes
            that `join_outcomes` adds.
        experiment: ID of the experiment; optional if there is only one.
        variations: Variations in the order of their weights; by default "0", "1", ...
        weights: Weights of an experiment whose exposures have none.
        unit: Column of the user; by default user_id, hashValue, anonymous_id or device_id.
        context: Columns that policies in Python see.
        timezone: Zone of times without one.
        reader_options: Options for DuckDB's file reader.

    Raises:
        LogError: Exposures lack weights, a variation or a user.
    """
    plain = _plain(source, timezone, reader_options)
    with open_source(plain) as rows:
        names = _Names(rows, "experimentid variationid")
        chosen, where = _choose(rows, names["experimentid"], experiment, "experiment")
        drawn = _weights(rows, names, where, variations, weights)
        first = _first_rows(rows, names, where, unit or names.first(UNITS, "unit"))
        _refuse(rows, where, first.faults | drawn.faults)
        version, chances = names.get("banditversion"), {PROBABILITIES: drawn.map}
        derived, versions = _with_version(rows, names, first.query, version, chances)
    note = (
        f"{first.others:,} later exposures of the same users of {chosen!r} were left out: "
        "their variation was not drawn again."
    )
    return Log(
        derived,
        reward=reward,
        logger=version if versions else None,
        action=names.plain["variationid"],
        propensity=PROBABILITIES,
        period=PERIOD if versions > 1 else None,
        context=tuple(context),
        timezone=timezone,
        notes=_notes("later-exposures", note, first.others),
    )


def from_eppo(
    source: Source,
    *,
    reward: str,
    bandit: str | None = None,
    experiment: str | None = None,
    shares: Mapping[str, float] | None = None,
    context: Sequence[str] = (),
    timezone: str = UTC,
    reader_options: Mapping[str, object] | None = None,
) -> Log:
    """Read bandit actions or assignments that Eppo's SDK logged into a log.

    A bandit action has `action`, `actionProbability` and `modelVersion` (in a warehouse
    `action_probability` and `model_version`). Each model version is a logger and, in the order
    of their first rows, a period; the subject is the cluster. Only own propensities are known.
    Rows without an action, which the bandit did not decide, are left out and counted.

    An assignment has a `variation` and no probability, so `shares` are required; only the
    first assignment of a subject counts.

    Args:
        source: Events, as for `Log`.
        reward: Column or SQL expression of the reward, in the events or in the outcomes that
            `join_outcomes` adds.
        bandit: Key of the bandit; optional if there is only one.
        experiment: Key of the experiment of the assignments; optional if there is only one.
        shares: Share of the subjects that each variation was assigned to.
        context: Columns that policies in Python see.
        timezone: Zone of times without one.
        reader_options: Options for DuckDB's file reader.

    Raises:
        LogError: Events lack a subject, a probability or a share.
    """
    plain = _plain(source, timezone, reader_options)
    with open_source(plain) as rows:
        if "actionprobability" not in _spelled(rows):
            log = _assignments(rows, reward, experiment, shares)
        else:
            log = _bandit_actions(rows, reward, bandit)
    return replace(log, context=tuple(context), timezone=timezone)


def _bandit_actions(rows: OpenSource, reward: str, bandit: str | None) -> Log:
    """Return the log of the actions of a bandit."""
    names = _Names(rows, "action actionprobability modelversion subject")
    where = "true"
    if any(name in names.plain for name in BANDITS):
        _, where = _choose(rows, quoted(names.first(BANDITS, "bandit")), bandit, "bandit")
    elif bandit is not None:
        raise UsageError(f"bandit: there is no column {', '.join(BANDITS)}")
    action, chance = names["action"], names["actionprobability"]
    faults = {
        "a bandit action without a subject": f"{names['subject']} IS NULL",
        "a bandit action without a probability": (
            f"{action} IS NOT NULL AND TRY_CAST({chance} AS DOUBLE) IS NULL"
        ),
    }
    _refuse(rows, where, faults)
    kept = f"SELECT * FROM log WHERE {where} AND {action} IS NOT NULL"
    lacking = rows.run(f"SELECT count(*) AS n FROM log WHERE {where} AND {action} IS NULL")
    left_out = int(lacking["n"].to_pylist()[0])
    version = names.plain["modelversion"]
    derived, versions = _with_version(rows, names, kept, version, {})
    note = f"{left_out:,} rows without an action were left out: the bandit did not decide them."
    return Log(
        derived,
        reward=reward,
        logger=version,
        action=names.plain["action"],
        propensity=names.plain["actionprobability"],
        cluster=names.plain["subject"],
        period=PERIOD if versions > 1 else None,
        notes=_notes("no-action", note, left_out),
    )


def _assignments(
    rows: OpenSource, reward: str, experiment: str | None, shares: Mapping[str, float] | None
) -> Log:
    """Return the log of the first assignment of each subject of an experiment."""
    names = _Names(rows, "experiment variation subject")
    chosen, where = _choose(rows, names["experiment"], experiment, "experiment")
    if not isinstance(shares, Mapping) or not shares:
        raise UsageError(
            "`shares` are required, such as {'control': 0.5, 'treatment': 0.5}: assignments "
            "have no probabilities"
        )
    values = list(shares.values())
    if not _are_shares(values):
        raise UsageError(f"shares must be numbers from 0 to 1 that sum to 1, got {shares!r}")
    numbers = f"{literal(list(map(float, values)))}::DOUBLE[]"
    drawn = _Drawn([str(name) for name in shares], numbers, names["variation"])
    first = _first_rows(rows, names, where, names.plain["subject"])
    rule = {"an assignment without a variation": f"{names['variation']} IS NULL"}
    _refuse(rows, where, rule | first.faults | drawn.faults)
    derived, _ = _with_version(rows, names, first.query, None, {PROBABILITIES: drawn.map})
    note = (
        f"{first.others:,} later assignments of the same subjects of {chosen!r} were left out."
    )
    return Log(
        derived,
        reward=reward,
        action=names.plain["variation"],
        propensity=PROBABILITIES,
        notes=_notes("later-assignments", note, first.others),
    )


def _notes(code: str, text: str, count: int) -> tuple[Finding, ...]:
    return (Finding(code, text, severity="note"),) if count else ()


class _Names:
    """Columns by their names without underscores, in small letters; as SQL and as they are."""

    def __init__(self, rows: OpenSource, required: str) -> None:
        self.plain = _spelled(rows)
        missing = {name: "the format" for name in required.split() if name not in self.plain}
        if missing:
            raise MissingColumnError(missing, list(rows.types))

    def __getitem__(self, name: str) -> str:
        return quoted(self.plain[name])

    def get(self, name: str) -> str | None:
        return self.plain.get(name)

    @property
    def times(self) -> list[str]:
        """Columns of the time, as SQL."""
        return [self[name] for name in TIMES if name in self.plain]

    def first(self, names: Sequence[str], role: str) -> str:
        """Return the first of some columns that exists."""
        found = [self.plain[name] for name in names if name in self.plain]
        if not found:
            listed = ", ".join(names)
            raise UsageError(f"`{role}` is required: there is no column {listed}")
        return found[0]


def _spelled(rows: OpenSource) -> dict[str, str]:
    return {name.lower().replace("_", ""): name for name in rows.types}


def _plain(source: Source, timezone: str, options: Mapping[str, object] | None) -> Log:
    given = dict(options or {})
    return Log(source, reward="1", propensity="1", timezone=timezone, reader_options=given)


def _choose(rows: OpenSource, column: str, chosen: str | None, role: str) -> tuple[str, str]:
    """Return the chosen experiment or the only one, and the condition of its rows."""
    values = rows.run(f"SELECT DISTINCT {column}::VARCHAR AS name FROM log ORDER BY name")
    known = [name for name in values["name"].to_pylist() if name is not None]
    if chosen is None and len(known) != 1:
        listed = ", ".join(known[:SHOWN]) or "none"
        raise UsageError(f"`{role}` is required: the rows have {listed}")
    if chosen is not None and chosen not in known:
        hint = did_you_mean(chosen, known)
        raise UsageError(f"{role}: the rows have no {chosen!r}{hint}")
    name = known[0] if chosen is None else chosen
    return name, f"{column}::VARCHAR = {literal(name)}"


def _refuse(rows: OpenSource, where: str, faults: Mapping[str, str]) -> None:
    """Raise if rows break a rule."""
    counts = ", ".join(f"count_if(coalesce({rule}, true))" for rule in faults.values())
    broken = rows.run(f"SELECT {counts} FROM log WHERE {where}").to_pydict().values()
    found = [
        Fault(rule, "", int(count), {}, ADVICE)
        for rule, (count,) in zip(faults, broken, strict=True)
        if count
    ]
    if found:
        raise LogError(found)


class _Drawn:
    """Weights of the variations of a row.

    Attributes:
        map: SQL of the map from variations to weights.
        faults: Rules of the rows, with the conditions that break them.
    """

    def __init__(self, variations: Sequence[str], weights: str, variation: str) -> None:
        listed = literal([str(name) for name in variations])
        self.map = f"map({listed}, {weights})"
        self.faults = {
            "a row without weights": f"{weights} IS NULL",
            f"weights that are not {len(variations)} numbers": (
                f"{weights} IS NOT NULL AND (len({weights}) <> {len(variations)} OR "
                f"list_contains(list_transform({weights}, lambda w: w IS NULL), true))"
            ),
            f"a variation that is not one of {', '.join(map(str, variations))}": (
                f"{variation} IS NOT NULL AND NOT list_contains({listed}, {variation}::VARCHAR)"
            ),
        }


def _weights(
    rows: OpenSource,
    names: _Names,
    where: str,
    variations: Sequence[str],
    given: Sequence[float] | str,
) -> _Drawn:
    """Return the weights of the rows: their column, or those that are given for all."""
    known = list(given)
    if known and not _are_shares(known):
        raise UsageError(f"weights must be numbers from 0 to 1 that sum to 1, got {given!r}")
    names_given: object = variations  # annotations are not enforced
    if isinstance(names_given, str):
        raise UsageError(f"variations must be a list of names, got {variations!r}")
    column = "variationweights" if "variationweights" in names.plain else None
    if column is None and not known:
        raise UsageError(
            "`weights` are required, of the variations in their order: the exposures have no "
            "variation_weights"
        )
    constant = f"{literal(known)}::DOUBLE[]" if known else "NULL::DOUBLE[]"
    weights = (
        constant
        if column is None
        else f"coalesce(TRY_CAST({names[column]} AS DOUBLE[]), {constant})"
    )
    if not variations:
        sizes = rows.run(f"SELECT max(len({weights})) AS size FROM log WHERE {where}")
        variations = _numbered(rows, names, where, sizes["size"].to_pylist()[0] or 0)
    return _Drawn(variations, weights, names["variationid"])


def _are_shares(values: Sequence[object]) -> bool:
    """Test if values are probabilities that sum to 1."""
    numbers = [v for v in values if isinstance(v, int | float) and isfinite(v) and 0 <= v <= 1]
    return len(numbers) == len(values) and isclose(sum(numbers), 1, abs_tol=SUM_TOLERANCE)


def _numbered(rows: OpenSource, names: _Names, where: str, size: int) -> list[str]:
    """Return "0", "1", ...; raise if variations have other names, whose order is unknown."""
    column = names["variationid"]
    found = rows.run(f"SELECT DISTINCT {column}::VARCHAR AS name FROM log WHERE {where}")
    labels = sorted(name for name in found["name"].to_pylist() if name is not None)
    if not all(label.isdecimal() for label in labels):
        raise UsageError(
            "`variations` are required, in the order of their weights: the rows have "
            f"{', '.join(labels[:SHOWN])}"
        )
    return [str(number) for number in range(size)]


class _First(NamedTuple):
    """The first row of each unit, the number of the other rows, and rules of all of them."""

    query: str
    others: int
    faults: dict[str, str]


def _first_rows(rows: OpenSource, names: _Names, where: str, unit: str) -> _First:
    """Return the query of the first row of each unit."""
    name, times = quoted(rows.find(unit, "unit")), names.times
    order = f"{times[0]}, " if times else ""
    numbered = f"SELECT *, row_number() OVER () AS poolwise_row FROM log WHERE {where}"
    first = (
        f"SELECT * EXCLUDE (poolwise_row) FROM ({numbered}) QUALIFY row_number() OVER "
        f"(PARTITION BY {name} ORDER BY {order}poolwise_row) = 1 ORDER BY poolwise_row"
    )
    counted = f"SELECT count(*) - count(DISTINCT {name}) AS others FROM log WHERE {where}"
    others = int(rows.run(counted)["others"].to_pylist()[0])
    return _First(first, others, {f"a row whose {unit} is null": f"{name} IS NULL"})


def _with_version(
    rows: OpenSource,
    names: _Names,
    select: str,
    version: str | None,
    more: Mapping[str, str],
) -> tuple[Any, int]:
    """Return rows with the rank of their version and other columns; and count the versions."""
    taken = [name for name in (*more, PERIOD) if name in {n.lower() for n in rows.types}]
    if taken:
        raise UsageError(f"the rows must not have a column {taken[0]!r}: rename it")
    added = "".join(f", {text} AS {name}" for name, text in more.items())
    if version is None:
        return rows.source(f"SELECT *{added} FROM ({select})"), 0
    label = f"coalesce({quoted(version)}::VARCHAR, {literal(NO_VERSION)})"
    begin = f"min({(*names.times, 'poolwise_row')[0]})"
    others = f"SELECT *, row_number() OVER () AS poolwise_row FROM ({select})"
    ranks = (
        f"SELECT {label} AS version, dense_rank() OVER (ORDER BY {begin}, {label}) AS rank "
        f"FROM ({others}) GROUP BY version"
    )
    counts = rows.run(f"SELECT count(DISTINCT {label}) AS versions FROM ({select})")
    query = (
        f"SELECT r.* EXCLUDE (poolwise_row) REPLACE ({label} AS {quoted(version)}){added}, "
        f"v.rank AS {PERIOD} FROM ({others}) AS r JOIN ({ranks}) AS v "
        f"ON {label} = v.version ORDER BY poolwise_row"
    )
    return rows.source(query), int(counts["versions"].to_pylist()[0])
