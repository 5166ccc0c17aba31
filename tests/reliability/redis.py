"""A redis-server under the agent and under load on the loopback interface, where each answer
is checked."""

import os
import shutil
import socket
import subprocess
import threading
import time

import gauge
import machine

PACKAGES = ["redis-server", "redis-tools"]
CLIENTS = 20
WARM_UP_RUNS = 3
LOAD = ["-t", "set,get,incr,sadd,hset,spop,mset", "-r", "20000", "-d", "120", "-c", str(CLIENTS), "-P", "4"]


class Server:
    """The server; it ends with this value."""

    def __init__(self, work, name="redis"):
        self.work, self.port = work, machine.free_port()
        self.directory = work.path / name
        self.directory.mkdir()
        command = [shutil.which("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1",
                   "--dir", str(self.directory), "--save", "", "--appendonly", "no"]
        self.process = work.start(command, env=os.environ | work.preloaded(), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
        return self.work.ended(self.process)


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
    """redis-benchmark, over and over, with a rest of some seconds, and a client that checks what
    it gets."""

    def __init__(self, server, rest=0):
        self.server, self.rest, self.stop = server, rest, threading.Event()
        self.requests, self.runs, self.failures = 0, 0, []
        self.threads = [threading.Thread(target=self._run, args=[part]) for part in (self._benchmark, self._check)]
        for thread in self.threads:
            thread.start()
        # What comes and goes afterwards goes to keys that are there.
        while self.runs < WARM_UP_RUNS and not self.failures:
            time.sleep(0.05)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def _run(self, part):
        try:
            part()
        except (OSError, ValueError) as error:
            self.failures.append(f"redis: {error!r}")

    def _benchmark(self):
        while not self.stop.is_set():
            command = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(self.server.port), "-q",
                       "-n", "20000", *LOAD]
            done = self.server.work.start(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            text, _ = done.communicate()
            self.server.work.ended(done)
            self.runs += 1
            self.requests += 20000 * 7
            if done.returncode or "error" in text.lower():
                self.failures.append(f"redis-benchmark: exit code {done.returncode}: {text[-500:]}")
                return
            if self.runs >= WARM_UP_RUNS:
                self.stop.wait(self.rest)

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


def gauges():
    return {"rss": gauge.memory("redis"), "files": gauge.files("redis", CLIENTS), "shared": gauge.shared()}


def measure(found, server, shared):
    found["rss"].note(machine.resident(server.pid))
    found["files"].note(machine.descriptors(server.pid))
    found["shared"].note(machine.blocks(shared))
