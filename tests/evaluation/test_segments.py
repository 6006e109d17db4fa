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
from benchmarks.segments import DEFECTS, FAULTY, Shape, find, measured
from poolwise.cli.commands import app
from poolwise.errors import LogError, MissingColumnError, UsageError
from poolwise.formats.labelled import TARGETS, digits_log
from tests.support.messages import check_findings, refused

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
    with pytest.raises(KeyError, match="no such segment"):
        whole.segments["no such segment"]
    for name in SEGMENTS:
        part = log_of(rows.filter(pc.equal(rows["country"], name)), **roles)
        alone = pw.evaluate(part, targets, level=0.95 ** (1 / 3), baseline=baseline)
        for target, result in whole.segments[name].items():
            estimator = whole.segments.estimator
            assert result.estimate is not None
            assert result.interval is not None
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


def test_segments_that_the_target_leaves_alone_belong_to_the_others(rows: pa.Table) -> None:
    """Their difference is 0, and so much of the mean over the other segments."""
    alone = np.array(rows["country"].to_pylist()) == "de"
    new = np.where(alone, rows["p_v1"].to_numpy(), rows["p_new"].to_numpy())
    changed = rows.set_column(rows.column_names.index("p_new"), "p_new", pa.array(new))
    found = {r.segment: r for r in by_country(changed, baseline="v1").results}
    assert found["de"].difference is not None
    assert found["de"].difference.verdict == "identical"
    for one, other in (("fr", "us"), ("us", "fr")):
        gap, rest, contrast = (
            found[one].difference,
            found[other].difference,
            found[one].contrast,
        )
        assert gap is not None
        assert rest is not None
        assert contrast is not None
        share = found[other].rows / (found["de"].rows + found[other].rows)
        same(contrast.value, gap.value - share * rest.value)
    two = changed.filter(pa.compute.not_equal(changed["country"], "us"))
    lone = {r.segment: r for r in by_country(two, baseline="v1").results}["fr"]
    assert lone.contrast is not None
    assert lone.difference is not None
    same(lone.contrast.value, lone.difference.value)


def paired(seed: int, *, mirrored: bool) -> pa.Table:
    """Rows of 400 users in two segments: the second row repeats or mirrors the first.

    A tenth of the second rows are drawn anew.  The logger plays both actions equally often,
    the target the second, so that swapping actions mirrors every difference.
    """
    rng = np.random.default_rng(seed)
    action, reward = rng.integers(2, size=(2, 400)), rng.integers(2, size=(2, 400))
    again = rng.random(400) < 0.9
    action[1, again] = action[0, again] ^ mirrored
    reward[1, again] = reward[0, again]
    return pa.table(
        {
            "policy": ["v1"] * 800,
            "country": ["de"] * 400 + ["fr"] * 400,
            "user": np.tile(np.arange(400), 2),
            "r": reward.ravel(),
            "p_v1": np.full(800, 0.5),
            "p_new": action.ravel().astype(float),
        }
    )


@pytest.mark.parametrize("mirrored", [False, True], ids=["repeated", "mirrored"])
def test_contrasts_allow_for_clusters_in_several_segments(mirrored: bool) -> None:  # noqa: FBT001
    rows = paired(3, mirrored=mirrored)
    log = log_of(rows, propensities={"v1": "p_v1"}, cluster="user")
    segments = pw.evaluate(log, {"new": "p_new"}, "naive", by="country").segments
    assert segments is not None
    contrast = segments["de"]["new"].contrast
    assert contrast is not None
    # with naive, a bucket adds the sum of (w - 1) (r) of its rows to the difference
    gain = (2 * np.array(rows["p_new"]) - 1) * np.array(rows["r"])
    by_user = gain[:400] - gain[400:]
    error = float(by_user.std()) / 20
    assert contrast.std_error == pytest.approx(error, rel=0.2)  # in 200 buckets, with skewness
    apart = float(np.hypot(gain[:400].std(), gain[400:].std())) / 20
    assert contrast.std_error > 1.2 * apart if mirrored else contrast.std_error < 0.6 * apart


def test_contrasts_with_a_target_add_up_the_errors_of_clusters(rows: pa.Table) -> None:
    log = log_of(rows, cluster="user")
    targets = {"new": "p_new", "old": "p_v2"}
    segments = pw.evaluate(log, targets, by="country", baseline="old").segments
    assert segments is not None
    results = {s: segments[s]["new"] for s in SEGMENTS}
    size = {s: r.rows for s, r in results.items()}
    gaps = {s: r.difference for s, r in results.items() if r.difference}
    rest = size["de"] + size["us"]
    least = gaps["fr"].std_error
    least += sum(size[s] / rest * gaps[s].std_error for s in ("de", "us"))
    contrast = results["fr"].contrast
    assert contrast is not None
    assert least <= contrast.std_error < 1.5 * least


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
        covered += all(r.interval and 0.3 in r.interval for r in segments.results)
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
    segments = evaluation.segments
    assert segments is not None
    assert segments.names == SEGMENTS
    assert segments["us"]["new"].estimate is None
    assert [f.code for f in segments["us"]["new"].findings] == ["target-unlogged"]
    assert "target-unlogged" not in {w["code"] for w in evaluation.warnings}


@pytest.mark.parametrize("baseline", ["v1", "old"])
def test_a_target_without_weight_in_a_segment_leaves_the_others_as_they_are(
    rows: pa.Table, baseline: str
) -> None:
    without = "CASE WHEN country = 'us' THEN 0 ELSE p_new END"
    targets = {"new": without, "old": "p_v2", "third": "p_v1"}
    full = pw.evaluate(log_of(rows), targets, by="country", baseline=baseline).segments
    kept = {"old": "p_v2", "new": "p_new", "third": "p_v1"}
    plain = pw.evaluate(log_of(rows), kept, by="country", baseline=baseline).segments
    assert full is not None
    assert plain is not None
    assert full["us"]["new"].estimate is None
    assert full["us"]["new"].difference is None
    for target in ("old", "third"):
        ours, theirs = full["us"][target], plain["us"][target]
        assert ours.to_dict()["value"] == pytest.approx(theirs.to_dict()["value"], rel=1e-12)
        if theirs.difference is not None:
            assert ours.difference is not None
            same(ours.difference.value, theirs.difference.value)


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


LONE = [("li", {}), ("one", {"cluster": "user"})]


def with_small(rows: pa.Table, name: str) -> pa.Table:
    """Add a segment of one row, or of five rows of one user."""
    few = rows.slice(0, 1 if name == "li" else 5)
    few = few.set_column(1, "country", pa.array([name] * len(few)))
    return pa.concat_tables([rows, few.set_column(2, "user", pa.array([99] * len(few)))])


@pytest.mark.parametrize(("name", "roles"), LONE, ids=["one-row", "one-cluster"])
def test_a_segment_without_a_number_is_shown_with_the_reason(
    rows: pa.Table, name: str, roles: dict[str, Any]
) -> None:
    evaluation = evaluation_of(with_small(rows, name), **roles)
    segments = evaluation.segments
    assert segments is not None
    assert set(segments.names) == {*SEGMENTS, name}
    result = segments[name]["new"]
    code = "segment-too-small" if name == "li" else "one-cluster"
    assert (result.estimate, result.interval, result.difference, result.contrast) == (None,) * 4
    check_findings([f for f in result.findings if f.code == code], code)
    line = next(r for r in segments.to_dicts() if r["segment"] == name)
    assert line["value"] is None
    assert code in str(line["warnings"])
    whole = json.loads(evaluation.to_json())["segments"]
    entry = next(r for r in whole["results"] if r["segment"] == name)
    assert [entry[k] for k in ("value", "std_error", "lower", "upper")] == [None] * 4
    assert code in [w["code"] for w in entry["warnings"]]
    for text in (evaluation.to_text(), str(evaluation), evaluation.page_text()):
        assert code in text
        assert name in text
    frame = segments.to_arrow()
    assert frame.num_rows == 4
    for segment in SEGMENTS:  # the others keep their numbers
        assert segments[segment]["new"].estimate is not None
    plain = evaluation_of(rows, **roles)
    codes = {f.code for f in plain.findings} | {f.code for f in plain["new"].findings}
    found = {f.code for f in evaluation.findings} | {f.code for f in evaluation["new"].findings}
    assert found == codes


def test_a_lone_row_widens_no_interval(rows: pa.Table) -> None:
    with_one, plain = evaluation_of(with_small(rows, "li")), evaluation_of(rows)
    assert with_one.segments is not None
    assert plain.segments is not None
    for name in SEGMENTS:
        assert with_one.segments[name]["new"].interval == plain.segments[name]["new"].interval


def test_segments_of_one_row_each_have_no_number(rows: pa.Table) -> None:
    few = rows.slice(0, 3).set_column(1, "country", pa.array(list(SEGMENTS)))
    segments = evaluation_of(few).segments
    assert segments is not None
    assert [r.estimate for r in segments.results] == [None] * 3
    assert segments.sentence == "No segment has an estimate of a difference."


def test_an_alarm_of_a_segment_is_about_that_segment(rows: pa.Table) -> None:
    """In 'us', the log has the propensities of v1 and v2 swapped: that is no other's fault."""
    swapped = {
        f"p_{name}": pc.if_else(pc.equal(rows["country"], "us"), rows[other], rows[own])
        for name, own, other in (("v1", "p_v1", "p_v2"), ("v2", "p_v2", "p_v1"))
    }
    for name, column in swapped.items():
        rows = rows.set_column(rows.column_names.index(name), name, column)
    plain, split = pw.evaluate(log_of(rows), {"new": "p_new"}), evaluation_of(rows)
    assert split.headline == plain.headline
    assert split.warnings == plain.warnings
    segments = split.segments
    assert segments is not None
    by_segment = {r.segment: {f.code for f in r.findings} for r in segments.results}
    assert "propensities-off" in by_segment["us"]
    assert not by_segment["de"] | by_segment["fr"]
    difference = segments["us"]["new"].difference
    assert difference is not None
    assert difference.verdict == "unreliable"
    assert "propensities-off!" in split.to_text()
    assert "propensities-off" in split.page_text()
    assert "In segment &#39;us&#39;" in split.page_text()


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
    values = [r.estimate.value for r in asked.results if r.estimate]
    assert values == [r["value"] for r in whole["results"]]


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
    found = measured(shape, logs=24)
    most = 24 * (0.05 + 2 * 0.0445)  # two standard errors of 24 logs
    assert found.claims < most
    assert found.differing < most
    assert found.missed < most


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_in_one_segment_is_an_alarm_there_alone(defect: str) -> None:
    shape = Shape(segments=10, smallest=2_000, largest=2_000, defect=defect)
    assert {s for s, severity, _ in find(shape, 1) if severity == "alarm"} == {str(FAULTY)}
    clean = replace(shape, defect="")
    assert not [code for _, _, code in find(clean, 1)]
