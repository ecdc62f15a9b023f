"""A cluster that comes back from the bucket of a lost one: `firn restore apply`, `firn format --restore`.

Its machines are new, its bucket is the lost one's, or a clone. An operator runs the restore's own code in a
process of its own, which may be killed between any two calls of the store, and run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError, FirnError
from service.base.world import World
from service.config.cluster import ClusterConfig
from service.hot.log_dir import encode_uuid
from service.inspect.clone import CloneOrder, clone
from service.inspect.object_copies import through_here
from service.inspect.restore_file import check_restore, decode_restore, encode_restore
from service.inspect.restore_plan import OFFSET_GAP
from service.inspect.restore_records import Placement
from service.inspect.restore_source import CutChoice, read_source
from service.inspect.take_over import Restored, TakeOverOrder, take_over
from service.metadata.bootstrap import levels_of, parse_initial_controllers, split_supported
from service.metadata.features import cluster_features
from service.metadata.formatting import Order, effective_levels, format_directories
from service.metadata.frames import Frame
from service.metadata.image import MetadataImage
from service.remote.format.cut_codec import decode_cuts
from service.remote.format.keys import CUT_NAME, HeadKey, SharedKey, parse_key
from service.remote.stores.proven_uploads import ProvenUploads
from service.remote.stores.read_only_store import ReadOnlyStore
from simulator.cluster.chain_acts import CuttingWorld
from simulator.cluster.replicas import Key, watch_nothing
from simulator.cluster.world import ClusterWorld
from simulator.machine import Machine
from simulator.model import Violation
from simulator.process import Life, Process
from simulator.process_disk import NoFaults, SimDisk
from simulator.store import Bucket, Deletion, NoStoreFaults, SimStore
from simulator.threads import SimThreads

OPERATOR: Final = "restore"
_LOOK_S: Final = 0.05
_MOST_RUNS: Final = 6
_RUN_S: Final = 300.0


class Wanted(NamedTuple):
    """Order of an operator. `kills`: after how many calls of the store each run is killed; the run after
    the last of them is not."""

    choice: CutChoice
    is_clone: bool = False
    is_forced: bool = False
    kills: tuple[int, ...] = ()


class HeirWorld(CuttingWorld):
    """World of the cluster that comes back. No oracle of a cluster looks at it: only what is done to the
    bucket is checked meanwhile, and in the end what clients see."""

    def __init__(self, lost: ClusterWorld, letter: str, nodes: int, seed: int, *, is_clone: bool) -> None:
        self.letter = letter
        self._source_bucket = lost.bucket
        self._first: tuple[Frame, ...] = ()
        """records that its metadata log begins with; empty before the restore"""
        self.needed: frozenset[str] = frozenset()
        """objects that partitions load from; nothing may delete them meanwhile"""
        self.last_image = MetadataImage()
        """as it was when the heir was lost, too"""
        self.is_taken = False
        """whether the restore is complete: nothing of the lost cluster has an effect any more"""
        self.is_fresh = True
        """whether the cut is younger than the grace, for which what it needs is promised to be kept"""
        self._topics: frozenset[UUID] = frozenset()
        """those that come back"""
        self.wrong: list[str] = []
        self._operators = 0
        ground = lost.ground._replace(bucket=Bucket()) if is_clone else lost.ground
        self._is_clone = is_clone
        super().__init__(seed, nodes=nodes, tiered=True, ground=ground)
        self.random = Random(seed ^ 0x4E1)
        watch_nothing()
        self.loop.after_turn = self.check
        self._source_bucket.on_write = self._source_is_written
        self._source_bucket.on_delete = lambda _: None
        self.bucket.on_write, self.bucket.on_delete = self._written, self._deleted_object

    def _drawn_settings(self, random: Random) -> dict[str, str]:
        return {**super()._drawn_settings(random), "firn.cut.interval.ms": "1000"}

    def check(self) -> None:
        """Raise a `Violation` that was noted in the middle of a call."""
        if self.wrong:
            raise Violation(self.wrong[0])

    # What is done to the bucket

    def _is_stranger(self, by: str) -> bool:
        return not by.startswith((self.letter, OPERATOR))

    def _is_live(self, key: str) -> bool:
        owner = self.archive.owner(key)
        return self.archive.is_live(key) and (owner is None or owner in self._topics)

    def _is_needed(self, key: str) -> bool:
        return key in self.needed or self._is_live(key)

    def _source_is_written(self, key: str, data: bytes, replaced: bytes | None, by: str) -> None:
        """T22: a clone leaves its source as it is."""
        if by.startswith(OPERATOR):
            self.wrong.append(f"T22: {by} writes {key} of the source")

    def _written(self, key: str, data: bytes, replaced: bytes | None, by: str) -> None:
        """T21: once the prefix is taken over, a write of the lost cluster changes nothing that is there, and
        adds nothing that readers begin with."""
        if not self.is_taken or not self._is_stranger(by) or data == replaced:
            return
        parsed = parse_key(key)
        if isinstance(parsed, HeadKey) and parsed.topic_id not in self._topics:
            return
        if isinstance(parsed, HeadKey | SharedKey) or (replaced is not None and self._is_needed(key)):
            self.wrong.append(f"T21: {by} writes {key}, which is the heir's")

    def _deleted_object(self, deletion: Deletion) -> None:
        """T8, T19, T21."""
        key, by = deletion.key, deletion.by
        if not self.is_taken:
            return
        if self._is_stranger(by):
            # What went a grace ago and comes back with an older cut may meet a late deletion.
            if self.is_fresh and self._is_needed(key):
                self.wrong.append(f"T21: {by} deletes {key}, which the heir needs")
        elif self._is_live(key):
            self.wrong.append(f"T8: {by} deletes {key}, which is live")
        elif key in self.needed and self.image().restored_tails:
            self.wrong.append(f"T19: {by} deletes {key}, which partitions are loaded from")

    # The operator

    async def restore(self, wanted: Wanted) -> Restored | None:
        """Run `firn restore apply` until it is done, and format all machines; None where it refuses."""
        for number in range(_MOST_RUNS):
            kill_after = wanted.kills[number] if number < len(wanted.kills) else None
            try:
                restored = await self._run(wanted, kill_after)
            except FirnError as e:
                if self.is_alive_somewhere(e) and number + 1 < _MOST_RUNS:
                    self.tell(f"firn restore refuses: {e}")
                    continue
                if isinstance(e, ConfigError):
                    self.tell(f"firn restore refuses: {e}")
                    return None
                raise Violation(f"T20: firn restore fails: {type(e).__name__}: {e}") from e
            if restored is not None:
                self._take(restored, wanted)
                return restored
        raise Violation(f"T20: firn restore is not done after {_MOST_RUNS} runs")

    @staticmethod
    def is_alive_somewhere(error: FirnError) -> bool:
        """Return whether the restore says that the source lives, as late writes of it have come."""
        return "the cluster that writes here lives" in str(error)

    async def _run(self, wanted: Wanted, kill_after: int | None) -> Restored | None:
        """Run it once; None where it was killed."""
        self._operators += 1
        process = Process(f"{OPERATOR}.{self._operators}")
        threads = SimThreads(self.loop, process, self.random)
        machine = self.machines[0]
        disk = SimDisk(machine.platter, process, threads, NoFaults(), self.trace, machine.clock.now_ms)
        own = World(machine.clock, disk, threads, self.random, boot_id=machine.boot_id)

        def store_of(bucket: Bucket) -> SimStore:
            return SimStore(
                bucket, self.loop, process, threads, self.random, NoStoreFaults(), self.trace, self.real_ms
            )

        source, target = store_of(self._source_bucket), store_of(self.bucket)
        work = self._work(wanted, own, source, target)

        async def main() -> Restored:
            return await self.loop.run_in_executor(threads.pool("main", 1), work)  # type: ignore[no-any-return]

        task = process.run(lambda: self.loop.create_task(main()))
        until_s = self.loop.now_s + _RUN_S
        while not task.done():
            if kill_after is not None and source.calls + target.calls >= kill_after:
                self.tell(f"kill -9 {process.name} after {kill_after} calls of the store")
                process.kill()
            if process.life is Life.DEAD:
                return None
            if self.loop.now_s > until_s:
                raise Violation(f"T20: {process.name} takes more than {_RUN_S:.0f} s")
            await asyncio.sleep(_LOOK_S)
        process.kill()
        restored: Restored = task.result()
        return restored

    def _work(self, wanted: Wanted, own: World, source: SimStore, target: SimStore) -> Callable[[], Restored]:
        new_id = encode_uuid(self.new_uuid())

        def work() -> Restored:
            with own.threads.pool(OPERATOR, 8) as pool:
                read_source(ReadOnlyStore(source), wanted.choice, pool)
                if not wanted.is_clone:
                    order = TakeOverOrder(wanted.choice, new_id, None, OFFSET_GAP, wanted.is_forced)
                    store = ProvenUploads(target, target.verifies_uploads)
                    return take_over(store, order, own, pool, self.tell, lambda *_: None)
                cloning = CloneOrder(wanted.choice, new_id, None, OFFSET_GAP)
                with through_here(ReadOnlyStore(source), target, own.threads, self.tell) as copy:
                    return clone(
                        ReadOnlyStore(source), target, copy, cloning, own, pool, self.tell, lambda *_: None
                    )

        return work

    def _take(self, restored: Restored, wanted: Wanted) -> None:
        """Write the file for `firn format --restore`, read it back, and format all machines."""
        source = restored.source
        self.tell(f"cut {source.ref.cut} comes back as {restored.cluster_id} on {len(self.machines)} nodes")
        brokers = tuple(range(1, len(self.machines) + 1))
        placement = Placement(brokers, None, fits=True)
        records = restored.first_records(placement, is_clone=wanted.is_clone)
        header = restored.header(brokers)
        file = decode_restore(b"".join(encode_restore(header, records, self.real_ms())))
        for number in brokers:
            check_restore(file, cluster_id=restored.cluster_id, node_id=number, is_broker=True)
        self._first = split_supported(file.frames, cluster_features())[0]
        tails = {tail for one in restored.plan.partitions.values() for tail in one.tails}
        segments = {one.segment_key for one in restored.plan.partitions.values() if one.segment_key}
        self.needed = frozenset({source.ref.key, *tails, *segments})
        self._topics = frozenset(source.image.topics_by_id)
        for name, plan in self._plans.items():
            self._plans[name] = plan._replace(cluster_id=restored.cluster_id)
        for machine in self.machines:
            self._format_node(machine, self.random)
        self.is_taken = True

    def _format_node(self, machine: Machine, random: Random) -> None:
        """Format a machine with the first records of the restore; not before there are any."""
        if not self._first:
            return
        plan = self._plans[machine.name]
        cluster = ClusterConfig.from_properties(plan.nodes[0].settings)
        first = self._first if cluster.is_controller else ()
        order = Order(
            plan.cluster_id,
            cluster.node_id,
            cluster.directories,
            cluster.metadata_log_dir,
            cluster.controller_listener_names[0],
            effective_levels(levels_of(first), cluster_features(), is_dynamic=True),
            parse_initial_controllers(plan.initial_controllers),
            restored=first,
        )
        with self.formatter(machine, random) as (world, process):
            process.run(format_directories, world, order, lambda _: None)

    # What it shows

    def loading(self) -> str:
        """Name a partition that is not loaded or not led yet; "" where all are."""
        image = self.image()
        for key in image.restored_tails:
            return f"{self.name_of(key)} is loading"
        for topic in image.topics_by_id.values():
            for index, state in topic.partitions.items():
                if state.leader < 0:
                    return f"nobody leads {topic.name}-{index}"
        return "" if image.topics_by_id or not self._first else "no image"

    def name_of(self, key: Key) -> str:
        topic = self.image().topics_by_id.get(key[0])
        return f"{key[0] if topic is None else topic.name}-{key[1]}"

    def has_written_cut(self, number: int) -> bool:
        """Return whether `CUT` names a complete cut that is newer than `number`."""
        data = self.archive.object(CUT_NAME)
        return data is not None and any(
            ref.is_complete and ref.cut > number for ref in decode_cuts(data).kept
        )
