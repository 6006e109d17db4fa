#!/usr/bin/env bash
# Query the advisory service for known vulnerabilities of the versions that we test with.
#
# usage: scripts/audit.sh
#
# Exits with 1 if there is one.  If the service cannot be reached, the script prints one
# line and exits with 0.  pip-audit is installed in its own folder, so that its own
# dependencies are not audited.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

skip() {
    echo "audit: NOT AUDITED, $1"
    exit 0
}

"${PYTHON:-python3}" -m venv "$work/venv" || exit 1
"$work/venv/bin/python" -m pip --disable-pip-version-check -qq install pip-audit 2>"$work/errors" ||
    skip "pip-audit could not be installed"

"$work/venv/bin/pip-audit" --requirement constraints.txt --no-deps --disable-pip \
    --progress-spinner off --timeout 15 >"$work/found" 2>"$work/errors"
status=$?
if [ "$status" -eq 0 ]; then
    echo "audit: $(grep -c == constraints.txt) versions, no known holes"
elif [ -s "$work/found" ]; then # a table of what was found
    cat "$work/found"
    exit 1
elif grep -qiE 'connection|connect|timed? ?out|resolve|unreachable|proxy|ssl|service' "$work/errors"; then
    skip "the advisory service cannot be reached"
else
    cat "$work/errors" >&2
    exit 1
fi
