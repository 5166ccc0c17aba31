"""Keeps blocks in greenlets that take turns, and writes where each was, as python_truth.py does."""

import os
import sys

from greenlet import getcurrent, greenlet

# Not every build of an interpreter looks there.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import python_places
from python_places import keep


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
python_places.write(sys.argv[1])
# With all of it kept.
os._exit(0)
