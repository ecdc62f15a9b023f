"""Mutations in a cluster: the controller counts them for who asked the broker, and tells the broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from service.network.request import RequestContext, Throttled
from service.security.principal import Principal
from service.security.session import Session
from service.wire.api import ApiKey, decode_request, encode_request, parse_request_header, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.test_client_quotas import millis
from tests.support.controller_calls import fleet_and_broker, run
from tests.support.controllers import Broker, new_topics
from tests.support.processes import wait_until
from tests.support.waiting import until

ALTER = ApiKey.ALTER_CLIENT_QUOTAS


def alteration(user: str | None, **values: float | None) -> Any:
    module = request_module(ALTER)
    entity = module.EntityData(entity_type="user", entity_name=user)
    ops = tuple(
        module.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()
    )
    return module.AlterClientQuotasRequest(
        entries=(module.EntryData(entity=(entity,), ops=ops),), validate_only=False
    )


async def forwarded(broker: Broker, user: str, message: Any, version: int) -> Any:
    """The response to a user's CreateTopics, as the broker's dispatcher gets it."""
    frame = encode_request(ApiKey.CREATE_TOPICS, version, 7, "client", message)[4:]
    header = parse_request_header(frame)
    session = Session(Principal("User", user), "192.0.2.9", "L", "SASL_SSL")
    context = RequestContext(1, "192.0.2.9", 5, "L", session)
    assert broker.forwarder is not None
    return await broker.forwarder.forward(context, header, frame, decode_request(header, frame))


def test_the_controller_counts_mutations_for_who_asked_the_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fleet_and_broker(tmp_path) as (fleet, broker):
            altered = await broker.forward(ALTER, 1, alteration("alice", controller_mutation_rate=1.0))
            assert altered.entries[0].error_code == ErrorCode.none
            leader = await fleet.led()
            await until(lambda: leader.side.quotas.active)
            first = await forwarded(broker, "alice", new_topics("a", partitions=15), 7)
            assert not isinstance(first, Throttled), "it makes the debt"
            second = await forwarded(broker, "alice", new_topics("b", partitions=1), 7)
            assert isinstance(second, Throttled)
            assert 3 < second.mute_s <= 4
            assert "b" not in broker.publisher.image.topics_by_name
            older = await forwarded(broker, "alice", new_topics("c", partitions=1), 5)
            assert isinstance(older, Throttled)
            assert 4 < older.mute_s <= 5
            assert "c" in broker.publisher.image.topics_by_name
            other = await forwarded(broker, "bob", new_topics("d", partitions=15), 7)
            assert not isinstance(other, Throttled)

    run(scenario())


def test_a_quota_holds_at_once_and_after_a_restart(start: Callable[..., NodeThread]) -> None:
    node = start()
    with node.client() as client:
        altered = client.request(ALTER, alteration("ANONYMOUS", request_percentage=0.0001))
        assert altered.entries[0].error_code == ErrorCode.none
        talk = Talk(client)
        assert talk.create("t").error_code == 0
        assert millis(list_groups(talk)) == 1_000
    node.stop()
    node = start()
    with node.client() as client:
        talk = Talk(client)
        list_groups(talk)
        assert millis(list_groups(talk)) == 1_000
        client.request(ALTER, alteration("ANONYMOUS", request_percentage=None))
        broker: Any = node.node.parts.broker
        wait_until("it to be gone", lambda: not broker.quotas.active)
        assert millis(list_groups(talk)) == 0


def list_groups(talk: Talk) -> Any:
    return talk(ApiKey.LIST_GROUPS, "ListGroupsRequest", states_filter=(), types_filter=())


def test_an_address_has_the_rate_of_the_metadata(start: Callable[..., NodeThread]) -> None:
    node = start()
    module = request_module(ALTER)
    entity = module.EntityData(entity_type="ip", entity_name=None)
    ops = (module.OpData(key="connection_creation_rate", value=7.0, remove=False),)
    message = module.AlterClientQuotasRequest(
        entries=(module.EntryData(entity=(entity,), ops=ops),), validate_only=False
    )
    with node.client() as client:
        assert client.request(ALTER, message).entries[0].error_code == ErrorCode.none
        arrivals: Any = node.node.parts.listeners.arrivals
        wait_until("it to be known", lambda: dict(arrivals._limits[("", "", None)]) == {
            "connection_creation_rate": 7.0
        })  # fmt: skip
