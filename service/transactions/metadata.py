"""State of one transactional id, and the states that follow it. [P]

A step makes a new `TransactionMetadata`; `states.MOVES` says which steps there are.
Source: Apache Kafka ``TransactionMetadata``.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from service.base.types import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from service.transactions.config import TV0, TV2
from service.transactions.states import (
    AT_REST,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TransactionState,
)

MAX_EPOCH: Final = 32767
LAST_CLIENT_EPOCH: Final = MAX_EPOCH - 1
"""Highest epoch of a client: the one above is left for fencing it."""

Partition: TypeAlias = tuple[str, int]
"""Topic and index."""


class TransactionMetadata(NamedTuple):
    """State of a transactional id. Times are wall-clock ms.

    `previous_producer_id`: that of the state before. `next_producer_id`: in a Prepare state the one that
    Complete begins with, since the epoch is used up. `last_producer_epoch`: the client's epoch before this
    one, not in the log. `client_version`: the transaction version of the request that made the state.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = EMPTY
    partitions: frozenset[Partition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    updated_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = TV0
    last_producer_epoch: int = NO_EPOCH

    @property
    def is_exhausted(self) -> bool:
        """Return whether the producer id has no further epoch for a client."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    @property
    def due_ms(self) -> int:
        """Return the time after which an ongoing transaction is aborted."""
        return self.start_ms + self.timeout_ms

    def initialized(
        self, producer_id: int, producer_epoch: int, last_producer_epoch: int, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        """Return the Empty state that a producer begins with."""
        return self._replace(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timeout_ms=timeout_ms,
            state=EMPTY,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            updated_ms=now_ms,
            previous_producer_id=self.producer_id,
            last_producer_epoch=last_producer_epoch,
        )

    def added(
        self, partitions: frozenset[Partition], client_version: int, now_ms: int
    ) -> TransactionMetadata:
        """Return the Ongoing state with these partitions, too."""
        return self._replace(
            state=ONGOING,
            partitions=self.partitions | partitions,
            start_ms=now_ms if self.state in AT_REST else self.start_ms,
            updated_ms=now_ms,
            previous_producer_id=self.producer_id,
            client_version=client_version,
        )

    def prepared(
        self, is_commit: bool, client_version: int, next_producer_id: int, now_ms: int
    ) -> TransactionMetadata:
        """Return the Prepare state of a decision; from TV2 on with the next epoch.

        At the highest epoch, which no client ever has, an abort goes through without another one.
        """
        epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        if client_version >= TV2:
            epoch, last_epoch = min(epoch + 1, MAX_EPOCH), epoch
        return self._replace(
            producer_epoch=epoch,
            state=PREPARE_COMMIT if is_commit else PREPARE_ABORT,
            start_ms=now_ms if self.state in AT_REST else self.start_ms,
            updated_ms=now_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=next_producer_id,
            client_version=client_version,
            last_producer_epoch=last_epoch,
        )

    def fenced(self, client_version: int, next_producer_id: int, now_ms: int) -> TransactionMetadata:
        """Return the PrepareAbort state with which a coordinator fences the producer."""
        if client_version >= TV2:
            return self.prepared(False, client_version, next_producer_id, now_ms)
        raised = self._replace(
            producer_epoch=min(self.producer_epoch + 1, MAX_EPOCH), last_producer_epoch=NO_EPOCH
        )
        return raised.prepared(False, TV0, NO_PRODUCER_ID, now_ms)

    def completed(self, now_ms: int) -> TransactionMetadata:
        """Return the Complete state that follows a Prepare state once all markers are written."""
        rotates = self.client_version >= TV2 and self.next_producer_id != NO_PRODUCER_ID
        return self._replace(
            producer_id=self.next_producer_id if rotates else self.producer_id,
            producer_epoch=0 if rotates else self.producer_epoch,
            state=COMPLETE_COMMIT if self.state is PREPARE_COMMIT else COMPLETE_ABORT,
            partitions=frozenset(),
            updated_ms=now_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )
