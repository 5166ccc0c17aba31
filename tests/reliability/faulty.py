"""The faults of the matrix."""

import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import machine
from scenario import MOMENTS

SIGNALLED = (-signal.SIGBUS, 128 + signal.SIGBUS)


class Fault:
    """Does nothing by itself."""

    moments = MOMENTS
    kills_at_start = False
    # The segment is out of sight: nobody can see whether a session begins.
    hides = False
    # What it leaves is not a segment of ours, and is nobody's to remove.
    leaves = False
    died = False

    def __init__(self, name):
        self.name = name

    def before(self, scenario):
        """Before the target starts."""

    def environment(self, scenario):
        """Further variables of the target's."""
        return {}

    def wrapper(self, scenario):
        """What the target is started by, for the moment of its start."""
        return []

    def controller_options(self, scenario):
        return {}

    def strike(self, scenario):
        """The fault."""

    def lift(self, scenario):
        """Its end, before the next moment."""

    def after(self, scenario):
        """Before what is left is collected."""

    def clear(self, scenario):
        """At the very end, whatever happened."""

    def may_die(self, code):
        """Whether the target may end this way."""
        return False

    def childs_end(self, said):
        """Whether a forked child may end this way."""
        return False


class Kill(Fault):
    """SIGKILL for the target, the controller, or both."""

    kills_at_start = True

    def __init__(self, name, *who):
        super().__init__(name)
        self.who = who
        if who == ("controller",):
            self.moments = ["session starts", "in session", "dump", "session ends"]

    def kill_at_start(self, scenario, environment):
        """At every delay from nothing to a running program."""
        for delay in range(40):
            line = ["env", *[f"{k}={v}" for k, v in environment.items()], str(scenario.program)]
            process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            time.sleep(delay * 0.0002)
            process.kill()
            process.communicate()

    def strike(self, scenario):
        for who in self.who:
            scenario.kill(who)


class Stop(Fault):
    """SIGSTOP, and SIGCONT a second later."""

    def __init__(self, name, who):
        super().__init__(name)
        self.who = who
        self.moments = ["session starts", "in session", "dump", "session ends"]

    def strike(self, scenario):
        scenario.kill(self.who, signal.SIGSTOP)
        time.sleep(1)
        scenario.kill(self.who, signal.SIGCONT)


class Full(Fault):
    """A small shared directory, full at that moment."""

    def before(self, scenario):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m,mode=1777", "faults", scenario.shared], check=True)
        if scenario.moment == "at start":
            self.strike(scenario)

    def strike(self, scenario):
        with open(scenario.shared / "filler", "wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass

    def lift(self, scenario):
        (scenario.shared / "filler").unlink(missing_ok=True)

    def after(self, scenario):
        self.lift(scenario)

    def clear(self, scenario):
        subprocess.run(["umount", "-l", scenario.shared], check=False)


class Limit(Fault):
    """A resource limit that leaves nothing more of something."""

    def __init__(self, name, kind, most):
        super().__init__(name)
        self.kind, self.most = kind, most
        self.moments = [m for m in MOMENTS if m != "at exit"]

    def wrapper(self, scenario):
        option = {resource.RLIMIT_FSIZE: "fsize", resource.RLIMIT_AS: "as", resource.RLIMIT_NOFILE: "nofile",
                  resource.RLIMIT_MEMLOCK: "memlock", resource.RLIMIT_NPROC: "nproc"}[self.kind]
        return ["prlimit", f"--{option}={self.most(None)}"]

    def strike(self, scenario):
        self.old = resource.prlimit(scenario.pid, self.kind)
        resource.prlimit(scenario.pid, self.kind, (self.most(scenario.pid), self.old[1]))

    def lift(self, scenario):
        if scenario.moment != "at start" and scenario.alive():
            resource.prlimit(scenario.pid, self.kind, self.old)


class Segment(Fault):
    """Something is done to the segment's file."""

    def __init__(self, name, act, leaves=False, truncates=False, moments=None):
        super().__init__(name)
        self.act, self.leaves, self.truncates = act, leaves, truncates
        self.hides = True
        self.moments = moments or [m for m in MOMENTS if m != "at start"]

    def strike(self, scenario):
        for path in scenario.segments():
            try:
                self.act(path, scenario)
            except FileNotFoundError:
                # A process that is told to end removes its segment, and may be faster.
                if scenario.moment != "at exit":
                    raise

    def may_die(self, code):
        return self.truncates and code in SIGNALLED

    def childs_end(self, said):
        return self.truncates and said == [f"ended -1 {int(signal.SIGBUS)}"]


class Clock(Fault):
    """The wall clock jumps, as the controller sees it: faketime tells it so."""

    def __init__(self, name, jump):
        super().__init__(name)
        self.jump = jump
        self.moments = ["idle", "session starts", "in session", "dump", "session ends"]

    def controller_options(self, scenario):
        file = scenario.files / "now"
        file.write_text("+0" if scenario.moment != "idle" else self.jump)
        library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
        variables = {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1",
                     "DONT_FAKE_MONOTONIC": "1", "MEM_PROFILER_DIR": str(scenario.shared)}
        return {"env": os.environ | variables}

    def strike(self, scenario):
        (scenario.files / "now").write_text(self.jump)


class TimeNamespace(Fault):
    """The monotonic clock is another one: a day ahead of the machine's."""

    def __init__(self, name):
        super().__init__(name)
        self.moments = ["at start"]

    def wrapper(self, scenario):
        return ["unshare", "--time", "--fork", "--kill-child", "--monotonic", "86400", "--boottime", "86400"]


class Oom(Fault):
    """A control group whose memory ends: the kernel kills the target."""

    def __init__(self, name):
        super().__init__(name)
        self.moments = ["idle", "session starts", "in session", "dump", "session ends"]

    def before(self, scenario):
        v1 = Path("/sys/fs/cgroup/memory")
        self.version = 1 if v1.is_dir() else 2
        self.group = (v1 if self.version == 1 else Path("/sys/fs/cgroup")) / f"faults.{os.getpid()}"
        if self.version == 2:
            (self.group.parent / "cgroup.subtree_control").write_text("+memory")
        self.group.mkdir(exist_ok=True)

    def strike(self, scenario):
        scenario.notes.append(f"control groups version {self.version}")
        limit = self.group / ("memory.limit_in_bytes" if self.version == 1 else "memory.max")
        limit.write_text(str(32 << 20))
        (self.group / "cgroup.procs").write_text(str(scenario.pid))
        # What it takes from now on is counted there.
        scenario.killed.add("target")
        scenario.say("hog 200")

    def clear(self, scenario):
        deadline = time.monotonic() + 10
        while self.group.is_dir() and time.monotonic() < deadline:
            try:
                self.group.rmdir()
            except OSError:
                time.sleep(0.05)


def delete(path, _):
    path.unlink()


def replace_by(make):
    """Puts something else at the segment's name."""
    def act(path, scenario):
        path.unlink(missing_ok=True)
        make(path, scenario)
    return act


def nothing_more(pid):
    """As much address space as the process has, and a little."""
    return (machine.resident(pid, "VmSize") + 4096) * 1024 if pid else 64 << 20


ALL = [
    Kill("SIGKILL of the target", "target"),
    Kill("SIGKILL of the controller", "controller"),
    Kill("SIGKILL of both", "controller", "target"),
    Stop("SIGSTOP of the target", "target"),
    Stop("SIGSTOP of the controller", "controller"),
    Full("shared directory full"),
    Limit("RLIMIT_FSIZE 0", resource.RLIMIT_FSIZE, lambda pid: 0),
    Limit("RLIMIT_AS as it is", resource.RLIMIT_AS, nothing_more),
    Limit("RLIMIT_NOFILE 3", resource.RLIMIT_NOFILE, lambda pid: 3 if pid else 8),
    Limit("RLIMIT_MEMLOCK 0", resource.RLIMIT_MEMLOCK, lambda pid: 0),
    Limit("RLIMIT_NPROC 0", resource.RLIMIT_NPROC, lambda pid: 0),
    Segment("segment deleted", delete),
    Segment("segment truncated to nothing", lambda path, _: os.truncate(path, 0), truncates=True),
    Segment("segment truncated to one page", lambda path, _: os.truncate(path, 4096), truncates=True),
    Segment("segment replaced by a file", replace_by(lambda p, _: p.write_text("another")), leaves=True),
    Segment("segment replaced by a directory", replace_by(lambda p, _: p.mkdir()), leaves=True),
    Segment("segment replaced by a FIFO", replace_by(lambda p, _: os.mkfifo(p)), leaves=True),
    Segment("segment replaced by a link", replace_by(lambda p, _: p.symlink_to("/etc/passwd")), leaves=True),
    Oom("killed by the OOM killer"),
    Clock("wall clock a year back", "-365d"),
    Clock("wall clock a year on", "+365d"),
    TimeNamespace("monotonic clock a day ahead"),
]
