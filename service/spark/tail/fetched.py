"""Decoding of a fetch response for one partition: whole batches, verified, or why there are none. [P]

    records    |--batch--|--batch--|--batch--|--bat      the broker's size limit cut the last one
    offsets     ^ may begin before the wanted one   ^ the next fetch begins here

`read_committed` is also the client's work: the broker names the producers of transactions that it knows to be
aborted, with each one's first offset. A transaction ends at the producer's next control batch, or not in this
response; then the next response names it again (Kafka ``CompletedFetch``, KIP-98).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.records.batch import iter_headers
from service.records.columns import AbortedRange
from service.records.kernel_status import Status
from service.records.scan import scan_batches
from service.wire.api import ApiKey, request_module
from service.wire.errors import MalformedMessage

_MOST_BYTES: Final = 1 << 30


class FetchedBatches(NamedTuple):
    """Consecutive batches in `data`, the next offset to fetch, and the aborted transactions to drop."""

    data: memoryview
    next_offset: int
    aborted: tuple[AbortedRange, ...] = ()


class PartitionFetch(NamedTuple):
    """One fetch of one partition: about `max_bytes` from `offset` on, from a leader of at least the epoch."""

    topic_id: UUID
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    read_committed: bool
    wait_max_ms: int


def fetch_request(wanted: PartitionFetch) -> Any:
    """Return a request for one partition, without a session."""
    module = request_module(ApiKey.FETCH)
    max_bytes = min(wanted.max_bytes, _MOST_BYTES)
    partition = module.FetchPartition(
        partition=wanted.partition,
        current_leader_epoch=wanted.leader_epoch,
        fetch_offset=wanted.offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )
    return module.FetchRequest(
        replica_state=module.ReplicaState(replica_id=-1, replica_epoch=-1),
        max_wait=wanted.wait_max_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=int(wanted.read_committed),
        session_id=0,
        session_epoch=-1,
        topics=(module.FetchTopic(topic_id=wanted.topic_id, partitions=(partition,)),),
        forgotten_topics_data=(),
        rack_id="",
    )


def error_of(response: Any, wanted: PartitionFetch) -> int:
    """Return the error code of the response to a fetch, 0 for none. `MalformedMessage` on a mismatch."""
    code: int = response.error_code
    if code == ErrorCode.none:
        code = _partition(response, wanted).error_code
    return code


def read_fetched(response: Any, wanted: PartitionFetch) -> FetchedBatches:
    """Return the batches of a response without error; perhaps none.

    Raises `CorruptionError` for a batch that is not sound, and for offsets that run back, `MalformedMessage`
    for a response that does not match the request or makes no progress.
    """
    partition = _partition(response, wanted)
    data = memoryview(partition.records or b"")
    scan = scan_batches(data)
    if scan.status not in (Status.OK, Status.TRUNCATED):
        offset = scan.last_offsets[-1] + 1 if scan.batches else wanted.offset
        raise CorruptionError(f"the batch at or behind offset {offset} is damaged: {scan.status.reason}")
    if not scan.batches:
        if len(data):
            raise MalformedMessage(f"{len(data)} bytes from offset {wanted.offset} on, not one whole batch")
        return FetchedBatches(data, wanted.offset)
    whole = data[: scan.end]
    next_offset = scan.last_offsets[-1] + 1
    if next_offset <= wanted.offset:
        raise MalformedMessage(
            f"the response ends at offset {next_offset - 1}, and {wanted.offset} was requested"
        )
    aborted = _aborted(whole, partition.aborted_transactions or ()) if wanted.read_committed else ()
    return FetchedBatches(whole, next_offset, aborted)


def _partition(response: Any, wanted: PartitionFetch) -> Any:
    found = [
        partition
        for topic in response.responses
        if topic.topic_id == wanted.topic_id
        for partition in topic.partitions
        if partition.partition_index == wanted.partition
    ]
    if len(found) != 1:
        raise MalformedMessage(f"the response has partition {wanted.partition} {len(found)} times, not once")
    return found[0]


def _aborted(data: Buffer, transactions: Any) -> tuple[AbortedRange, ...]:
    """Return the broker's aborted transactions, each up to its marker, or to the end of `data`."""
    if not transactions:
        return ()
    firsts: dict[int, list[int]] = {}
    for one in transactions:
        firsts.setdefault(one.producer_id, []).append(one.first_offset)
    for starts in firsts.values():
        starts.sort(reverse=True)
    ranges = []
    last = -1
    for header in iter_headers(data):
        last = header.last_offset
        starts = firsts.get(header.producer_id, [])
        if header.is_control and starts and starts[-1] <= header.base_offset:
            ranges.append(AbortedRange(header.producer_id, starts.pop(), last))
    for producer_id, starts in firsts.items():
        ranges += [AbortedRange(producer_id, first, last) for first in starts if first <= last]
    return tuple(ranges)
