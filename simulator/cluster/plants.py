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
from service.partition import partition
from service.partition.unified_log import UnifiedLog
from service.replicas.disk_pressure import DiskWatch
from service.replicas.replica_manager import ReplicaManager
from service.replication.follower import FollowerMachine
from service.replication.follower_events import AdvanceMarks
from service.replication.leader import MOVED, NOTHING, LeaderState
from service.replication.partition_fetch_state import PartitionFetchState
from simulator.cluster.access_plants import OF_ACCESS
from simulator.cluster.cut_plants import OF_CUTS, SIGNS_OF_CUTS, WITHIN_OF_CUTS
from simulator.cluster.playing import (
    draw,
    draw_cutting,
    draw_rewriting,
    draw_secured,
    draw_transactional,
    play_apart,
    warm_up,
)
from simulator.cluster.rewrite_plants import OF_REWRITES, SIGNS_OF_REWRITES, WITHIN_OF_REWRITES
from simulator.cluster.tier_plants import OF_TIERS
from simulator.cluster.transaction_plants import OF_TRANSACTIONS, WITHIN_OF_TRANSACTIONS
from simulator.machine import Machine

Plant = Callable[[], None]
WITHIN: Final = 60
"""histories in which a planted bug is to be found"""
WITHIN_OF_REPLICAS: Final = 2_000
"""likewise, of `OF_REPLICAS`: most are found in some dozens"""
_OF_BOTH_TIERS: Final = ("archive_start_without_open_transactions", "cold_reads_beyond_the_stable_end")
_BADLY: Final = "NOT PLANTED WELL"
"""Begins what is said of a plant that breaks the node's code instead of what the code does."""
_OURS: Final = ("ended by a bug", "<locals>", "TypeError", "AttributeError")


def _swap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(original)` in the place of an attribute that must be there."""
    setattr(owner, name, make(getattr(owner, name)))


def told_before_it_is_applied() -> None:
    """Report the image's offset in heartbeats before the broker has applied it."""

    async def follow(self: Any) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._membership.published(self.metadata.image.offset)

    _swap(ClusterPlane, "_follow", lambda _: follow)


def answered_before_it_is_known_here() -> None:
    """Return the response to a forwarded change before this node's own image has it."""

    async def at_once(self: Any) -> None:
        return None

    _swap(ClusterPlane, "_catch_up", lambda _: at_once)


def answered_before_the_commit() -> None:
    """Respond to a change once it is in the leader's own log."""

    async def at_once(self: Any, lead: Any, offset: int) -> None:
        return None

    _swap(DecisionQueue, "_reached", lambda _: at_once)


def published_before_the_commit() -> None:
    """Publish the images that this node proposes before they are committed."""

    def make(proposed: Any) -> Any:
        def eager(self: Any, offset: int, image: Any, delta: Any, size: int) -> None:
            proposed(self, offset, image, delta, size)
            self._high_watermark = max(self._high_watermark, image.offset + 1)
            self._publish_proposed()

        return eager

    _swap(Publication, "proposed", make)


def waiters_in_the_order_of_their_coming() -> None:
    """Complete waiters in the order in which they came: one for a lost offset blocks those for lower ones."""

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
    """Take a heartbeat of any epoch for one of the broker's newest process."""

    def make(heartbeat: Any) -> Any:
        async def careless(self: Any, request: Any, **options: Any) -> Any:
            known = self._decisions.latest.brokers.get(request.broker_id) if self._decisions.is_open else None
            if known is not None:
                request = request._replace(broker_epoch=known.epoch)
            return await heartbeat(self, request, **options)

        return careless

    _swap(BrokerRegistrations, "heartbeat", make)


def unfenced_before_it_has_recovered() -> None:
    """Ask to be unfenced as soon as the broker is registered."""

    def make(step: Any) -> Any:
        def eager(self: Any, event: Any, now_ms: int) -> Any:
            effects = step(self, event, now_ms)
            return [replace(one, want_fence=False) if isinstance(one, Heartbeat) else one for one in effects]

        return eager

    _swap(Lifecycle, "step", make)


def metadata_not_flushed() -> None:
    """Skip the flush of the metadata log, but count it as flushed."""
    _swap(MetadataLog, "flush", lambda _: lambda self, end_offset: None)


def refusal_is_death() -> None:
    """Fence a broker that refuses connections even if its address never was open, and right after a claim."""
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
    """Stop waiting for a follower once its removal from the ISR is proposed."""

    def make(propose: Any) -> Any:
        def careless(self: Any, isr: frozenset[int]) -> int:
            happened: int = propose(self, isr)
            self.counted = isr
            return happened

        return careless

    _swap(LeaderState, "_propose", make)


def stale_broker_epochs_counted() -> None:
    """Count fetches of any process of a replica, and propose ISRs without broker epochs (KIP-903)."""

    def make(fetched: Any) -> Any:
        return lambda self, asked, session, now_ms: fetched(
            self, asked._replace(broker_epoch=-1), session, now_ms
        )

    _swap(LeaderState, "fetched", make)


def acknowledged_before_the_high_watermark() -> None:
    """Acknowledge acks=all without waiting for followers."""
    _swap(LeaderState, "wait", lambda _: lambda self, key, offset: ErrorCode.none)


def committed_below_min_isr() -> None:
    """Advance the high watermark and accept acks=all below ``min.insync.replicas``."""
    _swap(LeaderState, "is_under_min_isr", lambda _: property(lambda self: False))
    _swap(LeaderState, "_after_append", lambda _: lambda self: ErrorCode.none)


def joins_below_the_high_watermark() -> None:
    """Propose a follower for the ISR whatever its log end."""

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
    """Do not note the start of a leader epoch: an epoch without records is unknown."""
    _swap(LeaderEpochs, "begin", lambda _: lambda self, epoch, offset: None)


def last_epoch_not_said() -> None:
    """Send no last fetched epoch in a follower's fetch: the leader does not see that logs diverge."""
    _swap(
        PartitionFetchState,
        "position",
        lambda position: property(lambda self: position.fget(self)._replace(last_epoch=-1)),
    )


def cut_where_the_leader_says() -> None:
    """Truncate a diverged follower once, at the leader's end of the epoch, whatever its own end."""

    def make(part: Any) -> Any:
        return lambda self, followed, epoch, end, now_ms: self._truncate(
            followed, min(end + 1, followed.log.log_end_offset)
        )

    _swap(FollowerMachine, "_diverged", make)


def cut_to_the_high_watermark() -> None:
    """Truncate a follower of a new leader to its own high watermark first, as before KIP-101."""

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
    """Set a follower's high watermark to the leader's, even beyond its own log end."""
    _swap(partition, "_within", lambda _: lambda offset, log: offset)
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
    """Set a leader's high watermark to the lowest end of the ISR, even if it was higher."""

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
    """Serve records above the high watermark to consumers."""

    def make(read: Any) -> Any:
        return lambda self, offset, most, end, **options: read(self, offset, most, self.end_offset, **options)

    _swap(UnifiedLog, "read", make)


def unclean_stops_forgotten() -> None:
    """Treat an unclean stop as a clean one: a broker that registers again keeps its place in the ISR."""

    def make(begin: Any) -> Any:
        def careless(self: Any, *args: Any, unclean: int = -1, **options: Any) -> None:
            begin(self, *args, **options)

        return careless

    _swap(Elections, "__init__", make)


def elects_whoever_is_alive() -> None:
    """Elect any living replica as leader, in sync or not."""
    _swap(
        PartitionChange,
        "_is_able",
        lambda _: lambda self, replica: replica >= 0 and self.may_lead(replica),
    )


def elections_know_of_no_room() -> None:
    """Elect leaders without regard to full disks."""
    _swap(Elections, "_has_room", lambda _: lambda self, broker_id: True)


def followers_use_the_reserve() -> None:
    """Let followers replicate into the disk's reserve."""
    _swap(DiskWatch, "has_room", lambda _: lambda self, partition: True)


def clean_after_a_loss_of_power() -> None:
    """Keep the noted log ends over a loss of power, and do not compare them with the logs."""

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
    """Register a killed broker as if it had lost records."""
    _swap(LogDir, "previous_epoch", lambda _: lambda self: self.read_clean_epoch())


def leaves_whoever_was_not_heard() -> None:
    """Remove a returning broker from the ISR although no other member of it was heard."""
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
PLANTS |= OF_REPLICAS | OF_TIERS | OF_ACCESS | OF_TRANSACTIONS | OF_CUTS | OF_REWRITES
SELDOM_SHOWS: Final = (
    "stale_heartbeats_accepted",
    "waiters_in_the_order_of_their_coming",
    "refusal_is_death",
)
"""Plants that random histories seldom show. A broker has to refuse connections while controllers fail over:
tests/simulation/test_cluster.py does that. A late heartbeat has an offset below the new registration, so it
unfences no broker. And a controller has to lose more records than others write until it leads again:
tests/cluster/test_leader_cut_off.py does that."""


def find(
    plant: Plant,
    first: int = 1,
    within: int = WITHIN,
    *,
    tiered: bool = False,
    secured: bool = False,
    transactional: bool = False,
    cutting: bool = False,
    rewriting: bool = False,
) -> tuple[int, str] | None:
    """Play histories until one fails that is clean without the bug; return their number and the failure.

    Of plants that are known to break an invariant, only a failure that names it counts."""
    signs = {**SIGNS_OF_CUTS, **SIGNS_OF_REWRITES}.get(plant, "")
    named = (signs,) if isinstance(signs, str) else signs
    for count, seed in enumerate(range(first, first + within), 1):
        if transactional:
            plan = draw_transactional(seed, tiered=tiered)
        elif cutting:
            plan = draw_cutting(seed)
        elif rewriting:
            plan = draw_rewriting(seed)
        else:
            plan = draw_secured(seed) if secured else draw(seed, tiered=tiered)
        problem = play_apart(plan, before=plant).problem
        if problem is None:
            continue
        line = problem.splitlines()[0]
        if any(sign in problem for sign in _OURS):
            return count, f"{_BADLY}: {line}"
        if any(sign in line for sign in named) and play_apart(plan).problem is None:
            return count, line
    return None


def budget_of(name: str) -> int:
    """Return within how many histories a planted bug is to be found."""
    is_quick = name not in OF_REPLICAS | OF_TIERS | OF_ACCESS
    known = {**WITHIN_OF_TRANSACTIONS, **WITHIN_OF_CUTS, **WITHIN_OF_REWRITES}.get(name)
    return known or (WITHIN if is_quick else WITHIN_OF_REPLICAS)


def tell_plants(names: Sequence[str], first: int, jobs: int | None = None) -> bool:
    """Print after how many histories each planted bug was found, and the time that took; whether all were."""
    missed = 0
    of_cuts = OF_CUTS | OF_REWRITES
    warm_up(
        transactional=any(name in OF_TRANSACTIONS for name in names),
        cutting=all(name in of_cuts for name in names),
    )

    def look(name: str) -> tuple[tuple[int, str] | None, float]:
        began = time.monotonic()
        found = find(
            PLANTS[name],
            first,
            budget_of(name),
            tiered=name in OF_TIERS or name in _OF_BOTH_TIERS,
            secured=name in OF_ACCESS,
            transactional=name in OF_TRANSACTIONS,
            cutting=name in OF_CUTS,
            rewriting=name in OF_REWRITES,
        )
        return found, time.monotonic() - began

    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        began = time.monotonic()
        for name, (found, seconds) in zip(names, pool.map(look, names), strict=True):
            missed += found is None or found[1].startswith(_BADLY)
            within = f"of {budget_of(name)}, {seconds:.0f} s"
            after = (
                f"NOT FOUND {within}" if found is None else f"after {found[0]:4} {within}  {found[1][:110]}"
            )
            print(f"{name:42} {after}", flush=True)
    print(f"{len(names) - missed} of {len(names)} planted bugs found, {time.monotonic() - began:.0f} s")
    return missed == 0
