"""Publishes committed batches: applies them to the image and calls the listeners.

Owned by the event loop. Batches that this node proposed are published with the image of their decision; all
others are read from the log, in slices, so that the loop is not blocked. Uncommitted batches are visible to
their proposer only.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from service.base.awaiting import waits_in
from service.base.errors import CorruptionError, InvariantError, StorageError
from service.base.slices import Slice, next_turn
from service.base.steps import Steps, at_once
from service.metadata.batches import MetadataBatch, decode_batch_in_steps
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.image_diff import apply_snapshot
from service.metadata.raft.control import NO_VOTER_RECORDS, apply_voter_record
from service.metadata.raft.log import MetadataLog
from service.records.batch import iter_headers

_log = logging.getLogger(__name__)
LATE_S: Final = 30.0
"""Time limit after which a listener's unfinished work is logged."""
_SLICE_BYTES: Final = 64 * 1024
"""Bytes of log, in whole batches, that are applied at a time: some milliseconds of the event loop."""

Listener = Callable[[MetadataImage, MetadataImage, MetadataDelta], Awaitable[None] | None]
"""Called with the image before, the image after, and the delta between them.

A returned awaitable is work in progress: waiters for the change resume when it is done.
"""


class _Proposal(NamedTuple):
    """Batch that is written but not committed, and the image up to it."""

    base_offset: int
    image: MetadataImage
    delta: MetadataDelta
    size: int


_Work = tuple[int, asyncio.Future[None]]
"""Offset, and a future that completes for it."""
_Waiting = list[_Work]
"""Sorted by offset, not by arrival: a leader that lost its log's end may wait for an earlier one again."""


class Publication:
    """Committed image of this node, and the waiters and listeners for its changes.

    `on_published(bytes)` is called for each batch, `on_broken(error)` for a log that cannot be read or
    applied, `on_bug(what, error)` for a listener that failed.
    """

    def __init__(
        self,
        log: MetadataLog,
        image: MetadataImage,
        listeners: list[Listener],
        *,
        on_published: Callable[[int], None],
        on_broken: Callable[[BaseException], None],
        on_bug: Callable[[str, BaseException], None],
    ) -> None:
        self.image = image
        self._log = log
        self._listeners = listeners
        self._on_published = on_published
        self._on_broken = on_broken
        self._on_bug = on_bug
        self._content = image
        """`image` before batches without metadata records: an image on which proposals may be based."""
        self._high_watermark = 0
        self._proposals: deque[_Proposal] = deque()
        self._snapshot: MetadataImage | None = None
        self._held: asyncio.Future[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._readers: _Waiting = []
        """Waiters for the image alone."""
        self._waiters: _Waiting = []
        self._failure: StorageError | None = None
        self._listener_work: deque[_Work] = deque()
        self._late_timer: asyncio.TimerHandle | None = None

    def proposed(self, base_offset: int, image: MetadataImage, delta: MetadataDelta, size: int) -> None:
        """Record a batch of `size` bytes at `base_offset`, with the `image` once it is committed, and its
        `delta`."""
        self._proposals.append(_Proposal(base_offset, image, delta, size))

    def truncated(self, end_offset: int) -> None:
        """Drop proposals at or beyond `end_offset`, where the log now ends (`InvariantError` below the
        committed end)."""
        if end_offset < max(self._high_watermark, self.image.offset + 1):
            raise InvariantError(f"the metadata log is committed up to {self._high_watermark}")
        while self._proposals and self._proposals[-1].image.offset >= end_offset:
            self._proposals.pop()

    def jump(self, image: MetadataImage) -> None:
        """Publish the image of a snapshot, at which the log restarts, as one change, which is computed in
        slices."""
        if image.offset <= self.image.offset:
            raise InvariantError(
                f"a snapshot up to offset {image.offset}, while {self.image.offset} is published"
            )
        self._proposals.clear()
        self._high_watermark = max(self._high_watermark, image.offset + 1)
        self._snapshot = image
        self._begin_catching_up()

    def hold(self) -> None:
        """Publish nothing from now on, until `release`: a cut is taken (`replicas/cut_answers.py`)."""
        if self._held is None:
            self._held = asyncio.get_running_loop().create_future()

    def release(self) -> None:
        """Publish what was committed since `hold`."""
        held, self._held = self._held, None
        if held is None:
            return
        held.set_result(None)
        if self._snapshot is not None or self.image.offset + 1 < self._high_watermark:
            self._go_on()

    def commit(self, high_watermark: int) -> None:
        """Publish everything below `high_watermark`, and nothing beyond it (invariant B1)."""
        self._high_watermark = high_watermark
        if self._held is None:
            self._go_on()

    def _go_on(self) -> None:
        if self._catching_up is None and not self._publish_proposed():
            self._begin_catching_up()
        self._wake()

    async def reached(self, offset: int) -> None:
        """Wait until the image includes `offset`, and listeners have completed their work for it.

        Raises `StorageError` where it never will.
        """
        if offset > self._done_offset:
            await self._wait(self._waiters, offset)

    async def published(self, offset: int) -> None:
        """Wait until the image includes `offset`, without the listeners' work."""
        if offset > self.image.offset:
            await self._wait(self._readers, offset)

    async def _wait(self, waiting: _Waiting, offset: int) -> None:
        if self._failure is not None:
            raise StorageError(str(self._failure))
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        insort(waiting, (offset, waiter), key=_offset_of)
        try:
            await waiter
        except asyncio.CancelledError:
            with suppress(ValueError):  # completed, and cancelled before it resumed
                waiting.remove((offset, waiter))
            raise

    def fail(self, failure: StorageError) -> None:
        """Fail all waiters: nothing is committed any more."""
        self._failure = self._failure or failure
        self._wake()

    async def stop(self) -> None:
        """Publish everything below the high watermark, await listeners' work, and stop."""
        self.release()
        if self._catching_up is not None:
            await self._catching_up
        await asyncio.gather(*(work for _, work in self._listener_work), return_exceptions=True)
        self.fail(StorageError("the node stops"))
        if self._late_timer is not None:
            self._late_timer.cancel()

    def _begin_catching_up(self) -> None:
        if self._catching_up is None:
            self._catching_up = asyncio.get_running_loop().create_task(
                self._catch_up(), name="metadata-catch-up"
            )

    def _publish_proposed(self) -> bool:
        """Publish this node's proposals; False where a snapshot or the log must be read."""
        if self._snapshot is not None:
            return False
        while self.image.offset + 1 < self._high_watermark:
            proposed = self._proposals[0] if self._proposals else None
            if proposed is None or proposed.base_offset != self.image.offset + 1:
                return False  # a control batch of the quorum precedes it
            if proposed.delta.image is not self.image and proposed.delta.image is not self._content:
                return False
            self._proposals.popleft()
            # The proposal's base image lacks the quorum's own records.
            kraft_version = self.image.kraft_version
            self._publish(proposed.image.with_kraft_version(kraft_version), proposed.delta, proposed.size)
            self._content = proposed.image
        return True

    async def _catch_up(self) -> None:
        """Apply a pending snapshot, and the log behind it up to the high watermark, in slices."""
        try:
            while True:
                await self._until_released()
                if self._publish_proposed():
                    break
                if self._snapshot is not None:
                    after, self._snapshot = self._snapshot, None
                    image, delta = await Slice().go_on(apply_snapshot(self.image, after))
                    await self._until_released()
                    self._publish(image, delta, 0)
                else:
                    async with self._log.changing:
                        if self._snapshot is None:  # else the log has restarted meanwhile
                            await self._publish_slice()
                self._wake()
                await next_turn()
            self._wake()
        except Exception as e:
            self._on_broken(e)
            self.fail(StorageError(f"the metadata log cannot be applied: {e}"))
        finally:
            self._catching_up = None

    async def _until_released(self) -> None:
        while self._held is not None:
            await self._held

    async def _publish_slice(self) -> None:
        """Apply some of the log, a large batch over several turns; `self._log.changing` is held."""
        piece = Slice()
        start, end = self.image.offset + 1, self._high_watermark
        if self._proposals and self._proposals[0].base_offset > start:
            end = min(end, self._proposals[0].base_offset)  # a proposal need not be read
        data = self._log.read(start, _SLICE_BYTES, end)
        for header in iter_headers(data):
            batch = await piece.go_on(decode_batch_in_steps(data, header))
            if batch.base_offset != self.image.offset + 1:
                raise CorruptionError(f"offset {batch.base_offset} follows {self.image.offset}")
            content = self._content
            image, delta = await piece.go_on(apply_batch_in_steps(self.image, batch))
            await self._until_released()
            self._publish(image, delta, header.size)
            if not batch.frames:
                self._content = content
        while self._proposals and self._proposals[0].image.offset <= self.image.offset:
            self._proposals.popleft()  # read from the log instead

    def _publish(self, image: MetadataImage, delta: MetadataDelta, size: int) -> None:
        before, self.image, self._content = self.image, image, image
        for listener in self._listeners:
            try:
                work = listener(before, image, delta)
            except Exception as e:  # a bug of the listener: the log is not affected
                self._on_bug("a change of the metadata", e)
                continue
            if work is not None:
                future = asyncio.ensure_future(work)
                self._listener_work.append((image.offset, future))
                future.add_done_callback(self._work_done)
                self._arm_late_timer()
        self._on_published(size)

    def _work_done(self, work: asyncio.Future[None]) -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            self._on_bug("a change of the metadata", error)
        while self._listener_work and self._listener_work[0][1].done():
            self._listener_work.popleft()
        self._wake()

    def _arm_late_timer(self) -> None:
        if self._late_timer is None and self._listener_work:
            loop = asyncio.get_running_loop()
            self._late_timer = loop.call_later(LATE_S, self._log_late_work, self._listener_work[0])

    def _log_late_work(self, oldest: tuple[int, asyncio.Future[None]]) -> None:
        """Log work that was the oldest already at the last check."""
        self._late_timer = None
        if self._listener_work and self._listener_work[0] is oldest:
            offset, work = oldest
            where = waits_in(work.get_coro()) if isinstance(work, asyncio.Task) else repr(work)
            _log.warning(
                "a metadata change up to offset %d is not applied on this node after %d s: %s",
                offset,
                LATE_S,
                where,
            )
        self._arm_late_timer()

    @property
    def _done_offset(self) -> int:
        """Offset up to which everything is published, and listeners' work is done."""
        return self._listener_work[0][0] - 1 if self._listener_work else self.image.offset

    def _wake(self) -> None:
        """Complete waiters whose offset is published; after a failure, all waiters."""
        self._complete(self._readers, self.image.offset)
        self._complete(self._waiters, self._done_offset if self._failure is None else self.image.offset)

    def _complete(self, waiting: _Waiting, done_offset: int) -> None:
        count = len(waiting)
        if self._failure is None:
            count = bisect_right(waiting, done_offset, key=_offset_of)
        due = waiting[:count]
        del waiting[:count]
        for offset, waiter in due:
            if waiter.done():
                continue
            if offset <= done_offset:
                waiter.set_result(None)
            else:
                waiter.set_exception(StorageError(str(self._failure)))


def _offset_of(work: _Work) -> int:
    return work[0]


def apply_batch(image: MetadataImage, batch: MetadataBatch) -> tuple[MetadataImage, MetadataDelta]:
    """Return the image with one more batch, and the delta.

    Raises `CorruptionError` where a record contradicts the image.
    """
    return at_once(apply_batch_in_steps(image, batch))


def apply_batch_in_steps(
    image: MetadataImage, batch: MetadataBatch
) -> Steps[tuple[MetadataImage, MetadataDelta]]:
    """Apply a batch as `apply_batch` does, in steps."""
    delta = yield from MetadataDelta(image).replay_in_steps(frame.record for frame in batch.frames)
    voter_records = NO_VOTER_RECORDS._replace(version=image.kraft_version)
    for record in batch.control:
        voter_records = apply_voter_record(record, voter_records)
    delta.set_kraft_version(voter_records.version)
    after = yield from delta.build_in_steps(batch.last_offset, batch.epoch, batch.timestamp_ms)
    return after, delta
