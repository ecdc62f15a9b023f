"""The data volume: found, formatted only if it is empty, mounted."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .document import Document
from .errors import BootError
from .machine import Machine

LABEL = "firn-data"
GROWTH_BYTES = 1 << 20
DEVICE_WAIT_S = 600
"""A cloud attaches the volume after the machine has started."""


def find_device(machine: Machine, wanted: str) -> str | None:
    """The device that was asked for, under whatever name it has here, or the one that is a node's already."""
    name = wanted.removeprefix("/dev/")
    for device in (wanted, f"/dev/xvd{name[2:]}" if re.fullmatch("sd[a-z]", name) else wanted):
        if machine.is_block(device):
            return device
    for device, attached_as in machine.nvme_names():
        if attached_as in (name, name.replace("sd", "xvd", 1)):
            return device
    code, found = machine.run("blkid", "-c", "/dev/null", "-o", "device", "-t", f"LABEL={LABEL}", fine=(0, 2))
    labelled = found.split() if code == 0 else []
    if len(labelled) > 1:
        raise BootError(
            f"{wanted} is not there, and several volumes are labelled {LABEL}: {', '.join(labelled)}"
        )
    return labelled[0] if labelled else None


def step_mount(machine: Machine, document: Document) -> None:
    where = str(machine.path("var/lib/firn"))
    Path(where).mkdir(parents=True, exist_ok=True)
    if document.device is None:
        return
    until = machine.now() + DEVICE_WAIT_S
    while (device := find_device(machine, document.device)) is None:
        if machine.now() >= until:
            raise BootError(f"{document.device}: no such volume after {DEVICE_WAIT_S} s")
        machine.sleep(2)
    with machine.alone():
        if not machine.mounted(where):
            mount(machine, device, where)
        elif not machine.same_device(device, where):
            raise BootError(f"{where}: something else than {device} is mounted there")


def mount(machine: Machine, device: str, where: str) -> None:
    if os.listdir(where):
        raise BootError(f"{where}: not empty, and {device} would hide what is in it")
    kind = kind_of(machine, device)
    if kind is None:
        machine.say(f"{device} is empty: formatting it")
        machine.run("mkfs.ext4", "-q", "-m", "0", "-L", LABEL, device)
    elif kind == "ext4":
        machine.run("e2fsck", "-p", device, fine=(0, 1))
        grow(machine, device)
    machine.run("mount", "-o", "noatime,nodev,nosuid,noexec", device, where)
    machine.say(f"{device} is mounted at {where}")


def grow(machine: Machine, device: str) -> None:
    """Gives the file system the whole of a volume that was made larger, while it is not mounted."""
    _, told = machine.run("dumpe2fs", "-h", device)
    fields = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    try:
        used = int(fields["Block count"]) * int(fields["Block size"])
    except (KeyError, ValueError):
        raise BootError(f"{device}: dumpe2fs does not tell the file system's size") from None
    if machine.size(device) - used >= GROWTH_BYTES:
        machine.run("e2fsck", "-f", "-p", device, fine=(0, 1))
        machine.run("resize2fs", device)


def kind_of(machine: Machine, device: str) -> str | None:
    """The file system of a device; None where it is surely empty. Anything else is refused."""
    if children := machine.children(device):
        raise BootError(f"{device}: in use, or partitioned ({', '.join(children)})")
    code, told = machine.run("blkid", "-p", "-o", "export", device, fine=(0, 2, 8))
    if code == 8:
        raise BootError(f"{device}: signs of several file systems; if nothing on it is needed: wipefs -a")
    if code == 0:
        tags = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
        kind = tags.get("TYPE") or f"a partition table ({tags.get('PTTYPE', 'unknown')})"
        if kind not in ("ext4", "xfs"):
            raise BootError(
                f"{device}: holds {kind}, neither ext4 nor xfs; if nothing on it is needed: wipefs -a"
            )
        return kind
    if any(machine.edges(device)):
        raise BootError(
            f"{device}: no file system, but not empty; "
            "if nothing on it is needed: zeros in its first and last MiB"
        )
    return None
