#!/usr/bin/env bash
# List all that an installation of poolwise consists of, as CycloneDX.
#
# usage: scripts/sbom.sh DIST FILE
#
# DIST is a folder with the wheel of this machine.  Installs it into a new environment with the
# versions and hashes of hashes.txt, and lists what is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ $# -eq 2 ] || { echo "usage: scripts/sbom.sh DIST FILE" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bash scripts/install_wheel.sh "$1" "$work/venv"
"${PYTHON:-python3}" -m venv "$work/tools"
"$work/tools/bin/python" -m pip --disable-pip-version-check -qq install 'cyclonedx-bom>=7'
mkdir -p "$(dirname "$2")"
"$work/tools/bin/cyclonedx-py" environment --output-reproducible --output-format JSON \
    --output-file "$2" "$work/venv"
echo "sbom: $(grep -c '"bom-ref"' "$2") components in $2"
