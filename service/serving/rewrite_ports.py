"""Interfaces of what answers requests about rewrites of the archive and about erasures. [P]"""

from __future__ import annotations

from typing import Protocol

from service.serving.topic_rights import TopicRights
from service.wire.erasures import ErasuresRequest, ErasuresResponse
from service.wire.rewrites import RewriteRangeRequest, RewriteRangeResponse


class RangePublisher(Protocol):
    """Publishes rewrites of partitions that this broker leads, for workers elsewhere."""

    async def answer(self, request: RewriteRangeRequest) -> RewriteRangeResponse:
        """Carry out one step. The request is well-formed; nothing that it names was looked at."""


class ErasureOrders(Protocol):
    """Orders to erase keys, at the keeper of the prefix."""

    async def answer(self, request: ErasuresRequest, rights: TopicRights) -> ErasuresResponse:
        """Carry out one request. It is well-formed; an order in it was not decoded yet.

        A start and a cancel need to delete each topic of the order, counts to read what is counted in.
        """
