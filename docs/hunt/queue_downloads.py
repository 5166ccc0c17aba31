#!/usr/bin/env python3
"""Queues downloads in aria2c over its RPC and never removes one, as a careless client does.

    aria2c --enable-rpc --rpc-listen-port=PORT --pause=true --no-conf -q
    queue_downloads.py PORT COUNT [PER_SECOND]
"""
import json
import sys
import time
import urllib.request

BATCH = 20


def queue(port, numbers):
    calls = [
        {"methodName": "aria2.addUri", "params": [[f"http://127.0.0.1:1/{number}.iso"]]}
        for number in numbers
    ]
    body = {"jsonrpc": "2.0", "id": "1", "method": "system.multicall", "params": [calls]}
    url = f"http://127.0.0.1:{port}/jsonrpc"
    with urllib.request.urlopen(url, json.dumps(body).encode()) as answer:
        answer.read()


port, count = int(sys.argv[1]), int(sys.argv[2])
pause = BATCH / float(sys.argv[3]) if len(sys.argv) > 3 else 0
for first in range(0, count, BATCH):
    queue(port, range(first, first + BATCH))
    time.sleep(pause)
