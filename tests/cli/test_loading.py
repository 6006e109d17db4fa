"""Policies named on the command line: objects, models in files, pickles with `--trust`."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import joblib
import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from skops import io as skops

from poolwise import Log, evaluate
from poolwise.cli.loading import named_policy, pairs
from poolwise.errors import MissingExtraError, UsageError
from poolwise.log.adapters import as_policy
from poolwise.log.policy import Batch
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BATCH = Batch(np.array([0, 1, 1]), {"x": np.array([0.0, 1.0, 2.0])})
MODEL = LogisticRegression().fit([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])
SOURCE = """
import numpy as np

half = 0.5
table = {0: 0.25, 1: 0.75}
text = "not a number"

def rule(batch):
    return np.where(batch.action == 1, 0.9, 0.1)

def build():
    return rule

def broken():
    raise RuntimeError("no model today")

class Rule:
    def prob(self, batch):
        return rule(batch)

class Needs:
    def __init__(self, path):
        self.path = path

class kinds:
    rule = Rule()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to a folder with a module; remove the module afterwards."""
    (tmp_path / "my_policies.py").write_text(SOURCE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def probabilities(text: str, *, trust: bool = False) -> list[float]:
    policy = as_policy(named_policy(text, trust=trust))
    return [float(value) for value in policy.prob(BATCH)]


@pytest.mark.parametrize("name", ["rule", "build", "Rule", "kinds.rule"])
@pytest.mark.usefixtures("here")
def test_an_object_is_named_by_its_module_and_attribute(name: str) -> None:
    assert probabilities(f"my_policies:{name}") == [0.1, 0.9, 0.9]


@pytest.mark.usefixtures("here")
def test_numbers_and_mappings_are_policies_too() -> None:
    assert named_policy("my_policies:half") == pytest.approx(0.5)
    assert probabilities("my_policies:table") == [0.25, 0.75, 0.75]


@pytest.mark.parametrize(
    "text",
    [
        "p_candidate",
        "least(p, 1)",
        "p::double",
        "case when x = 'a:b' then 1 else 0 end",
        '"a:b"',
        "list[1:2]",
        "my_policies",
        "my_policies : rule",
        "my_policies:",
        "my_policies:rule + 1",
        "my_policies:rule::double",
        ":rule",
        "0.5",
        "'12:30'",
        "logs.p_v1",
        "{'a': 1}.a",
    ],
)
@pytest.mark.usefixtures("here")
def test_everything_else_is_left_to_sql(text: str) -> None:
    assert named_policy(text) == text
    assert "my_policies" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        "nowhere_at_all:rule",
        "my_policies.inner:rule",
        "my_policies:rul",
        "my_policies:kinds.rul",
        "my_policies:broken",
        "my_policies:Needs",
        "my_policies:np",
        "fails:rule",
        "leaves:rule",
        "lacks:rule",
    ],
)
def test_a_name_that_leads_nowhere_is_one_message(text: str, here: Path) -> None:
    (here / "fails.py").write_text("raise ValueError('on purpose')", "utf-8")
    (here / "leaves.py").write_text("raise SystemExit(3)", "utf-8")
    (here / "lacks.py").write_text("import a_package_nobody_has", "utf-8")
    with refused(UsageError):
        named_policy(text)


def test_a_file_in_the_folder_cannot_stand_in_for_a_package(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    (here / "colorsys.py").write_text("def rule(batch): return 'mine'", "utf-8")
    with refused(UsageError):
        named_policy("colorsys:rule")


def test_a_model_of_scikit_learn_comes_from_skops(here: Path) -> None:
    skops.dump(MODEL, here / "model.skops")
    batch = BATCH.columns["x"].reshape(-1, 1)
    expected = MODEL.predict_proba(batch)[np.arange(3), BATCH.action]
    assert probabilities("model.skops") == pytest.approx(expected.tolist(), rel=1e-12)
    assert probabilities(str(here / "model.skops")) == pytest.approx(expected.tolist())


def leave_a_trace(values: object) -> object:
    return values


def test_types_that_skops_does_not_know_are_listed_and_refused(here: Path) -> None:
    model = make_pipeline(FunctionTransformer(leave_a_trace), LogisticRegression())
    skops.dump(model.fit([[0.0], [1.0]], [0, 1]), here / "model.skops")
    with refused(UsageError):
        named_policy("model.skops")
    assert len(probabilities("model.skops", trust=True)) == 3


class Bomb:
    """An object that runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("ending", ["pkl", "pickle", "joblib", "PKL", "dill", "cloudpickle"])
def test_a_pickle_is_never_loaded_without_trust(ending: str, here: Path) -> None:
    path = here / f"model.{ending}"
    path.write_bytes(pickle.dumps(Bomb()))
    with refused(UsageError):
        named_policy(str(path))
    assert not (here / "exploded").exists()
    with refused(UsageError):  # it loads, and is not a policy
        named_policy(str(path), trust=True)
    assert (here / "exploded").exists()


def test_a_pickle_with_another_name_is_not_loaded_either(here: Path) -> None:
    for name in ("model.skops", "model.csv", "model", "model.npy"):
        (here / name).write_bytes(pickle.dumps(Bomb()))
        try:
            assert named_policy(name) == name
        except UsageError as error:
            assert "skops can read" in str(error)  # noqa: PT017 - either is right
    with zipfile.ZipFile(here / "model.skops", "w") as archive:
        archive.writestr("schema.json", '{"__class__": "system", "__module__": "os"}')
    with refused(UsageError):
        named_policy("model.skops", trust=True)
    assert not (here / "exploded").exists()


def test_trust_loads_pickles(here: Path) -> None:
    (here / "model.pkl").write_bytes(pickle.dumps(MODEL))
    joblib.dump(MODEL, here / "model.joblib")
    skops.dump(MODEL, here / "model.skops")
    expected = probabilities("model.skops")
    assert probabilities("model.pkl", trust=True) == expected
    assert probabilities("model.joblib", trust=True) == expected


@pytest.mark.parametrize("name", ["no.skops", "no.pkl", "no.joblib"])
@pytest.mark.usefixtures("here")
def test_a_file_that_is_not_there_is_named(name: str) -> None:
    with refused(UsageError):
        named_policy(name, trust=True)


@pytest.mark.parametrize("content", [b"", b"not a model", b"PK\x03\x04"])
def test_a_broken_file_is_one_message(content: bytes, here: Path) -> None:
    for name in ("model.skops", "model.pkl", "model.joblib"):
        (here / name).write_bytes(content)
        with refused(UsageError):
            named_policy(name, trust=True)


def test_a_missing_package_is_named_with_its_extra(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skops.dump(MODEL, here / "model.skops")
    monkeypatch.setitem(sys.modules, "skops", None)
    with refused(MissingExtraError):
        named_policy("model.skops")
    (here / "model.joblib").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "joblib", None)
    with refused(MissingExtraError):
        named_policy("model.joblib", trust=True)


def test_a_named_policy_evaluates_like_the_object(here: Path) -> None:
    rng = np.random.default_rng(40)
    table = pa.table(
        {
            "action": rng.integers(0, 2, 200),
            "x": rng.normal(size=200),
            "reward": rng.random(200),
            "p": np.full(200, 0.5),
        }
    )
    log = Log(table, reward="reward", propensity="p", action="action", context=["x"])
    skops.dump(MODEL, here / "model.skops")
    named = evaluate(log, {"new": named_policy("model.skops")}, "naive")["new"]
    given = evaluate(log, {"new": MODEL}, "naive")["new"]
    assert named.estimates["naive"].value == given.estimates["naive"].value


def test_naming_a_column_imports_no_model_library() -> None:
    program = (
        "import sys; from poolwise.cli.loading import named_policy; named_policy('p_new');"
        "print([m for m in ('skops', 'sklearn', 'joblib', 'duckdb') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"


def test_the_bomb_of_these_tests_works(here: Path) -> None:
    pickle.load(io.BytesIO(pickle.dumps(Bomb())))  # noqa: S301 - it proves the tests above
    assert (here / "exploded").exists()


TABLE = '{"0": 0.25, "1": 0.75}'


def test_a_table_is_json_on_the_command_line_or_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(TABLE)
    for text in (TABLE, str(path)):
        policy = as_policy(named_policy(text))
        assert policy.prob(BATCH).tolist() == [0.25, 0.75, 0.75]
    texts = [f"new={TABLE},old=least(p, 1)", 'other={"a,b": 0.5, "}\\"": 0.5}']
    split = pairs(texts, "--target")
    assert split["new"] == TABLE
    assert split["old"] == "least(p, 1)"
    assert split["other"] == '{"a,b": 0.5, "}\\"": 0.5}'


@pytest.mark.parametrize("text", ["{}", '{"a": "x"}', "{oops}", '{"a": 0.5}', '{"a": true}'])
def test_a_table_that_is_none_is_one_message(text: str) -> None:
    with refused(UsageError):
        named_policy(text)
