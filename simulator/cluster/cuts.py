"""Invariants of cuts, checked at each write of `CUT`, each deletion, and each cause that clients tell of.

T17  everything of a complete cut below each end is in the committed chain, or in a tail that the cut names,
     byte for byte what was committed; its metadata likewise
T18  an exact cut is one moment: it has each partition of its metadata, as the leader of that very epoch saw
     it, nothing that was not committed, and of whatever is in it the causes, too
T19  what a kept cut needs is there, and nobody deletes it

A cause is a record that a client had seen, or had acknowledged, before it produced another one; or metadata
that the node had which told it where to produce.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import FirnError
from service.records.batch import complete_headers
from service.remote.format.cut_codec import (
    METADATA_PLACE,
    NO_LEADER,
    Cut,
    CutRef,
    PartitionCut,
    decode_cuts,
    open_cut,
)
from service.remote.format.keys import CUT_NAME
from service.remote.format.tail_object import TailSection, decode_footer
from simulator.archive import Archive
from simulator.cluster.replicas import Key, Replicas, records_by_offset
from simulator.cluster.tiers import Tiers
from simulator.model import Violation
from simulator.store import Deletion

METADATA: Final[Key] = METADATA_PLACE
Place = tuple[Key, int]
"""a partition, and an offset in it"""


class Commit(NamedTuple):
    """An offset that a group committed."""

    group: str
    key: Key
    offset: int


class Moment(NamedTuple):
    """An exact cut: where each partition ends in it, the metadata among them."""

    number: int
    ends: dict[Key, int]


class MetadataSeen:
    """The committed metadata, as far as cuts are compared with it."""

    def __init__(self, batches: dict[int, tuple[int, bytes]], removed: dict[UUID, int]) -> None:
        self.batches = batches
        """by base offset: where the next batch begins, and the batch"""
        self.removed = removed
        """topics that are gone, with the offset that says so"""
        self.epochs: dict[Key, list[tuple[int, int]]] = {}
        """by partition: at which offset it got which leader epoch"""
        self.news: list[int] = []
        """offsets of the records that change something"""

    def last_news(self, offset: int) -> int:
        """Return the offset of the last record up to `offset` that changes something, -1 without one."""
        at = bisect_right(self.news, offset)
        return self.news[at - 1] if at else -1

    def learn(self, key: Key, offset: int, leader_epoch: int) -> None:
        """Note a partition's leader epoch as of a record."""
        self.epochs.setdefault(key, []).append((offset, leader_epoch))

    def placed_at(self, end: int) -> dict[Key, int]:
        """Return the partitions that there were below the offset `end`, and their leader epochs."""
        found = {}
        for key, changes in self.epochs.items():
            if self.removed.get(key[0], end) >= end and changes[0][0] < end:
                found[key] = next(epoch for offset, epoch in reversed(changes) if offset < end)
        return found


class CutOracle:
    """Looks at what is written to the bucket and deleted there; costs what has changed."""

    def __init__(
        self,
        archive: Archive,
        metadata: MetadataSeen,
        replicas: Replicas,
        tiers: Tiers,
        gone: Callable[[], frozenset[UUID]],
    ) -> None:
        """`gone` returns the topics whose deletion was requested."""
        self.taken = self.complete = self.exact = 0
        """cuts that `CUT` has named, and how many of them were complete, and complete and exact"""
        self.bytes_saved = 0
        """of tails, in cuts"""
        self._archive, self.metadata = archive, metadata
        self._replicas, self._tiers, self._gone = replicas, tiers, gone
        self._newest = 0
        self._cuts: dict[int, Cut] = {}
        """those that are kept"""
        self._complete: set[int] = set()
        self._sections: dict[str, tuple[TailSection, ...]] = {}
        """by tail, of those that are proved"""
        self._moments: list[Moment] = []
        self._causes: dict[Place, list[Place]] = {}
        self.group_numbers = count(1)
        """of groups whose committed offsets rise"""
        self.commits: dict[Place, list[Commit]] = {}
        """by record: what its producer's group had committed before it was produced"""
        self.sent_commits: dict[tuple[str, Key], list[int]] = {}
        """by group and partition: all offsets that it ever asked to commit, rising"""
        self._wrong: list[str] = []

    def check(self) -> None:
        """Raise a `Violation` that was noted in the middle of a node's call."""
        if self._wrong:
            raise Violation(self._wrong[0])

    def kept(self) -> tuple[Cut, ...]:
        """Return the cuts that are kept."""
        return tuple(self._cuts.values())

    def complete_ones(self) -> tuple[Cut, ...]:
        """Return the cuts that are kept and complete, the oldest first."""
        return tuple(cut for number, cut in sorted(self._cuts.items()) if number in self._complete)

    def sections(self) -> Iterator[tuple[str, TailSection]]:
        """Yield the sections of all tails that kept cuts name, with their tails' keys."""
        for key in sorted({ref.key for cut in self._cuts.values() for ref in cut.tails}):
            for section in self._sections.get(key, ()):
                yield key, section

    # What is done to the bucket

    def written(self, key: str, data: bytes) -> None:
        """Check the cuts that `CUT` names from now on."""
        if key != CUT_NAME:
            return
        try:
            self._wrong += self._named(decode_cuts(data).kept)
        except FirnError as e:
            self._wrong.append(f"T19: CUT cannot be read: {e}")

    def deleted(self, deletion: Deletion) -> None:
        """T19."""
        for number, cut in self._cuts.items():
            keys = {cut.metadata.key, *(one.key for one in cut.tails)}
            if deletion.key in keys or f"cut/{number:020d}-" in deletion.key:
                self._wrong.append(f"T19: {deletion.by} deletes {deletion.key}, which cut {number} needs")
                return

    def _named(self, kept: tuple[CutRef, ...]) -> Iterator[str]:
        newest = kept[-1].cut
        if newest < self._newest:
            yield f"T19: CUT goes from cut {self._newest} to {newest}"
        for ref in kept:
            cut = self._cuts.get(ref.cut)
            if cut is None and ref.cut <= self._newest:
                yield f"T19: CUT names cut {ref.cut} again, which it had dropped, or never named"
                return
            if cut is None:
                data = self._archive.object(ref.key)
                if data is None:
                    yield f"T19: CUT names {ref.key}, which is not there"
                    return
                cut = self._cuts[ref.cut] = open_cut(data, ref)
                self.taken += 1
                yield from self._is_there(cut)
                if ref.is_exact:
                    yield from self._is_one_moment(cut)
            if ref.is_complete and ref.cut not in self._complete:
                self._complete.add(ref.cut)
                self.complete += 1
                self.exact += ref.is_exact
                yield from self._is_complete(cut)
            elif ref.cut in self._complete and not ref.is_complete:
                yield f"T17: cut {ref.cut} was complete, and is not any more"
        self._newest = newest
        numbers = {ref.cut for ref in kept}
        self._cuts = {number: cut for number, cut in self._cuts.items() if number in numbers}

    # T17, T19

    def _is_there(self, cut: Cut) -> Iterator[str]:
        snapshot = self._archive.object(cut.metadata.key)
        if snapshot is None or crc32c(snapshot) != cut.metadata.crc32c:
            yield f"T19: cut {cut.cut} needs {cut.metadata.key}, which is not there"
        for ref in cut.tails:
            data = self._archive.object(ref.key)
            if data is None or len(data) != ref.size:
                yield f"T19: cut {cut.cut} needs {ref.key}, which is not there"
            elif ref.key not in self._sections:
                footer = decode_footer(data, len(data))
                if (footer.position, footer.crc) != (ref.footer_position, ref.footer_crc):
                    yield f"T19: cut {cut.cut} names {ref}, whose footer is at {footer.position}"
                self._sections[ref.key] = footer.sections
                self.bytes_saved += footer.position
                for section in footer.sections:
                    content = data[section.position : section.position + section.length]
                    if why := self._differs(section, content):
                        yield f"T17: {ref.key}: {section.topic_id}-{section.partition}: {why}"

    def _differs(self, section: TailSection, content: bytes) -> str:
        """Return why a section is not what was committed; else ""."""
        key = section.topic_id, section.partition
        if crc32c(content) != section.crc32c:
            return "its bytes have another checksum than its footer says"
        at, position = section.first_offset, 0
        for header in complete_headers(content):
            batch = content[header.position : header.position + header.size]
            if header.base_offset < at or header.next_offset > section.end_offset:
                return f"offsets {header.base_offset} to {header.next_offset} follow {at}"
            if not self._is_committed(key, header.base_offset, batch):
                return f"another batch at {header.base_offset} than was committed"
            at, position = header.next_offset, header.position + header.size
        if position != len(content):
            return f"{len(content) - position} bytes are no batch"
        is_whole = at == section.end_offset or key[0] in self._replicas.compacted
        return "" if is_whole else f"ends at {at}, not at {section.end_offset}"

    def _is_committed(self, key: Key, offset: int, batch: bytes) -> bool:
        if key == METADATA:
            return self.metadata.batches.get(offset, (0, b""))[1] == batch
        if self.is_excused(key):
            return True
        known = self._replicas.committed.get(key, {}).get(offset)
        if known is None or known == batch:
            return known is not None or key[0] in self._replicas.compacted
        if key[0] not in self._replicas.compacted:
            return self._replicas.is_rest_of(key, known, batch)
        whole, left = records_by_offset(known), records_by_offset(batch)
        return all(whole.get(at) == one for at, one in left.items())

    def is_excused(self, key: Key) -> bool:
        """Return whether nothing is said of a partition: it may lose records, or may be deleted."""
        return key in self._replicas.shaken or key[0] in self._gone() or key[0] in self.metadata.removed

    def _is_complete(self, cut: Cut) -> Iterator[str]:
        spans: dict[Key, list[tuple[int, int]]] = {}
        for ref in cut.tails:
            for one in self._sections.get(ref.key, ()):
                spans.setdefault((one.topic_id, one.partition), []).append((one.first_offset, one.end_offset))
        reaches = _reach(spans.get(METADATA, ()), cut.metadata.end_offset)
        if reaches < cut.metadata_end:
            yield f"T17: cut {cut.cut} has its metadata up to {reaches} of {cut.metadata_end}"
        for key, row in _rows(cut):
            if self.is_excused(key):
                continue
            entry = self._tiers.entries.get(key)
            chain = 0 if entry is None else entry.end_offset
            reaches = _reach(spans.get(key, ()), max(row.start, chain))
            if reaches < row.end:
                yield (
                    f"T17: cut {cut.cut} is complete, {key[0]}-{key[1]} ends at {row.end}, its chain at "
                    f"{chain}, and tails reach to {reaches}: {spans.get(key)}"
                )

    # T18

    def _is_one_moment(self, cut: Cut) -> Iterator[str]:
        placed = self.metadata.placed_at(cut.metadata_end)
        rows = dict(_rows(cut))
        if rows.keys() != placed.keys():
            differing = sorted(map(str, rows.keys() ^ placed.keys()))[:4]
            yield f"T18: cut {cut.cut} and its metadata up to {cut.metadata_end} differ in {differing}"
        for key, row in rows.items():
            if row.leader_epoch == NO_LEADER or row.leader_epoch != placed.get(key, row.leader_epoch):
                yield (
                    f"T18: cut {cut.cut} has {key[0]}-{key[1]} of epoch {row.leader_epoch}, its metadata "
                    f"up to {cut.metadata_end} says {placed.get(key)}"
                )
            most = self._replicas.most.get(key, 0)
            if row.end > most and not self.is_excused(key):
                yield f"T18: cut {cut.cut}: {key[0]}-{key[1]} ends at {row.end}, committed is {most}"
        ends = {key: row.end for key, row in rows.items()}
        moment = Moment(cut.cut, {**ends, METADATA: cut.metadata_end})
        self._moments.append(moment)
        for place, causes in self._causes.items():
            yield from self._torn(moment, place, causes)

    def committing(self, group: str, key: Key, offset: int) -> int:
        """Note that a group asks to commit an offset, if it rises; return the greatest before it."""
        sent = self.sent_commits.setdefault((group, key), [])
        before = sent[-1] if sent else -1
        if offset > before:
            sent.append(offset)
        return before

    def caused(self, place: Place, causes: Iterable[Place], commits: list[Commit]) -> None:
        """Note a record that a client produced once it knew of `causes`, and of its group's commits. Raises
        `Violation`."""
        mine = self._causes[place] = list(causes)
        if commits:
            self.commits[place] = commits
        for moment in self._moments:
            for wrong in self._torn(moment, place, mine):
                raise Violation(wrong)

    def torn(self, number: int, ends: dict[Key, int]) -> Iterator[str]:
        """Yield what would be wrong with a moment at which partitions end so."""
        for place, causes in self._causes.items():
            yield from self._torn(Moment(number, ends), place, causes)

    def _torn(self, moment: Moment, place: Place, causes: Iterable[Place]) -> Iterator[str]:
        key, offset = place
        if offset >= moment.ends.get(key, 0) or self.is_excused(key):
            return
        for other, before in causes:
            if before >= moment.ends.get(other, 0) and not self.is_excused(other):
                yield (
                    f"T18: cut {moment.number} is torn: it has {offset} of {key[0]}-{key[1]}, and not what "
                    f"that follows from, {before} of {other[0]}-{other[1]}: {moment.ends.get(other)}"
                )


def _rows(cut: Cut) -> Iterator[tuple[Key, PartitionCut]]:
    for topic_id, rows in cut.topics.items():
        for partition, row in enumerate(rows):
            yield (topic_id, partition), row


def _reach(spans: Iterable[tuple[int, int]], start: int) -> int:
    """Return the offset up to which there is no gap from `start` on."""
    for first, end in sorted(spans):
        if first > start:
            break
        start = max(start, end)
    return start
