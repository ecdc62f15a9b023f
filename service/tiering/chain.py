"""The bucket's side of a chain: manifests, their pages and HEAD, read and written.

Called on `offload` threads.

A manifest of the newest thousand segments is about a megabyte of objects, so they are cached under one bound
(segments and pages listed), not per partition.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from uuid import UUID

from service.base.errors import CorruptionError, StorageError
from service.base.types import TopicIdPartition
from service.remote.format.keys import HeadKey, head_key
from service.remote.format.manifest import Limits, Manifest, ManifestDrop, Page, PageRef, SegmentEntry
from service.remote.format.manifest_codec import Head, encode_head, encode_manifest, encode_page, head_of
from service.remote.reading.object_reader import Chain, open_chain, open_head, open_page
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore

MAX_CACHED_CHILDREN: Final = 8192


class ChainStore:
    """Reads and writes chains of one bucket. Safe from any thread."""

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        new_uuid: Callable[[], UUID],
        *,
        limits: Limits = Limits(),  # noqa: B008  # immutable
        max_cached_children: int = MAX_CACHED_CHILDREN,
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._new_uuid = new_uuid
        self._limits = limits
        self._max_cached_children = max_cached_children
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, Chain | Page] = OrderedDict()
        self._cached_children = 0

    def load(self, tip: TopicIdPartition, key: str) -> Chain:
        """The manifest under `key`. `ObjectNotFound`, `CorruptionError`, or what the store raises."""
        cached = self._cached(key)
        if isinstance(cached, Chain):
            return cached
        chain = open_chain(self._store, key)
        if (chain.manifest.topic_id, chain.manifest.partition) != (tip.topic_id, tip.partition):
            raise CorruptionError(f"{key}: the manifest of another partition")
        self._remember(key, chain)
        return chain

    def page(self, tip: TopicIdPartition, ref: PageRef) -> Page:
        """The page that `ref` names."""
        cached = self._cached(ref.key)
        if isinstance(cached, Page):
            return cached
        page = open_page(self._store, ref, tip)
        self._remember(ref.key, page)
        return page

    def loader(self, tip: TopicIdPartition) -> Callable[[PageRef], Page]:
        """`page` for one partition, as the manifest's methods take it."""
        return lambda ref: self.page(tip, ref)

    def empty(self, tip: TopicIdPartition) -> Manifest:
        """What the first version is made from."""
        return Manifest(self._cluster_id, tip.topic_id, tip.topic, tip.partition)

    def append(
        self, parent: Manifest, entry: SegmentEntry, leader_epoch: int, on_key: Callable[[str], None]
    ) -> Chain:
        """Write the version that has `entry` at its end, and the pages it needs. Nothing is committed by it.

        `on_key` hears of every key before anything is written under it.
        """
        if not parent.children and parent.start_offset < entry.base_offset:
            # The chain lost its last segment and the log went on elsewhere: it begins anew where records are.
            parent = replace(parent, start_offset=entry.base_offset)
        change = parent.append(
            [entry],
            leader_epoch=leader_epoch,
            new_uuid=self._new_uuid,
            encode_page=encode_page,
            limits=self._limits,
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
    ) -> tuple[Chain, ManifestDrop]:
        """Write the version whose log starts at `offset`, and say what it no longer names."""
        drop = parent.drop_before(offset, leader_epoch=leader_epoch, load=self.loader(tip))
        return self._write(drop.manifest, on_key), drop

    def _write(self, manifest: Manifest, on_key: Callable[[str], None]) -> Chain:
        key = manifest.key(self._new_uuid())
        data = encode_manifest(manifest)
        on_key(key)
        self._store.put(key, data)
        chain = Chain(manifest, head_of(manifest, key, data))
        self._remember(key, chain)
        return chain

    def read_head(self, tip: TopicIdPartition) -> Head | None:
        """HEAD as it lies there; None when there is none, or none that makes sense."""
        try:
            return open_head(self._store, HeadKey(tip.topic_id, tip.partition))
        except (ObjectNotFound, CorruptionError):
            return None

    def write_head(self, head: Head) -> None:
        self._store.put(head_key(head.topic_id, head.partition), encode_head(head))

    def repair_head(self, tip: TopicIdPartition, chain: Chain) -> bool:
        """Make HEAD name `chain`, the newest committed one that is known here; True when it did not.

        A HEAD of a later version was written after a later commit: `StorageError`, as whoever calls must
        catch up with the catalog before anything else.
        """
        head = self.read_head(tip)
        if head == chain.head:
            return False
        if head is not None and head.version > chain.head.version:
            raise StorageError(
                f"HEAD of {tip} is of version {head.version}, the catalog as known here lags at "
                f"{chain.head.version}"
            )
        self.write_head(chain.head)
        return True

    def _cached(self, key: str) -> Chain | Page | None:
        with self._lock:
            found = self._cache.get(key)
            if found is not None:
                self._cache.move_to_end(key)
            return found

    def _remember(self, key: str, item: Chain | Page) -> None:
        with self._lock:
            if key in self._cache:
                return
            self._cache[key] = item
            self._cached_children += _children(item)
            while self._cached_children > self._max_cached_children and len(self._cache) > 1:
                _, oldest = self._cache.popitem(last=False)
                self._cached_children -= _children(oldest)


def _children(item: Chain | Page) -> int:
    return len(item.children) if isinstance(item, Page) else len(item.manifest.children)
