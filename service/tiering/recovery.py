"""Read from the bucket alone what a new disk lacks: chains, epochs and producers of partitions.

For an operator's recovery (`firn.remote.recover`), never for a node that merely restarts. Everything is read
and checked before anything is decided. An object that cannot be read (damaged, missing, refused, in cold
storage) is reported and left alone, and holds up no other partition. Blocks: for a pool's thread.

A partition's HEAD decides, unless the catalog of the metadata's copy has a later entry whose manifest exists
(HEAD is written after the commit). Where HEAD is damaged or missing, the newest readable manifest decides.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError
from service.hot.producer_snapshot import decode_snapshot
from service.remote.catalog import CatalogEntry
from service.remote.format.ancestors import Ancestor
from service.remote.format.keys import DATA_PREFIX, HeadKey, ManifestKey, PageKey, SegmentKey, parse_key
from service.remote.format.manifest import Manifest, ManifestPage, PageRef, SegmentEntry, live_segments
from service.remote.format.manifest_codec import ClusterFile
from service.remote.reading.object_reader import (
    Chain,
    open_chain,
    open_footer_of,
    open_page,
    open_published,
    read_section,
)
from service.remote.stores.errors import UNREADABLE, ObjectNotFound, raise_of_the_store
from service.remote.stores.store import ObjectStore
from service.tiering.archive_attempt import catalog_entry
from service.tiering.prefix_fence import read_cluster

_MANIFESTS_KEPT: Final = 16
"""Newest manifests of a partition that are remembered, for where HEAD is damaged or missing."""


class ArchivedPartition(NamedTuple):
    """One partition as the bucket has it.

    `leader_epoch` is its highest leader epoch as far as the bucket knows; `written_ms` is when its manifest
    was written, by its writer's clock, 0 where the manifest does not say.
    """

    topic: str
    entry: CatalogEntry
    leader_epoch: int
    written_ms: int


class RecoveredArchive(NamedTuple):
    """All partitions, the problems of reading them, the differences from the metadata's copy, and the highest
    producer id.

    `last_producer_id` is -1 where there is none.
    """

    partitions: Mapping[tuple[UUID, int], ArchivedPartition]
    problems: tuple[str, ...]
    differences: tuple[str, ...]
    last_producer_id: int


class _Found(NamedTuple):
    """Listing of one partition: its newest manifests by version."""

    key: HeadKey
    manifests: tuple[tuple[int, str], ...]


def check_prefix(store: ObjectStore, cluster_id: str) -> ClusterFile:
    """Return `cluster.json`. Raises `ConfigError` when the prefix is another cluster's, or empty."""
    try:
        cluster = read_cluster(store)
    except ObjectNotFound as e:
        raise ConfigError("firn.remote.recover: there is nothing under firn.remote.url") from e
    if cluster.cluster_id != cluster_id:
        raise ConfigError(
            f"firn.remote.recover: the prefix belongs to cluster {cluster.cluster_id}, "
            f"this node's is {cluster_id} (firn.cluster.id)"
        )
    return cluster


def read_archive(
    store: ObjectStore,
    cluster_id: str,
    catalog: Mapping[tuple[UUID, int], CatalogEntry],
    deleted: Collection[UUID],
    ancestors: Sequence[Ancestor] = (),
) -> RecoveredArchive:
    """Read every partition of the prefix except those of the `deleted` topics.

    Chains of the cluster's `ancestors` are its own. `catalog` is that of the metadata's copy, empty where
    there is none. Raises `StorageError` when the store does not answer.
    """
    reader = _ArchiveReader(store, {cluster_id, *(one.cluster_id for one in ancestors)})
    found = {one.key: one for one in _listed(store) if one.key.topic_id not in deleted}
    for key in sorted({*found, *(HeadKey(*key) for key in catalog)}):
        reader.read(key, found.get(key, _Found(key, ())), catalog.get(key))
    return RecoveredArchive(
        reader.partitions, tuple(reader.problems), tuple(reader.differences), reader.last_producer_id
    )


def _listed(store: ObjectStore) -> Iterator[_Found]:
    def owner(key: str) -> HeadKey | None:
        parsed = parse_key(key)
        if isinstance(parsed, (SegmentKey, ManifestKey, PageKey, HeadKey)):
            return HeadKey(parsed.topic_id, parsed.partition)
        return None

    for key, infos in groupby(store.list(DATA_PREFIX), lambda info: owner(info.key)):
        if key is None:
            continue
        manifests: list[tuple[int, str]] = []
        for info in infos:
            parsed = parse_key(info.key)
            if isinstance(parsed, ManifestKey):
                insort(manifests, (parsed.version, info.key))
                del manifests[:-_MANIFESTS_KEPT]
        yield _Found(key, tuple(manifests))


class _ArchiveReader:
    """Reads one partition after another and collects the results."""

    def __init__(self, store: ObjectStore, owners: Collection[str]) -> None:
        self._store = store
        self._owners = owners
        self.partitions: dict[tuple[UUID, int], ArchivedPartition] = {}
        self.problems: list[str] = []
        self.differences: list[str] = []
        self.last_producer_id = -1

    def read(self, key: HeadKey, found: _Found, known: CatalogEntry | None) -> None:
        """Read one partition; `known` is its entry in the copy."""
        where = f"{DATA_PREFIX}/{key.topic_id}/{key.partition}"
        chain = self._published(key, where)
        if chain is None:
            chain = self._newest(key, where, found, known)
        elif known is not None and known.version > chain.manifest.version:
            chain = self._committed(where, known) or chain
        if chain is None:
            return
        if known is None:
            self.differences.append(f"{where}: the copy of the metadata lacks its archive")
        elif chain.manifest.version > known.version:
            self.differences.append(
                f"{where}: the copy of the metadata has version {known.version} of its archive, up to offset "
                f"{known.end_offset}; the bucket has version {chain.manifest.version}, up to "
                f"{chain.manifest.end_offset}, which is used"
            )
        try:
            self.partitions[key] = self._partition(chain)
        except UNREADABLE as e:
            raise_of_the_store(e)
            self.problems.append(f"{where}: {e}")
            self._add_unreadable(key, catalog_entry(chain), chain.manifest.topic)

    def _published(self, key: HeadKey, where: str) -> Chain | None:
        try:
            chain = open_published(self._store, key)
        except UNREADABLE as e:
            raise_of_the_store(e)
            self.problems.append(f"{where}: {e}")
            return None
        return chain if chain is None or self._is_ours(chain, where) else None

    def _committed(self, where: str, known: CatalogEntry) -> Chain | None:
        """Return the chain of the copy's entry, which is later than HEAD; None where it cannot be read."""
        try:
            chain = open_chain(self._store, known.manifest_key)
        except UNREADABLE as e:
            raise_of_the_store(e)
            self.problems.append(f"{where}: HEAD is older than the copy of the metadata, and is used: {e}")
            return None
        self.differences.append(f"{where}: HEAD is older than version {known.version}, which was committed")
        return chain

    def _newest(self, key: HeadKey, where: str, found: _Found, known: CatalogEntry | None) -> Chain | None:
        """Return the chain of the newest readable manifest, where HEAD cannot be used."""
        if not found.manifests and known is None:
            return None  # nothing was ever published, or only HEAD exists
        least = 0 if known is None else known.version
        for version, group in groupby(reversed(found.manifests), lambda one: one[0]):
            whole = [chain for _, name in group if (chain := self._readable(name, where)) is not None]
            if version == least and known is not None:
                whole = [chain for chain in whole if chain.key == known.manifest_key] or whole
            if len(whole) > 1:
                self.problems.append(f"{where}: two manifests of version {version}, one was committed")
                break
            if whole and version >= least:
                self.problems.append(f"{where}: HEAD cannot be used, {whole[0].key} is the newest manifest")
                return whole[0]
        if known is not None:
            self._add_unreadable(key, known)
        self.problems.append(f"{where}: HEAD cannot be used, and no manifest can be read")
        return None

    def _readable(self, name: str, where: str) -> Chain | None:
        try:
            chain = open_chain(self._store, name)
            return chain if self._is_ours(chain, where) else None
        except UNREADABLE as e:
            raise_of_the_store(e)
            return None

    def _is_ours(self, chain: Chain, where: str) -> bool:
        if chain.manifest.cluster_id in self._owners:
            return True
        self.problems.append(f"{where}: {chain.key} is of cluster {chain.manifest.cluster_id}")
        return False

    def _add_unreadable(self, key: HeadKey, entry: CatalogEntry, topic: str = "") -> None:
        """Keep the committed entry although it cannot be read.

        The partition is offline until it can be, and none of its offsets is assigned again.
        """
        self.partitions[key] = ArchivedPartition(topic, entry, entry.leader_epoch, 0)

    def _partition(self, chain: Chain) -> ArchivedPartition:
        manifest = chain.manifest
        last: SegmentEntry | None = None
        epochs = [manifest.leader_epoch]
        for last in live_segments(manifest, lambda ref: _page(self._store, ref, manifest)):
            epochs += [epoch for epoch, _ in last.leader_epochs[-1:]]
        if last is not None:
            footer = open_footer_of(self._store, last)
            snapshot = read_section(self._store, last.key, footer.sections["producer_snapshot"])
            ids = [producer_id for producer_id, _ in decode_snapshot(snapshot)] if snapshot else []
            self.last_producer_id = max([self.last_producer_id, *ids])
        written_ms = 0 if manifest.stamp is None else manifest.stamp.written_ms
        return ArchivedPartition(manifest.topic, catalog_entry(chain), max(epochs), written_ms)


def _page(store: ObjectStore, ref: PageRef, manifest: Manifest) -> ManifestPage:
    return open_page(store, ref, manifest)
