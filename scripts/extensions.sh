#!/usr/bin/env bash
# Test reading Delta, Iceberg and an object store, with DuckDB's extensions.
#
# usage: scripts/extensions.sh [ARGUMENT ...]        such as: scripts/extensions.sh -k delta
#
# The arguments are passed to pytest.  The extensions are Python packages, each for one
# version of DuckDB; VERSION sets another one.  Environment, home and extensions are in
# a temporary folder, so that no file of the user is read or changed.  Exits with 1 if a
# test fails or is skipped.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=${VERSION:-1.5.5}
extensions=(avro delta httpfs iceberg)
packages=("${extensions[@]/#/duckdb-extension-}")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=$work/venv/bin/python

give_up() {
    echo "extensions: $1" >&2
    [ ! -s "$work/errors" ] || tail -n 3 "$work/errors" >&2
    exit 1
}

"${PYTHON:-python3}" -m venv "$work/venv" || give_up "there is no environment"
"$python" -m pip --disable-pip-version-check -qq install . \
    "duckdb==$version" "duckdb-extensions==$version" "${packages[@]/%/==$version}" \
    'adbc-driver-manager' 'boto3' 'deltalake' 'hypothesis' 'moto[server]' 'psutil' \
    'psycopg[binary]' 'pyiceberg[sql-sqlite]' 'pytest' 'pytest-timeout' \
    2>"$work/errors" || give_up "not everything could be installed"

export HOME=$work/home
mkdir "$HOME"
for name in "${extensions[@]}"; do
    "$python" -c 'import sys, duckdb_extensions; duckdb_extensions.import_extension(sys.argv[1])' \
        "$name" 2>"$work/errors" || give_up "DuckDB $version does not take $name"
done

"$python" -m pytest -q -p no:cacheprovider -rs tests/rows/test_extensions.py "$@" |
    tee "$work/log"
status=${PIPESTATUS[0]}
echo "extensions: DuckDB $version: $(tail -n 1 "$work/log")"
[ "$status" -eq 0 ] && ! grep -q '^SKIPPED' "$work/log"
