"""Which replica a consumer is sent to."""

from __future__ import annotations

import pytest

from service.replication.selectors import Candidate, leader_always, of_the_rack

LEADER = Candidate(1, "a", 10, 0)


@pytest.mark.parametrize(
    ("rack", "others", "expected"),
    [
        ("b", [Candidate(2, "b", 10, 0), Candidate(3, "c", 10, 0)], 2),
        ("a", [Candidate(2, "a", 10, 0)], 1),
        ("d", [Candidate(2, "b", 10, 0)], 1),
        ("", [Candidate(2, "", 10, 0)], 1),
        ("b", [Candidate(2, None, 10, 0)], 1),
        ("b", [Candidate(2, "b", 9, 0), Candidate(3, "b", 10, 500)], 3),
        ("b", [Candidate(2, "b", 9, 10), Candidate(3, "b", 9, 500)], 2),
        ("b", [Candidate(2, "b", 9, 10), Candidate(3, "b", 9, 10)], 3),
        ("b", [], 1),
    ],
)
def test_the_one_of_the_rack_that_has_most(rack: str, others: list[Candidate], expected: int) -> None:
    assert of_the_rack(rack, LEADER, [LEADER, *others]).broker_id == expected
    assert leader_always(rack, LEADER, [LEADER, *others]) is LEADER
