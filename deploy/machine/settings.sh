# shellcheck shell=dash
# shellcheck disable=SC2034,SC2154,SC2164  # checks.sh, which this is a part of, has them and -e
# Checks of what is set for a whole machine: huge pages, memory, control groups, ptrace and perf
# events. In each state an idle program does what it does without the agent, and a session is exact,
# or the reason why there is none is said.

# Command that another user runs.
user='/checks/chroot --userspec=1000:1000 --skip-chdir / env HOME=/tmp'

# set_to FILE VALUE: a setting of the kernel; fails if it does not take it.
set_to() {
    echo "$2" >"$1"
    [ "$(cat "$1")" = "$2" ] || fail "$1 is $(cat "$1"), not $2"
}

# exact_session: on a live program of four threads.
exact_session() {
    start "$programs/truth-plain"
    sample 1
    tell "go 20 4 1" "done"
    end_session
    compare "$programs/truth-plain"
    end_program
}

# unharmed: a program with the agent does what it does without; sampled from its start, it is exact.
unharmed() {
    local program=$programs/history
    printf '%s\n' begin step step step step step step expected >input
    "$program" <input >plain
    LD_PRELOAD=$agent "$program" <input >carried
    diff plain carried || fail "an idle agent changes what the program says"
    rm -f p_*.heap
    mem_profiler run -c 1 -o p_ -- "$program" <input >carried 2>session || fail "$(cat session)"
    diff plain carried || fail "a session changes what the program says"
    for dump in p_*.heap; do :; done
    is_history plain "$program"
}

# is_history ANSWER PROGRAM: $dump has exactly what the program says of its sites.
is_history() {
    awk '/^site_/ { print "site", $1, $4, $5, $2, $3 }' "$1" | sort >expected
    [ "$(wc -l <expected)" = 7 ] || fail "the program said: $(cat "$1")"
    sites "$2" >found
    diff expected found || fail "the dump differs from the program's counts"
}

# ---- memory

huge_pages=/sys/kernel/mm/transparent_hugepage/enabled

set_huge_pages() {
    echo "$1" >$huge_pages
    grep -q "\[$1\]" $huge_pages
}

# A session with a small heap gets no huge pages, whatever the system does about them.
check_thp() {
    local mode text='' huge
    for mode in always madvise never; do
        set_huge_pages $mode
        start "$programs/steps"
        sample 1
        tell "keep 1000" ok
        tell "threads 10" ok
        huge=$(awk '/^AnonHugePages:/ { print $2 }' "/proc/$pid/smaps_rollup")
        tell expected ok
        end_session
        compare "$programs/steps"
        end_program
        [ "$huge" = 0 ] || fail "$mode: $huge KiB of huge pages"
        text="$text$mode, "
    done
    figures "${text}exact, without huge pages"
}

committed() {
    awk '/^Committed_AS:/ { print $2 }' /proc/meminfo
}

# What a session commits before the program allocates, by how freely the system commits memory.
check_overcommit() {
    local mode text='' idle
    for mode in 1 2 0; do
        set_to /proc/sys/vm/overcommit_memory $mode
        unharmed
        start "$programs/truth-plain"
        idle=$(committed)
        sample 1
        text="$text$mode: $((($(committed) - idle) / 1024)) MiB; "
        tell "go 20 4 1" "done"
        end_session
        compare "$programs/truth-plain"
        end_program
    done
    figures "exact; committed by controller and session: ${text%; }"
}

# What is committed without a limit to spare, by how many MiB may be committed besides: the program goes on, and a
# session samples it or says why not.
check_committed() {
    local left text='' code limit=/proc/sys/vm/overcommit_kbytes
    set_to /proc/sys/vm/overcommit_memory 2
    for left in 128 80 56 32 8 2; do
        echo 100000000 >$limit
        rm -f d_*.heap
        start "$programs/steps"
        tell "keep 1000" ok
        echo $(($(committed) + left * 1024)) >$limit
        mem_profiler -s 2 -c 1 -p "$pid" -o d_ >session 2>&1 5>&- 6<&- &
        profiler=$!
        for step in 1 2 3 4; do
            tell "keep 10" ok
            sleep 0.5
        done
        wait $profiler && code=0 || code=$?
        echo 100000000 >$limit
        cat session
        tell "keep 1" ok
        case $code in
        0) last_dump && text="$text$left: sampled; " ;;
        1) text="$text$left: $(sed -n 's/^mem_profiler: //p' session | head -n 1 | cut -c 1-120); " ;;
        *) fail "$left MiB: exit status $code" ;;
        esac
        end_program
    done
    set_to /proc/sys/vm/overcommit_memory 0
    figures "MiB left, ${text%; }"
}

# A program that may have few mappings more than it has: a session is exact, or says why there is none. It has
# many more than the tools, which the limit is for as well.
check_map_count() {
    local limit=/proc/sys/vm/max_map_count usual room code text='' step program=$programs/history
    usual=$(cat $limit)
    printf '%s\n' begin step step step step step step expected | "$program" | grep '^site_' >plain
    for room in 1 2 8 1000; do
        start "$program"
        tell "map 1000" ok
        set_to $limit $(($(wc -l <"/proc/$pid/maps") + room))
        rm -f d_*.heap
        mem_profiler -s 1000 -c 1 -p "$pid" -o d_ >session 2>&1 5>&- 6<&- &
        profiler=$!
        echo "$profiler" >profiler.pid
        wait_for begun
        for step in begin step step step step step step expected; do tell $step ok; done
        kill -INT "$profiler" || :
        wait "$profiler" && code=0 || code=$?
        set_to $limit "$usual"
        cat session
        diff plain answer || fail "with $room more: the program said something else"
        if grep -q max_map_count session; then
            text="$text$room: said; "
        else
            [ "$code" = 0 ] || fail "with $room more: exit status $code"
            last_dump
            is_history plain "$program"
            text="$text$room: exact; "
        fi
        end_program
    done
    figures "mappings more, ${text%; }"
}

# Whether $profiler samples, or has ended.
begun() {
    sampling || ! kill -0 "$profiler" 2>/dev/null
}

# ---- control groups

groups=/sys/fs/cgroup

# check_small VERSION: the session, the program and the table have 64 MB of memory together.
check_small() {
    local group program=$programs/truth-plain used
    if [ "$1" = 1 ]; then
        mkdir -p old
        # Version 2 gives it away once no group of it is left.
        wait_for mount -t cgroup -o memory memory old
        group=old/small
        mkdir $group
        echo 64M >$group/memory.limit_in_bytes
        echo $$ >$group/cgroup.procs
    else
        group=$groups/small
        echo +memory >$groups/cgroup.subtree_control
        mkdir -p $group
        echo 64M >$group/memory.max
        echo $$ >$group/cgroup.procs
    fi
    start "$program"
    sample 1
    tell "go 200 4 1" "done"
    end_session
    compare "$program"
    grep -h '^oom_kill ' $group/memory.events $group/memory.oom_control >killed 2>/dev/null || :
    grep -q '^oom_kill 0$' killed || fail "killed: $(cat killed)"
    used=$(cat $group/memory.peak 2>/dev/null || cat $group/memory.max_usage_in_bytes 2>/dev/null || cat $group/memory.current)
    figures "$(wc -l <found) places; at most $used bytes used"
    end_program
    if [ "$1" = 1 ]; then
        echo $$ >old/cgroup.procs
        rmdir $group
        umount old
    else
        echo $$ >$groups/cgroup.procs
        rm -f d_*.heap
        rmdir $group
        echo -memory >$groups/cgroup.subtree_control
    fi
}

# A frozen group is named; thawed, the program is sampled.
check_frozen() {
    local group=$groups/frozen
    mkdir -p $group
    start "$programs/truth-plain"
    echo "$pid" >$group/cgroup.procs
    echo 1 >$group/cgroup.freeze
    wait_for grep -q '^frozen 1$' $group/cgroup.events
    mem_profiler -s 1 -p "$pid" -o f_ >said 2>&1 || :
    cat said
    echo 0 >$group/cgroup.freeze
    grep -q "$group is frozen" said || fail "the group is not named"
    sample 1
    tell "go 20 4 1" "done"
    end_session
    compare "$programs/truth-plain"
    end_program
    figures "$(sed -n 's/.*\(its control group [^,]*\).*/\1/p' said | head -n 1); exact once it was thawed"
}

# ---- ptrace and perf events

# leaks_as WHOSE WORDS: a leak check of $pid reports, or fails with these words.
leaks_as() {
    $1 mem_profiler leaks -p "$pid" --json --max 100 >report 2>said && code=0 || code=$?
    tail -n 3 said
    if [ -z "$2" ]; then
        grep -q lost_bytes report || fail "no report: $(cat said)"
    else
        [ "$code" = 1 ] || fail "exit status $code"
        grep -q "$2" said || fail "not said: $2"
    fi
}

# Yama's scopes: sessions need no ptrace, leak checks do.
check_yama() {
    local scope=/proc/sys/kernel/yama/ptrace_scope number of_user of_root
    chmod 777 .
    for number in 0 1 2 3; do
        set_to $scope $number
        echo "scope $number"
        of_user="ptrace_scope is $number" of_root=''
        [ $number != 0 ] || of_user=''
        [ $number != 3 ] || of_root="ptrace_scope is 3"
        as=$user
        exact_session
        rm -f d_*.heap
        start "$programs/planted"
        sample 1
        tell plant planted
        leaks_as "$user" "$of_user"
        leaks_as '' "$of_root"
        tell "go 10" gone
        end_session
        end_program
        as=
    done
    figures "sessions exact in all; leak checks of a user in 0, of root in 0 to 2, else the scope is said"
}

# cpu_as WHOSE WORDS: CPU time of $pid by perf events, or a refusal in these words.
cpu_as() {
    rm -f c_*.cpu
    $1 mem_profiler cpu -s 1 --engine perf -p "$pid" -o c_ >said 2>&1 && code=0 || code=$?
    tail -n 3 said
    if [ -z "$2" ]; then
        [ "$code" = 0 ] || fail "exit status $code"
    else
        [ "$code" = 1 ] || fail "exit status $code"
        grep -q "$2" said || fail "not said: $2"
    fi
}

check_paranoid() {
    local setting=/proc/sys/kernel/perf_event_paranoid number words
    chmod 777 .
    as=$user
    STAYS=1 $user "$programs/burn" >/dev/null &
    pid=$!
    echo "$pid" >program.pid
    as=
    for number in -1 0 1 2 3 4; do
        set_to $setting $number
        echo "paranoid $number"
        words=''
        [ $number -lt 3 ] || words="perf_event_paranoid is $number"
        cpu_as "$user" "$words"
        cpu_as '' ''
    done
    figures "root and a user up to 2; above, the setting is said to users"
}

# ---- what surrounds one program

# Each line of the list that tests/tests/surroundings.rs runs on the machine that builds.
check_surroundings() {
    local name outcome script count=0 program=$programs/history
    local place=/surroundings
    mkdir -p $place
    cd $place
    mkdir -p out
    # shellcheck disable=SC3040  # busybox knows it
    set -o pipefail
    printf '%s\n' begin step step step step step step expected >input
    "$program" <input >plain
    # In files: the loop must not lose lines to what it starts.
    grep -v '^#' /checks/surroundings >list
    while IFS= read -r line <&9; do
        name=${line%% | *} script=${line#* | }
        outcome=${script%% | *} script=${script#* | }
        echo "== $name"
        # Through pipes, since the limit on the size of files is among what is tried.
        # shellcheck disable=SC2016  # expanded inside
        within "$script" 'LD_PRELOAD="$AGENT" exec "$1" <"$INPUT"' | cat >idle || fail "$name: exit status $?"
        diff plain idle || fail "$name: an idle agent changes what the program says"
        rm -f p_*.heap
        # shellcheck disable=SC2016  # expanded inside
        { within "$script" 'exec "$0" run -c 1 --agent "$AGENT" -o p_ -- "$1" <"$INPUT"' 2>&1 >&4 | cat >said; } 4>&1 |
            cat >sampled && code=0 || code=$?
        cat said
        if [ "$outcome" = exact ]; then
            [ "$code" = 0 ] || fail "$name: exit status $code"
            diff plain sampled || fail "$name: a session changes what the program says"
            for dump in p_*.heap; do :; done
            is_history plain "$program"
        else
            grep -q "$outcome" said || fail "$name: not said: $outcome"
            [ ! -s sampled ] || diff plain sampled || fail "$name: a session changes what the program says"
        fi
        count=$((count + 1))
    done 9<list
    cd "$OLDPWD"
    figures "$count surroundings"
}

# within SCRIPT COMMAND: with the script's surroundings.
within() {
    AGENT=$agent INPUT=$PWD/input /checks/unshare --mount --pid --uts --fork --mount-proc --kill-child sh -c "
        mount -t tmpfs none /dev/shm && mount -t tmpfs none /tmp && $1 && exec \"\$@\"" sh \
        sh -c "$2" /opt/mem-profiler/bin/mem_profiler "$programs/history" </dev/null
}

# ---- what it takes

# shared PID: bytes of a process's segment that are there, in KiB.
shared() {
    du -k /dev/shm/*"$1"* | awk '{ n += $1 } END { print n + 0 }'
}

# peak COMMAND...: runs it; the most memory that it had, in KiB, is in ./peak.
peak() {
    : >peaks
    "$@" >measured 2>&1 &
    while [ -d "/proc/$!" ]; do
        # It may end meanwhile.
        awk '/^VmHWM:/ { print $2 }' "/proc/$!/status" 2>/dev/null >>peaks || :
        sleep 0.05
    done
    wait $! || fail "$(cat measured)"
    sort -n peaks | tail -n 1 >peak
    [ -s peak ] || fail "$1 ended before its memory was read"
    rm peaks
}

# Disk, shared memory and memory that an idle program, a busy one and the tools take.
check_footprint() {
    local idle idle_dump stacks during controller
    start "$programs/steps"
    idle=$(shared "$pid")
    sample 1
    tell "keep 1" ok
    end_session
    idle_dump=$(wc -c <"$dump")
    end_program
    start "$programs/truth-plain"
    sample 1
    tell "go 1500 4 1" "done"
    during=$(shared "$pid")
    controller=$(awk '/^VmHWM:/ { print $2 }' "/proc/$profiler/status")
    end_session
    stacks=$(grep -c ' @ ' "$dump")
    peak mem_parser -t -f "$dump"
    figures "idle: $idle KiB of shared memory, a dump of $idle_dump bytes; $stacks stacks: $during KiB of shared memory, a dump of $(wc -c <"$dump") bytes; memory: mem_profiler $controller KiB, mem_parser $(cat peak) KiB"
    end_program
}
