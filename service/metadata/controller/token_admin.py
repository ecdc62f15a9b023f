"""The controller's decisions on delegation tokens."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from service.base.clock import Clock
from service.metadata.controller import token_control
from service.metadata.controller.decision_queue import DecisionQueue
from service.metadata.controller.token_control import TokenChange, TokenIndex, TokenWanted
from service.security.principal import Principal
from service.security.tokens import DelegationToken, TokenRules


class TokenAdmin:
    """Changes of delegation tokens; errors as those of `AccessAdmin`. Owned by the event loop."""

    def __init__(
        self, decisions: DecisionQueue, clock: Clock, new_uuid: Callable[[], UUID], rules: TokenRules
    ) -> None:
        self._decisions = decisions
        self._clock = clock
        self._new_uuid = new_uuid
        self._rules = rules
        self._index = TokenIndex(rules.secret)

    async def create(self, wanted: TokenWanted) -> DelegationToken:
        """Create a token; see `token_control.create_token`."""
        now_ms = self._clock.now_ms()
        return await self._decisions.decide(
            lambda image: token_control.create_token(
                image, wanted, self._rules, self._index, now_ms=now_ms, new_uuid=self._new_uuid
            )
        )

    async def renew(self, hmac: bytes, renewer: Principal, period_ms: int) -> DelegationToken:
        """Renew a token; see `token_control.renew_token`."""
        change = TokenChange(hmac, renewer, period_ms, self._clock.now_ms())
        return await self._decisions.decide(
            lambda image: token_control.renew_token(image, change, self._rules, self._index)
        )

    async def expire(self, hmac: bytes, principal: Principal, period_ms: int) -> DelegationToken:
        """Expire a token; see `token_control.expire_token`."""
        change = TokenChange(hmac, principal, period_ms, self._clock.now_ms())
        return await self._decisions.decide(
            lambda image: token_control.expire_token(image, change, self._index)
        )

    async def sweep_expired(self) -> bool:
        """Remove tokens whose time is over; return whether there may be more of them."""
        now_ms = self._clock.now_ms()
        return await self._decisions.decide(lambda image: token_control.sweep_expired_tokens(image, now_ms))
