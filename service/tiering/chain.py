"""Read and write the objects of a chain: manifests, their pages and HEAD.

Called on `offload` threads.

A manifest of the newest thousand segments takes about a megabyte of memory, so manifests and pages are cached
under one bound (segments and pages listed), not one per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from service.base.errors import CorruptionError, FirnError, StorageError
from service.base.lru_cache import LruCache
from service.base.types import NO_TIMESTAMP, TopicIdPartition
from service.base.world import World
from service.remote.catalog import CatalogEntry
from service.remote.format.keys import (
    HeadKey,
    ManifestKey,
    PageKey,
    SegmentKey,
    head_key,
    manifest_prefix,
    parse_key,
    partition_prefix,
)
from service.remote.format.manifest import (
    USUAL_LIMITS,
    Manifest,
    ManifestLimits,
    ManifestPage,
    PageRef,
    SegmentEntry,
)
from service.remote.format.manifest_codec import (
    MAX_SMALL_BYTES,
    Head,
    decode_head,
    encode_head,
    encode_manifest,
    encode_page,
    head_of,
)
from service.remote.format.stamp import Stamp, no_stamp
from service.remote.reading.object_reader import Chain, open_chain, open_page
from service.remote.stores import conditional
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore, Tagged
from service.tiering.expiry import EVERYTHING
from service.tiering.head_check import HeadVerdict, check_damaged_head, check_head

MAX_CACHED_CHILDREN: Final = 8192


class HeadMoved(StorageError):
    """HEAD is not the one that was to be replaced."""


class SeenHead(NamedTuple):
    """HEAD as read at one moment: its content, the stored object (None: there is none), and its damage.

    `newest_version`, of the newest manifest in the bucket, is looked up only where HEAD is damaged.
    """

    head: Head | None
    stored: Tagged | None
    damage: str | None
    newest_version: int


class ChainStore:
    """Reads and writes chains of one bucket. Safe from any thread. `stamps` gives the writer and the time of
    each object."""

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        world: World,
        *,
        stamps: Callable[[], Stamp | None] = no_stamp,
        limits: ManifestLimits = USUAL_LIMITS,
        max_cached_children: int = MAX_CACHED_CHILDREN,
        is_conditional: bool = True,
    ) -> None:
        """`is_conditional`: the store honours conditional writes, so HEAD is written conditionally."""
        self._store = store
        self._cluster_id = cluster_id
        self._new_uuid = world.new_uuid
        self._stamps = stamps
        self._limits = limits
        self._is_conditional = is_conditional
        self._max_cached_children = max_cached_children
        self._lock = world.threads.lock()
        self._cache: LruCache[str, Chain | ManifestPage] = LruCache(max_cached_children)

    def load(self, tip: TopicIdPartition, key: str) -> Chain:
        """Return the manifest under `key`. Raises `ObjectNotFound`, `CorruptionError`, or what the store
        raises."""
        cached = self._cached(key)
        if isinstance(cached, Chain):
            return cached
        chain = open_chain(self._store, key)
        if (chain.manifest.topic_id, chain.manifest.partition) != (tip.topic_id, tip.partition):
            raise CorruptionError(f"{key}: the manifest of another partition")
        self._remember(key, chain)
        return chain

    def page(self, tip: TopicIdPartition, ref: PageRef) -> ManifestPage:
        """Return the page that `ref` names."""
        cached = self._cached(ref.key)
        if isinstance(cached, ManifestPage):
            return cached
        page = open_page(self._store, ref, tip)
        self._remember(ref.key, page)
        return page

    def loader(self, tip: TopicIdPartition) -> Callable[[PageRef], ManifestPage]:
        """Return `page` bound to one partition, as the manifest's methods take it."""
        return lambda ref: self.page(tip, ref)

    def empty(self, tip: TopicIdPartition) -> Manifest:
        """Return the empty manifest from which the first version is made."""
        return Manifest(self._cluster_id, tip.topic_id, tip.topic, tip.partition)

    def stand_in(self, tip: TopicIdPartition, entry: CatalogEntry) -> Manifest:
        """Return a manifest that stands in for the committed one where that cannot be read.

        It is made from the catalog's entry: one page, under the manifest's own key, stands for all segments.
        It can only be dropped as a whole.
        """
        page = PageRef(
            base_offset=0,
            last_offset=entry.end_offset - 1,
            level=0,
            segments=entry.segments,
            size_bytes=entry.size_bytes,
            max_timestamp=NO_TIMESTAMP,
            first_epoch=0,
            last_epoch=entry.leader_epoch,
            key=entry.manifest_key,
            stored_size=0,
            crc32c=0,
        )
        return replace(
            self.empty(tip),
            version=entry.version,
            leader_epoch=entry.leader_epoch,
            start_offset=entry.start_offset,
            pages=(page,) if entry.segments else (),
            stored_key=entry.manifest_key,
        )

    def append(
        self,
        parent: Manifest,
        entries: Sequence[SegmentEntry],
        leader_epoch: int,
        on_key: Callable[[str], None],
    ) -> Chain:
        """Write the version that ends with `entries`, and the pages it needs. This commits nothing.

        `on_key` is called with each key before anything is written under it.
        """
        start_offset = entries[0].base_offset
        if not parent.children and parent.start_offset < start_offset:
            # The chain lost its last segment and the log continued elsewhere: the chain restarts where
            # records are.
            parent = replace(parent, start_offset=start_offset)
        change = parent.append(
            entries,
            leader_epoch=leader_epoch,
            new_uuid=self._new_uuid,
            encode_page=encode_page,
            limits=self._limits,
            stamp=self._stamps(),
        )
        for _, ref, data in change.pages:
            on_key(ref.key)
            self._store.put(ref.key, data)
        return self._write(change.manifest, on_key)

    def drop(
        self,
        parent: Manifest,
        tip: TopicIdPartition,
        offset: int,
        leader_epoch: int,
        on_key: Callable[[str], None],
    ) -> tuple[Chain, tuple[str, ...]]:
        """Write the version whose log starts at `offset` (`EVERYTHING`: an empty one); also return the keys
        it no longer names.

        Objects that an unreadable page lists are found by listing the partition's keys. Where such a page
        keeps the start from moving, the error of reading it is raised.
        """
        problems: list[FirnError] = []

        def load(ref: PageRef) -> ManifestPage:
            try:
                if ref.key == parent.stored_key:  # from `stand_in`
                    raise StorageError(f"{ref.key} was not read")
                return self.page(tip, ref)
            except (StorageError, CorruptionError) as e:
                problems.append(e)
                raise

        stamp = self._stamps()
        if offset == EVERYTHING:
            drop = parent.give_up(leader_epoch=leader_epoch, load=load, stamp=stamp)
        else:
            drop = parent.drop_before(offset, leader_epoch=leader_epoch, load=load, stamp=stamp)
            if problems and drop.manifest.start_offset == parent.start_offset:
                raise problems[-1]
        gone = (*drop.keys, *(key for page in drop.unread for key in self._keys_within(tip, page)))
        return self._write(drop.manifest, on_key), gone

    def replace(
        self,
        parent: Manifest,
        tip: TopicIdPartition,
        entries: Sequence[SegmentEntry],
        leader_epoch: int,
        on_key: Callable[[str], None],
    ) -> tuple[Chain, tuple[str, ...]]:
        """Write the version in which `entries` replace those of the same offsets, and the pages it needs;
        also return the keys it no longer names.

        Raises `ValueError` where they are not the offsets of whole entries of one page or of the manifest,
        and what reading a page raises.
        """
        change = parent.replace_run(
            entries[0].base_offset,
            entries[-1].last_offset,
            entries,
            leader_epoch=leader_epoch,
            load=self.loader(tip),
            new_uuid=self._new_uuid,
            encode_page=encode_page,
            stamp=self._stamps(),
        )
        for page, ref, data in change.pages:
            on_key(ref.key)
            self._store.put(ref.key, data)
            self._remember(ref.key, page)
        return self._write(change.manifest, on_key), change.keys

    def _keys_within(self, tip: TopicIdPartition, page: PageRef) -> Iterator[str]:
        """Yield the segments and pages of the partition that lie within the offsets of `page`.

        The chain names nothing else there, so the page lists them, or no chain names them.
        """
        for info in self._store.list(partition_prefix(tip.topic_id, tip.partition)):
            key = parse_key(info.key)
            if (
                isinstance(key, (SegmentKey, PageKey))
                and page.base_offset <= key.base_offset
                and key.last_offset <= page.last_offset
                and info.key != page.key
            ):
                yield info.key

    def _write(self, manifest: Manifest, on_key: Callable[[str], None]) -> Chain:
        key = manifest.key(self._new_uuid())
        data = encode_manifest(manifest)
        on_key(key)
        self._store.put(key, data)
        chain = Chain(replace(manifest, stored_key=key), head_of(manifest, key, data))
        self._remember(key, chain)
        return chain

    def read_head(self, tip: TopicIdPartition) -> SeenHead:
        """Read HEAD, with what a conditional write needs to replace exactly it. Raises what the store
        raises."""
        key = HeadKey(tip.topic_id, tip.partition)
        name = head_key(*key)
        try:
            stored = conditional.tagged_or_none(self._store, name, max_size=MAX_SMALL_BYTES)
        except CorruptionError as e:
            # It is larger than any HEAD. Only a repair can replace it.
            return SeenHead(None, None, f"{name}: {e}", self._newest_version(tip))
        if stored is None:
            return SeenHead(None, None, None, 0)
        try:
            with naming(name):
                head = decode_head(stored.data)
                if (head.topic_id, head.partition) != key:
                    raise CorruptionError(f"the HEAD of {head.topic_id}/{head.partition}")
        except CorruptionError as e:
            return SeenHead(None, stored, str(e), self._newest_version(tip))
        return SeenHead(head, stored, None, 0)

    def _newest_version(self, tip: TopicIdPartition) -> int:
        """Return the newest version that has a manifest, committed or not; 0 for none."""
        keys = (
            parse_key(info.key) for info in self._store.list(manifest_prefix(tip.topic_id, tip.partition))
        )
        return max((key.version for key in keys if isinstance(key, ManifestKey)), default=0)

    def write_head(self, seen: SeenHead, head: Head) -> None:
        """Replace `seen` by `head`, which names a committed manifest (invariant T7). Raises `HeadMoved` when
        HEAD was written by another since."""
        key, data = head_key(head.topic_id, head.partition), encode_head(head)
        if not self._is_conditional:
            self._store.put(key, data)
        elif not conditional.write(self._store, key, data, seen.stored):
            raise HeadMoved(f"{key} was written by another process at the same moment")

    def forget(self, key: str) -> None:
        """Drop `key` from the cache, so that the next read checks that the object still exists."""
        with self._lock:
            self._cache.discard(key)

    def _cached(self, key: str) -> Chain | ManifestPage | None:
        with self._lock:
            return self._cache.get(key)

    def _remember(self, key: str, item: Chain | ManifestPage) -> None:
        with self._lock:
            # An item beyond the bound is kept alone: the next commit needs it again.
            self._cache.put(key, item, min(_children(item), self._max_cached_children))


def verdict_on(entry: CatalogEntry | None, seen: SeenHead) -> HeadVerdict:
    """Return how `seen` relates to `entry`."""
    return (
        check_head(entry, seen.head)
        if seen.damage is None
        else check_damaged_head(entry, seen.newest_version)
    )


def _children(item: Chain | ManifestPage) -> int:
    return len(item.children) if isinstance(item, ManifestPage) else len(item.manifest.children)
