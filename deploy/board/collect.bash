#!/bin/sh
# Profiles what runs with the agent, parses the dumps on this machine right after, and packs dumps,
# tables, pictures, pages and facts about the machine into one archive, whose path it prints.
#
#   collect.bash [OPTION...]
#
#   -s SECONDS    how long to sample (60)
#   -c BYTES      mean bytes between two samples (1024)
#   -p NAME       only these processes; may be given several times (all that carry the agent)
#   -e TIME       a dump each TIME besides, such as 30s: then leak suspects are ranked by growth
#   -o DIRECTORY  where the archive goes, and what is unpacked meanwhile (the current directory)
#   -m MIB        the most space to use (200), and never more than half of what is free there
#   -l PERCENT    the most of one CPU that parsing takes, if cpulimit is installed (50)
#
# Parsing runs with the lowest priority. Where space is short, pages and pictures are left out, and a
# line says so; where it is too short for the dumps, nothing is started. What is unpacked meanwhile is
# removed at the end, also after Ctrl-C. Needs bash 4.3 or any POSIX shell, tar and gzip.
#
# Exits with 0 if all went well, 1 if something failed or was left out, or no dump has a sample (the
# archive holds the rest, and its file summary.txt says what), 2 after a usage error.
set -u
umask 077
unset CDPATH
export LC_ALL=C

say() {
    printf 'collect: %s\n' "$*" >&2
}

usage_error() {
    say "$*; collect.bash -h prints the options"
    exit 2
}

# number NAME VALUE: a usage error unless it is a whole number above 0.
number() {
    case $2 in
    '' | 0* | *[!0-9]*) usage_error "$1 takes a whole number, not '$2'" ;;
    esac
    [ ${#2} -le 9 ] || usage_error "$1 takes a smaller number than $2"
}

seconds=60 interval=1024 every='' output=. limit_mib=200 percent=50
# The names go round to the end of the parameters, as what is left of them.
left=$#
while [ "$left" -gt 0 ]; do
    option=$1
    shift
    left=$((left - 1))
    case $option in
    -h | --help)
        sed -n '2,21s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    -[scepoml])
        [ "$left" -gt 0 ] || usage_error "$option takes a value"
        value=$1
        shift
        left=$((left - 1))
        ;;
    *) usage_error "there is no option '$option'" ;;
    esac
    case $option in
    -s) number -s "$value" && seconds=$value ;;
    -c) interval=$value ;;
    -e) every=$value ;;
    -p) set -- "$@" -p "$value" ;;
    -o) output=$value ;;
    -m) number -m "$value" && limit_mib=$value ;;
    -l) number -l "$value" && percent=$value ;;
    esac
done

# The tools of the package that this script is in, if it is in one.
here=$(readlink -f "$0") && here=${here%/*}
case $here in
*/share/mem-profiler) [ ! -x "${here%/share/mem-profiler}/bin/mem_profiler" ] || PATH=${here%/share/mem-profiler}/bin:$PATH ;;
esac
for tool in mem_profiler mem_parser tar gzip df du mktemp; do
    command -v "$tool" >/dev/null || {
        say "there is no $tool on this machine; mem_profiler and mem_parser: source setup.bash first"
        exit 1
    }
done
for tool in mem_profiler mem_parser; do
    said=$("$tool" --version 2>&1) || {
        say "$tool does not run on this machine: $said"
        exit 1
    }
done
if [ ! -d "$output" ] || [ ! -w "$output" ]; then
    say "$output is no directory that can be written to: name another with -o"
    exit 1
fi
output=$(cd "$output" && pwd)

work=
child=
brake=
# shellcheck disable=SC2317
# Whether this is the script itself. A command that is started in the background has the script's
# traps until it is executed, and may be sent a signal before.
is_script() {
    read -r self _ </proc/self/stat && [ "$self" = "$$" ]
}
# shellcheck disable=SC2317  # called by the traps
# has_ended PID: whether a process of ours is gone, or waits for us to ask how it ended.
has_ended() {
    [ ! -d "/proc/$1" ] || grep -q '^State:.*Z' "/proc/$1/status" 2>/dev/null
}
# shellcheck disable=SC2317
# Ends what runs, within ten seconds, and removes what was unpacked.
finish() {
    is_script || return 0
    trap '' INT TERM HUP
    for process in $child $brake; do
        kill "$process" 2>/dev/null || continue
        tries=100
        until has_ended "$process" || [ "$tries" -le 0 ]; do
            tries=$((tries - 1))
            sleep 0.1 2>/dev/null || { sleep 1 && tries=$((tries - 9)); }
        done
        has_ended "$process" || kill -9 "$process" 2>/dev/null
        wait "$process" 2>/dev/null
    done
    [ -z "$work" ] || { cd / && rm -rf "$work"; }
}
# shellcheck disable=SC2317
interrupted() {
    is_script || exit 1
    say "interrupted; nothing is kept"
    finish
    trap - EXIT
    exit $((128 + $1))
}
trap finish EXIT
trap 'interrupted 1' HUP
trap 'interrupted 2' INT
trap 'interrupted 15' TERM

# What an earlier run left that was killed.
for old in "$output"/.mem-profiler.*; do
    # shellcheck disable=SC3067  # in dash and busybox, too
    if [ -d "$old" ] && [ -O "$old" ] && [ ! -L "$old" ] && [ -r "$old/pid" ]; then
        [ -d "/proc/$(cat "$old/pid")" ] || rm -rf "$old"
    fi
done

# Not in every busybox, on every kernel, in every container.
lowest=
nice -n 19 true 2>/dev/null && lowest='nice -n 19'
ionice -c 3 true 2>/dev/null && lowest="ionice -c 3 $lowest"
# low COMMAND...: with the lowest priority, in the background so that signals are heard at once; waits.
low() {
    # shellcheck disable=SC2086  # words
    $lowest "$@" &
    child=$!
    if command -v cpulimit >/dev/null && [ "$1" = mem_parser ]; then
        cpulimit -p "$child" -l "$percent" -z >/dev/null 2>&1 &
        brake=$!
    fi
    code=0
    wait "$child" || code=$?
    child=
    # It ends with what it holds back.
    [ -z "$brake" ] || wait "$brake"
    brake=
    return "$code"
}

used_kib() {
    du -sk "$work" | cut -f 1
}

# size KIB: in the unit that suits it.
size() {
    if [ "$1" -lt 1024 ]; then
        echo "$1 KiB"
    else
        echo "$(($1 / 1024)).$(($1 % 1024 * 10 / 1024)) MiB"
    fi
}

pids=$(mem_profiler list --json "$@" | tr ',' '\n' | sed -n 's/^.*"pid": *\([0-9]*\).*$/\1/p')
count=$(echo "$pids" | grep -c .)
[ "$count" -gt 0 ] || {
    say "no process carries the agent, or none of these names (mem_profiler list): start them after use_mem_agent"
    exit 1
}
free_kib=$(df -Pk "$output" | awk 'NR == 2 { print $4 }')
budget=$((limit_mib * 1024))
[ "$budget" -le $((free_kib / 2)) ] || budget=$((free_kib / 2))

complete=0
processes="$count processes"
[ "$count" != 1 ] || processes='1 process'
# What dumps take at least: the mappings of their processes, and 4 KiB of facts; packed once more in
# the end. What samples add is not known before. Where it does not fit, that is said then.
needed_kib=$(for pid in $pids; do
    cat "/proc/$pid/maps" 2>/dev/null
done | wc -c)
needed_kib=$(((needed_kib / 1024 + count * 4 + 64) * 3 / 2))
[ "$budget" -ge "$needed_kib" ] || {
    say "too little space in $output: $processes need $(size "$needed_kib") at least, $(size "$free_kib") are free, of which half may be used, at most -m: use another -o"
    exit 1
}
name=mem-profiler-$(uname -n)-$(date +%Y%m%d-%H%M%S)
work=$(mktemp -d "$output/.mem-profiler.XXXXXX") || exit 1
echo $$ >"$work/pid"
# From here on in the tree that is packed: so the paths that are noted lead somewhere later.
mkdir "$work/$name" && cd "$work/$name" && mkdir dumps symbolized reports || exit 1
summary=$work/$name/summary.txt

# leave_out WHAT: said once, and kept.
leave_out() {
    complete=1
    say "left out: $*"
    echo "left out: $*" >>"$summary"
}

# fits KIB: whether so much more may be used. What is there is packed once more in the end.
fits() {
    [ $((($(used_kib) + $1) * 3 / 2)) -le "$budget" ]
}

# KiB that may still be used.
left_kib() {
    left_kib=$((budget - $(used_kib) * 3 / 2))
    [ "$left_kib" -gt 0 ] || left_kib=0
    echo "$left_kib"
}

# report FILE KIB ARGUMENTS...: an output of mem_parser, if there is space.
report() {
    file=$1 kib=$2
    shift 2
    fits "$kib" || {
        leave_out "${file##*/} (space: needs about $(size $((kib * 3 / 2))), $(size "$(left_kib)") may be used)"
        return 0
    }
    low mem_parser "$@" >"$file" 2>>"$summary" || {
        rm -f "$file"
        leave_out "${file##*/} (mem_parser failed: see summary.txt)"
    }
}

# parse DUMP: everything from one process's last dump, and the growth over all of its dumps.
parse() {
    [ -n "$1" ] || return 0
    say "parsing ${1##*/}"
    base=${1##*/}
    base=${base%.heap}
    into=reports/$base
    report "symbolized/$base.heap" 512 -f "$1" --symbolize
    report "$into.txt" 64 -f "$1" -t -n 60
    report "$into.rss.txt" 64 -f "$1" --rss
    report "$into.svg" 256 -f "$1" -s
    report "$into.html" 2048 -f "$1" --html
    set -- "${1%.*.heap}".*.heap
    [ $# = 1 ] || report "$into.leaks.txt" 64 --leaks "$@"
}

# facts: what the machine is, and how it is.
facts() {
    for command in 'uname -a' 'cat /etc/os-release' 'getconf GNU_LIBC_VERSION' 'ldd --version' uptime \
        'mem_profiler --version' 'mem_parser --version' 'cat /proc/meminfo' 'df -k' 'nproc' \
        'cat /proc/cpuinfo' 'cat /proc/loadavg' 'ulimit -a' 'ps -ef'; do
        printf '\n$ %s\n' "$command"
        # shellcheck disable=SC2086  # words
        $command 2>&1 | head -n 400
    done
    # Where neither getconf nor ldd is: the C library says by itself what it is.
    for libc in /lib/*/libc.so.6 /lib64/libc.so.6 /lib/libc.so.6; do
        [ ! -x "$libc" ] || { printf '\n$ %s\n' "$libc" && "$libc" 2>&1 | head -n 1; }
    done
    printf '\n$ mem_profiler list --all\n'
    mem_profiler list --all 2>&1
}

{
    echo "$name: $processes, $seconds seconds, one sample every $interval bytes"
    echo "space: $free_kib KiB free, $budget KiB may be used"
    [ $# = 0 ] || echo "asked for: $*"
} >"$summary"
facts >facts.txt
low mem_profiler why "$@" >why.txt 2>&1 || leave_out "a part of why.txt: see its end"

say "sampling $processes for $seconds s"
[ -z "$every" ] || set -- "$@" --every "$every" --keep 10
# Its warnings go to the terminal as well; its paths are of files that will be in the archive.
low mem_profiler -s "$seconds" -c "$interval" -o dumps/prof_ "$@" >>"$summary" 2>"$work/said"
code=$?
grep -v -e ': next: ' -e '\.heap$' -e ': PROCESS .* DUMP$' "$work/said" >&2
cat "$work/said" >>"$summary"
[ "$code" = 0 ] || leave_out "a part of the session: mem_profiler ended with $code"

found=0
sampled=0
last=
for dump in dumps/*.heap; do
    [ -e "$dump" ] || break
    found=$((found + 1))
    # The sums of all samples.
    read -r head <"$dump"
    case $head in
    'heap profile: 0: 0 [0: 0] '*) ;;
    *) sampled=$((sampled + 1)) ;;
    esac
    # The last dump of a process has all that its others have.
    [ "${last%.*.heap}" = "${dump%.*.heap}" ] || parse "$last"
    last=$dump
done
parse "$last"
[ "$found" -gt 0 ] || {
    say "there is no dump: mem_profiler ended with $code"
    exit 1
}
echo "$found dumps" >>"$summary"
[ "$sampled" -gt 0 ] || {
    complete=1
    empty="no dump has a sample: nothing, or little, was allocated in $seconds s: sample for longer (-s) while the programs work, or each byte (-c 1)"
    say "$empty"
    echo "$empty" >>"$summary"
}

archive=$output/$name.tar.gz
# shellcheck disable=SC2086  # words
{ tar -cf - -C "$work" "$name" || echo tar >"$work/failed"; } | $lowest gzip >"$work/archive" || echo gzip >"$work/failed"
if [ -e "$work/failed" ] || ! gzip -t "$work/archive" || ! mv "$work/archive" "$archive"; then
    rm -f "$work/archive"
    needed_kib=$(used_kib)
    free_kib=$(df -Pk "$output" | awk 'NR == 2 { print $4 }')
    say "the archive could not be written to $output: it needs up to $(size "$needed_kib"), $(size "$free_kib") are free: use another -o"
    exit 1
fi
echo "$archive"
exit "$complete"
