"""Two batches at one place of two logs: copies of one batch, or not."""

from __future__ import annotations

from typing import Any

import pytest

from service.records.batch import CompressionType, read_header
from service.records.batch_likeness import Likeness, likeness
from service.records.builder import BatchBuilder
from service.records.compaction import empty_batch, filling_batch, sealed_batch
from service.records.erasure import ErasureCopier
from service.records.scan import scan_batches
from tests.unit.hot.erasures import keys_of

START_MS = 1_700_000_000_000
KEYS = (b"a", b"b", b"c")


def a_batch(
    value: bytes = b"v", keys: tuple[bytes, ...] = KEYS, timestamp: int = START_MS, **options: Any
) -> memoryview:
    """Three records from offset 7 on in leader epoch 4, of producer 9."""
    producer: dict[str, Any] = {"producer_id": 9, "producer_epoch": 1, "base_sequence": 30}
    builder = BatchBuilder(**{"base_offset": 7, "leader_epoch": 4, **producer, **options})
    for at, key in enumerate(keys):
        builder.add(timestamp + at, key, value)
    return memoryview(builder.build())


def without(batch: memoryview, *keys: bytes) -> memoryview:
    copier = ErasureCopier(keys_of(keys), 1000, None, 0, 4096)
    left = b"".join(bytes(part) for part in copier.copy(batch, scan_batches(batch)))
    return memoryview(left + b"".join(bytes(part) for part in copier.rest()))


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((), (), Likeness.SAME),
        ((b"a",), (), Likeness.SAME),
        ((b"a",), (b"b",), Likeness.SAME),
        ((b"a",), (b"b", b"c"), Likeness.UNTOLD),
        (KEYS, (), Likeness.UNTOLD),
        (KEYS, KEYS, Likeness.UNTOLD),
    ],
)
def test_erasures_never_make_another_batch(
    codec: CompressionType, ours: tuple[bytes, ...], theirs: tuple[bytes, ...], expected: Likeness
) -> None:
    whole = a_batch(codec=codec)
    assert likeness(without(whole, *ours), without(whole, *theirs)) is expected
    assert likeness(without(whole, *theirs), without(whole, *ours)) is expected


@pytest.mark.parametrize("gone", [(), (b"b",), KEYS])
@pytest.mark.parametrize(
    "other",
    [
        a_batch(timestamp=START_MS + 5),
        a_batch(leader_epoch=5),
        a_batch(producer_id=8),
        a_batch(producer_epoch=2),
        a_batch(base_sequence=31),
        a_batch(base_offset=6),
        a_batch(keys=(*KEYS, b"d")),
        a_batch(is_transactional=True),
        a_batch(log_append_time=START_MS),
    ],
    ids=[
        "time",
        "epoch",
        "producer",
        "its epoch",
        "sequence",
        "offset",
        "length",
        "transaction",
        "by append",
    ],
)
def test_another_batch_is_another_one_whatever_was_erased_of_it(
    gone: tuple[bytes, ...], other: memoryview
) -> None:
    assert likeness(without(a_batch(), *gone), other) is Likeness.OTHER
    assert likeness(other, without(a_batch(), *gone)) is Likeness.OTHER


def test_one_record_with_another_value_makes_another_batch() -> None:
    for gone in (), (b"b",):
        assert likeness(a_batch(b"w"), without(a_batch(), *gone)) is Likeness.OTHER


def test_a_batch_emptied_in_two_steps_may_have_the_timestamp_of_any_record() -> None:
    twice = without(without(a_batch(), b"c"), b"a", b"b")
    assert read_header(twice).max_timestamp == START_MS + 1
    assert likeness(twice, a_batch()) is Likeness.UNTOLD


def test_a_batch_that_fills_offsets_tells_nothing() -> None:
    assert likeness(memoryview(filling_batch(0, 90, 1)), a_batch()) is Likeness.UNTOLD


def test_a_batch_that_does_not_parse_is_like_itself_alone() -> None:
    """Producers write such batches; no erasure takes anything from them."""
    header = read_header(a_batch(codec=CompressionType.ZSTD))
    broken, other = (memoryview(sealed_batch(header, text)) for text in (b"no zstd", b"no zstd either"))
    assert likeness(broken, broken) is Likeness.SAME
    assert likeness(broken, other) is Likeness.OTHER
    assert likeness(broken, memoryview(empty_batch(header._replace(max_timestamp=0)))) is Likeness.OTHER
