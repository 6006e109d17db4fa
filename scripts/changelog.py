"""Write CHANGELOG.md from the entries in changelog.d, one sentence for each change.

usage: python scripts/changelog.py
"""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("added", "changed", "fixed", "removed")


def written(entries: Path = ROOT / "changelog.d") -> str:
    """Return the whole file: the newest entry of each kind first."""
    version = runpy.run_path(str(ROOT / "scripts" / "version.py"))["read_version"]()
    parts = [f"# Changelog\n\nWritten by `scripts/changelog.py`.\n\n## {version}\n"]
    for kind in KINDS:
        paths = sorted(entries.glob(f"*.{kind}.md"), reverse=True)
        lines = [f"- {' '.join(path.read_text('utf-8').split())}\n" for path in paths]
        parts += [f"\n### {kind.capitalize()}\n\n", *lines] if lines else []
    return "".join(parts)


if __name__ == "__main__":
    (ROOT / "CHANGELOG.md").write_text(written(), "utf-8")
