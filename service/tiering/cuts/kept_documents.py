"""Documents of the cuts that are kept: which tails and checkpoints they name. Owned by the event loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from service.remote.format.cut_codec import Cut, CutRef, Cuts, MetadataEnd
from service.remote.reading.tails import open_named_cut
from service.remote.stores.errors import UNREADABLE, raise_of_the_store
from service.remote.stores.store import ObjectStore
from service.tiering.offload_pool import OffloadPool


class NamedByCuts(NamedTuple):
    """Objects that the kept cuts need. `unread_up_to`: the greatest number of a cut whose document cannot be
    read, 0 for none; `problem` says why."""

    tails: frozenset[str]
    checkpoints: frozenset[str]
    unread_up_to: int = 0
    problem: str = ""


class _Names(NamedTuple):
    tails: tuple[str, ...]
    checkpoint: str
    metadata: MetadataEnd


class KeptDocuments:
    """Names in the documents of kept cuts, each read once."""

    def __init__(self, store: ObjectStore, pool: OffloadPool, is_in_use: Callable[[], bool]) -> None:
        """`is_in_use`: there may be cuts in this prefix. Called from any thread."""
        self.owners: frozenset[str] = frozenset()
        """ids of the cluster and its ancestors"""
        self._store = store
        self._pool = pool
        self._is_in_use = is_in_use
        self._names: dict[str, _Names] = {}
        """by the documents' keys"""
        self._interned: dict[str, str] = {}
        self._checkpoints: set[str] = set()
        """all that any cut names, or was going to name, since this process keeps the prefix"""
        self._is_known = False
        """all documents of a `CUT` that this process has written are read: no other names a checkpoint any
        more"""

    def begin(self, owners: Collection[str]) -> None:
        """Begin to keep the prefix, which is that of `owners`."""
        self.owners = frozenset(owners)

    def clear(self) -> None:
        """Forget everything: another process may write cuts now."""
        self._names.clear()
        self._interned.clear()
        self._checkpoints.clear()
        self._is_known = False

    async def open(self, ref: CutRef) -> Cut:
        """Return the cut that `ref` names. Raises what reading it raises."""
        cut = await self._pool.run(open_named_cut, self._store, ref, self.owners)
        self.add(ref, cut)
        return cut

    def add(self, ref: CutRef, cut: Cut) -> None:
        """Add a document that was read or written."""
        interned = self._interned
        tails = tuple(interned.setdefault(one.key, one.key) for one in cut.tails)
        metadata = MetadataEnd(cut.metadata.life, cut.metadata_end)
        self._names[ref.key] = _Names(tails, cut.metadata.key, metadata)
        self._checkpoints.add(cut.metadata.key)

    async def tails_of(self, ref: CutRef) -> Sequence[str]:
        """Return the tails that a cut names. Raises what reading its document raises."""
        if ref.key not in self._names:
            await self.open(ref)
        return self._names[ref.key].tails

    def oldest_metadata(self, refs: Iterable[CutRef]) -> MetadataEnd | None:
        """Return how far the metadata of all these cuts goes at least; None where that of one is not
        known."""
        found = [self._names.get(ref.key) for ref in refs]
        known = [one.metadata for one in found if one is not None]
        return min(known, default=None) if len(known) == len(found) else None

    def will_name(self, checkpoint: str) -> None:
        """Note that a cut is going to name this checkpoint."""
        self._checkpoints.add(checkpoint)

    def written(self, cuts: Cuts) -> None:
        """Note that this process has written `CUT`."""
        self._is_known = all(ref.key in self._names for ref in cuts.kept)

    async def kept(self, cuts: Cuts) -> NamedByCuts:
        """Return what the kept cuts name, and forget other documents. Reads those that are not known.

        Raises a store's error that is not of one object.
        """
        wanted = {ref.key: ref for ref in cuts.kept}
        self._names = {key: names for key, names in self._names.items() if key in wanted}
        unread, problem = 0, ""
        for ref in cuts.kept:
            if ref.key in self._names:
                continue
            try:
                await self.open(ref)
            except UNREADABLE as e:
                raise_of_the_store(e)
                unread, problem = max(unread, ref.cut), str(e)
        tails = frozenset(key for names in self._names.values() for key in names.tails)
        self._interned = {key: key for key in tails}
        self._is_known = not unread
        return NamedByCuts(tails, frozenset(one.checkpoint for one in self._names.values()), unread, problem)

    def removable(self, checkpoints: Sequence[str]) -> list[str]:
        """Return those of the superseded `checkpoints` that no cut ever named: they go at once. Others are
        left to the sweep, as a cut needs them for the grace. Safe from any thread."""
        if not self._is_in_use():
            return list(checkpoints)
        return [key for key in checkpoints if key not in self._checkpoints] if self._is_known else []
