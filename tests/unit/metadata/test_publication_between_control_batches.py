"""Publication of images when batches of the quorum are between those of the controller."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from uuid import UUID

import pytest

from service.metadata.batches import encode_batch, encode_control_batch
from service.metadata.delta import MetadataDelta
from service.metadata.frames import newest
from service.metadata.image import MetadataImage
from service.metadata.publication import Publication
from service.metadata.raft.control import encode_records
from service.metadata.raft.events import KRaftVersion
from service.metadata.records import TopicRecord


class Log:
    """Whole batches below an offset, from one on."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.changing = asyncio.Lock()

    def read(self, offset: int, size: int, end_offset: int) -> bytes:
        return b"".join(self.batches[offset:end_offset])


def propose(log: Log, publication: Publication, before: MetadataImage, name: str) -> MetadataImage:
    """A batch of one record."""
    frame, offset = (
        newest(TopicRecord(name=name, topic_id=UUID(bytes=name.rjust(16).encode()))),
        len(log.batches),
    )
    delta = MetadataDelta(before).replay_all([frame.record])
    image = delta.build(offset, 1, 5)
    batch = bytes(encode_batch([frame], base_offset=offset, epoch=1, timestamp_ms=5))
    log.batches.append(batch)
    publication.proposed(offset, image, delta, len(batch))
    return image


def control(log: Log, level: int = 1) -> None:
    log.batches.append(
        bytes(
            encode_control_batch(
                *encode_records((KRaftVersion(level),)), base_offset=len(log.batches), epoch=1, timestamp_ms=5
            )
        )
    )


def test_a_batch_after_a_control_batch_waits_for_its_own_commit() -> None:
    async def scenario() -> None:
        seen: list[tuple[int, int]] = []
        broken: list[Any] = []
        log: Any = Log()
        publication = Publication(
            log,
            MetadataImage(),
            [lambda before, after, delta: seen.append((before.offset, after.offset))],
            on_published=lambda size: None,
            on_broken=broken.append,
            on_bug=lambda what, error: broken.append(error),
        )
        first = propose(log, publication, publication.image, "first")
        control(log)
        second = propose(log, publication, first, "second")
        control(log)
        third = propose(log, publication, second, "third")
        publication.commit(1)
        assert publication.image is first
        publication.commit(2)
        await publication.reached(1)
        assert publication.image.offset == 1
        assert "second" not in publication.image.topics_by_name
        publication.commit(3)
        await publication.reached(2)
        as_proposed = "the log is not read for it"
        assert publication.image.topics_by_id is second.topics_by_id, as_proposed
        assert (publication.image.kraft_version, second.kraft_version) == (1, 0)
        publication.commit(5)
        await publication.reached(4)
        assert publication.image.topics_by_id is third.topics_by_id, as_proposed
        assert seen == [(-1, 0), (0, 1), (1, 2), (2, 3), (3, 4)]
        fourth = propose(log, publication, third, "fourth")
        publication.commit(6)
        await publication.reached(5)
        assert publication.image.topics_by_id is fourth.topics_by_id, as_proposed
        assert publication.image.kraft_version == 1
        assert not broken

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(60))
def test_the_published_image_equals_the_log_for_any_commit_size(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def scenario() -> None:
        seen: list[int] = []
        broken: list[Any] = []
        log: Any = Log()
        publication = Publication(
            log,
            MetadataImage(),
            [lambda before, after, delta: seen.append(after.offset)],
            on_published=lambda size: None,
            on_broken=broken.append,
            on_bug=lambda what, error: broken.append(error),
        )
        newest_image, expected, committed = publication.image, [(frozenset[str](), 0)], 0
        for number in range(40):
            names, level = expected[-1]
            if chance.random() < 0.3:
                level = chance.randrange(9)
                control(log, level)
            else:
                newest_image = propose(log, publication, newest_image, f"t{number}")
                names = names | {f"t{number}"}
            expected.append((names, level))
            if chance.random() < 0.4:
                committed = chance.randint(committed, len(log.batches))
                publication.commit(committed)
                if chance.random() < 0.7:
                    await publication.reached(committed - 1)
        publication.commit(len(log.batches))
        await publication.reached(len(log.batches) - 1)
        assert not broken
        assert seen == list(range(40)), "each batch is a change of its own"
        image = publication.image
        assert (frozenset(image.topics_by_name), image.kraft_version) == expected[-1]

    asyncio.run(scenario())
