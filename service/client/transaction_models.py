"""Plain values of a cluster's transactions, and which of a partition's open ones hang. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

MOST_SCANNED: Final = 2_000
"""Most partitions of a cluster that are looked through for what else an id has open."""


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


class OpenPartition(NamedTuple):
    """A partition of a transaction. `first_offset` is None where no record of it is; `hangs`: no coordinator
    will end it there."""

    topic: str
    partition: int
    first_offset: int | None
    last_timestamp_ms: int | None
    hangs: bool


class TransactionPlaces(NamedTuple):
    """One id with its partitions; `is_whole`: all partitions of the cluster were looked through."""

    info: TransactionInfo
    partitions: tuple[OpenPartition, ...]
    is_whole: bool
    problems: tuple[str, ...]


class OldestTransaction(NamedTuple):
    """The open transaction that holds a partition's stable offset back.

    `since_ms`: its begin if a coordinator (`info`) knows it, else the time of its first record here.
    """

    open: PartitionTransaction
    transactional_id: str | None
    info: TransactionInfo | None
    since_ms: int | None


class StableOffset(NamedTuple):
    """The last stable offset of a partition and its high watermark, with the number of open transactions."""

    last_stable: int
    high_watermark: int
    open: int
    oldest: OldestTransaction | None

    @property
    def lag(self) -> int:
        return max(self.high_watermark - self.last_stable, 0)


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
