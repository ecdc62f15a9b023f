"""Tails, metadata and cut of a clone of some topics, without those of the others. Blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.threads import Threads
from service.base.types import Buffer
from service.inspect.object_copies import AT_ONCE, WINDOW_BYTES
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.records import MetadataRecord, RemoveTombstoneRecord, RemoveTopicRecord
from service.metadata.snapshot_codec import encode_image
from service.remote.format.cut_codec import Cut, TailRef
from service.remote.format.keys import MetadataKey, metadata_key
from service.remote.format.tail_object import TRAILER, TailFooter, TailSection, encode_footer
from service.remote.reading.tails import open_tail
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore


class PartOfTail(NamedTuple):
    """A tail of the source, and those of its sections that the clone has."""

    ref: TailRef
    footer: TailFooter
    sections: tuple[TailSection, ...]


class TailsToCopy(NamedTuple):
    """Tails that are copied as they are, and those of which some sections are."""

    whole: tuple[TailRef, ...]
    parts: tuple[PartOfTail, ...]


CopySections = Callable[[PartOfTail], TailRef]
"""Writes the sections under the tail's key, and returns how a cut names the new object."""


def chosen_tails(
    store: ObjectStore, cut: Cut, topics: Collection[UUID], owners: Collection[str], pool: Executor
) -> TailsToCopy:
    """Return the tails of a cut that have sections of these topics."""
    whole: list[TailRef] = []
    parts: list[PartOfTail] = []
    footers = pool.map(partial(open_tail, store, owners=owners), cut.tails)
    for ref, footer in zip(cut.tails, footers, strict=True):
        sections = tuple(one for one in footer.sections if one.topic_id in topics)
        if len(sections) == len(footer.sections):
            whole.append(ref)
        elif sections:
            parts.append(PartOfTail(ref, footer, sections))
    return TailsToCopy(tuple(whole), tuple(parts))


class ChosenCut(NamedTuple):
    """A cut as the clone has it, and the snapshot of its metadata."""

    cut: Cut
    snapshot: bytes


def chosen_cut(
    cut: Cut, image: MetadataImage, topics: Collection[UUID], tails: Collection[TailRef], new_uuid: UUID
) -> ChosenCut:
    """Return the cut without other topics. Its metadata, `image`, is a snapshot whole: what lay behind the
    source's snapshot is in sections that have the other topics."""
    others: list[MetadataRecord] = [
        *(RemoveTopicRecord(topic_id=one) for one in image.topics_by_id if one not in topics),
        *(RemoveTombstoneRecord(topic_id=one) for one in image.tombstones),
    ]
    kept = MetadataDelta(image).replay_all(others).build(image.offset, image.epoch, image.timestamp_ms)
    snapshot = b"".join(encode_image(kept, cut.at_ms))
    ref = cut.metadata._replace(
        key=metadata_key(MetadataKey(cut.metadata_end, cut.metadata_epoch, new_uuid)),
        end_offset=cut.metadata_end,
        epoch=cut.metadata_epoch,
        size=len(snapshot),
        crc32c=crc32c(snapshot),
    )
    rows = {topic_id: found for topic_id, found in cut.topics.items() if topic_id in topics}
    return ChosenCut(cut._replace(metadata=ref, tails=tuple(sorted(tails)), topics=rows), snapshot)


@contextmanager
def section_copier(source: ObjectStore, target: ObjectStore, threads: Threads) -> Iterator[CopySections]:
    """Yield a copier of sections; few tails at a time, as their bytes pass through here.

    Sections are read by threads of their own, as obstore's client must not be called while it asks for the
    bytes of an upload. Raises `CorruptionError` for a section with another checksum than its footer's.
    """
    with threads.pool("reads", AT_ONCE) as readers, threads.pool("copies", AT_ONCE) as writers:

        def read(tail: PartOfTail, footer: bytes) -> Iterator[Buffer]:
            for section in tail.sections:
                crc = 0
                for at in range(0, section.length, WINDOW_BYTES):
                    length = min(WINDOW_BYTES, section.length - at)
                    piece = readers.submit(
                        source.get_range, tail.ref.key, section.position + at, length
                    ).result()
                    crc = crc32c(piece, crc)
                    yield piece
                if crc != section.crc32c:
                    raise CorruptionError(f"{tail.ref.key}: the section at {section.position} is damaged")
            yield footer

        def write(tail: PartOfTail) -> TailRef:
            moved, end = _moved(tail.sections)
            of = tail.footer
            with naming(tail.ref.key):
                footer = encode_footer(of.cluster_id, of.cut, of.level, moved, of.stamp)
            size = end + len(footer)
            target.put_stream(tail.ref.key, read(tail, footer), size)
            return TailRef(
                tail.ref.key, size, end, TRAILER.unpack_from(footer, len(footer) - TRAILER.size)[1]
            )

        yield lambda tail: writers.submit(write, tail).result()


def _moved(sections: tuple[TailSection, ...]) -> tuple[list[TailSection], int]:
    """Return the sections as they touch each other from byte 0, and where they end."""
    moved: list[TailSection] = []
    end = 0
    for section in sections:
        moved.append(section._replace(position=end))
        end += section.length
    return moved, end
