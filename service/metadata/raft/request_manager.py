"""Outgoing requests: at most one in flight to each endpoint, and a back-off after a failure. [P]

Apache Kafka ``RequestManager``. A response counts only while its call is the one in flight: late and
duplicate responses are dropped here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from service.metadata.endpoint import Endpoint
from service.metadata.raft.events import Peer, Send
from service.metadata.raft.requests import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    RaftRequest,
    VoteRequest,
)

_URGENT: Final = (VoteRequest, BeginQuorumEpochRequest, EndQuorumEpochRequest)


@dataclass(slots=True)
class _Line:
    call: int = 0
    """Id of the call in flight; 0: none."""
    request: RaftRequest | None = None
    until_ms: int = 0
    """The call times out then, or the back-off ends."""


class RequestManager:
    """Requests in flight by endpoint: a peer with a new address gets an entry of its own."""

    def __init__(self, request_timeout_ms: int, retry_backoff_ms: int) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._lines: dict[Endpoint, _Line] = {}
        self._last = 0

    def free_at_ms(self, endpoint: Endpoint, request: RaftRequest) -> int:
        """Return when `request` may be sent. Election requests do not wait for other requests."""
        line = self._lines.get(endpoint)
        if line is None:
            return 0
        if line.call and isinstance(request, _URGENT) and not _is_same(line.request, request):
            return 0
        return line.until_ms

    def send(self, peer: Peer, request: RaftRequest, now_ms: int) -> Send:
        """Register a call to `peer` and return the effect that sends it."""
        self._last += 1
        self._lines[peer.endpoint] = _Line(self._last, request, now_ms + self._request_timeout_ms)
        return Send(peer, self._last, request)

    def answered(self, peer: Peer, call: int) -> RaftRequest | None:
        """Complete the call and return its request, or None where the response is late or duplicate."""
        line = self._lines.get(peer.endpoint)
        if line is None or line.call != call:
            return None
        del self._lines[peer.endpoint]
        return line.request

    def pause(self, peer: Peer, now_ms: int) -> None:
        """Back off from `peer` for `retry_backoff_ms`."""
        self._lines[peer.endpoint] = _Line(until_ms=now_ms + self._retry_backoff_ms)


def _is_same(one: RaftRequest | None, other: RaftRequest) -> bool:
    """Return whether both requests are of one type and epoch (and both votes or both pre-votes)."""
    if isinstance(one, VoteRequest) and isinstance(other, VoteRequest):
        return one.epoch == other.epoch and one.pre_vote == other.pre_vote
    return type(one) is type(other) and getattr(one, "epoch", 0) == getattr(other, "epoch", 0)
