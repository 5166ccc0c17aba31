"""The controller's commands that are on all the time: `top` in a terminal, `serve` and its
clients, `push` and its receiver."""

import base64
import fcntl
import gzip
import http.server
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
import urllib.error
import urllib.request

import machine
from target import until

REQUEST_SECONDS = 60


class Command:
    """A command that lives as long as the run, and says nothing but what is expected."""

    expected = re.compile("")

    def __init__(self, work, *arguments):
        self.work, self.name = work, arguments[0]
        line, how = machine.profiler(work.shared, *arguments)
        self.process = work.start(line, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how)
        self.pid, self.lines = self.process.pid, []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def alive(self):
        return self.process.poll() is None

    def end(self):
        """Ends it as Ctrl-C does; gives what was wrong with it."""
        if self.alive():
            self.process.send_signal(signal.SIGINT)
        code = self.work.ended(self.process)
        self.reader.join(10)
        wrong = [f"{self.name}: {line}" for line in self.lines if not self.expected.fullmatch(line)]
        return wrong + ([f"{self.name}: exit code {code}"] if code else [])


class Screen:
    """`top` in a terminal that somebody reads."""

    name = "top"

    def __init__(self, work, pid):
        self.work = work
        line, how = machine.profiler(work.shared, "top", "-p", pid)
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        how["stdin"] = slave
        how["env"] |= {"TERM": "xterm"}
        self.process = work.start(line, stdout=slave, stderr=slave, **how)
        os.close(slave)
        self.pid, self.bytes, self.shown, self.said = self.process.pid, 0, time.monotonic(), b""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        while True:
            try:
                screen = os.read(self.master, 65536)
            except OSError:
                return
            self.bytes += len(screen)
            self.shown = time.monotonic()
            if b"mem_profiler: " in screen:
                self.said = screen

    def alive(self):
        """Whether it still runs, and shows something new now and then."""
        return self.process.poll() is None and time.monotonic() - self.shown < REQUEST_SECONDS

    def end(self):
        """Ends it as Ctrl-C does; gives what was wrong with it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.work.ended(self.process)
        self.reader.join(10)
        os.close(self.master)
        bad = code or not self.bytes or self.said
        return [f"top: exit code {code}, {self.bytes} bytes shown: {self.said}"] if bad else []


class Server(Command):
    """`serve`, and what its clients ask."""

    expected = re.compile(r"serving at http://\S+|mem_server: .*: a client st(art|op)s .*")

    def __init__(self, work):
        super().__init__(work, "serve", "--listen", "127.0.0.1:0")
        until("the server", lambda: self.lines or not self.alive())
        if not self.alive():
            raise RuntimeError(f"serve: {self.lines}")
        self.url, self.requests = self.lines[0].split()[-1], 0

    def ask(self, path, method="GET"):
        """The body of an answer that must be 200."""
        request = urllib.request.Request(self.url + path, method=method, headers={"X-Mem-Profiler": "1"})
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
                self.requests += 1
                return answer.read()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code}: {error.read().decode(errors='replace')}") from error

    def look(self, pids):
        """What somebody who watches the page asks, with the list and the metrics of these
        processes."""
        if self.ask("healthz").strip() != b"ok":
            raise RuntimeError("GET healthz: not ok")
        if b"</html>" not in self.ask(""):
            raise RuntimeError("GET /: no page")
        listed = {row["pid"] for row in json.loads(self.ask("api/processes"))["processes"]}
        counted = set(map(int, re.findall(rb'pid="(\d+)"', self.ask("metrics"))))
        for what, found in (("list", listed), ("metrics", counted)):
            if not pids <= found:
                raise RuntimeError(f"serve: the {what} lacks {pids - found}")

    def sample(self, pid, interval):
        """A session through its API, with a profile and a page of it."""
        self.ask(f"api/start?pid={pid}&interval={interval}&seconds=60", "POST")
        gzip.decompress(self.ask(f"p/{pid}/debug/pprof/heap"))
        page = self.ask(f"report?pid={pid}")
        self.ask(f"api/stop?pid={pid}", "POST")
        if b"</html>" not in page:
            raise RuntimeError(f"GET report: {page[:200]}")

    def scrape(self, pid, seconds):
        """A profile of what changes meanwhile, as Parca takes it."""
        gzip.decompress(self.ask(f"p/{pid}/debug/pprof/heap?seconds={seconds}"))


class Receiver:
    """Takes profiles as Parca does."""

    def __init__(self):
        received = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                received.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.profiles, self.wrong = 0, []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, body):
        """Notes a request; it must have a profile with the heap in it."""
        try:
            for series in json.loads(body)["series"]:
                for sample in series["samples"]:
                    if b"inuse_space" not in gzip.decompress(base64.b64decode(sample["rawProfile"])):
                        raise ValueError("a profile without the heap")
                    self.profiles += 1
        except (ValueError, KeyError, OSError) as error:
            self.wrong.append(f"push: {path}: {error!r}")

    def end(self):
        self.server.shutdown()
        self.server.server_close()
        return self.wrong


class Pusher(Command):
    """`push` to a receiver of our own."""

    expected = re.compile(r"mem_server: \d+ profiles sent \(\d+ KiB\), \d+ waiting, 0 dropped")

    def __init__(self, work, pid):
        self.receiver = Receiver()
        super().__init__(work, "push", "--to", "parca", self.receiver.url, "--every", "2s", "-p", pid)

    def end(self):
        wrong = super().end() + self.receiver.end()
        return wrong + ([] if self.receiver.profiles else ["push: no profile arrived"])
