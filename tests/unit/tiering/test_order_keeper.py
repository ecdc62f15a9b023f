"""Orders to erase keys (T26) as the prefix's keeper keeps them: when `CUT` lists them, which cuts
go, when they are done and when they are gone, whatever fails in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.base.errors import RequestError, StorageError
from service.remote.catalog import IN_BUCKET, CatalogEntry, ErasedPlace, Erasure
from service.remote.format.cut_codec import MAX_ERASURES
from service.remote.format.erase_codec import ErasedTopic, ErasureOrder
from service.remote.format.keys import ERASE_PREFIX, TAIL_PREFIX, SegmentKey, TailKey, segment_key, tail_key
from service.remote.reading.erasure_orders import open_order
from service.tiering.erasing import order_keeper
from service.tiering.erasing.order_keeper import OrderKeeper
from service.tiering.erasing.order_metrics import OrderStanding
from service.tiering.erasing.order_progress import PlacesLeft
from tests.unit.tiering.cut_world import GRACE_MS, OTHER, TOPIC, CutWorld, Log
from tests.unit.tiering.world import CLUSTER, Fault

ORDER = UUID(int=500)


@pytest.fixture
def world(tmp_path: Path) -> CutWorld:
    return with_two_topics(tmp_path)


def with_two_topics(tmp_path: Path) -> CutWorld:
    """A keeper of three brokers with the partitions of two topics, each with a replica on two of them."""
    world = CutWorld(tmp_path)
    world.logs = {(TOPIC, 0): Log(1, 5), (TOPIC, 1): Log(2, 7), (OTHER, 0): Log(3, 2)}
    for (topic_id, partition), log in world.logs.items():
        world.catalog.leader_epochs[topic_id, partition] = log.epoch
        world.catalog.replicas[topic_id, partition] = (1, 2)
    world.begin()
    return world


def orders(world: CutWorld) -> OrderKeeper:
    assert world.manager.orders is not None
    return world.manager.orders


def standing(world: CutWorld) -> OrderStanding:
    """What the keeper tells of the order."""
    return world.manager.metrics.orders[ORDER]


def order_of(number: int = ORDER.int, topic: UUID = TOPIC) -> ErasureOrder:
    topics = (ErasedTopic(topic, "events", (5, 7)),)
    return ErasureOrder(CLUSTER, UUID(int=number), 9, -1, b"s" * 16, b"h" * 16, b"f" * 8, topics)


def start(world: CutWorld, order: ErasureOrder | None = None) -> Erasure:
    """Give an order; the keeper writes `CUT` meanwhile, as its own task does."""
    return world.do(started(world, order or order_of()))


async def started(world: CutWorld, order: ErasureOrder) -> Erasure:
    return await kept_meanwhile(world, orders(world).start(order))


def cancel(world: CutWorld) -> Erasure:
    """Cancel the order; the keeper writes `CUT` meanwhile."""
    return world.do(kept_meanwhile(world, orders(world).cancel(ORDER)))


async def kept_meanwhile(world: CutWorld, work: Coroutine[Any, Any, Erasure]) -> Erasure:
    asked = asyncio.ensure_future(work)
    while not asked.done():
        await asyncio.wait({asked}, timeout=0.005)
        if orders(world).is_pressed:
            await keep(world)
    return await asked


async def keep(world: CutWorld) -> None:
    assert world.manager.cuts is not None
    await world.manager.cuts.keep_orders()


def tell(world: CutWorld, broker_id: int) -> None:
    """All partitions of the topic are clean at a broker, or in the bucket."""
    world.catalog.notes.setdefault(ORDER, {})
    for place, log in world.logs.items():
        if place[0] == TOPIC:
            world.do(
                world.view.note_erased(ORDER, [ErasedPlace(*place, log.epoch)], broker_id)
                if broker_id != IN_BUCKET
                else _noted(world, ErasedPlace(*place, log.epoch))
            )


async def _noted(world: CutWorld, place: ErasedPlace) -> None:
    known = world.catalog.notes.setdefault(ORDER, {})
    known[place[:2]] = known.get(place[:2], frozenset()) | {IN_BUCKET}


def listed(world: CutWorld) -> list[UUID]:
    cuts = world.cuts_there()
    return [] if cuts is None else [one.id for one in cuts.erasures]


def save_anew(world: CutWorld) -> None:
    """All brokers save everything once more, as they do after an erasure."""
    for log in world.logs.values():
        log.saved = log.named = 0
    world.cluster.metadata_end += 1


def erased_everywhere(world: CutWorld) -> None:
    """An order that is done."""
    world.round()
    start(world)
    for broker_id in (1, 2, IN_BUCKET):
        tell(world, broker_id)
    for _ in range(4):
        save_anew(world)
        world.round()


def test_cut_lists_an_order_before_the_metadata_has_it(world: CutWorld) -> None:
    world.round()
    seen: list[bool] = []
    before = world.catalog.decide_start

    def note(erasure: Erasure) -> None:
        seen.append(listed(world) == [erasure.id])
        before(erasure)

    world.catalog.decide_start = note  # type: ignore[method-assign, assignment]
    erasure = start(world)
    assert seen == [True]
    assert world.catalog.orders == {ORDER: erasure}
    assert (erasure.keys, erasure.topics, erasure.is_open) == (1, (TOPIC,), True)
    assert open_order(world.bucket, erasure).hashes == b"h" * 16


def test_without_any_cut_an_order_is_taken_and_the_first_cut_lists_it(world: CutWorld) -> None:
    assert start(world).id == ORDER
    assert listed(world) == []
    world.round()
    assert listed(world) == [ORDER]


def test_the_same_order_again_changes_nothing(world: CutWorld) -> None:
    world.round()
    erasure = start(world)
    assert start(world) == erasure
    assert world.keys(ERASE_PREFIX) == [erasure.key]


def test_another_order_under_the_same_id_is_refused(world: CutWorld) -> None:
    world.round()
    world.store.decide = lambda operation, key: Fault.LIE if key.startswith("erase/") else Fault.PASS
    with pytest.raises(StorageError):
        start(world)
    world.store.decide = lambda operation, key: Fault.PASS
    with pytest.raises(RequestError, match="another order"):
        start(world, order_of()._replace(hashes=b"x" * 16))
    assert world.catalog.orders == {}
    assert start(world).id == ORDER, "the first one can be given again"


def test_more_orders_than_cut_can_list_are_refused(world: CutWorld) -> None:
    world.round()
    for number in range(MAX_ERASURES):
        start(world, order_of(600 + number))
    with pytest.raises(RequestError, match="orders are open"):
        start(world, order_of(700))


def test_many_starts_at_once_are_no_more_than_cut_can_list(world: CutWorld) -> None:
    world.round()

    async def all_at_once() -> list[Erasure | BaseException]:
        topics = order_of().topics
        asked = [started(world, order_of(600 + number)._replace(topics=topics)) for number in range(70)]
        return await asyncio.gather(*asked, return_exceptions=True)

    outcomes = world.do(all_at_once())
    refused = [one for one in outcomes if isinstance(one, RequestError)]
    assert (len(refused), len(outcomes)) == (6, 70)
    assert len(listed(world)) == MAX_ERASURES


def test_a_start_does_not_wait_for_ever(world: CutWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_keeper, "_PATIENT_S", 0.01)
    world.round()
    with pytest.raises(StorageError, match="CUT was not written within"):
        world.do(orders(world).start(order_of()))
    assert world.catalog.orders == {}


def test_an_order_whose_document_cannot_be_read_holds_up_no_other_and_can_be_cancelled(
    world: CutWorld,
) -> None:
    world.round()
    erasure = start(world)
    second = UUID(int=501)
    start(world, order_of(second.int))
    world.manager = world._boot()
    world.begin()
    world.store.decide = lambda what, key: Fault.FAIL if key == erasure.key else Fault.PASS
    world.round()
    assert "refused" in standing(world).why
    assert world.manager.metrics.orders[second].why == "4 replicas have not erased yet"
    world.store.decide = lambda what, key: Fault.PASS
    world.bucket.delete([erasure.key])
    world.round()
    assert "no such object" in standing(world).why
    cancel(world)
    assert [*world.catalog.orders] == [second]


def test_an_order_waits_for_each_replica_then_for_archives(world: CutWorld) -> None:
    world.round()
    start(world)
    tell(world, 1)
    world.round()
    left = standing(world).left
    assert (left.replicas, left.chains, left.all_replicas, left.all_chains) == (2, 2, 4, 2)
    assert {(one.partition, one.broker_id) for one in left.named} == {(0, 2), (1, 2)}
    tell(world, 2)
    world.round()
    left = standing(world).left
    assert (left.replicas, left.chains) == (0, 2)
    assert {one.broker_id for one in left.named} == {IN_BUCKET}
    assert world.catalog.orders[ORDER].is_open


def test_cuts_with_tails_of_before_are_given_up_once_a_later_one_has_none(world: CutWorld) -> None:
    world.round()
    world.logs[TOPIC, 0].end += 1
    world.round()
    start(world)
    for broker_id in (1, 2):
        tell(world, broker_id)
    world.round()
    tell(world, IN_BUCKET)
    before = world.numbers()
    assert before[0] == 1
    for _ in range(2):
        world.round()  # an idle cluster takes cuts nevertheless, while an order waits for them
    assert world.numbers()[-1] > before[-1]
    assert world.catalog.orders[ORDER].is_open, "these still name the tails of before"
    assert world.numbers()[0] == 1
    for _ in range(2):
        save_anew(world)
        world.round()
    world.round()
    assert not world.catalog.orders[ORDER].is_open
    assert world.numbers()[0] > before[-1]
    assert listed(world) == [ORDER], "a restore carries it out until it is gone"
    world.check_kept()


def test_an_order_is_not_done_while_a_broker_is_away(world: CutWorld) -> None:
    """It may have files of a former replica, and be assigned one again."""
    world.cluster.fenced = {7}
    erased_everywhere(world)
    assert world.catalog.orders[ORDER].is_open
    assert "brokers 7 are away" in standing(world).why
    world.cluster.fenced = set()
    world.round()
    assert not world.catalog.orders[ORDER].is_open


def test_a_partition_that_was_added_since_counts_too(world: CutWorld) -> None:
    world.logs[TOPIC, 2] = Log(1, 0)
    world.catalog.leader_epochs[TOPIC, 2] = 3
    world.catalog.replicas[TOPIC, 2] = (3,)
    erased_everywhere(world)
    assert world.catalog.orders[ORDER].is_open
    assert standing(world).left.replicas == 1


def test_a_new_keeper_finds_out_anew_and_ends_it(world: CutWorld) -> None:
    world.round()
    start(world)
    for broker_id in (1, 2, IN_BUCKET):
        tell(world, broker_id)
    world.round()
    world.manager = world._boot()
    world.begin()
    for _ in range(4):
        save_anew(world)
        world.round()
    assert not world.catalog.orders[ORDER].is_open
    assert listed(world) == [ORDER]


def sweep_twice(world: CutWorld) -> None:
    """What no cut names is deleted a grace after it was found."""
    for _ in range(2):
        world.do(world.manager.sweep())
        world.clock.advance(GRACE_MS + 1)


def gone(world: CutWorld) -> None:
    world.clock.advance(GRACE_MS + 1)
    world.round()
    world.round()


def test_a_grace_later_nothing_of_the_order_is_left(world: CutWorld) -> None:
    erased_everywhere(world)
    key = world.catalog.orders[ORDER].key
    world.round()
    assert world.keys(ERASE_PREFIX) == [key]
    sweep_twice(world)
    gone(world)
    assert world.catalog.orders == {}
    assert listed(world) == []
    assert world.keys(ERASE_PREFIX) == []


def test_an_object_that_was_dropped_and_is_still_there_keeps_the_order(world: CutWorld) -> None:
    erased_everywhere(world)
    sweep_twice(world)
    dropped = segment_key(SegmentKey(TOPIC, 0, 0, 3, 2, UUID(int=3)))
    world.bucket.put(dropped, b"records")
    world.catalog.orders[ORDER] = world.catalog.orders[ORDER]._replace(done_ms=world.clock.now_ms())
    gone(world)
    assert ORDER in world.catalog.orders
    assert dropped in standing(world).why
    world.bucket.delete([dropped])
    sweep_twice(world)
    gone(world)
    assert world.catalog.orders == {}


def test_tails_of_cuts_that_were_given_up_are_passed_where_nothing_changes(world: CutWorld) -> None:
    """After a restore from an earlier cut, cuts have the numbers again of those that were given up."""
    erased_everywhere(world)
    sweep_twice(world)
    cuts = world.cuts_there()
    assert cuts is not None
    given_up = [tail_key(TailKey(cuts.newest.cut + more, 0, 1, UUID(int=more + 1))) for more in (0, 2)]
    for key in given_up:
        world.bucket.put(key, b"records")
    world.catalog.orders[ORDER] = world.catalog.orders[ORDER]._replace(done_ms=world.clock.now_ms())
    gone(world)
    assert ORDER in world.catalog.orders
    assert given_up[0] in standing(world).why
    for _ in range(4):
        world.round()
    passed = world.cuts_there()
    assert passed is not None
    assert passed.newest.cut == cuts.newest.cut + 3, "no more cuts than it takes"
    sweep_twice(world)
    gone(world)
    assert world.catalog.orders == {}
    assert not set(given_up) & set(world.keys(TAIL_PREFIX))


def test_the_partitions_of_an_order_are_looked_up_in_slices(
    world: CutWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    erased_everywhere(world)
    orders(world)._known[ORDER].ends = {TOPIC: ErasedTopic(TOPIC, "events", (5,) * 30_000)}
    entry, turns, ticks = world.view.entry, Counter[int](), [0]

    def noted(topic_id: UUID, partition: int) -> CatalogEntry | None:
        if not turns[ticks[0]]:
            asyncio.get_running_loop().call_soon(lambda: ticks.append(ticks.pop() + 1))
        turns[ticks[0]] += 1
        return entry(topic_id, partition)

    monkeypatch.setattr(world.view, "entry", noted)
    gone(world)
    assert turns.total() >= 30_000, "else this test shows nothing"
    assert max(turns.values()) < 30_000


def finish(world: CutWorld) -> None:
    """Let everything that was dropped since be deleted, and the order be looked at again."""
    for _ in range(2):
        sweep_twice(world)
        gone(world)


@pytest.mark.parametrize("operation", ["put", "delete"])
def test_a_store_that_fails_at_the_end_is_asked_again(world: CutWorld, operation: str) -> None:
    erased_everywhere(world)
    sweep_twice(world)
    fails = {"put": "CUT", "delete": "erase/"}[operation]
    world.store.decide = lambda what, key: (
        Fault.FAIL if what == operation and key.startswith(fails) else Fault.PASS
    )
    gone(world)
    assert world.keys(ERASE_PREFIX), "nothing names an object that is gone"
    world.store.decide = lambda what, key: Fault.PASS
    gone(world)
    assert world.catalog.orders == {}
    assert listed(world) == []


def test_an_order_is_cancelled(world: CutWorld) -> None:
    world.round()
    start(world)
    at_removal: list[list[UUID]] = []
    decide = world.catalog.decide_remove

    def note(erasure_id: UUID) -> None:
        at_removal.append(listed(world))
        decide(erasure_id)

    world.catalog.decide_remove = note  # type: ignore[method-assign, assignment]
    assert cancel(world).id == ORDER
    assert at_removal == [[]], "no restore carries it out any more"
    world.round()
    assert (world.catalog.orders, listed(world), world.keys(ERASE_PREFIX)) == ({}, [], [])
    with pytest.raises(RequestError, match="no order"):
        cancel(world)


def test_one_that_is_done_is_not_cancelled(world: CutWorld) -> None:
    erased_everywhere(world)
    with pytest.raises(RequestError, match="is done"):
        cancel(world)


def test_one_that_is_done_is_cancelled_if_its_document_is_lost(world: CutWorld) -> None:
    """What it has left cannot be judged any more, and no restore would begin while `CUT` lists it."""
    erased_everywhere(world)
    erasure = world.catalog.orders[ORDER]
    assert not erasure.is_open
    world.bucket.delete([erasure.key])
    world.manager = world._boot()
    world.begin()
    world.round()
    assert "no such object" in standing(world).why
    cancel(world)
    assert (world.catalog.orders, listed(world)) == ({}, [])


def test_an_order_in_cut_that_the_metadata_lacks_goes_after_a_while(world: CutWorld) -> None:
    """Its keeper died before it told the metadata; or it is about to."""
    world.round()
    start(world)
    row = world.catalog.orders.pop(ORDER)
    world.manager = world._boot()
    world.begin()
    world.round()
    assert listed(world) == [ORDER]
    world.catalog.orders[ORDER] = row  # it was about to
    world.round()
    del world.catalog.orders[ORDER]
    for _ in range(8):
        world.round()
    assert listed(world) == []


def test_with_no_cuts_and_none_in_the_bucket_replicas_and_archives_are_enough(world: CutWorld) -> None:
    world.cluster.now = world.cluster.now._replace(interval_ms=-1)
    start(world)
    for broker_id in (1, 2, IN_BUCKET):
        tell(world, broker_id)
    world.do(keep(world))
    assert not world.catalog.orders[ORDER].is_open


def test_a_deleted_topic_holds_up_no_order(world: CutWorld) -> None:
    world.round()
    start(world)
    for place in [place for place in world.logs if place[0] == TOPIC]:
        del world.logs[place]
        del world.catalog.leader_epochs[place]
    for _ in range(4):
        save_anew(world)
        world.round()
    assert not world.catalog.orders[ORDER].is_open


def test_without_cuts_the_old_ones_keep_an_order_open_and_it_is_said_what_to_do(world: CutWorld) -> None:
    world.round()
    start(world)
    for broker_id in (1, 2, IN_BUCKET):
        tell(world, broker_id)
    world.cluster.now = world.cluster.now._replace(interval_ms=-1)
    world.do(keep(world))
    assert world.catalog.orders[ORDER].is_open
    assert standing(world).why.endswith("; no cut is taken: set firn.cut.interval.ms")
    assert [one.cut for one in standing(world).cuts] == world.numbers()
    world.cluster.now = world.cluster.now._replace(interval_ms=10_000)
    for _ in range(4):
        save_anew(world)
        world.round()
    assert not world.catalog.orders[ORDER].is_open
    assert standing(world).cuts == ()


async def keep_without_cuts(world: CutWorld) -> None:
    """What the keeper does while cuts are off."""
    assert world.manager.cuts is not None
    await world.manager.cuts.claim()
    await keep(world)


@pytest.mark.parametrize("hits", [0, 3])
def test_without_cuts_an_order_ends_if_no_tail_of_the_old_ones_has_the_keys(
    world: CutWorld, monkeypatch: pytest.MonkeyPatch, hits: int
) -> None:
    looked: list[str] = []

    def count(store: object, key: str, order: object, progress: object) -> int:
        looked.append(key)
        return hits if len(looked) == 2 else 0

    monkeypatch.setattr(order_keeper, "count_in_tail", count)
    world.round()
    world.logs[TOPIC, 0].end += 1
    world.round()
    start(world)
    for broker_id in (1, 2, IN_BUCKET):
        tell(world, broker_id)
    kept, tails = world.numbers(), world.keys(TAIL_PREFIX)
    assert len(kept) == 2
    world.cluster.now = world.cluster.now._replace(interval_ms=-1)
    world.do(keep_without_cuts(world))
    assert world.catalog.orders[ORDER].is_open == bool(hits)
    assert world.numbers() == kept, "nothing takes their place"
    if hits:
        words = f"{looked[1]}, a tail of cut 1, has 3 records of the keys; newer ones are awaited"
        assert standing(world).why == f"{words}; no cut is taken: set firn.cut.interval.ms"
        world.do(keep_without_cuts(world))
    assert sorted(set(looked)) == tails
    assert len(looked) == len(tails) + bool(hits), "clean ones are read once"
    assert not world.catalog.orders[ORDER].is_open


def test_health_and_metrics_are_told_how_far_an_order_is(world: CutWorld) -> None:
    world.round()
    erasure = start(world)
    tell(world, 1)
    world.round()
    told = standing(world)
    assert (told.started_ms, told.done_ms, told.grace_until_ms) == (erasure.started_ms, -1, -1)
    assert told.why == "2 replicas have not erased yet"
    assert told.is_open
    for broker_id in (2, IN_BUCKET):
        tell(world, broker_id)
    for _ in range(4):
        save_anew(world)
        world.round()
    told = standing(world)
    assert told.done_ms == world.catalog.orders[ORDER].done_ms > 0
    assert told.grace_until_ms == told.done_ms + GRACE_MS
    assert (told.left, told.cuts) == (PlacesLeft(0, 0, (), 4, 2), ())
    assert told.tails == told.clean_tails > 0
    sweep_twice(world)
    gone(world)
    assert world.manager.metrics.orders == {}
