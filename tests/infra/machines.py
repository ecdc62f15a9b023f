"""Machines that really boot: a Debian tree with systemd and cloud-init, a bridge, a loop device for data.

A machine's root disk is a layer of its own over the tree: it stays over restarts and goes with the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.tools import CACHE, need
from tests.support.processes import wait_until

TREE = CACHE / "debian-bookworm"
BRIDGE = "firn-test"
HOST_ADDRESS = "10.213.77.1"
ADDRESS = "10.213.77.2"

# What a cloud does around a machine, done by hand: an address, and where cloud-init finds its document.
NETWORK_UNIT = f"""\
[Unit]
DefaultDependencies=no
Before=network.target network-online.target cloud-init.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'ip link set lo up; ip link set host0 up; ip addr add {ADDRESS}/24 dev host0 || true'
[Install]
WantedBy=sysinit.target
"""


def run(*command: str, fine: tuple[int, ...] = (0,), seconds: float = 120) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds)
    assert done.returncode in fine, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def need_devices() -> None:
    """Who is not root, and a container without devices, makes no volumes: that is no failure anywhere."""
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("wants root, and a system with loop devices")


def need_machines() -> None:
    need_devices()
    need(shutil.which("systemd-nspawn"), "systemd-nspawn is not installed")
    need((TREE / ".complete").exists(), "there is no Debian tree")


@contextlib.contextmanager
def bridge() -> Iterator[None]:
    run("ip", "link", "del", BRIDGE, fine=(0, 1))
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    try:
        run("ip", "addr", "add", f"{HOST_ADDRESS}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        yield
    finally:
        run("ip", "link", "del", BRIDGE)


@contextlib.contextmanager
def volume(folder: Path, mib: int) -> Iterator[str]:
    """A block device of zeros."""
    image = folder / "volume.img"
    with image.open("wb") as file:
        file.truncate(mib << 20)
    device = run("losetup", "--find", "--show", str(image)).strip()
    try:
        yield device
    finally:
        run("losetup", "--detach", device)


class Machine:
    """One machine: `start()`, `cut_power()`, `stop()` as a cloud stops one, `run()` a command in it."""

    def __init__(self, folder: Path, user_data: bytes, device: str, environment: dict[str, str]) -> None:
        self.folder, self.device = folder, device
        self.process: subprocess.Popen[bytes] | None = None
        self.root = folder / "root"
        upper = folder / "upper"
        for one in (self.root, upper, folder / "work"):
            one.mkdir(parents=True)
        seed = upper / "var/lib/cloud/seed/nocloud"
        seed.mkdir(parents=True)
        (seed / "user-data").write_bytes(user_data)
        (seed / "meta-data").write_text(f"instance-id: i-{folder.name}\n")
        self.put(
            upper,
            "etc/cloud/cloud.cfg.d/99-test.cfg",
            "datasource_list: [NoCloud]\nnetwork: {config: disabled}\nlocale: false\n",
        )
        self.put(upper, "etc/systemd/system/test-network.service", NETWORK_UNIT)
        wants = upper / "etc/systemd/system/sysinit.target.wants"
        wants.mkdir(parents=True)
        (wants / "test-network.service").symlink_to("/etc/systemd/system/test-network.service")
        # What the instance metadata service is for in a cloud: who the machine is to S3, and where that is.
        text = "".join(f"{name}={value}\n" for name, value in environment.items())
        self.put(upper, "etc/firn/environment", text)
        run(
            "mount",
            "-t",
            "overlay",
            "overlay",
            str(self.root),
            "-o",
            f"lowerdir={TREE},upperdir={upper},workdir={folder / 'work'}",
        )

    def put(self, root: Path, name: str, text: str) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def start(self) -> None:
        assert self.process is None
        with (self.folder / "console.log").open("ab") as console:
            self.process = subprocess.Popen(
                [
                    "systemd-nspawn",
                    "--quiet",
                    "-D",
                    str(self.root),
                    "-b",
                    f"--machine=firn-{self.folder.name}",
                    "--register=no",
                    "--keep-unit",
                    "--link-journal=no",
                    f"--network-bridge={BRIDGE}",
                    "--resolv-conf=off",
                    "--timezone=off",
                    f"--bind={self.device}:/dev/sdf",
                    "--console=pipe",
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        wait_until("process 1 of the machine", lambda: self.init() is not None)

    def init(self) -> int | None:
        """Our number of the machine's process 1."""
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in path.read_text().split():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                    return int(pid)
        return None

    def run(self, *command: str, fine: tuple[int, ...] = (0,), seconds: float = 300) -> str:
        init = self.init()
        assert init is not None
        return run("nsenter", f"--target={init}", "--all", "--", *command, fine=fine, seconds=seconds)

    def serves(self, port: int = 9092) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((ADDRESS, port), 1):
            return True
        return False

    def wait_for(self, port: int = 9092, seconds: float = 300) -> None:
        def there() -> bool:
            self.init()  # fails where the machine has gone
            return self.serves(port)

        try:
            wait_until(f"a node on port {port}", there, seconds, every=0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def cut_power(self) -> None:
        """Everything in it is gone at once; nothing is asked to stop."""
        init = self.init()
        assert self.process is not None
        assert init is not None
        os.kill(init, signal.SIGKILL)
        self.process.wait(30)
        self.process = None

    def stop(self) -> None:
        """As when a cloud stops an instance: systemd is told to power off."""
        init = self.init()
        assert self.process is not None
        assert init is not None
        os.kill(init, signal.SIGRTMIN + 4)
        self.process.wait(240)
        self.process = None

    def log(self) -> str:
        """What the machine said, and what its first start and its nodes did."""
        text = (self.folder / "console.log").read_text(errors="replace")[-3000:]
        for command in (
            ["journalctl", "--no-pager", "-n", "40", "-u", "firn-boot.service", "-u", "firn-data.service"],
            ["journalctl", "--no-pager", "-n", "40", "-u", "firn@1.service"],
            ["journalctl", "--no-pager", "-n", "40", "--namespace=firn"],
            ["tail", "-n", "20", "/var/log/cloud-init.log"],
        ):
            with contextlib.suppress(Exception):
                done = subprocess.run(
                    ["chroot", str(self.root), *command], capture_output=True, text=True, timeout=30
                )
                text += f"\n--- {' '.join(command)}\n{done.stdout}{done.stderr}"
        return text

    def close(self) -> None:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            if self.process is not None:
                self.cut_power()
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None
        run("umount", str(self.root))
