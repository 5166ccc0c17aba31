"""Where a program allocates, by Python's own account."""

import sys
import threading

kept = []
totals = {}
lock = threading.Lock()


def note(size):
    """Where the caller allocates: one line before the one that calls this."""
    frame = sys._getframe(1)
    lines = [(frame, frame.f_lineno - 1)]
    while frame.f_back:
        frame = frame.f_back
        lines.append((frame, frame.f_lineno))
    stack = ";".join(name(frame.f_code, line) for frame, line in lines)
    with lock:
        totals[stack] = totals.get(stack, 0) + size


def keep(size):
    """Keeps a block of so many bytes, and notes where."""
    block = bytearray(size)
    note(size)
    kept.append(block)


def name(code, line):
    function = getattr(code, "co_qualname", code.co_name)
    return f"{function} ({code.co_filename.rsplit('/', 1)[-1]}:{line})"


def write(path):
    """The bytes by stack."""
    with open(path, "w") as file:
        for stack, size in totals.items():
            print(size, stack, file=file)
