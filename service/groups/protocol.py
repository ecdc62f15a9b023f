"""Embedded protocol of classic `consumer` groups, inside JoinGroup and SyncGroup. [P]

A version (i16), then, integers big-endian, ``str`` and ``bytes`` with i16 and i32 lengths::

    Subscription   topics [str], user data bytes?, (v1+: owned [topic str, partitions [i32]]),
                   (v2+: generation i32), (v3+: rack str?)
    Assignment     partitions [topic str, partitions [i32]], user data bytes?

The group's leader writes what another client reads, so the coordinator rejects none of it. Where it must
decode it (subscribed topics, migration), it gets `MalformedEmbedded`. Versions after 3 are read as 3, which
their compatibility rules allow; bytes after a message are ignored. Source: Kafka ``ConsumerProtocol``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from service.base.errors import FirnError
from service.wire import primitives as p
from service.wire.errors import MalformedMessage
from service.wire.primitives import Cursor

CONSUMER_PROTOCOL: Final = "consumer"
"""Protocol type of groups whose members use this protocol."""
NEWEST_VERSION: Final = 3
NO_GENERATION: Final = -1

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


MOST_NAMES: Final = 4_000
"""Most topics that a member of a consumer group may subscribe to: each costs about 10 us, in one go."""


class MalformedEmbedded(FirnError):
    """A member's bytes do not match its protocol type."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics that a member subscribes to, and partitions that it owns. `owned` has (topic, partitions)
    pairs."""

    version: int
    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """Partitions assigned to a member, as (topic, partitions) pairs."""

    version: int
    partitions: tuple[tuple[str, tuple[int, ...]], ...]
    user_data: bytes | None = None


def decode_subscription(data: bytes) -> Subscription:
    """Decode a subscription. Raises `MalformedEmbedded`, also for more than `MOST_NAMES` topics."""
    with _malformed("subscription"):
        cursor = Cursor(data)
        version = _version(cursor)
        count = cursor.count(False, 2)
        if count > MOST_NAMES:
            raise MalformedMessage(f"more than {MOST_NAMES} topics")
        topics = tuple([cursor.string() for _ in range(count)])
        user_data = _nullable_bytes(cursor)
        owned = _partitions(cursor) if version >= 1 else ()
        generation = cursor.int32() if version >= 2 else NO_GENERATION
        rack = cursor.nullable_string() if version >= 3 else None
        return Subscription(version, topics, user_data, owned, generation, rack)


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str]:
    """Return all topics of these subscriptions; other fields are not checked. Raises `MalformedEmbedded`."""
    topics: set[str] = set()
    with _malformed("subscription"):
        for data in subscriptions:
            cursor = Cursor(data)
            cursor.int16()
            topics.update([cursor.string() for _ in range(cursor.count(False, 2))])
            _nullable_bytes(cursor)
    return frozenset(topics)


def decode_assignment(data: bytes) -> Assignment:
    """Decode an assignment. Raises `MalformedEmbedded`."""
    with _malformed("assignment"):
        cursor = Cursor(data)
        version = _version(cursor)
        return Assignment(version, _partitions(cursor), _nullable_bytes(cursor))


def encode_assignment(assignment: Assignment) -> bytes:
    version = min(assignment.version, NEWEST_VERSION)
    out = bytearray(_I16.pack(version))
    _write_partitions(out, assignment.partitions)
    p.write_nullable_bytes(out, assignment.user_data)
    return bytes(out)


def encode_subscription(subscription: Subscription) -> bytes:
    version = min(subscription.version, NEWEST_VERSION)
    out = bytearray(_I16.pack(version) + _I32.pack(len(subscription.topics)))
    for topic in subscription.topics:
        p.write_string(out, topic)
    p.write_nullable_bytes(out, subscription.user_data)
    if version >= 1:
        _write_partitions(out, subscription.owned)
    if version >= 2:
        out += _I32.pack(subscription.generation)
    if version >= 3:
        p.write_nullable_string(out, subscription.rack)
    return bytes(out)


def _version(cursor: Cursor) -> int:
    version = cursor.int16()
    if version < 0:
        raise MalformedMessage(f"version {version}")
    return min(version, NEWEST_VERSION)


def _nullable_bytes(cursor: Cursor) -> bytes | None:
    data = cursor.nullable_bytes()
    return None if data is None else bytes(data)


def _partitions(cursor: Cursor) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(
        [
            (cursor.string(), tuple([cursor.int32() for _ in range(cursor.count(False, 4))]))
            for _ in range(cursor.count(False, 6))
        ]
    )


def _write_partitions(out: bytearray, partitions: Iterable[tuple[str, tuple[int, ...]]]) -> None:
    partitions = tuple(partitions)
    out += _I32.pack(len(partitions))
    for topic, numbers in partitions:
        p.write_string(out, topic)
        out += _I32.pack(len(numbers))
        for number in numbers:
            out += _I32.pack(number)


@contextmanager
def _malformed(what: str) -> Iterator[None]:
    try:
        yield
    except (struct.error, MalformedMessage) as e:
        raise MalformedEmbedded(f"{what}: {e}") from e
