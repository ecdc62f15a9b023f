"""Suite of another project: how its sources are fetched, and what it says of a secured cluster."""

from __future__ import annotations

import json
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.processes import REPOSITORY
from tests.support.quorums import Program

CACHE: Final = REPOSITORY / ".cache" / "judges"
REFERENCE: Final = Path(__file__).with_name("reference.json")
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

States = dict[str, str]
"""State of each case, by its name."""


class Suite(ABC):
    """One project's tests. What `differs` is known to, with the reason."""

    name: str
    version: str
    differs: Mapping[str, str] = {}
    """beginning of the names of cases that cannot pass against Firn: why"""
    only = ""
    """part of the names of cases to be run, where a suite can choose"""
    is_asked_for = False
    """runs where it is named alone"""

    @property
    def source(self) -> Path:
        return CACHE / f"{self.name}-{self.version}"

    @abstractmethod
    def fetch(self) -> None:
        """Bring sources and what is built of them into `source`."""

    @abstractmethod
    def judge(self, program: Program, folder: Path) -> States:
        """Run against that program on a fresh folder, which keeps logs."""

    def excuse(self, case: str) -> str:
        return next((why for begin, why in self.differs.items() if case.startswith(begin)), "")


def run(
    command: Sequence[str | Path], cwd: Path, log: Path, env: Mapping[str, str] | None = None, *,
    seconds: float = 1800, must: bool = False,
) -> int:  # fmt: skip
    """Run a command with its output in a log, which is added to; its exit code, -1 where it took too long."""
    with log.open("ab") as out:
        out.write(f"== {' '.join(map(str, command))}\n".encode())
        out.flush()
        process = subprocess.Popen(
            [str(one) for one in command],
            cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})}, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
    assert code == 0 or not must, f"{command[0]} left with {code}: see {log}"
    return code


def reference() -> dict[str, dict[str, States]]:
    """What was recorded: suite → "kafka" and "firn" → states."""
    found: dict[str, dict[str, States]] = json.loads(REFERENCE.read_text()) if REFERENCE.exists() else {}
    return found


def record(suite: str, program: Program, states: States) -> None:
    """Put states into the file, beside those of cases that did not run."""
    found = reference()
    found.setdefault(suite, {}).setdefault(program.value, {}).update(states)
    REFERENCE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
