"""Verification of transactions before their first batch in a partition. [P]

Kafka `VerificationStateEntry`, `VerificationGuard` (KIP-890). A transactional batch is appended while its
producer has an open transaction of its epoch here. Else the coordinator is asked first whether the
transaction has this partition; meanwhile the partition holds a guard, and the batch is appended only if the
guard that was given for the question still is the partition's. A marker or a transactional batch in between
takes it away: the answer was about a transaction that is over.

The lowest sequence that was asked about is kept until something is appended: a batch behind it would come
before the one that is to be sent again, which could never be appended then.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.records.batch import BatchHeader

_EXPIRED_A_STEP: Final = 500
_MOST_GUARDS: Final = 10_000
"""Guards of one partition: anybody may ask about as many producers as he likes. The oldest goes."""


class VerificationGuard:
    """Identity of one verification: it equals itself alone."""

    __slots__ = ()


VERIFICATION_OFF: Final = VerificationGuard()
"""guard of an append that nobody needs to verify"""


class _Verification:
    __slots__ = ("epoch", "guard", "is_tv2", "lowest_sequence", "seen_ms")

    def __init__(self, epoch: int, sequence: int, is_tv2: bool) -> None:
        self.guard = VerificationGuard()
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.is_tv2 = is_tv2
        self.seen_ms: int | None = None


class VerificationGuards:
    """The guards of one partition, by producer id. Owned by the loop."""

    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, _Verification] = {}

    def __len__(self) -> int:
        return len(self._by_producer)

    def begin(self, producer_id: int, epoch: int, sequence: int, *, is_tv2: bool) -> VerificationGuard:
        """Return the producer's guard, a new one if it has none; note the lowest sequence of its newest
        epoch."""
        known = self._by_producer.get(producer_id)
        if known is None:
            if len(self._by_producer) >= _MOST_GUARDS:
                del self._by_producer[next(iter(self._by_producer))]
            known = self._by_producer[producer_id] = _Verification(epoch, sequence, is_tv2)
        elif epoch > known.epoch:
            known.epoch, known.lowest_sequence = epoch, sequence
        elif epoch == known.epoch and sequence < known.lowest_sequence:
            known.lowest_sequence = sequence
        return known.guard

    def lowest_sequence(self, producer_id: int, guard: VerificationGuard) -> int | None:
        """Return the lowest sequence that was asked about, if `guard` is the producer's."""
        known = self._by_producer.get(producer_id)
        return known.lowest_sequence if known is not None and known.guard is guard else None

    def check(
        self, header: BatchHeader, guard: VerificationGuard | None, *, has_sequence: bool, is_known: bool
    ) -> None:
        """Check a transactional batch whose producer has no open transaction of its epoch.

        `is_known`: batches of this producer are known. `RequestError` INVALID_TXN_STATE unless `guard` is the
        producer's, or `VERIFICATION_OFF`; OUT_OF_ORDER_SEQUENCE_NUMBER behind the lowest sequence, and for a
        producer of TV2 that does not begin at 0.
        """
        known = self._by_producer.get(header.producer_id)
        if guard is not VERIFICATION_OFF and (known is None or known.guard is not guard):
            raise RequestError(
                ErrorCode.invalid_txn_state,
                f"the batch of producer {header.producer_id} is not part of an ongoing transaction",
            )
        if known is None or not has_sequence:
            return
        sequence = header.base_sequence
        if known.is_tv2 and sequence != 0 and not is_known:
            raise _out_of_order(header, "nothing of it is known, so it begins at 0")
        if sequence > known.lowest_sequence:
            raise _out_of_order(header, f"{known.lowest_sequence} comes before it")

    def appended(self, producer_id: int) -> None:
        """Take the producer's guard away: a transactional batch of it was appended."""
        self._by_producer.pop(producer_id, None)

    def marked(self, producer_id: int, epoch: int) -> None:
        """Take the producer's guard away: a marker of `epoch` was appended.

        One of TV2 stays if it has that epoch: the marker ends the transaction before, and the guard is about
        the next.
        """
        known = self._by_producer.get(producer_id)
        if known is not None and not (known.is_tv2 and known.epoch == epoch):
            del self._by_producer[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> Steps[None]:
        """Forget guards that an earlier call has seen `expiration_ms` ago, in steps."""
        for number, producer_id in enumerate(tuple(self._by_producer)):
            if not number % _EXPIRED_A_STEP:
                yield
            known = self._by_producer.get(producer_id)
            if known is None:
                continue
            if known.seen_ms is None:
                known.seen_ms = now_ms
            elif now_ms - known.seen_ms >= expiration_ms:
                del self._by_producer[producer_id]


def _out_of_order(header: BatchHeader, why: str) -> RequestError:
    return RequestError(
        ErrorCode.out_of_order_sequence_number,
        f"sequence {header.base_sequence} of producer {header.producer_id} epoch {header.producer_epoch} "
        f"is out of order: {why}",
    )
