"""Keeps blocks in coroutines of asyncio's tasks, one of which has a name that it was given."""

import asyncio
import os
import sys

take = bytearray
if "free-threading" in sys.version:
    # All objects are from an allocator of its own.
    import ctypes

    take = ctypes.CDLL(None).malloc
kept = []


async def store(size):
    await asyncio.sleep(0)
    kept.append(take(size))


async def upload(size):
    await asyncio.sleep(0.001)
    await store(size)


async def fetch(size):
    await store(size)


async def main():
    tasks = [asyncio.create_task(upload(200_000)) for _ in range(10)]
    tasks[0].set_name("upload of the first")
    tasks += [asyncio.create_task(fetch(300_000)) for _ in range(5)]
    await asyncio.gather(*tasks)


asyncio.run(main())
# With all of it kept.
os._exit(0)
