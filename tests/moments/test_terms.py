"""Terms keep their identity in other processes, where texts have other hashes."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from poolwise.moments.terms import BALANCED_REWARD, REWARD, WEIGHT, Factor, Needs, Term, unite

LOOK_UP = """
import pickle, sys
from poolwise.moments.terms import BALANCED_REWARD
print(pickle.loads(bytes.fromhex(sys.argv[1])) in {BALANCED_REWARD})
"""


def test_a_term_that_was_sent_to_another_process_is_found_there() -> None:
    sent = pickle.dumps(BALANCED_REWARD).hex()
    for seed in ("1", "2"):  # one of them at least is not that of this process
        done = subprocess.run(
            [sys.executable, "-c", LOOK_UP, sent],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert done.stdout == "True\n"


def test_terms_of_the_same_factors_are_one_object() -> None:
    assert Term((Factor("reward"),)) is REWARD
    assert pickle.loads(pickle.dumps(BALANCED_REWARD)) is BALANCED_REWARD  # noqa: S301 - our own
    assert copy.deepcopy(WEIGHT) is WEIGHT
    assert REWARD * WEIGHT is WEIGHT * REWARD
    assert Term((Factor("reward"), Factor("reward"))) is not REWARD


def test_threads_that_make_a_term_at_once_get_the_same_one() -> None:
    start = Barrier(8)

    def make(target: str) -> Term:
        start.wait()
        return Term((Factor("weight", target=target),))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for number in range(100):
                made = list(pool.map(make, [f"t{number}"] * 8))
                assert len(set(map(id, made))) == 1
    finally:
        sys.setswitchinterval(interval)


def test_a_term_without_a_reference_is_forgotten() -> None:
    term = Term((Factor("weight", target="only here"),))
    gone = weakref.ref(term)
    del term
    gc.collect()
    assert gone() is None


def test_the_union_has_each_term_of_every_kind_once() -> None:
    for kind in ("means", "extremes", "tails", "histograms", "slices", "powers"):
        parts: list[dict[str, Any]] = [{kind: (WEIGHT,)}, {kind: (REWARD, WEIGHT)}]
        first, second = (Needs(**part) for part in parts)
        assert unite([first, second]) == second
    groups = ((REWARD, WEIGHT), (REWARD,))
    assert unite([Needs(groups=groups[:1]), Needs(groups=groups)]).groups == groups
