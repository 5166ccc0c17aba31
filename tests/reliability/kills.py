"""SIGKILL at random moments: no profile that was promised is lost, no file stays."""

import random
import subprocess
import threading
import time

import machine
from scenario import Scenario
from target import Target, command, is_sampling


# Objects of 64 bytes, at an interval of 16, of which some were sampled for certain.
ENOUGH = 200


class Watch(threading.Thread):
    """Sees when a session runs, and what its target had allocated by then."""

    def __init__(self, shared, pid, totals):
        super().__init__(daemon=True)
        self.shared, self.pid, self.totals = shared, pid, totals
        self.made, self.ended = None, threading.Event()

    def run(self):
        while not self.ended.wait(0.001):
            try:
                if is_sampling(self.shared, self.pid):
                    self.made = count(self.totals)
                    return
            except FileNotFoundError:
                pass


def count(totals):
    """What the target allocated, as its totals say, which outlive it."""
    return int.from_bytes(totals.read_bytes(), "little")


def one(work, shared, files, who):
    """A life, and a death at some moment. Gives whether a profile was promised, and kept: it
    is from the moment that the target allocates in a session that anybody can see."""
    target = Target([Scenario.program], work.preloaded(shared=shared))
    totals = files / "totals"
    target.say(f"churn {totals}")
    watch = Watch(shared, target.pid, totals)
    watch.start()
    line, how = machine.profiler(shared, "-s", "0.05", "-c", "16", "-o", files / "prof_", "-p", target.pid)
    controller = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how)
    time.sleep(random.uniform(0, 0.12))
    if "controller" in who:
        controller.kill()
    if "target" in who:
        target.process.kill()
    controller.wait(30)
    watch.ended.set()
    watch.join()
    target.process.kill()
    target.process.wait()
    promised = watch.made is not None and count(totals) >= watch.made + ENOUGH
    said = command(shared, "recover", "-o", files / "prof_"), command(shared, "clean")
    totals.unlink()
    whole = [p for p in files.glob("*.heap") if p.read_bytes().startswith(b"heap profile:")]
    return promised, bool(whole), said


def run(work, number, seed):
    """Kills so often; gives what went wrong."""
    wrong, promised, partial = [], 0, 0
    shared, files = work.shared / "kills", work.path / "kills"
    shared.mkdir()
    for kill in range(number):
        files.mkdir()
        who = random.choice([("target",), ("controller",), ("target", "controller")])
        seen, kept, said = one(work, shared, files, who)
        promised += seen
        if seen and not kept:
            wrong.append(f"kill {kill} (seed {seed}) of {' and '.join(who)}: its profile is lost: {said}")
        left = [p.name for p in shared.iterdir()]
        if left:
            wrong.append(f"kill {kill} (seed {seed}) of {' and '.join(who)}: left behind: {left}: {said}")
            for path in shared.iterdir():
                path.unlink()
        for path in files.iterdir():
            partial += not path.name.endswith(".heap")
            path.unlink()
        files.rmdir()
    print(f"\n{number} kills at random moments (seed {seed}): {promised} profiles promised, {len(wrong)} lost or "
          f"files left; {partial} halves of dumps that killed controllers were writing")
    return wrong
