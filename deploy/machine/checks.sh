# shellcheck shell=dash
# Checks inside a machine that deploy/try-machines boots, for busybox's shell:
#
#   sh checks.sh NAME[:ARGUMENT],...      each in a process of its own, with a deadline
#
# Prints `@ PASS NAME: figures` or `@ FAIL NAME: reason` per check, after a failed one the end of
# what was printed, each line behind `| `. Files that a check leaves in ./out are printed between
# `@file CHECK NAME` and `@end`, as base64 of gzip.
agent=/opt/mem-profiler/lib/libmem_agent.so
programs=/checks/programs
# shellcheck source=page.sh
. /checks/page.sh
# shellcheck source=settings.sh
. /checks/settings.sh
# shellcheck source=memory.sh
. /checks/memory.sh
# shellcheck source=views.sh
. /checks/views.sh

# Deadline of one check, and of what it waits for, in seconds. Emulated processors are slow.
CHECK_TIMEOUT=600
WAIT_TIMEOUT=240

# ---- running checks

all() {
    local check
    IFS=,
    # shellcheck disable=SC2086  # split at commas
    set -- $1
    unset IFS
    for check in "$@"; do
        one "$check"
    done
    echo "@ END"
}

# one NAME[:ARGUMENT]: runs it and prints its outcome.
one() {
    local code=0 file begun place=/tmp/$1
    mkdir -p "$place/out"
    begun=$(uptime_seconds)
    timeout -s KILL "$CHECK_TIMEOUT" sh /checks/checks.sh --inside "$1" </dev/null >"$place/log" 2>&1 || code=$?
    # What it set and started, if it did not come to its end.
    echo 0 >/proc/sys/vm/overcommit_memory
    echo 65530 >/proc/sys/vm/max_map_count
    for file in "$place"/*.pid; do
        [ ! -s "$file" ] || kill -9 "$(cat "$file")" 2>/dev/null
    done
    if [ "$code" = 0 ] && [ -s "$place/figures" ]; then
        echo "@ PASS $1: $(cat "$place/figures") ($(($(uptime_seconds) - begun)) s)"
    else
        echo "@ FAIL $1: exit status $code"
        tail -n 40 "$place/log" | cut -c 1-300 | sed 's/^/| /'
    fi
    for file in "$place"/out/*; do
        [ -e "$file" ] || continue
        echo "@file $1 ${file##*/}"
        gzip -c "$file" | base64
        echo "@end"
    done
    rm -rf "$place"
}

# inside NAME[:ARGUMENT]: the check itself, in its own directory.
inside() {
    cd "/tmp/$1" || exit 1
    set -eu
    case $1 in
    *:*) "check_${1%%:*}" "${1#*:}" ;;
    *) "check_$1" ;;
    esac
}

fail() {
    echo "FAILED: $*"
    exit 1
}

# figures TEXT: what was measured. A check that passes must say it.
figures() {
    echo "$*" >figures
}

# The clock is set by some checks; this one is not.
uptime_seconds() {
    local up
    read -r up _ </proc/uptime
    echo "${up%%.*}"
}

# wait_for COMMAND...: until it succeeds.
wait_for() {
    local end
    end=$(($(uptime_seconds) + WAIT_TIMEOUT))
    until "$@"; do
        [ "$(uptime_seconds)" -lt "$end" ] || fail "waited $WAIT_TIMEOUT s for $*"
        sleep 0.2
    done
}

# ---- a program, and a session on it

# Command that starts programs and sessions as somebody else, if that is wanted.
as=

# start COMMAND...: with the agent; what it prints first must be `ready`. Sets $pid.
start() {
    rm -f to from
    mkfifo to from
    $as env LD_PRELOAD="$agent" "$@" <to >from 2>errors &
    pid=$!
    echo "$pid" >program.pid
    exec 5>to 6<from
    hear
    [ "$line" = ready ] || fail "the program said '$line': $(cat errors)"
}

hear() {
    line=
    # shellcheck disable=SC3045  # busybox knows -t
    read -r -t "$WAIT_TIMEOUT" line <&6 || fail "the program says nothing: $(cat errors)"
}

# tell LINE LAST: tells the program; its answer up to the line LAST is in ./answer.
tell() {
    echo "$1" >&5
    : >answer
    hear
    while [ "$line" != "$2" ]; do
        echo "$line" >>answer
        hear
    done
}

sampling() {
    mem_profiler list -p "$pid" | grep -q sampling
}

# sample INTERVAL OPTION...: begins a session. Dumps of earlier ones are removed.
sample() {
    local interval=$1
    shift
    rm -f d_*.heap
    $as mem_profiler -s 1000 -c "$interval" -p "$pid" -o d_ "$@" >session 2>&1 5>&- 6<&- &
    profiler=$!
    echo "$profiler" >profiler.pid
    wait_for sampling
}

# Ends the session by Ctrl-C. Sets $dump, the last that it wrote.
end_session() {
    kill -INT "$profiler"
    wait "$profiler" || fail "the session ended with $?: $(cat session)"
    rm profiler.pid
    last_dump
}

last_dump() {
    local file
    dump=
    for file in d_*.heap; do dump=$file; done
    [ -e "$dump" ] || fail "no dump"
}

# The program reads the end of its input and must end well.
end_program() {
    exec 5>&-
    wait "$pid" || fail "the program ended with $?: $(cat errors)"
    rm program.pid
}

# ---- a dump against what the program says

# sites PROGRAM: `site NAME OBJECTS BYTES LIVE_OBJECTS LIVE_BYTES` per function site_… of $dump.
sites() {
    local kind
    for kind in alloc_objects alloc_space inuse_objects inuse_space; do
        mem_parser -p "$1" -f "$dump" --folded "--$kind" 2>warnings |
            awk -v kind="$kind" '{
                count = $NF
                sub(/ [0-9]+$/, "")
                for (n = split($0, frames, ";"); n > 0; n--)
                    if (frames[n] ~ /^site_/) { sum[frames[n]] += count; break }
            } END { for (site in sum) print site, kind, sum[site] }'
    done | awk '{ value[$1 " " $2] = $3; sites[$1] = 1 } END {
        for (s in sites)
            print "site", s, value[s " alloc_objects"] + 0, value[s " alloc_space"] + 0,
                value[s " inuse_objects"] + 0, value[s " inuse_space"] + 0
    }' | sort
}

# compare PROGRAM: fails if $dump differs from the program's own counts in ./answer, or if a
# stack in it is cut off.
compare() {
    awk '/^site / && $3 > 0 { print $1, $2, $3, $4, $5, $6 }' answer | sort >expected
    [ -s expected ] || fail "the program said nothing"
    sites "$1" >found
    # To be looked at outside.
    diff -u expected found || { cp "$dump" out && fail "the dump differs from the program's counts"; }
    ! grep -q '^# counter [0-9]* truncated' "$dump" || fail "stacks are cut off: $(grep '^# counter' "$dump")"
}

# ---- the checks

# Every allocation of four threads, through all of the allocation family, on a live program.
check_exact() {
    local program=$programs/truth-$1
    start "$program"
    sample 1
    tell "go 200 4 1" "done"
    end_session
    compare "$program"
    figures "$(wc -l <found) places, $(awk '{ n += $3; b += $4 } END { printf "%d objects, %d bytes", n, b }' found)"
    end_program
}

# Threads, keys' destructors, deep stacks, coroutines, handlers of signals (through the vdso's code).
check_steps() {
    local step
    start "$programs/steps"
    sample 1
    for step in "keep 1000" "threads 40" "keys 10" "deep 500" coroutines "raised 50" "huge 300000000"; do
        tell "$step" ok
    done
    tell expected ok
    end_session
    compare "$programs/steps"
    figures "$(wc -l <found) places"
    end_program
}

# Estimates are within six standard errors, by the variance that the program calculates.
check_estimate() {
    local program=$programs/truth-plain
    start "$program"
    sample 1024
    tell "go 1500 4 1024" "done"
    end_session
    sites "$program" >found
    awk '
        # By Newton: busybox has no sqrt. 80 steps are enough for any variance here.
        function root(x, r, i) { r = x > 1 ? x : 1; for (i = 0; i < 80; i++) r = (r + x / r) / 2; return r }
        # Folded stacks are rounded: by less than four of them per place. An object of one byte that is sampled
        # stands for 1024, which happens once in 300 runs.
        function off(found, true, variance, rare) {
            return (found - true) / (6 * (variance > 0 ? root(variance) : 0) + 4 + rare)
        }
        FNR == NR { for (i = 0; i < 4; i++) found[$2, i] = $(3 + i); next }
        /^site / && $3 > 0 {
            for (i = 0; i < 4; i++) {
                rare = $2 == "site_new_array" && i % 2 == 0 ? 1024 : 0
                share = off(found[$2, i], $(3 + i), $(7 + i), rare)
                if (share < 0) share = -share
                if (share > worst) worst = share
                if (share > 1) { print $2, "column", i, "found", found[$2, i], "true", $(3 + i), "variance", $(7 + i); bad = 1 }
                n++
            }
        } END {
            printf "%d estimates, the worst is off by %.1f standard errors\n", n, 6 * worst >"figures"
            exit bad || n < 40
        }' found answer || fail "estimates"
    end_program
}

# Leaks of a live program: the report is judged outside. The programs of the picture, too.
check_leaks() {
    start "$programs/planted"
    sample 1
    tell plant planted
    mem_profiler leaks -p "$pid" --json --max 100 >out/leaks.json
    grep -q lost_bytes out/leaks.json || fail "no report: $(cat out/leaks.json)"
    tell "go 10" gone
    figures "$(sed -n 's/.*"lost_bytes": *\([0-9]*\).*/\1 bytes lost/p' out/leaks.json | head -n 1)"
    end_session
    end_program
}

# Checks at exit: of a program with known leaks, and of one without.
check_run_leaks() {
    local code=0
    mem_profiler run --leak-check -o l_ -- "$programs/leak_cases" plain >printed 2>&1 || code=$?
    cat printed
    [ "$code" = 1 ] || fail "exit status $code of a program with leaks"
    grep -q ': 1000 B lost in 10 objects' printed || fail "not 1000 bytes in 10 objects"
    code=0
    mem_profiler run --leak-check -o l_ -- "$programs/leak_cases" global >printed 2>&1 || code=$?
    cat printed
    [ "$code" = 0 ] || fail "exit status $code of a program without leaks"
    figures "1000 bytes in 10 objects; none where none are"
}

check_heapcheck() {
    local code=0
    LD_PRELOAD=$agent HEAPCHECK=normal "$programs/leak_cases" plain >printed 2>&1 || code=$?
    cat printed
    [ "$code" = 1 ] || fail "exit status $code of a program with leaks"
    grep -q 'detected leaks of 1000 bytes in 10 objects' printed || fail "not 1000 bytes in 10 objects"
    code=0
    LD_PRELOAD=$agent HEAPCHECK=normal "$programs/leak_cases" global >printed 2>&1 || code=$?
    cat printed
    [ "$code" = 0 ] || fail "exit status $code of a program without leaks"
    grep -q 'No leaks found' printed || fail "no word of it"
    figures "1000 bytes in 10 objects; none where none are"
}

# spent FILE FUNCTION: the share in percent of the sampled CPU time with the function in its stack.
# Under load many timers' signals are lost.
spent() {
    mem_parser -f "$1" --folded 2>warnings | awk -v name="$2" '
        index($0, "[not sampled]") { next } { all += $NF } index($0, name) { in_it += $NF } END { print all ? int(100 * in_it / all) : 0 }'
}

# profiled SECONDS ENGINE NAME FUNCTION LEAST: CPU time of $pid, by this engine.
profiled() {
    local file share
    mem_profiler cpu -s "$1" --engine "$2" -p "$pid" -o c_ >printed 2>&1 || fail "$(cat printed)"
    cat printed
    grep -q "$3" printed || fail "not by $3"
    for file in c_*.cpu; do :; done
    share=$(spent "$file" "$4")
    [ "$share" -ge "$5" ] || fail "$share % in $4"
    figures "$(sed -n 's/.*): \(.*complete\).*/\1/p' printed | head -n 1); $share % in $4"
}

# Perf events, on a program without the agent.
check_cpu() {
    STAYS=1 "$programs/burn" >/dev/null &
    pid=$!
    echo "$pid" >program.pid
    profiled 4 perf perf_event site_migration 95
}

# The agent's timers, on a program that allocates all the time.
check_timers() {
    start "$programs/truth-plain"
    echo "go 100000 2 1024" >&5
    profiled 4 timers timers work 75
}

# The controller is killed in a session, then the program: what is left has every count.
check_post_mortem() {
    local program=$programs/truth-plain
    start "$program"
    sample 1
    tell "go 200 4 1" "done"
    kill -9 "$profiler"
    wait "$profiler" || :
    kill -9 "$pid"
    wait "$pid" || :
    mem_profiler recover -o d_
    last_dump
    compare "$program"
    figures "$(wc -l <found) places"
}

# The guide's line for start scripts, in a script with `set -eu`.
check_start_script() {
    local name
    for name in planner lidar_front other; do cp "$programs/steps" $name; done
    {
        echo "set -eu"
        cat /checks/start_line
        for name in planner lidar_front other; do
            echo "mkfifo $name.to; ./$name <$name.to >/dev/null & echo \$! >$name.pid; exec 7>$name.to; sleep 1000 >&7 & echo \$! >$name.sleep.pid; exec 7>&-"
        done
        echo "echo started"
    } >start.sh
    sh start.sh >printed 2>&1
    cat printed
    grep -q started printed || fail "the script ended"
    grep -q 'use_mem_agent: planner:lidar\* will carry' printed || fail "the line did not say what it does"
    wait_for named lidar_front
    wait_for named planner
    ! named other || fail "a program that was not named carries the agent"
    pid=$(cat planner.pid)
    sample 1
    end_session
    figures "two programs named carry the agent, the third does not"
}

named() {
    mem_profiler list | awk -v name="$1" '$2 == name { found = 1 } END { exit !found }'
}

# Pictures of a dump: parsed outside.
check_picture() {
    local program=$programs/truth-plain
    start "$program"
    sample 1024
    tell "go 100 2 1024" "done"
    end_session
    mem_parser -p "$program" -f "$dump" -s -o out/graph.svg
    mem_parser -p "$program" -f "$dump" --flame -o out/flame.svg
    mem_parser -p "$program" -f "$dump" --html -o out/page.html
    mem_parser -p "$program" -f "$dump" -t | grep site_ >out/table
    cp "$dump" out/dump.heap
    figures "$(wc -c <out/graph.svg) bytes of graph, $(wc -c <out/flame.svg) of flame graph, $(wc -c <out/page.html) of page"
    end_program
}

# A machine without a clock begins in 1970, gets the time, and is corrected by three days: what
# --leaks says of the series is by the time that has passed.
check_clock() {
    local program=$programs/steps step begun
    date -s '1970-01-02 00:01:40'
    start "$program"
    begun=$(uptime_seconds)
    sample 1 --every 2s
    for step in 1 2 3 4 5 6; do
        tell "keep 500" ok
        wait_for written $((step * 2))
        case $step in
        2) date -s '2026-01-10 12:00:00' ;;
        4) date -s '2026-01-07 12:00:00' ;;
        esac
    done
    end_session
    mem_parser -p "$program" --leaks -f d_*.heap >leaks 2>warnings
    head -n 30 leaks
    ls -l
    awk -v most=$(($(uptime_seconds) - begun + 1)) '
        /^Leak suspects of/ {
            n = $4
            for (i = 1; i < NF; i++) if ($i == "in") { span = $(i + 1); unit = $(i + 2) }
        }
        /site_main/ { named = 1 }
        END {
            if (unit == "min") span *= 60
            ok = n >= 12 && (unit == "s" || unit == "min") && span >= 10 && span <= most && named
            printf "%d dumps in %s %s of at most %d s\n", n, span, unit, most >"figures"
            exit !ok
        }' leaks || fail "the series is not what was: $(cat figures)"
    # 3000 objects of 1000 bytes, all live; their age and growth are by time that has passed.
    awk -v most=$(($(uptime_seconds) - begun + 1)) '
        /site_main/ && row { print row > "row"; row = ""; exit }
        /^ *[0-9.]+ [KM]?i?B / { row = $0 }' leaks
    cat row
    grep -q ' 3000 ' row || fail "not 3000 objects: $(cat row)"
    end_program
}

# written N: whether there are this many dumps.
written() {
    set -- "$1" d_*.heap
    [ $(($# - 1)) -ge "$1" ]
}

# The checks set the clock and much else of the system: nowhere but in a machine made for them.
if [ "$(cat /proc/1/comm)" != init ] || ! grep -q ' checks=' /proc/cmdline; then
    echo "checks.sh: this is no machine that deploy/try-machines has booted" >&2
    exit 2
fi
case $1 in
--inside) inside "$2" ;;
*) all "$1" ;;
esac
