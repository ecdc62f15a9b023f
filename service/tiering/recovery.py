"""Reads what the bucket alone says of partitions: chains, epochs and producers that a new disk lacks.

For an operator's takeover (`firn.remote.recover`), never for a node that goes on by itself. Everything is
read and checked before anything is decided; what cannot be read is told and left alone, be it damaged, gone,
refused or asleep: one such object keeps no other partition from coming back. Blocks: for a pool's thread.

A partition's HEAD decides, unless the catalog of the metadata's copy has a later entry whose manifest is
there (HEAD is written after the commit). Where HEAD is damaged or gone, the newest manifest that can be read
does.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError
from service.hot.producer_snapshot import decode_snapshot
from service.remote.catalog import CatalogEntry
from service.remote.format.keys import DATA_PREFIX, HeadKey, ManifestKey, PageKey, SegmentKey, parse_key
from service.remote.format.manifest import Manifest, Page, PageRef, SegmentEntry, live_segments
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
from service.tiering.fence import read_cluster

_MANIFESTS_KEPT: Final = 16
"""Of each partition's manifests the newest are remembered, for where HEAD is damaged or gone."""


class ArchivedPartition(NamedTuple):
    """One partition as the bucket has it. `leader_epoch` is the highest that anybody led it in, as far as the
    bucket knows; `written_ms` when its manifest was written, by its writer's clock, 0 where it does not say.
    """

    topic: str
    entry: CatalogEntry
    leader_epoch: int
    written_ms: int


class Archive(NamedTuple):
    """All partitions; what could not be read, in words; what differs from the metadata's copy, in words; and
    the highest producer id in the archive, -1 for none."""

    partitions: Mapping[tuple[UUID, int], ArchivedPartition]
    problems: tuple[str, ...]
    differences: tuple[str, ...]
    last_producer_id: int


class _Found(NamedTuple):
    """What a listing shows of one partition: its newest manifests by version."""

    key: HeadKey
    manifests: tuple[tuple[int, str], ...]


def check_prefix(store: ObjectStore, cluster_id: str) -> ClusterFile:
    """`cluster.json`. Raises `ConfigError` when the prefix is another cluster's, or there is nothing."""
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
) -> Archive:
    """Every partition below the prefix but those of the topics that are `deleted`.

    `catalog` is that of the metadata's copy, empty where there is none. `StorageError` when the store does
    not answer.
    """
    reader = _ArchiveReader(store, cluster_id)
    found = {one.key: one for one in _listed(store) if one.key.topic_id not in deleted}
    for key in sorted({*found, *(HeadKey(*key) for key in catalog)}):
        reader.read(key, found.get(key, _Found(key, ())), catalog.get(key))
    return Archive(
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
    """Reads partition after partition, and keeps what is said of them."""

    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self.partitions: dict[tuple[UUID, int], ArchivedPartition] = {}
        self.problems: list[str] = []
        self.differences: list[str] = []
        self.last_producer_id = -1

    def read(self, key: HeadKey, found: _Found, known: CatalogEntry | None) -> None:
        """One partition; `known` is its entry in the copy."""
        where = f"{DATA_PREFIX}/{key.topic_id}/{key.partition}"
        chain = self._published(key, where)
        if chain is None:
            chain = self._newest(key, where, found, known)
        elif known is not None and known.version > chain.manifest.version:
            chain = self._committed(where, known) or chain
        if chain is None:
            return
        if known is None:
            self.differences.append(f"{where}: the copy of the metadata does not know its archive")
        elif chain.manifest.version > known.version:
            self.differences.append(
                f"{where}: the copy of the metadata has version {known.version} of its archive, up to offset "
                f"{known.end_offset}; the bucket has version {chain.manifest.version}, up to "
                f"{chain.manifest.end_offset}, which counts"
            )
        try:
            self.partitions[key] = self._partition(chain)
        except UNREADABLE as e:
            raise_of_the_store(e)
            self.problems.append(f"{where}: {e}")
            self._blind(key, catalog_entry(chain), chain.manifest.topic)

    def _published(self, key: HeadKey, where: str) -> Chain | None:
        try:
            chain = open_published(self._store, key)
        except UNREADABLE as e:
            raise_of_the_store(e)
            self.problems.append(f"{where}: {e}")
            return None
        return chain if chain is None or self._is_ours(chain, where) else None

    def _committed(self, where: str, known: CatalogEntry) -> Chain | None:
        """The chain of the copy's entry, which is later than HEAD; None where the bucket has lost it."""
        try:
            chain = open_chain(self._store, known.manifest_key)
        except UNREADABLE as e:
            raise_of_the_store(e)
            self.problems.append(f"{where}: HEAD is older than the copy of the metadata, and counts: {e}")
            return None
        self.differences.append(f"{where}: HEAD is older than version {known.version}, which was committed")
        return chain

    def _newest(self, key: HeadKey, where: str, found: _Found, known: CatalogEntry | None) -> Chain | None:
        """The chain of the newest manifest that can be read, where HEAD says nothing."""
        if not found.manifests and known is None:
            return None  # nothing was ever published, or HEAD is all there is
        least = 0 if known is None else known.version
        for version, group in groupby(reversed(found.manifests), lambda one: one[0]):
            whole = [chain for _, name in group if (chain := self._readable(name, where)) is not None]
            if version == least and known is not None:
                whole = [chain for chain in whole if chain.key == known.manifest_key] or whole
            if len(whole) > 1:
                self.problems.append(f"{where}: two manifests of version {version}, one was committed")
                break
            if whole and version >= least:
                self.problems.append(f"{where}: HEAD says nothing, {whole[0].key} is the newest manifest")
                return whole[0]
        if known is not None:
            self._blind(key, known)
        self.problems.append(f"{where}: HEAD says nothing, and no manifest can be read")
        return None

    def _readable(self, name: str, where: str) -> Chain | None:
        try:
            chain = open_chain(self._store, name)
            return chain if self._is_ours(chain, where) else None
        except UNREADABLE as e:
            raise_of_the_store(e)
            return None

    def _is_ours(self, chain: Chain, where: str) -> bool:
        if chain.manifest.cluster_id == self._cluster_id:
            return True
        self.problems.append(f"{where}: {chain.key} is of cluster {chain.manifest.cluster_id}")
        return False

    def _blind(self, key: HeadKey, entry: CatalogEntry, topic: str = "") -> None:
        """What was committed stays the entry, though it cannot be read: the partition is offline until it can
        be, and no offset of it is given out again."""
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


def _page(store: ObjectStore, ref: PageRef, manifest: Manifest) -> Page:
    return open_page(store, ref, manifest)
