"""`firn sweep` deletes what is dead for sure, `firn repair` makes HEAD and topics.json from what is there."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.inspect.fsck import fsck
from service.inspect.head_repair import HeadRepair, PageRepair, Unrepairable
from service.inspect.repair import ClusterRepair, TopicsRepair, carry_out, find_repairs
from service.inspect.sweep import PartitionOrphans, Skipped, delete_orphans, find_orphans
from service.metadata.image import MetadataImage
from service.metadata.snapshot_codec import encode_image
from service.remote.format.cut_codec import (
    Cut,
    CutRef,
    Cuts,
    PartitionCut,
    TailRef,
    encode_cut,
    encode_cuts,
)
from service.remote.format.documents import seal
from service.remote.format.keys import (
    CutKey,
    MetadataKey,
    SegmentKey,
    TailKey,
    cut_key,
    head_key,
    metadata_key,
    segment_key,
    tail_key,
)
from service.remote.format.manifest import ManifestLimits
from service.remote.format.manifest_codec import TopicsFileRow, encode_topics
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.segment_object import decode_footer, encode_footer
from service.remote.reading.object_reader import open_cluster_file, open_topics
from service.remote.stores.memory_store import MemoryStore
from service.tiering.recovery import read_archive
from service.tiering.steps import CommitStep
from tests.unit.inspect.archives import copy_metadata
from tests.unit.tiering.world import CLUSTER, GRACE_MS, World, crash_at


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "disk", partitions=2)
    world.fill(3)
    world.run()
    world.run()
    world.clock.advance(GRACE_MS)
    world.run()
    return world


def orphans_of(world: World, older_than_ms: int = 0, whole_topic: UUID | None = None) -> set[str]:
    found = find_orphans(
        world.bucket, older_than_ms=older_than_ms, now_ms=world.clock.now_ms(), whole_topic=whole_topic
    )
    return {info.key for one in found if isinstance(one, PartitionOrphans) for info in one.orphans}


def skipped(world: World) -> list[Skipped]:
    found = find_orphans(world.bucket, older_than_ms=0, now_ms=world.clock.now_ms())
    return [one for one in found if isinstance(one, Skipped)]


def test_orphans_are_found_and_deleted_and_nothing_live_is(world: World) -> None:
    orphan = segment_key(SegmentKey(world.topic_ids["events"], 0, 0, 9, 0, UUID(int=1)))
    world.bucket.put(orphan, b"?")
    world.clock.advance(1)
    copy_metadata(world)
    live = {*world.stored_keys()} - {orphan}
    assert orphans_of(world) == {orphan}
    assert orphans_of(world, older_than_ms=2) == set(), "it may be an upload that runs"
    for one in find_orphans(world.bucket, older_than_ms=0, now_ms=world.clock.now_ms()):
        assert isinstance(one, PartitionOrphans)
        assert delete_orphans(world.bucket, one) == 1
    assert world.stored_keys() == live


def keep_cut(world: World, number: int, version: int, *tails: str) -> None:
    """Have `CUT` name one cut: of this version of partition 0, and with these tails."""
    row = PartitionCut(0, 0, 9, 9, 9, 9, 0, version, waits=False)
    refs = tuple(TailRef(key, 20, 4, 1) for key in tails)
    metadata = MetadataRef(metadata_key(MetadataKey(1, 1, UUID(int=5))), 1, 1, 9, 1)
    topics = {world.topic_ids["events"]: (row,)}
    cut = Cut(CLUSTER, number, 5, True, metadata, 1, 1, refs, topics)  # fmt: skip
    data = encode_cut(cut)
    ref = CutRef(number, cut_key(CutKey(number, UUID(int=number))), len(data), crc32c(data), 5, True, True)
    world.bucket.put(ref.key, data)
    world.bucket.put("CUT", encode_cuts(Cuts(CLUSTER, (ref,))))


def test_tails_and_cuts_are_swept_that_no_kept_cut_names(world: World) -> None:
    copy_metadata(world)
    named, dead, late = (tail_key(TailKey(cut, 0, 1, UUID(int=cut))) for cut in (3, 4, 6))
    for key in (named, dead, late):
        world.bucket.put(key, b"a tail")
    keep_cut(world, 1, 0)
    keep_cut(world, 6, 0, named)
    old = cut_key(CutKey(1, UUID(int=1)))
    assert orphans_of(world) == {dead, old}
    assert orphans_of(world, older_than_ms=1) == set(), "CUT was written just now"


def test_a_chain_that_a_kept_cut_needs_is_not_swept(world: World) -> None:
    live = {*world.stored_keys()}
    entry = world.entry(world.replicas[0])
    assert entry is not None
    world.fill(1)
    world.run()
    assert entry.manifest_key in world.stored_keys(), "the grace is not over"
    copy_metadata(world)
    assert entry.manifest_key in orphans_of(world)
    keep_cut(world, 1, entry.version)
    gone = orphans_of(world)
    assert entry.manifest_key not in gone
    assert {key for key in gone & live if f"/{world.replicas[0].tip.partition}/" in key} == set()


def test_a_damaged_document_of_a_cut_is_named_and_keeps_tails(world: World) -> None:
    copy_metadata(world)
    tail = tail_key(TailKey(2, 0, 1, UUID(int=2)))
    world.bucket.put(tail, b"a tail")
    keep_cut(world, 3, 0)
    world.bucket.put(cut_key(CutKey(3, UUID(int=3))), b"damaged")
    assert orphans_of(world) == set()
    assert [one.where for one in skipped(world)] == ["CUT"]


def test_a_commit_that_head_does_not_name_yet_is_never_swept(world: World) -> None:
    copy_metadata(world)
    world.probe = crash_at(CommitStep.COMMITTED)
    world.fill(1)
    assert not world.run()
    live = world.live_keys()
    assert any("newer than HEAD" in one.why for one in skipped(world))
    assert not orphans_of(world) & live


def test_an_unknown_topic_is_deleted_only_on_request(world: World) -> None:
    lost = UUID(int=99)
    key = segment_key(SegmentKey(lost, 0, 0, 9, 0, UUID(int=1)))
    world.bucket.put(key, b"?")
    world.clock.advance(1)
    copy_metadata(world)
    assert [one.where for one in skipped(world)] == [str(lost)]
    assert orphans_of(world) == set()
    assert orphans_of(world, whole_topic=lost) == {key}
    assert orphans_of(world, whole_topic=world.topic_ids["events"]) == set(), "it is live"
    world.bucket.put(key, b"!")
    assert orphans_of(world, whole_topic=lost) == set(), "it may have been made since the copy"


def test_a_topic_made_since_stays_where_older_documents_were_put_back(world: World) -> None:
    """The store got the copy last, and what it tells of is older than the topic."""
    older = copy_metadata(world)
    topics, copy = (
        world.bucket.get("topics.json", max_size=1 << 20),
        world.bucket.get(older, max_size=1 << 20),
    )
    world.clock.advance(10)
    made = world.add(TopicIdPartition(UUID(int=77), "later", 0))
    world.fill(2, made)
    world.run()
    assert any(str(made.tip.topic_id) in key for key in world.stored_keys())
    world.clock.advance(10)
    world.bucket.put("topics.json", topics)
    world.bucket.put(older, copy)
    assert str(made.tip.topic_id) in {one.where for one in skipped(world)}
    assert orphans_of(world, whole_topic=made.tip.topic_id) == set()


def test_a_live_topic_is_not_given_up_where_topics_json_forgets_it(world: World) -> None:
    copy_metadata(world)
    world.clock.advance(1)
    world.bucket.put("topics.json", encode_topics(CLUSTER, 0, []))
    assert orphans_of(world, whole_topic=world.topic_ids["events"]) == set()
    errors = fsck(world.bucket).errors
    assert [one.where for one in errors] == ["topics.json"]
    assert "does not name events" in errors[0].what


@pytest.mark.parametrize("happened", ["deleted", "created"])
def test_topics_json_that_waits_to_be_written_after_the_copy_is_no_error(world: World, happened: str) -> None:
    if happened == "deleted":
        world.delete_topic("events")
    else:
        world.fill(2, world.add(TopicIdPartition(UUID(int=77), "other", 0)))
        world.run()
    world.metadata_offset += 1
    world.clock.advance(1)
    copy_metadata(world)
    report = fsck(world.bucket)
    assert [str(one) for one in report.errors] == []
    assert "it was written before the copy of the metadata" in str(report.notes)
    [repair] = find_repairs(world.bucket)
    assert isinstance(repair, TopicsRepair), "its node may have ended"


def test_nothing_is_swept_where_no_copy_of_the_metadata_can_be_read(world: World) -> None:
    with pytest.raises(CorruptionError, match="live objects are unknown"):
        orphans_of(world)
    world.bucket.put(copy_metadata(world), b"?")
    with pytest.raises(CorruptionError, match="live objects are unknown"):
        orphans_of(world, whole_topic=UUID(int=99))


def test_a_partition_with_more_orphans_than_fit_is_swept_in_pieces(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.inspect.fsck_report.MAX_LISTED", 10)
    monkeypatch.setattr("service.inspect.sweep.PIECE", 7)
    copy_metadata(world)
    before = world.stored_keys()
    for number in range(40):
        world.bucket.put(segment_key(SegmentKey(UUID(int=7), 0, 0, 9, 0, UUID(int=1 + number))), b"?")
    world.clock.advance(1)
    copy_metadata(world)
    found = list(find_orphans(world.bucket, older_than_ms=0, now_ms=world.clock.now_ms()))
    sizes = [len(one.orphans) for one in found if isinstance(one, PartitionOrphans)]
    assert sizes == [7, 7, 7, 7, 7, 5]
    for one in find_orphans(world.bucket, older_than_ms=0, now_ms=world.clock.now_ms()):
        assert isinstance(one, PartitionOrphans)
        delete_orphans(world.bucket, one)
    assert world.stored_keys() == before


def test_probe_objects_are_swept(world: World) -> None:
    copy_metadata(world)
    key = f"probe/{UUID(int=3)}"
    world.bucket.put(key, b"one")
    assert orphans_of(world, older_than_ms=1) == set(), "a node may be probing"
    assert orphans_of(world) == {key}


def test_orphans_stay_when_head_moved_since_they_were_judged(world: World) -> None:
    orphan = segment_key(SegmentKey(world.topic_ids["events"], 0, 0, 9, 0, UUID(int=1)))
    world.bucket.put(orphan, b"?")
    world.clock.advance(1)
    copy_metadata(world)
    [found] = [
        one
        for one in find_orphans(world.bucket, older_than_ms=0, now_ms=world.clock.now_ms())
        if isinstance(one, PartitionOrphans) and one.orphans
    ]
    world.fill(1)
    world.run()
    assert delete_orphans(world.bucket, found) == 0
    assert orphan in world.stored_keys()


@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_a_lost_head_is_made_from_the_newest_whole_manifest(world: World, damage: str) -> None:
    [first, second] = world.replicas
    key = head_key(first.tip.topic_id, 0)
    entry = world.entry(first)
    assert entry is not None
    if damage == "gone":
        world.bucket.delete([key])
    else:
        world.bucket.put(key, b"{")
    [repair] = find_repairs(world.bucket)
    assert isinstance(repair, HeadRepair)
    assert repair.base is not None
    assert repair.base.key == entry.manifest_key
    assert carry_out(world.bucket, repair, lambda: UUID(int=5))
    assert list(find_repairs(world.bucket)) == []
    report = fsck(world.bucket)
    assert report.is_clean
    archive = read_archive(world.bucket, CLUSTER, {}, ())
    found = archive.partitions[first.tip.topic_id, 0].entry
    assert (found.version, found.end_offset) == (entry.version + 1, entry.end_offset)
    assert archive.partitions[second.tip.topic_id, 1].entry == world.entry(second)
    assert not archive.problems


def test_a_damaged_manifest_is_made_from_the_one_before_and_what_was_uploaded_since(tmp_path: Path) -> None:
    world = World(tmp_path / "disk")
    world.fill(3)
    world.run()
    world.run()
    [replica] = world.replicas
    entry = world.entry(replica)
    assert entry is not None
    live = world.live(replica)
    world.bucket.put(entry.manifest_key, b"?")
    [repair] = find_repairs(world.bucket)
    assert isinstance(repair, HeadRepair)
    assert (repair.parent.version, repair.version) == (entry.version - 1, entry.version + 1)
    assert repair.added == (live[-1],)
    assert carry_out(world.bucket, repair, lambda: UUID(int=5))
    assert not carry_out(world.bucket, repair, lambda: UUID(int=6)), "HEAD is another by now"
    report = fsck(world.bucket)
    assert report.is_clean
    assert report.partitions[0].end_offset == entry.end_offset


def test_an_archive_without_a_manifest_is_made_from_its_segments_or_said_to_be_lost(world: World) -> None:
    for key in world.stored_keys():
        if "/0/manifest/" in key:
            world.bucket.put(key, b"?")
    [repair] = find_repairs(world.bucket)
    assert isinstance(repair, HeadRepair)
    assert repair.base is None
    middle = world.live(world.replicas[1])[1]
    segments = sorted(key for key in world.stored_keys() if "/0/" in key and key.endswith(".seg"))
    world.bucket.delete([segments[1]])
    [hopeless] = find_repairs(world.bucket)
    assert isinstance(hopeless, Unrepairable)
    assert f"have a gap at offset {middle.base_offset}" in hopeless.wrong


@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_topics_json_is_made_from_the_manifests(world: World, damage: str) -> None:
    if damage == "gone":
        world.bucket.delete(["topics.json"])
    else:
        world.bucket.put("topics.json", b"{")
    [repair] = find_repairs(world.bucket)
    assert isinstance(repair, TopicsRepair)
    assert carry_out(world.bucket, repair, lambda: UUID(int=5))
    [row] = open_topics(world.bucket).topics
    assert (row.name, row.topic_id, row.partitions) == ("events", world.topic_ids["events"], 2)
    world.manager.maintenance.topics_changed()
    world.clock.advance(world.settings.topics_debounce_ms)
    world.run()
    assert open_topics(world.bucket).metadata_offset == world.metadata_offset, "the node writes it again"


@pytest.mark.parametrize("damage", ["gone", "flipped", "torn"])
def test_cluster_json_is_made_from_the_archive(world: World, damage: str) -> None:
    whole = open_cluster_file(world.bucket)
    image = MetadataImage()
    world.bucket.put(_snapshot_key(20), b"".join(encode_image(image, 7)))
    world.bucket.put(_snapshot_key(30), b"".join(encode_image(image, 7))[:-1])
    if damage == "gone":
        world.bucket.delete(["cluster.json"])
    elif damage == "torn":
        world.bucket.put("cluster.json", b"{")
    else:
        data = world.bucket.get("cluster.json", max_size=1 << 16)
        world.bucket.put("cluster.json", data.replace(b"tests-1", b"tests-0"))
    before = world.stored_keys()
    [finding] = fsck(world.bucket).errors
    assert finding.where == "cluster.json"
    [repair] = find_repairs(world.bucket)
    assert isinstance(repair, ClusterRepair)
    assert f"cluster {CLUSTER}" in str(repair)
    assert world.stored_keys() == before
    assert carry_out(world.bucket, repair, lambda: UUID(int=5))
    assert not carry_out(world.bucket, repair._replace(cluster=whole), lambda: UUID(int=5)), "seen before"
    made = open_cluster_file(world.bucket)
    assert (made.cluster_id, made.stamp) == (CLUSTER, None)
    assert made.metadata is not None
    assert made.metadata.key == _snapshot_key(20), "the newest that is whole"
    assert list(find_repairs(world.bucket)) == []
    world.reboot()
    world.fill(2)
    world.settle()
    assert world.lag(world.replicas[0]) == 0, "the next start takes the prefix over"
    assert open_cluster_file(world.bucket).stamp is not None


def test_cluster_json_names_the_copy_of_the_last_life_not_of_the_greatest_offset(world: World) -> None:
    copy_metadata(world, offset=626)
    newest = copy_metadata(world, offset=21, life=1)
    world.bucket.put("cluster.json", b"{")
    [repair] = find_repairs(world.bucket)
    assert isinstance(repair, ClusterRepair)
    assert carry_out(world.bucket, repair, lambda: UUID(int=5))
    named = open_cluster_file(world.bucket).metadata
    assert named is not None
    assert (named.key, named.end_offset) == (newest, 21)
    assert fsck(world.bucket).is_clean


def test_two_topics_of_one_name_or_id_are_damage(world: World) -> None:
    world.topic_configs = {"events": {"retention.ms": "-1"}}
    copy_metadata(world)
    events = TopicsFileRow("events", world.topic_ids["events"], 2, {})
    for other in (TopicsFileRow("events", UUID(int=98), 1, {}), TopicsFileRow("e", events.topic_id, 2, {})):
        world.bucket.put("topics.json", encode_topics(CLUSTER, 1, [events, other]))
        [error] = fsck(world.bucket).errors
        assert (error.where, "two topics are" in error.what) == ("topics.json", True)
        [repair] = find_repairs(world.bucket)
        assert isinstance(repair, TopicsRepair)
        assert carry_out(world.bucket, repair, lambda: UUID(int=5))
        assert open_topics(world.bucket).topics == (events._replace(configs={"retention.ms": "-1"}),)
        assert fsck(world.bucket).is_clean


def test_a_page_is_made_of_the_upload_that_it_listed_where_one_was_made_twice(tmp_path: Path) -> None:
    world = World(tmp_path / "disk", limits=ManifestLimits(entries=3))
    world.fill(5)
    world.run()
    [replica] = world.replicas
    manifest = world.manifest(replica)
    assert manifest is not None
    [ref] = manifest.pages
    page = world.bucket.get(ref.key, max_size=1 << 20)
    for number, entry in enumerate(world.live(replica)[:3]):
        data = world.bucket.get(entry.key, max_size=1 << 20)
        footer = decode_footer(data, len(data))
        again = replace(footer, identity=footer.identity._replace(uuid=UUID(int=number)))
        world.bucket.put(
            again.identity.key, data[: entry.footer_position] + again.blocks.encoded + encode_footer(again)
        )
    world.bucket.delete([ref.key])
    assert [one.where for one in fsck(world.bucket).errors] == [ref.key]
    [repair] = find_repairs(world.bucket)
    assert isinstance(repair, PageRepair)
    assert carry_out(world.bucket, repair, lambda: UUID(int=5))
    assert world.bucket.get(ref.key, max_size=1 << 20) == page
    assert fsck(world.bucket).is_clean


def _snapshot_key(end_offset: int) -> str:
    return metadata_key(MetadataKey(end_offset, MetadataImage().epoch, UUID(int=end_offset)))


def test_cluster_json_and_topics_json_are_made_when_both_are_gone(world: World) -> None:
    world.bucket.delete(["cluster.json", "topics.json"])
    repairs = list(find_repairs(world.bucket))
    assert [type(one) for one in repairs] == [TopicsRepair, ClusterRepair]
    for one in repairs:
        assert not isinstance(one, Unrepairable)
        assert carry_out(world.bucket, one, lambda: UUID(int=5))
    assert fsck(world.bucket).is_clean


def test_topics_json_is_rebuilt_for_an_empty_archive(world: World) -> None:
    cluster = world.bucket.get("cluster.json", max_size=1 << 16)
    store = MemoryStore(SystemThreads())
    store.put("topics.json", b"{")
    assert [type(one) for one in find_repairs(store)] == [Unrepairable], "nothing says whose it is"
    store.put("cluster.json", cluster)
    [repair] = find_repairs(store)
    assert isinstance(repair, TopicsRepair)
    assert carry_out(store, repair, lambda: UUID(int=5))
    assert (open_topics(store).cluster_id, open_topics(store).topics) == (CLUSTER, ())
    assert list(find_repairs(store)) == []


def test_an_empty_prefix_needs_no_repair() -> None:
    assert list(find_repairs(MemoryStore(SystemThreads()))) == []


def test_documents_of_later_versions_are_not_repaired(world: World) -> None:
    keys = ["topics.json", "cluster.json", *(head_key(one.tip.topic_id, 0) for one in world.replicas[:1])]
    for key in keys:
        fields = json.loads(world.bucket.get(key, max_size=1 << 20))
        del fields["document_crc32c"]
        world.bucket.put(key, seal(fields | {"format_version": 3}))
    repairs = list(find_repairs(world.bucket))
    assert [type(one) for one in repairs] == [Unrepairable] * 3
    assert all("this software knows 1 to 2" in str(one) for one in repairs)


def test_a_bucket_that_is_written_while_fsck_walks_is_not_accused(tmp_path: Path) -> None:
    class Busy(MemoryStore):
        """Store whose node commits, and deletes what was replaced, at each listing of a partition."""

        armed = False

        def list(self, prefix: str):  # type: ignore[no-untyped-def]
            listing = super().list(prefix)
            if self.armed and prefix.count("/") == 2:
                self.armed = False
                node.fill(2)
                node.run()
                node.clock.advance(GRACE_MS)
                node.run()
            return listing

    bucket = Busy(SystemThreads())
    node = World(tmp_path / "disk", bucket)
    node.fill(2)
    node.run()
    node.run()
    bucket.armed = True
    report = fsck(bucket)
    assert not bucket.armed
    assert report.is_clean, report.errors
    assert report.segments == 4


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_topic_that_is_deleted_while_fsck_walks_is_not_accused(tmp_path: Path, is_copied: bool) -> None:
    class Deleting(MemoryStore):
        """Store whose node deletes a topic, and half of its objects, at its listing."""

        armed = False

        def list(self, prefix: str):  # type: ignore[no-untyped-def]
            if self.armed and prefix == f"data/{UUID(int=8)}/0":
                self.armed = False
                node.delete_topic("other")
                node.clock.advance(node.settings.topics_debounce_ms)
                node.run()
                if is_copied:
                    node.metadata_offset += 1
                    copy_metadata(node)
                self.delete(
                    [head_key(UUID(int=8), 0), *[one for one in self._objects if "0008/0/000" in one]]
                )
            return super().list(prefix)

    bucket = Deleting(SystemThreads())
    node = World(tmp_path / "disk", bucket)
    node.add(TopicIdPartition(UUID(int=8), "other", 0))
    node.fill(3)
    node.run()
    node.manager.maintenance.topics_changed()
    node.clock.advance(node.settings.topics_debounce_ms)
    node.run()
    copy_metadata(node)
    assert fsck(bucket).is_clean
    bucket.armed = True
    report = fsck(bucket)
    assert not bucket.armed
    assert report.errors == []
    assert (report.exit_code, report.error_count) == (0, 0)


def test_partitions_are_checked_side_by_side_and_told_in_order(tmp_path: Path) -> None:
    world = World(tmp_path / "disk", partitions=12)
    world.fill(1)
    world.run()
    world.run()
    with ThreadPoolExecutor(4) as pool:
        report = fsck(world.bucket, pool=pool)
    alone = fsck(world.bucket)
    assert report.as_json() == alone.as_json()
    assert len(report.partitions) == 12
