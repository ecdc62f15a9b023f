"""Clusters of several real nodes on free ports: laid out and formatted by Firn, each run by either server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, Self
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.world import system_world
from service.cli.dev_nodes import HOST, DevNode, Plan, agree_on_ports, format_nodes, plan_nodes
from service.client.blocking_client import BlockingClient
from service.hot.log_dir import encode_uuid, random_id
from service.metadata.bootstrap import InitialController
from service.metadata.features import CATALOG_VERSION
from service.metadata.records import UserScramCredentialRecord
from service.records.batch import complete_headers
from service.wire.api import ApiKey, request_module
from tests.support.kafka_tools import RUNNER
from tests.support.processes import FIRN, end, wait_until
from tests.support.requirements import KAFKA_LIBS


class Program(Enum):
    """Software that runs a node."""

    FIRN = "firn"
    KAFKA = "kafka"


FOR_FIRN = {"firn.disk.watermarks.enable": "false"}
FOR_KAFKA = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
}


class Quorum(NamedTuple):
    """A quorum as one node tells it: `voters` and `observers` have directory ids, as the tools write them."""

    leader: int
    epoch: int
    high_watermark: int
    voters: dict[int, str]
    observers: dict[int, str]


class Member:
    """One node of a cluster, on a folder and ports that stay the same over restarts."""

    def __init__(self, node: DevNode, folder: Path, program: Program) -> None:
        self.node_id, self.is_controller = node.node_id, node.is_controller
        self.program = program
        self.folder = folder
        self.data = Path(node.settings["log.dirs"])
        self.bootstrap = node.settings["listeners"].partition(",")[0].partition("://")[2]
        self.settings = {**node.settings, **(FOR_FIRN if program is Program.FIRN else FOR_KAFKA)}
        self.environ: Mapping[str, str] = {}
        self.firn: Sequence[str] = [str(FIRN)]
        """the command of a node of Firn's"""
        self.process: subprocess.Popen[str] | None = None
        self.log_path = folder / f"node-{node.node_id}.log"
        self._said_from = 0

    @property
    def properties(self) -> Path:
        """The file of its settings, as they are now."""
        path = self.folder / f"node-{self.node_id}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        return path

    @property
    def metadata_log(self) -> Path:
        return self.data / "__cluster_metadata-0"

    @property
    def directories(self) -> list[Path]:
        """All its log directories, `data` the first of them."""
        return [Path(one) for one in self.settings["log.dirs"].split(",")]

    def replica(self, topic: str, partition: int) -> Path | None:
        """Return the directory of a partition; None if it has none."""
        found = [at for one in self.directories if (at := one / f"{topic}-{partition}").is_dir()]
        assert len(found) <= 1, f"node {self.node_id} has {topic}-{partition} twice: {found}"
        return found[0] if found else None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, seconds: float = 60) -> Member:
        """Returns once the node serves: it may need others for that."""
        self.launch()
        try:
            wait_until(f"node {self.node_id} to serve", self.has_started, seconds, 0.02)
        except AssertionError as e:
            raise AssertionError(f"{e}; {self.log()}") from None
        return self

    def launch(self) -> None:
        """Starts its process, and waits for nothing."""
        own = f"node.id={self.node_id}"
        command = [*self.firn, "server", str(self.properties), "--set", own]
        if self.program is Program.KAFKA:
            command = [str(RUNNER), "server", str(self.properties), "--override", own]
        with self.log_path.open("ab") as log:
            self._said_from = log.tell()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
                env={
                    **os.environ,
                    "KAFKA_LIBS": str(KAFKA_LIBS),
                    "KAFKA_HEAP": "512m",
                    "KAFKA_LOG_LEVEL": "INFO",
                    **self.environ,
                },
            )

    def refused(self, seconds: float = 60) -> str:
        """Starts a node that must end by itself, and not well; what it logged of that."""
        self.launch()
        assert self.process is not None
        try:
            assert self.process.wait(seconds) == 1, self.log()
        finally:
            self.kill()
        return self.said()

    def has_started(self) -> bool:
        """Return whether it serves; fail if it has died."""
        assert self.is_running, f"node {self.node_id} has ended"
        said = self.said()
        if self.program is Program.FIRN:
            return any(line.startswith("ready: ") for line in said.splitlines())
        return "Kafka Server started" in said

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 60) -> None:
        """SIGTERM, and SIGKILL where that does not do."""
        if self.process is not None:
            end(self.process, seconds)

    def leave(self, seconds: float = 60) -> None:
        """SIGTERM, at which it must end, and well."""
        assert self.process is not None
        self.process.terminate()
        try:
            code = self.process.wait(seconds)
        finally:
            self.kill()
        assert code == 0, f"node {self.node_id} left with {code}; {self.log()}"

    def said(self) -> str:
        """The log of its last run."""
        with self.log_path.open("rb") as log:
            log.seek(self._said_from)
            return log.read().decode(errors="replace")

    def committed(self, end_offset: int) -> bytes:
        """The batches of its metadata log that lie below an offset."""
        log = b"".join(path.read_bytes() for path in sorted(self.metadata_log.glob("*.log")))
        return log[: sum(one.size for one in complete_headers(log) if one.base_offset < end_offset)]

    def quorum(self, controller: str | None = None) -> Quorum:
        """As the leader says, asked by way of this node; or as that controller says, if it leads.

        Where it does not, the leader is -1.
        """
        host, _, port = (controller or self.bootstrap).rpartition(":")
        module = request_module(ApiKey.DESCRIBE_QUORUM)
        partition = module.PartitionData(partition_index=0)
        topic = module.TopicData(topic_name="__cluster_metadata", partitions=(partition,))
        with BlockingClient(host, int(port), "test") as client:
            answer = client.request(ApiKey.DESCRIBE_QUORUM, module.DescribeQuorumRequest(topics=(topic,)))
        found = answer.topics[0].partitions[0]
        return Quorum(
            found.leader_id if found.error_code == ErrorCode.none else -1,
            found.leader_epoch,
            found.high_watermark,
            *(
                {one.replica_id: encode_uuid(one.replica_directory_id or UUID(int=0)) for one in replicas}
                for replicas in (found.current_voters, found.observers)
            ),
        )

    def partitions(self, topic: str) -> list[int]:
        """The leaders of a topic's partitions, as this node tells them; none where it does not know it."""
        host, _, port = self.bootstrap.rpartition(":")
        module = request_module(ApiKey.METADATA)
        asked = module.MetadataRequestTopic(topic_id=None, name=topic)
        with BlockingClient(host, int(port), "test") as client:
            request = module.MetadataRequest(
                topics=(asked,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
            )
            (found,) = client.request(ApiKey.METADATA, request).topics
        ordered = sorted(found.partitions, key=lambda one: one.partition_index)
        return [one.leader_id for one in ordered]

    def topics(self) -> set[str]:
        """Return the topics as this node knows them."""
        host, _, port = self.bootstrap.rpartition(":")
        module = request_module(ApiKey.METADATA)
        with BlockingClient(host, int(port), "test") as client:
            request = module.MetadataRequest(
                topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
            )
            return {one.name for one in client.request(ApiKey.METADATA, request).topics}

    def log(self, lines: int = 40) -> str:
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return f"the log of node {self.node_id} ends:\n" + "\n".join(text.splitlines()[-lines:])


class Cluster:
    """Nodes that are one cluster: the first `controllers` are controllers, too. For a `with`, which ends all.

    `programs`: whose server runs which node; Firn's where nothing is said.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        controllers: int = 3,
        settings: Mapping[str, str] | None = None,
        programs: Mapping[int, Program] | None = None,
        environ: Mapping[str, str] | None = None,
        credentials: tuple[UserScramCredentialRecord, ...] = (),
    ) -> None:
        world, chosen = system_world(), programs or {}
        self.folder = folder
        ports = agree_on_ports(0, nodes, controllers)
        self.plan: Plan = plan_nodes(nodes, controllers, ports, folder, world, settings or {})
        # a feature of ours is none that Kafka's nodes support: they would refuse themselves
        features = {CATALOG_VERSION: 0} if Program.KAFKA in chosen.values() else {}
        format_nodes(self.plan, world, features, credentials)
        self.members = {
            node.node_id: Member(node, folder, chosen.get(node.node_id, Program.FIRN))
            for node in self.plan.nodes
        }
        for member in self.members.values():
            member.environ = environ or {}

    @classmethod
    def apart(
        cls,
        folder: Path,
        controllers: Iterable[int],
        brokers: Iterable[int],
        settings: Mapping[str, str] | None = None,
    ) -> Cluster:
        """Nodes of one role each, all of Firn: controllers that are formatted, and brokers that are not."""
        made = cls.__new__(cls)
        world, ids, others = system_world(), list(controllers), list(brokers)
        ports, quorum = agree_on_ports(0, len(others), len(ids))
        voters = [InitialController(*one, random_id(world)) for one in zip(ids, repeat(HOST), quorum)]
        common = {
            **(settings or {}),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{port}" for port in quorum),
        }

        def node(node_id: int, role: str, listener: str) -> DevNode:
            own = {"process.roles": role, "listeners": listener, "log.dirs": str(folder / f"node-{node_id}")}
            return DevNode(node_id, role == "controller", {**common, "node.id": str(node_id), **own})

        listeners = {
            "controller": [f"CONTROLLER://{HOST}:{port}" for port in quorum],
            "broker": [f"PLAINTEXT://{HOST}:{port}" for port in ports],
        }
        first = [node(*one) for one in zip(ids, repeat("controller"), listeners["controller"])]
        rest = [node(*one) for one in zip(others, repeat("broker"), listeners["broker"])]
        cluster_id = encode_uuid(random_id(world))
        made.plan = Plan((*first, *rest), cluster_id, ",".join(map(str, voters)))
        format_nodes(made.plan._replace(nodes=tuple(first)), world)
        made.members = {one.node_id: Member(one, folder, Program.FIRN) for one in made.plan.nodes}
        return made

    @property
    def bootstrap(self) -> str:
        """Of the brokers."""
        brokers = [one for one in self.members.values() if "broker" in one.settings["process.roles"]]
        return ",".join(member.bootstrap for member in brokers)

    def broker(self, node_id: int, settings: Mapping[str, str] | None = None) -> Member:
        """A pure broker more, of Firn, on an empty directory; it is started by whom asked for it."""
        folder, first = next(iter(self.members.values())).folder, self.plan.nodes[0].settings
        (port,), _ = agree_on_ports(0, 1, 0)
        common = ("controller.listener.names", "controller.quorum.bootstrap.servers")
        own = {
            **{key: first[key] for key in common},
            **(settings or {}),
            "node.id": str(node_id),
            "process.roles": "broker",
            "listeners": f"PLAINTEXT://{HOST}:{port}",
            "log.dirs": str(folder / f"node-{node_id}"),
        }
        member = self.members[node_id] = Member(DevNode(node_id, False, own), folder, Program.FIRN)
        return member

    def leader(self) -> int:
        """Return the leader of the quorum, as a living node reports it, once there is one."""
        found: list[int] = []

        def is_told() -> bool:
            found[:] = [one.quorum().leader for one in self.members.values() if one.is_running]
            return max(found) >= 0

        wait_until("somebody to lead", is_told, 30)
        return max(found)

    @property
    def bootstrap_controllers(self) -> str:
        return self.plan.nodes[0].settings["controller.quorum.bootstrap.servers"]

    def start(self, node_ids: Iterable[int] | None = None, seconds: float = 60) -> Cluster:
        """All of them, or those: at once, as none may be ready before a majority is there."""
        chosen = [self.members[node_id] for node_id in (self.members if node_ids is None else node_ids)]
        with ThreadPoolExecutor(len(chosen)) as pool:
            for started in [pool.submit(member.start, seconds) for member in chosen]:
                started.result()
        return self

    def stop(self) -> None:
        """Pure brokers first, while there are controllers to move their leaderships."""
        for is_controller in (False, True):
            chosen = [one for one in self.members.values() if one.is_controller is is_controller]
            if chosen:
                with ThreadPoolExecutor(len(chosen)) as pool:
                    list(pool.map(Member.stop, chosen))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            if member.process is not None and member.process.poll() is None:
                member.kill()
