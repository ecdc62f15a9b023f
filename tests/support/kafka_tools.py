"""Apache Kafka's own command-line tools, run as a user runs them."""

from __future__ import annotations

import fcntl
import os
import subprocess
from functools import cache
from pathlib import Path

from tests.support.processes import REPOSITORY
from tests.support.requirements import KAFKA_APPS, KAFKA_LIBS

RUNNER = REPOSITORY / "tests" / "java" / "kafka"
ARCHIVER = REPOSITORY / "tests" / "java" / "archive"


@cache
def environment() -> dict[str, str]:
    """Return the environment of tools. The first worker to call it archives their classes."""
    env = {**os.environ, "KAFKA_LIBS": str(KAFKA_LIBS), "KAFKA_APPS": str(KAFKA_APPS)}
    archive = KAFKA_LIBS.parent / "classes.jsa"
    try:
        with archive.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists():
                subprocess.run([ARCHIVER], env=env, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"tools start slowly, without {archive}: {error}")
    return env


def run_tool(
    tool: str, *arguments: str | Path, stdin: bytes = b"", seconds: float = 60
) -> subprocess.CompletedProcess[bytes]:
    """Runs a tool by its short name (`topics`, `dump-log` …) and returns what came of it."""
    return subprocess.run(
        [RUNNER, tool, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        timeout=seconds,
        check=False,
        env=environment(),
    )


def tool(name: str, *arguments: str | Path, stdin: bytes = b"", seconds: float = 60) -> str:
    """Run a tool that must succeed; return its stdout."""
    done = run_tool(name, *arguments, stdin=stdin, seconds=seconds)
    assert done.returncode == 0, (
        f"{name} left with {done.returncode}:\n{done.stdout.decode()}\n{done.stderr.decode()}"
    )
    return done.stdout.decode()
