"""Keeps blocks in greenlets that take turns, and writes where each was, as python_truth.py does."""

import os
import sys

from greenlet import getcurrent, greenlet

kept = []
totals = {}


def keep(size):
    block = bytearray(size)
    note(size)
    kept.append(block)


def note(size):
    """Where the caller allocates: one line before the one that calls this."""
    frame = sys._getframe(1)
    lines = [(frame, frame.f_lineno - 1)]
    while frame.f_back:
        frame = frame.f_back
        lines.append((frame, frame.f_lineno))
    stack = ";".join(name(frame.f_code, line) for frame, line in lines)
    totals[stack] = totals.get(stack, 0) + size


def name(code, line):
    function = getattr(code, "co_qualname", code.co_name)
    return f"{function} ({code.co_filename.rsplit('/', 1)[-1]}:{line})"


def deep(depth, size):
    """At each depth, another greenlet has its turn before the block is taken."""
    if depth:
        deep(depth - 1, size)
    getcurrent().parent.switch()
    keep(size)


def called_back(size):
    return sorted([2, 1], key=lambda number: keep(size * number) or number)


def generate(count):
    for _ in range(count):
        getcurrent().parent.switch()
        yield keep(30_000)


def first():
    for depth in range(6):
        deep(depth, 20_000)


def second():
    for _ in generate(10):
        called_back(25_000)


def third():
    """One that starts others, and switches to them rather than to its parent."""
    inner = greenlet(lambda: deep(3, 40_000))
    while not inner.dead:
        inner.switch()
        keep(35_000)


def main():
    for _ in range(3):
        turns = [greenlet(function) for function in (first, second, third)]
        while turns:
            turns = [turn for turn in turns if turn.switch() is not turn and not turn.dead]
            keep(50_000)


main()
with open(sys.argv[1], "w") as file:
    for stack, size in totals.items():
        print(size, stack, file=file)
# With all of it kept.
os._exit(0)
