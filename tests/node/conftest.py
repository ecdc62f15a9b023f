"""A whole node inside the test process, on a thread and a loop of its own, and a client to talk to it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.world import World, system_world
from service.client.blocking_client import BlockingClient
from service.config.settings import BrokerConfig
from service.node.node import Node
from service.node.supervisor import Supervisor
from service.records.builder import BatchBuilder
from service.wire.api import ApiKey, request_module
from tests.support.processes import wait_until
from tests.support.world import ShiftedClock

# Nodes believe that it is years later: a test whose data gets too old one day fails today.
YEARS_LATER_MS = 3 * 365 * 86_400_000
BRISK = {
    "log.retention.check.interval.ms": "100",
    "remote.log.manager.task.interval.ms": "100",
    "log.retention.ms": "-1",
}


class NodeThread:
    """`Node` as `run_server` runs it, without signals: `stop` is what SIGTERM does."""

    def __init__(
        self, directory: Path, world: World | None = None, open_files: int | None = None, **settings: str
    ) -> None:
        self._world = world or system_world(ShiftedClock(time.time_ns() // 1_000_000 + YEARS_LATER_MS))
        self._open_files = open_files
        self.data = directory
        self.settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory),
            "firn.disk.watermarks.enable": "false",  # how full this machine's disk is decides nothing
            **BRISK,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        self.failure: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="node")

    def start(self) -> NodeThread:
        self._thread.start()
        self._ready.wait()
        if self.failure is not None:
            self.stop()
            raise self.failure
        return self

    async def _run(self) -> None:
        self._supervisor, self._loop = Supervisor(), asyncio.get_running_loop()
        self.node = node = Node(
            BrokerConfig.from_properties(self.settings),
            self._supervisor,
            self._world,
            open_files=self._open_files,
        )
        try:
            async with AsyncExitStack() as stack:
                await node.start(stack)
                self.host, self.port = node.parts.address
                self._ready.set()
                await self._supervisor.stopped()
        except Exception as e:
            self.failure = e
        finally:
            self._ready.set()
        self.failure = self.failure or self._supervisor.failure

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._supervisor.stop)
        self._thread.join()

    def client(self) -> BlockingClient:
        return BlockingClient(self.host, self.port, "test", timeout_s=20)


class Talk:
    """Requests in one line each, newest versions."""

    def __init__(self, client: BlockingClient) -> None:
        self.client = client

    def __call__(self, key: ApiKey, name: str, **fields: Any) -> Any:
        """``talk(ApiKey.METADATA, "MetadataRequest", topics=…)``"""
        return self.client.request(key, getattr(request_module(key), name)(**fields))

    def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        module = request_module(ApiKey.CREATE_TOPICS)
        topic = module.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            assignments=(),
            configs=tuple(
                module.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ),
        )
        return self(ApiKey.CREATE_TOPICS, "CreateTopicsRequest", topics=(topic,)).topics[0]

    def topic_id(self, name: str) -> Any:
        module = request_module(ApiKey.METADATA)
        topics = (module.MetadataRequestTopic(topic_id=None, name=name),)
        answer = self(
            ApiKey.METADATA,
            "MetadataRequest",
            topics=topics,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        return answer.topics[0].topic_id

    def produce(self, topic_id: Any, values: list[bytes], timestamp: int, partition: int = 0) -> Any:
        """One batch with one record per value, a millisecond apart; the partition's answer."""
        builder = BatchBuilder()
        for n, value in enumerate(values):
            builder.add(timestamp + n, None, value)
        module = request_module(ApiKey.PRODUCE)
        data = module.PartitionProduceData(index=partition, records=bytes(builder.build()))
        answer = self(
            ApiKey.PRODUCE,
            "ProduceRequest",
            transactional_id=None,
            acks=-1,
            timeout=1000,
            topic_data=(module.TopicProduceData(topic_id=topic_id, partition_data=(data,)),),
        )
        return answer.responses[0].partition_responses[0]

    def produce_in_the_end(
        self, topic_id: Any, values: list[bytes], timestamp: int, partition: int = 0
    ) -> Any:
        """Produce, again while the partition refuses records (KAFKA_STORAGE_ERROR)."""
        answers: list[Any] = []

        def taken() -> bool:
            answers.append(self.produce(topic_id, values, timestamp, partition))
            return bool(answers[-1].error_code != ErrorCode.kafka_storage_error)

        wait_until("the partition to take records", taken)
        return answers[-1]

    def fetch(self, topic_id: Any, offset: int, partition: int = 0, **fields: Any) -> Any:
        """One partition's answer, or the whole response where `whole=True`."""
        module = request_module(ApiKey.FETCH)
        of_partition = {"current_leader_epoch", "last_fetched_epoch", "partition_max_bytes"} & fields.keys()
        chosen = {"partition_max_bytes": 1 << 20, **{key: fields.pop(key) for key in of_partition}}
        whole = fields.pop("whole", False)
        asked = module.FetchPartition(partition=partition, fetch_offset=offset, **chosen)
        message = {
            "max_wait": 0,
            "min_bytes": 1,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            **fields,
        }
        topics = (module.FetchTopic(topic_id=topic_id, partitions=(asked,)),)
        answer = self(
            ApiKey.FETCH, "FetchRequest", topics=topics, forgotten_topics_data=(), rack_id="", **message
        )
        return answer if whole else answer.responses[0].partitions[0]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., NodeThread]]:
    """`start(world, **settings)` starts a node on the test's folder; what still runs is stopped."""
    nodes: list[NodeThread] = []

    def make(world: World | None = None, **settings: Any) -> NodeThread:
        node = NodeThread(tmp_path / "data", world, **settings)
        nodes.append(node)
        return node.start()

    yield make
    for node in nodes:
        node.stop()


@pytest.fixture
def talk(start: Callable[..., NodeThread]) -> Iterator[Talk]:
    """A client of a node without a cold tier."""
    with start().client() as client:
        yield Talk(client)
