"""The work of one request is bounded, and long requests do not delay others."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from service.base.threads import Condition, Lock, SystemThreads
from service.base.turn_queues import SliceQueue
from service.records.batch import CompressionType, compute_crc
from service.records.decode import iter_records
from service.wire.api import ApiKey, decode_response, encode_request, request_module
from tests.node.conftest import NodeThread, Talk
from tests.support.built_batches import build_batch
from tests.support.world import make_world

NOW_MS = SystemClock().now_ms()
MIB = 1 << 20


class Gate(Executor):
    """A pool whose jobs wait until they are let through."""

    def __init__(self, inner: Executor, threads: GatedThreads) -> None:
        self._inner, self._threads = inner, threads

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._threads.arrived.release()

        def call() -> Any:
            assert self._threads.open.wait(60)
            return fn(*args, **kwargs)

        return self._inner.submit(call)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.open.set()
        self._inner.shutdown(wait, cancel_futures=cancel_futures)


class GatedThreads:
    """This machine's threads, with one pool behind a gate."""

    def __init__(self, gated: str) -> None:
        self._inner, self._gated = SystemThreads(), gated
        self.arrived = threading.Semaphore(0)
        self.open = threading.Event()

    def pool(self, name: str, size: int, *, nice: int = 0) -> Executor:
        pool = self._inner.pool(name, size, nice=nice)
        return Gate(pool, self) if name == self._gated else pool

    def lock(self) -> Lock:
        return self._inner.lock()

    def condition(self) -> Condition:
        return self._inner.condition()

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


def gated(start: Callable[..., NodeThread], pool: str, **settings: str) -> tuple[NodeThread, GatedThreads]:
    threads = GatedThreads(pool)
    return start(replace(make_world(SystemClock()), threads=threads), **settings), threads


@pytest.fixture
def records_gate(start: Callable[..., NodeThread]) -> Iterator[tuple[NodeThread, GatedThreads]]:
    node, threads = gated(start, "records")
    yield node, threads
    threads.open.set()


class Sent:
    """Requests on a connection of their own, whose answers are read when they are asked for."""

    def __init__(self, node: NodeThread) -> None:
        self._socket = socket.create_connection((node.host, node.port), 60)
        self._asked: list[tuple[int, int]] = []

    def __enter__(self) -> Sent:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, key: ApiKey, version: int, message: Any) -> None:
        self._asked.append((key, version))
        self.send_bytes(encode_request(key, version, len(self._asked), "nasty", message))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> Any:
        key, version = self._asked.pop(0)
        return decode_response(key, version, self.answer_bytes())[1]

    def answer_bytes(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "the node closed the connection"
            data += piece
        return data


def produce(topic_id: Any, *batches: bytes) -> Any:
    module = request_module(ApiKey.PRODUCE)
    data = tuple(module.PartitionProduceData(index=n, records=one) for n, one in enumerate(batches))
    topic = module.TopicProduceData(topic_id=topic_id, partition_data=data)
    return module.ProduceRequest(transactional_id=None, acks=1, timeout=1000, topic_data=(topic,))


def zeros(size: int, codec: CompressionType = CompressionType.ZSTD) -> bytes:
    """A small batch whose one record is large."""
    return bytes(build_batch([(NOW_MS, None, bytes(size))], codec=codec))


def numbered(sequence: int, size: int) -> bytes:
    """A batch of an idempotent producer."""
    batch = bytearray(zeros(size))
    struct.pack_into(">qhi", batch, 43, 7, 0, sequence)
    struct.pack_into(">I", batch, 17, compute_crc(batch, 0, len(batch)))
    return bytes(batch)


def codes(answer: Any) -> list[ErrorCode]:
    return [one.error_code for topic in answer.responses for one in topic.partition_responses]


OK, TOO_LARGE = ErrorCode.none, ErrorCode.message_too_large


@pytest.mark.parametrize("codec", list(CompressionType)[1:], ids=lambda codec: codec.name.lower())
def test_the_batches_of_a_request_inflate_to_so_much_and_those_beyond_are_refused(
    start: Callable[..., NodeThread], codec: CompressionType
) -> None:
    node = start(firn_max_inflated_batch_bytes=str(4 * MIB), firn_max_inflated_request_bytes=str(8 * MIB))
    with node.client() as client:
        talk = Talk(client)
        talk.create("t", partitions=6)
        topic_id = talk.topic_id("t")
        small, plain = zeros(10, codec), zeros(10, CompressionType.NONE)
        bombs = [zeros(3 * MIB, codec)] * 3
        answer = client.request(ApiKey.PRODUCE, produce(topic_id, small, *bombs, small, plain))
        # What is left for the third is less than it takes, and nothing after it.
        assert codes(answer) == [OK, OK, OK, TOO_LARGE, TOO_LARGE, OK]
        assert codes(client.request(ApiKey.PRODUCE, produce(topic_id, *bombs[:2]))) == [OK, OK]
        assert codes(client.request(ApiKey.PRODUCE, produce(topic_id, zeros(5 * MIB, codec)))) == [TOO_LARGE]


def test_while_a_large_batch_is_looked_at_others_are_served_and_its_connection_keeps_its_order(
    records_gate: tuple[NodeThread, GatedThreads],
) -> None:
    node, threads = records_gate
    with node.client() as client, Sent(node) as nasty:
        talk = Talk(client)
        talk.create("t")
        topic_id = talk.topic_id("t")
        for n in range(3):
            nasty.send(ApiKey.PRODUCE, 13, produce(topic_id, numbered(n, 5 * MIB if n == 0 else 1)))
        assert threads.arrived.acquire(timeout=60)
        assert talk.produce(topic_id, [b"meanwhile"], NOW_MS).base_offset == 0
        threads.open.set()
        answers = [nasty.answer().responses[0].partition_responses[0] for _ in range(3)]
    assert [(one.error_code, one.base_offset) for one in answers] == [(OK, 1), (OK, 2), (OK, 3)]


def test_recompression_is_left_to_a_thread_where_it_takes_long(
    records_gate: tuple[NodeThread, GatedThreads],
) -> None:
    node, threads = records_gate
    with node.client() as client, Sent(node) as nasty:
        talk = Talk(client)
        talk.create("t", compression_type="gzip")
        topic_id = talk.topic_id("t")
        assert talk.produce(topic_id, [b"small"], NOW_MS).base_offset == 0
        nasty.send(ApiKey.PRODUCE, 13, produce(topic_id, zeros(MIB // 2, CompressionType.NONE)))
        assert threads.arrived.acquire(timeout=60)
        assert talk.produce(topic_id, [b"small"], NOW_MS).base_offset == 1
        threads.open.set()
        assert nasty.answer().responses[0].partition_responses[0].base_offset == 2
        stored = talk.fetch(topic_id, 2).records
        assert len(stored) < 2000
        assert [len(one.value or b"") for one in iter_records(stored)] == [MIB // 2]


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_batch_is_not_appended_to_what_came_where_its_partition_was(
    records_gate: tuple[NodeThread, GatedThreads], is_made_again: bool
) -> None:
    node, threads = records_gate
    with node.client() as client, Sent(node) as nasty:
        talk = Talk(client)
        talk.create("t")
        # By name, as clients did before topics had ids.
        batch = zeros(5 * MIB)
        body = struct.pack(">hhihhhii", 0, 8, 1, -1, -1, 1, 1000, 1)
        body += struct.pack(">h", 1) + b"t" + struct.pack(">iii", 1, 0, len(batch)) + batch
        nasty.send_bytes(struct.pack(">i", len(body)) + body)
        assert threads.arrived.acquire(timeout=60)
        module = request_module(ApiKey.DELETE_TOPICS)
        topics = (module.DeleteTopicState(name="t", topic_id=None),)
        talk(ApiKey.DELETE_TOPICS, "DeleteTopicsRequest", topics=topics, timeout=1000)
        if is_made_again:
            talk.create("t")
        threads.open.set()
        answer = nasty.answer_bytes()
        # correlation id, topics, "t", partitions, index, error code
        (error,) = struct.unpack_from(">h", answer, 4 + 4 + 3 + 4 + 4)
        expected = ErrorCode.not_leader_or_follower if is_made_again else ErrorCode.unknown_topic_or_partition
        assert error == expected
        if is_made_again:
            assert talk.produce(talk.topic_id("t"), [b"first"], NOW_MS).base_offset == 0


def test_a_search_by_time_delays_no_other_request(start: Callable[..., NodeThread]) -> None:
    node, threads = gated(start, "search")
    module = request_module(ApiKey.LIST_OFFSETS)

    def ask(timestamp: int) -> Any:
        one = module.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
        topic = module.ListOffsetsTopic(name="t", partitions=(one,))
        return module.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=(topic,), timeout=60_000)

    with node.client() as client, Sent(node) as nasty:
        talk = Talk(client)
        talk.create("t")
        topic_id = talk.topic_id("t")
        talk.produce(topic_id, [b"x"] * 100, NOW_MS)
        for timestamp in (NOW_MS + 70, -3, -1):
            nasty.send(ApiKey.LIST_OFFSETS, 10, ask(timestamp))
        assert threads.arrived.acquire(timeout=60)
        assert talk.produce(topic_id, [b"y"], NOW_MS).base_offset == 100
        assert client.request(ApiKey.LIST_OFFSETS, ask(-1)).topics[0].partitions[0].offset == 101
        threads.open.set()
        found = [nasty.answer().topics[0].partitions[0] for _ in range(3)]
    assert [(one.error_code, one.offset, one.timestamp) for one in found] == [
        (OK, 70, NOW_MS + 70),
        (OK, 99, NOW_MS + 99),
        (OK, 101, -1),
    ]


def many_partitions(count: int) -> dict[ApiKey, Any]:
    """Requests that name so many partitions."""
    offsets, epochs = request_module(ApiKey.LIST_OFFSETS), request_module(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    asked = tuple(
        offsets.ListOffsetsPartition(partition_index=n, current_leader_epoch=-1, timestamp=-1)
        for n in range(count)
    )
    ends = tuple(
        epochs.OffsetForLeaderPartition(partition=n, current_leader_epoch=-1, leader_epoch=0)
        for n in range(count)
    )
    return {
        ApiKey.LIST_OFFSETS: offsets.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=(offsets.ListOffsetsTopic(name="t", partitions=asked),),
            timeout=60_000,
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: epochs.OffsetForLeaderEpochRequest(
            replica_id=-1, topics=(epochs.OffsetForLeaderTopic(topic="t", partitions=ends),)
        ),
    }


@pytest.mark.parametrize("key", [ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH])
def test_a_request_of_many_partitions_is_answered_for_each_of_them(talk: Talk, key: ApiKey) -> None:
    talk.create("t", partitions=2)
    answer = talk.client.request(key, many_partitions(20_000)[key])
    partitions = [one.error_code for topic in answer.topics for one in topic.partitions]
    assert partitions == [OK] * 2 + [ErrorCode.unknown_topic_or_partition] * 19_998


def test_a_produce_request_of_many_partitions_is_answered_for_each_of_them(talk: Talk) -> None:
    talk.create("t", partitions=2)
    batch = zeros(1, CompressionType.NONE)
    answer = talk.client.request(ApiKey.PRODUCE, produce(talk.topic_id("t"), *[batch] * 3000))
    assert codes(answer) == [OK] * 2 + [ErrorCode.unknown_topic_or_partition] * 2998


def test_a_partition_named_twice_in_list_offsets_is_refused_twice(talk: Talk) -> None:
    talk.create("t")
    request = many_partitions(1)[ApiKey.LIST_OFFSETS]
    topic = request.topics[0]
    twice = replace(request, topics=(replace(topic, partitions=topic.partitions * 2),))
    answer = talk.client.request(ApiKey.LIST_OFFSETS, twice)
    assert [one.error_code for one in answer.topics[0].partitions] == [ErrorCode.invalid_request] * 2


def test_settings_of_a_topic_that_is_named_often_are_told_as_often(talk: Talk) -> None:
    talk.create("t", retention_ms="1000")
    module = request_module(ApiKey.DESCRIBE_CONFIGS)

    def described(names: list[str]) -> list[Any]:
        resources = tuple(
            module.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
            for name in names
        )
        answer = talk(
            ApiKey.DESCRIBE_CONFIGS,
            "DescribeConfigsRequest",
            resources=resources,
            include_synonyms=True,
            include_documentation=False,
        )
        return list(answer.results)

    def retention(result: Any) -> str:
        return str(next(one.value for one in result.configs if one.name == "retention.ms"))

    one = described(["t"])[0]
    assert retention(one) == "1000"
    assert described(["t"] * 3000) == [one] * 3000
    alter = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    for kind, name, key, value in ((2, "t", "retention.ms", "2000"), (4, "", "log.retention.ms", "77")):
        config = alter.AlterableConfig(name=key, config_operation=0, value=value)
        resource = alter.AlterConfigsResource(resource_type=kind, resource_name=name, configs=(config,))
        talk(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            "IncrementalAlterConfigsRequest",
            resources=(resource,),
            validate_only=False,
        )
    after = described(["t"])[0]
    assert retention(after) == "2000"
    assert "77" in [synonym.value for entry in after.configs for synonym in entry.synonyms]


def test_changed_topic_metadata_is_encoded_again(talk: Talk) -> None:
    def topics() -> list[tuple[str, Any, int]]:
        answer = talk(
            ApiKey.METADATA,
            "MetadataRequest",
            topics=None,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        return sorted((one.name, one.topic_id, len(one.partitions)) for one in answer.topics)

    talk.create("a", partitions=20)
    before = topics()
    assert topics() == before
    module = request_module(ApiKey.DELETE_TOPICS)
    talk(
        ApiKey.DELETE_TOPICS,
        "DeleteTopicsRequest",
        topics=(module.DeleteTopicState(name="a", topic_id=None),),
        timeout=1000,
    )
    assert topics() == []
    talk.create("a", partitions=3)
    ((name, topic_id, partitions),) = topics()
    assert (name, partitions) == ("a", 3)
    assert topic_id != before[0][1]


def test_pages_of_topics_come_in_order_of_their_names(talk: Talk) -> None:
    module = request_module(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    names = [f"t{n}" for n in range(5000, 0, -1)]
    talk.create("t77", partitions=3)

    def ask(limit: int, cursor: Any = None) -> Any:
        return talk(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            "DescribeTopicPartitionsRequest",
            topics=tuple(module.TopicRequest(name=name) for name in names + names[:9]),
            response_partition_limit=limit,
            cursor=cursor,
        )

    first = ask(2)
    assert [one.name for one in first.topics] == sorted(names)[: sorted(names).index("t77") + 1]
    cursor = module.Cursor(topic_name="t77", partition_index=first.next_cursor.partition_index)
    rest = ask(2, cursor)
    assert [one.name for one in rest.topics] == sorted(names)[sorted(names).index("t77") :]
    assert [one.partition_index for one in rest.topics[0].partitions] == [2]
    outside = ask(2, module.Cursor(topic_name="nobody", partition_index=0))
    assert {one.error_code for one in outside.topics} == {ErrorCode.invalid_request}


def test_more_than_an_operation_may_write_is_refused_resource_by_resource(talk: Talk) -> None:
    alter, delete = (
        request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS),
        request_module(ApiKey.DELETE_TOPICS),
    )
    talk.create("t0")
    names = [f"t{n}" for n in range(10_001)]
    config = alter.AlterableConfig(name="retention.ms", config_operation=0, value="1")
    altered = talk(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        "IncrementalAlterConfigsRequest",
        resources=tuple(
            alter.AlterConfigsResource(resource_type=2, resource_name=name, configs=(config,))
            for name in names
        ),
        validate_only=False,
    )
    assert {one.error_code for one in altered.responses} == {ErrorCode.policy_violation}
    assert [one.resource_name for one in altered.responses] == names
    deleted = talk(
        ApiKey.DELETE_TOPICS,
        "DeleteTopicsRequest",
        topics=tuple(delete.DeleteTopicState(name=name, topic_id=None) for name in names),
        timeout=1000,
    )
    assert {one.error_code for one in deleted.responses} == {ErrorCode.policy_violation}
    assert talk.topic_id("t0") is not None


@pytest.mark.parametrize("what", ["DeleteRecords", "ListOffsets"])
def test_an_answer_about_many_topics_is_put_together_in_slices(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Each topic of an answer is a step, as each partition is."""
    steps = 0
    is_over = SliceQueue.is_over

    def note(queue: SliceQueue) -> bool:
        nonlocal steps
        steps += 1
        return is_over(queue)

    monkeypatch.setattr(SliceQueue, "is_over", note)
    count = 3000
    module = request_module(ApiKey.DELETE_RECORDS if what == "DeleteRecords" else ApiKey.LIST_OFFSETS)
    place = {"offset": 0} if what == "DeleteRecords" else {"timestamp": -1, "current_leader_epoch": -1}
    fields: dict[str, Any] = {"timeout": timedelta(seconds=20)}
    if what == "ListOffsets":
        fields |= {"replica_id": -1, "isolation_level": 0}
    key = ApiKey.DELETE_RECORDS if what == "DeleteRecords" else ApiKey.LIST_OFFSETS

    def steps_for(names: Sequence[str], partitions: int) -> int:
        before = steps
        topics = tuple(
            getattr(module, f"{what}Topic")(
                name=name,
                partitions=tuple(
                    getattr(module, f"{what}Partition")(partition_index=index, **place)
                    for index in range(partitions)
                ),
            )
            for name in names
        )
        answer = talk(key, f"{what}Request", topics=topics, **fields)
        assert len(answer.topics) == len(names)
        return steps - before

    of_one = steps_for(["none"], count)
    assert of_one >= count - 100  # a step right after `next_turn` does not ask
    assert steps_for([f"none-{number}" for number in range(count)], 1) >= of_one + count - 100
