# shellcheck shell=bash
# Debian's packages for arm64, for the scripts that try programs under qemu. Sourced; needs
# deploy/packages.sh.

# arm64_apt DIRECTORY SUITE: sets `options`, with which apt-get and apt-cache know the suite's packages
# for arm64. Apt checks the signatures; its own lists, and what is installed on this machine, stay as
# they are.
arm64_apt() {
    local apt=$1 suite=$2 from
    mkdir -p "$apt"/{lists,cache}/partial "$apt/cache/archives/partial"
    : >"$apt/status"
    from=$(mirror) || return 1
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $from $suite main" >"$apt/sources.list"
    options=(
        -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
        -o APT::Install-Recommends=false -o Acquire::Languages=none -o Debug::NoLocking=true
        -o Dir::State::Lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache"
        -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=- -o Dir::Etc::Parts=-
    )
}

# arm64_packages DIRECTORY SUITE PACKAGE...: unpacks them and what they depend on, unless they are
# there from last time.
arm64_packages() {
    local root=$1 suite=$2 apt=$1.apt log options
    shift 2
    [ "$(cat "$root.list" 2>/dev/null)" != "$*" ] || return 0
    rm -rf "$root" "$apt" "$root.list"
    mkdir -p "$root"
    arm64_apt "$apt" "$suite" || return 1
    log=$(mktemp)
    if ! { apt-get "${options[@]}" -y update && apt-get "${options[@]}" -y --download-only install "$@"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "could not download $* for arm64: is the mirror in reach? All of the output is in $log" >&2
        return 1
    fi
    local package
    for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$root" || return 1; done
    rm -rf "$apt" "$log"
    echo "$*" >"$root.list"
}

# arm64_kernel FILE SUITE PACKAGE: the kernel that the package stands for or contains, without its
# modules, unless it is there from last time.
arm64_kernel() {
    local file=$1 suite=$2 package=$3 apt=$1.apt log options named
    [ ! -e "$file" ] || return 0
    rm -rf "$apt"
    arm64_apt "$apt" "$suite" || return 1
    log=$(mktemp)
    if ! apt-get "${options[@]}" -y update >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "could not read the packages of $suite: is the mirror in reach? All of the output is in $log" >&2
        return 1
    fi
    named=$(apt-cache "${options[@]}" depends "$package" | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p')
    if ! (cd "$apt" && apt-get "${options[@]}" download "${named:-$package}") >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "could not download ${named:-$package} of $suite. All of the output is in $log" >&2
        return 1
    fi
    mkdir "$apt/unpacked"
    dpkg-deb --fsys-tarfile "$apt"/*.deb | tar -x -C "$apt/unpacked" ./boot || return 1
    mv "$apt"/unpacked/boot/vmlinuz-* "$file"
    rm -rf "$apt" "$log"
}
