"""Keys of transactions and of the topic that stores their states. [P]"""

from __future__ import annotations

from typing import Final

from service.config.tables.columns import BOOLEAN, INT, MIB, key

TRANSACTIONS: Final = (
    key(
        "transaction.max.timeout.ms", INT, 900_000,
        "Longest timeout that a transactional producer may ask for.",
        at_least=1,
    ),
    key(
        "transactional.id.expiration.ms", INT, 604_800_000,
        "A transactional id is removed after this long without a transaction.",
        at_least=1,
    ),
    key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10_000,
        "Time between two looks for transactions that are open for longer than their timeout.",
        at_least=1,
    ),
    key(
        "transaction.remove.expired.transaction.cleanup.interval.ms", INT, 3_600_000,
        "Shortest time between two removals of idle transactional ids.",
        at_least=1,
    ),
    key(
        "transaction.partition.verification.enable", BOOLEAN, True,
        "Ask a transaction's coordinator before its first batch is written to a partition. Producers that "
        "raise their epoch with each transaction are always verified.",
        dynamic=True,
    ),
    key(
        "add.partitions.to.txn.retry.backoff.ms", INT, 20,
        "Delay before a partition is added again to a transaction whose previous one is being completed.",
        at_least=1,
    ),
    key(
        "add.partitions.to.txn.retry.backoff.max.ms", INT, 100,
        "Longest time for which a partition is added again; then the producer has to retry.",
        at_least=0,
    ),
    key(
        "transaction.state.log.load.buffer.size", INT, 5 * MIB,
        "Bytes of a partition of `__transaction_state` that are read at a time when it is loaded.",
        at_least=1,
    ),
    key(
        "transaction.state.log.num.partitions", INT, 50,
        "Partitions of `__transaction_state`, set when the topic is created; it never grows.",
        at_least=1,
    ),
    key(
        "transaction.state.log.replication.factor", INT, 3,
        "Replicas of `__transaction_state`. Unset: the number of brokers when the topic is created, at most "
        "three.",
        at_least=1, at_most=32767,
    ),
    key(
        "transaction.state.log.min.isr", INT, 2,
        "`min.insync.replicas` of `__transaction_state`, at most its replicas.",
        at_least=1,
    ),
    key(
        "transaction.state.log.segment.bytes", INT, 100 * MIB,
        "Size of the segments of `__transaction_state`: small ones are compacted, and loaded, sooner.",
        at_least=MIB,
    ),
)  # fmt: skip
