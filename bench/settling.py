"""Members of one large group, each on a connection of its own, until everybody has its share; then they only
heartbeat.

The members behave as clients do: classic ones heartbeat every 3 s and join again when they are told so; those
of KIP-848 heartbeat as often as they are told, and at once when what they own has changed.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.measures import Measured
from bench.peers import Cpu, firn
from service.groups.protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from tests.support.clients import Admin
from tests.support.processes import free_port
from tests.support.wire import RawConnection, decode_response, encode_request, schema

PARTITIONS_EACH: Final = 2
CLASSIC, CONSUMER = "classic", "consumer"
TARGET_S: Final = {CLASSIC: 5.0, CONSUMER: 3.0}
STEADY_S: Final = 20.0
_JOIN, _HEARTBEAT, _SYNC, _FIND, _CONSUMER_HEARTBEAT = 11, 12, 14, 10, 68
_CLASSIC_HEARTBEAT_S: Final = 3.0
_MEMBER_ID_REQUIRED, _REBALANCE_IN_PROGRESS, _ILLEGAL_GENERATION = 79, 27, 22
_TOPIC, _GROUP = "settled", "group-of-many"
_SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
}


def settle(folder: Path, protocol: str, members: int) -> list[Measured]:
    """Time until all have their partitions, from the first join on; CPU of their heartbeats afterwards."""
    http = f"127.0.0.1:{free_port()}"
    with firn(folder, None, **_SETTINGS, **{"firn.http.listener": http}) as peer:
        Admin(peer.bootstrap).create(_TOPIC, members * PARTITIONS_EACH)
        with RawConnection(peer.bootstrap) as connection:
            connection.call(schema(_FIND, 4).FindCoordinatorRequest(key_type=0, coordinator_keys=(_GROUP,)))
        time.sleep(1)
        figures = asyncio.run(_Crowd(peer.bootstrap, peer.pid, protocol, members).measure())
        return [*figures, longest_turn(http, f"{members} members ({protocol})")]


def longest_turn(http: str, when: str) -> Measured:
    """Return the longest turn of the node's loop since its start; print the names of the longest ones."""
    with urllib.request.urlopen(f"http://{http}/turns", timeout=30) as answer:
        longest = json.load(answer)["longest"]
    for one in longest[:3]:
        print(f"{when}: {one['took_ms']:.0f} ms: {one['who']}", file=sys.stderr)
    return Measured(f"{when}: longest turn", "ms", 50, longest[0]["took_ms"] if longest else 0)


class _Crowd:
    """All members and what they have."""

    def __init__(self, bootstrap: str, pid: int, protocol: str, members: int) -> None:
        self.bootstrap = bootstrap
        self.requests = 0
        self._pid = pid
        self._protocol = protocol
        kind = _Classic if protocol == CLASSIC else _Consumer
        self.members: list[_Member] = [kind(self, number) for number in range(members)]
        self._settled = asyncio.Event()

    async def measure(self) -> list[Measured]:
        for member in self.members:
            await member.connect()
        began = time.monotonic()
        with Cpu(self._pid) as joining:
            tasks = [asyncio.create_task(member.run()) for member in self.members]
            settled = asyncio.create_task(self._settled.wait())
            done, _ = await asyncio.wait([*tasks, settled], timeout=120, return_when=asyncio.FIRST_COMPLETED)
            seconds = time.monotonic() - began
        for task in done:
            task.result()  # a member that ended has failed
        assert settled in done, "the group does not settle"
        await asyncio.sleep(_CLASSIC_HEARTBEAT_S)
        requests, before = self.requests, time.monotonic()
        with Cpu(self._pid) as steady:
            await asyncio.sleep(STEADY_S)
        per_second = (self.requests - requests) / (time.monotonic() - before)
        assert self._settled.is_set(), "the group did not stay settled"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for member in self.members:
            member.close()
        who = f"{len(self.members)} members ({self._protocol})"
        return [
            Measured(f"{who} settled", "s", TARGET_S[self._protocol], seconds),
            Measured(f"{who}: CPU of that", "s", None, joining.all),
            Measured(f"{who}: steady heartbeats, of a core", "%", 10, steady.all / steady.wall * 100),
            Measured(f"{who}: steady heartbeats", "1/s", None, per_second),
        ]

    def changed(self) -> None:
        """Check whether the group is settled, after a member's assignment or epoch changed."""
        first = self.members[0]
        whole = len(self.members) * PARTITIONS_EACH
        is_settled = (
            all(member.epoch == first.epoch and member.partitions for member in self.members)
            and sum(len(member.partitions) for member in self.members) == whole
            and len(frozenset().union(*(member.partitions for member in self.members))) == whole
        )
        if is_settled:
            self._settled.set()
        else:
            self._settled.clear()


class _Member:
    """One connection; a request is answered before the next is sent."""

    def __init__(self, crowd: _Crowd, number: int) -> None:
        self.crowd = crowd
        self.number = number
        self.epoch = -1
        self.partitions: frozenset[int] = frozenset()
        self._beat: tuple[Any, bytes, bytes] | None = None
        """the last heartbeat that changed nothing: request, frame, answer"""

    async def connect(self) -> None:
        host, _, port = self.crowd.bootstrap.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))

    def close(self) -> None:
        self._writer.close()

    async def run(self) -> None:
        raise NotImplementedError

    async def ask(self, request: Any) -> Any:
        return decode_response(request, await self._exchange(_frame(request)))

    async def heartbeat(self, request: Any, is_quiet: Callable[[Any], bool]) -> Any:
        """Do what `ask` does; return None if neither request nor response changed.

        Such a heartbeat is not encoded or decoded again, so that the members need little CPU."""
        known = self._beat if self._beat is not None and self._beat[0] == request else None
        frame = _frame(request) if known is None else known[1]
        answer = await self._exchange(frame)
        if known is not None and answer == known[2]:
            return None
        response = decode_response(request, answer)
        self._beat = (request, frame, answer) if is_quiet(response) else None
        return response

    async def _exchange(self, frame: bytes) -> bytes:
        self.crowd.requests += 1
        self._writer.write(frame)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    def has(self, epoch: int, partitions: frozenset[int]) -> None:
        if (epoch, partitions) != (self.epoch, self.partitions):
            self.epoch, self.partitions = epoch, partitions
            self.crowd.changed()


def _frame(request: Any) -> bytes:
    body = encode_request(request, client_id="member")
    return struct.pack(">i", len(body)) + body


class _Classic(_Member):
    """JoinGroup, SyncGroup, Heartbeat; the leader deals out ranges."""

    _member_id = ""

    async def run(self) -> None:
        while True:
            joined = await self._join()
            dealt = self._dealt(joined) if joined.leader == self._member_id else ()
            synced = await self.ask(
                schema(_SYNC, 5).SyncGroupRequest(
                    group_id=_GROUP, generation_id=joined.generation_id, member_id=self._member_id,
                    protocol_type="consumer", protocol_name="range", assignments=dealt,
                )
            )  # fmt: skip
            if synced.error_code in (_REBALANCE_IN_PROGRESS, _ILLEGAL_GENERATION):
                continue
            assert synced.error_code == 0, synced
            given = decode_assignment(synced.assignment).partitions if synced.assignment else ()
            self.has(joined.generation_id, frozenset(n for _, numbers in given for n in numbers))
            request = schema(_HEARTBEAT, 4).HeartbeatRequest(
                group_id=_GROUP, generation_id=joined.generation_id, member_id=self._member_id
            )
            while True:
                await asyncio.sleep(_CLASSIC_HEARTBEAT_S)
                answer = await self.heartbeat(request, lambda response: response.error_code == 0)
                if answer is not None and answer.error_code:
                    assert answer.error_code in (_REBALANCE_IN_PROGRESS, _ILLEGAL_GENERATION), answer
                    break

    async def _join(self) -> Any:
        module = schema(_JOIN, 9)
        metadata = encode_subscription(Subscription(1, (_TOPIC,)))
        while True:
            joined = await self.ask(
                module.JoinGroupRequest(
                    group_id=_GROUP, session_timeout=timedelta(seconds=45),
                    rebalance_timeout=timedelta(seconds=60), member_id=self._member_id,
                    protocol_type="consumer",
                    protocols=(module.JoinGroupRequestProtocol(name="range", metadata=metadata),),
                )
            )  # fmt: skip
            if joined.error_code == _MEMBER_ID_REQUIRED:
                self._member_id = joined.member_id
                continue
            assert joined.error_code == 0, joined
            return joined

    def _dealt(self, joined: Any) -> tuple[Any, ...]:
        whole, share = len(self.crowd.members) * PARTITIONS_EACH, len(joined.members)
        module = schema(_SYNC, 5)
        dealt = []
        for place, member in enumerate(joined.members):
            numbers = tuple(range(whole * place // share, whole * (place + 1) // share))
            assignment = encode_assignment(Assignment(1, ((_TOPIC, numbers),)))
            dealt.append(module.SyncGroupRequestAssignment(member_id=member.member_id, assignment=assignment))
        return tuple(dealt)


class _Consumer(_Member):
    """ConsumerGroupHeartbeat alone."""

    async def run(self) -> None:
        module = schema(_CONSUMER_HEARTBEAT, 1)
        member_id = str(uuid.UUID(int=self.number + (1 << 100)))
        joining = module.ConsumerGroupHeartbeatRequest(
            group_id=_GROUP, member_id=member_id, member_epoch=0, rebalance_timeout=timedelta(seconds=60),
            subscribed_topic_names=(_TOPIC,), topic_partitions=(),
        )  # fmt: skip
        answer = await self.ask(joining)
        epoch, wait_s = -1, 0.5
        while True:
            told = None
            if answer is not None:
                assert answer.error_code == 0, answer
                epoch, wait_s = answer.member_epoch, answer.heartbeat_interval.total_seconds()
                told = answer.assignment
            if told is not None:
                own = frozenset(n for one in told.topic_partitions for n in one.partitions)
                owned = tuple(
                    module.TopicPartitions(topic_id=one.topic_id, partitions=one.partitions)
                    for one in told.topic_partitions
                )
                self.has(epoch, own)
            else:
                self.has(epoch, self.partitions)
                owned = None
                await asyncio.sleep(wait_s)
            request = module.ConsumerGroupHeartbeatRequest(
                group_id=_GROUP, member_id=member_id, member_epoch=epoch, topic_partitions=owned
            )
            answer = await self.heartbeat(request, partial(_is_quiet, epoch))


def _is_quiet(epoch: int, response: Any) -> bool:
    return bool(response.error_code == 0 and response.assignment is None and response.member_epoch == epoch)
