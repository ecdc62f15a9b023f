"""Replicas that this broker shares with others: those that it leads, and fetchers for those that it follows.

The metadata applier calls `lead`, `follow` and `leave` for each partition of several replicas. A partition
that follows in a directory without room is paused: nothing is fetched until there is room. Each leader (and
fetcher number) has one fetcher for partitions in sync and one for the others: acks=all waits for the former,
and must not wait for megabytes of the latter. One loop proposes in-sync replicas to the controller. Owned by
the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.base.clock import Clock
from service.base.rate_limited_log import RateLimitedLog
from service.base.slices import Slice
from service.base.steps import Steps
from service.base.types import TopicIdPartition
from service.client.node_channel import Channel, ChannelOptions, Channels
from service.client.security import PLAINTEXT, Security
from service.config.replication import ReplicationConfig
from service.controller_client.forwarding import Asker
from service.hot.log import LocalLog
from service.metadata.controller.partition_change import LOST
from service.metadata.image import BrokerImage, EndpointImage, MetadataImage, PartitionImage, TopicImage
from service.network.metrics import ChannelMetrics
from service.partition.follower_log import LocalFollowerLog, Logs
from service.partition.partition import Partition
from service.replicas.alter_partition_manager import AlterPartitionManager
from service.replicas.assignments_manager import AssignmentsManager
from service.replicas.replica_figures import measure_led
from service.replicas.watched_log import Room, WatchedLog
from service.replication.alter_partition_queue import ProposalResult
from service.replication.fetcher import Fetcher, FetcherSettings, LocalStartBuilder
from service.replication.leader import NOTHING, BrokerStatus, LeaderSettings, Leadership, LeaderState
from service.replication.metrics import ReplicationMetrics
from service.replication.throttle import Quota, ReplicationThrottle

_LOG = logging.getLogger(__name__)
_RECOVERED: Final = 0


class _Place(NamedTuple):
    """Identity of a fetcher."""

    leader: int
    number: int
    has_caught_up: bool
    """for partitions in sync, or about to be: acks=all does not wait behind partitions that lag"""


class ReplicaManager:
    """All partitions of this broker that have replicas elsewhere, too."""

    def __init__(
        self,
        broker_id: int,
        config: ReplicationConfig,
        listener: str,
        broker_epoch: Callable[[], int],
        new_queue: Callable[[], Asker],
        clock: Clock,
        archive: LocalStartBuilder,
        logs: Logs,
        directory_of: Callable[[LocalLog], UUID | None],
        on_bug: Callable[[str, BaseException], None],
        chance: Callable[[], float],
        channel_metrics: ChannelMetrics | None = None,
        security: Security = PLAINTEXT,
    ) -> None:
        """`listener`: name of the listener between brokers. `new_queue` makes a request queue to the
        controller. `directory_of`: id of a log's directory. `on_bug` gets exceptions that neither a peer nor
        a disk causes. `channel_metrics` counts for the connections of fetchers, which have
        `security`."""
        self._me = broker_id
        self._config = config
        self._listener = listener
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._archive = archive
        self._logs = logs
        self._directory_of = directory_of
        self._on_bug = on_bug
        self._chance = chance
        self._channel_metrics = channel_metrics or ChannelMetrics()
        self._security = security
        self._settings = LeaderSettings(lag_time_max_ms=config.lag_time_max_ms)
        self._brokers: dict[int, BrokerStatus] = {}
        self._places: dict[int, EndpointImage] = {}
        windows = config.replication_quota_window_num, config.replication_quota_window_size_seconds
        self.leader_throttle = ReplicationThrottle(broker_id, Quota(*windows))
        """of what is sent to followers"""
        self.follower_throttle = ReplicationThrottle(broker_id, Quota(*windows))
        """of what is fetched"""
        self.metrics = ReplicationMetrics()
        self._led: dict[TopicIdPartition, Partition] = {}
        self._moving: dict[TopicIdPartition, int] = {}
        """number of replicas that a reassignment adds: they do not count as missing until it is done"""
        self._by_follower: dict[int, dict[TopicIdPartition, None]] = {}
        """led partitions, by each other broker that has a replica"""
        self._followed: dict[TopicIdPartition, _Followed] = {}
        self._marks: dict[Partition, None] = {}
        """partitions whose high watermark has moved since the last call of `marks`"""
        self._fetching: dict[_Place, _Fetching] = {}
        self._out_of_sync: set[TopicIdPartition] = set()
        """followed here, and not in sync"""
        self._caught_up_in: dict[TopicIdPartition, int] = {}
        """of these, partitions that have caught up with the leader of this epoch, which has to add them to
        the ISR"""
        self._room: Room | None = None
        self._room_changed = asyncio.Event()
        self._resting: dict[TopicIdPartition, _Followed] = {}
        """followed here in directories without room: nothing is fetched"""
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._warnings = RateLimitedLog(_LOG, now=asyncio.get_running_loop().time)
        self._directories = AssignmentsManager(broker_id, broker_epoch, new_queue())
        self._isr = AlterPartitionManager(
            broker_id, broker_epoch, new_queue(), clock, self._leader_of, self._proposal_happened
        )

    # -- room

    def watch_room(self, room: Room) -> None:
        """Follow only in directories with room, from now on."""
        self._room = room
        room.watch_room(self._room_changed.set)
        self._room_changed.set()

    async def _pause_without_room(self) -> None:
        """Pause partitions whose directory is without room, and resume others."""
        piece = Slice()
        while True:
            await self._room_changed.wait()
            self._room_changed.clear()
            for tip in (*self._followed, *self._resting):
                if piece.is_over():
                    await piece.next_turn()
                followed = self._followed.get(tip) or self._resting.get(tip)
                if followed is not None and self._has_room(followed.partition) == (tip in self._resting):
                    if piece.is_over():
                        await piece.next_turn()
                    self.follow(followed.partition, followed.replica, is_unclean=followed.is_unclean)

    def _has_room(self, partition: Partition) -> bool:
        return self._room is None or self._room.has_room(partition)

    # -- metadata

    def update_brokers(self, image: MetadataImage, changed: Iterable[int]) -> list[TopicIdPartition]:
        """Apply changed brokers of `image`. Returns the led partitions that they have replicas of: call
        `reevaluate` with them after all changes of the same batch."""
        found: dict[TopicIdPartition, None] = {}
        for broker_id in changed:
            broker = image.brokers.get(broker_id)
            if broker is None:
                self._brokers.pop(broker_id, None)
                self._places.pop(broker_id, None)
            else:
                self._brokers[broker_id] = BrokerStatus(broker.epoch, broker.is_active, broker.fenced)
                self._place(broker)
            found.update(self._by_follower.get(broker_id, ()))
        return list(found)

    def _place(self, broker: BrokerImage) -> None:
        endpoint = next((one for one in broker.endpoints if one.name == self._listener), None)
        if endpoint is None:
            return
        before = self._places.get(broker.id, endpoint)
        self._places[broker.id] = endpoint
        if (before.host, before.port) != (endpoint.host, endpoint.port):
            for place, fetching in self._fetching.items():
                if place.leader == broker.id:
                    fetching.leave(before)

    def reevaluate(self, tips: Iterable[TopicIdPartition]) -> Steps[None]:
        """Re-evaluate led partitions whose other brokers have changed, in steps."""
        for tip in tips:
            yield
            partition = self._led.get(tip)
            if partition is not None:
                partition.reevaluate()

    def note_directory(self, partition: Partition, replica: PartitionImage) -> None:
        """Report the directory of a partition that came online, has changed, or whose log has failed."""
        log = partition.log
        if log.latch.failure is not None:
            return  # heartbeats report failed directories
        if log.failure is not None:
            self.lost(partition.tip, replica)
            return
        directory_id = self._directory_of(log)
        if directory_id is not None:
            self._directories.assign(partition.tip, replica, directory_id)

    def failed(self, partition: Partition, replica: PartitionImage) -> None:
        """Stop following a partition whose log has failed for good, and report it."""
        self._unfollow(partition.tip)
        self.note_directory(partition, replica)

    def lost(self, tip: TopicIdPartition, replica: PartitionImage) -> None:
        """Report that the replica alone is offline: another may lead, and the others are in sync without
        it."""
        if len(replica.replicas) > 1:
            self._directories.assign(tip, replica, LOST)

    def lead(self, partition: Partition, replica: PartitionImage) -> None:
        """Lead the partition. Raises `StorageError` if the log cannot note the epoch."""
        tip, now_ms = partition.tip, self._clock.monotonic_ms()
        self._unfollow(tip)
        leading = partition.leading if partition.is_leader else None
        is_new = leading is None or leading.shape.leader_epoch != replica.leader_epoch
        if is_new and partition.archive.loads_to is None:
            # The epoch begins with leadership, not with its first record, so that the end of the previous one
            # is known before anything is written.
            partition.log.appender.note_leader_epoch(replica.leader_epoch)
        if len(replica.replicas) == 1:
            self._unlead(tip)
            partition.marks = None
            partition.lead(replica.leader_epoch, None)
            self._marks[partition] = None  # for the checkpoint to forget it
            return
        partition.on_proposal = self._isr.propose
        shape = Leadership(
            replica.leader_epoch, replica.partition_epoch, tuple(replica.replicas), tuple(replica.isr)
        )
        if leading is None:
            leading = LeaderState(
                self._me,
                self._settings,
                self._brokers,
                partition.log,
                shape,
                high_watermark=partition.high_watermark,
                min_insync_replicas=partition.config.min_insync_replicas,
                now_ms=now_ms,
            )
            happened = NOTHING
        else:
            self._count(leading.shape, shape)
            happened = leading.image(shape, now_ms)
        partition.lead(replica.leader_epoch, leading)
        self._unlead(tip)
        self._led[tip] = partition
        self._note_marks(partition)
        if replica.adding_replicas and len(replica.isr) < len(replica.replicas):
            self._moving[tip] = len(replica.adding_replicas)
        for one in replica.replicas:
            if one != self._me:
                self._by_follower.setdefault(one, {})[tip] = None
        partition.happened(happened)

    def follow(self, partition: Partition, replica: PartitionImage, *, is_unclean: bool) -> None:
        """Follow the partition's leader, if it has one. `is_unclean`: a leader that lacks records may be
        elected."""
        tip = partition.tip
        self._unlead(tip)
        partition.follow(replica.leader_epoch)
        if len(replica.replicas) > 1:
            self._note_marks(partition)
        if self._me not in replica.isr:
            self._out_of_sync.add(tip)
        elif tip in self._out_of_sync:
            self._out_of_sync.discard(tip)
            self._caught_up_in.pop(tip, None)
            # Its leader added it to the ISR, so its log matches: it may take records if it is elected.
            partition.archive.head_judged(None)
        # A failed log must not fetch: its leader would count it as caught up.
        if replica.leader < 0 or self._is_closed or partition.log.failure is not None:
            self._unfollow(tip)
            return
        if not self._has_room(partition):
            self._caught_up_in.pop(tip, None)
        has_caught_up = self._me in replica.isr or self._caught_up_in.get(tip) == replica.leader_epoch
        place = _Place(replica.leader, self._number_of(tip), has_caught_up)
        followed = self._followed.get(tip)
        if followed is None or followed.place != place or followed.partition is not partition:
            self._unfollow(tip)
            log = self._log_of(partition)
        else:
            log = followed.log
        followed = _Followed(place, partition, log, replica, is_unclean)
        if not self._has_room(partition):
            self._unfollow(tip)
            self._resting[tip] = followed
            return
        self._resting.pop(tip, None)
        self._followed[tip] = followed
        # A replica outside the ISR may have to truncate a diverged tail; one in the ISR never has.
        is_clean = self._me in replica.isr and not is_unclean and replica.leader_recovery_state == _RECOVERED
        remote = partition.unified.remote
        self._fetcher(place).assign(
            tip,
            followed.log,
            replica.leader_epoch,
            is_clean=is_clean,
            builds_first=(
                self._config.follower_fetch_last_tiered_offset_enable
                and remote is not None
                and not remote.is_given_up
                and remote.end_offset > 0
            ),
            is_in_sync=has_caught_up,
        )

    def _log_of(self, partition: Partition) -> LocalFollowerLog:
        return (
            LocalFollowerLog(partition, self._logs)
            if self._room is None
            else WatchedLog(partition, self._logs, self._room)
        )

    def _caught_up(self, tip: TopicIdPartition, leader_epoch: int) -> None:
        """Move a partition that has caught up to the fetcher of those in sync: its leader adds it to the ISR
        soon."""
        followed = self._followed.get(tip)
        if followed is None or followed.replica.leader_epoch != leader_epoch or self._is_closed:
            return
        self._caught_up_in[tip] = leader_epoch
        if not followed.place.has_caught_up:
            self.follow(followed.partition, followed.replica, is_unclean=followed.is_unclean)

    def _number_of(self, tip: TopicIdPartition) -> int:
        """Return the number of the partition's fetcher at its leader."""
        return (tip.topic_id.int + tip.partition) % self._config.num_replica_fetchers

    def spread(self) -> Steps[None]:
        """Move partitions to other fetchers after a change of the number of fetchers, in steps."""
        for tip in tuple(self._followed):
            yield
            followed = self._followed.get(tip)
            if followed is not None and followed.place.number != self._number_of(tip):
                self.follow(followed.partition, followed.replica, is_unclean=followed.is_unclean)

    def moved_start(self, tip: TopicIdPartition) -> None:
        """Report to the leader that the archive's start has moved the log's, if this node follows."""
        followed = self._followed.get(tip)
        if followed is not None and followed.place in self._fetching:
            self._fetching[followed.place].fetcher.start_moved(tip)

    def leave(self, tip: TopicIdPartition) -> None:
        """Drop a partition that is no longer here, or offline."""
        self._unlead(tip)
        self._unfollow(tip)
        self._directories.forget(tip)
        self._out_of_sync.discard(tip)
        self._caught_up_in.pop(tip, None)

    def _unlead(self, tip: TopicIdPartition) -> None:
        if self._led.pop(tip, None) is None:
            return
        self._moving.pop(tip, None)
        for broker_id, tips in list(self._by_follower.items()):
            if tips.pop(tip, tip) is None and not tips:
                del self._by_follower[broker_id]

    def _unfollow(self, tip: TopicIdPartition) -> None:
        self._resting.pop(tip, None)
        followed = self._followed.pop(tip, None)
        if followed is None or followed.place not in self._fetching:
            return
        fetching = self._fetching[followed.place]
        fetching.fetcher.remove(tip)
        if not len(fetching.fetcher):
            del self._fetching[followed.place]
            self._end(fetching)

    def _leader_of(self, tip: TopicIdPartition) -> LeaderState | None:
        partition = self._led.get(tip)
        return None if partition is None else partition.leading

    def _proposal_happened(self, happened: ProposalResult) -> None:
        partition = self._led.get(happened.tip)
        if partition is not None:
            partition.happened(happened.what)

    # -- dynamic settings

    def configure(self, config: ReplicationConfig) -> bool:
        """Apply new replication settings. Returns whether the leader throttle rate changed; call `spread` if
        num.replica.fetchers did."""
        self._config = config
        if self.follower_throttle.limit(config.follower_replication_throttled_rate):
            for one in self._fetching.values():
                one.fetcher.throttled()
        return self.leader_throttle.limit(config.leader_replication_throttled_rate)

    def throttle(self, topic: TopicImage, leaders: Collection[str], followers: Collection[str]) -> bool:
        """Apply the topic's throttled replicas; returns whether those throttled by leaders here changed."""
        if self.follower_throttle.mark(topic.name, followers):
            for index in topic.partitions:
                tip = TopicIdPartition(topic.id, topic.name, index)
                followed = self._followed.get(tip)
                if followed is not None and followed.place in self._fetching:
                    self._fetching[followed.place].fetcher.throttled((tip,))
        return self.leader_throttle.mark(topic.name, leaders)

    # -- fetchers

    def _fetcher(self, place: _Place) -> Fetcher:
        fetching = self._fetching.get(place)
        if fetching is None:
            fetching = self._fetching[place] = self._begin(place)
        return fetching.fetcher

    def _begin(self, place: _Place) -> _Fetching:
        leader, config = place.leader, self._config
        client_id = f"broker-{self._me}-fetcher-{place.number}"
        if not place.has_caught_up:
            client_id += "-behind"
        options = ChannelOptions(client_id=client_id, security=self._security)
        channels = Channels(options, metrics=self._channel_metrics, chance=self._chance)
        fetcher = Fetcher(
            _Leader(leader, channels, self._places),
            self._me,
            self._broker_epoch,
            FetcherSettings(
                config.fetch_wait_max_ms,
                config.fetch_min_bytes,
                config.fetch_max_bytes,
                config.fetch_response_max_bytes,
                config.fetch_backoff_ms,
                config.socket_timeout_ms,
            ),
            self._clock,
            self._archive,
            lambda why: self._warnings.warning("from broker %d: %s", leader, why),
            self.follower_throttle,
            self.metrics,
            on_caught_up=None if place.has_caught_up else self._caught_up,
        )
        task = asyncio.get_running_loop().create_task(fetcher.run(), name=f"fetcher of broker {leader}")
        task.add_done_callback(self._ended)
        return _Fetching(fetcher, task, channels)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_bug(task.get_name(), error)

    def _end(self, fetching: _Fetching) -> None:
        ending = asyncio.get_running_loop().create_task(fetching.end(), name="end of a fetcher")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    # -- metrics

    def _count(self, before: Leadership, now: Leadership) -> None:
        """Count changes of the ISR under one leader."""
        if before.leader_epoch == now.leader_epoch:
            self.metrics.isr_shrinks += not set(before.isr) <= set(now.isr)
            self.metrics.isr_expands += not set(now.isr) <= set(before.isr)

    def counts(self) -> Steps[ReplicaCounts]:
        """Return the number of partitions of each kind, and the lags of replicas."""
        led = yield from measure_led(tuple(self._led.values()), self._moving)
        return ReplicaCounts(
            len(self._led),
            len(self._followed),
            led.under_replicated,
            led.under_min_isr,
            led.at_min_isr,
            len(self._resting),
            led.lags,
        )

    # -- life

    def _note_marks(self, partition: Partition) -> None:
        """Have changes of the high watermark noted for the checkpoint."""
        partition.marks = self._marks
        self._marks[partition] = None

    def marks(self) -> Iterable[tuple[TopicIdPartition, int | None]]:
        """Return the high watermarks that have moved since the last call; None for the only replica."""
        moved = [(one.tip, one.high_watermark if one.is_shared else None) for one in self._marks]
        self._marks.clear()
        return moved

    async def run(self) -> None:
        """Propose in-sync replicas and check for lagging ones, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._isr.run(), name="in-sync replicas")
            tasks.create_task(self._tick(), name="check for lagging replicas")
            tasks.create_task(self._directories.run(), name="directories of replicas")
            tasks.create_task(self._pause_without_room(), name="replicas without room")

    async def _tick(self) -> None:
        piece = Slice()
        while True:
            await asyncio.sleep(self._config.lag_time_max_ms / 2000)
            for tip in tuple(self._led):
                if piece.is_over():
                    await piece.next_turn()
                partition = self._led.get(tip)
                if partition is not None and partition.leading is not None:
                    partition.happened(partition.leading.tick(self._clock.monotonic_ms()))

    async def close(self) -> None:
        """Stop all fetchers, and return once they have ended."""
        self._is_closed = True
        for fetching in self._fetching.values():
            self._end(fetching)
        self._fetching.clear()
        self._followed.clear()
        self._resting.clear()
        while self._ending:
            await asyncio.wait(self._ending)


class ReplicaCounts(NamedTuple):
    """Numbers of partitions of several replicas on this broker."""

    led: int
    followed: int
    under_replicated: int
    """of those that are led here"""
    under_min_isr: int
    at_min_isr: int
    resting: int
    """followed in directories without room"""
    lags: Mapping[int, int]
    """records that each other broker lacks at most, of a partition that is led here"""


class _Followed(NamedTuple):
    """A partition that is fetched, and its fetcher."""

    place: _Place
    partition: Partition
    log: LocalFollowerLog
    replica: PartitionImage
    is_unclean: bool
    """last argument of `ReplicaManager.follow`"""


class _Fetching:
    """One fetcher, its task and its channels."""

    def __init__(self, fetcher: Fetcher, task: asyncio.Task[None], channels: Channels) -> None:
        self.fetcher = fetcher
        self._task = task
        self._channels = channels

    def leave(self, endpoint: EndpointImage) -> None:
        """Disconnect from a previous address of the leader: pending responses will not come."""
        self._channels.disconnect(endpoint, "the broker has another address now")

    async def end(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait({self._task})
        await self._channels.close()


class _Leader:
    """A `fetcher.LeaderEndpoint` of a broker id, at its present address."""

    def __init__(self, broker_id: int, channels: Channels, places: Mapping[int, EndpointImage]) -> None:
        self._broker_id = broker_id
        self._channels = channels
        self._places = places

    def _channel(self) -> Channel:
        place = self._places.get(self._broker_id)
        if place is None:
            raise ConnectionError(f"the address of broker {self._broker_id} is not known")
        return self._channels.to(place)

    async def versions(self) -> Mapping[int, tuple[int, int]]:
        return await self._channel().versions()

    async def call(
        self, api_key: int, version: int | None, message: Any, *, timeout_ms: int | None = None
    ) -> Any:
        return await self._channel().call(api_key, version, message, timeout_ms=timeout_ms)
