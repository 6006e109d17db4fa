#!/usr/bin/env bash
# Install optional system packages: java, chromium, postgresql, venv.
#
# usage: scripts/system.sh [NAME ...]
#
# Only missing packages are installed, from Debian, as root or with a sudo that needs
# no password.  A failed installation prints one line on stderr and is never an error,
# because the tests that need the package are skipped with a reason.
set -uo pipefail

package_of() {
    case $1 in
    java) echo default-jre-headless ;;
    chromium | postgresql) echo "$1" ;;
    venv) echo python3-venv ;;
    *) return 1 ;;
    esac
}

present() {
    case $1 in
    java) java -version ;;
    chromium) chromium --version ;;
    postgresql) compgen -G '/usr/lib/postgresql/*/bin/postgres' || command -v postgres ;;
    venv) python3 -c 'import ensurepip' ;;
    esac >/dev/null 2>&1
}

as_root=()
may_install() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" -eq 0 ] && return
    as_root=(sudo -n)
    sudo -n true 2>/dev/null
}

apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -o DPkg::Lock::Timeout=60 "$@" >/dev/null 2>&1 </dev/null
}

updated=
install() {
    [ -n "$updated" ] || apt update # a stale list may still do
    updated=yes
    apt install --yes --no-install-recommends "$1"
}

for name; do
    if ! package=$(package_of "$name"); then
        echo "system: do not know '$name'" >&2
    elif present "$name"; then
        continue
    elif ! may_install; then
        echo "system: no $name, and no right to install Debian's $package; going on without" >&2
    elif echo "system: installing $package" && install "$package" && present "$name"; then
        continue
    else
        echo "system: could not install Debian's $package; going on without $name" >&2
    fi
done
exit 0
