"""The chain of a restored partition, over random pasts of the lost one: what it has, and nothing above."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

import pytest

from service.inspect.restore_chain import NewVersion, heir_chain, next_manifest
from service.remote.format.keys import SegmentKey, segment_key
from service.remote.format.manifest import (
    Manifest,
    ManifestLimits,
    ManifestPage,
    PageRef,
    SegmentEntry,
    live_segments,
)
from service.remote.format.manifest_codec import decode_manifest, encode_manifest, encode_page
from service.remote.format.stamp import Stamp, Writer

TOPIC = UUID(int=7)
LIMITS = ManifestLimits(entries=3, page_refs=2)
STAMP = Stamp(5, Writer(0, UUID(int=9)))


class Past:
    """One partition's chain, version after version."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.pages: dict[str, ManifestPage] = {}
        self.manifest = Manifest("lost", TOPIC, "events", 0)
        self.end = source.randrange(3) * 5
        self.ids = 0

    def load(self, ref: PageRef) -> ManifestPage:
        return self.pages[ref.key]

    def new_uuid(self) -> UUID:
        self.ids += 1
        return UUID(int=self.ids)

    def _store(self, manifest: Manifest) -> None:
        self.manifest = replace(manifest, stored_key=manifest.key(self.new_uuid()))

    def append(self) -> None:
        entries = []
        for _ in range(self.source.randint(1, 4)):
            size = self.source.randint(1, 9)
            key = segment_key(SegmentKey(TOPIC, 0, self.end, self.end + size - 1, 1, self.new_uuid()))
            entries.append(
                SegmentEntry(
                    self.end, self.end + size - 1, 100, 90, 1, self.end, ((1, self.end),), key, 90, 1
                )
            )
            self.end += size
        change = self.manifest.append(
            entries, leader_epoch=1, new_uuid=self.new_uuid, encode_page=encode_page, limits=LIMITS
        )
        self.pages.update({ref.key: page for page, ref, _ in change.pages})
        self._store(change.manifest)

    def drop(self) -> None:
        offset = self.source.randint(self.manifest.start_offset, self.manifest.end_offset)
        self._store(self.manifest.drop_before(offset, leader_epoch=1, load=self.load).manifest)

    def rewrite(self) -> None:
        """Merge a run of the manifest's own segments, or of a page's."""
        runs = [list(self.manifest.entries)]
        for one in self.manifest.pages:
            page = self.load(one)
            if page.level == 0:
                runs.append([child for child in page.children if isinstance(child, SegmentEntry)])
        run = [one for one in self.source.choice(runs) if one.last_offset >= self.manifest.start_offset]
        if len(run) < 2:
            return
        first = self.source.randrange(len(run) - 1)
        run = run[first : self.source.randint(first + 2, len(run))]
        base, last = run[0].base_offset, run[-1].last_offset
        key = segment_key(SegmentKey(TOPIC, 0, base, last, 1, self.new_uuid()))
        generation = 1 + max(one.generation for one in run)
        made = run[0]._replace(last_offset=last, key=key, leader_epochs=((1, base),), generation=generation)
        change = self.manifest.replace_run(
            base, last, [made],
            leader_epoch=1, load=self.load, new_uuid=self.new_uuid, encode_page=encode_page,
        )  # fmt: skip
        self.pages.update({ref.key: page for page, ref, _ in change.pages})
        self._store(change.manifest)

    def step(self) -> None:
        if self.manifest.children and self.source.random() < 0.3:
            self.drop()
        else:
            self.append()

    def live(self, manifest: Manifest) -> list[SegmentEntry]:
        return list(live_segments(manifest, self.load))


@pytest.mark.parametrize("seed", range(200))
def test_a_chain_is_the_cuts_with_what_follows_up_to_its_end(seed: int) -> None:
    source = random.Random(seed)
    past = Past(source)
    for _ in range(source.randint(1, 9)):
        past.step()
    of_cut = past.manifest
    for _ in range(source.randint(0, 6)):
        past.step()
    newest = past.manifest
    end = source.randint(of_cut.end_offset, newest.end_offset + 3)
    start = source.randint(of_cut.start_offset, max(of_cut.start_offset, end))
    heir = heir_chain(of_cut, newest, Manifest("lost", TOPIC, "events", 0), start, end, past.load)

    numbers = NewVersion("heir", newest.version + 1, 2_000, STAMP)
    change = next_manifest(heir, newest, numbers, past.new_uuid, encode_page)
    past.pages.update({ref.key: page for page, ref, _ in change.pages})
    found = past.live(change.manifest)
    assert decode_manifest(encode_manifest(change.manifest)).end_offset == change.manifest.end_offset
    assert (change.manifest.version, change.manifest.cluster_id) == (newest.version + 1, "heir")

    of_both = {one.key: one for one in (*past.live(of_cut), *past.live(newest))}
    assert all(one.key in of_both and one.last_offset < end for one in found)
    assert all(after.base_offset == one.last_offset + 1 for one, after in pairwise(found))
    wanted = [one for one in past.live(of_cut) if one.last_offset >= start]
    assert [one for one in found if one in wanted] == wanted
    if found:
        at = found[-1].last_offset + 1
        behind = [one for one in past.live(newest) if one.base_offset == at]
        assert all(one.last_offset >= end for one in behind)
        assert (heir.overlap is None) == (not behind or at >= end)
    if start > heir.end_offset:
        assert not found, "a log that begins behind its archive has none"
    if heir.is_published:
        assert found == past.live(newest)
        assert change.manifest.start_offset == newest.start_offset


def test_records_of_a_later_leader_are_not_taken_for_the_cuts() -> None:
    """Epoch 4 began by an unclean election at offset 120, after the cut, which ends at 150."""

    def entry(first: int, last: int, *epochs: tuple[int, int]) -> SegmentEntry:
        key = segment_key(SegmentKey(TOPIC, 0, first, last, epochs[-1][0], UUID(int=first)))
        return SegmentEntry(first, last, 100, 90, 1, last, epochs, key, 90, 1)

    of_cut = replace(Manifest("lost", TOPIC, "events", 0), entries=(entry(0, 99, (3, 0)),))
    empty = Manifest("lost", TOPIC, "events", 0)

    def taken(*later: SegmentEntry) -> tuple[list[int], bool]:
        newest = replace(of_cut, entries=(*of_cut.entries, *later))
        chain = heir_chain(of_cut, newest, empty, 0, 150, lambda ref: pytest.fail(str(ref)), epoch=3)
        return [one.base_offset for one in chain.following], chain.overlap is not None

    assert taken(entry(100, 129, (3, 100), (4, 120)), entry(130, 170, (4, 130))) == ([], False)
    assert taken(entry(100, 119, (3, 100)), entry(120, 170, (4, 120))) == ([100], False)
    assert taken(entry(100, 129, (3, 100)), entry(130, 170, (3, 130), (4, 150))) == ([100], True)


@pytest.mark.parametrize("seed", range(200))
def test_a_chain_that_was_rewritten_since_the_cut_lacks_nothing_below_the_end(seed: int) -> None:
    source = random.Random(seed)
    past = Past(source)
    for _ in range(source.randint(1, 6)):
        past.step()
    of_cut = past.manifest
    for _ in range(source.randint(1, 6)):
        past.append()
        past.rewrite()
    newest = past.manifest
    end = source.randint(of_cut.end_offset, newest.end_offset)
    start = of_cut.start_offset
    heir = heir_chain(of_cut, newest, Manifest("lost", TOPIC, "events", 0), start, end, past.load)

    numbers = NewVersion("heir", newest.version + 1, 2_000, STAMP)
    change = next_manifest(heir, newest, numbers, past.new_uuid, encode_page)
    past.pages.update({ref.key: page for page, ref, _ in change.pages})
    found = past.live(change.manifest)
    assert decode_manifest(encode_manifest(change.manifest)).end_offset == change.manifest.end_offset
    assert (heir.segments, heir.size_bytes) == (len(found), sum(one.size for one in found))
    assert all(after.base_offset == one.last_offset + 1 for one, after in pairwise(found))
    assert all(one.last_offset < end for one in found)
    if found and of_cut.children:
        assert found[0].base_offset <= start
    if of_cut.children:
        assert heir.end_offset >= of_cut.end_offset
    at = heir.end_offset
    if found and at < end:
        assert heir.overlap is not None
        assert heir.overlap.base_offset <= at
        assert heir.overlap.last_offset >= end - 1
