"""A machine of dictionaries under a folder; any one thing that infra/boot does to it can be made to fail."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from infra.boot.firn_boot.errors import BootError
from infra.boot.firn_boot.machine import Machine

EMPTY = bytes(64)


@dataclass
class Volume:
    kind: str | None = None
    label: str = ""
    names: list[str] = field(default_factory=list)
    serial: str | None = "vol-1"
    edges: bytes = EMPTY
    children: list[str] = field(default_factory=list)
    several: bool = False
    formatted: int = 0
    size: int = 1 << 30
    used: int = 1 << 30


class ModelMachine(Machine):
    def __init__(self, root: Path, volumes: dict[str, Volume] | None = None) -> None:
        super().__init__(root)
        self.volumes = volumes if volumes is not None else {}
        self.attached_later: dict[float, tuple[str, Volume]] = {}
        self.nvme: dict[str, str] = {}
        self.users: set[str] = set()
        self.on: str | None = None
        self.active: dict[str, int] = {}
        self.enabled: set[str] = set()
        self.timers: set[str] = set()
        self.deaf: set[int] = set()
        self.commands: list[tuple[str, ...]] = []
        self.said: list[str] = []
        self.fail_at: int | None = None
        self.time = 0.0
        self.cut_in_mkfs = False
        self.formed: list[str] = []
        self.number = os.getuid()

    def sync(self) -> None:
        self.count(("sync",))

    def say(self, text: str) -> None:
        self.said.append(text)

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        for at in [at for at in self.attached_later if at <= self.time]:
            name, volume = self.attached_later.pop(at)
            self.volumes[name] = volume

    def now(self) -> float:
        return self.time

    def answers(self, port: int) -> bool:
        return port not in self.deaf

    def write(
        self, name: str, text: str, owner: int | None = None, check: Callable[[Path], object] | None = None
    ) -> bool:
        self.count(("write", name))
        return super().write(name, text, owner, check)

    def is_block(self, device: str) -> bool:
        return device in self.volumes

    def nvme_names(self) -> Iterator[tuple[str, str]]:
        return iter(self.nvme.items())

    def mounted(self, where: str) -> bool:
        return self.on is not None

    def names(self, where: str) -> list[str]:
        return [*super().names(where), *(self.volumes[self.on].names if self.on else [])]

    def identity(self, device: str) -> str | None:
        return self.volumes[device].serial

    def same_device(self, device: str, where: str) -> bool:
        return self.on == device

    def children(self, device: str) -> list[str]:
        return self.volumes[device].children

    def size(self, device: str) -> int:
        return self.volumes[device].size

    def edges(self, device: str) -> bytes:
        return self.volumes[device].edges

    def count(self, what: tuple[str, ...]) -> None:
        self.commands.append(what)
        if self.fail_at == len(self.commands):
            raise BootError(f"{what[0]}: planted")

    def run(self, *command: str, fine: tuple[int, ...] = (0,)) -> tuple[int, str]:
        self.count(command)
        code, out = self.does(list(command))
        if code not in fine:
            raise BootError(f"{' '.join(command)}: exit code {code}")
        return code, out

    def does(self, command: list[str]) -> tuple[int, str]:
        match command:
            case ["getent", "passwd", user]:
                return (0 if user in self.users else 2), ""
            case ["useradd", *_, user]:
                self.users.add(user)
            case ["id", "-u", user]:
                return (0 if user in self.users else 1), f"{self.number}\n"
            case ["blkid", "-c", *_]:
                found = [name for name, volume in self.volumes.items() if volume.label == "firn-data"]
                return (0, "\n".join(found)) if found else (2, "")
            case ["blkid", "-p", *_, device]:
                volume = self.volumes[device]
                if volume.several:
                    return 8, ""
                told = f"DEVNAME={device}\nLABEL={volume.label}\nTYPE={volume.kind}\n"
                return (0, told) if volume.kind else (2, "")
            case ["mkfs.ext4", *_, device]:
                volume = self.volumes[device]
                if self.cut_in_mkfs:
                    volume.edges = b"half of it"
                    raise BootError("mkfs.ext4: planted")
                volume.kind, volume.label, volume.formatted = "ext4", "firn-data", volume.formatted + 1
            case ["dumpe2fs", "-h", device]:
                blocks = self.volumes[device].used >> 12
                return 0, f"Block count:              {blocks}\nBlock size:               4096\n"
            case ["resize2fs", device]:
                self.volumes[device].used = self.volumes[device].size
            case ["mount", *_, device, _]:
                self.on = device
            case ["umount", _]:
                self.on = None
            case [_, "-m", "venv", "--without-pip", home]:
                Path(home, "bin").mkdir(parents=True)
            case [python, _, "install", *_, "firn-log"]:
                Path(python).with_name("firn").touch()
            case ["systemctl", "is-active", _, unit]:
                return (0 if unit in self.active else 3), ""
            case ["systemctl", "restart", unit]:
                self.active[unit] = self.active.get(unit, 0) + 1
            case ["systemctl", "enable", "--quiet", "--now", timer]:
                self.timers.add(timer)
            case ["runuser", "-u", "firn", "--", _, "random-uuid"]:
                return 0, "MkU3OEVBNTcwNTJENDM2Qg\n"
            case ["systemctl", "enable", _, unit]:
                self.enabled.add(unit)
            case ["systemctl", "daemon-reload"] | ["e2fsck" | "chown", *_]:
                pass
            case ["runuser", "-u", "firn", "--", _, "format", "-c", config, "-t", cluster, *voters]:
                self.formed.append(" ".join(voters))
                node = Path(config).stem.removeprefix("server-")
                meta = self.path(f"var/lib/firn/node-{node}/meta.properties")
                meta.write_text(f"version=1\nnode.id={node}\ncluster.id={cluster}\n")
            case [firn, "--version"] if firn.endswith("/bin/firn"):
                return (0, "firn 0.1.0") if Path(firn).exists() else (127, "")
            case _:
                raise AssertionError(f"a command that the model does not know: {command}")
        return 0, ""


def package(*names: str) -> bytes:
    """A tar with empty files of these names; without any, what a package has."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in names or ("firn_log-0.1.0-cp311-cp311-linux_x86_64.whl", "pip-26.0-py3-none-any.whl"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    return out.getvalue()
