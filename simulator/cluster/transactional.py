"""World of a cluster with groups and transactions, and with the internal topics that these are kept in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Final

from service.partition.partition import Partition
from simulator.cluster.beginnings import Beginnings
from simulator.cluster.direct_producers import Direct
from simulator.cluster.groups import OFFSETS, OFFSETS_PARTITIONS, ClusterGroup
from simulator.cluster.replicas import Key
from simulator.cluster.transaction_oracle import TransactionOracle
from simulator.cluster.world import ClusterWorld
from simulator.machine import Machine
from simulator.process import Life

if TYPE_CHECKING:
    from simulator.cluster.pipelines import Pipeline
    from simulator.cluster.transaction_client import TransactionalProducer

_SETTINGS: Final = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "group.initial.rebalance.delay.ms": "200",
    "log.cleaner.backoff.ms": "700",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


class TransactionalWorld(ClusterWorld):
    """`ClusterWorld` with groups and transactions. Made and used on its own loop."""

    has_transactions = True
    has_offsets = True
    has_second = True
    """whether nodes speak version 2 of the protocol (KIP-890)"""

    def __init__(self, seed: int, *, nodes: int = 3, tiered: bool = False, keep_all: bool = False) -> None:
        self.chance = Random(seed ^ 0x7A45)
        super().__init__(seed, nodes=nodes, tiered=tiered, keep_all=keep_all)
        self.groups: list[ClusterGroup] = []
        self.numbers = 0
        """commits so far: the last offset that was committed by anybody"""
        self.configured: set[str] = set()
        """internal topics that have the settings of these histories"""
        self.committed_offsets = 0
        """acknowledged"""
        self.producers: list[TransactionalProducer] = []
        self.direct = Direct()
        self.end_direct: Callable[[], str] = lambda: ""
        self.pipelines: list[Pipeline] = []
        self.ends = {"commit": 0, "abort": 0}
        """answered"""
        self.stable_reads = 0
        self.beginnings = Beginnings()
        self.transactions = TransactionOracle(self.oracle.replicas, self.oracle.names, self._deleted)
        tiers = self.oracle.tiers.look_at

        def look_at(name: str, key: Key, partition: Partition) -> None:
            tiers(name, key, partition)
            self.transactions.look_at(name, key, partition)

        self.oracle.replicas.on_look = look_at
        self.kills: list[tuple[int, Machine]] = []
        """machines whose process is to be killed once so many turns have passed"""
        self.turns = 0
        self.loop.after_turn = self._look

    def _drawn_settings(self, random: Random) -> dict[str, str]:
        return {**super()._drawn_settings(random), **_SETTINGS}

    def new_number(self) -> int:
        """Return an offset that nobody has committed."""
        self.numbers += 1
        return self.numbers

    @property
    def counted(self) -> dict[str, int]:
        """Counts for the summary."""
        return {
            "offsets": self.committed_offsets,
            "decided": self.transactions.decided,
            "commits_told": self.ends["commit"],
            "aborts_told": self.ends["abort"],
            "stable_reads": self.stable_reads,
        }

    def _look(self) -> None:
        self.turns += 1
        if self.kills and self.kills[0][0] <= self.turns:
            _, machine = self.kills.pop(0)
            if machine.run is not None and not machine.run.ended:
                self.kill(machine)
        self.oracle.look(self.machines)
        self.transactions.look()

    # What there is

    def runs(self) -> Iterator[str]:
        """Yield the processes that may still do something."""
        for machine in self.machines:
            if machine.run is not None and machine.run.process.life is not Life.DEAD:
                yield machine.run.name

    def internal(self, name: str, partition: int) -> Key | None:
        """Return the key of a partition of an internal topic; None while there is no such topic."""
        topic_id = self.oracle.names.get(name)
        return None if topic_id is None else (topic_id, partition)

    def term(self, name: str, partition: int, machine: Machine) -> int:
        """Return the leader epoch in which the machine leads a partition of an internal topic, as the
        committed metadata and its own process say; -1 where these differ."""
        key, number = self.internal(name, partition), int(machine.name[1:])
        placed = None if key is None else self.oracle.replicas.placed.get(key)
        if key is None or placed is None or placed.leader != number:
            return -1
        seen = self.oracle.replicas.seen.get((number, key))
        if seen is None or machine.run is None or seen.run != machine.run.name:
            return -1
        is_same = seen.partition.is_leader and seen.partition.leader_epoch == placed.leader_epoch
        return placed.leader_epoch if is_same else -1

    # What may be lost

    def what_is_left_to_do(self) -> str:
        """End the transactions that nobody coordinates."""
        return self.end_direct()

    def loses_internal(self, key: Key, offset: int) -> None:
        """Note that the replicas of an internal topic's partition may lose records."""
        name = next((name for name, known in self.oracle.names.items() if known == key[0]), "")
        self.tell(f"{name}-{key[1]} may lose what lies from {offset} on")
        if name == OFFSETS:
            for group in self.groups:
                if group.partition == key[1]:
                    for committed in group.committed.values():
                        committed.may_be_lost()
