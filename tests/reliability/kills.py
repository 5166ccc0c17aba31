"""SIGKILL at random moments: no profile that was promised is lost, no file stays."""

import random
import subprocess
import threading
import time

import machine
from scenario import Scenario
from target import Target, command, is_sampling


class Watch(threading.Thread):
    """Sees whether a session was running at some time: from then on a profile is promised."""

    def __init__(self, shared, pid):
        super().__init__(daemon=True)
        self.shared, self.pid, self.seen, self.ended = shared, pid, False, threading.Event()

    def run(self):
        while not self.seen and not self.ended.wait(0.001):
            try:
                self.seen = is_sampling(self.shared, self.pid)
            except FileNotFoundError:
                pass


def one(work, shared, files, who):
    """A life, and a death at some moment. Gives whether a profile was promised, and kept."""
    target = Target([Scenario.program], work.preloaded(shared=shared))
    target.say("churn")
    watch = Watch(shared, target.pid)
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
    command(shared, "recover", "-o", files / "prof_")
    command(shared, "clean")
    whole = [p for p in files.glob("*.heap") if p.read_bytes().startswith(b"heap profile:")]
    return watch.seen, bool(whole)


def run(work, count, seed):
    """Kills so often; gives what went wrong."""
    wrong, promised, partial = [], 0, 0
    shared, files = work.shared / "kills", work.path / "kills"
    shared.mkdir()
    for number in range(count):
        files.mkdir()
        who = random.choice([("target",), ("controller",), ("target", "controller")])
        seen, kept = one(work, shared, files, who)
        promised += seen
        if seen and not kept:
            wrong.append(f"kill {number} (seed {seed}) of {' and '.join(who)}: its profile is lost")
        left = [p.name for p in shared.iterdir()]
        if left:
            wrong.append(f"kill {number} (seed {seed}) of {' and '.join(who)}: left behind: {left}")
            for path in shared.iterdir():
                path.unlink()
        for path in files.iterdir():
            partial += not path.name.endswith(".heap")
            path.unlink()
        files.rmdir()
    print(f"\n{count} kills at random moments (seed {seed}): {promised} profiles promised, {len(wrong)} lost or "
          f"files left; {partial} halves of dumps that killed controllers were writing")
    return wrong
