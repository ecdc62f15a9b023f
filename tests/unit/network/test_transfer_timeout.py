"""The pace of a peer: how much time it has for the bytes of one request or response."""

from __future__ import annotations

import pytest

from service.network.transfer_timeout import Pace


@pytest.mark.parametrize(("moved", "is_late"), [(327_680, False), (327_679, True)])
def test_a_peer_that_moves_32_kib_a_second_is_never_late(moved: int, is_late: bool) -> None:
    pace = Pace(100.0)
    pace.look(110.0, moved)
    assert pace.is_late(0.0) is is_late
    assert not pace.is_late(0.01)


@pytest.mark.parametrize(("moved", "stalled_s"), [(32_768, 0.0), (32_767, 1.0)])
def test_a_peer_that_moves_less_than_32_kib_a_second_has_stalled(moved: int, stalled_s: float) -> None:
    pace = Pace(100.0)
    pace.look(101.0, moved)
    assert pace.stalled_s == stalled_s


def test_the_time_in_which_the_node_did_not_read_is_not_counted() -> None:
    pace = Pace(100.0)
    pace.look(105.0, 0, excused=True)
    assert (pace.stalled_s, pace.is_late(0.0)) == (0.0, False)
    pace.look(106.0, 0, excused=True, stands=True)
    assert pace.stalled_s == 1.0
    pace.look(107.0, 0)
    assert pace.is_late(0.5)
