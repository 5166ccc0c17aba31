# shellcheck shell=dash
# shellcheck disable=SC2154  # of checks.sh
# The page that comes with a board's package, followed to the letter: whoever has it alone gets from the
# package to the picture.

# step NUMBER: the commands of one of its steps.
step() {
    awk -v n="$1" '
        $0 ~ "^" n "\\. " { here = 1 }
        $0 ~ "^" n + 1 "\\. " { here = 0 }
        /^ *```sh$/ { code = here; next }
        /^ *```$/ { code = 0 }
        code { sub(/^   /, ""); print }' /media/README.md
}

# shorter: its commands, with a few seconds in place of a minute.
shorter() {
    sed 's/-s 60/-s 5/'
}

# started NAME PROGRAM: lines of a start script.
started() {
    cp "$2" "$1"
    echo "mkfifo $1.to; ./$1 <$1.to >/dev/null & echo \$! >$1.pid"
}

# The script that starts the programs, with the page's line, then its commands in another shell. The programs
# are called as on the page.
check_readme() {
    local archive tree
    {
        echo "set -eu"
        step 2
        started planner "$programs/history"
        started perception "$programs/steps"
        started other "$programs/steps"
        echo "echo started"
    } >start.sh
    sh start.sh >printed 2>&1
    cat printed
    grep -q started printed || fail "the script ended"
    exec 5>planner.to 6>perception.to 7>other.to
    wait_for named planner
    wait_for named perception
    ! named other || fail "a program that was not named carries the agent"
    # It allocates all the time.
    (echo begin && echo step && while echo "age 20"; do :; done) >&5 &
    echo $! >feeder.pid
    rm -rf /tmp/mem-profiler-* /tmp/prof_*
    step 3 | shorter >step3.sh
    grep -q collect.bash step3.sh || fail "no commands on the page"
    env -i PATH=/bin TERM=vt100 sh -eux step3.sh >collected 2>said || fail "step 3: $(cat said)"
    cat said collected
    [ "$(grep -c -e ' planner ' -e ' perception ' collected)" = 2 ] || fail "the list lacks them"
    archive=$(tail -n 1 collected)
    tar -xzf "$archive"
    tree=${archive##*/}
    tree=${tree%.tar.gz}
    cp "$tree"/reports/prof_planner.*.html out/page.html
    cp "$tree"/reports/prof_planner.*[0-9].svg out/graph.svg
    grep -q site_ring "$tree"/reports/prof_planner.*[0-9].txt || fail "no table in the archive"
    { step 3 | sed 1q && step 4; } | shorter >step4.sh
    env -i PATH=/bin TERM=vt100 sh -eux step4.sh >table 2>said || fail "step 4: $(cat said)"
    grep -q site_ring table || fail "no table: $(cat table said)"
    rm -rf /tmp/mem-profiler-* /tmp/prof_*
    figures "from the package to page, graph and table; archive of $(find "$tree" -type f | wc -l) files"
}
