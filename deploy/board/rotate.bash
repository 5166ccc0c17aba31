#!/bin/sh
# Removes all but the newest dumps whose paths begin with PREFIX.
#
#   rotate.bash [-n COUNT] PREFIX      24 without -n
#
# To be called after each session. The newest are those that were found last, not those with the latest
# times: a board's clock may be set at any moment, and to any time. The order is kept in PREFIXorder.
# Needs bash or any POSIX shell.
set -u
count=24
if [ "${1:-}" = -n ] && [ $# -gt 1 ]; then
    count=$2
    shift 2
fi
case $#:$count in
1:*[!0-9]* | 1: | [!1]*)
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
prefix=$1
case $prefix in
*/*) directory=${prefix%/*} ;;
*) directory=. ;;
esac
order=${prefix}order

# Names that were found earlier and are still there, then the new ones.
found() {
    [ ! -e "$order" ] || while IFS= read -r name; do
        [ ! -f "$directory/$name" ] || printf '%s\n' "$name"
    done <"$order"
    for dump in "$prefix"*.heap; do
        [ -f "$dump" ] || continue
        [ -e "$order" ] && grep -qxF -e "${dump##*/}" "$order" || printf '%s\n' "${dump##*/}"
    done
}

found >"$order.part" || exit 1
total=$(wc -l <"$order.part")
if [ "$total" -gt "$count" ]; then
    head -n $((total - count)) "$order.part" | while IFS= read -r name; do rm -f -- "$directory/$name"; done
fi
# An interrupted call leaves names of dumps that are gone: the next one skips them.
mv -f "$order.part" "$order"
