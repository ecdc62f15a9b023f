"""Stage of a row of `bench.latency`: a node, its store, and helpers."""

from __future__ import annotations

import contextlib
import resource
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.faults import FaultProxy, fault_proxy
from tests.support.processes import Node, free_port, wait_until
from tests.support.stores import (
    Store,
    folder_store,
    moto_server,
    new_bucket,
    versitygw_binary,
    versitygw_server,
)
from tests.support.wire import RawConnection, schema

Act = Callable[[], "str | None"]
TOPIC = "innocent"
WIDE = 1000
BEGAN_MS = 1_700_000_000_000


class Stage:
    """A node, its store and the folder of both, for one row."""

    def __init__(self, folder: Path, row: Row, scale: float, beside: int, stack: ExitStack) -> None:
        """`beside`: partitions that are there beside what the row needs."""
        self.folder = folder
        self.scale = scale
        self.store: Store | None = None
        self.proxy: FaultProxy | None = None
        folder.mkdir(parents=True)
        self.open_files = _allow_open_files()
        if row.store == "folder":
            self.store = folder_store(folder / "bucket")
        elif row.store == "s3":
            server = versitygw_server if versitygw_binary() else moto_server
            endpoint = stack.enter_context(server(folder))
            self.proxy = stack.enter_context(fault_proxy(endpoint))
            self.store = new_bucket(endpoint, "latency").through(self.proxy.endpoint)
        http = f"127.0.0.1:{free_port()}"
        self.http = f"http://{http}"
        self.node = self._start("node", {"firn.http.listener": http}, row, stack)
        self.asked = self.node
        """whom the nasty thing is done to"""
        if row.is_apart:
            assert row.store == "folder"
            self.store = folder_store(folder / "bucket-apart")
            self.asked = self._start("apart", {}, row, stack)
        self.create([TOPIC], 1)
        self.beside = self._fill(beside)
        """topics that are there and of which nobody speaks, with their partitions"""

    def _start(self, name: str, settings: Mapping[str, str], row: Row, stack: ExitStack) -> Node:
        remote = self.store.node_settings if self.store is not None else {}
        env = self.store.env if self.store is not None else {}
        node = Node(self.folder / name, {**settings, **remote, **row.settings}, env)
        stack.callback(node.close)
        node.start()
        return node

    @property
    def bootstrap(self) -> str:
        return self.node.bootstrap

    def _fill(self, partitions: int) -> dict[str, int]:
        """Half of them in topics of a thousand, half in topics of their own."""
        made: dict[str, int] = {}
        wide, rest = divmod(partitions // 2, WIDE)
        for number in range(wide):
            self.create([f"wide-{number}"], WIDE)
            made[f"wide-{number}"] = WIDE
        names = [f"narrow-{number}" for number in range(rest + partitions - partitions // 2)]
        for at in range(0, len(names), WIDE):
            self.create(names[at : at + WIDE], 1)
        return made | dict.fromkeys(names, 1)

    def of(self, count: int) -> int:
        """`count` at the scale of this run."""
        return max(1, int(count * self.scale))

    def call(self, request: Any, seconds: float = 600) -> Any:
        with RawConnection(self.bootstrap, seconds) as connection:
            return connection.call(request)

    def send(self, frame: bytes, seconds: float = 600) -> bytes:
        with RawConnection(self.bootstrap, seconds) as connection:
            connection.send_frame(frame)
            return connection.receive_frame()

    def create(
        self, topics: Sequence[str], partitions: int, *, node: Node | None = None, **config: str
    ) -> None:
        """Nothing is deleted by age unless asked: the records are years old."""
        with RawConnection((node or self.node).bootstrap, 600) as connection:
            answer = connection.call(create_topics(topics, partitions, {"retention_ms": "-1", **config}))
        refused = [one for one in answer.topics if one.error_code != 0]
        assert not refused, refused[0]

    def alter(self, topic: str, **config: str) -> None:
        module = schema(44, 1)
        configs = tuple(
            module.AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
            for name, value in config.items()
        )
        resource = module.AlterConfigsResource(resource_type=2, resource_name=topic, configs=configs)
        answer = self.call(module.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False))
        assert answer.responses[0].error_code == 0, answer


class Row(NamedTuple):
    """One nasty thing."""

    what: str
    prepare: Callable[[Stage], Act]
    store: str = ""
    """"folder", "s3" (through a proxy that can fail), or none"""
    settings: Mapping[str, str] = {}
    most_times: float = 0.0
    """what the client's p99 may be at most, in times of its p99 before the act; 0: no such bound"""
    is_apart: bool = False
    """It is done to a second node, with a directory and a prefix of its own: what the client feels then any
    process on the machine would cause."""


def _allow_open_files() -> int:
    """Raise the limit of open files of this process, and so of the node, to 64,000 or more if allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, PermissionError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, 64_000), max(hard, 64_000)))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def create_topics(topics: Sequence[str], partitions: int, config: Mapping[str, str]) -> Any:
    module = schema(19, 7)
    configs = tuple(
        module.CreatableTopicConfig(name=name.replace("_", "."), value=value)
        for name, value in config.items()
    )
    made = tuple(
        module.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=configs
        )
        for name in topics
    )
    return module.CreateTopicsRequest(topics=made, timeout=timedelta(minutes=10), validate_only=False)


def produce_to_all(topic: str, partitions: Sequence[int], records: bytes) -> Any:
    module = schema(0, 9)
    parts = tuple(module.PartitionProduceData(index=index, records=records) for index in partitions)
    data = module.TopicProduceData(name=topic, partition_data=parts)
    return module.ProduceRequest(acks=1, timeout=timedelta(seconds=60), topic_data=(data,))


def produce_each(bootstrap: str, frames: Sequence[bytes], window: int = 50) -> None:
    """Sends `frames` over one connection, `window` of them under way, and checks nothing of the answers."""
    with RawConnection(bootstrap, 120) as connection:
        under_way = 0
        for at in range(0, len(frames), 10):
            some = frames[at : at + 10]
            connection.send(b"".join(struct.pack(">i", len(frame)) + frame for frame in some))
            under_way += len(some)
            while under_way > window:
                connection.receive_frame()
                under_way -= 1
        for _ in range(under_way):
            connection.receive_frame()


def read_cold(
    bootstrap: str, topic: str, partition: int, where: Sequence[int], patience_s: float = 60
) -> None:
    """Fetches at each offset of `where` until there are records."""
    module = schema(1, 12)
    with RawConnection(bootstrap, patience_s) as connection:
        for at in where:
            part = module.FetchPartition(
                partition=partition, fetch_offset=at, partition_max_bytes=1 << 20,
                current_leader_epoch=-1, log_start_offset=-1, last_fetched_epoch=-1,
            )  # fmt: skip
            request = module.FetchRequest(
                replica_id=-1, max_wait=timedelta(seconds=1), min_bytes=1, max_bytes=1 << 20,
                isolation_level=0, session_id=0, session_epoch=-1, forgotten_topics_data=(), rack_id="",
                topics=(module.FetchTopic(topic=topic, partitions=(part,)),),
            )  # fmt: skip

            answers: list[Any] = []

            def has_records(request: Any = request, answers: list[Any] = answers) -> bool:
                answers[:] = connection.call(request).responses[0].partitions
                return answers[0].error_code == 0 and bool(answers[0].records)

            try:
                wait_until(f"records of {topic}-{partition} at {at}", has_records, patience_s, every=0.01)
            except AssertionError as e:
                raise AssertionError(f"{e}; the last answer: {answers}") from None
