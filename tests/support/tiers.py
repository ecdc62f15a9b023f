"""Watching a partition settle from outside, by offsets alone."""

from __future__ import annotations

import time

from tests.support.wire import RawConnection, leader_of, offsets

LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -4, -5


def offset(bootstrap: str, topic: str, partition: int, which: int) -> int:
    with RawConnection(leader_of(bootstrap, topic, partition)) as connection:
        found: int = offsets(connection, topic, partition, which).offset
        return found


def settle(bootstrap: str, topic: str, partition: int, seconds: float = 60) -> int:
    """Waits until all that can be in object storage is there and is gone from the broker; returns the border.

    Wants a topic with `local.retention.bytes=1` or the like. The border is the first local offset. Gives up
    when nothing has moved for `seconds`: how much there is to move, and how fast, is the caller's business.
    """
    seen: list[tuple[int, int]] = []
    moved = time.monotonic()
    while True:
        border = offset(bootstrap, topic, partition, EARLIEST_LOCAL)
        tiered = offset(bootstrap, topic, partition, LATEST_TIERED)
        if not seen or seen[-1] != (border, tiered):
            moved = time.monotonic()
        seen.append((border, tiered))
        # With an empty active segment, as a kill may leave it, the one before stays: there is no excess.
        is_all = tiered == border - 1 or tiered == offset(bootstrap, topic, partition, LATEST) - 1
        if border > 0 and is_all and seen[-10:] == [(border, tiered)] * 10:
            break
        assert time.monotonic() - moved < seconds, (
            f"{topic}-{partition} stands still at local start {border} and last tiered {tiered}"
        )
        time.sleep(0.1)
    assert 0 < border < offset(bootstrap, topic, partition, LATEST)
    return border
