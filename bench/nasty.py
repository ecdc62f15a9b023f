"""Nasty acts of one peer that hold a node's loop, and so delay all others; each is a small function.

A row prepares what it needs on its `Stage` and returns the nasty act, which the bench calls while the
innocent client is measured. The act may return words for the table.
"""

from __future__ import annotations

import time
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from bench import load
from bench.stage import BEGAN_MS, TOPIC, Act, Stage, produce_each, produce_to_all
from tests.support.batches import ZSTD, batch, record
from tests.support.processes import wait_until
from tests.support.tiers import EARLIEST, offset
from tests.support.wire import RawConnection, encode_request, offsets, produce_request, schema


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


def create_wide(stage: Stage) -> Act:
    def act() -> None:
        stage.create(["nasty"], stage.of(1000))

    return act


def create_many(stage: Stage) -> Act:
    """Each with settings of its own; a node carries as many partitions as it may have open files for."""
    names = [f"nasty-{number}" for number in range(stage.of(2000))]

    def act() -> None:
        stage.create(names, 1)

    return act


def delete_many(stage: Stage) -> Act:
    names = [name for name, partitions in stage.beside.items() if partitions == 1][: stage.of(3000)]
    module = schema(20, 6)
    topics = tuple(module.DeleteTopicState(name=name, topic_id=None) for name in names)
    frame = encode_request(module.DeleteTopicsRequest(topics=topics, timeout=timedelta(minutes=10)))

    def act() -> None:
        stage.send(frame)
        time.sleep(3)

    return act


def alter_many(stage: Stage) -> Act:
    """Two settings of each topic."""
    module = schema(44, 1)
    frames = []
    for value in ("3600000", "7200000"):
        configs = tuple(
            module.AlterableConfig(name=name, config_operation=0, value=value)
            for name in ("retention.ms", "segment.ms")
        )
        resources = tuple(
            module.AlterConfigsResource(resource_type=2, resource_name=name, configs=configs)
            for name in sorted(stage.beside)[: stage.of(5000)]
        )
        request = module.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
        frames.append(encode_request(request))

    def act() -> None:
        for frame in frames:
            stage.send(frame)

    return act


def alter_broker(stage: Stage) -> Act:
    """A setting of all brokers, under which each topic is looked at, and changed."""
    module = schema(44, 1)

    def act() -> None:
        for value in ("3600000", "7200000"):
            change = module.AlterableConfig(name="log.roll.ms", config_operation=0, value=value)
            everybody = module.AlterConfigsResource(resource_type=4, resource_name="", configs=(change,))
            request = module.IncrementalAlterConfigsRequest(resources=(everybody,), validate_only=False)
            answer = stage.call(request)
            assert answer.responses[0].error_code == 0, answer

    return act


def snapshots(stage: Stage) -> Act:
    """Each change of the metadata is followed by a snapshot of all of it."""

    def act() -> None:
        for number in range(10):
            stage.alter(TOPIC, segment_ms=str(1 << 30 | number))
            time.sleep(0.5)

    return act


def metadata_of_all(stage: Stage) -> Act:
    module = schema(3, 12)
    request = module.MetadataRequest(
        topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )

    def act() -> str:
        with RawConnection(stage.bootstrap, 60) as connection:
            for _ in range(10):
                connection.send_frame(encode_request(request))
                answer = connection.receive_frame()
        return f"{len(answer) / 1e6:.1f} MB, 10 times"

    return act


def produce_many(stage: Stage) -> Act:
    """A record for each of 100,000 partitions, of which those beside are there."""
    frame = encode_request(produce_to_topics(stage, batch([bytes(30)])))

    def act() -> str:
        for _ in range(2):
            stage.send(frame)
        return f"{len(frame) / 1e6:.0f} MB, twice"

    return act


def produce_to_topics(stage: Stage, records: bytes) -> Any:
    module = schema(0, 9)
    data = []
    for name, indices in asked_of(stage):
        parts = tuple(module.PartitionProduceData(index=index, records=records) for index in indices)
        data.append(module.TopicProduceData(name=name, partition_data=parts))
    return module.ProduceRequest(acks=1, timeout=timedelta(seconds=60), topic_data=tuple(data))


def asked_of(stage: Stage) -> Sequence[tuple[str, range]]:
    """100,000 partitions by topic: those that are there, and more of the first topic than there are."""
    beside = sorted(stage.beside.items())
    more = max(stage.of(100_000) - sum(stage.beside.values()), 0)
    return [(name, range(count)) for name, count in beside] + [("nowhere", range(more))]


def fetch_many(stage: Stage) -> Act:
    module = schema(1, 12)
    topics = tuple(
        module.FetchTopic(
            topic=name,
            partitions=tuple(
                module.FetchPartition(
                    partition=index, fetch_offset=0, partition_max_bytes=1 << 10,
                    current_leader_epoch=-1, log_start_offset=-1, last_fetched_epoch=-1,
                )
                for index in indices
            ),
        )
        for name, indices in asked_of(stage)
    )  # fmt: skip
    stage.send(encode_request(produce_to_topics(stage, batch([bytes(30)]))))
    frames = [
        encode_request(
            module.FetchRequest(
                replica_id=-1, max_wait=timedelta(0), min_bytes=1, max_bytes=50 << 20, isolation_level=0,
                session_id=0, session_epoch=epoch, forgotten_topics_data=(), rack_id="", topics=topics,
            )
        )
        for epoch in (-1, 0)
    ]  # fmt: skip

    def act() -> str:
        sizes = [len(stage.send(frame)) / 1e6 for frame in frames]
        return f"{sizes[0]:.0f} MB, twice"

    return act


def scrape(stage: Stage) -> Act:
    """`/metrics` with a line for each partition."""

    def act() -> str:
        size = 0
        for _ in range(3):
            with urllib.request.urlopen(stage.http + "/metrics", timeout=60) as answer:
                size = len(answer.read())
            time.sleep(1.1)  # what is younger than a second is not made again
        return f"{size / 1e6:.1f} MB, 3 times"

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


def recompression(codec: str) -> Callable[[Stage], Act]:
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
