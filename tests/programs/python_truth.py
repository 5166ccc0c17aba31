"""Keeps blocks that are allocated in many ways, and writes where each was: the bytes by stack of
Python, innermost first, as `name (file:line)` with `;` between."""

import asyncio
import functools
import os
import sys
import threading

# Not every build of an interpreter looks there.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import python_places

kept = []
take = bytearray
if "free-threading" in sys.version:
    # All objects are from an allocator of its own.
    import ctypes

    take = ctypes.CDLL(None).malloc


def keep(size):
    block = take(size)
    python_places.note(size)
    kept.append(block)
    return block


class Loader:
    def __init__(self, depth):
        self.depth = depth

    def load(self, size):
        if self.depth == 0:
            return keep(size)
        self.depth -= 1
        return self.load(size)

    @staticmethod
    def nested(size):
        def inner():
            return keep(size)

        return inner()


class Holder:
    """Made so often that the interpreter specialises the call."""

    def __init__(self, size):
        self.block = keep(size)


def generate(count):
    for _ in range(count):
        yield keep(40_000)


async def leaf():
    await asyncio.sleep(0)
    return keep(50_000)


async def root():
    await asyncio.gather(leaf(), leaf())
    return await leaf()


def compare(a, b):
    keep(30_000)
    return a - b


def changing():
    return keep(35_000)


def change():
    """One function, which the interpreter specialises calls of, and one code object after the other."""
    for number in range(60):
        scope = {}
        exec(f"def changed_{number}():\n    return keep(35_000)\n", scope)
        changing.__code__ = scope.pop(f"changed_{number}").__code__
        for _ in range(12):
            changing()


def main():
    for _ in range(50):
        Loader(3).load(20_000)
    for _ in range(50):
        Holder(22_000)
    Loader.nested(25_000)
    list(generate(20))
    sum(keep(size) is not None for size in (60_000, 61_000))
    # A function of C that calls back.
    sorted([3, 1, 2], key=functools.cmp_to_key(compare))
    list(map(keep, [70_000, 71_000]))
    asyncio.run(root())
    change()
    thread = threading.Thread(target=Loader(40).load, args=(80_000,))
    thread.start()
    thread.join()
    for number in range(200):
        scope = {"keep": keep}
        text = f"def made_{number}():\n" + "\n" * (number % 7) + "    return keep(90_000)\n"
        exec(text, scope)
        scope[f"made_{number}"]()


main()
python_places.write(sys.argv[1])
# With all of it kept.
os._exit(0)
