#!/usr/bin/env bash
# Make small changes to the code, one at a time, and count those that a test detects.
#
# usage: scripts/mutate.sh [FILE ...]        such as: scripts/mutate.sh src/poolwise/moments/moments.py
#
# Works on a copy of the tree, so that the tree may change meanwhile, and in a virtual
# environment of its own; VENV names one that remains for the next run.  Prints a table by
# module and exits with 1 if fewer than LEAST % of the mutants were killed.  Survivors are
# written, as differences, to build/mutation/survivors.txt; docs/mutation.md explains them.
# mutmut makes the mutants, scripts/mutants.py runs their tests; MINUTES, LONGEST and ONLY
# limit its work, and TESTS names the files of tests to run in place of all of them.  All modules take more than an hour: give files to check a change.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/tree.sh

files=("$@")
[ $# -gt 0 ] || files=('src/poolwise/moments/*.py' 'src/poolwise/estimators/*.py'
    'src/poolwise/intervals/*.py')
tests=(tests/moments tests/estimators tests/intervals tests/engines/test_exact.py
    tests/rows/test_{clusters,mixture,layout}.py tests/evaluation/test_{comparison,decisive}.py)
[ -z "${TESTS:-}" ] || read -ra tests <<<"$TESTS"
# A survivor runs every test: leave out tests that are slow or need other programs,
# and tests that start a process, which would import the unchanged code.
without="in_every_process or another_process or connection"
least=${LEAST:-90}
out=$PWD/build/mutation

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    printf 'mutate: %s\n' "$@" >&2
    exit 1
}

venv=${VENV:-$work/venv}

# pip compiles the kernel into the copy.  Uninstall poolwise, so that only the copy can be
# imported.
install() {
    local pip=("$venv/bin/python" -m pip --disable-pip-version-check -qq)
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv" || return
    "${pip[@]}" install --constraint constraints.txt "$work/tree" \
        pytest pytest-timeout hypothesis pandas scikit-learn &&
        "${pip[@]}" uninstall --yes poolwise &&
        "${pip[@]}" install mutmut==3.8.0
}

lines() {
    printf '    %s\n' "$@"
}

configure() {
    cat <<END
[mutmut]
source_paths=src
only_mutate=
$(lines "${files[@]}")
also_copy=
    benchmarks
END
}

make_mutants() {
    "$venv/bin/python" - <<'END'
from mutmut import __main__ as mutmut

mutmut.copy_src_dir()
mutmut.copy_also_copy_files()
mutmut.setup_source_paths()
mutmut.create_mutants(max_children=1)
END
}

run_tests() {
    cd mutants &&
        RESULTS=$work/results.json PYTHONPATH=$work/tree/scripts:src:. \
            "$venv/bin/python" -m pytest -q -s -p mutants -p no:cacheprovider \
            -m "not slow and not system" -k "not ($without)" "${tests[@]}"
}

# Failing examples are not shrunk.
adapt_tests() {
    cat <<'END'

from hypothesis import Phase

settings.register_profile(
    "mutate",
    settings.get_profile("poolwise"),
    max_examples=10,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("mutate")
END
}

# Mutants that were not run do not count.
count() {
    "$venv/bin/python" - "$work/results.json" "$least" <<'END'
import json
import sys
from pathlib import Path

outcomes = json.loads(Path(sys.argv[1]).read_text())
line = "{:<32} {:>7} {:>7} {:>6} {:>8} {:>7}".format
print(line("module", "mutants", "not run", "killed", "survived", "percent"))
rows, survivors = [], []
for path in sorted(Path("mutants/src").rglob("*.py.meta")):
    names = list(json.loads(path.read_text())["exit_code_by_key"])
    words = [outcomes[name] for name in names if name in outcomes]
    alive = [name for name in names if outcomes.get(name) in {"survived", "untested"}]
    survivors += alive
    module = str(path.relative_to("mutants/src/poolwise")).removesuffix(".meta")
    rows += [(module, len(names), len(words), len(alive))] * bool(names)
rows.append(("all", *map(sum, zip(*(row[1:] for row in rows), strict=True))))
for module, mutants, run, alive in rows:
    share = f"{1 - alive / run:.1%}" if run else "-"
    print(line(module, mutants, mutants - run, run - alive, alive, share))
Path("survivors").write_text("".join(f"{name}\n" for name in survivors))
sys.exit(100 * (1 - rows[-1][3] / max(1, rows[-1][2])) < float(sys.argv[2]))
END
}

copy_tree "$work/tree" || fail "the tree could not be copied"
install || fail "the virtual environment could not be made"
cd "$work/tree" || exit 1
configure >setup.cfg
adapt_tests >>tests/conftest.py
make_mutants >"$work/log" 2>&1 && (run_tests) >>"$work/log" 2>&1
[ -e "$work/results.json" ] || {
    tail -n 30 "$work/log" >&2
    fail "the mutants were not run"
}
grep '^mutate: ' "$work/log"
count
status=$?
mkdir -p "$out"
while read -r name; do
    "$venv/bin/mutmut" show "$name" </dev/null
done <survivors >"$out/survivors.txt" 2>/dev/null
exit "$status"
