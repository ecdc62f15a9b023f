"""Invariants of replicas, checked after every turn in each process's memory and on its disk.

P1  high watermarks do not fall, and nothing below them is cut off
P2  a high watermark is at most the end of each in-sync replica that has lost nothing
P3  replicas have the same bytes below their high watermarks
P5  a partition has one leader in an epoch, and one process of it
P7  the leader is in sync, and in-sync members are replicas
P8  a log's end falls by a truncation alone
P9  a consumer sees what is committed, without a gap, and one value at an offset
P10 a leader has noted where its epoch began
P11 a leader counts what the process of a replica fetched that is registered, as its own image has it

A replica is checked when a method changed it: its class is patched, in the history's own process. Where
records may be lost (P4 says when) P1 to P3 are no longer checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.types import TopicIdPartition
from service.hot.log_appender import LogAppender
from service.hot.log_truncation import LogTruncation
from service.hot.segment_deletion import SegmentDeletion
from service.metadata.records import PartitionChangeRecord, PartitionRecord
from service.partition.partition import Partition
from service.records.batch import complete_headers
from service.records.decode import records_of
from service.replication.leader import FollowerProgress
from service.replication.replica_fetch import ReplicaFetch
from simulator.client import Fetched
from simulator.cluster.erasures import Erasures
from simulator.durable import segments
from simulator.machine import Machine
from simulator.model import Violation
from simulator.process import CURRENT, Life, Process

Key = tuple[UUID, int]
NOBODY: Final = -1
_AS_BEFORE: Final = -2
_MARK: Final = "high_watermark"


class Placed:
    """A partition as the committed metadata has it."""

    def __init__(self, record: PartitionRecord) -> None:
        self.replicas = _numbers(record.replicas)
        self.isr = _numbers(record.isr)
        self.eligible = _numbers(record.eligible_leader_replicas)
        self.last_known = _numbers(record.last_known_elr)
        self.leader = int(record.leader)
        self.leader_epoch = int(record.leader_epoch)
        self.had_many = len(self.replicas) > 1
        self.fewest = len(self.replicas)
        self.trusted = len(self.replicas)
        """so many of them there were when enough were in sync, or are now"""

    def change(self, record: PartitionChangeRecord) -> None:
        if record.replicas is not None:
            self.replicas = _numbers(record.replicas)
            self.had_many |= len(self.replicas) > 1
            self.fewest = min(self.fewest, len(self.replicas))
        if record.isr is not None:
            self.isr = _numbers(record.isr)
        if record.eligible_leader_replicas is not None:
            self.eligible = _numbers(record.eligible_leader_replicas)
        if record.last_known_elr is not None:
            self.last_known = _numbers(record.last_known_elr)
        if int(record.leader) != _AS_BEFORE:
            self.leader = int(record.leader)
            self.leader_epoch += 1

    @property
    def may_lead(self) -> set[int]:
        return {*self.isr, *self.eligible, *self.last_known}


def _numbers(those: Iterable[Any] | None) -> tuple[int, ...]:
    return tuple(int(one) for one in those or ())


def _number(run: str) -> int:
    """Return the number of a process's machine, from its name."""
    return int(run[1:].split(".")[0])


class Seen:
    """One replica as it was seen last; of a machine that is down, as it was then."""

    def __init__(self, run: str, partition: Partition) -> None:
        self.run = run
        self.partition = partition
        self.end = partition.log.log_end_offset
        self.mark = partition.high_watermark
        self.compared = 0
        self.is_closed = False


class Replicas:
    """Checks all replicas of the cluster; the cost is that of the changes."""

    def __init__(self, allow_loss: Callable[[Key, int], None]) -> None:
        """`allow_loss` is called with partitions that may have lost acknowledged records, and the first of
        their offsets."""
        self.placed: dict[Key, Placed] = {}
        self.compacted: set[UUID] = set()
        """topics whose batches each replica rewrites when it likes: their records are compared"""
        self.least: dict[UUID, int] = {}
        """``min.insync.replicas`` by topic"""
        self.seen: dict[tuple[int, Key], Seen] = {}
        self.shaken: set[Key] = set()
        """partitions whose committed records may be lost, or were"""
        self.committed: dict[Key, dict[int, bytes]] = {}
        self.consumed: dict[Key, dict[int, bytes]] = {}
        self.most: dict[Key, int] = {}
        """greatest high watermark that any replica ever had"""
        self.elections = 0
        self.cuts = 0
        self.erasures = Erasures()
        """orders to erase keys: records of theirs may be missing anywhere"""
        self._leaders: dict[tuple[Key, int], str] = {}
        self.on_look: Callable[[str, Key, Partition], None] = lambda *_: None
        """called for each replica that is checked, with its process"""
        self.on_committed: Callable[[Key, bytes], None] = lambda *_: None
        """called for each batch that comes below a high watermark for the first time, in order"""
        self._allow_loss = allow_loss
        self._machines: list[Machine] = []
        self._strangers: list[str] = []
        """fetches that were counted against P11"""
        self._dirty: dict[tuple[str, Key], None] = {}
        self._live: dict[tuple[str, Key], Partition] = {}
        self._cut: set[tuple[str, Key]] = set()
        self._down: set[int] = set()
        self._changes = -1
        """of processes, when it was last looked which of them are down"""
        self._unclean: dict[int, dict[Key, int]] = {}
        """by broker: partitions of which it may lack something, and its epoch when it died"""
        self._told: dict[Key, int] = {}
        """up to where `on_committed` was called"""
        self._lost: dict[int, dict[Key, int]] = {}
        """likewise, and what of them was durable when its machine lost power"""
        global _watching
        _watching = self
        _watch()

    # What is heard of

    def heard(self, partition: Partition) -> None:
        process = CURRENT.get(None)
        if process is not None and "unified" in partition.__dict__:
            key = process.name, (partition.tip.topic_id, partition.tip.partition)
            self._live[key] = partition
            self._dirty[key] = None

    def heard_log(self, tip: TopicIdPartition, *, is_cut: bool) -> None:
        process = CURRENT.get(None)
        if process is not None:
            key = process.name, (tip.topic_id, tip.partition)
            self._dirty[key] = None
            if is_cut:
                self._cut.add(key)
                self.cuts += 1

    def heard_fetch(self, asked: ReplicaFetch) -> None:
        process = CURRENT.get(None)
        if process is None:
            return
        run = self._machines[_number(process.name) - 1].run
        if run is None or run.node is None or run.node.parts.metadata is None:
            return
        known = run.node.parts.metadata.image.brokers.get(asked.replica_id)
        if known is not None and asked.broker_epoch < known.epoch:
            self._strangers.append(
                f"P11: {run.name} counts {asked.replica_id} by a fetch of broker epoch {asked.broker_epoch}, "
                f"and {known.epoch} is registered"
            )

    def closed(self, partition: Partition) -> None:
        process = CURRENT.get(None)
        if process is not None:
            self._live.pop((process.name, (partition.tip.topic_id, partition.tip.partition)), None)

    # What the metadata says

    def learn(self, record: PartitionRecord | PartitionChangeRecord, epochs: dict[int, int]) -> None:
        """Apply a partition record. `epochs`: broker epochs at that record."""
        key = record.topic_id or UUID(int=0), int(record.partition_id)
        if isinstance(record, PartitionRecord):
            placed = self.placed[key] = Placed(record)
        else:
            placed = self.placed[key]
            placed.change(record)
            most = len(placed.replicas)
            enough = len(placed.isr) >= min(self.least.get(key[0], 1), most)
            placed.trusted = most if enough else min(placed.trusted, most)
            self.elections += int(record.leader) >= 0
        name = f"{key[0]}-{key[1]}"
        if not {*placed.isr} <= {*placed.replicas}:
            raise Violation(f"P7: {placed.isr} are in sync of {name}, its replicas are {placed.replicas}")
        if placed.leader != NOBODY and placed.leader not in placed.isr:
            raise Violation(f"P7: {placed.leader} leads {name}, and {placed.isr} are in sync")
        for number in placed.isr:
            died = self._unclean.get(number, {}).get(key)
            if died is not None and epochs.get(number, -1) > died:
                del self._unclean[number][key]
                self._lost.get(number, {}).pop(key, None)
        for number in {*self._unclean} - {*placed.replicas}:
            self._unclean[number].pop(key, None)
            self._lost.get(number, {}).pop(key, None)
        self._look_for_losses(key)
        self._in_sync(key)

    def min_isr(self, key: Key) -> int:
        """Return the number of replicas that certainly have the committed records."""
        return min(self.least.get(key[0], 1), self.placed[key].trusted)

    # Machines that die

    def died(self, number: int, epoch: int) -> None:
        """Note that a broker's process ended; `epoch` is its broker epoch."""
        self._down.add(number)
        mine = self._unclean.setdefault(number, {})
        for key, placed in self.placed.items():
            if number in placed.replicas:
                mine[key] = epoch
                self._look_for_losses(key)

    def lost(self, number: int, key: Key, durable: int) -> None:
        """Note that a machine without power keeps only the records of a partition below `durable`."""
        mine = self._lost.setdefault(number, {})
        mine[key] = min(durable, mine.get(key, durable))
        self._look_for_losses(key)

    def _look_for_losses(self, key: Key) -> None:
        """P4: records may be lost once as many as min ISR are down or back and not in sync again."""
        placed = self.placed[key]
        lost = [mine[key] for number, mine in self._lost.items() if key in mine and number in placed.may_lead]
        if not lost:
            return
        bad = [one for one in placed.replicas if one in self._down or key in self._unclean.get(one, ())]
        if len(bad) >= self.min_isr(key):
            self.shaken.add(key)
            self._allow_loss(key, min(lost))

    # After each turn

    def look(self, machines: list[Machine], epochs: dict[int, int]) -> None:
        """Check the replicas that changed in this turn. Raises `Violation`."""
        self._machines = machines
        if self._strangers:
            raise Violation(self._strangers[0])
        if self._changes != Process.changes:
            self._changes = Process.changes
            self._look_at_processes(machines, epochs)
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        for run, key in dirty:
            partition = self._live.get((run, key))
            number = _number(run)
            machine = machines[number - 1]
            if partition is not None and machine.run is not None and machine.run.name == run:
                self._look_at(machine, number, run, key, partition)
        self._cut.clear()

    def _look_at_processes(self, machines: list[Machine], epochs: dict[int, int]) -> None:
        for number, machine in enumerate(machines, 1):
            is_down = machine.run is None or machine.run.process.life is Life.DEAD
            if is_down == (number in self._down):
                continue
            if is_down:
                self.died(number, epochs.get(number, -1))
            else:
                self._down.discard(number)

    def _look_at(self, machine: Machine, number: int, run: str, key: Key, partition: Partition) -> None:
        end, mark = partition.log.log_end_offset, partition.high_watermark
        seen = self.seen.get((number, key))
        name = f"{run}: {partition.tip}"
        if seen is None or seen.partition is not partition:
            seen = self.seen[number, key] = Seen(run, partition)
        else:
            if end < seen.end and (run, key) not in self._cut:
                raise Violation(f"P8: {name} ended at {seen.end}, and ends at {end}, and was not cut")
            # An empty log may begin anew at a batch that its leader's start lies within.
            is_empty = (run, key) in self._cut and partition.log.log_start_offset >= seen.mark
            if mark < seen.mark and key not in self.shaken and not is_empty:
                raise Violation(f"P1: {name}: its high watermark falls from {seen.mark} to {mark}, end {end}")
        if end < seen.compared or (run, key) in self._cut:
            seen.compared = min(seen.compared, end, mark)
        seen.end, seen.mark = end, mark
        self.on_look(name, key, partition)
        if partition.is_leader:
            epoch = partition._leader_epoch
            if self._leaders.setdefault((key, epoch), run) != run:
                raise Violation(f"P5: {self._leaders[key, epoch]} and {run} lead {partition.tip} in {epoch}")
            newest = partition.log.epochs.newest
            if newest < epoch and partition.log.failure is None:
                raise Violation(f"P10: {run} leads {partition.tip} in {epoch}, its log knows {newest}")
        if key in self.shaken:
            return
        if mark > end:
            raise Violation(f"P2: {name} ends at {end}, its high watermark is {mark}")
        self.most[key] = max(self.most.get(key, 0), mark)
        self._in_sync(key)
        if mark > seen.compared:
            self._compare(machine, key, seen, name)

    def _in_sync(self, key: Key) -> None:
        """P2."""
        placed, most = self.placed.get(key), self.most.get(key, 0)
        if placed is None or key in self.shaken or not most:
            return
        for number in placed.isr:
            seen = self.seen.get((number, key))
            if key in self._lost.get(number, ()):
                continue
            if seen is None or seen.end < most:
                raise Violation(
                    f"P2: {key[0]}-{key[1]}: {most} is committed, and in-sync {number} ends at "
                    f"{'nothing' if seen is None else seen.end}"
                )

    def _compare(self, machine: Machine, key: Key, seen: Seen, name: str) -> None:
        """P3: the bytes of what has come below its high watermark."""
        known = self.committed.setdefault(key, {})
        for base, next_offset, data in batches_of(machine, seen.partition, seen.compared):
            if next_offset > seen.mark:
                break
            if next_offset <= seen.partition.start_offset:
                continue  # deleted, and cut where the leader's log begins: what it was is nobody's business
            if known.setdefault(base, data) != data and not self.is_rest_of(key, known[base], data):
                raise Violation(f"P3: {name} has another batch at {base} than was committed")
            seen.compared = next_offset
            if base >= self._told.get(key, 0):
                self._told[key] = next_offset
                self.on_committed(key, data)

    def is_rest_of(self, key: Key, whole: bytes, left: bytes) -> bool:
        """Return whether two batches of a compacted topic disagree about no record, or `left` is the
        committed one without erased records."""
        if key[0] not in self.compacted:
            return self.erasures.is_rest(key, whole, left)
        one, other = records_by_offset(whole), records_by_offset(left)
        return all(other[offset] == what for offset, what in one.items() if offset in other)

    def saw(self, key: Key, name: str, at: int, found: Fetched) -> int:
        """Check a consumer's response to a fetch at `at` (P9); return the offset at which it goes on.

        Partitions that may lose records are not checked."""
        if key in self.shaken:
            return found.next_offset
        most, known = self.most.get(key, 0), self.consumed.setdefault(key, {})
        if found.high_watermark > most:
            raise Violation(f"P9: {name} tells of {found.high_watermark}, nobody has committed beyond {most}")
        for record in found.records:
            if record.offset != at and not self.erasures.may_be_hole(
                key, self.committed.get(key), at, record.offset
            ):
                raise Violation(f"P9: {name}: {record.offset} follows {at - 1}")
            if record.offset >= found.high_watermark:
                raise Violation(
                    f"P9: {name}: {record.offset} is read, its high watermark is {found.high_watermark}"
                )
            at = record.offset
            if known.setdefault(at, record.value) != record.value:
                raise Violation(f"P9: {name}: {at} is {record.value[:9]!r}, and was {known[at][:9]!r}")
            at += 1
        return max(at, found.next_offset)

    def fewest(self, key: Key) -> int:
        """Return the least number of replicas that the partition ever had."""
        return self.placed[key].fewest

    def holders(self, key: Key, end: int) -> int:
        """Return the number of replicas that have all records below `end`."""
        return sum(one.end >= end for (_, its), one in self.seen.items() if its == key)


def batches_of(machine: Machine, partition: Partition, offset: int) -> list[tuple[int, int, bytes]]:
    """Base offset, next offset and bytes of a replica's batches from `offset` on, as a process reads them."""
    found = []
    tip = partition.tip
    for data in segments(machine.platter, machine.log_dirs, tip.topic, tip.partition, offset):
        try:
            for header in complete_headers(memoryview(data)):
                if header.base_offset >= offset:
                    at = header.position
                    found.append((header.base_offset, header.next_offset, data[at : at + header.size]))
        except CorruptionError:
            break
    return found


def records_by_offset(batch: bytes) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Return key and value of each record of a batch, by offset."""
    return {
        one.offset: (one.key, one.value)
        for header in complete_headers(batch)
        for one in records_of(batch, header)
    }


# The classes that are watched

_watching: Replicas | None = None
_done = False


def watch_nothing() -> None:
    """Look at no replicas any more: their cluster is lost."""
    global _watching
    _watching = None


class _Mark:
    """`Partition.high_watermark`: an attribute that says when it is set."""

    def __get__(self, partition: Any, owner: Any = None) -> Any:
        return self if partition is None else partition.__dict__[_MARK]

    def __set__(self, partition: Any, value: int) -> None:
        partition.__dict__[_MARK] = value
        if _watching is not None:
            _watching.heard(partition)


def _watch() -> None:
    global _done
    if _done:
        return
    _done = True
    Partition.high_watermark = _Mark()  # type: ignore[assignment]
    for part, name, is_cut in (
        (LogAppender, "append", False),
        (LogAppender, "append_fetched", False),
        (LogAppender, "finish", False),
        (LogTruncation, "truncate_to", True),
        (LogTruncation, "restart_at", True),
        (SegmentDeletion, "apply_retention", False),
        (SegmentDeletion, "delete_segments", False),
        (SegmentDeletion, "advance_local_start", False),
        (SegmentDeletion, "advance_log_start", False),
        (SegmentDeletion, "move_log_start", False),
        (SegmentDeletion, "delete_below_start", False),
    ):
        setattr(part, name, _telling(getattr(part, name), is_cut))
    lead, close = Partition.lead, Partition.close

    def leads(self: Partition, *args: Any, **options: Any) -> None:
        lead(self, *args, **options)
        if _watching is not None:
            _watching.heard(self)

    def closes(self: Partition) -> None:
        if _watching is not None:
            _watching.closed(self)
        close(self)

    Partition.lead, Partition.close = leads, closes  # type: ignore[method-assign]
    fetched = FollowerProgress.fetched

    def fetches(self: FollowerProgress, asked: ReplicaFetch, *args: Any) -> None:
        fetched(self, asked, *args)
        if _watching is not None:
            _watching.heard_fetch(asked)

    FollowerProgress.fetched = fetches  # type: ignore[assignment, method-assign]


def _telling(method: Callable[..., Any], is_cut: bool) -> Callable[..., Any]:
    def told(self: LogAppender | LogTruncation | SegmentDeletion, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        finally:
            if _watching is not None:
                _watching.heard_log(self.state.tip, is_cut=is_cut)

    return told
