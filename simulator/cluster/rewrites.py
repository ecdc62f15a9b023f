"""Invariants of ranges that are written anew, checked at each committed chain, deletion and order's end.

T23  a rewrite leaves a chain's start and end, its segments begin and end where old ones did, and their leader
     epochs are those of the run
T24  it lacks the erased records and nothing else (`Tiers`, with `erasures.py`)
T25  an object that a rewrite made is named only by the commit of that rewrite, whose intent was there until
     then; nobody deletes it while that is so
T26  once an order is done none of its records is in a chain, in tails or chains of kept cuts, or in the log
     of an in-sync replica; nor in the log of one that is noted as clean
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.base.errors import FirnError
from service.metadata.image import MetadataImage
from service.metadata.records import (
    ErasedRecord,
    ErasureRecord,
    RemoveErasureRecord,
    RemoveRewriteRecord,
    RewriteRecord,
)
from service.remote.catalog import CatalogEntry
from service.remote.format.cut_codec import decode_cuts
from service.remote.format.keys import CUT_NAME, SegmentKey, parse_key
from service.remote.format.manifest import SegmentEntry
from service.remote.format.rewrite_origin import RewriteOrigin
from service.remote.format.segment_object import decode_footer
from service.remote.reading.object_reader import open_footer_of
from simulator.archive import Archive, Live
from simulator.cluster.cuts import CutOracle
from simulator.cluster.erasures import Erasures, KnownOrder, records_at
from simulator.cluster.replicas import Key, Replicas, batches_of
from simulator.cluster.tiers import Tiers
from simulator.machine import Machine
from simulator.model import Violation
from simulator.store import Deletion

_NOBODY: Final = UUID(int=0)


class Left(NamedTuple):
    """A record of an order that is done: where it is, and what time it bears."""

    order_id: UUID
    place: Key
    offset: int
    where: str
    timestamp: int

    def __str__(self) -> str:
        name = f"{self.place[0]}-{self.place[1]}"
        return f"T26: order {self.order_id} is done, and of {name} there is {self.offset} in {self.where}"


class RewriteOracle:
    """Looks at rewrites and erasures; costs what has changed."""

    def __init__(
        self,
        archive: Archive,
        replicas: Replicas,
        tiers: Tiers,
        cuts: CutOracle,
        machines: list[Machine],
        now_ms: Callable[[], int],
        image: Callable[[], MetadataImage],
    ) -> None:
        """`now_ms` tells the time that records bear; `image` is the newest of any process."""
        self.intents: dict[Key, RewriteRecord] = {}
        self.begun = self.committed = self.merged = self.done = 0
        """rewrites that began, that were committed, and of these merges; orders that were done"""
        self.on_intent: Callable[[Key], None] = lambda _: None
        """called when a rewrite has begun"""
        self._archive, self._replicas, self._tiers, self._cuts = archive, replicas, tiers, cuts
        self._machines = machines
        self._now_ms, self._image = now_ms, image
        self._done_ms: dict[UUID, int] = {}
        """when orders were done"""
        self._erasures: Erasures = replicas.erasures
        self._origins: dict[str, RewriteOrigin | None] = {}
        self._manifests: dict[tuple[Key, int], str] = {}
        """keys of committed manifests by partition and version"""
        self._wrong: list[str] = []
        tiers.on_chain = self._chain

    def check(self) -> None:
        """Raise a `Violation` that was noted in the middle of a node's call."""
        if self._wrong:
            raise Violation(self._wrong[0])

    # What is committed

    def learn(self, record: Any, offset: int) -> None:
        """Take a committed record. Raises `Violation`."""
        match record:
            case RewriteRecord():
                key = record.topic_id or _NOBODY, int(record.partition_id)
                self.intents[key] = record
                self.begun += 1
                self.on_intent(key)
            case RemoveRewriteRecord():
                self.intents.pop((record.topic_id or _NOBODY, int(record.partition_id)), None)
            case ErasureRecord() if int(record.done_ms) >= 0:
                order = self._erasures.orders.get(record.id or _NOBODY)
                if order is not None and not order.is_done:
                    order.is_done = True
                    self._done_ms[order.id] = self._now_ms()
                    self.done += 1
                    for wrong in self._left(order):
                        if wrong.place not in self._replicas.shaken:
                            raise Violation(str(wrong))
            case ErasedRecord():
                self._are_clean(record)
            case RemoveErasureRecord():
                order = self._erasures.orders.get(record.id or _NOBODY)
                if order is not None:
                    order.is_removed = True
            case _:
                pass

    def _intent(self, key: Key) -> RewriteRecord | None:
        """Return the partition's intent while it lives: in the leader epoch in which it began."""
        intent, placed = self.intents.get(key), self._replicas.placed.get(key)
        if intent is None or placed is None or intent.leader_epoch != placed.leader_epoch:
            return None
        return intent

    def _chain(self, key: Key, before: CatalogEntry | None, entry: CatalogEntry, live: Live) -> None:
        """T23, T25 of a chain that was committed now. Raises `Violation`."""
        self._manifests[key, entry.version] = entry.manifest_key
        if before is None:
            return
        try:
            old = self._archive.named(before.manifest_key).segments
        except FirnError:
            return  # it went meanwhile: the entry is late
        known = {one.key for one in old}
        ends = old[-1].last_offset if old else -1
        new = [one for one in live.segments if one.key not in known and one.base_offset <= ends]
        if not new:
            return
        name = f"the archive of {key[0]}-{key[1]}"
        self.committed += 1
        if (before.start_offset, before.end_offset) != (entry.start_offset, entry.end_offset):
            raise Violation(f"T23: {name} goes from {before} to {entry} by a rewrite")
        for segment in new:
            self._takes_the_place(name, old, segment)
            self._was_meant(name, key, segment)

    def _takes_the_place(self, name: str, old: tuple[SegmentEntry, ...], segment: SegmentEntry) -> None:
        """T23."""
        run = [
            one
            for one in old
            if one.base_offset >= segment.base_offset and one.last_offset <= segment.last_offset
        ]
        if not run or (run[0].base_offset, run[-1].last_offset) != (segment.base_offset, segment.last_offset):
            raise Violation(f"T23: {name}: {segment.key} has borders that no segment had")
        if segment.generation <= max(one.generation for one in run):
            raise Violation(f"T23: {name}: {segment.key} is of generation {segment.generation}")
        epochs: dict[int, int] = {}
        for one in run:
            for epoch, first in one.leader_epochs:
                epochs.setdefault(epoch, first)
        own = {epoch: max(first, segment.base_offset) for epoch, first in segment.leader_epochs}
        if own != {epoch: max(first, segment.base_offset) for epoch, first in epochs.items()}:
            raise Violation(f"T23: {name}: {segment.key} has epochs {own}, its run had {epochs}")

    def _was_meant(self, name: str, key: Key, segment: SegmentEntry) -> None:
        """T25: the commit fulfils the intent under which the object was made."""
        origin, intent = self._origin(segment), self._intent(key)
        if origin is None:
            raise Violation(f"T25: {name}: {segment.key} takes the place of others, and says of no rewrite")
        self.merged += origin.kind == "merge"
        if intent is None or intent.rewrite_id != origin.id:
            had = None if intent is None else intent.rewrite_id
            raise Violation(f"T25: {name}: {segment.key} is of rewrite {origin.id}, the intent is {had}")
        if not intent.base_offset <= segment.base_offset <= segment.last_offset <= intent.last_offset:
            raise Violation(f"T25: {name}: {segment.key} is not within its intent {intent}")

    def _origin(self, segment: SegmentEntry) -> RewriteOrigin | None:
        if segment.key not in self._origins:
            store = self._archive.store(segment.key)
            self._origins[segment.key] = open_footer_of(store, segment).rewrite
        return self._origins[segment.key]

    # What is done to the bucket

    def written(self, key: str, data: bytes) -> None:
        """Note which orders `CUT` lists."""
        if key != CUT_NAME:
            return
        try:
            listed = decode_cuts(data).erasures
        except FirnError:
            return  # told by the oracle of cuts
        ids = {one.id for one in listed}
        for order in self._erasures.orders.values():
            order.is_listed = order.id in ids

    def deleted(self, deletion: Deletion) -> None:
        """T25: nobody deletes what a rewrite has made that may still be committed."""
        parsed = parse_key(deletion.key)
        if not isinstance(parsed, SegmentKey):
            return
        key = parsed.topic_id, parsed.partition
        intent = self._intent(key)
        if intent is None or self._archive.writer(deletion.key) == deletion.by:
            return  # a worker may give up what it has made
        try:
            origin = decode_footer(deletion.data, len(deletion.data)).rewrite
        except FirnError:
            return  # a part of an object, that a fault has left
        if origin is None or origin.id != intent.rewrite_id:
            return
        self._wrong.append(f"T25: {deletion.by} deletes {deletion.key}, which {intent} may still be for")

    # T26

    def _are_clean(self, record: ErasedRecord) -> None:
        """Check, once anybody has told, that whoever is noted as clean is, if it is in sync. Raises
        `Violation`."""
        order_id = record.erasure_id or _NOBODY
        order, notes = self._erasures.orders.get(order_id), self._image().erased.get(order_id)
        if order is None or notes is None:
            return
        for place in order.ends:
            if place in self._replicas.shaken or place not in self._replicas.placed:
                continue
            for number in sorted({*notes.get(place, ())} & {*self._replicas.placed[place].isr}):
                for offset in self._hits_in_log(order, place, number):
                    raise Violation(
                        f"T26: broker {number} has told that {place[0]}-{place[1]} has nothing of order "
                        f"{order_id}, and its log has {offset}"
                    )

    def _hits_in_log(self, order: KnownOrder, place: Key, number: int) -> Iterator[int]:
        seen = self._replicas.seen.get((number, place))
        for _, _, data in () if seen is None else batches_of(self._machines[number - 1], seen.partition, 0):
            yield from self._erasures.hits(order, place, data)

    def _left(self, order: KnownOrder) -> Iterator[Left]:
        for place in order.ends:
            if place not in self._replicas.placed:
                continue
            for where, data in (*self._in_bucket(place), *self._in_tails(place), *self._in_logs(place)):
                for offset in self._erasures.hits(order, place, data):
                    record = records_at(data)[offset]
                    yield Left(order.id, place, offset, where, record.timestamp)

    def _in_bucket(self, place: Key) -> Iterator[tuple[str, bytes]]:
        """Yield the segments of the chain, and of those that kept cuts name."""
        manifests = set()
        entry = self._tiers.entries.get(place)
        if entry is not None:
            manifests.add(entry.manifest_key)
        for cut in self._cuts.kept():
            rows = cut.topics.get(place[0], ())
            if place[1] < len(rows) and (place, rows[place[1]].version) in self._manifests:
                manifests.add(self._manifests[place, rows[place[1]].version])
        for manifest in sorted(manifests):
            for segment in self._archive.named(manifest).segments:
                data = self._archive.object(segment.key)
                if data is not None:
                    yield segment.key, data[: segment.log_length]

    def _in_tails(self, place: Key) -> Iterator[tuple[str, bytes]]:
        for key, section in self._cuts.sections():
            if (section.topic_id, section.partition) == place:
                data = self._archive.object(key) or b""
                yield key, data[section.position : section.position + section.length]

    def _in_logs(self, place: Key) -> Iterator[tuple[str, bytes]]:
        for number in self._replicas.placed[place].isr:
            seen = self._replicas.seen.get((number, place))
            if seen is not None:
                for _, _, data in batches_of(self._machines[number - 1], seen.partition, 0):
                    yield f"the log of broker {number}", data

    def none_is_left(self) -> None:
        """Look at all orders that are done once more. Raises `Violation`."""
        for wrong in self._left_of_all():
            raise Violation(str(wrong))

    def is_any_left(self) -> bool:
        """Return whether `none_is_left` would raise."""
        return any(True for _ in self._left_of_all())

    def _left_of_all(self) -> Iterator[Left]:
        """Yield what is left of orders that are done: of a partition that may lose records, of those that it
        had by then."""
        for order in self._erasures.orders.values():
            if not order.is_done:
                continue
            for wrong in self._left(order):
                is_shaken = wrong.place in self._replicas.shaken
                if not is_shaken or wrong.timestamp < self._done_ms[order.id]:
                    yield wrong
