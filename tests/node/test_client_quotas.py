"""Quotas of users and client ids on a whole node: who is throttled, how long, and what they get meanwhile."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.client.blocking_client import BlockingClient
from service.records.builder import BatchBuilder
from service.wire.api import ApiKey, api_versions_request, encode_request, request_module
from service.wire.cuts import TakeCutRequest
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import DAY, list_offset, values
from tests.support.processes import wait_until

ME = ("", "test", "")


class Limited:
    """A node whose quotas tests set, and clients of it."""

    def __init__(self, node: NodeThread, talk: Talk | None = None) -> None:
        self.node = node
        self.talk = talk or Talk(node.client())
        self.topic_id = self.talk.create("t").topic_id

    def set(self, limits: dict[tuple[str | None, ...], dict[str, float]]) -> None:
        quotas = self.quotas
        self.node._loop.call_soon_threadsafe(quotas.apply, limits)
        wait_until("the quotas to be there", lambda: quotas._limits is limits)

    @property
    def quotas(self) -> Any:
        return self.node.node.parts.broker.quotas

    def produce(self, size: int, *, acks: int = 1, talk: Talk | None = None) -> int:
        """Send one record; return the throttle in ms."""
        builder = BatchBuilder()
        builder.add(DAY, None, b"x" * size)
        module = request_module(ApiKey.PRODUCE)
        data = module.PartitionProduceData(index=0, records=bytes(builder.build()))
        answer = (talk or self.talk)(
            ApiKey.PRODUCE,
            "ProduceRequest",
            transactional_id=None,
            acks=acks,
            timeout=1000,
            topic_data=(module.TopicProduceData(topic_id=self.topic_id, partition_data=(data,)),),
        )
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.none
        return millis(answer)

    def fetch(self, offset: int = 0, **more: Any) -> Any:
        return self.talk.fetch(self.topic_id, offset, whole=True, **more)

    def other(self, client_id: str) -> Talk:
        return Talk(BlockingClient(self.node.host, self.node.port, client_id, timeout_s=20))


def millis(answer: Any) -> int:
    return int(1000 * answer.throttle_time.total_seconds() + 0.5)


@pytest.fixture
def limited(start: Callable[..., NodeThread]) -> Iterator[Limited]:
    one = Limited(start())
    yield one
    one.talk.client.close()


@pytest.mark.parametrize("acks", [1, -1])
def test_a_producer_beyond_its_rate_waits_before_its_next_request(limited: Limited, acks: int) -> None:
    limited.set({ME: {"producer_byte_rate": 10_000.0}})
    assert limited.produce(50_000, acks=acks) == 0
    throttle_ms = limited.produce(53_000, acks=acks)
    assert 300 <= throttle_ms <= 500, "103 KB and their heads are 0.3 s more than ten seconds' worth"
    began = time.monotonic()
    limited.produce(1, acks=acks)
    assert throttle_ms / 1000 - 0.05 <= time.monotonic() - began < throttle_ms / 1000 + 1
    assert limited.quotas.throttles["produce"].snapshot().observed >= 1


def test_a_producer_without_answers_is_throttled_by_its_bytes_alone(limited: Limited) -> None:
    limited.set({ME: {"producer_byte_rate": 10_000.0, "request_percentage": 0.001}})
    builder = BatchBuilder()
    builder.add(DAY, None, b"x" * 103_000)
    module = request_module(ApiKey.PRODUCE)
    data = module.PartitionProduceData(index=0, records=bytes(builder.build()))
    message = module.ProduceRequest(
        transactional_id=None,
        acks=0,
        timeout=1000,
        topic_data=(module.TopicProduceData(topic_id=limited.topic_id, partition_data=(data,)),),
    )
    wanted = api_versions_request()
    with socket.create_connection((limited.node.host, limited.node.port), timeout=20) as peer:
        peer.sendall(encode_request(ApiKey.PRODUCE, 13, 1, "test", message))
        peer.sendall(encode_request(ApiKey.API_VERSIONS, 4, 2, "test", wanted))
        began = time.monotonic()
        assert peer.recv(8)[4:] == b"\0\0\0\2"
    assert 0.25 <= time.monotonic() - began < 2, "a Produce without a response is exempt from the percentage"


def test_requests_between_brokers_are_exempt(limited: Limited) -> None:
    """As in Kafka. A keeper of cuts that is throttled between two steps would find all gates open again."""
    limited.set({ME: {"request_percentage": 0.000001}})
    takes = TakeCutRequest(
        broker_id=1, broker_epoch=1, attempt_id=None, newest_id=None, cut=1, step=0, hold_ms=20
    )
    for _ in range(3):
        limited.talk.client.request(ApiKey.TAKE_CUT, takes)
        limited.talk(ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkersRequest", markers=())
    assert limited.quotas.throttles["request"].snapshot().observed == 0
    assert limited.produce(1) > 0


def test_others_are_not_throttled(limited: Limited) -> None:
    limited.set({ME: {"producer_byte_rate": 1_000.0, "consumer_byte_rate": 1_000.0}})
    other = limited.other("other")
    assert limited.produce(11_000) > 0
    assert limited.produce(100_000, talk=other) == 0
    answer = other.fetch(limited.topic_id, 0, whole=True)
    assert millis(answer) == 0
    assert len(values(answer.responses[0].partitions[0].records)) == 2
    other.client.close()


def test_clients_of_one_user_share_its_rate(limited: Limited) -> None:
    limited.set({("ANONYMOUS", "", ""): {"producer_byte_rate": 10_000.0}})
    other = limited.other("other")
    assert limited.produce(60_000) == 0
    assert limited.produce(60_000, talk=other) > 1_500
    other.client.close()


def test_a_throttled_fetch_is_empty_and_comes_again(limited: Limited) -> None:
    other = limited.other("other")
    for _ in range(3):
        limited.produce(40_000, talk=other)
    other.client.close()
    limited.set({ME: {"consumer_byte_rate": 12_000.0}})
    for offset in (0, 1):
        got = limited.fetch(offset, partition_max_bytes=45_000)
        assert (millis(got), len(values(got.responses[0].partitions[0].records))) == (0, 1)
    throttled = limited.fetch(2, partition_max_bytes=45_000)
    assert 700 < millis(throttled) < 1_000, "130 KB are 0.86 seconds more than ten seconds' worth"
    assert throttled.responses == ()
    began = time.monotonic()
    got = limited.fetch(2, partition_max_bytes=45_000)
    assert time.monotonic() - began > 0.6
    while millis(got):
        got = limited.fetch(2, partition_max_bytes=45_000)
    assert len(values(got.responses[0].partitions[0].records)) == 1


def test_a_throttled_fetch_leaves_its_session_as_it_was(limited: Limited) -> None:
    other = limited.other("other")
    limited.produce(10, talk=other)
    opened = limited.fetch(session_epoch=0, max_bytes=1 << 20)
    session = opened.session_id
    assert session > 0
    limited.produce(105_000, talk=other)
    other.client.close()
    limited.set({ME: {"consumer_byte_rate": 10_000.0}})
    more = {"session_id": session, "max_wait": 100, "partition_max_bytes": 1 << 20}
    throttled = limited.fetch(1, session_epoch=1, **more)
    assert (throttled.session_id, throttled.responses, throttled.error_code) == (session, (), ErrorCode.none)
    assert millis(throttled) > 400
    limited.set({})
    got = limited.talk(
        ApiKey.FETCH, "FetchRequest", max_wait=100, min_bytes=1, isolation_level=0, session_id=session,
        session_epoch=2, topics=(), forgotten_topics_data=(), rack_id="",
    )  # fmt: skip
    assert len(values(got.responses[0].partitions[0].records)) == 1, "the session still has it to send"


def test_a_fetch_takes_no_more_than_its_windows_allow(limited: Limited) -> None:
    other = limited.other("other")
    for _ in range(20):
        limited.produce(10_000, talk=other)
    other.client.close()
    limited.set({ME: {"consumer_byte_rate": 5_000.0}})
    answer = limited.fetch(partition_max_bytes=1 << 20)
    assert millis(answer) <= 20, "the head of the response is what is more than ten seconds' worth"
    answer = limited.fetch(partition_max_bytes=1 << 20)
    assert millis(answer) == 0
    assert len(values(answer.responses[0].partitions[0].records)) == 4, "50 KB, cut at whole batches"


def test_a_client_beyond_its_time_waits_for_a_window_at_most(limited: Limited) -> None:
    limited.set({ME: {"request_percentage": 0.0001}})
    list_offset(limited.talk, -1)
    throttled = [millis(limited.fetch()) for _ in range(2)]
    assert max(throttled) == 1_000
    limited.set({})
    assert millis(limited.fetch()) == 0


@pytest.mark.parametrize("api", [ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.LIST_GROUPS])
def test_any_answer_tells_a_throttle_of_time(limited: Limited, api: ApiKey) -> None:
    every: dict[ApiKey, dict[str, Any]] = {
        ApiKey.METADATA: {
            "topics": None,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        },
        ApiKey.FIND_COORDINATOR: {"key_type": 0, "coordinator_keys": ("g",)},
        ApiKey.LIST_GROUPS: {"states_filter": (), "types_filter": ()},
    }
    fields = every[api]
    name = {
        ApiKey.METADATA: "MetadataRequest",
        ApiKey.FIND_COORDINATOR: "FindCoordinatorRequest",
        ApiKey.LIST_GROUPS: "ListGroupsRequest",
    }[api]
    limited.talk(api, name, **fields)
    limited.set({ME: {"request_percentage": 0.0001}})
    assert millis(limited.talk(api, name, **fields)) > 0
    limited.set({})


def create(limited: Limited, version: int, *topics: tuple[str, int]) -> Any:
    module = request_module(ApiKey.CREATE_TOPICS)
    message = module.CreateTopicsRequest(
        topics=tuple(
            module.CreatableTopic(
                name=name, num_partitions=count, replication_factor=1, assignments=(), configs=()
            )
            for name, count in topics
        ),
    )
    return limited.talk.client.request(ApiKey.CREATE_TOPICS, message, newest=version)


def test_topics_beyond_the_rate_of_mutations_are_refused(limited: Limited) -> None:
    limited.set({ME: {"controller_mutation_rate": 1.0}})
    answer = create(limited, 7, ("a", 10), ("b", 2), ("c", 1))
    assert [one.error_code for one in answer.topics] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.throttling_quota_exceeded,
    ]
    assert 100 < millis(answer) <= 1_000, "one partition more than eleven seconds' worth"
    began, told_s = time.monotonic(), millis(answer) / 1000
    assert create(limited, 7, ("c", 1)).topics[0].error_code == ErrorCode.none
    assert time.monotonic() - began > told_s - 0.1, "its connection was mute"


def test_older_clients_get_their_topics_and_wait(limited: Limited) -> None:
    limited.set({ME: {"controller_mutation_rate": 1.0}})
    answer = create(limited, 5, ("a", 10), ("b", 2), ("c", 1))
    assert [one.error_code for one in answer.topics] == [ErrorCode.none] * 3
    assert 1_000 < millis(answer) <= 2_000


def test_deleted_and_added_partitions_count(limited: Limited) -> None:
    create(limited, 7, ("a", 8), ("b", 1))
    limited.set({ME: {"controller_mutation_rate": 1.0}})
    module = request_module(ApiKey.CREATE_PARTITIONS)
    grown = limited.talk(
        ApiKey.CREATE_PARTITIONS,
        "CreatePartitionsRequest",
        topics=(module.CreatePartitionsTopic(name="b", count=5, assignments=None),),
        timeout=1000,
        validate_only=False,
    )
    assert (grown.results[0].error_code, millis(grown)) == (ErrorCode.none, 0)
    states = request_module(ApiKey.DELETE_TOPICS).DeleteTopicState
    gone = limited.talk(
        ApiKey.DELETE_TOPICS,
        "DeleteTopicsRequest",
        topics=(states(name="a", topic_id=None), states(name="b", topic_id=None)),
        timeout=1000,
    )
    assert [one.error_code for one in gone.responses] == [
        ErrorCode.none,
        ErrorCode.throttling_quota_exceeded,
    ]
    assert 100 < millis(gone) <= 1_000


def test_a_node_without_quotas_meters_nothing(limited: Limited) -> None:
    limited.produce(1_000)
    limited.fetch()
    assert set(limited.quotas.active_clients().values()) == {0}
