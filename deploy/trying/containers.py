"""Containers by hand: a root folder, read only, in namespaces of its own.

What a runtime does for an image is done here by unshare, mount and chroot: user, working directory, entry
point and environment are those of the image's configuration; the first process of the namespace is the
image's.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from .tools import Failed, need, run

BRIDGE: Final = "firn-try"
NETWORK: Final = "10.214.77"
"""Addresses of the containers, on a bridge of this machine that leads nowhere else."""


@contextlib.contextmanager
def network(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Make a bridge and a network namespace for each name; gives their addresses."""
    made = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, 10)}
    take_down(names)
    try:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "link", "set", BRIDGE, "up")
        for number, (name, address) in enumerate(made.items()):
            inside, outside = space(name), f"firn-try-{number}"
            run("ip", "netns", "add", inside)
            run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", inside)
            run("ip", "link", "set", outside, "master", BRIDGE, "up")
            run("ip", "-n", inside, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", inside, "link", "set", device, "up")
        yield made
    finally:
        take_down(names)


def take_down(names: Sequence[str]) -> None:
    for name in names:
        run("ip", "netns", "del", space(name), fine=(0, 1))
    run("ip", "link", "del", BRIDGE, fine=(0, 1))


def space(name: str) -> str:
    return f"firn-try-{name}"


class Container:
    """One run of an image. `image`: its configuration; `tree`: its root folder, which several may share."""

    def __init__(
        self, name: str, image: Mapping[str, Any], tree: Path, home: Path, addresses: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = home / f"{name}.log"
        self.volume = home / f"volume-{name}"
        self.files: dict[str, Path] = {}
        """further files, by their place in the container"""
        self._image = image
        self._tree = tree
        self._home = home
        self._hosts = home / f"hosts-{name}"
        lines = [f"{address} {one}" for one, address in addresses.items()]
        self._hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, environ: Mapping[str, str], command: Sequence[str] | None, entrypoint: Sequence[str] | None
    ) -> None:
        """Start the first process: the image's entry point, unless another is given."""
        if not self.volume.exists():
            # A named volume begins with the owner and the rights that its folder has in the image.
            self.volume.mkdir()
            found = os.stat(self._tree / "var/lib/firn")
            os.chown(self.volume, found.st_uid, found.st_gid)
            self.volume.chmod(found.st_mode & 0o7777)
        first = [*(entrypoint or self._image["Entrypoint"]), *(command or self._image["Cmd"])]
        given = dict(one.split("=", 1) for one in self._image["Env"])
        words = ["env", "-i", *(f"{k}={v}" for k, v in {**given, **environ, "HOSTNAME": self.name}.items())]
        line = [*self._in_root(), *words, *first]
        script = "\n".join(["set -e", *self._mounts(), f"exec {shlex.join(line)}"])
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", space(self.name), "unshare", "--mount", "--uts", "--pid", "--fork",
                 "--kill-child", "--propagation", "private", "sh", "-c", script],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def _in_root(self) -> list[str]:
        """Return how a command gets into the root folder, as the image's user and without capabilities."""
        user, _, group = self._image["User"].partition(":")
        who = ["setpriv", "--reuid", user, "--regid", group, "--clear-groups", "--no-new-privs"]
        rights = ["--bounding-set=-all", "--inh-caps=-all"]
        root = str(self._home / f"root-{self.name}")
        return ["chroot", root, *who, *rights, "env", "-C", self._image["WorkingDir"]]

    def _mounts(self) -> list[str]:
        """Return the lines that make the container's view: read only but for the volume and /tmp."""
        root = self._home / f"root-{self.name}"
        root.mkdir(exist_ok=True)
        lines = [
            f"hostname {self.name}",
            f"mount --bind {self._tree} {root}",
            f"mount -t proc proc {root}/proc",
            f"mount -t tmpfs -o mode=1777 tmp {root}/tmp",
            f"mount --bind {self.volume} {root}/var/lib/firn",
            f"mount -t tmpfs -o mode=755 dev {root}/dev",
        ]
        for device in ("null", "zero", "random", "urandom"):
            lines += [f"touch {root}/dev/{device}", f"mount --bind /dev/{device} {root}/dev/{device}"]
        lines += [f"mkdir -m 1777 {root}/dev/shm", f"mount --bind {self._hosts} {root}/etc/hosts"]
        if self.files:
            lines.append(f"mount -t tmpfs run {root}/run")
        for place, path in self.files.items():
            lines += [f"touch {root}{place}", f"mount --bind {path} {root}{place}"]
        return [*lines, f"mount -o remount,ro,bind {root}"]

    @property
    def first(self) -> int:
        """The number of the container's first process, as the machine counts."""
        need(self._process is not None, f"{self.name} was not started")
        assert self._process is not None
        return _child(self._process.pid)

    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def run(self, *command: str, seconds: float = 60, fine: Sequence[int] = (0,), text: str = "") -> str:
        """Run a command in the container, as `docker exec` does."""
        environ = Path(f"/proc/{self.first}/environ").read_bytes().decode().split("\0")
        inside = ["nsenter", "-t", str(self.first), "-m", "-u", "-n", "-p", "--"]
        words = ["env", "-i", *filter(None, environ), *command]
        return run(*inside, *self._in_root(), *words, seconds=seconds, fine=fine, text=text)

    def passes(self, *check: str) -> bool:
        """Return whether a health check says so."""
        try:
            self.run(*check, seconds=10)
        except (Failed, OSError, subprocess.TimeoutExpired):
            return False
        return True

    def stop(self, grace_s: float) -> tuple[int, float]:
        """Send SIGTERM as a runtime does, to the first process; return exit code and seconds. Raises `Failed`
        after the grace period."""
        assert self._process is not None
        begun = time.monotonic()
        os.kill(self.first, signal.SIGTERM)
        try:
            code = self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"{self.name} did not end within {grace_s:g} s of SIGTERM") from None
        return code, time.monotonic() - begun

    def ended(self, seconds: float) -> int:
        """Wait for a container that ends by itself; return its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def kill(self) -> None:
        """End whatever is left of it."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(OSError, Failed):
                os.kill(self.first, signal.SIGKILL)
            self._process.kill()
            self._process.wait()

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])


def _child(parent: int) -> int:
    """Return the first process of a namespace: `ip` becomes `unshare`, which has one child."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if found := Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
                return int(found[0])
        time.sleep(0.01)
    raise Failed(f"process {parent} has no child")
