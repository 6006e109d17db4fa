"""Decisions: JSON lines of our own schema, and the rules that they must keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import poolwise as pw
from poolwise.errors import LogError, SourceError, UsageError
from poolwise.formats.decisions import REASONS, SCHEMA, from_decisions
from tests.support.messages import refused
from tests.support.schemas import NEW, POLICIES, V1, V2, decide, named, table_of

ROOT = Path(__file__).parents[2]
ACTIONS = ["a", "b", "c"]
DECISION: dict[str, Any] = {"schema": SCHEMA, "logger": "v1", "action": "a", "propensity": 0.5}
OUTCOME: dict[str, Any] = {"schema": SCHEMA, "decision": "d1", "reward": 1}
GOOD: list[dict[str, Any]] = [
    DECISION,
    DECISION | {"propensity": {"a": 0.5, "b": 0.5}, "reward": -2.5},
    DECISION | {"action": 7, "logger": 3, "id": 12, "unit": "u"},
    DECISION | {"time": "2026-01-31T12:00:00Z", "context": {"x": 1, "y": {"z": []}}},
    DECISION | {"targets": {"new": 0.2, "other": {"a": 1}}, "eligible": ["a", "b"]},
    {k: v for k, v in DECISION.items() if k != "propensity"}
    | {"propensities": {"v1": 0.5, "v2": {"a": 0.1, "b": 0.9}}},
    OUTCOME,
    OUTCOME | {"time": "2026-01-31T12:00:00+01:00"},
]
BAD: list[Any] = [
    [1, 2],
    "text",
    {"logger": "v1"},
    DECISION | {"schema": "poolwise-decisions-2"},
    DECISION | {"decision": "d1"},
    {"schema": SCHEMA, "logger": "v1"},
    DECISION | {"propensty": 0.5},
    OUTCOME | {"action": "a"},
    OUTCOME | {"unit": "u"},
    {"schema": SCHEMA, "decision": "d1"},
    OUTCOME | {"reward": "1"},
    OUTCOME | {"decision": 1.5},
    DECISION | {"reward": [1]},
    DECISION | {"action": 1.5},
    DECISION | {"action": ""},
    DECISION | {"action": ["a"]},
    DECISION | {"logger": True},
    {k: v for k, v in DECISION.items() if k != "logger"},
    {k: v for k, v in DECISION.items() if k != "propensity"},
    DECISION | {"propensity": 1.5},
    DECISION | {"propensity": -0.1},
    DECISION | {"propensity": "0.5"},
    DECISION | {"propensity": {}},
    DECISION | {"propensity": {"a": 2}},
    DECISION | {"propensity": {"a": "x"}},
    DECISION | {"propensities": [0.5]},
    DECISION | {"propensities": {"v1": "x"}},
    DECISION | {"targets": {"new": 7}},
    DECISION | {"targets": 0.5},
    DECISION | {"context": "de"},
    DECISION | {"eligible": "a"},
    DECISION | {"eligible": [["a"]]},
    DECISION | {"id": 1.5},
    DECISION | {"unit": {}},
    DECISION | {"time": 12},
]


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def described() -> jsonschema.Draft202012Validator:
    text = (ROOT / "docs" / "schema" / f"{SCHEMA}.json").read_text("utf-8")
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("line", GOOD, ids=json.dumps)
def test_good_lines_are_those_of_the_json_schema(line: dict[str, Any], tmp_path: Path) -> None:
    described().validate(line)
    lines = [line] if "action" in line else [DECISION | {"id": "d1"}, line]
    from_decisions(write(tmp_path / "log.jsonl", lines))


@pytest.mark.parametrize("line", BAD, ids=json.dumps)
def test_bad_lines_are_those_of_the_json_schema(line: Any, tmp_path: Path) -> None:  # noqa: ANN401 - JSON
    assert not described().is_valid(line)
    with pytest.raises(LogError):
        from_decisions(write(tmp_path / "log.jsonl", [DECISION, line]))


def test_all_broken_rules_are_counted_together(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", [*BAD, DECISION | {"time": "noon"}])
    path.write_text("oops\n" + path.read_text("utf-8"), "utf-8")
    with refused(LogError) as found:
        from_decisions(path)
    rules = [fault.rule for fault in found.value.faults]
    assert sorted(rules) == sorted(REASONS)
    assert sum(fault.rows for fault in found.value.faults) == len(BAD) + 2


def lines_of(rows: int = 300) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return decisions, and the same as columns."""
    d = decide(5, rows)
    lines = [
        DECISION
        | {
            "id": k,
            "logger": str(d.logger[k]),
            "action": ACTIONS[d.action[k]],
            "propensity": named(ACTIONS, POLICIES[str(d.logger[k])][d.context[k]]),
            "propensities": {
                n: named(ACTIONS, p[d.context[k]]) if k % 2 else float(d.one(p)[k])
                for n, p in POLICIES.items()
            },
            "targets": {"new": float(d.one(NEW)[k])},
            "context": {"x": int(d.context[k]), "tier": ["base", "plus"][d.context[k]]},
            "unit": f"u{k % 40}",
            "reward": float(d.reward[k]),
        }
        for k in range(rows)
    ]
    flat = {
        "logger": d.logger,
        "reward": d.reward,
        "p_v1": d.one(V1),
        "p_v2": d.one(V2),
        "new": d.one(NEW),
        "unit": [f"u{k % 40}" for k in range(rows)],
    }
    return lines, flat


def test_the_numbers_are_those_of_columns(tmp_path: Path) -> None:
    lines, flat = lines_of()
    log, targets = from_decisions(write(tmp_path / "log.jsonl", lines))
    assert targets == {"new": "targets.new"}
    assert (log.cluster, list(log.context)) == ("unit", ["context.tier", "context.x"])
    plain = pw.Log(
        flat, reward="reward", logger="logger", propensities="p_{logger}", cluster="unit"
    )
    found = pw.evaluate(log, targets)["new"].estimates
    expected = pw.evaluate(plain, {"new": "new"})["new"].estimates
    assert found.keys() == expected.keys()
    for name, estimate in expected.items():
        assert found[name].value == pytest.approx(estimate.value, rel=1e-9)
        assert found[name].std_error == pytest.approx(estimate.std_error, rel=1e-6)


def test_outcomes_in_other_files_are_the_rewards(tmp_path: Path) -> None:
    lines, flat = lines_of()
    rewards = [line.pop("reward") for line in lines]
    folder = tmp_path / "logs"
    folder.mkdir()
    write(folder / "1.jsonl", lines)
    later = [OUTCOME | {"decision": k, "reward": r} for k, r in enumerate(rewards) if r]
    write(folder / "2.jsonl", later)
    log, _ = from_decisions(folder)
    assert table_of(log)["reward"].to_pylist() == flat["reward"].tolist()
    assert [note.code for note in log.notes] == ["outcomes-joined"]


def test_own_propensities_may_be_among_those_of_all_loggers(tmp_path: Path) -> None:
    lines, flat = lines_of()
    for line in lines:
        del line["propensity"]
        line["propensities"] = {line["logger"]: line["propensities"][line["logger"]]}
    log, _ = from_decisions(write(tmp_path / "log.jsonl", lines))
    assert log.propensities is None
    own = np.where(flat["logger"] == "v1", flat["p_v1"], flat["p_v2"])
    naive = pw.evaluate(log, "targets.new", "naive")["target"].estimates["naive"].value
    expected = [
        np.mean((flat["reward"] * flat["new"] / own)[flat["logger"] == name])
        for name in ("v1", "v2")
    ]
    assert naive == pytest.approx(np.mean(expected), rel=1e-9)


@pytest.mark.parametrize(
    "lines",
    [
        [OUTCOME],
        [DECISION | {"id": 1}, DECISION | {"id": 1}],
        [DECISION, OUTCOME],
        [DECISION | {"id": "d1", "reward": 1}, OUTCOME],
    ],
    ids=["no decision", "the same ID", "no ID", "rewards twice"],
)
def test_lines_that_do_not_fit_together_are_refused(
    lines: list[dict[str, Any]], tmp_path: Path
) -> None:
    with refused(LogError):
        from_decisions(write(tmp_path / "log.jsonl", lines))


def test_the_options_of_the_join_are_passed_on(tmp_path: Path) -> None:
    times = ["2026-01-01T00:00:00Z", "2026-01-09T00:00:00Z", "2026-03-01T00:00:00Z"]
    lines = [DECISION | {"id": k, "time": times[k]} for k in (0, 2)]
    lines.append(OUTCOME | {"decision": 0, "time": times[1]})
    path = write(tmp_path / "log.jsonl", lines)
    log, _ = from_decisions(path, window="30 days", missing=0.5)
    assert table_of(log)["reward"].to_pylist() == [1.0]
    with pytest.raises(LogError, match="none of 1 outcomes"):
        from_decisions(path, window="7 days")
    with refused(UsageError):
        from_decisions(path, window="a week")
    with pytest.raises(SourceError):
        from_decisions(tmp_path / "none.jsonl")
