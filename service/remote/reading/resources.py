"""What a read needs from the bucket, each as a `flights.Resource`: manifest, page, footer, chunk."""

from __future__ import annotations

from typing import Final, NamedTuple

from service.remote.format.manifest import Manifest, Page, PageRef, SegmentEntry
from service.remote.format.segment_object import Footer
from service.remote.reading.chunk import Chunk, ChunkRange, split_chunks, verify_chunk
from service.remote.reading.object_reader import open_footer_of, open_manifest, open_page, read_section
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore

_ENTRY_COST: Final = 700
"""Bytes that one entry of a manifest or page takes in memory, strings included; measured, rounded up."""
_FOOTER_COST: Final = 4096
_ROW_COST: Final = 40


class OpenSegment(NamedTuple):
    """A segment ready to be read: its footer, and how it is cut into chunks."""

    entry: SegmentEntry
    footer: Footer
    chunks: tuple[ChunkRange, ...]


class ManifestResource(NamedTuple):
    manifest_key: str

    @property
    def key(self) -> str:
        return self.manifest_key

    @property
    def reserve(self) -> int:
        return 0

    def load(self, store: ObjectStore) -> tuple[Manifest, int]:
        manifest, stored_size = open_manifest(store, self.manifest_key)
        return manifest, stored_size + _ENTRY_COST * (len(manifest.children) + 1)


class PageResource(NamedTuple):
    ref: PageRef
    manifest: Manifest

    @property
    def key(self) -> str:
        return self.ref.key

    @property
    def reserve(self) -> int:
        return 0

    def load(self, store: ObjectStore) -> tuple[Page, int]:
        page = open_page(store, self.ref, self.manifest)
        return page, self.ref.stored_size + _ENTRY_COST * len(page.children)


class SegmentResource(NamedTuple):
    """The footer of one segment."""

    entry: SegmentEntry
    chunk_bytes: int

    @property
    def key(self) -> str:
        return self.entry.key

    @property
    def reserve(self) -> int:
        return 0

    def load(self, store: ObjectStore) -> tuple[OpenSegment, int]:
        footer = open_footer_of(store, self.entry)
        segment = OpenSegment(self.entry, footer, split_chunks(footer.blocks, self.chunk_bytes))
        return segment, _FOOTER_COST + len(footer.blocks.encoded) + _ROW_COST * len(footer.blocks)


class SectionResource(NamedTuple):
    """The bytes of one section of a segment's object; none where the object does not have it."""

    segment: OpenSegment
    name: str

    @property
    def key(self) -> tuple[str, str]:
        return (self.segment.entry.key, self.name)

    @property
    def reserve(self) -> int:
        return 0

    def load(self, store: ObjectStore) -> tuple[bytes, int]:
        section = self.segment.footer.sections.get(self.name)
        data = b"" if section is None else read_section(store, self.segment.entry.key, section)
        return data, len(data)


class ChunkResource(NamedTuple):
    segment: OpenSegment
    number: int

    @property
    def range(self) -> ChunkRange:
        return self.segment.chunks[self.number]

    @property
    def key(self) -> tuple[str, int]:
        return (self.segment.entry.key, self.range.position)

    @property
    def reserve(self) -> int:
        return self.range.length

    def load(self, store: ObjectStore) -> tuple[Chunk, int]:
        object_key = self.segment.entry.key
        with naming(object_key):
            data = store.get_range(object_key, self.range.position, self.range.length)
            return verify_chunk(data, self.range, self.segment.footer.blocks), self.range.length
