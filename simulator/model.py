"""Model of the records: acknowledged, refused, and unknown ones. [P]

A `PartitionModel` gets the client's responses and judges the records that a reader finds. It allows the loss
of a record only where an act has declared it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError
from simulator.client import Record

GONE: Final = "it was gone before"


class Violation(Exception):
    """The node broke a promise."""


@dataclass
class TopicModel:
    """One topic as its maker knows it."""

    name: str
    topic_id: UUID
    partitions: list[PartitionModel]
    tiered: bool
    flushed: bool
    """whether every acknowledged record was fsynced before its acknowledgement"""
    retention_ms: int
    """shortest retention so far; -1: for ever"""
    vanished: bool = False
    """whether an act removed the metadata of the topic: it may be missing, but its objects must stay"""
    deleted: bool = False
    """whether its deletion was requested; it may exist all the same until a response"""


class ErasedRecords(Protocol):
    """Orders to erase keys, as far as they concern one partition: what they allow, and demand."""

    def may_lack(self, offset: int, value: bytes, timestamp: int) -> bool:
        """Return whether the record may be missing."""

    def has_to_lack(self, offset: int, value: bytes, timestamp: int) -> bool:
        """Return whether the record must not be there any more."""

    def may_be_hole(self, start: int, end: int) -> bool:
        """Return whether there may be no record from `start` to `end`, exclusive."""


@dataclass
class PartitionModel:
    """Records of one partition. No value is produced twice on purpose."""

    name: str
    index: int
    acked: dict[int, bytes] = field(default_factory=dict)
    """acknowledged records that must exist, by offset"""
    shaky: dict[int, bytes] = field(default_factory=dict)
    """acknowledged records that an act may have removed, by offset"""
    unknown: set[bytes] = field(default_factory=set)
    """sent without a response: they exist once, or not at all"""
    refused: dict[bytes, str] = field(default_factory=dict)
    """refused with an error: they must not exist"""
    sent: set[bytes] = field(default_factory=set)
    timestamps: dict[int, int] = field(default_factory=dict)
    end_offset: int = 0
    """greatest log end that was read or acknowledged and may not be lost"""
    answered_end: int = 0
    """greatest log end that was acknowledged, not only read, and may not be lost"""
    log_start: int = 0
    asked_start: int = 0
    """records below it may be deleted: their deletion was requested"""
    most_asked_start: int = 0
    """highest requested start: a replica may begin there although the leader does not"""
    deleted_below: int = 0
    """records below it are deleted for good: their deletion was acknowledged"""
    _asked_before: int = 0
    is_deletion_doubtful: bool = False
    """whether a crash has decided about unacknowledged deletions"""
    leader_epoch: int = -1
    archived_below: int = 0
    """offsets that the bucket held when a past came back: never given out again"""
    rewritten_from: int = 1 << 62
    """from which offset on other records may have come since the disk was copied"""
    is_rotten: bool = False
    """whether a bit of its log flipped: no checksum covers a batch's offset, readers see that it is wrong,
    nor its leader epoch, which they do not"""
    losses: int = 0
    """how often it was said that records may be gone"""
    is_replicated: bool = False
    """whether what lies beyond the end that readers see may come yet, from another replica"""
    compacted: bool = False
    """whether a record may be gone because a later one has its key"""
    allows_unclean: bool = False
    """whether its topic takes a leader that may lack records"""
    was_unclean: bool = False
    """whether that has come to pass: nothing is promised of its records any more"""
    erased: ErasedRecords | None = None
    """orders that concern it, where there can be any"""
    excused: str = ""
    """why it may be offline for good: what was damaged or lost of it, in words"""

    def __str__(self) -> str:
        return f"{self.name}-{self.index}"

    def acknowledge(self, base_offset: int, values: Sequence[bytes], timestamp_ms: int) -> None:
        if self.was_unclean:
            return
        if base_offset < self.archived_below:  # T12
            raise Violation(
                f"{self}: offset {base_offset} was given out again, the bucket holds those below "
                f"{self.archived_below}"
            )
        for at, value in enumerate(values):
            offset = base_offset + at
            there = self.acked.get(offset)
            if there is not None and there != value:
                raise Violation(
                    f"{self}: offset {offset} was given to {brief(value)}, and before to {brief(there)}"
                )
            self.shaky.pop(offset, None)
            self.acked[offset] = value
            self.timestamps[offset] = timestamp_ms
        self.end_offset = max(self.end_offset, base_offset + len(values))
        self.answered_end = max(self.answered_end, base_offset + len(values))

    def may_lose_from(self, offset: int) -> int:
        """Records from `offset` on may be gone; how many that are."""
        self.losses += 1
        self.rewritten_from = min(self.rewritten_from, offset)
        lost = [one for one in self.acked if one >= offset]
        for one in lost:
            self.shaky[one] = self.acked.pop(one)
        # Where retention has moved its start to may not be noted yet; what was deleted on demand is.
        self.end_offset = min(self.end_offset, max(offset, min(self.log_start, self.deleted_below)))
        self.answered_end = min(self.answered_end, offset)
        return len(lost)

    def delete_asked(self, offset: int) -> None:
        """Records below `offset` may be gone from now on; -1: all that were ever sent."""
        self._asked_before = self.asked_start
        most = self.end_offset + len(self.unknown) if offset < 0 else offset
        self.asked_start = max(self.asked_start, most)
        self.most_asked_start = max(self.most_asked_start, most)

    def delete_answered(self, offset: int, error: ErrorCode, low_watermark: int) -> None:
        """Note the response to DeleteRecords. Raises `Violation`."""
        if self.was_unclean:
            return
        if error is ErrorCode.none:
            committed = 0 if self.is_replicated else self.answered_end  # as far as its leader knew
            least = committed if offset < 0 else offset
            if low_watermark < least:
                raise Violation(f"{self}: deleted up to {least}, and the low watermark is {low_watermark}")
            self.deleted_below = max(self.deleted_below, low_watermark if offset < 0 else offset)
            self.asked_start = max(self._asked_before, self.deleted_below)
        elif error is ErrorCode.offset_out_of_range:
            # A new leader may not know yet how far its records are committed.
            if offset <= self.end_offset and not self.excused and not self.is_replicated:
                raise Violation(f"{self}: {offset} is out of range, and its end was {self.end_offset} before")
            self.asked_start = self._asked_before

    def crashed(self) -> None:
        """Note a crash: expired records may be back, as the checkpoint of the log start lags. Acknowledged
        deletions stay."""
        self.log_start = 0
        self.is_deletion_doubtful = not self.is_replicated  # else another replica may have done it

    def past_returns(self) -> None:
        """Note that an older disk is back: deleted and lost records may be there again."""
        self.deleted_below = 0
        self.refused = {value: why for value, why in self.refused.items() if why != GONE}
        self.log_start = 0
        self.leader_epoch = -1

    def judge(self, log_start: int, end_offset: int, records: Iterable[Record], expired: int | None) -> None:
        """Check the whole log as a reader found it. Raises `Violation`.

        `expired`: retention may have deleted records up to this time, in ms; None: no record.
        """
        if self.was_unclean:
            self.log_start, self.end_offset = log_start, end_offset
            return
        if log_start < self.log_start:
            raise Violation(f"{self}: its log start went back from {self.log_start} to {log_start}")
        if log_start < self.deleted_below:  # L4
            raise Violation(
                f"{self}: deleted up to {self.deleted_below}, as acknowledged, and begins at {log_start}"
            )
        if self.is_deletion_doubtful:
            self.is_deletion_doubtful = False
            self.asked_start = max(min(self.asked_start, log_start), self.deleted_below)
        if end_offset < self.end_offset:
            raise Violation(f"{self}: its end went back from {self.end_offset} to {end_offset}")
        found = self._distinct(log_start, end_offset, records)
        self._nothing_lost(log_start, end_offset, found, expired)
        self._nothing_refused(found)
        self._learn(log_start, end_offset, found)

    def judge_epoch(
        self, asked: int, epoch: int, end_offset: int, log_end: int, records: Sequence[Record]
    ) -> None:
        """Check that epoch `asked` ends at `end_offset`, in `epoch`, by the records' epochs (L6).

        A log with a flipped bit is not checked.
        """
        if self.is_rotten:
            return
        later = next((one.offset for one in records if one.leader_epoch > asked), None)
        least = max((one.offset + 1 for one in records if one.leader_epoch <= asked), default=0)
        most = later if later is not None else max(log_end, end_offset)
        if epoch > asked or epoch < 0 or not least <= end_offset <= most:
            raise Violation(
                f"{self}: epoch {asked} ends at {end_offset}, in epoch {epoch}, by OffsetForLeaderEpoch, "
                f"and by the records from {least} to {most}"
            )

    def noticed(self, at: int, records: Iterable[Record]) -> None:
        """Raise `CorruptionError` where a reader at `at` notices that a log with a flipped bit is wrong."""
        if self.is_rotten:
            for expected, record in enumerate(records, at):
                if record.offset != expected:
                    raise CorruptionError(f"{self}: offset {record.offset} follows {expected - 1}")

    def _distinct(self, log_start: int, end_offset: int, records: Iterable[Record]) -> dict[int, Record]:
        found: dict[int, Record] = {}
        expected = log_start
        for record in records:
            if record.offset != expected and not self._may_be_hole(expected, record.offset):
                raise Violation(f"{self}: offset {record.offset} follows {expected - 1}")
            expected = record.offset + 1
            if not record.marker:
                found[record.offset] = record
        end = max(end_offset, log_start)
        if expected != end and not self._may_be_hole(expected, end):
            raise Violation(f"{self}: reading ends at {expected}, the log at {end_offset}")
        places: dict[bytes, int] = {}
        for offset, record in found.items():
            if record.value in places:
                raise Violation(f"{self}: {brief(record.value)} is at {places[record.value]} and at {offset}")
            places[record.value] = offset
        return found

    def _may_be_hole(self, start: int, end: int) -> bool:
        return start < end and (
            self.compacted or (self.erased is not None and self.erased.may_be_hole(start, end))
        )

    def _nothing_lost(
        self, log_start: int, end_offset: int, found: dict[int, Record], expired: int | None
    ) -> None:
        latest = {key_of(record.value): offset for offset, record in found.items()} if self.compacted else {}
        for offset, value in self.acked.items():
            record = found.get(offset)
            if record is None and (latest.get(key_of(value), -1) > offset or self._may_lack(offset, value)):
                continue
            if record is not None:
                if record.value != value:
                    read = brief(record.value)
                    raise Violation(f"{self}: {offset} was acknowledged as {brief(value)} and reads {read}")
            elif offset >= log_start:
                raise Violation(
                    f"{self}: {brief(value)} at {offset} was acknowledged, and the log ends at {end_offset}"
                )
            elif offset >= self.asked_start and (expired is None or self.timestamps[offset] > expired):
                raise Violation(
                    f"{self}: {brief(value)} at {offset} was acknowledged, and the log begins at {log_start}"
                    f" without any retention or deletion that allows it"
                )

    def _may_lack(self, offset: int, value: bytes) -> bool:
        return self.erased is not None and self.erased.may_lack(offset, value, self.timestamps[offset])

    def _nothing_refused(self, found: dict[int, Record]) -> None:
        for offset, record in found.items():
            if record.value in self.refused:  # L1
                why = self.refused[record.value]
                raise Violation(f"{self}: {brief(record.value)} was refused ({why}) and is at {offset}")
            if self.erased is not None and self.erased.has_to_lack(offset, record.value, record.timestamp_ms):
                raise Violation(f"T26: {self}: {brief(record.value)} at {offset} was erased, and is read")
            if record.value not in self.sent:
                raise Violation(f"{self}: {brief(record.value)} at {offset} was never sent")

    def _learn(self, log_start: int, end_offset: int, found: dict[int, Record]) -> None:
        """Treat records that were read as acknowledged, and doubtful ones that were not as gone for good."""
        for offset, record in found.items():
            if offset not in self.acked:
                self.acked[offset] = record.value
                if self.shaky.get(offset) != record.value:  # else it is known when that one was written
                    self.timestamps[offset] = record.timestamp_ms
                self.unknown.discard(record.value)
        there = {record.value for record in found.values()}
        most = end_offset if self.is_replicated else 1 << 62
        for offset, value in self.shaky.items():
            # Else it may come back.
            if value in there or not log_start <= offset < most or self.compacted:
                continue
            if not self._may_lack(offset, value):  # else a replica may still have what others have erased
                self.refused.setdefault(value, GONE)
        self.shaky.clear()
        for offset in [one for one in self.acked if one < log_start or one not in found]:
            del self.acked[offset]
        self.log_start = max(self.log_start, log_start)
        self.end_offset = max(self.end_offset, end_offset)


def key_of(value: bytes) -> bytes:
    """Return the key of a record of a compacted topic.

    >>> key_of(b"v17.xxxxxxx")
    b'k2'
    """
    return b"k%d" % (int(value[1:].split(b".")[0]) % 5)


def brief(value: bytes) -> str:
    """Return the number of a value, its name in messages.

    >>> brief(b"v17.xxxxxxx")
    'v17'
    """
    return value.split(b".")[0].decode(errors="backslashreplace")[:20]
