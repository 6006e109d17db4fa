#!/usr/bin/env bash
# Write constraints.txt: the newest versions of everything that fit together, and hashes.txt:
# what poolwise alone needs, with the hashes of its files.
#
# usage: scripts/pin.sh [--hashes]
#
# With --hashes only hashes.txt, for the versions of constraints.txt.
# Names, versions and hashes only, no addresses.  Resolved with the oldest supported Python, so that
# the same versions exist for the newer ones.  Set PYTHON when Python 3.11 has
# another name than python3.11.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3.11}
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
    echo "pin: $python is not Python 3.11" >&2
    exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"

write_hashes() {
    "$work/venv/bin/python" -m pip --disable-pip-version-check -qq install uv
    {
        echo "# What poolwise needs, with hashes, written by scripts/pin.sh."
        "$work/venv/bin/uv" pip compile -q --universal --generate-hashes --no-header --no-annotate \
            --python-version 3.11 --constraint constraints.txt pyproject.toml
    } >"$work/hashes"
    mv "$work/hashes" hashes.txt
    echo "pin: $(grep -c == hashes.txt) versions in hashes.txt"
}

[ "${1:-}" != --hashes ] || { write_hashes; exit; }
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check -qq)
"${pip[@]}" install --upgrade pip
"${pip[@]}" install '.[all]' --group test --group lint --group docs --group dist \
    --group bench
"${pip[@]}" freeze --exclude poolwise >"$work/frozen"

if grep --invert-match --extended-regexp '^[A-Za-z0-9._-]+==[A-Za-z0-9.!]+$' "$work/frozen"; then
    echo "pin: the lines above are not a name and a version" >&2
    exit 1
fi
{
    echo "# Versions that work together, written by scripts/pin.sh."
    cat "$work/frozen"
} >constraints.txt
echo "pin: $(wc -l <"$work/frozen") versions in constraints.txt"
write_hashes
