"""Repairs of one partition: pages, the manifest, HEAD. `repair` describes their sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError, UnknownVersion
from service.inspect.committed import describe_entry
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
from service.remote.reading.object_reader import (
    Chain,
    open_chain,
    open_cluster_file,
    open_head,
    open_page,
    open_published,
)
from service.remote.reading.partition_listing import ListedSegment, PartitionListing, list_partition
from service.remote.reading.tails import owners_of
from service.remote.stores import conditional
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore, Tagged

NewUuid = Callable[[], UUID]
_NO_HEAD: Final = "there is no HEAD"


class Unrepairable(NamedTuple):
    """A defect that cannot be repaired from the bucket's objects."""

    where: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.where}: cannot be repaired: {self.wrong}"


class PageRepair(NamedTuple):
    """The exact bytes of an unreadable page: nothing else changes with them."""

    wrong: str
    ref: PageRef
    data: bytes
    expected: Tagged | None
    """the object to replace"""

    def __str__(self) -> str:
        return (
            f"{self.ref.key}: {self.wrong}; to be made, byte for byte, from the footers of "
            f"{self.ref.segments} segments"
        )


class HeadRepair(NamedTuple):
    """The repair of one partition's HEAD.

    `base` is the manifest that it starts from, None where there is none. Where `version` is that manifest's,
    HEAD names it unchanged. Otherwise a new one is published: with `repaged` in the place of unreadable
    pages, and the segments `added` at its end.
    """

    key: HeadKey
    wrong: str
    base: Chain | None
    version: int
    expected: Tagged | None
    """the HEAD to replace"""
    repaged: tuple[tuple[PageRef, tuple[SegmentEntry, ...]], ...] = ()
    added: tuple[SegmentEntry, ...] = ()
    start: Manifest | None = None
    """without a base: the manifest that the chain begins with"""

    @property
    def parent(self) -> Manifest:
        """The manifest that the repaired one starts from."""
        found = self.base.manifest if self.base is not None else self.start
        assert found is not None
        return found

    @property
    def is_as_committed(self) -> bool:
        """True if HEAD names an existing manifest, unchanged."""
        return self.base is not None and self.base.manifest.version == self.version

    @property
    def end_offset(self) -> int:
        """The end of the chain, exclusive."""
        return self.added[-1].last_offset + 1 if self.added else self.parent.end_offset

    def __str__(self) -> str:
        source = self.base.key if self.base is not None else "segments alone, by their keys and footers"
        how = [f"version {self.version}: {source}"]
        if self.repaged:
            how.append(f"{len(self.repaged)} pages made from the footers of their segments")
        if self.added and self.base is not None:
            how.append(f"{len(self.added)} more segments after its end")
        what = "HEAD to name the committed" if self.is_as_committed else "to be published as a new"
        return (
            f"{partition_prefix(*self.key)}: {self.wrong}; {what} {', '.join(how)}, "
            f"offsets {self.parent.start_offset} to {self.end_offset - 1}"
        )

    def publication(self, new_uuid: NewUuid) -> tuple[list[tuple[str, bytes]], Head]:
        """Return the objects to write, in order, and the HEAD that names the last of them."""
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


Repair = PageRepair | HeadRepair | Unrepairable


def repairs_of_partition(
    store: ObjectStore, key: HeadKey, entry: CatalogEntry | None
) -> tuple[Manifest | None, list[Repair]]:
    """Return a partition's manifest, as it is or after the repairs, and the repairs; None without any.

    `entry` is the partition's in the newest copy of the metadata.
    """
    return _Partition(store, key, entry).repairs()


class _Readable(NamedTuple):
    """A manifest with all its live segments. `exact` pages can be restored byte for byte."""

    chain: Chain
    exact: tuple[PageRepair, ...]
    repaged: tuple[tuple[PageRef, tuple[SegmentEntry, ...]], ...]
    is_whole: bool
    """True if each object exists and matches the manifest"""


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
            return None, [Unrepairable(self._where, str(e))]
        except (CorruptionError, ObjectNotFound) as e:
            wrong = str(e)
        if chain is not None:
            behind = self._why_behind(chain)
            if behind is None:
                return chain.manifest, self._pages_of(chain)
            if isinstance(behind, Unrepairable):
                return chain.manifest, [behind]
            wrong = behind
        elif wrong == _NO_HEAD and not self._listing.manifests and self._entry is None:
            return None, []  # nothing was ever published
        found = self._head(chain, wrong)
        if isinstance(found, Unrepairable):
            return chain.manifest if chain is not None else None, [found]
        pages, head = found
        return head.parent, [*pages, head]

    def _why_behind(self, chain: Chain) -> str | Unrepairable | None:
        """Return why HEAD is not the last commit; None where it may be."""
        entry, version = self._entry, chain.head.version
        if entry is None or version > entry.version or chain.key == entry.manifest_key:
            return None
        if version == entry.version:
            return Unrepairable(
                self._where,
                f"HEAD names {chain.key} under the version of another manifest: {describe_entry(entry)}",
            )
        return f"HEAD names version {version}; {describe_entry(entry)}"

    # -- pages

    def _pages_of(self, chain: Chain) -> list[Repair]:
        """Return repairs of pages below a manifest that HEAD names."""
        try:
            found = self._readable(chain, is_proving=False)
        except CorruptionError as e:
            return [Unrepairable(self._where, str(e))]
        repairs: list[Repair] = list(found.exact)
        if found.repaged:
            wrong = f"{len(found.repaged)} pages of the manifest cannot be read"
            head = self._current_head()
            if isinstance(head, Unrepairable):
                return [head]
            repairs.append(
                HeadRepair(self._key, wrong, chain, self._newest_version(chain.head) + 1, head, found.repaged)
            )
        return repairs

    def _readable(self, chain: Chain, *, is_proving: bool) -> _Readable:
        """Read the manifest with all of its pages; unreadable ones are made from their segments.

        `is_proving`: each segment is checked, too. `CorruptionError` where a page cannot be made again, or
        the pages form no chain.
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
                whys[ref.key] = f"{why}; it cannot be made again: {e}"
                return None
            lost.append((why, page))
            return page.entries

        yield from proved_segments(chain, load, error, recover)
        wrong += whys.values()

    def _is_whole(self, entries: Iterable[SegmentEntry], manifest: Manifest, is_proving: bool) -> bool:
        """Return whether each segment exists, and its footer matches."""
        if not is_proving:
            return True
        owners = {manifest.cluster_id, *self._owners()}
        try:
            for entry in entries:
                size = self._store.head(entry.key).size
                proved_footer(self._store, entry, size, owners=owners, topic=manifest.topic)
        except (CorruptionError, ObjectNotFound):
            return False
        return True

    def _owners(self) -> frozenset[str]:
        """Return the prefix's cluster and its ancestors; empty where `cluster.json` cannot be read."""
        try:
            return owners_of(open_cluster_file(self._store))
        except (CorruptionError, ObjectNotFound):
            return frozenset()

    def _tagged(self, key: str) -> Tagged | None:
        return conditional.tagged_or_none(self._store, key, max_size=MAX_STORED_BYTES)

    # -- HEAD

    def _current_head(self) -> Tagged | Unrepairable | None:
        try:
            return conditional.tagged_or_none(self._store, head_key(*self._key), max_size=MAX_SMALL_BYTES)
        except CorruptionError as e:
            return Unrepairable(self._where, f"{e}; delete it first")

    def _newest_version(self, head: Head | None) -> int:
        """Return the newest version in HEAD, the listing and the copy of the metadata."""
        versions = [self._listing.newest_version]
        if head is not None:
            versions.append(head.version)
        if self._entry is not None:
            versions.append(self._entry.version)
        return max(versions)

    def _head(
        self, chain: Chain | None, wrong: str
    ) -> tuple[tuple[PageRepair, ...], HeadRepair] | Unrepairable:
        """Return the repair of HEAD; `chain` is what it names, where that is readable and not the newest."""
        current = self._current_head()
        if isinstance(current, Unrepairable):
            return current
        head = chain.head if chain is not None else self._readable_head()
        newest = self._newest_version(head)
        committed = self._committed(newest)
        if committed is not None:
            version = newest + 1 if committed.repaged else newest
            repair = HeadRepair(self._key, wrong, committed.chain, version, current, committed.repaged)
            return committed.exact, repair
        found = self._newest_readable()
        if isinstance(found, str):
            return Unrepairable(self._where, f"{wrong}; {found}")
        if found is None:
            return self._of_segments(wrong, newest, head, current)
        added: tuple[SegmentEntry, ...] = ()
        if found.chain.manifest.version < newest:
            last = found.chain.manifest
            added = tuple(self._following(last.end_offset))
        repair = HeadRepair(self._key, wrong, found.chain, newest + 1, current, found.repaged, added)
        return found.exact, repair

    def _readable_head(self) -> Head | None:
        """Return HEAD, although the manifest that it names cannot be read."""
        try:
            return open_head(self._store, self._key)
        except (CorruptionError, ObjectNotFound):
            return None

    def _committed(self, newest: int) -> _Readable | None:
        """Return the manifest of the metadata's copy, where no version is newer."""
        if self._entry is None or self._entry.version < newest:
            return None
        try:
            return self._readable(open_chain(self._store, self._entry.manifest_key), is_proving=False)
        except (CorruptionError, ObjectNotFound):
            return None

    def _newest_readable(self) -> _Readable | str | None:
        """Return the newest manifest whose objects all exist; else the newest readable one; or None.

        Returns a reason where there are two candidates.
        """
        listed = sorted(self._listing.manifests, key=lambda one: one.parsed.version, reverse=True)
        newest: _Readable | None = None
        for version, group in groupby(listed, key=lambda one: one.parsed.version):
            found = [one for listed in group if (one := self._try(listed.key)) is not None]
            whole = [one for one in found if one.is_whole]
            if self._entry is not None and version == self._entry.version:
                whole = [one for one in whole if one.chain.key == self._entry.manifest_key]
            if len(whole) > 1:
                return f"two manifests of version {version} are whole, and only one was committed"
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

    def _following(self, offset: int) -> Iterator[SegmentEntry]:
        """Yield consecutive segments from `offset` on.

        Of several at one offset it is one from which segments reach farthest; of these that of the greatest
        generation, as an erased record must not come back, and then that of the highest epoch.
        """
        reaches = self._listing.reaches()
        while candidates := self._listing.segments.get(offset):
            sound = [(one, found) for one in candidates if (found := self._sound(one)) is not None]
            if not sound:
                return
            ranks = [
                (reaches[one.key], found.generation, one.parsed.leader_epoch, found.last_offset)
                for one, found in sound
            ]
            entry = sound[ranks.index(max(ranks))][1]
            yield entry
            offset = entry.last_offset + 1

    def _sound(self, segment: ListedSegment) -> SegmentEntry | None:
        entry = self._listing.entry(segment)
        return entry if entry is not None and entry.size == segment.size else None

    def _of_segments(
        self, wrong: str, newest: int, head: Head | None, current: Tagged | None
    ) -> tuple[tuple[PageRepair, ...], HeadRepair] | Unrepairable:
        """Return a chain of the listed segments, from the start offset of the metadata's copy."""
        listing, entry = self._listing, self._entry
        if not listing.segments:
            return Unrepairable(
                self._where, f"{wrong}; there is no manifest that can be read, and no segment"
            )
        start = entry.start_offset if entry is not None else min(listing.segments)
        bases = listing.first_holding(start, 0)
        entries = tuple(self._following(bases[0])) if bases else ()
        end = entries[-1].last_offset + 1 if entries else start
        reaches = max(one.parsed.last_offset for found in listing.segments.values() for one in found) + 1
        least = max(reaches, entry.end_offset if entry is not None else 0)
        if end < least:
            return Unrepairable(
                self._where,
                f"{wrong}; there is no manifest that can be read, and the segments have a gap at offset "
                f"{end}, before {least - 1}",
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
        return (), HeadRepair(self._key, wrong, None, newest + 1, current, (), entries, begins)
