"""Invariants of the metadata, checked after every step in each process's memory and on its disk.

R1  one leader in an epoch
R2  a process never falls back to an earlier epoch
R3  committed batches never change: all logs have the same ones
R5  high watermarks never fall within a process
R8  a leader has all that was committed
B1  nothing is published before it is committed
B2  a broker reports an offset only once it has applied the metadata up to it
B3  the epochs of a broker rise
B4  a broker is unfenced in an epoch in which its process asked for that
B5  a living broker with a heartbeat within its session is not fenced (`sessions.py`)
P13 a replica that may lack records does not lead while one that has them all is in its session
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError, RequestError
from service.controller_client.broker_lifecycle import Lifecycle
from service.controller_client.broker_lifecycle import State as LifeState
from service.controller_client.broker_lifecycle_manager import Membership
from service.hot.names import CLUSTER_METADATA_DIR
from service.metadata.batches import MetadataBatch, decode_batches
from service.metadata.publication import Publication
from service.metadata.raft.runtime import Quorum
from service.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoteLogRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from service.node.node import Node
from service.records.batch import complete_headers
from simulator.archive import Archive
from simulator.cluster.cuts import CutOracle, MetadataSeen
from simulator.cluster.replicas import Key, Replicas
from simulator.cluster.sessions import Sessions
from simulator.cluster.tiers import Tiers
from simulator.machine import Machine, Run
from simulator.model import Violation
from simulator.power_loss import Directory, File, Platter
from simulator.process import Life
from simulator.store import Deletion

INTERNAL: Final = ("__consumer_offsets", "__transaction_state")
_MIN_ISR: Final = "min.insync.replicas"
_UNCLEAN: Final = "unclean.leader.election.enable"
_UNFENCED: Final = -1
_FENCED: Final = 1
_RECOVERING: Final = 1
_NOBODY: Final = UUID(int=0)


class _Seen:
    """State of one process at the last step."""

    def __init__(self, node: Node, quorum: Quorum, publication: Publication) -> None:
        self.node = node
        self.quorum = quorum
        self.raft = quorum.machine
        self.publication = publication
        self.last: object = None
        self.high_watermark = 0
        self.epoch = 0
        self.led = -1
        self.published = -1
        self.told = -1
        self.position = 0
        """offset up to which the committed part of its log was compared"""
        self.place: tuple[File, int] | None = None
        """file and byte position of that offset"""
        self._life: Lifecycle | None = None

    @property
    def life(self) -> Lifecycle | None:
        """Lifecycle of its broker; None before the registration has begun."""
        if self._life is None:
            membership: Membership | None = getattr(self.node.parts.plane, "_membership", None)
            self._life = None if membership is None else membership._machine
        return self._life


class Oracle:
    """Looks at every living node after each turn of the loop; costs what has changed."""

    def __init__(
        self,
        archive: Archive,
        allow_loss: Callable[[Key, int], None],
        gone: Callable[[], frozenset[UUID]],
        sessions: Sessions,
        was_unclean: Callable[[Key], bool],
    ) -> None:
        """`gone` returns the topics whose deletion was requested. `was_unclean` is called for each unclean
        election, and returns whether the topic allows it."""
        self._sessions = sessions
        self._was_unclean = was_unclean
        self.replicas = Replicas(allow_loss)
        self.tiers = Tiers(archive, self.replicas, gone)
        self.replicas.on_look = self.tiers.look_at
        self.names: dict[str, UUID] = {}
        self.committed: dict[int, tuple[int, bytes]] = {}
        """by base offset: where the next batch begins, and the batch"""
        self.end = 0
        """up to where anything was ever committed"""
        self.leaders: dict[int, str] = {}
        self.created: dict[UUID, int] = {}
        """topics by id, with the offset that says so"""
        self.removed: dict[UUID, int] = {}
        self._metadata = MetadataSeen(self.committed, self.removed)
        self.cuts = CutOracle(archive, self._metadata, self.replicas, self.tiers, gone)
        self.configs: dict[tuple[int, str, str], list[tuple[int, str | None]]] = {}
        """what each setting ever became, at which offset"""
        self.broker_epochs: dict[int, int] = {}
        self._seen: dict[str, _Seen] = {}
        self._asked: dict[int, int] = {}
        """by broker: the greatest epoch in which its process had recovered its logs"""
        self.on_record: Callable[[Any, int], None] = lambda record, offset: None
        """called for each committed record that nothing else is done about, in order"""
        self.on_image: Callable[[str, int], None] = lambda run, offset: None
        """called when a process has another image"""
        self.on_leader: Callable[[str], None] = lambda run: None
        """called when a process becomes the active controller"""

    def look(self, machines: list[Machine]) -> None:
        """Check the metadata of all machines after a turn. Raises `Violation`."""
        self._sessions.look(machines)
        for machine in machines:
            run = machine.run
            if run is None or not run.process.has_run or run.process.life is Life.DEAD:
                continue
            run.process.has_run = False
            seen = self._seen.get(run.name)
            if seen is None:
                seen = self._meet(run)
                if seen is None:
                    continue
            raft, life = seen.raft, seen.life
            now = (
                raft.high_watermark,
                raft.core.log.end_offset,
                raft.core.state,
                seen.publication.image,
                None if life is None else (life.metadata_offset, life.state, life.epoch),
            )
            if now != seen.last:
                seen.last = now
                self._look_at(machine, run, seen)
        self.replicas.look(machines, self.broker_epochs)
        self.tiers.check()
        self.cuts.check()

    def written(self, key: str, data: bytes, replaced: bytes | None, by: str) -> None:
        """Check a write to the bucket. `simulator.store.Bucket.on_write`."""
        self.tiers.written(key, data, replaced)
        self.cuts.written(key, data)

    def deleted(self, deletion: Deletion) -> None:
        """Check a deletion in the bucket. `simulator.store.Bucket.on_delete`."""
        self.tiers.deleted(deletion)
        self.cuts.deleted(deletion)

    def _meet(self, run: Run) -> _Seen | None:
        """Begin to follow a process that has opened its metadata."""
        publisher = None if run.node is None else run.node.parts.metadata
        publication = None if publisher is None else publisher._publication
        if run.node is None or publisher is None or publication is None:
            return None
        try:
            seen = _Seen(run.node, publisher.quorum, publication)
        except RequestError:
            return None
        self._seen[run.name] = seen
        return seen

    def _look_at(self, machine: Machine, run: Run, seen: _Seen) -> None:
        raft, quorum = seen.raft, seen.quorum
        if seen.life is not None:
            self._look_at_life(run, seen, seen.life, int(machine.name[1:]))
        if raft.high_watermark != seen.high_watermark:
            self._committed(machine, run, seen, raft.high_watermark)
        if raft.epoch < seen.epoch:
            raise Violation(f"R2: {run.name} falls back from epoch {seen.epoch} to {raft.epoch}")
        seen.epoch = raft.epoch
        if quorum.is_leader and seen.led != raft.epoch:
            self._leads(machine, run, seen, raft.epoch, quorum.next_offset)
        published = seen.publication.image.offset
        if published != seen.published:
            if published >= max(raft.high_watermark, 1) and published >= self.end:
                raise Violation(
                    f"B1: {run.name} has published {published}, committed is what lies below {self.end}"
                )
            if published < seen.published:
                raise Violation(f"B1: the image of {run.name} goes back from {seen.published} to {published}")
            seen.published = published
            self.on_image(run.name, published)

    # The quorum

    def _leads(self, machine: Machine, run: Run, seen: _Seen, epoch: int, end: int) -> None:
        seen.led = epoch
        self.on_leader(run.name)
        if self.leaders.setdefault(epoch, run.name) != run.name:
            raise Violation(f"R1: {self.leaders[epoch]} and {run.name} lead in epoch {epoch}")
        if end < self.end:
            raise Violation(f"R8: {run.name} leads in epoch {epoch}, ends at {end}, committed is {self.end}")
        self._compare(machine, run, seen, self.end)

    def _committed(self, machine: Machine, run: Run, seen: _Seen, high_watermark: int) -> None:
        if high_watermark < seen.high_watermark:
            raise Violation(f"R5: {run.name}: {seen.high_watermark} becomes {high_watermark}")
        if any(one.end_offset == high_watermark for one in seen.quorum._validated):
            return  # a snapshot was fetched, at which the log is about to restart
        seen.high_watermark = high_watermark
        self._compare(machine, run, seen, high_watermark)

    def _compare(self, machine: Machine, run: Run, seen: _Seen, end: int) -> None:
        """Compare the log of `run` below `end` with the committed batches; new ones are committed by now."""
        for batch in batches_of(machine, seen.position, seen.place):
            base, next_offset, data = batch.base_offset, batch.next_offset, batch.data
            if next_offset > end:
                break
            known = self.committed.setdefault(base, (next_offset, data))
            if known != (next_offset, data):
                raise Violation(f"R3: {run.name} has another batch at {base} than was committed")
            seen.position, seen.place = next_offset, (batch.file, batch.end)
            if next_offset > self.end:
                self.end = next_offset
                self._learn(data)

    # What the batches say

    def _learn(self, data: bytes) -> None:
        for batch in decode_batches(data):
            self._learn_batch(batch)

    def _learn_batch(self, batch: MetadataBatch) -> None:
        for offset, frame in enumerate(batch.frames, batch.base_offset):
            if not isinstance(frame.record, NoOpRecord):
                self._metadata.news.append(offset)
            match frame.record:
                case TopicRecord() as record:
                    self.created[record.topic_id or _NOBODY] = offset
                    self.names[str(record.name)] = record.topic_id or _NOBODY
                    if record.name in INTERNAL:
                        self.replicas.compacted.add(record.topic_id or _NOBODY)
                case PartitionRecord() | PartitionChangeRecord() as record:
                    if isinstance(record, PartitionChangeRecord):
                        self._look_at_election(record)
                    self.replicas.learn(record, self.broker_epochs)
                    place = record.topic_id or _NOBODY, int(record.partition_id)
                    self._metadata.learn(place, offset, self.replicas.placed[place].leader_epoch)
                case RemoteLogRecord() as record:
                    self.tiers.learn(record)
                case RemoveTopicRecord() as record:
                    self.removed[record.topic_id or _NOBODY] = offset
                case ConfigRecord() as record:
                    key = (int(record.resource_type), str(record.resource_name), str(record.name))
                    self.configs.setdefault(key, []).append((offset, record.value))
                    if key[2] == _MIN_ISR and key[1] in self.names:
                        self.replicas.least[self.names[key[1]]] = int(record.value or 1)
                case RegisterBrokerRecord() as record:
                    broker, epoch = int(record.broker_id), int(record.broker_epoch)
                    if epoch < self.broker_epochs.get(broker, -1):
                        raise Violation(f"B3: broker {broker} gets epoch {epoch} after a later one")
                    self.broker_epochs[broker] = epoch
                case BrokerRegistrationChangeRecord() as record:
                    broker, epoch = int(record.broker_id), int(record.broker_epoch)
                    if int(record.fenced) == _UNFENCED and self._asked.get(broker, -1) < epoch:
                        raise Violation(f"B4: broker {broker} is unfenced in epoch {epoch}, and never asked")
                    if int(record.fenced) == _FENCED and (why := self._sessions.lives(broker, epoch)):
                        raise Violation(f"B5: broker {broker} of epoch {epoch} is fenced: {why}")
                case record:
                    self.on_record(record, offset)

    def _look_at_election(self, record: PartitionChangeRecord) -> None:
        """P13. Of a partition that recovers already nothing says that the next leader is unclean, too."""
        key = record.topic_id or _NOBODY, int(record.partition_id)
        before, leader = self.replicas.placed[key], int(record.leader)
        if leader < 0 or int(record.leader_recovery_state) != _RECOVERING or leader in before.may_lead:
            return
        if not self._was_unclean(key):
            raise Violation(f"P13: {leader} leads {key[0]}-{key[1]}, and {before.may_lead} have its records")
        self.replicas.shaken.add(key)
        for one in (*before.isr, *before.eligible):
            if why := self._sessions.lives(one, self.broker_epochs.get(one, -1)):
                raise Violation(f"P13: {leader} leads {key[0]}-{key[1]} uncleanly, and has {one}: {why}")

    def allows_unclean(self, topic_id: UUID) -> bool:
        """Return whether the committed settings of the topic allow an unclean leader."""
        told = [
            changes[-1][1]
            for (_, name, setting), changes in self.configs.items()
            if setting == _UNCLEAN and self.names.get(name) == topic_id
        ]
        return told == ["true"]

    # Brokers

    def _look_at_life(self, run: Run, seen: _Seen, life: Lifecycle, broker: int) -> None:
        if life.metadata_offset != seen.told:
            seen.told = life.metadata_offset
            done = seen.publication._done_offset
            if seen.told > done and seen.publication._failure is None:  # else the node is about to end
                raise Violation(f"B2: {run.name} tells of {seen.told}, and is what {done} says")
        if life.state in (LifeState.READY, LifeState.UNFENCED) and life.epoch > self._asked.get(broker, -1):
            self._asked[broker] = life.epoch


class _Batch(NamedTuple):
    """A batch of a metadata log; `end` is the position in its file at which the next one begins."""

    base_offset: int
    next_offset: int
    data: bytes
    file: File
    end: int


def batches_of(machine: Machine, offset: int, place: tuple[File, int] | None) -> Iterator[_Batch]:
    """Yield the batches of the metadata log from `offset` on, as a process would read them; of a log that
    begins later, from there. `place`: where `offset` was when the batch before it was read."""
    names = _names(machine.platter, machine.metadata_dir / CLUSTER_METADATA_DIR)
    bases = sorted(name for name in names if name.endswith(".log"))
    below = bisect_right(bases, f"{offset:020}.log")
    for name in bases[max(below - 1, 0) :]:
        node = names[name]
        if not isinstance(node, File):
            continue
        # What is committed stays where it is: only what follows is new.
        start = place[1] if place is not None and place[0] is node else 0
        try:
            for header in complete_headers(memoryview(node.data), start):
                if header.base_offset >= offset:
                    data = bytes(node.data[header.position : header.end])
                    yield _Batch(header.base_offset, header.next_offset, data, node, header.end)
        except CorruptionError:
            return


def _names(platter: Platter, path: Path) -> dict[str, File | Directory]:
    try:
        directory = platter.directory(path)
    except OSError:
        return {}
    assert isinstance(directory, Directory)
    return dict(directory.names)
