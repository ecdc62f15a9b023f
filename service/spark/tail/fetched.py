"""What a fetch response says of one partition: whole batches, proved, or why there are none. [P]

    records    |--batch--|--batch--|--batch--|--bat      the last one is cut where the broker's limit was
    offsets     ^ may begin before the wanted one   ^ the next fetch begins here

`read_committed` is the client's work, too: the broker names producers whose transactions it knows to be
aborted, with where each began. It ends at the producer's next control batch, or is not over in this response;
then the next one names it again (Kafka ``CompletedFetch``, KIP-98).
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


class Fetched(NamedTuple):
    """Batches that follow each other, `data` in all; the next offset to ask for; what is to be left out."""

    data: memoryview
    next_offset: int
    aborted: tuple[AbortedRange, ...] = ()


class Wanted(NamedTuple):
    """One fetch of one partition: from `offset` on, about so many bytes, no older leader than this."""

    topic_id: UUID
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    read_committed: bool
    wait_max_ms: int


def fetch_request(wanted: Wanted) -> Any:
    """A request for one partition, without a session."""
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


def error_of(response: Any, wanted: Wanted) -> int:
    """The error code of the answer to `wanted`, 0 for none. `MalformedMessage` if it is of something else."""
    code: int = response.error_code
    if code == ErrorCode.none:
        code = _partition(response, wanted).error_code
    return code


def read_fetched(response: Any, wanted: Wanted) -> Fetched:
    """The batches of an answer without error; perhaps none.

    Raises `CorruptionError` for a batch that is not sound, and for offsets that run back, `MalformedMessage`
    for an answer that is of something else or does not get on.
    """
    partition = _partition(response, wanted)
    data = memoryview(partition.records or b"")
    scan = scan_batches(data)
    if scan.status not in (Status.OK, Status.TRUNCATED):
        offset = scan.last_offsets[-1] + 1 if scan.batches else wanted.offset
        raise CorruptionError(f"the batch at or behind offset {offset} came damaged: {scan.status.reason}")
    if not scan.batches:
        if len(data):
            raise MalformedMessage(f"{len(data)} bytes from offset {wanted.offset} on, not one whole batch")
        return Fetched(data, wanted.offset)
    whole = data[: scan.end]
    next_offset = scan.last_offsets[-1] + 1
    if next_offset <= wanted.offset:
        raise MalformedMessage(
            f"offsets up to {next_offset - 1} came, those from {wanted.offset} on were wanted"
        )
    aborted = _aborted(whole, partition.aborted_transactions or ()) if wanted.read_committed else ()
    return Fetched(whole, next_offset, aborted)


def _partition(response: Any, wanted: Wanted) -> Any:
    found = [
        partition
        for topic in response.responses
        if topic.topic_id == wanted.topic_id
        for partition in topic.partitions
        if partition.partition_index == wanted.partition
    ]
    if len(found) != 1:
        raise MalformedMessage(f"{len(found)} answers of partition {wanted.partition}, one was asked for")
    return found[0]


def _aborted(data: Buffer, transactions: Any) -> tuple[AbortedRange, ...]:
    """As the broker's list, with where each ends as far as that is in `data`."""
    if not transactions:
        return ()
    firsts: dict[int, list[int]] = {}
    for one in transactions:
        firsts.setdefault(one.producer_id, []).append(one.first_offset)
    for waiting in firsts.values():
        waiting.sort(reverse=True)
    ranges = []
    last = -1
    for header in iter_headers(data):
        last = header.last_offset
        waiting = firsts.get(header.producer_id, [])
        if header.is_control and waiting and waiting[-1] <= header.base_offset:
            ranges.append(AbortedRange(header.producer_id, waiting.pop(), last))
    for producer_id, waiting in firsts.items():
        ranges += [AbortedRange(producer_id, first, last) for first in waiting if first <= last]
    return tuple(ranges)
