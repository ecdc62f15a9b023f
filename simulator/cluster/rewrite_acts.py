"""Acts around ranges that are written anew: keys are erased, workers die amid it, old disks come back.

Values have keys of a small set, or none. Merges need no act: their bounds are so small that nodes find runs
whenever a chain has grown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.types import NO_LEADER_EPOCH
from service.records.erasure import filter_hash, hash_key
from service.remote.format.erase_codec import (
    FILTER_HASH_BYTES,
    NO_TIME,
    SECRET_BYTES,
    ErasedTopic,
    ErasureOrder,
    encode_erasure,
)
from service.remote.format.keys import SegmentKey, parse_key
from service.wire.api import ApiKey
from service.wire.erasures import ErasureOp, ErasuresRequest
from simulator.client import Client, NoAnswer
from simulator.cluster.acts import create
from simulator.cluster.chain_acts import CuttingWorld
from simulator.cluster.client import produce, values_of
from simulator.cluster.erasures import KnownOrder, PartitionErasures, records_at
from simulator.cluster.process_acts import is_down, start_again
from simulator.cluster.replicas import Key
from simulator.cluster.rewrites import RewriteOracle
from simulator.durable import durable_end
from simulator.faults import SLOW_STORE
from simulator.machine import Machine
from simulator.model import PartitionModel, TopicModel, Violation
from simulator.power_loss import Platter
from simulator.store import Deletion, Sent
from simulator.topics import NOBODY, configs_of

KEYS: Final = tuple(b"user-%d" % number for number in range(5))
_NULL_IN: Final = 3
"""One value of so many has no key."""
_ANSWER_S: Final = 20.0
_AGAIN_S: Final = 0.5
_DONE_S: Final = 180.0
"""Orders are done so long after all is alive: keepers look at them every half a minute, by their own clocks,
and the cuts that they wait for need logs that are cleaned, and archives that are written anew."""
_TRIES: Final = 4
_GO_ON: Final = 8
"""records that clients produce while an order is carried out"""
_BACK: Final = (0, 0, 0, 1, 2, 5)
"""Records by which an order ends before what is committed: it was given a moment ago."""
_NEAR: Final = 12
_KEEPER_S: Final = 2.0
_BEGUN_S: Final = 8.0
_SLOW_S: Final = 40.0
_OFTEN_S: Final = 2.0


class DiskOfBefore(NamedTuple):
    """A copy of a machine's log directories. `removed`: orders that the metadata had no more by then."""

    platter: Platter
    ends: dict[Key, int]
    removed: frozenset[UUID]


class RewritingWorld(CuttingWorld):
    """`CuttingWorld` whose records have keys, some of which are erased, and whose segments are merged. Made
    and used on its own loop."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        oracle = self.oracle
        self.erasures = oracle.replicas.erasures
        self.erasures.key_of = self.key_of
        self.rewrites = RewriteOracle(
            self.archive,
            oracle.replicas,
            oracle.tiers,
            oracle.cuts,
            self.machines,
            self.real_ms,
            self.image,
        )
        oracle.on_record = self.rewrites.learn
        self.disks_of_before: dict[str, DiskOfBefore] = {}
        self.restored_disks = 0
        self.bucket.on_write, self.bucket.on_delete = self._written, self._object_deleted
        self.loop.after_turn = self._look

    @property
    def counted(self) -> dict[str, int]:
        rewrites = self.rewrites
        return {
            **super().counted,
            "rewrites_begun": rewrites.begun,
            "rewrites": rewrites.committed,
            "merges": rewrites.merged,
            "orders": len(self.erasures.orders),
            "orders_done": rewrites.done,
            "restored_disks": self.restored_disks,
        }

    @property
    def removed_orders(self) -> frozenset[UUID]:
        """Orders that left the metadata."""
        return frozenset(one.id for one in self.erasures.orders.values() if one.is_removed)

    def _drawn_settings(self, random: Random) -> dict[str, str]:
        return {
            **super()._drawn_settings(random),
            "firn.merge.min.age.ms": random.choice(("1", "3000")),
            "firn.merge.small.bytes": random.choice(("8000", "40000")),
        }

    def _look(self) -> None:
        self.oracle.look(self.machines)
        self.rewrites.check()

    def _written(self, key: str, data: bytes, replaced: bytes | None, by: str) -> None:
        self.oracle.written(key, data, replaced, by)
        self.rewrites.written(key, data)

    def _object_deleted(self, deletion: Deletion) -> None:
        self.oracle.deleted(deletion)
        self.rewrites.deleted(deletion)

    def key_of(self, value: bytes) -> bytes | None:
        number = int(value[1:].split(b".")[0])
        return None if not number % _NULL_IN else KEYS[number % len(KEYS)]

    def made(self, topic: TopicModel) -> None:
        replicas = self.oracle.replicas
        for one in topic.partitions:
            key = topic.topic_id, one.index

            def known(key: Key = key) -> dict[int, bytes] | None:
                return None if key in replicas.shaken else replicas.committed.get(key, {})

            one.erased = PartitionErasures(self.erasures, key, known)

    async def settle_rewrites(self) -> None:
        """T26: once all is alive every order is done, on a disk of before, too, which does it once more."""
        until_s = self.loop.now_s + _DONE_S
        while (left := self._open_orders()) and self.loop.now_s < until_s:
            await asyncio.sleep(_AGAIN_S)
        if left:
            raise Violation(f"T26: order {left[0]} is not done {_DONE_S:.0f} s after all is alive")
        while self.restored_disks and self.loop.now_s < until_s and self.rewrites.is_any_left():
            await asyncio.sleep(_AGAIN_S)
        self.rewrites.none_is_left()

    def _open_orders(self) -> list[UUID]:
        return [one.id for one in self.image().erasures.values() if one.is_open]


async def keyed_topic(world: RewritingWorld, random: Random) -> None:
    """Create a tiered topic of small segments, of one or two partitions, most of them with replicas."""
    name, kind = f"t{len(world.topics)}", random.choice(("tiered", "tiered and flushed"))
    topic = TopicModel(name, NOBODY, [], True, "flushed" in kind, -1, deleted=True)
    world.topics.append(topic)  # the name may be taken from now on
    configs = {
        **configs_of(random, kind),
        "internal.segment.bytes": str(random.choice((700, 700, 1500, 4000))),
        "min.insync.replicas": str(random.choice((1, 1, 2))),
    }
    count, factor = random.choice((1, 1, 2)), random.choice((1, 2, 3, 3, 3))
    await create(world, random.choice(world.machines), topic, count, factor, configs)


async def change_leader(world: RewritingWorld, random: Random) -> None:
    """Have another in-sync replica lead the longest tiered partition: its chain goes on in another epoch."""
    placed = world.oracle.replicas.placed
    there = [(one, placed[one[0].topic_id, one[1].index]) for one in world.partitions() if one[0].tiered]
    there = [(place, state) for place, state in there if len(state.isr) > 1]
    if not there:
        return
    (topic, partition), state = max(there, key=lambda one: one[0][1].end_offset)
    first = random.choice([one for one in state.isr if one != state.leader])
    await lead_at(world, random, topic, partition, first)


async def lead_at(
    world: RewritingWorld, random: Random, topic: TopicModel, partition: PartitionModel, first: int
) -> None:
    """Have this replica lead a partition: ask any node to prefer it, and to elect whom it prefers."""
    replicas = world.oracle.replicas.placed[topic.topic_id, partition.index].replicas
    client = Client(random.choice(world.machines).address)
    try:
        rest = [one for one in replicas if one != first]
        await client.reassign(topic.name, partition.index, [first, *rest])
        said = (await client.elect(topic.name, partition.index)).name
    except NoAnswer as e:
        said = str(e)
    finally:
        client.close()
    world.tell(f"{first} is to lead {partition}: {said}")


async def fill_chain(world: RewritingWorld, random: Random) -> None:
    """Produce what fills many segments of one tiered partition, most often of one that has some already."""
    there = [one for one in world.partitions() if one[0].tiered]
    if not there:
        return
    there.sort(key=lambda one: -one[1].end_offset)
    topic, partition = there[0] if random.random() < 0.7 else random.choice(there)
    size, count = random.choice((60, 300, 300)), random.choice((15, 40))
    batches = [values_of(world, random.choice((1, 1, 3)), size) for _ in range(count)]
    own = Random(random.getrandbits(48))
    work = produce(world, own, topic, partition, batches, idempotent=random.random() < 0.5, pause_s=0.02)
    if random.random() < 0.2:
        world.spawn(work)
        await asyncio.sleep(random.random())
    else:
        await work


async def order_erasure(world: RewritingWorld, random: Random) -> None:
    """Have some keys erased from one or two topics, of any time or of before now and then."""
    there = [topic for topic in world.topics if not topic.deleted and topic.partitions]
    if not there:
        return
    topics = random.sample(there, min(len(there), random.choice((1, 1, 2))))
    keys = random.sample(KEYS, random.choice((1, 2, 2)))
    before_ms = random.choice((NO_TIME, NO_TIME, world.real_ms() - random.choice((0, 5_000))))
    order, known = new_order(
        world, random, topics, keys, before_ms, lambda place, end: _end(world, random, place, end, keys)
    )
    world.erasures.ask(known)
    said = f"erase {b', '.join(sorted(keys)).decode()} of {', '.join(one.name for one in topics)}"
    request = ErasuresRequest(op=int(ErasureOp.START), id=order.id, order=encode_erasure(order))
    work = ask_keeper(world, Random(random.getrandbits(48)), request, f"{said}, order {order.id}")
    if random.random() < 0.6:
        topic = random.choice(topics)
        batches = [values_of(world, 1, 60) for _ in range(_GO_ON)]
        own = Random(random.getrandbits(48))
        world.spawn(
            produce(
                world, own, topic, random.choice(topic.partitions), batches, idempotent=False, pause_s=0.2
            )
        )
    if random.random() < 0.3:
        world.spawn(work)
    else:
        await work


def new_order(
    world: RewritingWorld,
    random: Random,
    topics: list[TopicModel],
    keys: list[bytes],
    before_ms: int,
    end_of: Callable[[Key, int], int],
    *,
    has_epochs: bool = True,
) -> tuple[ErasureOrder, KnownOrder]:
    """Return an order, and what is known of it; `end_of` tells where it ends in a partition that ends at an
    offset. `has_epochs`: it has the leader epochs of its ends, as all but the oldest orders have."""
    secret = random.randbytes(SECRET_BYTES)
    hashes = sorted(hash_key(secret, key) for key in keys)
    filter_hashes = sorted(filter_hash(key).to_bytes(FILTER_HASH_BYTES, "big") for key in keys)
    rows, ends, leader_epochs = [], dict[Key, int](), dict[Key, int]()
    for topic in sorted(topics, key=lambda one: one.topic_id):
        places = [(topic.topic_id, one.index) for one in topic.partitions]
        told = [_told(world, place) for place in places]
        mine = tuple(end_of(place, most) for place, (_, most) in zip(places, told, strict=True))
        epochs = tuple(epoch if has_epochs else NO_LEADER_EPOCH for epoch, _ in told)
        rows.append(ErasedTopic(topic.topic_id, topic.name, mine, epochs))
        ends |= dict(zip(places, mine, strict=True))
        leader_epochs |= dict(zip(places, epochs, strict=True))
    order = ErasureOrder(
        world.cluster_id,
        world.new_uuid(),
        world.real_ms(),
        before_ms,
        secret,
        b"".join(hashes),
        b"".join(filter_hashes),
        tuple(rows),
    )
    return order, KnownOrder(order.id, frozenset(keys), ends, leader_epochs, order.started_ms, before_ms)


def _told(world: RewritingWorld, place: Key) -> tuple[int, int]:
    """Return the leader epoch and the high watermark that the newest leader of a partition has told last."""
    replicas = world.oracle.replicas
    leaders = (
        (one.partition.leader_epoch, one.mark)
        for (_, its), one in replicas.seen.items()
        if its == place and one.partition.is_leader
    )
    epoch, mark = max(leaders, default=(NO_LEADER_EPOCH, 0))
    is_whole = epoch >= 0 and place not in replicas.shaken
    return epoch, replicas.most.get(place, 0) if is_whole else mark


def _end(world: RewritingWorld, random: Random, place: Key, end: int, keys: list[bytes]) -> int:
    """Draw where an order ends in a partition that ends at `end`: often right before one of the last records
    of its keys."""
    known = world.oracle.replicas.committed.get(place, {})
    near = [
        offset
        for base, batch in known.items()
        if base >= end - _NEAR
        for offset, one in records_at(batch).items()
        if one.key in keys and offset < end
    ]
    if near and random.random() < 0.6:
        return random.choice(near)
    return max(end - random.choice(_BACK), 0)


async def cancel_erasure(world: RewritingWorld, random: Random) -> None:
    """Cancel an order, which may be done by then."""
    there = sorted(world.image().erasures)
    if there:
        order_id = random.choice(there)
        world.erasures.orders[order_id].is_cancelled = True
        request = ErasuresRequest(op=int(ErasureOp.CANCEL), id=order_id)
        await ask_keeper(world, random, request, f"cancel order {order_id}")


async def ask_keeper(world: RewritingWorld, random: Random, request: ErasuresRequest, what: str) -> None:
    """Ask brokers one after the other, as only the keeper answers, again for a while: there may be none."""
    for _ in range(_TRIES):
        machines = list(world.machines)
        random.shuffle(machines)
        for machine in machines:
            client = Client(machine.address)
            try:
                answer = await client.ask(ApiKey.ERASURES, request, _ANSWER_S)
            except NoAnswer as e:
                world.tell(f"{what}, at {machine.name}: {e}")
                continue
            finally:
                client.close()
            said = f"{answer.error_code.name} {answer.error_message or ''}"
            world.tell(f"{what}, at {machine.name}: {said}")
            if answer.error_code is ErrorCode.none:
                world.answered += 1
                return
        await asyncio.sleep(_KEEPER_S)


async def _next_rewrite(world: RewritingWorld) -> tuple[Key, Machine] | None:
    """Wait until a rewrite has begun; return its partition and who leads that, None if there is none."""
    begun: asyncio.Future[Key] = asyncio.get_running_loop().create_future()

    def noted(key: Key) -> None:
        if not begun.done():
            begun.set_result(key)

    world.rewrites.on_intent = noted
    try:
        async with asyncio.timeout(_BEGUN_S):
            key = await begun
    except TimeoutError:
        return None
    finally:
        world.rewrites.on_intent = lambda _: None
    machine = world.of_broker(world.oracle.replicas.placed[key].leader)
    return None if machine is None or is_down(machine) else (key, machine)


async def slow_rewrite(world: RewritingWorld, random: Random) -> None:
    """Have the bucket answer slowly who rewrites, once its object is on its way there: it lies there for
    long, and nothing names it, while others sweep."""
    if (found := await _next_rewrite(world)) is None:
        return
    key, machine = found
    if not await _object_is_sent(world, key):
        return
    faults = world.store_faults[machine.name].on
    until_s = world.loop.now_s + _SLOW_S
    world.tell(f"the bucket is slow for {machine.name} amid a rewrite")
    world.disturbed()
    faults.add(SLOW_STORE)
    while key in world.rewrites.intents and world.loop.now_s < until_s:
        await asyncio.sleep(_AGAIN_S)
    faults.discard(SLOW_STORE)
    world.disturbed()


async def _object_is_sent(world: RewritingWorld, place: Key) -> bool:
    """Wait until the object of the partition's rewrite is sent; return whether it was."""
    intent = world.rewrites.intents.get(place)
    if intent is None:
        return False
    run = place, int(intent.base_offset), int(intent.last_offset)
    sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def note(one: Sent) -> None:
        key = parse_key(one.key)
        if not isinstance(key, SegmentKey) or one.call == "delete" or sent.done():
            return
        if ((key.topic_id, key.partition), key.base_offset, key.last_offset) == run:
            sent.set_result(None)

    world.bucket.on_sent = note
    try:
        async with asyncio.timeout(_BEGUN_S):
            await sent
    except TimeoutError:
        return False
    finally:
        world.bucket.on_sent = lambda _: None
    return True


async def kill_amid_rewrite(world: RewritingWorld, random: Random) -> None:
    """Wait until a rewrite has begun, and kill who does it between any two of its calls of the store, or stop
    it for so long that others sweep meanwhile."""
    if (found := await _next_rewrite(world)) is None:
        return
    _, machine = found
    await _some_calls(world, machine, random.randint(0, 12))
    run = machine.run
    if run is None or is_down(machine):
        return
    if random.random() < 0.3:
        seconds = random.choice((1.0, 3.0, 7.0))
        world.tell(f"SIGSTOP {machine.name} amid a rewrite, for {seconds} s")
        world.disturbed()
        run.process.stop()
        await asyncio.sleep(seconds)
        run.process.resume()
        world.disturbed()
        return
    world.kill(machine)
    await start_again(world, random, machine)


async def _some_calls(world: RewritingWorld, machine: Machine, count: int) -> None:
    """Wait until the machine has sent so many writes to the bucket, but not for long."""
    left = count
    sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def note(one: Sent) -> None:
        nonlocal left
        if one.by.startswith(f"{machine.name}."):
            left -= 1
            if left < 0 and not sent.done():
                sent.set_result(None)

    world.bucket.on_sent = note
    try:
        async with asyncio.timeout(_OFTEN_S):
            await sent
    except TimeoutError:
        pass
    finally:
        world.bucket.on_sent = lambda _: None


async def copy_disk(world: RewritingWorld, random: Random) -> None:
    """Copy the log directories of a machine that is stopped for it."""
    there = [one for one in world.machines if world.can_lose_disk(one) and not is_down(one)]
    if there:
        await copy_disk_of(world, random, random.choice(there))


async def copy_disk_of(world: RewritingWorld, random: Random, machine: Machine) -> None:
    """Copy the log directories of this machine."""
    await world.stop(machine)
    world.ended_for_reasons()
    ends = {
        (topic.topic_id, one.index): durable_end(machine.platter, machine.log_dirs, topic.name, one.index)
        for topic, one in world.on(machine)
    }
    world.disks_of_before[machine.name] = DiskOfBefore(machine.platter.copy(), ends, world.removed_orders)
    world.tell(f"the disk of {machine.name} is copied")
    await start_again(world, random, machine)


async def restore_old_disk(world: RewritingWorld, random: Random) -> None:
    """Put the copy of a machine's disk in its place. No order left the metadata since: nobody could know
    that its keys are back."""
    there = [one for one in world.machines if may_restore_disk(world, one)]
    if there:
        machine = random.choice(there)
        put_old_disk(world, machine)
        await start_again(world, random, machine)


def may_restore_disk(world: RewritingWorld, machine: Machine) -> bool:
    """Return whether there is a copy of its disk, and every order that is over since is still known."""
    copied = world.disks_of_before.get(machine.name)
    return copied is not None and world.can_lose_disk(machine) and copied.removed == world.removed_orders


def put_old_disk(world: RewritingWorld, machine: Machine) -> None:
    """Kill the machine, and put the copy of its disk in its place."""
    copied = world.disks_of_before.pop(machine.name)
    world.restored_disks += 1
    world.return_disk(machine, lambda key: copied.ends.get(key, 0))
    for log_dir in machine.log_dirs:
        machine.platter.restore(Path(log_dir), copied.platter)


REWRITE_ACTS: Final[dict[str, Callable[[RewritingWorld, Random], Awaitable[None]]]] = {
    one.__name__: one
    for one in (
        keyed_topic,
        change_leader,
        fill_chain,
        order_erasure,
        cancel_erasure,
        slow_rewrite,
        kill_amid_rewrite,
        copy_disk,
        restore_old_disk,
    )
}
