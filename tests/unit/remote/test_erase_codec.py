"""An order to erase keys: what is written is read, and nothing else is."""

from __future__ import annotations

import binascii
import json
import zlib
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c

from service.base.errors import CorruptionError
from service.remote.format.cut_codec import ErasureRef
from service.remote.format.documents import gzip
from service.remote.format.erase_codec import (
    ErasedTopic,
    ErasureOrder,
    decode_erasure,
    encode_erasure,
    open_erasure,
)
from service.remote.format.keys import ErasureKey, erasure_key, parse_key
from service.remote.format.stamp import Stamp, Writer
from tests.support.bombs import gzip_bomb

ID = UUID("0f0e0d0c-0b0a-4908-8706-050403020100")
HASHES = bytes(range(16)) + bytes(range(100, 116)) + bytes(range(200, 216))
FILTER_HASHES = bytes(8) + bytes(8) + b"\xff" * 8
ORDER = ErasureOrder(
    "cluster",
    ID,
    1_700_000_000_000,
    -1,
    bytes(range(16)),
    HASHES,
    FILTER_HASHES,
    (
        ErasedTopic(UUID(int=7), "orders", (5, 0, 1 << 40), (3, -1, (1 << 31) - 1)),
        ErasedTopic(UUID(int=3), "späte", (1,)),
    ),
    Stamp(1_700_000_000_001, Writer(2, UUID(int=5), "firn test")),
)


TOPIC = {"topic_id": str(ID), "name": "t", "ends": [1]}


def test_an_order_is_read_as_it_was_written() -> None:
    without_epochs = ORDER._replace(topics=(ErasedTopic(UUID(int=7), "orders", (5, 0)),))
    assert b"leader_epochs" not in zlib.decompress(encode_erasure(without_epochs), wbits=31), "as before"
    for order in (ORDER, without_epochs, ORDER._replace(before_ms=1_600_000_000_000, stamp=None)):
        data = encode_erasure(order)
        assert decode_erasure(data) == order
        assert encode_erasure(order) == data
    assert ORDER.keys == 3


def test_an_orders_key_has_its_id() -> None:
    assert ORDER.key == "erase/0f0e0d0c-0b0a-4908-8706-050403020100.json.gz"
    assert parse_key(ORDER.key) == ErasureKey(ID)
    for other in (
        ORDER.key + "x",
        "x" + ORDER.key,
        ORDER.key.upper(),
        ORDER.key.replace("/", "//"),
        ORDER.key.replace("0f0e", "f0e"),
        ORDER.key.replace(".json.gz", ".json.zst"),
        ORDER.key.replace("erase", "cut"),
        "erase/",
    ):
        assert parse_key(other) is None


def test_the_document_is_checked_against_who_names_it() -> None:
    data = encode_erasure(ORDER)
    ref = ErasureRef(ID, ORDER.key, len(data), crc32c(data))
    assert open_erasure(data, ref) == ORDER
    for wrong in (
        ref._replace(crc32c=ref.crc32c ^ 1),
        ref._replace(stored_size=len(data) + 1),
        ref._replace(id=UUID(int=1)),
        ref._replace(key=erasure_key(UUID(int=1))),
        ref._replace(id=UUID(int=1), key=erasure_key(UUID(int=1))),
    ):
        with pytest.raises(CorruptionError):
            open_erasure(data, wrong)


def test_every_flipped_bit_and_every_other_length_is_noticed() -> None:
    data = encode_erasure(ORDER)
    same = 0
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = decode_erasure(bytes(damaged))
        except CorruptionError:
            continue
        assert found == ORDER
        same += 1
    assert same <= 64, "some bits of gzip's head mean nothing to whoever inflates it"
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_erasure(data[:length])
    for more in (b" ", b"\0", data):
        with pytest.raises(CorruptionError):
            decode_erasure(data + more)


def document() -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(zlib.decompress(encode_erasure(ORDER), wbits=31))
    return fields


def base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


@pytest.mark.parametrize(
    "change",
    [
        {"format": "firn-cut"},
        {"format_version": 3},
        {"format_version": True},
        {"cluster_id": 1},
        {"cluster_id": "c" * 5000},
        {"id": "0F0E0D0C-0B0A-4908-8706-050403020100"},
        {"id": None},
        {"started_ms": -1},
        {"started_ms": 1 << 53},
        {"before_ms": -2},
        {"before_ms": 1.5},
        {"keys": 0, "hashes": "", "filter_hashes": ""},
        {"keys": 2},
        {"keys": 4},
        {"keys": 10**9},
        {"keys": 100_001, "hashes": base64(bytes(16 * 100_001))},
        {"secret": base64(bytes(15))},
        {"secret": base64(bytes(17))},
        {"secret": 7},
        {"secret": "?" * 24},
        {"secret": "é" * 24},
        {"secret": base64(bytes(16)).replace("A==", "B==")},
        {"hashes": base64(HASHES[16:] + HASHES[:16])},
        {"hashes": base64(HASHES[:16] * 3)},
        {"hashes": base64(HASHES[:32])},
        {"hashes": [1, 2, 3]},
        {"hashes": None},
        {"filter_hashes": base64(FILTER_HASHES[::-1])},
        {"filter_hashes": base64(FILTER_HASHES[:16])},
        {"topics": []},
        {"topics": {}},
        {"topics": [{}]},
        {"topics": [7]},
        {"topics": [{"topic_id": str(ID), "name": "t", "ends": []}]},
        {"topics": [{"topic_id": str(ID), "name": "t", "ends": [-1]}]},
        {"topics": [{"topic_id": str(ID), "name": "t", "ends": [True]}]},
        {"topics": [{"topic_id": str(ID), "name": "t", "ends": [1 << 53]}]},
        {"topics": [{"topic_id": str(ID), "name": "t", "ends": ["1"]}]},
        {"topics": [{"topic_id": str(ID), "name": "t", "ends": 1}]},
        {"topics": [{"topic_id": "t", "name": "t", "ends": [1]}]},
        {"topics": [{"topic_id": str(ID), "name": None, "ends": [1]}]},
        {"topics": [{"topic_id": str(ID), "name": "t", "ends": [1]}] * 2},
        {"topics": [{**TOPIC, "leader_epochs": None}]},
        {"topics": [{**TOPIC, "leader_epochs": []}]},
        {"topics": [{**TOPIC, "leader_epochs": [1, 2]}]},
        {"topics": [{**TOPIC, "leader_epochs": [-2]}]},
        {"topics": [{**TOPIC, "leader_epochs": [1 << 31]}]},
        {"topics": [{**TOPIC, "leader_epochs": ["1"]}]},
        {"topics": [{**TOPIC, "leader_epochs": [False]}]},
        {"topics": [{"topic_id": str(ID), "name": "t", "ends": [1] * 1_000_001}]},
    ],
    ids=lambda change: str(change)[:40],
)
def test_other_fields_are_refused(change: dict[str, Any]) -> None:
    fields = document()
    decode_erasure(gzip(json.dumps(fields).encode()))
    with pytest.raises(CorruptionError):
        decode_erasure(gzip(json.dumps({**fields, **change}).encode()))


@pytest.mark.parametrize("name", sorted(document()))
def test_a_missing_field_is_noticed(name: str) -> None:
    fields = document()
    del fields[name]
    data = gzip(json.dumps(fields).encode())
    if name in ("written_ms", "writer"):
        fields.pop("writer", None)
        assert decode_erasure(gzip(json.dumps(fields).encode())) == ORDER._replace(stamp=None)
    else:
        with pytest.raises(CorruptionError):
            decode_erasure(data)


def test_fields_of_later_software_are_passed_over() -> None:
    fields = {**document(), "reason": "law"}
    assert decode_erasure(gzip(json.dumps(fields).encode())) == ORDER


def test_nothing_is_inflated_beyond_the_formats_bound() -> None:
    with pytest.raises(CorruptionError, match="inflates beyond"):
        decode_erasure(gzip_bomb(1 << 30))
    with pytest.raises(CorruptionError, match="at most 16777216 are read"):
        decode_erasure(b"\x1f\x8b" + bytes(1 << 24))


@pytest.mark.parametrize(
    "change",
    [
        lambda order: order._replace(hashes=b"", filter_hashes=b""),
        lambda order: order._replace(hashes=HASHES[16:] + HASHES[:16]),
        lambda order: order._replace(hashes=HASHES[:-1]),
        lambda order: order._replace(filter_hashes=FILTER_HASHES[:-8]),
        lambda order: order._replace(filter_hashes=FILTER_HASHES[::-1]),
        lambda order: order._replace(secret=bytes(8)),
        lambda order: order._replace(before_ms=-2),
        lambda order: order._replace(topics=()),
        lambda order: order._replace(topics=order.topics * 2),
        lambda order: order._replace(topics=(ErasedTopic(ID, "t", ()),)),
    ],
)
def test_an_order_that_nobody_would_read_is_not_written(
    change: Callable[[ErasureOrder], ErasureOrder],
) -> None:
    with pytest.raises(ValueError, match=r".+"):
        encode_erasure(change(ORDER))


def test_the_largest_order_fits() -> None:
    hashes = b"".join(n.to_bytes(16, "big") for n in range(100_000))
    filter_hashes = b"".join((n * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big") for n in range(100_000))
    rows = sorted(filter_hashes[at : at + 8] for at in range(0, len(filter_hashes), 8))
    topics = tuple(
        ErasedTopic(UUID(int=n + 1), f"topic-{n}", tuple(range(1 << 40, (1 << 40) + 1000)))
        for n in range(1000)
    )
    order = ORDER._replace(hashes=hashes, filter_hashes=b"".join(rows), topics=topics)
    data = encode_erasure(order)
    assert len(data) < 8 << 20
    assert decode_erasure(data) == order


def test_no_error_shows_the_secret_or_a_hash() -> None:
    fields = document()
    for name in ("secret", "hashes", "filter_hashes"):
        for text in (fields[name][:-4], fields[name] + "AAAA", "#" + fields[name][1:]):
            with pytest.raises(CorruptionError) as caught:
                decode_erasure(gzip(json.dumps({**fields, name: text}).encode()))
            assert fields[name][4:12] not in str(caught.value)
