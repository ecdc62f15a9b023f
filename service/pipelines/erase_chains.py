"""Chains of an order's partitions, as HEAD names them: objects to look at, and whether a plan still holds."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from service.base.types import TopicIdPartition
from service.pipelines.erase_task import ObjectToJudge
from service.remote.format.keys import HeadKey
from service.remote.format.manifest import Manifest
from service.remote.order_end import OrderEnd
from service.remote.reading.object_reader import open_page, open_published
from service.remote.stores.store import ObjectStore
from service.tiering.erasing.bucket_work import live_of
from service.tiering.rewriting.chain_units import run_at, units_from
from service.tiering.rewriting.report_check import RunChanged
from service.tiering.rewriting.rules import ChainRun

_BEHIND_TRIES: Final = 20
_BEHIND_S: Final = 1.0
"""Looks at a HEAD that is behind its leader, and the pause between them."""


@dataclass(slots=True)
class PlannedChain:
    """Objects of one chain that an order concerns, oldest first, as the manifest of `version` lists them; 0
    where the partition has no archive. `newest`: a later manifest that was read since."""

    tip: TopicIdPartition
    version: int
    candidates: list[ObjectToJudge]
    newest: Manifest | None = None


def read_chain(
    store: ObjectStore, tip: TopicIdPartition, end: OrderEnd, clean: Container[str]
) -> PlannedChain:
    """Return the objects of a chain that an order's `end` reaches and that are not known to be clean.

    Raises what the store raises, and `CorruptionError`.
    """
    found = open_published(store, HeadKey(tip.topic_id, tip.partition))
    if found is None:
        return PlannedChain(tip, 0, [])
    manifest = found.manifest
    load = partial(open_page, store, owner=manifest)
    units = enumerate(units_from(manifest, load, manifest.start_offset))
    candidates = [
        ObjectToJudge(tip, number, entry, end)
        for number, unit in units
        for entry in live_of(unit, manifest, manifest.start_offset)
        if end.reaches(entry) and entry.key not in clean
    ]
    return PlannedChain(tip, manifest.version, candidates)


def check_unchanged(
    store: ObjectStore, chain: PlannedChain, run: ChainRun, version: int, sleep: Callable[[float], None]
) -> None:
    """Raise `RunChanged` unless the chain has the run's objects in a version that is `version` or later.

    Nothing is read where that is the version of the plan.
    """
    if version <= chain.version:
        return
    manifest = _reaching(store, chain, version, sleep)
    load = partial(open_page, store, owner=manifest)
    if run_at(run.tip, manifest, load, run.base_offset, run.last_offset).keys != run.keys:
        raise RunChanged(f"{run.tip}: other objects from {run.base_offset} to {run.last_offset} by now")


def _reaching(
    store: ObjectStore, chain: PlannedChain, version: int, sleep: Callable[[float], None]
) -> Manifest:
    """Return a manifest of that version or a later one. HEAD tells of a commit a moment after it."""
    for number in range(_BEHIND_TRIES):
        if chain.newest is not None and chain.newest.version >= version:
            return chain.newest
        if number:
            sleep(_BEHIND_S)
        found = open_published(store, HeadKey(chain.tip.topic_id, chain.tip.partition))
        chain.newest = None if found is None else found.manifest
    raise RunChanged(f"{chain.tip}: HEAD is older than version {version}, which its leader has committed")


def in_shares(chains: Sequence[PlannedChain], most: int) -> Iterator[list[ObjectToJudge]]:
    """Yield the candidates of all chains, at most about `most` at a time, so that each share has some of
    every chain: the newest first, in the order of their offsets within a share.

    >>> from uuid import UUID
    >>> chains = [PlannedChain(TopicIdPartition(UUID(int=7), "t", 0), 3, list("abc"))]
    >>> list(in_shares(chains, 2))
    [['b', 'c'], ['a']]
    """
    left = [(chain, len(chain.candidates)) for chain in chains if chain.candidates]
    while left:
        each = max(1, most // len(left))
        share: list[ObjectToJudge] = []
        rest = []
        for chain, end in left:
            if len(share) >= most:
                rest.append((chain, end))
                continue
            begin = max(0, end - each)
            share += chain.candidates[begin:end]
            if begin:
                rest.append((chain, begin))
        left = rest
        yield share
