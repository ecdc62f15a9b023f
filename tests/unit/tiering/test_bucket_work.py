"""Leaders of chains and orders to erase keys: when a chain has its turn, which runs are written anew, and
when the catalog is told that the bucket is clean."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import TopicIdPartition
from service.inspect.fsck import fsck
from service.records.batch import iter_headers, read_header
from service.records.builder import BatchBuilder
from service.records.decode import iter_records
from service.records.erasure import filter_hash, hash_key
from service.records.validation import ValidatedBatch
from service.remote.catalog import IN_BUCKET, Erasure, RewriteIntent, RewriteKind
from service.remote.format.cut_codec import Place
from service.remote.format.erase_codec import ErasedTopic, ErasureOrder, encode_erasure
from service.remote.format.manifest import ManifestLimits
from service.remote.format.segment_object import KEY_FILTER
from service.remote.opened_order import opened
from service.remote.order_end import OrderEnd
from service.remote.reading.object_reader import open_footer_of
from service.tiering.copier import CallProgress
from service.tiering.erasing.archive_progress import ArchiveWork, OrderWork
from service.tiering.erasing.bucket_work import BucketWork
from service.tiering.erasing.counting import count_in_chain, count_in_log
from service.tiering.erasing.erasure_rule import ErasureRule
from service.tiering.erasing.hits import look_at_object
from service.tiering.erasing.ports import RunWriter
from service.tiering.rewriting.rewriter import RewriteOutcome
from service.tiering.rewriting.rules import Rule
from service.wire.erasure_counts import END, Counted
from tests.unit.tiering.world import CLUSTER, Crash, Fault, Replica, World

SECRET = b"s" * 16
TOPIC = UUID(int=7)
ORDER = UUID(int=70)
GONE = b"gone"
END_OF_ALL = OrderEnd(1000)


def order_of(*keys: bytes, ends: tuple[int, ...] = (1000,), epochs: tuple[int, ...] = ()) -> ErasureOrder:
    hashes = sorted(hash_key(SECRET, key) for key in keys)
    filters = sorted(filter_hash(key).to_bytes(8) for key in keys)
    topics = (ErasedTopic(TOPIC, "events", ends, epochs),)
    return ErasureOrder(CLUSTER, ORDER, 5, -1, SECRET, b"".join(hashes), b"".join(filters), topics)


def append(world: World, replica: Replica, *keys: bytes | None) -> None:
    """A batch of records with these keys, and a segment of its own."""
    builder = BatchBuilder()
    for number, key in enumerate(keys):
        builder.add(world.clock.now_ms() + number, key, b"v" * 300)
    data = memoryview(builder.build())
    last = len(keys) - 1
    one = ValidatedBatch(data, read_header(data), world.clock.now_ms() + last, last, len(keys))
    replica.log.append(one, replica.leader_epoch, world.clock.now_ms())
    replica.produced += one.data


class Cluster:
    """Replicas of the only topic: those of the catalog."""

    def __init__(self, world: World) -> None:
        self.world = world

    def replicas(self, topic_id: UUID, /) -> list[tuple[int, ...]]:
        known = self.world.catalog.replicas
        return [
            known.get((topic_id, one.tip.partition), (1,))
            for one in self.world.replicas
            if one.tip.topic_id == topic_id
        ]

    def name_of(self, topic_id: UUID, /) -> str:
        return str(topic_id)

    def why_no_cuts(self) -> str:
        return ""

    def cuts_are_off(self) -> bool:
        return False

    def fenced_brokers(self) -> Collection[int]:
        return ()


class Held:
    """A worker that writes nothing anew, and the runs that it was asked for."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self.ends: list[OrderEnd] = []

    def running(self, topic_id: UUID, partition: int) -> UUID | None:
        return None

    async def rewrite(
        self, topic_id: UUID, partition: int, base_offset: int, last_offset: int, rule: Rule
    ) -> RewriteOutcome:
        assert isinstance(rule, ErasureRule)
        self.spans.append((base_offset, last_offset))
        self.ends.append(rule.end)
        return RewriteOutcome.BUSY


class Work:
    """The work of a node, by its own worker or one that is held."""

    def __init__(self, world: World, writer: RunWriter | None = None) -> None:
        self.world = world
        manager = world.manager
        self.work = BucketWork(
            manager.context, world.view, Cluster(world), manager.documents, manager.scheduler,
            writer or manager.rewriting.rewriter, lambda: 1 << 20,
        )  # fmt: skip

    def round(self) -> None:
        """Look at the orders once; the archivers do meanwhile what they are asked."""
        self.world.do(self._round())

    async def _round(self) -> None:
        work = asyncio.ensure_future(self.work.round())
        while not work.done():
            await asyncio.wait({work}, timeout=0.005)
            await self.world.manager.run_news()
        await work


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Six segments of two records; the third, fourth and sixth have a key that goes."""
    return archived(tmp_path)


def archived(tmp_path: Path, elected_at: int | None = None) -> World:
    """The world of `world`; from segment `elected_at` on its leader is in epoch 1."""
    world = World(tmp_path / "disk", limits=ManifestLimits(entries=8), segment_bytes=700)
    (replica,) = world.replicas
    segments = (
        (b"a", b"b"),
        (b"c", None),
        (GONE, b"d"),
        (b"e", GONE),
        (b"f", b"g"),
        (b"h", GONE),
        (b"i", b"j"),
    )
    for number, keys in enumerate(segments):
        if number == elected_at:
            world.fence(replica)
            world.elect(replica)
        append(world, replica, *keys)
    for _ in range(8):
        world.run()
    entry = world.entry(replica)
    assert entry is not None
    assert (entry.end_offset, entry.segments) == (12, 6)
    return world


def give(world: World, order: ErasureOrder) -> None:
    data = encode_erasure(order)
    world.bucket.put(order.key, data)
    world.catalog.orders[ORDER] = Erasure(
        ORDER, order.key, len(data), crc32c(data), order.keys, tuple(one.topic_id for one in order.topics), 5
    )


def tell(world: World, *brokers: int) -> None:
    for one in world.replicas:
        world.catalog.notes.setdefault(ORDER, {})[one.tip.topic_id, one.tip.partition] = frozenset(brokers)


def is_clean(world: World) -> bool:
    return IN_BUCKET in world.catalog.notes.get(ORDER, {}).get((TOPIC, 0), frozenset())


def keys_in_the_bucket(world: World) -> list[bytes | None]:
    """Keys of all records of the chain, in order."""
    found: list[bytes | None] = []
    for entry in world.live(world.replicas[0]):
        data = memoryview(bytes(world.bucket.get_range(entry.key, 0, entry.log_length)))
        for header in iter_headers(data):
            batch = data[header.position : header.position + header.size]
            found += [one.key if one.key is None else bytes(one.key) for one in iter_records(batch)]
    return found


def test_nothing_is_looked_at_before_all_replicas_have_told(world: World) -> None:
    world.catalog.replicas[TOPIC, 0] = (1, 2)
    give(world, order_of(GONE))
    tell(world, 1)
    held = Held()
    work = Work(world, held)
    work.round()
    assert (held.spans, is_clean(world)) == ([], False)
    tell(world, 1, 2)
    work.round()
    assert held.spans


def test_neighbours_with_a_hit_are_one_run(world: World) -> None:
    give(world, order_of(GONE))
    tell(world, 1)
    held = Held()
    work = Work(world, held)
    work.round()
    assert (held.spans, held.ends) == ([(4, 7)], [OrderEnd(1000)])
    assert work.work.problems == {(ORDER, (TOPIC, 0)): "objects from 4 to 7 are not written anew: busy"}
    assert not is_clean(world)


def test_objects_from_the_orders_end_on_are_not_touched(world: World) -> None:
    give(world, order_of(GONE, ends=(6,)))
    tell(world, 1)
    held = Held()
    Work(world, held).round()
    assert held.spans == [(4, 5)]


@pytest.mark.parametrize(
    ("elected_at", "left"),
    [
        (3, [b"a", b"b", b"c", None, b"d", b"e", GONE, b"f", b"g", b"h", GONE]),
        (5, [b"a", b"b", b"c", None, b"d", b"e", b"f", b"g", b"h", GONE]),
        (None, [b"a", b"b", b"c", None, b"d", b"e", b"f", b"g", b"h"]),
    ],
)
def test_records_of_a_later_epoch_than_the_orders_stay(
    tmp_path: Path, elected_at: int | None, left: list[bytes | None]
) -> None:
    """They were written after the order, where an unclean election has lost others."""
    world = archived(tmp_path, elected_at)
    given = order_of(GONE, epochs=(0,))
    give(world, given)
    tell(world, 1)
    Work(world).round()
    assert is_clean(world)
    assert keys_in_the_bucket(world) == left
    (replica,) = world.replicas
    part = count_in_chain(
        world.bucket, world.manager.context.chains, replica.tip, world.entry(replica), opened(given), 0,
        CallProgress(), reads_objects=True,
    )  # fmt: skip
    assert (part.counted.records, part.next_offset) == (0, END)
    runs, end = replica.log.runs.runs_from(0), opened(given).end(TOPIC, 0)
    found = count_in_log(runs, replica.log.log_end_offset, end, 0, opened(given), CallProgress())
    assert found.counted.records == 3 - left.count(GONE), "the log has what the archive had"


def test_an_object_with_records_of_two_epochs_loses_those_of_the_first(tmp_path: Path) -> None:
    world = World(tmp_path / "disk", limits=ManifestLimits(entries=8), segment_bytes=1_400)
    (replica,) = world.replicas
    append(world, replica, GONE, b"a")
    world.fence(replica)
    world.elect(replica)
    for keys in ((GONE, b"b"), (GONE, b"c"), (GONE, b"d"), (GONE, b"e")):
        append(world, replica, *keys)
    for _ in range(4):
        world.run()
    first = world.live(replica)[0]
    assert [epoch for epoch, _ in first.leader_epochs] == [0, 1]
    before = keys_in_the_bucket(world)
    give(world, order_of(GONE, epochs=(0,)))
    tell(world, 1)
    Work(world).round()
    assert keys_in_the_bucket(world) == before[1:]


def test_chains_are_written_anew_and_the_catalog_is_told(world: World) -> None:
    """Borders and end stay; records of other keys, and those without one, too."""
    (replica,) = world.replicas
    before = world.entry(replica)
    assert before is not None
    give(world, order_of(GONE))
    tell(world, 1)
    work = Work(world)
    work.round()
    assert work.work.problems == {}
    assert is_clean(world)
    after = world.entry(replica)
    assert after is not None
    assert (after.start_offset, after.end_offset) == (before.start_offset, before.end_offset)
    assert keys_in_the_bucket(world) == [b"a", b"b", b"c", None, b"d", b"e", b"f", b"g", b"h"]
    spans = [(one.base_offset, one.last_offset, one.generation) for one in world.live(replica)]
    assert spans == [(0, 1, 0), (2, 3, 0), (4, 7, 1), (8, 9, 0), (10, 11, 1)]


def test_a_chain_of_which_nothing_stays_is_there_still(tmp_path: Path) -> None:
    world = World(tmp_path / "disk", limits=ManifestLimits(entries=2), segment_bytes=700)
    (replica,) = world.replicas
    for _ in range(7):
        append(world, replica, GONE, GONE)
    for _ in range(9):
        world.run()
    give(world, order_of(GONE))
    tell(world, 1)
    Work(world).round()
    assert is_clean(world)
    assert keys_in_the_bucket(world) == []
    spans = [(one.base_offset, one.last_offset) for one in world.live(replica)]
    assert spans == [(0, 3), (4, 7), (8, 11)], "runs lie within one page"


def test_another_process_goes_on_where_one_has_died(world: World) -> None:
    give(world, order_of(GONE))
    tell(world, 1)
    world.store.decide = lambda operation, key: (
        Fault.CRASH_BEFORE if operation == "put" and key.endswith("/HEAD") else Fault.PASS
    )
    with suppress(Crash, BaseExceptionGroup):
        Work(world).round()
    world.store.decide = lambda operation, key: Fault.PASS
    world.reboot()
    for _ in range(3):
        world.run()
    Work(world).round()
    assert is_clean(world)
    assert keys_in_the_bucket(world) == [b"a", b"b", b"c", None, b"d", b"e", b"f", b"g", b"h"]


def test_a_chain_without_a_hit_is_told_and_not_looked_at_again(world: World) -> None:
    give(world, order_of(b"nobody"))
    tell(world, 1)
    work = Work(world)
    work.round()
    assert is_clean(world)
    asked: list[str] = []
    world.store.decide = lambda operation, key: asked.append(key) or Fault.PASS  # type: ignore[func-returns-value]
    work.round()
    assert asked == []


def test_a_partition_without_an_archive_is_told_at_once(tmp_path: Path) -> None:
    world = World(tmp_path / "disk")
    world.run()
    give(world, order_of(GONE))
    tell(world, 1)
    Work(world).round()
    assert is_clean(world)


def test_a_store_that_fails_is_asked_again(world: World) -> None:
    give(world, order_of(b"nobody"))
    tell(world, 1)
    work = Work(world)
    world.store.decide = lambda operation, key: Fault.FAIL if key.endswith(".seg") else Fault.PASS
    work.round()
    assert not is_clean(world)
    assert "refused" in work.work.problems[ORDER, (TOPIC, 0)]
    world.store.decide = lambda operation, key: Fault.PASS
    work.round()
    assert is_clean(world)
    assert work.work.problems == {}


def test_an_object_is_read_up_to_its_first_hit_or_counted(world: World) -> None:
    entries = world.live(world.replicas[0])
    order = opened(order_of(GONE, b"e"))
    assert [look_at_object(world.bucket, one, order, END_OF_ALL, CallProgress()).hits for one in entries] == [
        0, 0, 1, 2, 0, 1,
    ]  # fmt: skip
    early = look_at_object(world.bucket, entries[3], order, OrderEnd(7), CallProgress())
    assert early.hits == 1, "the record at offset 7 is not below the order's end"


def test_an_object_with_a_damaged_filter_is_read(world: World) -> None:
    """Whichever bit of the filter is wrong: the records say whether they are to go."""
    entries, order = world.live(world.replicas[0]), opened(order_of(GONE))
    for entry, hits in ((entries[0], 0), (entries[2], 1)):
        section = open_footer_of(world.bucket, entry).sections[KEY_FILTER]
        data = bytearray(world.bucket.get(entry.key, max_size=1 << 20))
        for position in range(section.position, section.end):
            damaged = bytearray(data)
            damaged[position] ^= 1 << position % 8
            world.bucket.put(entry.key, bytes(damaged))
            look = look_at_object(world.bucket, entry, order, END_OF_ALL, CallProgress())
            assert (look.hits, look.is_read) == (hits, True)


def test_parts_of_a_count_add_up(world: World) -> None:
    (replica,) = world.replicas
    order = opened(order_of(GONE))
    part = count_in_chain(
        world.bucket, world.manager.context.chains, replica.tip, world.entry(replica), order, 0,
        CallProgress(), reads_objects=True,
    )  # fmt: skip
    assert part.next_offset == END
    assert part.counted[:1] == (6,)
    assert (part.counted.hit_objects, part.counted.records) == (3, 3)
    runs = replica.log.runs.runs_from(0)
    found = count_in_log(runs, replica.log.log_end_offset, END_OF_ALL, 0, order, CallProgress())
    assert (found.next_offset, found.counted.records, found.counted.objects) == (END, 3, 7)
    assert Counted(1, 2).plus(Counted(3, 4)) == Counted(4, 6)


def test_a_topic_of_another_order_is_left_alone(world: World) -> None:
    other = world.add(TopicIdPartition(UUID(int=8), "other", 0))
    append(world, other, GONE)
    give(world, order_of(b"nobody"))
    tell(world, 1)
    world.catalog.notes[ORDER].pop((UUID(int=8), 0), None)
    Work(world).round()
    assert world.catalog.notes[ORDER].keys() == {(TOPIC, 0)}


@pytest.mark.parametrize("end", [1000, 3], ids=["behind it", "where the log begins"])
@pytest.mark.parametrize("entries", [8, 2], ids=["manifest", "page"])
def test_an_object_in_which_the_log_begins_is_written_anew(tmp_path: Path, entries: int, end: int) -> None:
    """DeleteRecords moves the start to within an object, whose bytes are all there. Its borders stay."""
    world = World(tmp_path / "disk", limits=ManifestLimits(entries=entries), segment_bytes=700)
    (replica,) = world.replicas
    for keys in ((GONE, b"a"), (GONE, b"b"), (b"c", b"d"), (b"e", b"f"), (b"g", b"h"), (b"i", b"j")):
        append(world, replica, *keys)
    for _ in range(8):
        world.run()
    replica.log.deletion.advance_log_start(3)
    for _ in range(3):
        world.run()
    before = world.entry(replica)
    assert before is not None
    assert before.start_offset == 3
    assert world.live(replica)[0].base_offset == 2, "else this test shows nothing"
    give(world, order_of(GONE, ends=(end,)))
    tell(world, 1)
    work = Work(world)
    work.round()
    assert work.work.problems == {}
    assert is_clean(world)
    after = world.entry(replica)
    assert after is not None
    assert (after.start_offset, after.end_offset) == (before.start_offset, before.end_offset)
    first = world.live(replica)[0]
    assert (first.base_offset, first.last_offset, first.generation) == (2, 3, 1)
    assert keys_in_the_bucket(world) == [b"b", b"c", b"d", b"e", b"f", b"g", b"h"]
    assert fsck(world.bucket, deep=True).errors == []


def test_progress_is_told_in_objects_and_bytes(world: World) -> None:
    (replica,) = world.replicas
    size = sum(one.size for one in world.live(replica))
    world.catalog.replicas[TOPIC, 0] = (1, 2)
    give(world, order_of(GONE))
    tell(world, 1)
    work = Work(world)
    work.round()
    assert work.work.work[ORDER].total == ArchiveWork(objects=6, size=size)
    tell(world, 1, 2)
    seen: list[tuple[int, int, int]] = []
    note = OrderWork.note

    def noted(self: OrderWork, place: Place, one: ArchiveWork) -> None:
        note(self, place, one)
        seen.append((self.total.left, self.total.looked, self.total.rewritten))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OrderWork, "note", noted)
        work.round()
    done = work.work.work[ORDER].total
    assert (done.left, done.looked, done.rewritten, done.left_size) == (0, 5, 3, 0)
    assert seen[0] == (6, 0, 0)
    assert [one for _, one, _ in seen[:4]] == [0, 4, 4, 6]
    assert world.manager.metrics.all_archive_work() == done
    world.catalog.orders[ORDER] = world.catalog.orders[ORDER]._replace(done_ms=7)
    work.round()
    assert work.work.work == {}, "an order that is done has nothing left here"


def test_a_partition_that_a_worker_elsewhere_rewrites_is_not_read(world: World) -> None:
    (replica,) = world.replicas
    give(world, order_of(GONE))
    tell(world, 1)
    intent = RewriteIntent(UUID(int=5), 4, 7, RewriteKind.ERASE, replica.leader_epoch, 1)
    world.catalog.intents[TOPIC, 0] = intent
    work = Work(world)
    asked: list[str] = []
    world.store.decide = lambda operation, key: asked.append(key) or Fault.PASS  # type: ignore[func-returns-value]
    work.round()
    assert [one for one in asked if one.endswith(".seg")] == []
    assert work.work.problems == {(ORDER, (TOPIC, 0)): "a worker elsewhere erases objects from 4 to 7"}
    del world.catalog.intents[TOPIC, 0]
    work.round()
    assert is_clean(world)


class Damaging:
    """A worker that cannot write a run anew that has a damaged object."""

    def __init__(self, inner: RunWriter, damaged: int) -> None:
        self.inner = inner
        self.damaged = damaged
        self.spans: list[tuple[int, int]] = []

    def running(self, topic_id: UUID, partition: int) -> UUID | None:
        return None

    async def rewrite(
        self, topic_id: UUID, partition: int, base_offset: int, last_offset: int, rule: Rule
    ) -> RewriteOutcome:
        self.spans.append((base_offset, last_offset))
        if base_offset <= self.damaged <= last_offset:
            raise CorruptionError("block at 0: wrong checksum")
        return await self.inner.rewrite(topic_id, partition, base_offset, last_offset, rule)


def test_an_object_that_cannot_be_read_holds_up_none_behind_it(world: World) -> None:
    damaged = world.live(world.replicas[0])[2].key
    give(world, order_of(GONE))
    tell(world, 1)
    work = Work(world)
    world.store.decide = lambda operation, key: Fault.REFUSE if key == damaged else Fault.PASS
    work.round()
    world.store.decide = lambda operation, key: Fault.PASS
    spans = [(one.base_offset, one.generation) for one in world.live(world.replicas[0])]
    assert spans == [(0, 0), (2, 0), (4, 0), (6, 1), (8, 0), (10, 1)]
    assert "the store said no" in work.work.problems[ORDER, (TOPIC, 0)]
    assert not is_clean(world)
    work.round()
    assert is_clean(world)


def test_an_object_that_cannot_be_written_anew_holds_up_none_beside_it(world: World) -> None:
    give(world, order_of(GONE))
    tell(world, 1)
    writer = Damaging(world.manager.rewriting.rewriter, 4)
    work = Work(world, writer)
    work.round()
    assert writer.spans[:4] == [(4, 7), (4, 5), (6, 7), (10, 11)]
    assert keys_in_the_bucket(world) == [b"a", b"b", b"c", None, GONE, b"d", b"e", b"f", b"g", b"h"]
    assert work.work.problems[ORDER, (TOPIC, 0)] == (
        "objects from 4 to 5 are not written anew: block at 0: wrong checksum"
    )
    assert not is_clean(world)


@pytest.mark.parametrize("off", ["given up", "kept"])
def test_an_archive_that_is_switched_off_ends_an_order(world: World, off: str) -> None:
    """Given up, all of its objects go; kept, they are written anew as ever."""
    (replica,) = world.replicas
    give(world, order_of(GONE))
    tell(world, 1)
    if off == "given up":
        replica.switch(on=False)
        world.catalog.off.add(TOPIC)
    else:
        replica.log.config = replace(replica.log.config, remote_log_copy_disable=True)
    world.manager.scheduler.wake()
    for _ in range(4):
        world.run()
    work = Work(world)
    for _ in range(3):
        work.round()
    assert work.work.problems == {}
    assert is_clean(world)
    if off == "kept":
        assert GONE not in keys_in_the_bucket(world)


def test_partitions_that_were_added_and_topics_that_are_gone_end_an_order(world: World) -> None:
    added = world.add(TopicIdPartition(TOPIC, "events", 1))
    append(world, added, GONE, GONE)
    append(world, added, b"a", b"b")
    for _ in range(3):
        world.run()
    give(world, order_of(GONE))
    tell(world, 1)
    work = Work(world)
    work.round()
    notes = world.catalog.notes[ORDER]
    assert notes[TOPIC, 0] == notes[TOPIC, 1] == frozenset({1, IN_BUCKET})
    assert work.work.work[ORDER].total.rewritten == 3, "nothing of it is older than the order"
    world.replicas.clear()
    work.round()
    assert work.work.work[ORDER].total == ArchiveWork(), "nobody leads it here"
