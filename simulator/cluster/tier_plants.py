"""Bugs of the tiers of several nodes, and of nodes that come back without their disk; see `plants.py`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

from service.base.errors import ConfigError
from service.metadata.controller import catalog_control, cluster_control
from service.node.cold_tier import ColdTier
from service.partition.archive import PartitionArchive
from service.replicas.tier_state_builder import TierStateBuilder
from service.serving.handlers import delete_records
from service.tiering import copier, partition_copier, prefix_fence
from service.tiering.archive_attempt import LeaderTerm
from service.tiering.keeper_election import KeeperElection
from service.tiering.lifecycle import SegmentState
from service.tiering.partition_copier import PartitionCopier
from service.tiering.pending_commit import PendingCommit
from service.tiering.sweeper import Sweeper
from simulator.plant import dropped_objects_go_before_the_commit, tiering_stopped_by_refusals

Plant = Callable[[], None]
_ALL: Final = 1 << 62


def _swap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def uploads_above_the_high_watermark() -> None:
    """Copy sealed segments whether or not their records are committed."""

    def make(plan: Any) -> Any:
        return lambda sealed, **limits: plan(
            sealed, **{**limits, "high_watermark": _ALL, "last_stable_offset": _ALL}
        )

    _swap(partition_copier, "plan_copies", make)
    _swap(PartitionCopier, "_limit", lambda _: property(lambda self: _ALL))


def deposed_leaders_commit() -> None:
    """Let a deposed leader write the archive, and the catalog commit it."""

    def make(decide: Any) -> Any:
        return lambda current, *, entry, leader_epoch, **more: decide(
            current, entry=entry, leader_epoch=entry.leader_epoch, **more
        )

    _swap(catalog_control, "decide_commit", make)
    _swap(LeaderTerm, "check", lambda _: lambda self: None)


def epoch_of_the_copier() -> None:
    """Record the newest leader epoch of a copied segment for all of it."""

    def make(epochs: Any) -> Any:
        def careless(from_offset: int, scanned: Any) -> Any:
            return ((epochs(from_offset, scanned)[-1][0], from_offset),)

        return careless

    _swap(copier, "_leader_epochs", make)


def followers_let_go_before_the_commit() -> None:
    """Delete a follower's local segments although the bucket may not have them."""
    _swap(
        PartitionArchive,
        "_safe_below",
        lambda _: property(lambda self: self.published_offset if self._partition.is_leader else _ALL),
    )


def begins_with_the_archive_s_end() -> None:
    """Set the log start of a replica to the archive's end, where its local log begins."""

    def make(begin: Any) -> Any:
        return lambda self, partition, entry, start, epochs, producers: begin(
            self, partition, entry, entry.end_offset, epochs, producers
        )

    _swap(TierStateBuilder, "_begin", make)


def begins_without_epochs() -> None:
    """Forget the leader epochs of the archive in a replica that begins at its end."""

    def make(begin: Any) -> Any:
        return lambda self, partition, entry, start, epochs, producers: begin(
            self, partition, entry, start, (), producers
        )

    _swap(TierStateBuilder, "_begin", make)


def head_before_the_commit() -> None:
    """Write HEAD before the catalog has committed the entry."""

    def make(settle: Any) -> Any:
        async def hasty(self: Any, proposal: Any) -> None:
            if proposal.state is SegmentState.PROPOSED:
                await self._head.publish(proposal.commit.entry, proposal.chain)
            await settle(self, proposal)

        return hasty

    _swap(PendingCommit, "settle", make)


def swept_without_a_barrier() -> None:
    """Delete orphans after the grace even if a running commit may still name them."""
    _swap(
        Sweeper,
        "_is_overdue",
        lambda _: lambda self, orphan, before, now_ms: now_ms - before.first_ms >= self._grace_ms,
    )


def deletion_is_the_leader_s_alone() -> None:
    """Acknowledge DeleteRecords before other replicas have moved their starts."""

    async def at_once(*_: Any) -> None:
        return None

    _swap(delete_records, "_replicas_follow", lambda _: at_once)


def lost_disks_are_not_noticed() -> None:
    """Keep a broker that registers without its logs in sync, as if it had not been down."""

    def nothing(*_: Any) -> Generator[int, None, list[Any]]:
        yield from ()
        return []

    _swap(cluster_control, "_shutdown", lambda _: nothing)


def the_office_is_the_lowest_id_s() -> None:
    """Let only the unfenced broker of the lowest id be keeper, even if it cannot reach the store."""
    _swap(KeeperElection, "_is_next", lambda _: lambda self, cluster, now_ms: self._owner.is_keeper())


def any_prefix_is_the_cluster_s() -> None:
    """Let the next keeper take over any prefix that its own settings name."""

    async def nothing(*_: Any) -> None:
        return None

    _swap(KeeperElection, "_why_unproved", lambda _: nothing)


def followers_trust_any_prefix() -> None:
    """Delete local bytes that are in the bucket although the keeper has not named this broker there."""
    _swap(ColdTier, "may_let_go", lambda _: property(lambda self: True))


def a_foreign_owner_ends_the_node() -> None:
    """Treat another cluster's `cluster.json` as a wrong setting, also while the node serves."""

    def make(check: Any) -> Any:
        def fatal(cluster: Any, cluster_id: str) -> None:
            try:
                check(cluster, cluster_id)
            except prefix_fence.ForeignOwner as e:
                raise ConfigError(str(e)) from e

        return fatal

    _swap(prefix_fence, "_check_owner", make)


OF_TIERS: Final[dict[str, Plant]] = {
    one.__name__: one
    for one in (
        uploads_above_the_high_watermark,
        deposed_leaders_commit,
        epoch_of_the_copier,
        followers_let_go_before_the_commit,
        begins_with_the_archive_s_end,
        begins_without_epochs,
        head_before_the_commit,
        swept_without_a_barrier,
        deletion_is_the_leader_s_alone,
        lost_disks_are_not_noticed,
        dropped_objects_go_before_the_commit,
        tiering_stopped_by_refusals,
        the_office_is_the_lowest_id_s,
        any_prefix_is_the_cluster_s,
        followers_trust_any_prefix,
        a_foreign_owner_ends_the_node,
    )
}
