"""Election timeouts are random, and the back-off grows with each lost election."""

from __future__ import annotations

from typing import Any

from service.metadata.raft.election_timeouts import ElectionTimeouts
from service.metadata.raft.roles import RaftTiming


class Chance:
    """Draws a number at ``percent`` of the range, and notes the ranges."""

    def __init__(self, percent: int = 50) -> None:
        self.percent = percent
        self.asked: list[int] = []

    def randrange(self, stop: int, /) -> int:
        self.asked.append(stop)
        return stop * self.percent // 100

    def shuffle(self, items: Any, /) -> None:
        raise AssertionError("no order is needed")


def test_elections_wait_for_one_to_two_timeouts() -> None:
    chance = Chance()
    timeouts = ElectionTimeouts(RaftTiming(), chance)
    waits = []
    for chance.percent in (0, 50, 99):
        waits.append(timeouts.timeout_ms())
    assert waits == [1000, 1500, 1990]
    assert chance.asked == [1000] * 3


def test_after_each_lost_election_the_wait_may_be_twice_as_long_up_to_a_second() -> None:
    chance = Chance()
    timeouts = ElectionTimeouts(RaftTiming(), chance)
    for timeouts.lost in (0, 1, 2, 5, 6, 16, 17, 99):
        timeouts.backoff_ms()
    assert chance.asked == [20, 40, 80, 640, 1000, 1000, 1000, 1000]
    chance.percent = 0
    assert timeouts.backoff_ms() == 1
    assert ElectionTimeouts(RaftTiming(election_backoff_max_ms=0), chance).backoff_ms() == 1


def test_a_doubling_has_an_end() -> None:
    chance = Chance()
    timeouts = ElectionTimeouts(RaftTiming(election_backoff_max_ms=2**40, retry_backoff_ms=20), chance)
    for timeouts.lost in (29, 30, 31):
        timeouts.backoff_ms()
    assert chance.asked == [20 << 29, 20 << 30, 20 << 30]
