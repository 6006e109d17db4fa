"""Answer a question with the installed package, as `scripts/try_wheel.sh` runs it.

Run: python tests/support/installed.py
"""

from __future__ import annotations

import tempfile
from importlib.metadata import metadata
from pathlib import Path

import poolwise as pw
from poolwise.engines.compiled import library
from poolwise.formats.labelled import digits_path, digits_truth


def main() -> None:
    """Evaluate the bundled log, and write its report."""
    installed = metadata("poolwise")
    assert installed["Version"] == pw.__version__
    assert "site-packages" in pw.__file__, pw.__file__
    assert library() is not None
    log = pw.Log(digits_path(), logger="policy", reward="correct", propensities="p_{logger}")
    evaluation = pw.evaluate(log, {"candidate": "p_candidate"})
    result = evaluation["candidate"]
    assert f"{result.estimates['calibrated']}" == "0.6771 ± 0.0040"
    assert digits_truth()["candidate"] in result.intervals["calibrated"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.html")
        evaluation.save(path)
        assert path.stat().st_size > 100_000


if __name__ == "__main__":
    main()
