"""Spoils the data of its own interpreter while it allocates, before each allocation or from another
thread beside them; python_garbage.c says how. Arguments: the library, seconds, and if it is to be
interrupted meanwhile the library of python_interrupts.c."""

import ctypes
import sys
import time

library = ctypes.PyDLL(sys.argv[1])
library.spoil.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
library.disturb.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
python = ctypes.pythonapi
python.PyThreadState_Get.restype = ctypes.c_void_p


def word(at):
    return ctypes.c_uint64.from_address(at).value


def words(at, count):
    return [at + 8 * index for index in range(count)]


def places(frame):
    """The thread's state, and everything that its frames lead to, as far as it is known."""
    state = python.PyThreadState_Get()
    # Of 264 bytes in 3.8 and 3.9: what is behind is somebody else's.
    found = words(state + 16, 40 if sys.version_info >= (3, 11) else 30)
    if sys.version_info[:2] == (3, 11):
        record = word(state + 56)
        found += words(record, 3)
        inner = word(record + 8)
        for _ in range(6):
            found += words(inner, 9)
            inner = word(inner + 48)
            if not inner:
                break
    elif sys.version_info >= (3, 12):
        inner = word(state + 72) if sys.version_info >= (3, 13) else word(word(state + 56))
        for _ in range(6):
            found += words(inner, 9)
            inner = word(inner + 8)
            if not inner:
                break
    else:
        found += words(id(frame), 14)
    while frame:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        lines = code.co_lnotab if sys.version_info < (3, 10) else code.co_linetable
        for thing, count in [(code, 18), (name, 6), (code.co_filename, 6), (lines, 5)]:
            found += words(id(thing), count)
        frame = frame.f_back
    return found


def deeper(depth, rounds):
    if depth:
        return deeper(depth - 1, rounds)
    found = places(sys._getframe())
    array = (ctypes.c_uint64 * len(found))(*found)
    were = (ctypes.c_uint64 * len(found))()
    library.spoil(array, len(found), rounds)
    library.disturb(array, were, len(found), rounds)


def generator(rounds):
    yield deeper(3, rounds)


interrupts = ctypes.CDLL(sys.argv[3]) if len(sys.argv) > 3 else None
if interrupts and not interrupts.begin():
    sys.exit("no signal is handled")
end = time.monotonic() + float(sys.argv[2])
count = 0
while time.monotonic() < end:
    exec(compile(f"def made_{count}():\n    deeper(2, 2000)\nmade_{count}()", "made", "exec"), globals())
    list(generator(2000))
    count += 1
print("survived", count)
if interrupts:
    print("interrupts", interrupts.end())
