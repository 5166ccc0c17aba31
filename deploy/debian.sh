# shellcheck shell=bash
# Debian's packages of any architecture and suite, unpacked and not installed, and kernels, for the scripts
# that try programs under qemu. Sourced; needs deploy/packages.sh. ARCH is Debian's name: arm64, amd64.

# debian_apt ARCH DIRECTORY SUITE: sets `options`, with which apt-get and apt-cache know the suite's
# packages for it. Apt checks the signatures; its own lists, and what is installed on this machine,
# stay as they are.
debian_apt() {
    local arch=$1 apt=$2 suite=$3 from
    mkdir -p "$apt"/{lists,cache}/partial "$apt/cache/archives/partial"
    : >"$apt/status"
    from=$(mirror) || return 1
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $from $suite main" >"$apt/sources.list"
    options=(
        -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o APT::Sandbox::User=root
        -o APT::Install-Recommends=false -o Acquire::Languages=none -o Debug::NoLocking=true
        -o Dir::State::Lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache"
        -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=- -o Dir::Etc::Parts=-
    )
}

# debian_packages ARCH DIRECTORY SUITE PACKAGE...: unpacks them and what they depend on, unless they
# are there from last time.
debian_packages() {
    local arch=$1 root=$2 suite=$3 apt=$2.apt log options
    shift 3
    [ "$(cat "$root.list" 2>/dev/null)" != "$*" ] || return 0
    rm -rf "$root" "$apt" "$root.list"
    mkdir -p "$root"
    debian_apt "$arch" "$apt" "$suite" || return 1
    log=$(mktemp)
    if ! { apt-get "${options[@]}" -y update && apt-get "${options[@]}" -y --download-only install "$@"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "could not download $* for $arch: is the mirror in reach? All of the output is in $log" >&2
        return 1
    fi
    local package
    for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$root" || return 1; done
    rm -rf "$apt" "$log"
    echo "$*" >"$root.list"
}

# debian_kernel ARCH FILE SUITE PACKAGE: the kernel that the package stands for or contains, without
# its modules, unless it is there from last time.
debian_kernel() {
    local arch=$1 file=$2 suite=$3 package=$4 apt=$2.apt log options named
    [ ! -e "$file" ] || return 0
    rm -rf "$apt"
    debian_apt "$arch" "$apt" "$suite" || return 1
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

# configured_kernel FILE SUITE PACKAGE CONFIG: a kernel for arm64 of the suite's package of sources, with what
# CONFIG sets and nothing else, unless it is there from last time. Takes ten minutes.
configured_kernel() {
    local file=$1 suite=$2 package=$3 config=$4 apt=$1.apt tree=$1.tree log options make
    [ ! -e "$file" ] || ! cmp -s "$config" "$file.config" || return 0
    need_packages gcc-aarch64-linux-gnu make gcc libc6-dev bc flex bison xz-utils || return 1
    rm -rf "$apt" "$tree" "$file"
    debian_apt arm64 "$apt" "$suite" || return 1
    log=$(mktemp)
    if ! (apt-get "${options[@]}" -y update && cd "$apt" && apt-get "${options[@]}" download "$package") >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "could not download $package of $suite: is the mirror in reach? All of the output is in $log" >&2
        return 1
    fi
    echo "compiling $package for $file (ten minutes)" >&2
    mkdir "$tree"
    # Without headers of drivers, which are half of it.
    dpkg-deb --fsys-tarfile "$apt"/*.deb | tar -xO "./usr/src/$package.tar.xz" |
        tar -xJ -C "$tree" --strip-components=1 --exclude='*/drivers/gpu/drm/amd/*.h' || return 1
    make=(make -s -C "$tree" ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu-)
    if ! { "${make[@]}" KCONFIG_ALLCONFIG="$PWD/$config" allnoconfig && "${make[@]}" -j "$(nproc)" Image; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "could not compile $package. All of the output is in $log" >&2
        return 1
    fi
    cp "$config" "$file.config"
    mv "$tree/arch/arm64/boot/Image" "$file"
    rm -rf "$apt" "$tree" "$log"
}
