"""Streaming jobs in processes of their own, killed at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from service.spark.stream.offsets import OWN_KEY
from tests.support.processes import REPOSITORY

PATIENCE_S = 300
"""For what only a dead job fails to do; a busy machine takes a minute to start Spark."""
WORK_S = 1200
"""For all that is left to do, in small batches."""


def seeded() -> random.Random:
    """Randomness of one test; its seed is printed, and given again as SEED."""
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"SEED={seed}", flush=True)
    return random.Random(seed)


@dataclass
class Job:
    """A command that runs a streaming query with this checkpoint; it may begin again when it has ended.

    In a process group of its own: the JVM is killed with it, and the Python workers end with the JVM.
    """

    command: Sequence[str]
    checkpoint: Path
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def begin(self, *more: str) -> Job:
        assert self.process is None
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*self.command, *more],
                cwd=REPOSITORY,
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        return self

    def wait_for(self, what: str, condition: Callable[[], object]) -> None:
        """Until `condition()` is true; fails at once when the job has ended by itself."""
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"the job ended before {what}; {self.said()}"
            assert time.monotonic() < deadline, f"waited {PATIENCE_S} s in vain until {what}; {self.said()}"
            time.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        """To the job's process alone, as service managers and `kill` send it."""
        assert self.process is not None
        self.process.send_signal(number)

    def end(self) -> int:
        """Waits until it ends by itself; returns its exit code."""
        assert self.process is not None
        code = self.process.wait(WORK_S)
        self.process = None
        return code

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    @property
    def batches_begun(self) -> int:
        return len(_numbers(self.checkpoint / "offsets"))

    @property
    def batches_done(self) -> int:
        return len(_numbers(self.checkpoint / "commits"))

    @property
    def offsets_done(self) -> int:
        """How many offsets the batches that are done have read, all partitions together from 0 on."""
        done = _numbers(self.checkpoint / "commits")
        if not done:
            return 0
        lines = (self.checkpoint / "offsets" / str(max(done))).read_text("utf-8").splitlines()
        rows = (row for topic, row in json.loads(lines[-1]).items() if topic != OWN_KEY)
        return sum(offset for row in rows for offset in row.values())

    def forget_newest(self) -> None:
        """As if it had been killed when the newest batch was in the output, but not yet noted as done."""
        commits = self.checkpoint / "commits"
        newest = max(_numbers(commits))
        (commits / f"{newest}").unlink()
        (commits / f".{newest}.crc").unlink()

    def said(self) -> str:
        text = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        return f"its log ends:\n{text[-3000:]}"


def _numbers(folder: Path) -> list[int]:
    names = [one.name for one in folder.iterdir()] if folder.exists() else []
    return [int(name) for name in names if name.isdigit()]


def kill_often(
    job: Job, rng: random.Random, output: Path, *, kills: int, prepare: Callable[[], object] = lambda: None
) -> None:
    """Kills the job so often, each time up to 0.7 s after a batch has begun, has written a file or is done.

    The first kill is as soon as there is a file, and so in the middle of a batch. `prepare` is called before
    the job begins, each time, where it would find nothing to do otherwise.
    """
    progress: dict[str, Callable[[], int]] = {
        "a file is written": lambda: sum(1 for _ in output.rglob("*.parquet")),
        "a batch has begun": lambda: job.batches_begun,
        "a batch is done": lambda: job.batches_done,
    }
    for number in range(kills):
        prepare()
        what, count = rng.choice(list(progress.items())) if number else next(iter(progress.items()))
        before = count()
        job.begin()
        try:
            job.wait_for(what, lambda: count() > before)  # noqa: B023
            time.sleep(rng.uniform(0, 0.7) if number else 0)
        finally:
            job.kill()
