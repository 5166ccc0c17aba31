"""One life of a target with a session in it, and a fault at one moment of it."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import machine
from target import Target, command, dumps, is_sampling, start, until

MOMENTS = ["at start", "idle", "session starts", "in session", "dump", "session ends", "in a fork", "at exit"]
WELL = "ended 17 0"
# No command may need longer, stopped or not.
PATIENCE = 30


class Scenario:
    """A life from start to exit. The fault is done as the moment begins, without waiting for
    anything, and undone before the next."""

    program = None

    @classmethod
    def compile(cls, work):
        cls.program = work.path / "frail"
        source = machine.REPOSITORY / "tests" / "programs" / "frail.c"
        subprocess.run(["gcc", "-O2", "-g", "-std=gnu17", "-pthread", source, "-o", cls.program], check=True)

    def __init__(self, work, fault, moment):
        self.work, self.fault, self.moment = work, fault, moment
        self.shared = Path(tempfile.mkdtemp(prefix="cell.", dir=work.shared))
        self.files = Path(tempfile.mkdtemp(prefix="cell.", dir=work.path))
        self.prefix = self.files / "prof_"
        self.target = self.controller = self.dumper = self.pid = None
        self.wrong, self.notes = [], []
        self.killed = set()
        self.codes = []

    # ---- what faults use

    def segments(self):
        return [p for p in self.shared.iterdir() if p.name.startswith("mem_profiler.")]

    def kill(self, who, number=signal.SIGKILL):
        """Sends a signal to "target" or "controller", if it is there."""
        process = self.target.process if who == "target" else self.dumper or self.controller
        if process and process.poll() is None:
            pid = self.pid if who == "target" else process.pid
            os.kill(pid, number)
            if number == signal.SIGKILL:
                self.killed.add(who)

    # ---- a life

    def run(self):
        self.fault.before(self)
        self.begin()
        if self.alive():
            self.idle()
        if self.alive():
            self.session()
        if self.alive():
            self.child()
        self.end()
        self.fault.after(self)
        self.collect()

    def at(self, moment):
        """The fault's time has come, if it is this."""
        if moment == self.moment:
            self.fault.strike(self)

    def past(self, moment):
        if moment == self.moment:
            self.fault.lift(self)

    def begin(self):
        environment = self.work.preloaded(shared=self.shared) | self.fault.environment(self)
        prefix = self.fault.wrapper(self) if self.moment == "at start" else []
        if self.moment == "at start" and self.fault.kills_at_start:
            self.killed.add("target")
            self.fault.kill_at_start(self, environment)
            return
        self.target = Target([*prefix, self.program], environment)
        self.pid = self.find_pid()

    def find_pid(self):
        """The program itself, behind what wraps it."""
        pid = self.target.pid
        while os.readlink(f"/proc/{pid}/exe") != str(self.program):
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return pid

    def alive(self):
        return self.target is not None and "target" not in self.killed and self.target.alive()

    def say(self, line):
        """What the target does while something may be killing it."""
        try:
            return self.target.say(line)
        except (EOFError, BrokenPipeError):
            if "target" not in self.killed:
                code = self.target.process.wait(PATIENCE)
                self.killed.add("target")
                if self.fault.may_die(code):
                    self.notes.append(f"the target died: {code}")
                    self.fault.died = True
                else:
                    self.wrong.append(f"the target died at {line!r}: {code}")
            return []

    def idle(self):
        self.at("idle")
        self.say("keep 200")
        self.say("drop 100")
        self.past("idle")

    def session(self):
        self.controller = start(self.shared, "-s", "3600", "-c", "1", "-o", self.prefix, "-p", self.pid,
                                **self.fault.controller_options(self))
        self.at("session starts")
        self.say("keep 50")
        until("the session or its refusal", lambda: self.controller.poll() is not None or
              is_sampling(self.shared, self.pid) or self.moment == "session starts" and self.fault.hides, PATIENCE)
        if self.moment == "session starts":
            time.sleep(0.05)
        self.past("session starts")
        self.at("in session")
        self.say("keep 200")
        self.say("drop 150")
        self.past("in session")
        self.dump()
        self.at("session ends")
        if self.controller.poll() is None:
            self.controller.send_signal(signal.SIGINT)
        self.at_end_of_session()

    def dump(self):
        if self.moment == "dump":
            self.dumper = start(self.shared, "dump", "-o", self.files / "dump_", "-p", self.pid)
            self.at("dump")
            self.say("keep 50")
            self.past("dump")
            self.finish(self.dumper, "dump")
            self.dumper = None

    def at_end_of_session(self):
        self.say("keep 20")
        if self.moment == "session ends":
            time.sleep(0.05)
        self.past("session ends")
        self.finish(self.controller, "session")

    def finish(self, process, what):
        """A command ends, not by a signal that nobody sent it, and says why it failed."""
        try:
            output, said = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self.wrong.append(f"the {what} hangs")
            return
        code = process.returncode
        self.codes.append(code)
        if code < 0 and "controller" not in self.killed or code not in (0, 1, -9):
            self.wrong.append(f"the {what} ended with {code}: {said}")
        if code == 1 and not said.strip():
            self.wrong.append(f"the {what} failed and said nothing")
        if code == 1:
            self.notes.append(f"exit code 1: {said.strip().splitlines()[-1]}".replace(str(self.shared), "DIR"))

    def child(self):
        self.say("hire")
        self.at("in a fork")
        said = self.say("dismiss")
        if said != [WELL] and "target" not in self.killed and not self.fault.childs_end(said):
            self.wrong.append(f"a forked child: {said}")
        self.past("in a fork")

    def end(self):
        if self.target is None:
            return
        if self.alive():
            self.say("drop 50")
            said = self.say("child fork 20")
            if said != [WELL] and "target" not in self.killed:
                self.wrong.append(f"a forked child at the end: {said}")
        if self.alive():
            self.target.process.stdin.close()
            self.at("at exit")
            self.past("at exit")
        code = self.target.process.wait(PATIENCE)
        killed = "target" in self.killed and code in (-9, 137)
        if code and self.fault.may_die(code):
            self.fault.died = True
        elif code and not killed and not self.fault.died:
            self.wrong.append(f"the target's exit code is {code}")

    def let_age(self):
        """What is left looks as it will in ten seconds: unfinished segments that are younger than
        two are kept, for their process may be one of another pid namespace."""
        then = time.time() - 10
        for path in self.shared.iterdir():
            if path.is_file() and not path.is_symlink():
                os.utime(path, (then, then))

    def collect(self):
        """The commands for what is left, and what they leave."""
        for arguments in (["recover", "-o", self.prefix], ["clean", "--all"]):
            code, output, said = command(self.shared, *arguments, seconds=PATIENCE)
            if code not in (0, 1):
                self.wrong.append(f"{arguments[0]}: exit code {code}: {said}")
            self.let_age()
        left = sorted(p.name for p in self.shared.iterdir())
        if left:
            place = self.wrong if not self.fault.leaves else self.notes
            place.append(f"left behind: {', '.join(left)}")

    def summary(self):
        if self.fault.died:
            return "SIGBUS"
        refused = 1 in self.codes
        return "refused" if refused else "ok"

    def clear(self):
        self.fault.died = False
        for process in (self.target and self.target.process, self.controller, self.dumper):
            if process and process.poll() is None:
                process.kill()
                process.wait()
        self.fault.clear(self)
        shutil.rmtree(self.shared, ignore_errors=True)
        shutil.rmtree(self.files, ignore_errors=True)
