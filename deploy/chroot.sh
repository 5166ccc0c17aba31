# shellcheck shell=bash
# Other userlands, for the scripts that try packages in them. Sourced; needs root, and deploy/packages.sh.

# need_root: fails where that is not who we are.
need_root() {
    [ "$(id -u)" = 0 ] && return 0
    echo "only root can change into another root directory" >&2
    return 1
}

# inside ROOT COMMAND...: with its own /proc, /dev/shm and processes, for ten minutes at most.
inside() {
    local in=$1
    shift
    # shellcheck disable=SC2016  # expanded by the shell inside
    timeout 600 unshare --mount --pid --fork --kill-child bash -c '
        in=$1 && shift
        mount -t proc proc "$in/proc"
        mount -t tmpfs dev "$in/dev"
        mkdir "$in/dev/shm"
        for node in null zero full random urandom tty; do
            touch "$in/dev/$node"
            mount --bind "/dev/$node" "$in/dev/$node"
        done
        ln -s /proc/self/fd "$in/dev/fd"
        exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C \
            chroot "$in" "$@"' inside "$in" "$@"
}

# unpacked ROOT TITLE COMMAND...: makes the userland by the command, which is given the directory
# to unpack into, unless it is there from last time.
unpacked() {
    local root=$1 title=$2 log
    shift 2
    [ ! -d "$root" ] || return 0
    echo "unpacking $title into $root" >&2
    log=$(mktemp)
    rm -rf "$root.part"
    mkdir -p "$root.part"
    if ! "$@" "$root.part" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "could not unpack $title: is its archive in reach? All of the output is in $log" >&2
        return 1
    fi
    rm "$log"
    mv "$root.part" "$root"
}

# installed ROOT: every file of the system, to see that removing a package leaves none.
installed() {
    (cd "$1" && find . -xdev -path ./tmp -prune -o -path './var/lib/dpkg/*' -prune -o \
        -path './var/log/*' -prune -o -print | sort)
}

# try_deb ROOT FILE COMMAND...: installs the package, runs the command, removes the package.
try_deb() {
    local root=$1 file=$2 before place
    shift 2
    rm -rf "$root"/tmp/deb.*
    place=$(mktemp -d "$root/tmp/deb.XXXXXX")
    cp "$file" "$place/mem-profiler.deb"
    before=$(installed "$root")
    inside "$root" dpkg --install "/tmp/${place##*/}/mem-profiler.deb"
    inside "$root" dpkg --verify mem-profiler
    inside "$root" "$@"
    inside "$root" dpkg --purge mem-profiler
    rm -rf "$place"
    diff <(echo "$before") <(installed "$root") || {
        echo "the .deb leaves files behind" >&2
        return 1
    }
    echo "the .deb installs, works and is removed without a trace"
}
