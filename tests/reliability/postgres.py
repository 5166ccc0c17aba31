"""A PostgreSQL server under the agent and under pgbench's load, where the books must balance."""

import hashlib
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import machine
from target import until

PACKAGES = ["postgresql"]
# Transactions a second, each over a connection of its own: a process each.
RATE = 30
# Those that come in a session, and in the time between two removals of what they left.
BACKENDS = 300
SETTINGS = {"listen_addresses": "", "shared_buffers": "16MB", "checkpoint_timeout": "30s", "fsync": "off"}
NUMBERS = 20000
# What the server says that something is wrong with; a table that is emptied need not be vacuumed.
WRONG = re.compile(r" (WARNING|ERROR|FATAL|PANIC):  (?!canceling autovacuum task)|terminated by signal")


def programs():
    """Where the newest installed version has its programs."""
    return max(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3])).parent


class Database:
    """The server, and pgbench's tables in it."""

    def __init__(self, work):
        self.work, self.programs = work, programs()
        self.directory, self.log = work.path / "postgres", work.path / "postgres.log"
        self.directory.mkdir()
        if not os.getuid():
            shutil.chown(self.directory, machine.NOBODY, machine.NOBODY)
        self.client("initdb", "-A", "trust", "-N", "-U", "postgres", "--locale=C", "-D", self.directory)
        settings = [f"-c{name}={value}" for name, value in SETTINGS.items()]
        server = [self.programs / "postgres", "-D", self.directory, "-k", self.directory, *settings]
        variables = [f"{k}={v}" for k, v in work.preloaded().items()]
        with open(self.log, "w") as log:
            self.process = work.start(machine.as_ordinary(["env", *variables, *server]), cwd=self.directory,
                                      stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.pid = self.process.pid
        until("the database", lambda: "ready to accept connections" in self.log.read_text())
        self.client("pgbench", "-i", "-q", *self.connection())

    def connection(self):
        return ["-h", self.directory, "-U", "postgres", "postgres"]

    def client(self, program, *arguments):
        """Runs one of PostgreSQL's programs; gives its output."""
        line = machine.as_ordinary([self.programs / program, *arguments])
        done = subprocess.run(list(map(str, line)), cwd=self.directory, text=True, capture_output=True,
                              start_new_session=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{program}: exit code {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def ask(self, statement):
        return self.client("psql", "-qAtX", "-c", statement, *self.connection()).split()

    def pids(self):
        """The postmaster, and those of its children that stay."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        helpers = [pid for pid in children
                   if re.search(rb"checkpointer|writer|launcher", command_line(pid))]
        return [self.pid, *map(int, helpers)]

    def alive(self):
        return self.process.poll() is None

    def wrong(self):
        """What the server says that is wrong."""
        return [f"postgres: {line}" for line in self.log.read_text().splitlines() if WRONG.search(line)]

    def end(self):
        """Shuts it down in order; gives its exit code."""
        self.process.terminate()
        return self.work.ended(self.process)


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Load:
    """pgbench, over and over, and the sums of its tables in between."""

    def __init__(self, database):
        self.database, self.stop = database, threading.Event()
        self.transactions, self.failures = 0, []
        self.balance = 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def end(self):
        self.stop.set()
        self.thread.join()

    def _run(self):
        try:
            while not self.stop.is_set():
                self._transact()
                self._check_books()
                self._check_answer()
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            self.failures.append(str(error))

    def _transact(self):
        said = self.database.client("pgbench", "-n", "-C", "-c", "2", "-R", str(RATE), "-T", "5",
                                    *self.database.connection())
        done = re.search(r"actually processed: (\d+)", said)
        failed = re.search(r"failed transactions: (\d+)", said)
        if not done or not int(done[1]) or not failed or int(failed[1]):
            raise RuntimeError(f"pgbench: {said}")
        self.transactions += int(done[1])

    def _check_books(self):
        """What was moved is what is there."""
        moved, count = self.database.ask("SELECT coalesce(sum(delta), 0) || ' ' || count(*) FROM pgbench_history")
        self.database.ask("TRUNCATE pgbench_history")
        self.balance += int(moved)
        sums = self.database.ask("SELECT sum(abalance) FROM pgbench_accounts UNION ALL SELECT sum(bbalance) "
                                 "FROM pgbench_branches UNION ALL SELECT sum(tbalance) FROM pgbench_tellers")
        if sums != [str(self.balance)] * 3 or not int(count):
            raise RuntimeError(f"postgres: {count} transactions; the tables' sums are {sums}, moved was {self.balance}")

    def _check_answer(self):
        truth = hashlib.md5(",".join(map(str, range(1, NUMBERS + 1))).encode()).hexdigest()
        found = self.database.ask("SELECT md5(string_agg(i::text, ',' ORDER BY i)) "
                                  f"FROM generate_series(1, {NUMBERS}) AS i")
        if found != [truth]:
            raise RuntimeError(f"postgres: a sum of {found}, in truth {truth}")
