"""A world whose node merges, and what an outside worker does beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from service.remote.catalog import RewriteKind
from service.remote.format.segment_object import SegmentIdentity
from service.tiering.copier import CallProgress
from service.tiering.rewriting.merge_plan import MergeLimits
from service.tiering.rewriting.report_check import RewriteReport
from service.tiering.rewriting.rules import ChainRun, MergeRule
from service.tiering.rewriting.run_object import RunMaker
from tests.unit.tiering.world import CLUSTER, Crash, Replica, World

T = TypeVar("T")

LIMITS = MergeLimits(small_bytes=1 << 20, min_age_ms=0, object_bytes=1 << 24)


REWRITE, OBJECT = UUID(int=77), UUID(int=78)


class MergingWorld(World):
    """One node, which merges when it is told to."""

    def __init__(self, tmp: Path, limits: MergeLimits = LIMITS, **more: Any) -> None:
        self.merge_limits: MergeLimits | None = limits
        self.options = {"merge_limits": lambda: self.merge_limits}
        super().__init__(tmp, **more)

    def during(self, work: Coroutine[Any, Any, T]) -> T:
        """ChainRun `work` to its end while the node does its other tasks."""
        return self.do(self._during(work))

    async def _during(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        turns = 0
        try:
            while not task.done():
                await self.manager.run_news()
                await asyncio.wait({task}, timeout=0.002)
                turns += 1
                if not turns % 50:  # it waits for a task that backs off
                    self.clock.advance(self.settings.backoff_max_ms)
                    self.manager.scheduler.wake()
        except BaseException:
            task.cancel()
            await asyncio.wait({task})
            raise
        return task.result()

    def merge(self) -> bool:
        """Merge what can be merged now; False when the node crashed (and was started again)."""
        try:
            self.do(self.manager.rewriting.silent.run_once())
            self.during(self.manager.rewriting.merger.run_once())
        except BaseExceptionGroup as group:
            if group.split(Crash)[1] is not None:
                raise
        except Crash:
            pass
        else:
            return True
        self.crashes += 1
        self.reboot()
        return False

    def generations(self, replica: Replica) -> list[int]:
        return [segment.generation for segment in self.live(replica)]

    def run_of(self, replica: Replica, first: int = 0, count: int | None = None) -> ChainRun:
        """Neighbours of the chain, as the bucket has it."""
        live = self.live(replica)
        return ChainRun(replica.tip, tuple(live[first : None if count is None else first + count]))


class OutsideWorker:
    """Another process with the bucket, that asks the leader."""

    def __init__(self, world: MergingWorld, replica: Replica, rewrite_id: UUID = REWRITE) -> None:
        self.world, self.replica, self.rewrite_id = world, replica, rewrite_id
        self.place = replica.tip.topic_id, replica.tip.partition
        self.epoch = -1

    def begin(self, run: ChainRun, kind: RewriteKind = RewriteKind.MERGE, order: UUID | None = None) -> None:
        outside = self.world.manager.rewriting.outside
        answer = self.world.during(
            outside.begin(*self.place, self.rewrite_id, kind, run.base_offset, run.last_offset, order)
        )
        self.epoch = answer.leader_epoch

    def alive(self) -> None:
        self.world.manager.rewriting.outside.alive(*self.place, self.rewrite_id)

    def make(self, run: ChainRun, uuid: UUID = OBJECT, **identity: Any) -> RewriteReport:
        """Make the object of a run; `identity` is what this worker gets wrong."""
        tip = self.replica.tip
        fields: dict[str, Any] = {
            "cluster_id": CLUSTER, "topic_id": tip.topic_id, "topic": tip.topic, "partition": tip.partition,
            "base_offset": run.base_offset, "last_offset": run.last_offset, "leader_epoch": self.epoch,
            "uuid": uuid, **identity,
        }  # fmt: skip
        maker = RunMaker(self.world.bucket, run, MergeRule(), CallProgress(), block_bytes=512)
        made = maker.make(SegmentIdentity(**fields), self.rewrite_id, None)
        return RewriteReport(self.rewrite_id, run.keys, (made.entry,))

    def commit(self, report: RewriteReport) -> int:
        """Return the version of the chain with the run."""
        outside = self.world.manager.rewriting.outside
        return self.world.during(outside.commit(*self.place, report)).version

    def end(self) -> None:
        self.world.during(self.world.manager.rewriting.outside.end(*self.place, self.rewrite_id))
