"""Objects that a rewrite has put in the place of one that a read was planned with, and that is gone since.

A merge or an erasure replaces objects; those of before go after a grace, and a job may last longer than that.
HEAD names what has their offsets now. What other changes took, by retention or with the topic, nothing has:
only an object of a higher generation holds the records of the one before it (invariants T23, T24).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from service.remote.format.keys import HeadKey, SegmentKey, parse_key
from service.remote.format.manifest import Manifest, ManifestPage, PageRef, SegmentEntry, live_segments
from service.remote.format.segment_object import Footer
from service.remote.reading.object_reader import open_footer_of, open_page, open_published
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore

T = TypeVar("T")

_MOST_KEPT: Final = 8
"""Footers, and pages, that are kept: many small objects become one, and each of them asks for it."""


class Successors(NamedTuple):
    """Objects that have the offsets of one that is gone, from `start_offset` on.

    Retention took those below.
    """

    entries: tuple[SegmentEntry, ...]
    start_offset: int


class Rewritten:
    """Chains as HEAD named them when an object was first found to be gone. Safe from any thread."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._manifests: dict[HeadKey, Manifest] = {}
        self._footers: dict[str, Footer] = {}
        self._pages: dict[str, ManifestPage] = {}
        self._lock = threading.Lock()

    def footer(self, entry: SegmentEntry) -> Footer:
        """Return the footer of an object that took the place of others."""
        with self._lock:
            return _kept(self._footers, entry.key, lambda: open_footer_of(self._store, entry))

    def in_place_of(self, gone: SegmentEntry, begin_offset: int, end_offset: int) -> Successors | None:
        """Return what has the offsets of `gone` in ``[begin_offset, end_offset)`` now; None where nothing has
        its records.

        Raises what the store raises, and `CorruptionError` where the chain cannot be read.
        """
        key = parse_key(gone.key)
        if not isinstance(key, SegmentKey) or gone.owner is not None:
            return None
        begin = max(begin_offset, gone.base_offset)
        end = min(end_offset, gone.last_offset + 1)
        place = HeadKey(key.topic_id, key.partition)
        with self._lock:
            found: Successors | None = None
            if (known := self._manifests.get(place)) is not None:
                with suppress(ObjectNotFound):  # a page of it may be gone by now, too
                    found = self._found(known, gone, begin, end)
            if found is None:
                chain = open_published(self._store, place)
                if chain is not None:
                    self._manifests[place] = chain.manifest
                    found = self._found(chain.manifest, gone, begin, end)
            return found

    def _found(self, manifest: Manifest, gone: SegmentEntry, begin: int, end: int) -> Successors | None:
        entries = []
        for entry in live_segments(manifest, lambda ref: self._page(manifest, ref), begin):
            if entry.base_offset >= end:
                break
            entries.append(entry)
        is_whole = bool(entries) and entries[-1].last_offset >= end - 1
        if not is_whole or not _are_newer(entries, gone):
            return None
        return Successors(tuple(entries), max(begin, entries[0].base_offset))

    def _page(self, manifest: Manifest, ref: PageRef) -> ManifestPage:
        return _kept(self._pages, ref.key, lambda: open_page(self._store, ref, manifest))


def _kept(kept: dict[str, T], key: str, read: Callable[[], T]) -> T:
    """Return what is kept under `key`; else `read` it, and keep it in the place of the oldest."""
    found = kept.get(key)
    if found is None:
        found = read()
        if len(kept) >= _MOST_KEPT:
            del kept[next(iter(kept))]
        kept[key] = found
    return found


def _are_newer(entries: Sequence[SegmentEntry], gone: SegmentEntry) -> bool:
    return all(entry.generation > gone.generation for entry in entries)
