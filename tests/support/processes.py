"""Child processes of the tests: a `firn server`, S3 servers. Whatever is started here ends with its owner."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = REPOSITORY / ".venv" / "bin" / "python"
FIRN = REPOSITORY / ".venv" / "bin" / "firn"


class Ports(Sequence[int]):
    """Ports to be looked at, one after the other whatever index is asked for: none comes again soon, while
    whom it was given to is still to start, or to start again.

    From below those that outgoing connections take theirs from, and those that `firn dev` takes: so a node
    finds its port free, whatever clients did meanwhile. Each of up to 8 `workers` has its own.
    """

    WORKERS = 8

    def __init__(self, worker: int | None = None) -> None:
        own = range(10_000, 20_000)
        if worker is not None:
            own = own[worker % self.WORKERS :: self.WORKERS]
        self._own = own
        self._next = random.SystemRandom().randrange(len(own))

    def __len__(self) -> int:
        return len(self._own)

    def __getitem__(self, _: Any) -> Any:
        self._next = (self._next + 1) % len(self._own)
        return self._own[self._next]


PORTS = [Ports()]
"""those of this process"""


def free_port() -> int:
    """A port that is free now, of `Ports`."""
    while True:
        port: int = PORTS[0][0]
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(1)
            return port


def wait_until(what: str, condition: Callable[[], object], seconds: float = 30, every: float = 0.05) -> None:
    """Polls until `condition()` is true; says what it waited for when it never becomes so."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(every)


def copy_as_crashed(data: Path, target: Path) -> Path:
    """`data` of a running node at `target`, as a crash at this moment leaves it; returns `target`.

    A file that was renamed or unlinked since its directory was listed is not there, and neither is the lock.
    """
    target.mkdir()
    for path in sorted(data.iterdir()):
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir():
                copy_as_crashed(path, target / path.name)
            elif path.name != ".lock":
                shutil.copy2(path, target / path.name)
    return target


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes], seconds: float = 10) -> None:
    """SIGTERM, then SIGKILL for one that does not listen."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Node:
    """One `firn server` on a folder and a port that stay the same over restarts.

    `node.stop()` asserts a clean end, `node.kill()` is `kill -9`, `node.start()` starts it again.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None
    ):
        self.folder = folder
        self.port = free_port()
        self.settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(folder / "data"),
            "firn.disk.watermarks.enable": "false",  # how full this machine's disk is decides nothing
            **(settings or {}),
        }
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[str] | None = None
        self.stderr_path = folder / "stderr.log"
        self.ready_line = ""

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, seconds: float = 30) -> Node:
        """Returns once the node has said `ready:`."""
        assert not self.running
        command = [str(FIRN), "server"]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.stderr_path.open("ab") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=self.env,
            )
        self.ready_line = first_line(self.process, seconds)
        if not self.ready_line.startswith("ready: "):
            end(self.process)
            raise AssertionError(
                f"no `ready:` line but {self.ready_line!r}, exit {self.process.returncode}; {self.log()}"
            )
        return self

    def stop(self, seconds: float = 30) -> None:
        """SIGTERM: the node must leave with 0."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(
                f"the node did not end within {seconds:g} s of SIGTERM; {self.log()}"
            ) from None
        finally:
            self._close_pipe()
        assert code == 0, f"the node left with {code}; {self.log()}"

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._close_pipe()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Ends it however it stands; for the end of a test."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def log(self, lines: int = 40) -> str:
        """The end of what the node logged."""
        if not self.stderr_path.exists():
            return "nothing logged"
        return "its log ends:\n" + "\n".join(
            self.stderr_path.read_text(errors="replace").splitlines()[-lines:]
        )

    def rss_bytes(self) -> int:
        return _status_bytes(self.pid, "VmRSS")

    def peak_rss_bytes(self) -> int:
        return peak_rss_bytes(self.pid)

    def cpu_seconds(self) -> tuple[float, float]:
        return cpu_seconds(self.pid)

    def open_files(self) -> list[str]:
        names = []
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                names.append(os.readlink(entry))
        return names


def peak_rss_bytes(pid: int) -> int:
    return _status_bytes(pid, "VmHWM")


def _status_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field} in /proc/{pid}/status")


def cpu_seconds(pid: int) -> tuple[float, float]:
    """(user, system) seconds a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick


def first_line(process: subprocess.Popen[str], seconds: float) -> str:
    """The first line on stdout, or "" if it ends, or is not there in time, without one."""
    found: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda out=process.stdout: found.append(out.readline()), daemon=True)
    reader.start()
    reader.join(seconds)
    return found[0].strip() if found else ""


@contextlib.contextmanager
def child(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process for the length of a `with`, its stdout readable, its stderr in `log`."""
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **(env or {})},
        )
    try:
        yield process
    finally:
        end(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
