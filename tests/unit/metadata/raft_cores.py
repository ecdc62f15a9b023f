"""Helpers of the tests of Raft roles: a core with its log in memory, and the last answer of a core."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.metadata.endpoint import Endpoint
from service.metadata.raft.core import RaftCore
from service.metadata.raft.events import OutboundResponse, Send
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.roles import RaftTiming, ReplicaIdentity
from service.metadata.raft.voters import VoterNode, VoterSet
from simulator.machines.model import Batch, ModelLog

NOW_MS = 10_000
BAD, FENCED = ErrorCode.invalid_request, ErrorCode.fenced_leader_epoch


class Chance:
    """Draws `percent` of each range, and records the ranges."""

    def __init__(self) -> None:
        self.percent = 50
        self.asked: list[int] = []

    def randrange(self, stop: int) -> int:
        self.asked.append(stop)
        return stop * self.percent // 100

    def shuffle(self, items: list[Any]) -> None:
        items.reverse()


def place(node_id: int, name: str = "CONTROLLER") -> Endpoint:
    return Endpoint(name, f"n{node_id}", 9093)


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, UUID(int=node_id))


def voter(node_id: int, *places: Endpoint) -> VoterNode:
    return VoterNode(key(node_id), places or (place(node_id),))


def core(*voters: VoterNode, version: int = 0, end: int = 0, **identity: Any) -> RaftCore:
    """Node 1. With `version` 1 its voters come from a record at offset 0, below all other records."""
    log = ModelLog(VoterSet(voters or (voter(1), voter(2), voter(3))))
    if version:
        log.voters.add_version(0, version)
        log.voters.add(0, log.voters.latest)
    if end:
        log.append(Batch(0, 1, tuple(range(end))))
    known: dict[str, Any] = {"key": key(1), "cluster_id": "cluster", "endpoints": (place(1),), **identity}
    made = RaftCore(ReplicaIdentity(**known), log, RaftTiming(), Chance())
    made.now_ms = NOW_MS
    return made


def last_answer(made: RaftCore) -> Any:
    return [one.answer for one in made.effects if isinstance(one, OutboundResponse)][-1]


def sent_by(made: RaftCore) -> list[Send]:
    return [one for one in made.effects if isinstance(one, Send)]
