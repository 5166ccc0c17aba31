"""Does what a look from outside may meet: calls and returns all the time, makes code, threads and
children that end at once, and executes itself again and again.

    python_restless.py ROUNDS     how often it executes itself
"""

import contextlib
import os
import sys
import threading

# Without the GIL, a child that is forked while a thread makes code may wait for ever for a lock that
# the thread held (CPython 3.13).
has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
making = contextlib.nullcontext() if has_gil else threading.Lock()


def deeper(depth):
    return deeper(depth - 1) + 1 if depth else 0


def compiled(count):
    source = f"def made_{count}(n):\n    return sum(range(n))\nmade_{count}(300)\n"
    exec(compile(source, f"made {count}", "exec"), {})


def burn():
    for count in range(200):
        deeper(count % 60)
        with making:
            compiled(count)


threads = [threading.Thread(target=burn) for _ in range(3)]
for thread in threads:
    thread.start()
with making:
    child = os.fork()
if child == 0:
    burn()
    os._exit(3)
burn()
status = os.waitpid(child, 0)[1]
assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 3, status
rounds = int(sys.argv[1])
if rounds:
    # While its threads still run, every other time.
    if rounds % 2:
        for thread in threads:
            thread.join()
    os.execv(sys.executable, [sys.executable, sys.argv[0], str(rounds - 1)])
for thread in threads:
    thread.join()
print("survived", flush=True)
