"""A transactional producer, request by request; kio alone encodes, so that nothing of Firn judges Firn.

Transaction version 2 (KIP-890) speaks InitProducerId 5, Produce 12, TxnOffsetCommit 5 and EndTxn 5: brokers
add partitions, each end raises the epoch. Version 1 speaks AddPartitionsToTxn 3, Produce 11, AddOffsetsToTxn
3, TxnOffsetCommit 3 and EndTxn 3. Each method sends what it is told and returns the answer; nothing is tried
again but by `settled`.

    with TransactionalClient(bootstrap, "an-id") as client:
        assert settled(client, client.init) == ErrorCode.none
        assert client.produce("flights", 0, [b"a", b"b"]).error_code == ErrorCode.none
        assert client.commit_offsets("a-group", {("flights", 0): 2}) == {("flights", 0): ErrorCode.none}
        assert client.end(commit=True) == ErrorCode.none
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Self

from kio.schema.errors import ErrorCode

from tests.support.batches import batch
from tests.support.wire import ConnectionLost, RawConnection, schema

Place = tuple[str, int]
TRANSACTIONAL: Final = 0x10
GROUP, TRANSACTION = 0, 1
COORDINATOR_MOVED: Final = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)
AGAIN: Final = (
    *COORDINATOR_MOVED,
    ErrorCode.concurrent_transactions,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
)


class TransactionalClient:
    """One producer with a transactional id. `producer_id`, `epoch` and `sequences` (by partition, of the next
    record) may be set to what a test wants to send."""

    def __init__(
        self, bootstrap: str, transactional_id: str, *, version: int = 2, timeout_ms: int = 60_000
    ) -> None:
        """`version` is the protocol's, 1 or 2."""
        self.bootstrap, self.transactional_id = bootstrap, transactional_id
        self.is_second = version >= 2
        self.timeout_ms = timeout_ms
        self.producer_id = self.epoch = -1
        self.sequences: dict[Place, int] = {}
        self._connections: dict[str, RawConnection] = {}
        self._coordinators: dict[tuple[int, str], str] = {}
        self._leaders: dict[Place, str] = {}
        self._asked = 0  # the broker of the bootstrap list that is asked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()

    def forget(self) -> None:
        """Close all connections, and ask again who coordinates and who leads, another broker than before."""
        self._asked += 1
        for one in self._connections.values():
            one.socket.close()
        self._connections.clear()
        self._coordinators.clear()
        self._leaders.clear()

    # -- the transaction

    def init(self, *, again: bool = False) -> ErrorCode:
        """InitProducerId, with the present id and epoch if `again` (KIP-360)."""
        request = schema(22, 5).InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout=timedelta(milliseconds=self.timeout_ms),
            producer_id=self.producer_id if again else -1,
            producer_epoch=self.epoch if again else -1,
        )
        answer = self._of_coordinator(request)
        if answer.error_code == ErrorCode.none:
            self._take(answer)
        return ErrorCode(answer.error_code)

    def add(self, *places: Place) -> dict[Place, ErrorCode]:
        """AddPartitionsToTxn, of version 1 alone."""
        module = schema(24, 3)
        topics = tuple(
            module.AddPartitionsToTxnTopic(name=topic, partitions=partitions)
            for topic, partitions in _by_topic(places).items()
        )
        request = module.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        return {
            (topic.name, one.partition_index): ErrorCode(one.partition_error_code)
            for topic in self._of_coordinator(request).results_by_topic_v3_and_below
            for one in topic.results_by_partition
        }

    def produce(
        self, topic: str, partition: int, values: Sequence[bytes], *, timestamp_ms: int | None = None
    ) -> Any:
        """Produce one batch with acks=all; return the partition's answer. Its sequence moves on success."""
        answer = self.produce_many({(topic, partition): values}, timestamp_ms=timestamp_ms)
        return answer[topic, partition]

    def produce_many(
        self, values: Mapping[Place, Sequence[bytes]], *, timestamp_ms: int | None = None
    ) -> dict[Place, Any]:
        """Produce a batch to each partition, in one request to each leader; return the answers."""
        now_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        by_leader: dict[str, list[Place]] = {}
        for place in values:
            by_leader.setdefault(self.leader(place), []).append(place)
        answers: dict[Place, Any] = {}
        for leader, places in by_leader.items():
            answer = self._connection(leader).call(self._produce_request(places, values, now_ms))
            for topic in answer.responses:
                answers |= {(topic.name, one.index): one for one in topic.partition_responses}
        for place, one in answers.items():
            if one.error_code == ErrorCode.none:
                self.sequences[place] = self.sequences.get(place, 0) + len(values[place])
            elif one.error_code == ErrorCode.not_leader_or_follower:
                self._leaders.pop(place, None)
        return answers

    def _produce_request(
        self, places: Sequence[Place], values: Mapping[Place, Sequence[bytes]], now_ms: int
    ) -> Any:
        module = schema(0, 12 if self.is_second else 11)
        parts: dict[str, list[Any]] = {}
        for topic, partition in places:
            records = batch(
                values[topic, partition],
                attributes=TRANSACTIONAL,
                base_timestamp=now_ms,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self.sequences.get((topic, partition), 0),
            )
            part = module.PartitionProduceData(index=partition, records=records)
            parts.setdefault(topic, []).append(part)
        return module.ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout=timedelta(seconds=30),
            topic_data=tuple(
                module.TopicProduceData(name=topic, partition_data=tuple(found))
                for topic, found in parts.items()
            ),
        )

    def add_offsets(self, group: str) -> ErrorCode:
        """AddOffsetsToTxn, of version 1 alone."""
        request = schema(25, 3).AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return ErrorCode(self._of_coordinator(request).error_code)

    def commit_offsets(
        self, group: str, offsets: Mapping[Place, int], *, generation: int = -1, member: str = ""
    ) -> dict[Place, ErrorCode]:
        """TxnOffsetCommit to the group's coordinator."""
        module = schema(28, 5 if self.is_second else 3)
        topics = tuple(
            module.TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=tuple(
                    module.TxnOffsetCommitRequestPartition(
                        partition_index=one, committed_offset=offsets[topic, one], committed_metadata=""
                    )
                    for one in partitions
                ),
            )
            for topic, partitions in _by_topic(offsets).items()
        )
        request = module.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=generation,
            member_id=member,
            topics=topics,
        )
        answer = self._connection(self.coordinator(group, GROUP)).call(request)
        codes = {
            (topic.name, one.partition_index): ErrorCode(one.error_code)
            for topic in answer.topics
            for one in topic.partitions
        }
        if any(code in COORDINATOR_MOVED for code in codes.values()):
            self._coordinators.pop((GROUP, group), None)
        return codes

    def end(self, *, commit: bool) -> ErrorCode:
        """EndTxn. In version 2 the answer's epoch is the next transaction's."""
        request = schema(26, 5 if self.is_second else 3).EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = self._of_coordinator(request)
        if self.is_second and answer.error_code == ErrorCode.none:
            self._take(answer)
        return ErrorCode(answer.error_code)

    def _take(self, answer: Any) -> None:
        if (self.producer_id, self.epoch) != (answer.producer_id, answer.producer_epoch):
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()

    # -- whom to ask

    def coordinator(self, key: str, kind: int = TRANSACTION) -> str:
        """The address of a coordinator, asked for until there is one."""
        found = self._coordinators.get((kind, key))
        deadline = time.monotonic() + 30
        while found is None:
            request = schema(10, 4).FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,))
            (one,) = self._any().call(request).coordinators
            if one.error_code == ErrorCode.none:
                found = self._coordinators[kind, key] = f"{one.host}:{one.port}"
            else:
                assert one.error_code == ErrorCode.coordinator_not_available, ErrorCode(one.error_code)
                assert time.monotonic() < deadline, f"{key} has no coordinator"
                time.sleep(0.05)
        return found

    def leader(self, place: Place) -> str:
        """The address of a partition's leader, asked for until there is one."""
        found = self._leaders.get(place)
        deadline = time.monotonic() + 30
        while found is None:
            found = self._leader_now(place)
            assert time.monotonic() < deadline, f"{place} has no leader"
            if found is None:
                time.sleep(0.05)
        self._leaders[place] = found
        return found

    def _leader_now(self, place: Place) -> str | None:
        module = schema(3, 12)
        asked = module.MetadataRequestTopic(topic_id=None, name=place[0])
        request = module.MetadataRequest(
            topics=(asked,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        answer = self._any().call(request)
        brokers = {one.node_id: f"{one.host}:{one.port}" for one in answer.brokers}
        leaders = {one.partition_index: one.leader_id for one in answer.topics[0].partitions}
        return brokers.get(leaders.get(place[1], -1))

    def _of_coordinator(self, request: Any) -> Any:
        answer = self._connection(self.coordinator(self.transactional_id)).call(request)
        if getattr(answer, "error_code", ErrorCode.none) in COORDINATOR_MOVED:
            self._coordinators.pop((TRANSACTION, self.transactional_id), None)
        return answer

    def _any(self) -> RawConnection:
        brokers = self.bootstrap.split(",")
        return self._connection(brokers[self._asked % len(brokers)])

    def _connection(self, address: str) -> RawConnection:
        if address not in self._connections:
            self._connections[address] = RawConnection(address, timeout=60)
        return self._connections[address]


def settled(client: TransactionalClient, step: Callable[[], Any], seconds: float = 30) -> Any:
    """The answer of a step that is no longer one to try again, as clients do; connections may be lost.

    A step answers an error code, one for each partition, or a partition's answer with one.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer: Any = None
        try:
            answer = step()
            if not _is_again(answer):
                return answer
        except (ConnectionLost, OSError):
            client.forget()
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, f"still {answer} after {seconds:g} s"
        time.sleep(0.02)


def _is_again(answer: Any) -> bool:
    if isinstance(answer, Mapping):
        return any(map(_is_again, answer.values()))
    return getattr(answer, "error_code", answer) in AGAIN


def _by_topic(places: Sequence[Place] | Mapping[Place, object]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for topic, partition in places:
        found[topic] = (*found.get(topic, ()), partition)
    return found
