"""Version 2 of the format: its new fields, and fields of later writers that it skips."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.remote.format.block_table import ROW
from service.remote.format.documents import MAX_INFLATED_BYTES, seal, unpack
from service.remote.format.fields import MAX_INTEGER
from service.remote.format.keys import SegmentKey, segment_key
from service.remote.format.manifest import (
    KeyOwner,
    Manifest,
    ManifestLimits,
    ManifestPage,
    PageRef,
    SegmentEntry,
    live_segments,
)
from service.remote.format.manifest_codec import (
    MAX_MEMBERS,
    MAX_SMALL_BYTES,
    ClusterFile,
    decode_cluster,
    decode_head,
    decode_manifest,
    decode_page,
    encode_cluster,
    encode_head,
    encode_manifest,
    encode_page,
    head_of,
)
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.segment_object import TRAILER, PlannedObject, decode_footer, tail_length
from service.remote.format.stamp import Stamp, Writer
from service.remote.reading.object_reader import (
    check_entry,
    entry_of,
    open_chain,
    open_footer,
    open_footer_of,
)
from service.remote.stores.memory_store import MemoryStore
from service.tiering.chain import ChainStore
from tests.support.bombs import gzip_bomb
from tests.support.world import WORLD
from tests.unit.remote.archive import CLUSTER, TIP, Archive, batch_of, blocks_of, plan_segment

TOPIC, CLONE = UUID(int=3), UUID(int=4)
STAMP = Stamp(1_700_000_000_000, Writer(7, UUID(int=70), "firn 9"))

Fields = dict[str, Any]


def planned(block_bytes: int = 700) -> PlannedObject:
    log = b"".join(batch_of(100 + 5 * i, 5, 50, 0, 1_000 + 10 * i) for i in range(6))
    return plan_segment(
        log,
        base_offset=100,
        last_offset=129,
        epochs=((0, 100),),
        uuid=UUID(int=9),
        block_bytes=block_bytes,
    )


def rewritten(plan: PlannedObject, change: Callable[[Fields], None], tail: bytes | None = None) -> bytes:
    """The object with another footer, and other bytes from the block table on up to it."""
    whole = b"".join(plan.parts())
    length, _, magic = TRAILER.unpack(whole[-TRAILER.size :])
    fields = json.loads(whole[-TRAILER.size - length : -TRAILER.size])
    change(fields)
    body = json.dumps(fields).encode()
    crc = crc32c(len(body).to_bytes(4, "big"), crc32c(body))
    begin = whole[: -TRAILER.size - length] if tail is None else whole[: plan.footer.tail_position] + tail
    return begin + body + TRAILER.pack(len(body), crc, magic)


def section(position: int, data: bytes) -> Fields:
    return {"position": position, "length": len(data), "crc32c": crc32c(data)}


def test_sections_that_a_later_writer_adds_are_passed_over_wherever_they_lie() -> None:
    plan = planned()
    table = plan.footer.blocks.encoded
    at = plan.footer.tail_position

    def behind(fields: Fields) -> None:
        fields["sections"]["bloom_filter"] = section(at + len(table), b"later")

    def before(fields: Fields) -> None:
        fields["sections"]["bloom_filter"] = section(at, b"later")
        fields["sections"]["block_table"]["position"] += 5

    for change, tail in ((behind, table + b"later"), (before, b"later" + table)):
        data = rewritten(plan, change, tail)
        footer = decode_footer(data, len(data))
        assert footer.blocks == plan.footer.blocks
        assert set(footer.sections) == set(plan.footer.sections)
        assert tail_length(data, len(data)) == len(data) - footer.tail_position
        assert decode_footer(data[footer.tail_position :], len(data)) == footer
        store = MemoryStore(SystemThreads())
        store.put(plan.key, data)
        assert open_footer(store, plan.key) == footer == open_footer_of(store, entry_of(footer))


def test_an_unknown_section_may_neither_overlap_nor_leave_a_gap() -> None:
    plan = planned()
    table, at = plan.footer.blocks.encoded, plan.footer.tail_position
    for position in (at + len(table) - 1, at + len(table) + 1, at, 1):

        def change(fields: Fields, position: int = position) -> None:
            fields["sections"]["later"] = section(position, b"later")

        data = rewritten(plan, change, table + b"later")
        with pytest.raises(CorruptionError, match=r"begins at|end at"):
            decode_footer(data, len(data))


def test_rows_that_a_later_writer_made_longer_are_read_as_far_as_we_know_them() -> None:
    plan = planned()
    table = plan.footer.blocks.encoded
    longer = b"".join(table[i : i + ROW.size] + b"more" for i in range(0, len(table), ROW.size))

    def change(fields: Fields, row_bytes: Any = ROW.size + 4) -> None:
        fields["block_row_bytes"] = row_bytes
        fields["sections"]["block_table"] = section(plan.footer.tail_position, longer)

    data = rewritten(plan, change, longer)
    footer = decode_footer(data, len(data))
    assert footer.blocks == plan.footer.blocks
    assert open_with_entry(plan.key, data) == footer
    for wrong in (ROW.size, ROW.size - 4, ROW.size + 5, 1 << 20, None, True):
        data = rewritten(plan, lambda fields, wrong=wrong: change(fields, wrong), longer)  # type: ignore[misc]
        with pytest.raises(CorruptionError):
            decode_footer(data, len(data))


def open_with_entry(key: str, data: bytes) -> object:
    store = MemoryStore(SystemThreads())
    store.put(key, data)
    return open_footer_of(store, entry_of(open_footer(store, key)))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("base_offset", MAX_INTEGER + 1),
        ("last_offset", MAX_INTEGER + 1),
        ("max_timestamp", MAX_INTEGER + 1),
        ("generation", -1),
        ("generation", 1 << 31),
        ("written_ms", -1),
        ("written_ms", MAX_INTEGER + 1),
        ("written_ms", 1.5),
        ("writer", "me"),
        ("writer", {}),
        ("writer", {"node_id": -1, "incarnation": str(UUID(int=1)), "software": ""}),
        ("writer", {"node_id": 1, "incarnation": "x", "software": ""}),
        ("writer", {"node_id": 1, "incarnation": str(UUID(int=1)), "software": "x" * 5000}),
    ],
)
def test_every_field_of_a_footer_has_its_type_and_bound(name: str, wrong: Any) -> None:
    plan = planned()

    def stamped(fields: Fields) -> None:
        fields.update(written_ms=1, writer={"node_id": 1, "incarnation": str(UUID(int=1)), "software": "x"})

    def change(fields: Fields) -> None:
        stamped(fields)
        fields[name] = wrong

    sound = rewritten(plan, stamped)
    assert decode_footer(sound, len(sound)).stamp == Stamp(1, Writer(1, UUID(int=1), "x"))
    data = rewritten(plan, change)
    with pytest.raises(CorruptionError):
        decode_footer(data, len(data))


def test_a_timestamp_beyond_what_json_carries_stands_for_all_later_ones() -> None:
    """Nanoseconds where milliseconds were meant: the block table has them, JSON the greatest it can."""
    nanoseconds = 1_700_000_000_000_000_000
    log = batch_of(0, 3, 10, 0, nanoseconds)
    plan = plan_segment(log, base_offset=0, last_offset=2, epochs=((0, 0),), uuid=UUID(int=9))
    entry = entry_of(plan.footer)
    assert (entry.min_timestamp, entry.max_timestamp) == (MAX_INTEGER, MAX_INTEGER)
    assert plan.footer.blocks[0].max_timestamp == nanoseconds + 2
    check_entry(entry, plan.footer)
    check_entry(entry._replace(max_timestamp=nanoseconds + 2, min_timestamp=nanoseconds), plan.footer)
    topic, partition = plan.footer.identity.topic_id, plan.footer.identity.partition
    manifest = Manifest("c", topic, "t", partition, 1, 0, 0, 0, (), (entry,))
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert manifest.find_by_timestamp(nanoseconds + 1, no_page) == entry, "the block table is to decide"


def no_page(ref: PageRef) -> ManifestPage:
    raise AssertionError(ref)


def test_offsets_that_json_does_not_carry_are_not_written() -> None:
    log = batch_of(MAX_INTEGER, 2, 10, 0, 1)
    with pytest.raises(ValueError, match="greatest"):
        plan_segment(
            log, base_offset=MAX_INTEGER, last_offset=MAX_INTEGER + 1, epochs=((0, 0),), uuid=UUID(int=9)
        )
    beyond = entry(0)._replace(last_offset=MAX_INTEGER)
    with pytest.raises(ValueError, match="greatest"):
        encode_manifest(Manifest("c", TOPIC, "t", 0, 1, 0, 0, 0, (), (beyond,)))


def test_a_member_that_inflates_beyond_the_bound_is_given_up_there() -> None:
    bomb = gzip_bomb(256 << 20, b" ")
    with pytest.raises(CorruptionError, match=f"inflates beyond {MAX_INFLATED_BYTES}"):
        unpack(bomb, "it")


def test_data_that_is_not_one_gzip_member_is_refused() -> None:
    sound = encode_manifest(Manifest("c", TOPIC, "t", 0, 1, 0, 0, 0, (), (entry(0),)))
    assert unpack(sound, "it") == gzip.decompress(sound)
    crc = bytearray(sound)
    crc[-8] ^= 1
    size = bytearray(sound)
    size[-1] ^= 1
    for wrong in (sound[:-1], sound + b"x", sound + sound, bytes(crc), bytes(size), sound[:10], sound[2:]):
        with pytest.raises(CorruptionError, match="it: "):
            unpack(wrong, "it")
    assert zlib.crc32(gzip.decompress(sound)).to_bytes(4, "little") == sound[-8:-4]


def entry(number: int, topic: UUID = TOPIC) -> SegmentEntry:
    base = 10 * number
    key = segment_key(SegmentKey(topic, 0, base, base + 9, 0, UUID(int=number + 1)))
    return SegmentEntry(base, base + 9, 100, 50, number * 1000, base, ((0, base),), key, 60, 1, number * 500)


def test_a_rewritten_segment_carries_its_generation() -> None:
    again = entry(0)._replace(generation=3)
    manifest = Manifest("c", TOPIC, "t", 0, 1, 0, 0, 0, (), (again, entry(1)))
    assert [one.generation for one in decode_manifest(encode_manifest(manifest)).entries] == [3, 0]
    plan = planned()
    data = rewritten(plan, lambda fields: fields.update(generation=3))
    assert entry_of(decode_footer(data, len(data))).generation == 3
    for wrong in (-1, 1 << 31):
        broken = replace(manifest, entries=(entry(0)._replace(generation=wrong),))
        with pytest.raises(CorruptionError, match="generation"):
            decode_manifest(encode_manifest(broken))


def test_a_key_of_another_partition_is_named_with_its_owner_or_not_at_all() -> None:
    borrowed = entry(0)._replace(owner=KeyOwner(TOPIC, 0))
    manifest = Manifest("c", CLONE, "clone", 0, 1, 0, 0, 0, (), (borrowed, entry(1, CLONE)))
    assert decode_manifest(encode_manifest(manifest)) == manifest
    for wrong in (
        entry(0),
        borrowed._replace(owner=KeyOwner(TOPIC, 1)),
        borrowed._replace(owner=KeyOwner(CLONE, 0)),
        borrowed._replace(owner=KeyOwner(TOPIC, -1)),
    ):
        with pytest.raises(CorruptionError):
            decode_manifest(encode_manifest(replace(manifest, entries=(wrong,))))


def test_pages_of_another_partition_are_not_deleted() -> None:
    pages: dict[str, bytes] = {}
    uuids = iter(range(1, 100))

    def chain(topic: UUID) -> Manifest:
        manifest = Manifest("c", topic, "t", 0)
        for number in range(6):
            change = manifest.append(
                [entry(number, topic)],
                leader_epoch=0,
                new_uuid=lambda: UUID(int=next(uuids)),
                encode_page=encode_page,
                limits=ManifestLimits(entries=2, page_refs=4),
            )
            pages.update((ref.key, data) for _, ref, data in change.pages)
            manifest = change.manifest
        return manifest

    original = chain(TOPIC)
    owner = KeyOwner(TOPIC, 0)
    clone = replace(
        original,
        topic_id=CLONE,
        pages=tuple(ref._replace(owner=owner) for ref in original.pages),
        entries=tuple(one._replace(owner=owner) for one in original.entries),
    )
    clone = decode_manifest(encode_manifest(clone))

    def load(ref: PageRef) -> ManifestPage:
        return decode_page(pages[ref.key], ref, CLONE, 0)

    assert clone.pages
    assert [one.key for one in live_segments(clone, load)] == [entry(number).key for number in range(6)]
    assert {one.owner for one in live_segments(clone, load)} == {owner}
    change = clone.append(
        [entry(6, CLONE)], leader_epoch=0, new_uuid=lambda: UUID(int=999), encode_page=encode_page
    )
    drop = change.manifest.drop_before(70, leader_epoch=0, load=load)
    assert len(drop.segments) == 7
    assert drop.keys == (entry(6, CLONE).key,)
    with pytest.raises(CorruptionError, match="another topic"):
        decode_page(pages[original.pages[0].key], original.pages[0], CLONE, 0)


def test_a_manifest_names_its_parent_and_its_writer() -> None:
    archive = Archive(MemoryStore(SystemThreads()))
    chains = ChainStore(archive.store, CLUSTER, WORLD, stamps=lambda: STAMP)
    first = chains.append(chains.empty(TIP), [archive.add_segment(3)], 0, lambda key: None)
    second, _ = chains.drop(first.manifest, TIP, 5, 0, lambda key: None)
    assert (first.manifest.parent_key, second.manifest.parent_key) == (None, first.key)
    stored = open_chain(archive.store, second.key)
    assert stored.manifest.parent_key == first.key
    assert stored.manifest.stamp == STAMP
    assert decode_head(encode_head(stored.head)).stamp == STAMP
    for wrong in (second.key, "x", 5):
        with pytest.raises(CorruptionError):
            decode_manifest(encode_manifest(replace(second.manifest, parent_key=wrong)))  # type: ignore[arg-type]


def test_documents_of_versions_that_we_do_not_know_are_refused() -> None:
    manifest = Manifest("c", TOPIC, "t", 0, 1, 0, 0, 0, (), (entry(0),))
    fields = json.loads(gzip.decompress(encode_manifest(manifest)))
    for version in (0, 3, "2", True, None):
        with pytest.raises(CorruptionError, match="expected firn-manifest 1 to 2"):
            decode_manifest(gzip.compress(json.dumps({**fields, "format_version": version}).encode()))
    plan = planned()
    for change in ({"format_version": 1}, {"format_version": 3}, {"format": "other"}):
        data = rewritten(plan, lambda fields, change=change: fields.update(change))  # type: ignore[misc]
        with pytest.raises(CorruptionError, match="footer of format"):
            decode_footer(data, len(data))


def test_cluster_json_names_the_newest_snapshot_of_the_metadata() -> None:
    key = f"metadata/00000000000000000064-0000000003-{UUID(int=1)}.checkpoint"
    ref = MetadataRef(key, 64, 3, 1000, 5)
    cluster = ClusterFile("abc", STAMP, ref)
    assert decode_cluster(encode_cluster(cluster)) == cluster
    for wrong in (
        ref._replace(end_offset=65),
        ref._replace(epoch=4),
        ref._replace(key="metadata/x"),
        ref._replace(size=0),
        ref._replace(size=1 << 31),
        ref._replace(crc32c=-1),
    ):
        with pytest.raises(CorruptionError):
            decode_cluster(encode_cluster(cluster._replace(metadata=wrong)))


def test_head_is_of_the_manifest_it_names() -> None:
    manifest = Manifest("c", TOPIC, "t", 0, 1, 0, 0, 0, (), (entry(0),), stamp=STAMP)
    head = head_of(manifest, manifest.key(UUID(int=1)), encode_manifest(manifest))
    assert decode_head(encode_head(head)) == head


def test_blocks_of_a_planned_object_are_those_of_its_log() -> None:
    plan = planned()
    log = b"".join(plan.parts())[: plan.footer.log_length]
    assert tuple(plan.footer.blocks) == blocks_of(log, 700)


def test_cluster_json_names_those_that_may_write_beside_its_keeper() -> None:
    members = tuple(UUID(int=number) for number in range(MAX_MEMBERS))
    cluster = ClusterFile("abc", STAMP, None, members)
    data = encode_cluster(cluster)
    assert decode_cluster(data) == cluster
    assert len(data) <= MAX_SMALL_BYTES - 1000, "with whatever else it says"
    assert b"members" not in encode_cluster(ClusterFile("abc", STAMP))
    with pytest.raises(ValueError, match="1501 members"):
        encode_cluster(cluster._replace(members=(*members, UUID(int=9999))))
    body = {"format": "firn-cluster", "format_version": 2, "layout_version": 2, "cluster_id": "abc"}
    for wrong in (
        "x",
        [1],
        ["x"],
        [str(UUID(int=1)).upper() + " "],
        [None],
        ["0" * 32],
        [str(UUID(int=1))] * 1501,
    ):
        with pytest.raises(CorruptionError, match="members"):
            decode_cluster(seal({**body, "members": wrong}))
