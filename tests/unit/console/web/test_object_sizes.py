"""Objects by size on the bucket page: classes, and runs that may be merged."""

from __future__ import annotations

import pytest

from service.config.tables import BROKER_KEYS
from service.console.web.costs import Prices
from service.console.web.object_sizes import LEAST_RUN, OBJECT_BYTES, SMALL_BYTES, ObjectSizes
from service.console.web.pages.bucket_objects import objects_section

MIB = 1 << 20


def sized(*sizes: int) -> ObjectSizes:
    found = ObjectSizes()
    found.add_chain(sizes)
    return found


@pytest.mark.parametrize(
    ("sizes", "before", "after"),
    [
        ([MIB] * 7, 0, 0),
        ([MIB] * 8, 8, 1),
        ([MIB] * 7 + [16 * MIB] + [MIB] * 7, 0, 0),
        ([15 * MIB] * 17, 16, 2),
        ([1] * 600, 600, 3),
        ([64 * MIB] * 20, 0, 0),
    ],
)
def test_runs_of_eight_small_neighbours_may_be_merged(sizes: list[int], before: int, after: int) -> None:
    found = sized(*sizes)
    assert (found.before, found.after) == (before, after)


def test_objects_of_different_partitions_are_no_neighbours() -> None:
    found = ObjectSizes()
    for _ in range(4):
        found.add_chain([MIB] * 7)
    assert (found.counts[1], found.before) == (28, 0)


def test_the_bounds_are_the_defaults_of_the_settings() -> None:
    keys = {name: one.default for name, one in BROKER_KEYS.items()}
    assert keys["firn.merge.small.bytes"] == SMALL_BYTES
    assert keys["firn.rewrite.object.bytes"] == OBJECT_BYTES
    assert LEAST_RUN == 8


def test_the_section_tells_requests_and_money() -> None:
    page = str(objects_section(sized(*[MIB] * 10, 130 * MIB), Prices()))
    assert "below 16" in page
    assert "and more" in page
    assert "1 object of 10 small ones" in page
    assert "some 18 requests less" in page
    page = str(objects_section(sized(MIB), Prices()))
    assert "nothing to merge" in page
