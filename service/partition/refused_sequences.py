"""Batches that producers sent after one rejected with NOT_ENOUGH_REPLICAS. Owned by the event loop.

An idempotent producer has several requests in flight. If one is rejected, and enough replicas are in sync
when the next arrives, Apache Kafka checks its sequence: OUT_OF_ORDER_SEQUENCE_NUMBER, upon which librdkafka
takes a new epoch and sends all unacknowledged batches again, in the log or not. For a new producer, Kafka
takes the second batch for the first. Here, later batches are rejected as the first one was, until that is
sent again. A batch that is in the log already is never rejected: it waits to be committed.

Likewise behind a batch whose verification with the transaction coordinator failed, or is not over. The lowest
such sequence of each producer is known to the log (`hot/verification.py`), which says
OUT_OF_ORDER_SEQUENCE_NUMBER as Kafka does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError
from service.base.types import NO_PRODUCER_ID, Buffer
from service.hot.log import LocalLog
from service.records.batch import BatchHeader, read_header

if TYPE_CHECKING:
    from service.hot.verification import VerificationGuard

MOST_PRODUCERS: Final = 64
"""Most producers remembered per partition; others get Kafka's response."""


class _First(NamedTuple):
    """The first rejected batch of a producer."""

    epoch: int
    sequence: int


class RefusedSequences:
    """First rejected sequence of each producer of a partition."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._first: dict[int, _First] = {}

    def __len__(self) -> int:
        return len(self._first)

    def forget(self) -> None:
        """Drop all, as a new leadership has begun: rejected batches are sent to the new leader."""
        self._first.clear()

    def allows(self, records: Buffer, *, are_enough: bool) -> bool:
        """Return whether a producer's batch may be appended, as far as that depends on replicas: `are_enough`
        of them are in sync. The batch is not validated yet."""
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

    def check_verified(self, header: BatchHeader, guard: VerificationGuard) -> None:
        """Raise `RequestError` NOT_ENOUGH_REPLICAS for a batch whose transaction was verified, if a batch
        before it was verified, too, and was not appended."""
        producers = self._log.producers
        guards = producers.guards
        lowest = None if guards is None else guards.lowest_sequence(header.producer_id, guard)
        if lowest is None or header.base_sequence <= lowest:
            return
        known = producers.get(header.producer_id)
        if known is not None and header.producer_epoch < known.epoch:
            return  # it is refused for that
        if producers.original(header) is None:
            raise RequestError(
                ErrorCode.not_enough_replicas,
                f"producer {header.producer_id}: the batch of sequence {lowest} comes before that of "
                f"{header.base_sequence}, and was rejected",
            )

    def _is_missing(self, first: _First, header: BatchHeader) -> bool:
        """Return whether the log still lacks the rejected batch; not if the producer has a new epoch."""
        if first.epoch != header.producer_epoch:
            return False
        known = self._log.producers.get(header.producer_id)
        return known is None or known.epoch != first.epoch or known.next_sequence == first.sequence
