# shellcheck shell=bash
# Debian packages by name. Sourced by the scripts that need some.

# Whether a package is installed.
has_package() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Installs those of the packages named that are missing; fails, saying what to install,
# where that takes somebody else's rights or a package source that is not there.
need_packages() {
    local package missing=()
    for package in "$@"; do
        has_package "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    local install=(apt-get install -y --no-install-recommends "${missing[@]}")
    if ! command -v apt-get >/dev/null; then
        echo "this machine has no apt-get; install what Debian calls: ${missing[*]}" >&2
        return 1
    fi
    if [ "$(id -u)" != 0 ]; then
        echo "some packages are missing; as root: ${install[*]}" >&2
        return 1
    fi
    echo "installing ${missing[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get update && "${install[@]}"; } >"${PACKAGES_LOG:=$(mktemp)}" 2>&1; then
        tail -n 20 "$PACKAGES_LOG" >&2
        echo "could not install ${missing[*]}; see $PACKAGES_LOG" >&2
        return 1
    fi
}

# The mirror of Debian that apt uses on this machine: what is fetched besides what is installed
# comes from there too.
mirror() {
    local found
    # shellcheck disable=SC2016 # Those are apt's variables.
    found=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian')
    [ -n "$found" ] || { echo "apt has no source of Debian's packages, or no lists: apt-get update" >&2; return 1; }
    echo "${found%%$'\n'*}"
}

# Fails, saying how to get it, where there is no Rust.
need_rust() {
    # shellcheck disable=SC1091  # of the machine
    [ ! -r "$HOME/.cargo/env" ] || . "$HOME/.cargo/env"
    command -v cargo >/dev/null && return 0
    echo "Rust is missing: rustup installs it" >&2
    return 1
}

# need_std TRIPLE: Rust's standard library for it. Debian's package of it fits Debian's own compiler alone.
need_std() {
    [ ! -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ] || return 0
    if command -v rustup >/dev/null && rustup target add "$1"; then return 0; fi
    echo "Rust's standard library for $1 is missing: with https://rustup.rs, rustup target add $1" >&2
    return 1
}
