"""Plain values of a cluster's transactions, and which of a partition's open ones hang. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class TransactionRow(NamedTuple):
    """A transactional id, as its coordinator `node` lists it; `state` is Kafka's word."""

    transactional_id: str
    node: int
    producer_id: int
    state: str


class TransactionListing(NamedTuple):
    """Ids of all nodes that answered, sorted; `problems` has the errors of the other nodes."""

    rows: tuple[TransactionRow, ...]
    problems: tuple[str, ...] = ()


class TransactionInfo(NamedTuple):
    """The whole state of one id. `start_ms` is None where no transaction has begun, `partitions` are those
    whose markers are still to be written."""

    transactional_id: str
    node: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[tuple[str, int], ...]


class PartitionTransaction(NamedTuple):
    """A transaction that a partition holds open: its producer, and where it begins there."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    last_timestamp_ms: int
    leader: int

    @property
    def key(self) -> tuple[str, int, int, int]:
        """The transaction, whatever is appended to it."""
        return self.topic, self.partition, self.producer_id, self.first_offset


class HangingTransaction(NamedTuple):
    """An open transaction that no coordinator will end; the id is its producer's, where one is known."""

    open: PartitionTransaction
    transactional_id: str | None


def hanging_among(
    candidates: Iterable[PartitionTransaction],
    ids: Mapping[int, str],
    described: Mapping[str, TransactionInfo],
) -> list[HangingTransaction]:
    """Return the candidates that hang: of whose producer no id is known, or whose id's transaction lacks the
    partition (KIP-664).

    `ids` are by producer id; `described` lacks ids that are gone.
    """
    found = []
    for one in candidates:
        transactional_id = ids.get(one.producer_id)
        info = described.get(transactional_id) if transactional_id is not None else None
        if info is None or (one.topic, one.partition) not in info.partitions:
            found.append(HangingTransaction(one, transactional_id))
    return found
