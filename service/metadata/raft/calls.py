"""Calls to peers: one under way for each, a pause after one that failed. [P]

Apache Kafka ``RequestManager``. An answer counts only while its call is the one under way: what comes later,
or twice, is dropped here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from service.metadata.endpoint import Endpoint
from service.metadata.raft.events import Peer, Send
from service.metadata.raft.requests import Asked, BeginAsked, EndAsked, VoteAsked

_URGENT: Final = (VoteAsked, BeginAsked, EndAsked)


@dataclass(slots=True)
class _Line:
    call: int = 0
    """0: none is under way"""
    asked: Asked | None = None
    until_ms: int = 0
    """the call is given up then, or the pause ends"""


class Calls:
    """By address: a peer that moves gets a line of its own."""

    def __init__(self, request_timeout_ms: int, retry_backoff_ms: int) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._lines: dict[Endpoint, _Line] = {}
        self._last = 0

    def free_at_ms(self, endpoint: Endpoint, asked: Asked) -> int:
        """When `asked` may be sent there. What elections need does not wait for anything else."""
        line = self._lines.get(endpoint)
        if line is None:
            return 0
        if line.call and isinstance(asked, _URGENT) and not _is_same(line.asked, asked):
            return 0
        return line.until_ms

    def send(self, peer: Peer, asked: Asked, now_ms: int) -> Send:
        self._last += 1
        self._lines[peer.endpoint] = _Line(self._last, asked, now_ms + self._request_timeout_ms)
        return Send(peer, self._last, asked)

    def answered(self, peer: Peer, call: int) -> Asked | None:
        """What was asked; None for an answer that counts no more."""
        line = self._lines.get(peer.endpoint)
        if line is None or line.call != call:
            return None
        del self._lines[peer.endpoint]
        return line.asked

    def pause(self, peer: Peer, now_ms: int) -> None:
        """Leave `peer` alone for a moment."""
        self._lines[peer.endpoint] = _Line(until_ms=now_ms + self._retry_backoff_ms)


def _is_same(one: Asked | None, other: Asked) -> bool:
    """Whether the two are the same question: of one kind, epoch and purpose."""
    if isinstance(one, VoteAsked) and isinstance(other, VoteAsked):
        return one.epoch == other.epoch and one.pre_vote == other.pre_vote
    return type(one) is type(other) and getattr(one, "epoch", 0) == getattr(other, "epoch", 0)
