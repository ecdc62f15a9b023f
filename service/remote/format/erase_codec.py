"""Codec of an order to erase keys: `erase/<id>.json.gz`. [P]

Keys are personal data themselves, so the document has none: it has their 128-bit hashes under a random
secret, by which records are judged, and their unkeyed 64-bit hashes, as key filters have them, by which
objects are passed over. Whoever can read it can test a key that they guess: it is deleted with its order.

Decoders bound the data before they inflate it and verify all that is used; they raise `CorruptionError`.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import NO_LEADER_EPOCH
from service.remote.format.documents import (
    FORMAT_VERSION,
    MAX_INFLATED_BYTES,
    MAX_STORED_BYTES,
    gunzip,
    open_document,
    pack,
)
from service.remote.format.fields import (
    MAX_INTEGER,
    int_field,
    list_field,
    objects_field,
    optional_int_field,
    str_field,
    uuid_field,
)
from service.remote.format.keys import ErasureKey, erasure_key, parse_key
from service.remote.format.stamp import Stamp, stamp_fields, stamp_of

ERASURE_FORMAT: Final = "firn-erasure"

MAX_KEYS: Final = 100_000
MAX_PARTITIONS: Final = 1_000_000
MAX_LEADER_EPOCH: Final = (1 << 31) - 1
NO_TIME: Final = -1
SECRET_BYTES: Final = 16
HASH_BYTES: Final = 16
FILTER_HASH_BYTES: Final = 8


class ErasedTopic(NamedTuple):
    """A topic whose records an order concerns: of partition p those below `ends[p]` of leader epochs up to
    `leader_epochs[p]`, in which a leader told that end; `NO_LEADER_EPOCH` where that is not known.

    Documents of before have no epochs: `leader_epochs` is empty then, which stands for not known.
    """

    topic_id: UUID
    name: str
    ends: tuple[int, ...]
    leader_epochs: tuple[int, ...] = ()


class ErasureOrder(NamedTuple):
    """One order to erase keys.

    `before_ms` is `NO_TIME` where records of every time go. `hashes` are the keys' hashes under `secret`,
    16 bytes each, strictly rising; `filter_hashes` the xxHash64 of each key, seed 0, 8 bytes each,
    big-endian, rising.
    """

    cluster_id: str
    id: UUID
    started_ms: int
    before_ms: int
    secret: bytes
    hashes: bytes
    filter_hashes: bytes
    topics: tuple[ErasedTopic, ...]
    stamp: Stamp | None = None

    @property
    def keys(self) -> int:
        """Number of keys."""
        return len(self.hashes) // HASH_BYTES

    @property
    def key(self) -> str:
        """Key of the document, relative to the prefix."""
        return erasure_key(self.id)


class OrderReference(Protocol):
    """Reference to an order's document: what `CUT` and the metadata have of it."""

    @property
    def id(self) -> UUID: ...
    @property
    def key(self) -> str: ...
    @property
    def stored_size(self) -> int: ...
    @property
    def crc32c(self) -> int: ...


def encode_erasure(order: ErasureOrder) -> bytes:
    """Return the document's bytes. Raises `ValueError` where readers would refuse it."""
    document = {
        "format": ERASURE_FORMAT,
        "format_version": FORMAT_VERSION,
        "cluster_id": order.cluster_id,
        "id": str(order.id),
        "started_ms": order.started_ms,
        "before_ms": order.before_ms,
        **stamp_fields(order.stamp),
        "secret": _text(order.secret),
        "keys": order.keys,
        "hashes": _text(order.hashes),
        "filter_hashes": _text(order.filter_hashes),
        "topics": [_row(topic) for topic in order.topics],
    }
    try:
        found = _order(document)
    except CorruptionError as e:
        raise ValueError(str(e)) from e
    if found != order:
        raise ValueError(f"order {order.id} would not be read as it is")
    return pack(document)


def decode_erasure(data: bytes) -> ErasureOrder:
    """Parse and verify an order's document."""
    if len(data) > MAX_STORED_BYTES:
        raise CorruptionError(f"{ERASURE_FORMAT}: {len(data)} bytes, at most {MAX_STORED_BYTES} are read")
    return _order(open_document(gunzip(data, ERASURE_FORMAT, MAX_INFLATED_BYTES), ERASURE_FORMAT).fields)


def open_erasure(data: bytes, ref: OrderReference) -> ErasureOrder:
    """Return the order that `ref` names, its bytes checked against it."""
    if len(data) != ref.stored_size or crc32c(data) != ref.crc32c:
        raise CorruptionError(f"{ref.key[:120]}: {len(data)} bytes with another checksum than its order's")
    order = decode_erasure(data)
    if order.id != ref.id or parse_key(ref.key) != ErasureKey(order.id):
        raise CorruptionError(f"{ref.key[:120]}: has order {order.id}, not {ref.id}")
    return order


def _order(fields: dict[str, Any]) -> ErasureOrder:
    keys = int_field(fields, "keys", 1, MAX_KEYS)
    hashes = _bytes(fields, "hashes", HASH_BYTES * keys)
    filter_hashes = _bytes(fields, "filter_hashes", FILTER_HASH_BYTES * keys)
    rows = list(_rows(hashes, HASH_BYTES))
    if rows != sorted(set(rows)):
        raise CorruptionError("hashes: not strictly rising")
    rows = list(_rows(filter_hashes, FILTER_HASH_BYTES))
    if rows != sorted(rows):
        raise CorruptionError("filter_hashes: not rising")
    return ErasureOrder(
        str_field(fields, "cluster_id"),
        uuid_field(fields, "id"),
        int_field(fields, "started_ms", 0, MAX_INTEGER),
        optional_int_field(fields, "before_ms", MAX_INTEGER),
        _bytes(fields, "secret", SECRET_BYTES),
        hashes,
        filter_hashes,
        _topics(objects_field(fields, "topics", MAX_PARTITIONS)),
        stamp_of(fields),
    )


def _row(topic: ErasedTopic) -> dict[str, Any]:
    row: dict[str, Any] = {"topic_id": str(topic.topic_id), "name": topic.name, "ends": list(topic.ends)}
    return {**row, "leader_epochs": list(topic.leader_epochs)} if topic.leader_epochs else row


def _topics(rows: Sequence[dict[str, Any]]) -> tuple[ErasedTopic, ...]:
    left = MAX_PARTITIONS
    found = []
    for row in rows:
        ends = list_field(row, "ends", left)
        if not ends:
            raise CorruptionError("ends: a topic without partitions")
        for end in ends:
            if type(end) is not int or not 0 <= end <= MAX_INTEGER:
                raise CorruptionError(f"ends: {str(end)[:80]} is not an integer from 0 to {MAX_INTEGER}")
        left -= len(ends)
        epochs = _epochs(row, len(ends))
        found.append(ErasedTopic(uuid_field(row, "topic_id"), str_field(row, "name"), tuple(ends), epochs))
    if not found or len({topic.topic_id for topic in found}) != len(found):
        raise CorruptionError(f"topics: {len(found)} of them, none or one of them twice")
    return tuple(found)


def _epochs(row: dict[str, Any], count: int) -> tuple[int, ...]:
    """Return the leader epochs of a topic's ends; none in a document of before."""
    if "leader_epochs" not in row:
        return ()
    epochs = list_field(row, "leader_epochs", count)
    if len(epochs) != count:
        raise CorruptionError(f"leader_epochs: {len(epochs)} of {count} partitions")
    for epoch in epochs:
        if type(epoch) is not int or not NO_LEADER_EPOCH <= epoch <= MAX_LEADER_EPOCH:
            raise CorruptionError(
                f"leader_epochs: {str(epoch)[:80]} is not an integer from -1 to {MAX_LEADER_EPOCH}"
            )
    return tuple(epochs)


def _rows(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def _text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _bytes(fields: dict[str, Any], name: str, length: int) -> bytes:
    """Return `length` bytes, as base64 has them: each value has exactly one text."""
    text = fields.get(name)
    if not isinstance(text, str) or len(text) != (length + 2) // 3 * 4:
        raise CorruptionError(f"{name}: not {length} bytes as base64")
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as e:
        raise CorruptionError(f"{name}: {e}") from e
    if len(data) != length or _text(data) != text:
        raise CorruptionError(f"{name}: not {length} bytes as base64")
    return data
