"""Repairs of one partition: pages, the manifest, HEAD. What they are made from is in `repair`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError, UnknownVersion
from service.inspect.committed import has_words
from service.remote.catalog import NO_VERSION, CatalogEntry
from service.remote.format.documents import MAX_STORED_BYTES
from service.remote.format.keys import HeadKey, head_key, partition_prefix
from service.remote.format.manifest import Manifest, ManifestPage, PageRef, SegmentEntry
from service.remote.format.manifest_codec import (
    MAX_SMALL_BYTES,
    Head,
    encode_manifest,
    encode_page,
    head_of,
)
from service.remote.reading.chain_proof import proved_footer, proved_segments
from service.remote.reading.lost_page import RecoveredPage, pages_of, recover_page
from service.remote.reading.object_reader import Chain, open_chain, open_head, open_page, open_published
from service.remote.reading.partition_listing import ListedSegment, PartitionListing, list_partition
from service.remote.stores import conditional
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore, Tagged

NewUuid = Callable[[], UUID]
_NO_HEAD: Final = "there is no HEAD"


class Hopeless(NamedTuple):
    """What is wrong and cannot be repaired from what is there."""

    where: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.where}: cannot be repaired: {self.wrong}"


class PageRepair(NamedTuple):
    """The very bytes of a page that cannot be read: nothing else changes with them."""

    wrong: str
    ref: PageRef
    data: bytes
    seen: Tagged | None

    def __str__(self) -> str:
        return (
            f"{self.ref.key}: {self.wrong}; to be made, byte for byte, from the footers of "
            f"{self.ref.segments} segments"
        )


class HeadRepair(NamedTuple):
    """HEAD of one partition as it can be made again.

    `base` is the manifest that it goes by, None where there is none. Where `version` is that manifest's, HEAD
    names it as it is. Otherwise a new one is published: with `repaged` in the place of pages that cannot be
    read, and the segments `added` at its end.
    """

    key: HeadKey
    wrong: str
    base: Chain | None
    version: int
    seen: Tagged | None
    repaged: tuple[tuple[PageRef, tuple[SegmentEntry, ...]], ...] = ()
    added: tuple[SegmentEntry, ...] = ()
    start: Manifest | None = None
    """without a base: what the chain begins with"""

    @property
    def parent(self) -> Manifest:
        """The manifest that the repaired one goes by."""
        found = self.base.manifest if self.base is not None else self.start
        assert found is not None
        return found

    @property
    def is_as_committed(self) -> bool:
        """Whether HEAD names a manifest that is there."""
        return self.base is not None and self.base.manifest.version == self.version

    @property
    def end_offset(self) -> int:
        """Where the chain ends."""
        return self.added[-1].last_offset + 1 if self.added else self.parent.end_offset

    def __str__(self) -> str:
        source = self.base.key if self.base is not None else "segments alone, by their keys and footers"
        how = [f"version {self.version}: {source}"]
        if self.repaged:
            how.append(f"{len(self.repaged)} pages made from the footers of their segments")
        if self.added and self.base is not None:
            how.append(f"{len(self.added)} more segments that lie behind its end")
        what = "HEAD to name the committed" if self.is_as_committed else "to be published anew as"
        return (
            f"{partition_prefix(*self.key)}: {self.wrong}; {what} {', '.join(how)}, "
            f"offsets {self.parent.start_offset} to {self.end_offset - 1}"
        )

    def publication(self, new_uuid: NewUuid) -> tuple[list[tuple[str, bytes]], Head]:
        """Objects to be written, in order, and the HEAD that names the last of them."""
        if self.is_as_committed:
            assert self.base is not None
            return [], self.base.head
        manifest = self.parent
        written: list[tuple[str, bytes]] = []
        for ref, entries in self.repaged:
            made, pages = pages_of(entries, ref.level, manifest, new_uuid)
            written += pages
            refs = tuple(made if one == ref else one for one in manifest.pages)
            if ref == manifest.pages[0]:
                manifest = replace(manifest, dropped_segments=0, dropped_bytes=0)
            manifest = replace(manifest, pages=refs)
        if self.added:
            start = manifest.start_offset
            change = manifest.append(
                self.added, leader_epoch=manifest.leader_epoch, new_uuid=new_uuid, encode_page=encode_page
            )
            written += [(ref.key, data) for _, ref, data in change.pages]
            manifest = replace(change.manifest, start_offset=max(start, change.manifest.start_offset))
        manifest = replace(
            manifest,
            version=self.version,
            parent_version=self.base.manifest.version if self.base is not None else NO_VERSION,
            parent_key=self.base.key if self.base is not None else None,
            leader_epoch=max([manifest.leader_epoch, *(one.last_epoch for one in self.added)]),
            stored_key=None,
            stamp=None,
        )
        key, data = manifest.key(new_uuid()), encode_manifest(manifest)
        return [*written, (key, data)], head_of(manifest, key, data)


Repair = PageRepair | HeadRepair | Hopeless


def repairs_of_partition(
    store: ObjectStore, key: HeadKey, entry: CatalogEntry | None
) -> tuple[Manifest | None, list[Repair]]:
    """What is wrong with a partition, and its manifest as it is or can be made; None where there is none.

    `entry` is what the newest copy of the metadata has of it.
    """
    return _Partition(store, key, entry).repairs()


class _Readable(NamedTuple):
    """A manifest of which every live segment is known. `exact` pages can be put back as they were."""

    chain: Chain
    exact: tuple[PageRepair, ...]
    repaged: tuple[tuple[PageRef, tuple[SegmentEntry, ...]], ...]
    is_whole: bool
    """whether each object is there and agrees"""


class _Partition:
    def __init__(self, store: ObjectStore, key: HeadKey, entry: CatalogEntry | None) -> None:
        self._store = store
        self._key = key
        self._entry = entry
        self._where = partition_prefix(*key)
        self._all: PartitionListing | None = None

    @property
    def _listing(self) -> PartitionListing:
        if self._all is None:
            self._all = list_partition(self._store, self._key)
        return self._all

    def repairs(self) -> tuple[Manifest | None, list[Repair]]:
        chain, wrong = None, _NO_HEAD
        try:
            chain = open_published(self._store, self._key)
        except UnknownVersion as e:
            return None, [Hopeless(self._where, str(e))]
        except (CorruptionError, ObjectNotFound) as e:
            wrong = str(e)
        if chain is not None:
            behind = self._why_behind(chain)
            if behind is None:
                return chain.manifest, self._pages_of(chain)
            if isinstance(behind, Hopeless):
                return chain.manifest, [behind]
            wrong = behind
        elif wrong == _NO_HEAD and not self._listing.manifests and self._entry is None:
            return None, []  # nothing was ever published
        found = self._head(chain, wrong)
        if isinstance(found, Hopeless):
            return chain.manifest if chain is not None else None, [found]
        pages, head = found
        return head.parent, [*pages, head]

    def _why_behind(self, chain: Chain) -> str | Hopeless | None:
        """Why HEAD is not what was committed last; None where it may be."""
        entry, version = self._entry, chain.head.version
        if entry is None or version > entry.version or chain.key == entry.manifest_key:
            return None
        if version == entry.version:
            return Hopeless(
                self._where,
                f"HEAD names {chain.key} under the version of another manifest: {has_words(entry)}",
            )
        return f"HEAD names version {version}; {has_words(entry)}"

    # -- pages

    def _pages_of(self, chain: Chain) -> list[Repair]:
        """Repairs of pages below a manifest that HEAD names."""
        try:
            found = self._readable(chain, is_proving=False)
        except CorruptionError as e:
            return [Hopeless(self._where, str(e))]
        repairs: list[Repair] = list(found.exact)
        if found.repaged:
            wrong = f"{len(found.repaged)} pages of the manifest cannot be read"
            seen = self._seen()
            if isinstance(seen, Hopeless):
                return [seen]
            repairs.append(
                HeadRepair(self._key, wrong, chain, self._newest_version(chain.head) + 1, seen, found.repaged)
            )
        return repairs

    def _readable(self, chain: Chain, *, is_proving: bool) -> _Readable:
        """The manifest with all of its pages, those that cannot be read made anew.

        `is_proving`: each segment is looked at, too. `CorruptionError` where a page cannot be made anew, or
        the chain is none.
        """
        manifest = chain.manifest
        wrong: list[str] = []
        lost: list[tuple[str, RecoveredPage]] = []
        repaged = []
        is_whole = True
        masked = (manifest.dropped_segments, manifest.dropped_bytes)
        for ref in manifest.pages:
            part = replace(
                manifest,
                pages=(ref,),
                entries=(),
                start_offset=max(manifest.start_offset, ref.base_offset),
                dropped_segments=masked[0],
                dropped_bytes=masked[1],
            )
            masked, before = (0, 0), len(lost)
            entries = tuple(self._entries(chain._replace(manifest=part), manifest, wrong, lost))
            if any(page.data is None for _, page in lost[before:]):
                repaged.append((ref, entries))
            is_whole = is_whole and self._is_whole(entries, manifest, is_proving)
        is_whole = is_whole and self._is_whole(manifest.entries, manifest, is_proving)
        if wrong:
            raise CorruptionError(wrong[0])
        exact = tuple(
            PageRepair(why, page.ref, page.data, self._tagged(page.ref.key))
            for why, page in lost
            if page.data is not None
        )
        return _Readable(chain, exact, tuple(repaged), is_whole)

    def _entries(
        self, chain: Chain, manifest: Manifest, wrong: list[str], lost: list[tuple[str, RecoveredPage]]
    ) -> Iterator[SegmentEntry]:
        whys: dict[str, str] = {}

        def load(ref: PageRef) -> ManifestPage:
            return open_page(self._store, ref, manifest)

        def error(where: str, what: str) -> None:
            whys[where] = what

        def recover(ref: PageRef, masked: tuple[int, int]) -> Iterable[SegmentEntry] | None:
            why = whys.pop(ref.key)
            try:
                page = recover_page(self._store, self._listing, manifest, ref, masked)
            except CorruptionError as e:
                whys[ref.key] = f"{why}; it cannot be made anew: {e}"
                return None
            lost.append((why, page))
            return page.entries

        yield from proved_segments(chain, load, error, recover)
        wrong += whys.values()

    def _is_whole(self, entries: Iterable[SegmentEntry], manifest: Manifest, is_proving: bool) -> bool:
        """Whether each segment is there, and its footer agrees."""
        if not is_proving:
            return True
        try:
            for entry in entries:
                size = self._store.head(entry.key).size
                proved_footer(self._store, entry, size, cluster_id=manifest.cluster_id, topic=manifest.topic)
        except (CorruptionError, ObjectNotFound):
            return False
        return True

    def _tagged(self, key: str) -> Tagged | None:
        return conditional.tagged_or_none(self._store, key, max_size=MAX_STORED_BYTES)

    # -- HEAD

    def _seen(self) -> Tagged | Hopeless | None:
        try:
            return conditional.tagged_or_none(self._store, head_key(*self._key), max_size=MAX_SMALL_BYTES)
        except CorruptionError as e:
            return Hopeless(self._where, f"{e}; delete it first")

    def _newest_version(self, head: Head | None) -> int:
        """The newest version that anything tells of."""
        versions = [self._listing.newest_version]
        if head is not None:
            versions.append(head.version)
        if self._entry is not None:
            versions.append(self._entry.version)
        return max(versions)

    def _head(self, chain: Chain | None, wrong: str) -> tuple[tuple[PageRepair, ...], HeadRepair] | Hopeless:
        """HEAD made again; `chain` is what it names, where that can be read and is not the newest."""
        seen = self._seen()
        if isinstance(seen, Hopeless):
            return seen
        head = chain.head if chain is not None else self._said_head()
        newest = self._newest_version(head)
        committed = self._committed(newest)
        if committed is not None:
            version = newest + 1 if committed.repaged else newest
            repair = HeadRepair(self._key, wrong, committed.chain, version, seen, committed.repaged)
            return committed.exact, repair
        found = self._newest_readable()
        if isinstance(found, str):
            return Hopeless(self._where, f"{wrong}; {found}")
        if found is None:
            return self._of_segments(wrong, newest, head, seen)
        added: tuple[SegmentEntry, ...] = ()
        if found.chain.manifest.version < newest:
            last = found.chain.manifest
            added = tuple(self._following(last.end_offset, last.leader_epoch))
        repair = HeadRepair(self._key, wrong, found.chain, newest + 1, seen, found.repaged, added)
        return found.exact, repair

    def _said_head(self) -> Head | None:
        """What HEAD says, although the manifest that it names cannot be read."""
        try:
            return open_head(self._store, self._key)
        except (CorruptionError, ObjectNotFound):
            return None

    def _committed(self, newest: int) -> _Readable | None:
        """The manifest that the copy of the metadata has, where nothing is newer."""
        if self._entry is None or self._entry.version < newest:
            return None
        try:
            return self._readable(open_chain(self._store, self._entry.manifest_key), is_proving=False)
        except (CorruptionError, ObjectNotFound):
            return None

    def _newest_readable(self) -> _Readable | str | None:
        """The newest manifest whose objects are all there; else the newest that can be read; None for none.

        Words where two can be it.
        """
        listed = sorted(self._listing.manifests, key=lambda one: one.parsed.version, reverse=True)
        newest: _Readable | None = None
        for version, group in groupby(listed, key=lambda one: one.parsed.version):
            found = [one for listed in group if (one := self._try(listed.key)) is not None]
            whole = [one for one in found if one.is_whole]
            if self._entry is not None and version == self._entry.version:
                whole = [one for one in whole if one.chain.key == self._entry.manifest_key]
            if len(whole) > 1:
                return f"two manifests of version {version} are whole, one was committed"
            if whole:
                return whole[0]
            if newest is None and len(found) == 1:
                newest = found[0]
        return newest

    def _try(self, name: str) -> _Readable | None:
        try:
            chain = open_chain(self._store, name)
            if (chain.manifest.topic_id, chain.manifest.partition) != self._key:
                return None
            return self._readable(chain, is_proving=True)
        except (CorruptionError, ObjectNotFound):
            return None

    # -- segments without a manifest

    def _following(self, offset: int, leader_epoch: int) -> Iterator[SegmentEntry]:
        """Segments that go on at `offset`, as far as they do; of several the one of the highest epoch."""
        while candidates := self._listing.segments.get(offset):
            ranked = sorted(
                candidates, key=lambda one: (one.parsed.leader_epoch, one.parsed.last_offset), reverse=True
            )
            entry = next((found for one in ranked if (found := self._sound(one)) is not None), None)
            if entry is None:
                return
            yield entry
            offset = entry.last_offset + 1

    def _sound(self, segment: ListedSegment) -> SegmentEntry | None:
        entry = self._listing.entry(segment)
        return entry if entry is not None and entry.size == segment.size else None

    def _of_segments(
        self, wrong: str, newest: int, head: Head | None, seen: Tagged | None
    ) -> tuple[tuple[PageRepair, ...], HeadRepair] | Hopeless:
        """A chain of what the listing has, from the start that the copy of the metadata tells."""
        listing, entry = self._listing, self._entry
        if not listing.segments:
            return Hopeless(self._where, f"{wrong}; there is no manifest that can be read, and no segment")
        start = entry.start_offset if entry is not None else min(listing.segments)
        bases = listing.first_holding(start, 0)
        entries = tuple(self._following(bases[0], 0)) if bases else ()
        end = entries[-1].last_offset + 1 if entries else start
        reaches = max(one.parsed.last_offset for found in listing.segments.values() for one in found) + 1
        least = max(reaches, entry.end_offset if entry is not None else 0)
        if end < least:
            return Hopeless(
                self._where,
                f"{wrong}; there is no manifest that can be read, and segments do not go on at offset {end}, "
                f"up to {least - 1}",
            )
        identity = next(
            footer.identity
            for one in listing.segments[entries[-1].base_offset]
            if (footer := listing.footer(one)) is not None
        )
        begins = Manifest(
            identity.cluster_id,
            self._key.topic_id,
            identity.topic,
            self._key.partition,
            leader_epoch=max(
                head.leader_epoch if head is not None else 0, entry.leader_epoch if entry is not None else 0
            ),
            start_offset=start,
        )
        return (), HeadRepair(self._key, wrong, None, newest + 1, seen, (), entries, begins)
