"""Every written document is read back, and every damaged one is reported."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.remote.format import keys
from service.remote.format.manifest import Manifest, ManifestLimits, SegmentEntry, live_segments
from service.remote.format.manifest_codec import (
    decode_head,
    decode_manifest,
    decode_page,
    encode_head,
    encode_manifest,
    encode_page,
    head_of,
)
from service.remote.format.segment_object import TRAILER, PlannedObject, decode_footer, tail_length
from service.remote.reading.chunk import split_chunks, verify_chunk
from service.remote.reading.reader import RemoteReader
from service.remote.stores.memory_store import MemoryStore
from tests.support.world import WORLD
from tests.unit.remote.archive import TIP, Archive, batch_of, plan_segment

TOPIC = UUID(int=5)
offsets = st.integers(0, keys.MAX_OFFSET)
epochs = st.integers(0, keys.MAX_EPOCH)
uuids = st.uuids()


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, int, int, tuple[tuple[int, int], ...]]:
    """A log with holes, its range, and its epochs."""
    base = draw(st.integers(0, 1 << 40))
    offset, log, starts = base, b"", [(0, base)]
    for number in range(draw(st.integers(1, 12))):
        offset += draw(st.integers(0, 5))
        if number and draw(st.booleans()):
            starts.append((starts[-1][0] + draw(st.integers(1, 3)), offset))
        count = draw(st.integers(1, 4))
        log += batch_of(
            offset, count, draw(st.integers(0, 300)), starts[-1][0], draw(st.integers(0, 1 << 41))
        )
        offset += count
    return log, base, offset - 1 + draw(st.integers(0, 3)), tuple(starts)


@st.composite
def objects(draw: st.DrawFn) -> tuple[PlannedObject, bytes]:
    log, base, last, starts = draw(logs())
    plan = plan_segment(
        log,
        base_offset=base,
        last_offset=last,
        epochs=starts,
        uuid=draw(uuids),
        block_bytes=draw(st.sampled_from([1, 200, 1000, 1 << 20])),
    )
    return plan, b"".join(plan.parts())


@given(objects())
@settings(max_examples=60, deadline=None)
def test_an_object_is_read_back_from_any_long_enough_suffix(written: tuple[PlannedObject, bytes]) -> None:
    plan, data = written
    assert len(data) == plan.size
    length = tail_length(data[-len(plan.tail) :], len(data))
    assert length == len(plan.tail)
    assert decode_footer(data[-length:], len(data)) == plan.footer


@given(objects(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_flipped_bit_anywhere_in_the_tail_is_noticed(
    written: tuple[PlannedObject, bytes], data: st.DataObject
) -> None:
    plan, whole = written
    tail = bytearray(plan.tail)
    bit = data.draw(st.integers(0, 8 * len(tail) - 1))
    tail[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptionError):
        decode_footer(tail, len(whole))


@given(objects(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_flipped_bit_anywhere_in_the_log_is_noticed(
    written: tuple[PlannedObject, bytes], data: st.DataObject
) -> None:
    plan, whole = written
    bit = data.draw(st.integers(0, 8 * plan.footer.log_length - 1))
    log = bytearray(whole[: plan.footer.log_length])
    log[bit // 8] ^= 1 << bit % 8
    noticed = 0
    for chunk in split_chunks(plan.footer.blocks, 500):
        try:
            verify_chunk(log[chunk.position : chunk.position + chunk.length], chunk, plan.footer.blocks)
        except CorruptionError:
            noticed += 1
    assert noticed == 1


@given(objects(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_truncated_object_is_noticed(written: tuple[PlannedObject, bytes], data: st.DataObject) -> None:
    _, whole = written
    kept = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptionError):
        decode_footer(whole[:kept], kept)


@given(st.binary(max_size=400), st.integers(0, 1 << 40))
@settings(max_examples=200, deadline=None)
def test_garbage_is_never_a_footer(garbage: bytes, size: int) -> None:
    with pytest.raises(CorruptionError):
        decode_footer(garbage, size)
    trailer = TRAILER.pack(len(garbage), 0, b"FIRNSEG1")
    with pytest.raises(CorruptionError):
        decode_footer(garbage + trailer, max(size, len(garbage) + 16))
    for decode in (decode_manifest, decode_head):
        with pytest.raises(CorruptionError):
            decode(garbage)


def entries(sizes: list[int], base: int) -> list[SegmentEntry]:
    found = []
    for number, size in enumerate(sizes):
        key = keys.segment_key(keys.SegmentKey(TOPIC, 0, base, base + size - 1, number, UUID(int=number)))
        stamp = (number * 7919) % 100
        found.append(
            SegmentEntry(
                base,
                base + size - 1,
                size + 9,
                size,
                stamp,
                base,
                ((number, base),),
                key,
                size,
                number,
                (number * 31) % (stamp + 2) - 1,
            )
        )
        base += size
    return found


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=60),
    st.integers(0, 1 << 40),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1300)), max_size=8),
    st.tuples(st.integers(1, 6), st.integers(2, 4)),
    st.randoms(use_true_random=False),
)
@settings(max_examples=80, deadline=None)
def test_a_chain_with_pages_behaves_as_a_plain_list(
    sizes: list[int], base: int, drops: list[tuple[int, int]], limits: tuple[int, int], rng: Any
) -> None:
    pages: dict[str, bytes] = {}
    manifest = Manifest("c", TOPIC, "t", 0)
    model: list[SegmentEntry] = []
    start = base

    def load(ref):  # type: ignore[no-untyped-def]
        return decode_page(pages[ref.key], ref, TOPIC, 0)

    todo = entries(sizes, base)
    while todo or drops:
        if todo and (not drops or rng.random() < 0.7):
            count = min(len(todo), rng.randint(1, 9))
            batch, todo = todo[:count], todo[count:]
            change = manifest.append(
                batch,
                leader_epoch=1,
                new_uuid=lambda: UUID(int=rng.getrandbits(128)),
                encode_page=encode_page,
                limits=ManifestLimits(*limits),
            )
            pages.update((ref.key, data) for _, ref, data in change.pages)
            manifest = change.manifest
            model += batch
        elif drops:
            _, ahead = drops.pop()
            if not manifest.version:
                continue
            drop = manifest.drop_before(base + ahead, leader_epoch=1, load=load)
            start = max(start, min(base + ahead, manifest.end_offset))
            gone = [e for e in model if e.last_offset < start]
            model = model[len(gone) :]
            assert list(drop.segments) == gone
            manifest = drop.manifest
        assert decode_manifest(encode_manifest(manifest)) == manifest
        assert list(live_segments(manifest, load)) == model
        assert (manifest.segments, manifest.size_bytes) == (len(model), sum(e.size for e in model))
        assert manifest.start_offset == start
        for _ in range(3):
            offset = base + rng.randint(-2, 1300)
            holds = [e for e in model if e.base_offset <= offset <= e.last_offset and offset >= start]
            assert manifest.find(offset, load) == (holds[0] if holds else None)
            stamp = rng.randint(-1, 101)
            newer = [e for e in model if e.max_timestamp >= stamp and e.last_offset >= offset]
            assert manifest.find_by_timestamp(stamp, load, offset) == (newer[0] if newer else None)


@given(st.binary(min_size=1, max_size=64), st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_manifest_is_noticed(noise: bytes, data: st.DataObject) -> None:
    manifest = Manifest("c", TOPIC, "t", 0, 1, 0, 1, 5, (), tuple(entries([5, 5, 5], 5)))
    stored = bytearray(encode_manifest(manifest))
    at = data.draw(st.integers(0, len(stored) - 1))
    damaged = stored[:at] + noise + stored[at + len(noise) :]
    if damaged != stored:
        with suppress(CorruptionError):  # bytes that zstd does not look at may differ
            assert decode_manifest(bytes(damaged)) == manifest
    head = head_of(manifest, manifest.key(UUID(int=1)), bytes(stored))
    assert decode_head(encode_head(head)) == head


@given(offsets, offsets, epochs, uuids, st.integers(0, keys.MAX_PARTITION))
def test_keys_parse_back(first: int, second: int, epoch: int, uuid: UUID, partition: int) -> None:
    base, last = sorted((first, second))
    segment = keys.SegmentKey(TOPIC, partition, base, last, epoch, uuid)
    assert keys.parse_key(keys.segment_key(segment)) == segment
    manifest = keys.ManifestKey(TOPIC, partition, base, epoch, uuid)
    assert keys.parse_key(keys.manifest_key(manifest)) == manifest


@given(st.text(max_size=200))
def test_no_text_breaks_the_key_parser(text: str) -> None:
    keys.parse_key(text)
    keys.parse_key(f"data/{TOPIC}/0/{text}")


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=5),
    st.sampled_from([1, 600, 2_000, 1 << 20]),
    st.sampled_from([500, 3_000, 1 << 20]),
    st.lists(
        st.tuples(st.integers(0, 1 << 30), st.sampled_from([0, 1, 700, 5_000, 1 << 20])),
        min_size=1,
        max_size=12,
    ),
)
@settings(max_examples=40, deadline=None)
def test_every_read_is_a_run_of_whole_batches_from_the_right_one(
    segments: list[int], block_bytes: int, chunk_bytes: int, reads: list[tuple[int, int]]
) -> None:
    archive = Archive(MemoryStore(SystemThreads()), block_bytes=block_bytes)
    for number, batches in enumerate(segments):
        archive.add_segment(batches, count=1 + number, epoch=number)
    reader = RemoteReader(
        archive.store, WORLD, threads=2, cache_bytes=4 * chunk_bytes, chunk_bytes=chunk_bytes
    )
    try:
        for where, max_bytes in reads:
            offset = where % archive.next_offset
            got = reader.read(TIP, archive.manifest_key, offset, max_bytes).result(20)
            data = b"".join(got.data)
            start = archive.position_of(offset)
            assert data == archive.log[start : start + len(data)]
            end = start + len(data)
            assert end == len(archive.log) or archive.position_of(got.next_offset) == end
            first = archive.log[start:]
            size = int.from_bytes(first[8:12], "big") + 12
            assert size <= len(data) <= max(size, max_bytes)
    finally:
        reader.close()


@given(st.data(), uuids, st.integers(0, keys.MAX_PARTITION), offsets, offsets, epochs)
@settings(max_examples=200, deadline=None)
def test_the_short_look_at_a_segments_key_sees_what_parsing_it_does(
    data: st.DataObject, topic_id: UUID, partition: int, first: int, second: int, epoch: int
) -> None:
    base, last = sorted((first, second))
    key = keys.segment_key(keys.SegmentKey(topic_id, partition, base, last, epoch, UUID(int=1)))
    at = data.draw(st.integers(0, len(key)))
    cut = data.draw(st.sampled_from([0, 0, 1, 2]))
    put = data.draw(st.sampled_from(["", "", "0", "9", "a", "G", "-", "/", "\n", "٣", ".seg", "9999999999"]))
    changed = key[:at] + put + key[at + cut :]
    wanted_last = data.draw(st.sampled_from([last, base, last + 1, keys.MAX_OFFSET]))
    parsed = keys.parse_key(changed)
    expected = isinstance(parsed, keys.SegmentKey) and parsed[:4] == (topic_id, partition, base, wanted_last)
    prefix = keys.partition_prefix(topic_id, partition)
    assert keys.is_segment_of(changed, prefix, base, wanted_last) is expected
    assert keys.is_segment_of(key, prefix, base, last)
