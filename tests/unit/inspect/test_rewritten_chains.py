"""Rewritten chains before `firn fsck`, `firn sweep` and `firn repair`: proved, kept, made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from service.base.threads import SystemThreads
from service.inspect.fsck import fsck
from service.inspect.rewrite_check import check_rewrites
from service.records.decode import iter_records
from service.remote.format.keys import HeadKey, SegmentKey, segment_key
from service.remote.format.manifest import (
    Manifest,
    ManifestLimits,
    ManifestPage,
    PageRef,
    SegmentEntry,
    live_segments,
)
from service.remote.format.manifest_codec import encode_manifest, encode_page
from service.remote.format.rewrite_origin import ERASE, MERGE, RewriteOrigin
from service.remote.reading.object_reader import open_chain, open_page
from service.remote.reading.reader import RemoteReader
from service.remote.stores.memory_store import MemoryStore
from tests.support.rewritten import Rewriter, publish_version, without_offsets
from tests.support.world import WORLD
from tests.unit.remote.archive import TIP, TOPIC_ID, Archive

KEY = HeadKey(TOPIC_ID, TIP.partition)


@pytest.fixture
def archive() -> Archive:
    """Twelve segments of two batches of five records each, three to a page."""
    made = Archive(MemoryStore(SystemThreads()), limits=ManifestLimits(entries=3, page_refs=2))
    made.producer_snapshot = b""
    for number in range(12):
        made.add_segment(2, epoch=number // 5)
    return made


def offsets_of(archive: Archive, manifest_key: str, start: int = 0) -> list[int]:
    """The offsets that a reader of the cold tier sees from `start` on."""
    reader = RemoteReader(archive.store, WORLD, threads=1)
    try:
        found, at = [], start
        while at < 120:
            got = reader.read(TIP, manifest_key, at, 700).result(20)
            found += [
                one.offset for data in got.data for one in iter_records(bytes(data)) if one.offset >= at
            ]
            assert got.next_offset > at
            at = got.next_offset
        return found
    finally:
        reader.close()


def errors_of(archive: Archive) -> list[str]:
    return [
        what
        for where, what in fsck(archive.store).errors
        if not where.endswith(".json")  # the bucket has this one partition alone
    ]


def test_a_merged_run_is_proved_and_read_as_before(archive: Archive) -> None:
    rewriter = Rewriter(archive.store, KEY)
    done = rewriter.merge(30, 59)
    report = fsck(archive.store)
    assert errors_of(archive) == []
    [row] = report.partitions
    assert (row.segments, row.records, report.rewritten) == (10, 120, 1)
    assert {one.key for one in report.orphans} >= {one.key for one in done.old}
    assert done.manifest is not None
    assert offsets_of(archive, rewriter.manifest().stored_key or "") == list(range(120))


@pytest.mark.parametrize(
    "gone",
    [
        {30, 31, 32, 33, 34},
        {55, 56, 57, 58, 59},
        {30, 34, 59},
        set(range(30, 60)) - {41},
        set(range(30, 60)) - {59},
        set(range(30, 60)),
        set(range(120)),
    ],
    ids=lambda gone: f"{len(gone)}-from-{min(gone)}",
)
def test_an_erased_run_is_proved_and_read_with_holes(archive: Archive, gone: set[int]) -> None:
    rewriter = Rewriter(archive.store, KEY)
    runs = [(30, 59)] if len(gone) <= 30 else [(0, 29), (30, 59), (60, 89), (90, 119)]
    for base, last in runs:
        rewriter.erase(base, last, without_offsets(*gone))
    report = fsck(archive.store)
    assert errors_of(archive) == []
    [row] = report.partitions
    assert (row.start_offset, row.end_offset, row.records) == (0, 120, 120 - len(gone))
    key = rewriter.manifest().stored_key or ""
    for start in (0, 29, 30, 33, 45, 59, 60, 119):
        assert offsets_of(archive, key, start) == [n for n in range(start, 120) if n not in gone]


def test_a_run_is_rewritten_again_and_again(archive: Archive) -> None:
    rewriter = Rewriter(archive.store, KEY)
    rewriter.merge(30, 59)
    rewriter.erase(30, 59, without_offsets(44))
    rewriter.merge(0, 29)
    rewriter.erase(0, 29, without_offsets(*range(30)))
    archive.manifest = replace(rewriter.manifest())
    report = fsck(archive.store)
    assert errors_of(archive) == []
    [row] = report.partitions
    assert (row.version, row.segments, row.records) == (16, 8, 89)
    assert [one.generation for one in rewriter.segments()] == [2, 2, *[0] * 6]


ONE = UUID(int=77)


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        ({"rewrite": RewriteOrigin(ONE, MERGE, 3, 31)}, "30 records, made by a rewrite of kind merge of 3"),
        ({"rewrite": RewriteOrigin(ONE, MERGE, 3, 29)}, "30 records, made by a rewrite of kind merge of 3"),
        ({"rewrite": RewriteOrigin(ONE, ERASE, 3, 29)}, "30 records, made by a rewrite of kind erase of 3"),
        ({"rewrite": RewriteOrigin(ONE, "compact", 3, 29)}, "made by a rewrite of kind compact"),
        ({"rewrite": None}, "of generation 1, and says of no rewrite"),
    ],
)
def test_a_rewrite_that_lost_or_made_records_is_found(
    archive: Archive, forged: dict[str, object], reason: str
) -> None:
    rewriter = Rewriter(archive.store, KEY)
    rewriter.forged = forged
    done = rewriter.merge(30, 59)
    [found] = [one for one in fsck(archive.store).errors if one.where == done.entry.key]
    assert reason in found.what


def test_batches_of_a_rewritten_segment_lie_where_their_epochs_do(archive: Archive) -> None:
    """Segments 3 to 5 are of epochs 0, 0 and 1, which begins at 50."""
    rewriter = Rewriter(archive.store, KEY)
    rewriter.forged = {"leader_epochs": ((0, 0), (1, 45))}
    done = rewriter.erase(30, 59, without_offsets(50), commits=False)
    lone = fsck_of_a_lone_chain(archive, rewriter, done.entry)
    assert "the batch at offset 45 is of leader epoch 0, not of 1" in lone


def fsck_of_a_lone_chain(archive: Archive, rewriter: Rewriter, entry: SegmentEntry) -> str:
    """What fsck says of a chain of this segment alone."""
    alone = {"entries": (entry,), "pages": (), "start_offset": entry.base_offset, "parent_key": None}
    publish_version(rewriter, **alone)
    [found] = [one for one in fsck(archive.store).errors if one.where == entry.key]
    return found.what


def test_epochs_without_a_batch_stay_where_all_of_their_records_are_erased(archive: Archive) -> None:
    rewriter = Rewriter(archive.store, KEY)
    done = rewriter.erase(30, 59, without_offsets(*range(50, 60)))
    assert done.entry.leader_epochs == ((0, 30), (1, 50))
    assert errors_of(archive) == []
    rewriter.erase(30, 59, without_offsets(*range(30, 60)))
    assert errors_of(archive) == [], "one empty batch stands for both epochs"


class Lineage:
    """Manifests of a partition, each made from the one before; no objects but them and their pages."""

    def __init__(self, segments: int = 14) -> None:
        self.store = MemoryStore(SystemThreads())
        self.numbers = iter(range(1, 10_000))
        self.newest = Manifest("c", TOPIC_ID, TIP.topic, TIP.partition)
        self.append(*(self.entry(10 * n, 10 * n + 9) for n in range(segments)))

    def uuid(self) -> UUID:
        return UUID(int=next(self.numbers))

    def entry(self, base: int, last: int, generation: int = 0, epoch: int = 2) -> SegmentEntry:
        key = segment_key(SegmentKey(TOPIC_ID, TIP.partition, base, last, 2, self.uuid()))
        epochs = ((epoch, base),)
        return SegmentEntry(base, last, 100, 50, 7, base, epochs, key, 60, 1, generation=generation)

    def load(self, ref: PageRef) -> ManifestPage:
        return open_page(self.store, ref, self.newest)

    def append(self, *entries: SegmentEntry) -> None:
        limits = ManifestLimits(entries=4, page_refs=2)
        change = self.newest.append(
            entries, leader_epoch=2, new_uuid=self.uuid, encode_page=encode_page, limits=limits
        )
        for _, ref, data in change.pages:
            self.store.put(ref.key, data)
        self.publish(change.manifest)

    def replace(self, base: int, last: int, *entries: SegmentEntry) -> None:
        change = self.newest.replace_run(
            base, last, entries,
            leader_epoch=2, load=self.load, new_uuid=self.uuid, encode_page=encode_page,
        )  # fmt: skip
        for _, ref, data in change.pages:
            self.store.put(ref.key, data)
        self.publish(change.manifest)

    def drop_before(self, offset: int) -> None:
        self.publish(self.newest.drop_before(offset, leader_epoch=2, load=self.load).manifest)

    def publish(self, manifest: Manifest) -> None:
        key = manifest.key(self.uuid())
        self.store.put(key, encode_manifest(manifest))
        self.newest = open_chain(self.store, key).manifest

    def forge(self, change: Callable[[list[SegmentEntry]], Sequence[SegmentEntry]]) -> None:
        """Publish a version whose segments are other ones, as no replacement would have it."""
        segments = list(live_segments(self.newest, self.load))
        before = self.newest
        self.publish(
            replace(
                before,
                version=before.version + 1,
                parent_version=before.version,
                parent_key=before.stored_key,
                pages=(),
                entries=tuple(change(segments)),
            )
        )

    def errors(self) -> list[str]:
        found: list[str] = []
        check_rewrites(self.store, self.newest, self.load, lambda where, what: found.append(what))
        return found


def test_a_chain_that_was_rewritten_while_it_moved_is_as_it_may_be() -> None:
    chain = Lineage()
    chain.replace(0, 39, chain.entry(0, 19, 1), chain.entry(20, 39, 1))
    chain.append(chain.entry(140, 149), chain.entry(150, 159), chain.entry(160, 169))
    chain.replace(20, 39, chain.entry(20, 39, 2))
    assert chain.errors() == []
    chain.drop_before(25)
    assert chain.errors() == []
    chain.replace(80, 119, chain.entry(80, 119, 1))
    chain.replace(0 + 120, 159, chain.entry(120, 159, 1))
    assert chain.errors() == [], "the oldest chain ends within the last run"
    chain.drop_before(131)
    assert chain.errors() == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c, s: [c.entry(0, 14, 1), c.entry(15, 39, 1), *s[4:]], "ends where no segment"),
        (lambda c, s: [c.entry(0, 39, 0), *s[4:]], "generation 0, at least 1"),
        (lambda c, s: [c.entry(0, 39, 1, epoch=1), *s[4:]], "leader epochs"),
        (lambda c, s: [*s[:5], c.entry(50, 54, 1), c.entry(55, 59, 1), *s[6:]], "2 segments in place of 1"),
        (lambda c, s: [*s[:13], c.entry(130, 139)], "generation 0, at least 1"),
    ],
)
def test_segments_that_no_rewrite_can_have_left_are_found(
    change: Callable[[Lineage, list[SegmentEntry]], list[SegmentEntry]], reason: str
) -> None:
    chain = Lineage()
    chain.forge(lambda segments: change(chain, segments))
    [found] = chain.errors()
    assert reason in found
    assert "in the place of what manifest 1 has there" in found


def test_a_chain_whose_past_is_gone_or_another_clusters_is_not_compared() -> None:
    chain = Lineage()
    first = chain.newest
    chain.forge(lambda segments: [chain.entry(0, 139, 0)])
    assert len(chain.errors()) == 1
    assert first.stored_key is not None
    chain.store.put(first.stored_key, encode_manifest(replace(first, cluster_id="ancestor")))
    assert chain.errors() == []
    chain.store.put(first.stored_key, b"damaged")
    assert chain.errors() == []
    chain.store.delete([first.stored_key])
    assert chain.errors() == []


def test_an_old_page_that_is_gone_ends_the_comparison() -> None:
    chain = Lineage()
    pages = [ref.key for ref in chain.newest.pages]
    chain.replace(0, 39, chain.entry(0, 39, 1))
    chain.store.delete(pages)
    assert chain.errors() == []


def test_an_error_against_the_older_chain_is_the_reports() -> None:
    """As whoever has both manifests, and all objects, sees it: a generation that does not rise."""
    archive = Archive(MemoryStore(SystemThreads()))
    archive.producer_snapshot = b""
    for _ in range(4):
        archive.add_segment(2)
    rewriter = Rewriter(archive.store, KEY)
    rewriter.merge(0, 19)
    rewriter.forged = {"generation": 1}
    done = rewriter.merge(0, 39, commits=False)
    publish_version(rewriter, entries=(done.entry,))
    [found] = [one for one in fsck(archive.store).errors if one.where == done.entry.key]
    assert found.what == (
        "segment 0 to 39 is of generation 1, at least 2 is needed, in the place of what manifest 5 has there"
    )
