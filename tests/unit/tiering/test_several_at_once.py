"""Several segments with one manifest: catching up writes fewer of them, and may be cut off anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.remote.format.manifest import ManifestLimits
from service.tiering.steps import CommitStep
from tests.unit.tiering.world import SETTINGS, Fault, World, crash_at

AT_MOST = 4
TOGETHER = SETTINGS._replace(commit_segments=AT_MOST)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, settings=TOGETHER)


def versions(world: World) -> list[int]:
    return [one.entry.segments for one in world.catalog.history]


def test_catching_up_writes_one_manifest_for_several_segments(world: World) -> None:
    world.fill(11)
    world.run()
    assert versions(world) == [4, 8, 11]
    assert world.manager.metrics.manifests_written == 3
    assert world.manager.metrics.segments_copied == 11
    world.clock.advance(world.settings.grace_ms)
    world.run()
    world.sweep()
    world.check_at_rest()


def test_large_segments_do_not_wait_for_each_other(tmp_path: Path) -> None:
    world = World(tmp_path, settings=TOGETHER._replace(commit_bytes=4000))
    world.fill(5)
    world.run()
    assert versions(world) == [2, 4, 5]
    world.check()


def test_pages_spill_in_the_middle_of_what_goes_together(tmp_path: Path) -> None:
    world = World(tmp_path, settings=TOGETHER, limits=ManifestLimits(3, 2))
    world.fill(23)
    world.run()
    assert versions(world)[-1] == 23
    world.clock.advance(world.settings.grace_ms)
    world.run()
    world.sweep()
    world.check_at_rest()


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LIE, Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("failing", [1, 2, 4])
def test_segments_uploaded_before_a_failure_are_committed(world: World, failing: int, fault: Fault) -> None:
    calls = [0]

    def decide(operation: str, key: str) -> Fault:
        calls[0] += operation == "put_stream"
        return fault if operation == "put_stream" and calls[0] == failing else Fault.PASS

    world.store.decide = decide
    world.fill(6)
    world.run()
    world.check()
    if fault in (Fault.FAIL, Fault.LIE):
        assert versions(world) == ([failing - 1] if failing > 1 else [])
        assert world.manager.metrics.why(world.replicas[0].tip) is not None
    world.settle()
    world.sweep()
    world.check_at_rest()
    assert versions(world)[-1] == 6


@pytest.mark.parametrize("step", list(CommitStep))
def test_a_crash_at_any_step_of_several_loses_nothing_and_leaves_orphans_at_most(
    world: World, step: CommitStep
) -> None:
    world.fill(6)
    world.probe = crash_at(step)
    while not world.crashes:
        world.run()
        world.check()
    world.settle()
    world.sweep()
    world.check_at_rest()


def test_a_leader_that_is_fenced_after_the_uploads_commits_none_of_them(world: World) -> None:
    [replica] = world.replicas
    world.fill(3)

    def fence(step: CommitStep, tip: object) -> None:
        if step is CommitStep.PROPOSED:
            world.fence(replica)

    world.probe = fence
    world.run()
    assert versions(world) == []
    assert world.manager.metrics.fenced_commits == 1
    world.elect(replica)
    world.settle()
    world.sweep()
    world.check_at_rest()
