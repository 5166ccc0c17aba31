"""Differences that are no fault of the agent's, and why. A suite, a piece, a test and the
outcomes are matched by patterns; nothing else may differ."""

import re

# suite, piece, test, outcome without the agent, outcome with it: reason
TABLE = [
    ("glibc", r"tst-(safe-linking|tcfree1|tcfree2|malloc-backtrace)", r"result", r"0", r"1",
     "expects glibc's own allocator to find a double free or a damaged list, and to abort"),
    ("glibc", r"tst-malloc-stats-cancellation", r"result", r"0", r"1",
     "expects glibc's own words in the output of malloc_stats"),
]


def reason_for(*difference):
    """Why these outcomes may differ; `None` if nobody knows."""
    for *patterns, reason in TABLE:
        if all(re.fullmatch(p, text) for p, text in zip(patterns, difference)):
            return reason
    return None
