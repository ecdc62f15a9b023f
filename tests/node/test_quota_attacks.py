"""Attempts to get around a quota, or to harm others by being throttled; the node is as before after each."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from kio.schema.errors import ErrorCode

from service.client.blocking_client import BlockingClient
from service.client.security import Credentials, Security
from service.records.builder import BatchBuilder
from service.wire.api import ApiKey, api_versions_request, encode_request, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import DAY, values
from tests.node.test_client_quotas import Limited, millis
from tests.support.processes import wait_until

EVERYBODY = ("", None, "")


@pytest.fixture
def limited(start: Callable[..., NodeThread]) -> Iterator[Limited]:
    one = Limited(start())
    yield one
    one.talk.client.close()


def dial(limited: Limited) -> socket.socket:
    return socket.create_connection((limited.node.host, limited.node.port), timeout=20)


def produce_frame(limited: Limited, size: int, client_id: str, acks: int = 1) -> bytes:
    builder = BatchBuilder()
    builder.add(DAY, None, b"x" * size)
    module = request_module(ApiKey.PRODUCE)
    data = module.PartitionProduceData(index=0, records=bytes(builder.build()))
    message = module.ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout=1000,
        topic_data=(module.TopicProduceData(topic_id=limited.topic_id, partition_data=(data,)),),
    )
    return encode_request(ApiKey.PRODUCE, 13, 1, client_id, message)


def receive(peer: socket.socket) -> bytes:
    """Read one response."""
    size, data = struct.unpack(">i", peer.recv(4, socket.MSG_WAITALL))[0], b""
    while len(data) < size:
        data += peer.recv(size - len(data))
    return data


def test_made_up_client_ids_cost_memory_for_a_moment_and_others_no_time(limited: Limited) -> None:
    limited.set({EVERYBODY: {"producer_byte_rate": 1_000_000.0, "request_percentage": 50.0}})
    innocent = limited.other("innocent")
    slowest_s, wanted = 0.0, api_versions_request()
    with dial(limited) as peer:
        for n in range(100):
            frames = [
                encode_request(ApiKey.API_VERSIONS, 4, i, f"made-up-{n}-{i}", wanted) for i in range(50)
            ]
            peer.sendall(b"".join(frames))
            for _ in frames:
                receive(peer)
            if n % 10 == 9:
                began = time.monotonic()
                innocent.fetch(limited.topic_id, 0, whole=True)
                slowest_s = max(slowest_s, time.monotonic() - began)
    assert limited.quotas.active_clients()["request"] >= 5_000
    assert slowest_s < 0.5
    innocent.client.close()
    wait_until("them to be forgotten", lambda: limited.quotas.active_clients()["request"] < 5, 40)


def test_a_quota_of_a_byte_gives_no_byte_and_holds_none(limited: Limited) -> None:
    innocent = limited.other("innocent")
    for _ in range(5):
        limited.produce(1_000_000, talk=innocent)
    limited.set({("", "test", ""): {"consumer_byte_rate": 1.0}})
    answer = limited.fetch(partition_max_bytes=50 << 20, max_bytes=50 << 20)
    assert answer.responses == ()
    assert millis(answer) > 100_000
    assert limited.node.node.parts.memory()["requests"] < 1 << 20
    got = innocent.fetch(limited.topic_id, 0, whole=True)
    assert len(values(got.responses[0].partitions[0].records)) == 1
    innocent.client.close()


def test_throttled_clients_that_leave_at_once_leave_nothing_behind(limited: Limited) -> None:
    limited.set({EVERYBODY: {"producer_byte_rate": 1.0}})
    frame = produce_frame(limited, 1_000, "leaves")
    before = limited.node.node.parts.connections()["PLAINTEXT"]
    for n in range(100):
        with dial(limited) as peer:
            peer.sendall(frame * 3)  # the second and third wait behind a throttle of minutes
            if n % 2:
                receive(peer)
    wait_until(
        "their connections to end", lambda: limited.node.node.parts.connections()["PLAINTEXT"] <= before
    )
    assert limited.node.node.parts.memory()["requests"] < 1 << 20


def test_a_mute_connection_that_floods_is_not_read(limited: Limited) -> None:
    limited.set({("", "floods", ""): {"producer_byte_rate": 1_000.0}})
    frame = produce_frame(limited, 30_000, "floods", acks=0)
    with dial(limited) as peer:
        peer.sendall(frame)
        time.sleep(0.2)
        peer.settimeout(1)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 64 << 20:
                sent += peer.send(frame)
        assert sent < 32 << 20, "the rest stays in the peer"
        assert limited.node.node.parts.memory()["requests"] < 1 << 20
        assert limited.produce(100) == 0, "another client"
    before = limited.node.node.parts.broker.metrics.appended_batches
    time.sleep(0.3)
    assert limited.node.node.parts.broker.metrics.appended_batches - before <= 1


def test_requests_pipelined_into_a_throttle_wait_their_turn(limited: Limited) -> None:
    limited.set({("", "hurries", ""): {"producer_byte_rate": 10_000.0}})
    frames = produce_frame(limited, 101_000, "hurries") + produce_frame(limited, 10, "hurries")
    with dial(limited) as peer:
        began = time.monotonic()
        peer.sendall(frames)
        receive(peer)
        first_s = time.monotonic() - began
        receive(peer)
        assert time.monotonic() - began > 0.1
        assert first_s < 1


def test_fetches_that_are_refused_as_a_whole_take_their_time_from_the_quota(limited: Limited) -> None:
    """Else a client beyond its time would go on with fetches of sessions that are not there."""
    limited.set({EVERYBODY: {"request_percentage": 0.001}})
    answers = (limited.fetch(session_id=4711, session_epoch=9) for _ in range(50))
    throttled = next(one for one in answers if millis(one) > 0)
    assert throttled.error_code == ErrorCode.fetch_session_id_not_found


USERS = {
    "listeners": "OUT://127.0.0.1:0",
    "listener_security_protocol_map": "OUT:SASL_PLAINTEXT",
    "inter_broker_listener_name": "OUT",
    "sasl_enabled_mechanisms": "PLAIN",
    "sasl_mechanism_inter_broker_protocol": "PLAIN",
    "listener_name_out_plain_sasl_jaas_config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="node" password="n" user_node="n" user_alice="a" user_bob="b";'
    ),
}


def test_a_user_shares_its_rate_with_itself_whatever_client_id_it_gives(
    start: Callable[..., NodeThread],
) -> None:
    node = start(**USERS)

    def talk_as(user: str, client_id: str) -> Talk:
        security = Security(credentials=Credentials("PLAIN", user, user[0], lambda: "nonce"))
        return Talk(BlockingClient(node.host, node.port, client_id, timeout_s=20, security=security))

    alice, alices_other, bob = talk_as("alice", "one"), talk_as("alice", "two"), talk_as("bob", "one")
    limited = Limited(node, alice)
    limited.set({("alice", "", ""): {"producer_byte_rate": 10_000.0}})
    assert limited.produce(60_000) == 0
    assert limited.produce(60_000, talk=bob) == 0
    assert limited.produce(60_000, talk=alices_other) > 1_000
    for talk in (alice, alices_other, bob):
        talk.client.close()
