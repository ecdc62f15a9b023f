"""Answer to the fetch that most consumers send all day: few partitions of one topic, enough bytes at once.

A fetch of a megabyte evicts the processor's caches, so each call of the plain path costs several times what
it costs in a loop. This is that path for a case without waits, errors, quotas, ACLs, cold bytes or aborted
transactions: it gives the same bytes, or None, and then the plain path (`handlers/fetch.py`) begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.types import NO_LEADER_EPOCH
from service.network.request import RequestContext, Response
from service.network.sender import SMALL_SLICE_BYTES, Part
from service.partition.partition import Partition
from service.partition.unified_log import NOTHING, LogRead
from service.serving.fetch_plans import OrdinaryFetch, ordinary
from service.serving.fetch_read import INLINE_BYTES
from service.serving.request_host import Broker
from service.wire.fetch import FetchPartition, FetchRequestView
from service.wire.ordinary_fetch import OrdinaryResult, encode_ordinary_response


class _Found(NamedTuple):
    partition: Partition
    number: int
    offset: int
    read: LogRead


def respond(broker: Broker, context: RequestContext, fetch: FetchRequestView) -> Response | None:
    """Return the response to a consumer's fetch without a session; None if the plain path has to make it."""
    if context.meter is not None or not broker.fetches_plainly:
        return None
    asked = ordinary(context.api_version, fetch)
    if asked is None:
        return None
    parts = answer(broker, asked, [one.fetch_offset for one in asked.wanted], context.correlation_id)
    return None if parts is None else Response(parts, None, broker.note_send_failure)


def answer(
    broker: Broker, fetch: OrdinaryFetch, offsets: Sequence[int], correlation_id: int
) -> list[Part] | None:
    """Return the parts of the response to `fetch` from these offsets, one for each partition; None, with
    nothing counted, if the plain path has to make it. The client has no quota, and the broker
    `fetches_plainly`."""
    room = min(fetch.most, broker.config.fetch_max_bytes)
    found: list[_Found] = []
    size = 0
    try:
        for asked, offset in zip(fetch.wanted, offsets, strict=True):
            one = _read(broker, fetch, asked, offset, room - size, not size)
            if one is None:
                return None
            size += one.read.size
            found.append(one)
        if size < max(min(fetch.least, room), 1):
            return None
        results = _results(found)
    except (RequestError, StorageError, CorruptionError):
        return None  # the plain path meets it again, and says so
    _record(broker, found)
    parts = encode_ordinary_response(fetch.head, correlation_id, results, is_committed=fetch.is_committed)
    return cast("list[Part]", parts)


def _read(
    broker: Broker, fetch: OrdinaryFetch, asked: FetchPartition, offset: int, room: int, is_first: bool
) -> _Found | None:
    partition = broker.replicas.get_by(fetch.topic, asked.partition)
    if partition is None:
        return None
    partition.check_epoch(max(asked.current_leader_epoch, NO_LEADER_EPOCH), needs_leader=False)
    is_committed = fetch.is_committed
    unified, log = partition.unified, partition.log
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
        return _Found(partition, asked.partition, offset, NOTHING)
    if unified.missing_pages(offset):
        return None
    read = unified.read(offset, limit, end, min_one=is_first, is_committed=is_committed)
    if read.size > limit and not is_first:
        read = NOTHING
    return _Found(partition, asked.partition, offset, read)


def _results(found: list[_Found]) -> list[OrdinaryResult]:
    """Return the results, with small slices as bytes, as `InlineSmallSlices` has them."""
    left, results = INLINE_BYTES, []
    for partition, number, _, read in found:
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
                number,
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
    for partition, _, offset, read in found:
        if read.size:
            metrics.hot_reads += 1
            metrics.hot_bytes += read.size
            partition.traffic.fetched_bytes += read.size
            partition.traffic.fetched_records += read.next_offset - offset
