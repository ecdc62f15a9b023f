"""Orders to erase keys, as whoever gave them knows them: which records may be missing, and which have to be.

A record may be missing from the moment at which its erasure is asked for, anywhere, and for good. It has to
be missing everywhere once the order is done, and from whatever a restore brings back once `CUT` lists the
order (T26). Records of other keys, without a key, or at or beyond the order's end stay where they are (T24).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from service.records.batch import BatchHeader, complete_headers
from service.records.decode import records_of

Key = tuple[UUID, int]
Known = dict[int, bytes]
"""committed batches by their base offset"""
ANY_TIME: Final = -1


class KeyedRecord(NamedTuple):
    """A record, as far as orders judge it, and as it is compared."""

    key: bytes | None
    value: bytes | None
    timestamp: int


@dataclass(eq=False)
class KnownOrder:
    """An order that was asked for. `ends` are exclusive, `leader_epochs` those of the leaders that told them;
    -1: of none, so that what stands there later goes, too."""

    id: UUID
    keys: frozenset[bytes]
    ends: dict[Key, int]
    leader_epochs: dict[Key, int]
    asked_ms: int
    before_ms: int = ANY_TIME
    is_listed: bool = False
    """whether `CUT` lists it: no restore shows its records then"""
    is_done: bool = False
    is_cancelled: bool = False
    """whether its end was asked for: some replicas may have carried it out, and others not"""
    is_removed: bool = False
    """whether it left the metadata: a disk from before knows nothing of it any more"""

    def has(self, place: Key, offset: int, record: KeyedRecord) -> bool:
        """Return whether the record is one that goes."""
        return (
            record.key is not None
            and record.key in self.keys
            and offset < self.ends.get(place, 0)
            and (self.leader_epochs[place] < 0 or record.timestamp <= self.asked_ms)
            and (self.before_ms == ANY_TIME or record.timestamp < self.before_ms)
        )


class Erasures:
    """All orders of one history."""

    def __init__(self) -> None:
        self.orders: dict[UUID, KnownOrder] = {}
        self.topics: set[UUID] = set()
        """those that any order was ever asked for"""
        self.key_of: Callable[[bytes], bytes | None] = lambda value: None
        """key with which a value is produced"""

    def ask(self, order: KnownOrder) -> None:
        """Note an order before it is sent."""
        self.orders[order.id] = order
        self.topics |= {topic_id for topic_id, _ in order.ends}

    def may_go(self, place: Key, offset: int, record: KeyedRecord) -> bool:
        return any(order.has(place, offset, record) for order in self.orders.values())

    def may_differ(self, place: Key, offset: int, record: KeyedRecord) -> bool:
        """Return whether some replicas may have the record and others not, for good."""
        return any(one.is_cancelled and one.has(place, offset, record) for one in self.orders.values())

    def is_barred(self, place: Key, offset: int, record: KeyedRecord) -> bool:
        """Return whether no restore may bring the record back."""
        orders = (one for one in self.orders.values() if one.is_listed or one.is_done)
        return any(one.has(place, offset, record) for one in orders)

    def of_value(self, value: bytes, timestamp: int) -> KeyedRecord:
        """Return the record as it was produced."""
        return KeyedRecord(self.key_of(value), value, timestamp)

    def is_rest(self, place: Key, whole: bytes, left: bytes) -> bool:
        """Return whether `left` is the committed batch `whole` without some records that may go."""
        if place[0] not in self.topics:
            return False
        one, other = next(complete_headers(whole)), next(complete_headers(left))
        if frame_of(one) != frame_of(other):
            return False
        return self._is_rest(place, records_at(whole), records_at(left))

    def covers(self, place: Key, known: Known, batch: bytes, header: BatchHeader) -> bool:
        """Return whether a batch stands for committed ones that it replaces, without records that may go."""
        if place[0] not in self.topics:
            return False
        whole: dict[int, KeyedRecord] = {}
        at = header.base_offset
        while at < header.next_offset:
            one = known.get(at)
            if one is None:
                return False
            whole |= records_at(one)
            at = next(complete_headers(one)).next_offset
        return at == header.next_offset and self._is_rest(place, whole, records_at(batch))

    def _is_rest(self, place: Key, whole: dict[int, KeyedRecord], left: dict[int, KeyedRecord]) -> bool:
        if any(whole.get(offset) != record for offset, record in left.items()):
            return False
        missing = ((offset, record) for offset, record in whole.items() if offset not in left)
        return all(self.may_go(place, offset, record) for offset, record in missing)

    def may_be_hole(self, place: Key, known: Known | None, start: int, end: int) -> bool:
        """Return whether nothing has to be read from `start` to `end`, exclusive. `known` is None where
        nothing is said of the partition's records."""
        if place[0] not in self.topics:
            return False
        if known is None:
            return True
        records = (one for batch in batches_between(known, start, end) for one in records_at(batch).items())
        found = {offset: record for offset, record in records if start <= offset < end}
        whole = range(start, end)
        return all(offset in found and self.may_go(place, offset, found[offset]) for offset in whole)

    def hits(self, order: KnownOrder, place: Key, data: bytes) -> Iterator[int]:
        """Yield the offsets of an order's records in some batches: those of later leader epochs are none."""
        epoch = order.leader_epochs.get(place, -1)
        for header in complete_headers(data):
            if 0 <= epoch < header.partition_leader_epoch:
                continue
            for offset, record in records_at(data[header.position : header.end]).items():
                if order.has(place, offset, record):
                    yield offset


def frame_of(header: BatchHeader) -> tuple[object, ...]:
    """Return what of a batch no erasure changes."""
    return (
        header.base_offset,
        header.next_offset,
        header.partition_leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )


def records_at(data: bytes) -> dict[int, KeyedRecord]:
    """Return the records of some batches by their offsets, control records left out."""
    return {
        one.offset: KeyedRecord(one.key, one.value, one.timestamp)
        for header in complete_headers(data)
        if not header.is_control
        for one in records_of(data, header)
    }


def batches_between(known: Known, start: int, end: int) -> Iterable[bytes]:
    """Yield the committed batches that have offsets from `start` to `end`, exclusive."""
    below = [base for base in known if base <= start]
    at = max(below, default=start)
    while at < end:
        batch = known.get(at)
        if batch is None:
            return
        yield batch
        at = next(complete_headers(batch)).next_offset


class PartitionErasures:
    """Orders that concern one partition (`simulator.model.ErasedRecords`)."""

    def __init__(self, erasures: Erasures, place: Key, known: Callable[[], Known | None]) -> None:
        """`known` returns the committed batches; None where nothing is said of the partition's records."""
        self._erasures, self._place, self._known = erasures, place, known

    def may_lack(self, offset: int, value: bytes, timestamp: int) -> bool:
        return self._erasures.may_go(self._place, offset, self._erasures.of_value(value, timestamp))

    def has_to_lack(self, offset: int, value: bytes, timestamp: int) -> bool:
        record = self._erasures.of_value(value, timestamp)
        orders = (one for one in self._erasures.orders.values() if one.is_done)
        return self._known() is not None and any(one.has(self._place, offset, record) for one in orders)

    def may_be_hole(self, start: int, end: int) -> bool:
        return self._erasures.may_be_hole(self._place, self._known(), start, end)
