"""Replicas on different machines: brokers that advertise the same hosts are processes of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from uuid import UUID

import pytest

from service.client.admin_models import NodeInfo
from service.client.cluster_health import PartitionState
from service.client.reassignments import spread
from service.client.replica_widening import plan
from service.metadata.controller.placement import place_replicas
from service.metadata.image import BrokerImage, EndpointImage

TOPIC_ID = UUID(int=0)


def broker(node_id: int, *hosts: str, rack: str | None = None, fenced: bool = False) -> BrokerImage:
    endpoints = tuple(EndpointImage(f"L{i}", host, 9092 + node_id, 0) for i, host in enumerate(hosts))
    return BrokerImage(node_id, node_id, UUID(int=node_id), endpoints, (), rack, fenced, False, ())


def machines(count: int, processes: int, racks: Sequence[str | None] = (None,)) -> list[BrokerImage]:
    """Brokers with the ids that `firn.processes` derives: machine 1 has 1, 1001, 2001, …"""
    return [
        broker(1000 * process + machine, f"m{machine}", rack=racks[machine % len(racks)])
        for process, machine in product(range(processes), range(1, count + 1))
    ]


def machine_of(node_id: int) -> int:
    return node_id % 1000


@pytest.mark.parametrize(("count", "processes"), [(2, 2), (3, 4), (4, 16), (5, 3)])
@pytest.mark.parametrize("factor", [2, 3])
def test_no_two_replicas_are_on_one_machine(count: int, processes: int, factor: int) -> None:
    partitions = 4 * count * processes
    placed = list(place_replicas(machines(count, processes), range(partitions), factor, TOPIC_ID))
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({machine_of(one) for one in replicas}) == min(factor, count)
    led = Counter(replicas[0] for replicas in placed)
    assert set(led.values()) == {4}  # each leads as many as any


def test_two_machines_of_two_processes_written_out() -> None:
    placed = list(place_replicas(machines(2, 2), range(4), 2, TOPIC_ID))
    assert placed == [(1, 2), (2, 1001), (1001, 1002), (1002, 1)]


def test_more_replicas_than_machines_go_round_them() -> None:
    for replicas in place_replicas(machines(2, 4), range(64), 5, TOPIC_ID):
        assert sorted(Counter(map(machine_of, replicas)).values()) == [2, 3]


def test_racks_come_before_machines() -> None:
    """Machines 2 and 4 are in rack a, 1 and 3 in rack b: the third replica is in a rack again, on another
    machine."""
    for replicas in place_replicas(machines(4, 2, ("a", "b")), range(32), 3, TOPIC_ID):
        assert {machine_of(one) % 2 for one in replicas} == {0, 1}
        assert len(set(map(machine_of, replicas))) == 3


def test_a_fenced_broker_elsewhere_is_taken_before_one_on_the_same_machine() -> None:
    brokers = [broker(1, "m1"), broker(1001, "m1"), broker(2, "m2", fenced=True)]
    assert list(place_replicas(brokers, range(2), 2, TOPIC_ID)) == [(1, 2), (1001, 2)]


def test_brokers_behind_one_address_for_clients_are_different_machines() -> None:
    brokers = [broker(i, "lb.example.com", f"10.0.0.{i}") for i in (1, 2, 3)]
    alone = [broker(i, f"10.0.0.{i}") for i in (1, 2, 3)]
    placed = [list(place_replicas(every, range(9), 2, TOPIC_ID)) for every in (brokers, alone)]
    assert placed[0] == placed[1]


def test_brokers_of_one_machine_are_placed_as_if_alone() -> None:
    one = [broker(i, "127.0.0.1") for i in range(5)]
    several = [broker(i, f"m{i}") for i in range(5)]
    placed = [list(place_replicas(every, range(25), 3, TOPIC_ID)) for every in (one, several)]
    assert placed[0] == placed[1]


def nodes() -> list[NodeInfo]:
    ids = (1, 2, 1001, 1002)
    return [NodeInfo(one, f"m{machine_of(one)}", 9092, None, False) for one in ids]


def test_a_plan_of_moves_puts_replicas_on_different_machines() -> None:
    present = {("t", number): (1, 1001) for number in range(8)}
    assert all(set(pair) == {1, 1001} for pair in spread(present, nodes(), 2).values())  # nothing moves
    narrowed = spread({("t", number): (1, 1001, 2) for number in range(8)}, nodes(), 2)
    widened = spread({("t", number): (1,) for number in range(8)}, nodes(), 2)
    for replicas in (*narrowed.values(), *widened.values()):
        assert len({machine_of(one) for one in replicas}) == 2


def test_a_further_replica_comes_on_another_machine() -> None:
    state = PartitionState(0, 1, 0, (1,), (1,))
    (step,) = plan([("t", state)], nodes(), (), 2).steps
    assert step.after == (1, 2)
