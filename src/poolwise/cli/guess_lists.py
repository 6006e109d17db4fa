"""Guess of lists: rows that are positions of a list, steps of a session, or clicks on a list.

A column of requests and one of positions belong together if the positions of each request run
from 0 or from 1 without a gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolwise.cli.draft import (
    CLUSTERS,
    POSITIONS,
    REQUESTS,
    REWARDS,
    SESSIONS,
    STEPS,
    Draft,
    Pattern,
    best_named,
    is_rank,
    listed,
    unused,
)

if TYPE_CHECKING:
    from poolwise.cli.facts import Column, Facts

MOST = 0.5  # share of complete lists from which a file may lack rows of the others


def guess_lists(facts: Facts, draft: Draft) -> None:
    """Decide if rows are positions of a list, or steps of a session."""
    if "densities" in draft.keys:
        return
    left = [c for c in facts.columns.values() if c.name not in draft.used]
    ids = [c for c in left if c.kind in {"text", "number"} and c.distinct > 1]
    ids = [c for c in ids if not c.within_one]
    places = [c for c in left if c.is_number and c.whole and c.low in {0, 1}]
    reward = facts.columns.get(draft.text("reward") or "")
    for words, names, key, place in (
        (SESSIONS, STEPS, "session", "step"),
        (REQUESTS, POSITIONS, "request", "position"),
    ):
        unit, position = best_named(ids, words), best_named(places, names)
        if reward is not None and reward.kind == "list":
            whole = unit if unit is not None and facts.count(unit.name) == facts.rows else None
            if whole is not None:
                reason = f"each row is one {key}, since {reward.name} holds lists"
                draft.put(key, whole.name, reason, whole.name)
                _drop_unfit(draft)
                return
        elif _guess_pair(facts, draft, unit, position, key, place):
            return
    if reward is not None and reward.kind == "list":
        draft.missing.append("`request`: each row holds lists, and no column has its own ID.")


def _guess_pair(
    facts: Facts,
    draft: Draft,
    unit: Column | None,
    position: Column | None,
    key: str,
    place: str,
) -> bool:
    """Decide a unit and its positions, if there are such columns and they are complete."""
    if unit is None or position is None or unit.name == position.name:
        return False
    share = _complete(facts, draft, unit, position)
    if share < 1:
        if share > MOST:
            draft.open.append(
                f"{unit.name} and {position.name} look like a {key} and its {place}, but "
                f"{1 - share:.1%} of them are not complete: `{key}` is left out."
            )
        return False
    draft.put(
        key, unit.name, f"{position.name} runs without a gap in each of its values", unit.name
    )
    draft.put(place, position.name, f"whole numbers from {position.low:.0f}", position.name)
    if key == "session":
        at, reason = _reward_at(facts, draft, unit, position)
        draft.put("reward_at", at, reason)
    else:
        draft.offered["ranking"] = (
            "independent",
            "if a probability is that of the item at its position, whatever is above it",
        )
    _drop_unfit(draft)
    return True


def _drop_unfit(draft: Draft) -> None:
    """Leave out what lists and sessions do not read."""
    for key in ("action", "eligible"):
        draft.keys.pop(key, None)


def _complete(facts: Facts, draft: Draft, unit: Column, position: Column) -> float:
    """Return the share of units whose positions run without a gap, under one logger."""
    logger = draft.text("logger")
    same = f" AND count(DISTINCT {facts.columns[logger].sql}) = 1" if logger else ""
    start = facts.number(f"SELECT min(({position.sql})::DOUBLE) FROM log")
    groups = (
        f"SELECT count(DISTINCT {position.sql}) = count(*) "
        f"AND min(({position.sql})::DOUBLE) = {start} "
        f"AND max(({position.sql})::DOUBLE) = {start} + count(*) - 1{same} AS whole, "
        f"count(*) AS size FROM log GROUP BY {unit.sql}"
    )
    several = facts.number(f"SELECT max(size) FROM ({groups})")
    return facts.number(f"SELECT avg(whole::INT) FROM ({groups})") if several > 1 else 0.0


def _reward_at(facts: Facts, draft: Draft, unit: Column, position: Column) -> tuple[str, str]:
    """Return where the reward of a session is: at each step, or at its end."""
    reward = facts.columns.get(draft.text("reward") or "")
    if reward is None:
        return "step", "each step may have a reward"
    value = (
        f"coalesce(TRY_CAST(({reward.sql})::VARCHAR AS DOUBLE), ({reward.sql})::BOOLEAN::INT)"
    )
    if reward.kind != "boolean":
        value = f"coalesce(TRY_CAST(({reward.sql})::VARCHAR AS DOUBLE), 0)"
    last = f"SELECT *, {value} AS v, {position.sql} = max({position.sql}) OVER "
    last += f"(PARTITION BY {unit.sql}) AS is_last FROM log"
    before = facts.number(f"SELECT count(*) FROM ({last}) WHERE NOT is_last AND v <> 0")
    groups = (
        f"SELECT min(v) = max(v) AS same, count(*) AS size FROM ({last}) GROUP BY {unit.sql}"
    )
    constant = facts.number(f"SELECT avg(same::INT) FROM ({groups}) WHERE size > 1")
    if before == 0 and facts.number(f"SELECT count(*) FROM ({last}) WHERE v <> 0"):
        return "end", f"{reward.name} is 0 before the last step of each session"
    if constant == 1:
        return "end", f"{reward.name} is the same in all steps of each session"
    return "step", f"{reward.name} is not 0 in earlier steps, either"


def guess_clicks(facts: Facts, draft: Draft, ranks: Pattern) -> None:
    """Decide the roles of clicks on the lists of deterministic rankers."""
    draft.used |= {ranks.labelled, *ranks.names}
    columns = unused(facts, draft)
    clicks = [c for c in columns if c.binary]
    click = best_named(clicks, REWARDS) or (clicks[0] if len(clicks) == 1 else None)
    positions = [c for c in columns if c.is_number and c.whole]
    position = best_named(positions, POSITIONS)
    ids = [c for c in columns if c.kind in {"text", "number"} and c.distinct > 1]
    request = best_named(ids, REQUESTS)
    reason = f"the rank of the item under each of {listed(ranks.labels)}"
    draft.clicks["ranks"] = (ranks.text, reason)
    draft.clicks["logger"] = (ranks.labelled, f"each of its labels has a column {ranks.text}")
    for key, column, why in (
        ("request", request, "the name is that of a request"),
        ("click", click, "zeros and ones"),
        ("position", position, "the name is that of a position"),
    ):
        if column is None:
            draft.missing.append(f"`{key}`: no column has such a name.")
        else:
            draft.clicks[key] = (column.name, why)
            draft.used.add(column.name)
    names = [c.name for c in facts.columns.values() if is_rank(c)]
    for name, column_name in ranks.others([n for n in names if n not in draft.used]).items():
        reason = f"it has the form {ranks.text}, and no logger is called {name}"
        draft.put_target(name, column_name, reason)
    clusters = [c for c in unused(facts, draft) if c.kind in {"text", "number"}]
    cluster = best_named([c for c in clusters if c.distinct > 1], CLUSTERS)
    if cluster is not None and request is not None:
        units, count = facts.count(request.name), facts.count(cluster.name)
        if count < units:
            reason = f"{count:,} values in {units:,} requests: they repeat"
            draft.clicks["cluster"] = (cluster.name, reason)
