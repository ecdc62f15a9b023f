"""A broker refuses some requests for delegation tokens itself, and forwards the others."""

from __future__ import annotations

import asyncio
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.network.request import RequestContext, Response
from service.node.quorum_control_plane import MEMBER_APIS
from service.partition.metrics import ServingMetrics
from service.security.principal import ANONYMOUS, Principal
from service.security.session import NODE_ITSELF, Session
from service.serving.dispatch import Dispatcher
from service.serving.token_requests import may_ask_for_tokens
from service.wire.api import APIS, ApiKey, decode_response, encode_request, request_module

ALICE = Principal("User", "alice")
FORWARDED = b"what the controller says"


def session(principal: Principal = ALICE, protocol: str = "SASL_SSL") -> Session:
    return Session(principal, "192.0.2.9", "CLIENTS", protocol)


@pytest.mark.parametrize(
    ("principal", "protocol", "may"),
    [
        (ALICE, "SASL_PLAINTEXT", True),
        (ALICE, "SASL_SSL", True),
        (Principal("User", "CN=alice"), "SSL", True),
        (ANONYMOUS, "SSL", False),
        (ANONYMOUS, "PLAINTEXT", False),
        (ALICE, "PLAINTEXT", False),
        (ALICE._replace(is_token=True), "SASL_SSL", False),
        (ALICE, "", True),
        (ANONYMOUS, "", True),
        (ALICE._replace(is_token=True), "", False),
    ],
)
def test_clients_with_a_login_of_their_own_may_ask(principal: Principal, protocol: str, may: bool) -> None:
    assert may_ask_for_tokens(session(principal, protocol)) == may
    assert may_ask_for_tokens(NODE_ITSELF)


class Broker:
    """A broker in a cluster, as far as its dispatcher sees; it notes what it forwards."""

    def __init__(self, *, is_closed: bool = False) -> None:
        self.metrics = ServingMetrics()
        self.quotas = SimpleNamespace(active=False)
        self.forwarded: list[int] = []
        self.asked: list[tuple[int, int, str]] = []
        self.authorizer = self if is_closed else None

    def allows(self, who: Session, operation: int, kind: int, name: str, **_: Any) -> bool:
        """Only admin may: the authorizer's answer."""
        self.asked.append((operation, kind, name))
        return who.principal.name == "admin"

    async def load(self, module: str) -> ModuleType:
        return import_module(module)

    async def forward(self, context: RequestContext, header: Any, frame: Any, request: Any) -> Response:
        self.forwarded.append(header.api_key)
        return Response([FORWARDED])


def ask(broker: Broker, who: Session, key: ApiKey, **fields: Any) -> Any:
    """The broker's own answer, None if it forwards the request."""
    module = request_module(key)
    name = next(one for one in dir(module) if one.endswith("DelegationTokenRequest"))
    message = getattr(module, name)(**fields)

    version = APIS[key].max_version

    async def scenario() -> Any:
        frame = memoryview(encode_request(key, version, 7, "c", message))[4:]
        context = RequestContext(1, "192.0.2.9", 5, "CLIENTS", who)
        answer: Any = Dispatcher(broker, MEMBER_APIS)(context, frame)  # type: ignore[arg-type]
        return b"".join((await answer).parts)

    data = asyncio.run(scenario())
    if data == FORWARDED:
        return None
    return decode_response(key, version, memoryview(data)[4:])[1]


def create(broker: Broker, who: Session, owner: str = "", *renewers: str) -> str:
    kind, _, name = owner.partition(":")
    module = request_module(ApiKey.CREATE_DELEGATION_TOKEN)
    named = (one.partition(":") for one in renewers)
    answer = ask(
        broker, who, ApiKey.CREATE_DELEGATION_TOKEN,
        owner_principal_type=kind, owner_principal_name=name, max_lifetime=-1,
        renewers=tuple(module.CreatableRenewers(principal_type=k, principal_name=n) for k, _, n in named),
    )  # fmt: skip
    return "forwarded" if answer is None else str(answer.error_code.name)


def test_a_broker_refuses_who_may_not_ask_and_forwards_the_rest() -> None:
    for who, told in (
        (session(), None),
        (session(ALICE._replace(is_token=True)), ErrorCode.delegation_token_request_not_allowed),
        (session(ANONYMOUS, "SSL"), ErrorCode.delegation_token_request_not_allowed),
    ):
        broker = Broker()
        answers = [
            ask(broker, who, ApiKey.RENEW_DELEGATION_TOKEN, hmac=b"mac", renew_period=-1),
            ask(broker, who, ApiKey.EXPIRE_DELEGATION_TOKEN, hmac=b"mac", expiry_time_period=-1),
        ]
        assert [one and one.error_code for one in answers] == [told, told]
        assert create(broker, who) == ("forwarded" if told is None else told.name)
        assert broker.forwarded == ([39, 40, 38] if told is None else [])


def test_a_broker_asks_for_rights_before_it_looks_at_renewers() -> None:
    closed = Broker(is_closed=True)
    assert create(closed, session()) == "forwarded"
    assert create(closed, session(), "User:alice") == "forwarded"
    assert create(closed, session(), "User:bob") == "delegation_token_authorization_failed"
    assert create(closed, session(), "User:bob", "Group:g") == "delegation_token_authorization_failed"
    assert create(closed, session(), "Group:alice") == "delegation_token_authorization_failed"
    assert create(closed, session(Principal("User", "admin")), "User:bob") == "forwarded"
    assert set(closed.asked) == {(13, 7, "User:bob"), (13, 7, "Group:alice")}, "CREATE_TOKENS on User"
    assert create(closed, session(), "", "User:bob", "Group:g") == "invalid_principal_type"
    assert create(Broker(), session(), "Group:bob") == "invalid_principal_type", "ours"
    assert create(Broker(), session(), "User:bob", "User:alice") == "forwarded"
