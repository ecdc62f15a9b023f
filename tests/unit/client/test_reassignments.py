"""Plans of reassignments, and their throttles."""

from __future__ import annotations

from collections import Counter

import pytest

from service.base.errors import ConfigError
from service.client.admin_models import NodeInfo
from service.client.cluster_health import ReassignmentInfo
from service.client.reassignments import changes_of, spread, throttle


def brokers(*ids: int, racks: dict[int, str | None] | None = None) -> list[NodeInfo]:
    return [NodeInfo(one, "h", 1, (racks or {}).get(one), False) for one in ids]


def test_replicas_stay_where_they_may_be() -> None:
    present = {("t", 0): (1, 2), ("t", 1): (2, 3), ("t", 2): (3, 1)}
    found = spread(present, brokers(1, 2, 4))
    assert {place: set(replicas) for place, replicas in found.items()} == {
        ("t", 0): {1, 2},
        ("t", 1): {2, 4},
        ("t", 2): {1, 4},
    }
    assert Counter(replicas[0] for replicas in found.values()) == {1: 1, 2: 1, 4: 1}


def test_new_replicas_go_to_other_racks_first() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b"}
    found = spread({("t", 0): (1,)}, brokers(1, 2, 3, racks=racks), 2)
    assert set(found["t", 0]) == {1, 3}
    found = spread({("t", 0): (1, 2, 3)}, brokers(1, 2, 3, racks=racks), 2)
    assert 3 in found["t", 0]  # the last of its rack is not given up
    with pytest.raises(ConfigError, match="some have none"):
        spread({("t", 0): (1,)}, brokers(1, 2, racks={1: "a"}))
    assert spread({("t", 0): (1,)}, brokers(1, 2, racks={1: "a"}), rack_aware=False) == {("t", 0): (1,)}


def test_replicas_and_leaders_are_spread() -> None:
    present = {("t", number): (9,) for number in range(12)}
    found = spread(present, brokers(1, 2, 3), 2)
    assert Counter(one for replicas in found.values() for one in replicas) == {1: 8, 2: 8, 3: 8}
    assert Counter(replicas[0] for replicas in found.values()) == {1: 4, 2: 4, 3: 4}
    assert all(len(set(replicas)) == 2 for replicas in found.values())


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(ConfigError, match="t-0 has 2 replicas, for which 1 brokers are too few"):
        spread({("t", 0): (1, 2)}, brokers(3))


def test_another_order_is_a_change() -> None:
    present = {("t", 0): (1, 2), ("t", 1): (1, 2)}
    assert changes_of({("t", 0): (2, 1), ("t", 1): (1, 2)}, present) == {("t", 0): (2, 1)}


def test_a_throttle_names_present_replicas_as_leaders_and_new_ones_as_followers() -> None:
    moving = (ReassignmentInfo("u", 4, (1, 2, 3), adding=(3,), removing=(1,)),)
    found = throttle({("t", 0): (2, 3)}, {("t", 0): (1, 2)}, moving)
    assert found.topics == {
        "t": {
            "leader.replication.throttled.replicas": "0:1,0:2",
            "follower.replication.throttled.replicas": "0:3",
        },
        "u": {
            "leader.replication.throttled.replicas": "4:1,4:2",
            "follower.replication.throttled.replicas": "4:3",
        },
    }
    assert found.brokers == (1, 2, 3)


def test_a_throttle_of_what_moves_already_keeps_its_sources() -> None:
    moving = (ReassignmentInfo("t", 0, (1, 2, 3), adding=(3,), removing=(1,)),)
    found = throttle({("t", 0): (4,)}, {("t", 0): (1, 2, 3)}, moving)
    assert found.topics["t"] == {
        "leader.replication.throttled.replicas": "0:1,0:2",
        "follower.replication.throttled.replicas": "0:4",
    }
