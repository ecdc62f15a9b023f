"""Check of `CUT`, the cuts that it keeps and their tails: each is whole, and lacks nothing (invariant T17).

For each kept cut: its document, its snapshot of the metadata, each tail that it names (size and footer; with
`deep` every section, its batches' checksums, offsets and leader epochs), and that each partition's records
up to its end are in its chain or in tails, if it is tailed. What retention has taken since is not
missing.

A keeper may write cuts meanwhile. What is found wrong counts only if a `CUT` read afterwards still keeps the
cut, and a chain read afterwards still lacks the records. Objects of cuts and tails that no kept cut names
are orphans once a later cut is there, since later cuts name only what the one before named, and what is new.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.inspect.cuts_repair import is_cut_lost
from service.inspect.fsck_report import CutsReport, FsckReport
from service.remote.format.coverage import Span, cover
from service.remote.format.cut_codec import (
    METADATA_TOPIC_ID,
    Cut,
    CutRef,
    Cuts,
    ErasureRef,
    PartitionCut,
    Place,
    TailRef,
)
from service.remote.format.keys import (
    CUT_NAME,
    CUT_PREFIX,
    TAIL_PREFIX,
    CutKey,
    HeadKey,
    ManifestKey,
    TailKey,
    manifest_prefix,
    parse_key,
    partition_prefix,
)
from service.remote.format.manifest import Manifest
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.tail_object import TailFooter
from service.remote.reading.object_reader import open_chain, open_published
from service.remote.reading.tail_records import read_section
from service.remote.reading.tails import open_cuts, open_named_cut, open_tail
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore

_AHEAD: Final = 64
"""Most tails that are being checked, or checked and not yet reported."""


class ChainEnd(NamedTuple):
    """Bounds of a partition's chain, the end exclusive; `last_epoch` is its last batch's, -1 without one."""

    start: int
    end: int
    last_epoch: int


NO_CHAIN: Final = ChainEnd(0, 0, -1)


class _Doubt(NamedTuple):
    where: str
    what: str
    cut: int


class CutCheck:
    """The check of a bucket's cuts. `ends` are the chains as read before; `topic_id` limits it to a topic."""

    def __init__(
        self,
        store: ObjectStore,
        report: FsckReport,
        owners: Collection[str] | None,
        ends: Mapping[Place, ChainEnd],
        topic_id: UUID | None,
        pool: Executor | None,
    ) -> None:
        self._store = store
        self._report = report
        self._owners = owners
        self._ends = ends
        self._topic_id = topic_id
        self._pool = pool
        self._doubts: list[_Doubt] = []
        self._tails: dict[str, TailRef] = {}
        self._broken: dict[str, str] = {}
        """tails that cannot be read, and why"""
        self._spans: dict[Place, list[Span]] = {}
        self._snapshots: dict[MetadataRef, str] = {}
        """snapshots of the metadata that were read, and what is wrong with each"""
        self._again: dict[Place, tuple[ChainEnd, ...]] = {}
        self.erasures: tuple[ErasureRef, ...] | None = ()
        """orders to erase keys that `CUT` lists; None where it cannot be read"""

    def run(self) -> None:
        """Check everything. Errors are in the report."""
        try:
            cuts = open_cuts(self._store, self._owners)
        except ObjectNotFound:
            if is_cut_lost(self._store):
                self._report.error(CUT_NAME, "it is gone, and there are cuts")
            return
        except CorruptionError as e:
            self.erasures = None
            self._report.error(CUT_NAME, str(e))
            return
        self.erasures = cuts.erasures
        newest, complete = cuts.newest, cuts.complete
        self._report.cuts = CutsReport(
            len(cuts.kept), newest.cut, newest.at_ms, complete.cut if complete else None
        )
        for ref in cuts.kept:
            self._cut(ref)
        self._report.cuts.tails = len(self._tails)
        self._report.cuts.tail_bytes = sum(ref.size for ref in self._tails.values())
        self._confirm()
        if self._topic_id is None:
            self._orphans(cuts)

    def _cut(self, ref: CutRef) -> None:
        """Check one cut, then forget its document."""
        try:
            cut = open_named_cut(self._store, ref, self._owners)
        except (ObjectNotFound, CorruptionError) as e:
            self._doubts.append(_Doubt(ref.key, str(e), ref.cut))
            return
        self._open_tails(cut)
        named = {tail.key for tail in cut.tails}
        for key in sorted(named & self._broken.keys()):
            self._doubts.append(_Doubt(key, self._broken[key], ref.cut))
        if self._topic_id is None:
            self._metadata(ref, cut, named)
        for topic_id, rows in cut.topics.items():
            if self._topic_id in (None, topic_id):
                for partition, row in enumerate(rows):
                    self._partition(ref, (topic_id, partition), row, named)

    def _metadata(self, ref: CutRef, cut: Cut, named: Collection[str]) -> None:
        wrong = self._snapshots.get(cut.metadata)
        if wrong is None:
            wrong = self._snapshots[cut.metadata] = self._why_wrong(cut.metadata)
        if wrong:
            self._doubts.append(_Doubt(cut.metadata.key, wrong, ref.cut))
        start, end = cut.metadata.end_offset, cut.metadata_end
        reaches = cover(self._spans_of((METADATA_TOPIC_ID, 0), named), start, end).reaches
        if reaches < end:
            what = f"metadata from {reaches} to {end - 1} is in no tail"
            self._doubts.append(_Doubt(ref.key, what, ref.cut))

    def _why_wrong(self, metadata: MetadataRef) -> str:
        try:
            data = self._store.get(metadata.key, max_size=metadata.size)
        except (ObjectNotFound, CorruptionError) as e:
            return str(e)
        if len(data) != metadata.size or crc32c(data) != metadata.crc32c:
            return f"{len(data)} bytes with another checksum than the cut's"
        return ""

    # -- partitions

    def _partition(self, ref: CutRef, place: Place, row: PartitionCut, named: Collection[str]) -> None:
        if not row.is_promised or (row.waits and not ref.is_complete):
            return
        wanted = row.end
        known = self._ends.get(place, NO_CHAIN)
        reaches = self._reaches(place, row, known, wanted, named)
        if reaches >= wanted:
            return
        for end in self._chains(place, row):
            reaches = max(reaches, self._reaches(place, row, end, wanted, named))
        if reaches < wanted:
            what = f"cut {ref.cut}: offsets {reaches} to {wanted - 1} are neither in the chain nor in a tail"
            self._doubts.append(_Doubt(partition_prefix(*place), what, ref.cut))

    def _reaches(
        self, place: Place, row: PartitionCut, chain: ChainEnd, wanted: int, named: Collection[str]
    ) -> int:
        start = max(chain.end, row.start)
        if start >= wanted:
            return start
        last_epoch = chain.last_epoch if chain.end >= row.start else -1
        spans = self._spans_of(place, named)
        return cover(
            (one for one in spans if one.section.last_batch_epoch >= last_epoch),
            start,
            max(start, min(wanted, row.tailed_end)),
        ).reaches

    def _spans_of(self, place: Place, named: Collection[str]) -> Iterator[Span]:
        return (span for span in self._spans.get(place, ()) if span.tail in named)

    def _chains(self, place: Place, row: PartitionCut) -> tuple[ChainEnd, ...]:
        """Return the chains that may have the records, by what lies there now.

        HEAD's; that of the next version, as HEAD is written a moment after the commit; and the one that the
        cut saw, as the archive may have been given up since.
        """
        if place not in self._again:
            self._again[place] = tuple(self._read_chains(place, row))
        return self._again[place]

    def _read_chains(self, place: Place, row: PartitionCut) -> Iterator[ChainEnd]:
        version = 0
        try:
            chain = open_published(self._store, HeadKey(*place))
        except (ObjectNotFound, CorruptionError):
            return  # the partition's own check names it
        if chain is not None:
            version = chain.head.version
            yield chain_end(chain.manifest)
        for info in self._store.list(manifest_prefix(*place)):
            parsed = parse_key(info.key)
            if isinstance(parsed, ManifestKey) and parsed.version in (version + 1, row.version):
                try:
                    yield chain_end(open_chain(self._store, info.key).manifest)
                except (ObjectNotFound, CorruptionError):
                    continue

    # -- tails

    def _open_tails(self, cut: Cut) -> None:
        """Check those tails of the cut that no cut before had."""
        new = [ref for ref in cut.tails if ref.key not in self._tails]
        self._tails.update((ref.key, ref) for ref in new)
        pending: deque[tuple[TailRef, Future[_ProvedTail]]] = deque()
        for ref in new:
            work = partial(_prove_tail, self._store, ref, self._owners, self._topic_id, self._report.deep)
            if self._pool is None:
                self._add(ref, work())
                continue
            pending.append((ref, self._pool.submit(work)))
            if len(pending) >= _AHEAD:
                self._add(pending[0][0], pending.popleft()[1].result())
        for ref, future in pending:
            self._add(ref, future.result())

    def _add(self, ref: TailRef, found: _ProvedTail) -> None:
        self._report.checked_bytes += found.checked_bytes
        if found.wrong:
            self._broken[ref.key] = found.wrong
        footer = found.footer
        if footer is None:
            return
        for section in footer.sections:
            place = section.topic_id, section.partition
            self._spans.setdefault(place, []).append(Span(ref.key, footer.level, section))

    # -- what counts

    def _confirm(self) -> None:
        """Report the doubts of cuts that a `CUT` read now still keeps."""
        if not self._doubts:
            return
        try:
            kept = {ref.cut for ref in open_cuts(self._store, self._owners).kept}
        except (ObjectNotFound, CorruptionError) as e:
            self._report.error(CUT_NAME, str(e))
            return
        told: set[tuple[str, str]] = set()
        for where, what, cut in self._doubts:
            if cut in kept and (where, what) not in told:
                told.add((where, what))
                self._report.error(where, what)

    def _orphans(self, cuts: Cuts) -> None:
        """Report the objects that no kept cut names, and that no later cut will name.

        Cuts that cannot be read may name tails: then none is called an orphan.
        """
        names_all = not any(isinstance(parse_key(one.where), CutKey) for one in self._doubts)
        named = {ref.key for ref in cuts.kept} | self._tails.keys()
        for prefix in (CUT_PREFIX, TAIL_PREFIX):
            for info in self._store.list(prefix):
                parsed = parse_key(info.key)
                if not isinstance(parsed, (CutKey, TailKey)):
                    self._report.note(info.key, "not a key of this layout")
                elif info.key not in named and parsed.cut < cuts.newest.cut:
                    if names_all or isinstance(parsed, CutKey):
                        self._report.orphan(info.key, info.size)
                elif (ref := self._tails.get(info.key)) is not None and ref.size != info.size:
                    self._report.error(info.key, f"the object has {info.size} bytes, the cut says {ref.size}")


class _ProvedTail(NamedTuple):
    """Result of the check of one tail; `wrong` says what is wrong with it, empty for nothing."""

    footer: TailFooter | None
    checked_bytes: int
    wrong: str = ""


def _prove_tail(
    store: ObjectStore,
    ref: TailRef,
    owners: Collection[str] | None,
    topic_id: UUID | None,
    deep: bool,
) -> _ProvedTail:
    checked = 0
    footer: TailFooter | None = None
    try:
        footer = open_tail(store, ref, owners)
        if deep:
            for section in footer.sections:
                if topic_id in (None, section.topic_id):
                    for run in read_section(store, ref.key, section):
                        checked += len(run.data)
    except (ObjectNotFound, CorruptionError) as e:
        return _ProvedTail(footer, checked, str(e))
    return _ProvedTail(footer, checked)


def chain_end(manifest: Manifest) -> ChainEnd:
    """Return where a chain ends."""
    return ChainEnd(manifest.start_offset, manifest.end_offset, manifest.last_epoch)
