"""One Produce request: validates batches, stamps offsets and appends, in the request's own buffer.

Every partition has its own result; a refused batch has no effect. The order of checks is Kafka's
(`KafkaApis.handleProduceRequest`, `ReplicaManager.appendRecords`, `UnifiedLog.append`).

One small batch is validated and appended at once. A request that takes more than a slice of the loop's turn
(many batches, or one that is large, inflates to much or is compressed again) continues in later turns; a
large batch is validated on a thread. The loop does all appends.

With acks=all the response waits until all in-sync replicas have the batches (`serving/delayed_produce.py`).
The connection's next Produce requests do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from service.base.disk import FULL, DiskError
from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.base.slices import Slice, next_turn
from service.base.steps import Steps, at_once
from service.base.turn_queues import SliceClock
from service.base.types import INTERNAL_TOPICS, Buffer
from service.hot.state import AppendInfo
from service.network.request import Answer, RequestContext, Response, Throttled
from service.partition.partition import Partition
from service.records.batch import ATTRIBUTES_AT, TRANSACTIONAL_FLAG, is_zstd, read_header
from service.records.validation import (
    BeyondSlice,
    InflationBudget,
    RecordsRefused,
    ValidatedBatch,
    check_frame,
    validate_produced,
)
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed
from service.serving.delayed_produce import DelayedProduce, DelayedResponse
from service.serving.internal_topics import ADMIN_CLIENT
from service.serving.request_host import Broker
from service.wire.errors import WireError
from service.wire.produce import (
    NodeEndpoint,
    ProducedTopic,
    ProducePartitionResult,
    ProduceRequestView,
    TopicKey,
    encode_produce_response,
    encode_produce_response_in_steps,
)

if TYPE_CHECKING:
    from service.hot.verification import VerificationGuard
    from service.security.authorizer import Authorizer

FIRST_VERSION_WITH_ZSTD: Final = 7
FIRST_VERSION_WITH_LEADERS: Final = 10
"""A response with NOT_LEADER_OR_FOLLOWER names the leader (KIP-951)."""
_ATTRIBUTES_LOW_BYTE: Final = ATTRIBUTES_AT + 1
_WRITE: Final = AclOperation.WRITE
_TOPIC: Final = AclResourceType.TOPIC
ALL: Final = -1
VALID_ACKS: Final = (ALL, 0, 1)
MOST_AT_ONCE: Final = 250
"""Most partitions of a request that is handled without a task."""
_NAMED_AT_A_TIME: Final = 500


class RefusedWithoutAnswer(WireError):
    """A batch with acks=0 was refused: there is no response to carry the error, so the connection is closed,
    as in Kafka, and the client requests metadata again.
    """


class ProduceBudget:
    """Remaining budget of a request: time in this turn of the loop, and memory for inflated batches."""

    __slots__ = ("inflation", "slice")

    def __init__(self, broker: Broker) -> None:
        config = broker.config
        self.inflation = InflationBudget(
            max(config.max_inflated_request_bytes, config.max_inflated_batch_bytes)
        )
        self.slice = SliceClock()


class ProduceOperation:
    """One Produce request: its partitions, their results, and the events that the response waits for."""

    topics: Sequence[ProducedTopic] = ()
    failed = False
    budget: ProduceBudget | None = None
    """None for a request of one batch"""
    to_flush: dict[tuple[TopicKey, int], Partition] | None = None
    """partitions whose ``flush.messages`` is due"""
    delayed: DelayedProduce | None = None
    """batches that other replicas do not have yet"""
    is_large = False
    """The next batch takes more than a slice to validate."""
    may_transact = False
    """Transactional batches are allowed."""
    allowed: str | None = None
    """topic of the last batch, to which the client may write"""

    def __init__(self, broker: Broker, context: RequestContext, request: ProduceRequestView) -> None:
        self.broker = broker
        self.context = context
        self.authorizer = broker.authorizer
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.transactional_id = request.transactional_id
        self.now_ms = broker.clock.now_ms()
        self.results: list[tuple[TopicKey, list[ProducePartitionResult]]] = []

    # -- appends

    def append_at_once(self) -> Answer | Awaitable[Answer]:
        """Append in this turn of the loop; if that takes too long, return a coroutine that continues."""
        budget = self.budget
        for topic, partitions in self.topics:
            results: list[ProducePartitionResult] = []
            self.results.append((topic, results))
            for index, records in partitions:
                is_over = budget is not None and budget.slice.is_over()
                try:
                    if is_over:
                        raise BeyondSlice
                    results.append(self._append(topic, index, records))
                except BeyondSlice:
                    self.is_large = not is_over
                    return self._continue_in_slices()
        if self.to_flush is not None:
            self.topics = ()  # frees the request's buffer, which its views hold
            return self._answer_after_flush(self.to_flush)
        if self.delayed is not None:
            self.topics = ()
            return self._answer_once_committed(self.delayed)
        if self.failed and budget is None:
            at_once(self.refuse_transactional())
        return self.answer()

    async def append_in_slices(self, topics: Sequence[ProducedTopic]) -> Response | None:
        """Append to many partitions, all of it in slices."""
        self.topics = await Slice().go_on(without_repeats(topics))
        if await Slice().go_on(self.refuse_transactional()):
            return await Slice().go_on(self._response())
        return await self._continue_in_slices()

    async def _continue_in_slices(self) -> Response | None:
        """Append the rest of a request that is more than a slice; validate large batches on a thread.

        The loop appends to the partitions in the request's order. Requests of a connection keep their order,
        too: the next one waits for this response.
        """
        budget = self.budget = self.budget or ProduceBudget(self.broker)
        budget.slice.begin()
        for n, (topic, partitions) in enumerate(self.topics):
            if n == len(self.results):
                self.results.append((topic, []))
            results = self.results[n][1]
            for index, records in islice(partitions, len(results), None):
                if budget.slice.is_over():
                    await next_turn()
                    budget.slice.begin()
                results.append(await self._append_later(topic, index, records, budget))
        if self.to_flush is not None or self.delayed is not None:
            return await self._answer_after_flush(self.to_flush or {})
        return await Slice().go_on(self._response())

    def _append(self, topic: TopicKey, index: int, records: Buffer | None) -> ProducePartitionResult:
        """Append one batch at once, or raise `BeyondSlice` without any effect."""
        budget = self.budget
        try:
            partition = self._partition(topic, index, records)
            # Offsets are stamped into the frame, which is writable.
            assert not isinstance(records, bytes | None)
            if budget is None:
                batch = validate_produced(records, partition.rules, self.now_ms, None, True)
            else:
                batch = validate_produced(records, partition.rules, self.now_ms, budget.inflation, True)
            info = partition.append(batch, self.now_ms)
        except (RequestError, StorageError, CorruptionError) as e:
            return self._refused(topic, index, e)
        return self._appended(partition, topic, index, batch, info)

    async def _append_later(
        self, topic: TopicKey, index: int, records: Buffer | None, budget: ProduceBudget
    ) -> ProducePartitionResult:
        """Append one batch; validate a large one on a thread.

        Meanwhile the partition may be deleted, or created again under its name: so it is looked up again.
        """
        is_large, self.is_large = self.is_large, False
        may_transact = self.may_transact
        try:
            guard = self._guard(topic, index)
            partition = self._partition(topic, index, records)
            assert not isinstance(records, bytes | None)
            rules = partition.rules
            try:
                if is_large:
                    raise BeyondSlice
                batch = validate_produced(records, rules, self.now_ms, budget.inflation, True, may_transact)
            except BeyondSlice:
                thread, meter = self.broker.records_thread, self.context.meter
                validate = validate_produced if meter is None else meter.on_thread(validate_produced)
                batch = await thread(
                    validate, records, rules, self.now_ms, budget.inflation, False, may_transact
                )
                budget.slice.begin()
            if self._partition(topic, index, records) is not partition:
                raise RequestError(ErrorCode.not_leader_or_follower, f"{partition.tip} was replaced")
            info = partition.append(batch, self.now_ms, guard)
        except (RequestError, StorageError, CorruptionError) as e:
            return self._refused(topic, index, e)
        return self._appended(partition, topic, index, batch, info)

    def _guard(self, topic: TopicKey, index: int) -> VerificationGuard | None:
        """Return the guard with which the batch is appended; None without a transaction."""
        return None

    def _partition(self, topic: TopicKey, index: int, records: Buffer | None) -> Partition:
        """Return the batch's partition, after the checks before validation. Raises `RequestError`."""
        broker, context, acks = self.broker, self.context, self.acks
        authorizer = self.authorizer
        try:
            partition = broker.replicas.find(topic, index)
        except (RequestError, StorageError):
            self.check_missing(topic, index)
            raise
        if authorizer is not None and partition.tip.topic != self.allowed:
            self.check_allowed(authorizer, partition.tip.topic)
        if partition.tip.topic in INTERNAL_TOPICS:
            check_internal(context, partition.tip.topic)
        if broker.heir is not None:
            broker.check_heir()
        if broker.disks.is_pressed:
            broker.disks.check(partition)
        if records is None:
            raise RequestError(ErrorCode.invalid_record, "no record batch")
        if context.api_version < FIRST_VERSION_WITH_ZSTD and is_zstd(records):
            raise RequestError(
                ErrorCode.unsupported_compression_type, "zstd needs a client with Produce version 7 or newer"
            )
        if not partition.is_leader and acks in VALID_ACKS:
            partition.check_leads()
        if acks == ALL:
            partition.check_replicas(records)
        elif acks not in VALID_ACKS:
            check_frame(records)
            raise RequestError(ErrorCode.invalid_required_acks)
        return partition

    def check_missing(self, topic: TopicKey, index: int) -> None:
        """Raise `RequestError` if the client may not be told that this partition is not here."""
        broker = self.broker
        if self.authorizer is not None and (name := broker.name_of(topic)) is not None:
            self.check_allowed(self.authorizer, name)
        known = broker.image.topic(topic)
        if known is not None and index in known.partitions:
            check_internal(self.context, known.name)

    def check_allowed(self, authorizer: Authorizer, topic: str) -> None:
        """Raise `RequestError` TOPIC_AUTHORIZATION_FAILED unless the client may write to the topic."""
        context = self.context
        if not authorizer.allows(context.session, _WRITE, _TOPIC, topic, api=context.api_key):
            raise RequestError(ErrorCode.topic_authorization_failed)
        self.allowed = topic

    def _appended(
        self, partition: Partition, topic: TopicKey, index: int, batch: ValidatedBatch, info: AppendInfo
    ) -> ProducePartitionResult:
        broker = self.broker
        metrics = broker.metrics
        size, count = len(batch.data), batch.record_count
        metrics.appended_batches += 1
        metrics.appended_records += count
        metrics.appended_bytes += size
        traffic = partition.traffic
        traffic.produced_records += count
        traffic.produced_bytes += size
        if metrics.appended_bytes >= broker.disks.alarm_at:
            broker.disks.alarm()
        if partition.log.flush_due:
            if self.to_flush is None:
                self.to_flush = {}
            self.to_flush[topic, index] = partition
        if self.acks == ALL and (leading := partition.leading) is not None:
            if self.delayed is None:
                self.delayed = DelayedProduce(broker)
            self.delayed.add(leading, info.last_offset + 1, topic, index)
        if not partition.gate.is_open and self.acks and (self.acks == ALL or partition.leading is None):
            if self.delayed is None:
                self.delayed = DelayedProduce(broker)
            self.delayed.hold(partition.gate)
        return ProducePartitionResult(
            index, ErrorCode.none, info.first_offset, info.log_append_time, info.log_start_offset
        )

    # -- refusals

    def refuse_transactional(self) -> Steps[bool]:
        """Refuse the whole request if any batch is transactional, and it has no transactional id or one that
        the client may not write under. Returns whether it was refused.

        A request of one batch need not be checked before its append: that batch is refused in any case.
        """
        transactional_id = self.transactional_id
        if transactional_id is not None and self.authorizer is None:
            return False
        found, named = False, 0
        for _, partitions in self.topics:
            for _, records in partitions:
                named += 1
                if not named % _NAMED_AT_A_TIME:
                    yield
                found = found or (records is not None and is_transactional(records))
        if not found or (transactional_id is not None and self._may_transact(transactional_id)):
            return False
        error = RequestError(ErrorCode.transactional_id_authorization_failed)
        self.results = []
        for topic, partitions in self.topics:
            results: list[ProducePartitionResult] = []
            self.results.append((topic, results))
            for index, _ in partitions:
                if not len(results) % _NAMED_AT_A_TIME:
                    yield
                results.append(self._refused(topic, index, error))
        return True

    def _may_transact(self, transactional_id: str) -> bool:
        resource = AclResourceType.TRANSACTIONAL_ID
        return is_allowed(self.broker, self.context, AclOperation.WRITE, resource, transactional_id)

    def _refused(self, topic: TopicKey, index: int, error: FirnError) -> ProducePartitionResult:
        self.failed = True
        broker = self.broker
        if isinstance(error, RequestError):
            broker.log_refusal("Produce", self.context, topic, index, error)
            broker.metrics.error("PRODUCE", error.code)
            errors = error.record_errors if isinstance(error, RecordsRefused) else ()
            leader = None
            if (
                error.code is ErrorCode.not_leader_or_follower
                and self.context.api_version >= FIRST_VERSION_WITH_LEADERS
            ):
                leader = broker.current_leader(topic, index)
            return ProducePartitionResult(
                index, error.code, record_errors=errors, error_message=error.message, current_leader=leader
            )
        self._storage_failed(topic, index, error)
        message = None
        if isinstance(error, DiskError) and error.errno in FULL:
            if (partition := broker.replicas.get_by(topic, index)) is not None:
                broker.disks.refused(partition.tip)
            message = "the disk is full"
        return ProducePartitionResult(index, ErrorCode.kafka_storage_error, error_message=message)

    def _storage_failed(self, topic: TopicKey, index: int, error: FirnError) -> None:
        self.failed = True
        self.broker.log_storage_error("Produce", topic, index, error)
        self.broker.metrics.error("PRODUCE", ErrorCode.kafka_storage_error)

    # -- the response

    def answer(self) -> Response | None:
        """Return the response at once."""
        context = self.context
        if self.failed or self.broker.disks.is_pressed:
            return at_once(self._response())
        throttle_ms = 0 if context.meter is None else context.meter.produced(is_exempt=self.acks == 0)
        if self.acks == 0:
            return Throttled([], throttle_ms / 1000) if throttle_ms else None
        data = encode_produce_response(context.api_version, context.correlation_id, self.results, throttle_ms)
        return Throttled([data], throttle_ms / 1000) if throttle_ms else Response([data])

    def _response(self) -> Steps[Response | None]:
        """Encode the response; while a disk fills up, and by quotas, it throttles the connection."""
        disks, context = self.broker.disks, self.context
        throttle_ms = disks.throttle_ms(self.results) if disks.is_pressed else 0
        if context.meter is not None:
            throttle_ms = max(throttle_ms, context.meter.produced(is_exempt=self.acks == 0))
        if self.acks == 0:
            if self.failed:
                raise RefusedWithoutAnswer("Produce with acks=0 was refused: closing the connection")
            return Throttled([], throttle_ms / 1000) if throttle_ms else None
        endpoints: tuple[NodeEndpoint, ...] = ()
        if self.failed:
            endpoints = yield from self._leaders()
        data = yield from encode_produce_response_in_steps(
            context.api_version, context.correlation_id, self.results, throttle_ms, endpoints
        )
        return Throttled([data], throttle_ms / 1000) if throttle_ms else Response([data])

    def _leaders(self) -> Steps[tuple[NodeEndpoint, ...]]:
        """Return the addresses of the leaders that results name."""
        leaders: dict[int, None] = {}
        named = 0
        for _, results in self.results:
            for result in results:
                named += 1
                if not named % _NAMED_AT_A_TIME:
                    yield
                if result.current_leader is not None:
                    leaders[result.current_leader[0]] = None
        return self.broker.node_endpoints(self.context.listener, leaders) if leaders else ()

    async def _answer_after_flush(self, to_flush: dict[tuple[TopicKey, int], Partition]) -> Response | None:
        """Answer once the appends whose ``flush.messages`` is due are on the device. The wait for replicas
        runs meanwhile.
        """
        broker, delayed = self.broker, self.delayed
        settled: asyncio.Future[None] = broker.loop.create_future()
        waits = delayed is not None and delayed.begin(
            self.timeout_ms, lambda: None if settled.done() else settled.set_result(None)
        )
        outcomes: list[object] = []
        logs = [partition.log for partition in to_flush.values()]
        for at in range(0, len(logs), MOST_AT_ONCE):
            some = map(broker.flush, logs[at : at + MOST_AT_ONCE])
            outcomes += await asyncio.gather(*some, return_exceptions=True)
        lost = {key for key, outcome in zip(to_flush, outcomes, strict=True) if outcome is not None}
        for (topic, index), error in zip(to_flush, outcomes, strict=True):
            if error is None:
                continue
            if not isinstance(error, StorageError):
                assert isinstance(error, BaseException)
                raise error
            self._storage_failed(topic, index, error)
        if waits:
            await settled
        self._note_uncommitted()
        for topic, results in self.results if lost else ():
            for n, result in enumerate(results):
                if (topic, result.partition) in lost:
                    results[n] = ProducePartitionResult(result.partition, ErrorCode.kafka_storage_error)
        return await Slice().go_on(self._response())

    def _answer_once_committed(self, delayed: DelayedProduce) -> Answer | DelayedResponse:
        """Answer once each batch is committed or refused (acks=all). While a disk fills up, and under a
        quota, the connection's next requests wait, too, to slow producers down.
        """
        context = self.context = self.context.kept()
        weight = 0
        if not self.broker.disks.is_pressed and context.meter is None:
            weight = sum([len(results) for _, results in self.results])
        response = DelayedResponse(self._committed, weight)
        return response if delayed.begin(self.timeout_ms, response.settled) else self._committed()

    def _committed(self) -> Response | None:
        self._note_uncommitted()
        return self.answer()

    def _note_uncommitted(self) -> None:
        """Set the error of batches that were appended but are not known to be committed."""
        refused = self.delayed.refused() if self.delayed is not None else {}
        for topic, results in self.results if refused else ():
            for n, result in enumerate(results):
                error = refused.get((topic, result.partition))
                if error is not None:
                    why = f"appended at offset {result.base_offset}, but not known to be committed"
                    leader = self._refused(topic, result.partition, RequestError(error, why)).current_leader
                    results[n] = result._replace(error_code=error, current_leader=leader)


def without_repeats(topics: Sequence[ProducedTopic]) -> Steps[Sequence[ProducedTopic]]:
    """Return each partition once, with its last records: Kafka's handler collects them in a map. No current
    client repeats a partition.
    """
    named = 0
    last: dict[tuple[TopicKey, int], Buffer | None] = {}
    for topic, partitions in topics:
        for index, records in partitions:
            named += 1
            if not named % _NAMED_AT_A_TIME:
                yield
            last[topic, index] = records
    if len(last) == named:
        return topics
    kept: dict[TopicKey, list[tuple[int, Buffer | None]]] = {}
    for named, ((topic, index), records) in enumerate(last.items(), 1):
        if not named % _NAMED_AT_A_TIME:
            yield
        kept.setdefault(topic, []).append((index, records))
    return list(kept.items())


def is_transactional(records: Buffer) -> bool:
    """Return whether the first batch is transactional; False if the bytes are no batch (Kafka
    `RequestUtils.flag`).
    """
    if len(records) <= _ATTRIBUTES_LOW_BYTE or not records[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_FLAG:
        return False
    try:
        return read_header(records).size <= len(records)
    except CorruptionError:
        return False


def check_internal(context: RequestContext, topic: str) -> None:
    """Raise `RequestError` INVALID_TOPIC_EXCEPTION if this client may not write to the topic."""
    if topic in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT:
        raise RequestError(ErrorCode.invalid_topic_exception, f"Cannot append to internal topic {topic}")
