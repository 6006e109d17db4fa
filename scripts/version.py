"""Print the version of poolwise, and check that a tag has it.

usage: python scripts/version.py [TAG]

`src/poolwise/__init__.py` is the one place that has the version; the build reads it there.
Exits with 1 if TAG is not "v" and the version.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def read_version() -> str:
    """Read the version without importing the package."""
    tree = ast.parse((ROOT / "src/poolwise/__init__.py").read_text("utf-8"))
    values = (node for node in tree.body if isinstance(node, ast.Assign))
    (version,) = (
        ast.literal_eval(node.value)
        for node in values
        if ast.unparse(node.targets[0]) == "__version__"
    )
    return str(version)


def main(words: list[str]) -> int:
    """Print the version; return 1 if a tag has another one."""
    version = read_version()
    print(version)
    if words and words[0] != f"v{version}":
        print(
            f"version: the tag is {words[0]}, but poolwise is {version}: change __version__ in "
            f"src/poolwise/__init__.py, or tag v{version}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
