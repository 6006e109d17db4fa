"""Check that the licences of all dependencies of poolwise are permissive.

usage: python scripts/licences.py [EXTRA ...]

Walks the installed dependencies of poolwise (and of the extras, if any are named) and
prints a table.  Exits with 1 if a licence is not in the list of permissive ones; a
person then reviews it, and adds it below or replaces the package.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = "poolwise"
PERMISSIVE = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "HPND",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "PSF-2.0",
    "Python-2.0",
    "Unlicense",
    "Zlib",
}
# Weak copyleft, which has no conditions for unmodified use.
USABLE = {"MPL-2.0"}
# Names of licences in metadata without an SPDX expression.
CALLED = {
    r"apache( software)?( license)?(,? version)? ?2(\.0)?": "Apache-2.0",
    r"apache software license": "Apache-2.0",
    r"(3-clause |new |modified )?bsd( 3-clause)?( license)?|bsd-3-clause": "BSD-3-Clause",
    r"(2-clause |simplified )bsd( license)?|bsd 2-clause.*": "BSD-2-Clause",
    r"(the )?mit( license)?": "MIT",
    r"isc license.*": "ISC",
    r"mozilla public license 2\.0 \(mpl 2\.0\)": "MPL-2.0",
    r"python software foundation license": "PSF-2.0",
}
# Reviewed in the licence file of the package, whose metadata have no licence.
READ = {"skops": "MIT", "vl-convert-python": "BSD-3-Clause"}
CLASSIFIER = "License :: OSI Approved :: "


def needed(root: str, extras: Iterable[str]) -> Iterator[str]:
    """Return all installed dependencies of `root`, by name."""
    seen: set[tuple[str, str]] = set()
    waiting = [(root, extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (canonicalize_name(name), extra) in seen:
            continue
        seen.add((canonicalize_name(name), extra))
        for text in metadata.requires(name) or []:
            wish = Requirement(text)
            if wish.marker is None or wish.marker.evaluate({"extra": extra}):
                waiting += [(wish.name, inner) for inner in ("", *wish.extras)]
    yield from sorted({name for name, _ in seen} - {root})


def licence(name: str) -> str:
    """Return the licence of an installed package, as an SPDX expression if possible."""
    about = metadata.metadata(name)
    if "License-Expression" in about:
        return str(about["License-Expression"])
    listed = [c for c in about.get_all("Classifier") or [] if c.startswith(CLASSIFIER)]
    names = [c.removeprefix(CLASSIFIER) for c in listed] or about.get_all("License") or []
    if not names:
        return READ.get(canonicalize_name(name), "unknown")
    return " OR ".join(_spdx(str(n)) for n in names)


def _spdx(text: str) -> str:
    short = text.strip().splitlines()[0].strip() if text.strip() else "unknown"
    for pattern, name in CALLED.items():
        if re.fullmatch(pattern, short, re.IGNORECASE):
            return name
    return short


def allowed(expression: str) -> bool:
    """Test if a licence is permissive: all parts of an AND, one part of an OR.

    >>> allowed("MIT OR GPL-3.0-only"), allowed("BSD-3-Clause AND GPL-3.0-only")
    (True, False)
    """
    free = PERMISSIVE | USABLE
    choices = re.split(r"\s+OR\s+", expression.replace("(", "").replace(")", ""))
    if "(" in expression and " AND " in expression:  # mixed: all parts must be permissive
        choices = [" AND ".join(choices)]
    return any(all(part.strip() in free for part in c.split(" AND ")) for c in choices)


def main(extras: list[str]) -> int:
    """Print the table; return 1 if a licence needs a review."""
    missing: list[str] = []
    try:
        rows = [(n, metadata.version(n), licence(n)) for n in needed(ROOT, extras)]
    except metadata.PackageNotFoundError as error:
        print(f"licences: {error.name} is not installed", file=sys.stderr)
        return 1
    for name, version, expression in rows:
        print(f"{name:<28} {version:<14} {expression}")
        if not allowed(expression):
            missing.append(name)
    if missing:
        print(f"licences: not known to be permissive: {', '.join(missing)}", file=sys.stderr)
        return 1
    print(f"licences: {len(rows)} packages, all permissive")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
