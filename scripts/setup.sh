#!/usr/bin/env bash
# Install poolwise into .venv, which is created if it is missing.
#
# usage: scripts/setup.sh [GROUP ...]
#
# Without arguments only what poolwise needs to run is installed; each GROUP is
# a dependency group of pyproject.toml.  Versions are those of constraints.txt.
# Set PYTHON to choose the interpreter of .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local name
    for name in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
        if new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    return 1
}

make_venv() {
    local python
    python=$(find_python) || fail \
        "poolwise needs Python 3.11 or newer, and none was found." \
        "Install one, or name it: make PYTHON=/path/to/python3.12 ..."
    echo "setup: making .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv >/dev/null 2>&1 && return
    # Debian ships `venv` without the part that installs pip.
    bash scripts/system.sh venv
    rm -rf .venv
    "$python" -m venv .venv >/dev/null 2>&1 && return
    rm -rf .venv
    fail "$python cannot make virtual environments." \
        "On Debian or Ubuntu run: apt-get install python3-venv"
}

{ new_enough .venv/bin/python && .venv/bin/python -c 'import pip'; } 2>/dev/null || make_venv

pip=(.venv/bin/python -m pip --disable-pip-version-check -qq)
# --group came with pip 25.1, --build-constraint with 25.3
.venv/bin/python -c 'import pip, sys; sys.exit([*map(int, pip.__version__.split(".")[:2])] < [25, 3])' ||
    "${pip[@]}" install --upgrade 'pip>=25.3'

what=(--editable .)
[ $# -eq 0 ] || what=("${@/#/--group=}")
echo "setup: installing ${*:-poolwise}"
"${pip[@]}" install --constraint constraints.txt --build-constraint constraints.txt "${what[@]}"
