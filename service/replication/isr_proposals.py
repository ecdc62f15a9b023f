"""What this broker's leaders propose to the controller: one AlterPartition request at a time, for all. [P]

Proposals that come up while a request is under way go with the next one; a partition has one at most, the
newest. What became of each is told to its leader's machine; what may have been done, or may be yet, is asked
again until a machine has it answered or proposes otherwise. Apache Kafka 4.3 ``AlterPartitionManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.types import TopicIdPartition
from service.replication.leader import AGAIN, NOTHING, Accepted, LeaderState, Outcome, Proposal, Unknown

MOST_AT_ONCE: Final = 1_000
"""proposals of one request"""


class ProposalSettings(NamedTuple):
    retry_ms: int = 50
    """After a request that nobody looked at."""
    again_ms: int = 200
    """After a proposal whose outcome is not known."""


class Request(NamedTuple):
    """An AlterPartition request. The broker epoch is the sender's to say, as of when it is sent."""

    number: int
    proposals: Sequence[tuple[TopicIdPartition, Proposal]]


class Answer(NamedTuple):
    """What the controller answered, as a whole and for each partition: it may leave some out."""

    error: ErrorCode
    outcomes: Mapping[TopicIdPartition, Accepted | ErrorCode]


class Happened(NamedTuple):
    """What an answer led to at one leader, as its machine's methods say it; `PROPOSES` is seen to."""

    tip: TopicIdPartition
    what: int


class IsrProposals:
    """The proposals of one broker. Owned by the event loop."""

    def __init__(
        self, leader_of: Callable[[TopicIdPartition], LeaderState | None], settings: ProposalSettings
    ) -> None:
        self._leader_of = leader_of
        self._settings = settings
        self._waiting: dict[TopicIdPartition, None] = {}
        self._later: list[tuple[int, int, TopicIdPartition, int]] = []
        self._in_flight: Request | None = None
        self._sent_ms = 0
        self._numbers = 0
        self._not_before_ms: int | None = None

    def propose(self, tip: TopicIdPartition) -> None:
        """The leader of `tip` has a new proposal."""
        self._waiting[tip] = None

    def next_request(self, now_ms: int) -> Request | None:
        """What is to be sent now. A proposal that its machine has withdrawn meanwhile is left out."""
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
        proposals: list[tuple[TopicIdPartition, Proposal]] = []
        while self._waiting and len(proposals) < MOST_AT_ONCE:
            tip = next(iter(self._waiting))
            del self._waiting[tip]
            leader = self._leader_of(tip)
            if leader is not None and leader.proposal is not None:
                proposals.append((tip, leader.proposal))
        if not proposals:
            return None
        self._numbers += 1
        self._in_flight, self._sent_ms = Request(self._numbers, proposals), now_ms
        return self._in_flight

    def next_deadline_ms(self) -> int | None:
        """When `next_request` may have something to send though nothing has happened until then."""
        if self._in_flight is not None:
            return None
        if self._waiting:
            return self._not_before_ms
        return self._later[0][0] if self._later else None

    def answered(self, number: int, answer: Answer, now_ms: int) -> list[Happened]:
        """The controller's answer to the request of that number. STALE_BROKER_EPOCH: nothing was looked at.
        After any other error for the whole of it, who knows: it may have lost its office meanwhile.
        """
        if answer.error is ErrorCode.stale_broker_epoch:
            self._not_looked_at(number, now_ms)
            return []
        if answer.error is ErrorCode.none:
            return self._over(number, answer.outcomes, now_ms)
        return self._over(number, {}, now_ms)

    def failed(self, number: int, now_ms: int, *, was_sent: bool) -> list[Happened]:
        """There is no answer. Not `was_sent`: the request cannot have reached anybody."""
        if was_sent:
            return self._over(number, {}, now_ms)
        self._not_looked_at(number, now_ms)
        return []

    def _not_looked_at(self, number: int, now_ms: int) -> None:
        request = self._in_flight
        if request is not None and request.number == number:
            self._in_flight = None
            self._waiting = dict.fromkeys((*(tip for tip, _ in request.proposals), *self._waiting))
            self._not_before_ms = now_ms + self._settings.retry_ms

    def _over(self, number: int, outcomes: Mapping[TopicIdPartition, Outcome], now_ms: int) -> list[Happened]:
        """Tell the machines. What is not in `outcomes` is not known."""
        request = self._in_flight
        if request is None or request.number != number:
            return []
        self._in_flight = None
        happened: list[Happened] = []
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
                happened.append(Happened(tip, what & ~AGAIN))
        return happened
