#!/usr/bin/env bash
# Build twice, then install and test on every Python, with lowest and newest versions.
#
# usage: scripts/matrix.sh [VERSION ...]        such as: scripts/matrix.sh 3.11 3.13
#
# Works on a copy of the tree, so that the tree may change meanwhile.  Lowest are the
# lowest versions that pyproject.toml allows and that have a wheel for the Python;
# newest are the newest on the day.  A missing interpreter is a line in the
# table, not an error.  TESTS replaces the arguments of pytest, RUNS the two resolutions.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/tree.sh

versions=("$@")
[ $# -gt 0 ] || versions=(3.11 3.12 3.13 3.14)
runs=${RUNS:-lowest newest}
tests=${TESTS:-tests -k "'not browser and not spark and not postgres'"}
extras=(--extra skops --extra sklearn --extra trees)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
table=()

say() {
    printf '%-8s %-8s %s\n' "$@"
}

find_python() {
    local found
    for found in "python$1" "$HOME/.pyenv/versions/$1".*/bin/python; do
        if "$found" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$1" 2>/dev/null; then
            command -v "$found"
            return
        fi
    done
    "$uv" python find --no-python-downloads "$1" 2>/dev/null
}

find_uv() {
    command -v uv && return
    "${PYTHON:-python3}" -m venv "$work/tools" && "$work/tools/bin/pip" install -q uv >&2 &&
        echo "$work/tools/bin/uv"
}

# Other times and permissions of the files must not change the build.
build_twice() {
    copy_tree "$work/tree" && cp -r "$work/tree" "$work/again" || return
    chmod -R go-rwx "$work/again"
    find "$work/again" -exec touch -d 2001-01-01 {} +
    export SOURCE_DATE_EPOCH=315532800
    "$uv" build -q --out-dir "$work/dist" "$work/tree" &&
        (umask 077 && "$uv" build -q --out-dir "$work/dist-again" "$work/again") &&
        (cd "$work/dist" && cmp ./*.whl ../dist-again/*.whl && cmp ./*.tar.gz ../dist-again/*.tar.gz)
}

# Spark is a source archive of half a gigabyte, and its tests are left out here.
leave_spark_out() {
    mkdir "$work/without-spark" &&
        sed '/^\[dependency-groups\]/,/^\[tool/ s/^ *"pyspark[^"]*",.*//' "$work/tree/pyproject.toml" \
            >"$work/without-spark/pyproject.toml"
}

# Only direct dependencies have lowest versions; indirect ones are resolved by them.
resolve() {
    local rule=highest
    [ "$2" = lowest ] && rule=lowest-direct
    "$uv" pip compile -q --no-header --no-annotate --only-binary :all: --resolution "$rule" \
        --python "$1" "${extras[@]}" "$work/tree/pyproject.toml" \
        --output-file "$work/versions.txt" >&2
}

install() {
    rm -rf "$work/venv"
    "$uv" venv -q --python "$1" "$work/venv" &&
        "$uv" pip install -q --python "$work/venv" --only-binary :all: \
            --constraint "$work/versions.txt" --requirement "$work/versions.txt" \
            --group "$work/without-spark/pyproject.toml:test" "$work"/dist/*.whl
}

try() {
    local python=$1 run=$2 summary
    resolve "$python" "$run" 2>"$work/errors" || {
        echo "no versions fit: $(tail -n 1 "$work/errors")"
        return
    }
    install "$python" 2>"$work/errors" || {
        echo "cannot install: $(tail -n 1 "$work/errors")"
        return
    }
    (cd "$work/tree" && eval "$work/venv/bin/python" -m pytest -p no:cacheprovider -q "$tests") \
        >"$work/log" 2>&1
    summary=$(tail -n 1 "$work/log")
    grep -E '^(FAILED|ERROR)' "$work/log" >&2
    echo "$summary"
}

uv=$(find_uv | tail -n 1)
[ -n "$uv" ] || {
    echo "matrix: uv is not here and could not be installed" >&2
    exit 1
}
build_twice || {
    echo "matrix: two builds of the same files differ" >&2
    exit 1
}
echo "matrix: two builds gave the same bytes"
leave_spark_out

for version in "${versions[@]}"; do
    python=$(find_python "$version") || python=
    if [ -z "$python" ]; then
        table+=("$(say "$version" - "not found")")
        continue
    fi
    exact=$("$python" -c 'import platform; print(platform.python_version())')
    for run in $runs; do
        echo "matrix: Python $exact, $run versions" >&2
        table+=("$(say "$exact" "$run" "$(try "$python" "$run")")")
    done
done
printf '\n%s\n' "$(say python versions result)"
printf '%s\n' "${table[@]}"
! printf '%s\n' "${table[@]}" | grep -qE 'failed|error|cannot|no versions'
