"""Honesty: does the reported interval cover the learned policy's value, and is "better" true?

Settings with logs of 2,000 rows: click-like rewards (A), rewards that do not depend on the
action, so that nothing can be gained (B), and clean rewards with an adversarial logger (C).
The log's contexts are drawn from the very examples that give the exact value.

Run: python -m benchmarks.honesty [REPLICATIONS]; writes docs/figures/honesty.csv and the table
in docs/learning.md.  Replications that the CSV file has are not computed again.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.bandits import Bandit, draw
from poolwise.learning.learn import learn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
PAGE = FIGURES.parent / "learning.md"
START, END = "<!-- honesty: begin -->", "<!-- honesty: end -->"
ROWS, REPLICATIONS = 2_000, 200
FIRST = 1_000  # seed of the first log; logs with lower seeds were used to choose the method
COLUMNS = ("setting", "scheme", "seed", "truth", "value", "lower", "upper", "better", "right")
SETTINGS: dict[str, Callable[[int], Bandit]] = {
    "A, clicks": lambda k: draw("satimage", 2 * k, ROWS, noisy=True, on_log=True),
    "B, flat": lambda k: draw("satimage", 2 * k, ROWS, noisy=True, flat=0.09, on_log=True),
    "C, clean": lambda k: draw("pendigits", 2 * k + 1, ROWS, noisy=False, on_log=True),
}
SCHEMES: dict[str, dict[str, float]] = {"5 folds": {}, "holdout 30%": {"holdout": 0.3}}
Line = dict[str, str]


def replicate(setting: str, scheme: str, seed: int) -> Line:
    """Learn from one log, and compare the report with the truth."""
    bandit = SETTINGS[setting](seed)
    learned = learn(bandit.log(), **SCHEMES[scheme])  # type: ignore[arg-type]
    truth = bandit.value_of(learned.policy)
    interval = learned.evaluation[learned.name].intervals["calibrated"]
    numbers = {
        "truth": truth,
        "value": learned.estimate.value,
        "lower": interval.lower,
        "upper": interval.upper,
    }
    return {
        "setting": setting,
        "scheme": scheme,
        "seed": str(seed),
        **{name: f"{number:.6f}" for name, number in numbers.items()},
        "better": str(int(learned.better)),
        "right": str(int(truth > bandit.best_logger + 1e-12)),
    }


def replicated(path: Path, replications: int) -> list[Line]:
    """Run the replications that the file lacks, and append them to it."""
    lines: list[Line] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    done = {(line["setting"], line["scheme"], line["seed"]) for line in lines}
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not lines:
            writer.writeheader()
        for scheme in SCHEMES:
            for seed in range(FIRST, FIRST + replications):
                for setting in SETTINGS:
                    if (setting, scheme, str(seed)) not in done:
                        lines.append(replicate(setting, scheme, seed))
                        writer.writerow(lines[-1])
                        file.flush()
    return lines


def table(lines: Sequence[Line]) -> str:
    """Return coverage, bias, half-width and verdicts as Markdown."""
    header = "setting | scheme | logs | true value | bias | coverage of 95% | half-width"
    text = [f"| {header} | rightly better | wrongly better |", f"|---|---|{'---:|' * 7}"]
    for setting in SETTINGS:
        for scheme in SCHEMES:
            mine = [x for x in lines if (x["setting"], x["scheme"]) == (setting, scheme)]
            if mine:
                text.append(f"| {setting} | {scheme} | {len(mine)} | {_summary(mine)} |")
    return "\n".join(text)


def _summary(lines: Sequence[Line]) -> str:
    truth, value, lower, upper, better, right = (
        np.array([float(line[name]) for line in lines])
        for name in ("truth", "value", "lower", "upper", "better", "right")
    )
    covered = ((lower <= truth) & (truth <= upper)).mean()
    return (
        f"{truth.mean():.4f} | {(value - truth).mean():+.4f} | {covered:.3f} | "
        f"{(upper - lower).mean() / 2:.4f} | {(better * right).mean():.3f} | "
        f"{(better * (1 - right)).mean():.3f}"
    )


def main() -> None:
    """Replicate, and write the CSV file and the table."""
    replications = int(sys.argv[1]) if len(sys.argv) > 1 else REPLICATIONS
    lines = replicated(FIGURES / "honesty.csv", replications)
    before, _, rest = PAGE.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n{table(lines)}\n{END}{after}", encoding="utf-8")
    print(table(lines))


if __name__ == "__main__":
    main()
