"""The committed image, and who is told of each change: what the log says becomes the image here alone.

Owned by the event loop. What this node proposed itself is published with the image that it was decided on;
everything else is read from the log, slice by slice, so that nothing else waits. What is not committed is
never seen by anybody but who proposed it.
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
from service.metadata.batches import MetadataBatch, decode_batches
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.image_diff import apply_snapshot
from service.metadata.raft.control import NO_VOTERS_SAID, voters_said
from service.metadata.raft.log import MetadataLog
from service.records.batch import iter_headers

_log = logging.getLogger(__name__)
LATE_S: Final = 30.0
"""What follows from a change is done long before; somebody should know where it is not."""
_SLICE_BYTES: Final = 64 * 1024
"""Log that is applied at a time, batches being whole: some milliseconds of the event loop."""

Listener = Callable[[MetadataImage, MetadataImage, MetadataDelta], Awaitable[None] | None]
"""Called with the image before, the image after and the delta between them. What it returns, if anything, is
work that goes on: who waits for the change is told when that is done."""


class _Proposal(NamedTuple):
    """A batch that is written but not committed, and the image up to it."""

    base_offset: int
    image: MetadataImage
    delta: MetadataDelta
    size: int


_Work = tuple[int, asyncio.Future[None]]
"""what belongs to an offset, and ends"""
_Waiting = list[_Work]
"""By offset, whenever they came: a leader that lost what it wrote may wait again for an earlier one."""


class Publication:
    """`on_published(bytes)` hears of each batch, `on_broken(error)` of a log that cannot be read or makes no
    sense, `on_bug(what, error)` of a listener that failed.
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
        """`image` as it was before batches that say nothing of metadata: what proposals may be made on"""
        self._high_watermark = 0
        self._proposals: deque[_Proposal] = deque()
        self._snapshot: MetadataImage | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._readers: _Waiting = []
        """who waits for the image alone"""
        self._waiters: _Waiting = []
        self._failure: StorageError | None = None
        self._works: deque[_Work] = deque()
        self._look: asyncio.TimerHandle | None = None

    def proposed(self, base_offset: int, image: MetadataImage, delta: MetadataDelta, size: int) -> None:
        """A batch of `size` bytes was written at `base_offset`; `image` holds once it is committed, `delta`
        leads to it."""
        self._proposals.append(_Proposal(base_offset, image, delta, size))

    def truncated(self, end_offset: int) -> None:
        """The log ends at `end_offset`: what lay beyond was never committed (`InvariantError` if it was)."""
        if end_offset < max(self._high_watermark, self.image.offset + 1):
            raise InvariantError(f"the metadata log is committed up to {self._high_watermark}")
        while self._proposals and self._proposals[-1].image.offset >= end_offset:
            self._proposals.pop()

    def jump(self, image: MetadataImage) -> None:
        """The log begins anew at the end of a snapshot, which says `image`: publish that as one change, which
        is found in slices."""
        if image.offset <= self.image.offset:
            raise InvariantError(f"a snapshot up to {image.offset}, {self.image.offset} is published")
        self._proposals.clear()
        self._high_watermark = max(self._high_watermark, image.offset + 1)
        self._snapshot = image
        self._begin_catching_up()

    def commit(self, high_watermark: int) -> None:
        """Everything below `high_watermark` is decided: publish it."""
        self._high_watermark = high_watermark
        if self._catching_up is None and not self._publish_proposed():
            self._begin_catching_up()
        self._wake()

    async def reached(self, offset: int) -> None:
        """Return once the image holds `offset`, and listeners have done what follows.

        Raises `StorageError` where it never will.
        """
        if offset > self._done_offset:
            await self._wait(self._waiters, offset)

    async def published(self, offset: int) -> None:
        """As `reached`, whatever listeners still do."""
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
            with suppress(ValueError):  # it was told, and cancelled before it heard of that
                waiting.remove((offset, waiter))
            raise

    def fail(self, failure: StorageError) -> None:
        """Nothing will be committed any more: whoever waits is told."""
        self._failure = self._failure or failure
        self._wake()

    async def stop(self) -> None:
        """Come to the high watermark, and publish nothing more."""
        if self._catching_up is not None:
            await self._catching_up
        await asyncio.gather(*(work for _, work in self._works), return_exceptions=True)
        self.fail(StorageError("the node stops"))
        if self._look is not None:
            self._look.cancel()

    def _begin_catching_up(self) -> None:
        if self._catching_up is None:
            self._catching_up = asyncio.get_running_loop().create_task(
                self._catch_up(), name="metadata-catch-up"
            )

    def _publish_proposed(self) -> bool:
        """Publish what this node proposed itself; False where a snapshot or the log has to be read."""
        if self._snapshot is not None:
            return False
        while self.image.offset + 1 < self._high_watermark:
            proposed = self._proposals[0] if self._proposals else None
            if proposed is None or proposed.base_offset != self.image.offset + 1:
                return False  # a control batch of the quorum's stands before it
            if proposed.delta.image is not self.image and proposed.delta.image is not self._content:
                return False
            self._proposals.popleft()
            # What the quorum's own records say is no part of what the proposal was made on.
            kraft_version = self.image.kraft_version
            self._publish(proposed.image.with_kraft_version(kraft_version), proposed.delta, proposed.size)
            self._content = proposed.image
        return True

    async def _catch_up(self) -> None:
        """Apply the snapshot, if one came, and the log behind it up to the high watermark, in slices."""
        try:
            while not self._publish_proposed():
                if self._snapshot is not None:
                    after, self._snapshot = self._snapshot, None
                    image, delta = await Slice().go_on(apply_snapshot(self.image, after))
                    self._publish(image, delta, 0)
                else:
                    async with self._log.changing:
                        if self._snapshot is None:  # else the log has begun anew meanwhile
                            self._publish_slice()
                self._wake()
                await next_turn()
            self._wake()
        except Exception as e:
            self._on_broken(e)
            self.fail(StorageError(f"the metadata log cannot be applied: {e}"))
        finally:
            self._catching_up = None

    def _publish_slice(self) -> None:
        start, end = self.image.offset + 1, self._high_watermark
        if self._proposals and self._proposals[0].base_offset > start:
            end = min(end, self._proposals[0].base_offset)  # what was proposed need not be read
        data = self._log.read(start, _SLICE_BYTES, end)
        for header, batch in zip(iter_headers(data), decode_batches(data), strict=True):
            if batch.base_offset != self.image.offset + 1:
                raise CorruptionError(f"offset {batch.base_offset} follows {self.image.offset}")
            content = self._content
            self._publish(*apply_batch(self.image, batch), header.size)
            if not batch.frames:
                self._content = content
        while self._proposals and self._proposals[0].image.offset <= self.image.offset:
            self._proposals.popleft()  # it was read from the log instead

    def _publish(self, image: MetadataImage, delta: MetadataDelta, size: int) -> None:
        before, self.image, self._content = self.image, image, image
        for listener in self._listeners:
            try:
                work = listener(before, image, delta)
            except Exception as e:  # a bug of the listener's: the log is as good as before
                self._on_bug("a change of the metadata", e)
                continue
            if work is not None:
                future = asyncio.ensure_future(work)
                self._works.append((image.offset, future))
                future.add_done_callback(self._work_done)
                self._look_later()
        self._on_published(size)

    def _work_done(self, work: asyncio.Future[None]) -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            self._on_bug("a change of the metadata", error)
        while self._works and self._works[0][1].done():
            self._works.popleft()
        self._wake()

    def _look_later(self) -> None:
        if self._look is None and self._works:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(LATE_S, self._look_at, self._works[0])

    def _look_at(self, oldest: tuple[int, asyncio.Future[None]]) -> None:
        """Say where work stands that was the oldest a while ago."""
        self._look = None
        if self._works and self._works[0] is oldest:
            offset, work = oldest
            where = waits_in(work.get_coro()) if isinstance(work, asyncio.Task) else repr(work)
            _log.warning(
                "what the metadata asks of this node up to offset %d is not done after %d s: %s",
                offset,
                LATE_S,
                where,
            )
        self._look_later()

    @property
    def _done_offset(self) -> int:
        """Up to where everything is published, and done."""
        return self._works[0][0] - 1 if self._works else self.image.offset

    def _wake(self) -> None:
        """Tell those whose offset is published; where nothing more will be, all others, too."""
        self._tell(self._readers, self.image.offset)
        self._tell(self._waiters, self._done_offset if self._failure is None else self.image.offset)

    def _tell(self, waiting: _Waiting, done_offset: int) -> None:
        count = len(waiting)
        if self._failure is None:
            count = bisect_right(waiting, done_offset, key=_offset_of)
        told = waiting[:count]
        del waiting[:count]
        for offset, waiter in told:
            if waiter.done():
                continue
            if offset <= done_offset:
                waiter.set_result(None)
            else:
                waiter.set_exception(StorageError(str(self._failure)))


def _offset_of(work: _Work) -> int:
    return work[0]


def apply_batch(image: MetadataImage, batch: MetadataBatch) -> tuple[MetadataImage, MetadataDelta]:
    """The image with one more batch, and what that changed.

    Raises `CorruptionError` where it makes no sense.
    """
    delta = MetadataDelta(image).replay_all(frame.record for frame in batch.frames)
    said = NO_VOTERS_SAID._replace(version=image.kraft_version)
    for record in batch.control:
        said = voters_said(record, said)
    delta.set_kraft_version(said.version)
    return delta.build(batch.last_offset, batch.epoch, batch.timestamp_ms), delta
