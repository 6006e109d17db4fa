"""Causes: one finding for one cause, the gravest first, and the rest counted."""

from __future__ import annotations

from poolwise.diagnosis.causes import CAUSES, SHOWN, group_findings, rest_text
from poolwise.report.tables import as_text


def row(
    code: str, severity: str = "warning", target: str = "", message: str = "m."
) -> dict[str, str]:
    named = {"target": target} if target else {}
    return {"code": code, "severity": severity, "message": message, **named}


def test_findings_of_one_cause_are_one() -> None:
    found = [row("heavy-weights"), row("dominant-row"), row("few-effective-rows", "note")]
    (group,) = group_findings(found)
    assert (group.severity, group.code) == ("warning", "dominant-row")
    assert group.also == "Of the same cause: heavy-weights, few-effective-rows."
    assert len(group.others) == 2


def test_a_finding_of_several_targets_names_them() -> None:
    (group,) = group_findings([row("drift", target=name) for name in ("a", "b")])
    assert group.text == "Targets 'a', 'b': m."
    assert not group.also
    (single,) = group_findings([row("drift", target="a")])
    assert single.text == "Target 'a': m."


def test_the_gravest_come_first_then_those_that_change_most() -> None:
    found = [row("no-spread"), row("few-effective-rows"), row("drift"), row("hausman", "alarm")]
    codes = [group.code for group in group_findings(found)]
    assert codes == ["hausman", "drift", "few-effective-rows", "no-spread"]


def test_at_most_five_are_shown_and_the_rest_counted() -> None:
    found = [row(f"x{k}", message=f"text {k}.") for k in range(7)]
    text = as_text([], found)
    assert sum(f"text {k}." in text for k in range(7)) == SHOWN
    assert "2 warnings more (x5, x6)" in text
    assert rest_text(group_findings(found[:SHOWN])) == ""


def test_a_code_has_one_cause() -> None:
    codes = [code for cause in CAUSES.values() for code in cause]
    assert len(codes) == len(set(codes))
