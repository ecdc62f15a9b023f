from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from uuid import UUID

import pytest
import zstandard

from service.base.errors import CorruptionError
from service.remote.format.keys import SegmentKey, segment_key
from service.remote.format.manifest import (
    Manifest,
    ManifestLimits,
    ManifestPage,
    PageRef,
    SegmentEntry,
    live_segments,
)
from service.remote.format.manifest_codec import (
    ClusterFile,
    Head,
    TopicsFileRow,
    decode_cluster,
    decode_head,
    decode_manifest,
    decode_page,
    decode_topics,
    encode_cluster,
    encode_head,
    encode_manifest,
    encode_page,
    encode_topics,
    head_of,
)
from tests.support.bombs import gzip_bomb

TOPIC = UUID(int=3)
SMALL = ManifestLimits(entries=8, page_refs=3)


def entry(number: int, epoch: int = 0) -> SegmentEntry:
    """Segment `number` holds ten offsets and 100 bytes; its newest record is at `number` seconds, the oldest
    half as late.
    """
    base = number * 10
    key = segment_key(SegmentKey(TOPIC, 0, base, base + 9, epoch, UUID(int=number + 1)))
    return SegmentEntry(
        base, base + 9, 100, 50, number * 1000, base, ((epoch, base),), key, 60, 1, number * 500
    )


class Chain:
    """A manifest with its pages in a dictionary; counts page reads."""

    def __init__(self, limits: ManifestLimits = SMALL) -> None:
        self.rng = random.Random(1)
        self.limits = limits
        self.pages: dict[str, bytes] = {}
        self.loads = 0
        self.manifest = Manifest("c", TOPIC, "t", 0)

    def load(self, ref: PageRef) -> ManifestPage:
        self.loads += 1
        return decode_page(self.pages[ref.key], ref, TOPIC, 0)

    def append(self, *entries: SegmentEntry) -> int:
        """Pages written."""
        change = self.manifest.append(
            entries,
            leader_epoch=1,
            new_uuid=lambda: UUID(int=self.rng.getrandbits(128)),
            encode_page=encode_page,
            limits=self.limits,
        )
        for _, ref, data in change.pages:
            self.pages[ref.key] = data
        self.manifest = change.manifest
        return len(change.pages)

    def live(self) -> list[int]:
        return [e.base_offset // 10 for e in live_segments(self.manifest, self.load)]


def test_each_change_is_a_new_version_with_its_parent() -> None:
    chain = Chain()
    chain.append(entry(0))
    assert (chain.manifest.version, chain.manifest.parent_version) == (1, 0)
    chain.append(entry(1), entry(2))
    assert (chain.manifest.version, chain.manifest.parent_version) == (2, 1)
    drop = chain.manifest.drop_before(10, leader_epoch=4, load=chain.load)
    assert (drop.manifest.version, drop.manifest.parent_version, drop.manifest.leader_epoch) == (3, 2, 4)


@pytest.mark.parametrize("wrong", [entry(0), entry(2), entry(1)._replace(last_offset=9)])
def test_only_the_next_segment_can_be_appended(wrong: SegmentEntry) -> None:
    chain = Chain()
    chain.append(entry(0))
    with pytest.raises(ValueError, match="does not continue"):
        chain.append(wrong)


def test_a_chain_may_begin_anywhere_but_goes_on_where_it_ended_even_when_all_is_dropped() -> None:
    chain = Chain()
    chain.append(entry(5))
    assert chain.manifest.start_offset == 50
    chain.manifest = chain.manifest.drop_before(1_000, leader_epoch=1, load=chain.load).manifest
    assert (chain.manifest.start_offset, chain.manifest.end_offset, chain.manifest.segments) == (60, 60, 0)
    with pytest.raises(ValueError, match="does not continue"):
        chain.append(entry(7))
    chain.append(entry(6))
    assert chain.live() == [6]


def test_a_ten_year_partition_costs_a_bounded_manifest_and_rare_pages() -> None:
    chain = Chain()
    written = [chain.append(entry(number)) for number in range(2_000)]
    assert sum(written) < 2_000 // 8 * 1.5 + 1
    assert max(written) <= 8
    assert len(chain.manifest.entries) <= 8
    assert len(chain.manifest.pages) <= 3 * 8
    assert (chain.manifest.segments, chain.manifest.size_bytes) == (2_000, 200_000)
    for offset in (0, 9, 10, 5_555, 12_345, 19_999):
        chain.loads = 0
        found = chain.manifest.find(offset, chain.load)
        assert found is not None
        assert found.base_offset == offset // 10 * 10
        assert chain.loads <= 6
    assert chain.manifest.find(20_000, chain.load) is None


def test_a_thousand_segments_need_no_page() -> None:
    chain = Chain(ManifestLimits())
    assert chain.append(*(entry(number) for number in range(1024))) == 0
    assert chain.append(entry(1024)) == 1
    assert [ref.segments for ref in chain.manifest.pages] == [1024]
    assert len(chain.manifest.entries) == 1


def test_dropping_names_every_object_once_and_keeps_the_sums_true() -> None:
    chain = Chain()
    for number in range(300):
        chain.append(entry(number, number // 50))
    pages = set(chain.pages)
    rng = random.Random(7)
    start, dropped, dropped_pages = 0, [], []
    while chain.manifest.segments:
        start = min(start + rng.choice([0, 3, 10, 40, 77, 300]), 3_000)
        before = chain.live()
        drop = chain.manifest.drop_before(start, leader_epoch=9, load=chain.load)
        chain.manifest = drop.manifest
        dropped += [e.base_offset // 10 for e in drop.segments]
        dropped_pages += [ref.key for ref in drop.pages]
        assert chain.manifest.start_offset == start
        assert [e.base_offset // 10 for e in drop.segments] + chain.live() == before
        assert len(chain.live()) == chain.manifest.segments
        assert chain.manifest.size_bytes == 100 * chain.manifest.segments
        assert decode_manifest(encode_manifest(chain.manifest)) == chain.manifest
    assert dropped == list(range(300))
    assert sorted(dropped_pages) == sorted(pages)


def test_dropping_below_the_start_drops_nothing() -> None:
    chain = Chain()
    chain.append(*(entry(number) for number in range(20)))
    chain.manifest = chain.manifest.drop_before(55, leader_epoch=1, load=chain.load).manifest
    drop = chain.manifest.drop_before(20, leader_epoch=1, load=chain.load)
    assert drop.keys == ()
    assert drop.manifest.start_offset == 55
    assert chain.manifest.find(54, chain.load) is None
    assert chain.manifest.find(55, chain.load) == entry(5)


def test_times_are_found_through_pages_and_not_below_the_start() -> None:
    chain = Chain()
    for number in range(100):
        chain.append(entry(number))
    for second in (0, 7, 42, 99):
        found = chain.manifest.find_by_timestamp(second * 1000 - 1, chain.load)
        assert found == entry(second)
    assert chain.manifest.find_by_timestamp(99_001, chain.load) is None
    assert chain.manifest.find_by_timestamp(0, chain.load, from_offset=333) == entry(33)
    chain.manifest = chain.manifest.drop_before(505, leader_epoch=1, load=chain.load).manifest
    assert chain.manifest.find_by_timestamp(0, chain.load) == entry(50)
    assert chain.manifest.max_timestamp(chain.load) == 99_000


def test_the_newest_time_is_that_of_what_is_live() -> None:
    chain = Chain()
    chain.append(entry(0)._replace(max_timestamp=10**12))
    chain.append(*(entry(number) for number in range(1, 30)))
    assert chain.manifest.max_timestamp(chain.load) == 10**12
    chain.manifest = chain.manifest.drop_before(10, leader_epoch=1, load=chain.load).manifest
    assert chain.manifest.max_timestamp(chain.load) == 29_000


def test_a_reference_has_the_least_timestamp_below_it_if_all_are_known() -> None:
    chain = Chain()
    for number in range(8, 100):
        chain.append(entry(number))
    assert {ref.level for ref in chain.manifest.pages} >= {0, 1}
    for ref in chain.manifest.pages:
        assert ref.min_timestamp == 50 * ref.base_offset
    chain = Chain()
    for number in range(100):
        chain.append(entry(number)._replace(min_timestamp=-1) if number == 9 else entry(number))
    deep, *_, last = chain.manifest.pages
    assert (deep.min_timestamp, last.min_timestamp) == (-1, 50 * last.base_offset)
    assert [child.min_timestamp for child in chain.load(deep).children][:3] == [0, -1, 8000]


def test_manifests_of_before_the_least_timestamp_are_read() -> None:
    """And so are pages that are named by a writer which does not know it."""
    chain = Chain()
    for number in range(40):
        chain.append(entry(number))
    manifest = chain.manifest
    document = json.loads(gzip.decompress(encode_manifest(manifest)))
    document["format_version"] = 1
    for child in (*document["pages"], *document["segments"]):
        assert child.pop("min_timestamp") >= 0
    compressor = zstandard.ZstdCompressor(write_checksum=True, write_content_size=True)
    older = decode_manifest(compressor.compress(json.dumps(document).encode()))
    assert {child.min_timestamp for child in older.children} == {-1}
    assert [c._replace(min_timestamp=0) for c in older.children] == [
        c._replace(min_timestamp=0) for c in manifest.children
    ]
    assert list(live_segments(older, chain.load))[:8] == [entry(number) for number in range(8)]


def test_a_page_that_is_not_the_one_the_manifest_names_is_refused() -> None:
    chain = Chain()
    for number in range(40):
        chain.append(entry(number))
    ref = chain.manifest.pages[-1]
    data = chain.pages[ref.key]
    decode_page(data, ref, TOPIC, 0)
    for wrong in (
        ref._replace(crc32c=ref.crc32c ^ 1),
        ref._replace(stored_size=ref.stored_size + 1),
        ref._replace(segments=ref.segments + 1),
        ref._replace(size_bytes=1),
        ref._replace(max_timestamp=0),
        ref._replace(min_timestamp=ref.min_timestamp + 1),
        ref._replace(min_timestamp=ref.min_timestamp - 1),
        ref._replace(last_offset=ref.last_offset + 1),
        ref._replace(level=ref.level + 1),
    ):
        with pytest.raises(CorruptionError):
            decode_page(data, wrong, TOPIC, 0)
    with pytest.raises(CorruptionError):
        decode_page(data, ref, UUID(int=4), 0)
    with pytest.raises(CorruptionError):
        decode_page(data, ref, TOPIC, 1)


BASE = Manifest("c", TOPIC, "t", 0, 3, 2, 1, 5, (), (entry(0), entry(1)))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(BASE, version=0),
        replace(BASE, parent_version=3),
        replace(BASE, leader_epoch=-1),
        replace(BASE, start_offset=10),
        replace(BASE, entries=(entry(0), entry(2))),
        replace(BASE, entries=(entry(0), entry(0))),
        replace(BASE, entries=(entry(0, 3), entry(1, 2))),
        replace(BASE, entries=(entry(0)._replace(key=entry(1).key),)),
        replace(BASE, entries=(entry(0)._replace(key="../../etc/passwd"),)),
        replace(BASE, entries=(entry(0)._replace(size=0),)),
        replace(BASE, entries=(entry(0)._replace(size=1 << 50),)),
        replace(BASE, entries=(entry(0)._replace(log_length=101),)),
        replace(BASE, entries=(entry(0)._replace(footer_position=101),)),
        replace(BASE, entries=(entry(0)._replace(footer_position=49),)),
        replace(BASE, entries=(entry(0)._replace(leader_epochs=()),)),
        replace(BASE, entries=(entry(0)._replace(leader_epochs=((0, 3),)),)),
        replace(BASE, entries=(entry(0)._replace(leader_epochs=((1, 0), (1, 5))),)),
        replace(BASE, entries=(entry(0)._replace(max_timestamp=-2),)),
        replace(BASE, entries=(entry(0)._replace(min_timestamp=-2),)),
        replace(BASE, entries=(entry(1)._replace(min_timestamp=1001),), start_offset=10),
        replace(BASE, dropped_segments=1),
        replace(BASE, dropped_bytes=1),
        replace(BASE, partition=1),
        replace(BASE, topic="x" * 5000),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(wrong: Manifest) -> None:
    assert decode_manifest(encode_manifest(BASE)) == BASE
    with pytest.raises(CorruptionError):
        decode_manifest(encode_manifest(wrong))


def test_a_manifest_that_inflates_beyond_its_claim_or_bound_is_refused() -> None:
    bomb = b" " * (65 << 20)
    with pytest.raises(CorruptionError, match="inflates beyond"):
        decode_manifest(gzip_bomb(65 << 20, b" "))
    with pytest.raises(CorruptionError, match="frame"):
        decode_manifest(zstandard.ZstdCompressor(write_checksum=True).compress(bomb))
    plain = encode_manifest(BASE)
    assert plain == encode_manifest(BASE), "no time of change in it"
    for wrong in (b"", b"{}", plain[:-1], plain + b"x", plain + plain):
        with pytest.raises(CorruptionError):
            decode_manifest(wrong)
    unsized = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(b"{}")
    unchecked = zstandard.ZstdCompressor(write_checksum=False).compress(b"{}")
    for wrong in (unsized, unchecked):
        with pytest.raises(CorruptionError, match="frame"):
            decode_manifest(wrong)


def test_head_names_one_manifest() -> None:
    key = BASE.key(UUID(int=77))
    head = head_of(BASE, key, b"stored")
    assert decode_head(encode_head(head)) == head
    assert (head.version, head.stored_size) == (3, 6)
    for wrong in (
        head._replace(manifest_key=entry(0).key),
        head._replace(version=4),
        head._replace(partition=1),
        head._replace(leader_epoch=2),
        head._replace(topic_id=UUID(int=1)),
    ):
        with pytest.raises(CorruptionError):
            decode_head(encode_head(wrong))
    assert isinstance(head, Head)


def test_the_buckets_own_files_round_trip_and_refuse_others() -> None:
    assert decode_cluster(encode_cluster(ClusterFile("abc"))) == ClusterFile("abc")
    rows = [
        TopicsFileRow("b", UUID(int=2), 3, {"z": "1", "a": "ä"}),
        TopicsFileRow("a", UUID(int=1), 1, {}),
    ]
    topics = decode_topics(encode_topics("abc", 17, rows))
    assert (topics.cluster_id, topics.metadata_offset) == ("abc", 17)
    assert topics.topics == (rows[1], rows[0])
    later = encode_cluster(ClusterFile("abc")).replace(b'"layout_version":2', b'"layout_version":3')
    for decode, data in (
        (decode_cluster, later),
        (decode_cluster, encode_topics("abc", 17, rows)),
        (decode_topics, encode_cluster(ClusterFile("abc"))),
        (decode_head, b"[]"),
        (decode_head, b"\xff"),
        (decode_head, b"[" * 100_000),
        (decode_cluster, b'{"format":"firn-cluster","format_version":true}'),
    ):
        with pytest.raises(CorruptionError):
            decode(data)
