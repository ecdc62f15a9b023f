"""A cluster in which Firn and Apache Kafka share the work: a quorum of controllers, and brokers below it.

Controllers have ids from 1 on, brokers from 101 on, and each is a process of either software's server. Their
features are those that both know: Kafka's group, transaction, share and streams versions at level 0, and
ours, the catalog's, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.disk import SystemDisk
from service.base.errors import RequestError
from service.base.world import World, system_world
from service.cli.dev_nodes import DevNode, agree_on_ports
from service.client.node_channel import Channels
from service.config.cluster import ClusterConfig
from service.hot.log_dir import random_id
from service.hot.meta_properties_ensemble import load_ensemble
from service.metadata.batches import MetadataBatch, decode_batches
from service.metadata.bootstrap import InitialController, parse_initial_controllers
from service.metadata.features import cluster_features
from service.metadata.formatting import Order, effective_levels, format_directories
from service.metadata.records import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from service.wire.api import ApiKey, request_module
from service.wire.errors import UnsupportedVersion
from tests.support import quorums
from tests.support.kafka_tools import tool
from tests.support.peers import Address
from tests.support.quorums import FOR_KAFKA, Program
from tests.support.requirements import KAFKA_LIBS
from tests.support.waiting import until

CLUSTER_ID: Final = "4L6g3nShT-eMCtK--X86sw"
HOST: Final = "127.0.0.1"
FIRN: Final = 1
CONTROLLERS: Final = (1, 2, 3)
FIRST_BROKER: Final = 101
OFF: Final = ("group.version", "transaction.version", "share.version", "streams.version")
_ELR: Final = "eligible.leader.replicas.version"
_DONE: Final = (ErrorCode.topic_already_exists, ErrorCode.unknown_topic_or_partition)
"""What a second try is told where the first one was done after all."""
_LATE: Final = (ErrorCode.not_controller, ErrorCode.request_timed_out, ErrorCode.unknown_server_error)
_OUR_ERROR: Final = re.compile(r"Traceback| (ERROR|CRITICAL) ")
_OUT_OF_ORDER: Final = re.compile(
    r"Out of order sequence number for producer \d+ at offset (\d+) in partition (\S+)-(\d+):"
)
_IN_FLIGHT: Final = 5
_KAFKAS_ERROR: Final = re.compile(
    r"FATAL|Encountered .*fault|"
    r"\] ERROR (?!.*((Unexpected error|Exception when) handling request|processExpiredBrokerHeartbeat|"
    r"EventPerformanceMonitor|"
    r"to exist, but it was missing. Creating\.\.\.|"
    r"because the partition is not online or is no longer the leader))"
)
"""Kafka's controllers call it an error that somebody else leads by now, that they are asked for their
versions while they start, and that a busy machine has made them late, in these words; its brokers, that they
get a replica of a topic that they know, and that a partition of positions went on while they read it."""
_COMMON: Final = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1500",
    "controller.quorum.election.backoff.max.ms": "300",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "6000",
}
_FOR_KAFKAS_BROKERS: Final = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
}


_KAFKAS_OWN: Final = {**FOR_KAFKA, **_FOR_KAFKAS_BROKERS}


class Mark(NamedTuple):
    """Leader of the quorum, and its high watermark."""

    node_id: int
    epoch: int
    high_watermark: int
    ends: dict[int, int]
    """of the voters' logs"""


class Member(quorums.Member):
    """One node, whoever's, for whom waits on an event loop."""

    def __init__(
        self, node_id: int, folder: Path, port: int, settings: Mapping[str, str], *, is_firn: bool
    ) -> None:
        own = {**settings, "node.id": str(node_id), "log.dirs": str(folder / f"node-{node_id}")}
        node = DevNode(node_id, own["process.roles"] == "controller", own)
        super().__init__(node, folder, Program.FIRN if is_firn else Program.KAFKA)
        self.is_firn = is_firn
        self.address = Address(HOST, port)
        self.environ = {} if is_firn else _environment()

    @property
    def directory_id(self) -> UUID:
        meta = load_ensemble(SystemDisk(), [self.data]).formatted[self.data]
        assert meta.directory_id is not None
        return meta.directory_id

    async def serves(self, seconds: float = 60) -> None:
        """Once it does, after `launch`."""
        try:
            await until(self.has_started, seconds)
        except (AssertionError, TimeoutError) as e:
            raise AssertionError(f"node {self.node_id} does not serve; {self.log()}") from e

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def terminate(self, seconds: float = 30) -> int:
        """SIGTERM; its status, which is 0 or, of Java, 143."""
        assert self.process is not None
        self.process.terminate()
        return await asyncio.to_thread(self.process.wait, seconds)

    def complaints(self) -> list[str]:
        """Return errors in its log, without Kafka's own."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        grave = _OUR_ERROR if self.is_firn else _KAFKAS_ERROR
        return [line for line in text.splitlines() if grave.search(line)]


def _environment() -> dict[str, str]:
    archive = KAFKA_LIBS.parent / "classes.jsa"
    shared = f" -XX:SharedArchiveFile={archive}" if archive.exists() else ""
    return {
        "KAFKA_HEAP": "256m",
        "KAFKA_LOG_LEVEL": os.environ.get("KAFKA_LOG_LEVEL", "INFO"),
        # These live for seconds, and three of them start at once.
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -Xlog:disable -Xlog:all=error:stderr" + shared,
    }


class Mixed:
    """The nodes of one cluster. `is_dynamic`: kraft.version 1; else voters are the configuration's."""

    def __init__(
        self,
        folder: Path,
        *,
        is_dynamic: bool = True,
        by_kafka: bool = False,
        controllers: int = 3,
        brokers: int = 1,
        firn: Collection[int] = (FIRN,),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`by_kafka`: Kafka's tool formats Kafka's directories, and not ours. `firn`: the nodes that are
        Firn's; the first of Kafka's brokers, if there is one, is asked for changes."""
        world = system_world()
        ports, quorum = agree_on_ports(0, brokers, controllers)
        places = dict(enumerate(quorum, start=1))
        voters = [InitialController(one, HOST, port, random_id(world)) for one, port in places.items()]
        named = (
            {"controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{port}" for port in quorum)}
            if is_dynamic
            else {
                "controller.quorum.voters": ",".join(f"{one}@{HOST}:{port}" for one, port in places.items())
            }
        )
        self._common = common = {**_COMMON, **named, **(settings or {})}
        self.controllers = {
            one: Member(one, folder, port, _controller(common, port), is_firn=one in firn)
            for one, port in places.items()
        }
        self.brokers = {
            one: Member(one, folder, port, _broker(common, port, is_firn=one in firn), is_firn=one in firn)
            for one, port in enumerate(ports, start=FIRST_BROKER)
        }
        self.members = {**self.controllers, **self.brokers}
        initial = ",".join(map(str, voters)) if is_dynamic else ""
        for member in self.members.values():
            _format(world, member, initial, by_kafka=by_kafka and not member.is_firn)
        self._folder = folder
        self.asked = min(self.brokers.values(), key=lambda one: (one.is_firn, one.node_id))
        self.channels = Channels()
        self.led: list[int] = []

    # -- life

    async def start(self, seconds: float = 90) -> Mixed:
        for member in self.members.values():
            member.launch()
        for member in self.members.values():
            await member.serves(seconds)
        return self

    async def close(self) -> None:
        await self.channels.close()
        for member in self.members.values():
            if member.is_running:
                member.signal(signal.SIGCONT)
                member.kill()

    async def stop(self) -> None:
        """Brokers first: they shut down under control. Kafka's controllers would wait for a leader after
        them, when all end at once."""
        await asyncio.gather(*(one.terminate() for one in self.brokers.values() if one.is_running))
        for member in self.controllers.values():
            if not member.is_firn and member.is_running:
                member.kill()
        for member in self.controllers.values():
            if member.is_firn and member.is_running:
                assert await member.terminate() == 0, member.log()

    async def replace(self, node_id: int) -> Member:
        """A broker of Kafka ends, and one of Firn begins in its place, with nothing on its disk."""
        old = self.brokers[node_id]
        assert await old.terminate() in (0, 143), old.log()
        for path in (old.data, old.log_path):
            path.rename(path.with_name(f"{path.name}.old"))
        settings = _broker(self._common, old.address.port, is_firn=True)
        new = Member(node_id, old.folder, old.address.port, settings, is_firn=True)
        self.brokers[node_id] = self.members[node_id] = new
        new.launch()
        await new.serves()
        return new

    async def __aenter__(self) -> Mixed:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def bootstrap(self) -> str:
        """Of the brokers."""
        return ",".join(one.bootstrap for one in self.brokers.values())

    # -- what is asked

    async def ask(self, member: Member, key: ApiKey, message: Any, version: int | None = None) -> Any:
        return await self.channels.call(member.address, key, version, message, timeout_ms=4_000)

    async def mark(self, *without: int) -> Mark | None:
        """Return the mark that the leader describes; None while there is no leader."""
        found = [
            await self._described(one)
            for one in self.controllers.values()
            if one.is_running and one.node_id not in without
        ]
        return max((one for one in found if one is not None), key=lambda one: one.epoch, default=None)

    async def _described(self, member: Member) -> Mark | None:
        module = request_module(ApiKey.DESCRIBE_QUORUM)
        topic = module.TopicData(
            topic_name="__cluster_metadata", partitions=(module.PartitionData(partition_index=0),)
        )
        try:
            told = await self.channels.call(
                member.address,
                ApiKey.DESCRIBE_QUORUM,
                None,
                module.DescribeQuorumRequest(topics=(topic,)),
                timeout_ms=1_000,
            )
        except (OSError, RequestError, UnsupportedVersion):
            return None
        one = told.topics[0].partitions[0] if told.topics else None
        if one is None or one.error_code != ErrorCode.none:
            return None
        ends = {int(each.replica_id): int(each.log_end_offset) for each in one.current_voters}
        return Mark(int(one.leader_id), int(one.leader_epoch), int(one.high_watermark), ends)

    async def leader(self, *without: int, seconds: float = 30) -> Mark:
        """Once there is one other than those, and something is committed."""
        deadline = time.monotonic() + seconds
        while True:
            mark = await self.mark(*without)
            if mark is not None and mark.high_watermark > 0:
                return mark
            if time.monotonic() > deadline:
                raise AssertionError(
                    "nobody leads;\n" + "\n".join(one.log() for one in self.controllers.values())
                )
            await asyncio.sleep(0.05)

    async def caught_up(self, seconds: float = 30) -> Mark:
        """Once every voter has what was committed when this was called."""
        goal = await self.leader()
        deadline = time.monotonic() + seconds
        while True:
            mark = await self.leader()
            if min(mark.ends.get(one, -1) for one in self.controllers) >= goal.high_watermark:
                return mark
            if time.monotonic() > deadline:
                raise AssertionError(f"{goal} was not reached: {mark}")
            await asyncio.sleep(0.05)

    async def has_topics(
        self, leaders: Mapping[str, list[int]], broker: Member | None = None, seconds: float = 20
    ) -> None:
        """Once that broker, or the one that is asked, knows these topics and no others: Kafka's answers a
        change before it does."""
        deadline = time.monotonic() + seconds
        while (found := await self.topics(broker)) != leaders:
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.1)

    async def reached(self, broker: int, *, is_fenced: bool, seconds: float = 30) -> None:
        """Once the log of a controller says that the broker is fenced, or is not."""
        node_id = FIRN if self.controllers[FIRN].is_firn else (await self.leader()).node_id
        deadline, state = time.monotonic() + seconds, None
        while time.monotonic() < deadline:
            for batch in decode_batches(self.controllers[node_id].committed(1 << 62)):
                for frame in batch.frames:
                    record: Any = frame.record
                    if isinstance(record, RegisterBrokerRecord) and record.broker_id == broker:
                        state = record.fenced
                    elif isinstance(record, BrokerRegistrationChangeRecord) and record.broker_id == broker:
                        state = state if record.fenced == 0 else record.fenced > 0
            if state is is_fenced:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"broker {broker} is not what it should be; {self.brokers[broker].log()}")

    # -- leadership

    async def move(self, how: str) -> Mark:
        """The leader is stopped (`term`), killed (`kill`) or stands still (`pause`) until another one leads;
        then it comes back."""
        before = await self.leader()
        member = self.controllers[before.node_id]
        if how == "pause":
            member.signal(signal.SIGSTOP)
        elif how == "kill":
            member.kill()
        else:
            status = await member.terminate()
            assert status in (0, 143), f"{status}; {member.log()}"
        try:
            after = await self.leader(before.node_id)
        finally:
            if how == "pause":
                member.signal(signal.SIGCONT)
        assert after.epoch > before.epoch
        if how != "pause":
            member.launch()
            await member.serves()
        self.led.append(after.node_id)
        return after

    def written_again(self) -> dict[tuple[str, int], set[int]]:
        """Places of records that their client has written once more, in a new epoch of its own: a broker of
        Kafka, which appends one of several requests under way though the one before it was refused, had told
        it that they are out of order (docs/adr/0017).
        """
        found: dict[tuple[str, int], set[int]] = {}
        for path in self._folder.glob("node-*.log*"):
            for offset, topic, index in _OUT_OF_ORDER.findall(path.read_text(errors="replace")):
                before = range(int(offset) - _IN_FLIGHT, int(offset))
                found.setdefault((topic, int(index)), set()).update(before)
        if found:
            print(f"clients were told by Kafka's brokers that records are out of order: {found}")
        return found

    # -- changes, by a broker

    async def change(self, key: ApiKey, message: Any, errors: Any, seconds: float = 30) -> None:
        """Send a change until the controller has answered, as clients do. `errors(answer)`: its errors."""
        deadline = time.monotonic() + seconds
        tries: list[str] = []
        while time.monotonic() < deadline:
            try:
                answer = await self.ask(self.asked, key, message)
            except (OSError, RequestError) as e:
                tries.append(repr(e))
            else:
                found = [one for one in errors(answer) if one[0] != ErrorCode.none]
                if not found or (tries and all(one[0] in _DONE for one in found)):
                    return
                tries.append(repr(found))
                assert all(one[0] in _LATE for one in found), found
            await asyncio.sleep(0.1)
        raise AssertionError(f"{message} was never done: {tries[-3:]}")

    async def create(self, *names: str, partitions: int = 1) -> None:
        module = request_module(ApiKey.CREATE_TOPICS)
        topics = tuple(
            module.CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
            )
            for name in names
        )
        message = module.CreateTopicsRequest(topics=topics, timeout=4_000)
        await self.change(
            ApiKey.CREATE_TOPICS, message, lambda one: [(t.error_code, t.error_message) for t in one.topics]
        )

    async def delete(self, *names: str) -> None:
        module = request_module(ApiKey.DELETE_TOPICS)
        topics = tuple(module.DeleteTopicState(name=name, topic_id=None) for name in names)
        message = module.DeleteTopicsRequest(topics=topics, timeout=timedelta(seconds=4))
        await self.change(
            ApiKey.DELETE_TOPICS,
            message,
            lambda one: [(t.error_code, t.error_message) for t in one.responses],
        )

    async def configure(self, name: str, **values: str) -> None:
        """Set configs of a topic; `_` for `.` in keys."""
        module = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
        configs = tuple(
            module.AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
            for key, value in values.items()
        )
        resource = module.AlterConfigsResource(resource_type=2, resource_name=name, configs=configs)
        message = module.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        await self.change(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            message,
            lambda one: [(r.error_code, r.error_message) for r in one.responses],
        )

    async def topics(self, broker: Member | None = None) -> dict[str, list[int]]:
        """Return the leader of each partition, as that broker, or the bootstrap broker, knows them."""
        module = request_module(ApiKey.METADATA)
        message = module.MetadataRequest(
            topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        answer = await self.ask(broker or self.asked, ApiKey.METADATA, message, 12)
        return {
            str(one.name): [
                int(each.leader_id) for each in sorted(one.partitions, key=lambda p: p.partition_index)
            ]
            for one in answer.topics
        }

    # -- quorum

    async def led_by(self, *node_ids: int) -> Mark:
        """Leadership moves until one of those has it."""
        for _ in range(20):
            mark = await self.leader()
            if mark.node_id in node_ids:
                return mark
            await self.move("term")
        raise AssertionError(f"none of {node_ids} has led")

    async def ask_leader(self, key: ApiKey, message: Any, seconds: float = 20) -> Any:
        """The quorum's leader, until the answer is no error."""
        deadline, errors = time.monotonic() + seconds, []
        while time.monotonic() < deadline:
            member = self.controllers[(await self.leader()).node_id]
            try:
                answer = await self.ask(member, key, message)
            except (OSError, RequestError) as e:
                errors.append(repr(e))
            else:
                if answer.error_code == ErrorCode.none:
                    return answer
                errors.append(f"{answer.error_code!r}: {answer.error_message}")
            await asyncio.sleep(0.1)
        raise AssertionError(f"{message} was never done: {errors[-3:]}")

    async def remove_voter(self, node_id: int) -> None:
        message = request_module(ApiKey.REMOVE_RAFT_VOTER).RemoveRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            voter_id=node_id,
            voter_directory_id=self.controllers[node_id].directory_id,
        )
        await self.ask_leader(ApiKey.REMOVE_RAFT_VOTER, message)

    async def add_voter(self, node_id: int) -> None:
        member, module = self.controllers[node_id], request_module(ApiKey.ADD_RAFT_VOTER)
        listener = module.Listener(name="CONTROLLER", host=HOST, port=member.address.port)
        message = module.AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            timeout=timedelta(seconds=5),
            voter_id=node_id,
            voter_directory_id=member.directory_id,
            listeners=(listener,),
        )
        await self.ask_leader(ApiKey.ADD_RAFT_VOTER, message)

    # -- judging

    def batches(self) -> list[MetadataBatch]:
        """Return all batches in the log of Firn's controller, committed or not."""
        return list(decode_batches(self.controllers[FIRN].committed(1 << 62)))

    def logs(self, end_offset: int) -> dict[int, bytes]:
        """Return the log of each stopped controller below an offset."""
        return {one: member.committed(end_offset) for one, member in self.controllers.items()}

    def dumped(self, node_id: int) -> str:
        """A stopped node's log, as Kafka's own tool reads it."""
        files = sorted(self.members[node_id].metadata_log.glob("*.log"))
        return tool("dump-log", "--cluster-metadata-decoder", "--files", ",".join(map(str, files)))


def _controller(common: Mapping[str, str], port: int) -> dict[str, str]:
    return {**common, "process.roles": "controller", "listeners": f"CONTROLLER://{HOST}:{port}"}


def _broker(common: Mapping[str, str], port: int, *, is_firn: bool) -> dict[str, str]:
    own = {} if is_firn else _FOR_KAFKAS_BROKERS
    listener = {"inter.broker.listener.name": "PLAINTEXT", "listeners": f"PLAINTEXT://{HOST}:{port}"}
    return {**common, **own, **listener, "process.roles": "broker"}


def _format(world: World, member: Member, initial: str, *, by_kafka: bool) -> None:
    if by_kafka:
        words = [word for one in OFF for word in ("--feature", f"{one}=0")]
        if member.settings["process.roles"] == "controller" and initial:
            words += ["--initial-controllers", initial]
        tool("storage", "format", "-t", CLUSTER_ID, "-c", member.properties, *words)
        return
    cluster = ClusterConfig.from_properties(
        {key: value for key, value in member.settings.items() if key not in _KAFKAS_OWN}
    )
    asked = {"group.version": 0, "transaction.version": 0, "firn.catalog.version": 0, _ELR: 1}
    levels = effective_levels(asked, cluster_features(), is_dynamic=bool(initial))
    order = Order(
        CLUSTER_ID,
        member.node_id,
        cluster.directories,
        cluster.metadata_log_dir,
        cluster.controller_listener_names[0],
        levels,
        parse_initial_controllers(initial) if initial and cluster.is_controller else (),
    )
    format_directories(world, order, lambda _: None)


@contextlib.asynccontextmanager
async def mixed(folder: Path, **options: Any) -> AsyncIterator[Mixed]:
    """A cluster for the length of an `async with`; what a node said is shown where that fails."""
    cluster = Mixed(folder, **options)
    try:
        await cluster.start()
        yield cluster
    except BaseException:
        for member in cluster.members.values():
            print(member.log())
        raise
    finally:
        await cluster.close()
