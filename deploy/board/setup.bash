# shellcheck shell=sh
# Sets up mem-profiler in a shell or a start script. To be sourced, not run:
#
#   . /opt/mem-profiler/setup.bash
#
# Adds the tools to PATH, the man pages to MANPATH, in an interactive bash the completions, and
# defines use_mem_agent (below). Changes nothing else, and needs bash 4.3 or any POSIX shell; one
# other than bash cannot tell where this file is, so set MEM_PROFILER_HOME first.

# use_mem_agent [NAME...]: the programs that are started from here on carry the agent; with names,
# only those. A name is an executable's or a script's, as `mem_profiler list` shows it, and may
# have * and ?. The agent does nothing until mem_profiler starts a session.
#
# What is in LD_PRELOAD already stays in it. Prints one line on standard error. Off without a change
# of the script: USE_MEM_AGENT=0. If the agent cannot be loaded on this machine, says why and changes
# nothing; that is no failure, since it must not end a start script with `set -e`.
use_mem_agent() {
    case ${USE_MEM_AGENT:-1} in
    0 | no | off | false)
        echo "use_mem_agent: off, by USE_MEM_AGENT=$USE_MEM_AGENT" >&2
        return 0
        ;;
    esac
    _mem_names=
    for _mem_name in "$@"; do
        case $_mem_name in
        '' | */* | *:*)
            echo "use_mem_agent: '$_mem_name' is no name of a program: names have no / and no :" >&2
            return 2
            ;;
        esac
        _mem_names=${_mem_names:+$_mem_names:}$_mem_name
    done
    _mem_agent=$(_mem_find_agent) || return 0
    _mem_said=$(_mem_try "$_mem_agent") || {
        echo "use_mem_agent: the agent does not load here, the programs start without it: $_mem_said" >&2
        return 0
    }
    _mem_preload "$_mem_agent"
    export MEM_PROFILER_ONLY="$_mem_names"
    [ -n "$_mem_names" ] || unset MEM_PROFILER_ONLY
    echo "use_mem_agent: ${_mem_names:-every program} will carry $_mem_agent (USE_MEM_AGENT=0 switches it off)" >&2
}

# Prints the agent's path: MEM_AGENT_LIB, or where the packages have it.
_mem_find_agent() {
    for _mem_file in "${MEM_AGENT_LIB:-$MEM_PROFILER_HOME/lib/libmem_agent.so}" \
        "$MEM_PROFILER_HOME/lib/mem-profiler/libmem_agent.so"; do
        [ -r "$_mem_file" ] || continue
        case $_mem_file in
        *:* | *'
'*) break ;;
        /*) printf '%s\n' "$_mem_file" ;;
        *) printf '%s\n' "$PWD/$_mem_file" ;;
        esac
        return 0
    done
    echo "use_mem_agent: there is no agent that can be preloaded at ${MEM_AGENT_LIB:-$MEM_PROFILER_HOME/lib}; the programs start without it" >&2
    return 1
}

# Whether the loader takes the agent, in a program of the same package: it says nothing then. What it
# says is printed by the shell itself, since other programs would have it said once more.
_mem_try() (
    _mem_preload "$1"
    _mem_text=$(mem_profiler --version 2>&1) || { echo "$_mem_text" && exit 1; }
    case $_mem_text in
    *'
'*) echo "${_mem_text%%
*}" && exit 1 ;;
    esac
)

# Puts the agent before what is preloaded anyway, once. The loader takes blanks in LD_PRELOAD for the
# ends of paths; those of LD_LIBRARY_PATH may have some.
_mem_preload() {
    _mem_entry=$1
    case $1 in
    *[[:space:]]*)
        _mem_entry=${1##*/}
        case :${LD_LIBRARY_PATH:-}: in
        *:"${1%/*}":*) ;;
        *) export LD_LIBRARY_PATH="${1%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ;;
        esac
        ;;
    esac
    case :${LD_PRELOAD:-}: in
    *[:\ ]"$_mem_entry"[:\ ]*) ;;
    *) export LD_PRELOAD="$_mem_entry${LD_PRELOAD:+:$LD_PRELOAD}" ;;
    esac
}

# shellcheck disable=SC2128,SC3028  # bash alone knows; the first element is meant
if [ -n "${BASH_SOURCE:-}" ]; then
    MEM_PROFILER_HOME=$(readlink -f "$BASH_SOURCE") && MEM_PROFILER_HOME=${MEM_PROFILER_HOME%/*}
    [ "${MEM_PROFILER_HOME%/share/mem-profiler}" = "$MEM_PROFILER_HOME" ] ||
        MEM_PROFILER_HOME=${MEM_PROFILER_HOME%/share/mem-profiler}
fi
if [ -z "${MEM_PROFILER_HOME:-}" ]; then
    echo "setup.bash: set MEM_PROFILER_HOME to the directory that has mem-profiler's bin, and source this again" >&2
    return 1
fi
export MEM_PROFILER_HOME

case :$PATH: in
*:"$MEM_PROFILER_HOME/bin":*) ;;
*) [ ! -d "$MEM_PROFILER_HOME/bin" ] || export PATH="$MEM_PROFILER_HOME/bin:$PATH" ;;
esac
# The system's own pages stay: that is what an empty entry at the end means.
case :${MANPATH:-}: in
*:"$MEM_PROFILER_HOME/share/man":*) ;;
*) [ ! -d "$MEM_PROFILER_HOME/share/man" ] || export MANPATH="$MEM_PROFILER_HOME/share/man:${MANPATH:-}" ;;
esac
case $-:${BASH_VERSION:-} in
*i*:?*)
    for _mem_file in "$MEM_PROFILER_HOME"/share/bash-completion/completions/mem_p*; do
        # shellcheck disable=SC1090  # in the package
        [ ! -r "$_mem_file" ] || . "$_mem_file"
    done
    unset _mem_file
    ;;
esac
