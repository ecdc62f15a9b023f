"""Delegation tokens: creates, renews and expires them, and says whose a client may see. [P]

Source: Apache Kafka ``DelegationTokenControlManager``, ``DelegationTokenManager.filterToken``. These limits
are Firn's own: only users own tokens, one has `MOST_RENEWERS` and 64 KiB of names at most, and one principal
may ask for `MOST_TOKENS`, with `MOST_NAMES_BYTES` of names in all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.base.uuids import encode_uuid
from service.metadata.access_records import token_record
from service.metadata.controller.decision import ControllerResult, decided, decided_in_steps
from service.metadata.controller.record_gate import check_every_node_reads
from service.metadata.controller.requests import is_too_long
from service.metadata.image import MetadataImage
from service.metadata.persistent import PersistentMap
from service.metadata.records import MetadataRecord, RemoveDelegationTokenRecord
from service.security.principal import USER, Principal
from service.security.tokens import DelegationToken, TokenRules, TokenSecret

MOST_TOKENS: Final = 20_000
"""Tokens that one principal may have asked for; each is in the memory of every node for days."""
MOST_RENEWERS: Final = 500
MOST_PRINCIPAL_BYTES: Final = 64 << 10
"""Bytes of a token's principals, in all."""
MOST_NAMES_BYTES: Final = 16 << 20
"""Bytes of the principals of all tokens that one principal has asked for: it needs no right to ask."""
MOST_SWEPT: Final = 1_000
"""Tokens that one decision removes (Kafka's ``MAX_RECORDS_PER_EXPIRATION``)."""
LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, as messages with later times cannot be read here; Kafka has its longest long."""
_AT_A_TIME: Final = 64
Tokens = PersistentMap[str, DelegationToken]


class TokenWanted(NamedTuple):
    """A token to create. `max_lifetime_ms`: 0 or less for the longest that there is. `renewers`:
    `MOST_RENEWERS` at most, or `create_token` refuses it."""

    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    max_lifetime_ms: int


class TokenChange(NamedTuple):
    """Renewal or expiry of the token with an HMAC, by a principal, at a time."""

    hmac: bytes
    principal: Principal
    period_ms: int
    now_ms: int

    def __repr__(self) -> str:
        return f"TokenChange({self.principal}, {self.period_ms}, {self.now_ms})"


class TokenIndex:
    """Tokens by their HMACs, and what each requester has, of the tokens that were looked at last."""

    __slots__ = ("_bytes_of_requesters", "_hmacs", "_ids", "_of_requesters", "_requesters", "_seen", "secret")

    def __init__(self, secret: TokenSecret | None) -> None:
        self.secret = secret
        self._seen: Tokens | None = None
        self._ids: dict[bytes, str] = {}
        self._hmacs: dict[str, bytes] = {}
        self._requesters: dict[str, tuple[Principal, int]] = {}
        """each token's requester, and the bytes of its principals"""
        self._of_requesters: Counter[Principal] = Counter()
        self._bytes_of_requesters: Counter[Principal] = Counter()

    def find(self, tokens: Tokens, hmac: bytes) -> Steps[DelegationToken | None]:
        """Return the token with this HMAC, in steps."""
        yield from self._look_at(tokens)
        token_id = self._ids.get(hmac)
        return None if token_id is None else tokens.get(token_id)

    def requested_by(self, tokens: Tokens, requester: Principal) -> Steps[tuple[int, int]]:
        """Return the number of tokens that `requester` has asked for, and the bytes of their principals, in
        steps."""
        yield from self._look_at(tokens)
        requester = _plain(requester)
        return self._of_requesters[requester], self._bytes_of_requesters[requester]

    def _look_at(self, tokens: Tokens) -> Steps[None]:
        if tokens is self._seen or self.secret is None:
            return
        self._seen = None
        for number, token_id in enumerate(list(self._hmacs)):
            if not number % _AT_A_TIME:
                yield
            if token_id not in tokens:
                self._forget(token_id)
        for number, token in enumerate(tokens.values()):
            if not number % _AT_A_TIME:
                yield
            if token.id not in self._hmacs:
                self._add(token, self.secret.hmac_of(token.id))
        self._seen = tokens

    def _add(self, token: DelegationToken, hmac: bytes) -> None:
        self._hmacs[token.id], self._ids[hmac] = hmac, token.id
        size = _bytes_of(token.owner, token.requester, *token.renewers)
        self._requesters[token.id] = token.requester, size
        self._of_requesters[token.requester] += 1
        self._bytes_of_requesters[token.requester] += size

    def _forget(self, token_id: str) -> None:
        del self._ids[self._hmacs.pop(token_id)]
        requester, size = self._requesters.pop(token_id)
        self._of_requesters[requester] -= 1
        self._bytes_of_requesters[requester] -= size
        if not self._of_requesters[requester]:
            del self._of_requesters[requester], self._bytes_of_requesters[requester]


def _bytes_of(*principals: Principal) -> int:
    return sum(len(str(one).encode("utf-8", "surrogatepass")) for one in principals)


def check_principals(wanted: TokenWanted) -> None:
    """Check number and types of the principals.

    Raises `RequestError` INVALID_REQUEST for too many renewers; INVALID_PRINCIPAL_TYPE for a renewer that is
    no user, as Kafka, and for such an owner: Kafka lets its token log in as the user of that name.
    """
    if len(wanted.renewers) > MOST_RENEWERS:
        raise RequestError(ErrorCode.invalid_request)
    for one in (*wanted.renewers, wanted.owner):
        if one.type != USER:
            raise RequestError(ErrorCode.invalid_principal_type)


def create_token(
    image: MetadataImage,
    wanted: TokenWanted,
    rules: TokenRules,
    index: TokenIndex,
    *,
    now_ms: int,
    new_uuid: Callable[[], UUID],
) -> Steps[ControllerResult[DelegationToken]]:
    """Create a token, in steps.

    Raises `RequestError`: DELEGATION_TOKEN_AUTH_DISABLED without a key; INVALID_PRINCIPAL_TYPE as
    `check_principals`; INVALID_REQUEST for names that are too long; POLICY_VIOLATION for too many tokens.
    """
    check_enabled(rules)
    check_principals(wanted)
    principals = wanted.owner, wanted.requester, *wanted.renewers
    size = _bytes_of(*principals)
    if any(is_too_long(str(one)) for one in principals) or size > MOST_PRINCIPAL_BYTES:
        raise RequestError(ErrorCode.invalid_request)
    number, before = yield from index.requested_by(image.tokens, wanted.requester)
    if number >= MOST_TOKENS or before + size > MOST_NAMES_BYTES:
        raise RequestError(ErrorCode.policy_violation)
    check_every_node_reads(image)
    lifetime_ms = rules.max_lifetime_ms
    if wanted.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, wanted.max_lifetime_ms)
    max_ms = _sum(now_ms, lifetime_ms)
    token = DelegationToken(
        _new_id(new_uuid),
        _plain(wanted.owner),
        _plain(wanted.requester),
        tuple(map(_plain, wanted.renewers)),
        now_ms,
        max_ms,
        min(max_ms, _sum(now_ms, rules.expiry_time_ms)),
    )
    return decided([token_record(token)], token)


def _plain(principal: Principal) -> Principal:
    return Principal(principal.type, principal.name)


def _new_id(new_uuid: Callable[[], UUID]) -> str:
    """Return a new id, which does not begin as an option of a command does."""
    while (made := encode_uuid(new_uuid())).startswith("-"):
        continue
    return made


def renew_token(
    image: MetadataImage, change: TokenChange, rules: TokenRules, index: TokenIndex
) -> Steps[ControllerResult[DelegationToken]]:
    """Renew a token, in steps; returns it with the time at which it expires now.

    Raises `RequestError`: DELEGATION_TOKEN_AUTH_DISABLED, _NOT_FOUND, _EXPIRED, _OWNER_MISMATCH, in this
    order.
    """
    check_enabled(rules)
    token = yield from _found(image, change, index)
    if token.is_expired(change.now_ms):
        raise RequestError(ErrorCode.delegation_token_expired)
    _check_allowed(token, change)
    period_ms = rules.expiry_time_ms
    if change.period_ms > 0:
        period_ms = min(period_ms, change.period_ms)
    return _until(image, token, min(token.max_ms, _sum(change.now_ms, period_ms)))


def expire_token(
    image: MetadataImage, change: TokenChange, index: TokenIndex
) -> Steps[ControllerResult[DelegationToken]]:
    """Let a token expire after the period, at once if it is negative, in steps; returns it with the time.

    Raises `RequestError`: DELEGATION_TOKEN_AUTH_DISABLED, _NOT_FOUND, _OWNER_MISMATCH and, unless the period
    is negative, _EXPIRED, in this order.
    """
    if index.secret is None:
        raise RequestError(ErrorCode.delegation_token_auth_disabled)
    token = yield from _found(image, change, index)
    _check_allowed(token, change)
    if change.period_ms < 0:
        ended = token._replace(expiry_ms=change.now_ms)
        return decided([RemoveDelegationTokenRecord(token_id=token.id)], ended)
    if token.is_expired(change.now_ms):
        raise RequestError(ErrorCode.delegation_token_expired)
    return _until(image, token, min(token.max_ms, _sum(change.now_ms, change.period_ms)))


def check_enabled(rules: TokenRules) -> None:
    """Raise `RequestError` DELEGATION_TOKEN_AUTH_DISABLED where there is no key."""
    if rules.secret is None:
        raise RequestError(ErrorCode.delegation_token_auth_disabled)


def _found(image: MetadataImage, change: TokenChange, index: TokenIndex) -> Steps[DelegationToken]:
    token = yield from index.find(image.tokens, change.hmac)
    if token is None:
        raise RequestError(ErrorCode.delegation_token_not_found)
    return token


def _check_allowed(token: DelegationToken, change: TokenChange) -> None:
    if not token.may_be_renewed_by(change.principal):
        raise RequestError(ErrorCode.delegation_token_owner_mismatch)


def _until(image: MetadataImage, token: DelegationToken, expiry_ms: int) -> ControllerResult[DelegationToken]:
    check_every_node_reads(image)
    changed = token._replace(expiry_ms=expiry_ms)
    return decided([token_record(changed)], changed)


def _sum(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, LAST_MS)


def sweep_expired_tokens(image: MetadataImage, now_ms: int) -> Steps[ControllerResult[bool]]:
    """Remove tokens whose time is over, `MOST_SWEPT` at most, in steps; returns whether there may be more."""
    gone: list[MetadataRecord] = []
    for number, token in enumerate(image.tokens.values()):
        if not number % _AT_A_TIME:
            yield
        if token.is_expired(now_ms):
            gone.append(RemoveDelegationTokenRecord(token_id=token.id))
            if len(gone) == MOST_SWEPT:
                break
    return (yield from decided_in_steps(gone, len(gone) == MOST_SWEPT))


def describe_tokens(
    tokens: Tokens,
    principal: Principal,
    owners: AbstractSet[tuple[str, str]] | None,
    may_describe: Callable[[DelegationToken], bool],
) -> Steps[list[DelegationToken]]:
    """Return the tokens that `principal` may see, in steps and in no order.

    `owners`: types and names; only tokens of which one of them is owner, requester or renewer; None for all.
    `may_describe` is asked about tokens in which `principal` has no part.
    """
    found = []
    for token in tokens.values():
        yield
        if owners is not None and owners.isdisjoint(
            one[:2] for one in (token.owner, token.requester, *token.renewers)
        ):
            continue
        if token.is_of(principal) or may_describe(token):
            found.append(token)
    return found
