"""Oracle of transactions: their records, every answer, and what each replica's committed batches say.

After each turn, of what has come below a high watermark:

X1  the records of one transaction end alike in all partitions
X2  decisions do not change; a marker has a committed decision that names its partition
X3  what was answered is how it ends
X4  nothing is shown at isolation 1 that is not committed, and all that is (`saw`); no LSO passes what is open
X5  LSO <= high watermark, and it does not fall while the replica's log is not cut
X7  no transactional record in a partition that its coordinator does not know, or behind its marker
X8  a producer id and epoch is given to one
X9  coordinator epochs of a producer do not fall in a partition

Where committed records may be lost (P4) nothing is said of that partition, nor of the transactional ids in
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from service.partition.partition import Partition
from simulator.client import Record
from simulator.cluster.groups import OFFSETS
from simulator.cluster.offsets_replay import OffsetsReplay
from simulator.cluster.replicas import Key, Replicas, records_by_offset
from simulator.cluster.transaction_log import DECISIONS, STATE, Change, Ids
from simulator.cluster.transaction_model import Transaction, Transactions
from simulator.cluster.transaction_replay import MarkerSeen, Replay, Span
from simulator.model import Violation, brief

_ENDS: Final = {True: "commit", False: "abort"}


class TransactionOracle:
    """Looks at committed batches after each turn; costs what has changed."""

    def __init__(
        self, replicas: Replicas, names: dict[str, UUID], gone: Callable[[], frozenset[UUID]]
    ) -> None:
        """`names`: topics by name, as committed. `gone` returns those whose deletion was requested."""
        self.ids = Ids()
        self.transactions = Transactions()
        self.replays: dict[Key, Replay] = {}
        self.offsets: dict[Key, OffsetsReplay] = {}
        """of the partitions of `__consumer_offsets`"""
        self.decided = 0
        self.ended: set[tuple[Key, int]] = set()
        """transactions, by number, that have their marker in a partition"""
        self._replicas = replicas
        self._names = names
        self._gone = gone
        self._new: list[tuple[Key, bytes]] = []
        self._completed: list[tuple[str, Change]] = []
        self._stable: dict[str, tuple[Partition, int]] = {}
        self._looked_at: dict[str, tuple[Key, Partition]] = {}
        self.ids.on_decision = self._decided
        self.ids.on_complete = lambda name, decision: self._completed.append((name, decision))
        replicas.on_committed = lambda key, batch: self._new.append((key, batch))

    # What is known

    def name(self, key: Key) -> str:
        """Return the topic's name."""
        return next((name for name, known in self._names.items() if known == key[0]), str(key[0]))

    def is_excused(self, transactional_id: str) -> bool:
        """Return whether the transaction log may have lost what it had of the id, or nobody has the id."""
        if not transactional_id:
            return True
        topic_id, partition = self._names.get(STATE), self.ids.partition.get(transactional_id)
        shaken = [key[1] for key in self._replicas.shaken if key[0] == topic_id]
        return bool(shaken) and (partition is None or partition in shaken)

    def decision(self, one: Transaction) -> bool | None:
        """Return whether a transaction was committed; None while that is not decided."""
        return self.ids.decision(one.transactional_id, one.began_after, one.producer_id, one.epoch)

    # After each turn

    def look(self) -> None:
        """Check the batches that were committed in this turn. Raises `Violation`."""
        self._take_new()
        looked_at, self._looked_at = self._looked_at, {}
        for name, (key, partition) in looked_at.items():
            self._hides(name, key, partition)

    def _take_new(self) -> None:
        if not self._new:
            return
        new, self._new = self._new, []
        state = self._names.get(STATE)
        for key, batch in new:
            if key[0] == state:
                for record_key, value in records_by_offset(batch).values():
                    self.ids.learn(key[1], record_key or b"", value)
        for key, batch in new:
            if key[0] != state:
                self._take(key, batch)
        completed, self._completed = self._completed, []
        for name, decision in completed:
            self._complete(name, decision)

    def look_at(self, name: str, key: Key, partition: Partition) -> None:
        """X5, of a replica to which something was done. Raises `Violation`."""
        stable = partition.last_stable_offset
        if key in self._replicas.shaken or partition.log.failure is not None:
            return
        if stable > partition.high_watermark:
            raise Violation(f"X5: {name}: LSO {stable}, high watermark {partition.high_watermark}")
        known, least = self._stable.get(name, (None, 0))
        is_cut = partition.log.log_end_offset < least
        if known is partition and stable < least and not is_cut:
            raise Violation(f"X5: {name}: its LSO falls from {least} to {stable}")
        self._stable[name] = partition, stable
        self._looked_at[name] = key, partition

    def _hides(self, name: str, key: Key, partition: Partition) -> None:
        """X4: no replica's LSO is beyond a record whose transaction has no committed marker."""
        replay = self.replays.get(key)
        if replay is None or not replay.open or key in self._replicas.shaken:
            return
        start, stable = partition.log.log_start_offset, partition.last_stable_offset
        for producer_id, (epoch, offsets) in replay.open.items():
            first = next((one for one in offsets if one >= start), stable)
            if first < stable:
                raise Violation(
                    f"X4: {name}: its LSO is {stable}, and {producer_id}/{epoch} is open since {first}"
                )

    def _decided(self, transactional_id: str, decision: Change) -> None:
        self.decided += 1

    def _complete(self, transactional_id: str, decision: Change) -> None:
        """X1: a transaction is complete once every partition of it has its marker."""
        for topic, partition in decision.partitions:
            key = self._names.get(topic), partition
            topic_id = key[0]
            if topic_id is None or topic_id in self._gone() or (topic_id, partition) in self._replicas.shaken:
                continue
            replay = self.replays.get((topic_id, partition))
            there = [] if replay is None else replay.markers.get(decision.producer_id, [])
            if not any(one.epoch >= decision.epoch for one in there):
                raise Violation(
                    f"X1: {transactional_id} is complete, and {topic}-{partition} has no marker of {decision}"
                )

    def _take(self, key: Key, batch: bytes) -> None:
        if key in self._replicas.shaken:
            return
        name, replay = f"{self.name(key)}-{key[1]}", self.replays.setdefault(key, Replay())
        spans = len(replay.spans)
        taken = replay.take(batch, name)
        if self.name(key) == OFFSETS:
            self.offsets.setdefault(key, OffsetsReplay()).take(batch)
        if isinstance(taken, MarkerSeen):
            self._marker(key, name, taken)
            for span in replay.spans[spans:]:
                self._span(key, name, replay, span)
            return
        if taken and self.name(key) != OFFSETS:
            self._records(key, name, taken)

    def _marker(self, key: Key, name: str, seen: MarkerSeen) -> None:
        """X2."""
        transactional_id = self.ids.of_producer.get(seen.producer_id, "")
        if self.is_excused(transactional_id):
            return
        place = self.name(key), key[1]
        for change in self.ids.changes.get(transactional_id, ()):
            is_its = change.producer_id == seen.producer_id and change.epoch == seen.epoch
            if is_its and DECISIONS.get(change.state) is seen.is_commit and place in change.partitions:
                return
        known = self.ids.changes.get(transactional_id, [])[-4:]
        raise Violation(f"X2: {name}: {seen} has no committed decision of {transactional_id!r}: {known}")

    def _records(self, key: Key, name: str, records: list[tuple[int, bytes]]) -> None:
        """X7."""
        place = self.name(key), key[1]
        for offset, value in records:
            one = self.transactions.of_value.get(value)
            if one is None:
                raise Violation(f"X7: {name}: {brief(value)} at {offset} is of no transaction")
            if self.is_excused(one.transactional_id):
                continue
            if (key, one.number) in self.ended:
                raise Violation(f"X7: {name}: {brief(value)} of {one} at {offset} lies behind its marker")
            if not any(place in change.partitions for change in self._of(one)):
                raise Violation(
                    f"X7: {name}: {brief(value)} of {one} is at {offset}, and its coordinator knows nothing: "
                    f"{self._of(one)}"
                )

    def _of(self, one: Transaction) -> list[Change]:
        return [
            change
            for change in self.ids.since(one.transactional_id, one.began_after)
            if change.producer_id == one.producer_id and change.epoch in (one.epoch, one.epoch + 1)
        ]

    def _span(self, key: Key, name: str, replay: Replay, span: Span) -> None:
        """X1, X2, X3: how a transaction ends in one partition."""
        if span.marker is None or self.name(key) == OFFSETS:
            return
        values = [replay.values[offset] for offset in span.offsets if offset in replay.values]
        found = {one.number: one for value in values if (one := self.transactions.of_value.get(value))}
        if len(found) > 1 and all(one.transactional_id for one in found.values()):
            raise Violation(f"X1: {name}: {[*map(str, found.values())]} end with one marker, {span.marker}")
        for one in found.values():
            self.ended.add((key, one.number))
            if self.is_excused(one.transactional_id):
                continue
            wanted, ends = self.decision(one), span.marker.is_commit
            if wanted is not ends:
                raise Violation(f"X1: {name}: {one} ends with {span.marker}, decided was {wanted}")
            if ends and one.asked != "commit":
                raise Violation(f"X4: {name}: {one} is committed, and its producer never asked for that")
            if one.told and one.told != _ENDS[ends]:
                raise Violation(f"X3: {name}: {one} was answered {one.told}, and ends with {span.marker}")

    # What consumers see

    def saw(self, key: Key, name: str, first: int, end: int, shown: Iterable[Record]) -> None:
        """X4: of the records from `first` to `end` exactly those of committed transactions were shown."""
        replay = self.replays.get(key, Replay())
        if key in self._replicas.shaken or self._replicas.most.get(key, 0) < end:
            return
        found = {one.offset: one.value for one in shown if one.producer is not None}
        wanted = dict(replay.shown(first, end))
        for offset in sorted(found.keys() | wanted.keys()):
            if found.get(offset) != wanted.get(offset):
                value = found.get(offset) or wanted[offset]
                said = "is shown" if offset in found else "is not shown"
                one = self.transactions.of_value.get(value)
                raise Violation(
                    f"X4: {name}: {brief(value)} at {offset} of {one} {said} at isolation 1, "
                    f"read from {first} to {end}"
                )

    # At rest

    def left_open(self) -> str:
        """Name a partition that has an open transaction, or a transaction that is not complete; else ""."""
        for key, replay in self.replays.items():
            if key in self._replicas.shaken or key[0] in self._gone():
                continue
            for producer_id, (epoch, offsets) in replay.open.items():
                if not self.is_excused(self.ids.of_producer.get(producer_id, "")):
                    return f"{self.name(key)}-{key[1]}: {producer_id}/{epoch} is open since {offsets[0]}"
        for transactional_id, changes in self.ids.changes.items():
            if changes[-1].state in (1, *DECISIONS) and not self.is_excused(transactional_id):
                return f"{transactional_id} is {changes[-1]}"
        return ""

    def all_ended_as_answered(self) -> None:
        """X1, X3: what was answered is so, and all acknowledged records of a transaction have its marker."""
        for one in self.transactions.all:
            if self.is_excused(one.transactional_id):
                continue
            decision = self.decision(one)
            if one.told == "commit" and one.records and decision is not True:
                raise Violation(f"X3: {one} was answered {one.told}, decided is {decision}")
            for key, values in one.records.items():
                acknowledged = one.acknowledged.intersection(values)
                is_there = key not in self._replicas.shaken and key[0] not in self._gone()
                if acknowledged and is_there and (key, one.number) not in self.ended:
                    raise Violation(f"X3: {one} has no marker in {self.name(key)}-{key[1]}")
