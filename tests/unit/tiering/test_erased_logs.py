"""A log from which an order of erasure takes records while its segments, and its tails, go up."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from service.base.steps import Steps
from service.records.batch import iter_headers
from service.records.decode import Record, iter_records
from service.tiering.cuts.saving_plan import Saved
from tests.unit.hot.cleanings import records_in
from tests.unit.hot.erasures import ORDER, erase, order_of
from tests.unit.tiering.cut_keeper import CutKeeper, bytes_of, level_of
from tests.unit.tiering.world import Fault, Replica, World


def records_of(data: bytes) -> list[Record]:
    """All records of whole batches."""
    view = memoryview(data)
    return [one for header in iter_headers(view) for one in iter_records(view[header.position : header.end])]


def in_bucket(world: World, replica: Replica) -> list[Record]:
    """All records of the chain."""
    found: list[Record] = []
    for entry in world.live(replica):
        found += records_of(bytes(world.bucket.get_range(entry.key, 0, entry.log_length)))
    return found


def test_a_segment_that_is_replaced_while_it_goes_up_is_copied_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    replica = world.replicas[0]
    world.fill(2)
    end = replica.log.state.segments.bases[1] - 1
    acted: list[str] = []

    def acts(operation: str, key: str) -> Fault:
        if operation in ("put", "put_stream") and key.endswith(".seg") and not acted:
            acted.append(key)
            erase(replica.log, order_of(b"k", end=end))
        return Fault.PASS

    world.store.decide = acts
    world.run()
    world.settle()
    assert acted, "the segment was on its way up"
    found = in_bucket(world, replica)
    assert found, "it was copied again"
    assert min(one.offset for one in found) == end
    assert acted[0] not in {entry.key for entry in world.live(replica)}
    assert found == [one for one in records_in(replica.log) if one.offset <= found[-1].offset]


def test_a_log_that_may_not_be_copied_is_not(tmp_path: Path) -> None:
    world = World(tmp_path)
    replica = world.replicas[0]
    world.fill(2)
    replica.log.sealed.may_copy = lambda: False
    world.run()
    assert world.entry(replica) is None
    replica.log.sealed.may_copy = lambda: True
    world.run()
    world.settle()
    assert world.live(replica)


class Orders:
    """Orders that were carried out in all logs."""

    def __init__(self, *ids: UUID) -> None:
        self.ids = frozenset(ids)

    def find(self) -> Steps[frozenset[UUID]]:
        yield
        return self.ids


def test_an_erasure_has_every_partition_saved_again_at_level_1(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2, remote_storage_enable=False)
    world.run()
    keeper, orders = CutKeeper(world), Orders()
    world.manager.tails.erased = orders.find
    erased, other = world.replicas
    for one in world.replicas:
        one.append(3, 5)
        one.append(2, 5)
    keeper.cut_now()
    erase(erased.log, order_of(b"k", end=4))
    assert keeper.cut_now().tails == (), "others may still have the records"
    orders.ids = frozenset({ORDER})
    saved = keeper.cut_now()
    assert [level_of(ref) for ref in saved.tails] == [1]
    for one in world.replicas:
        spans = [
            (span.section.first_offset, span.section.end_offset) for span in keeper.spans(one, saved.tails)
        ]
        assert spans == [(0, 5)]
        assert keeper.read(one, 0, 5) == bytes_of(one)
        assert keeper.standing(saved, one).saved == Saved(5, 5, 0)
    assert [one.offset for one in records_of(bytes(keeper.read(erased, 0, 5)))] == [4]
    assert len(records_of(bytes(keeper.read(other, 0, 5)))) == 5
    assert keeper.cut_now().tails == (), "once for each order"
    orders.ids = frozenset()
    assert keeper.cut_now().tails == (), "the order is gone"


def test_nothing_is_saved_of_a_log_from_before_an_order_that_is_done(tmp_path: Path) -> None:
    """Its disk has come back from a backup: tails would have the keys for as long as the log is idle. The cut
    is not complete meanwhile, and other partitions are saved."""
    world = World(tmp_path, partitions=2, remote_storage_enable=False)
    world.run()
    keeper = CutKeeper(world)
    old, other = world.replicas
    for one in world.replicas:
        one.append(3, 5)
    world.manager.tails.erased = Orders(ORDER).find
    old.log.has_erased_records = lambda: True
    saved = keeper.cut_now()
    assert keeper.spans(old, saved.tails) == []
    assert (keeper.standing(saved, old).saved.low, keeper.standing(saved, old).is_tailed) == (0, True)
    assert keeper.read(other, 0, 3) == bytes_of(other)
    assert world.manager.metrics.cuts.left_out == {
        old.tip: "its disk is from before an order to erase keys, which is carried out again"
    }
    erase(old.log, order_of(b"k", end=2))
    old.log.has_erased_records = lambda: False
    keeper.cut_now()
    assert [one.offset for one in records_of(bytes(keeper.read(old, 0, 3)))] == [2]
    assert world.manager.metrics.cuts.left_out == {}


def test_a_new_leader_saves_again_what_an_earlier_one_had(tmp_path: Path) -> None:
    """It cannot know whether the newest cut's tails are of before or after the erasure."""
    world = World(tmp_path, remote_storage_enable=False)
    world.run()
    keeper = CutKeeper(world)
    (replica,) = world.replicas
    replica.append(3, 5)
    world.manager.tails.erased = Orders(ORDER).find
    keeper.cut_now()
    assert keeper.cut_now().tails == ()
    replica.leader_epoch += 1
    saved = keeper.cut_now()
    assert [
        (span.section.first_offset, span.section.end_offset) for span in keeper.spans(replica, saved.tails)
    ] == [(0, 3)]


def test_tails_of_an_attempt_that_came_to_nothing_are_not_taken_for_new_ones(tmp_path: Path) -> None:
    world = World(tmp_path, remote_storage_enable=False)
    world.run()
    keeper, orders = CutKeeper(world), Orders()
    world.manager.tails.erased = orders.find
    (replica,) = world.replicas
    replica.append(3, 5)
    keeper.cut_now()
    erase(replica.log, order_of(b"k", end=2))
    orders.ids = frozenset({ORDER})
    keeper.save()
    keeper.cut += 3  # another broker's cuts were taken meanwhile: the sweeper may have its tail
    saved = keeper.cut_now()
    assert saved.tails
    assert [one.offset for one in records_of(bytes(keeper.read(replica, 0, 3)))] == [2]
