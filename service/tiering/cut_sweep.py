"""Find tails, cuts and checkpoints that no cut needs any more, and never will (`cuts/liveness.py`)."""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.remote.format.cut_codec import Cuts
from service.remote.format.keys import CUT_PREFIX, METADATA_PREFIX, TAIL_PREFIX, MetadataKey, parse_key
from service.remote.format.metadata_ref import MetadataRef
from service.remote.reading.tails import open_cuts
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore
from service.tiering.archive_attempt import TieringContext
from service.tiering.cuts.kept_documents import KeptDocuments
from service.tiering.cuts.liveness import dead_keys
from service.tiering.cuts.ports import CutCluster

MOST_KEYS: Final = 100_000
"""Most keys of one kind that are judged at a time, oldest first."""


class DeadObjects(NamedTuple):
    """Keys of dead objects, and why others could not be judged."""

    keys: tuple[str, ...]
    problem: CorruptionError | None = None


class CutSweep:
    """Judgement of what cuts leave behind. Owned by the event loop; lists on the offload pool."""

    def __init__(self, context: TieringContext, documents: KeptDocuments, cluster: CutCluster) -> None:
        self._context = context
        self._documents = documents
        self._cluster = cluster

    async def find(self) -> DeadObjects:
        """Return what is dead. It lists first and reads `CUT` then, so that all it lists is judged by a later
        one. Call it behind a barrier.

        Raises what the store raises, and `CorruptionError` for a `CUT` that cannot be read.
        """
        context, documents = self._context, self._documents
        if self._cluster.is_loading:
            return DeadObjects(())  # the cut that is loaded stays, whatever `CUT` names
        listed = await context.pool.run(_listed, context.store)
        checkpoints = await context.pool.run(_checkpoints, context.store)
        cluster = await context.fence.read()
        owners = (cluster.cluster_id, *(one.cluster_id for one in cluster.ancestors))
        documents.begin(owners)
        try:
            cuts = await context.pool.run(open_cuts, context.store, owners)
        except ObjectNotFound:
            return DeadObjects(())
        named = await documents.kept(cuts)
        dead = list(dead_keys(listed, cuts, named.tails, unread_up_to=named.unread_up_to))
        if named.unread_up_to:
            return DeadObjects(tuple(dead), CorruptionError(named.problem))
        if self._is_own(cuts) and cluster.metadata is not None:
            dead += _superseded(checkpoints, cluster.metadata, named.checkpoints)
        return DeadObjects(tuple(dead))

    def _is_own(self, cuts: Cuts) -> bool:
        """Return whether this process has written `CUT`: then no other may still name an older checkpoint."""
        stamp = cuts.stamp
        return stamp is not None and stamp.writer.incarnation == self._context.stamps().writer.incarnation


def _listed(store: ObjectStore) -> list[str]:
    """Return the keys of cuts and tails. Runs on an offload thread."""
    prefixes = (CUT_PREFIX, TAIL_PREFIX)
    return [info.key for prefix in prefixes for info in islice(store.list(prefix), MOST_KEYS)]


def _checkpoints(store: ObjectStore) -> list[str]:
    """Return the keys of the metadata's snapshots. Runs on an offload thread."""
    return [info.key for info in islice(store.list(METADATA_PREFIX), MOST_KEYS)]


def _superseded(keys: list[str], newest: MetadataRef, needed: frozenset[str]) -> list[str]:
    """Return the checkpoints before the one that `cluster.json` names which no kept cut needs, except the
    last of them."""
    parsed = {key: found for key in keys if isinstance(found := parse_key(key), MetadataKey)}
    place = newest.epoch, newest.end_offset
    older = sorted(
        (found.epoch, found.offset, key)
        for key, found in parsed.items()
        if (found.epoch, found.offset) <= place and key != newest.key
    )
    return [key for _, _, key in older[:-1] if key not in needed]
