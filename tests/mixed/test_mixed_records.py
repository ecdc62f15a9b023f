"""The same is done under Firn's controller and under Kafka's: both write the same records.

And Kafka's controller writes the same of a Firn broker as of one of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Awaitable, Callable
from difflib import unified_diff
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.metadata.batches import decode_batches
from service.metadata.records import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from service.wire.api import ApiKey, request_module
from tests.support.kafka_tools import tool
from tests.support.mixed import CONTROLLERS, FIRN, FIRST_BROKER, HOST, Mixed, mixed

pytestmark = [pytest.mark.java, pytest.mark.soak, pytest.mark.timeout(400)]

KAFKAS = tuple(one for one in CONTROLLERS if one != FIRN)
PASSED_OVER = {"NoOpRecord", "RegisterControllerRecord", "ProducerIdsRecord"}
"""They come with time, and not with what is done."""
Step = tuple[str, Callable[[], Awaitable[Any]]]


class Life:
    """What is done, step by step, with one broker and topics of a name."""

    def __init__(self, cluster: Mixed, name: str, broker: int = FIRST_BROKER) -> None:
        self.cluster, self.name, self.id = cluster, name, broker
        self.broker = cluster.brokers[broker]

    async def tool(self, *arguments: str) -> str:
        host, port = self.cluster.asked.address
        name, *rest = arguments
        return await asyncio.to_thread(tool, name, "--bootstrap-server", f"{host}:{port}", *rest)

    async def configs(self, kind: str, name: str, *change: str) -> None:
        entity = ("--entity-default",) if name == "" else ("--entity-name", name)
        await self.tool("configs", "--alter", "--entity-type", kind, *entity, *change)

    async def create(self, name: str, configs: dict[str, str], partitions: int = 1) -> None:
        """On this broker alone."""
        module = request_module(ApiKey.CREATE_TOPICS)
        topic = module.CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=tuple(
                module.CreatableReplicaAssignment(partition_index=one, broker_ids=(self.id,))
                for one in range(partitions)
            ),
            configs=tuple(
                module.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()
            ),
        )
        message = module.CreateTopicsRequest(topics=(topic,), timeout=4_000)
        await self.cluster.change(
            ApiKey.CREATE_TOPICS, message, lambda one: [(t.error_code, t) for t in one.topics]
        )

    async def stops(self) -> None:
        assert await self.broker.terminate() in (0, 143), self.broker.log()

    async def starts(self) -> None:
        self.broker.launch()
        await self.broker.serves()
        await self.cluster.reached(self.id, is_fenced=False)

    async def dies(self) -> None:
        self.broker.kill()
        await self.cluster.reached(self.id, is_fenced=True)

    async def unregister(self) -> None:
        await self.dies()  # with us it is fenced as soon as its address refuses, with Kafka after its session
        member = self.cluster.controllers[(await self.cluster.leader()).node_id]
        where = f"{HOST}:{member.address.port}"
        command = ("unregister", "--bootstrap-controller", where, "--id", str(self.id))
        await asyncio.to_thread(tool, "org.apache.kafka.tools.ClusterTool", *command)

    def of_a_broker(self) -> list[Step]:
        return [
            ("create", lambda: self.create(self.name, {}, 3)),
            ("stop", self.stops),
            ("start", self.starts),
            ("kill", self.dies),
            ("start again", self.starts),
        ]

    def of_users(self) -> list[Step]:
        rates = "producer_byte_rate=1024,request_percentage=12.5"
        both = (self.name, "--entity-type", "clients", "--entity-name", "c")
        secret = "SCRAM-SHA-512=[iterations=8192,password=secret]"
        return [
            ("quotas", lambda: self.configs("users", self.name, "--add-config", rates)),
            ("quota of both", lambda: self.configs("users", *both, "--add-config", "consumer_byte_rate=7")),
            ("same quotas", lambda: self.configs("users", self.name, "--add-config", rates)),
            ("no quota", lambda: self.configs("users", self.name, "--delete-config", "request_percentage")),
            ("credential", lambda: self.configs("users", self.name, "--add-config", secret)),
            ("no credential", lambda: self.configs("users", self.name, "--delete-config", "SCRAM-SHA-512")),
        ]

    def of_a_cluster(self) -> list[Step]:
        name, elr = self.name, "eligible.leader.replicas.version"
        policies = {"retention.ms": "1000", "cleanup.policy": "compact", "max.message.bytes": "5000"}
        return [
            *self.of_a_broker(),
            ("create with configs", lambda: self.create(f"{name}b", policies)),
            ("delete", lambda: self.cluster.delete(f"{name}b")),
            ("grow", lambda: self.tool("topics", "--alter", "--topic", name, "--partitions", "5")),
            ("set", lambda: self.cluster.configure(name, retention_ms="5000", segment_bytes="2000000")),
            ("unset", lambda: self.configs("topics", name, "--delete-config", "retention.ms")),
            (
                "broker",
                lambda: self.configs("brokers", str(self.id), "--add-config", "log.cleaner.threads=2"),
            ),
            ("min isr", lambda: self.configs("brokers", "", "--add-config", "min.insync.replicas=2")),
            ("back", lambda: self.configs("brokers", "", "--add-config", "min.insync.replicas=1")),
            *self.of_users(),
            ("elr off", lambda: self.tool("features", "downgrade", "--feature", f"{elr}=0")),
            ("elr on", lambda: self.tool("features", "upgrade", "--feature", f"{elr}=1")),
            ("unregister", self.unregister),
            ("start once more", self.starts),
            ("delete the other", lambda: self.cluster.delete(name)),
        ]


async def told(cluster: Mixed, steps: list[Step], name: str, node_id: int) -> list[str]:
    """The steps, and the records that each of them led to; ids are by their first appearance.

    Which directories are cordoned a broker tells once it has caught up: before it may be unfenced, or when.
    So that stands last here. And whoever left in order is fenced once more by Kafka when the session is over,
    unless it is back by then; with us the session ends as it leaves. So that is passed over.
    """
    begin = (await cluster.caught_up()).high_watermark
    marks = []
    for _, step in steps:
        await step()
        await asyncio.sleep(1.0)  # what follows by itself, and is not waited for
        marks.append((await cluster.caught_up()).high_watermark)
    said: list[str] = []
    ids: dict[UUID, str] = {}
    batches = list(decode_batches(cluster.members[node_id].committed(marks[-1])))
    for (step_name, _), end in zip(steps, marks, strict=True):
        step_said: list[str] = []
        fenced: set[int] = set()
        for batch in batches:
            for offset, frame in enumerate(batch.frames, start=batch.base_offset):
                is_again = fenced_again(frame.record, fenced)
                kind = type(frame.record).__name__
                if begin <= offset < end and kind not in PASSED_OVER and not is_again:
                    step_said.append(f"  v{frame.version} {_plain(frame.record, ids, name)}")
        said += [f"{step_name}:", *sorted(step_said, key=lambda line: "cordoned_log_dirs=[" in line)]
        begin = end
    return said


def fenced_again(record: Any, fenced: set[int]) -> bool:
    """Whether a record fences a broker that is fenced already; keeps the set of those that are."""
    if isinstance(record, RegisterBrokerRecord):
        fences, changes = record.fenced, True
    elif isinstance(record, BrokerRegistrationChangeRecord):
        fences, changes = record.fenced > 0, record.fenced != 0
    else:
        return False
    before = record.broker_id in fenced
    if changes:
        (fenced.add if fences else fenced.discard)(record.broker_id)
    return before and fences and isinstance(record, BrokerRegistrationChangeRecord)


def _plain(value: Any, ids: dict[UUID, str], name: str) -> str:
    if isinstance(value, UUID):
        return ids.setdefault(value, f"id {len(ids)}")
    if isinstance(value, str):
        return re.sub(f"^{name}", "NAME", value)
    if isinstance(value, bytes):
        return f"{len(value)} bytes"  # a salt is random, and keys depend on it
    if isinstance(value, tuple | list):
        parts = [_plain(one, ids, name) for one in value]
        has_order = not re.search(r"Feature\(|QuotaEntityData\(", str(parts))
        return f"[{', '.join(parts if has_order else sorted(parts))}]"
    if dataclasses.is_dataclass(value):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        shown = {
            key: "EPOCH" if key == "broker_epoch" else _plain(one, ids, name) for key, one in fields.items()
        }
        return f"{type(value).__name__}({', '.join(f'{key}={one}' for key, one in shown.items())})"
    return repr(value)


def assert_alike(ours: list[str], theirs: list[str]) -> None:
    assert ours == theirs, "\n".join(unified_diff(ours, theirs, "ours", "theirs", n=0))


def test_both_controllers_write_the_same_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mixed(tmp_path, by_kafka=True) as cluster:
            said = []
            for name, leaders in (("ours", (FIRN,)), ("theirs", KAFKAS)):
                before = await cluster.led_by(*leaders)
                said.append(await told(cluster, Life(cluster, name).of_a_cluster(), name, FIRN))
                assert (await cluster.leader()).epoch == before.epoch, "it is to be done under one leader"
            assert_alike(*said)
            print("\n".join(said[0]))

    asyncio.run(scenario())


def test_kafkas_controller_writes_the_same_of_either_broker(tmp_path: Path) -> None:
    ours, theirs = FIRST_BROKER, FIRST_BROKER + 1

    async def scenario() -> None:
        async with mixed(tmp_path, controllers=1, brokers=2, firn=(ours,), by_kafka=True) as cluster:
            said = []
            for broker, other in ((ours, theirs), (theirs, ours)):
                cluster.asked = cluster.brokers[other]
                lines = await told(cluster, Life(cluster, "t", broker).of_a_broker(), "t", 1)
                said.append([_of_any_broker(line, broker) for line in lines])
                await cluster.delete("t")
            assert_alike(*said)

    asyncio.run(scenario())


def _of_any_broker(line: str, broker: int) -> str:
    """Without its number, its port, and what it supports."""
    line = re.sub(rf"\b{broker}\b", "ID", line)
    return re.sub(r"port=\d+", "port=PORT", re.sub(r"features=\[.*?\], rack", "features, rack", line))
