"""Answer to the fetch that most consumers send all day: few partitions of one topic, enough bytes at once.

A fetch of a megabyte evicts the processor's caches, so each call of the plain path costs several times what
it costs in a loop. This is that path for a case without waits, errors, quotas, ACLs, cold bytes or aborted
transactions: it gives the same bytes, or None, and then the plain path (`handlers/fetch.py`) begins anew.
"""

from __future__ import annotations

from typing import Final, NamedTuple, cast

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.types import NO_LEADER_EPOCH
from service.network.request import RequestContext, Response
from service.network.sender import SMALL_SLICE_BYTES, Part
from service.partition.partition import Partition
from service.partition.unified_log import NOTHING, LogRead
from service.serving.fetch_read import INLINE_BYTES, reads_committed
from service.serving.request_host import Broker
from service.wire.fetch import FetchPartition, FetchRequestView, OrdinaryResult, encode_ordinary_response
from service.wire.produce import TopicKey

FIRST_FLEXIBLE: Final = 12
MOST_PARTITIONS: Final = 16


class _Found(NamedTuple):
    partition: Partition
    asked: FetchPartition
    read: LogRead


def respond(broker: Broker, context: RequestContext, fetch: FetchRequestView) -> Response | None:
    """Return the response to a consumer's fetch without a session; None if the plain path has to make it."""
    if (
        len(fetch.topics) != 1
        or context.api_version < FIRST_FLEXIBLE
        or context.meter is not None
        or fetch.replica_id >= 0
        or broker.authorizer is not None
        or broker.replica_selector is not None
        or broker.reads_carefully
    ):
        return None
    topic, wanted = fetch.topics[0]
    if not 0 < len(wanted) <= MOST_PARTITIONS:
        return None
    room = min(fetch.max_bytes, broker.config.fetch_max_bytes)
    is_committed = reads_committed(fetch)
    found: list[_Found] = []
    size = 0
    try:
        for asked in wanted:
            one = _read(broker, topic, asked, room - size, not size, is_committed)
            if one is None:
                return None
            size += one.read.size
            found.append(one)
        if size < max(min(fetch.min_bytes, room), 1):
            return None
        results = _results(found)
    except (RequestError, StorageError, CorruptionError):
        return None  # the plain path meets it again, and says so
    _record(broker, found)
    parts = encode_ordinary_response(
        context.api_version, context.correlation_id, topic, results, is_committed=is_committed
    )
    return Response(cast("list[Part]", parts), None, broker.note_send_failure)


def _read(
    broker: Broker, topic: TopicKey, asked: FetchPartition, room: int, is_first: bool, is_committed: bool
) -> _Found | None:
    partition = broker.replicas.get_by(topic, asked.partition)
    if partition is None or asked.last_fetched_epoch > NO_LEADER_EPOCH:
        return None
    partition.check_epoch(max(asked.current_leader_epoch, NO_LEADER_EPOCH), needs_leader=False)
    unified, log, offset = partition.unified, partition.log, asked.fetch_offset
    end = partition.last_stable_offset if is_committed else partition.high_watermark
    if (
        not log.local_log_start_offset <= offset <= log.log_end_offset
        or (offset >= end and is_first)
        or partition.archive.loads_to is not None
        or log.has_erased_records()
        or (is_committed and log.state.segments.has_rows_from(offset))
    ):
        return None
    limit = max(min(asked.max_bytes, room), 0)
    if offset >= end or not (limit or is_first):
        return _Found(partition, asked, NOTHING)
    if unified.missing_pages(offset):
        return None
    read = unified.read(offset, limit, end, min_one=is_first, is_committed=is_committed)
    if read.size > limit and not is_first:
        read = NOTHING
    return _Found(partition, asked, read)


def _results(found: list[_Found]) -> list[OrdinaryResult]:
    """Return the results, with small slices as bytes, as `InlineSmallSlices` has them."""
    left, results = INLINE_BYTES, []
    for partition, asked, read in found:
        parts: list[Part] = []
        for part in read.parts:
            if not isinstance(part, (bytes, bytearray, memoryview)) and part.size <= min(
                SMALL_SLICE_BYTES, left
            ):
                left -= part.size
                parts.append(part.read())
            else:
                parts.append(part)
        results.append(
            OrdinaryResult(
                asked.partition,
                partition.high_watermark,
                partition.last_stable_offset,
                partition.start_offset,
                parts,
                read.size,
            )
        )
    return results


def _record(broker: Broker, found: list[_Found]) -> None:
    metrics = broker.metrics
    for partition, asked, read in found:
        if read.size:
            metrics.hot_reads += 1
            metrics.hot_bytes += read.size
            partition.traffic.fetched_bytes += read.size
            partition.traffic.fetched_records += read.next_offset - asked.fetch_offset
