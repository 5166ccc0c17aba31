# shellcheck shell=sh
# Sets up mem-profiler in a shell or a start script. To be sourced, not run; in a start script by a
# line that cannot end it, whatever has become of this file:
#
#   (. /opt/mem-profiler/setup.bash) && . /opt/mem-profiler/setup.bash && use_mem_agent NAME... || :
#
# Adds the tools to PATH, the man pages to MANPATH, in an interactive bash the completions, and
# defines use_mem_agent (below). Changes nothing else, and needs bash 4.3 or any POSIX shell, with or
# without `set -eu`. A shell other than bash cannot tell where this file is: it takes
# MEM_PROFILER_HOME, else /opt/mem-profiler, else /usr.

# use_mem_agent [NAME...]: the programs that are started from here on carry the agent; with names,
# only those, and those of earlier calls. A name is an executable's or a script's, as `mem_profiler
# list` shows it, and may have * and ?. The agent does nothing until mem_profiler starts a session.
#
# What is in LD_PRELOAD already stays in it. Prints one line on standard error. Off without a change
# of the script: USE_MEM_AGENT=0. Always returns 0, since it must not end a start script: if the agent
# cannot be loaded on this machine, says why and changes nothing. So it is for root where other users,
# as whom a start script may start programs, cannot read the agent: USE_MEM_AGENT=own says that all
# programs stay with root.
use_mem_agent() {
    case ${USE_MEM_AGENT:-1} in
    0 | no | off | false)
        echo "use_mem_agent: off, by USE_MEM_AGENT=$USE_MEM_AGENT" >&2
        return 0
        ;;
    esac
    _mem_names=
    # Without `in "$@"`, which some shells call unset after `set -u`.
    for _mem_name; do
        case $_mem_name in
        '' | */* | *:*)
            echo "use_mem_agent: '$_mem_name' is left out: a program's name has no / and no :" >&2
            ;;
        *) _mem_names=${_mem_names:+$_mem_names:}$_mem_name ;;
        esac
    done
    [ $# = 0 ] || [ -n "$_mem_names" ] || return 0
    _mem_agent=$(_mem_find_agent) || return 0
    _mem_said=$(_mem_check_readers "$_mem_agent") || {
        echo "use_mem_agent: programs start without the agent: $_mem_said" >&2
        return 0
    }
    _mem_said=$(_mem_try "$_mem_agent") || {
        echo "use_mem_agent: programs start without the agent, it does not load: $_mem_said" >&2
        return 0
    }
    _mem_add_names "$_mem_agent"
    _mem_preload "$_mem_agent"
    echo "use_mem_agent: ${MEM_PROFILER_ONLY:-every program} will carry $_mem_agent (USE_MEM_AGENT=0 switches it off)" >&2
    _mem_place=${MEM_PROFILER_DIR:-/dev/shm}
    { [ -d "$_mem_place" ] && [ -w "$_mem_place" ]; } ||
        echo "use_mem_agent: they cannot be sampled, $_mem_place cannot be written to: mount a tmpfs there before this line" >&2
}

# Adds $_mem_names to those of earlier calls. If every program carries the agent already, or is to,
# that is how it is.
_mem_add_names() {
    if [ -z "$_mem_names" ]; then
        unset MEM_PROFILER_ONLY
        return 0
    fi
    if _mem_is_preloaded "$1"; then
        [ -n "${MEM_PROFILER_ONLY:-}" ] || return 0
        _mem_all=$MEM_PROFILER_ONLY
    else
        _mem_all=
    fi
    while [ -n "$_mem_names" ]; do
        _mem_name=${_mem_names%%:*}
        case :$_mem_all: in
        *:"$_mem_name":*) ;;
        *) _mem_all=${_mem_all:+$_mem_all:}$_mem_name ;;
        esac
        [ "$_mem_name" != "$_mem_names" ] || break
        _mem_names=${_mem_names#*:}
    done
    export MEM_PROFILER_ONLY="$_mem_all"
}

# Prints the agent's path: MEM_AGENT_LIB, or where the packages have it, or beside this file.
_mem_find_agent() {
    for _mem_file in "${MEM_AGENT_LIB:-$MEM_PROFILER_HOME/lib/libmem_agent.so}" \
        "$MEM_PROFILER_HOME/lib/mem-profiler/libmem_agent.so" "$MEM_PROFILER_HOME/libmem_agent.so"; do
        [ -r "$_mem_file" ] || continue
        case $_mem_file in
        *:* | *'
'*) break ;;
        /*) printf '%s\n' "$_mem_file" ;;
        *) printf '%s\n' "$PWD/$_mem_file" ;;
        esac
        return 0
    done
    if [ -n "${MEM_AGENT_LIB:-}" ]; then
        echo "use_mem_agent: programs start without the agent, there is none at $MEM_AGENT_LIB: correct MEM_AGENT_LIB" >&2
    else
        echo "use_mem_agent: programs start without the agent, there is none at $MEM_PROFILER_HOME/lib: set MEM_PROFILER_HOME" >&2
    fi
    return 1
}

# Whether programs can read the agent that root starts as other users; if not, prints why. Where there
# are access lists, or no ls, that is not known.
_mem_check_readers() {
    [ "${USE_MEM_AGENT:-1}" != own ] && [ "$(id -u 2>/dev/null)" = 0 ] || return 0
    _mem_file=$(readlink -f "$1" 2>/dev/null) || _mem_file=$1
    _mem_mode=$(LC_ALL=C ls -ldL "$_mem_file" 2>/dev/null) || return 0
    case $_mem_mode in
    ??????????+* | ???????r*) _mem_file=${_mem_file%/*} ;;
    esac
    while [ -d "$_mem_file/" ]; do
        _mem_mode=$(LC_ALL=C ls -ldL "$_mem_file/" 2>/dev/null) || return 0
        case $_mem_mode in
        ??????????+* | ?????????[xt]*) ;;
        *) break ;;
        esac
        [ -n "$_mem_file" ] || return 0
        _mem_file=${_mem_file%/*}
    done
    echo "other users cannot read it, ${_mem_file:-/} is ${_mem_mode%%[ .]*}: move it to /opt, or if all run as root: USE_MEM_AGENT=own"
    return 1
}

# Whether the loader takes the agent; if not, prints why. Tries it in a program of the same package, and
# if that does not run here, as it may be one for another architecture, in one of the system. Only lines
# that name the agent count, by its path or as it stands in LD_PRELOAD: other libraries that are preloaded,
# among them agents of earlier packages, have messages of their own. What the loader says is printed by the
# shell itself, since other programs would have it said once more.
_mem_try() (
    set +e
    _mem_before=${LD_PRELOAD:-}
    _mem_preload "$1"
    # By name where it is found by PATH: some shells print paths with quotes.
    for _mem_program in "$MEM_PROFILER_HOME/bin/mem_profiler" mem_profiler env; do
        command -v "$_mem_program" >/dev/null || continue
        # A shell says itself which signal ended a program.
        { _mem_text=$("$_mem_program" --version 2>&1); } 2>/dev/null
        _mem_code=$?
        for _mem_word in "$1" "'$_mem_entry'" " $_mem_entry:"; do
            case $_mem_text in
            *"$_mem_word"*)
                # The line that names it.
                _mem_head=${_mem_text%%"$_mem_word"*}
                _mem_tail=${_mem_text#"$_mem_head"}
                echo "${_mem_head##*'
'}${_mem_tail%%'
'*}"
                exit 1
                ;;
            esac
        done
        case $_mem_text in
        *"mem_profiler "[0-9]*) exit 0 ;;
        esac
        # With what is preloaded anyway, and without the agent: does it end like that, too?
        { _mem_text=$(LD_PRELOAD=$_mem_before "$_mem_program" --version 2>&1); } 2>/dev/null
        [ $? = "$_mem_code" ] || {
            echo "with it, $_mem_program ended with exit code $_mem_code; is $1 damaged?"
            exit 1
        }
    done
    exit 0
)

# Sets _mem_entry: how an agent stands in LD_PRELOAD, whose paths end at blanks, with musl at tabs, too.
# Not every shell knows [:space:].
_mem_set_entry() {
    case $1 in
    *" "* | *"$(printf '\t')"*) _mem_entry=${1##*/} ;;
    *) _mem_entry=$1 ;;
    esac
}

_mem_is_preloaded() {
    _mem_set_entry "$1"
    case :${LD_PRELOAD:-}: in
    *[:\ ]"$_mem_entry"[:\ ]*) return 0 ;;
    esac
    return 1
}

# Puts the agent before what is preloaded anyway, once. Directories of LD_LIBRARY_PATH may have blanks
# in their names.
_mem_preload() {
    _mem_is_preloaded "$1" || export LD_PRELOAD="$_mem_entry${LD_PRELOAD:+:$LD_PRELOAD}"
    [ "$_mem_entry" != "$1" ] || return 0
    case :${LD_LIBRARY_PATH:-}: in
    *:"${1%/*}":*) ;;
    *) export LD_LIBRARY_PATH="${1%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ;;
    esac
}

# shellcheck disable=SC2128,SC3028  # bash alone knows; the first element is meant
if [ -n "${BASH_SOURCE:-}" ]; then
    MEM_PROFILER_HOME=$(readlink -f "$BASH_SOURCE") && MEM_PROFILER_HOME=${MEM_PROFILER_HOME%/*}
    [ "${MEM_PROFILER_HOME%/share/mem-profiler}" = "$MEM_PROFILER_HOME" ] ||
        MEM_PROFILER_HOME=${MEM_PROFILER_HOME%/share/mem-profiler}
fi
if [ -z "${MEM_PROFILER_HOME:-}" ]; then
    MEM_PROFILER_HOME=/opt/mem-profiler
    [ -d "$MEM_PROFILER_HOME" ] || [ ! -d /usr/lib/mem-profiler ] || MEM_PROFILER_HOME=/usr
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
