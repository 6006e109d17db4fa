"""Terms keep their identity in other processes, where texts have other hashes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

from poolwise.moments.terms import BALANCED_REWARD, REWARD, WEIGHT, Needs, unite

LOOK_UP = """
import pickle, sys
from poolwise.moments.terms import BALANCED_REWARD
print(pickle.loads(bytes.fromhex(sys.argv[1])) in {BALANCED_REWARD})
"""


def test_a_term_that_was_sent_to_another_process_is_found_there() -> None:
    assert hash(BALANCED_REWARD) == hash(BALANCED_REWARD)  # computed before it is sent
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


def test_the_union_has_each_term_of_every_kind_once() -> None:
    for kind in ("means", "extremes", "tails", "histograms", "slices", "powers"):
        parts: list[dict[str, Any]] = [{kind: (WEIGHT,)}, {kind: (REWARD, WEIGHT)}]
        first, second = (Needs(**part) for part in parts)
        assert unite([first, second]) == second
    groups = ((REWARD, WEIGHT), (REWARD,))
    assert unite([Needs(groups=groups[:1]), Needs(groups=groups)]).groups == groups
