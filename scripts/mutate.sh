#!/usr/bin/env bash
# Make small changes to the code, one at a time, and count those that a test detects.
#
# usage: scripts/mutate.sh [FILE ...]        such as: scripts/mutate.sh src/poolwise/moments/moments.py
#
# Works on a copy of the tree, so that the tree may change meanwhile, and in a virtual
# environment of its own.  Prints a table by module and exits with 1 if fewer than 90 % of
# the mutants were killed; LEAST replaces the 90.  Survivors are written, as differences, to
# build/mutation/survivors.txt; docs/mutation.md explains them.  Takes a quarter of an hour.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/tree.sh

files=("$@")
[ $# -gt 0 ] || files=('src/poolwise/moments/*.py' 'src/poolwise/estimators/*.py'
    'src/poolwise/intervals/*.py')
tests=(tests/moments tests/estimators tests/intervals tests/engines/test_exact.py)
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

# Uninstall poolwise, so that only the copy can be imported.
install() {
    "${PYTHON:-python3}" -m venv "$work/venv" &&
        "$work/venv/bin/python" -m pip --disable-pip-version-check -qq install \
            --constraint constraints.txt "$work/tree" \
            pytest pytest-timeout hypothesis pandas scikit-learn &&
        "$work/venv/bin/python" -m pip --disable-pip-version-check -qq uninstall --yes poolwise &&
        "$work/venv/bin/python" -m pip --disable-pip-version-check -qq install mutmut==3.8.0
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
pytest_add_cli_args=
$(lines -p no:cacheprovider -m "not slow and not system" -k "not ($(tr -s ' \n' ' ' <<<"$without"))")
pytest_add_cli_args_test_selection=
$(lines "${tests[@]}")
also_copy=
    benchmarks
END
}

# Failing examples are not shrunk, and mutmut 3.8 reads an attribute that pytest removed.
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
pytest.Item._nodeid = property(lambda item: item.nodeid)
END
}

# Exit codes of pytest by mutant: 0 passed, 33 and 5 ran nothing, None was not run.
count() {
    "$work/venv/bin/python" - "$least" <<'END'
import json
import sys
from pathlib import Path

line = "{:<32} {:>7} {:>6} {:>8} {:>7}".format
print(line("module", "mutants", "killed", "survived", "percent"))
rows, survivors = [], []
for path in sorted(Path("mutants/src").rglob("*.py.meta")):
    codes = json.loads(path.read_text())["exit_code_by_key"]
    if None in codes.values():
        sys.exit(f"mutate: {path.stem} was not finished")
    alive = [name for name, code in codes.items() if code in {0, 5, 33}]
    survivors += alive
    name = str(path.relative_to("mutants/src/poolwise")).removesuffix(".meta")
    rows += [(name, len(codes), len(alive))] * bool(codes)
rows.append(("all", sum(r[1] for r in rows), sum(r[2] for r in rows)))
for name, mutants, alive in rows:
    print(line(name, mutants, mutants - alive, alive, f"{1 - alive / mutants:.1%}"))
Path("survivors").write_text("".join(f"{name}\n" for name in survivors))
sys.exit(100 * (1 - rows[-1][2] / rows[-1][1]) < float(sys.argv[1]))
END
}

copy_tree "$work/tree" || fail "the tree could not be copied"
install || fail "the virtual environment could not be made"
cd "$work/tree" || exit 1
configure >setup.cfg
adapt_tests >>tests/conftest.py
"$work/venv/bin/mutmut" run --max-children 1 >"$work/log" 2>&1 || {
    tr '\r' '\n' <"$work/log" | tail -n 30 >&2
    fail "mutmut did not run to its end"
}
count
status=$?
mkdir -p "$out"
while read -r name; do
    "$work/venv/bin/mutmut" show "$name" </dev/null
done <survivors >"$out/survivors.txt" 2>/dev/null
exit "$status"
