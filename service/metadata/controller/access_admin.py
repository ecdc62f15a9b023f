"""The controller's decisions on who may log in, do what, and how fast: ACLs, credentials, tokens, quotas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from service.base.clock import Clock
from service.metadata.controller import acl_control, quota_control, scram_control, token_control
from service.metadata.controller.acl_control import AclDeletion, AclResult
from service.metadata.controller.acl_filters import AclFilter
from service.metadata.controller.decision_queue import DecisionQueue
from service.metadata.controller.quota_control import AlterQuotaResult, QuotaAlteration
from service.metadata.controller.scram_control import (
    AlterCredentialResult,
    DeleteCredential,
    UpsertCredential,
)
from service.metadata.controller.token_control import TokenChange, TokenIndex, TokenWanted
from service.security.acls import AclEntry
from service.security.principal import Principal
from service.security.tokens import DelegationToken, TokenRules


class AccessAdmin:
    """Changes of ACLs, SCRAM credentials, delegation tokens and client quotas. Owned by the event loop; for
    the errors see `Controller`. All of them raise `RequestError` UNSUPPORTED_VERSION while a Firn node of the
    cluster cannot read their records."""

    def __init__(
        self, decisions: DecisionQueue, clock: Clock, new_uuid: Callable[[], UUID], tokens: TokenRules
    ) -> None:
        self._decisions = decisions
        self._clock = clock
        self._new_uuid = new_uuid
        self._token_rules = tokens
        self._token_index = TokenIndex(tokens.secret)

    async def create_acls(self, entries: Sequence[AclEntry]) -> list[AclResult]:
        """Create access control entries; see `acl_control.create_acls`."""
        return await self._decisions.decide(
            lambda image: acl_control.create_acls(image, entries, new_uuid=self._new_uuid)
        )

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[AclDeletion]:
        """Delete access control entries; see `acl_control.delete_acls`."""
        return await self._decisions.decide(lambda image: acl_control.delete_acls(image, filters))

    async def alter_scram_credentials(
        self, deletions: Sequence[DeleteCredential], upsertions: Sequence[UpsertCredential]
    ) -> list[AlterCredentialResult]:
        """Delete and set credentials; see `scram_control.alter_scram_credentials`."""
        return await self._decisions.decide(
            lambda image: scram_control.alter_scram_credentials(image, deletions, upsertions)
        )

    async def alter_client_quotas(
        self, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
    ) -> list[AlterQuotaResult]:
        """Change client quotas; see `quota_control.alter_client_quotas`."""
        return await self._decisions.decide(
            lambda image: quota_control.alter_client_quotas(image, alterations, validate_only=validate_only)
        )

    async def create_token(self, wanted: TokenWanted) -> DelegationToken:
        """Create a delegation token; see `token_control.create_token`."""
        return await self._decisions.decide(
            lambda image: token_control.create_token(
                image,
                wanted,
                self._token_rules,
                self._token_index,
                now_ms=self._clock.now_ms(),
                new_uuid=self._new_uuid,
            )
        )

    async def renew_token(self, hmac: bytes, renewer: Principal, period_ms: int) -> int:
        """Renew a delegation token; see `token_control.renew_token`."""
        change = TokenChange(hmac, renewer, period_ms, self._clock.now_ms())
        return await self._decisions.decide(
            lambda image: token_control.renew_token(image, change, self._token_rules, self._token_index)
        )

    async def expire_token(self, hmac: bytes, principal: Principal, period_ms: int) -> int:
        """Expire a delegation token; see `token_control.expire_token`."""
        change = TokenChange(hmac, principal, period_ms, self._clock.now_ms())
        return await self._decisions.decide(
            lambda image: token_control.expire_token(image, change, self._token_index)
        )

    async def sweep_expired_tokens(self) -> None:
        """Remove all delegation tokens whose time is over."""
        now_ms = self._clock.now_ms()
        has_more = bool(self._decisions.latest.tokens)
        while has_more:
            has_more = await self._decisions.decide(
                lambda image: token_control.sweep_expired_tokens(image, now_ms)
            )
