"""A function without a name, which allocates and computes."""

import time

kept = []


def nameless():
    kept.append(bytearray(500_000))
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass


names = ["co_name", "co_qualname"]
code = nameless.__code__
nameless.__code__ = code.replace(**{name: "" for name in names if hasattr(code, name)})
nameless()
