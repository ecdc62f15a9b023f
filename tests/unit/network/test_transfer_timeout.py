"""The pace of a peer: how much time it has for the bytes of one request or response."""

from __future__ import annotations

import pytest

from service.network.transfer_timeout import TransferTimeout


@pytest.mark.parametrize(("moved", "is_late"), [(327_680, False), (327_679, True)])
def test_a_peer_that_moves_32_kib_a_second_is_never_late(moved: int, is_late: bool) -> None:
    pace = TransferTimeout(100.0)
    pace.update(110.0, moved)
    assert pace.is_late(0.0) is is_late
    assert not pace.is_late(0.01)


@pytest.mark.parametrize(("moved", "stalled_s"), [(32_768, 0.0), (32_767, 1.0)])
def test_a_peer_that_moves_less_than_32_kib_a_second_has_stalled(moved: int, stalled_s: float) -> None:
    pace = TransferTimeout(100.0)
    pace.update(101.0, moved)
    assert pace.stalled_s == stalled_s


def test_the_time_in_which_the_node_did_not_read_is_not_counted() -> None:
    pace = TransferTimeout(100.0)
    pace.update(105.0, 0, waiting_on_us=True)
    assert (pace.stalled_s, pace.is_late(0.0)) == (0.0, False)
    pace.update(106.0, 0, waiting_on_us=True, stalled=True)
    assert pace.stalled_s == 1.0
    pace.update(107.0, 0)
    assert pace.is_late(0.5)
