"""What the instruments share: packages by name, sources, an ordinary user, directories that
go again, and the environment that puts the agent under a program."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RELEASE = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "release"
NOBODY = 65534


def fail(message):
    """Says what is wrong, and ends."""
    sys.exit(f"{Path(sys.argv[0]).name}: {message}")


def release(name):
    """A binary under test."""
    path = RELEASE / name
    if not path.exists():
        fail(f"{path} is missing: run `cargo build --release --workspace` first")
    return path


def need_packages(*names):
    """Installs those of the Debian packages that are missing, as the other scripts do."""
    script = '. "$0"; need_packages "$@"'
    packages = REPOSITORY / "deploy" / "packages.sh"
    if subprocess.run(["bash", "-c", script, packages, *names]).returncode:
        fail("packages are missing")


def mirror():
    """The mirror of Debian that apt uses here."""
    packages = REPOSITORY / "deploy" / "packages.sh"
    done = subprocess.run(["bash", "-c", '. "$0"; mirror', packages], text=True, stdout=subprocess.PIPE)
    if done.returncode:
        fail("there is no mirror to have sources of packages from")
    return done.stdout.strip()


class Sources:
    """Sources of Debian packages, by name, through a configuration of apt's of its own."""

    def __init__(self, directory):
        self.directory = directory
        self.options = None

    def _apt(self, *arguments):
        if self.options is None:
            apt = self.directory / "apt"
            for part in ("lists/partial", "cache/archives/partial"):
                (apt / part).mkdir(parents=True)
            (apt / "sources.list").write_text(f"deb-src {mirror()} bookworm main\n")
            self.options = [
                f"-oDir::Etc::SourceList={apt}/sources.list", "-oDir::Etc::SourceParts=-",
                f"-oDir::State::Lists={apt}/lists", f"-oDir::Cache={apt}/cache",
            ]
            self._apt("update")
        command = ["apt-get", "-qq", *self.options, *arguments]
        done = subprocess.run(command, cwd=self.directory, text=True, capture_output=True)
        if done.returncode:
            fail(f"{' '.join(command)}: {done.stderr.strip()}")

    def unpack(self, package, into):
        """Unpacks the source of a package as its authors published it; gives where."""
        self._apt("--download-only", "source", package)
        archives = sorted(self.directory.glob(f"{package}_*.orig.tar.*"))
        archives = [path for path in archives if path.suffix != ".asc"]
        if len(archives) != 1:
            fail(f"source of {package}: one archive expected, found {archives}")
        into.mkdir()
        subprocess.run(["tar", "-xf", archives[0], "-C", into], check=True)
        (inner,) = into.iterdir()
        return inner


class Work:
    """A directory of one run and a shared one in memory; both go at its end."""

    def __init__(self, name):
        self.path = Path(tempfile.mkdtemp(prefix=f"{name}."))
        self.path.chmod(0o755)
        self.shared = Path(tempfile.mkdtemp(prefix=f"{name}.", dir="/dev/shm"))
        self.shared.chmod(0o1777)
        # The build's directories may be closed to other users.
        self.agent = Path(shutil.copy(release("libmem_agent.so"), self.path))
        self.running = set()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._interrupted)

    def __enter__(self):
        return self

    def start(self, command, **options):
        """Starts a program that lives as long as the run at most. Ctrl-C is not for it."""
        process = subprocess.Popen(list(map(str, command)), start_new_session=True, **options)
        self.running.add(process.pid)
        return process

    def ended(self, process, seconds=60):
        """Waits for a program that `start` started; gives its exit code."""
        code = process.wait(seconds)
        self.running.discard(process.pid)
        return code

    def _interrupted(self, number, _):
        """Ended by a signal, what it started and made goes all the same, at once."""
        self.__exit__()
        os._exit(128 + number)

    def __exit__(self, *_):
        for leader in list(self.running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.rmtree(self.shared, ignore_errors=True)

    def preloaded(self, interval=None, shared=None):
        """The environment that puts the agent under a program: idle, or sampling from its
        start."""
        variables = {"LD_PRELOAD": str(self.agent), "MEM_PROFILER_DIR": str(shared or self.shared)}
        if interval:
            variables |= {"MEM_PROFILER_START": "1", "MEM_PROFILER_INTERVAL": str(interval)}
        return variables


def profiler(shared, *arguments, **options):
    """The controller's command line, and what it is to be run with."""
    environment = os.environ | {"MEM_PROFILER_DIR": str(shared)}
    command = [str(release("mem_profiler")), *map(str, arguments)]
    return command, {"env": environment, "stdin": subprocess.DEVNULL, **options}


def as_ordinary(command):
    """A command line that runs another as an ordinary user."""
    if os.getuid():
        return list(command)
    ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return ["setpriv", *ids, *command]


def resident(pid, field="VmRSS"):
    """A field of a process's status, KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def descriptors(pid):
    """How many a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def free_port():
    """A port of the loopback interface that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def blocks(directory):
    """Bytes that files in a directory take."""
    total = 0
    for entry in os.scandir(directory):
        try:
            total += entry.stat(follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            pass
    return total
