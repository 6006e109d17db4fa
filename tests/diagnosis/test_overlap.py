"""Diagnostics: exact in the limit of many rows, no alarm on good logs, alarms on bad ones."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolwise.diagnosis.overlap import list_needs, mixed_overlap, own_overlap
from poolwise.engines.exact import TARGET_COLUMN, FiniteProblem
from poolwise.estimators.divergences import weight_moments
from poolwise.estimators.ips import Weighted
from poolwise.evaluation.evaluate import evaluate
from poolwise.formats.labelled import TARGETS, digits_log, digits_path
from poolwise.log.log import Log
from poolwise.moments.coverage import Coverage
from poolwise.moments.deviation import deviation
from poolwise.moments.linear import Score
from poolwise.moments.moments import pool_moments
from poolwise.moments.pool import Pool
from poolwise.moments.terms import BALANCED_WEIGHT, WEIGHT, Needs
from poolwise.rows.reader import Reader
from tests.support.messages import check_findings
from tests.support.reference import Reference, exact_moments, frame_of, log_of, random_table
from tests.support.toys import toy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from poolwise.engines.base import Engine
    from poolwise.evaluation.results import Evaluation

CANDIDATE = {"target": TARGET_COLUMN}
LARGE = {"1": 400, "2": 600}


def exact_view(problem: FiniteProblem) -> Pool:
    """Return the diagnostics in the limit of infinitely many rows."""
    return problem.moments(list_needs(Coverage.complete(tuple(problem.loggers))))


def drawn(seed: int, counts: Mapping[str, int] = LARGE) -> Log:
    return replace(toy("T2"), counts=counts).draw(np.random.default_rng(seed))


def changed(log: Log, **columns: Any) -> Log:  # noqa: ANN401 - whatever Arrow takes
    """The same log with some columns replaced."""
    table = frame_of(log)
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return replace(log, source=table)


def codes(found: Evaluation, *severities: str) -> set[str]:
    chosen = severities or ("alarm", "warning", "note")
    return {str(w["code"]) for w in found.warnings if w["severity"] in chosen}


def column(log: Log, name: str) -> Any:  # noqa: ANN401 - an array of the column's type
    return frame_of(log)[name].to_numpy()


# ------------------------------------------------------------------ exact answers


def test_effective_rows_of_t2_are_exact() -> None:
    view = exact_view(toy("T2"))
    own = own_overlap(Pool(view), Coverage.complete(map(str, view)))
    # n / E[w²], since E[w] = 1: E_1[w²] = .4 (.49/.2 + .04/.3 + .01/.5)
    #   + .6 (.01/.5 + .04/.3 + .49/.2) = 2.6033...; E_2[w²] = 1.05, likewise
    assert own["1"].effective_rows == pytest.approx(40 / (781 / 300), rel=1e-12)
    assert own["2"].effective_rows == pytest.approx(60 / 1.05, rel=1e-12)
    # of the mixture, whose probabilities are (.44, .3, .26) and (.26, .3, .44)
    square = 0.49 / 0.44 + 0.04 / 0.3 + 0.01 / 0.26
    mixed = mixed_overlap(Pool(view))
    assert mixed.effective_rows == pytest.approx(100 / square, rel=1e-12)
    shown_in_methods = [15.4, 57.1, 77.8]
    found = [*(o.effective_rows for o in own.values()), mixed.effective_rows]
    assert found == pytest.approx(shown_in_methods, abs=0.05)


def test_unsupported_mass_is_exact() -> None:
    problem = toy("T3")
    found = own_overlap(exact_view(problem), problem.coverage)
    for logger, policy in problem.loggers.items():
        missing = (problem.context_prob[:, None] * problem.target)[policy == 0].sum()
        assert found[logger].unsupported == pytest.approx(missing, rel=1e-12)
        assert missing > 0.1
        assert math.isinf(found[logger].divergence)


@pytest.mark.parametrize("name", ["T1", "T2", "T4"])
def test_reward_free_shares_are_exact(name: str) -> None:
    problem = toy(name)
    found = problem.exact(Weighted(divergence="reward-free"))
    square = {
        i: float(np.einsum("x,xy->", problem.context_prob, problem.target**2 / p))
        for i, p in problem.loggers.items()
    }
    mass = {i: problem.counts[i] / square[i] for i in problem.loggers}
    shares = {i: m / sum(mass.values()) for i, m in mass.items()}
    assert dict(found.shares) == pytest.approx(shares, rel=1e-12)
    expected = sum(s**2 * problem.divergence[i] / problem.counts[i] for i, s in shares.items())
    assert found.value == pytest.approx(problem.value, rel=1e-12)
    assert found.variance == pytest.approx(expected, rel=1e-12)
    assert found.variance >= problem.exact(Weighted()).variance * (1 - 1e-12)
    view = exact_view(problem)
    assert weight_moments(Pool(view)) == pytest.approx(square, rel=1e-12)


# ------------------------------------------------------------------ quiet on good logs


def test_the_bundled_log_raises_notes_only() -> None:
    found = evaluate(digits_log(), TARGETS)
    assert codes(found, "alarm", "warning") == set()


def test_good_logs_raise_no_alarm() -> None:
    # each check stays quiet in all but 1 of 10,000 good logs, Hausman in all but 1 of 370
    found = [evaluate(drawn(seed), CANDIDATE, which_logs=False) for seed in range(12)]
    assert [codes(one, "alarm", "warning") for one in found] == [set()] * 12
    logs = Counter(code for one in found for code in codes(one))
    assert logs.pop("copies-unknown") == 12  # of two contexts and three actions
    assert sum(logs.values()) <= 3  # other notes are rare too


# ------------------------------------------------------------------ loud on bad logs


def test_swapped_columns_of_logs_of_one_size_are_found() -> None:
    log = drawn(1, {"1": 800, "2": 800})
    swapped = replace(
        log, propensity=None, propensities={"1": "propensity_1", "2": "propensity_0"}
    )
    found = evaluate(swapped, CANDIDATE, which_logs=False)
    columns = found["target"].diagnosis.columns
    assert all(abs(c.z) < 4 for c in columns.values())  # the means show nothing
    assert "propensities-off" in codes(found, "alarm")
    check_findings(
        [f for f in found["target"].findings if f.code == "propensities-off"],
        "propensities-off",
    )


def test_swapped_columns_of_logs_of_unlike_size_are_found() -> None:
    log = drawn(1, {"1": 300, "2": 1300})
    swapped = replace(
        log, propensity=None, propensities={"1": "propensity_1", "2": "propensity_0"}
    )
    assert "propensities-off" in codes(evaluate(swapped, CANDIDATE), "alarm")


def test_swapped_columns_are_found_beside_a_column_that_is_right() -> None:
    t2 = toy("T2")
    three = replace(
        t2,
        loggers={**t2.loggers, "3": np.full((2, 3), 1 / 3)},
        counts={"1": 800, "2": 800, "3": 800},
    )
    log = three.draw(np.random.default_rng(1))
    columns = {"1": "propensity_1", "2": "propensity_0", "3": "propensity_2"}
    swapped = replace(log, propensity=None, propensities=columns)
    found = evaluate(swapped, CANDIDATE)
    assert "propensities-off" in codes(found, "alarm")
    assert found["target"].diagnosis.checks["own-columns"].p_value < 1e-4
    assert codes(evaluate(log, CANDIDATE), "alarm", "warning") == set()


def test_a_column_in_percent_is_found() -> None:
    log = drawn(2)
    small = column(log, "propensity_0") / 100
    own = np.where(column(log, "logger") == "1", small, column(log, "propensity"))
    found = evaluate(changed(log, propensity_0=small, propensity=own), CANDIDATE)
    assert "propensities-off" in codes(found, "alarm")
    assert "weights-off" in codes(found, "alarm")


def test_propensities_of_another_action_are_found() -> None:
    problem = replace(toy("T2"), counts=LARGE)
    log = problem.draw(np.random.default_rng(3))
    context, action = column(log, "context"), column(log, "action")
    other = (action + 1) % 3
    columns = {
        f"propensity_{k}": policy[context, other]
        for k, policy in enumerate(problem.loggers.values())
    }
    wrong = replace(changed(log, **columns), propensity=None)
    assert "weights-off" in codes(evaluate(wrong, CANDIDATE), "alarm")


def test_a_target_in_percent_is_found() -> None:
    log = drawn(4)
    found = evaluate(
        changed(log, **{TARGET_COLUMN: column(log, TARGET_COLUMN) / 100}), CANDIDATE
    )
    assert "target-uncovered" in codes(found, "alarm")


def test_a_target_of_another_action_is_found() -> None:
    log = drawn(5, {"1": 4_000, "2": 6_000})
    found = evaluate(changed(log, **{TARGET_COLUMN: np.full(10_000, 0.7)}), CANDIDATE)
    assert "weights-off" in codes(found, "alarm")


def test_own_weights_above_one_are_a_bug_and_below_one_thin_overlap() -> None:
    log = drawn(6)
    plain = replace(log, propensities=None)
    halved = changed(plain, propensity=column(plain, "propensity") / 2)
    assert "propensities-off" in codes(evaluate(halved, CANDIDATE), "alarm")
    thin = changed(plain, **{TARGET_COLUMN: column(plain, TARGET_COLUMN) / 2})
    found = evaluate(thin, CANDIDATE)
    assert "target-uncovered" in codes(found, "alarm")
    assert not {"propensities-off", "thin-overlap"} & {*codes(found)}
    assert "thin-overlap" in codes(evaluate(thin, CANDIDATE, "naive"), "warning")


def test_drift_of_the_rewards_is_found() -> None:
    log = drawn(7, {"1": 2_000, "2": 3_000})
    later = column(log, "logger") == "2"
    moved = np.where(later, column(log, "reward") + 0.15, column(log, "reward"))
    found = evaluate(changed(log, reward=moved), CANDIDATE, which_logs=False)
    assert "drift" in codes(found, "alarm")
    still = evaluate(log, CANDIDATE, which_logs=False)
    assert "drift" not in codes(still)
    typical = found["target"].diagnosis.typical
    assert typical is not None
    assert 0.576 in typical  # from two periods it is very wide


def test_one_dominant_row_and_a_heavy_tail_are_found() -> None:
    rng = np.random.default_rng(8)
    total = 2_000
    weights = (1 - rng.random(total)) ** -0.9  # a Pareto without variance
    prob = 0.5 / weights / 5
    table = pa.table(
        {
            "logger": np.repeat(["a", "b"], total // 2),
            "reward": rng.random(total),
            "p_a": prob,
            "p_b": prob,
            "t": np.full(total, 0.1 * prob.mean()),
        }
    )
    log = Log(table, logger="logger", reward="reward", propensities={"a": "p_a", "b": "p_b"})
    found = evaluate(log, {"target": "t"}, "balanced")["target"]
    assert found.mixture is not None
    assert found.mixture.tail is not None
    assert found.mixture.tail.value == pytest.approx(0.9, abs=0.25)
    assert "heavy-weights" in {f.code for f in found.findings}
    codes = {f.code for f in evaluate(log, {"target": "t"})["target"].findings}
    assert "decisive-rows" in codes  # which calibrated sets apart
    assert "heavy-weights" not in codes


@pytest.mark.parametrize("share", [0.1, 0.02])
@pytest.mark.parametrize("name", ["a", "b"])
def test_the_balanced_weights_of_a_logger_have_no_heavy_tail(share: float, name: str) -> None:
    rng = np.random.default_rng(3)
    total = 2_000
    rows = np.arange(total)
    contexts, policies = rng.normal(size=(total, 4)), 3 * rng.normal(size=(2, 4, 5))
    chances = np.exp(contexts @ policies)
    chances /= chances.sum(axis=2, keepdims=True)
    code = (rows >= share * total).astype(int)  # 'a' has few rows: its weights reach n / n_a
    action = (chances[code, rows].cumsum(axis=1) > rng.random((total, 1))).argmax(axis=1)
    table = pa.table(
        {
            "logger": np.array(["a", "b"])[code],
            "reward": rng.random(total),
            **{f"p_{i}": chances[k, rows, action] for k, i in enumerate("ab")},
        }
    )
    log = Log(table, logger="logger", reward="reward", propensities="p_{logger}")
    found = evaluate(log, {"target": f"p_{name}"})["target"]
    assert found.mixture is not None
    assert found.mixture.tail is not None
    assert found.mixture.tail.value <= 0
    assert found.mixture.largest_weight <= 1 / (share if name == "a" else 1 - share) + 1e-9
    assert "heavy-weights" not in {f.code for f in found.findings}


def test_an_engine_without_tails_says_so() -> None:
    view = exact_view(toy("T2"))
    assert mixed_overlap(Pool(view)).tail is None


# ------------------------------------------------------------------ single numbers


def test_mean_weights_are_tested_against_their_stratified_errors(engine: Engine) -> None:
    log = drawn(9)
    found = evaluate(log, CANDIDATE, engine=engine)["target"]
    weights = column(log, TARGET_COLUMN) / column(log, "propensity")
    mine = weights[column(log, "logger") == "1"]
    z = (mine.mean() - 1) / (mine.std(ddof=1) / math.sqrt(len(mine)))
    assert found.loggers["1"].mean_weight_z == pytest.approx(z, rel=1e-9)
    assert found.loggers["1"].largest_share == pytest.approx(mine.max() / mine.sum(), rel=1e-9)
    mixture = 0.4 * column(log, "propensity_0") + 0.6 * column(log, "propensity_1")
    balanced = column(log, TARGET_COLUMN) / mixture
    label = column(log, "logger")
    spread = sum(
        (len(part) / 1_000) ** 2 * part.var(ddof=1) / len(part)
        for part in (balanced[label == "1"], balanced[label == "2"])
    )
    assert found.mixture is not None
    expected = (balanced.mean() - 1) / math.sqrt(spread)
    assert found.mixture.mean_weight_z == pytest.approx(expected, rel=1e-9)


def test_rows_of_a_cluster_do_not_count_as_independent() -> None:
    single = drawn(10)
    table = pa.concat_tables([single.source] * 4)
    unit = np.tile(np.arange(1_000), 4)
    fourfold = replace(single, source=table.append_column("user", pa.array(unit)))
    alone = evaluate(single, CANDIDATE, which_logs=False)["target"].mixture
    rowwise = evaluate(fourfold, CANDIDATE, which_logs=False)["target"].mixture
    clustered = evaluate(replace(fourfold, cluster="user"), CANDIDATE)["target"].mixture
    assert alone is not None
    assert rowwise is not None
    assert clustered is not None
    # four copies of each row halve the row-wise error, not the clustered one
    assert rowwise.mean_weight_z / alone.mean_weight_z == pytest.approx(2, rel=0.01)
    # 200 buckets know a variance to 10%, so its root to 5%: four standard errors
    assert clustered.mean_weight_z / alone.mean_weight_z == pytest.approx(1, rel=0.2)


def test_a_deviation_of_rows_that_do_not_vary() -> None:
    flat = exact_moments({WEIGHT: np.ones(5)}, weight_needs())
    same = Score({WEIGHT: 1.0}).of("a")
    assert deviation(same, Pool({"a": flat})).p_value == 1
    off = Score({WEIGHT: 0.5}).of("a")
    assert deviation(off, Pool({"a": flat})).z == -math.inf
    alone = exact_moments({WEIGHT: np.ones(1)}, weight_needs())
    assert same.deviation_variance(Pool({"a": alone}))[0] == math.inf


def weight_needs() -> Needs:
    return Needs(groups=((WEIGHT,),), tails=(WEIGHT,))


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=30),
    st.lists(st.integers(0, 20), min_size=1, max_size=30),
    st.integers(1, 40),
)
def test_merged_tails_are_the_largest_values_of_both(
    left: list[int], right: list[int], kept: int
) -> None:
    parts = []
    for values in (left, right):
        whole = exact_moments({WEIGHT: np.array(values, dtype=float)}, weight_needs())
        parts.append(replace(whole, tails={WEIGHT: whole.tails[WEIGHT][:kept]}))
    tail = pool_moments(parts).tails[WEIGHT]
    expected = sorted([*left, *right], reverse=True)
    assert tail.tolist() == expected[: len(tail)]
    assert len(tail) >= min(kept, len(expected), max(map(len, (left, right))))


# ------------------------------------------------------------------ which logs help


def test_leaving_a_logger_out_equals_a_log_without_it(engine: Engine) -> None:
    table = pq.read_table(digits_path())
    log = replace(digits_log(), source=table.take(pa.array(np.arange(0, len(table), 7))))
    found = evaluate(log, TARGETS, engine=engine, which_logs=True)["candidate"].diagnosis
    assert set(found.without) == {"small", "medium", "large"}
    for left, errors in found.without.items():
        others = pa.array([str(label) != left for label in frame_of(log)["policy"].to_pylist()])
        rest = replace(
            log,
            source=frame_of(log).filter(others),
            propensities={k: v for k, v in log.by_label.items() if k != left},
        )
        expected = evaluate(rest, TARGETS, ["balanced", "calibrated"])["candidate"].estimates
        for name, error in errors.items():
            assert error == pytest.approx(expected[name].std_error, rel=1e-9)


@pytest.mark.parametrize("roles", [{}, {"cluster": "user"}, {"on_fault": "drop"}])
def test_leaving_out_each_logger_takes_one_pass(
    roles: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = replace(drawn(12), **roles)
    users = pa.array(np.arange(len(frame_of(log))) // 3)
    table = frame_of(log).append_column("user", users)
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=50)
    log = replace(log, source=tmp_path / "log.parquet")
    read, reads = Reader.__call__, []

    def counted(reader: Reader, piece: Any, names: Sequence[str]) -> Any:  # noqa: ANN401 - tables
        reads.append("reward" in names)
        return read(reader, piece, names)

    monkeypatch.setattr(Reader, "__call__", counted)
    evaluate(log, CANDIDATE)
    before = sum(reads)
    found = evaluate(log, CANDIDATE, which_logs=True)["target"].diagnosis
    more = sum(reads) - 2 * before
    assert more == 2  # of two loggers; a clean log has no rows to drop
    in_memory = replace(log, source=pq.read_table(tmp_path / "log.parquet"))
    expected = evaluate(in_memory, CANDIDATE, which_logs=True)["target"].diagnosis
    for left, errors in found.without.items():
        assert errors == pytest.approx(expected.without[left], rel=1e-12)


def test_a_log_that_cannot_be_done_without_leaves_an_endless_error() -> None:
    log = toy("T3").draw(np.random.default_rng(11))
    without = evaluate(log, CANDIDATE, which_logs=True)["target"].diagnosis.without
    assert without
    assert all(math.isinf(e) for errors in without.values() for e in errors.values())


def test_large_logs_are_read_again_on_request_only() -> None:
    log = drawn(12)
    assert evaluate(log, CANDIDATE, which_logs=False)["target"].diagnosis.without == {}
    many = {f"t{k}": f"{TARGET_COLUMN} * {k} / 3000" for k in (1, 2)}
    asked = evaluate(log, many, ["balanced"], which_logs=True)
    assert set(asked["t2"].diagnosis.without) == {"1", "2"}


# ------------------------------------------------------------------ how it is shown


def test_findings_come_gravest_first_and_lines_stay_within_80_columns() -> None:
    log = drawn(2)
    small = column(log, "propensity_0") / 100
    own = np.where(column(log, "logger") == "1", small, column(log, "propensity"))
    found = evaluate(changed(log, propensity_0=small, propensity=own), CANDIDATE)
    order = [str(w["severity"]) for w in found.warnings]
    assert order == sorted(order, key=("alarm", "warning", "note").index)
    assert order[0] == "alarm"
    assert max(map(len, str(found).splitlines())) <= 80
    text = evaluate(digits_log(), TARGETS).to_text()
    assert max(map(len, text.splitlines())) <= 80
    titles = ("estimator", "divergence", "tail", "agreement")
    places = [text.index(title) for title in titles]
    assert places == sorted(places)


def test_every_finding_says_what_to_do() -> None:
    log = drawn(2)
    small = column(log, "propensity_0") / 100
    own = np.where(column(log, "logger") == "1", small, column(log, "propensity"))
    found = evaluate(changed(log, propensity_0=small, propensity=own), CANDIDATE)
    assert all(f.advice and f.message.endswith(".") for f in found["target"].findings)


def test_json_has_the_diagnostics_and_only_finite_numbers() -> None:
    entry = json.loads(evaluate(drawn(1), CANDIDATE, which_logs=True).to_json())["targets"][0]
    logger = entry["loggers"][0]
    names = {"divergence", "effective_rows", "mean_weight", "largest_weight", "mean_weight_z"}
    names |= {"mean_weight_p", "largest_share", "unsupported", "tail_index", "tail_discrete"}
    names |= {"value", "std_error", "relative_rows", "relative_divergence", "best_share"}
    names |= {"column_value", "column_z", "balanced_std_error_without"}
    assert names <= set(logger)
    assert logger["tail_discrete"] is True  # two contexts, three actions
    assert {c["check"] for c in entry["checks"]} >= {"drift", "hausman", "mean-weight"}
    assert 0 < entry["gamma"] <= 1


def test_the_balanced_weights_have_a_share_and_a_tail() -> None:
    mixed = evaluate(digits_log(), TARGETS)["candidate"].mixture
    assert mixed is not None
    assert mixed.tail is not None
    assert not mixed.tail.discrete
    assert not mixed.tail.heavy
    view = exact_view(toy("T2"))
    assert pool_moments(view.values()).max(BALANCED_WEIGHT) == pytest.approx(
        0.7 / 0.44, rel=1e-12
    )


def test_every_weight_is_counted_in_its_bin() -> None:
    weights = [0.0, 0.0, 1.0, 1.4, 1.5, 3.0, 0.2, 1e-30]
    table = pa.table(
        {
            "logger": ["a"] * 8,
            "reward": [1.0] * 8,
            "p": [0.25] * 8,
            "t": [0.25 * w for w in weights],
            "user": range(8),
        }
    )
    own = {"a": "p"}
    for cluster in (None, "user"):
        log = Log(table, logger="logger", reward="reward", propensities=own, cluster=cluster)
        found = evaluate(log, {"target": "t / 3"}, "naive")["target"]
        expected = [(0.0, 0.0, 2), (0.0, 1.5 * 2.0**-64, 1), (0.0625, 0.09375, 1)]
        expected += [(0.25, 0.375, 1), (0.375, 0.5, 1), (0.5, 0.75, 1), (1.0, 1.5, 1)]
        assert found.mixture is not None
        for overlap in (found.loggers["a"], found.mixture):
            assert [(b.lower, b.upper, b.rows) for b in overlap.histogram] == expected
            told = overlap.to_dict()["histogram"]
            assert told == [
                {"lower": low, "upper": high, "rows": n} for low, high, n in expected
            ]


def test_an_engine_that_counts_no_weights_leaves_the_histogram_empty() -> None:
    log = log_of(random_table(np.random.default_rng(5), {"a": 20, "b": 20}))
    found = evaluate(log, {"target": "t"}, "naive", engine=Reference())["target"]
    assert found.loggers["a"].histogram == ()
    assert found.loggers["a"].to_dict()["histogram"] == []
