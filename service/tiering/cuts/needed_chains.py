"""Chains that kept cuts need: what left them since is not deleted before those cuts are gone.

Of each partition a cut needs the chain that its metadata names. What a change of the metadata takes out of a
chain is needed by cuts whose metadata lacks that change, and will never be needed by another, as each cut has
all metadata of the one before. `CUT` says how far the metadata of all kept cuts goes at least. So one number
decides, whoever deletes, and however old its own metadata is (invariant T19). Whether cuts hold chains at all
is the keeper's setting, and stands in `CUT`, too: brokers whose own is another go by that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from service.remote.format.cut_codec import MetadataEnd
from service.remote.format.metadata_ref import MAX_LIFE
from service.remote.reading.tails import open_cuts
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore
from service.tiering.cuts.ports import CutCluster
from service.tiering.offload_pool import OffloadPool

NEVER_NAMED: Final = MetadataEnd(0, 0)
"""End told of objects that no chain ever named: no cut needs them."""
_ALL: Final = MetadataEnd(MAX_LIFE + 1, 0)


class NeededChains:
    """Knowledge of one process of what kept cuts may need. Owned by the event loop."""

    def __init__(
        self,
        store: ObjectStore,
        pool: OffloadPool,
        metadata_end: Callable[[], MetadataEnd | None],
        cluster: CutCluster | None,
    ) -> None:
        """`metadata_end` of the image, None while it is not known. Without `cluster` there are no cuts."""
        self._store = store
        self._pool = pool
        self._metadata_end = metadata_end
        self._cluster = cluster
        self._waits: MetadataEnd | None = None

    def dropped(self) -> MetadataEnd:
        """Return the end of the metadata that has dropped what the image has dropped by now."""
        return self._metadata_end() or _ALL

    async def settled(self) -> MetadataEnd:
        """Return how far the metadata of all kept cuts goes: what was dropped up to there no cut needs.

        Raises what the store raises, and `CorruptionError` for a `CUT` that cannot be read.
        """
        settled, cluster = _ALL, self._cluster
        if cluster is not None and (cluster.is_loading or cluster.is_enabled()):
            with suppress(ObjectNotFound):  # there are no cuts
                cuts = await self._pool.run(open_cuts, self._store)
                is_held = cluster.needs_chains if cuts.holds_chains is None else cuts.holds_chains
                if is_held or cluster.is_loading:
                    settled = cuts.oldest_metadata or NEVER_NAMED
        self.note_settled(settled)
        return settled

    def note_settled(self, settled: MetadataEnd | None) -> None:
        """Note how far the metadata of all kept cuts goes."""
        if self._waits is not None and settled is not None and self._waits <= settled:
            self._waits = None

    def wait(self, dropped: MetadataEnd) -> None:
        """Note that a deletion, which is due, waits until no cut is kept that is older than `dropped`."""
        self._waits = dropped if self._waits is None else max(self._waits, dropped)

    @property
    def is_waited_for(self) -> bool:
        """True while deletions of this process wait for older cuts to go."""
        return self._waits is not None

    def wants_cut(self, newest: MetadataEnd) -> bool:
        """Return whether they wait for a cut that is newer than the one with metadata up to `newest`."""
        return self._waits is not None and newest < self._waits
