"""Resources that a read needs from the bucket (`download.RemoteResource`): manifest, page, footer, chunk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from service.base.errors import CorruptionError
from service.base.types import NO_OFFSET, Buffer
from service.remote.format.block_table import DEFAULT_BLOCK_BYTES, LogBlock
from service.remote.format.manifest import Manifest, ManifestPage, PageRef, SegmentEntry
from service.remote.format.segment_object import MAX_TXN_INDEX_BYTES, OpenSegment
from service.remote.reading.aborted import AbortedIndex
from service.remote.reading.chunk import Chunk, ChunkRange, cut_range, verify_chunk
from service.remote.reading.object_reader import (
    decode_chain,
    open_chain,
    open_footer_of,
    open_page,
    read_section,
)
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore

_log = logging.getLogger(__name__)

R = TypeVar("R", bound="_Small")

_ENTRY_COST: Final = 700
"""Bytes that one entry of a manifest or page takes in memory, strings included; measured, rounded up."""
_FOOTER_COST: Final = 4096
_LARGE_BYTES: Final = 256 << 10
_ROW_COST: Final = 40


class _Small:
    """A resource that is downloaded whole and takes nothing of the chunk account."""

    __slots__ = ()

    @property
    def object_key(self) -> str:
        raise NotImplementedError

    @property
    def key(self) -> Hashable:
        return self.object_key

    @property
    def keys(self) -> tuple[Hashable, ...]:
        return (self.key,)

    @property
    def reserve(self) -> int:
        return 0

    def cut(self: R, taken: Callable[[Hashable], bool]) -> R:
        return self


@dataclass(frozen=True, slots=True)
class ManifestResource(_Small):
    """A manifest; `written` returns its bytes where this process wrote it lately."""

    manifest_key: str
    written: Callable[[str], bytes | None] = field(compare=False)

    @property
    def object_key(self) -> str:
        return self.manifest_key

    def load(self, store: ObjectStore) -> tuple[Manifest, int]:
        data = self.written(self.manifest_key)
        key = self.manifest_key
        chain = open_chain(store, key) if data is None else decode_chain(key, data)
        return chain.manifest, chain.head.stored_size + _ENTRY_COST * (len(chain.manifest.children) + 1)


@dataclass(frozen=True, slots=True)
class PageResource(_Small):
    """A page of a manifest's tree."""

    ref: PageRef
    manifest: Manifest

    @property
    def object_key(self) -> str:
        return self.ref.key

    def load(self, store: ObjectStore) -> tuple[ManifestPage, int]:
        page = open_page(store, self.ref, self.manifest)
        return page, self.ref.stored_size + _ENTRY_COST * len(page.children)


@dataclass(frozen=True, slots=True)
class SegmentResource(_Small):
    """The footer of one segment."""

    entry: SegmentEntry

    @property
    def object_key(self) -> str:
        return self.entry.key

    def load(self, store: ObjectStore) -> tuple[OpenSegment, int]:
        footer = open_footer_of(store, self.entry)
        cost = _FOOTER_COST + len(footer.blocks.encoded) + _ROW_COST * len(footer.blocks)
        return OpenSegment(self.entry, footer), cost


@dataclass(frozen=True, slots=True)
class SectionResource(_Small):
    """The bytes of one section of a segment's object; empty where the object does not have it."""

    segment: OpenSegment
    name: str

    @property
    def object_key(self) -> str:
        return self.segment.entry.key

    @property
    def key(self) -> tuple[str, str]:
        return (self.segment.entry.key, self.name)

    def load(self, store: ObjectStore) -> tuple[bytes, int]:
        section = self.segment.footer.sections.get(self.name)
        data = b"" if section is None else read_section(store, self.segment.entry.key, section)
        return data, len(data)


@dataclass(frozen=True, slots=True)
class AbortedResource(_Small):
    """The verified transaction index of one segment; a large one counts as a chunk does."""

    segment: OpenSegment

    @property
    def object_key(self) -> str:
        return self.segment.entry.key

    @property
    def key(self) -> tuple[str, str]:
        return (self.segment.entry.key, "aborted")

    @property
    def reserve(self) -> int:
        length = self.segment.footer.sections["txn_index"].length
        return length if length > _LARGE_BYTES else 0

    def load(self, store: ObjectStore) -> tuple[AbortedIndex, int]:
        entry, footer = self.segment
        section = footer.sections["txn_index"]
        with naming(entry.key):
            if section.length > MAX_TXN_INDEX_BYTES:
                raise CorruptionError(f"a transaction index of {section.length} bytes")
            data = read_section(store, entry.key, section)
            # Where only the end of a segment was copied, an older writer took all of its index.
            base_offset = 0 if footer.open_from == NO_OFFSET else entry.base_offset
            return AbortedIndex(data, base_offset, entry.last_offset), len(data)


class Guessed(NamedTuple):
    """Unverified bytes of a segment's log from `position` on."""

    position: int
    data: Buffer

    @property
    def end(self) -> int:
        return self.position + len(self.data)


def guess_key(object_key: str) -> Hashable:
    """Return the key of a segment's guess; there is one at a time."""
    return (object_key, "guess")


class GuessResource:
    """Probable position of a record, downloaded beside the footer that would tell it.

    The bytes are not verified: `ChunkResource` verifies what it takes of them, and then they are dropped.
    """

    __slots__ = ("entry", "keys", "length", "position")

    def __init__(self, entry: SegmentEntry, position: int, length: int) -> None:
        self.entry = entry
        self.position = position
        self.length = length
        self.keys = (guess_key(entry.key),)

    def holds(self, block: LogBlock) -> bool:
        return self.position <= block.position and block.end <= self.position + self.length

    @classmethod
    def for_offset(cls, entry: SegmentEntry, offset: int, max_bytes: int) -> GuessResource | None:
        """Return the guess for `offset`, assuming records of equal size; None where that is too unlikely to
        hit."""
        share = (offset - entry.base_offset) / (entry.last_offset - entry.base_offset + 1)
        likely = int(share * entry.log_length)
        length = min(max_bytes, entry.log_length)
        # The record's block may begin a block earlier or end a block later; half a block more allows for
        # records of other sizes.
        position = max(min(likely - 3 * DEFAULT_BLOCK_BYTES // 2, entry.log_length - length), 0)
        likely_end = min(likely + 3 * DEFAULT_BLOCK_BYTES // 2, entry.log_length)
        if offset > entry.base_offset and position + length < likely_end:
            return None
        return cls(entry, position, length)

    @property
    def object_key(self) -> str:
        return self.entry.key

    @property
    def key(self) -> Hashable:
        return self.keys[0]

    @property
    def reserve(self) -> int:
        return self.length

    def cut(self, taken: Callable[[Hashable], bool]) -> GuessResource:
        return self

    def load(self, store: ObjectStore) -> tuple[Guessed, int]:
        with naming(self.object_key):
            data = store.get_range(self.object_key, self.position, self.length)
            if len(data) != self.length:
                raise CorruptionError(f"{len(data)} bytes at {self.position}, {self.length} expected")
        return Guessed(self.position, data), self.length


class ChunkResource:
    """The chunk that begins with `block`: blocks of one segment, of at most `max_bytes` if more than one.

    Where all of that block was `guessed`, the chunk ends with the guess.
    """

    __slots__ = ("_guessed", "keys", "max_bytes", "range", "segment")

    def __init__(
        self,
        segment: OpenSegment,
        block: int,
        max_bytes: int,
        taken: Callable[[int], bool] | None = None,
        guessed: Guessed | None = None,
    ) -> None:
        self.segment = segment
        self._guessed = None
        if guessed is not None:
            first = segment.footer.blocks[block]
            if guessed.position <= first.position and first.end <= guessed.end:
                self._guessed, max_bytes = guessed, min(max_bytes, guessed.end - first.position)
        self.max_bytes = max_bytes
        # Until it is cut it stands for its first block alone: most requested blocks are in memory.
        most = 0 if taken is None else max_bytes
        self.range: ChunkRange = cut_range(segment.footer.blocks, block, most, taken)
        object_key = segment.entry.key
        self.keys = tuple((object_key, n) for n in range(block, self.range.last_block))

    @property
    def object_key(self) -> str:
        return self.segment.entry.key

    @property
    def key(self) -> tuple[str, int]:
        return self.keys[0]

    @property
    def reserve(self) -> int:
        return self.range.length

    def cut(self, taken: Callable[[Hashable], bool]) -> ChunkResource:
        """Return the chunk with the blocks after it that are neither in memory nor in flight."""
        object_key = self.segment.entry.key
        return ChunkResource(
            self.segment,
            self.range.first_block,
            self.max_bytes,
            lambda n: taken((object_key, n)),
            self._guessed,
        )

    @property
    def lengths(self) -> list[int]:
        """Bytes of each block."""
        blocks = self.segment.footer.blocks
        return [blocks[n].length for n in range(self.range.first_block, self.range.last_block)]

    def guessed(self) -> Chunk | None:
        """Return the chunk made from the guess, verified; None without a guess, or where the bytes are
        wrong."""
        if self._guessed is None:
            return None
        start = self.range.position - self._guessed.position
        try:
            return self.prove(memoryview(self._guessed.data)[start : start + self.range.length])
        except CorruptionError as e:
            _log.warning("prefetched bytes are damaged, downloading them once more: %s", e)
            return None

    def prove(self, data: Buffer) -> Chunk:
        """Return the chunk made from `data`; raise `CorruptionError` where the bytes are wrong."""
        with naming(self.object_key):
            return verify_chunk(data, self.range, self.segment.footer.blocks)

    def load(self, store: ObjectStore) -> tuple[Chunk, int]:
        with naming(self.object_key):
            data = store.get_range(self.object_key, self.range.position, self.range.length)
        return self.prove(data), self.range.length
