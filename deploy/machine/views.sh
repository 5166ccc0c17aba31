# shellcheck shell=dash
# shellcheck disable=SC2154  # checks.sh, which this is a part of, has them
# Checks of what the tools show of a live program, and of what they say that sampling costs.

# ---- list, top, why

# row NAME COLUMN FILE: a value with its unit, in bytes, of the row that ends with the function.
row() {
    awk -v name="$1" -v column="$2" '
        BEGIN { unit["B"] = 1; unit["KiB"] = 1024; unit["MiB"] = 1048576; unit["GiB"] = 1073741824 }
        $NF == name { at = 2 * column - 1; printf "%.0f\n", $at * unit[$(at + 1)]; exit }' "$3"
}

# near WHAT FOUND TRUE PERCENT: within some percent of the truth.
near() {
    [ -n "$2" ] || fail "$1: nothing is shown, $3 in truth"
    awk -v found="$2" -v true="$3" -v percent="$4" 'BEGIN { off = found - true; if (off < 0) off = -off; exit off * 100 > true * percent }' ||
        fail "$1: $2 is shown, $3 in truth"
}

# The screens of a program whose heap is known: live bytes by function, the heap as a part of what is resident.
check_views() {
    local step name live_bytes live rss
    start "$programs/history"
    sample 1
    for step in begin step step step step step step expected; do tell $step ok; done
    live=$(awk '/^site_/ { n += $3 } END { print n }' answer)
    mem_profiler list -p "$pid" >listed 2>&1
    cat listed
    awk -v pid="$pid" '$1 == pid && $2 == "history" && /sampling +1 / { found = 1 } END { exit !found }' listed || fail "not in the list"
    mem_profiler top --once -p "$pid" >shown 2>&1
    cat shown
    awk '/^site_/ && $3 { print $1, $3 }' answer >true
    while read -r name live_bytes; do
        near "top, $name" "$(row "$name" 2 shown)" "$live_bytes" 3
    done <true
    mem_profiler why -p "$pid" >parts 2>&1
    cat parts
    rss=$(awk '/^Rss:/ { print $2 * 1024 }' "/proc/$pid/smaps_rollup")
    # Every resident byte is in one row. The agent's file and the allocator's pages come and go.
    near "why, all rows" "$(awk '
        BEGIN { unit["B"] = 1; unit["KiB"] = 1024; unit["MiB"] = 1048576 }
        /^  [a-z]/ { for (i = 2; i < NF; i++) if ($(i + 1) in unit && $i ~ /^[0-9.]+$/) { n += $i * unit[$(i + 1)]; break } }
        END { printf "%.0f\n", n }' parts)" "$rss" 3
    # Objects are rounded up to size classes and pages, and there are holes.
    awk -v live="$live" '
        BEGIN { unit["KiB"] = 1024; unit["MiB"] = 1048576 }
        /^  live heap/ { heap = $3 * unit[$4] }
        END { printf "heap %d, live %d\n", heap, live; exit !(heap >= live && heap <= 1.2 * live) }' parts || fail "the heap is not the live objects"
    end_session
    end_program
    figures "$(wc -l <true) functions as they are, $((live / 1024)) KiB live of $((rss / 1024)) KiB resident"
}

# ---- rss

# touched PROGRAM FILE: resident bytes by the function touch_…, or by the pseudo-frame.
touched() {
    mem_parser -p "$1" -f "$2" --folded --sample_index resident 2>warnings | awk '{
        bytes = $NF
        sub(/ [0-9]+$/, "")
        name = "other"
        for (n = split($0, frames, ";"); n > 0; n--)
            if (frames[n] ~ /^(touch_|\[not sampled|\[resident before)/) { name = frames[n]; break }
        gsub(/ /, "_", name)
        sum[name] += bytes
    } END { for (name in sum) print name, sum[name] }' | sort
}

# Resident memory by the function that touched it, by what the system does about huge pages. The 32 MiB of
# touch_populated come without a fault. Pages that are far from a sample are said to have none: a function may lack
# them, and they are few. A faster rate is too much for an emulated processor.
check_rss() {
    local mode text='' program=$programs/toucher file rss missing
    for mode in always never; do
        set_huge_pages $mode
        rm -f mapped r_*
        start "$program" mapped
        mem_profiler rss -F 100 -p "$pid" -o r_ >session 2>&1 5>&- 6<&- &
        profiler=$!
        echo "$profiler" >profiler.pid
        wait_for has_begun
        tell go "done"
        kill -INT "$profiler"
        wait "$profiler" || fail "the session ended with $?: $(cat session)"
        cat session
        rss=$(awk '/^Rss:/ { print $2 * 1024 }' "/proc/$pid/smaps_rollup")
        for file in r_*.rss; do :; done
        touched "$program" "$file" >found
        echo "$mode:"
        cat found
        near "$mode, all" "$(awk '{ n += $2 } END { print n }' found)" "$rss" 1
        missing=$(awk '$1 == "[not_sampled]" { print $2 - 31 * 1048576 }' found)
        if [ "$missing" -lt 0 ] || [ "$missing" -gt $((rss / 5)) ]; then fail "$mode: $missing bytes without a sample"; fi
        awk -v missing="$missing" '
            FNR == NR { found[$1] = $2; next }
            /^touch_/ && (found[$1] > 1.03 * $2 || found[$1] + missing < 0.97 * $2) {
                print $1, "has", $2, "in truth"
                bad = 1
            }
            END { exit bad }' found answer || fail "$mode"
        text="$text$mode: $((rss / 1048576)) MiB, $((missing / 1048576)) without a sample; "
        end_program
    done
    figures "$(grep -c ^touch_ answer) functions; ${text%; }"
}

# Sampling has begun once a thread prints.
has_begun() {
    set -- "/proc/$profiler/task"/*
    [ $# -gt 1 ] || ! kill -0 "$profiler" 2>/dev/null
}

# ---- what sampling costs

# toil OPTION...: CPU time in µs of a fixed amount of work, in a session with these options.
toil() {
    rm -f k_*.heap
    mem_profiler run -o k_ "$@" -- "$programs/toil" 4000000 >printed 2>session || cat session >&2
    grep -x "[0-9]*" printed
}

# In a machine whose clock counts instructions: what a session that is not told otherwise costs, and what it says
# of that. Compared is with a session that samples next to nothing.
check_cost() {
    local base limited fixed said said_fixed intervals
    base=$(toil -c 100000000)
    limited=$(toil)
    dump=$(echo k_*.heap)
    said=$(cost)
    intervals=$(mem_parser -t -f "$dump" | grep '^Interval:')
    fixed=$(toil -c 1024)
    dump=$(echo k_*.heap)
    said_fixed=$(cost)
    echo "$base us, limited $limited, says $said; at 1024 $fixed, says $said_fixed"
    echo "$intervals"
    # Each period ended with a sample.
    case $intervals in
    *"(0%"*) fail "a period that cost nothing" ;;
    *"% of CPU time"*", "*) ;;
    *) fail "the interval was not adapted" ;;
    esac
    awk -v base="$base" -v limited="$limited" -v said="$said" -v fixed="$fixed" -v said_fixed="$said_fixed" '
        # Percent of the CPU time in the session, which the limit and the line are of.
        function share(cpu) { return 100 * (cpu - base) / cpu }
        BEGIN {
            # The share of another 200 ms may be spent at once.
            most = 5 * (1 + 200000 / limited)
            ok = share(limited) <= 1.25 * most && near(said, share(limited)) && near(said_fixed, share(fixed))
            printf "limited: %.1f %% of CPU time, says %.1f; at 1024: %.1f %%, says %.1f\n",
                share(limited), said, share(fixed), said_fixed >"figures"
            exit !ok
        }
        function near(said, true, off) { off = said - true; return (off < 0 ? -off : off) <= 1 + 0.3 * true }' || fail "$(cat figures)"
}

# cost: percent of CPU time that $dump says.
cost() {
    mem_parser -t -f "$dump" 2>warnings | sed -n 's/^Cost: \([0-9.]*\)%.*/\1/p'
}
