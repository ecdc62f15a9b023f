"""Requests for delegation tokens, and what is said of their answers in plain values without times of day.

`capture_tokens.py` asks Apache Kafka, and `tests/node/test_tokens_as_kafka.py` asks a node of ours.
"""

from __future__ import annotations

import secrets
import time
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from service.client.blocking_client import BlockingClient
from service.client.security import Credentials, Security
from service.wire.api import ApiKey, request_module

PASSWORDS: Final = {"alice": "secret", "bob": "pencil", "eve": "evil"}
KEY: Final = "key of all nodes"
MINUTE: Final = 60_000
ALL: Final = None
STEPS: Final[tuple[tuple[Any, ...], ...]] = (
    # who, what, its arguments; tokens are numbered in the order in which they were made
    ("alice", "describe", ALL),
    ("alice", "create", "", [], -1),
    ("alice", "create", "", ["bob"], 2 * MINUTE),
    ("alice", "create", "alice", ["bob", "eve"], 0),
    ("alice", "create 1", "", ["bob"], 20 * 24 * 60 * MINUTE),
    ("alice", "create 2", "", [], -7),
    ("open", "create", "", [], -1),
    ("open", "create", "alice", [], -1),
    ("open", "renew", 0, -1),
    ("open", "expire", 0, -1),
    ("open", "describe", ALL),
    ("token 0", "create", "", [], -1),
    ("token 0", "create", "bob", [], -1),
    ("token 0", "renew", 0, -1),
    ("token 0", "expire", 0, -1),
    ("token 0", "describe", ALL),
    ("token 1 by SCRAM-SHA-512", "describe", ["alice"]),
    ("alice", "create", "", ["Group:g"], -1),
    ("alice", "create", "", ["bob", ":x"], -1),
    ("alice", "create", "bob", [], -1),
    ("alice", "create 1", "bob", [], -1),
    ("open", "allow", "alice", 13, 7, "User:bob"),  # CREATE_TOKENS on a user
    ("alice", "create", "bob", [], -1),
    ("alice", "create", "bob", ["Group:g"], -1),
    ("alice", "create", "eve", [], -1),
    ("alice", "describe", ALL),
    ("alice", "describe", ["bob"]),
    ("alice", "describe", ["bob", "nobody"]),
    ("alice", "describe", ["Group:alice"]),
    ("alice", "describe", []),
    ("alice", "describe 1", ALL),
    ("alice", "describe 2", ALL),
    ("bob", "describe", ALL),
    ("bob", "describe", ["alice"]),
    ("eve", "describe", ALL),
    ("open", "allow", "eve", 8, 6, 5),  # DESCRIBE on a token
    ("eve", "describe", ALL),
    ("open", "allow", "eve", 14, 7, "User:bob"),  # DESCRIBE_TOKENS on a user
    ("eve", "describe", ALL),
    ("eve", "describe", ["bob"]),
    ("eve", "describe", ["alice"]),
    ("alice", "renew", 0, -1),
    ("alice", "renew", 0, 3 * MINUTE),
    ("alice", "renew 1", 0, 5 * MINUTE),
    ("bob", "renew", 1, 60 * MINUTE),
    ("bob", "renew", 0, -1),
    ("eve", "renew", 6, -1),
    ("alice", "renew", 6, -1),
    ("alice", "expire", 6, -1),
    ("bob", "renew", 6, -1),
    ("alice", "renew", "unknown", -1),
    ("alice", "renew", "empty", -1),
    ("alice", "expire", 0, 4 * MINUTE),
    ("alice", "expire", 0, 1 << 62),
    ("alice", "expire", 0, (1 << 63) - 1),
    ("alice", "expire", 5, -1),
    ("eve", "expire", 0, -1),
    ("alice", "expire", "unknown", -1),
    ("alice", "expire 1", 4, -1),
    ("alice", "expire", 4, -1),
    ("alice", "renew", 4, -1),
    ("alice", "expire", 3, 0),
    ("alice", "pause"),
    ("alice", "renew", 3, -1),
    ("bob", "expire", 3, MINUTE),
    ("eve", "expire", 3, MINUTE),
    ("eve", "renew", 3, -1),
    ("alice", "describe", ["alice"]),
    ("bob", "expire", 3, -1),
    ("bob", "expire", 2, -1),
    ("alice", "describe", ALL),
)
WITHOUT_A_KEY: Final[tuple[tuple[Any, ...], ...]] = (
    ("alice", "create", "", [], -1),
    ("alice", "create 1", "", ["bob"], -1),
    ("alice", "create", "", ["Group:g"], -1),
    ("alice", "create", "bob", [], -1),
    ("alice", "renew", "unknown", -1),
    ("alice", "expire", "unknown", -1),
    ("alice", "expire", "unknown", 1),
    ("alice", "describe", ALL),
    ("alice", "describe", []),
    ("open", "create", "", [], -1),
    ("open", "describe", ALL),
)


class Script:
    """Asks a node step by step, each user on a connection of its own."""

    def __init__(self, addresses: Mapping[str, str], pause_s: float = 0.0) -> None:
        """`addresses`: of the listeners PLAINTEXT and SASL_PLAINTEXT. `pause_s` follows each change, for a
        node that learns of changes late."""
        self._addresses = addresses
        self._pause_s = pause_s
        self._clients: dict[str, BlockingClient] = {}
        self.made: list[Any] = []

    def run(self, steps: tuple[tuple[Any, ...], ...]) -> list[list[Any]]:
        """Return the answer to each step."""
        try:
            return [self._step(*one) for one in steps]
        finally:
            for client in self._clients.values():
                client.close()

    def _step(self, who: str, what: str, *given: Any) -> list[Any]:
        kind, _, version = what.partition(" ")
        answer: list[Any] = getattr(self, f"_{kind}")(self._client(who), int(version or 3), *given)
        if kind != "describe":
            time.sleep(self._pause_s)
        return answer

    def _client(self, who: str) -> BlockingClient:
        if who not in self._clients:
            listener = "PLAINTEXT" if who == "open" else "SASL_PLAINTEXT"
            host, _, port = self._addresses[listener].rpartition(":")
            login = None if who == "open" else self._login(who)
            self._clients[who] = BlockingClient(
                host, int(port), "steps", security=Security(credentials=login)
            )
        return self._clients[who]

    def _login(self, who: str) -> Credentials:
        def nonce() -> str:
            return secrets.token_hex(16)

        if who in PASSWORDS:
            return Credentials("PLAIN", who, PASSWORDS[who], nonce)
        number, _, mechanism = who.removeprefix("token ").partition(" by ")
        token = self.made[int(number)]
        password = b64encode(token.hmac).decode()
        return Credentials(mechanism or "SCRAM-SHA-256", token.token_id, password, nonce, is_token=True)

    def _pause(self, client: BlockingClient, version: int) -> list[Any]:
        time.sleep(0.005)  # a token that has ended lives for the rest of the millisecond
        return []

    def _allow(
        self, client: BlockingClient, version: int, user: str, operation: int, kind: int, name: str | int
    ) -> list[Any]:
        module = request_module(ApiKey.CREATE_ACLS)
        entry = module.AclCreation(
            resource_type=kind,
            resource_name=name if isinstance(name, str) else self.made[name].token_id,
            resource_pattern_type=3,
            principal=f"User:{user}",
            host="*",
            operation=operation,
            permission_type=3,
        )
        (result,) = client.request(ApiKey.CREATE_ACLS, module.CreateAclsRequest(creations=(entry,))).results
        return [result.error_code.name]

    def _create(
        self, client: BlockingClient, version: int, owner: str, renewers: list[str], lifetime_ms: int
    ) -> list[Any]:
        module = request_module(ApiKey.CREATE_DELEGATION_TOKEN)
        kind, name = _principal(owner) if owner else ("", "")
        if version < 3:
            kind = name = ""
        named = (_principal(one) for one in renewers)
        request = module.CreateDelegationTokenRequest(
            owner_principal_type=kind,
            owner_principal_name=name,
            renewers=tuple(
                module.CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in named
            ),
            max_lifetime=lifetime_ms,
        )
        answer = client.request(ApiKey.CREATE_DELEGATION_TOKEN, request, newest=version)
        who = [
            f"{answer.principal_type}:{answer.principal_name}",
            f"{answer.token_requester_principal_type}:{answer.token_requester_principal_name}",
        ]
        if answer.error_code.value:
            times = [_ms(answer.issue_timestamp), _ms(answer.expiry_timestamp), _ms(answer.max_timestamp)]
            return [answer.error_code.name, *who, times, answer.token_id, answer.hmac.hex()]
        self.made.append(answer)
        issue = _ms(answer.issue_timestamp)
        lives = [_ms(answer.expiry_timestamp) - issue, _ms(answer.max_timestamp) - issue]
        return ["none", *who, lives, len(answer.token_id), len(answer.hmac)]

    def _renew(self, client: BlockingClient, version: int, token: int | str, period_ms: int) -> list[Any]:
        module, key = request_module(ApiKey.RENEW_DELEGATION_TOKEN), ApiKey.RENEW_DELEGATION_TOKEN
        request = module.RenewDelegationTokenRequest(hmac=self._hmac(token), renew_period=period_ms)
        return self._changed(client.request(key, request, newest=min(version, 2)), token)

    def _expire(self, client: BlockingClient, version: int, token: int | str, period_ms: int) -> list[Any]:
        module, key = request_module(ApiKey.EXPIRE_DELEGATION_TOKEN), ApiKey.EXPIRE_DELEGATION_TOKEN
        request = module.ExpireDelegationTokenRequest(hmac=self._hmac(token), expiry_time_period=period_ms)
        return self._changed(client.request(key, request, newest=min(version, 2)), token)

    def _hmac(self, token: int | str) -> bytes:
        if isinstance(token, int):
            return bytes(self.made[token].hmac)
        return b"" if token == "empty" else bytes(64)

    def _changed(self, answer: Any, token: int | str) -> list[Any]:
        if answer.error_code.value or isinstance(token, str):
            return [answer.error_code.name, _ms(answer.expiry_timestamp)]
        return ["none", round((_ms(answer.expiry_timestamp) - time.time() * 1000) / MINUTE)]

    def _describe(self, client: BlockingClient, version: int, owners: list[str] | None) -> list[Any]:
        module = request_module(ApiKey.DESCRIBE_DELEGATION_TOKEN)
        named = None
        if owners is not None:
            named = tuple(
                module.DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
                for kind, name in map(_principal, owners)
            )
        request = module.DescribeDelegationTokenRequest(owners=named)
        answer = client.request(ApiKey.DESCRIBE_DELEGATION_TOKEN, request, newest=version)
        return [answer.error_code.name, sorted(map(self._described, answer.tokens))]

    def _described(self, token: Any) -> list[Any]:
        ids = [one.token_id for one in self.made]
        number = ids.index(token.token_id)
        assert token.hmac == self.made[number].hmac
        issue = token.issue_timestamp
        assert issue == _ms(self.made[number].issue_timestamp)
        return [
            number,
            f"{token.principal_type}:{token.principal_name}",
            f"{token.token_requester_principal_type}:{token.token_requester_principal_name}",
            [f"{one.principal_type}:{one.principal_name}" for one in token.renewers],
            round((token.expiry_timestamp - issue) / MINUTE, -1),
            token.max_timestamp - issue,
        ]


def _principal(text: str) -> tuple[str, str]:
    """Type and name of ``alice``, a user, or of ``Group:g``."""
    kind, colon, name = text.partition(":")
    return (kind, name) if colon else ("User", text)


def _ms(time_of_day: datetime | None) -> int:
    return -1 if time_of_day is None else round(time_of_day.timestamp() * 1000)
