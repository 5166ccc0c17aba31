"""Allocates in many ways, and keeps most of it:

    python_oracle.py FILE        says `started` and waits for a line, works while memray records it,
                                 says `done` and waits again
    python_oracle.py -r FILE     prints what memray recorded: how many blocks of each stack were kept, as
                                 `COUNT name (file:line);…`, innermost first
"""

import asyncio
import collections
import functools
import gc
import json
import os
import re
import sys
import threading

kept = []
space = {}
for number in range(20):
    exec(f"def made_{number}(x):\n\n    return [x] * {number + 600}\n", space)


class Tree:
    def __init__(self, depth):
        self.label = f"node {depth}"
        self.children = [Tree(depth - 1) for _ in range(2)] if depth else []

    def __lt__(self, other):
        return (self.label + "<") < (other.label + "<")

    @property
    def size(self):
        return 1 + sum(child.size for child in self.children)

    @classmethod
    def made(cls, depth):
        return cls(depth)

    @staticmethod
    def flat(tree):
        return [tree] + [
            inner for child in tree.children for inner in Tree.flat(child)
        ]


def generate(count):
    for number in range(count):
        yield {"number": number, "text": str(number) * 3}


def delegate(count):
    yield from generate(count)


async def leaf(number):
    await asyncio.sleep(0)
    return [bytes(number + size) for size in range(10)]


async def root():
    first = await asyncio.gather(*[leaf(number) for number in range(10)])
    return first + [await leaf(3)]


def fails(depth):
    if depth == 0:
        raise ValueError("at the bottom")
    try:
        return fails(depth - 1)
    finally:
        kept.append(str(depth) * 100)


def caught():
    for _ in range(50):
        try:
            fails(5)
        except ValueError as error:
            kept.append(str(error) * 30)


@functools.lru_cache(maxsize=None)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2) + 10**50


def compare(a, b):
    kept.append(str(a) * 100)
    return a - b


def work(rounds):
    trees = sorted(Tree.made(4) for _ in range(rounds))
    kept.append([Tree.flat(tree) for tree in trees])
    kept.append([tree.size * 1.5 for tree in trees])
    text = json.dumps(list(delegate(20 * rounds)))
    kept.append(json.loads(text))
    kept.append(re.sub(r"\d+", lambda match: kept.append(match.group()) or "x", text))
    counts = collections.Counter(len(word) + 1000 for word in text.split())
    kept.append(sorted(counts, key=functools.cmp_to_key(compare)))
    kept.append({word: [word] for word in text.split()})
    kept.append(list(map(lambda word: word.upper(), text.split())))
    caught()
    for number in range(20):
        kept.append(space[f"made_{number}"]("y"))


def run():
    work(60)
    kept.append(asyncio.run(root()))
    kept.append(fibonacci(50))
    threads = [threading.Thread(target=work, args=(15,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def rehearsal():
    """The interpreter makes something for each function that is followed, when it runs first: in
    a call that for memray has not begun yet."""
    run()


def measured():
    run()


def printed(file):
    import memray

    counts = collections.Counter()
    records = memray.FileReader(file).get_leaked_allocation_records(merge_threads=True)
    for record in records:
        if record.allocator != memray.AllocatorType.MMAP:
            counts[tuple(record.stack_trace())] += record.n_allocations
    for stack, count in counts.items():
        frames = [f"{name} ({os.path.basename(file)}:{line})" for name, file, line in stack]
        print(count, ";".join(frames))


def main(file):
    import memray

    gc.disable()
    print("started", flush=True)
    sys.stdin.readline()
    with memray.Tracker(file):
        rehearsal()
        measured()
    print("done", flush=True)
    sys.stdin.readline()
    os._exit(0)


if sys.argv[1] == "-r":
    printed(sys.argv[2])
else:
    main(sys.argv[1])
