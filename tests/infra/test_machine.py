"""Machines that really boot, from the very document that terraform renders, and what can happen to them.

Each is a Debian tree under systemd-nspawn, with cloud-init and a block device for its data; S3 is moto on the
other end of a bridge. Its kernel is this one's, so a power cut takes processes, not the page cache.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import socket
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from tests.infra.machines import ADDRESS, HOST_ADDRESS, Machine, bridge, need_machines, volume
from tests.infra.tools import CACHE, STANDIN, copied, need, terraform
from tests.support.processes import PYTHON, child, first_line, wait_until
from tests.support.stores import CREDENTIALS, s3_client
from tests.support.tiers import LATEST_TIERED, offset

pytestmark = pytest.mark.timeout(900)
BUCKET = "example-firn-archive"
HOST = "firn-1.firn.internal"
TOPIC = "boots"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"

MOTO = f"""
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("{HOST_ADDRESS}", 0, verbose=False)
server.start()
print("%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


# -- what a machine is made of


def packed(wheels: dict[str, bytes], target: Path) -> str:
    """A package of these wheels; its SHA-256."""
    with tarfile.open(target, "w") as tar:
        for name, data in sorted(wheels.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return hashlib.sha256(target.read_bytes()).hexdigest()


def bumped(wheels: dict[str, bytes], version: str, folder: Path) -> dict[str, bytes]:
    """The same wheels, with Firn under another version."""
    out = dict(wheels)
    name = next(one for one in wheels if one.startswith("firn_log-"))
    old = name.split("-")[1]
    (folder / name).write_bytes(out.pop(name))
    new = name.replace(f"-{old}-", f"-{version}-", 1)
    with zipfile.ZipFile(folder / name) as source, zipfile.ZipFile(folder / new, "w") as target:
        for entry in source.namelist():
            data = source.read(entry)
            if entry.endswith(".dist-info/METADATA"):
                data = data.replace(f"\nVersion: {old}\n".encode(), f"\nVersion: {version}\n".encode())
            if entry.endswith(".dist-info/RECORD"):
                data = data.replace(
                    f"firn_log-{old}.dist-info".encode(), f"firn_log-{version}.dist-info".encode()
                )
            target.writestr(entry.replace(f"firn_log-{old}.dist-info", f"firn_log-{version}.dist-info"), data)
    out[new] = (folder / new).read_bytes()
    return out


def rendered(tree: Path, package: dict[str, str]) -> bytes:
    """User data of machine 1, as a launch template has it: from a plan of the unchanged module."""
    folder = copied(tree) / "modules" / "nodes"
    given = {
        "name": "firn",
        "machines": 1,
        "zones": ["eu-central-1a"],
        "vpc_id": "vpc-1",
        "subnets": {"eu-central-1a": "subnet-1"},
        "client_cidrs": ["10.20.0.0/16"],
        "connect_security_group_id": "sg-1",
        "image_id": "ami-0123456789abcdef0",
        "instance_type": "m7i.large",
        "instance_profile": "firn-node",
        "volume": {"size": 8},
        "package": package,
        "region": "eu-central-1",
        "remote_url": f"s3://{BUCKET}/firn",
        "stop_timeout_s": 60,
        "properties": {"remote.log.manager.task.interval.ms": "200"},
    }
    (folder / "given.auto.tfvars.json").write_text(json.dumps(given))
    (folder / "provider.tf").write_text('provider "aws" {\n  region = "eu-central-1"\n}\n')
    plan = terraform(folder, STANDIN).planned()
    document: str = plan["planned_values"]["outputs"]["user_data"]["value"]["1"]
    return gzip.compress(document.encode())


@dataclass
class World:
    """Everything around machines: S3, a network, a volume, packages."""

    folder: Path
    endpoint: str
    device: str
    wheels: dict[str, bytes]
    user_data: bytes
    machines: list[Machine] = field(default_factory=list)

    def machine(self, *, serves: bool = True) -> Machine:
        """A new machine, with an empty root disk."""
        environment = {"AWS_ENDPOINT_URL": self.endpoint, **CREDENTIALS}
        made = Machine(
            self.folder / f"machine-{len(self.machines) + 1}", self.user_data, self.device, environment
        )
        self.machines.append(made)
        made.start()
        if serves:
            made.wait_for()
        return made

    def upload(self, name: str, wheels: dict[str, bytes]) -> dict[str, str]:
        sha256 = packed(wheels, self.folder / name)
        s3_client(self.endpoint).upload_file(str(self.folder / name), BUCKET, f"packages/{name}")
        return {"url": f"s3://{BUCKET}/packages/{name}", "sha256": sha256}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[World]:
    need_machines()
    found = (
        [Path(os.environ["FIRN_PACKAGE"])]
        if "FIRN_PACKAGE" in os.environ
        else sorted((CACHE / "package").glob("*.tar"))
    )
    need(found, "there is no package")
    # The names that the private zone would have.
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *rest, **more: resolve(ADDRESS if host == HOST else host, *rest, **more),
    )
    (tmp_path / "wheels").mkdir()
    wheels = unpacked(found[-1])
    with (
        bridge(),
        volume(tmp_path, 256) as device,
        child([str(PYTHON), "-c", MOTO], tmp_path / "moto.log", CREDENTIALS) as moto,
    ):
        while ":" not in (line := first_line(moto, 30)) or line.startswith("Starting"):
            assert line, (tmp_path / "moto.log").read_text()
        endpoint = f"http://{line.strip()}"
        s3_client(endpoint).create_bucket(Bucket=BUCKET)
        made = World(tmp_path, endpoint, device, wheels, b"")
        made.user_data = rendered(tmp_path / "terraform", made.upload("firn-1.tar", wheels))
        try:
            yield made
        finally:
            if getattr(request.node, "failed_call", False) and made.machines:
                print(made.machines[-1].log())
            for machine in made.machines:
                machine.close()


def unpacked(package: Path) -> dict[str, bytes]:
    with tarfile.open(package) as tar:
        return {one.name: tar.extractfile(one).read() for one in tar if one.name.endswith(".whl")}


# -- clients


def create(topic: str, **configs: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=f"{HOST}:9092")
    admin.create_topics([NewTopic(topic, 1, 1, topic_configs=configs)])
    admin.close()


def write(low: int, high: int, topic: str = TOPIC) -> None:
    """Records that are acknowledged, each."""
    producer = KafkaProducer(bootstrap_servers=f"{HOST}:9092", acks="all", linger_ms=5)
    waiting = [producer.send(topic, b"%d" % n) for n in range(low, high)]
    for one in waiting:
        one.get(60)
    producer.close()


def values(topic: str = TOPIC) -> list[int]:
    consumer = KafkaConsumer(
        bootstrap_servers=f"{HOST}:9092",
        auto_offset_reset="earliest",
        group_id=None,
        enable_auto_commit=False,
    )
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    end = consumer.end_offsets([partition])[partition]
    consumer.seek_to_beginning(partition)
    found: list[int] = []
    while consumer.position(partition) < end:
        for records in consumer.poll(1000).values():
            found += [int(record.value) for record in records]
    consumer.close()
    return found


# -- what happens to machines


def test_a_machine_boots_from_what_terraform_renders_and_survives_what_happens_to_it(world: World) -> None:
    machine = world.machine()
    assert re.search(r"/dev/sdf /var/lib/firn ext4 \S*noexec", machine.run("cat", "/proc/mounts"))
    assert machine.run("blkid", "-o", "value", "-s", "LABEL", "/dev/sdf").strip() == "firn-data"
    hardened(machine)
    create(TOPIC, **{"flush.messages": "1"})
    write(0, 500)
    assert values() == list(range(500))

    # A second install changes nothing: the node goes on as it was.
    node = machine.run("systemctl", "show", "-P", "MainPID", "firn@1.service")
    again(machine)
    assert machine.run("systemctl", "show", "-P", "MainPID", "firn@1.service") == node
    assert values() == list(range(500))

    # The node is killed: systemd starts it again.
    machine.run("kill", "-9", node.strip())
    wait_until(
        "another process",
        lambda: machine.run("systemctl", "show", "-P", "MainPID", "firn@1.service") not in (node, "0\n"),
    )
    machine.wait_for()
    assert values() == list(range(500))

    # Power cut: nothing that was acknowledged is lost.
    write(500, 1000)
    machine.cut_power()
    machine.start()
    machine.wait_for()
    assert values() == list(range(1000))

    written = upgraded(world, machine)

    # The machine is replaced, and its volume goes with the new one.
    machine.stop()
    assert clean(machine), machine.log()
    replaced = world.machine()
    assert values() == list(range(written))
    assert "formatting" not in replaced.run("journalctl", "--no-pager", "-u", "firn-boot.service")
    write(written, written + 100)
    assert values() == list(range(written + 100))
    replaced.stop()


def hardened(machine: Machine) -> None:
    """What the node may do is what its unit lets it."""
    shown = dict(
        line.split("=", 1)
        for line in machine.run("systemctl", "show", "firn@1.service").splitlines()
        if "=" in line
    )
    assert shown["User"] == "firn"
    assert shown["NoNewPrivileges"] == "yes"
    assert shown["ProtectSystem"] == "strict"
    assert shown["Restart"] == "always"
    assert shown["TimeoutStopUSec"] == "1min"
    status = machine.run("cat", f"/proc/{shown['MainPID']}/status")
    assert re.search(r"CapEff:\s+0+\n", status)
    assert re.search(r"Seccomp:\s+2\n", status)
    exposure = (
        machine.run("systemd-analyze", "security", "--no-pager", "firn@1.service").strip().splitlines()[-1]
    )
    print(f"\nsystemd-analyze security: {exposure.strip('→ ')}")
    machine.run("systemd-analyze", "verify", "firn@1.service", "firn-data.service", "firn-boot.service")
    machine.run("cloud-init", "schema", "--system")
    assert "ready: node 1" in machine.run("journalctl", "--no-pager", "--namespace=firn")


def clean(machine: Machine) -> bool:
    """Whether the node stopped as it should: by itself, within its limit."""
    said = subprocess.run(
        ["chroot", str(machine.root), "journalctl", "--no-pager", "-u", "firn@1.service", "-n", "20"],
        capture_output=True,
        text=True,
    ).stdout
    return "Deactivated successfully" in said and "SIGKILL" not in said.rsplit("Stopping", 1)[-1]


def again(machine: Machine, fine: tuple[int, ...] = (0,)) -> str:
    return machine.run(
        "sh",
        "-c",
        "set -a; . /etc/firn/environment; cd /usr/local/lib/firn; exec python3 -m firn_boot install 2>&1",
        fine=fine,
    )


def installed(machine: Machine) -> str:
    """The version that `current` is."""
    ask = "from importlib.metadata import version; print(version('firn-log'))"
    return machine.run("/opt/firn/current/bin/python", "-c", ask).strip()


def upgraded(world: World, machine: Machine) -> int:
    """A rolling upgrade, as docs/deploy.md has it, while a client writes; returns how many records there are.

    First with a package that is not what was promised.
    """
    assert installed(machine) != "0.1.99"
    new = world.upload("firn-2.tar", bumped(world.wheels, "0.1.99", world.folder / "wheels"))
    document = json.loads(machine.run("cat", "/etc/firn/machine.json"))
    path = machine.root / "etc/firn/machine.json"
    path.write_text(
        json.dumps({**document, "package": {**new, "sha256": "0" * 64, "region": "eu-central-1"}})
    )
    assert "package: " in again(machine, fine=(1,))
    assert values() == list(range(1000))

    failed: list[Any] = []
    written = 1000
    done = threading.Event()

    def writing() -> None:
        nonlocal written
        producer = KafkaProducer(bootstrap_servers=f"{HOST}:9092", acks="all", linger_ms=5)
        try:
            while not done.is_set():
                waiting = [producer.send(TOPIC, b"%d" % n) for n in range(written, written + 20)]
                for one in waiting:
                    one.get(60)
                written += 20
        except Exception as error:  # of the client's own kinds
            failed.append(error)
        producer.close()

    path.write_text(json.dumps({**document, "package": {**new, "region": "eu-central-1"}}))
    thread = threading.Thread(target=writing)
    thread.start()
    wait_until("records before the upgrade", lambda: written > 1100 or failed)
    machine.run("systemctl", "restart", "firn-boot.service")
    after = written
    wait_until("records after the upgrade", lambda: written > after + 100 or failed)
    done.set()
    thread.join()
    assert not failed
    assert installed(machine) == "0.1.99"
    assert values() == list(range(written))
    return written


@pytest.mark.thorough
def test_a_machine_that_lost_its_volume_takes_its_archive_over(world: World) -> None:
    """A lost disk, as operations.md has it: what had been archived is there again."""
    machine = world.machine()
    create(TOPIC, **{"remote.storage.enable": "true", "segment.bytes": "1048576", "segment.ms": "500"})
    write(0, 300)
    archive(300)
    cluster = (
        machine.run("sh", "-c", "grep ^cluster.id= /var/lib/firn/node-1/meta.properties")
        .strip()
        .split("=")[1]
    )
    machine.cut_power()

    with volume(world.folder / "wheels", 256) as device:
        world.device = device
        recover = {"firn.cluster.id": cluster, "firn.remote.recover": "true"}
        world.user_data = changed(world.user_data, lambda document: document["properties"].update(recover))
        replaced = world.machine()
        found = values()
        assert len(found) >= 300
        assert found == list(range(len(found)))
        replaced.stop()
        replaced.close()
        world.machines.remove(replaced)


def archive(written: int) -> None:
    """Writes one record after another, so that segments are sealed, until what was written is archived."""
    last = written

    def enough() -> bool:
        nonlocal last
        write(last, last + 1)
        last += 1
        # Later segments are there, too, so the HEAD that names these was written.
        return offset(f"{ADDRESS}:9092", TOPIC, 0, LATEST_TIERED) >= written + 5

    wait_until("segments in the archive", enough, 60, every=0.3)


@pytest.mark.thorough
def test_a_machine_of_two_roles_forms_its_cluster_once(world: World) -> None:
    """A controller and a broker, each a node of its own; one goes on when the other is killed. Without its
    volume the controller does not begin anew."""

    def several(document: dict[str, Any]) -> None:
        document["nodes"] = [
            {"id": 901, "port": 9093, "http_port": 9465, "role": "controller"},
            {"id": 1, "port": 9092, "http_port": 9464, "role": "broker"},
        ]
        document["cluster"] = {
            "id": CLUSTER_ID,
            "controllers": [f"901@{HOST}:9093:{'a' * 21}A"],
            "formed": f"s3://{BUCKET}/formed",
        }
        document["properties"] = {}

    world.user_data = changed(world.user_data, several)
    machine = world.machine()
    formed = s3_client(world.endpoint).list_objects_v2(Bucket=BUCKET, Prefix="formed/")["Contents"]
    assert [one["Key"] for one in formed] == [
        f"formed/{CLUSTER_ID}/{name}" for name in ("901", "controllers")
    ]
    meta = machine.run("cat", "/var/lib/firn/node-901/meta.properties")
    assert f"cluster.id={CLUSTER_ID}" in meta
    assert f"directory.id={'a' * 21}A" in meta
    ids = [process(machine, node) for node in (1, 901)]
    create(TOPIC)
    write(0, 100)
    machine.run("kill", "-9", ids[1])
    wait_until("another process", lambda: process(machine, 901) not in ("0", ids[1]))
    machine.wait_for(9093)
    assert process(machine, 1) == ids[0]
    write(100, 200)
    assert values() == list(range(200))
    assert machine.run("stat", "-c", "%U %a", "/var/lib/firn/node-1", "/var/lib/firn/node-901").split() == [
        "firn", "750", "firn", "750",
    ]  # fmt: skip
    machine.cut_power()
    machine.start()
    machine.wait_for()
    assert values() == list(range(200))
    machine.cut_power()

    with volume(world.folder / "wheels", 256) as device:
        world.device = device
        replaced = world.machine(serves=False)
        told = ["journalctl", "--no-pager", "-u", "firn-boot.service"]
        wait_until("a refusal", lambda: "the cluster was formed before" in replaced.run(*told), 240, 1)
        assert process(replaced, 901) == "0"
        assert not replaced.serves(9093)
        replaced.stop()
        replaced.close()
        world.machines.remove(replaced)


def process(machine: Machine, node: int) -> str:
    return machine.run("systemctl", "show", "-P", "MainPID", f"firn@{node}.service").strip()


def changed(user_data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """What terraform renders, with another document."""
    first, _, text = gzip.decompress(user_data).decode().partition("\n")
    whole = json.loads(text)
    for file in whole["write_files"]:
        if file["path"] == "/etc/firn/machine.json":
            document = json.loads(file["content"])
            change(document)
            file["content"] = json.dumps(document)
    return gzip.compress(f"{first}\n{json.dumps(whole)}\n".encode())
