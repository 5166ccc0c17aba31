"""Burns CPU time in two functions by turns, as much in one as in the other, in threads and in the main
one, below a few calls from Python and from C; and says how much it was in each. Lines say what they
call, and where the loops are.

    python_halves.py ROUNDS THREADS
"""

import sys
import threading

try:
    from time import thread_time
except ImportError:
    from time import process_time as thread_time

LOOPS = 1_200_000
spent = {"first": 0.0, "second": 0.0}


def first():
    total = 0
    for number in range(LOOPS):  # first
        total += number & 7  # first
    return total


def second():
    total = 0
    number = 0
    while number < LOOPS // 2:  # second
        number += 1  # second
        total ^= number  # second
    return total


def timed(function):
    begun = thread_time()
    function()  # calls first second
    spent[function.__name__] += thread_time() - begun


def numbers():
    yield timed(first)  # calls timed
    sorted([1], key=lambda _: timed(second))  # calls <lambda> timed
    yield 0


def work(rounds):
    for _ in range(rounds):
        list(numbers())  # calls numbers


def main(rounds, threads):
    for _ in range(threads):
        thread = threading.Thread(target=work, args=(rounds,))
        thread.start()
        thread.join()
    work(rounds)  # calls work


with open("/proc/self/maps") as maps:
    assert "mem_agent" not in maps.read()
main(int(sys.argv[1]), int(sys.argv[2]))  # calls main
print(*(f"{name} {seconds}" for name, seconds in spent.items()), sep="\n")
