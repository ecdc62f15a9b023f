"""Brokers that share a bucket: who keeps it, who may write, who is displaced, and what a clone may do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from service.base.errors import StorageError
from service.base.threads import SystemThreads
from service.inspect.fsck import fsck
from service.remote.format.keys import ManifestKey, PageKey, SegmentKey, manifest_key, page_key, segment_key
from service.remote.format.manifest_codec import encode_cluster, encode_topics
from service.remote.reading.object_reader import open_cluster_file, open_topics
from service.remote.stores.memory_store import MemoryStore
from service.tiering.archive_attempt import Deposed
from service.tiering.metadata_copy import MetadataSnapshot
from service.tiering.partition_archiver import PartitionArchiver
from service.tiering.prefix_fence import NotNamed, read_cluster
from service.tiering.steps import CommitStep
from tests.unit.tiering.clusters import Member, Quorum
from tests.unit.tiering.world import CLUSTER, GRACE_MS, SETTINGS, Fault, Replica, crash_at

TOPIC = UUID(int=7)
BROKERS = (1, 2, 3)


class Cluster:
    """Three brokers; partition p of three is led by broker p + 1."""

    def __init__(self, tmp: Path, bucket: MemoryStore, quorum: Quorum | None = None) -> None:
        self.tmp, self.bucket = tmp, bucket
        self.seed = 1000 if quorum is None else 2000
        self.quorum = quorum or Quorum({"events": TOPIC}, len(BROKERS))
        self.members: list[Member] = []
        for number in BROKERS:
            self.start(number)
        for number in BROKERS:
            self.quorum.elect(TOPIC, number - 1, number)

    def start(self, number: int) -> Member:
        member = Member(self.tmp, number, self.quorum, self.bucket, seed=self.seed, partitions=len(BROKERS))
        self.members.append(member)
        self.quorum.unfence(number)
        return member

    def __getitem__(self, number: int) -> Member:
        return self.members[number - 1]

    def fill(self, segments: int, *partitions: int) -> None:
        for partition in partitions or range(len(BROKERS)):
            epoch = self.quorum.leader_epochs[TOPIC, partition]
            for member in self.members:
                replica = member.replicas[partition]
                replica.leader_epoch = max(replica.leader_epoch, epoch)
                member.fill(segments, replica)

    def run(self, rounds: int = 3, *silent: int, pause_ms: int = SETTINGS.backoff_max_ms) -> None:
        for _ in range(rounds):
            for member in self.members:
                if member.number not in silent:
                    member.catch_up()
                    member.run()
            self.pass_time(pause_ms)

    def pass_time(self, ms: int) -> None:
        for member in self.members:
            member.clock.advance(ms)

    def be_swept(self, *silent: int) -> None:
        for _ in range(4):
            self.run(2, *silent)
            self.pass_time(SETTINGS.sweep_interval_ms)

    def ends(self) -> list[int]:
        entries = [self.quorum.entries.get((TOPIC, partition)) for partition in range(len(BROKERS))]
        return [entry.end_offset if entry is not None else 0 for entry in entries]

    def replica(self, partition: int) -> Replica:
        return self[partition + 1].replicas[partition]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, MemoryStore(SystemThreads()))


def named(cluster: Cluster) -> tuple[UUID | None, tuple[UUID, ...]]:
    stored = open_cluster_file(cluster.bucket)
    assert stored is not None
    return (stored.stamp.writer.incarnation if stored.stamp else None), stored.members


def archive(cluster: Cluster) -> set[str]:
    return {info.key for info in cluster.bucket.list("data")}


# -- who keeps it --------------------------------------------------------------------------------------------


def test_the_unfenced_broker_of_lowest_id_keeps_the_prefix_and_names_all_that_may_write(
    cluster: Cluster,
) -> None:
    cluster.fill(2)
    cluster.run()
    assert [one.is_keeper for one in cluster.members] == [True, False, False]
    assert named(cluster) == (
        cluster[1].incarnations[-1],
        tuple(sorted(one.incarnations[-1] for one in cluster.members)),
    )
    assert [cluster[1].lag(cluster.replica(partition)) for partition in range(3)] == [0, 0, 0]
    assert 0 < open_topics(cluster.bucket).metadata_offset <= cluster.quorum.image.offset
    for member in cluster.members:
        member.check()


def test_a_head_that_is_refused_to_the_keeper_keeps_it_from_nothing_else(cluster: Cluster) -> None:
    key = f"data/{TOPIC}/1/HEAD"
    cluster[1].store.decide = lambda operation, asked: Fault.REFUSE if asked == key else Fault.PASS
    cluster.fill(1)
    cluster.run()
    assert all(cluster.ends())


def test_one_that_the_keeper_has_not_named_writes_nothing_and_waits(cluster: Cluster) -> None:
    cluster.fill(1)
    cluster.run(3, 1, pause_ms=5_000)
    assert not archive(cluster)
    assert all(one.manager.metrics.displaced is None for one in cluster.members)
    assert cluster[2].manager.metrics.task_errors.total() == 0  # to wait is no failure
    cluster.run()
    assert all(cluster.ends())


def test_a_restarted_broker_is_named_by_the_keeper_and_continues(cluster: Cluster) -> None:
    cluster.fill(1)
    cluster.run()
    before = cluster.ends()
    cluster[2].reboot()
    cluster.quorum.unfence(2)
    cluster.quorum.elect(TOPIC, 1, 2)
    cluster.fill(2, 1)
    cluster[2].catch_up()
    cluster[2].run()
    assert cluster.ends() == before  # the keeper has not heard of it
    cluster.run()
    assert cluster.ends()[1] > before[1]


def test_named_brokers_continue_while_the_keeper_restarts(cluster: Cluster) -> None:
    cluster.fill(1)
    cluster.run()
    before = cluster.ends()
    cluster[1].reboot()  # it is registered, and has not looked at the bucket yet
    cluster.pass_time(SETTINGS.fence_age_ms)
    cluster.fill(2, 1, 2)
    cluster.run(2, 1)
    assert all(now > then for now, then in zip(cluster.ends()[1:], before[1:], strict=True))
    cluster.quorum.unfence(1)
    cluster.run()
    assert named(cluster)[0] == cluster[1].incarnations[-1]
    assert all(one.manager.metrics.displaced is None for one in cluster.members)


def test_the_next_one_follows_a_keeper_that_is_fenced_and_gives_way_to_it_again(cluster: Cluster) -> None:
    cluster.fill(1)
    cluster.run()
    cluster.quorum.fence(1)
    cluster.pass_time(SETTINGS.fence_age_ms)
    cluster.run()
    assert [one.is_keeper for one in cluster.members] == [False, True, False]
    assert named(cluster)[0] == cluster[2].incarnations[-1]
    cluster.quorum.unfence(1)
    cluster.pass_time(SETTINGS.fence_age_ms)
    cluster.run()
    assert [one.is_keeper for one in cluster.members] == [True, False, False]
    assert all(one.manager.metrics.displaced is None for one in cluster.members)


def test_a_deposed_keeper_stops_and_a_fenced_one_deletes_nothing(
    cluster: Cluster,
) -> None:
    cluster.run()
    orphan = segment_key(SegmentKey(TOPIC, 0, 0, 9, 0, uuid4()))
    cluster.bucket.put(orphan, b"?")
    keeper = cluster[1]
    keeper.do(keeper.manager.maintenance.sweep())
    cluster.pass_time(2 * GRACE_MS)
    cluster.quorum.fence(1)  # which it has not heard of: the barrier tells it
    with pytest.raises(NotNamed, match="is not the prefix's keeper"):
        keeper.do(keeper.manager.maintenance.sweep())
    assert orphan in archive(cluster)
    with pytest.raises(NotNamed, match="fenced"):
        keeper.do(keeper.manager._fence.check_before_delete())
    keeper.cut_off()
    with pytest.raises(StorageError):
        keeper.do(keeper.manager._fence.check_before_delete())


def test_the_keeper_copies_the_metadata_and_replaces_its_predecessor(
    cluster: Cluster,
) -> None:
    cluster[1].metadata = MetadataSnapshot(50, 1, lambda: [b"of broker 1"])
    cluster.run()
    stored = open_cluster_file(cluster.bucket)
    assert stored is not None
    assert stored.metadata is not None
    assert (stored.metadata.end_offset, stored.members) == (50, named(cluster)[1])
    cluster.quorum.fence(1)
    cluster.pass_time(SETTINGS.fence_age_ms)
    cluster[2].catch_up()
    cluster[2].run()  # follows it; the first has not heard of anything
    keeper = cluster[1]
    keeper.metadata = MetadataSnapshot(60, 1, lambda: [b"later"])
    copies = keeper.manager.maintenance._metadata
    copies.changed(0)
    keeper.manager._fence._checked_ms = keeper.clock.monotonic_ms()
    with pytest.raises(NotNamed):
        keeper.do(copies.run_due(keeper.clock.monotonic_ms()))
    assert keeper.manager.metrics.displaced is None
    assert open_cluster_file(cluster.bucket).metadata == stored.metadata


def test_nothing_is_swept_by_metadata_that_is_older_than_topics_json(cluster: Cluster) -> None:
    cluster.run()
    stored = open_topics(cluster.bucket)
    cluster.bucket.put("topics.json", encode_topics(CLUSTER, 10_000, stored.topics))
    with pytest.raises(StorageError, match="of metadata offset 10000"):
        cluster[1].do(cluster[1].manager.maintenance.sweep())
    cluster.bucket.put("topics.json", b"{")  # it says nothing
    cluster[1].do(cluster[1].manager.maintenance.sweep())


def test_a_store_without_conditional_writes_is_not_shared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(tmp_path, MemoryStore(SystemThreads()))
    for member in cluster.members:
        member.manager._fence.is_conditional = False
    cluster.fill(1)
    cluster.run()
    assert not archive(cluster)
    assert "cannot share a store" in caplog.text


# -- what is led ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [CommitStep.BEFORE_UPLOAD, CommitStep.UPLOADED, CommitStep.PROPOSED])
def test_losing_leadership_ends_a_copy_that_is_under_way(cluster: Cluster, step: CommitStep) -> None:
    cluster.run()
    leader = cluster[2]
    calls: list[str] = []

    def probe(reached: CommitStep, tip: object) -> None:
        if reached is step:
            cluster.quorum.elect(TOPIC, 1, 3)
            leader.catch_up()
            calls.clear()

    def decide(operation: str, key: str) -> Fault:
        calls.append(f"{operation} {key}")
        return Fault.PASS

    leader.probe, leader.store.decide = probe, decide
    before = len(cluster.quorum.history)
    cluster.fill(2, 1)
    cluster[1].run()  # it says that it keeps the prefix
    leader.run()
    assert not [call for call in calls if call.startswith("put")], calls
    assert len(cluster.quorum.history) == before
    assert leader.manager.metrics.task_errors.total() == 0
    cluster.run()
    assert cluster[3].lag(cluster.replica(1)) == 0
    cluster.be_swept()
    stored = archive(cluster)
    assert stored == {key for key in cluster[3].live_keys() if key.startswith("data")}


def test_a_unit_of_another_epoch_of_the_same_leader_ends_too(cluster: Cluster) -> None:
    cluster.run()
    leader = cluster[2]
    cluster.fill(1, 1)
    work = leader.manager.scheduler._archivers[TOPIC, 1]
    assert isinstance(work, PartitionArchiver)

    async def scenario() -> None:
        unit = asyncio.ensure_future(work.run_once())
        await asyncio.sleep(0)
        cluster.quorum.elect(TOPIC, 1, 3)
        cluster.quorum.elect(TOPIC, 1, 2)
        leader.catch_up()
        with pytest.raises(Deposed):
            await unit

    leader.do(scenario())
    cluster.run()
    assert leader.lag(cluster.replica(1)) == 0


def test_a_head_that_its_leader_did_not_come_to_write_is_written_by_the_keeper(cluster: Cluster) -> None:
    cluster.fill(1)
    cluster.run()
    leader, replica = cluster[2], cluster.replica(1)
    cluster.fill(1, 1)
    leader.probe = crash_at(CommitStep.COMMITTED)
    leader.catch_up()
    leader._boot = lambda: leader.manager  # type: ignore[method-assign]  # it stays away
    assert not leader.run()
    entry, head = leader.entry(replica), leader.head(replica)
    assert entry is not None
    assert head is not None
    assert head.version == entry.version - 1
    cluster.quorum.fence(2)
    cluster.quorum.elect(TOPIC, 1, -1)
    cluster[1].catch_up()
    cluster[1].do(cluster[1].manager.maintenance.sweep())
    head = leader.head(replica)
    assert head is not None
    assert head.manifest_key == entry.manifest_key
    assert cluster[1].manager.metrics.heads_repaired == 1


# -- what is swept -------------------------------------------------------------------------------------------


def test_only_objects_of_other_leaders_that_can_never_commit_are_swept(cluster: Cluster) -> None:
    cluster.fill(2)
    cluster.run()
    entry = cluster.quorum.entries[TOPIC, 1]
    epoch, end = cluster.quorum.leader_epochs[TOPIC, 1], entry.end_offset

    def segment(base: int, epoch: int) -> str:
        return segment_key(SegmentKey(TOPIC, 1, base, base + 9, epoch, uuid4()))

    dead = {
        segment(end, epoch - 1),  # of a leader of before
        segment(end - 1, epoch),  # the chain is beyond it
        manifest_key(ManifestKey(TOPIC, 1, entry.version, epoch, uuid4())),
        manifest_key(ManifestKey(TOPIC, 1, entry.version + 1, epoch - 1, uuid4())),
    }
    in_flight = {
        segment(end, epoch),
        manifest_key(ManifestKey(TOPIC, 1, entry.version + 1, epoch, uuid4())),
        page_key(PageKey(TOPIC, 1, 0, end - 1, 0, uuid4())),
    }
    left = {segment(end, epoch + 1), segment_key(SegmentKey(uuid4(), 0, 0, 9, 0, uuid4()))}
    for key in dead | in_flight | left:
        cluster.bucket.put(key, b"?")
    cluster.be_swept()
    assert archive(cluster) & (dead | in_flight | left) == in_flight | left
    assert cluster[1].manager.metrics.unknown_topics == 1
    cluster.fill(1, 1)  # the leader commits, so what was there before it never will be
    cluster.be_swept()
    assert archive(cluster) & (dead | in_flight | left) == left


def test_a_sweep_compares_its_list_with_the_catalog_after_the_barrier(cluster: Cluster) -> None:
    """A sweep may list what a commit has made possible that came after its barrier."""
    cluster.fill(1)
    cluster.run()
    keeper, page = cluster[1], page_key(PageKey(TOPIC, 1, 0, cluster.ends()[1] - 1, 0, uuid4()))
    cluster.bucket.put(page, b"?")

    def sweep() -> bool:
        cluster.pass_time(GRACE_MS)
        keeper.catch_up()
        keeper.do(keeper.manager.maintenance.sweep())
        return page in archive(cluster)

    def commit() -> None:
        cluster.fill(1, 1)
        cluster[2].catch_up()
        keeper.run()  # it says that it keeps the prefix
        cluster[2].run()

    assert sweep()
    commit()
    assert sweep()
    assert sweep()
    commit()
    assert not sweep()


def test_an_image_that_is_old_is_made_new_before_each_sweep(cluster: Cluster) -> None:
    """By an older epoch, what the new leader writes would look passed by as soon as that is heard of."""
    cluster.fill(1)
    cluster.run()
    keeper, page = cluster[1], page_key(PageKey(TOPIC, 1, 0, cluster.ends()[1] - 1, 0, uuid4()))
    cluster.quorum.elect(TOPIC, 1, 3)
    cluster.bucket.put(page, b"?")
    for _ in range(4):
        cluster.pass_time(GRACE_MS)
        # It reads no more of the metadata than the barrier makes it.
        keeper.do(keeper.manager.maintenance.sweep())
    assert page in archive(cluster)


def test_a_topic_that_is_made_while_the_bucket_is_listed_is_not_reported(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.run()
    new = uuid4()
    cluster.quorum.create("later", new, 1)
    cluster.bucket.put(segment_key(SegmentKey(new, 0, 0, 9, 0, uuid4())), b"?")
    keeper = cluster[1]
    keeper.manager._owner.barrier = _stale(keeper.manager._owner.barrier)  # type: ignore[method-assign]
    keeper.do(keeper.manager.maintenance.sweep())
    assert keeper.manager.metrics.unknown_topics == 0
    assert "not touched" not in caplog.text


def _stale(barrier: Callable[[], Coroutine[None, None, int]]) -> Callable[[], Coroutine[None, None, int]]:
    """A barrier that is passed, the first time, just before what is to be missed."""
    first = [True]

    async def passed() -> int:
        if first:
            first.clear()
            return 10_000
        return await barrier()

    return passed


# -- clones --------------------------------------------------------------------------------------------------


def clone_of(cluster: Cluster, tmp: Path) -> Cluster:
    """All disks are copied, and all brokers of the copy are started."""
    return Cluster(tmp / "clone", cluster.bucket, cluster.quorum.clone())


def test_a_cloned_cluster_takes_over_only_unchanged_partitions(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.fill(2)
    cluster.run()
    quorum = cluster.quorum.clone()
    cluster.fill(2, 2)  # after the disks were copied, one partition of the last broker goes on
    cluster.run()
    before = archive(cluster)
    clone = Cluster(tmp_path / "clone", cluster.bucket, quorum)
    clone.fill(9)
    clone.be_swept()
    assert archive(cluster) >= before
    assert named(cluster)[0] == cluster[1].incarnations[-1]
    assert "the bucket is ahead of this node's metadata in 1 partitions (events-2)" in caplog.text
    cluster.be_swept()
    assert all(one.manager.metrics.displaced is None for one in cluster.members)
    for member in cluster.members:
        member.check()


@pytest.mark.parametrize("is_restored", [False, True])
def test_the_cluster_that_a_clone_displaces_stops_and_neither_deletes_what_the_other_has(
    cluster: Cluster, tmp_path: Path, is_restored: bool
) -> None:
    cluster.fill(2)
    cluster.run(2)
    clone = clone_of(cluster, tmp_path)
    clone.fill(4)
    clone.run()
    assert named(cluster)[0] == clone[1].incarnations[-1]
    cluster.fill(6)
    before = archive(cluster)
    cluster.pass_time(SETTINGS.fence_age_ms)
    cluster.be_swept()
    assert archive(cluster) == before
    assert [one.manager.metrics.displaced is not None for one in cluster.members] == [True, True, True]
    clone.fill(1)
    clone.be_swept()
    assert fsck(cluster.bucket).errors == []
    assert archive(cluster) == {key for key in clone[1].live_keys() if key.startswith("data")}
    if is_restored:  # a restart does not help: the bucket has what this metadata has not
        before = archive(cluster)
        for number in BROKERS:
            cluster[number].reboot()
            cluster.quorum.unfence(number)
        cluster.be_swept()
        assert archive(cluster) >= before
        assert named(cluster)[0] == clone[1].incarnations[-1]


def test_a_clone_whose_keeper_has_not_started_does_not_write_in_the_other_s_name(
    cluster: Cluster, tmp_path: Path
) -> None:
    """In its metadata the other's process is still registered, and is the one that `cluster.json` names."""
    cluster.fill(1)
    cluster.run()
    quorum = cluster.quorum.clone()
    before = archive(cluster)
    member = Member(tmp_path / "clone", 2, quorum, cluster.bucket, seed=2000, partitions=3)
    quorum.unfence(2)
    for partition in range(3):
        quorum.elect(TOPIC, partition, 2)
    for replica in member.replicas:
        member.fill(5, replica)
    for _ in range(4):
        cluster[1].run()  # it says that it keeps the prefix
        member.catch_up()
        member.run()
        for one in (cluster[1], member):
            one.clock.advance(GRACE_MS)
    assert archive(cluster) == before
    assert member.manager.metrics.displaced is None


def test_another_clusters_id_displaces_a_keeper_and_ends_no_node(cluster: Cluster) -> None:
    cluster.fill(1)
    cluster.run()
    taken = read_cluster(cluster.bucket)._replace(cluster_id="stranger", members=())
    cluster.bucket.put("cluster.json", encode_cluster(taken))
    cluster.quorum.register(9, UUID(int=99))
    cluster.fill(1)
    cluster.run()
    assert "stranger" in str(cluster[1].manager.metrics.displaced)
    assert read_cluster(cluster.bucket) == taken, "nothing is written over it"
    assert not cluster[1].is_keeper
