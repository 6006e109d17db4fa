#!/usr/bin/env bash
# Write constraints.txt: the newest versions of everything that fit together.
#
# usage: scripts/pin.sh
#
# Names and versions only.  Resolved with the oldest supported Python, so that
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
