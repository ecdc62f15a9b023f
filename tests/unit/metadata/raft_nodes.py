"""A Raft machine with its log in memory, for tests."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

from service.metadata.endpoint import Endpoint
from service.metadata.raft.events import (
    AppendControl,
    Appended,
    Effect,
    Event,
    InboundRequest,
    InboundResponse,
    Initialize,
    OutboundResponse,
    Send,
    Tick,
    TruncateTo,
)
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.machine import RaftMachine
from service.metadata.raft.requests import NONE, VoteRequest, VoteResponse
from service.metadata.raft.roles import RaftTiming, ReplicaIdentity
from service.metadata.raft.state import QuorumState
from service.metadata.raft.voters import VoterNode, VoterSet
from simulator.machines.model import Batch, ModelLog


def endpoint(node_id: int) -> Endpoint:
    return Endpoint("CONTROLLER", f"n{node_id}", 9093)


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, UUID(int=node_id))


class Node:
    """A machine with a log in memory; effects on the log are done, all are kept."""

    def __init__(
        self, node_id: int = 1, voters: int = 3, state: QuorumState | None = None, end: int = 0
    ) -> None:
        static = VoterSet(VoterNode(ReplicaKey(i + 1), (endpoint(i + 1),)) for i in range(voters))
        self.log = ModelLog(static)
        for offset in range(end):
            self.log.append(Batch(offset, 1, (offset,)))
        self.machine = RaftMachine(
            ReplicaIdentity(key(node_id), "cluster", (endpoint(node_id),)), self.log, RaftTiming(), Random(1)
        )
        self.now_ms = 0
        self.requests = 0
        self.started = self.tell(Initialize(state))

    def tell(self, event: Event) -> list[Effect]:
        effects = list(self.machine.handle(event, self.now_ms))
        for effect in list(effects):
            match effect:
                case AppendControl(epoch, records):
                    self.log.append(Batch(self.log.end_offset, epoch, records))
                    effects += self.tell(Appended(self.log.end_offset))
                case TruncateTo(end):
                    self.log.truncate(end)
        return effects

    def ask(self, asked: Any) -> Any:
        self.requests += 1
        found = [
            e.answer
            for e in self.tell(InboundRequest(self.requests, asked))
            if isinstance(e, OutboundResponse)
        ]
        return found[0] if found else None

    def pass_ms(self, wait_ms: int) -> list[Effect]:
        """Ticks as they are asked for."""
        effects, end = [], self.now_ms + wait_ms
        while (deadline := self.machine.next_deadline_ms()) is not None and deadline <= end:
            self.now_ms = max(deadline, self.now_ms + 1)
            effects += self.tell(Tick())
        self.now_ms = end
        return effects

    def sends(self, effects: list[Effect], kind: type[Any]) -> list[Send]:
        return [e for e in effects if isinstance(e, Send) and isinstance(e.request, kind)]

    def answer(self, send: Send, reply: Any) -> list[Effect]:
        return self.tell(InboundResponse(send.peer, send.call, reply))

    def lead(self) -> list[Effect]:
        """Win an election with the vote of node 2."""
        effects = self.pass_ms(2500)
        pre_votes = self.sends(effects, VoteRequest)
        send = [one for one in pre_votes if one.peer.node_id == 2][-1]
        effects = self.answer(send, VoteResponse(NONE, self.machine.epoch, granted=True))
        (send,) = [one for one in self.sends(effects, VoteRequest) if one.peer.node_id == 2]
        assert isinstance(send.request, VoteRequest)
        assert not send.request.pre_vote
        return self.answer(send, VoteResponse(NONE, self.machine.epoch, granted=True))
