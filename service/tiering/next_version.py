"""Make the next manifest of a partition from the committed one, and the commit that makes it live.

Called on `offload` threads. HEAD has to name the committed manifest right before, and the manifest has to be
what the catalog says. Neither is needed where nothing of the manifest is kept and it is gone, damaged or
refused: its partition goes on without what it lists. A store that is away is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogCommit, CatalogEntry
from service.remote.format.manifest import Manifest, SegmentEntry
from service.remote.reading.object_reader import Chain
from service.remote.stores.errors import ObjectNotFound, StoreRefused, raise_of_the_store
from service.tiering.archive_attempt import catalog_entry, commit_of
from service.tiering.chain import ChainStore, HeadMoved, verdict_on
from service.tiering.head_check import MAY_GO_ON, HeadVerdict

Writes = Callable[[str], None]
"""Called with each key before anything is written under it"""


def load(chains: ChainStore, tip: TopicIdPartition, entry: CatalogEntry) -> Chain:
    """Return the committed manifest, which must be what the catalog says."""
    try:
        chain = chains.load(tip, entry.manifest_key)
    except ObjectNotFound as e:
        raise CorruptionError(
            f"the committed manifest is gone: {e}. Its partition is not copied until it is put back, or "
            f'given up (docs/operations.md, "A bucket that was rolled back")'
        ) from e
    if catalog_entry(chain) != entry:
        raise CorruptionError(f"{entry.manifest_key}: says {catalog_entry(chain)}, the catalog {entry}")
    return chain


def append(
    chains: ChainStore,
    tip: TopicIdPartition,
    entry: CatalogEntry | None,
    segments: Sequence[SegmentEntry],
    leader_epoch: int,
    writes: Writes,
) -> tuple[Chain, CatalogCommit]:
    """Write the version that ends with `segments`; also return the commit that makes it live."""
    is_empty = entry is None or not entry.segments
    chain = chains.append(_parent(chains, tip, entry, is_kept=not is_empty), segments, leader_epoch, writes)
    return chain, commit_of(tip, entry, chain)


def drop(
    chains: ChainStore,
    tip: TopicIdPartition,
    entry: CatalogEntry,
    offset: int,
    leader_epoch: int,
    writes: Writes,
    *,
    takes_all: bool,
) -> tuple[Chain, CatalogCommit, tuple[str, ...]]:
    """Write the version without what lies below `offset`; also return its commit, and the keys that it no
    longer names. `takes_all`: nothing of the committed one is kept."""
    parent = _parent(chains, tip, entry, is_kept=not takes_all)
    chain, gone = chains.drop(parent, tip, offset, leader_epoch, writes)
    return chain, commit_of(tip, entry, chain), gone


class Replacement(NamedTuple):
    """A version in which new objects replace a run, its commit, and the keys that it no longer names."""

    chain: Chain
    commit: CatalogCommit
    gone: tuple[str, ...]


def replace(
    chains: ChainStore,
    tip: TopicIdPartition,
    entry: CatalogEntry,
    segments: Sequence[SegmentEntry],
    leader_epoch: int,
    writes: Writes,
    rewrite_id: UUID,
) -> Replacement:
    """Write the version in which `segments` replace those of the same offsets. Its commit ends the intent
    `rewrite_id`."""
    parent = _parent(chains, tip, entry, is_kept=True)
    chain, gone = chains.replace(parent, tip, segments, leader_epoch, writes)
    return Replacement(chain, commit_of(tip, entry, chain)._replace(rewrite_id=rewrite_id), gone)


def _parent(
    chains: ChainStore, tip: TopicIdPartition, entry: CatalogEntry | None, *, is_kept: bool
) -> Manifest:
    """Return what the next version is made from.

    `HeadMoved` unless HEAD names it, or, where nothing of it is kept and it cannot be read, an older one.
    """
    verdict = verdict_on(entry, chains.read_head(tip))
    moved = HeadMoved(f"HEAD of {tip} is not what was published: {verdict.value}")
    if verdict is not HeadVerdict.EQUAL and (is_kept or verdict not in MAY_GO_ON):
        raise moved
    if entry is None:
        return chains.empty(tip)
    try:
        manifest = load(chains, tip, entry).manifest
    except (StoreRefused, CorruptionError) as e:
        raise_of_the_store(e)  # of the account or the bucket it says nothing of this object: it is read later
        if is_kept:
            raise
        return chains.stand_in(tip, entry)
    if verdict is not HeadVerdict.EQUAL:
        raise moved  # publish it first: a missing HEAD would mean that there was no version before
    return manifest
