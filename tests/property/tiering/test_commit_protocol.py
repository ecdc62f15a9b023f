"""The whole commit protocol under random faults.

Whatever fails, lies, arrives late or crashes, and whoever leads, the invariants of docs/invariants.md hold at
every moment; once it is quiet the bucket holds exactly the log.

The catalog is one of three: in memory, decided by the controller on an image, or that one behind
CommitCatalog, whose requests are lost, doubled and late, and come from brokers that were deposed.

Two nodes hold the same partitions (the same batches, in segments of different sizes) and share one bucket and
one quorum. A falsifying example is a seed: `replay(seed, kind=…)` runs it again.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.threads import SystemThreads
from service.base.types import Buffer, TopicIdPartition
from service.controller_client.remote_log_catalog import Registration
from service.remote.format.manifest import ManifestLimits
from service.remote.format.manifest_codec import Head, TopicsFileRow, decode_head
from service.remote.format.stamp import Writer
from service.remote.stores.errors import PreconditionFailed, StoreUnavailable
from service.remote.stores.memory_store import MemoryStore
from service.tiering.shared_objects import TopicsSnapshot
from service.tiering.steps import CommitStep
from tests.unit.tiering.catalogs import ImageCatalog, Wire, by_rpc
from tests.unit.tiering.world import SETTINGS, Crash, Fault, MemoryCatalog, Replica, World, no_faults

GRACE_MS = 3_600_000
STEP_MS = 100_000
SIM_SETTINGS = SETTINGS._replace(grace_ms=GRACE_MS, sweep_interval_ms=GRACE_MS, block_bytes=700)
FAULTS = (Fault.FAIL, Fault.FAIL, Fault.LIE, Fault.LIE, Fault.CRASH_BEFORE, Fault.CRASH_AFTER)


class LateStore(MemoryStore):
    """Some writes are answered with a time-out and carried out later, if they still can be."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(SystemThreads())
        self._rng = rng
        self.late_share = 0.0
        self.late: list[tuple[str, bytes, Callable[[], object]]] = []
        self.on_head: Callable[[Head], None] = lambda head: None

    def _maybe_late(self, key: str, data: Buffer, write: Callable[[], object]) -> None:
        if self._rng.random() < self.late_share:
            self.late.append((key, bytes(data), write))
            raise StoreUnavailable(f"put {key}: timed out")

    def put(self, key: str, data: Buffer) -> None:
        self._maybe_late(key, data, partial(super().put, key, bytes(data)))
        super().put(key, data)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        self._maybe_late(key, data, partial(super().put_if_absent, key, bytes(data)))
        return super().put_if_absent(key, data)

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        self._maybe_late(key, data, partial(super().put_if_match, key, bytes(data), tag))
        super().put_if_match(key, data, tag)

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        self.put(key, b"".join(parts))

    def deliver(self) -> None:
        """What was late arrives."""
        self._rng.shuffle(self.late)
        for key, data, write in self.late:
            try:
                is_there = write() is not False
            except PreconditionFailed:
                is_there = False
            if is_there and key.endswith("/HEAD"):
                self.on_head(decode_head(data))
        self.late = []


class Simulation:
    def __init__(self, seed: int, tmp: Path, kind: str) -> None:
        self.rng = rng = random.Random(seed)
        self.bucket = LateStore(rng)
        self.catalog = MemoryCatalog() if kind == "memory" else ImageCatalog()
        partitions = rng.choice((1, 1, 2))
        limits = rng.choice((ManifestLimits(), ManifestLimits(2, 2), ManifestLimits(3, 3)))
        retention_bytes = rng.choice((-1, -1, 4000, 9000))
        commit_segments = rng.choice((1, 3, 16))
        self.nodes = [
            World(
                tmp / str(number),
                self.bucket,
                self.catalog,
                partitions=partitions,
                settings=SIM_SETTINGS._replace(commit_segments=commit_segments),
                limits=limits,
                writer=Writer(0, UUID(int=1)),
                segment_bytes=segment_bytes,
                retention_bytes=retention_bytes,
            )
            for number, segment_bytes in enumerate((900, 1500))
        ]
        self.wires = [Wire(self.catalog, rng) for _ in self.nodes if kind == "rpc"]
        for number, (node, wire) in enumerate(zip(self.nodes, self.wires, strict=False)):
            by_rpc(node.view, wire, Registration(number + 1, 10 * (number + 1)))
        self.bucket.on_head = self.nodes[0].store.on_head
        self.logs = [list(node.replicas) for node in self.nodes]
        self.leaders = [0] * partitions
        self.is_on = True
        self.fault_share = rng.choice((0.0, 0.02, 0.1, 0.3))
        self.crash_share = rng.choice((0.0, 0.01, 0.05))
        self.follow()
        for node in self.nodes:
            node.topics = self.topics  # type: ignore[method-assign]

    def topics(self) -> TopicsSnapshot:
        row = TopicsFileRow("events", UUID(int=7), len(self.leaders), {})
        return TopicsSnapshot(1, {row.topic_id}, lambda: [row])

    def replicas(self, partition: int) -> list[Replica]:
        return [logs[partition] for logs in self.logs]

    def follow(self, *deaf: int) -> None:
        """The nodes hear of the quorum's leaders; the `deaf` ones do not, and go on as they were."""
        for number, node in enumerate(self.nodes):
            if number in deaf:
                continue
            node.replicas = [
                self.logs[number][partition]
                for partition, leader in enumerate(self.leaders)
                if leader == number
            ]
            for replica in node.replicas:
                node.elect(replica)
            node.view.stale.clear()  # who leads is told by the same image

    def arm(self) -> None:
        rng = self.rng

        def decide(operation: str, key: str) -> Fault:
            return rng.choice(FAULTS) if rng.random() < self.fault_share else Fault.PASS

        def probe(step: CommitStep, tip: TopicIdPartition) -> None:
            if rng.random() < self.crash_share:
                raise Crash(step.value)

        self.bucket.late_share = self.fault_share / 3
        self.catalog.decide = decide
        for wire in self.wires:
            wire.fault_share = self.fault_share / 3
        for node in self.nodes:
            node.store.decide = decide
            node.probe = probe

    def disarm(self) -> None:
        self.bucket.late_share = 0
        self.catalog.decide = no_faults
        for wire in self.wires:
            wire.fault_share = 0
        for node in self.nodes:
            node.store.decide = no_faults

    # -- actions ---------------------------------------------------------------------------------------------

    def produce(self) -> None:
        for partition in range(len(self.leaders)):
            for _ in range(self.rng.randrange(12)):
                count = self.rng.randrange(1, 5)
                for replica in self.replicas(partition):
                    epoch = self.catalog.leader_epochs[replica.tip.topic_id, partition]
                    replica.append(count, self.nodes[0].clock.now_ms(), leader_epoch=epoch)

    def hold_back(self) -> None:
        for partition in range(len(self.leaders)):
            held_back = self.rng.choice((0, 0, 3, 20))
            for replica in self.replicas(partition):
                entry = self.nodes[0].entry(replica)
                floor = max(replica.log.log_start_offset, entry.end_offset if entry is not None else 0)
                replica.held_back = max(0, min(held_back, replica.log.log_end_offset - floor))

    def change_leader(self) -> None:
        """The quorum elects; a node that does not hear of it still believes what it did."""
        partition = self.rng.randrange(len(self.leaders))
        for node in self.nodes:
            node.view.stale = {**self.catalog.entries, **node.view.stale}
        self.leaders[partition] = self.rng.randrange(2)
        self.nodes[0].fence(self.replicas(partition)[0])
        if isinstance(self.catalog, ImageCatalog):
            self.catalog.leaders[UUID(int=7), partition] = self.leaders[partition] + 1
        self.follow(*self.rng.choice(((), (), (0,), (1,), (0, 1))))

    def lag_image(self) -> None:
        node = self.rng.choice(self.nodes)
        if node.view.stale:
            node.view.stale.clear()
        else:
            node.view.stale.update(self.catalog.entries)

    def drop_local(self) -> None:
        for node in self.nodes:
            for replica in node.replicas:
                node.drop_local(replica)

    def delete_records(self) -> None:
        partition = self.rng.randrange(len(self.leaders))
        replica = self.replicas(partition)[self.leaders[partition]]
        offset = self.rng.randrange(replica.log.log_start_offset, replica.high_watermark + 1)
        replica.log.deletion.advance_log_start(offset)

    def switch_tiering(self, on: bool | None = None) -> None:
        """Off, and on again. Replicas that are to be as good as each other begin alike then."""
        self.is_on = not self.is_on if on is None else on
        self.catalog.off = set() if self.is_on else {UUID(int=7)}
        for partition in range(len(self.leaders)):
            replicas = self.replicas(partition)
            starts = [one.log.local_log_start_offset for one in replicas]
            for replica in replicas:
                if not self.is_on:
                    replica.log.deletion.advance_log_start(max(starts))
                replica.switch(on=self.is_on)

    def reboot(self) -> None:
        self.rng.choice(self.nodes).reboot()

    def sweep(self) -> None:
        node = self.rng.choice(self.nodes)
        self.disarm()
        node.do(node.manager.maintenance.sweep())

    def pass_time(self) -> None:
        for node in self.nodes:
            node.clock.advance(STEP_MS)

    def run(self, rounds: int) -> None:
        actions = (
            self.produce, self.produce, self.produce, self.pass_time, self.pass_time, self.drop_local,
            self.hold_back, self.change_leader, self.lag_image, self.reboot, self.sweep, self.delete_records,
            self.switch_tiering,
        )  # fmt: skip
        for _ in range(rounds):
            self.rng.choice(actions)()
            self.arm()
            for node in self.rng.sample(self.nodes, 2):
                node.run()
            self.bucket.deliver()
            self.deliver()
            self.check()

    def deliver(self) -> None:
        """Requests to the catalog that are on their way arrive."""
        decide, self.catalog.decide = self.catalog.decide, no_faults
        for node, wire in zip(self.nodes, self.wires, strict=False):
            node.do(wire.deliver())
        self.catalog.decide = decide

    def check(self) -> None:
        for number, node in enumerate(self.nodes):
            followed, node.replicas = node.replicas, self.logs[number]
            try:
                node.check()
            finally:
                node.replicas = followed

    def come_to_rest(self) -> None:
        self.follow()
        self.disarm()
        self.deliver()
        self.switch_tiering(on=True)
        for node in self.nodes:
            for replica in self.logs[self.nodes.index(node)]:
                replica.held_back = 0
            node.settle()
        for wait_ms in (GRACE_MS, GRACE_MS, GRACE_MS, 0):
            for node in self.nodes:
                node.clock.advance(wait_ms)
                node.run()
                node.do(node.manager.maintenance.sweep())
                node.run()
        self.check()
        live = {"cluster.json", "topics.json"}
        for node in self.nodes:
            live |= node.live_keys()
        stored = self.nodes[0].stored_keys()
        assert stored == live, f"T8: leaked {sorted(stored - live)}, lost {sorted(live - stored)}"
        for partition, leader in enumerate(self.leaders):
            node, replica = self.nodes[leader], self.logs[leader][partition]
            entry, head = node.entry(replica), node.head(replica)
            assert entry is None or (head is not None and head.manifest_key == entry.manifest_key), "T7"
            assert node.lag(replica) == 0


def replay(seed: int, rounds: int = 40, kind: str = "memory") -> None:
    with tempfile.TemporaryDirectory() as tmp:
        simulation = Simulation(seed, Path(tmp), kind)
        simulation.run(rounds)
        simulation.come_to_rest()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_fault_breaks_an_invariant(seed: int) -> None:
    replay(seed)


@pytest.mark.parametrize("kind", ["controller", "rpc"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_controllers_catalog_keeps_them_here_and_from_afar(kind: str, seed: int) -> None:
    replay(seed, kind=kind)
