"""Compare the printed query of each dialect with a reviewed file.

`python -m tests.support.queries` rewrites the files in tests/engines/queries; a person reads
the difference before it is committed.  Other tests run the
query on DuckDB and PostgreSQL and compare the numbers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from poolwise.engines.saved_files import standalone_query
from poolwise.engines.warehouse import TITLES
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    OVERLAP,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Factor,
    Needs,
    Term,
    ratio,
    second_moment,
    unsupported_weight,
)
from tests.support.reference import log_of

FOLDER = Path(__file__).parents[1] / "engines" / "queries"
SHRUNK = [
    Term((Factor("balanced_weight", rule=rule, bound=2.0),))
    for rule in ("clip", "optimistic", "switch")
]
NEEDS = Needs(
    means=(REWARD, OVERLAP, *SHRUNK, *map(second_moment, "ab"), unsupported_weight("b")),
    groups=((WEIGHT, WEIGHTED_REWARD), (BALANCED_REWARD, BALANCED_WEIGHT, ratio("a"))),
    extremes=(WEIGHT,),
).bind("target")
OWN = Needs(groups=((WEIGHT, WEIGHTED_REWARD),)).bind("target")


def printed(dialect: str) -> str:
    """Two queries: every factor; and log-probabilities without bad rows."""
    log = log_of("x")
    logs = replace(log, propensities=None, log_probabilities=True, on_fault="drop")
    queries = [
        standalone_query(one, "my_log", {"target": "t"}, needs, dialect)
        for one, needs in ((log, NEEDS), (logs, OWN))
    ]
    return ";\n\n".join(queries) + ";\n"


def main() -> None:
    """Rewrite the files."""
    FOLDER.mkdir(exist_ok=True)
    for dialect in TITLES:
        (FOLDER / f"{dialect}.sql").write_text(printed(dialect), "utf-8")


if __name__ == "__main__":
    main()
