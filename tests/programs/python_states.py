"""Keeps blocks in threads whose states come and go, and in interpreters beside the main one:

    python_states.py LIBRARY     with `python_states.c` as it was compiled
"""

import ctypes
import os
import sys
import threading

try:
    import _interpreters as interpreters

    run = interpreters.exec
except ImportError:
    import _xxsubinterpreters as interpreters

    run = interpreters.run_string

# A free-threaded build takes all objects from an allocator of its own.
TAKE = "take = bytearray"
if "free-threading" in sys.version:
    TAKE = "import ctypes; take = ctypes.CDLL(None).malloc"
exec(TAKE)
SOURCE = TAKE + """
kept = globals().setdefault("all", [])
def inner():
    kept.append(take(1_000_000))
inner()
"""
kept = []
made = []


def enter(interpreter):
    run(interpreter, SOURCE)


def enter_new():
    made.append(interpreters.create())
    enter(made[-1])


def keep():
    kept.append(take(1_000_000))


def called():
    kept.append(take(100_000))


def main():
    made.extend(interpreters.create() for _ in range(6))
    for _ in range(2):
        for interpreter in made:
            enter(interpreter)
            keep()
    thread = threading.Thread(target=enter_new)
    thread.start()
    thread.join()
    # A thread of C, which is one of Python's in each call and none between them.
    callback = ctypes.CFUNCTYPE(None)(called)
    ctypes.CDLL(sys.argv[1]).call_back(callback, 50)


main()
os._exit(0)
