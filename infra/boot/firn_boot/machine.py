"""Everything that is done to the world."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import BootError
from .nvme import ebs_name, identify

COMMAND_LIMIT_S = 7200
"""A forced check of a large file system takes long, and a node may take an hour to stop."""
EDGE_BYTES = 1 << 20
"""What is read at either end of a volume that seems to be empty."""


class Machine:
    """Everything that is done to the world; ``root`` is where the file system begins."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def say(self, text: str) -> None:
        print(f"firn-boot: {text}", file=sys.stderr, flush=True)

    def run(self, *command: str, fine: tuple[int, ...] = (0,)) -> tuple[int, str]:
        """Exit code and stdout; raises BootError with the command's own words for a code that is not fine."""
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_LIMIT_S,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise BootError(f"{' '.join(command)}: not done after {COMMAND_LIMIT_S} s") from None
        except OSError as error:
            raise BootError(f"{command[0]}: {error.strerror}") from None
        if done.returncode not in fine:
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
            raise BootError(f"{' '.join(command)}: exit code {done.returncode}: {' / '.join(words)}")
        return done.returncode, done.stdout

    @contextlib.contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Waits for another run that does `what`: at a start `mount` and `install` come at the same time, and
        people come beside systemd."""
        path = self.path(f"run/firn-boot-{what}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def sync(self) -> None:
        os.sync()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()

    def answers(self, port: int) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
        return False

    def has(self, name: str, text: str) -> bool:
        """Return whether a file exists with exactly this text."""
        with contextlib.suppress(FileNotFoundError):
            return self.path(name).read_bytes() == text.encode()
        return False

    def write(
        self, name: str, text: str, owner: int | None = None, check: Callable[[Path], object] | None = None
    ) -> bool:
        """A whole file or none; one that is as it should be is left alone: False. With an `owner` nobody else
        reads it. What `check` raises leaves the file of before."""
        path, data = self.path(name), text.encode()
        with contextlib.suppress(FileNotFoundError):
            if path.read_bytes() == data:
                return False
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.unlink(missing_ok=True)
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                if owner is None:
                    os.fchmod(file.fileno(), 0o644)
                else:
                    os.fchown(file.fileno(), owner, -1)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if check is not None:
                check(new)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
        return True

    # - block devices

    def is_block(self, device: str) -> bool:
        try:
            return stat.S_ISBLK(os.stat(device).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def nvme_names(self) -> Iterator[tuple[str, str]]:
        """(device, name it was attached by) of EBS volumes, which the controller tells of itself."""
        for device in sorted(self.path("sys/block").glob("nvme*n1")):
            node = f"/dev/{device.name}"
            with contextlib.suppress(OSError):
                if name := ebs_name(identify(node)):
                    yield node, name

    def mounted(self, where: str) -> bool:
        return os.path.ismount(where)

    def same_device(self, device: str, where: str) -> bool:
        return os.stat(device).st_rdev == os.stat(where).st_dev

    def children(self, device: str) -> list[str]:
        """Partitions of a device, and what is built on it."""
        number = os.stat(device).st_rdev
        folder = self.path(f"sys/dev/block/{os.major(number)}:{os.minor(number)}")
        partitions = [one.parent.name for one in folder.glob("*/partition")]
        return partitions + [one.name for one in folder.glob("holders/*")]

    def names(self, where: str) -> list[str]:
        return sorted(os.listdir(where))

    def identity(self, device: str) -> str | None:
        """Return an identity of the device that differs from any other under its name; None without one."""
        number = os.stat(device).st_rdev
        folder = self.path(f"sys/dev/block/{os.major(number)}:{os.minor(number)}")
        for source in ("device/serial", "serial", "device/wwid", "wwid", "loop/backing_file"):
            with contextlib.suppress(OSError):
                if text := (folder / source).read_text("utf-8", "replace").strip():
                    return f"{source} {text} {self.size(device)}\n"
        return None

    def size(self, device: str) -> int:
        with open(device, "rb") as file:
            return file.seek(0, os.SEEK_END)

    def edges(self, device: str) -> bytes:
        """The first and the last of a device's bytes."""
        with open(device, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            head = file.read(EDGE_BYTES)
            file.seek(max(0, size - EDGE_BYTES))
            return head + file.read(EDGE_BYTES)
