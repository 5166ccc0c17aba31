#!/usr/bin/env python3
"""Answers requests with JSON by ujson; every fourth answer holds a value that JSON has no form for.

    venv/bin/python worker.py COUNT [PER_SECOND]
"""
import datetime
import sys
import time

import ujson


def answer(number):
    rows = [f"row {row} of report {number}" for row in range(5000)]
    made = datetime.datetime(2026, 1, 1) if number % 4 == 0 else "2026-01-01"
    try:
        return ujson.dumps({"rows": rows, "made": made})
    except TypeError:
        return '{"error": "cannot be encoded"}'


count = int(sys.argv[1])
pause = 1 / float(sys.argv[2]) if len(sys.argv) > 2 else 0
for number in range(count):
    answer(number)
    time.sleep(pause)
