"""Fetchers of a leader's partitions: those in sync, and those that lag."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from service.base.clock import SystemClock
from service.base.purgatory import Purgatory
from service.base.slices import Slice
from service.base.steps import at_once
from service.base.types import TopicIdPartition
from service.config.settings import BrokerConfig, LogConfig
from service.hot.log import LocalLog
from service.metadata.image import BrokerImage, EndpointImage, MetadataImage, PartitionImage
from service.partition.partition import Partition
from service.replicas.replica_manager import ReplicaManager
from service.wire.api import ApiKey, RequestHeader, encode_request
from service.wire.fetch import FetchPartitionResult, encode_fetch_response, parse_fetch
from tests.support.peers import Peer, peer, sound
from tests.support.waiting import until
from tests.support.world import make_world
from tests.unit.partition.following import NoFiles
from tests.unit.replication.fetching import Bucket

ME, LEADER, EPOCH = 1, 2, 5


@dataclass
class Leading:
    """A leader that sends nothing of its logs, and what each client has in its fetch session with it."""

    sessions: dict[str, set[UUID]] = field(default_factory=lambda: defaultdict(set))
    committed: int = 10
    """what it tells of every log"""

    async def behave(self, header: RequestHeader, message: Any) -> bytes | None:
        if header.api_key != ApiKey.FETCH:
            return sound(header, message)
        client = header.client_id or ""
        frame = encode_request(ApiKey.FETCH, 18, 7, "", message)
        view = parse_fetch(18, frame, 4 + 8 + 2 + 1)
        asked = self.sessions[client]
        if view.session_epoch == 0:
            asked.clear()
        asked -= {cast("UUID", topic_id) for topic_id, _ in view.forgotten}
        asked |= {cast("UUID", topic_id) for topic_id, _ in view.topics}
        if view.session_epoch:
            await asyncio.sleep(0.02)
        told = FetchPartitionResult(0, high_watermark=self.committed, log_start_offset=0)
        results = [(one, [told]) for one in asked]
        parts: list[Any] = encode_fetch_response(18, header.correlation_id, results, session_id=9)
        return b"".join(bytes(one) for one in parts)


def image_of(isr: tuple[int, ...]) -> PartitionImage:
    return PartitionImage((ME, LEADER), isr, LEADER, EPOCH, len(isr), (UUID(int=1), UUID(int=1)))


class Following:
    """Fetchers of one broker from a leader."""

    def __init__(
        self,
        folder: Path,
        node: Peer,
        bugs: list[str],
        new_queue: Callable[[], Any] = lambda: None,
        **config: str,
    ) -> None:
        self.folder = folder
        self.config = BrokerConfig.from_properties({"node.id": "1", "log.dirs": str(folder), **config})
        self.replication = ReplicaManager(
            ME, self.config.replication, "PLAINTEXT", lambda: 100, new_queue, SystemClock(),
            Bucket({}), cast("Any", NoFiles()), lambda _: None,
            lambda name, error: bugs.append(f"{name}: {error}"), random.Random(1).random,
        )  # fmt: skip
        self.led_at(node)

    def led_at(self, node: Peer) -> None:
        """The leader listens there from now on."""
        place = EndpointImage("PLAINTEXT", node.address.host, node.address.port, 0)
        leader = BrokerImage(LEADER, 102, UUID(int=9), (place,), (), None, False, False, ())
        self.replication.update_brokers(MetadataImage(brokers={LEADER: leader}), [LEADER])

    def partition(self, number: int) -> Partition:
        tip = TopicIdPartition(UUID(int=number), f"t{number}", 0)
        log = LocalLog.open(self.folder / f"{tip}", tip, LogConfig(), world=make_world())
        return Partition(tip, log, None, EPOCH, 1, 1 << 20, Purgatory(0), is_leader=False)


def observe(folder: Path, scenario: Callable[[Following, Leading], Awaitable[None]]) -> None:
    bugs: list[str] = []

    async def whole() -> None:
        leading = Leading()
        async with peer(leading.behave) as node:
            following = Following(folder, node, bugs)
            await scenario(following, leading)
            await following.replication.close()

    asyncio.run(whole())
    assert bugs == []


def test_lagging_partitions_have_their_own_fetcher_until_in_sync(tmp_path: Path) -> None:
    async def scenario(following: Following, leading: Leading) -> None:
        replication = following.replication
        synced, behind = following.partition(1), following.partition(2)
        replication.follow(synced, image_of((ME, LEADER)), is_unclean=False)
        replication.follow(behind, image_of((LEADER,)), is_unclean=False)
        name, late = "broker-1-fetcher-0", "broker-1-fetcher-0-behind"
        ids = [one.tip.topic_id for one in (synced, behind)]
        await until(lambda: leading.sessions == {name: {ids[0]}, late: {ids[1]}})
        replication.follow(behind, image_of((ME, LEADER)), is_unclean=False)
        await until(lambda: leading.sessions[name] == set(ids))
        assert len(replication._fetching) == 1, "nobody is behind: that loop has ended"
        replication.follow(synced, image_of((LEADER,)), is_unclean=False)
        await until(lambda: leading.sessions == {name: {ids[1]}, late: {ids[0]}})

    observe(tmp_path, scenario)


def test_caught_up_partitions_move_to_the_in_sync_fetcher(
    tmp_path: Path,
) -> None:
    async def scenario(following: Following, leading: Leading) -> None:
        leading.committed = 0
        replication = following.replication
        synced, near = following.partition(1), following.partition(2)
        replication.follow(synced, image_of((ME, LEADER)), is_unclean=False)
        replication.follow(near, image_of((LEADER,)), is_unclean=False)
        name, late = "broker-1-fetcher-0", "broker-1-fetcher-0-behind"
        both = {synced.tip.topic_id, near.tip.topic_id}
        await until(lambda: leading.sessions[name] == both)
        assert len(replication._fetching) == 1, "nobody is behind: that loop has ended"
        replication.follow(near, image_of((LEADER,))._replace(partition_epoch=9), is_unclean=False)
        replication.follow(near, image_of((ME, LEADER)), is_unclean=False)
        assert len(replication._fetching) == 1
        # Another time is another matter, and so is another leader.
        leading.committed = 10
        leading.sessions.pop(late)
        replication.follow(near, image_of((LEADER,)), is_unclean=False)
        await until(lambda: leading.sessions == {name: both - {near.tip.topic_id}, late: {near.tip.topic_id}})
        replication._caught_up(near.tip, EPOCH - 1)
        assert len(replication._fetching) == 2, "an earlier leader is not asked any more"
        replication._caught_up(near.tip, EPOCH)
        assert len(replication._fetching) == 1
        replication.follow(near, image_of((LEADER,))._replace(leader_epoch=EPOCH + 1), is_unclean=False)
        assert len(replication._fetching) == 2
        replication.leave(near.tip)
        replication._caught_up(near.tip, EPOCH + 1)
        assert len(replication._fetching) == 1

    observe(tmp_path, scenario)


def test_a_leader_with_a_new_endpoint_is_reached_there_at_once(tmp_path: Path) -> None:
    """Its machine has gone without a word, with a fetch under way."""
    asked = asyncio.Event()

    async def silent(header: RequestHeader, message: Any) -> bytes | None:
        if header.api_key == ApiKey.FETCH:
            asked.set()
            return None
        return sound(header, message)

    async def scenario(_: Following, leading: Leading) -> None:
        async with peer(silent) as gone, peer(leading.behave) as back:
            following = Following(tmp_path, gone, [])
            partition = following.partition(1)
            following.replication.follow(partition, image_of((ME, LEADER)), is_unclean=False)
            await asked.wait()
            following.led_at(back)
            await until(lambda: bool(leading.sessions))
            await following.replication.close()

    observe(tmp_path / "other", scenario)


def test_alter_partition_queue_do_not_wait_for_directory_assignments(tmp_path: Path) -> None:
    class Silent:
        """A queue to a controller that answers nothing."""

        def __init__(self) -> None:
            self.turn = asyncio.Lock()

        async def ask(self, api_key: int, *_: Any, **__: Any) -> Any:
            async with self.turn:
                under_way.add(api_key)
                await asyncio.Event().wait()

    under_way: set[int] = set()

    async def scenario(_: Following, leading: Leading) -> None:
        async with peer(leading.behave) as node:
            config = {"replica.lag.time.max.ms": "100", "replica.fetch.wait.max.ms": "50"}
            following = Following(tmp_path, node, [], Silent, **config)
            partition, image = following.partition(1), image_of((ME, LEADER))
            following.replication.lost(following.partition(2).tip, image)
            running = asyncio.create_task(following.replication.run())
            await until(lambda: under_way == {ApiKey.ASSIGN_REPLICAS_TO_DIRS})
            following.replication.lead(partition, image._replace(leader=ME))
            await until(lambda: ApiKey.ALTER_PARTITION in under_way)
            running.cancel()
            await asyncio.wait({running})
            await following.replication.close()

    observe(tmp_path / "other", scenario)


def test_changing_num_replica_fetchers_redistributes_partitions(tmp_path: Path) -> None:
    async def scenario(following: Following, leading: Leading) -> None:
        replication = following.replication
        partitions = [following.partition(number) for number in range(4)]
        for one in partitions:
            replication.follow(one, image_of((ME, LEADER)), is_unclean=False)
        ids = [one.tip.topic_id for one in partitions]
        first, second = "broker-1-fetcher-0", "broker-1-fetcher-1"
        await until(lambda: leading.sessions == {first: set(ids)})
        for loops, spread in (
            (2, {first: {ids[0], ids[2]}, second: {ids[1], ids[3]}}),
            (1, {first: set(ids)}),
        ):
            changed = following.config.with_dynamic({"num.replica.fetchers": str(loops)}, {})
            assert not replication.configure(changed.replication), "of throttles it says nothing"
            await Slice().go_on(replication.spread())
            leading.sessions.pop(second, None)
            await until(lambda spread=spread: leading.sessions == spread)  # type: ignore[misc]
            assert len(replication._fetching) == loops

    observe(tmp_path, scenario)


def test_added_replicas_do_not_count_as_under_replicated(tmp_path: Path) -> None:
    """As of Kafka's ``UnderReplicatedPartitions``, and by what ``kafka-topics`` lists."""

    async def scenario(following: Following, leading: Leading) -> None:
        def counted(*isr: int, adding: tuple[int, ...] = ()) -> tuple[int, int]:
            replica = PartitionImage(
                replicas=(ME, LEADER, 3), isr=isr, leader=ME, leader_epoch=EPOCH,
                partition_epoch=next(epochs),
                directories=(UUID(int=1),) * 3, adding_replicas=adding,
            )  # fmt: skip
            following.replication.lead(partition, replica)
            found = at_once(following.replication.counts())
            return found.led, found.under_replicated

        epochs, partition = count(1), following.partition(1)
        assert counted(ME, LEADER, adding=(3,)) == (1, 0)
        assert counted(ME, adding=(3,)) == (1, 1), "one that is not added is missed"
        assert counted(ME, LEADER) == (1, 1), "now it should be there"
        assert counted(ME, LEADER, 3) == (1, 0)

    observe(tmp_path, scenario)
