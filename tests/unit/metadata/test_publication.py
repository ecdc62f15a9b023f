"""A snapshot that was fetched becomes the image in slices, and the log behind it goes on from there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any
from uuid import UUID

import pytest

from service.base.errors import InvariantError, StorageError
from service.metadata.batches import encode_batch
from service.metadata.delta import MetadataDelta
from service.metadata.frames import newest
from service.metadata.image import MetadataImage
from service.metadata.publication import Publication
from service.metadata.records import TopicRecord
from tests.support.waiting import until

MANY = 20_000


def topics(first: int, end: int, before: MetadataImage, offset: int) -> MetadataImage:
    records = (TopicRecord(name=f"t{n}", topic_id=UUID(int=n + 1)) for n in range(first, end))
    return MetadataDelta(before).replay_all(records).build(offset, 3, 0)


class OneBatch:
    """A log of which a batch of one topic is at `offset`."""

    def __init__(self, offset: int) -> None:
        self.changing = asyncio.Lock()
        record = newest(TopicRecord(name="behind", topic_id=UUID(int=MANY + 99)))
        self.batch = encode_batch([record], base_offset=offset, epoch=3, timestamp_ms=0)
        self.read_at: list[int] = []

    def read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        self.read_at.append(offset)
        return bytes(self.batch)


class Heard:
    def __init__(self) -> None:
        self.changes: list[tuple[int, int, int]] = []

    def __call__(self, before: MetadataImage, after: MetadataImage, delta: MetadataDelta) -> None:
        assert delta.image is before or before.offset < after.offset
        self.changes.append((before.offset, after.offset, len(after.topics_by_name)))


def publication(log: Any, heard: Heard, image: MetadataImage) -> Publication:
    def refuse(*what: object) -> None:
        raise AssertionError(what)

    return Publication(log, image, [heard], on_published=lambda size: None, on_broken=refuse, on_bug=refuse)


def test_a_snapshot_is_published_in_slices_before_the_log_after_it() -> None:
    async def scenario() -> None:
        before = topics(0, MANY // 2, MetadataImage(), 9)
        after = topics(MANY // 4, MANY, MetadataImage(), 99)
        log, heard = OneBatch(100), Heard()
        one = publication(log, heard, before)
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count_turns())
        one.jump(after)
        one.commit(100)
        assert not heard.changes, "not in this turn"
        await one.reached(99)
        assert turns > 20
        one.commit(101)
        await one.reached(100)
        counting.cancel()
        assert heard.changes == [(9, 99, MANY - MANY // 4), (99, 100, MANY - MANY // 4 + 1)]
        assert log.read_at == [100]
        assert one.image.topics_by_name.keys() >= {"behind", f"t{MANY - 1}"}
        assert "t0" not in one.image.topics_by_name
        await one.stop()

    asyncio.run(scenario())


def test_the_log_is_not_read_while_a_thread_changes_it() -> None:
    async def scenario() -> None:
        log, heard = OneBatch(0), Heard()
        one = publication(log, heard, MetadataImage())
        async with log.changing:
            one.commit(1)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not log.read_at
            one.jump(topics(0, 3, MetadataImage(), 50))
        await one.reached(50)
        assert not log.read_at
        assert heard.changes == [(-1, 50, 3)]
        await one.stop()

    asyncio.run(scenario())


def test_the_later_of_two_snapshots_becomes_the_image() -> None:
    async def scenario() -> None:
        heard = Heard()
        one = publication(OneBatch(0), heard, MetadataImage())
        one.jump(topics(0, 3, MetadataImage(), 50))
        one.jump(topics(0, 5, MetadataImage(), 70))
        await one.reached(70)
        assert heard.changes[-1][1:] == (70, 5)
        with pytest.raises(InvariantError):
            one.jump(topics(0, 5, MetadataImage(), 70))
        await one.stop()

    asyncio.run(scenario())


def test_readers_of_an_image_do_not_wait_for_slow_listeners(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        over = asyncio.Event()

        async def takes_long() -> None:
            await over.wait()

        def heard(before: MetadataImage, after: MetadataImage, delta: MetadataDelta) -> Awaitable[None]:
            return asyncio.get_running_loop().create_task(takes_long())

        def refuse(*what: object) -> None:
            raise AssertionError(what)

        one = Publication(
            OneBatch(0),  # type: ignore[arg-type]
            MetadataImage(),
            [heard],
            on_published=lambda size: None,
            on_broken=refuse,
            on_bug=refuse,
        )
        reached, published = asyncio.create_task(one.reached(50)), asyncio.create_task(one.published(50))
        later = asyncio.create_task(one.published(70))
        await asyncio.sleep(0)
        one.jump(topics(0, 3, MetadataImage(), 50))
        await published
        await one.published(20)
        assert not reached.done()
        await until(lambda: "takes_long (test_publication.py:" in caplog.text)
        assert "up to offset 50 is not applied on this node after" in caplog.text
        over.set()
        await reached
        stopping = asyncio.create_task(one.stop())
        with pytest.raises(StorageError):
            await later
        await stopping

    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("service.metadata.publication.LATE_S", 0.02)
        asyncio.run(scenario())


@pytest.mark.parametrize("gives_up", [True, False], ids=["who gave up", "who still waits"])
def test_waiters_for_a_truncated_offset_do_not_block_later_ones(gives_up: bool) -> None:
    """It waits for an offset that was never committed; the same node leads again, at an earlier one."""

    async def scenario() -> None:
        one = publication(OneBatch(0), Heard(), MetadataImage())
        waits = [
            asyncio.create_task(wait(offset)) for wait in (one.reached, one.published) for offset in (90, 80)
        ]
        await asyncio.sleep(0)
        if gives_up:
            for task in waits:
                task.cancel()
            await asyncio.wait(waits)
        earlier = [asyncio.create_task(wait(50)) for wait in (one.reached, one.published)]
        await asyncio.sleep(0)
        one.jump(topics(0, 3, MetadataImage(), 50))
        async with asyncio.timeout(60):
            await asyncio.gather(*earlier)
        assert all(task.done() for task in waits) == gives_up
        one.jump(topics(0, 4, MetadataImage(), 90))
        await asyncio.gather(*(task for task in waits if not gives_up))
        await one.stop()

    asyncio.run(scenario())


def test_a_waiter_cancelled_when_it_is_woken_does_not_disturb_others() -> None:
    async def scenario() -> None:
        one = publication(OneBatch(0), Heard(), MetadataImage())
        cancelled, other = (asyncio.create_task(one.published(0)) for _ in range(2))
        await asyncio.sleep(0)
        one.image = topics(0, 3, MetadataImage(), 0)
        one._wake()
        cancelled.cancel()
        await other
        await asyncio.wait([cancelled])
        assert cancelled.cancelled()
        await one.stop()

    asyncio.run(scenario())


def test_nothing_is_published_while_a_cut_holds_it_back() -> None:
    """What was committed meanwhile follows at once, and whoever waits for it resumes."""

    async def scenario() -> None:
        heard = Heard()
        first = topics(0, 1, MetadataImage(), 9)
        published = publication(OneBatch(10), heard, first)
        published.hold()
        published.commit(11)
        waiting = asyncio.ensure_future(published.published(10))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (published.image.offset, heard.changes, waiting.done()) == (9, [], False)
        published.release()
        await waiting
        assert published.image.offset == 10
        assert len(heard.changes) == 1
        published.release()
        await published.stop()

    asyncio.run(scenario())


def test_a_batch_that_was_being_applied_waits_for_the_end_of_a_hold() -> None:
    async def scenario() -> None:
        heard = Heard()
        log = OneBatch(10)
        published = publication(log, heard, topics(0, 1, MetadataImage(), 9))
        read = log.read

        def and_held(offset: int, max_bytes: int, end_offset: int) -> bytes:
            published.hold()
            return read(offset, max_bytes, end_offset)

        log.read = and_held  # type: ignore[method-assign]
        published.commit(11)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (log.read_at, published.image.offset) == ([10], 9)
        published.release()
        await published.published(10)
        await published.stop()

    asyncio.run(scenario())
