"""Calls functions in all ways that an interpreter has, and is interrupted meanwhile. Tells who calls
whom. Arguments: the library of python_interrupts.c, seconds of CPU time."""

import ctypes
import sys
import time

EDGES = {
    "<module>": ["main", "made"],
    "main": ["step"],
    "step": [
        "recurse", "consume", "sort", "throw", "construct", "sum_up", "text", "nothing", "make", "apply",
    ],
    "recurse": ["recurse", "nothing"],
    "consume": ["generate"],
    "generate": ["nothing"],
    "sort": ["key"],
    "throw": ["fail"],
    "construct": ["__init__", "double"],
    "__init__": ["nothing"],
    "make": ["<module>"],
    "made": ["nothing"],
    "apply": ["key", "nothing"],
}


def nothing(value):
    return value


def recurse(depth):
    return recurse(depth - 1) + 1 if depth else nothing(0)


def generate(count):
    for number in range(count):
        yield nothing(number)


def consume(count):
    total = 0
    for number in generate(count):
        total += number
    return total


def key(value):
    return -value


def sort(count):
    return sorted(range(count), key=key)


def fail(value):
    raise ValueError(value)


def throw(count):
    for number in range(count):
        try:
            fail(number)
        except ValueError:
            pass


class Thing:
    def __init__(self, value):
        self.value = nothing(value)

    def double(self):
        return 2 * self.value


def construct(count):
    for number in range(count):
        Thing(number).double()


def sum_up(count):
    total = 0
    for number in range(count):
        total += number * number % 7
    return total


def text(count):
    return len(",".join(map(str, range(count))))


def make(number):
    source = "def made(value):\n    return nothing(value)\nmade(1)\n"
    exec(compile(source, f"made {number % 50}", "exec"), {"nothing": nothing})


def apply(count):
    for number in range(count):
        key(*(number,))
        nothing(**{"value": number})


def step(number):
    recurse(20 + number % 30)
    consume(50)
    sort(30)
    throw(10)
    construct(20)
    sum_up(200)
    text(50)
    nothing(number)
    make(number)
    apply(20)


def main(seconds):
    end, number = time.process_time() + seconds, 0
    while time.process_time() < end:
        step(number)
        number += 1
    return number


if __name__ == "__main__":
    library = ctypes.CDLL(sys.argv[1])
    if not library.begin():
        sys.exit("no signal is handled")
    main(float(sys.argv[2]))
    print("interrupts", library.end())
    for caller, callees in EDGES.items():
        for callee in callees:
            print("edge", caller, callee)
