"""A program under test that talks in lines, and the controller's commands about it."""

import contextlib
import json
import os
import re
import subprocess
import threading
import time

import machine

PATIENCE = 60
# What the first pages of a segment hold (shm-protocol/src/layout.rs).
MAGIC = b"MEMPROF\n"


class Target:
    """A running program; `say` gives it a line and takes what it answers before "ok"."""

    def __init__(self, command, environment, **options):
        self.process = subprocess.Popen(
            ["env", *[f"{k}={v}" for k, v in environment.items()], *map(str, command)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
        self.pid = self.process.pid
        self.hear("ready")

    def hear(self, last):
        heard, late = [], threading.Timer(PATIENCE, self.process.kill)
        late.start()
        try:
            for line in self.process.stdout:
                if line == last + "\n":
                    return heard
                heard.append(line.rstrip("\n"))
        finally:
            late.cancel()
        raise EOFError(f"the program ended, or was killed after {PATIENCE} s: {self.process.wait()}")

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.hear("ok")

    def alive(self):
        return self.process.poll() is None

    def end(self):
        """Ends its input; gives its exit code."""
        self.process.stdin.close()
        return self.process.wait(PATIENCE)


def command(shared, *arguments, seconds=PATIENCE, **options):
    """Runs the controller to its end; gives exit code, standard output, standard error."""
    line, how = machine.profiler(shared, *arguments, **options)
    done = subprocess.run(line, text=True, capture_output=True, timeout=seconds, **how)
    return done.returncode, done.stdout, done.stderr


def start(shared, *arguments, **options):
    """Starts the controller, its output kept."""
    line, how = machine.profiler(shared, *arguments, **options)
    return subprocess.Popen(line, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


def is_sampling(shared, pid):
    """Whether a session runs, as the segment's first byte tells. What lies in its place is none."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
    for entry in os.scandir(shared):
        if entry.name.startswith(f"mem_profiler.{pid}."):
            with contextlib.suppress(OSError), open(os.open(entry.path, flags), "rb") as file:
                view = file.read(3 * 4096)
                if MAGIC in view and not view.startswith(b"\0"):
                    return True
    return False


def until(what, condition, seconds=PATIENCE):
    """Asks until it is so; fails at a deadline."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.002)
    return found


def dumps(output):
    """The dumps that the controller names."""
    return [line[:line.index(".heap") + 5] for line in output.splitlines() if ".heap" in line]


# What the controller says besides that something is wrong. The second line is of the allocator's
# own background thread, which allocates once, when it begins: nothing of the program's is missing.
# The third is of profiles that running sessions write. The last is of processes of the machine's
# that not even root may look into, which have begun meanwhile.
HARMLESS = re.compile("mem_profiler: (" + "|".join((
    r"(hint|next): .*",
    r"warning: .*: [1-4] of \d+ samples were taken in threads that were ending, or are of the allocator itself.*",
    r"\d+ segments? (is|are) kept: .* writes? out .*",
    r"\d+ segments? (is|are) kept, .*: process \d+ may map it: /proc/\d+/maps cannot be read, even as root: .*")) + ")")


def wrong_lines(said):
    """Lines of the controller's standard error that say that something is wrong."""
    return [line for line in said.splitlines() if not HARMLESS.fullmatch(line)]


def stacks(dump, program=None):
    """The stacks of a dump: the functions' names, and what the dump says of objects and bytes."""
    named = ["-p", program] if program else []
    parser = [machine.release("mem_parser"), *named, "-f", dump, "--json"]
    parsed = json.loads(subprocess.run(parser, check=True, capture_output=True).stdout)
    for stack in parsed["stacks"]:
        yield [parsed["frames"][frame]["name"] for frame in stack["frames"]], stack["detail"]


def sites(program, dump):
    """What a dump says of each `site_…`: objects, bytes, live objects, live bytes."""
    found = {}
    for names, d in stacks(dump, program):
        name = next((name for name in names if name.startswith("site_")), None)
        if name:
            values = [d["alloc_objects"], d["alloc_bytes"], d["alloc_objects"] - d["freed_objects"],
                      d["alloc_bytes"] - d["freed_bytes"]]
            found[name] = [a + b for a, b in zip(found.get(name, [0] * 4), values)]
    return found
