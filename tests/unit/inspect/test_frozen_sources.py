"""A lost cluster that is not lost, but stood still in the middle of something while an heir took its prefix
over (invariant T21): what it goes on with has no effect on the heir."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.inspect.fsck import fsck
from tests.unit.inspect.cuts import stored
from tests.unit.inspect.frozen_world import calls_of, frozen_at


def check(folder: Path, number: int) -> None:
    """Check that nothing of the heir is touched by a source that stood still at this call."""
    world, before, named = frozen_at(folder / f"{number}", number)
    after = stored(world.bucket)
    touched = {key: (before[key], after.get(key)) for key in named if after.get(key) != before[key]}
    assert touched == {}, number
    report = fsck(world.bucket)
    assert report.errors == [], number
    world.fill(1)
    world.clock.advance(60_000)
    world.run()
    assert not world.manager._fence.may_write, number
    assert stored(world.bucket) == after, "and nothing more is written"


def test_a_source_that_stood_still_at_any_kind_of_call_touches_nothing_of_its_heir(tmp_path: Path) -> None:
    calls = calls_of(tmp_path / "all")
    first: dict[object, int] = {}
    for number, call in enumerate(calls):
        # HEAD and `CUT` may be taken for the source's own: these are tried in each act.
        is_shared = call.kind in ("HeadKey", "SharedKeyCUT")
        first.setdefault(call if is_shared else call[1:], number)
    wanted = {"put", "put_stream", "delete"}
    kinds = {(call.operation, call.kind) for call in calls if call.operation in wanted}
    assert {("put_stream", "SegmentKey"), ("put", "HeadKey"), ("delete", "SegmentKey")} <= kinds
    assert {("put", "SharedKeyCUT"), ("put_stream", "CutKey"), ("delete", "TailKey")} <= kinds
    for number in sorted(first.values()):
        check(tmp_path, number)


@pytest.mark.thorough
def test_a_source_that_stood_still_at_any_call_touches_nothing_of_its_heir(tmp_path: Path) -> None:
    for number in range(len(calls_of(tmp_path / "all"))):
        check(tmp_path, number)
