"""One world: a machine with a node, a bucket, a client, and the oracle that looks after every act."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Coroutine, Iterable
from pathlib import Path, PurePath
from random import Random
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError
from service.hot.log_dir import LOG_START_OFFSETS
from service.node.fd_budget import budget
from service.partition.partition import Partition
from service.remote.format.keys import TOPICS_KEY
from simulator import members
from simulator.archive import Archive, partition_of
from simulator.client import EARLIEST, LATEST, Client, NoAnswer, Record
from simulator.durable import durable_end, whole_end
from simulator.faults import METADATA, DrawnFaults, DrawnStoreFaults
from simulator.groups import OFFSETS, OFFSETS_PARTITIONS, Groups
from simulator.loop import Loop
from simulator.machine import BEGAN_MS, OPEN_FILES, Machine, NodeLogs, State
from simulator.model import PartitionModel, TopicModel, Violation
from simulator.network import Network
from simulator.power_loss import Loss
from simulator.process import Process
from simulator.store import Bucket, Deletion, Object
from simulator.trace import Trace

ALIVE_S: Final = 30.0
CLONE: Final = "n2"
"""the machine that a clone of the disk runs on"""
_LOOK_S: Final = 0.02
_ON_THE_WIRE_S: Final = 0.05
_OTHER_FILES: Final = 8
"""locks and the like, and what a job on `log-io` has open while the cache lets go of it"""
LONGEST_BATCH: Final = 8
"""records; no act produces longer ones"""

OFFLINE: Final = frozenset(
    {
        ErrorCode.kafka_storage_error,
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.offset_not_available,
        ErrorCode.request_timed_out,
    }
)
"""Errors that say: not now. Nothing is promised with them, and nothing is lost."""

SETTINGS: Final = {
    "node.id": "1",
    "listeners": "PLAINTEXT://n1:9092",
    "advertised.listeners": "PLAINTEXT://n1:9092",
    "firn.remote.url": "gs://bucket/prefix",
    "log.retention.ms": "3000",  # every topic says something else
    "log.retention.check.interval.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "2500",
    "remote.log.manager.task.interval.ms": "500",
    "firn.remote.object.grace.ms": "5000",
    "firn.remote.cache.bytes": str(8 << 20),
    "firn.remote.chunk.bytes": str(64 << 10),
    "metadata.log.max.record.bytes.between.snapshots": "6000",
    "auto.create.topics.enable": "false",
    "log.cleaner.backoff.ms": "500",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "group.initial.rebalance.delay.ms": "200",
    # Nobody goes because time passed: members are away for as long as a history likes.
    "group.consumer.max.session.timeout.ms": "36000000",
    "group.consumer.session.timeout.ms": "36000000",
}


def joinable(machine: str) -> dict[str, str]:
    """Return settings, stronger than `SETTINGS`, of a node that others can join."""
    return {
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@{machine}:9093",
        "listeners": f"PLAINTEXT://{machine}:9092,CONTROLLER://{machine}:9093",
        "advertised.listeners": f"PLAINTEXT://{machine}:9092",
    }


class SimWorld:
    """Everything of one history. Made and used on its own loop."""

    def __init__(self, seed: int, *, log_dirs: int = 1, keep_all: bool = False) -> None:
        random = Random(seed)

        def part() -> Random:
            return Random(random.getrandbits(64))

        self._random = random
        self.loop = Loop(part())
        self.trace = Trace(lambda: self.loop.now_s, keep_all=keep_all)
        self.network = Network(self.loop, part(), self.trace)
        self.bucket = Bucket()
        self.archive = Archive(self.bucket)
        self.faults = DrawnFaults(part(), self.trace)
        self.store_faults = DrawnStoreFaults(part(), self.trace)
        dirs = tuple(Path(f"/sim/d{number}") for number in range(log_dirs))
        self.is_joinable = bool(seed % 2)
        self.settings = {
            **SETTINGS,
            **(joinable("n1") if self.is_joinable else {}),
            "log.dirs": ",".join(map(str, dirs)),
        }
        self.machine = Machine(
            "n1", self.loop, part(), self.trace, self.bucket, dirs, self.faults, self.store_faults
        )
        self.client_process = Process("client")
        self.client = Client(self.machine.address)
        self.topics: list[TopicModel] = []
        self.groups = Groups()
        self.groups_are_gone = False
        """whether an act took what the node knew of groups"""
        self.violations: list[str] = []
        self.topics_listed = False
        """whether `topics.json` was ever written"""
        self.excuse = ""
        """why the node, or parts of it, may stay away for good: what an act took or damaged"""
        self.troubled = False
        """whether anything ever struck that may take partitions offline until the next start"""
        self.latest_wall_ms = 0
        self.disk_copy: Any = None
        self.bucket_copy: dict[str, Object] | None = None
        self.bucket_damaged = False
        self.two_writers: set[str] = set()
        """prefixes of partitions that a clone wrote to, or deleted from: an operator decides on them"""
        self.bytes_expire = False
        """whether a default was ever set by which any record may expire"""
        self.unavailable = 0
        """how often a partition said that it is offline"""
        self.background: list[asyncio.Task[None]] = []
        self.bucket.on_delete = self._deleted
        self.bucket.on_write = self._written
        self.values = 0
        logs = logging.getLogger("service")
        logs.handlers[:] = [NodeLogs(self.trace)]
        logs.propagate = False
        logs.setLevel(logging.WARNING)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run `main` as the client's process to its end."""
        task = self.client_process.run(lambda: self.loop.create_task(main))
        self.loop.run_until_complete(task)

    def tell(self, text: str) -> None:
        self.trace.tell("act", text)

    def check(self) -> None:
        """Raise what was found where raising was no use."""
        if self.violations:
            raise Violation(self.violations[0])
        self.latest_wall_ms = max(self.latest_wall_ms, self.machine.clock.now_ms())

    async def descriptors_are_bound(self) -> None:
        """Check that a quiet node has no more files open than its partitions and its cache may need."""
        run = self.machine.run
        assert run is not None
        # The metadata log counts twice: a segment that was sealed is let go by the next flush.
        files = 2 + OFFSETS_PARTITIONS + sum(len(topic.partitions) for topic in self.topics)
        most = files + budget(OPEN_FILES, max_connections=OPEN_FILES).cached_files + _OTHER_FILES
        deadline = self.loop.time() + ALIVE_S
        while True:
            gc.collect()  # no history runs the collector, a node does
            if run.disk.descriptors <= most:
                return
            if self.loop.time() > deadline:
                raise Violation(f"{run.name} has {run.disk.descriptors} files open, at most {most} are right")
            await asyncio.sleep(5.0)

    def real_ms(self) -> int:
        """Return the wall clock time without any changes of the clock."""
        return BEGAN_MS + int(self.loop.time() * 1000)

    def partitions(self) -> Iterable[tuple[TopicModel, PartitionModel]]:
        for topic in self.topics:
            if not topic.deleted and not topic.vanished:
                for partition in topic.partitions:
                    yield topic, partition

    # The node

    async def start(self, *, wait: bool = True) -> State:
        """Start a process of the node; with `wait`, return once it is ready or has ended."""
        last = self.machine.run
        if last is not None and last.state is not State.STOPPED:
            for _, partition in self.partitions():
                partition.crashed()
        run = self.machine.start(self.settings)
        self.client.close()
        if wait:
            deadline = self.loop.time() + 2 * ALIVE_S
            while run.state is State.STARTING and self.loop.time() < deadline:
                await asyncio.sleep(_LOOK_S)
            if run.state is State.STARTING and not self.faults.on and not self.store_faults.on:
                raise Violation(f"{run.name} did not start within {2 * ALIVE_S:.0f} s")
        return run.state

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL where it does not end within a minute."""
        run = self.machine.run
        if run is None or run.ended:
            return
        run.stop()
        deadline = self.loop.time() + 60
        while not run.ended and self.loop.time() < deadline:
            await asyncio.sleep(_LOOK_S)
        if not run.ended:
            if not self.store_faults.on and not self.faults.on:
                raise Violation(f"{run.name} did not stop within 60 s")
            self.machine.kill()

    async def ensure_running(self) -> bool:
        """Start the node where it is not running; what ended it must have had a reason."""
        self.ended_for_a_reason()
        run = self.machine.run
        if run is not None and not run.ended:
            if run.state is State.STARTING:
                await self._until_started()
            return run.state is State.READY
        state = await self.start()
        self.ended_for_a_reason()
        return state is State.READY

    async def _until_started(self) -> None:
        run = self.machine.run
        assert run is not None
        deadline = self.loop.time() + 2 * ALIVE_S
        while run.state is State.STARTING and self.loop.time() < deadline:
            await asyncio.sleep(_LOOK_S)

    def ended_for_a_reason(self) -> None:
        """Check that a node ended by itself only after a fault. Raises `Violation`."""
        run = self.machine.run
        if run is None:
            return
        if run.state is State.BUG:
            raise Violation(f"{run.name} ended by a bug: {run.reason}")
        if run.state in (State.REFUSED, State.FAILED) and not (self.troubled or self.excuse):
            raise Violation(f"{run.name} {run.state.value}, and nothing was wrong: {run.reason}")

    async def lose_power(self, loss: Loss) -> None:
        """Take the machine's power. Flushed and archived records stay; the model allows other losses."""
        self.machine.kill()
        await asyncio.sleep(_ON_THE_WIRE_S)  # answers that were sent arrive
        promised = {}
        for topic, partition in self.partitions():
            archived = self.archive.live(topic.topic_id, partition.index)[1] if topic.tiered else 0
            at = durable_end(self.machine.platter, self.machine.log_dirs, topic.name, partition.index)
            promised[str(partition)] = max(archived, at)
            # Unflushed and unacknowledged records may be lost in any topic, even if a consumer has read them.
            kept = max(archived, at, partition.answered_end if topic.flushed else 0)
            partition.may_lose_from(kept)
        self.groups.may_lose(self.machine.platter, self.machine.log_dirs, also_answered=False)
        self.tell(f"the power fails; {loss.value}; durable: {promised}")
        self.machine.lose_power(loss)
        self.client.close()

    # What was damaged

    def excuse_file(self, path: PurePath) -> None:
        """Note a damaged file: its owner may refuse requests, but must not lose data silently."""
        why = f"a bit of {path} flipped"
        name = path.parent.name
        shared = path.parent in self.machine.log_dirs or name == METADATA
        if shared or path.name == "partition.metadata":
            self.excuse = why
        for number in range(OFFSETS_PARTITIONS):
            if name == f"{OFFSETS}-{number}":
                self.groups.excuse(number, why)
        for topic, partition in self.partitions():
            if path.name == LOG_START_OFFSETS:
                # A checkpoint that cannot be read counts as empty.
                partition.deleted_below = partition.log_start = 0
            if str(partition) == name:
                partition.excused = why
                if path.suffix == ".log":
                    partition.is_rotten = True
                    self._excuse_tail(topic, partition, Path(path.parent.parent))

    def _excuse_tail(self, topic: TopicModel, partition: PartitionModel, log_dir: Path) -> None:
        """Allow the loss of a damaged end of the log: a damaged last batch looks like one that a crash tore.

        An unflushed batch looks like a loss of power, too, until a process has checked the directory."""
        left = whole_end(self.machine.platter, self.machine.log_dirs, topic.name, partition.index)
        is_last = left >= max(partition.acked, default=-1) - LONGEST_BATCH
        if is_last or not self.machine.looked_for_losses(log_dir):
            partition.may_lose_from(left)

    def excuse_object(self, key: str) -> None:
        """Note a damaged object: its partition may refuse requests."""
        self.bucket_damaged = True
        owner = self.archive.owner(key)
        if owner is None:
            self.excuse = f"a bit of {key} flipped"
        for topic, partition in self.partitions():
            if topic.topic_id == owner:
                partition.excused = f"a bit of {key} flipped"

    # Work in the background

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.background.append(self.loop.create_task(work))

    async def settle(self) -> None:
        """Wait until every request has its response, or never will have one."""
        while self.background:
            tasks, self.background = self.background, []
            await asyncio.gather(*tasks)

    # The oracle

    async def examine(self, *, patience_s: float = 5.0, final: bool = False) -> bool:
        """Read every partition and judge it; False where some could not be read."""
        await self.settle()
        self.check()
        self.ended_for_a_reason()
        readable = True
        for topic, partition in list(self.partitions()):
            try:
                readable &= await self._examine(topic, partition, self.loop.time() + patience_s, final)
            except NoAnswer:
                readable = False
            except CorruptionError as e:
                if not partition.excused:  # else the reader noticed what was damaged
                    raise Violation(f"{partition}: {e}") from e
            self.check()
        readable &= await self._examine_groups(final and readable)
        self.ended_for_a_reason()
        return readable

    async def _examine_groups(self, final: bool) -> bool:
        readable = True
        for group in list(self.groups.all):
            try:
                readable &= await members.examine(self, group, final)
            except NoAnswer:
                readable = False
            self.check()
        return readable

    async def _examine(
        self, topic: TopicModel, partition: PartitionModel, deadline: float, final: bool
    ) -> bool:
        bounds: list[int] = []
        for which in (EARLIEST, LATEST):
            error, offset, epoch = await self.client.offset(topic.name, partition.index, which)
            if error is not ErrorCode.none:
                return self._unavailable(partition, error, final)
            bounds.append(offset)
        if epoch < partition.leader_epoch:
            raise Violation(f"{partition}: its epoch went back from {partition.leader_epoch} to {epoch}")
        partition.leader_epoch = epoch
        start, end = bounds
        records: list[Record] = []
        at = start
        while at < end:
            found = await self.client.fetch(topic.topic_id, partition.index, at, max_wait_ms=500)
            if found.error is ErrorCode.offset_out_of_range and await self._went_by(topic, partition, at):
                return False
            if found.error is not ErrorCode.none:
                return self._unavailable(partition, found.error, final)
            partition.noticed(at, found.records)
            records += found.records
            if found.next_offset > at:
                at = found.next_offset
            elif self.loop.time() > deadline:
                return False
        wall_ms = max(self.latest_wall_ms, self.machine.clock.now_ms(), self.real_ms())
        expired = None if topic.retention_ms < 0 else wall_ms - topic.retention_ms
        records = [one for one in records if one.offset < end]
        partition.judge(start, end, records, expired)
        return await self._examine_epochs(topic, partition, epoch, end, records, final)

    async def _examine_epochs(
        self,
        topic: TopicModel,
        partition: PartitionModel,
        current: int,
        end: int,
        records: list[Record],
        final: bool,
    ) -> bool:
        """Check the ends of the current epoch and of each epoch of the records."""
        for asked in sorted({current, *(one.leader_epoch for one in records)}):
            error, epoch, offset = await self.client.end_of_epoch(topic.name, partition.index, asked)
            if error is not ErrorCode.none:
                return self._unavailable(partition, error, final)
            if records and await self._went_by(topic, partition, records[0].offset):
                return True  # epochs begin and end elsewhere now
            partition.judge_epoch(asked, epoch, offset, end, records)
        return True

    async def _went_by(self, topic: TopicModel, partition: PartitionModel, offset: int) -> bool:
        """Return whether retention has deleted `offset` since the log start was read."""
        return (await self.client.offset(topic.name, partition.index, EARLIEST))[1] > offset

    def _unavailable(self, partition: PartitionModel, error: ErrorCode, final: bool) -> bool:
        self.trace.note("oracle", f"{partition}: {error.name}")
        self.unavailable += 1
        excused = bool(self.excuse or partition.excused)
        if error in OFFLINE:
            if not self.troubled and not excused:
                raise Violation(f"{partition} answers {error.name}, and nothing was wrong")
            return excused and final
        if error is ErrorCode.corrupt_message and (excused or self.store_faults.on):
            return excused and final
        raise Violation(f"{partition} answers {error.name}")

    def partitions_here(self) -> Iterable[Partition] | None:
        """Return the replicas of the node; None where none runs."""
        run = self.machine.run
        return None if run is None or run.ended or run.node is None else run.node.parts.partitions()

    async def revive(self) -> None:
        """End all faults; check that everything is back within 30 s."""
        self.tell("all faults end")
        self.faults.on.clear()
        self.store_faults.on.clear()
        await self.settle()
        run = self.machine.run
        if run is not None:
            run.process.resume()
        if self.store_faults.has_flipped:
            self.repair_bucket()
        if not await self.ensure_running() and not await self.ensure_running():
            self._stays_away()
            return
        if await self._comes_alive():
            return
        self.tell("what is offline waits for a restart")
        await self.stop()
        if not await self.ensure_running() and not await self.ensure_running():
            self._stays_away()
            return
        if not await self._comes_alive():
            raise Violation(f"not everything is alive {ALIVE_S:.0f} s after the faults ended")

    def repair_bucket(self, *, heads: bool = False) -> None:
        """Run `firn repair --write`, as an operator does. What it cannot repair may stay lost."""
        for line in self.archive.repair(self.new_uuid, self.machine.clock.now_ms(), heads=heads):
            self.tell(f"firn repair: {line}")
            if "cannot be repaired" in line:
                self.excuse = self.excuse or line

    def new_uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def _stays_away(self) -> None:
        run = self.machine.run
        assert run is not None
        if not self.excuse:
            raise Violation(f"{run.name} {run.state.value}, faults ended: {run.reason}")

    async def _comes_alive(self) -> bool:
        deadline = self.loop.time() + ALIVE_S
        while self.loop.time() < deadline:
            if await self.examine(patience_s=1.0, final=True):
                return True
            await asyncio.sleep(0.5)
        return False

    async def archive_is_sound(self) -> None:
        """T10: `firn fsck` finds nothing wrong, once what was damaged on its way was written again: by the
        node, else by an operator.
        """
        deadline = self.loop.time() + ALIVE_S
        may_repair = self.store_faults.has_flipped
        while problems := self._archive_problems():
            if self.excuse or self.bucket_damaged:
                return
            if self.loop.time() > deadline:
                if not may_repair:
                    raise Violation(f"fsck: {problems[0]}")
                may_repair, deadline = False, self.loop.time() + ALIVE_S
                self.repair_bucket(heads=True)
            await asyncio.sleep(1.0)

    def check_archive(self) -> None:
        """T10: at any moment `firn fsck` finds nothing wrong, where nothing was damaged.

        A store that is slow or away may have segments before it has the first `topics.json`.
        """
        if not (self.excuse or self.bucket_damaged or self.store_faults.has_flipped):
            for problem in self._archive_problems():
                if self.topics_listed or not problem.startswith(f"{TOPICS_KEY}:"):
                    raise Violation(f"fsck: {problem}")

    def _archive_problems(self) -> list[str]:
        """Return the errors that `firn fsck` finds, except in partitions that two nodes wrote to."""
        return [one for one in self.archive.problems() if partition_of(one) not in self.two_writers]

    def _written(self, key: str, data: bytes, replaced: bytes | None, by: str) -> None:
        """Check T6, T7, T13: versions rise, HEAD names an existing manifest, `topics.json` loses no topic."""
        self.topics_listed |= key == TOPICS_KEY
        gone = frozenset(topic.topic_id for topic in self.topics if topic.deleted)
        wrong = self.archive.wrong_with_write(key, data, replaced, gone)
        if wrong and not self.bucket_damaged:
            self.violations.append(wrong)

    def _deleted(self, deletion: Deletion) -> None:
        """T8: nothing live is ever deleted."""
        owner = self.archive.owner(deletion.key)
        if owner is not None and any(topic.topic_id == owner and topic.deleted for topic in self.topics):
            return
        if owner is not None and deletion.by.startswith(CLONE):
            self.two_writers.add(partition_of(deletion.key))
        if self.archive.is_live(deletion.key):
            self.violations.append(f"{deletion.by} deletes {deletion.key}, which is live")
