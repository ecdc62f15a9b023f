"""Search for what an order has dropped and is still in the bucket. Blocks; for an offload thread.

Only an order that is done is asked: whatever was written later has none of its keys. So an object counts if
no chain and no cut names it, it holds offsets below the order's end, and it is older than the end of the
order. Leaders, the keeper and the sweeper delete it; this only looks, but for old versions of objects that
are gone, which nobody else deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol
from uuid import UUID

from service.base.steps import Steps
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.cut_codec import Place
from service.remote.format.keys import TAIL_PREFIX, SegmentKey, TailKey, parse_key, topic_prefix
from service.remote.format.manifest import live_segments
from service.remote.opened_order import Ends, end_of
from service.remote.stores.errors import StoreRefused, StoreUnavailable
from service.remote.stores.store import ObjectStore
from service.tiering.chain import ChainStore
from service.tiering.copier import CallProgress
from service.tiering.erasing.leftovers import Remains, VersionsLeft

_SKEW_MS: Final = 60_000
"""The store's clock and the keeper's may differ by so much."""
_MOST_NAMED: Final = 20

IsDead = Callable[[str, int], bool]
"""Tells whether the order dropped an object with this key, written at a time (wall clock, ms)."""


class VersionsOf(Protocol):
    """Removes the versions below some prefixes that are dead: old ones, with `takes_current` all. Blocks."""

    def __call__(
        self,
        prefixes: Sequence[str],
        is_dead: IsDead,
        progress: CallProgress,
        /,
        *,
        takes_current: bool = False,
    ) -> VersionsLeft: ...


class _Dropped:
    """Judgement of keys: what an order that was done at `done_ms` has dropped."""

    def __init__(self, ends: Ends, live: frozenset[str], tails: frozenset[str], done_ms: int) -> None:
        self._ends = ends
        self._live = live
        self._tails = tails
        self._until_ms = done_ms + _SKEW_MS

    def is_dead(self, key: str, modified_ms: int) -> bool:
        """Return whether the order dropped the object, which was written at `modified_ms`."""
        if modified_ms > self._until_ms:
            return False
        parsed = parse_key(key)
        if isinstance(parsed, TailKey):
            return key not in self._tails
        if not isinstance(parsed, SegmentKey) or key in self._live:
            return False
        return parsed.base_offset < end_of(self._ends, parsed.topic_id, parsed.partition).offset


def entries_of(
    ends: Ends, entry: Callable[[UUID, int], CatalogEntry | None]
) -> Steps[dict[Place, CatalogEntry | None]]:
    """Return, in steps, what the catalog has of the partitions of an order: there may be a million."""
    found: dict[Place, CatalogEntry | None] = {}
    for topic_id, topic in ends.items():
        for partition in range(len(topic.ends)):
            yield
            found[topic_id, partition] = entry(topic_id, partition)
    return found


def what_remains(
    store: ObjectStore,
    chains: ChainStore,
    ends: Ends,
    entries: Mapping[Place, CatalogEntry | None],
    tails: frozenset[str],
    done_ms: int,
    versions: VersionsOf | None,
    progress: CallProgress,
) -> Remains:
    """Return what is left of an order's topics. `entries` are those of their partitions, None without one;
    `tails` are all that kept cuts name.

    Entries are older than the listing, so an object that was named meanwhile counts until the next look.
    """
    live = frozenset(_live(chains, entries, progress))
    dropped = _Dropped(ends, live, tails, done_ms)
    prefixes = [*map(topic_prefix, ends), TAIL_PREFIX]
    count = newest_tail = 0
    named: list[str] = []
    for prefix in prefixes:
        for info in store.list(prefix):
            progress.advance(1)
            if dropped.is_dead(info.key, info.last_modified_ms):
                count += 1
                named += [info.key] if len(named) < _MOST_NAMED else []
                if isinstance(parsed := parse_key(info.key), TailKey):
                    newest_tail = max(newest_tail, parsed.cut)
    left = VersionsLeft()
    if versions is not None and not count:
        try:
            left = versions(prefixes, dropped.is_dead, progress)
        except (StoreRefused, StoreUnavailable) as e:
            left = VersionsLeft(unknown=str(e))
    return Remains(count, tuple(named), left, newest_tail)


def _live(
    chains: ChainStore, entries: Mapping[Place, CatalogEntry | None], progress: CallProgress
) -> Iterator[str]:
    for (topic_id, partition), entry in entries.items():
        if entry is None or not entry.segments:
            continue
        tip = TopicIdPartition(topic_id, "", partition)
        manifest = chains.load(tip, entry.manifest_key).manifest
        segments = live_segments(manifest, chains.loader(tip))
        while some := [one.key for one in islice(segments, 1000)]:
            progress.advance(len(some))
            yield from some
