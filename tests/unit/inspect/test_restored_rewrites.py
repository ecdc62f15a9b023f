"""Restores of cuts whose chains have been rewritten since: no record below the cut's ends is missing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

from service.inspect.restore_plan import PartitionPlan
from service.inspect.restore_source import CutChoice, read_source
from service.metadata.image import RestoredTail
from service.records.decode import iter_records
from service.remote.format.keys import HeadKey
from service.remote.reading.tail_records import TailRun
from service.remote.stores.read_only_store import ReadOnlyStore
from service.replicas.cut_tails import tail_runs
from tests.support.rewritten import Keep, Rewriter, without_offsets
from tests.unit.inspect.cuts import EVENTS, TIERED, Cutting
from tests.unit.tiering.world import GRACE_MS, World

KEY = HeadKey(EVENTS, 0)


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three segments in the bucket, and some batches behind them."""
    world = World(tmp_path / "disk")
    world.topic_configs = {"events": TIERED}
    world.fill(3)
    world.run()
    world.run()
    world.replicas[0].append(3, world.clock.now_ms())
    return world


def plan(world: World, pool: Executor) -> PartitionPlan:
    choice = CutChoice()
    return read_source(ReadOnlyStore(world.bucket), choice, pool, gap=1)[1].partitions[EVENTS, 0]


def runs_of(world: World, found: PartitionPlan) -> Iterator[TailRun]:
    """What the heir's leader loads behind the chain."""
    tail = RestoredTail(
        found.chain_end, found.loaded_end, found.loaded_end + 1, "cut/none", found.segment_key
    )
    return tail_runs(world.bucket, None, KEY, tail, 0)


def loaded(world: World, found: PartitionPlan) -> list[int]:
    return [one.offset for run in runs_of(world, found) for one in iter_records(bytes(run.data))]


@pytest.mark.parametrize("gone", [set(), {27}, set(range(25, 40)), set(range(200))], ids=len)
def test_an_awaited_segment_that_was_rewritten_with_those_before_is_loaded(
    world: World, pool: Executor, gone: set[int]
) -> None:
    """The cut ends within a segment that later was merged with, or erased beside, the one before it."""
    one = world.replicas[0]
    end = one.log.log_end_offset
    Cutting(world).cut({one: end}, waits=[one])
    world.fill(2, one)
    world.run()
    world.run()
    world.clock.advance(GRACE_MS)
    rewriter = Rewriter(world.bucket, KEY)
    segments = rewriter.segments()
    keep: Keep = without_offsets(*gone)
    before = [number for number, found in enumerate(segments) if found.last_offset < end][-1]
    done = rewriter.erase(segments[before].base_offset, segments[before + 1].last_offset, keep)
    for old in done.old[1:]:
        world.bucket.delete([old.key])  # as though no cut had needed it
    found = plan(world, pool)
    assert not found.is_incomplete
    assert found.loaded_end == end
    assert found.segment_key == done.entry.key
    assert loaded(world, found) == [n for n in range(found.chain_end, end) if n not in gone]
    ends = [run.batches.last_offsets[-1] + 1 for run in runs_of(world, found)]
    assert ends[-1:] in ([], [end]), "an empty batch is cut where the cut ends"
