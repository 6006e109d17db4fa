"""Saved, added and warehouse moments give the same results as the rows."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolwise.engines.saved import Summary, same_shares
from poolwise.engines.saved_files import ARRAYS, KEY, TALLIES, checksum, question
from poolwise.errors import LogError, PoolwiseError, RefusedError, SourceError, UsageError
from poolwise.estimators.calibrated import SelfNormalised
from poolwise.estimators.ips import Balanced, Weighted
from poolwise.estimators.shrink import Shrink
from poolwise.evaluation.check import check
from poolwise.evaluation.evaluate import evaluate
from poolwise.evaluation.summarise import from_files, from_result, query_text, summarise
from poolwise.log.log import Log
from tests.support.messages import refused
from tests.support.postgres import DuckDBConnection, PostgresEngine
from tests.support.reference import assert_same, log_of, random_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from poolwise.evaluation.results import Evaluation

TARGETS = {"target": "t", "half": "t / 2"}
COUNTS = {"a": 300, "b": 200, "c": 100}
LOGGERS = tuple(COUNTS)
TABLE = random_table(np.random.default_rng(50), COUNTS)
OWN = (Weighted(divergence="own"), SelfNormalised(weights="own"), "naive")


def log(table: pa.Table = TABLE, **roles: Any) -> Log:  # noqa: ANN401 - any role of a log
    return log_of(table, LOGGERS, **roles)


def whole(interval: Any = "auto", **roles: Any) -> Evaluation:  # noqa: ANN401 - likewise
    return evaluate(log(**roles), TARGETS, which_logs=False, interval=interval)


def finished(summary: Summary, **roles: Any) -> Evaluation:  # noqa: ANN401 - likewise
    return evaluate(log(**roles), TARGETS, engine=summary, which_logs=False)


def shards(cuts: Sequence[int], table: pa.Table = TABLE) -> list[pa.Table]:
    edges = [0, *sorted(cuts), len(table)]
    parts = [table.slice(i, j - i) for i, j in pairwise(edges)]
    return [part for part in parts if len(part)]


def in_logs(table: pa.Table, shift: float) -> pa.Table:
    for name in table.column_names[2:]:
        values = pa.array(np.log(table[name].to_numpy()) + shift)
        table = table.set_column(table.column_names.index(name), name, values)
    return table


# --- one summary ------------------------------------------------------------------------


def test_a_summary_is_evaluated_like_its_log(tmp_path: Path) -> None:
    summarise(log(), TARGETS).save(tmp_path / "day.parquet")
    found = finished(Summary.load(tmp_path / "day.parquet"))
    assert_same(found, whole(), rel=1e-15)
    assert found["target"].mixture is not None
    assert found["target"].mixture.tail == whole()["target"].mixture.tail  # type: ignore[union-attr]


def test_a_summary_without_cross_propensities_serves_what_needs_none() -> None:
    summary = summarise(log(propensities=None), TARGETS)
    assert not summary.crossed
    assert_same(finished(summary, propensities=None), whole(propensities=None), rel=1e-15)


def test_some_of_the_targets_may_be_asked_for() -> None:
    summary = summarise(log(), TARGETS)
    found = evaluate(log(), {"half": "t / 2"}, engine=summary, which_logs=False)
    assert numbers_of(found, "half") == numbers_of(whole(), "half")


def numbers_of(evaluation: Evaluation, target: str) -> list[float]:
    return [e.value for e in evaluation[target].estimates.values()]


def test_estimators_beyond_the_default_must_be_named_beforehand() -> None:
    clipped = Balanced(Shrink("clip", 2.0))
    with refused(RefusedError):
        evaluate(log(), TARGETS, clipped, engine=summarise(log(), TARGETS), which_logs=False)
    summary = summarise(log(), TARGETS, also=[clipped])
    found = evaluate(log(), TARGETS, clipped, engine=summary, which_logs=False)
    assert_same(found, evaluate(log(), TARGETS, clipped, which_logs=False), rel=1e-15)


@pytest.mark.parametrize(
    "ask",
    [
        lambda s: evaluate(log(), TARGETS, engine=s, which_logs=True),
        lambda s: evaluate(log(cluster="t"), TARGETS, engine=s, which_logs=False),
        lambda s: check(log(), TARGETS, engine=s),
    ],
)
def test_what_needs_the_rows_is_refused_by_name(ask: Callable[[Summary], object]) -> None:
    with refused(UsageError):
        ask(summarise(log(), TARGETS))


@pytest.mark.parametrize(
    ("other", "targets"),
    [
        (log(reward="p"), TARGETS),
        (log(logger="lower(logger)"), TARGETS),
        (log(on_fault="drop"), TARGETS),
        (log(propensities={"a": "p_a", "b": "p_b", "c": "p_a"}), TARGETS),
        (log(), {"target": "t / 3"}),
        (log(), {"new": "t"}),
    ],
)
def test_an_answer_to_another_question_is_refused(other: Log, targets: dict[str, Any]) -> None:
    with refused(UsageError):
        evaluate(other, targets, engine=summarise(log(), TARGETS), which_logs=False)


# --- adding up --------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.lists(st.integers(1, len(TABLE) - 1), max_size=4),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_shards_with_the_counts_of_all_add_up_to_the_whole(
    cuts: list[int],
    random: Any,  # noqa: ANN401 - hypothesis has no public type for it
    own: bool,  # noqa: FBT001 - an example
) -> None:
    roles: dict[str, Any] = {} if own else {"propensity": None}
    parts = [summarise(log(part, **roles), TARGETS, counts=COUNTS) for part in shards(cuts)]
    random.shuffle(parts)
    assert_same(finished(reduce(add, parts), **roles), whole(**roles), rel=1e-12)


def test_saved_shards_add_up_in_any_order(tmp_path: Path) -> None:
    for k, part in enumerate(shards([100, 350])):
        summarise(log(part), TARGETS, counts=COUNTS).save(tmp_path / f"{k}.parquet")
    first, second, third = (Summary.load(tmp_path / f"{k}.parquet") for k in range(3))
    assert_same(finished(third + (first + second)), whole(), rel=1e-12)
    assert_same(finished((second + third) + first), whole(), rel=1e-12)


@pytest.mark.parametrize("kind", [DuckDBConnection, PostgresEngine])
def test_shards_may_lie_in_databases(kind: type[Any]) -> None:
    parts = [
        summarise(log(part), TARGETS, counts=COUNTS, engine=kind()) for part in shards([200])
    ]
    found = evaluate(log(), TARGETS, engine=parts[0] + parts[1], which_logs=False)
    assert_same(found, whole("student"), rel=1e-9)  # a query returns no slices


@pytest.mark.parametrize("shift", [0.0, -2000.0])
def test_log_probabilities_add_up_however_small_they_are(shift: float) -> None:
    logs = in_logs(TABLE, shift)
    parts = [
        summarise(log(part, log_probabilities=True), TARGETS_LOG, counts=COUNTS)
        for part in shards([250], logs)
    ]
    asked = log(logs, log_probabilities=True)
    found = evaluate(asked, TARGETS_LOG, engine=parts[0] + parts[1], which_logs=False)
    assert_same(found, evaluate(asked, TARGETS_LOG, which_logs=False), rel=1e-9)


TARGETS_LOG = {"target": "t"}


def test_a_shard_may_lack_a_logger() -> None:
    by_logger = [TABLE.filter(pa.compute.field("logger") == k) for k in LOGGERS]
    parts = [summarise(log(part), TARGETS, counts=COUNTS) for part in by_logger]
    assert [part.rows for part in parts] == [{k: n} for k, n in COUNTS.items()]
    assert_same(finished(parts[1] + parts[2] + parts[0]), whole(), rel=1e-12)


def test_a_shard_with_an_unknown_logger_is_refused() -> None:
    with refused(LogError):
        summarise(log_of(TABLE, ("a", "b")), TARGETS, counts={"a": 300, "b": 200})


def test_shares_do_as_well_as_counts() -> None:
    shares = {"a": 0.5, "b": 1 / 3, "c": 1 / 6}
    parts = [summarise(log(part), TARGETS, counts=shares) for part in shards([111])]
    assert_same(finished(parts[0] + parts[1]), whole(), rel=1e-12)


def test_a_part_alone_is_refused_with_the_counts_that_are_missing() -> None:
    part = summarise(log(TABLE.slice(0, 300)), TARGETS, counts=COUNTS)
    with refused(RefusedError) as caught:
        finished(part)
    assert caught.value.code == "other-counts"
    rows = ", ".join(f"'{k}' {n}" for k, n in part.rows.items())
    assert rows in str(caught.value)
    found = evaluate(part.narrowed(log()), TARGETS, "naive", engine=part, which_logs=False)
    direct = evaluate(log(TABLE.slice(0, 300)), TARGETS, "naive", which_logs=False)
    assert numbers_of(found, "target") == pytest.approx(numbers_of(direct, "target"), rel=1e-13)


def test_days_with_mixtures_of_their_own_keep_what_needs_none() -> None:
    days = [summarise(log(part), TARGETS) for part in shards([150, 420])]
    both = days[0] + days[1] + days[2]
    assert not both.crossed
    with refused(RefusedError):
        finished(both)
    found = evaluate(both.narrowed(log()), TARGETS, OWN, engine=both, which_logs=False)
    alone = log(propensities=None)
    direct = evaluate(alone, TARGETS, OWN, which_logs=False)
    for target in TARGETS:
        assert numbers_of(found, target) == pytest.approx(numbers_of(direct, target), rel=1e-12)
    assert "mixture-left-out" in {f.code for f in found.findings}


def test_days_with_the_same_shares_have_the_same_mixture() -> None:
    """Twice the same day: counts double, shares stay, and so does every weight."""
    day = summarise(log(), TARGETS)
    assert_same(finished(day + day), evaluate(log(TWICE), TARGETS, which_logs=False), rel=1e-12)


TWICE = pa.concat_tables([TABLE, TABLE])


def test_a_whole_day_and_a_shard_of_another_mixture_keep_what_needs_none() -> None:
    shard = summarise(log(TABLE.slice(0, 300)), TARGETS, counts={"a": 1, "b": 1, "c": 1})
    assert not (summarise(log(), TARGETS) + shard).crossed


def test_summaries_of_different_questions_cannot_be_added() -> None:
    ours = summarise(log(), TARGETS)
    with refused(UsageError):
        ours + summarise(log(), {"target": "t"})
    with refused(UsageError):
        ours + summarise(log(), TARGETS, also=[Balanced(Shrink("clip", 2.0))])


@pytest.mark.parametrize(
    "counts",
    [
        {"a": 1, "b": 2},
        {"a": 1, "b": 2, "c": 0},
        {"a": 1, "b": 2, "c": float("nan")},
    ],
)
def test_counts_must_fit_the_loggers(counts: dict[str, float]) -> None:
    with refused(UsageError):
        summarise(log(), TARGETS, counts=counts)


def test_bad_rows_are_refused_before_they_are_saved() -> None:
    bad = TABLE.set_column(1, "reward", pa.array([None, *TABLE["reward"].to_pylist()[1:]]))
    with refused(LogError):
        summarise(log(bad), TARGETS, counts=COUNTS)
    kept = summarise(log(bad, on_fault="drop"), TARGETS)
    found = evaluate(log(bad, on_fault="drop"), TARGETS, engine=kept, which_logs=False)
    assert sum(found.rows.values()) == 599


@given(st.dictionaries(st.sampled_from("abc"), st.integers(1, 10**6), min_size=1))
def test_shares_are_the_same_whatever_the_unit(counts: dict[str, int]) -> None:
    assert same_shares(counts, {k: n * 7 for k, n in counts.items()})
    first = next(iter(counts))
    if len(counts) > 1:
        assert not same_shares(counts, counts | {first: counts[first] + 1})


# --- files ------------------------------------------------------------------------------


def damaged(path: Path, change: Callable[[dict[str, Any], list[dict[str, Any]]], None]) -> None:
    """Change the content of a saved file, and write it again with its new checksum."""
    table = pq.read_table(path)
    meta, lines = json.loads(table.schema.metadata[KEY]), table.to_pylist()
    change(meta, lines)
    meta["checksum"] = checksum(meta, lines)
    schema = table.schema.with_metadata({KEY: json.dumps(meta).encode()})
    pq.write_table(pa.Table.from_pylist(lines, schema=schema), path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda meta, _: meta.update(format=99),
        lambda meta, _: meta.pop("terms"),
        lambda meta, _: meta["terms"].pop(),
        lambda meta, _: meta["terms"][0][0].update(os="rm"),
        lambda meta, _: meta.update(terms=[[["nested"]]]),
        lambda meta, _: meta.update(scattered=10**9),
        lambda meta, _: meta.update(tails=[10**6, 0, 0, 0]),
        lambda meta, _: meta.update(manifest={}),
        lambda meta, _: meta.update(manifest={"x": 1}),
        lambda meta, _: meta.update(targets=7),
        lambda _, lines: lines[0].update(rows=-1),
        lambda _, lines: lines[0].update(logger=None),
        lambda _, lines: lines[0].update(logger="b"),
        lambda _, lines: lines[0]["means"].pop(),
        lambda _, lines: lines[0]["means"].__setitem__(0, float("inf")),
        lambda _, lines: lines[0]["scatter"].__setitem__(0, -1.0),
        lambda _, lines: lines[0]["scatter"].__setitem__(1, 1e9),
        lambda _, lines: lines[0]["tails"][0].reverse(),
        lambda _, lines: lines[0]["histograms"][0].__setitem__(0, 10**9),
        lambda _, lines: lines[0]["histograms"][0].pop(),
        lambda _, lines: lines.clear(),
        lambda meta, _: meta.update(format=2),
    ],
)
def test_a_damaged_file_is_one_clear_error(
    change: Callable[[dict[str, Any], list[dict[str, Any]]], None], tmp_path: Path
) -> None:
    path = tmp_path / "day.parquet"
    summarise(log(), TARGETS).save(path)
    damaged(path, change)
    with refused(SourceError):
        Summary.load(path)


def flipped(path: Path, flips: int, ask: Callable[[], str]) -> Counter[str]:
    """Flip one bit of a file at a time, and count what a question about it returns."""
    whole, kinds = path.read_bytes(), Counter[str]()
    before, messages = ask(), []
    for place in np.random.default_rng(7).choice(len(whole) * 8, flips, replace=False).tolist():
        content = bytearray(whole)
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        try:
            kinds["same" if ask() == before else "other"] += 1
        except PoolwiseError as error:
            messages.append(str(error).splitlines())
    assert {len(lines) for lines in messages} == {1}
    return kinds + Counter(refused=len(messages))


def content(summary: Summary) -> str:
    """All that a summary says, to the last bit."""
    said: list[object] = [summary.question, summary.manifest]
    for label, m in summary.moments.items():
        said += [label, m.count, m.terms, m.ddof]
        said += [getattr(m, name).tobytes() for name in ARRAYS]
        said += [(t, v.tobytes()) for name in TALLIES for t, v in getattr(m, name).items()]
    return repr(said)


def test_a_flipped_bit_is_one_message_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "day.parquet"
    one = {"target": "t"}
    summarise(log(propensities=None), one).save(path)
    asked = far_away(propensities=None)
    kinds = flipped(path, 150, lambda: content(from_files([path], asked, one)))
    assert set(kinds) == {"refused", "same"}
    assert kinds["refused"] > 90  # the others are in bytes that hold no number


@pytest.mark.slow
def test_a_flipped_bit_of_an_answer_is_never_a_traceback(tmp_path: Path) -> None:
    """A database adds no checksum, so that a number may differ."""
    path = answer(tmp_path / "day.parquet", far_away())
    asked = far_away()
    kinds = flipped(path, 80, lambda: content(from_files([path], asked, TARGETS)))
    assert kinds["refused"] > 20


@pytest.mark.parametrize("name", ["answer.csv", "answer.json"])
@pytest.mark.parametrize(
    "value", ["1e999", "-1", "[" * 100_000, "9" * 400, '"\\ud800"', "NaN", "null"]
)
def test_an_answer_with_an_impossible_count_is_one_message(
    name: str, value: str, tmp_path: Path
) -> None:
    path = answer(tmp_path / name, far_away())
    text = path.read_text()
    other = text.replace('"rows":300', f'"rows":{value}').replace(",300,", f",{value},")
    assert other != text
    path.write_text(other)
    with pytest.raises(SourceError):
        from_result(path, far_away(), TARGETS)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"\x80\x04K*."])
def test_what_is_no_saved_file_is_one_clear_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "day.parquet"
    path.write_bytes(content)
    with pytest.raises(SourceError):
        Summary.load(path)
    with pytest.raises(SourceError):
        from_result(path, log(), TARGETS)
    pq.write_table(TABLE, path)
    with refused(SourceError):
        Summary.load(path)
    with refused(SourceError):
        from_result(path, log(), TARGETS)


def test_a_file_that_cannot_be_written_or_found_is_told(tmp_path: Path) -> None:
    with refused(PoolwiseError):
        summarise(log(), TARGETS).save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SourceError):
        Summary.load(tmp_path / "none.parquet")


def test_the_same_summary_is_the_same_file(tmp_path: Path) -> None:
    summary = summarise(log(), TARGETS)
    for name in ("one", "two"):
        summary.save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    Summary.load(tmp_path / "one").save(tmp_path / "three")
    assert Summary.load(tmp_path / "three").rows == COUNTS


# --- a warehouse's answer ---------------------------------------------------------------


def answer(path: Path, asked: Log, table: pa.Table = TABLE, **targets: str) -> Path:
    """Write DuckDB's result of the printed query, in the format of the file's name."""
    options = {
        ".parquet": "FORMAT parquet",
        ".csv": "FORMAT csv, HEADER",
        ".json": "FORMAT json",
    }
    with duckdb.connect() as connection:
        connection.register("my_log", table)
        query = query_text(asked, "my_log", targets or TARGETS, "duckdb")
        connection.execute(f"COPY ({query}) TO '{path}' ({options[path.suffix]})")
    return path


def far_away(**roles: Any) -> Log:  # noqa: ANN401 - any role of a log
    """Return the log without access to its rows."""
    return Log(
        **{
            "table": "my_log",
            "logger": "logger",
            "reward": "reward",
            "propensity": "p",
            "propensities": {k: f"p_{k}" for k in LOGGERS},
            **roles,
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
@pytest.mark.parametrize("roles", [{}, {"propensities": None}, {"on_fault": "drop"}])
def test_an_answer_is_evaluated_like_the_rows(
    ending: str, roles: dict[str, Any], tmp_path: Path
) -> None:
    path = answer(tmp_path / f"answer.{ending}", far_away(**roles))
    summary = from_result(path, far_away(**roles), TARGETS)
    found = evaluate(far_away(**roles), TARGETS, engine=summary, which_logs=False)
    assert_same(found, whole("student", **roles), rel=1e-9)
    mixture = found["target"].mixture
    assert mixture is None or mixture.tail is None  # a query returns no tails


def test_an_answer_may_have_changed_its_case_and_its_types(tmp_path: Path) -> None:
    path = answer(tmp_path / "answer.csv", far_away())
    with path.open() as file:
        lines = [{k.upper(): v for k, v in line.items()} for line in csv.DictReader(file)]
    shouted = tmp_path / "answer.json"
    shouted.write_text(json.dumps(lines))
    summary = from_result(shouted, far_away(), TARGETS)
    assert_same(finished(summary), whole("student"), rel=1e-9)


def test_answers_of_two_days_add_up_to_what_needs_no_mixture(tmp_path: Path) -> None:
    days = [
        from_result(answer(tmp_path / f"{k}.csv", far_away(), part), far_away(), TARGETS)
        for k, part in enumerate(shards([333]))
    ]
    both = days[0] + days[1]
    found = evaluate(both.narrowed(far_away()), TARGETS, "naive", engine=both, which_logs=False)
    assert numbers_of(found, "half") == pytest.approx(
        [whole()["half"].estimates["naive"].value], rel=1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "targets"),
    [
        (far_away(reward="p"), TARGETS),
        (far_away(log_probabilities=True), TARGETS),
        (far_away(propensities={"a": "p_a", "b": "p_b"}), TARGETS),
        (far_away(), {"target": "t"}),
        (far_away(), {"target": "t", "half": "t / 3"}),
    ],
)
def test_the_answer_to_another_question_is_refused(
    other: Log, targets: dict[str, Any], tmp_path: Path
) -> None:
    path = answer(tmp_path / "answer.parquet", far_away())
    with refused(SourceError):
        from_result(path, other, targets)


def test_an_answer_with_bad_rows_is_not_used(tmp_path: Path) -> None:
    rewards = TABLE["reward"].to_pylist()
    bad = TABLE.set_column(1, "reward", pa.array([None, None, *rewards[2:]]))
    path = answer(tmp_path / "answer.parquet", far_away(), bad)
    with refused(LogError) as caught:
        from_result(path, far_away(), TARGETS)
    assert sum(fault.rows for fault in caught.value.faults) == 2


def test_an_answer_without_a_logger_is_told(tmp_path: Path) -> None:
    some = TABLE.filter(pa.compute.field("logger") != "b")
    path = answer(tmp_path / "answer.parquet", far_away(), some)
    with refused(LogError):
        from_result(path, far_away(), TARGETS)


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[0].pop("sum_0"),
        lambda lines: lines[0].update(sum_0="much"),
        lambda lines: lines[0].update(rows=0),
        lambda lines: lines.append(dict(lines[0])),
    ],
)
def test_a_damaged_answer_is_one_clear_error(
    change: Callable[[list[dict[str, Any]]], None], tmp_path: Path
) -> None:
    path = answer(tmp_path / "answer.json", far_away())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(SourceError):
        from_result(path, far_away(), TARGETS)


def test_files_of_both_kinds_add_up(tmp_path: Path) -> None:
    first, second = shards([333])
    summarise(log(first), TARGETS).save(tmp_path / "first.parquet")
    answer(tmp_path / "second.parquet", far_away(), second)
    paths = [tmp_path / "first.parquet", tmp_path / "second.parquet"]
    both = from_files(paths, far_away(), TARGETS)
    assert both.rows == COUNTS
    found = evaluate(both.narrowed(log()), TARGETS, engine=both, which_logs=False)
    assert {o.tail for o in found["target"].loggers.values()} == {None}  # an answer has none
    alone = from_files(paths[1:], far_away(), TARGETS)
    found = evaluate(far_away(), TARGETS, engine=alone, which_logs=False)
    expected = evaluate(log(second), TARGETS, which_logs=False, interval="student")
    assert_same(found, expected, rel=1e-9)
    with refused(UsageError):
        from_files([], far_away(), TARGETS)


def test_the_question_does_not_hang_on_where_the_rows_are() -> None:
    assert question(far_away(), TARGETS) == question(log(), TARGETS)


def only_logger(seed: int, rows: int = 300, logger: str = "a") -> Log:
    """A log of one logger, with its own propensity."""
    rng = np.random.default_rng(seed)
    columns = {"r": rng.random(rows), "p": rng.uniform(0.2, 0.9, rows)}
    table = pa.table({**columns, "t": rng.uniform(0.2, 0.9, rows), "who": [logger] * rows})
    return Log(table, reward="r", propensity="p", logger="who")


def estimates(log: Log, summary: Summary | None = None) -> dict[str, float]:
    found = evaluate(log, {"t": "t"}, engine=summary)["t"]
    return {name: e.value for name, e in found.estimates.items()}


def test_a_summary_of_an_only_logger_serves_what_its_rows_serve(tmp_path: Path) -> None:
    """Its propensity is the mixture, in a summary as in the rows."""
    log, later = only_logger(1), only_logger(2)
    summary = summarise(log, {"t": "t"})
    summary.save(tmp_path / "a.parquet")
    for saved in (summary, Summary.load(tmp_path / "a.parquet")):
        assert estimates(log, saved) == pytest.approx(estimates(log), rel=1e-9)
    assert "calibrated" in estimates(log, summary)
    both = pa.concat_tables([log.source, later.source])
    whole = replace(log, source=both)
    added = summary + summarise(later, {"t": "t"})
    assert estimates(whole, added) == pytest.approx(estimates(whole), rel=1e-9)


def test_a_summary_of_an_only_logger_and_another_one_have_no_mixture() -> None:
    log, other = only_logger(1), only_logger(2, logger="b")
    both = pa.concat_tables([log.source, other.source])
    whole = replace(log, source=both)
    added = summarise(log, {"t": "t"}) + summarise(other, {"t": "t"})
    assert added.manifest == {}
    assert estimates(whole, added) == pytest.approx(estimates(whole), rel=1e-9)
    assert "calibrated" not in estimates(whole, added)
    three = added + summarise(whole, {"t": "t"})  # a part with both loggers
    assert sum(three.rows.values()) == 1_200
