"""The steps, in their order."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from .document import ID_STEP, PORT_STEP, Document, Package
from .errors import BootError
from .fetching import claimed, fetch, secret
from .forming import Claim, step_form
from .machine import Machine
from .package import step_package
from .secret_files import Get, step_secrets
from .volume import step_mount
from .written import properties_of, units_of

STAMPS = "var/lib/firn-boot"
"""What each node was started with."""
READY_WAIT_S = 900
"""A node that was killed looks through its logs before it serves."""


def step_user(machine: Machine) -> None:
    code, _ = machine.run("getent", "passwd", "firn", fine=(0, 2))
    if code == 2:
        machine.run(
            "useradd",
            "--system",
            "--user-group",
            "--no-create-home",
            "--home-dir",
            "/var/lib/firn",
            "--shell",
            "/usr/sbin/nologin",
            "firn",
        )


def step_directories(machine: Machine, document: Document) -> None:
    found = [name for name in machine.names(str(machine.path("var/lib/firn"))) if name.startswith("node-")]
    wanted = [f"node-{node.id}" for node in document.nodes]
    # A node that began anew beside another's data would claim an archive that it knows nothing of.
    if found and not set(found) & set(wanted):
        raise BootError(f"/var/lib/firn has {', '.join(found)}, not {', '.join(wanted)}: another machine's")
    for node in document.nodes:
        for other in (node.id + ID_STEP * p for p in range(1, node.processes)):
            if f"node-{other}" in found:
                raise BootError(
                    f"/var/lib/firn/node-{other} is of a service of its own: systemctl disable --now "
                    f"firn@{other}, and move it to /var/lib/firn/node-{node.id}/processes/{other}"
                )
        for inner in machine.path("var/lib/firn").glob(f"node-*/processes/{node.id}"):
            raise BootError(
                f"{inner} is of a service of several nodes: move it to /var/lib/firn/node-{node.id}"
            )
    _, number = machine.run("id", "-u", "firn")
    for node in document.nodes:
        folder = machine.path(f"var/lib/firn/node-{node.id}")
        folder.mkdir(mode=0o750, exist_ok=True)
        # New, or on a volume that comes from another machine, which knew the user by another number.
        if str(folder.stat().st_uid) != number.strip():
            machine.run("chown", "-R", "firn:firn", str(folder))


def step_start(machine: Machine, document: Document, stamps: dict[int, str]) -> None:
    """Nodes of today's files are left alone; others are restarted, each when the one before serves."""
    machine.run("systemctl", "daemon-reload")
    if document.security is not None:
        machine.run("systemctl", "enable", "--quiet", "--now", "firn-secrets.timer")
    for node in document.nodes:
        unit, stamp = f"firn@{node.id}.service", f"{STAMPS}/node-{node.id}"
        machine.run("systemctl", "enable", "--quiet", unit)
        active, _ = machine.run("systemctl", "is-active", "--quiet", unit, fine=(0, 3, 4))
        if active != 0 or not machine.has(stamp, stamps[node.id]):
            machine.say(f"starting node {node.id}")
            machine.run("systemctl", "restart", unit)
            # Said now, and not once it serves: a node that takes longer than is waited for here must not be
            # started over and over again.
            machine.write(stamp, stamps[node.id])
        until = machine.now() + READY_WAIT_S
        while not all(machine.answers(node.port + PORT_STEP * p) for p in range(node.processes)):
            if machine.now() >= until:
                raise BootError(
                    f"node {node.id} does not serve after {READY_WAIT_S} s: "
                    f"journalctl --namespace=firn -u {unit}"
                )
            machine.sleep(0.5)
        machine.say(f"node {node.id} serves on {document.host}:{node.port}")


def keep_edited(machine: Machine, name: str, node: int) -> None:
    """Keep a copy of a file that was edited by hand, before it is overwritten."""
    path = machine.path(name)
    with contextlib.suppress(FileNotFoundError):
        text = path.read_bytes()
        try:
            ours = machine.path(f"{STAMPS}/node-{node}").read_bytes()
        except FileNotFoundError:
            ours = b""
        if not ours.endswith(b"\n" + text):
            path.replace(path.with_name(f"{path.name}.edited"))
            machine.say(
                f"/{name} was changed by hand: kept as {path.name}.edited; what stays is in machine.json"
            )


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Prefix errors of the block with the step's name."""
    try:
        yield
    except BootError as error:
        raise BootError(f"{name}: {error}") from None
    except OSError as error:
        raise BootError(f"{name}: {error}") from error


def everything(
    machine: Machine,
    document: Document,
    config: str,
    get: Callable[[Package], Iterator[bytes]] = fetch,
    claim: Claim = claimed,
    get_secret: Get = secret,
) -> None:
    with machine.alone("install"):
        every_step(machine, document, config, get, claim, get_secret)


def every_step(
    machine: Machine,
    document: Document,
    config: str,
    get: Callable[[Package], Iterator[bytes]],
    claim: Claim,
    get_secret: Get,
) -> None:
    with step("user"):
        step_user(machine)
    with step("data volume"):
        step_mount(machine, document)
        step_directories(machine, document)
    with step("package"):
        step_package(machine, document, get)
    with step("secrets"):
        step_secrets(machine, document, get_secret)
    stamps = {}
    with step("server.properties"):
        for node in document.nodes:
            text = properties_of(document, node, f"/var/lib/firn/node-{node.id}")
            stamps[node.id] = f"{document.package.sha256}\n{text}"
            name = f"etc/firn/server-{node.id}.properties"
            if not machine.has(name, text):
                keep_edited(machine, name, node.id)
            machine.write(name, text)
    with step("cluster"):
        step_form(machine, document, claim)
    with step("units"):
        units = units_of(document, config)
        for module in Path(__file__).parent.glob("*.py"):
            units[f"usr/local/lib/firn/firn_boot/{module.name}"] = module.read_text("utf-8")
        for name, text in units.items():
            machine.write(name, text)
        digest = hashlib.sha256(units["etc/systemd/system/firn@.service"].encode()).hexdigest()
    with step("start"):
        step_start(machine, document, {node: f"{digest}\n{stamp}" for node, stamp in stamps.items()})
