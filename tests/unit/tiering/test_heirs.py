"""A cluster whose prefix was taken over: by a stranger, or by one that was restored from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.remote.format.ancestors import Ancestor
from service.remote.format.manifest_codec import encode_cluster
from service.remote.reading.object_reader import open_topics
from service.remote.reading.tails import index_tails
from service.tiering.cuts.round import CutStep
from service.tiering.prefix_fence import ForeignOwner, HeirFound, claim_prefix, read_cluster
from service.tiering.recovery import check_prefix, read_archive
from tests.unit.tiering.cut_world import TOPIC, CutWorld, Harm, Log
from tests.unit.tiering.world import CLUSTER, World

HEIR = "the-heir"


def take(world: World, cluster_id: str, *ancestors: str) -> None:
    """Have another cluster take the prefix over."""
    taken = read_cluster(world.bucket)._replace(
        cluster_id=cluster_id,
        members=(),
        ancestors=tuple(Ancestor(one, 1, 5) for one in ancestors),
    )
    world.bucket.put("cluster.json", encode_cluster(taken))


def test_a_source_that_finds_its_heir_writes_nothing_more_and_tells(tmp_path: Path) -> None:
    told: list[str | None] = []
    world = CutWorld(tmp_path, brokers=(1,))
    world.manager._fence.heir_changed = told.append
    world.logs = {(TOPIC, 0): Log(1, 5)}
    world.begin()
    world.round()
    take(world, HEIR, CLUSTER)
    before = world.stored_keys()
    world.logs[TOPIC, 0].end = 9
    world.round()
    assert told == [HEIR]
    assert HEIR in str(world.manager.metrics.displaced)
    assert world.numbers() == [1]
    assert {key for key in world.stored_keys() - before if not key.startswith("tail/")} == set()
    take(world, CLUSTER)
    world.run()
    world.do(world.manager._fence.refresh())
    assert told == [HEIR, None]


def test_a_claim_of_a_prefix_that_an_heir_has_says_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    take(world, HEIR, "another", CLUSTER)
    with pytest.raises(HeirFound) as found:
        claim_prefix(world.bucket, CLUSTER)
    assert found.value.heir == HEIR
    take(world, HEIR, "another")
    with pytest.raises(ForeignOwner) as refused:
        claim_prefix(world.bucket, CLUSTER)
    assert not isinstance(refused.value, HeirFound)


def test_documents_of_an_ancestor_are_the_heirs_own(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(2)
    world.settle()
    source = read_archive(world.bucket, CLUSTER, {}, ()).partitions
    assert source
    take(world, HEIR, CLUSTER)
    ancestors = check_prefix(world.bucket, HEIR).ancestors
    assert read_archive(world.bucket, HEIR, {}, (), ancestors).partitions == source
    assert read_archive(world.bucket, HEIR, {}, ()).problems


def test_a_topics_file_of_an_ancestor_is_replaced_whatever_its_offset(tmp_path: Path) -> None:
    world = CutWorld(tmp_path, brokers=(1,))
    world.metadata_offset = 1_000
    world.begin()
    assert open_topics(world.bucket).metadata_offset == 1_000
    take(world, HEIR, CLUSTER)
    heir = HeirWorld(tmp_path / "heir", store=world.bucket, brokers=(1,), seed=3)
    heir.begin()
    written = open_topics(heir.bucket)
    assert (written.cluster_id, written.metadata_offset) == (HEIR, 1)
    assert [one.cluster_id for one in written.ancestors] == [CLUSTER]


class HeirWorld(CutWorld):
    """A node of the cluster that was restored from `CLUSTER`."""

    cluster_id = HEIR


def test_an_heir_goes_on_from_its_ancestors_cuts(tmp_path: Path) -> None:
    world = CutWorld(tmp_path, brokers=(1,))
    world.logs = {(TOPIC, 0): Log(1, 5)}
    world.cluster.metadata_end = 500
    world.begin()
    world.cluster.metadata_end = 510
    world.round()
    take(world, HEIR, CLUSTER)
    heir = HeirWorld(tmp_path / "heir", store=world.bucket, brokers=(1,), seed=3)
    heir.logs = {(TOPIC, 0): Log(1, 5)}
    heir.logs[TOPIC, 0].saved = 5
    heir.cluster.metadata_end = 700
    heir.begin()
    heir.logs[TOPIC, 0].end = 1_000_009
    heir.round()
    cut = heir.newest()
    assert (cut.cluster_id, cut.cut, cut.metadata.end_offset, cut.metadata_end) == (HEIR, 2, 700, 700)
    assert len(cut.tails) == 2
    heir.check_kept()


def test_tails_of_a_past_that_was_given_up_stand_for_no_lost_document_of_the_heir(tmp_path: Path) -> None:
    """The source was lost between its tails for cut 2, of an unclean leader, and that cut."""
    world = CutWorld(tmp_path, brokers=(1, 2))  # the answer of the other one shows what time it is
    world.logs = {(TOPIC, 0): Log(1, 9)}
    world.begin()
    world.round()
    log = world.logs[TOPIC, 0]
    log.epoch, log.saved, log.end = 5, 3, 12
    world.cluster.harm = lambda broker_id, step: Harm.LOST if (broker_id, step) == (1, CutStep.SAVE) else None
    world.round()
    assert world.numbers() == [1]
    (given_up,) = (key for key in world.keys("tail") if key not in {ref.key for ref in world.newest().tails})
    take(world, HEIR, CLUSTER)
    heir = HeirWorld(tmp_path / "heir", store=world.bucket, brokers=(1,), seed=3)
    log = heir.logs[TOPIC, 0] = Log(1, 20)
    log.epoch, log.saved = 1005, 9  # it has loaded what cut 1 has
    heir.begin()
    heir.round()
    cuts = heir.cuts_there()
    assert cuts is not None
    assert heir.numbers() == [1, 2]
    heir.bucket.delete([cuts.newest.key])
    heir.reboot()
    heir.begin()
    log.end = 21
    heir.round()
    found = index_tails(heir.bucket, heir.newest().tails).pieces((TOPIC, 0), 0, 21)
    assert [(piece.first, piece.end) for piece in found.pieces] == [(0, 9), (9, 20), (20, 21)]
    assert given_up not in {ref.key for ref in heir.newest().tails}
