"""Decision: the sentences, the tables and the page of a verdict.

Every function reads the dictionary of a `Decision`, or of one of its candidates or metrics.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from poolwise.report.card import bar, change_text, value_texts
from poolwise.report.page import list_versions, show_findings
from poolwise.report.sentence import rows_text
from poolwise.report.tables import UNKNOWN, Grid, templates
from poolwise.text import count_text, join_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.report.sentence import Facts

MIXED = "of loggers mixed as now"
MOST_NAMED = 3  # candidates whose reasons one sentence gives
VERBS = {"ship": "Ship", "don't": "Don't ship", "can't tell": "Can't tell about"}


def say_line(line: Facts, baseline: str) -> str:
    """Say how one metric compares with the baseline, and what that shows."""
    start = f"{line['metric']}{_role(line)}: "
    if line["difference"] is None:
        return f"{start}no difference from {baseline!r} can be estimated; see the findings."
    values = " against ".join(value_texts(line))
    shown = "; ".join(_shown(line))
    return (
        f"{start}{values} of {baseline!r}, {change_text(line)}{': ' if shown else ''}{shown}."
    )


def _role(line: Facts) -> str:
    return f" ({line['role']})" if line["role"] else ""


def _shown(line: Facts) -> list[str]:
    """Say what the interval shows, for each role of the metric."""
    texts = []
    if line["shown_better"] is not None:
        word = {"yes": "shown to be better", "no": "shown to be worse"}
        texts.append(word.get(line["shown_better"], "not shown to be better"))
    if line["shown_not_worse"] is not None:
        by = f"worse by more than {line['guard']}"
        word = {"yes": f"shown not to be {by}", "no": f"shown to be {by}"}
        texts.append(word.get(line["shown_not_worse"], f"could be {by}"))
    return texts


def say_candidate(candidate: Facts, baseline: str) -> str:
    """Say the verdict about one candidate, and its reason."""
    verdict, name = candidate["verdict"], candidate["candidate"]
    start = f"{VERBS[verdict]} {name!r}: "
    if candidate["alarms"]:
        codes, many = ", ".join(candidate["alarms"]), len(candidate["alarms"]) > 1
        return f"{start}resolve the {'alarms' if many else 'alarm'} {codes} first."
    asked = [line for line in candidate["metrics"] if line["role"]]
    wanted = {"ship": "yes", "don't": "no", "can't tell": "open"}[verdict]
    reasons = [
        f"{line['metric']} {_verb(text)}"
        for line in asked
        for text, shown in zip(
            _shown(line),
            [s for s in (line["shown_better"], line["shown_not_worse"]) if s is not None],
            strict=True,
        )
        if shown == wanted
    ]
    against = f" (compared with {baseline!r})"
    if verdict == "can't tell":
        return f"{start}{join_names(reasons)}{against}.{say_needed(candidate['more_rows'])}"
    return f"{start}{join_names(reasons)}{against}."


def _verb(text: str) -> str:
    return text if text.startswith("could") else f"is {text}"


def say_needed(rows: float) -> str:
    """Say how many more rows would settle what is open."""
    if not rows:
        return ""
    if math.isinf(rows):
        return " More rows of the same kind would hardly settle it."
    return (
        f" If the differences are as estimated, {count_text(rows)} more rows {MIXED} would "
        "probably settle it."
    )


def say_verdict(candidates: Sequence[Facts]) -> str:
    """Say the verdict about all candidates."""
    order = list(VERBS)
    ranked = sorted(candidates, key=lambda c: order.index(c["verdict"]))
    if len(ranked) <= MOST_NAMED:
        return " ".join(c["sentence"] for c in ranked)
    texts = []
    for verdict, verb in VERBS.items():
        names = [repr(c["candidate"]) for c in ranked if c["verdict"] == verdict]
        last = "and" if verdict == "ship" else "or"
        texts += [f"{verb} {join_names(names, last)}."] if names else []
    return " ".join(texts)


def decision_tables(decision: Facts) -> list[Grid]:
    """Return one table for each candidate, with a line for each metric."""
    header = ["metric", "candidate", decision["baseline"], "change", "shown"]
    grids = []
    for candidate in decision["candidates"]:
        rows = []
        for line in candidate["metrics"]:
            label = f"{line['metric']}{_role(line)}"
            if line["difference"] is None:
                rows.append([label, *[UNKNOWN] * 3, "no estimate"])
                continue
            rows.append(
                [
                    label,
                    *value_texts(line),
                    change_text(line),
                    "; ".join(_shown(line)) or UNKNOWN,
                ]
            )
        title = f"{candidate['candidate']}: {candidate['verdict']}"
        grids.append(Grid(title, header, rows))
    return grids


def decision_page(
    decision: Facts,
    grids: Sequence[Grid],
    *,
    rewards: Mapping[str, str],
    command: str = "",
    question: Mapping[str, object] | None = None,
) -> str:
    """Return the page as HTML.

    Args:
        decision: The dictionary of a decision.
        grids: Tables of the evidence.
        rewards: Column or expression of each metric.
        command: The command that reproduces the numbers.
        question: Date, log and targets for an audit, and the text of a question file.
    """
    template = templates().get_template("decision.html")
    level = f"{100 * decision['interval_level']:.3g}%"
    names = join_names([c["candidate"] for c in decision["candidates"]], "or")
    return template.render(
        title=f"{names} instead of {decision['baseline']}?",
        decision=decision,
        level=level,
        candidates=[_card(c, decision["baseline"], rewards) for c in decision["candidates"]],
        rows=rows_text(decision),
        loggers=decision["loggers"],
        grids=grids,
        findings=show_findings(decision["warnings"], 2),
        versions=list_versions(),
        fingerprint=decision["fingerprint"],
        command=command,
        question=question,
    )


def _card(candidate: Facts, baseline: str, rewards: Mapping[str, str]) -> dict[str, object]:
    """Return the texts and the bars of one candidate."""
    lines = []
    for line in candidate["metrics"]:
        row: dict[str, object] = {"metric": line["metric"], "better": line["better"]}
        row |= {"role": line["role"] or "shown only", "reward": rewards[line["metric"]]}
        row |= {"sentence": line["sentence"], "shown": "; ".join(_shown(line)), "bar": None}
        if line["difference"] is not None:
            row["value"], row["baseline"] = value_texts(line)
            worse = -1.0 if line["better"] == "higher" else 1.0
            row |= {"change": change_text(line), "bar": bar(line, worse=worse)}
        row["state"] = _state(line)
        lines.append(row)
    return {**candidate, "baseline": baseline, "lines": lines, "state": _colour(candidate)}


def _state(line: Facts) -> str:
    found = {line["shown_better"], line["shown_not_worse"]} - {None}
    if "no" in found:
        return "no"
    return "open" if "open" in found or not found else "yes"


def _colour(candidate: Facts) -> str:
    return {"ship": "yes", "don't": "no"}.get(candidate["verdict"], "open")
