"""A Python program under the agent that trains a model, with processes and threads that load its
data; each epoch's checksum must be that of a run without the agent."""

import subprocess
from pathlib import Path

from target import Target

PACKAGES = ["python3", "python3-numpy"]
PYTHON = "/usr/bin/python3"
PROGRAM = Path(__file__).resolve().parent / "programs" / "trainer.py"


class Trainer(Target):
    """The program; it trains until its input ends."""

    def __init__(self, work):
        plain = subprocess.run([PYTHON, PROGRAM, "plain"], check=True, text=True, stdout=subprocess.PIPE)
        self.truth = plain.stdout.split()
        self.log = work.path / "epochs"
        # Every object's memory through malloc.
        super().__init__([PYTHON, PROGRAM, self.log], work.preloaded() | {"PYTHONMALLOC": "malloc"},
                         start_new_session=True)
        work.running.add(self.pid)

    def epochs(self):
        """Epochs that are done."""
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def wrong(self):
        """What is wrong with the epochs so far."""
        lines = self.log.read_text().splitlines()
        return [f"trainer: epoch {line}: {truth} without the agent"
                for at, line in enumerate(lines)
                if line != f"{at} {(truth := self.truth[at % len(self.truth)])}"]
