"""Orders to erase keys come back with every restore, whatever cut it is from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from service.base.errors import ConfigError
from service.base.threads import SystemThreads
from service.inspect.clone import CloneOrder, clone
from service.inspect.object_copies import through_here
from service.inspect.restore_plan import RestorePlan
from service.inspect.restore_records import Placement
from service.inspect.restore_source import CutChoice, RestoreSource, read_source
from service.inspect.take_over import Restored, TakeOverOrder, take_over
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.remote.catalog import Erasure
from service.remote.format.cut_codec import Cuts, ErasureRef, decode_cuts, encode_cuts
from service.remote.format.erase_codec import ErasedTopic, ErasureOrder, encode_erasure
from service.remote.format.keys import CUT_NAME
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.read_only_store import ReadOnlyStore
from service.remote.stores.store import ObjectStore
from tests.support.world import make_world
from tests.unit.inspect.cuts import EVENTS, TIERED, Cutting, damage, internal_log
from tests.unit.tiering.world import CLUSTER, Fault, FaultyStore, World

HEIR = "heir-of-the-tests-0002"
ORDER, OTHER = UUID(int=41), UUID(int=42)


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two cuts, and an order that was given after both of them."""
    world = World(tmp_path / "disk", partitions=1)
    world.topic_configs = {"events": TIERED}
    world.fill(2)
    world.run()
    cutting = Cutting(world, internal=internal_log())
    for _ in range(2):
        cutting.cut({one: one.log.log_end_offset for one in world.replicas})
    kept = decode_cuts(world.bucket.get(CUT_NAME, max_size=1 << 16)).kept
    refs = (written(world, order_of(ORDER)), written(world, order_of(OTHER, topic=UUID(int=99))))
    world.bucket.put(CUT_NAME, encode_cuts(Cuts(CLUSTER, kept, refs)))
    return world


def order_of(
    order_id: UUID, *, topic: UUID = EVENTS, cluster_id: str = CLUSTER, end: int = 7
) -> ErasureOrder:
    topics = (ErasedTopic(topic, "events", (end,)),)
    return ErasureOrder(cluster_id, order_id, 5, -1, b"s" * 16, b"h" * 16, b"f" * 8, topics)


def written(world: World, order: ErasureOrder) -> ErasureRef:
    data = encode_erasure(order)
    world.bucket.put(order.key, data)
    return ErasureRef(order.id, order.key, len(data), crc32c(data))


def restore(
    world: World,
    pool: Executor,
    choice: CutChoice = CutChoice(),  # noqa: B008
    check: Callable[[RestoreSource, RestorePlan], None] = lambda source, plan: None,
) -> Restored:
    return take_over(
        world.bucket,
        TakeOverOrder(choice, HEIR, gap=10, quiet_ms=0, is_forced=True),
        make_world(world.clock, seed=9),
        pool,
        lambda words: None,
        check,
    )


def give(world: World, *orders: ErasureOrder) -> None:
    """Have `CUT` list these orders."""
    cuts = decode_cuts(world.bucket.get(CUT_NAME, max_size=1 << 16))
    refs = tuple(written(world, one) for one in orders)
    world.bucket.put(CUT_NAME, encode_cuts(cuts._replace(erasures=refs)))


def orders_in(restored: Restored, *, is_clone: bool = False) -> list[Erasure]:
    records = restored.first_records(Placement((4, 5, 6)), is_clone=is_clone)
    image = MetadataDelta(MetadataImage()).replay_all(records).build(1, 1, 1)
    return list(image.erasures.values())


def listed(store: ObjectStore) -> list[UUID]:
    return [one.id for one in decode_cuts(store.get(CUT_NAME, max_size=1 << 16)).erasures]


@pytest.mark.parametrize("cut", [1, 2])
def test_the_first_records_have_an_order_that_is_later_than_the_cut(
    world: World, pool: Executor, cut: int
) -> None:
    (erasure,) = orders_in(restore(world, pool, CutChoice(number=cut)))
    assert (erasure.id, erasure.topics, erasure.keys) == (ORDER, (EVENTS,), 1)
    assert (erasure.is_open, erasure.is_restored) == (True, True)
    assert len(world.bucket.get(erasure.key, max_size=1 << 16)) == erasure.stored_size


def test_the_heirs_cut_lists_all_orders(world: World, pool: Executor) -> None:
    """A restore of the heir needs them, too; one whose topics are gone goes later."""
    restore(world, pool)
    assert listed(world.bucket) == [ORDER, OTHER]


def test_a_restore_that_goes_on_has_them_as_well(world: World, pool: Executor) -> None:
    restore(world, pool)
    assert [one.id for one in orders_in(restore(world, pool))] == [ORDER]


@pytest.mark.parametrize("cut", [1, 2])
def test_an_heir_goes_on_behind_the_ends_of_orders(world: World, pool: Executor, cut: int) -> None:
    """The source has given out the offsets below them: the heir would erase its own records under these."""
    (replica,) = world.replicas
    end = replica.log.log_end_offset
    give(world, order_of(ORDER, end=end + 5_000), order_of(OTHER, end=end + 70))
    plan = restore(world, pool, CutChoice(number=cut)).plan
    assert plan.partitions[EVENTS, 0].go_on == end + 5_000 + 10
    assert plan.partitions[EVENTS, 0].end == end


def test_an_end_that_no_log_can_have_reached_does_not_count(world: World, pool: Executor) -> None:
    end = world.replicas[0].log.log_end_offset
    give(world, order_of(ORDER, end=(1 << 53) - 1))
    assert restore(world, pool).plan.partitions[EVENTS, 0].go_on == end + (1 << 31) + 10


def test_an_order_that_is_taken_while_the_prefix_is_taken_over_comes_along(
    world: World, pool: Executor
) -> None:
    """The source lives, and the take-over is forced: it may have answered until it was displaced."""
    late, end = UUID(int=43), world.replicas[0].log.log_end_offset

    def taken(source: RestoreSource, plan: RestorePlan) -> None:
        give(world, order_of(ORDER), order_of(late, end=end + 900))

    restored = restore(world, pool, check=taken)
    assert {one.id for one in orders_in(restored)} == {ORDER, late}
    assert listed(world.bucket) == [ORDER, late]
    assert restored.plan.partitions[EVENTS, 0].go_on == end + 900 + 10


def test_an_order_that_goes_while_the_bucket_is_listed_stops_nothing(world: World, pool: Executor) -> None:
    """`CUT` cannot be read, so the orders are those whose documents are there."""
    world.bucket.put(CUT_NAME, b"{}")
    store = FaultyStore(world.bucket)

    def decide(operation: str, key: str) -> Fault:
        if operation == "get" and key == order_of(OTHER).key:
            world.bucket.delete([key])
        return Fault.PASS

    store.decide = decide
    source, _ = read_source(store, CutChoice(), pool)
    assert [one.id for one in source.orders] == [ORDER]


def test_cuts_that_the_source_gives_up_meanwhile_are_not_kept(world: World, pool: Executor) -> None:
    """An order may have ended: these have its keys."""
    cuts = decode_cuts(world.bucket.get(CUT_NAME, max_size=1 << 16))

    def given_up(source: RestoreSource, plan: RestorePlan) -> None:
        world.bucket.put(CUT_NAME, encode_cuts(cuts._replace(kept=cuts.kept[1:])))

    restore(world, pool, check=given_up)
    assert [one.cut for one in decode_cuts(world.bucket.get(CUT_NAME, max_size=1 << 16)).kept] == [2]


def cloned(
    world: World,
    pool: Executor,
    target: MemoryStore,
    check: Callable[[RestoreSource, RestorePlan], None] = lambda source, plan: None,
) -> Restored:
    source = ReadOnlyStore(world.bucket)
    with through_here(source, target, SystemThreads(), print) as copy:
        return clone(
            source,
            target,
            copy,
            CloneOrder(CutChoice(), HEIR, gap=10),
            make_world(world.clock, seed=9),
            pool,
            lambda words: None,
            check,
        )


def test_an_order_that_is_taken_while_a_clone_is_made_is_not_forgotten(world: World, pool: Executor) -> None:
    target, late = MemoryStore(SystemThreads()), UUID(int=43)

    def taken(source: RestoreSource, plan: RestorePlan) -> None:
        give(world, order_of(ORDER), order_of(late))

    with pytest.raises(ConfigError, match="the same command goes on") as caught:
        cloned(world, pool, target, taken)
    assert str(late) in str(caught.value)
    with pytest.raises(ObjectNotFound):
        target.get(CUT_NAME, max_size=1 << 16)
    restored = cloned(world, pool, target)
    assert {one.id for one in orders_in(restored, is_clone=True)} == {ORDER, late}
    assert listed(target) == [ORDER, late]


def test_a_clone_has_their_objects(world: World, pool: Executor) -> None:
    target = MemoryStore(SystemThreads())
    restored = cloned(world, pool, target)
    (erasure,) = orders_in(restored, is_clone=True)
    assert erasure.id == ORDER
    assert len(target.get(erasure.key, max_size=1 << 16)) == erasure.stored_size
    assert listed(target) == [ORDER, OTHER]


def test_all_orders_in_the_bucket_count_if_cut_cannot_be_read(world: World, pool: Executor) -> None:
    damage(world, CUT_NAME)
    assert [one.id for one in read_source(world.bucket, CutChoice(), pool)[0].orders] == [ORDER, OTHER]


def test_an_order_that_cannot_be_read_stops_a_restore(world: World, pool: Executor) -> None:
    damage(world, order_of(ORDER).key)
    with pytest.raises(ConfigError, match="a restore without it would bring them back"):
        read_source(world.bucket, CutChoice(), pool)


def test_an_order_of_another_cluster_stops_a_restore(world: World, pool: Executor) -> None:
    cuts = decode_cuts(world.bucket.get(CUT_NAME, max_size=1 << 16))
    ref = written(world, order_of(ORDER, cluster_id="another"))
    world.bucket.put(CUT_NAME, encode_cuts(cuts._replace(erasures=(ref,))))
    with pytest.raises(ConfigError, match="another"):
        read_source(world.bucket, CutChoice(), pool)
