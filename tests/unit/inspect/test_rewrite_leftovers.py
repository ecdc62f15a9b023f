"""Leftovers of rewrites and of orders to erase keys: `firn sweep` and `firn fsck` judge by the metadata."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from service.inspect.cuts_repair import CutsRepair
from service.inspect.fsck import fsck
from service.inspect.head_repair import HeadRepair, PageRepair, Unrepairable
from service.inspect.repair import carry_out, find_repairs
from service.inspect.sweep import PartitionOrphans, Skipped, find_orphans
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.records import ErasureRecord, MetadataRecord, RewriteRecord
from service.metadata.snapshot_codec import encode_image
from service.remote.format.cut_codec import Cuts, ErasureRef, decode_cuts, encode_cuts
from service.remote.format.erase_codec import ErasedTopic, ErasureOrder, encode_erasure
from service.remote.format.keys import HeadKey, MetadataKey, PageKey, erasure_key, metadata_key, page_key
from service.remote.format.manifest import ManifestLimits
from service.remote.format.manifest_codec import ClusterFile
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.rewrite_origin import MERGE, RewriteOrigin
from service.remote.reading.object_reader import open_published
from service.tiering.prefix_fence import OwnWrites, update_cluster
from tests.support.rewritten import Rewriter, without_offsets
from tests.unit.inspect.archives import copy_metadata, image_of
from tests.unit.inspect.frozen_world import FrozenWorld
from tests.unit.inspect.test_sweep_and_repair import keep_cut
from tests.unit.tiering.world import CLUSTER, GRACE_MS, World

EVENTS = UUID(int=7)
KEY = HeadKey(EVENTS, 0)
ID, OTHER = UUID(int=71), UUID(int=72)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "disk")
    world.fill(6)
    world.run()
    world.run()
    world.clock.advance(GRACE_MS)
    world.run()
    return world


def copy_with(world: World, *records: MetadataRecord) -> None:
    """Put a copy of the world's metadata into its bucket that has these records, too."""
    world.clock.advance(1)
    world.metadata_offset += 1
    end = world.metadata_offset + 1
    image = MetadataDelta(image_of(world, end)).replay_all(records).build(end - 1, 3, world.clock.now_ms())
    put_copy(world, image, end)


def put_copy(world: World, image: MetadataImage, end: int) -> None:
    data = b"".join(encode_image(image, 7))
    ref = MetadataRef(metadata_key(MetadataKey(end, 3, UUID(int=end))), end, 3, len(data), crc32c(data))
    world.bucket.put(ref.key, data)

    def name(cluster: ClusterFile) -> ClusterFile:
        return cluster._replace(metadata=ref)

    update_cluster(world.bucket, CLUSTER, name, OwnWrites())


def intent(base: int, last: int, epoch: int = 0) -> RewriteRecord:
    return RewriteRecord(
        topic_id=EVENTS, partition_id=0, rewrite_id=ID, base_offset=base, last_offset=last, kind=1,
        leader_epoch=epoch, started_ms=5,
    )  # fmt: skip


def swept(world: World) -> tuple[set[str], list[str]]:
    """What a sweep would delete, and why it leaves what."""
    found = list(find_orphans(world.bucket, older_than_ms=0, now_ms=world.clock.now_ms()))
    keys = {info.key for one in found if isinstance(one, PartitionOrphans) for info in one.orphans}
    return keys, [one.why for one in found if isinstance(one, Skipped)]


def test_objects_of_a_rewrite_under_way_stay_and_are_no_orphans(world: World) -> None:
    rewriter = Rewriter(world.bucket, KEY)
    segments = rewriter.segments()
    base, last = segments[1].base_offset, segments[3].last_offset
    done = rewriter.merge(base, last, commits=False)
    page = page_key(PageKey(EVENTS, 0, base, last, 0, UUID(int=3)))
    world.bucket.put(page, b"?")
    leader_epoch = world.replicas[0].leader_epoch
    copy_with(world, intent(base, last, leader_epoch))
    assert swept(world) == (set(), []), "they are no orphans at all"
    dead = rewriter.merge(segments[4].base_offset, segments[5].last_offset, commits=False)
    copy_with(world, intent(base, last, leader_epoch))
    assert swept(world) == (
        {dead.entry.key},
        [f"2 objects below its end stay: offsets {base} to {last} are being rewritten"],
    )
    report = fsck(world.bucket)
    assert done.entry.key not in {one.key for one in report.orphans}
    assert f"2 objects may be of the rewrite {ID} of offsets {base} to {last}" in str(report.notes)
    copy_with(world, intent(segments[4].base_offset, segments[4].last_offset, leader_epoch))
    keys, [why] = swept(world)
    assert keys == {done.entry.key, page}, "another rewrite than that lives"
    assert why.startswith("1 objects")


def test_a_rewrite_that_was_under_way_at_a_take_over_is_over(tmp_path: Path) -> None:
    """The take-over has written HEAD anew, so nothing of the lost cluster can be committed any more."""
    world = FrozenWorld(tmp_path / "disk")
    world._begin()
    world.cut()
    rewriter = Rewriter(world.bucket, KEY)
    segments = rewriter.segments()
    done = rewriter.merge(segments[0].base_offset, segments[1].last_offset, commits=False)
    page = page_key(PageKey(EVENTS, 0, segments[0].base_offset, segments[1].last_offset, 0, UUID(int=3)))
    world.bucket.put(page, b"?")
    world.records.append(intent(segments[0].base_offset, segments[1].last_offset))
    world._copy_metadata()
    world.cut()
    assert swept(world)[0].isdisjoint({done.entry.key, page}), "the cluster may live"
    world.take_over()
    assert swept(world)[0] >= {done.entry.key, page}
    assert {done.entry.key, page} <= {one.key for one in fsck(world.bucket).orphans}


def test_objects_of_an_earlier_leader_epoch_are_dead_whenever_they_were_made(world: World) -> None:
    """Their rewrite ended with the epoch, whatever the copy knows of it."""
    assert world.replicas[0].leader_epoch == 0
    world.replicas[0].leader_epoch = 1
    copy_with(world)
    world.clock.advance(1)
    rewriter = Rewriter(world.bucket, KEY)
    segments = rewriter.segments()
    done = rewriter.merge(segments[1].base_offset, segments[3].last_offset, commits=False)
    assert swept(world) == ({done.entry.key}, [])


def test_objects_newer_than_the_copy_are_not_judged_below_the_end(world: World) -> None:
    copy_with(world)
    world.clock.advance(1)
    rewriter = Rewriter(world.bucket, KEY)
    segments = rewriter.segments()
    done = rewriter.merge(segments[0].base_offset, segments[1].last_offset, commits=False)
    keys, [why] = swept(world)
    assert keys == set()
    assert why.startswith("1 objects below its end stay: they are newer than the newest copy of the metadata")
    copy_with(world)
    assert swept(world) == ({done.entry.key}, [])


def test_replaced_segments_and_pages_are_swept(world: World) -> None:
    rewriter = Rewriter(world.bucket, KEY)
    segments = rewriter.segments()
    before = rewriter.manifest().stored_key
    done = rewriter.merge(segments[0].base_offset, segments[3].last_offset)
    copy_with(world)
    keys, why = swept(world)
    assert keys == {before, *(one.key for one in done.old)}
    assert why == []


def test_segments_that_a_rewrite_has_replaced_are_swept_although_the_copy_is_older_than_its_commit(
    world: World,
) -> None:
    rewriter = Rewriter(world.bucket, KEY)
    segments = rewriter.segments()
    base, last = segments[1].base_offset, segments[3].last_offset
    before = rewriter.manifest().stored_key
    copy_with(world, intent(base, last, world.replicas[0].leader_epoch))
    world.clock.advance(1)
    for rewrite_id in (OTHER, ID):
        rewriter.forged = {"rewrite": RewriteOrigin(rewrite_id, MERGE, 3 if rewrite_id == OTHER else 1, 30)}
        done = rewriter.merge(base, last)
        keys, why = swept(world)
        if rewrite_id == OTHER:
            assert keys == {before}
            assert why == [f"3 objects below its end stay: offsets {base} to {last} are being rewritten"]
    assert {one.key for one in segments[1:4]} <= keys
    assert done.entry.key not in keys
    assert why == [
        "1 objects below its end stay: they are newer than the newest copy of the metadata, and may "
        "be of a rewrite that began since"
    ]


def order(erasure_id: UUID) -> bytes:
    return encode_erasure(
        ErasureOrder(
            CLUSTER, erasure_id, 5, -1, bytes(16), bytes(16), bytes(8), (ErasedTopic(EVENTS, "t", (9,)),)
        )
    )


def listed(world: World, *refs: ErasureRef) -> None:
    """Have `CUT` list these orders."""
    keep_cut(world, 1, 0)
    cuts = decode_cuts(world.bucket.get("CUT", max_size=1 << 16))
    world.bucket.put("CUT", encode_cuts(Cuts(CLUSTER, cuts.kept, refs)))


def record_of(ref: ErasureRef) -> ErasureRecord:
    return ErasureRecord(
        id=ref.id, key=ref.key, stored_size=ref.stored_size, crc32c=ref.crc32c, keys=1, topics=(EVENTS,),
        started_ms=5, done_ms=-1, is_restored=False,
    )  # fmt: skip


def test_orders_are_swept_that_neither_cut_nor_the_metadata_has(world: World) -> None:
    data = order(ID)
    ref = ErasureRef(ID, erasure_key(ID), len(data), crc32c(data))
    world.bucket.put(ref.key, data)
    world.bucket.put(erasure_key(OTHER), order(OTHER))
    listed(world, ref)
    copy_with(world)
    assert swept(world)[0] & {ref.key, erasure_key(OTHER)} == {erasure_key(OTHER)}
    listed(world)
    copy_with(world, record_of(ref))
    assert swept(world)[0] & {ref.key, erasure_key(OTHER)} == {erasure_key(OTHER)}
    copy_with(world)
    world.bucket.put(erasure_key(OTHER), order(OTHER))
    assert swept(world)[0] & {ref.key, erasure_key(OTHER)} == {ref.key}, "the other is newer than the copy"


def test_documents_of_orders_are_proved(world: World) -> None:
    data = order(ID)
    ref = ErasureRef(ID, erasure_key(ID), len(data), crc32c(data))
    world.bucket.put(ref.key, data)
    world.bucket.put(erasure_key(OTHER), order(OTHER))
    world.bucket.put("erase/notes.txt", b"?")
    listed(world, ref)
    copy_with(world)
    report = fsck(world.bucket)
    assert report.erasures == 1
    assert [one for one in report.errors if one.where.startswith("erase/")] == []
    assert erasure_key(OTHER) in {one.key for one in report.orphans}
    assert ("erase/notes.txt", "not a key of this layout") in report.notes
    for wrong in (None, data[:-1], order(OTHER), b"?"):
        if wrong is None:
            world.bucket.delete([ref.key])
        else:
            world.bucket.put(ref.key, wrong)
        assert ref.key in {one.where for one in fsck(world.bucket).errors}
    listed(world)
    copy_with(world, record_of(ref))
    world.bucket.delete([ref.key])
    report = fsck(world.bucket)
    assert ref.key not in {one.where for one in report.errors}, "its document goes before the order"
    assert any(
        one.where == ref.key and "the copy of the metadata has its order" in one.what for one in report.notes
    )


def test_a_damaged_cut_lists_all_orders_again(world: World) -> None:
    data = order(ID)
    ref = ErasureRef(ID, erasure_key(ID), len(data), crc32c(data))
    world.bucket.put(ref.key, data)
    copy_with(world)
    listed(world, ref)
    world.bucket.put("CUT", b"?")
    [repair] = list(find_repairs(world.bucket))
    assert isinstance(repair, CutsRepair)
    assert carry_out(world.bucket, repair, lambda: UUID(int=5))
    assert decode_cuts(world.bucket.get("CUT", max_size=1 << 16)).erasures == (ref,)
    assert list(find_repairs(world.bucket)) == []
    world.bucket.put("CUT", b"?")
    world.bucket.put(ref.key, b"?")
    [lost] = list(find_repairs(world.bucket))
    assert isinstance(lost, Unrepairable)
    assert "a restore without it would bring them back" in lost.wrong


def test_a_damaged_order_cannot_be_repaired_and_is_named(world: World) -> None:
    data = order(ID)
    ref = ErasureRef(ID, erasure_key(ID), len(data), crc32c(data))
    world.bucket.put(ref.key, data[:-1] + b"?")
    copy_with(world)
    listed(world, ref)
    [lost] = list(find_repairs(world.bucket))
    assert isinstance(lost, Unrepairable)
    assert lost.where == ref.key
    assert "give the order anew" in lost.wrong


def test_a_lost_chain_is_made_again_from_what_was_rewritten(world: World) -> None:
    """What erasures replaced is still there: its records do not come back."""
    rewriter = Rewriter(world.bucket, KEY)
    segments = rewriter.segments()
    gone = segments[2].base_offset
    rewriter.merge(segments[0].base_offset, segments[1].last_offset)
    rewriter.erase(segments[2].base_offset, segments[2].last_offset, without_offsets(gone))
    copy_metadata(world)
    after = rewriter.segments()
    for key in world.stored_keys():
        if "/0/manifest/" in key or key.endswith("/HEAD"):
            world.bucket.delete([key])
    [repair] = [one for one in find_repairs(world.bucket) if isinstance(one, HeadRepair)]
    assert carry_out(world.bucket, repair, lambda: UUID(int=5))
    assert rewriter.segments() == after
    chain = open_published(world.bucket, KEY)
    assert chain is not None
    assert [one for one in fsck(world.bucket).errors if one.where.startswith("data/")] == []


def test_a_damaged_page_of_pages_is_made_again_beside_pages_that_were_replaced(tmp_path: Path) -> None:
    world = World(tmp_path / "disk", limits=ManifestLimits(entries=2, page_refs=2))
    world.fill(13)
    world.run()
    world.run()
    rewriter = Rewriter(world.bucket, KEY)
    for one in rewriter.segments()[:6]:
        rewriter.erase(one.base_offset, one.last_offset, without_offsets(one.base_offset))
    manifest = rewriter.manifest()
    ref = manifest.pages[0]
    assert ref.level > 0
    data = world.bucket.get(ref.key, max_size=1 << 20)
    world.bucket.put(ref.key, b"?")
    [repair] = list(find_repairs(world.bucket))
    assert isinstance(repair, PageRepair)
    assert carry_out(world.bucket, repair, lambda: UUID(int=5))
    assert world.bucket.get(ref.key, max_size=1 << 20) == data


def test_a_damaged_page_is_made_again_beside_what_it_replaced(tmp_path: Path) -> None:
    world = World(tmp_path / "disk", limits=ManifestLimits(entries=4, page_refs=2))
    world.fill(11)
    world.run()
    world.run()
    rewriter = Rewriter(world.bucket, KEY)
    segments = rewriter.segments()
    for one in segments[:4]:
        rewriter.erase(one.base_offset, one.last_offset, without_offsets(one.base_offset))
    manifest = rewriter.manifest()
    ref = next(one for one in manifest.pages if one.base_offset == segments[0].base_offset)
    data = world.bucket.get(ref.key, max_size=1 << 20)
    world.bucket.put(ref.key, b"?")
    [repair] = list(find_repairs(world.bucket))
    assert isinstance(repair, PageRepair)
    assert carry_out(world.bucket, repair, lambda: UUID(int=5))
    assert world.bucket.get(ref.key, max_size=1 << 20) == data
    assert replace(manifest) == rewriter.manifest()
