"""Comparison of a local log with the archive that a recovery has taken over, and its restart if they differ.

A log of the archive's past is kept, with the records beyond the archive; one of another past restarts at the
archive's end, and the number of discarded records is logged. An erasure may have been carried out in the log
and not yet in the archive, or the other way round, and the blocks of merged objects are others than those of
segments: so the two are compared batch by batch (`records/batch_likeness.py`), from the archive's end back
to the last batch that both have records of. Offsets and leader epochs do not suffice: clones of a disk assign
both twice.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import NO_LEADER_EPOCH
from service.hot.log import LocalLog
from service.hot.log_runs import LogRun
from service.records.batch import iter_headers
from service.records.batch_likeness import Likeness, likeness
from service.records.kernel_status import Status
from service.records.scan import BatchScan, scan_batches, scan_pieces
from service.remote.catalog import CatalogEntry
from service.replicas.archive_producers import producers_of

if TYPE_CHECKING:
    from service.remote.reading.reader import ArchiveEnd

log = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_BYTES: Final = 64 << 20
"""How far back the archive is read for a record that both have."""


class ArchiveBatches(Protocol):
    """Reader of the archive to compare with: `(offset, end_offset)` to the whole batches from the one that
    holds `offset`, one at least and about 1 MiB at most, that end before `end_offset`, and the offset behind
    them. No bytes where there is none. Raises what `RemoteReader.read` raises."""

    def __call__(self, offset: int, end_offset: int, /) -> Awaitable[tuple[bytes, int]]: ...


class OnThread(Protocol):
    """Runner of a blocking call on a thread, as `LogManager.on_thread`."""

    def __call__(self, job: Callable[..., T], /, *args: object) -> Awaitable[T]: ...


async def fit_to_archive(
    local: LocalLog,
    remote: CatalogEntry,
    end: ArchiveEnd,
    read: ArchiveBatches,
    on_thread: OnThread,
    is_wanted: Callable[[], bool],
) -> bool:
    """Keep the log, or restart it at the end of the archive that a recovery has taken over: no archived
    offset is given to another record (invariant T12).

    Returns False where `is_wanted` says no meanwhile: nothing was changed then. Raises `CorruptionError`
    where the archive is damaged or its end is not what the metadata says, `StorageError` where the disk or
    the store fails.
    """
    if end.entry._replace(leader_epoch=remote.leader_epoch) != remote:
        raise CorruptionError(f"{remote.manifest_key} is {end.entry}, the metadata says {remote}")
    is_kept = await is_of_its_past(local, end, read, on_thread)
    if not is_wanted():
        return False
    if is_kept:
        log.info("%s: keeping the local log, which is of the past of its archive", local.tip)
    else:
        _restart(local, remote, end)
    return True


def drop_rewritten(local: LocalLog, end_offset: int) -> None:
    """Delete the local segments below `end_offset`, as far as the archive has written its objects anew.

    The disk may be from before an order to erase keys that is gone since, which nobody could carry out again.
    What is not in the archive stays, and so does the segment in which the archive ends.
    """
    count = local.deletion.delete_segments(
        end_offset - 1, "the archive has written these ranges anew", at_once=True
    )
    if count:
        log.warning(
            "%s: %d local segments are deleted, as the archive has their ranges written anew, perhaps without"
            " records that were erased", local.tip, count,
        )  # fmt: skip


def _restart(local: LocalLog, remote: CatalogEntry, end: ArchiveEnd) -> None:
    given_up = max(0, local.log_end_offset - max(remote.end_offset, local.local_log_start_offset))
    log.warning(
        "%s: restarting at offset %d (end of archive), as the local log is of another past or ends before; "
        "discarding %d local records",
        local.tip,
        remote.end_offset,
        given_up,
    )
    producers = producers_of(end)
    local.truncation.restart_at(
        remote.end_offset, remote.start_offset, epochs=end.epochs, producers=producers
    )


async def is_of_its_past(local: LocalLog, end: ArchiveEnd, read: ArchiveBatches, on_thread: OnThread) -> bool:
    """Return whether the local log is of the archive's past and reaches its end, so that it can be kept.

    It is not if it lacks records between the archive's end and its own, or if a batch contradicts. Where no
    batch tells, as an erasure has taken the records of all, only a log with records beyond the archive is
    kept: those are nowhere else. Raises `CorruptionError` where the archive is damaged, `StorageError`, and
    what `read` raises.
    """
    behind = end.entry.end_offset
    if local.log_end_offset < behind:
        return False
    block = end.last_block
    if block is None or not end.entry.segments:
        return True  # nothing is left that it could contradict
    if holds_last_block(local, end):
        return True
    begin = max(end.entry.start_offset, local.first_base_offset)
    if begin > behind or _has_another_epoch(local, end):
        return False
    search = _Search(local, read, on_thread)
    found = await search.back_from(behind, max(block.first_offset, begin), begin)
    if found is Likeness.UNTOLD:
        return local.log_end_offset > behind
    return found is Likeness.SAME


def holds_last_block(local: LocalLog, end: ArchiveEnd) -> bool:
    """Return whether the local log has the bytes of the archive's last block at its offsets: then nothing
    needs to be read from the bucket.

    The block of a merged segment may span several local ones.
    """
    block = end.last_block
    if block is None or not local.first_base_offset <= block.first_offset:
        return False
    if local.log_end_offset <= block.last_offset:
        return False
    offset, left, crc = block.first_offset, block.length, 0
    try:
        while left:
            found = local.reader.read(offset, left, block.last_offset + 1, local.log_end_offset, True)
            if found.slice is None or not 0 < found.slice.size <= left:
                return False
            data = found.slice.read()
            crc, left = crc32c(data, crc), left - len(data)
            *_, last = iter_headers(data)
            offset = last.next_offset
        return crc == block.crc32c
    except CorruptionError:
        return False


def _has_another_epoch(local: LocalLog, end: ArchiveEnd) -> bool:
    """Return whether the log knows the leader epoch of the archive's last record, and as another one."""
    known = local.epochs.epoch_at(end.entry.end_offset - 1)
    return bool(end.epochs) and known not in (NO_LEADER_EPOCH, end.epochs[-1][0])


class _Search:
    """Search back from the archive's end for batches that tell whether a log is of its past."""

    def __init__(self, local: LocalLog, read: ArchiveBatches, on_thread: OnThread) -> None:
        self._local = local
        self._read = read
        self._on_thread = on_thread
        self._left = _MOST_BYTES

    async def back_from(self, end: int, low: int, begin: int) -> Likeness:
        """Compare from `low` to `end`, then range by range down to `begin`, each with twice the offsets of
        those before, until one of them tells."""
        high = end
        while low < high and self._left > 0:
            found = await self._range(low, high)
            if found is not Likeness.UNTOLD:
                return found
            high, low = low, max(begin, low - 2 * (end - low))
        return Likeness.UNTOLD

    async def _range(self, offset: int, high: int) -> Likeness:
        found = Likeness.UNTOLD
        while offset < high and self._left > 0:
            data, next_offset = await self._read(offset, high)
            if not data:
                break
            self._left -= len(data)
            runs = self._local.runs.runs_between(offset, next_offset - 1)
            one = await self._on_thread(compare, memoryview(data), runs)
            if one is Likeness.OTHER:
                return one
            found = one if found is Likeness.UNTOLD else found
            offset = max(next_offset, offset + 1)
        return found


class _Batch(NamedTuple):
    base_offset: int
    last_offset: int
    data: memoryview


def compare(data: memoryview, runs: Sequence[LogRun]) -> Likeness:
    """Compare batches of the archive with those of a local log that have the same offsets. Blocking.

    An offset that one of them lacks tells nothing: compaction leaves out batches. Damaged local batches are
    of no past. Raises `CorruptionError` where the archive's are damaged, `StorageError`.
    """
    scan = scan_batches(data)
    if scan.status is not Status.OK or not scan.batches:
        raise CorruptionError(f"a batch of the archive at position {scan.end}: {scan.status.reason}")
    try:
        return _compare(_cut(scan, data), _local_batches(runs, scan.base_offsets[0], scan.last_offsets[-1]))
    except CorruptionError as e:
        log.warning("the local log is damaged where it is compared with its archive: %s", e)
        return Likeness.OTHER


def _compare(theirs: Iterator[_Batch], ours: Iterator[_Batch]) -> Likeness:
    found = Likeness.UNTOLD
    their, our = next(theirs, None), next(ours, None)
    while their is not None and our is not None:
        if our.base_offset <= their.last_offset and their.base_offset <= our.last_offset:
            one = likeness(our.data, their.data)
            if one is Likeness.OTHER:
                return one
            found = one if found is Likeness.UNTOLD else found
        ahead = their.last_offset - our.last_offset
        their = their if ahead > 0 else next(theirs, None)
        our = our if ahead < 0 else next(ours, None)
    return found


def _local_batches(runs: Sequence[LogRun], first: int, last: int) -> Iterator[_Batch]:
    for run in runs:
        start = run.position_of(first)
        file = run.file
        for scan, _, piece in scan_pieces(
            lambda position, length, file=file: file.read(position, length),  # type: ignore[misc]
            start,
            run.size,
            first_offset=run.base_offset,
            name=run.name,
        ):
            yield from _cut(scan, piece)
            if scan.last_offsets[-1] >= last:
                return


def _cut(scan: BatchScan, data: memoryview) -> Iterator[_Batch]:
    for base, last, position, size in zip(
        scan.base_offsets, scan.last_offsets, scan.positions, scan.sizes, strict=True
    ):
        yield _Batch(base, last, data[position : position + size])
