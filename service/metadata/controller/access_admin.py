"""The controller's decisions on who may log in, do what, and how fast: ACLs, credentials, tokens, quotas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from service.base.clock import Clock
from service.metadata.controller.decision_queue import DecisionQueue
from service.security.tokens import TokenRules

if TYPE_CHECKING:
    from service.metadata.controller.acl_control import AclDeletion, AclResult
    from service.metadata.controller.acl_filters import AclFilter
    from service.metadata.controller.quota_control import AlterQuotaResult, QuotaAlteration
    from service.metadata.controller.scram_control import (
        AlterCredentialResult,
        DeleteCredential,
        UpsertCredential,
    )
    from service.metadata.controller.token_admin import TokenAdmin
    from service.security.acls import AclEntry


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
        self._tokens: TokenAdmin | None = None

    @property
    def tokens(self) -> TokenAdmin:
        """Changes of delegation tokens; the first use loads their code."""
        if self._tokens is None:
            from service.metadata.controller.token_admin import TokenAdmin

            self._tokens = TokenAdmin(self._decisions, self._clock, self._new_uuid, self._token_rules)
        return self._tokens

    async def create_acls(self, entries: Sequence[AclEntry]) -> list[AclResult]:
        """Create access control entries; see `acl_control.create_acls`."""
        from service.metadata.controller import acl_control

        return await self._decisions.decide(
            lambda image: acl_control.create_acls(image, entries, new_uuid=self._new_uuid)
        )

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[AclDeletion]:
        """Delete access control entries; see `acl_control.delete_acls`."""
        from service.metadata.controller import acl_control

        return await self._decisions.decide(lambda image: acl_control.delete_acls(image, filters))

    async def alter_scram_credentials(
        self, deletions: Sequence[DeleteCredential], upsertions: Sequence[UpsertCredential]
    ) -> list[AlterCredentialResult]:
        """Delete and set credentials; see `scram_control.alter_scram_credentials`."""
        from service.metadata.controller import scram_control

        return await self._decisions.decide(
            lambda image: scram_control.alter_scram_credentials(image, deletions, upsertions)
        )

    async def alter_client_quotas(
        self, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
    ) -> list[AlterQuotaResult]:
        """Change client quotas; see `quota_control.alter_client_quotas`."""
        from service.metadata.controller import quota_control

        return await self._decisions.decide(
            lambda image: quota_control.alter_client_quotas(image, alterations, validate_only=validate_only)
        )
