"""The cluster that terraform renders: formed by infra/boot, rolled by infra/roll, with real nodes right here.

Each machine is a folder; its document is the one of the plan, with other addresses. Mounting, users and units
are left to test_machine.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from infra.boot.firn_boot.document import Document, parse
from infra.boot.firn_boot.errors import BootError
from infra.boot.firn_boot.forming import step_form
from infra.boot.firn_boot.machine import Machine as BootMachine
from infra.boot.firn_boot.secret_files import HOME as SECRETS
from infra.boot.firn_boot.secret_files import step_secrets
from infra.boot.firn_boot.written import properties_of
from infra.roll.firn_roll import rolling
from infra.roll.firn_roll.errors import RollError
from infra.roll.firn_roll.hands import PYTHON as PYTHON_THERE
from infra.roll.firn_roll.hands import Hands, Machine
from infra.roll.firn_roll.rolling import AS_FIRN, Options, roll
from service.base.properties import parse_properties
from service.cli.dev_nodes import HOST, DevNode, agree_on_ports
from tests.infra.tools import STANDIN, copied, terraform
from tests.support.clients import Admin
from tests.support.processes import FIRN, PYTHON, wait_until
from tests.support.quorums import Member, Program
from tests.support.replicas import states

pytestmark = pytest.mark.timeout(600)
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
CONTROLLERS, BROKERS = ("c1", "c2", "c3"), ("1", "2", "3")
TOPIC = "orders"
CHECK = """
import sys
sys.path.insert(0, sys.argv[1] + "/usr/local/lib/firn")
from firn_boot.__main__ import main
sys.exit(main(["--config", sys.argv[1] + "/etc/firn/machine.json", "check"]))
"""


def rendered(folder: Path, secrets: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Machine to document, of a plan of the unchanged module. The program that comes along takes each."""
    module = copied(folder) / "modules" / "nodes"
    zones = [f"eu-central-1{letter}" for letter in "abc"]
    given = {
        "name": "firn",
        "machines": 3,
        "controllers": 3,
        "cluster_id": CLUSTER_ID,
        "formed_url": "s3://example-firn-archive/formed",
        "zones": zones,
        "vpc_id": "vpc-1",
        "subnets": {zone: f"subnet-{zone}" for zone in zones},
        "client_cidrs": ["10.20.0.0/16"],
        "connect_security_group_id": "sg-1",
        "image_id": "ami-0123456789abcdef0",
        "instance_type": "m7i.large",
        "instance_profile": "firn-node",
        "volume": {"size": 8},
        "package": {"url": "s3://example-firn-archive/packages/firn.tar", "sha256": "0" * 64},
        "region": "eu-central-1",
        "remote_url": "s3://example-firn-archive/firn",
        "secrets": secrets,
    }
    (module / "given.auto.tfvars.json").write_text(json.dumps(given))
    (module / "provider.tf").write_text('provider "aws" {\n  region = "eu-central-1"\n}\n')
    told = terraform(module, STANDIN).planned()["planned_values"]["outputs"]["user_data"]["value"]
    found = {}
    for name, text in told.items():
        files = {one["path"]: one["content"] for one in json.loads(text.partition("\n")[2])["write_files"]}
        machine = folder / f"machine-{name}"
        for path, content in files.items():
            (machine / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            (machine / path.lstrip("/")).write_text(content)
        check = [sys.executable, "-I", "-c", CHECK, str(machine)]
        done = subprocess.run(check, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        found[name] = json.loads(files["/etc/firn/machine.json"])
    return found


def at_home(documents: Mapping[str, dict[str, Any]], store: Path) -> dict[str, Document]:
    """The same documents with this machine's address, ports that are free here, and a folder as a bucket."""
    ports, https = agree_on_ports(0, 2 * len(documents), len(documents))
    found, places = {}, {}
    for (name, document), port, internal, http in zip(
        documents.items(), ports[::2], ports[1::2], https, strict=True
    ):
        (node,) = document["nodes"]
        places[f"{document['host']}:{node['port']}"] = f"{HOST}:{port}"
        node |= {"port": port, "http_port": http}
        if "internal_port" in node:
            node["internal_port"] = internal
        document["host"] = HOST
        del document["properties"]["firn.remote.s3.region"]
        document["properties"] |= {"firn.remote.url": f"file://{store}", "broker.session.timeout.ms": "6000"}
        found[name] = document
    text = json.dumps(found)
    for there, here in places.items():
        text = text.replace(there, here)
    return {name: parse(json.dumps(document)) for name, document in json.loads(text).items()}


class Home(BootMachine):
    """A machine that is a folder: its commands are Firn's own alone, run by whoever runs the test."""

    def run(self, *command: str, fine: tuple[int, ...] = (0,)) -> tuple[int, str]:
        if command == ("id", "-u", "firn"):
            return 0, str(os.getuid())
        assert command[:4] == ("runuser", "-u", "firn", "--")
        assert command[4].endswith("/opt/firn/current/bin/firn")
        return super().run(str(FIRN), *command[5:], fine=fine)

    def sync(self) -> None:
        pass


class World(Hands):
    """All machines, and what infra/roll does to them done here."""

    def __init__(self, folder: Path, documents: dict[str, Document]) -> None:
        super().__init__(folder, folder / "roll.json")
        self.documents, self.marks = documents, dict[str, str]()
        self.members: dict[str, Member] = {}
        self.numbers = dict.fromkeys(documents, 0)
        self.said: list[str] = []
        for name in documents:
            (self.root(name) / "var/lib/firn" / f"node-{self.node(name)}").mkdir(parents=True)

    def root(self, name: str) -> Path:
        return self.environment / f"{name}-{self.numbers[name]}"

    def node(self, name: str) -> int:
        return self.documents[name].nodes[0].id

    def claim(self, url: str, _: str, text: str, headers: Mapping[str, str]) -> str:
        return self.marks.setdefault(url, text)

    def boot(self, name: str) -> Member:
        """What `install` does of it."""
        document, home = self.documents[name], Home(self.root(name))
        (node,) = document.nodes
        data = home.path(f"var/lib/firn/node-{node.id}")
        step_secrets(home, document)
        text = properties_of(document, node, str(data)).replace(f"/{SECRETS}", str(home.path(SECRETS)))
        home.write(f"etc/firn/server-{node.id}.properties", text)
        step_form(home, document, self.claim)
        settings = dict(parse_properties(text))
        laid = DevNode(node.id, node.role == "controller", settings)
        member = self.members[name] = Member(laid, self.root(name), Program.FIRN)
        member.bootstrap = f"{HOST}:{node.port}"
        member.launch()
        return member

    def ready(self, name: str) -> None:
        wait_until(f"node {name} to serve", self.members[name].has_started, 60)

    def say(self, text: str) -> None:
        self.said.append(text)

    def machines(self) -> dict[str, Machine]:
        return {
            name: Machine(
                name,
                f"i-{name}-{self.numbers[name]}",
                HOST,
                "controller" if name in CONTROLLERS else "broker",
                {one.nodes[0].id: one.nodes[0].port},
                "",
            )
            for name, one in self.documents.items()
        }

    def on(self, machine: Machine, command: str, program: str = "") -> str:
        if command == rolling.STOP:
            self.members[machine.name].leave()
            return ""
        if command == rolling.INSTALL:
            self.boot(machine.name)
            self.ready(machine.name)
            return ""
        there = str(self.root(machine.name) / SECRETS)
        words = command.removeprefix(AS_FIRN).replace(f"/{SECRETS}", there).split()
        assert words[0] == PYTHON_THERE
        return self._run([str(PYTHON), *words[1:]], machine.name, 60, program)

    def client_config(self) -> str | None:
        return f"/{SECRETS}/client.properties" if self.documents["1"].security else None

    def replace(self, name: str) -> None:
        """Another machine with an empty root disk, and the volume of the one before."""
        old = self.root(name)
        self.numbers[name] += 1
        (self.root(name) / "var/lib").mkdir(parents=True)
        (old / "var/lib/firn").rename(self.root(name) / "var/lib/firn")
        self.boot(name)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{self.documents[name].nodes[0].port}" for name in BROKERS)

    def lacks(self) -> list[str]:
        told = rolling._Roll(self, Options(action=rolling.RESTART))._look(self.machines()["c1"], away=False)
        return list(told["lacks"])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(rolling, "POLL_S", 0.3)
    (tmp_path / "store").mkdir()
    (tmp_path / "world").mkdir()
    made = World(tmp_path / "world", at_home(rendered(tmp_path / "terraform"), tmp_path / "store"))
    try:
        yield made
    finally:
        for member in made.members.values():
            if member.is_running:
                member.kill()


class Writer:
    """Numbered records, each acknowledged by two replicas; until `close`."""

    def __init__(self, bootstrap: str, **more: str) -> None:
        self.taken: list[int] = []
        self.refused: list[KafkaError] = []
        settings = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True}
        self.producer = Producer({**settings, **{key.replace("_", "."): one for key, one in more.items()}})
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        number = 0
        while not self.ended.wait(0.005):
            self.producer.produce(TOPIC, b"%d" % number, on_delivery=self.delivered)
            self.producer.poll(0)
            number += 1
        self.producer.flush(60)

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(error)
        else:
            self.taken.append(int(message.value() or b""))

    def close(self) -> None:
        self.ended.set()
        self.thread.join(90)
        assert not self.thread.is_alive()


def read(bootstrap: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    places = [TopicPartition(TOPIC, one, 0) for one in range(partitions)]
    ends: dict[int, int] = {one.partition: consumer.get_watermark_offsets(one, 30)[1] for one in places}
    consumer.assign(places)
    total, found = sum(ends.values()), list[int]()

    def all_read() -> bool:
        for message in consumer.consume(1000, 0.5):
            assert message.error() is None
            found.append(int(message.value() or b""))
        return len(found) >= total

    wait_until("all records", all_read, 60)
    consumer.close()
    return found


def test_the_cluster_that_terraform_renders_is_formed_rolled_and_outlives_a_volume(world: World) -> None:
    for name in world.documents:
        world.boot(name)
    for name in world.documents:
        world.ready(name)
    wait_until("the cluster to lack nothing", lambda: not world.lacks(), 60)
    initial = world.documents["c1"].cluster
    assert initial is not None
    fixed = {int(one.split("@")[0]): one.rpartition(":")[2] for one in initial.controllers.values()}
    assert world.members["1"].quorum().voters == fixed

    # What the documents ask for is what a topic gets.
    admin = Admin(world.bootstrap)
    admin.replicate(TOPIC, 6, -1)
    assert admin.configs(TOPIC)["min.insync.replicas"] == "2"
    placed = states(world.members["1"], TOPIC)
    assert [len(set(one.replicas)) for one in placed.values()] == [3] * 6
    racks = {settings["broker.rack"] for settings in (world.members[one].settings for one in BROKERS)}
    assert len(racks) == 3

    writer = Writer(world.bootstrap)
    wait_until("records", lambda: len(writer.taken) > 100)
    roll(world, Options(settle_s=1, patience_s=120))
    print("", *world.said, sep="\n")
    assert set(world.numbers.values()) == {1}
    after = len(writer.taken)
    wait_until("records after it", lambda: len(writer.taken) > after + 100)
    writer.close()
    assert writer.refused == []
    assert sorted(read(world.bootstrap, 6)) == sorted(writer.taken)
    assert world.members["1"].quorum().voters == fixed
    assert world.lacks() == []

    lost_volume(world, fixed)


def lost_volume(world: World, fixed: dict[int, str]) -> None:
    """A controller whose volume is lost is not formed again; as the documents have it, it comes back."""
    world.members["c2"].kill()
    home = world.root("c2") / "var/lib/firn/node-902"
    shutil.rmtree(home)
    home.mkdir()
    with pytest.raises(BootError, match="was formed before"):
        world.boot("c2")
    assert list(home.iterdir()) == [home / ".forming"]
    wait_until("902 to be behind", lambda: "controller 902 is behind" in world.lacks(), 60)
    with pytest.raises(RollError, match="controller 902 is behind"):
        roll(world, Options(names=("1",), settle_s=0, patience_s=8))
    world.forget()

    config = world.root("c2") / "etc/firn/server-902.properties"
    done = subprocess.run(
        [str(FIRN), "format", "-c", str(config), "-t", CLUSTER_ID, "--no-initial-controllers"],
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    world.boot("c2")
    wait_until("the voter to be back", lambda: not world.lacks(), 60)
    voters = world.members["1"].quorum().voters
    assert voters.keys() == fixed.keys()
    assert {one for one in voters if voters[one] != fixed[one]} == {902}


def test_machines_of_other_clusters_are_not_taken_in(world: World) -> None:
    """Another cluster's id, by mistake: each stays what it is."""
    for name in CONTROLLERS:
        world.boot(name)
    for name in CONTROLLERS:
        world.ready(name)
    cluster = world.documents["c1"].cluster
    assert cluster is not None
    world.members["c1"].leave()
    world.documents["c1"] = replace(world.documents["c1"], cluster=replace(cluster, id="A" * 22))
    with pytest.raises(BootError, match="another node's data"):
        world.boot("c1")
