"""Differences that are no fault of the agent's, and why. A suite, a piece, a test and the
outcomes are matched by patterns; nothing else may differ."""

import re

# suite, piece, test, outcome without the agent, outcome with it: reason
TABLE = [
]


def reason_for(*difference):
    """Why these outcomes may differ; `None` if nobody knows."""
    for *patterns, reason in TABLE:
        if all(re.fullmatch(p, text) for p, text in zip(patterns, difference)):
            return reason
    return None
