"""Produce: validate, stamp and append where the bytes lie in the request's own buffer.

Every partition has its own outcome; a batch that is refused leaves no trace. The order of checks is Kafka's
(`KafkaApis.handleProduceRequest`, `ReplicaManager.appendRecords`, `UnifiedLog.append`).

One small batch is validated and appended at once. What is more than a slice of the loop's turn (many batches,
one that is large, or inflates to much, or is to be compressed anew) goes on in later turns, and a large batch
is validated on a thread; appending is the loop's in any case.

With acks=all the answer waits until all in-sync replicas have what was appended
(`serving/delayed_produce.py`). The connection's next Produce requests do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.disk import FULL, DiskError
from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.base.slices import Slice, next_turn
from service.base.steps import Steps, at_once
from service.base.turn_queues import SLICE_US
from service.base.types import Buffer
from service.hot.state import AppendInfo
from service.network.exchange import Answer, RequestContext, Response, Throttled
from service.partition.partition import Partition
from service.records.batch import ATTRIBUTES_AT, CODEC_MASK, TRANSACTIONAL_FLAG, read_header, says_zstd
from service.records.validation import (
    BeyondSlice,
    Inflation,
    RecordsRefused,
    ValidatedBatch,
    ValidationRules,
    check_frame,
    validate_produced,
)
from service.serving.delayed_produce import Commits, OnceCommitted
from service.serving.internal_topics import ADMIN_CLIENT, INTERNAL_TOPICS
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

FIRST_VERSION_WITH_ZSTD: Final = 7
FIRST_VERSION_WITH_LEADERS: Final = 10
"""Who is refused because we do not lead is told who does (KIP-951)."""
_ATTRIBUTES_LOW_BYTE: Final = ATTRIBUTES_AT + 1
ALL: Final = -1
VALID_ACKS: Final = (ALL, 0, 1)
MOST_AT_ONCE: Final = 250
"""Partitions that are named in what is answered without a task."""
_NAMED_AT_A_TIME: Final = 500
_FILES_US: Final = 400
_PARTITION_US: Final = 25
"""What a partition costs besides its bytes."""

AnsweredTopic = tuple[TopicKey, list[ProducePartitionResult]]


class RefusedWithoutAnswer(WireError):
    """acks=0 and something was refused: with no answer to put the error in, the connection is closed, as
    Kafka does, so that the client notices and asks for metadata anew."""


def handle(
    broker: Broker, context: RequestContext, request: ProduceRequestView
) -> Answer | Awaitable[Answer]:
    """Append everything that can be. None when the client wants no answer (acks=0)."""
    now_ms = broker.clock.now_ms()
    owed = Owed()
    failed = False
    topics: list[AnsweredTopic] = []
    refused: list[AnsweredTopic] | None
    if len(request.topics) == 1 and len(request.topics[0][1]) == 1:
        asked: Sequence[ProducedTopic] = request.topics
    elif sum([len(partitions) for _, partitions in request.topics]) > MOST_AT_ONCE:
        return _from_the_start(broker, context, request, now_ms)
    else:
        asked = at_once(_each_once(request.topics))
        if request.transactional_id is None:
            refused = at_once(_without_transactional_id(broker, context, asked))
            if refused is not None:
                return _answer(broker, context, request.acks, refused, True)
    work = None if len(asked) == 1 and len(asked[0][1]) == 1 else Work(broker)
    for topic, partitions in asked:
        answers: list[ProducePartitionResult] = []
        topics.append((topic, answers))
        for index, records in partitions:
            over = work is not None and work.charge(records)
            try:
                if over:
                    raise BeyondSlice
                answer = _append(broker, context, request.acks, topic, index, records, now_ms, owed, work)
            except BeyondSlice as e:
                is_large = not over and not isinstance(e, BeyondTurn)
                owed.timeout_ms = request.timeout_ms
                produced = Produced(request.acks, now_ms, asked, topics, owed, failed, is_large)
                return _go_on(broker, context, produced, work or Work(broker))
            failed = failed or answer.error_code != ErrorCode.none
            answers.append(answer)
    if owed.to_flush is not None:
        owed.timeout_ms = request.timeout_ms
        return _answer_after_flush(broker, context, request.acks, topics, owed, failed)
    if owed.commits is not None:
        owed.timeout_ms = request.timeout_ms
        return _answer_once_committed(broker, context, topics, owed, owed.commits, failed)
    if failed and work is None and request.transactional_id is None:
        refused = at_once(_without_transactional_id(broker, context, asked))
        topics = topics if refused is None else refused
    return _answer(broker, context, request.acks, topics, failed)


class Owed:
    """What the answer waits for after the appends: the device, and other replicas. Mostly nothing."""

    timeout_ms = 0
    to_flush: dict[tuple[TopicKey, int], Partition] | None = None
    commits: Commits | None = None


class BeyondTurn(BeyondSlice):
    """It is not the batch that takes long."""


class Work:
    """What one request may still cost: this turn of the loop, and memory for inflated batches."""

    __slots__ = ("_inflation_left", "_left_us", "inflation")

    def __init__(self, broker: Broker) -> None:
        config = broker.config
        most = max(config.max_inflated_request_bytes, config.max_inflated_batch_bytes)
        self.inflation = Inflation(most)
        self._inflation_left = most
        self._left_us = SLICE_US

    def charge(self, records: Buffer | None) -> bool:
        """Count a batch that is about to be looked at; True when it belongs to the next turn."""
        self._left_us -= _PARTITION_US + (len(records) >> 9 if records is not None else 0)
        return self._left_us < 0

    def begins(self, partition: Partition) -> bool:
        """As `charge`, for a partition whose files this append begins."""
        if not partition.begins_files:
            return False
        self._left_us -= _FILES_US
        return self._left_us < 0

    def validated(self, records: Buffer, rules: ValidationRules) -> None:
        """Count what a compressed batch has cost that was validated in this turn: less than a slice."""
        codec = records[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK
        size = self._inflation_left - self.inflation.left_bytes if codec else len(records)
        self._inflation_left = self.inflation.left_bytes
        self._left_us -= size * SLICE_US // rules.at_once_bytes[codec]

    def new_turn(self) -> None:
        """What follows is done in another turn."""
        self._left_us = SLICE_US
        self._inflation_left = self.inflation.left_bytes


class Produced(NamedTuple):
    """A request that is half done: what it asks for, and what is answered of it already."""

    acks: int
    now_ms: int
    asked: Sequence[ProducedTopic]
    topics: list[AnsweredTopic]
    owed: Owed
    failed: bool
    is_large: bool
    """The next batch is known to be more than a slice."""


async def _from_the_start(
    broker: Broker, context: RequestContext, request: ProduceRequestView, now_ms: int
) -> Response | None:
    """A request of many partitions, all of it in slices."""
    asked = await Slice().go_on(_each_once(request.topics))
    if request.transactional_id is None:
        refused = await Slice().go_on(_without_transactional_id(broker, context, asked))
        if refused is not None:
            return await _answer_in_slices(broker, context, request.acks, refused, True)
    owed = Owed()
    owed.timeout_ms = request.timeout_ms
    produced = Produced(request.acks, now_ms, asked, [], owed, failed=False, is_large=False)
    return await _go_on(broker, context, produced, Work(broker))


async def _go_on(broker: Broker, context: RequestContext, produced: Produced, work: Work) -> Response | None:
    """The rest of a request that is more than a slice: in slices, large batches validated on a thread.

    Partitions are appended to in the order asked, and on the loop; so are the requests of a connection, as
    the next one waits for this answer.
    """
    acks, now_ms, asked, topics, owed, failed, is_large = produced
    work.new_turn()
    for n, (topic, partitions) in enumerate(asked):
        if n == len(topics):
            topics.append((topic, []))
        answers = topics[n][1]
        for index, records in islice(partitions, len(answers), None):
            if work.charge(records):
                await next_turn()
                work.new_turn()
            answer = await _append_later(
                broker, context, acks, topic, index, records, now_ms, owed, work, is_large
            )
            is_large = False
            failed = failed or answer.error_code != ErrorCode.none
            answers.append(answer)
    if owed.to_flush is not None or owed.commits is not None:
        return await _answer_after_flush(broker, context, acks, topics, owed, failed)
    return await _answer_in_slices(broker, context, acks, topics, failed)


def _each_once(topics: Sequence[ProducedTopic]) -> Steps[Sequence[ProducedTopic]]:
    """A partition that is named twice counts once, with the records named last: Kafka's handler collects
    them in a map. No client of the present does that.
    """
    named = 0
    last: dict[tuple[TopicKey, int], Buffer | None] = {}
    for topic, partitions in topics:
        for index, records in partitions:
            named += 1
            if not named % _NAMED_AT_A_TIME:
                yield _NAMED_AT_A_TIME
            last[topic, index] = records
    if len(last) == named:
        return topics
    kept: dict[TopicKey, list[tuple[int, Buffer | None]]] = {}
    for named, ((topic, index), records) in enumerate(last.items(), 1):
        if not named % _NAMED_AT_A_TIME:
            yield _NAMED_AT_A_TIME
        kept.setdefault(topic, []).append((index, records))
    return list(kept.items())


def _without_transactional_id(
    broker: Broker, context: RequestContext, asked: Sequence[ProducedTopic]
) -> Steps[list[AnsweredTopic] | None]:
    """The answer to a request that has no transactional id where any of its batches is transactional: nobody
    may write those, and nothing of the request is appended. None where none is.

    One partition alone needs no look before: its batch is refused in any case.
    """
    found, named = False, 0
    for _, partitions in asked:
        for _, records in partitions:
            named += 1
            if not named % _NAMED_AT_A_TIME:
                yield _NAMED_AT_A_TIME
            found = found or (records is not None and _is_transactional(records))
    if not found:
        return None
    error = RequestError(
        ErrorCode.transactional_id_authorization_failed, "transactional records need a transactional id"
    )
    answers: list[AnsweredTopic] = []
    for topic, partitions in asked:
        results: list[ProducePartitionResult] = []
        answers.append((topic, results))
        for index, _ in partitions:
            if not len(results) % _NAMED_AT_A_TIME:
                yield _NAMED_AT_A_TIME
            results.append(_refused(broker, context, topic, index, error))
    return answers


def _is_transactional(records: Buffer) -> bool:
    """Whether the first batch says so; what is no batch says nothing (Kafka `RequestUtils.flag`)."""
    if len(records) <= _ATTRIBUTES_LOW_BYTE or not records[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_FLAG:
        return False
    try:
        return read_header(records).size <= len(records)
    except CorruptionError:
        return False


async def _answer_in_slices(
    broker: Broker, context: RequestContext, acks: int, topics: Sequence[AnsweredTopic], failed: bool
) -> Response | None:
    if acks == 0:
        return _answer(broker, context, acks, topics, failed)
    version, correlation_id = context.api_version, context.correlation_id
    throttle_ms = broker.disks.throttle_ms(topics) if broker.disks.is_pressed else 0
    endpoints = await Slice().go_on(_leaders(broker, context, topics)) if failed else ()
    steps = encode_produce_response_in_steps(version, correlation_id, topics, throttle_ms, endpoints)
    parts = [await Slice().go_on(steps)]
    return Throttled(parts, throttle_ms / 1000) if throttle_ms else Response(parts)


def _answer(
    broker: Broker, context: RequestContext, acks: int, topics: Sequence[AnsweredTopic], failed: bool
) -> Response | None:
    if broker.disks.is_pressed and (throttle_ms := broker.disks.throttle_ms(topics)):
        return _throttled(broker, context, acks, topics, failed, throttle_ms)
    if acks == 0:
        if failed:
            raise RefusedWithoutAnswer("produce with acks=0 was refused")
        return None
    version, correlation_id = context.api_version, context.correlation_id
    if not failed:
        return Response([encode_produce_response(version, correlation_id, topics)])
    endpoints = at_once(_leaders(broker, context, topics))
    return Response([encode_produce_response(version, correlation_id, topics, 0, endpoints)])


def _leaders(
    broker: Broker, context: RequestContext, topics: Sequence[AnsweredTopic]
) -> Steps[tuple[NodeEndpoint, ...]]:
    """Where those leaders are found that the answers tell of."""
    leaders: dict[int, None] = {}
    named = 0
    for _, answers in topics:
        for answer in answers:
            named += 1
            if not named % _NAMED_AT_A_TIME:
                yield _NAMED_AT_A_TIME
            if answer.current_leader is not None:
                leaders[answer.current_leader[0]] = None
    return broker.node_endpoints(context.listener, leaders) if leaders else ()


def _throttled(
    broker: Broker,
    context: RequestContext,
    acks: int,
    topics: Sequence[AnsweredTopic],
    failed: bool,
    throttle_ms: int,
) -> Response:
    """The answer, told that the connection's next request has to wait."""
    if acks == 0:
        if failed:
            raise RefusedWithoutAnswer("produce with acks=0 was refused")
        return Throttled([], throttle_ms / 1000)
    endpoints = at_once(_leaders(broker, context, topics)) if failed else ()
    version, correlation_id = context.api_version, context.correlation_id
    answer = encode_produce_response(version, correlation_id, topics, throttle_ms, endpoints)
    return Throttled([answer], throttle_ms / 1000)


async def _answer_after_flush(
    broker: Broker,
    context: RequestContext,
    acks: int,
    topics: list[AnsweredTopic],
    owed: Owed,
    failed: bool,
) -> Response | None:
    """``flush.messages`` is due: the answer waits for the disk, the loop does not. Other replicas have their
    time meanwhile."""
    commits, to_flush = owed.commits, owed.to_flush or {}
    settled: asyncio.Future[None] = broker.loop.create_future()
    waits = commits is not None and commits.begin(
        owed.timeout_ms, lambda: None if settled.done() else settled.set_result(None)
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
        broker.log_storage_error("Produce", topic, index, error)
        broker.metrics.error("PRODUCE", ErrorCode.kafka_storage_error)
    if waits:
        await settled
    failed = failed or bool(lost) or (commits is not None and _take_refused(broker, context, topics, commits))
    for topic, answers in topics if lost else ():
        for n, answer in enumerate(answers):
            if (topic, answer.partition) in lost:
                answers[n] = ProducePartitionResult(answer.partition, ErrorCode.kafka_storage_error)
    return await _answer_in_slices(broker, context, acks, topics, failed)


def _answer_once_committed(
    broker: Broker,
    context: RequestContext,
    topics: list[AnsweredTopic],
    owed: Owed,
    commits: Commits,
    failed: bool,
) -> Answer | OnceCommitted:
    """acks=all: each partition has an outcome of its own, and the answer waits for the last. While a disk is
    filling up so does whatever the connection asks next, as producers are to be slowed down then."""
    kept = context.kept()

    def answer() -> Response | None:
        refused = _take_refused(broker, kept, topics, commits)
        return _answer(broker, kept, ALL, topics, failed or refused)

    weight = 0 if broker.disks.is_pressed else sum([len(answers) for _, answers in topics])
    promise = OnceCommitted(answer, weight)
    return promise if commits.begin(owed.timeout_ms, promise.settled) else answer()


def _take_refused(
    broker: Broker, context: RequestContext, topics: Sequence[AnsweredTopic], commits: Commits
) -> bool:
    """Note which partitions' records are not known to be committed, though they were appended; whether there
    are any."""
    refused = commits.refused()
    for topic, answers in topics if refused else ():
        for n, answer in enumerate(answers):
            error = refused.get((topic, answer.partition))
            if error is not None:
                why = RequestError(error, f"appended at {answer.base_offset}, and not known to be committed")
                told = _refused(broker, context, topic, answer.partition, why)
                leader = told.current_leader
                answers[n] = answer._replace(error_code=error, current_leader=leader)
    return bool(refused)


def _append(
    broker: Broker,
    context: RequestContext,
    acks: int,
    topic: TopicKey,
    index: int,
    records: Buffer | None,
    now_ms: int,
    owed: Owed,
    work: Work | None,
) -> ProducePartitionResult:
    """At once, or not at all: `BeyondSlice`."""
    try:
        partition = _partition(broker, context, acks, topic, index, records)
        # Offsets are stamped where the bytes lie; the frame is ours to write to.
        assert not isinstance(records, bytes | None)
        if work is None:
            batch = validate_produced(records, partition.rules, now_ms, None, True)
        else:
            if work.begins(partition):
                raise BeyondTurn
            batch = validate_produced(records, partition.rules, now_ms, work.inflation, True)
            if batch.header.attributes & CODEC_MASK:
                work.validated(records, partition.rules)
        info = partition.append(batch, now_ms)
    except (RequestError, StorageError, CorruptionError) as e:
        return _refused(broker, context, topic, index, e)
    return _appended(broker, acks, partition, topic, index, batch, info, owed)


async def _append_later(
    broker: Broker,
    context: RequestContext,
    acks: int,
    topic: TopicKey,
    index: int,
    records: Buffer | None,
    now_ms: int,
    owed: Owed,
    work: Work,
    is_large: bool,
) -> ProducePartitionResult:
    """As `_append`, a large batch validated on a thread.

    Meanwhile the partition may have gone, or another of its name have come: it is looked up again.
    """
    try:
        partition = _partition(broker, context, acks, topic, index, records)
        assert not isinstance(records, bytes | None)
        rules = partition.rules
        if work.begins(partition):
            await next_turn()
            work.new_turn()
        try:
            if is_large:
                raise BeyondSlice
            batch = validate_produced(records, rules, now_ms, work.inflation, True)
            work.validated(records, rules)
        except BeyondSlice:
            batch = await broker.records_thread(validate_produced, records, rules, now_ms, work.inflation)
            work.new_turn()
        if _partition(broker, context, acks, topic, index, records) is not partition:
            raise RequestError(ErrorCode.not_leader_or_follower, f"{partition.tip} was replaced")
        info = partition.append(batch, now_ms)
    except (RequestError, StorageError, CorruptionError) as e:
        return _refused(broker, context, topic, index, e)
    return _appended(broker, acks, partition, topic, index, batch, info, owed)


def _appended(
    broker: Broker,
    acks: int,
    partition: Partition,
    topic: TopicKey,
    index: int,
    batch: ValidatedBatch,
    info: AppendInfo,
    owed: Owed,
) -> ProducePartitionResult:
    metrics = broker.metrics
    metrics.appended_batches += 1
    metrics.appended_records += batch.record_count
    metrics.appended_bytes += len(batch.data)
    if metrics.appended_bytes >= broker.disks.alarm_at:
        broker.disks.alarm()
    if partition.log.flush_due:
        if owed.to_flush is None:
            owed.to_flush = {}
        owed.to_flush[topic, index] = partition
    if acks == ALL and (leading := partition.leading) is not None:
        if owed.commits is None:
            owed.commits = Commits(broker)
        owed.commits.add(leading, info.last_offset + 1, topic, index)
    return ProducePartitionResult(
        index, ErrorCode.none, info.first_offset, info.log_append_time, info.log_start_offset
    )


def _partition(
    broker: Broker, context: RequestContext, acks: int, topic: TopicKey, index: int, records: Buffer | None
) -> Partition:
    """Where the batch belongs, as far as can be told before it is looked at. `RequestError`."""
    try:
        partition = broker.replicas.find(topic, index)
    except RequestError:
        known = broker.image.topic(topic)
        if known is not None and index in known.partitions:
            _check_internal(context, known.name)
        raise
    if partition.tip.topic in INTERNAL_TOPICS:
        _check_internal(context, partition.tip.topic)
    if broker.disks.is_pressed:
        broker.disks.check(partition)
    if records is None:
        raise RequestError(ErrorCode.invalid_record, "no record batch")
    if context.api_version < FIRST_VERSION_WITH_ZSTD and says_zstd(records):
        raise RequestError(ErrorCode.unsupported_compression_type, "zstd needs Produce version 7")
    if not partition.is_leader and acks in VALID_ACKS:
        partition.check_leads()
    if acks == ALL:
        partition.check_replicas(records)
    elif acks not in VALID_ACKS:
        check_frame(records)
        raise RequestError(ErrorCode.invalid_required_acks)
    return partition


def _check_internal(context: RequestContext, topic: str) -> None:
    if topic in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT:
        raise RequestError(ErrorCode.invalid_topic_exception, f"Cannot append to internal topic {topic}")


def _refused(
    broker: Broker, context: RequestContext, topic: TopicKey, index: int, error: FirnError
) -> ProducePartitionResult:
    if isinstance(error, RequestError):
        broker.log_refusal("Produce", context, topic, index, error)
        broker.metrics.error("PRODUCE", error.code)
        errors = error.record_errors if isinstance(error, RecordsRefused) else ()
        leader = None
        if (
            error.code is ErrorCode.not_leader_or_follower
            and context.api_version >= FIRST_VERSION_WITH_LEADERS
        ):
            leader = broker.current_leader(topic, index)
        return ProducePartitionResult(
            index, error.code, record_errors=errors, error_message=error.message, current_leader=leader
        )
    broker.log_storage_error("Produce", topic, index, error)
    broker.metrics.error("PRODUCE", ErrorCode.kafka_storage_error)
    message = None
    if isinstance(error, DiskError) and error.errno in FULL:
        if (partition := broker.replicas.get_by(topic, index)) is not None:
            broker.disks.refused(partition.tip)
        message = "the disk is full"
    return ProducePartitionResult(index, ErrorCode.kafka_storage_error, error_message=message)
