"""Long requests: one at a time in memory, as bytes until then, and none for a peer that has left."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta

import pytest

from service.broker.decoded import DecodedMemory
from service.wire.api import ApiKey, encode_request, request_module
from tests.node.conftest import NodeThread
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
    return sum(server.connection_count for server in node.node.listening)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Each request that was let in: how much was in use then, and how many waited."""
    found: list[tuple[int, int]] = []
    let_in = DecodedMemory._let_in

    def told(memory: DecodedMemory, context: object, weight: int) -> None:
        let_in(memory, context, weight)  # type: ignore[arg-type]
        found.append((memory.in_use, memory.waiting))

    monkeypatch.setattr(DecodedMemory, "_let_in", told)
    monkeypatch.setattr("service.broker.decoded.ROOM_BYTES", ROOM)
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


def test_what_only_reads_ends_with_its_peer_however_much_it_is(
    start: Callable[..., NodeThread], decoded: list[tuple[int, int]]
) -> None:
    node = start()
    request, count = list_offsets(MANY), 30
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
        assert int.from_bytes(_read(one, 4)) > MANY
