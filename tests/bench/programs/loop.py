"""Writes and reads JSON: loop.py ROUNDS."""

import json
import sys

documents = [
    {
        "id": i,
        "name": f"document number {i}",
        "tags": [f"tag{j}" for j in range(i % 7)],
        "values": [j * 1.5 for j in range(20)],
        "nested": {"left": {"depth": i % 5}, "right": [None, True, {"key": str(i)}]},
    }
    for i in range(500)
]
kept = []
for turn in range(int(sys.argv[1])):
    text = json.dumps(documents)
    kept.append(json.loads(text))
    if len(kept) > 3:
        kept.pop(0)
