"""A transaction hangs where its producer's id is unknown, or has a transaction without the partition."""

from __future__ import annotations

from service.client.transaction_models import (
    HangingTransaction,
    PartitionTransaction,
    TransactionInfo,
    hanging_among,
)


def held_open(producer_id: int, partition: int = 0) -> PartitionTransaction:
    return PartitionTransaction("flights", partition, producer_id, 3, -1, 42, 1_000, 1)


def info(name: str, *partitions: tuple[str, int]) -> TransactionInfo:
    return TransactionInfo(name, 1, 7, 3, "Ongoing", 60_000, 5_000, partitions)


def test_a_transaction_of_a_producer_without_an_id_hangs() -> None:
    one = held_open(7)
    assert hanging_among([one], {8: "other"}, {}) == [HangingTransaction(one, None)]


def test_a_transaction_of_an_id_that_is_gone_hangs() -> None:
    one = held_open(7)
    assert hanging_among([one], {7: "mine"}, {}) == [HangingTransaction(one, "mine")]


def test_a_transaction_in_a_partition_that_its_id_does_not_have_hangs() -> None:
    ids, described = {7: "mine"}, {"mine": info("mine", ("flights", 1), ("hotels", 0))}
    first, second = held_open(7, 0), held_open(7, 1)
    assert hanging_among([first, second], ids, described) == [HangingTransaction(first, "mine")]
