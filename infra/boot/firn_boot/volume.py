"""The data volume: found, formatted only if it is empty, mounted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from .document import Document
from .errors import BootError
from .machine import Machine

LABEL = "firn-data"
FORMATTING = "var/lib/firn-boot/formatting"
"""Names the empty device that is being formatted, until that is done."""
GROWTH_BYTES = 1 << 20
UNTOUCHED = {"ext4": "noload", "xfs": "norecovery"}
"""The file systems that are taken, and the option without which even mounting for reading writes to one."""
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
    begun = machine.now()
    while (device := find_device(machine, document.device)) is None:
        if machine.now() == begun:
            machine.say(f"{document.device} is not there yet: waiting for it")
        if machine.now() >= begun + DEVICE_WAIT_S:
            raise BootError(f"{document.device}: no such volume after {DEVICE_WAIT_S} s")
        machine.sleep(2)
    with machine.alone("mount"):
        if not machine.mounted(where):
            mount(machine, device, where)
        elif not machine.same_device(device, where):
            raise BootError(f"{where}: something else than {device} is mounted there")


def mount(machine: Machine, device: str, where: str) -> None:
    if machine.names(where):
        raise BootError(f"{where}: not empty, and {device} would hide what is in it")
    found = found_on(machine, device)
    if found is None:
        format(machine, device)
    else:
        machine.path(FORMATTING).unlink(missing_ok=True)
        if found.label != LABEL:
            refuse_somebodys(machine, device, found.kind, where)
        if found.kind == "ext4":
            machine.run("e2fsck", "-p", device, fine=(0, 1))
            grow(machine, device)
    machine.run("mount", "-o", "noatime,nodev,nosuid,noexec", device, where)
    machine.say(f"{device} is mounted at {where}")


def format(machine: Machine, device: str) -> None:
    machine.say(f"{device} is empty: formatting it")
    # A power cut here would leave a device that is neither empty nor a file system.
    if identity := machine.identity(device):
        machine.write(FORMATTING, identity)
        machine.sync()
    machine.run("mkfs.ext4", "-q", "-m", "0", "-L", LABEL, device)
    machine.sync()
    machine.path(FORMATTING).unlink(missing_ok=True)


def refuse_somebodys(machine: Machine, device: str, kind: str, where: str) -> None:
    """A file system that this did not make is looked at first, and then checked, grown and written to."""
    machine.run("mount", "-o", f"ro,{UNTOUCHED[kind]},nodev,nosuid,noexec", device, where)
    try:
        names = machine.names(where)
    finally:
        machine.run("umount", where)
    others = [name for name in names if name != "lost+found" and not re.fullmatch(r"node-\d+", name)]
    if others:
        raise BootError(
            f"{device}: an {kind} with files that are no node's ({', '.join(others[:5])}); "
            f"if it is to be used beside them: label it {LABEL}"
        )


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


class Found(NamedTuple):
    kind: str
    label: str


def found_on(machine: Machine, device: str) -> Found | None:
    """The file system of a device; None where it is surely empty. Anything else is refused."""
    if children := machine.children(device):
        raise BootError(f"{device}: in use, or partitioned ({', '.join(children)})")
    code, told = machine.run("blkid", "-p", "-o", "export", device, fine=(0, 2, 8))
    if code == 8:
        raise BootError(f"{device}: signs of several file systems; if nothing on it is needed: wipefs -a")
    if code == 0:
        tags = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
        kind = tags.get("TYPE") or f"a partition table ({tags.get('PTTYPE', 'unknown')})"
        if kind not in UNTOUCHED:
            raise BootError(
                f"{device}: holds {kind}, neither ext4 nor xfs; if nothing on it is needed: wipefs -a"
            )
        return Found(kind, tags.get("LABEL", ""))
    identity = machine.identity(device)
    if any(machine.edges(device)) and not (identity and machine.has(FORMATTING, identity)):
        raise BootError(
            f"{device}: no file system, but not empty; "
            "if nothing on it is needed: zeros in its first and last MiB"
        )
    return None
