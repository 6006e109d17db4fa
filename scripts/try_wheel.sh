#!/usr/bin/env bash
# Try a built wheel as a user has it: installed, and away from the source.
#
# usage: scripts/try_wheel.sh DIST
#
# Evaluates the bundled log on the command line and in Python, with the compiled kernel, and
# writes a report.  Then runs the quick tests against the wheel.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ $# -eq 1 ] || { echo "usage: scripts/try_wheel.sh DIST" >&2; exit 2; }
dist=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bash scripts/install_wheel.sh "$dist" "$work/venv"
bin=$work/venv/bin
[ -d "$bin" ] || bin=$work/venv/Scripts

cp -r tests reproduction benchmarks docs scripts fuzz ./*.md ./*.txt ./*.toml "$work"
cd "$work"
"$bin/poolwise" demo >"$work/demo.txt"
grep -q "candidate" "$work/demo.txt"
"$bin/python" tests/support/installed.py
"$bin/python" -m pip --disable-pip-version-check -qq install \
    --constraint constraints.txt --group test
"$bin/python" -m pytest -q -n 2 --dist worksteal -m "not slow and not system" \
    --ignore tests/repo --ignore tests/reproduction tests
echo "try: $(ls "$dist"/*.whl | wc -l) wheels in $1, the one of this machine works"
