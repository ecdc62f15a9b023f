"""A node that begins with the metadata of a restore, in a cluster that may have worked before."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from service.base.types import TopicIdPartition
from service.metadata.records import LifeRecord
from service.remote.format.ancestors import Ancestor
from service.remote.format.cut_codec import CutRef, Cuts, PartitionCut, encode_cuts
from service.remote.format.keys import CLUSTER_KEY, CUT_NAME
from service.remote.format.manifest_codec import ClusterFile, encode_cluster
from service.remote.stores.store import ObjectStore
from tests.support.hand_made_cuts import START_MS, HandMadeCut
from tests.support.one_of_three import CLUSTER, TOPIC
from tests.unit.replicas.test_tail_loading import NONE, SIX, Restored, play, tail, until


def _ref_of(store: ObjectStore, key: str, number: int) -> CutRef:
    data = store.get(key, max_size=1 << 20)
    return CutRef(number, key, len(data), crc32c(data), START_MS, is_exact=True, is_complete=True)


def _own_cut(node: Restored, life: int, *ends: int) -> tuple[str, list[CutRef]]:
    """Lay out the bucket of a heir that has taken a cut of its own in this life, with these ends; return the
    key of the cut that it was made from, and both cuts."""
    node.cut = HandMadeCut(node.store, "the-source-of-the-heir")
    node.cut.tail({(TOPIC, 0): SIX})
    key = node.cut.write()
    ancestor = Ancestor("the-source-of-the-heir", 9, 1)
    node.store.put(CLUSTER_KEY, encode_cluster(ClusterFile(CLUSTER, ancestors=(ancestor,))))
    rows = tuple(PartitionCut(4, 0, end, end, end, end, 4, 1, waits=False) for end in ends)
    own = HandMadeCut(node.store, CLUSTER, 10, life=life).write({TOPIC: rows})
    refs = [_ref_of(node.store, one, number) for one, number in ((key, 9), (own, 10))]
    node.store.put(CUT_NAME, encode_cuts(Cuts(CLUSTER, tuple(refs))))
    return key, refs


def test_a_file_of_a_restore_that_is_used_again_loads_nothing(tmp_path: Path) -> None:
    """The heir has worked, and taken a cut of its own, before its disks were lost."""

    async def scenario(node: Restored) -> None:
        key, refs = _own_cut(node, 4, 1_006, 2_000)
        await node.node.tell(LifeRecord(life=4, life_id=UUID(int=4)))
        await node.restore(tail(key), tail("", start=6))
        await until(lambda: len(node.metrics.problems) == 2)
        assert all("used once more" in why for why in node.metrics.problems.values())
        assert (await node.produced())[0] is ErrorCode.kafka_storage_error
        node.store.put(CUT_NAME, encode_cuts(Cuts(CLUSTER, tuple(refs[:1]))))
        node.loader._enqueue(node.loader._jobs[TopicIdPartition(TOPIC, "t", 0)])
        await node.loaded()

    play(tmp_path, scenario)


def test_a_tail_that_no_cut_of_the_heir_has_beyond_is_loaded_although_there_are_cuts(tmp_path: Path) -> None:
    """They were taken while it could not be loaded."""

    async def scenario(node: Restored) -> None:
        key, _ = _own_cut(node, 4, 6, 1_006)
        await node.node.tell(LifeRecord(life=4, life_id=UUID(int=4)))
        await node.restore(tail(key), tail("", start=6))
        await node.loaded()
        assert [*node.metrics.problems] == ["t-1"]
        assert "used once more" in node.metrics.problems["t-1"]

    play(tmp_path, scenario)


def test_a_recovery_by_a_copy_of_before_its_tails_were_loaded_loads_them(tmp_path: Path) -> None:
    """The metadata was copied right after a restore; the cluster then worked, and took a cut."""

    async def scenario(node: Restored) -> None:
        key, _ = _own_cut(node, 4, 1_006, 1_006)
        await node.node.tell(LifeRecord(life=5, life_id=UUID(int=5)))
        await node.restore(tail(key), tail("", start=6))
        await node.loaded()
        await node.loaded(1)
        assert not node.metrics.problems
        assert (await node.produced())[0] is NONE

    play(tmp_path, scenario)
