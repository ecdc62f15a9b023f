"""Tails that are gone or damaged, and logs that cannot be read: the keeper names them, leaders save again."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.tiering.cuts.saving import LostTails
from service.tiering.cuts.saving_plan import Saved
from tests.unit.tiering.cut_keeper import bytes_of, level_of
from tests.unit.tiering.cut_world import OTHER, TOPIC, CutWorld, Log
from tests.unit.tiering.test_tail_saver import plain, tiered
from tests.unit.tiering.world import Fault


@pytest.fixture
def world(tmp_path: Path) -> CutWorld:
    world = CutWorld(tmp_path)
    world.logs = {(TOPIC, 0): Log(1, 5), (TOPIC, 1): Log(2, 7), (OTHER, 0): Log(3, 2)}
    world.begin()
    return world


def test_a_leader_is_told_of_lost_tails_and_saves_them_again(world: CutWorld) -> None:
    """Its partition has no chain, so nothing else would ever complete a cut."""
    world.round()
    (lost,) = (key for key in world.keys("tail") if "-0000000002-" in key)
    data = bytearray(world.bucket.get(lost, max_size=1 << 20))
    data[-20] ^= 1
    world.bucket.put(lost, bytes(data))
    world.reboot()
    world.begin()
    world.round()
    assert world.cluster.fakes[2].told == [(TOPIC, 1, 3, 0)]
    assert world.cluster.fakes[1].told == [(TOPIC, 1, 3, 0)], "who leads it knows that it does"
    assert world.complete() == [1, 2]
    cut = world.newest()
    assert lost not in [ref.key for ref in cut.tails]
    assert cut.topics[TOPIC][1].saved == 7
    world.check_kept_but(1)
    world.logs[TOPIC, 1].end = 8
    world.round()
    assert world.cluster.fakes[2].told == [(TOPIC, 1, 3, 0)], "once"
    assert world.complete() == [1, 2, 3]


def test_tails_that_the_store_refuses_are_not_saved_again(world: CutWorld) -> None:
    world.round()
    (refused,) = (key for key in world.keys("tail") if "-0000000002-" in key)
    world.reboot()
    world.store.decide = lambda operation, key: Fault.REFUSE if key == refused else Fault.PASS
    world.begin()
    world.round()
    assert world.complete() == [1]
    assert world.cluster.fakes[2].told == []
    assert len(world.keys("tail")) == 3


def test_cuts_are_loose_while_a_leader_cannot_read_its_log_and_exact_again_then(
    world: CutWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.round()
    world.logs[TOPIC, 1].is_offline = True
    world.logs[TOPIC, 0].end = 9
    world.round()
    assert (world.numbers(), world.voids()) == ([1], 1)
    world.round()
    world.logs[TOPIC, 0].end = 10
    world.round()
    assert (world.numbers(), world.voids()) == ([1, 2, 3], 1), "one attempt is void, not all"
    cut = world.newest()
    assert not cut.is_exact
    assert [row.end for row in cut.topics[TOPIC]] == [10, 7]
    assert cut.topics[TOPIC][1].leader_epoch == -1
    assert caplog.text.count("events-1 (broker 2)") == 1
    world.logs[TOPIC, 1].is_offline = False
    world.logs[TOPIC, 0].end = 11
    world.round()
    world.round()
    assert world.newest().is_exact
    assert [row.end for row in world.newest().topics[TOPIC]] == [11, 7]
    world.check_kept()


def test_a_partition_without_a_chain_is_saved_again_from_its_start_once(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path, partitions=2)
    harmed, other = world.replicas
    for replica in world.replicas:
        replica.append(2, 5)
    keeper.cut_now()
    (lost,) = keeper.named
    keeper.named = []
    newest, epoch = keeper.newest_id, harmed.leader_epoch
    told = [LostTails((one.tip.topic_id, one.tip.partition), epoch, 0) for one in (harmed, other)]
    for replica in world.replicas:
        replica.append(2, 5)
    first = keeper.save(lost=told[:1])
    assert [level_of(ref) for ref in first.tails] == [1, 0]
    again = keeper.save(lost=told[:1])
    assert again.tails == first.tails, "of the same cut it is told once more"
    assert keeper.newest_id == newest
    keeper.name(again)
    assert keeper.read(harmed, 0, 4) == bytes_of(harmed)
    assert keeper.standing(again, harmed).saved == Saved(4, 4, epoch)
    assert [(one.section.first_offset, one.section.end_offset) for one in keeper.spans(other)] == [(2, 4)]
    assert lost not in keeper.named


@pytest.mark.parametrize(
    ("epochs", "reaches"),
    [(1, 0), (0, 2), (0, 1 << 40)],
    ids=["another leader's", "all is there", "nonsense"],
)
def test_records_that_are_not_lost_are_not_saved_again(tmp_path: Path, epochs: int, reaches: int) -> None:
    world, keeper = plain(tmp_path)
    (replica,) = world.replicas
    replica.append(2, 5)
    keeper.cut_now()
    place = replica.tip.topic_id, replica.tip.partition
    saved = keeper.save(lost=[LostTails(place, replica.leader_epoch + epochs, reaches)])
    assert saved.tails == ()
    assert keeper.standing(saved, replica).saved.low == 2


def test_behind_a_chain_only_what_it_lacks_is_saved_again(tmp_path: Path) -> None:
    world, keeper = tiered(tmp_path)
    world.fill(2)
    world.run()
    replica = world.replicas[0]
    keeper.cut_now()
    place, chain_end = (replica.tip.topic_id, replica.tip.partition), replica.remote.end_offset
    keeper.named = []
    earlier = keeper.save(lost=[LostTails(place, replica.leader_epoch, chain_end - 1)])
    assert earlier.tails == (), "the chain has gone on since"
    keeper.cut_now(lost=[LostTails(place, replica.leader_epoch, chain_end)])
    assert keeper.read(replica, chain_end, replica.high_watermark) == bytes_of(replica, chain_end)
