"""Make the bundled search log: clicks on the lists of three rankers, with a known truth.

Each request has twelve documents of unknown relevance, in ten of which a list ends.  Three
deterministic rankers sort them by scores of different quality, and so does a candidate that
was never live.  Users examine positions less and less, and click what they examine in
proportion to its relevance.  The true clicks per request of all rankers, over many requests,
are in the metadata of the file.

Run: .venv/bin/python scripts/make_search_log.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

OUT = Path(__file__).parent.parent / "src" / "poolwise" / "data" / "search.parquet"
SEED = 20190211  # the first day of WSDM 2019
REQUESTS = {"classic": 1_800, "learned": 900, "fresh": 300}
NOISE = {"classic": 1.2, "learned": 0.8, "fresh": 1.0, "candidate": 0.6}  # of the scores
POSITIONS, DOCUMENTS = 10, 12
EXAMINED = np.append(0.0, np.arange(1, POSITIONS + 1) ** -0.8)
TRUTH_REQUESTS, PART = 1_000_000, 50_000

Array = NDArray[np.float64]
Ranks = NDArray[np.int64]


def main() -> None:
    """Write the file and print a summary."""
    rng = np.random.default_rng(SEED)
    number = sum(REQUESTS.values())
    ranker = rng.permutation(np.repeat(list(REQUESTS), list(REQUESTS.values())))
    mobile = rng.integers(2, size=number) == 1
    relevance, ranks = draw(mobile, rng)
    own = np.select(
        [(ranker == name)[:, None] for name in REQUESTS], [ranks[n] for n in REQUESTS]
    )
    clicked = rng.random(own.shape) < relevance * EXAMINED[own]
    request, document = np.nonzero(own)
    order = np.lexsort((own[request, document], request))
    request, document = request[order], document[order]
    table = pa.table(
        {
            "request": pa.array(request, pa.int32()),
            "device": pa.array(
                np.where(mobile, "mobile", "desktop")[request]
            ).dictionary_encode(),
            "ranker": ranker[request],
            "document": pa.array(document, pa.int8()),
            "position": pa.array(own[request, document], pa.int8()),
            "click": pa.array(clicked[request, document], pa.int8()),
            **{
                f"rank_{n}": pa.array(r[request, document], pa.int8()) for n, r in ranks.items()
            },
        }
    )
    about = {
        "truth": truth(),
        "examined": dict(enumerate(EXAMINED[1:].tolist(), 1)),
        "made_by": "scripts/make_search_log.py",
    }
    table = table.replace_schema_metadata({"poolwise": json.dumps(about)})
    pq.write_table(table, OUT, compression="zstd", compression_level=19)
    print(f"{OUT.name}: {len(table):,} rows, {OUT.stat().st_size:,} bytes, {about['truth']}")


def draw(mobile: NDArray[np.bool_], rng: np.random.Generator) -> tuple[Array, dict[str, Ranks]]:
    """Return the relevance of documents, and their ranks under each ranker."""
    worth = rng.normal(size=(len(mobile), DOCUMENTS))
    relevance = np.clip(0.18 * np.exp(0.8 * worth) * np.where(mobile, 0.8, 1.2)[:, None], 0, 1)
    ranks = {}
    for name, noise in NOISE.items():
        score = worth + noise * rng.normal(size=worth.shape)
        rank = 1 + np.argsort(np.argsort(-score, axis=1), axis=1)
        ranks[name] = np.where(rank <= POSITIONS, rank, 0)
    return relevance, ranks


def truth() -> dict[str, float]:
    """Return the clicks per request of each ranker."""
    rng, total = np.random.default_rng(SEED + 1), dict.fromkeys(NOISE, 0.0)
    for _ in range(TRUTH_REQUESTS // PART):
        relevance, ranks = draw(rng.integers(2, size=PART) == 1, rng)
        for name, rank in ranks.items():
            total[name] += float((relevance * EXAMINED[rank]).sum())
    return {name: round(clicks / TRUTH_REQUESTS, 4) for name, clicks in total.items()}


if __name__ == "__main__":
    main()
