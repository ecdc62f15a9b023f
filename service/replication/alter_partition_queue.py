"""ISR changes that this broker's leaders propose to the controller, one AlterPartition request at a time. [P]

A proposal that comes up while a request is in flight goes with the next one; a partition has at most one, the
newest. Each result goes to the leader's machine. A proposal whose outcome is not known, or that may be
decided yet, is sent again until its machine has a result or proposes another. Apache Kafka 4.3
``AlterPartitionManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.types import TopicIdPartition
from service.replication.leader import AGAIN, NOTHING, Accepted, IsrProposal, LeaderState, Outcome, Unknown

MOST_AT_ONCE: Final = 1_000
"""proposals of one request"""


class ProposalSettings(NamedTuple):
    retry_ms: int = 50
    """after a request that the controller has not processed"""
    again_ms: int = 200
    """after a proposal whose outcome is not known"""


class ProposalRequest(NamedTuple):
    """An AlterPartition request. The sender adds its broker epoch, as of when it sends."""

    number: int
    proposals: Sequence[tuple[TopicIdPartition, IsrProposal]]


class ProposalResponse(NamedTuple):
    """Response of the controller, as a whole and for each partition; it may omit partitions."""

    error: ErrorCode
    outcomes: Mapping[TopicIdPartition, Accepted | ErrorCode]


class ProposalResult(NamedTuple):
    """Result of a response at one leader, as its machine returned it, without `AGAIN`: `PROPOSES` needs no
    action."""

    tip: TopicIdPartition
    what: int


class AlterPartitionQueue:
    """Proposals of one broker. Owned by the event loop."""

    def __init__(
        self, leader_of: Callable[[TopicIdPartition], LeaderState | None], settings: ProposalSettings
    ) -> None:
        self._leader_of = leader_of
        self._settings = settings
        self._waiting: dict[TopicIdPartition, None] = {}
        self._later: list[tuple[int, int, TopicIdPartition, int]] = []
        self._in_flight: ProposalRequest | None = None
        self._sent_ms = 0
        self._numbers = 0
        self._not_before_ms: int | None = None

    def propose(self, tip: TopicIdPartition) -> None:
        """Queue the new proposal of the leader of `tip`."""
        self._waiting[tip] = None

    def next_request(self, now_ms: int) -> ProposalRequest | None:
        """Return the request to send now, without proposals that their machines have withdrawn."""
        while self._later and self._later[0][0] <= now_ms:
            _, _, tip, number = heappop(self._later)
            leader = self._leader_of(tip)
            if leader is not None and leader.proposal is not None and leader.proposal.number == number:
                self._waiting[tip] = None
        if self._in_flight is not None:
            return None
        if self._not_before_ms is not None:
            if now_ms < self._not_before_ms:
                return None
            self._not_before_ms = None
        proposals: list[tuple[TopicIdPartition, IsrProposal]] = []
        while self._waiting and len(proposals) < MOST_AT_ONCE:
            tip = next(iter(self._waiting))
            del self._waiting[tip]
            leader = self._leader_of(tip)
            if leader is not None and leader.proposal is not None:
                proposals.append((tip, leader.proposal))
        if not proposals:
            return None
        self._numbers += 1
        self._in_flight, self._sent_ms = ProposalRequest(self._numbers, proposals), now_ms
        return self._in_flight

    def next_deadline_ms(self) -> int | None:
        """Return the time at which `next_request` may have a request, if no event comes before."""
        if self._in_flight is not None:
            return None
        if self._waiting:
            return self._not_before_ms
        return self._later[0][0] if self._later else None

    def answered(self, number: int, answer: ProposalResponse, now_ms: int) -> list[ProposalResult]:
        """Apply the controller's response to the request of that number. STALE_BROKER_EPOCH: no proposal was
        processed. After any other error for the whole request the outcomes are unknown: the controller may
        have lost its leadership meanwhile."""
        if answer.error is ErrorCode.stale_broker_epoch:
            self._requeue(number, now_ms)
            return []
        if answer.error is ErrorCode.none:
            return self._finish(number, answer.outcomes, now_ms)
        return self._finish(number, {}, now_ms)

    def failed(self, number: int, now_ms: int, *, was_sent: bool) -> list[ProposalResult]:
        """Note that there is no response. Where it `was_sent`, the outcome is unknown to every proposal's
        machine; else no controller has it, and all are sent again. Returns what the machines did."""
        if was_sent:
            return self._finish(number, {}, now_ms)
        self._requeue(number, now_ms)
        return []

    def _requeue(self, number: int, now_ms: int) -> None:
        request = self._in_flight
        if request is not None and request.number == number:
            self._in_flight = None
            self._waiting = dict.fromkeys((*(tip for tip, _ in request.proposals), *self._waiting))
            self._not_before_ms = now_ms + self._settings.retry_ms

    def _finish(
        self, number: int, outcomes: Mapping[TopicIdPartition, Outcome], now_ms: int
    ) -> list[ProposalResult]:
        """Pass the outcomes to the machines; a proposal that is not in `outcomes` has an unknown outcome."""
        request = self._in_flight
        if request is None or request.number != number:
            return []
        self._in_flight = None
        happened: list[ProposalResult] = []
        for tip, proposal in request.proposals:
            leader = self._leader_of(tip)
            if leader is None:
                continue
            outcome = outcomes.get(tip, Unknown())
            what = leader.answered(proposal.number, outcome, self._sent_ms, now_ms)
            if what & AGAIN:
                self._numbers += 1
                due_ms = now_ms + self._settings.again_ms
                heappush(self._later, (due_ms, self._numbers, tip, proposal.number))
            if what & ~AGAIN != NOTHING:
                happened.append(ProposalResult(tip, what & ~AGAIN))
        return happened
