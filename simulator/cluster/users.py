"""Clients that log in as somebody, and what their responses say of the rights that were used."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.records.batch import complete_headers
from service.records.decode import records_of
from service.security.plain import PLAIN
from service.wire.api import ApiKey, request_module
from simulator.client import Client, NoAnswer, Streams
from simulator.cluster import sealed
from simulator.cluster.access import (
    ALTER_CONFIGS,
    CLUSTER,
    CREATE,
    DESCRIBE,
    GROUP,
    READ,
    THE_CLUSTER,
    TOPIC,
    WRITE,
    Right,
    Use,
)
from simulator.cluster.secured import SCRAM, SecuredWorld
from simulator.cluster.world import CONTROLLER_PORT
from simulator.machine import Machine
from simulator.model import Violation

_RENEWED_AFTER: Final = 0.8
"""Share of a session after which it is renewed."""
_LOGIN_S: Final = 15.0
_NOTHING: Final = timedelta(0)
_DENIED: Final = frozenset(
    (
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.cluster_authorization_failed,
    )
)


class UserClient(Client):
    """Connection of a user to one node. Every response is judged."""

    def __init__(
        self,
        world: SecuredWorld,
        random: Random,
        machine: Machine,
        who: tuple[str, str, str],
        *,
        renews: bool = True,
        of_controller: bool = False,
    ) -> None:
        """`who`: user, mechanism and password. `renews`: whether it logs in again before its session ends.
        `of_controller`: whether it connects to the listener of the node's controller."""
        super().__init__((machine.name, CONTROLLER_PORT) if of_controller else machine.address)
        self.user, self._mechanism, self._password = who
        self._world = world
        self._random = random
        self._machine = machine
        self._renews = renews
        self._made: sealed.LoggedIn | None = None
        self._renewal_s = math.inf
        self._ends_s = math.inf

    async def ask(
        self, key: ApiKey, message: Any, answer_s: float = 20.0, *, version: int | None = None
    ) -> Any:
        now_s = self._world.loop.now_s
        try:
            async with asyncio.timeout(_LOGIN_S):
                if self._streams is None:
                    self._streams = await self.open()
                elif self._renews and now_s >= self._renewal_s:
                    await self._renew()
        except (OSError, EOFError, TimeoutError) as e:
            self.close()
            raise NoAnswer(f"login: {type(e).__name__}") from e
        except sealed.LoginRefused:
            self.close()
            raise
        assert self._made is not None
        sent_s, run, ends_s = self._world.loop.now_s, self._made.stream.run, self._ends_s
        answer = await super().ask(key, message, answer_s, version=version)
        if sent_s > ends_s:
            raise Violation(f"S4: {run} answers {self.user} {sent_s - ends_s:.3f} s after the session's end")
        if getattr(answer, "throttle_time", _NOTHING) > _NOTHING:
            self._world.access.throttled(run, self.user, sent_s)
        for use in _USES.get(key, _no_use)(self._world, message, answer):
            self._world.access.judge(run, self.user, use, sent_s)
        return answer

    async def open(self) -> Streams:
        """Connect and log in. Raises as `sealed.log_in`."""
        began_s, run = self._world.loop.now_s, self._machine.run
        credentials = sealed.credentials(self._random, self.user, self._mechanism, self._password)
        try:
            self._made = made = await sealed.log_in(self.address, credentials)
        except sealed.LoginRefused as e:
            # Who has refused was there before and is still, else nobody would have heard of it.
            if run is not None and run is self._machine.run:
                self._tell_login(run.name, began_s, accepted=False)
            raise e
        self._logged_in(began_s)
        return made.stream.reader, made.stream

    async def _renew(self) -> None:
        made, began_s = self._made, self._world.loop.now_s
        assert made is not None
        credentials = sealed.credentials(self._random, self.user, self._mechanism, self._password)
        try:
            await sealed.log_in_again(made, credentials)
        except sealed.LoginRefused:
            self._tell_login(made.stream.run, began_s, accepted=False)
            raise
        self._logged_in(began_s)

    def _logged_in(self, began_s: float) -> None:
        made = self._made
        assert made is not None
        self._tell_login(made.stream.run, began_s, accepted=True)
        lifetime_s = made.session.lifetime_ms / 1000 or math.inf
        now_s = self._world.loop.now_s
        self._renewal_s = now_s + _RENEWED_AFTER * lifetime_s
        self._ends_s = now_s + lifetime_s / self._machine.clock.rate

    def _tell_login(self, run: str, began_s: float, *, accepted: bool) -> None:
        if self._mechanism == PLAIN:
            if not accepted:
                raise Violation(f"S3: {run} refuses {self.user}, whose password never changes")
            return
        number = SCRAM[self._mechanism]
        self._world.access.logged_in(run, self.user, number, self._password, began_s, accepted=accepted)


async def examine_access(world: SecuredWorld, random: Random) -> None:
    """Check that all nodes say the same of every user, to clients, too (S7). Raises `Violation`.

    All is quiet."""
    world.all_say_the_same()
    names = [topic.name for topic in world.topics if not topic.deleted][:2]
    m = request_module(ApiKey.METADATA)
    request = m.MetadataRequest(
        topics=tuple(m.MetadataRequestTopic(topic_id=None, name=name) for name in names),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    for machine in world.machines:
        for account in world.accounts:
            for password in account.passwords[-2:]:
                who = account.user, account.mechanism, password
                client = UserClient(world, random, machine, who)
                try:
                    await client.ask(ApiKey.METADATA, request)
                except sealed.LoginRefused:
                    continue  # which was judged
                except NoAnswer as e:
                    raise Violation(f"S7: {machine.name} does not answer {account.user}: {e}") from e
                finally:
                    client.close()


# What responses say


def _no_use(world: SecuredWorld, request: Any, answer: Any) -> Iterator[Use]:
    yield from ()


def _of_topics(
    world: SecuredWorld, operation: int, topic_id: UUID | None, name: str | None, errors: list[ErrorCode]
) -> Iterator[Use]:
    """Yield what the errors of a topic's partitions say of one right on it."""
    name = name or world.topic_name(topic_id)
    if name is None:
        return
    for error in errors:
        if error is ErrorCode.none or error is ErrorCode.topic_authorization_failed:
            yield Use((Right(operation, TOPIC, name),), error is ErrorCode.none)


def _of_produce(world: SecuredWorld, request: Any, answer: Any) -> Iterator[Use]:
    for topic in answer.responses:
        errors = [one.error_code for one in topic.partition_responses]
        yield from _of_topics(world, WRITE, topic.topic_id, None, errors)


def _of_fetch(world: SecuredWorld, request: Any, answer: Any) -> Iterator[Use]:
    for topic in answer.responses:
        name = world.topic_name(topic.topic_id)
        if name is None:
            continue
        for one in topic.partitions:
            if one.error_code is ErrorCode.topic_authorization_failed:
                yield Use((Right(READ, TOPIC, name),), granted=False)
            elif one.error_code is ErrorCode.none:
                newest_s = world.newest_of(_values(one.records or b""))
                yield Use((Right(READ, TOPIC, name),), granted=True, not_before_s=newest_s)


def _values(data: bytes) -> Iterator[bytes]:
    for header in complete_headers(data):
        for record in records_of(data, header):
            yield record.value or b""


def _of_list_offsets(world: SecuredWorld, request: Any, answer: Any) -> Iterator[Use]:
    for topic in answer.topics:
        errors = [one.error_code for one in topic.partitions]
        yield from _of_topics(world, DESCRIBE, None, topic.name, errors)


def _of_metadata(world: SecuredWorld, request: Any, answer: Any) -> Iterator[Use]:
    by_name = {one.name for one in request.topics or () if one.name is not None}
    for topic in answer.topics:
        if topic.name in by_name or topic.error_code is ErrorCode.none:
            yield from _of_topics(world, DESCRIBE, None, topic.name, [topic.error_code])


def _of_create_topics(world: SecuredWorld, request: Any, answer: Any) -> Iterator[Use]:
    for topic in answer.topics:
        rights = Right(CREATE, CLUSTER, THE_CLUSTER), Right(CREATE, TOPIC, topic.name)
        error = topic.error_code
        if error is ErrorCode.none or error in _DENIED:
            yield Use(rights, error is ErrorCode.none, by_controller=True)


def _of_alter_configs(world: SecuredWorld, request: Any, answer: Any) -> Iterator[Use]:
    for one in answer.responses:
        if one.error_code is ErrorCode.none or one.error_code in _DENIED:
            rights = (Right(ALTER_CONFIGS, TOPIC, one.resource_name),)
            yield Use(rights, one.error_code is ErrorCode.none, by_controller=True)


def _of_quorum(world: SecuredWorld, request: Any, answer: Any) -> Iterator[Use]:
    if answer.error_code in (ErrorCode.none, ErrorCode.cluster_authorization_failed):
        yield Use((Right(DESCRIBE, CLUSTER, THE_CLUSTER),), answer.error_code is ErrorCode.none)


def _of_commit(world: SecuredWorld, request: Any, answer: Any) -> Iterator[Use]:
    group = Right(READ, GROUP, request.group_id)
    for topic in answer.topics:
        errors = [one.error_code for one in topic.partitions]
        for error in errors:
            if error is ErrorCode.none or error is ErrorCode.group_authorization_failed:
                yield Use((group,), error is ErrorCode.none)
        yield from _of_topics(world, READ, topic.topic_id, topic.name or None, errors)


def _of_offset_fetch(world: SecuredWorld, request: Any, answer: Any) -> Iterator[Use]:
    for group in answer.groups:
        right = Right(DESCRIBE, GROUP, group.group_id)
        if group.error_code is ErrorCode.none or group.error_code is ErrorCode.group_authorization_failed:
            yield Use((right,), group.error_code is ErrorCode.none)
        for topic in group.topics:
            errors = [one.error_code for one in topic.partitions]
            yield from _of_topics(world, DESCRIBE, topic.topic_id, topic.name or None, errors)


_USES: Final[dict[ApiKey, Callable[[SecuredWorld, Any, Any], Iterator[Use]]]] = {
    ApiKey.PRODUCE: _of_produce,
    ApiKey.FETCH: _of_fetch,
    ApiKey.LIST_OFFSETS: _of_list_offsets,
    ApiKey.METADATA: _of_metadata,
    ApiKey.CREATE_TOPICS: _of_create_topics,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _of_alter_configs,
    ApiKey.DESCRIBE_QUORUM: _of_quorum,
    ApiKey.OFFSET_COMMIT: _of_commit,
    ApiKey.OFFSET_FETCH: _of_offset_fetch,
}
