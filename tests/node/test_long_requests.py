"""Long requests: one at a time in memory, as bytes until then, and none for a peer that has gone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from service.base import slices
from service.base.clock import SystemClock
from service.client.blocking_client import BlockingClient
from service.serving.decode_budget import DecodeBudget
from service.wire.api import APIS, ApiKey, encode_request, request_module
from tests.node.conftest import NodeThread, Talk
from tests.support.built_batches import build_batch
from tests.support.processes import wait_until

FEW, MANY = 6_000, 30_000
ROOM = 8 << 20


def list_offsets(partitions: int) -> bytes:
    module = request_module(ApiKey.LIST_OFFSETS)
    some = tuple(
        module.ListOffsetsPartition(partition_index=n, current_leader_epoch=-1, timestamp=-1)
        for n in range(partitions)
    )
    request = module.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        timeout=timedelta(0),
        topics=(module.ListOffsetsTopic(name="nothing", partitions=some),),
    )
    return encode_request(ApiKey.LIST_OFFSETS, 11, 1, "long", request)


def open_at(node: NodeThread) -> int:
    return sum(server.connection_count for server in node.node.parts.listening)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Each request that was let in: how much was in use then, and how many waited."""
    found: list[tuple[int, int]] = []
    let_in = DecodeBudget._admit

    def told(memory: DecodeBudget, context: object, weight: int) -> None:
        let_in(memory, context, weight)  # type: ignore[arg-type]
        found.append((memory.in_use, memory.waiting))

    monkeypatch.setattr(DecodeBudget, "_admit", told)
    monkeypatch.setattr("service.serving.decode_budget.ROOM_BYTES", ROOM)
    return found


def test_many_long_requests_are_decoded_a_few_at_a_time_and_all_are_answered(
    start: Callable[..., NodeThread], decoded: list[tuple[int, int]]
) -> None:
    node = start()
    request, crowd = (
        list_offsets(FEW),
        [socket.create_connection((node.host, node.port), 60) for _ in range(12)],
    )
    for one in crowd:
        one.sendall(request)
    for one in crowd:
        size = int.from_bytes(_read(one, 4))
        assert size > FEW
        _read(one, size)
        one.close()
    assert len(decoded) == 12
    # 0.1 MB of bytes weigh 3 MiB.
    assert max(in_use for in_use, _ in decoded) <= ROOM
    assert max(waiting for _, waiting in decoded) > 0, "all of them had room at once"


def _read(own: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = own.recv(size - len(data))
        assert piece, "the node closed the connection"
        data += piece
    return bytes(data)


def of_many(key: ApiKey) -> bytes:
    """A request of `key` that names very much of what does not exist."""
    module = request_module(key)
    if key is ApiKey.OFFSET_COMMIT:
        some = tuple(
            module.OffsetCommitRequestPartition(partition_index=n, committed_offset=n, committed_metadata="")
            for n in range(MANY)
        )
        topic = module.OffsetCommitRequestTopic(topic_id=UUID(int=1), partitions=some)
        request = module.OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=(topic,)
        )
    elif key is ApiKey.LEAVE_GROUP:
        members = tuple(module.MemberIdentity(member_id=f"member-{n}") for n in range(MANY))
        request = module.LeaveGroupRequest(group_id="g", members=members)
    elif key is ApiKey.INCREMENTAL_ALTER_CONFIGS:
        config = module.AlterableConfig(name="retention.ms", config_operation=0, value="1")
        resources = tuple(
            module.AlterConfigsResource(resource_type=2, resource_name=f"t{n}", configs=(config,))
            for n in range(MANY)
        )
        request = module.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
    else:
        return list_offsets(MANY)
    return encode_request(key, APIS[key].max_version, 1, "long", request)


@pytest.mark.parametrize(
    "key",
    [ApiKey.LIST_OFFSETS, ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP, ApiKey.INCREMENTAL_ALTER_CONFIGS],
)
def test_requests_that_have_not_started_end_with_their_peer(
    start: Callable[..., NodeThread], decoded: list[tuple[int, int]], key: ApiKey
) -> None:
    node = start()
    request, count = of_many(key), 30
    crowd = [socket.create_connection((node.host, node.port), 60) for _ in range(count)]
    for one in crowd:
        one.sendall(request)
    for one in crowd:
        one.close()
    # Some may have been begun before their peer left; nearly all have not, and are not any more.
    wait_until("the end of their connections", lambda: not open_at(node))
    assert len(decoded) < count // 2
    with socket.create_connection((node.host, node.port), 60) as one:
        one.sendall(request)
        assert int.from_bytes(_read(one, 4)) > 0


def test_a_read_that_takes_many_turns_ends_with_its_peer(
    start: Callable[..., NodeThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that do not wait for a long list, and ask again, add nothing to what the node has to do."""
    node, began, ended = start(), threading.Event(), threading.Event()

    def forever(*_: object) -> Iterator[None]:
        began.set()
        try:
            while True:
                yield
        finally:
            ended.set()

    monkeypatch.setattr("service.serving.handlers.list_transactions._found", forever)
    module = request_module(ApiKey.LIST_TRANSACTIONS)
    request = module.ListTransactionsRequest(state_filters=(), producer_id_filters=(), duration_filter=-1)
    with socket.create_connection((node.host, node.port), 60) as one:
        one.sendall(encode_request(ApiKey.LIST_TRANSACTIONS, 1, 1, "long", request))
        assert began.wait(30)
        assert not ended.is_set()
    assert ended.wait(30), "the node goes on with what nobody waits for"


def test_acks_0_records_are_written_though_the_peer_disconnects(
    start: Callable[..., NodeThread], decoded: list[tuple[int, int]]
) -> None:
    """With acks=0 there is none to wait for."""
    node, partitions, count = start(), 300, 12
    module = request_module(ApiKey.PRODUCE)
    with node.client() as client:
        talk = Talk(client)
        talk.create("t", partitions=partitions)
        batch = bytes(build_batch([(SystemClock().now_ms(), None, bytes(1000))]))
        data = tuple(module.PartitionProduceData(index=n, records=batch) for n in range(partitions))
        topic = module.TopicProduceData(topic_id=talk.topic_id("t"), partition_data=data)
        request = module.ProduceRequest(transactional_id=None, acks=0, timeout=1000, topic_data=(topic,))
        frame = encode_request(ApiKey.PRODUCE, 13, 1, "long", request)
        for _ in range(count):
            with socket.create_connection((node.host, node.port), 60) as one:
                one.sendall(frame)
        wait_until("all records", lambda: list_ends(client, "t", partitions) == [count] * partitions)
    assert max(waiting for _, waiting in decoded) > 0, "all of them had room at once"


@pytest.mark.parametrize("stays", [True, False])
def test_a_decoded_long_fetch_is_freed_in_slices(
    start: Callable[..., NodeThread], monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    freed: list[int] = []
    free = slices.free_in_slices

    def told(lists: Iterable[list[Any]]) -> None:
        lists = list(lists)
        freed.append(sum(map(len, lists)))
        free(lists)

    monkeypatch.setattr("service.serving.fetch_operation.free_in_slices", told)
    node, count = start(), 300
    with node.client() as client:
        talk = Talk(client)
        talk.create("t", partitions=count)
        topic_id = talk.topic_id("t")
    module = request_module(ApiKey.FETCH)
    partitions = tuple(
        module.FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1) for n in range(count)
    )
    request = module.FetchRequest(
        max_wait=timedelta(milliseconds=0 if stays else 60_000),
        min_bytes=1,
        session_epoch=0,
        topics=(module.FetchTopic(topic_id=topic_id, partitions=partitions),),
        forgotten_topics_data=(),
    )
    with socket.create_connection((node.host, node.port), 60) as one:
        one.sendall(encode_request(ApiKey.FETCH, 18, 1, "long", request))
        if stays:
            assert int.from_bytes(_read(one, 4)) > count
        else:
            assert node.node.parts.broker is not None
            metrics = node.node.parts.broker.metrics
            wait_until("the fetch to wait", lambda: metrics.waiting)
    wait_until("the end of the fetch", lambda: freed)
    # What was asked for, and where there is an answer, what was found.
    assert freed == [2 * count if stays else count]


def list_ends(client: BlockingClient, topic: str, partitions: int) -> list[int]:
    module = request_module(ApiKey.LIST_OFFSETS)
    some = tuple(
        module.ListOffsetsPartition(partition_index=n, current_leader_epoch=-1, timestamp=-1)
        for n in range(partitions)
    )
    answer = client.request(
        ApiKey.LIST_OFFSETS,
        module.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            timeout=timedelta(0),
            topics=(module.ListOffsetsTopic(name=topic, partitions=some),),
        ),
    )
    return [one.offset for one in answer.topics[0].partitions]
