"""Allocates a lot, frees all of it, and leaks through a library: `leaky.py LIBRARY`."""
import ctypes
import json
import sys

library = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    count = int(line)
    for start in range(0, count, 1000):
        text = json.dumps({str(i): list(range(i % 20)) for i in range(200)})
        assert len(json.loads(text)) == 200
        assert library.leak_many(1000) == 0
    print("done", flush=True)
