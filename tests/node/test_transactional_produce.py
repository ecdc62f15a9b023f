"""Produce with a transactional id on a whole node: what waits for the coordinator, and in which order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.types import TopicIdPartition
from service.hot.markers import Marker
from service.transactions.verification import Mode
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import values as values_of
from tests.support.batches import batch
from tests.support.processes import wait_until
from tests.support.wire import RawConnection, decode_response, encode_request, schema

TRANSACTIONAL = 0x10
PRODUCER = 4711
NONE = ErrorCode.none


@dataclass
class Asked:
    """A question that the node has asked, and what answers it."""

    transactional_id: str
    producer_id: int
    epoch: int
    names: list[tuple[str, int]]
    mode: Mode
    answer: asyncio.Future[ErrorCode]
    loop: asyncio.AbstractEventLoop

    def reply(self, error: ErrorCode = NONE) -> None:
        self.loop.call_soon_threadsafe(self.answer.set_result, error)


@dataclass
class Coordinator:
    """A verifier that keeps questions until the test answers them."""

    asked: list[Asked] = field(default_factory=list)
    error: ErrorCode | None = None
    """answer to all questions at once"""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        tips: Sequence[TopicIdPartition],
        mode: Mode,
    ) -> dict[TopicIdPartition, ErrorCode]:
        loop = asyncio.get_running_loop()
        names = [(tip.topic, tip.partition) for tip in tips]
        one = Asked(transactional_id, producer_id, epoch, names, mode, loop.create_future(), loop)
        self.asked.append(one)
        error = self.error if self.error is not None else await one.answer
        return dict.fromkeys(tips, error)

    def next(self) -> Asked:
        wait_until("a question to the coordinator", lambda: self.asked)
        return self.asked.pop(0)


@dataclass
class Verified:
    """A node with topics `t` and `u`, and its coordinator."""

    node: NodeThread
    talk: Talk
    coordinator: Coordinator
    bootstrap: str

    def connect(self) -> RawConnection:
        return RawConnection(self.bootstrap)

    def values(self, topic: str = "t") -> list[bytes]:
        chunk = self.talk.fetch(self.talk.topic_id(topic), 0).records
        return [value for value in values_of(chunk) if value is not None]

    def on_loop(self, call: Callable[[], Any]) -> Any:
        done, found = threading.Event(), []

        def run() -> None:
            try:
                found.append(call())
            finally:
                done.set()

        self.node._loop.call_soon_threadsafe(run)
        assert done.wait(20)
        return found[0]

    def mark(self, epoch: int, *, is_commit: bool = False, version: int = 1) -> None:
        """Write a marker into partition 0 of `t`."""
        partition = self.node.node.parts.broker.replicas.find("t", 0)
        marker = Marker(PRODUCER, epoch, 1, is_commit, version)
        [result] = self.on_loop(
            lambda: partition.log.append_markers([marker], partition.leader_epoch, 1_700_000_000_000)
        )
        assert not isinstance(result, Exception), result


def serve(node: NodeThread, coordinator: Coordinator) -> None:
    broker = node.node.parts.broker
    assert broker.transactions is not None
    broker.transactions.verify = coordinator.verify  # type: ignore[method-assign]


@pytest.fixture
def verified(start: Callable[..., NodeThread]) -> Iterator[Verified]:
    node, coordinator = start(), Coordinator()

    serve(node, coordinator)
    with node.client() as client:
        talk = Talk(client)
        for name in "tu":
            talk.create(name, 2)
        yield Verified(node, talk, coordinator, f"{node.host}:{node.port}")


def records(
    value: bytes,
    *,
    sequence: int = 0,
    epoch: int = 0,
    producer_id: int = PRODUCER,
    transactional: bool = True,
) -> bytes:
    return batch(
        [value],
        attributes=TRANSACTIONAL if transactional else 0,
        base_timestamp=1_700_000_000_000,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def request(
    parts: dict[tuple[str, int], bytes],
    *,
    version: int = 12,
    acks: int = -1,
    transactional_id: str | None = "pay",
) -> Any:
    module = schema(0, version)
    topics: dict[str, list[Any]] = {}
    for (topic, index), data in parts.items():
        topics.setdefault(topic, []).append(module.PartitionProduceData(index=index, records=data))
    return module.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout=timedelta(seconds=10),
        topic_data=tuple(
            module.TopicProduceData(name=name, partition_data=tuple(some)) for name, some in topics.items()
        ),
    )


def send(connection: RawConnection, message: Any, number: int = 1) -> None:
    connection.send_frame(encode_request(message, number))


def errors(answer: Any) -> dict[tuple[str, int], ErrorCode]:
    return {
        (topic.name, one.index): ErrorCode(one.error_code)
        for topic in answer.responses
        for one in topic.partition_responses
    }


def received(connection: RawConnection, message: Any) -> dict[tuple[str, int], ErrorCode]:
    return errors(decode_response(message, connection.receive_frame()))


T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)


def test_a_first_batch_waits_for_the_coordinator_and_the_next_does_not(verified: Verified) -> None:
    first, second = request({T0: records(b"a")}), request({T0: records(b"b", sequence=1)})
    with verified.connect() as connection:
        send(connection, first)
        asked = verified.coordinator.next()
        assert (asked.transactional_id, asked.producer_id, asked.epoch) == ("pay", PRODUCER, 0)
        assert (asked.names, asked.mode) == ([T0], Mode.ADD)
        assert verified.values() == []
        asked.reply()
        assert received(connection, first) == {T0: NONE}
        assert errors(connection.call(second)) == {T0: NONE}
    assert not verified.coordinator.asked
    assert verified.values() == [b"a", b"b"]


@pytest.mark.parametrize(("version", "mode"), [(12, Mode.ADD), (11, Mode.VERIFY), (9, Mode.VERIFY_OLD)])
def test_the_version_of_the_request_says_what_is_asked(verified: Verified, version: int, mode: Mode) -> None:
    verified.coordinator.error = NONE
    with verified.connect() as connection:
        assert errors(connection.call(request({T0: records(b"a")}, version=version))) == {T0: NONE}
    assert verified.coordinator.asked[0].mode is mode


@pytest.mark.parametrize(
    ("version", "answer", "told"),
    [
        (12, ErrorCode.concurrent_transactions, ErrorCode.concurrent_transactions),
        (11, ErrorCode.concurrent_transactions, ErrorCode.not_enough_replicas),
        (12, ErrorCode.network_exception, ErrorCode.not_enough_replicas),
        (11, ErrorCode.not_coordinator, ErrorCode.not_enough_replicas),
        (11, ErrorCode.transaction_abortable, ErrorCode.transaction_abortable),
        (9, ErrorCode.invalid_txn_state, ErrorCode.invalid_txn_state),
        (12, ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_epoch),
        (12, ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_id_mapping),
    ],
)
def test_nothing_is_appended_that_the_coordinator_refuses(
    verified: Verified, version: int, answer: ErrorCode, told: ErrorCode
) -> None:
    verified.coordinator.error = answer
    with verified.connect() as connection:
        assert errors(connection.call(request({T0: records(b"a")}, version=version))) == {T0: told}
    assert verified.values() == []


def test_a_marker_between_question_and_answer_keeps_the_batch_out(verified: Verified) -> None:
    message = request({T0: records(b"late")}, version=11)
    with verified.connect() as connection:
        send(connection, message)
        asked = verified.coordinator.next()
        verified.mark(0)
        asked.reply()
        assert received(connection, message) == {T0: ErrorCode.invalid_txn_state}
    assert verified.values() == []


def test_a_marker_of_a_newer_epoch_keeps_the_batch_out(verified: Verified) -> None:
    message = request({T0: records(b"late")}, version=11)
    with verified.connect() as connection:
        send(connection, message)
        asked = verified.coordinator.next()
        verified.mark(1)
        asked.reply()
        assert received(connection, message) == {T0: ErrorCode.invalid_producer_epoch}


def test_the_marker_of_the_transaction_before_lets_the_batch_of_the_next_in(verified: Verified) -> None:
    message = request({T0: records(b"next", epoch=1)}, version=12)
    with verified.connect() as connection:
        send(connection, message)
        asked = verified.coordinator.next()
        verified.mark(1, version=2)
        asked.reply()
        assert received(connection, message) == {T0: NONE}
    assert verified.values() == [b"next"]


def test_an_older_epoch_is_refused_without_a_question(verified: Verified) -> None:
    verified.mark(5)
    with verified.connect() as connection:
        answer = connection.call(request({T0: records(b"zombie", epoch=4)}, version=11))
    assert errors(answer) == {T0: ErrorCode.invalid_producer_epoch}
    assert not verified.coordinator.asked


def test_the_request_waits_as_a_whole(verified: Verified) -> None:
    verified.coordinator.error = NONE
    message = request({T0: records(b"b", sequence=1), U0: records(b"c")})
    with verified.connect() as connection:
        connection.call(request({T0: records(b"a")}))
        verified.coordinator.asked.clear()
        verified.coordinator.error = None
        send(connection, message)
        asked = verified.coordinator.next()
        assert asked.names == [U0]
        assert verified.values() == [b"a"]
        asked.reply(ErrorCode.invalid_producer_id_mapping)
        assert received(connection, message) == {T0: NONE, U0: ErrorCode.invalid_producer_id_mapping}
    assert verified.values() == [b"a", b"b"]


def test_batches_beside_the_transaction_wait_with_it(verified: Verified) -> None:
    message = request({T0: records(b"a"), U0: records(b"plain", producer_id=-1, transactional=False)})
    with verified.connect() as connection:
        send(connection, message)
        asked = verified.coordinator.next()
        assert asked.names == [T0]
        assert verified.values("u") == []
        asked.reply()
        assert received(connection, message) == {T0: NONE, U0: NONE}


def test_the_requests_of_a_connection_keep_their_order(verified: Verified) -> None:
    """What follows waits, whether it is of the transaction or not; each gets its own answer, in order."""
    before = request({U0: records(b"0", producer_id=-1, transactional=False)}, transactional_id=None)
    first = request({T0: records(b"1")})
    second = request({T0: records(b"2", sequence=1)})
    after = request({T0: records(b"3", producer_id=-1, transactional=False)}, transactional_id=None)
    with verified.connect() as connection:
        for number, message in enumerate((before, first, second, after)):
            send(connection, message, number)
        asked = verified.coordinator.next()
        assert received(connection, before) == {U0: NONE}
        assert verified.values() == []
        asked.reply()
        for message in (first, second, after):
            assert received(connection, message) == {T0: NONE}
    assert verified.values() == [b"1", b"2", b"3"]


def test_two_producers_in_a_request_are_refused_whole(verified: Verified) -> None:
    message = request({T0: records(b"a"), T1: records(b"b", producer_id=PRODUCER + 1)})
    with verified.connect() as connection:
        answer = errors(connection.call(message))
        assert answer == dict.fromkeys((T0, T1), ErrorCode.invalid_producer_id_mapping)
        other = request({T0: records(b"a"), U0: records(b"b", epoch=1)})
        assert errors(connection.call(other)) == dict.fromkeys(
            (T0, U0), ErrorCode.invalid_producer_id_mapping
        )
    assert not verified.coordinator.asked
    assert verified.values() == []


def test_a_transactional_batch_without_an_id_is_refused_whole(verified: Verified) -> None:
    with verified.connect() as connection:
        one = errors(connection.call(request({T0: records(b"a")}, transactional_id=None)))
        assert one == {T0: ErrorCode.transactional_id_authorization_failed}
        plain = records(b"plain", producer_id=-1, transactional=False)
        both = errors(connection.call(request({T0: plain, U0: records(b"a")}, transactional_id=None)))
        assert both == dict.fromkeys((T0, U0), ErrorCode.transactional_id_authorization_failed)


def test_a_transactional_batch_without_a_producer_is_refused(verified: Verified) -> None:
    with verified.connect() as connection:
        answer = connection.call(request({T0: records(b"a", producer_id=-1, sequence=-1, epoch=-1)}))
    assert errors(answer) == {T0: ErrorCode.invalid_producer_id_mapping}


def test_unknown_partitions_are_not_asked_about(verified: Verified) -> None:
    verified.coordinator.error = NONE
    with verified.connect() as connection:
        answer = errors(connection.call(request({("none", 0): records(b"a"), T0: records(b"b")})))
    assert answer == {("none", 0): ErrorCode.unknown_topic_or_partition, T0: NONE}
    assert verified.coordinator.asked[0].names == [T0]


def test_damaged_bytes_are_not_asked_about(verified: Verified) -> None:
    damaged = records(b"a") + b"and more"
    with verified.connect() as connection:
        answer = errors(connection.call(request({T0: damaged})))
    assert answer == {T0: ErrorCode.invalid_record}
    assert not verified.coordinator.asked


def test_a_refused_batch_without_acks_closes_the_connection(verified: Verified) -> None:
    with verified.connect() as connection:
        send(connection, request({T0: records(b"a")}, acks=0))
        verified.coordinator.next().reply()
        wait_until("the batch to be appended", lambda: verified.values() == [b"a"])
        send(connection, request({U0: records(b"b")}, acks=0))
        verified.coordinator.next().reply(ErrorCode.invalid_txn_state)
        assert connection.is_closed_by_peer()
    assert verified.values("u") == []


def test_a_request_whose_peer_has_left_is_appended_all_the_same(verified: Verified) -> None:
    with verified.connect() as connection:
        send(connection, request({T0: records(b"a")}))
        asked = verified.coordinator.next()
    asked.reply()
    wait_until("the batch to be appended", lambda: verified.values() == [b"a"])


def test_the_switch_spares_only_clients_that_add_partitions_themselves(
    start: Callable[..., NodeThread],
) -> None:
    node, coordinator = start(transaction_partition_verification_enable="false"), Coordinator(error=NONE)

    serve(node, coordinator)
    with node.client() as client, RawConnection(f"{node.host}:{node.port}") as connection:
        Talk(client).create("t", 2)
        assert errors(connection.call(request({T0: records(b"a")}, version=11))) == {T0: NONE}
        assert not coordinator.asked
        assert errors(connection.call(request({T1: records(b"a")}, version=12))) == {T1: NONE}
        assert [one.mode for one in coordinator.asked] == [Mode.ADD]


def test_a_request_of_many_partitions_is_verified_in_one_question(verified: Verified) -> None:
    verified.talk.create("many", 260)
    verified.coordinator.error = NONE
    parts = {("many", index): records(b"a") for index in range(260)}
    with verified.connect() as connection:
        assert errors(connection.call(request(parts))) == dict.fromkeys(parts, NONE)
    [asked] = verified.coordinator.asked
    assert asked.names == list(parts)


def test_without_transactions_a_transactional_id_is_refused_as_before(
    start: Callable[..., NodeThread],
) -> None:
    node = start()
    with node.client() as client, RawConnection(f"{node.host}:{node.port}") as connection:
        Talk(client).create("t")
        node.node.parts.broker.transactions = None
        answer = connection.call(request({T0: records(b"a")}))
    assert errors(answer) == {T0: ErrorCode.invalid_producer_id_mapping}


def test_the_code_of_transactions_is_loaded_on_a_thread_by_the_first_that_needs_it(
    verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = verified.node.node.parts.broker
    loaded: list[str] = []
    load = broker.load

    async def noted(module: str) -> ModuleType:
        loaded.append(module)
        return await load(module)

    monkeypatch.setattr(broker, "load", noted)
    verified.coordinator.error = NONE
    with verified.connect() as connection:
        for sequence in range(2):
            answer = connection.call(request({T0: records(b"a", sequence=sequence)}))
            assert errors(answer) == {T0: NONE}
    assert loaded == ["service.serving.transactional_produce"]
