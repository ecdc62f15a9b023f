"""Segments that may take the place of a run, and those that may not (T23)."""

from __future__ import annotations

import pytest

from service.remote.format.run_check import (
    SegmentOutline,
    check_rewritten,
    check_run,
    run_epochs,
    segment_epochs,
)

OLD = (
    SegmentOutline(100, 109, ((2, 60),), 0),
    SegmentOutline(110, 119, ((2, 60), (3, 115)), 4),
    SegmentOutline(120, 129, ((3, 115),), 0),
    SegmentOutline(130, 139, ((6, 130),), 1),
)
WHOLE = SegmentOutline(100, 139, ((2, 60), (3, 115), (6, 130)), 5)
HALVES = (SegmentOutline(100, 119, ((2, 60), (3, 115)), 5), SegmentOutline(120, 139, ((3, 115), (6, 130)), 9))


@pytest.mark.parametrize(
    "new",
    [
        (WHOLE,),
        HALVES,
        tuple(one._replace(generation=5) for one in OLD),
        (WHOLE._replace(leader_epochs=((2, 100), (3, 115), (6, 130))),),
        (HALVES[0], HALVES[1]._replace(leader_epochs=((3, 120), (6, 130)))),
    ],
)
def test_borders_of_the_run_and_its_epochs_are_taken(new: tuple[SegmentOutline, ...]) -> None:
    check_run(OLD, new)


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ((), "0 segments in place of 4"),
        ((*HALVES, *HALVES, WHOLE), "5 segments in place of 4"),
        ((WHOLE._replace(base_offset=101),), "does not continue at 100"),
        ((WHOLE._replace(base_offset=99),), "does not continue at 100"),
        ((HALVES[1], HALVES[0]), "does not continue at 100"),
        ((HALVES[0],), "end at 120, the run at 140"),
        ((HALVES[0], HALVES[0]), "does not continue at 120"),
        ((WHOLE._replace(last_offset=149),), "ends where no segment"),
        ((WHOLE._replace(last_offset=114),), "ends where no segment"),
        ((WHOLE._replace(last_offset=99),), "ends where no segment"),
        ((WHOLE._replace(generation=4),), "generation 4, at least 5"),
        ((HALVES[0], HALVES[1]._replace(generation=0)), "generation 0, at least 5"),
        ((WHOLE._replace(leader_epochs=((2, 60), (3, 115))),), "leader epochs"),
        ((WHOLE._replace(leader_epochs=((2, 60), (3, 116), (6, 130))),), "leader epochs"),
        ((WHOLE._replace(leader_epochs=((2, 60), (4, 115), (6, 130))),), "leader epochs"),
        ((WHOLE._replace(leader_epochs=((3, 60), (6, 130))),), "leader epochs"),
        ((HALVES[0]._replace(leader_epochs=((2, 60),)), HALVES[1]), "leader epochs"),
        ((HALVES[0], HALVES[1]._replace(leader_epochs=((6, 120),))), "leader epochs"),
    ],
)
def test_anything_else_is_refused(new: tuple[SegmentOutline, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_run(OLD, new)


def test_one_object_has_no_more_offsets_than_an_index_of_it() -> None:
    old = (SegmentOutline(0, 2**31 - 1, ((0, 0),), 0), SegmentOutline(2**31, 2**31, ((0, 0),), 0))
    check_run(old, [one._replace(generation=1) for one in old])
    with pytest.raises(ValueError, match="has more than 2147483647 offsets"):
        check_run(old, [SegmentOutline(0, 2**31, ((0, 0),), 1)])


def test_a_run_has_at_most_256_segments() -> None:
    old = [SegmentOutline(n, n, ((0, 0),), 0) for n in range(257)]
    check_run(old[:256], [SegmentOutline(0, 255, ((0, 0),), 1)])
    check_rewritten(old, [SegmentOutline(0, 256, ((0, 0),), 1)])
    with pytest.raises(ValueError, match="a run of 257 segments, at most 256"):
        check_run(old, [SegmentOutline(0, 256, ((0, 0),), 1)])


def test_epochs_of_a_run_and_of_a_part_of_it() -> None:
    epochs = run_epochs(OLD)
    assert epochs == ((2, 60), (3, 115), (6, 130))
    assert segment_epochs(epochs, 100, 109) == ((2, 60),)
    assert segment_epochs(epochs, 110, 115) == ((2, 60), (3, 115))
    assert segment_epochs(epochs, 115, 129) == ((3, 115),)
    assert segment_epochs(epochs, 130, 139) == ((6, 130),)
