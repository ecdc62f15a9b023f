"""Bugs of nodes and of their replication, planted one at a time: `python -m simulator.cluster --plants`.

A bug is a patch of a history's own process, made here and nowhere else; what it names must be there.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import StorageError
from service.controller_client.broker_lifecycle import Heartbeat, Lifecycle
from service.controller_server.broker_prober import BrokerProber, Found
from service.hot.directories import LogDirs
from service.hot.epochs import LeaderEpochs
from service.hot.log_dir import LogDir
from service.metadata.controller import broker_sessions
from service.metadata.controller.broker_registrations import BrokerRegistrations
from service.metadata.controller.broker_sessions import BrokerSessions
from service.metadata.controller.decision_queue import DecisionQueue
from service.metadata.controller.elections_control import Elections
from service.metadata.controller.partition_change import _Change as PartitionChange
from service.metadata.publication import Publication
from service.metadata.raft.log import MetadataLog
from service.node.quorum_control_plane import ClusterPlane
from service.partition.partition import Partition
from service.replicas.disk_pressure import DiskWatch
from service.replicas.replica_manager import ReplicaManager
from service.replication.follower import FollowerMachine
from service.replication.follower_events import AdvanceMarks
from service.replication.leader import MOVED, NOTHING, LeaderState
from service.replication.partition_fetch_state import PartitionFetchState
from simulator.cluster.playing import draw, play_apart, warm_up
from simulator.cluster.tier_plants import OF_TIERS
from simulator.machine import Machine

Plant = Callable[[], None]
WITHIN: Final = 60
"""histories in which a planted bug is to be found"""
WITHIN_OF_REPLICAS: Final = 2_000
"""likewise, of `OF_REPLICAS`: most are found in some dozens"""
_OURS: Final = ("ended by a bug", "<locals>", "TypeError", "AttributeError")


def _swap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(original)` in the place of an attribute that must be there."""
    setattr(owner, name, make(getattr(owner, name)))


def told_before_it_is_applied() -> None:
    """Heartbeats tell the image's offset, whether or not the broker is what the image says."""

    async def follow(self: Any) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._membership.published(self.metadata.image.offset)

    _swap(ClusterPlane, "_follow", lambda _: follow)


def answered_before_it_is_known_here() -> None:
    """A forwarded change is answered at once, before this node's own image has it."""

    async def at_once(self: Any) -> None:
        return None

    _swap(ClusterPlane, "_catch_up", lambda _: at_once)


def answered_before_the_commit() -> None:
    """A change counts once it is in the leader's own log."""

    async def at_once(self: Any, lead: Any, offset: int) -> None:
        return None

    _swap(DecisionQueue, "_reached", lambda _: at_once)


def published_before_the_commit() -> None:
    """What this node proposes is its image at once."""

    def make(proposed: Any) -> Any:
        def eager(self: Any, image: Any, delta: Any, size: int) -> None:
            proposed(self, image, delta, size)
            self._high_watermark = max(self._high_watermark, image.offset + 1)
            self._publish_proposed()

        return eager

    _swap(Publication, "proposed", make)


def waiters_in_the_order_of_their_coming() -> None:
    """Who waits for an offset that was lost with its leader stands before all that wait for less."""

    async def wait(self: Any, waiting: list[Any], offset: int) -> None:
        if self._failure is not None:
            raise StorageError(str(self._failure))
        waiter = asyncio.get_running_loop().create_future()
        waiting.append((offset, waiter))
        await waiter

    def make(tell: Any) -> Any:
        def in_order(self: Any, waiting: list[Any], done_offset: int) -> None:
            in_front = list(takewhile(lambda one: self._failure or one[0] <= done_offset, waiting))
            del waiting[: len(in_front)]
            tell(self, in_front, done_offset)

        return in_order

    _swap(Publication, "_wait", lambda _: wait)
    _swap(Publication, "_complete", make)


def stale_heartbeats_accepted() -> None:
    """A heartbeat counts for the broker's newest process, whatever epoch it bears."""

    def make(heartbeat: Any) -> Any:
        async def careless(self: Any, request: Any, **options: Any) -> Any:
            known = self._decisions.latest.brokers.get(request.broker_id) if self._decisions.is_open else None
            if known is not None:
                request = request._replace(broker_epoch=known.epoch)
            return await heartbeat(self, request, **options)

        return careless

    _swap(BrokerRegistrations, "heartbeat", make)


def unfenced_before_it_has_recovered() -> None:
    """A broker asks to be unfenced as soon as it is registered."""

    def make(step: Any) -> Any:
        def eager(self: Any, event: Any, now_ms: int) -> Any:
            effects = step(self, event, now_ms)
            return [replace(one, want_fence=False) if isinstance(one, Heartbeat) else one for one in effects]

        return eager

    _swap(Lifecycle, "step", make)


def metadata_not_flushed() -> None:
    """The metadata log counts as flushed, and is not."""
    _swap(MetadataLog, "flush", lambda _: lambda self, end_offset: None)


def refusal_is_death() -> None:
    """Who refuses is fenced, though it never was open, and right after a claim, before it could be heard."""
    original = BrokerProber.probe

    async def credulous(self: Any, broker: Any) -> Any:
        if self._found(broker) is None:
            self._open[broker.id] = Found(broker.epoch, broker.endpoints[0].host, 0.0)
        return await original(self, broker)

    _swap(BrokerProber, "probe", lambda _: credulous)
    _swap(broker_sessions, "CLAIM_MS", lambda _: 50)


# Of replicas


def proposed_isr_not_counted() -> None:
    """While a set of in-sync replicas is proposed, the high watermark waits for the old one alone."""

    def make(propose: Any) -> Any:
        def careless(self: Any, isr: frozenset[int]) -> int:
            happened: int = propose(self, isr)
            self.counted = self.in_sync
            return happened

        return careless

    _swap(LeaderState, "_propose", make)
    _swap(LeaderState, "_may_join", lambda may: lambda self, one: self.proposal is None and may(self, one))


def shrunk_isr_counted_at_once() -> None:
    """Whoever is proposed to leave is waited for no more."""

    def make(propose: Any) -> Any:
        def careless(self: Any, isr: frozenset[int]) -> int:
            happened: int = propose(self, isr)
            self.counted = isr
            return happened

        return careless

    _swap(LeaderState, "_propose", make)


def stale_broker_epochs_counted() -> None:
    """A replica's fetch counts, whichever of its processes sent it, and proposals name none (KIP-903)."""

    def make(fetched: Any) -> Any:
        return lambda self, asked, session, now_ms: fetched(
            self, asked._replace(broker_epoch=-1), session, now_ms
        )

    _swap(LeaderState, "fetched", make)


def acknowledged_before_the_high_watermark() -> None:
    """acks=all waits for nobody."""
    _swap(LeaderState, "wait", lambda _: lambda self, key, offset: ErrorCode.none)


def committed_below_min_isr() -> None:
    """The high watermark rises, and acks=all is taken, however few are in sync."""
    _swap(LeaderState, "is_under_min_isr", lambda _: property(lambda self: False))
    _swap(LeaderState, "_after_append", lambda _: lambda self: ErrorCode.none)


def joins_below_the_high_watermark() -> None:
    """A replica is proposed as in sync wherever it ends."""

    def make(expand: Any) -> Any:
        def careless(self: Any, now_ms: int) -> int:
            before = self.high_watermark, self.epoch_start
            self.high_watermark = self.epoch_start = 0
            happened: int = expand(self, now_ms)
            self.high_watermark, self.epoch_start = before
            return happened

        return careless

    _swap(LeaderState, "_expand", make)


def leader_epoch_not_noted() -> None:
    """Where an epoch begins is known from its first record alone: one without records never was."""
    _swap(LeaderEpochs, "begin", lambda _: lambda self, epoch, offset: None)


def last_epoch_not_said() -> None:
    """A follower's fetch does not say the last epoch that its log knows: nobody sees where they part."""
    _swap(
        PartitionFetchState,
        "position",
        lambda position: property(lambda self: position.fget(self)._replace(last_epoch=-1)),
    )


def cut_where_the_leader_says() -> None:
    """A follower that has parted cuts at the leader's end of the epoch, wherever its own is, and once."""

    def make(part: Any) -> Any:
        return lambda self, followed, epoch, end, now_ms: self._truncate(
            followed, min(end + 1, followed.log.log_end_offset)
        )

    _swap(FollowerMachine, "_diverged", make)


def cut_to_the_high_watermark() -> None:
    """A follower of a new leader cuts its log to its own high watermark first, as before KIP-101."""

    def make(follow: Any) -> Any:
        def eager(self: Any, partition: Any, replica: Any, **options: Any) -> None:
            is_new = partition.is_leader or partition.leader_epoch != replica.leader_epoch
            follow(self, partition, replica, **options)
            if is_new and partition.high_watermark < partition.log.log_end_offset:
                partition.log.truncation.truncate_to(
                    max(partition.high_watermark, partition.log.log_start_offset)
                )

        return eager

    _swap(ReplicaManager, "follow", make)


def mark_beyond_its_end() -> None:
    """A follower's high watermark is the leader's, whether or not its log goes so far."""
    _swap(Partition, "_within", lambda _: lambda self, offset: offset)
    _swap(
        FollowerMachine,
        "_advance_marks",
        lambda _: (
            lambda self, followed, mark, start: (
                AdvanceMarks(followed.tip, mark, followed.log.log_start_offset),
            )
        ),
    )


def mark_falls() -> None:
    """A leader's high watermark is the least end of those that count, also where it was higher."""

    def make(advance: Any) -> Any:
        def careless(self: Any, now_ms: int) -> int:
            before, self.high_watermark = self.high_watermark, 0
            happened: int = advance(self, now_ms)
            if not happened:
                self.high_watermark = before
            return MOVED if self.high_watermark != before else NOTHING

        return careless

    _swap(LeaderState, "_advance", make)


def consumers_see_the_end() -> None:
    """Whoever fetches gets what is there, committed or not."""

    def make(_: Any) -> Any:
        return lambda self, offset, max_bytes, *, min_one, cold_bytes=1 << 60: self.unified.read(
            offset, max_bytes, self.unified.end_offset, min_one=min_one, cold_bytes=cold_bytes
        )

    _swap(Partition, "read", make)


def unclean_stops_forgotten() -> None:
    """Whoever registers again has what it had."""

    def make(begin: Any) -> Any:
        def careless(self: Any, *args: Any, unclean: int = -1, **options: Any) -> None:
            begin(self, *args, **options)

        return careless

    _swap(Elections, "__init__", make)


def elects_whoever_is_alive() -> None:
    """In-sync or not, a replica that is alive leads."""
    _swap(
        PartitionChange,
        "_is_able",
        lambda _: lambda self, replica: replica >= 0 and self.may_lead(replica),
    )


def elections_know_of_no_room() -> None:
    """A full disk is as good as another one."""
    _swap(Elections, "_has_room", lambda _: lambda self, broker_id: True)


def followers_use_the_reserve() -> None:
    """A replica follows whatever is left of its disk."""
    _swap(DiskWatch, "has_room", lambda _: lambda self, partition: True)


def clean_after_a_loss_of_power() -> None:
    """What is kept of log ends outlives the machine, and nobody compares."""

    def make(lose_power: Any) -> Any:
        def keeping(self: Any, *args: Any, **options: Any) -> None:
            kept = {name: words[:] for name, words in self.memory.items()}
            lose_power(self, *args, **options)
            self.boots -= 1
            self.memory.update(kept)

        return keeping

    _swap(Machine, "lose_power", make)
    _swap(LogDir, "_lacks", lambda _: lambda self, kept: "")
    _swap(LogDirs, "check_kept", lambda _: lambda self, offline: None)


def killed_is_unclean() -> None:
    """Who was killed registers as if it had lost records."""
    _swap(LogDir, "previous_epoch", lambda _: lambda self: self.read_clean_epoch())


def leaves_whoever_was_not_heard() -> None:
    """Who comes back leaves the ISR, though nobody else of it was heard."""
    _swap(BrokerSessions, "is_heard", lambda _: lambda self, broker_id, epoch: True)


PLANTS: dict[str, Plant] = {
    one.__name__: one
    for one in (
        told_before_it_is_applied,
        answered_before_it_is_known_here,
        answered_before_the_commit,
        published_before_the_commit,
        unfenced_before_it_has_recovered,
        waiters_in_the_order_of_their_coming,
        stale_heartbeats_accepted,
        metadata_not_flushed,
        refusal_is_death,
    )
}
OF_REPLICAS: Final[dict[str, Plant]] = {
    one.__name__: one
    for one in (
        proposed_isr_not_counted,
        shrunk_isr_counted_at_once,
        stale_broker_epochs_counted,
        acknowledged_before_the_high_watermark,
        committed_below_min_isr,
        joins_below_the_high_watermark,
        leader_epoch_not_noted,
        last_epoch_not_said,
        cut_where_the_leader_says,
        cut_to_the_high_watermark,
        mark_beyond_its_end,
        mark_falls,
        consumers_see_the_end,
        unclean_stops_forgotten,
        elects_whoever_is_alive,
        elections_know_of_no_room,
        followers_use_the_reserve,
        clean_after_a_loss_of_power,
        killed_is_unclean,
        leaves_whoever_was_not_heard,
    )
}
PLANTS |= OF_REPLICAS | OF_TIERS
SELDOM_SHOWS: Final = (
    "stale_heartbeats_accepted",
    "waiters_in_the_order_of_their_coming",
    "refusal_is_death",
)
"""A broker has to refuse while controllers fail over: tests/simulation/test_cluster.py has it do so. A late
heartbeat tells an offset below the new registration, so it unfences nobody. And a controller has to lose more
than others write until it leads again: tests/cluster/test_leader_cut_off.py has one do so."""


def find(
    plant: Plant, first: int = 1, within: int = WITHIN, *, tiered: bool = False
) -> tuple[int, str] | None:
    """How many histories it took until one failed that is clean without the bug, and how it failed."""
    for count, seed in enumerate(range(first, first + within), 1):
        problem = play_apart(draw(seed, tiered=tiered), before=plant).problem
        if problem is None:
            continue
        line = problem.splitlines()[0]
        if any(sign in problem for sign in _OURS):
            return count, f"NOT PLANTED WELL: {line}"
        if play_apart(draw(seed, tiered=tiered)).problem is None:
            return count, line
    return None


def tell_plants(names: Sequence[str], first: int, jobs: int | None = None) -> bool:
    """Print after how many histories each planted bug was found; whether all were."""
    missed = 0
    warm_up()

    def look(name: str) -> tuple[int, str] | None:
        is_assembly = name not in OF_REPLICAS and name not in OF_TIERS
        within = WITHIN if is_assembly else WITHIN_OF_REPLICAS
        return find(PLANTS[name], first, within, tiered=name in OF_TIERS)

    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        began = time.monotonic()
        for name, found in zip(names, pool.map(look, names), strict=True):
            missed += found is None
            after = "NOT FOUND" if found is None else f"after {found[0]:4}  {found[1][:110]}"
            print(f"{name:34} {after}", flush=True)
    print(f"{len(names) - missed} of {len(names)} planted bugs found, {time.monotonic() - began:.0f} s")
    return missed == 0
