"""Objects of runs made by a child process: the same bytes, errors and counts as on a thread of the node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from service.base.child_process import ChildProcess
from service.base.errors import CorruptionError, StorageError
from service.remote.format.segment_object import SegmentIdentity
from service.remote.metrics import StoreMetrics
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.obstore_store import ObstoreStore
from service.remote.stores.store_address import StoreAddress
from service.tiering.copier import CallCancelled, CallProgress
from service.tiering.ports import SegmentRun
from service.tiering.rewriting.making import MakeOrder, MakerHere, ObjectMaker
from service.tiering.rewriting.making_child import ChildMaker, LocalSegment
from service.tiering.rewriting.rules import ChainRun, MergeRule
from service.tiering.rewriting.run_object import MadeObject
from tests.support.world import make_world
from tests.unit.tiering.world import CLUSTER, Replica, World

REWRITE, OBJECT = UUID(int=77), UUID(int=78)
SEGMENTS = 10


class Bucket(NamedTuple):
    """A folder with the archive of a partition, whose local log is there, too."""

    replica: Replica
    run: ChainRun
    store: ObstoreStore
    address: StoreAddress

    @property
    def local(self) -> Sequence[SegmentRun]:
        return self.replica.log.runs.runs_between(self.run.base_offset, self.run.last_offset)

    @property
    def order(self) -> MakeOrder:
        run, tip = self.run, self.run.tip
        identity = SegmentIdentity(
            CLUSTER, tip.topic_id, tip.topic, tip.partition, run.base_offset, run.last_offset, 0, OBJECT
        )
        return MakeOrder(run, MergeRule(), identity, REWRITE, None, 512)


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    world = World(tmp_path)
    (replica,) = world.replicas
    world.fill(SEGMENTS)
    assert world.run()
    address = StoreAddress((tmp_path / "bucket").as_uri())
    store = address.open(make_world())
    live = tuple(world.live(replica))
    assert len(live) == SEGMENTS
    for entry in live:
        store.put(entry.key, world.bucket.get(entry.key, max_size=1 << 20))
    return Bucket(replica, ChainRun(replica.tip, live), store, address)


@pytest.fixture(scope="module")
def child() -> Iterator[ChildProcess]:
    one = ChildProcess()
    yield one
    one.close()


def made_by(maker: ObjectMaker, bucket: Bucket, local: Sequence[SegmentRun] = ()) -> tuple[MadeObject, bytes]:
    """What was made, and the bytes of the object, which is removed."""
    spent: list[int] = []
    made = maker.make(bucket.order, local, CallProgress(), spent.append)
    key = bucket.order.identity.key
    data = bucket.store.get(key, max_size=1 << 20)
    bucket.store.delete([key])
    assert sum(spent) == made.entry.log_length
    return made, data


def test_a_child_makes_the_same_object(bucket: Bucket, child: ChildProcess) -> None:
    metrics = StoreMetrics()
    here, elsewhere = MakerHere(bucket.store), ChildMaker(bucket.address, metrics, child)
    expected = made_by(here, bucket)
    assert made_by(elsewhere, bucket) == expected
    size = expected[0].entry.size
    assert metrics.calls["put_stream"].sent_bytes == size
    assert metrics.calls["put_stream"].time.snapshot().observed == 1
    assert metrics.calls["get_range"].received_bytes >= bucket.run.size
    assert metrics.problem is None
    assert metrics.called_ms > 0

    from_disk = made_by(elsewhere, bucket, bucket.local)
    assert from_disk == made_by(here, bucket, bucket.local)
    assert from_disk[1] == expected[1]
    assert from_disk[0].bytes_read <= expected[0].bytes_read - expected[0].entry.log_length


def test_local_files_that_are_gone_or_changed_are_not_missed(bucket: Bucket, child: ChildProcess) -> None:
    expected = made_by(MakerHere(bucket.store), bucket)
    first, second, *_ = bucket.local
    Path(first.name).unlink()
    with Path(second.name).open("r+b") as file:
        file.seek(80)
        file.write(b"another")
    maker = ChildMaker(bucket.address, StoreMetrics(), child)
    made, data = made_by(maker, bucket, bucket.local)
    assert data == expected[1]
    assert made.bytes_read >= bucket.run.entries[0].log_length + bucket.run.entries[1].log_length


def test_errors_of_the_bucket_are_those_of_a_thread(bucket: Bucket, child: ChildProcess) -> None:
    metrics = StoreMetrics()
    maker = ChildMaker(bucket.address, metrics, child)
    damaged, missing = bucket.run.keys[1], bucket.run.keys[4]
    data = bytearray(bucket.store.get(damaged, max_size=1 << 20))
    data[70] ^= 1
    bucket.store.put(damaged, data)
    with pytest.raises(CorruptionError, match="wrong checksum") as error:
        made_by(maker, bucket)
    assert damaged in str(error.value)
    data[70] ^= 1
    bucket.store.put(damaged, data)
    bucket.store.delete([missing])
    with pytest.raises(ObjectNotFound) as absent:
        made_by(maker, bucket)
    assert missing in absent.value.key
    assert metrics.calls["get_range"].errors == {"ObjectNotFound": 1}


def test_a_cancelled_call_and_a_refused_upload_end_the_child(bucket: Bucket, child: ChildProcess) -> None:
    maker = ChildMaker(bucket.address, StoreMetrics(), child)
    cancelled = CallProgress()
    cancelled.cancelled = True
    with pytest.raises(CallCancelled):
        maker.make(bucket.order, (), cancelled, lambda size: None)
    assert child.pid is None

    def refuse(size: int) -> None:
        raise StorageError("deposed")

    with pytest.raises(StorageError, match="deposed"):
        maker.make(bucket.order, (), CallProgress(), refuse)
    assert child.pid is None
    with pytest.raises(ObjectNotFound):  # a small one, too: of a topic that is gone it would stay for ever
        bucket.store.get(bucket.order.identity.key, max_size=1 << 20)
    assert made_by(maker, bucket) == made_by(MakerHere(bucket.store), bucket)
    maker.rest()
    assert child.pid is None


def test_bytes_of_each_object_are_looked_for_in_the_segments_that_have_them(bucket: Bucket) -> None:
    """Runs have 256 objects: to ask every segment for each of them took longer than to merge them."""
    asked: list[str] = []

    class Counted(LocalSegment):
        def position_of(self, offset: int) -> int:
            asked.append(self.name)
            return super().position_of(offset)

    local = [Counted(Path(one.name), one.base_offset, one.size) for one in bucket.local]
    _, data = made_by(MakerHere(bucket.store), bucket, local)
    assert data == made_by(MakerHere(bucket.store), bucket)[1]
    assert sorted(asked) == sorted(one.name for one in bucket.local)
