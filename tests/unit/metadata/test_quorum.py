"""Three quorums on real directories, in one process: elections, kills, truncation, snapshots."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.api_versions.v4.response import ApiVersionsResponse, SupportedFeatureKey
from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from service.base.disk import SystemDisk
from service.base.errors import RequestError, StorageError
from service.base.world import system_world
from service.metadata.endpoint import Endpoint
from service.metadata.frames import newest
from service.metadata.publisher import MetadataOptions, Publisher, QuorumOptions
from service.metadata.raft import messages
from service.metadata.raft.control import VoterRecords
from service.metadata.raft.keys import ReplicaKey, SnapshotId
from service.metadata.raft.requests import (
    AddVoter,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RemoveVoter,
    UpgradeKRaftVersion,
)
from service.metadata.raft.roles import Leader, RaftTiming, ReplicaIdentity, Role
from service.metadata.raft.snapshots import write_snapshot
from service.metadata.raft.voters import VoterNode, VoterSet
from service.metadata.records import TopicRecord
from service.metadata.snapshot_codec import encode_snapshot

TIMING = RaftTiming(
    election_timeout_ms=300, fetch_timeout_ms=800, election_backoff_max_ms=200, request_timeout_ms=800
)
VOTERS = VoterSet(VoterNode(ReplicaKey(i), (Endpoint("CONTROLLER", f"n{i}", 9093),)) for i in (1, 2, 3))


VERSIONS = ApiVersionsResponse(
    error_code=ErrorCode.none,
    api_keys=(),
    throttle_time=timedelta(),
    supported_features=(SupportedFeatureKey(name="kraft.version", min_version=0, max_version=1),),
)


class InProcess:
    """Peers of one node: requests go through Kafka's messages to the others of `cluster`."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self._cluster = cluster
        self._node_id = node_id

    async def call(self, peer: Endpoint, api_key: int, version: int, message: Any) -> Any:
        await asyncio.sleep(0)
        node_id = int(peer.host[1:])
        publisher = self._cluster.running.get(node_id)
        if publisher is None or publisher._quorum is None:
            raise ConnectionRefusedError(peer.host)
        await self._maybe_lost(node_id)
        if api_key == 18:  # the listener's
            return VERSIONS
        try:
            answer = await publisher.quorum.handle(api_key, version, message)
        except StorageError as e:  # it ends, and its connections with it
            raise ConnectionResetError(peer.host) from e
        await self._maybe_lost(node_id)
        return answer

    async def _maybe_lost(self, node_id: int) -> None:
        if {node_id, self._node_id} & self._cluster.cut_off:
            await asyncio.sleep(3600)


class Cluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: dict[int, Publisher] = {}
        self.cut_off: set[int] = set()
        self.led: list[tuple[int, int]] = []

    async def start(
        self,
        node_id: int,
        voters: VoterSet = VOTERS,
        bootstrap: tuple[Endpoint, ...] = (),
        *,
        port: int = 9093,
        timing: RaftTiming = TIMING,
        directory: UUID | None = None,
        **options: Any,
    ) -> Publisher:
        endpoint = Endpoint("CONTROLLER", f"n{node_id}", port)
        identity = ReplicaIdentity(
            ReplicaKey(node_id, directory or UUID(int=node_id)), "cluster", (endpoint,), bootstrap
        )
        world = replace(system_world(SystemClock()), random=random.Random(node_id))
        given = MetadataOptions(
            node_id,
            self.directory / str(node_id),
            quorum=QuorumOptions(identity, voters, timing),
            **options,
        )
        publisher = Publisher(given, world, on_fatal=_refuse, peers=InProcess(self, node_id))
        publisher.set_controller(_Guest(self, node_id))
        self.running[node_id] = publisher
        await publisher.start()
        return publisher

    async def stop(self, node_id: int) -> None:
        await self.running.pop(node_id).stop()

    async def stop_all(self) -> None:
        for node_id in list(self.running):
            await self.stop(node_id)

    def leader(self) -> Publisher | None:
        found = [
            one
            for node_id, one in self.running.items()
            if node_id not in self.cut_off and one._quorum is not None and one.quorum.is_leader
        ]
        return found[0] if len(found) == 1 else None


class _Guest:
    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self._cluster, self._node_id = cluster, node_id

    def on_lead(self, epoch: int) -> None:
        self._cluster.led.append((epoch, self._node_id))

    def on_step_down(self) -> None:
        self._cluster.led.append((-1, self._node_id))


def _refuse(what: str, error: BaseException) -> None:
    raise AssertionError(what) from error


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.01)
    return found


def propose(leader: Publisher, name: str) -> int:
    """Write a topic; returns its offset. It is not committed yet."""
    before = leader.image
    offset = leader.next_offset
    record = newest(TopicRecord(name=name, topic_id=UUID(bytes=name.rjust(16).encode())))
    steps = leader.propose([record], before)
    try:
        while True:
            next(steps)
    except StopIteration:
        return offset


async def write(cluster: Cluster, name: str) -> None:
    def try_it() -> tuple[Publisher, int] | None:
        leader = cluster.leader()
        if leader is None or leader.image.offset + 1 != leader.next_offset:
            return None
        return leader, propose(leader, name)

    leader, offset = await until(try_it)
    await leader.committed(offset)


def has(publisher: Publisher, name: str) -> bool:
    return name in publisher.image.topics_by_name


def log_of(cluster: Cluster, node_id: int) -> bytes:
    directory = cluster.directory / str(node_id) / "__cluster_metadata-0"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


async def same_logs(cluster: Cluster) -> bytes:
    """Once all have the same log, byte for byte: that."""
    await until(lambda: len({log_of(cluster, node_id) for node_id in cluster.running}) == 1)
    return log_of(cluster, 1)


def test_a_quorum_elects_a_leader_and_survives_a_kill(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        for node_id in (1, 2, 3):
            await cluster.start(node_id)
        await write(cluster, "first")
        await until(lambda: all(has(one, "first") for one in cluster.running.values()))
        leader = await until(cluster.leader)
        (gone,) = [node_id for node_id, one in cluster.running.items() if one is leader]
        await cluster.stop(gone)
        assert (-1, gone) in cluster.led[-2:], "the next one may lead already"
        began = time.monotonic()
        await write(cluster, "second")
        assert time.monotonic() - began < 5
        await cluster.start(gone)
        await until(lambda: has(cluster.running[gone], "second"))
        epochs = [epoch for epoch, _ in cluster.led if epoch >= 0]
        assert len(epochs) == len(set(epochs))
        answer = await (await until(cluster.leader)).quorum.ask(DescribeQuorumRequest())
        assert isinstance(answer, DescribeQuorumResponse)
        assert [one.key.node_id for one in answer.voters] == [1, 2, 3]
        await same_logs(cluster)
        await cluster.stop_all()

    asyncio.run(scenario())


def test_records_of_an_isolated_leader_are_truncated_and_never_published(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        for node_id in (1, 2, 3):
            await cluster.start(node_id)
        await write(cluster, "first")
        await until(lambda: all(has(one, "first") for one in cluster.running.values()))
        old = await until(cluster.leader)
        (alone,) = [node_id for node_id, one in cluster.running.items() if one is old]
        cluster.cut_off.add(alone)
        propose(old, "never")
        await write(cluster, "instead")
        await until(lambda: not old.quorum.is_leader)
        with pytest.raises(RequestError) as refused:
            propose(old, "late")
        assert refused.value.code is ErrorCode.not_controller
        cluster.cut_off.clear()
        await until(lambda: has(old, "instead"))
        assert not has(old, "never")
        assert b"never" not in await same_logs(cluster)
        await cluster.stop_all()

    asyncio.run(scenario())


def test_an_empty_voter_gets_a_snapshot_and_the_log_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        for node_id in (1, 2):
            await cluster.start(node_id, snapshot_max_bytes=1)
        for i in range(6):
            await write(cluster, f"topic-{i}")
        leader = await until(cluster.leader)
        await until(lambda: leader.quorum.machine.core.log.start_offset > 0)
        await cluster.start(3)
        late = cluster.running[3]
        await until(lambda: all(has(late, f"topic-{i}") for i in range(6)))
        assert late.quorum.machine.core.log.start_offset > 0
        await write(cluster, "after")
        await until(lambda: has(late, "after"))
        await cluster.stop(3)
        await cluster.start(3)
        await until(lambda: has(cluster.running[3], "after"))
        assert cluster.running[3].quorum.machine.role in (Role.FOLLOWER, Role.LEADER)
        await cluster.stop_all()

    asyncio.run(scenario())


def test_a_bug_in_the_snapshot_check_stops_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would wait for the proof, and ask for nothing more, for as long as its leader lives."""
    fatal: list[tuple[str, BaseException]] = []

    def validate(publisher: Publisher, snapshot: SnapshotId) -> None:
        raise RuntimeError("a bug")

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        for node_id in (1, 2):
            await cluster.start(node_id, snapshot_max_bytes=1)
        for i in range(4):
            await write(cluster, f"topic-{i}")
        leader = await until(cluster.leader)
        await until(lambda: leader.quorum.machine.core.log.start_offset > 0)
        monkeypatch.setattr(Publisher, "_validate_snapshot", validate)
        monkeypatch.setattr("tests.unit.metadata.test_quorum._refuse", lambda *given: fatal.append(given))
        await cluster.start(3)
        await until(lambda: fatal)
        assert [(what, str(error)) for what, error in fatal] == [("metadata log", "a bug")]
        await cluster.stop_all()

    asyncio.run(scenario())


def test_a_formatted_voter_takes_others_in_and_lets_them_go(tmp_path: Path) -> None:
    """kraft.version 1: the voters come with the bootstrap snapshot, then from the log."""
    places = {node_id: Endpoint("CONTROLLER", f"n{node_id}", 9093) for node_id in (1, 2)}
    first = VoterSet([VoterNode(ReplicaKey(1, UUID(int=1)), (places[1],))])
    directory = tmp_path / "1" / "__cluster_metadata-0"
    directory.mkdir(parents=True)
    batches = encode_snapshot((), epoch=0, last_timestamp_ms=0, now_ms=0, voters=VoterRecords(first, 1))
    write_snapshot(SystemDisk(), directory, SnapshotId(0, 0), batches)

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        one = await cluster.start(1, VoterSet())
        assert one.quorum.is_leader
        two = await cluster.start(2, VoterSet(), (places[1],))
        await write(cluster, "first")
        await until(lambda: has(two, "first"))
        new = VoterNode(ReplicaKey(2, UUID(int=2)), (places[2],))
        state = one.quorum.machine.core.state
        assert isinstance(state, Leader)
        await until(lambda: state.replicas[new.key].last_caught_up_ms >= 0)
        assert (await one.quorum.ask(AddVoter(new))).error is ErrorCode.none
        assert one.quorum.machine.voters.ids == (1, 2)
        assert (await one.quorum.ask(AddVoter(new))).error is ErrorCode.duplicate_voter
        await until(lambda: two.quorum.machine.voters.ids == (1, 2))
        await write(cluster, "second")
        await cluster.stop_all()
        assert b'"data_version":1' in (directory / "quorum-state").read_bytes()
        for node_id in (1, 2):
            await cluster.start(node_id, VoterSet(), (places[1],))
        leader = await until(cluster.leader)
        assert leader.quorum.machine.voters.ids == (1, 2), "it is in the log"
        await write(cluster, "third")
        answer = await leader.quorum.ask(RemoveVoter(ReplicaKey(1, UUID(int=1))))
        assert answer.error is ErrorCode.none
        await until(lambda: cluster.running[2].quorum.is_leader)
        assert cluster.running[2].quorum.machine.voters.ids == (2,)
        await write(cluster, "fourth")
        await until(lambda: has(cluster.running[1], "fourth"))
        await cluster.stop_all()

    asyncio.run(scenario())


def format_voters(directory: Path, *node_ids: int) -> VoterSet:
    """Format as `firn format --initial-controllers` does; return the voters."""
    voters = VoterSet(VoterNode(ReplicaKey(i, UUID(int=i)), (place(i),)) for i in node_ids)
    for node_id in node_ids:
        path = directory / str(node_id) / "__cluster_metadata-0"
        path.mkdir(parents=True)
        batches = encode_snapshot((), epoch=0, last_timestamp_ms=0, now_ms=0, voters=VoterRecords(voters, 1))
        write_snapshot(SystemDisk(), path, SnapshotId(0, 0), batches)
    return voters


def place(node_id: int) -> Endpoint:
    return Endpoint("CONTROLLER", f"n{node_id}", 9093)


@pytest.mark.parametrize("leftover", [False, True])
def test_a_voter_that_restarts_at_a_snapshot_deletes_older_snapshots(tmp_path: Path, leftover: bool) -> None:
    """`leftover`: a crash came before the files were gone."""
    format_voters(tmp_path, 1, 2, 3)
    bootstrap = tmp_path / "3" / "__cluster_metadata-0" / SnapshotId(0, 0).file_name
    kept = bootstrap.read_bytes()

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        for node_id in (1, 2):
            await cluster.start(node_id, VoterSet(), snapshot_max_bytes=1)
        for i in range(6):
            await write(cluster, f"topic-{i}")
        leader = await until(cluster.leader)
        await until(lambda: leader.quorum.machine.core.log.start_offset > 0)
        late = await cluster.start(3, VoterSet())
        await until(lambda: all(has(late, f"topic-{i}") for i in range(6)))
        assert late.quorum.machine.voters.ids == (1, 2, 3)
        assert not bootstrap.exists()
        await cluster.stop(3)
        if leftover:
            bootstrap.write_bytes(kept)
        late = await cluster.start(3, VoterSet(), snapshot_max_bytes=1)
        await write(cluster, "after")
        await until(lambda: has(late, "after") and has(late, "topic-5"))
        assert late.quorum.machine.voters.ids == (1, 2, 3)
        await until(lambda: not bootstrap.exists())
        await cluster.stop_all()

    asyncio.run(scenario())


QUICK = replace(TIMING, fetch_timeout_ms=600, fetch_wait_ms=100)
"""Voters say where they are every 1.8 s."""


async def describe(cluster: Cluster, version: int = 2) -> Any:
    """DescribeQuorum of whoever leads, through Kafka's messages."""
    module = messages.module_of(55, version, "request")
    partition = messages.make(module, "PartitionData", partition_index=0)
    topic = messages.make(module, "TopicData", topic_name="__cluster_metadata", partitions=(partition,))
    request = messages.make(module, "DescribeQuorumRequest", topics=(topic,))
    leader = await until(cluster.leader)
    return await leader.quorum.handle(55, version, request)


def test_static_voters_are_upgraded_and_move_from_then_on(tmp_path: Path) -> None:
    """kraft.version 0 to 1 once every voter has told its directory; then a voter comes back elsewhere."""

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        for node_id in (1, 2, 3):
            await cluster.start(node_id, timing=QUICK)
        await write(cluster, "first")

        async def upgraded() -> bool:
            leader = await until(cluster.leader)
            answer = await leader.quorum.ask(UpgradeKRaftVersion(1))
            return bool(answer.error is ErrorCode.none)

        assert not await upgraded(), "nobody has told its directory yet"
        end = time.monotonic() + 15
        while not await upgraded():
            assert time.monotonic() < end
            await asyncio.sleep(0.1)
        everybody = list(cluster.running.values())
        await until(lambda: all(one.quorum.machine.core.log.voters.version == 1 for one in everybody))
        voters = everybody[0].quorum.machine.voters
        assert [one.key for one in voters] == [ReplicaKey(i, UUID(int=i)) for i in (1, 2, 3)]
        leader = await until(cluster.leader)
        (moved,) = [i for i, one in cluster.running.items() if one is not leader][:1]
        await cluster.stop(moved)
        await cluster.start(moved, port=9999, timing=QUICK)
        there = Endpoint("CONTROLLER", f"n{moved}", 9999)

        def is_known_there(publisher: Publisher) -> bool:
            voter = publisher.quorum.machine.voters.get(moved)
            return voter is not None and voter.endpoints == (there,)

        await until(lambda: all(map(is_known_there, cluster.running.values())))
        answer = await describe(cluster)
        (partition,) = answer.topics[0].partitions
        assert partition.error_code is ErrorCode.none
        assert {one.replica_id for one in partition.current_voters} == {1, 2, 3}
        assert {one.replica_directory_id for one in partition.current_voters} == {
            UUID(int=i) for i in (1, 2, 3)
        }
        now_ms = time.time() * 1000
        for one in partition.current_voters:
            assert now_ms - 60_000 < one.last_fetch_timestamp < now_ms + 1000
        assert {one.node_id: one.listeners[0].port for one in answer.nodes}[moved] == 9999
        await write(cluster, "second")
        await cluster.stop_all()
        for node_id in (1, 2, 3):
            await cluster.start(node_id, timing=QUICK, port=9999 if node_id == moved else 9093)
        await write(cluster, "third")
        assert all(one.quorum.machine.core.log.voters.version == 1 for one in cluster.running.values())
        await cluster.stop_all()

    asyncio.run(scenario())


def test_a_controller_joins_by_itself_and_replaces_its_own_wiped_disk(tmp_path: Path) -> None:
    format_voters(tmp_path, 1)
    joins = replace(QUICK, auto_join=True)

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        await cluster.start(1, VoterSet(), timing=QUICK)
        await write(cluster, "first")
        for node_id in (2, 3):
            await cluster.start(node_id, VoterSet(), (place(1),), timing=joins)
        everybody = cluster.running
        await until(lambda: all(one.quorum.machine.voters.ids == (1, 2, 3) for one in everybody.values()), 20)
        leader = await until(cluster.leader)
        gone = 3 if everybody[3] is not leader else 2
        await cluster.stop(gone)
        (tmp_path / str(gone)).rename(tmp_path / "wiped")
        await cluster.start(
            gone, VoterSet(), (place(1), place(5 - gone)), timing=joins, directory=UUID(int=77)
        )
        key = ReplicaKey(gone, UUID(int=77))
        await until(lambda: all(one.quorum.machine.voters.has(key) for one in everybody.values()), 20)
        assert all(one.quorum.machine.voters.ids == (1, 2, 3) for one in everybody.values())
        await write(cluster, "second")
        await until(lambda: has(everybody[gone], "first") and has(everybody[gone], "second"))
        for version in (0, 1, 2):
            (partition,) = (await describe(cluster, version)).topics[0].partitions
            assert partition.error_code is ErrorCode.none
            assert {one.replica_id for one in partition.current_voters} == {1, 2, 3}
            assert {one.replica_id for one in partition.observers} <= {gone}, "its old disk"
        await cluster.stop_all()

    asyncio.run(scenario())


def test_logs_are_truncated_and_restarted_while_they_are_read(tmp_path: Path) -> None:
    """Leaders that write alone are cut off in turn, and snapshots overtake whoever was away."""

    async def scenario() -> None:
        random_ = random.Random(7)
        cluster = Cluster(tmp_path)
        for node_id in (1, 2, 3):
            await cluster.start(node_id, snapshot_max_bytes=400)
        written: list[str] = []
        for turn in range(10):
            old = await until(cluster.leader)
            (alone,) = [node_id for node_id, one in cluster.running.items() if one is old]
            if random_.random() < 0.7:
                cluster.cut_off.add(alone)
                for i in range(random_.randint(1, 20)):
                    if old.quorum.is_leader:
                        propose(old, f"lost-{turn}-{i}")
            else:
                await cluster.stop(alone)
            for i in range(random_.randint(1, 12)):
                written.append(f"kept-{turn}-{i}")
                await write(cluster, written[-1])
            cluster.cut_off.clear()
            if alone not in cluster.running:
                await cluster.start(alone, snapshot_max_bytes=400)
        everybody = list(cluster.running.values())
        await until(lambda: all(has(one, name) for one in everybody for name in written[-3:]), 20)
        for one in everybody:
            assert sorted(one.image.topics_by_name) == sorted(written)
        await cluster.stop_all()

    asyncio.run(scenario())


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_vote_of_another_cluster_or_partition_is_refused(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        publisher = await cluster.start(1)
        module = messages.module_of(52, version, "request")
        for cluster_id, error in (
            ("other", ErrorCode.inconsistent_cluster_id),
            (None, ErrorCode.invalid_request),
        ):
            values = {"cluster_id": cluster_id, "voter_id": 1}
            request = messages.make(module, "VoteRequest", topics=(), **values)
            answer = await publisher.quorum.handle(52, version, request)
            assert answer.error_code is error
        await cluster.stop_all()

    asyncio.run(scenario())
