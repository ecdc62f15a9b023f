"""Partitions that are offline until the end of their archive is read, as their local log lacks it.

A disk, or the file of epochs, was lost or replaced: offsets that are in the bucket must not be assigned
again, and the epochs and producers at the archive's end must be known before the first append. Or a recovery
has taken the archive over, and the local log may be of another past: it is compared, and the metadata notes
the comparison, before the partition takes records. Or the cluster was restored, and the log has to begin
where its archive ends, before the tails of the cut are loaded (`tail_loading`). Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.types import TopicIdPartition
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from service.hot.producers import ProducerEntry
from service.metadata.controller.topic_names import FIXED_TOPICS
from service.metadata.image import MetadataImage, RestoredTail
from service.remote.catalog import CatalogEntry
from service.replicas.archive_fit import drop_rewritten, fit_to_archive
from service.replicas.archive_producers import producers_of

if TYPE_CHECKING:
    from service.remote.reading.reader import ArchiveEnd, RemoteReader

log = logging.getLogger(__name__)

Checked = Callable[[Collection[tuple[UUID, int]]], Awaitable[None]]
_AT_A_TIME: Final = 16
_READ_BYTES: Final = 1 << 20
"""How much of an archive is compared at once."""


class RestoreOwner(Protocol):
    """Interface of the applier to this module."""

    def take_offline(
        self, tip: TopicIdPartition, reason: str, *, passes: bool, is_lost: bool = True
    ) -> None: ...

    async def try_again(self, tips: Collection[TopicIdPartition]) -> None:
        """Bring them online, in turn with changes of the metadata."""


class ArchiveRestore:
    """Partitions that wait for their archive's end, and their restart there."""

    def __init__(
        self,
        owner: RestoreOwner,
        logs: LogManager,
        image: Callable[[], MetadataImage],
        reader: RemoteReader | None,
        checked: Checked | None,
    ) -> None:
        """`checked` notes in the metadata that local logs match the archives that a recovery took over; None
        if this node cannot."""
        self._owner = owner
        self._logs = logs
        self._image = image
        self._reader = reader
        self._checked = checked
        self._waiting: dict[TopicIdPartition, CatalogEntry | None] = {}
        self._restored_epochs: set[TopicIdPartition] = set()
        """partitions that have taken lost epochs from their archive"""
        self._done_once = asyncio.Event()

    async def done_once(self) -> None:
        """Return once each archive of the partitions waiting at the start was read, or its first read has
        failed."""
        await self._done_once.wait()

    def why_behind(self, tip: TopicIdPartition, local: LocalLog, remote: CatalogEntry | None) -> str | None:
        """Return what a leader's log lacks of its archive's end, or has beyond it before its tail is loaded;
        None if it lacks nothing."""
        tail = self._tail(tip)
        if tail is not None and local.log_end_offset != tail.chain_end:
            return (
                f"its tail is loaded from offset {tail.chain_end} on, its log ends at {local.log_end_offset}"
            )
        if remote is None or remote.is_given_up:
            return None
        if self._is_unchecked(tip):
            return "its log is not yet compared with the archive that a recovery took over"
        if local.log_end_offset < remote.end_offset:
            return f"its log ends at {local.log_end_offset}, its archive at {remote.end_offset}"
        if tip not in self._restored_epochs and _lacks_epochs(local, remote):
            return "the disk has lost the leader epochs of its archive"
        return None

    def wait(self, tip: TopicIdPartition, reason: str, remote: CatalogEntry | None) -> None:
        """Take the partition offline until its archive's end is read."""
        where = "firn.remote.url is not set" if self._reader is None else "the archive's end is read first"
        self._owner.take_offline(tip, f"{reason}: {where}", passes=False, is_lost=False)
        self._waiting[tip] = remote

    def wait_no_more(self, tip: TopicIdPartition) -> None:
        """Stop waiting: another node leads the partition now."""
        self._waiting.pop(tip, None)

    def forget(self, tip: TopicIdPartition) -> None:
        """Drop a partition that is no longer on this node."""
        self._waiting.pop(tip, None)
        self._restored_epochs.discard(tip)

    async def run_once(self) -> None:
        """Read the archive ends of all waiting partitions, and retry to open them."""
        if self._reader is not None:
            waiting = sorted(self._waiting.items(), key=lambda one: one[0].topic not in FIXED_TOPICS)
            for start in range(0, len(waiting), _AT_A_TIME):
                await self._restore(waiting[start : start + _AT_A_TIME])
        self._done_once.set()

    async def _restore(self, some: Sequence[tuple[TopicIdPartition, CatalogEntry | None]]) -> None:
        fits = await asyncio.gather(*(self._restart(tip, remote) for tip, remote in some))
        ready = [tip for (tip, _), fit in zip(some, fits, strict=True) if fit]
        if not await self._note_checked([tip for tip in ready if self._is_unchecked(tip)]):
            ready = [tip for tip in ready if not self._is_unchecked(tip)]
        for tip in ready:
            self._waiting.pop(tip, None)
        if ready:
            await self._owner.try_again(ready)

    def _is_unchecked(self, tip: TopicIdPartition) -> bool:
        state = self._image().recovered.get(tip.topic_id)
        return state is not None and tip.partition in state.unchecked_partitions

    async def _note_checked(self, tips: Sequence[TopicIdPartition]) -> bool:
        """Note in the metadata that these logs match, before they take records: a second comparison would
        discard those. Returns whether that is noted."""
        if not tips:
            return True
        try:
            if self._checked is None:
                raise StorageError("this node has to be started alone once")
            await self._checked([(tip.topic_id, tip.partition) for tip in tips])
        except (StorageError, RequestError) as e:
            for tip in tips:
                reason = f"its log matches its archive, but noting that in the metadata failed: {e}"
                self._owner.take_offline(tip, reason, passes=False)
            return False
        return True

    async def _restart(self, tip: TopicIdPartition, remote: CatalogEntry | None) -> bool:
        """Let a log continue at its archive's end, with the state there; returns whether it does."""
        assert self._reader is not None
        tail, end = self._tail(tip), None
        try:
            if remote is not None and not remote.is_given_up:
                end = await asyncio.wrap_future(self._reader.archive_end(tip, remote.manifest_key))
            local = self._logs.get(tip.topic_id, tip.partition)
            if local is None or not self._still_waits(tip, remote, tail):
                return False  # it was deleted meanwhile
            if tail is not None:
                return await self._begin_anew(local, remote, end, tail)
            if remote is None or end is None:
                return True  # it has nothing in the bucket any more
            if self._is_unchecked(tip):
                return await self._fit(tip, local, remote, end)
            self._learn(tip, local, remote, end)
        except (StorageError, CorruptionError, RequestError) as e:
            if tip in self._waiting:
                self._owner.take_offline(tip, f"reading the end of its archive failed: {e}", passes=False)
            return False
        return True

    async def _fit(
        self, tip: TopicIdPartition, local: LocalLog, remote: CatalogEntry, end: ArchiveEnd
    ) -> bool:
        """Compare a log with the archive that a recovery took over; returns whether it fits now."""

        async def read(offset: int, end_offset: int) -> tuple[bytes, int]:
            assert self._reader is not None
            found = await asyncio.wrap_future(
                self._reader.read(tip, remote.manifest_key, offset, _READ_BYTES, end_offset)
            )
            try:
                return b"".join(found.data), found.next_offset
            finally:
                if found.hold is not None:
                    found.hold.release()

        def is_wanted() -> bool:
            is_same = self._logs.get(tip.topic_id, tip.partition) is local
            return is_same and self._is_unchecked(tip) and self._still_waits(tip, remote, None)

        if not await fit_to_archive(local, remote, end, read, self._logs.on_thread, is_wanted):
            return False
        assert self._reader is not None
        begin = local.first_base_offset
        found = self._reader.rewritten_end(tip, remote.manifest_key, begin)
        rewritten_end = await asyncio.wrap_future(found)
        if not is_wanted():
            return False
        drop_rewritten(local, rewritten_end)
        return True

    def _still_waits(
        self, tip: TopicIdPartition, remote: CatalogEntry | None, tail: RestoredTail | None
    ) -> bool:
        image, key = self._image(), (tip.topic_id, tip.partition)
        if tip not in self._waiting or self._waiting[tip] != remote:
            return False
        return image.remote.get(key) == remote and image.restored_tails.get(key) == tail

    def _tail(self, tip: TopicIdPartition) -> RestoredTail | None:
        return self._image().restored_tails.get((tip.topic_id, tip.partition))

    async def _begin_anew(
        self, local: LocalLog, remote: CatalogEntry | None, end: ArchiveEnd | None, tail: RestoredTail
    ) -> bool:
        """Let a log begin where its tail does, with the state there; what it had behind is loaded again."""
        tip, chain_end = local.tip, tail.chain_end
        start = chain_end
        epochs: Sequence[tuple[int, int]] = ()
        producers: Sequence[tuple[int, ProducerEntry]] = ()
        if remote is not None and end is not None:
            if end.entry._replace(leader_epoch=remote.leader_epoch) != remote:
                raise CorruptionError(f"{remote.manifest_key} is {end.entry}, the metadata says {remote}")
            # A log may begin behind an archive of which nothing is left.
            if remote.end_offset > chain_end or (remote.segments and remote.end_offset < chain_end):
                raise CorruptionError(
                    f"the archive ends at {remote.end_offset}, the tail to load begins at {chain_end}"
                )
            if remote.segments:
                start, epochs, producers = remote.start_offset, end.epochs, producers_of(end)
        async with self._logs.lower_recovery_point(local, chain_end) as is_checkpointed:
            if not is_checkpointed or not self._still_waits(tip, remote, tail):
                return False
            log.info("%s: beginning at offset %d, to load its tail up to %d", tip, chain_end, tail.end_offset)
            self._restored_epochs.add(tip)
            local.truncation.restart_at(chain_end, start, epochs=epochs, producers=producers)
        return True

    def _learn(self, tip: TopicIdPartition, local: LocalLog, remote: CatalogEntry, end: ArchiveEnd) -> None:
        producers = producers_of(end)
        self._restored_epochs.add(tip)
        if local.log_end_offset < remote.end_offset:
            log.warning(
                "%s: local log ends at %d, restarting at offset %d (end of archive)",
                tip, local.log_end_offset, remote.end_offset,
            )  # fmt: skip
            # Deleted records stay deleted, even if the archive still has them.
            start = min(max(remote.start_offset, local.log_start_offset), remote.end_offset)
            local.truncation.restart_at(remote.end_offset, start, epochs=end.epochs, producers=producers)
        else:
            log.warning("%s: restoring lost leader epochs from its archive", tip)
            local.epochs.learn_earlier(end.epochs, local.log_start_offset)


def _lacks_epochs(local: LocalLog, remote: CatalogEntry) -> bool:
    """Return whether the epochs of archived-only records are unknown: their file was damaged or lost, and the
    local batches do not have them."""
    start = max(local.log_start_offset, remote.start_offset)
    entries = local.epochs.entries
    return local.local_log_start_offset > start and (not entries or entries[0][1] > start)
