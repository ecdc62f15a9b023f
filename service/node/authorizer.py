"""Authorizer of a node, by its settings and the ACLs of its metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from service.config.settings import BrokerConfig
from service.metadata.publisher import Publisher
from service.security.acls import AclSet
from service.wire.api import APIS

if TYPE_CHECKING:
    from service.security.authorizer import Authorizer


class LoadedAcls:
    """ACLs of the newest image; None until it has had all that was committed when this node started."""

    __slots__ = ("_metadata", "_publisher")

    def __init__(self, metadata: Callable[[], Publisher | None]) -> None:
        self._metadata = metadata
        self._publisher: Publisher | None = None
        """Set once it has loaded."""

    def __call__(self) -> AclSet | None:
        publisher = self._publisher
        if publisher is not None:
            return publisher.image.acls
        publisher = self._metadata()
        if publisher is None or not publisher.has_loaded:
            return None
        self._publisher = publisher
        return publisher.image.acls


def make_authorizer(config: BrokerConfig, metadata: Callable[[], Publisher | None]) -> Authorizer | None:
    """Return the node's authorizer; None where the settings name none. `metadata` returns the metadata log
    once there is one.
    """
    if not config.authorizer_class_name:
        return None
    from service.security.audit import Audit  # a node without an authorizer does not load them
    from service.security.authorizer import Authorizer

    loop = asyncio.get_running_loop()
    return Authorizer(
        LoadedAcls(metadata),
        Audit(later=loop.call_later, api_name=api_name),
        super_users=config.super_principals,
        allow_everyone=config.allow_everyone_if_no_acl_found,
        now=loop.time,
    )


def api_name(key: int) -> str:
    """Return Kafka's name of an API, or its number."""
    api = APIS.get(key)
    return str(key) if api is None else api.name
