"""The sweep: ``python -m tests.sweep [SECONDS [SEED]]`` prints what it finds.

It puts combinations of features to poolwise until all pairs of values were answered or
refused, and goes on with triples until the time is over.  Then it draws larger logs, and the
pulls of every kind of number.  The exit status is 1 if a result is wrong or if the pulls of a
kind of number are not those of right numbers.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.sweep import clicks
from tests.sweep.features import Cover
from tests.sweep.pulls import pull_lines
from tests.sweep.run import Tally, line, run

SECONDS = 600.0  # of combinations
CLICKS = 60  # combinations of click logs
SLOW = 30.0  # seconds after which a line of progress is printed


def say(*words: str) -> None:
    """Write a line at once."""
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def main(seconds: float = SECONDS, seed: int = 0) -> int:
    """Run the sweep and print its findings; return the exit status."""
    tally, cover = Tally(), Cover(np.random.default_rng(seed))
    begun = said = time.monotonic()
    pairs_done = 0.0
    while (now := time.monotonic()) < begun + seconds or not pairs_done:
        combination = cover.propose()
        if cover.size > 2 and not pairs_done:
            pairs_done = now - begun
            say(f"all pairs after {len(tally.outcomes)} combinations, {pairs_done:.0f} s")
        outcome = run(combination)
        tally.add(outcome)
        cover.learn(combination, answered=outcome.kind != "refused")
        if outcome.kind == "wrong":
            say(line(outcome))
        if now > said + SLOW:
            said = now
            say(f"{len(tally.outcomes)} combinations, {len(cover.missing)} parts missing")
    counts = {kind: tally.count(kind) for kind in ("right", "refused", "wrong")}
    checked = sum(len(outcome.numbers) for outcome in tally.outcomes)
    say(f"{len(tally.outcomes)} combinations in {time.monotonic() - begun:.0f} s: {counts}")
    say(f"{checked:,} numbers compared with their truth")
    for kind, pulls in tally.pulls().items():
        if len(pulls) > 1:
            spread = f"mean {pulls.mean():.2f}, sd {pulls.std(ddof=1):.2f}"
            say(f"  {kind}: {len(pulls)} pulls, {spread}")
    for pair in cover.refused:
        say("refused in every combination:", " with ".join(f"{n}={v}" for n, v in pair))
    for reason, times in tally.reasons():
        say(f"refused {times} times: {reason}")
    off = [*tally.off(), *_clicks(seed), *_pulls(seed)]
    for text in off:
        say(f"off: {text}")
    return int(bool(counts["wrong"] or off))


def _clicks(seed: int) -> list[str]:
    """Put combinations about click logs; return those that are wrong."""
    with tempfile.TemporaryDirectory() as folder:
        choices = [clicks.propose(seed + k) for k in range(CLICKS)]
        found = [clicks.run(c, seed + k, Path(folder)) for k, c in enumerate(choices)]
    right = sum(f.kind == "right" for f in found)
    say(f"{CLICKS} combinations of click logs: {right} right")
    return [f"{f.choice}: {f.reason}" for f in found if f.kind == "wrong"]


def _pulls(seed: int) -> list[str]:
    """Draw larger logs; return the kinds of numbers whose pulls are wrong."""
    lines, wrong = pull_lines(seed=seed)
    say("pulls of larger logs:", *(f"\n  {text}" for text in lines))
    return wrong


if __name__ == "__main__":
    sys.exit(
        main(
            *(convert(word) for convert, word in zip((float, int), sys.argv[1:], strict=False))
        )
    )
