"""Guess: the roles of columns, from their names, their types and what they hold.

Content decides where it can: a column whose values are keys of a distribution is the action,
labels that occur in the names of other columns are loggers, an ID that repeats is a cluster.
Names decide between what is left.  Every guess has its reason, and what stays open is said.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from poolwise.cli.draft import (
    ACTIONS,
    CHANCES,
    CLUSTERS,
    COSTS,
    DENSITIES,
    LOGGED,
    LOGGERS,
    OF_ACTION,
    POSITIONS,
    REWARDS,
    TARGETS,
    Draft,
    Pattern,
    best_named,
    is_id,
    is_rank,
    listed,
    rank_word,
    reference,
    unused,
)
from poolwise.cli.guess_lists import guess_clicks, guess_lists
from poolwise.rows.sources import literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.cli.facts import Column, Facts

NO_PROPENSITY = (
    "`propensity`: no column holds the probability of the action when it was drawn. If it was "
    'fixed, write it as a number or as a CASE. If it is not known, `propensities = "estimate"` '
    "estimates it from the `context` that decided the action: docs/without-propensities.md"
)
ONLY_BINARY = "the only column that is left with zeros and ones"
FEW = 5  # actions or loggers of which each becomes a target
SOME = 50  # actions over which a uniform target is written out
EPOCH = 1e9  # seconds since 1970, in the year 2001
SUM_ERROR = 1e-3  # of probabilities
ROUNDED = 1e-6  # difference of a propensity from the same in another column
MOST_ACTIONS = 0.5  # distinct values per row, above which a column is an ID
MOST_PERIODS = 1_000
OVERLAP = 0.01  # of the times of loggers that follow each other


def guess(facts: Facts) -> Draft:
    """Guess the roles of columns in a log of rows."""
    draft = Draft()
    columns = [c for c in facts.columns.values() if c.kind != "other"]
    ranks = find_pattern(facts, [c for c in columns if is_rank(c)], columns)
    chances = [c for c in columns if _is_chance(c)]
    pattern = find_pattern(facts, chances, columns)
    if ranks is not None and pattern is None:
        guess_clicks(facts, draft, ranks)
        return draft
    across = pattern is not None and _is_across(facts, pattern)
    _guess_action(facts, draft, pattern if across else None)
    _guess_logger(facts, draft, None if across else pattern)
    _guess_propensities(facts, draft, None if across else pattern, chances)
    _guess_named_action(facts, draft)
    _guess_eligible(facts, draft)
    _guess_reward(facts, draft)
    guess_lists(facts, draft)
    _guess_cluster(facts, draft)
    _guess_period(facts, draft)
    _guess_targets(facts, draft, None if across else pattern)
    _say_rest(facts, draft)
    return draft


def _is_chance(column: Column) -> bool:
    """Test if a column may hold probabilities, logarithms or densities of the action."""
    if column.kind == "distribution":
        return True
    named = rank_word(column, CHANCES) <= len(CHANCES)
    if column.kind == "list":
        return named and column.low is not None
    dense = named and column.is_number and (column.low or 0) >= 0 and not column.binary
    return column.within_one or (named and column.below_zero) or dense


def find_pattern(
    facts: Facts, named: Sequence[Column], columns: Sequence[Column]
) -> Pattern | None:
    """Return the pattern by which every label of a column names another column.

    Args:
        facts: Facts of the log.
        named: Columns that labels may name.
        columns: Columns that may hold the labels.
    """
    names = {c.name for c in named}
    found: list[tuple[int, int, Pattern]] = []
    for column in columns:
        if not column.is_label or column.name in names:
            continue
        labels = facts.labels(column.name)
        for name in sorted(names):
            for before, after in _around(name, labels):
                pattern = Pattern(column.name, labels, before, after)
                if set(pattern.names) <= names:
                    word = rank_word(column, LOGGERS)
                    found.append((-len(labels), word, pattern))
    return min(found, key=lambda f: f[:2])[2] if found else None


def _around(name: str, labels: Sequence[str]) -> list[tuple[str, str]]:
    """Return what is before and after each label that a name contains as a whole part."""
    parts = []
    for label in labels:
        before, inside, after = name.rpartition(label)
        ends = (before[-1:], after[:1])
        whole = not (ends[0] + label[0]).isalnum() or not before
        if inside and (before or after) and whole and not ends[1].isalnum():
            parts.append((before, after))
    return parts


def _is_across(facts: Facts, pattern: Pattern) -> bool:
    """Test if the columns of a pattern are one distribution, over the values of a column."""
    columns = [facts.columns[name] for name in pattern.names]
    if len(columns) < 2 or not all(c.is_number for c in columns):
        return False
    total = " + ".join(f"({c.sql})::DOUBLE" for c in columns)
    return facts.holds(f"abs({total} - 1) < {SUM_ERROR}")


def _guess_action(facts: Facts, draft: Draft, across: Pattern | None) -> None:
    """Decide the action: the values are keys of distributions, or the name says so."""
    if across is not None:
        cases = " ".join(
            f"WHEN {literal(label)} THEN {reference(facts, name)}"
            for label, name in zip(across.labels, across.names, strict=True)
        )
        action = across.labelled
        draft.put("action", action, f"{listed(across.names)} sum to 1 in each row", action)
        text = f"CASE {reference(facts, action)} {cases} END"
        reason = "the probability of each action has its own column"
        draft.put("propensity", text, reason, *across.names)
        return
    wholes = [c for c in facts.columns.values() if c.kind == "distribution"]
    keyed = {key for c in wholes for key in c.values}
    kinds = {"text", "number", "boolean"}
    scalars = [c for c in facts.columns.values() if c.values and c.kind in kinds]
    matches = [c for c in scalars if keyed and set(c.values) <= keyed and not c.nulls]
    several = [c for c in matches if c.distinct > 1] or matches
    found = best_named(several, ACTIONS) or (several[0] if several else None)
    if found is not None:
        names = listed([c.name for c in wholes if set(found.values) <= set(c.values)])
        draft.put("action", found.name, f"its values are keys of {names}", found.name)
        return
    lists = [c for c in facts.columns.values() if c.kind == "list"]
    for column in lists:
        member = _member(facts, column)
        if member is not None:
            reason = f"it is in the list {column.name} of each row"
            draft.put("action", member.name, reason, member.name)
            return


def _guess_named_action(facts: Facts, draft: Draft) -> None:
    """Decide the action by its name, if nothing else has decided it."""
    if "action" in draft.keys:
        return
    left = [c for c in unused(facts, draft) if c.kind == "text" or (c.is_number and c.whole)]
    left = [c for c in left if c.distinct > 1 and not c.nulls]
    left = [c for c in left if "action" in c.words or not c.binary]  # not `offer_accepted`
    found = best_named(left, ACTIONS)
    if found is not None and facts.count(found.name) < MOST_ACTIONS * facts.rows:
        draft.put("action", found.name, "the name is that of an action", found.name)


def _member(facts: Facts, column: Column) -> Column | None:
    """Return the column whose value is in a list of each row."""
    scalars = [c for c in facts.columns.values() if c.kind in {"text", "number"} and c.distinct]
    found = [
        c
        for c in scalars
        if not c.nulls
        and c.distinct > 1
        and not c.within_one
        and facts.holds(
            f"list_contains(({column.sql})::VARCHAR[], ({c.sql})::VARCHAR) "
            f"AND len({column.sql}) > 1"
        )
    ]
    return best_named(found, ACTIONS) or (found[0] if found else None)


def _guess_logger(facts: Facts, draft: Draft, pattern: Pattern | None) -> None:
    """Decide the logger: labels that name columns of probabilities, or the name says so."""
    if pattern is not None:
        draft.put(
            "logger", pattern.labelled, f"each of its labels has a column {pattern.text}",
            pattern.labelled,
        )  # fmt: skip
        return
    labels = [c for c in unused(facts, draft) if c.is_label or _is_version(c)]
    named = [c for c in labels if rank_word(c, LOGGERS) <= len(LOGGERS)]
    drawn = _drawn_variant(facts, named) if draft.text("action") is None else None
    if drawn is not None:
        column, chance = drawn
        reason = f"{chance.name} has one value for each of its values, and they sum to 1"
        draft.put("action", column.name, reason, column.name)
        draft.put("propensity", chance.name, f"probability of {column.name}", chance.name)
        named = [c for c in named if c.name != column.name]
    found = best_named(named, LOGGERS)
    if found is not None:
        draft.put("logger", found.name, "the name is that of a policy's label", found.name)
        others = [c.name for c in named if c.name != found.name and c.distinct > 1]
        if others:
            draft.open.append(
                f"`logger` is {found.name}; {listed(others)} may be as well. Is each of them "
                "part of the policy?"
            )


def _is_version(column: Column) -> bool:
    """Test if a column may have more labels than are listed."""
    return column.kind in {"text", "number"} and not column.nulls and "version" in column.words


def _drawn_variant(facts: Facts, named: Sequence[Column]) -> tuple[Column, Column] | None:
    """Return a column that was drawn with the fixed probabilities of another, and that one."""
    chances = [c for c in facts.columns.values() if c.within_one or c.high == c.low]
    for column in named:
        for chance in (c for c in chances if c.within_one and column.distinct > 1):
            by_value = (
                f"SELECT {column.sql} AS v, min({chance.sql}::DOUBLE) AS low, "
                f"max({chance.sql}::DOUBLE) AS high FROM sample GROUP BY v"
            )
            spread, total = facts.connection.execute(
                f"SELECT max(high - low), sum(low) FROM ({by_value})"
            ).fetchall()[0]
            if spread < ROUNDED and abs(total - 1) < SUM_ERROR:
                return column, chance
    return None


def _guess_propensities(
    facts: Facts, draft: Draft, pattern: Pattern | None, chances: Sequence[Column]
) -> None:
    """Decide the probabilities of the logged action: under every logger, and under its own."""
    if pattern is not None:
        reason = f"probability under each of {listed(pattern.labels)}"
        draft.put("propensities", pattern.text, reason, *pattern.names)
        _mark_scale(facts, draft, [facts.columns[name] for name in pattern.names])
    if "propensity" in draft.keys:
        return
    taken = draft.used | set(
        pattern.others([c.name for c in chances]).values() if pattern else ()
    )
    left = [c for c in chances if c.name not in taken and not _is_candidate(c)]
    own = [c for c in left if set(c.words) <= {*CHANCES, *OF_ACTION} - {"policy"}]
    own += [c for c in left if c.kind == "distribution" and c not in own]
    own = own or [c for c in left if rank_word(c, CHANCES) <= len(CHANCES)]
    if not own and pattern is None and len(left) == 1:
        own = left
    found = _likeliest(facts, draft, own)
    if found is None:
        if pattern is None:
            draft.missing.append(NO_PROPENSITY)
        return
    if pattern is not None and not _replays(facts, pattern, found):
        draft.open.append(
            f"{found.name} may be the probability under the row's own logger, but it differs "
            f"from {pattern.text}: one of them is wrong."
        )
        return
    named = rank_word(found, CHANCES) <= len(CHANCES)
    reason = "the name is that of a probability" if named else "its values are probabilities"
    draft.put("propensity", found.name, reason, found.name)
    _mark_scale(facts, draft, [found])


def _is_candidate(column: Column) -> bool:
    """Test if a name is that of a new policy."""
    logged = rank_word(column, LOGGED) <= len(LOGGED)
    return rank_word(column, TARGETS) <= len(TARGETS) and not logged


def _likeliest(facts: Facts, draft: Draft, own: Sequence[Column]) -> Column | None:
    """Return the column under which the logged actions are the likeliest, of several.

    The policy that drew the actions gives them the highest mean logarithm (Gibbs).
    """
    action = draft.text("action")
    if len(own) < 2 or action is None or any(c.kind != "distribution" for c in own):
        return own[0] if own else None
    scored = {c.name: _mean_log(facts, c, facts.columns[action]) for c in own}
    known = {name: value for name, value in scored.items() if value is not None}
    name = max(known, key=lambda n: known[n]) if known else own[0].name
    return facts.columns[name]


def _mean_log(facts: Facts, column: Column, action: Column) -> float | None:
    """Return the mean logarithm of the entries of the action in a distribution."""
    name = f"({action.sql})::VARCHAR"
    entry = {
        "map": f"map_extract_value({column.sql}, {name})",
        "json": f"TRY_CAST(({column.sql})::JSON ->> ('$.\"' || {name} || '\"') AS DOUBLE)",
    }.get(column.form)
    if entry is None:
        return None
    return facts.number(f"SELECT avg(ln(greatest({entry}::DOUBLE, 1e-9))) FROM sample")


def _replays(facts: Facts, pattern: Pattern, own: Column) -> bool:
    """Test if a propensity is that of the row's logger among the columns of a pattern."""
    columns = [facts.columns[name] for name in pattern.names]
    if own.kind != "number" or any(c.kind != "number" for c in columns):
        return True
    logger = facts.columns[pattern.labelled].sql
    cases = " ".join(
        f"WHEN {literal(label)} THEN {column.sql}::DOUBLE"
        for label, column in zip(pattern.labels, columns, strict=True)
    )
    value = f"CASE ({logger})::VARCHAR {cases} END"
    return facts.holds(f"abs({own.sql}::DOUBLE - {value}) <= {ROUNDED}")


def _mark_scale(facts: Facts, draft: Draft, columns: Sequence[Column]) -> None:
    """Say that probabilities are logarithms, or densities of a number."""
    if all(c.logs or c.below_zero for c in columns):
        draft.put("log_probabilities", value=True, reason="no number is above 0")
        return
    plain = [c for c in columns if c.is_number]
    dense = any(rank_word(c, DENSITIES) <= len(DENSITIES) for c in plain)
    if plain and (dense or any((c.high or 0) > 1 for c in plain)):
        names = listed([c.name for c in plain])
        draft.put("densities", value=True, reason=f"{names} are above 1, or densities by name")
        if "action" not in draft.keys:
            numbers = [c for c in unused(facts, draft) if c.is_number]
            found = best_named(numbers, ACTIONS)
            if found is not None:
                draft.put("action", found.name, "a number with densities", found.name)


def _guess_eligible(facts: Facts, draft: Draft) -> None:
    """Decide the list of actions that a row allows."""
    action = draft.text("action")
    for column in unused(facts, draft):
        if action is None or column.kind != "list":
            continue
        member = f"({facts.columns[action].sql})::VARCHAR"
        if facts.holds(f"list_contains(({column.sql})::VARCHAR[], {member})"):
            reason = f"each list has the {action} of its row"
            draft.put("eligible", column.name, reason, column.name)
            return


def _guess_reward(facts: Facts, draft: Draft) -> None:
    """Decide the reward: by its name, or the only column of zeros and ones, before a cost."""
    numbers = [c for c in unused(facts, draft) if _may_be_reward(c)]
    good, bad = best_named(numbers, REWARDS), best_named(numbers, COSTS)
    binary = [c for c in numbers if c.binary]
    if good is None and len(binary) == 1 and binary != [bad]:
        _put_reward(facts, draft, binary[0], ONLY_BINARY, 1)
    elif good is not None:
        _put_reward(facts, draft, good, "the name is that of a reward", 1)
    elif bad is not None:
        _put_reward(facts, draft, bad, "a cost: its negative is the reward", -1)
    else:
        draft.missing.append(
            "`reward`: no column has the name of a reward. If rewards are in another table, "
            "join it: docs/formats.md#outcomes-that-come-later"
        )
        return
    words = (*REWARDS, *COSTS)
    outcomes = [c.name for c in numbers if c.binary or rank_word(c, words) <= len(words)]
    others = [name for name in outcomes if name not in draft.used]
    if others:
        draft.used |= set(others)
        draft.open.append(
            f"{listed(others)} may be the reward, or a metric, as well. If it is known before "
            "the action, it is context."
        )


def _may_be_reward(column: Column) -> bool:
    if is_id(column) or rank_word(column, POSITIONS) <= len(POSITIONS):
        return False
    of_list = column.kind == "list" and column.low is not None
    return column.is_number or column.binary or of_list


def _put_reward(facts: Facts, draft: Draft, column: Column, reason: str, sign: int) -> None:
    """Decide the reward; a NULL is 0 if all other rewards are above 0."""
    text = column.name
    if column.truths:
        is_true = f"{reference(facts, text)} = {literal(column.truths[1])}"
        text = f"CASE WHEN {is_true} THEN 1 ELSE 0 END"
        reason += f"; its values are {listed(column.truths)}"
    elif column.nulls and column.low is not None and column.low > 0:
        text = f"coalesce({reference(facts, text)}, 0)"
        reason += f"; it is NULL in {column.nulls:,} of {column.rows:,} rows and never 0"
    elif column.nulls:
        draft.open.append(
            f"{column.name} is NULL in {column.nulls:,} of {column.rows:,} rows and 0 in "
            'others: is the reward not known there? `on_fault = "drop"` leaves these '
            "rows out, which is wrong if they are missing because of their reward."
        )
    if sign < 0:
        plain = text != column.name
        text = f"-{text if plain else reference(facts, text)}"
    draft.put("reward", text, reason, column.name)


def _guess_cluster(facts: Facts, draft: Draft) -> None:
    """Decide the cluster: an ID that repeats."""
    ids = [c for c in unused(facts, draft) if c.kind in {"text", "number"} and c.distinct > 1]
    named = [c for c in ids if rank_word(c, CLUSTERS) <= len(CLUSTERS) and not c.within_one]
    for column in sorted(named, key=lambda c: rank_word(c, CLUSTERS)):
        looks = is_id(column) or not (column.is_number and not column.whole)
        count = facts.count(column.name)
        unit = _unit_count(facts, draft)
        if looks and count >= max(2, 0.02 * unit) and count < unit:
            reason = f"{count:,} values in {unit:,} {_unit_name(draft)}: they repeat"
            draft.put("cluster", column.name, reason, column.name)
            return
        draft.used |= {column.name} if is_id(column) else set()


def _unit_count(facts: Facts, draft: Draft) -> int:
    unit = draft.text("request") or draft.text("session")
    return facts.rows if unit is None else facts.count(unit)


def _unit_name(draft: Draft) -> str:
    return (
        "requests"
        if "request" in draft.keys
        else ("sessions" if "session" in draft.keys else "rows")
    )


def _guess_period(facts: Facts, draft: Draft) -> None:
    """Decide the period: a time, if loggers follow each other in time."""
    times = [c for c in unused(facts, draft) if c.kind == "time" and not c.nulls]
    epochs = [c for c in unused(facts, draft) if _is_epoch(c)]
    if not (times or epochs):
        return
    column = (times or epochs)[0]
    draft.used |= {c.name for c in (*times, *epochs)}
    text, moment = _day(facts, column)
    days = int(facts.number(f"SELECT count(DISTINCT {moment}) FROM log"))
    if days < 2 or days > MOST_PERIODS:
        return
    lists = {"request", "session"} & draft.keys.keys()
    if lists:
        draft.open.append(f"{column.name} is a time; lists and sessions take no `period`.")
    elif _in_succession(facts, draft, column):
        draft.put("period", text, f"loggers follow each other in {column.name}: {days} days")
    else:
        reason = (
            "for policies that learn from earlier rows; the times of the loggers overlap"
            if "logger" in draft.keys
            else "for a policy that learns from earlier rows"
        )
        draft.offered["period"] = (text, reason)


def _is_epoch(column: Column) -> bool:
    named = {"timestamp", "time", "ts", "epoch", "created", "at"} & set(column.words)
    return bool(named) and column.is_number and (column.low or 0) > EPOCH


def _day(facts: Facts, column: Column) -> tuple[str, str]:
    """Return the day of a time, as an expression of a log and as a query reads it."""
    name = reference(facts, column.name)

    def day(value: str) -> str:
        if column.type == "DATE":
            return value
        if column.is_number:
            scale = 1000 if (column.high or 0) > 100 * EPOCH else 1
            return f"date_trunc('day', to_timestamp({value} / {scale}))"
        cast = "" if column.type.startswith("TIMESTAMP") else "::TIMESTAMP"
        return f"date_trunc('day', {value}{cast})"

    return (column.name if column.type == "DATE" else day(name)), day(column.sql)


def _in_succession(facts: Facts, draft: Draft, column: Column) -> bool:
    """Test if each logger begins when the one before it has ended."""
    logger = draft.text("logger")
    if logger is None:
        return False
    value = f"epoch({column.sql}::TIMESTAMP)" if column.kind == "time" else column.sql
    spans = facts.connection.execute(
        f"SELECT min({value}) AS first, max({value}) FROM log "
        f"GROUP BY {facts.columns[logger].sql} ORDER BY first"
    ).fetchall()
    if len(spans) < 2:
        return False
    slack = OVERLAP * (max(s[1] for s in spans) - spans[0][0])
    return all(one[1] <= two[0] + slack for one, two in pairwise(spans))


def _guess_targets(facts: Facts, draft: Draft, pattern: Pattern | None) -> None:
    """Decide the targets: probabilities of no logger, else what the log allows to ask."""
    lists = {"request", "session"} & draft.keys.keys()
    chances = [c for c in unused(facts, draft) if _is_chance(c)]
    chances = [c for c in chances if (c.kind == "list") == _holds_lists(facts, draft)]
    if pattern is not None:
        for name, other in pattern.others([c.name for c in chances]).items():
            reason = f"it has the form {pattern.text}, and no logger is called {name}"
            draft.put_target(name, other, reason)
    for column in chances:
        named = _is_candidate(column) or (
            rank_word(column, CHANCES) <= len(CHANCES) and column.kind == "distribution"
        )
        if column.name not in draft.used and named:
            reason = "a probability, and not that of a logger"
            draft.put_target(_target_name(column), column.name, reason)
    if draft.targets or lists:
        if not draft.targets:
            draft.missing.append("[targets]: the probability of the action under a new policy.")
        return
    _offer_targets(facts, draft, pattern)


def _holds_lists(facts: Facts, draft: Draft) -> bool:
    """Test if a row holds lists: of rewards, of items and of probabilities."""
    reward = facts.columns.get(draft.text("reward") or "")
    return reward is not None and reward.kind == "list"


def _target_name(column: Column) -> str:
    """Return the words of a name that are not those of probabilities."""
    left = [word for word in column.words if word not in CHANCES]
    return "_".join(left) or column.name


def _offer_targets(facts: Facts, draft: Draft, pattern: Pattern | None) -> None:
    """Write targets that need no new policy: one action always, all alike, or each logger."""
    action = facts.columns.get(draft.text("action") or "")
    eligible = draft.text("eligible")
    if eligible is not None and "densities" not in draft.keys:
        text = f"1.0 / len({reference(facts, eligible)})"
        draft.targets["uniform"] = (text, "no column has a new policy: every action alike")
    elif pattern is not None and len(pattern.labels) <= FEW:
        for label, name in zip(pattern.labels, pattern.names, strict=True):
            draft.targets[label] = (name, "no column has a new policy: this logger on all rows")
    elif action is not None and "densities" not in draft.keys:
        labels = facts.labels(action.name)
        why = "no column has a new policy"
        if 1 < len(labels) <= FEW:
            for label in labels:
                draft.targets[f"always {label}"] = ({label: 1.0}, f"{why}: this action only")
        elif 1 < len(labels) <= SOME:
            even = dict.fromkeys(labels, 1 / len(labels))
            draft.targets["uniform"] = (even, f"{why}: every action alike")
    if not draft.targets:
        draft.missing.append("[targets]: the probability of the action under a new policy.")


def _say_rest(facts: Facts, draft: Draft) -> None:
    """Say which columns may be probabilities, and which are context."""
    wholes = [c for c in facts.columns.values() if c.kind == "distribution"]
    roles = [c for c in wholes if c.name in draft.used]
    if {"request", "session"} & draft.keys.keys():
        roles = []
    if roles and "action" not in draft.keys:
        names = listed([c.name for c in roles])
        draft.missing.insert(0, f"`action`: no column has a key of {names} in each row.")
    elif any(c.form == "list" for c in roles) and "eligible" not in draft.keys:
        names = listed([c.name for c in roles if c.form == "list"])
        draft.missing.insert(0, f"`eligible`: the list of actions that {names} belongs to.")
    left = [c.name for c in unused(facts, draft) if c.within_one and _is_chance(c)]
    if left:
        draft.open.append(
            f"All values of {listed(left)} are between 0 and 1. If they are probabilities of "
            "the action under a policy, name the column below [targets]."
        )
    context = [
        c.name
        for c in facts.columns.values()
        if c.name not in draft.used and c.kind in {"number", "boolean", "text"} and not is_id(c)
    ]
    if context and "action" in draft.keys and not {"request", "session"} & draft.keys.keys():
        draft.offered["context"] = (context, "for policies in Python and `poolwise learn`")
