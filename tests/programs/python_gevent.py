"""Keeps blocks in gevent's greenlets, which take turns, and writes where each was, as python_truth.py
does."""

import os
import sys

import gevent
from gevent.pool import Pool

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import python_places
from python_places import keep


def deep(depth, size):
    """At each depth, others have their turn before the block is taken."""
    if depth:
        deep(depth - 1, size)
    gevent.sleep(0)
    keep(size)


def wait(event):
    event.wait()
    keep(60_000)


def main():
    event = gevent.event.Event()
    waiting = [gevent.spawn(wait, event) for _ in range(3)]
    pool = Pool(4)
    for depth in range(8):
        pool.spawn(deep, depth, 20_000)
    pool.join()
    event.set()
    gevent.joinall(waiting)
    # Where threads would be.
    gevent.get_hub().threadpool.apply(keep, (70_000,))
    keep(50_000)


main()
python_places.write(sys.argv[1])
# With all of it kept.
os._exit(0)
