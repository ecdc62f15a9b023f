"""The choice of a replica for a consumer."""

from __future__ import annotations

import pytest

from service.replication.selectors import ReplicaView, of_the_rack

LEADER = ReplicaView(1, "a", 10, 0)


@pytest.mark.parametrize(
    ("rack", "others", "expected"),
    [
        ("b", [ReplicaView(2, "b", 10, 0), ReplicaView(3, "c", 10, 0)], 2),
        ("a", [ReplicaView(2, "a", 10, 0)], 1),
        ("d", [ReplicaView(2, "b", 10, 0)], 1),
        ("", [ReplicaView(2, "", 10, 0)], 1),
        ("b", [ReplicaView(2, None, 10, 0)], 1),
        ("b", [ReplicaView(2, "b", 9, 0), ReplicaView(3, "b", 10, 500)], 3),
        ("b", [ReplicaView(2, "b", 9, 10), ReplicaView(3, "b", 9, 500)], 2),
        ("b", [ReplicaView(2, "b", 9, 10), ReplicaView(3, "b", 9, 10)], 3),
        ("b", [], 1),
    ],
)
def test_the_one_of_the_rack_that_has_most(rack: str, others: list[ReplicaView], expected: int) -> None:
    assert of_the_rack(rack, LEADER, [LEADER, *others]).broker_id == expected
