"""Tails of a restored cluster: what its leaders have loaded lies in those of its source."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from service.remote.catalog import LoadedCut
from service.tiering.cuts.saving import LostTails
from tests.unit.tiering.cut_keeper import CutKeeper, bytes_of
from tests.unit.tiering.test_tail_saver import plain
from tests.unit.tiering.world import Replica, World


def test_a_restored_partition_takes_nothing_of_what_its_source_had_saved(tmp_path: Path) -> None:
    """Its log was filled up behind what came back, with the leader epoch of the source's last record."""
    world, keeper = plain(tmp_path)
    replica = world.replicas[0]
    for _ in range(2):
        replica.append(3, 5)
    keeper.cut_now(cluster_id="the-source")
    keeper.named.clear()  # what came back was in a segment, which the heir's chain does not have
    world.reboot()
    world.run()
    replica = world.replicas[0]
    replica.log.truncation.truncate_to(3)
    replica.append(7, 5, leader_epoch=0)
    replica.leader_epoch = 1004
    replica.append(2, 6)
    keeper.cut_now()
    assert keeper.read(replica, 0, 12) == bytes_of(replica)


def restored(world: World, cut_id: UUID | None, keeper: CutKeeper) -> Replica:
    """Six records that the source's cut has in a tail, loaded into a log that goes on at offset 13."""
    for _ in range(2):
        world.replicas[0].append(3, 5)
    keeper.cut_now(cluster_id="the-source")
    world.reboot()
    world.run()
    replica = world.replicas[0]
    replica.append(7, 5, leader_epoch=0)  # empty batches in a restored log
    replica.leader_epoch = 1004
    replica.loaded = LoadedCut(cut_id or keeper.attempt, 6)
    replica.append(2, 6)
    return replica


def test_records_loaded_from_the_newest_cut_are_not_saved_again(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path)
    replica = restored(world, None, keeper)
    keeper.cut_now()
    before, after = [span.section for span in keeper.spans(replica)]
    assert (before.first_offset, before.end_offset) == (0, 6)
    assert (after.first_offset, after.end_offset) == (6, 15)
    assert keeper.read(replica, 0, 15) == bytes_of(replica)
    (row,) = keeper.rows[replica.tip.topic_id]
    assert (row.saved, row.last_epoch, row.waits) == (15, 1004, False)


def test_records_loaded_from_another_cut_are_saved_again(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path)
    replica = restored(world, UUID(int=77), keeper)
    keeper.cut_now()
    keeper.named = keeper.named[-1:]
    assert keeper.read(replica, 0, 15) == bytes_of(replica)


def test_loaded_records_are_saved_again_where_their_tails_are_lost(tmp_path: Path) -> None:
    world, keeper = plain(tmp_path)
    replica = restored(world, None, keeper)
    place = replica.tip.topic_id, replica.tip.partition
    keeper.cut_now()
    keeper.named = keeper.named[-1:]
    keeper.cut_now(lost=[LostTails(place, 1004, 0)])
    keeper.named = keeper.named[-1:]
    assert keeper.read(replica, 0, 15) == bytes_of(replica)
