"""Committed records of `__transaction_state` as the oracle reads them: its own codec, and its own table. [P]

X2  a decision, once committed, does not change: states follow each other as Kafka's `TransactionState` says
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from simulator.model import Violation

STATE: Final = "__transaction_state"
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, DEAD = range(7)
_FENCED: Final = 7
_BEFORE: Final = {
    EMPTY: (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT),
    ONGOING: (ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT),
    PREPARE_COMMIT: (ONGOING,),
    PREPARE_ABORT: (ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT, _FENCED),
    COMPLETE_COMMIT: (PREPARE_COMMIT,),
    COMPLETE_ABORT: (PREPARE_ABORT,),
    DEAD: (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT),
}
DECISIONS: Final = {PREPARE_COMMIT: True, PREPARE_ABORT: False}


class Change(NamedTuple):
    """One committed record of a transactional id; `at` counts the id's records."""

    at: int
    state: int
    producer_id: int
    epoch: int
    partitions: frozenset[tuple[str, int]]


class Ids:
    """Committed history of every transactional id, in order."""

    def __init__(self) -> None:
        self.changes: dict[str, list[Change]] = {}
        self.partition: dict[str, int] = {}
        """partition of `__transaction_state` that has the id"""
        self.of_producer: dict[int, str] = {}
        """transactional id of each producer id"""
        self.on_decision: Callable[[str, Change], None] = lambda *_: None
        self.on_complete: Callable[[str, Change], None] = lambda *_: None
        """called with an id and the decision that is completed"""

    def learn(self, partition: int, key: bytes, value: bytes | None) -> None:
        """Take a committed record. Raises `Violation` (X2)."""
        (version,) = struct.unpack_from(">h", key)
        if version != 0:
            return
        transactional_id = key[4:].decode()
        known = self.changes.setdefault(transactional_id, [])
        self.partition[transactional_id] = partition
        change = _decode(len(known), value)
        before = known[-1] if known else None
        allowed = before is None or before.state in _BEFORE.get(change.state, ())
        if not allowed and not (before is not None and before.state == DEAD and change.state == EMPTY):
            raise Violation(f"X2: {transactional_id} goes from {before} to {change}")
        if before is None and change.state not in (EMPTY, DEAD):
            raise Violation(f"X2: {transactional_id} begins with {change}")
        known.append(change)
        if change.producer_id >= 0:
            other = self.of_producer.setdefault(change.producer_id, transactional_id)
            if other != transactional_id:
                raise Violation(f"X8: {other} and {transactional_id} have producer id {change.producer_id}")
        if change.state in DECISIONS:
            self.on_decision(transactional_id, change)
        elif change.state in (COMPLETE_COMMIT, COMPLETE_ABORT) and before is not None:
            self.on_complete(transactional_id, before)

    def since(self, transactional_id: str, at: int) -> list[Change]:
        """Return the records of the id from the `at`-th on."""
        return self.changes.get(transactional_id, [])[at:]

    def count(self, transactional_id: str) -> int:
        """Return how many records of the id are committed."""
        return len(self.changes.get(transactional_id, ()))

    def decision(self, transactional_id: str, at: int, producer_id: int, epoch: int) -> bool | None:
        """Return how the transaction ended that was begun after `at` records of the id, by this producer:
        True for a commit, None while that is not decided.

        A transaction of version 2, and one that is fenced, is ended in the next epoch; the first decision is
        its own, as its producer begins no other before."""
        for change in self.since(transactional_id, at):
            is_ours = change.producer_id == producer_id and change.epoch in (epoch, epoch + 1)
            if change.state in DECISIONS and (is_ours or change.producer_id != producer_id):
                return DECISIONS[change.state]
        return None


def _decode(at: int, value: bytes | None) -> Change:
    if value is None:
        return Change(at, DEAD, -1, -1, frozenset())
    version, producer_id, epoch, _, state = struct.unpack_from(">hqhib", value)
    position = struct.calcsize(">hqhib")
    read = _read_compact if version >= 1 else _read_plain
    return Change(at, state, producer_id, epoch, read(value, position))


def _read_plain(value: bytes, position: int) -> frozenset[tuple[str, int]]:
    found = []
    (topics,) = struct.unpack_from(">i", value, position)
    position += 4
    for _ in range(max(topics, 0)):
        (size,) = struct.unpack_from(">h", value, position)
        name = value[position + 2 : position + 2 + size].decode()
        position += 2 + size
        (count,) = struct.unpack_from(">i", value, position)
        found += [(name, one) for one in struct.unpack_from(f">{count}i", value, position + 4)]
        position += 4 + 4 * count
    return frozenset(found)


def _read_compact(value: bytes, position: int) -> frozenset[tuple[str, int]]:
    found = []
    topics, position = _uvarint(value, position)
    for _ in range(max(topics - 1, 0)):
        size, position = _uvarint(value, position)
        name = value[position : position + size - 1].decode()
        count, position = _uvarint(value, position + size - 1)
        found += [(name, one) for one in struct.unpack_from(f">{count - 1}i", value, position)]
        _, position = _uvarint(value, position + 4 * (count - 1))  # no tags are written here
    return frozenset(found)


def _uvarint(value: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = value[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
