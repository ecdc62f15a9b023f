"""Interfaces of what answers requests about rewrites of the archive and about erasures. [P]"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from service.wire.erasures import ErasuresRequest, ErasuresResponse
from service.wire.rewrites import RewriteRangeRequest, RewriteRangeResponse


class RangePublisher(Protocol):
    """Publishes rewrites of partitions that this broker leads, for workers elsewhere."""

    async def answer(self, request: RewriteRangeRequest) -> RewriteRangeResponse:
        """Carry out one step. The request is well-formed; nothing that it names was looked at."""


class ErasureOrders(Protocol):
    """Orders to erase keys, at the keeper of the prefix."""

    async def answer(
        self, request: ErasuresRequest, may_delete: Callable[[str], bool] | None
    ) -> ErasuresResponse:
        """Carry out one request. It is well-formed; an order in it was not decoded yet.

        `may_delete` tells whether the client may delete a topic, by name: a start and a cancel need that for
        each topic of the order. None: everybody may.
        """
