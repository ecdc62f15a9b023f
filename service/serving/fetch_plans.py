"""Plans to answer a fetch that is like its connection's last one.

A consumer that catches up with one partition asks for the same again and again, from another offset. A
`FetchPlan` has the bytes of such a request and what was parsed of it: of the next one only the offset is
read. What its answer rests on is asked anew each time (`ordinary_fetch.answer`).

A connection has one plan at most, of `MOST_BYTES` of a request. To look for one costs as much as some fetches
by it save, so it is done ever more seldom where it was for nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from service.base.types import NO_LEADER_EPOCH
from service.network.request import RequestContext
from service.partition.fetch_sessions import FINAL_EPOCH, NO_SESSION
from service.wire.api import parse_request_header
from service.wire.errors import WireError
from service.wire.fetch import FetchPartition, FetchRequestView, offset_position, parse_fetch
from service.wire.ordinary_fetch import ordinary_head
from service.wire.primitives import ManyElements
from service.wire.produce import TopicKey

FIRST_FLEXIBLE: Final = 12
MOST_PARTITIONS: Final = 16
"""Most partitions of an ordinary fetch."""
MOST_BYTES: Final = 512
"""Longest request of a plan."""
MOST_SKIPPED: Final = 1000
"""Most requests of a connection of which none is looked at for a plan."""
_OFTEN: Final = 4
"""A plan that was taken as often was worth to make: another may follow at once."""
_CORRELATION_AT: Final = 4
_BEHIND_CORRELATION: Final = 8
_INT64: Final = struct.Struct(">q")


class OrdinaryFetch(NamedTuple):
    """A consumer's fetch of few partitions of one topic, without a session."""

    version: int
    topic: TopicKey
    wanted: Sequence[FetchPartition]
    least: int
    """bytes that the client waits for"""
    most: int
    """bytes that it takes"""
    is_committed: bool
    head: bytes
    """`ordinary_head` of the response"""
    client_id: str = ""


def ordinary(version: int, fetch: FetchRequestView) -> OrdinaryFetch | None:
    """Return the fetch as an ordinary one; None if it is none."""
    if (
        len(fetch.topics) != 1
        or version < FIRST_FLEXIBLE
        or fetch.replica_id >= 0
        or fetch.session_epoch != FINAL_EPOCH
        or fetch.session_id != NO_SESSION
    ):
        return None
    topic, wanted = fetch.topics[0]
    if not 0 < len(wanted) <= MOST_PARTITIONS or any(
        one.last_fetched_epoch > NO_LEADER_EPOCH for one in wanted
    ):
        return None
    head = ordinary_head(version, topic, len(wanted))
    return OrdinaryFetch(
        version,
        topic,
        wanted,
        fetch.min_bytes,
        fetch.max_bytes,
        fetch.reads_committed,
        head,
    )


class FetchPlan:
    """A fetch of one partition without a session, but for correlation id and offset."""

    __slots__ = ("_after", "_before", "_head", "_offset_at", "_size", "asked", "is_tried", "taken")

    def __init__(self, frame: memoryview, offset_at: int, asked: OrdinaryFetch) -> None:
        """`offset_at`: position of the offset in `frame`, the request without its size."""
        self._head = bytes(frame[:_CORRELATION_AT])
        self._before = bytes(frame[_BEHIND_CORRELATION:offset_at])
        self._after = bytes(frame[offset_at + _INT64.size :])
        self._offset_at, self._size = offset_at, len(frame)
        self.asked = asked
        self.is_tried = False
        """whether it was tried for the request at hand, which cannot be answered so"""
        self.taken = 0
        """requests that were like it"""

    def offset_in(self, frame: memoryview) -> int | None:
        """Return the offset of a request that is like this one; None for another."""
        at = self._offset_at
        if (
            len(frame) != self._size
            or frame[:_CORRELATION_AT] != self._head
            or frame[_BEHIND_CORRELATION:at] != self._before
            or frame[at + _INT64.size :] != self._after
        ):
            return None
        self.taken += 1
        return int(_INT64.unpack_from(frame, at)[0])


class FetchPlans:
    """Plans by the number of their connection. Owned by the event loop."""

    __slots__ = ("_plans", "_skips")

    def __init__(self) -> None:
        self._plans: dict[int, FetchPlan] = {}
        self._skips: dict[int, tuple[int, int]] = {}
        """so many requests are not looked at for a plan, and so many behind the one that is looked at next"""

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, connection_id: int) -> FetchPlan | None:
        return self._plans.get(connection_id)

    def drop(self, connection_id: int) -> None:
        """Forget the plan of a connection, which has ended."""
        self._plans.pop(connection_id, None)
        self._skips.pop(connection_id, None)

    def learn(self, context: RequestContext, frame: memoryview) -> FetchPlan | None:
        """Make the plan of a request that is not like the last one, if it may have one and it is time."""
        connection_id = context.connection_id
        before = self._plans.get(connection_id)
        skipped, then = self._skips.get(connection_id, (0, 0))
        if before is not None and before.taken >= _OFTEN:
            skipped = then = 0
        if skipped:
            self._skips[connection_id] = skipped - 1, then
            return None
        self._skips[connection_id] = then, min(2 * then + 1, MOST_SKIPPED)
        plan = _made(frame)
        if plan is not None:
            self._plans[connection_id] = plan
        return plan


def _made(frame: memoryview) -> FetchPlan | None:
    """Return the plan of a request; None if it may have none."""
    if len(frame) > MOST_BYTES:
        return None
    try:
        header = parse_request_header(frame)
        offset_at = offset_position(header.api_version, frame, header.body)
        if offset_at is None:
            return None
        asked = ordinary(header.api_version, parse_fetch(header.api_version, frame, header.body))
    except (WireError, ManyElements):
        return None  # the dispatcher meets it again, and says so
    return None if asked is None else FetchPlan(frame, offset_at, asked._replace(client_id=header.client_id))
