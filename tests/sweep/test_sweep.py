"""A sample of the sweep, and proof that its judge notices wrong results."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.sweep.answers import answer
from tests.sweep.ask import Wrong, make_question
from tests.sweep.features import FEATURES, PLAIN, Cover, all_parts, fill, parts, sample, shown
from tests.sweep.judge import judge
from tests.sweep.pulls import LOGS, draw_pulls, judge_pulls
from tests.sweep.rankings import make_ranking_world
from tests.sweep.run import Tally, line, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sweep.features import Combination

SAMPLED, CHUNKS = 100, 4
PULLS = 16  # logs
SERVERS = ("spark", "postgres")


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_sampled_combinations_are_right_or_refused(chunk: int) -> None:
    tally = Tally()
    for combination in sample(1, SAMPLED, SERVERS)[chunk::CHUNKS]:
        tally.add(run(combination))
    assert [line(o) for o in tally.outcomes if o.kind == "wrong"] == []
    assert tally.count("right") > SAMPLED / CHUNKS / 3  # refusals alone would prove nothing


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", ["spark", pytest.param("postgres", marks=pytest.mark.system)]
)
def test_servers_are_right_or_refused(source: str) -> None:
    if source == "spark":
        pytest.importorskip("pyspark")
    rng = np.random.default_rng(2)
    outcomes = [run(fill(rng, {"source": source}, 0.6)) for _ in range(8)]
    assert [line(o) for o in outcomes if o.kind == "wrong"] == []
    assert any(o.kind == "right" for o in outcomes)


def with_features(**values: str) -> Combination:
    assert all(value in FEATURES[name] for name, value in values.items())
    return {**PLAIN, **values}


def spoil(result: Any, path: tuple[str | int, ...], change: float) -> None:  # noqa: ANN401 - nested
    """Add a number to one of a result."""
    for step in path[:-1]:
        result = result[step]
    result[path[-1]] += change


@pytest.mark.parametrize(
    ("features", "changes"),
    [
        (
            {},
            [
                (("targets", 0, "estimates", 0, "value"), 1e-07),
                (("targets", 1, "estimates", 1, "std_error"), 1e-05),
                (("targets", 0, "difference", "difference"), 0.2),
                (("targets", 0, "loggers", 0, "value"), 0.5),
                (("targets", 0, "estimates", 0, "shares", "v1"), 0.0001),
                (("loggers", 0, "mean_reward"), 1e-06),
                (("loggers", 0, "rows"), 1),
            ],
        ),
        (
            {"structure": "by"},
            [
                (("segments", "results", 0, "value"), 1e-07),
                (("segments", "results", 0, "difference", "difference"), 0.4),
                (("segments", "results", 0, "contrast", "difference"), 0.5),
            ],
        ),
        (
            {"structure": "period"},
            [
                (("targets", 0, "periods", 1, "value"), 0.4),
                (("targets", 0, "estimates", 0, "value"), 0.2),
            ],
        ),
        ({"structure": "whole"}, [(("targets", 0, "estimates", 0, "value"), 0.4)]),
        (
            {"verb": "compare"},
            [
                (("pairs", 0, "difference"), 0.2),
                (("targets", 0, "value"), 0.2),
            ],
        ),
        ({"measures": "again"}, [(("metrics", 1, "targets", 0, "value"), 1e-06)]),
        ({"measures": "ratio"}, [(("metrics", 1, "targets", 0, "value"), 0.2)]),
        ({"measures": "thresholds"}, [(("distribution", "thresholds", 0, "probability"), 0.2)]),
        ({"verb": "plan"}, [(("options", 0, "half_width_now"), 0.02)]),
        ({"verb": "watch"}, [(("lower",), 0.7)]),
        (
            {"verb": "learn"},
            [
                (("gains", 0, "value"), 0.4),
                (("evaluation", "targets", -1, "estimates", 0, "value"), 0.4),
            ],
        ),
        ({"structure": "zone"}, [(("targets", 0, "periods", 1, "rows"), 1)]),
        ({"structure": "struct"}, [(("targets", 1, "estimates", 0, "value"), 1e-07)]),
        (
            {"verb": "backtest"},
            [
                (("loggers", 0, "z"), 6.0),
                (("loggers", 1, "predicted"), 0.4),
            ],
        ),
        ({"verb": "backtested"}, [(("backtest", "loggers", 0, "earned"), 0.4)]),
        (
            {"structure": "cascade", "loggers": "narrow"},
            [(("targets", 0, "loggers", 1, "value"), 0.5)],
        ),
        ({"face": "command"}, [(("targets", 0, "estimates", 2, "value"), 1e-07)]),
    ],
)
def test_the_judge_notices_one_wrong_number(
    features: dict[str, str],
    changes: list[tuple[tuple[str | int, ...], float]],
    tmp_path: Path,
) -> None:
    asked = make_question(with_features(**features), 7, tmp_path)
    result = answer(asked)
    judge(asked, result)
    for path, change in changes:
        spoiled = deepcopy(result)
        spoil(spoiled, path, change)
        with pytest.raises(Wrong):
            judge(asked, spoiled)


def test_the_judge_notices_nan_and_silence(tmp_path: Path) -> None:
    asked = make_question(with_features(target="partly"), 7, tmp_path)
    result = answer(asked)
    judge(asked, result)
    with pytest.raises(Wrong, match="nothing says so"):
        judge(asked, {**result, "warnings": []})
    audit = {"code": "action-too-often", "severity": "alarm"}
    with pytest.raises(Wrong, match="found wrong"):
        judge(asked, {**result, "warnings": [*result["warnings"], audit]})
    result["targets"][0]["estimates"][0]["upper"] = float("nan")
    with pytest.raises(Wrong, match="NaN"):
        judge(asked, result)


@pytest.mark.slow
def test_pulls_of_larger_logs_are_those_of_right_numbers() -> None:
    found = draw_pulls({"structure": "by", "source": "frame"}, PULLS)
    assert {"value calibrated", "difference", "single log", "backtest"} <= set(found)
    assert {kind: judge_pulls(pulls) for kind, pulls in found.items()} == dict.fromkeys(
        found, ""
    )


def test_pulls_of_wrong_numbers_are_noticed() -> None:
    right = np.random.default_rng(3).normal(size=LOGS)
    assert judge_pulls(right) == ""
    assert judge_pulls(right + 0.5)
    assert judge_pulls(1.4 * right)
    assert judge_pulls(0.7 * right)
    assert judge_pulls(right[:PULLS] + 1.5)


@pytest.mark.parametrize("structure", ["independent", "cascade", "whole"])
def test_rankings_without_a_logger_s_items_have_less_mass(structure: str) -> None:
    narrow = with_features(structure=structure, loggers="narrow")
    world = make_ranking_world(np.random.default_rng(3), narrow)
    wide, few = list(world.counts)
    assert world.mass("new") == pytest.approx(1.0) == world.mass("new", wide)
    assert world.mass("new", few) < 1.0
    assert world.supported("new", wide) == pytest.approx(world.value("new"))
    parts = {i: world.supported("new", i) for i in (wide, few)}
    assert 0 < parts[few] < parts[wide]
    partly = with_features(structure=structure, target="partly")
    assert make_ranking_world(np.random.default_rng(3), partly).mass("new") < 1.0


def test_every_pair_is_proposed() -> None:
    cover = Cover(np.random.default_rng(0))
    met: set[object] = set()
    while cover.size == 2:
        combination = cover.propose()
        met.update(parts(combination, 2))
        cover.learn(combination, answered=True)
    assert set(all_parts(2)) <= met
    assert shown(PLAIN) == "plain"
