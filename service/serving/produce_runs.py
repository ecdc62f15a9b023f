"""Ordinary Produce requests: one batch for one partition, which nothing refuses or delays.

A kernel takes small ones that came one behind the other as one run: the partition takes their batches with
one write, the responses are sent together, and all that `produce_operation` does for each request is done
once. A large or compressed one is handled alone, without the objects of a request. The checks are those of
`produce_operation`, made here only to see whether any of them refuses, delays or changes something: then
nothing is done, and the general path handles the request from its start.

The requests begin with the same bytes but for their correlation ids; `Route` is what these bytes say. It is
kept, and read by the ordinary parser where it is not known.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Final

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.types import INTERNAL_TOPICS, NO_LEADER_EPOCH, NO_TIMESTAMP, Buffer
from service.hot.state import AppendInfo
from service.network.request import AnsweredRun, RequestContext
from service.partition.partition import Partition, append_produced
from service.records.batch import is_zstd, stamp
from service.records.produce_kernel import HEAD_END, RECORDS, RECORDS_SIZE, STOP, VERSION
from service.records.produced_run import MOST_REQUESTS, RunTaker
from service.records.validation import BeyondSlice, ValidationRules, validate_produced
from service.security.operations import AclOperation, AclResourceType
from service.serving.produce_operation import ALL, FIRST_VERSION_WITH_ZSTD
from service.serving.request_host import Broker
from service.wire.api import ApiKey, parse_request_header
from service.wire.errors import WireError
from service.wire.produce import ProducePartitionResult, TopicKey, encode_produce_response, parse_produce

if TYPE_CHECKING:
    from service.security.authorizer import Authorizer

SMALL_BYTES: Final = 16 << 10
"""Largest batch that the kernel takes: it has the checksum of a larger one later than the library."""
CORRELATION_ID_AT: Final = 4
"""Position of the correlation id in a response, behind its size. In a request it is `_ID_AT`."""
_ID_AT: Final = 8
MOST_HEAD_BYTES: Final = 512
"""Longest beginning of a request that is kept."""
MOST_ROUTES: Final = 8192
"""Most beginnings that are kept, some 8 MB. librdkafka sends a request for each partition."""
EXCHANGED_OF: Final = 64
"""Each so many unknown beginnings one takes the place of the oldest, once there are `MOST_ROUTES`."""
LEFT_ALONE: Final = 32
"""Requests that are left to the general way behind one whose batch took more than a slice: that begins anew,
and most of those behind will be like it."""
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_MAX_INT64: Final = 2**63 - 1
_NO_RECORDS: Final = b"\xff\xff\xff\xff"
_NOTHING: Final = bytes(4)
"""The end of a request whose records are null, of flexible versions with three sections of tags."""
FIRST_FLEXIBLE: Final = 9
_CODECS: Final = ("producer", "uncompressed")
"""Settings of a topic that leave plain batches as they are."""


class Route:
    """Fields of the first bytes of requests, and the response to them."""

    __slots__ = (
        "_start", "_template", "acks", "answer_offset_at", "client_id", "index", "left_alone", "topic",
        "version",
    )  # fmt: skip

    def __init__(self, version: int, client_id: str, acks: int, topic: TopicKey, index: int) -> None:
        self.version = version
        self.client_id = client_id
        self.acks = acks
        self.topic = topic
        self.index = index
        self.left_alone = 0
        self._start = -1
        self._template = b""
        one, other = (self._encode(0, base_offset) for base_offset in (0, -1))
        self.answer_offset_at = next(at for at, byte in enumerate(one) if byte != other[at])

    def _encode(self, start: int, base_offset: int = 0, append_time_ms: int = NO_TIMESTAMP) -> bytearray:
        result = ProducePartitionResult(
            self.index, base_offset=base_offset, log_append_time_ms=append_time_ms, log_start_offset=start
        )
        return encode_produce_response(self.version, 0, [(self.topic, [result])])

    def answer(self, correlation_id: Buffer, info: AppendInfo) -> bytes:
        """Return the response to a request."""
        if info.log_append_time == NO_TIMESTAMP:
            answer = bytearray(self.template(info.log_start_offset))
            _INT64.pack_into(answer, self.answer_offset_at, info.first_offset)
        else:  # of a duplicate
            answer = self._encode(info.log_start_offset, info.first_offset, info.log_append_time)
        answer[CORRELATION_ID_AT : CORRELATION_ID_AT + 4] = correlation_id
        return bytes(answer)

    def template(self, start: int) -> bytes:
        """Return the response to a request, but for correlation id and base offset; `start`: of the log."""
        if start != self._start:
            self._template, self._start = bytes(self._encode(start)), start
        return self._template


class ProduceRuns:
    """Handler of runs. Owned by the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._taker = RunTaker()
        self._routes: dict[bytes, Route] = {}
        self._unknown = 0

    def __call__(self, context: RequestContext, data: memoryview, start: int, end: int) -> AnsweredRun | None:
        """See `network.request.RunHandler`."""
        head = self._taker.head(data, start, end)
        if head is None or head[HEAD_END] - start > MOST_HEAD_BYTES:
            return None
        key = bytes(data[start + 4 : start + 8]) + bytes(data[start + 12 : head[HEAD_END]])
        route = self._routes.get(key) or self._new_route(key, head[VERSION])
        if route is None:
            return None
        broker = self._broker
        partition = broker.replicas.get_by(route.topic, route.index)
        if partition is None or not self._is_ordinary(partition, route):
            return None
        authorizer = broker.authorizer
        if authorizer is not None and not _may_write(authorizer, context, partition.tip.topic):
            return None
        answered = None
        if head[RECORDS_SIZE] <= SMALL_BYTES and _keeps_batches(partition.rules):
            answered = self._append_run(partition, route, head, data, start, end)
        if answered is None:
            if route.left_alone:
                route.left_alone -= 1
                return None
            answered = self._append_one(partition, route, head, data, start)
            if answered is None:
                return None
        context.api_key, context.api_version = ApiKey.PRODUCE, route.version
        context.client_id = route.client_id
        context.correlation_id = _INT32.unpack_from(data, start + _ID_AT)[0]
        if authorizer is not None:
            for _ in range(answered.requests):  # each is counted, and told to the audit log
                authorizer.allows(
                    context.session, AclOperation.WRITE, AclResourceType.TOPIC, partition.tip.topic,
                    api=ApiKey.PRODUCE,
                )  # fmt: skip
        return answered

    def _append_run(
        self, partition: Partition, route: Route, head: array[int], data: memoryview, start: int, end: int
    ) -> AnsweredRun | None:
        """Append the batches of the requests that the kernel takes; None if it does not take the first, or
        the log does not."""
        now_ms, log = self._broker.clock.now_ms(), partition.unified.local.state
        taken = self._taker.take(
            data, start, end, head[HEAD_END],
            array("q", (
                # Each has a record at least.
                min(MOST_REQUESTS, log.config.flush_messages - 1 - log.end_offset + log.recovery_point),
                *_bounds(partition.rules, now_ms), log.end_offset, partition.leader_epoch,
                route.answer_offset_at,
            )),
            route.template(log.start),
        )  # fmt: skip
        if taken is None:
            return None
        run, stop, answers = taken
        unflushed = run.last_offset + 1 - log.recovery_point
        if unflushed >= log.config.flush_messages or not append_produced(partition, run, now_ms):
            return None
        self._count(partition, run.batches, run.last_offset + 1 - run.base_offset, len(run.data))
        return AnsweredRun(run.batches, stop, (answers,), len(answers))

    def _append_one(
        self, partition: Partition, route: Route, head: array[int], data: memoryview, start: int
    ) -> AnsweredRun | None:
        """Append the batch of the first request, in its place, as `ProduceOperation` does; None if anything
        refuses it, or it takes longer than a slice."""
        now_ms, log = self._broker.clock.now_ms(), partition.unified.local.state
        records = data[head[RECORDS] : head[RECORDS] + head[RECORDS_SIZE]]
        if route.version < FIRST_VERSION_WITH_ZSTD and is_zstd(records):
            return None
        try:
            batch = validate_produced(records, partition.rules, now_ms, None, True)
            unflushed = log.end_offset + batch.record_count - log.recovery_point
            if unflushed >= log.config.flush_messages:
                return None
            info = partition.append(batch, now_ms)
        except RequestError:
            return None
        except BeyondSlice:
            route.left_alone = LEFT_ALONE
            return None
        except (StorageError, CorruptionError):
            stamp(records, 0, 0, NO_LEADER_EPOCH)  # as it came
            return None
        self._count(partition, 1, batch.record_count, len(batch.data))
        correlation_id = data[start + _ID_AT : start + _ID_AT + 4]
        answer = route.answer(correlation_id, info)
        return AnsweredRun(1, head[STOP], (answer,), len(answer))

    def _count(self, partition: Partition, batches: int, records: int, size: int) -> None:
        """Count what was appended."""
        metrics, traffic, disks = self._broker.metrics, partition.traffic, self._broker.disks
        metrics.appended_batches += batches
        metrics.appended_records += records
        metrics.appended_bytes += size
        traffic.produced_records += records
        traffic.produced_bytes += size
        if metrics.appended_bytes >= disks.alarm_at:
            disks.alarm()

    def _new_route(self, head: bytes, version: int) -> Route | None:
        """Read the first bytes of a request, without its correlation id, and keep what they say.

        Of more than `MOST_ROUTES` few are exchanged: the general way costs less than to read each.
        """
        if len(self._routes) >= MOST_ROUTES:
            self._unknown += 1
            if self._unknown % EXCHANGED_OF:
                return None
            del self._routes[next(iter(self._routes))]
        frame = head[:4] + bytes(4) + head[4:] + (_NOTHING if version >= FIRST_FLEXIBLE else _NO_RECORDS)
        try:
            header = parse_request_header(frame)
            request = parse_produce(version, frame, header.body)
        except WireError:
            return None
        ((topic, ((index, _),)),) = request.topics
        route = self._routes[head] = Route(version, header.client_id, request.acks, topic, index)
        return route

    def _is_ordinary(self, partition: Partition, route: Route) -> bool:
        """Return whether nothing refuses or delays a plain batch for this partition, or its answer."""
        broker, rules, log = self._broker, partition.rules, partition.unified.local.state
        if broker.quotas.active or broker.heir is not None or broker.disks.is_pressed:
            return False
        if not partition.is_leader or not partition.gate.is_open or partition.tip.topic in INTERNAL_TOPICS:
            return False
        if log.end_offset + 1 - log.recovery_point >= log.config.flush_messages:
            return False  # any batch is answered after a flush
        if rules.log_append_time:
            return False  # the batch would be changed before it can be refused
        if route.acks == 1:
            return True
        return route.acks == ALL and partition.leading is None and _takes_any(partition)


def _keeps_batches(rules: ValidationRules) -> bool:
    """Return whether plain batches of this topic need no more than the kernel's checks."""
    return not rules.needs_keys and rules.compression_type in _CODECS


def _takes_any(partition: Partition) -> bool:
    """Return whether enough replicas are in sync, and no batch was refused that others are behind."""
    try:
        return partition.check_replicas()
    except RequestError:
        return False


def _may_write(authorizer: Authorizer, context: RequestContext, topic: str) -> bool:
    try:
        allowed = authorizer.allowed_operations(context.session, AclResourceType.TOPIC, topic)
    except RequestError:
        return False
    return bool(allowed >> AclOperation.WRITE & 1)


def _bounds(rules: ValidationRules, now_ms: int) -> tuple[int, int, int]:
    """Return most bytes of a batch, and bounds of timestamps."""
    oldest = max(now_ms - rules.timestamp_before_max_ms, -_MAX_INT64 - 1)
    newest = min(now_ms + rules.timestamp_after_max_ms, _MAX_INT64)
    return rules.max_message_bytes, oldest, newest
