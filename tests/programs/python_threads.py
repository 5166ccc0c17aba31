"""Threads that wait at places of many kinds; each has allocated 100,000 bytes or more in the line in
which it waits. Says `ready`, and ends with its input."""

import asyncio
import functools
import os
import sys
import threading

print("started", flush=True)
sys.stdin.readline()
SIZE = 100_000
arrived, arrive = os.pipe()
waiting, release = os.pipe()


def wait(number):
    return bytearray(SIZE), os.write(arrive, b"."), os.read(waiting, 1)


class Waiter:
    def __init__(self, depth):
        self.depth = depth

    def wait(self):
        if self.depth == 0:
            return bytearray(SIZE), os.write(arrive, b"."), os.read(waiting, 1)
        self.depth -= 1
        return self.wait()

    @property
    def waits(self):
        return self.wait()

    def __lt__(self, other):
        return self.wait() is None


def generate():
    yield bytearray(SIZE), os.write(arrive, b"."), os.read(waiting, 1)


def delegate():
    yield from generate()


async def waits():
    await asyncio.sleep(0)
    return (
        bytearray(SIZE), os.write(arrive, b"."), os.read(waiting, 1)
    )


async def root():
    await asyncio.gather(waits())


def in_finally():
    try:
        raise ValueError
    except ValueError:
        pass
    finally:
        wait(0)


def executed():
    exec("\n\ndef made():\n    wait(0)\n\nmade()", {"wait": wait})


def many_lines():
    (lambda number: wait(number))(
        number=[
            0
        ][0]
    )


places = [
    functools.partial(wait, 1),
    Waiter(50).wait,
    lambda: Waiter(2).waits,
    lambda: sorted([Waiter(1), Waiter(1)]),
    lambda: list(delegate()),
    lambda: [wait(number) for number in range(1)],
    lambda: asyncio.run(root()),
    in_finally,
    executed,
    many_lines,
]
threads = [threading.Thread(target=place) for place in places]
for thread in threads:
    thread.start()
for thread in threads:
    os.read(arrived, 1)
bytearray(SIZE), os.write(1, b"ready\n"), os.read(0, 1)
os._exit(0)
