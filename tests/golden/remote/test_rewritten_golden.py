"""Golden rewrites: a chain with a merged and an erased segment, and an order to erase keys."""

from __future__ import annotations

import json
import random
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.inspect.dump import write_json
from service.inspect.formats import dump
from service.inspect.fsck import fsck
from service.inspect.source import open_source
from service.records.decode import iter_records
from service.remote.format.cut_codec import decode_cuts
from service.remote.format.erase_codec import ErasedTopic, decode_erasure, open_erasure
from service.remote.format.keys import ErasureKey, HeadKey, ManifestKey, PageKey, SegmentKey, parse_key
from service.remote.format.manifest import live_segments
from service.remote.format.manifest_codec import decode_head, decode_manifest
from service.remote.format.rewrite_origin import ERASE, MERGE
from service.remote.format.segment_object import decode_footer
from service.remote.reading.object_reader import open_footer, open_page, open_published
from service.remote.reading.reader import RemoteReader
from service.remote.reading.tails import open_cuts
from service.remote.stores.memory_store import MemoryStore
from tests.golden.remote.generate import (
    CUTS,
    ERASED,
    ERASURE,
    FOLDERS,
    PARTITION,
    REWRITTEN,
    TOPIC,
    TOPIC_ID,
    rewritten_content,
)
from tests.golden.remote.test_cuts_golden import BEFORE, REFERENCE, comparable, outcome, read, stored
from tests.support.world import WORLD

KEY = HeadKey(TOPIC_ID, PARTITION)
LEFT = [offset for offset in range(90) if offset not in ERASED]


def whole() -> dict[str, bytes]:
    return {**stored(FOLDERS[2]), **stored(CUTS), **stored(REWRITTEN)}


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore(SystemThreads())
    for key, data in whole().items():
        made.put(key, data)
    return made


def test_we_write_the_same_rewrites_under_the_same_names() -> None:
    assert sorted(rewritten_content()) == sorted(stored(REWRITTEN))


@pytest.mark.parametrize("key", sorted(rewritten_content()))
def test_we_write_the_same_bytes(key: str) -> None:
    assert compared(key, rewritten_content()[key]) == compared(key, stored(REWRITTEN)[key])


def compared(key: str, data: bytes) -> object:
    """As `comparable`; without sizes of what gzip packed, whose bytes may vary."""
    found = comparable(key, data)
    if key == "CUT":
        assert isinstance(found, dict)
        for row in found["erasures"]:
            del row["stored_size"], row["crc32c"]
    return found


def test_the_golden_chain_says_what_it_is(store: MemoryStore) -> None:
    chain = open_published(store, KEY)
    assert chain is not None
    manifest = chain.manifest
    segments = list(live_segments(manifest, lambda ref: open_page(store, ref, manifest)))
    assert [(one.base_offset, one.last_offset, one.generation, one.leader_epochs) for one in segments] == [
        (0, 29, 1, ((0, 0),)),
        (30, 44, 0, ((1, 30),)),
        (45, 59, 1, ((1, 45),)),
        (60, 74, 0, ((2, 60),)),
        (75, 89, 0, ((2, 75),)),
    ]
    merged, erased = (open_footer(store, segments[at].key) for at in (0, 2))
    assert merged.rewrite is not None
    assert merged.rewrite[1:] == (MERGE, 2, 30)
    assert erased.rewrite is not None
    assert erased.rewrite[1:] == (ERASE, 1, 15)
    assert [(one.first_offset, one.last_offset, one.record_count) for one in erased.blocks] == [
        (45, 53, 5),
        (54, 59, 6),
    ]
    assert (merged.record_count, erased.record_count) == (30, 11)
    assert (merged.keyed_record_count, erased.keyed_record_count) == (0, 0)


def test_fsck_finds_the_golden_rewrites_whole(store: MemoryStore) -> None:
    report = fsck(store)
    assert [error for error in report.errors if not error.where.endswith(".json")] == []
    assert (report.rewritten, report.erasures) == (2, 1)
    [row] = report.partitions
    assert (row.segments, row.records, row.start_offset, row.end_offset) == (5, 86, 0, 90)


def test_records_are_read_over_the_holes(store: MemoryStore) -> None:
    chain = open_published(store, KEY)
    assert chain is not None
    tip = TopicIdPartition(TOPIC_ID, TOPIC, PARTITION)
    reader = RemoteReader(store, WORLD, threads=1, chunk_bytes=300)
    try:
        for start in (0, 44, 46, 48, 50, 51):
            at, found = start, []
            while at < 90:
                got = reader.read(tip, chain.key, at, 400).result(20)
                found += [(one.offset, one.value) for data in got.data for one in iter_records(bytes(data))]
                at = got.next_offset
            assert [one for one in found if one[0] >= start] == [
                (offset, b"value-%d" % offset) for offset in LEFT if offset >= start
            ]
    finally:
        reader.close()


@pytest.mark.parametrize("script", [BEFORE, REFERENCE], ids=["before", "now"])
def test_readers_by_the_standard_library_alone_read_it(script: Path, tmp_path: Path) -> None:
    for key, data in whole().items():
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for more in ((), ("--committed",)):
        found = read(script, tmp_path, TOPIC, PARTITION, *more)
        assert [(one["offset"], one["value"]) for one in found] == [(n, f"value-{n}") for n in LEFT]
    found = read(script, tmp_path, TOPIC, PARTITION, "--from", 48, "--limit", 2)
    assert [one["offset"] for one in found] == [51, 52]


def test_the_golden_order_is_the_one_that_cut_lists(store: MemoryStore) -> None:
    [ref] = open_cuts(store).erasures
    order = open_erasure(store.get(ref.key, max_size=ref.stored_size), ref)
    assert (order.id, order.keys, order.before_ms) == (ERASURE, 3, -1)
    assert order.topics == (ErasedTopic(TOPIC_ID, TOPIC, (0, 0, 90)),), "as before there were epochs"


def test_the_dump_of_an_order_shows_neither_secret_nor_hashes(capsys: pytest.CaptureFixture[str]) -> None:
    [path] = (REWRITTEN / "erase").iterdir()
    write_json(dump(open_source(str(path))), sys.stdout)
    shown = capsys.readouterr().out
    assert json.loads(shown) == {
        "kind": "order to erase keys",
        "cluster_id": "golden-cluster",
        "id": str(ERASURE),
        "started_ms": 1_700_000_140_000,
        "before_ms": -1,
        "written_ms": 1_700_000_100_000,
        "writer": {
            "node_id": 1,
            "incarnation": "00000000-0000-0000-0000-00000000012c",
            "software": "firn 0.1.0",
        },
        "keys": 3,
        "topics": [{"topic_id": str(TOPIC_ID), "name": TOPIC, "ends": [0, 0, 90], "leader_epochs": []}],
    }


def test_the_dump_of_a_rewritten_segment_says_of_what_it_was_made(capsys: pytest.CaptureFixture[str]) -> None:
    [path] = (REWRITTEN / "data" / str(TOPIC_ID) / "2").glob("*59-*.seg")
    write_json(dump(open_source(str(path))), sys.stdout)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["generation"], shown["record_count"], shown["keyed_record_count"]) == (1, 11, 0)
    assert {name: shown["rewrite"][name] for name in ("kind", "segments", "record_count")} == {
        "kind": "erase", "segments": 1, "record_count": 15,
    }  # fmt: skip


DECODERS: dict[type, Callable[[bytes], object]] = {
    ErasureKey: decode_erasure,
    ManifestKey: decode_manifest,
    SegmentKey: lambda data: decode_footer(data, len(data)),
    HeadKey: decode_head,
}


@pytest.mark.parametrize("kind", DECODERS, ids=lambda kind: kind.__name__)
def test_no_damage_of_a_golden_document_is_believed(kind: type) -> None:
    """Flipped bits, lost and added bytes: an error in words, or what was there."""
    decode, source = DECODERS[kind], random.Random(4)
    found = 0
    for key, data in stored(REWRITTEN).items():
        if not isinstance(parse_key(key), kind):
            continue
        found += 1
        right, begin = decode(data), 0
        if kind is SegmentKey:
            footer = decode_footer(data, len(data))
            begin = footer.tail_position  # records and sections have checksums of their own
        for _ in range(300):
            damaged = bytearray(data)
            at = source.randrange(begin, len(data))
            how = source.randrange(3)
            if how == 0:
                damaged[at] ^= 1 << source.randrange(8)
            elif how == 1:
                del damaged[at : at + source.randrange(1, 9)]
            else:
                damaged[at:at] = source.randbytes(source.randrange(1, 9))
            if damaged != data:
                assert outcome(decode, bytes(damaged)) in (None, right), (key, how, at)
    assert found


def test_every_flipped_bit_of_the_golden_cut_is_noticed() -> None:
    data = stored(REWRITTEN)["CUT"]
    assert len(decode_cuts(data).erasures) == 1
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_cuts(bytes(damaged))


def test_the_golden_page_lists_the_merged_segment() -> None:
    [data] = [data for key, data in stored(REWRITTEN).items() if isinstance(parse_key(key), PageKey)]
    document = json.loads(zlib.decompress(data, wbits=31))
    assert [(row["base_offset"], row["last_offset"], row["generation"]) for row in document["children"]] == [
        (0, 29, 1),
        (30, 44, 0),
    ]
    assert "writer" not in document, "a page is a function of its segments"
