"""The transactional ids of a shard: their newest and their committed states. [P]

An id with a transaction is kept decoded; an id at rest is the bytes of its record, as there may be very many
that nobody asks for. What is volatile stands behind these bytes: the last epoch, and in version 0 the
previous producer id, which records have from version 1 on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import Final

from service.base.timeline import Journal, Timeline
from service.coordinator.shard import CoordinatorRecord
from service.transactions import records
from service.transactions.metadata import TransactionMetadata
from service.transactions.states import AT_REST, PREPARED, check_move

_VOLATILE: Final = struct.Struct(">qh")
"""previous producer id, last epoch"""
_PREVIOUS_BYTES: Final = 8


class _Decided(bytes):
    """Value of a record that is decided here, with its state: a part of that is not in the log."""

    state: TransactionMetadata


class TransactionalIds:
    """States by id, over the shard's journal."""

    def __init__(self, journal: Journal) -> None:
        self.open: Timeline[str, TransactionMetadata] = Timeline(journal)
        """ids with a transaction"""
        self.at_rest: Timeline[str, bytes] = Timeline(journal)
        """ids without, in the order of their last records"""

    def __len__(self) -> int:
        return len(self.open) + len(self.at_rest)

    # Replay.

    def replay(
        self, transactional_id: str, value: bytes, *, is_cleaned: bool = False
    ) -> TransactionMetadata | int:
        """Move an id to the state of a record; return the state, or the version of an unknown one.

        `is_cleaned`: compaction may have removed records of the id in front of this one, so that any state
        may follow the one before. Raises `CorruptionError`.
        """
        is_own = isinstance(value, _Decided)
        after = value.state if isinstance(value, _Decided) else records.decode_value(value)
        if isinstance(after, int):
            return after
        before = self.newest(transactional_id)
        is_first = before is None or (is_cleaned and not is_own) or _is_repeated(before, after)
        check_move(transactional_id, None if is_first or before is None else before.state, after.state)
        self.at_rest.pop(transactional_id, None)
        if after.state in AT_REST:
            self.open.pop(transactional_id, None)
            self.at_rest[transactional_id] = _stored(after, value)
        else:
            self.open[transactional_id] = after
        return after

    def forget(self, transactional_id: str) -> None:
        """Remove an id: its record is a tombstone."""
        self.at_rest.pop(transactional_id, None)
        self.open.pop(transactional_id, None)

    # States.

    def newest(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the newest state of an id."""
        there = self.open.get(transactional_id)
        return there if there is not None else _decoded(self.at_rest.get(transactional_id))

    def committed(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the committed state of an id."""
        there = self.open.committed(transactional_id)
        return there if there is not None else _decoded(self.at_rest.committed(transactional_id))

    def is_uncommitted(self, transactional_id: str) -> bool:
        """Return whether the newest record of an id is not committed."""
        return self.open.get(transactional_id) is not self.open.committed(
            transactional_id
        ) or self.at_rest.get(transactional_id) is not self.at_rest.committed(transactional_id)

    def is_pending(self, transactional_id: str) -> bool:
        """Return whether the next state of an id is decided already."""
        there = self.open.get(transactional_id)
        return (there is not None and there.state in PREPARED) or self.is_uncommitted(transactional_id)

    def names(self) -> list[str]:
        """Return all ids, also those whose removal is not committed, each once."""
        found = [*self.open, *self.at_rest]  # however many there are, in one call
        found += (name for name in self.open.removed() if name not in self.at_rest)
        found += (name for name in self.at_rest.removed() if name not in self.open)
        return found

    def resting(self, most: int) -> Iterator[tuple[str, int]]:
        """Yield ids at rest and the times of their last updates (ms), the oldest first."""
        for transactional_id, stored in islice(self.at_rest.items(), most):
            there = records.decode_value(stored)
            assert isinstance(there, TransactionMetadata)
            yield transactional_id, there.updated_ms


def record_of(transactional_id: str, after: TransactionMetadata, version: int) -> CoordinatorRecord:
    """Return the record of a state, to be replayed by the `TransactionalIds` that it was decided upon."""
    value = _Decided(records.encode_value(after, version))
    value.state = after
    return CoordinatorRecord(records.encode_key(transactional_id), value)


def _is_repeated(before: TransactionMetadata, after: TransactionMetadata) -> bool:
    """Return whether a record says once more what the one before says: Kafka's coordinator appends a
    completion again if it was not told in time that it was committed."""
    return after.state is before.state and after._replace(updated_ms=before.updated_ms) == before


def _stored(there: TransactionMetadata, value: bytes) -> bytes:
    volatile = _VOLATILE.pack(there.previous_producer_id, there.last_producer_epoch)
    return value + (volatile[_PREVIOUS_BYTES:] if records.has_previous_id(value) else volatile)


def _decoded(stored: bytes | None) -> TransactionMetadata | None:
    if stored is None:
        return None
    there = records.decode_value(stored)
    assert isinstance(there, TransactionMetadata)
    previous_id, last_epoch = _VOLATILE.unpack(stored[-_VOLATILE.size :])
    if records.has_previous_id(stored):
        previous_id = there.previous_producer_id
    return there._replace(previous_producer_id=previous_id, last_producer_epoch=last_epoch)
