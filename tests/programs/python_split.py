"""Uses CPU time in two functions, one after the other, and tells how much each used, in nanoseconds.
Each allocates now and then, so that an agent notices what it is asked for. Arguments: seconds, and whether it waits for a line of input before it begins."""

import sys
import time


def part_a(seconds):
    end, total = time.thread_time() + seconds, 0
    while time.thread_time() < end:
        bytearray(2000)
        for number in range(2000):
            total += number * number % 7  # line of part_a
    return total


def part_b(seconds):
    end, total = time.thread_time() + seconds, []
    while time.thread_time() < end:
        bytearray(2000)
        for number in range(2000):
            total = [number] * 3  # line of part_b
    return total


def timed(part, seconds):
    begin = time.thread_time_ns()
    part(seconds)
    return time.thread_time_ns() - begin


def main(seconds):
    for part, share in ((part_a, 0.7), (part_b, 0.3)):
        print(part.__name__, timed(part, seconds * share))


if len(sys.argv) > 2:
    print("ready", flush=True)
    sys.stdin.readline()
main(float(sys.argv[1]))
print("cpu", time.process_time_ns(), flush=True)
