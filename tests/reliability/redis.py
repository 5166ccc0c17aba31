"""A redis-server under the agent and under load on the loopback interface, where each answer
is checked."""

import shutil
import socket
import subprocess
import threading
import time

import machine

PACKAGES = ["redis-server", "redis-tools"]
LOAD = ["-t", "set,get,incr,sadd,hset,spop,mset", "-r", "20000", "-d", "120", "-c", "20", "-P", "4"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """The server; it ends with this value."""

    def __init__(self, work):
        self.port = free_port()
        self.directory = work.path / "redis"
        self.directory.mkdir()
        command = [shutil.which("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1",
                   "--dir", str(self.directory), "--save", "", "--appendonly", "no"]
        variables = [f"{k}={v}" for k, v in work.preloaded().items()]
        self.process = subprocess.Popen(["env", *variables, *command], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        self.pid = self.process.pid
        deadline = time.monotonic() + 30
        while True:
            try:
                self.client = Client(self.port)
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise

    def alive(self):
        return self.process.poll() is None

    def end(self):
        """Shuts it down in order; gives its exit code."""
        self.process.terminate()
        return self.process.wait(60)


class Client:
    """A connection that speaks as much of the protocol as is needed."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.file = self.socket.makefile("rb")

    def ask(self, *words):
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        request = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)
        self.socket.sendall(request)
        line = self.file.readline()
        if line[:1] == b"$" and line != b"$-1\r\n":
            return self.file.read(int(line[1:]) + 2)[:-2]
        return line[:-2]


class Load:
    """redis-benchmark, over and over, and a client that checks what it gets."""

    def __init__(self, server):
        self.server, self.stop = server, threading.Event()
        self.requests, self.runs, self.failures = 0, 0, []
        self.threads = [threading.Thread(target=t) for t in (self._benchmark, self._check)]
        for thread in self.threads:
            thread.start()
        # What comes and goes afterwards goes to keys that are there.
        while self.runs < 3 and not self.failures:
            time.sleep(0.05)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def _benchmark(self):
        while not self.stop.is_set():
            command = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(self.server.port), "-q",
                       "-n", "20000", *LOAD]
            done = subprocess.run(command, text=True, capture_output=True)
            text = done.stdout + done.stderr
            self.runs += 1
            self.requests += 20000 * 7
            if done.returncode or "error" in text.lower():
                self.failures.append(f"redis-benchmark: exit code {done.returncode}: {text[-500:]}")
                return

    def _check(self):
        client = Client(self.server.port)
        number = 0
        while not self.stop.is_set():
            key = f"checked:{number % 500}"
            value = bytes([65 + number % 26]) * (1 + number * 37 % 3000)
            answers = client.ask("SET", key, value), client.ask("GET", key), client.ask("STRLEN", key)
            if answers != (b"+OK", value, b":%d" % len(value)):
                self.failures.append(f"{key}: {answers}")
                return
            self.requests += 3
            number += 1
            time.sleep(0.001)


class Gauge:
    """Whether something stays as it is: its first quarter after a warm-up against its last."""

    def __init__(self, name, unit):
        self.name, self.unit, self.values = name, unit, []

    def note(self, value):
        self.values.append(value)

    def verdict(self, share, slack):
        """A line of the report, and whether it grew by more than a share and some slack."""
        values = self.values[len(self.values) // 4:]
        part = max(1, len(values) // 4)
        early, late = (sorted(v)[len(v) // 2] for v in (values[:part], values[-part:]))
        grew = late > early * (1 + share) + slack
        word = "GREW" if grew else "flat"
        return f"{self.name}: {early} → {late} {self.unit}, at most {max(values)}: {word}", grew


def gauges():
    return {"rss": Gauge("redis' resident memory", "KiB"),
            "files": Gauge("redis' descriptors", ""),
            "shared": Gauge("shared memory", "bytes")}


def measure(found, server, shared):
    found["rss"].note(machine.resident(server.pid))
    found["files"].note(machine.descriptors(server.pid))
    found["shared"].note(machine.blocks(shared))


def report(found):
    """Prints how each did; gives whether all stayed."""
    allowed = {"rss": (0.05, 3000), "files": (0, 4), "shared": (0.05, 4 << 20),
               "controller": (0.05, 2000), "top": (0.05, 3000)}
    grew = False
    for name, gauge in found.items():
        line, this = gauge.verdict(*allowed[name])
        print(line)
        grew |= this
    return not grew
