"""Sessions in which a program allocates what is known to the byte: what a dump says of that."""

import math
import signal
from dataclasses import dataclass

from target import is_sampling, stacks, start, until, wrong_lines

COUNT, SIZE = 2000, 1000
# Once in 16,000 readings an estimate is off by more; of its error bars, one in twenty.
MARGIN, BAR = 4, 1.96
# How redis stores a string of `SIZE` bytes: its header before it, a zero after it.
REDIS_STRING = 5 + SIZE + 1


@dataclass
class Reading:
    """What a dump says of memory of a known size."""

    program: str
    interval: int
    truth: int
    found: float
    deviation: float

    def errors(self):
        """How many standard deviations it is off."""
        if self.found == self.truth:
            return 0
        return abs(self.found - self.truth) / self.deviation if self.deviation else math.inf

    def __str__(self):
        return (f"{self.program} at -c {self.interval}: {self.found:.0f} bytes live ± "
                f"{BAR * self.deviation:.0f}, in truth {self.truth}")

    def wrong(self):
        if self.interval == 1:
            return self.found != self.truth or self.deviation != 0
        return self.errors() > MARGIN


def read(work, pid, interval, program, allocate, is_of_it):
    """A session in which a program allocates; `is_of_it` knows its stacks by their functions."""
    prefix = work.path / f"known.{program}."
    controller = start(work.shared, "-q", "-c", interval, "-o", prefix, "-p", pid, start_new_session=True)
    until("the session to begin", lambda: is_sampling(work.shared, pid) or controller.poll() is not None)
    try:
        truth = allocate()
    finally:
        controller.send_signal(signal.SIGINT)
    said = "".join(controller.communicate(timeout=60))
    if controller.returncode or wrong_lines(said):
        raise RuntimeError(f"a session to be checked: exit code {controller.returncode}: {said}")
    # Its children of that time have dumps of their own.
    written = {path: f".{pid}." in path.name for path in work.path.glob(f"{prefix.name}*.heap")}
    (dump,) = [path for path, is_its_own in written.items() if is_its_own]
    live = [(d["alloc_bytes"] - d["freed_bytes"], d["live_variance"])
            for names, d in stacks(dump) if is_of_it(names)]
    for path in written:
        path.unlink()
    return Reading(program, interval, truth, sum(found for found, _ in live),
                   math.sqrt(sum(variance for _, variance in live)))


def of_redis(work, server, interval):
    def allocate():
        for at in range(COUNT):
            if server.client.ask("SETRANGE", f"known:{at}", SIZE - 1, "x") != b":%d" % SIZE:
                raise RuntimeError("redis: SETRANGE has a wrong answer")
        return COUNT * REDIS_STRING

    def is_value(names):
        return ("_sdsnewlen", "setrangeCommand") in zip(names, names[1:])
    try:
        return read(work, server.pid, interval, "redis", allocate, is_value)
    finally:
        for at in range(COUNT):
            server.client.ask("DEL", f"known:{at}")


def of_trainer(work, target, interval):
    def is_object(names):
        return any(name.startswith("hold_known_bytes ") for name in names)
    try:
        return read(work, target.pid, interval, "trainer", lambda: int(target.say(f"hold {COUNT} {SIZE}")[0]),
                    is_object)
    finally:
        target.say("drop")
