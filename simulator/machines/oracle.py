"""Invariants of Raft, checked after every step: each check costs only what changed.

R1  one leader in an epoch, voted for by a majority, and no replica leads in one twice
R2  a vote, or an epoch, that left the replica is never taken back, not by a crash either
R3  committed batches never change: all logs and snapshots have the same ones
R4  logs that have a batch of the same offset and epoch in common agree below it
R5  high watermarks never fall
R6  voter sets differ by one voter, the one before is committed, and no replica counts by one it has lost
R7  what a leader commits is on the disks of a majority
R8  a leader has all that was committed in earlier epochs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.metadata.raft.events import KRaftVoters
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.roles import Leader
from simulator.machines.model import Batch, Snapshot, Value, digest_of

if TYPE_CHECKING:
    from simulator.machines.replica import Replica


class Violation(Exception):
    """A promise was broken."""


class Oracle:
    def __init__(self) -> None:
        self.committed: list[tuple[int, Value]] = []
        """(epoch, value) of every offset"""
        self._digests: list[int] = [0]
        self._leaders: dict[int, tuple[ReplicaKey, int]] = {}
        self._votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self._voters_of: dict[int, list[ReplicaKey]] = {}
        self._told: dict[ReplicaKey, int] = {}
        self._batches: dict[tuple[int, int], tuple[Batch, int]] = {}
        self._marks: dict[int, int] = {}

    @property
    def leaders(self) -> int:
        return len(self._leaders)

    @property
    def end(self) -> int:
        return len(self.committed)

    def leads(self, replica: Replica) -> None:
        epoch, me = replica.machine.epoch, (replica.key, replica.life)
        if self._leaders.setdefault(epoch, me) != me:
            raise Violation(f"R1: {self._leaders[epoch]} and {me} lead in epoch {epoch}")
        self._was_voted_for(replica, epoch)
        log = replica.log
        end = max((mark for other, mark in self._marks.items() if other < epoch), default=0)
        if log.end_offset < end:
            raise Violation(f"R8: the leader of epoch {epoch} ends at {log.end_offset}, not {end}")
        batch = log.at(end - 1)
        if end > log.start_offset and (batch is None or batch.epoch != self.committed[end - 1][0]):
            raise Violation(f"R8: the leader of epoch {epoch} has another record at {end - 1}")

    def _was_voted_for(self, replica: Replica, epoch: int) -> None:
        voters = replica.log.voters.latest
        granted = {
            key.node_id
            for key in self._voters_of.get(epoch, ())
            if voters.has(key) and self._votes[key, epoch] == replica.key
        }
        if voters.has(replica.key):
            granted.add(replica.node_id)  # a sole voter tells nobody
        if len(granted) < voters.majority:
            raise Violation(
                f"R1: {granted} of {voters} voted for {replica.key}, which leads in epoch {epoch}"
            )

    def voted(self, key: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        if (key, epoch) not in self._votes:
            self._voters_of.setdefault(epoch, []).append(key)
        if self._votes.setdefault((key, epoch), candidate) != candidate:
            raise Violation(f"R2: {key} votes for {candidate} and {self._votes[key, epoch]} in epoch {epoch}")

    def told_epoch(self, key: ReplicaKey, epoch: int) -> None:
        if epoch > self._told.get(key, -1):
            self._told[key] = epoch

    def stepped(self, replica: Replica) -> None:
        """Check a replica after an event."""
        machine = replica.machine
        if machine.epoch < self._told.get(replica.key, -1):
            raise Violation(f"R2: {replica.key} falls back to epoch {machine.epoch}")
        if machine.high_watermark < replica.mark:
            raise Violation(f"R5: {replica.key}: {replica.mark} becomes {machine.high_watermark}")
        replica.mark = machine.high_watermark
        offset = replica.log.voters.latest_offset
        if offset is not None and offset >= replica.log.end_offset:
            raise Violation(f"R6: {replica.key} counts by voters at {offset}, which its log has no more")
        state = machine.core.state
        if isinstance(state, Leader) and state.committed >= 0:
            if state.committed < self._marks.get(machine.epoch, -1):
                raise Violation(f"R5: the mark of epoch {machine.epoch} falls to {state.committed}")
            self._marks[machine.epoch] = state.committed

    def appended(self, replica: Replica, batch: Batch, before: int) -> None:
        """Check a batch that was appended. `before`: epoch of the record below."""
        known = self._batches.setdefault((batch.base, batch.epoch), (batch, before))
        if known != (batch, before):
            raise Violation(f"R4: {replica.key} has {batch} after {before}, others have {known}")

    def changes_voters(self, replica: Replica, record: KRaftVoters) -> None:
        history = replica.log.voters
        before = history.latest
        if before.differences(record.voters) == 0:
            return
        if before.differences(record.voters) > 1:
            raise Violation(f"R6: {before} becomes {record.voters}")
        offset = history.latest_offset
        if offset is not None and offset >= max(self.end, 0):
            raise Violation(f"R6: the voters at {offset} are not committed, and change again")

    def commits(self, replica: Replica, mark: int) -> None:
        log = replica.log
        if mark > log.end_offset:
            raise Violation(f"R3: {replica.key} commits {mark}, its log ends at {log.end_offset}")
        offset = max(replica.checked, log.start_offset)
        if offset > replica.checked and replica.checked < log.start_offset:
            self._check_snapshot(replica)
        while offset < mark:
            batch = log.at(offset)
            if batch is None:
                raise Violation(f"R3: {replica.key} has nothing at {offset}")
            self._check(replica, offset, batch)
            offset = batch.end
        replica.checked = max(replica.checked, mark)
        if isinstance(replica.machine.core.state, Leader):
            self._is_on_disks(replica, mark)

    def _check(self, replica: Replica, offset: int, batch: Batch) -> None:
        for i, value in enumerate(batch.values):
            at = batch.base + i
            if at < offset:
                continue
            if at == len(self.committed):
                self.committed.append((batch.epoch, value))
                self._digests.append(digest_of([(batch.epoch, value)], self._digests[-1]))
            elif self.committed[at] != (batch.epoch, value):
                raise Violation(
                    f"R3: at {at} {replica.key} has {batch.epoch, value}, not {self.committed[at]}"
                )

    def _check_snapshot(self, replica: Replica) -> None:
        for snapshot in replica.log.snapshots_held.values():
            self.has_snapshot(replica, snapshot)

    def has_snapshot(self, replica: Replica, snapshot: Snapshot) -> None:
        end = snapshot.id.end_offset
        if end > self.end or self._digests[end] != snapshot.digest:
            raise Violation(f"R3: the snapshot {snapshot.id} of {replica.key} says something else")

    def digest(self, end: int) -> int:
        return self._digests[end]

    def _is_on_disks(self, leader: Replica, mark: int) -> None:
        voters = leader.log.voters.latest
        epoch = leader.log.epochs.epoch_below(mark)
        on_disk = 0
        for voter in voters:
            log = leader.world.disk_of(voter.key)
            if log is None:
                on_disk += 1  # its disk is lost since: it may have had it
            elif log.durable_end >= mark and (
                mark <= log.start_offset or log.epochs.epoch_below(mark) == epoch
            ):
                on_disk += 1
        if on_disk < voters.majority:
            raise Violation(f"R7: {mark} is committed, and on {on_disk} disks of {len(voters)}")
