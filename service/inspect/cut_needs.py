"""Needs of the kept cuts in a bucket: tails, and the chains of their moments, which newer ones replaced."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from uuid import UUID

from service.base.errors import CorruptionError
from service.remote.format.cut_codec import Cuts
from service.remote.format.keys import (
    CUT_NAME,
    CUT_PREFIX,
    TAIL_PREFIX,
    HeadKey,
    ManifestKey,
    manifest_prefix,
    parse_key,
)
from service.remote.format.manifest import Manifest, ManifestPage, PageRef, live_segments
from service.remote.reading.object_reader import open_chain, open_page
from service.remote.reading.tails import open_cuts, open_named_cut
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectInfo, ObjectStore
from service.tiering.cuts.liveness import dead_keys


class CutNeeds:
    """Needs of the cuts that `CUT` names. A cut whose document cannot be read cannot be restored, and needs
    nothing but the tails that it may name."""

    def __init__(self, store: ObjectStore) -> None:
        """Raises `CorruptionError` where `CUT` cannot be read, and what the store raises."""
        self._store = store
        self.problems: list[str] = []
        self._cuts: Cuts | None = None
        self._tails: set[str] = set()
        self._unread = 0
        self._versions: dict[tuple[UUID, int], set[int]] = {}
        try:
            self._cuts = open_cuts(store)
        except ObjectNotFound:
            return
        for ref in self._cuts.kept:
            try:
                cut = open_named_cut(store, ref)
            except (CorruptionError, ObjectNotFound) as e:
                self.problems.append(str(e))
                self._unread = ref.cut
                continue
            self._tails.update(one.key for one in cut.tails)
            for topic_id, rows in cut.topics.items():
                for partition, row in enumerate(rows):
                    if row.version:
                        self._versions.setdefault((topic_id, partition), set()).add(row.version)

    def dead(self) -> Iterator[ObjectInfo]:
        """Yield the cuts and tails that will never be named again."""
        if self._cuts is None:
            return
        named = frozenset(self._tails)
        for prefix in (CUT_PREFIX, TAIL_PREFIX):
            for info in self._store.list(prefix):
                if any(dead_keys((info.key,), self._cuts, named, unread_up_to=self._unread)):
                    yield info

    @property
    def erasures(self) -> frozenset[UUID]:
        """Ids of the orders to erase keys that `CUT` lists."""
        return frozenset() if self._cuts is None else frozenset(one.id for one in self._cuts.erasures)

    def changed_ms(self) -> int:
        """Return when `CUT` was last written, by the store's clock."""
        return self._store.head(CUT_NAME).last_modified_ms

    def chain_keys(self, key: HeadKey, current: int) -> frozenset[str]:
        """Return the keys of manifests, pages and segments that cuts need of a partition beyond its version
        `current`."""
        versions = self._versions.get((key.topic_id, key.partition), set()) - {current}
        needed: set[str] = set()
        if not versions:
            return frozenset()
        for info in self._store.list(manifest_prefix(*key)):
            parsed = parse_key(info.key)
            if not isinstance(parsed, ManifestKey) or parsed.version not in versions:
                continue
            needed.add(info.key)
            try:
                manifest = open_chain(self._store, info.key).manifest
                load = partial(_load, self._store, manifest, needed)
                needed.update(entry.key for entry in live_segments(manifest, load))
            except (CorruptionError, ObjectNotFound) as e:
                self.problems.append(str(e))
        return frozenset(needed)


def _load(store: ObjectStore, manifest: Manifest, needed: set[str], ref: PageRef) -> ManifestPage:
    needed.add(ref.key)
    return open_page(store, ref, manifest)
