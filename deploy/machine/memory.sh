# shellcheck shell=dash
# shellcheck disable=SC2154  # checks.sh, which this is a part of, has them
# Checks of the memory that an idle agent takes: of a program that sleeps, of a hundred, and of one that works.

# memory PRELOAD: RSS of an idle sleep, how much of it is anonymous, and how much in huge pages; KiB.
memory() {
    LD_PRELOAD=$1 "$programs/sleep" 1000 &
    echo $! >program.pid
    wait_for asleep $!
    awk '/^(Rss|Anonymous|AnonHugePages):/ { n[$1] += $2 } END {
        print n["Rss:"], n["Anonymous:"], n["AnonHugePages:"] }' "/proc/$!/smaps_rollup"
    # What has anonymous memory, for when it is too much.
    awk '/^[0-9a-f]+-[0-9a-f]+ / { place = $1 " " $2 " " $6 } /^Anonymous:/ && $2 { print $2, "KiB", place }' "/proc/$!/smaps" >mappings
    kill $!
    wait $! 2>/dev/null || :
}

# Whether the process has got as far as its sleep.
asleep() {
    local clock_nanosleep=115
    [ "$(uname -m)" != x86_64 ] || clock_nanosleep=230
    [ "$(readlink "/proc/$1/exe")" = "$programs/sleep" ] || return 1
    [ "$(cut -d ' ' -f 1 "/proc/$1/syscall")" = $clock_nanosleep ]
}

# Anonymous memory that an idle agent may add, KiB. The rest of its RSS is its file. It writes to some twenty places,
# and the libraries that a package's agent needs before glibc 2.34 to four more; each takes a page, of any size.
idle_kib() {
    case $(awk '/^KernelPageSize:/ { print $2; exit }' /proc/self/smaps) in
    4) echo 224 ;;
    16) echo 409 ;;
    *) echo 1152 ;;
    esac
}

# An idle agent's memory, by what the system does about huge pages.
check_idle() {
    local mode text=''
    for mode in always madvise never; do
        set_huge_pages $mode
        memory '' >alone
        memory "$agent" >carried
        text="$text$(echo "$(cat alone) $(cat carried)" | awk -v mode=$mode '{
            printf "%s: RSS %d -> %d KiB, anonymous %d -> %d, huge %d; ", mode, $1, $4, $2, $5, $6 }')"
        echo "$text"
        [ "$(echo "$(cat alone) $(cat carried)" | awk '{ print $5 - $2 }')" -le "$(idle_kib)" ] ||
            fail "$mode: more than $(idle_kib) KiB: $(cat mappings)"
        [ "$(awk '{ print $3 }' carried)" = 0 ] || fail "$mode: huge pages of an idle program"
    done
    figures "${text%; }"
}

# hundred PRELOAD: anonymous and proportional memory of a hundred idle processes together, KiB, and their CPU time in
# three seconds, µs.
hundred() {
    local group=$groups/hundred n before idle processes=''
    mkdir -p "$group"
    # In the group from its first instruction.
    for n in $(seq 100); do
        (
            echo 0 >"$group/cgroup.procs"
            LD_PRELOAD=$1 exec "$programs/sleep" 1000
        ) &
        processes="$processes $!"
    done
    for n in $processes; do wait_for asleep "$n"; done
    before=$(usage "$group")
    sleep 3
    idle=$(($(usage "$group") - before))
    for n in $processes; do cat "/proc/$n/smaps_rollup"; done |
        awk -v idle=$idle '/^(Anonymous|Pss):/ { n[$1] += $2 } END { print n["Anonymous:"], n["Pss:"], idle }'
    # shellcheck disable=SC2086  # words
    kill $processes
    wait
    rmdir "$group"
}

# usage GROUP: CPU time of all that ran in a control group, in µs.
usage() {
    awk '/^usage_usec/ { print $2 }' "$1/cpu.stat"
}

# What an idle agent costs each of many processes, by what the system does about huge pages.
check_hundred() {
    local mode text=''
    for mode in always madvise never; do
        set_huge_pages $mode
        hundred '' >alone
        hundred "$agent" >carried
        echo "$mode: $(cat alone) without, $(cat carried) with"
        text="$text$(echo "$(cat alone) $(cat carried)" | awk -v mode=$mode '{
            printf "%s: %d KiB anonymous, %d proportional, %d us of CPU time in 3 s; ",
                mode, ($4 - $1) / 100, ($5 - $2) / 100, ($6 - $3) / 100 }')"
        [ "$(echo "$(cat alone) $(cat carried)" | awk '{ print int(($4 - $1) / 100) }')" -le "$(idle_kib)" ] ||
            fail "$mode: more than $(idle_kib) KiB"
        # Nothing wakes an idle program: what is spent is the kernel's own.
        [ "$(awk '{ print int($3 / 100) }' carried)" -le 100 ] || fail "$mode: $(cat carried): it is not idle"
    done
    figures "added to each of 100, ${text%; }"
}

# Anonymous memory that an idle agent may add to a program that has worked, KiB: what is cached for its threads,
# and the pages of size classes that are used in part.
work_kib() {
    case $(awk '/^KernelPageSize:/ { print $2; exit }' /proc/self/smaps) in
    4 | 16) echo 1075 ;;
    *) echo 5120 ;;
    esac
}

# worked PRELOAD: anonymous memory of a program after its work, and how much of it is in huge pages; KiB.
worked() {
    agent=$1
    start "$programs/truth-plain"
    tell "go 200 4 1" "done"
    awk '/^(Anonymous|AnonHugePages):/ { n[$1] += $2 } END { print n["Anonymous:"], n["AnonHugePages:"] }' "/proc/$pid/smaps_rollup"
    end_program
}

# An idle agent's memory in a C++ program with four threads that has worked, by what the system does about huge pages.
check_at_work() {
    local mode text='' ours=$agent
    for mode in always madvise never; do
        set_huge_pages $mode
        worked '' >alone
        worked "$ours" >carried
        text="$text$(echo "$(cat alone) $(cat carried)" | awk -v mode=$mode '{
            printf "%s: anonymous %d -> %d KiB, huge %d -> %d; ", mode, $1, $3, $2, $4 }')"
        echo "$text"
        [ "$(echo "$(cat alone) $(cat carried)" | awk '{ print $3 - $1 }')" -le "$(work_kib)" ] ||
            fail "$mode: more than $(work_kib) KiB"
    done
    figures "${text%; }"
}
