"""`fsck` is clean for whatever the protocol leaves behind, and finds every kind of damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from crc32c import crc32c

from service.base.types import TopicIdPartition
from service.inspect.fsck import fsck
from service.remote.format.block_table import BlockTable
from service.remote.format.keys import HeadKey, head_key
from service.remote.format.manifest import SegmentEntry
from service.remote.format.manifest_codec import encode_head, encode_manifest, head_of
from service.remote.format.segment_object import decode_footer, encode_footer
from service.remote.reading.object_reader import entry_of, open_chain, open_footer_of, open_head
from service.remote.stores.errors import StoreUnavailable
from service.remote.stores.obstore_store import open_store
from service.tiering.steps import CommitStep
from tests.support.world import WORLD
from tests.unit.inspect.archives import copy_metadata
from tests.unit.tiering.world import Fault, World, crash_at


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, partitions=2, segment_bytes=4000)
    world.fill(3)
    world.run()
    return world


def first(world: World) -> SegmentEntry:
    return world.live(world.replicas[0])[0]


def alter(world: World, key: str, change: Callable[[bytearray], object]) -> None:
    data = bytearray(world.bucket.get(key, max_size=1 << 30))
    change(data)
    world.bucket.put(key, data)


def flip(position: int) -> Callable[[bytearray], object]:
    def change(data: bytearray) -> None:
        data[position] ^= 0x10

    return change


def test_a_good_bucket_is_clean_and_counted(world: World) -> None:
    seen: list[int] = []
    report = fsck(world.bucket, progress=lambda report: seen.append(report.segments))
    assert report.is_clean
    assert report.exit_code == 0
    assert report.segments == 6
    assert seen == [3, 6]
    ends = [world.entry(one).end_offset for one in world.replicas]
    assert report.records == sum(ends)
    assert [(one.topic, one.partition, one.start_offset) for one in report.partitions] == [
        ("events", 0, 0),
        ("events", 1, 0),
    ]
    assert report.as_text().endswith("clean")
    document = json.loads(report.as_json())
    assert document["clean"] is True
    assert document["partitions"][1]["end_offset"] == world.entry(world.replicas[1]).end_offset


def test_the_same_over_a_folder(tmp_path: Path) -> None:
    world = World(tmp_path / "disk", open_store((tmp_path / "bucket").as_uri(), world=WORLD))
    world.fill(3)
    world.run()
    assert fsck(world.bucket).is_clean


def test_previous_manifests_are_orphans_and_no_errors(world: World) -> None:
    report = fsck(world.bucket)
    assert report.orphan_count == 4
    assert all("/manifest/" in orphan.key for orphan in report.orphans)
    assert report.orphan_bytes == sum(world.bucket.head(one.key).size for one in report.orphans)


@pytest.mark.parametrize("step", list(CommitStep))
def test_a_bucket_is_clean_after_a_crash_at_any_step(tmp_path: Path, step: CommitStep) -> None:
    world = World(tmp_path)
    world.fill(2)
    world.run()
    world.fill(2)
    world.probe = crash_at(step)
    assert not world.run()
    assert fsck(world.bucket).is_clean


@pytest.mark.parametrize("position", [0, 8, 30, 100, 2000])
def test_a_flipped_bit_in_the_records_is_found(world: World, position: int) -> None:
    alter(world, first(world).key, flip(position))
    report = fsck(world.bucket)
    assert report.exit_code == 1
    assert report.errors[0].where == first(world).key
    shallow = fsck(world.bucket, deep=False)
    assert shallow.is_clean, "a shallow check reads no records"
    assert "(footers only; filters of keys are not proved)" in shallow.as_text()


def test_a_flipped_bit_anywhere_behind_the_records_is_found(world: World) -> None:
    entry = first(world)
    for position in range(entry.log_length, entry.size, 13):
        alter(world, entry.key, flip(position))
        assert not fsck(world.bucket).is_clean, position
        alter(world, entry.key, flip(position))
    assert fsck(world.bucket).is_clean


def publish_with(world: World, **lie: object) -> SegmentEntry:
    """Put other words into the first segment's footer, and let its manifest and HEAD agree with them."""
    entry = first(world)
    data = bytes(world.bucket.get(entry.key, max_size=1 << 30))
    footer = replace(decode_footer(data, len(data)), **lie)  # type: ignore[arg-type]
    table = footer.sections["block_table"]._replace(crc32c=crc32c(footer.blocks.encoded))
    footer = replace(footer, sections={**footer.sections, "block_table": table})
    data = data[: table.position] + footer.blocks.encoded + encode_footer(footer)
    world.bucket.put(entry.key, data)
    lying = entry_of(decode_footer(data, len(data)))
    name(world, lying)
    return lying


def name(world: World, entry: SegmentEntry) -> None:
    """Let the manifest name the first segment so, and HEAD that manifest."""
    head = open_head(world.bucket, HeadKey(*world.replicas[0].tip[::2]))
    manifest = open_chain(world.bucket, head.manifest_key).manifest
    manifest = replace(manifest, entries=(entry, *manifest.entries[1:]))
    stored = encode_manifest(manifest)
    world.bucket.put(head.manifest_key, stored)
    key = head_key(manifest.topic_id, manifest.partition)
    world.bucket.put(key, encode_head(head_of(manifest, head.manifest_key, stored)))


def test_a_footer_that_counts_transactional_batches_which_are_not_there_is_found(world: World) -> None:
    publish_with(world, transactional_batch_count=None)
    assert fsck(world.bucket).is_clean, "an object of before they were counted"
    entry = publish_with(world, transactional_batch_count=1)
    (error,) = fsck(world.bucket).errors
    assert error.where == entry.key
    assert "transactional" in error.what
    assert fsck(world.bucket, deep=False).is_clean


def test_a_least_timestamp_that_is_not_the_records_is_found(world: World) -> None:
    entry = first(world)
    footer = open_footer_of(world.bucket, entry)
    assert entry.min_timestamp == footer.blocks[0].min_timestamp > 0
    for wrong in (-1, 1):
        block = footer.blocks[0]._replace(min_timestamp=footer.blocks[0].min_timestamp + wrong)
        publish_with(world, blocks=BlockTable.of([block, *list(footer.blocks)[1:]]))
        (error,) = fsck(world.bucket).errors
        assert (error.where, "the table says" in error.what) == (entry.key, True)
        assert fsck(world.bucket, deep=False).is_clean
    unknown = [block._replace(min_timestamp=-1) for block in footer.blocks]
    assert publish_with(world, blocks=BlockTable.of(unknown)).min_timestamp == -1
    assert fsck(world.bucket).is_clean, "nothing is claimed"


def test_a_manifest_may_say_less_of_times_than_the_footer_and_nothing_else(world: World) -> None:
    entry = first(world)
    for least, is_clean in ((-1, True), (entry.min_timestamp - 1, False)):
        name(world, entry._replace(min_timestamp=least))
        for deep in (True, False):
            assert fsck(world.bucket, deep=deep).is_clean is is_clean


def test_an_object_that_is_gone_short_or_too_long_is_found(world: World) -> None:
    key = first(world).key
    whole = world.bucket.get(key, max_size=1 << 30)
    for data in (whole[:-1], whole + b"x", b""):
        world.bucket.put(key, data)
        assert "bytes, the manifest says" in fsck(world.bucket).errors[0].what
    world.bucket.delete([key])
    report = fsck(world.bucket)
    assert report.errors[0].what == "the object does not exist"
    assert report.partitions[0].errors == 1
    assert report.partitions[1].errors == 0


def test_two_objects_that_changed_places_are_found(world: World) -> None:
    one, other = (world.live(replica)[0] for replica in world.replicas)
    assert one.size == other.size
    a, b = (world.bucket.get(entry.key, max_size=1 << 30) for entry in (one, other))
    world.bucket.put(one.key, b)
    world.bucket.put(other.key, a)
    assert fsck(world.bucket).error_count == 2


@pytest.mark.parametrize("name", ["HEAD", "manifest", "cluster.json", "topics.json"])
def test_damage_to_what_names_the_objects_is_found(world: World, name: str) -> None:
    [replica, _] = world.replicas
    keys = {
        "HEAD": f"data/{replica.tip.topic_id}/0/HEAD",
        "manifest": world.entry(replica).manifest_key,
    }
    alter(world, keys.get(name, name), flip(20))
    report = fsck(world.bucket)
    assert report.error_count >= 1
    assert len(report.partitions) == (1 if name in keys else 2)


def test_a_head_that_names_nothing_is_an_error_and_so_is_none_where_it_was(world: World) -> None:
    [replica, _] = world.replicas
    world.bucket.delete([world.entry(replica).manifest_key])
    assert "cannot be read" in fsck(world.bucket).errors[0].what
    prefix = f"data/{replica.tip.topic_id}/0"
    world.bucket.delete([f"{prefix}/HEAD"])
    report = fsck(world.bucket)
    [error] = report.errors
    assert "HEAD is gone: there is a manifest of version 2" in error.what
    assert not any(one.key.startswith(prefix) for one in report.orphans), "nobody knows which they are"
    manifests = [info.key for info in world.bucket.list(f"{prefix}/manifest")]
    world.bucket.delete(manifests[1:])
    report = fsck(world.bucket)
    assert report.is_clean
    assert any("a first manifest" in note.what for note in report.notes)
    world.bucket.delete(manifests[:1])
    report = fsck(world.bucket)
    assert report.is_clean
    assert any("no manifest of it was ever published" in note.what for note in report.notes)
    assert any(one.key.startswith(prefix) for one in report.orphans)


def test_a_damaged_upload_that_no_first_manifest_names_is_no_error(world: World) -> None:
    """HEAD may have yet to be written, but only for what the first manifest names."""
    [replica, _] = world.replicas
    prefix = f"data/{replica.tip.topic_id}/0"
    [first_manifest, *later] = [info.key for info in world.bucket.list(f"{prefix}/manifest")]
    world.bucket.delete([f"{prefix}/HEAD", *later])
    named = open_chain(world.bucket, first_manifest).manifest.entries[0].key
    stray = f"{named.removesuffix('.seg')[:-36]}{uuid4()}.seg"
    damaged = bytearray(world.bucket.get(named, max_size=1 << 30))
    damaged[20] ^= 0x10
    world.bucket.put(stray, bytes(damaged))
    report = fsck(world.bucket)
    assert report.is_clean
    assert [note.where for note in report.notes if "never committed" in note.what] == [stray]
    alter(world, named, flip(20))
    assert [error.where for error in fsck(world.bucket).errors] == [named]
    alter(world, named, flip(20))
    alter(world, first_manifest, flip(20))
    assert [error.where for error in fsck(world.bucket).errors] == [stray], "it may name anything"


def test_one_topic_may_be_asked_for_by_name_or_id(world: World) -> None:
    other = world.add(TopicIdPartition(uuid4(), "other", 0))
    world.fill(2, other)
    world.manager.maintenance.topics_changed()
    world.settle()
    world.run()
    for wanted in ("other", str(other.tip.topic_id)):
        report = fsck(world.bucket, topic=wanted)
        assert [one.topic for one in report.partitions] == ["other"]
    assert fsck(world.bucket, topic="nobody").exit_code == 1


def test_without_topics_json_the_names_come_from_the_manifests(world: World) -> None:
    world.bucket.delete(["topics.json"])
    report = fsck(world.bucket)
    assert report.is_clean, "it may have to be written yet"
    assert {one.topic for one in report.partitions} == {"events"}
    assert "topics.json" in {note.where for note in report.notes}
    copy_metadata(world)
    report = fsck(world.bucket)
    assert [one.where for one in report.errors] == ["topics.json"], "it is written before any copy"
    assert {one.topic for one in report.partitions} == {"events"}


def test_fsck_reports_objects_of_a_deleted_topic_without_an_error(world: World) -> None:
    world.fill(2, world.add(TopicIdPartition(uuid4(), "gone", 0)))
    world.run()
    world.delete_topic("gone")
    world.clock.advance(world.settings.topics_debounce_ms)
    world.run()
    report = fsck(world.bucket)
    assert report.is_clean
    [left] = report.unknown_topics.values()
    assert left.objects >= 2
    assert not any(left.topic_id in one.key for one in report.orphans)


def test_keys_of_no_layout_are_noted(world: World) -> None:
    world.bucket.put("data/readme.txt", b"hello")
    report = fsck(world.bucket)
    assert report.is_clean
    assert report.notes[-1].where == "data/readme.txt"


def test_a_store_that_does_not_answer_is_no_finding(world: World) -> None:
    world.store.decide = lambda operation, key: Fault.FAIL if operation == "get_range" else Fault.PASS
    with pytest.raises(StoreUnavailable):
        fsck(world.store)
