"""Proof of a segment's key filter and of its count of keys: `fsck` finds what would hide a record."""

from __future__ import annotations

import struct
from array import array
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from service.records.erasure import filter_hash
from service.records.filter_kernel import insert
from service.remote.format.segment_object import Footer, SegmentIdentity, plan_object
from service.remote.reading.log_scan import ScannedLog, scan_log
from service.remote.reading.object_reader import entry_of
from service.remote.reading.segment_proof import prove_segment
from service.remote.stores.memory_store import MemoryStore

IDENTITY = SegmentIdentity("c", UUID(int=1), "t", 0, 0, 59, 0, UUID(int=2))


def log(names: str = "key") -> bytes:
    """Six batches of ten records, plain and compressed; every third record has no key."""
    found = b""
    for number in range(6):
        codec = CompressionType.ZSTD if number % 2 else CompressionType.NONE
        builder = BatchBuilder(10 * number, codec, 0)
        for i in range(10):
            offset = 10 * number + i
            builder.add(1_000 + offset, None if i % 3 == 0 else b"%s-%d" % (names.encode(), offset), b"v")
        found += builder.build()
    return found


def keys_of_log() -> list[bytes]:
    return [b"key-%d" % offset for offset in range(60) if offset % 10 % 3]


def filter_of(keys: list[bytes]) -> bytes:
    """A filter in more blocks than a writer would choose."""
    words = array("Q", bytes(32 * 130))
    for key in keys:
        insert(words, filter_hash(key))
    return struct.pack(f"<{len(words)}Q", *words)


def scanned(data: bytes, **more: Any) -> ScannedLog:
    return scan_log(
        lambda position, length: data[position : position + length],
        0,
        len(data),
        first_offset=0,
        last_offset=59,
        name="log",
        block_bytes=300,
        **more,
    )


def prove(**change: Any) -> Footer:
    """Prove an object whose footer or filter is another than that of its log."""
    data = log()
    found = scanned(data, with_key_filter=True)
    arguments: dict[str, Any] = {
        "key_filter": found.key_filter,
        "keyed_record_count": found.keyed_record_count,
        "blocks": found.blocks,
        **change,
    }
    planned = plan_object(
        IDENTITY,
        log=lambda: [data],
        log_length=len(data),
        offset_index=b"",
        time_index=b"",
        leader_epochs=((0, 0),),
        transactional_batch_count=0,
        **arguments,
    )
    store = MemoryStore(SystemThreads())
    store.put_stream(planned.key, planned.parts(), planned.size)
    prove_segment(entry_of(planned.footer), planned.footer, partial(store.get_range, planned.key))
    return planned.footer


def test_the_filter_and_the_count_of_a_log_are_proved() -> None:
    footer = prove()
    assert footer.keyed_record_count == 36
    assert footer.sections["key_filter"].length > 0


def test_an_object_that_says_nothing_of_keys_is_proved_without() -> None:
    prove(key_filter=b"", keyed_record_count=None)
    prove(key_filter=b"")


def test_a_log_whose_least_timestamps_are_not_known_is_proved() -> None:
    prove(blocks=scanned(log(), with_least_timestamps=False).blocks)


@pytest.mark.parametrize("count", [0, 35, 37, 60])
def test_another_count_of_keys_is_found(count: int) -> None:
    with pytest.raises(CorruptionError, match=f"36 records have a key, the footer says {count}"):
        prove(key_filter=b"", keyed_record_count=count)


def test_a_filter_of_other_keys_is_found_and_no_key_is_shown() -> None:
    other = scanned(log("other"), with_key_filter=True).key_filter
    with pytest.raises(CorruptionError, match="key_filter: lacks") as caught:
        prove(key_filter=other)
    assert "key-" not in str(caught.value)


def test_a_filter_that_lacks_one_key_is_found() -> None:
    """Whichever record has it: the filter is compared with the keys of all."""
    for missing in (keys := keys_of_log()):
        with pytest.raises(CorruptionError, match=r"key_filter: lacks [1-8] bits of the keys of its records"):
            prove(key_filter=filter_of([one for one in keys if one != missing]))


def test_a_filter_with_a_key_that_no_record_has_is_found() -> None:
    """As that of an object whose records were erased, and its filter was not made anew."""
    prove(key_filter=filter_of(keys_of_log()))
    with pytest.raises(CorruptionError, match=r"key_filter: has [1-8] bits of keys that no record has"):
        prove(key_filter=filter_of([*keys_of_log(), b"erased"]))


@pytest.mark.parametrize("count", [None, 0])
def test_a_filter_without_keys_is_found(count: int | None) -> None:
    with pytest.raises(CorruptionError, match="a key filter, and"):
        prove(keyed_record_count=count)


@pytest.mark.parametrize("data", [b"?", bytes(31), bytes(32)])
def test_a_section_that_is_no_filter_is_found(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="key filter"):
        prove(key_filter=data)
