"""Decision-service lines: the content of a line, refused lines, and kept lines."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.tree import DecisionTreeClassifier

from poolwise import evaluate
from poolwise.errors import LogError, RefusedError, SourceError, UsageError
from poolwise.formats import vw as dsjson
from poolwise.formats.vw import FIRST_ACTION, GREEDY, UNIFORM, from_dsjson, read_dsjson
from tests.support.messages import refused

if TYPE_CHECKING:
    from poolwise.log.log import Log

HERE = Path(os.environ.get("POOLWISE_DATA") or Path(__file__).parents[2] / "../shared/data")
COFFEE, GRID = HERE / "vw_dsjson/dsjson_cb.json", HERE / "vw_dsjson/igl.dsjson"
with_data = pytest.mark.skipif(
    not COFFEE.is_file(), reason="vw_dsjson is not here: set POOLWISE_DATA to its folder"
)


def line(action: int = 1, cost: float = 0.0, **changes: object) -> dict[str, Any]:
    """A decision between two actions, p = 0.8 and 0.2, with the drawn one in front."""
    probability = {1: 0.8, 2: 0.2}
    return {
        "_label_cost": cost,
        "_label_probability": probability[action],
        "_label_Action": action,
        "_labelIndex": action - 1,
        "Timestamp": "2021-02-04T16:31:29.2460000Z",
        "EventId": "e",
        "a": [action, 3 - action],
        "c": {"User": [{"age": 30, "name": "Zoë"}], "_multi": [{}, {}]},
        "p": [probability[action], probability[3 - action]],
        "VWState": {"m": "m1"},
    } | changes


def write(path: Path, *lines: object) -> Path:
    texts = [text if isinstance(text, str) else json.dumps(text) for text in lines]
    path.write_text("".join(f"{text}\n" for text in texts), "utf-8")
    return path


def table(log: Log) -> pa.Table:
    assert isinstance(log.source, pa.Table)
    return log.source


def naive(log: Log, target: str) -> float:
    return evaluate(log, target, "naive")["target"].estimates["naive"].value


@with_data
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        # 23 decisions, 12 with reward 1, each of them drawn with probability 0.85
        (UNIFORM, 12 * Fraction(5, 17) / 23),  # 0.25 / 0.85 = 5/17
        (FIRST_ACTION, 6 * Fraction(20, 17) / 23),  # 6 of the 12 are the first action
        (GREEDY, 12 * Fraction(20, 17) / 23),
    ],
)
def test_a_file_of_the_service_gives_the_value_counted_by_hand(
    target: str, expected: Fraction
) -> None:
    assert naive(from_dsjson(COFFEE), target) == pytest.approx(float(expected), rel=1e-12)


@with_data
def test_every_column_of_a_real_line_is_read() -> None:
    first = table(from_dsjson(COFFEE, context=["FromUrl.weather"])).slice(0, 1).to_pylist()[0]
    assert first.pop("time").isoformat() == "2021-02-04T16:31:29.246000"
    assert first == {
        "logger": "ff0744c1aa494e1ab39ba0c78d048146/550c12cbd3aa47f09fbed3387fb9c6ec",
        "action": 4,  # the file's a = [4, 2, 1, 3] and p = [0.05, 0.05, 0.05, 0.85]
        "reward": 0.0,
        "propensity": 0.05,
        "event_id": "13118d9b4c114f8485d9dec417e3aefe",
        "probabilities": [0.05, 0.05, 0.85, 0.05],
        "action_count": 4,
        "pdrop": 0.0,
        "FromUrl.weather": "Sunny",
    }


@with_data
def test_actions_that_count_from_0_are_read_alike() -> None:
    """The other real file writes a = [0, 1, 2, 3] and no model."""
    lines = [json.loads(text) for text in GRID.read_text("utf-8").splitlines()]
    for field in ("_label_cost", "_original_label_cost"):
        log = from_dsjson(GRID, cost=field)
        each = [-li[field] * 0.25 / li["p"][li["_labelIndex"]] for li in lines]
        assert naive(log, UNIFORM) == pytest.approx(sum(each) / 200, rel=1e-12)
        assert set(table(log)["logger"].to_pylist()) == {"no model"}
        assert table(log)["action"].to_pylist() == [li["_label_Action"] for li in lines]


def test_probabilities_follow_the_order_of_a(tmp_path: Path) -> None:
    three = line(2, -3.0, a=[3, 1, 2], p=[0.5, 0.3, 0.2], _label_probability=0.2)
    (row,) = table(from_dsjson(write(tmp_path / "x.json", three))).to_pylist()
    assert row["probabilities"] == [0.3, 0.2, 0.5]
    assert (row["action"], row["propensity"], row["reward"]) == (2, 0.2, 3.0)


def test_no_cost_is_the_reward_0_and_not_minus_0(tmp_path: Path) -> None:
    log = from_dsjson(write(tmp_path / "x.json", line(cost=0.0), line(cost=-0.0)))
    assert list(map(str, table(log)["reward"].to_pylist())) == ["0.0", "0.0"]


def test_what_is_no_decision_is_counted_and_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.json",
        line(cost=-1),
        "",
        {"RewardValue": 1.0, "EnqueuedTimeUtc": "2021-02-04", "EventId": "gone"},
        line(2, cost=-9, _skipLearn=True),
        {"Observations": [{"v": 1}], "EventId": "gone"},
        line(2, cost=0, _skipLearn=False),
    )
    found = read_dsjson(path)
    assert table(found.log)["reward"].to_pylist() == [1.0, 0.0]
    assert found.skipped == {
        "observation without its decision": 2,
        "decision that was never shown (_skipLearn)": 1,
    }


BROKEN: dict[str, object] = {
    "the line is not JSON": '{"_label_cost": 0',
    "the line is not a JSON object": "[1, 2]",
    "no label": {"a": [1, 2], "p": [0.8, 0.2]},
    "several slots": line(_outcomes=[]),
    "`a` and `p` are not lists of one length": line(p=[1.0]),
    "`a` does not hold every action once": line(a=[1, 1]),
    "does not sum to 1": line(p=[0.8, 0.3]),
    "is negative or": line(p=[1.2, -0.2]),
    "`_label_probability` is not the probability": line(_label_probability=0.7),
    "the logged action is not among `a`": line(_labelIndex=5, _label_Action=6),
    "name different actions": line(_label_Action=2),
    "not a whole number": line(_labelIndex=0.5, _label_Action=1.5),
    "has probability 0 in `p`": line(p=[0.0, 1.0], _label_probability=0.0),
    "`_label_cost` is not a finite number": line(cost=float("nan")),
    "a value of `p` is not a finite number": line(p=["0.8", 0.2]),
    "`pdrop` is not in [0, 1)": line(pdrop=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_line_is_refused_with_its_file(rule: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", line(cost=-1), BROKEN[rule], line(2))
    with pytest.raises(LogError) as caught:
        from_dsjson(path)
    (fault,) = caught.value.faults
    assert rule in fault.rule
    assert fault.rows == 1
    assert fault.example["file"] == "x.json"
    assert table(from_dsjson(path, on_fault="drop"))["reward"].to_pylist() == [1.0, 0.0]


def test_all_faults_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "one.json", "x", line(), "y", "z", "{"),
        write(tmp_path / "two.json", line(_label_probability=0.7)),
    ]
    with refused(LogError) as caught:
        from_dsjson(paths)
    assert [fault.rows for fault in caught.value.faults] == [4, 1]
    examples = [fault.example for fault in caught.value.faults]
    assert examples == [{"file": "one.json"}, {"file": "two.json", "event": "e"}]
    kept = read_dsjson(paths, on_fault="drop")
    assert table(kept.log).num_rows == 1
    assert [fault.rows for fault in kept.faults] == [4, 1]


def test_float32_is_no_fault(tmp_path: Path) -> None:
    share = 0.0009765625 + 3e-8  # of 1,024 actions, wrong in the last digit of a float32
    wide = line(a=list(range(1, 1025)), p=[share] * 1024, _label_probability=0.0009765625)
    assert table(from_dsjson(write(tmp_path / "x.json", wide))).num_rows == 1


def test_even_thinning_changes_nothing(tmp_path: Path) -> None:
    log = from_dsjson(write(tmp_path / "x.json", line(cost=-1, pdrop=0.5), line(2, pdrop=0.5)))
    assert log.reward == "reward"
    assert naive(log, UNIFORM) == pytest.approx(float(Fraction(5, 8) / 2), rel=1e-12)


def test_uneven_thinning_counts_decisions_and_not_lines(tmp_path: Path) -> None:
    """The second line represents four decisions: (5/8 · 1 + 4 · 5/2 · 2) / (1 + 4)."""
    kept = line(2, cost=-2, pdrop=0.75, _label_probability=0.05)  # 0.2 · (1 - 0.75)
    log = from_dsjson(write(tmp_path / "x.json", line(cost=-1), kept))
    expected = (Fraction(5, 8) + 4 * Fraction(5, 2) * 2) / 5
    assert naive(log, UNIFORM) == pytest.approx(float(expected), rel=1e-12)


def test_uneven_thinning_is_corrected_within_each_logger(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.json",
        line(cost=-1, pdrop=0.5, VWState={"m": "it's"}),
        line(cost=-1, VWState={"m": "it's"}),
        line(cost=-3, pdrop=0.5, VWState={"m": "b"}),
        line(cost=-3, pdrop=0.5, VWState={"m": "b"}),
    )
    # equal rewards and weights within a logger: no thinning can change its mean
    expected = Fraction(5, 8) * (1 + 3) / 2
    assert naive(from_dsjson(path), UNIFORM) == pytest.approx(float(expected), rel=1e-12)


def test_loggers_are_models_files_or_one(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "one.json", line(), line(VWState={"m": "m2"})),
        write(tmp_path / "two.json", line(VWState={})),
    ]
    labels = {
        how: table(from_dsjson(paths, logger=how))["logger"].to_pylist()
        for how in ("model", "file", None)
    }
    assert labels == {
        "model": ["m1", "m2", "no model"],
        "file": ["one", "one", "two"],
        None: ["log", "log", "log"],
    }


def test_context_is_kept_by_its_path(tmp_path: Path) -> None:
    names = ["User.age", "User.name", "User.gone", "User"]
    rows = table(from_dsjson(write(tmp_path / "x.json", line(), line(c=None)), context=names))
    assert rows.select(names).to_pylist() == [
        {
            "User.age": "30",
            "User.name": "Zoë",
            "User.gone": None,
            "User": '[{"age":30,"name":"Zoë"}]',
        },
        dict.fromkeys(names),
    ]


def test_files_come_from_folders_globs_and_archives(tmp_path: Path) -> None:
    (tmp_path / "day").mkdir()
    write(tmp_path / "day" / "a.json", line())
    with gzip.open(tmp_path / "b.dsjson.gz", "wt", encoding="utf-8") as out:
        out.write(json.dumps(line(2)) + "\n")
    write(tmp_path / "notes.txt", "no decision")
    assert table(from_dsjson(tmp_path))["action"].to_pylist() == [2, 1]
    assert table(from_dsjson(f"{tmp_path}/**/*.json")).num_rows == 1
    assert table(from_dsjson([tmp_path / "b.dsjson.gz"]))["action"].to_pylist() == [2]


def test_rows_are_written_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line(1 + k % 2, cost=-k) for k in range(7)]
    path = write(tmp_path / "x.json", *lines)
    plain = from_dsjson(path)
    monkeypatch.setattr(dsjson, "BATCH_ROWS", 3)
    assert table(from_dsjson(path)).combine_chunks() == table(plain).combine_chunks()
    saved = from_dsjson(path, save=tmp_path / "out" / "rows.parquet")
    assert saved.source == tmp_path / "out" / "rows.parquet"
    assert (
        pq.ParquetFile(tmp_path / "out" / "rows.parquet").num_row_groups == 3
    )  # of 3, 3 and 1 rows
    assert pq.read_table(saved.source).equals(table(plain))
    assert naive(saved, UNIFORM) == naive(plain, UNIFORM)


def test_a_refused_file_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", line(), "broken")
    before = write(tmp_path / "rows.parquet", "what was there")
    with pytest.raises(LogError):
        from_dsjson(path, save=before)
    assert before.read_text("utf-8") == "what was there\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.parquet", "x.json"]


def test_files_without_a_decision_say_what_they_hold(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", {"RewardValue": 1}, {"RewardValue": 1})
    with refused(LogError):
        from_dsjson(path)
    with refused(LogError):
        from_dsjson(write(tmp_path / "y.json"), save=tmp_path / "y.parquet")
    with refused(LogError):
        from_dsjson(write(tmp_path / "z.json", "z"), on_fault="drop")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    short = tmp_path / "short.json.gz"
    short.write_bytes(gzip.compress(b"{}" * 99)[:20])
    (tmp_path / "empty").mkdir()
    for path in ("no.json", "no*.json", "empty", "short.json.gz"):
        with refused(SourceError):
            from_dsjson(tmp_path / path)


@pytest.mark.parametrize(
    "options",
    [
        {"logger": "day"},
        {"context": "User"},
        {"context": ["reward"]},
        {"on_fault": "ignore"},
        {"save": "rows.csv"},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with refused(UsageError):
        from_dsjson(write(tmp_path / "x.json", line()), **options)
    with refused(UsageError):
        from_dsjson([])


def two_models(tmp_path: Path) -> Log:
    """Two models without context, as many rows of each action as their shares say."""
    turned = {"a": [2, 1], "p": [0.8, 0.2], "VWState": {"m": "m2"}}
    lines = [line(1, cost=-1) for _ in range(80)] + [line(2) for _ in range(20)]
    lines += [line(2, _label_probability=0.8) | turned for _ in range(80)]
    lines += [line(1, cost=-1, _label_probability=0.2) | turned for _ in range(20)]
    return from_dsjson(write(tmp_path / "x.json", *lines))


@pytest.mark.slow
def test_balanced_needs_an_estimated_mixture(tmp_path: Path) -> None:
    """The mixture is (0.5, 0.5) and the target too, so each weight is 1: 100 of 200."""
    log = two_models(tmp_path)
    with refused(RefusedError):
        evaluate(log, UNIFORM, "balanced")
    assert naive(log, UNIFORM) == pytest.approx(0.5, rel=1e-12)
    mixed = replace(log, estimate_mixture=DecisionTreeClassifier())
    (found,) = evaluate(mixed, UNIFORM, "balanced")["target"].estimates.values()
    assert found.value == pytest.approx(0.5, abs=0.02)  # calibration smooths the classifier
