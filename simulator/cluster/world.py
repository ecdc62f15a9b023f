"""World with several machines: their nodes, their client, and the oracle that checks each turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.base.world import World
from service.cli.dev_nodes import HOST, Plan, format_nodes, plan_nodes
from service.hot.names import CLUSTER_METADATA_DIR
from service.metadata.image import MetadataImage
from service.metadata.records import UserScramCredentialRecord
from simulator.archive import Archive
from simulator.client import Client, Fetched
from simulator.cluster.oracle import INTERNAL, Oracle
from simulator.cluster.replicas import Key
from simulator.cluster.sessions import Sessions
from simulator.durable import durable_end, whole_end
from simulator.faults import DrawnFaults, DrawnStoreFaults
from simulator.loop import Loop
from simulator.machine import BEGAN_MS, Machine, NodeLogs, Run, State
from simulator.model import PartitionModel, TopicModel, Violation
from simulator.network import Link, Network
from simulator.power_loss import Loss
from simulator.process import Process
from simulator.process_disk import NoFaults, SimDisk
from simulator.store import Bucket
from simulator.threads import SimThreads
from simulator.trace import Trace
from simulator.world import SETTINGS

CONTROLLERS: Final = 3
ALIVE_S: Final = 30.0
START_S: Final = 60.0
CALM_S: Final = 1.0
RATES: Final = (1.0, 1.0, 1.0, 0.999, 1.001, 0.98, 1.02, 0.95, 1.05)
"""how fast a machine's clock runs"""
_LOOK_S: Final = 0.02
_UNTOLD: Final = "no controller has sent the cluster id"
"""Error of a broker that has lost its disk and gets no response from a controller"""
CLIENT: Final = "client"
_DIRECTORY: Final = Path("/sim")
_BROKER_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
_URL: Final = "firn.remote.url"
_NOT_OURS: Final = ("node.id", "listeners", "advertised.listeners", _URL)
_SETTINGS: Final = {
    **{key: value for key, value in SETTINGS.items() if key not in _NOT_OURS},
    "metadata.log.max.record.bytes.between.snapshots": "20000",
    "log.retention.ms": "-1",
    "offsets.topic.num.partitions": "2",
    "replica.lag.time.max.ms": "4000",
    "replica.high.watermark.checkpoint.interval.ms": "1500",
}


class Ground(NamedTuple):
    """Parts that outlive a cluster of which everything is lost: time, the network, the bucket, clients."""

    loop: Loop
    trace: Trace
    network: Network
    darkness: set[str]
    """machines without power: nothing comes from there, no refusal either"""
    bucket: Bucket
    client_process: Process

    @classmethod
    def new(cls, part: Callable[[], Random], *, keep_all: bool) -> Ground:
        """Return the ground of a new history."""
        loop = Loop(part())
        trace = Trace(lambda: loop.now_s, keep_all=keep_all)
        return cls(loop, trace, Network(loop, part(), trace), set(), Bucket(), Process(CLIENT))


class ClusterWorld:
    """Everything of one history. Made and used on its own loop."""

    letter = "n"
    """begins the names of its machines"""
    is_lost = False
    """whether everything but the bucket is lost, so that the history is over for this cluster"""
    apart: bool | None = None
    """whether controllers have disks of their own for their metadata logs; None: each draws it"""
    estranged: str | None = None
    """the machine whose way to the bucket is cut off, or leads to another prefix (`store_acts`)"""
    foreign = False
    """whether `cluster.json` is another cluster's"""
    owned = b""
    """what `cluster.json` was before"""
    brokers_apart = False
    """whether pure brokers have disks of their own for their metadata logs"""
    credentials: tuple[UserScramCredentialRecord, ...] = ()
    """of users that the cluster is formatted with"""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        tiered: bool = False,
        keep_all: bool = False,
        ground: Ground | None = None,
    ) -> None:
        """`ground`: that of a lost cluster, beside whose machines these are new ones."""
        random = Random(seed)

        def part() -> Random:
            return Random(random.getrandbits(64))

        self.ground = ground or Ground.new(part, keep_all=keep_all)
        self.loop, self.trace, self.network = self.ground.loop, self.ground.trace, self.ground.network
        self.darkness, self.bucket = self.ground.darkness, self.ground.bucket
        self.tiered = tiered
        self.archive = Archive(self.bucket)
        self.sessions = Sessions(self.loop, self.network.links, self.darkness)
        self.oracle = Oracle(self.archive, self._may_lose, self._deleted, self.sessions, self._was_unclean)
        self.bucket.on_write = self.oracle.written
        self.bucket.on_delete = self.oracle.deleted
        self.machines: list[Machine] = []
        self.faults: dict[str, DrawnFaults] = {}
        self.store_faults: dict[str, DrawnStoreFaults] = {}
        self.latest_wall_ms = 0
        """the latest that any machine's wall clock ever was before it was set"""
        for number in range(1, nodes + 1):
            self.machines.append(self._new_machine(number, random, part))
        self._plans: dict[str, Plan] = {}
        """by machine: how its directories are formatted"""
        self.settings = self._format(part(), nodes, self._drawn_settings(part()))
        self.client_process = self.ground.client_process
        self.clients = {machine.name: Client(machine.address) for machine in self.machines}
        self.topics: list[TopicModel] = []
        self.configs: dict[tuple[str, str], tuple[str | None, ...]] = {}
        """by topic and key: what the setting may be now"""
        self.troubled: set[str] = set()
        """machines that something struck which may take partitions offline, or end the node"""
        self.gone: set[UUID] = set()
        """topics whose deletion was answered"""
        self._producers: set[int] = set()
        self._chance = Random(seed)
        self.last_fault_s = 0.0
        """when a fault was last there, or something done to a process"""
        self.born_s: list[float] = []
        """when the values were made, in their order"""
        self.acknowledged = 0
        """records, so that they have to stay"""
        self.consumed = 0
        self.answered = 0
        """admin changes that were answered"""
        self.restarts = self.kills_in_puts = self.unclean = 0
        """processes but the first of each machine; those that died while they wrote to the bucket; leaders
        that lack records"""
        self.background: list[asyncio.Task[None]] = []
        self.loop.after_turn = lambda: self.oracle.look(self.machines)
        logs = logging.getLogger("service")
        logs.handlers[:] = [NodeLogs(self.trace)]
        logs.propagate = False
        logs.setLevel(logging.WARNING)

    def _new_machine(self, number: int, random: Random, part: Callable[[], Random]) -> Machine:
        name = f"{self.letter}{number}"
        faults = self.faults[name] = DrawnFaults(part(), self.trace)
        store_faults = self.store_faults[name] = DrawnStoreFaults(part(), self.trace)
        dirs = (_DIRECTORY / f"node-{number}",)
        metadata_dir = _DIRECTORY / f"node-{number}-metadata" if self._is_apart(number, random) else None
        machine = Machine(
            name,
            self.loop,
            part(),
            self.trace,
            self.bucket,
            dirs,
            faults,
            store_faults,
            metadata_dir=metadata_dir,
        )
        machine.clock.rate = random.choice(RATES)
        machine.store_ms = self.real_ms
        return machine

    def _is_apart(self, number: int, random: Random) -> bool:
        """Return whether a node has its metadata log on a disk of its own."""
        if number > CONTROLLERS:
            return self.brokers_apart
        return random.random() < 0.5 if self.apart is None else self.apart

    def _drawn_settings(self, random: Random) -> dict[str, str]:
        if not self.tiered:
            return _SETTINGS
        begins_at_end = str(random.random() < 0.5).lower()
        return {
            **_SETTINGS,
            _URL: SETTINGS[_URL],
            "follower.fetch.last.tiered.offset.enable": begins_at_end,
        }

    def _format(self, random: Random, nodes: int, chosen: dict[str, str]) -> dict[str, dict[str, str]]:
        """Format all nodes as `firn format --initial-controllers` does; return their settings by name."""
        controllers = min(nodes, CONTROLLERS)
        # Ports of one host, which stand for hosts of one port each.
        ports = range(20_000, 20_000 + nodes), range(30_000, 30_000 + controllers)
        with self.formatter(self.machines[0], random) as (world, _):
            plan = plan_nodes(nodes, controllers, ports, _DIRECTORY, world, chosen)

        def told(text: str) -> str:
            for those, port in zip(ports, (_BROKER_PORT, CONTROLLER_PORT), strict=True):
                for number, one in enumerate(those, 1):
                    text = text.replace(f"{HOST}:{one}", f"{self.letter}{number}:{port}")
            return text

        plan = plan._replace(initial_controllers=told(plan.initial_controllers))
        for machine, node in zip(self.machines, plan.nodes, strict=True):
            settings = self.own_settings({key: told(value) for key, value in node.settings.items()})
            settings["metadata.log.dir"] = str(machine.metadata_dir)
            self._plans[machine.name] = plan._replace(nodes=(node._replace(settings=settings),))
            self._format_node(machine, random)
        return {name: one.nodes[0].settings for name, one in self._plans.items()}

    def own_settings(self, settings: dict[str, str]) -> dict[str, str]:
        """Return the settings of one node, of which `settings` are those of a cluster without security."""
        return settings

    def _format_node(self, machine: Machine, random: Random) -> None:
        with self.formatter(machine, random) as (world, process):
            process.run(format_nodes, self._plans[machine.name], world, None, self.credentials)

    @contextmanager
    def formatter(self, machine: Machine, random: Random) -> Iterator[tuple[World, Process]]:
        """Yield a process on the machine that formats it, and is none of the node's."""
        process = Process("format")
        threads = SimThreads(self.loop, process, random)
        disk = SimDisk(machine.platter, process, threads, NoFaults(), self.trace, machine.clock.now_ms)
        yield World(machine.clock, disk, threads, random, boot_id=machine.boot_id), process
        process.kill()

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run `main` as the client's process to its end."""
        task = self.client_process.run(lambda: self.loop.create_task(main))
        self.loop.run_until_complete(task)

    def tell(self, text: str) -> None:
        self.trace.tell("act", text)

    # What there is

    def machine(self, name: str) -> Machine:
        return self.machines[int(name[1:]) - 1]

    def of_broker(self, broker: int) -> Machine | None:
        return self.machines[broker - 1] if 1 <= broker <= len(self.machines) else None

    @property
    def alive(self) -> list[Machine]:
        """Machines with a process that serves."""
        return [one for one in self.machines if is_ready(one)]

    def image(self) -> MetadataImage:
        """Return the newest image of any process."""
        images = [
            one.run.node.parts.metadata.image
            for one in self.machines
            if one.run and not one.run.ended and one.run.node and one.run.node.parts.metadata
        ]
        return max(images, key=lambda image: image.offset, default=MetadataImage())

    def partitions(self) -> Iterable[tuple[TopicModel, PartitionModel]]:
        for topic in self.topics:
            if not topic.deleted:
                for partition in topic.partitions:
                    yield topic, partition

    def on(self, machine: Machine) -> list[tuple[TopicModel, PartitionModel]]:
        """Return the partitions with a replica on the machine, by the committed metadata."""
        number, placed = int(machine.name[1:]), self.oracle.replicas.placed
        return [
            (topic, partition)
            for topic, partition in self.partitions()
            if number in placed[topic.topic_id, partition.index].replicas
        ]

    def wall_ms(self) -> int:
        """Return the latest time that any wall clock has shown."""
        return max(self.latest_wall_ms, self.real_ms(), *(one.clock.now_ms() for one in self.machines))

    def _deleted(self) -> frozenset[UUID]:
        """Return the topics whose deletion was requested."""
        return frozenset(topic.topic_id for topic in self.topics if topic.deleted)

    def archived_end(self, key: Key) -> int:
        """Return the end offset of a partition's archive, by the committed metadata."""
        entry = self.oracle.tiers.entries.get(key)
        return 0 if entry is None else entry.end_offset

    def saw(self, partition: PartitionModel, key: Key, host: str, at: int, found: Fetched) -> int:
        """Check a consumer's response from `host`; return the offset at which it goes on."""
        go_on = self.oracle.replicas.saw(key, f"{partition} at {host}", at, found)
        self.consumed += len(found.records)
        return go_on

    def new_values(self, count: int) -> list[bytes]:
        """Return the beginnings of `count` values that nobody has sent; note the time."""
        self.born_s += [self.loop.now_s] * count
        return [b"v%d." % number for number in range(len(self.born_s) - count + 1, len(self.born_s) + 1)]

    def is_known(self, machine: Machine, calm: bool, offset: int, what: str) -> None:
        """A3: who says that something is done knows it, where nothing was wrong meanwhile."""
        if not (calm and self.is_calm):
            return
        run = machine.run
        assert run is not None
        assert run.node is not None
        assert run.node.parts.metadata is not None
        known = run.node.parts.metadata.image.offset
        if known < offset:
            raise Violation(f"A3: {run.name} says that {what}, at {offset}, and knows what is up to {known}")

    def _may_lose(self, key: Key, offset: int) -> None:
        """Allow the loss of a partition's records from `offset` on."""
        for topic, partition in self.partitions():
            if (topic.topic_id, partition.index) == key:
                self.tell(f"{partition} may lose what lies from {offset} on")
                partition.may_lose_from(offset)
                return
        self.loses_internal(key, offset)

    def what_is_left_to_do(self) -> str:
        """Do what there is to do once all is alive, before the rest is examined; return what was done."""
        return ""

    async def settle_rewrites(self) -> None:
        """Wait, once all is alive, until what is written anew in the bucket is. Raises `Violation`."""

    def made(self, topic: TopicModel) -> None:
        """Note a topic whose creation was answered."""

    def key_of(self, value: bytes) -> bytes | None:
        """Return the key with which a value is produced."""
        return None

    def loses_internal(self, key: Key, offset: int) -> None:
        """Note that a partition which is none of `topics` may lose its records from `offset` on."""

    def _was_unclean(self, key: Key) -> bool:
        """Note an unclean leader; return whether the topic allows it.

        That includes topics whose deletion is in doubt, and those whose creation no client was told of."""
        topic = next((one for one in self.topics if one.topic_id == key[0]), None)
        if topic is None:
            return self.oracle.allows_unclean(key[0])
        partition = topic.partitions[key[1]]
        if partition.allows_unclean:
            self.unclean += 1
            self.tell(f"{partition} has an unclean leader")
            partition.was_unclean = True
            partition.may_lose_from(0)
        return partition.allows_unclean

    @property
    def is_calm(self) -> bool:
        """Return whether there was no fault for a while, and no broker is fenced."""
        links = self.network.links
        on = [one.on for one in self.faults.values()] + [one.on for one in self.store_faults.values()]
        estranged = self.estranged is not None or self.foreign
        in_part = links.slow_s or links.refused or links.stalled or links.flips
        if links.cut or in_part or any(on) or estranged or len(self.alive) < len(self.machines):
            self.last_fault_s = self.loop.now_s
        if any(broker.fenced for broker in self.image().brokers.values()):
            return False
        return self.loop.now_s - self.last_fault_s > CALM_S

    # Processes

    def start(self, machine: Machine) -> Run:
        self.disturbed()
        for _, partition in self.on(machine):
            partition.crashed()
        self.clients[machine.name].close()
        self.restarts += machine.runs > 0
        return machine.start(self.settings[machine.name])

    def dark(self, name: str) -> bool:
        return name in self.darkness

    def new_producer(self, producer_id: int) -> None:
        if producer_id in self._producers:
            raise Violation(f"A4: the producer id {producer_id} was given out twice")
        self._producers.add(producer_id)

    @property
    def given_producers(self) -> frozenset[int]:
        """Producer ids that were given out."""
        return frozenset(self._producers)

    def new_uuid(self) -> UUID:
        return UUID(int=self._chance.getrandbits(128), version=4)

    def real_ms(self) -> int:
        return BEGAN_MS + int(self.loop.now_s * 1000)

    def disturbed(self) -> None:
        self.last_fault_s = self.loop.now_s

    def kill(self, machine: Machine) -> None:
        self.disturbed()
        self.tell(f"kill -9 {machine.name}")
        self.note_death(machine)
        machine.kill()

    def note_death(self, machine: Machine) -> None:
        """Count a process that is about to be killed while it writes to the bucket, or deletes there."""
        run = machine.run
        self.kills_in_puts += run is not None and not run.ended and self.bucket.under_way[run.name] > 0

    async def stop(self, machine: Machine) -> None:
        """SIGTERM, and SIGKILL where it does not end within a minute."""
        self.disturbed()
        run = machine.run
        if run is None or run.ended:
            return
        self.tell(f"SIGTERM {machine.name}")
        run.process.resume()
        run.stop()
        deadline = self.loop.now_s + 60
        while not run.ended and self.loop.now_s < deadline:
            await asyncio.sleep(_LOOK_S)
        if not run.ended:
            self.kill(machine)
        self.disturbed()

    async def lose_power(self, machine: Machine, loss: Loss) -> None:
        """Take a machine's power: its connections are not closed, and its flushed data stays."""
        self.disturbed()
        self.troubled.add(machine.name)
        self.darkness.add(machine.name)
        self.network.links.cut |= self.links_of(machine.name)
        self.note_death(machine)
        machine.kill()
        self.network.silence(machine.name)

        def durable(topic: TopicModel, partition: PartitionModel) -> int:
            return durable_end(machine.platter, machine.log_dirs, topic.name, partition.index)

        promised = self._loses(machine, durable, answered_stays=True)
        self.tell(f"{machine.name} loses its power; {loss.value}; durable: {promised}")
        # A gap in the metadata log refuses the start, until an operator has looked at it.
        machine.lose_power(loss, unholed=CLUSTER_METADATA_DIR)

    def can_lose_disk(self, machine: Machine) -> bool:
        """Return whether a loss of the disk loses no vote: a voter must keep its metadata log."""
        is_voter = int(machine.name[1:]) <= CONTROLLERS
        return not is_voter or machine.metadata_dir not in machine.log_dirs

    def wipe(self, machine: Machine, random: Random) -> None:
        """Give the machine an empty disk: the bucket and other replicas have the data. An operator formats
        it, or the node does."""
        self.disturbed()
        self.note_death(machine)
        machine.kill()
        promised = self._loses(machine, lambda topic, partition: 0, answered_stays=False)
        self.tell(f"{machine.name} loses its disk; archived: {promised}")
        machine.lose_disk()
        if machine.metadata_dir in machine.log_dirs and random.random() < 0.5:
            self._format_node(machine, random)

    def return_disk(self, machine: Machine, kept: Callable[[Key], int]) -> None:
        """Kill the machine, whose disk a copy of before is about to replace; `kept` tells where partitions
        end there."""
        self.disturbed()
        self.note_death(machine)
        machine.kill()

        def ends(topic: TopicModel, partition: PartitionModel) -> int:
            return kept((topic.topic_id, partition.index))

        left = self._loses(machine, ends, answered_stays=False)
        self.tell(f"{machine.name} gets a copy of its disk back; left: {left}")

    def _loses(
        self,
        machine: Machine,
        durable: Callable[[TopicModel, PartitionModel], int],
        *,
        answered_stays: bool,
    ) -> dict[str, int]:
        """Allow the machine to lose what is neither `durable` there nor in the bucket.

        Returns where the rest ends, by partition."""
        number, left = int(machine.name[1:]), dict[str, int]()
        replicas = self.oracle.replicas
        replicas.died(number, self.oracle.broker_epochs.get(number, -1))
        for topic, partition in self.on(machine):
            key = topic.topic_id, partition.index
            at = left[str(partition)] = max(durable(topic, partition), self.archived_end(key))
            if replicas.placed[key].had_many:
                replicas.lost(number, key, at)
                continue
            replicas.shaken.add(key)
            if answered_stays and topic.flushed:
                at = max(at, partition.answered_end)
            elif not answered_stays:
                partition.deleted_below = partition.log_start = 0  # that was noted on the disk
                partition.archived_below = max(partition.archived_below, at)
            partition.may_lose_from(at)
        for name in INTERNAL:
            for key, placed in replicas.placed.items():
                if key[0] == self.oracle.names.get(name) and number in placed.replicas:
                    where = machine.platter, machine.log_dirs, name, key[1]
                    kept = durable_end(*where) if answered_stays else 0
                    if kept < whole_end(*where):
                        replicas.lost(number, key, kept)
        # A deletion that nobody answered may not have happened: that topic's replicas lose records, too.
        gone = {topic.topic_id for topic in self.topics if topic.deleted}
        for key, placed in replicas.placed.items():
            if key[0] in gone and number in placed.replicas:
                replicas.lost(number, key, 0)
        return left

    def links_of(self, name: str) -> set[Link]:
        others = [one.name for one in self.machines if one.name != name] + [CLIENT]
        return {(name, other) for other in others} | {(other, name) for other in others}

    async def until_ready(self, machine: Machine, seconds: float) -> bool:
        deadline = self.loop.now_s + seconds
        while self.loop.now_s < deadline:
            run = machine.run
            if run is None or run.state is not State.STARTING:
                break
            await asyncio.sleep(_LOOK_S)
        return is_ready(machine)

    def ended_for_reasons(self) -> None:
        """Check that nodes ended by themselves only after a fault. Raises `Violation`."""
        for machine in self.machines:
            run = machine.run
            if run is None:
                continue
            if run.state is State.BUG:
                raise Violation(f"{run.name} ended by a bug: {run.reason}")
            if run.state is State.REFUSED and _UNTOLD in run.reason:
                continue  # no controller was there for a minute; whether it joins is seen at the end
            if run.state in (State.REFUSED, State.FAILED) and machine.name not in self.troubled:
                raise Violation(f"{run.name} {run.state.value}, and nothing was wrong: {run.reason}")

    # Work in the background

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.background.append(self.loop.create_task(work))

    async def settle(self) -> None:
        """Wait until every request has its response, or never will have one."""
        while self.background:
            tasks, self.background = self.background, []
            await asyncio.gather(*tasks)


def is_ready(machine: Machine) -> bool:
    return machine.run is not None and not machine.run.ended and machine.run.state is State.READY
