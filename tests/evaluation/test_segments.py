"""Segments: the answer of each is that of its rows alone, and all intervals hold together."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LinearRegression
from typer.testing import CliRunner

import poolwise as pw
from benchmarks.segments import Shape, measured
from poolwise.cli.commands import app
from poolwise.errors import LogError, MissingColumnError, UsageError
from poolwise.formats.labelled import TARGETS, digits_log
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.evaluation.results import Evaluation
    from poolwise.evaluation.segments import Segments

pytestmark = pytest.mark.slow  # all of them together take seconds
POLICIES = {"v1": [0.5, 0.3, 0.2], "v2": [0.2, 0.3, 0.5], "new": [0.1, 0.2, 0.7]}
SEGMENTS = ("de", "fr", "us")
ROLES = ["--reward", "r", "--logger", "policy", "--propensities", "v1=p_v1,v2=p_v2"]


def table(seed: int, rows: int = 900, *, lift: float = 0.3) -> pa.Table:
    """Rows where the last action earns more in 'fr'; without `lift` no action matters."""
    rng = np.random.default_rng(seed)
    logger = rng.choice(["v1", "v2"], rows)
    segment = rng.choice(SEGMENTS, rows, p=[0.5, 0.3, 0.2])
    draws = rng.random(rows)
    ends = np.array([np.cumsum(POLICIES[label]) for label in logger])
    action = np.minimum((draws[:, None] > ends).sum(axis=1), 2)
    mean = 0.3 + lift * (segment == "fr") * (action - 1)
    columns = {f"p_{name}": np.array(p)[action] for name, p in POLICIES.items()}
    return pa.table(
        {
            "policy": logger,
            "country": segment,
            "user": rng.integers(60, size=rows),
            "r": rng.binomial(1, mean),
            **columns,
        }
    )


def log_of(rows: pa.Table, **roles: Any) -> pw.Log:  # noqa: ANN401 - any role
    crossed = {"propensities": {"v1": "p_v1", "v2": "p_v2"}}
    return pw.Log(rows, reward="r", logger="policy", **crossed | roles)


def by_country(rows: pa.Table, **options: Any) -> Segments:  # noqa: ANN401 - of evaluate
    segments = pw.evaluate(log_of(rows), {"new": "p_new"}, by="country", **options).segments
    assert segments is not None
    return segments


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return table(1)


@pytest.fixture(scope="module")
def segments(rows: pa.Table) -> Segments:
    return by_country(rows)


def test_a_reward_model_is_the_same_with_and_without_segments(rows: pa.Table) -> None:
    """The model of a segment was fitted to the segments before it, as if they were periods."""
    actions = pc.multiply(rows["p_v1"], 10).cast(pa.int64())
    log = log_of(rows.append_column("action", actions), action="action")
    options: dict[str, Any] = {"model": LinearRegression(), "estimators": "doubly-robust"}
    targets = {"new": pw.Table({5: 0.1, 3: 0.2, 2: 0.7})}
    plain = pw.evaluate(log, targets, **options)
    found = pw.evaluate(log, targets, by="country", **options)
    assert found["new"].estimates == plain["new"].estimates


@pytest.mark.parametrize(
    "roles",
    [{}, {"cluster": "user"}, {"propensities": None, "propensity": "p_v1"}],
    ids=["crossed", "clustered", "own"],
)
@pytest.mark.parametrize("baseline", ["v1", "old"])
def test_a_segment_is_what_its_rows_alone_give(
    rows: pa.Table, roles: dict[str, Any], baseline: str
) -> None:
    targets = {"new": "p_new", "old": "p_v2"}
    if roles.get("propensity"):
        own = pc.if_else(pc.equal(rows["policy"], "v1"), rows["p_v1"], rows["p_v2"])
        rows, roles = (
            rows.append_column("own", own),
            {"propensities": None, "propensity": "own"},
        )
    whole = pw.evaluate(log_of(rows, **roles), targets, baseline=baseline, by="country")
    assert whole.segments is not None
    assert whole.segments.names == SEGMENTS
    for name in SEGMENTS:
        part = log_of(rows.filter(pc.equal(rows["country"], name)), **roles)
        alone = pw.evaluate(part, targets, level=0.95 ** (1 / 3), baseline=baseline)
        for target, result in whole.segments[name].items():
            estimator = whole.segments.estimator
            same(result.estimate.value, alone[target].estimates[estimator].value)
            same(result.interval.lower, alone[target].intervals[estimator].lower)
            if target != baseline:
                assert result.difference is not None
                same(result.difference.value, alone.differences[target].value)
                same(result.difference.interval.upper, alone.differences[target].interval.upper)


def same(left: float, right: float) -> None:
    assert left == pytest.approx(right, rel=1e-10)


def test_the_whole_evaluation_does_not_depend_on_segments(rows: pa.Table) -> None:
    plain = pw.evaluate(log_of(rows), {"new": "p_new"})
    split = pw.evaluate(log_of(rows), {"new": "p_new"}, by="country")
    assert split.to_dicts() == plain.to_dicts()
    assert split.headline == plain.headline
    assert plain.segments is None


def test_contrasts_have_the_errors_of_independent_segments(segments: Segments) -> None:
    results = {r.segment: r for r in segments.results}
    gaps = {s: r.difference for s, r in results.items() if r.difference is not None}
    size = {s: r.rows for s, r in results.items()}
    rest = size["de"] + size["us"]
    mean = (size["de"] * gaps["de"].value + size["us"] * gaps["us"].value) / rest
    contrast = results["fr"].contrast
    assert contrast is not None
    same(contrast.value, gaps["fr"].value - mean)
    shares = {"fr": 1.0, "de": size["de"] / rest, "us": size["us"] / rest}
    least = sum((share * gaps[s].std_error) ** 2 for s, share in shares.items()) ** 0.5
    assert least <= contrast.std_error < 1.3 * least  # skewness makes it larger
    assert [r.segment for r in segments.differing if r.contrast and r.contrast.value > 0] == [
        "fr"
    ]
    verdicts = {s: gap.verdict for s, gap in gaps.items()}
    assert verdicts == {"de": "undecided", "fr": "better", "us": "undecided"}


def test_p_values_and_intervals_agree(segments: Segments) -> None:
    for result in segments.results:
        for pair in (result.difference, result.contrast):
            assert pair is not None
            assert (pair.adjusted < 0.05) == (0.0 not in pair.interval)
            assert pair.p_value <= pair.adjusted
            assert pair.interval.level == 0.95


@pytest.mark.slow
def test_rewards_that_no_action_changes_are_claimed_at_the_level() -> None:
    seeds, claims, differ, covered = 100, 0, 0, 0
    for seed in range(seeds):
        segments = by_country(table(1000 + seed, 700, lift=0.0), estimators="calibrated")
        gaps = [r.difference for r in segments.results if r.difference is not None]
        claims += any(gap.verdict != "undecided" for gap in gaps)
        differ += bool(segments.differing)
        covered += all(0.3 in r.interval for r in segments.results)
    assert claims <= 0.09 * seeds  # 0.05, and two standard errors of 100 draws
    assert differ <= 0.09 * seeds
    assert covered >= 0.91 * seeds


def test_a_segment_without_the_baseline_has_no_difference(rows: pa.Table) -> None:
    lacking = pc.and_(pc.equal(rows["country"], "us"), pc.equal(rows["policy"], "v1"))
    segments = by_country(rows.filter(pc.invert(lacking)), baseline="v1")
    assert segments["us"]["new"].difference is None
    assert segments["us"]["new"].contrast is None
    assert segments["fr"]["new"].contrast is not None
    assert "–" in str(segments)


def test_a_target_that_a_segment_does_not_know_is_a_finding(rows: pa.Table) -> None:
    target = "CASE WHEN country = 'us' THEN 0 ELSE p_new END"
    evaluation = pw.evaluate(log_of(rows), {"new": target}, by="country")
    assert evaluation.segments is not None
    assert evaluation.segments.names == ("de", "fr")
    assert "target-unlogged" in {w["code"] for w in evaluation.warnings}


def test_segments_by_the_action_cannot_be_compared() -> None:
    log = replace(digits_log(), action=None)  # its column `digit` is the action
    segments = pw.evaluate(log, TARGETS, "calibrated", by="digit < 5").segments
    assert segments is not None
    assert {r.difference.verdict for r in segments.results if r.difference} == {"unreliable"}
    assert segments.differing == ()
    assert "cannot be compared with" in segments.sentence


@pytest.mark.parametrize("by", ["digit", "digit < 5", "correct = 1", "coalesce(correct, 0)"])
def test_segments_by_the_declared_action_or_the_reward_are_refused(by: str) -> None:
    with refused(UsageError):
        pw.evaluate(digits_log(), TARGETS, by=by)


def evaluation_of(rows: pa.Table, by: str = "country", **roles: Any) -> Evaluation:  # noqa: ANN401
    return pw.evaluate(log_of(rows, **roles), {"new": "p_new"}, by=by)


def test_a_segment_with_one_row_is_refused(rows: pa.Table) -> None:
    lone = rows.slice(0, 1).set_column(1, "country", pa.array(["li"]))
    with refused(UsageError):
        evaluation_of(pa.concat_tables([rows, lone]))


def test_too_many_segments_are_refused(rows: pa.Table) -> None:
    with refused(UsageError):
        evaluation_of(rows.append_column("id", pa.array(range(len(rows)))), "id")


def test_a_column_that_does_not_exist_is_named_by_its_option(rows: pa.Table) -> None:
    with refused(MissingColumnError) as caught:
        evaluation_of(rows, "contry")
    assert caught.value.missing == {"contry": "by"}


def test_a_segment_that_is_null_is_a_fault_or_dropped(rows: pa.Table) -> None:
    country = pa.array([None, None, *rows["country"].to_pylist()[2:]])
    holes = rows.set_column(1, "country", country)
    with refused(LogError):
        evaluation_of(holes)
    dropped = evaluation_of(holes, on_fault="drop")
    assert sum(dropped.rows.values()) == len(rows) - 2
    assert evaluation_of(holes, "coalesce(country, 'unknown')").segments is not None


@pytest.mark.parametrize(
    ("roles", "options"),
    [
        ({"period": "user"}, {}),
        ({"reward_range": (0, 1)}, {"interval": "betting"}),
        ({"propensities": None, "propensity": "p_v1", "mixture": "p_v2"}, {}),
        ({"action": "country"}, {}),
    ],
    ids=["period", "betting", "mixture", "action"],
)
def test_questions_that_segments_cannot_answer(
    rows: pa.Table, roles: dict[str, Any], options: dict[str, Any]
) -> None:
    with refused(UsageError):
        pw.evaluate(log_of(rows, **roles), {"new": "p_new"}, by="country", **options)


def test_segments_need_rows(rows: pa.Table) -> None:
    with duckdb.connect() as connection:
        connection.register("logs", rows)
        log = replace(log_of(rows), source=None, table="logs", connection=connection)
        with refused(UsageError):
            pw.evaluate(log, {"new": "p_new"}, by="country")


def test_a_hundred_segments_and_many_loggers(rows: pa.Table) -> None:
    many = rows.append_column("bin", pc.bit_wise_and(pa.array(range(len(rows))), 63))
    segments = evaluation_of(many, "bin").segments
    assert segments is not None
    assert len(segments.names) == 64
    assert sum(r.rows for r in segments.results) == len(rows)
    assert segments.names[:3] == ("0", "1", "2")  # by value, not by text


def test_the_command_line_has_tables_json_and_a_chart(rows: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(rows, path)
    command = ["evaluate", str(path), *ROLES, "--target", "new=p_new", "--by", "country"]
    page = tmp_path / "report.html"
    run = CliRunner().invoke(app, [*command, "--html", str(page)])
    assert run.exit_code == 0, run.output
    assert "Difference from v1 by country" in run.output
    assert "<h2>Segments</h2>" in page.read_text("utf-8")
    assert 'id="chart-segments"' in page.read_text("utf-8")
    whole = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)["segments"]
    assert [r["segment"] for r in whole["results"]] == list(SEGMENTS)
    (tmp_path / "q.toml").write_text(
        'log = "log.parquet"\nreward = "r"\nlogger = "policy"\nby = "country"\n'
        'propensities = {v1 = "p_v1", v2 = "p_v2"}\ntargets = {new = "p_new"}\n'
    )
    asked = pw.Question.read(tmp_path / "q.toml").evaluate().segments
    assert asked is not None
    assert [r.estimate.value for r in asked.results] == [r["value"] for r in whole["results"]]


def test_frames_have_one_row_per_segment_and_target(segments: Segments) -> None:
    frame = segments.to_arrow()
    assert frame.num_rows == 3
    assert {"segment", "value", "difference", "difference_verdict", "contrast_adjusted"} <= set(
        frame.column_names
    )


@pytest.mark.parametrize("rewarded", [4, 5, 6, 8, 10])
def test_rewards_on_one_side_are_as_surprising_as_coins(rewarded: int) -> None:
    """All rewarded rows have the target's action, which the logger plays half of the time.

    If no action changes the reward, these rows are coins: the probability of as many heads or
    tails is 2 · 2⁻ᵏ, and a continuous approximation puts half of it beyond.
    """
    count = 400
    reward = np.arange(count) < rewarded
    columns = {"r": reward.astype(float), "p": np.full(count, 0.5), "l": ["a"] * count}
    columns["t"] = np.where(reward | (np.arange(count) % 2 == 0), 1.0, 0.0)
    log = pw.Log(pa.table(columns), reward="r", logger="l", propensity="p")
    for estimators in ("naive", "calibrated"):
        difference = pw.evaluate(log, {"t": "t"}, estimators).differences["t"]
        assert difference.value > 0
        assert difference.p_value > 0.7 * 0.5**rewarded


@pytest.mark.parametrize(
    "shape",
    [Shape(segments=6, smallest=150, largest=500, rate=0.03), Shape(segments=5, own=True)],
    ids=["rare", "own"],
)
def test_flat_logs_have_no_more_claims_than_the_level(shape: Shape) -> None:
    """Before, differences were claimed in a third and in a fifth of such logs."""
    found = measured(shape, logs=40)
    most = 40 * (0.05 + 2 * 0.035)  # two standard errors of 40 logs
    assert found.claims < most
    assert found.differing < most
    assert found.missed < most
