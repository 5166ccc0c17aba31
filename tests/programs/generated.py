"""Calls the allocator below functions of Python, some of which C calls, in two threads: for as many
rounds as its argument says."""

import json
import sys
import threading
import zlib


def packed(text):
    return len(zlib.compress(text, 1))


def deep(levels, text):
    return packed(text) if levels == 0 else deep(levels - 1, text) + 1


def hooked(pairs):
    return len(bytes(2000)) + len(pairs)


class Sized:
    def __init__(self, size):
        self.size = size

    def __lt__(self, other):
        return len(bytearray(1000 + self.size)) < len(bytearray(1000 + other.size))


def generated(count):
    for i in range(count):
        yield deep(i % 20, b"some text " * 100)


def rounds(count):
    sized = [Sized(i * 7 % 13) for i in range(13)]
    total = 0
    for _ in range(count):
        total += sum(generated(20)) + len(sorted(sized))
        total += json.loads('{"a": {"b": 1}}', object_pairs_hook=hooked)
    return total


def main():
    count = int(sys.argv[1])
    other = threading.Thread(target=rounds, args=(count,))
    other.start()
    rounds(count)
    other.join()
    print("done")


main()
