#!/usr/bin/env bash
# Install a built wheel into a new environment, with the versions and hashes of hashes.txt.
#
# usage: scripts/install_wheel.sh DIST VENV
#
# DIST is a folder with wheels; pip takes the one that fits this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ $# -eq 2 ] || { echo "usage: scripts/install_wheel.sh DIST VENV" >&2; exit 2; }
"${PYTHON:-python3}" -m venv "$2"
python=$2/bin/python
[ -e "$python" ] || python=$2/Scripts/python.exe
pip=("$python" -m pip --disable-pip-version-check -qq)
"${pip[@]}" install --upgrade 'pip>=25.3'
"${pip[@]}" install --require-hashes --only-binary :all: --requirement hashes.txt
"${pip[@]}" install --no-deps --no-index --find-links "$1" poolwise
"${pip[@]}" check
