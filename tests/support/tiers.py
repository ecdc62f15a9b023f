"""Watching a partition settle from outside, by offsets alone."""

from __future__ import annotations

from tests.support.processes import wait_until
from tests.support.wire import RawConnection, offsets

LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -4, -5


def offset(bootstrap: str, topic: str, partition: int, which: int) -> int:
    with RawConnection(bootstrap) as connection:
        found: int = offsets(connection, topic, partition, which).offset
        return found


def settle(bootstrap: str, topic: str, partition: int, seconds: float = 60) -> int:
    """Waits until all that can be in object storage is there and is gone from the broker; returns the border.

    Wants a topic with `local.retention.bytes=1` or the like. The border is the first local offset.
    """
    seen = [-1]

    def still() -> bool:
        border = offset(bootstrap, topic, partition, EARLIEST_LOCAL)
        tiered = offset(bootstrap, topic, partition, LATEST_TIERED)
        seen.append(border)
        return border > 0 and tiered == border - 1 and seen[-10:] == [border] * 10

    wait_until(f"{topic}-{partition} to settle ({set(seen)})", still, seconds, 0.1)
    assert 0 < seen[-1] < offset(bootstrap, topic, partition, LATEST)
    return seen[-1]
