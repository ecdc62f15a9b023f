"""Bugs of transactions, planted one at a time: `python -m simulator.cluster --transactions --plants`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from service.base.types import NO_OFFSET
from service.coordinator.pending_decisions import OverdueDecisions
from service.groups.offsets import CommittedOffsets
from service.hot.producers import ProducerEntry, ProducerStates
from service.hot.transactions import OpenTransactions
from service.hot.txn_index import TxnIndex
from service.hot.verification import VerificationGuards
from service.partition.unified_log import UnifiedLog
from service.replicas.tier_state_builder import TierStateBuilder
from service.transactions.markers import TransactionMarkers
from service.transactions.shard import TransactionShard

Plant = Callable[[], None]
_BEYOND: Final = 1 << 62


def _swap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(original)` in the place of an attribute that must be there."""
    setattr(owner, name, make(getattr(owner, name)))


def markers_before_the_decision_is_committed() -> None:
    """Send the markers of a transaction when its decision is made, not once it is committed."""

    def make(prepare: Any) -> Any:
        def hasty(self: Any, *args: Any) -> Any:
            decision = prepare(self, *args)
            for one in decision.event.transactions:
                if one.partitions:
                    self.on_prepared(one)
            return decision

        return hasty

    _swap(TransactionShard, "_prepare", make)


def decision_forgotten_by_the_next_coordinator() -> None:
    """Send no markers for decisions that a load finds."""

    def make(loaded: Any) -> Any:
        def forgetful(self: Any, now_ms: int) -> Iterable[Any]:
            for effect in loaded(self, now_ms):
                self._found.clear()
                yield effect

        return forgetful

    _swap(TransactionShard, "loaded", make)


def complete_before_all_markers() -> None:
    """Complete a transaction when its first broker has answered."""

    def make(done: Any) -> Any:
        def hasty(self: Any, sending: Any, topic: str, partition: int) -> None:
            if not sending.is_over:
                sending.left.clear()
                done(self, sending, topic, partition)

        return hasty

    _swap(TransactionMarkers, "_partition_done", make)


def late_decision_is_dropped() -> None:
    """Forget a decision whose patience is used up, though it may be committed yet."""

    def make(out_of_patience: Any) -> Any:
        def forgetful(self: Any, now_ms: int) -> Any:
            late = out_of_patience(self, now_ms)
            if late is not None and late in self.queue:
                self.queue[self.queue.index(late)] = late._replace(
                    decision=late.decision._replace(event=None)
                )
            return late

        return forgetful

    _swap(OverdueDecisions, "out_of_patience", make)


def appended_before_it_is_verified() -> None:
    """Append the first batch of a transaction without asking its coordinator."""
    _swap(ProducerStates, "begin_verification", lambda _: lambda self, *args, **options: None)
    _swap(ProducerStates, "has_open_transaction", lambda _: lambda self, *args: True)
    _swap(VerificationGuards, "check", lambda _: lambda self, *args, **options: None)


def guard_outlives_the_marker() -> None:
    """Keep the guard of a verification over the marker of the transaction that it asked about."""
    _swap(VerificationGuards, "marked", lambda _: lambda self, producer_id, epoch: None)


def stable_before_it_is_replicated() -> None:
    """Let a span go when its marker is appended, not when the high watermark passes that."""

    def make(complete: Any) -> Any:
        def hasty(self: Any, *args: Any, **options: Any) -> Any:
            mark, self._mark = self._mark, _BEYOND
            try:
                return complete(self, *args, **options)
            finally:
                self._mark = mark

        return hasty

    _swap(OpenTransactions, "complete", make)


def row_lost_by_the_cut() -> None:
    """Leave the index of aborted transactions as it was when its segment is cut."""
    _swap(TxnIndex, "truncate", lambda _: lambda self, offset: None)


def archive_start_without_open_transactions() -> None:
    """Begin at the archive's end as if no transaction were open there."""

    def make(begin: Any) -> Any:
        def careless(
            self: Any, partition: Any, entry: Any, start: int, epochs: Any, producers: Sequence[Any]
        ) -> Any:
            closed = [
                (
                    number,
                    ProducerEntry(
                        one.epoch,
                        one.last_timestamp,
                        coordinator_epoch=one.coordinator_epoch,
                        txn_first_offset=NO_OFFSET,
                        batches=one.batches,
                    ),
                )
                for number, one in producers
            ]
            return begin(self, partition, entry, start, epochs, closed)

        return careless

    _swap(TierStateBuilder, "_begin", make)


def cold_reads_beyond_the_stable_end() -> None:
    """Read what is in the bucket without a bound."""
    _swap(
        UnifiedLog,
        "_read_remote",
        lambda read: lambda self, offset, most, end, *args: read(self, offset, most, _BEYOND, *args),
    )


def older_offset_wins() -> None:
    """Have a commit marker put a transaction's offsets over those of later records."""
    _swap(CommittedOffsets, "_record_offset_of", lambda _: lambda self, group, place: -1)


OF_TRANSACTIONS: Final[dict[str, Plant]] = {
    one.__name__: one
    for one in (
        markers_before_the_decision_is_committed,
        decision_forgotten_by_the_next_coordinator,
        complete_before_all_markers,
        late_decision_is_dropped,
        appended_before_it_is_verified,
        guard_outlives_the_marker,
        stable_before_it_is_replicated,
        row_lost_by_the_cut,
        archive_start_without_open_transactions,
        cold_reads_beyond_the_stable_end,
        older_offset_wins,
    )
}
WITHIN_OF_TRANSACTIONS: Final[dict[str, int]] = {
    "markers_before_the_decision_is_committed": 5,
    "decision_forgotten_by_the_next_coordinator": 20,
    "complete_before_all_markers": 20,
    "late_decision_is_dropped": 25,
    "appended_before_it_is_verified": 5,
    "guard_outlives_the_marker": 20,
    "stable_before_it_is_replicated": 20,
    "row_lost_by_the_cut": 25,
    "archive_start_without_open_transactions": 20,
    "cold_reads_beyond_the_stable_end": 20,
    "older_offset_wins": 20,
}
"""Histories in which each is to be found, some times what it took from seed 1: 8 for the lost row, 5 for the
decision that is forgotten, 4 for cold reads, 3 for the hasty completion, the guard and the archive's start, 1
for the others, the late decision among them. Measured since followers stand still: the late decision, the one
that is forgotten, the older offset."""
