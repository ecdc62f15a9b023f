"""Writes the chains of a restored cluster: for each partition a manifest, where it needs another, and HEAD.

Every HEAD is written again, conditionally and under another stamp, so it has another tag: a late conditional
HEAD of the lost cluster, sent before it was displaced, finds that and is refused (invariant T21). A tiered
partition that has none gets one that names an empty manifest, for the same reason. Blocks; safe from any
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError, CorruptionError
from service.inspect.manifest_glance import rows_of, segment_keys
from service.inspect.restore_archive import (
    NO_HEAD,
    OpenedChain,
    is_by,
    open_heir_chain,
    summary_of,
    unreadable_chain,
)
from service.inspect.restore_chain import HeirChain, NewVersion, next_manifest
from service.inspect.restore_plan import FoundChain, needs_empty_manifest
from service.inspect.restore_source import RestoreSource
from service.metadata.controller.adoption_control import EPOCH_MARGIN
from service.remote.catalog import CatalogEntry
from service.remote.format.cut_codec import Place
from service.remote.format.keys import (
    ManifestKey,
    head_key,
    manifest_prefix,
    parse_key,
    partition_prefix,
)
from service.remote.format.manifest import Child, Manifest, PageRef, SegmentEntry
from service.remote.format.manifest_codec import (
    MAX_SMALL_BYTES,
    encode_head,
    encode_manifest,
    encode_page,
    head_of,
)
from service.remote.format.stamp import Stamp, Writer
from service.remote.reading.object_reader import Chain, open_chain, open_page
from service.remote.stores import conditional
from service.remote.stores.errors import UNREADABLE, StoreUnavailable, raise_of_the_store
from service.remote.stores.store import ObjectStore, Tagged
from service.tiering.archive_attempt import catalog_entry

_ATTEMPTS: Final = 5
_NAMED_AT_MOST: Final = 5


class HeirStarted(ConfigError):
    """A node of the heir has written to the prefix: a restore that is still at work would undo that."""

    def __init__(self, key: str, cluster_id: str) -> None:
        super().__init__(
            f"{key} was written by a node of cluster {cluster_id}, which this restore makes: another run of "
            f"it was complete, and the cluster has started. Nothing is left to do; use the file of that run"
        )


class WrittenChain(NamedTuple):
    """One partition as the heir has it: its entry in the catalog, None without an archive."""

    place: Place
    found: FoundChain
    entry: CatalogEntry | None


class HeirHeads:
    """Writer of the heir's chains, from what was read of `source` in `store`, into the same store."""

    def __init__(
        self,
        store: ObjectStore,
        source: RestoreSource,
        cluster_id: str,
        writer: Writer,
        now_ms: Callable[[], int],
        new_uuid: Callable[[], UUID],
    ) -> None:
        self._store = store
        self._source = source
        self._owners = source.owners | {cluster_id}
        self._cluster_id = cluster_id
        self._writer = writer
        self._now_ms = now_ms
        self._new_uuid = new_uuid

    def write(self, place: Place) -> WrittenChain:
        """Write one partition's chain, as often as another process has written its HEAD meanwhile.

        Where nothing of its archive can be read, nothing is written and its entry stays as it was.
        """
        if (again := self._write_again(place)) is not None:
            return again
        for _ in range(_ATTEMPTS):
            try:
                seen = conditional.tagged_or_none(self._store, head_key(*place), max_size=MAX_SMALL_BYTES)
            except CorruptionError as e:
                raise CorruptionError(f"{e}; delete it first") from e
            try:
                opened = self._open(place, seen)
            except UNREADABLE as e:
                raise_of_the_store(e)
                found = unreadable_chain(self._source.image, place, e)
                return WrittenChain(place, found, self._source.image.remote.get(place))
            if (written := self._try(place, opened, seen)) is not None:
                return written
        raise StoreUnavailable(
            f"{head_key(*place)} was written by another process at each of {_ATTEMPTS} attempts: the cluster "
            f"that writes here lives"
        )

    def _write_again(self, place: Place) -> WrittenChain | None:
        """Write HEAD again as it was read for the plan, if that is all there is to do; the tag tells that it
        is the same still. None where its chain has to be read anew."""
        seen = self._source.chains.get(place)
        if seen is None or seen.head is None or is_by(seen.head, self._writer):
            return None
        if self._newest_version(place) > seen.head.version:
            return None
        data = encode_head(seen.head._replace(stamp=self._stamp()))
        if not conditional.replace(self._store, head_key(*place), data, seen.tag):
            return None
        return WrittenChain(place, seen.found, seen.entry)

    def _open(self, place: Place, seen: Tagged | None) -> OpenedChain:
        source, seen = self._source, NO_HEAD if seen is None else seen
        return open_heir_chain(
            self._store, self._owners, source.image, source.cut, place, seen, writer=self._writer
        )

    def _try(self, place: Place, opened: OpenedChain, seen: Tagged | None) -> WrittenChain | None:
        found, published = summary_of(opened), opened.published
        if published is not None and is_by(published.head, self._writer):
            return WrittenChain(place, found, catalog_entry(published))
        if published is not None and published.manifest.cluster_id == self._cluster_id:
            raise HeirStarted(head_key(*place), self._cluster_id)
        newest = self._newest_version(place)
        if published is not None and found.is_published and newest <= published.manifest.version:
            chain, head = published, published.head._replace(stamp=self._stamp())
        elif found.segments or opened.published is not None or seen is not None or self._is_wanted(place):
            chain = self._write_manifest(place, opened, found, newest)
            head = chain.head
        else:
            return WrittenChain(place, found, None)
        if not conditional.write(self._store, head_key(*place), encode_head(head), seen):
            return None
        return WrittenChain(place, found, catalog_entry(chain))

    def _is_wanted(self, place: Place) -> bool:
        image = self._source.image
        return place in image.remote or needs_empty_manifest(image, image.topics_by_id[place[0]])

    def _write_manifest(self, place: Place, opened: OpenedChain, found: FoundChain, newest: int) -> Chain:
        entry = self._source.image.remote.get(place)
        before = opened.published.manifest if opened.published is not None else None
        versions = (newest, 0 if entry is None else entry.version, 0 if before is None else before.version)
        return write_chain(
            self._store,
            opened.heir,
            before,
            NewVersion(self._cluster_id, max(versions) + 1, self._epoch(place, found), self._stamp()),
            self._new_uuid,
        )

    def _epoch(self, place: Place, found: FoundChain) -> int:
        """Return an epoch for a manifest: the partition's next one is not below it."""
        partition = self._source.image.partition(*place)
        known = 0 if partition is None else partition.leader_epoch
        return max(known, found.highest_epoch, self._source.highest.epochs.get(place, 0)) + EPOCH_MARGIN

    def _newest_version(self, place: Place) -> int:
        keys = (parse_key(info.key) for info in self._store.list(manifest_prefix(*place)))
        return max((key.version for key in keys if isinstance(key, ManifestKey)), default=0)

    def _stamp(self) -> Stamp:
        return Stamp(self._now_ms(), self._writer)

    def missing(self, written: WrittenChain) -> list[str]:
        """Return objects that the chain names and that are not there, a few of them by key."""
        if written.entry is None:
            return []
        try:
            return missing_objects(self._store, written.place, self._segment_keys(written, written.entry))
        except UNREADABLE as e:
            raise_of_the_store(e)
            return [str(e)]

    def _segment_keys(self, written: WrittenChain, entry: CatalogEntry) -> Iterable[str]:
        """Return the keys of the chain's segments, in order."""
        seen = self._source.chains.get(written.place)
        if seen is not None and seen.head is not None and seen.head.manifest_key == entry.manifest_key:
            data = self._store.get(entry.manifest_key, max_size=seen.head.stored_size)
            rows = rows_of(data, seen.head)
            if rows is not None and not rows.has_pages and len(keys := segment_keys(rows)) == entry.segments:
                return keys
        return _segment_keys_of(self._store, open_chain(self._store, entry.manifest_key).manifest)


def write_chain(
    store: ObjectStore,
    heir: HeirChain,
    before: Manifest | None,
    numbers: NewVersion,
    new_uuid: Callable[[], UUID],
) -> Chain:
    """Write the manifest of the heir's chain, and its new pages before it."""
    change = next_manifest(heir, before, numbers, new_uuid, encode_page)
    for _, ref, data in change.pages:
        store.put(ref.key, data)
    key, data = change.manifest.key(new_uuid()), encode_manifest(change.manifest)
    store.put(key, data)
    return Chain(replace(change.manifest, stored_key=key), head_of(change.manifest, key, data))


def named_objects(store: ObjectStore, manifest: Manifest) -> Iterator[Child]:
    """Yield the pages and live segments that a chain names, a page before what it lists."""
    yield from _named(store, manifest, manifest.children)


def _named(store: ObjectStore, manifest: Manifest, children: tuple[Child, ...]) -> Iterator[Child]:
    for child in children:
        if child.last_offset < manifest.start_offset:
            continue
        yield child
        if isinstance(child, PageRef):
            yield from _named(store, manifest, open_page(store, child, manifest).children)


def _segment_keys_of(store: ObjectStore, manifest: Manifest) -> Iterator[str]:
    for child in named_objects(store, manifest):
        if isinstance(child, SegmentEntry) and child.owner is None:
            yield child.key


def missing_objects(store: ObjectStore, place: Place, keys: Iterable[str]) -> list[str]:
    """Return those of the keys of a partition, which rise, that a listing does not have; a few are named, the
    rest counted. Memory does not grow with the chain."""
    listed = (info.key for info in store.list(partition_prefix(*place)))
    at = next(listed, None)
    missing: list[str] = []
    more = 0
    for key in keys:
        while at is not None and at < key:
            at = next(listed, None)
        if at == key:
            continue
        if len(missing) < _NAMED_AT_MOST:
            missing.append(f"{key} is not there")
        else:
            more += 1
    return [*missing, f"and {more} more segments"] if more else missing
