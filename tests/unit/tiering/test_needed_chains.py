"""Chains that kept cuts name: they stay as long as the cut does (T17, T19), and no longer."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.base.types import TopicIdPartition
from service.remote.format.cut_codec import MetadataEnd, decode_cuts, encode_cuts
from service.remote.format.documents import seal
from service.remote.format.keys import SegmentKey, segment_key
from service.tiering.cuts.ports import CutSettings
from service.tiering.shared_objects import TopicsSnapshot
from service.tiering.tasks import Task
from tests.unit.tiering.cut_world import GRACE_MS, TOPIC, CutWorld, Log

EVENTS = UUID(int=7)


class DroppingWorld(CutWorld):
    """A world with a chain of its own, whose metadata are as long as the cluster's."""

    def topics(self) -> TopicsSnapshot:
        return super().topics()._replace(metadata_offset=self.cluster.metadata_end - 1)

    def segments(self) -> set[str]:
        return {key for key in self.keys("data") if key.endswith(".seg")}

    def manifests(self) -> set[str]:
        return {key for key in self.keys("data") if "/manifest/" in key}

    def drop_all(self) -> None:
        """Give the archive up, by a change of the metadata."""
        self.cluster.metadata_end += 1
        self.switch(on=False)
        self.run()

    def pass_on(self, ms: int) -> None:
        self.clock.advance(ms)
        self.run()

    def claim(self) -> None:
        """What the keeper does where it takes no cuts."""
        assert self.manager.cuts is not None
        self.do(self.manager.cuts.claim())

    def cut_without_end(self) -> None:
        """A cut that waits for a segment."""
        self.logs[TOPIC, 0].waits = True
        self.logs[TOPIC, 0].end += 1
        self.round()


@pytest.fixture
def world(tmp_path: Path) -> DroppingWorld:
    world = DroppingWorld(tmp_path, brokers=(1,))
    world.logs = {(TOPIC, 0): Log(1, 5)}
    world.begin()
    replica = world.add(TopicIdPartition(EVENTS, "events", 0))
    world.fill(3, replica)
    world.cluster.metadata_end += 1
    world.run()
    world.round()
    assert (world.numbers(), world.complete()) == ([1], [1])
    assert len(world.segments()) == 3
    return world


def test_a_chain_that_the_newest_complete_cut_names_stays_beyond_the_grace(world: DroppingWorld) -> None:
    segments, manifest = world.segments(), max(world.manifests())
    world.drop_all()
    world.cut_without_end()
    for _ in range(4):
        world.pass_on(GRACE_MS)
        world.round()
        world.sweep()
    assert world.complete() == [1]
    assert world.segments() == segments
    assert manifest in world.manifests()
    world.commit_chain((TOPIC, 0), world.logs[TOPIC, 0].end)
    world.round()
    assert 1 not in world.numbers(), "a newer one is complete, and this one older than the grace"
    world.pass_on(10_000)
    assert not world.segments()


def test_a_deleted_topic_stays_as_long_as_a_kept_cut_names_it(world: DroppingWorld) -> None:
    segments = world.segments()
    world.cluster.metadata_end += 1
    world.delete_topic("events")
    world.run()
    world.cut_without_end()
    for _ in range(4):
        world.pass_on(GRACE_MS)
        world.round()
    assert world.segments() == segments
    world.commit_chain((TOPIC, 0), world.logs[TOPIC, 0].end)
    world.round()
    world.pass_on(10_000)
    assert not world.segments()


def test_an_orphan_that_an_old_cut_may_name_is_not_swept(world: DroppingWorld) -> None:
    orphan = segment_key(SegmentKey(EVENTS, 0, 0, 9, 0, UUID(int=1)))
    world.bucket.put(orphan, b"?")
    world.cut_without_end()
    world.cluster.metadata_end += 1
    for _ in range(3):
        world.sweep()
    assert orphan in world.segments()
    world.commit_chain((TOPIC, 0), world.logs[TOPIC, 0].end)
    world.cluster.metadata_end += 1
    world.round()
    world.clock.advance(GRACE_MS)
    world.round()
    world.sweep()
    assert orphan not in world.segments()


def test_deletions_go_on_as_before_where_no_cuts_are_taken(world: DroppingWorld) -> None:
    world.cluster.now = CutSettings(interval_ms=-1)
    world.claim()
    world.drop_all()
    world.pass_on(GRACE_MS)
    assert not world.segments()


def test_a_broker_that_is_told_to_take_no_cuts_keeps_what_the_keepers_cuts_name(world: DroppingWorld) -> None:
    """`firn.cut.interval.ms` is the keeper's: another broker's own says nothing about its chains."""
    world.cluster.now = CutSettings(interval_ms=-1)
    world.drop_all()
    world.pass_on(3 * GRACE_MS)
    assert len(world.segments()) == 3, "CUT says that chains are held"


def test_a_broker_that_would_take_cuts_lets_go_where_the_keeper_takes_none(world: DroppingWorld) -> None:
    world.cluster.now = CutSettings(interval_ms=-1)
    world.claim()
    world.cluster.now = CutSettings()
    world.drop_all()
    world.pass_on(GRACE_MS)
    assert not world.segments()


def test_cut_says_so_once_the_keepers_setting_changes(world: DroppingWorld) -> None:
    def holds() -> bool | None:
        cuts = world.cuts_there()
        assert cuts is not None
        return cuts.holds_chains

    assert holds() is True
    before = world.numbers()
    for interval_ms, expected in ((-1, False), (10_000, True)):
        world.cluster.now = CutSettings(interval_ms=interval_ms)
        if interval_ms < 0:
            world.claim()
        else:
            world.round()
        assert holds() is expected
    assert world.numbers() == before


def test_each_broker_goes_by_its_own_setting_where_cut_says_nothing(world: DroppingWorld) -> None:
    cuts = world.cuts_there()
    assert cuts is not None
    world.bucket.put("CUT", encode_cuts(cuts._replace(holds_chains=None)))
    world.cluster.now = CutSettings(interval_ms=-1)
    world.drop_all()
    world.pass_on(GRACE_MS)
    assert not world.segments()


def test_tails_that_load_hold_deletions_although_no_cuts_are_taken(world: DroppingWorld) -> None:
    world.cluster.now, world.cluster.is_loading = CutSettings(interval_ms=-1), True
    world.drop_all()
    world.pass_on(3 * GRACE_MS)
    assert len(world.segments()) == 3


def test_a_deletion_that_waits_has_a_cut_taken_although_nothing_is_new(world: DroppingWorld) -> None:
    """The metadata was a record that does nothing further when the objects were dropped."""
    world.switch(on=False)
    world.run()
    world.cluster.metadata_end += 1
    world.round()
    assert world.numbers() == [1, 2], "this cut has the change"
    world.cluster.metadata_end += 1
    world.cluster.records_of_nothing = {world.cluster.metadata_end - 1}
    entry = world.catalog.entries[EVENTS, 0]
    world.manager._context.eraser.schedule(world.replicas[0].tip, ["data/x"], entry)
    world.bucket.put("data/x", b"?")
    world.round()
    assert world.numbers() == [1, 2], "nothing has changed"
    world.pass_on(GRACE_MS)
    assert "data/x" in world.keys("data")
    world.round()
    assert world.numbers()[-1] == 3
    world.clock.advance(2 * GRACE_MS)
    world.round()
    assert len(world.numbers()) == 1
    world.pass_on(10_000)
    assert "data/x" not in world.keys("data")


def test_an_object_that_no_chain_ever_named_waits_for_no_cut(world: DroppingWorld) -> None:
    world.bucket.put("data/x", b"?")
    world.manager._context.eraser.schedule(world.replicas[0].tip, ["data/x"])
    world.cut_without_end()
    world.pass_on(GRACE_MS)
    assert "data/x" not in world.keys("data")


def test_a_commit_that_the_image_lacks_counts_from_when_it_has_it(world: DroppingWorld) -> None:
    entry = world.catalog.entries[EVENTS, 0]
    eraser = world.manager._context.eraser
    eraser.schedule(world.replicas[0].tip, ["data/x"], entry._replace(version=entry.version + 1))
    eraser.schedule(world.replicas[0].tip, ["data/y"], entry)
    known = {key: one.dropped is not None for one in eraser._due for key in one.keys}
    assert (known["data/x"], known["data/y"]) == (False, True)


def test_a_cut_file_that_cannot_be_read_holds_deletions_and_is_named(world: DroppingWorld) -> None:
    world.drop_all()
    world.bucket.put("CUT", b"damaged")
    world.pass_on(2 * GRACE_MS)
    assert len(world.segments()) == 3
    assert "CUT" in world.manager.metrics.failing[Task.DELETE, None]


def test_cut_says_how_far_the_metadata_of_all_kept_cuts_goes(world: DroppingWorld) -> None:
    cuts = world.cuts_there()
    assert cuts is not None
    assert cuts.oldest_metadata == MetadataEnd(0, 11)
    world.cluster.metadata_end = 20
    world.round()
    cuts = world.cuts_there()
    assert cuts is not None
    assert ([ref.cut for ref in cuts.kept], cuts.oldest_metadata) == ([1, 2], MetadataEnd(0, 11))
    world.clock.advance(2 * GRACE_MS)
    world.cluster.metadata_end = 30
    world.round()
    cuts = world.cuts_there()
    assert cuts is not None
    assert ([ref.cut for ref in cuts.kept], cuts.oldest_metadata) == ([3], MetadataEnd(0, 30))


def test_drops_of_a_later_life_are_needed_and_no_cut_needs_any(world: DroppingWorld) -> None:
    needed = world.manager._context.needed
    assert world.do(needed.settled()) == MetadataEnd(0, 11) < MetadataEnd(1, 5)
    world.bucket.delete(["CUT"])
    assert world.do(needed.settled()) > MetadataEnd((1 << 31) - 1, 1 << 53), "there is none"


def test_the_cut_that_is_loaded_is_not_swept_whatever_cut_names(world: DroppingWorld) -> None:
    """`CUT` was repaired, from a later document."""
    first = world.keys("cut")
    tails = world.keys("tail")
    world.logs[TOPIC, 0].end = 9
    world.round()
    cuts = world.cuts_there()
    assert cuts is not None
    world.bucket.put("CUT", encode_cuts(cuts._replace(kept=cuts.kept[-1:])))
    world.cluster.now, world.cluster.is_loading = CutSettings(interval_ms=-1), True
    for _ in range(3):
        world.sweep()
    assert set(first) <= set(world.keys("cut"))
    assert set(tails) <= set(world.keys("tail"))
    world.cluster.is_loading = False
    for _ in range(2):
        world.sweep()
    assert not set(first) & set(world.keys("cut"))


def test_a_document_with_an_end_of_metadata_that_cannot_be_is_damaged() -> None:
    for value in (-1, 1.5, "1", None):
        with pytest.raises(CorruptionError):
            decode_cuts(_sealed({"life": 0, "offset": value}))
    with pytest.raises(CorruptionError):
        decode_cuts(_sealed(5))


def _sealed(oldest: object) -> bytes:
    ref = {
        "cut": 1,
        "key": f"cut/{1:020d}-{UUID(int=1)}.json.gz",
        "stored_size": 1,
        "crc32c": 0,
        "at_ms": 0,
        "is_exact": True,
        "is_complete": True,
    }
    return seal(
        {
            "format": "firn-cuts",
            "format_version": 2,
            "cluster_id": "A",
            "kept": [ref],
            "erasures": [],
            "oldest_metadata": oldest,
        }
    )
