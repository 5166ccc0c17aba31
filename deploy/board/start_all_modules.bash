#!/usr/bin/env bash
# An example of a start script: starts several modules, some of them with the agent.
#
#   start_all_modules.bash [DIRECTORY]      logs and pids go there (./run)
#
# The modules are programs that many systems have; put yours in their place. Ctrl-C, or a signal,
# stops them all.
set -u
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
run=${1:-./run}
mkdir -p "$run" && run=$(cd "$run" && pwd) || exit 1

# All that profiling needs: one line, before the modules. Without the agent they start as well.
# shellcheck disable=SC2015  # the script goes on in any case
(. "$here/setup.bash") && . "$here/setup.bash" && use_mem_agent redis-server 'python3*' || :

pids=()
# start NAME COMMAND...
start() {
    local name=$1
    shift
    command -v "$1" >/dev/null || { echo "start: $name: there is no $1 on this machine" >&2 && return 1; }
    "$@" >"$run/$name.log" 2>&1 &
    pids+=($!)
    echo $! >"$run/$name.pid"
    echo "start: $name, pid $!"
}

stop_all() {
    trap '' INT TERM
    kill ${pids[@]+"${pids[@]}"} 2>/dev/null
    wait
    exit 0
}
trap stop_all INT TERM

# The way a module is started does not matter: its own name counts, not that of nice or nohup.
start bus redis-server --port "${BUS_PORT:-7001}" --save '' --appendonly no
start maps nice -n 5 python3 -m http.server "${MAPS_PORT:-7002}" --bind 127.0.0.1 --directory "$run"
# Not named above, so it runs without the agent, allocator and all.
start clock nohup bash -c 'while :; do date; sleep 1; done'

[ ${#pids[@]} -gt 0 ] || exit 1
echo "start: ${#pids[@]} modules run"
wait
