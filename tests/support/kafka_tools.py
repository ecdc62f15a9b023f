"""Apache Kafka's own command-line tools, run as a user runs them: by `tests/java/kafka`, or, several thousand
classes cheaper, one after the other in a Java machine that each process of tests starts once (Tools.java).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import struct
import subprocess
import threading
from functools import cache
from pathlib import Path

from tests.support.java_programs import compiled
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


class _Gone(Exception):
    """The machine has ended without an answer."""


class _Machine:
    """A Java machine that runs tools. Ends with this process, whose pipe it reads."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [RUNNER, ".Tools"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**environment(), "KAFKA_CLASSES": str(compiled("Tools"))},
        )  # fmt: skip
        self.is_as_new = True
        """whether the last tool left nothing behind"""
        self.is_late = False
        """whether a tool had no more time"""

    def run(self, java_class: str, arguments: list[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        """Return a tool's status and what it wrote to stdout and stderr. Raises `_Gone` if Java is killed."""
        words = [_framed(one.encode()) for one in arguments]
        request = [_framed(java_class.encode()), struct.pack(">i", len(words)), *words, _framed(stdin)]
        assert self._process.stdin is not None
        self.is_as_new = False
        try:
            self._process.stdin.write(b"".join(request))
            self._process.stdin.flush()
            status, out, err = self._number(), self._read(self._number()), self._read(self._number())
            self.is_as_new = self._number() == 1
        except BrokenPipeError:
            raise _Gone from None
        return self._process.wait() if status == _ENDED else status, out, err

    def give_up(self) -> None:
        """Have `run` raise `_Gone`."""
        self.is_late = True
        self._process.kill()

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _number(self) -> int:
        (number,) = struct.unpack(">i", self._read(4))
        return int(number)

    def _read(self, length: int) -> bytes:
        assert self._process.stdout is not None
        found = self._process.stdout.read(length)
        if len(found) < length:
            raise _Gone
        return found


_ENDED = -1
"""Of a tool that ended its machine by itself."""
_machines: list[_Machine] = []
"""The one of this process, while no tool runs."""


def _framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@cache
def _classes() -> dict[str, str]:
    """Tools by their short names."""
    return dict(re.findall(r"^  ([a-z-]+)\) class=(\S+) ;;$", RUNNER.read_text("utf-8"), re.MULTILINE))


def run_tool(
    tool: str, *arguments: str | Path, stdin: bytes = b"", seconds: float = 60
) -> subprocess.CompletedProcess[bytes]:
    """Runs a tool by its short name (`topics`, `dump-log` …) or class and returns what came of it."""
    command = [str(RUNNER), tool, *map(str, arguments)]
    if shutil.which("javac") is None:
        return subprocess.run(
            command, input=stdin, capture_output=True, timeout=seconds, check=False, env=environment()
        )
    try:
        machine = _machines.pop()
    except IndexError:  # the first tool of this process, or another thread's runs
        machine = _Machine()
    late = threading.Timer(seconds, machine.give_up)
    late.start()
    try:
        status, out, err = machine.run(_classes().get(tool, tool), command[2:], stdin)
    except _Gone:
        if machine.is_late:
            raise subprocess.TimeoutExpired(command, seconds) from None
        raise
    finally:
        late.cancel()
        if machine.is_as_new and not _machines:
            _machines.append(machine)
        else:
            machine.end()
    return subprocess.CompletedProcess(command, status, out, err)


def tool(name: str, *arguments: str | Path, stdin: bytes = b"", seconds: float = 60) -> str:
    """Run a tool that must succeed; return its stdout."""
    done = run_tool(name, *arguments, stdin=stdin, seconds=seconds)
    assert done.returncode == 0, (
        f"{name} left with {done.returncode}:\n{done.stdout.decode()}\n{done.stderr.decode()}"
    )
    return done.stdout.decode()
