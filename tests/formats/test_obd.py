"""The Open Bandit Dataset as published: folders of CSV files by policy and campaign."""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from sklearn.tree import DecisionTreeClassifier

from poolwise import evaluate
from poolwise.errors import MissingColumnError, SourceError, UsageError
from poolwise.formats.open_bandit import from_obd, uniform_item
from tests.support.messages import refused

if TYPE_CHECKING:
    from poolwise.log.log import Log

HERE = Path(os.environ.get("POOLWISE_DATA") or Path(__file__).parents[2] / "../shared/data")
SMALL = HERE / "obd_small.parquet"
with_data = pytest.mark.skipif(
    not SMALL.is_file(),
    reason="obd_small.parquet is not here: set POOLWISE_DATA to its folder",
)


def write(folder: Path, policy: str, campaign: str, rows: pa.Table) -> Path:
    """One file of the data set, with the nameless index that pandas puts in front."""
    path = folder / policy / campaign / f"{campaign}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    pcsv.write_csv(rows.add_column(0, "", pa.array(range(len(rows)))), path)
    return path


def small(propensity: list[float], click: list[int]) -> pa.Table:
    rows = len(click)
    return pa.table(
        {
            "timestamp": ["2019-11-24 00:00:00.000000+00:00"] * rows,
            "item_id": list(range(rows)),
            "position": [1] * rows,
            "click": click,
            "propensity_score": propensity,
            "user_feature_0": ["81ce12"] * rows,
            "user-item_affinity_0": [0.0] * rows,
        }
    )


def published(folder: Path) -> Path:
    """Write two policies of the campaign of 34 items, and the file of items."""
    write(folder, "random", "men", small([1 / 34, 1 / 34], [1, 0]))
    write(folder, "bts", "men", small([0.5, 0.25], [0, 1]))
    (folder / "random" / "men" / "item_context.csv").write_text("item_id\n0\n", "utf-8")
    return folder


def naive(log: Log, target: str) -> float:
    return evaluate(log, target, "naive")["target"].estimates["naive"].value


def test_loggers_are_called_as_their_folders(tmp_path: Path) -> None:
    log = from_obd(published(tmp_path))
    found = evaluate(log, uniform_item("men"), "naive")
    assert found.rows == {"bts": 2, "random": 2}
    # weights 1 and 1 of random, 2/34 and 4/34 of bts; clicks in the first and the last
    expected = (1 + Fraction(4, 34)) / 4
    assert found["target"].estimates["naive"].value == pytest.approx(float(expected), rel=1e-12)


def test_context_is_position_and_user(tmp_path: Path) -> None:
    assert from_obd(published(tmp_path)).context == ("position", "user_feature_0")
    chosen = ["user-item_affinity_0"]
    assert from_obd(tmp_path, context=chosen).context == tuple(chosen)


def test_one_file_is_one_logger(tmp_path: Path) -> None:
    published(tmp_path)
    log = from_obd(tmp_path / "random" / "men" / "men.csv")
    assert log.crossed  # alone, random is known everywhere
    assert evaluate(log, uniform_item("men"), "naive").rows == {"random": 2}
    assert from_obd(tmp_path, loggers=["bts"]).propensities is None


def test_random_is_known_in_every_row_and_the_other_is_not(tmp_path: Path) -> None:
    log = from_obd(published(tmp_path))
    assert log.propensities == {"bts": None, "random": "1.0 / 34"}
    assert not log.crossed


def test_the_campaign_is_asked_for_where_there_are_several(tmp_path: Path) -> None:
    write(published(tmp_path), "bts", "women", small([0.5], [1]))
    with refused(UsageError):
        from_obd(tmp_path)
    log = from_obd(tmp_path, campaign="women")
    assert naive(log, uniform_item("women")) == pytest.approx(2 / 46, rel=1e-12)
    with refused(UsageError):
        from_obd(tmp_path, campaign="all")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with refused(SourceError):
        from_obd(tmp_path / "nowhere")
    published(tmp_path)
    with refused(UsageError):
        from_obd(tmp_path, loggers=["randm"])
    with refused(UsageError):
        from_obd(tmp_path, loggers="bts")
    with refused(UsageError):
        uniform_item("kids")
    write(tmp_path, "bts", "men", small([0.5], [1]).drop_columns(["click"]))
    with refused(MissingColumnError):
        from_obd(tmp_path)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small version of the real data, as the files it was published in."""
    folder = tmp_path_factory.mktemp("obd")
    table = pq.read_table(SMALL)
    for policy in ("random", "bts"):
        chosen = pc.and_(pc.equal(table["logger"], policy), pc.equal(table["campaign"], "men"))
        write(folder, policy, "men", table.filter(chosen).drop_columns(["logger", "campaign"]))
    return folder


@with_data
def test_the_real_log_of_random_earns_what_was_counted(real: Path) -> None:
    """46 clicks in 10,000 rows, each of weight 1."""
    log = from_obd(real, loggers=["random"])
    assert naive(log, uniform_item("men")) == pytest.approx(46 / 10_000, rel=1e-9)


@with_data
def test_both_real_logs_agree_with_the_table_they_come_from(real: Path) -> None:
    table = pq.read_table(SMALL)
    rows = table.filter(pc.equal(table["campaign"], "men"))
    weight = 1 / 34 / rows["propensity_score"].to_numpy()
    expected = (rows["click"].to_numpy() * weight).mean()
    assert naive(from_obd(real), uniform_item("men")) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@with_data
def test_the_mixture_of_the_real_logs_can_be_estimated(real: Path) -> None:
    """Random's own log is the truth up to chance; the mixed estimate must agree with it."""
    log = replace(from_obd(real), context=("position",))
    mixed = replace(log, estimate_mixture=DecisionTreeClassifier(min_samples_leaf=200))
    (found,) = evaluate(mixed, uniform_item("men"), "balanced")["target"].estimates.values()
    own = from_obd(real, loggers=["random"])
    truth = evaluate(own, uniform_item("men"), "naive")["target"].estimates["naive"]
    spread = (found.variance + truth.variance) ** 0.5
    assert abs(found.value - truth.value) < 4 * spread  # 1 in 16,000 by chance
