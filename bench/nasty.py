"""What one peer, the disk or the store can do to all others of a node: each a small function.

A row prepares what it needs on its `Stage` and returns the nasty act, which the bench calls while the
innocent client is measured. The act may return words for the table.
"""

from __future__ import annotations

import contextlib
import resource
import struct
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from bench import load
from tests.support.batches import ZSTD, batch, record
from tests.support.faults import Fault, FaultProxy, fault_proxy
from tests.support.processes import Node, free_port, wait_until
from tests.support.stores import (
    Store,
    folder_store,
    moto_server,
    new_bucket,
    versitygw_binary,
    versitygw_server,
)
from tests.support.tiers import EARLIEST, EARLIEST_LOCAL, offset
from tests.support.wire import RawConnection, encode_request, offsets, produce_request, schema

Act = Callable[[], "str | None"]
TOPIC = "innocent"
BEGAN_MS = 1_700_000_000_000
BRISK = {
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "500",
}


class Stage:
    """A node, its store and the folder of both, for one row."""

    def __init__(self, folder: Path, row: Row, scale: float, stack: ExitStack) -> None:
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
        remote = self.store.node_settings if self.store is not None else {}
        http = f"127.0.0.1:{free_port()}"
        self.http = f"http://{http}"
        self.node = Node(
            folder / "node",
            {**BRISK, "firn.http.listener": http, **remote, **row.settings},
            self.store.env if self.store else {},
        )
        stack.callback(self.node.close)
        self.node.start()
        self.create([TOPIC], 1)

    @property
    def bootstrap(self) -> str:
        return self.node.bootstrap

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

    def create(self, topics: Sequence[str], partitions: int, **config: str) -> None:
        """Nothing is deleted by age unless asked: the records are years old."""
        answer = self.call(create_topics(topics, partitions, {"retention_ms": "-1", **config}))
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


def _allow_open_files() -> int:
    """As many as the machine lets this process, and so the node, have: 64,000 where it may ask for more."""
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


# -- the loop


def nothing(stage: Stage) -> Act:
    def act() -> str | None:
        time.sleep(5)
        return None

    return act


def inflation(stage: Stage) -> Act:
    partitions = stage.of(200)
    stage.create(["inflated"], partitions)
    records = batch([bytes(60 << 20)], codec=ZSTD)
    frame = encode_request(produce_to_all("inflated", range(partitions), records))

    def act() -> str:
        stage.send(frame)
        return f"{len(frame) // 1000} KB"

    return act


def create_many(stage: Stage) -> Act:
    partitions = stage.of(1000)
    # A node carries as many partitions as it may have open files for: a quarter of those.
    topics = min(8, stage.open_files // 4 // partitions - 2)
    for number in range(topics):
        stage.create([f"beside-{number}"], partitions)

    def act() -> str:
        stage.create(["nasty"], partitions)
        return f"{partitions} beside {topics * partitions}"

    return act


def describe_configs(stage: Stage) -> Act:
    module = schema(32, 4)
    resource = module.DescribeConfigsResource(resource_type=2, resource_name=TOPIC, configuration_keys=None)
    request = module.DescribeConfigsRequest(
        resources=(resource,) * stage.of(20_000), include_synonyms=True, include_documentation=False
    )
    frame = encode_request(request)

    def act() -> str:
        return f"{len(stage.send(frame)) / 1e6:.0f} MB"

    return act


def list_offsets(stage: Stage) -> Act:
    module = schema(2, 9)
    stage.create(["listed"], 100)
    parts = tuple(
        module.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-1)
        for index in range(stage.of(100_000))
    )
    request = module.ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=(module.ListOffsetsTopic(name="listed", partitions=parts),)
    )
    frame = encode_request(request)

    def act() -> None:
        stage.send(frame)

    return act


def time_in_batch(stage: Stage) -> Act:
    stage.create(["timed"], 1, max_message_bytes=str(8 << 20))
    count = stage.of(100_000)
    payload = b"".join(record(delta, b"", None, delta) for delta in range(count))
    records = batch(
        payload=payload, count=count, last_offset_delta=count - 1, max_timestamp=BEGAN_MS + count - 1
    )
    answer = stage.call(produce_request("timed", 0, records)).responses[0].partition_responses[0]
    assert answer.error_code == 0, answer

    def act() -> None:
        with RawConnection(stage.bootstrap, 60) as connection:
            for _ in range(5):
                found = offsets(connection, "timed", 0, BEGAN_MS + count - 1)
                assert found.offset == count - 1, found

    return act


def equal_times(stage: Stage) -> Act:
    stage.create(["equal"], 1)
    load.produce_single_records(stage.bootstrap, "equal", stage.of(200_000))
    end = stage.call(produce_request("equal", 0, batch([b""], base_timestamp=BEGAN_MS + 1)))
    last = end.responses[0].partition_responses[0].base_offset

    def act() -> None:
        with RawConnection(stage.bootstrap, 60) as connection:
            found = offsets(connection, "equal", 0, BEGAN_MS + 1)
            assert found.offset == last, found

    return act


def roll_with_producers(stage: Stage) -> Act:
    stage.create(["rolled"], 1)
    frames = [
        encode_request(
            produce_request(
                "rolled", 0, batch([b""], producer_id=1000 + number, producer_epoch=0, base_sequence=0)
            )
        )
        for number in range(stage.of(100_000))
    ]
    produce_each(stage.bootstrap, frames)

    def act() -> None:
        stage.alter("rolled", segment_bytes=str(1 << 20))
        for _ in range(3):
            stage.call(produce_request("rolled", 0, batch([b"x"])))

    return act


def retention(stage: Stage) -> Act:
    segments = stage.of(3000)
    stage.create(["old"], 1, internal_segment_bytes="100")
    produce_each(stage.bootstrap, [encode_request(produce_request("old", 0, batch([bytes(30)])))] * segments)

    def act() -> str:
        stage.alter("old", retention_bytes="1")
        wait_until(
            "retention", lambda: offset(stage.bootstrap, "old", 0, EARLIEST) >= segments - 2, seconds=60
        )
        time.sleep(1.5)
        return f"{segments} segments"

    return act


def _recompression(codec: str) -> Callable[[Stage], Act]:
    def prepare(stage: Stage) -> Act:
        stage.create(["recompressed"], 1, compression_type=codec)
        values = [uuid.uuid4().hex.encode() * 31 for _ in range(900)]
        frame = encode_request(produce_request("recompressed", 0, batch(values)))
        number = stage.of(50)

        def act() -> str:
            started = time.monotonic()
            produce_each(stage.bootstrap, [frame] * number, window=4)
            return f"{len(frame) * number / 1e6 / (time.monotonic() - started):.0f} MB/s"

        return act

    return prepare


# -- the store


def store_denied(stage: Stage) -> Act:
    assert stage.proxy is not None
    partitions, segments = stage.of(500), 15
    stage.create(["kept"], partitions, remote_storage_enable="true", internal_segment_bytes="100")
    stage.proxy.mode = Fault.UNKNOWN_KEY
    wait_until("appends", lambda: _all_taken(stage, partitions), seconds=120, every=0.5)
    for _ in range(segments):
        assert _all_taken(stage, partitions)

    def act() -> None:
        time.sleep(10)

    return act


def _all_taken(stage: Stage, partitions: int) -> bool:
    answer = stage.call(produce_to_all("kept", range(partitions), batch([bytes(30)])))
    return all(one.error_code == 0 for one in answer.responses[0].partition_responses)


def sweep(stage: Stage) -> Act:
    assert stage.store is not None
    topics = stage.of(4000)
    for at in range(0, topics, 500):
        stage.create(
            [f"swept-{n}" for n in range(at, min(at + 500, topics))], 1, remote_storage_enable="true"
        )
    root = stage.folder / "bucket" / "data"
    for _ in range(stage.of(20)):
        folder = root / str(uuid.uuid4()) / "0"
        folder.mkdir(parents=True)
        for number in range(1000):
            (folder / f"{number:020}-{number:020}-{1:010}-{uuid.uuid4()}.seg").touch()

    def act() -> str:
        time.sleep(13)
        return "every 10 s"

    return act


def manifests(stage: Stage) -> Act:
    """A thousand segments of a partition in the bucket, read by a node that has no manifest yet."""
    segments, partitions = stage.of(1000), 1
    stage.create(
        ["archived"], partitions, remote_storage_enable="true", internal_segment_bytes="100",
        local_retention_bytes="1",
    )  # fmt: skip
    frame = encode_request(produce_to_all("archived", range(partitions), batch([bytes(30)])))
    produce_each(stage.bootstrap, [frame] * segments)
    wait_until(
        "offload",
        lambda: all(
            offset(stage.bootstrap, "archived", one, EARLIEST_LOCAL) >= segments - 2
            for one in range(partitions)
        ),
        seconds=900,
        every=1,
    )
    stage.node.restart()

    def act() -> None:
        for partition in range(partitions):
            read_cold(stage.bootstrap, "archived", partition, [0, segments // 2, segments - 3])

    return act


def dead_connection(stage: Stage) -> Act:
    assert stage.proxy is not None
    stage.create(
        ["archived"],
        1,
        remote_storage_enable="true",
        segment_bytes=str(1 << 20),
        local_retention_bytes="1",
    )
    load.fill(stage.bootstrap, "archived", 5)
    wait_until("offload", lambda: offset(stage.bootstrap, "archived", 0, EARLIEST_LOCAL) > 1000, seconds=60)
    stage.node.restart()
    proxy = stage.proxy

    def act() -> str:
        # The connection of the first read says nothing more; those that come after it work.
        hung = iter(range(1))
        proxy.mode = Fault.HANG
        proxy.plan = lambda seen: (
            Fault.HANG if seen.method == "GET" and next(hung, None) is not None else Fault.PASS
        )
        started = time.monotonic()
        try:
            read_cold(stage.bootstrap, "archived", 0, [0], patience_s=130)
        except AssertionError:
            return "no answer to the read in 130 s"
        finally:
            proxy.plan, proxy.mode = None, Fault.PASS
        return f"the read took {time.monotonic() - started:.1f} s"

    return act


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

            def has_records(request: Any = request) -> bool:
                answer = connection.call(request).responses[0].partitions[0]
                return answer.error_code == 0 and bool(answer.records)

            wait_until(f"records of {topic}-{partition} at {at}", has_records, patience_s, every=0.01)


ROWS: Mapping[str, Row] = {
    "nothing": Row("nothing", nothing),
    "inflation": Row("one Produce of 200 zstd batches, 60 MiB each", inflation),
    "create-topics": Row("CreateTopics, 1,000 partitions beside 8,000", create_many),
    "describe-configs": Row("DescribeConfigs, 20,000 times one topic", describe_configs),
    "list-offsets": Row("ListOffsets, 100,000 partitions", list_offsets),
    "time-in-batch": Row("ListOffsets by time, a batch of 100,000 records", time_in_batch),
    "equal-times": Row("ListOffsets by time, 200,000 equal ones", equal_times),
    "roll": Row("roll with 100,000 producers", roll_with_producers),
    "retention": Row("retention, 3,000 segments looked at and deleted", retention),
    "gzip": Row("compression.type=gzip, batches of 900 KB", _recompression("gzip")),
    "lz4": Row("compression.type=lz4, batches of 900 KB", _recompression("lz4")),
    "store-denied": Row("403 of the store, 500 partitions of 15 segments", store_denied, "s3"),
    "sweep": Row("sweep with 4,000 topics", sweep, "folder", {"firn.remote.object.grace.ms": "1000"}),
    "manifests": Row("first cold reads behind 1,000 segments", manifests, "folder"),
    "dead-connection": Row("a cold connection that died silently", dead_connection, "s3"),
}
