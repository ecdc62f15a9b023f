"""`firn cluster repair-internal` against a model of a cluster: bounded, awaited, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pytest

from service.base.clock import ManualClock
from service.cli import cluster_repair
from service.cli.cluster_repair import Repair
from service.cli.report import Report
from service.client.admin_models import ClusterInfo, NodeInfo
from service.client.cluster_health import PartitionState, ReassignmentInfo

TOPIC = "__consumer_offsets"
Place = tuple[str, int]


class Copying:
    """Copies one partition a second; more than `most` at a time are too many."""

    def __init__(self, partitions: int, most: int) -> None:
        self.nodes = tuple(NodeInfo(n, "h", 9092, None, False) for n in (1, 2, 3))
        self.replicas: dict[int, tuple[int, ...]] = dict.fromkeys(range(partitions), (1,))
        self.wanted: dict[int, tuple[int, ...]] = {}
        self.refuses: frozenset[int] = frozenset()
        self.calls_off: frozenset[int] = frozenset()
        self.most, self.asked, self.is_stuck = most, 0, False
        self.clock = ManualClock()

    def describe(self) -> ClusterInfo:
        return ClusterInfo("c", 1, self.nodes)

    def reassign(self, wanted: Mapping[Place, Sequence[int]]) -> dict[Place, str]:
        refused = {}
        for place, replicas in wanted.items():
            if place[1] in self.refuses:
                refused[place] = "no"
            else:
                self.wanted[place[1]] = tuple(replicas)
        self.asked += 1
        assert len(self.wanted) <= self.most
        return refused

    def sleep(self, seconds: float) -> None:
        self.clock.advance(int(1000 * seconds))
        if self.wanted and not self.is_stuck and self.clock.monotonic_ms() % 1000 == 0:
            number = next(iter(self.wanted))
            after = self.wanted.pop(number)
            if number not in self.calls_off:
                self.replicas[number] = after

    def moving(self) -> tuple[ReassignmentInfo, ...]:
        others = (ReassignmentInfo("other", 0, (1, 2), (2,), ()),)
        return others + tuple(
            ReassignmentInfo(TOPIC, number, after, after[1:], ()) for number, after in self.wanted.items()
        )

    def pages(self) -> Iterator[list[tuple[str, PartitionState]]]:
        yield [(TOPIC, PartitionState(n, 1, 0, held, held)) for n, held in self.replicas.items()]

    def repair(self) -> Repair:
        return Repair(cast("Any", self), [TOPIC], 3, self.clock, Report(), self.sleep)


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> Copying:
    found = Copying(25, 10)
    monkeypatch.setattr(cluster_repair, "ask_moving", lambda cluster: found.moving())
    monkeypatch.setattr(cluster_repair, "partition_pages", lambda cluster, topics: found.pages())
    return found


def test_all_get_what_they_lack_a_few_at_a_time(copying: Copying, capsys: pytest.CaptureFixture[str]) -> None:
    assert copying.repair().run(10, 60) == []
    assert copying.asked == 3
    assert all(held[0] == 1 and len(held) == 3 for held in copying.replicas.values())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{TOPIC}-0: 1 becomes 1,2,3"
    assert lines[-1] == "25 of 25 done"
    assert copying.repair().run(10, 60) == []
    assert "nothing to do" in capsys.readouterr().out
    assert copying.asked == 3


def test_a_rehearsal_says_the_same_and_does_nothing(
    copying: Copying, capsys: pytest.CaptureFixture[str]
) -> None:
    copying.wanted = {4: (1, 2, 3)}
    assert copying.repair().rehearse() == ()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"{TOPIC}-4: is already being reassigned", f"{TOPIC}-0: 1 would become 1,2,3"]
    assert (len(lines), copying.asked) == (25, 0)


def test_a_repair_continues_reassignments_of_an_earlier_one(
    copying: Copying, capsys: pytest.CaptureFixture[str]
) -> None:
    copying.wanted = {0: (1, 2, 3), 1: (1, 2)}
    assert copying.repair().run(10, 60) == []
    assert "2 partitions are already being reassigned: waiting for them" in capsys.readouterr().out
    assert all(len(held) == 3 for held in copying.replicas.values())


def test_patience_ends_and_what_is_under_way_goes_on(copying: Copying) -> None:
    copying.is_stuck = True
    (problem,) = copying.repair().run(2, 60)
    assert problem.startswith(f"none was completed for 60 s: {TOPIC}-0, {TOPIC}-1;")
    assert copying.asked == 1
    assert copying.clock.monotonic_ms() - ManualClock().monotonic_ms() == 60_000


def test_a_repair_reports_refused_reassignments_and_does_the_others(copying: Copying) -> None:
    copying.refuses, copying.calls_off = frozenset({3}), frozenset({12})
    assert copying.repair().run(10, 60) == [f"{TOPIC}-3: no", f"{TOPIC}-12 did not get 1,2,3"]
    assert sorted(n for n, held in copying.replicas.items() if len(held) < 3) == [3, 12]


def test_a_cluster_without_such_topics_has_nothing_to_do(
    copying: Copying, capsys: pytest.CaptureFixture[str]
) -> None:
    copying.replicas.clear()
    assert copying.repair().run(10, 60) == []
    assert copying.repair().rehearse() == ()
    assert capsys.readouterr().out.splitlines() == ["nothing to do: there are no internal topics yet"] * 2
