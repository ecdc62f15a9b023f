"""Listing of one partition's objects, for repairs of the documents that named them.

Byte order of keys is offset order, so one pass over the listing sorts nothing. Only footers are opened here,
each once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.remote.format.keys import (
    HeadKey,
    ManifestKey,
    PageKey,
    SegmentKey,
    parse_key,
    partition_prefix,
)
from service.remote.format.manifest import SegmentEntry
from service.remote.format.segment_object import Footer
from service.remote.reading.object_reader import entry_of, open_footer
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectInfo, ObjectStore

_MOST_PATHS: Final = 64
"""Chains that are tried where several objects have the same offsets."""


class ListedSegment(NamedTuple):
    """A segment by its key; `size` is the object's."""

    parsed: SegmentKey
    key: str
    size: int


class ListedPage(NamedTuple):
    """A page of a manifest by its key."""

    parsed: PageKey
    info: ObjectInfo


class ListedManifest(NamedTuple):
    """A version of the manifest by its key."""

    parsed: ManifestKey
    key: str


class PartitionListing:
    """All objects of a partition, and the footers that were requested."""

    def __init__(self, store: ObjectStore, infos: Iterable[ObjectInfo]) -> None:
        self._store = store
        self.segments: dict[int, list[ListedSegment]] = {}
        """by base offset"""
        self.pages: list[ListedPage] = []
        self.manifests: list[ListedManifest] = []
        self.has_head = False
        self._footers: dict[str, Footer | None] = {}
        for info in infos:
            parsed = parse_key(info.key)
            if isinstance(parsed, SegmentKey):
                found = ListedSegment(parsed, info.key, info.size)
                self.segments.setdefault(parsed.base_offset, []).append(found)
            elif isinstance(parsed, PageKey):
                self.pages.append(ListedPage(parsed, info))
            elif isinstance(parsed, ManifestKey):
                self.manifests.append(ListedManifest(parsed, info.key))
            elif isinstance(parsed, HeadKey):
                self.has_head = True

    @property
    def newest_version(self) -> int:
        """Newest version that has a manifest, readable or not; 0 for none."""
        return max((one.parsed.version for one in self.manifests), default=0)

    def footer(self, segment: ListedSegment) -> Footer | None:
        """Return the verified footer, None where the object is missing, damaged or not what its key says."""
        if segment.key not in self._footers:
            try:
                self._footers[segment.key] = open_footer(self._store, segment.key)
            except (ObjectNotFound, CorruptionError):
                self._footers[segment.key] = None
        return self._footers[segment.key]

    def entry(self, segment: ListedSegment) -> SegmentEntry | None:
        """Return the segment's manifest entry, None where its footer cannot be read."""
        footer = self.footer(segment)
        return entry_of(footer) if footer is not None else None

    def first_holding(self, offset: int, not_below: int) -> list[int]:
        """Return base offsets of segments that hold `offset` and begin at `not_below` or later; the latest
        first."""
        bases = [
            base
            for base, found in self.segments.items()
            if not_below <= base <= offset and any(one.parsed.last_offset >= offset for one in found)
        ]
        return sorted(bases, reverse=True)

    def reaches(self) -> dict[str, int]:
        """Return the last offset that segments without a gap reach from each segment on, by its key."""
        found: dict[str, int] = {}
        farthest: dict[int, int] = {}
        for base in sorted(self.segments, reverse=True):
            for one in self.segments[base]:
                last = one.parsed.last_offset
                found[one.key] = max(last, farthest.get(last + 1, last))
            farthest[base] = max(found[one.key] for one in self.segments[base])
        return found

    def paths(self, base: int, last_offset: int) -> Iterator[tuple[ListedSegment, ...]]:
        """Yield runs of segments from offset `base` to `last_offset` without gap or overlap; a bounded
        number."""
        useful = self._leading_to(base, last_offset)
        stack: list[tuple[int, Iterator[ListedSegment]]] = [(base, iter(useful.get(base, ())))]
        path: list[ListedSegment] = []
        found = 0
        while stack:
            segment = next(stack[-1][1], None)
            if segment is None:
                stack.pop()
                if path:
                    path.pop()
                continue
            path.append(segment)
            if segment.parsed.last_offset == last_offset:
                yield tuple(path)
                path.pop()
                found += 1
                if found == _MOST_PATHS:
                    return
                continue
            following = segment.parsed.last_offset + 1
            stack.append((following, iter(useful.get(following, ()))))

    def _leading_to(self, base: int, last_offset: int) -> dict[int, list[ListedSegment]]:
        """Return segments from which a chain leads to `last_offset`, by base offset.

        Of several the rewritten ones come first, as what they replaced stays for a grace; then newest epochs.
        """
        useful: dict[int, list[ListedSegment]] = {}
        for start in sorted((one for one in self.segments if base <= one <= last_offset), reverse=True):
            leading = [
                one
                for one in self.segments[start]
                if one.parsed.last_offset == last_offset or one.parsed.last_offset + 1 in useful
            ]
            if len(leading) > 1:
                leading.sort(key=lambda one: (self._generation(one), one.parsed.leader_epoch), reverse=True)
            if leading:
                useful[start] = leading
        return useful

    def _generation(self, segment: ListedSegment) -> int:
        footer = self.footer(segment)
        return -1 if footer is None else footer.generation

    def are_alike(self, one: Iterable[ListedSegment], other: Iterable[ListedSegment]) -> bool:
        """Return whether two chains have the same records: equal blocks in each position, by their
        footers."""
        return [self._blocks(segment) for segment in one] == [self._blocks(segment) for segment in other]

    def _blocks(self, segment: ListedSegment) -> tuple[int, int, int] | str:
        footer = self.footer(segment)
        if footer is None:
            return segment.key
        return segment.parsed.base_offset, footer.log_length, footer.sections["block_table"].crc32c


def list_partition(store: ObjectStore, topic_id_partition: HeadKey) -> PartitionListing:
    """List one partition now."""
    return PartitionListing(store, store.list(partition_prefix(*topic_id_partition)))
