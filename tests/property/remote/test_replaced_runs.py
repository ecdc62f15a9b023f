"""A run of segments is replaced at every place of a chain, which then is a plain list with others there."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.remote.format.keys import SegmentKey, segment_key
from service.remote.format.manifest import (
    KeyOwner,
    Manifest,
    ManifestLimits,
    ManifestPage,
    ManifestReplacement,
    PageRef,
    SegmentEntry,
    live_segments,
)
from service.remote.format.manifest_codec import decode_manifest, decode_page, encode_manifest, encode_page
from service.remote.format.run_check import run_epochs, segment_epochs

TOPIC, OTHER = UUID(int=5), UUID(int=6)
TINY = ManifestLimits(entries=4, page_refs=2)
"""Sixty segments have pages of three levels."""


@dataclass
class Chain:
    """A manifest whose pages are in a dictionary, and the live segments as a list."""

    limits: ManifestLimits = TINY
    manifest: Manifest = field(default_factory=lambda: Manifest("c", TOPIC, "t", 0))
    pages: dict[str, bytes] = field(default_factory=dict)
    model: list[SegmentEntry] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(4))
    decoded: dict[PageRef, ManifestPage] = field(default_factory=dict)

    def new_uuid(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128))

    def load(self, ref: PageRef) -> ManifestPage:
        if ref not in self.decoded:
            self.decoded[ref] = decode_page(self.pages[ref.key], ref, TOPIC, 0)
        return self.decoded[ref]

    def entry(
        self, base: int, last: int, epochs: tuple[tuple[int, int], ...], generation: int
    ) -> SegmentEntry:
        newest = self.rng.randint(-1, 1000)
        key = segment_key(SegmentKey(TOPIC, 0, base, last, epochs[-1][0], self.new_uuid()))
        size = self.rng.randint(60, 900)
        oldest = self.rng.randint(-1, newest)
        return SegmentEntry(base, last, size, 50, newest, base, epochs, key, 55, 1, oldest, generation)

    def append(self, count: int) -> None:
        for _ in range(count):
            before = self.model[-1] if self.model else None
            end = self.manifest.end_offset
            last = end + self.rng.randint(0, 9)
            epoch, first = (
                before.leader_epochs[-1] if before is not None else (self.manifest.last_epoch + 1, end)
            )
            epochs: tuple[tuple[int, int], ...] = ((epoch, first),)
            if before is not None and self.rng.random() < 0.3:
                epochs = ((epoch + 1, end),)
            if self.rng.random() < 0.3 and last > end:
                epochs = (*epochs, (epochs[-1][0] + 2, last))
            added = self.entry(end, last, epochs, 0)
            change = self.manifest.append(
                [added], leader_epoch=1, new_uuid=self.new_uuid, encode_page=encode_page, limits=self.limits
            )
            self.pages.update((ref.key, data) for _, ref, data in change.pages)
            self.manifest = change.manifest
            self.model.append(added)

    def drop_before(self, offset: int) -> None:
        drop = self.manifest.drop_before(offset, leader_epoch=1, load=self.load)
        gone = [one for one in self.model if one.last_offset < drop.manifest.start_offset]
        assert list(drop.segments) == gone
        del self.model[: len(gone)]
        self.manifest = drop.manifest

    def groups(self) -> list[list[SegmentEntry]]:
        """Return the live segments of each page of level 0, then those of the manifest."""
        found: list[list[SegmentEntry]] = []

        def walk(children: tuple[SegmentEntry | PageRef, ...]) -> None:
            for ref in children:
                if isinstance(ref, PageRef):
                    walk(self.load(ref).children)
            own = [one for one in children if isinstance(one, SegmentEntry)]
            live = [one for one in own if one.last_offset >= self.manifest.start_offset]
            if live:
                found.append(live)

        walk(self.manifest.children)
        return found

    def others(self, run: list[SegmentEntry], cuts: list[int]) -> list[SegmentEntry]:
        """Return segments to take the place of `run`, with those borders of it that `cuts` counts."""
        generation = 1 + max(one.generation for one in run)
        epochs = run_epochs(run)
        made = []
        for begin, end in pairwise([0, *cuts, len(run)]):
            base, last = run[begin].base_offset, run[end - 1].last_offset
            made.append(self.entry(base, last, segment_epochs(epochs, base, last), generation))
        return made

    def replaced(self, run: list[SegmentEntry], made: list[SegmentEntry]) -> ManifestReplacement:
        return self.manifest.replace_run(
            run[0].base_offset, run[-1].last_offset, made,
            leader_epoch=7, load=self.load, new_uuid=self.new_uuid, encode_page=encode_page,
        )  # fmt: skip

    def take(self, change: ManifestReplacement, run: list[SegmentEntry], made: list[SegmentEntry]) -> None:
        """Check the change against the list, and make it."""
        before = self.manifest
        self.pages.update((ref.key, data) for _, ref, data in change.pages)
        after = change.manifest
        assert (after.version, after.parent_version, after.leader_epoch) == (
            before.version + 1,
            before.version,
            7,
        )
        kept = ("start_offset", "end_offset", "last_epoch", "dropped_segments", "dropped_bytes")
        assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
        assert list(change.dropped) == run
        old, new = list(change.dropped_pages), [ref for _, ref, _ in change.pages]
        assert [(ref.level, ref.base_offset, ref.last_offset) for ref in new] == [
            (ref.level, ref.base_offset, ref.last_offset) for ref in old
        ]
        assert [ref.level for ref in new] == sorted({ref.level for ref in new}), (
            "the lower one is written first"
        )
        assert set(change.keys) == {*(one.key for one in run), *(ref.key for ref in old)}
        at = self.model.index(run[0])
        self.model[at : at + len(run)] = made
        self.manifest = after
        self.check()

    def check(self) -> None:
        manifest = self.manifest
        assert decode_manifest(encode_manifest(manifest)) == manifest
        assert list(live_segments(manifest, self.load)) == self.model
        sums = (len(self.model), sum(one.size for one in self.model))
        assert (manifest.segments, manifest.size_bytes) == sums
        newest = max((one.max_timestamp for one in self.model), default=-1)
        assert manifest.max_timestamp(self.load) == newest
        for one in self.model:
            offset = max(one.base_offset, manifest.start_offset)
            assert manifest.find(offset, self.load) == manifest.find(one.last_offset, self.load) == one


def fresh(segments: int, start: int) -> Chain:
    chain = Chain()
    chain.append(segments)
    chain.drop_before(start)
    return chain


def copy_of(chain: Chain) -> Chain:
    return Chain(
        chain.limits,
        chain.manifest,
        dict(chain.pages),
        list(chain.model),
        random.Random(9),
        dict(chain.decoded),
    )


@pytest.mark.parametrize(
    ("start", "levels"),
    [
        (0, [2, 2, 1, 1, 0, 0]),
        (4, [2, 2, 1, 1, 0, 0]),
        (7, [2, 2, 1, 1, 0, 0]),
        (40, [2, 2, 1, 1, 0, 0]),
        (83, [2, 1, 1, 0, 0]),
        (171, [1, 1, 0, 0]),
        (230, [1, 0, 0]),
    ],
)
def test_every_run_of_every_page_and_of_the_manifest_is_replaced(start: int, levels: list[int]) -> None:
    """The start lies at a border, within a segment, within pages of several levels: what is masked below it
    stays."""
    whole = fresh(60, start)
    assert [ref.level for ref in whole.manifest.pages] == levels
    for group in range(len(whole.groups())):
        live = whole.groups()[group]
        for first in range(len(live)):
            for end in range(first + 1, len(live) + 1):
                chain = copy_of(whole)
                run = live[first:end]
                made = chain.others(run, [])
                chain.take(chain.replaced(run, made), run, made)


def test_a_run_that_reaches_into_the_next_page_is_none() -> None:
    chain = fresh(60, 0)
    for one, after in pairwise(chain.groups()):
        run = [one[-1], after[0]]
        with pytest.raises(ValueError, match="not whole segments of one page"):
            chain.replaced(run, chain.others(run, []))


def test_segments_masked_below_the_start_are_no_run() -> None:
    chain = Chain()
    chain.append(30)
    first, second, third = chain.model[:3]
    chain.drop_before(second.base_offset)
    assert chain.manifest.dropped_segments == 1
    for run in ([first], [first, second]):
        with pytest.raises(ValueError, match="lies below the start"):
            chain.replaced(run, chain.others(run, []))
    run = [second, third]
    made = chain.others(run, [])
    chain.take(chain.replaced(run, made), run, made)


@pytest.mark.parametrize("shift", [(-1, 0), (1, 0), (0, -1), (0, 1), (0, 10_000), (10_000, 10_000)])
def test_a_run_whose_borders_are_none_of_the_chain_is_refused(shift: tuple[int, int]) -> None:
    chain = Chain(ManifestLimits())
    chain.append(9)
    run = [one for one in chain.model if one.base_offset != one.last_offset][2:3]
    base, last = run[0].base_offset + shift[0], run[0].last_offset + shift[1]
    with pytest.raises(ValueError, match="not whole segments"):
        chain.manifest.replace_run(
            base, last, chain.others(run, []),
            leader_epoch=1, load=chain.load, new_uuid=chain.new_uuid, encode_page=encode_page,
        )  # fmt: skip


def test_a_page_of_another_partition_is_replaced_by_an_own_one() -> None:
    """A clone's first manifest names pages of its source; what the new page keeps stays the source's."""
    source = Chain()
    source.append(30)
    place = KeyOwner(TOPIC, 0)
    refs = tuple(ref._replace(owner=place) for ref in source.manifest.pages)
    entries = tuple(one._replace(owner=place) for one in source.manifest.entries)
    clone = Manifest("c", OTHER, "t", 3, 1, 0, 1, source.manifest.start_offset, refs, entries)
    pages = dict(source.pages)

    def load(ref: PageRef) -> ManifestPage:
        return decode_page(pages[ref.key], ref, OTHER, 3)

    run = [one._replace(owner=place) for one in source.groups()[0][1:3]]
    base, last = run[0].base_offset, run[-1].last_offset
    epochs = segment_epochs(run_epochs(run), base, last)
    key = segment_key(SegmentKey(OTHER, 3, base, last, 9, UUID(int=1)))
    made = run[0]._replace(last_offset=last, leader_epochs=epochs, key=key, generation=1, owner=None)
    change = clone.replace_run(
        base, last, [made], leader_epoch=9, load=load, new_uuid=source.new_uuid, encode_page=encode_page
    )
    pages.update((ref.key, data) for _, ref, data in change.pages)
    assert list(change.dropped) == run
    assert change.keys == (), "what belongs to the source is not the clone's to delete"
    assert all(
        ref.owner is None and ref.key.startswith(f"data/{OTHER}/3/page/") for _, ref, _ in change.pages
    )
    found = list(live_segments(decode_manifest(encode_manifest(change.manifest)), load))
    wanted = [
        one._replace(owner=place) for one in source.model if one.base_offset not in range(base, last + 1)
    ]
    assert [one for one in found if one.owner is not None] == wanted
    assert [one for one in found if one.owner is None] == [made]


actions = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 9)),
    st.tuples(st.just("drop"), st.integers(0, 40)),
    st.tuples(st.just("replace"), st.integers(0, 1 << 30)),
    st.tuples(st.just("replace"), st.integers(0, 1 << 30)),
)


@given(
    st.lists(actions, max_size=25),
    st.tuples(st.integers(1, 6), st.integers(2, 4)),
    st.randoms(use_true_random=False),
)
@settings(max_examples=80, deadline=None)
def test_a_chain_that_grows_shrinks_and_is_rewritten_is_as_a_list(
    todo: list[tuple[str, int]], limits: tuple[int, int], rng: random.Random
) -> None:
    chain = Chain(ManifestLimits(*limits), rng=rng)
    chain.append(20)
    for what, number in todo:
        groups = chain.groups()
        if what == "append":
            chain.append(number)
        elif what == "drop":
            chain.drop_before(chain.manifest.start_offset + number)
        elif groups:
            live = groups[number % len(groups)]
            first = rng.randrange(len(live))
            run = live[first : rng.randint(first + 1, len(live))]
            cuts = sorted(rng.sample(range(1, len(run)), rng.randrange(len(run))))
            made = chain.others(run, cuts)
            chain.take(chain.replaced(run, made), run, made)
        chain.check()
