"""What producers sent behind a batch that was refused for want of in-sync replicas. Owned by the event loop.

An idempotent producer has several requests under way. Where one is refused, and enough replicas are in sync
when the next comes, Apache Kafka judges that by its sequence: OUT_OF_ORDER_SEQUENCE_NUMBER, upon which
librdkafka takes a new epoch and writes again whatever it has no answer for, be it in the log or not. And of a
producer that is new it takes the second batch for the first. So what follows is refused as the first one was,
until that is sent again. And a batch that is in the log already is never refused: it waits to be committed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.base.types import NO_PRODUCER_ID, Buffer
from service.hot.log import LocalLog
from service.records.batch import BatchHeader, read_header

MOST_PRODUCERS: Final = 64
"""that are remembered of a partition: one that is not is told what Kafka tells it"""


class _First(NamedTuple):
    """The first batch of a producer that was refused."""

    epoch: int
    sequence: int


class Refused:
    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._first: dict[int, _First] = {}

    def __len__(self) -> int:
        return len(self._first)

    def forget(self) -> None:
        """Another time of leading has begun: what was refused is sent to whoever leads."""
        self._first.clear()

    def admits(self, records: Buffer, *, are_enough: bool) -> bool:
        """Whether a producer's batch may be appended, as far as that depends on replicas: `are_enough` of
        them are in sync. Nothing of the batch is proved yet."""
        try:
            header = read_header(records)
        except CorruptionError:
            return are_enough
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return are_enough
        if self._log.producers.original(header) is not None:
            return True
        first = self._first.get(producer_id)
        if first is not None and not self._is_missing(first, header):
            del self._first[producer_id]
            first = None
        if are_enough:
            if first is None:
                return True
            if header.base_sequence != first.sequence:
                return False
            del self._first[producer_id]
            return True
        if first is None:
            if len(self._first) >= MOST_PRODUCERS:
                self._first.clear()
            self._first[producer_id] = _First(header.producer_epoch, header.base_sequence)
        return False

    def _is_missing(self, first: _First, header: BatchHeader) -> bool:
        """Whether the producer, which may have begun anew, has not got beyond what was refused."""
        if first.epoch != header.producer_epoch:
            return False
        known = self._log.producers.get(header.producer_id)
        return known is None or known.epoch != first.epoch or known.next_sequence == first.sequence
