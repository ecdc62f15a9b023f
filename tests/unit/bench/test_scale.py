"""Lines of `bench.scale`: medians of samples, ratios, and rates of more nodes."""

from __future__ import annotations

import pytest

from bench.scale import Cores, Load, Sample, median, reckoned, rows, split

SMALL = Load("small", "1000 requests", 1e3, float)


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        ([0, 1], Cores((0, 1), ((0,), (1,)))),
        ([2, 5, 7], Cores((2, 5), ((2,), (5,)))),
        ([0, 1, 2, 3], Cores((0, 1), ((2, 3), (2, 3)))),
    ],
)
def test_clients_are_aside_where_there_are_cores(cores: list[int], expected: Cores) -> None:
    assert split(cores) == expected
    assert expected.are_apart is (len(cores) > 3)


@pytest.mark.parametrize(("nodes", "rate"), [(1, 100), (2, 160), (8, 410), (16, 655)])
def test_each_doubling_costs_what_the_first_did(nodes: int, rate: int) -> None:
    one, two = Sample(90, 0.006, 0.004), Sample(150, 0.006, 0.0065)
    assert round(reckoned(one, two, nodes)) == rate


def test_a_unit_that_costs_less_with_two_is_no_promise_for_more() -> None:
    assert reckoned(Sample(90, 0.006, 0.004), Sample(190, 0.005, 0.004), 16) == pytest.approx(1600)


def test_the_lines_of_a_load() -> None:
    one = median([Sample(9_000, 5e-5, 2e-5), Sample(10_000, 4e-5, 1e-5), Sample(11_000, 3e-5, 1e-5)])
    assert one == Sample(10_000, 4e-5, 1e-5)
    assert list(rows(SMALL, one, Sample(17_000, 4e-5, 2e-5))) == [
        "small, 1 on a core: 10.000 1000 requests/s; CPU for 1000 requests: 50.0 ms, user 40.0, system 10.0",
        "small, 2 on 2 cores: 17.000 1000 requests/s; CPU for 1000 requests: 60.0 ms, user 40.0, system 20.0",
        "small: two do 1.70 x what one does (goal: 1.8 x, UNDER)",
        "small: with two a unit costs 1.20 x the CPU",
        "small: reckoned for 8 on 8 cores, clients elsewhere: 92.59 1000 requests/s",
        "small: reckoned for 16 on 16 cores, clients elsewhere: 154.32 1000 requests/s",
    ]
